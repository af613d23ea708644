/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening a file of tokens: which format it has, where its tokens and documents are.
 */
#include "config.h"

#include "data/tokens_int.h"

#include "base/arena.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

const char *smp_token_format_name(smp_token_format format)
{
    static const char *const names[] = { "text", "llm.c", "nanoGPT", "Megatron" };

    return names[format];
}

uint64_t smp_le(const unsigned char *at, uint32_t bytes)
{
    uint64_t value = 0;

    for (uint32_t i = 0; i < bytes; i++) {
        value |= (uint64_t)at[i] << (8 * i);
    }
    return value;
}

/* ---- files ---- */

static smp_status map_open(const char *path, int file, smp_errors *errors, smp_mapped *mapped_p)
{
    const smp_place place = { .file = path };
    struct stat facts;
    void *at;

    if (file < 0 || fstat(file, &facts) != 0) {
        return smp_fail(errors, smp_read_status(errno), &place, "%s", strerror(errno));
    }
    if (!S_ISREG(facts.st_mode)) {
        return smp_fail(errors, SMP_INPUT, &place, "not a file with tokens or text");
    }
    *mapped_p = (smp_mapped){ .bytes = (size_t)facts.st_size };
    if (facts.st_size == 0) {
        return SMP_OK;
    }
    at = mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    if (at == MAP_FAILED) {
        return smp_fail(errors, SMP_SYSTEM, &place, "%s", strerror(errno));
    }
    mapped_p->at = at;
    return SMP_OK;
}

smp_status smp_map_file(const char *path, smp_errors *errors, smp_mapped *mapped_p)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    smp_status status = map_open(path, file, errors, mapped_p);

    if (file >= 0) {
        (void)close(file);
    }
    return status;
}

void smp_unmap_file(smp_mapped *mapped)
{
    if (mapped->at) {
        (void)munmap(mapped->at, mapped->bytes);
    }
    *mapped = (smp_mapped){ 0 };
}

/* ---- formats ---- */

static bool ends_in(const char *path, const char *suffix)
{
    size_t n = strlen(path), m = strlen(suffix);

    return n > m && strcmp(path + n - m, suffix) == 0;
}

static bool exists(const char *path)
{
    struct stat facts;

    return stat(path, &facts) == 0 && S_ISREG(facts.st_mode);
}

/* The path with another suffix in place of the last `cut` bytes; heap. */
static char *with_suffix(const char *path, size_t cut, const char *suffix)
{
    smp_text text = { 0 };

    smp_text_add(&text, "%.*s%s", (int)(strlen(path) - cut), path, suffix);
    return text.data;
}

/* Megatron's pair of files: sets tokens->path to the .bin and returns the .idx (heap), or NULL
 * where the path names something else. */
static char *find_index(smp_tokens *tokens, const char *path)
{
    size_t cut = ends_in(path, ".bin") || ends_in(path, ".idx") ? 4 : 0;
    char *index = with_suffix(path, cut, ".idx");

    if ((cut == 0 && exists(path)) || (!exists(index) && !ends_in(path, ".idx"))) {
        free(index);
        tokens->path = with_suffix(path, 0, "");
        return NULL;
    }
    tokens->path = with_suffix(path, cut, ".bin");
    return index;
}

smp_status smp_check_name(const char *path, smp_errors *errors)
{
    const smp_place place = { .file = path };
    smp_status status = SMP_OK;
    struct stat facts;
    char *index;

    if (strcmp(path, "-") == 0 || (stat(path, &facts) == 0 && !S_ISREG(facts.st_mode))) {
        return SMP_OK;
    }
    if (!ends_in(path, ".bin")) {
        return smp_fail(errors, SMP_INPUT, &place,
                        "would be read as text: a file of tokens has a name that ends in .bin");
    }
    index = with_suffix(path, 4, ".idx");
    if (exists(index)) {
        status = smp_fail(errors, SMP_INPUT, &place,
                          "would be read as Megatron's, with %s: give another name", index);
    }
    free(index);
    return status;
}

bool smp_tokens_magic(const unsigned char first[SMP_TOKENS_MAGIC_BYTES])
{
    uint64_t magic = smp_le(first, SMP_TOKENS_MAGIC_BYTES);

    return magic == SMP_LLMC_MAGIC || magic == SMP_LLMC_WIDE_MAGIC;
}

