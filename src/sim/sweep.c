/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What-ifs: the product of some values of some settings, one simulation each.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "sim/sim.h"

#include "base/numeric.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_AXES = 8, MOST_ROWS = 4096, WIDTH = 80, FIGURES_WIDTH = 50 };

typedef struct axis {
    const char *key;
    const char **values;
    size_t n_value;
    int width; /* column of the table */
} axis;

typedef struct sweep {
    const smp_job *job;
    smp_arena *arena;
    axis axes[MOST_AXES];
    size_t n_axis;
    uint64_t n_row;
    bool json;
    smp_json_out out;
    smp_text text;
} sweep;

/* --------------------------------------------------------------------- axes */

static bool is_batch_key(const char *key)
{
    return strcmp(key, "seq_len") == 0 || strcmp(key, "global_batch") == 0;
}

/* "key=a,b,c"; text is the arena's and is cut into pieces. */
static smp_status parse_axis(sweep *s, char *text, smp_errors *errors)
{
    const smp_place where = {.file = "--sweep"};
    axis *axis_ = &s->axes[s->n_axis];
    char *equals = strchr(text, '=');
    if (!equals || equals == text || equals[1] == '\0') {
        return smp_fail(errors, SMP_INPUT, &where, "'%s': must be key=value,value,...", text);
    }
    *equals = '\0';
    axis_->key = text;
    if (!is_batch_key(text) && smp_settings_find(text) < 0) {
        return smp_fail(errors, SMP_INPUT, &where,
                        "'%s' is neither a setting nor seq_len or global_batch", text);
    }
    axis_->values = SMP_ARENA_ARRAY(s->arena, strlen(equals + 1) + 1, const char *);
    char *rest = equals + 1;
    while (rest) {
        char *comma = strchr(rest, ',');
        if (comma) {
            *comma = '\0';
        }
        if (*rest == '\0') {
            return smp_fail(errors, SMP_INPUT, &where, "%s: an empty value between commas",
                            axis_->key);
        }
        axis_->values[axis_->n_value++] = rest;
        rest = comma ? comma + 1 : NULL;
    }
    s->n_row = smp_mul(s->n_row, axis_->n_value);
    s->n_axis++;
    return SMP_OK;
}

static smp_status parse_axes(sweep *s, const char *const *axes, size_t n_axis,
                             smp_errors *errors)
{
    const smp_place where = {.file = "--sweep"};
    if (n_axis > MOST_AXES) {
        return smp_fail(errors, SMP_INPUT, &where, "%zu axes: at most %d", n_axis, MOST_AXES);
    }
    s->n_row = 1;
    for (size_t i = 0; i < n_axis; i++) {
        smp_status status = parse_axis(s, smp_arena_strdup(s->arena, axes[i]), errors);
        if (status != SMP_OK) {
            return status;
        }
        for (size_t j = 0; j + 1 < s->n_axis; j++) {
            if (strcmp(s->axes[j].key, s->axes[i].key) == 0) {
                return smp_fail(errors, SMP_INPUT, &where, "%s is given twice",
                                s->axes[i].key);
            }
        }
    }
    if (s->n_row > MOST_ROWS) {
        return smp_fail(errors, SMP_INPUT, &where, "%" PRIu64 " combinations: at most %d",
                        s->n_row, MOST_ROWS);
    }
    return SMP_OK;
}

/* Value of axis i in a row; the last axis changes fastest. */
static const char *value_at(const sweep *s, uint64_t row, size_t i)
{
    for (size_t k = s->n_axis - 1; k > i; k--) {
        row /= s->axes[k].n_value;
    }
    return s->axes[i].values[row % s->axes[i].n_value];
}

/* ---------------------------------------------------------------------- rows */

static smp_status apply_value(smp_job *job, const char *key, const char *value,
                              smp_errors *errors)
{
    const smp_place where = {.file = "--sweep"};
    if (!is_batch_key(key)) {
        return smp_settings_set(&job->settings, key, value, &where, errors);
    }
    char *end = NULL;
    uint64_t number = strtoull(value, &end, 10);
    if (value[0] < '0' || value[0] > '9' || *end != '\0' || number < 1 ||
        number > UINT32_MAX) {
        return smp_fail(errors, SMP_INPUT, &where,
                        "%s '%s': must be a whole number from 1 to %u", key, value, UINT32_MAX);
    }
    *(strcmp(key, "seq_len") == 0 ? &job->batch.seq_len : &job->batch.global_batch) = number;
    return SMP_OK;
}

/* Simulates one row; the report is the caller's on success. */
static smp_status simulate_row(const sweep *s, uint64_t row, smp_errors *errors,
                               smp_report *report_p)
{
    smp_job job = *s->job;
    smp_step *step = NULL;
    smp_simulation *simulation = NULL;
    smp_status status = SMP_OK;
    for (size_t i = 0; i < s->n_axis && status == SMP_OK; i++) {
        status = apply_value(&job, s->axes[i].key, value_at(s, row, i), errors);
    }
    if (status == SMP_OK) {
        smp_job_default_batch(&job);
        status = smp_job_resolve(&job, errors);
    }
    if (status == SMP_OK) {
        status = smp_step_lower(&job, errors, &step);
    }
    if (status == SMP_OK) {
        status = smp_simulate(&job, step, errors, &simulation);
    }
    if (status == SMP_OK) {
        *report_p = *smp_simulation_report(simulation);
    }
    smp_simulation_destroy(simulation);
    smp_step_destroy(step);
    return status;
}

