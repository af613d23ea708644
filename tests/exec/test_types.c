/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings that change types and copies: attention_in_fp32, fp32_residual, qk_layer_scaling,
 * distribute_embedding, optimizer adam.  Each changes program, memory or numbers as it says,
 * and is right: what is made more exact comes closer to training in fp32, in every layout.
 */
#include "config.h"

#include "tests/exec/ranks.h"

#include "step/program.h"

#define HALF "optimizer=sgd micro_batch=4 precision=bf16"

/* Norms before, after and around, branches beside each other, experts, dropout, a projection
 * and a norm behind the embedding, sinks, caps, latent attention. */
static const char *const families[] = {
    TINY_LLAMA,
    TINY_GPT2,
    TINY_OF("olmo2", ", \"num_key_value_heads\": 2"),
    TINY_OF("gemma2", ", \"head_dim\": 4, \"num_key_value_heads\": 4, "
            "\"sliding_window\": 8, \"query_pre_attn_scalar\": 8, "
            "\"final_logit_softcapping\": 2.0, \"attn_logit_softcapping\": 1.5"),
    TINY_OF("gpt_neox", ", \"hidden_dropout\": 0.1, \"rotary_pct\": 0.5"),
    TINY_OF("cohere", ", \"num_key_value_heads\": 2, \"logit_scale\": 0.5"),
    TINY_OF("bloom", ", \"hidden_dropout\": 0.0"),
    TINY_OF("gpt_oss", ", \"head_dim\": 4, \"num_key_value_heads\": 4, "
            "\"num_local_experts\": 4, \"num_experts_per_tok\": 4, "
            "\"initializer_range\": 0.15"),
    TINY_OF("deepseek_v3", ", \"num_key_value_heads\": 8, \"q_lora_rank\": 12, "
            "\"kv_lora_rank\": 10, \"qk_nope_head_dim\": 4, \"qk_rope_head_dim\": 2, "
            "\"v_head_dim\": 4, \"n_routed_experts\": 4, \"num_experts_per_tok\": 4, "
            "\"moe_intermediate_size\": 24, \"n_shared_experts\": 1, \"n_group\": 1, "
            "\"topk_group\": 1, \"first_k_dense_replace\": 1"),
};
enum { FAMILIES = sizeof families / sizeof families[0] };

static const char OPT[] =
    TINY_OF("opt", ", \"ffn_dim\": 48, \"do_layer_norm_before\": true, "
            "\"word_embed_proj_dim\": 16, \"dropout\": 0.0");

/* The gradient of one step. */
static trained gradient(const char *config, const char *settings, const char *more,
                        uint32_t ranks)
{
    char text[512];

    (void)snprintf(text, sizeof text, "moe_load_balancing=none moe_rows_factor=8 %s %s",
                   settings, more);
    return train_job(config, text, ranks, false, 1, 0.1);
}

static double off(const trained *a, const trained *b)
{
    return distance(a->gradients[0], b->gradients[0], b->n);
}

static uint64_t arena_of(const char *config, const char *settings, const char *more,
                         uint32_t ranks)
{
    smp_step *step = NULL;
    uint64_t bytes;
    tiny t;

    tiny_open(&t, config, ranks, 16, 8);
    tiny_set(&t, settings);
    tiny_set(&t, more);
    check_ok(smp_job_resolve(&t.job, t.errors), t.errors);
    check_ok(smp_step_lower(&t.job, t.errors, &step), t.errors);
    check_ok(smp_step_verify(step, t.errors), t.errors);
    bytes = step->programs[0]->arena_bytes;
    smp_step_destroy(step);
    tiny_close(&t);
    return bytes;
}

/* With the setting gradients are others, and on the whole nearer to those with `exactly`:
 * `most` of the distance without it, as a mean over the families. */
static void comes_closer(const char *const *configs, int n, const char *settings,
                         const char *more, const char *exactly, double most)
{
    double sum = 0;

    for (int i = 0; i < n; i++) {
        trained exact = gradient(configs[i], settings, exactly, 1);
        trained plain = gradient(configs[i], settings, "", 1);
        trained with = gradient(configs[i], settings, more, 1);

        assert_true(off(&with, &plain) > 0);
        assert_true(off(&with, &exact) < 0.05);
        sum += off(&with, &exact) / off(&plain, &exact) / n;
        trained_free(&exact);
        trained_free(&plain);
        trained_free(&with);
    }
    print_message("%s: %.2f of the distance to %s\n", more, sum, exactly);
    assert_true(sum < most);
}

/* Keeping less, sharding and offloading change no bit, tensor parallelism what sums in another
 * order do. */
