/* SPDX-License-Identifier: Apache-2.0 */
/* What is told where nothing fits: see lean.h. */
#include "config.h"

#include "plan/lean.h"

#include "base/numeric.h"
#include "model/model.h"
#include "sim/peaks.h"

#include <stdlib.h>

uint64_t smp_host_excess(const smp_job *job)
{
    const smp_cluster *cluster = job->cluster;
    const uint32_t ranks =
        cluster->gpus < cluster->gpus_per_node ? cluster->gpus : cluster->gpus_per_node;
    const uint64_t bytes = smp_mul(smp_mul(4, smp_model_parameters(job->model)), ranks);
    const uint64_t there = (uint64_t)cluster->host_memory_bytes.value;
    return !job->settings.delayed_init && bytes > there ? bytes - there : 0;
}

/* Whether a point saves as much memory as it can: smallest micro-batch, everything
 * checkpointed, most chunks; with and without offload, which needs host memory. */
static bool is_lean_head(const smp_plan_space *space, const smp_point *point)
{
    return point->digit[SMP_DIM_MICRO] == 0 &&
           point->digit[SMP_DIM_CHUNKS] == space->n_choice[SMP_DIM_CHUNKS] - 1 &&
           point->digit[SMP_DIM_CHECKPOINTING] == space->n_choice[SMP_DIM_CHECKPOINTING] - 1;
}

static bool is_lean_leaf(const smp_plan_space *space, const smp_point *point)
{
    const uint32_t offload = point->digit[SMP_DIM_OFFLOAD];
    const uint32_t layers = point->digit[SMP_DIM_OFFLOAD_LAYERS];
    return (offload == 0 && layers == 0) ||
           (offload == space->n_choice[SMP_DIM_OFFLOAD] - 1 &&
            layers == space->n_choice[SMP_DIM_OFFLOAD_LAYERS] - 1);
}

typedef struct lean { smp_found found; uint64_t excess_bytes; bool any; } lean;

/* A lean point, by the least that it can lack, and by the least peak on the device. */
typedef struct lean_item { uint64_t excess_bytes, bytes, code; smp_point point; } lean_item;
typedef struct lean_items { lean_item *items; size_t n, room; } lean_items;

static int compare_lean(const void *left, const void *right)
{
    const lean_item *a = left;
    const lean_item *b = right;
    if (a->excess_bytes != b->excess_bytes) {
        return a->excess_bytes < b->excess_bytes ? -1 : 1;
    }
    if (a->bytes != b->bytes) {
        return a->bytes < b->bytes ? -1 : 1;
    }
    return (a->code > b->code) - (a->code < b->code);
}

/* Adds the lean points of a mesh whose bound leaves them below `below`. */
static smp_status add_lean(const smp_plan *plan, smp_bounds *bounds,
                           const smp_plan_space *space, smp_point point, uint64_t below,
                           smp_errors *errors, lean_items *all)
{
    const uint64_t limit = smp_plan_limit(plan, space->job);
    smp_job mesh;
    smp_job job;
    if (!smp_plan_space_mesh(space, &point, &mesh)) {
        return SMP_OK;
    }
    do {
        uint64_t bytes = 0;
        if (!is_lean_leaf(space, &point) || !smp_plan_space_leaf(space, &point, &mesh, &job)) {
            continue;
        }
        const smp_status st = smp_bound_memory(bounds, &job, true, errors, &bytes);
        if (st != SMP_OK) {
            return st;
        }
        const uint64_t on_host = smp_host_excess(space->job);
        const uint64_t on_device = bytes > limit ? bytes - limit : 0;
        const uint64_t excess = on_device > on_host ? on_device : on_host;
        if (excess < below) {
            SMP_GROW(all->items, all->n, all->room);
            all->items[all->n++] =
                (lean_item){excess, bytes, smp_plan_space_code(space, &point), point};
        }
    } while (smp_plan_space_next(space, &point, SMP_DIM_LEAF, SMP_DIMS));
    return SMP_OK;
}

