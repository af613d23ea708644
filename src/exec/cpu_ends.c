/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ends of the model: embedding, learned positions, the loss and its gradient.
 *
 * The vocabulary is split over the tensor group, where rank r has rows r * vocab .. of it; or
 * each rank has all of it and with sequence parallelism reads it for its own rows.  Ids and
 * targets are int32, all micro-batches one after the other; a target below 0 counts nothing.
 *
 *   loss of a token = log(sum_v exp(x_v)) - x_target;   its gradient: softmax(x) - onehot
 * From each part the maximum, the sum of exponentials below it and the target's logit (or
 * -infinity: the target is elsewhere) are enough.
 */
#include "config.h"

#include "exec/cpu.h"

#include "base/arena.h"
#include "mesh/mesh.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_split(const smp_rank *rank)
{
    return smp_vocab_parts(&rank->job->settings) > 1;
}

static uint64_t vocab0(const smp_cpu *cpu, uint64_t vocab)
{
    return is_split(cpu->rank) ? cpu->rank->tensor_rank * vocab : 0;
}

/* y *= the model's factor of the embedding; most have none. */
static void scale_rows(const smp_cpu *cpu, const smp_launch *l, void *y, uint64_t n)
{
    float scale = (float)cpu->rank->job->model->embedding_scale;
    smp_dtype t = (smp_dtype)l->task->dtype;
    float *row;

    if (!(scale < 1.0f) && !(scale > 1.0f)) {
        return;
    }
    row = smp_heap_alloc(n, sizeof *row);
    smp_load(row, y, t, 0, n);
    for (uint64_t j = 0; j < n; j++) {
        row[j] *= scale;
    }
    smp_store(y, t, 0, row, n);
    free(row);
}

void smp_cpu_embed(const smp_cpu *cpu, const smp_launch *l)
{
    uint64_t tokens = l->task->dims[0], hidden = l->task->dims[1], vocab = l->task->dims[2];
    uint64_t e = smp_dtype_bytes((smp_dtype)l->task->dtype);
    const int32_t *ids = (const int32_t *)l->at[1] + l->task->dims[3];

    for (uint64_t i = 0; i < tokens; i++) {
        uint64_t row = (uint64_t)ids[i] - vocab0(cpu, vocab);
        char *y = (char *)l->at[2] + i * hidden * e;

        if (row < vocab) {
            memcpy(y, (const char *)l->at[0] + row * hidden * e, hidden * e);
            scale_rows(cpu, l, y, hidden);
        } else {
            memset(y, 0, hidden * e);
        }
    }
}

/* A gradient that is written is zero where no row adds to it. */
static void clear_unless_added(const smp_launch *l, int operand)
{
    if (!(l->task->flags & SMP_FLAG_ACCUMULATE)) {
        memset(l->at[operand], 0, l->bytes[operand]);
    }
}

void smp_cpu_embed_grad(const smp_cpu *cpu, const smp_launch *l)
{
    uint64_t tokens = l->task->dims[0], hidden = l->task->dims[1], vocab = l->task->dims[2];
    const int32_t *ids = (const int32_t *)l->at[1] + l->task->dims[3];
    float *scratch = smp_heap_alloc(hidden, sizeof *scratch);
    float scale = (float)cpu->rank->job->model->embedding_scale;

    clear_unless_added(l, 2);
    for (uint64_t i = 0; i < tokens; i++) {
        uint64_t row = (uint64_t)ids[i] - vocab0(cpu, vocab);

        if (row < vocab) {
            smp_load(scratch, l->at[0], (smp_dtype)l->task->dtype, i * hidden, hidden);
            for (uint64_t j = 0; j < hidden; j++) {
                scratch[j] *= scale;
            }
            smp_store_add(l->at[2], (smp_dtype)l->task->dtype2, row * hidden, scratch, hidden);
        }
    }
    free(scratch);
}

void smp_cpu_position(const smp_cpu *cpu, const smp_launch *l)
{
    uint64_t tokens = l->task->dims[0], hidden = l->task->dims[1], seq = l->task->dims[2];
    smp_dtype t = (smp_dtype)l->task->dtype;
    float *scratch = smp_heap_alloc(hidden, sizeof *scratch);

    for (uint64_t i = 0; i < tokens; i++) {
        uint64_t token = l->task->dims[3] + i;
        uint64_t row = token % seq - smp_begin_of(cpu, l, token)
                       + cpu->rank->job->model->first_position;

        smp_store_add(l->at[1], t, i * hidden,
                      smp_row(l->at[0], t, row * hidden, hidden, scratch), hidden);
    }
    free(scratch);
}