static void is_the_same_everywhere(const char *config, const char *settings)
{
    static const struct { uint32_t ranks; const char *text; double tolerance; } layouts[] = {
        { 1, "checkpointing=full", 0 },
        { 1, "checkpointing=selective:op", 0 },
        { 1, "checkpointing=selective loss_chunks=2", 0.01 },
        { 1, "checkpointing=full offload=true activation_loading_horizon=1", 0 },
        { 2, "tensor_parallel_degree=2", 0.02 },
        { 2, "tensor_parallel_degree=2 sequence_parallel=false", 0.02 },
        { 4, "tensor_parallel_degree=2 micro_batch=2 checkpointing=full", 0.02 },
    };
    trained one = gradient(config, settings, "", 1);

    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        trained other = gradient(config, settings, layouts[i].text, layouts[i].ranks);
        double d = off(&other, &one);

        if (!(d <= layouts[i].tolerance)) {
            fail_msg("%.30s: %s %s: gradients differ by %.3g", config, settings,
                     layouts[i].text, d);
        }
        trained_free(&other);
    }
    trained_free(&one);
}

static void residuals_in_fp32(void **state)
{
    trained a, b;
    tiny t;

    (void)state;
    tiny_open(&t, TINY_OF("opt", ", \"ffn_dim\": 48, \"do_layer_norm_before\": false"), 1,
              16, 8);
    tiny_set(&t, HALF " fp32_residual=true");
    check_fails(smp_job_resolve(&t.job, t.errors), SMP_INPUT, t.errors,
                "fp32_residual true: in tiny the residual is the output of a norm");
    tiny_close(&t);
    comes_closer(families, FAMILIES, HALF, "fp32_residual=true", "precision=fp32", 0.95);
    for (int i = 0; i < FAMILIES; i++) {
        is_the_same_everywhere(families[i], HALF " fp32_residual=true");
    }
    assert_true(arena_of(TINY_LLAMA, HALF, "fp32_residual=true", 1)
                > arena_of(TINY_LLAMA, HALF, "", 1));
    a = gradient(TINY_LLAMA, HALF, "precision=fp32", 1);
    b = gradient(TINY_LLAMA, HALF, "precision=fp32 fp32_residual=true", 1);
    compare_trained("fp32", &b, &a, 1, 0);
    trained_free(&a);
    trained_free(&b);
}

/* Fused attention is exact inside. */
static void attention_in_fp32(void **state)
{
    static const char *const sharp[] = {
        TINY_OF("llama", ", \"num_key_value_heads\": 4, \"initializer_range\": 0.3"),
        TINY_OF("gpt2", ", \"attn_pdrop\": 0.1, \"resid_pdrop\": 0, \"embd_pdrop\": 0, "
                "\"initializer_range\": 0.3"),
        TINY_OF("phi3", ", \"num_key_value_heads\": 4, \"sliding_window\": 5, "
                "\"initializer_range\": 0.3"),
        TINY_OF("stablelm", ", \"num_key_value_heads\": 2, \"qk_layernorm\": true, "
                "\"partial_rotary_factor\": 0.5, \"initializer_range\": 0.3"),
    };

    (void)state;
    comes_closer(sharp, 4, HALF " attention=naive", "attention_in_fp32=true",
                 "attention=flash", 0.5);
    for (int i = 0; i < FAMILIES; i++) {
        is_the_same_everywhere(families[i], HALF " attention=naive attention_in_fp32=true");
    }
    assert_true(arena_of(TINY_LLAMA, HALF " attention=naive", "attention_in_fp32=true", 1)
                > arena_of(TINY_LLAMA, HALF " attention=naive", "", 1));
}

/* In fp32 it changes roundings only, and those at every layer but the first. */
static void scores_over_the_layer(void **state)
{
    static const char naive[] = "optimizer=sgd micro_batch=4 attention=naive";

    (void)state;
    for (int i = 0; i < FAMILIES; i++) {
        trained a = gradient(families[i], naive, "", 1);
        trained b = gradient(families[i], naive, "qk_layer_scaling=true", 1);

        assert_true(off(&b, &a) > 0);
        assert_true(off(&b, &a) < 1e-5);
        trained_free(&a);
        trained_free(&b);
    }
}

