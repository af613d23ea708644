/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of tokens at experts: copies by expert, sums back, products of each expert.
 *
 * A row's place is that of its expert plus the number of earlier pairs (token, chosen) of the
 * same expert, so every rank that has the choice finds the same places.  Rows beyond those
 * that were routed are never read for a result.
 */
#include "config.h"

#include "exec/cpu_rows.h"

#include "base/arena.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- places ---- */

smp_row_plan smp_rows_plan(const smp_cpu *cpu, const smp_launch *l, uint32_t operand)
{
    uint64_t n = l->block->moe.experts;
    uint64_t lines = l->bytes[operand] / (n * sizeof(int32_t));
    smp_row_plan plan = { .experts = n, .own = n, .counts = l->at[operand] };

    if (lines > 1) {
        plan.parts = lines - 2;
        plan.own = n / cpu->rank->expert;
        plan.first = cpu->rank->expert_rank * plan.own;
    }
    return plan;
}

smp_row_range smp_rows_of(const smp_row_plan *plan, uint64_t own_expert)
{
    const int32_t *total = plan->counts + plan->parts * plan->experts;
    smp_row_range range = { 0, (uint64_t)total[own_expert] };

    if (plan->parts > 0) {
        range.first = (uint64_t)total[plan->experts + own_expert];
        return range;
    }
    for (uint64_t e = 0; e < own_expert; e++) {
        range.first += (uint64_t)total[e];
    }
    return range;
}

/* Goes through the pairs of all tokens in order. */
typedef struct cursor {
    smp_row_plan plan;
    uint64_t pairs, per_part;      /* of all tokens, of those of one part */
    uint64_t part;
    uint64_t *next;                /* place of the next row of each own expert */
    uint64_t *left;                /* rows of this part that each may still have */
} cursor;

static void begin_part(cursor *c)
{
    for (uint64_t e = 0; e < c->plan.own; e++) {
        c->left[e] = (uint64_t)c->plan.counts[c->part * c->plan.experts + c->plan.first + e];
    }
}

static cursor make_cursor(const smp_cpu *cpu, const smp_launch *l, uint32_t operand)
{
    cursor c = { .plan = smp_rows_plan(cpu, l, operand),
                 .pairs = l->task->dims[0] * l->task->dims[2] };

    c.per_part = c.plan.parts > 0 ? c.pairs / c.plan.parts : c.pairs;
    c.next = smp_heap_alloc(2 * c.plan.own, sizeof *c.next);
    c.left = c.next + c.plan.own;
    for (uint64_t e = 0; e < c.plan.own; e++) {
        c.next[e] = smp_rows_of(&c.plan, e).first;
    }
    begin_part(&c);
    return c;
}

/* The place of pair i, UINT64_MAX: it has no row here.  To be asked for in order. */
static uint64_t next_place(cursor *c, uint64_t i, smp_choice choice)
{
    uint64_t e = (uint64_t)(int64_t)choice.expert - c->plan.first;

    if (i / c->per_part != c->part) {
        c->part = i / c->per_part;
        begin_part(c);
    }
    if (choice.expert < 0 || e >= c->plan.own || c->left[e] == 0) {
        return UINT64_MAX;
    }
    c->left[e]--;
    return c->next[e]++;
}

static void *row_at(void *data, smp_dtype t, uint64_t row, uint64_t width)
{
    return (char *)data + row * width * smp_dtype_bytes(t);
}

/* Rows that padding leaves empty are zero. */
static void clear_rows(const smp_cpu *cpu, const smp_launch *l, uint32_t plan_operand,
                       uint32_t rows_operand)
{
    smp_row_plan plan = smp_rows_plan(cpu, l, plan_operand);
    smp_row_range last = smp_rows_of(&plan, plan.own - 1);

    memset(l->at[rows_operand], 0,
           (last.first + last.n) * l->task->dims[1]
               * smp_dtype_bytes((smp_dtype)l->task->dtype));
}

/* ---- permutations ---- */

void smp_cpu_permute(const smp_cpu *cpu, const smp_launch *l)
{
    uint64_t hidden = l->task->dims[1], top_k = l->task->dims[2];
    smp_dtype t = (smp_dtype)l->task->dtype;
    const smp_choice *choice = l->at[1];
    float *scratch = smp_heap_alloc(hidden, sizeof *scratch);
    cursor c = make_cursor(cpu, l, 2);

    clear_rows(cpu, l, 2, 3);
    for (uint64_t i = 0; i < c.pairs; i++) {
        uint64_t row = next_place(&c, i, choice[i]);

        if (row != UINT64_MAX && !l->task->dims[5]) {
            memcpy(row_at(l->at[3], t, row, hidden), row_at(l->at[0], t, i / top_k, hidden),
                   hidden * smp_dtype_bytes(t));
        } else if (row != UINT64_MAX) {
            smp_load(scratch, l->at[0], t, i / top_k * hidden, hidden);
            for (uint64_t j = 0; j < hidden; j++) {
                scratch[j] *= choice[i].weight;
            }
            smp_store(l->at[3], t, row * hidden, scratch, hidden);
        }
    }
    free(c.next);
    free(scratch);
}

