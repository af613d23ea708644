/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a step program costs to make, to prove and to simulate: medians of several runs, with
 * tasks per second.  A report, not a test.
 *
 *     make bench/step && bench/step [runs]
 */
#include "smp.h"

#include "sim/sim.h"
#include "step/program.h"

#include "bench/bench.h"

static const bench_case cases[] = {
    { "gpt2", "dgx-h100", 1, 1024, 64, { "micro_batch=8" } },
    { "Llama-3.1-70B", "dgx-h100", 64, 8192, 512,
      { "tensor_parallel_degree=4", "hybrid_shard_degree=16", "checkpointing=full" } },
    { "Llama-3.1-405B", "dgx-h100", 16384, 8192, 2048,
      { "tensor_parallel_degree=8", "checkpointing=full" } },
    { "Llama-3.1-405B", "dgx-h100", 16384, 8192, 131072,
      { "tensor_parallel_degree=8", "checkpointing=full" } },
};

static uint64_t count_tasks(const smp_step *step)
{
    uint64_t n = 0;

    for (uint32_t c = 0; c < step->n_program; c++) {
        for (uint32_t i = 0; i < step->programs[c]->n_instance; i++) {
            n += step->programs[c]->segments[step->programs[c]->order[i].segment].n_task;
        }
    }
    return n;
}

static smp_status measure(const smp_job *job, int runs, double times[3][BENCH_RUNS], uint64_t *tasks_p,
                          smp_errors *errors)
{
    for (int r = 0; r < runs; r++) {
        smp_step *step = NULL;
        smp_simulation *simulation = NULL;
        double t0 = bench_now_s(), t1, t2;
        smp_status status = smp_step_lower(job, errors, &step);

        t1 = bench_now_s();
        if (status == SMP_OK) {
            status = smp_step_verify(step, errors);
        }
        t2 = bench_now_s();
        if (status == SMP_OK) {
            status = smp_simulate(job, step, errors, &simulation);
        }
        times[0][r] = t1 - t0;
        times[1][r] = t2 - t1;
        times[2][r] = bench_now_s() - t2;
        if (status == SMP_OK) {
            *tasks_p = count_tasks(step);
        }
        smp_simulation_destroy(simulation);
        smp_step_destroy(step);
        if (status != SMP_OK) {
            return status;
        }
    }
    return SMP_OK;
}

static smp_status run_case(const bench_case *c, int runs, smp_errors *errors)
{
    static double times[3][BENCH_RUNS];
    bench_job b;
    uint64_t tasks = 0;
    smp_status status = bench_job_make(c, errors, &b);

    status = status ? status : measure(&b.job, runs, times, &tasks, errors);
    if (status == SMP_OK) {
        double lower = bench_median(times[0], runs), verify = bench_median(times[1], runs);
        double simulate = bench_median(times[2], runs);

        printf("%-15s %6u GPUs %5llu micro-batches %9llu tasks  lower %8.2f ms"
               "  verify %8.2f ms  simulate %8.2f ms  %6.2f M tasks/s\n",
               c->model, c->gpus, (unsigned long long)b.job.micro_batches,
               (unsigned long long)tasks, 1e3 * lower, 1e3 * verify, 1e3 * simulate,
               1e-6 * (double)tasks / simulate);
    }
    bench_job_free(&b);
    return status;
}

int main(int argc, char **argv)
{
    const int runs = bench_runs(argc, argv);
    smp_errors *errors = smp_errors_create();
    smp_status status = SMP_OK;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0] && status == SMP_OK; i++) {
        status = run_case(&cases[i], runs, errors);
    }
    smp_errors_print(errors, "bench/step", stderr);
    smp_errors_destroy(errors);
    return (int)status;
}
