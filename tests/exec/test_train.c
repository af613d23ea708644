/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training of tiny models: it learns, in every precision; dropout, memory and
 * schedules are what they are said to be; what is wrong is said.
 */
#include "config.h"

#include "tests/exec/tiny.h"

#include "exec/cpu.h"

static const char GPT2_DROPOUT[] =
    "{\"model_type\": \"gpt2\", \"vocab_size\": 97, \"n_embd\": 32, \"n_layer\": 2, "
    "\"n_head\": 4, \"n_positions\": 64, \"resid_pdrop\": 0.1, \"embd_pdrop\": 0.2, "
    "\"attn_pdrop\": 0.3}";

/* One batch is the whole file: 8 sequences of 16 tokens, and one token more. */
static const char *one_batch(void)
{
    char text[129];

    for (int i = 0; i < 129; i++) {
        text[i] = (char)(33 + i * i % 61);
    }
    return check_file(text, sizeof text);
}

static double overfit(const char *config, uint32_t ranks, const char *settings)
{
    tiny t;
    double loss;

    tiny_open(&t, config, ranks, 16, 8);
    tiny_set(&t, settings);
    t.options.data = one_batch();
    t.options.hyper.lr = 1e-2;
    t.options.hyper.weight_decay = 0;
    t.options.hyper.warmup_steps = 5;
    tiny_train(&t, 150);
    loss = t.result.steps[149].loss;
    tiny_close(&t);
    return loss;
}

static void one_batch_is_learnt_by_heart(void **state)
{
    (void)state;
    assert_true(overfit(TINY_LLAMA, 1, "micro_batch=8") < 0.01);
    assert_true(overfit(TINY_LLAMA, 2, "tensor_parallel_degree=2 micro_batch=4") < 0.01);
    assert_true(overfit(TINY_GPT2, 2, "micro_batch=2") < 0.01);
}

static void sixteen_bits_learn_too(void **state)
{
    (void)state;
    assert_true(overfit(TINY_LLAMA, 1, "micro_batch=8 precision=bf16") < 0.05);
    assert_true(overfit(TINY_LLAMA, 2, "micro_batch=2 precision=fp16") < 0.05);
    assert_true(overfit(TINY_GPT2, 2, "micro_batch=4 precision=bf16 reduce_dtype=bf16 "
                                      "tensor_parallel_degree=2") < 0.1);
    assert_true(overfit(TINY_LLAMA, 2, "micro_batch=4 precision=bf16 sharding=optimizer")
                < 0.05);
}

/* Scale 2^24 overflows: no update, the scale halves, and so on until gradients are finite. */
static void overflow_skips_the_update(void **state)
{
    tiny t;
    int skipped = 0;

    (void)state;
    tiny_open(&t, TINY_LLAMA, 1, 16, 8);
    tiny_set(&t, "precision=fp16 micro_batch=8");
    t.options.data = one_batch();
    t.options.hyper.lr = 1e-2;
    t.options.hyper.scaler.first = 0x1p24;
    tiny_train(&t, 20);
    while (skipped < 20 && t.result.steps[skipped].skipped) {
        check_rel(t.result.steps[skipped].loss, t.result.steps[0].loss, 0);
        check_rel(t.result.steps[skipped].loss_scale, ldexp(1, 23 - skipped), 0);
        skipped++;
    }
    assert_true(skipped > 0 && skipped < 10);
    assert_true(t.result.steps[19].loss < t.result.steps[0].loss);
    tiny_close(&t);
}

/* The scale before each of a series of steps, of which `overflow` says what happens: '-' a step
 * without, 'x' one with.  By the scalars' task of the device itself. */
