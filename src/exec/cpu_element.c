/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations on each element alone: activations, dropout, sums, copies, casts.
 */
#include "config.h"

#include "exec/cpu.h"

#include "base/numeric.h"

#include <math.h>
#include <string.h>

enum { CHUNK = 1024 };

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Chunks of the task's elements over the threads. */
static void share_chunks(const smp_cpu *cpu, const smp_launch *l, smp_loop *run)
{
    smp_work work = { .cpu = cpu, .launch = l };

    smp_pool_run(cpu->pool, (l->task->dims[0] + CHUNK - 1) / CHUNK, SMP_GRAIN / CHUNK, run,
                 &work);
}

/* Rows of the task over the threads. */
static void share_rows(const smp_cpu *cpu, const smp_launch *l, uint64_t width, smp_loop *run)
{
    smp_work work = { .cpu = cpu, .launch = l };

    smp_pool_run(cpu->pool, l->task->dims[0], SMP_GRAIN / width + 1, run, &work);
}

/* ---- activations ---- */

static float sigmoid(float x)
{
    return 1.0f / (1.0f + smp_expf(-x));
}

static float tanh_of(float x)
{
    return 1.0f - 2.0f / (1.0f + smp_expf(2.0f * x));
}

#define GELU_A 0.79788456f /* sqrt(2 / pi) */
#define GELU_B 0.044715f   /* [Hendrycks and Gimpel 2016] */
#define SWIGLU_LIMIT 7.0f  /* gpt_oss's swiglu_limit */

SMP_WIDE static void activate(float *y, const float *x, uint64_t n, smp_activation kind)
{
    switch (kind) {
    case SMP_ACT_SILU:
        for (uint64_t i = 0; i < n; i++) {
            y[i] = x[i] * sigmoid(x[i]);
        }
        break;
    case SMP_ACT_GELU:
        for (uint64_t i = 0; i < n; i++) {
            y[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f));
        }
        break;
    case SMP_ACT_GELU_TANH:
        for (uint64_t i = 0; i < n; i++) {
            float u = GELU_A * (x[i] + GELU_B * x[i] * x[i] * x[i]);

            y[i] = 0.5f * x[i] * (1.0f + tanh_of(u));
        }
        break;
    case SMP_ACT_RELU:
        for (uint64_t i = 0; i < n; i++) {
            y[i] = x[i] > 0.0f ? x[i] : 0.0f;
        }
        break;
    case SMP_ACT_QUICK_GELU:
        for (uint64_t i = 0; i < n; i++) {
            y[i] = x[i] * sigmoid(1.702f * x[i]);
        }
        break;
    case SMP_ACT_CLAMPED_SWIGLU: /* of the gate: modeling_gpt_oss.py */
        for (uint64_t i = 0; i < n; i++) {
            float g = x[i] < SWIGLU_LIMIT ? x[i] : SWIGLU_LIMIT;

            y[i] = g * sigmoid(1.702f * g);
        }
        break;
    }
}

/* The derivative at x. */
SMP_WIDE static void slope(float *s, const float *x, uint64_t n, smp_activation kind)
{
    switch (kind) {
    case SMP_ACT_SILU:
        for (uint64_t i = 0; i < n; i++) {
            float g = sigmoid(x[i]);

            s[i] = g * (1.0f + x[i] * (1.0f - g));
        }
        break;
    case SMP_ACT_GELU:
        for (uint64_t i = 0; i < n; i++) {
            s[i] = 0.5f * (1.0f + erff(x[i] * 0.70710678f))
                   + x[i] * 0.39894228f * smp_expf(-0.5f * x[i] * x[i]);
        }
        break;
    case SMP_ACT_GELU_TANH:
        for (uint64_t i = 0; i < n; i++) {
            float t = tanh_of(GELU_A * (x[i] + GELU_B * x[i] * x[i] * x[i]));

            s[i] = 0.5f * (1.0f + t)
                   + 0.5f * x[i] * (1.0f - t * t) * GELU_A
                         * (1.0f + 3.0f * GELU_B * x[i] * x[i]);
        }
        break;
    case SMP_ACT_RELU:
        for (uint64_t i = 0; i < n; i++) {
            s[i] = x[i] > 0.0f ? 1.0f : 0.0f;
        }
        break;
    case SMP_ACT_QUICK_GELU:
        for (uint64_t i = 0; i < n; i++) {
            float g = sigmoid(1.702f * x[i]);

            s[i] = g * (1.0f + 1.702f * x[i] * (1.0f - g));
        }
        break;
    case SMP_ACT_CLAMPED_SWIGLU:
        for (uint64_t i = 0; i < n; i++) {
            float g = sigmoid(1.702f * x[i]);

            s[i] = x[i] < SWIGLU_LIMIT ? g * (1.0f + 1.702f * x[i] * (1.0f - g)) : 0.0f;
        }
        break;
    }
}

