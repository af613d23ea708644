/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost of an all-to-all: inside a node what was measured, where the profile has it; else
 * the formula below; rows that fused kernels send, by smp_cost_dispatch.
 *
 * NCCL has no tuning model for it: it is a send and a receive for
 * each pair of ranks [NCCL, ncclAlltoAll; nccl-tests, src/alltoall.cu].
 *
 * Of S bytes that a rank sends (nccl-tests counts the part that stays), S (p - 1)/n go to the
 * p - 1 others of its node and S (n - p)/n to other nodes.  The two parts use different links
 * and pass at once; a rank's share of the network is that of its node over the ranks there.
 * Where nodes have unequal numbers of members, those on the fullest send the most inside, and
 * those on the emptiest, which has the ports beside them, the most outside.
 */
#include "config.h"

#include "cost/nccl.h"

#include "base/numeric.h"

#include <math.h>

/* Sends and receives that NCCL puts into one batch of a kernel's work
 * [NCCL, src/include/device.h, NCCL_MAX_DEV_WORK_P2P_PER_BATCH]; batches follow each other. */
enum { PEERS_PER_BATCH = 8 };
static const double hop_s = 1e-6; /* between GPUs of a node, NCCL's LL hardware latency */
static const smp_figure latency_figure = {0.0, "NCCL, src/graph/tuning.cc: latency tables"};

/* Ranks are threads: what each sends to others is read and written in the host's memory. */
static void memory_exchange(const smp_cluster *cluster, const smp_profile *profile,
                            const smp_placement *p, double bytes, smp_cost *cost)
{
    const double ranks = (double)p->ranks, here = (double)p->most_per_node;
    cost->transfer_s = 2.0 * here * bytes * (ranks - 1.0) / ranks / cluster->link_Bps.value;
    cost->latency_s = profile->copy_latency_s.value * ceil(log2(ranks + 1.0));
    if (p->nodes > 1) {
        const double port =
            cluster->nic_Bps.value * (double)cluster->nics * smp_network_part(p);
        cost->transfer_s += here * bytes * (ranks - here) / ranks / port;
        cost->latency_s += cluster->nic_latency_s.value;
    }
}

static void device_exchange(const smp_cluster *cluster, const smp_profile *profile,
                            const smp_placement *p, double bytes, smp_cost *cost)
{
    const double ranks = (double)p->ranks;
    const double batches = (double)smp_ceil_div(p->ranks - 1, PEERS_PER_BATCH);
    double inside_s = 0.0, outside_s = 0.0;
    if (p->most_per_node > 1) {
        const smp_placement node = {.ranks = p->most_per_node, .nodes = 1,
                                    .most_per_node = p->most_per_node,
                                    .least_per_node = p->most_per_node, .stride = p->stride};
        const smp_nccl_graph g = smp_nccl_search(cluster, profile, SMP_ALGO_RING, &node);
        const double rate = g.channels > 0 ? (double)g.channels * g.intra_Bps
                                           : cluster->link_Bps.value;
        inside_s = bytes * ((double)p->most_per_node - 1.0) / ranks / rate;
    }
    if (p->nodes > 1) {
        const smp_nccl_graph g = smp_nccl_search(cluster, profile, SMP_ALGO_RING, p);
        const double node_Bps = g.channels > 0 ? (double)g.channels * g.inter_Bps
                                               : cluster->nic_Bps.value;
        const double rate = node_Bps * smp_nccl_network_share(cluster, p) /
                            (double)p->least_per_node;
        outside_s = bytes * (ranks - (double)p->least_per_node) / ranks / rate;
    }
    cost->transfer_s = inside_s > outside_s ? inside_s : outside_s;
    cost->latency_s = smp_nccl_latency_s(SMP_OP_ALL_GATHER, SMP_ALGO_RING, SMP_PROTO_SIMPLE, 2,
                                         1, profile->compute_capability, cluster->amd_host) +
                      batches * (p->nodes > 1 ? cluster->nic_latency_s.value : hop_s);
}

void smp_cost_exchange(const smp_cluster *cluster, const smp_profile *profile,
                       const smp_placement *placement, uint64_t bytes, smp_cost *cost_p)
{
    const double n = (double)placement->ranks;
    smp_cost cost = {.basis = &latency_figure};
    if (placement->ranks > 1 && placement->nodes == 1 && bytes > 0 &&
        profile->fits[SMP_FIT_ALL_TO_ALL] != NULL && cluster->link != SMP_LINK_MEMORY) {
        smp_cost_all_to_all(cluster, profile, placement->ranks, bytes, &cost);
    } else if (placement->ranks > 1) {
        if (cluster->link == SMP_LINK_MEMORY || profile->compute_capability == 0) {
            memory_exchange(cluster, profile, placement, (double)bytes, &cost);
        } else {
            device_exchange(cluster, profile, placement, (double)bytes, &cost);
        }
        cost.bus_Bps = (double)bytes * (n - 1.0) / n / smp_cost_seconds(&cost);
        cost.basis = cost.latency_s > cost.transfer_s ? &latency_figure
                     : placement->nodes > 1           ? &cluster->nic_Bps
                                                      : &cluster->link_Bps;
        /* No measurement between nodes stands behind it. */
        cost.spread = profile->collective_spread.value * (placement->nodes > 1 ? 2.0 : 1.0);
    }
    *cost_p = cost;
}

/* Multiprocessors that DeepEP's kernels use by default [DeepEP, deep_ep/buffer.py]. */
enum { DISPATCH_UNITS = 20 };
/* The rows of dispatch are of up to four nodes. */
enum { DISPATCH_NODES = 4 };

void smp_cost_exchange_task(const smp_cluster *cluster, const smp_profile *profile,
                            const smp_placement *placement, const smp_task *task,
                            smp_cost *cost_p)
{
    const uint64_t *d = task->dims;
    if (d[4] == 0 || d[5] == 0 || placement->ranks < 2 || cluster->link == SMP_LINK_MEMORY) {
        smp_cost_exchange(cluster, profile, placement, smp_task_bytes(task), cost_p);
        return;
    }
    /* the busiest rank has as many more rows as its part says */
    const double rows = (double)d[4] * (double)(d[5] & UINT32_MAX) * (double)d[6];
    const double more = (double)d[2] / rows;
    const smp_dispatch dispatch = {
        .tokens = (uint64_t)((double)d[4] * more + 0.5),
        .hidden = d[6],
        .top_k = d[5] & UINT32_MAX,
        .ranks = placement->ranks,
        .nodes = placement->nodes,
        .element_bytes = (double)smp_dtype_bytes((smp_dtype)task->dtype),
        /* groups of experts lie beside each other, over the nodes in order */
        .most_nodes = d[7] > 1 ? (uint32_t)((d[5] >> 32) * smp_ceil_div(placement->nodes, d[7]))
                               : 0,
        .multiprocessors = DISPATCH_UNITS,
        .combine = d[3] != 0,
    };
    smp_cost_dispatch(cluster, profile, &dispatch, cost_p);
    cost_p->extrapolated = cost_p->extrapolated || placement->nodes > DISPATCH_NODES;
    cost_p->bus_Bps = (double)smp_task_bytes(task) / smp_cost_seconds(cost_p);
}
