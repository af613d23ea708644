/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Branch and bound over the space of settings.
 *
 * Plans are ranked by time, then by code, so that of two equally fast plans the one with
 * fewer memory savers wins.  A heap holds parts of the space by their bounds on that rank:
 * heads, then (head, mesh), then points.  The lowest part is taken; a part is split, a point
 * is priced (mix.h), which says whether it fits and bounds its time, and comes again to be
 * simulated.  Where it cannot be priced, one that a simulated point dominates takes that
 * point's time alone as its bound.  In the fine space a mesh is priced first, and split into
 * its sparing points (sparing.h).  When the lowest part
 * cannot rank before the last of the plans kept, nothing that is left can: the plans are the
 * best of the whole space (gap 0), the same as without pruning.
 */
#include "config.h"

#include "plan/front.h"
#include "plan/sparing.h"

#include "base/numeric.h"
#include "base/parallel.h"
#include "model/model.h"
#include "sim/peaks.h"
#include "step/lower.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef enum level {
    LEVEL_HEAD, LEVEL_MESH, LEVEL_PRICED_MESH, LEVEL_POINT, LEVEL_PRICED
} level;

/* What plans are ranked by; of a part of the space, a lower bound of the ranks in it. */
typedef struct rank { int64_t step_ps; uint64_t code; } rank;

typedef struct item {
    rank bound;
    level level;
    smp_point point;
} item;

typedef struct heap { item *items; size_t n, room; } heap;

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

/* ---------------------------------------------------------------------- heap */

static int compare_ranks(const rank *a, const rank *b)
{
    if (a->step_ps != b->step_ps) {
        return a->step_ps < b->step_ps ? -1 : 1;
    }
    return (a->code > b->code) - (a->code < b->code);
}

static bool is_before(const item *a, const item *b)
{
    const int order = compare_ranks(&a->bound, &b->bound);
    return order != 0 ? order < 0 : a->level < b->level;
}

static void heap_push(heap *h, const item *new_item)
{
    SMP_GROW(h->items, h->n, h->room);
    size_t i = h->n++;
    while (i > 0 && is_before(new_item, &h->items[(i - 1) / 2])) {
        h->items[i] = h->items[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h->items[i] = *new_item;
}

static item heap_pop(heap *h)
{
    const item top = h->items[0];
    const item last = h->items[--h->n];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= h->n) {
            break;
        }
        if (child + 1 < h->n && is_before(&h->items[child + 1], &h->items[child])) {
            child++;
        }
        if (!is_before(&h->items[child], &last)) {
            break;
        }
        h->items[i] = h->items[child];
        i = child;
    }
    h->items[i] = last;
    return top;
}

/* ------------------------------------------------------------------ deadline */

