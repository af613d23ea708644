/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Properties of lowered programs over drawn models and settings: ranges lie inside their
 * buffers, nothing is read that was not written, every parameter's gradient is complete when
 * it is reduced, collectives are used by one stream, and the verifier agrees with the waits.
 *
 * Data flow is followed in host order, byte by byte, for entries (not places): an entry ends
 * when its buffer's scope does or its slot goes to another.
 */
#include "config.h"

#include "tests/step/step_jobs.h"

#include "step/order.h"

/* Small enough to follow every byte; vocabularies and shards that divide by nothing. */
#define TINY(family, layers, kv, more)                                                      \
    "{\"model_type\": \"" family "\", \"num_hidden_layers\": " #layers ", "                 \
    "\"hidden_size\": 64, \"num_attention_heads\": 8, \"num_key_value_heads\": " #kv ", "   \
    "\"head_dim\": 8, \"intermediate_size\": 96, \"vocab_size\": 101, "                     \
    "\"max_position_embeddings\": 64" more "}"
#define LATENT(family, q_rank)                                                              \
    TINY(family, 3, 8, ", \"first_k_dense_replace\": 3, \"q_lora_rank\": " q_rank            \
         ", \"kv_lora_rank\": 16, \"qk_nope_head_dim\": 8, \"qk_rope_head_dim\": 4, "         \
         "\"v_head_dim\": 6, \"num_experts_per_tok\": 2, \"attention_bias\": true")
