/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training by a plan: ranks as threads, data, steps, what is printed of them.
 */
#ifndef SMP_EXEC_EXEC_H
#define SMP_EXEC_EXEC_H

#include "exec/run.h"

typedef struct smp_exec_options {
    smp_hyper hyper;
    uint64_t steps;
    const char *data;
    bool shuffle, drop_last;
    bool async;
    uint32_t threads;             /* of BLAS, for each rank; 0: cores over ranks, at least 1 */
    uint64_t device_memory_bytes; /* 0: no limit */
    double timeout_s;             /* of a collective */
    bool mpi;                     /* this process is one rank of MPI's world */
    FILE *log;                    /* a line for each step, or NULL */
    const char *metrics;          /* JSON lines, or NULL */
    const char *trace;            /* of the last step, or NULL */
    bool measure;                 /* fill smp_exec_result.measured */
    /* After each step, on the rank's own thread; may be NULL. */
    void (*after_step)(void *context, smp_runner *runner, uint64_t step);
    void *context;
} smp_exec_options;

typedef struct smp_exec_step {
    double loss, norm, lr, loss_scale, seconds;
    bool skipped;                 /* it overflowed */
} smp_exec_step;

/* Times of rank 0's last step, by the program's stored tasks. */
typedef struct smp_exec_measured {
    double *seconds;              /* heap: n_task sums over the runs of each */
    uint64_t *runs;
    uint32_t n_task;
    double step_seconds;          /* from the start of the first to the end of the last */
} smp_exec_measured;

typedef struct smp_exec_result {
    smp_exec_step *steps;         /* heap: n_step entries */
    uint64_t n_step;
    uint64_t arena_bytes, host_arena_bytes; /* the largest of the ranks */
    smp_exec_measured measured;
} smp_exec_result;

void smp_exec_options_init(smp_exec_options *options);
/* Trains the resolved job for options->steps steps. */
SMP_CHECK smp_status smp_exec_run(const smp_job *job, const smp_exec_options *options,
                                  smp_errors *errors, smp_exec_result *result_p);
void smp_exec_result_free(smp_exec_result *result);

void smp_exec_measure(const smp_runner *runner, smp_exec_measured *measured_p);
void smp_exec_measured_free(smp_exec_measured *measured);
/* The measured times of the ranks' last step in the format of smp-sim --trace. */
SMP_CHECK smp_status smp_exec_trace(smp_runner *const *runners, uint32_t n_runner,
                                    const char *path, smp_errors *errors);

#endif
