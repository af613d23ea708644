/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Branch and bound over the space of settings.
 *
 * Plans are ranked by time, then by code, so that of two equally fast plans the one with
 * fewer memory savers wins.  A heap holds parts of the space by their bounds on that rank:
 * heads, then (head, mesh), then points.  The lowest part is taken; a part is split, a point
 * is priced (mix.h), which says whether it fits, and comes again with its time or a bound of
 * it.  What has only a bound is simulated; where it cannot be priced at all, one that a
 * simulated point dominates takes that point's time alone as its bound.  More layers
 * checkpointed need less memory and take longer: the first number that may fit is found by
 * bisection, the next one follows when it is taken.  In the fine space a mesh is priced first,
 * and split into its sparing points (sparing.h).  When the lowest part cannot rank before the
 * last of the plans kept, nothing that is left can: the plans are the best of the whole space
 * (gap 0), the same as without pruning.
 */
#include "config.h"

#include "plan/search.h"

#include "plan/early.h"
#include "plan/front.h"
#include "plan/lean.h"
#include "plan/queue.h"
#include "plan/sparing.h"

#include "base/numeric.h"
#include "base/parallel.h"
#include "sim/peaks.h"

#include <stdlib.h>
#include <string.h>

/* A simulated point, for dominance.  Only the time without slowdowns by overlap is monotonic,
 * so only that bounds what the point dominates. */
typedef struct timed {
    smp_point point;
    int64_t alone_ps; /* where nothing slows anything */
} timed;

/* Points are simulated side by side in batches of this size, whatever the number of threads,
 * so that what is simulated does not depend on it. */
enum { BATCH = 16 };

/* A point of a batch. */
typedef struct ready {
    smp_point point;
    smp_found found;
    int64_t alone_ps;
    bool whole;         /* the report is there, not only the time */
    const smp_ranks *ranks; /* where it has been priced, else NULL */
    smp_errors *errors;
    smp_status status;
} ready;

typedef struct search {
    smp_plan *plan;
    smp_errors *errors;
    smp_bounds *bounds;
    smp_mixes *mixes;
    smp_plan_space *space;
    heap heap;
    ready *ready; /* BATCH */
    uint32_t n_ready;
    item *later; /* heap: points put off until the batch is simulated */
    size_t n_later, later_room;
    timed *timed;
    size_t n_timed, timed_room;
    smp_found *found; /* best of this number of GPUs: at most top, sorted */
    uint32_t n_found;
    uint32_t top;
    uint64_t limit_bytes;
    uint64_t n_point; /* of the space */
} search;

/* ----------------------------------------------------------------- the plans */

static rank rank_of(const smp_found *found)
{
    return (rank){found->report.step_ps, found->code};
}

/* Whether a part with this bound can still hold a plan to keep. */
static bool is_open(const search *s, const rank *bound)
{
    if (s->n_found < s->top) {
        return true;
    }
    const rank last = rank_of(&s->found[s->n_found - 1]);
    return compare_ranks(bound, &last) < 0;
}

static void keep(search *s, const smp_found *candidate)
{
    const rank own = rank_of(candidate);
    if (!is_open(s, &own)) {
        return;
    }
    for (uint32_t f = 0; f < s->n_found; f++) {
        if (s->found[f].code == candidate->code) {
            return; /* what the search began with */
        }
    }
    uint32_t i = s->n_found < s->top ? s->n_found++ : s->n_found - 1;
    while (i > 0 && smp_is_faster(candidate, &s->found[i - 1])) {
        s->found[i] = s->found[i - 1];
        i--;
    }
    s->found[i] = *candidate;
}

static void report_progress(const search *s)
{
    const smp_plan *plan = s->plan;
    if (plan->options.progress) {
        plan->options.progress(plan->options.progress_context,
                               plan->info.evaluated + plan->info.pruned,
                               plan->info.enumerated);
    }
}

static void keep_if_fits(search *s, const smp_found *found)
{
    if (smp_report_fits(&found->report, s->plan->options.margin_frac) &&
        found->report.memory.peak_bytes <= s->limit_bytes) {
        keep(s, found);
    }
}

