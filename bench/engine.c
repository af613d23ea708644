/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What simulated tasks cost: the event engine without and with records and with tasks that slow
 * each other down (overlap), the whole report, and all ranks apart without and with jitter; beside them the floor, a binary heap of the same
 * size alone.  Medians of processor time.  A report, not a test.
 *
 *     make bench/engine && bench/engine [runs]
 */
#include "smp.h"

#include "base/arena.h"
#include "base/numeric.h"
#include "sim/apart.h"
#include "sim/sim.h"

#include "bench/bench.h"

#include <stdlib.h>
#include <string.h>

static const bench_case cases[] = {
    { "gpt2", "dgx-h100", 1, 1024, 64, { "micro_batch=8" } },
    { "Llama-3.1-70B", "dgx-h100", 64, 8192, 512,
      { "tensor_parallel_degree=4", "hybrid_shard_degree=16", "checkpointing=full" } },
    { "Llama-3.1-405B", "dgx-h100", 16384, 8192, 2048,
      { "tensor_parallel_degree=8", "checkpointing=full" } },
    { "Llama-3.1-405B", "dgx-h100", 16384, 8192, 131072,
      { "tensor_parallel_degree=8", "checkpointing=full" } },
};

/* ---- the floors ---- */

/* Nanoseconds for one pop and one push on a heap of `n` entries (time, actor), which is what
 * an event costs when nothing else is done for it. */
static double heap_floor_ns(uint32_t n)
{
    enum { STEPS = 2000000 };
    typedef struct entry { int64_t time_ps; uint32_t actor; } entry;
    entry *heap = smp_heap_alloc(n, sizeof *heap);
    uint64_t random = 1;
    const double from_s = bench_cpu_s();

    for (uint32_t i = 0; i < STEPS; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        entry last = { heap[0].time_ps + (int64_t)(random >> 44), heap[0].actor };
        uint32_t at = 0;
        for (uint32_t child = 1; child < n; child = 2 * at + 1) {
            child += child + 1 < n && heap[child + 1].time_ps < heap[child].time_ps;
            if (heap[child].time_ps >= last.time_ps) {
                break;
            }
            heap[at] = heap[child];
            at = child;
        }
        heap[at] = last;
    }
    const double ns = 1e9 * (bench_cpu_s() - from_s) / STEPS;
    free(heap);
    return ns;
}

/* ---- one case ---- */

enum { BARE, RECORDS, OVERLAP, REPORT, WAYS };

static const uint8_t *const *overlap_kinds(const smp_step *step, smp_arena *arena)
{
    uint8_t **kinds = SMP_ARENA_ARRAY(arena, step->n_program, uint8_t *);

    for (uint32_t c = 0; c < step->n_program; c++) {
        const smp_program *program = step->programs[c];
        kinds[c] = SMP_ARENA_ARRAY(arena, program->n_task, uint8_t);
        for (uint32_t t = 0; t < program->n_task; t++) {
            kinds[c][t] = (uint8_t)smp_cost_overlap_kind(program, &program->tasks[t]);
        }
    }
    return (const uint8_t *const *)kinds;
}

/* One run of the engine, or of all that a report takes. */
static smp_status run_once(const smp_simulation *s, int way, const smp_overlap *overlap,
                           const uint8_t *const *kinds, smp_errors *errors)
{
    const smp_engine_input input = {
        .step = s->step, .duration_ps = s->duration_ps,
        .records = way == BARE ? NULL : s->records,
        .record0 = (const uint32_t *const *)s->record0,
        .overlap = way == OVERLAP ? overlap : NULL, .kinds = way == OVERLAP ? kinds : NULL
    };
    smp_simulation *again = NULL;
    int64_t end_ps = 0;
    uint32_t slowest = 0;

    if (way != REPORT) {
        return smp_engine_simulate(&input, errors, &end_ps, &slowest);
    }
    smp_status status = smp_simulate(s->job, s->step, errors, &again);
    smp_simulation_destroy(again);
    return status;
}

