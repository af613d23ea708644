/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small jobs for the tests of src/step, whose sizes are multiples of what the lowering rounds
 * to, so that closed forms hold to the byte.
 */
#ifndef TESTS_STEP_JOBS_H
#define TESTS_STEP_JOBS_H

#include "tests/check.h"

#include "base/numeric.h"
#include "cost/cost.h"
#include "model/model.h"
#include "step/program.h"

#define LLAMA(layers, kv)                                                                   \
    "{\"model_type\": \"llama\", \"num_hidden_layers\": " #layers ", \"hidden_size\": 512, " \
    "\"num_attention_heads\": 8, \"num_key_value_heads\": " #kv ", "                        \
    "\"intermediate_size\": 1024, \"vocab_size\": 1024, "                                   \
    "\"max_position_embeddings\": 4096, \"tie_word_embeddings\": false}"
#define MIXTRAL(layers, experts, k)                                                         \
    "{\"model_type\": \"mixtral\", \"num_hidden_layers\": " #layers ", "                    \
    "\"hidden_size\": 512, \"num_attention_heads\": 8, \"num_key_value_heads\": 4, "        \
    "\"intermediate_size\": 1024, \"vocab_size\": 1024, \"num_local_experts\": " #experts   \
    ", \"num_experts_per_tok\": " #k ", \"max_position_embeddings\": 4096, "                \
    "\"tie_word_embeddings\": false}"
#define GPT2                                                                                \
    "{\"model_type\": \"gpt2\", \"n_layer\": 4, \"n_embd\": 512, \"n_head\": 8, "           \
    "\"n_positions\": 1024, \"vocab_size\": 1000, \"resid_pdrop\": 0.1, "                   \
    "\"embd_pdrop\": 0.1, \"attn_pdrop\": 0.1}"
#define QWEN3                                                                               \
    "{\"model_type\": \"qwen3\", \"num_hidden_layers\": 3, \"hidden_size\": 512, "          \
    "\"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"head_dim\": 64, "            \
    "\"intermediate_size\": 1024, \"vocab_size\": 1000, \"tie_word_embeddings\": true, "    \
    "\"max_position_embeddings\": 4096}"
#define NEOX                                                                                \
    "{\"model_type\": \"gpt_neox\", \"num_hidden_layers\": 3, \"hidden_size\": 512, "       \
    "\"num_attention_heads\": 8, \"intermediate_size\": 2048, \"vocab_size\": 1024, "       \
    "\"max_position_embeddings\": 2048, \"use_parallel_residual\": true}"

typedef struct bench {
    smp_errors *errors;
    smp_model *model;
    smp_cluster *cluster;
    smp_profile *profile;
    smp_job job;
    smp_step *step;
} bench;

static inline void bench_set(bench *b, const char *assignment)
{
    check_ok(smp_settings_assign(&b->job.settings, assignment, "--set", b->errors), b->errors);
}

/* A job of `gpus` H100; settings separated by spaces. */
static inline void bench_open(bench *b, const char *config, uint32_t gpus, uint64_t seq,
                              uint64_t batch, const char *settings)
{
    char text[512], *next = text;

    *b = (bench){ .errors = smp_errors_create() };
    check_ok(smp_model_parse(config, strlen(config), "tiny.json", "tiny", b->errors,
                             &b->model),
             b->errors);
    check_ok(smp_cluster_read("dgx-h100", b->errors, &b->cluster), b->errors);
    check_ok(smp_cluster_set_gpus(b->cluster, gpus, b->errors), b->errors);
    check_ok(smp_profile_read_for(b->cluster, b->errors, &b->profile), b->errors);
    b->job = (smp_job){ .model = b->model, .cluster = b->cluster, .profile = b->profile };
    b->job.batch = (smp_batch){ .seq_len = seq, .global_batch = batch };
    smp_settings_init(&b->job.settings);
    assert_true(strlen(settings) < sizeof text);
    memcpy(text, settings, strlen(settings) + 1);
    while (*next != '\0') {
        char *end = strchr(next, ' ');

        if (end) {
            *end = '\0';
        }
        bench_set(b, next);
        next = end ? end + 1 : next + strlen(next);
    }
}

static inline void bench_lower(bench *b)
{
    check_ok(smp_job_resolve(&b->job, b->errors), b->errors);
    check_ok(smp_step_lower(&b->job, b->errors, &b->step), b->errors);
}

static inline void bench_close(bench *b)
{
    smp_step_destroy(b->step);
    smp_profile_destroy(b->profile);
    smp_cluster_destroy(b->cluster);
    smp_model_destroy(b->model);
    smp_errors_destroy(b->errors);
}

static inline uint32_t entries_of(const smp_buffer *buffer)
{
    return buffer->slots > 0 ? buffer->slots : buffer->entries;
}

static inline const smp_buffer *find_buffer(const smp_program *program, const char *name)
{
    for (uint32_t i = 0; i < program->n_buffer; i++) {
        if (strcmp(program->buffers[i].name, name) == 0) {
            return &program->buffers[i];
        }
    }
    return NULL;
}

static inline const smp_task *find_task(const smp_program *program, const char *segment,
                                        const char *name)
{
    for (uint32_t s = 0; s < program->n_segment; s++) {
        for (uint32_t t = 0; t < program->segments[s].n_task; t++) {
            const smp_task *task = &program->tasks[program->segments[s].task0 + t];

            if (strcmp(program->segments[s].name, segment) == 0
                && strcmp(task->name, name) == 0) {
                return task;
            }
        }
    }
    return NULL;
}

/* Sizes of the models above; sequences of S tokens. */
enum { S = 256, H = 512, A = 8, D = 64, F = 1024, V = 1024 };

/* Bytes that forward leaves for backward in one layer: stacks of one entry a layer, the
 * input of the final norm (the last entry of x) not counted. */
static inline uint64_t kept_bytes(const bench *b)
{
    const smp_program *p = b->step->programs[0];
    uint64_t sum = 0;

    for (uint32_t i = 0; i < p->n_buffer; i++) {
        const smp_buffer *buffer = &p->buffers[i];

        if (buffer->kind == SMP_KIND_ACTIVATION && buffer->index == SMP_INDEX_LAYER
            && buffer->space == SMP_SPACE_DEVICE) {
            assert_int_equal(buffer->slots, 0);
            sum += buffer->bytes
                   * (buffer->entries - (strcmp(buffer->name, "x") == 0 ? 1 : 0));
        }
    }
    assert_int_equal(sum % b->model->n_layer, 0);
    return sum / b->model->n_layer;
}

static inline void check_kept(const char *config, uint32_t gpus, const char *settings,
                       uint64_t bytes_per_token)
{
    bench b;

    bench_open(&b, config, gpus, S, gpus, settings);
    bench_lower(&b);
    check_u64(kept_bytes(&b), bytes_per_token * S * b.job.settings.micro_batch);
    bench_close(&b);
}

#endif
