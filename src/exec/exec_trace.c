/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measured times as Chrome trace JSON (step/trace.h), as smp-sim --trace writes predicted ones:
 * a process for each rank, from the start of the first task.
 */
#include "config.h"

#include "exec/exec.h"

#include "mesh/settings.h"
#include "step/trace.h"

/* From the first task of any rank. */
static int64_t first_start(smp_runner *const *runners, uint32_t n)
{
    int64_t first = INT64_MAX;

    for (uint32_t r = 0; r < n; r++) {
        for (uint64_t i = 0; i < runners[r]->n_record; i++) {
            int64_t start = runners[r]->spans[i].start_ns;

            first = start < first ? start : first;
        }
    }
    return first;
}

static void put_tasks(smp_trace *trace, uint32_t process, const smp_runner *r, int64_t zero_ns)
{
    const smp_program *p = r->rank.program;

    for (uint32_t i = 0; i < p->n_instance; i++) {
        const smp_segment *segment = &p->segments[p->order[i].segment];

        for (uint32_t k = 0; k < segment->n_task; k++) {
            const smp_span *span = &r->spans[r->record0[i] + k];

            smp_trace_task(trace, process, p, &p->order[i], k,
                           (span->start_ns - zero_ns) * 1000, (span->end_ns - zero_ns) * 1000);
        }
    }
}

smp_status smp_exec_trace(smp_runner *const *runners, uint32_t n, const char *path,
                          smp_errors *errors)
{
    const smp_job *job = runners[0]->rank.job;
    int64_t zero_ns = first_start(runners, n);
    smp_json_out head = { 0 };
    smp_trace trace;
    smp_file *file = NULL;
    smp_status status = smp_file_create(path, errors, &file);

    if (status != SMP_OK) {
        return status;
    }
    smp_out_object(&head, NULL);
    smp_trace_job(&head, job);
    smp_out_u64(&head, "arena_bytes", runners[0]->rank.program->arena_bytes);
    smp_out_settings(&head, "settings", &job->settings);
    smp_out_end_object(&head);
    smp_trace_open(&trace, smp_file_stream(file), &head);
    for (uint32_t r = 0; r < n; r++) {
        char name[32];

        (void)snprintf(name, sizeof name, "rank %u", runners[r]->rank.rank);
        smp_trace_name(&trace, r, runners[r]->rank.program, name);
        put_tasks(&trace, r, runners[r], zero_ns);
    }
    smp_trace_close(&trace);
    return smp_file_commit(file, errors);
}
