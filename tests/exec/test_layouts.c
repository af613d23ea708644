/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same training in every layout: losses, gradients, gradient norms and parameters of some
 * steps equal those of one rank; what changes only when and where things are kept changes no
 * bit.
 *
 * Layouts are the legal ones of the grid of layouts.h.  Here runs a covering set for 20 steps:
 * every pair of values of two settings that is legal at all is in some layout.  All of them:
 * check_layouts.c.
 */
#include "config.h"

#include "tests/exec/layouts.h"
#include "tests/exec/program_key.h"

static const char LLAMA4[] =
    TINY_OF("llama4_text", ", \"num_key_value_heads\": 4, \"head_dim\": 4, "
            "\"intermediate_size_mlp\": 40, "
            "\"num_local_experts\": 4, \"num_experts_per_tok\": 2, "
            "\"interleave_moe_layer_step\": 2, \"no_rope_layer_interval\": 3, "
            "\"attention_chunk_size\": 5, \"floor_scale\": 3, \"attn_scale\": 0.7, "
            "\"initializer_range\": 0.15");

/* ---- every pair ---- */

enum { CELLS = DIMENSIONS * VALUES };

/* Pairs of the point that are in no layout yet. */
static uint32_t count_new(point p, bool covered[CELLS][CELLS], bool mark)
{
    uint32_t n = 0;

    for (int a = 0; a < DIMENSIONS; a++) {
        for (int b = 0; b < a; b++) {
            bool *pair = &covered[a * VALUES + p.value[a]][b * VALUES + p.value[b]];

            n += !*pair;
            *pair = *pair || mark;
        }
    }
    return n;
}

enum { LOOKS = 2000 };

/* Greedy: of so many points that have new pairs the one with most, until none has any. */
static points covering_points(points all)
{
    static bool covered[CELLS][CELLS];
    points some = { .at = smp_heap_alloc(all.n, sizeof(point)) };

    memset(covered, 0, sizeof covered);
    for (;;) {
        uint32_t most = 0, looks = 0;
        size_t best = 0;

        for (size_t i = 0; i < all.n && looks < LOOKS; i++) {
            uint32_t n = count_new(all.at[i], covered, false);

            best = n > most ? i : best;
            most = n > most ? n : most;
            looks += n > 0;
        }
        if (most == 0) {
            return some;
        }
        (void)count_new(all.at[best], covered, true);
        some.at[some.n++] = all.at[best];
    }
}

static void check_layouts(const layouts_model *model)
{
    points all = legal_points(model->config, model->moe, false);
    points some = covering_points(all);
    trained one = train_alone(model->config, model->moe, STEPS);

    for (size_t i = 0; i < some.n; i++) {
        char text[DIFFER_TEXT];

        try_layout(model->config, model->moe, some.at[i], &one, STEPS, text, sizeof text);
        if (text[0] != '\0') {
            fail_msg("%s", text);
        }
    }
    print_message("pairs: %zu layouts for %d steps; least gap %.2g\n", some.n, STEPS, one.gap);
    trained_free(&one);
    free(all.at);
    free(some.at);
}

static void llama_is_the_same_everywhere(void **state)
{
    (void)state;
    check_layouts(&layouts_models[0]);
}

static void gpt2_is_the_same_everywhere(void **state)
{
    (void)state;
    check_layouts(&layouts_models[1]);
}

static void mixtral_is_the_same_everywhere(void **state)
{
    (void)state;
    check_layouts(&layouts_models[2]);
}

static void deepseek_is_the_same_everywhere(void **state)
{
    (void)state;
    check_layouts(&layouts_models[3]);
}

/* ---- what is the same computation (program_key.h) ---- */

static program_key key_under(const char *config, uint32_t ranks, const char *settings)
{
    program_key key;
    tiny t;

    tiny_open(&t, config, ranks, 16, 8);
    tiny_set(&t, settings);
    check_ok(smp_job_resolve(&t.job, t.errors), t.errors);
    key = key_of(&t.job);
    tiny_close(&t);
    return key;
}

