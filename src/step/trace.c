/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing Chrome trace JSON.
 *
 * ts and dur are in microseconds by the format; six decimals hold picoseconds exactly.  Events
 * go to the file one by one, each on its line.
 */
#include "step/trace.h"

#include "mesh/settings.h"

#include <inttypes.h>

/* Process 0 is the idle process to Perfetto, and a thread is found by its number alone, so
 * both start at 1 and no two threads share a number. */
uint32_t smp_trace_process(uint32_t i)
{
    return i + 1;
}

static uint32_t thread_of(uint32_t i, uint32_t stream)
{
    enum { STEP = 100 };

    return smp_trace_process(i) * STEP + stream;
}

static void put_us(FILE *stream, const char *key, int64_t ps)
{
    enum { PS_PER_US = 1000000 };

    (void)fprintf(stream, "\"%s\":%" PRId64 ".%06" PRId64, key, ps / PS_PER_US,
                  ps % PS_PER_US);
}

static void begin_event(smp_trace *t)
{
    (void)fputs(t->n_event++ ? ",\n" : "\n", t->stream);
}

/* Names are the program's own and need no escaping; those of the user are in the head. */
static void put_name(smp_trace *t, const char *kind, uint32_t i, uint32_t thread,
                     const char *name, uint32_t place)
{
    begin_event(t);
    (void)fprintf(t->stream, "{\"name\":\"%s_name\",\"ph\":\"M\",\"pid\":%u,\"tid\":%u,"
                             "\"args\":{\"name\":\"%s\"}}",
                  kind, smp_trace_process(i), thread, name);
    begin_event(t);
    (void)fprintf(t->stream, "{\"name\":\"%s_sort_index\",\"ph\":\"M\",\"pid\":%u,"
                             "\"tid\":%u,\"args\":{\"sort_index\":%u}}",
                  kind, smp_trace_process(i), thread, place);
}

void smp_trace_name(smp_trace *t, uint32_t i, const smp_program *program, const char *name)
{
    bool used[SMP_STREAMS] = {false};

    put_name(t, "process", i, smp_trace_process(i), name, i);
    for (uint32_t k = 0; k < program->n_task; k++) {
        used[program->tasks[k].stream] = true;
    }
    for (uint32_t s = 0; s < SMP_STREAMS; s++) {
        if (used[s]) {
            put_name(t, "thread", i, thread_of(i, s), smp_stream_name((smp_stream)s), s);
        }
    }
}

/* ---- tasks ---- */

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
    (void)fprintf(stream,
                  "\"args\":{\"op\":\"%s\",\"layer\":%u,\"micro_batch\":%u,"
                  "\"phase\":\"%s\",\"dtype\":\"%s\",\"dims\":[",
                  smp_op_info_of((smp_op)task->op)->name, (unsigned)instance->layer,
                  instance->micro_batch, phase_name((smp_phase)task->phase),
                  smp_dtype_name((smp_dtype)task->dtype));
    for (int i = 0; i < n_dim; i++) {
        (void)fprintf(stream, "%s%" PRIu64, i ? "," : "", task->dims[i]);
    }
    (void)fprintf(stream, "],\"flops\":%" PRIu64 ",\"bytes\":%" PRIu64, smp_task_flops(task),
                  smp_task_bytes(task));
    if (task->comm != SMP_NO_COMM) {
        (void)fprintf(stream, ",\"communicator\":\"%s\",\"ranks\":%u",
                      program->comms[task->comm].name, program->comms[task->comm].ranks);
    }
    (void)fputs("}}", stream);
}

void smp_trace_task(smp_trace *t, uint32_t i, const smp_program *program,
                    const smp_instance *instance, uint32_t number, int64_t start_ps,
                    int64_t end_ps)
{
    const smp_segment *segment = &program->segments[instance->segment];
    const smp_task *task = &program->tasks[segment->task0 + number];

    begin_event(t);
    (void)fprintf(t->stream, "{\"name\":\"%s.%s\",\"cat\":\"%s\",\"ph\":\"X\",", segment->name,
                  task->name, class_name(smp_op_info_of((smp_op)task->op)->klass));
    put_us(t->stream, "ts", start_ps);
    (void)fputc(',', t->stream);
    put_us(t->stream, "dur", end_ps - start_ps);
    (void)fprintf(t->stream, ",\"pid\":%u,\"tid\":%u,", smp_trace_process(i),
                  thread_of(i, task->stream));
    put_args(t->stream, program, task, instance);
}

void smp_trace_counter(smp_trace *t, uint32_t i, const char *name, int64_t time_ps)
{
    begin_event(t);
    (void)fprintf(t->stream, "{\"name\":\"%s\",\"ph\":\"C\",\"pid\":%u,", name,
                  smp_trace_process(i));
    put_us(t->stream, "ts", time_ps);
    (void)fputs(",\"args\":{", t->stream);
}

/* ---- the file ---- */

void smp_trace_job(smp_json_out *head, const smp_job *job)
{
    smp_out_string(head, "model", smp_model_name(job->model));
    smp_out_string(head, "cluster", smp_cluster_name(job->cluster));
    smp_out_u64(head, "gpus", job->world);
    smp_out_u64(head, "seq_len", job->batch.seq_len);
    smp_out_u64(head, "global_batch", job->batch.global_batch);
}

void smp_trace_open(smp_trace *t, FILE *stream, smp_json_out *head)
{
    *t = (smp_trace){.stream = stream};
    (void)fprintf(stream, "{\"displayTimeUnit\":\"ns\",\"otherData\":%s,\"traceEvents\":[",
                  head->text.data);
    smp_text_free(&head->text);
}

void smp_trace_close(smp_trace *t)
{
    (void)fputs("\n]}\n", t->stream);
}
