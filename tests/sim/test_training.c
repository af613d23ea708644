/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Failures, checkpoint intervals and training runs: closed forms against their own optimum,
 * against simulated months, and against hand-made cases.
 */
#ifdef HAVE_CONFIG_H
#include "config.h" /* open_memstream of POSIX 2008 */
#endif

#include "tests/sim/small_job.h"

#include "base/numeric.h"
#include "sim/training.h"

#include <cjson/cJSON.h>
#include <math.h>

static const double hour_s = 3600;

static double uniform(uint64_t seed, uint64_t n)
{
    uint32_t words[4];
    smp_random4(seed, 3, n, words);
    return ((double)words[0] + 0.5) * 0x1p-32;
}

static smp_failures random_failures(uint64_t seed)
{
    return (smp_failures){.mtbf_s = exp(4 + 10 * uniform(seed, 0)),
                          .save_s = exp(-4 + 9 * uniform(seed, 1)),
                          .restart_s = 1000 * uniform(seed, 2)};
}

/* No other interval does better. */
static void best_interval_is_best(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 2000; seed++) {
        const smp_failures f = random_failures(seed);
        const double best_s = smp_failures_best_s(&f);
        const double goodput = smp_failures_goodput(&f, best_s);
        assert_true(best_s > 0 && goodput > 0 && goodput < 1);
        for (double factor = 0.25; factor < 4.1; factor *= 1.3) {
            assert_true(smp_failures_goodput(&f, best_s * factor) <= goodput * (1 + 1e-12));
        }
    }
}

/* Young's and Daly's rules are expansions in C / M: exact in the limit, Daly's sooner. */
static void rules_of_first_order(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 2000; seed++) {
        smp_failures f = random_failures(seed);
        f.save_s = f.mtbf_s * 1e-3 * uniform(seed, 4);
        const double x = sqrt(f.save_s / f.mtbf_s);
        const double best_s = smp_failures_best_s(&f);
        const double young = fabs(smp_failures_young_s(&f) / best_s - 1);
        const double daly = fabs(smp_failures_daly_s(&f) / best_s - 1);
        assert_true(young <= x + 1e-6);
        assert_true(daly <= x * x * x + 1e-6);
        assert_true(daly <= young + 1e-6);
    }
    const smp_failures hopeless = {.mtbf_s = 10, .save_s = 30};
    assert_true(smp_failures_daly_s(&hopeless) == 10); /* his bound: no better than M */
}

/* Intervals that Daly gives with his figures 3 to 5, for dumps of five minutes. */
static void published_intervals(void **state)
{
    (void)state;
    static const struct { double mtbf_min, interval_min, tolerance; } cases[] = {
        {24 * 60, 117, 0.5}, {6 * 60, 57, 0.5}, {15, 9.1, 0.05}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const smp_failures f = {.mtbf_s = 60 * cases[i].mtbf_min, .save_s = 300,
                                .restart_s = 600};
        assert_true(fabs(smp_failures_daly_s(&f) / 60 - cases[i].interval_min) <
                    cases[i].tolerance);
        check_rel(smp_failures_best_s(&f) / 60, cases[i].interval_min, 0.02);
    }
}

/* Without failures worth the name only saving costs; with more of anything, goodput falls. */
static void limits_of_goodput(void **state)
{
    (void)state;
    const smp_failures rare = {.mtbf_s = 1e15, .save_s = 10, .restart_s = 100};
    assert_true(fabs(smp_failures_goodput(&rare, 90) - 0.9) < 1e-9);
    /* M = 1, C = R = 0: interval / (e^interval - 1) */
    const smp_failures unit = {.mtbf_s = 1};
    assert_true(fabs(smp_failures_goodput(&unit, 1) - 1 / (exp(1) - 1)) < 1e-15);
    for (uint64_t seed = 0; seed < 200; seed++) {
        const smp_failures f = random_failures(seed);
        const double interval_s = smp_failures_best_s(&f);
        smp_failures worse[3] = {f, f, f};
        worse[0].mtbf_s *= 0.9;
        worse[1].save_s *= 1.1;
        worse[2].restart_s += 1;
        for (int i = 0; i < 3; i++) {
            assert_true(smp_failures_goodput(&worse[i], interval_s) <
                        smp_failures_goodput(&f, interval_s));
        }
    }
}

/* The mean of simulated spans is the closed form: within five standard errors, and what the
 * ends of a span do to it (one segment, one restart). */
static void simulation_agrees(void **state)
{
    (void)state;
    static const smp_failures cases[] = {{3 * 3600, 30, 600}, {3 * 3600, 120, 1800},
                                         {1000, 100, 300}, {86400, 5, 60}};
    enum { RUNS = 400 };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const smp_failures *f = &cases[i];
        const double span_s = 2000 * f->mtbf_s;
        for (double scale = 0.5; scale < 3; scale *= 2) {
            const double interval_s = scale * smp_failures_best_s(f);
            double sum = 0;
            double squares = 0;
            for (uint64_t run = 0; run < RUNS; run++) {
                const double share = smp_failures_simulate(f, interval_s, span_s, 9, run);
                sum += share / RUNS;
                squares += share * share / RUNS;
            }
            const double error = sqrt((squares - sum * sum) / RUNS);
            const double ends = (interval_s + f->save_s + f->restart_s) / span_s;
            assert_true(fabs(sum - smp_failures_goodput(f, interval_s)) < 5 * error + ends);
        }
    }
}

