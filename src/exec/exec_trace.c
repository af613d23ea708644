/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measured times as Chrome trace JSON: the same names, rows and arguments as smp-sim --trace
 * writes for predicted ones, a process for each rank, microseconds from the first task.
 */
#include "config.h"

#include "exec/exec.h"

#include "base/text.h"

#include <inttypes.h>

typedef struct tracer {
    const smp_runner *runner;
    FILE *stream;
    int64_t zero_ns;
    bool first;
} tracer;

static void begin_event(tracer *t)
{
    (void)fputs(t->first ? "\n" : ",\n", t->stream);
    t->first = false;
}

static void name_rows(tracer *t)
{
    const smp_program *program = t->runner->rank.program;
    uint32_t rank = t->runner->rank.rank;
    bool used[SMP_STREAMS] = { false };

    begin_event(t);
    (void)fprintf(t->stream,
                  "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%u,\"args\":{\"name\":"
                  "\"rank %u\"}}",
                  rank, rank);
    for (uint32_t i = 0; i < program->n_task; i++) {
        used[program->tasks[i].stream] = true;
    }
    for (uint32_t s = 0; s < SMP_STREAMS; s++) {
        if (used[s]) {
            begin_event(t);
            (void)fprintf(t->stream,
                          "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%u,\"tid\":%u,"
                          "\"args\":{\"name\":\"%s\"}}",
                          rank, s, smp_stream_name((smp_stream)s));
        }
    }
}

static void put_us(tracer *t, const char *key, int64_t ns)
{
    (void)fprintf(t->stream, ",\"%s\":%" PRId64 ".%03" PRId64, key, ns / 1000, ns % 1000);
}

static void put_task(tracer *t, const smp_instance *instance, const smp_segment *segment,
                     const smp_task *task, const smp_span *span)
{
    static const char *const classes[] = {
        [SMP_CLASS_MATMUL] = "matmul",         [SMP_CLASS_ATTENTION] = "attention",
        [SMP_CLASS_MEMORY] = "memory",         [SMP_CLASS_COLLECTIVE] = "collective",
        [SMP_CLASS_HOST_COPY] = "host_copy",
    };
    const smp_op_info *info = smp_op_info_of((smp_op)task->op);

    begin_event(t);
    (void)fprintf(t->stream,
                  "{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":%u,\"tid\":%u",
                  task->name, classes[info->klass], t->runner->rank.rank,
                  (unsigned)task->stream);
    put_us(t, "ts", span->start_ns - t->zero_ns);
    put_us(t, "dur", span->end_ns - span->start_ns);
    (void)fprintf(t->stream,
                  ",\"args\":{\"segment\":\"%s\",\"layer\":%u,\"micro_batch\":%u,"
                  "\"op\":\"%s\",\"bytes\":%" PRIu64 ",\"flops\":%" PRIu64 "}}",
                  segment->name, (unsigned)instance->layer, instance->micro_batch, info->name,
                  smp_task_bytes(task), smp_task_flops(task));
}

static void put_tasks(tracer *t)
{
    const smp_program *p = t->runner->rank.program;

    for (uint32_t i = 0; i < p->n_instance; i++) {
        const smp_segment *segment = &p->segments[p->order[i].segment];

        for (uint32_t k = 0; k < segment->n_task; k++) {
            put_task(t, &p->order[i], segment, &p->tasks[segment->task0 + k],
                     &t->runner->spans[t->runner->record0[i] + k]);
        }
    }
}

smp_status smp_exec_trace(smp_runner *const *runners, uint32_t n, const char *path,
                          smp_errors *errors)
{
    tracer t = { .zero_ns = INT64_MAX, .first = true };
    smp_file *file = NULL;
    smp_status status = smp_file_create(path, errors, &file);

    if (status != SMP_OK) {
        return status;
    }
    t.stream = smp_file_stream(file);
    for (uint32_t r = 0; r < n; r++) {
        for (uint64_t i = 0; i < runners[r]->n_record; i++) {
            int64_t start = runners[r]->spans[i].start_ns;

            t.zero_ns = start < t.zero_ns ? start : t.zero_ns;
        }
    }
    (void)fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[", t.stream);
    for (uint32_t r = 0; r < n; r++) {
        t.runner = runners[r];
        name_rows(&t);
        put_tasks(&t);
    }
    (void)fputs("\n]}\n", t.stream);
    return smp_file_commit(file, errors);
}
