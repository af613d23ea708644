/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a profile: what one type of GPU does with a kernel.  Peaks and efficiencies with
 * their sources, and room for measured samples and fits, which are checked in form.
 */
#include "config.h"

#include "cost/figure.h"
#include "cost/fit.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

static const char *const profile_keys[] = {
    "format", "title", "compute_capability", "multiprocessors", "peak_flops", "memory_Bps",
    "sustained_flops", "efficiency", "attention_half_seq", "copy_latency_s", "launch_s",
    "host_launch_s", "context_bytes", "spread", "overlap", "samples", "sample_sets", "fits",
    NULL};
static const char *const dtype_keys[] = {"fp32", "bf16", "fp16", NULL};
static const char *const efficiency_keys[] = {"matmul", "attention", "attention_grad",
                                              "memory", "copy", NULL};
static const char *const spread_keys[] = {"kernel", "collective", NULL};
static const char *const overlap_keys[] = {"matrix_beside_collective",
                                           "memory_beside_collective",
                                           "collective_beside_matrix",
                                           "collective_beside_memory", NULL};
static const char *const sample_keys[] = {"op", "dtype", "sizes", "seconds", "source", NULL};
static const char *const set_keys[] = {"op", "rows", "digest", "source", NULL};
static const char *const fit_keys[] = {"op", "dtype", "form", "parameters", "spread", "range",
                                       "axes", "values", "source", NULL};

static void read_peaks(const smp_reader *r, smp_profile *profile)
{
    static const smp_dtype dtypes[] = {SMP_F32, SMP_BF16, SMP_F16};
    for (size_t i = 0; i < SMP_DTYPES; i++) {
        profile->peak_flops[i] = (smp_figure){0.0, "not supported"};
    }
    smp_reader peaks;
    if (!smp_read_object(r, "peak_flops", true, &peaks)) {
        return;
    }
    smp_read_reject_unknown(&peaks, dtype_keys);
    for (size_t i = 0; dtype_keys[i] != NULL; i++) {
        (void)smp_figure_read(&peaks, profile->arena, dtype_keys[i], i == 0, 0.0, 1e18, NULL,
                              &profile->peak_flops[dtypes[i]]);
    }
}

static void read_efficiencies(const smp_reader *r, smp_profile *profile)
{
    smp_reader e;
    if (!smp_read_object(r, "efficiency", true, &e)) {
        return;
    }
    smp_figure *const figures[] = {
        &profile->matmul_efficiency, &profile->attention_efficiency,
        &profile->attention_grad_efficiency, &profile->memory_efficiency,
        &profile->copy_efficiency};
    smp_read_reject_unknown(&e, efficiency_keys);
    for (size_t i = 0; efficiency_keys[i] != NULL; i++) {
        (void)smp_figure_read(&e, profile->arena, efficiency_keys[i], true, 0.001, 1.0, NULL,
                              figures[i]);
    }
}

static void read_times(const smp_reader *r, smp_profile *profile)
{
    smp_arena *arena = profile->arena;
    (void)smp_figure_read(r, arena, "attention_half_seq", true, 0.0, 1e6, NULL,
                          &profile->attention_half_seq);
    (void)smp_figure_read(r, arena, "copy_latency_s", true, 0.0, 1.0, NULL,
                          &profile->copy_latency_s);
    (void)smp_figure_read(r, arena, "launch_s", true, 0.0, 1.0, NULL, &profile->launch_s);
    (void)smp_figure_read(r, arena, "host_launch_s", true, 0.0, 1.0, NULL,
                          &profile->host_launch_s);
    (void)smp_figure_read(r, arena, "context_bytes", true, 0.0, 1e12, NULL,
                          &profile->context_bytes);
    smp_reader spread;
    if (smp_read_object(r, "spread", true, &spread)) {
        smp_read_reject_unknown(&spread, spread_keys);
        (void)smp_figure_read(&spread, arena, "kernel", true, 0.0, 1.0, NULL, &profile->spread);
        (void)smp_figure_read(&spread, arena, "collective", true, 0.0, 1.0, NULL,
                              &profile->collective_spread);
    }
}

/* Optional: how much longer kernels and collectives take beside each other. */
static void read_overlap(const smp_reader *r, smp_profile *profile)
{
    smp_figure *const figures[] = {
        &profile->matrix_beside_collective, &profile->memory_beside_collective,
        &profile->collective_beside_matrix, &profile->collective_beside_memory};
    smp_reader overlap;
    if (smp_read_member(r, "overlap", false) == NULL ||
        !smp_read_object(r, "overlap", true, &overlap)) {
        return;
    }
    smp_read_reject_unknown(&overlap, overlap_keys);
    for (size_t i = 0; overlap_keys[i] != NULL; i++) {
        (void)smp_figure_read(&overlap, profile->arena, overlap_keys[i], true, 1.0, 10.0, NULL,
                              figures[i]);
    }
}

