/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The clock that steps and tasks are timed by.
 */
#ifndef SMP_EXEC_CLOCK_H
#define SMP_EXEC_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t smp_now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline double smp_now_s(void)
{
    return (double)smp_now_ns() * 1e-9;
}

#endif
