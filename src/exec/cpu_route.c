/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Choosing experts: scores, the four balancing modes, capacity, gradients; where rows stand.
 *
 *   scores    softmax or sigmoid of the logits; sinkhorn has a softmax for several experts a
 *             token and a sigmoid for one
 *   choice    the top_k largest scores (with the correction, which nothing else sees), where
 *             the model has groups those of the best groups; sinkhorn: of the balanced matrix;
 *             balanced: expert after expert in turn
 *   weights   scores of the chosen, made to sum to 1 where the model says so, times its scale
 * [Megatron-LM, megatron/core/transformer/moe/moe_utils.py and router.py; DeepSeek-V2, 2024,
 * sec. 2.2.2; DeepSeek-V3, 2024, sec. 2.1.2].  A chosen pair is (weight, expert); one that
 * the capacity drops has weight 0 and the complement of its expert.
 */
#include "config.h"

#include "exec/cpu.h"
#include "exec/cpu_rows.h"

#include "base/arena.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Sinkhorn stops at this mean change of the column factors, or after so many rounds: the
 * iteration has no bound of its own. */
#define SINKHORN_TOLERANCE 1e-4
enum { SINKHORN_ROUNDS = 200 };

typedef struct routing {
    const smp_cpu *cpu;
    const smp_launch *launch;
    uint64_t tokens, experts, top_k, groups, chosen_groups, capacity;
    smp_balancing balancing;
    bool sigmoid, normalise, position, pad;
    float scale;
    const float *logits;
} routing;

static routing make_routing(const smp_cpu *cpu, const smp_launch *l, const float *logits)
{
    const uint64_t *d = l->task->dims;
    uint32_t bits = (uint32_t)(d[3] >> 32);
    routing r = { .cpu = cpu, .launch = l, .tokens = d[0], .experts = d[1], .top_k = d[2],
                  .balancing = (smp_balancing)(d[3] & 3), .logits = logits };

    r.sigmoid = (d[3] & SMP_ROUTE_SIGMOID) != 0;
    r.normalise = (d[3] & SMP_ROUTE_NORMALISE) != 0;
    r.position = (d[3] & SMP_ROUTE_POSITION) != 0;
    r.pad = (d[3] & SMP_ROUTE_PAD) != 0;
    memcpy(&r.scale, &bits, sizeof bits);
    if (r.balancing == SMP_BALANCING_SINKHORN) {
        r.sigmoid = r.top_k == 1;
        r.normalise = false;
    }
    return r;
}

static void softmax(const float *x, uint64_t n, float *p)
{
    float max = -INFINITY;
    double sum = 0;

    for (uint64_t e = 0; e < n; e++) {
        max = x[e] > max ? x[e] : max;
    }
    for (uint64_t e = 0; e < n; e++) {
        p[e] = expf(x[e] - max);
        sum += (double)p[e];
    }
    for (uint64_t e = 0; e < n; e++) {
        p[e] = (float)((double)p[e] / sum);
    }
}

static void scores_of(const routing *r, uint64_t token, float *scores)
{
    const float *x = r->logits + token * r->experts;

    if (!r->sigmoid) {
        softmax(x, r->experts, scores);
        return;
    }
    for (uint64_t e = 0; e < r->experts; e++) {
        scores[e] = 1.0f / (1.0f + expf(-x[e]));
    }
}

/* ---- choice ---- */

/* The n largest of x by descending value, the first of equals first; they are taken out. */
static void take_largest(float *x, uint64_t size, uint64_t n, uint32_t *chosen)
{
    for (uint64_t k = 0; k < n; k++) {
        uint64_t best = 0;

        for (uint64_t e = 1; e < size; e++) {
            best = x[e] > x[best] ? e : best;
        }
        chosen[k] = (uint32_t)best;
        x[best] = -INFINITY;
    }
}

/* What a group counts by: with a correction the sum of its two best, else its best. */
static float group_score(const float *x, uint64_t n, bool two)
{
    float first = -INFINITY, second = -INFINITY;

    for (uint64_t e = 0; e < n; e++) {
        if (x[e] > first) {
            second = first;
            first = x[e];
        } else if (x[e] > second) {
            second = x[e];
        }
    }
    return two && n > 1 ? first + second : first;
}

