/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What families add to a block: closed forms of bytes, work and messages for latent attention
 * and for norms in other places, gradients along every path, and the lowering of every
 * published configuration at hand.
 */
#include "config.h"

#include "tests/step/step_jobs.h"

#include <dirent.h>
#include <stdio.h>

#define MODEL(family, layers, kv, more)                                                     \
    "{\"model_type\": \"" family "\", \"num_hidden_layers\": " #layers ", "                 \
    "\"hidden_size\": 512, \"num_attention_heads\": 8, \"num_key_value_heads\": " #kv ", "  \
    "\"head_dim\": 64, \"intermediate_size\": 1024, \"vocab_size\": 1024, "                 \
    "\"max_position_embeddings\": 4096" more "}"
#define LATENT(family, layers, q_rank)                                                      \
    MODEL(family, layers, 8, ", \"first_k_dense_replace\": " #layers ", \"q_lora_rank\": "  \
          q_rank ", \"kv_lora_rank\": 96, \"qk_nope_head_dim\": 64, "                       \
          "\"qk_rope_head_dim\": 32, \"v_head_dim\": 48, \"num_experts_per_tok\": 2")
#define OPT(layers, more)                                                                   \
    "{\"model_type\": \"opt\", \"num_hidden_layers\": " #layers ", \"hidden_size\": 512, "  \
    "\"num_attention_heads\": 8, \"ffn_dim\": 1024, \"vocab_size\": 1024, "                 \
    "\"max_position_embeddings\": 1022, \"dropout\": 0, "                                   \
    "\"do_layer_norm_before\": false" more "}"
#define GPTJ(layers)                                                                        \
    "{\"model_type\": \"gptj\", \"n_layer\": " #layers ", \"n_embd\": 512, "                \
    "\"n_head\": 8, \"rotary_dim\": 32, \"n_positions\": 1024, \"n_inner\": 1024, "         \
    "\"vocab_size\": 1024, \"resid_pdrop\": 0, \"embd_pdrop\": 0}"

enum { Q_RANK = 128, C = 96, NOPE = 64, ROPE = 32, VD = 48, QK = NOPE + ROPE };

/* Latent attention keeps, per token in 16 bits: what both norms read and make, 4 r and
 * 4 (c + p); q, k and v of all heads, 2 a (2 (n + p) + v); the output 2 a v; log-sum-exp.  The
 * rest is llama's: 8 h and 6 f.  Tensor parallelism splits heads; the latents are whole on
 * each rank unless the sequence is split. */
static void test_latent_activations(void **state)
{
    const uint64_t latents = 4 * Q_RANK + 4 * (C + ROPE);
    const uint64_t split = 2 * A * (2 * QK + VD) + 2 * A * VD + 4 * A + 6 * F;

    (void)state;
    check_kept(LATENT("deepseek_v3", 2, "128"), 1, "checkpointing=none micro_batch=1",
               8 * H + latents + split);
    check_kept(LATENT("deepseek_v2", 2, "null"), 1, "checkpointing=none micro_batch=1",
               8 * H + latents - 4 * Q_RANK + split);
    check_kept(LATENT("deepseek_v3", 2, "128"), 4, "tensor_parallel_degree=4 "
               "sequence_parallel=false checkpointing=none micro_batch=1",
               8 * H + latents + split / 4);
    check_kept(LATENT("deepseek_v3", 2, "128"), 4, "tensor_parallel_degree=4 "
               "sequence_parallel=true checkpointing=none micro_batch=1",
               (8 * H + latents + split) / 4);
    check_kept(LATENT("deepseek_v3", 2, "128"), 1, "checkpointing=full micro_batch=1", 2 * H);
    check_kept(LATENT("deepseek_v3", 2, "128"), 1, "checkpointing=selective:attention "
               "micro_batch=1", 8 * H + latents + split - 2 * A * VD - 4 * A);
}

/* Norms after a branch read the branch's output in backward: 2 h each.  Those before make
 * another 2 h; so after: 8 h like before, around: 12 h, behind the residual: 8 h. */
