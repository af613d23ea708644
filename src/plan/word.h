/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The time of a step without simulating it: the longest path, by (max, +) products.
 *
 * Where nothing slows anything, a task of one class of ranks starts at the maximum of the ends
 * of the task before it on its stream and of those it waits for.  In the algebra where + is
 * max and * is + that is linear [Baccelli, Cohen, Olsder, Quadrat, "Synchronization and
 * Linearity", 1992, chapter 1], so a stretch of the step is a matrix: from the times on which
 * later tasks depend before it to those behind it.  These are few: the end of each stream and
 * of each task that is waited for across the cut.
 *
 * The steps of a job whose runs (cut.h) are longer have the same instances with the same waits,
 * but that one layer of a run comes more often in each of its passes: its matrix is raised to
 * a power.  The layer that is repeated has a twin behind it, with the same segments and
 * waits, and the times on which what follows depends are the same ones or their twins.
 * Micro-batches in the middle repeat alike.
 */
#ifndef SMP_PLAN_WORD_H
#define SMP_PLAN_WORD_H

#include "plan/cut.h"
#include "sim/steady.h"
#include "step/program.h"

typedef struct smp_word smp_word;

/* What of the program is repeated: a layer of each run in each pass, and the micro-batch in the
 * middle, which is the last. */
typedef struct smp_passes {
    smp_pass *at;
    uint32_t *run;          /* of each */
    uint32_t n;
} smp_passes;

/* A program of a cut job, whose tasks last duration_ps; it and the runs need not outlive the
 * word, which lies in the arena.  `middle`: micro-batches may be added in the middle.
 * *passes_p (or NULL) lies in `scratch`.  The word is NULL where a pass of a run that repeats,
 * or the middle, has nothing that does; where more layers are kept it may. */
smp_word *smp_word_create(const smp_program *program, const int64_t *duration_ps,
                          const smp_runs *runs, bool middle, smp_arena *arena,
                          smp_arena *scratch, smp_passes *passes_p);
/* End of the step where run r has more[r] layers more (-1: one less), and with `more_middle`
 * micro-batches more; -1: 2^53 ps (two and a half hours) or later.  No allocation. */
int64_t smp_word_end(const smp_word *word, const int32_t more[SMP_MOST_RUNS],
                     uint64_t more_middle);

#endif