/* Experts outside of the best groups are out of the choice. */
static void limit_groups(const routing *r, bool corrected, float *x, float *scratch)
{
    uint64_t each = r->experts / r->groups;
    uint32_t kept[SMP_MAX_GROUPS];

    for (uint64_t g = 0; g < r->groups; g++) {
        scratch[g] = group_score(x + g * each, each, corrected);
    }
    take_largest(scratch, r->groups, r->chosen_groups, kept);
    for (uint64_t g = 0; g < r->groups; g++) {
        bool in = false;

        for (uint64_t k = 0; k < r->chosen_groups; k++) {
            in = in || kept[k] == g;
        }
        for (uint64_t e = 0; !in && e < each; e++) {
            x[g * each + e] = -INFINITY;
        }
    }
}

/* Row and column factors that make the matrix of e^logits doubly balanced; `balanced` gets
 * it, all tokens.  Logits are taken relative to their largest, which scales every element
 * alike. */
static void sinkhorn(const routing *r, float *balanced)
{
    uint64_t n = r->tokens * r->experts;
    double *rows = smp_heap_alloc(r->tokens + 2 * r->experts, sizeof *rows);
    double *columns = rows + r->tokens, *old = columns + r->experts, change = HUGE_VAL;
    float max = -INFINITY;

    for (uint64_t i = 0; i < n; i++) {
        max = r->logits[i] > max ? r->logits[i] : max;
    }
    for (uint64_t i = 0; i < n; i++) {
        balanced[i] = expf(r->logits[i] - max);
    }
    for (uint64_t e = 0; e < r->experts; e++) {
        columns[e] = 1;
    }
    for (int round = 0; round < SINKHORN_ROUNDS && change > SINKHORN_TOLERANCE; round++) {
        memcpy(old, columns, r->experts * sizeof *old);
        memset(columns, 0, r->experts * sizeof *columns);
        for (uint64_t t = 0; t < r->tokens; t++) {
            const float *c = balanced + t * r->experts;
            double sum = 0;

            for (uint64_t e = 0; e < r->experts; e++) {
                sum += (double)c[e] * old[e];
            }
            rows[t] = 1.0 / (double)r->tokens / (sum + 1e-8);
            for (uint64_t e = 0; e < r->experts; e++) {
                columns[e] += rows[t] * (double)c[e];
            }
        }
        change = 0;
        for (uint64_t e = 0; e < r->experts; e++) {
            columns[e] = 1.0 / (double)r->experts / (columns[e] + 1e-8);
            change += fabs(columns[e] - old[e]) / (double)r->experts;
        }
    }
    for (uint64_t i = 0; i < n; i++) {
        balanced[i] = (float)(columns[i % r->experts] * (double)balanced[i]
                              * rows[i / r->experts]);
    }
    free(rows);
}

static void choose(const routing *r, uint64_t token, const float *scores,
                   const float *correction_or_null, float *x, uint32_t *chosen)
{
    bool matrix = r->balancing == SMP_BALANCING_SINKHORN;
    bool corrected = correction_or_null != NULL && !matrix;

    if (r->balancing == SMP_BALANCING_BALANCED) {
        for (uint64_t k = 0; k < r->top_k; k++) {
            chosen[k] = (uint32_t)((token * r->top_k + k) % r->experts);
        }
        return;
    }
    for (uint64_t e = 0; e < r->experts; e++) {
        x[e] = scores[e] + (corrected ? correction_or_null[e] : 0.0f);
    }
    if (!matrix && r->groups > 1 && r->chosen_groups < r->groups) {
        limit_groups(r, corrected, x, x + r->experts);
    }
    take_largest(x, r->experts, r->top_k, chosen);
}

static double chosen_sum(const routing *r, const float *scores, const smp_choice *choice)
{
    double sum = 0;

    for (uint64_t k = 0; k < r->top_k; k++) {
        sum += (double)scores[smp_choice_expert(choice[k])];
    }
    return sum + 1e-20; /* DeepSeek-V3's guard; below the precision of any other sum */
}

