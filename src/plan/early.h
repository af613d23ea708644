/* SPDX-License-Identifier: Apache-2.0 */
/* What a search with a deadline begins with: some plan, so that there is one to stop with. */
#ifndef SMP_PLAN_EARLY_H
#define SMP_PLAN_EARLY_H

#include "plan/plan.h"

/* A configuration that fits into limit_bytes of a device and into the hosts, with everything
 * checkpointed and offloaded, and the least bound of time among a few of these; *any_p false:
 * none of them does. */
SMP_CHECK smp_status smp_find_early(const smp_plan *plan, smp_bounds *bounds,
                                    const smp_plan_space *space, uint64_t limit_bytes,
                                    smp_errors *errors, smp_found *found_p, bool *any_p);

#endif
