/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's model: latencies worked out from its tables, the reconstructed searches, closed forms
 * of bandwidth, the placement of groups, monotonicity.
 */
#include "config.h"

#include "read.h"

#include "base/numeric.h"
#include "cost/nccl.h"

#include <math.h>

static const uint64_t GiB = 1u << 30;

/* As many members on each node; `groups` use the network of one at once. */
static smp_placement placed(uint32_t ranks, uint32_t nodes, uint32_t groups)
{
    const uint32_t per_node = ranks / nodes;
    return (smp_placement){.ranks = ranks, .nodes = nodes, .most_per_node = per_node,
                           .least_per_node = per_node, .stride = 1,
                           .sharers = groups * per_node};
}

static void near(double got, double want, double relative)
{
    if (!(fabs(got - want) <= relative * fabs(want))) {
        fail_msg("%.9g is not %.9g within %g", got, want, relative);
    }
}

/* Microseconds, LL, LL128, Simple, computed by hand from the tables of NCCL v2.30.7
 * src/graph/tuning.cc.  16 ranks on 2 nodes, ring, all-reduce, LL: base 6.6; 30 steps, 2 of
 * them between nodes at 2.7; 28 inside at max(0.6, 1 of the proxy): 6.6 + 28 + 5.4 = 40. */
typedef struct vector {
    uint32_t ranks, nodes;
    double ring[3], ring_amd[3], gather[3], tree[3];
} vector;
static const vector vectors[] = {
    {8, 1, {15.0, 40.6, 56.0}, {15.0, 40.6, 56.0}, {10.8, 27.3, 32.2}, {15.2, 31.5, 64.4}},
    {16, 2, {40.0, 75.2, 131.6}, {68.0, 78.0, 204.4}, {23.3, 44.6, 70.0}, {25.2, 48.5, 92.4}},
    {32, 4, {78.8, 144.4, 282.8}, {134.8, 150.0, 428.4}, {42.7, 79.2, 145.6},
     {35.2, 65.5, 120.4}},
    {64, 8, {156.4, 282.8, 585.2}, {268.4, 294.0, 876.4}, {81.5, 148.4, 296.8},
     {45.2, 82.5, 148.4}},
    {256, 32, {622.0, 1113.2, 2399.6}, {1070.0, 1158.0, 3564.4}, {314.3, 563.6, 1204.0},
     {65.2, 116.5, 204.4}}};

static void latencies_are_nccls(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        const vector *v = &vectors[i];
        for (int p = 0; p < SMP_PROTOS; p++) {
            const smp_protocol proto = (smp_protocol)p;
            near(smp_nccl_latency_s(SMP_OP_ALL_REDUCE, SMP_ALGO_RING, proto, v->ranks, v->nodes,
                                    80, false), v->ring[p] * 1e-6, 1e-9);
            near(smp_nccl_latency_s(SMP_OP_ALL_REDUCE, SMP_ALGO_RING, proto, v->ranks, v->nodes,
                                    80, true), v->ring_amd[p] * 1e-6, 1e-9);
            near(smp_nccl_latency_s(SMP_OP_ALL_GATHER, SMP_ALGO_RING, proto, v->ranks, v->nodes,
                                    80, false), v->gather[p] * 1e-6, 1e-9);
            near(smp_nccl_latency_s(SMP_OP_REDUCE_SCATTER, SMP_ALGO_RING, proto, v->ranks,
                                    v->nodes, 80, false), v->gather[p] * 1e-6, 1e-9);
            near(smp_nccl_latency_s(SMP_OP_ALL_REDUCE, SMP_ALGO_TREE, proto, v->ranks, v->nodes,
                                    80, false), v->tree[p] * 1e-6, 1e-9);
        }
    }
    /* NVLS 25; NVLSTree on 4 nodes 25 + 2 x 2 x 20.9; PAT on 8 nodes of one rank:
     * 8 + 3 x 14 / 3.5 + 2.8 x 8 */
    near(smp_nccl_latency_s(SMP_OP_ALL_REDUCE, SMP_ALGO_NVLS, SMP_PROTO_SIMPLE, 8, 1, 90,
                            false), 25e-6, 1e-9);
    near(smp_nccl_latency_s(SMP_OP_ALL_REDUCE, SMP_ALGO_NVLS_TREE, SMP_PROTO_SIMPLE, 32, 4, 90,
                            false), 108.6e-6, 1e-9);
    near(smp_nccl_latency_s(SMP_OP_ALL_GATHER, SMP_ALGO_PAT, SMP_PROTO_SIMPLE, 8, 8, 90, false),
         42.4e-6, 1e-9);
}

