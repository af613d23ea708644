/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clusters and numbers of GPUs compared: against a search of each number by hand, with and
 * without pruning, with limits that can be met and that cannot; what is printed.
 */
#include "config.h"

#include "tests/plan/small.h"

#include "plan/fleet.h"

#include <math.h>

/* Two clusters for one small model. */
typedef struct pair {
    small s;
    smp_cluster *other;
    smp_profile *other_profile;
    smp_job other_job;
    smp_offer offers[2];
} pair;

static const uint32_t counts[] = {1, 2, 3, 4, 8};
enum { N_COUNT = 5 };

static void pair_create(pair *p, uint64_t seed)
{
    small_create(&p->s, seed);
    p->s.job.batch.global_batch = 8 * (1U + small_draw(seed, 60, 3));
    const char *name = small_draw(seed, 61, 2) == 0 ? "p5.48xlarge" : "p4de.24xlarge";
    check_ok(smp_cluster_read(name, p->s.errors, &p->other), p->s.errors);
    check_ok(smp_profile_read_for(p->other, p->s.errors, &p->other_profile), p->s.errors);
    p->other_job = p->s.job;
    p->other_job.cluster = p->other;
    p->other_job.profile = p->other_profile;
    /* a price of which the test knows */
    p->s.cluster->price_per_gpu_hour.value = 1 + small_draw(seed, 62, 5);
    p->s.cluster->currency = "USD";
    p->offers[0] = (smp_offer){&p->s.job, counts, N_COUNT};
    p->offers[1] = (smp_offer){&p->other_job, counts, N_COUNT};
}

static void pair_destroy(pair *p)
{
    smp_profile_destroy(p->other_profile);
    smp_cluster_destroy(p->other);
    small_destroy(&p->s);
}

/* Seconds and money of the best plan of every candidate, by searches of their own; infinite
 * where there is none. */
typedef struct known { double seconds[2][N_COUNT], money[2][N_COUNT]; } known;

static void search_each(pair *p, double tokens, known *all)
{
    const smp_batch *batch = &p->s.job.batch;
    const double per_step = (double)batch->seq_len * (double)batch->global_batch;
    for (uint32_t i = 0; i < 2; i++) {
        for (uint32_t k = 0; k < N_COUNT; k++) {
            smp_arena *arena = smp_arena_create();
            smp_job job = *p->offers[i].job;
            job.cluster = smp_cluster_resized(arena, job.cluster, counts[k]);
            smp_plan_options options;
            smp_plan *plan = NULL;
            smp_plan_options_init(&options);
            options.brief = true;
            options.top = 1;
            all->seconds[i][k] = (double)INFINITY;
            all->money[i][k] = (double)INFINITY;
            if (smp_plan_search(&job, &options, p->s.errors, &plan) == SMP_OK) {
                const double step_s = smp_plan_report(plan, 0)->step_time_s;
                all->seconds[i][k] = ceil(tokens / per_step) * step_s;
                all->money[i][k] = all->seconds[i][k] / 3600 * counts[k] *
                                   job.cluster->price_per_gpu_hour.value;
            }
            smp_plan_destroy(plan);
            smp_errors_clear(p->s.errors);
            smp_arena_destroy(arena);
        }
    }
}

static smp_status compare(pair *p, const smp_fleet_options *options, smp_fleet **fleet_p)
{
    return smp_fleet_search(p->offers, 2, options, p->s.errors, fleet_p);
}

static smp_fleet_options asked(double tokens, smp_objective objective)
{
    smp_fleet_options o = {.tokens = tokens};
    smp_plan_options_init(&o.plan);
    o.plan.objective = objective;
    o.plan.top = 3;
    return o;
}

