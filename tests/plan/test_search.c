/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The search against brute force: the space, the evaluator, the bounds, dominance, and the
 * plans themselves.
 */
#include "config.h"

#include "tests/plan/small.h"

/* A point with its job and what simulating all of it says. */
typedef struct sample { smp_point point; smp_job job; smp_report report; } sample;
typedef struct samples { sample *at; size_t n, room; } samples;

static samples simulate_all(const small *s, const smp_plan_space *space)
{
    samples all = {0};
    smp_point point = {{0}};
    do {
        smp_job job;
        if (smp_plan_space_job(space, &point, &job)) {
            SMP_GROW(all.at, all.n, all.room);
            all.at[all.n] = (sample){.point = point, .job = job};
            check_ok(smp_evaluate_fully(&job, s->errors, &all.at[all.n].report), s->errors);
            all.n++;
        }
    } while (smp_plan_space_next(space, &point, 0, SMP_DIMS));
    return all;
}

static void settings_text(const smp_settings *settings, char text[4096])
{
    size_t n = 0;
    size_t used = 0;
    const smp_setting_info *table = smp_settings_table(&n);
    for (size_t i = 0; i < n; i++) {
        char value[96];
        assert_true(smp_settings_get(settings, table[i].key, value, sizeof value));
        used += (size_t)snprintf(text + used, 4096 - used, "%s=%s ", table[i].key, value);
        assert_true(used < 4096);
    }
}

/* Every point has other settings than every other, and keeps the pins. */
static void test_space(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 5; seed++) {
        small s;
        small_create(&s, seed);
        small_pin(&s, "micro_batch=1");
        small_pin(&s, "optimizer=sgd");
        smp_plan_space *space = smp_plan_space_create(&s.job, false);
        char (*seen)[4096] = smp_heap_alloc(20000, 4096);
        size_t n = 0;
        smp_point point = {{0}};
        uint64_t last_code = 0;
        do {
            smp_job job;
            if (!smp_plan_space_job(space, &point, &job)) {
                continue;
            }
            const uint64_t code = smp_plan_space_code(space, &point);
            assert_true(n == 0 || code > last_code);
            last_code = code;
            assert_true(n < 20000);
            settings_text(&job.settings, seen[n]);
            for (size_t i = 0; i < n; i++) {
                assert_string_not_equal(seen[i], seen[n]);
            }
            n++;
            assert_int_equal(job.settings.micro_batch, 1);
            assert_int_equal(job.settings.optimizer, SMP_OPTIMIZER_SGD);
        } while (smp_plan_space_next(space, &point, 0, SMP_DIMS));
        assert_true(n > 0);
        free(seen);
        smp_plan_space_destroy(space);
        small_destroy(&s);
    }
}

static size_t count_points(const smp_job *job)
{
    size_t n = 0;
    smp_plan_space *space = smp_plan_space_create(job, false);
    smp_point point = {{0}};
    do {
        smp_job resolved;
        n += smp_plan_space_job(space, &point, &resolved);
    } while (smp_plan_space_next(space, &point, 0, SMP_DIMS));
    smp_plan_space_destroy(space);
    return n;
}

/* Points are checked in parts; none does what its stack cannot. */
static void test_rules(void **state)
{
    static const char *const stacks[] = {"stack=native", "stack=fsdp1", "stack=fsdp2",
                                         "stack=megatron", "stack=deepspeed"};
    (void)state;
    for (uint64_t seed = 0; seed < 10; seed++) {
        small s;
        small_create(&s, seed);
        small_pin(&s, stacks[seed % 5]);
        smp_plan_space *space = smp_plan_space_create(&s.job, seed % 2 == 0);
        smp_point point = {{0}};
        do {
            smp_job job;
            if (smp_plan_space_job(space, &point, &job)) {
                const smp_settings *set = &job.settings;
                assert_true(!set->offload || smp_runtime_offloads(set));
                assert_true(!smp_runtime_of(set->stack)->accumulates_whole ||
                            set->sharding == SMP_SHARDING_FULL || job.micro_batches == 1 ||
                            set->accumulation == SMP_ACCUMULATION_LAST);
            }
        } while (smp_plan_space_next(space, &point, 0, SMP_DIMS));
        smp_plan_space_destroy(space);
        small_destroy(&s);
    }
}

