/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the lengths of an epoch come from, and how steps are filled up.
 */
#include "config.h"

#include "sim/lengths.h"

#include "base/json.h"
#include "base/numeric.h"

#include <gsl/gsl_cdf.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ filling */

smp_status smp_pad_read(const char *text, smp_errors *errors, smp_pad *pad_p)
{
    static const char bucket[] = "bucket:";
    const smp_place where = {.file = "--pad"};
    smp_pad pad = {.text = text};
    if (strcmp(text, "max_length") == 0) {
        pad.kind = SMP_PAD_MAX_LENGTH;
    } else if (strcmp(text, "longest") == 0) {
        pad.kind = SMP_PAD_LONGEST;
    } else {
        const char *number = text + sizeof bucket - 1;
        const bool named = strncmp(text, bucket, sizeof bucket - 1) == 0;
        char *end = NULL;
        pad.kind = SMP_PAD_BUCKET;
        pad.bucket = named && *number >= '0' && *number <= '9' ? strtoull(number, &end, 10) : 0;
        if (pad.bucket == 0 || pad.bucket > UINT32_MAX || *end != '\0') {
            return smp_fail(errors, SMP_INPUT, &where,
                            "'%s': must be max_length, longest or bucket:N with a whole "
                            "number N from 1 to %u",
                            text, UINT32_MAX);
        }
    }
    *pad_p = pad;
    return SMP_OK;
}

uint64_t smp_pad_shape(const smp_pad *pad, uint64_t longest, uint64_t granule, uint64_t most)
{
    uint64_t shape = most;
    switch (pad->kind) {
    case SMP_PAD_MAX_LENGTH: return most;
    case SMP_PAD_LONGEST: shape = longest; break;
    case SMP_PAD_BUCKET: shape = smp_round_up(longest, pad->bucket); break;
    }
    shape = smp_round_up(shape, granule);
    return shape < most ? shape : most;
}

/* ------------------------------------------------------------- distributions */

typedef struct distribution { bool lognormal; double a, b; } distribution;

static const char lognormal[] = "lognormal:";
static const char uniform[] = "uniform:";

bool smp_lengths_drawn(const char *text)
{
    return strncmp(text, lognormal, sizeof lognormal - 1) == 0 ||
           strncmp(text, uniform, sizeof uniform - 1) == 0;
}

static smp_status read_distribution(const char *text, smp_errors *errors, distribution *d_p)
{
    const double most = 1e9;
    const smp_place where = {.file = "--lengths"};
    distribution d = {.lognormal = strncmp(text, lognormal, sizeof lognormal - 1) == 0};
    const char *numbers = strchr(text, ':') + 1;
    char *end = NULL;
    char *last = NULL;
    d.a = strtod(numbers, &end);
    d.b = *end == ',' ? strtod(end + 1, &last) : -1;
    const bool read = end != numbers && last && last != end + 1 && *last == '\0';
    const bool legal = d.a >= 1 && d.a <= most && d.b <= most &&
                       (d.lognormal ? d.b > 0 : d.b >= d.a);
    if (!read || !legal) {
        return smp_fail(errors, SMP_INPUT, &where,
                        "'%s': must be lognormal:MEAN,SD with a mean of at least 1 and a "
                        "deviation above 0, or uniform:A,B with 1 <= A <= B",
                        text);
    }
    *d_p = d;
    return SMP_OK;
}

/* Length number i: the quantile at a uniform number of its own, rounded to nearest. */
static double draw_length(const distribution *d, uint64_t seed, uint64_t i)
{
    uint32_t words[4];
    smp_random4(seed, 0, i, words);
    const double u = ((double)words[0] + 0.5) * 0x1p-32;
    if (!d->lognormal) {
        return d->a + floor(u * (d->b - d->a + 1));
    }
    const double ratio = d->b / d->a;
    const double variance = log1p(ratio * ratio);
    return floor(gsl_cdf_lognormal_Pinv(u, log(d->a) - variance / 2, sqrt(variance)) + 0.5);
}

static void add_length(smp_lengths *lengths, double length, uint64_t most)
{
    const double top = (double)most;
    lengths->cut += length > top;
    length = length > top ? top : length < 1 ? 1 : length;
    lengths->list[lengths->n++] = (uint32_t)length;
    lengths->sum += length;
}

/* ---------------------------------------------------------------------- files */

/* Blanks and line ends part the numbers. */
static smp_status parse_file(const char *path, const smp_text *text, uint64_t n, uint64_t most,
                             smp_arena *arena, smp_errors *errors, smp_lengths *lengths)
{
    smp_place where = {.file = path, .line = 1};
    lengths->list = SMP_ARENA_ARRAY(arena, text->length / 2 + 1, uint32_t);
    for (size_t at = 0; at < text->length && (n == 0 || lengths->n < n);) {
        const char c = text->data[at];
        if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
            where.line += c == '\n';
            at++;
            continue;
        }
        uint64_t value = 0;
        const size_t from = at;
        while (at < text->length && text->data[at] >= '0' && text->data[at] <= '9' &&
               value <= UINT32_MAX) {
            value = 10 * value + (uint64_t)(text->data[at++] - '0');
        }
        const char after = at < text->length ? text->data[at] : '\n';
        if (at == from || value < 1 || value > UINT32_MAX ||
            !(after == ' ' || after == '\t' || after == '\r' || after == '\n')) {
            return smp_fail(errors, SMP_INPUT, &where,
                            "a length must be a whole number from 1 to %u", UINT32_MAX);
        }
        add_length(lengths, (double)value, most);
    }
    if (lengths->n < n || lengths->n == 0) {
        return smp_fail(errors, SMP_INPUT, &where, "holds %" PRIu64 " lengths, needs %" PRIu64,
                        lengths->n, n > 0 ? n : 1);
    }
    return SMP_OK;
}

smp_status smp_lengths_read(const char *text, uint64_t n, uint64_t seed, uint64_t most,
                            smp_arena *arena, smp_errors *errors, smp_lengths *lengths_p)
{
    smp_lengths lengths = {.n = 0};
    smp_status status = SMP_OK;
    if (smp_lengths_drawn(text)) {
        distribution d = {.lognormal = false};
        status = read_distribution(text, errors, &d);
        if (status == SMP_OK) {
            lengths.list = SMP_ARENA_ARRAY(arena, n, uint32_t);
            for (uint64_t i = 0; i < n; i++) {
                add_length(&lengths, draw_length(&d, seed, i), most);
            }
        }
    } else {
        smp_text bytes = {0};
        status = smp_json_load(text, errors, &bytes);
        if (status == SMP_OK) {
            status = parse_file(text, &bytes, n, most, arena, errors, &lengths);
            smp_text_free(&bytes);
        }
    }
    if (status == SMP_OK) {
        *lengths_p = lengths;
    }
    return status;
}
