/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Experts at their edges, from the settings to the simulated step: numbers that do not divide,
 * groups over nodes, one expert a rank, all experts for a token, capacity under imbalance, tied
 * embeddings.  Models as published, where the shared data is; else small ones.
 */
#include "config.h"

#include "tests/step/step_jobs.h"

#include "sim/peaks.h"
#include "sim/sim.h"

#define MOE(experts, k, tied)                                                                 \
    "{\"model_type\": \"mixtral\", \"num_hidden_layers\": 3, \"hidden_size\": 512, "          \
    "\"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"intermediate_size\": 1024, "   \
    "\"vocab_size\": 1024, \"num_local_experts\": " #experts ", "                             \
    "\"num_experts_per_tok\": " #k ", \"max_position_embeddings\": 4096, "                    \
    "\"tie_word_embeddings\": " tied "}"

typedef struct whole {
    bench b;
    smp_simulation *simulation;
} whole;

static const smp_report *run(whole *w)
{
    check_ok(smp_job_resolve(&w->b.job, w->b.errors), w->b.errors);
    check_ok(smp_step_lower(&w->b.job, w->b.errors, &w->b.step), w->b.errors);
    check_ok(smp_step_verify(w->b.step, w->b.errors), w->b.errors);
    check_ok(smp_simulate(&w->b.job, w->b.step, w->b.errors, &w->simulation), w->b.errors);
    return smp_simulation_report(w->simulation);
}

static void close_whole(whole *w)
{
    smp_simulation_destroy(w->simulation);
    bench_close(&w->b);
}

/* A published model in place of the tiny one; the test is skipped where it is not. */
static void open_published(whole *w, const char *name, uint32_t gpus, uint64_t seq,
                           uint64_t batch, const char *settings)
{
    char file[256];

    (void)snprintf(file, sizeof file, "models/%s.json", name);
    const char *path = check_shared(file);
    *w = (whole){0};
    bench_open(&w->b, MOE(8, 2, "false"), gpus, seq, batch, settings);
    smp_model_destroy(w->b.model);
    check_ok(smp_model_read(path, w->b.errors, &w->b.model), w->b.errors);
    w->b.job.model = w->b.model;
}

static void sixty_experts_over_eight_are_refused(void **state)
{
    whole w;

    (void)state;
    open_published(&w, "Qwen--Qwen1.5-MoE-A2.7B", 32, 2048, 32, "expert_parallel_degree=8");
    check_fails(smp_job_resolve(&w.b.job, w.b.errors), SMP_INPUT, w.b.errors,
                "expert_parallel_degree 8: must divide the 60 experts of a layer; "
                "legal here: 1, 2, 4");
    bench_close(&w.b);
}

/* DeepSeek-V3 on 64 GPUs: four experts a rank, rows over eight nodes.  All-to-all: tokens x 8 x
 * 7168 x 2 bytes each way [spec 6.6], of which 7/8 go by ports of 50 GB/s, one a rank. */
static void experts_of_a_group_over_eight_nodes(void **state)
{
    const uint64_t tokens = 4096, bytes = tokens * 8 * 7168 * 2;
    whole w;
    smp_cost cost;

    (void)state;
    open_published(&w, "deepseek-ai--DeepSeek-V3", 64, tokens, 64,
                   "expert_parallel_degree=64 checkpointing=full "
                   "moe_load_balancing=aux_loss");
    const smp_report *report = run(&w);
    const smp_program *p = w.b.step->programs[0];
    const smp_task *task = find_task(p, "forward", "moe.dispatch");

    assert_non_null(task);
    check_u64(p->comms[task->comm].placement.nodes, 8);
    check_u64(find_task(p, "forward", "experts.up")->dims[4], 4);
    check_u64(smp_task_bytes(task), bytes);
    smp_cost_task(w.b.cluster, w.b.profile, p, task, &cost);
    assert_true(cost.transfer_s >= (double)bytes * 7 / 8 / 50e9);
    assert_true(cost.transfer_s <= (double)bytes * 7 / 8 / 40e9);
    assert_true(report->time.expert_ps > 0);
    close_whole(&w);
}

