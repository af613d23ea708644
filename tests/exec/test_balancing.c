/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Experts where the result depends on which tokens are routed together: several ranks against
 * one rank that goes through the same parts of the batch one after the other; rows that do
 * not fit; loss scaling of the balancing losses.
 */
#include "config.h"

#include "tests/exec/ranks.h"

static const char MIXTRAL[] =
    TINY_OF("mixtral", ", \"num_key_value_heads\": 4, \"num_local_experts\": 4, "
            "\"num_experts_per_tok\": 2, \"initializer_range\": 0.15");
static const char ONE_CHOICE[] =
    TINY_OF("mixtral", ", \"num_key_value_heads\": 4, \"num_local_experts\": 4, "
            "\"num_experts_per_tok\": 1, \"initializer_range\": 0.15");
static const char SHARED[] =
    TINY_OF("qwen2_moe", ", \"num_key_value_heads\": 4, \"num_experts\": 4, "
            "\"num_experts_per_tok\": 2, \"moe_intermediate_size\": 16, "
            "\"shared_expert_intermediate_size\": 32, \"initializer_range\": 0.15");

enum { STEPS = 3 };

/* What several ranks do with their own tokens, one rank does with the same tokens in
 * micro-batches. */
typedef struct split {
    uint32_t ranks;
    const char *many, *one;
    uint32_t dealt;
} split;

static const split splits[] = {
    { 2, "expert_parallel_degree=2 micro_batch=2", "micro_batch=2", 2 },
    { 4, "expert_parallel_degree=4 micro_batch=2 moe_all_to_all_dispatcher=false",
      "micro_batch=2", 4 },
    { 4, "expert_parallel_degree=2 hybrid_shard_degree=4 expert_layout=nested micro_batch=1",
      "micro_batch=1", 4 },
    { 4, "expert_parallel_degree=2 tensor_parallel_degree=2 sequence_parallel=false "
         "micro_batch=2", "micro_batch=2", 2 },
    { 2, "tensor_parallel_degree=2 micro_batch=2 checkpointing=full", "micro_batch=1", 0 },
};

static const char *const modes[] = {
    "moe_load_balancing=sinkhorn",
    "moe_load_balancing=balanced",
    "moe_load_balancing=none capacity_factor=0.8",
    "moe_load_balancing=none capacity_factor=0.8 capacity_policy=position",
    "moe_load_balancing=none capacity_factor=1.1 capacity_pad=true",
    ("moe_load_balancing=sinkhorn capacity_factor=1.1 capacity_pad=true "
     "capacity_policy=position"),
};

static void compare_split(const char *config, const split *s, const char *mode)
{
    char text[512];
    trained one, many;

    (void)snprintf(text, sizeof text, "optimizer=sgd moe_rows_factor=8 %s %s", mode, s->one);
    one = train_dealt(config, text, 1, false, STEPS, 0.1, s->dealt);
    (void)snprintf(text, sizeof text, "optimizer=sgd moe_rows_factor=8 %s %s", mode, s->many);
    many = train_job(config, text, s->ranks, true, STEPS, 0.1);
    compare_trained(text, &many, &one, STEPS, 1e-5);
    trained_free(&one);
    trained_free(&many);
}

static void modes_route_each_part_alike(void **state)
{
    (void)state;
    for (size_t m = 0; m < sizeof modes / sizeof modes[0]; m++) {
        for (size_t i = 0; i < sizeof splits / sizeof splits[0]; i++) {
            compare_split(MIXTRAL, &splits[i], modes[m]);
        }
        compare_split(ONE_CHOICE, &splits[0], modes[m]);
        compare_split(SHARED, &splits[3], modes[m]);
    }
}

/* The balancing loss: of each part, and over all data ranks, where the number of parts is of
 * no matter; under sequence parallelism a part is what the tensor group has. */
