/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A few steps of a job on ranks as threads, and what came of them by global element: for one
 * .c file each.
 *
 * Tokens are a function of the place in the global batch, so every layout trains on the same.
 */
#ifndef TESTS_EXEC_RANKS_H
#define TESTS_EXEC_RANKS_H

#include "tests/exec/tiny.h"

#include "base/arena.h"
#include "base/numeric.h"

#include <pthread.h>

enum { RANKS_STEPS_MAX = 20, RANKS_MAX = 8 };

typedef struct trained {
    uint64_t n;                          /* parameters of the model */
    double loss[RANKS_STEPS_MAX], norm[RANKS_STEPS_MAX], rows[RANKS_STEPS_MAX];
    float *gradients[RANKS_STEPS_MAX];   /* reduced, by global element */
    float *parameters;                   /* at the end */
    double gap;                          /* the least between the last chosen score and the
                                            first that is not */
} trained;

typedef struct training {
    const smp_job *job;
    const smp_mesh *mesh;
    smp_world *world;
    bool async;
    uint32_t steps;
    double lr;
    uint32_t dealt;                      /* one rank, micro-batch by micro-batch in turn what
                                            each of so many data ranks would have; 0: not */
    trained *out;
    pthread_mutex_t lock;                /* of out */
} training;

typedef struct rank_of {
    training *t;
    uint32_t rank;
    smp_runner *runner;
    uint32_t *places;                    /* of what it owns, one after the other: the global
                                            element; heap, found once */
    uint64_t n_place, place_capacity;
    const uint32_t *place;               /* of what is collected next */
    float *to;                           /* where values go by global element */
    uint32_t operand;                    /* of the optimizer's task that is collected */
    smp_device_ops watching;             /* as long as the runner, which may use it */
    smp_errors *errors;
    smp_status status;
    pthread_t thread;
} rank_of;

/* Global elements before a parameter: the root's, then those of the layers. */
static inline uint64_t elements_before(const smp_model *model, const smp_block *block_or_null,
                                       uint32_t layer, const smp_param *param)
{
    uint64_t n = 0;
    const smp_param *all = block_or_null ? block_or_null->params : model->root;

    for (uint32_t i = 0; block_or_null && i < model->n_root; i++) {
        n += smp_param_elems(&model->root[i]);
    }
    for (uint32_t l = 0; block_or_null && l < layer; l++) {
        const smp_block *b = smp_model_block(model, l);

        for (uint32_t i = 0; i < b->n_param; i++) {
            n += smp_param_elems(&b->params[i]);
        }
    }
    for (const smp_param *p = all; p < param; p++) {
        n += smp_param_elems(p);
    }
    return n;
}

enum { NO_PLACE = UINT32_MAX };            /* padding */

static inline void find_places(void *context, const smp_owned *o)
{
    rank_of *r = context;
    const smp_rank *rank = &r->runner->rank;
    const smp_param *last = NULL;
    uint64_t base = 0;

    for (uint64_t i = 0; i < o->elems; i++) {
        const smp_param *param;
        uint64_t at = smp_global_element(rank, o->unit, o->first + i, &param);

        if (param != last) {
            last = param;
            base = elements_before(rank->job->model, o->unit->block, o->layer, param);
        }
        SMP_GROW(r->places, r->n_place, r->place_capacity);
        r->places[r->n_place++] = at == UINT64_MAX ? NO_PLACE : (uint32_t)(base + at);
    }
}

enum { CHUNK = 256 };

static inline void collect_owned(void *context, const smp_owned *o)
{
    rank_of *r = context;
    const char *from = smp_runner_operand(r->runner, o->instance, o->task_index, r->operand);
    smp_dtype t = (smp_dtype)(r->operand == 1 ? o->task->dtype2 : o->task->dtype);

    for (uint64_t i = 0; i < o->elems; i += CHUNK) {
        uint64_t n = o->elems - i < CHUNK ? o->elems - i : CHUNK;
        float scratch[CHUNK];
        const float *x = smp_row(from, t, i, n, scratch);

        for (uint64_t j = 0; j < n; j++) {
            if (r->place[i + j] != NO_PLACE) {
                r->to[r->place[i + j]] = x[j];
            }
        }
    }
    r->place += o->elems;
}

static inline void collect(rank_of *r, float *to, uint32_t operand)
{
    if (!r->places) {
        smp_runner_owned(r->runner, find_places, r);
    }
    r->to = to;
    r->operand = operand;
    r->place = r->places;
    (void)pthread_mutex_lock(&r->t->lock);
    smp_runner_owned(r->runner, collect_owned, r);
    (void)pthread_mutex_unlock(&r->t->lock);
}

