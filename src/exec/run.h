/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank's step program on a device and a communicator: lowered, placed, run.
 *
 * Everything that a step does is in the program; the runner turns addresses into pointers,
 * issues tasks in host order and orders streams by the program's waits.  The device arena has
 * exactly program->arena_bytes, the host arena program->host_arena_bytes.
 */
#ifndef SMP_EXEC_RUN_H
#define SMP_EXEC_RUN_H

#include "exec/comm.h"
#include "exec/device.h"

typedef struct smp_runner_options {
    const smp_device_ops *device;
    smp_device_options device_options;
    const smp_comm_ops *comm;
    smp_world *world;
    uint64_t device_memory_bytes; /* an arena that needs more is refused; 0: no limit */
    uint64_t host_share_bytes;    /* so are both arenas, where all memory is the host's */
    bool measure;                 /* keep the times of every task of the last step */
    uint32_t without_wait;        /* tests leave out wait number n, from 1; 0: none */
    smp_hyper hyper;
} smp_runner_options;

typedef struct smp_bound_channel {
    const smp_comm_ops *ops;
    smp_channel *channel;
} smp_bound_channel;

/* A program of the rank for rows of `seq` tokens, with what the runner keeps of its tasks. */
typedef struct smp_shape {
    uint64_t seq;
    const smp_job *job;
    const smp_program *program;
    uint64_t *record0;
    uint64_t n_record;
    smp_event *events;
    smp_span *spans;
    bool *awaited;
} smp_shape;

/* Of one rank and step. */
typedef struct smp_inputs {
    uint64_t seq;              /* tokens of a row: at most the plan's; see shapes.c */
    const int32_t *ids, *targets; /* [micro_batches * micro_batch, seq] */
    smp_rows rows;
} smp_inputs;

/* A step that was begun.  The device writes what is there at its end. */
typedef struct smp_pass {
    smp_inputs inputs, next;   /* next.ids NULL: not known when it was begun */
    smp_rank rank;             /* as it is in this step */
    uint64_t step;
    float scalars[SMP_SCALARS]; /* at its end */
    int64_t end_ns;            /* by CLOCK_MONOTONIC; 0: it has not come to its end */
    smp_event end;
} smp_pass;
enum { SMP_PASSES = 2 };       /* that may be begun and not ended */

typedef struct smp_runner {
    smp_arena *arena;
    smp_rank rank;
    const smp_mesh *mesh;
    smp_runner_options options;
    const smp_device_ops *ops;
    smp_device *device;
    char *memory[SMP_SPACES];
    smp_bound_channel *channels;  /* one for each communicator of the program */
    smp_bound_channel everyone;   /* all ranks, outside the step */
    uint64_t *record0;            /* of an instance: its first task among all */
    uint64_t n_record;
    smp_event *events;
    smp_span *spans;              /* NULL unless measured */
    bool *awaited;                /* of a task of the program */
    uint64_t step;
    smp_pass passes[SMP_PASSES];  /* number i is at i % SMP_PASSES */
    uint64_t begun, ended;        /* passes */
    uint32_t streams;             /* bits: those that a step uses */
    const int32_t *ahead;         /* ids on their way to the device for the next pass */
    smp_shape *shapes;            /* heap; the first is the plan's; none until there are two */
    uint32_t n_shape, shape_capacity;
    uint32_t compiles;            /* programs lowered for shapes other than the plan's */
    double compile_seconds;       /* that they took */
} smp_runner;

/* `job` is resolved; job and mesh outlive the runner. */
SMP_CHECK smp_status smp_runner_create(const smp_job *job, const smp_mesh *mesh,
                                       uint32_t rank, const smp_runner_options *options,
                                       smp_errors *errors, smp_runner **runner_p);
void smp_runner_destroy(smp_runner *runner);
/* Fills the master parameters by smp_init_values, zeroes everything else, and brings the
 * parameters to where a step expects them. */