static void choose_all(const routing *r, smp_choice *choice)
{
    const smp_launch *l = r->launch;
    uint64_t n = r->experts;
    bool matrix = r->balancing == SMP_BALANCING_SINKHORN;
    float *scratch = smp_heap_alloc(3 * n + SMP_MAX_GROUPS + (matrix ? r->tokens * n : 0),
                                    sizeof *scratch);
    float *scores = scratch + n, *x = scores + n, *balanced = x + n + SMP_MAX_GROUPS;
    const float *correction =
        l->n_operand > 3 ? smp_row(l->at[3], (smp_dtype)l->task->dtype, 0, n, scratch) : NULL;
    uint32_t *chosen = smp_heap_alloc(r->top_k, sizeof *chosen);

    if (matrix) {
        sinkhorn(r, balanced);
    }
    for (uint64_t t = 0; t < r->tokens; t++) {
        smp_choice *of = choice + t * r->top_k;
        double sum;

        scores_of(r, t, scores);
        choose(r, t, matrix ? balanced + t * n : scores, correction, x, chosen);
        for (uint64_t k = 0; k < r->top_k; k++) {
            of[k].expert = (int32_t)chosen[k];
        }
        sum = r->normalise ? chosen_sum(r, scores, of) : 1.0;
        for (uint64_t k = 0; k < r->top_k; k++) {
            of[k].weight = (float)((double)r->scale * (double)scores[chosen[k]] / sum);
        }
    }
    free(scratch);
    free(chosen);
}

/* ---- capacity ---- */

static void drop(smp_choice *pair)
{
    pair->weight = 0;
    pair->expert = ~pair->expert;
}

/* By descending weight, earlier pairs first. */
static int compare_weights(const void *a, const void *b)
{
    const smp_choice *const *x = a, *const *y = b;

    if ((*x)->weight > (*y)->weight || (*x)->weight < (*y)->weight) {
        return (*x)->weight > (*y)->weight ? -1 : 1;
    }
    return *x < *y ? -1 : *x > *y;
}

/* Pairs of one expert beyond the capacity: the last tokens, or those of least weight. */
static void limit_expert(const routing *r, smp_choice *choice, uint64_t expert,
                         smp_choice **of, int32_t *count)
{
    uint64_t n = 0;

    for (uint64_t i = 0; i < r->tokens * r->top_k; i++) {
        if (choice[i].expert == (int32_t)expert) {
            of[n++] = &choice[i];
        }
    }
    if (!r->position && n > r->capacity) {
        qsort(of, n, sizeof(smp_choice *), compare_weights);
    }
    for (uint64_t i = r->capacity; i < n; i++) {
        drop(of[i]);
    }
    *count = (int32_t)(n < r->capacity && !r->pad ? n : r->capacity);
}

void smp_cpu_route(const smp_cpu *cpu, const smp_launch *l)
{
    routing r = make_routing(cpu, l, l->at[0]);
    smp_choice *choice = l->at[1];
    int32_t *counts = l->at[2];

    r.groups = (uint32_t)l->task->dims[4];
    r.chosen_groups = l->task->dims[4] >> 32;
    r.capacity = l->task->dims[5];
    choose_all(&r, choice);
    memset(counts, 0, r.experts * sizeof *counts);
    if (r.capacity > 0) {
        smp_choice **of = smp_heap_alloc(r.tokens * r.top_k, sizeof(smp_choice *));

        for (uint64_t e = 0; e < r.experts; e++) {
            limit_expert(&r, choice, e, of, &counts[e]);
        }
        free(of);
        return;
    }
    for (uint64_t i = 0; i < r.tokens * r.top_k; i++) {
        counts[choice[i].expert]++;
    }
}

/* Token t of those that this rank routes: with sequence parallelism its part of them. */
static bool is_padding(const smp_cpu *cpu, const smp_launch *l, uint64_t t)
{
    uint64_t first = cpu->rank->sequence ? cpu->rank->tensor_rank * l->task->dims[0] : 0;

    return smp_is_padding(cpu, l, first + t);
}

/* Sums of probabilities over tokens, and choices, dropped ones too, of each expert; padding is
 * left out. */
