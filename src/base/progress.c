/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The progress line: a carriage return and a rewrite, at most ten times a second.
 */
#include "config.h"

#include "smp.h"

#include "base/arena.h"

#include <inttypes.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static const double quiet_s = 2.0;
static const double interval_s = 0.1;

struct smp_progress {
    FILE *stream;
    char *what;
    double start_s, printed_s;
    bool terminal, shown;
};

static double now_s(void)
{
    struct timespec now;

    if (clock_gettime(CLOCK_MONOTONIC, &now) != 0) {
        return 0.0; /* no clock: the line never shows */
    }
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

smp_progress *smp_progress_create(FILE *stream, const char *what)
{
    smp_progress *progress = smp_heap_alloc(1, sizeof *progress);
    int fd = fileno(stream);

    progress->stream = stream;
    progress->what = smp_heap_alloc(64, 1);
    (void)snprintf(progress->what, 64, "%s", what);
    progress->start_s = now_s();
    progress->terminal = fd >= 0 && isatty(fd) == 1;
    return progress;
}

void smp_progress_update(void *progress, uint64_t done, uint64_t total)
{
    smp_progress *p = progress;
    double time_s;

    if (!p->terminal) {
        return;
    }
    time_s = now_s();
    if (time_s - p->start_s < quiet_s || time_s - p->printed_s < interval_s) {
        return;
    }
    fprintf(p->stream, "\r%s: %" PRIu64 " of %" PRIu64 " (%.0f %%), %.0f s\033[K", p->what,
            done, total, total ? 100.0 * (double)done / (double)total : 100.0,
            time_s - p->start_s);
    (void)fflush(p->stream);
    p->printed_s = time_s;
    p->shown = true;
}

void smp_progress_destroy(smp_progress *progress)
{
    if (progress == NULL) {
        return;
    }
    if (progress->shown) {
        fprintf(progress->stream, "\r\033[K");
        (void)fflush(progress->stream);
    }
    free(progress->what);
    free(progress);
}
