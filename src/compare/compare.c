/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of predicted and measured times, one row a stored task of rank 0.
 */
#include "config.h"

#include "compare/compare.h"

#include "base/numeric.h"
#include "base/text.h"
#include "sim/sim.h"

#include <stdlib.h>

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

static row *make_rows(const smp_simulation *s, const smp_exec_measured *m)
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
    qsort(rows, p->n_task, sizeof *rows, by_time);
    return rows;
}

static double error_percent(double predicted, double measured)
{
    return measured > 0 ? 100 * (predicted / measured - 1) : 0;
}

static void print_rows(const row *rows, uint32_t n, FILE *stream)
{
    double predicted = 0, measured = 0;

    (void)fprintf(stream, "\n%-18s %-24s %6s %11s %11s %8s\n", "segment", "task", "runs",
                  "predicted", "measured", "error");
    for (uint32_t i = 0; i < n; i++) {
        predicted += rows[i].predicted;
        measured += rows[i].measured;
        if (rows[i].runs > 0) {
            (void)fprintf(stream, "%-18s %-24s %6llu %11s %11s %7.0f%%\n", rows[i].segment,
                          rows[i].name, (unsigned long long)rows[i].runs,
                          smp_show_seconds(rows[i].predicted),
                          smp_show_seconds(rows[i].measured),
                          error_percent(rows[i].predicted, rows[i].measured));
        }
    }
    (void)fprintf(stream, "%-18s %-24s %6s %11s %11s %7.0f%%\n", "all tasks", "", "",
                  smp_show_seconds(predicted), smp_show_seconds(measured),
                  error_percent(predicted, measured));
}

static void print_totals(const smp_simulation *s, const smp_exec_result *result, FILE *stream)
{
    const smp_report *report = smp_simulation_report(s);
    double step = result->measured.step_seconds;

    (void)fprintf(stream, "%-18s %-24s %6s %11s %11s %7.0f%%\n", "step", "", "",
                  smp_show_seconds(report->step_time_s), smp_show_seconds(step),
                  error_percent(report->step_time_s, step));
    (void)fprintf(stream, "%-18s %-24s %6s %11llu %11llu\n", "arena bytes", "", "",
                  (unsigned long long)report->memory.arena_bytes,
                  (unsigned long long)result->arena_bytes);
    (void)fprintf(stream, "%-18s %-24s %6s %11llu %11llu\n", "host bytes", "", "",
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
        row *rows = make_rows(simulation, &result->measured);

        print_rows(rows, result->measured.n_task, stream);
        print_totals(simulation, result, stream);
        free(rows);
    }
    smp_simulation_destroy(simulation);
    smp_step_destroy(step);
    return status;
}