static void activation_loop(void *context, uint64_t first, uint64_t end)
{
    const smp_work *w = context;
    const smp_launch *l = w->launch;
    smp_dtype t = (smp_dtype)l->task->dtype;

    for (uint64_t i = first * CHUNK; i < end * CHUNK && i < l->task->dims[0]; i += CHUNK) {
        uint64_t n = least(CHUNK, l->task->dims[0] - i);
        float sx[CHUNK], y[CHUNK];

        activate(y, smp_row(l->at[0], t, i, n, sx), n, (smp_activation)l->task->dims[1]);
        smp_store(l->at[1], t, i, y, n);
    }
}

void smp_cpu_activation(const smp_cpu *cpu, const smp_launch *l)
{
    share_chunks(cpu, l, activation_loop);
}

static void activation_grad_loop(void *context, uint64_t first, uint64_t end)
{
    const smp_work *w = context;
    const smp_launch *l = w->launch;
    smp_dtype t = (smp_dtype)l->task->dtype;

    for (uint64_t i = first * CHUNK; i < end * CHUNK && i < l->task->dims[0]; i += CHUNK) {
        uint64_t n = least(CHUNK, l->task->dims[0] - i);
        float sx[CHUNK], sd[CHUNK], s[CHUNK];
        const float *dy = smp_row(l->at[0], t, i, n, sd);

        slope(s, smp_row(l->at[1], t, i, n, sx), n, (smp_activation)l->task->dims[1]);
        for (uint64_t j = 0; j < n; j++) {
            s[j] *= dy[j];
        }
        smp_store(l->at[2], t, i, s, n);
    }
}

void smp_cpu_activation_grad(const smp_cpu *cpu, const smp_launch *l)
{
    share_chunks(cpu, l, activation_grad_loop);
}

/* What the activated gate is multiplied by: in gpt_oss up in bounds plus 1. */
static const float *shape_up(const smp_launch *l, const float *up, uint64_t n, float *to)
{
    if (l->task->dims[2] != SMP_ACT_CLAMPED_SWIGLU) {
        return up;
    }
    for (uint64_t j = 0; j < n; j++) {
        float x = up[j] < SWIGLU_LIMIT ? up[j] : SWIGLU_LIMIT;

        to[j] = (x > -SWIGLU_LIMIT ? x : -SWIGLU_LIMIT) + 1.0f;
    }
    return to;
}

static void gated_loop(void *context, uint64_t first, uint64_t end)
{
    const smp_work *w = context;
    const smp_launch *l = w->launch;
    uint64_t ffn = l->task->dims[1];
    smp_dtype t = (smp_dtype)l->task->dtype;

    for (uint64_t row = first; row < end; row++) {
        for (uint64_t i = 0; i < ffn; i += CHUNK) {
            uint64_t n = least(CHUNK, ffn - i);
            float sg[CHUNK], su[CHUNK], y[CHUNK];
            const float *up = smp_row(l->at[0], t, (2 * row + 1) * ffn + i, n, su);

            up = shape_up(l, up, n, su);
            activate(y, smp_row(l->at[0], t, 2 * row * ffn + i, n, sg), n,
                     (smp_activation)l->task->dims[2]);
            for (uint64_t j = 0; j < n; j++) {
                y[j] *= up[j];
            }
            smp_store(l->at[1], t, row * ffn + i, y, n);
        }
    }
}

