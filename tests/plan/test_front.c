/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The front of time, memory and cost against brute force: every configuration of small spaces
 * simulated, and every pair compared.
 */
#include "config.h"

#include "tests/plan/small.h"

#include "plan/front.h"

/* Step time, peak and GPU time of a configuration that fits. */
typedef struct spot { int64_t step_ps; uint64_t peak_bytes, world; } spot;
typedef struct spots { spot *at; size_t n, room; } spots;

static void simulate_all(const small *s, const smp_cluster *cluster, spots *all)
{
    smp_job resized = s->job;
    resized.cluster = cluster;
    smp_plan_space *space = smp_plan_space_create(&resized, false);
    smp_point point = {{0}};
    do {
        smp_job job;
        smp_report report;
        if (!smp_plan_space_job(space, &point, &job)) {
            continue;
        }
        check_ok(smp_evaluate_fully(&job, s->errors, &report), s->errors);
        if (smp_report_fits(&report, 0)) {
            SMP_GROW(all->at, all->n, all->room);
            all->at[all->n++] = (spot){report.step_ps, report.memory.peak_bytes, job.world};
        }
    } while (smp_plan_space_next(space, &point, 0, SMP_DIMS));
    smp_plan_space_destroy(space);
}

/* As good in all three. */
static bool covers(const spot *a, const spot *b)
{
    return a->step_ps <= b->step_ps && a->peak_bytes <= b->peak_bytes &&
           a->step_ps * (int64_t)a->world <= b->step_ps * (int64_t)b->world;
}

static bool is_same(const spot *a, const spot *b)
{
    return a->step_ps == b->step_ps && a->peak_bytes == b->peak_bytes && a->world == b->world;
}

/* What nothing else covers; of equals the first. */
static spots front_of(const spots *all)
{
    spots front = {0};
    for (size_t i = 0; i < all->n; i++) {
        bool on_front = true;
        for (size_t k = 0; k < all->n && on_front; k++) {
            on_front = !covers(&all->at[k], &all->at[i]) ||
                       (covers(&all->at[i], &all->at[k]) && k >= i);
        }
        if (on_front) {
            SMP_GROW(front.at, front.n, front.room);
            front.at[front.n++] = all->at[i];
        }
    }
    return front;
}

static smp_plan *search(small *s, smp_objective objective, bool prune)
{
    smp_plan_options options;
    smp_plan *plan = NULL;
    smp_plan_options_init(&options);
    options.objective = objective;
    options.prune = prune;
    options.margin_frac = 0;
    options.front = true;
    options.brief = true;
    check_ok(smp_plan_search(&s->job, &options, s->errors, &plan), s->errors);
    return plan;
}

static void check_front(const smp_plan *plan, const spots *expected)
{
    check_u64(plan->front.n, expected->n);
    for (size_t i = 0; i < plan->front.n; i++) {
        const smp_front_point *p = &plan->front.at[i];
        const spot own = {p->found.report.step_ps, p->peak_bytes, p->found.job.world};
        bool any = false;
        for (size_t k = 0; k < expected->n; k++) {
            any = any || is_same(&own, &expected->at[k]);
        }
        assert_true(any);
        assert_true(i == 0 || p[-1].time_s <= p->time_s);
        assert_true(i == 0 || p[-1].time_s < p->time_s || p[-1].peak_bytes < p->peak_bytes);
    }
}

/* Time and memory on one number of GPUs. */
static void test_brute_force(void **state)
{
    (void)state;
    uint64_t simulated = 0;
    uint64_t enumerated = 0;
    for (uint64_t seed = 600; seed < 610; seed++) {
        small s;
        spots all = {0};
        small_create(&s, seed);
        simulate_all(&s, s.cluster, &all);
        spots expected = front_of(&all);
        assert_true(expected.n > 0);
        smp_plan *plan = search(&s, SMP_OBJECTIVE_TIME, true);
        check_front(plan, &expected);
        simulated += plan->front_evaluated;
        enumerated += smp_plan_search_info(plan)->enumerated;
        smp_plan_destroy(plan);
        free(expected.at);
        free(all.at);
        small_destroy(&s);
    }
    assert_true(simulated < enumerated / 2); /* else nothing is pruned */
}

/* Time, memory and cost over 1, 2 and 4 GPUs, as --objective cost takes them. */
static void test_cost(void **state)
{
    (void)state;
    for (uint64_t seed = 620; seed < 622; seed++) {
        small s;
        spots all = {0};
        small_create(&s, seed);
        check_ok(smp_cluster_set_gpus(s.cluster, 4, s.errors), s.errors);
        s.job.batch.global_batch = 4;
        smp_arena *arena = smp_arena_create();
        for (uint32_t gpus = 1; gpus <= 4; gpus *= 2) {
            simulate_all(&s, smp_cluster_resized(arena, s.cluster, gpus), &all);
        }
        spots expected = front_of(&all);
        for (int prune = 0; prune < 2; prune++) {
            smp_plan *plan = search(&s, SMP_OBJECTIVE_COST, prune == 1);
            check_front(plan, &expected);
            smp_plan_destroy(plan);
        }
        smp_arena_destroy(arena);
        free(expected.at);
        free(all.at);
        small_destroy(&s);
    }
}

/* A front of points drawn at random, against pairs. */
static void test_set(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        smp_front front = {0};
        spots all = {0};
        for (uint32_t i = 0; i < 40; i++) {
            const spot s = {1 + small_draw(seed, 3 * i, 8), 1 + small_draw(seed, 3 * i + 1, 8),
                            1 + small_draw(seed, 3 * i + 2, 4)};
            smp_front_point p = {.time_s = (double)s.step_ps, .peak_bytes = s.peak_bytes,
                                 .cost = (double)s.step_ps * (double)s.world};
            smp_front_add(&front, &p);
            SMP_GROW(all.at, all.n, all.room);
            all.at[all.n++] = s;
        }
        spots expected = front_of(&all);
        smp_front_sort(&front);
        check_u64(front.n, expected.n);
        size_t picked[SMP_FRONT_PICKED];
        const size_t n = smp_front_pick(&front, picked);
        assert_true(n > 0 && picked[0] == 0 && picked[n - 1] == front.n - 1);
        free(front.at);
        free(expected.at);
        free(all.at);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_brute_force),
    cmocka_unit_test(test_cost),
    cmocka_unit_test(test_set),
};

CHECK_MAIN(tests)
