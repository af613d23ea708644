/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans that differ in the horizon of offloading and in loss chunks alone, and hardly in time:
 * they fill a table without saying anything new, so people see the first of them and which
 * values tie.
 */
#include "config.h"

#include "plan/plan_text.h"

#include "base/numeric.h"
#include "base/text.h"
#include "mesh/settings.h"

#include <string.h>

/* Times tie within this part of the first one's: 0.05 %. */
enum { TIE_PARTS = 2000 };

/* All settings but the two, and the number of GPUs. */
static char *other_settings(smp_arena *arena, const smp_job *job)
{
    smp_settings settings = job->settings;
    smp_text text = {0};
    size_t n = 0;
    const smp_setting_info *table = smp_settings_table(&n);
    settings.activation_loading_horizon = 1;
    settings.loss_chunks = 1;
    smp_text_add(&text, "%u", job->world);
    for (size_t i = 0; i < n; i++) {
        char value[96];
        if (smp_settings_get(&settings, table[i].key, value, sizeof value)) {
            smp_text_add(&text, " %s", value);
        }
    }
    char *kept = smp_arena_strdup(arena, text.data);
    smp_text_free(&text);
    return kept;
}

void smp_plan_find_ties(const smp_plan *plan, uint32_t *first)
{
    const smp_arena_mark mark = smp_arena_here(plan->arena);
    const char **others = SMP_ARENA_ARRAY(plan->arena, plan->n_found, const char *);
    for (uint32_t i = 0; i < plan->n_found; i++) {
        const int64_t step_ps = plan->found[i].report.step_ps;
        others[i] = other_settings(plan->arena, &plan->found[i].job);
        first[i] = i;
        for (uint32_t j = 0; j < i && first[i] == i; j++) {
            const int64_t of_first_ps = plan->found[j].report.step_ps;
            if (first[j] == j && (step_ps - of_first_ps) <= of_first_ps / TIE_PARTS &&
                strcmp(others[i], others[j]) == 0) {
                first[i] = j;
            }
        }
    }
    smp_arena_reset(plan->arena, mark);
}

/* The next plan after i that ties with `of`; n_found: none. */
static uint32_t next_tie(const smp_plan *plan, const uint32_t *first, uint32_t of, uint32_t i)
{
    do {
        i++;
    } while (i < plan->n_found && first[i] != of);
    return i;
}

/* "1-3, 5" */
static void add_numbers(const smp_plan *plan, const uint32_t *first, uint32_t of,
                        smp_text *text)
{
    for (uint32_t i = of; i < plan->n_found;) {
        uint32_t last = i;
        uint32_t next = next_tie(plan, first, of, i);
        while (next == last + 1 && next < plan->n_found) {
            last = next;
            next = next_tie(plan, first, of, next);
        }
        smp_text_add(text, "%s%u", text->length > 0 ? ", " : "", i + 1);
        if (last > i) {
            smp_text_add(text, "-%u", last + 1);
        }
        i = next;
    }
}

static uint32_t horizon_of(const smp_plan *plan, uint32_t i)
{
    const smp_settings *s = &plan->found[i].job.settings;
    return s->offload && s->sm_activation_offloading ? s->activation_loading_horizon : 0;
}

/* "8|4": the horizons with which so many chunks tie; empty without offloading. */
static void add_horizons(const smp_plan *plan, const uint32_t *first, uint32_t of,
                         uint32_t chunks, smp_text *text)
{
    const char *between = "";
    for (uint32_t i = of; i < plan->n_found; i = next_tie(plan, first, of, i)) {
        if (plan->found[i].job.settings.loss_chunks == chunks && horizon_of(plan, i) > 0) {
            smp_text_add(text, "%s%u", between, horizon_of(plan, i));
            between = "|";
        }
    }
}

static bool is_first_with(const smp_plan *plan, const uint32_t *first, uint32_t of, uint32_t i)
{
    for (uint32_t j = of; j < i; j = next_tie(plan, first, of, j)) {
        if (plan->found[j].job.settings.loss_chunks ==
            plan->found[i].job.settings.loss_chunks) {
            return false;
        }
    }
    return true;
}

