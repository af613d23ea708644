/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an allocation of a given size may be: every buffer of the step, and what PyTorch
 * programs allocate beside it, described as a product: tokens x a width of the model x bytes,
 * or elements of a unit x bytes.
 */
#ifndef SMP_SIM_CANDIDATES_H
#define SMP_SIM_CANDIDATES_H

#include "smp.h"

enum { SMP_PRODUCT_BYTES = 160 };

/* A buffer or a case in words, with the bytes that a token of the micro-batch adds. */
typedef struct smp_product {
    char words[SMP_PRODUCT_BYTES];
    double token_bytes; /* 0: does not grow with tokens */
} smp_product;

/* Something whose size is held against the one asked for. */
typedef struct smp_candidate {
    char name[64];
    const char *kind;
    smp_product product;
    uint64_t bytes;
    bool pytorch; /* the step has none of this size, but training scripts do */
} smp_candidate;

typedef struct smp_candidates {
    smp_candidate *list; /* heap: the caller frees it */
    size_t n, capacity;
    uint64_t tokens;     /* of a micro-batch on a rank */
} smp_candidates;

void smp_candidates_make(const smp_job *job, const smp_step *step, smp_candidates *all);

#endif
