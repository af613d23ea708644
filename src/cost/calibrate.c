/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calibration from measured rows: reads tables, fits, holds back, and writes a profile that
 * differs from the one it started from by its fits and what they rest on.
 */
#include "config.h"

#include "cost/figure.h"
#include "cost/fit_make.h"

#include "base/gnuplot.h"
#include "base/numeric.h"

#include <stdlib.h>
#include <string.h>

static const char *title_of(smp_fit_kind kind)
{
    static const char *const titles[SMP_FIT_KINDS] = {
        "matmul", "attention", "all_gather", "reduce_scatter", "all_reduce", "all_to_all",
        "all_reduce, nodes", "experts", "moe_dispatch", "moe_combine"};
    return titles[kind];
}

typedef struct made {
    const smp_fit *fit;
    const smp_fit_row **rows;
    double *residuals;
    size_t n;
    uint64_t digest;
    smp_fit_scores scores;
} made;

/* Sources of the rows in the order of the set, with the number of rows of each. */
static const char *cite(const smp_fit_set *set, const made *m)
{
    smp_text text = {0};
    for (uint32_t s = 0; s < set->n_source; s++) {
        size_t n = 0;
        for (size_t i = 0; i < m->n; i++) {
            n += m->rows[i]->source == s ? 1 : 0;
        }
        if (n > 0) {
            smp_text_add(&text, "%s%s, %zu rows", text.length == 0 ? "" : "; ",
                         set->sources[s].text, n);
        }
    }
    const char *result = smp_arena_strndup(set->arena, text.data, text.length);
    smp_text_free(&text);
    return result;
}

static void make(const smp_fit_set *set, smp_fit_kind kind, made *m)
{
    m->n = smp_fit_select(set, kind, &m->rows);
    smp_fit *fit = smp_fit_solve(set->arena, kind, m->rows, m->n);
    if (fit == NULL) {
        return;
    }
    m->residuals = smp_heap_alloc(m->n, sizeof *m->residuals);
    smp_fit_validate(kind, m->rows, m->n, &m->scores, m->residuals);
    const smp_fit_score *held =
        m->scores.shapes.n > 0 ? &m->scores.shapes : &m->scores.rows;
    fit->spread = held->p68;
    for (size_t i = 0; i < m->n; i++) {
        m->digest = smp_hash(&m->rows[i]->digest, sizeof m->rows[i]->digest, m->digest);
    }
    fit->basis = (smp_figure){held->median, cite(set, m)};
    m->fit = fit;
}

/* ------------------------------------------------------------------ writing */

static void write_set(const made *m, smp_json_out *out)
{
    smp_out_object(out, NULL);
    smp_out_string(out, "op", smp_fit_info_of(m->fit->kind)->op);
    smp_out_u64(out, "rows", m->n);
    char digest[32];
    (void)snprintf(digest, sizeof digest, "fnv1a64:%016llx", (unsigned long long)m->digest);
    smp_out_string(out, "digest", digest);
    smp_out_string(out, "source", m->fit->basis.source);
    smp_out_end_object(out);
}

/* The profile with its fits replaced. */
static void write_profile(const cJSON *root, const made *all, smp_json_out *out)
{
    static const char *const replaced[] = {"sample_sets", "fits"};
    smp_out_object(out, NULL);
    const cJSON *member = NULL;
    cJSON_ArrayForEach(member, root)
    {
        if (strcmp(member->string, replaced[0]) != 0 &&
            strcmp(member->string, replaced[1]) != 0) {
            smp_out_value(out, member->string, member);
        }
    }
    smp_out_array(out, "sample_sets");
    for (int k = 0; k < SMP_FIT_KINDS; k++) {
        if (all[k].fit != NULL && all[k].n > 0) {
            write_set(&all[k], out);
        }
    }
    smp_out_end_array(out);
    smp_out_array(out, "fits");
    for (int k = 0; k < SMP_FIT_KINDS; k++) {
        if (all[k].fit != NULL) {
            smp_fit_write(all[k].fit, out);
        }
    }
    smp_out_end_array(out);
    smp_out_end_object(out);
}