static void out_row(sweep *s, uint64_t row, const smp_report *report, const char *reason)
{
    smp_out_object(&s->out, NULL);
    smp_out_object(&s->out, "values");
    for (size_t i = 0; i < s->n_axis; i++) {
        smp_out_string(&s->out, s->axes[i].key, value_at(s, row, i));
    }
    smp_out_end_object(&s->out);
    smp_out_string(&s->out, "error", reason);
    if (!reason) {
        smp_out_report(&s->out, s->job, report);
    }
    smp_out_end_object(&s->out);
}

static void text_reason(sweep *s, int indent, const char *reason)
{
    int column = indent;
    while (*reason) {
        int n = (int)strcspn(reason, " \n");
        if (column + 1 + n > WIDTH && column > indent) {
            smp_text_add(&s->text, "\n%*s", indent, "");
            column = indent;
        }
        smp_text_add(&s->text, " %.*s", n, reason);
        column += 1 + n;
        reason += n;
        reason += strspn(reason, " \n");
    }
    smp_text_add(&s->text, "\n");
}

static void text_row(sweep *s, uint64_t row, const smp_report *report, const char *reason)
{
    int width = 0;
    for (size_t i = 0; i < s->n_axis; i++) {
        smp_text_add(&s->text, "%-*s", s->axes[i].width, value_at(s, row, i));
        width += s->axes[i].width;
    }
    if (reason) {
        text_reason(s, width, reason);
        return;
    }
    smp_text_add(&s->text, "%10s%10.1f%7.1f%11s%12s%s\n", smp_show_seconds(report->step_time_s),
                 report->tokens_per_s_per_gpu, 100 * report->mfu,
                 smp_show_bytes(report->memory.peak_bytes),
                 smp_show_signed_bytes(report->memory.margin_bytes),
                 report->memory.fits ? "" : " !");
}

/* ------------------------------------------------------------------- headings */

static int longest_value(const axis *axis_)
{
    size_t longest = 0;
    for (size_t i = 0; i < axis_->n_value; i++) {
        size_t n = strlen(axis_->values[i]);
        longest = n > longest ? n : longest;
    }
    return (int)longest;
}

/* Columns carry the keys where 80 columns allow it, else letters that are explained. */
static void text_heading(sweep *s)
{
    int total = FIGURES_WIDTH + 2;
    for (size_t i = 0; i < s->n_axis; i++) {
        int key = (int)strlen(s->axes[i].key);
        int value = longest_value(&s->axes[i]);
        s->axes[i].width = (key > value ? key : value) + 2;
        total += s->axes[i].width;
    }
    bool letters = total > WIDTH;
    for (size_t i = 0; i < s->n_axis; i++) {
        if (letters) {
            smp_text_add(&s->text, "%c = %s\n", (int)('A' + (int)i), s->axes[i].key);
            s->axes[i].width = longest_value(&s->axes[i]) + 2;
        }
    }
    for (size_t i = 0; i < s->n_axis; i++) {
        if (letters) {
            smp_text_add(&s->text, "%-*c", s->axes[i].width, (int)('A' + (int)i));
        } else {
            smp_text_add(&s->text, "%-*s", s->axes[i].width, s->axes[i].key);
        }
    }
    smp_text_add(&s->text, "%10s%10s%7s%11s%12s\n", "step", "tok/s/GPU", "MFU %", "peak",
                 "free");
}

static void out_heading(sweep *s)
{
    smp_out_object(&s->out, NULL);
    smp_out_object(&s->out, "axes");
    for (size_t i = 0; i < s->n_axis; i++) {
        smp_out_array(&s->out, s->axes[i].key);
        for (size_t k = 0; k < s->axes[i].n_value; k++) {
            smp_out_string(&s->out, NULL, s->axes[i].values[k]);
        }
        smp_out_end_array(&s->out);
    }
    smp_out_end_object(&s->out);
    smp_out_array(&s->out, "rows");
}

static void print_rows(sweep *s, FILE *stream)
{
    smp_errors *row_errors = smp_errors_create();
    if (s->json) {
        out_heading(s);
    } else {
        text_heading(s);
    }
    bool unfit = false;
    for (uint64_t row = 0; row < s->n_row; row++) {
        smp_report report = {0};
        smp_status status = simulate_row(s, row, row_errors, &report);
        const char *reason = status == SMP_OK ? NULL : smp_errors_text(row_errors, 0);
        unfit = unfit || (!reason && !report.memory.fits);
        if (s->json) {
            out_row(s, row, &report, reason);
        } else {
            text_row(s, row, &report, reason);
        }
        smp_errors_clear(row_errors);
    }
    if (s->json) {
        smp_out_end_array(&s->out);
        smp_out_end_object(&s->out);
        fwrite(s->out.text.data, 1, s->out.text.length, stream);
    } else {
        smp_text_add(&s->text, "%s", unfit ? "! does not fit\n" : "");
        fwrite(s->text.data, 1, s->text.length, stream);
    }
    smp_errors_destroy(row_errors);
}

smp_status smp_sweep_print(const smp_job *job, const char *const *axes, size_t n_axis,
                           bool json, FILE *stream, smp_errors *errors)
{
    sweep s = {.job = job, .arena = smp_arena_create(), .json = json};
    smp_status status = parse_axes(&s, axes, n_axis, errors);
    if (status == SMP_OK) {
        print_rows(&s, stream);
        status = smp_stream_check(stream, "output", errors);
    }
    smp_text_free(&s.text);
    smp_text_free(&s.out.text);
    smp_arena_destroy(s.arena);
    return status;
}
