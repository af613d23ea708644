/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the NCCL model share.  Internal to src/cost.
 */
#ifndef SMP_COST_NCCL_H
#define SMP_COST_NCCL_H

#include "cost/cost.h"

/* Rows of NCCL's tables. */
typedef enum smp_nccl_row {
    SMP_NCCL_VOLTA, SMP_NCCL_AMPERE, SMP_NCCL_HOPPER, SMP_NCCL_BLACKWELL
} smp_nccl_row;
smp_nccl_row smp_nccl_row_of(uint32_t compute_capability);

/* Ranks per node as NCCL's tuner counts them. */
uint32_t smp_nccl_per_node(const smp_placement *placement);
/* A group's part of its node's network when all groups of its kind communicate: by members, on
 * the node where that is least. */
double smp_network_part(const smp_placement *placement);
/* What that leaves of the rate that the group's own ports could have. */
double smp_nccl_network_share(const smp_cluster *cluster, const smp_placement *placement);
/* All-to-all by latency and the rate of a GPU's links, without what was measured. */
void smp_cost_all_to_all_model(const smp_cluster *cluster, const smp_profile *profile,
                               uint32_t ranks, uint64_t bytes, smp_cost *cost_p);
bool smp_nccl_enabled(const smp_cluster *cluster, const smp_profile *profile, smp_op op,
                      smp_algorithm algorithm, smp_protocol protocol,
                      const smp_placement *placement);

#endif
