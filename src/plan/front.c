/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exact front of one space.
 *
 * Meshes are taken in the order of their bound on time.  A point may be left out when a
 * simulated one that fits is no slower than the point's bound of time and needs no more than
 * its bound of memory: it is then no worse than the point, whatever that is.  Bounds come
 * first, then, for what they leave, the price (mix.h): memory, and the time alone.  Leaves save
 * memory and never time, slowdowns by what runs beside a kernel apart, so the time without
 * them of a mesh's first leaf is a bound of its others.  First leaves are simulated in a first
 * pass, which makes the front that the second pass prunes with.  On one number of GPUs cost is
 * proportional to time.
 */
#include "config.h"

#include "plan/front.h"

#include "plan/mix.h"

#include "base/numeric.h"
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------- the set */

/* `a` is as good as `b` in all three. */
static bool covers(const smp_front_point *a, const smp_front_point *b)
{
    return a->time_s <= b->time_s && a->peak_bytes <= b->peak_bytes && a->cost <= b->cost;
}

bool smp_front_add(smp_front *front, const smp_front_point *point)
{
    size_t kept = 0;
    for (size_t i = 0; i < front->n; i++) {
        if (covers(&front->at[i], point)) {
            return false; /* then none so far was dropped: it would be covered by this one */
        }
    }
    for (size_t i = 0; i < front->n; i++) {
        if (!covers(point, &front->at[i])) {
            front->at[kept++] = front->at[i];
        }
    }
    front->n = kept;
    SMP_GROW(front->at, front->n, front->room);
    front->at[front->n++] = *point;
    return true;
}

static int compare_points(const void *left, const void *right)
{
    const smp_front_point *a = left;
    const smp_front_point *b = right;
    const int time = (a->time_s > b->time_s) - (a->time_s < b->time_s);
    const int memory = (a->peak_bytes > b->peak_bytes) - (a->peak_bytes < b->peak_bytes);
    return time != 0 ? time : memory != 0 ? memory : (a->cost > b->cost) - (a->cost < b->cost);
}

void smp_front_sort(smp_front *front)
{
    if (front->n > 0) {
        qsort(front->at, front->n, sizeof *front->at, compare_points);
    }
}

/* ---------------------------------------------------------- time and memory */

/* A mesh: its bound, and the time of its first legal leaf where that was simulated. */
typedef struct part {
    int64_t bound_ps, first_ps;
    uint64_t code;
    smp_point first;
} part;

/* A simulated point that fits and that no other covers: times rise, peaks fall. */
typedef struct stair { int64_t step_ps; uint64_t peak_bytes; } stair;

typedef struct finder {
    smp_plan *plan;
    smp_bounds *bounds;
    smp_mixes *mixes;
    smp_errors *errors;
    smp_plan_space *space;
    uint64_t limit_bytes;
    part *parts;
    size_t n_part, part_room;
    stair *stairs;
    size_t n_stair, stair_room;
} finder;