/* The name of an operation of the step program, or of a kind of fit. */
static void check_op(const smp_reader *r)
{
    const char *text = NULL;
    if (!smp_read_string(r, "op", true, &text)) {
        return;
    }
    const char *names[SMP_OPS + SMP_FIT_KINDS + 1] = {NULL};
    for (int i = 0; i < SMP_OPS + SMP_FIT_KINDS; i++) {
        names[i] = i < SMP_OPS ? smp_op_info_of((smp_op)i)->name
                               : smp_fit_info_of((smp_fit_kind)(i - SMP_OPS))->op;
        if (strcmp(names[i], text) == 0) {
            return;
        }
    }
    const char *near = smp_nearest_word(text, names);
    const smp_place place = smp_json_place(r->json, smp_read_member(r, "op", false));
    (void)smp_fail(r->errors, SMP_INPUT, &place, "op \"%s\": no such operation%s%s%s", text,
                   near == NULL ? "" : "; did you mean \"", near == NULL ? "" : near,
                   near == NULL ? "" : "\"?");
}

/* Every member of object or array `key` is a number; `pairs`: an array [low, high]. */
static void check_numbers(const smp_reader *r, const char *key, int kind, bool pairs)
{
    const cJSON *list = smp_read_member(r, key, true);
    if (list == NULL) {
        return;
    }
    const smp_place at = smp_json_place(r->json, list);
    if ((list->type & 0xFF) != kind) {
        (void)smp_fail(r->errors, SMP_INPUT, &at, "%s must be %s", key,
                       kind == cJSON_Array ? "an array of numbers" : "an object");
        return;
    }
    const cJSON *item = NULL;
    cJSON_ArrayForEach(item, list)
    {
        const smp_place place = smp_json_place(r->json, item);
        const cJSON *low = pairs ? cJSON_GetArrayItem(item, 0) : item;
        const cJSON *high = pairs ? cJSON_GetArrayItem(item, 1) : item;
        const bool good = cJSON_IsNumber(low) && cJSON_IsNumber(high) &&
                          low->valuedouble <= high->valuedouble &&
                          (!pairs || cJSON_GetArraySize(item) == 2);
        if (!good) {
            (void)smp_fail(r->errors, SMP_INPUT, &place, "%s: must hold %s", key,
                           pairs ? "ranges [low, high] with low at most high" : "numbers");
        }
    }
}

static void check_source(const smp_reader *r)
{
    const char *text = NULL;
    (void)smp_read_string(r, "source", true, &text);
}

static void check_sample(const smp_reader *r)
{
    double seconds;
    const char *dtype;
    smp_read_reject_unknown(r, sample_keys);
    check_op(r);
    check_source(r);
    (void)smp_read_string(r, "dtype", false, &dtype);
    (void)smp_read_double(r, "seconds", true, 1e-12, 1e6, &seconds);
    check_numbers(r, "sizes", cJSON_Array, false);
}

static void check_set(const smp_reader *r)
{
    uint64_t rows;
    const char *digest;
    smp_read_reject_unknown(r, set_keys);
    check_op(r);
    check_source(r);
    (void)smp_read_u64(r, "rows", true, 1, UINT64_MAX, &rows);
    (void)smp_read_string(r, "digest", true, &digest);
}

static void check_fit(const smp_reader *r)
{
    double spread;
    const char *form;
    const char *dtype;
    smp_read_reject_unknown(r, fit_keys);
    check_op(r);
    check_source(r);
    (void)smp_read_string(r, "dtype", false, &dtype);
    (void)smp_read_string(r, "form", true, &form);
    (void)smp_read_double(r, "spread", true, 0.0, 10.0, &spread);
    check_numbers(r, "parameters", cJSON_Object, false);
    check_numbers(r, "range", cJSON_Object, true);
}

/* Checks each object of an optional array; returns how many there are. */
static uint32_t check_list(const smp_reader *r, const char *key,
                           void (*check)(const smp_reader *))
{
    const cJSON *list = smp_read_member(r, key, false);
    if (list == NULL) {
        return 0;
    }
    if (!cJSON_IsArray(list)) {
        const smp_place place = smp_json_place(r->json, list);
        (void)smp_fail(r->errors, SMP_INPUT, &place, "%s must be an array", key);
        return 0;
    }
    uint32_t count = 0;
    const cJSON *item = NULL;
    cJSON_ArrayForEach(item, list)
    {
        count++;
        if (cJSON_IsObject(item)) {
            const smp_reader inner = {r->json, item, r->errors};
            check(&inner);
        } else {
            const smp_place place = smp_json_place(r->json, item);
            (void)smp_fail(r->errors, SMP_INPUT, &place, "%s: each must be an object", key);
        }
    }
    return count;
}

