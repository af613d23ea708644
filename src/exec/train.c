/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The training loop: one thread a rank, all of them running the same steps.
 */
#include "config.h"

#include "exec/data.h"
#include "exec/exec.h"
#include "exec/threads.h"

#include "base/text.h"
#include "mesh/settings.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct training {
    const smp_job *job;
    const smp_exec_options *options;
    smp_mesh *mesh;
    const smp_corpus *corpus;
    const smp_comm_ops *comm;
    smp_world *world;
    uint32_t first, count;     /* ranks of this process */
    smp_file *metrics;
    smp_exec_result *result;
    uint32_t threads;
} training;

typedef struct worker {
    training *training;
    uint32_t rank;
    pthread_t thread;
    bool started;
    smp_runner *runner;
    smp_sampler sampler;
    int32_t *ids, *targets;
    smp_errors *errors;
    smp_status status;
    bool followed;             /* it stopped because another rank failed */
} worker;

void smp_exec_options_init(smp_exec_options *options)
{
    *options = (smp_exec_options){ .steps = 1, .shuffle = true, .drop_last = true,
                                   .timeout_s = 600 };
    smp_hyper_init(&options->hyper);
}

static double seconds_now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- what is said of a step ---- */

static void log_step(const training *t, uint64_t step, const smp_exec_step *s)
{
    double tokens = (double)(t->job->batch.global_batch * t->job->batch.seq_len);
    FILE *log = t->options->log;

    if (log) {
        (void)fprintf(log, "step %llu  loss %.6f  norm %.4f  lr %.3e  %.0f tokens/s%s\n",
                      (unsigned long long)(step + 1), s->loss, s->norm, s->lr,
                      tokens / s->seconds, s->skipped ? "  overflow, skipped" : "");
        (void)fflush(log);
    }
    if (t->metrics) {
        (void)fprintf(smp_file_stream(t->metrics),
                      "{\"step\": %llu, \"loss\": %.9g, \"gradient_norm\": %.9g, \"lr\": %.9g, "
                      "\"loss_scale\": %.9g, \"skipped\": %s, \"seconds\": %.6f}\n",
                      (unsigned long long)(step + 1), s->loss, s->norm, s->lr, s->loss_scale,
                      s->skipped ? "true" : "false", s->seconds);
    }
}

/* ---- a rank ---- */

static smp_status read_batch(worker *w, uint64_t step)
{
    const smp_job *job = w->training->job;
    uint64_t each = job->micro_batches * job->settings.micro_batch, seq = job->batch.seq_len;
    smp_status status = SMP_OK;

    for (uint64_t i = 0; i < each && status == SMP_OK; i++) {
        status = smp_corpus_read(w->training->corpus,
                                 smp_sampler_at(&w->sampler, step * each + i),
                                 w->ids + i * seq, w->targets + i * seq, w->errors);
    }
    return status;
}

static smp_status take_step(worker *w, smp_runner *runner, uint64_t step)
{
    training *t = w->training;
    float state[SMP_SCALARS];
    double start = seconds_now();
    smp_status status = read_batch(w, step);
    smp_exec_step *s = &t->result->steps[step];

    if (status == SMP_OK) {
        status = smp_runner_step(runner, w->ids, w->targets, w->errors);
    }
    if (status == SMP_OK) {
        status = smp_runner_scalars(runner, state, w->errors);
    }
    if (status != SMP_OK) {
        return status;
    }
    if (w->rank == 0) {
        *s = (smp_exec_step){ .loss = (double)state[SMP_SCALAR_LOSS],
                              .norm = (double)state[SMP_SCALAR_NORM],
                              .lr = (double)state[SMP_SCALAR_LR],
                              .loss_scale = (double)state[SMP_SCALAR_LOSS_SCALE],
                              .skipped = state[SMP_SCALAR_SKIP] > 0,
                              .seconds = seconds_now() - start };
        log_step(t, step, s);
    }
    if (!isfinite(state[SMP_SCALAR_LOSS])) { /* the same on every rank */
        return smp_fail(w->errors, SMP_SYSTEM, NULL, "step %llu: the loss is %g, not a number",
                        (unsigned long long)(step + 1), (double)state[SMP_SCALAR_LOSS]);
    }
    if (t->options->after_step) {
        t->options->after_step(t->options->context, runner, step);
    }
    return SMP_OK;
}