static const char *const configs[] = {
    TINY("llama", 3, 4, ""),
    TINY("llama", 4, 1, ", \"attention_bias\": true, \"mlp_bias\": true"),
    TINY("llama", 1, 8, ""),
    TINY("qwen3", 3, 2, ", \"tie_word_embeddings\": true"),
    TINY("qwen2", 3, 2, ""),
    "{\"model_type\": \"gpt2\", \"n_layer\": 3, \"n_embd\": 64, \"n_head\": 8, "
    "\"n_positions\": 64, \"vocab_size\": 101}",
    "{\"model_type\": \"gpt_neox\", \"num_hidden_layers\": 3, \"hidden_size\": 64, "
    "\"num_attention_heads\": 8, \"intermediate_size\": 256, \"vocab_size\": 101, "
    "\"max_position_embeddings\": 64, \"hidden_dropout\": 0.1}",
    /* no dropout: both branches in one reduction */
    "{\"model_type\": \"gpt_neox\", \"num_hidden_layers\": 2, \"hidden_size\": 64, "
    "\"num_attention_heads\": 8, \"intermediate_size\": 256, \"vocab_size\": 101, "
    "\"max_position_embeddings\": 64}",
    /* norms after, around, behind the residual; norms of q and k of each form */
    TINY("olmo2", 3, 2, ""),
    TINY("olmo2", 2, 8, ", \"tie_word_embeddings\": true, \"attention_bias\": true"),
    TINY("gemma2", 3, 4, ", \"sliding_window\": 8"),
    TINY("gemma3_text", 3, 1, ", \"sliding_window\": 8, \"sliding_window_pattern\": 2"),
    "{\"model_type\": \"opt\", \"num_hidden_layers\": 2, \"hidden_size\": 64, "
    "\"num_attention_heads\": 8, \"ffn_dim\": 96, \"vocab_size\": 101, "
    "\"max_position_embeddings\": 64, \"do_layer_norm_before\": false, "
    "\"word_embed_proj_dim\": 32}",
    "{\"model_type\": \"opt\", \"num_hidden_layers\": 2, \"hidden_size\": 64, "
    "\"num_attention_heads\": 8, \"ffn_dim\": 96, \"vocab_size\": 101, \"dropout\": 0, "
    "\"max_position_embeddings\": 64, \"do_layer_norm_before\": false, "
    "\"tie_word_embeddings\": false}",
    TINY("cohere", 2, 4, ", \"use_qk_norm\": true"),
    TINY("phi", 2, 4, ", \"qk_layernorm\": true"),
    TINY("stablelm", 2, 2, ", \"qk_layernorm\": true, \"use_parallel_residual\": true"),
    TINY("stablelm", 2, 8, ", \"use_qkv_bias\": true"),
    "{\"model_type\": \"gptj\", \"n_layer\": 2, \"n_embd\": 64, \"n_head\": 8, "
    "\"rotary_dim\": 4, \"n_positions\": 64, \"vocab_size\": 101, \"resid_pdrop\": 0.1}",
    "{\"model_type\": \"falcon\", \"num_hidden_layers\": 2, \"hidden_size\": 64, "
    "\"num_attention_heads\": 8, \"vocab_size\": 101, \"max_position_embeddings\": 64}",
    "{\"model_type\": \"falcon\", \"num_hidden_layers\": 2, \"hidden_size\": 64, "
    "\"num_attention_heads\": 8, \"vocab_size\": 101, \"max_position_embeddings\": 64, "
    "\"new_decoder_architecture\": true, \"num_kv_heads\": 4, \"bias\": true}",
    "{\"model_type\": \"bloom\", \"n_layer\": 2, \"hidden_size\": 64, \"n_head\": 8, "
    "\"vocab_size\": 101, \"hidden_dropout\": 0.1}",
    "{\"model_type\": \"mpt\", \"n_layers\": 2, \"d_model\": 64, \"n_heads\": 8, "
    "\"vocab_size\": 101, \"max_seq_len\": 64, \"attn_config\": {\"clip_qkv\": 6}}",
    /* latent attention, with and without a latent of q */
    LATENT("deepseek_v3", "24"),
    LATENT("deepseek_v2", "null"),
    /* the last MOE_CONFIGS: experts behind latent attention, behind sinks, and with layers
     * that do not rotate */
    TINY("deepseek_v3", 2, 8, ", \"n_shared_experts\": 1, "
         "\"first_k_dense_replace\": 1, \"q_lora_rank\": 24, "
         "\"kv_lora_rank\": 16, \"qk_nope_head_dim\": 8, \"qk_rope_head_dim\": 4, "
         "\"v_head_dim\": 6, \"n_routed_experts\": 8, \"num_experts_per_tok\": 2, "
         "\"n_group\": 2, \"topk_group\": 1, \"moe_intermediate_size\": 32"),
    TINY("gpt_oss", 2, 4, ", \"num_local_experts\": 4, \"num_experts_per_tok\": 2, "
         "\"sliding_window\": 8"),
    TINY("llama4_text", 4, 4, ", \"num_local_experts\": 4, \"intermediate_size_mlp\": 96"),
    TINY("mixtral", 3, 4, ", \"num_local_experts\": 4, \"num_experts_per_tok\": 2"),
    TINY("mixtral", 2, 2, ", \"num_local_experts\": 8, \"num_experts_per_tok\": 8"),
    TINY("qwen2_moe", 3, 4, ", \"num_experts\": 6, \"num_experts_per_tok\": 2, "
         "\"moe_intermediate_size\": 48, \"shared_expert_intermediate_size\": 96"),
    TINY("qwen3_moe", 4, 2, ", \"num_experts\": 8, \"num_experts_per_tok\": 3, "
         "\"moe_intermediate_size\": 32, \"decoder_sparse_step\": 2"),
};
enum { CONFIGS = sizeof configs / sizeof configs[0], MOE_CONFIGS = 7 };
enum { FIRST_MOE = CONFIGS - MOE_CONFIGS };

enum { DRAWS = 400 };
enum { GRAIN = 2 }; /* bytes that one mark stands for: no operand is cut finer */

/* What has been written of each place, and which entry it holds. */
typedef struct place { uint64_t key; bool held; uint8_t *marks; } place;
typedef struct flow {
    const smp_program *p;
    place **places;
} flow;

/* Contents that are there when a step begins. */
static bool given(const smp_buffer *buffer)
{
    return buffer->space == SMP_SPACE_TOKEN
           || (buffer->scope == SMP_SCOPE_STEP
               && (buffer->kind == SMP_KIND_PARAMETER || buffer->kind == SMP_KIND_OPTIMIZER
                   || buffer->kind == SMP_KIND_SCALAR));
}

static void flow_create(flow *f, const smp_program *p)
{
    f->p = p;
    f->places = smp_heap_alloc(p->n_buffer, sizeof *f->places);
    for (uint32_t i = 0; i < p->n_buffer; i++) {
        f->places[i] = smp_heap_alloc(entries_of(&p->buffers[i]), sizeof **f->places);
        for (uint32_t k = 0; k < entries_of(&p->buffers[i]) && !given(&p->buffers[i]); k++) {
            f->places[i][k].marks = smp_heap_alloc(p->buffers[i].bytes / GRAIN, 1);
        }
    }
}