/* The least value of the objective among those within the limits. */
static double least(const known *all, const smp_fleet_options *o)
{
    double best = (double)INFINITY;
    for (uint32_t i = 0; i < 2; i++) {
        for (uint32_t k = 0; k < N_COUNT; k++) {
            const double seconds = all->seconds[i][k];
            const double money = all->money[i][k];
            const double value = o->plan.objective == SMP_OBJECTIVE_COST   ? money
                                 : o->plan.objective == SMP_OBJECTIVE_TIME ? seconds
                                                                           : counts[k];
            if (isfinite(seconds) && (!(o->within_s > 0) || seconds <= o->within_s) &&
                (!(o->budget > 0) || money <= o->budget) && value < best) {
                best = value;
            }
        }
    }
    return best;
}

static double value_of(const smp_fleet *fleet, const smp_candidate *c)
{
    switch (fleet->options.plan.objective) {
    case SMP_OBJECTIVE_TIME:
        return c->bill.seconds;
    case SMP_OBJECTIVE_COST:
        return c->bill.money;
    case SMP_OBJECTIVE_GPUS:
        return c->gpus;
    }
    return 0;
}

/* Bounds never above what was found. */
static void check_bounds(const smp_fleet *fleet, const known *all)
{
    for (uint32_t i = 0; i < fleet->n_candidate; i++) {
        const smp_candidate *c = &fleet->candidates[i];
        const uint32_t k = i % N_COUNT;
        if (c->standing == SMP_STANDING_RULES || c->standing == SMP_STANDING_MEMORY) {
            assert_true(isinf(all->seconds[c->offer][k]));
        } else {
            assert_true(c->bill.seconds <= all->seconds[c->offer][k]);
        }
    }
}

/* Each objective, without limits and with limits that about half of the runs keep. */
static void test_brute_force(void **state)
{
    (void)state;
    static const smp_objective objectives[] = {SMP_OBJECTIVE_TIME, SMP_OBJECTIVE_COST,
                                               SMP_OBJECTIVE_GPUS};
    uint32_t by_bounds = 0;
    for (uint64_t seed = 500; seed < 506; seed++) {
        pair p;
        known all;
        pair_create(&p, seed);
        search_each(&p, 1e9, &all);
        for (uint32_t i = 0; i < 6; i++) {
            smp_fleet_options o = asked(1e9, objectives[i % 3]);
            smp_fleet *fleet = NULL;
            if (i >= 3) {
                o.within_s = all.seconds[small_draw(seed, 63, 2)][1 + small_draw(seed, 64, 2)];
                o.budget = 1.5 * least(&all, &(smp_fleet_options){
                                                 .plan.objective = SMP_OBJECTIVE_COST});
                o.within_s = isfinite(o.within_s) ? o.within_s : 1e9;
            }
            const double expected = least(&all, &o);
            const smp_status st = compare(&p, &o, &fleet);
            assert_int_equal(st, isfinite(expected) ? SMP_OK : SMP_INFEASIBLE);
            if (st == SMP_OK) {
                check_rel(value_of(fleet, fleet->ranked[0]), expected, 1e-12);
                check_bounds(fleet, &all);
                by_bounds += fleet->n_candidate - fleet->searched;
            }
            smp_errors_clear(p.s.errors);
            smp_fleet_destroy(fleet);
        }
        pair_destroy(&p);
    }
    assert_true(by_bounds > 20); /* else nothing is pruned */
}

static char *printed(const smp_fleet *fleet, bool json, smp_errors *errors)
{
    FILE *stream = tmpfile();
    assert_non_null(stream);
    check_ok(smp_fleet_print(fleet, json, stream, errors), errors);
    const long n = ftell(stream);
    assert_true(n > 0);
    char *text = smp_heap_alloc((size_t)n + 1, 1);
    rewind(stream);
    assert_int_equal(fread(text, 1, (size_t)n, stream), n);
    (void)fclose(stream);
    return text;
}

