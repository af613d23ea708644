/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory plan and the waits, against definitions worked out by brute force over every
 * instance of small programs: live bytes, places of entries alive at once, reachability of
 * every conflicting pair, necessity of every wait.
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

/* One access of the expanded program. */
struct use {
    uint32_t position, place, buffer, stream;
    uint64_t key, low, high;
    bool reads, writes, whole;
    uint32_t life_start, life_end;
};

static struct use uses[1 << 16];
static uint32_t n_use, n_position;
static uint32_t stream_of[1 << 14], instance_of[1 << 14], first_of[1 << 14];

static void expand(const smp_program *p)
{
    n_use = n_position = 0;
    for (uint32_t i = 0; i < p->n_instance; i++) {
        const smp_segment *segment = &p->segments[p->order[i].segment];
        first_of[i] = n_position;
        for (uint32_t t = segment->task0; t < segment->task0 + segment->n_task; t++) {
            stream_of[n_position] = p->tasks[t].stream;
            instance_of[n_position] = i;
            for (uint32_t a = 0; a < p->tasks[t].n_access; a++) {
                const smp_access *access = &p->accesses[p->tasks[t].access0 + a];
                const smp_buffer *b = &p->buffers[access->buffer];
                uint32_t place = smp_place_of(b, &p->order[i], access->delta);
                uint64_t low = smp_buffer_address(p, b, &p->order[i], access->delta) +
                               access->offset_bytes;
                uses[n_use++] = (struct use){
                    .position = n_position, .place = place, .buffer = access->buffer,
                    .stream = p->tasks[t].stream, .low = low, .high = low + access->bytes,
                    .key = smp_entry_key(b, &p->order[i], i, access->delta),
                    .reads = access->reads, .writes = access->writes,
                    .whole = access->bytes == smp_place_bytes(b)};
            }
            n_position++;
        }
    }
}

static bool starts_anew(uint32_t u, uint32_t previous)
{
    bool whole = false;
    if (uses[previous].key != uses[u].key) {
        return true;
    }
    for (uint32_t v = 0; v < n_use; v++) { /* all of the task at this place */
        if (uses[v].position == uses[u].position && uses[v].buffer == uses[u].buffer &&
            uses[v].place == uses[u].place) {
            if (uses[v].reads) {
                return false;
            }
            whole = whole || uses[v].whole;
        }
    }
    return whole && uses[previous].position != uses[u].position;
}

/* Lives by their definition: from the first use to the last before another begins. */
static void find_lives(const smp_program *p)
{
    for (uint32_t u = 0; u < n_use; u++) {
        uint32_t previous = u;
        for (uint32_t v = u; v-- > 0 && previous == u;) {
            if (uses[v].buffer == uses[u].buffer && uses[v].place == uses[u].place) {
                previous = v;
            }
        }
        bool fresh = previous == u || starts_anew(u, previous);
        uses[u].life_start = fresh ? uses[u].position : uses[previous].life_start;
        if (p->buffers[uses[u].buffer].scope == SMP_SCOPE_STEP) {
            uses[u].life_start = 0;
        }
    }
    for (uint32_t u = n_use; u-- > 0;) {
        uses[u].life_end = uses[u].position;
        for (uint32_t v = u + 1; v < n_use; v++) {
            if (uses[v].buffer == uses[u].buffer && uses[v].place == uses[u].place) {
                if (uses[v].life_start == uses[u].life_start) {
                    uses[u].life_end = uses[v].life_end;
                }
                break;
            }
        }
    }
}

static uint64_t live_at(const smp_program *p, uint32_t position)
{
    static bool seen[64][8];
    uint64_t bytes = 0;
    memset(seen, 0, sizeof seen);
    for (uint32_t b = 0; b < p->n_buffer; b++) {
        const smp_buffer *buffer = &p->buffers[b];
        if (buffer->scope == SMP_SCOPE_STEP && buffer->space == SMP_SPACE_DEVICE) {
            bytes += buffer->bytes * smp_place_count(buffer);
        }
    }
    for (uint32_t u = 0; u < n_use; u++) {
        const smp_buffer *buffer = &p->buffers[uses[u].buffer];
        if (buffer->space == SMP_SPACE_DEVICE && buffer->scope != SMP_SCOPE_STEP &&
            uses[u].life_start <= position && position <= uses[u].life_end &&
            !seen[uses[u].buffer][uses[u].place]) {
            seen[uses[u].buffer][uses[u].place] = true;
            bytes += buffer->bytes;
        }
    }
    return bytes;
}

