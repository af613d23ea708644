/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated step as Chrome trace JSON ("Trace Event Format"), which Perfetto opens: a
 * process per class of ranks, a thread per stream, a complete event per task, live memory as
 * counters.  Not the plots (plot.c).
 *
 * ts and dur are in microseconds by the format; six decimals hold picoseconds exactly.
 * Events go to the file one by one, each on its line.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "mesh/settings.h"
#include "sim/sim.h"

#include <inttypes.h>

typedef struct writer {
    FILE *stream;
    const smp_simulation *simulation;
    uint32_t c;       /* class being written */
    uint64_t n_event;
    bool kind_used[SMP_KINDS]; /* by device buffers of the class */
} writer;

/* Process 0 is the idle process to Perfetto, and a thread is found by its number alone, so
 * both start at 1 and no two threads share a number. */
static uint32_t process_of(uint32_t c)
{
    return c + 1;
}

static uint32_t thread_of(uint32_t c, uint32_t stream)
{
    enum { STEP = 100 };
    return process_of(c) * STEP + stream;
}

static void put_us(FILE *stream, const char *key, int64_t ps)
{
    enum { PS_PER_US = 1000000 };
    fprintf(stream, "\"%s\":%" PRId64 ".%06" PRId64, key, ps / PS_PER_US, ps % PS_PER_US);
}

static void begin_event(writer *w)
{
    fputs(w->n_event++ ? ",\n" : "\n", w->stream);
}

/* Names are the program's own and need no escaping; those of the user are in the head. */
static void put_name(writer *w, const char *kind, uint32_t thread, const char *name)
{
    begin_event(w);
    fprintf(w->stream, "{\"name\":\"%s\",\"ph\":\"M\",\"pid\":%u,\"tid\":%u,"
                       "\"args\":{\"name\":\"%s\"}}",
            kind, process_of(w->c), thread, name);
}

static void put_place(writer *w, const char *kind, uint32_t thread, uint32_t place)
{
    begin_event(w);
    fprintf(w->stream, "{\"name\":\"%s\",\"ph\":\"M\",\"pid\":%u,\"tid\":%u,"
                       "\"args\":{\"sort_index\":%u}}",
            kind, process_of(w->c), thread, place);
}

static void put_process(writer *w)
{
    const smp_program *program = w->simulation->step->programs[w->c];
    char name[96];
    bool used[SMP_STREAMS] = {false};
    snprintf(name, sizeof name, "class %u: %u rank%s like rank %u", w->c, program->count,
             program->count == 1 ? "" : "s", program->representative);
    put_name(w, "process_name", process_of(w->c), name);
    put_place(w, "process_sort_index", process_of(w->c), w->c);
    for (uint32_t t = 0; t < program->n_task; t++) {
        used[program->tasks[t].stream] = true;
    }
    for (uint32_t s = 0; s < SMP_STREAMS; s++) {
        if (used[s]) {
            put_name(w, "thread_name", thread_of(w->c, s), smp_stream_name((smp_stream)s));
            put_place(w, "thread_sort_index", thread_of(w->c, s), s);
        }
    }
}

/* ------------------------------------------------------------------- tasks */

static const char *class_name(smp_op_class klass)
{
    switch (klass) {
    case SMP_CLASS_MATMUL: return "matmul";
    case SMP_CLASS_ATTENTION: return "attention";
    case SMP_CLASS_MEMORY: return "memory";
    case SMP_CLASS_COLLECTIVE: return "collective";
    case SMP_CLASS_HOST_COPY:
        break;
    }
    return "host copy";
}

static const char *phase_name(smp_phase phase)
{
    switch (phase) {
    case SMP_PHASE_FORWARD: return "forward";
    case SMP_PHASE_RECOMPUTE: return "recompute";
    case SMP_PHASE_BACKWARD: return "backward";
    case SMP_PHASE_UPDATE:
    case SMP_PHASES:
        break;
    }
    return "update";
}