/* Those asked for are the same without pruning, and in the same order. */
static void test_no_prune(void **state)
{
    (void)state;
    for (uint64_t seed = 520; seed < 523; seed++) {
        pair p;
        smp_fleet *fleets[2];
        pair_create(&p, seed);
        small_pin(&p.s, "checkpointing=full");
        small_pin(&p.s, "offload=false");
        small_pin(&p.s, "sequence_parallel=false");
        small_pin(&p.s, "micro_batch=1");
        p.other_job.settings = p.s.job.settings;
        for (int i = 0; i < 2; i++) {
            smp_fleet_options o = asked(1e9, SMP_OBJECTIVE_COST);
            o.plan.prune = i == 0;
            check_ok(compare(&p, &o, &fleets[i]), p.s.errors);
        }
        assert_true(fleets[0]->n_ranked >= 3 && fleets[1]->n_ranked >= fleets[0]->n_ranked);
        for (uint32_t i = 0; i < 3; i++) {
            const smp_candidate *a = fleets[0]->ranked[i];
            const smp_candidate *b = fleets[1]->ranked[i];
            check_u64(a->offer, b->offer);
            check_u64(a->gpus, b->gpus);
            check_i64(smp_plan_report(a->plan, 0)->step_ps,
                      smp_plan_report(b->plan, 0)->step_ps);
        }
        smp_fleet_destroy(fleets[0]);
        smp_fleet_destroy(fleets[1]);
        pair_destroy(&p);
    }
}

/* Limits that nothing meets name the candidate that misses them least. */
static void test_impossible(void **state)
{
    (void)state;
    for (uint64_t seed = 540; seed < 543; seed++) {
        pair p;
        known all;
        smp_fleet *fleet = NULL;
        pair_create(&p, seed);
        search_each(&p, 1e9, &all);
        smp_fleet_options o = asked(1e9, SMP_OBJECTIVE_COST);
        smp_fleet_options time_only = asked(1e9, SMP_OBJECTIVE_TIME);
        const double soonest_s = least(&all, &time_only);
        o.within_s = soonest_s / 2;
        o.budget = 10 * least(&all, &o) + 1; /* infinite: no run is in time */
        o.budget = isfinite(o.budget) ? o.budget : 1e12;
        check_fails(compare(&p, &o, &fleet), SMP_INFEASIBLE, p.s.errors, "the nearest");
        assert_non_null(fleet->nearest);
        check_rel(fleet->nearest->bill.seconds, soonest_s, 1e-12);
        assert_null(smp_fleet_best(fleet));
        char *text = printed(fleet, false, p.s.errors);
        check_contains(text, "Nothing meets the limits. The nearest:");
        free(text);
        smp_fleet_destroy(fleet);
        pair_destroy(&p);
    }
}

/* 1e12 tokens in steps of 1024 x 512: every number of GPUs over which the batch divides, up
 * to 8 nodes' worth a sequence. */
static void test_all_counts(void **state)
{
    (void)state;
    pair p;
    smp_fleet *fleet = NULL;
    pair_create(&p, 2);
    smp_model_destroy(p.s.model);
    p.s.model = small_model(2, 8, p.s.errors);
    p.other_job.model = p.s.model;
    p.other_job.batch = (smp_batch){.seq_len = 512, .global_batch = 6};
    smp_settings_init(&p.other_job.settings);
    const smp_offer offer = {&p.other_job, NULL, 0};
    smp_fleet_options o = asked(1e12, SMP_OBJECTIVE_COST);
    check_ok(smp_fleet_search(&offer, 1, &o, p.s.errors, &fleet), p.s.errors);
    /* tensor degrees 1, 2, 4, 8 (8 heads) and data ranks 1, 2, 3, 6; parts of a node: 1, 2, 4;
     * whole nodes: 8, 16 (2 x 8), 24 (3 x 8, 6 x 4), 48 (6 x 8) */
    static const uint32_t expected[] = {1, 2, 4, 8, 16, 24, 48};
    check_u64(fleet->n_candidate, 7);
    for (uint32_t i = 0; i < 7; i++) {
        check_u64(fleet->candidates[i].gpus, expected[i]);
    }
    smp_fleet_destroy(fleet);
    pair_destroy(&p);
}

