/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passes of a step that are steady where tasks slow each other down.
 *
 * What runs from a moment on depends on the state at that moment: the task at the head of each
 * stream, what is left of those that run, and how fast they run.  Nothing depends on the time
 * of day or on which of several alike layers it is.  So if at the starts of two neighbouring
 * layers of a pass every stream that has tasks in it is one layer further, the state being
 * equal but for that and for a shift in time, and all other streams wait for what no layer of
 * the pass does, then it goes on like that as long as the layers ahead are alike; and a layer
 * more in this pass shifts all that comes behind it by as much.  Equal means to the last bit:
 * the engine computes with integers and with differences of times only (engine_rates.c).  A
 * stream that falls ever further behind is never steady.  Micro-batches in the middle are like
 * layers of a pass.
 */
#ifndef SMP_SIM_STEADY_H
#define SMP_SIM_STEADY_H

#include "sim/sim.h"

/* Instances [at, at + period) are those of a layer, and come again behind themselves for the
 * next layer, as they do for all layers from `first` to before `end`, in this micro-batch.
 * With is_middle: those of a micro-batch, and come again for others. */
typedef struct smp_pass {
    uint32_t at, period;
    uint32_t micro_batch, first, end;
    bool is_middle;
    int64_t more_ps; /* out: what one more takes; -1: not steady */
} smp_pass;

/* Runs a step of one class, whose tasks last duration_ps alone, without a host, and fills in
 * more_ps of n passes.  *end_ps_p: of the step. */
SMP_CHECK smp_status smp_steady_run(const smp_step *step, int64_t *duration_ps,
                                    const smp_overlap *overlap, smp_pass *passes, uint32_t n,
                                    smp_errors *errors, int64_t *end_ps_p);

#endif
