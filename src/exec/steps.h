/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of training on one rank, one behind the other.
 *
 * Where the device runs apart from the host (device.h), a step is begun while the one before
 * runs, and what a step gave is read one step late; where tasks run when they are issued, at
 * once.
 */
#ifndef SMP_EXEC_STEPS_H
#define SMP_EXEC_STEPS_H

#include "exec/exec.h"

/* A step that was begun and not noted yet. */
typedef struct smp_begun {
    const smp_loaded *loaded;
    double start_s;            /* when it was begun */
    uint32_t compiles;         /* programs, with those that it took */
    double compile_seconds;    /* of all of them */
} smp_begun;

typedef struct smp_steps {
    /* filled by the caller */
    const smp_exec_options *options;
    smp_runner *runner;
    smp_loader *loader;        /* keeps SMP_PASSES */
    bool validates;
    smp_errors *errors;
    smp_errors *begin_errors;  /* why a step cannot begin: said when those before it ended */
    smp_exec_result *result;   /* of rank 0, else NULL */
    smp_log *log;
    /* zero at the start */
    smp_begun begun[SMP_PASSES]; /* step i is at i % SMP_PASSES */
    uint64_t n_begun, n_noted;
    const smp_loaded *next;    /* what the next step trains on, or NULL: not asked for yet */
    smp_status next_status;    /* of it */
    uint64_t asked;            /* batches */
    double noted_s;            /* end of the last step that was noted */
    uint64_t skipped;          /* steps in a row, up to the last, that changed nothing at all */
    float scale, shift;        /* of the loss, after the last step */
    uint32_t compiles;         /* programs that were noted */
    uint64_t capacity;         /* of result->steps */
} smp_steps;

/* Begins step number `step`, from 0, and notes those that are due. */
SMP_CHECK smp_status smp_steps_take(smp_steps *steps, uint64_t step);
/* Notes all that were begun. */
SMP_CHECK smp_status smp_steps_end(smp_steps *steps);
/* Whether a validation follows a step. */
bool smp_steps_validates_after(const smp_steps *steps, uint64_t step);
/* Batches that were asked for and not trained on, after smp_steps_end. */
uint64_t smp_steps_unused(const smp_steps *steps);

#endif
