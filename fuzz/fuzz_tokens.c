/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Readers of token files.  For all inputs: tokens, whose documents cover them in order and
 * whose samples can all be read; or one line that says why not.
 *
 * Input: a byte (even: a .bin alone, odd: a pair), a byte of settings, and for a pair two bytes
 * that say how much of the rest is the .idx.
 */
#include "config.h"

#include "fuzz.h"

#include "data/samples.h"

#include <unistd.h>

typedef struct paths { char bin[300], idx[300]; } paths;

static void put(const char *path, const uint8_t *data, size_t size)
{
    FILE *stream = fopen(path, "wb");

    FUZZ_CHECK(stream != NULL);
    FUZZ_CHECK(fwrite(data, 1, size, stream) == size);
    FUZZ_CHECK(fclose(stream) == 0);
}

static void check_documents(const smp_tokens *tokens)
{
    const smp_tokens_facts *f = smp_tokens_facts_of(tokens);
    int64_t sum = 0;

    FUZZ_CHECK(f->tokens > 0 && f->documents > 0);
    FUZZ_CHECK(smp_tokens_document(tokens, 0) == 0);
    FUZZ_CHECK(smp_tokens_document(tokens, f->documents) == f->tokens);
    for (uint64_t i = 0; i < f->documents; i++) {
        uint64_t first = smp_tokens_document(tokens, i);

        FUZZ_CHECK(first < smp_tokens_document(tokens, i + 1));
        FUZZ_CHECK(smp_tokens_document_of(tokens, first) == i);
    }
    for (uint64_t i = 0; i < f->tokens; i++) {
        sum ^= smp_tokens_at(tokens, i); /* in bounds: for the address sanitizer */
    }
    FUZZ_CHECK(sum >= 0 || sum < 0);
}

static void check_samples(const smp_tokens *tokens, uint64_t seq, bool padded)
{
    smp_errors *errors = smp_errors_create();
    int32_t *row = calloc(3 * seq, sizeof *row);
    smp_samples s;
    smp_status status = smp_samples_init(tokens, seq, padded, true, errors, &s);

    FUZZ_CHECK(row != NULL);
    fuzz_check_errors(status, errors);
    for (uint64_t i = 0; status == SMP_OK && i < s.n; i++) {
        uint64_t counted = 0;

        smp_errors_clear(errors);
        FUZZ_CHECK(smp_samples_length(&s, i) >= 1 && smp_samples_length(&s, i) <= seq);
        if (smp_samples_read(&s, i, seq, INT32_MAX, errors, row, row + seq, row + 2 * seq)
            == SMP_OK) {
            for (uint64_t j = 0; j < seq; j++) {
                counted += row[seq + j] >= 0;
                FUZZ_CHECK(row[2 * seq + j] >= 0 && (uint64_t)row[2 * seq + j] <= j);
            }
            FUZZ_CHECK(counted == smp_samples_targets(&s, i));
        }
    }
    if (status == SMP_OK) {
        smp_samples_fini(&s);
    }
    free(row);
    smp_errors_destroy(errors);
}

static void check_file(const char *path, uint8_t choice)
{
    smp_errors *errors = smp_errors_create();
    smp_tokens *tokens = NULL;
    const smp_status status =
        smp_tokens_open(path, choice & 1 ? choice >> 2 : SMP_NO_SEPARATOR, errors, &tokens);

    fuzz_check_errors(status, errors);
    if (status == SMP_OK) {
        check_documents(tokens);
        check_samples(tokens, 1 + (choice >> 4), (choice & 2) != 0);
    }
    smp_tokens_close(tokens);
    smp_errors_destroy(errors);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    paths p;
    size_t split = 0;

    if (size < 4) {
        return 0;
    }
    (void)snprintf(p.bin, sizeof p.bin, "%s.bin", fuzz_output(0));
    (void)snprintf(p.idx, sizeof p.idx, "%s.idx", fuzz_output(0));
    if (data[0] & 1) {
        split = (size_t)data[2] | (size_t)data[3] << 8;
        split = split < size - 4 ? split : size - 4;
        put(p.idx, data + 4, split);
    }
    put(p.bin, data + 4 + split, size - 4 - split);
    check_file(p.bin, data[1]);
    (void)unlink(p.bin);
    (void)unlink(p.idx);
    return 0;
}
