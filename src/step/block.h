/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The graph of a block: operations and the tensors between them, on one tensor rank.
 *
 * Forward is the list of nodes in order; backward is derived from it.  Operations in place
 * (rope, bias after a reduction, all-reduce) make a new tensor on the storage of the old one.
 * A new layer type (a mixture of experts) is more nodes and a case in the walks.
 */
#ifndef SMP_STEP_BLOCK_H
#define SMP_STEP_BLOCK_H

#include "step/lower.h"

enum { SMP_NO_TENSOR = 255, SMP_MAX_TENSORS = 96 };

/* Nodes that stand for the two ends of tensor parallelism and are no operation themselves:
 * FORK does nothing forward and sums the input gradient over the tensor group backward. */
enum { SMP_NODE_FORK = SMP_OPS };

/* The tasks that a node becomes. */
typedef struct smp_names { const char *forward, *again, *dx, *dw, *regather, *add; } smp_names;

/* Whose communicator a node's collective uses. */
typedef enum smp_node_group {
    SMP_NODE_TENSOR, SMP_NODE_EXPERT,
    SMP_NODE_SHARD_SUM, SMP_NODE_REPLICA_SUM /* statistics over data ranks */
} smp_node_group;

typedef struct smp_node {
    uint16_t op;
    smp_names names;
    uint8_t in[3], out[2];     /* tensors, SMP_NO_TENSOR where there is none */
    uint8_t extra;             /* what only its gradient reads besides, or SMP_NO_TENSOR */
    uint8_t group;             /* smp_node_group */
    uint8_t stream;            /* smp_stream, of operations that are no collective */
    bool exclusive;            /* uses the multiprocessors that another stream's tasks use */
    bool fp32_out;             /* writes fp32, whatever the precision; a cast without it
                                  reads fp32 */
    smp_role weight, bias;     /* the first of those it uses, SMP_ROLES: none */
    uint8_t n_weight, n_bias;  /* adjacent parameters that make one operand */
    uint8_t flags;
    bool needs_input;          /* its gradient reads its input as well */
    bool fp32;                 /* works on fp32, whatever the precision */
    bool core;                 /* of the attention itself: what selective:attention drops */
    bool dropped;              /* by the block's checkpointing mode, where that is by node */
    uint64_t dims[SMP_MAX_DIMS];
} smp_node;

typedef struct smp_tensor {
    const char *name, *grad_name;
    uint64_t bytes;
    uint64_t grad_bytes;       /* 0: as many */
    uint8_t storage;           /* the tensor whose memory it is: itself, or an earlier one */
    uint8_t gathered;          /* the tensor it is gathered from, or SMP_NO_TENSOR */
    uint8_t producer;          /* node that makes the storage */
    bool needed;               /* by backward; of storages only */
    smp_ref at, grad;
    bool has_grad;
    bool residual;             /* its gradient is the residual's, as the output's is */
    bool regathered;           /* since backward began */
} smp_tensor;

typedef struct smp_graph {
    smp_node nodes[SMP_MAX_NODES];
    uint32_t n_node;
    smp_tensor tensors[SMP_MAX_TENSORS];
    uint32_t n_tensor;
    uint8_t input, output;
    bool again[SMP_MAX_NODES]; /* nodes that backward computes again */
} smp_graph;

/* The nodes of a block, then what backward needs and computes again under `mode`. */
void smp_graph_build(const smp_lowering *low, const smp_block *block,
                     smp_checkpointing mode, smp_graph *graph);
/* A tensor that forward leaves for backward (the block's input apart). */
bool smp_graph_keeps(const smp_graph *graph, uint32_t tensor);

#endif