static void follow_scale(const smp_scaler *scaler, const char *overflow, const double *expected)
{
    smp_job job = { .world = 1 };
    smp_rank rank = { .job = &job, .copies = 1 };
    smp_cpu cpu = { .rank = &rank };
    float sums[SMP_SUMS] = { 0 }, state[SMP_SCALARS] = { 0 };
    smp_launch launch = { .at = { sums, state } };

    smp_hyper_init(&rank.hyper);
    rank.hyper.scaler = *scaler;
    state[SMP_SCALAR_LOSS_SCALE] = (float)scaler->first;
    state[SMP_SCALAR_SHIFT] = (float)(scaler->shift - 1);
    for (size_t i = 0; overflow[i] != '\0'; i++) {
        check_rel((double)state[SMP_SCALAR_LOSS_SCALE], expected[i], 0);
        sums[SMP_SUM_OVERFLOW] = overflow[i] == 'x' ? 1.0f : 0.0f;
        smp_cpu_scalars(&cpu, &launch);
    }
}

/* By hand from the rules.  torch: x halves and starts the window of 3 anew.  SMP with a window
 * of 2: its first has 3 steps; of shift 2, the first x since the start or the last doubling is
 * let pass, but it starts the window anew; 1 is the least. */
static void loss_scales_follow_their_rules(void **state)
{
    static const double torch[] = { 16, 16, 16, 32, 16, 8, 8, 8, 16, 16, 16, 32 };
    static const double smp[] = { 4, 4, 2, 2, 2, 4, 4, 8, 8, 16, 16, 8, 4, 2, 1, 1 };
    smp_scaler a = smp_scaler_of(SMP_SCALER_TORCH), b = smp_scaler_of(SMP_SCALER_SMP);

    (void)state;
    check_rel(a.first, 65536, 0);
    check_u64(a.window, 2000);
    check_rel(b.first, 4294967296, 0);
    check_u64(b.window, 1000);
    check_rel(b.least, 1, 0);
    check_u64(b.shift, 1);
    a.first = 16;
    a.window = 3;
    follow_scale(&a, "---xx-------", torch);
    b.first = 4;
    b.window = 2;
    b.shift = 2;
    follow_scale(&b, "xx-------xxxxxxx", smp);
}

/* The same elements are dropped wherever they are computed. */
static void dropout_knows_no_layout(void **state)
{
    static const struct { uint32_t ranks; const char *settings; } layouts[] = {
        { 1, "micro_batch=8" },
        { 1, "micro_batch=2" },
        { 1, "micro_batch=8 attention=naive" },
        { 1, "micro_batch=4 checkpointing=full" },
        { 2, "micro_batch=2" },
        { 2, "micro_batch=4 tensor_parallel_degree=2" },
        { 2, "micro_batch=4 tensor_parallel_degree=2 sequence_parallel=false" },
        { 4, "micro_batch=2 tensor_parallel_degree=2 attention=naive" },
    };
    double loss[2] = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        tiny t;

        tiny_open(&t, GPT2_DROPOUT, layouts[i].ranks, 16, 8);
        tiny_set(&t, "optimizer=sgd");
        tiny_set(&t, layouts[i].settings);
        tiny_train(&t, 2);
        for (int k = 0; k < 2; k++) {
            loss[k] = i == 0 ? t.result.steps[k].loss : loss[k];
            check_rel(t.result.steps[k].loss, loss[k], 2e-6);
        }
        assert_true(t.result.steps[0].loss != t.result.steps[1].loss);
        tiny_close(&t);
    }
}

static double dropped(const char *config, const char *settings)
{
    tiny t;
    double loss;

    tiny_open(&t, config, 1, 16, 8);
    tiny_set(&t, "micro_batch=8");
    tiny_set(&t, settings);
    tiny_train(&t, 1);
    loss = t.result.steps[0].loss;
    tiny_close(&t);
    return loss;
}

