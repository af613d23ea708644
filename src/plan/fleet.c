/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which cluster and how many GPUs: best first over numbers of GPUs, each with its exact plan.
 *
 * Candidates are taken in the order of the bound on their rank.  One whose bound misses a
 * limit cannot meet it; when the next cannot rank before the last of those kept, none that is
 * left can, so what is kept is the best of all, the same as without pruning.  Where nothing
 * meets the limits, the candidate that misses them least is found in the same way, by the
 * larger share of a limit that it uses.
 */
#include "config.h"

#include "plan/fleet.h"
#include "plan/front.h"

#include "base/numeric.h"
#include "base/text.h"
#include "model/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* -------------------------------------------------------------------- inputs */

static const char *currency_of(const smp_cluster *cluster)
{
    return cluster->price_per_gpu_hour.value > 0
               ? cluster->currency ? cluster->currency : "USD" : NULL;
}

static smp_status check_prices(smp_fleet *fleet, const smp_offer *offers, size_t n_offer,
                               smp_errors *errors)
{
    const smp_cluster *first = NULL;
    for (size_t i = 0; i < n_offer; i++) {
        const smp_cluster *cluster = offers[i].job->cluster;
        const char *currency = currency_of(cluster);
        if (!currency && fleet->options.budget > 0) {
            const smp_place place = {.file = "--budget"};
            return smp_fail(errors, SMP_INPUT, &place,
                            "cluster %s has no price (price.per_gpu_hour), so no run on it "
                            "can be held against a budget", cluster->name);
        }
        if (currency && fleet->currency && strcmp(currency, fleet->currency) != 0) {
            const smp_place place = {.file = "--cluster"};
            return smp_fail(errors, SMP_INPUT, &place,
                            "%s is priced in %s and %s in %s: costs can be compared in one "
                            "currency only", first->name, fleet->currency, cluster->name,
                            currency);
        }
        if (currency && !fleet->currency) {
            fleet->currency = currency;
            first = cluster;
        }
    }
    return SMP_OK;
}

/* -------------------------------------------------------------------- search */

static void add_info(smp_fleet *fleet, const smp_plan *plan)
{
    fleet->info.enumerated += plan->info.enumerated;
    fleet->info.pruned += plan->info.pruned;
    fleet->info.evaluated += plan->info.evaluated;
    fleet->info.exhausted = fleet->info.exhausted && plan->info.exhausted;
    fleet->info.gap = plan->info.gap > fleet->info.gap ? plan->info.gap : fleet->info.gap;
    fleet->info.seconds += plan->info.seconds;
}

/* Of the search of one number of GPUs. */
static smp_plan_options options_of(const smp_fleet *fleet)
{
    smp_plan_options options = fleet->options.plan;
    options.objective = SMP_OBJECTIVE_TIME;
    options.top = 1;
    options.brief = true;
    options.front = false;
    options.progress = NULL;
    return options;
}

/* Finds the best plan of a candidate.  What it fails for is told only when the system
 * failed: that nothing fits or follows the rules here is no failure of the whole. */
static smp_status search_one(smp_fleet *fleet, smp_candidate *candidate, smp_errors *errors)
{
    const smp_plan_options options = options_of(fleet);
    smp_errors *own = smp_errors_create();
    smp_status st = smp_plan_search(&candidate->job, &options, own, &candidate->plan);
    if (st == SMP_OK || st == SMP_INFEASIBLE) {
        candidate->standing = st == SMP_OK ? SMP_STANDING_FOUND : SMP_STANDING_MEMORY;
        fleet->searched++;
        add_info(fleet, candidate->plan);
        st = SMP_OK;
    } else if (st == SMP_INPUT) {
        candidate->standing = SMP_STANDING_RULES;
        st = SMP_OK;
    } else {
        st = smp_fail(errors, st, NULL, "%s", smp_errors_text(own, 0));
    }
    if (candidate->standing == SMP_STANDING_FOUND) {
        candidate->bill =
            smp_fleet_bill(fleet, candidate, candidate->plan->found[0].report.step_ps);
        candidate->meets = smp_fleet_use(fleet, &candidate->bill) <= 1;
    }
    smp_errors_destroy(own);
    return st;
}

