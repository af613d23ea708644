/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks apart: equal to classes without noise, and to the event engine, with an actor for each
 * rank, where ranks differ for good; random factors by their own counters.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "tests/sim/small_job.h"

#include "base/numeric.h"
#include "mesh/mesh.h"
#include "sim/apart.h"

#include <gsl/gsl_cdf.h>
#include <math.h>

enum { RANDOM_JOBS = 60 };

typedef struct dice { uint64_t seed, count; } dice;

static uint32_t roll(dice *d, uint32_t below)
{
    uint32_t words[4];
    smp_random4(d->seed, 77, d->count++, words);
    return words[0] % below;
}

/* A random job on a small world, simulated; NULL where its settings do not agree. */
static small_job *random_job(uint64_t seed)
{
    static const char *const checkpointing[] = {"none", "full", "selective", "first:2"};
    static const char *const sharding[] = {"full", "optimizer", "none"};
    dice d = {.seed = seed};
    const uint32_t tensor = 1u << roll(&d, 3);
    const uint32_t data = 1 + roll(&d, 12);
    const uint32_t shard = 1 + roll(&d, data);
    char settings[256];
    snprintf(settings, sizeof settings,
             "allow_empty_shards=true tensor_parallel_degree=%u hybrid_shard_degree=%u "
             "checkpointing=%s sharding=%s accumulation=%s offload=%s loss_chunks=%u",
             tensor, shard, checkpointing[roll(&d, 4)], sharding[roll(&d, 3)],
             roll(&d, 2) ? "every" : "last", roll(&d, 4) ? "false" : "true", 1 + roll(&d, 2));
    small_job *s = small_job_read("configs/clusters/dgx-h100.json", tensor * data,
                                  (uint64_t)data * (1 + roll(&d, 3)), settings);
    if (smp_job_resolve(&s->job, s->errors) != SMP_OK) {
        small_job_free(s);
        return NULL;
    }
    check_ok(smp_step_lower(&s->job, s->errors, &s->step), s->errors);
    check_ok(smp_simulate(&s->job, s->step, s->errors, &s->simulation), s->errors);
    return s;
}

/* The same for a model of experts, under every layout, dispatcher and software stack; with
 * few heads of k and v, so that parts of tensor groups meet. */
static small_job *random_experts(uint64_t seed)
{
    static const char config[] =
        "{\"model_type\": \"mixtral\", \"num_hidden_layers\": 3, \"hidden_size\": 256, "
        "\"num_attention_heads\": 8, \"num_key_value_heads\": 2, "
        "\"intermediate_size\": 512, \"vocab_size\": 1003, \"num_local_experts\": 8, "
        "\"num_experts_per_tok\": 2, \"max_position_embeddings\": 2048, "
        "\"tie_word_embeddings\": false}";
    static const char *const stacks[] = {"native", "native", "fsdp1", "fsdp2", "megatron"};
    dice d = {.seed = seed, .count = 1u << 22};
    const uint32_t tensor = 1u << roll(&d, 3);
    const uint32_t expert = 1u << roll(&d, 3);
    const uint32_t rest = 1 + roll(&d, 6);
    const bool nested = roll(&d, 2);
    char settings[320];
    snprintf(settings, sizeof settings,
             "allow_empty_shards=true tensor_parallel_degree=%u expert_parallel_degree=%u "
             "expert_layout=%s hybrid_shard_degree=%u moe_all_to_all_dispatcher=%s "
             "checkpointing=%s imbalance=%s stack=%s",
             tensor, expert, nested ? "nested" : "orthogonal", nested ? expert * rest : rest,
             roll(&d, 3) ? "true" : "false", roll(&d, 2) ? "full" : "none",
             roll(&d, 2) ? "1.5" : "lognormal:1.5,0.3", stacks[roll(&d, 5)]);
    const uint32_t data = expert * rest * (1 + roll(&d, 2));
    small_job *s = small_job_read("configs/clusters/dgx-h100.json", tensor * data,
                                  (uint64_t)data * 2, settings);
    smp_model_destroy(s->model);
    check_ok(smp_model_parse(config, sizeof config - 1, "tiny.json", "tiny", s->errors,
                             &s->model), s->errors);
    s->job.model = s->model;
    if (smp_job_resolve(&s->job, s->errors) != SMP_OK) {
        small_job_free(s);
        return NULL;
    }
    check_ok(smp_step_lower(&s->job, s->errors, &s->step), s->errors);
    check_ok(smp_simulate(&s->job, s->step, s->errors, &s->simulation), s->errors);
    return s;
}

/* ----------------------------------------------------------- ranks that behave alike */

typedef struct comparison { const smp_simulation *simulation; uint64_t seen; } comparison;