static void note_whole(search *s, const smp_found *found)
{
    smp_plan *plan = s->plan;
    SMP_GROW(plan->spots, plan->n_spot, plan->spot_room);
    plan->spots[plan->n_spot++] =
        (smp_spot){found->report.step_ps, found->report.memory.peak_bytes,
                   smp_report_fits(&found->report, plan->options.margin_frac)};
    keep_if_fits(s, found);
}

/* Times a point of the batch; only one that may be among the best needs a memory plan. */
static void time_ready(void *search_, uint32_t i)
{
    const search *s = search_;
    ready *at = &s->ready[i];
    smp_report *report = &at->found.report;
    /* of what has been priced the time alone is known */
    at->status = smp_evaluate_time(&at->found.job, at->ranks, at->errors, &report->step_ps,
                                   at->ranks ? NULL : &at->alone_ps);
    const rank own = rank_of(&at->found);
    at->whole = at->status == SMP_OK && is_open(s, &own);
    if (at->whole) {
        at->status = smp_evaluate_on(&at->found.job, at->ranks, false, at->errors, report,
                                     NULL, NULL);
    }
}

/* The first that fails is simulated again for its message. */
static smp_status fail_ready(const search *s, ready *at)
{
    smp_report report;
    const smp_status st =
        smp_evaluate(&at->found.job, false, s->errors, &report, NULL, NULL);
    return st != SMP_OK ? st : at->status;
}

/* Simulates the batch; what is among the best is kept, in order. */
static smp_status time_batch(search *s)
{
    const uint32_t threads = s->plan->options.threads;
    smp_parallel(threads > 0 ? threads : smp_processors(), s->n_ready, time_ready, s);
    for (uint32_t i = 0; i < s->n_ready; i++) {
        ready *at = &s->ready[i];
        if (at->status != SMP_OK) {
            return fail_ready(s, at);
        }
        s->plan->info.evaluated++;
        if (at->ranks == NULL) {
            SMP_GROW(s->timed, s->n_timed, s->timed_room);
            s->timed[s->n_timed++] = (timed){at->point, at->alone_ps};
        }
        if (at->whole) {
            note_whole(s, &at->found);
        }
    }
    s->n_ready = 0;
    report_progress(s);
    return SMP_OK;
}

/* -------------------------------------------------------------------- parts */

/* A bound by the simulated points that dominate this one; 0: none does. */
static int64_t dominating_ps(const search *s, const smp_point *point)
{
    int64_t most = 0;
    for (size_t i = 0; i < s->n_timed; i++) {
        if (s->timed[i].alone_ps > most && smp_point_dominates(&s->timed[i].point, point)) {
            most = s->timed[i].alone_ps;
        }
    }
    return most;
}

/* A bound of the time of all points of a head (digits of its mesh and checkpointing as in
 * `point`), where what the parameters of this mesh need leaves room in memory; INT64_MAX where
 * it does not, or no rule allows it. */
static smp_status bound_head(const search *s, smp_point point, int64_t *bound_ps_p)
{
    const smp_choice *choices = s->space->choices[SMP_DIM_CHECKPOINTING];
    smp_status st = SMP_OK;
    *bound_ps_p = INT64_MAX;
    for (uint32_t d = 0; st == SMP_OK && d < s->space->n_choice[SMP_DIM_CHECKPOINTING]; d++) {
        smp_job job;
        uint64_t bytes = 0;
        int64_t ps = INT64_MAX;
        point.digit[SMP_DIM_CHECKPOINTING] = d;
        if (smp_checkpoints_alike(s->space, d) ||
            !smp_plan_space_mesh(s->space, &point, &job)) {
            continue; /* the first of a kind is the fastest */
        }
        st = smp_bound_memory(s->bounds, &job, false, s->errors, &bytes);
        if (st == SMP_OK && bytes <= s->limit_bytes) {
            st = smp_bound_time(s->bounds, &job, false, s->errors, &ps);
        }
        *bound_ps_p = ps < *bound_ps_p ? ps : *bound_ps_p;
        if (choices[d].checkpointing == SMP_CHECKPOINTING_NONE) {
            break; /* nothing is faster, and parameters need the same with all */
        }
    }
    return st;
}