static smp_status make_runner(worker *w)
{
    training *t = w->training;
    const smp_job *job = t->job;
    uint64_t elems = job->micro_batches * job->settings.micro_batch * job->batch.seq_len;
    smp_runner_options options = { .device = &smp_device_cpu,
                                   .device_options = { t->options->async, t->threads },
                                   .comm = t->comm,
                                   .world = t->world,
                                   .device_memory_bytes = t->options->device_memory_bytes,
                                   .measure = t->options->trace || t->options->measure,
                                   .hyper = t->options->hyper };
    smp_status status = smp_runner_create(job, t->mesh, w->rank, &options, w->errors,
                                          &w->runner);

    if (status != SMP_OK) {
        return status;
    }
    smp_sampler_init(&w->sampler, smp_corpus_sequences(t->corpus),
                     w->runner->rank.data_rank, job->data_ranks,
                     job->settings.random_seed, t->options->shuffle, t->options->drop_last);
    w->ids = smp_heap_alloc(elems, sizeof *w->ids);
    w->targets = smp_heap_alloc(elems, sizeof *w->targets);
    return SMP_OK;
}

static void fail_world(const training *t, uint32_t rank)
{
    if (t->comm->abandon) {
        t->comm->abandon(t->world, rank);
    }
}

/* All ranks are made before any of them starts, so that a plan that does not fit is refused
 * by every rank before the first step. */
static void *rank_main(void *argument)
{
    worker *w = argument;
    training *t = w->training;
    smp_runner *runner;

    w->status = make_runner(w);
    runner = w->runner;
    if (w->status == SMP_OK) {
        w->status = runner->everyone.ops->barrier(runner->everyone.channel, w->errors);
    }
    if (w->status == SMP_OK) {
        w->status = smp_runner_init(runner, w->errors);
    }
    for (uint64_t step = 0; step < t->options->steps && w->status == SMP_OK; step++) {
        w->status = take_step(w, runner, step);
    }
    if (w->status != SMP_OK) {
        fail_world(t, w->rank);
    }
    return NULL;
}

static smp_status start_workers(training *t, worker *workers, smp_errors *errors)
{
    for (uint32_t i = 0; i < t->count; i++) {
        worker *w = &workers[i];
        int error;

        w->training = t;
        w->rank = t->first + i;
        w->errors = smp_errors_create();
        if (t->count == 1) {
            (void)rank_main(w); /* MPI may want to be called by this thread only */
            return SMP_OK;
        }
        error = smp_thread_create(&w->thread, rank_main, w);
        w->started = error == 0;
        if (!w->started) {
            fail_world(t, w->rank);
            return smp_fail(errors, SMP_SYSTEM, NULL, "rank %u: no thread: %s", w->rank,
                            strerror(error));
        }
    }
    return SMP_OK;
}

/* One message: that of the rank that failed first, not of those that stopped with it. */
static smp_status collect(training *t, worker *workers, smp_errors *errors)
{
    worker *first = NULL;

    for (uint32_t i = 0; i < t->count; i++) {
        worker *w = &workers[i];
        uint64_t device, host;

        if (w->started) {
            (void)pthread_join(w->thread, NULL);
        }
        if (w->runner) {
            device = w->runner->rank.program->arena_bytes;
            host = w->runner->rank.program->host_arena_bytes;
            t->result->arena_bytes =
                device > t->result->arena_bytes ? device : t->result->arena_bytes;
            t->result->host_arena_bytes =
                host > t->result->host_arena_bytes ? host : t->result->host_arena_bytes;
        }
        w->followed = w->status != SMP_OK
                      && strstr(smp_errors_text(w->errors, 0), " stopped because ") != NULL;
        if (w->status != SMP_OK && (!first || (first->followed && !w->followed))) {
            first = w;
        }
    }
    if (!first) {
        return SMP_OK;
    }
    return smp_fail(errors, first->status, NULL, "%s", smp_errors_text(first->errors, 0));
}

static void free_workers(training *t, worker *workers)
{
    for (uint32_t i = 0; i < t->count; i++) {
        smp_runner_destroy(workers[i].runner);
        smp_sampler_fini(&workers[i].sampler);
        smp_errors_destroy(workers[i].errors);
        free(workers[i].ids);
        free(workers[i].targets);
    }
    free(workers);
}