static void equal_to_class(void *context, uint32_t klass, uint32_t instance, uint32_t task,
                           const uint32_t *ranks, const int64_t *end_ps, uint32_t count)
{
    comparison *k = context;
    const smp_simulation *s = k->simulation;
    const int64_t merged_ps = s->records[klass][s->record0[klass][instance] + task].end_ps;
    for (uint32_t i = 0; i < count; i++) {
        check_u64(s->step->classes->class_of_rank[ranks[i]], klass);
        check_i64(end_ps[i], merged_ps);
    }
    k->seen += count;
}

static void check_merged(const small_job *s)
{
    smp_apart *apart = NULL;
    check_ok(smp_apart_create(s->simulation, s->errors, &apart), s->errors);
    comparison k = {.simulation = s->simulation};
    const smp_noise none = {0};
    const smp_apart_run_input input = {.noise = &none, .visit = equal_to_class,
                                       .visit_context = &k};
    smp_apart_result result;
    smp_apart_run(apart, &input, &result);
    check_i64(result.end_ps, s->simulation->report.step_ps);
    check_u64(k.seen, smp_apart_tasks(apart));
    smp_apart_destroy(apart);
}

static void merged_is_apart(void **state)
{
    (void)state;
    uint32_t several = 0;
    uint32_t done = 0;
    for (size_t i = 0; i < SMALL_CASES; i++) {
        small_job *s = small_case_simulate(i);
        check_merged(s);
        small_job_free(s);
    }
    for (uint64_t seed = 0; seed < RANDOM_JOBS; seed++) {
        small_job *s = random_job(seed);
        if (s) {
            check_merged(s);
            several += s->step->n_program > 1;
            done++;
            small_job_free(s);
        }
    }
    assert_true(done > RANDOM_JOBS / 3);
    assert_true(several > 0);
}

static void merged_is_apart_with_experts(void **state)
{
    (void)state;
    uint32_t done = 0;
    for (uint64_t seed = 0; seed < 2 * RANDOM_JOBS; seed++) {
        small_job *s = random_experts(seed);
        if (s) {
            check_merged(s);
            done++;
            small_job_free(s);
        }
    }
    assert_true(done > RANDOM_JOBS / 2);
}

/* The same durations without what tasks slow each other down by; returns the step. */
static int64_t simulate_alone(small_job *s)
{
    check_ok(smp_engine_run(s->step, s->simulation->duration_ps, s->simulation->records,
                            (const uint32_t *const *)s->simulation->record0, s->errors,
                            &s->simulation->report.step_ps, &s->simulation->slowest),
             s->errors);
    return s->simulation->report.step_ps;
}

/* The same with a host that issues tasks at random times; true when that takes longer. */
static bool simulate_with_host(small_job *s, uint64_t seed)
{
    dice d = {.seed = seed, .count = 1u << 21};
    const uint32_t n = s->step->n_program;
    int64_t **issue_ps = SMP_ARENA_ARRAY(s->simulation->arena, n, int64_t *);
    const int64_t mean_ps = s->simulation->report.step_ps / 1000;
    for (uint32_t c = 0; c < n; c++) {
        const uint32_t n_task = s->step->programs[c]->n_task;
        issue_ps[c] = SMP_ARENA_ARRAY(s->simulation->arena, n_task, int64_t);
        for (uint32_t t = 0; t < n_task; t++) {
            issue_ps[c][t] = roll(&d, 2) ? mean_ps * roll(&d, 5) : 0;
        }
    }
    const smp_engine_input input = {
        .step = s->step, .duration_ps = s->simulation->duration_ps,
        .host_issue_ps = issue_ps, .records = s->simulation->records,
        .record0 = (const uint32_t *const *)s->simulation->record0};
    const int64_t before_ps = simulate_alone(s);
    check_ok(smp_engine_simulate(&input, s->errors, &s->simulation->report.step_ps,
                                 &s->simulation->slowest), s->errors);
    assert_true(s->simulation->report.step_ps >= before_ps);
    return s->simulation->report.step_ps > before_ps;
}

static void merged_is_apart_with_a_host(void **state)
{
    (void)state;
    uint32_t longer = 0;
    for (uint64_t seed = 0; seed < RANDOM_JOBS; seed++) {
        small_job *s = random_job(seed);
        if (s) {
            longer += simulate_with_host(s, seed);
            check_merged(s);
            small_job_free(s);
        }
    }
    assert_true(longer > 10);
}

/* ------------------------------------------------------------- ranks that differ */

/* One program for each rank: that of its class, meeting in its own groups.  Durations are
 * those of the class times the rank's factors. */
