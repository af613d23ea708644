/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chrome trace JSON ("Trace Event Format"), which Perfetto opens: a process, its streams as
 * threads, a complete event per task.  Predicted and measured steps are written by the same
 * functions, so that both open side by side with the same names.
 */
#ifndef SMP_STEP_TRACE_H
#define SMP_STEP_TRACE_H

#include "base/text.h"
#include "step/program.h"

typedef struct smp_trace {
    FILE *stream;
    uint64_t n_event;
} smp_trace;

/* The first members of a trace's head: the job.  The caller adds its own and ends the object;
 * then smp_trace_open takes it. */
void smp_trace_job(smp_json_out *head, const smp_job *job);
void smp_trace_open(smp_trace *trace, FILE *stream, smp_json_out *head); /* frees the head */
void smp_trace_close(smp_trace *trace);

/* Number of process `i` from 0 in the file. */
uint32_t smp_trace_process(uint32_t i);
/* Names process `i` and the streams that its program uses. */
void smp_trace_name(smp_trace *trace, uint32_t i, const smp_program *program,
                    const char *name);
/* Task number `task` of the instance's segment, in process `i`. */
void smp_trace_task(smp_trace *trace, uint32_t i, const smp_program *program,
                    const smp_instance *instance, uint32_t task, int64_t start_ps,
                    int64_t end_ps);
/* Starts an event of another kind: `{"name":"NAME","ph":"C","pid":I,"ts":T,"args":{`. */
void smp_trace_counter(smp_trace *trace, uint32_t i, const char *name, int64_t time_ps);

#endif
