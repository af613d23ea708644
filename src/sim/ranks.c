/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks apart: what noise and slow ranks cost, over several seeds.
 *
 * Reads the options, runs, and reports; the simulation itself is apart.c.
 */
#include "config.h"

#include "sim/apart.h"
#include "sim/what_if.h"

#include "base/numeric.h"

#include <gsl/gsl_sort.h>
#include <gsl/gsl_statistics_double.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

bool smp_ranks_asked(const smp_what_if_options *o)
{
    return o->ranks_apart || o->jitter || o->rank_spread > 0 || o->n_slow_rank > 0 ||
           o->n_slow_link > 0;
}

/* ------------------------------------------------------------------ options */

static bool read_cv(const char *text, const char **end_p, double *cv_p)
{
    char *end = NULL;
    const double cv = strtod(text, &end);
    *end_p = end;
    *cv_p = cv;
    return end != text && cv >= 0 && cv <= SMP_NOISE_MOST_CV;
}

static smp_status read_jitter(const smp_simulation *simulation, const char *text,
                              smp_errors *errors, smp_ranks_answer *answer)
{
    const smp_place where = {.file = "--jitter"};
    if (strcmp(text, "profile") == 0) {
        answer->kernel_cv = simulation->job->profile->spread.value;
        answer->collective_cv = simulation->job->profile->collective_spread.value;
        return SMP_OK;
    }
    const char *end = NULL;
    bool good = read_cv(text, &end, &answer->kernel_cv);
    if (good && *end == ',') {
        good = read_cv(end + 1, &end, &answer->collective_cv);
    } else {
        answer->collective_cv = answer->kernel_cv;
    }
    if (!good || *end != '\0') {
        return smp_fail(errors, SMP_INPUT, &where,
                        "'%s': must be a standard deviation over the mean, 0 to %g, one for "
                        "kernels and one for collectives (\"0.05,0.2\"), or \"profile\"",
                        text, SMP_NOISE_MOST_CV);
    }
    return SMP_OK;
}

/* "RANK:FACTOR" each; the factors multiply. */
static smp_status read_slow(const char *option, const char *const *list, size_t n,
                            uint32_t world, smp_errors *errors, double *factors)
{
    const double most = 1e6;
    const smp_place where = {.file = option};
    for (size_t i = 0; i < n; i++) {
        char *end = NULL;
        char *last = NULL;
        const unsigned long long rank = strtoull(list[i], &end, 10);
        const bool ranked = list[i][0] >= '0' && list[i][0] <= '9' && *end == ':';
        const double factor = ranked ? strtod(end + 1, &last) : 0;
        if (!ranked || last == end + 1 || *last != '\0' || !(factor > 0) || factor > most ||
            rank >= world) {
            return smp_fail(errors, SMP_INPUT, &where,
                            "'%s': must be RANK:FACTOR, a rank from 0 to %u and how many "
                            "times as long it takes, above 0 and at most %g",
                            list[i], world - 1, most);
        }
        factors[rank] *= factor;
    }
    return SMP_OK;
}

static double *ones(smp_arena *arena, uint32_t n)
{
    double *factors = SMP_ARENA_ARRAY(arena, n, double);
    for (uint32_t i = 0; i < n; i++) {
        factors[i] = 1.0;
    }
    return factors;
}

/* Lasting factors of the ranks: their counters lie beyond those of any instance. */
static void spread_ranks(double cv, uint64_t seed, uint32_t world, double *factors)
{
    smp_noise_table table;
    smp_noise_fill(&table, cv);
    for (uint32_t rank = 0; rank < world; rank++) {
        uint32_t words[4];
        smp_random4(seed, UINT64_MAX, rank, words);
        factors[rank] *= smp_noise_factor(&table, words[0]);
    }
}

/* ------------------------------------------------------------------ running */

typedef struct noise_source {
    smp_noise_table kernel, collective;
    double *rank_factor, *link_factor, *fixed; /* fixed: rank factors before the spread */
} noise_source;

enum { MOST_RUNS = 10000 };