/* Of the ranks of this process; over MPI that of rank 0 only. */
static smp_status write_trace(const training *t, const worker *workers, smp_errors *errors)
{
    smp_runner **runners;
    smp_status status;

    if (t->first > 0) {
        return SMP_OK;
    }
    runners = smp_heap_alloc(t->count, sizeof(smp_runner *));
    for (uint32_t i = 0; i < t->count; i++) {
        runners[i] = workers[i].runner;
    }
    status = smp_exec_trace(runners, t->count, t->options->trace, errors);
    free(runners);
    return status;
}

static smp_status train(training *t, smp_errors *errors)
{
    worker *workers = smp_heap_alloc(t->count, sizeof *workers);
    smp_status started, status;

    started = start_workers(t, workers, errors);
    status = collect(t, workers, errors);
    status = started != SMP_OK ? started : status;
    if (status == SMP_OK && t->options->trace) {
        status = write_trace(t, workers, errors);
    }
    if (status == SMP_OK && t->options->measure && t->options->steps > 0) {
        smp_exec_measure(workers[0].runner, &t->result->measured);
    }
    free_workers(t, workers);
    return status;
}

static smp_status open_metrics(training *t, smp_errors *errors)
{
    if (!t->options->metrics || t->first > 0) {
        return SMP_OK;
    }
    return smp_file_create(t->options->metrics, errors, &t->metrics);
}

static uint32_t threads_of(const smp_exec_options *options, uint32_t world)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);

    if (options->threads > 0) {
        return options->threads;
    }
    return cores > (long)world ? (uint32_t)cores / world : 1;
}

static smp_status open_world(training *t, smp_errors *errors)
{
    uint32_t ranks = t->job->world;

    t->comm = &smp_comm_threads;
    t->count = ranks;
#ifdef SMP_HAVE_MPI
    if (t->options->mpi) {
        t->comm = &smp_comm_mpi;
        t->first = smp_mpi_rank();
        t->count = 1;
        if (smp_mpi_ranks() != ranks) {
            return smp_fail(errors, SMP_INPUT, NULL,
                            "the plan is for %u ranks, %u were started", ranks,
                            smp_mpi_ranks());
        }
        return smp_mpi_create(t->options->timeout_s, errors, &t->world);
    }
#endif
    return smp_threads_create(ranks, t->options->timeout_s, errors, &t->world);
}

/* Programs of other software are there to be simulated. */
static smp_status check_stack(const smp_job *job, smp_errors *errors)
{
    const smp_place *where = &job->settings.origin[SMP_KEY_STACK];
    char stack[32];

    if (job->settings.stack == SMP_STACK_NATIVE) {
        return SMP_OK;
    }
    (void)smp_settings_get(&job->settings, "stack", stack, sizeof stack);
    return smp_fail(errors, SMP_INPUT, where->file ? where : NULL,
                    "stack %s: a plan for other software is simulated, not executed; legal "
                    "here: native", stack);
}

smp_status smp_exec_run(const smp_job *job, const smp_exec_options *options,
                        smp_errors *errors, smp_exec_result *result_p)
{
    smp_exec_result result = { .n_step = options->steps };
    training t = { .job = job, .options = options, .result = &result };
    smp_corpus *corpus = NULL;
    smp_status status = check_stack(job, errors);

    if (status == SMP_OK) {
        status = smp_corpus_open(options->data, job->batch.seq_len, job->model->vocab, errors,
                                 &corpus);
    }
    t.corpus = corpus;
    t.threads = threads_of(options, job->world);
    result.steps = smp_heap_alloc(options->steps + 1, sizeof *result.steps);
    if (status == SMP_OK) {
        status = smp_mesh_create(job, errors, &t.mesh);
    }
    if (status == SMP_OK) {
        status = open_world(&t, errors);
    }
    if (status == SMP_OK) {
        status = open_metrics(&t, errors);
    }
    if (status == SMP_OK) {
        status = train(&t, errors);
    }
    if (t.metrics && status == SMP_OK) {
        status = smp_file_commit(t.metrics, errors);
    } else if (t.metrics) {
        smp_file_abandon(t.metrics);
    }
    if (t.comm) {
        t.comm->destroy(t.world);
    }
    smp_mesh_destroy(t.mesh);
    smp_corpus_close(corpus);
    if (status != SMP_OK) {
        smp_exec_result_free(&result);
        return status;
    }
    *result_p = result;
    return SMP_OK;
}

void smp_exec_result_free(smp_exec_result *result)
{
    free(result->steps);
    smp_exec_measured_free(&result->measured);
    *result = (smp_exec_result){ 0 };
}
