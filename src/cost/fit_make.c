/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making fits of rows: which rows, which knots, and cross-validation.
 */
#include "config.h"

#include "cost/fit_make.h"
#include "cost/nccl.h"

#include "base/numeric.h"

#include <gsl/gsl_errno.h>
#include <gsl/gsl_sort.h>
#include <gsl/gsl_statistics_double.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FOLDS = 5, LEAST_ROWS = 8, MOST_VALUES = 1024 };

/* Distance of knots in octaves, and the stiffness of the surface. */
typedef struct shape {
    double step[SMP_FIT_AXES];
    double stiffness;
} shape;
static const shape shapes[SMP_FIT_KINDS] = {
    [SMP_FIT_MATMUL] = {{1.0, 1.0, 1.0}, 0.3},
    [SMP_FIT_ATTENTION] = {{0.5, 1.0, 2.0, 1.0}, 0.1},
    [SMP_FIT_ALL_GATHER] = {{1.0, 1.0}, 0.05},
    [SMP_FIT_REDUCE_SCATTER] = {{1.0, 1.0}, 0.05},
    [SMP_FIT_ALL_REDUCE] = {{1.0, 1.0}, 0.05},
    [SMP_FIT_ALL_TO_ALL] = {{1.0, 1.0}, 0.05},
    [SMP_FIT_ALL_REDUCE_NODES] = {{1.0}, 0.05},
    [SMP_FIT_EXPERTS] = {{2.0, 3.0, 2.0, 2.0}, 0.1},
    [SMP_FIT_DISPATCH] = {{1.0, 1.0, 1.5}, 0.1},
    [SMP_FIT_COMBINE] = {{1.0, 1.0, 1.5}, 0.1}};

static bool has_parameters(smp_fit_kind kind)
{
    return kind == SMP_FIT_DISPATCH || kind == SMP_FIT_COMBINE;
}

/* ------------------------------------------------------------------ selection */

/* Only the axis along which tables differ in how far they go: the message, or the rows. */
static double extent_of(const smp_fit_row *row)
{
    const uint32_t last = smp_fit_info_of(row->kind)->n_axis - 1;
    return row->at[row->kind == SMP_FIT_EXPERTS ? 0 : last];
}

static uint32_t main_source(const smp_fit_set *set, smp_fit_kind kind)
{
    size_t most = 0;
    uint32_t best = 0;
    for (uint32_t s = 0; s < set->n_source; s++) {
        size_t n = 0;
        for (size_t i = 0; i < set->n; i++) {
            n += set->rows[i].kind == kind && set->rows[i].source == s ? 1 : 0;
        }
        if (n > most) {
            most = n;
            best = s;
        }
    }
    return best;
}

/* Kinds whose tables come from different machines or kernels that do not agree. */
static bool one_source(smp_fit_kind kind)
{
    return kind != SMP_FIT_ALL_REDUCE_NODES && !has_parameters(kind);
}

size_t smp_fit_select(const smp_fit_set *set, smp_fit_kind kind, const smp_fit_row ***rows_p)
{
    const smp_fit_row **rows = smp_heap_alloc(set->n + 1, sizeof *rows);
    const uint32_t main = main_source(set, kind);
    double low = HUGE_VAL;
    double high = 0.0;
    for (size_t i = 0; i < set->n; i++) {
        const smp_fit_row *row = &set->rows[i];
        if (row->kind == kind && row->source == main) {
            low = fmin(low, extent_of(row));
            high = fmax(high, extent_of(row));
        }
    }
    size_t n = 0;
    for (size_t i = 0; i < set->n; i++) {
        const smp_fit_row *row = &set->rows[i];
        if (row->kind == kind && (!one_source(kind) || row->source == main ||
                                  extent_of(row) < low || extent_of(row) > high)) {
            rows[n++] = row;
        }
    }
    *rows_p = rows;
    return n;
}

/* ------------------------------------------------------------------ one fit */

static void set_axis(smp_fit *fit, uint32_t d, double step)
{
    smp_fit_axis *axis = &fit->axis[d];
    const double low = log2(fit->low[d]);
    const double high = log2(fit->high[d]);
    double x = floor(low / step + 1e-9) * step;
    axis->n = 0;
    do {
        axis->at[axis->n++] = x;
        x += step;
    } while (axis->n < SMP_FIT_KNOTS && axis->at[axis->n - 1] < high - 1e-9);
}