/* One H100, one layer's worth of choices by hand: gpt-like pins leave micro-batches 1, 2, 4
 * of a batch of 4 and, where there are several micro-batches, two rules of accumulation:
 * 2 + 2 + 1 points. */
static void test_count(void **state)
{
    (void)state;
    static const char *const pins[] = {"checkpointing=none", "offload=false", "loss_chunks=1",
                                       "reshard_after_forward=true", "prefetch=none",
                                       "tensor_parallel_degree=1"};
    small s;
    small_create(&s, 0);
    smp_settings_init(&s.job.settings);
    check_ok(smp_cluster_set_gpus(s.cluster, 1, s.errors), s.errors);
    s.job.batch.global_batch = 4;
    for (size_t i = 0; i < sizeof pins / sizeof pins[0]; i++) {
        small_pin(&s, pins[i]);
    }
    check_u64(count_points(&s.job), 5);
    small_pin(&s, "micro_batch=2");
    check_u64(count_points(&s.job), 2);
    /* horizons 1, 2, 4, 8 matter only below the number of layers, and only with offload */
    small_destroy(&s);
}

static void check_equal_reports(const smp_report *a, const smp_report *b)
{
    check_i64(a->step_ps, b->step_ps);
    check_u64(a->memory.arena_bytes, b->memory.arena_bytes);
    check_u64(a->memory.peak_bytes, b->memory.peak_bytes);
    check_i64(a->memory.margin_bytes, b->memory.margin_bytes);
    assert_int_equal(a->memory.fits, b->memory.fits);
    check_u64(a->memory.parts.activations_bytes, b->memory.parts.activations_bytes);
    check_rel(a->tokens_per_s_per_gpu, b->tokens_per_s_per_gpu, 1e-12);
    check_rel(a->mfu, b->mfu, 1e-12);
    check_i64(a->time.compute_ps, b->time.compute_ps);
    check_i64(a->time.shard_ps, b->time.shard_ps);
    check_i64(a->time.tensor_ps, b->time.tensor_ps);
    check_i64(a->time.offload_ps, b->time.offload_ps);
}

/* Few micro-batches extended say the same as all of them, to the picosecond and the byte. */
static void test_evaluate(void **state)
{
    (void)state;
    size_t extended = 0;
    for (uint64_t seed = 100; seed < 130; seed++) {
        small s;
        small_create(&s, seed);
        s.job.batch.global_batch = (uint64_t)s.cluster->gpus * (16 + small_draw(seed, 40, 40));
        smp_plan_space *space = smp_plan_space_create(&s.job, false);
        smp_point point = {{0}};
        uint64_t i = 0;
        do {
            smp_job job;
            /* about one point in 40 */
            if (small_draw(seed, 1000 + i++, 40) != 0 ||
                !smp_plan_space_job(space, &point, &job)) {
                continue;
            }
            smp_report quick;
            smp_report full;
            uint64_t simulated = 0;
            check_ok(smp_evaluate(&job, true, s.errors, &quick, NULL, &simulated), s.errors);
            check_ok(smp_evaluate_fully(&job, s.errors, &full), s.errors);
            check_equal_reports(&quick, &full);
            int64_t step_ps = 0;
            check_ok(smp_evaluate_time(&job, NULL, s.errors, &step_ps, NULL), s.errors);
            check_i64(step_ps, full.step_ps);
            extended += simulated < job.micro_batches;
        } while (smp_plan_space_next(space, &point, 0, SMP_DIMS));
        smp_plan_space_destroy(space);
        small_destroy(&s);
    }
    assert_true(extended > 20);
}

/* A host that launches every kernel and takes about as long as the device: what it holds up in
 * the first micro-batches, and the update, it does not later, when it is further ahead. */
