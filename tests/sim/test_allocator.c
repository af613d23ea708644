/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps replayed through the caching allocator: against the memory plan's own count of live
 * bytes, and in order.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "tests/sim/small_job.h"

#include "sim/what_if.h"

static smp_allocator_answer find(small_job *s)
{
    smp_allocator_answer answer;
    check_ok(smp_allocator_answer_find(s->simulation, "caching", s->errors, &answer),
             s->errors);
    return answer;
}

/* Tensors that live as long as the plan's entries: at their peak they are what the plan calls
 * live, which it finds by a sweep of its own. */
static void asks_for_what_is_live(void **state)
{
    (void)state;
    for (size_t i = 0; i < SMALL_CASES; i++) {
        small_job *s = small_case_simulate(i);
        const smp_allocator_answer a = find(s);
        const smp_program *p = s->step->programs[s->simulation->fullest];
        for (int k = 0; k < SMP_ALLOCATOR_ROWS; k++) {
            check_u64(a.rows[k].live_bytes, p->live_bytes);
        }
        small_job_free(s);
    }
}

static void sizes_are_ordered(void **state)
{
    (void)state;
    for (size_t i = 0; i < SMALL_CASES; i++) {
        small_job *s = small_case_simulate(i);
        const smp_allocator_answer a = find(s);
        for (int k = 0; k < SMP_ALLOCATOR_ROWS; k++) {
            const smp_allocator_row *row = &a.rows[k];
            assert_true(row->live_bytes <= row->allocated_bytes);
            assert_true(row->allocated_bytes <= row->active_bytes);
            assert_true(row->active_bytes <= row->reserved_bytes);
            assert_true(row->reserved_bytes <= a.capacity_bytes);
            check_u64(row->flushes, 0); /* these jobs are tiny */
            check_u64(row->failures, 0);
        }
        /* A host that waits never holds more than one that runs ahead. */
        assert_true(a.rows[0].active_bytes <= a.rows[1].active_bytes);
        assert_true(a.rows[2].active_bytes <= a.rows[3].active_bytes);
        small_job_free(s);
    }
}

/* The warning counts what the table counts. */
static void check_warning(const small_job *s, uint64_t flushes, uint64_t failures)
{
    char *text = NULL;
    size_t size = 0;
    char part[64];
    FILE *stream = open_memstream(&text, &size);
    smp_errors_print(s->errors, "test", stream);
    (void)fclose(stream);
    snprintf(part, sizeof part, "flushes its cache %" PRIu64 " times a step%s", flushes,
             failures > 0 ? "" : " (");
    assert_non_null(strstr(text, part));
    snprintf(part, sizeof part, ", and %" PRIu64 " times still finds no memory", failures);
    assert_int_equal(strstr(text, part) != NULL, failures > 0);
    free(text);
}

/* The device of a card that is nearly full: the cache is flushed, and the collector is told. */
static void flushes_are_told(void **state)
{
    (void)state;
    small_job *s = small_job_read("configs/clusters/dgx-h100.json", 8, 64,
                                  "limit_all_gathers=false micro_batch=2");
    small_job_simulate(s);
    const smp_allocator_answer roomy = find(s);
    check_u64(roomy.rows[1].flushes, 0);
    check_u64(smp_warnings_count(s->errors), 0);
    smp_memory *m = &s->simulation->report.memory;
    m->capacity_bytes = m->parts.context_bytes + m->parts.communication_bytes +
                        (roomy.rows[1].allocated_bytes + roomy.rows[1].reserved_bytes) / 2;
    const smp_allocator_answer tight = find(s);
    assert_true(tight.rows[1].flushes > 0);
    assert_true(tight.rows[1].reserved_bytes <= tight.capacity_bytes);
    check_u64(smp_warnings_count(s->errors), 1);
    assert_true(tight.rows[1].failures <= tight.rows[1].flushes);
    check_warning(s, tight.rows[1].flushes, tight.rows[1].failures);
    smp_allocator_warn(s->simulation, s->errors);
    check_u64(smp_warnings_count(s->errors), 2);
    /* not even room for what is live */
    m->capacity_bytes -= (roomy.rows[1].allocated_bytes + roomy.rows[1].reserved_bytes) / 4;
    const smp_allocator_answer none = find(s);
    assert_true(none.rows[1].failures > 0);
    assert_true(none.rows[1].failures <= none.rows[1].flushes);
    check_warning(s, none.rows[1].flushes, none.rows[1].failures);
    check_u64(smp_warnings_count(s->errors), 3);
    s->job.settings.fsdp_cache_flush_warnings = false;
    smp_allocator_warn(s->simulation, s->errors);
    check_u64(smp_warnings_count(s->errors), 3);
    small_job_free(s);
}

static void other_allocators_are_refused(void **state)
{
    (void)state;
    small_job *s = small_case_simulate(0);
    smp_allocator_answer answer;
    check_fails(smp_allocator_answer_find(s->simulation, "arena", s->errors, &answer),
                SMP_INPUT, s->errors, "--allocator");
    small_job_free(s);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(asks_for_what_is_live),
    cmocka_unit_test(sizes_are_ordered),
    cmocka_unit_test(flushes_are_told),
    cmocka_unit_test(other_allocators_are_refused),
};
CHECK_MAIN(tests)