static smp_status read_options(const smp_simulation *simulation,
                               const smp_what_if_options *o, smp_arena *arena,
                               smp_errors *errors, smp_ranks_answer *answer,
                               noise_source *source)
{
    const smp_place spread = {.file = "--rank-spread"};
    const uint32_t world = answer->ranks;
    smp_status status = SMP_OK;
    if (o->jitter) {
        status = read_jitter(simulation, o->jitter, errors, answer);
    }
    if (o->rank_spread < 0 || o->rank_spread > SMP_NOISE_MOST_CV) {
        status = smp_fail(errors, SMP_INPUT, &spread, "%g: must be from 0 to %g",
                          o->rank_spread, SMP_NOISE_MOST_CV);
    }
    if (o->runs < 1 || o->runs > MOST_RUNS) {
        const smp_place runs = {.file = "--runs"};
        status = smp_fail(errors, SMP_INPUT, &runs, "%u: must be from 1 to %d", o->runs,
                          MOST_RUNS);
    }
    source->fixed = ones(arena, world);
    source->rank_factor = ones(arena, world);
    source->link_factor = ones(arena, world);
    const smp_status ranks = read_slow("--slow-rank", o->slow_ranks, o->n_slow_rank, world,
                                       errors, source->fixed);
    const smp_status links = read_slow("--slow-link", o->slow_links, o->n_slow_link, world,
                                       errors, source->link_factor);
    status = status ? status : ranks ? ranks : links;
    if (status == SMP_OK && answer->kernel_cv > 0) {
        smp_noise_fill(&source->kernel, answer->kernel_cv);
    }
    if (status == SMP_OK && answer->collective_cv > 0) {
        smp_noise_fill(&source->collective, answer->collective_cv);
    }
    return status;
}

static void add_waits(const smp_apart_result *result, smp_ranks_answer *answer)
{
    for (uint32_t i = 0; i < result->n_wait; i++) {
        answer->waits[i].comm = result->waits[i].comm;
        answer->waits[i].collectives = result->waits[i].collectives;
        answer->waits[i].mean_s += 1e-12 * result->waits[i].mean_ps / (double)answer->runs;
    }
    answer->n_wait = result->n_wait;
}

static void run_seeds(smp_apart *apart, noise_source *source, smp_arena *arena,
                      smp_ranks_answer *answer, double *steps_s)
{
    const uint32_t world = answer->ranks;
    uint32_t *last = SMP_ARENA_ARRAY(arena, world, uint32_t);
    const bool lasting = answer->rank_cv > 0 || answer->n_slow_rank > 0;
    const smp_noise noise = {
        .kernel = answer->kernel_cv > 0 ? &source->kernel : NULL,
        .collective = answer->collective_cv > 0 ? &source->collective : NULL,
        .rank_factor = lasting ? source->rank_factor : NULL,
        .link_factor = answer->n_slow_link > 0 ? source->link_factor : NULL};
    for (uint32_t run = 0; run < answer->runs; run++) {
        memcpy(source->rank_factor, source->fixed, world * sizeof *source->fixed);
        if (answer->rank_cv > 0) {
            spread_ranks(answer->rank_cv, answer->seed + run, world, source->rank_factor);
        }
        const smp_apart_run_input input = {.noise = &noise, .seed = answer->seed + run};
        smp_apart_result result;
        smp_apart_run(apart, &input, &result);
        if (run == 0) {
            answer->waits = SMP_ARENA_ARRAY(arena, (size_t)result.n_wait + 1, smp_ranks_wait);
        }
        add_waits(&result, answer);
        steps_s[run] = smp_s_from_ps(result.end_ps);
        last[result.last]++;
    }
    for (uint32_t rank = 0; rank < world; rank++) {
        if (last[rank] > answer->last_runs) {
            answer->last = rank;
            answer->last_runs = last[rank];
        }
    }
}

static void fill_quantiles(smp_ranks_answer *answer, double *steps_s)
{
    const size_t n = answer->runs;
    gsl_sort(steps_s, 1, n);
    answer->mean_s = gsl_stats_mean(steps_s, 1, n);
    answer->least_s = steps_s[0];
    answer->most_s = steps_s[n - 1];
    answer->p10_s = gsl_stats_quantile_from_sorted_data(steps_s, 1, n, 0.1);
    answer->median_s = gsl_stats_median_from_sorted_data(steps_s, 1, n);
    answer->p90_s = gsl_stats_quantile_from_sorted_data(steps_s, 1, n, 0.9);
}

smp_status smp_ranks_answer_find(const smp_simulation *simulation,
                                 const smp_what_if_options *options, smp_arena *arena,
                                 smp_errors *errors, smp_ranks_answer *answer_p)
{
    smp_ranks_answer answer = {
        .ranks = simulation->job->world, .rank_cv = options->rank_spread,
        .n_slow_rank = (uint32_t)options->n_slow_rank,
        .n_slow_link = (uint32_t)options->n_slow_link, .seed = options->seed,
        .quiet_s = simulation->report.step_time_s
    };
    noise_source *source = SMP_ARENA_NEW(arena, noise_source);
    smp_apart *apart = NULL;
    smp_status status = read_options(simulation, options, arena, errors, &answer, source);
    if (status == SMP_OK) {
        status = smp_apart_create(simulation, errors, &apart);
    }
    if (status != SMP_OK) {
        return status;
    }
    /* Without anything random all runs are the same. */
    const bool random = answer.kernel_cv > 0 || answer.collective_cv > 0 || answer.rank_cv > 0;
    answer.runs = random ? options->runs : 1;
    answer.tasks = smp_apart_tasks(apart);
    answer.state_bytes = smp_apart_state_bytes(apart);
    double *steps_s = SMP_ARENA_ARRAY(arena, answer.runs, double);
    run_seeds(apart, source, arena, &answer, steps_s);
    fill_quantiles(&answer, steps_s);
    smp_apart_destroy(apart);
    *answer_p = answer;
    return SMP_OK;
}

