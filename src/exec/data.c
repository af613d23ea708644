/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ring of batches that threads fill and the rank empties, in order.
 */
#include "config.h"

#include "exec/data.h"
#include "exec/threads.h"

#include "base/arena.h"
#include "base/numeric.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct slot {
    smp_loaded loaded;
    uint64_t batch;            /* that it holds, where `ready` */
    bool ready;
    smp_status status;
    smp_errors *errors;
} slot;

struct smp_loader {
    const smp_samples *samples;
    smp_loader_options options;
    smp_sampler sampler;
    uint64_t first;            /* place of this rank's first sample, over epochs */
    slot *slots;
    uint32_t n_slot, n_thread;
    pthread_t *threads;
    pthread_mutex_t lock;      /* of what follows and of the slots' `ready` */
    pthread_cond_t changed;
    bool has_lock, has_condition;
    uint64_t issued;           /* batches that a thread has taken up */
    uint64_t asked;            /* batches asked for; the last ones are in use */
    bool stop;
};

/* ---- making a batch ---- */

static uint64_t sample_at(const smp_loader *l, uint32_t rank, uint64_t batch, uint64_t row)
{
    return smp_sampler_at(&l->sampler, rank, l->first + batch * l->options.rows + row);
}

/* Shape and counted targets of the global batch. */
static void measure(const smp_loader *l, uint64_t batch, smp_loaded *loaded)
{
    const smp_loader_options *o = &l->options;
    uint64_t longest = 1, targets = 0, step;

    loaded->plain = !l->samples->padded && !l->samples->documents;
    loaded->padded = l->samples->padded;
    loaded->seq = l->samples->seq;
    loaded->targets_counted = (double)(o->rows * o->data_ranks * l->samples->seq);
    if (loaded->plain) {
        return;
    }
    for (uint32_t rank = 0; rank < o->data_ranks; rank++) {
        for (uint64_t row = 0; row < o->rows; row++) {
            uint64_t sample = sample_at(l, rank, batch, row);
            uint64_t length = smp_samples_length(l->samples, sample);

            longest = length > longest ? length : longest;
            targets += smp_samples_targets(l->samples, sample);
        }
    }
    loaded->targets_counted = targets > 0 ? (double)targets : 1;
    if (o->pad == SMP_PAD_LONGEST || o->pad == SMP_PAD_BUCKET) {
        step = smp_round_up(o->pad == SMP_PAD_BUCKET ? o->bucket : 1, o->multiple);
        longest = smp_round_up(longest, step);
        loaded->seq = longest < l->samples->seq ? longest : l->samples->seq;
    }
}

static void fill(const smp_loader *l, uint64_t batch, slot *s)
{
    smp_loaded *b = &s->loaded;

    s->status = SMP_OK;
    smp_errors_clear(s->errors);
    measure(l, batch, b);
    for (uint64_t row = 0; row < l->options.rows && s->status == SMP_OK; row++) {
        uint64_t at = row * b->seq;

        s->status = smp_samples_read(l->samples,
                                     sample_at(l, l->options.data_rank, batch, row), b->seq,
                                     l->options.vocab, s->errors, b->ids + at,
                                     b->targets + at, b->begins + at);
    }
}

/* ---- threads ---- */

/* A slot is free again when `kept` batches more than the one after it were asked for. */
static bool has_room(const smp_loader *l)
{
    uint64_t in_use = 1 + (uint64_t)l->options.kept;

    return l->issued < (l->asked > in_use ? l->asked - in_use : 0) + l->n_slot;
}

static void *thread_main(void *argument)
{
    smp_loader *l = argument;

    (void)pthread_mutex_lock(&l->lock);
    while (!l->stop) {
        if (has_room(l)) {
            uint64_t batch = l->issued++;
            slot *s = &l->slots[batch % l->n_slot];

            s->ready = false;
            (void)pthread_mutex_unlock(&l->lock);
            fill(l, batch, s);
            (void)pthread_mutex_lock(&l->lock);
            s->batch = batch;
            s->ready = true;
            (void)pthread_cond_broadcast(&l->changed);
        } else {
            (void)pthread_cond_wait(&l->changed, &l->lock);
        }
    }
    (void)pthread_mutex_unlock(&l->lock);
    return NULL;
}

static smp_status start_threads(smp_loader *l, smp_errors *errors)
{
    int error = pthread_mutex_init(&l->lock, NULL);

    l->has_lock = error == 0;
    if (error == 0) {
        error = pthread_cond_init(&l->changed, NULL);
        l->has_condition = error == 0;
    }
    l->threads = smp_heap_alloc(l->options.threads + 1, sizeof *l->threads);
    while (error == 0 && l->n_thread < l->options.threads) {
        error = smp_thread_create(&l->threads[l->n_thread], thread_main, l);
        l->n_thread += error == 0;
    }
    return error == 0 ? SMP_OK
                      : smp_fail(errors, SMP_SYSTEM, NULL, "no thread to read data: %s",
                                 strerror(error));
}