void smp_cpu_position_grad(const smp_cpu *cpu, const smp_launch *l)
{
    uint64_t tokens = l->task->dims[0], hidden = l->task->dims[1], seq = l->task->dims[2];
    float *scratch = smp_heap_alloc(hidden, sizeof *scratch);

    clear_unless_added(l, 1);
    for (uint64_t i = 0; i < tokens; i++) {
        uint64_t token = l->task->dims[3] + i;
        uint64_t row = token % seq - smp_begin_of(cpu, l, token)
                       + cpu->rank->job->model->first_position;

        smp_store_add(l->at[1], (smp_dtype)l->task->dtype2, row * hidden,
                      smp_row(l->at[0], (smp_dtype)l->task->dtype, i * hidden, hidden,
                              scratch),
                      hidden);
    }
    free(scratch);
}

/* ---- loss ---- */

/* Target of row i of a chunk.  Under sequence parallelism a chunk is gathered: its rows are a
 * range of each tensor rank's rows, one range after the other. */
static int32_t target_of(const smp_cpu *cpu, const smp_launch *l, uint64_t i)
{
    const smp_rank *rank = cpu->rank;
    uint64_t parts = rank->sequence && is_split(rank) ? rank->tensor : 1;
    uint64_t rows = l->task->dims[0] / parts, first = l->task->dims[2] / parts;
    uint64_t tokens = rank->job->settings.micro_batch * rank->job->batch.seq_len;
    uint64_t token = i / rows * (tokens / parts) + first + i % rows;

    return ((const int32_t *)l->at[1])[token];
}

/* Columns of this rank that are no padding. */
static uint64_t true_columns(const smp_cpu *cpu, const smp_launch *l)
{
    uint64_t vocab = l->task->dims[1], first = vocab0(cpu, vocab), all = l->task->dims[3];

    return first >= all ? 0 : all - first < vocab ? all - first : vocab;
}

SMP_WIDE static float exponential_sum(const float *x, uint64_t n, float max)
{
    enum { PARTS = 16 };
    double part[PARTS] = { 0 }, sum = 0;
    uint64_t i = 0;

    for (; i + PARTS <= n; i += PARTS) {
        for (uint64_t k = 0; k < PARTS; k++) {
            part[k] += (double)smp_expf(x[i + k] - max);
        }
    }
    for (; i < n; i++) {
        sum += (double)smp_expf(x[i] - max);
    }
    for (int k = 0; k < PARTS; k++) {
        sum += part[k];
    }
    return (float)sum;
}

/* x becomes factor e^(x - lse). */
SMP_WIDE static void softmax_row(float *x, uint64_t n, float lse, float factor)
{
    for (uint64_t j = 0; j < n; j++) {
        x[j] = factor * smp_expf(x[j] - lse);
    }
}

/* Nothing is made of the logits. */
static bool plain_logits(const smp_model *model)
{
    return !(model->logit_softcap > 0) && !(model->logit_scale > 1)
           && !(model->logit_scale < 1);
}

/* What the model makes of its logits x: z = scale x, or cap tanh(scale x / cap); `slope`, if
 * asked for, is dz/dx. */
static float shape_logit(const smp_model *model, float x, float *slope_or_null)
{
    float scale = (float)model->logit_scale, cap = (float)model->logit_softcap;
    float bent = cap > 0 ? tanhf(scale * x / cap) : 0.0f;

    if (slope_or_null) {
        *slope_or_null = scale * (1.0f - bent * bent);
    }
    return cap > 0 ? cap * bent : scale * x;
}

static void loss_loop(void *context, uint64_t first, uint64_t end)
{
    const smp_work *w = context;
    const smp_cpu *cpu = w->cpu;
    const smp_launch *l = w->launch;
    uint64_t vocab = l->task->dims[1];
    uint64_t n = true_columns(cpu, l);
    smp_dtype t = (smp_dtype)l->task->dtype;
    bool plain = plain_logits(cpu->rank->job->model);
    float *stats = l->at[2], *scratch = smp_heap_alloc(vocab, sizeof *scratch);

    for (uint64_t i = first; i < end; i++) {
        const float *x = smp_row(l->at[0], t, i * vocab, vocab, scratch);
        uint64_t target = (uint64_t)(int64_t)target_of(cpu, l, i) - vocab0(cpu, vocab);

        for (uint64_t j = 0; j < n && !plain; j++) {
            scratch[j] = shape_logit(cpu->rank->job->model, x[j], NULL);
        }
        x = plain ? x : scratch;
        stats[3 * i] = smp_max(x, n);
        stats[3 * i + 1] = exponential_sum(x, n, stats[3 * i]);
        stats[3 * i + 2] = target < n ? x[target] : -INFINITY;
    }
    free(scratch);
}

