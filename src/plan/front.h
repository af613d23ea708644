/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The front of time, memory and cost: the configurations that no other beats or equals in
 * all three.
 */
#ifndef SMP_PLAN_FRONT_H
#define SMP_PLAN_FRONT_H

#include "plan/plan.h"

/* Adds a point unless one that is there is as good in all three; drops those that it makes
 * worthless.  True when it was added. */
bool smp_front_add(smp_front *front, const smp_front_point *point);
/* By time, then memory, then cost. */
void smp_front_sort(smp_front *front);

/* Adds what fits of the whole space of a job (not resolved), exactly, to plan->front; the cost
 * is that of the GPUs' time.  With options.prune false everything is simulated. */
SMP_CHECK smp_status smp_front_find(smp_plan *plan, smp_bounds *bounds, const smp_job *job,
                                    smp_errors *errors);
enum { SMP_FRONT_NAME = 160 }; /* bytes that hold every name */
/* A few words for a configuration: "tp 8 shard 16 mb 1 first:94". */
const char *smp_front_name(const smp_job *job, char text[SMP_FRONT_NAME]);
/* As many as a table or a plot can name, evenly over the front with both ends: their places,
 * and how many. */
enum { SMP_FRONT_PICKED = 20 };
size_t smp_front_pick(const smp_front *front, size_t picked[SMP_FRONT_PICKED]);

#endif
