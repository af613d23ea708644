/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The training loop: one thread a rank, all of them running the same steps.
 */
#include "config.h"

#include "exec/clock.h"
#include "exec/exec.h"
#include "exec/steps.h"
#include "exec/threads.h"

#include "base/host.h"
#include "base/numeric.h"
#include "base/text.h"
#include "mesh/settings.h"
#include "model/model.h"
#include "step/lower.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A file cut into samples. */
typedef struct corpus {
    smp_tokens *tokens;
    smp_samples samples;
} corpus;

typedef struct training {
    const smp_job *job;
    const smp_exec_options *options;
    smp_mesh *mesh;
    corpus data, validation;
    smp_init_rules init_rules;
    const smp_comm_ops *comm;
    smp_world *world;
    uint32_t first, count;     /* ranks of this process */
    uint32_t place, here;      /* of the first among the ranks of this machine; their number */
    smp_log *log;              /* rank 0's, else NULL */
    smp_exec_result *result;
    uint32_t threads;
} training;

typedef struct worker {
    training *training;
    uint32_t rank;
    pthread_t thread;
    bool started;
    smp_runner *runner;
    smp_loader *loader;
    smp_validation *validation;
    smp_steps steps;
    smp_errors *errors;
    smp_status status;
    bool followed;             /* it stopped because another rank failed */
} worker;

void smp_exec_options_init(smp_exec_options *options)
{
    *options = (smp_exec_options){ .steps = 1, .shuffle = true, .drop_last = true,
                                   .separator = SMP_NO_SEPARATOR, .documents = true,
                                   .bucket = 1, .loader_threads = 1,
                                   .validation_batches = 16, .timeout_s = 600 };
    smp_hyper_init(&options->hyper);
}

/* ---- validation and the end ---- */

static smp_status note_validation(worker *w, uint64_t step, double loss, double seconds)
{
    training *t = w->training;
    smp_status status = SMP_OK;

    if (w->rank == 0) {
        t->result->validation_loss = loss;
        status = smp_log_validation(t->log, step + 1, loss, seconds, w->errors);
    }
    if (status == SMP_OK && !isfinite(loss)) { /* on every rank */
        status = smp_fail(w->errors, SMP_SYSTEM, NULL,
                          "step %llu: the validation loss is %s, though that of training was "
                          "finite: the last update may have left no usable parameters",
                          (unsigned long long)(step + 1), isnan(loss) ? "nan" : "infinite");
    }
    return status;
}

static smp_status validate(worker *w, uint64_t step, bool *stop_p)
{
    double start, loss = 0;
    smp_status status;

    if (!smp_steps_validates_after(&w->steps, step)) {
        return SMP_OK;
    }
    status = smp_steps_end(&w->steps);
    start = smp_now_s();
    if (status == SMP_OK) {
        status = smp_validation_run(w->validation, w->runner, w->training->options->stop,
                                    w->errors, &loss, stop_p);
    }
    return status == SMP_OK && !*stop_p
               ? note_validation(w, step, loss, smp_now_s() - start) : status;
}

/* One step and what follows it.  A signal that comes when all is done stops nothing. */
static smp_status advance(worker *w, uint64_t step, bool *stop_p)
{
    const smp_exec_options *o = w->training->options;
    smp_status status = smp_steps_take(&w->steps, step);

    if (status == SMP_OK
        && (step + 1 < o->steps || smp_steps_validates_after(&w->steps, step))) {
        status = smp_exec_stops(w->runner, o->stop, w->errors, stop_p);
    }
    return status == SMP_OK && !*stop_p ? validate(w, step, stop_p) : status;
}

/* ---- a rank ---- */

/* With rank and host: who is where. */
static void describe_rank(const training *t, uint32_t rank, FILE *stream)
{
    static const char *const names[SMP_AXES] = { "tensor", "context", "shard", "expert",
                                                 "replica" };
    smp_coords coords;

    smp_mesh_coords(t->mesh, rank, &coords);
    (void)fprintf(stream, "rank %u of %u  local rank %u ", rank, t->job->world,
                  t->place + rank - t->first);
    for (int i = 0; i < SMP_AXES; i++) {
        (void)fprintf(stream, " %s %u", names[i], coords.axis[i]);
    }
    (void)fprintf(stream, "  device %s, %u thread%s\n", smp_device_cpu.name, t->threads,
                  t->threads > 1 ? "s" : "");
}

