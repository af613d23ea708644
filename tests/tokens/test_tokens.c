/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of tokens: every format is read as it was written, what is broken is refused, samples
 * are cut where they should be.
 */
#include "config.h"

#include "tests/check.h"

#include "data/samples.h"

#include <sys/stat.h>

/* A file of this process in the working directory, for names that matter. */
static const char *named(const char *suffix)
{
    static char path[4][64];
    static int turn;
    char *to = path[turn++ % 4];

    (void)snprintf(to, sizeof path[0], "test-tokens-%ld%s", (long)getpid(), suffix);
    return to;
}

static const char *put(const char *suffix, const void *bytes, size_t n)
{
    const char *path = named(suffix);
    FILE *stream = fopen(path, "wb");

    if (!stream || fwrite(bytes, 1, n, stream) != n || fclose(stream) != 0) {
        fail_msg("%s cannot be written", path);
    }
    return path;
}

typedef struct bytes { unsigned char at[4096]; size_t n; } bytes;

static void add(bytes *b, uint64_t value, int n)
{
    for (int i = 0; i < n; i++) {
        b->at[b->n++] = (unsigned char)(value >> (8 * i));
    }
}

static void check_tokens(const char *path, int64_t separator, smp_token_format format,
                         const int64_t *want, uint64_t n, uint64_t documents)
{
    smp_errors *errors = smp_errors_create();
    smp_tokens *tokens = NULL;

    check_ok(smp_tokens_open(path, separator, errors, &tokens), errors);
    assert_int_equal(smp_tokens_facts_of(tokens)->format, format);
    check_u64(smp_tokens_facts_of(tokens)->tokens, n);
    check_u64(smp_tokens_facts_of(tokens)->documents, documents);
    check_u64(smp_tokens_document(tokens, 0), 0);
    check_u64(smp_tokens_document(tokens, documents), n);
    for (uint64_t i = 0; i < n; i++) {
        check_i64(smp_tokens_at(tokens, i), want[i]);
    }
    smp_tokens_close(tokens);
    smp_errors_destroy(errors);
}

static void check_refused(const char *path, smp_status status, const char *part)
{
    smp_errors *errors = smp_errors_create();
    smp_tokens *tokens = NULL;

    check_fails(smp_tokens_open(path, SMP_NO_SEPARATOR, errors, &tokens), status, errors, part);
    smp_errors_destroy(errors);
}

static void text_is_bytes(void **state)
{
    static const int64_t want[] = { 'a', 10, 255, 'b', 10 };

    (void)state;
    check_tokens(put(".txt", "a\n\377b\n", 5), SMP_NO_SEPARATOR, SMP_TOKENS_TEXT, want, 5, 1);
    check_tokens(named(".txt"), 10, SMP_TOKENS_TEXT, want, 5, 2);
    check_tokens(named(".txt"), 'b', SMP_TOKENS_TEXT, want, 5, 2);
    check_refused(put(".txt", "", 0), SMP_INPUT, "no token");
    check_refused("no such file", SMP_INPUT, "No such file");
    check_refused(".", SMP_INPUT, "not a file");
    (void)unlink(named(".txt"));
}

static void written_is_read(void **state)
{
    static const int64_t want[] = { 0, 65535, 50256, 7 };
    smp_errors *errors = smp_errors_create();

    (void)state;
    for (smp_token_format f = SMP_TOKENS_LLMC; f <= SMP_TOKENS_NANOGPT; f++) {
        smp_tokens_writer *writer = NULL;
        const char *path = named(".bin");

        check_ok(smp_tokens_create(path, f, errors, &writer), errors);
        for (int i = 0; i < 4; i++) {
            smp_tokens_put(writer, (uint16_t)want[i]);
        }
        check_ok(smp_tokens_commit(writer, errors), errors);
        check_tokens(path, 50256, f, want, 4, 2);
        (void)unlink(path);
    }
    smp_errors_destroy(errors);
}

