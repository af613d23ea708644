/* SPDX-License-Identifier: Apache-2.0 */
/* Some plan, soon: see early.h. */
#include "config.h"

#include "plan/early.h"

#include "base/numeric.h"

#include <stdlib.h>

typedef struct candidate { int64_t bound_ps; uint64_t code; smp_point leaf; } candidate;
typedef struct candidates { candidate *at; size_t n, room; } candidates; /* heap */

static int compare_candidates(const void *left, const void *right)
{
    const candidate *a = left;
    const candidate *b = right;
    if (a->bound_ps != b->bound_ps) {
        return a->bound_ps < b->bound_ps ? -1 : 1;
    }
    return (a->code > b->code) - (a->code < b->code);
}

/* Adds the leaf of a mesh that needs least, where it may fit. */
static smp_status add(const smp_plan_space *space, smp_bounds *bounds, const smp_point *mesh,
                      uint64_t limit_bytes, smp_errors *errors, candidates *all)
{
    candidate c = {.leaf = *mesh};
    smp_job mesh_job;
    smp_job job;
    uint64_t bytes = 0;
    if (!smp_plan_space_mesh(space, mesh, &mesh_job) ||
        !smp_plan_space_least_leaf(space, &c.leaf, &mesh_job, &job) ||
        (space->fine && !smp_is_coarse(space, &c.leaf))) {
        return SMP_OK; /* refused by a rule, or not surely in the space */
    }
    smp_status st = smp_bound_memory(bounds, &job, true, errors, &bytes);
    if (st == SMP_OK && bytes <= limit_bytes) {
        st = smp_bound_time(bounds, &mesh_job, true, errors, &c.bound_ps);
        c.code = smp_plan_space_code(space, &c.leaf);
        SMP_GROW(all->at, all->n, all->room);
        all->at[all->n++] = c;
    }
    return st;
}

static smp_status try_some(const smp_plan *plan, const smp_plan_space *space,
                           const candidates *all, smp_errors *errors, smp_found *found_p,
                           bool *any_p)
{
    enum { TRIES = 64 };
    smp_status st = SMP_OK;
    for (size_t i = 0; st == SMP_OK && i < all->n && i < TRIES && !*any_p; i++) {
        *found_p = (smp_found){.code = all->at[i].code};
        if (smp_plan_space_job(space, &all->at[i].leaf, &found_p->job)) {
            st = smp_evaluate(&found_p->job, false, errors, &found_p->report, NULL, NULL);
            *any_p = st == SMP_OK &&
                     smp_report_fits(&found_p->report, plan->options.margin_frac);
        }
    }
    return st;
}

smp_status smp_find_early(const smp_plan *plan, smp_bounds *bounds,
                          const smp_plan_space *space, uint64_t limit_bytes,
                          smp_errors *errors, smp_found *found_p, bool *any_p)
{
    const uint32_t last = space->n_choice[SMP_DIM_CHECKPOINTING] - 1;
    candidates all = {0};
    smp_point mesh = {{0}};
    smp_status st = SMP_OK;
    *any_p = false;
    do {
        if (mesh.digit[SMP_DIM_CHECKPOINTING] == last) {
            st = add(space, bounds, &mesh, limit_bytes, errors, &all);
        }
    } while (st == SMP_OK && smp_plan_space_next(space, &mesh, 0, SMP_DIM_LEAF));
    if (st == SMP_OK && all.n > 0) {
        qsort(all.at, all.n, sizeof *all.at, compare_candidates);
        st = try_some(plan, space, &all, errors, found_p, any_p);
    }
    free(all.at);
    return st;
}
