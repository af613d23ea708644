/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channels and their bandwidth, as NCCL's search for rings and trees would find them.
 *
 * NCCL v2.30.7, src/graph/search.cc: a list of speeds is tried from the fastest; at each, as
 * many channels are laid as the links hold; lower speeds are tried while they are more than
 * 0.49 of the one found and something of the links is left; then channels may be doubled at
 * half the speed.  NCCL searches paths in the real topology; here the links of a node are
 * symmetric, so that a channel of speed s takes s of every GPU's link and, between nodes, s
 * of one port.  docs/costs.md holds the reconstructions against measured bandwidths.
 *
 * Speeds are in units of 1e9 bytes per second, as in NCCL.
 */
#include "config.h"

#include "cost/nccl.h"

#include <math.h>

enum { MAX_CHANNELS = 32 }; /* half of MAXCHANNELS: the rest is for doubling */

static const double intra_old[] = {40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 0};
static const double intra_90[] = {60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3, 0};
static const double intra_100[] = {90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18, 0};
static const double inter_old[] = {48, 30, 28, 24, 20, 18, 15, 12, 10, 9,
                                   7,  6,  5,  4,  3,  2.4, 1.2, 0.24, 0.12, 0};
static const double inter_90[] = {48, 45, 42, 40, 30, 24,  22,  20,   17.5, 15,
                                  12, 6,  3,  2.4, 1.2, 0.24, 0.12, 0};
static const double inter_100[] = {96, 86, 80, 48,   45.1, 42, 40, 30,  24,  22,   20,
                                   17.5, 15, 12, 6,  3,    2.4, 1.2, 0.24, 0.12, 0};

typedef struct links {
    uint32_t nodes, per_node; /* of the group; members on its fullest node */
    double gpu;     /* planned rate of one GPU inside the node */
    uint32_t ports; /* of a node, as the network plugin shows them to the group */
    double port;
    uint32_t capability;
} links;

smp_nccl_row smp_nccl_row_of(uint32_t capability)
{
    return capability >= 100  ? SMP_NCCL_BLACKWELL
           : capability >= 90 ? SMP_NCCL_HOPPER
           : capability >= 80 ? SMP_NCCL_AMPERE
                              : SMP_NCCL_VOLTA;
}

uint32_t smp_nccl_per_node(const smp_placement *placement)
{
    const uint32_t per_node = placement->ranks / placement->nodes;
    return per_node < 1 ? 1 : per_node;
}

/* Rate that NCCL plans for the link of a GPU (src/graph/topo.h): 20, 20, 20.6 and 40.1 GB/s
 * for each NVLink of 25, 25, 25 and 50; 12 for a PCIe Gen3 x16 of 15.75, others by width and
 * speed. */
static double planned_link(const smp_cluster *cluster, const smp_placement *placement,
                           uint32_t capability)
{
    static const double nvlink[] = {20.0 / 25.0, 20.0 / 25.0, 20.6 / 25.0, 40.1 / 50.0};
    const double rate = cluster->link_Bps.value * 1e-9;
    if (cluster->link == SMP_LINK_PCIE) {
        return rate * 12.0 / 15.75;
    }
    const double planned = rate * nvlink[smp_nccl_row_of(capability)];
    if (cluster->link != SMP_LINK_MESH) {
        return planned;
    }
    /* The cube mesh of eight V100: six links each, four of them inside a quad, one or two to
     * a neighbour (NVIDIA DGX-1 white paper). */
    const uint32_t members = placement->most_per_node;
    return members <= 2 ? planned / 6.0 : members <= 4 ? planned * 4.0 / 6.0 : planned;
}

/* Ports: several to a GPU are one device to NCCL (the EFA plugin stripes over the ports beside
 * a GPU); where GPUs share a port, the group has those beside its members. */
static void plan_ports(const smp_cluster *cluster, const smp_placement *placement, links *l)
{
    const uint32_t gpus = cluster->gpus_per_node;
    uint32_t ports = cluster->nics;
    double port = cluster->nic_Bps.value * 1e-9;
    if (ports > gpus) {
        port *= (double)ports / (double)gpus;
        ports = gpus;
    }
    const double host_link = cluster->pcie_Bps.value * 1e-9 * 12.0 / 15.75;
    l->port = port < host_link ? port : host_link;
    const uint64_t members = placement->least_per_node < 1 ? 1 : placement->least_per_node;
    const uint64_t near = (members * ports + gpus - 1) / gpus;
    l->ports = near < 1 ? 1 : near < ports ? (uint32_t)near : ports;
}

double smp_network_part(const smp_placement *placement)
{
    return placement->sharers > placement->least_per_node
               ? (double)placement->least_per_node / (double)placement->sharers : 1.0;
}

double smp_nccl_network_share(const smp_cluster *cluster, const smp_placement *placement)
{
    if (placement->nodes < 2) {
        return 1.0;
    }
    links l = {0};
    plan_ports(cluster, placement, &l);
    const uint32_t gpus = cluster->gpus_per_node;
    const double all = cluster->nics > gpus ? (double)gpus : (double)cluster->nics;
    const double asked = (double)l.ports / smp_network_part(placement);
    return asked <= all ? 1.0 : all / asked;
}

