/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Amounts, times and lists of numbers as they are typed, and what is refused.
 */
#include "config.h"

#include "tests/check.h"

#include "tools/quantity.h"

static void test_amounts(void **state)
{
    (void)state;
    static const struct { const char *text; double value; } good[] = {
        {"1T", 1e12}, {"15.6T", 15.6e12}, {"300B", 3e11}, {"300G", 3e11}, {"2.5M", 2.5e6},
        {"10k", 1e4}, {"10K", 1e4}, {"1e12", 1e12}, {"1", 1}, {"1P", 1e15},
    };
    static const char *const bad[] = {"", "T", "-1", "+1", "0", "1x", "1 T", "1TT", "nan",
                                      "inf", "0x10", "1e400", "1e19", "1e-400", "1d"};
    smp_errors *errors = smp_errors_create();
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        double value = 0;
        check_ok(cli_amount("--tokens", good[i].text, errors, &value), errors);
        check_rel(value, good[i].value, 1e-15);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        double value = 7;
        check_fails(cli_amount("--tokens", bad[i], errors, &value), SMP_INPUT, errors,
                    "--tokens: '");
        assert_true(value > 6.9 && value < 7.1);
        smp_errors_clear(errors);
    }
    smp_errors_destroy(errors);
}

static void test_durations(void **state)
{
    (void)state;
    static const struct { const char *text; double seconds; } good[] = {
        {"30d", 30 * 86400.0}, {"36h", 36 * 3600.0}, {"2w", 14 * 86400.0},
        {"90min", 5400}, {"600s", 600}, {"0.5d", 43200},
    };
    static const char *const bad[] = {"", "30", "30m", "0d", "-1d", "1y", "d", "200000w"};
    smp_errors *errors = smp_errors_create();
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        double seconds = 0;
        check_ok(cli_duration("--within", good[i].text, errors, &seconds), errors);
        check_rel(seconds, good[i].seconds, 1e-15);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        double seconds = 0;
        check_fails(cli_duration("--within", bad[i], errors, &seconds), SMP_INPUT, errors,
                    "unit");
        smp_errors_clear(errors);
    }
    smp_errors_destroy(errors);
}

static void check_counts(const char *text, const uint32_t *expected, size_t n)
{
    smp_errors *errors = smp_errors_create();
    cli_counts counts = {0};
    check_ok(cli_counts_read("--gpus", text, errors, &counts), errors);
    check_u64(counts.n, n);
    for (size_t i = 0; i < n; i++) {
        check_u64(counts.values[i], expected[i]);
    }
    cli_counts_free(&counts);
    smp_errors_destroy(errors);
}

static void test_counts(void **state)
{
    (void)state;
    check_counts("8", (const uint32_t[]){8}, 1);
    check_counts("1,8,64", (const uint32_t[]){1, 8, 64}, 3);
    check_counts("6..9", (const uint32_t[]){6, 7, 8, 9}, 4);
    check_counts("8..31/8", (const uint32_t[]){8, 16, 24}, 3);
    check_counts("1,2,4..8/2,65536", (const uint32_t[]){1, 2, 4, 6, 8, 65536}, 6);
    static const char *const bad[] = {"", "0", "8,", ",8", "8,8", "8,4", "8..4", "8...9",
                                      "8..9/0", "65537", "99999999999", "-8", "8 9", "x",
                                      "1..8,8", "1..8/"};
    smp_errors *errors = smp_errors_create();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cli_counts counts = {0};
        check_fails(cli_counts_read("--gpus", bad[i], errors, &counts), SMP_INPUT, errors,
                    "whole numbers");
        assert_null(counts.values);
        smp_errors_clear(errors);
    }
    smp_errors_destroy(errors);
}

static void test_seconds(void **state)
{
    (void)state;
    static const struct { const char *text; double seconds; } good[] = {
        {"1s", 1}, {"0", 0}, {"0.25", 0.25}, {"500ms", 0.5}, {"2min", 120}, {"1h", 3600},
        {"1e3", 1000}};
    static const char *const bad[] = {"", "s", "-1", "1d", "1 s", "0x10", "1e10", "nan", "0s"};
    smp_errors *errors = smp_errors_create();
    double seconds = -1;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        check_ok(cli_seconds("--deadline", good[i].text, errors, &seconds), errors);
        check_rel(seconds, good[i].seconds, 1e-15);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        check_fails(cli_seconds("--deadline", bad[i], errors, &seconds), SMP_INPUT, errors,
                    "--deadline");
    }
    smp_errors_destroy(errors);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_seconds),
    cmocka_unit_test(test_amounts),
    cmocka_unit_test(test_durations),
    cmocka_unit_test(test_counts),
};

CHECK_MAIN(tests)
