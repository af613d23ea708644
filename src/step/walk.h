/* SPDX-License-Identifier: Apache-2.0 */
/* What the walks over the graph of a block share: walk.c goes forward, walk_grad.c backward,
 * walk_moe.c backward through experts. */
#ifndef SMP_STEP_WALK_H
#define SMP_STEP_WALK_H

#include "step/block.h"

typedef struct smp_walk {
    smp_lowering *low;
    const smp_variant *variant;
    smp_graph *graph;
    bool add; /* to gradients of parameters */
} smp_walk;

/* walk.c */
smp_ref smp_walk_at(const smp_walk *w, uint8_t tensor);
/* Where the gradient of a tensor lies; scratch unless it is shared with another's. */
smp_ref smp_walk_grad(smp_walk *w, uint8_t tensor);
/* The gradient of `tensor` is that of `other`. */
void smp_walk_share(smp_walk *w, uint8_t tensor, uint8_t other);
smp_task smp_walk_task(const smp_walk *w, const smp_node *node, const char *name, uint32_t op,
                       smp_phase phase);
void smp_walk_add(smp_walk *w, const smp_task *task, const smp_access *access, uint32_t n);
/* After all operands of the task added last: it shares the multiprocessors with tasks of
 * another stream, which count as if they had all of them, so the two must not overlap. */
void smp_walk_finish(smp_walk *w, const smp_node *node);
void smp_walk_collective(smp_walk *w, const smp_node *node, const char *name, smp_op op,
                         smp_phase phase, smp_ref from, smp_ref to);
smp_ref smp_walk_weight(const smp_walk *w, smp_role role, uint32_t n);
uint8_t smp_walk_flag(const smp_walk *w, smp_role role);
smp_access smp_walk_weight_grad(const smp_walk *w, smp_role role, uint32_t n);

/* walk_grad.c */
smp_task smp_walk_grad_task(const smp_walk *w, const smp_node *node, const char *name,
                            uint32_t op);
void smp_walk_backward(smp_walk *w, const smp_node *node);

/* walk_moe.c */
/* False: the operation is none of experts'. */
bool smp_walk_expert_grad(smp_walk *w, const smp_node *node);

#endif
