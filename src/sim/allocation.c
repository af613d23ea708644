/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "Tried to allocate 31.32 GiB": which tensor is this?
 *
 * A given size is held against the buffers as they are (candidates.h), and against the token
 * counts with which a product would have it.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "sim/candidates.h"
#include "sim/sim.h"

#include "base/numeric.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    COUNTS_SHOWN = 6,
    ROUND_TOKENS = 128,   /* token counts are multiples of this, or whole sequences */
    MOST_TOKENS = 1 << 21 /* more in a micro-batch are not plausible */
};

/* ------------------------------------------------------------------------- size */

/* PyTorch prints two decimals of a binary unit, so a size with a unit may be off by half of
 * the last; a number of bytes by what the allocator rounds up to. */
typedef struct size { uint64_t bytes, slack_bytes; } size;

static bool unit_of(const char *text, double *factor_p)
{
    static const struct { const char *name; double factor; } units[] = {
        {"B", 1},      {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
        {"KB", 1e3},   {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},
    };
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (strcmp(text, units[i].name) == 0) {
            *factor_p = units[i].factor;
            return true;
        }
    }
    return false;
}

static smp_status parse_size(const char *text, smp_errors *errors, size *size_p)
{
    const uint64_t rounding = 512; /* kMinBlockSize of PyTorch's allocator (spec 3) */
    const smp_place place = {.file = "--allocation"};
    char *end = NULL;
    double factor = 1;
    double value = 0;
    if (text[0] >= '0' && text[0] <= '9' && text[1] != 'x' && text[1] != 'X') {
        value = strtod(text, &end);
        end += strspn(end, " ");
    }
    bool unit = end && *end != '\0';
    if (!end || (unit && !unit_of(end, &factor)) || !(value * factor >= 1) ||
        !(value * factor < 0x1p60)) {
        return smp_fail(errors, SMP_INPUT, &place,
                        "%s: must be a size from 1 byte to 1 EiB: a number, and perhaps one of "
                        "B, KiB, MiB, GiB, TiB, KB, MB, GB, TB",
                        text);
    }
    size_p->bytes = (uint64_t)(value * factor + 0.5);
    size_p->slack_bytes = factor > 1 ? (uint64_t)(0.005 * factor) : rounding;
    return SMP_OK;
}

/* ------------------------------------------------------------------------ answers */

static double difference(const smp_candidate *c, uint64_t bytes)
{
    return (double)c->bytes - (double)bytes;
}

static bool matches(const smp_candidate *c, uint64_t bytes)
{
    double off = difference(c, bytes);
    return (off < 0 ? -off : off) <= 0.01 * (double)bytes;
}

/* Nearest first, those of the step before PyTorch's. */
typedef struct match { const smp_candidate *candidate; double off; } match;

static int match_compare(const void *a_, const void *b_)
{
    const match *a = a_;
    const match *b = b_;
    if (a->candidate->pytorch != b->candidate->pytorch) {
        return a->candidate->pytorch ? 1 : -1;
    }
    if (a->off < b->off || a->off > b->off) {
        return a->off < b->off ? -1 : 1;
    }
    return (a->candidate > b->candidate) - (a->candidate < b->candidate);
}

typedef struct token_count {
    const smp_candidate *candidate;
    uint64_t tokens;
    uint64_t step;     /* it is a multiple of: a sequence, or a power of two */
    bool sequences;
} token_count;

/* The roundest number of tokens with which `c` would have the size: whole sequences, else a
 * multiple of a power of two so large that chance would seldom find one. */
static bool count_tokens(uint64_t seq_len, const smp_candidate *c, const size *s,
                         token_count *count_p)
{
    if (c->product.token_bytes <= 0) {
        return false;
    }
    double low = ((double)s->bytes - (double)s->slack_bytes) / c->product.token_bytes;
    double high = ((double)s->bytes + (double)s->slack_bytes) / c->product.token_bytes;
    double wide = 4 * (high - low);
    double seq = (double)seq_len;
    if (high < ROUND_TOKENS || low > MOST_TOKENS) {
        return false;
    }
    uint64_t sequences = (uint64_t)(high / seq);
    *count_p = (token_count){c, sequences * seq_len, seq_len, true};
    if (sequences > 0 && (double)sequences * seq >= low && seq >= wide) {
        return true;
    }
    for (double step = 0x1p40; step >= ROUND_TOKENS && step >= wide; step /= 2) {
        uint64_t n = (uint64_t)(high / step);
        if (n > 0 && (double)n * step >= low) {
            *count_p = (token_count){c, n * (uint64_t)step, (uint64_t)step, false};
            return true;
        }
    }
    return false;
}

static int count_compare(const void *a_, const void *b_)
{
    const token_count *a = a_;
    const token_count *b = b_;
    if (a->sequences != b->sequences) {
        return a->sequences ? -1 : 1;
    }
    if (a->step != b->step) {
        return a->step > b->step ? -1 : 1;
    }
    return (a->candidate > b->candidate) - (a->candidate < b->candidate);
}

typedef struct answer {
    size size;
    match *matches;
    token_count *counts;
    size_t n_match, n_count;
} answer;

