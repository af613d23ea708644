/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixture of experts: rules of its settings, groups of both layouts, and what the lowering
 * makes, against closed forms: state, exchanges, floating point work, rows.
 */
#include "config.h"

#include "tests/step/step_jobs.h"

enum { KV = 4 };

/* The job resolves, or fails with a message that holds the text. */
static void check_rule(const char *config, uint32_t gpus, const char *settings,
                       const char *text_or_null)
{
    bench b;

    bench_open(&b, config, gpus, S, gpus, settings);
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

    bench_open(&b, MIXTRAL(2, 8, 2), 16, S, 16, settings);
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

/* Eight expert ranks on nodes of eight GPUs: the default order of the nested layout has them on
 * one node; a rank_order that is set holds; the orthogonal layout keeps the order of the table,
 * shards first. */
static void check_expert_nodes(const char *settings, uint32_t nodes)
{
    bench b;
    smp_mesh *mesh;
    smp_placement placement;

    bench_open(&b, MIXTRAL(2, 8, 2), 32, S, 32, settings);
    check_ok(smp_job_resolve(&b.job, b.errors), b.errors);
    check_ok(smp_mesh_create(&b.job, b.errors, &mesh), b.errors);
    smp_mesh_placement(mesh, SMP_GROUP_EXPERT, 0, &placement);
    check_u64(placement.ranks, 8);
    check_u64(placement.nodes, nodes);
    smp_mesh_destroy(mesh);
    bench_close(&b);
}

static void test_expert_nodes(void **state)
{
    (void)state;
    check_expert_nodes("expert_parallel_degree=8 expert_layout=nested", 1);
    check_expert_nodes("expert_parallel_degree=8 hybrid_shard_degree=4", 4);
    check_expert_nodes("expert_parallel_degree=8 expert_layout=nested "
                       "rank_order=tensor,context,shard,expert,replica", 4);
    check_expert_nodes("expert_parallel_degree=8 hybrid_shard_degree=4 "
                       "rank_order=tensor,context,expert,shard,replica", 1);
}

/* ---- state ---- */

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

/* Of `layers` layers with E experts: attention 2 h a d + 2 h kv d, two norms, router h E;
 * experts 3 h f each; embedding, head, last norm.  In fp32: 4 bytes each, m and v 8. */
static void check_state(uint32_t gpus, const char *settings, uint64_t tensor, uint64_t dense,
                        uint64_t experts)
{
    const uint64_t layers = 2, e = 8;
    const uint64_t split = 2 * H * A * D + 2 * H * KV * D, whole = 2 * H + H * e;
    const uint64_t per_rank = (layers * (split / tensor + whole) + 2 * V * H / tensor + H)
                              / dense + layers * e * 3 * H * F / tensor / experts;
    bench b;

    bench_open(&b, MIXTRAL(2, 8, 2), gpus, S, 2 * gpus, settings);
    bench_lower(&b);
    check_ok(smp_step_verify(b.step, b.errors), b.errors);
    check_u64(kind_bytes(b.step->programs[0], SMP_KIND_PARAMETER), 4 * per_rank);
    check_u64(kind_bytes(b.step->programs[0], SMP_KIND_GRADIENT), 4 * per_rank);
    check_u64(kind_bytes(b.step->programs[0], SMP_KIND_OPTIMIZER), 8 * per_rank);
    bench_close(&b);
}

/* Orthogonal: all sharded over hybrid_shard, experts also split over the expert ranks.
 * Nested: all else over hybrid_shard, experts over expert x (hybrid_shard / expert). */
static void test_state(void **state)
{
    (void)state;
    check_state(16, "hybrid_shard_degree=4", 1, 4, 4);
    check_state(16, "hybrid_shard_degree=4 expert_parallel_degree=4", 1, 4, 16);
    check_state(16, "hybrid_shard_degree=2 expert_parallel_degree=4", 1, 2, 8);
    check_state(16, "hybrid_shard_degree=8 expert_parallel_degree=2 expert_layout=nested", 1,
                8, 8);
    check_state(16, "hybrid_shard_degree=8 expert_parallel_degree=8 expert_layout=nested", 1,
                8, 8);
    check_state(16, "hybrid_shard_degree=4 expert_parallel_degree=2 tensor_parallel_degree=2",
                2, 4, 8);
}

#define LLAMA4                                                                              \
    "{\"model_type\": \"llama4_text\", \"num_hidden_layers\": 8, \"hidden_size\": 512, "    \
    "\"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"head_dim\": 64, "            \
    "\"intermediate_size\": 1024, \"intermediate_size_mlp\": 2048, \"vocab_size\": 1024, "  \
    "\"num_local_experts\": 8, \"num_experts_per_tok\": 1, "                              \
    "\"interleave_moe_layer_step\": 2, \"attention_chunk_size\": 4096, "                  \
    "\"max_position_embeddings\": 4096, \"tie_word_embeddings\": false}"

/* Every second layer has experts: 4 of 8.  Each: attention and norms; 4 dense ones an MLP of
 * 2048; 4 with experts a router, a shared expert of 1024, and 8 experts of 1024.  Nothing of a
 * kind of layer takes memory in layers of the other. */
static void check_alternating(const char *settings, uint64_t dense, uint64_t experts,
                              bool apart)
{
    const uint64_t attention = 2 * H * A * D + 2 * H * KV * D + 2 * H, e = 8;
    const uint64_t per_rank =
        (8 * attention + 4 * 3 * H * 2048 + 4 * (H * e + 3 * H * F) + 2 * V * H + H) / dense
        + 4 * e * 3 * H * F / experts;
    bench b;
    const smp_program *p;

    bench_open(&b, LLAMA4, 16, S, 32, settings);
    bench_lower(&b);
    check_ok(smp_step_verify(b.step, b.errors), b.errors);
    p = b.step->programs[0];
    check_u64(kind_bytes(p, SMP_KIND_PARAMETER), 4 * per_rank);
    check_u64(kind_bytes(p, SMP_KIND_OPTIMIZER), 8 * per_rank);
    check_u64(find_buffer(p, "experts.up")->entries, 4);
    check_u64(find_buffer(p, "experts.up")->first, 1);
    check_u64(find_buffer(p, "mlp.up")->entries, 4);
    check_u64(find_buffer(p, "mlp.up")->first, 0);
    check_u64(find_buffer(p, "attention.qkv")->entries, 8);
    if (apart) {
        check_u64(find_buffer(p, "blocks.experts.parameters")->entries, 4);
    }
    bench_close(&b);
}

static void test_alternating(void **state)
{
    (void)state;
    check_alternating("hybrid_shard_degree=4", 4, 4, false);
    check_alternating("hybrid_shard_degree=2 expert_parallel_degree=4", 2, 8, true);
    check_alternating("hybrid_shard_degree=8 expert_parallel_degree=8 expert_layout=nested", 8,
                      8, true);
}

/* Gradients are reduced over data ranks: all else over shard and all other replicas; experts
 * over shard and replicas without the expert ranks, whose share is in their own divisor. */
static void check_reduction(const char *settings, uint32_t dense, uint32_t experts)
{
    bench b;
    const smp_program *p;
    uint32_t product[2] = { 1, 1 }, divisor;

    bench_open(&b, MIXTRAL(2, 8, 2), 16, S, 16, settings);
    bench_lower(&b);
    p = b.step->programs[0];
    divisor = (uint32_t)find_task(p, "backward", "experts.up.dw")->dims[5];
    /* Segments come unit by unit: block, experts, root. */
    for (uint32_t s = 0, unit = 0; s < p->n_segment && unit < 2; s++) {
        if (strcmp(p->segments[s].name, "reduce") != 0) {
            continue;
        }
        for (uint32_t t = 0; t < p->segments[s].n_task; t++) {
            const smp_task *task = &p->tasks[p->segments[s].task0 + t];

            product[unit] *= task->comm == SMP_NO_COMM ? 1 : p->comms[task->comm].ranks;
        }
        unit++;
    }
    check_u64(product[0], dense);
    check_u64(product[1], experts);
    check_u64(product[1] * divisor, b.job.data_ranks);
    bench_close(&b);
}

static void test_reduction(void **state)
{
    (void)state;
    check_reduction("hybrid_shard_degree=2 expert_parallel_degree=4", 16, 4);
    check_reduction("hybrid_shard_degree=4 expert_parallel_degree=4", 16, 4);
    check_reduction("hybrid_shard_degree=8 expert_parallel_degree=4 expert_layout=nested", 16,
                    4);
    check_reduction("hybrid_shard_degree=8 expert_parallel_degree=8 expert_layout=nested", 16,
                    2);
}

/* ---- exchanges ---- */

/* Bytes that a task's collective moves, as nccl-tests counts them. */
static uint64_t message(const smp_program *p, const char *segment, const char *name)
{
    const smp_task *task = find_task(p, segment, name);

    assert_non_null(task);
    return smp_task_bytes(task);
}

/* k T h 2 bytes each way, forward and backward (spec 6.6), of which (n - 1)/n leave the rank;
 * the all-gather moves n T h 2 each way whatever k. */
static void test_exchanges(void **state)
{
    static const char *const names[4][2] = { { "forward", "moe.dispatch" },
                                             { "forward", "moe.return" },
                                             { "backward", "moe.dispatch.dx" },
                                             { "backward", "moe.return.dx" } };
    static const char *const configs[2] = { MIXTRAL(2, 8, 2), MIXTRAL(2, 8, 4) };
    const uint64_t tokens = 2 * S, ranks = 4;
    bench b;

    (void)state;
    for (uint64_t i = 0; i < 2; i++) {
        uint64_t k = i == 0 ? 2 : 4;

        bench_open(&b, configs[i], 8, S, 16, "expert_parallel_degree=4 micro_batch=2");
        bench_lower(&b);
        for (int n = 0; n < 4; n++) {
            check_u64(message(b.step->programs[0], names[n][0], names[n][1]),
                      k * tokens * H * 2);
        }
        assert_null(find_task(b.step->programs[0], "forward", "moe.shuffle"));
        bench_close(&b);
        bench_open(&b, configs[i], 8, S, 16, "expert_parallel_degree=4 micro_batch=2 "
                   "moe_all_to_all_dispatcher=false");
        bench_lower(&b);
        check_u64(message(b.step->programs[0], "forward", "moe.tokens"),
                  ranks * tokens * H * 2);
        check_u64(message(b.step->programs[0], "forward", "moe.return"),
                  ranks * tokens * H * 2);
        check_u64(message(b.step->programs[0], "backward", "moe.tokens.dx"),
                  ranks * tokens * H * 2);
        assert_null(find_task(b.step->programs[0], "forward", "moe.dispatch"));
        bench_close(&b);
    }
}

/* Full checkpointing exchanges rows again; the last exchange is not needed for it, but
 * weights of the sum are. */
static void test_recompute(void **state)
{
    bench b;

    (void)state;
    bench_open(&b, MIXTRAL(2, 8, 2), 8, S, 8,
               "expert_parallel_degree=4 checkpointing=full global_token_shuffle=true");
    bench_lower(&b);
    assert_non_null(find_task(b.step->programs[0], "backward", "moe.dispatch.again"));
    assert_non_null(find_task(b.step->programs[0], "backward", "moe.return.again"));
    assert_non_null(find_task(b.step->programs[0], "forward", "moe.shuffle"));
    assert_non_null(find_task(b.step->programs[0], "backward", "moe.unshuffle.dx"));
    assert_null(find_task(b.step->programs[0], "backward", "moe.unshuffle.again"));
    assert_null(find_task(b.step->programs[0], "backward", "moe.combine.again"));
    bench_close(&b);
    bench_open(&b, MIXTRAL(2, 8, 2), 8, S, 8,
               "expert_parallel_degree=4 checkpointing=selective:op");
    bench_lower(&b);
    assert_null(find_task(b.step->programs[0], "backward", "moe.dispatch.again"));
    assert_null(find_task(b.step->programs[0], "backward", "moe.route.again"));
    assert_non_null(find_task(b.step->programs[0], "backward", "experts.up.again"));
    bench_close(&b);
}

/* ---- work ---- */

/* Per token and layer: attention as ever, router 2 h E, k experts of 6 h f.  Backward twice
 * the products, attention 2.5 times.  The same on each layout. */
static void test_flops(void **state)
{
    static const char *const settings[] = {
        "", "expert_parallel_degree=4", "expert_parallel_degree=4 expert_layout=nested",
        "expert_parallel_degree=2 tensor_parallel_degree=2",
        "expert_parallel_degree=2 tensor_parallel_degree=2 moe_all_to_all_dispatcher=false",
        "expert_parallel_degree=4 moe_all_to_all_dispatcher=false"
    };
    const double linear = 4.0 * H * A * D + 4.0 * H * KV * D + 2 * 6.0 * H * F;
    const double router = 2.0 * H * 8, core = 2.0 * S * A * D, logits = 2.0 * H * V;
    const double tokens = 8.0 * S;

    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        bench b;

        bench_open(&b, MIXTRAL(2, 8, 2), 8, S, 8, settings[i]);
        bench_lower(&b);
        check_rel(b.step->model_flops,
                  3 * tokens * (2 * (linear + router + core) + logits), 1e-12);
        check_rel(b.step->hardware_flops,
                  tokens * (2 * (3 * (linear + router) + 3.5 * core) + 3 * logits), 1e-12);
        bench_close(&b);
    }
}