static double now_s(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static bool is_late(const smp_plan *plan)
{
    return plan->options.deadline_s > 0 && now_s() - plan->start_s > plan->options.deadline_s;
}

/* Stops with something left that may take as little as bound_ps; the best so far takes
 * best_ps. */
static void stop(smp_plan *plan, int64_t best_ps, int64_t bound_ps)
{
    const double gap = best_ps > 0 ? (double)(best_ps - bound_ps) / (double)best_ps : 1;
    plan->stopped = true;
    plan->info.gap = gap > plan->info.gap ? gap : plan->info.gap;
}

/* By how much whole models on every rank, which delayed_init=false makes first, are over the
 * memory of a host, whatever the other settings: no configuration has a smaller excess. */
static uint64_t host_excess(const smp_job *job)
{
    const smp_cluster *cluster = job->cluster;
    const uint32_t ranks =
        cluster->gpus < cluster->gpus_per_node ? cluster->gpus : cluster->gpus_per_node;
    const uint64_t bytes = smp_mul(smp_mul(4, smp_model_parameters(job->model)), ranks);
    const uint64_t there = (uint64_t)cluster->host_memory_bytes.value;
    return !job->settings.delayed_init && bytes > there ? bytes - there : 0;
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

/* ----------------------------------------------------------------- the plans */

static uint32_t top_of(const smp_plan *plan)
{
    return plan->options.top > 0 ? plan->options.top : 5;
}

static uint64_t limit_of(const smp_plan *plan, const smp_job *job)
{
    return (uint64_t)(job->cluster->memory_bytes.value * (1 - plan->options.margin_frac));
}

static rank rank_of(const smp_found *found)
{
    return (rank){found->report.step_ps, found->code};
}

static bool is_better(const smp_found *a, const smp_found *b)
{
    const rank rank_a = rank_of(a);
    const rank rank_b = rank_of(b);
    return compare_ranks(&rank_a, &rank_b) < 0;
}

/* As is_better, over numbers of GPUs too. */
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
    return is_better(a, b);
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
    uint32_t i = s->n_found < s->top ? s->n_found++ : s->n_found - 1;
    while (i > 0 && is_better(candidate, &s->found[i - 1])) {
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

/* Whether what the parameters of a mesh need leaves room in memory; its job where it is
 * legal. */
static smp_status open_mesh(search *s, const smp_point *point, smp_job *job_p, bool *legal_p,
                            bool *open_p)
{
    uint64_t bytes = 0;
    *open_p = smp_plan_space_mesh(s->space, point, job_p);
    *legal_p = *open_p;
    if (!*open_p) {
        return SMP_OK;
    }
    const smp_status st = smp_bound_memory(s->bounds, job_p, false, s->errors, &bytes);
    *open_p = bytes <= s->limit_bytes;
    return st;
}

/* Points of the whole space. */
static uint64_t count_points(const smp_plan_space *space)
{
    uint64_t n = 0;
    smp_point point = {{0}};
    do {
        smp_job mesh;
        if (smp_plan_space_mesh(space, &point, &mesh)) {
            n += smp_plan_space_leaves(space, &point, &mesh);
        }
    } while (smp_plan_space_next(space, &point, 0, SMP_DIM_LEAF));
    return n;
}

/* Pushes a head with the least bound of its meshes; a head without a point that may fit is
 * dropped.  Counts its points. */
static smp_status push_head(search *s, const smp_point *head)
{
    item new_item = {{INT64_MAX, smp_plan_space_code(s->space, head)}, LEVEL_HEAD, *head};
    smp_point point = *head;
    bool any = false;
    do {
        smp_job job;
        int64_t bound_ps = 0;
        bool legal = false;
        bool open = false;
        smp_status st = open_mesh(s, &point, &job, &legal, &open);
        if (st == SMP_OK && open) {
            st = smp_bound_time(s->bounds, &job, false, s->errors, &bound_ps);
        }
        s->n_point += legal ? smp_plan_space_leaves(s->space, &point, &job) : 0;
        if (st != SMP_OK) {
            return st;
        }
        if (!open) {
            continue;
        }
        any = true;
        if (bound_ps < new_item.bound.step_ps) {
            new_item.bound.step_ps = bound_ps;
        }
    } while (smp_plan_space_next(s->space, &point, SMP_DIM_MESH, SMP_DIM_LEAF));
    if (any) {
        heap_push(&s->heap, &new_item);
    }
    return SMP_OK;
}

static smp_status push_heads(search *s)
{
    smp_point point = {{0}};
    smp_status st = SMP_OK;
    do {
        st = push_head(s, &point);
    } while (st == SMP_OK && smp_plan_space_next(s->space, &point, 0, SMP_DIM_MESH));
    return st;
}

static smp_status split_head(search *s, const item *head)
{
    smp_point point = head->point;
    do {
        smp_job job;
        bool legal = false;
        bool open = false;
        item mesh = {{0, smp_plan_space_code(s->space, &point)}, LEVEL_MESH, point};
        smp_status st = open_mesh(s, &point, &job, &legal, &open);
        if (st == SMP_OK && open) {
            st = smp_bound_time(s->bounds, &job, true, s->errors, &mesh.bound.step_ps);
        }
        if (st != SMP_OK) {
            return st;
        }
        if (open) {
            heap_push(&s->heap, &mesh);
        }
    } while (smp_plan_space_next(s->space, &point, SMP_DIM_MESH, SMP_DIM_LEAF));
    return SMP_OK;
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

static void push_priced(search *s, level level_, const smp_point *point, int64_t least_ps,
                        int64_t alone_ps)
{
    const item priced = {{alone_ps > least_ps ? alone_ps : least_ps,
                          smp_plan_space_code(s->space, point)}, level_, *point};
    heap_push(&s->heap, &priced);
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

/* The least that the points of a mesh need on a device is that of its last leaf. */
static smp_status may_fit(search *s, const smp_point *mesh, bool *may_p)
{
    smp_point last = *mesh;
    smp_job job;
    uint64_t bytes = 0;
    *may_p = true;
    for (int dim = SMP_DIM_LEAF; dim < SMP_DIMS; dim++) {
        last.digit[dim] = s->space->n_choice[dim] - 1;
    }
    if (!smp_plan_space_job(s->space, &last, &job)) {
        return SMP_OK;
    }
    const smp_status st = smp_bound_memory(s->bounds, &job, true, s->errors, &bytes);
    *may_p = bytes <= s->limit_bytes;
    return st;
}

/* The time of the first leaf where nothing slows anything is a bound for all of a mesh. */
static smp_status price_mesh(search *s, const item *mesh)
{
    const smp_pricing pricing = pricing_of(s);
    smp_price price;
    bool may = false;
    smp_status st = may_fit(s, &mesh->point, &may);
    if (st == SMP_OK && may) {
        st = smp_price_point(&pricing, &mesh->point, s->errors, &price);
    }
    if (st == SMP_OK && may) {
        push_priced(s, LEVEL_PRICED_MESH, &mesh->point, mesh->bound.step_ps,
                    price.legal ? price.alone_ps : 0);
    }
    return st;
}

/* The sparing points of a mesh. */
static smp_status split_finely(search *s, const item *mesh)
{
    const smp_pricing pricing = pricing_of(s);
    smp_point leaf = mesh->point;
    smp_status st = SMP_OK;
    for (uint32_t p = 0; st == SMP_OK && p < s->space->n_choice[SMP_DIM_PREFETCH]; p++) {
        for (uint32_t h = 0; st == SMP_OK && h < s->space->n_choice[SMP_DIM_OFFLOAD]; h++) {
            bool found = false;
            smp_price price;
            leaf.digit[SMP_DIM_PREFETCH] = p;
            leaf.digit[SMP_DIM_OFFLOAD] = h;
            leaf.digit[SMP_DIM_OFFLOAD_LAYERS] = 0;
            st = smp_find_sparing(&pricing, &leaf, s->errors, &price, &found);
            if (st == SMP_OK && found) {
                push_priced(s, LEVEL_PRICED, &leaf, mesh->bound.step_ps, price.alone_ps);
            }
        }
    }
    return st;
}

/* Prices a point: one that does not fit is dropped, and one that does comes again with its
 * time where nothing slows anything; one that cannot be priced is taken as it is. */
static smp_status price_point(search *s, item *point)
{
    smp_job job;
    smp_mix mix;
    bool known = false;
    if (!smp_plan_space_job(s->space, &point->point, &job)) {
        return SMP_OK;
    }
    const smp_status st = smp_mix_price_fitting(s->mixes, &job, s->errors, &mix, &known);
    if (st == SMP_OK && !known) {
        take_point(s, point);
    } else if (st == SMP_OK && mix.device_bytes <= s->limit_bytes &&
               (double)mix.host_bytes <= job.cluster->host_memory_bytes.value) {
        push_priced(s, LEVEL_PRICED, &point->point, point->bound.step_ps, mix.alone_ps);
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
        const bool late = open && s->n_ready == 0 && s->n_found > 0 && is_late(s->plan);
        if (late) {
            stop(s->plan, s->found[0].report.step_ps, part.bound.step_ps);
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
            st = s->space->fine ? price_mesh(s, &part) : split_mesh(s, &part);
            break;
        case LEVEL_PRICED_MESH:
            st = split_finely(s, &part);
            break;
        case LEVEL_POINT:
            st = price_point(s, &part);
            break;
        case LEVEL_PRICED:
            add_to_batch(s, &part, true);
            break;
        }
    }
    while (s->n_later > 0) {
        heap_push(&s->heap, &s->later[--s->n_later]);
    }
    return st;
}

static smp_status best_first(search *s)
{
    smp_status st = push_heads(s);
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
    s->n_point = count_points(s->space);
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

static void merge(search *s)
{
    smp_plan *plan = s->plan;
    for (uint32_t i = 0; i < s->n_found; i++) {
        uint32_t at = plan->n_found;
        while (at > 0 && is_preferred(plan->options.objective, &s->found[i],
                                      &plan->found[at - 1])) {
            at--;
        }
        if (at == top_of(plan)) {
            continue;
        }
        if (plan->n_found < top_of(plan)) {
            plan->n_found++;
        }
        for (uint32_t k = plan->n_found - 1; k > at; k--) {
            plan->found[k] = plan->found[k - 1];
        }
        plan->found[at] = s->found[i];
    }
}

/* The best plans on the GPUs of `job`, added to the plan. */
static smp_status search_gpus(smp_plan *plan, smp_bounds *bounds, const smp_job *job,
                              smp_errors *errors)
{
    smp_arena *arena = smp_arena_create();
    search s = {.plan = plan, .errors = errors, .bounds = bounds, .top = top_of(plan)};
    s.space = smp_plan_space_create(job, plan->options.fine);
    s.found = SMP_ARENA_ARRAY(arena, top_of(plan), smp_found);
    s.ready = SMP_ARENA_ARRAY(arena, BATCH, ready);
    for (uint32_t i = 0; i < BATCH; i++) {
        s.ready[i].errors = smp_errors_create();
    }
    s.mixes = smp_mixes_create();
    s.limit_bytes = limit_of(plan, job);
    const uint64_t before = plan->info.evaluated;
    smp_status st = SMP_OK;
    if (!plan->options.prune) {
        st = every_point(&s);
    } else if (host_excess(job) == 0) {
        st = best_first(&s);
    } else { /* nothing fits */
        s.n_point = count_points(s.space);
        plan->info.enumerated += s.n_point;
    }
    merge(&s);
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

/* Numbers of GPUs worth renting: those that divide a node, and whole nodes. */
static uint32_t next_gpus(const smp_cluster *cluster, uint32_t gpus)
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
        return search_gpus(plan, bounds, &plan->job, errors);
    }
    for (uint32_t gpus = 1; gpus < cluster->gpus; gpus = next_gpus(cluster, gpus)) {
        if (plan->n_found > 0 && is_late(plan)) {
            stop(plan, 0, 0); /* of the other numbers nothing is known */
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
        const smp_status st = search_gpus(plan, bounds, &job, errors);
        if (st != SMP_OK || (objective == SMP_OBJECTIVE_GPUS && plan->n_found > 0)) {
            return st;
        }
    }
    return search_gpus(plan, bounds, &plan->job, errors);
}

/* --------------------------------------------------------------- nothing fits */

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
    const uint64_t limit = limit_of(plan, space->job);
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
        const uint64_t on_host = host_excess(space->job);
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
    const uint64_t least = host_excess(space->job);
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
    for (uint32_t gpus = next_gpus(cluster, cluster->gpus); gpus <= most;
         gpus = next_gpus(cluster, gpus)) {
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

static smp_status explain_nothing_fits(smp_plan *plan, smp_bounds *bounds, smp_errors *errors)
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
                               : explain_nothing_fits(plan, bounds, errors);
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
    plan->found = SMP_ARENA_ARRAY(arena, top_of(plan), smp_found);
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
