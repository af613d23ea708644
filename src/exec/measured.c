/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the time of a measured step went: one row for each stored task of a rank.
 */
#include "config.h"

#include "exec/exec.h"

#include <stdlib.h>

void smp_exec_measure(const smp_runner *r, smp_exec_measured *measured_p)
{
    const smp_program *p = r->rank.program;
    smp_exec_measured m = { .n_task = p->n_task };
    int64_t first = INT64_MAX, last = 0;

    m.seconds = smp_heap_alloc(p->n_task, sizeof *m.seconds);
    m.runs = smp_heap_alloc(p->n_task, sizeof *m.runs);
    for (uint32_t i = 0; i < p->n_instance; i++) {
        const smp_segment *segment = &p->segments[p->order[i].segment];

        for (uint32_t k = 0; k < segment->n_task; k++) {
            const smp_span *span = &r->spans[r->record0[i] + k];

            m.seconds[segment->task0 + k] += (double)(span->end_ns - span->start_ns) * 1e-9;
            m.runs[segment->task0 + k]++;
            first = span->start_ns < first ? span->start_ns : first;
            last = span->end_ns > last ? span->end_ns : last;
        }
    }
    m.step_seconds = (double)(last - first) * 1e-9;
    *measured_p = m;
}

void smp_exec_measured_free(smp_exec_measured *measured)
{
    free(measured->seconds);
    free(measured->runs);
    *measured = (smp_exec_measured){ 0 };
}