static void test_inputs(void **state)
{
    (void)state;
    pair p;
    smp_fleet *fleet = NULL;
    pair_create(&p, 540);
    smp_fleet_options o = asked(1e9, SMP_OBJECTIVE_COST);
    p.s.cluster->currency = "EUR";
    check_fails(compare(&p, &o, &fleet), SMP_INPUT, p.s.errors, "one currency only");
    smp_errors_clear(p.s.errors);
    p.s.cluster->price_per_gpu_hour.value = 0;
    o.budget = 1;
    check_fails(compare(&p, &o, &fleet), SMP_INPUT, p.s.errors, "has no price");
    smp_errors_clear(p.s.errors);
    small_pin(&p.s, "tensor_parallel_degree=7");
    p.other_job.settings = p.s.job.settings;
    o.budget = 0;
    check_fails(compare(&p, &o, &fleet), SMP_INPUT, p.s.errors, "tensor_parallel_degree");
    assert_null(fleet);
    pair_destroy(&p);
}

/* The front of a comparison: those of its numbers of GPUs together, against pairs. */
static void test_front(void **state)
{
    (void)state;
    pair p;
    smp_fleet *fleet = NULL;
    pair_create(&p, 502);
    small_pin(&p.s, "micro_batch=1");
    p.other_job.settings = p.s.job.settings;
    smp_fleet_options o = asked(1e12, SMP_OBJECTIVE_COST);
    o.plan.front = true;
    check_ok(compare(&p, &o, &fleet), p.s.errors);
    size_t expected = 0;
    for (uint32_t i = 0; i < smp_fleet_shown(fleet); i++) {
        const smp_front *own = &fleet->ranked[i]->plan->front;
        for (size_t k = 0; k < own->n; k++) {
            const smp_found *a = &own->at[k].found;
            const smp_bill mine = smp_fleet_bill(fleet, fleet->ranked[i], a->report.step_ps);
            bool beaten = false;
            for (uint32_t j = 0; j < smp_fleet_shown(fleet); j++) {
                const smp_front *other = &fleet->ranked[j]->plan->front;
                for (size_t n = 0; n < other->n; n++) {
                    const smp_report *r = &other->at[n].found.report;
                    const smp_bill bill = smp_fleet_bill(fleet, fleet->ranked[j], r->step_ps);
                    beaten = beaten || (j != i && bill.seconds <= mine.seconds &&
                                        bill.money <= mine.money &&
                                        r->memory.peak_bytes <= a->report.memory.peak_bytes);
                }
            }
            expected += !beaten;
        }
    }
    check_u64(fleet->front.n, expected);
    char *text = printed(fleet, false, p.s.errors);
    check_contains(text, "Front: nothing else is as good");
    free(text);
    smp_fleet_destroy(fleet);
    pair_destroy(&p);
}

static void test_print(void **state)
{
    (void)state;
    char *text[2][2];
    for (int twice = 0; twice < 2; twice++) {
        pair p;
        smp_fleet *fleet = NULL;
        pair_create(&p, 502);
        smp_fleet_options o = asked(1e12, SMP_OBJECTIVE_COST);
        check_ok(compare(&p, &o, &fleet), p.s.errors);
        text[twice][0] = printed(fleet, false, p.s.errors);
        text[twice][1] = printed(fleet, true, p.s.errors);
        smp_fleet_destroy(fleet);
        pair_destroy(&p);
    }
    check_text(text[0][0], text[1][0]);
    check_text(text[0][1], text[1][1]);
    size_t column = 0;
    for (const char *c = text[0][0]; *c; c++) {
        column = *c == '\n' ? 0 : column + 1;
        assert_true(column <= 80);
    }
    check_contains(text[0][0], "Recommended: ");
    check_contains(text[0][1], "\"alternatives\": [");
    check_contains(text[0][1], "\"gpu_hours\": ");
    for (int i = 0; i < 4; i++) {
        free(text[i / 2][i % 2]);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_brute_force), cmocka_unit_test(test_no_prune),
    cmocka_unit_test(test_impossible),  cmocka_unit_test(test_all_counts),
    cmocka_unit_test(test_inputs),      cmocka_unit_test(test_front),
    cmocka_unit_test(test_print),
};

CHECK_MAIN(tests)