/* The fits that the model uses; of two of one kind the first counts. */
static void read_fits(const smp_reader *r, smp_profile *profile)
{
    const cJSON *list = smp_read_member(r, "fits", false);
    if (!cJSON_IsArray(list)) {
        return;
    }
    const cJSON *item = NULL;
    cJSON_ArrayForEach(item, list)
    {
        const smp_reader inner = {r->json, item, r->errors};
        const smp_fit *fit = cJSON_IsObject(item) ? smp_fit_read(&inner, profile->arena) : NULL;
        if (fit != NULL && profile->fits[fit->kind] == NULL) {
            profile->fits[fit->kind] = fit;
        }
    }
}

static char *profile_text(smp_arena *arena, const cJSON *root)
{
    smp_json_out out = {0};
    smp_out_value(&out, NULL, root);
    char *text = smp_arena_strndup(arena, out.text.data, out.text.length);
    smp_text_free(&out.text);
    return text;
}

static smp_status profile_from_json(const smp_json *json, const char *name, smp_errors *errors,
                                    smp_profile **profile_p)
{
    const size_t before = smp_errors_count(errors);
    smp_reader r;
    if (!smp_figure_root(json, errors, &r)) {
        return SMP_INPUT;
    }
    smp_arena *arena = smp_arena_create();
    smp_profile *profile = SMP_ARENA_NEW(arena, smp_profile);
    profile->arena = arena;
    profile->name = smp_figure_name(arena, name);
    smp_read_reject_unknown(&r, profile_keys);
    smp_figure_format(&r, "smp-profile-1");
    (void)smp_figure_text(&r, arena, "title", true, &profile->gpu_title);
    uint64_t capability = 0;
    uint64_t multiprocessors = 1;
    (void)smp_read_u64(&r, "compute_capability", true, 0, 999, &capability);
    (void)smp_read_u64(&r, "multiprocessors", true, 1, 100000, &multiprocessors);
    profile->compute_capability = (uint32_t)capability;
    profile->multiprocessors = (uint32_t)multiprocessors;
    read_peaks(&r, profile);
    (void)smp_figure_read(&r, arena, "memory_Bps", true, 1e6, 1e15, NULL, &profile->memory_Bps);
    (void)smp_figure_read(&r, arena, "sustained_flops", false, 1e9, 1e18, NULL,
                          &profile->sustained_flops);
    read_efficiencies(&r, profile);
    read_times(&r, profile);
    read_overlap(&r, profile);
    profile->n_sample = check_list(&r, "samples", check_sample);
    (void)check_list(&r, "sample_sets", check_set);
    profile->n_fit = check_list(&r, "fits", check_fit);
    if (smp_errors_count(errors) == before) {
        read_fits(&r, profile);
    }
    if (smp_errors_count(errors) != before) {
        smp_arena_destroy(arena);
        return SMP_INPUT;
    }
    profile->text = profile_text(arena, smp_json_root(json));
    *profile_p = profile;
    return SMP_OK;
}

smp_status smp_profile_read(const char *name_or_path, smp_errors *errors,
                            smp_profile **profile_p)
{
    char *path = NULL;
    smp_json *json = NULL;
    smp_status status = smp_figure_load("profiles", name_or_path, errors, &path, &json);
    if (status != SMP_OK) {
        return status;
    }
    status = profile_from_json(json, path, errors, profile_p);
    smp_json_destroy(json);
    free(path);
    return status;
}

smp_status smp_profile_read_for(const smp_cluster *cluster, smp_errors *errors,
                                smp_profile **profile_p)
{
    return smp_profile_read(cluster->gpu, errors, profile_p);
}

smp_status smp_profile_parse(const char *text, size_t n, const char *place_name,
                             const char *name, smp_errors *errors, smp_profile **profile_p)
{
    smp_json *json = NULL;
    smp_status status = smp_json_parse(text, n, place_name, errors, &json);
    if (status != SMP_OK) {
        return status;
    }
    status = profile_from_json(json, name, errors, profile_p);
    smp_json_destroy(json);
    return status;
}

void smp_profile_destroy(smp_profile *profile)
{
    if (profile != NULL) {
        smp_arena_destroy(profile->arena);
    }
}

const char *smp_profile_name(const smp_profile *profile) { return profile->name; }
