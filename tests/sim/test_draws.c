/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Imbalance of experts as a distribution: its expected value, its draws, and the times that
 * come of them.
 */
#include "config.h"

#include "tests/step/step_jobs.h"

#include "sim/sim.h"

#include <math.h>

/* The expected value is what draws have on average, and no draw is below 1. */
static void draws_have_their_mean(void **state)
{
    static const smp_imbalance all[] = {
        {SMP_IMBALANCE_CONSTANT, 1.5, 0},     {SMP_IMBALANCE_NORMAL, 1.5, 0.1},
        {SMP_IMBALANCE_NORMAL, 1, 0.5},       {SMP_IMBALANCE_NORMAL, 1.2, 0.3},
        {SMP_IMBALANCE_LOGNORMAL, 1.5, 0.25}, {SMP_IMBALANCE_LOGNORMAL, 1, 0.25},
        {SMP_IMBALANCE_NORMAL, 1.25, 0},
    };
    enum { N = 40000 };

    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        double sum = 0;

        for (uint64_t n = 0; n < N; n++) {
            const double x = smp_imbalance_draw(&all[i], 7, n % 100, n / 100);
            assert_true(x >= 1);
            sum += x;
        }
        /* four standard errors */
        assert_true(fabs(sum / N - smp_imbalance_mean(&all[i])) <=
                    4 * all[i].deviation / sqrt(N) + 1e-9);
    }
    /* E max(1, X) of X = N(1, s) is 1 + s / sqrt(2 pi) */
    check_rel(smp_imbalance_mean(&all[2]), 1 + 0.5 / sqrt(2 * acos(-1.0)), 1e-12);
    check_rel(smp_imbalance_mean(&all[4]), 1.5, 1e-12);
    assert_true(smp_imbalance_draw(&all[1], 7, 3, 5) == smp_imbalance_draw(&all[1], 7, 3, 5));
    assert_true(smp_imbalance_draw(&all[1], 7, 3, 5) != smp_imbalance_draw(&all[1], 8, 3, 5));
    assert_true(smp_imbalance_draw(&all[1], 7, 3, 5) != smp_imbalance_draw(&all[1], 7, 5, 3));
}

static int64_t step_ps(const char *settings)
{
    bench b;
    smp_simulation *simulation;
    int64_t ps;

    /* long enough for rows to matter more than launches */
    bench_open(&b, MIXTRAL(4, 8, 2), 8, 4096, 32, settings);
    bench_lower(&b);
    check_ok(smp_simulate(&b.job, b.step, b.errors, &simulation), b.errors);
    ps = smp_simulation_report(simulation)->step_ps;
    smp_simulation_destroy(simulation);
    bench_close(&b);
    return ps;
}

/* No deviation: the number.  A deviation: other times, the same for the same seed, near those
 * of the expected value.  Without expert parallelism rows do not vary. */
static void times_follow_the_draws(void **state)
{
    (void)state;
    const int64_t even = step_ps("expert_parallel_degree=4 micro_batch=2");
    const int64_t half = step_ps("expert_parallel_degree=4 micro_batch=2 imbalance=1.5");
    const int64_t drawn = step_ps("expert_parallel_degree=4 micro_batch=2 "
                                  "imbalance=normal:1.5,0.2");

    assert_true(half > even);
    check_i64(step_ps("expert_parallel_degree=4 micro_batch=2 imbalance=normal:1.5,0"), half);
    assert_true(drawn != half);
    assert_true(llabs(drawn - half) < (half - even));
    check_i64(step_ps("expert_parallel_degree=4 micro_batch=2 imbalance=normal:1.5,0.2"),
              drawn);
    assert_true(step_ps("expert_parallel_degree=4 micro_batch=2 imbalance=normal:1.5,0.2 "
                        "random_seed=7") != drawn);
    assert_true(step_ps("expert_parallel_degree=4 micro_batch=2 "
                        "imbalance=lognormal:1.5,0.2") != drawn);
    check_i64(step_ps("expert_parallel_degree=1 imbalance=normal:1.5,0.2"),
              step_ps("expert_parallel_degree=1"));
    /* experts that are always full have nothing to draw */
    check_i64(step_ps("expert_parallel_degree=4 capacity_factor=1 capacity_pad=true "
                      "imbalance=normal:1.5,0.2"),
              step_ps("expert_parallel_degree=4 capacity_factor=1 capacity_pad=true"));
}

/* Memory is that of the bound, whatever is drawn. */
static void memory_does_not_follow_them(void **state)
{
    static const char *const settings[] = {
        "expert_parallel_degree=4", "expert_parallel_degree=4 imbalance=lognormal:1.4,0.5"};
    uint64_t bytes[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        bench b;

        bench_open(&b, MIXTRAL(4, 8, 2), 8, S, 8, settings[i]);
        bench_lower(&b);
        bytes[i] = b.step->programs[0]->arena_bytes;
        bench_close(&b);
    }
    check_u64(bytes[0], bytes[1]);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(draws_have_their_mean),
    cmocka_unit_test(times_follow_the_draws),
    cmocka_unit_test(memory_does_not_follow_them),
};
CHECK_MAIN(tests)