/* Rows of logits over the threads. */
static void share_logits(smp_work *work, smp_loop *run)
{
    const uint64_t *d = work->launch->task->dims;

    smp_pool_run(work->cpu->pool, d[0], SMP_GRAIN / d[1] + 1, run, work);
}

void smp_cpu_loss(const smp_cpu *cpu, const smp_launch *l)
{
    smp_work work = { .cpu = cpu, .launch = l };

    share_logits(&work, loss_loop);
}

typedef struct joined { float lse, target; } joined;

/* The parts of one token together. */
static joined join(const float *stats, uint64_t parts, uint64_t tokens, uint64_t i)
{
    joined all = { -INFINITY, -INFINITY };
    double sum = 0;
    float max = -INFINITY;

    for (uint64_t p = 0; p < parts; p++) {
        float m = stats[3 * (p * tokens + i)];

        max = m > max ? m : max;
    }
    for (uint64_t p = 0; p < parts; p++) {
        const float *s = stats + 3 * (p * tokens + i);

        sum += s[0] == -INFINITY ? 0.0 : (double)s[1] * exp((double)(s[0] - max));
        all.target = s[2] > all.target ? s[2] : all.target;
    }
    all.lse = max + (float)log(sum);
    return all;
}

/* Of a token in the loss, whose reductions average over the data ranks: the global batch's mean
 * over the targets that count. */
static double weight_of(const smp_cpu *cpu, const smp_launch *l)
{
    const smp_rank *rank = cpu->rank;

    return rank->rows.targets > 0 ? rank->data_ranks / rank->rows.targets
                                  : 1.0 / (double)l->task->dims[5];
}

/* `more` gets the loss of each token. */
static void loss_grad_loop(void *context, uint64_t first, uint64_t end)
{
    const smp_work *w = context;
    const smp_cpu *cpu = w->cpu;
    const smp_launch *l = w->launch;
    uint64_t tokens = l->task->dims[0], vocab = l->task->dims[1], n = true_columns(cpu, l);
    smp_dtype t = (smp_dtype)l->task->dtype;
    const float *state = l->at[4];
    bool plain = plain_logits(cpu->rank->job->model);
    float *x = smp_heap_alloc(vocab, sizeof *x);
    double *losses = w->more;
    float factor = (float)(weight_of(cpu, l) * (double)state[SMP_SCALAR_LOSS_SCALE]);

    for (uint64_t i = first; i < end; i++) {
        joined all = join(l->at[2], l->task->dims[4], tokens, i);
        int32_t id = target_of(cpu, l, i);
        uint64_t target = (uint64_t)(int64_t)id - vocab0(cpu, vocab);
        float f = id < 0 ? 0.0f : factor;

        smp_load(x, l->at[0], t, i * vocab, vocab);
        if (plain) {
            softmax_row(x, n, all.lse, f);
            if (target < n) {
                x[target] -= f;
            }
        }
        for (uint64_t j = 0; j < n && !plain; j++) {
            float slope, z = shape_logit(cpu->rank->job->model, x[j], &slope);

            x[j] = slope * f * (smp_expf(z - all.lse) - (j == target ? 1.0f : 0.0f));
        }
        for (uint64_t j = n; j < vocab; j++) {
            x[j] = 0.0f;
        }
        smp_store(l->at[0], t, i * vocab, x, vocab);
        losses[i] = id < 0 ? 0.0 : (double)(all.lse - all.target);
    }
    free(x);
}

void smp_cpu_loss_grad(const smp_cpu *cpu, const smp_launch *l)
{
    double *losses = smp_heap_alloc(l->task->dims[0], sizeof *losses), loss = 0;
    smp_work work = { .cpu = cpu, .launch = l, .more = losses };

    share_logits(&work, loss_grad_loop);
    for (uint64_t i = 0; i < l->task->dims[0]; i++) {
        loss += losses[i];
    }
    /* The sum over all ranks is divided by their number. */
    loss *= cpu->rank->sequence && !is_split(cpu->rank) ? cpu->rank->tensor : 1;
    ((float *)l->at[3])[SMP_SUM_LOSS] += (float)(loss * weight_of(cpu, l));
    free(losses);
}
