/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the lowering makes, against closed forms: activation bytes, state bytes, floating
 * point work, messages of collectives.
 */
#include "config.h"

#include "tests/step/step_jobs.h"

/* Llama, 16 bits, fused attention and gated MLP: 8h + 4ad + 4 kv d + 4a + 6f bytes a token
 * (spec 2.5).  Tensor parallelism leaves the four tensors before products whole unless the
 * sequence is split as well. */
static void test_llama_activations(void **state)
{
    uint64_t kv = 4, split = 4 * A * D + 4 * kv * D + 4 * A + 6 * F;

    (void)state;
    check_kept(LLAMA(4, 4), 1, "checkpointing=none micro_batch=1", 8 * H + split);
    check_kept(LLAMA(4, 4), 4, "tensor_parallel_degree=4 sequence_parallel=false "
               "checkpointing=none micro_batch=1", 8 * H + split / 4);
    check_kept(LLAMA(4, 4), 4, "tensor_parallel_degree=4 sequence_parallel=true "
               "checkpointing=none micro_batch=2", (8 * H + split) / 4);
    check_kept(LLAMA(4, 4), 1, "checkpointing=full micro_batch=1", 2 * H);
    /* The outputs of attention, y and the log-sum-exp, are made again. */
    check_kept(LLAMA(4, 4), 1, "checkpointing=selective:attention micro_batch=1",
               8 * H + split - 2 * A * D - 4 * A);
    /* Kept are qkv, attention's outputs and gate, up: products 1 and 3 of 4. */
    check_kept(LLAMA(4, 4), 1, "checkpointing=selective:op micro_batch=1",
               2 * H + 2 * A * D + 4 * kv * D + 2 * A * D + 4 * A + 4 * F);
}

/* An operation in place stands in forward, again in recomputation, and in backward. */
static void check_tasks(const smp_program *p, const char *name, bool there)
{
    char again[64], dx[64];

    (void)snprintf(again, sizeof again, "%s.again", name);
    (void)snprintf(dx, sizeof dx, "%s.dx", name);
    assert_int_equal(find_task(p, "forward", name) != NULL, there);
    assert_int_equal(find_task(p, "backward", again) != NULL, there);
    assert_int_equal(find_task(p, "backward", dx) != NULL, there);
}

/* q and k before their norms, and nothing else, come on top. */
static void test_qk_norm_activations(void **state)
{
    (void)state;
    check_kept(QWEN3, 1, "checkpointing=none micro_batch=1",
               8 * H + 4 * A * D + 4 * 2 * D + 4 * A + 6 * F + 2 * (A + 2) * D);
}

/* llama4 keeps one number in fp32 of each head of q and k on layers that rotate, and nothing on
 * those that scale q by its position: the program of the one has no task of the other. */
static void test_llama4_activations(void **state)
{
    const uint64_t kept = 8 * H + 4 * A * D + 4 * 2 * D + 4 * A + 6 * F;
    char config[600];
    bench b;

    (void)state;
    for (int i = 0; i < 4; i++) {
        int floor_scale = i == 3 ? S + 1 : S;

        (void)snprintf(config, sizeof config,
                       "{\"model_type\": \"llama4_text\", \"num_hidden_layers\": 3, "
                       "\"hidden_size\": 512, \"num_attention_heads\": 8, "
                       "\"num_key_value_heads\": 2, \"head_dim\": 64, "
                       "\"intermediate_size_mlp\": 1024, \"vocab_size\": 1000, "
                       "\"interleave_moe_layer_step\": 9, \"floor_scale\": %d, "
                       "\"use_qk_norm\": %s, \"no_rope_layer_interval\": %d}",
                       floor_scale, i == 1 ? "false" : "true", i >= 2 ? 1 : 9);
        check_kept(config, 1, "checkpointing=none micro_batch=1",
                   kept + (i == 0 ? 4 * (A + 2) : 0));
        check_kept(config, 1, "checkpointing=full micro_batch=1", 2 * H);
        bench_open(&b, config, 1, S, 1, "checkpointing=full micro_batch=1");
        bench_lower(&b);
        check_tasks(b.step->programs[0], "attention.qk_rms", i == 0);
        check_tasks(b.step->programs[0], "attention.temper", i == 2);
        check_ok(smp_step_verify(b.step, b.errors), b.errors);
        bench_close(&b);
    }
}

