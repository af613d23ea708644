/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The time of a collective by NCCL's own tuning model.
 *
 * NCCL v2.30.7, src/graph/tuning.cc: time = latency + bytes / bandwidth for each algorithm and
 * protocol; the fastest pair is taken.  Tables are in microseconds and in 1e9 bytes per
 * second, as there.  Differences, with reasons in docs/costs.md: the correction of trees is
 * interpolated between its steps, so that time never falls when a message grows; groups that
 * use a node's ports at once share them.
 */
#include "config.h"

#include "cost/fit.h"
#include "cost/nccl.h"

#include <math.h>
#include <string.h>

static const char *const algorithm_names[SMP_ALGOS] = {"Ring", "Tree", "NVLS", "NVLSTree",
                                                       "PAT"};
static const char *const protocol_names[SMP_PROTOS] = {"LL", "LL128", "Simple"};

const char *smp_algorithm_name(smp_algorithm algorithm) { return algorithm_names[algorithm]; }
const char *smp_protocol_name(smp_protocol protocol) { return protocol_names[protocol]; }

/* Latency of starting, and of one hop over NVLink, PCIe and the network. */
static const double base_us[SMP_ALGOS][SMP_PROTOS] = {
    [SMP_ALGO_RING] = {6.6, 14.0, 8.4}, [SMP_ALGO_TREE] = {6.8, 14.0, 8.4},
    [SMP_ALGO_NVLS] = {0}, [SMP_ALGO_NVLS_TREE] = {0}, [SMP_ALGO_PAT] = {8.0, 8.0, 8.0}};
enum { HOP_NVLINK, HOP_PCIE, HOP_NET, HOPS };
static const double hop_us[HOPS][SMP_ALGOS][SMP_PROTOS] = {
    [HOP_NVLINK] = {[SMP_ALGO_RING] = {0.6, 1.9, 3.4}, [SMP_ALGO_TREE] = {0.6, 1.25, 4.0},
                    [SMP_ALGO_NVLS] = {0, 0, 25.0}, [SMP_ALGO_NVLS_TREE] = {0, 0, 25.0},
                    [SMP_ALGO_PAT] = {0, 0, 4.0}},
    [HOP_PCIE] = {[SMP_ALGO_RING] = {1.0, 2.5, 5.7}, [SMP_ALGO_TREE] = {1.0, 1.9, 4.0},
                  [SMP_ALGO_PAT] = {0, 0, 4.0}},
    [HOP_NET] = {[SMP_ALGO_RING] = {2.7, 4.0, 14.0}, [SMP_ALGO_TREE] = {5.0, 8.5, 14.0},
                 [SMP_ALGO_NVLS] = {0, 0, 18.0}, [SMP_ALGO_NVLS_TREE] = {0, 0, 20.9},
                 [SMP_ALGO_PAT] = {0, 0, 14.0}}};

/* Limits by generation for 1, 2 and more nodes. */
static const double ll_max[4][3] = {
    {39.0, 39.0, 20.4}, {87.7, 22.5, 19.0}, {141.0, 45.0, 35.0}, {282.0, 90.0, 70.0}};
static const double ring_ll128_max[4][3] = {
    {20.0, 20.0, 20.0}, {20.0, 20.0, 20.0}, {36.7, 36.7, 36.7}, {40.0, 40.0, 40.0}};
static const double tree_ll128_max[4][3] = {
    {20.0, 20.0, 20.0}, {20.0, 20.0, 20.0}, {36.7, 36.7, 29.0}, {55.6, 31.67, 20.0}};
static const double tree_max[4][3] = {
    {26.5, 18.5, 10.0}, {24.0, 23.6, 17.8}, {38.7, 41.4, 36.0}, {70.0, 42.8, 24.0}};
static const double nvls_tree_max[4][3] = {
    {26.5, 18.5, 10.0}, {24.0, 23.6, 17.8}, {0.0, 57.7, 45.5}, {0.0, 96.0, 80.0}};
static const double nvls_efficiency[4] = {0.85, 0.85, 0.85, 0.74};