static void test_evaluate_host(void **state)
{
    static const char config[] =
        "{\"model_type\": \"gpt2\", \"n_embd\": 48, \"n_head\": 4, \"n_positions\": 256, "
        "\"vocab_size\": 101, \"n_layer\": 7}";
    static const char *const pins[] = {"stack=fsdp1", "precision=fp32", "attention=naive",
                                       "checkpointing=full", "micro_batch=1"};
    small s = {.errors = smp_errors_create()};
    (void)state;
    check_ok(smp_model_parse(config, strlen(config), "tiny.json", "tiny", s.errors, &s.model),
             s.errors);
    check_ok(smp_cluster_read("p5.48xlarge", s.errors, &s.cluster), s.errors);
    check_ok(smp_cluster_set_gpus(s.cluster, 7, s.errors), s.errors);
    check_ok(smp_profile_read_for(s.cluster, s.errors, &s.profile), s.errors);
    s.job = (smp_job){.model = s.model, .cluster = s.cluster, .profile = s.profile};
    smp_settings_init(&s.job.settings);
    for (size_t i = 0; i < sizeof pins / sizeof pins[0]; i++) {
        small_pin(&s, pins[i]);
    }
    for (uint64_t seq_len = 190; seq_len <= 256; seq_len += 3) {
        smp_report quick;
        smp_report full;
        int64_t step_ps = 0;
        s.job.batch = (smp_batch){.seq_len = seq_len, .global_batch = (uint64_t)7 * 20};
        check_ok(smp_job_resolve(&s.job, s.errors), s.errors);
        check_ok(smp_evaluate(&s.job, true, s.errors, &quick, NULL, NULL), s.errors);
        check_ok(smp_evaluate_fully(&s.job, s.errors, &full), s.errors);
        check_equal_reports(&quick, &full);
        check_i64(quick.time.launch_ps, full.time.launch_ps);
        check_ok(smp_evaluate_time(&s.job, NULL, s.errors, &step_ps, NULL), s.errors);
        check_i64(step_ps, full.step_ps);
    }
    small_destroy(&s);
}

/* No bound is above the truth, dominance holds, and sharing memory costs no time. */
static void check_bounds(const small *s, const samples *all)
{
    smp_bounds *bounds = smp_bounds_create();
    for (size_t i = 0; i < all->n; i++) {
        int64_t head = 0;
        int64_t mesh = 0;
        uint64_t bytes = 0;
        const sample *a = &all->at[i];
        check_ok(smp_bound_time(bounds, &a->job, false, s->errors, &head), s->errors);
        check_ok(smp_bound_time(bounds, &a->job, true, s->errors, &mesh), s->errors);
        check_ok(smp_bound_memory(bounds, &a->job, true, s->errors, &bytes), s->errors);
        assert_true(head > 0 && head <= mesh);
        assert_true(mesh <= a->report.step_ps);
        assert_true(bytes <= a->report.memory.peak_bytes);
        int64_t alone = 0;
        int64_t apart = 0;
        check_ok(smp_evaluate_time(&a->job, NULL, s->errors, &apart, &alone), s->errors);
        check_i64(apart, a->report.step_ps);
        assert_true(alone <= a->report.step_ps);
        for (size_t j = 0; j < all->n; j++) {
            assert_true(!smp_point_dominates(&a->point, &all->at[j].point) ||
                        alone <= all->at[j].report.step_ps);
        }
    }
    smp_bounds_destroy(bounds);
}

/* On every point of random spaces. */
static void test_bounds(void **state)
{
    (void)state;
    size_t n = 0;
    for (uint64_t seed = 200; seed < 220; seed++) {
        small s;
        small_create(&s, seed);
        smp_plan_space *space = smp_plan_space_create(&s.job, false);
        const samples all = simulate_all(&s, space);
        check_bounds(&s, &all);
        n += all.n;
        free(all.at);
        smp_plan_space_destroy(space);
        small_destroy(&s);
    }
    assert_true(n > 2000);
}

/* The leaf of a mesh that needs least. */
static bool last_leaf(const smp_plan_space *space, smp_point *point, smp_job *job)
{
    bool any = false;
    smp_point leaf = *point;
    do {
        smp_job other;
        if (smp_plan_space_job(space, &leaf, &other)) {
            *job = other;
            any = true;
        }
    } while (smp_plan_space_next(space, &leaf, SMP_DIM_OFFLOAD, SMP_DIM_PREFETCH));
    return any;
}