/* The header is 256 int32; llm.c's data for Llama 3 has tokens of four bytes. */
static void headers_are_checked(void **state)
{
    static const int64_t want[] = { 128000, 1, 2 };
    bytes b = { .n = 0 };

    (void)state;
    memset(b.at, 0, sizeof b.at);
    add(&b, 20240801, 4);
    add(&b, 7, 4);
    add(&b, 3, 4);
    b.n = 1024;
    for (int i = 0; i < 3; i++) {
        add(&b, (uint64_t)want[i], 4);
    }
    check_tokens(put(".bin", b.at, b.n), SMP_NO_SEPARATOR, SMP_TOKENS_LLMC, want, 3, 1);
    check_refused(put(".bin", b.at, b.n - 1), SMP_INPUT, "not complete");
    check_refused(put(".bin", b.at, b.n - 4), SMP_INPUT, "3 tokens of 4 bytes");
    b.at[4] = 6;
    check_refused(put(".bin", b.at, b.n), SMP_INPUT, "version 6");
    check_refused(put(".bin", b.at, 13), SMP_INPUT, "not complete");
    (void)unlink(named(".bin"));
}

/* An index of sequences of 3, 0, 2 and 1 tokens; documents are sequences 0-1, 2 and 3. */
static bytes index_of(uint8_t code, uint64_t token_bytes)
{
    static const uint64_t lengths[] = { 3, 0, 2, 1 }, documents[] = { 0, 2, 3, 4 };
    bytes b = { .n = 0 };
    uint64_t at = 0;

    memcpy(b.at, "MMIDIDX\0\0", 9);
    b.n = 9;
    add(&b, 1, 8);
    add(&b, code, 1);
    add(&b, 4, 8);
    add(&b, 4, 8);
    for (int i = 0; i < 4; i++) {
        add(&b, lengths[i], 4);
    }
    for (int i = 0; i < 4; i++) {
        add(&b, at * token_bytes, 8);
        at += lengths[i];
    }
    for (int i = 0; i < 4; i++) {
        add(&b, documents[i], 8);
    }
    return b;
}

static void megatron_is_read(void **state)
{
    static const int64_t want[] = { 5, 300, 7, 8, -2, 60000 };
    static const struct { uint8_t code; int token_bytes; } types[] = { { 4, 4 }, { 5, 8 } };

    (void)state;
    for (size_t t = 0; t < 2; t++) {
        bytes index = index_of(types[t].code, (uint64_t)types[t].token_bytes), b = { .n = 0 };

        for (int i = 0; i < 6; i++) {
            add(&b, (uint64_t)want[i], types[t].token_bytes);
        }
        (void)put(".idx", index.at, index.n);
        (void)put(".bin", b.at, b.n);
        check_tokens(named(".bin"), SMP_NO_SEPARATOR, SMP_TOKENS_MEGATRON, want, 6, 3);
        check_tokens(named(".idx"), 7, SMP_TOKENS_MEGATRON, want, 6, 3);
        check_tokens(named(""), 7, SMP_TOKENS_MEGATRON, want, 6, 3);
        (void)put(".bin", b.at, b.n - 1);
        check_refused(named(".bin"), SMP_INPUT, "truncated");
        (void)put(".bin", b.at, b.n);
        for (size_t n = 0; n < index.n; n += 7) {
            (void)put(".idx", index.at, n);
            check_refused(named(".idx"), SMP_INPUT, ".idx");
        }
        index.at[34 + 16 + 8] ^= 1; /* the second pointer */
        (void)put(".idx", index.at, index.n);
        check_refused(named(".idx"), SMP_INPUT, "sequence 1 does not begin at byte");
        index.at[17] = 6; /* float64 */
        (void)put(".idx", index.at, index.n);
        check_refused(named(".idx"), SMP_INPUT, "type code 6");
    }
    (void)unlink(named(".bin"));
    check_refused(named(".idx"), SMP_INPUT, ".bin");
    (void)unlink(named(".idx"));
}

typedef struct cut { smp_errors *errors; smp_tokens *tokens; smp_samples samples; } cut;

