/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of the executor: ranks and streams.  Only creation; locks are pthread's own.
 */
#ifndef SMP_EXEC_THREADS_H
#define SMP_EXEC_THREADS_H

#include <pthread.h>

/* pthread_create with signals blocked in the thread, so that they reach the main one, but for
 * those that it causes itself by what it reads or computes; returns an error number. */
int smp_thread_create(pthread_t *thread, void *(*run)(void *), void *argument);

#endif
