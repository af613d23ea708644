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

float smp_attention_scale(const smp_block *block, uint64_t head_dim)
{
    double scale = block->attention.scale;

    return (float)(scale > 0 ? scale : 1.0 / sqrt((double)head_dim));
}

smp_matrix smp_matrix_at(const void *data, smp_dtype dtype, uint64_t first, uint64_t ld)
{
    return (smp_matrix){ (const char *)data + first * smp_dtype_bytes(dtype), dtype, ld };
}

smp_matrix smp_matrix_rows(smp_matrix m, uint64_t row0)
{
    return smp_matrix_at(m.data, m.dtype, row0 * m.ld, m.ld);
}

uint64_t smp_v_dim(const smp_launch *l)
{
    return l->task->dims[6] > 0 ? l->task->dims[6] : l->task->dims[4];
}

smp_head smp_head_of(const smp_cpu *cpu, const smp_launch *l, const void *qkv, uint64_t sample,
                     uint64_t index)
{
    const uint64_t *n = l->task->dims;
    const smp_attention *a = &l->block->attention;
    uint64_t dv = smp_v_dim(l), v0 = (n[2] + n[3]) * n[4];
    smp_head h = { .cpu = cpu, .launch = l, .dtype = (smp_dtype)l->task->dtype, .seq = n[1],
               .d = n[4], .dv = dv, .width = v0 + n[3] * dv, .window = n[5], .heads = n[2],
               .v0 = v0, .sample = sample, .index = index, .out_width = n[2] * dv };
    uint64_t token0 = sample * h.seq * h.width, kv = index / (n[2] / n[3]);

    h.global = cpu->rank->tensor_rank * n[2] + index;
    h.q = smp_matrix_at(qkv, h.dtype, token0 + index * h.d, h.width);
    h.k = smp_matrix_at(qkv, h.dtype, token0 + (n[2] + kv) * h.d, h.width);
    h.v = smp_matrix_at(qkv, h.dtype, token0 + v0 + kv * dv, h.width);
    h.scale = smp_attention_scale(l->block, h.d);
    h.cap = (float)a->softcap;
    h.alibi = smp_alibi_slope(cpu->rank->job->model, a, h.global);
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

void smp_head_sink(smp_head *h, const void *sinks_or_null)
{
    h->sinks = sinks_or_null != NULL;
    if (h->sinks) {
        smp_load(&h->sink, sinks_or_null, h->dtype, h->index, 1);
    }
}

/* ---- naive attention ---- */

static smp_matrix square_of(const smp_head *h, const void *data)
{
    uint64_t first = (h->sample * h->heads + h->index) * h->seq * h->seq;

    return smp_matrix_at(data, h->dtype, first, h->seq);
}

static void *place_of(const smp_launch *l, int operand, uint64_t first)
{
    return (char *)l->at[operand] + first * smp_dtype_bytes((smp_dtype)l->task->dtype);
}

void smp_cpu_scores(const smp_cpu *cpu, const smp_launch *l)
{
    const uint64_t *n = l->task->dims;

    for (uint64_t i = 0; i < n[0] * n[2]; i++) {
        smp_head h = smp_head_of(cpu, l, l->at[0], i / n[2], i % n[2]);

        smp_product(false, true, h.seq, h.seq, h.d, h.scale, h.q, h.k, false,
                    place_of(l, 1, i * h.seq * h.seq), h.dtype, h.seq);
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

    smp_load(&sink, l->at[operand], (smp_dtype)l->task->dtype, head_of_row(cpu, l, i), 1);
    return sink;
}

/* Caps logits and takes off alibi's slope. */
static void shape_row(const smp_cpu *cpu, const smp_launch *l, uint64_t i, float *row)
{
    const smp_attention *a = &l->block->attention;
    uint64_t n = l->task->dims[1], heads = a->heads / cpu->rank->tensor;
    uint64_t head = cpu->rank->tensor_rank * heads + head_of_row(cpu, l, i);
    float cap = (float)a->softcap, slope = smp_alibi_slope(cpu->rank->job->model, a, head);

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
        uint64_t last = i % seq;
        uint64_t first = window > 0 && last + 1 > window ? last + 1 - window : 0;
        uint64_t sample = i / (rows / cpu->rank->job->settings.micro_batch);
        uint64_t begin = smp_begin_of(cpu, l, sample * seq + last);
        float max = l->n_operand > 2 ? sink_of_row(cpu, l, i, 2) : -INFINITY, sum = 0;
        float sink = max;

        first = begin > first ? begin : first;
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
            bent = tanhf(x / cap);
            ds[j] *= 1.0f - bent * bent;
        }
        smp_store(l->at[2], t, i * n, ds, n);
    }
    if (l->n_operand > sinks) {
        (l->task->flags & SMP_FLAG_ACCUMULATE ? smp_store_add : smp_store)(
            l->at[sinks + 1], (smp_dtype)l->task->dtype2, 0, dsinks, heads);
    }
    free(scratch);
}

