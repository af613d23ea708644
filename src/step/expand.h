/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program expanded: one row for each task that runs, every instance of every micro-batch,
 * with the waits as they are written down.  What verify.c and meetings.c work on; it shares
 * nothing with the derivation of waits.
 */
#ifndef SMP_STEP_EXPAND_H
#define SMP_STEP_EXPAND_H

#include "step/program.h"

enum { SMP_NO_POSITION = UINT32_MAX };

typedef struct smp_expanded {
    const smp_program *program;
    uint32_t n;
    uint32_t *first;     /* by instance: its first position; n_instance + 1 */
    uint32_t *instance;  /* by position */
    uint32_t *clocks;    /* by position: SMP_STREAMS entries, position + 1; by verify.c */
} smp_expanded;

/* Whatever it returns, the caller frees what it made. */
SMP_CHECK smp_status smp_expand(const smp_program *program, smp_expanded *x,
                                smp_errors *errors);
void smp_expanded_free(smp_expanded *x);
const smp_task *smp_task_at(const smp_expanded *x, uint32_t position);
/* "qkv_dw of backward (layer 3, micro-batch 1, turn 7; instance 15, compute)" */
const char *smp_name_at(const smp_expanded *x, uint32_t position, char text[192]);
/* Position that a wait of instance i names, SMP_NO_POSITION if there is none before the waiting
 * task. */
uint32_t smp_wait_source(const smp_expanded *x, uint32_t i, const smp_wait *wait);

#endif