/* The search bisects over checkpointed layers and takes them in order. */
static void check_by_layer(const small *s, const smp_plan_space *space, smp_point mesh)
{
    smp_bounds *bounds = smp_bounds_create();
    int64_t before_ps = 0;
    uint64_t before_bytes = UINT64_MAX;
    for (uint32_t i = 0; i < space->n_by_layer; i++) {
        smp_job job, leaf;
        int64_t ps = 0;
        uint64_t bytes = 0;
        mesh.digit[SMP_DIM_CHECKPOINTING] = space->by_layer[i];
        if (!smp_plan_space_mesh(space, &mesh, &job) || !last_leaf(space, &mesh, &leaf)) {
            assert_true(before_ps == 0); /* those that a rule forbids come first */
            continue;
        }
        check_ok(smp_bound_time(bounds, &job, true, s->errors, &ps), s->errors);
        check_ok(smp_bound_memory(bounds, &leaf, true, s->errors, &bytes), s->errors);
        assert_true(ps >= before_ps);
        assert_true(bytes <= before_bytes);
        before_ps = ps;
        before_bytes = bytes;
    }
    smp_bounds_destroy(bounds);
}

/* More layers checkpointed: no bound of time is less, no bound of memory more. */
static void test_monotonic_bounds(void **state)
{
    (void)state;
    size_t n = 0;
    for (uint64_t seed = 600; seed < 640; seed++) {
        small s;
        small_create(&s, seed);
        if (smp_settings_given(&s.job.settings, "checkpointing")) {
            small_destroy(&s);
            continue;
        }
        smp_plan_space *space = smp_plan_space_create(&s.job, true);
        smp_point mesh = {{0}};
        uint64_t i = 0;
        do {
            smp_job job;
            const bool drawn = small_draw(seed, 2000 + i++, 8) == 0;
            if (mesh.digit[SMP_DIM_CHECKPOINTING] == 0 && drawn &&
                smp_plan_space_mesh(space, &mesh, &job)) {
                check_by_layer(&s, space, mesh);
                n++;
            }
        } while (smp_plan_space_next(space, &mesh, 0, SMP_DIM_LEAF));
        smp_plan_space_destroy(space);
        small_destroy(&s);
    }
    assert_true(n > 200);
}

