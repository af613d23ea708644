/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chrome trace JSON ("Trace Event Format"), which Perfetto and chrome://tracing open.
 *
 * A process per class of ranks, a thread per stream, a complete event ("X") per task, and
 * counters ("C") of live bytes by kind.  Times are microseconds with six decimals, that is,
 * picoseconds without rounding.  Events are written as they come: nothing grows with their
 * number.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "sim/sim.h"

#include "base/numeric.h"

#include <inttypes.h>
#include <string.h>

enum { PS_PER_US = 1000000 };

typedef struct tracer {
    const smp_simulation *simulation;
    FILE *stream;
    uint32_t c;
    bool first;
} tracer;

static void begin_event(tracer *t)
{
    fputs(t->first ? "\n" : ",\n", t->stream);
    t->first = false;
}

static void put_us(tracer *t, const char *key, int64_t time_ps)
{
    fprintf(t->stream, ",\"%s\":%" PRId64 ".%06" PRId64, key, time_ps / PS_PER_US,
            time_ps % PS_PER_US);
}

static void name_process(tracer *t)
{
    const smp_program *program = t->simulation->step->programs[t->c];
    begin_event(t);
    fprintf(t->stream,
            "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%u,\"args\":{\"name\":\"rank %u%s",
            t->c, program->representative, program->count > 1 ? " and " : "");
    if (program->count > 1) {
        fprintf(t->stream, "%u ranks like it", program->count - 1);
    }
    fputs("\"}}", t->stream);
    bool used[SMP_STREAMS] = {false};
    for (uint32_t i = 0; i < program->n_task; i++) {
        used[program->tasks[i].stream] = true;
    }
    for (uint32_t s = 0; s < SMP_STREAMS; s++) {
        if (!used[s]) {
            continue;
        }
        begin_event(t);
        fprintf(t->stream,
                "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%u,\"tid\":%u,\"args\":"
                "{\"name\":\"%s\"}}",
                t->c, s, smp_stream_name((smp_stream)s));
        begin_event(t);
        fprintf(t->stream,
                "{\"name\":\"thread_sort_index\",\"ph\":\"M\",\"pid\":%u,\"tid\":%u,\"args\":"
                "{\"sort_index\":%u}}",
                t->c, s, s);
    }
}

static const char *class_name(smp_op_class klass)
{
    static const char *const names[] = {
        [SMP_CLASS_MATMUL] = "matmul",         [SMP_CLASS_ATTENTION] = "attention",
        [SMP_CLASS_MEMORY] = "memory",         [SMP_CLASS_COLLECTIVE] = "collective",
        [SMP_CLASS_HOST_COPY] = "host_copy",
    };
    return names[klass];
}

static const char *phase_name(smp_phase phase)
{
    static const char *const names[SMP_PHASES] = {
        [SMP_PHASE_FORWARD] = "forward",   [SMP_PHASE_RECOMPUTE] = "recompute",
        [SMP_PHASE_BACKWARD] = "backward", [SMP_PHASE_UPDATE] = "update",
    };
    return names[phase];
}

/* What is the same for every run of a stored task. */
static void describe_task(const smp_program *program, const smp_task *task, smp_text *text)
{
    const smp_op_info *info = smp_op_info_of((smp_op)task->op);
    text->length = 0;
    smp_text_add(text, "\"op\":\"%s\",\"phase\":\"%s\",\"dtype\":\"%s\",\"dims\":[", info->name,
                 phase_name((smp_phase)task->phase), smp_dtype_name((smp_dtype)task->dtype));
    uint32_t n = SMP_MAX_DIMS;
    while (n > 1 && task->dims[n - 1] == 0) {
        n--;
    }
    for (uint32_t i = 0; i < n; i++) {
        smp_text_add(text, "%s%" PRIu64, i ? "," : "", task->dims[i]);
    }
    smp_text_add(text, "],\"bytes\":%" PRIu64 ",\"flops\":%" PRIu64, smp_task_bytes(task),
                 smp_task_flops(task));
    if (task->comm != SMP_NO_COMM) {
        smp_text_add(text, ",\"communicator\":\"%s\",\"ranks\":%u",
                     program->comms[task->comm].name, program->comms[task->comm].ranks);
    }
}

static void put_tasks(tracer *t)
{
    const smp_simulation *simulation = t->simulation;
    const smp_program *program = simulation->step->programs[t->c];
    smp_arena *arena = smp_arena_create();
    const char **stored = SMP_ARENA_ARRAY(arena, program->n_task, const char *);
    smp_text text = {0};
    for (uint32_t i = 0; i < program->n_task; i++) {
        describe_task(program, &program->tasks[i], &text);
        stored[i] = smp_arena_strdup(arena, text.data);
    }
    for (uint32_t i = 0; i < program->n_instance; i++) {
        const smp_instance *instance = &program->order[i];
        const smp_segment *segment = &program->segments[instance->segment];
        const smp_record *records = &simulation->records[t->c][simulation->record0[t->c][i]];
        for (uint32_t k = 0; k < segment->n_task; k++) {
            const smp_task *task = &program->tasks[segment->task0 + k];
            begin_event(t);
            fprintf(t->stream, "{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":%u,\"tid\":%u",
                    task->name, class_name(smp_op_info_of((smp_op)task->op)->klass), t->c,
                    (unsigned)task->stream);
            put_us(t, "ts", records[k].start_ps);
            put_us(t, "dur", records[k].end_ps - records[k].start_ps);
            fprintf(t->stream,
                    ",\"args\":{\"segment\":\"%s\",\"layer\":%u,\"micro_batch\":%u,%s}}",
                    segment->name, (unsigned)instance->layer, instance->micro_batch,
                    stored[segment->task0 + k]);
        }
    }
    smp_text_free(&text);
    smp_arena_destroy(arena);
}

static void put_counter(void *context, const smp_live_point *point)
{
    tracer *t = context;
    begin_event(t);
    fprintf(t->stream, "{\"name\":\"live bytes\",\"ph\":\"C\",\"pid\":%u", t->c);
    put_us(t, "ts", point->time_ps);
    fputs(",\"args\":{", t->stream);
    uint64_t sum_bytes = 0;
    for (int k = 0; k < SMP_KINDS; k++) {
        if (k != SMP_KIND_TOKEN) {
            fprintf(t->stream, "\"%s\":%" PRIu64 ",", smp_kind_name((smp_buffer_kind)k),
                    point->kind_bytes[k]);
            sum_bytes += point->kind_bytes[k];
        }
    }
    fprintf(t->stream, "\"total\":%" PRIu64 ",\"host\":%" PRIu64 "}}", sum_bytes,
            point->host_bytes);
}

smp_status smp_simulation_trace(const smp_simulation *simulation, const char *path,
                                smp_errors *errors)
{
    smp_file *file = NULL;
    smp_status status = smp_file_create(path, errors, &file);
    if (status != SMP_OK) {
        return status;
    }
    tracer t = {.simulation = simulation, .stream = smp_file_stream(file), .first = true};
    fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[", t.stream);
    for (t.c = 0; t.c < simulation->step->n_program; t.c++) {
        name_process(&t);
        put_tasks(&t);
        smp_live_sweep(simulation, t.c, put_counter, &t);
    }
    fputs("\n]}\n", t.stream);
    return smp_file_commit(file, errors);
}