static smp_status write_output(const smp_profile *profile, const char *path, const made *all,
                               smp_errors *errors)
{
    smp_json *json = NULL;
    smp_status status =
        smp_json_parse(profile->text, strlen(profile->text), profile->name, errors, &json);
    if (status != SMP_OK) {
        return status;
    }
    smp_json_out out = {0};
    write_profile(smp_json_root(json), all, &out);
    status = smp_file_write(path, out.text.data, out.text.length, errors);
    smp_text_free(&out.text);
    smp_json_destroy(json);
    return status;
}

/* One line a row: place on the axes, measured and predicted seconds, held-back error. */
static smp_status write_residuals(const made *m, const char *path, smp_errors *errors)
{
    const smp_fit_info *info = smp_fit_info_of(m->fit->kind);
    smp_file *file = NULL;
    smp_status status = smp_file_create(path, errors, &file);
    if (status == SMP_OK) {
        FILE *stream = smp_file_stream(file);
        (void)fprintf(stream, "# measured_s predicted_s error_held_back");
        for (uint32_t d = 0; d < info->n_axis; d++) {
            (void)fprintf(stream, " %s", info->axis[d]);
        }
        (void)fprintf(stream, "\n");
        for (size_t i = 0; i < m->n; i++) {
            const smp_fit_row *row = m->rows[i];
            (void)fprintf(stream, "%.6g %.6g %.5f", row->seconds,
                          smp_fit_predict(m->fit, row), m->residuals[i]);
            for (uint32_t d = 0; d < info->n_axis; d++) {
                (void)fprintf(stream, " %.6g", row->at[d]);
            }
            (void)fprintf(stream, "\n");
        }
        status = smp_file_commit(file, errors);
    }
    return status;
}

/* PROFILE-OP.dat and .svg in the directory. */
static smp_status plot(const smp_profile *profile, const made *m, const char *directory,
                       smp_errors *errors)
{
    const smp_fit_info *info = smp_fit_info_of(m->fit->kind);
    smp_arena *arena = smp_arena_create();
    const char *stem = smp_arena_printf(
        arena, "%s/%s-%s%s", directory, profile->name, info->op,
        m->fit->kind == SMP_FIT_ALL_REDUCE_NODES ? "-nodes" : "");
    const char *data = smp_arena_printf(arena, "%s.dat", stem);
    const char *axis[SMP_FIT_AXES + 2] = {
        smp_arena_printf(arena, "%s, %s: %zu rows", profile->name, title_of(m->fit->kind),
                         m->n)};
    for (uint32_t d = 0; d < info->n_axis; d++) {
        axis[d + 1] = info->axis[d];
    }
    smp_status status = write_residuals(m, data, errors);
    if (status == SMP_OK) {
        status = smp_plot_run("calibration.gp", data, smp_arena_printf(arena, "%s.svg", stem),
                              axis, errors);
    }
    smp_arena_destroy(arena);
    return status;
}

static smp_status plot_all(const smp_profile *profile, const made *all, const char *directory,
                           smp_errors *errors)
{
    smp_status status = smp_make_directory(directory, errors);
    for (int k = 0; k < SMP_FIT_KINDS && status == SMP_OK; k++) {
        if (all[k].fit != NULL) {
            status = plot(profile, &all[k], directory, errors);
        }
    }
    return status;
}

static void print_score(const smp_fit_score *score, FILE *report)
{
    if (score->n == 0) {
        (void)fprintf(report, "       -      -");
        return;
    }
    (void)fprintf(report, "  %5.1f%% %5.1f%%", 100.0 * score->median, 100.0 * score->p95);
}

