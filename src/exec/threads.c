/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making threads.
 */
#include "config.h"

#include "exec/threads.h"

#include <signal.h>

int smp_thread_create(pthread_t *thread, void *(*run)(void *), void *argument)
{
    static const int own[] = { SIGBUS, SIGSEGV, SIGFPE, SIGILL };
    sigset_t others, before;
    int error;

    (void)sigfillset(&others);
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        (void)sigdelset(&others, own[i]); /* blocked, they would kill without a handler */
    }
    error = pthread_sigmask(SIG_SETMASK, &others, &before);
    if (error == 0) {
        error = pthread_create(thread, NULL, run, argument);
        (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    return error;
}
