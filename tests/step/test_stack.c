/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stacks change: defaults and rules of settings, communicators and their order, bytes of
 * state and of the loss, what selective checkpointing keeps, and costs.
 */
#include "config.h"

#include "step_jobs.h"

#include "cost/stack.h"
#include "mesh/runtime.h"

#include <math.h>

static void check_setting(bench *b, const char *key, const char *want)
{
    char value[64];

    assert_true(smp_settings_get(&b->job.settings, key, value, sizeof value));
    assert_string_equal(value, want);
}

static void resolve(bench *b, const char *settings, uint64_t batch)
{
    bench_open(b, LLAMA(4, 4), 4, 512, batch, settings);
    check_ok(smp_job_resolve(&b->job, b->errors), b->errors);
}

static void defaults(void **state)
{
    bench b;

    (void)state;
    resolve(&b, "stack=native", 4);
    check_setting(&b, "reduce_dtype", "fp32");
    check_setting(&b, "efficiency", "1");
    check_setting(&b, "loss_kernel", "fused");
    bench_close(&b);
    resolve(&b, "stack=fsdp1", 4);
    check_setting(&b, "reduce_dtype", "bf16");
    check_setting(&b, "loss_kernel", "eager");
    bench_close(&b);
    resolve(&b, "stack=fsdp1 reduce_dtype=fp32 compile=true efficiency=0.5", 4);
    check_setting(&b, "reduce_dtype", "fp32");
    check_setting(&b, "loss_kernel", "compiled");
    check_setting(&b, "efficiency", "0.5");
    bench_close(&b);
    resolve(&b, "stack=megatron compile=true", 16);
    check_setting(&b, "sharding", "optimizer");
    check_setting(&b, "accumulation", "last");
    check_setting(&b, "compile", "false");
    bench_close(&b);
    resolve(&b, "stack=megatron sharding=full", 16);
    check_setting(&b, "sharding", "full");
    check_setting(&b, "accumulation", "every");
    bench_close(&b);
}

static void refuse(const char *settings, const char *want)
{
    bench b;

    bench_open(&b, LLAMA(4, 4), 4, 512, 16, settings);
    check_fails(smp_job_resolve(&b.job, b.errors), SMP_INPUT, b.errors, want);
    bench_close(&b);
}

static void rules(void **state)
{
    (void)state;
    refuse("stack=megatron accumulation=every", "reduces whole gradients once a step; legal "
           "here: last");
    refuse("stack=fsdp2 checkpointing=full offload=true", "has no offloading that loads ahead");
    refuse("overlap_reduce=false", "must be whole: needs sharding optimizer or none");
    refuse("efficiency=1.5", "must be from 0.01 to 1");
}

/* Bytes of the static state of a rank, parameters, gradients and optimizer. */
static uint64_t state_bytes(const smp_program *p)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < p->n_buffer; i++) {
        const smp_buffer *buffer = &p->buffers[i];

        if (buffer->scope == SMP_SCOPE_STEP
            && (buffer->kind == SMP_KIND_PARAMETER || buffer->kind == SMP_KIND_GRADIENT
                || buffer->kind == SMP_KIND_OPTIMIZER)) {
            sum += buffer->bytes * buffer->entries;
        }
    }
    return sum;
}

static void check_state(const char *settings, double bytes_per_parameter)
{
    bench b;

    bench_open(&b, LLAMA(4, 4), 4, 512, 4, settings);
    bench_lower(&b);
    const double n = (double)smp_model_parameters(b.model);
    const double got = (double)state_bytes(b.step->programs[0]) / n;
    assert_true(fabs(got / bytes_per_parameter - 1) < 0.01); /* padding to 256 bytes */
    bench_close(&b);
}

/* FSDP shards 16 bytes (Rajbhandari et al. 2020: 4 master, 4 gradient, 8 moments, in fp32);
 * Megatron keeps 18, with its distributed optimizer 6 + 12 / dp (theoretical_memory_usage.py:
 * 2 parameter, 4 gradient in fp32, 12 master and moments). */