/* Stairs with a time of at most step_ps. */
static size_t stairs_until(const finder *f, int64_t step_ps)
{
    size_t low = 0;
    size_t high = f->n_stair;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (f->stairs[middle].step_ps <= step_ps) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Whether something simulated is no worse than a point with these bounds. */
static bool is_covered(const finder *f, int64_t bound_ps, uint64_t bytes)
{
    const size_t n = stairs_until(f, bound_ps);
    return n > 0 && f->stairs[n - 1].peak_bytes <= bytes;
}

static void add_stair(finder *f, int64_t step_ps, uint64_t peak_bytes)
{
    if (is_covered(f, step_ps, peak_bytes)) {
        return;
    }
    /* those that the new one covers: from the first that is no faster, while they need more */
    size_t from = stairs_until(f, step_ps - 1);
    size_t end = from;
    while (end < f->n_stair && f->stairs[end].peak_bytes >= peak_bytes) {
        end++;
    }
    SMP_GROW(f->stairs, f->n_stair, f->stair_room);
    memmove(&f->stairs[from + 1], &f->stairs[end], (f->n_stair - end) * sizeof *f->stairs);
    f->n_stair = f->n_stair - (end - from) + 1;
    f->stairs[from] = (stair){step_ps, peak_bytes};
}

static smp_status price(finder *f, const smp_point *point, const smp_job *job,
                        int64_t *bound_ps_p)
{
    smp_plan *plan = f->plan;
    smp_front_point p = {.found = {.job = *job}};
    smp_report *report = &p.found.report;
    const smp_status st = smp_evaluate_on(job, smp_mix_ranks(f->mixes, job), false, f->errors,
                                          report, bound_ps_p, NULL);
    if (st != SMP_OK) {
        return st;
    }
    p.found.code = smp_plan_space_code(f->space, point);
    plan->front_evaluated++;
    const bool fits = smp_report_fits(report, plan->options.margin_frac) &&
                      report->memory.peak_bytes <= f->limit_bytes;
    SMP_GROW(plan->spots, plan->n_spot, plan->spot_room);
    plan->spots[plan->n_spot++] =
        (smp_spot){report->step_ps, report->memory.peak_bytes, fits};
    if (fits) {
        p.time_s = report->step_time_s;
        p.cost = report->step_time_s * job->world;
        p.peak_bytes = report->memory.peak_bytes;
        add_stair(f, report->step_ps, p.peak_bytes);
        smp_front_add(&plan->front, &p);
    }
    return SMP_OK;
}

/* Whether a point may be on the front by its memory and its time, first where nothing slows
 * anything, which becomes *bound_ps_p.  True also where these are not known. */
static smp_status may_be_on(finder *f, const smp_job *job, int64_t *bound_ps_p, bool *may_p)
{
    smp_mix mix;
    bool known = false;
    smp_status st = smp_mix_price(f->mixes, job, SMP_MIX_ALONE, f->errors, &mix, &known);
    *may_p = true;
    if (st == SMP_OK && known) {
        *bound_ps_p = mix.alone_ps > *bound_ps_p ? mix.alone_ps : *bound_ps_p;
        *may_p = mix.device_bytes <= f->limit_bytes &&
                 !is_covered(f, *bound_ps_p, mix.device_bytes);
    }
    if (st == SMP_OK && known && *may_p) {
        st = smp_mix_price(f->mixes, job, SMP_MIX_STEP, f->errors, &mix, &known);
        *may_p = !known || !is_covered(f, mix.step_ps, mix.device_bytes);
    }
    return st;
}

/* What has been lowered takes memory, and most of it is not asked for again. */
static void forget(finder *f)
{
    enum { MOST_LOWERED = 4096 };
    if (smp_mixes_lowered(f->mixes) > MOST_LOWERED) {
        smp_mixes_destroy(f->mixes);
        f->mixes = smp_mixes_create();
    }
}

/* Simulates a point unless its bounds show that it is not on the front; *bound_ps_p becomes
 * the bound of what it dominates where that is known. */
static smp_status visit(finder *f, const smp_point *point, int64_t *bound_ps_p)
{
    smp_job job;
    uint64_t bytes = 0;
    if (!smp_plan_space_job(f->space, point, &job)) {
        return SMP_OK;
    }
    if (!f->plan->options.prune) {
        return price(f, point, &job, bound_ps_p);
    }
    smp_status st = smp_bound_memory(f->bounds, &job, true, f->errors, &bytes);
    bool may = bytes <= f->limit_bytes && !is_covered(f, *bound_ps_p, bytes);
    if (st == SMP_OK && may) {
        st = may_be_on(f, &job, bound_ps_p, &may);
    }
    return st == SMP_OK && may ? price(f, point, &job, bound_ps_p) : st;
}

/* The first legal leaf of a mesh. */
static bool first_leaf(const finder *f, smp_point *point, smp_job *job_p)
{
    do {
        if (smp_plan_space_job(f->space, point, job_p)) {
            return true;
        }
    } while (smp_plan_space_next(f->space, point, SMP_DIM_LEAF, SMP_DIMS));
    return false;
}

static int compare_parts(const void *left, const void *right)
{
    const part *a = left;
    const part *b = right;
    if (a->bound_ps != b->bound_ps) {
        return a->bound_ps < b->bound_ps ? -1 : 1;
    }
    return (a->code > b->code) - (a->code < b->code);
}

static smp_status list_parts(finder *f)
{
    smp_point mesh = {{0}};
    do {
        smp_job job;
        part p = {.first = mesh};
        if (!first_leaf(f, &p.first, &job)) {
            continue;
        }
        const smp_status st = smp_bound_time(f->bounds, &job, true, f->errors, &p.bound_ps);
        if (st != SMP_OK) {
            return st;
        }
        p.first_ps = p.bound_ps;
        p.code = smp_plan_space_code(f->space, &p.first);
        SMP_GROW(f->parts, f->n_part, f->part_room);
        f->parts[f->n_part++] = p;
    } while (smp_plan_space_next(f->space, &mesh, 0, SMP_DIM_LEAF));
    if (f->n_part > 0) {
        qsort(f->parts, f->n_part, sizeof *f->parts, compare_parts);
    }
    return SMP_OK;
}

/* All leaves of a mesh behind the first. */
static smp_status visit_others(finder *f, const part *p)
{
    smp_point point = p->first;
    forget(f);
    while (smp_plan_space_next(f->space, &point, SMP_DIM_LEAF, SMP_DIMS)) {
        const bool slower = smp_point_dominates(&p->first, &point);
        int64_t bound_ps = slower ? p->first_ps : p->bound_ps;
        const smp_status st = visit(f, &point, &bound_ps);
        if (st != SMP_OK) {
            return st;
        }
    }
    return SMP_OK;
}

smp_status smp_front_find(smp_plan *plan, smp_bounds *bounds, const smp_job *job,
                          smp_errors *errors)
{
    finder f = {.plan = plan, .bounds = bounds, .errors = errors};
    f.limit_bytes =
        (uint64_t)(job->cluster->memory_bytes.value * (1 - plan->options.margin_frac));
    f.space = smp_plan_space_create(job, plan->options.fine);
    f.mixes = smp_mixes_create();
    smp_status st = list_parts(&f);
    for (size_t i = 0; i < f.n_part && st == SMP_OK; i++) {
        st = visit(&f, &f.parts[i].first, &f.parts[i].first_ps);
    }
    for (size_t i = 0; i < f.n_part && st == SMP_OK; i++) {
        st = visit_others(&f, &f.parts[i]);
    }
    smp_front_sort(&plan->front);
    smp_mixes_destroy(f.mixes);
    smp_plan_space_destroy(f.space);
    free(f.parts);
    free(f.stairs);
    return st;
}

const char *smp_front_name(const smp_job *job, char text[SMP_FRONT_NAME])
{
    const smp_settings *s = &job->settings;
    char checkpointing[32];
    char offload[24] = "";
    char experts[24] = "";
    char chunks[16] = "";
    const bool split = s->tensor_parallel_degree > 1;
    (void)smp_settings_get(s, "checkpointing", checkpointing, sizeof checkpointing);
    if (s->offload) {
        snprintf(offload, sizeof offload, " off %u", s->activation_loading_horizon);
    }
    if (s->offload && s->offload_layers > 0) {
        snprintf(offload, sizeof offload, " off %u of %u", s->activation_loading_horizon,
                 s->offload_layers);
    }
    if (s->expert_parallel_degree > 1) {
        snprintf(experts, sizeof experts, " ep %u", s->expert_parallel_degree);
    }
    if (s->loss_chunks > 1) {
        snprintf(chunks, sizeof chunks, " lc %u", s->loss_chunks);
    }
    snprintf(text, SMP_FRONT_NAME, "tp %u%s%s shard %u mb %u %s%s%s%s%s%s",
             s->tensor_parallel_degree, split && !s->sequence_parallel ? " no sp" : "", experts,
             s->hybrid_shard_degree, s->micro_batch, checkpointing, offload, chunks,
             s->reshard_after_forward ? "" : " kept",
             s->accumulation == SMP_ACCUMULATION_LAST ? " last" : "",
             s->prefetch == SMP_PREFETCH_NONE ? " no prefetch" : "");
    return text;
}

size_t smp_front_pick(const smp_front *front, size_t picked[SMP_FRONT_PICKED])
{
    const size_t n = front->n < SMP_FRONT_PICKED ? front->n : SMP_FRONT_PICKED;
    for (size_t i = 0; i < n; i++) {
        picked[i] = n > 1 ? i * (front->n - 1) / (n - 1) : 0;
    }
    return n;
}
