/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the benchmarks share: a clock, medians, and jobs by name.
 */
#ifndef SMP_BENCH_BENCH_H
#define SMP_BENCH_BENCH_H

#include "smp.h"

#include <stdlib.h>
#include <time.h>

enum { BENCH_RUNS = 64, BENCH_SETTINGS = 6 };

static inline double bench_now_s(void)
{
    struct timespec t;

    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Time of the processor that this process took: what others do on the machine counts less. */
static inline double bench_cpu_s(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

static inline int bench_by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Sorts the values. */
static inline double bench_median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, bench_by_value);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* The first argument, or 7. */
static inline int bench_runs(int argc, char **argv)
{
    int runs = argc > 1 ? atoi(argv[1]) : 7;

    return runs < 1 ? 1 : runs > BENCH_RUNS ? BENCH_RUNS : runs;
}

typedef struct bench_case {
    const char *model, *cluster;
    uint32_t gpus;
    uint64_t seq_len, global_batch;
    const char *settings[BENCH_SETTINGS];
} bench_case;

typedef struct bench_job {
    smp_model *model;
    smp_cluster *cluster;
    smp_profile *profile;
    smp_job job;
} bench_job;

/* Not yet resolved. */
static inline smp_status bench_job_read(const bench_case *c, smp_errors *errors,
                                        bench_job *b)
{
    smp_status status;

    *b = (bench_job){ .model = NULL };
    smp_settings_init(&b->job.settings);
    status = smp_model_read(c->model, errors, &b->model);
    status = status ? status : smp_cluster_read(c->cluster, errors, &b->cluster);
    status = status ? status : smp_cluster_set_gpus(b->cluster, c->gpus, errors);
    status = status ? status : smp_profile_read_for(b->cluster, errors, &b->profile);
    for (int i = 0; i < BENCH_SETTINGS && c->settings[i] && status == SMP_OK; i++) {
        status = smp_settings_assign(&b->job.settings, c->settings[i], "bench", errors);
    }
    b->job.model = b->model;
    b->job.cluster = b->cluster;
    b->job.profile = b->profile;
    b->job.batch = (smp_batch){.seq_len = c->seq_len, .global_batch = c->global_batch};
    return status;
}

static inline smp_status bench_job_make(const bench_case *c, smp_errors *errors,
                                        bench_job *b)
{
    smp_status status = bench_job_read(c, errors, b);

    return status ? status : smp_job_resolve(&b->job, errors);
}

static inline void bench_job_free(bench_job *b)
{
    smp_profile_destroy(b->profile);
    smp_cluster_destroy(b->cluster);
    smp_model_destroy(b->model);
}

#endif