static void bytes_per_parameter(void **state)
{
    (void)state;
    check_state("stack=fsdp1", 16.0 / 4);
    check_state("stack=fsdp2", 16.0 / 4);
    check_state("stack=megatron", 6 + 12.0 / 4);
    check_state("stack=megatron sharding=none", 18);
    /* ZeRO 1 with gradients in the precision */
    check_state("stack=deepspeed sharding=optimizer", 4 + 12.0 / 4);
}

static uint64_t logits_bytes(const char *loss)
{
    bench b;
    char settings[64];

    (void)snprintf(settings, sizeof settings, "loss_kernel=%s", loss);
    bench_open(&b, LLAMA(4, 4), 1, 512, 1, settings);
    bench_lower(&b);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < b.step->programs[0]->n_buffer; i++) {
        const smp_buffer *buffer = &b.step->programs[0]->buffers[i];

        sum += buffer->kind == SMP_KIND_LOGITS ? buffer->bytes : 0;
    }
    bench_close(&b);
    return sum;
}

/* 512 tokens, 1024 words, 2 bytes a logit and what is beside them. */
static void bytes_of_the_loss(void **state)
{
    (void)state;
    check_u64(logits_bytes("fused"), 512 * 1024 * 2);
    check_u64(logits_bytes("compiled"), 512 * 1024 * (2 + 2));
    check_u64(logits_bytes("copy"), 512 * 1024 * (2 + 4));
    check_u64(logits_bytes("eager"), 512 * 1024 * (2 + 12));
}

/* Bytes of placeholders of weight gradients. */
static uint64_t placeholder_bytes(const char *model, uint32_t gpus, const char *settings)
{
    bench b;
    uint64_t sum = 0;

    bench_open(&b, model, gpus, 512, 4, settings);
    bench_lower(&b);
    const smp_program *p = b.step->programs[0];
    for (uint32_t i = 0; i < p->n_buffer; i++) {
        if (strncmp(p->buffers[i].name, "placeholder.", 12) == 0) {
            assert_int_equal(p->buffers[i].scope, SMP_SCOPE_STEP);
            sum += p->buffers[i].bytes;
        }
    }
    bench_close(&b);
    return sum;
}

/* One for each shape, however many layers and experts have it, in 2 bytes.  h 512, heads and kv
 * heads 512 + 2 x 256, f 1024, words 1024: q k v and the head are both 1024 x 512. */
static void placeholders(void **state)
{
    const uint64_t qkv = 1024 * 512, o = 512 * 512, up = 2048 * 512, down = 512 * 1024;

    (void)state;
    check_u64(placeholder_bytes(LLAMA(4, 4), 1, "stack=megatron"), 2 * (qkv + o + up + down));
    check_u64(placeholder_bytes(LLAMA(2, 4), 1, "stack=megatron"), 2 * (qkv + o + up + down));
    /* halves: q k v, down and the head are all 512 x 512 */
    check_u64(placeholder_bytes(LLAMA(4, 4), 2, "stack=megatron tensor_parallel_degree=2"),
              2 * (qkv / 2 + o / 2 + up / 2));
    /* experts of the same shapes, and the router */
    check_u64(placeholder_bytes(MIXTRAL(2, 8, 2), 1, "stack=megatron"),
              2 * (qkv + o + up + down + 8 * 512));
    check_u64(placeholder_bytes(MIXTRAL(2, 8, 2), 4, "stack=megatron expert_parallel_degree=4"),
              2 * (qkv + o + up + down + 8 * 512));
    check_u64(placeholder_bytes(LLAMA(4, 4), 4, "stack=deepspeed"), 0);
    check_u64(placeholder_bytes(LLAMA(4, 4), 4, "stack=native"), 0);
}

/* What a layer keeps, a token, its input apart; from the stacks of the program. */
static uint64_t layer_bytes(const char *settings)
{
    bench b;
    uint64_t sum = 0;

    bench_open(&b, LLAMA(4, 4), 1, 512, 1, settings);
    bench_lower(&b);
    for (uint32_t i = 0; i < b.step->programs[0]->n_buffer; i++) {
        const smp_buffer *buffer = &b.step->programs[0]->buffers[i];

        if (buffer->kind == SMP_KIND_ACTIVATION && buffer->index == SMP_INDEX_LAYER
            && strcmp(buffer->name, "x") != 0) {
            sum += buffer->bytes;
        }
    }
    bench_close(&b);
    assert_int_equal(sum % 512, 0);
    return sum / 512;
}

