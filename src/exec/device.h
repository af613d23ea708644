/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a device is to the executor: memory, streams, and tasks of the step program.
 *
 * A device runs on behalf of one rank.  Work is put on streams in the order of issue; a stream
 * is FIFO; streams know nothing of each other but through events.  Nothing here returns a
 * value from inside a step: failures are kept by the device until `sync`.
 *
 * The table has required slots, and optional ones whose default stands beside them.  It is not
 * a place for knowledge of the step: what runs, where and when is the program's.
 */
#ifndef SMP_EXEC_DEVICE_H
#define SMP_EXEC_DEVICE_H

#include "exec/init_rules.h"

#include "step/program.h"

enum { SMP_MAX_OPERANDS = 8 };

typedef enum smp_schedule {
    SMP_SCHEDULE_CONSTANT, SMP_SCHEDULE_LINEAR, SMP_SCHEDULE_COSINE
} smp_schedule;

/* How a dynamic loss scale follows overflows: halved after one, doubled after `window` steps
 * without, by torch.amp.GradScaler.  SMP v1's first window is one step longer; it halves only
 * from the `shift`-th overflow on since it last doubled, and never below `least`. */
typedef enum smp_scaler_rule { SMP_SCALER_TORCH, SMP_SCALER_SMP } smp_scaler_rule;
typedef struct smp_scaler {
    smp_scaler_rule rule;
    double first, least;      /* scales */
    uint64_t window, shift;   /* shift 1: each overflow halves; SMP's rule only, as `least` */
} smp_scaler;
/* The defaults of a rule. */
smp_scaler smp_scaler_of(smp_scaler_rule rule);

/* Constants of the optimizer.  The learning rate follows the step count on the device. */
typedef struct smp_hyper {
    double lr, min_lr;        /* peak, and where linear and cosine end */
    uint64_t warmup_steps, total_steps;
    smp_schedule schedule;
    double beta1, beta2, eps, weight_decay, momentum;
    double clip;              /* of the global gradient norm; 0: none */
    double loss_scale;        /* fixed; 0: dynamic with fp16, else 1 */
    smp_scaler scaler;        /* of a dynamic one */
} smp_hyper;
/* AdamW at 6e-4 with betas 0.9 and 0.95, decay 0.1, clipping at 1: nanoGPT's defaults. */
void smp_hyper_init(smp_hyper *hyper);
/* Learning rate of the step after `done` steps. */
double smp_hyper_lr(const smp_hyper *hyper, uint64_t done);

/* What kernels know of the rows of a step beside ids and targets. */
typedef struct smp_rows {
    /* [micro_batches * micro_batch, seq]: the place in its row where a token's document begins,
     * not falling along the row.  A token attends to its document only, and its position
     * counts from there; padding is documents of one token.  NULL: each row is one document. */
    const int32_t *begins;
    double targets;            /* that count in the global batch; 0: all */
    bool padded;               /* rows are one document each, and padding */
    bool evaluating;           /* nothing is dropped, and the update is left out */
} smp_rows;

/* What a task does not carry because all tasks of the rank share it. */
typedef struct smp_rank {
    const smp_job *job;        /* resolved */
    const smp_program *program;
    smp_hyper hyper;
    const smp_init_rules *init_rules; /* NULL: the family's values */
    smp_rows rows;             /* of the step that runs */
    uint32_t rank, tensor, tensor_rank, data_rank, data_ranks;
    uint32_t expert, expert_rank; /* ranks that split the experts, and which this one is */
    uint32_t copies;           /* ranks that hold the same gradient after its reduction,
                                  tensor ranks apart */
    bool sequence;             /* sequence parallel, and tensor > 1 */
} smp_rank;

/* Measured times of a task, by a clock of the device. */
typedef struct smp_span { int64_t start_ns, end_ns; } smp_span;

