/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Norms of rows (RMS and layer norm), and what norms of q and k share with them.
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
#include <string.h>

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

SMP_WIDE float smp_max(const float *a, uint64_t n)
{
    enum { LANES = 16 };
    float part[LANES], max = -INFINITY;
    uint64_t i = 0;

    for (int k = 0; k < LANES; k++) {
        part[k] = -INFINITY;
    }
    for (; i + LANES <= n; i += LANES) {
        for (int k = 0; k < LANES; k++) {
            part[k] = a[i + (uint64_t)k] > part[k] ? a[i + (uint64_t)k] : part[k];
        }
    }
    for (; i < n; i++) {
        max = a[i] > max ? a[i] : max;
    }
    for (int k = 0; k < LANES; k++) {
        max = part[k] > max ? part[k] : max;
    }
    return max;
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

smp_moments smp_measure(const float *x, uint64_t n, bool layer, double eps)
{
    double mean = layer ? smp_sum(x, n) / (double)n : 0;
    double squares = square_sum(x, n, mean);

    return (smp_moments){ (float)mean, (float)(1.0 / sqrt(squares / (double)n + eps)) };
}

SMP_WIDE void smp_norm_row(float *y, const float *x, const float *w, const float *b, uint64_t n,
                           smp_moments m)
{
    for (uint64_t i = 0; i < n; i++) {
        y[i] = (x[i] - m.mean) * m.rstd * w[i] + (b ? b[i] : 0.0f);
    }
}

/* Sum of dy * w * xhat; dw gets dy * xhat. */
SMP_WIDE static double xhat_sum(const float *dy, const float *x, const float *w, uint64_t n,
                                smp_moments m, float *dw)
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

smp_norm_sums smp_norm_sums_of(const float *dy, const float *x, const float *w, uint64_t n,
                               bool layer, smp_moments m, float *dw, float *db_or_null)
{
    double sum = layer ? smp_dot(dy, w, n) : 0;

    for (uint64_t i = 0; db_or_null && i < n; i++) {
        db_or_null[i] += dy[i];
    }
    return (smp_norm_sums){ (float)(sum / (double)n),
                            (float)(xhat_sum(dy, x, w, n, m, dw) / (double)n) };
}

SMP_WIDE void smp_norm_row_dx(float *dx, const float *dy, const float *x, const float *w,
                              uint64_t n, smp_moments m, smp_norm_sums sums)
{
    for (uint64_t i = 0; i < n; i++) {
        dx[i] = m.rstd * (dy[i] * w[i] - sums.mean - (x[i] - m.mean) * m.rstd * sums.dot);
    }
}

/* The weights as they multiply. */
static const float *weights_of(const smp_cpu *cpu, const void *w, smp_dtype t, uint64_t n,
                               float *scratch)
{
    float offset = (float)cpu->rank->job->model->norm_offset;

    if (!(offset > 0)) {
        return smp_row(w, t, 0, n, scratch);
    }
    smp_load(scratch, w, t, 0, n);
    for (uint64_t i = 0; i < n; i++) {
        scratch[i] += offset;
    }
    return scratch;
}

/* What stands behind the width of row i goes from one operand to another as it is. */
static void copy_tail(const smp_launch *l, uint64_t i, int to, int from)
{
    uint64_t e = smp_dtype_bytes((smp_dtype)l->task->dtype), n = l->task->dims[1];
    uint64_t at = (i * (n + l->task->dims[3]) + n) * e;

    memcpy((char *)l->at[to] + at, (const char *)l->at[from] + at, l->task->dims[3] * e);
}

/* Of the residual, which x and dx may be. */
static smp_dtype residual_dtype(const smp_launch *l)
{
    return l->task->flags & SMP_FLAG_FP32_RESIDUAL ? SMP_F32 : (smp_dtype)l->task->dtype;
}

static void norm_loop(void *context, uint64_t first, uint64_t end)
{
    const smp_work *work = context;
    const smp_cpu *cpu = work->cpu;
    const smp_launch *l = work->launch;
    uint64_t n = l->task->dims[1], row = n + l->task->dims[3];
    bool layer = l->task->dims[2] == SMP_NORM_LAYER;
    smp_dtype t = (smp_dtype)l->task->dtype;
    float *scratch = smp_heap_alloc(4 * n, sizeof *scratch);
    const float *w = weights_of(cpu, l->at[1], t, n, scratch);
    const float *b = l->n_operand > 3 ? smp_row(l->at[3], t, 0, n, scratch + n) : NULL;
    double eps = cpu->rank->job->model->norm_eps;

    for (uint64_t i = first; i < end; i++) {
        const float *x = smp_row(l->at[0], residual_dtype(l), i * row, n, scratch + 2 * n);
        float *y = scratch + 3 * n;

        smp_norm_row(y, x, w, b, n, smp_measure(x, n, layer, eps));
        smp_store(l->at[2], t, i * row, y, n);
        copy_tail(l, i, 2, 0);
    }
    free(scratch);
}

void smp_cpu_norm(const smp_cpu *cpu, const smp_launch *l)
{
    smp_work work = { .cpu = cpu, .launch = l };

    smp_pool_run(cpu->pool, l->task->dims[0], SMP_GRAIN / l->task->dims[1] + 1, norm_loop,
                 &work);
}

/* Rows whose parts of the gradients of w and b are summed together: in any number of threads
 * the sums are the same. */
enum { BLOCK = 64 };

/* Blocks of rows; `more` gets of each block the sums of dw and db. */
static void norm_grad_loop(void *context, uint64_t first, uint64_t end)
{
    const smp_work *work = context;
    const smp_cpu *cpu = work->cpu;
    const smp_launch *l = work->launch;
    uint64_t rows = l->task->dims[0], n = l->task->dims[1], row = n + l->task->dims[3];
    bool layer = l->task->dims[2] == SMP_NORM_LAYER, add = l->task->flags & SMP_FLAG_ADD_DX;
    smp_dtype t = (smp_dtype)l->task->dtype;
    float *scratch = smp_heap_alloc(4 * n, sizeof *scratch), *dx = scratch + n;
    const float *w = weights_of(cpu, l->at[2], t, n, scratch);

    for (uint64_t i = first * BLOCK; i < end * BLOCK && i < rows; i++) {
        const float *dy = smp_row(l->at[0], t, i * row, n, scratch + 2 * n);
        const float *x = smp_row(l->at[1], residual_dtype(l), i * row, n, scratch + 3 * n);
        smp_moments m = smp_measure(x, n, layer, cpu->rank->job->model->norm_eps);
        float *dw = (float *)work->more + i / BLOCK * 2 * n;

        smp_norm_row_dx(dx, dy, x, w, n, m,
                        smp_norm_sums_of(dy, x, w, n, layer, m, dw,
                                         l->n_operand > 5 ? dw + n : NULL));
        (add ? smp_store_add : smp_store)(l->at[3], residual_dtype(l), i * row, dx, n);
        copy_tail(l, i, 3, 0);
    }
    free(scratch);
}

void smp_cpu_norm_grad(const smp_cpu *cpu, const smp_launch *l)
{
    uint64_t n = l->task->dims[1], blocks = (l->task->dims[0] + BLOCK - 1) / BLOCK;
    bool add = l->task->flags & SMP_FLAG_ACCUMULATE;
    smp_dtype t2 = (smp_dtype)l->task->dtype2;
    float *sums = smp_heap_alloc((blocks + 1) * 2 * n, sizeof *sums);
    smp_work work = { .cpu = cpu, .launch = l, .more = sums };

    smp_pool_run(cpu->pool, blocks, SMP_GRAIN / (n * BLOCK) + 1, norm_grad_loop, &work);
    for (uint64_t i = 2 * n; i < blocks * 2 * n; i++) {
        sums[i % (2 * n)] += sums[i];
    }
    (add ? smp_store_add : smp_store)(l->at[4], t2, 0, sums, n);
    if (l->n_operand > 5) {
        (add ? smp_store_add : smp_store)(l->at[5], t2, 0, sums + n, n);
    }
    free(sums);
}
