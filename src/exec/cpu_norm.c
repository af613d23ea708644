/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Norms of rows (RMS and layer norm), norms of the heads of q and k, rotary positions.
 *
 *   xhat = (x - mean) * rstd      rstd = 1 / sqrt(var + eps); RMS: mean 0, var = mean of x^2
 *   y    = xhat * w + b
 *   dx   = rstd * (g - mean(g) - xhat * mean(g * xhat))   with g = dy * w; RMS: no mean(g)
 * [Ba et al. 2016; Zhang and Sennrich 2019].  Sums of a row are made in double.
 */
#include "config.h"

#include "exec/cpu.h"

#include "base/arena.h"

#include <math.h>
#include <stdlib.h>

typedef struct moments { float mean, rstd; } moments;

enum { PARTS = 8 };

SMP_WIDE double smp_dot(const float *a, const float *b, uint64_t n)
{
    double part[PARTS] = { 0 }, sum = 0;
    uint64_t i = 0;

    for (; i + PARTS <= n; i += PARTS) {
        for (int k = 0; k < PARTS; k++) {
            part[k] += (double)a[i + (uint64_t)k] * (double)b[i + (uint64_t)k];
        }
    }
    for (; i < n; i++) {
        sum += (double)a[i] * (double)b[i];
    }
    for (int k = 0; k < PARTS; k++) {
        sum += part[k];
    }
    return sum;
}

SMP_WIDE double smp_sum(const float *a, uint64_t n)
{
    double part[PARTS] = { 0 }, sum = 0;
    uint64_t i = 0;

    for (; i + PARTS <= n; i += PARTS) {
        for (int k = 0; k < PARTS; k++) {
            part[k] += (double)a[i + (uint64_t)k];
        }
    }
    for (; i < n; i++) {
        sum += (double)a[i];
    }
    for (int k = 0; k < PARTS; k++) {
        sum += part[k];
    }
    return sum;
}

SMP_WIDE static double square_sum(const float *a, uint64_t n, double mean)
{
    double part[PARTS] = { 0 }, sum = 0;
    uint64_t i = 0;

    for (; i + PARTS <= n; i += PARTS) {
        for (int k = 0; k < PARTS; k++) {
            double d = (double)a[i + (uint64_t)k] - mean;

            part[k] += d * d;
        }
    }
    for (; i < n; i++) {
        sum += ((double)a[i] - mean) * ((double)a[i] - mean);
    }
    for (int k = 0; k < PARTS; k++) {
        sum += part[k];
    }
    return sum;
}

static moments measure(const float *x, uint64_t n, bool layer, double eps)
{
    double mean = layer ? smp_sum(x, n) / (double)n : 0;
    double squares = square_sum(x, n, mean);

    return (moments){ (float)mean, (float)(1.0 / sqrt(squares / (double)n + eps)) };
}

SMP_WIDE static void norm_row(float *y, const float *x, const float *w, const float *b,
                              uint64_t n, moments m)
{
    for (uint64_t i = 0; i < n; i++) {
        y[i] = (x[i] - m.mean) * m.rstd * w[i] + (b ? b[i] : 0.0f);
    }
}

/* Sum of dy * w * xhat; dw gets dy * xhat. */
SMP_WIDE static double xhat_sum(const float *dy, const float *x, const float *w, uint64_t n,
                                moments m, float *dw)
{
    double part[PARTS] = { 0 }, sum = 0;

    for (uint64_t i = 0; i < n; i += PARTS) {
        uint64_t k_end = n - i < PARTS ? n - i : PARTS;

        for (uint64_t k = 0; k < k_end; k++) {
            float d = dy[i + k] * ((x[i + k] - m.mean) * m.rstd);

            part[k] += (double)(d * w[i + k]);
            dw[i + k] += d;
        }
    }
    for (int k = 0; k < PARTS; k++) {
        sum += part[k];
    }
    return sum;
}

