/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small jobs for the tests of the planner: tiny models on few GPUs, drawn from a seed, with
 * some settings pinned so that every point can be simulated.
 */
#ifndef SMP_TESTS_SMALL_H
#define SMP_TESTS_SMALL_H

#include "tests/check.h"

#include "base/numeric.h"
#include "model/model.h"
#include "plan/plan.h"

typedef struct small {
    smp_errors *errors;
    smp_model *model;
    smp_cluster *cluster;
    smp_profile *profile;
    smp_job job; /* not resolved */
} small;

static inline uint32_t small_draw(uint64_t seed, uint64_t counter, uint32_t below)
{
    uint32_t words[4];
    smp_random4(seed, 0, counter, words);
    return words[0] % below;
}

static inline smp_model *small_model(uint32_t layers, uint32_t kv_heads, smp_errors *errors)
{
    char text[640];
    smp_model *model = NULL;
    const int n = snprintf(
        text, sizeof text,
        "{\"model_type\": \"llama\", \"num_hidden_layers\": %u, \"hidden_size\": 512, "
        "\"num_attention_heads\": 8, \"num_key_value_heads\": %u, \"intermediate_size\": 1024, "
        "\"vocab_size\": 1000, \"max_position_embeddings\": 1024, \"rms_norm_eps\": 1e-5}",
        layers, kv_heads);
    check_ok(smp_model_parse(text, (size_t)n, "tiny.json", "tiny", errors, &model), errors);
    return model;
}

static inline smp_model *small_moe(uint32_t layers, uint32_t top_k, smp_errors *errors)
{
    char text[640];
    smp_model *model = NULL;
    const int n = snprintf(
        text, sizeof text,
        "{\"model_type\": \"mixtral\", \"num_hidden_layers\": %u, \"hidden_size\": 512, "
        "\"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"intermediate_size\": 512, "
        "\"vocab_size\": 1000, \"max_position_embeddings\": 1024, "
        "\"num_local_experts\": 8, \"num_experts_per_tok\": %u}", layers, top_k);
    check_ok(smp_model_parse(text, (size_t)n, "tiny.json", "tiny", errors, &model), errors);
    return model;
}

static inline void small_pin(small *s, const char *assignment)
{
    check_ok(smp_settings_assign(&s->job.settings, assignment, "--pin", s->errors), s->errors);
}

/* Pins about half of what makes the space large. */
static inline void small_pins(small *s, uint64_t seed)
{
    static const char *const pins[][2] = {
        {"sequence_parallel=true", "sequence_parallel=false"},
        {"loss_chunks=1", "loss_chunks=2"},
        {"accumulation=every", "accumulation=last"},
        {"prefetch=backward_pre", "prefetch=backward_post"},
        {"checkpointing=first:1", "checkpointing=none"},
        {"offload=false", "activation_loading_horizon=1"},
        {"reshard_after_forward=true", "reshard_after_forward=false"},
    };
    for (uint32_t i = 0; i < sizeof pins / sizeof pins[0]; i++) {
        if (small_draw(seed, 10 + i, 3) > 0) {
            small_pin(s, pins[i][small_draw(seed, 20 + i, 2)]);
        }
    }
}

/* One in three is run by other software. */
static inline void small_stack(small *s, uint64_t seed)
{
    static const char *const stacks[] = {"stack=fsdp1", "stack=fsdp2", "stack=megatron",
                                         "stack=deepspeed"};
    if (small_draw(seed, 30, 3) == 0) {
        small_pin(s, stacks[small_draw(seed, 31, 4)]);
        small_pin(s, small_draw(seed, 32, 2) == 0 ? "compile=true" : "compile=false");
    }
}

static inline void small_create(small *s, uint64_t seed)
{
    static const char *const clusters[] = {"dgx-h100", "p4d.24xlarge", "l40s-pcie"};
    static const uint32_t gpus[] = {1, 2, 4, 8, 3, 16};
    *s = (small){.errors = smp_errors_create()};
    const bool moe = small_draw(seed, 6, 4) == 0;
    s->model = moe ? small_moe(2 + small_draw(seed, 0, 3), 1U << small_draw(seed, 1, 3),
                               s->errors)
                   : small_model(2 + small_draw(seed, 0, 5), 1U << small_draw(seed, 1, 4),
                                 s->errors);
    check_ok(smp_cluster_read(clusters[small_draw(seed, 2, 3)], s->errors, &s->cluster),
             s->errors);
    const uint32_t n = gpus[small_draw(seed, 3, s->cluster->nics > 0 ? 6 : 5)];
    check_ok(smp_cluster_set_gpus(s->cluster, n, s->errors), s->errors);
    check_ok(smp_profile_read_for(s->cluster, s->errors, &s->profile), s->errors);
    s->job = (smp_job){.model = s->model, .cluster = s->cluster, .profile = s->profile};
    s->job.batch.seq_len = 128U << small_draw(seed, 4, 3);
    s->job.batch.global_batch = (uint64_t)n * (1U + small_draw(seed, 5, 12));
    smp_settings_init(&s->job.settings);
    small_pins(s, seed);
    small_stack(s, seed);
    if (moe) { /* or the space has thousands of points */
        static const char *const pins[] = {"expert_layout=nested", "loss_chunks=1",
                                           "moe_all_to_all_dispatcher=false"};
        small_pin(s, pins[small_draw(seed, 7, 3)]);
        small_pin(s, n % 2 == 0 && small_draw(seed, 8, 2) == 0 ? "expert_parallel_degree=2"
                                                               : "tensor_parallel_degree=1");
    }
}

static inline void small_destroy(small *s)
{
    smp_profile_destroy(s->profile);
    smp_cluster_destroy(s->cluster);
    smp_model_destroy(s->model);
    smp_errors_destroy(s->errors);
}

#endif
