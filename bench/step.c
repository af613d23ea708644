/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a step program costs to make, to prove and to simulate: medians of several runs, with
 * tasks per second.  A report, not a test.
 *
 *     make bench/step && bench/step [runs]
 */
#include "smp.h"

#include "base/arena.h"
#include "sim/sim.h"
#include "step/program.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct bench_case {
    const char *model, *cluster;
    uint32_t gpus;
    uint64_t seq_len, global_batch;
    const char *settings[6];
} bench_case;

static const bench_case cases[] = {
    { "gpt2", "dgx-h100", 1, 1024, 64, { "micro_batch=8" } },
    { "Llama-3.1-70B", "dgx-h100", 64, 8192, 512,
      { "tensor_parallel_degree=4", "hybrid_shard_degree=16", "checkpointing=full" } },
    { "Llama-3.1-405B", "dgx-h100", 16384, 8192, 2048,
      { "tensor_parallel_degree=8", "checkpointing=full" } },
    { "Llama-3.1-405B", "dgx-h100", 16384, 8192, 131072,
      { "tensor_parallel_degree=8", "checkpointing=full" } },
};

static double now_s(void)
{
    struct timespec t;

    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, by_value);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

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

static smp_status measure(const smp_job *job, int runs, double times[3][64], uint64_t *tasks_p,
                          smp_errors *errors)
{
    for (int r = 0; r < runs; r++) {
        smp_step *step = NULL;
        smp_simulation *simulation = NULL;
        double t0 = now_s(), t1, t2;
        smp_status status = smp_step_lower(job, errors, &step);

        t1 = now_s();
        if (status == SMP_OK) {
            status = smp_step_verify(step, errors);
        }
        t2 = now_s();
        if (status == SMP_OK) {
            status = smp_simulate(job, step, errors, &simulation);
        }
        times[0][r] = t1 - t0;
        times[1][r] = t2 - t1;
        times[2][r] = now_s() - t2;
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
    static double times[3][64];
    smp_job job;
    smp_model *model = NULL;
    smp_cluster *cluster = NULL;
    smp_profile *profile = NULL;
    uint64_t tasks = 0;
    smp_status status;

    memset(&job, 0, sizeof job);
    smp_settings_init(&job.settings);
    status = smp_model_read(c->model, errors, &model);
    status = status ? status : smp_cluster_read(c->cluster, errors, &cluster);
    status = status ? status : smp_cluster_set_gpus(cluster, c->gpus, errors);
    status = status ? status : smp_profile_read_for(cluster, errors, &profile);
    for (int i = 0; i < 6 && c->settings[i] && status == SMP_OK; i++) {
        status = smp_settings_assign(&job.settings, c->settings[i], "bench", errors);
    }
    job.model = model;
    job.cluster = cluster;
    job.profile = profile;
    job.batch = (smp_batch){ c->seq_len, c->global_batch };
    status = status ? status : smp_job_resolve(&job, errors);
    status = status ? status : measure(&job, runs, times, &tasks, errors);
    if (status == SMP_OK) {
        double lower = median(times[0], runs), verify = median(times[1], runs);
        double simulate = median(times[2], runs);

        printf("%-15s %6u GPUs %5llu micro-batches %9llu tasks  lower %8.2f ms"
               "  verify %8.2f ms  simulate %8.2f ms  %6.2f M tasks/s\n",
               c->model, c->gpus, (unsigned long long)job.micro_batches,
               (unsigned long long)tasks, 1e3 * lower, 1e3 * verify, 1e3 * simulate,
               1e-6 * (double)tasks / simulate);
    }
    smp_profile_destroy(profile);
    smp_cluster_destroy(cluster);
    smp_model_destroy(model);
    return status;
}

int main(int argc, char **argv)
{
    int runs = argc > 1 ? atoi(argv[1]) : 7;
    smp_errors *errors = smp_errors_create();
    smp_status status = SMP_OK;

    runs = runs < 1 ? 1 : runs > 64 ? 64 : runs;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0] && status == SMP_OK; i++) {
        status = run_case(&cases[i], runs, errors);
    }
    smp_errors_print(errors, "bench/step", stderr);
    smp_errors_destroy(errors);
    return (int)status;
}
