/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that share loops.
 *
 * A build whose matrix product is its own is for ThreadSanitizer, and has no pool: its lock
 * would order streams that nothing else orders.
 */
#include "config.h"

#include "exec/pool.h"
#include "exec/threads.h"

#include "base/arena.h"

#include <semaphore.h>
#include <stdbool.h>
#include <stdlib.h>

typedef struct worker {
    smp_pool *pool;
    pthread_t thread;
    sem_t go;
    uint64_t first, end;
} worker;

struct smp_pool {
    pthread_mutex_t busy;
    sem_t done;
    worker *workers;
    uint32_t n;            /* workers that run, besides the caller */
    smp_loop *run;         /* NULL: the end */
    void *context;
};

static void wait_for(sem_t *semaphore)
{
    while (sem_wait(semaphore) != 0) { /* interrupted */
    }
}

static void *worker_main(void *argument)
{
    worker *w = argument;

    for (;;) {
        wait_for(&w->go);
        if (!w->pool->run) {
            return NULL;
        }
        w->pool->run(w->pool->context, w->first, w->end);
        (void)sem_post(&w->pool->done);
    }
}

static bool start_worker(smp_pool *pool, worker *w)
{
    w->pool = pool;
    if (sem_init(&w->go, 0, 0) != 0) {
        return false;
    }
    if (smp_thread_create(&w->thread, worker_main, w) != 0) {
        (void)sem_destroy(&w->go);
        return false;
    }
    return true;
}

smp_pool *smp_pool_create(uint32_t threads)
{
    smp_pool *pool;

#ifdef SMP_PLAIN_BLAS
    threads = 1;
#endif
    if (threads < 2) {
        return NULL;
    }
    pool = smp_heap_alloc(1, sizeof *pool);
    if (sem_init(&pool->done, 0, 0) != 0) {
        free(pool);
        return NULL;
    }
    (void)pthread_mutex_init(&pool->busy, NULL);
    pool->workers = smp_heap_alloc(threads - 1, sizeof *pool->workers);
    while (pool->n < threads - 1 && start_worker(pool, &pool->workers[pool->n])) {
        pool->n++;
    }
    return pool;
}

void smp_pool_destroy(smp_pool *pool)
{
    if (!pool) {
        return;
    }
    pool->run = NULL;
    for (uint32_t i = 0; i < pool->n; i++) {
        (void)sem_post(&pool->workers[i].go);
        (void)pthread_join(pool->workers[i].thread, NULL);
        (void)sem_destroy(&pool->workers[i].go);
    }
    (void)pthread_mutex_destroy(&pool->busy);
    (void)sem_destroy(&pool->done);
    free(pool->workers);
    free(pool);
}

uint32_t smp_pool_threads(const smp_pool *pool)
{
    return pool ? pool->n + 1 : 1;
}

void smp_pool_run(smp_pool *pool, uint64_t n, uint64_t grain, smp_loop *run, void *context)
{
    uint64_t parts = n / (grain > 0 ? grain : 1), each;
    uint32_t started = 0;

    parts = pool && parts > pool->n + 1u ? pool->n + 1u : parts;
    if (!pool || parts < 2 || pthread_mutex_trylock(&pool->busy) != 0) {
        run(context, 0, n);
        return;
    }
    each = n / parts + (n % parts != 0);
    pool->run = run;
    pool->context = context;
    for (uint64_t first = each; first < n; first += each) {
        worker *w = &pool->workers[started++];

        w->first = first;
        w->end = first + each < n ? first + each : n;
        (void)sem_post(&w->go);
    }
    run(context, 0, each);
    for (uint32_t i = 0; i < started; i++) {
        wait_for(&pool->done);
    }
    (void)pthread_mutex_unlock(&pool->busy);
}
