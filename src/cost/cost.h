/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a task costs: cluster description, profile, and the models that join them.
 *
 * A cluster says what hardware there is and how it is linked; a profile says what one GPU
 * type does with a kernel or a collective: figures, each with its source, and, from later
 * calibration, measured samples and fits.  A cost is kept as its factors, so that it can be
 * explained; seconds become picoseconds once, in the simulator.
 */
#ifndef SMP_COST_COST_H
#define SMP_COST_COST_H

#include "base/json.h"
#include "smp.h"
#include "step/program.h"

/* A number and where it comes from. */
typedef struct smp_figure { double value; const char *source; } smp_figure;

typedef enum smp_link_kind {
    SMP_LINK_PCIE,   /* through PCIe switches, the sockets and their link */
    SMP_LINK_NVLINK, /* every GPU reaches every other at full rate (NVSwitch) */
    SMP_LINK_MESH,   /* NVLink without a switch: the hybrid cube mesh of eight V100 */
    SMP_LINK_MEMORY  /* no device: ranks are threads that share the host's memory */
} smp_link_kind;

struct smp_cluster {
    smp_arena *arena;
    const char *name;
    char *text;              /* the JSON, for plan files; "auto" is written out as found */
    const char *title;       /* for people */
    const char *gpu;         /* profile name */
    uint32_t nodes_in_file, nodes, gpus_per_node, gpus; /* gpus: in use */
    uint32_t cores; /* MEMORY: ranks of a node that run at once; more of them take turns */
    double memory_in_file_bytes;
    smp_figure memory_bytes; /* per GPU, what the driver reports */
    smp_link_kind link;      /* between the GPUs of a node */
    smp_figure link_Bps;     /* one GPU, one direction; MEMORY: the host's,
                                all ranks together */
    smp_figure nic_Bps;      /* one port, one direction */
    uint32_t nics;           /* ports per node; 0: no network */
    smp_figure nic_latency_s;
    bool nic_near;           /* ports and GPUs share PCIe switches */
    bool nvls;               /* switch does reductions */
    bool amd_host;           /* the hosts' processors, to NCCL's tuner */
    uint32_t gpus_per_host_link; /* GPUs that share one link to the host */
    smp_figure pcie_Bps;     /* host to device, one direction */
    smp_figure host_memory_bytes; /* per node */
    smp_figure price_per_gpu_hour; /* 0: unknown */
    const char *currency;
};

/* What a fit of measurements is about (src/cost/fit.h). */
typedef enum smp_fit_kind {
    SMP_FIT_MATMUL, SMP_FIT_ATTENTION, SMP_FIT_ALL_GATHER, SMP_FIT_REDUCE_SCATTER,
    SMP_FIT_ALL_REDUCE, SMP_FIT_ALL_TO_ALL, SMP_FIT_ALL_REDUCE_NODES, SMP_FIT_EXPERTS,
    SMP_FIT_DISPATCH, SMP_FIT_COMBINE, SMP_FIT_KINDS
} smp_fit_kind;
typedef struct smp_fit smp_fit;

struct smp_profile {
    smp_arena *arena;
    const char *name;
    char *text;              /* the JSON, for plan files */
    const char *gpu_title;   /* "NVIDIA H100 SXM5 80 GB" */
    uint32_t compute_capability; /* 70, 80, 89, 90, 100; 0: not an NVIDIA GPU */
    uint32_t multiprocessors;    /* that share a kernel's tiles */
    smp_figure peak_flops[SMP_DTYPES]; /* dense; 0: not supported */
    smp_figure memory_Bps;
    smp_figure sustained_flops;  /* of 16-bit products under lasting load; 0: not known */
    /* shares of the peak that a kernel reaches when its sizes are large */
    smp_figure matmul_efficiency, attention_efficiency, attention_grad_efficiency;
    smp_figure memory_efficiency;
    smp_figure attention_half_seq; /* sequence at which attention reaches half of that */
    smp_figure copy_efficiency; /* of pcie_Bps */
    smp_figure copy_latency_s;
    smp_figure launch_s;     /* start and drain of a kernel in a captured graph */
    smp_figure host_launch_s; /* per kernel launched by the host: other stacks */
    smp_figure context_bytes;
    smp_figure spread;       /* relative standard deviation of a kernel's time */
    smp_figure collective_spread;
    /* time beside one of the other kind over time alone; value 0: the file has none */
    smp_figure matrix_beside_collective, memory_beside_collective;
    smp_figure collective_beside_matrix, collective_beside_memory;
    uint32_t n_sample, n_fit; /* measured samples and fits in the file (docs/costs.md) */
    const smp_fit *fits[SMP_FIT_KINDS]; /* NULL: the formula alone */
};