/* dx of one row, and its part of the gradients of w and b. */
SMP_WIDE static void norm_row_grad(float *dx, const float *dy, const float *x, const float *w,
                          uint64_t n, bool layer, double eps, float *dw, float *db)
{
    moments m = measure(x, n, layer, eps);
    double sum = layer ? smp_dot(dy, w, n) : 0;
    float a = (float)(sum / (double)n), c = (float)(xhat_sum(dy, x, w, n, m, dw)
                                                    / (double)n);

    for (uint64_t i = 0; db && i < n; i++) {
        db[i] += dy[i];
    }
    for (uint64_t i = 0; i < n; i++) {
        dx[i] = m.rstd * (dy[i] * w[i] - a - (x[i] - m.mean) * m.rstd * c);
    }
}

void smp_cpu_norm(const smp_cpu *cpu, const smp_launch *l)
{
    uint64_t rows = l->task->dims[0], n = l->task->dims[1];
    bool layer = l->task->dims[2] == SMP_NORM_LAYER;
    smp_dtype t = (smp_dtype)l->task->dtype;
    float *scratch = smp_heap_alloc(4 * n, sizeof *scratch);
    const float *w = smp_row(l->at[1], t, 0, n, scratch);
    const float *b = l->n_operand > 3 ? smp_row(l->at[3], t, 0, n, scratch + n) : NULL;
    double eps = cpu->rank->job->model->norm_eps;

    for (uint64_t i = 0; i < rows; i++) {
        const float *x = smp_row(l->at[0], t, i * n, n, scratch + 2 * n);
        float *y = scratch + 3 * n;

        norm_row(y, x, w, b, n, measure(x, n, layer, eps));
        smp_store(l->at[2], t, i * n, y, n);
    }
    free(scratch);
}

void smp_cpu_norm_grad(const smp_cpu *cpu, const smp_launch *l)
{
    uint64_t rows = l->task->dims[0], n = l->task->dims[1];
    bool layer = l->task->dims[2] == SMP_NORM_LAYER;
    bool add = l->task->flags & SMP_FLAG_ACCUMULATE, add_dx = l->task->flags & SMP_FLAG_ADD_DX;
    smp_dtype t = (smp_dtype)l->task->dtype, t2 = (smp_dtype)l->task->dtype2;
    float *scratch = smp_heap_alloc(6 * n, sizeof *scratch);
    float *dw = scratch, *db = scratch + n;
    const float *w = smp_row(l->at[2], t, 0, n, scratch + 2 * n);

    for (uint64_t i = 0; i < rows; i++) {
        const float *dy = smp_row(l->at[0], t, i * n, n, scratch + 3 * n);
        const float *x = smp_row(l->at[1], t, i * n, n, scratch + 4 * n);
        float *dx = scratch + 5 * n;

        norm_row_grad(dx, dy, x, w, n, layer, cpu->rank->job->model->norm_eps, dw,
                      l->n_operand > 5 ? db : NULL);
        (add_dx ? smp_store_add : smp_store)(l->at[3], t, i * n, dx, n);
    }
    (add ? smp_store_add : smp_store)(l->at[4], t2, 0, dw, n);
    if (l->n_operand > 5) {
        (add ? smp_store_add : smp_store)(l->at[5], t2, 0, db, n);
    }
    free(scratch);
}

/* ---- norms of heads ---- */

void smp_cpu_qk_norm(const smp_cpu *cpu, const smp_launch *l)
{
    uint64_t tokens = l->task->dims[0], heads = l->task->dims[1], kv = l->task->dims[2];
    uint64_t d = l->task->dims[3], width = (heads + 2 * kv) * d, normed = (heads + kv) * d;
    smp_dtype t = (smp_dtype)l->task->dtype;
    float *scratch = smp_heap_alloc(2 * d + 2 * normed, sizeof *scratch);
    const float *q_w = smp_row(l->at[1], t, 0, d, scratch);
    const float *k_w = smp_row(l->at[2], t, 0, d, scratch + d);
    float *raw = scratch + 2 * d, *y = raw + normed;

    for (uint64_t i = 0; i < tokens; i++) {
        smp_load(raw, l->at[0], t, i * width, normed);
        smp_store(l->at[3], t, i * normed, raw, normed);
        for (uint64_t h = 0; h < heads + kv; h++) {
            norm_row(y + h * d, raw + h * d, h < heads ? q_w : k_w, NULL, d,
                     measure(raw + h * d, d, false, cpu->rank->job->model->norm_eps));
        }
        smp_store(l->at[0], t, i * width, y, normed);
    }
    free(scratch);
}

