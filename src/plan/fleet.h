/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clusters and numbers of GPUs compared: what the search, its explanation and its printing
 * share.  The search of one number of GPUs is plan.h.
 */
#ifndef SMP_PLAN_FLEET_H
#define SMP_PLAN_FLEET_H

#include "plan/plan.h"

/* How far a candidate came. */
typedef enum smp_standing {
    SMP_STANDING_OPEN,   /* bounds only; in the end: cannot rank among those kept */
    SMP_STANDING_RULES,  /* no configuration follows the rules */
    SMP_STANDING_MEMORY, /* none fits */
    SMP_STANDING_LATE,   /* its bound is over the time allowed */
    SMP_STANDING_DEAR,   /* its bound is over the budget */
    SMP_STANDING_FOUND   /* its best plan is known */
} smp_standing;

/* What a run costs: exact where a plan is known, else the least that it can be. */
typedef struct smp_bill {
    double seconds, gpu_hours;
    double money; /* NaN: the cluster has no price */
} smp_bill;

/* A number of GPUs of one cluster. */
typedef struct smp_candidate {
    uint32_t offer;      /* its place among the offers */
    uint32_t gpus;
    smp_job job;         /* of the offer, on these GPUs; not resolved */
    smp_standing standing;
    smp_bill bill;
    smp_plan *plan;      /* FOUND: with one plan; MEMORY: with the nearest, or NULL */
    bool meets;          /* FOUND: the limits of time and money */
} smp_candidate;

struct smp_fleet {
    smp_arena *arena;
    smp_fleet_options options;
    const char *currency;      /* of the clusters; NULL: none has a price */
    smp_candidate *candidates; /* by offer, then by number of GPUs */
    uint32_t n_candidate;
    smp_candidate **ranked;    /* those FOUND that meet the limits, best first */
    uint32_t n_ranked;
    smp_candidate *nearest;    /* when none does: the one that misses them least */
    smp_front front;           /* over the ranked ones that are shown, of runs and money */
    smp_search_info info;      /* summed over the searches */
    uint32_t searched;         /* candidates whose space was searched */
};

/* Ranked candidates that are shown: as many as were asked for, which are the exact best. */
uint32_t smp_fleet_shown(const smp_fleet *fleet);
/* Every number of GPUs of an offer as candidates without bounds. */
void smp_fleet_list(smp_fleet *fleet, const smp_offer *offers, size_t n_offer);
/* Fills in the least that a candidate can cost, or why it is none. */
SMP_CHECK smp_status smp_fleet_bound(const smp_fleet *fleet, smp_bounds *bounds,
                                     smp_candidate *candidate, smp_errors *errors);
/* What a run costs with steps of this time. */
smp_bill smp_fleet_bill(const smp_fleet *fleet, const smp_candidate *candidate,
                        int64_t step_ps);
/* The larger share of a limit that a bill uses, where there is any: above 1 it is missed. */
double smp_fleet_use(const smp_fleet *fleet, const smp_bill *bill);
/* Below 0: `a` ranks before `b`.  With a bound as bill, a bound on the rank. */
int smp_fleet_compare(const smp_fleet *fleet, const smp_candidate *a, const smp_candidate *b);

#endif