typedef enum smp_algorithm {
    SMP_ALGO_RING, SMP_ALGO_TREE, SMP_ALGO_NVLS, SMP_ALGO_NVLS_TREE, SMP_ALGO_PAT, SMP_ALGOS
} smp_algorithm;
typedef enum smp_protocol {
    SMP_PROTO_LL, SMP_PROTO_LL128, SMP_PROTO_SIMPLE, SMP_PROTOS
} smp_protocol;
const char *smp_algorithm_name(smp_algorithm algorithm);
const char *smp_protocol_name(smp_protocol protocol);

/* A cost by its factors; total = launch + max(compute, memory) + latency + transfer. */
typedef struct smp_cost {
    double launch_s, compute_s, memory_s, latency_s, transfer_s;
    double spread;            /* relative standard deviation */
    smp_algorithm algorithm;  /* collectives on NCCL */
    smp_protocol protocol;
    uint32_t channels;        /* 0: no collective, or not NCCL's */
    double bus_Bps;           /* nccl-tests' bus bandwidth at this size */
    const smp_figure *basis;  /* what the largest factor rests on; a fit: its spread, rows */
    const smp_fit *fit;       /* of measurements, NULL: the formula alone */
    bool extrapolated;        /* outside the sizes that the fit rests on */
    bool unverified;          /* derived: nothing like it was measured */
} smp_cost;
double smp_cost_seconds(const smp_cost *cost);

/* One collective by NCCL's tuning model (spec 4): the best of the enabled (algorithm,
 * protocol) pairs for `bytes` as nccl-tests counts them. */
void smp_cost_collective(const smp_cluster *cluster, const smp_profile *profile, smp_op op,
                         const smp_placement *placement, uint64_t bytes, smp_cost *cost_p);
/* An all-to-all in which the busiest rank sends or receives `bytes`, its own part included. */
void smp_cost_exchange(const smp_cluster *cluster, const smp_profile *profile,
                       const smp_placement *placement, uint64_t bytes, smp_cost *cost_p);
/* The same of a task, which may say that fused kernels send its rows (SMP_OP_ALL_TO_ALL). */
void smp_cost_exchange_task(const smp_cluster *cluster, const smp_profile *profile,
                            const smp_placement *placement, const smp_task *task,
                            smp_cost *cost_p);
/* The same without what was measured: NCCL's model alone. */
void smp_cost_collective_model(const smp_cluster *cluster, const smp_profile *profile,
                               smp_op op, const smp_placement *placement, uint64_t bytes,
                               smp_cost *cost_p);
/* Latency part only of one pair, in seconds, for the test vectors of NCCL's model; -1: not
 * enabled. */
double smp_nccl_latency_s(smp_op op, smp_algorithm algorithm, smp_protocol protocol,
                          uint32_t ranks, uint32_t nodes, uint32_t compute_capability,
                          bool amd_host);
/* What NCCL's search for a graph finds for one algorithm: channels, and bytes per second of a
 * channel inside a node and between nodes.  channels 0: not enabled. */
typedef struct smp_nccl_graph {
    uint32_t channels;
    double intra_Bps, inter_Bps;
} smp_nccl_graph;
smp_nccl_graph smp_nccl_search(const smp_cluster *cluster, const smp_profile *profile,
                               smp_algorithm algorithm, const smp_placement *placement);
/* Seconds of one pair at `bytes`, -1 when not enabled: for tests and tables. */
double smp_nccl_seconds(const smp_cluster *cluster, const smp_profile *profile, smp_op op,
                        smp_algorithm algorithm, smp_protocol protocol,
                        const smp_placement *placement, uint64_t bytes);

/* The cost of any task of a program.  Pure: equal tasks cost the same. */
void smp_cost_task(const smp_cluster *cluster, const smp_profile *profile,
                   const smp_program *program, const smp_task *task, smp_cost *cost_p);