/* gpt2 with its dropouts and naive attention (Korthikanti et al. 2022): h (34 + 5 a s/h);
 * t-way tensor parallel 10 + 24/t, with sequence parallelism all of it /t. */
static void test_gpt2_activations(void **state)
{
    uint64_t core = 5 * A * S;

    (void)state;
    check_kept(GPT2, 1, "attention=naive checkpointing=none micro_batch=1", 34 * H + core);
    check_kept(GPT2, 4, "attention=naive checkpointing=none tensor_parallel_degree=4 "
               "sequence_parallel=false micro_batch=1", 10 * H + (24 * H + core) / 4);
    check_kept(GPT2, 4, "attention=naive checkpointing=none tensor_parallel_degree=4 "
               "sequence_parallel=true micro_batch=1", (34 * H + core) / 4);
    check_kept(GPT2, 1, "attention=naive checkpointing=selective micro_batch=1", 34 * H);
    check_kept(GPT2, 1, "attention=naive checkpointing=full micro_batch=1", 2 * H);
}

static uint64_t kind_bytes(const smp_program *p, smp_buffer_kind kind)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < p->n_buffer; i++) {
        if (p->buffers[i].kind == kind) {
            sum += p->buffers[i].bytes * entries_of(&p->buffers[i]);
        }
    }
    return sum;
}

/* Parameter, gradient and optimizer bytes of `n` parameters; tiny models round up a little:
 * fewer than 256 bytes for each of `buffers` buffers and entries. */
static void check_state(const char *settings, uint32_t gpus, uint64_t parameter,
                        uint64_t gradient, uint64_t optimizer)
{
    bench b;
    const smp_program *p;

    bench_open(&b, LLAMA(4, 4), gpus, S, 2 * gpus, settings);
    bench_lower(&b);
    p = b.step->programs[0];
    check_u64(kind_bytes(p, SMP_KIND_PARAMETER), parameter * b.model->parameters / 16);
    check_u64(kind_bytes(p, SMP_KIND_GRADIENT), gradient * b.model->parameters / 16);
    check_u64(kind_bytes(p, SMP_KIND_OPTIMIZER), optimizer * b.model->parameters / 16);
    bench_close(&b);
}

/* Bytes a parameter over 16: sharding=full over 4 ranks keeps (4 + 4 + 8)/4 in bf16 with
 * fp32 master; ZeRO-1 keeps 2 + 2 whole and (4 + 8)/4; none keeps all. */
static void test_state(void **state)
{
    (void)state;
    check_state("sharding=full hybrid_shard_degree=4 reduce_dtype=fp32", 4, 16, 16, 32);
    check_state("sharding=full hybrid_shard_degree=4 reduce_dtype=bf16", 4, 16, 16, 32);
    check_state("sharding=full hybrid_shard_degree=4 optimizer=sgd", 4, 16, 16, 16);
    check_state("sharding=full hybrid_shard_degree=4 master=bf16", 4, 8, 8, 16);
    check_state("sharding=full hybrid_shard_degree=4 precision=fp32 reduce_dtype=fp32", 4, 16,
                16, 32);
    check_state("sharding=optimizer hybrid_shard_degree=4 reduce_dtype=bf16 micro_batch=2", 4,
                32, 32, 48);
    check_state("sharding=optimizer hybrid_shard_degree=4 reduce_dtype=fp32 micro_batch=2 "
                "precision=fp32", 4, 64, 64, 32);
    check_state("sharding=none hybrid_shard_degree=1 reduce_dtype=bf16", 4, 32, 32, 192);
}

/* Per token and layer, forward: 4 h a d + 4 h kv d + 6 h f and causal attention 2 s a d;
 * logits 2 h V.  Backward: twice the products, attention 2.5 times. */