static void what_nccl_does_not_have(void **state)
{
    (void)state;
    assert_true(smp_nccl_latency_s(SMP_OP_ALL_GATHER, SMP_ALGO_TREE, SMP_PROTO_LL, 8, 1, 90,
                                   false) < 0.0);
    assert_true(smp_nccl_latency_s(SMP_OP_ALL_REDUCE, SMP_ALGO_NVLS, SMP_PROTO_LL, 8, 1, 90,
                                   false) < 0.0);
    assert_true(smp_nccl_latency_s(SMP_OP_ALL_REDUCE, SMP_ALGO_NVLS, SMP_PROTO_SIMPLE, 16, 2,
                                   90, false) < 0.0);
    assert_true(smp_nccl_latency_s(SMP_OP_ALL_REDUCE, SMP_ALGO_NVLS_TREE, SMP_PROTO_SIMPLE, 8,
                                   1, 90, false) < 0.0);
    assert_true(smp_nccl_latency_s(SMP_OP_ALL_GATHER, SMP_ALGO_PAT, SMP_PROTO_SIMPLE, 16, 2, 90,
                                   false) < 0.0);
    assert_true(smp_nccl_latency_s(SMP_OP_ALL_REDUCE, SMP_ALGO_PAT, SMP_PROTO_SIMPLE, 8, 8, 90,
                                   false) < 0.0);
}

typedef struct machine { smp_cluster *cluster; smp_profile *profile; } machine;

static machine machine_open(const char *name)
{
    machine m;
    m.cluster = read_cluster(name);
    m.profile = read_profile(m.cluster);
    forget_fits(m.profile);
    return m;
}

static void machine_close(machine *m)
{
    smp_profile_destroy(m->profile);
    smp_cluster_destroy(m->cluster);
}

static void graph_is(const machine *m, smp_algorithm algorithm, smp_placement p,
                     uint32_t channels, double intra, double inter)
{
    const smp_nccl_graph g = smp_nccl_search(m->cluster, m->profile, algorithm, &p);
    assert_int_equal(g.channels, channels);
    near(g.intra_Bps, intra * 1e9, 1e-9);
    near(g.inter_Bps, inter * 1e9, 1e-9);
}

/* A100: 12 NVLinks of 20: 6 channels of 40, doubled.  H100: 18 of 20.6: 6 of 60, doubled.  NVLS
 * of H100: 9 s <= 370.8: 40, and 60 between (the first of the list below 80). */
