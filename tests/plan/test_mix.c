/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixes put together from jobs with few layers: their times are those of the event engine to
 * the picosecond, their arenas and peaks those of the memory plan to the byte; fewer layers
 * checkpointed or offloaded never take longer nor need less memory; once the parts are there
 * nothing is allocated.
 */
#include "config.h"

#include "tests/plan/small.h"

#include "cost/cost.h"
#include "mesh/settings.h"
#include "plan/mix.h"
#include "plan/word.h"
#include "sim/peaks.h"
#include "sim/sim.h"
#include "step/program.h"

#include <stdlib.h>

/* Where a sanitizer has malloc, it is not counted. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && defined(__GLIBC__)
#define COUNTS_ALLOCATIONS 1
static uint64_t n_allocation;
extern void *__libc_malloc(size_t size);           /* NOLINT: glibc's own */
extern void *__libc_calloc(size_t n, size_t size); /* NOLINT */
extern void *__libc_realloc(void *old, size_t size); /* NOLINT */
void *malloc(size_t size)
{
    n_allocation++;
    return __libc_malloc(size);
}
void *calloc(size_t n, size_t size)
{
    n_allocation++;
    return __libc_calloc(n, size);
}
void *realloc(void *old, size_t size)
{
    n_allocation++;
    return __libc_realloc(old, size);
}
#else
#define COUNTS_ALLOCATIONS 0
static uint64_t n_allocation;
#endif

enum { ALL = SMP_MIX_STEP | SMP_MIX_ALONE | SMP_MIX_UNFIT };

/* A tiny model of many layers on few GPUs, whose tasks do not slow each other. */
static void create(small *s, uint64_t seed)
{
    const uint32_t layers = 18 + small_draw(seed, 100, 30);
    const bool moe = small_draw(seed, 101, 3) == 0;
    small_create(s, seed);
    smp_model_destroy(s->model);
    s->model = moe ? small_moe(layers, 2, s->errors) : small_model(layers, 8, s->errors);
    s->job.model = s->model;
    s->job.batch.global_batch = (uint64_t)s->cluster->gpus * (1U + small_draw(seed, 102, 10));
    s->profile->matrix_beside_collective.value = 0;
    smp_settings_init(&s->job.settings);
}

/* The same, and they do. */
static void create_overlapping(small *s, uint64_t seed)
{
    create(s, seed);
    s->profile->matrix_beside_collective.value = 1.05 + 0.01 * small_draw(seed, 110, 40);
    s->profile->memory_beside_collective.value = 1.0 + 0.01 * small_draw(seed, 111, 40);
    s->profile->collective_beside_matrix.value = 1.0 + 0.01 * small_draw(seed, 112, 60);
    s->profile->collective_beside_memory.value = 1.0 + 0.01 * small_draw(seed, 113, 60);
}

/* A legal point of the fine space; false: none was met. */
static bool draw_job(const smp_plan_space *space, uint64_t seed, uint64_t n, smp_point *point,
                     smp_job *job)
{
    enum { TRIES = 400 };
    for (uint64_t i = 0; i < TRIES; i++) {
        for (uint32_t dim = 0; dim < SMP_DIMS; dim++) {
            point->digit[dim] = small_draw(seed, 1000 + (n * TRIES + i) * SMP_DIMS + dim,
                                           space->n_choice[dim]);
        }
        if (smp_plan_space_job(space, point, job)) {
            return true;
        }
    }
    return false;
}

static void check_mix(const smp_mix *mix, const smp_job *job, smp_errors *errors)
{
    smp_report report;
    check_ok(smp_evaluate_fully(job, errors, &report), errors);
    const smp_memory *memory = &report.memory;
    assert_true(mix->step_ps < 0 || mix->step_ps >= mix->alone_ps);
    if (mix->step_ps >= 0) {
        check_i64(mix->step_ps, report.step_ps);
    }
    if (job->profile->matrix_beside_collective.value <= 0) {
        check_i64(mix->alone_ps, report.step_ps);
    }
    check_u64(mix->arena_bytes, memory->arena_bytes);
    check_u64(mix->device_bytes, memory->peaks[smp_peaks_most(memory, false)].device_bytes);
    check_u64(mix->host_bytes,
              memory->peaks[smp_peaks_most(memory, true)].host_bytes_per_node);
}