static void test_norm_places(void **state)
{
    const uint64_t kv = 4, core = 4 * A * D + 4 * kv * D + 4 * A;
    const uint64_t olmo = core + 6 * F + 2 * (A + kv) * D;

    (void)state;
    check_kept(MODEL("olmo2", 2, 4, ""), 1, "checkpointing=none micro_batch=1", 8 * H + olmo);
    /* Sums of squares of q and k over the tensor group: 8 bytes a token on each rank. */
    check_kept(MODEL("olmo2", 2, 4, ""), 4, "tensor_parallel_degree=4 checkpointing=none "
               "sequence_parallel=false micro_batch=1", 8 * H + olmo / 4 + 8);
    check_kept(MODEL("olmo2", 2, 4, ""), 4, "tensor_parallel_degree=4 checkpointing=none "
               "sequence_parallel=true micro_batch=1", (8 * H + olmo) / 4 + 8);
    check_kept(MODEL("gemma2", 2, 4, ""), 1, "checkpointing=none micro_batch=1",
               12 * H + core + 6 * F);
    check_kept(OPT(2, ""), 1, "checkpointing=none micro_batch=1",
               8 * H + 8 * A * D + 4 * A + 4 * F);
    /* Beside each other behind one norm: input and norm. */
    check_kept(GPTJ(2), 1, "checkpointing=none micro_batch=1",
               4 * H + 8 * A * D + 4 * A + 4 * F);
    /* A mask of one byte for each element of q, k and v that may be clipped. */
    check_kept("{\"model_type\": \"mpt\", \"n_layers\": 2, \"d_model\": 512, \"n_heads\": 8, "
               "\"expansion_ratio\": 2, \"vocab_size\": 1024, \"max_seq_len\": 1024, "
               "\"attn_config\": {\"clip_qkv\": 6}}", 1, "checkpointing=none micro_batch=1",
               8 * H + 8 * A * D + 4 * A + 4 * F + 3 * A * D);
}

/* Model and hardware work per token: latent attention as in src/step/flops.c, worked out
 * here from the shapes of its six products; a narrow table adds its projections. */
static void test_flops(void **state)
{
    const double linear = 2.0 * H * Q_RANK + 2.0 * Q_RANK * A * QK + 2.0 * H * (C + ROPE)
                          + 2.0 * C * A * (NOPE + VD) + 2.0 * A * VD * H + 6.0 * H * F;
    const double qk = 1.0 * S * A * QK, pv = 1.0 * S * A * VD, logits = 2.0 * H * V;
    bench b;

    (void)state;
    bench_open(&b, LATENT("deepseek_v3", 3, "128"), 1, S, 2,
               "checkpointing=none micro_batch=1");
    bench_lower(&b);
    check_rel(b.step->model_flops, 3 * 2.0 * S * (3 * (linear + qk + pv) + logits), 1e-12);
    check_rel(b.step->hardware_flops,
              2.0 * S * (3 * (3 * linear + 4 * qk + 3 * pv) + 3 * logits), 1e-12);
    bench_close(&b);
    bench_open(&b, OPT(2, ", \"word_embed_proj_dim\": 256"), 1, S, 2,
               "checkpointing=none micro_batch=1 attention=naive");
    bench_lower(&b);
    check_rel(b.step->model_flops,
              6.0 * S * (2 * (8.0 * H * H + 2.0 * S * H + 4.0 * H * F) + 4.0 * H * 256
                         + 2.0 * 256 * V), 1e-12);
    check_rel(b.step->hardware_flops,
              6.0 * S * (2 * (8.0 * H * H + 4.0 * S * H + 4.0 * H * F) + 4.0 * H * 256
                         + 2.0 * 256 * V), 1e-12);
    bench_close(&b);
}

static uint32_t count_collectives(const smp_program *p, const char *segment)
{
    uint32_t n = 0;

    for (uint32_t s = 0; s < p->n_segment; s++) {
        for (uint32_t t = 0; t < p->segments[s].n_task
                             && strcmp(p->segments[s].name, segment) == 0; t++) {
            n += p->tasks[p->segments[s].task0 + t].comm != SMP_NO_COMM;
        }
    }
    return n;
}