/* Pushes all checkpointing of a head with the least bound of its meshes, unless nothing may
 * fit.  Counts its points. */
static smp_status push_head(search *s, const smp_point *head)
{
    item new_item = {{INT64_MAX, smp_plan_space_code(s->space, head)}, LEVEL_HEAD, *head};
    smp_point point = *head;
    do {
        int64_t bound_ps = 0;
        const smp_status st = bound_head(s, point, &bound_ps);
        if (st != SMP_OK) {
            return st;
        }
        s->n_point += smp_plan_space_count(s->space, &point);
        if (bound_ps < new_item.bound.step_ps) {
            new_item.bound.step_ps = bound_ps;
        }
    } while (smp_plan_space_next(s->space, &point, SMP_DIM_MESH, SMP_DIM_LEAF));
    if (new_item.bound.step_ps < INT64_MAX) {
        heap_push(&s->heap, &new_item);
    }
    return SMP_OK;
}

static smp_status push_heads(search *s)
{
    smp_point point = {{0}};
    smp_status st = SMP_OK;
    do {
        st = point.digit[SMP_DIM_CHECKPOINTING] == 0 ? push_head(s, &point) : SMP_OK;
    } while (st == SMP_OK && smp_plan_space_next(s->space, &point, 0, SMP_DIM_MESH));
    return st;
}

/* The job of a mesh, and whether some point of it may fit. */
static smp_status open_mesh(const search *s, const smp_point *mesh, smp_job *job_p,
                            bool *open_p)
{
    uint64_t bytes = UINT64_MAX;
    const smp_status st = smp_plan_space_mesh(s->space, mesh, job_p)
                              ? smp_bound_least_memory(s->bounds, s->space, mesh, job_p,
                                                       s->errors, &bytes)
                              : SMP_OK;
    *open_p = bytes <= s->limit_bytes;
    return st;
}

/* Pushes a mesh whose points may fit; no bound is less than `least_ps`. */
static smp_status push_mesh(search *s, const smp_point *mesh, int64_t least_ps)
{
    smp_job job;
    bool open = false;
    item new_item = {{0, smp_plan_space_code(s->space, mesh)}, LEVEL_MESH, *mesh};
    smp_status st = open_mesh(s, mesh, &job, &open);
    if (st == SMP_OK && open) {
        st = smp_bound_time(s->bounds, &job, true, s->errors, &new_item.bound.step_ps);
    }
    if (st == SMP_OK && open) {
        if (new_item.bound.step_ps < least_ps) {
            new_item.bound.step_ps = least_ps;
        }
        heap_push(&s->heap, &new_item);
    }
    return st;
}

/* The more layers are checkpointed the less memory is needed, and the longer a step takes.  So
 * of the checkpointings by layer the first is pushed that may fit, and each next one when it
 * is taken. */
static smp_status push_first_by_layer(search *s, smp_point mesh)
{
    const uint32_t n = s->space->n_by_layer;
    uint32_t low = 0; /* those before it do not fit */
    uint32_t high = n; /* this fits */
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        smp_job job;
        bool open = false;
        mesh.digit[SMP_DIM_CHECKPOINTING] = s->space->by_layer[middle];
        const smp_status st = open_mesh(s, &mesh, &job, &open);
        if (st != SMP_OK) {
            return st;
        }
        if (open) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    if (low == n) {
        return SMP_OK;
    }
    mesh.digit[SMP_DIM_CHECKPOINTING] = s->space->by_layer[low];
    return push_mesh(s, &mesh, 0);
}