/* Knots over the range of the rows; wider apart where there would be too many to solve for. */
static void set_axes(smp_fit *fit, const smp_fit_row *const *rows, size_t n)
{
    double step[SMP_FIT_AXES];
    for (uint32_t d = 0; d < fit->n_axis; d++) {
        fit->low[d] = fit->high[d] = rows[0]->at[d];
        for (size_t i = 1; i < n; i++) {
            fit->low[d] = fmin(fit->low[d], rows[i]->at[d]);
            fit->high[d] = fmax(fit->high[d], rows[i]->at[d]);
        }
        step[d] = shapes[fit->kind].step[d];
        set_axis(fit, d, step[d]);
    }
    while (smp_fit_n_value(fit) > MOST_VALUES) {
        uint32_t longest = 0;
        for (uint32_t d = 1; d < fit->n_axis; d++) {
            longest = fit->axis[d].n > fit->axis[longest].n ? d : longest;
        }
        step[longest] *= 2.0;
        set_axis(fit, longest, step[longest]);
    }
}

static double formula_of(const smp_fit *fit, const smp_fit_row *row)
{
    static const double usual[] = {33e-6, 30e-9, 0.4e-12, 0.6, 0.9};
    return has_parameters(row->kind)
               ? smp_fit_dispatch_s(fit == NULL ? usual : fit->parameters, &row->dispatch,
                                    row->port_Bps)
               : row->model_s;
}

double smp_fit_predict(const smp_fit *fit, const smp_fit_row *row)
{
    bool ignored = false;
    const double formula = formula_of(fit, row);
    return fit == NULL ? formula : formula * exp(smp_fit_log(fit, row->at, &ignored));
}

smp_fit *smp_fit_solve(smp_arena *arena, smp_fit_kind kind, const smp_fit_row *const *rows,
                       size_t n)
{
    if (n < LEAST_ROWS) {
        return NULL;
    }
    (void)gsl_set_error_handler_off();
    smp_fit *fit = SMP_ARENA_NEW(arena, smp_fit);
    fit->kind = kind;
    fit->n_axis = smp_fit_info_of(kind)->n_axis;
    set_axes(fit, rows, n);
    if (has_parameters(kind) && !smp_fit_dispatch_parameters(rows, n, fit->parameters)) {
        return NULL;
    }
    double(*at)[SMP_FIT_AXES] = smp_heap_alloc(n, sizeof *at);
    double *y = smp_heap_alloc(n, sizeof *y);
    for (size_t i = 0; i < n; i++) {
        memcpy(at[i], rows[i]->at, sizeof at[i]);
        y[i] = log(rows[i]->seconds / formula_of(fit, rows[i]));
    }
    smp_fit_lattice(fit, arena, (const double(*)[SMP_FIT_AXES])at, y, n,
                    shapes[kind].stiffness);
    free(y);
    free(at);
    if (rows[0]->place != NULL) {
        smp_fit_make_monotone(fit, rows, n);
    }
    return fit;
}

/* ------------------------------------------------------------------ monotone in bytes */

enum { SAMPLES = 16, MOST_RANKS = 64 };

/* The formula of a row's collective at another size and number of ranks. */
static double model_at(const smp_fit_row *row, const smp_fit_place *place, smp_op op,
                       uint32_t ranks, double bytes)
{
    smp_cost cost;
    const uint32_t each = ranks / row->nodes;
    const smp_placement p = {.ranks = ranks, .nodes = row->nodes, .most_per_node = each,
                             .least_per_node = each, .stride = 1, .sharers = each};
    if (row->kind == SMP_FIT_ALL_TO_ALL) {
        smp_cost_all_to_all_model(place->cluster, place->profile, ranks, (uint64_t)bytes,
                                  &cost);
    } else {
        smp_cost_collective_model(place->cluster, place->profile, op, &p, (uint64_t)bytes,
                                  &cost);
    }
    return smp_cost_seconds(&cost);
}

/* The least that log(model) rises over any part of [low, low + width] octaves, per octave. */
static double least_slope(const smp_fit_row *row, smp_op op, uint32_t ranks, double low,
                          double width)
{
    double least = 1.0;
    const double scale = row->kind == SMP_FIT_ALL_REDUCE_NODES ? (double)ranks : 1.0;
    double before = log(model_at(row, row->place, op, ranks, scale * exp2(low)));
    for (int i = 1; i <= SAMPLES; i++) {
        const double x = low + width * (double)i / SAMPLES;
        const double here = log(model_at(row, row->place, op, ranks, scale * exp2(x)));
        least = fmin(least, (here - before) * SAMPLES / width);
        before = here;
    }
    return fmax(least, 0.0);
}