static void expand(const small_job *s, const smp_noise *noise, smp_arena *arena,
                   smp_step *step, int64_t **duration_ps)
{
    const smp_mesh *mesh = s->step->mesh;
    const uint32_t world = smp_mesh_world(mesh);
    uint32_t *members = SMP_ARENA_ARRAY(arena, world, uint32_t);
    *step = *s->step;
    step->n_program = world;
    step->programs = SMP_ARENA_ARRAY(arena, world, smp_program *);
    for (uint32_t r = 0; r < world; r++) {
        const uint32_t c = s->step->classes->class_of_rank[r];
        smp_program *p = SMP_ARENA_NEW(arena, smp_program);
        *p = *s->step->programs[c];
        p->comms = SMP_ARENA_ARRAY(arena, p->n_comm + 1, smp_comm);
        double *link = SMP_ARENA_ARRAY(arena, p->n_comm + 1, double);
        for (uint32_t k = 0; k < p->n_comm; k++) {
            p->comms[k] = s->step->programs[c]->comms[k];
            smp_mesh_members(mesh, p->comms[k].group, r, members);
            const uint32_t me = smp_mesh_group_rank(mesh, p->comms[k].group, r);
            const uint32_t first = me - me % p->comms[k].ranks;
            p->comms[k].meeting = members[first];
            for (uint32_t i = first; i < first + p->comms[k].ranks; i++) {
                link[k] = fmax(link[k], noise->link_factor[members[i]]);
            }
        }
        duration_ps[r] = SMP_ARENA_ARRAY(arena, p->n_task, int64_t);
        for (uint32_t t = 0; t < p->n_task; t++) {
            const uint8_t comm = p->tasks[t].comm;
            const double factor = comm == SMP_NO_COMM ? noise->rank_factor[r] : link[comm];
            duration_ps[r][t] =
                (int64_t)((double)s->simulation->duration_ps[c][t] * factor + 0.5);
        }
        step->programs[r] = p;
    }
}

static void check_factors(small_job *s, uint64_t seed)
{
    smp_arena *arena = smp_arena_create();
    dice d = {.seed = seed, .count = 1u << 20};
    const uint32_t world = smp_mesh_world(s->step->mesh);
    double *rank_factor = SMP_ARENA_ARRAY(arena, world, double);
    double *link_factor = SMP_ARENA_ARRAY(arena, world, double);
    for (uint32_t r = 0; r < world; r++) {
        rank_factor[r] = 1.0 + (roll(&d, 3) == 0 ? 0.01 * roll(&d, 100) : 0.0);
        link_factor[r] = 1.0 + (roll(&d, 3) == 0 ? 0.01 * roll(&d, 100) : 0.0);
    }
    const smp_noise noise = {.rank_factor = rank_factor, .link_factor = link_factor};
    smp_step step;
    int64_t **duration_ps = SMP_ARENA_ARRAY(arena, world, int64_t *);
    expand(s, &noise, arena, &step, duration_ps);
    int64_t end_ps = 0;
    uint32_t slowest = 0;
    (void)simulate_alone(s);
    check_ok(smp_engine_run(&step, duration_ps, NULL, NULL, s->errors, &end_ps, &slowest),
             s->errors);
    smp_apart *apart = NULL;
    check_ok(smp_apart_create(s->simulation, s->errors, &apart), s->errors);
    int64_t *rank_end_ps = SMP_ARENA_ARRAY(arena, world, int64_t);
    const smp_apart_run_input input = {.noise = &noise, .rank_end_ps = rank_end_ps};
    smp_apart_result result;
    smp_apart_run(apart, &input, &result);
    check_i64(result.end_ps, end_ps);
    check_u64(result.last, slowest);
    check_i64(rank_end_ps[slowest], end_ps);
    assert_true(end_ps >= s->simulation->report.step_ps);
    smp_apart_destroy(apart);
    smp_arena_destroy(arena);
}

static void equals_the_engine_with_an_actor_for_each_rank(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < RANDOM_JOBS; seed++) {
        small_job *s = random_job(seed);
        if (s) {
            check_factors(s, seed);
            small_job_free(s);
        }
        s = random_experts(seed);
        if (s) {
            check_factors(s, seed);
            small_job_free(s);
        }
    }
}

/* --------------------------------------------------------------------- jitter */

typedef struct first_kernel {
    const smp_simulation *simulation;
    const smp_noise_table *table;
    uint64_t seed;
    uint32_t seen;
} first_kernel;

/* The first task of the order starts at 0 in every rank: its end is its duration. */
static void check_first(void *context, uint32_t klass, uint32_t instance, uint32_t task,
                        const uint32_t *ranks, const int64_t *end_ps, uint32_t count)
{
    first_kernel *k = context;
    const smp_record *record = &k->simulation->records[klass][task];
    if (instance != 0 || task != 0) {
        return;
    }
    check_i64(record->start_ps, 0);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t words[4];
        smp_random4(k->seed, 0, ranks[i] / 4, words);
        const double factor = smp_noise_factor(k->table, words[ranks[i] % 4]);
        check_i64(end_ps[i], (int64_t)((double)record->end_ps * factor + 0.5));
        k->seen++;
    }
}