static void keep(smp_fleet *fleet, smp_candidate *candidate)
{
    uint32_t i = fleet->n_ranked++;
    while (i > 0 && smp_fleet_compare(fleet, candidate, fleet->ranked[i - 1]) < 0) {
        fleet->ranked[i] = fleet->ranked[i - 1];
        i--;
    }
    fleet->ranked[i] = candidate;
}

static uint32_t top_of(const smp_fleet *fleet)
{
    return fleet->options.plan.top > 0 ? fleet->options.plan.top : 5;
}

/* Whether a candidate may still rank among those to find. */
static bool is_open(const smp_fleet *fleet, const smp_candidate *candidate)
{
    return !fleet->options.plan.prune || fleet->n_ranked < top_of(fleet) ||
           smp_fleet_compare(fleet, candidate, fleet->ranked[top_of(fleet) - 1]) < 0;
}

/* The open candidate that may rank first; NULL: none is left. */
static smp_candidate *next_open(const smp_fleet *fleet)
{
    smp_candidate *best = NULL;
    for (uint32_t i = 0; i < fleet->n_candidate; i++) {
        smp_candidate *candidate = &fleet->candidates[i];
        if (candidate->standing == SMP_STANDING_OPEN &&
            (!best || smp_fleet_compare(fleet, candidate, best) < 0)) {
            best = candidate;
        }
    }
    return best;
}

static void report_progress(const smp_fleet *fleet, uint32_t done)
{
    if (fleet->options.plan.progress) {
        fleet->options.plan.progress(fleet->options.plan.progress_context, done,
                                     fleet->n_candidate);
    }
}

static smp_status rank_all(smp_fleet *fleet, smp_errors *errors)
{
    smp_candidate *candidate = next_open(fleet);
    while (candidate && is_open(fleet, candidate)) {
        const smp_status st = search_one(fleet, candidate, errors);
        if (st != SMP_OK) {
            return st;
        }
        if (candidate->meets) {
            keep(fleet, candidate);
        }
        report_progress(fleet, fleet->searched);
        candidate = next_open(fleet);
    }
    return SMP_OK;
}

/* ---------------------------------------------------------------- the nearest */

static bool is_over(const smp_candidate *candidate)
{
    return candidate->standing == SMP_STANDING_LATE ||
           candidate->standing == SMP_STANDING_DEAR;
}

/* Of those over a limit, or of those whose plan is known, the one that uses least of the
 * limits; the first of equals. */
static smp_candidate *least_use(const smp_fleet *fleet, bool known)
{
    smp_candidate *best = NULL;
    double least = (double)INFINITY;
    for (uint32_t i = 0; i < fleet->n_candidate; i++) {
        smp_candidate *candidate = &fleet->candidates[i];
        const double use = smp_fleet_use(fleet, &candidate->bill);
        if ((known ? candidate->standing == SMP_STANDING_FOUND : is_over(candidate)) &&
            (!best || use < least)) {
            best = candidate;
            least = use;
        }
    }
    return best;
}

static smp_status find_nearest(smp_fleet *fleet, smp_errors *errors)
{
    for (;;) {
        smp_candidate *over = least_use(fleet, false);
        fleet->nearest = least_use(fleet, true);
        if (!over || (fleet->nearest && smp_fleet_use(fleet, &over->bill) >=
                                            smp_fleet_use(fleet, &fleet->nearest->bill))) {
            return SMP_OK;
        }
        const smp_status st = search_one(fleet, over, errors);
        if (st != SMP_OK) {
            return st;
        }
    }
}