static void searches_are_reconstructed(void **state)
{
    (void)state;
    machine m = machine_open("dgx-a100");
    graph_is(&m, SMP_ALGO_RING, placed(8, 1, 0), 12, 20, 20);
    graph_is(&m, SMP_ALGO_RING, placed(16, 2, 1), 8, 24, 24); /* 8 ports of 25 */
    machine_close(&m);
    m = machine_open("dgx-h100");
    graph_is(&m, SMP_ALGO_RING, placed(8, 1, 0), 12, 30, 30);
    graph_is(&m, SMP_ALGO_NVLS, placed(8, 1, 0), 8, 40, 60);
    graph_is(&m, SMP_ALGO_RING, placed(16, 2, 1), 8, 48, 48);
    graph_is(&m, SMP_ALGO_NVLS_TREE, placed(32, 4, 1), 8, 40, 48);
    graph_is(&m, SMP_ALGO_RING, placed(4, 4, 8), 2, 24, 24); /* one port of 50 each, doubled */
    machine_close(&m);
    m = machine_open("p5.48xlarge"); /* four ports to a GPU are one device */
    graph_is(&m, SMP_ALGO_RING, placed(16, 2, 1), 8, 48, 48);
    machine_close(&m);
    m = machine_open("p4d.24xlarge"); /* 4 ports of 12.5; trees go up to 24 inside */
    graph_is(&m, SMP_ALGO_RING, placed(16, 2, 1), 4, 12, 12);
    graph_is(&m, SMP_ALGO_TREE, placed(16, 2, 1), 4, 24, 12);
    machine_close(&m);
    m = machine_open("dgx-b200"); /* 9 s <= 721.8: 80, raised to 90 */
    graph_is(&m, SMP_ALGO_NVLS, placed(8, 1, 0), 8, 80, 90);
    machine_close(&m);
    m = machine_open("l40s-pcie"); /* 16 between the sockets */
    graph_is(&m, SMP_ALGO_RING, placed(8, 1, 0), 1, 15, 15);
    machine_close(&m);
}

static double bus(const machine *m, smp_op op, smp_placement p, uint64_t bytes)
{
    smp_cost cost;
    smp_cost_collective(m->cluster, m->profile, op, &p, bytes, &cost);
    return cost.bus_Bps * 1e-9;
}

/* Bus bandwidths at 16 GiB beside measurements: A100 ring 240 (235), H100 NVLS 476 (480), ring
 * 360 for all-gather (361), B200 NVLS 720 (846); two nodes of p4de 78 by a tree (78.3), p5
 * 462 (487); four of p6-b200 382 (382). */
static void bandwidths(void **state)
{
    (void)state;
    machine m = machine_open("dgx-a100");
    near(bus(&m, SMP_OP_ALL_REDUCE, placed(8, 1, 0), 16 * GiB), 240.0, 0.01);
    machine_close(&m);
    m = machine_open("dgx-h100");
    near(bus(&m, SMP_OP_ALL_REDUCE, placed(8, 1, 0), 16 * GiB), 476.0, 0.01);
    near(bus(&m, SMP_OP_ALL_GATHER, placed(8, 1, 0), 16 * GiB), 360.0, 0.01);
    near(bus(&m, SMP_OP_REDUCE_SCATTER, placed(8, 1, 0), 16 * GiB), 360.0, 0.01);
    near(bus(&m, SMP_OP_ALL_GATHER, placed(64, 8, 1), 16 * GiB), 384.0, 0.02);
    machine_close(&m);
    m = machine_open("dgx-b200");
    near(bus(&m, SMP_OP_ALL_REDUCE, placed(8, 1, 0), 16 * GiB), 720.0, 0.01);
    machine_close(&m);
    m = machine_open("p4de.24xlarge");
    near(bus(&m, SMP_OP_ALL_REDUCE, placed(16, 2, 1), 2 * GiB), 78.3, 0.1);
    machine_close(&m);
    m = machine_open("p5.48xlarge");
    near(bus(&m, SMP_OP_ALL_REDUCE, placed(16, 2, 1), 16 * GiB), 461.6, 0.01);
    machine_close(&m);
    m = machine_open("p6-b200.48xlarge");
    near(bus(&m, SMP_OP_ALL_REDUCE, placed(32, 4, 1), 16 * GiB), 381.8, 0.02);
    machine_close(&m);
}

