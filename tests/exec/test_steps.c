/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps behind each other: begun before the last one has ended, on inputs that came beside it.
 */
#include "config.h"

#include "tests/exec/tiny.h"

#include "base/numeric.h"

#include <time.h>

enum { SEQ = 16, VOCAB = 97, BATCH = 4, TOKENS = SEQ * BATCH, STEPS = 7, HIDDEN = 32 };

/* ---- training ---- */

static uint64_t most_begun, least_begun;

static void note_begun(void *context, smp_runner *runner, uint64_t step)
{
    uint64_t begun = runner->begun - runner->ended;

    (void)context;
    if (runner->rank.rank == 0 && step + 1 < STEPS) {
        most_begun = begun > most_begun ? begun : most_begun;
        least_begun = begun < least_begun ? begun : least_begun;
    }
}

/* What pads has rows of other lengths from step to step. */
static void run(tiny *t, const char *settings, bool pads, bool validates, bool async)
{
    tiny_open(t, TINY_LLAMA, 4, SEQ, 16);
    tiny_set(t, settings);
    t->options.async = async;
    if (pads) {
        t->options.pad = SMP_PAD_LONGEST;
        t->options.separator = 40;
    }
    if (validates) {
        t->options.validation = t->options.data;
        t->options.validate_every = 2;
        t->options.validation_batches = 3;
    }
    t->options.after_step = note_begun;
    most_begun = 0;
    least_begun = UINT64_MAX;
    tiny_train(t, STEPS);
}

static void check_same(const smp_exec_result *a, const smp_exec_result *b)
{
    check_u64(b->n_step, a->n_step);
    for (uint64_t i = 0; i < a->n_step; i++) {
        check_rel(b->steps[i].loss, a->steps[i].loss, 0);
        check_rel(b->steps[i].norm, a->steps[i].norm, 0);
        check_rel(b->steps[i].lr, a->steps[i].lr, 0);
        check_rel(b->steps[i].targets, a->steps[i].targets, 0);
        check_u64(b->steps[i].seq, a->steps[i].seq);
        assert_true(b->steps[i].seconds > 0);
    }
    check_rel(b->validation_loss, a->validation_loss, 0);
    check_u64(b->end.epoch, a->end.epoch);
    check_u64(b->end.position, a->end.position);
}

/* Serial training has none begun when a step is noted; the other has the one behind it, but
 * before a validation and at the end. */
static void a_step_late_changes_nothing(void **state)
{
    static const char *const settings[] = {
        "micro_batch=4", "micro_batch=1 tensor_parallel_degree=2", "micro_batch=2",
        "micro_batch=1 checkpointing=full offload=true sm_activation_offloading=true"
    };

    (void)state;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        for (int k = 0; k < 4; k++) {
            tiny serial, async;

            run(&serial, settings[i], (k & 1) != 0, (k & 2) != 0, false);
            check_u64(most_begun, 0);
            run(&async, settings[i], (k & 1) != 0, (k & 2) != 0, true);
            check_u64(most_begun, 1);
            check_u64(least_begun, (k & 2) != 0 ? 0 : 1);
            check_same(&serial.result, &async.result);
            tiny_close(&serial);
            tiny_close(&async);
        }
    }
}

/* ---- a batch that cannot be had ---- */

static atomic_uint noted_steps; /* by rank 0 */

/* Rank 0 is late: the other one has failed when it notes the last step that was good. */
static void note_late(void *context, smp_runner *runner, uint64_t step)
{
    const struct timespec pause = { 0, 100000000 };
    const uint64_t *bad = context;

    if (runner->rank.rank == 0) {
        atomic_store(&noted_steps, (unsigned)step + 1);
        if (step + 2 == *bad) {
            (void)nanosleep(&pause, NULL);
        }
    }
}

/* Batch `bad` of the second of two ranks has a token beyond the vocabulary. */
static smp_status run_into(uint64_t bad, bool async, uint32_t loader_threads, double lr,
                           char message[256])
{
    char text[4096];
    smp_status status;
    FILE *stream;
    tiny t;

    tiny_open(&t, TINY_LLAMA, 2, SEQ, 8);
    tiny_set(&t, "micro_batch=2");
    stream = fopen(t.options.data, "rb");
    assert_non_null(stream);
    check_u64(fread(text, 1, sizeof text, stream), sizeof text);
    (void)fclose(stream);
    text[(bad * 8 + 1) * SEQ + 5] = 'z';
    t.options.data = check_file(text, sizeof text);
    t.options.shuffle = false;
    t.options.async = async;
    t.options.loader_threads = loader_threads;
    t.options.hyper.lr = lr;
    t.options.timeout_s = 10;
    t.options.after_step = note_late;
    t.options.context = &bad;
    t.options.steps = STEPS;
    atomic_store(&noted_steps, 0);
    check_ok(smp_job_resolve(&t.job, t.errors), t.errors);
    status = smp_exec_run(&t.job, &t.options, t.errors, &t.result);
    (void)snprintf(message, 256, "%s", status == SMP_OK ? "" : smp_errors_text(t.errors, 0));
    tiny_close(&t);
    return status;
}

