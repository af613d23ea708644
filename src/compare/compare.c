/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of predicted and measured times, one row for each task of a segment of rank 0.
 */
#include "config.h"

#include "compare/compare.h"

#include "base/numeric.h"
#include "base/text.h"
#include "sim/sim.h"

#include <stdlib.h>
#include <string.h>

typedef struct row {
    const char *segment, *name;
    double predicted, measured; /* seconds of all runs */
    uint64_t runs;
} row;

static int by_time(const void *a, const void *b)
{
    const row *x = a, *y = b;
    double p = x->measured > x->predicted ? x->measured : x->predicted;
    double q = y->measured > y->predicted ? y->measured : y->predicted;

    return p < q ? 1 : p > q ? -1 : 0;
}

static int by_name(const void *a, const void *b)
{
    const row *x = a, *y = b;
    int order = strcmp(x->segment, y->segment);

    return order != 0 ? order : strcmp(x->name, y->name);
}

/* Layers of other kinds have tasks of the same names: one row each. */
static uint32_t join_rows(row *rows, uint32_t n)
{
    uint32_t last = 0;

    qsort(rows, n, sizeof *rows, by_name);
    for (uint32_t i = 1; i < n; i++) {
        if (by_name(&rows[last], &rows[i]) != 0) {
            rows[++last] = rows[i];
            continue;
        }
        rows[last].predicted += rows[i].predicted;
        rows[last].measured += rows[i].measured;
        rows[last].runs += rows[i].runs;
    }
    return n > 0 ? last + 1 : 0;
}

static row *make_rows(const smp_simulation *s, const smp_exec_measured *m, uint32_t *n_p)
{
    uint32_t c = s->step->classes->class_of_rank[0];
    const smp_program *p = s->step->programs[c];
    row *rows = smp_heap_alloc(p->n_task, sizeof *rows);

    for (uint32_t i = 0; i < p->n_segment; i++) {
        for (uint32_t k = 0; k < p->segments[i].n_task; k++) {
            uint32_t t = p->segments[i].task0 + k;

            rows[t] = (row){ .segment = p->segments[i].name,
                             .name = p->tasks[t].name,
                             .predicted = smp_s_from_ps(s->duration_ps[c][t])
                                          * (double)m->runs[t],
                             .measured = m->seconds[t],
                             .runs = m->runs[t] };
        }
    }
    *n_p = join_rows(rows, p->n_task);
    qsort(rows, *n_p, sizeof *rows, by_time);
    return rows;
}

/* Of the prediction: what it is too long or too short, in parts of what was measured; as a
 * ratio where it is many times that. */
static const char *error_of(double predicted, double measured, char text[32])
{
    double ratio = measured > 0 ? predicted / measured : 1;

    if (ratio >= 10) {
        (void)snprintf(text, 32, "%.0f times", ratio);
    } else {
        (void)snprintf(text, 32, "%.1f%%", 100 * (ratio - 1));
    }
    return text;
}

static void print_row(const row *r, FILE *stream)
{
    char error[32], runs[32] = "";

    if (r->runs > 0) {
        (void)snprintf(runs, sizeof runs, "%llu", (unsigned long long)r->runs);
    }
    (void)fprintf(stream, "%-16s %-24s %6s %9s %9s %10s\n", r->segment, r->name, runs,
                  smp_show_seconds(r->predicted), smp_show_seconds(r->measured),
                  error_of(r->predicted, r->measured, error));
}

static void print_rows(const row *rows, uint32_t n, FILE *stream)
{
    row all = { .segment = "all tasks", .name = "" };

    (void)fprintf(stream, "\n%-16s %-24s %6s %9s %9s %10s\n", "segment", "task", "runs",
                  "predicted", "measured", "error");
    for (uint32_t i = 0; i < n; i++) {
        all.predicted += rows[i].predicted;
        all.measured += rows[i].measured;
        if (rows[i].runs > 0) {
            print_row(&rows[i], stream);
        }
    }
    print_row(&all, stream);
}

static void print_totals(const smp_simulation *s, const smp_exec_result *result, FILE *stream)
{
    const smp_report *report = smp_simulation_report(s);
    const row step = { .segment = "step", .name = "",
                       .predicted = report->step_time_s,
                       .measured = result->measured.step_seconds };

    print_row(&step, stream);
    (void)fprintf(stream, "%-16s %39llu %12llu\n", "arena bytes",
                  (unsigned long long)report->memory.arena_bytes,
                  (unsigned long long)result->arena_bytes);
    (void)fprintf(stream, "%-16s %39llu %12llu\n", "host bytes",
                  (unsigned long long)report->memory.host_bytes,
                  (unsigned long long)result->host_arena_bytes);
}

smp_status smp_compare(const smp_job *job, const smp_exec_result *result, FILE *stream,
                        smp_errors *errors)
{
    smp_simulation *simulation = NULL;
    smp_step *step = NULL;
    smp_status status = smp_step_lower(job, errors, &step);

    if (status == SMP_OK) {
        status = smp_simulate(job, step, errors, &simulation);
    }
    if (status == SMP_OK) {
        uint32_t n;
        row *rows = make_rows(simulation, &result->measured, &n);

        print_rows(rows, n, stream);
        print_totals(simulation, result, stream);
        free(rows);
    }
    smp_simulation_destroy(simulation);
    smp_step_destroy(step);
    return status;
}