/* Whether the same horizons tie with each number of chunks. */
static bool is_product(const smp_plan *plan, const uint32_t *first, uint32_t of)
{
    smp_text all = {0};
    bool same = true;
    add_horizons(plan, first, of, plan->found[of].job.settings.loss_chunks, &all);
    for (uint32_t i = of; same && i < plan->n_found; i = next_tie(plan, first, of, i)) {
        smp_text here = {0};
        add_horizons(plan, first, of, plan->found[i].job.settings.loss_chunks, &here);
        same = all.length == here.length &&
               (all.length == 0 || strcmp(all.data, here.data) == 0);
        smp_text_free(&here);
    }
    smp_text_free(&all);
    return same;
}

/* "8|1" */
static void add_chunks(const smp_plan *plan, const uint32_t *first, uint32_t of, smp_text *text)
{
    const char *between = "";
    for (uint32_t i = of; i < plan->n_found; i = next_tie(plan, first, of, i)) {
        if (is_first_with(plan, first, of, i)) {
            smp_text_add(text, "%s%u", between, plan->found[i].job.settings.loss_chunks);
            between = "|";
        }
    }
}

/* "activation_loading_horizon 8|4, loss_chunks 8|1", or where some are missing
 * "activation_loading_horizon 8|4 with loss_chunks 8, 8 with loss_chunks 1" */
static void add_values(const smp_plan *plan, const uint32_t *first, uint32_t of, smp_text *text)
{
    const uint32_t chunks = plan->found[of].job.settings.loss_chunks;
    const char *between = "";
    if (horizon_of(plan, of) == 0) {
        smp_text_add(text, "loss_chunks ");
        add_chunks(plan, first, of, text);
        return;
    }
    smp_text_add(text, "activation_loading_horizon ");
    if (is_product(plan, first, of)) {
        add_horizons(plan, first, of, chunks, text);
        smp_text_add(text, ", loss_chunks ");
        add_chunks(plan, first, of, text);
        return;
    }
    for (uint32_t i = of; i < plan->n_found; i = next_tie(plan, first, of, i)) {
        if (is_first_with(plan, first, of, i)) {
            smp_text_add(text, "%s", between);
            add_horizons(plan, first, of, plan->found[i].job.settings.loss_chunks, text);
            smp_text_add(text, " with loss_chunks %u", plan->found[i].job.settings.loss_chunks);
            between = ", ";
        }
    }
}

void smp_put_ties(const smp_plan *plan, const uint32_t *first, uint32_t of, FILE *stream)
{
    uint64_t least = UINT64_MAX;
    uint64_t most = 0;
    int64_t last_ps = 0;
    smp_text text = {0};
    if (next_tie(plan, first, of, of) >= plan->n_found) {
        return;
    }
    for (uint32_t i = of; i < plan->n_found; i = next_tie(plan, first, of, i)) {
        const smp_report *r = &plan->found[i].report;
        least = r->memory.peak_bytes < least ? r->memory.peak_bytes : least;
        most = r->memory.peak_bytes > most ? r->memory.peak_bytes : most;
        last_ps = r->step_ps > last_ps ? r->step_ps : last_ps;
    }
    const int64_t of_first_ps = plan->found[of].report.step_ps;
    add_numbers(plan, first, of, &text);
    smp_text_add(&text, last_ps == of_first_ps ? " take the same time" : " within %.2g %%",
                 100 * (double)(last_ps - of_first_ps) / (double)of_first_ps);
    smp_text_add(&text, ", peak %s", smp_show_bytes(least));
    if (most > least) {
        smp_text_add(&text, " to %s", smp_show_bytes(most));
    }
    smp_text_add(&text, ": ");
    add_values(plan, first, of, &text);
    smp_put_sentence(stream, text.data);
    smp_text_free(&text);
}