/* Where rows have weights: the gradient of a pair's is that of its row times the token. */
static float weight_grad(const smp_launch *l, const float *drow, uint64_t token,
                         float *scratch)
{
    uint64_t hidden = l->task->dims[1];
    const float *x = smp_row(l->at[4], (smp_dtype)l->task->dtype, token * hidden, hidden,
                             scratch);

    return (float)smp_dot(drow, x, hidden);
}

void smp_cpu_permute_grad(const smp_cpu *cpu, const smp_launch *l)
{
    uint64_t hidden = l->task->dims[1], top_k = l->task->dims[2];
    smp_dtype t = (smp_dtype)l->task->dtype;
    bool add = l->task->flags & SMP_FLAG_ACCUMULATE;
    const smp_choice *choice = l->at[1];
    float *sum = smp_heap_alloc(3 * hidden, sizeof *sum), *scratch = sum + hidden;
    float *dchoice = l->task->dims[5] ? l->at[5] : NULL;
    cursor c = make_cursor(cpu, l, 2);

    for (uint64_t i = 0; i < c.pairs; i++) {
        uint64_t row = next_place(&c, i, choice[i]);

        if (i % top_k == 0) {
            memset(sum, 0, hidden * sizeof *sum);
        }
        if (row != UINT64_MAX) {
            const float *d = smp_row(l->at[0], t, row * hidden, hidden, scratch);
            float weight = dchoice ? choice[i].weight : 1.0f;

            for (uint64_t j = 0; j < hidden; j++) {
                sum[j] += weight * d[j];
            }
            if (dchoice) {
                dchoice[i] = weight_grad(l, d, i / top_k, scratch + hidden);
            }
        } else if (dchoice) {
            dchoice[i] = 0;
        }
        if (i % top_k == top_k - 1) {
            (add ? smp_store_add : smp_store)(l->at[3], t, i / top_k * hidden, sum, hidden);
        }
    }
    free(c.next);
    free(sum);
}

/* Rows lie by part and expert in the buffers of tensor ranks, `bound` rows each, or by expert
 * and part without gaps. */
void smp_cpu_sort_rows(const smp_cpu *cpu, const smp_launch *l)
{
    const smp_rank *rank = cpu->rank;
    uint64_t hidden = l->task->dims[2], buffers = rank->sequence ? rank->tensor : 1;
    uint64_t bound = l->task->dims[0] / buffers, bytes;
    smp_row_plan plan = smp_rows_plan(cpu, l, 1);
    uint64_t each = plan.parts / buffers, from = 0;
    smp_dtype t = (smp_dtype)l->task->dtype;
    uint64_t *next = smp_heap_alloc(plan.own, sizeof *next);

    for (uint64_t e = 0; e < plan.own; e++) {
        next[e] = smp_rows_of(&plan, e).first;
    }
    for (uint64_t p = 0; p < plan.parts; p++) {
        from = p % each == 0 ? p / each * bound : from;
        for (uint64_t e = 0; e < plan.own; e++) {
            uint64_t n = (uint64_t)plan.counts[p * plan.experts + plan.first + e];
            uint64_t x = l->task->dims[3] ? next[e] : from, y = l->task->dims[3] ? from
                                                                                : next[e];

            bytes = n * hidden * smp_dtype_bytes(t);
            memcpy(row_at(l->at[2], t, y, hidden), row_at(l->at[0], t, x, hidden), bytes);
            from += n;
            next[e] += n;
        }
    }
    free(next);
}

/* ---- weighted sums ---- */

void smp_cpu_combine(const smp_cpu *cpu, const smp_launch *l)
{
    uint64_t hidden = l->task->dims[1], top_k = l->task->dims[2];
    smp_dtype t = (smp_dtype)l->task->dtype;
    const smp_choice *choice = l->at[1];
    float *sum = smp_heap_alloc(2 * hidden, sizeof *sum), *scratch = sum + hidden;
    cursor c = make_cursor(cpu, l, 2);

    for (uint64_t i = 0; i < c.pairs; i++) {
        uint64_t row = next_place(&c, i, choice[i]);

        if (i % top_k == 0) {
            memset(sum, 0, hidden * sizeof *sum);
        }
        if (row != UINT64_MAX) {
            const float *x = smp_row(l->at[0], t, row * hidden, hidden, scratch);
            float weight = l->task->dims[5] ? 1.0f : choice[i].weight;

            for (uint64_t j = 0; j < hidden; j++) {
                sum[j] += weight * x[j];
            }
        }
        if (i % top_k == top_k - 1) {
            smp_store(l->at[3], t, i / top_k * hidden, sum, hidden);
        }
    }
    free(c.next);
    free(sum);
}

