/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many small spaces: the search gives the same plans without pruning (200 spaces) and the same
 * as the event simulation of every configuration (50 spaces), bounds are never above it, and
 * larger spaces (fine) hold the smaller ones.
 */
#include "config.h"

#include "tests/plan/small.h"

enum { MOST_POINTS = 24 };

static size_t count_points(const smp_job *job, bool fine)
{
    size_t n = 0;
    smp_plan_space *space = smp_plan_space_create(job, fine);
    smp_point point = {{0}};
    do {
        smp_job resolved;
        n += smp_plan_space_job(space, &point, &resolved);
    } while (smp_plan_space_next(space, &point, 0, SMP_DIMS));
    smp_plan_space_destroy(space);
    return n;
}

/* A random job whose space has few points: settings are pinned, from another one for each seed,
 * until it is so. */
static void create(small *s, uint64_t seed, bool fine)
{
    static const char *const pins[] = {
        "micro_batch=1", "offload=false", "prefetch=none", "accumulation=last",
        "tensor_parallel_degree=1", "loss_chunks=1", "reshard_after_forward=true",
        "checkpointing=full", "hybrid_shard_degree=1", "sequence_parallel=false",
        "expert_layout=orthogonal", "moe_all_to_all_dispatcher=true",
        "rank_order=tensor,context,shard,expert,replica",
    };
    enum { N = sizeof pins / sizeof pins[0] };
    small_create(s, seed);
    const uint32_t first = small_draw(seed, 70, N);
    for (uint32_t i = 0; i < N && count_points(&s->job, fine) > MOST_POINTS; i++) {
        const char *pin = pins[(first + i) % N];
        char key[64];
        snprintf(key, sizeof key, "%.*s", (int)strcspn(pin, "="), pin);
        const smp_settings before = s->job.settings;
        if (!smp_settings_given(&before, key)) {
            small_pin(s, pin);
            if (count_points(&s->job, fine) == 0) {
                s->job.settings = before;
            }
        }
    }
}

static smp_status search(small *s, bool prune, bool fine, smp_plan **plan_p)
{
    smp_plan_options options;
    smp_plan_options_init(&options);
    options.prune = prune;
    options.fine = fine;
    options.top = 3;
    options.margin_frac = 0;
    options.brief = true;
    *plan_p = NULL;
    return smp_plan_search(&s->job, &options, s->errors, plan_p);
}

/* Memory into which only some fit: the peak of one of what was simulated. */
static void limit_memory(small *s, const smp_plan *plan, uint64_t seed)
{
    if (plan && plan->n_spot > 0) {
        const uint32_t i = small_draw(seed, 71, (uint32_t)plan->n_spot);
        s->cluster->memory_bytes.value = (double)plan->spots[i].peak_bytes;
    }
}

static void check_equal_plans(const smp_plan *a, const smp_plan *b)
{
    check_u64(smp_plan_count(a), smp_plan_count(b));
    for (size_t i = 0; i < smp_plan_count(a); i++) {
        check_u64(a->found[i].code, b->found[i].code);
        check_i64(smp_plan_report(a, i)->step_ps, smp_plan_report(b, i)->step_ps);
        check_u64(smp_plan_report(a, i)->memory.peak_bytes,
                  smp_plan_report(b, i)->memory.peak_bytes);
    }
}

static void test_no_prune(void **state)
{
    (void)state;
    uint64_t pruned = 0;
    uint32_t spaces = 0;
    for (uint64_t seed = 1000; spaces < 200; seed++) {
        small s;
        smp_plan *plans[3];
        const bool fine = seed % 2 == 1;
        create(&s, seed, fine);
        if (count_points(&s.job, fine) == 0) { /* pins that no rule allows together */
            small_destroy(&s);
            continue;
        }
        spaces++;
        check_ok(search(&s, false, fine, &plans[0]), s.errors);
        limit_memory(&s, plans[0], seed);
        const smp_status st = search(&s, true, fine, &plans[1]);
        assert_int_equal(search(&s, false, fine, &plans[2]), st);
        assert_true(st == SMP_OK || st == SMP_INFEASIBLE);
        check_equal_plans(plans[1], plans[2]);
        pruned += smp_plan_search_info(plans[1])->pruned;
        for (int i = 0; i < 3; i++) {
            smp_plan_destroy(plans[i]);
        }
        small_destroy(&s);
    }
    /* Else the bounds are idle.  Few: points are simulated 16 at a time, spaces are small. */
    assert_true(pruned > 500);
}

/* Checks the bounds of a point against its simulation, and takes its time if it fits and is
 * the best so far. */
