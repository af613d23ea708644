/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Evaluating fits, and their form in a profile file.
 */
#include "config.h"

#include "cost/fit.h"

#include "cost/figure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LATTICE_ .form = "lattice"
#define COLLECTIVE_(name) {.op = (name), LATTICE_, .n_axis = 2, .axis = {"ranks", "bytes"}}
#define DISPATCH_(name)                                                                       \
    {.op = (name), LATTICE_, .n_axis = 3, .axis = {"tokens", "hidden", "top_k"},              \
     .n_parameter = 5,                                                                        \
     .parameter = {"start_s", "token_s", "byte_s", "remote", "port_share"}}
static const smp_fit_info infos[SMP_FIT_KINDS] = {
    [SMP_FIT_MATMUL] = {.op = "matmul", LATTICE_, .n_axis = 3, .axis = {"m", "n", "k"}},
    [SMP_FIT_ATTENTION] = {.op = "attention", LATTICE_, .n_axis = 4,
                           .axis = {"seq", "batch_heads", "group", "head_dim"}},
    [SMP_FIT_ALL_GATHER] = COLLECTIVE_("all_gather"),
    [SMP_FIT_REDUCE_SCATTER] = COLLECTIVE_("reduce_scatter"),
    [SMP_FIT_ALL_REDUCE] = COLLECTIVE_("all_reduce"),
    [SMP_FIT_ALL_TO_ALL] = COLLECTIVE_("all_to_all"),
    [SMP_FIT_ALL_REDUCE_NODES] = {.op = "all_reduce", .form = "lattice-nodes", .n_axis = 1,
                                  .axis = {"bytes_per_rank"}},
    [SMP_FIT_EXPERTS] = {.op = "experts", LATTICE_, .n_axis = 4,
                         .axis = {"rows", "experts", "hidden_ffn", "ep"}},
    [SMP_FIT_DISPATCH] = DISPATCH_("moe_dispatch"),
    [SMP_FIT_COMBINE] = DISPATCH_("moe_combine")};

const smp_fit_info *smp_fit_info_of(smp_fit_kind kind) { return &infos[kind]; }

uint32_t smp_fit_n_value(const smp_fit *fit)
{
    uint32_t n = 1;
    for (uint32_t d = 0; d < fit->n_axis; d++) {
        n *= fit->axis[d].n;
    }
    return n;
}

/* Cell and place in it, 0 to 1; the edge for what lies beyond. */
static uint32_t cell_of(const smp_fit_axis *axis, double x, double *share_p)
{
    *share_p = 0.0;
    if (axis->n < 2 || !(x > axis->at[0])) {
        return 0;
    }
    uint32_t i = 0;
    while (i + 2 < axis->n && x >= axis->at[i + 1]) {
        i++;
    }
    const double share = (x - axis->at[i]) / (axis->at[i + 1] - axis->at[i]);
    *share_p = share > 1.0 ? 1.0 : share;
    return i;
}

void smp_fit_corners(const smp_fit *fit, const double *sizes, uint32_t *index_p,
                     double *weight_p)
{
    uint32_t n = 1;
    index_p[0] = 0;
    weight_p[0] = 1.0;
    for (uint32_t d = 0; d < fit->n_axis; d++) {
        const smp_fit_axis *axis = &fit->axis[d];
        double share;
        const uint32_t cell = cell_of(axis, log2(sizes[d]), &share);
        const uint32_t up = axis->n > 1 ? 1 : 0;
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t base = index_p[i] * axis->n + cell;
            index_p[n + i] = base + up;
            weight_p[n + i] = weight_p[i] * share;
            index_p[i] = base;
            weight_p[i] *= 1.0 - share;
        }
        n *= 2;
    }
}

double smp_fit_log(const smp_fit *fit, const double *sizes, bool *outside_p)
{
    uint32_t index[1 << SMP_FIT_AXES];
    double weight[1 << SMP_FIT_AXES];
    smp_fit_corners(fit, sizes, index, weight);
    double g = 0.0;
    for (uint32_t i = 0; i < 1u << fit->n_axis; i++) {
        g += weight[i] * fit->values[index[i]];
    }
    for (uint32_t d = 0; d < fit->n_axis; d++) {
        if (sizes[d] < fit->low[d] * (1.0 - 1e-9) || sizes[d] > fit->high[d] * (1.0 + 1e-9)) {
            *outside_p = true;
        }
    }
    return g;
}