void smp_cpu_qk_norm_grad(const smp_cpu *cpu, const smp_launch *l)
{
    uint64_t tokens = l->task->dims[0], heads = l->task->dims[1], kv = l->task->dims[2];
    uint64_t d = l->task->dims[3], width = (heads + 2 * kv) * d, normed = (heads + kv) * d;
    bool add = l->task->flags & SMP_FLAG_ACCUMULATE;
    smp_dtype t = (smp_dtype)l->task->dtype, t2 = (smp_dtype)l->task->dtype2;
    float *scratch = smp_heap_alloc(4 * d + 3 * normed, sizeof *scratch);
    const float *q_w = smp_row(l->at[2], t, 0, d, scratch);
    const float *k_w = smp_row(l->at[3], t, 0, d, scratch + d);
    float *dw[2] = { scratch + 2 * d, scratch + 3 * d };
    float *dx = scratch + 4 * d;

    for (uint64_t i = 0; i < tokens; i++) {
        const float *dy = smp_row(l->at[0], t, i * width, normed, dx + normed);
        const float *raw = smp_row(l->at[1], t, i * normed, normed, dx + 2 * normed);

        for (uint64_t h = 0; h < heads + kv; h++) {
            norm_row_grad(dx + h * d, dy + h * d, raw + h * d, h < heads ? q_w : k_w, d,
                          false, cpu->rank->job->model->norm_eps, dw[h >= heads], NULL);
        }
        smp_store(l->at[0], t, i * width, dx, normed);
    }
    (add ? smp_store_add : smp_store)(l->at[4], t2, 0, dw[0], d);
    (add ? smp_store_add : smp_store)(l->at[5], t2, 0, dw[1], d);
    free(scratch);
}

/* ---- rotary positions ---- */

/* Turns pairs (i, i + rotated / 2) of each head of q and k; sign -1: back.  [Su et al. 2021;
 * the pairing is that of transformers' rotate_half] */
static void rotate(const smp_cpu *cpu, const smp_launch *l, float sign)
{
    uint64_t tokens = l->task->dims[0], n_head = l->task->dims[1] + l->task->dims[2];
    uint64_t d = l->task->dims[3], half = l->task->dims[4] / 2, seq = l->task->dims[5];
    uint64_t width = (n_head + l->task->dims[2]) * d;
    smp_dtype t = (smp_dtype)l->task->dtype;
    float *scratch = smp_heap_alloc(2 * half, sizeof *scratch);

    for (uint64_t i = 0; i < tokens * n_head; i++) {
        uint64_t token = i / n_head, first = token * width + i % n_head * d;
        uint64_t position = token % seq - smp_begin_of(cpu, l, token);
        const float *c = cpu->cosines + position * half;
        const float *s = cpu->sines + position * half;

        smp_load(scratch, l->at[0], t, first, 2 * half);
        for (uint64_t j = 0; j < half; j++) {
            float a = scratch[j], b = scratch[half + j];

            scratch[j] = a * c[j] - sign * b * s[j];
            scratch[half + j] = b * c[j] + sign * a * s[j];
        }
        smp_store(l->at[0], t, first, scratch, 2 * half);
    }
    free(scratch);
}

void smp_cpu_rope(const smp_cpu *cpu, const smp_launch *l)
{
    rotate(cpu, l, 1.0f);
}

void smp_cpu_rope_grad(const smp_cpu *cpu, const smp_launch *l)
{
    rotate(cpu, l, -1.0f);
}