enum { CORRECTIONS = 24, TREE_CORRECTED = 23, NVLS_TREE_CORRECTED = 24 };
static const double tree_correction[SMP_PROTOS][CORRECTIONS] = {
    [SMP_PROTO_LL] = {1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5,
                      .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1, 1},
    [SMP_PROTO_LL128] = {1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6,
                         .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1, 1},
    [SMP_PROTO_SIMPLE] = {.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5,
                          .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9, .9}};

static const smp_figure latency_figure = {
    0.0, "NCCL v2.30.7 src/graph/tuning.cc: base and hop latencies"};

/* What one collective looks like to the tuner. */
typedef struct tuner {
    smp_op op;
    uint32_t ranks, nodes, per_node;
    smp_nccl_row row;
    bool nvlink, amd_host;
    double port_latency_us;
} tuner;

static double steps_of(const tuner *t)
{
    return t->op == SMP_OP_ALL_REDUCE ? 2.0 * (t->ranks - 1) : (double)(t->ranks - 1);
}

static double ring_us(const tuner *t, smp_protocol protocol, double hop, double between)
{
    const double net_steps = t->nodes < 2 ? 0.0
                             : t->op == SMP_OP_ALL_REDUCE ? 2.0 * (t->nodes - 1)
                                                          : (double)(t->nodes - 1);
    double overhead = 0.0; /* of the proxy that feeds the network, by host */
    if (t->nodes > 1) {
        overhead = (t->amd_host ? 2.0 : 1.0) * (protocol == SMP_PROTO_SIMPLE ? 3.0 : 1.0);
    }
    const double inside = hop > overhead ? hop : overhead;
    return (steps_of(t) - net_steps) * inside + net_steps * between;
}

static double latency_us(const tuner *t, smp_algorithm algorithm, smp_protocol protocol)
{
    const double hop = hop_us[t->nvlink ? HOP_NVLINK : HOP_PCIE][algorithm][protocol];
    const smp_algorithm net_row =
        t->per_node == 1 && algorithm == SMP_ALGO_RING ? SMP_ALGO_TREE : algorithm;
    const double between = hop_us[HOP_NET][net_row][protocol] +
                           t->port_latency_us * (protocol == SMP_PROTO_SIMPLE ? 2.0 : 1.0);
    const double base = base_us[algorithm][protocol];
    const double depth = log2((double)t->nodes);
    switch (algorithm) {
    case SMP_ALGO_RING:
        return base + ring_us(t, protocol, hop, between);
    case SMP_ALGO_TREE:
        return base + 2.0 * ((t->per_node - 1) * hop + floor(depth) * between);
    case SMP_ALGO_NVLS:
        return base + hop + (t->nodes > 1 ? between : 0.0);
    case SMP_ALGO_NVLS_TREE:
        return base + hop + 2.0 * depth * between;
    case SMP_ALGO_PAT:
        return base + depth * between / 3.5 + 2.8 * t->ranks;
    case SMP_ALGOS:
        break;
    }
    return 0.0;
}

/* Which algorithms NCCL has for an operation on a number of nodes. */
static bool algorithm_exists(smp_op op, smp_algorithm algorithm, uint32_t ranks, uint32_t nodes)
{
    switch (algorithm) {
    case SMP_ALGO_RING:
        return true;
    case SMP_ALGO_TREE:
        return op == SMP_OP_ALL_REDUCE;
    case SMP_ALGO_NVLS:
        return nodes == 1;
    case SMP_ALGO_NVLS_TREE:
        return op == SMP_OP_ALL_REDUCE && nodes > 1;
    case SMP_ALGO_PAT:
        return op != SMP_OP_ALL_REDUCE && nodes > 1 && ranks == nodes;
    case SMP_ALGOS:
        break;
    }
    return false;
}

static bool only_simple(smp_algorithm algorithm)
{
    return algorithm != SMP_ALGO_RING && algorithm != SMP_ALGO_TREE;
}

