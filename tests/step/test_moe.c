/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixture of experts: rules of its settings, groups of both layouts.
 */
#include "config.h"

#include "tests/step/step_jobs.h"

/* Experts inside the degrees of the mesh. */
#define MIXTRAL(layers, experts, k)                                                         \
    "{\"model_type\": \"mixtral\", \"num_hidden_layers\": " #layers ", "                    \
    "\"hidden_size\": 512, \"num_attention_heads\": 8, \"num_key_value_heads\": 4, "        \
    "\"intermediate_size\": 1024, \"vocab_size\": 1024, \"num_local_experts\": " #experts   \
    ", \"num_experts_per_tok\": " #k ", \"max_position_embeddings\": 4096, "                \
    "\"tie_word_embeddings\": false}"

/* The job resolves, or fails with a message that holds the text. */
static void check_rule(const char *config, uint32_t gpus, const char *settings,
                       const char *text_or_null)
{
    bench b;

    bench_open(&b, config, gpus, 256, gpus, settings);
    if (text_or_null == NULL) {
        check_ok(smp_job_resolve(&b.job, b.errors), b.errors);
    } else {
        check_fails(smp_job_resolve(&b.job, b.errors), SMP_INPUT, b.errors, text_or_null);
    }
    bench_close(&b);
}

static void test_rules(void **state)
{
    (void)state;
    check_rule(MIXTRAL(2, 8, 2), 8, "expert_parallel_degree=8", NULL);
    check_rule(LLAMA(2, 4), 8, "expert_parallel_degree=2",
               "expert_parallel_degree 2: model tiny has no experts; legal here: 1");
    check_rule(MIXTRAL(2, 60, 4), 32, "expert_parallel_degree=8",
               "expert_parallel_degree 8: must divide the 60 experts of a layer; "
               "legal here: 1, 2, 4");
    check_rule(MIXTRAL(2, 8, 2), 8, "expert_parallel_degree=4 hybrid_shard_degree=4",
               "hybrid_shard_degree 4: must divide 8 GPUs / (tensor_parallel_degree 1 x "
               "expert_parallel_degree 4) = 2");
    check_rule(MIXTRAL(2, 8, 2), 8,
               "expert_parallel_degree=4 hybrid_shard_degree=4 expert_layout=nested", NULL);
    check_rule(MIXTRAL(2, 8, 2), 8,
               "expert_parallel_degree=8 hybrid_shard_degree=4 expert_layout=nested",
               "expert_layout nested: must divide hybrid_shard_degree 4; legal here: 1, 2, 4");
    check_rule(MIXTRAL(2, 8, 2), 8, "expert_parallel_degree=2 smp_moe=false",
               "smp_moe false has no expert parallelism; legal here: 1");
    check_rule(MIXTRAL(2, 8, 2), 8, "expert_parallel_degree=2 imbalance=3",
               "imbalance 3: more rows than moe_rows_factor 2 has room for");
    check_rule(MIXTRAL(2, 8, 2), 8, "expert_parallel_degree=2 imbalance=4 capacity_factor=1",
               NULL);
    check_rule(MIXTRAL(2, 8, 2), 8, "capacity_pad=true",
               "capacity_pad true: fills experts up to their capacity");
    check_rule(MIXTRAL(2, 8, 2), 8,
               "expert_parallel_degree=2 moe_load_balancing=balanced imbalance=1.5",
               "imbalance 1.5: moe_load_balancing balanced sends each expert the same");
    check_rule(MIXTRAL(2, 8, 2), 8, "moe_statistics=data",
               "moe_statistics data: only the balancing loss is counted over data ranks");
}

/* world = tensor x expert x shard x replicas; nested: tensor x shard x replicas. */
static void check_groups(const char *settings, uint32_t shard, uint32_t expert_shard,
                         uint32_t replica, uint32_t dense_replica)
{
    bench b;
    smp_mesh *mesh;

    bench_open(&b, MIXTRAL(2, 8, 2), 16, 256, 16, settings);
    check_ok(smp_job_resolve(&b.job, b.errors), b.errors);
    check_ok(smp_mesh_create(&b.job, b.errors, &mesh), b.errors);
    check_u64(smp_mesh_world(mesh), 16);
    check_u64(smp_mesh_group_size(mesh, SMP_GROUP_EXPERT),
              b.job.settings.expert_parallel_degree);
    check_u64(smp_mesh_group_size(mesh, SMP_GROUP_SHARD), shard);
    check_u64(smp_mesh_group_size(mesh, SMP_GROUP_EXPERT_SHARD), expert_shard);
    check_u64(smp_mesh_group_size(mesh, SMP_GROUP_REPLICA), replica);
    check_u64(smp_mesh_group_size(mesh, SMP_GROUP_DENSE_REPLICA), dense_replica);
    smp_mesh_destroy(mesh);
    bench_close(&b);
}

static void test_groups(void **state)
{
    (void)state;
    check_groups("expert_parallel_degree=4 hybrid_shard_degree=2", 2, 2, 2, 8);
    check_groups("expert_parallel_degree=4", 4, 4, 1, 4);
    check_groups("expert_parallel_degree=4 expert_layout=nested", 16, 4, 1, 1);
    check_groups("expert_parallel_degree=4 hybrid_shard_degree=8 expert_layout=nested", 8, 2,
                 2, 2);
    check_groups("expert_parallel_degree=2 tensor_parallel_degree=2 hybrid_shard_degree=4 "
                 "expert_layout=nested", 4, 2, 2, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_groups),
    };

    return cmocka_run_group_tests_name("experts", tests, NULL, NULL);
}