static void open_tensor(bench *b, const char *config, bool sequence)
{
    bench_open(b, config, 2, S, 2,
               sequence ? "tensor_parallel_degree=2 sequence_parallel=true checkpointing=none "
                          "micro_batch=2"
                        : "tensor_parallel_degree=2 sequence_parallel=false "
                          "checkpointing=none micro_batch=2");
    bench_lower(b);
}

/* Branches beside each other are summed once; behind one norm they are also spread once. */
static void test_joint_branches(void **state)
{
    bench b;

    (void)state;
    open_tensor(&b, GPTJ(2), false);
    check_u64(count_collectives(b.step->programs[0], "forward"), 1);
    check_u64(count_collectives(b.step->programs[0], "backward"), 1);
    bench_close(&b);
    open_tensor(&b, GPTJ(2), true);
    check_u64(count_collectives(b.step->programs[0], "forward"), 2);
    /* the scattered sum and the spread turned round, and the input gathered again once */
    check_u64(count_collectives(b.step->programs[0], "backward"), 3);
    bench_close(&b);
    open_tensor(&b, NEOX, false);
    check_u64(count_collectives(b.step->programs[0], "forward"), 1);
    check_u64(count_collectives(b.step->programs[0], "backward"), 2);
    bench_close(&b);
}

/* Latents go to all tensor ranks in place of the hidden state: (r + c + p) elements a token
 * rather than h.  Norms over all heads send two numbers of fp32 a token. */
static void test_messages(void **state)
{
    const smp_program *p;
    bench b;

    (void)state;
    open_tensor(&b, LATENT("deepseek_v3", 2, "128"), true);
    p = b.step->programs[0];
    check_u64(smp_task_bytes(find_task(p, "forward", "attention.q_spread")),
              2 * 2 * S * Q_RANK);
    check_u64(smp_task_bytes(find_task(p, "forward", "attention.kv_spread")),
              2 * 2 * S * (C + ROPE));
    assert_null(find_task(p, "forward", "attention.spread"));
    assert_non_null(find_task(p, "backward", "attention.kv_up.regather"));
    bench_close(&b);
    open_tensor(&b, LATENT("deepseek_v2", 2, "null"), true);
    p = b.step->programs[0];
    check_u64(smp_task_bytes(find_task(p, "forward", "attention.spread")), 2 * 2 * S * H);
    bench_close(&b);
    open_tensor(&b, MODEL("olmo2", 2, 4, ""), false);
    p = b.step->programs[0];
    check_u64(smp_task_bytes(find_task(p, "forward", "attention.qk_sum")), 2 * S * 8);
    check_u64(smp_task_bytes(find_task(p, "backward", "attention.qk_dots.sum")), 2 * S * 8);
    bench_close(&b);
}

/* The model's first kind of block with a logit for each head that joins the softmax, placed
 * before the output product as in the order of roles. */
static void give_sinks(smp_model *model)
{
    smp_block *block = &model->kinds[0];
    smp_param *params = SMP_ARENA_ARRAY(model->arena, block->n_param + 1, smp_param);
    uint32_t n = 0;

    for (uint32_t i = 0; i < block->n_param; i++) {
        if (block->params[i].role == SMP_ROLE_O_W) {
            params[n++] = (smp_param){ .role = SMP_ROLE_SINKS, .name = "sinks", .n_dim = 1,
                                       .shape = { A, 1 }, .split = SMP_SPLIT_OUT, .count = 1 };
        }
        params[n++] = block->params[i];
    }
    block->params = params;
    block->n_param = n;
    block->attention.sinks = true;
    block->attention.no_rope = true;
}

/* Sinks are read by the softmax and get a gradient from it, heads / t on each rank; a block
 * that does not rotate has no task for it. */