double smp_nccl_latency_s(smp_op op, smp_algorithm algorithm, smp_protocol protocol,
                          uint32_t ranks, uint32_t nodes, uint32_t compute_capability,
                          bool amd_host)
{
    if (!algorithm_exists(op, algorithm, ranks, nodes) ||
        (only_simple(algorithm) && protocol != SMP_PROTO_SIMPLE)) {
        return -1.0;
    }
    const tuner t = {op, ranks, nodes, ranks / nodes, smp_nccl_row_of(compute_capability),
                     true, amd_host, 0.0};
    return latency_us(&t, algorithm, protocol) * 1e-6;
}

bool smp_nccl_enabled(const smp_cluster *cluster, const smp_profile *profile, smp_op op,
                      smp_algorithm algorithm, smp_protocol protocol,
                      const smp_placement *placement)
{
    if (!algorithm_exists(op, algorithm, placement->ranks, placement->nodes)) {
        return false;
    }
    if (only_simple(algorithm) && protocol != SMP_PROTO_SIMPLE) {
        return false;
    }
    if (algorithm == SMP_ALGO_NVLS || algorithm == SMP_ALGO_NVLS_TREE) {
        return cluster->nvls && profile->compute_capability >= 90 &&
               placement->least_per_node > 1;
    }
    if (protocol == SMP_PROTO_LL128) {
        const bool inside = cluster->link != SMP_LINK_PCIE || placement->most_per_node == 1;
        const bool between = placement->nodes == 1 || cluster->nic_near;
        return profile->compute_capability >= 70 && inside && between;
    }
    return true;
}

static double least(double a, double b) { return a < b ? a : b; }

/* NCCL takes the rate inside nodes for up to two of them. */
static double bus_of(const tuner *t, const smp_nccl_graph *g, double share)
{
    return g->channels * (t->nodes <= 2 ? g->intra_Bps : g->inter_Bps) * 1e-9 * share;
}

/* Bandwidth of all channels together in 1e9 bytes/s before the conversion to the rate at which
 * the message passes. */
static double ring_bandwidth(const tuner *t, const smp_nccl_graph *g, double share,
                             smp_protocol protocol)
{
    const int column = t->nodes == 1 ? 0 : t->nodes == 2 ? 1 : 2;
    const int ll_row = t->nodes == 1 ? (int)t->row : t->amd_host ? 1 : 0;
    const double bus = bus_of(t, g, share);
    switch (protocol) {
    case SMP_PROTO_LL:
        return least(ll_max[ll_row][column], 0.5 * bus);
    case SMP_PROTO_LL128:
        return least(0.92 * bus, g->channels * ring_ll128_max[t->row][column]);
    case SMP_PROTO_SIMPLE:
    case SMP_PROTOS:
        break;
    }
    return bus;
}

static double tree_bandwidth(const tuner *t, const smp_nccl_graph *g, double share,
                             smp_protocol protocol)
{
    const int column = t->nodes == 1 ? 0 : t->nodes == 2 ? 1 : 2;
    const int ll_row = t->nodes == 1 ? (int)t->row : t->amd_host ? 1 : 0;
    const double bus = bus_of(t, g, share);
    const double tree = least(0.92 * bus, g->channels * tree_max[t->row][column]);
    switch (protocol) {
    case SMP_PROTO_LL:
        return least(tree / 3.8, ll_max[ll_row][column]);
    case SMP_PROTO_LL128:
        return least(tree * (t->nodes == 1 ? 7.0 / 9.0 : 120.0 / 128.0),
                     g->channels * tree_ll128_max[t->row][column]);
    case SMP_PROTO_SIMPLE:
    case SMP_PROTOS:
        break;
    }
    return tree;
}

static double nvls_bandwidth(const tuner *t, const smp_nccl_graph *g, double share,
                             smp_algorithm algorithm)
{
    const double n = (double)g->channels;
    const double per_node = (double)t->per_node;
    double intra = g->intra_Bps * 1e-9 * nvls_efficiency[t->row] * (n - 1.0) / n;
    intra *= t->op == SMP_OP_ALL_REDUCE ? 2.0 : (per_node - 1.0) / per_node;
    double inter = g->inter_Bps * 1e-9 * share;
    double limit = intra;
    if (algorithm == SMP_ALGO_NVLS_TREE) {
        inter *= t->nodes <= 2 ? 2.0 : 1.0;
        limit = least(intra, nvls_tree_max[t->row][t->nodes == 2 ? 1 : 2]);
    }
    return n * least(limit, inter);
}

