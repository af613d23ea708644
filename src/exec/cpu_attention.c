/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over packed q, k, v [tokens, (heads + kv_heads) head_dim + kv_heads v_dim], causal.
 *
 * Streaming [Milakov and Gimelshein 2018; Dao et al. 2022]: blocks of queries against blocks
 * of keys, with a running maximum and sum for each query; no matrix of seq x seq exists.
 * Backward computes the probabilities again from the logarithm of the sum (lse):
 *   dV = P^T dY    dS = P * (dY V^T - rowsum(dY * Y))    dQ = scale dS K    dK = scale dS^T Q
 * Dropped probabilities are scaled by 1 / (1 - rate); rowsum(dY * Y) is then still the mean of
 * dP under P.  With a cap c the logit is c tanh(s / c), and dS is multiplied by
 * 1 - (logit / c)^2.
 */
#include "config.h"

#include "exec/cpu_head.h"

#include "base/arena.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 64, KEYS = 128 };

/* A block of the matrix of logits: queries i0 .. i0 + rows, keys j0 .. j0 + keys. */
typedef struct tile { uint64_t i0, rows, j0, keys; } tile;

/* Query i sees keys j <= i of its document, in a window those with i - j < window. */
static uint64_t first_seen(const smp_head *h, uint64_t i)
{
    uint64_t first = h->window > 0 && i + 1 > h->window ? i + 1 - h->window : 0;
    uint64_t begin = smp_begin_of(h->cpu, h->launch, h->sample * h->seq + i);

    return begin > first ? begin : first;
}

/* First key that a query of the block sees, on a boundary of blocks of keys. */
static uint64_t first_key(const smp_head *h, uint64_t i0)
{
    return first_seen(h, i0) / KEYS * KEYS;
}

static void mask_row(const smp_head *h, uint64_t i, tile b, float *row)
{
    uint64_t first = first_seen(h, i);

    for (uint64_t j = b.j0; j < b.j0 + b.keys && j < first; j++) {
        row[j - b.j0] = -INFINITY;
    }
    for (uint64_t j = i + 1 > b.j0 ? i + 1 : b.j0; j < b.j0 + b.keys; j++) {
        row[j - b.j0] = -INFINITY;
    }
}

/* Logits of a block: masked ones are -infinity. */
static void logits_of(const smp_head *h, tile b, float *s)
{
    smp_product(false, true, b.rows, b.keys, h->d, h->scale, smp_matrix_rows(h->q, b.i0),
                smp_matrix_rows(h->k, b.j0), false, s, SMP_F32, KEYS);
    for (uint64_t i = 0; i < b.rows; i++) {
        float *row = s + i * KEYS;

        for (uint64_t j = 0; h->cap > 0 && j < b.keys; j++) {
            row[j] = h->cap * tanhf(row[j] / h->cap);
        }
        for (uint64_t j = 0; h->alibi > 0 && j < b.keys; j++) {
            row[j] -= h->alibi * ((float)(b.i0 + i) - (float)(b.j0 + j));
        }
        mask_row(h, b.i0 + i, b, row);
    }
}

/* Factor of a probability: 0, or 1 / (1 - rate). */
static void throw_dice(const smp_head *h, tile b, float *factor)
{
    double rate = h->launch->block->attention.dropout;
    smp_dice dice = smp_dice_of(h->cpu, h->launch, h->sample, SMP_SITE_PROBABILITIES);
    uint32_t limit = (uint32_t)(rate * 4294967296.0 + 0.5); /* as in the program */
    float scale = (float)(1.0 / (1.0 - rate));

    for (uint64_t i = 0; i < b.rows; i++) {
        uint32_t throws[KEYS];

        smp_dice_throws(&dice, (h->global * h->seq + b.i0 + i) * h->seq + b.j0, b.keys,
                        throws);
        for (uint64_t j = 0; j < b.keys; j++) {
            factor[i * KEYS + j] = throws[j] < limit ? 0.0f : scale;
        }
    }
}