/* It is asked for a step ahead and ends the run when its step would begin: every rank has said
 * what the steps before it gave, also where the other one runs into that step. */
static void a_batch_that_cannot_be_had_ends_the_run_at_its_step(void **state)
{
    char message[256];

    (void)state;
    for (uint64_t bad = 0; bad < 4; bad++) {
        for (uint32_t threads = 0; threads < 3; threads++) {
            for (int async = 0; async < 2; async++) {
                assert_int_equal(run_into(bad, async != 0, threads, 1e-3, message), SMP_INPUT);
                check_contains(message, "token 122");
                check_u64(atomic_load(&noted_steps), bad);
            }
        }
    }
}

/* The step before it has a loss that is no number.  Serial ranks all look where it comes from;
 * of those that are a step ahead, one has begun the next step and the other cannot. */
static void a_loss_that_is_no_number_comes_before_it(void **state)
{
    char message[256];

    (void)state;
    assert_int_equal(run_into(2, false, 1, 1e30, message), SMP_SYSTEM);
    check_contains(message, "step 2: the loss is nan; the first task");
    assert_int_equal(run_into(2, true, 1, 1e30, message), SMP_INPUT);
    check_contains(message, "token 122");
}

/* ---- one runner ---- */

typedef struct solo {
    tiny t;
    smp_device_ops device;
    smp_runner_options options;
    smp_mesh *mesh;
    smp_runner *runner;
} solo;

static uint64_t n_copy;        /* of the device, by the host */
static const int32_t *last_input;

static void count_copy(smp_device *device, smp_stream stream, void *to, const void *from,
                       uint64_t bytes)
{
    n_copy++;
    smp_device_cpu.copy(device, stream, to, from, bytes);
}

static void watch_input(smp_device *device, smp_stream stream, const smp_launch *launch)
{
    if (launch->task->op == SMP_OP_INPUT) {
        assert_int_equal(stream, SMP_STREAM_LOAD);
        last_input = launch->host[0];
    }
    smp_device_cpu.launch(device, stream, launch);
}

static void open_solo(solo *s, const char *settings, bool async)
{
    *s = (solo){ 0 };
    tiny_open(&s->t, TINY_LLAMA, 1, SEQ, BATCH);
    tiny_set(&s->t, settings);
    check_ok(smp_job_resolve(&s->t.job, s->t.errors), s->t.errors);
    s->device = smp_device_cpu;
    s->device.copy = count_copy;
    s->device.launch = watch_input;
    s->options = (smp_runner_options){ .device = &s->device,
                                       .device_options = { async, 1 },
                                       .comm = &smp_comm_threads,
                                       .hyper = s->t.options.hyper };
    check_ok(smp_mesh_create(&s->t.job, s->t.errors, &s->mesh), s->t.errors);
    check_ok(smp_threads_create(1, 10, s->t.errors, &s->options.world), s->t.errors);
    check_ok(smp_runner_create(&s->t.job, s->mesh, 0, &s->options, s->t.errors, &s->runner),
             s->t.errors);
    check_ok(smp_runner_init(s->runner, s->t.errors), s->t.errors);
}

static void close_solo(solo *s)
{
    smp_runner_destroy(s->runner);
    smp_comm_threads.destroy(s->options.world);
    smp_mesh_destroy(s->mesh);
    tiny_close(&s->t);
}

/* Tokens 6 and more, so that 5 can be put in. */
static smp_inputs inputs_of(int32_t *words, uint32_t seed)
{
    for (uint32_t i = 0; i < 2 * TOKENS; i++) {
        uint32_t u[4];

        smp_random4(seed, i, 7, u);
        words[i] = 6 + (int32_t)(u[0] % (VOCAB - 6));
    }
    return (smp_inputs){ .seq = SEQ, .ids = words, .targets = words + TOKENS };
}

