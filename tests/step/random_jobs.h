/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random jobs of tiny models under all settings, for the tests of src/step; the group's set-up
 * is read_machines, its tear-down forget_machines.
 */
#ifndef TESTS_RANDOM_JOBS_H
#define TESTS_RANDOM_JOBS_H

#include "tests/check.h"

#include "base/numeric.h"
#include "model/model.h"
#include "step/program.h"

static smp_errors *errors;

static inline int set_up(void **state)
{
    (void)state;
    errors = smp_errors_create();
    return 0;
}

static inline int tear_down(void **state)
{
    (void)state;
    smp_errors_destroy(errors);
    return 0;
}

typedef struct dice { uint64_t seed, n; } dice;

static inline uint32_t draw(dice *d, uint32_t below)
{
    uint32_t words[4];
    smp_random4(d->seed, 1, d->n++, words);
    return words[0] % below;
}

/* Tiny models of four shapes; the number of layers follows. */
static const char *const models[] = {
    "{\"model_type\": \"llama\", \"hidden_size\": 64, \"intermediate_size\": 96,"
    " \"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"vocab_size\": 257,"
    " \"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-5, \"num_hidden_layers\": ",
    "{\"model_type\": \"gpt2\", \"n_embd\": 48, \"n_head\": 4, \"n_positions\": 256,"
    " \"vocab_size\": 101, \"resid_pdrop\": 0.1, \"attn_pdrop\": 0.1, \"embd_pdrop\": 0.1,"
    " \"n_layer\": ",
    "{\"model_type\": \"gpt_neox\", \"hidden_size\": 64, \"intermediate_size\": 256,"
    " \"num_attention_heads\": 8, \"vocab_size\": 130, \"rotary_pct\": 0.25,"
    " \"max_position_embeddings\": 2048, \"use_parallel_residual\": true,"
    " \"num_hidden_layers\": ",
    "{\"model_type\": \"qwen3\", \"hidden_size\": 64, \"intermediate_size\": 128,"
    " \"head_dim\": 32,"
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 4, \"vocab_size\": 300,"
    " \"max_position_embeddings\": 4096, \"tie_word_embeddings\": true,"
    " \"num_hidden_layers\": ",
};

/* Values of settings, one of which is drawn, or none: then the default acts. */
static const char *const choices[][5] = {
    {"sharding=full", "sharding=optimizer", "sharding=none"},
    {"hybrid_shard_degree=0", "hybrid_shard_degree=1", "hybrid_shard_degree=2",
     "hybrid_shard_degree=4"},
    {"tensor_parallel_degree=1", "tensor_parallel_degree=2", "tensor_parallel_degree=4"},
    {"micro_batch=1", "micro_batch=2"},
    {"checkpointing=none", "checkpointing=selective", "checkpointing=selective:op",
     "checkpointing=full", "checkpointing=first:2"},
    {"offload=true", "offload=false"},
    {"offload_layers=1", "offload_layers=2", "offload_layers=3"},
    {"sm_activation_offloading=true", "sm_activation_offloading=false"},
    {"activation_loading_horizon=1", "activation_loading_horizon=2",
     "activation_loading_horizon=3"},
    {"reshard_after_forward=true", "reshard_after_forward=false"},
    {"accumulation=every", "accumulation=last"},
    {"sequence_parallel=true", "sequence_parallel=false"},
    {"precision=bf16", "precision=fp16", "precision=fp32"},
    {"master=fp32", "master=bf16"},
    {"reduce_dtype=fp32", "reduce_dtype=bf16"},
    {"attention=flash", "attention=naive"},
    {"optimizer=adamw", "optimizer=sgd"},
    {"loss_chunks=1", "loss_chunks=2", "loss_chunks=4"},
    {"prefetch=backward_pre", "prefetch=backward_post", "prefetch=none"},
    {"forward_prefetch=true", "forward_prefetch=false"},
    {"allow_empty_shards=true"},
    {"stack=fsdp1", "stack=fsdp2", "stack=megatron", "stack=deepspeed"},
    {"compile=true"},
    {"loss_kernel=fused", "loss_kernel=compiled", "loss_kernel=copy", "loss_kernel=eager"},
    {"overlap_reduce=false"},
    {"overlap_gather=false"},
};

typedef struct bench {
    smp_model *model;
    smp_job job;
} bench;

static inline void bench_close(bench *b)
{
    smp_model_destroy(b->model);
}

/* Clusters of the sizes in use and the profile are read once. */
static const uint32_t sizes[] = {1, 2, 4, 7, 8, 16, 24, 64};
enum { SIZES = sizeof sizes / sizeof *sizes };
static smp_cluster *clusters[SIZES];
static smp_profile *profile;

static inline int read_machines(void **state)
{
    const char *path = check_source("configs/clusters/p5.48xlarge.json");
    (void)set_up(state);
    for (uint32_t k = 0; k < SIZES; k++) {
        check_ok(smp_cluster_read(path, errors, &clusters[k]), errors);
        check_ok(smp_cluster_set_gpus(clusters[k], sizes[k], errors), errors);
    }
    check_ok(smp_profile_read(check_source("configs/profiles/h100-sxm.json"), errors,
                              &profile), errors);
    return 0;
}

static inline int forget_machines(void **state)
{
    for (uint32_t k = 0; k < SIZES; k++) {
        smp_cluster_destroy(clusters[k]);
    }
    smp_profile_destroy(profile);
    return tear_down(state);
}

static inline void bench_cluster(bench *b, uint32_t size)
{
    b->job.model = b->model;
    b->job.cluster = clusters[size];
    b->job.profile = profile;
    smp_settings_init(&b->job.settings);
}

static inline void draw_settings(bench *b, dice *d)
{
    for (size_t c = 0; c < sizeof choices / sizeof *choices; c++) {
        uint32_t n = 0, pick = draw(d, 6);
        while (n < 5 && choices[c][n] != NULL) {
            n++;
        }
        if (pick < n) {
            check_ok(smp_settings_assign(&b->job.settings, choices[c][pick], "--set", errors),
                     errors);
        }
    }
}

#endif