static void describe(const training *t)
{
    for (uint32_t i = 0; i < t->count && t->options->places; i++) {
        describe_rank(t, t->first + i, t->options->places);
    }
    if (t->options->verbose && t->job->settings.fsdp_cache_flush_warnings) {
        smp_log_line(t->log, "fsdp_cache_flush_warnings has no effect: one arena of a fixed "
                             "size, nothing to flush");
    }
}

/* The validation file is read by the same rules. */
static smp_status make_loaders(worker *w)
{
    training *t = w->training;
    const smp_job *job = t->job;
    const smp_exec_options *o = t->options;
    const smp_settings *s = &job->settings;
    smp_loader_options options = { .rows = job->micro_batches * s->micro_batch,
                                   .data_rank = w->runner->rank.data_rank,
                                   .data_ranks = job->data_ranks,
                                   .vocab = job->model->vocab,
                                   .drop_last = o->drop_last,
                                   .pad = o->pad,
                                   .bucket = o->bucket,
                                   .multiple = (uint64_t)s->tensor_parallel_degree
                                               * s->loss_chunks,
                                   .threads = o->loader_threads,
                                   .kept = SMP_PASSES, /* two run, and the next one waits */
                                   .start = { o->start.epoch, o->start.position,
                                              s->random_seed, o->shuffle } };
    smp_status status = smp_loader_create(&t->data.samples, &options, w->errors, &w->loader);

    if (status == SMP_OK && w->rank == 0 && t->data.samples.n < job->batch.global_batch) {
        smp_log_line(t->log, "warning: samples repeat within a step: there are %llu, a global "
                             "batch has %llu",
                     (unsigned long long)t->data.samples.n,
                     (unsigned long long)job->batch.global_batch);
    }
    if (status == SMP_OK && t->validation.tokens) {
        status = smp_validation_create(&t->validation.samples, &options, o->validation_batches,
                                       w->errors, &w->validation);
    }
    return status;
}

static smp_status make_runner(worker *w)
{
    training *t = w->training;
    smp_runner_options options = { .device = &smp_device_cpu,
                                   .device_options = { t->options->async, t->threads },
                                   .comm = t->comm,
                                   .world = t->world,
                                   .device_memory_bytes = t->options->device_memory_bytes,
                                   .host_share_bytes = smp_host_memory_bytes() / t->here,
                                   .measure = t->options->trace || t->options->measure,
                                   .hyper = t->options->hyper };
    smp_status status = smp_runner_create(t->job, t->mesh, w->rank, &options, w->errors,
                                          &w->runner);

    if (status == SMP_OK) {
        w->runner->rank.init_rules = &t->init_rules;
        status = make_loaders(w);
    }
    return status;
}

/* Of all ranks at once, as they will run. */
static smp_status measure_peak(worker *w)
{
    smp_runner *r = w->runner;
    float peak;
    smp_status status;

    if (!w->training->options->measure_peak || !r->ops->peak) {
        return SMP_OK;
    }
    status = r->everyone.ops->barrier(r->everyone.channel, w->errors);
    if (status == SMP_OK) {
        peak = (float)r->ops->peak(r->device);
        status = r->everyone.ops->all_reduce(r->everyone.channel, &peak, 1, SMP_F32, 1.0f,
                                             w->errors);
    }
    if (status == SMP_OK && w->rank == 0) {
        w->training->result->peak_flops_per_s = (double)peak;
    }
    return status;
}

static smp_status init(worker *w)
{
    training *t = w->training;
    smp_status status = smp_runner_init(w->runner, w->errors);
    uint64_t elems = 0;

    if (status != SMP_OK || !t->options->verbose) {
        return status;
    }
    status = smp_runner_check_init(w->runner, w->errors, &elems);
    if (status == SMP_OK && w->rank == 0 && t->options->log) {
        smp_init_list(&w->runner->rank, t->options->log);
        smp_log_line(t->log, "init  all %llu elements of rank 0 have values",
                     (unsigned long long)elems);
    }
    return status;
}