/* Over the operations that use the fit, and the ranks between the knots beside `knot`. */
static double slope_beside(const smp_fit *fit, const smp_fit_row *row, uint32_t knot,
                           double low, double width)
{
    if (fit->kind == SMP_FIT_ALL_REDUCE_NODES) {
        const uint32_t ranks = row->nodes * row->place->cluster->gpus_per_node;
        return fmin(least_slope(row, SMP_OP_ALL_REDUCE, ranks, low, width),
                    fmin(least_slope(row, SMP_OP_ALL_GATHER, ranks, low, width),
                         least_slope(row, SMP_OP_REDUCE_SCATTER, ranks, low, width)));
    }
    const smp_op op = fit->kind == SMP_FIT_ALL_REDUCE       ? SMP_OP_ALL_REDUCE
                      : fit->kind == SMP_FIT_REDUCE_SCATTER ? SMP_OP_REDUCE_SCATTER
                                                            : SMP_OP_ALL_GATHER;
    const smp_fit_axis *axis = &fit->axis[0];
    const double first = exp2(axis->at[knot > 0 ? knot - 1 : 0]);
    const double last = exp2(axis->at[knot + 1 < axis->n ? knot + 1 : knot]);
    double least = 1.0;
    for (uint32_t ranks = (uint32_t)fmax(first, 2.0); ranks <= last && ranks <= MOST_RANKS;
         ranks++) {
        least = fmin(least, least_slope(row, op, ranks, low, width));
    }
    return least;
}

/* Nearest nondecreasing values by pooling neighbours [Barlow et al. 1972]. */
static void pool(double *u, size_t n)
{
    double level[SMP_FIT_KNOTS];
    size_t count[SMP_FIT_KNOTS];
    size_t blocks = 0;
    for (size_t i = 0; i < n; i++) {
        level[blocks] = u[i];
        count[blocks++] = 1;
        while (blocks > 1 && level[blocks - 2] > level[blocks - 1]) {
            const double a = (double)count[blocks - 2];
            const double b = (double)count[blocks - 1];
            level[blocks - 2] = (a * level[blocks - 2] + b * level[blocks - 1]) / (a + b);
            count[blocks - 2] += count[blocks - 1];
            blocks--;
        }
    }
    size_t i = 0;
    for (size_t b = 0; b < blocks; b++) {
        for (size_t j = 0; j < count[b]; j++) {
            u[i++] = level[b];
        }
    }
}

static const double latency_octaves = 20.0; /* 1 MiB a rank */

/* Over the clusters of the rows, each once. */
static double least_rise(const smp_fit *fit, const smp_fit_row *const *rows, size_t n,
                         uint32_t knot, double low, double width)
{
    double least = 1.0;
    for (size_t i = 0; i < n; i++) {
        bool first = true;
        for (size_t k = 0; first && k < i; k++) {
            first = rows[k]->place != rows[i]->place || rows[k]->nodes != rows[i]->nodes;
        }
        if (first) {
            least = fmin(least, slope_beside(fit, rows[i], knot, low, width));
        }
    }
    /* Stored values are rounded, and a fit between nodes also serves clusters that it has not
     * seen, of more nodes and so more latency: there only half of the rise is counted on, and
     * none of it for messages that latency may dominate. */
    const bool between = fit->kind == SMP_FIT_ALL_REDUCE_NODES;
    const bool flat = least < 0.02 || (between && low < latency_octaves);
    return flat ? 0.0 : (between ? 0.5 : 0.99) * least * width;
}

void smp_fit_make_monotone(smp_fit *fit, const smp_fit_row *const *rows, size_t n)
{
    const smp_fit_axis *axis = &fit->axis[fit->n_axis - 1];
    const uint32_t lines = smp_fit_n_value(fit) / axis->n;
    for (uint32_t line = 0; line < lines; line++) {
        double rise[SMP_FIT_KNOTS] = {0.0}; /* of the model, since the first knot */
        double *u = fit->values + (size_t)line * axis->n;
        for (uint32_t j = 0; j + 1 < axis->n; j++) {
            rise[j + 1] = rise[j] + least_rise(fit, rows, n, line, axis->at[j],
                                               axis->at[j + 1] - axis->at[j]);
        }
        for (uint32_t j = 0; j < axis->n; j++) {
            u[j] += rise[j];
        }
        pool(u, axis->n);
        for (uint32_t j = 0; j < axis->n; j++) {
            u[j] -= rise[j];
        }
    }
}

/* ------------------------------------------------------------------ validation */