void smp_fit_apply(const smp_fit *fit, const double *sizes, smp_cost *cost)
{
    bool outside = false;
    const double factor = exp(smp_fit_log(fit, sizes, &outside));
    cost->launch_s *= factor;
    cost->compute_s *= factor;
    cost->memory_s *= factor;
    cost->latency_s *= factor;
    cost->transfer_s *= factor;
    cost->spread = fit->spread * (outside ? 2.0 : 1.0);
    cost->basis = &fit->basis;
    cost->fit = fit;
    cost->extrapolated = outside;
}

/* ------------------------------------------------------------------ files */

static bool kind_of(const char *op, const char *form, smp_fit_kind *kind_p)
{
    for (int i = 0; i < SMP_FIT_KINDS; i++) {
        if (strcmp(op, infos[i].op) == 0 && strcmp(form, infos[i].form) == 0) {
            *kind_p = (smp_fit_kind)i;
            return true;
        }
    }
    return false;
}

static void fail_at(const smp_reader *r, const char *key, const char *rule)
{
    const smp_place place = smp_json_place(r->json, smp_read_member(r, key, false));
    (void)smp_fail(r->errors, SMP_INPUT, &place, "%s: %s", key, rule);
}

static bool read_range(const smp_reader *r, const char *name, double *low_p, double *high_p)
{
    smp_reader range;
    if (!smp_read_object(r, "range", true, &range)) {
        return false;
    }
    const cJSON *pair = smp_read_member(&range, name, true);
    const cJSON *low = cJSON_GetArrayItem(pair, 0);
    const cJSON *high = cJSON_GetArrayItem(pair, 1);
    if (!cJSON_IsNumber(low) || !cJSON_IsNumber(high)) {
        return false;
    }
    *low_p = low->valuedouble;
    *high_p = high->valuedouble;
    return true;
}

/* Knots of one axis, given as sizes: positive and ascending. */
static bool read_axis(const smp_reader *r, const char *name, smp_fit_axis *axis)
{
    smp_reader axes;
    if (!smp_read_object(r, "axes", true, &axes)) {
        return false;
    }
    const cJSON *list = smp_read_member(&axes, name, true);
    if (list == NULL) {
        return false;
    }
    const int n = cJSON_GetArraySize(list);
    bool good = cJSON_IsArray(list) && n >= 1 && n <= SMP_FIT_KNOTS;
    double last = 0.0;
    const cJSON *item = NULL;
    axis->n = 0;
    cJSON_ArrayForEach(item, list)
    {
        good = good && cJSON_IsNumber(item) && item->valuedouble > last;
        if (good) {
            last = item->valuedouble;
            axis->at[axis->n++] = log2(last);
        }
    }
    if (!good) {
        fail_at(&axes, name, "must hold 1 to 64 ascending sizes above 0");
    }
    return good;
}

static bool read_values(const smp_reader *r, smp_arena *arena, smp_fit *fit)
{
    const uint32_t n = smp_fit_n_value(fit);
    const cJSON *list = smp_read_member(r, "values", true);
    if (list == NULL) {
        return false;
    }
    bool good = cJSON_IsArray(list) && n <= SMP_FIT_VALUES &&
                cJSON_GetArraySize(list) == (int)n;
    double *values = SMP_ARENA_ARRAY(arena, good ? n : 1, double);
    const cJSON *item = NULL;
    uint32_t i = 0;
    cJSON_ArrayForEach(item, list)
    {
        good = good && cJSON_IsNumber(item) && fabs(item->valuedouble) <= 10.0;
        if (good) {
            values[i++] = item->valuedouble;
        }
    }
    if (!good) {
        fail_at(r, "values", "must hold a logarithm within 10 of 0 for each knot of the axes, "
                             "8192 at most");
    }
    fit->values = values;
    return good;
}

