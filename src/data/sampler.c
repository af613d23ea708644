/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Order of samples by a small block cipher.
 */
#include "config.h"

#include "data/sampler.h"

#include "base/numeric.h"

enum { ROUNDS = 8 };

/* A balanced Feistel network over the least even number of bits that hold n, applied again
 * until the result is below n, which visits every place once [Black and Rogaway 2002, cycle
 * walking].  The domain has less than 4 n places, so it takes less than four turns on average.
 * The round function is Philox. */
uint64_t smp_permute(uint64_t key, uint64_t n, uint64_t i)
{
    uint32_t half = 1;
    uint64_t mask;

    while (half < 32 && (UINT64_C(1) << (2 * half)) < n) {
        half++;
    }
    mask = (UINT64_C(1) << half) - 1;
    do {
        uint64_t left = i >> half, right = i & mask;

        for (uint64_t round = 0; round < ROUNDS; round++) {
            uint32_t u[4];
            uint64_t mixed;

            smp_random4(key, 0x73616d706c657200u + round, right, u);
            mixed = left ^ (u[0] & mask);
            left = right;
            right = mixed;
        }
        i = left << half | right;
    } while (i >= n);
    return i;
}

uint64_t smp_sampler_per_epoch(const smp_sampler *s)
{
    return s->drop_last ? s->n / s->ranks : smp_ceil_div(s->n, s->ranks);
}

uint64_t smp_sampler_at(const smp_sampler *s, uint32_t rank, uint64_t at)
{
    uint64_t each = smp_sampler_per_epoch(s), epoch = at / each;
    uint64_t place = (at % each * s->ranks + rank) % s->n;

    return s->shuffle ? smp_permute(s->seed + epoch, s->n, place) : place;
}
