/* SPDX-License-Identifier: Apache-2.0 */
/* A loop on several threads: parallel.h. */
#include "config.h"

#include "base/host.h"
#include "base/parallel.h"

#include <pthread.h>
#include <stdatomic.h>

enum { MOST_THREADS = 64 };

typedef struct loop {
    void (*work)(void *context, uint32_t i);
    void *context;
    uint32_t n;
    _Atomic uint32_t next;
} loop;

uint32_t smp_processors(void)
{
    const uint32_t n = smp_host_processors();
    return n > MOST_THREADS ? MOST_THREADS : n;
}

static void *run(void *loop_)
{
    loop *l = loop_;
    for (;;) {
        const uint32_t i = atomic_fetch_add_explicit(&l->next, 1, memory_order_relaxed);
        if (i >= l->n) {
            return NULL;
        }
        l->work(l->context, i);
    }
}

void smp_parallel(uint32_t n_thread, uint32_t n, void (*work)(void *context, uint32_t i),
                  void *context)
{
    pthread_t threads[MOST_THREADS];
    loop l = {.work = work, .context = context, .n = n};
    const uint32_t wanted = n_thread < n ? n_thread : n;
    uint32_t begun = 0;
    while (begun + 1 < wanted && begun < MOST_THREADS &&
           pthread_create(&threads[begun], NULL, run, &l) == 0) {
        begun++;
    }
    (void)run(&l);
    for (uint32_t t = 0; t < begun; t++) {
        (void)pthread_join(threads[t], NULL);
    }
}