/* Where nothing fits, the largest number of GPUs of each cluster lacks least. */
static smp_status find_leanest(smp_fleet *fleet, smp_errors *errors)
{
    for (uint32_t i = 0; i < fleet->n_candidate; i++) {
        smp_candidate *c = &fleet->candidates[i];
        const bool last = i + 1 == fleet->n_candidate || c[1].offer != c->offer;
        if (last && c->standing == SMP_STANDING_MEMORY && !c->plan) {
            const smp_status st = search_one(fleet, c, errors);
            if (st != SMP_OK) {
                return st;
            }
        }
        if (c->plan && c->plan->has_nearest &&
            (!fleet->nearest || c->plan->nearest_excess_bytes <
                                    fleet->nearest->plan->nearest_excess_bytes)) {
            fleet->nearest = c;
        }
    }
    return SMP_OK;
}

/* No candidate follows the rules: the first one's broken rules are told. */
static smp_status explain_empty(smp_fleet *fleet, const smp_offer *offers, smp_errors *errors)
{
    if (fleet->n_candidate == 0) {
        return smp_fail(errors, SMP_INPUT, NULL,
                        "a global batch of %llu sequences cannot be divided over any number of "
                        "GPUs with the settings given: choose a multiple of a power of two",
                        (unsigned long long)offers[0].job->batch.global_batch);
    }
    const smp_plan_options options = options_of(fleet);
    smp_plan *plan = NULL;
    const smp_status st =
        smp_plan_search(&fleet->candidates[0].job, &options, errors, &plan);
    smp_plan_destroy(plan);
    return st;
}

static smp_status fail_memory(const smp_fleet *fleet, smp_errors *errors)
{
    const smp_candidate *near = fleet->nearest;
    return smp_fail(errors, SMP_INFEASIBLE, NULL,
                    "no configuration of %s fits on any number of GPUs compared: the nearest, "
                    "%u GPUs of %s, lacks %s", near->job.model->name, near->gpus,
                    near->job.cluster->name, smp_show_bytes(near->plan->nearest_excess_bytes));
}

static smp_status fail_limits(const smp_fleet *fleet, smp_errors *errors)
{
    const smp_fleet_options *o = &fleet->options;
    const smp_bill *bill = &fleet->nearest->bill;
    smp_text text = {0};
    smp_text_add(&text, "no number of GPUs compared trains %s on %s tokens",
                 fleet->nearest->job.model->name, smp_show_count(o->tokens));
    if (o->within_s > 0) {
        smp_text_add(&text, " within %s", smp_show_seconds(o->within_s));
    }
    if (o->budget > 0) {
        smp_text_add(&text, " for %s %s", fleet->currency, smp_show_count(o->budget));
    }
    smp_text_add(&text, ": the nearest, %u GPUs of %s, takes %.4g days", fleet->nearest->gpus,
                 fleet->nearest->job.cluster->name, bill->seconds / 86400);
    if (!isnan(bill->money)) {
        smp_text_add(&text, " and %s %s", fleet->currency, smp_show_count(bill->money));
    }
    const smp_status st = smp_fail(errors, SMP_INFEASIBLE, NULL, "%s", text.data);
    smp_text_free(&text);
    return st;
}

static smp_status explain_nothing(smp_fleet *fleet, const smp_offer *offers,
                                  smp_errors *errors)
{
    smp_status st = find_nearest(fleet, errors);
    if (st == SMP_OK && fleet->nearest) {
        return fail_limits(fleet, errors);
    }
    if (st == SMP_OK) {
        st = find_leanest(fleet, errors);
    }
    if (st != SMP_OK) {
        return st;
    }
    return fleet->nearest ? fail_memory(fleet, errors) : explain_empty(fleet, offers, errors);
}

/* -------------------------------------------------------------------- public */

/* Bounds of all candidates.  What bounds measure depends on the cluster, but not on how many
 * of its nodes are used: one memo for each offer. */