/* The setting acts as the model's own rate does, fused or not; 0 drops nothing. */
static void dropout_of_attention_is_a_setting(void **state)
{
    static const char drops[] = TINY_OF("gpt2", ", \"resid_pdrop\": 0.0, \"embd_pdrop\": 0.0, "
                                        "\"attn_pdrop\": 0.25");
    static const char *const kinds[] = { "attention=flash", "attention=naive" };

    (void)state;
    for (int i = 0; i < 2; i++) {
        char rate[64], none[64];

        (void)snprintf(rate, sizeof rate, "%s attention_dropout=0.25", kinds[i]);
        (void)snprintf(none, sizeof none, "%s attention_dropout=0", kinds[i]);
        check_rel(dropped(TINY_GPT2, rate), dropped(drops, kinds[i]), 0);
        check_rel(dropped(drops, none), dropped(TINY_GPT2, kinds[i]), 0);
        assert_true(fabs(dropped(drops, kinds[i]) - dropped(drops, none)) > 1e-5);
    }
}

static double second_loss(uint32_t ranks, const char *settings)
{
    tiny t;
    double loss;

    tiny_open(&t, GPT2_DROPOUT, ranks, 16, 8);
    tiny_set(&t, settings);
    tiny_train(&t, 2);
    loss = t.result.steps[1].loss;
    tiny_close(&t);
    return loss;
}

/* SMP's rule adds the tensor rank to the seed where work is split, and only there. */
static void seeds_follow_the_rule(void **state)
{
    static const char two[] = "micro_batch=8 tensor_parallel_degree=2", smp[] = "seed_rule=smp";
    char both[128];

    (void)state;
    check_rel(second_loss(1, "micro_batch=8 seed_rule=smp"), second_loss(1, "micro_batch=8"),
              0);
    (void)snprintf(both, sizeof both, "%s %s", two, smp);
    assert_true(fabs(second_loss(2, both) - second_loss(2, two)) > 1e-4);
    check_rel(second_loss(2, both), second_loss(2, both), 0);
    (void)snprintf(both, sizeof both, "%s %s sequence_parallel=false", two, smp);
    check_rel(second_loss(2, both), second_loss(2, both), 0);
}

