/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Heads of packed q, k, v, and naive attention: scores, softmax and values as matrices
 * [batch, heads, seq, seq] in memory.
 */
#include "config.h"

#include "exec/cpu_head.h"

#include "base/arena.h"

#include <math.h>
#include <stdlib.h>

smp_matrix smp_matrix_at(const void *data, smp_dtype dtype, uint64_t first, uint64_t ld)
{
    return (smp_matrix){ (const char *)data + first * smp_dtype_bytes(dtype), dtype, ld };
}

smp_matrix smp_matrix_rows(smp_matrix m, uint64_t row0)
{
    return smp_matrix_at(m.data, m.dtype, row0 * m.ld, m.ld);
}

void *smp_lie_at(const smp_heads *all, smp_lie lie, uint64_t sample, uint64_t head)
{
    return (char *)lie.data
           + (sample * lie.sequence + head * lie.head) * smp_dtype_bytes(all->dtype);
}

void smp_heads_split(const smp_heads *all, void *qkv, smp_lie *q, smp_lie *k, smp_lie *v)
{
    uint64_t v0 = (all->heads + all->kv_heads) * all->d;
    uint64_t width = v0 + all->kv_heads * all->dv, e = smp_dtype_bytes(all->dtype);

    *q = (smp_lie){ qkv, width, all->d, width * all->seq };
    *k = (smp_lie){ (char *)qkv + all->heads * all->d * e, width, all->d, width * all->seq };
    *v = (smp_lie){ (char *)qkv + v0 * e, width, all->dv, width * all->seq };
}

smp_lie smp_heads_out(const smp_heads *all, void *y)
{
    return (smp_lie){ y, all->heads * all->dv, all->dv, all->heads * all->dv * all->seq };
}

smp_heads smp_heads_of(const smp_cpu *cpu, const smp_launch *l, void *qkv)
{
    const uint64_t *n = l->task->dims;
    const smp_attention *a = &l->block->attention;
    smp_heads all = { .cpu = cpu, .launch = l, .dtype = (smp_dtype)l->task->dtype,
                      .batch = n[0], .seq = n[1], .heads = n[2], .kv_heads = n[3], .d = n[4],
                      .dv = n[6] > 0 ? n[6] : n[4], .window = n[5], .causal = true,
                      .chunked = l->task->flags & SMP_FLAG_CHUNKED,
                      .scale = (float)a->scale, .cap = (float)a->softcap,
                      .dropout = smp_attention_dropout(&cpu->rank->job->settings, a) };

    all.dropout = cpu->rank->rows.evaluating ? 0 : all.dropout;
    smp_heads_split(&all, qkv, &all.q, &all.k, &all.v);
    return all;
}

smp_head smp_head_of(const smp_heads *all, uint64_t sample, uint64_t index)
{
    uint64_t kv = index / (all->heads / all->kv_heads);
    smp_head h = { .all = all, .sample = sample, .index = index };

    h.global = all->cpu->rank->tensor_rank * all->heads + index;
    h.q = (smp_matrix){ smp_lie_at(all, all->q, sample, index), all->dtype, all->q.token };
    h.k = (smp_matrix){ smp_lie_at(all, all->k, sample, kv), all->dtype, all->k.token };
    h.v = (smp_matrix){ smp_lie_at(all, all->v, sample, kv), all->dtype, all->v.token };
    h.scale = all->scale > 0 ? all->scale : (float)(1 / sqrt((double)all->d));
    h.alibi = smp_alibi_slope(all->cpu->rank->job->model, &all->launch->block->attention,
                              h.global);
    if (all->sinks) {
        smp_load(&h.sink, all->sinks, all->dtype, index, 1);
    }
    return h;
}

/* Slope of head i, from 0, of n: 2^(-8 (i + 1) / n) [Press et al. 2022].  Where n is no power
 * of two, the slopes of the power below, then every other of twice as many: modeling_bloom.py
 * and modeling_falcon.py; modeling_mpt.py comes to the same. */
float smp_alibi_slope(const smp_model *model, const smp_attention *a, uint64_t head)
{
    uint64_t below = 1;
    double exponent;

    if (model->position != SMP_POSITION_ALIBI) {
        return 0;
    }
    while (below * 2 <= a->heads) {
        below *= 2;
    }
    exponent = head < below ? (double)(head + 1) / (double)below
                            : (double)(2 * (head - below) + 1) / (double)(2 * below);
    return (float)(pow(2.0, -8.0 * exponent)
                   / (model->alibi_over_root ? sqrt((double)a->head_dim) : 1));
}

/* ---- naive attention ---- */

static smp_matrix square_of(const smp_head *h, const void *data)
{
    uint64_t seq = h->all->seq;

    return smp_matrix_at(data, h->all->dtype,
                         (h->sample * h->all->heads + h->index) * seq * seq, seq);
}

