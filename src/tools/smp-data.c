/* SPDX-License-Identifier: Apache-2.0 */
/*
 * smp-data: text to tokens and back, and what is in a file of tokens.
 */
#include "config.h"

#include "data/tokens.h"
#include "tools/paths.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct options {
    const char *output, *format, *tokenizer, *eot, *first, *count;
} options;

static const cli_option table[] = {
    CLI_HEADING("Options"),
    CLI_TEXT("output", 'o', "FILE", options, output,
             "encode: tokens, a name that ends in .bin, or -; decode: text, default -"),
    CLI_TEXT("format", 0, "WHAT", options, format,
             "encode: llm.c (default) with a header, or nanogpt without"),
    CLI_TEXT("eot", 0, "ID", options, eot,
             "encode: put this token, at most 256, behind each file; info: it ends documents"),
    CLI_TEXT("tokenizer", 0, "NAME", options, tokenizer,
             "encode, decode: byte (default): a byte is a token, 256 ends a text"),
    CLI_TEXT("first", 0, "N", options, first, "decode: from token N on, from 0; default: 0"),
    CLI_TEXT("count", 'n', "N", options, count, "decode: so many tokens; default: all"),
    CLI_COMMON_OPTIONS
};

static const char *const usage[] = {
    "info FILE [OPTION]...",
    "encode TEXT... -o FILE [OPTION]...",
    "decode FILE [-o FILE] [OPTION]...",
    NULL
};

static const char *const examples[] = {
    "smp-data encode src/*/*.c --eot 256 -o code.bin",
    "smp-data info code.bin --eot 256",
    "smp-data info my-gpt2_text_document.idx",
    "smp-data decode code.bin --count 200",
    NULL
};

static const cli_program program = {
    .name = "smp-data",
    .usage = usage,
    .about = "Makes files of tokens for smp-exec from text, says what is in one, and turns\n"
             "tokens back into text.  Reads llm.c's and nanoGPT's .bin, Megatron's .bin and\n"
             ".idx, and text; writes the first two.",
    .options = table,
    .n_option = sizeof table / sizeof table[0],
    .notes = "Exit status: 0 done, 1 the system failed, 2 an input or the usage is wrong.",
    .examples = examples,
    .max_operands = 1 << 20
};

/* Bytes are tokens 0 to 255; the number behind them is free. */
enum { BYTE_EOT = 256 };

/* Token number of --eot, or none. */
static smp_status read_separator(const options *o, uint64_t high, smp_errors *errors,
                                 int64_t *separator_p)
{
    uint64_t value = 0;

    *separator_p = SMP_NO_SEPARATOR;
    if (o->eot) {
        if (cli_number("--eot", o->eot, 0, high, errors, &value) != SMP_OK) {
            return SMP_INPUT;
        }
        *separator_p = (int64_t)value;
    }
    return SMP_OK;
}

static smp_status check_tokenizer(const options *o, smp_errors *errors)
{
    const smp_place place = { .file = "--tokenizer" };

    if (!o->tokenizer || strcmp(o->tokenizer, "byte") == 0) {
        return SMP_OK;
    }
    return smp_fail(errors, SMP_INPUT, &place,
                    "%s: only byte is there; other tokenizers (a tokenizer.json, say) are not "
                    "read: make a .bin or .bin and .idx with their own tools",
                    o->tokenizer);
}

/* An option that the command does not read is a mistake. */
static smp_status check_options(const options *o, const char *command, smp_errors *errors)
{
    const struct { const char *value, *name, *first, *second; } all[] = {
        { o->output, "--output", "encode", "decode" },
        { o->format, "--format", "encode", NULL },
        { o->eot, "--eot", "encode", "info" },
        { o->tokenizer, "--tokenizer", "encode", "decode" },
        { o->first, "--first", "decode", NULL },
        { o->count, "--count", "decode", NULL },
    };

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const char *first = all[i].first, *second = all[i].second ? all[i].second : "";

        if (all[i].value && strcmp(command, first) != 0 && strcmp(command, second) != 0) {
            return smp_fail(errors, SMP_INPUT, &(smp_place){ .file = all[i].name },
                            "is an option of %s%s%s, not of %s", first,
                            all[i].second ? " and " : "", second, command);
        }
    }
    return SMP_OK;
}

/* ---- info ---- */

static void print_lengths(const smp_tokens *tokens)
{
    const smp_tokens_facts *f = smp_tokens_facts_of(tokens);
    uint64_t shortest = UINT64_MAX, longest = 0;

    for (uint64_t i = 0; i < f->documents; i++) {
        uint64_t n = smp_tokens_document(tokens, i + 1) - smp_tokens_document(tokens, i);

        shortest = n < shortest ? n : shortest;
        longest = n > longest ? n : longest;
    }
    printf("documents    %llu, of %llu to %llu tokens, %.1f on average\n",
           (unsigned long long)f->documents, (unsigned long long)shortest,
           (unsigned long long)longest, (double)f->tokens / (double)f->documents);
}

