/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs of shipped models and clusters for the tests of src/mesh; for one .c file each. */
#ifndef TESTS_MESH_JOBS_H
#define TESTS_MESH_JOBS_H

#include "tests/check.h"

typedef struct bench {
    smp_errors *errors;
    smp_model *model;
    smp_cluster *cluster;
    smp_profile *profile;
    smp_job job;
} bench;

/* A job with default settings: `gpus` of a cluster, `batch` sequences of `seq` tokens. */
static inline void bench_open(bench *b, const char *model, const char *cluster, uint32_t gpus,
                              uint64_t seq, uint64_t batch)
{
    memset(b, 0, sizeof(*b));
    b->errors = smp_errors_create();
    check_ok(smp_model_read(model, b->errors, &b->model), b->errors);
    check_ok(smp_cluster_read(cluster, b->errors, &b->cluster), b->errors);
    check_ok(smp_cluster_set_gpus(b->cluster, gpus, b->errors), b->errors);
    check_ok(smp_profile_read_for(b->cluster, b->errors, &b->profile), b->errors);
    b->job.model = b->model;
    b->job.cluster = b->cluster;
    b->job.profile = b->profile;
    b->job.batch = (smp_batch){.seq_len = seq, .global_batch = batch};
    smp_settings_init(&b->job.settings);
}

static inline void bench_close(bench *b)
{
    smp_profile_destroy(b->profile);
    smp_cluster_destroy(b->cluster);
    smp_model_destroy(b->model);
    smp_errors_destroy(b->errors);
}

static inline void bench_set(bench *b, const char *assignment)
{
    check_ok(smp_settings_assign(&b->job.settings, assignment, "--set", b->errors), b->errors);
}

#endif