static cut cut_of(const char *text, uint64_t seq, bool padded, bool documents)
{
    cut c = { .errors = smp_errors_create() };

    check_ok(smp_tokens_open(put(".txt", text, strlen(text)), '.', c.errors, &c.tokens),
             c.errors);
    check_ok(smp_samples_init(c.tokens, seq, padded, documents, c.errors, &c.samples),
             c.errors);
    return c;
}

static void cut_end(cut *c)
{
    smp_samples_fini(&c->samples);
    smp_tokens_close(c->tokens);
    smp_errors_destroy(c->errors);
    (void)unlink(named(".txt"));
}

/* "ab." "cdefgh." "." "i": 12 tokens. */
static const char documents_text[] = "ab.cdefgh..i";

static void check_row(const cut *c, uint64_t sample, uint64_t width, const char *ids,
                      const char *targets, const int *begins)
{
    int32_t row[3][16];

    check_ok(smp_samples_read(&c->samples, sample, width, 256, c->errors, row[0], row[1],
                              row[2]),
             c->errors);
    for (uint64_t i = 0; i < width; i++) {
        check_i64(row[0][i], ids[i] == '_' ? 0 : ids[i]);
        check_i64(row[1][i], targets[i] == '_' ? -1 : targets[i]);
        check_i64(row[2][i], begins[i]);
    }
}

static void packed_rows(void **state)
{
    cut c = cut_of(documents_text, 5, false, true);

    (void)state;
    check_u64(c.samples.n, 2);
    check_row(&c, 0, 5, "ab.cd", "b._de", (const int[]){ 0, 0, 0, 3, 3 });
    check_row(&c, 1, 5, "efgh.", "fgh._", (const int[]){ 0, 0, 0, 0, 0 });
    check_u64(smp_samples_targets(&c.samples, 0), 4);
    check_u64(smp_samples_targets(&c.samples, 1), 4);
    cut_end(&c);
    c = cut_of(documents_text, 5, false, false);
    check_row(&c, 0, 5, "ab.cd", "b.cde", (const int[]){ 0, 0, 0, 0, 0 });
    check_u64(smp_samples_targets(&c.samples, 0), 5);
    cut_end(&c);
    c = cut_of(documents_text, 11, false, true);
    check_row(&c, 0, 11, "ab.cdefgh..", "b._defgh.__",
              (const int[]){ 0, 0, 0, 3, 3, 3, 3, 3, 3, 3, 10 });
    check_u64(smp_samples_targets(&c.samples, 0), 8);
    cut_end(&c);
}

/* Documents of one token ("." and "i") have nothing to predict. */
static void padded_rows(void **state)
{
    cut c = cut_of(documents_text, 4, true, true);

    (void)state;
    check_u64(c.samples.n, 3);
    check_row(&c, 0, 4, "ab__", "b.__", (const int[]){ 0, 0, 2, 3 });
    check_row(&c, 1, 4, "cdef", "defg", (const int[]){ 0, 0, 0, 0 });
    check_row(&c, 2, 3, "gh_", "h._", (const int[]){ 0, 0, 2 });
    check_u64(smp_samples_length(&c.samples, 2), 2);
    check_u64(smp_samples_targets(&c.samples, 1), 4);
    cut_end(&c);
}

static void tokens_beyond_the_vocabulary(void **state)
{
    cut c = cut_of(documents_text, 4, true, true);
    int32_t row[3][4];

    (void)state;
    check_fails(smp_samples_read(&c.samples, 1, 4, 'f', c.errors, row[0], row[1], row[2]),
                SMP_INPUT, c.errors, ".txt: token 102 at 6: the model's vocabulary has 102");
    cut_end(&c);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(text_is_bytes),
    cmocka_unit_test(written_is_read),
    cmocka_unit_test(headers_are_checked),
    cmocka_unit_test(megatron_is_read),
    cmocka_unit_test(packed_rows),
    cmocka_unit_test(padded_rows),
    cmocka_unit_test(tokens_beyond_the_vocabulary),
};

CHECK_MAIN(tests)