/* ---- rows ---- */

/* Rows of the experts' first product: the bound and those expected. */
static void check_rows(const char *config, uint32_t gpus, const char *settings, uint64_t bound,
                       uint64_t expected)
{
    bench b;
    const smp_task *task;

    bench_open(&b, config, gpus, S, gpus, settings);
    bench_lower(&b);
    check_ok(smp_step_verify(b.step, b.errors), b.errors);
    task = find_task(b.step->programs[0], "forward", "experts.up");
    check_u64(task->dims[0], bound);
    check_u64(task->dims[1], expected);
    /* one expert a rank: its rows need no sorting */
    assert_true((task->dims[4] == 1)
                == (find_task(b.step->programs[0], "forward", "moe.sort") == NULL)
                || b.job.settings.expert_parallel_degree == 1);
    bench_close(&b);
}

static void test_rows(void **state)
{
    (void)state;
    /* One rank has all rows, whatever their balance. */
    check_rows(MIXTRAL(2, 8, 2), 8, "imbalance=1.5", 2 * S, 2 * S);
    check_rows(MIXTRAL(2, 8, 2), 8, "expert_parallel_degree=4", 4 * S, 2 * S);
    check_rows(MIXTRAL(2, 8, 2), 8, "expert_parallel_degree=4 imbalance=1.5", 4 * S, 3 * S);
    check_rows(MIXTRAL(2, 8, 2), 8, "expert_parallel_degree=4 moe_rows_factor=1", 2 * S, 2 * S);
    /* The worst case is exact: all tokens of 4 ranks go to both experts of one. */
    check_rows(MIXTRAL(2, 8, 2), 8, "expert_parallel_degree=4 moe_rows_factor=100", 8 * S,
               2 * S);
    check_rows(MIXTRAL(2, 8, 2), 8,
               "expert_parallel_degree=4 moe_rows_factor=100 imbalance=100", 8 * S, 8 * S);
    /* One expert a rank: a token goes there once. */
    check_rows(MIXTRAL(2, 8, 2), 8, "expert_parallel_degree=8 moe_rows_factor=100", 8 * S,
               2 * S);
    /* Every token goes to every expert: nothing can be unbalanced. */
    check_rows(MIXTRAL(2, 8, 8), 8, "expert_parallel_degree=4 imbalance=2", 8 * S, 8 * S);
    check_rows(MIXTRAL(2, 8, 2), 8, "expert_parallel_degree=4 moe_load_balancing=balanced",
               2 * S, 2 * S);
    /* Capacity 1 under imbalance 4: the busiest rank has its mean, the rest is dropped. */
    check_rows(MIXTRAL(2, 8, 2), 8, "expert_parallel_degree=4 capacity_factor=1 imbalance=4",
               2 * S, 2 * S);
    check_rows(MIXTRAL(2, 8, 2), 8, "expert_parallel_degree=4 capacity_factor=1.25 imbalance=4",
               5 * S / 2, 5 * S / 2);
    check_rows(MIXTRAL(2, 8, 2), 8, "expert_parallel_degree=4 capacity_factor=1.5 "
               "capacity_pad=true", 3 * S, 3 * S);
    /* Each tensor rank routes its half of the tokens; the experts have all of both. */
    check_rows(MIXTRAL(2, 8, 2), 8, "expert_parallel_degree=4 tensor_parallel_degree=2", 4 * S,
               2 * S);
    /* 256 experts on 64 ranks of 8 nodes. */
    check_rows(MIXTRAL(2, 256, 8), 64, "expert_parallel_degree=64 hybrid_shard_degree=1",
               16 * S, 8 * S);
}

