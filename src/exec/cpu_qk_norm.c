/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Norms of q and k: of each head with weights of all heads or of its own, or over all heads,
 * which on several tensor ranks takes sums over them; norms without weights; q by position.
 *
 * q and k of a token are cut into norms: `width` elements with one mean and one root each.
 */
#include "config.h"

#include "exec/cpu.h"

#include "base/arena.h"

#include <math.h>
#include <stdlib.h>

/* What the task's dims say.  A norm over all heads has two norms a token. */
typedef struct form {
    uint64_t tokens, heads, kv, d, copies, ranks;
    uint64_t row, normed;          /* of qkv, of q and k */
    bool layer, own, whole;
    smp_dtype t, t2;
    double eps;
} form;

static form make_form(const smp_cpu *cpu, const smp_launch *l)
{
    const uint64_t *n = l->task->dims;
    form f = { .tokens = n[0], .heads = n[1], .kv = n[2], .d = n[3],
               .copies = n[6] > 0 ? n[6] : 1, .ranks = n[7] > 0 ? n[7] : 1,
               .row = (n[1] + 2 * n[2]) * n[3], .normed = (n[1] + n[2]) * n[3],
               .layer = n[4] == SMP_NORM_LAYER, .own = n[5] == SMP_QK_OWN,
               .whole = n[5] == SMP_QK_WHOLE, .t = (smp_dtype)l->task->dtype,
               .t2 = (smp_dtype)l->task->dtype2, .eps = cpu->rank->job->model->norm_eps };

    return f;
}

/* One norm of a token: elements first .. first + width of q and k, with weights from `w` on
 * of q's or k's. */
typedef struct piece { uint64_t first, width, w; int of; } piece;

static uint64_t n_piece(const form *f)
{
    return f->whole ? 2 : f->heads + f->kv;
}

static piece piece_at(const form *f, uint64_t i)
{
    uint64_t head = i < f->heads ? i : i - f->heads;

    if (f->whole) {
        return (piece){ i * f->heads * f->d, (i == 0 ? f->heads : f->kv) * f->d, 0, (int)i };
    }
    return (piece){ i * f->d, f->d, f->own ? head * f->d : 0, i >= f->heads };
}

/* Elements of the weights of q (0) and k (1). */
static uint64_t weights_of(const form *f, int of)
{
    uint64_t heads = of == 0 ? f->heads : f->kv;

    return f->own || f->whole ? heads * f->d : f->d;
}

/* Weights of q and k side by side, as they multiply; `most` elements each. */
static void load_weights(const smp_cpu *cpu, const form *f, const void *const at[2], float *to,
                         uint64_t most, bool offset)
{
    float add = offset ? (float)cpu->rank->job->model->norm_offset : 0.0f;

    for (int of = 0; of < 2; of++) {
        float *w = to + (uint64_t)of * most;

        smp_load(w, at[of], f->t, 0, weights_of(f, of));
        for (uint64_t i = 0; i < weights_of(f, of); i++) {
            w[i] += add;
        }
    }
}

/* Elements of a norm over all tensor ranks, each counted once. */
static double size_of(const form *f, piece p)
{
    return (double)(p.width * f->ranks) / (double)(p.of == 1 ? f->copies : 1);
}

static smp_moments moments_of(const form *f, piece p, const float *x, const float *stats,
                              uint64_t token)
{
    if (!stats) {
        return smp_measure(x, p.width, f->layer, f->eps);
    }
    return (smp_moments){
        0, (float)(1 / sqrt((double)stats[2 * token + (uint64_t)p.of] / size_of(f, p)
                            + f->eps))
    };
}