void smp_cpu_combine_grad(const smp_cpu *cpu, const smp_launch *l)
{
    uint64_t hidden = l->task->dims[1], top_k = l->task->dims[2];
    smp_dtype t = (smp_dtype)l->task->dtype;
    const smp_choice *choice = l->at[2];
    float *dchoice = l->at[5], *scratch = smp_heap_alloc(3 * hidden, sizeof *scratch);
    float *d = scratch + 2 * hidden;
    cursor c = make_cursor(cpu, l, 3);

    clear_rows(cpu, l, 3, 4);
    for (uint64_t i = 0; i < c.pairs; i++) {
        uint64_t row = next_place(&c, i, choice[i]);
        const float *dy, *x;

        dchoice[i] = 0;
        if (row == UINT64_MAX) {
            continue;
        }
        dy = smp_row(l->at[0], t, i / top_k * hidden, hidden, scratch);
        x = smp_row(l->at[1], t, row * hidden, hidden, scratch + hidden);
        dchoice[i] = (float)smp_dot(dy, x, hidden);
        for (uint64_t j = 0; j < hidden; j++) {
            d[j] = choice[i].weight * dy[j];
        }
        smp_store(l->at[4], t, row * hidden, d, hidden);
    }
    free(c.next);
    free(scratch);
}

/* ---- products of each expert ---- */

/* Matrices of `n / n_weight` rows for each expert, one parameter after the other (gate and up
 * are two): matrix i of expert e. */
typedef struct grouped {
    smp_row_plan plan;
    uint64_t n, k, experts, n_weight, rows;
} grouped;

static grouped make_grouped(const smp_cpu *cpu, const smp_launch *l, uint32_t plan_operand,
                            bool dx)
{
    const uint64_t *d = l->task->dims;
    grouped g = { .plan = smp_rows_plan(cpu, l, plan_operand), .n = dx ? d[3] : d[2],
                  .k = dx ? d[2] : d[3], .experts = d[4], .n_weight = d[6] };

    g.rows = g.n / g.n_weight;
    return g;
}

static smp_matrix part(const void *data, smp_dtype t, uint64_t first, uint64_t ld)
{
    return (smp_matrix){ (const char *)data + first * smp_dtype_bytes(t), t, ld };
}

static uint64_t weight_at(const grouped *g, uint64_t i, uint64_t e)
{
    return (i * g->experts + e) * g->rows * g->k;
}

/* Each of the ranks whose results are summed adds its part of the bias. */
static void add_expert_bias(const smp_launch *l, const grouped *g, uint64_t i, uint64_t e,
                            smp_row_range range)
{
    smp_dtype t = (smp_dtype)l->task->dtype;
    float *scratch = smp_heap_alloc(g->rows, sizeof *scratch);

    smp_load(scratch, l->at[4], t, (i * g->experts + e) * g->rows, g->rows);
    for (uint64_t j = 0; j < g->rows; j++) {
        scratch[j] /= (float)l->task->dims[7];
    }
    for (uint64_t r = 0; r < range.n; r++) {
        smp_store_add(l->at[3], t, (range.first + r) * g->n + i * g->rows, scratch, g->rows);
    }
    free(scratch);
}

void smp_cpu_grouped_matmul(const smp_cpu *cpu, const smp_launch *l)
{
    grouped g = make_grouped(cpu, l, 1, false);
    smp_dtype t = (smp_dtype)l->task->dtype;

    for (uint64_t e = 0; e < g.experts; e++) {
        smp_row_range range = smp_rows_of(&g.plan, e);

        for (uint64_t i = 0; i < g.n_weight && range.n > 0; i++) {
            smp_product(cpu->pool, false, true, range.n, g.rows, g.k, 1.0f,
                        part(l->at[0], t, range.first * g.k, g.k),
                        part(l->at[2], t, weight_at(&g, i, e), g.k), false,
                        (char *)row_at(l->at[3], t, range.first, g.n)
                            + i * g.rows * smp_dtype_bytes(t),
                        t, g.n);
            if (l->n_operand > 4) {
                add_expert_bias(l, &g, i, e, range);
            }
        }
    }
}