static void test_flops(void **state)
{
    const double linear = 4.0 * H * A * D + 4.0 * H * 4 * D + 6.0 * H * F;
    const double core = 2.0 * S * A * D, logits = 2.0 * H * V, tokens = 2.0 * S;
    bench b;

    (void)state;
    bench_open(&b, LLAMA(4, 4), 1, S, 2, "checkpointing=none micro_batch=1 loss_chunks=4");
    bench_lower(&b);
    check_rel(b.step->model_flops, 3 * tokens * (4 * (linear + core) + logits), 1e-12);
    check_rel(b.step->hardware_flops,
              tokens * (4 * (3 * linear + 3.5 * core) + 3 * logits), 1e-12);
    bench_close(&b);
    /* Full recomputation adds the block's forward, but never the product that ends it. */
    bench_open(&b, LLAMA(4, 4), 1, S, 2, "checkpointing=full micro_batch=1");
    bench_lower(&b);
    check_rel(b.step->hardware_flops,
              tokens * (4 * (4 * linear - 2.0 * H * F + 4.5 * core) + 3 * logits), 1e-12);
    bench_close(&b);
    /* All ranks together do the same work under tensor parallelism. */
    bench_open(&b, LLAMA(4, 4), 8, S, 2, "checkpointing=none micro_batch=1 "
               "tensor_parallel_degree=4");
    bench_lower(&b);
    check_rel(b.step->hardware_flops,
              tokens * (4 * (3 * linear + 3.5 * core) + 3 * logits), 1e-12);
    bench_close(&b);
    /* Naive attention computes the whole square: 4 s a d forward, twice that backward. */
    bench_open(&b, LLAMA(4, 4), 1, S, 2, "checkpointing=none attention=naive");
    bench_lower(&b);
    check_rel(b.step->hardware_flops,
              tokens * (4 * (3 * linear + 6 * core) + 3 * logits), 1e-12);
    bench_close(&b);
}

/* A task of the reduction, whichever of its two segments has it. */
static const smp_task *find_sum(const smp_program *p, const char *name)
{
    const smp_task *task = find_task(p, "reduce", name);

    return task ? task : find_task(p, "reduce.later", name);
}

/* Elements of collectives: a unit once a gather and once a reduction; two all-gathers and
 * two reduce-scatters of tokens x hidden each way a layer (Korthikanti et al. 2022). */
static void test_messages(void **state)
{
    const uint64_t block = 2 * H * A * D + 2 * H * 4 * D + 3 * H * F + 2 * H;
    const smp_program *p;
    bench b;

    (void)state;
    bench_open(&b, LLAMA(4, 4), 4, S, 4, "hybrid_shard_degree=4 checkpointing=none");
    bench_lower(&b);
    p = b.step->programs[0];
    check_u64(smp_task_bytes(find_task(p, "gather", "gather")), 2 * block);
    check_u64(smp_task_bytes(find_task(p, "gather.backward", "gather")), 2 * block);
    check_u64(find_task(p, "reduce", "reduce_scatter")->dims[0], block);
    bench_close(&b);
    bench_open(&b, LLAMA(4, 4), 4, S, 4, "tensor_parallel_degree=4 sequence_parallel=true "
               "checkpointing=none micro_batch=1");
    bench_lower(&b);
    p = b.step->programs[0];
    check_u64(smp_task_bytes(find_task(p, "forward", "attention.spread")), 2 * S * H);
    check_u64(smp_task_bytes(find_task(p, "forward", "attention.sum")), 2 * S * H);
    check_u64(smp_task_bytes(find_task(p, "backward", "mlp.sum.dx")), 2 * S * H);
    check_u64(smp_task_bytes(find_task(p, "backward", "mlp.up.regather")), 2 * S * H);
    check_u64(smp_task_bytes(find_task(p, "backward", "mlp.spread.dx")), 2 * S * H);
    /* Norm weights saw a part of the tokens: their gradients are summed. */
    assert_non_null(find_sum(p, "sum.copies"));
    check_u64(find_sum(p, "sum.copies")->dims[0], 2 * H);
    bench_close(&b);
}

/* Two kv heads on eight ranks: groups of four hold the same head and sum its gradient. */
static void test_kv_copies(void **state)
{
    const smp_task *task;
    const smp_program *p;
    bench b;

    (void)state;
    bench_open(&b, LLAMA(4, 2), 8, S, 1, "tensor_parallel_degree=8 sequence_parallel=false");
    bench_lower(&b);
    p = b.step->programs[0];
    task = find_sum(p, "sum.kv_weight");
    assert_non_null(task);
    check_u64(task->dims[0], 2 * H * D);
    check_u64(p->comms[task->comm].ranks, 4);
    check_u64(p->units[0].params[p->units[0].at[SMP_ROLE_K_W]].copies, 4);
    check_u64(p->units[0].params[p->units[0].at[SMP_ROLE_Q_W]].copies, 1);
    bench_close(&b);
}