void smp_cpu_qk_norm(const smp_cpu *cpu, const smp_launch *l)
{
    form f = make_form(cpu, l);
    const float *stats = f.whole && f.ranks > 1 ? l->at[4] : NULL;
    uint32_t bias = stats ? 5 : 4;
    bool biased = l->n_operand > bias;
    uint64_t most = f.normed;
    float *scratch = smp_heap_alloc(6 * most, sizeof *scratch), *b = scratch + 2 * most;
    float *raw = scratch + 4 * most, *y = raw + most;

    load_weights(cpu, &f, (const void *const[]){ l->at[1], l->at[2] }, scratch, most, true);
    if (biased) {
        load_weights(cpu, &f, (const void *const[]){ l->at[bias], l->at[bias + 1] }, b, most,
                     false);
    }
    for (uint64_t t = 0; t < f.tokens; t++) {
        smp_load(raw, l->at[0], f.t, t * f.row, f.normed);
        smp_store(l->at[3], f.t, t * f.normed, raw, f.normed);
        for (uint64_t i = 0; i < n_piece(&f); i++) {
            piece p = piece_at(&f, i);
            uint64_t w = (uint64_t)p.of * most + p.w;

            smp_norm_row(y + p.first, raw + p.first, scratch + w, biased ? b + w : NULL,
                         p.width, moments_of(&f, p, raw + p.first, stats, t));
        }
        smp_store(l->at[0], f.t, t * f.row, y, f.normed);
    }
    free(scratch);
}

static void store_grads(const smp_launch *l, const form *f, uint32_t operand, const float *from,
                        uint64_t most)
{
    bool add = l->task->flags & SMP_FLAG_ACCUMULATE;

    for (int of = 0; of < 2; of++) {
        (add ? smp_store_add : smp_store)(l->at[operand + (uint32_t)of], f->t2, 0,
                                          from + (uint64_t)of * most, weights_of(f, of));
    }
}

void smp_cpu_qk_norm_grad(const smp_cpu *cpu, const smp_launch *l)
{
    form f = make_form(cpu, l);
    bool summed = f.whole && f.ranks > 1;
    const float *stats = summed ? l->at[6] : NULL, *dots = summed ? l->at[7] : NULL;
    uint32_t bias = summed ? 8 : 6;
    uint64_t most = f.normed;
    float *scratch = smp_heap_alloc(9 * most, sizeof *scratch), *dw = scratch + 2 * most;
    float *db = scratch + 4 * most, *dx = scratch + 6 * most;

    load_weights(cpu, &f, (const void *const[]){ l->at[2], l->at[3] }, scratch, most, true);
    for (uint64_t t = 0; t < f.tokens; t++) {
        const float *dy = smp_row(l->at[0], f.t, t * f.row, f.normed, dx + most);
        const float *raw = smp_row(l->at[1], f.t, t * f.normed, f.normed, dx + 2 * most);

        for (uint64_t i = 0; i < n_piece(&f); i++) {
            piece p = piece_at(&f, i);
            uint64_t w = (uint64_t)p.of * most + p.w;
            smp_norm_sums sums = smp_norm_sums_of(dy + p.first, raw + p.first, scratch + w,
                                                  p.width, f.layer,
                                                  moments_of(&f, p, raw + p.first, stats, t),
                                                  dw + w, l->n_operand > bias ? db + w : NULL);

            if (dots) {
                sums.dot = (float)((double)dots[2 * t + (uint64_t)p.of] / size_of(&f, p));
            }
            smp_norm_row_dx(dx + p.first, dy + p.first, raw + p.first, scratch + w, p.width,
                            moments_of(&f, p, raw + p.first, stats, t), sums);
        }
        smp_store(l->at[0], f.t, t * f.row, dx, f.normed);
    }
    store_grads(l, &f, 4, dw, most);
    if (l->n_operand > bias) {
        store_grads(l, &f, bias, db, most);
    }
    free(scratch);
}

/* ---- sums over tensor ranks ---- */

void smp_cpu_qk_stats(const smp_cpu *cpu, const smp_launch *l)
{
    form f = make_form(cpu, l);
    float *stats = l->at[1], *scratch = smp_heap_alloc(f.normed, sizeof *scratch);

    for (uint64_t t = 0; t < f.tokens; t++) {
        const float *x = smp_row(l->at[0], f.t, t * f.row, f.normed, scratch);

        for (uint64_t i = 0; i < 2; i++) {
            piece p = piece_at(&f, i);

            stats[2 * t + i] = (float)(smp_dot(x + p.first, x + p.first, p.width)
                                       / (double)(i == 1 ? f.copies : 1));
        }
    }
    free(scratch);
}

