/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a software stack changes about the cost of a kernel (docs/stacks.md).
 */
#ifndef SMP_COST_STACK_H
#define SMP_COST_STACK_H

#include "cost/cost.h"

/* Shares of the peak that causal attention of head size 128 tends to, and the sequences at
 * which it reaches half of them. */
typedef struct smp_attention_rates {
    double forward, backward, half_seq, half_seq_grad;
} smp_attention_rates;

/* False: the profile's own figures and fit are those of the kernel. */
bool smp_cost_attention_rates(const smp_profile *profile, smp_attention_kernel kernel,
                              smp_attention_rates *rates_p);
/* Kernels that the task is. */
double smp_cost_kernels(const smp_program *program, const smp_task *task);
/* Makes the cost of one fused kernel alone that of what the stack runs. */
void smp_cost_stack(const smp_program *program, const smp_task *task, smp_cost *cost);
/* Applies the share of their rates that kernels and collectives reach inside a step. */
void smp_cost_in_step(const smp_program *program, smp_cost *cost);

#endif
