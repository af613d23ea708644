/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that share the loops of one device's kernels.
 *
 * A loop is cut in contiguous parts that write different places, so results do not depend on
 * the number of threads.  Loops of streams that run beside each other do not share: the second
 * runs on its own thread.
 */
#ifndef SMP_EXEC_POOL_H
#define SMP_EXEC_POOL_H

#include <stdint.h>

typedef struct smp_pool smp_pool;
typedef void smp_loop(void *context, uint64_t first, uint64_t end);

/* NULL where there is nothing to share: one thread, or none can be made. */
smp_pool *smp_pool_create(uint32_t threads);
void smp_pool_destroy(smp_pool *pool); /* NULL is fine */
uint32_t smp_pool_threads(const smp_pool *pool_or_null); /* the caller's own included */
/* run(context, first, end) over all of 0 .. n; parts have at least `grain` of it.  Without a
 * pool, one part. */
void smp_pool_run(smp_pool *pool_or_null, uint64_t n, uint64_t grain, smp_loop *run,
                  void *context);

#endif