static void test_sinks(void **state)
{
    static const char *const settings[2] = { "attention=flash tensor_parallel_degree=2",
                                             "attention=naive tensor_parallel_degree=2" };
    static const char *const names[2] = { "attention.core", "attention.softmax" };

    (void)state;
    for (int i = 0; i < 2; i++) {
        const smp_task *task;
        const smp_program *p;
        char dx[32];
        bench b;

        bench_open(&b, LLAMA(2, 4), 2, S, 2, settings[i]);
        give_sinks(b.model);
        bench_lower(&b);
        check_ok(smp_step_verify(b.step, b.errors), b.errors);
        p = b.step->programs[0];
        task = find_task(p, "forward", names[i]);
        check_u64(p->accesses[task->access0 + task->n_access - 1].bytes, 2 * A / 2);
        (void)snprintf(dx, sizeof dx, "%s.dx", names[i]);
        task = find_task(p, "backward", dx);
        check_u64(p->accesses[task->access0 + task->n_access - 2].bytes, 2 * A / 2);
        check_u64(p->accesses[task->access0 + task->n_access - 1].bytes,
                  smp_dtype_bytes((smp_dtype)task->dtype2) * A / 2);
        assert_true(p->accesses[task->access0 + task->n_access - 1].writes);
        assert_null(find_task(p, "forward", "attention.rope"));
        bench_close(&b);
    }
}

/* ---- gradients along every path ---- */

/* In a block where every operation passes its output's gradient on as it is, the gradient of
 * the input is that of the output times the number of paths between them. */
typedef struct paths { const smp_program *p; double *of_buffer; } paths;

static double *value(paths *v, const smp_task *task, uint32_t access)
{
    return &v->of_buffer[v->p->accesses[task->access0 + access].buffer];
}

static void pass_on(paths *v, const smp_task *task, uint32_t from, uint32_t to, bool adds)
{
    double dy = *value(v, task, from);

    *value(v, task, to) = dy + (adds ? *value(v, task, to) : 0);
}

static void follow(paths *v, const smp_task *task)
{
    bool adds = (task->flags & SMP_FLAG_ACCUMULATE) != 0;

    switch (task->op) {
    case SMP_OP_MATMUL_DX: /* columns of longer rows are the sum of what writes each */
        pass_on(v, task, 0, 2, adds || v->p->accesses[task->access0 + 2].reads);
        break;
    case SMP_OP_NORM_GRAD:
        pass_on(v, task, 0, 3, (task->flags & SMP_FLAG_ADD_DX) != 0);
        break;
    case SMP_OP_ATTENTION_GRAD:
        pass_on(v, task, 0, 4, false);
        break;
    case SMP_OP_ACTIVATION_GRAD:
    case SMP_OP_GATED_GRAD:
    case SMP_OP_DROPOUT_GRAD:
        pass_on(v, task, 0, 2, false);
        break;
    case SMP_OP_LATENT_GRAD:
        pass_on(v, task, 0, 1, false);
        pass_on(v, task, 0, 2, false);
        pass_on(v, task, 0, 3, false);
        break;
    case SMP_OP_ACCUMULATE:
        pass_on(v, task, 0, 1, adds);
        break;
    case SMP_OP_ALL_GATHER:
    case SMP_OP_REDUCE_SCATTER:
        pass_on(v, task, 0, 1, false);
        break;
    default:
        break;
    }
}

static double count_paths(const char *config, uint32_t tensor, bool sequence)
{
    char settings[160];
    paths v;
    double n;
    bench b;

    (void)snprintf(settings, sizeof settings, "checkpointing=none micro_batch=2 "
                   "tensor_parallel_degree=%u sequence_parallel=%s", tensor,
                   sequence ? "true" : "false");
    bench_open(&b, config, tensor, S, 2, settings);
    bench_lower(&b);
    v.p = b.step->programs[0];
    v.of_buffer = smp_heap_alloc(v.p->n_buffer, sizeof *v.of_buffer);
    uint32_t d = (uint32_t)(find_buffer(v.p, "d") - v.p->buffers);
    v.of_buffer[d] = 1;
    for (uint32_t s = 0; s < v.p->n_segment; s++) {
        for (uint32_t t = 0; t < v.p->segments[s].n_task
                             && strcmp(v.p->segments[s].name, "backward") == 0; t++) {
            follow(&v, &v.p->tasks[v.p->segments[s].task0 + t]);
        }
    }
    n = v.of_buffer[d];
    free(v.of_buffer);
    bench_close(&b);
    return n;
}

