/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions about a simulated step: which are asked, and their answers behind the report.
 */
#include "config.h"

#include "sim/what_if.h"

void smp_what_if_options_init(smp_what_if_options *options)
{
    enum { RUNS = 8 };
    *options = (smp_what_if_options){.seed = 1, .runs = RUNS, .mtbf_h = -1, .save_s = -1,
                                     .load_s = -1, .restart_s = -1, .tokens = -1};
}

/* A training run takes the step with its noise and the goodput with its failures, where those
 * are asked for too. */
static smp_status find_runs(const smp_simulation *simulation, const smp_what_if_options *o,
                            smp_errors *errors, smp_what_ifs *w)
{
    const double step_s =
        w->has_ranks ? w->ranks.mean_s : simulation->report.step_time_s;
    smp_status status = SMP_OK;
    if (o->mtbf_h >= 0) {
        status = smp_failures_answer_find(simulation, o, step_s, errors, &w->failures);
        w->has_failures = status == SMP_OK;
    }
    if (status == SMP_OK && o->tokens >= 0) {
        status = smp_training_answer_find(simulation, o->tokens, step_s,
                                          w->has_failures ? w->failures.goodput : 1, errors,
                                          &w->training);
        w->has_training = status == SMP_OK;
    }
    return status;
}

smp_status smp_what_ifs_find(const smp_simulation *simulation,
                             const smp_what_if_options *options, smp_errors *errors,
                             smp_what_ifs **what_ifs_p)
{
    smp_arena *arena = smp_arena_create();
    smp_what_ifs *w = SMP_ARENA_NEW(arena, smp_what_ifs);
    smp_status status = SMP_OK;
    w->arena = arena;
    if (smp_ranks_asked(options)) {
        status = smp_ranks_answer_find(simulation, options, arena, errors, &w->ranks);
        w->has_ranks = status == SMP_OK;
    }
    if (status == SMP_OK && options->n_lost_rank > 0) {
        status = smp_lost_answer_find(simulation, options, errors, &w->lost);
        w->has_lost = status == SMP_OK;
    }
    if (status == SMP_OK) {
        status = find_runs(simulation, options, errors, w);
    }
    const bool pytorch = simulation->step->programs[0]->host_launches;
    if (status == SMP_OK && !options->allocator && pytorch &&
        simulation->job->settings.fsdp_cache_flush_warnings) {
        smp_allocator_warn(simulation, errors);
    }
    if (status == SMP_OK && options->allocator) {
        status = smp_allocator_answer_find(simulation, options->allocator, errors,
                                           &w->allocator);
        w->has_allocator = status == SMP_OK;
    }
    if (status != SMP_OK) {
        smp_what_ifs_destroy(w);
        return status;
    }
    *what_ifs_p = w;
    return SMP_OK;
}

void smp_what_ifs_destroy(smp_what_ifs *what_ifs)
{
    if (what_ifs) {
        smp_arena_destroy(what_ifs->arena);
    }
}

void smp_what_ifs_out(const smp_what_ifs *w, smp_json_out *out)
{
    if (w && w->has_ranks) {
        smp_ranks_answer_out(&w->ranks, out);
    }
    if (w && w->has_lost) {
        smp_lost_answer_out(&w->lost, out);
    }
    if (w && w->has_failures) {
        smp_failures_answer_out(&w->failures, out);
    }
    if (w && w->has_training) {
        smp_training_answer_out(&w->training, out);
    }
    if (w && w->has_allocator) {
        smp_allocator_answer_out(&w->allocator, out);
    }
}

void smp_what_ifs_text(const smp_what_ifs *w, smp_text *text)
{
    if (w && w->has_ranks) {
        smp_ranks_answer_text(&w->ranks, text);
    }
    if (w && w->has_lost) {
        smp_lost_answer_text(&w->lost, text);
    }
    if (w && w->has_failures) {
        smp_failures_answer_text(&w->failures, text);
    }
    if (w && w->has_training) {
        smp_training_answer_text(&w->training, text);
    }
    if (w && w->has_allocator) {
        smp_allocator_answer_text(&w->allocator, text);
    }
}
