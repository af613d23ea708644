/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The emulated caching allocator: sequences worked by hand from its rules, and what holds for
 * any sequence.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "tests/check.h"

#include "base/arena.h"
#include "base/numeric.h"
#include "sim/caching.h"

#define MIB ((uint64_t)1 << 20)

static smp_caching *create(uint64_t capacity_bytes, bool expandable)
{
    const smp_caching_options o = {.capacity_bytes = capacity_bytes, .expandable = expandable};
    return smp_caching_create(&o);
}

static uint32_t take(smp_caching *c, uint32_t stream, uint64_t bytes, int64_t now_ps)
{
    return smp_caching_malloc(c, stream, bytes, &now_ps);
}

static void check_stats(const smp_caching *c, uint64_t live, uint64_t allocated,
                        uint64_t reserved)
{
    const smp_caching_stats s = smp_caching_stats_of(c);
    check_u64(s.live_bytes, live);
    check_u64(s.allocated_bytes, allocated);
    check_u64(s.reserved_bytes, reserved);
}

/* ------------------------------------------------------------------- by hand */

static void rounding_and_segments(void **state)
{
    (void)state;
    smp_caching *c = create(1024 * MIB, false);
    (void)take(c, 0, 100, 0);           /* 512 of a small segment */
    check_stats(c, 100, 512, 2 * MIB);
    (void)take(c, 0, MIB, 0);           /* the same segment */
    check_stats(c, 100 + MIB, 512 + MIB, 2 * MIB);
    (void)take(c, 0, MIB, 0);           /* does not fit beside them */
    check_stats(c, 100 + 2 * MIB, 512 + 2 * MIB, 4 * MIB);
    (void)take(c, 0, MIB + 1, 0);       /* a large one: 20 MiB, split */
    check_stats(c, 101 + 3 * MIB, 1024 + 3 * MIB, 24 * MIB);
    (void)take(c, 0, 9 * MIB, 0);       /* from what is left of it */
    check_stats(c, 101 + 12 * MIB, 1024 + 12 * MIB, 24 * MIB);
    (void)take(c, 0, 15 * MIB, 0);      /* 16 MiB of its own; the 1 MiB left is not split off */
    check_stats(c, 101 + 27 * MIB, 1024 + 28 * MIB, 40 * MIB);
    check_u64(smp_caching_stats_of(c).segments, 4);
    smp_caching_destroy(c);
}

static void blocks_belong_to_streams(void **state)
{
    (void)state;
    smp_caching *c = create(1024 * MIB, false);
    const uint32_t a = take(c, 0, 16 * MIB, 0);
    smp_caching_free(c, a, 0);
    (void)take(c, 1, 14 * MIB, 0);      /* another stream: another segment */
    check_stats(c, 14 * MIB, 14 * MIB, 30 * MIB);
    (void)take(c, 0, 14 * MIB, 0);      /* its own: 2 MiB are split off */
    check_stats(c, 28 * MIB, 28 * MIB, 30 * MIB);
    smp_caching_destroy(c);
}

static void other_streams_delay_reuse(void **state)
{
    (void)state;
    smp_caching *c = create(1024 * MIB, false);
    const uint32_t a = take(c, 0, 16 * MIB, 0);
    smp_caching_record(c, a, 0);        /* its own stream does not count */
    smp_caching_record(c, a, 3);
    smp_caching_free(c, a, 100);
    check_stats(c, 0, 0, 16 * MIB);
    check_u64(smp_caching_stats_of(c).active_bytes, 16 * MIB);
    const uint32_t b = take(c, 0, 16 * MIB, 99);
    check_stats(c, 16 * MIB, 16 * MIB, 32 * MIB);
    const uint32_t again = take(c, 0, 16 * MIB, 100);
    check_stats(c, 32 * MIB, 32 * MIB, 32 * MIB);
    assert_true(smp_caching_address(c, again) != smp_caching_address(c, b));
    smp_caching_destroy(c);
}

/* Two free segments of 20 MiB do not make one of 40: the cache is flushed.  Expandable
 * segments lie behind each other and do. */
static void fragmentation_and_flushes(void **state)
{
    (void)state;
    for (int expandable = 0; expandable < 2; expandable++) {
        smp_caching *c = create(60 * MIB, expandable);
        const uint32_t a = take(c, 0, 20 * MIB, 0);
        const uint32_t b = take(c, 0, 20 * MIB, 0);
        check_stats(c, 40 * MIB, 40 * MIB, 40 * MIB);
        smp_caching_free(c, a, 0);
        smp_caching_free(c, b, 0);
        (void)take(c, 0, 40 * MIB, 0);
        check_stats(c, 40 * MIB, 40 * MIB, 40 * MIB);
        check_u64(smp_caching_stats_of(c).flushes, expandable ? 0 : 1);
        smp_caching_destroy(c);
    }
}

/* A flush waits for events, and what does not fit after it fails. */
static void flushes_wait(void **state)
{
    (void)state;
    smp_caching *c = create(40 * MIB, false);
    const uint32_t a = take(c, 0, 30 * MIB, 0);
    smp_caching_record(c, a, 1);
    smp_caching_free(c, a, 700);
    int64_t now_ps = 5;
    const uint32_t b = smp_caching_malloc(c, 1, 30 * MIB, &now_ps);
    assert_true(b != SMP_CACHING_NONE);
    check_i64(now_ps, 700);
    check_stats(c, 30 * MIB, 30 * MIB, 30 * MIB);
    assert_true(smp_caching_malloc(c, 0, 12 * MIB, &now_ps) == SMP_CACHING_NONE);
    check_u64(smp_caching_stats_of(c).flushes, 2);
    check_u64(smp_caching_stats_of(c).failures, 1);
    smp_caching_destroy(c);
}

