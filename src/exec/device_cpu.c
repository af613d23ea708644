/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cpu device: operations run by this host, its memory is the arena.
 *
 * Serial (the default): a task runs when it is issued, so the host order of the program is the
 * order of execution and waits have nothing to do.  Async: each stream that is used has a
 * thread and a queue; events are positions in queues.  Nothing but the program's waits orders
 * one stream after another, not even by chance through a lock that both take: ThreadSanitizer
 * would not see a missing wait then.  So queues are free of locks, and who waits for a stream
 * polls its position.
 */
#include "config.h"

#include "exec/clock.h"
#include "exec/cpu.h"
#include "exec/threads.h"

#include "base/arena.h"
#include "base/numeric.h"
#include "base/text.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

typedef enum item_kind { ITEM_LAUNCH, ITEM_CALL, ITEM_COPY, ITEM_WAIT, ITEM_END } item_kind;

typedef struct item {
    item_kind kind;
    smp_launch launch;
    smp_host_call function;
    void *context;
    void *to;
    const void *from;
    uint64_t bytes;
    smp_event event;
} item;

enum { QUEUE = 4096 };

typedef struct stream {
    smp_device *device;
    pthread_t thread;
    bool started;
    item *queue;              /* ring of QUEUE items, one writer and one reader */
    sem_t work;               /* posted for each item */
    uint64_t issued;          /* of the host */
    atomic_uint_fast64_t *done; /* of each place in the ring: the last item that ended there */
} stream;

struct smp_device {
    smp_cpu cpu;
    float *tables;
    bool async;
    void *memory[SMP_SPACES];
    uint64_t memory_bytes[SMP_SPACES];
    stream streams[SMP_STREAMS];
    atomic_bool failed;       /* since the last sync; later items do nothing */
    pthread_mutex_t lock;     /* of status and errors */
    bool has_lock;
    smp_status status;        /* the first failure */
    smp_errors *errors;
};

static const struct { smp_kernel *run; } kernels[SMP_OPS] = {
#define SMP_CPU_ROW_(OP, name) [SMP_OP_##OP] = { smp_cpu_##name },
    SMP_CPU_KERNELS(SMP_CPU_ROW_)
#undef SMP_CPU_ROW_
};

/* Families whose losses and gradients have been held against PyTorch's; others may need an
 * arithmetic of their own. */
static const char *const families[] = {
    "bloom", "cohere", "dbrx", "deepseek", "deepseek_v2", "deepseek_v3", "falcon", "gemma",
    "gemma2", "gemma3_text", "gpt2", "gpt_bigcode", "gpt_neox", "gpt_oss", "gptj", "kimi_k2",
    "llama", "llama4_text", "mistral", "mixtral", "mpt", "olmo2", "opt", "phi", "phi3", "qwen2",
    "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_vl_moe_text", "stablelm", "starcoder2"
};

static smp_status check_rank(const smp_rank *rank, smp_errors *errors)
{
    const smp_model *model = rank->job->model;
    smp_text legal = { 0 };
    smp_status status;

    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        if (strcmp(families[i], model->family) == 0) {
            smp_text_free(&legal);
            return SMP_OK;
        }
        smp_text_add(&legal, "%s%s", i > 0 ? ", " : "", families[i]);
    }
    status = smp_fail(errors, SMP_INPUT, NULL,
                      "%s: device cpu does not run the family %s yet; it runs %s", model->name,
                      model->family, legal.data);
    smp_text_free(&legal);
    return status;
}

/* ---- items ---- */

static void note_failure(smp_device *device, smp_status status, const char *message)
{
    (void)pthread_mutex_lock(&device->lock);
    if (device->status == SMP_OK) {
        device->status = smp_fail(device->errors, status, NULL, "%s", message);
    }
    (void)pthread_mutex_unlock(&device->lock);
    atomic_store_explicit(&device->failed, true, memory_order_relaxed);
}