void smp_cpu_qk_dots(const smp_cpu *cpu, const smp_launch *l)
{
    form f = make_form(cpu, l);
    uint64_t most = f.normed;
    float *scratch = smp_heap_alloc(5 * most, sizeof *scratch), *unused = scratch + 4 * most;
    float *dots = l->at[5];

    load_weights(cpu, &f, (const void *const[]){ l->at[3], l->at[4] }, scratch, most, true);
    for (uint64_t t = 0; t < f.tokens; t++) {
        const float *dy = smp_row(l->at[0], f.t, t * f.row, f.normed, scratch + 2 * most);
        const float *raw = smp_row(l->at[1], f.t, t * f.normed, f.normed, scratch + 3 * most);

        for (uint64_t i = 0; i < 2; i++) {
            piece p = piece_at(&f, i);
            smp_norm_sums sums = smp_norm_sums_of(dy + p.first, raw + p.first,
                                                  scratch + i * most, p.width, false,
                                                  moments_of(&f, p, raw + p.first, l->at[2], t),
                                                  unused, NULL);

            dots[2 * t + i] = sums.dot * (float)p.width / (float)(i == 1 ? f.copies : 1);
        }
    }
    free(scratch);
}

/* ---- without weights ---- */

/* y = x rstd of each head, in place; rstd is kept. */
void smp_cpu_qk_rms(const smp_cpu *cpu, const smp_launch *l)
{
    form f = make_form(cpu, l);
    uint64_t heads = f.heads + f.kv;
    float *rstd = l->at[1], *x = smp_heap_alloc(f.d, sizeof *x);

    for (uint64_t i = 0; i < f.tokens * heads; i++) {
        uint64_t at = i / heads * f.row + i % heads * f.d;

        smp_load(x, l->at[0], f.t, at, f.d);
        rstd[i] = smp_measure(x, f.d, false, f.eps).rstd;
        for (uint64_t j = 0; j < f.d; j++) {
            x[j] *= rstd[i];
        }
        smp_store(l->at[0], f.t, at, x, f.d);
    }
    free(x);
}

/* dx = rstd (dy - y mean(y dy)): of y = x rstd, where rstd = 1 / sqrt(mean(x^2) + eps) has the
 * gradient -x rstd^3 / n. */
void smp_cpu_qk_rms_grad(const smp_cpu *cpu, const smp_launch *l)
{
    form f = make_form(cpu, l);
    uint64_t heads = f.heads + f.kv;
    const float *rstd = l->at[2];
    float *dy = smp_heap_alloc(2 * f.d, sizeof *dy);

    for (uint64_t i = 0; i < f.tokens * heads; i++) {
        uint64_t at = i / heads * f.row + i % heads * f.d;
        const float *y = smp_row(l->at[1], f.t, at, f.d, dy + f.d);
        float mean;

        smp_load(dy, l->at[0], f.t, at, f.d);
        mean = (float)(smp_dot(y, dy, f.d) / (double)f.d);
        for (uint64_t j = 0; j < f.d; j++) {
            dy[j] = rstd[i] * (dy[j] - y[j] * mean);
        }
        smp_store(l->at[0], f.t, at, dy, f.d);
    }
    free(dy);
}

/* ---- temperature ---- */

void smp_cpu_temper(const smp_cpu *cpu, const smp_launch *l)
{
    const smp_attention *a = &l->block->attention;
    form f = make_form(cpu, l);
    uint64_t seq = l->task->dims[4], n = f.heads * f.d;
    float *q = smp_heap_alloc(n, sizeof *q);

    for (uint64_t t = 0; t < f.tokens; t++) {
        uint64_t position = t % seq - smp_begin_of(cpu, l, t);
        uint64_t steps = (position + 1) / a->temperature_floor;
        float factor = (float)(1 + a->temperature * log1p((double)steps));

        if (steps > 0) {
            smp_load(q, l->at[0], f.t, t * f.row, n);
            for (uint64_t j = 0; j < n; j++) {
                q[j] *= factor;
            }
            smp_store(l->at[0], f.t, t * f.row, q, n);
        }
    }
    free(q);
}