static bool overlap(const struct use *a, const struct use *b, const smp_program *p)
{
    return p->buffers[a->buffer].space == p->buffers[b->buffer].space && a->low < b->high &&
           b->low < a->high;
}

static void live_bytes_equal_a_sweep(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 250; seed++) {
        smp_program *p = small_random_program(seed);
        uint64_t peak = 0, by_kind = 0;
        check_ok(smp_program_plan_memory(p, errors), errors);
        expand(p);
        find_lives(p);
        for (uint32_t at = 0; at < n_position; at++) {
            uint64_t live = live_at(p, at);
            peak = live > peak ? live : peak;
        }
        for (uint32_t k = 0; k < SMP_KINDS; k++) {
            by_kind += p->live_kind_bytes[k];
        }
        check_u64(p->live_bytes, peak);
        check_u64(by_kind, peak);
        assert_true(p->arena_bytes >= peak);
        assert_true(p->safety_bytes <= p->arena_bytes);
        smp_arena_destroy(p->arena);
    }
}

static void what_is_alive_at_once_lies_apart(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 250; seed++) {
        smp_program *p = small_random_program(1000 + seed);
        check_ok(smp_program_plan_memory(p, errors), errors);
        expand(p);
        find_lives(p);
        for (uint32_t u = 0; u < n_use; u++) {
            for (uint32_t v = u + 1; v < n_use; v++) {
                if (uses[u].buffer == uses[v].buffer && uses[u].place == uses[v].place) {
                    continue;
                }
                if (uses[u].life_start <= uses[v].life_end &&
                    uses[v].life_start <= uses[u].life_end) {
                    assert_false(overlap(&uses[u], &uses[v], p));
                }
            }
        }
        smp_arena_destroy(p->arena);
    }
}

/* reach[i] has bit j when task i comes after task j: by its stream or by waits. */
static uint64_t reach[4096][64];

static void come_after(uint32_t later, uint32_t earlier)
{
    for (uint32_t w = 0; w < 64; w++) {
        reach[later][w] |= reach[earlier][w];
    }
    reach[later][earlier / 64] |= (uint64_t)1 << (earlier % 64);
}

static void find_reach(const smp_program *p)
{
    memset(reach, 0, sizeof reach);
    for (uint32_t i = 0; i < n_position; i++) {
        const smp_instance *it = &p->order[instance_of[i]];
        const smp_pattern *pattern = &p->patterns[it->pattern];
        for (uint32_t j = i; j-- > 0;) {
            if (stream_of[j] == stream_of[i]) {
                come_after(i, j);
                break;
            }
        }
        for (uint32_t w = pattern->wait0; w < pattern->wait0 + pattern->n_wait; w++) {
            if (p->waits[w].task == i - first_of[instance_of[i]]) {
                come_after(i, first_of[instance_of[i] - p->waits[w].back] + p->waits[w].source);
            }
        }
    }
}

static bool every_conflict_is_ordered(const smp_program *p)
{
    find_reach(p);
    for (uint32_t u = 0; u < n_use; u++) {
        for (uint32_t v = u + 1; v < n_use; v++) {
            uint32_t i = uses[u].position, j = uses[v].position;
            bool conflict = i != j && (uses[u].writes || uses[v].writes);
            if (conflict && overlap(&uses[u], &uses[v], p) &&
                (reach[j][i / 64] >> (i % 64) & 1) == 0) {
                return false;
            }
        }
    }
    return true;
}