/* `coarsely`: the next that is also in the space that is not fine. */
static smp_status push_next_by_layer(search *s, const item *mesh, bool coarsely)
{
    smp_point next = mesh->point;
    uint32_t i = 0;
    while (i < s->space->n_by_layer &&
           s->space->by_layer[i] != mesh->point.digit[SMP_DIM_CHECKPOINTING]) {
        i++;
    }
    for (i++; i < s->space->n_by_layer; i++) {
        next.digit[SMP_DIM_CHECKPOINTING] = s->space->by_layer[i];
        if (!coarsely || smp_is_coarse_mesh(s->space, &next)) {
            return push_mesh(s, &next, mesh->bound.step_ps);
        }
    }
    return SMP_OK;
}

static smp_status split_head(search *s, const item *head)
{
    smp_point point = head->point;
    smp_status st = SMP_OK;
    do {
        st = push_first_by_layer(s, point);
        for (uint32_t d = 0; st == SMP_OK && d < s->space->n_choice[SMP_DIM_CHECKPOINTING];
             d++) {
            smp_point mesh = point;
            mesh.digit[SMP_DIM_CHECKPOINTING] = d;
            if (!smp_checkpoints_by_layer(
                    s->space->choices[SMP_DIM_CHECKPOINTING][d].checkpointing)) {
                st = push_mesh(s, &mesh, 0);
            }
        }
    } while (st == SMP_OK &&
             smp_plan_space_next(s->space, &point, SMP_DIM_MESH, SMP_DIM_LEAF));
    return st;
}

static smp_status split_mesh(search *s, const item *mesh)
{
    smp_point point = mesh->point;
    smp_job mesh_job;
    if (!smp_plan_space_mesh(s->space, &point, &mesh_job)) {
        return SMP_OK;
    }
    do {
        smp_job job;
        if (!smp_plan_space_leaf(s->space, &point, &mesh_job, &job)) {
            continue;
        }
        uint64_t bytes = 0;
        const smp_status st = smp_bound_memory(s->bounds, &job, true, s->errors, &bytes);
        if (st != SMP_OK) {
            return st;
        }
        if (bytes <= s->limit_bytes) {
            const uint64_t code = smp_plan_space_code(s->space, &point);
            const item point_item = {{mesh->bound.step_ps, code}, LEVEL_POINT, point};
            heap_push(&s->heap, &point_item);
        }
    } while (smp_plan_space_next(s->space, &point, SMP_DIM_LEAF, SMP_DIMS));
    return SMP_OK;
}

/* Whether a point of the batch may soon give this one a higher bound. */
static bool is_dominated_by_batch(const search *s, const smp_point *point)
{
    bool is = false;
    for (uint32_t i = 0; i < s->n_ready; i++) {
        is = is || smp_point_dominates(&s->ready[i].point, point);
    }
    return is;
}

static smp_pricing pricing_of(const search *s)
{
    return (smp_pricing){.space = s->space, .mixes = s->mixes, .limit_bytes = s->limit_bytes};
}

static void push_later(search *s, level level_, const smp_point *point, int64_t least_ps,
                       int64_t bound_ps)
{
    const item later = {{bound_ps > least_ps ? bound_ps : least_ps,
                         smp_plan_space_code(s->space, point)}, level_, *point};
    heap_push(&s->heap, &later);
}

/* A point that fits comes again with its time, or with a bound of it. */
static void push_priced(search *s, const smp_point *point, int64_t least_ps, int64_t step_ps,
                        int64_t alone_ps)
{
    if (step_ps >= 0) {
        push_later(s, LEVEL_TIMED, point, step_ps, step_ps);
    } else {
        push_later(s, LEVEL_PRICED, point, least_ps, alone_ps);
    }
}

static void add_to_batch(search *s, const item *point, bool priced)
{
    ready *at = &s->ready[s->n_ready];
    if (smp_plan_space_job(s->space, &point->point, &at->found.job)) {
        at->point = point->point;
        at->found.code = point->bound.code;
        at->ranks = priced ? smp_mix_ranks(s->mixes, &at->found.job) : NULL;
        s->n_ready++;
    }
}

