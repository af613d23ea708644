/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/sim: how long tasks of single ranks take beside their cost.
 *
 * A duration is cost x lasting factor of the rank x a random factor of the task.  Random
 * factors are lognormal with mean 1: positive, and skewed towards late, as times of kernels
 * are.  They come from Philox by (seed, rank, instance, task), so neither the order of
 * evaluation nor the number of ranks evaluated together changes them.
 */
#ifndef SMP_SIM_NOISE_H
#define SMP_SIM_NOISE_H

#include "base/arena.h"
#include "base/numeric.h"

/* The quantile function of the factor, tabulated over the bits of a random word: the leading
 * one of the distance to the nearer end selects an octave, the five bits behind it a bin, the
 * rest interpolates.  So both tails are as exact as the middle, down to one in 2^32. */
enum { SMP_NOISE_BITS = 5, SMP_NOISE_BINS = 1 << SMP_NOISE_BITS, SMP_NOISE_OCTAVES = 31 };
typedef struct smp_noise_table {
    double factor[2][SMP_NOISE_OCTAVES * SMP_NOISE_BINS + 1]; /* short, long durations */
} smp_noise_table;

/* Standard deviation over mean, above 0 and at most SMP_NOISE_MOST_CV. */
#define SMP_NOISE_MOST_CV 10.0
void smp_noise_fill(smp_noise_table *table, double cv);

/* The factor for a random word.  Continuous and increasing in it. */
static inline double smp_noise_factor(const smp_noise_table *table, uint32_t word)
{
    const uint32_t side = word >> 31;
    const uint32_t x = (side ? ~word : word) | 1u; /* the distance to the end, 31 bits */
    const uint32_t octave = 31u - (uint32_t)__builtin_clz(x);
    /* the bits behind the leading one, at the top of a word */
    const uint32_t behind = octave > 0 ? x << (32u - octave) : 0;
    const double *bin =
        &table->factor[side][octave * SMP_NOISE_BINS + (behind >> (32 - SMP_NOISE_BITS))];
    const double along = (double)(behind << SMP_NOISE_BITS) * 0x1p-32;
    return bin[0] + (bin[1] - bin[0]) * along;
}

/* What a run of ranks apart adds to costs.  NULL members: nothing of this kind. */
typedef struct smp_noise {
    const smp_noise_table *kernel;     /* kernels and copies, each rank by itself */
    const smp_noise_table *collective; /* one factor for all members */
    const double *rank_factor;         /* by rank, on its kernels and copies */
    const double *link_factor;         /* by rank, on collectives that it takes part in: the
                                          largest of the members counts */
} smp_noise;

#endif
