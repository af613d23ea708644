/* SPDX-License-Identifier: Apache-2.0 */
/* Planning one job: the search on one number of GPUs or on several, what confirms the best, and
 * what is told of them. */
#include "config.h"

#include "plan/plan.h"

#include "plan/lean.h"
#include "plan/search.h"

#include "base/numeric.h"
#include "step/lower.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

/* -------------------------------------------------------------------- limits */

static double now_s(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

bool smp_plan_is_late(const smp_plan *plan)
{
    return plan->options.deadline_s > 0 && now_s() - plan->start_s > plan->options.deadline_s;
}

void smp_plan_stop(smp_plan *plan, int64_t best_ps, int64_t bound_ps)
{
    const double gap = best_ps > 0 ? (double)(best_ps - bound_ps) / (double)best_ps : 1;
    plan->stopped = true;
    plan->info.gap = gap > plan->info.gap ? gap : plan->info.gap;
}

uint32_t smp_plan_top(const smp_plan *plan)
{
    return plan->options.top > 0 ? plan->options.top : 5;
}

uint64_t smp_plan_limit(const smp_plan *plan, const smp_job *job)
{
    return (uint64_t)(job->cluster->memory_bytes.value * (1 - plan->options.margin_frac));
}

/* A day of a step at the peak rate of its GPUs.  Times are 64-bit picoseconds, 106 days, and
 * real ones are longer than that: a job beyond it is not searched. */
enum { MOST_IDEAL_S = 86400 };

static double ideal_s(const smp_job *job)
{
    double peak = 0;
    for (int d = 0; d < SMP_DTYPES; d++) {
        peak = fmax(peak, job->profile->peak_flops[d].value);
    }
    return smp_model_flops(job) / (peak * job->cluster->gpus);
}

/* ------------------------------------------------------------------ the best */

bool smp_is_faster(const smp_found *a, const smp_found *b)
{
    return a->report.step_ps != b->report.step_ps ? a->report.step_ps < b->report.step_ps
                                                  : a->code < b->code;
}

/* As smp_is_faster, over numbers of GPUs too. */
static bool is_preferred(smp_objective objective, const smp_found *a, const smp_found *b)
{
    if (objective == SMP_OBJECTIVE_COST) {
        const double cost_a = (double)a->report.step_ps * a->job.world;
        const double cost_b = (double)b->report.step_ps * b->job.world;
        if (cost_a < cost_b || cost_a > cost_b) {
            return cost_a < cost_b;
        }
    }
    if (objective != SMP_OBJECTIVE_TIME && a->job.world != b->job.world) {
        return a->job.world < b->job.world;
    }
    return smp_is_faster(a, b);
}

void smp_plan_merge(smp_plan *plan, const smp_found *found, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = plan->n_found;
        while (at > 0 &&
               is_preferred(plan->options.objective, &found[i], &plan->found[at - 1])) {
            at--;
        }
        if (at == smp_plan_top(plan)) {
            continue;
        }
        if (plan->n_found < smp_plan_top(plan)) {
            plan->n_found++;
        }
        for (uint32_t k = plan->n_found - 1; k > at; k--) {
            plan->found[k] = plan->found[k - 1];
        }
        plan->found[at] = found[i];
    }
}

/* ----------------------------------------------------------- numbers of GPUs */

const smp_cluster *smp_cluster_resized(smp_arena *arena, const smp_cluster *cluster,
                                       uint32_t gpus)
{
    smp_cluster *copy = SMP_ARENA_NEW(arena, smp_cluster);
    *copy = *cluster;
    copy->gpus = gpus;
    copy->nodes = (uint32_t)smp_ceil_div(gpus, cluster->gpus_per_node);
    return copy;
}

uint32_t smp_next_gpus(const smp_cluster *cluster, uint32_t gpus)
{
    const uint32_t node = cluster->gpus_per_node;
    if (gpus >= node) {
        return gpus - gpus % node + node;
    }
    do {
        gpus++;
    } while (node % gpus != 0);
    return gpus;
}