/* h 512, kv 4 x 64 = 256, f 1024, 8 heads; bf16.  One product q k v, gate up, o, down, of which
 * the first and third are kept (qkv, gate up), and attention's y with 4 bytes a head: as
 * separate products torchtitan keeps q, v, gate and down (PyTorch also what backward does not
 * read: down), a compiler not down. */
static void what_selective_keeps(void **state)
{
    const uint64_t core = 2 * 512 + 4 * 8;

    (void)state;
    check_u64(layer_bytes("checkpointing=selective:op"),
              core + 2 * (512 + 2 * 256) + 2 * 2 * 1024);
    check_u64(layer_bytes("checkpointing=selective:op stack=fsdp2"),
              core + 2 * (512 + 256) + 2 * 1024 + 2 * 512);
    check_u64(layer_bytes("checkpointing=selective:op stack=fsdp2 compile=true"),
              core + 2 * (512 + 256) + 2 * 1024);
}

static const smp_comm *find_comm(const smp_program *p, const char *name)
{
    for (uint32_t k = 0; k < p->n_comm; k++) {
        if (strcmp(p->comms[k].name, name) == 0) {
            return &p->comms[k];
        }
    }
    return NULL;
}

/* FSDP1: one communicator, and no gather runs beside a reduction. */
static void one_communicator(void **state)
{
    bench b;
    smp_simulation *simulation = NULL;

    (void)state;
    bench_open(&b, LLAMA(4, 4), 4, 512, 4, "stack=fsdp1");
    bench_lower(&b);
    const smp_program *p = b.step->programs[0];
    assert_non_null(find_comm(p, "shard"));
    assert_null(find_comm(p, "reduce"));
    check_ok(smp_step_verify(b.step, b.errors), b.errors);
    check_ok(smp_simulate(&b.job, b.step, b.errors, &simulation), b.errors);
    smp_simulation_destroy(simulation);
    bench_close(&b);
    bench_open(&b, LLAMA(4, 4), 4, 512, 4, "stack=fsdp2");
    bench_lower(&b);
    assert_non_null(find_comm(b.step->programs[0], "unshard"));
    assert_non_null(find_comm(b.step->programs[0], "reduce"));
    bench_close(&b);
}

static smp_cost cost_of(const bench *b, smp_program *p, smp_task task)
{
    smp_cost cost;

    smp_cost_task(b->cluster, b->profile, p, &task, &cost);
    return cost;
}

/* Fused attention in Triton on A100 against the measurement it is of [triton-lang/triton pull
 * request 1917, "before"]: batch 4, 48 heads of 64, causal, TFLOP/s. */
static void attention_in_triton(void **state)
{
    static const struct { uint64_t seq; double forward, backward; } measured[] = {
        { 1024, 84.3, 48.7 }, { 2048, 102.1, 62.1 }, { 4096, 112.9, 71.7 },
        { 8192, 119.1, 77.5 }, { 16384, 122.2, 80.6 } };
    bench b;
    smp_program p = { .attention_kernel = SMP_KERNEL_TRITON };

    (void)state;
    bench_open(&b, LLAMA(4, 4), 1, 512, 1, "stack=native");
    smp_profile_destroy(b.profile);
    check_ok(smp_profile_read("a100-sxm-80gb", b.errors, &b.profile), b.errors);
    for (size_t i = 0; i < sizeof measured / sizeof measured[0]; i++) {
        for (int back = 0; back < 2; back++) {
            smp_task task = { .op = back ? SMP_OP_ATTENTION_GRAD : SMP_OP_ATTENTION,
                              .dtype = SMP_BF16, .dtype2 = SMP_BF16,
                              .flags = SMP_FLAG_CAUSAL,
                              .dims = { 4, measured[i].seq, 48, 48, 64 } };
            const double got = (double)smp_task_flops(&task)
                               / cost_of(&b, &p, task).compute_s * 1e-12;
            const double want = back ? measured[i].backward : measured[i].forward;

            assert_true(fabs(got / want - 1) < 0.06);
        }
    }
    bench_close(&b);
}