static smp_fit_score score_of(const double *residuals, const bool *counts, size_t n)
{
    double *error = smp_heap_alloc(n + 1, sizeof *error);
    smp_fit_score score = {0};
    for (size_t i = 0; i < n; i++) {
        if (counts == NULL || counts[i]) {
            error[score.n++] = fabs(expm1(residuals[i]));
        }
    }
    if (score.n > 0) {
        gsl_sort(error, 1, score.n);
        score.median = gsl_stats_median_from_sorted_data(error, 1, score.n);
        score.p95 = gsl_stats_quantile_from_sorted_data(error, 1, score.n, 0.95);
        score.p68 = gsl_stats_quantile_from_sorted_data(error, 1, score.n, 0.6827);
    }
    free(error);
    return score;
}

/* Which fold each row is held back in, FOLDS: never.  By a hash of row or family, so that it
 * does not depend on the order; few families are held back one by one. */
static void make_folds(const smp_fit_row *const *rows, size_t n, bool by_family,
                       uint32_t *fold, uint32_t *n_fold_p)
{
    uint64_t seen[FOLDS + 1];
    size_t n_seen = 0;
    for (size_t i = 0; by_family && i < n && n_seen <= FOLDS; i++) {
        size_t j = 0;
        while (j < n_seen && seen[j] != rows[i]->family) {
            j++;
        }
        if (j == n_seen && !rows[i]->fixed) {
            seen[n_seen++] = rows[i]->family;
        }
    }
    const bool few = by_family && n_seen <= FOLDS;
    for (size_t i = 0; i < n; i++) {
        const uint64_t key = by_family ? rows[i]->family : rows[i]->digest;
        fold[i] = (uint32_t)(smp_hash(&key, sizeof key, 7) % FOLDS);
        for (uint32_t j = 0; few && j < n_seen; j++) {
            fold[i] = seen[j] == key ? j : fold[i];
        }
        if (by_family && rows[i]->fixed) {
            fold[i] = FOLDS;
        }
    }
    *n_fold_p = FOLDS;
}

static smp_fit_score hold_back(smp_fit_kind kind, const smp_fit_row *const *rows, size_t n,
                               bool by_family, double *residuals)
{
    const smp_fit_row **kept = smp_heap_alloc(n + 1, sizeof *kept);
    uint32_t *fold = smp_heap_alloc(n + 1, sizeof *fold);
    bool *counts = smp_heap_alloc(n + 1, sizeof *counts);
    uint32_t n_fold = 0;
    make_folds(rows, n, by_family, fold, &n_fold);
    for (uint32_t f = 0; f < n_fold; f++) {
        size_t n_kept = 0;
        for (size_t i = 0; i < n; i++) {
            if (fold[i] != f) {
                kept[n_kept++] = rows[i];
            }
        }
        smp_arena *arena = smp_arena_create();
        const smp_fit *fit = smp_fit_solve(arena, kind, kept, n_kept);
        for (size_t i = 0; n_kept < n && i < n; i++) {
            if (fold[i] == f) {
                residuals[i] = log(smp_fit_predict(fit, rows[i]) / rows[i]->seconds);
                counts[i] = true;
            }
        }
        smp_arena_destroy(arena);
    }
    const smp_fit_score score = score_of(residuals, counts, n);
    free(counts);
    free(fold);
    free(kept);
    return score;
}

static smp_fit_score seen_score(const smp_fit *fit, const smp_fit_row *const *rows, size_t n,
                                double *residuals)
{
    for (size_t i = 0; i < n; i++) {
        residuals[i] = log(smp_fit_predict(fit, rows[i]) / rows[i]->seconds);
    }
    return score_of(residuals, NULL, n);
}

void smp_fit_validate(smp_fit_kind kind, const smp_fit_row *const *rows, size_t n,
                      smp_fit_scores *scores_p, double *residuals)
{
    double *mine = smp_heap_alloc(n + 1, sizeof *mine);
    smp_arena *arena = smp_arena_create();
    const smp_fit *fit = smp_fit_solve(arena, kind, rows, n);
    scores_p->model = seen_score(NULL, rows, n, mine);
    scores_p->fitted = seen_score(fit, rows, n, mine);
    scores_p->rows = hold_back(kind, rows, n, false, mine);
    memset(mine, 0, n * sizeof *mine);
    scores_p->shapes = hold_back(kind, rows, n, true, mine);
    if (residuals != NULL) {
        memcpy(residuals, mine, n * sizeof *mine);
    }
    smp_arena_destroy(arena);
    free(mine);
}