/* Scores of the third layer of 80000 to 160000 are infinite in fp16, a third of them is not. */
static bool overflows(const char *more)
{
    static const char rules[] = "model.layers.2.self_attn.q_proj.weight normal 0 24\n"
                                "model.layers.2.self_attn.k_proj.weight normal 0 24\n";
    char path[64], text[80];
    tiny t;
    bool found;

    tiny_open(&t, TINY_LLAMA, 1, 16, 8);
    tiny_set(&t, "optimizer=sgd micro_batch=8 attention=naive precision=fp16");
    tiny_set(&t, more);
    (void)snprintf(path, sizeof path, "%s", check_file(rules, sizeof rules - 1));
    (void)snprintf(text, sizeof text, "%s.rules", path);
    assert_int_equal(rename(path, text), 0);
    t.options.data = tiny_text();
    t.options.init_rules = text;
    t.options.hyper.loss_scale = 1;
    t.options.steps = 1;
    check_ok(smp_job_resolve(&t.job, t.errors), t.errors);
    found = smp_exec_run(&t.job, &t.options, t.errors, &t.result) != SMP_OK;
    (void)unlink(text);
    tiny_close(&t);
    return found;
}

static void scores_over_the_layer_overflow_later(void **state)
{
    (void)state;
    assert_true(overflows(""));
    assert_false(overflows("qk_layer_scaling=true"));
    assert_false(overflows("attention_in_fp32=true"));
}

static void check_whole_tables(const char *config)
{
    static const struct { uint32_t ranks; const char *text; } layouts[] = {
        { 2, "tensor_parallel_degree=2" },
        { 2, "tensor_parallel_degree=2 sequence_parallel=false loss_chunks=2" },
        { 4, "tensor_parallel_degree=2 micro_batch=2 accumulation=last loss_chunks=4" },
        { 4, "tensor_parallel_degree=4 checkpointing=full" },
        { 4, "tensor_parallel_degree=2 sharding=optimizer micro_batch=1" },
        { 8, "tensor_parallel_degree=2 hybrid_shard_degree=2 micro_batch=1" },
    };
    trained one = train_job(config, "optimizer=sgd micro_batch=8", 1, false, 3, 0.1);

    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        char text[256];
        trained other;

        (void)snprintf(text, sizeof text,
                       "optimizer=sgd micro_batch=4 distribute_embedding=off %s",
                       layouts[i].text);
        other = train_job(config, text, layouts[i].ranks, true, 3, 0.1);
        compare_trained(text, &other, &one, 3, 1e-5);
        trained_free(&other);
    }
    trained_free(&one);
}

/* 97 rows cannot be divided by 2 or 4: parts are padded, whole tables are not. */
static void whole_tables_train_alike(void **state)
{
    static const char two[] = "micro_batch=8 tensor_parallel_degree=2";

    (void)state;
    check_whole_tables(TINY_LLAMA);
    check_whole_tables(TINY_GPT2);
    check_whole_tables(OPT);
    check_whole_tables(families[5]);
    assert_true(arena_of(TINY_LLAMA, two, "distribute_embedding=off", 2)
                != arena_of(TINY_LLAMA, two, "", 2));
    check_u64(arena_of(TINY_LLAMA, two, "distribute_embedding=on", 2),
              arena_of(TINY_LLAMA, two, "", 2));
}

/* Matrices only, so that decay differs from that of AdamW after one step already:
 * w - lr (g + decay w) / |g + decay w| against w - lr decay w - lr g / |g|. */
static void adam_adds_decay_to_the_gradient(void **state)
{
    static const char all[] = "micro_batch=8 tensor_parallel_degree=1 ";
    char text[128];
    trained a, w, none;

    (void)state;
    (void)snprintf(text, sizeof text, "%s optimizer=adam", all);
    a = train_job(TINY_LLAMA, text, 1, false, 1, 0.01);
    none = train_job(TINY_LLAMA, text, 1, false, 0, 0.01);
    (void)snprintf(text, sizeof text, "%s optimizer=adamw", all);
    w = train_job(TINY_LLAMA, text, 1, false, 1, 0.01);
    for (uint64_t i = 0; i < a.n; i++) {
        double g = (double)a.gradients[0][i] * fmin(1, 0.9 / a.norm[0]);
        double p = (double)none.parameters[i], decay = p < 1 ? 0.1 : 0; /* norms are 1 */

        if (fabs(g) > 1e-5 && fabs(g + decay * p) > 1e-5) {
            check_rel((double)a.parameters[i] - p,
                      -0.01 * (g + decay * p > 0 ? 1 : -1), 2e-3);
            check_rel((double)w.parameters[i] - p,
                      -0.01 * ((g > 0 ? 1 : -1) + decay * p), 2e-3);
        }
    }
    trained_free(&a);
    trained_free(&w);
    trained_free(&none);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(residuals_in_fp32),
    cmocka_unit_test(attention_in_fp32),
    cmocka_unit_test(scores_over_the_layer),
    cmocka_unit_test(scores_over_the_layer_overflow_later),
    cmocka_unit_test(whole_tables_train_alike),
    cmocka_unit_test(adam_adds_decay_to_the_gradient),
};

CHECK_MAIN(tests)
