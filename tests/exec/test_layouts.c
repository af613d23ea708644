/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same training in every layout: losses, gradients, gradient norms and parameters of some
 * steps equal those of one rank; what changes only when and where things are kept changes no
 * bit.
 *
 * Layouts are the legal ones of the grid below.  `make check` runs a covering set for 20
 * steps: every pair of values of two settings that is legal at all is in some layout.  With
 * SMP_CHECK_FULL in the environment (make check-full) every legal layout follows, for 2 steps,
 * so that the second sees what the first updated; streams are serial, but in one layout of
 * eight, by chance, beside each other.  SMP_CHECK_PART=I/N runs the I-th of N parts of these,
 * for processes beside each other; SMP_CHECK_SECONDS ends those of one model after that time,
 * and how many ran is printed.
 */
#include "config.h"

#include "tests/exec/ranks.h"

#include "mesh/mesh.h"

#include <time.h>

#define MOE_SETTINGS                                                                        \
    " moe_load_balancing=none moe_z_loss_coeff=0.01 moe_rows_factor=8"

static const char MIXTRAL[] =
    TINY_OF("mixtral", ", \"num_key_value_heads\": 4, \"num_local_experts\": 4, "
            "\"num_experts_per_tok\": 2, \"initializer_range\": 0.15");
static const char DEEPSEEK[] =
    TINY_OF("deepseek_v3", ", \"num_key_value_heads\": 8, \"q_lora_rank\": 12, "
            "\"kv_lora_rank\": 10, \"qk_nope_head_dim\": 4, \"qk_rope_head_dim\": 2, "
            "\"v_head_dim\": 4, \"n_routed_experts\": 8, \"num_experts_per_tok\": 3, "
            "\"moe_intermediate_size\": 24, \"n_shared_experts\": 1, \"n_group\": 1, "
            "\"topk_group\": 1, \"first_k_dense_replace\": 1, "
            "\"initializer_range\": 0.15");
static const char LLAMA4[] =
    TINY_OF("llama4_text", ", \"num_key_value_heads\": 4, \"head_dim\": 4, "
            "\"intermediate_size_mlp\": 40, "
            "\"num_local_experts\": 4, \"num_experts_per_tok\": 2, "
            "\"interleave_moe_layer_step\": 2, \"no_rope_layer_interval\": 3, "
            "\"attention_chunk_size\": 5, \"floor_scale\": 3, \"attn_scale\": 0.7, "
            "\"initializer_range\": 0.15");

/* ---- the grid ---- */

enum { DIMENSIONS = 12, VALUES = 8, ASYNC = 10 };
enum { STEPS = 20, FULL_STEPS = 2, MOST_POINTS = 400000 };
/* Losses fall, and what rounding differs grows little in 20 steps. */
static const double LR = 0.05;

static const char *const grid[DIMENSIONS][VALUES] = {
    { "1", "2", "4", "8" }, /* ranks */
    { "", "tensor_parallel_degree=2", "tensor_parallel_degree=4" },
    { "", "sequence_parallel=false" },
    { "", "expert_parallel_degree=2", "expert_parallel_degree=4" },
    { "", "expert_layout=nested" },
    { "", "moe_all_to_all_dispatcher=false" },
    { "", "hybrid_shard_degree=1", "hybrid_shard_degree=2", "hybrid_shard_degree=4" },
    { "", "sharding=optimizer", "sharding=none" },
    { "micro_batch=1", "micro_batch=1 accumulation=last", "micro_batch=2",
      "micro_batch=2 accumulation=last", "micro_batch=4", "micro_batch=8" },
    { "", "checkpointing=full", "checkpointing=selective", "checkpointing=selective:op",
      "checkpointing=first:2", "checkpointing=full offload=true activation_loading_horizon=1",
      "checkpointing=full offload=true activation_loading_horizon=2" },
    { "", "async" },
    { "", "loss_chunks=2 attention=naive", "prefetch=none forward_prefetch=false",
      "prefetch=backward_post", "reshard_after_forward=false" },
};

typedef struct point { uint8_t value[DIMENSIONS]; } point;

static uint32_t ranks_of(point p)
{
    return 1u << p.value[0];
}

/* The settings of a point, all but those that are no settings. */
static void settings_of(point p, bool moe, char *text, size_t n)
{
    size_t used = (size_t)snprintf(text, n, "optimizer=sgd%s", moe ? MOE_SETTINGS : "");

    for (int d = 1; d < DIMENSIONS; d++) {
        if (d != ASYNC && used < n) {
            used += (size_t)snprintf(text + used, n - used, " %s", grid[d][p.value[d]]);
        }
    }
}

/* Values that change nothing are left at the first. */
static bool is_plain(point p, bool moe)
{
    bool tensor = p.value[1] > 0, expert = p.value[3] > 0;

    return (tensor || p.value[2] == 0) && (expert || (p.value[4] == 0 && p.value[5] == 0))
           && (moe || !expert);
}

static bool next_point(point *p)
{
    for (int d = 0; d < DIMENSIONS; d++) {
        if (++p->value[d] < VALUES && grid[d][p->value[d]]) {
            return true;
        }
        p->value[d] = 0;
    }
    return false;
}

