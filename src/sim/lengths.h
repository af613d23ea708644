/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/sim: sequences of varying length, and what an epoch over them takes.
 */
#ifndef SMP_SIM_LENGTHS_H
#define SMP_SIM_LENGTHS_H

#include "base/arena.h"
#include "smp.h"

/* How the sequences of a step are filled up. */
typedef enum smp_pad_kind {
    SMP_PAD_MAX_LENGTH, /* to the sequence length of the job */
    SMP_PAD_LONGEST,    /* to the longest of the step */
    SMP_PAD_BUCKET      /* to the longest of the step, then to a multiple of `bucket` */
} smp_pad_kind;
typedef struct smp_pad { smp_pad_kind kind; uint64_t bucket; const char *text; } smp_pad;
SMP_CHECK smp_status smp_pad_read(const char *text, smp_errors *errors, smp_pad *pad_p);
/* The length to which a step is filled up: at least `longest` and a multiple of `granule`,
 * at most `most`, which is itself one. */
uint64_t smp_pad_shape(const smp_pad *pad, uint64_t longest, uint64_t granule, uint64_t most);

typedef struct smp_lengths {
    uint32_t *list; /* in the order of the epoch, each 1 to `most` */
    uint64_t n;
    uint64_t cut;   /* that were longer */
    double sum;     /* of the list */
} smp_lengths;
/* From "lognormal:MEAN,SD" or "uniform:A,B" (`n` of them, drawn by seed and place), or from a
 * file with one whole number a line (`n` is 0, or how many of them to take). */
SMP_CHECK smp_status smp_lengths_read(const char *text, uint64_t n, uint64_t seed,
                                      uint64_t most, smp_arena *arena, smp_errors *errors,
                                      smp_lengths *lengths_p);
/* Whether the text names a distribution, not a file. */
bool smp_lengths_drawn(const char *text);

/* One policy over the epoch. */
typedef struct smp_epoch {
    smp_pad pad;
    uint64_t steps, shapes;
    uint64_t longest_shape;
    double tokens, computed_tokens; /* without and with filling */
    double compile_s, train_s;
    uint64_t peak_bytes;            /* of the longest shape */
    bool fits;                      /* every shape */
} smp_epoch;

#endif
