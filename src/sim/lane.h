/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables that the event engine makes of each class's program once a run, so that nothing is
 * searched while it runs.  Private to the engine and lane.c.
 */
#ifndef SMP_SIM_LANE_H
#define SMP_SIM_LANE_H

#include "sim/sim.h"

#define SMP_NO_CHANNEL UINT32_MAX

/* What the engine reads of a stored task. */
typedef struct smp_site {
    uint32_t rank;      /* among the tasks of its segment on its stream */
    uint32_t comm_rank; /* among the collectives of its segment on its communicator */
    uint8_t stream;
    uint8_t comm;       /* SMP_NO_COMM also where only one class meets */
} smp_site;

/* Tables of one program. */
typedef struct smp_lane {
    const smp_program *program;
    const int64_t *duration_ps;
    const int64_t *const *drawn_ps; /* by instance, or NULL */
    smp_site *sites;           /* by task of the program */
    uint32_t *list0;       /* [segment * SMP_STREAMS + stream]: slice of `lists`, one more */
    uint16_t *lists;       /* tasks of a segment on a stream, ascending */
    uint32_t *position0;   /* [instance * SMP_STREAMS + stream] */
    uint32_t *wait_index0; /* by pattern: slice of wait_index */
    uint32_t *wait_tasks;  /* by pattern: tasks it has entries for */
    uint32_t *wait_index;  /* first wait of a task; one more at the end of each pattern */
    uint32_t *sequence0;   /* [instance * n_comm + comm], only with several classes */
    uint32_t *channel;     /* by communicator, or SMP_NO_CHANNEL */
    int64_t *issue0_ps;    /* by instance: host time before it; NULL without a host */
    int64_t *issue_ps;     /* by task: host time inside the segment, itself included */
    const uint8_t *kinds;  /* by task: smp_overlap_kind; NULL: no overlap is modelled */
    uint64_t now_running;  /* tasks of each kind, eight bits a kind */
    uint64_t rated;        /* what slow_q16 is for */
    uint32_t slow_q16[SMP_OVERLAP_KINDS];
    uint32_t running;      /* streams, as bits */
    bool changed;          /* in the list of lanes to rate anew */
} smp_lane;

/* Fills all tables of `lane`, whose program is set, but `channel` and `sequence0`;
 * host_issue_ps: by task, or NULL. */
void smp_lane_make(smp_arena *arena, smp_lane *lane, const int64_t *host_issue_ps);
/* Running numbers of collectives on the communicators that have a channel. */
void smp_lane_sequences(smp_arena *arena, smp_lane *lane);

#endif