void smp_cpu_gated(const smp_cpu *cpu, const smp_launch *l)
{
    share_rows(cpu, l, l->task->dims[1], gated_loop);
}

/* One chunk of a row: gradients of gate and up. */
static void gated_chunk_grad(const smp_launch *l, uint64_t row, uint64_t i, uint64_t n)
{
    uint64_t ffn = l->task->dims[1], gate0 = 2 * row * ffn + i, up0 = gate0 + ffn;
    smp_dtype t = (smp_dtype)l->task->dtype;
    smp_activation kind = (smp_activation)l->task->dims[2];
    float sg[CHUNK], su[CHUNK], sd[CHUNK], y[CHUNK], s[CHUNK], shaped[CHUNK];
    const float *dy = smp_row(l->at[0], t, row * ffn + i, n, sd);
    const float *gate = smp_row(l->at[1], t, gate0, n, sg);
    const float *raw = smp_row(l->at[1], t, up0, n, su);
    const float *up = shape_up(l, raw, n, shaped);

    activate(y, gate, n, kind);
    slope(s, gate, n, kind);
    for (uint64_t j = 0; j < n; j++) {
        s[j] *= dy[j] * up[j];
        y[j] *= dy[j];
    }
    for (uint64_t j = 0; j < n && kind == SMP_ACT_CLAMPED_SWIGLU; j++) {
        y[j] = fabsf(raw[j]) < SWIGLU_LIMIT ? y[j] : 0.0f;
    }
    smp_store(l->at[2], t, gate0, s, n);
    smp_store(l->at[2], t, up0, y, n);
}

static void gated_grad_loop(void *context, uint64_t first, uint64_t end)
{
    const smp_work *w = context;
    const smp_launch *l = w->launch;
    uint64_t ffn = l->task->dims[1];

    for (uint64_t row = first; row < end; row++) {
        for (uint64_t i = 0; i < ffn; i += CHUNK) {
            gated_chunk_grad(l, row, i, least(CHUNK, ffn - i));
        }
    }
}

void smp_cpu_gated_grad(const smp_cpu *cpu, const smp_launch *l)
{
    share_rows(cpu, l, l->task->dims[1], gated_grad_loop);
}

/* ---- dropout ---- */

/* The global batch is the same set of sequences in every layout; a sequence's place in it is
 * (its number on the data rank) x data ranks + data rank, as the sampler deals them out. */
smp_dice smp_dice_of(const smp_cpu *cpu, const smp_launch *l, uint64_t sample, uint64_t site)
{
    const smp_rank *rank = cpu->rank;
    uint64_t local = l->micro_batch * (uint64_t)rank->job->settings.micro_batch + sample;
    uint64_t place = local * rank->data_ranks + rank->data_rank;
    const uint64_t words[4] = { l->step, place, l->layer, site };
    uint64_t seed = rank->job->settings.random_seed;

    /* SMP's rule: heads are split, and rows with sequence parallelism; where every tensor rank
     * has all of it, all must throw the same. */
    if (rank->job->settings.seed_rule == SMP_SEED_SMP
        && (site == SMP_SITE_PROBABILITIES || rank->sequence)) {
        seed += rank->tensor_rank;
    }
    return (smp_dice){ seed, smp_hash(words, sizeof words, 1) };
}

uint32_t smp_dice_throw(const smp_dice *dice, uint64_t index)
{
    uint32_t out[4];

    smp_random4(dice->seed, dice->high, index >> 2, out);
    return out[index & 3];
}

