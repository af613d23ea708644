/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing tokens as llm.c and nanoGPT keep them: uint16, little endian.
 */
#include "config.h"

#include "data/tokens_int.h"

#include "base/arena.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

struct smp_tokens_writer {
    smp_file *file;
    char *path;
    smp_token_format format;
    uint64_t tokens;
    int error;                 /* the number of the first one, or 0 */
};

static void put_le(unsigned char *at, uint32_t value)
{
    for (int i = 0; i < 4; i++) {
        at[i] = (unsigned char)(value >> (8 * i));
    }
}

static void write_header(smp_tokens_writer *writer)
{
    unsigned char header[SMP_LLMC_HEADER_BYTES] = { 0 };

    put_le(header, SMP_LLMC_MAGIC);
    put_le(header + 4, SMP_LLMC_VERSION);
    put_le(header + 8, (uint32_t)writer->tokens);
    (void)fwrite(header, 1, sizeof header, smp_file_stream(writer->file));
}

smp_status smp_tokens_create(const char *path, smp_token_format format, smp_errors *errors,
                             smp_tokens_writer **writer_p)
{
    smp_tokens_writer *writer = smp_heap_alloc(1, sizeof *writer);
    smp_status status = smp_check_name(path, errors);
    smp_text copy = { 0 };

    if (status == SMP_OK) {
        status = smp_file_create(path, errors, &writer->file);
    }
    if (status != SMP_OK) {
        free(writer);
        return status;
    }
    smp_text_add(&copy, "%s", path);
    writer->path = copy.data;
    writer->format = format;
    if (format == SMP_TOKENS_LLMC) {
        write_header(writer);
    }
    *writer_p = writer;
    return SMP_OK;
}

void smp_tokens_put(smp_tokens_writer *writer, uint16_t token)
{
    const unsigned char bytes[2] = { (unsigned char)token, (unsigned char)(token >> 8) };

    if (fwrite(bytes, 1, sizeof bytes, smp_file_stream(writer->file)) < sizeof bytes
        && writer->error == 0) {
        writer->error = errno; /* commit tells */
    }
    writer->tokens++;
}

/* The number of tokens is known now. */
static smp_status finish_header(smp_tokens_writer *writer, smp_errors *errors)
{
    const smp_place place = { .file = writer->path };

    if (writer->format != SMP_TOKENS_LLMC) {
        return SMP_OK;
    }
    if (writer->tokens > INT32_MAX) {
        return smp_fail(errors, SMP_INPUT, &place,
                        "%llu tokens: llm.c's header counts to 2147483647",
                        (unsigned long long)writer->tokens);
    }
    if ((fcntl(fileno(smp_file_stream(writer->file)), F_GETFL) & O_APPEND) != 0) {
        return smp_fail(errors, SMP_INPUT, &place,
                        "its header cannot be written: output is appended to what is there; "
                        "--format nanogpt has none");
    }
    if (fseek(smp_file_stream(writer->file), 0, SEEK_SET) != 0) {
        return smp_fail(errors, SMP_SYSTEM, &place,
                        "its header cannot be written: %s%s", strerror(errno),
                        errno == ESPIPE ? "; --format nanogpt has none" : "");
    }
    write_header(writer);
    return SMP_OK;
}

smp_status smp_tokens_commit(smp_tokens_writer *writer, smp_errors *errors)
{
    const smp_place place = { .file = writer->path };
    smp_status status;

    if (writer->tokens == 0) {
        status = smp_fail(errors, SMP_INPUT, &place,
                          "there is no token to write: what was read is empty");
    } else if (writer->error != 0) {
        status = smp_fail(errors, SMP_SYSTEM, &place, "writing failed: %s",
                          strerror(writer->error));
    } else {
        status = finish_header(writer, errors);
    }
    if (status == SMP_OK) {
        status = smp_file_commit(writer->file, errors);
    } else {
        smp_file_abandon(writer->file);
    }
    free(writer->path);
    free(writer);
    return status;
}

void smp_tokens_abandon(smp_tokens_writer *writer)
{
    if (writer) {
        smp_file_abandon(writer->file);
        free(writer->path);
        free(writer);
    }
}
