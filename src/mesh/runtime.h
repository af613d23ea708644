/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the software that runs a step does, as data: one declaration for each value of the
 * setting `stack`.  Lowering, cost and simulation ask it; none of them knows a stack by name.
 * Sources: docs/stacks.md.
 */
#ifndef SMP_MESH_RUNTIME_H
#define SMP_MESH_RUNTIME_H

#include "smp.h"

/* What the loss keeps beside the logits, of the same number of elements. */
typedef enum smp_loss_form {
    SMP_LOSS_IN_PLACE, /* nothing: their gradient takes their place, in their type */
    SMP_LOSS_COPY,     /* a copy in fp32, whose place the gradient takes */
    SMP_LOSS_EAGER     /* the logarithm of their softmax in fp32, and two gradients of it */
} smp_loss_form;

/* How many kernels an operation between products is. */
typedef enum smp_kernel_form {
    SMP_KERNELS_FUSED, /* one */
    SMP_KERNELS_EAGER  /* as PyTorch dispatches it, one kernel an operator */
} smp_kernel_form;

typedef struct smp_runtime {
    const char *title;
    bool one_comm;          /* gathers and reductions of a shard group go through one
                               communicator, in the order of issue */
    bool separate;          /* q, k and v, gate and up of gated blocks are products each */
    smp_kernel_form kernels;
    smp_loss_form loss;     /* compile: at most SMP_LOSS_COPY */
    bool compiles;          /* `compile` acts */
    bool captured;          /* the step is a graph, and the host launches nothing */
    bool reduces_in_precision; /* default of reduce_dtype: the precision, else fp32 */
    bool shards_optimizer;  /* default of sharding: optimizer, else full */
    bool accumulates_whole; /* with parameters whole: reduces in the last micro-batch only */
    bool preloads;          /* has the offloading that loads ahead by a horizon */
    smp_attention_kernel attention;
    double efficiency;      /* of kernels inside a step, over their rates alone */
    const char *efficiency_source;
} smp_runtime;

const smp_runtime *smp_runtime_of(smp_stack_name stack);
/* The forms that act with or without `compile`. */
smp_kernel_form smp_runtime_kernels(const smp_runtime *runtime, bool compile);
smp_loss_form smp_runtime_loss(const smp_runtime *runtime, bool compile);

#endif