/* What smp-sim predicts is what is allocated, and one byte less is refused. */
static void memory_is_what_was_planned(void **state)
{
    static const struct { uint32_t ranks; const char *settings; } layouts[] = {
        { 1, "micro_batch=8" },
        { 2, "micro_batch=2 checkpointing=full offload=true activation_loading_horizon=1" },
        { 4, "micro_batch=2 tensor_parallel_degree=2 precision=bf16" },
        { 8, "micro_batch=1 sharding=optimizer" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        smp_simulation *simulation = NULL;
        smp_step *step = NULL;
        tiny t;

        tiny_open(&t, TINY_LLAMA, layouts[i].ranks, 16, 8);
        tiny_set(&t, layouts[i].settings);
        tiny_train(&t, 1);
        check_ok(smp_step_lower(&t.job, t.errors, &step), t.errors);
        check_ok(smp_simulate(&t.job, step, t.errors, &simulation), t.errors);
        check_u64(t.result.arena_bytes,
                  smp_simulation_report(simulation)->memory.arena_bytes);
        check_u64(t.result.host_arena_bytes,
                  smp_simulation_report(simulation)->memory.host_bytes);
        t.options.device_memory_bytes = t.result.arena_bytes;
        smp_exec_result_free(&t.result);
        check_ok(smp_exec_run(&t.job, &t.options, t.errors, &t.result), t.errors);
        smp_exec_result_free(&t.result);
        t.options.device_memory_bytes--;
        check_fails(smp_exec_run(&t.job, &t.options, t.errors, &t.result), SMP_INFEASIBLE,
                    t.errors, "--device-memory");
        smp_simulation_destroy(simulation);
        smp_step_destroy(step);
        tiny_close(&t);
    }
}

static void other_software_is_refused(void **state)
{
    tiny t;

    (void)state;
    tiny_open(&t, TINY_LLAMA, 2, 16, 2);
    tiny_set(&t, "stack=megatron");
    check_ok(smp_job_resolve(&t.job, t.errors), t.errors);
    check_fails(smp_exec_run(&t.job, &t.options, t.errors, &t.result), SMP_INPUT, t.errors,
                "stack megatron: a plan for other software is simulated, not executed; legal "
                "here: native");
    tiny_close(&t);
}

static void wrong_data_are_refused(void **state)
{
    static const char far[] = "ABC\xff AND SO ON, ENOUGH OF IT FOR SEQUENCES OF SIXTEEN";
    tiny t;

    (void)state;
    tiny_open(&t, TINY_LLAMA, 2, 16, 2);
    tiny_set(&t, "micro_batch=1");
    check_ok(smp_job_resolve(&t.job, t.errors), t.errors);
    t.options.shuffle = false;
    t.options.data = check_file(far, sizeof far);
    check_fails(smp_exec_run(&t.job, &t.options, t.errors, &t.result), SMP_INPUT, t.errors,
                "token 255 at 3: the model's vocabulary has 97");
    t.options.data = check_file(far, 16);
    check_fails(smp_exec_run(&t.job, &t.options, t.errors, &t.result), SMP_INPUT, t.errors,
                "16 tokens; a sequence of 16 needs 17");
    t.options.data = "no such file";
    check_fails(smp_exec_run(&t.job, &t.options, t.errors, &t.result), SMP_INPUT, t.errors,
                "no such file");
    t.options.data = ".";
    check_fails(smp_exec_run(&t.job, &t.options, t.errors, &t.result), SMP_INPUT, t.errors,
                "not a file");
    tiny_close(&t);
}

static void a_lost_loss_ends_the_run(void **state)
{
    tiny t;

    (void)state;
    tiny_open(&t, TINY_LLAMA, 2, 16, 8);
    tiny_set(&t, "micro_batch=4");
    t.options.steps = 9;
    t.options.hyper.lr = 1e38;
    check_ok(smp_job_resolve(&t.job, t.errors), t.errors);
    check_fails(smp_exec_run(&t.job, &t.options, t.errors, &t.result), SMP_SYSTEM, t.errors,
                "first task whose result is not finite is");
    tiny_close(&t);
}

/* Warm-up of 4 steps, then to the end of 14: by hand. */
static void schedules_follow_their_formulas(void **state)
{
    smp_hyper h;

    (void)state;
    smp_hyper_init(&h);
    h.lr = 1;
    h.min_lr = 0.2;
    h.warmup_steps = 4;
    h.total_steps = 14;
    check_rel(smp_hyper_lr(&h, 0), 0.2, 1e-15);
    check_rel(smp_hyper_lr(&h, 3), 0.8, 1e-15);
    check_rel(smp_hyper_lr(&h, 9), 1, 0);
    h.schedule = SMP_SCHEDULE_LINEAR;
    check_rel(smp_hyper_lr(&h, 9), 0.6, 1e-15);
    check_rel(smp_hyper_lr(&h, 14), 0.2, 1e-15);
    check_rel(smp_hyper_lr(&h, 99), 0.2, 1e-15);
    h.schedule = SMP_SCHEDULE_COSINE;
    check_rel(smp_hyper_lr(&h, 4), 1, 1e-15);
    check_rel(smp_hyper_lr(&h, 9), 0.6, 1e-14);
    check_rel(smp_hyper_lr(&h, 14), 0.2, 1e-14);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(one_batch_is_learnt_by_heart),
    cmocka_unit_test(sixteen_bits_learn_too),
    cmocka_unit_test(overflow_skips_the_update),
    cmocka_unit_test(loss_scales_follow_their_rules),
    cmocka_unit_test(dropout_knows_no_layout),
    cmocka_unit_test(dropout_of_attention_is_a_setting),
    cmocka_unit_test(seeds_follow_the_rule),
    cmocka_unit_test(memory_is_what_was_planned),
    cmocka_unit_test(other_software_is_refused),
    cmocka_unit_test(wrong_data_are_refused),
    cmocka_unit_test(a_lost_loss_ends_the_run),
    cmocka_unit_test(schedules_follow_their_formulas),
};

CHECK_MAIN(tests)