/* The n-th token of a sequence of the global batch of a step. */
static inline int32_t token_at(uint64_t step, uint64_t sequence, uint64_t n, uint64_t vocab)
{
    uint32_t u[4];

    smp_random4(step + 1, sequence, n, u);
    return (int32_t)(u[0] % vocab);
}

static inline void fill_tokens(const rank_of *r, uint64_t step, int32_t *ids, int32_t *targets)
{
    const smp_rank *rank = &r->runner->rank;
    const smp_job *job = r->t->job;
    uint64_t seq = job->batch.seq_len, vocab = job->model->vocab;
    uint64_t n = job->micro_batches * job->settings.micro_batch;

    for (uint64_t i = 0; i < n * seq; i++) {
        uint64_t local = i / seq, ranks = rank->data_ranks, of = rank->data_rank;
        uint64_t batch = job->settings.micro_batch, sequence;

        if (r->t->dealt > 0) {
            ranks = r->t->dealt;
            of = local / batch % ranks;
            local = local / batch / ranks * batch + local % batch;
        }
        sequence = local * ranks + of;
        ids[i] = token_at(step, sequence, i % seq, vocab);
        targets[i] = token_at(step, sequence, i % seq + 1, vocab);
    }
}

/* Gradients are read after a step, the learning rate acts in it: all as in one rank's run. */
static inline void train_rank(rank_of *r)
{
    training *t = r->t;
    uint64_t n = t->job->micro_batches * t->job->settings.micro_batch * t->job->batch.seq_len;
    int32_t *ids = smp_heap_alloc(2 * n, sizeof *ids);
    const smp_inputs inputs = { .seq = t->job->batch.seq_len, .ids = ids, .targets = ids + n };
    const smp_pass *pass = NULL;

    for (uint32_t s = 0; s < t->steps && r->status == SMP_OK; s++) {
        fill_tokens(r, s, ids, ids + n);
        r->status = smp_runner_step(r->runner, &inputs, r->errors, &pass);
        if (r->status == SMP_OK) {
            collect(r, t->out->gradients[s], 1);
        }
        if (r->rank == 0 && r->status == SMP_OK) {
            t->out->loss[s] = (double)pass->scalars[SMP_SCALAR_LOSS];
            t->out->norm[s] = (double)pass->scalars[SMP_SCALAR_NORM];
            t->out->rows[s] = (double)pass->scalars[SMP_SCALAR_ROWS];
        }
    }
    if (r->status == SMP_OK) {
        collect(r, t->out->parameters, 0);
    }
    free(ids);
}

/* The cpu device, which also measures how clear the choice of experts is. */
static double least_gap;

static inline void measure_gap(const smp_launch *l)
{
    const float *x = l->at[0];
    uint64_t n = l->task->dims[1], k = l->task->dims[2];

    for (uint64_t t = 0; t < l->task->dims[0]; t++) {
        for (uint64_t a = 0; a < n; a++) {
            uint64_t above = 0;

            for (uint64_t b = 0; b < n; b++) {
                above += x[t * n + b] > x[t * n + a];
            }
            for (uint64_t b = 0; b < n && above == k - 1; b++) {
                double gap = (double)(x[t * n + a] - x[t * n + b]);

                if (gap > 0 && gap < least_gap) {
                    least_gap = gap;
                }
            }
        }
    }
}

static inline void watch_launch(smp_device *device, smp_stream stream, const smp_launch *launch)
{
    smp_device_cpu.launch(device, stream, launch);
    if (launch->task->op == SMP_OP_ROUTE) {
        measure_gap(launch);
    }
}

static inline void *rank_main(void *argument)
{
    rank_of *r = argument;
    bool alone = r->t->job->world == 1 && !r->t->async;
    smp_runner_options options = { .device = alone ? &r->watching : &smp_device_cpu,
                                   .device_options = { .async = r->t->async, .threads = 1 },
                                   .comm = &smp_comm_threads, .world = r->t->world };

    r->watching = smp_device_cpu;
    r->watching.launch = watch_launch;
    smp_hyper_init(&options.hyper);
    options.hyper.lr = r->t->lr;
    options.hyper.clip = 0.9;
    r->status = smp_runner_create(r->t->job, r->t->mesh, r->rank, &options, r->errors,
                                  &r->runner);
    if (r->status == SMP_OK) {
        r->status = smp_runner_init(r->runner, r->errors);
    }
    if (r->status == SMP_OK) {
        train_rank(r);
    }
    if (r->status != SMP_OK) {
        smp_comm_threads.abandon(r->t->world, r->rank);
    }
    return NULL;
}

static inline uint64_t count_elements(const smp_model *model)
{
    const smp_block *last = smp_model_block(model, model->n_layer - 1);

    return elements_before(model, last, model->n_layer - 1, last->params + last->n_param);
}