/* Whether `a` is to be named rather than `b`: it lacks less, needs less, comes first. */
static bool is_leaner(const lean *a, const lean *b)
{
    const uint64_t peak_a = a->found.report.memory.peak_bytes;
    const uint64_t peak_b = b->found.report.memory.peak_bytes;
    if (!b->any || a->excess_bytes != b->excess_bytes) {
        return a->excess_bytes < b->excess_bytes;
    }
    return peak_a != peak_b ? peak_a < peak_b : a->found.code < b->found.code;
}

/* Simulates lean points in the order of their bounds, until none can lack less; what lacks in
 * host memory for any point is the least there is. */
static smp_status try_lean(const smp_plan *plan, const smp_plan_space *space,
                           const lean_items *all, smp_errors *errors, lean *best)
{
    const uint64_t least = smp_host_excess(space->job);
    for (size_t i = 0; i < all->n && best->excess_bytes > least; i++) {
        lean candidate = {.found.code = all->items[i].code, .any = true};
        smp_found *found = &candidate.found;
        if (all->items[i].excess_bytes > best->excess_bytes ||
            (best->any && all->items[i].excess_bytes == best->excess_bytes &&
             all->items[i].bytes > best->found.report.memory.peak_bytes)) {
            break;
        }
        if (!smp_plan_space_job(space, &all->items[i].point, &found->job)) {
            continue;
        }
        const smp_status st = smp_evaluate(&found->job, false, errors, &found->report, NULL,
                                           NULL);
        if (st != SMP_OK) {
            return st;
        }
        candidate.excess_bytes = smp_report_excess(&found->report, plan->options.margin_frac);
        if (is_leaner(&candidate, best)) {
            *best = candidate;
        }
    }
    return SMP_OK;
}

/* Of the lean points, the one with the least excess, if that is below `below`. */
static smp_status find_leanest(const smp_plan *plan, smp_bounds *bounds, const smp_job *job,
                               uint64_t below, smp_errors *errors, lean *best)
{
    smp_plan_space *space = smp_plan_space_create(job, plan->options.fine);
    smp_point point = {{0}};
    lean_items all = {0};
    smp_status st = SMP_OK;
    *best = (lean){.excess_bytes = below};
    do {
        if (is_lean_head(space, &point)) {
            st = add_lean(plan, bounds, space, point, below, errors, &all);
        }
    } while (st == SMP_OK && smp_plan_space_next(space, &point, 0, SMP_DIM_LEAF));
    if (st == SMP_OK && all.n > 0) {
        qsort(all.items, all.n, sizeof *all.items, compare_lean);
        st = try_lean(plan, space, &all, errors, best);
    }
    free(all.items);
    smp_plan_space_destroy(space);
    return st;
}

smp_status smp_find_some(const smp_plan *plan, smp_bounds *bounds, const smp_job *job,
                         smp_errors *errors, smp_found *found_p, bool *any_p)
{
    lean best;
    const smp_status st = find_leanest(plan, bounds, job, 1, errors, &best);
    *any_p = st == SMP_OK && best.any; /* with an excess below 1 */
    *found_p = best.found;
    return st;
}

/* More GPUs than this cannot each have a part of a sequence of the batch. */
static uint32_t most_gpus(const smp_job *job)
{
    enum { MOST_GPUS = 65536 };
    const uint32_t tensor = smp_settings_given(&job->settings, "tensor_parallel_degree")
                                ? job->settings.tensor_parallel_degree
                                : job->cluster->gpus_per_node;
    const uint64_t most = smp_mul(job->batch.global_batch, tensor);
    if (job->cluster->nics == 0) {
        return job->cluster->gpus_per_node;
    }
    return most < MOST_GPUS ? (uint32_t)most : MOST_GPUS;
}

