/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the executor allocates is what the simulation says, to the byte: the largest device
 * arena of a job's ranks, and the largest host arena, for random legal jobs.  With exactly so
 * much device memory a rank is made, with a byte less it is refused.
 */
#include "config.h"

#include "tests/exec/tiny.h"

#include "base/numeric.h"
#include "mesh/mesh.h"

enum { JOBS = 200 };

static const char *const models[] = {
    TINY_LLAMA, TINY_GPT2,
    TINY_OF("mixtral", ", \"num_key_value_heads\": 4, \"num_local_experts\": 4, "
            "\"num_experts_per_tok\": 2"),
    TINY_OF("deepseek_v3", ", \"num_key_value_heads\": 8, \"q_lora_rank\": 12, "
            "\"kv_lora_rank\": 10, \"qk_nope_head_dim\": 4, \"qk_rope_head_dim\": 2, "
            "\"v_head_dim\": 4, \"n_routed_experts\": 8, \"num_experts_per_tok\": 3, "
            "\"moe_intermediate_size\": 24, \"n_shared_experts\": 1, \"n_group\": 1, "
            "\"topk_group\": 1, \"first_k_dense_replace\": 1"),
    TINY_OF("gemma2", ", \"head_dim\": 4, \"num_key_value_heads\": 4, \"sliding_window\": 8"),
    TINY_OF("olmo2", ", \"num_key_value_heads\": 2"),
};

/* One word of each line is drawn; "" is the default. */
static const char *const choices[][6] = {
    { "", "precision=bf16", "precision=fp32", "precision=fp16" },
    { "", "tensor_parallel_degree=2", "tensor_parallel_degree=4" },
    { "", "sequence_parallel=false" },
    { "", "expert_parallel_degree=2", "expert_parallel_degree=4" },
    { "", "expert_layout=nested" },
    { "", "moe_all_to_all_dispatcher=false" },
    { "", "moe_load_balancing=aux_loss", "moe_load_balancing=none", "capacity_factor=1.2" },
    { "", "hybrid_shard_degree=1", "hybrid_shard_degree=2" },
    { "", "sharding=optimizer", "sharding=none" },
    { "micro_batch=1", "micro_batch=2", "micro_batch=4" },
    { "", "accumulation=last" },
    { "", "checkpointing=full", "checkpointing=selective", "checkpointing=selective:op",
      "checkpointing=first:2" },
    { "", "offload=true activation_loading_horizon=1",
      "offload=true activation_loading_horizon=2" },
    { "", "offload_layers=2" },
    { "", "loss_chunks=4" },
    { "", "attention=naive", "attention=naive attention_in_fp32=true",
      "fp32_residual=true" },
    { "", "distribute_embedding=off" },
    { "", "reshard_after_forward=false", "prefetch=none forward_prefetch=false" },
    { "", "optimizer=sgd", "optimizer=adam" },
};

static uint32_t draw(uint64_t job, uint64_t what, uint32_t n)
{
    uint32_t u[4];

    smp_random4(29, job, what, u);
    return u[0] % n;
}

/* False: what was drawn is not legal. */
static bool draw_job(tiny *t, uint64_t number)
{
    static const uint64_t lengths[] = { 16, 32, 64 };
    const char *model = models[draw(number, 0, sizeof models / sizeof models[0])];
    size_t n_line = sizeof choices / sizeof choices[0];

    tiny_open(t, model, 1u << draw(number, 1, 4), lengths[draw(number, 2, 3)],
              UINT64_C(8) << draw(number, 3, 3));
    for (size_t i = 0; i < n_line; i++) {
        uint32_t n = 0;

        while (n < 6 && choices[i][n]) {
            n++;
        }
        tiny_set(t, choices[i][draw(number, 4 + i, n)]);
    }
    if (!smp_job_try(&t->job)) {
        tiny_close(t);
        return false;
    }
    return true;
}

/* The largest arenas so far; a device that counts what is asked of it. */
static uint64_t allocated[SMP_SPACES];

static smp_status counting_alloc(smp_device *device, smp_space space, uint64_t bytes,
                                 smp_errors *errors, void **address_p)
{
    allocated[space] = bytes > allocated[space] ? bytes : allocated[space];
    return smp_device_cpu.alloc(device, space, bytes, errors, address_p);
}

static smp_status make_rank(const tiny *t, const smp_mesh *mesh, smp_world *world,
                            uint32_t rank, uint64_t limit, smp_errors *errors)
{
    smp_device_ops counting = smp_device_cpu;
    smp_runner_options options = { .device = &counting, .device_options = { .threads = 1 },
                                   .comm = &smp_comm_threads, .world = world,
                                   .device_memory_bytes = limit };
    smp_runner *runner = NULL;
    smp_status status;

    counting.alloc = counting_alloc;
    status = smp_runner_create(&t->job, mesh, rank, &options, errors, &runner);
    if (status == SMP_OK) {
        smp_runner_destroy(runner);
    }
    return status;
}

static void check_limits(const tiny *t, const smp_mesh *mesh, smp_world *world, uint64_t rank,
                         uint64_t need)
{
    smp_errors *errors = smp_errors_create();

    check_ok(make_rank(t, mesh, world, (uint32_t)rank, need, errors), errors);
    assert_int_equal(make_rank(t, mesh, world, (uint32_t)rank, need - 1, errors),
                     SMP_INFEASIBLE);
    smp_errors_destroy(errors);
}

static void check_job(tiny *t)
{
    smp_step *step = NULL;
    smp_simulation *simulation = NULL;
    const smp_report *report;
    smp_mesh *mesh = NULL;
    smp_world *world = NULL;
    uint64_t largest = 0;

    check_ok(smp_step_lower(&t->job, t->errors, &step), t->errors);
    check_ok(smp_simulate(&t->job, step, t->errors, &simulation), t->errors);
    check_ok(smp_mesh_create(&t->job, t->errors, &mesh), t->errors);
    check_ok(smp_threads_create(t->job.world, 10, t->errors, &world), t->errors);
    report = smp_simulation_report(simulation);
    memset(allocated, 0, sizeof allocated);
    for (uint32_t rank = 0; rank < t->job.world; rank++) {
        uint64_t before = allocated[SMP_SPACE_DEVICE];

        check_ok(make_rank(t, mesh, world, rank, 0, t->errors), t->errors);
        largest = allocated[SMP_SPACE_DEVICE] > before ? rank : largest;
    }
    assert_int_equal(allocated[SMP_SPACE_DEVICE], report->memory.arena_bytes);
    assert_int_equal(allocated[SMP_SPACE_HOST], report->memory.host_bytes);
    check_limits(t, mesh, world, largest, report->memory.arena_bytes);
    smp_comm_threads.destroy(world);
    smp_mesh_destroy(mesh);
    smp_simulation_destroy(simulation);
    smp_step_destroy(step);
}

static void arenas_are_as_predicted(void **state)
{
    int done = 0;

    (void)state;
    for (uint64_t number = 0; done < JOBS; number++) {
        tiny t;

        assert_true(number < 100000);
        if (draw_job(&t, number)) {
            check_job(&t);
            tiny_close(&t);
            done++;
        }
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(arenas_are_as_predicted),
};

CHECK_MAIN(tests)