/* Costs by what decides them, each computed once.  The tasks of all programs on clusters that
 * differ in nothing but their number of GPUs, and on one profile. */
typedef struct smp_prices smp_prices;
smp_prices *smp_prices_create(void);
void smp_prices_destroy(smp_prices *prices); /* NULL is fine */
void smp_prices_task(smp_prices *prices, const smp_cluster *cluster,
                     const smp_profile *profile, const smp_program *program,
                     const smp_task *task, smp_cost *cost_p);
/* A kernel by the formulas alone, on a device of its own. */
void smp_cost_kernel_model(const smp_profile *profile, const smp_task *task, smp_cost *cost_p);
/* Seconds of a matrix product on the tensor cores, memory traffic apart: tiles of the output
 * fill the multiprocessors in waves. */
double smp_cost_matmul_s(const smp_profile *profile, smp_dtype dtype, uint64_t batch,
                         uint64_t m, uint64_t n, uint64_t k);

/* An all-to-all of `bytes` (what a rank sends, its own part included) inside a node. */
void smp_cost_all_to_all(const smp_cluster *cluster, const smp_profile *profile,
                         uint32_t ranks, uint64_t bytes, smp_cost *cost_p);

/* A layer of experts on one rank, forward: rows = tokens x top_k / ep, spread evenly over the
 * local experts, each a gated MLP of three products. */
typedef struct smp_experts {
    uint64_t tokens, hidden, ffn, top_k, experts, ep;
    smp_dtype dtype;
} smp_experts;
void smp_cost_experts(const smp_profile *profile, const smp_experts *layer, smp_cost *cost_p);
/* Sending tokens to their experts (dispatch) and back (combine). */
typedef struct smp_dispatch {
    uint64_t tokens, hidden, top_k; /* tokens of a rank */
    uint32_t ranks, nodes;
    double element_bytes;           /* 2 for bf16 */
    uint32_t most_nodes;            /* that a token is sent to; 0: any */
    uint32_t multiprocessors;       /* that the kernels may use */
    bool combine;
} smp_dispatch;
void smp_cost_dispatch(const smp_cluster *cluster, const smp_profile *profile,
                       const smp_dispatch *dispatch, smp_cost *cost_p);

/* What tasks that run at the same time on a device take from each other. */
typedef enum smp_overlap_kind {
    SMP_OVERLAP_NONE,       /* copies to and from the host, tokens */
    SMP_OVERLAP_MATRIX,     /* products and attention: multiprocessors */
    SMP_OVERLAP_MEMORY,     /* other kernels: device memory */
    SMP_OVERLAP_IN_NODE,    /* collectives on the links inside a node */
    SMP_OVERLAP_BETWEEN,    /* collectives on the network */
    SMP_OVERLAP_KINDS
} smp_overlap_kind;
/* Time of a task of the first kind beside one of the second over its time alone, in 2^-16; at
 * least 1.  A second task beside it adds as much again. */
typedef struct smp_overlap {
    uint32_t slow_q16[SMP_OVERLAP_KINDS][SMP_OVERLAP_KINDS];
} smp_overlap;
/* False: nothing slows anything (no NVIDIA GPU). */
bool smp_cost_overlap(const smp_profile *profile, smp_overlap *overlap_p);
smp_overlap_kind smp_cost_overlap_kind(const smp_program *program, const smp_task *task);

/* Device memory that no arena holds: estimates. */
uint64_t smp_cost_context_bytes(const smp_profile *profile);
uint64_t smp_cost_comm_bytes(const smp_cluster *cluster, const smp_profile *profile,
                             const smp_comm *comm);

/* From the text of a file, as plan files hold them.  A plan file keeps the cluster's text and
 * the number of GPUs in use: after parsing, smp_cluster_set_gpus restores an override. */
SMP_CHECK smp_status smp_cluster_parse(const char *text, size_t n, const char *place_name,
                                       const char *name, smp_errors *errors,
                                        smp_cluster **cluster_p);
SMP_CHECK smp_status smp_profile_parse(const char *text, size_t n, const char *place_name,
                                       const char *name, smp_errors *errors,
                                        smp_profile **profile_p);

#endif