SMP_CHECK smp_status smp_runner_init(smp_runner *runner, smp_errors *errors);
/* Steps from here on have rows of `seq` tokens, at most the plan's; see shapes.c.  Places in
 * the arena stay.  `seq` must suit the settings: a multiple of the tensor degree times
 * loss_chunks. */
SMP_CHECK smp_status smp_runner_shape(smp_runner *runner, uint64_t seq, smp_errors *errors);
void smp_runner_index(smp_runner *runner); /* of a program that was lowered: for shapes.c */
/* Begins one optimizer step, or, with inputs->rows.evaluating, one that gives its loss only:
 * nothing else that a later step reads changes.  Returns when all is issued; on the device it
 * follows the step before.  At most SMP_PASSES are begun and not ended.  `next`, or NULL, are
 * the inputs of the next call: their first micro-batch is copied to the device beside this
 * step.  What both point to stays until the step has ended. */
SMP_CHECK smp_status smp_runner_begin(smp_runner *runner, const smp_inputs *inputs,
                                      const smp_inputs *next, smp_errors *errors);
/* Waits for the end of the oldest step that was begun, and gives it: it stays until SMP_PASSES
 * later ones were begun.  Fails when that step failed, not when one behind it did. */
SMP_CHECK smp_status smp_runner_end(smp_runner *runner, smp_errors *errors,
                                    const smp_pass **pass_p);
/* Begin and end, while no other step runs. */
SMP_CHECK smp_status smp_runner_step(smp_runner *runner, const smp_inputs *inputs,
                                     smp_errors *errors, const smp_pass **pass_p);
/* Copies the first micro-batch to where the next step takes it. */
void smp_runner_put_inputs(smp_runner *runner, const smp_inputs *inputs);
/* Puts task `index` of an instance on its stream, without its waits. */
void smp_runner_issue(smp_runner *runner, const smp_pass *pass, uint32_t instance,
                      uint32_t index);
/* After a step whose loss was not finite, the last that ended; all ranks call it.  Fails
 * always: with the task and the rank where it began. */
SMP_CHECK smp_status smp_runner_find_nan(smp_runner *runner, const smp_pass *pass,
                                         smp_errors *errors);
/* The address of an operand of a task of an instance. */
void *smp_runner_operand(const smp_runner *runner, uint32_t instance, uint32_t task,
                         uint32_t operand);

/* Calls `visit` for each part of a unit that this rank updates: the operands of its optimizer
 * task (parameter, gradient, ...).  `layer` is that of the block; the root has block NULL. */
typedef struct smp_owned {
    const smp_unit *unit;
    uint32_t layer;
    uint64_t first, elems;     /* of the unit's flat vector */
    const smp_task *task;
    uint32_t instance, task_index;
} smp_owned;
void smp_runner_owned(smp_runner *runner, void (*visit)(void *context, const smp_owned *owned),
                      void *context);

/* Whether smp_runner_init gave every parameter of the rank a value: each block and the root
 * was visited, and every element that it owns is a finite number. */
SMP_CHECK smp_status smp_runner_check_init(smp_runner *runner, smp_errors *errors,
                                           uint64_t *elems_p);

/* ---- initial values (init.c) ---- */

/* Place of element `at` of the unit's flat vector on a tensor rank in the whole parameter, row
 * major as declared; UINT64_MAX: padding of the vocabulary. */
uint64_t smp_global_element(const smp_rank *rank, const smp_unit *unit, uint64_t at,
                            const smp_param **param_p);
/* Values of elements at .. at + n of the unit's flat vector.  They depend on seed, layer, role
 * and place in the whole parameter only. */
void smp_init_values(const smp_rank *rank, const smp_unit *unit, uint32_t layer, uint64_t at,
                     uint64_t n, float *out);
/* Without rules: "normal(0, 0.02)", "1", "0". */
void smp_init_describe(const smp_rank *rank, const smp_param *param, FILE *stream);
/* A line for each tensor of the model: name, shape, values. */
void smp_init_list(const smp_rank *rank, FILE *stream);

#endif
