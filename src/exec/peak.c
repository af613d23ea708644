/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rate of a large product on this host, as it is now: what utilisation is measured by.
 */
#include "config.h"

#include "exec/clock.h"
#include "exec/cpu.h"

#include "base/arena.h"

#include <stdlib.h>

enum { SIDE = 768, REPEATS = 8 };

/* The best of a few, after one that warms up; of fewer where they take longer than a second, as
 * without a BLAS library or under an emulator. */
double smp_cpu_peak(smp_pool *pool)
{
    float *a = smp_heap_alloc((size_t)3 * SIDE * SIDE, sizeof *a), *b = a + SIDE * SIDE;
    const smp_matrix x = { a, SMP_F32, SIDE }, y = { b, SMP_F32, SIDE };
    double best = 0, begin = smp_now_s();

    for (size_t i = 0; i < (size_t)2 * SIDE * SIDE; i++) {
        a[i] = (float)(i % 7) * 0.1f;
    }
    for (int i = 0; i <= REPEATS && (i < 2 || smp_now_s() - begin < 1); i++) {
        double start = smp_now_s(), rate;

        smp_product(pool, false, true, SIDE, SIDE, SIDE, 1.0f, x, y, false, b + SIDE * SIDE,
                    SMP_F32, SIDE);
        rate = 2.0 * SIDE * SIDE * SIDE / (smp_now_s() - start);
        best = i > 0 && rate > best ? rate : best;
    }
    free(a);
    return best;
}
