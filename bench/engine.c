/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What simulated tasks cost: the event engine without and with records, the whole report, and
 * all ranks apart without and with jitter; beside them the floor, a binary heap of the same
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

typedef struct figures { double bare[BENCH_RUNS], records[BENCH_RUNS], report[BENCH_RUNS]; } figures;

static smp_status time_engine(const smp_simulation *s, const smp_job *job, int runs, figures *f,
                              smp_errors *errors)
{
    int64_t end_ps = 0;
    uint32_t slowest = 0;
    smp_status status = SMP_OK;

    for (int r = 0; r < runs && status == SMP_OK; r++) {
        smp_simulation *again = NULL;
        double t0 = bench_cpu_s(), t1, t2;
        status = smp_engine_run(s->step, s->duration_ps, NULL, NULL, errors, &end_ps, &slowest);
        t1 = bench_cpu_s();
        status = status ? status
                        : smp_engine_run(s->step, s->duration_ps, s->records,
                                         (const uint32_t *const *)s->record0, errors, &end_ps,
                                         &slowest);
        t2 = bench_cpu_s();
        status = status ? status : smp_simulate(job, s->step, errors, &again);
        f->report[r] = bench_cpu_s() - t2;
        f->records[r] = t2 - t1;
        f->bare[r] = t1 - t0;
        smp_simulation_destroy(again);
    }
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
    static figures f;
    enum { MOST_APART = 200000000 };
    bench_job b;
    smp_step *step = NULL;
    smp_simulation *s = NULL;
    smp_status status = bench_job_make(c, errors, &b);

    status = status ? status : smp_step_lower(&b.job, errors, &step);
    status = status ? status : smp_simulate(&b.job, step, errors, &s);
    status = status ? status : time_engine(s, &b.job, runs, &f, errors);
    if (status == SMP_OK) {
        const double tasks = (double)s->report.tasks;
        printf("%-15s %6u GPUs %4llu micro-batches %7.0f tasks in %u class%s: M tasks/s "
               "bare %.1f, records %.1f, report %.1f\n",
               c->model, c->gpus, (unsigned long long)b.job.micro_batches, tasks,
               s->report.classes, s->report.classes == 1 ? "" : "es",
               1e-6 * tasks / bench_median(f.bare, runs),
               1e-6 * tasks / bench_median(f.records, runs),
               1e-6 * tasks / bench_median(f.report, runs));
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