/* Interpolated in log2(bytes / 64) between the entries of NCCL's table, which steps: a step up
 * would make a larger message faster. */
static double correction(smp_protocol protocol, uint64_t bytes, int corrected)
{
    if (bytes < 64) {
        return 1.0;
    }
    const double x = log2((double)bytes / 64.0);
    if (x >= corrected) {
        return 1.0;
    }
    const int i = (int)x;
    const double low = tree_correction[protocol][i];
    const double high = i + 1 >= corrected ? 1.0 : tree_correction[protocol][i + 1];
    return low + (high - low) * (x - i);
}

/* Rate at which the message passes, in bytes per second. */
static double message_Bps(const tuner *t, const smp_nccl_graph *g, double share,
                          smp_algorithm algorithm, smp_protocol protocol, uint64_t bytes)
{
    const double around = (double)t->ranks / steps_of(t);
    double bandwidth = 0.0;
    switch (algorithm) {
    case SMP_ALGO_RING:
        bandwidth = ring_bandwidth(t, g, share, protocol) * around;
        break;
    case SMP_ALGO_TREE:
        bandwidth = 0.5 * tree_bandwidth(t, g, share, protocol) *
                    correction(protocol, bytes, TREE_CORRECTED);
        break;
    case SMP_ALGO_NVLS:
    case SMP_ALGO_NVLS_TREE:
        bandwidth = nvls_bandwidth(t, g, share, algorithm);
        if (t->op == SMP_OP_ALL_REDUCE) {
            bandwidth *= around;
        }
        if (algorithm == SMP_ALGO_NVLS_TREE && t->row == SMP_NCCL_BLACKWELL) {
            bandwidth *= correction(protocol, bytes, NVLS_TREE_CORRECTED);
        }
        break;
    case SMP_ALGO_PAT:
        bandwidth = 0.75 * g->channels * g->inter_Bps * 1e-9 * share;
        break;
    case SMP_ALGOS:
        break;
    }
    return bandwidth * 1e9;
}

/* Latency and transfer of one pair; false when it is not enabled. */
static bool pair_seconds(const smp_cluster *cluster, const smp_profile *profile, smp_op op,
                         smp_algorithm algorithm, smp_protocol protocol,
                         const smp_placement *placement, uint64_t bytes, smp_cost *cost)
{
    if (!smp_nccl_enabled(cluster, profile, op, algorithm, protocol, placement)) {
        return false;
    }
    const smp_nccl_graph g = smp_nccl_search(cluster, profile, algorithm, placement);
    if (g.channels == 0 || (only_simple(algorithm) && algorithm != SMP_ALGO_PAT &&
                            g.channels < 2)) {
        return false;
    }
    const tuner t = {.op = op,
                     .ranks = placement->ranks,
                     .nodes = placement->nodes,
                     .per_node = smp_nccl_per_node(placement),
                     .row = smp_nccl_row_of(profile->compute_capability),
                     .nvlink = cluster->link != SMP_LINK_PCIE,
                     .amd_host = cluster->amd_host,
                     .port_latency_us = cluster->nic_latency_s.value * 1e6};
    const double share = smp_nccl_network_share(cluster, placement);
    const double rate = message_Bps(&t, &g, share, algorithm, protocol, bytes);
    if (!(rate > 0.0)) {
        return false;
    }
    double latency = latency_us(&t, algorithm, protocol);
    if (algorithm == SMP_ALGO_RING && protocol == SMP_PROTO_SIMPLE && t.nodes > 1 &&
        op == SMP_OP_ALL_REDUCE && bytes / ((uint64_t)g.channels * t.ranks) >= 64) {
        latency *= t.row == SMP_NCCL_VOLTA ? 1.9 : 1.4;
    }
    cost->latency_s = latency * 1e-6;
    cost->transfer_s = (double)bytes / rate;
    cost->algorithm = algorithm;
    cost->protocol = protocol;
    cost->channels = g.channels;
    return true;
}