static void *place_of(const smp_launch *l, int operand, uint64_t first)
{
    return (char *)l->at[operand] + first * smp_dtype_bytes((smp_dtype)l->task->dtype);
}

/* What scores are divided by where they are stored. */
static float layer_scale(const smp_launch *l)
{
    return l->task->flags & SMP_FLAG_LAYER_SCALED ? (float)(l->layer + 1) : 1.0f;
}

void smp_cpu_scores(const smp_cpu *cpu, const smp_launch *l)
{
    smp_heads all = smp_heads_of(cpu, l, l->at[0]);

    for (uint64_t i = 0; i < all.batch * all.heads; i++) {
        smp_head h = smp_head_of(&all, i / all.heads, i % all.heads);

        smp_product(cpu->pool, false, true, all.seq, all.seq, all.d, h.scale / layer_scale(l),
                    h.q, h.k, false, place_of(l, 1, i * all.seq * all.seq), all.dtype, all.seq);
    }
}

/* Row i of the matrices of scores: a head's, and the query of it. */
static uint64_t head_of_row(const smp_cpu *cpu, const smp_launch *l, uint64_t i)
{
    return i / l->task->dims[1] % (l->block->attention.heads / cpu->rank->tensor);
}

static float sink_of_row(const smp_cpu *cpu, const smp_launch *l, uint64_t i, uint32_t operand)
{
    float sink;

    smp_load(&sink, l->at[operand], smp_precision_dtype(cpu->rank->job->settings.precision),
             head_of_row(cpu, l, i), 1);
    return sink;
}

/* The logits of what is stored: caps them and takes off alibi's slope. */
static void shape_row(const smp_cpu *cpu, const smp_launch *l, uint64_t i, float *row)
{
    const smp_attention *a = &l->block->attention;
    uint64_t n = l->task->dims[1], heads = a->heads / cpu->rank->tensor;
    uint64_t head = cpu->rank->tensor_rank * heads + head_of_row(cpu, l, i);
    float cap = (float)a->softcap, slope = smp_alibi_slope(cpu->rank->job->model, a, head);

    for (uint64_t j = 0; j < n && layer_scale(l) > 1; j++) {
        row[j] *= layer_scale(l);
    }
    for (uint64_t j = 0; j < n && cap > 0; j++) {
        row[j] = cap * tanhf(row[j] / cap);
    }
    for (uint64_t j = 0; j < n && slope > 0; j++) {
        row[j] -= slope * ((float)(i % n) - (float)j);
    }
}

void smp_cpu_softmax(const smp_cpu *cpu, const smp_launch *l)
{
    uint64_t rows = l->task->dims[0], seq = l->task->dims[1], window = l->task->dims[2];
    smp_dtype t = (smp_dtype)l->task->dtype;
    float *row = smp_heap_alloc(seq, sizeof *row);

    for (uint64_t i = 0; i < rows; i++) {
        uint64_t last = i % seq, first;
        uint64_t sample = i / (rows / cpu->rank->job->settings.micro_batch);
        uint64_t begin = smp_begin_of(cpu, l, sample * seq + last);
        float max = l->n_operand > 2 ? sink_of_row(cpu, l, i, 2) : -INFINITY, sum = 0;
        float sink = max;

        first = smp_first_key(last, begin, window, l->task->flags & SMP_FLAG_CHUNKED);
        smp_load(row, l->at[0], t, i * seq, seq);
        shape_row(cpu, l, i, row);
        for (uint64_t j = first; j <= last; j++) {
            max = row[j] > max ? row[j] : max;
        }
        for (uint64_t j = 0; j < seq; j++) {
            row[j] = j >= first && j <= last ? smp_expf(row[j] - max) : 0.0f;
            sum += row[j];
        }
        sum += l->n_operand > 2 ? smp_expf(sink - max) : 0.0f;
        for (uint64_t j = 0; j < seq; j++) {
            row[j] /= sum;
        }
        smp_store(l->at[1], t, i * seq, row, seq);
    }
    free(row);
}

/* dS of one row; returns that of the sink, which has what p leaves of 1. */
static float softmax_row_grad(const float *dp, const float *p, uint64_t n, float *ds)
{
    double mean = 0, sum = 0;

    for (uint64_t j = 0; j < n; j++) {
        mean += (double)(dp[j] * p[j]);
        sum += (double)p[j];
    }
    for (uint64_t j = 0; j < n; j++) {
        ds[j] = p[j] * (dp[j] - (float)mean);
    }
    return (float)(-(1 - sum) * mean);
}

