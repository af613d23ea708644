/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of samples, and which rank takes which: what torch's DistributedSampler does.
 *
 * In an epoch rank r of R takes places r, r + R, ... of an order of all samples.  The order is
 * a permutation that follows from seed + epoch, or that of the samples.  Without drop_last the
 * order starts over to fill the last round, so that all ranks take ceil(n / R); with it they
 * take floor(n / R).  No array is held and there is no state: any place can be asked for.
 */
#ifndef SMP_DATA_SAMPLER_H
#define SMP_DATA_SAMPLER_H

#include "smp.h"

typedef struct smp_sampler {
    uint64_t n;                /* samples, at least 1; with drop_last at least `ranks` */
    uint32_t ranks;
    uint64_t seed;
    bool shuffle, drop_last;
} smp_sampler;

uint64_t smp_sampler_per_epoch(const smp_sampler *sampler); /* samples of each rank */
/* The sample at place `at` of a rank, counted over epochs. */
uint64_t smp_sampler_at(const smp_sampler *sampler, uint32_t rank, uint64_t at);
/* Where i < n goes in a permutation of 0 .. n - 1 that follows from the key. */
uint64_t smp_permute(uint64_t key, uint64_t n, uint64_t i);

#endif