static void fail_world(const training *t, uint32_t rank)
{
    if (t->comm->abandon) {
        t->comm->abandon(t->world, rank);
    }
}

/* Nothing of a rank runs on when its thread ends: batches that it reads are freed then, and so
 * are other ranks' arenas. */
static void give_up(worker *w)
{
    smp_errors *ignored = smp_errors_create(); /* it has failed already */

    fail_world(w->training, w->rank);
    if (w->runner) {
        smp_status status = w->runner->ops->sync(w->runner->device, ignored);

        (void)status;
    }
    smp_errors_destroy(ignored);
}

/* All ranks are made before any of them starts, so that a plan that does not fit is refused
 * by every rank before the first step. */
static smp_status start(worker *w)
{
    smp_status status = make_runner(w);
    smp_runner *runner = w->runner;

    if (status == SMP_OK) {
        status = runner->everyone.ops->barrier(runner->everyone.channel, w->errors);
    }
    if (status == SMP_OK) {
        status = init(w);
    }
    if (status == SMP_OK) {
        status = measure_peak(w);
    }
    w->steps = (smp_steps){ .options = w->training->options, .runner = runner,
                            .loader = w->loader, .validates = w->validation != NULL,
                            .errors = w->errors, .begin_errors = smp_errors_create(),
                            .log = w->training->log,
                            .result = w->rank == 0 ? w->training->result : NULL };
    return status;
}