/* Header of llm.c: 256 int32, of which magic, version and number of tokens are used. */
static smp_status read_header(smp_tokens *tokens, bool wide, smp_errors *errors)
{
    const smp_place place = { .file = tokens->path };
    const unsigned char *header = tokens->file.at;
    uint32_t version = wide ? SMP_LLMC_WIDE_VERSION : SMP_LLMC_VERSION;

    if (tokens->file.bytes < SMP_LLMC_HEADER_BYTES) {
        return smp_fail(errors, SMP_INPUT, &place,
                        "begins as llm.c's header of %d bytes, and holds %llu: it is not "
                        "complete", SMP_LLMC_HEADER_BYTES,
                        (unsigned long long)tokens->file.bytes);
    }
    uint64_t said = smp_le(header + 8, 4), bytes = tokens->file.bytes - SMP_LLMC_HEADER_BYTES;

    tokens->facts.format = SMP_TOKENS_LLMC;
    tokens->facts.token_bytes = wide ? 4 : 2;
    tokens->facts.tokens = bytes / tokens->facts.token_bytes;
    tokens->first = header + SMP_LLMC_HEADER_BYTES;
    if (smp_le(header + 4, 4) != version) {
        return smp_fail(errors, SMP_INPUT, &place, "version %llu of llm.c's header; must be %u",
                        (unsigned long long)smp_le(header + 4, 4), version);
    }
    if (said != tokens->facts.tokens || bytes % tokens->facts.token_bytes != 0) {
        return smp_fail(errors, SMP_INPUT, &place,
                        "its header says %llu tokens of %u bytes, the file holds %llu bytes of "
                        "them: it is not complete, or not llm.c's",
                        (unsigned long long)said, tokens->facts.token_bytes,
                        (unsigned long long)bytes);
    }
    return SMP_OK;
}

static smp_status read_plain(smp_tokens *tokens, smp_errors *errors)
{
    const smp_place place = { .file = tokens->path };
    uint64_t bytes = tokens->file.bytes;

    tokens->first = tokens->file.at;
    tokens->facts.format = ends_in(tokens->path, ".bin") ? SMP_TOKENS_NANOGPT : SMP_TOKENS_TEXT;
    tokens->facts.token_bytes = tokens->facts.format == SMP_TOKENS_TEXT ? 1 : 2;
    tokens->facts.tokens = bytes / tokens->facts.token_bytes;
    if (tokens->facts.format == SMP_TOKENS_NANOGPT && bytes >= 8
        && smp_tokens_magic(tokens->first)) {
        return read_header(tokens, smp_le(tokens->first, 4) == SMP_LLMC_WIDE_MAGIC, errors);
    }
    if (bytes % tokens->facts.token_bytes != 0) {
        return smp_fail(errors, SMP_INPUT, &place,
                        "%llu bytes are no whole number of tokens of %u bytes: it is "
                        "truncated, or not nanoGPT's",
                        (unsigned long long)bytes, tokens->facts.token_bytes);
    }
    return SMP_OK;
}

/* Documents that end with a separator; what follows the last one is one more. */
static void split(smp_tokens *tokens, int64_t separator)
{
    uint64_t n = 0, capacity = 0;

    for (uint64_t i = 0, begin = 0; i < tokens->facts.tokens; i++) {
        if (smp_tokens_at(tokens, i) == separator || i + 1 == tokens->facts.tokens) {
            SMP_GROW(tokens->begins, n, capacity);
            tokens->begins[n++] = begin;
            begin = i + 1;
        }
    }
    SMP_GROW(tokens->begins, n, capacity);
    tokens->begins[n] = tokens->facts.tokens;
    tokens->facts.documents = n;
}

smp_status smp_tokens_open(const char *path, int64_t separator, smp_errors *errors,
                           smp_tokens **tokens_p)
{
    smp_tokens *tokens = smp_heap_alloc(1, sizeof *tokens);
    char *index = find_index(tokens, path);
    smp_status status = smp_map_file(tokens->path, errors, &tokens->file);

    tokens->facts = (smp_tokens_facts){ .path = tokens->path, .documents = 1 };
    if (status == SMP_OK) {
        status = index ? smp_megatron_read(tokens, index, errors)
                       : read_plain(tokens, errors);
    }
    if (status == SMP_OK && tokens->facts.tokens == 0) {
        status = smp_fail(errors, SMP_INPUT, &(smp_place){ .file = tokens->path },
                          "holds no token");
    }
    free(index);
    if (status != SMP_OK) {
        smp_tokens_close(tokens);
        return status;
    }
    if (separator != SMP_NO_SEPARATOR && tokens->facts.format != SMP_TOKENS_MEGATRON) {
        split(tokens, separator);
    }
    *tokens_p = tokens;
    return SMP_OK;
}

void smp_tokens_close(smp_tokens *tokens)
{
    if (tokens) {
        smp_unmap_file(&tokens->file);
        free(tokens->begins);
        free(tokens->path);
        free(tokens);
    }
}

/* ---- reading ---- */

const smp_tokens_facts *smp_tokens_facts_of(const smp_tokens *tokens)
{
    return &tokens->facts;
}

int64_t smp_tokens_at(const smp_tokens *tokens, uint64_t i)
{
    uint32_t bytes = tokens->facts.token_bytes;
    uint64_t value = smp_le(tokens->first + i * bytes, bytes), sign = 1;

    sign <<= 8 * bytes - 1;
    if (tokens->is_signed && (value & sign) != 0) { /* two's complement */
        return (int64_t)(value - sign) - (int64_t)(sign - 1) - 1;
    }
    return (int64_t)value;
}

uint64_t smp_tokens_document(const smp_tokens *tokens, uint64_t i)
{
    return tokens->begins ? tokens->begins[i] : i * tokens->facts.tokens;
}

uint64_t smp_tokens_document_of(const smp_tokens *tokens, uint64_t i)
{
    uint64_t low = 0, high = tokens->facts.documents;

    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;

        if (smp_tokens_document(tokens, middle) <= i) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}