static void run_item(smp_device *device, const item *it)
{
    smp_span *span = it->launch.span;
    smp_errors *errors = NULL;
    smp_status status = SMP_OK;

    if (it->kind == ITEM_COPY) {
        memcpy(it->to, it->from, it->bytes);
        return;
    }
    if (span) {
        span->start_ns = smp_now_ns();
    }
    if (it->kind == ITEM_LAUNCH) {
        smp_cpu cpu = device->cpu;

        cpu.rank = it->launch.rank;
        kernels[it->launch.task->op].run(&cpu, &it->launch);
    } else {
        errors = smp_errors_create();
        status = it->function(it->context, &it->launch, errors);
    }
    if (span) {
        span->end_ns = smp_now_ns();
    }
    if (status != SMP_OK) {
        note_failure(device, status, smp_errors_text(errors, 0));
    }
    smp_errors_destroy(errors);
}

/* Until another stream has come to a position.  Each item says that it has ended in a place of
 * its own: a count of the whole stream would also order what came after the item, and hide
 * from ThreadSanitizer that a later wait is missing. */
static void await(const smp_device *device, smp_event event)
{
    const stream *s = &device->streams[event.stream];

    if (event.position == 0) {
        return;
    }
    for (uint32_t i = 0; atomic_load_explicit(&s->done[(event.position - 1) % QUEUE],
                                              memory_order_acquire) < event.position;
         i++) {
        const struct timespec pause = { 0, i < 60 ? 20000 : 200000 };

        if (i < 20) {
            (void)sched_yield();
        } else {
            (void)nanosleep(&pause, NULL);
        }
    }
}

static void *stream_main(void *argument)
{
    stream *s = argument;
    smp_device *device = s->device;

    for (uint64_t i = 0;; i++) {
        const item *it = &s->queue[i % QUEUE];
        bool end;

        while (sem_wait(&s->work) != 0) { /* interrupted */
        }
        end = it->kind == ITEM_END;
        if (it->kind == ITEM_WAIT) {
            await(device, it->event);
        } else if (!end && !atomic_load_explicit(&device->failed, memory_order_relaxed)) {
            run_item(device, it);
        }
        atomic_store_explicit(&s->done[i % QUEUE], i + 1, memory_order_release);
        if (end) {
            return NULL;
        }
    }
}

static void start_stream(smp_device *device, stream *s)
{
    int error;

    s->device = device;
    s->queue = smp_heap_alloc(QUEUE, sizeof *s->queue);
    s->done = smp_heap_alloc(QUEUE, sizeof *s->done);
    error = sem_init(&s->work, 0, 0) == 0 ? 0 : errno;
    if (error == 0) {
        error = smp_thread_create(&s->thread, stream_main, s);
    }
    s->started = error == 0;
    if (!s->started) {
        note_failure(device, SMP_SYSTEM, strerror(error));
    }
}

static void put(smp_device *device, smp_stream stream_id, const item *it)
{
    stream *s = &device->streams[stream_id];

    if (!device->async) {
        if (it->kind != ITEM_WAIT && !atomic_load_explicit(&device->failed,
                                                           memory_order_relaxed)) {
            run_item(device, it);
        }
        return;
    }
    if (!s->queue) {
        start_stream(device, s);
    }
    if (s->started) {
        if (s->issued >= QUEUE) {
            await(device, (smp_event){ s->issued - QUEUE + 1, (uint8_t)stream_id });
        }
        s->queue[s->issued++ % QUEUE] = *it;
        (void)sem_post(&s->work);
    }
}

/* ---- the table ---- */

static void cpu_close(smp_device *device)
{
    if (!device) {
        return;
    }
    for (int i = 0; i < SMP_STREAMS; i++) {
        if (device->streams[i].started) {
            put(device, (smp_stream)i, &(item){ .kind = ITEM_END });
            (void)pthread_join(device->streams[i].thread, NULL);
            (void)sem_destroy(&device->streams[i].work);
        }
        free(device->streams[i].queue);
        free(device->streams[i].done);
    }
    for (int i = 0; i < SMP_SPACES; i++) {
        if (device->memory[i]) {
            (void)munmap(device->memory[i], device->memory_bytes[i]);
        }
    }
    if (device->has_lock) {
        (void)pthread_mutex_destroy(&device->lock);
    }
    smp_pool_destroy(device->cpu.pool);
    smp_errors_destroy(device->errors);
    free(device->tables);
    free(device);
}

