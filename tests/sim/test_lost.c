/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lost ranks: whom they take with them, and what is left against a job of that size.
 */
#include "config.h"

#include "tests/sim/small_job.h"

#include "sim/what_if.h"

static const char *const cluster = "configs/clusters/dgx-h100.json";
static const char *const settings = "tensor_parallel_degree=2 hybrid_shard_degree=4";

static smp_lost_answer lose(const small_job *s, const char *const *ranks, size_t n)
{
    smp_what_if_options options;
    smp_lost_answer answer;
    smp_what_if_options_init(&options);
    options.lost_ranks = ranks;
    options.n_lost_rank = n;
    check_ok(smp_lost_answer_find(s->simulation, &options, s->errors, &answer), s->errors);
    return answer;
}

/* Replicas of 8 ranks, a node each: three nodes of four go on as a job of three does. */
static void the_rest_goes_on(void **state)
{
    (void)state;
    small_job *four = small_job_read(cluster, 32, 64, settings);
    small_job *three = small_job_read(cluster, 24, 48, settings);
    small_job_simulate(four);
    small_job_simulate(three);
    const smp_lost_answer a = lose(four, (const char *const[]){"13"}, 1);
    check_u64(a.replicas, 4);
    check_u64(a.replicas_left, 3);
    check_u64(a.gpus_left, 24);
    check_u64(a.idle, 7);
    check_u64(a.batch_left, 48);
    assert_true(a.step_s == four->simulation->report.step_time_s);
    assert_true(a.step_left_s == three->simulation->report.step_time_s);
    check_rel(a.tokens_per_s_left, 48 * 512 / a.step_left_s, 1e-12);
    check_rel(a.tokens_per_s, 64 * 512 / a.step_s, 1e-12);
    small_job_free(three);
    small_job_free(four);
}

/* Ranks of one replica take it along once; the same rank twice is one. */
static void replicas_are_lost_once(void **state)
{
    (void)state;
    small_job *s = small_job_read(cluster, 32, 64, settings);
    small_job_simulate(s);
    smp_lost_answer a = lose(s, (const char *const[]){"8", "15", "15", "31"}, 4);
    check_u64(a.ranks, 3);
    check_u64(a.replicas_left, 2);
    check_u64(a.idle, 13);
    check_u64(a.batch_left, 32);
    a = lose(s, (const char *const[]){"0", "8", "16", "24"}, 4);
    check_u64(a.replicas_left, 0);
    check_u64(a.gpus_left, 0);
    assert_true(a.step_left_s <= 0);
    small_job_free(s);
}

static void wrong_ranks_are_refused(void **state)
{
    (void)state;
    static const char *const wrong[] = {"8", "-1", "", "1:2", "x", "99999999999999999999"};
    small_job *s = small_job_read(cluster, 8, 8, "");
    small_job_simulate(s);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        smp_what_if_options options;
        smp_lost_answer answer;
        smp_what_if_options_init(&options);
        options.lost_ranks = &wrong[i];
        options.n_lost_rank = 1;
        check_fails(smp_lost_answer_find(s->simulation, &options, s->errors, &answer),
                    SMP_INPUT, s->errors, "--lost-rank");
    }
    small_job_free(s);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(the_rest_goes_on),
    cmocka_unit_test(replicas_are_lost_once),
    cmocka_unit_test(wrong_ranks_are_refused),
};

CHECK_MAIN(tests)
