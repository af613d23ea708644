/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of training: batches, programs, what is noted of them.
 */
#include "config.h"

#include "exec/clock.h"
#include "exec/steps.h"

#include "base/arena.h"
#include "base/text.h"
#include "step/lower.h"

#include <math.h>
#include <string.h>

/* ---- noting ---- */

/* Programs of new shapes are expected at the start; when they keep coming, buckets are too
 * many. */
static void note_compiles(smp_steps *w, uint64_t step, const smp_begun *b)
{
    double seconds = b->compile_seconds;
    uint32_t n = b->compiles;

    w->result->compiles = n;
    w->result->compile_seconds = seconds;
    if (n == w->compiles) {
        return;
    }
    w->compiles = n;
    if (w->options->verbose) {
        smp_log_line(w->log, "step %llu  program for rows of %llu tokens, %u so far, in %s",
                     (unsigned long long)(step + 1), (unsigned long long)b->loaded->seq, n,
                     smp_show_seconds(seconds));
    }
    if (n >= 8 && (n & (n - 1)) == 0) {
        smp_log_line(w->log,
                     "warning: %u programs compiled in %llu steps (%s), one for each "
                     "length of rows; --pad bucket:N with a larger N has fewer",
                     n, (unsigned long long)(step + 1), smp_show_seconds(seconds));
    }
}

static smp_status note_step(smp_steps *w, const smp_begun *b, const smp_pass *pass)
{
    double peak = w->result->peak_flops_per_s, end = (double)pass->end_ns * 1e-9;
    double seconds = end - (b->start_s > w->noted_s ? b->start_s : w->noted_s);
    const float *state = pass->scalars;
    smp_exec_step *s;

    w->noted_s = end;
    SMP_GROW(w->result->steps, pass->step, w->capacity);
    s = &w->result->steps[pass->step];
    *s = (smp_exec_step){ .loss = (double)state[SMP_SCALAR_LOSS],
                          .norm = (double)state[SMP_SCALAR_NORM],
                          .lr = (double)state[SMP_SCALAR_LR],
                          .loss_scale = (double)state[SMP_SCALAR_LOSS_SCALE],
                          .skipped = state[SMP_SCALAR_SKIP] > 0,
                          .rows_cut = (double)state[SMP_SCALAR_ROWS],
                          .seconds = seconds, .seq = b->loaded->seq,
                          .targets = b->loaded->targets_counted };
    s->mfu = peak > 0 ? smp_model_flops(pass->rank.job) / (seconds * peak) : 0;
    w->result->n_step = pass->step + 1;
    return smp_log_step(w->log, pass->step, s, pass->rank.program->arena_bytes, w->errors);
}

static bool same(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

/* A dynamic loss scale is found by steps that overflow; one that stays where it is says nothing
 * new of the next step. */
static smp_status check_skipped(smp_steps *w, const smp_pass *pass)
{
    enum { MOST = 16 };
    const float *state = pass->scalars;
    float scale = state[SMP_SCALAR_LOSS_SCALE], shift = state[SMP_SCALAR_SHIFT];
    bool stays = state[SMP_SCALAR_SKIP] > 0 && same(scale, w->scale) && same(shift, w->shift);

    w->skipped = stays ? w->skipped + 1 : 0;
    w->scale = scale;
    w->shift = shift;
    if (w->skipped < MOST) {
        return SMP_OK;
    }
    if (state[SMP_SCALAR_ROWS] > 0) {
        return smp_fail(w->errors, SMP_SYSTEM, NULL,
                        "step %llu: the last %d steps updated nothing: more rows came to an "
                        "expert rank than moe_rows_factor has room for",
                        (unsigned long long)(pass->step + 1), MOST);
    }
    return smp_fail(w->errors, SMP_SYSTEM, NULL,
                    "step %llu: the last %d steps updated nothing: gradients overflow with a "
                    "loss scale of %g; a lower %s, or another precision, may help",
                    (unsigned long long)(pass->step + 1), MOST, (double)scale,
                    scale > 1 ? "scale or learning rate" : "learning rate");
}

/* The oldest step that was begun: waits for its end and says what it gave.  With `search` a
 * loss that is no number ends the run, all ranks looking for where it comes from. */
static smp_status end_step(smp_steps *w, bool search)
{
    const smp_begun *b = &w->begun[w->n_noted++ % SMP_PASSES];
    const smp_pass *pass = NULL;
    smp_status status = smp_runner_end(w->runner, w->errors, &pass);

    if (status == SMP_OK && w->result) {
        status = note_step(w, b, pass);
        note_compiles(w, pass->step, b);
    }
    if (status == SMP_OK && search && !isfinite(pass->scalars[SMP_SCALAR_LOSS])) {
        status = smp_runner_find_nan(w->runner, pass, w->errors);
    }
    if (status == SMP_OK) { /* so too */
        status = check_skipped(w, pass);
    }
    if (status == SMP_OK && w->options->after_step) {
        w->options->after_step(w->options->context, w->runner, pass->step);
    }
    return status;
}

/* Until `left` steps are begun and not noted. */
static smp_status end_steps(smp_steps *w, uint64_t left, bool search)
{
    smp_status status = SMP_OK;

    while (status == SMP_OK && w->n_begun - w->n_noted > left) {
        status = end_step(w, search);
    }
    return status;
}

smp_status smp_steps_end(smp_steps *w)
{
    return end_steps(w, 0, true);
}

uint64_t smp_steps_unused(const smp_steps *w)
{
    return w->asked - w->n_noted;
}

/* ---- beginning ---- */

bool smp_steps_validates_after(const smp_steps *w, uint64_t step)
{
    uint64_t every = w->options->validate_every, done = step + 1;

    return w->validates && (done == w->options->steps || (every > 0 && done % every == 0));
}

static void ask_for_next(smp_steps *w)
{
    w->asked++;
    w->next_status = smp_loader_next(w->loader, w->begin_errors, &w->next);
}

/* Its batch was asked for with the step before it, and the next one is now, where a step of
 * training follows.  Failures go to begin_errors. */
static smp_status begin_step(smp_steps *w, uint64_t step)
{
    smp_begun *b = &w->begun[step % SMP_PASSES];
    smp_inputs inputs, next;
    smp_status status;

    b->start_s = smp_now_s();
    if (!w->next && w->next_status == SMP_OK) {
        ask_for_next(w);
    }
    if (w->next_status != SMP_OK) {
        return w->next_status;
    }
    b->loaded = w->next;
    inputs = smp_exec_inputs(b->loaded, false);
    w->next = NULL;
    if (step + 1 < w->options->steps && !smp_steps_validates_after(w, step)) {
        ask_for_next(w);
    }
    if (w->next) {
        next = smp_exec_inputs(w->next, false);
    }
    status = smp_runner_begin(w->runner, &inputs, w->next ? &next : NULL, w->begin_errors);
    b->compiles = w->runner->compiles;
    b->compile_seconds = w->runner->compile_seconds;
    w->n_begun += status == SMP_OK;
    return status;
}

smp_status smp_steps_take(smp_steps *w, uint64_t step)
{
    const smp_runner *r = w->runner;
    bool apart = r->ops->runs_apart && r->ops->runs_apart(r->device);
    smp_status status = begin_step(w, step), ended;

    if (status == SMP_OK) {
        return end_steps(w, apart ? 1 : 0, true);
    }
    ended = end_steps(w, 0, false); /* other ranks may have begun it and do not search yet */
    return ended == SMP_OK ? smp_fail(w->errors, status, NULL, "%s",
                                      smp_errors_text(w->begin_errors, 0))
                           : ended;
}
