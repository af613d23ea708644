/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saturating integers, picoseconds, Philox random numbers, hashing.
 */
#include "config.h"

#include "base/numeric.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

uint64_t smp_mul(uint64_t a, uint64_t b)
{
    return b != 0 && a > UINT64_MAX / b ? UINT64_MAX : a * b;
}

uint64_t smp_add(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

int64_t smp_ps_from_s(double seconds)
{
    double ps = floor(seconds * 1e12 + 0.5);

    if (!(seconds >= 0.0)) { /* also NaN; -0.0 is fine */
        fprintf(stderr, "smp: internal error: a cost of %g s is no time\n", seconds);
        abort();
    }
    if (!(ps < 9223372036854775808.0)) { /* 2^63 ps are 106 days */
        fprintf(stderr, "smp: one task would take %g s; times are counted up to 106 days: use "
                "a faster cluster, a shorter seq_len or a smaller batch\n", seconds);
        exit(SMP_INPUT);
    }
    return (int64_t)ps;
}

/* One round [Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", fig. 2 and
 * table 2]; the key is bumped by the Weyl constants between rounds. */
static void philox_round(uint32_t c[4], const uint32_t key[2])
{
    uint64_t p0 = (uint64_t)0xD2511F53u * c[0];
    uint64_t p1 = (uint64_t)0xCD9E8D57u * c[2];
    uint32_t next[4] = {(uint32_t)(p1 >> 32) ^ c[1] ^ key[0], (uint32_t)p1,
                        (uint32_t)(p0 >> 32) ^ c[3] ^ key[1], (uint32_t)p0};

    for (int i = 0; i < 4; i++) {
        c[i] = next[i];
    }
}

void smp_random4(uint64_t seed, uint64_t counter_high, uint64_t counter_low, uint32_t out[4])
{
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};

    out[0] = (uint32_t)counter_low;
    out[1] = (uint32_t)(counter_low >> 32);
    out[2] = (uint32_t)counter_high;
    out[3] = (uint32_t)(counter_high >> 32);
    for (int round = 0; round < 10; round++) {
        philox_round(out, key);
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
}

/* Eight counters side by side: the loops over lanes are what a compiler can pipeline or make
 * vector instructions of. */
enum { LANES = 8 };

static void philox_lanes(uint64_t seed, uint64_t high, uint64_t low, uint32_t *out)
{
    uint32_t c[4][LANES];
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};

    for (int i = 0; i < LANES; i++) {
        const uint64_t counter = low + (uint64_t)i;
        c[0][i] = (uint32_t)counter;
        c[1][i] = (uint32_t)(counter >> 32);
        c[2][i] = (uint32_t)high;
        c[3][i] = (uint32_t)(high >> 32);
    }
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < LANES; i++) {
            const uint64_t p0 = (uint64_t)0xD2511F53u * c[0][i];
            const uint64_t p1 = (uint64_t)0xCD9E8D57u * c[2][i];
            c[0][i] = (uint32_t)(p1 >> 32) ^ c[1][i] ^ key[0];
            c[1][i] = (uint32_t)p1;
            c[2][i] = (uint32_t)(p0 >> 32) ^ c[3][i] ^ key[1];
            c[3][i] = (uint32_t)p0;
        }
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
    for (int i = 0; i < LANES; i++) {
        for (int w = 0; w < 4; w++) {
            out[4 * i + w] = c[w][i];
        }
    }
}

void smp_random4_many(uint64_t seed, uint64_t counter_high, uint64_t counter_low, size_t n,
                      uint32_t *out)
{
    size_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        philox_lanes(seed, counter_high, counter_low + i, out + 4 * i);
    }
    for (; i < n; i++) {
        smp_random4(seed, counter_high, counter_low + i, out + 4 * i);
    }
}

uint64_t smp_hash(const void *bytes, size_t n, uint64_t seed)
{
    const unsigned char *byte = bytes;
    uint64_t hash = 0xCBF29CE484222325u ^ seed; /* FNV-1a, 64 bits */

    for (size_t i = 0; i < n; i++) {
        hash = (hash ^ byte[i]) * 0x100000001B3u;
    }
    /* The finalizer of MurmurHash3: the high bits of FNV-1a mix badly on short keys. */
    hash = (hash ^ (hash >> 33)) * 0xFF51AFD7ED558CCDu;
    hash = (hash ^ (hash >> 33)) * 0xC4CEB9FE1A85EC53u;
    return hash ^ (hash >> 33);
}
