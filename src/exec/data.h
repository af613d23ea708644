/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches of a rank: what it reads at each step, made ahead of time by threads.
 *
 * Every rank of a tensor group reads the same; ranks need not talk to each other to know the
 * shape of the global batch and how many targets count in it, since lengths are known before
 * tokens are read.
 */
#ifndef SMP_EXEC_DATA_H
#define SMP_EXEC_DATA_H

#include "data/sampler.h"
#include "data/samples.h"

typedef enum smp_pad {
    SMP_PAD_NONE,        /* samples are packed: all rows are full */
    SMP_PAD_MAX_LENGTH,  /* every row has seq tokens */
    SMP_PAD_LONGEST,     /* as many as the longest sample of the global batch */
    SMP_PAD_BUCKET       /* the same, rounded up to a multiple of `bucket` */
} smp_pad;

/* Where a rank is in the data; with the same file and options the batches that follow are the
 * same.  `seed` and `shuffle` tell the order, epoch and position the place in it. */
typedef struct smp_loader_state {
    uint64_t epoch, position;  /* position: samples of this rank taken in the epoch */
    uint64_t seed;
    bool shuffle;
} smp_loader_state;

typedef struct smp_loader_options {
    uint64_t rows;             /* of a rank and step */
    uint32_t data_rank, data_ranks;
    uint64_t vocab;
    bool drop_last;
    smp_pad pad;
    uint64_t bucket;           /* SMP_PAD_BUCKET */
    uint64_t multiple;         /* shapes shorter than seq are rounded up to it, at least 1 */
    uint32_t threads;          /* that read ahead; 0: batches are made when asked for */
    uint32_t kept;             /* earlier batches that stay valid beside the last; see next */
    smp_loader_state start;
} smp_loader_options;

/* Of one rank and step; [rows, seq] each. */
typedef struct smp_loaded {
    uint64_t seq;              /* the shape: at most that of the samples */
    int32_t *ids, *targets, *begins;
    bool plain;                /* every row is one document and all targets count */
    bool padded;               /* rows are one document each, and padding */
    double targets_counted;    /* in the global batch */
} smp_loaded;

typedef struct smp_loader smp_loader;
/* `samples` must outlive the loader.  With drop_last, fewer of them than data ranks fail. */
SMP_CHECK smp_status smp_loader_create(const smp_samples *samples,
                                       const smp_loader_options *options, smp_errors *errors,
                                       smp_loader **loader_p);
void smp_loader_destroy(smp_loader *loader); /* NULL is fine; waits for its threads */
/* The next batch; it is valid until the next call but `kept`. */
SMP_CHECK smp_status smp_loader_next(smp_loader *loader, smp_errors *errors,
                                     const smp_loaded **loaded_p);
/* Where the batch after those that were asked for begins, but for the last `unused`. */
smp_loader_state smp_loader_state_of(const smp_loader *loader, uint64_t unused);

#endif