static void print_report(const smp_profile *profile, const smp_fit_set *set, const made *all,
                         FILE *report)
{
    (void)fprintf(report, "%s: error of predicted time, median and 95th percentile\n",
                  profile->name);
    (void)fprintf(report, "%-18s %5s  %-14s%-14s%-14s\n", "", "", "formula", "held back:",
                  "held back:");
    (void)fprintf(report, "%-18s %5s  %-14s%-14s%-14s\n", "operation", "rows", "alone", "rows",
                  "whole shapes");
    for (int k = 0; k < SMP_FIT_KINDS; k++) {
        const made *m = &all[k];
        if (m->fit == NULL) {
            continue;
        }
        (void)fprintf(report, "%-18s %5zu", title_of((smp_fit_kind)k), m->n);
        print_score(&m->scores.model, report);
        print_score(&m->scores.rows, report);
        print_score(&m->scores.shapes, report);
        (void)fprintf(report, "\n");
    }
    (void)fprintf(report, "left out: %llu rows of other GPUs, %llu that no fit is about\n",
                  (unsigned long long)set->other_gpu, (unsigned long long)set->unused);
}

static smp_status calibrate(const smp_calibrate_options *o, const smp_profile *profile,
                            smp_fit_set *set, FILE *report, smp_errors *errors)
{
    smp_status status = SMP_OK;
    for (size_t i = 0; i < o->n_file; i++) {
        const smp_status one = smp_fit_rows_read(o->files[i], profile, o->gpu, errors, set);
        status = status == SMP_OK ? one : status;
    }
    if (status != SMP_OK) {
        return status;
    }
    made all[SMP_FIT_KINDS] = {0};
    bool any = false;
    for (int k = 0; k < SMP_FIT_KINDS; k++) {
        make(set, (smp_fit_kind)k, &all[k]);
        any = any || all[k].fit != NULL;
    }
    if (!any) {
        status = smp_fail(errors, SMP_INPUT, NULL,
                          "no fit: fewer than 8 rows of one operation on %s; %llu rows are of "
                          "other GPUs, %llu of operations that no fit is about",
                          o->gpu != NULL ? o->gpu : profile->name,
                          (unsigned long long)set->other_gpu, (unsigned long long)set->unused);
    } else {
        print_report(profile, set, all, report);
        if (o->output != NULL) { /* first: plots need a program that may be missing */
            status = write_output(profile, o->output, all, errors);
        }
        if (status == SMP_OK && o->plots != NULL) {
            status = plot_all(profile, all, o->plots, errors);
        }
    }
    for (int k = 0; k < SMP_FIT_KINDS; k++) {
        free(all[k].rows);
        free(all[k].residuals);
    }
    return status;
}

/* The fits of another profile, whose GPU has the same chip: they are relative to the formulas,
 * which know what differs. */
static smp_status take_over(const smp_calibrate_options *o, const smp_profile *profile,
                            FILE *report, smp_errors *errors)
{
    smp_profile *like = NULL;
    smp_status status = smp_profile_read(o->like, errors, &like);
    if (status != SMP_OK) {
        return status;
    }
    made all[SMP_FIT_KINDS] = {0};
    static const char prefix[] = "taken over from ";
    for (int k = 0; k < SMP_FIT_KINDS; k++) {
        if (like->fits[k] == NULL) {
            continue;
        }
        smp_fit *fit = SMP_ARENA_NEW(like->arena, smp_fit);
        *fit = *like->fits[k];
        if (strncmp(fit->basis.source, prefix, sizeof prefix - 1) != 0) {
            fit->basis.source = smp_arena_printf(like->arena, "%s%s: %s", prefix, like->name,
                                                 fit->basis.source);
        }
        all[k].fit = fit;
    }
    (void)fprintf(report, "%s: the fits of %s\n", profile->name, like->name);
    if (o->output != NULL) {
        status = write_output(profile, o->output, all, errors);
    }
    smp_profile_destroy(like);
    return status;
}

smp_status smp_calibrate(const smp_calibrate_options *options, FILE *report, smp_errors *errors)
{
    smp_profile *profile = NULL;
    smp_status status = smp_profile_read(options->profile, errors, &profile);
    if (status != SMP_OK) {
        return status;
    }
    if (options->like != NULL) {
        status = take_over(options, profile, report, errors);
        smp_profile_destroy(profile);
        return status;
    }
    smp_fit_set set;
    smp_fit_set_init(&set);
    status = calibrate(options, profile, &set, report, errors);
    smp_fit_set_free(&set);
    smp_profile_destroy(profile);
    return status;
}