static const double *speeds_of(const links *l)
{
    const smp_nccl_row row = smp_nccl_row_of(l->capability);
    if (l->nodes > 1) {
        return row == SMP_NCCL_BLACKWELL ? inter_100 : row == SMP_NCCL_HOPPER ? inter_90
                                                                              : inter_old;
    }
    return row == SMP_NCCL_BLACKWELL ? intra_100 : row == SMP_NCCL_HOPPER ? intra_90
                                                                          : intra_old;
}

/* Channels of speed s that the links of a node hold: a ring of one node takes every GPU's
 * link once; a chain through the members of a node leaves out one of them. */
static uint32_t channels_inside(const links *l, double s)
{
    double room = l->gpu;
    if (l->nodes > 1) {
        if (l->per_node == 1) {
            return MAX_CHANNELS;
        }
        room *= (double)l->per_node / (double)(l->per_node - 1);
    }
    const double n = floor(room / s + 1e-9);
    return n > MAX_CHANNELS ? MAX_CHANNELS : (uint32_t)n;
}

static uint32_t channels_at(const links *l, double s)
{
    const uint32_t inside = channels_inside(l, s);
    if (l->nodes < 2) {
        return inside;
    }
    const double n = (double)l->ports * floor(l->port / s + 1e-9);
    const uint32_t between = n > MAX_CHANNELS ? MAX_CHANNELS : (uint32_t)n;
    return inside < between ? inside : between;
}

static smp_nccl_graph search_rings(const links *l)
{
    const double *speeds = speeds_of(l);
    const double all = l->nodes < 2 ? l->gpu : l->port * (double)l->ports;
    uint32_t best_n = 0;
    double best = 0.0;
    for (size_t i = 0; speeds[i] > 0.0; i++) {
        if (best_n > 0 && (speeds[i] / best <= 0.49 || best * best_n >= all)) {
            break;
        }
        const uint32_t n = channels_at(l, speeds[i]);
        if (n > 0 && n * speeds[i] > best_n * best) {
            best_n = n;
            best = speeds[i];
        }
    }
    return (smp_nccl_graph){best_n, best, best};
}

/* Trees keep the ports' rate and raise the rate inside nodes up to twice that. */
static void raise_inside(const links *l, smp_nccl_graph *g)
{
    const double *speeds = speeds_of(l);
    size_t i = 0;
    while (speeds[i] > g->intra_Bps) {
        i++;
    }
    while (i > 0 && g->intra_Bps < 2.0 * g->inter_Bps &&
           channels_inside(l, speeds[i - 1]) >= g->channels) {
        g->intra_Bps = speeds[--i];
    }
}

static void double_channels(uint32_t capability, smp_nccl_graph *g)
{
    if (g->intra_Bps >= 25.0 &&
        (capability <= 80 || g->intra_Bps >= 50.0 || g->channels <= 4)) {
        const uint32_t n = 2 * g->channels < MAX_CHANNELS ? 2 * g->channels : MAX_CHANNELS;
        const double factor = (double)g->channels / (double)n;
        g->intra_Bps *= factor;
        g->inter_Bps *= factor;
        g->channels = n;
    }
}

/* One channel per GPU as its head, which carries 2 s on the head's link and s on the others,
 * (g + 1) s in all; then the rate between nodes is raised to at most twice that inside. */
static smp_nccl_graph search_nvls(const links *l)
{
    const double *speeds = speeds_of(l);
    const double room = l->gpu / (double)(l->per_node + 1);
    for (size_t i = 0; speeds[i] > 0.0; i++) {
        if (speeds[i] > room || (l->nodes > 1 && speeds[i] > l->port)) {
            continue;
        }
        const uint32_t heads = l->nodes > 1 && l->ports < l->per_node ? l->ports : l->per_node;
        smp_nccl_graph g = {heads, speeds[i], speeds[i]};
        while (i > 0 && g.inter_Bps < 2.0 * g.intra_Bps &&
               (l->nodes < 2 || speeds[i - 1] <= l->port)) {
            g.inter_Bps = speeds[--i];
        }
        return g;
    }
    return (smp_nccl_graph){0, 0.0, 0.0};
}

smp_nccl_graph smp_nccl_search(const smp_cluster *cluster, const smp_profile *profile,
                               smp_algorithm algorithm, const smp_placement *placement)
{
    links l = {.nodes = placement->nodes,
               .per_node = placement->most_per_node,
               .capability = profile->compute_capability};
    l.gpu = planned_link(cluster, placement, l.capability);
    if (l.nodes > 1) {
        plan_ports(cluster, placement, &l);
    }
    smp_nccl_graph g;
    if (algorithm == SMP_ALGO_NVLS || algorithm == SMP_ALGO_NVLS_TREE) {
        g = search_nvls(&l);
    } else {
        g = search_rings(&l);
        if (algorithm == SMP_ALGO_TREE && l.nodes > 1 && l.per_node > 1) {
            raise_inside(&l, &g);
        }
        double_channels(l.capability, &g);
    }
    g.intra_Bps *= 1e9;
    g.inter_Bps *= 1e9;
    return g;
}