static bool drops(const smp_head *h)
{
    return h->launch->block->attention.dropout > 0 && !h->cpu->rank->rows.evaluating;
}

/* ---- forward ---- */

typedef struct running { float max[ROWS], sum[ROWS]; } running;

SMP_WIDE static void exponentiate(float *row, uint64_t n, float max)
{
    for (uint64_t j = 0; j < n; j++) {
        float x = smp_expf(row[j] - max);

        row[j] = row[j] == -INFINITY ? 0.0f : x;
    }
}

/* Logits become exponentials; `y`, the sum so far, is scaled to the new maximum. */
static void advance(const smp_head *h, tile b, float *s, running *r, float *y)
{
    for (uint64_t i = 0; i < b.rows; i++) {
        float *row = s + i * KEYS, max = r->max[i], sum, old;

        for (uint64_t j = 0; j < b.keys; j++) {
            max = row[j] > max ? row[j] : max;
        }
        if (max == -INFINITY) { /* no key of this block is seen, nor any before */
            memset(row, 0, b.keys * sizeof *row);
            continue;
        }
        old = r->max[i] == -INFINITY ? 0.0f : smp_expf(r->max[i] - max);
        exponentiate(row, b.keys, max);
        sum = (float)smp_sum(row, b.keys);
        r->max[i] = max;
        r->sum[i] = r->sum[i] * old + sum;
        for (uint64_t j = 0; j < h->dv; j++) {
            y[i * h->dv + j] *= old;
        }
    }
}

static void finish_rows(const smp_head *h, uint64_t i0, uint64_t rows, running *r, float *y)
{
    const smp_launch *l = h->launch;
    float *lse = l->at[2];

    for (uint64_t i = 0; i < rows; i++) {
        uint64_t token = h->sample * h->seq + i0 + i;
        float inverse = 1.0f / r->sum[i];

        for (uint64_t j = 0; j < h->dv; j++) {
            y[i * h->dv + j] *= inverse;
        }
        smp_store(l->at[1], h->dtype, token * h->out_width + h->index * h->dv, y + i * h->dv,
                  h->dv);
        lse[token * h->heads + h->index] = r->max[i] + logf(r->sum[i]);
    }
}

static void forward_rows(const smp_head *h, uint64_t i0, float *scratch)
{
    uint64_t rows = h->seq - i0 < ROWS ? h->seq - i0 : ROWS;
    float *s = scratch, *factor = s + ROWS * KEYS, *y = factor + ROWS * KEYS;
    running r = { .sum = { 0 } };

    memset(y, 0, rows * h->dv * sizeof *y);
    for (uint64_t i = 0; i < rows; i++) { /* a sink is a key whose value is 0 */
        r.max[i] = h->sinks ? h->sink : -INFINITY;
        r.sum[i] = h->sinks ? 1.0f : 0.0f;
    }
    for (uint64_t j0 = first_key(h, i0); j0 < i0 + rows; j0 += KEYS) {
        tile b = { i0, rows, j0, i0 + rows - j0 < KEYS ? i0 + rows - j0 : KEYS };

        logits_of(h, b, s);
        advance(h, b, s, &r, y);
        if (drops(h)) {
            throw_dice(h, b, factor);
            for (uint64_t i = 0; i < rows * KEYS; i++) {
                s[i] = i % KEYS < b.keys ? s[i] * factor[i] : 0.0f;
            }
        }
        smp_product(false, false, rows, h->dv, b.keys, 1.0f, smp_matrix_at(s, SMP_F32, 0, KEYS),
                    smp_matrix_rows(h->v, j0), true, y, SMP_F32, h->dv);
    }
    finish_rows(h, i0, rows, &r, y);
}