static void flow_destroy(flow *f)
{
    for (uint32_t i = 0; i < f->p->n_buffer; i++) {
        for (uint32_t k = 0; k < entries_of(&f->p->buffers[i]); k++) {
            free(f->places[i][k].marks);
        }
        free(f->places[i]);
    }
    free(f->places);
}

static void flow_fail(const flow *f, uint32_t instance, const smp_task *task,
                      const smp_access *access, const char *what)
{
    const smp_instance *in = &f->p->order[instance];

    fail_msg("%s.%s (layer %u, micro-batch %u): %s %s, bytes %" PRIu64 " + %" PRIu64,
             f->p->segments[in->segment].name, task->name, in->layer, in->micro_batch, what,
             f->p->buffers[access->buffer].name, access->offset_bytes, access->bytes);
}

/* The marks of the entry that an access is to; what its place held before is forgotten. */
static uint8_t *marks_of(flow *f, uint32_t instance, const smp_task *task,
                         const smp_access *access)
{
    const smp_buffer *buffer = &f->p->buffers[access->buffer];
    uint32_t at = smp_place_of(buffer, &f->p->order[instance], access->delta);
    uint64_t key = smp_entry_key(buffer, &f->p->order[instance], instance, access->delta);
    place *pl;

    if (at == SMP_NO_PLACE || access->offset_bytes + access->bytes > buffer->bytes
        || access->bytes == 0) {
        flow_fail(f, instance, task, access, "outside of");
        return NULL;
    }
    pl = &f->places[access->buffer][at];
    if (!pl->marks) {
        return NULL;
    }
    if (!pl->held || pl->key != key) {
        memset(pl->marks, 0, buffer->bytes / GRAIN);
        pl->held = true;
        pl->key = key;
    }
    return pl->marks;
}

static bool all_marked(const uint8_t *marks, const smp_access *access)
{
    uint64_t end = smp_ceil_div(access->offset_bytes + access->bytes, GRAIN);

    for (uint64_t i = access->offset_bytes / GRAIN; i < end; i++) {
        if (!marks[i]) {
            return false;
        }
    }
    return true;
}

static void flow_task(flow *f, uint32_t instance, const smp_task *task)
{
    for (uint32_t k = 0; k < task->n_access; k++) {
        const smp_access *access = &f->p->accesses[task->access0 + k];
        const uint8_t *marks = marks_of(f, instance, task, access);

        if (marks && access->reads && !all_marked(marks, access)) {
            flow_fail(f, instance, task, access, "reads what nobody wrote of");
        }
    }
    for (uint32_t k = 0; k < task->n_access; k++) {
        const smp_access *access = &f->p->accesses[task->access0 + k];
        uint8_t *marks = marks_of(f, instance, task, access);

        if (marks && access->writes) {
            memset(marks + access->offset_bytes / GRAIN, 1,
                   smp_ceil_div(access->bytes, GRAIN));
        }
    }
}

static void check_flow(const smp_program *p)
{
    flow f;

    flow_create(&f, p);
    for (uint32_t i = 0; i < p->n_instance; i++) {
        const smp_segment *segment = &p->segments[p->order[i].segment];

        for (uint32_t t = 0; t < segment->n_task; t++) {
            flow_task(&f, i, &p->tasks[segment->task0 + t]);
        }
    }
    flow_destroy(&f);
}

/* Names are unique in a segment; a communicator serves one stream; a collective has one. */
static void check_form(const smp_program *p)
{
    uint8_t stream_of[SMP_NO_COMM];

    memset(stream_of, 255, sizeof stream_of);
    for (uint32_t s = 0; s < p->n_segment; s++) {
        for (uint32_t t = 0; t < p->segments[s].n_task; t++) {
            const smp_task *task = &p->tasks[p->segments[s].task0 + t];

            for (uint32_t u = 0; u < t; u++) {
                assert_string_not_equal(task->name, p->tasks[p->segments[s].task0 + u].name);
            }
            assert_int_equal(smp_op_info_of((smp_op)task->op)->klass == SMP_CLASS_COLLECTIVE,
                             task->comm != SMP_NO_COMM);
            if (task->comm != SMP_NO_COMM) {
                assert_true(task->comm < p->n_comm);
                assert_true(stream_of[task->comm] == 255
                            || stream_of[task->comm] == task->stream);
                stream_of[task->comm] = task->stream;
            }
        }
    }
}