static void balancing_loss_counts_its_tokens(void **state)
{
    static const split local[] = {
        { 2, "expert_parallel_degree=2 micro_batch=2", "micro_batch=2", 2 },
        { 2, "tensor_parallel_degree=2 micro_batch=4", "micro_batch=4", 0 },
        { 4, "tensor_parallel_degree=2 sequence_parallel=false micro_batch=2",
          "micro_batch=2", 2 },
    };
    static const split data[] = {
        { 2, "expert_parallel_degree=2 micro_batch=4", "micro_batch=8", 0 },
        { 4, "micro_batch=2 hybrid_shard_degree=2", "micro_batch=8", 0 },
        { 8, "tensor_parallel_degree=2 expert_parallel_degree=2 micro_batch=2 "
             "checkpointing=full", "micro_batch=8", 0 },
    };
    static const char losses[] =
        "moe_load_balancing=aux_loss moe_aux_loss_coeff=0.3 moe_z_loss_coeff=0.1";
    static const char all_ranks[] = "moe_load_balancing=aux_loss moe_aux_loss_coeff=0.3 "
                                    "moe_z_loss_coeff=0.1 moe_statistics=data";

    (void)state;
    for (int i = 0; i < 3; i++) {
        compare_split(MIXTRAL, &local[i], losses);
        compare_split(MIXTRAL, &data[i], all_ranks);
    }
}

/* Tokens that are exchanged before they are routed, and back: without a capacity each goes to
 * its experts all the same. */
static void shuffling_changes_no_result(void **state)
{
    static const split shuffled = {
        4, "expert_parallel_degree=4 global_token_shuffle=true micro_batch=2", "micro_batch=8",
        0
    };

    (void)state;
    compare_split(MIXTRAL, &shuffled, "moe_load_balancing=none");
}

/* More rows than there is room for: counted, nothing is updated, nothing is written beside
 * the buffers. */
static void a_step_without_room_changes_nothing(void **state)
{
    static const char *const layouts[] = {
        "expert_parallel_degree=2", "expert_parallel_degree=2 moe_all_to_all_dispatcher=false",
        "expert_parallel_degree=2 tensor_parallel_degree=2",
        "expert_parallel_degree=2 tensor_parallel_degree=2 moe_all_to_all_dispatcher=false",
    };

    (void)state;
    for (int i = 0; i < 4; i++) {
        char text[256];
        trained before, after;

        (void)snprintf(text, sizeof text, "moe_load_balancing=none moe_rows_factor=1 "
                                          "micro_batch=2 %s", layouts[i]);
        before = train_job(MIXTRAL, text, 4, false, 0, 0.1);
        after = train_job(MIXTRAL, text, 4, true, 2, 0.1);
        assert_true(after.rows[0] > 0 && after.rows[1] > 0);
        assert_memory_equal(after.parameters, before.parameters, before.n * sizeof(float));
        trained_free(&before);
        trained_free(&after);
    }
}

/* Gradients of all losses are scaled alike, so the norm is that of fp32 but for rounding, once
 * the scale has come down to where nothing overflows. */
static void balancing_losses_are_scaled(void **state)
{
    static const char text[] = "moe_load_balancing=aux_loss moe_aux_loss_coeff=5 "
                               "moe_z_loss_coeff=2 micro_batch=4 precision=";
    char half[160], single[160];
    trained a, b;
    int s = 0;

    (void)state;
    (void)snprintf(half, sizeof half, "%sfp16", text);
    (void)snprintf(single, sizeof single, "%sfp32", text);
    a = train_job(MIXTRAL, half, 1, false, RANKS_STEPS_MAX, 0);
    b = train_job(MIXTRAL, single, 1, false, RANKS_STEPS_MAX, 0);
    while (s < RANKS_STEPS_MAX - 1 && !isfinite(a.norm[s])) {
        s++;
    }
    check_rel(a.norm[s], b.norm[s], 0.02);
    trained_free(&a);
    trained_free(&b);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(modes_route_each_part_alike),
    cmocka_unit_test(balancing_loss_counts_its_tokens),
    cmocka_unit_test(shuffling_changes_no_result),
    cmocka_unit_test(a_step_without_room_changes_nothing),
    cmocka_unit_test(balancing_losses_are_scaled),
};

CHECK_MAIN(tests)