/* Adds a point to the batch, unless what dominates it gives it a higher bound, or will know
 * after this batch. */
static void take_point(search *s, item *point)
{
    const int64_t dominating = dominating_ps(s, &point->point);
    if (dominating > point->bound.step_ps) {
        point->bound.step_ps = dominating;
        heap_push(&s->heap, point);
    } else if (is_dominated_by_batch(s, &point->point)) {
        SMP_GROW(s->later, s->n_later, s->later_room);
        s->later[s->n_later++] = *point;
    } else {
        add_to_batch(s, point, false);
    }
}

/* The time of the first leaf where nothing slows anything is a bound for all of a mesh. */
static smp_status price_mesh(search *s, const item *mesh)
{
    const smp_pricing pricing = pricing_of(s);
    smp_price price;
    const smp_status st =
        smp_price_point(&pricing, &mesh->point, SMP_MIX_ALONE, s->errors, &price);
    if (st == SMP_OK) {
        push_later(s, LEVEL_PRICED_MESH, &mesh->point, mesh->bound.step_ps,
                   price.legal ? price.alone_ps : 0);
    }
    return st;
}

/* Points that differ from `leaf` in how many layers are offloaded: the sparing one, unless
 * without offload it `fits`, and that with all where the space that is not fine has it. */
static smp_status split_offload(search *s, smp_point leaf, int64_t least_ps, bool fits)
{
    const smp_pricing pricing = pricing_of(s);
    smp_point coarse = leaf;
    smp_price price;
    bool is = false;
    smp_status st =
        fits ? SMP_OK : smp_find_sparing(&pricing, &leaf, s->errors, &price, &is);
    if (st == SMP_OK && is) {
        push_priced(s, &leaf, least_ps, price.step_ps, price.alone_ps);
    }
    if (st != SMP_OK || !smp_is_coarse_mesh(s->space, &leaf) ||
        (is && smp_is_coarse(s->space, &leaf))) {
        return st;
    }
    st = smp_price_coarse(&pricing, &coarse, s->errors, &price);
    if (st == SMP_OK && price.legal && price.fits) {
        push_priced(s, &coarse, least_ps, price.step_ps, price.alone_ps);
    }
    return st;
}

/* The points among those that differ from `leaf` in what is offloaded: it offloads as little
 * as the space has. */
static smp_status split_leaves(search *s, smp_point leaf, int64_t least_ps)
{
    const smp_pricing pricing = pricing_of(s);
    smp_price price;
    bool is = false;
    smp_status st = smp_price_point(&pricing, &leaf, SMP_MIX_STEP | SMP_MIX_ALONE, s->errors,
                                    &price);
    if (st != SMP_OK) {
        return st;
    }
    const rank alone = {price.alone_ps, smp_plan_space_code(s->space, &leaf)};
    if (price.legal && !is_open(s, &alone)) {
        return SMP_OK;
    }
    const bool fits = price.legal && price.fits && !smp_offloads(s->space, &leaf);
    if (fits) {
        st = smp_is_sparing(&pricing, &leaf, s->errors, &is);
        if (st == SMP_OK && is) {
            push_priced(s, &leaf, least_ps, price.step_ps, price.alone_ps);
        }
    }
    for (uint32_t h = 0; st == SMP_OK && h < s->space->n_choice[SMP_DIM_OFFLOAD]; h++) {
        leaf.digit[SMP_DIM_OFFLOAD] = h;
        leaf.digit[SMP_DIM_OFFLOAD_LAYERS] = 0;
        if (smp_offloads(s->space, &leaf)) {
            st = split_offload(s, leaf, least_ps, fits);
        }
    }
    return st;
}

static smp_status split_finely(search *s, const item *mesh)
{
    smp_point leaf = mesh->point;
    smp_status st = SMP_OK;
    for (uint32_t p = 0; st == SMP_OK && p < s->space->n_choice[SMP_DIM_PREFETCH]; p++) {
        leaf.digit[SMP_DIM_PREFETCH] = p;
        st = split_leaves(s, leaf, mesh->bound.step_ps);
    }
    return st;
}

