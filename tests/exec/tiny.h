/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiny models and their training for the tests of src/exec; for one .c file each.
 */
#ifndef TESTS_EXEC_TINY_H
#define TESTS_EXEC_TINY_H

#include "tests/check.h"

#include "exec/exec.h"
#include "exec/store.h"

#define TINY_LLAMA                                                                          \
    "{\"model_type\": \"llama\", \"vocab_size\": 97, \"hidden_size\": 32, "                 \
    "\"intermediate_size\": 48, \"num_hidden_layers\": 3, \"num_attention_heads\": 8, "     \
    "\"num_key_value_heads\": 4, \"max_position_embeddings\": 64, "                         \
    "\"tie_word_embeddings\": false, \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0}"
#define TINY_GPT2                                                                           \
    "{\"model_type\": \"gpt2\", \"vocab_size\": 97, \"n_embd\": 32, \"n_layer\": 3, "       \
    "\"n_head\": 8, \"n_positions\": 64, \"resid_pdrop\": 0.0, \"embd_pdrop\": 0.0, "       \
    "\"attn_pdrop\": 0.0}"

/* Of a family that reads the common keys; `more` begins with a comma. */
#define TINY_OF(family, more)                                                               \
    "{\"model_type\": \"" family "\", \"vocab_size\": 97, \"hidden_size\": 32, "            \
    "\"n_embd\": 32, \"intermediate_size\": 48, \"num_hidden_layers\": 3, \"n_layer\": 3, "   \
    "\"num_attention_heads\": 8, \"n_head\": 8, \"max_position_embeddings\": 64, "            \
    "\"n_positions\": 64" more "}"

/* With experts; those of deepseek, and its low-rank attention, in all layers but the first. */
#define TINY_MIXTRAL \
    TINY_OF("mixtral", ", \"num_key_value_heads\": 4, \"num_local_experts\": 4, " \
            "\"num_experts_per_tok\": 2, \"initializer_range\": 0.15")
#define TINY_DEEPSEEK \
    TINY_OF("deepseek_v3", ", \"num_key_value_heads\": 8, \"q_lora_rank\": 12, " \
            "\"kv_lora_rank\": 10, \"qk_nope_head_dim\": 4, \"qk_rope_head_dim\": 2, " \
            "\"v_head_dim\": 4, \"n_routed_experts\": 8, \"num_experts_per_tok\": 3, " \
            "\"moe_intermediate_size\": 24, \"n_shared_experts\": 1, \"n_group\": 1, " \
            "\"topk_group\": 1, \"first_k_dense_replace\": 1, " \
            "\"initializer_range\": 0.15")

typedef struct tiny {
    smp_errors *errors;
    smp_model *model;
    smp_cluster *cluster;
    smp_profile *profile;
    smp_job job;
    smp_exec_options options;
    smp_exec_result result;
} tiny;

/* Text of which every part is different and that the vocabulary of 97 covers. */
static inline const char *tiny_text(void)
{
    static char path[64];
    char text[4096];
    uint32_t x = 12345;

    for (size_t i = 0; i < sizeof text; i++) {
        x = x * 1664525u + 1013904223u;
        text[i] = (char)(x >> 24) % 29 + 33;
        text[i] = (char)(text[i] < 0 ? -text[i] : text[i]);
    }
    (void)snprintf(path, sizeof path, "%s", check_file(text, sizeof text));
    return path;
}

static inline void tiny_open(tiny *t, const char *config, uint32_t ranks, uint64_t seq,
                             uint64_t batch)
{
    memset(t, 0, sizeof *t);
    t->errors = smp_errors_create();
    check_ok(smp_model_parse(config, strlen(config), "tiny.json", "tiny", t->errors,
                             &t->model),
             t->errors);
    check_ok(smp_cluster_read("cpu", t->errors, &t->cluster), t->errors);
    check_ok(smp_cluster_set_gpus(t->cluster, ranks, t->errors), t->errors);
    check_ok(smp_profile_read("cpu", t->errors, &t->profile), t->errors);
    t->job = (smp_job){ .model = t->model, .cluster = t->cluster, .profile = t->profile,
                        .batch = { .seq_len = seq, .global_batch = batch } };
    smp_settings_init(&t->job.settings);
    check_ok(smp_settings_assign(&t->job.settings, "precision=fp32", "--set", t->errors),
             t->errors);
    smp_exec_options_init(&t->options);
    t->options.data = tiny_text();
    t->options.timeout_s = 60;
    t->options.threads = 1;
}

static inline void tiny_set(tiny *t, const char *assignments)
{
    char text[512], *word, *rest = text;

    (void)snprintf(text, sizeof text, "%s", assignments);
    while ((word = strtok_r(rest, " ", &rest)) != NULL) {
        check_ok(smp_settings_assign(&t->job.settings, word, "--set", t->errors), t->errors);
    }
}

static inline void tiny_train(tiny *t, uint64_t steps)
{
    t->options.steps = steps;
    check_ok(smp_job_resolve(&t->job, t->errors), t->errors);
    check_ok(smp_exec_run(&t->job, &t->options, t->errors, &t->result), t->errors);
}

static inline void tiny_close(tiny *t)
{
    smp_exec_result_free(&t->result);
    smp_profile_destroy(t->profile);
    smp_cluster_destroy(t->cluster);
    smp_model_destroy(t->model);
    smp_errors_destroy(t->errors);
}

#endif