static void put_args(FILE *stream, const smp_program *program, const smp_task *task,
                     const smp_instance *instance)
{
    int n_dim = SMP_MAX_DIMS;
    while (n_dim > 0 && task->dims[n_dim - 1] == 0) {
        n_dim--;
    }
    fprintf(stream, "\"args\":{\"op\":\"%s\",\"layer\":%u,\"micro_batch\":%u,\"phase\":\"%s\","
                    "\"dtype\":\"%s\",\"dims\":[",
            smp_op_info_of((smp_op)task->op)->name, (unsigned)instance->layer,
            instance->micro_batch, phase_name((smp_phase)task->phase),
            smp_dtype_name((smp_dtype)task->dtype));
    for (int i = 0; i < n_dim; i++) {
        fprintf(stream, "%s%" PRIu64, i ? "," : "", task->dims[i]);
    }
    fprintf(stream, "],\"flops\":%" PRIu64 ",\"bytes\":%" PRIu64, smp_task_flops(task),
            smp_task_bytes(task));
    if (task->comm != SMP_NO_COMM) {
        fprintf(stream, ",\"communicator\":\"%s\",\"ranks\":%u",
                program->comms[task->comm].name, program->comms[task->comm].ranks);
    }
    fputs("}}", stream);
}

static void put_task(writer *w, const smp_segment *segment, const smp_task *task,
                     const smp_instance *instance, const smp_record *record)
{
    begin_event(w);
    fprintf(w->stream, "{\"name\":\"%s.%s\",\"cat\":\"%s\",\"ph\":\"X\",", segment->name,
            task->name, class_name(smp_op_info_of((smp_op)task->op)->klass));
    put_us(w->stream, "ts", record->start_ps);
    fputc(',', w->stream);
    put_us(w->stream, "dur", record->end_ps - record->start_ps);
    fprintf(w->stream, ",\"pid\":%u,\"tid\":%u,", process_of(w->c),
            thread_of(w->c, task->stream));
    put_args(w->stream, w->simulation->step->programs[w->c], task, instance);
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
            put_task(w, segment, &program->tasks[segment->task0 + t], instance, &records[t]);
        }
    }
}

/* ------------------------------------------------------------------ memory */

static void begin_counter(writer *w, const char *name, int64_t time_ps)
{
    begin_event(w);
    fprintf(w->stream, "{\"name\":\"%s\",\"ph\":\"C\",\"pid\":%u,", name, process_of(w->c));
    put_us(w->stream, "ts", time_ps);
    fputs(",\"args\":{", w->stream);
}

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
    begin_counter(w, "live bytes by kind", point->time_ps);
    for (uint32_t k = 0; k < SMP_KINDS; k++) {
        if (w->kind_used[k]) {
            fprintf(w->stream, "%s\"%s\":%" PRIu64, comma, smp_kind_name((smp_buffer_kind)k),
                    point->kind_bytes[k]);
            comma = ",";
            total_bytes += point->kind_bytes[k];
        }
    }
    fputs("}}", w->stream);
    begin_counter(w, "live bytes", point->time_ps);
    fprintf(w->stream, "\"device\":%" PRIu64 ",\"host\":%" PRIu64 "}}", total_bytes,
            point->host_bytes);
}

/* -------------------------------------------------------------------- file */

/* What was simulated; names of the user are escaped here. */
static void put_head(writer *w)
{
    const smp_job *job = w->simulation->job;
    smp_json_out out = {0};
    smp_out_object(&out, NULL);
    smp_out_string(&out, "model", smp_model_name(job->model));
    smp_out_string(&out, "cluster", smp_cluster_name(job->cluster));
    smp_out_u64(&out, "gpus", job->world);
    smp_out_u64(&out, "seq_len", job->batch.seq_len);
    smp_out_u64(&out, "global_batch", job->batch.global_batch);
    smp_out_i64(&out, "step_ps", w->simulation->report.step_ps);
    smp_out_u64(&out, "live_bytes", w->simulation->report.memory.live_bytes);
    smp_out_u64(&out, "arena_bytes", w->simulation->report.memory.arena_bytes);
    smp_out_settings(&out, "settings", &job->settings);
    smp_out_end_object(&out);
    fprintf(w->stream, "{\"displayTimeUnit\":\"ns\",\"otherData\":%s,\"traceEvents\":[",
            out.text.data);
    smp_text_free(&out.text);
}

smp_status smp_simulation_trace(const smp_simulation *simulation, const char *path,
                                smp_errors *errors)
{
    smp_file *file = NULL;
    const smp_status st = smp_file_create(path, errors, &file);
    if (st != SMP_OK) {
        return st;
    }
    writer w = {.stream = smp_file_stream(file), .simulation = simulation};
    put_head(&w);
    for (w.c = 0; w.c < simulation->step->n_program; w.c++) {
        put_process(&w);
        put_tasks(&w);
        find_kinds(&w);
        smp_live_sweep(simulation, w.c, put_point, &w);
    }
    fputs("\n]}\n", w.stream);
    return smp_file_commit(file, errors);
}