/* Ranks of an expert group that stand on other nodes are reached through the network. */
static void test_links(void **state)
{
    double seconds[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        bench b;
        smp_cost cost;
        const smp_program *p;

        bench_open(&b, MIXTRAL(2, 256, 8), 64, S, 64,
                   i == 0 ? "expert_parallel_degree=8 rank_order=tensor,context,expert,shard,"
                            "replica" : "expert_parallel_degree=8");
        bench_lower(&b);
        p = b.step->programs[0];
        smp_cost_task(b.cluster, b.profile, p, find_task(p, "forward", "moe.dispatch"), &cost);
        seconds[i] = cost.transfer_s;
        bench_close(&b);
    }
    /* NVLink: 450 GB/s, of which messages of this size reach about a half as measured; 8 ports
     * of 50 GB/s for 8 ranks, of which 7/8 leave. */
    assert_true(seconds[1] > 3 * seconds[0]);
    assert_true(seconds[0] >= 8.0 * S * H * 2 * 7 / 8 / 450e9);
    assert_true(seconds[1] >= 8.0 * S * H * 2 * 7 / 8 / 50e9);
    assert_true(seconds[1] <= 8.0 * S * H * 2 * 7 / 8 / 40e9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_expert_nodes),
        cmocka_unit_test(test_state),
        cmocka_unit_test(test_alternating),
        cmocka_unit_test(test_reduction),
        cmocka_unit_test(test_exchanges),
        cmocka_unit_test(test_recompute),
        cmocka_unit_test(test_flops),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_links),
    };

    return cmocka_run_group_tests_name("experts", tests, NULL, NULL);
}