static bool same_key(program_key a, program_key b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

/* Of the first points all pairs with equal keys; returns how many there were. */
static size_t check_pairs(const layouts_model *model, size_t n)
{
    points all = legal_points(model->config, model->moe, true);
    program_key *keys = smp_heap_alloc(n, sizeof *keys);
    size_t pairs = 0;
    char text[512], other[512];

    for (size_t i = 0; i < n; i++) {
        settings_of(all.at[i], model->moe, text, sizeof text);
        keys[i] = key_under(model->config, ranks_of(all.at[i]), text);
        for (size_t j = 0; j < i; j++) {
            trained a, b;

            if (!same_key(keys[j], keys[i])) {
                continue;
            }
            settings_of(all.at[j], model->moe, other, sizeof other);
            a = train_job(model->config, text, ranks_of(all.at[i]), false, 2, LR);
            b = train_job(model->config, other, ranks_of(all.at[j]), false, 2, LR);
            compare_trained(text, &a, &b, 2, 0);
            trained_free(&a);
            trained_free(&b);
            pairs++;
        }
    }
    free(keys);
    free(all.at);
    return pairs;
}

static void equal_keys_train_to_the_same_bit(void **state)
{
    (void)state;
    assert_true(check_pairs(&layouts_models[0], 200) > 0);
    assert_true(check_pairs(&layouts_models[2], 150) > 0);
}

static void keys_tell_programs_apart(void **state)
{
    static const char *const settings[] = {
        "micro_batch=1", "micro_batch=1 accumulation=last", "micro_batch=2",
        "micro_batch=2 checkpointing=full", "micro_batch=2 tensor_parallel_degree=2",
        "micro_batch=2 tensor_parallel_degree=2 sequence_parallel=false",
        "micro_batch=2 hybrid_shard_degree=2", "micro_batch=2 sharding=none",
        "micro_batch=2 prefetch=none forward_prefetch=false", "micro_batch=2 random_seed=7",
        "micro_batch=2 rank_order=replica,tensor,context,shard,expert hybrid_shard_degree=2",
        "micro_batch=2 optimizer=sgd",
    };
    enum { SETTINGS = sizeof settings / sizeof settings[0] };
    program_key keys[SETTINGS];

    (void)state;
    for (size_t i = 0; i < SETTINGS; i++) {
        keys[i] = key_under(TINY_LLAMA, 4, settings[i]);
        for (size_t j = 0; j < i; j++) {
            if (same_key(keys[i], keys[j])) {
                fail_msg("%s has the key of %s", settings[i], settings[j]);
            }
        }
    }
    assert_true(same_key(key_under(TINY_LLAMA, 1, "micro_batch=2"),
                         key_under(TINY_LLAMA, 1, "micro_batch=2 hybrid_shard_degree=1")));
    assert_true(same_key(key_under(TINY_LLAMA, 2, "micro_batch=4 sharding=none"),
                         key_under(TINY_LLAMA, 2, "micro_batch=4 sharding=none "
                                                  "prefetch=backward_post")));
}

/* ---- families ---- */

/* Norms in every place, branches beside each other, alibi, caps, sinks, norms of q and k of
 * every form, factors of logits, norms and projections of the embedding, biases of the head,
 * shared experts: with tensor parallelism, and without. */
static const char *const families[] = {
    TINY_OF("gemma2", ", \"head_dim\": 4, \"num_key_value_heads\": 4, "
            "\"sliding_window\": 8, \"query_pre_attn_scalar\": 8, "
            "\"final_logit_softcapping\": 2.0, \"attn_logit_softcapping\": 1.5"),
    TINY_OF("gemma3_text", ", \"head_dim\": 4, \"num_key_value_heads\": 2, "
            "\"sliding_window\": 8, \"sliding_window_pattern\": 2"),
    TINY_OF("gptj", ", \"rotary_dim\": 4, \"n_inner\": 48, \"resid_pdrop\": 0.0, "
            "\"embd_pdrop\": 0.0"),
    TINY_OF("gpt_neox", ", \"hidden_dropout\": 0.0, \"rotary_pct\": 0.5"),
    TINY_OF("cohere", ", \"num_key_value_heads\": 2, \"logit_scale\": 0.5, "
            "\"use_qk_norm\": true"),
    TINY_OF("falcon", ", \"alibi\": true, \"bias\": true, \"parallel_attn\": false"),
    TINY_OF("bloom", ", \"hidden_dropout\": 0.0"),
    TINY_OF("opt", ", \"ffn_dim\": 48, \"do_layer_norm_before\": false, "
            "\"word_embed_proj_dim\": 16, \"dropout\": 0.0"),
    TINY_OF("olmo2", ", \"num_key_value_heads\": 2"),
    TINY_OF("phi3", ", \"num_key_value_heads\": 4, \"sliding_window\": 5, "
            "\"partial_rotary_factor\": 0.5"),
    TINY_OF("phi", ", \"qk_layernorm\": true, \"partial_rotary_factor\": 0.5"),
    TINY_OF("stablelm", ", \"num_key_value_heads\": 2, \"qk_layernorm\": true, "
            "\"partial_rotary_factor\": 0.5"),
    TINY_OF("starcoder2", ", \"sliding_window\": 5"),
    TINY_OF("mpt", ", \"attn_config\": {\"clip_qkv\": 0.05}"),
    TINY_OF("gpt_bigcode", ", \"resid_pdrop\": 0.0, \"embd_pdrop\": 0.0, "
            "\"attn_pdrop\": 0.0"),
    TINY_OF("qwen2_moe", ", \"num_key_value_heads\": 4, \"num_experts\": 4, "
            "\"num_experts_per_tok\": 2, \"moe_intermediate_size\": 16, "
            "\"shared_expert_intermediate_size\": 32, \"initializer_range\": 0.15"),
    TINY_OF("gpt_oss", ", \"head_dim\": 4, \"num_key_value_heads\": 4, "
            "\"num_local_experts\": 4, \"num_experts_per_tok\": 2, "
            "\"initializer_range\": 0.15"),
};

typedef struct layout { uint32_t ranks; const char *settings; } layout;

/* Three steps in each layout against those of one rank. */
static void check_family(const char *config, const layout *layouts, size_t n)
{
    trained one = train_job(config, "optimizer=sgd micro_batch=8" MOE_SETTINGS, 1, false, 3,
                            0.1);

    for (size_t i = 0; i < n; i++) {
        char what[400];
        trained other;

        (void)snprintf(what, sizeof what, "optimizer=sgd" MOE_SETTINGS " %s",
                       layouts[i].settings);
        other = train_job(config, what, layouts[i].ranks, true, 3, 0.1);
        (void)snprintf(what, sizeof what, "%.30s, %s", config, layouts[i].settings);
        compare_trained(what, &other, &one, 3, 1e-5);
        trained_free(&other);
    }
    trained_free(&one);
}

static void families_are_the_same_everywhere(void **state)
{
    static const layout some[] = {
        { 1, "micro_batch=4 checkpointing=full loss_chunks=4" },
        { 2, "micro_batch=2 accumulation=last attention=naive" },
        { 2, "tensor_parallel_degree=2 micro_batch=4" },
        { 2, "tensor_parallel_degree=2 sequence_parallel=false micro_batch=4" },
        { 4, "tensor_parallel_degree=4 micro_batch=8 checkpointing=full" },
        { 4, "tensor_parallel_degree=2 sequence_parallel=false checkpointing=selective:op" },
        { 8, "tensor_parallel_degree=4 hybrid_shard_degree=2 micro_batch=2" },
    };

    (void)state;
    for (size_t c = 0; c < sizeof families / sizeof families[0]; c++) {
        check_family(families[c], some, sizeof some / sizeof some[0]);
    }
    check_family(LLAMA4, some, sizeof some / sizeof some[0]);
}

/* Weights of experts multiply what is sent to them: their gradients come with the rows, by
 * either dispatcher, whole or in parts. */
static void weighed_inputs_are_the_same_everywhere(void **state)
{
    static const layout some[] = {
        { 2, "expert_parallel_degree=2 micro_batch=2" },
        { 4, "expert_parallel_degree=4 micro_batch=2 checkpointing=full" },
        { 2, "expert_parallel_degree=2 moe_all_to_all_dispatcher=false micro_batch=4" },
        { 4, "tensor_parallel_degree=2 expert_parallel_degree=2 micro_batch=2" },
        { 4, "tensor_parallel_degree=2 expert_parallel_degree=2 micro_batch=2 "
             "moe_all_to_all_dispatcher=false checkpointing=selective:op" },
        { 8, "tensor_parallel_degree=2 sequence_parallel=false expert_parallel_degree=2 "
             "moe_all_to_all_dispatcher=false micro_batch=2" },
    };

    (void)state;
    check_family(LLAMA4, some, sizeof some / sizeof some[0]);
}

/* ---- what changes no bit ---- */

static void check_bits(const char *config, const char *more, uint32_t ranks)
{
    static const char *const settings[] = {
        "checkpointing=none",
        "checkpointing=full",
        "checkpointing=selective",
        "checkpointing=selective:op",
        "checkpointing=first:2",
        "checkpointing=full offload=true activation_loading_horizon=1",
        "checkpointing=full offload=true activation_loading_horizon=2",
        "checkpointing=full offload=true sm_activation_offloading=false",
        "checkpointing=full offload=true activation_loading_horizon=1 offload_layers=2",
        "checkpointing=first:2 offload=true sm_activation_offloading=false offload_layers=1",
    };
    trained one;
    char text[512];

    (void)snprintf(text, sizeof text, "optimizer=sgd micro_batch=4 %s", more);
    one = train_job(config, text, ranks, false, 3, 0.1);
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        for (int async = 0; async < 2; async++) {
            trained other;

            (void)snprintf(text, sizeof text, "optimizer=sgd micro_batch=4 %s %s", more,
                           settings[i]);
            other = train_job(config, text, ranks, async, 3, 0.1);
            compare_trained(text, &other, &one, 3, 0);
            trained_free(&other);
        }
    }
    trained_free(&one);
}

static void keeping_less_changes_no_bit(void **state)
{
    (void)state;
    check_bits(TINY_LLAMA, "", 1);
    check_bits(TINY_GPT2, "", 1);
    check_bits(TINY_LLAMA, "tensor_parallel_degree=2", 4);
    check_bits(MIXTRAL, "expert_parallel_degree=2" MOE_SETTINGS, 2);
    check_bits(DEEPSEEK, MOE_SETTINGS, 1);
    check_bits(LLAMA4, "expert_parallel_degree=2" MOE_SETTINGS, 2);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(llama_is_the_same_everywhere),
    cmocka_unit_test(gpt2_is_the_same_everywhere),
    cmocka_unit_test(mixtral_is_the_same_everywhere),
    cmocka_unit_test(deepseek_is_the_same_everywhere),
    cmocka_unit_test(equal_keys_train_to_the_same_bit),
    cmocka_unit_test(keys_tell_programs_apart),
    cmocka_unit_test(families_are_the_same_everywhere),
    cmocka_unit_test(weighed_inputs_are_the_same_everywhere),
    cmocka_unit_test(keeping_less_changes_no_bit),
};

CHECK_MAIN(tests)