/* Inputs that are known in time come by a task of the program; others cost two copies. */
static void inputs_come_beside_the_step_before(void **state)
{
    static const char *const settings[] = { "micro_batch=4", "micro_batch=1" };
    int32_t words[3][2 * TOKENS];

    (void)state;
    for (int k = 0; k < 4; k++) {
        smp_inputs in[3];
        const smp_pass *pass;
        double loss[3];
        solo s;

        open_solo(&s, settings[k & 1], (k & 2) != 0);
        for (uint32_t i = 0; i < 3; i++) {
            in[i] = inputs_of(words[i], i);
        }
        n_copy = 0;
        check_ok(smp_runner_begin(s.runner, &in[0], &in[1], s.t.errors), s.t.errors);
        check_u64(n_copy, 3); /* and the scalars at its end */
        assert_ptr_equal(last_input, in[1].ids);
        check_ok(smp_runner_begin(s.runner, &in[1], NULL, s.t.errors), s.t.errors);
        check_u64(n_copy, 4);
        check_ok(smp_runner_end(s.runner, s.t.errors, &pass), s.t.errors);
        loss[0] = (double)pass->scalars[SMP_SCALAR_LOSS];
        check_ok(smp_runner_begin(s.runner, &in[2], NULL, s.t.errors), s.t.errors);
        check_u64(n_copy, 7);
        for (int i = 1; i < 3; i++) {
            check_ok(smp_runner_end(s.runner, s.t.errors, &pass), s.t.errors);
            loss[i] = (double)pass->scalars[SMP_SCALAR_LOSS];
        }
        close_solo(&s);
        open_solo(&s, settings[k & 1], false);
        for (int i = 0; i < 3; i++) {
            check_ok(smp_runner_step(s.runner, &in[i], s.t.errors, &pass), s.t.errors);
            check_rel(loss[i], (double)pass->scalars[SMP_SCALAR_LOSS], 0);
        }
        close_solo(&s);
    }
}

/* ---- a loss that is no number ---- */

/* Row 5 of the embedding has no finite number. */
static void spoil_row(void *context, const smp_owned *owned)
{
    smp_runner *runner = context;
    float *values = smp_runner_operand(runner, owned->instance, owned->task_index, 0);

    if (!owned->unit->block) {
        const smp_unit_param *p = &owned->unit->params[owned->unit->at[SMP_ROLE_EMBED]];

        values[p->offset + (uint64_t)(5 * HIDDEN)] = INFINITY;
    }
}

static void add_up(void *context, const smp_owned *owned)
{
    void **c = context;
    const float *values = smp_runner_operand(c[0], owned->instance, owned->task_index, 0);
    uint64_t *hash = c[1];

    *hash = smp_hash(values, owned->elems * sizeof *values, *hash);
}

static uint64_t hash_of(smp_runner *runner)
{
    uint64_t hash = 1;
    void *context[] = { runner, &hash };

    smp_runner_owned(runner, add_up, context);
    return hash;
}

/* Token 5 is in the second step only.  The third, which was begun before that was seen, has a
 * finite loss of its own, and yet changes nothing. */
static void steps_behind_a_nan_change_nothing(void **state)
{
    int32_t words[3][2 * TOKENS];

    (void)state;
    for (int async = 0; async < 2; async++) {
        smp_inputs in[3];
        const smp_pass *pass, *third;
        uint64_t start, before;
        solo s;

        open_solo(&s, "micro_batch=2", async != 0);
        for (uint32_t i = 0; i < 3; i++) {
            in[i] = inputs_of(words[i], i);
        }
        words[1][TOKENS - 7] = 5; /* the second micro-batch */
        smp_runner_owned(s.runner, spoil_row, s.runner);
        start = hash_of(s.runner);
        check_ok(smp_runner_step(s.runner, &in[0], s.t.errors, &pass), s.t.errors);
        assert_true(isfinite(pass->scalars[SMP_SCALAR_LOSS]));
        before = hash_of(s.runner);
        assert_true(before != start);
        check_ok(smp_runner_begin(s.runner, &in[1], &in[2], s.t.errors), s.t.errors);
        check_ok(smp_runner_begin(s.runner, &in[2], NULL, s.t.errors), s.t.errors);
        check_ok(smp_runner_end(s.runner, s.t.errors, &pass), s.t.errors);
        assert_true(!isfinite(pass->scalars[SMP_SCALAR_LOSS]));
        check_fails(smp_runner_find_nan(s.runner, pass, s.t.errors), SMP_SYSTEM, s.t.errors,
                    "step 2: the loss is nan; the first task whose result is not finite is "
                    "embed in embed of layer 0, micro-batch 1, on rank 0");
        check_ok(smp_runner_end(s.runner, s.t.errors, &third), s.t.errors);
        assert_true(isfinite(third->scalars[SMP_SCALAR_LOSS]));
        assert_true(third->scalars[SMP_SCALAR_SKIP] > 0);
        assert_true(hash_of(s.runner) == before);
        close_solo(&s);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_step_late_changes_nothing),
    cmocka_unit_test(a_batch_that_cannot_be_had_ends_the_run_at_its_step),
    cmocka_unit_test(a_loss_that_is_no_number_comes_before_it),
    cmocka_unit_test(inputs_come_beside_the_step_before),
    cmocka_unit_test(steps_behind_a_nan_change_nothing),
};

CHECK_MAIN(tests)
