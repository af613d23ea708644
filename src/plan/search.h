/* SPDX-License-Identifier: Apache-2.0 */
/* Branch and bound over the space of settings on one number of GPUs (search.c). */
#ifndef SMP_PLAN_SEARCH_H
#define SMP_PLAN_SEARCH_H

#include "plan/plan.h"

/* The best plans of a job (not resolved) on its GPUs, merged into the plan's, and its front
 * where that is asked for. */
SMP_CHECK smp_status smp_search(smp_plan *plan, smp_bounds *bounds, const smp_job *job,
                                smp_errors *errors);

#endif