static smp_status bound_all(smp_fleet *fleet, smp_errors *errors)
{
    const smp_fleet_options *o = &fleet->options;
    smp_bounds *bounds = NULL;
    smp_status st = SMP_OK;
    for (uint32_t i = 0; i < fleet->n_candidate && st == SMP_OK; i++) {
        smp_candidate *c = &fleet->candidates[i];
        if (i == 0 || c->offer != c[-1].offer) {
            smp_bounds_destroy(bounds);
            bounds = smp_bounds_create();
        }
        st = smp_fleet_bound(fleet, bounds, c, errors);
        if (st == SMP_OK && c->standing == SMP_STANDING_OPEN && o->plan.prune) {
            c->standing = o->within_s > 0 && c->bill.seconds > o->within_s ? SMP_STANDING_LATE
                          : o->budget > 0 && c->bill.money > o->budget ? SMP_STANDING_DEAR
                                                                       : SMP_STANDING_OPEN;
        }
    }
    smp_bounds_destroy(bounds);
    return st;
}

uint32_t smp_fleet_shown(const smp_fleet *fleet)
{
    return fleet->n_ranked < top_of(fleet) ? fleet->n_ranked : top_of(fleet);
}

/* The fronts of those that are shown, as one of runs: their time, memory and money (GPU hours
 * where no cluster has a price). */
static smp_status find_front(smp_fleet *fleet, smp_errors *errors)
{
    for (uint32_t i = 0; i < smp_fleet_shown(fleet); i++) {
        const smp_candidate *c = fleet->ranked[i];
        smp_bounds *bounds = smp_bounds_create();
        const smp_status st = smp_front_find(c->plan, bounds, &c->job, errors);
        smp_bounds_destroy(bounds);
        if (st != SMP_OK) {
            return st;
        }
        for (size_t k = 0; k < c->plan->front.n; k++) {
            smp_front_point p = c->plan->front.at[k];
            const smp_bill bill = smp_fleet_bill(fleet, c, p.found.report.step_ps);
            p.time_s = bill.seconds;
            p.cost = fleet->currency ? bill.money : bill.gpu_hours;
            p.cost = isnan(p.cost) ? (double)INFINITY : p.cost;
            smp_front_add(&fleet->front, &p);
        }
    }
    smp_front_sort(&fleet->front);
    return SMP_OK;
}

static smp_status run(smp_fleet *fleet, const smp_offer *offers, smp_errors *errors)
{
    smp_status st = bound_all(fleet, errors);
    if (st == SMP_OK) {
        st = rank_all(fleet, errors);
    }
    if (st == SMP_OK && fleet->n_ranked == 0) {
        return explain_nothing(fleet, offers, errors);
    }
    if (st == SMP_OK && fleet->options.plan.front) {
        st = find_front(fleet, errors);
    }
    return st == SMP_OK ? smp_plan_explain(fleet->ranked[0]->plan, errors) : st;
}

smp_status smp_fleet_search(const smp_offer *offers, size_t n_offer,
                            const smp_fleet_options *options, smp_errors *errors,
                            smp_fleet **fleet_p)
{
    smp_arena *arena = smp_arena_create();
    smp_fleet *fleet = SMP_ARENA_NEW(arena, smp_fleet);
    fleet->arena = arena;
    fleet->options = *options;
    fleet->info.exhausted = true;
    smp_status st = check_prices(fleet, offers, n_offer, errors);
    if (st == SMP_OK) {
        smp_fleet_list(fleet, offers, n_offer);
        st = run(fleet, offers, errors);
    }
    if (st == SMP_OK || st == SMP_INFEASIBLE) {
        *fleet_p = fleet;
    } else {
        smp_fleet_destroy(fleet);
    }
    return st;
}

void smp_fleet_destroy(smp_fleet *fleet)
{
    if (fleet) {
        for (uint32_t i = 0; i < fleet->n_candidate; i++) {
            smp_plan_destroy(fleet->candidates[i].plan);
        }
        free(fleet->front.at);
        smp_arena_destroy(fleet->arena);
    }
}

const smp_plan *smp_fleet_best(const smp_fleet *fleet)
{
    return fleet->n_ranked > 0 ? fleet->ranked[0]->plan : NULL;
}