void smp_dice_throws(const smp_dice *dice, uint64_t first, uint64_t n, uint32_t *out)
{
    uint32_t u[4];

    for (uint64_t i = 0; i < n; i++) {
        if (i == 0 || ((first + i) & 3) == 0) {
            smp_random4(dice->seed, dice->high, (first + i) >> 2, u);
        }
        out[i] = u[(first + i) & 3];
    }
}

/* Elements i .. i + n, which lie in one row and one sequence. */
static void drop_run(const smp_cpu *cpu, const smp_launch *l, uint64_t i, uint64_t n,
                     uint64_t global)
{
    uint64_t stride = l->task->dims[3];
    smp_dice dice = smp_dice_of(cpu, l, global / stride, l->task->dims[5]);
    uint64_t limit = cpu->rank->rows.evaluating ? 0 : l->task->dims[1];
    float scale = (float)(1.0 / (1.0 - (double)limit * 0x1p-32));
    uint8_t *mask = (uint8_t *)l->at[2] + i;
    smp_dtype t = (smp_dtype)l->task->dtype;
    uint32_t throws[CHUNK];
    float sx[CHUNK], y[CHUNK];
    const float *x = smp_row(l->at[0], t, i, n, sx);

    smp_dice_throws(&dice, global % stride, n, throws);
    for (uint64_t j = 0; j < n; j++) {
        mask[j] = throws[j] >= limit;
        y[j] = mask[j] ? x[j] * scale : 0.0f;
    }
    smp_store(l->at[1], t, i, y, n);
}

void smp_cpu_dropout(const smp_cpu *cpu, const smp_launch *l)
{
    uint64_t n = l->task->dims[0], width = l->task->dims[2], stride = l->task->dims[3];

    for (uint64_t i = 0; i < n;) {
        uint64_t global = l->task->dims[4] + i / width * stride + i % width;
        uint64_t run = least(least(CHUNK, n - i),
                             least(width - i % width, stride - global % stride));

        drop_run(cpu, l, i, run, global);
        i += run;
    }
}

static void dropout_grad_loop(void *context, uint64_t first, uint64_t end)
{
    const smp_work *w = context;
    const smp_launch *l = w->launch;
    float scale = (float)(1.0 / (1.0 - (double)l->task->dims[1] * 0x1p-32));
    smp_dtype t = (smp_dtype)l->task->dtype;

    for (uint64_t i = first * CHUNK; i < end * CHUNK && i < l->task->dims[0]; i += CHUNK) {
        uint64_t n = least(CHUNK, l->task->dims[0] - i);
        const uint8_t *mask = (const uint8_t *)l->at[1] + i;
        float sd[CHUNK], dx[CHUNK];
        const float *dy = smp_row(l->at[0], t, i, n, sd);

        for (uint64_t j = 0; j < n; j++) {
            dx[j] = mask[j] ? dy[j] * scale : 0.0f;
        }
        smp_store(l->at[2], t, i, dx, n);
    }
}

void smp_cpu_dropout_grad(const smp_cpu *cpu, const smp_launch *l)
{
    share_chunks(cpu, l, dropout_grad_loop);
}

/* ---- sums and copies ---- */

static void add_loop(void *context, uint64_t first, uint64_t end)
{
    const smp_work *w = context;
    const smp_launch *l = w->launch;
    smp_dtype t = (smp_dtype)l->task->dtype;
    smp_dtype wide = l->task->flags & SMP_FLAG_FP32_RESIDUAL ? SMP_F32 : t;

    for (uint64_t i = first * CHUNK; i < end * CHUNK && i < l->task->dims[0]; i += CHUNK) {
        uint64_t n = least(CHUNK, l->task->dims[0] - i);
        float sa[CHUNK], sb[CHUNK], y[CHUNK];
        const float *a = smp_row(l->at[0], wide, i, n, sa), *b = smp_row(l->at[1], t, i, n, sb);

        for (uint64_t j = 0; j < n; j++) {
            y[j] = a[j] + b[j];
        }
        smp_store(l->at[2], wide, i, y, n);
    }
}