/* An epoch gives every rank a sample. */
static smp_status check_round(const smp_samples *samples, const smp_loader_options *options,
                              smp_errors *errors)
{
    if (!options->drop_last || samples->n >= options->data_ranks) {
        return SMP_OK;
    }
    return smp_fail(errors, SMP_INPUT,
                    &(smp_place){ .file = smp_tokens_facts_of(samples->tokens)->path },
                    "%llu sample%s; a round of %u data ranks needs one for each, and what does "
                    "not fill a round is dropped, but with --no-drop-last",
                    (unsigned long long)samples->n, samples->n > 1 ? "s" : "",
                    options->data_ranks);
}

smp_status smp_loader_create(const smp_samples *samples, const smp_loader_options *options,
                             smp_errors *errors, smp_loader **loader_p)
{
    smp_loader *l = smp_heap_alloc(1, sizeof *l);
    const smp_loader_state *start = &options->start;
    uint64_t tokens = smp_mul(options->rows, samples->seq);
    smp_status status = check_round(samples, options, errors);

    if (status != SMP_OK) {
        free(l);
        return status;
    }
    l->samples = samples;
    l->options = *options;
    l->sampler = (smp_sampler){ .n = samples->n, .ranks = options->data_ranks,
                                .seed = start->seed, .shuffle = start->shuffle,
                                .drop_last = options->drop_last };
    l->first = start->epoch * smp_sampler_per_epoch(&l->sampler) + start->position;
    l->n_slot = options->threads + options->kept + 1;
    l->slots = smp_heap_alloc(l->n_slot, sizeof *l->slots);
    for (uint32_t i = 0; i < l->n_slot; i++) {
        l->slots[i].errors = smp_errors_create();
        l->slots[i].loaded.ids = smp_heap_alloc(smp_mul(3, tokens), sizeof(int32_t));
        l->slots[i].loaded.targets = l->slots[i].loaded.ids + tokens;
        l->slots[i].loaded.begins = l->slots[i].loaded.targets + tokens;
    }
    status = start_threads(l, errors);
    if (status != SMP_OK) {
        smp_loader_destroy(l);
        return status;
    }
    *loader_p = l;
    return SMP_OK;
}

void smp_loader_destroy(smp_loader *l)
{
    if (!l) {
        return;
    }
    if (l->has_condition) {
        (void)pthread_mutex_lock(&l->lock);
        l->stop = true;
        (void)pthread_cond_broadcast(&l->changed);
        (void)pthread_mutex_unlock(&l->lock);
        for (uint32_t i = 0; i < l->n_thread; i++) {
            (void)pthread_join(l->threads[i], NULL);
        }
        (void)pthread_cond_destroy(&l->changed);
    }
    if (l->has_lock) {
        (void)pthread_mutex_destroy(&l->lock);
    }
    for (uint32_t i = 0; i < l->n_slot; i++) {
        smp_errors_destroy(l->slots[i].errors);
        free(l->slots[i].loaded.ids);
    }
    free(l->slots);
    free(l->threads);
    free(l);
}

/* ---- the rank ---- */

static slot *await_batch(smp_loader *l)
{
    uint64_t batch;
    slot *s;

    (void)pthread_mutex_lock(&l->lock);
    batch = l->asked++;
    s = &l->slots[batch % l->n_slot];
    (void)pthread_cond_broadcast(&l->changed);
    while (!(s->ready && s->batch == batch)) {
        (void)pthread_cond_wait(&l->changed, &l->lock);
    }
    (void)pthread_mutex_unlock(&l->lock);
    return s;
}

smp_status smp_loader_next(smp_loader *l, smp_errors *errors, const smp_loaded **loaded_p)
{
    slot *s;

    if (l->n_thread == 0) {
        s = &l->slots[l->asked % l->n_slot];
        fill(l, l->asked++, s);
    } else {
        s = await_batch(l);
    }
    if (s->status != SMP_OK) {
        return smp_fail(errors, s->status, NULL, "%s", smp_errors_text(s->errors, 0));
    }
    *loaded_p = &s->loaded;
    return SMP_OK;
}

smp_loader_state smp_loader_state_of(const smp_loader *l, uint64_t unused)
{
    uint64_t each = smp_sampler_per_epoch(&l->sampler);
    uint64_t at = l->first + (l->asked - unused) * l->options.rows;

    return (smp_loader_state){ .epoch = at / each, .position = at % each,
                               .seed = l->sampler.seed, .shuffle = l->sampler.shuffle };
}
