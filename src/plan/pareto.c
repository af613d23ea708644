/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plot of time against memory: what was simulated, the front, the plans.
 *
 * The data file PATH.dat has five blocks, two blank lines apart: candidates that fit, that do
 * not, the front, the plans with their numbers, and those of the front that the table names,
 * with its letters and the settings.  plots/pareto.gp draws them.
 */
#include "config.h"

#include "plan/front.h"
#include "plan/plan_text.h"

#include "base/gnuplot.h"
#include "base/numeric.h"

#include <stdlib.h>
#include <string.h>

static int compare_spots(const void *left, const void *right)
{
    const smp_spot *a = left;
    const smp_spot *b = right;
    if (a->step_ps != b->step_ps) {
        return a->step_ps < b->step_ps ? -1 : 1;
    }
    return a->peak_bytes != b->peak_bytes ? (a->peak_bytes < b->peak_bytes ? -1 : 1)
                                          : (int)b->fits - (int)a->fits;
}

static void put_spot(FILE *stream, int64_t step_ps, uint64_t peak_bytes)
{
    fprintf(stream, "%.9g %.9g", smp_s_from_ps(step_ps), (double)peak_bytes / 1073741824.0);
}

/* One block of candidates; gnuplot wants no empty block. */
static void put_spots(FILE *stream, const smp_spot *spots, size_t n, bool fits)
{
    fprintf(stream, "# %s: step time (s), peak memory (GiB)\n",
            fits ? "candidates that fit" : "candidates that do not fit");
    fputs("NaN NaN\n", stream);
    for (size_t i = 0; i < n; i++) {
        if (spots[i].fits == fits) {
            put_spot(stream, spots[i].step_ps, spots[i].peak_bytes);
            fputc('\n', stream);
        }
    }
    fputs("\n\n", stream);
}

static void put_front(FILE *stream, const smp_front *front)
{
    fputs("# front\nNaN NaN\n", stream);
    for (size_t i = 0; i < front->n; i++) {
        put_spot(stream, front->at[i].found.report.step_ps, front->at[i].peak_bytes);
        fputc('\n', stream);
    }
    fputs("\n\n", stream);
}

static void put_named(FILE *stream, const smp_plan *plan)
{
    uint32_t *first = smp_heap_alloc((size_t)plan->n_found + 1, sizeof *first);
    smp_plan_find_ties(plan, first);
    fputs("# plans: step time (s), peak memory (GiB), number (that of the first of those that "
          "tie)\nNaN NaN \"\"\n", stream);
    for (uint32_t i = 0; i < plan->n_found; i++) {
        const smp_found *found = &plan->found[i];
        put_spot(stream, found->report.step_ps, found->report.memory.peak_bytes);
        if (first[i] == i) {
            fprintf(stream, " \"%u\"\n", i + 1);
        } else {
            fputs(" \"\"\n", stream);
        }
    }
    free(first);
}

static void put_letters(FILE *stream, const smp_front *front)
{
    size_t picked[SMP_FRONT_PICKED];
    const size_t n = smp_front_pick(front, picked);
    fputs("\n\n# front: step time (s), peak memory (GiB), letter, settings\n"
          "NaN NaN \"\" \"Front:\"\n", stream);
    for (size_t i = 0; i < n; i++) {
        const smp_front_point *p = &front->at[picked[i]];
        char name[SMP_FRONT_NAME];
        put_spot(stream, p->found.report.step_ps, p->peak_bytes);
        fprintf(stream, " \"%c\" \"%c: %s\"\n", (char)('a' + i), (char)('a' + i),
                smp_front_name(&p->found.job, name));
    }
}

static smp_status write_data(const smp_plan *plan, const char *path, smp_errors *errors)
{
    smp_file *file = NULL;
    const smp_status st = smp_file_create(path, errors, &file);
    if (st != SMP_OK) {
        return st;
    }
    const size_t n = plan->n_spot;
    smp_spot *sorted = smp_heap_alloc(n + 1, sizeof *sorted);
    if (n > 0) {
        memcpy(sorted, plan->spots, n * sizeof *sorted);
        qsort(sorted, n, sizeof *sorted, compare_spots);
    }
    FILE *stream = smp_file_stream(file);
    put_spots(stream, sorted, n, true);
    put_spots(stream, sorted, n, false);
    put_front(stream, &plan->front);
    put_named(stream, plan);
    put_letters(stream, &plan->front);
    free(sorted);
    return smp_file_commit(file, errors);
}

smp_status smp_plan_pareto(const smp_plan *plan, const char *path, smp_errors *errors)
{
    smp_status st = smp_plot_check(path, errors);
    if (st != SMP_OK) {
        return st;
    }
    smp_arena *arena = smp_arena_create();
    const char *data = smp_arena_printf(arena, "%s.dat", path);
    const smp_cluster *cluster = plan->job.cluster;
    const double usable = cluster->memory_bytes.value * (1 - plan->options.margin_frac);
    const char *capacity = smp_arena_printf(arena, "%.9g", usable / 1073741824.0);
    const char *title = smp_arena_printf(arena, "%s on %u GPUs (%s)",
                                         smp_model_name(plan->job.model), cluster->gpus,
                                         cluster->name);
    st = write_data(plan, data, errors);
    if (st == SMP_OK) {
        const char *const args[] = {capacity, title, NULL};
        st = smp_plot_run("pareto.gp", data, path, args, errors);
    }
    smp_arena_destroy(arena);
    return st;
}