/* More layers checkpointed than fit without offload are not sparing: there only what is in the
 * space that is not fine is left of this mesh. */
static smp_status take_priced_mesh(search *s, const item *mesh)
{
    const smp_pricing pricing = pricing_of(s);
    bool fits = false;
    smp_status st = smp_fits_with_fewer_layers(&pricing, &mesh->point, s->errors, &fits);
    if (st == SMP_OK && (!fits || smp_is_coarse_mesh(s->space, &mesh->point))) {
        st = split_finely(s, mesh);
    }
    return st == SMP_OK ? push_next_by_layer(s, mesh, fits) : st;
}

static smp_status take_mesh(search *s, const item *mesh)
{
    if (s->space->fine) {
        return price_mesh(s, mesh);
    }
    const smp_status st = push_next_by_layer(s, mesh, false);
    return st == SMP_OK ? split_mesh(s, mesh) : st;
}

/* Prices a point: one that does not fit is dropped, one that does comes again with its time or
 * a bound of it, and one that cannot be priced is taken as it is. */
static smp_status price_point(search *s, item *point)
{
    smp_job job;
    smp_mix mix;
    bool known = false;
    if (!smp_plan_space_job(s->space, &point->point, &job)) {
        return SMP_OK;
    }
    const smp_status st =
        smp_mix_price(s->mixes, &job, SMP_MIX_STEP, s->errors, &mix, &known);
    if (st == SMP_OK && !known) {
        take_point(s, point);
    } else if (st == SMP_OK && mix.device_bytes <= s->limit_bytes &&
               (double)mix.host_bytes <= job.cluster->host_memory_bytes.value) {
        push_priced(s, &point->point, point->bound.step_ps, mix.step_ps, mix.alone_ps);
    }
    return st;
}

/* A point of known time that is among the best is simulated for its report. */
static smp_status take_timed(search *s, const item *point)
{
    smp_found found = {.code = point->bound.code};
    if (!smp_plan_space_job(s->space, &point->point, &found.job)) {
        return SMP_OK;
    }
    const smp_ranks *ranks = smp_mix_ranks(s->mixes, &found.job);
    const smp_status st =
        smp_evaluate_on(&found.job, ranks, false, s->errors, &found.report, NULL, NULL);
    if (st == SMP_OK) {
        s->plan->info.evaluated++;
        note_whole(s, &found);
        report_progress(s);
    }
    return st;
}

/* Takes parts until a batch of points is together or nothing that is left can be kept. */
static smp_status fill_batch(search *s)
{
    smp_status st = SMP_OK;
    while (st == SMP_OK && s->heap.n > 0 && s->n_ready < BATCH) {
        item part = heap_pop(&s->heap);
        const bool open = is_open(s, &part.bound);
        /* a batch that has been begun is simulated: what it holds has lower bounds */
        const bool late =
            open && s->n_ready == 0 && s->n_found > 0 && smp_plan_is_late(s->plan);
        if (late) {
            smp_plan_stop(s->plan, s->found[0].report.step_ps, part.bound.step_ps);
        }
        if (late || !open) {
            s->heap.n = 0;
            break;
        }
        switch (part.level) {
        case LEVEL_HEAD:
            st = split_head(s, &part);
            break;
        case LEVEL_MESH:
            st = take_mesh(s, &part);
            break;
        case LEVEL_PRICED_MESH:
            st = take_priced_mesh(s, &part);
            break;
        case LEVEL_POINT:
            st = price_point(s, &part);
            break;
        case LEVEL_PRICED:
            add_to_batch(s, &part, true);
            break;
        case LEVEL_TIMED:
            st = take_timed(s, &part);
            break;
        }
    }
    while (s->n_later > 0) {
        heap_push(&s->heap, &s->later[--s->n_later]);
    }
    return st;
}

