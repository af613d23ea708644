/* SPDX-License-Identifier: Apache-2.0 */
/* Where nothing fits: the configuration that lacks least, and the number of GPUs it would take.
 */
#ifndef SMP_PLAN_LEAN_H
#define SMP_PLAN_LEAN_H

#include "plan/plan.h"

/* By how much whole models on every rank, which delayed_init=false makes first, are over the
 * memory of a host, whatever the other settings: no configuration has a smaller excess. */
uint64_t smp_host_excess(const smp_job *job);
/* Some configuration of a job (not resolved) that fits, found soon; *any_p false: none does. */
SMP_CHECK smp_status smp_find_some(const smp_plan *plan, smp_bounds *bounds,
                                   const smp_job *job, smp_errors *errors, smp_found *found_p,
                                   bool *any_p);
/* Fills plan->nearest and plan->fitting_gpus, and fails with a message that says them:
 * SMP_INFEASIBLE, or SMP_INPUT where the pins leave no configuration at all. */
SMP_CHECK smp_status smp_explain_nothing_fits(smp_plan *plan, smp_bounds *bounds,
                                              smp_errors *errors);

#endif