void smp_cpu_attention(const smp_cpu *cpu, const smp_launch *l)
{
    const uint64_t *n = l->task->dims;
    float *scratch = smp_heap_alloc(2 * ROWS * KEYS + ROWS * smp_v_dim(l), sizeof *scratch);

    for (uint64_t sample = 0; sample < n[0]; sample++) {
        for (uint64_t index = 0; index < n[2]; index++) {
            smp_head h = smp_head_of(cpu, l, l->at[0], sample, index);

            smp_head_sink(&h, l->n_operand > 3 ? l->at[3] : NULL);

            for (uint64_t i0 = 0; i0 < n[1]; i0 += ROWS) {
                forward_rows(&h, i0, scratch);
            }
        }
    }
    free(scratch);
}

/* ---- backward ---- */

typedef struct grads {
    float *dq, *dk, *dv;       /* [seq, d] of one head, in fp32 */
    float *mean;               /* rowsum(dY * Y) of each query */
    float *p, *dp, *factor;    /* blocks */
    smp_matrix dy, y;
    const float *lse;
    float *dsinks;             /* of the rank's heads */
} grads;

static void make_means(const smp_head *h, const grads *g)
{
    for (uint64_t i = 0; i < h->seq; i++) {
        double sum = 0;
        float a[2 * ROWS];

        for (uint64_t j = 0; j < h->dv; j += ROWS) {
            uint64_t n = h->dv - j < ROWS ? h->dv - j : ROWS, at = i * h->out_width + j;

            sum += smp_dot(smp_row(g->dy.data, h->dtype, at, n, a),
                           smp_row(g->y.data, h->dtype, at, n, a + ROWS), n);
        }
        g->mean[i] = (float)sum;
    }
}

SMP_WIDE static void combine_row(float *p, float *dp, const float *factor, uint64_t n,
                                 float lse, float mean)
{
    for (uint64_t j = 0; j < n; j++) {
        float e = smp_expf(p[j] - lse), f = factor ? factor[j] : 1.0f;

        e = p[j] == -INFINITY ? 0.0f : e;
        dp[j] = e * (dp[j] * f - mean);
        p[j] = e * f;
    }
}

/* p and dp become what multiplies dY and K: dropped probabilities and dS. */
static void combine(const smp_head *h, tile b, const grads *g)
{
    for (uint64_t i = 0; i < b.rows; i++) {
        float lse = g->lse[(h->sample * h->seq + b.i0 + i) * h->heads + h->index];
        float *p = g->p + i * KEYS, *dp = g->dp + i * KEYS, slope[KEYS];

        for (uint64_t j = 0; h->cap > 0 && j < b.keys; j++) {
            float c = (p[j] + h->alibi * ((float)(b.i0 + i) - (float)(b.j0 + j))) / h->cap;

            slope[j] = p[j] == -INFINITY ? 0.0f : 1.0f - c * c;
        }
        combine_row(p, dp, drops(h) ? g->factor + i * KEYS : NULL, b.keys, lse,
                    g->mean[b.i0 + i]);
        for (uint64_t j = 0; h->cap > 0 && j < b.keys; j++) {
            dp[j] *= slope[j];
        }
    }
}

static void backward_block(const smp_head *h, tile b, const grads *g)
{
    smp_matrix q = smp_matrix_rows(h->q, b.i0), dy = smp_matrix_rows(g->dy, b.i0);
    smp_matrix k = smp_matrix_rows(h->k, b.j0), v = smp_matrix_rows(h->v, b.j0);
    smp_matrix p = smp_matrix_at(g->p, SMP_F32, 0, KEYS);
    smp_matrix ds = smp_matrix_at(g->dp, SMP_F32, 0, KEYS);

    logits_of(h, b, g->p);
    smp_product(false, true, b.rows, b.keys, h->dv, 1.0f, dy, v, false, g->dp, SMP_F32, KEYS);
    if (drops(h)) {
        throw_dice(h, b, g->factor);
    }
    combine(h, b, g);
    smp_product(true, false, b.keys, h->dv, b.rows, 1.0f, p, dy, true, g->dv + b.j0 * h->dv,
                SMP_F32, h->dv);
    smp_product(false, false, b.rows, h->d, b.keys, h->scale, ds, k, true,
                g->dq + b.i0 * h->d, SMP_F32, h->d);
    smp_product(true, false, b.keys, h->d, b.rows, h->scale, ds, q, true,
                g->dk + b.j0 * h->d, SMP_F32, h->d);
}