/* The smallest number of GPUs, in whole nodes, on which something fits. */
static smp_status find_fitting(smp_plan *plan, smp_bounds *bounds, smp_errors *errors)
{
    const smp_cluster *cluster = plan->job.cluster;
    const uint32_t most = most_gpus(&plan->job);
    plan->largest_gpus_tried = cluster->gpus;
    for (uint32_t gpus = smp_next_gpus(cluster, cluster->gpus); gpus <= most;
         gpus = smp_next_gpus(cluster, gpus)) {
        smp_arena_mark mark = smp_arena_here(plan->arena);
        smp_job job = plan->job;
        job.cluster = smp_cluster_resized(plan->arena, cluster, gpus);
        lean best;
        const smp_status st = find_leanest(plan, bounds, &job, 1, errors, &best);
        smp_arena_reset(plan->arena, mark);
        plan->largest_gpus_tried = gpus;
        if (st != SMP_OK) {
            return st;
        }
        if (best.any) { /* with an excess below 1 */
            plan->fitting_gpus = gpus;
            return SMP_OK;
        }
    }
    return SMP_OK;
}

/* Why there is no candidate at all: the rules that the pins break. */
static smp_status explain_empty(const smp_plan *plan, smp_errors *errors)
{
    smp_job job = plan->job;
    const smp_status st = smp_job_resolve(&job, errors);
    if (st != SMP_OK) {
        return st;
    }
    return smp_fail(errors, SMP_INPUT, NULL,
                    "no configuration of %u GPUs follows the rules with the settings given and "
                    "a global batch of %llu sequences: give fewer settings, or a batch that "
                    "more numbers divide",
                    plan->job.cluster->gpus, (unsigned long long)plan->job.batch.global_batch);
}

/* Whole models on the host of a node do not become fewer with more nodes. */
static bool lacks_on_any_nodes(const smp_memory *memory)
{
    return !memory->peaks[SMP_MOMENT_INIT_EVERY_RANK].fits &&
           smp_peaks_most(memory, true) == SMP_MOMENT_INIT_EVERY_RANK;
}

smp_status smp_explain_nothing_fits(smp_plan *plan, smp_bounds *bounds, smp_errors *errors)
{
    lean best;
    smp_status st = find_leanest(plan, bounds, &plan->job, UINT64_MAX, errors, &best);
    if (st != SMP_OK) {
        return st;
    }
    if (!best.any) {
        return explain_empty(plan, errors);
    }
    st = smp_evaluate(&best.found.job, true, errors, &best.found.report, NULL, NULL);
    if (st != SMP_OK) {
        return st;
    }
    plan->has_nearest = true;
    plan->nearest = best.found;
    plan->nearest_excess_bytes = best.excess_bytes;
    const bool anywhere = lacks_on_any_nodes(&best.found.report.memory);
    plan->largest_gpus_tried = plan->job.cluster->gpus;
    st = anywhere || plan->options.brief ? SMP_OK : find_fitting(plan, bounds, errors);
    if (st != SMP_OK) {
        return st;
    }
    const uint64_t limit = smp_memory_limit(&best.found.report, plan->options.margin_frac);
    const uint64_t peak = best.found.report.memory.peak_bytes;
    const bool host = peak <= limit || peak - limit < best.excess_bytes;
    char fitting[64] = "with this batch no number of GPUs would";
    if (anywhere) {
        snprintf(fitting, sizeof fitting,
                 "delayed_init=false needs that on any number of nodes");
    } else if (plan->fitting_gpus > 0) {
        snprintf(fitting, sizeof fitting, "%u GPUs would fit", plan->fitting_gpus);
    }
    return smp_fail(errors, SMP_INFEASIBLE, NULL,
                    "no configuration of %s fits on %u GPUs: the nearest lacks %s per %s; %s",
                    plan->job.model->name, plan->job.cluster->gpus,
                    smp_show_bytes(best.excess_bytes), host ? "node (host memory)" : "GPU",
                    fitting);
}