/* One of `n` texts. */
static const char *pick(uint64_t seed, uint64_t counter, const char *const *texts, uint32_t n)
{
    uint32_t words[4];

    smp_random4(seed, 0, counter, words);
    return texts[words[0] % n];
}
#define PICK(seed, counter, ...)                                                            \
    pick((seed), (counter), (const char *const[]){ __VA_ARGS__ },                           \
         sizeof((const char *const[]){ __VA_ARGS__ }) / sizeof(char *))

static void draw_settings(bench *b, uint64_t seed)
{
    bench_set(b, PICK(seed, 1, "tensor_parallel_degree=1", "tensor_parallel_degree=1",
                      "tensor_parallel_degree=2", "tensor_parallel_degree=4"));
    bench_set(b, PICK(seed, 2, "hybrid_shard_degree=0", "hybrid_shard_degree=1",
                      "hybrid_shard_degree=2", "hybrid_shard_degree=3"));
    bench_set(b, PICK(seed, 3, "sharding=full", "sharding=full", "sharding=optimizer",
                      "sharding=none"));
    bench_set(b, PICK(seed, 4, "checkpointing=none", "checkpointing=full",
                      "checkpointing=selective:attention", "checkpointing=selective:op",
                      "checkpointing=first:2"));
    bench_set(b, PICK(seed, 5, "offload=false", "offload=true"));
    bench_set(b, PICK(seed, 6, "activation_loading_horizon=1",
                      "activation_loading_horizon=2"));
    bench_set(b, PICK(seed, 7, "sm_activation_offloading=true",
                      "sm_activation_offloading=false"));
    bench_set(b, PICK(seed, 8, "reshard_after_forward=true", "reshard_after_forward=false"));
    bench_set(b, PICK(seed, 9, "accumulation=every", "accumulation=last"));
    bench_set(b, PICK(seed, 10, "sequence_parallel=true", "sequence_parallel=false"));
    bench_set(b, PICK(seed, 11, "precision=bf16", "precision=fp16", "precision=fp32"));
    bench_set(b, PICK(seed, 12, "reduce_dtype=fp32", "reduce_dtype=bf16"));
    bench_set(b, PICK(seed, 13, "attention=flash", "attention=naive"));
    bench_set(b, PICK(seed, 14, "optimizer=adamw", "optimizer=sgd"));
    bench_set(b, PICK(seed, 15, "loss_chunks=1", "loss_chunks=4"));
    bench_set(b, PICK(seed, 16, "prefetch=backward_pre", "prefetch=backward_post",
                      "prefetch=none"));
    bench_set(b, PICK(seed, 17, "forward_prefetch=true", "forward_prefetch=false"));
    bench_set(b, PICK(seed, 18, "master=fp32", "master=fp32", "master=bf16"));
    bench_set(b, PICK(seed, 20, "offload_layers=0", "offload_layers=0", "offload_layers=1",
                      "offload_layers=2", "offload_layers=3"));
    bench_set(b, PICK(seed, 19, "micro_batch=1", "micro_batch=2"));
}

static void draw_experts(bench *b, uint64_t seed)
{
    bench_set(b, PICK(seed, 31, "expert_parallel_degree=1", "expert_parallel_degree=2",
                      "expert_parallel_degree=2", "expert_parallel_degree=4"));
    bench_set(b, PICK(seed, 32, "expert_layout=orthogonal", "expert_layout=nested"));
    bench_set(b, PICK(seed, 33, "moe_load_balancing=sinkhorn", "moe_load_balancing=aux_loss",
                      "moe_load_balancing=balanced", "moe_load_balancing=none"));
    bench_set(b, PICK(seed, 34, "global_token_shuffle=false", "global_token_shuffle=true"));
    bench_set(b, PICK(seed, 35, "moe_all_to_all_dispatcher=true",
                      "moe_all_to_all_dispatcher=false"));
    bench_set(b, PICK(seed, 36, "capacity_factor=0", "capacity_factor=0",
                      "capacity_factor=1", "capacity_factor=1.25"));
    bench_set(b, PICK(seed, 37, "capacity_pad=false", "capacity_pad=true"));
    bench_set(b, PICK(seed, 38, "moe_rows_factor=1", "moe_rows_factor=2.5"));
    bench_set(b, PICK(seed, 39, "imbalance=1", "imbalance=1.5"));
    bench_set(b, PICK(seed, 40, "moe_statistics=local", "moe_statistics=data"));
}

