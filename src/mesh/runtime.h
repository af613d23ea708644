/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the software that runs a step does, as data: one declaration for each value of the
 * setting `stack`.  Lowering, cost and simulation ask it; none of them knows a stack by name.
 * Sources: docs/stacks.md.
 */
#ifndef SMP_MESH_RUNTIME_H
#define SMP_MESH_RUNTIME_H

#include "smp.h"

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
    smp_loss_kernel loss;   /* compile: SMP_LOSS_COMPILED for SMP_LOSS_EAGER */
    bool compiles;          /* `compile` acts */
    bool captured;          /* the step is a graph, and the host launches nothing */
    bool reduces_in_precision; /* default of reduce_dtype: the precision, else fp32 */
    bool shards_optimizer;  /* default of sharding: optimizer, else full */
    bool accumulates_whole; /* with parameters whole: reduces in the last micro-batch only */
    bool placeholders;      /* hands autograd one tensor of each shape of weight gradient, in
                               the precision, in place of the gradient it added up itself */
    bool preloads;          /* has the offloading that loads ahead by a horizon */
    smp_attention_kernel attention;
    double efficiency;      /* of kernels inside a step, over their rates alone */
    double spread;          /* relative standard deviation of the step that it leaves */
    const char *efficiency_source;
} smp_runtime;

const smp_runtime *smp_runtime_of(smp_stack_name stack);
/* Whether the stack has the scheme of offloading that the settings name. */
bool smp_runtime_offloads(const smp_settings *settings);
/* The forms that act with or without `compile`. */
smp_kernel_form smp_runtime_kernels(const smp_runtime *runtime, bool compile);
smp_loss_kernel smp_runtime_loss(const smp_runtime *runtime, bool compile);

#endif