static void check_paths(const char *config, double expected)
{
    check_rel(count_paths(config, 1, false), expected, 0);
    check_rel(count_paths(config, 2, false), expected, 0);
    check_rel(count_paths(config, 2, true), expected, 0);
}

/* One after the other, with one path through each branch: 2 x 2.  Beside each other: 1 + 1 +
 * 1.  Latent attention has three: q, the latent, and the rope part behind it. */
static void test_paths(void **state)
{
    (void)state;
    check_paths(LLAMA(1, 4), 4);
    check_paths(MODEL("olmo2", 1, 4, ""), 4);
    check_paths(MODEL("gemma2", 1, 4, ""), 4);
    check_paths(OPT(1, ""), 4);
    check_paths(GPTJ(1), 3);
    check_paths("{\"model_type\": \"gpt_neox\", \"num_hidden_layers\": 1, \"hidden_size\": "
                "512, \"num_attention_heads\": 8, \"intermediate_size\": 2048, "
                "\"vocab_size\": 1024, \"max_position_embeddings\": 2048}", 3);
    check_paths(LATENT("deepseek_v3", 1, "128"), 8);
    check_paths(LATENT("deepseek_v2", 1, "null"), 8);
}

/* ---- published configurations ---- */

static char *read_text(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *text = smp_heap_alloc(1 << 20, 1);

    assert_non_null(f);
    text[fread(text, 1, (1 << 20) - 1, f)] = '\0';
    assert_int_equal(fclose(f), 0);
    return text;
}

/* False: the tensor degree does not divide the model. */
static bool check_lowered(const char *text, const char *settings)
{
    bool legal;
    bench b;

    bench_open(&b, text, 8, S, 8, settings);
    legal = smp_job_resolve(&b.job, b.errors) == SMP_OK;
    if (legal) {
        check_ok(smp_step_lower(&b.job, b.errors, &b.step), b.errors);
        check_ok(smp_step_verify(b.step, b.errors), b.errors);
    }
    bench_close(&b);
    return legal;
}

/* False: the reader refuses it. */
static bool can_read(const char *text)
{
    smp_errors *errors = smp_errors_create();
    smp_model *model = NULL;
    bool can = smp_model_parse(text, strlen(text), "config.json", "model", errors, &model)
               == SMP_OK;

    smp_model_destroy(model);
    smp_errors_destroy(errors);
    return can;
}

static void test_published(void **state)
{
    const char *folder = check_shared("models");
    DIR *dir = opendir(folder);
    uint32_t n_lowered = 0, n_split = 0;

    (void)state;
    assert_non_null(dir);
    for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir)) {
        char path[4096];
        char *text;

        if (entry->d_name[0] == '.') {
            continue;
        }
        (void)snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        text = read_text(path);
        if (can_read(text)) {
            print_message("# %s\n", entry->d_name);
            assert_true(check_lowered(text, "checkpointing=none"));
            n_lowered++;
            n_split += !strstr(text, "\"gpt_oss\"") /* experts with biases are not split */
                       && check_lowered(text, "tensor_parallel_degree=2 checkpointing=full "
                                              "sequence_parallel=true");
        }
        free(text);
    }
    (void)closedir(dir);
    assert_true(n_lowered >= 45);
    assert_true(n_split >= 40);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_latent_activations), cmocka_unit_test(test_norm_places),
    cmocka_unit_test(test_flops),              cmocka_unit_test(test_joint_branches),
    cmocka_unit_test(test_messages),           cmocka_unit_test(test_paths),
    cmocka_unit_test(test_published),          cmocka_unit_test(test_sinks),
};
CHECK_MAIN(tests)