static void random_factors_belong_to_rank_and_task(void **state)
{
    (void)state;
    /* one class, and several whose ranks alternate */
    static const small_case cases[] = {
        {"configs/clusters/dgx-h100.json", 8, 16, "checkpointing=full"},
        {"configs/clusters/dgx-h100.json", 7, 7, "allow_empty_shards=true"}};
    static smp_noise_table table;
    smp_noise_fill(&table, 0.2);
    for (size_t i = 0; i < 2; i++) {
        small_job *s = small_job_read(cases[i].cluster, cases[i].gpus, cases[i].batch,
                                      cases[i].settings);
        small_job_simulate(s);
        const smp_program *program = s->step->programs[0];
        const uint32_t first = program->segments[program->order[0].segment].task0;
        assert_true(program->tasks[first].comm == SMP_NO_COMM);
        smp_apart *apart = NULL;
        check_ok(smp_apart_create(s->simulation, s->errors, &apart), s->errors);
        first_kernel k = {s->simulation, &table, 5 + i, 0};
        const smp_noise noise = {.kernel = &table};
        const smp_apart_run_input input = {.noise = &noise, .seed = k.seed,
                                           .visit = check_first, .visit_context = &k};
        smp_apart_result result;
        smp_apart_run(apart, &input, &result);
        check_u64(k.seen, cases[i].gpus);
        smp_apart_destroy(apart);
        small_job_free(s);
    }
}

/* Collectives wait for the last of their ranks, so noise costs time, and more of it more. */
static void jitter_slows_down(void **state)
{
    (void)state;
    small_job *s = small_job_read("configs/clusters/dgx-h100.json", 16, 32,
                                  "tensor_parallel_degree=2 checkpointing=full");
    small_job_simulate(s);
    smp_apart *apart = NULL;
    check_ok(smp_apart_create(s->simulation, s->errors, &apart), s->errors);
    static smp_noise_table tables[2];
    smp_noise_fill(&tables[0], 0.05);
    smp_noise_fill(&tables[1], 0.3);
    double mean_ps[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        for (uint64_t seed = 0; seed < 20; seed++) {
            const smp_noise noise = {.kernel = &tables[i]};
            const smp_apart_run_input input = {.noise = &noise, .seed = seed};
            smp_apart_result result;
            smp_apart_run(apart, &input, &result);
            mean_ps[i] += (double)result.end_ps / 20;
            smp_apart_result again;
            smp_apart_run(apart, &input, &again);
            check_i64(again.end_ps, result.end_ps);
        }
    }
    assert_true(mean_ps[0] > (double)s->simulation->report.step_ps);
    assert_true(mean_ps[1] > mean_ps[0]);
    smp_apart_destroy(apart);
    small_job_free(s);
}

/* ----------------------------------------------------------------- distribution */

/* Against the lognormal's own distribution function: a word stands for the share of words up
 * to its middle. */
static void factors_are_lognormal(void **state)
{
    (void)state;
    static const double cvs[] = {0.001, 0.05, 0.5, 3.0};
    static smp_noise_table table;
    for (size_t i = 0; i < sizeof cvs / sizeof cvs[0]; i++) {
        const double variance = log1p(cvs[i] * cvs[i]);
        smp_noise_fill(&table, cvs[i]);
        double before = 0;
        double sum = 0;
        double squares = 0;
        enum { WORDS = 1 << 16 };
        for (uint32_t w = 0; w < WORDS; w++) {
            const uint32_t word = w << 16 | 0x8000u;
            const double factor = smp_noise_factor(&table, word);
            const double share = gsl_cdf_lognormal_P(factor, -variance / 2, sqrt(variance));
            assert_true(factor > before);
            assert_true(fabs(share - (double)word * 0x1p-32) < 2e-4);
            before = factor;
            sum += factor / WORDS;
            squares += factor * factor / WORDS;
        }
        assert_true(fabs(sum - 1) < 1e-3 + 2e-3 * cvs[i] * cvs[i]);
        if (cvs[i] < 1) {
            assert_true(fabs(sqrt(squares - sum * sum) / cvs[i] - 1) < 1e-2);
        }
        assert_true(smp_noise_factor(&table, 0) > 0);
        assert_true(smp_noise_factor(&table, UINT32_MAX) > smp_noise_factor(&table, ~0x8000u));
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(merged_is_apart),
    cmocka_unit_test(merged_is_apart_with_experts),
    cmocka_unit_test(merged_is_apart_with_a_host),
    cmocka_unit_test(equals_the_engine_with_an_actor_for_each_rank),
    cmocka_unit_test(random_factors_belong_to_rank_and_task),
    cmocka_unit_test(jitter_slows_down),
    cmocka_unit_test(factors_are_lognormal),
};
CHECK_MAIN(tests)