void smp_cpu_add(const smp_cpu *cpu, const smp_launch *l)
{
    share_chunks(cpu, l, add_loop);
}

void smp_cpu_copy(const smp_cpu *cpu, const smp_launch *l)
{
    (void)cpu;
    memcpy(l->at[1], l->at[0],
           l->task->dims[0] * smp_dtype_bytes((smp_dtype)l->task->dtype));
}

void smp_cpu_input(const smp_cpu *cpu, const smp_launch *l)
{
    (void)cpu;
    memcpy(l->at[0], l->host[0], l->host_bytes);
    memcpy((char *)l->at[0] + l->host_bytes, l->host[1], l->host_bytes);
}

/* Types of a conversion. */
typedef struct types { smp_dtype from, to; } types;

static void convert_loop(void *context, uint64_t first, uint64_t end)
{
    const smp_work *w = context;
    const smp_launch *l = w->launch;
    const types *t = w->more;

    for (uint64_t i = first * CHUNK; i < end * CHUNK && i < l->task->dims[0]; i += CHUNK) {
        uint64_t n = least(CHUNK, l->task->dims[0] - i);
        float scratch[CHUNK];
        const float *x = smp_row(l->at[0], t->from, i, n, scratch);

        (l->task->flags & SMP_FLAG_ACCUMULATE ? smp_store_add : smp_store)(l->at[1], t->to, i,
                                                                           x, n);
    }
}

static void convert(const smp_cpu *cpu, const smp_launch *l, smp_dtype from, smp_dtype to)
{
    types t = { from, to };
    smp_work work = { cpu, l, &t };

    smp_pool_run(cpu->pool, (l->task->dims[0] + CHUNK - 1) / CHUNK, SMP_GRAIN / CHUNK,
                 convert_loop, &work);
}

void smp_cpu_accumulate(const smp_cpu *cpu, const smp_launch *l)
{
    convert(cpu, l, (smp_dtype)l->task->dtype, (smp_dtype)l->task->dtype2);
}

void smp_cpu_cast(const smp_cpu *cpu, const smp_launch *l)
{
    convert(cpu, l, (smp_dtype)l->task->dtype2, (smp_dtype)l->task->dtype);
}

/* ---- bounds ---- */

void smp_cpu_clip(const smp_cpu *cpu, const smp_launch *l)
{
    smp_dtype t = (smp_dtype)l->task->dtype;
    float bound = (float)l->block->attention.clip;

    (void)cpu;
    for (uint64_t i = 0; i < l->task->dims[0]; i += CHUNK) {
        uint64_t n = least(CHUNK, l->task->dims[0] - i);
        uint8_t *mask = (uint8_t *)l->at[1] + i;
        float x[CHUNK];

        smp_load(x, l->at[0], t, i, n);
        for (uint64_t j = 0; j < n; j++) {
            mask[j] = fabsf(x[j]) <= bound;
            x[j] = mask[j] ? x[j] : copysignf(bound, x[j]);
        }
        smp_store(l->at[0], t, i, x, n);
    }
}

void smp_cpu_clip_grad(const smp_cpu *cpu, const smp_launch *l)
{
    smp_dtype t = (smp_dtype)l->task->dtype;

    (void)cpu;
    for (uint64_t i = 0; i < l->task->dims[0]; i += CHUNK) {
        uint64_t n = least(CHUNK, l->task->dims[0] - i);
        const uint8_t *mask = (const uint8_t *)l->at[1] + i;
        float dx[CHUNK];

        smp_load(dx, l->at[0], t, i, n);
        for (uint64_t j = 0; j < n; j++) {
            dx[j] = mask[j] ? dx[j] : 0.0f;
        }
        smp_store(l->at[0], t, i, dx, n);
    }
}

void smp_cpu_fill(const smp_cpu *cpu, const smp_launch *l)
{
    (void)cpu;
    memset(l->at[0], 0, l->task->dims[0] * smp_dtype_bytes((smp_dtype)l->task->dtype));
}