/* Deletes wait number `w` of the table from its pattern, calls, and puts it back. */
static bool verifies_without(smp_program *p, uint32_t pattern, uint32_t w, bool *naive_p)
{
    smp_wait kept[64];
    smp_pattern *at = &p->patterns[pattern];
    assert_true(at->n_wait <= 64);
    memcpy(kept, p->waits + at->wait0, at->n_wait * sizeof *kept);
    memmove(p->waits + at->wait0 + w, kept + w + 1, (at->n_wait - w - 1) * sizeof *kept);
    at->n_wait--;
    bool good = smp_program_verify(p, errors) == SMP_OK;
    *naive_p = every_conflict_is_ordered(p);
    smp_errors_clear(errors);
    at->n_wait++;
    memcpy(p->waits + at->wait0, kept, at->n_wait * sizeof *kept);
    return good;
}

static void waits_are_enough_and_none_is_spare(void **state)
{
    (void)state;
    uint32_t n_deleted = 0;
    for (uint64_t seed = 0; seed < 300; seed++) {
        smp_program *p = small_random_program(5000 + seed);
        check_ok(smp_program_plan_memory(p, errors), errors);
        check_ok(smp_program_derive_waits(p, errors), errors);
        check_ok(smp_program_verify(p, errors), errors);
        expand(p);
        assert_true(n_position <= 4096);
        if (n_position <= 160) {
            assert_true(every_conflict_is_ordered(p));
        }
        for (uint32_t q = 0; q < p->n_pattern && n_position <= 160; q++) {
            for (uint32_t w = 0; w < p->patterns[q].n_wait; w++, n_deleted++) {
                bool naive;
                assert_false(verifies_without(p, q, w, &naive));
                assert_false(naive);
            }
        }
        smp_arena_destroy(p->arena);
    }
    assert_true(n_deleted > 1000);
}

static void thousands_of_programs_verify(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 3000; seed++) {
        smp_program *p = small_random_program(100000 + seed);
        check_ok(smp_program_plan_memory(p, errors), errors);
        check_ok(smp_program_derive_waits(p, errors), errors);
        check_ok(smp_program_verify(p, errors), errors);
        smp_arena_destroy(p->arena);
    }
}

/* gather(turn + 1) is issued before forward(turn); a ring of two slots.  So a gather waits
 * for the forward that used its slot, and a forward waits for its gather. */
static smp_program *ring_program(uint32_t n_turn)
{
    smp_program *p = small_create();
    uint16_t shard = small_buffer(p, (smp_buffer){.bytes = 256, .scope = SMP_SCOPE_STEP});
    uint16_t ring = small_buffer(p, (smp_buffer){
        .bytes = 1024, .index = SMP_INDEX_TURN, .slots = 2, .scope = SMP_SCOPE_MICROBATCH});
    uint16_t x = small_buffer(p, (smp_buffer){.bytes = 512, .scope = SMP_SCOPE_STEP});
    uint16_t scratch = small_buffer(p, (smp_buffer){.bytes = 256, .scope = SMP_SCOPE_INSTANCE});
    uint16_t gather = small_segment(p, "gather");
    small_task(p, SMP_STREAM_UNSHARD);
    small_whole(p, shard, 0, "r");
    small_whole(p, ring, 0, "w");
    uint16_t forward = small_segment(p, "forward");
    small_task(p, SMP_STREAM_COMPUTE);
    small_whole(p, ring, 0, "r");
    small_whole(p, scratch, 0, "w");
    small_task(p, SMP_STREAM_COMPUTE);
    small_whole(p, scratch, 0, "r");
    small_whole(p, x, 0, "rw");
    small_instance(p, gather, 0, 0, 0);
    for (uint32_t t = 0; t < n_turn; t++) {
        if (t + 1 < n_turn) {
            small_instance(p, gather, 0, 0, t + 1);
        }
        small_instance(p, forward, 0, 0, t);
    }
    return p;
}

/* Alive at once: static 256 + 512, two slots 2 x 1024 (turn t while t + 1 is gathered; in
 * the middle t is read, t + 1 is written), and scratch 256. */