/* ------------------------------------------------------------------- output */

static double slowdown(const smp_ranks_answer *a, double step_s)
{
    return a->quiet_s > 0 ? step_s / a->quiet_s : 1;
}

static void text_row(smp_text *text, const smp_ranks_answer *a, const char *name, double step_s)
{
    smp_text_add(text, "  %-34s%10s  %+7.2f %%\n", name, smp_show_seconds(step_s),
                 100 * (slowdown(a, step_s) - 1));
}

void smp_ranks_answer_text(const smp_ranks_answer *a, smp_text *text)
{
    smp_text_add(text,
                 "\nRanks apart: %u actors, %" PRIu64 " tasks; %u run%s from seed %" PRIu64
                 "\n  jitter (sd/mean): kernels %g, collectives %g; lasting, of ranks %g\n",
                 a->ranks, a->tasks, a->runs, a->runs == 1 ? "" : "s", a->seed, a->kernel_cv,
                 a->collective_cv, a->rank_cv);
    if (a->n_slow_rank > 0 || a->n_slow_link > 0) {
        smp_text_add(text, "  slow ranks %u, slow links %u\n", a->n_slow_rank, a->n_slow_link);
    }
    text_row(text, a, "step without noise", a->quiet_s);
    text_row(text, a, a->runs > 1 ? "step, mean" : "step", a->mean_s);
    if (a->runs > 1) {
        text_row(text, a, "step, shortest", a->least_s);
        text_row(text, a, "step, 10 %", a->p10_s);
        text_row(text, a, "step, median", a->median_s);
        text_row(text, a, "step, 90 %", a->p90_s);
        text_row(text, a, "step, longest", a->most_s);
    }
    smp_text_add(text, "  rank %u ends last in %u of %u\n", a->last, a->last_runs, a->runs);
    smp_text_add(text, "  Waiting for the last rank of a group, mean over ranks\n");
    for (uint32_t i = 0; i < a->n_wait; i++) {
        smp_text_add(text, "    %-20s%10" PRIu64 " x %10s =%10s\n", a->waits[i].comm,
                     a->waits[i].collectives,
                     smp_show_seconds(a->waits[i].collectives > 0
                                          ? a->waits[i].mean_s / (double)a->waits[i].collectives
                                          : 0),
                     smp_show_seconds(a->waits[i].mean_s));
    }
}

void smp_ranks_answer_out(const smp_ranks_answer *a, smp_json_out *out)
{
    smp_out_object(out, "ranks_apart");
    smp_out_u64(out, "ranks", a->ranks);
    smp_out_u64(out, "tasks", a->tasks);
    smp_out_u64(out, "state_bytes", a->state_bytes);
    smp_out_u64(out, "runs", a->runs);
    smp_out_u64(out, "seed", a->seed);
    smp_out_double(out, "kernel_cv", a->kernel_cv);
    smp_out_double(out, "collective_cv", a->collective_cv);
    smp_out_double(out, "rank_cv", a->rank_cv);
    smp_out_double(out, "step_without_noise_s", a->quiet_s);
    smp_out_object(out, "step_s");
    smp_out_double(out, "mean", a->mean_s);
    smp_out_double(out, "least", a->least_s);
    smp_out_double(out, "p10", a->p10_s);
    smp_out_double(out, "median", a->median_s);
    smp_out_double(out, "p90", a->p90_s);
    smp_out_double(out, "most", a->most_s);
    smp_out_end_object(out);
    smp_out_double(out, "slowdown", slowdown(a, a->mean_s));
    smp_out_u64(out, "last_rank", a->last);
    smp_out_u64(out, "last_rank_runs", a->last_runs);
    smp_out_array(out, "waits");
    for (uint32_t i = 0; i < a->n_wait; i++) {
        smp_out_object(out, NULL);
        smp_out_string(out, "communicator", a->waits[i].comm);
        smp_out_u64(out, "collectives", a->waits[i].collectives);
        smp_out_double(out, "mean_s", a->waits[i].mean_s);
        smp_out_end_object(out);
    }
    smp_out_end_array(out);
    smp_out_end_object(out);
}