static void try_point(small *s, smp_bounds *bounds, const smp_job *job, int64_t *best_ps)
{
    smp_report report;
    int64_t head_ps = 0;
    int64_t mesh_ps = 0;
    uint64_t bytes = 0;
    check_ok(smp_evaluate_fully(job, s->errors, &report), s->errors);
    check_ok(smp_bound_time(bounds, job, false, s->errors, &head_ps), s->errors);
    check_ok(smp_bound_time(bounds, job, true, s->errors, &mesh_ps), s->errors);
    check_ok(smp_bound_memory(bounds, job, true, s->errors, &bytes), s->errors);
    assert_true(head_ps <= report.step_ps && mesh_ps <= report.step_ps);
    assert_true(bytes <= report.memory.peak_bytes);
    if (smp_report_fits(&report, 0) && report.step_ps < *best_ps) {
        *best_ps = report.step_ps;
    }
}

static void test_brute_force(void **state)
{
    (void)state;
    for (uint64_t seed = 1200; seed < 1250; seed++) {
        small s;
        smp_plan *plan = NULL;
        const bool fine = seed % 2 == 1;
        int64_t best_ps = INT64_MAX;
        create(&s, seed, fine);
        check_ok(search(&s, true, fine, &plan), s.errors);
        limit_memory(&s, plan, seed);
        smp_plan_destroy(plan);
        const smp_status st = search(&s, true, fine, &plan);
        smp_bounds *bounds = smp_bounds_create();
        smp_plan_space *space = smp_plan_space_create(&s.job, fine);
        smp_point point = {{0}};
        do {
            smp_job job;
            if (smp_plan_space_job(space, &point, &job)) {
                try_point(&s, bounds, &job, &best_ps);
            }
        } while (smp_plan_space_next(space, &point, 0, SMP_DIMS));
        assert_int_equal(st, best_ps < INT64_MAX ? SMP_OK : SMP_INFEASIBLE);
        if (st == SMP_OK) {
            check_i64(smp_plan_report(plan, 0)->step_ps, best_ps);
        }
        smp_plan_space_destroy(space);
        smp_bounds_destroy(bounds);
        smp_plan_destroy(plan);
        small_destroy(&s);
    }
}

/* Six layers, 512 tokens: first:1 to first:5 where quarters leave 1, 3 and 4 (6/4, 6/2, 18/4),
 * and five numbers of chunks instead of two.  Four ways to checkpoint besides. */
static void test_fine(void **state)
{
    (void)state;
    static const char *const pins[] = {"offload=false", "reshard_after_forward=true",
                                       "prefetch=none", "tensor_parallel_degree=1",
                                       "micro_batch=1"};
    small s;
    small_create(&s, 0);
    smp_model_destroy(s.model);
    s.model = small_model(6, 8, s.errors);
    s.job.model = s.model;
    smp_settings_init(&s.job.settings);
    check_ok(smp_cluster_set_gpus(s.cluster, 1, s.errors), s.errors);
    s.job.batch = (smp_batch){.seq_len = 512, .global_batch = 1};
    for (size_t i = 0; i < sizeof pins / sizeof pins[0]; i++) {
        small_pin(&s, pins[i]);
    }
    check_u64(count_points(&s.job, false), (4 + 3) * 2);
    check_u64(count_points(&s.job, true), (4 + 5) * 5);
    /* with the first four checkpointed and a horizon of one: nothing offloaded, the first 2, 3
     * or all 4; the first one would stay on the device */
    smp_settings_init(&s.job.settings);
    for (size_t i = 1; i < sizeof pins / sizeof pins[0]; i++) {
        small_pin(&s, pins[i]);
    }
    small_pin(&s, "activation_loading_horizon=1");
    small_pin(&s, "checkpointing=first:4");
    check_u64(count_points(&s.job, false), 2 * 2);
    check_u64(count_points(&s.job, true), 4 * 5);
    small_pin(&s, "offload=true");
    check_u64(count_points(&s.job, true), 3 * 5);
    small_pin(&s, "offload_layers=2");
    check_u64(count_points(&s.job, true), 5);
    small_pin(&s, "offload_layers=5"); /* of 4 */
    check_u64(count_points(&s.job, true), 0);
    small_pin(&s, "offload=false");
    s.job.batch.seq_len = 504; /* 8 divides it, 16 does not */
    check_u64(count_points(&s.job, true), 4);
    small_destroy(&s);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_no_prune),
    cmocka_unit_test(test_brute_force),
    cmocka_unit_test(test_fine),
};

CHECK_MAIN(tests)
