/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings that change types and copies: attention_in_fp32, fp32_residual, qk_layer_scaling,
 * distribute_embedding.  Each changes program, memory or numbers as it says, and is right: what
 * is made more exact comes closer to training in fp32, in every layout.  And the optimizers.
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

/* Programs are proved, with waits and places. */
static void programs_hold(void **state)
{
    static const char *const settings[] = {
        HALF " fp32_residual=true", HALF " attention=naive attention_in_fp32=true",
        "micro_batch=4 distribute_embedding=off loss_chunks=2",
        HALF " fp32_residual=true checkpointing=full offload=true activation_loading_horizon=1",
        HALF " attention=naive attention_in_fp32=true checkpointing=selective:op",
    };

    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        for (int k = 0; k < FAMILIES; k++) {
            (void)arena_of(families[k], settings[i], "moe_rows_factor=8", 1);
            (void)arena_of(families[k], settings[i],
                           "moe_rows_factor=8 tensor_parallel_degree=2 micro_batch=2", 4);
        }
    }
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

/* ---- updates ---- */

/* Which elements decay: those of matrices. */
static void mark_matrices(const smp_model *model, double decay, double *of)
{
    uint64_t n = 0;

    for (uint32_t l = 0; l <= model->n_layer; l++) {
        const smp_block *block = l > 0 ? smp_model_block(model, l - 1) : NULL;
        const smp_param *params = block ? block->params : model->root;
        uint32_t n_param = block ? block->n_param : model->n_root;

        for (uint32_t i = 0; i < n_param; i++) {
            for (uint64_t k = 0; k < smp_param_elems(&params[i]); k++) {
                of[n++] = params[i].n_dim > 1 ? decay : 0;
            }
        }
    }
}

typedef enum rule { ADAMW, ADAM, SGD, RULES } rule;

/* One step of torch.optim's AdamW, Adam or SGD in double. */
static double updated(rule how, double w, double g, double decay, uint32_t step, double *m,
                      double *v)
{
    const double lr = 0.01, b1 = 0.9, b2 = 0.95, eps = 1e-8, momentum = 0.9;

    g += how == ADAMW ? 0 : decay * w;
    if (how == SGD) {
        *m = momentum * *m + g;
        return w - lr * *m;
    }
    *m = b1 * *m + (1 - b1) * g;
    *v = b2 * *v + (1 - b2) * g * g;
    w -= how == ADAMW ? lr * decay * w : 0;
    return w - lr * (*m / (1 - pow(b1, step))) / (sqrt(*v / (1 - pow(b2, step))) + eps);
}

enum { UPDATES = 4 };

static void check_updates(rule how, const double *decay, const char *settings, uint32_t ranks)
{
    trained end = train_job(TINY_GPT2, settings, ranks, false, UPDATES, 0.01);
    trained begin = train_job(TINY_GPT2, settings, ranks, false, 0, 0.01);

    for (uint64_t i = 0; i < end.n; i++) {
        double w = (double)begin.parameters[i], m = 0, v = 0;

        for (uint32_t s = 0; s < UPDATES; s++) {
            double clip = 0.9 / (end.norm[s] + 1e-6); /* ranks.h clips at 0.9 */

            w = updated(how, w, (double)end.gradients[s][i] * (clip < 1 ? clip : 1), decay[i],
                        s + 1, &m, &v);
        }
        if (!(fabs((double)end.parameters[i] - w) < 2e-6)) {
            fail_msg("%s: element %llu is %.9g, expected %.9g", settings,
                     (unsigned long long)i, (double)end.parameters[i], w);
        }
    }
    assert_true(end.norm[0] > 0.9); /* it was clipped */
    trained_free(&end);
    trained_free(&begin);
}

/* From the gradients that the run had, with clipping and decay of matrices alone. */
static void updates_follow_their_formulas(void **state)
{
    static const char *const names[RULES] = { "adamw", "adam", "sgd" };
    double *decay;
    tiny t;

    (void)state;
    tiny_open(&t, TINY_GPT2, 1, 16, 8);
    decay = smp_heap_alloc(smp_model_parameters(t.model), sizeof *decay);
    mark_matrices(t.model, 0.1, decay);
    for (int how = 0; how < RULES; how++) {
        char text[128];

        (void)snprintf(text, sizeof text, "micro_batch=8 optimizer=%s", names[how]);
        check_updates((rule)how, decay, text, 1);
        (void)snprintf(text, sizeof text, "micro_batch=2 sharding=optimizer optimizer=%s",
                       names[how]);
        check_updates((rule)how, decay, text, 2);
    }
    free(decay);
    tiny_close(&t);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(programs_hold),
    cmocka_unit_test(residuals_in_fp32),
    cmocka_unit_test(attention_in_fp32),
    cmocka_unit_test(scores_over_the_layer),
    cmocka_unit_test(scores_over_the_layer_overflow_later),
    cmocka_unit_test(whole_tables_train_alike),
    cmocka_unit_test(updates_follow_their_formulas),
};

CHECK_MAIN(tests)