static int compare_bytes(const void *left, const void *right)
{
    const uint64_t a = *(const uint64_t *)left;
    const uint64_t b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

/* The memory that a third to all of the points fit into, as the cluster's. */
static void limit_memory(small *s, const samples *all, uint64_t seed)
{
    uint64_t *peaks = smp_heap_alloc(all->n, sizeof *peaks);
    for (size_t i = 0; i < all->n; i++) {
        peaks[i] = all->at[i].report.memory.peak_bytes;
    }
    qsort(peaks, all->n, sizeof *peaks, compare_bytes);
    const size_t third = all->n / 3;
    s->cluster->memory_bytes.value =
        (double)peaks[third + small_draw(seed, 50, (uint32_t)(all->n - third))];
    free(peaks);
}

/* The best of all points by full simulation; ties go to the first. */
static const sample *best_of(const samples *all, const small *s)
{
    const sample *best = NULL;
    for (size_t i = 0; i < all->n; i++) {
        const smp_report *r = &all->at[i].report;
        if ((double)r->memory.peak_bytes <= s->cluster->memory_bytes.value &&
            r->memory.host_bytes_per_node <= r->memory.host_capacity_bytes &&
            (!best || r->step_ps < best->report.step_ps)) {
            best = &all->at[i];
        }
    }
    return best;
}

static smp_plan *search(small *s, bool prune, uint32_t top)
{
    smp_plan_options options;
    smp_plan *plan = NULL;
    smp_plan_options_init(&options);
    options.prune = prune;
    options.top = top;
    options.margin_frac = 0;
    check_ok(smp_plan_search(&s->job, &options, s->errors, &plan), s->errors);
    return plan;
}

/* The search finds the best of all points, and says what became of the others. */
static smp_search_info check_search(small *s, const samples *all)
{
    const sample *best = best_of(all, s);
    assert_non_null(best);
    smp_plan *plan = search(s, true, 3);
    const smp_search_info info = *smp_plan_search_info(plan);
    check_i64(smp_plan_report(plan, 0)->step_ps, best->report.step_ps);
    char found[4096];
    char expected[4096];
    settings_text(&smp_plan_job(plan, 0)->settings, found);
    settings_text(&best->job.settings, expected);
    check_text(found, expected);
    check_u64(info.enumerated, all->n);
    check_u64(info.pruned + info.evaluated, all->n);
    assert_true(info.exhausted && info.gap <= 0);
    smp_plan_destroy(plan);
    return info;
}

static void test_brute_force(void **state)
{
    (void)state;
    uint64_t pruned = 0;
    uint64_t evaluated = 0;
    for (uint64_t seed = 300; seed < 320; seed++) {
        small s;
        small_create(&s, seed);
        smp_plan_space *space = smp_plan_space_create(&s.job, false);
        const samples all = simulate_all(&s, space);
        limit_memory(&s, &all, seed);
        const smp_search_info info = check_search(&s, &all);
        pruned += info.pruned;
        evaluated += info.evaluated;
        free(all.at);
        smp_plan_space_destroy(space);
        small_destroy(&s);
    }
    assert_true(pruned > 4 * evaluated); /* else the bounds are idle */
}

/* The group of shards, with the tensor ranks inside it, neither divides a node nor fills
 * whole ones. */
static bool is_uneven(const smp_job *job)
{
    const uint32_t ranks =
        job->settings.hybrid_shard_degree * job->settings.tensor_parallel_degree;
    const uint32_t node = job->cluster->gpus_per_node;
    return ranks <= node ? node % ranks != 0 : ranks % node != 0;
}

/* GPUs whose divisors nodes of 8 do not respect, with a port for each GPU or for two. */
static void create_uneven(small *s, int i)
{
    static const char *const clusters[] = {"dgx-h100", "p4d.24xlarge", "p4d.24xlarge"};
    static const char *const pins[][3] = {
        {"checkpointing=none", "loss_chunks=1", "accumulation=every"},
        {"checkpointing=full", "reshard_after_forward=true", "loss_chunks=1"},
        {"loss_chunks=2", "sequence_parallel=true", "offload=false"}};
    const uint32_t gpus = i == 0 ? 24 : 12;
    *s = (small){.errors = smp_errors_create()};
    s->model = small_model(2, 4, s->errors);
    check_ok(smp_cluster_read(clusters[i], s->errors, &s->cluster), s->errors);
    check_ok(smp_cluster_set_gpus(s->cluster, gpus, s->errors), s->errors);
    check_ok(smp_profile_read_for(s->cluster, s->errors, &s->profile), s->errors);
    s->job = (smp_job){.model = s->model, .cluster = s->cluster, .profile = s->profile,
                       .batch = {.seq_len = 256, .global_batch = 2 * gpus}};
    smp_settings_init(&s->job.settings);
    for (int pin = 0; pin < 3; pin++) {
        small_pin(s, pins[i][pin]);
    }
}

/* The same where the ranks of a group lie as 8 + 4 or 4 + 2, and the last node is not full. */
static void test_uneven_nodes(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        small s;
        size_t uneven = 0;
        create_uneven(&s, i);
        smp_plan_space *space = smp_plan_space_create(&s.job, false);
        const samples all = simulate_all(&s, space);
        for (size_t k = 0; k < all.n; k++) {
            uneven += is_uneven(&all.at[k].job);
        }
        assert_true(uneven > 0 && uneven < all.n);
        check_bounds(&s, &all);
        limit_memory(&s, &all, (uint64_t)i);
        (void)check_search(&s, &all);
        free(all.at);
        smp_plan_space_destroy(space);
        small_destroy(&s);
    }
}