/* --objective time looks at the cluster as it is; cost and gpus at smaller ones too. */
static smp_status search_all(smp_plan *plan, smp_bounds *bounds, smp_errors *errors)
{
    const smp_cluster *cluster = plan->job.cluster;
    const smp_objective objective = plan->options.objective;
    if (objective == SMP_OBJECTIVE_TIME) {
        return smp_search(plan, bounds, &plan->job, errors);
    }
    for (uint32_t gpus = 1; gpus < cluster->gpus; gpus = smp_next_gpus(cluster, gpus)) {
        if (plan->n_found > 0 && smp_plan_is_late(plan)) {
            smp_plan_stop(plan, 0, 0); /* of the other numbers nothing is known */
            return SMP_OK;
        }
        /* only whole fractions for cost, or large clusters would take long */
        if (objective == SMP_OBJECTIVE_COST && cluster->gpus % gpus != 0) {
            continue;
        }
        smp_job job = plan->job;
        job.cluster = smp_cluster_resized(plan->arena, cluster, gpus);
        if (ideal_s(&job) > MOST_IDEAL_S) {
            continue;
        }
        const smp_status st = smp_search(plan, bounds, &job, errors);
        if (st != SMP_OK || (objective == SMP_OBJECTIVE_GPUS && plan->n_found > 0)) {
            return st;
        }
    }
    return smp_search(plan, bounds, &plan->job, errors);
}

/* -------------------------------------------------------------------- public */

void smp_plan_options_init(smp_plan_options *options)
{
    *options = (smp_plan_options){
        .objective = SMP_OBJECTIVE_TIME, .top = 5, .prune = true, .margin_frac = 0.03};
}

/* Finalists are confirmed by simulating every micro-batch. */
static smp_status confirm(smp_plan *plan, smp_errors *errors)
{
    for (uint32_t i = 0; i < plan->n_found; i++) {
        const smp_status st =
            smp_evaluate_fully(&plan->found[i].job, errors, &plan->found[i].report);
        if (st != SMP_OK) {
            return st;
        }
    }
    return SMP_OK;
}

static smp_status run(smp_plan *plan, smp_errors *errors)
{
    if (ideal_s(&plan->job) > MOST_IDEAL_S) {
        return smp_fail(errors, SMP_INPUT, NULL,
                        "a step takes %.3g days at the peak rate of %u GPUs: must be at most "
                        "1; lower seq_len or global_batch, or use more GPUs",
                        ideal_s(&plan->job) / MOST_IDEAL_S, plan->job.cluster->gpus);
    }
    smp_bounds *bounds = smp_bounds_create();
    plan->start_s = now_s();
    smp_status st = search_all(plan, bounds, errors);
    plan->info.exhausted = st == SMP_OK && !plan->stopped;
    if (st == SMP_OK) {
        st = plan->n_found > 0 ? confirm(plan, errors)
                               : smp_explain_nothing_fits(plan, bounds, errors);
    }
    if (st == SMP_OK && !plan->options.brief) {
        st = smp_plan_explain(plan, errors);
    }
    plan->info.seconds = now_s() - plan->start_s;
    smp_bounds_destroy(bounds);
    return st;
}

smp_status smp_plan_search(const smp_job *job, const smp_plan_options *options,
                           smp_errors *errors, smp_plan **plan_p)
{
    smp_arena *arena = smp_arena_create();
    smp_plan *plan = SMP_ARENA_NEW(arena, smp_plan);
    plan->arena = arena;
    plan->job = *job;
    plan->options = *options;
    plan->found = SMP_ARENA_ARRAY(arena, smp_plan_top(plan), smp_found);
    const smp_status st = run(plan, errors);
    if (st == SMP_OK || st == SMP_INFEASIBLE) {
        *plan_p = plan;
    } else {
        smp_plan_destroy(plan);
    }
    return st;
}

void smp_plan_destroy(smp_plan *plan)
{
    if (plan) {
        free(plan->spots);
        free(plan->front.at);
        smp_arena_destroy(plan->arena);
    }
}

size_t smp_plan_count(const smp_plan *plan)
{
    return plan->n_found;
}

const smp_job *smp_plan_job(const smp_plan *plan, size_t i)
{
    return &plan->found[i].job;
}

const smp_report *smp_plan_report(const smp_plan *plan, size_t i)
{
    return &plan->found[i].report;
}

const smp_search_info *smp_plan_search_info(const smp_plan *plan)
{
    return &plan->info;
}
