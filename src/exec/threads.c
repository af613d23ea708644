/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making threads.
 */
#include "config.h"

#include "exec/threads.h"

#include <signal.h>

int smp_thread_create(pthread_t *thread, void *(*run)(void *), void *argument)
{
    sigset_t all, before;
    int error;

    (void)sigfillset(&all);
    error = pthread_sigmask(SIG_SETMASK, &all, &before);
    if (error == 0) {
        error = pthread_create(thread, NULL, run, argument);
        (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    return error;
}