/* With a deadline there is something to stop with from the beginning. */
static smp_status begin_with_some(search *s, const smp_job *job)
{
    smp_found some;
    bool any = false;
    smp_status st = smp_find_early(s->plan, s->bounds, s->space, s->limit_bytes, s->errors,
                                   &some, &any);
    if (st == SMP_OK && !any) {
        st = smp_find_some(s->plan, s->bounds, job, s->errors, &some, &any);
    }
    if (st == SMP_OK && any) {
        s->plan->info.evaluated++;
        note_whole(s, &some);
    }
    return st;
}

static smp_status best_first(search *s, const smp_job *job)
{
    smp_status st = s->plan->options.deadline_s > 0 ? begin_with_some(s, job) : SMP_OK;
    st = st == SMP_OK ? push_heads(s) : st;
    s->plan->info.enumerated += s->n_point;
    do {
        st = st == SMP_OK ? fill_batch(s) : st;
        st = st == SMP_OK ? time_batch(s) : st;
    } while (st == SMP_OK && s->heap.n > 0);
    return st;
}

static smp_status simulate_point(search *s, const smp_point *point, smp_found *candidate)
{
    const smp_pricing pricing = {.space = s->space, .limit_bytes = s->limit_bytes};
    bool is_sparing = true;
    smp_status st = smp_evaluate(&candidate->job, false, s->errors, &candidate->report, NULL,
                                 NULL);
    if (st == SMP_OK && s->space->fine &&
        smp_report_fits(&candidate->report, s->plan->options.margin_frac)) {
        st = smp_is_sparing(&pricing, point, s->errors, &is_sparing);
    }
    if (st == SMP_OK) {
        s->plan->info.evaluated++;
        if (is_sparing) {
            note_whole(s, candidate);
        }
        report_progress(s);
    }
    return st;
}

static smp_status every_point(search *s)
{
    smp_point point = {{0}};
    s->n_point = smp_plan_space_total(s->space);
    s->plan->info.enumerated += s->n_point;
    do {
        smp_found candidate = {.code = smp_plan_space_code(s->space, &point)};
        if (smp_plan_space_job(s->space, &point, &candidate.job)) {
            const smp_status st = simulate_point(s, &point, &candidate);
            if (st != SMP_OK) {
                return st;
            }
        }
    } while (smp_plan_space_next(s->space, &point, 0, SMP_DIMS));
    return SMP_OK;
}

smp_status smp_search(smp_plan *plan, smp_bounds *bounds, const smp_job *job,
                              smp_errors *errors)
{
    smp_arena *arena = smp_arena_create();
    search s = {.plan = plan, .errors = errors, .bounds = bounds, .top = smp_plan_top(plan)};
    s.space = smp_plan_space_create(job, plan->options.fine);
    s.found = SMP_ARENA_ARRAY(arena, smp_plan_top(plan), smp_found);
    s.ready = SMP_ARENA_ARRAY(arena, BATCH, ready);
    for (uint32_t i = 0; i < BATCH; i++) {
        s.ready[i].errors = smp_errors_create();
    }
    s.mixes = smp_mixes_create();
    s.limit_bytes = smp_plan_limit(plan, job);
    const uint64_t before = plan->info.evaluated;
    smp_status st = SMP_OK;
    if (!plan->options.prune) {
        st = every_point(&s);
    } else if (smp_host_excess(job) == 0) {
        st = best_first(&s, job);
    } else { /* nothing fits */
        s.n_point = smp_plan_space_total(s.space);
        plan->info.enumerated += s.n_point;
    }
    smp_plan_merge(plan, s.found, s.n_found);
    if (st == SMP_OK && plan->options.front) {
        st = smp_front_find(plan, bounds, job, errors);
    }
    plan->info.pruned += s.n_point - (plan->info.evaluated - before);
    for (uint32_t i = 0; i < BATCH; i++) {
        smp_errors_destroy(s.ready[i].errors);
    }
    free(s.later);
    free(s.heap.items);
    free(s.timed);
    smp_mixes_destroy(s.mixes);
    smp_plan_space_destroy(s.space);
    smp_arena_destroy(arena);
    return st;
}