/* The last shard is smaller: its ranks are a class of their own and update less. */
static void test_uneven_shards(void **state)
{
    uint64_t own = 0;
    bench b;

    (void)state;
    bench_open(&b, LLAMA(3, 4), 7, S, 7, "hybrid_shard_degree=7");
    bench_lower(&b);
    assert_true(b.step->n_program >= 2);
    for (uint32_t i = 0; i < b.step->n_program; i++) {
        const smp_program *p = b.step->programs[i];

        own += p->count * p->units[0].own_elems;
        check_u64(find_task(p, "update", "adamw")->dims[0], p->units[0].own_elems);
        check_u64(find_buffer(p, "blocks.parameters")->bytes,
                  smp_round_up(4 * p->units[0].shard_elems, SMP_ALIGN_BYTES));
    }
    check_u64(own, b.step->programs[0]->units[0].elems);
    bench_close(&b);
}

/* L - H inputs go to the host, H + 2 have a place on the device. */
static void test_offload(void **state)
{
    bench b;
    const smp_program *p;

    (void)state;
    bench_open(&b, LLAMA(8, 4), 1, S, 1, "checkpointing=full offload=true "
               "activation_loading_horizon=3");
    bench_lower(&b);
    p = b.step->programs[0];
    check_u64(find_buffer(p, "x.ring")->slots, 5);
    check_u64(find_buffer(p, "x.host")->entries, 5);
    check_u64(find_buffer(p, "x.host")->bytes, 2 * S * H);
    assert_null(find_buffer(p, "x"));
    bench_close(&b);
    bench_open(&b, LLAMA(8, 4), 1, S, 1, "checkpointing=first:5 offload=true "
               "sm_activation_offloading=false");
    bench_lower(&b);
    p = b.step->programs[0];
    check_u64(find_buffer(p, "x.ring")->slots, 2);
    check_u64(find_buffer(p, "x.host")->entries, 5);
    check_u64(find_buffer(p, "x")->entries, 4);
    check_u64(find_task(p, "load", "load")->stream, SMP_STREAM_COMPUTE);
    bench_close(&b);
}

static uint32_t count_instances(const smp_program *p, const char *segment)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < p->n_instance; i++) {
        n += strcmp(p->segments[p->order[i].segment].name, segment) == 0;
    }
    return n;
}

/* Layers that keep what scratch of the same name holds in the others. */
static uint64_t kept_entries(const smp_program *p, const char *name)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < p->n_buffer; i++) {
        n += p->buffers[i].kind == SMP_KIND_ACTIVATION && strcmp(p->buffers[i].name, name) == 0
                 ? p->buffers[i].entries : 0;
    }
    return n;
}

/* Of 8 layers 6 are checkpointed and of those the first 4 offloaded: with a horizon of 2 the
 * ring has 4 slots and the host 2 inputs; the stack has the inputs of layers 4 .. 7 and of the
 * head, and keeps activations of layers 6 and 7 only.  Four layers or fewer in a horizon of
 * four stay on the device. */
static void test_offload_layers(void **state)
{
    static const struct { const char *settings; uint32_t slots, host, stack; } cases[] = {
        { "activation_loading_horizon=2 offload_layers=4", 4, 2, 5 },
        { "activation_loading_horizon=1 offload_layers=5", 3, 4, 4 },
        { "activation_loading_horizon=2 offload_layers=3", 3, 1, 6 },
        { "activation_loading_horizon=2 offload_layers=6", 4, 4, 3 },
        { "activation_loading_horizon=4 offload_layers=4", 0, 0, 9 },
        { "sm_activation_offloading=false offload_layers=4", 2, 4, 5 },
    };
    bench b;
    const smp_program *p;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char settings[128];

        (void)snprintf(settings, sizeof settings, "checkpointing=first:6 offload=true %s",
                       cases[i].settings);
        bench_open(&b, LLAMA(8, 4), 1, S, 1, settings);
        bench_lower(&b);
        check_ok(smp_step_verify(b.step, b.errors), b.errors);
        p = b.step->programs[0];
        check_u64(find_buffer(p, "x")->entries, cases[i].stack);
        check_u64(kept_entries(p, "attention.qkv"), 2);
        check_u64(count_instances(p, "store"), cases[i].host);
        check_u64(count_instances(p, "load"), cases[i].host);
        if (cases[i].slots > 0) {
            check_u64(find_buffer(p, "x.ring")->slots, cases[i].slots);
            check_u64(find_buffer(p, "x.host")->entries, cases[i].host);
        } else {
            assert_null(find_buffer(p, "x.ring"));
        }
        bench_close(&b);
    }
}