void smp_cpu_route_statistics(const smp_cpu *cpu, const smp_launch *l)
{
    uint64_t tokens = l->task->dims[0], n = l->task->dims[1], top_k = l->task->dims[2];
    const float *logits = l->at[0];
    const smp_choice *choice = l->at[1];
    float *sums = l->at[2], *p = smp_heap_alloc(n, sizeof *p);
    double *total = smp_heap_alloc(n, sizeof *total);

    memset(sums, 0, 2 * n * sizeof *sums);
    for (uint64_t t = 0; t < tokens; t++) {
        if (is_padding(cpu, l, t)) {
            continue;
        }
        softmax(logits + t * n, n, p);
        for (uint64_t e = 0; e < n; e++) {
            total[e] += (double)p[e];
        }
        for (uint64_t k = 0; k < top_k; k++) {
            sums[n + smp_choice_expert(choice[t * top_k + k])] += 1.0f;
        }
    }
    for (uint64_t e = 0; e < n; e++) {
        sums[e] = (float)total[e];
    }
    free(p);
    free(total);
}

/* ---- backward ---- */

/* dscores of the chosen from those of their weights: w_k = c s_k / S, S the sum of the chosen,
 * so ds_k = c / S (dw_k - sum_j dw_j s_j / S); without normalising, c dw_k. */
static void weights_grad(const routing *r, const float *scores, const smp_choice *choice,
                         const float *dchoice, double *ds)
{
    double sum = r->normalise ? chosen_sum(r, scores, choice) : 1, mean = 0;

    memset(ds, 0, r->experts * sizeof *ds);
    for (uint64_t k = 0; k < r->top_k && r->normalise; k++) {
        if (choice[k].expert >= 0) {
            mean += (double)dchoice[k] * (double)scores[choice[k].expert] / sum;
        }
    }
    for (uint64_t k = 0; k < r->top_k; k++) {
        double dw = choice[k].expert >= 0 ? (double)dchoice[k] : 0;

        ds[smp_choice_expert(choice[k])] += (double)r->scale / sum * (dw - mean);
    }
}

/* What the balancing and z losses add to the gradient of one token's logits.
 *   aux = c E / (T^2 k) sum_e P_e n_e   P_e: sum of p_e over T tokens, n_e: choices of e
 *   z   = c mean(lse^2)
 * Each rank's part is that of a mean over its own tokens, as is its loss; where padding makes
 * that a mean over the targets of the global batch, so is this. */
typedef struct losses {
    double aux, z;       /* factors of the gradient of each token */
    double *load;        /* n_e E / sum of n, or NULL */
} losses;

static void losses_grad(const routing *r, const losses *c, uint64_t token, float *p, double *dx)
{
    const float *x = r->logits + token * r->experts;
    double mean = 0, lse, max = -HUGE_VAL, sum = 0;

    softmax(x, r->experts, p);
    for (uint64_t e = 0; e < r->experts; e++) {
        mean += c->load ? (double)p[e] * c->load[e] : 0;
        max = (double)x[e] > max ? (double)x[e] : max;
    }
    for (uint64_t e = 0; e < r->experts; e++) {
        sum += exp((double)x[e] - max);
    }
    lse = max + log(sum);
    for (uint64_t e = 0; e < r->experts; e++) {
        dx[e] += (double)p[e] * (c->load ? c->aux * (c->load[e] - mean) : 0)
                 + c->z * 2 * lse * (double)p[e];
    }
}

static losses make_losses(const routing *r)
{
    const smp_launch *l = r->launch;
    const smp_rank *rank = r->cpu->rank;
    double tokens = (double)r->tokens * (rank->sequence ? rank->tensor : 1);
    double weight = rank->rows.targets > 0 ? rank->data_ranks / rank->rows.targets
                                           : 1 / (tokens * (double)rank->job->micro_batches);
    double mean = (double)((const float *)l->at[4])[SMP_SCALAR_LOSS_SCALE] * weight;
    losses c = { .aux = (double)l->task->dims[4] * 0x1p-32 * mean,
                 .z = (double)l->task->dims[5] * 0x1p-32 * mean };

    if (r->balancing == SMP_BALANCING_AUX_LOSS) {
        const float *n = (const float *)l->at[5] + r->experts;
        double all = 0;

        c.load = smp_heap_alloc(r->experts, sizeof *c.load);
        for (uint64_t e = 0; e < r->experts; e++) {
            all += (double)n[e];
        }
        for (uint64_t e = 0; e < r->experts; e++) {
            c.load[e] = (double)n[e] * (double)r->experts / (all > 0 ? all : 1);
        }
    }
    return c;
}