static void print_ids(const smp_tokens *tokens)
{
    uint64_t n = smp_tokens_facts_of(tokens)->tokens;
    int64_t least = smp_tokens_at(tokens, 0), most = least;

    for (uint64_t i = 1; i < n; i++) {
        int64_t token = smp_tokens_at(tokens, i);

        least = token < least ? token : least;
        most = token > most ? token : most;
    }
    printf("ids          %lld to %lld: a vocabulary of %lld or more\n", (long long)least,
           (long long)most, (long long)most + 1);
}

static smp_status info(const options *o, const char *path, smp_errors *errors)
{
    smp_tokens *tokens = NULL;
    const smp_tokens_facts *f;
    int64_t separator;
    smp_status status = read_separator(o, INT32_MAX, errors, &separator);

    if (status == SMP_OK) {
        status = smp_tokens_open(path, separator, errors, &tokens);
    }
    if (status != SMP_OK) {
        return status;
    }
    f = smp_tokens_facts_of(tokens);
    printf("file         %s\nformat       %s, %u byte%s a token\ntokens       %llu\n", f->path,
           smp_token_format_name(f->format), f->token_bytes, f->token_bytes > 1 ? "s" : "",
           (unsigned long long)f->tokens);
    print_lengths(tokens);
    print_ids(tokens);
    smp_tokens_close(tokens);
    return SMP_OK;
}

/* ---- encode ---- */

static smp_status read_format(const options *o, smp_errors *errors, smp_token_format *format_p)
{
    const smp_place place = { .file = "--format" };

    *format_p = SMP_TOKENS_LLMC;
    if (!o->format || strcmp(o->format, "llm.c") == 0) {
        return SMP_OK;
    }
    *format_p = SMP_TOKENS_NANOGPT;
    if (strcmp(o->format, "nanogpt") == 0) {
        return SMP_OK;
    }
    return smp_fail(errors, SMP_INPUT, &place, "%s: must be llm.c or nanogpt", o->format);
}

/* A file of tokens in place of text is a mistake that would go unnoticed. */
static smp_status encode_stream(smp_tokens_writer *writer, FILE *stream, const char *path,
                                smp_errors *errors)
{
    const smp_place place = { .file = path };
    unsigned char first[SMP_TOKENS_MAGIC_BYTES] = { 0 };
    size_t n = fread(first, 1, sizeof first, stream);
    int byte;

    if (n == sizeof first && smp_tokens_magic(first)) {
        return smp_fail(errors, SMP_INPUT, &place, "begins as llm.c's tokens do, not as text");
    }
    for (size_t i = 0; i < n; i++) {
        smp_tokens_put(writer, first[i]);
    }
    while (n == sizeof first && (byte = getc(stream)) != EOF) {
        smp_tokens_put(writer, (uint16_t)byte);
    }
    if (ferror(stream)) {
        return smp_fail(errors, errno == EISDIR ? SMP_INPUT : SMP_SYSTEM, &place, "%s",
                        strerror(errno));
    }
    return SMP_OK;
}

static smp_status encode_file(smp_tokens_writer *writer, const char *path, smp_errors *errors)
{
    const smp_place place = { .file = path };
    bool standard = strcmp(path, "-") == 0;
    FILE *file = standard ? stdin : fopen(path, "re");
    smp_status status;

    if (!file) {
        return smp_fail(errors, SMP_INPUT, &place, "%s", strerror(errno));
    }
    errno = 0;
    status = encode_stream(writer, file, path, errors);
    if (!standard) {
        (void)fclose(file);
    }
    return status;
}

/* The output would replace what is read. */
static smp_status check_apart(const char *output, const cli_list *texts, smp_errors *errors)
{
    cli_paths paths = { 0 };

    cli_paths_write(&paths, "-o", output, "");
    for (size_t i = 1; i < texts->count; i++) {
        cli_paths_read(&paths, "text", texts->values[i]);
    }
    return cli_paths_check(&paths, errors);
}

static smp_status encode(const options *o, const cli_list *texts, smp_errors *errors)
{
    smp_tokens_writer *writer = NULL;
    smp_token_format format;
    int64_t separator;
    smp_status status = check_tokenizer(o, errors), one;

    one = read_format(o, errors, &format);
    status = status == SMP_OK ? one : status;
    one = read_separator(o, BYTE_EOT, errors, &separator);
    status = status == SMP_OK ? one : status;
    if (!o->output) {
        status = smp_fail(errors, SMP_INPUT, NULL, "encode: -o FILE is missing");
    } else if (strcmp(o->output, "-") == 0 && isatty(STDOUT_FILENO) == 1) {
        status = smp_fail(errors, SMP_INPUT, NULL, "tokens are not text for a terminal");
    } else if (status == SMP_OK) {
        status = check_apart(o->output, texts, errors);
    }
    if (status == SMP_OK) {
        status = smp_tokens_create(o->output, format, errors, &writer);
    }
    for (size_t i = 1; i < texts->count && status == SMP_OK; i++) {
        status = encode_file(writer, texts->values[i], errors);
        if (separator != SMP_NO_SEPARATOR) {
            smp_tokens_put(writer, (uint16_t)separator);
        }
    }
    if (status != SMP_OK) {
        smp_tokens_abandon(writer);
        return status;
    }
    return smp_tokens_commit(writer, errors);
}