/* Candidates that need the same tokens for the same reason are one answer. */
static bool is_told(const answer *a, const smp_candidate *c)
{
    for (size_t i = 0; i < a->n_count; i++) {
        double bytes = a->counts[i].candidate->product.token_bytes - c->product.token_bytes;
        if (bytes >= 0 && bytes <= 0) {
            return true;
        }
    }
    return false;
}

static void find_answer(uint64_t seq_len, const smp_candidates *all, answer *a)
{
    a->matches = smp_heap_alloc(all->n + 1, sizeof *a->matches);
    a->counts = smp_heap_alloc(all->n + 1, sizeof *a->counts);
    for (size_t i = 0; i < all->n; i++) {
        const smp_candidate *c = &all->list[i];
        if (matches(c, a->size.bytes)) {
            double off = difference(c, a->size.bytes);
            a->matches[a->n_match++] = (match){c, off < 0 ? -off : off};
        } else if (!is_told(a, c) &&
                   count_tokens(seq_len, c, &a->size, &a->counts[a->n_count])) {
            a->n_count++;
        }
    }
    qsort(a->matches, a->n_match, sizeof *a->matches, match_compare);
    qsort(a->counts, a->n_count, sizeof *a->counts, count_compare);
    a->n_count = a->n_count < COUNTS_SHOWN ? a->n_count : COUNTS_SHOWN;
}

/* ------------------------------------------------------------------------ output */

static void text_answer(smp_text *text, uint64_t tokens, const answer *a)
{
    smp_text_add(text, "Allocation of %" PRIu64 " bytes (%s)\n", a->size.bytes,
                 smp_show_bytes(a->size.bytes));
    smp_text_add(text, "\nOf this size in this job (1 %% either way)\n%s",
                 a->n_match == 0 ? "  nothing\n" : "");
    for (size_t i = 0; i < a->n_match; i++) {
        const smp_candidate *c = a->matches[i].candidate;
        smp_text_add(text, "  %-50s %10s %+9.3f %%\n    %s; %s\n", c->name,
                     smp_show_bytes(c->bytes),
                     100 * difference(c, a->size.bytes) / (double)a->size.bytes, c->kind,
                     c->product.words);
    }
    smp_text_add(text,
                 "\nWith another number of tokens in a micro-batch (here %" PRIu64 ")\n%s",
                 tokens, a->n_count == 0 ? "  no round number explains it\n" : "");
    for (size_t i = 0; i < a->n_count; i++) {
        const token_count *count = &a->counts[i];
        smp_text_add(text, "  %" PRIu64 " tokens", count->tokens);
        if (count->sequences) {
            smp_text_add(text, " = %" PRIu64 " x %" PRIu64, count->tokens / count->step,
                         count->step);
        }
        const char *words = strstr(count->candidate->product.words, " x ");
        smp_text_add(text, ": %s%s\n    %s\n", count->candidate->pytorch ? "PyTorch, " : "",
                     count->candidate->name, words ? words + 3 : "");
    }
}

static void out_candidate(smp_json_out *out, const smp_candidate *c)
{
    smp_out_string(out, "name", c->name);
    smp_out_string(out, "source", c->pytorch ? "pytorch" : "step");
    smp_out_string(out, "kind", c->kind);
    smp_out_string(out, "formula", c->product.words);
}

static void out_answer(smp_json_out *out, const answer *a)
{
    smp_out_object(out, NULL);
    smp_out_object(out, "allocation");
    smp_out_u64(out, "bytes", a->size.bytes);
    smp_out_u64(out, "slack_bytes", a->size.slack_bytes);
    smp_out_array(out, "matches");
    for (size_t i = 0; i < a->n_match; i++) {
        smp_out_object(out, NULL);
        out_candidate(out, a->matches[i].candidate);
        smp_out_u64(out, "bytes", a->matches[i].candidate->bytes);
        smp_out_end_object(out);
    }
    smp_out_end_array(out);
    smp_out_array(out, "token_counts");
    for (size_t i = 0; i < a->n_count; i++) {
        smp_out_object(out, NULL);
        smp_out_u64(out, "tokens", a->counts[i].tokens);
        out_candidate(out, a->counts[i].candidate);
        smp_out_double(out, "bytes_per_token", a->counts[i].candidate->product.token_bytes);
        smp_out_end_object(out);
    }
    smp_out_end_array(out);
    smp_out_end_object(out);
    smp_out_end_object(out);
}

smp_status smp_allocation_print(const smp_job *job, const smp_step *step, const char *size_text,
                                bool json, FILE *stream, smp_errors *errors)
{
    answer a = {.n_match = 0};
    smp_status status = parse_size(size_text, errors, &a.size);
    if (status != SMP_OK) {
        return status;
    }
    smp_candidates all;
    smp_candidates_make(job, step, &all);
    find_answer(job->batch.seq_len, &all, &a);
    smp_json_out out = {0};
    smp_text text = {0};
    if (json) {
        out_answer(&out, &a);
        text = out.text;
    } else {
        text_answer(&text, all.tokens, &a);
    }
    fwrite(text.data, 1, text.length, stream);
    smp_text_free(&text);
    free(a.matches);
    free(a.counts);
    free(all.list);
    return smp_stream_check(stream, "output", errors);
}