static void costs(void **state)
{
    bench b;
    smp_program fused = { 0 }, eager = { .kernels = SMP_KERNELS_EAGER },
                half = { .efficiency = 0.5 };
    smp_task norm = { .op = SMP_OP_NORM, .dtype = SMP_BF16, .dtype2 = SMP_BF16,
                      .dims = { 1 << 16, 4096, SMP_NORM_RMS } };
    smp_task product = { .op = SMP_OP_MATMUL, .dtype = SMP_BF16, .dtype2 = SMP_BF16,
                         .dims = { 8192, 8192, 8192 } };

    (void)state;
    bench_open(&b, LLAMA(4, 4), 1, 512, 1, "stack=native");
    const smp_cost one = cost_of(&b, &fused, norm), many = cost_of(&b, &eager, norm);
    assert_true(fabs(many.memory_s / one.memory_s - 8.5) < 1e-9);
    assert_true(fabs(many.launch_s / one.launch_s - 6) < 1e-9);
    norm.dims[2] = SMP_NORM_LAYER; /* PyTorch has a kernel for it */
    assert_true(fabs(cost_of(&b, &eager, norm).memory_s / one.memory_s - 1) < 1e-9);
    const smp_cost whole = cost_of(&b, &fused, product), slow = cost_of(&b, &half, product);
    assert_true(fabs(slow.compute_s / whole.compute_s - 2) < 1e-9);
    /* under lasting load no product is faster than the power limit allows */
    assert_true((double)smp_task_flops(&product) / whole.compute_s
                <= b.profile->sustained_flops.value * (1 + 1e-12));
    bench_close(&b);
}

static int64_t step_of(const char *settings)
{
    bench b;
    smp_simulation *simulation = NULL;

    bench_open(&b, LLAMA(4, 4), 4, 2048, 4, settings);
    bench_lower(&b);
    check_ok(smp_step_verify(b.step, b.errors), b.errors);
    check_ok(smp_simulate(&b.job, b.step, b.errors, &simulation), b.errors);
    const int64_t step_ps = smp_simulation_report(simulation)->step_ps;
    smp_simulation_destroy(simulation);
    bench_close(&b);
    return step_ps;
}

/* Reductions behind backward never end earlier, and start when it has ended. */
static void reductions_behind_backward(void **state)
{
    (void)state;
    assert_true(step_of("sharding=optimizer") <
                step_of("sharding=optimizer overlap_reduce=false"));
}

/* The same of gathers and updates; in the order of issue too, the last update before the first
 * gather. */
static void gathers_behind_updates(void **state)
{
    bench b;
    uint32_t last_update = 0, first_gather = UINT32_MAX;

    (void)state;
    assert_true(step_of("sharding=optimizer") <
                step_of("sharding=optimizer overlap_gather=false"));
    bench_open(&b, LLAMA(4, 4), 4, 512, 4, "sharding=optimizer overlap_gather=false");
    bench_lower(&b);
    const smp_program *p = b.step->programs[0];
    for (uint32_t i = 0; i < p->n_instance; i++) {
        const char *name = p->segments[p->order[i].segment].name;

        last_update = strcmp(name, "update") == 0 ? i : last_update;
        if (strcmp(name, "publish") == 0 && first_gather == UINT32_MAX) {
            first_gather = i;
        }
    }
    bench_close(&b);
    assert_true(last_update < first_gather && first_gather != UINT32_MAX);
    refuse("overlap_gather=false", "must be whole: needs sharding optimizer or none");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),
        cmocka_unit_test(rules),
        cmocka_unit_test(bytes_per_parameter),
        cmocka_unit_test(bytes_of_the_loss),
        cmocka_unit_test(placeholders),
        cmocka_unit_test(what_selective_keeps),
        cmocka_unit_test(one_communicator),
        cmocka_unit_test(attention_in_triton),
        cmocka_unit_test(costs),
        cmocka_unit_test(reductions_behind_backward),
        cmocka_unit_test(gathers_behind_updates),
    };

    return cmocka_run_group_tests_name("stacks", tests, NULL, NULL);
}
