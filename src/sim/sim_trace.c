/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated step as Chrome trace JSON (step/trace.h): a process per class of ranks, a
 * thread per stream, live memory as counters.  Not the plots (plot.c).
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "mesh/settings.h"
#include "sim/sim.h"
#include "step/trace.h"

#include <inttypes.h>

typedef struct writer {
    smp_trace trace;
    const smp_simulation *simulation;
    uint32_t c;       /* class being written */
    bool kind_used[SMP_KINDS]; /* by device buffers of the class */
} writer;

static void put_process(writer *w)
{
    const smp_program *program = w->simulation->step->programs[w->c];
    char name[96];
    snprintf(name, sizeof name, "class %u: %u rank%s like rank %u", w->c, program->count,
             program->count == 1 ? "" : "s", program->representative);
    smp_trace_name(&w->trace, w->c, program, name);
}

static void put_tasks(writer *w)
{
    const smp_simulation *simulation = w->simulation;
    const smp_program *program = simulation->step->programs[w->c];
    for (uint32_t i = 0; i < program->n_instance; i++) {
        const smp_instance *instance = &program->order[i];
        const smp_segment *segment = &program->segments[instance->segment];
        const smp_record *records = &simulation->records[w->c][simulation->record0[w->c][i]];
        for (uint32_t t = 0; t < segment->n_task; t++) {
            smp_trace_task(&w->trace, w->c, program, instance, t, records[t].start_ps,
                           records[t].end_ps);
        }
    }
}

/* ------------------------------------------------------------------ memory */

static void find_kinds(writer *w)
{
    const smp_program *program = w->simulation->step->programs[w->c];
    for (uint32_t k = 0; k < SMP_KINDS; k++) {
        w->kind_used[k] = false;
    }
    for (uint32_t b = 0; b < program->n_buffer; b++) {
        if (program->buffers[b].space == SMP_SPACE_DEVICE) {
            w->kind_used[program->buffers[b].kind] = true;
        }
    }
}

/* Two counters, for a viewer draws a row for each name and value. */
static void put_point(void *context, const smp_live_point *point)
{
    writer *w = context;
    uint64_t total_bytes = 0;
    const char *comma = "";
    smp_trace_counter(&w->trace, w->c, "live bytes by kind", point->time_ps);
    for (uint32_t k = 0; k < SMP_KINDS; k++) {
        if (w->kind_used[k]) {
            fprintf(w->trace.stream, "%s\"%s\":%" PRIu64, comma,
                    smp_kind_name((smp_buffer_kind)k), point->kind_bytes[k]);
            comma = ",";
            total_bytes += point->kind_bytes[k];
        }
    }
    fputs("}}", w->trace.stream);
    smp_trace_counter(&w->trace, w->c, "live bytes", point->time_ps);
    fprintf(w->trace.stream, "\"device\":%" PRIu64 ",\"host\":%" PRIu64 "}}", total_bytes,
            point->host_bytes);
}

/* -------------------------------------------------------------------- file */

/* What was simulated. */
static void open_trace(writer *w, FILE *stream)
{
    smp_json_out head = {0};
    smp_out_object(&head, NULL);
    smp_trace_job(&head, w->simulation->job);
    smp_out_i64(&head, "step_ps", w->simulation->report.step_ps);
    smp_out_u64(&head, "live_bytes", w->simulation->report.memory.live_bytes);
    smp_out_u64(&head, "arena_bytes", w->simulation->report.memory.arena_bytes);
    smp_out_settings(&head, "settings", &w->simulation->job->settings);
    smp_out_end_object(&head);
    smp_trace_open(&w->trace, stream, &head);
}

smp_status smp_simulation_trace(const smp_simulation *simulation, const char *path,
                                smp_errors *errors)
{
    smp_file *file = NULL;
    const smp_status st = smp_file_create(path, errors, &file);
    if (st != SMP_OK) {
        return st;
    }
    writer w = {.simulation = simulation};
    open_trace(&w, smp_file_stream(file));
    for (w.c = 0; w.c < simulation->step->n_program; w.c++) {
        put_process(&w);
        put_tasks(&w);
        find_kinds(&w);
        smp_live_sweep(simulation, w.c, put_point, &w);
    }
    smp_trace_close(&w.trace);
    return smp_file_commit(file, errors);
}
