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
    assert_int_equal(smp_model_read(model, b->errors, &b->model), SMP_OK);
    assert_int_equal(smp_cluster_read(cluster, b->errors, &b->cluster), SMP_OK);
    assert_int_equal(smp_cluster_set_gpus(b->cluster, gpus, b->errors), SMP_OK);
    assert_int_equal(smp_profile_read_for(b->cluster, b->errors, &b->profile), SMP_OK);
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
    assert_int_equal(smp_settings_assign(&b->job.settings, assignment, "--set", b->errors),
                     SMP_OK);
}

#endif
