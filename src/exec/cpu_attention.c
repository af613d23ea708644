/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streaming attention over heads that lie anywhere (smp_heads), and the operations that call
 * it on packed q, k, v [tokens, (heads + kv_heads) head_dim + kv_heads v_dim].
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

/* Blocks stay in the first level of the cache and far below 10^6 multiplications, up to which
 * OpenBLAS has kernels that copy nothing, on processors with AVX-512 and unless the right
 * operand is transposed (its kernel/x86_64/sgemm_small_kernel_permit_skylakex.c). */
enum { ROWS = 64, KEYS = 64, SMALL = 1 << 18 };

/* A block of the matrix of logits: queries i0 .. i0 + rows, keys j0 .. j0 + keys. */
typedef struct tile { uint64_t i0, rows, j0, keys; } tile;

/* Query i sees keys of its document: j <= i where causal, in a window those with
 * i - j < window, or those of the same chunk. */
static uint64_t first_seen(const smp_head *h, uint64_t i)
{
    uint64_t begin = smp_begin_of(h->all->cpu, h->all->launch, h->sample * h->all->seq + i);

    return smp_first_key(i, begin, h->all->window, h->all->chunked);
}

/* First key that a query of the block sees, on a boundary of blocks of keys. */
static uint64_t first_key(const smp_head *h, uint64_t i0)
{
    return first_seen(h, i0) / KEYS * KEYS;
}

/* Queries of a block; the last one may have fewer. */
static uint64_t rows_of(const smp_heads *all)
{
    uint64_t wide = all->d > all->dv ? all->d : all->dv, rows = SMALL / (KEYS * wide);

    return rows > ROWS ? ROWS : rows > 0 ? rows : 1;
}

/* Queries of the block that begins at i0. */
static uint64_t rows_from(const smp_head *h, uint64_t i0)
{
    uint64_t rows = rows_of(h->all);

    return h->all->seq - i0 < rows ? h->all->seq - i0 : rows;
}

/* Past the last key that queries up to i0 + rows - 1 see. */
static uint64_t keys_end(const smp_head *h, uint64_t i0, uint64_t rows)
{
    return h->all->causal ? i0 + rows : h->all->seq;
}

static void mask_row(const smp_head *h, uint64_t i, tile b, float *row)
{
    uint64_t first = first_seen(h, i), last = keys_end(h, i, 1);

    for (uint64_t j = b.j0; j < b.j0 + b.keys && j < first; j++) {
        row[j - b.j0] = -INFINITY;
    }
    for (uint64_t j = last > b.j0 ? last : b.j0; j < b.j0 + b.keys; j++) {
        row[j - b.j0] = -INFINITY;
    }
}

/* Numbers that `turned` keys or values of a head take. */
static uint64_t turned_elems(const smp_heads *all, uint64_t width)
{
    return (all->seq + KEYS - 1) / KEYS * KEYS * width;
}

/* Keys or values [seq, width] in fp32, each block of KEYS of them transposed. */
static void turn(const smp_heads *all, smp_matrix from, uint64_t width, float *to)
{
    enum { PART = 64 };
    float scratch[PART];

    for (uint64_t i = 0; i < all->seq; i++) {
        float *column = to + i / KEYS * KEYS * width + i % KEYS;

        for (uint64_t j = 0; j < width; j += PART) {
            uint64_t n = width - j < PART ? width - j : PART;
            const float *x = smp_row(from.data, from.dtype, i * from.ld + j, n, scratch);

            for (uint64_t k = 0; k < n; k++) {
                column[(j + k) * KEYS] = x[k];
            }
        }
    }
}

static smp_matrix turned_at(const float *turned, uint64_t j0, uint64_t width)
{
    return (smp_matrix){ turned + j0 * width, SMP_F32, KEYS };
}

