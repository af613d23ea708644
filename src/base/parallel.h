/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A loop whose rounds run on several threads.  What a round computes must not depend on other
 * rounds; then neither does the result on the number of threads.
 */
#ifndef SMP_BASE_PARALLEL_H
#define SMP_BASE_PARALLEL_H

#include "smp.h"

/* Processors that are there; at least 1. */
uint32_t smp_processors(void);
/* Calls work(context, i) for i = 0 .. n - 1 on at most n_thread threads, of which the caller's
 * is one, and returns when all are done.  Where the system gives fewer threads, those do it. */
void smp_parallel(uint32_t n_thread, uint32_t n, void (*work)(void *context, uint32_t i),
                  void *context);

#endif