/* Position in the order of a segment of that name at (layer, micro-batch 0). */
static uint32_t position(const smp_program *p, const char *segment, uint32_t layer)
{
    for (uint32_t i = 0; i < p->n_instance; i++) {
        if (p->order[i].layer == layer && p->order[i].micro_batch == 0
            && strcmp(p->segments[p->order[i].segment].name, segment) == 0) {
            return i;
        }
    }
    fail_msg("no %s of layer %u", segment, layer);
    return 0;
}

static uint32_t slots_of_gathers(const smp_program *p)
{
    return find_buffer(p, "gathered")->slots;
}

/* Prefetch is the place of gathers in the order, and the slots of their ring. */
static void test_prefetch(void **state)
{
    static const char common[] = "hybrid_shard_degree=4 checkpointing=none ";
    static const char *const settings[3] = { "forward_prefetch=true prefetch=backward_pre",
                                             "forward_prefetch=false prefetch=backward_post",
                                             "forward_prefetch=true prefetch=none" };

    (void)state;
    for (int i = 0; i < 3; i++) {
        char text[256];
        const smp_program *p;
        bench b;
        uint32_t gather, up, down, reduce;

        (void)snprintf(text, sizeof text, "%s%s", common, settings[i]);
        bench_open(&b, LLAMA(4, 4), 4, S, 4, text);
        bench_lower(&b);
        p = b.step->programs[0];
        assert_int_equal(position(p, "gather", 2) < position(p, "forward", 1), i != 1);
        gather = position(p, "gather.backward", 1);
        up = position(p, "forward", 3);
        down = position(p, "backward", 2);
        reduce = position(p, "reduce", 2);
        assert_true(up < gather);
        assert_int_equal(gather < down, i == 0);
        assert_int_equal(gather > reduce, i == 2);
        check_u64(slots_of_gathers(p), i == 1 ? 1 : 2);
        bench_close(&b);
    }
}

/* Work by hand: a window of 64 in 256 tokens sees 256 * 64 - 64^2 / 2 pairs; parts of 96, 96
 * and 64 half of their squares; AdamW in fp32
 * reads four numbers a parameter and writes three. */
static void test_work(void **state)
{
    smp_task attention = { .op = SMP_OP_ATTENTION, .dtype = SMP_BF16, .dtype2 = SMP_BF16,
                           .flags = SMP_FLAG_CAUSAL, .dims = { 2, 256, 8, 4, 64, 64 } };
    smp_task chunks = { .op = SMP_OP_ATTENTION, .dtype = SMP_BF16, .dtype2 = SMP_BF16,
                        .flags = SMP_FLAG_CAUSAL | SMP_FLAG_CHUNKED,
                        .dims = { 2, 256, 8, 4, 64, 96 } };
    smp_task adamw = { .op = SMP_OP_ADAMW, .dtype = SMP_F32, .dtype2 = SMP_F32,
                       .dims = { 1000 } };
    smp_task matmul = { .op = SMP_OP_MATMUL_DW, .dtype = SMP_BF16, .dtype2 = SMP_F32,
                        .flags = SMP_FLAG_ACCUMULATE, .dims = { 10, 20, 30 } };

    (void)state;
    check_u64(smp_task_flops(&attention), 4u * 2 * (256 * 64 - 64 * 64 / 2) * 8 * 64);
    check_u64(smp_task_flops(&chunks), 4u * 2 * (2 * 96 * 96 + 64 * 64) / 2 * 8 * 64);
    /* q, k, v, y in bf16 and a log-sum-exp in fp32 for each head and token */
    check_u64(smp_task_bytes(&attention), 2 * 256 * ((8 + 2 * 4 + 8) * 64 * 2 + 8 * 4));
    check_u64(smp_task_flops(&adamw), 0);
    check_u64(smp_task_bytes(&adamw), 28 * 1000);
    check_u64(smp_task_flops(&matmul), 2 * 10 * 20 * 30);
    check_u64(smp_task_bytes(&matmul), 2 * (10 * 30 + 20 * 30) + 2 * 4 * 10 * 20);
}