/* Logits of a block: masked ones are -infinity. */
static void logits_of(const smp_head *h, tile b, const float *turned_k, float *s)
{
    smp_product(NULL, false, false, b.rows, b.keys, h->all->d, h->scale,
                smp_matrix_rows(h->q, b.i0), turned_at(turned_k, b.j0, h->all->d), false, s,
                SMP_F32, KEYS);
    for (uint64_t i = 0; i < b.rows; i++) {
        float *row = s + i * KEYS;

        for (uint64_t j = 0; h->all->cap > 0 && j < b.keys; j++) {
            row[j] = h->all->cap * tanhf(row[j] / h->all->cap);
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
    double rate = h->all->dropout;
    smp_dice dice = smp_dice_of(h->all->cpu, h->all->launch, h->sample,
                                SMP_SITE_PROBABILITIES);
    uint32_t limit = (uint32_t)(rate * 4294967296.0 + 0.5); /* as in the program */
    float scale = (float)(1.0 / (1.0 - rate));
    uint64_t seq = h->all->seq;

    for (uint64_t i = 0; i < b.rows; i++) {
        uint32_t throws[KEYS];

        smp_dice_throws(&dice, (h->global * seq + b.i0 + i) * seq + b.j0, b.keys, throws);
        for (uint64_t j = 0; j < b.keys; j++) {
            factor[i * KEYS + j] = throws[j] < limit ? 0.0f : scale;
        }
    }
}

static bool drops(const smp_head *h)
{
    return h->all->dropout > 0;
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
        float *row = s + i * KEYS, max = smp_max(row, b.keys), sum, old;

        max = r->max[i] > max ? r->max[i] : max;
        if (max == -INFINITY) { /* no key of this block is seen, nor any before */
            memset(row, 0, b.keys * sizeof *row);
            continue;
        }
        old = r->max[i] == -INFINITY ? 0.0f : smp_expf(r->max[i] - max);
        exponentiate(row, b.keys, max);
        sum = (float)smp_sum(row, b.keys);
        r->max[i] = max;
        r->sum[i] = r->sum[i] * old + sum;
        for (uint64_t j = 0; j < h->all->dv; j++) {
            y[i * h->all->dv + j] *= old;
        }
    }
}

static void finish_rows(const smp_head *h, uint64_t i0, uint64_t rows, running *r, float *y)
{
    const smp_heads *all = h->all;
    void *to = smp_lie_at(all, all->y, h->sample, h->index);

    for (uint64_t i = 0; i < rows; i++) {
        uint64_t token = h->sample * all->seq + i0 + i;
        float inverse = 1.0f / r->sum[i];

        for (uint64_t j = 0; j < h->all->dv; j++) {
            y[i * h->all->dv + j] *= inverse;
        }
        smp_store(to, all->dtype, (i0 + i) * all->y.token, y + i * h->all->dv, h->all->dv);
        all->lse[token * h->all->heads + h->index] = r->max[i] + logf(r->sum[i]);
    }
}

static void forward_rows(const smp_head *h, uint64_t i0, const float *turned_k, float *scratch)
{
    uint64_t rows = rows_from(h, i0), end = keys_end(h, i0, rows);
    float *s = scratch, *factor = s + ROWS * KEYS, *y = factor + ROWS * KEYS;
    running r = { .sum = { 0 } };

    memset(y, 0, rows * h->all->dv * sizeof *y);
    for (uint64_t i = 0; i < rows; i++) { /* a sink is a key whose value is 0 */
        r.max[i] = h->all->sinks ? h->sink : -INFINITY;
        r.sum[i] = h->all->sinks ? 1.0f : 0.0f;
    }
    for (uint64_t j0 = first_key(h, i0); j0 < end; j0 += KEYS) {
        tile b = { i0, rows, j0, end - j0 < KEYS ? end - j0 : KEYS };

        logits_of(h, b, turned_k, s);
        advance(h, b, s, &r, y);
        if (drops(h)) {
            throw_dice(h, b, factor);
            for (uint64_t i = 0; i < rows * KEYS; i++) {
                s[i] = i % KEYS < b.keys ? s[i] * factor[i] : 0.0f;
            }
        }
        smp_product(NULL, false, false, rows, h->all->dv, b.keys, 1.0f,
                    (smp_matrix){ s, SMP_F32, KEYS }, smp_matrix_rows(h->v, j0), true, y,
                    SMP_F32, h->all->dv);
    }
    finish_rows(h, i0, rows, &r, y);
}

/* Heads of sequences over the threads; their products are on one thread each. */
static void share_heads(const smp_heads *all, uint64_t n, smp_loop *run)
{
    union { const smp_heads *in; void *out; } context = { all };
    uint64_t each = all->seq * (all->seq < all->d ? all->d : all->seq);

    smp_pool_run(all->cpu->pool, n, SMP_GRAIN / each + 1, run, context.out);
}

static void attend_loop(void *context, uint64_t first, uint64_t end)
{
    const smp_heads *all = context;
    uint64_t blocks = 2 * ROWS * KEYS + ROWS * all->dv;
    float *scratch = smp_heap_alloc(blocks + turned_elems(all, all->d), sizeof *scratch);

    for (uint64_t i = first; i < end; i++) {
        smp_head h = smp_head_of(all, i / all->heads, i % all->heads);

        turn(all, h.k, all->d, scratch + blocks);
        for (uint64_t i0 = 0; i0 < all->seq; i0 += rows_of(all)) {
            forward_rows(&h, i0, scratch + blocks, scratch);
        }
    }
    free(scratch);
}

void smp_attend(const smp_heads *all)
{
    share_heads(all, all->batch * all->heads, attend_loop);
}

void smp_cpu_attention(const smp_cpu *cpu, const smp_launch *l)
{
    smp_heads all = smp_heads_of(cpu, l, l->at[0]);

    all.y = smp_heads_out(&all, l->at[1]);
    all.lse = l->at[2];
    all.sinks = l->n_operand > 3 ? l->at[3] : NULL;
    smp_attend(&all);
}

/* ---- backward ---- */

typedef struct grads {
    float *dq, *dk, *dv;       /* [seq, d] of one head, in fp32 */
    float *mean;               /* rowsum(dY * Y) of each query */
    float *p, *dp, *factor;    /* blocks */
    float *turned_k, *turned_v;
    smp_matrix dy, y;
} grads;

static void make_means(const smp_head *h, const grads *g)
{
    for (uint64_t i = 0; i < h->all->seq; i++) {
        double sum = 0;
        float a[2 * ROWS];

        for (uint64_t j = 0; j < h->all->dv; j += ROWS) {
            uint64_t n = h->all->dv - j < ROWS ? h->all->dv - j : ROWS;

            sum += smp_dot(smp_row(g->dy.data, g->dy.dtype, i * g->dy.ld + j, n, a),
                           smp_row(g->y.data, g->y.dtype, i * g->y.ld + j, n, a + ROWS), n);
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

static float lse_of(const smp_head *h, uint64_t i)
{
    return h->all->lse[(h->sample * h->all->seq + i) * h->all->heads + h->index];
}

/* p and dp become what multiplies dY and K: dropped probabilities and dS. */
static void combine(const smp_head *h, tile b, const grads *g)
{
    for (uint64_t i = 0; i < b.rows; i++) {
        float lse = lse_of(h, b.i0 + i);
        float *p = g->p + i * KEYS, *dp = g->dp + i * KEYS, slope[KEYS];

        for (uint64_t j = 0; h->all->cap > 0 && j < b.keys; j++) {
            float c = (p[j] + h->alibi * ((float)(b.i0 + i) - (float)(b.j0 + j))) / h->all->cap;

            slope[j] = p[j] == -INFINITY ? 0.0f : 1.0f - c * c;
        }
        combine_row(p, dp, drops(h) ? g->factor + i * KEYS : NULL, b.keys, lse,
                    g->mean[b.i0 + i]);
        for (uint64_t j = 0; h->all->cap > 0 && j < b.keys; j++) {
            dp[j] *= slope[j];
        }
    }
}

static void backward_block(const smp_head *h, tile b, const grads *g)
{
    uint64_t d = h->all->d, dv = h->all->dv;
    smp_matrix dy = smp_matrix_rows(g->dy, b.i0), q = smp_matrix_rows(h->q, b.i0);
    smp_matrix k = smp_matrix_rows(h->k, b.j0), v = turned_at(g->turned_v, b.j0, dv);
    smp_matrix p = { g->p, SMP_F32, KEYS }, ds = { g->dp, SMP_F32, KEYS };

    logits_of(h, b, g->turned_k, g->p);
    smp_product(NULL, false, false, b.rows, b.keys, dv, 1.0f, dy, v, false, g->dp, SMP_F32,
                KEYS);
    if (drops(h)) {
        throw_dice(h, b, g->factor);
    }
    combine(h, b, g);
    smp_product(NULL, true, false, b.keys, dv, b.rows, 1.0f, p, dy, true, g->dv + b.j0 * dv,
                SMP_F32, dv);
    smp_product(NULL, false, false, b.rows, d, b.keys, h->scale, ds, k, true, g->dq + b.i0 * d,
                SMP_F32, d);
    smp_product(NULL, true, false, b.keys, d, b.rows, h->scale, ds, q, true, g->dk + b.j0 * d,
                SMP_F32, d);
}

/* [seq, width] to a head's part of an operand. */
static void store_rows(const smp_head *h, smp_lie to, uint64_t head, const float *from,
                       uint64_t width)
{
    void *place = smp_lie_at(h->all, to, h->sample, head);

    for (uint64_t i = 0; i < h->all->seq; i++) {
        smp_store(place, h->all->dtype, i * to.token, from + i * width, width);
    }
}

/* Of a head's sink: it takes p of each query and gives nothing, so its dS is -p mean. */
static double sink_grad(const smp_head *h, const grads *g)
{
    double sum = 0;

    for (uint64_t i = 0; i < h->all->seq && h->all->sinks; i++) {
        float lse = lse_of(h, i);

        sum -= exp((double)(h->sink - lse)) * (double)g->mean[i];
    }
    return sum;
}

static void backward_head(const smp_head *h, grads *g)
{
    const smp_heads *all = h->all;

    g->dy = (smp_matrix){ smp_lie_at(all, all->dy, h->sample, h->index), all->dtype,
                          all->dy.token };
    g->y = (smp_matrix){ smp_lie_at(all, all->y, h->sample, h->index), all->dtype,
                         all->y.token };
    memset(g->dq, 0, h->all->seq * h->all->d * sizeof *g->dq);
    make_means(h, g);
    for (uint64_t i0 = 0; i0 < all->seq; i0 += rows_of(all)) {
        uint64_t rows = rows_from(h, i0), end = keys_end(h, i0, rows);

        for (uint64_t j0 = first_key(h, i0); j0 < end; j0 += KEYS) {
            uint64_t keys = end - j0 < KEYS ? end - j0 : KEYS;

            backward_block(h, (tile){ i0, rows, j0, keys }, g);
        }
    }
    store_rows(h, all->dq, h->index, g->dq, h->all->d);
    if (all->sinks) {
        all->dsinks[h->sample * h->all->heads + h->index] += (float)sink_grad(h, g);
    }
}

/* Key-value heads of sequences, each with the heads that share it. */
static void attend_grad_loop(void *context, uint64_t first, uint64_t end)
{
    const smp_heads *all = context;
    uint64_t each = all->seq * all->d, of_v = all->seq * all->dv;
    uint64_t group = all->heads / all->kv_heads;
    uint64_t of_k = turned_elems(all, all->d), turned = of_k + turned_elems(all, all->dv);
    float *scratch = smp_heap_alloc(2 * each + of_v + all->seq + 3 * ROWS * KEYS + turned,
                                    sizeof *scratch);
    grads g = { .dq = scratch, .dk = scratch + each, .dv = scratch + 2 * each };

    g.mean = g.dv + of_v;
    g.p = g.mean + all->seq;
    g.dp = g.p + ROWS * KEYS;
    g.factor = g.dp + ROWS * KEYS;
    g.turned_k = g.factor + ROWS * KEYS;
    g.turned_v = g.turned_k + of_k;
    for (uint64_t i = first; i < end; i++) {
        uint64_t sample = i / all->kv_heads, kv = i % all->kv_heads;
        smp_head h = smp_head_of(all, sample, kv * group);

        turn(all, h.k, all->d, g.turned_k);
        turn(all, h.v, all->dv, g.turned_v);
        memset(g.dk, 0, (each + of_v) * sizeof *g.dk);
        for (uint64_t j = 0; j < group; j++) {
            h = smp_head_of(all, sample, kv * group + j);
            backward_head(&h, &g);
        }
        store_rows(&h, all->dk, kv, g.dk, all->d);
        store_rows(&h, all->dvalues, kv, g.dv, all->dv);
    }
    free(scratch);
}

void smp_attend_grad(const smp_heads *all)
{
    share_heads(all, all->batch * all->kv_heads, attend_grad_loop);
}

void smp_cpu_attention_grad(const smp_cpu *cpu, const smp_launch *l)
{
    smp_heads all = smp_heads_of(cpu, l, l->at[1]);
    float *dsinks = smp_heap_alloc(all.batch * all.heads, sizeof *dsinks);

    all.dy = smp_heads_out(&all, l->at[0]);
    all.y = smp_heads_out(&all, l->at[2]);
    all.lse = l->at[3];
    all.sinks = l->n_operand > 5 ? l->at[5] : NULL;
    all.dsinks = dsinks;
    smp_heads_split(&all, l->at[4], &all.dq, &all.dk, &all.dvalues);
    smp_attend_grad(&all);
    for (uint64_t i = all.heads; i < all.batch * all.heads; i++) {
        dsinks[i % all.heads] += dsinks[i];
    }
    if (l->n_operand > 6) {
        (l->task->flags & SMP_FLAG_ACCUMULATE ? smp_store_add : smp_store)(
            l->at[6], (smp_dtype)l->task->dtype2, 0, dsinks, all.heads);
    }
    free(dsinks);
}