/* Medians of seconds, by way. */
static smp_status time_engine(const smp_simulation *s, int runs, double median_s[WAYS],
                              smp_errors *errors)
{
    static double seconds[BENCH_RUNS];
    smp_arena *arena = smp_arena_create();
    const uint8_t *const *kinds = overlap_kinds(s->step, arena);
    smp_overlap overlap;
    smp_status status = SMP_OK;

    (void)smp_cost_overlap(s->job->profile, &overlap);
    for (int way = 0; way < WAYS && status == SMP_OK; way++) {
        for (int r = 0; r < runs && status == SMP_OK; r++) {
            const double from_s = bench_cpu_s();
            status = run_once(s, way, &overlap, kinds, errors);
            seconds[r] = bench_cpu_s() - from_s;
        }
        median_s[way] = bench_median(seconds, runs);
    }
    smp_arena_destroy(arena);
    return status;
}

static smp_status time_apart(const smp_simulation *s, smp_errors *errors)
{
    static smp_noise_table table;
    const smp_noise noise[2] = { { .kernel = NULL }, { .kernel = &table, .collective = &table } };
    smp_apart *apart = NULL;
    double seconds[3];
    const double from_s = bench_cpu_s();
    smp_status status = smp_apart_create(s, errors, &apart);

    if (status != SMP_OK) {
        return status;
    }
    seconds[2] = bench_cpu_s() - from_s;
    smp_noise_fill(&table, 0.05);
    for (int i = 0; i < 2; i++) {
        const smp_apart_run_input input = { .noise = &noise[i], .seed = 1 };
        smp_apart_result result;
        const double start_s = bench_cpu_s();
        smp_apart_run(apart, &input, &result);
        seconds[i] = bench_cpu_s() - start_s;
    }
    const double tasks = (double)smp_apart_tasks(apart);
    printf("  apart: %.0f tasks, %.1f MB of state; order %.1f ms, quiet %.2f s (%.0f M/s), "
           "jitter %.2f s (%.0f M/s)\n",
           tasks, 1e-6 * (double)smp_apart_state_bytes(apart), 1e3 * seconds[2], seconds[0],
           1e-6 * tasks / seconds[0], seconds[1], 1e-6 * tasks / seconds[1]);
    smp_apart_destroy(apart);
    return SMP_OK;
}

static smp_status run_case(const bench_case *c, int runs, smp_errors *errors)
{
    double median_s[WAYS] = { 0 };
    enum { MOST_APART = 200000000 };
    bench_job b;
    smp_step *step = NULL;
    smp_simulation *s = NULL;
    smp_status status = bench_job_make(c, errors, &b);

    status = status ? status : smp_step_lower(&b.job, errors, &step);
    status = status ? status : smp_simulate(&b.job, step, errors, &s);
    status = status ? status : time_engine(s, runs, median_s, errors);
    if (status == SMP_OK) {
        const double tasks = (double)s->report.tasks;
        printf("%-15s %6u GPUs %4llu micro-batches %7.0f tasks in %u class%s: M tasks/s "
               "bare %.1f, records %.1f, overlap %.1f, report %.1f\n",
               c->model, c->gpus, (unsigned long long)b.job.micro_batches, tasks,
               s->report.classes, s->report.classes == 1 ? "" : "es",
               1e-6 * tasks / median_s[BARE], 1e-6 * tasks / median_s[RECORDS],
               1e-6 * tasks / median_s[OVERLAP], 1e-6 * tasks / median_s[REPORT]);
        if (tasks * c->gpus < MOST_APART) {
            status = time_apart(s, errors);
        }
    }
    smp_simulation_destroy(s);
    smp_step_destroy(step);
    bench_job_free(&b);
    return status;
}

int main(int argc, char **argv)
{
    const int runs = bench_runs(argc, argv);
    smp_errors *errors = smp_errors_create();
    smp_status status = SMP_OK;

    for (uint32_t n = 4; n <= 64; n *= 4) {
        const double ns = heap_floor_ns(n);
        printf("floor: a heap of %2u entries alone %5.1f ns an event, %5.1f M/s\n", n, ns,
               1e3 / ns);
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0] && status == SMP_OK; i++) {
        status = run_case(&cases[i], runs, errors);
    }
    smp_errors_print(errors, "bench/engine", stderr);
    smp_errors_destroy(errors);
    return (int)status;
}