static smp_status cpu_open(const smp_rank *rank, const smp_device_options *options,
                           smp_errors *errors, smp_device **device_p)
{
    smp_device *device;
    smp_status status = check_rank(rank, errors);

    if (status != SMP_OK) {
        return status;
    }
    device = smp_heap_alloc(1, sizeof *device);
    device->cpu.rank = rank;
    device->async = options->async;
    device->errors = smp_errors_create();
    device->has_lock = pthread_mutex_init(&device->lock, NULL) == 0;
    if (!device->has_lock) {
        cpu_close(device);
        return smp_fail(errors, SMP_SYSTEM, NULL, "a lock cannot be made");
    }
    smp_set_blas_threads(1);
    device->cpu.pool = smp_pool_create(options->threads);
    device->tables = smp_cpu_rope_tables(&device->cpu);
    *device_p = device;
    return SMP_OK;
}

static smp_status cpu_alloc(smp_device *device, smp_space space, uint64_t bytes,
                            smp_errors *errors, void **address_p)
{
    void *memory;

    if (bytes == 0) {
        *address_p = NULL;
        return SMP_OK;
    }
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return smp_fail(errors, SMP_SYSTEM, NULL, "an arena of %llu bytes: %s",
                        (unsigned long long)bytes, strerror(errno));
    }
#ifdef MADV_HUGEPAGE
    (void)madvise(memory, bytes, MADV_HUGEPAGE); /* fewer faults at the first touch */
#endif
    device->memory[space] = memory;
    device->memory_bytes[space] = bytes;
    *address_p = memory;
    return SMP_OK;
}

static void cpu_copy(smp_device *device, smp_stream stream_id, void *to, const void *from,
                     uint64_t bytes)
{
    put(device, stream_id,
        &(item){ .kind = ITEM_COPY, .to = to, .from = from, .bytes = bytes });
}

static void cpu_launch(smp_device *device, smp_stream stream_id, const smp_launch *launch)
{
    put(device, stream_id, &(item){ .kind = ITEM_LAUNCH, .launch = *launch });
}

static void cpu_call(smp_device *device, smp_stream stream_id, smp_host_call function,
                     void *context, const smp_launch *launch)
{
    put(device, stream_id,
        &(item){ .kind = ITEM_CALL, .function = function, .context = context,
                 .launch = *launch });
}

static void cpu_record(smp_device *device, smp_stream stream_id, smp_event *event_p)
{
    *event_p = (smp_event){ .position = device->streams[stream_id].issued,
                            .stream = (uint8_t)stream_id };
}

static void cpu_wait(smp_device *device, smp_stream stream_id, smp_event event)
{
    put(device, stream_id, &(item){ .kind = ITEM_WAIT, .event = event });
}

static void cpu_await(smp_device *device, smp_event event)
{
    if (device->async) {
        await(device, event);
    }
}

static smp_status cpu_sync(smp_device *device, smp_errors *errors)
{
    smp_status status;

    for (int i = 0; i < SMP_STREAMS && device->async; i++) {
        await(device, (smp_event){ device->streams[i].issued, (uint8_t)i });
    }
    status = device->status;
    if (status != SMP_OK) {
        (void)smp_fail(errors, status, NULL, "%s", smp_errors_text(device->errors, 0));
        smp_errors_clear(device->errors);
        device->status = SMP_OK;
        atomic_store_explicit(&device->failed, false, memory_order_relaxed);
    }
    return status;
}

static bool cpu_runs_apart(const smp_device *device)
{
    return device->async;
}

static double cpu_peak(smp_device *device)
{
    return smp_cpu_peak(device->cpu.pool);
}

static bool cpu_supports(const smp_device *device, const smp_task *task)
{
    (void)device;
    return kernels[task->op].run != NULL
           && (task->dtype == SMP_F32 || task->dtype == SMP_BF16 || task->dtype == SMP_F16
               || task->op == SMP_OP_COPY || task->op == SMP_OP_INPUT);
}

const smp_device_ops smp_device_cpu = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .alloc = cpu_alloc,
    .copy = cpu_copy,
    .launch = cpu_launch,
    .call = cpu_call,
    .record = cpu_record,
    .wait = cpu_wait,
    .await = cpu_await,
    .sync = cpu_sync,
    .supports = cpu_supports,
    .runs_apart = cpu_runs_apart,
    .peak = cpu_peak,
};
