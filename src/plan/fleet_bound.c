/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which numbers of GPUs there are to compare, what a run on each costs at least, and how
 * costs rank.
 *
 * A run of N tokens has ceil(N / (global_batch x seq_len)) steps; days, GPU hours and money
 * are proportional to the time of a step, so an admissible bound of that (bound.c) is one of
 * each of them.  The bound of a number of GPUs is the least bound of its heads that have a
 * configuration whose bound of memory fits.
 */
#include "config.h"

#include "plan/fleet.h"

#include "base/numeric.h"
#include "mesh/mesh.h"
#include "model/model.h"

#include <math.h>
#include <string.h>

enum { MOST_GPUS = 65536 };

/* ------------------------------------------------------------ numbers of GPUs */

/* Whether some tensor degree leaves a legal job on so many GPUs: heads, batch and pins. */
static bool has_job(const smp_offer *offer, uint32_t gpus)
{
    smp_cluster cluster = *offer->job->cluster;
    smp_job job = *offer->job;
    const bool pinned = smp_settings_given(&job.settings, "tensor_parallel_degree");
    const uint32_t low = pinned ? job.settings.tensor_parallel_degree : 1;
    const uint32_t high = pinned ? low : cluster.gpus_per_node;
    cluster.gpus = gpus;
    cluster.nodes = (uint32_t)smp_ceil_div(gpus, cluster.gpus_per_node);
    for (uint32_t tensor = low; tensor <= high; tensor++) {
        job = *offer->job;
        job.cluster = &cluster;
        job.settings.tensor_parallel_degree = tensor;
        if (!smp_settings_given(&job.settings, "hybrid_shard_degree")) {
            job.settings.hybrid_shard_degree = 1;
        }
        if (smp_job_try(&job)) {
            return true;
        }
    }
    return false;
}

static void add_candidate(smp_fleet *fleet, const smp_offer *offer, uint32_t index,
                          uint32_t gpus)
{
    smp_candidate *candidate = &fleet->candidates[fleet->n_candidate++];
    *candidate = (smp_candidate){.offer = index, .gpus = gpus, .job = *offer->job};
    candidate->job.cluster = smp_cluster_resized(fleet->arena, offer->job->cluster, gpus);
}

/* Numbers that divide a node, then whole nodes; with `fleet`, as candidates. */
static uint32_t list_all(smp_fleet *fleet, const smp_offer *offer, uint32_t index)
{
    const smp_cluster *cluster = offer->job->cluster;
    const uint32_t node = cluster->gpus_per_node;
    const uint32_t most = cluster->nics > 0 ? MOST_GPUS : node;
    uint32_t n = 0;
    for (uint32_t gpus = 1; gpus <= most; gpus += gpus < node ? 1 : node) {
        if ((gpus >= node || node % gpus == 0) && has_job(offer, gpus)) {
            if (fleet) {
                add_candidate(fleet, offer, index, gpus);
            }
            n++;
        }
    }
    return n;
}

void smp_fleet_list(smp_fleet *fleet, const smp_offer *offers, size_t n_offer)
{
    size_t n = 0;
    for (size_t i = 0; i < n_offer; i++) {
        n += offers[i].n_gpus > 0 ? offers[i].n_gpus : list_all(NULL, &offers[i], 0);
    }
    fleet->candidates = SMP_ARENA_ARRAY(fleet->arena, n, smp_candidate);
    for (uint32_t i = 0; i < n_offer; i++) {
        for (size_t k = 0; k < offers[i].n_gpus; k++) {
            add_candidate(fleet, &offers[i], i, offers[i].gpus[k]);
        }
        if (offers[i].n_gpus == 0) {
            list_all(fleet, &offers[i], i);
        }
    }
    fleet->ranked = SMP_ARENA_ARRAY(fleet->arena, fleet->n_candidate, smp_candidate *);
}

/* ---------------------------------------------------------------------- costs */

smp_bill smp_fleet_bill(const smp_fleet *fleet, const smp_candidate *candidate,
                        int64_t step_ps)
{
    const smp_batch *batch = &candidate->job.batch;
    const double price = candidate->job.cluster->price_per_gpu_hour.value;
    const double tokens = (double)batch->seq_len * (double)batch->global_batch;
    const double steps = fleet->options.tokens > 0 ? ceil(fleet->options.tokens / tokens)
                                                   : 1e9 / tokens;
    smp_bill bill = {.seconds = steps * smp_s_from_ps(step_ps)};
    bill.gpu_hours = bill.seconds / 3600 * candidate->gpus;
    bill.money = price > 0 ? price * bill.gpu_hours : (double)NAN;
    return bill;
}