double smp_nccl_seconds(const smp_cluster *cluster, const smp_profile *profile, smp_op op,
                        smp_algorithm algorithm, smp_protocol protocol,
                        const smp_placement *placement, uint64_t bytes)
{
    smp_cost cost = {0};
    if (!pair_seconds(cluster, profile, op, algorithm, protocol, placement, bytes, &cost)) {
        return -1.0;
    }
    return cost.latency_s + cost.transfer_s;
}

static void nccl_collective(const smp_cluster *cluster, const smp_profile *profile, smp_op op,
                            const smp_placement *placement, uint64_t bytes, smp_cost *best)
{
    bool any = false;
    for (int a = 0; a < SMP_ALGOS; a++) {
        for (int p = 0; p < SMP_PROTOS; p++) {
            smp_cost cost = {0};
            if (pair_seconds(cluster, profile, op, (smp_algorithm)a, (smp_protocol)p, placement,
                             bytes, &cost) &&
                (!any || smp_cost_seconds(&cost) < smp_cost_seconds(best))) {
                *best = cost;
                any = true;
            }
        }
    }
}

/* Ranks are threads that copy through the host's memory, whose rate they share.  Bytes that
 * pass the memory, over all r ranks of a node, for a message of S bytes: all-gather reads and
 * writes what each has not, 2 S (r - 1); reduce-scatter reads S and writes S / r in each,
 * S (r + 1); all-reduce is one after the other. */
static void memory_collective(const smp_cluster *cluster, const smp_profile *profile, smp_op op,
                              const smp_placement *placement, uint64_t bytes, smp_cost *cost)
{
    const double s = (double)bytes;
    const double r = (double)placement->most_per_node;
    const double gather = 2.0 * s * (r - 1.0);
    const double scatter = r > 1.0 ? s * (r + 1.0) : 0.0;
    const double phases = op == SMP_OP_ALL_REDUCE ? 2.0 : 1.0;
    double traffic = op == SMP_OP_ALL_GATHER       ? gather
                     : op == SMP_OP_REDUCE_SCATTER ? scatter
                                                   : gather + scatter;
    cost->transfer_s = traffic / cluster->link_Bps.value;
    cost->latency_s = phases * profile->copy_latency_s.value * ceil(log2(r + 1.0));
    if (placement->nodes > 1) {
        const double n = (double)placement->nodes;
        const double port = cluster->nic_Bps.value * (double)cluster->nics *
                            smp_network_part(placement);
        cost->transfer_s += phases * s * (n - 1.0) / n / port;
        cost->latency_s += phases * (n - 1.0) * cluster->nic_latency_s.value;
    }
}

static double bus_Bps(smp_op op, uint32_t ranks, uint64_t bytes, double seconds)
{
    const double n = (double)ranks;
    const double factor = (op == SMP_OP_ALL_REDUCE ? 2.0 : 1.0) * (n - 1.0) / n;
    return seconds > 0.0 ? (double)bytes / seconds * factor : 0.0;
}

void smp_cost_collective_model(const smp_cluster *cluster, const smp_profile *profile,
                               smp_op op, const smp_placement *placement, uint64_t bytes,
                               smp_cost *cost_p)
{
    smp_cost cost = {0};
    if (placement->ranks > 1) {
        if (cluster->link == SMP_LINK_MEMORY || profile->compute_capability == 0) {
            memory_collective(cluster, profile, op, placement, bytes, &cost);
        } else {
            nccl_collective(cluster, profile, op, placement, bytes, &cost);
        }
        cost.bus_Bps = bus_Bps(op, placement->ranks, bytes, smp_cost_seconds(&cost));
        cost.basis = cost.latency_s > cost.transfer_s ? &latency_figure
                     : placement->nodes > 1           ? &cluster->nic_Bps
                                                      : &cluster->link_Bps;
        /* No measurement of all-gather and reduce-scatter between nodes stands behind the
         * model: twice the spread. */
        cost.unverified = placement->nodes > 1 && op != SMP_OP_ALL_REDUCE;
        cost.spread = profile->collective_spread.value * (cost.unverified ? 2.0 : 1.0);
    } else {
        cost.basis = &latency_figure;
    }
    *cost_p = cost;
}