typedef struct smp_launch {
    const smp_task *task;
    const smp_rank *rank;      /* as it is in this step; outlives the task */
    const smp_block *block;    /* of the instance's layer */
    uint32_t layer, micro_batch;
    uint64_t step;             /* running number of the step: random numbers */
    void *at[SMP_MAX_OPERANDS]; /* the operands of SMP_OP_LIST, in order */
    uint64_t bytes[SMP_MAX_OPERANDS];
    uint32_t n_operand;
    const int32_t *host[2];    /* INPUT: ids and targets */
    uint64_t host_bytes;       /* of each */
    smp_span *span;            /* NULL: not measured */
} smp_launch;

typedef struct smp_event { uint64_t position; uint8_t stream; } smp_event;

typedef struct smp_device smp_device;
/* A function of the host as an item of a stream: collectives of host communicators. */
typedef smp_status (*smp_host_call)(void *context, const smp_launch *launch,
                                    smp_errors *errors);

typedef struct smp_device_options {
    bool async;                /* streams run beside each other */
    uint32_t threads;          /* of the compute stream, 0: one for each core of the host */
} smp_device_options;

typedef struct smp_device_ops {
    const char *name;
    /* required */
    smp_status (*open)(const smp_rank *rank, const smp_device_options *options,
                       smp_errors *errors, smp_device **device_p);
    void (*close)(smp_device *device); /* NULL is fine; frees what alloc gave */
    smp_status (*alloc)(smp_device *device, smp_space space, uint64_t bytes,
                        smp_errors *errors, void **address_p);
    void (*copy)(smp_device *device, smp_stream stream, void *to, const void *from,
                 uint64_t bytes);
    void (*launch)(smp_device *device, smp_stream stream, const smp_launch *launch);
    void (*call)(smp_device *device, smp_stream stream, smp_host_call function, void *context,
                 const smp_launch *launch);
    void (*record)(smp_device *device, smp_stream stream, smp_event *event_p);
    void (*wait)(smp_device *device, smp_stream stream, smp_event event);
    /* The host waits until an event has come.  After a failure it comes as well: what is
     * issued still passes, and does nothing. */
    void (*await)(smp_device *device, smp_event event);
    /* Until all streams are empty; the first failure since the last sync. */
    smp_status (*sync)(smp_device *device, smp_errors *errors);
    /* optional: NULL means that every operation and dtype runs */
    bool (*supports)(const smp_device *device, const smp_task *task);
    /* whether tasks run after they were issued, beside the host; NULL: they do not */
    bool (*runs_apart)(const smp_device *device);
    /* FLOP/s of a large product, measured now; NULL: unknown */
    double (*peak)(smp_device *device);
} smp_device_ops;

extern const smp_device_ops smp_device_cpu;

/* Scalars of the step on the device, in the program's buffer "scalars".  The first four are
 * sums, over micro-batches and then over all ranks; the others are state, 64 bytes in. */
enum {
    SMP_SUM_SQUARES, SMP_SUM_OVERFLOW, SMP_SUM_LOSS,
    SMP_SUM_ROWS,              /* times that more rows came to an expert rank than fit */
    SMP_SUMS,
    SMP_SCALAR_FACTOR = 0,     /* of gradients in the update: clipping over loss scale */
    SMP_SCALAR_SKIP,           /* 1: the step overflowed, nothing is updated */
    SMP_SCALAR_LR,
    SMP_SCALAR_LOSS_SCALE,
    SMP_SCALAR_GROWTH,         /* steps without overflow since the scale last changed */
    SMP_SCALAR_STEPS,          /* updates done; exact to 2^24 */
    SMP_SCALAR_LOSS,           /* mean of the global batch */
    SMP_SCALAR_NORM,           /* of the gradient before clipping */
    SMP_SCALAR_BIAS1, SMP_SCALAR_BIAS2, /* 1 - beta^steps of Adam */
    SMP_SCALAR_ROWS,           /* the step's SMP_SUM_ROWS; above 0: nothing is updated */
    SMP_SCALAR_SHIFT,          /* SMP's rule: overflows that do not halve the scale yet */
    SMP_SCALAR_HALTED,         /* 1: the loss was not finite, here or before: no update since */
    SMP_SCALARS = 16,
    SMP_SCALARS_OFFSET_BYTES = 64
};

#endif