typedef struct points { point *at; size_t n; } points;

/* All legal points, in an order of chance. */
static points legal_points(const char *config, bool moe)
{
    points all = { .at = smp_heap_alloc(MOST_POINTS, sizeof(point)) };
    point p = { 0 };
    tiny t[4];
    smp_settings plain;

    for (uint32_t i = 0; i < 4; i++) {
        tiny_open(&t[i], config, 1u << i, 16, 8);
    }
    plain = t[0].job.settings;
    do {
        tiny *of = &t[p.value[0]];
        char text[512];

        if (!is_plain(p, moe) || p.value[ASYNC] > 0) {
            continue;
        }
        of->job.settings = plain;
        settings_of(p, moe, text, sizeof text);
        tiny_set(of, text);
        if (smp_job_try(&of->job)) { /* with serial streams and with others */
            assert_true(all.n + 2 <= MOST_POINTS);
            all.at[all.n] = all.at[all.n + 1] = p;
            all.at[all.n + 1].value[ASYNC] = 1;
            all.n += 2;
        }
    } while (next_point(&p));
    for (uint32_t i = 0; i < 4; i++) {
        tiny_close(&t[i]);
    }
    for (size_t i = all.n; i > 1; i--) {
        uint32_t u[4];
        size_t j;

        smp_random4(17, 0, i, u);
        j = u[0] % i;
        p = all.at[i - 1];
        all.at[i - 1] = all.at[j];
        all.at[j] = p;
    }
    return all;
}

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

/* Leaves those with serial streams. */
static void keep_serial(points *all)
{
    size_t n = 0;

    for (size_t i = 0; i < all->n; i++) {
        if (all->at[i].value[ASYNC] == 0) {
            all->at[n++] = all->at[i];
        }
    }
    all->n = n;
}

static void check_layout(const char *config, bool moe, point p, const trained *one,
                         uint32_t steps)
{
    char text[512];
    trained other;

    settings_of(p, moe, text, sizeof text);
    other = train_job(config, text, ranks_of(p), p.value[ASYNC] > 0, steps, LR);
    compare_trained(text, &other, one, steps, 1e-5);
    trained_free(&other);
}

static trained train_alone(const char *config, bool moe, uint32_t steps)
{
    char text[512];
    trained one;

    settings_of((point){ .value = { [8] = 5 } }, moe, text, sizeof text);
    one = train_job(config, text, 1, false, steps, LR);
    /* A choice by less than rounding could fall differently elsewhere. */
    assert_true(!moe || one.gap > 1e-6);
    return one;
}

static void check_every(const char *config, bool moe, points all)
{
    const char *part = getenv("SMP_CHECK_PART"), *seconds = getenv("SMP_CHECK_SECONDS");
    time_t end = time(NULL) + (seconds ? (time_t)atol(seconds) : (time_t)1 << 30);
    trained one = train_alone(config, moe, FULL_STEPS);
    unsigned long of = 1, n = 1;
    size_t ran = 0;

    if (part) {
        assert_int_equal(sscanf(part, "%lu/%lu", &of, &n), 2);
        assert_true(of >= 1 && of <= n);
    }
    for (size_t i = of - 1; i < all.n && time(NULL) < end; i += n) {
        uint32_t u[4];
        point p = all.at[i];

        smp_random4(18, 0, i, u);
        p.value[ASYNC] = u[0] % 8 == 0;
        check_layout(config, moe, p, &one, FULL_STEPS);
        ran++;
    }
    print_message("every: %zu of %zu legal layouts for %d steps\n", ran, all.n, FULL_STEPS);
    trained_free(&one);
}

static void check_layouts(const char *config, bool moe)
{
    points all = legal_points(config, moe), some = covering_points(all);
    trained one = train_alone(config, moe, STEPS);

    for (size_t i = 0; i < some.n; i++) {
        check_layout(config, moe, some.at[i], &one, STEPS);
    }
    print_message("pairs: %zu layouts for %d steps; least gap %.2g\n", some.n, STEPS, one.gap);
    if (getenv("SMP_CHECK_FULL")) {
        keep_serial(&all);
        check_every(config, moe, all);
    }
    trained_free(&one);
    free(all.at);
    free(some.at);
}

static void llama_is_the_same_everywhere(void **state)
{
    (void)state;
    check_layouts(TINY_LLAMA, false);
}

static void gpt2_is_the_same_everywhere(void **state)
{
    (void)state;
    check_layouts(TINY_GPT2, false);
}

static void mixtral_is_the_same_everywhere(void **state)
{
    (void)state;
    check_layouts(MIXTRAL, true);
}

static void deepseek_is_the_same_everywhere(void **state)
{
    (void)state;
    check_layouts(DEEPSEEK, true);
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
    cmocka_unit_test(families_are_the_same_everywhere),
    cmocka_unit_test(weighed_inputs_are_the_same_everywhere),
    cmocka_unit_test(keeping_less_changes_no_bit),
};

CHECK_MAIN(tests)
