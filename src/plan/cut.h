/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job with fewer layers in the place of one with many.
 *
 * A run is a range of layers that are alike: the same block, checkpointed or not, offloaded or
 * not.  Which task a layer of a long run has, what it waits for and what it shares memory with
 * does not depend on how long the run is; so a step with runs cut to a few layers says what a
 * layer more costs (skeleton.h and word.h say when).
 */
#ifndef SMP_PLAN_CUT_H
#define SMP_PLAN_CUT_H

#include "plan/plan.h"

enum { SMP_MOST_RUNS = 8, SMP_KEEP_FEWEST = 0 };

typedef struct smp_run {
    uint32_t first, layers; /* in the job that was cut */
    uint32_t at, kept;      /* the same in the cut one */
    uint32_t alike;         /* what its layers are: equal for equal layers */
    bool repeats;           /* what is kept stands for one layer less and any number more */
} smp_run;

typedef struct smp_runs {
    smp_run run[SMP_MOST_RUNS];
    uint32_t n;             /* 0: the job has too many runs */
} smp_runs;

typedef struct smp_cut {
    smp_runs runs;
    smp_model model;        /* borrows the job's, but for layers */
    smp_job job;            /* resolved; points to `model`: a cut is not copied */
} smp_cut;

/* The runs of a resolved job, cut to about `keep` layers; SMP_KEEP_FEWEST: to as few as are
 * enough in most jobs. */
void smp_runs_find(const smp_job *job, uint32_t keep, smp_runs *runs);
/* Layers that the runs lack; where one has a layer too many, modulo 2^32. */
uint32_t smp_runs_missing(const smp_runs *runs);
/* The job with the layers that the runs keep. */
void smp_cut_make(const smp_job *job, const smp_runs *runs, smp_arena *arena, smp_cut *cut);

#endif