static void a_ring_by_hand(void **state)
{
    (void)state;
    smp_program *p = ring_program(6);
    check_ok(smp_program_plan_memory(p, errors), errors);
    check_ok(smp_program_derive_waits(p, errors), errors);
    check_ok(smp_program_verify(p, errors), errors);
    check_u64(p->live_bytes, 256 + 512 + 2 * 1024 + 256);
    check_u64(p->arena_bytes, p->live_bytes);
    check_u64(p->safety_bytes, 0);
    /* order: g0 g1 f0 g2 f1 g3 f2 ... g5 f4 f5.  g0 and g1 wait for nothing; f0 and f5 for
     * their gathers 2 back, the others 3 back; g2 on for the last user of the slot, 1 back */
    check_u64(p->n_pattern, 4);
    const smp_pattern *none = &p->patterns[p->order[0].pattern];
    const smp_pattern *forward = &p->patterns[p->order[2].pattern];
    const smp_pattern *gather = &p->patterns[p->order[3].pattern];
    check_u64(none->n_wait, 0);
    check_u64(forward->n_wait, 1);
    check_u64(p->waits[forward->wait0].back, 2);
    check_u64(gather->n_wait, 1);
    check_u64(p->waits[gather->wait0].back, 1);
    check_u64(p->waits[gather->wait0].source, 0); /* only the first task reads the ring */
    smp_arena_destroy(p->arena);
}

/* Serial execution needs one slot at a time when the gather comes right before its use;
 * the second slot is there only so that streams overlap: that is the cost of safety. */
static void the_second_slot_is_safety(void **state)
{
    (void)state;
    smp_program *p = ring_program(1);
    for (uint32_t t = 1; t < 8; t++) {
        small_instance(p, 0, 0, 0, t);
        small_instance(p, 1, 0, 0, t);
    }
    check_ok(smp_program_plan_memory(p, errors), errors);
    check_u64(p->live_bytes, 256 + 512 + 1024 + 256);
    check_u64(p->arena_bytes, 256 + 512 + 2 * 1024 + 256);
    check_u64(p->safety_bytes, 1024);
    smp_arena_destroy(p->arena);
}

/* Many micro-batches cost no more patterns than a few. */
static void middle_micro_batches_repeat(void **state)
{
    (void)state;
    uint32_t n_pattern[2], n_wait[2];
    for (uint32_t k = 0; k < 2; k++) {
        smp_program *p = ring_program(1);
        p->n_instance = 0;
        for (uint32_t m = 0, turn = 0; m < (k == 0 ? 8u : 200u); m++) {
            for (uint32_t i = 0; i < 3; i++, turn++) { /* odd: the phase alternates */
                small_instance(p, 0, 0, m, turn);
                small_instance(p, 1, 0, m, turn);
            }
        }
        check_ok(smp_program_plan_memory(p, errors), errors);
        check_ok(smp_program_derive_waits(p, errors), errors);
        check_ok(smp_program_verify(p, errors), errors);
        n_pattern[k] = p->n_pattern;
        n_wait[k] = p->n_wait;
        smp_arena_destroy(p->arena);
    }
    check_u64(n_pattern[1], n_pattern[0]);
    check_u64(n_wait[1], n_wait[0]);
}

static void absurd_sizes_are_refused(void **state)
{
    (void)state;
    smp_program *p = small_create();
    (void)small_buffer(p, (smp_buffer){.bytes = UINT64_MAX, .scope = SMP_SCOPE_STEP});
    check_fails(smp_program_plan_memory(p, errors), SMP_INPUT, errors, "2^60 bytes");
    smp_arena_destroy(p->arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(live_bytes_equal_a_sweep),
        cmocka_unit_test(what_is_alive_at_once_lies_apart),
        cmocka_unit_test(waits_are_enough_and_none_is_spare),
        cmocka_unit_test(thousands_of_programs_verify),
        cmocka_unit_test(a_ring_by_hand),
        cmocka_unit_test(the_second_slot_is_safety),
        cmocka_unit_test(middle_micro_batches_repeat),
        cmocka_unit_test(absurd_sizes_are_refused),
    };
    const char *filter = getenv("SMP_TEST_FILTER");
    if (filter != NULL) {
        cmocka_set_test_filter(filter);
    }
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