/* A ring all-gather of S bytes, uncontended: latency + (n - 1) / n S / (channels x speed). */
static void closed_form(void **state)
{
    (void)state;
    machine m = machine_open("dgx-h100");
    const smp_placement p = placed(64, 8, 1);
    const double want = 296.8e-6 + 63.0 / 64.0 * (double)GiB / 384e9;
    near(smp_nccl_seconds(m.cluster, m.profile, SMP_OP_ALL_GATHER, SMP_ALGO_RING,
                          SMP_PROTO_SIMPLE, &p, GiB), want, 1e-12);
    smp_cost cost;
    smp_cost_collective(m.cluster, m.profile, SMP_OP_ALL_GATHER, &p, GiB, &cost);
    near(smp_cost_seconds(&cost), want, 1e-12);
    assert_int_equal(cost.algorithm, SMP_ALGO_RING);
    assert_int_equal(cost.protocol, SMP_PROTO_SIMPLE);
    assert_ptr_equal(cost.basis, &m.cluster->nic_Bps);
    assert_true(cost.spread == 2.0 * m.profile->collective_spread.value);
    machine_close(&m);
}

static void groups_share_ports(void **state)
{
    (void)state;
    machine m = machine_open("dgx-h100"); /* a port to a GPU: eight strided groups fit */
    near(bus(&m, SMP_OP_ALL_GATHER, placed(8, 8, 8), 16 * GiB),
         bus(&m, SMP_OP_ALL_GATHER, placed(8, 8, 1), 16 * GiB), 1e-12);
    machine_close(&m);
    m = machine_open("p4d.24xlarge"); /* two GPUs to a port: half each */
    const double alone = bus(&m, SMP_OP_ALL_GATHER, placed(8, 8, 1), 16 * GiB);
    near(alone, 12.0, 0.01);
    near(bus(&m, SMP_OP_ALL_GATHER, placed(8, 8, 8), 16 * GiB), alone / 2.0, 0.01);
    machine_close(&m);
}

/* A group of 6 on two nodes of 8 GPUs and 4 ports: 4 members on a full node, where it has two
 * of the ports, and 2 on the other, where all 8 ranks belong to such groups and it has 2/8 of
 * four ports: the one beside its 2 members, alone. */
static void unequal_members(void **state)
{
    (void)state;
    machine m = machine_open("p4d.24xlarge");
    smp_placement p = {.ranks = 6, .nodes = 2, .most_per_node = 4, .least_per_node = 2,
                       .stride = 1, .sharers = 2};
    near(smp_nccl_network_share(m.cluster, &p), 1.0, 1e-12);
    p.sharers = 8;
    near(smp_nccl_network_share(m.cluster, &p), 1.0, 1e-12);
    /* every second rank: the port has a rank of another group beside it as well */
    p.least_per_node = 1;
    p.sharers = 8;
    near(smp_nccl_network_share(m.cluster, &p), 0.5, 1e-12);
    machine_close(&m);
    /* 8 + 4 of 12: each of the four sends 8/12 of its bytes through a port of 48; the rank on
     * the other node sends 4/12. */
    m = machine_open("dgx-h100");
    const smp_placement wide = {.ranks = 12, .nodes = 2, .most_per_node = 8,
                                .least_per_node = 4, .stride = 1, .sharers = 8};
    smp_cost cost;
    smp_cost_exchange(m.cluster, m.profile, &wide, GiB, &cost);
    near(cost.transfer_s, (double)GiB * 8.0 / 12.0 / 48e9, 1e-9);
    /* a reduction may use NVLS beyond a node only where every node has two members */
    smp_placement lonely = {.ranks = 9, .nodes = 2, .most_per_node = 8, .least_per_node = 1,
                            .stride = 1, .sharers = 1};
    assert_false(smp_nccl_enabled(m.cluster, m.profile, SMP_OP_ALL_REDUCE, SMP_ALGO_NVLS_TREE,
                                  SMP_PROTO_SIMPLE, &lonely));
    lonely.least_per_node = 2;
    assert_true(smp_nccl_enabled(m.cluster, m.profile, SMP_OP_ALL_REDUCE, SMP_ALGO_NVLS_TREE,
                                 SMP_PROTO_SIMPLE, &lonely));
    machine_close(&m);
}