/* False: the rules of the settings refuse the draw. */
static bool check_draw(uint64_t seed, uint32_t first_config)
{
    static const uint32_t gpus[] = { 1, 2, 3, 4, 6, 8, 12 };
    uint32_t words[4];
    bench b;
    bool legal;

    smp_random4(seed, 1, 0, words);
    bench_open(&b,
               pick(seed, 0, configs + first_config, CONFIGS - first_config),
               gpus[words[0] % 7], 16, 2 * (1 + words[1] % 6) * gpus[words[0] % 7], "");
    draw_settings(&b, seed);
    if (smp_model_active_parameters(b.model) < smp_model_parameters(b.model)
        || first_config == FIRST_MOE) {
        draw_experts(&b, seed);
    }
    legal = smp_job_resolve(&b.job, b.errors) == SMP_OK
            && !(b.job.settings.tensor_parallel_degree > 1
                 && strcmp(b.model->family, "gpt_oss") == 0); /* biases of experts */
    if (legal) {
        check_ok(smp_step_lower(&b.job, b.errors, &b.step), b.errors);
        for (uint32_t c = 0; c < b.step->n_program; c++) {
            check_form(b.step->programs[c]);
            check_flow(b.step->programs[c]);
        }
        check_ok(smp_step_verify(b.step, b.errors), b.errors);
    }
    bench_close(&b);
    return legal;
}

static uint64_t last_seed;

static int tell_seed(void **state)
{
    (void)state;
    print_message("# last seed drawn: %" PRIu64 "\n", last_seed);
    return 0;
}

/* $SMP_TEST_SEED draws one seed only. */
static void draw_many(uint32_t first_config)
{
    uint32_t n_legal = 0;

    for (uint64_t seed = 0; n_legal < DRAWS; seed++) {
        assert_true(seed < 20000);
        if (getenv("SMP_TEST_SEED")) {
            seed = strtoull(getenv("SMP_TEST_SEED"), NULL, 10);
            n_legal = DRAWS;
        }
        last_seed = seed;
        n_legal += check_draw(seed, first_config) ? 1 : 0;
    }
}

static void test_drawn(void **state)
{
    (void)state;
    draw_many(0);
}

static void test_drawn_experts(void **state)
{
    (void)state;
    draw_many(FIRST_MOE);
}

/* 208 shards of a root unit of 12,992 parameters: 63 elements for each of the first 206 ranks,
 * 14 for the next, nothing for the last.  They take part in collectives and update nothing. */
static void test_empty_shards(void **state)
{
    bool empty = false;
    bench b;

    (void)state;
    bench_open(&b, configs[0], 208, 16, 208,
               "hybrid_shard_degree=208 allow_empty_shards=true");
    bench_lower(&b);
    for (uint32_t c = 0; c < b.step->n_program; c++) {
        const smp_program *p = b.step->programs[c];

        check_form(p);
        check_flow(p);
        for (uint32_t u = 0; u < p->n_unit; u++) {
            empty |= p->units[u].own_elems == 0;
        }
    }
    assert_true(empty);
    check_ok(smp_step_verify(b.step, b.errors), b.errors);
    bench_close(&b);
}

/* Deterministic: the same job gives the same program. */
static void test_repeats(void **state)
{
    bench b[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        bench_open(&b[i], LLAMA(3, 4), 8, 16, 16, "tensor_parallel_degree=2");
        bench_lower(&b[i]);
    }
    const smp_program *p = b[0].step->programs[0], *q = b[1].step->programs[0];

    check_u64(p->n_task, q->n_task);
    check_u64(p->arena_bytes, q->arena_bytes);
    check_u64(p->n_wait, q->n_wait);
    assert_memory_equal(p->order, q->order, p->n_instance * sizeof *p->order);
    assert_memory_equal(p->waits, q->waits, p->n_wait * sizeof *p->waits);
    bench_close(&b[0]);
    bench_close(&b[1]);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_teardown(test_drawn, tell_seed),
    cmocka_unit_test_teardown(test_drawn_experts, tell_seed),
    cmocka_unit_test(test_empty_shards),
    cmocka_unit_test(test_repeats),
};
CHECK_MAIN(tests)