/* The simulated months themselves are best near the best interval. */
static void simulation_prefers_the_best_interval(void **state)
{
    (void)state;
    const smp_failures f = {.mtbf_s = 3 * 3600, .save_s = 60, .restart_s = 600};
    const double best_s = smp_failures_best_s(&f);
    double mean[3] = {0, 0, 0};
    static const double scale[3] = {0.3, 1, 3};
    for (int i = 0; i < 3; i++) {
        for (uint64_t run = 0; run < 200; run++) {
            mean[i] += smp_failures_simulate(&f, scale[i] * best_s, 720 * hour_s, 4, run) / 200;
        }
    }
    assert_true(mean[1] > mean[0] && mean[1] > mean[2]);
}

static void training_adds_up(void **state)
{
    (void)state;
    /* 1001 tokens at 100 a step are 11 steps; at 36 s and half the time lost, 792 s */
    const smp_training t = smp_training_estimate(1001, 100, 36, 0.5, 50, 2.0);
    assert_true(fabs(t.steps - 11) < 1e-12);
    assert_true(fabs(t.days - 792.0 / 86400) < 1e-12);
    assert_true(fabs(t.gpu_hours - 11) < 1e-12);
    assert_true(fabs(t.money - 22) < 1e-12);
}

/* ---------------------------------------------------------------- with a report */

static cJSON *print_json(small_job *s, const smp_what_ifs *w)
{
    char *text = NULL;
    size_t n = 0;
    FILE *stream = open_memstream(&text, &n);
    assert_non_null(stream);
    check_ok(smp_simulation_print_with(s->simulation, w, true, stream, s->errors), s->errors);
    fclose(stream);
    cJSON *json = cJSON_Parse(text);
    assert_non_null(json);
    free(text);
    return json;
}

static double number(const cJSON *json, const char *a, const char *b)
{
    const cJSON *value = cJSON_GetObjectItem(cJSON_GetObjectItem(json, a), b);
    assert_true(cJSON_IsNumber(value));
    return value->valuedouble;
}

static void answers_stand_in_the_report(void **state)
{
    (void)state;
    small_job *s = small_case_simulate(1);
    smp_what_if_options o;
    smp_what_ifs *w = NULL;
    smp_what_if_options_init(&o);
    static const char *const slow[] = {"3:1.5"};
    o.jitter = "0.05,0.1";
    o.slow_ranks = slow;
    o.n_slow_rank = 1;
    o.mtbf_h = 1000;
    o.tokens = 1e9;
    check_ok(smp_what_ifs_find(s->simulation, &o, s->errors, &w), s->errors);
    cJSON *json = print_json(s, w);
    assert_true(number(json, "ranks_apart", "slowdown") > 1);
    assert_true(number(json, "ranks_apart", "last_rank") < 8);
    const double goodput = number(json, "failures", "goodput");
    assert_true(goodput > 0.9 && goodput < 1);
    assert_true(number(json, "training", "goodput") == goodput);
    assert_true(number(json, "training", "steps") == ceil(1e9 / (512 * 16)));
    cJSON_Delete(json);
    smp_what_ifs_destroy(w);
    small_job_free(s);
}

static void bad_options_are_named(void **state)
{
    (void)state;
    small_job *s = small_case_simulate(1);
    static const char *const bad_jitter[] = {"", "x", "-1", "11", "0.1,", "0.1,0.2,0.3", "nan"};
    static const char *const bad_slow[] = {"", "1", "1:", "8:2", "-1:2", "1:0", "1:-2", "1:2x",
                                           "1:nan", "1:1e9"};
    smp_what_ifs *w = NULL;
    smp_what_if_options o;
    for (size_t i = 0; i < sizeof bad_jitter / sizeof bad_jitter[0]; i++) {
        smp_what_if_options_init(&o);
        o.jitter = bad_jitter[i];
        check_fails(smp_what_ifs_find(s->simulation, &o, s->errors, &w), SMP_INPUT, s->errors,
                    "--jitter");
    }
    for (size_t i = 0; i < sizeof bad_slow / sizeof bad_slow[0]; i++) {
        smp_what_if_options_init(&o);
        o.slow_links = &bad_slow[i];
        o.n_slow_link = 1;
        check_fails(smp_what_ifs_find(s->simulation, &o, s->errors, &w), SMP_INPUT, s->errors,
                    "RANK:FACTOR");
    }
    smp_what_if_options_init(&o);
    o.mtbf_h = 0.001;
    check_fails(smp_what_ifs_find(s->simulation, &o, s->errors, &w), SMP_INPUT, s->errors,
                "--mtbf");
    small_job_free(s);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(best_interval_is_best),
    cmocka_unit_test(rules_of_first_order),
    cmocka_unit_test(published_intervals),
    cmocka_unit_test(limits_of_goodput),
    cmocka_unit_test(simulation_agrees),
    cmocka_unit_test(simulation_prefers_the_best_interval),
    cmocka_unit_test(training_adds_up),
    cmocka_unit_test(answers_stand_in_the_report),
    cmocka_unit_test(bad_options_are_named),
};
CHECK_MAIN(tests)