static inline void run_ranks(training *t, const char *what)
{
    rank_of ranks[RANKS_MAX];

    for (uint32_t i = 0; i < t->job->world; i++) {
        ranks[i] = (rank_of){ .t = t, .rank = i, .errors = smp_errors_create() };
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]), 0);
    }
    for (uint32_t i = 0; i < t->job->world; i++) {
        (void)pthread_join(ranks[i].thread, NULL);
    }
    for (uint32_t i = 0; i < t->job->world; i++) { /* others may have read from it until now */
        smp_runner_destroy(ranks[i].runner);
        free(ranks[i].places);
    }
    for (uint32_t i = 0; i < t->job->world; i++) {
        if (ranks[i].status != SMP_OK) {
            fail_msg("%s: rank %u: %s", what, i, smp_errors_text(ranks[i].errors, 0));
        }
        smp_errors_destroy(ranks[i].errors);
    }
}

/* Trains `config` under `settings`, which must be legal; the result is freed by
 * trained_free.  A global batch has 8 sequences of 16 tokens. */
static inline trained train_dealt(const char *config, const char *settings, uint32_t ranks,
                                  bool async, uint32_t steps, double lr, uint32_t dealt)
{
    tiny t;
    trained out = { .gap = HUGE_VAL };
    training run = { .async = async, .steps = steps, .lr = lr, .dealt = dealt, .out = &out };
    smp_mesh *mesh = NULL;

    tiny_open(&t, config, ranks, 16, 8);
    tiny_set(&t, settings);
    check_ok(smp_job_resolve(&t.job, t.errors), t.errors);
    check_ok(smp_mesh_create(&t.job, t.errors, &mesh), t.errors);
    check_ok(smp_threads_create(ranks, 60, t.errors, &run.world), t.errors);
    out.n = count_elements(t.model);
    for (uint32_t s = 0; s < steps; s++) {
        out.gradients[s] = smp_heap_alloc(out.n, sizeof(float));
    }
    out.parameters = smp_heap_alloc(out.n, sizeof(float));
    run.job = &t.job;
    run.mesh = mesh;
    assert_int_equal(pthread_mutex_init(&run.lock, NULL), 0);
    least_gap = HUGE_VAL;
    run_ranks(&run, settings);
    out.gap = least_gap;
    (void)pthread_mutex_destroy(&run.lock);
    smp_comm_threads.destroy(run.world);
    smp_mesh_destroy(mesh);
    tiny_close(&t);
    return out;
}

static inline trained train_job(const char *config, const char *settings, uint32_t ranks,
                                bool async, uint32_t steps, double lr)
{
    return train_dealt(config, settings, ranks, async, steps, lr, 0);
}

static inline void trained_free(trained *t)
{
    for (int s = 0; s < RANKS_STEPS_MAX; s++) {
        free(t->gradients[s]);
    }
    free(t->parameters);
}

/* |a - b| / |b| of two vectors. */
static inline double distance(const float *a, const float *b, uint64_t n)
{
    double difference = 0, norm = 0;

    for (uint64_t i = 0; i < n; i++) {
        double d = (double)a[i] - (double)b[i];

        difference += d * d;
        norm += (double)b[i] * (double)b[i];
    }
    return sqrt(difference / norm);
}

enum { DIFFER_TEXT = 1024 };

/* Losses, norms, gradients of each step and parameters at the end; tolerance 0: to the bit.
 * What differs is in `text`, which is empty where nothing does. */
static inline void differ(const char *what, const trained *a, const trained *b, uint32_t steps,
                          double tolerance, char *text, size_t size)
{
    double d = 0;
    uint32_t s = 0;

    text[0] = '\0';
    for (; s < steps; s++) {
        d = distance(a->gradients[s], b->gradients[s], b->n);
        if (!(fabs(a->loss[s] - b->loss[s]) <= tolerance * fabs(b->loss[s]))
            || !(fabs(a->norm[s] - b->norm[s]) <= tolerance * fabs(b->norm[s]))
            || !(d <= tolerance) || !(a->rows[s] <= 0)) {
            (void)snprintf(text, size,
                           "%s: step %u: loss %.9g, expected %.9g; norm %.9g, expected %.9g; "
                           "gradients differ by %.3g; rows without room %g times",
                           what, s + 1, a->loss[s], b->loss[s], a->norm[s], b->norm[s], d,
                           a->rows[s]);
            return;
        }
    }
    d = distance(a->parameters, b->parameters, b->n);
    if (!(d <= tolerance)) {
        (void)snprintf(text, size, "%s: parameters differ by %.3g", what, d);
    }
}

static inline void compare_trained(const char *what, const trained *a, const trained *b,
                                   uint32_t steps, double tolerance)
{
    char text[DIFFER_TEXT];

    differ(what, a, b, steps, tolerance, text, sizeof text);
    if (text[0] != '\0') {
        fail_msg("%s", text);
    }
}

#endif