static void expandable_units(void **state)
{
    (void)state;
    smp_caching *c = create(1024 * MIB, true);
    const uint32_t a = take(c, 0, MIB + 1, 0);  /* one unit of 20 MiB */
    check_stats(c, MIB + 1, MIB + 512, 20 * MIB);
    const uint32_t b = take(c, 0, 30 * MIB, 0); /* 19 MiB - 512 are there: one more unit */
    check_stats(c, 31 * MIB + 1, 31 * MIB + 512, 40 * MIB);
    check_u64(smp_caching_address(c, b), smp_caching_address(c, a) + MIB + 512);
    (void)take(c, 0, 9 * MIB - 512, 0);         /* to the last byte */
    check_stats(c, 40 * MIB - 511, 40 * MIB, 40 * MIB);
    smp_caching_free(c, b, 0);
    smp_caching_empty(c, 0);                    /* 1 MiB + 512 to 31 MiB: no whole unit */
    check_stats(c, 10 * MIB - 511, 10 * MIB, 40 * MIB);
    smp_caching_free(c, a, 0);
    smp_caching_empty(c, 0);                    /* the first unit is free now */
    check_stats(c, 9 * MIB - 512, 9 * MIB - 512, 20 * MIB);
    (void)take(c, 0, 25 * MIB, 0);              /* 11 MiB + 512 free behind the hole */
    check_stats(c, 34 * MIB - 512, 34 * MIB - 512, 40 * MIB);
    smp_caching_destroy(c);
}

static void max_split_keeps_large_blocks(void **state)
{
    (void)state;
    const smp_caching_options o = {.capacity_bytes = 1024 * MIB, .max_split_bytes = 64 * MIB};
    smp_caching *c = smp_caching_create(&o);
    smp_caching_free(c, take(c, 0, 100 * MIB, 0), 0);
    (void)take(c, 0, 30 * MIB, 0);      /* below the limit: not from the block above it */
    check_stats(c, 30 * MIB, 30 * MIB, 130 * MIB);
    (void)take(c, 0, 79 * MIB, 0);      /* 21 MiB too many; 20 would do */
    check_stats(c, 109 * MIB, 110 * MIB, 210 * MIB);
    (void)take(c, 0, 81 * MIB, 0);      /* the whole block */
    check_stats(c, 190 * MIB, 210 * MIB, 210 * MIB);
    smp_caching_destroy(c);
}

/* ---------------------------------------------------------------- any sequence */

enum { MOST = 120, STEPS = 1500 };

static uint32_t roll(uint64_t seed, uint64_t *count, uint32_t below)
{
    uint32_t words[4];
    smp_random4(seed, 5, (*count)++, words);
    return words[0] % below;
}

static void check_disjoint(const smp_caching *c, const uint32_t *held, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = 0; j < i; j++) {
            const uint64_t a = smp_caching_address(c, held[i]);
            const uint64_t b = smp_caching_address(c, held[j]);
            assert_true(a + smp_caching_size(c, held[i]) <= b ||
                        b + smp_caching_size(c, held[j]) <= a);
        }
    }
}

static void run_random(uint64_t seed)
{
    uint64_t count = 0;
    const uint64_t capacity = (64 + roll(seed, &count, 2000)) * MIB;
    smp_caching *c = create(capacity, roll(seed, &count, 2));
    uint32_t held[MOST];
    uint32_t n = 0;
    int64_t now_ps = 0;
    for (uint32_t step = 0; step < STEPS; step++) {
        now_ps += roll(seed, &count, 10);
        if (n < MOST && roll(seed, &count, 9) < 5) {
            const uint64_t bytes = (uint64_t)1 << roll(seed, &count, 27);
            const uint64_t more = roll(seed, &count, (uint32_t)bytes);
            const uint32_t got = smp_caching_malloc(c, roll(seed, &count, 3), bytes + more,
                                                    &now_ps);
            if (got != SMP_CACHING_NONE) {
                assert_true(smp_caching_size(c, got) >= bytes + more);
                held[n++] = got;
            }
        } else if (n > 0) {
            const uint32_t i = roll(seed, &count, n);
            smp_caching_record(c, held[i], roll(seed, &count, 3));
            smp_caching_free(c, held[i], now_ps + roll(seed, &count, 60));
            held[i] = held[--n];
        }
        const smp_caching_stats s = smp_caching_stats_of(c);
        assert_true(s.live_bytes <= s.allocated_bytes && s.allocated_bytes <= s.active_bytes);
        assert_true(s.active_bytes <= s.reserved_bytes && s.reserved_bytes <= capacity);
        if (step % 50 == 0) {
            check_disjoint(c, held, n);
        }
    }
    while (n > 0) {
        smp_caching_free(c, held[--n], now_ps);
    }
    check_stats(c, 0, 0, smp_caching_stats_of(c).reserved_bytes);
    smp_caching_empty(c, now_ps + 100);
    check_stats(c, 0, 0, 0);
    check_u64(smp_caching_stats_of(c).active_bytes, 0);
    smp_caching_destroy(c);
}

static void holds_for_any_sequence(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 100; seed++) {
        run_random(seed);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(rounding_and_segments),
    cmocka_unit_test(blocks_belong_to_streams),
    cmocka_unit_test(other_streams_delay_reuse),
    cmocka_unit_test(fragmentation_and_flushes),
    cmocka_unit_test(flushes_wait),
    cmocka_unit_test(expandable_units),
    cmocka_unit_test(max_split_keeps_large_blocks),
    cmocka_unit_test(holds_for_any_sequence),
};
CHECK_MAIN(tests)
