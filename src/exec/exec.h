/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training by a plan: ranks as threads, data, steps, what is printed of them.
 */
#ifndef SMP_EXEC_EXEC_H
#define SMP_EXEC_EXEC_H

#include "exec/data.h"
#include "exec/run.h"

#include <stdatomic.h>

typedef struct smp_exec_options {
    smp_hyper hyper;
    uint64_t steps;
    /* data: see data/tokens.h, data/samples.h and data.h */
    const char *data;
    int64_t separator;            /* token that ends documents, or SMP_NO_SEPARATOR */
    bool shuffle, drop_last;
    bool documents;               /* packed documents are kept apart */
    smp_pad pad;
    uint64_t bucket;
    uint32_t loader_threads;      /* of each rank */
    smp_loader_state start;       /* epoch and position; the rest is not read */
    const char *validation;       /* a file for the validation loss, or NULL */
    uint64_t validate_every;      /* steps; 0: after the last one only */
    uint64_t validation_batches;  /* global batches of it, from its start */
    const char *init_rules;       /* a file (init_rules.h), or NULL */
    bool async;
    uint32_t threads;             /* of each rank; 0: cores over ranks, at least 1 */
    uint64_t device_memory_bytes; /* 0: no limit */
    double timeout_s;             /* of a collective */
    bool mpi;                     /* this process is one rank of MPI's world */
    /* Set by a signal handler: the run ends after the step that was begun last.  Or NULL. */
    const atomic_bool *stop;
    FILE *log;                    /* a line for each step, or NULL */
    bool verbose;                 /* also tensors and their values, to the log */
    FILE *places;                 /* where each rank of this process is, or NULL */
    bool measure_peak;            /* time a product at the start, for mfu */
    const char *metrics;          /* JSON lines, or NULL */
    const char *tensorboard;      /* directory of event files (tensorboard.h), or NULL */
    const char *trace;            /* of the last step, or NULL */
    bool measure;                 /* fill smp_exec_result.measured */
    /* When a step was noted, on the rank's own thread: with `async` the next one may run.
     * May be NULL. */
    void (*after_step)(void *context, smp_runner *runner, uint64_t step);
    void *context;
} smp_exec_options;

typedef struct smp_exec_step {
    double loss, norm, lr, loss_scale, seconds;
    bool skipped;                 /* it overflowed, or the next: nothing was updated */
    double rows_cut;              /* times that more rows came to an expert rank than fit */
    uint64_t seq;                 /* tokens of a row */
    double targets;               /* that counted, in the global batch */
    double mfu;                   /* over the measured peak; 0: not measured */
} smp_exec_step;

/* Times of rank 0's last step, by the program's stored tasks. */
typedef struct smp_exec_measured {
    double *seconds;              /* heap: n_task sums over the runs of each */
    uint64_t *runs;
    uint32_t n_task;
    double step_seconds;          /* from the start of the first to the end of the last */
} smp_exec_measured;

typedef struct smp_exec_result {
    smp_exec_step *steps;         /* heap: n_step entries, fewer than asked for if stopped */
    uint64_t n_step;
    bool stopped;                 /* by options.stop */
    smp_loader_state end;         /* where the data go on */
    double validation_loss;       /* the last one */
    uint32_t compiles;            /* of shapes, and the time they took on rank 0 */
    double compile_seconds;
    double peak_flops_per_s;      /* of all ranks together, measured; 0: not */
    uint64_t arena_bytes, host_arena_bytes; /* the largest of the ranks */
    smp_exec_measured measured;
} smp_exec_result;

void smp_exec_options_init(smp_exec_options *options);
/* Trains the resolved job for options->steps steps. */
SMP_CHECK smp_status smp_exec_run(const smp_job *job, const smp_exec_options *options,
                                  smp_errors *errors, smp_exec_result *result_p);
void smp_exec_result_free(smp_exec_result *result);

/* ---- what is said of a run (log.c), by rank 0 ---- */

typedef struct smp_log smp_log;
/* Opens options->metrics and options->tensorboard; lines go to options->log. */
SMP_CHECK smp_status smp_log_create(const smp_exec_options *options, smp_errors *errors,
                                    smp_log **log_p);
/* A line that could not be written is a failure. */
SMP_CHECK smp_status smp_log_step(smp_log *log, uint64_t step, const smp_exec_step *taken,
                                  uint64_t arena_bytes, smp_errors *errors);
SMP_CHECK smp_status smp_log_validation(smp_log *log, uint64_t step, double loss,
                                        double seconds, smp_errors *errors);
void smp_log_line(smp_log *log, const char *format, ...) SMP_PRINTF(2, 3);
SMP_CHECK smp_status smp_log_close(smp_log *log, smp_errors *errors); /* NULL is fine */

/* ---- validation (validation.c) ---- */

typedef struct smp_validation smp_validation;
/* The batches of one rank from `samples`, in their order; at most `batches` global ones. */
SMP_CHECK smp_status smp_validation_create(const smp_samples *samples,
                                           const smp_loader_options *options,
                                           uint64_t batches, smp_errors *errors,
                                           smp_validation **validation_p);
void smp_validation_destroy(smp_validation *validation);
/* Mean loss over the targets that count, the same on every rank; nothing is trained.
 * *stopped_p: a signal came (`stop`, or NULL) before it was complete, and there is no loss. */
SMP_CHECK smp_status smp_validation_run(smp_validation *validation, smp_runner *runner,
                                        const atomic_bool *stop, smp_errors *errors,
                                        double *loss_p, bool *stopped_p);
/* All ranks stop at the same place: when any of them was asked to. */
SMP_CHECK smp_status smp_exec_stops(smp_runner *runner, const atomic_bool *stop,
                                    smp_errors *errors, bool *stop_p);
/* A batch as the inputs of a step. */
smp_inputs smp_exec_inputs(const smp_loaded *loaded, bool evaluating);

void smp_exec_measure(const smp_runner *runner, smp_exec_measured *measured_p);
void smp_exec_measured_free(smp_exec_measured *measured);
/* The measured times of the ranks' last step in the format of smp-sim --trace. */
SMP_CHECK smp_status smp_exec_trace(smp_runner *const *runners, uint32_t n_runner,
                                    const char *path, smp_errors *errors);

#endif