typedef void creator(small *s, uint64_t seed);
typedef struct tally { uint64_t drawn, known, timed; } tally;

/* Random points of random spaces against lowering, memory plan and simulation of all layers and
 * micro-batches. */
static tally check_spaces(creator *create_, uint64_t first, uint64_t spaces)
{
    enum { POINTS = 20 };
    tally t = {0};
    for (uint64_t seed = first; seed < first + spaces; seed++) {
        small s;
        create_(&s, seed);
        smp_plan_space *space = smp_plan_space_create(&s.job, true);
        smp_mixes *mixes = smp_mixes_create();
        for (uint64_t i = 0; i < POINTS; i++) {
            smp_point point;
            smp_job job;
            smp_mix mix;
            bool known = false;
            if (!draw_job(space, seed, i, &point, &job)) {
                continue;
            }
            check_ok(smp_mix_price(mixes, &job, ALL, s.errors, &mix, &known), s.errors);
            t.drawn++;
            t.known += known;
            t.timed += known && mix.step_ps >= 0;
            if (known) {
                check_mix(&mix, &job, s.errors);
            }
        }
        smp_mixes_destroy(mixes);
        smp_plan_space_destroy(space);
        small_destroy(&s);
    }
    assert_true(t.drawn > spaces * POINTS / 2);
    assert_true(t.known > t.drawn * 3 / 4);
    return t;
}

static void test_exact(void **state)
{
    (void)state;
    const tally t = check_spaces(create, 1, 60);
    check_u64(t.timed, t.known);
}

/* Where tasks slow each other the time is not known of all. */
static void test_overlapping(void **state)
{
    (void)state;
    const tally t = check_spaces(create_overlapping, 3001, 40);
    assert_true(t.timed > t.known * 3 / 4);
}

/* All mixes of one point share their parts: each is met with many lengths of its runs. */
static void test_families(void **state)
{
    (void)state;
    enum { SPACES = 12, MIXES = 60 };
    for (uint64_t seed = 1; seed <= SPACES; seed++) {
        small s;
        smp_point point;
        smp_job job;
        (seed % 2 == 0 ? create : create_overlapping)(&s, 500 + seed);
        smp_plan_space *space = smp_plan_space_create(&s.job, true);
        smp_mixes *mixes = smp_mixes_create();
        const bool any = draw_job(space, seed, 0, &point, &job);
        for (uint64_t i = 0; any && i < MIXES; i++) {
            static const smp_dim free_dims[] = {SMP_DIM_CHECKPOINTING, SMP_DIM_OFFLOAD,
                                                SMP_DIM_OFFLOAD_LAYERS};
            smp_mix mix;
            bool known = false;
            for (uint32_t d = 0; d < 3; d++) {
                point.digit[free_dims[d]] =
                    small_draw(seed, 9000 + 3 * i + d, space->n_choice[free_dims[d]]);
            }
            if (!smp_plan_space_job(space, &point, &job)) {
                continue;
            }
            check_ok(smp_mix_price(mixes, &job, ALL, s.errors, &mix, &known), s.errors);
            if (known) {
                check_mix(&mix, &job, s.errors);
            }
        }
        smp_mixes_destroy(mixes);
        smp_plan_space_destroy(space);
        small_destroy(&s);
    }
}

/* Where nothing is cut, one matrix is the longest path of the whole step. */
static void test_longest_path(void **state)
{
    (void)state;
    enum { SPACES = 300, POINTS = 20 };
    uint64_t n = 0;
    for (uint64_t seed = 1; seed <= SPACES; seed++) {
        small s;
        small_create(&s, seed);
        s.profile->matrix_beside_collective.value = 0;
        smp_plan_space *space = smp_plan_space_create(&s.job, false);
        for (uint64_t i = 0; i < POINTS; i++) {
            smp_point point;
            smp_job job;
            smp_step *step = NULL;
            smp_simulation *simulation = NULL;
            if (!draw_job(space, seed, i, &point, &job)) {
                continue;
            }
            check_ok(smp_step_lower_apart(&job, s.errors, &step), s.errors);
            check_ok(smp_simulate_times(&job, step, s.errors, &simulation), s.errors);
            if (step->n_program == 1 && !step->programs[0]->host_launches) {
                static const int32_t none[SMP_MOST_RUNS];
                smp_arena *arena = smp_arena_create();
                smp_runs runs;
                smp_runs_find(&job, 1000, &runs);
                const smp_word *word = smp_word_create(
                    step->programs[0], simulation->duration_ps[0], &runs, false, arena, arena,
                    NULL);
                assert_non_null(word);
                check_i64(smp_word_end(word, none, 0), simulation->report.step_ps);
                smp_arena_destroy(arena);
                n++;
            }
            smp_simulation_destroy(simulation);
            smp_step_destroy(step);
        }
        smp_plan_space_destroy(space);
        small_destroy(&s);
    }
    assert_true(n > 3000);
}