static uint64_t y_place(const smp_head *h)
{
    return h->sample * h->seq * h->out_width + h->index * h->dv;
}

void smp_cpu_values(const smp_cpu *cpu, const smp_launch *l)
{
    const uint64_t *n = l->task->dims;

    for (uint64_t i = 0; i < n[0] * n[2]; i++) {
        smp_head h = smp_head_of(cpu, l, l->at[1], i / n[2], i % n[2]);

        smp_product(false, false, h.seq, h.dv, h.seq, 1.0f, square_of(&h, l->at[0]), h.v,
                    false, place_of(l, 2, y_place(&h)), h.dtype, h.out_width);
    }
}

/* Elements before this head's part of dqkv: which 0: q, 1: k, 2: v. */
static uint64_t dqkv_place(const smp_head *h, const uint64_t *n, uint64_t which)
{
    uint64_t kv = h->index / (n[2] / n[3]);
    const uint64_t first[3] = { h->index * h->d, (n[2] + kv) * h->d, h->v0 + kv * h->dv };

    return h->sample * h->seq * h->width + first[which];
}

void smp_cpu_values_grad(const smp_cpu *cpu, const smp_launch *l)
{
    const uint64_t *n = l->task->dims;

    for (uint64_t i = 0; i < n[0] * n[2]; i++) {
        smp_head h = smp_head_of(cpu, l, l->at[2], i / n[2], i % n[2]);
        smp_matrix dy = smp_matrix_at(l->at[0], h.dtype, y_place(&h), h.out_width);

        smp_product(false, true, h.seq, h.seq, h.dv, 1.0f, dy, h.v, false,
                    place_of(l, 3, i * h.seq * h.seq), h.dtype, h.seq);
        smp_product(true, false, h.seq, h.dv, h.seq, 1.0f, square_of(&h, l->at[1]), dy,
                    h.index % (n[2] / n[3]) > 0, place_of(l, 4, dqkv_place(&h, n, 2)),
                    h.dtype, h.width);
    }
}

void smp_cpu_scores_grad(const smp_cpu *cpu, const smp_launch *l)
{
    const uint64_t *n = l->task->dims;

    for (uint64_t i = 0; i < n[0] * n[2]; i++) {
        smp_head h = smp_head_of(cpu, l, l->at[1], i / n[2], i % n[2]);
        smp_matrix ds = square_of(&h, l->at[0]);

        smp_product(false, false, h.seq, h.d, h.seq, h.scale, ds, h.k, false,
                    place_of(l, 2, dqkv_place(&h, n, 0)), h.dtype, h.width);
        smp_product(true, false, h.seq, h.d, h.seq, h.scale, ds, h.q,
                    h.index % (n[2] / n[3]) > 0, place_of(l, 2, dqkv_place(&h, n, 1)),
                    h.dtype, h.width);
    }
}