static void store_rows(const smp_head *h, void *dqkv, uint64_t column, const float *from,
                       uint64_t width)
{
    for (uint64_t i = 0; i < h->seq; i++) {
        smp_store(dqkv, h->dtype, (h->sample * h->seq + i) * h->width + column,
                  from + i * width, width);
    }
}

/* Of a head's sink: it takes p of each query and gives nothing, so its dS is -p mean. */
static double sink_grad(const smp_head *h, const grads *g)
{
    double sum = 0;

    for (uint64_t i = 0; i < h->seq && h->sinks; i++) {
        float lse = g->lse[(h->sample * h->seq + i) * h->heads + h->index];

        sum -= exp((double)(h->sink - lse)) * (double)g->mean[i];
    }
    return sum;
}

static void backward_head(const smp_head *h, grads *g)
{
    const smp_launch *l = h->launch;
    uint64_t first = h->sample * h->seq * h->out_width + h->index * h->dv;

    g->dy = smp_matrix_at(l->at[0], h->dtype, first, h->out_width);
    g->y = smp_matrix_at(l->at[2], h->dtype, first, h->out_width);
    g->lse = l->at[3];
    memset(g->dq, 0, h->seq * h->d * sizeof *g->dq);
    make_means(h, g);
    for (uint64_t i0 = 0; i0 < h->seq; i0 += ROWS) {
        uint64_t rows = h->seq - i0 < ROWS ? h->seq - i0 : ROWS;

        for (uint64_t j0 = first_key(h, i0); j0 < i0 + rows; j0 += KEYS) {
            uint64_t keys = i0 + rows - j0 < KEYS ? i0 + rows - j0 : KEYS;

            backward_block(h, (tile){ i0, rows, j0, keys }, g);
        }
    }
    store_rows(h, l->at[4], h->index * h->d, g->dq, h->d);
    g->dsinks[h->index] += (float)sink_grad(h, g);
}

void smp_cpu_attention_grad(const smp_cpu *cpu, const smp_launch *l)
{
    const uint64_t *n = l->task->dims;
    uint64_t each = n[1] * n[4], of_v = n[1] * smp_v_dim(l), group = n[2] / n[3];
    float *scratch = smp_heap_alloc(2 * each + of_v + n[1] + 3 * ROWS * KEYS + n[2],
                                    sizeof *scratch);
    grads g = { .dq = scratch, .dk = scratch + each, .dv = scratch + 2 * each };

    g.mean = g.dv + of_v;
    g.p = g.mean + n[1];
    g.dp = g.p + ROWS * KEYS;
    g.factor = g.dp + ROWS * KEYS;
    g.dsinks = g.factor + ROWS * KEYS;
    for (uint64_t i = 0; i < n[0] * n[3]; i++) {
        uint64_t sample = i / n[3], kv = i % n[3];
        smp_head h = { 0 };

        memset(g.dk, 0, (each + of_v) * sizeof *g.dk);
        for (uint64_t j = 0; j < group; j++) {
            h = smp_head_of(cpu, l, l->at[1], sample, kv * group + j);
            smp_head_sink(&h, l->n_operand > 5 ? l->at[5] : NULL);
            backward_head(&h, &g);
        }
        store_rows(&h, l->at[4], (n[2] + kv) * h.d, g.dk, h.d);
        store_rows(&h, l->at[4], h.v0 + kv * h.dv, g.dv, h.dv);
    }
    if (l->n_operand > 6) {
        (l->task->flags & SMP_FLAG_ACCUMULATE ? smp_store_add : smp_store)(
            l->at[6], (smp_dtype)l->task->dtype2, 0, g.dsinks, n[2]);
    }
    free(scratch);
}
