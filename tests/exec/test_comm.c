/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators between threads: conformance, and what is said when a rank does not come.
 */
#include "config.h"

#include "tests/check.h"
#include "tests/exec/comm_suite.h"

#include <pthread.h>

typedef struct member {
    smp_world *world;
    uint32_t rank, n;
    const char *wrong;
    smp_errors *errors;
    smp_status status;
    pthread_t thread;
} member;

static void *suite_main(void *argument)
{
    member *m = argument;

    m->wrong = suite_rank(&smp_comm_threads, m->world, m->rank, m->n, m->errors);
    return NULL;
}

/* Runs `main` on `started` of `n` ranks. */
static void run(member *members, uint32_t n, uint32_t started, double timeout_s,
                void *(*rank_main)(void *))
{
    smp_errors *errors = smp_errors_create();
    smp_world *world = NULL;

    check_ok(smp_threads_create(n, timeout_s, errors, &world), errors);
    for (uint32_t i = 0; i < started; i++) {
        members[i] = (member){ .world = world, .rank = i, .n = n,
                               .errors = smp_errors_create() };
        assert_int_equal(pthread_create(&members[i].thread, NULL, rank_main, &members[i]), 0);
    }
    for (uint32_t i = 0; i < started; i++) {
        (void)pthread_join(members[i].thread, NULL);
    }
    smp_comm_threads.destroy(world);
    smp_errors_destroy(errors);
}

static void threads_conform(void **state)
{
    static const uint32_t sizes[] = { 1, 2, 3, 4, 7 };
    member members[8];

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        run(members, sizes[i], sizes[i], 60, suite_main);
        for (uint32_t r = 0; r < sizes[i]; r++) {
            if (members[r].wrong) {
                fail_msg("%u ranks, rank %u: %s", sizes[i], r, members[r].wrong);
            }
            smp_errors_destroy(members[r].errors);
        }
    }
}

static void *barrier_main(void *argument)
{
    member *m = argument;
    const uint32_t members[4] = { 0, 1, 2, 3 };
    smp_channel *channel = NULL;

    m->status = smp_comm_threads.join(m->world, "shard", members, m->n, m->rank, m->errors,
                                      &channel);
    if (m->status == SMP_OK) {
        m->status = smp_comm_threads.barrier(channel, m->errors);
    }
    smp_comm_threads.leave(channel);
    return NULL;
}

static void the_missing_are_named(void **state)
{
    member members[4];

    (void)state;
    run(members, 4, 2, 0.2, barrier_main);
    for (uint32_t r = 0; r < 2; r++) {
        check_fails(members[r].status, SMP_SYSTEM, members[r].errors,
                    "waited 0.2 s in group shard (ranks 0 1 2 3): not arrived: 2 3");
        smp_errors_destroy(members[r].errors);
    }
}

static void *failing_main(void *argument)
{
    member *m = argument;

    if (m->rank == 1) {
        smp_comm_threads.abandon(m->world, 1);
        return NULL;
    }
    return barrier_main(argument);
}

static void a_dead_rank_ends_all_waits(void **state)
{
    member members[3];

    (void)state;
    run(members, 3, 3, 60, failing_main);
    for (uint32_t r = 0; r < 3; r += 2) {
        check_fails(members[r].status, SMP_SYSTEM, members[r].errors,
                    "stopped because rank 1 failed");
    }
    for (uint32_t r = 0; r < 3; r++) {
        smp_errors_destroy(members[r].errors);
    }
}

/* Every number of 16 bits survives the way through fp32, and rounding is to nearest even. */
static void stored_numbers_are_exact(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        float b = smp_f32_of_bf16((uint16_t)i), h = smp_f32_of_f16((uint16_t)i);

        assert_true(isnan(b) || smp_bf16_of_f32(b) == i);
        assert_true(isnan(h) || smp_f16_of_f32(h) == i);
    }
    assert_int_equal(smp_f16_of_f32(1.0f + 0x1p-11f), 0x3c00);         /* tie to even: down */
    assert_int_equal(smp_f16_of_f32(1.0f + 3 * 0x1p-11f), 0x3c02);     /* tie to even: up */
    assert_int_equal(smp_f16_of_f32(65519.9f), 0x7bff);
    assert_int_equal(smp_f16_of_f32(65520.0f), 0x7c00);
    assert_int_equal(smp_f16_of_f32(0x1p-25f), 0);                     /* tie to even */
    assert_int_equal(smp_f16_of_f32(0x1.8p-25f), 1);
    assert_int_equal(smp_bf16_of_f32(1.0f + 0x1p-8f), 0x3f80);
    assert_int_equal(smp_bf16_of_f32(1.0f + 3 * 0x1p-8f), 0x3f82);
    assert_true(isnan(smp_f32_of_bf16(smp_bf16_of_f32(NAN))));
    assert_true(isnan(smp_f32_of_f16(smp_f16_of_f32(NAN))));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(threads_conform),
    cmocka_unit_test(the_missing_are_named),
    cmocka_unit_test(a_dead_rank_ends_all_waits),
    cmocka_unit_test(stored_numbers_are_exact),
};

CHECK_MAIN(tests)