void smp_cpu_grouped_matmul_dx(const smp_cpu *cpu, const smp_launch *l)
{
    grouped g = make_grouped(cpu, l, 1, true);
    smp_dtype t = (smp_dtype)l->task->dtype;

    for (uint64_t e = 0; e < g.experts; e++) {
        smp_row_range range = smp_rows_of(&g.plan, e);

        for (uint64_t i = 0; i < g.n_weight && range.n > 0; i++) {
            smp_product(cpu->pool, false, false, range.n, g.k, g.rows, 1.0f,
                        part(l->at[0], t, range.first * g.n + i * g.rows, g.n),
                        part(l->at[2], t, weight_at(&g, i, e), g.k), i > 0,
                        row_at(l->at[3], t, range.first, g.k), t, g.k);
        }
    }
}

/* Sums of the columns of an expert's rows. */
static void expert_bias_grad(const smp_launch *l, const grouped *g, uint64_t e,
                             smp_row_range range, float factor)
{
    smp_dtype t = (smp_dtype)l->task->dtype, t2 = (smp_dtype)l->task->dtype2;
    bool add = l->task->flags & SMP_FLAG_ACCUMULATE;
    float *sum = smp_heap_alloc(2 * g->n, sizeof *sum), *scratch = sum + g->n;

    for (uint64_t r = 0; r < range.n; r++) {
        const float *dy = smp_row(l->at[0], t, (range.first + r) * g->n, g->n, scratch);

        for (uint64_t j = 0; j < g->n; j++) {
            sum[j] += factor * dy[j];
        }
    }
    for (uint64_t i = 0; i < g->n_weight; i++) {
        (add ? smp_store_add : smp_store)(l->at[4], t2, (i * g->experts + e) * g->rows,
                                          sum + i * g->rows, g->rows);
    }
    free(sum);
}

void smp_cpu_grouped_matmul_dw(const smp_cpu *cpu, const smp_launch *l)
{
    grouped g = make_grouped(cpu, l, 2, false);
    smp_dtype t = (smp_dtype)l->task->dtype, t2 = (smp_dtype)l->task->dtype2;
    bool add = l->task->flags & SMP_FLAG_ACCUMULATE;
    float factor = 1.0f / (float)l->task->dims[5];

    for (uint64_t e = 0; e < g.experts; e++) {
        smp_row_range range = smp_rows_of(&g.plan, e);

        for (uint64_t i = 0; i < g.n_weight; i++) {
            char *dw = (char *)l->at[3] + weight_at(&g, i, e) * smp_dtype_bytes(t2);

            if (range.n > 0) {
                smp_product(cpu->pool, true, false, g.rows, g.k, range.n, factor,
                            part(l->at[0], t, range.first * g.n + i * g.rows, g.n),
                            part(l->at[1], t, range.first * g.k, g.k), add, dw, t2, g.k);
            } else if (!add) { /* an expert without rows */
                memset(dw, 0, g.rows * g.k * smp_dtype_bytes(t2));
            }
        }
        if (l->n_operand > 4) {
            expert_bias_grad(l, &g, e, range, factor / (float)l->task->dims[7]);
        }
    }
}

/* ---- rows behind a gate ---- */

static float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

void smp_cpu_gate_rows(const smp_cpu *cpu, const smp_launch *l)
{
    uint64_t rows = l->task->dims[0], n = l->task->dims[1];
    smp_dtype t = (smp_dtype)l->task->dtype;
    float *y = smp_heap_alloc(n, sizeof *y), gate;

    (void)cpu;
    for (uint64_t i = 0; i < rows; i++) {
        smp_load(&gate, l->at[0], t, i, 1);
        smp_load(y, l->at[1], t, i * n, n);
        for (uint64_t j = 0; j < n; j++) {
            y[j] *= sigmoid(gate);
        }
        smp_store(l->at[2], t, i * n, y, n);
    }
    free(y);
}

void smp_cpu_gate_rows_grad(const smp_cpu *cpu, const smp_launch *l)
{
    uint64_t rows = l->task->dims[0], n = l->task->dims[1];
    smp_dtype t = (smp_dtype)l->task->dtype;
    float *scratch = smp_heap_alloc(3 * n, sizeof *scratch), *dx = scratch + 2 * n;

    (void)cpu;
    for (uint64_t i = 0; i < rows; i++) {
        const float *dy = smp_row(l->at[0], t, i * n, n, scratch);
        const float *x = smp_row(l->at[2], t, i * n, n, scratch + n);
        float gate, s;

        smp_load(&gate, l->at[1], t, i, 1);
        s = sigmoid(gate);
        gate = s * (1.0f - s) * (float)smp_dot(dy, x, n);
        smp_store(l->at[3], t, i, &gate, 1);
        for (uint64_t j = 0; j < n; j++) {
            dx[j] = s * dy[j];
        }
        smp_store(l->at[4], t, i * n, dx, n);
    }
    free(scratch);
}