/* The groups of one kind that have members on a node, each named by its first rank, take no
 * more of its ports together than there are; `ports_of` as docs/costs.md says. */
static void check_node(const smp_mesh *mesh, const smp_cluster *cluster, smp_group group,
                       uint32_t node)
{
    const uint32_t gpus = cluster->gpus_per_node;
    uint32_t members[48];
    double taken = 0.0;
    for (uint32_t rank = 0; rank < smp_mesh_world(mesh); rank++) {
        bool here = false;
        smp_placement p;
        smp_mesh_members(mesh, group, rank, members);
        smp_mesh_placement(mesh, group, rank, &p);
        for (uint32_t i = 0; i < p.ranks; i++) {
            here = here || members[i] / gpus == node;
        }
        if (members[0] == rank && here && p.nodes > 1) {
            const uint32_t ports = (p.least_per_node * cluster->nics + gpus - 1) / gpus;
            taken += ports * smp_nccl_network_share(cluster, &p);
        }
    }
    assert_true(taken <= cluster->nics + 1e-9);
}

/* Over all groups of worlds that do not fit their nodes, with a port for each GPU, for two and
 * for four; with one for each nobody waits for another. */
static void no_port_is_sold_twice(void **state)
{
    static const smp_axis order[SMP_AXES] = {SMP_AXIS_TENSOR, SMP_AXIS_CONTEXT, SMP_AXIS_SHARD,
                                             SMP_AXIS_EXPERT, SMP_AXIS_REPLICA};
    static const uint32_t degrees[][3] = {{1, 12, 2}, {1, 6, 4}, {2, 6, 2}, {2, 7, 3},
                                          {3, 4, 4},  {1, 5, 9}, {4, 3, 4}, {1, 20, 2}};
    (void)state;
    machine m = machine_open("dgx-h100");
    for (size_t i = 0; i < 3 * sizeof degrees / sizeof degrees[0]; i++) {
        const uint32_t *d = degrees[i / 3];
        const uint32_t degree[SMP_AXES] = {
            [SMP_AXIS_TENSOR] = d[0], [SMP_AXIS_CONTEXT] = 1, [SMP_AXIS_SHARD] = d[1],
            [SMP_AXIS_EXPERT] = 1, [SMP_AXIS_REPLICA] = d[2]};
        smp_errors *errors = smp_errors_create();
        smp_mesh *mesh = NULL;
        m.cluster->nics = 8U >> i % 3;
        assert_int_equal(smp_mesh_create_degrees(degree, order, 8, errors, &mesh), SMP_OK);
        for (uint32_t rank = 0; rank < smp_mesh_world(mesh); rank++) {
            smp_placement p;
            check_node(mesh, m.cluster, SMP_GROUP_SHARD, rank / 8);
            check_node(mesh, m.cluster, SMP_GROUP_REPLICA, rank / 8);
            smp_mesh_placement(mesh, SMP_GROUP_SHARD, rank, &p);
            if (m.cluster->nics == 8) {
                near(smp_nccl_network_share(m.cluster, &p), 1.0, 0.0);
            }
        }
        smp_mesh_destroy(mesh);
        smp_errors_destroy(errors);
    }
    machine_close(&m);
}

static void small_cases(void **state)
{
    (void)state;
    machine m = machine_open("dgx-h100");
    const smp_placement one = placed(1, 1, 0);
    const smp_placement eight = placed(8, 1, 0);
    const smp_placement uneven = {.ranks = 20, .nodes = 3, .most_per_node = 8,
                                  .least_per_node = 4, .stride = 1, .sharers = 4};
    smp_cost cost;
    smp_cost_collective(m.cluster, m.profile, SMP_OP_ALL_REDUCE, &one, GiB, &cost);
    assert_true(smp_cost_seconds(&cost) == 0.0);
    assert_non_null(cost.basis);
    smp_cost_collective(m.cluster, m.profile, SMP_OP_ALL_REDUCE, &eight, 4, &cost);
    near(smp_cost_seconds(&cost), 15.0e-6, 0.01); /* ring LL */
    assert_int_equal(cost.protocol, SMP_PROTO_LL);
    /* the node with four members has four of the eight ports: half the rate of 24 on 3 nodes */
    near(bus(&m, SMP_OP_ALL_GATHER, uneven, 16 * GiB), 4 * 48.0, 0.02);
    near(bus(&m, SMP_OP_ALL_GATHER, placed(24, 3, 1), 16 * GiB), 8 * 48.0, 0.02);
    machine_close(&m);
}

