/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tiny job on shipped clusters, resolved, lowered and simulated, for the tests of reports
 * and traces.
 */
#ifndef SMP_TESTS_SMALL_JOB_H
#define SMP_TESTS_SMALL_JOB_H

#include "tests/check.h"

#include "sim/sim.h"

typedef struct small_job {
    smp_errors *errors;
    smp_model *model;
    smp_cluster *cluster;
    smp_profile *profile;
    smp_job job;
    smp_step *step;
    smp_simulation *simulation;
} small_job;

/* `settings` are "key=value" separated by blanks; lowered and simulated. */
static inline small_job *small_job_read(const char *cluster, uint32_t gpus, uint64_t batch,
                                        const char *settings)
{
    static const char config[] =
        "{\"model_type\": \"llama\", \"num_hidden_layers\": 5, \"hidden_size\": 512, "
        "\"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"intermediate_size\": 1408, "
        "\"vocab_size\": 1003, \"max_position_embeddings\": 2048, \"rms_norm_eps\": 1e-5}";
    small_job *s = smp_heap_alloc(1, sizeof *s);
    char words[512];
    s->errors = smp_errors_create();
    check_ok(smp_model_parse(config, sizeof config - 1, "tiny.json", "tiny", s->errors,
                             &s->model), s->errors);
    check_ok(smp_cluster_read(check_source(cluster), s->errors, &s->cluster), s->errors);
    check_ok(smp_cluster_set_gpus(s->cluster, gpus, s->errors), s->errors);
    check_ok(smp_profile_read_for(s->cluster, s->errors, &s->profile), s->errors);
    s->job = (smp_job){.model = s->model, .cluster = s->cluster, .profile = s->profile,
                       .batch = {.seq_len = 512, .global_batch = batch}};
    smp_settings_init(&s->job.settings);
    (void)snprintf(words, sizeof words, "%s", settings);
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) {
        check_ok(smp_settings_assign(&s->job.settings, word, "--set", s->errors), s->errors);
    }
    return s;
}

static inline void small_job_simulate(small_job *s)
{
    check_ok(smp_job_resolve(&s->job, s->errors), s->errors);
    check_ok(smp_step_lower(&s->job, s->errors, &s->step), s->errors);
    check_ok(smp_simulate(&s->job, s->step, s->errors, &s->simulation), s->errors);
}

static inline void small_job_free(small_job *s)
{
    smp_simulation_destroy(s->simulation);
    smp_step_destroy(s->step);
    smp_profile_destroy(s->profile);
    smp_cluster_destroy(s->cluster);
    smp_model_destroy(s->model);
    smp_errors_destroy(s->errors);
    free(s);
}

/* The jobs that most tests go through. */
typedef struct small_case {
    const char *cluster;
    uint32_t gpus;
    uint64_t batch;
    const char *settings;
} small_case;

static const small_case small_cases[] = {
    {"configs/clusters/dgx-h100.json", 1, 2, "checkpointing=none"},
    {"configs/clusters/dgx-h100.json", 8, 16, "checkpointing=full"},
    {"configs/clusters/dgx-h100.json", 7, 7, "allow_empty_shards=true"},
    {"configs/clusters/dgx-h100.json", 16, 32,
     "tensor_parallel_degree=2 hybrid_shard_degree=4"},
    {"configs/clusters/dgx-h100.json", 8, 8,
     "tensor_parallel_degree=4 checkpointing=full offload=true activation_loading_horizon=2"},
    {"configs/clusters/p4d.24xlarge.json", 24, 24, "sharding=optimizer accumulation=last"},
    {"configs/clusters/p4d.24xlarge.json", 16, 64,
     "checkpointing=full offload=true sm_activation_offloading=false micro_batch=2"},
    {"configs/clusters/dgx-h100.json", 8, 8, "sharding=none attention=naive optimizer=sgd"},
    /* groups of shards as 4 + 2 and 2 + 4, the last node not full */
    {"configs/clusters/p4d.24xlarge.json", 12, 24, "hybrid_shard_degree=6"},
};
enum { SMALL_CASES = sizeof small_cases / sizeof small_cases[0] };

static inline small_job *small_case_simulate(size_t i)
{
    small_job *s = small_job_read(small_cases[i].cluster, small_cases[i].gpus,
                                  small_cases[i].batch, small_cases[i].settings);
    small_job_simulate(s);
    return s;
}

/* What a printing call writes, as heap text. */
static inline char *small_capture(smp_status (*print)(const smp_simulation *simulation,
                                                      FILE *stream, smp_errors *errors),
                                  small_job *s)
{
    char *text = NULL;
    size_t n = 0;
    FILE *stream = open_memstream(&text, &n);
    assert_non_null(stream);
    check_ok(print(s->simulation, stream, s->errors), s->errors);
    fclose(stream);
    return text;
}

#endif