static bool read_parameters(const smp_reader *r, const smp_fit_info *info, smp_fit *fit)
{
    smp_reader p;
    if (info->n_parameter == 0) {
        return true;
    }
    bool good = smp_read_object(r, "parameters", true, &p);
    for (uint32_t i = 0; good && i < info->n_parameter; i++) {
        good = smp_read_double(&p, info->parameter[i], true, 0.0, 1e3, &fit->parameters[i]);
    }
    return good;
}

const smp_fit *smp_fit_read(const smp_reader *r, smp_arena *arena)
{
    const char *op = NULL;
    const char *form = NULL;
    smp_fit_kind kind = SMP_FIT_MATMUL;
    if (!smp_read_string(r, "op", false, &op) || !smp_read_string(r, "form", false, &form) ||
        !kind_of(op, form, &kind)) {
        return NULL; /* told by the checks of the form, or of a kind we have no use for */
    }
    const smp_fit_info *info = &infos[kind];
    smp_fit *fit = SMP_ARENA_NEW(arena, smp_fit);
    fit->kind = kind;
    fit->n_axis = info->n_axis;
    bool good = smp_read_double(r, "spread", true, 0.0, 10.0, &fit->spread) &&
                read_parameters(r, info, fit);
    for (uint32_t d = 0; good && d < info->n_axis; d++) {
        good = read_axis(r, info->axis[d], &fit->axis[d]) &&
               read_range(r, info->axis[d], &fit->low[d], &fit->high[d]);
    }
    good = good && read_values(r, arena, fit);
    fit->basis.value = fit->spread;
    good = good && smp_figure_text(r, arena, "source", true, &fit->basis.source);
    return good ? fit : NULL;
}

/* Four decimals of a logarithm are 0.01 %. */
static double short_number(double x)
{
    const double rounded = round(x * 1e4) * 1e-4;
    return rounded == 0.0 ? 0.0 : rounded; /* not -0 */
}

/* Digits that a size read back needs: exact for whole numbers, else 6. */
static double size_of(double log2_size)
{
    const double size = exp2(log2_size);
    const double whole = round(size);
    return fabs(size - whole) < 1e-6 * size ? whole : size;
}

static void write_axes(const smp_fit *fit, const smp_fit_info *info, smp_json_out *out)
{
    smp_out_object(out, "axes");
    for (uint32_t d = 0; d < info->n_axis; d++) {
        double sizes[SMP_FIT_KNOTS];
        for (uint32_t i = 0; i < fit->axis[d].n; i++) {
            sizes[i] = size_of(fit->axis[d].at[i]);
        }
        smp_out_numbers(out, info->axis[d], sizes, fit->axis[d].n);
    }
    smp_out_end_object(out);
    smp_out_object(out, "range");
    for (uint32_t d = 0; d < info->n_axis; d++) {
        const double pair[2] = {fit->low[d], fit->high[d]};
        smp_out_numbers(out, info->axis[d], pair, 2);
    }
    smp_out_end_object(out);
}

void smp_fit_write(const smp_fit *fit, smp_json_out *out)
{
    const smp_fit_info *info = &infos[fit->kind];
    smp_out_object(out, NULL);
    smp_out_string(out, "op", info->op);
    smp_out_string(out, "form", info->form);
    smp_out_object(out, "parameters");
    for (uint32_t i = 0; i < info->n_parameter; i++) {
        smp_out_double(out, info->parameter[i], fit->parameters[i]);
    }
    smp_out_end_object(out);
    smp_out_double(out, "spread", short_number(fit->spread));
    write_axes(fit, info, out);
    const uint32_t n = smp_fit_n_value(fit);
    double *values = smp_heap_alloc(n, sizeof *values);
    for (uint32_t i = 0; i < n; i++) {
        values[i] = short_number(fit->values[i]);
    }
    smp_out_numbers(out, "values", values, n);
    free(values);
    smp_out_string(out, "source", fit->basis.source);
    smp_out_end_object(out);
}
