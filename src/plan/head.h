/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the head digits of a point decide, measured on its program: the path through forward
 * and backward (chain.h) and the stacks of saved activations.
 */
#ifndef SMP_PLAN_HEAD_H
#define SMP_PLAN_HEAD_H

#include "cost/cost.h"
#include "plan/chain.h"

typedef struct smp_heads smp_heads; /* memoised */
smp_heads *smp_heads_create(void);
void smp_heads_destroy(smp_heads *heads);

/* Bytes of saved activations without offload, and of what one layer with full checkpointing
 * has of them. */
SMP_CHECK smp_status smp_head_stacks(smp_heads *heads, const smp_job *job, smp_errors *errors,
                                     uint64_t *bytes_p, uint64_t *full_layer_bytes_p);
/* The path where the expert group lies as `experts` says; NULL: exchanges between expert ranks
 * take no time. */
SMP_CHECK smp_status smp_head_chain(smp_heads *heads, const smp_job *job,
                                    const smp_placement *experts, smp_errors *errors,
                                    smp_chain *chain_p);

#endif
