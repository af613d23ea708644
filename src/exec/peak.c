/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rate of a large product on this host, as it is now: what utilisation is measured by.
 */
#include "config.h"

#include "exec/cpu.h"

#include "base/arena.h"

#include <stdlib.h>
#include <time.h>

enum { SIDE = 768, REPEATS = 8 };

static double seconds_now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The best of a few, after one that warms up; of fewer where they take longer than a second, as
 * without a BLAS library or under an emulator. */
double smp_cpu_peak(smp_pool *pool)
{
    float *a = smp_heap_alloc((size_t)3 * SIDE * SIDE, sizeof *a), *b = a + SIDE * SIDE;
    const smp_matrix x = { a, SMP_F32, SIDE }, y = { b, SMP_F32, SIDE };
    double best = 0, begin = seconds_now();

    for (size_t i = 0; i < (size_t)2 * SIDE * SIDE; i++) {
        a[i] = (float)(i % 7) * 0.1f;
    }
    for (int i = 0; i <= REPEATS && (i < 2 || seconds_now() - begin < 1); i++) {
        double start = seconds_now(), rate;

        smp_product(pool, false, true, SIDE, SIDE, SIDE, 1.0f, x, y, false, b + SIDE * SIDE,
                    SMP_F32, SIDE);
        rate = 2.0 * SIDE * SIDE * SIDE / (seconds_now() - start);
        best = i > 0 && rate > best ? rate : best;
    }
    free(a);
    return best;
}