void smp_cpu_softmax_grad(const smp_cpu *cpu, const smp_launch *l)
{
    uint64_t rows = l->task->dims[0], n = l->task->dims[1];
    uint64_t heads = l->block->attention.heads / cpu->rank->tensor;
    smp_dtype t = (smp_dtype)l->task->dtype;
    float cap = (float)l->block->attention.softcap;
    float *scratch = smp_heap_alloc(3 * n + heads, sizeof *scratch), *dsinks = scratch + 3 * n;
    uint32_t sinks = cap > 0 ? 4 : 3;

    for (uint64_t i = 0; i < rows; i++) {
        const float *dp = smp_row(l->at[0], t, i * n, n, scratch);
        const float *p = smp_row(l->at[1], t, i * n, n, scratch + n);
        float *ds = scratch + 2 * n, sink = softmax_row_grad(dp, p, n, ds);

        if (l->n_operand > sinks) {
            dsinks[head_of_row(cpu, l, i)] += sink;
        }
        for (uint64_t j = 0; j < n && cap > 0; j++) {
            float x, bent;

            smp_load(&x, l->at[3], t, i * n + j, 1);
            bent = tanhf(layer_scale(l) * x / cap);
            ds[j] *= 1.0f - bent * bent;
        }
        for (uint64_t j = 0; j < n && layer_scale(l) > 1; j++) {
            ds[j] *= layer_scale(l);
        }
        smp_store(l->at[2], t, i * n, ds, n);
    }
    if (l->n_operand > sinks) {
        (l->task->flags & SMP_FLAG_ACCUMULATE ? smp_store_add : smp_store)(
            l->at[sinks + 1], (smp_dtype)l->task->dtype2, 0, dsinks, heads);
    }
    free(scratch);
}

void smp_cpu_values(const smp_cpu *cpu, const smp_launch *l)
{
    smp_heads all = smp_heads_of(cpu, l, l->at[1]);
    smp_lie y = smp_heads_out(&all, l->at[2]);

    for (uint64_t i = 0; i < all.batch * all.heads; i++) {
        smp_head h = smp_head_of(&all, i / all.heads, i % all.heads);

        smp_product(cpu->pool, false, false, all.seq, all.dv, all.seq, 1.0f,
                    square_of(&h, l->at[0]), h.v, false,
                    smp_lie_at(&all, y, h.sample, h.index), all.dtype, y.token);
    }
}

/* Whether an earlier head has written the gradient of the key-value head of this one. */
static bool is_later(const smp_head *h)
{
    return h->index % (h->all->heads / h->all->kv_heads) > 0;
}

static void *kv_part(const smp_head *h, smp_lie lie)
{
    return smp_lie_at(h->all, lie, h->sample, h->index / (h->all->heads / h->all->kv_heads));
}

void smp_cpu_values_grad(const smp_cpu *cpu, const smp_launch *l)
{
    smp_heads all = smp_heads_of(cpu, l, l->at[2]);
    smp_lie out = smp_heads_out(&all, l->at[0]);

    smp_heads_split(&all, l->at[4], &all.dq, &all.dk, &all.dvalues);
    for (uint64_t i = 0; i < all.batch * all.heads; i++) {
        smp_head h = smp_head_of(&all, i / all.heads, i % all.heads);
        smp_matrix dy = { smp_lie_at(&all, out, h.sample, h.index), all.dtype, out.token };

        smp_product(cpu->pool, false, true, all.seq, all.seq, all.dv, 1.0f, dy, h.v, false,
                    place_of(l, 3, i * all.seq * all.seq), all.dtype, all.seq);
        smp_product(cpu->pool, true, false, all.seq, all.dv, all.seq, 1.0f,
                    square_of(&h, l->at[1]), dy, is_later(&h), kv_part(&h, all.dvalues),
                    all.dtype, all.dvalues.token);
    }
}

void smp_cpu_scores_grad(const smp_cpu *cpu, const smp_launch *l)
{
    smp_heads all = smp_heads_of(cpu, l, l->at[1]);

    smp_heads_split(&all, l->at[2], &all.dq, &all.dk, &all.dvalues);
    for (uint64_t i = 0; i < all.batch * all.heads; i++) {
        smp_head h = smp_head_of(&all, i / all.heads, i % all.heads);
        smp_matrix ds = square_of(&h, l->at[0]);
        float scale = h.scale / layer_scale(l);

        smp_product(cpu->pool, false, false, all.seq, all.d, all.seq, scale, ds, h.k, false,
                    smp_lie_at(&all, all.dq, h.sample, h.index), all.dtype, all.dq.token);
        smp_product(cpu->pool, true, false, all.seq, all.d, all.seq, scale, ds, h.q,
                    is_later(&h), kv_part(&h, all.dk), all.dtype, all.dk.token);
    }
}
