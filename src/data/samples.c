/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cutting samples.
 */
#include "config.h"

#include "data/samples.h"

#include "base/arena.h"
#include "base/numeric.h"

#include <stdlib.h>

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void cut_documents(smp_samples *s)
{
    const smp_tokens_facts *facts = smp_tokens_facts_of(s->tokens);
    uint64_t capacity = 0;

    for (uint64_t d = 0; d < facts->documents; d++) {
        uint64_t at = smp_tokens_document(s->tokens, d);
        uint64_t end = smp_tokens_document(s->tokens, d + 1);

        for (; at + 1 < end; at += s->seq) {
            if (s->n >= capacity) {
                capacity = capacity ? 2 * capacity : 1024;
                s->first = smp_heap_grow(s->first, capacity, sizeof *s->first);
                s->length = smp_heap_grow(s->length, capacity, sizeof *s->length);
            }
            s->first[s->n] = at;
            s->length[s->n++] = (uint32_t)least(s->seq, end - 1 - at);
        }
    }
}

smp_status smp_samples_init(const smp_tokens *tokens, uint64_t seq, bool padded, bool documents,
                            smp_errors *errors, smp_samples *samples_p)
{
    const smp_tokens_facts *facts = smp_tokens_facts_of(tokens);
    const smp_place place = { .file = facts->path };
    smp_samples s = { .tokens = tokens, .seq = seq, .padded = padded,
                      .documents = documents && !padded && facts->documents > 1 };

    if (padded) {
        cut_documents(&s);
    } else {
        s.n = (facts->tokens - 1) / seq;
    }
    if ((s.n == 0 && padded) || (s.documents && facts->documents >= facts->tokens)) {
        smp_samples_fini(&s);
        return smp_fail(errors, SMP_INPUT, &place,
                        "%llu documents of one token: none has a token to predict",
                        (unsigned long long)facts->documents);
    }
    if (s.n == 0) {
        return smp_fail(errors, SMP_INPUT, &place,
                        "%llu tokens; a sequence of %llu needs %llu, with the last target",
                        (unsigned long long)facts->tokens, (unsigned long long)seq,
                        (unsigned long long)seq + 1);
    }
    *samples_p = s;
    return SMP_OK;
}

void smp_samples_fini(smp_samples *s)
{
    free(s->first);
    free(s->length);
    *s = (smp_samples){ 0 };
}

uint64_t smp_samples_length(const smp_samples *s, uint64_t i)
{
    return s->padded ? s->length[i] : s->seq;
}

static uint64_t first_token(const smp_samples *s, uint64_t i)
{
    return s->padded ? s->first[i] : i * s->seq;
}

uint64_t smp_samples_targets(const smp_samples *s, uint64_t i)
{
    uint64_t first = first_token(s, i), last;

    if (!s->documents) {
        return smp_samples_length(s, i);
    }
    last = first + s->seq; /* targets are first + 1 .. last */
    return s->seq - (smp_tokens_document_of(s->tokens, last)
                     - smp_tokens_document_of(s->tokens, first));
}

static smp_status read_token(const smp_samples *s, uint64_t i, uint64_t vocab,
                             smp_errors *errors, int32_t *token_p)
{
    int64_t token = smp_tokens_at(s->tokens, i);

    if (token < 0 || (uint64_t)token >= vocab || token > INT32_MAX) {
        const smp_place place = { .file = smp_tokens_facts_of(s->tokens)->path };

        return smp_fail(errors, SMP_INPUT, &place,
                        "token %lld at %llu: the model's vocabulary has %llu",
                        (long long)token, (unsigned long long)i, (unsigned long long)vocab);
    }
    *token_p = (int32_t)token;
    return SMP_OK;
}

/* Where documents begin in the row, and no target across their ends. */
static void keep_apart(const smp_samples *s, uint64_t first, int32_t *targets, int32_t *begins)
{
    uint64_t document = smp_tokens_document_of(s->tokens, first);
    uint64_t end = smp_tokens_document(s->tokens, document + 1);
    int32_t begin = 0;

    for (uint64_t i = 0; i < s->seq; i++) {
        if (first + i == end) {
            end = smp_tokens_document(s->tokens, ++document + 1);
            begin = (int32_t)i;
        }
        begins[i] = begin;
        if (first + i + 1 == end) {
            targets[i] = -1;
        }
    }
}

smp_status smp_samples_read(const smp_samples *s, uint64_t i, uint64_t width, uint64_t vocab,
                            smp_errors *errors, int32_t *ids, int32_t *targets, int32_t *begins)
{
    uint64_t first = first_token(s, i), n = smp_samples_length(s, i);
    smp_status status = SMP_OK;
    int32_t token = 0;

    for (uint64_t j = 0; j <= n && status == SMP_OK; j++) {
        status = read_token(s, first + j, vocab, errors, &token);
        if (j < n) {
            ids[j] = token;
            begins[j] = 0;
        }
        if (j > 0) {
            targets[j - 1] = token;
        }
    }
    for (uint64_t j = n; j < width; j++) {
        ids[j] = 0;
        targets[j] = -1;
        begins[j] = (int32_t)j;
    }
    if (status == SMP_OK && s->documents) {
        keep_apart(s, first, targets, begins);
    }
    return status;
}
