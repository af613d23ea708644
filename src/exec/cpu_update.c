/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a step: gradient norm, scalars of the update, optimizers.
 *
 * Nothing is read back: overflow is a number on the device that selects the old values.
 */
#include "config.h"

#include "exec/cpu.h"

#include "base/arena.h"

#include <math.h>
#include <stdlib.h>

enum { CHUNK = 1024 };

void smp_hyper_init(smp_hyper *hyper)
{
    *hyper = (smp_hyper){ .lr = 6e-4, .min_lr = 6e-5, .schedule = SMP_SCHEDULE_CONSTANT,
                          .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1,
                          .momentum = 0.9, .clip = 1.0,
                          .scaler = smp_scaler_of(SMP_SCALER_TORCH) };
}

/* [torch/amp/grad_scaler.py; smd_model_parallel_pytorch.rst of the SageMaker Python SDK] */
smp_scaler smp_scaler_of(smp_scaler_rule rule)
{
    static const smp_scaler rules[] = {
        { .rule = SMP_SCALER_TORCH, .first = 65536, .least = 0, .window = 2000, .shift = 1 },
        { .rule = SMP_SCALER_SMP, .first = 0x1p32, .least = 1, .window = 1000, .shift = 1 },
    };

    return rules[rule];
}

double smp_hyper_lr(const smp_hyper *h, uint64_t done)
{
    double span, at;

    if (done < h->warmup_steps) {
        return h->lr * (double)(done + 1) / (double)(h->warmup_steps + 1);
    }
    if (h->schedule == SMP_SCHEDULE_CONSTANT || h->total_steps <= h->warmup_steps) {
        return h->lr;
    }
    span = (double)(h->total_steps - h->warmup_steps);
    at = (double)(done - h->warmup_steps) / span;
    at = at > 1 ? 1 : at;
    if (h->schedule == SMP_SCHEDULE_LINEAR) {
        return h->lr + (h->min_lr - h->lr) * at;
    }
    return h->min_lr + (h->lr - h->min_lr) * 0.5 * (1 + cos(3.14159265358979323846 * at));
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The parameter of the unit that holds element `at`; its end is where the next begins. */
static const smp_unit_param *param_at(const smp_unit *unit, uint64_t at)
{
    uint32_t i = 0;

    while (i + 1 < unit->n_param && at >= unit->params[i + 1].offset) {
        i++;
    }
    return &unit->params[i];
}

/* A range of elements of one parameter, inside the range of the task. */
typedef struct piece { const smp_unit_param *param; uint64_t first, n; } piece;

/* The piece at element `done` of the task, at most CHUNK long. */
static piece next_piece(const smp_cpu *cpu, const smp_launch *l, uint64_t done)
{
    const smp_unit *unit = &cpu->rank->program->units[l->task->dims[1]];
    uint64_t at = l->task->dims[2] + done;
    piece p = { .param = param_at(unit, at), .first = done };

    p.n = least(least(p.param->offset + p.param->elems - at, l->task->dims[0] - done), CHUNK);
    return p;
}

/* Elements whose squares are summed together, or that are updated by one thread. */
enum { BLOCK = 64 * CHUNK };

/* Blocks of elements; `more` gets the sum of each. */
static void squares_loop(void *context, uint64_t first, uint64_t end)
{
    const smp_work *w = context;
    const smp_launch *l = w->launch;
    float scratch[CHUNK];

    for (uint64_t i = first * BLOCK; i < end * BLOCK && i < l->task->dims[0];) {
        piece p = next_piece(w->cpu, l, i);
        const float *g;

        p.n = least(p.n, (i / BLOCK + 1) * BLOCK - i);
        g = smp_row(l->at[0], (smp_dtype)l->task->dtype, i, p.n, scratch);
        ((double *)w->more)[i / BLOCK] += smp_dot(g, g, p.n) / p.param->copies;
        i += p.n;
    }
}

static uint64_t blocks_of(const smp_launch *l)
{
    return (l->task->dims[0] + BLOCK - 1) / BLOCK;
}

void smp_cpu_squares(const smp_cpu *cpu, const smp_launch *l)
{
    double *parts = smp_heap_alloc(blocks_of(l), sizeof *parts), sum = 0;
    smp_work work = { .cpu = cpu, .launch = l, .more = parts };
    float *sums = l->at[1];

    smp_pool_run(cpu->pool, blocks_of(l), 1, squares_loop, &work);
    for (uint64_t i = 0; i < blocks_of(l); i++) {
        sum += parts[i];
    }
    free(parts);
    sum *= cpu->rank->program->units[l->task->dims[1]].weight;
    sums[SMP_SUM_SQUARES] += (float)sum;
    sums[SMP_SUM_OVERFLOW] += isfinite(sum) ? 0.0f : 1.0f;
}

static void scale_after_overflow(const smp_scaler *scaler, float *state)
{
    float half = state[SMP_SCALAR_LOSS_SCALE] * 0.5f, least = (float)scaler->least;

    state[SMP_SCALAR_GROWTH] = 0;
    if (scaler->rule == SMP_SCALER_SMP && state[SMP_SCALAR_SHIFT] > 0) {
        state[SMP_SCALAR_SHIFT] -= 1;
        return;
    }
    state[SMP_SCALAR_LOSS_SCALE] = half > least ? half : least;
}

/* SMP v1 counts as DeepSpeed's DynamicLossScaler does, whose names its arguments have: with i
 * steps since the last overflow or the start, the scale doubles where i - 1 is a multiple of
 * the window and not 0. */
static void scale_after_success(const smp_scaler *scaler, float *state)
{
    float extra = scaler->rule == SMP_SCALER_SMP ? 1 : 0, grown;

    if (++state[SMP_SCALAR_GROWTH] < (float)scaler->window + extra) {
        return;
    }
    grown = state[SMP_SCALAR_LOSS_SCALE] * 2.0f;
    state[SMP_SCALAR_LOSS_SCALE] = isfinite(grown) ? grown : state[SMP_SCALAR_LOSS_SCALE];
    state[SMP_SCALAR_GROWTH] = extra;
    state[SMP_SCALAR_SHIFT] = (float)(scaler->shift - 1);
}

static void scale_loss(const smp_hyper *hyper, float *state, bool overflow)
{
    if (hyper->loss_scale > 0) {
        return;
    }
    (overflow ? scale_after_overflow : scale_after_success)(&hyper->scaler, state);
}

/* The clip factor is torch.nn.utils.clip_grad_norm_'s: at most 1, norm + 1e-6 below. */
void smp_cpu_scalars(const smp_cpu *cpu, const smp_launch *l)
{
    const smp_rank *rank = cpu->rank;
    const smp_hyper *hyper = &rank->hyper;
    const float *sums = l->at[0];
    float *state = l->at[1];
    double scale = (double)state[SMP_SCALAR_LOSS_SCALE], clip = 1, steps;
    double squares = (double)sums[SMP_SUM_SQUARES] / rank->copies;
    double norm = sqrt(squares) / scale;
    bool overflow = sums[SMP_SUM_OVERFLOW] > 0 || !isfinite(norm);
    float loss = sums[SMP_SUM_LOSS] / (float)rank->job->world;
    bool skip;

    if (rank->rows.evaluating) { /* nothing but the loss changes */
        state[SMP_SCALAR_SKIP] = 1.0f;
        state[SMP_SCALAR_LOSS] = loss;
        return;
    }
    if (!isfinite(loss)) { /* steps that were begun before the host sees it change nothing */
        state[SMP_SCALAR_HALTED] = 1.0f;
    }
    skip = overflow || sums[SMP_SUM_ROWS] > 0 || state[SMP_SCALAR_HALTED] > 0;
    if (hyper->clip > 0 && hyper->clip < norm + 1e-6) {
        clip = hyper->clip / (norm + 1e-6);
    }
    state[SMP_SCALAR_LR] = (float)smp_hyper_lr(hyper, (uint64_t)state[SMP_SCALAR_STEPS]);
    state[SMP_SCALAR_SKIP] = skip ? 1.0f : 0.0f;
    state[SMP_SCALAR_ROWS] = sums[SMP_SUM_ROWS];
    state[SMP_SCALAR_FACTOR] = (float)(clip / scale);
    state[SMP_SCALAR_STEPS] += skip ? 0.0f : 1.0f;
    steps = (double)state[SMP_SCALAR_STEPS];
    state[SMP_SCALAR_BIAS1] = (float)(1 - pow(hyper->beta1, steps));
    state[SMP_SCALAR_BIAS2] = (float)(1 - pow(hyper->beta2, steps));
    state[SMP_SCALAR_NORM] = (float)norm;
    state[SMP_SCALAR_LOSS] = loss;
    scale_loss(hyper, state, overflow);
}

/* Matrices decay, biases and norms do not. */
static float decay_of(const smp_cpu *cpu, const smp_launch *l, const smp_unit_param *param)
{
    const smp_unit *unit = &cpu->rank->program->units[l->task->dims[1]];
    const smp_param *all = unit->block ? unit->block->params : cpu->rank->job->model->root;

    return all[param->param].n_dim > 1 ? (float)cpu->rank->hyper.weight_decay : 0.0f;
}

typedef struct adam { float factor, decay, b1, b2, eps, keep, rate, root; } adam;

/* [Loshchilov and Hutter 2019, algorithm 2], as torch.optim.AdamW and Adam order it: with the
 * one `decay` is 0, with the other `keep` is 1. */
SMP_WIDE static void adamw_run(float *restrict w, float *restrict m, float *restrict v,
                               const float *restrict g, uint64_t n, adam a)
{
    for (uint64_t i = 0; i < n; i++) {
        float x = g[i] * a.factor + a.decay * w[i];

        m[i] = a.b1 * m[i] + (1.0f - a.b1) * x;
        v[i] = a.b2 * v[i] + (1.0f - a.b2) * x * x;
        w[i] = w[i] * a.keep - a.rate * m[i] / (sqrtf(v[i]) / a.root + a.eps);
    }
}

static void adamw_piece(const smp_cpu *cpu, const smp_launch *l, piece p)
{
    const smp_hyper *h = &cpu->rank->hyper;
    const float *state = l->at[4];
    smp_dtype t = (smp_dtype)l->task->dtype;
    float sw[CHUNK], sm[CHUNK], sv[CHUNK], sg[CHUNK], lr = state[SMP_SCALAR_LR];
    const float *g = smp_row(l->at[1], (smp_dtype)l->task->dtype2, p.first, p.n, sg);
    float decay = decay_of(cpu, l, p.param);
    bool joins = l->task->dims[3] != 0;
    adam a = { state[SMP_SCALAR_FACTOR], joins ? decay : 0, (float)h->beta1, (float)h->beta2,
               (float)h->eps, joins ? 1.0f : 1.0f - lr * decay, lr / state[SMP_SCALAR_BIAS1],
               sqrtf(state[SMP_SCALAR_BIAS2]) };

    if (t == SMP_F32) {
        adamw_run((float *)l->at[0] + p.first, (float *)l->at[2] + p.first,
                  (float *)l->at[3] + p.first, g, p.n, a);
        return;
    }
    smp_load(sw, l->at[0], t, p.first, p.n);
    smp_load(sm, l->at[2], t, p.first, p.n);
    smp_load(sv, l->at[3], t, p.first, p.n);
    adamw_run(sw, sm, sv, g, p.n, a);
    smp_store(l->at[0], t, p.first, sw, p.n);
    smp_store(l->at[2], t, p.first, sm, p.n);
    smp_store(l->at[3], t, p.first, sv, p.n);
}

typedef void piece_function(const smp_cpu *cpu, const smp_launch *launch, piece p);

/* Blocks first .. end - 1, cut where a parameter ends. */
static void for_pieces(const smp_work *w, uint64_t first, uint64_t end, piece_function *update)
{
    uint64_t last = least(end * BLOCK, w->launch->task->dims[0]);

    for (uint64_t i = first * BLOCK; i < last;) {
        piece p = next_piece(w->cpu, w->launch, i);

        p.n = least(p.n, last - i);
        update(w->cpu, w->launch, p);
        i += p.n;
    }
}

static void adamw_loop(void *context, uint64_t first, uint64_t end)
{
    for_pieces(context, first, end, adamw_piece);
}

void smp_cpu_adamw(const smp_cpu *cpu, const smp_launch *l)
{
    smp_work work = { .cpu = cpu, .launch = l };

    if (((const float *)l->at[4])[SMP_SCALAR_SKIP] <= 0) {
        smp_pool_run(cpu->pool, blocks_of(l), 1, adamw_loop, &work);
    }
}

/* As torch.optim.SGD: decay joins the gradient, no dampening. */
static void sgd_piece(const smp_cpu *cpu, const smp_launch *l, piece p)
{
    const float *state = l->at[3];
    smp_dtype t = (smp_dtype)l->task->dtype;
    float sw[CHUNK], sm[CHUNK], sg[CHUNK];
    const float *g = smp_row(l->at[1], (smp_dtype)l->task->dtype2, p.first, p.n, sg);
    float lr = state[SMP_SCALAR_LR], factor = state[SMP_SCALAR_FACTOR];
    float momentum = (float)cpu->rank->hyper.momentum, decay = decay_of(cpu, l, p.param);

    smp_load(sw, l->at[0], t, p.first, p.n);
    smp_load(sm, l->at[2], t, p.first, p.n);
    for (uint64_t i = 0; i < p.n; i++) {
        sm[i] = momentum * sm[i] + g[i] * factor + decay * sw[i];
        sw[i] -= lr * sm[i];
    }
    smp_store(l->at[0], t, p.first, sw, p.n);
    smp_store(l->at[2], t, p.first, sm, p.n);
}

static void sgd_loop(void *context, uint64_t first, uint64_t end)
{
    for_pieces(context, first, end, sgd_piece);
}

void smp_cpu_sgd(const smp_cpu *cpu, const smp_launch *l)
{
    smp_work work = { .cpu = cpu, .launch = l };

    if (((const float *)l->at[3])[SMP_SCALAR_SKIP] <= 0) {
        smp_pool_run(cpu->pool, blocks_of(l), 1, sgd_loop, &work);
    }
}