/* ---- decode ---- */

/* The end of a text prints nothing. */
static smp_status decode_range(const smp_tokens *tokens, uint64_t first, uint64_t end,
                               FILE *stream, smp_errors *errors)
{
    const smp_place place = { .file = smp_tokens_facts_of(tokens)->path };

    for (uint64_t i = first; i < end; i++) {
        int64_t token = smp_tokens_at(tokens, i);

        if (token < 0 || token > SMP_END_OF_TEXT) {
            return smp_fail(errors, SMP_INPUT, &place,
                            "token %lld at %llu is none of the byte-level tokenizer, which has "
                            "0 to %d",
                            (long long)token, (unsigned long long)i, SMP_END_OF_TEXT);
        }
        if (token < SMP_BYTE_TOKENS) {
            (void)putc((int)token, stream);
        }
    }
    return SMP_OK;
}

static smp_status write_text(const options *o, const smp_tokens *tokens, uint64_t first,
                             uint64_t end, smp_errors *errors)
{
    smp_status status;
    FILE *file;

    if (!o->output || strcmp(o->output, "-") == 0) {
        return decode_range(tokens, first, end, stdout, errors);
    }
    file = fopen(o->output, "we");
    if (!file) {
        return smp_fail(errors, SMP_SYSTEM, &(smp_place){ .file = o->output },
                        "cannot be written: %s", strerror(errno));
    }
    status = decode_range(tokens, first, end, file, errors);
    errno = 0;
    if ((ferror(file) | fclose(file)) != 0 && status == SMP_OK) {
        status = smp_fail(errors, SMP_SYSTEM, &(smp_place){ .file = o->output },
                          "writing failed: %s", strerror(errno ? errno : EIO));
    }
    return status;
}

static smp_status decode_part(const options *o, const smp_tokens *tokens, uint64_t first,
                              uint64_t count, smp_errors *errors)
{
    const smp_tokens_facts *f = smp_tokens_facts_of(tokens);

    if (first >= f->tokens) {
        return smp_fail(errors, SMP_INPUT, &(smp_place){ .file = "--first" },
                        "%llu: %s has %llu tokens, from 0 on", (unsigned long long)first,
                        f->path, (unsigned long long)f->tokens);
    }
    return write_text(o, tokens, first,
                      count < f->tokens - first ? first + count : f->tokens, errors);
}

static smp_status decode(const options *o, const char *path, smp_errors *errors)
{
    smp_tokens *tokens = NULL;
    cli_paths paths = { 0 };
    uint64_t first = 0, count = UINT64_MAX;
    smp_status status = check_tokenizer(o, errors), one;

    if (o->first) {
        one = cli_number("--first", o->first, 0, UINT64_MAX, errors, &first);
        status = status == SMP_OK ? one : status;
    }
    if (o->count) {
        one = cli_number("--count", o->count, 1, UINT64_MAX, errors, &count);
        status = status == SMP_OK ? one : status;
    }
    cli_paths_read_tokens(&paths, "tokens", path);
    cli_paths_write(&paths, "-o", o->output, "");
    one = cli_paths_check(&paths, errors);
    status = status == SMP_OK ? one : status;
    if (status == SMP_OK) {
        status = smp_tokens_open(path, SMP_NO_SEPARATOR, errors, &tokens);
    }
    if (status == SMP_OK) {
        status = decode_part(o, tokens, first, count, errors);
    }
    smp_tokens_close(tokens);
    return status;
}

/* ---- commands ---- */

static smp_status run(const options *o, const cli_list *operands, smp_errors *errors)
{
    const char *command = operands->count > 0 ? operands->values[0] : "";
    bool is_info = strcmp(command, "info") == 0, is_decode = strcmp(command, "decode") == 0;

    if (!is_info && !is_decode && strcmp(command, "encode") != 0) {
        return smp_fail(errors, SMP_INPUT, NULL,
                        "'%s': the command must be info, encode or decode; see --help",
                        command);
    }
    if (operands->count < 2 || ((is_info || is_decode) && operands->count > 2)) {
        return smp_fail(errors, SMP_INPUT, NULL, "%s: %s", command,
                        operands->count < 2 ? "a file is missing" : "takes one file");
    }
    if (check_options(o, command, errors) != SMP_OK) {
        return SMP_INPUT;
    }
    if (is_info) {
        return info(o, operands->values[1], errors);
    }
    return is_decode ? decode(o, operands->values[1], errors) : encode(o, operands, errors);
}

int main(int argc, char **argv)
{
    options o = { 0 };
    cli_list operands = { 0 };
    smp_errors *errors = smp_errors_create();
    bool done = false;
    smp_status status;

    cli_begin();
    status = cli_parse(&program, argc, argv, &o, &operands, errors, &done);
    if (status == SMP_OK && !done) {
        status = run(&o, &operands, errors);
    }
    (void)status; /* the collector has it */
    cli_list_free(&operands);
    return cli_end("smp-data", errors);
}
