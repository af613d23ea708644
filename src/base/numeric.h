/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Integers that do not overflow silently, simulated time, counter-based random numbers.
 */
#ifndef SMP_BASE_NUMERIC_H
#define SMP_BASE_NUMERIC_H

#include "smp.h"

/* Saturating at UINT64_MAX: a size that saturates never fits, which is the right verdict. */
uint64_t smp_mul(uint64_t a, uint64_t b);
uint64_t smp_add(uint64_t a, uint64_t b);
static inline uint64_t smp_ceil_div(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }
static inline uint64_t smp_round_up(uint64_t a, uint64_t step)
{
    return smp_mul(smp_ceil_div(a, step), step);
}

/* Seconds to picoseconds, rounding half up; the only conversion.  Aborts on NaN and negative
 * values: a cost model that returns such a value is broken.  More than 106 days come of absurd
 * inputs only: they end the process with a message and the status of a wrong input. */
int64_t smp_ps_from_s(double seconds);
static inline double smp_s_from_ps(int64_t ps) { return (double)ps * 1e-12; }

/* Philox4x32-10 [Salmon et al. 2011]: four words from (seed, counter), no state. */
void smp_random4(uint64_t seed, uint64_t counter_high, uint64_t counter_low, uint32_t out[4]);

/* The same for counter_low, counter_low + 1, ... at once, n of them: four words each, in order;
 * several times as fast, since rounds of different counters do not wait for each other. */
void smp_random4_many(uint64_t seed, uint64_t counter_high, uint64_t counter_low, size_t n,
                      uint32_t *out);

/* Stable 64-bit hash of bytes (FNV-1a with a final mix), for hash-consing. */
uint64_t smp_hash(const void *bytes, size_t n, uint64_t seed);

#endif
