/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verifier on programs made wrong on purpose: each fault must be found and named, and a
 * checker of another kind (reachability of every pair) must agree on random ones
 * (test_memory.c deletes waits).
 */
#include "tests/check.h"

#include "tests/step/small_program.h"

static smp_errors *errors;

static int set_up(void **state)
{
    (void)state;
    errors = smp_errors_create();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    smp_errors_destroy(errors);
    return 0;
}

static void finish(smp_program *p)
{
    check_ok(smp_program_plan_memory(p, errors), errors);
    check_ok(smp_program_derive_waits(p, errors), errors);
}

/* Turns through a ring of two slots: filled on unshard, read on compute, one ahead. */
static smp_program *ring_program(void)
{
    smp_program *p = small_create();
    uint16_t ring = small_buffer(p, (smp_buffer){
        .bytes = 1024, .index = SMP_INDEX_TURN, .slots = 2, .scope = SMP_SCOPE_MICROBATCH});
    uint16_t fill = small_segment(p, "fill");
    small_task(p, SMP_STREAM_UNSHARD);
    small_whole(p, ring, 0, "w");
    uint16_t use = small_segment(p, "use");
    small_task(p, SMP_STREAM_COMPUTE);
    small_whole(p, ring, 0, "r");
    small_instance(p, fill, 0, 0, 0);
    for (uint32_t t = 0; t < 5; t++) {
        small_instance(p, fill, 0, 0, t + 1);
        small_instance(p, use, 0, 0, t);
    }
    return p;
}

static void a_ring_with_a_slot_less_fails(void **state)
{
    (void)state;
    smp_program *p = ring_program();
    finish(p);
    check_ok(smp_program_verify(p, errors), errors);
    p->slot_bases[1] = p->slot_bases[0];
    check_fails(smp_program_verify(p, errors), SMP_SYSTEM, errors, "nothing orders t0 of");
    smp_arena_destroy(p->arena);
}

/* All on one stream there is no race, but the second fill has destroyed the first. */
static void contents_written_over_are_found(void **state)
{
    (void)state;
    smp_program *p = ring_program();
    p->tasks[0].stream = p->tasks[1].stream;
    finish(p);
    check_u64(p->n_wait, 0);
    check_ok(smp_program_verify(p, errors), errors);
    p->slot_bases[1] = p->slot_bases[0];
    check_fails(smp_program_verify(p, errors), SMP_SYSTEM, errors, "another entry of it");
    smp_arena_destroy(p->arena);
}

static void places_outside_the_arena_are_found(void **state)
{
    (void)state;
    smp_program *p = ring_program();
    finish(p);
    p->arena_bytes -= 1;
    check_fails(smp_program_verify(p, errors), SMP_SYSTEM, errors, "outside the entry");
    smp_arena_destroy(p->arena);
}

static void malformed_waits_are_found(void **state)
{
    (void)state;
    smp_program *p = ring_program();
    finish(p);
    uint32_t back = p->waits[0].back;
    p->waits[0].back = 1000;
    check_fails(smp_program_verify(p, errors), SMP_SYSTEM, errors, "malformed");
    p->waits[0].back = back;
    p->waits[0].source = 7; /* no such task */
    check_fails(smp_program_verify(p, errors), SMP_SYSTEM, errors, "malformed");
    smp_arena_destroy(p->arena);
}

/* `first` and `second` are collectives on two communicators, on streams of their own. */
static smp_program *meeting_program(uint32_t representative, bool swapped, bool chained)
{
    smp_program *p = small_create();
    p->representative = representative;
    p->comms[p->n_comm++] = (smp_comm){.name = "unshard", .group = SMP_GROUP_SHARD, .ranks = 2};
    p->comms[p->n_comm++] = (smp_comm){.name = "world", .group = SMP_GROUP_WORLD, .ranks = 2};
    uint16_t x[3];
    for (uint32_t i = 0; i < 3; i++) {
        x[i] = small_buffer(p, (smp_buffer){.bytes = 256, .scope = SMP_SCOPE_STEP});
    }
    (void)small_segment(p, "only");
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t which = swapped ? 1 - i : i;
        smp_task *task = small_task(p, which == 0 ? SMP_STREAM_UNSHARD : SMP_STREAM_REDUCE);
        task->op = which == 0 ? SMP_OP_ALL_GATHER : SMP_OP_ALL_REDUCE;
        task->comm = (uint8_t)which;
        small_whole(p, x[which], 0, "rw");
        if (chained) {
            small_whole(p, x[2], 0, "rw"); /* the second waits for the first */
        }
    }
    small_instance(p, 0, 0, 0, 0);
    finish(p);
    return p;
}

static smp_status verify_two(smp_program *a, smp_program *b)
{
    smp_program *programs[] = {a, b};
    smp_step step = {.programs = programs, .n_program = 2};
    return smp_step_verify(&step, errors);
}

static void classes_that_meet_agree(void **state)
{
    (void)state;
    smp_program *a = meeting_program(0, false, true), *b = meeting_program(1, false, true);
    check_ok(verify_two(a, b), errors);
    b->tasks[0].dims[0] = 2;
    check_fails(verify_two(a, b), SMP_SYSTEM, errors, "collective 0 on communicator unshard");
    b->tasks[0].dims[0] = 1;
    b->tasks[1].dtype = SMP_BF16;
    check_fails(verify_two(a, b), SMP_SYSTEM, errors, "communicator world differs");
    smp_arena_destroy(a->arena);
    smp_arena_destroy(b->arena);
}

/* Each communicator alone is in order, but the classes take the two in opposite orders and
 * each waits for its first one to end. */
static void opposite_orders_are_a_deadlock(void **state)
{
    (void)state;
    smp_program *a = meeting_program(0, false, true), *b = meeting_program(1, true, true);
    check_fails(verify_two(a, b), SMP_SYSTEM, errors, "deadlock: rank 0 never gets past t0");
    smp_arena_destroy(a->arena);
    smp_arena_destroy(b->arena);
    a = meeting_program(0, false, false);
    b = meeting_program(1, true, false); /* streams run apart: no harm */
    check_ok(verify_two(a, b), errors);
    smp_arena_destroy(a->arena);
    smp_arena_destroy(b->arena);
}

/* Two collectives of one communicator on two streams, with nothing between them. */
static void a_communicator_is_one_sequence(void **state)
{
    (void)state;
    smp_program *p = meeting_program(0, false, false);
    p->tasks[1].comm = 0;
    check_fails(smp_program_verify(p, errors), SMP_SYSTEM, errors, "on communicator unshard");
    p->tasks[1].comm = SMP_NO_COMM;
    check_fails(smp_program_verify(p, errors), SMP_SYSTEM, errors, "has a communicator");
    smp_arena_destroy(p->arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_ring_with_a_slot_less_fails),
        cmocka_unit_test(contents_written_over_are_found),
        cmocka_unit_test(places_outside_the_arena_are_found),
        cmocka_unit_test(malformed_waits_are_found),
        cmocka_unit_test(classes_that_meet_agree),
        cmocka_unit_test(opposite_orders_are_a_deadlock),
        cmocka_unit_test(a_communicator_is_one_sequence),
    };
    const char *filter = getenv("SMP_TEST_FILTER");
    if (filter != NULL) {
        cmocka_set_test_filter(filter);
    }
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