/* A search that stops with its first plan does not claim too much: the best of all is no
 * faster than the gap says, and no more than what was looked at counts. */
static void test_deadline(void **state)
{
    (void)state;
    size_t open_gaps = 0;
    for (uint64_t seed = 700; seed < 716; seed++) {
        small s;
        smp_plan *early = NULL;
        smp_plan_options options;
        small_create(&s, seed);
        smp_plan *whole = search(&s, true, 1);
        smp_plan_options_init(&options);
        options.margin_frac = 0;
        options.deadline_s = 1e-9;
        options.threads = 1;
        check_ok(smp_plan_search(&s.job, &options, s.errors, &early), s.errors);
        const smp_search_info *info = smp_plan_search_info(early);
        const double found = (double)smp_plan_report(early, 0)->step_ps;
        const double best = (double)smp_plan_report(whole, 0)->step_ps;
        assert_true(best <= found && best >= found * (1 - info->gap) - 1);
        assert_true(info->gap >= 0 && info->gap < 1);
        assert_true(!info->exhausted || info->gap <= 0);
        check_u64(info->enumerated, smp_plan_search_info(whole)->enumerated);
        open_gaps += info->gap > 0;
        smp_plan_destroy(early);
        smp_plan_destroy(whole);
        small_destroy(&s);
    }
    assert_true(open_gaps > 0);
}

/* The fine space holds the other one: its best is no slower. */
static void test_fine_is_larger(void **state)
{
    (void)state;
    size_t n = 0;
    for (uint64_t seed = 800; seed < 860; seed++) {
        small s;
        int64_t best_ps[2] = {-1, -1};
        small_create(&s, seed);
        s.profile->matrix_beside_collective.value = 1 + 0.02 * small_draw(seed, 300, 75);
        s.profile->memory_beside_collective.value = 1 + 0.02 * small_draw(seed, 301, 75);
        s.profile->collective_beside_matrix.value = 1 + 0.02 * small_draw(seed, 302, 75);
        for (int fine = 0; fine < 2; fine++) {
            smp_plan_options options;
            smp_plan *plan = NULL;
            smp_plan_options_init(&options);
            options.fine = fine == 1;
            options.brief = true;
            options.threads = 1;
            if (smp_plan_search(&s.job, &options, s.errors, &plan) == SMP_OK) {
                best_ps[fine] = smp_plan_report(plan, 0)->step_ps;
            }
            smp_plan_destroy(plan);
        }
        assert_true((best_ps[0] < 0) == (best_ps[1] < 0));
        assert_true(best_ps[1] <= best_ps[0]);
        n += best_ps[0] > 0;
        small_destroy(&s);
    }
    assert_true(n > 30);
}

/* Without pruning the plans are the same, down to the last. */
static void test_no_prune(void **state)
{
    (void)state;
    for (uint64_t seed = 400; seed < 408; seed++) {
        small s;
        small_create(&s, seed);
        smp_plan *a = search(&s, true, 7);
        smp_plan *b = search(&s, false, 7);
        check_u64(smp_plan_count(a), smp_plan_count(b));
        check_u64(smp_plan_search_info(b)->pruned, 0);
        for (size_t i = 0; i < smp_plan_count(a); i++) {
            char left[4096];
            char right[4096];
            settings_text(&smp_plan_job(a, i)->settings, left);
            settings_text(&smp_plan_job(b, i)->settings, right);
            check_text(left, right);
            check_equal_reports(smp_plan_report(a, i), smp_plan_report(b, i));
        }
        smp_plan_destroy(a);
        smp_plan_destroy(b);
        small_destroy(&s);
    }
}

static char *print_with(small *s, uint32_t threads)
{
    smp_plan_options options;
    smp_plan *plan = NULL;
    char *text = NULL;
    size_t size = 0;
    smp_plan_options_init(&options);
    options.threads = threads;
    check_ok(smp_plan_search(&s->job, &options, s->errors, &plan), s->errors);
    FILE *stream = open_memstream(&text, &size);
    check_ok(smp_plan_print(plan, true, stream, s->errors), s->errors);
    (void)fclose(stream);
    smp_plan_destroy(plan);
    return text;
}