/* Tasks do not grow with layers or micro-batches; instances do, linearly. */
static void test_growth(void **state)
{
    uint32_t n_task[3], n_instance[3];
    static const char *const configs[3] = { LLAMA(4, 4), LLAMA(8, 4), LLAMA(4, 4) };

    (void)state;
    for (int i = 0; i < 3; i++) {
        bench b;

        bench_open(&b, configs[i], 4, S, i == 2 ? 32 : 16,
                   "hybrid_shard_degree=4 checkpointing=full micro_batch=1");
        bench_lower(&b);
        n_task[i] = b.step->programs[0]->n_task;
        n_instance[i] = b.step->programs[0]->n_instance;
        bench_close(&b);
    }
    check_u64(n_task[1], n_task[0]);
    check_u64(n_task[2], n_task[0]);
    /* a layer adds two gathers, forward, backward and a reduction for each micro-batch, and
     * squares and update once */
    check_u64(n_instance[1] - n_instance[0], 4 * (4 * 5 + 2));
    check_u64(n_instance[2] - n_instance[0], 4 * (4 * 5 + 6));
}

#define GPT_OSS                                                                              \
    "{\"model_type\": \"gpt_oss\", \"num_hidden_layers\": 2, \"hidden_size\": 512, "           \
    "\"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"head_dim\": 64, "               \
    "\"vocab_size\": 1024, \"intermediate_size\": 1024, \"num_local_experts\": 4, "            \
    "\"num_experts_per_tok\": 2, \"max_position_embeddings\": 4096}"

/* The bias behind a row parallel product of experts comes once: each of the tensor ranks adds a
 * part, and the gradients of the parts are summed; that of the column parallel one is split. */
static void check_expert_bias(const char *settings, uint64_t tensor, const char *sum)
{
    bench b;
    const smp_program *p;

    bench_open(&b, GPT_OSS, 4, S, 4, settings);
    bench_lower(&b);
    check_ok(smp_step_verify(b.step, b.errors), b.errors);
    p = b.step->programs[0];
    check_u64(find_task(p, "forward", "experts.down")->n_access, 5);
    check_u64(find_task(p, "forward", "experts.down")->dims[7], tensor);
    check_u64(find_task(p, "forward", "experts.up")->dims[7], 1);
    check_u64(find_task(p, "backward", "experts.down.dw")->n_access, 5);
    check_u64(find_task(p, "backward", "experts.down.dw")->dims[7], tensor);
    if (sum != NULL) { /* of experts of the rank x H */
        const smp_task *task = find_task(p, "reduce", sum);

        task = task ? task : find_task(p, "reduce.later", sum);
        assert_non_null(task);
        assert_true(task->dims[0] >= 4 / b.job.settings.expert_parallel_degree * H);
    }
    bench_close(&b);
}

static void test_expert_bias(void **state)
{
    (void)state;
    check_expert_bias("expert_parallel_degree=2", 1, NULL);
    check_expert_bias("tensor_parallel_degree=2", 2, "sum.copies");
    check_expert_bias("tensor_parallel_degree=2 sequence_parallel=false", 2, "sum.expert_bias");
    check_expert_bias("tensor_parallel_degree=2 expert_parallel_degree=2", 2, "sum.copies");
    check_expert_bias("tensor_parallel_degree=2 expert_parallel_degree=2 "
                      "sequence_parallel=false moe_all_to_all_dispatcher=false", 2,
                      "sum.expert_bias");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_llama_activations), cmocka_unit_test(test_qk_norm_activations),
    cmocka_unit_test(test_llama4_activations), cmocka_unit_test(test_offload_layers),
    cmocka_unit_test(test_gpt2_activations),  cmocka_unit_test(test_state),
    cmocka_unit_test(test_flops),             cmocka_unit_test(test_messages),
    cmocka_unit_test(test_kv_copies),         cmocka_unit_test(test_uneven_shards),
    cmocka_unit_test(test_offload),           cmocka_unit_test(test_growth),
    cmocka_unit_test(test_expert_bias),         cmocka_unit_test(test_prefetch),
    cmocka_unit_test(test_work),
};
CHECK_MAIN(tests)