/* One layer fewer of either kind. */
static bool fewer(smp_job *job, bool offloaded)
{
    smp_settings *s = &job->settings;
    const uint32_t layers = smp_offloaded_layers(s);
    if (s->checkpointing != SMP_CHECKPOINTING_FIRST || s->checkpointing_layers < 2) {
        return false;
    }
    if (offloaded) {
        s->offload_layers = layers - 1;
    } else {
        s->checkpointing_layers--;
        s->offload_layers = s->offload_layers >= s->checkpointing_layers ? 0
                                                                          : s->offload_layers;
    }
    return layers == 0 ? !offloaded : layers > s->activation_loading_horizon + 1;
}

static void test_monotonic(void **state)
{
    (void)state;
    enum { SPACES = 40, POINTS = 30 };
    uint64_t n = 0;
    for (uint64_t seed = 1; seed <= SPACES; seed++) {
        small s;
        create(&s, 700 + seed);
        smp_plan_space *space = smp_plan_space_create(&s.job, true);
        smp_mixes *mixes = smp_mixes_create();
        for (uint64_t i = 0; i < POINTS; i++) {
            smp_point point;
            smp_job job;
            smp_mix mix, less;
            bool known = false, less_known = false;
            if (!draw_job(space, seed, i, &point, &job)) {
                continue;
            }
            check_ok(smp_mix_price(mixes, &job, ALL, s.errors, &mix, &known), s.errors);
            if (!known || !fewer(&job, i % 2 == 0)) {
                continue;
            }
            check_ok(smp_mix_price(mixes, &job, ALL, s.errors, &less, &less_known), s.errors);
            if (less_known) {
                assert_true(less.alone_ps <= mix.alone_ps);
                assert_true(less.device_bytes >= mix.device_bytes);
                n++;
            }
        }
        smp_mixes_destroy(mixes);
        smp_plan_space_destroy(space);
        small_destroy(&s);
    }
    assert_true(n > 200);
}

static void test_no_allocation(void **state)
{
    (void)state;
    small s;
    smp_point point = {{0}};
    if (!COUNTS_ALLOCATIONS) {
        skip();
    }
    create(&s, 3);
    smp_plan_space *space = smp_plan_space_create(&s.job, true);
    smp_mixes *mixes = smp_mixes_create();
    smp_job job;
    assert_true(draw_job(space, 3, 0, &point, &job));
    uint64_t n = 0, before = 0;
    for (int round = 0; round < 2; round++) {
        before = n_allocation;
        for (uint32_t k = 0; k < space->n_choice[SMP_DIM_CHECKPOINTING]; k++) {
            smp_mix mix;
            bool known = false;
            point.digit[SMP_DIM_CHECKPOINTING] = k;
            if (smp_plan_space_job(space, &point, &job)) {
                check_ok(smp_mix_price(mixes, &job, ALL, s.errors, &mix, &known), s.errors);
                n += known;
            }
        }
        assert_true(round == 1 || n_allocation > before); /* the count works */
    }
    check_u64(n_allocation, before);
    assert_true(n > 20);
    smp_mixes_destroy(mixes);
    smp_plan_space_destroy(space);
    small_destroy(&s);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_exact),
    cmocka_unit_test(test_overlapping),
    cmocka_unit_test(test_families),
    cmocka_unit_test(test_longest_path),
    cmocka_unit_test(test_monotonic),
    cmocka_unit_test(test_no_allocation),
};

CHECK_MAIN(tests)