/* Inside a node by the fit of the operation.  Between nodes by that of all-reduce, over the
 * bytes of a rank's part, to which a ring's latency and transfer are both in proportion: the
 * way from latency to bandwidth is a matter of how messages are cut, the same for a ring that
 * gathers, so all-gather and reduce-scatter take it over, unverified and with twice the
 * spread. */
static void apply_fit(const smp_profile *profile, smp_op op, const smp_placement *placement,
                      uint64_t bytes, smp_cost *cost)
{
    const bool between = placement->nodes > 1;
    const smp_fit_kind kind = between                       ? SMP_FIT_ALL_REDUCE_NODES
                              : op == SMP_OP_ALL_REDUCE     ? SMP_FIT_ALL_REDUCE
                              : op == SMP_OP_REDUCE_SCATTER ? SMP_FIT_REDUCE_SCATTER
                                                            : SMP_FIT_ALL_GATHER;
    const smp_fit *fit = profile->fits[kind];
    if (fit == NULL || bytes == 0) {
        return;
    }
    const double size = (double)bytes;
    const double inside[] = {(double)placement->ranks, size};
    const double share = size / (double)placement->ranks;
    smp_fit_apply(fit, between ? &share : inside, cost);
    cost->spread *= cost->unverified ? 2.0 : 1.0;
    cost->bus_Bps = bus_Bps(op, placement->ranks, bytes, smp_cost_seconds(cost));
}

void smp_cost_collective(const smp_cluster *cluster, const smp_profile *profile, smp_op op,
                         const smp_placement *placement, uint64_t bytes, smp_cost *cost_p)
{
    smp_cost_collective_model(cluster, profile, op, placement, bytes, cost_p);
    if (placement->ranks > 1 && cluster->link == SMP_LINK_NVLINK) {
        apply_fit(profile, op, placement, bytes, cost_p);
    }
}

void smp_cost_all_to_all_model(const smp_cluster *cluster, const smp_profile *profile,
                               uint32_t ranks, uint64_t bytes, smp_cost *cost_p)
{
    smp_cost cost = {0};
    if (ranks > 1) {
        const smp_placement inside = {.ranks = ranks, .nodes = 1, .most_per_node = ranks,
                                      .least_per_node = ranks, .stride = 1};
        const smp_nccl_graph g = smp_nccl_search(cluster, profile, SMP_ALGO_RING, &inside);
        const double others = (double)(ranks - 1) / (double)ranks;
        cost.latency_s = (base_us[SMP_ALGO_RING][SMP_PROTO_LL] + 1.0) * 1e-6;
        cost.transfer_s = (double)bytes * others / (g.channels * g.intra_Bps);
        cost.spread = profile->collective_spread.value;
        cost.basis = &cluster->link_Bps;
        cost.bus_Bps = (double)bytes * others / smp_cost_seconds(&cost);
    }
    *cost_p = cost;
}

void smp_cost_all_to_all(const smp_cluster *cluster, const smp_profile *profile,
                         uint32_t ranks, uint64_t bytes, smp_cost *cost_p)
{
    smp_cost_all_to_all_model(cluster, profile, ranks, bytes, cost_p);
    const smp_fit *fit = profile->fits[SMP_FIT_ALL_TO_ALL];
    if (ranks > 1 && bytes > 0 && fit != NULL) {
        const double at[] = {(double)ranks, (double)bytes};
        smp_fit_apply(fit, at, cost_p);
        cost_p->bus_Bps =
            (double)bytes * (ranks - 1) / ((double)ranks * smp_cost_seconds(cost_p));
    }
}
