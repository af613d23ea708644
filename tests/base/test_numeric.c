/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saturation, picoseconds, Philox against its published vectors, hashing.
 */
#include "config.h"

#include "tests/check.h"

#include "base/numeric.h"

#include <signal.h>
#include <sys/wait.h>

static void test_saturation(void **state)
{
    const uint64_t max = UINT64_MAX;

    (void)state;
    check_u64(smp_mul(0, max), 0);
    check_u64(smp_mul(max, 0), 0);
    check_u64(smp_mul(max, 1), max);
    check_u64(smp_mul(1ULL << 32, 1ULL << 31), 1ULL << 63);
    check_u64(smp_mul(1ULL << 32, 1ULL << 32), max);
    check_u64(smp_add(max - 1, 1), max);
    check_u64(smp_add(max, max), max);
    check_u64(smp_add(2, 3), 5);
    check_u64(smp_ceil_div(0, 7), 0);
    check_u64(smp_ceil_div(7, 7), 1);
    check_u64(smp_ceil_div(8, 7), 2);
    check_u64(smp_ceil_div(max, 2), 1ULL << 63);
    check_u64(smp_round_up(50257, 128), 50304);
    check_u64(smp_round_up(max, 2), max);
}

static void test_picoseconds(void **state)
{
    (void)state;
    check_i64(smp_ps_from_s(0.0), 0);
    check_i64(smp_ps_from_s(-0.0), 0);
    check_i64(smp_ps_from_s(1.0), 1000000000000);
    check_i64(smp_ps_from_s(1e-12), 1);
    check_i64(smp_ps_from_s(0.5e-12), 1);
    check_i64(smp_ps_from_s(0.49e-12), 0);
    check_i64(smp_ps_from_s(9e6), 9000000000000000000);
    check_rel(smp_s_from_ps(1500), 1.5e-9, 1e-15);
}

/* What is no time ends the process: the numbers after it would be wrong.  By SIGABRT where the
 * cost model is broken, with the status of a wrong input where that is absurd. */
static int ending(double seconds)
{
    pid_t child = fork();
    int status = 0;

    assert_true(child >= 0);
    if (child == 0) {
        (void)signal(SIGABRT, SIG_DFL); /* cmocka catches it */
        (void)freopen("/dev/null", "w", stderr);
        (void)smp_ps_from_s(seconds);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void check_aborts(double seconds)
{
    int status = ending(seconds);

    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void check_refused(double seconds)
{
    int status = ending(seconds);

    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == SMP_INPUT);
}

static void test_no_time(void **state)
{
    (void)state;
    check_aborts(-1e-9);
    check_aborts((double)NAN);
    check_refused((double)INFINITY);
    check_refused(9.3e6);
}

/* Known answers of Random123 1.09, file tests/kat_vectors, "philox4x32 10". */
static void test_philox(void **state)
{
    static const struct {
        uint64_t seed, high, low;
        uint32_t out[4];
    } known[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint32_t out[4];

        smp_random4(known[i].seed, known[i].high, known[i].low, out);
        for (int w = 0; w < 4; w++) {
            check_u64(out[w], known[i].out[w]);
        }
    }
}

/* Many counters at once are the same as one by one, over the end of a word as well. */
static void test_philox_many(void **state)
{
    static const uint64_t lows[] = {0, 5, 0xFFFFFFFAu, UINT64_MAX - 3};

    (void)state;
    for (size_t l = 0; l < sizeof lows / sizeof *lows; l++) {
        for (size_t n = 0; n <= 21; n++) {
            uint32_t out[4 * 22], one[4];

            memset(out, 0xA5, sizeof out);
            smp_random4_many(77 + l, 12345, lows[l], n, out);
            for (size_t i = 0; i < n; i++) {
                smp_random4(77 + l, 12345, lows[l] + i, one);
                assert_memory_equal(one, out + 4 * i, sizeof one);
            }
            assert_int_equal(out[4 * n], 0xA5A5A5A5u);
        }
    }
}

/* Stable over time (plan files and caches may hold it), sensitive to each bit. */
static void test_hash(void **state)
{
    unsigned char bytes[16] = {0};
    uint64_t zero = smp_hash(bytes, sizeof bytes, 0);

    (void)state;
    check_u64(smp_hash("", 0, 0), smp_hash(bytes, 0, 0));
    assert_true(smp_hash(bytes, 15, 0) != zero);
    assert_true(smp_hash(bytes, 16, 1) != zero);
    for (int bit = 0; bit < 128; bit++) {
        uint64_t changed;
        int flipped = 0;

        bytes[bit / 8] = (unsigned char)(1u << (bit % 8));
        changed = smp_hash(bytes, sizeof bytes, 0) ^ zero;
        bytes[bit / 8] = 0;
        for (; changed != 0; changed &= changed - 1) {
            flipped++;
        }
        assert_in_range(flipped, 12, 52); /* 32 expected, 5 standard deviations of 4 */
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_saturation), cmocka_unit_test(test_picoseconds),
    cmocka_unit_test(test_no_time),    cmocka_unit_test(test_philox),
    cmocka_unit_test(test_philox_many), cmocka_unit_test(test_hash),
};

CHECK_MAIN(tests)