static void *rank_main(void *argument)
{
    worker *w = argument;
    training *t = w->training;
    bool stop = false;

    w->status = start(w);
    for (uint64_t step = 0; step < t->options->steps && w->status == SMP_OK && !stop; step++) {
        w->status = advance(w, step, &stop);
    }
    if (w->status == SMP_OK) {
        w->status = smp_steps_end(&w->steps);
    }
    if (w->status != SMP_OK) {
        give_up(w);
    } else if (w->rank == 0) {
        t->result->stopped = stop;
        t->result->end = smp_loader_state_of(w->loader, smp_steps_unused(&w->steps));
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
        smp_loader_destroy(workers[i].loader);
        smp_validation_destroy(workers[i].validation);
        smp_runner_destroy(workers[i].runner);
        smp_errors_destroy(workers[i].steps.begin_errors);
        smp_errors_destroy(workers[i].errors);
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

/* ---- what ranks share ---- */

static smp_status open_corpus(const training *t, const char *path, smp_errors *errors,
                              corpus *c)
{
    const smp_exec_options *o = t->options;
    const smp_place place = { .file = "--eot" };
    int64_t vocab = (int64_t)t->job->model->vocab;
    smp_status status;

    if (o->separator != SMP_NO_SEPARATOR && o->separator >= vocab) {
        return smp_fail(errors, SMP_INPUT, &place, "%lld: the model's vocabulary has %lld",
                        (long long)o->separator, (long long)vocab);
    }
    status = smp_tokens_open(path, o->separator, errors, &c->tokens);
    if (status == SMP_OK) {
        status = smp_samples_init(c->tokens, t->job->batch.seq_len, o->pad != SMP_PAD_NONE,
                                  o->documents, errors, &c->samples);
    }
    return status;
}

static smp_status open_inputs(training *t, smp_errors *errors)
{
    const smp_exec_options *o = t->options;
    smp_status status = open_corpus(t, o->data, errors, &t->data);

    if (status == SMP_OK && o->validation) {
        status = open_corpus(t, o->validation, errors, &t->validation);
    }
    if (status == SMP_OK && o->init_rules) {
        status = smp_init_rules_read(o->init_rules, t->job->model, errors, &t->init_rules);
    }
    return status;
}

static void close_inputs(training *t)
{
    smp_samples_fini(&t->data.samples);
    smp_tokens_close(t->data.tokens);
    smp_samples_fini(&t->validation.samples);
    smp_tokens_close(t->validation.tokens);
    smp_init_rules_free(&t->init_rules);
}

/* Of each of `ranks` ranks on this machine. */
static uint32_t threads_of(const smp_exec_options *options, uint32_t ranks)
{
    uint32_t cores = smp_host_processors();

    if (options->threads > 0) {
        return options->threads;
    }
    return cores > ranks ? cores / ranks : 1;
}

#ifdef SMP_HAVE_MPI
/* What ranks must have in common, or they would wait for each other or train other models. */
static uint64_t hash_run(const training *t)
{
    const smp_job *job = t->job;
    const smp_exec_options *o = t->options;
    const uint64_t numbers[] = { smp_model_parameters(job->model), job->model->n_layer,
                                 job->model->hidden, job->model->vocab, job->batch.seq_len,
                                 job->batch.global_batch, job->world, o->steps,
                                 o->validate_every, o->validation_batches, o->pad, o->bucket,
                                 o->documents, o->shuffle, o->drop_last,
                                 smp_tokens_facts_of(t->data.tokens)->tokens };
    const double reals[] = { o->hyper.lr, o->hyper.min_lr, (double)o->hyper.warmup_steps,
                             (double)o->hyper.schedule, o->hyper.beta1, o->hyper.beta2,
                             o->hyper.eps, o->hyper.weight_decay, o->hyper.momentum,
                             o->hyper.clip, o->hyper.loss_scale, o->hyper.scaler.first };
    size_t n = 0;
    const smp_setting_info *table = smp_settings_table(&n);
    uint64_t hash = smp_hash(reals, sizeof reals, smp_hash(numbers, sizeof numbers, 1));

    for (size_t i = 0; i < n; i++) {
        char value[256] = { 0 };

        (void)smp_settings_get(&job->settings, table[i].key, value, sizeof value);
        hash = smp_hash(value, sizeof value, hash);
    }
    return hash;
}
#endif

static smp_status open_world(training *t, smp_errors *errors)
{
    uint32_t ranks = t->job->world;

    t->comm = &smp_comm_threads;
    t->count = ranks;
    t->here = ranks;
#ifdef SMP_HAVE_MPI
    if (t->options->mpi) {
        t->comm = &smp_comm_mpi;
        t->first = smp_mpi_rank();
        t->count = 1;
        smp_mpi_here(&t->place, &t->here);
        if (smp_mpi_ranks() != ranks) {
            return smp_fail(errors, SMP_INPUT, NULL,
                            "the plan is for %u ranks, %u were started", ranks,
                            smp_mpi_ranks());
        }
        if (!smp_mpi_agrees(hash_run(t))) {
            return smp_fail(errors, SMP_INPUT, NULL,
                            "ranks were started with different plans, data or options");
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

static smp_status run_all(training *t, smp_errors *errors)
{
    smp_status status = check_stack(t->job, errors);

    if (status == SMP_OK) {
        status = open_inputs(t, errors);
    }
    if (status == SMP_OK) {
        status = smp_mesh_create(t->job, errors, &t->mesh);
    }
    if (status == SMP_OK) {
        status = open_world(t, errors);
        t->threads = threads_of(t->options, t->here);
    }
    if (status == SMP_OK && t->first == 0) {
        status = smp_log_create(t->options, errors, &t->log);
    }
    if (status == SMP_OK) {
        describe(t);
        status = train(t, errors);
    }
    return status;
}

smp_status smp_exec_run(const smp_job *job, const smp_exec_options *options,
                        smp_errors *errors, smp_exec_result *result_p)
{
    smp_exec_result result = { 0 };
    training t = { .job = job, .options = options, .result = &result };
    smp_status status;

    status = run_all(&t, errors);
    if (status == SMP_OK) {
        status = smp_log_close(t.log, errors);
    } else if (t.log) {
        smp_errors *ignored = smp_errors_create(); /* the run has failed already */
        smp_status closed = smp_log_close(t.log, ignored);

        (void)closed;
        smp_errors_destroy(ignored);
    }
    if (t.comm) {
        t.comm->destroy(t.world);
    }
    smp_mesh_destroy(t.mesh);
    close_inputs(&t);
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