/* With fits: inside nodes also for numbers of ranks between those measured. */
static void grows_on(const machine *m, uint32_t ranks, uint32_t nodes)
{
    static const smp_op ops[] = {SMP_OP_ALL_GATHER, SMP_OP_REDUCE_SCATTER, SMP_OP_ALL_REDUCE};
    const smp_placement p = placed(ranks, nodes, 8 * nodes / ranks);
    for (size_t o = 0; o < 3; o++) {
        double before = 0.0;
        for (double bytes = 1.0; bytes < 64e9; bytes *= 1.037) {
            smp_cost cost;
            smp_cost_collective(m->cluster, m->profile, ops[o], &p, (uint64_t)bytes, &cost);
            const double s = smp_cost_seconds(&cost);
            if (!(s > 0.0 && s >= before)) {
                fail_msg("%s of %.0f bytes, %u ranks on %u nodes: %g s after %g s",
                         smp_op_info_of(ops[o])->name, bytes, ranks, nodes, s, before);
            }
            before = s;
        }
    }
}

static void time_grows_with_bytes(void **state)
{
    static const char *const names[] = {"p3dn.24xlarge", "p4d.24xlarge", "p5.48xlarge",
                                        "dgx-a100", "dgx-h200", "dgx-b200", "l40s-pcie"};
    (void)state;
    for (size_t i = 0; i < 2 * sizeof names / sizeof names[0]; i++) {
        machine m = machine_open(names[i / 2]);
        if (i % 2 == 1) {
            smp_profile_destroy(m.profile);
            m.profile = read_profile(m.cluster);
        }
        for (uint32_t nodes = 1; nodes <= 32; nodes *= 2) {
            grows_on(&m, 8 * nodes, nodes);
            if (nodes > 1) {
                grows_on(&m, nodes, nodes);
            }
        }
        for (uint32_t ranks = 2; ranks < 8; ranks++) {
            grows_on(&m, ranks, 1);
        }
        machine_close(&m);
    }
}

/* Threads in one memory: an all-gather of S among r copies 2 S (r - 1) bytes. */
static void host_memory(void **state)
{
    (void)state;
    machine m = machine_open("cpu");
    const smp_placement p = placed(4, 1, 0);
    smp_cost cost;
    smp_cost_collective(m.cluster, m.profile, SMP_OP_ALL_GATHER, &p, GiB, &cost);
    near(cost.transfer_s, 6.0 * (double)GiB / m.cluster->link_Bps.value, 1e-12);
    smp_cost_collective(m.cluster, m.profile, SMP_OP_ALL_REDUCE, &p, GiB, &cost);
    near(cost.transfer_s, 11.0 * (double)GiB / m.cluster->link_Bps.value, 1e-12);
    assert_int_equal(cost.channels, 0);
    machine_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(latencies_are_nccls),   cmocka_unit_test(what_nccl_does_not_have),
        cmocka_unit_test(searches_are_reconstructed), cmocka_unit_test(bandwidths),
        cmocka_unit_test(closed_form),           cmocka_unit_test(groups_share_ports),
        cmocka_unit_test(unequal_members),       cmocka_unit_test(no_port_is_sold_twice),
        cmocka_unit_test(small_cases),           cmocka_unit_test(time_grows_with_bytes),
        cmocka_unit_test(host_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
