/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory that no arena holds: the context with its kernels, and NCCL's buffers.
 * Estimates, reported under their names.
 */
#include "config.h"

#include "cost/nccl.h"

#include "base/numeric.h"

/* Buffers of one connection of one channel (NCCL v2.30.7 src/init.cc, src/include/device.h):
 * Simple 1 << 22; LL 8 steps of 512 lines of 8 threads' 16 bytes; LL128 120 x 640 x 8 x 8. */
static const uint64_t simple_bytes = 1u << 22;
static const uint64_t ll_bytes = 8u * 512u * 8u * 16u;
static const uint64_t ll128_bytes = 120u * 640u * 8u * 8u;
/* NVLS (src/transport/nvls.cc): two directions of 8 steps of 128 KiB, per channel and head. */
static const uint64_t nvls_step_bytes = 128u * 1024u;
enum { NVLS_STEPS = 8, NVLS_CHANNELS_HOPPER = 16, NVLS_CHANNELS_BLACKWELL = 24 };

uint64_t smp_cost_context_bytes(const smp_profile *profile)
{
    return (uint64_t)(profile->context_bytes.value + 0.5);
}

/* Connections a channel holds: the ring receives from one peer and, between nodes, also sends
 * through a buffer; trees, for groups that reduce whole messages, up to three more. */
static uint64_t connections(const smp_comm *comm)
{
    const uint64_t ring = comm->placement.nodes > 1 ? 2 : 1;
    const bool reduces = comm->group != SMP_GROUP_SHARD &&
                         comm->group != SMP_GROUP_EXPERT_SHARD &&
                         comm->group != SMP_GROUP_CONTEXT;
    return ring + (reduces && comm->placement.nodes > 1 ? 3 : 0);
}

uint64_t smp_cost_comm_bytes(const smp_cluster *cluster, const smp_profile *profile,
                             const smp_comm *comm)
{
    const smp_placement *placement = &comm->placement;
    if (comm->ranks < 2 || cluster->link == SMP_LINK_MEMORY ||
        profile->compute_capability == 0) {
        return 0;
    }
    const smp_nccl_graph ring = smp_nccl_search(cluster, profile, SMP_ALGO_RING, placement);
    uint64_t each = simple_bytes + ll_bytes;
    if (smp_nccl_enabled(cluster, profile, SMP_OP_ALL_GATHER, SMP_ALGO_RING, SMP_PROTO_LL128,
                         placement)) {
        each += ll128_bytes;
    }
    /* postset doubles the channels that the graph has (src/graph/connect.cc) */
    uint64_t bytes = smp_mul(smp_mul(2u * ring.channels, connections(comm)), each);
    const bool reduces = comm->group != SMP_GROUP_SHARD &&
                         comm->group != SMP_GROUP_EXPERT_SHARD &&
                         comm->group != SMP_GROUP_CONTEXT;
    const smp_algorithm nvls = placement->nodes > 1 ? SMP_ALGO_NVLS_TREE : SMP_ALGO_NVLS;
    if (reduces && smp_nccl_enabled(cluster, profile, SMP_OP_ALL_REDUCE, nvls, SMP_PROTO_SIMPLE,
                                    placement)) {
        const uint64_t channels = profile->compute_capability >= 100 ? NVLS_CHANNELS_BLACKWELL
                                                                     : NVLS_CHANNELS_HOPPER;
        bytes = smp_add(bytes, channels * 2u * NVLS_STEPS * nvls_step_bytes *
                                   smp_nccl_per_node(placement));
    }
    return bytes;
}
