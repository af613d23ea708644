/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/sim: a step with every rank of the world as an actor of its own.
 *
 * smp_engine_simulate runs one actor for each class of ranks; that is exact while ranks of a
 * class take equally long.  Here they need not: a rank may be slow, and every task of every
 * rank may take longer or shorter by chance.  Without either, all ranks of a class end at the
 * picosecond at which their class does (tests/sim/test_apart.c).
 *
 * Streams are FIFO, waits and rendezvous are known before anything runs, and nothing else
 * decides when a task starts.  So no queue of events is needed: the tasks of a class are put
 * into one topological order once, and each then is a vector operation over the ranks of the
 * class, end = max(end of what it comes after) + duration.  What is kept for a rank is one
 * number for each task that others still wait for.
 */
#ifndef SMP_SIM_APART_H
#define SMP_SIM_APART_H

#include "sim/noise.h"
#include "sim/sim.h"

/* The order of a simulation's tasks, made once for any number of runs.  Durations are those of
 * the simulation's records, so what the engine knows beside costs (tasks that slow each other
 * down, imbalance drawn) is in them, and so is when the host issued what waited for it. */
typedef struct smp_apart smp_apart;
SMP_CHECK smp_status smp_apart_create(const smp_simulation *simulation, smp_errors *errors,
                                      smp_apart **apart_p);
void smp_apart_destroy(smp_apart *apart);
uint64_t smp_apart_tasks(const smp_apart *apart);        /* of all ranks */
uint64_t smp_apart_state_bytes(const smp_apart *apart);  /* of all ranks, while running */

/* What the ranks of a communicator wait for the last of them. */
typedef struct smp_apart_wait {
    const char *comm;
    uint64_t collectives; /* of one rank */
    double mean_ps;       /* over ranks: sum over the step */
} smp_apart_wait;

/* Ends of one task in all ranks of its class, `ranks` of them: for tests. */
typedef void smp_apart_visit(void *context, uint32_t klass, uint32_t instance, uint32_t task,
                             const uint32_t *ranks, const int64_t *end_ps, uint32_t count);

typedef struct smp_apart_run_input {
    const smp_noise *noise;
    uint64_t seed;           /* random numbers depend on it, rank, instance and task alone */
    int64_t *rank_end_ps;    /* by rank, or NULL */
    smp_apart_visit *visit;  /* or NULL */
    void *visit_context;
} smp_apart_run_input;

typedef struct smp_apart_result {
    int64_t end_ps;
    uint32_t last;           /* rank that ends last, the lowest of equals */
    smp_apart_wait *waits;   /* by communicator name; the smp_apart's, until its next run */
    uint32_t n_wait;
} smp_apart_result;

/* Cost: O(tasks of all ranks), no allocation. */
void smp_apart_run(smp_apart *apart, const smp_apart_run_input *input,
                   smp_apart_result *result_p);

#endif