/* dlogits from the gradient of scores; a softmax takes off the mean. */
static void scores_grad(const routing *r, const float *scores, const double *ds, double *dx)
{
    double mean = 0;

    for (uint64_t e = 0; e < r->experts && !r->sigmoid; e++) {
        mean += ds[e] * (double)scores[e];
    }
    for (uint64_t e = 0; e < r->experts; e++) {
        double s = (double)scores[e];

        dx[e] = r->sigmoid ? ds[e] * s * (1 - s) : s * (ds[e] - mean);
    }
}

void smp_cpu_route_grad(const smp_cpu *cpu, const smp_launch *l)
{
    routing r = make_routing(cpu, l, l->at[1]);
    uint64_t n = r.experts;
    losses c = make_losses(&r);
    double *ds = smp_heap_alloc(2 * n, sizeof *ds), *dx = ds + n;
    float *scores = smp_heap_alloc(2 * n, sizeof *scores), *out = scores + n;
    uint32_t last = r.balancing == SMP_BALANCING_AUX_LOSS ? 6 : 5;

    for (uint64_t t = 0; t < r.tokens; t++) {
        scores_of(&r, t, scores);
        weights_grad(&r, scores, (const smp_choice *)l->at[2] + t * r.top_k,
                     (const float *)l->at[0] + t * r.top_k, ds);
        scores_grad(&r, scores, ds, dx);
        if ((c.load || c.z > 0) && !is_padding(cpu, l, t)) {
            losses_grad(&r, &c, t, out, dx);
        }
        for (uint64_t e = 0; e < n; e++) {
            out[e] = (float)dx[e];
        }
        smp_store(l->at[3], (smp_dtype)l->task->dtype, t * n, out, n);
    }
    if (l->n_operand > last && !(l->task->flags & SMP_FLAG_ACCUMULATE)) {
        memset(l->at[last], 0, l->bytes[last]); /* it is not trained by gradients */
    }
    free(ds);
    free(scores);
    free(c.load);
}

/* ---- where rows stand ---- */

/* Counts are cut where a rank's room ends, sender and receiver alike, so that whatever is
 * routed stays inside the buffers; such a step changes nothing. */
void smp_cpu_expert_rows(const smp_cpu *cpu, const smp_launch *l)
{
    const smp_rank *rank = cpu->rank;
    uint64_t n = l->task->dims[0], parts = l->task->dims[1], own = l->task->dims[2];
    uint64_t bound = l->task->dims[3], each = n / own;
    const int32_t *counts = l->at[0];
    int32_t *layout = l->at[1], *total = layout + parts * n, *start = total + n, at = 0;
    bool cut = false;

    memset(layout, 0, (parts + 2) * n * sizeof *layout);
    for (uint64_t to = 0; to < each; to++) { /* the ranks that have experts */
        for (uint64_t p = 0; p < parts; p++) {
            uint64_t room = bound;

            /* The parts of one tensor rank share a buffer at the expert rank. */
            for (uint64_t q = p / each * each; q < p; q++) {
                for (uint64_t e = to * own; e < (to + 1) * own; e++) {
                    room -= (uint64_t)layout[q * n + e];
                }
            }
            for (uint64_t e = to * own; e < (to + 1) * own; e++) {
                uint64_t rows = (uint64_t)counts[p * n + e];

                cut = cut || rows > room;
                rows = rows > room ? room : rows;
                layout[p * n + e] = (int32_t)rows;
                room -= rows;
            }
        }
    }
    for (uint64_t e = 0; e < own; e++) {
        for (uint64_t p = 0; p < parts; p++) {
            total[e] += layout[p * n + rank->expert_rank * own + e];
        }
        start[e] = at;
        at += total[e];
    }
    ((float *)l->at[2])[SMP_SUM_ROWS] += cut ? 1.0f : 0.0f;
}
