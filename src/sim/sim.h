/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The discrete-event simulation of a step: every class of ranks, streams, waits, rendezvous.
 *
 * Time is int64_t picoseconds; event order is (time, class, stream), so it is total.  A task
 * starts when its stream is free, its waits are done and, for a collective, when every class
 * that meets there has reached it; then it lasts what src/cost says.
 */
#ifndef SMP_SIM_SIM_H
#define SMP_SIM_SIM_H

#include "cost/cost.h"
#include "smp.h"
#include "step/program.h"

/* When a task of a class ran, and what its start waited for. */
typedef struct smp_record {
    int64_t start_ps, end_ps;
    int64_t ready_ps;      /* when its stream was free and its waits done (collectives may
                              start later, when the last class arrives) */
    uint32_t cause_instance; /* the task whose end let this one start; itself: none */
    uint16_t cause_task;
    uint16_t cause_class;
} smp_record;

struct smp_simulation {
    smp_arena *arena;
    const smp_job *job;
    const smp_step *step;
    smp_report report;
    uint32_t slowest;        /* class that ends last */
    /* per class: durations by task (program->n_task), cost by task, first record of each
     * instance (n_instance + 1), and the records */
    int64_t **duration_ps;
    smp_cost **cost;
    uint32_t **record0;
    smp_record **records;
};

/* Runs the engine only: step end of all classes in picoseconds; `records` as above or NULL
 * (then nothing is kept).  Used by the planner. */
SMP_CHECK smp_status smp_engine_run(const smp_step *step, int64_t *const *duration_ps,
                                    smp_record *const *records, const uint32_t *const *record0,
                                    smp_errors *errors, int64_t *end_ps_p, uint32_t *slowest_p);

#endif
