/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/sim/apart*.c: a step compiled to vector operations.
 *
 *   position  ranks stand in the order of their class, then of their number; the ranks of a
 *             class are a range of positions
 *   vector    one time for each rank of a class
 *   slot      where a vector is kept: shared by vectors whose lives do not overlap
 *   op        one task of a class, in all of its ranks
 *   circle    a partition of the ranks into the groups of one communicator
 */
#ifndef SMP_SIM_APART_INT_H
#define SMP_SIM_APART_INT_H

#include "sim/apart.h"

enum { SMP_APART_NONE = 0xffffffffu };

typedef struct smp_apart_circle {
    smp_group group;
    uint32_t ranks;      /* of one group */
    uint32_t n_group;
    uint32_t *group_of;  /* by position */
    uint32_t *lowest;    /* by group: its lowest rank */
    double *link;        /* by group: the largest lasting factor of its members' links */
} smp_apart_circle;

typedef struct smp_apart_op {
    int64_t duration_ps;
    int64_t issue_ps;    /* no start before it, where the host let the task start; else 0 */
    uint32_t klass, instance;
    uint16_t task;       /* in its segment */
    bool meets;          /* a collective: ends follow once its last op has been met */
    bool completes;      /* the last op of a collective, which then runs in `n_meet` classes */
    uint32_t n_meet;     /* this op and those right before it */
    uint32_t source0, n_source; /* slots of the vectors that it comes after */
    uint32_t slot;       /* of its ends */
    uint32_t circle, wait;      /* of a collective: circle, and place in the waits reported */
} smp_apart_op;

struct smp_apart {
    smp_arena *arena;
    const smp_simulation *simulation;
    uint32_t world, n_class;
    uint32_t *first;     /* by class: position of its first rank; one more at the end */
    uint32_t *rank_of;   /* by position */
    smp_apart_circle *circles;
    uint32_t n_circle;
    smp_apart_op *ops;
    uint64_t n_op;
    uint32_t *sources;
    size_t n_source, source_capacity;
    uint32_t *n_slot;    /* by class */
    uint32_t *final;     /* [class * SMP_STREAMS + stream]: slot of the stream's last task, or
                            SMP_APART_NONE */
    smp_apart_wait *waits;
    uint32_t n_wait;
    /* state of a run */
    int64_t **slots;     /* by class: n_slot vectors behind each other */
    int64_t *meet_ps;    /* by group of the circle that meets now */
    double *rank_factor; /* by position */
};

/* Fills ops, sources, slots' numbers, circles and names of waits. */
SMP_CHECK smp_status smp_apart_compile(smp_apart *apart, smp_errors *errors);

#endif