double smp_fleet_use(const smp_fleet *fleet, const smp_bill *bill)
{
    const smp_fleet_options *o = &fleet->options;
    const double time = o->within_s > 0 ? bill->seconds / o->within_s : 0;
    /* without a price nothing is within a budget */
    const double money = !(o->budget > 0)      ? 0
                         : isnan(bill->money) ? (double)INFINITY : bill->money / o->budget;
    return time > money ? time : money;
}

static int compare_doubles(double a, double b)
{
    return (a > b) - (a < b);
}

/* By money; clusters without a price come last and among themselves by GPU hours. */
static int compare_costs(const smp_bill *a, const smp_bill *b)
{
    if (isnan(a->money) != isnan(b->money)) {
        return isnan(a->money) ? 1 : -1;
    }
    return isnan(a->money) ? compare_doubles(a->gpu_hours, b->gpu_hours)
                           : compare_doubles(a->money, b->money);
}

int smp_fleet_compare(const smp_fleet *fleet, const smp_candidate *a, const smp_candidate *b)
{
    int order = 0;
    switch (fleet->options.plan.objective) {
    case SMP_OBJECTIVE_TIME:
        order = compare_doubles(a->bill.seconds, b->bill.seconds);
        break;
    case SMP_OBJECTIVE_COST:
        order = compare_costs(&a->bill, &b->bill);
        break;
    case SMP_OBJECTIVE_GPUS:
        break;
    }
    if (order == 0) {
        order = (a->gpus > b->gpus) - (a->gpus < b->gpus);
    }
    if (order == 0) { /* the fewest GPUs of two clusters */
        order = compare_doubles(a->bill.seconds, b->bill.seconds);
    }
    return order != 0 ? order : (a->offer > b->offer) - (a->offer < b->offer);
}

/* --------------------------------------------------------------------- bounds */

/* Lowers *least_ps_p to the bound of this head where that is lower and some leaf of its mesh
 * may fit. */
static smp_status bound_mesh(const smp_plan_space *space, smp_bounds *bounds, smp_point point,
                             uint64_t limit_bytes, smp_errors *errors, smp_candidate *candidate,
                             int64_t *least_ps_p)
{
    int64_t bound_ps = -1; /* not known yet */
    do {
        smp_job job;
        uint64_t bytes = 0;
        if (!smp_plan_space_job(space, &point, &job)) {
            continue;
        }
        smp_status st = SMP_OK;
        if (bound_ps < 0) {
            st = smp_bound_time(bounds, &job, false, errors, &bound_ps);
        }
        if (st == SMP_OK && bound_ps >= *least_ps_p) {
            return SMP_OK;
        }
        if (st == SMP_OK) {
            st = smp_bound_memory(bounds, &job, true, errors, &bytes);
        }
        if (st != SMP_OK || bytes <= limit_bytes) {
            candidate->standing = SMP_STANDING_OPEN;
            *least_ps_p = bound_ps;
            return st;
        }
        candidate->standing = candidate->standing == SMP_STANDING_RULES
                                  ? SMP_STANDING_MEMORY : candidate->standing;
    } while (smp_plan_space_next(space, &point, SMP_DIM_LEAF, SMP_DIMS));
    return SMP_OK;
}

smp_status smp_fleet_bound(const smp_fleet *fleet, smp_bounds *bounds,
                           smp_candidate *candidate, smp_errors *errors)
{
    const double memory = candidate->job.cluster->memory_bytes.value;
    const uint64_t limit = (uint64_t)(memory * (1 - fleet->options.plan.margin_frac));
    smp_plan_space *space = smp_plan_space_create(&candidate->job, fleet->options.plan.fine);
    smp_point point = {{0}};
    smp_status st = SMP_OK;
    int64_t least_ps = INT64_MAX;
    candidate->standing = SMP_STANDING_RULES;
    do {
        st = bound_mesh(space, bounds, point, limit, errors, candidate, &least_ps);
    } while (st == SMP_OK && smp_plan_space_next(space, &point, 0, SMP_DIM_LEAF));
    smp_plan_space_destroy(space);
    if (st == SMP_OK && candidate->standing == SMP_STANDING_OPEN) {
        candidate->bill = smp_fleet_bill(fleet, candidate, least_ps);
    }
    return st;
}