/* Nothing to sort, and a rank's experts are 1/8 of all: 3 h f each. */
static void one_expert_a_rank(void **state)
{
    whole w;

    (void)state;
    open_published(&w, "mistralai--Mixtral-8x7B-v0.1", 64, 4096, 64,
                   "expert_parallel_degree=8 hybrid_shard_degree=8 checkpointing=full");
    const smp_report *report = run(&w);
    const smp_program *p = w.b.step->programs[0];

    assert_null(find_task(p, "forward", "moe.sort"));
    check_u64(find_task(p, "forward", "experts.up")->dims[4], 1);
    check_u64(find_buffer(p, "blocks.experts.parameters")->bytes,
              UINT64_C(4) * 3 * 4096 * 14336 / 8);
    check_u64(find_buffer(p, "blocks.experts.parameters")->entries, 32);
    assert_true(report->step_ps > 0);
    close_whole(&w);
}

static smp_report report_of(const char *config, const char *settings)
{
    whole w = {0};

    bench_open(&w.b, config, 8, S, 16, settings);
    const smp_report report = *run(&w);
    close_whole(&w);
    return report;
}

/* Every rank has all rows of its experts: no imbalance can add any. */
static void all_experts_for_every_token(void **state)
{
    (void)state;
    const smp_report even = report_of(MOE(8, 8, "false"), "expert_parallel_degree=4");
    const smp_report skew =
        report_of(MOE(8, 8, "false"), "expert_parallel_degree=4 imbalance=2");

    check_i64(even.step_ps, skew.step_ps);
    check_u64(even.memory.arena_bytes, skew.memory.arena_bytes);
}

/* A capacity of 1.0 drops what is beyond the mean: however uneven the router, the busiest rank
 * has its mean. */
static void capacity_holds_under_imbalance(void **state)
{
    (void)state;
    const smp_report even =
        report_of(MOE(8, 2, "false"), "expert_parallel_degree=4 capacity_factor=1");
    const smp_report skew = report_of(MOE(8, 2, "false"), "expert_parallel_degree=4 "
                                      "capacity_factor=1 imbalance=4");
    const smp_report free_rows = report_of(MOE(8, 2, "false"), "expert_parallel_degree=4 "
                                           "imbalance=4 moe_rows_factor=4");

    check_i64(even.step_ps, skew.step_ps);
    check_u64(even.memory.arena_bytes, skew.memory.arena_bytes);
    assert_true(free_rows.memory.arena_bytes > even.memory.arena_bytes);
}

/* The table that embedding and head share is made once, by delayed initialization in shards and
 * without it on every rank's host: V h fp32 elements fewer each. */
static void tied_embeddings_with_experts(void **state)
{
    static const char *const configs[2] = {MOE(8, 2, "false"), MOE(8, 2, "true")};
    uint64_t shard[2], host[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        whole w = {0};

        bench_open(&w.b, configs[i], 8, S, 16,
                   "expert_parallel_degree=4 hybrid_shard_degree=2 delayed_init=true");
        const smp_report *report = run(&w);
        shard[i] = find_buffer(w.b.step->programs[0], "root.parameters")->bytes;
        host[i] = report->memory.peaks[SMP_MOMENT_INIT_EVERY_RANK].host_bytes_per_node;
        assert_true(report->memory.peaks[SMP_MOMENT_INIT_DELAYED].counts);
        assert_false(report->memory.peaks[SMP_MOMENT_INIT_EVERY_RANK].counts);
        close_whole(&w);
    }
    check_u64(shard[0] - shard[1], UINT64_C(4) * V * H / 2);
    check_u64(host[0] - host[1], UINT64_C(8) * 4 * V * H);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(sixty_experts_over_eight_are_refused),
    cmocka_unit_test(experts_of_a_group_over_eight_nodes),
    cmocka_unit_test(one_expert_a_rank),
    cmocka_unit_test(all_experts_for_every_token),
    cmocka_unit_test(capacity_holds_under_imbalance),
    cmocka_unit_test(tied_embeddings_with_experts),
};
CHECK_MAIN(tests)
