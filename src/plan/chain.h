/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A path through forward and backward that every order of the step contains: the shortest
 * time in which the compute stream can get through its tasks and what they need of tensor
 * and expert ranks.
 *
 * Instances of segments with work on the compute stream follow each other in issue order.
 * From the first compute task of one to that of the next, a path leads along streams, which
 * are FIFO, and along accesses to the same bytes of the same place, which every program
 * orders whatever its memory plan is.  The longest such path between each two neighbours,
 * added up, is a path of the step.  Only tasks that the head of a point decides are on it, so
 * that it holds for all points that share the head (see plan.h).
 */
#ifndef SMP_PLAN_CHAIN_H
#define SMP_PLAN_CHAIN_H

#include "step/program.h"

/* Whether a task can be on the path: products, norms and the like of forward and backward,
 * and collectives of tensor and expert ranks; what depends on sharding is not. */
bool smp_chain_has(const smp_task *task);
/* Links that a collective can use. */
typedef enum smp_link { SMP_LINK_IN_NODE, SMP_LINK_BETWEEN, SMP_LINKS } smp_link;

/* A part of the step: forward with the loss, or backward, of one micro-batch. */
typedef struct smp_stretch {
    int64_t path_ps;
    /* time alone of the collectives that can be on the path, whether they are or not: all of
     * the stretch, and those that neither begin before it nor end after it */
    int64_t link_ps[SMP_LINKS], inside_ps[SMP_LINKS];
    /* time alone of the kernels of the path that collectives slow; all run inside it */
    int64_t kernel_ps;
} smp_stretch;

typedef struct smp_chain {
    smp_stretch whole;
    /* first, each in the middle, last micro-batch; with one it is the last, and the first is
     * zero; [0] until backward begins, [1] from then on */
    smp_stretch part[3][2];
} smp_chain;

/* The path of a step of `micro_batches`; the program has the same job's first three, or all if
 * they are fewer.  It needs no memory plan and no waits.  duration_ps: by task; those that
 * the path does not have are not read. */
void smp_chain_measure(const smp_program *program, const int64_t *duration_ps,
                       uint64_t micro_batches, smp_arena *scratch, smp_chain *chain_p);

#endif