/* Plans, counts and explanations are the same for any number of threads. */
static void test_threads(void **state)
{
    (void)state;
    for (uint64_t seed = 500; seed < 504; seed++) {
        small s;
        small_create(&s, seed);
        char *one = print_with(&s, 1);
        for (uint32_t threads = 2; threads < 8; threads += 3) {
            char *many = print_with(&s, threads);
            check_text(many, one);
            free(many);
        }
        free(one);
        small_destroy(&s);
    }
}

/* Layout, dispatcher and order of expert ranks are dimensions where several ranks split the
 * experts, and only there; the best of the space is the one that simulating all of it finds. */
static void test_expert_dimensions(void **state)
{
    (void)state;
    static const char *const pins[] = {
        "micro_batch=1", "checkpointing=none", "offload=false", "loss_chunks=1",
        "reshard_after_forward=true", "prefetch=backward_pre", "tensor_parallel_degree=1"};
    small s;
    small_create(&s, 0);
    smp_model *dense = s.model;
    s.job.model = s.model = small_moe(2, 2, s.errors);
    smp_settings_init(&s.job.settings);
    check_ok(smp_cluster_set_gpus(s.cluster, 8, s.errors), s.errors);
    s.job.batch.global_batch = 8;
    for (size_t i = 0; i < sizeof pins / sizeof pins[0]; i++) {
        small_pin(&s, pins[i]);
    }
    smp_plan_space *space = smp_plan_space_create(&s.job, false);
    const samples all = simulate_all(&s, space);
    /* Shard x expert x replica = 8.  Expert 1: shard 1, 2, 4, 8.  Orthogonal, expert 2: shard
     * 1, and 2 and 4 in two orders; 4: shard 1, and 2 in two orders; 8: shard 1: 9 points.
     * Nested, shard of experts 8 / expert / replica: the same.  Each by two dispatchers. */
    check_u64(all.n, 4 + 2 * 2 * 9);
    size_t nested = 0;
    smp_bounds *bounds = smp_bounds_create();
    for (size_t i = 0; i < all.n; i++) {
        int64_t bound_ps = 0;
        uint64_t bytes = 0;
        check_ok(smp_bound_time(bounds, &all.at[i].job, true, s.errors, &bound_ps), s.errors);
        check_ok(smp_bound_memory(bounds, &all.at[i].job, true, s.errors, &bytes), s.errors);
        assert_true(bound_ps <= all.at[i].report.step_ps);
        assert_true(bytes <= all.at[i].report.memory.peak_bytes);
        nested += all.at[i].job.settings.expert_layout == SMP_EXPERT_LAYOUT_NESTED;
    }
    check_u64(nested, 2 * 9);
    smp_plan *pruned = search(&s, true, 40);
    smp_plan *whole = search(&s, false, 40);
    check_i64(smp_plan_report(pruned, 0)->step_ps, best_of(&all, &s)->report.step_ps);
    check_u64(smp_plan_count(pruned), smp_plan_count(whole));
    for (size_t i = 0; i < smp_plan_count(pruned); i++) {
        check_equal_reports(smp_plan_report(pruned, i), smp_plan_report(whole, i));
    }
    smp_plan_destroy(whole);
    smp_plan_destroy(pruned);
    smp_bounds_destroy(bounds);
    free(all.at);
    smp_plan_space_destroy(space);
    smp_model_destroy(dense);
    small_destroy(&s);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_space),    cmocka_unit_test(test_rules),
    cmocka_unit_test(test_count),
    cmocka_unit_test(test_evaluate), cmocka_unit_test(test_evaluate_host),
    cmocka_unit_test(test_bounds),
    cmocka_unit_test(test_monotonic_bounds),
    cmocka_unit_test(test_brute_force), cmocka_unit_test(test_uneven_nodes),
    cmocka_unit_test(test_deadline), cmocka_unit_test(test_fine_is_larger),
    cmocka_unit_test(test_no_prune),
    cmocka_unit_test(test_threads),
    cmocka_unit_test(test_expert_dimensions),
};

CHECK_MAIN(tests)
