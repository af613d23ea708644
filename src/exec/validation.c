/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Validation: the program of a step with its update left out.
 *
 * There is no second program for it, so it costs what a step costs.  Nothing is dropped, the
 * update keeps the old values, and the count of steps stands still: training goes on to the
 * bit as if it had not been.
 */
#include "config.h"

#include "exec/exec.h"

#include "base/arena.h"

#include <stdlib.h>

struct smp_validation {
    const smp_samples *samples;
    smp_loader_options options;
    uint64_t batches;
};

smp_inputs smp_exec_inputs(const smp_loaded *loaded, bool evaluating)
{
    return (smp_inputs){ .seq = loaded->seq,
                         .ids = loaded->ids,
                         .targets = loaded->targets,
                         .rows = { .begins = loaded->plain ? NULL : loaded->begins,
                                   .targets = loaded->plain ? 0 : loaded->targets_counted,
                                   .padded = loaded->padded,
                                   .evaluating = evaluating } };
}

smp_status smp_validation_create(const smp_samples *samples, const smp_loader_options *options,
                                 uint64_t batches, smp_errors *errors,
                                 smp_validation **validation_p)
{
    smp_validation *v = smp_heap_alloc(1, sizeof *v);
    uint64_t each = options->rows * options->data_ranks;

    if (samples->n < each) {
        free(v);
        return smp_fail(errors, SMP_INPUT,
                        &(smp_place){ .file = smp_tokens_facts_of(samples->tokens)->path },
                        "%llu samples; a global batch of validation has %llu",
                        (unsigned long long)samples->n, (unsigned long long)each);
    }
    v->samples = samples;
    v->options = *options;
    v->options.start = (smp_loader_state){ .shuffle = false };
    v->options.kept = 0; /* one batch is in use at a time */
    v->batches = batches < samples->n / each ? batches : samples->n / each;
    *validation_p = v;
    return SMP_OK;
}

void smp_validation_destroy(smp_validation *v)
{
    free(v);
}

smp_status smp_exec_stops(smp_runner *r, const atomic_bool *stop, smp_errors *errors,
                          bool *stop_p)
{
    float asked;
    smp_status status;

    *stop_p = false;
    if (!stop) {
        return SMP_OK;
    }
    asked = atomic_load(stop) ? 1.0f : 0.0f;
    status = r->everyone.ops->all_reduce(r->everyone.channel, &asked, 1, SMP_F32, 1.0f, errors);
    *stop_p = asked > 0;
    return status;
}

/* Sums of the losses of the targets, and how many there are. */
typedef struct sums { double loss, targets; } sums;

static smp_status add_batch(smp_loader *loader, smp_runner *r, smp_errors *errors, sums *to)
{
    const smp_loaded *loaded = NULL;
    const smp_pass *pass = NULL;
    smp_status status = smp_loader_next(loader, errors, &loaded);

    if (status == SMP_OK) {
        const smp_inputs inputs = smp_exec_inputs(loaded, true);

        status = smp_runner_step(r, &inputs, errors, &pass);
    }
    if (status == SMP_OK) {
        to->loss += (double)pass->scalars[SMP_SCALAR_LOSS] * loaded->targets_counted;
        to->targets += loaded->targets_counted;
    }
    return status;
}

smp_status smp_validation_run(smp_validation *v, smp_runner *r, const atomic_bool *stop,
                              smp_errors *errors, double *loss_p, bool *stopped_p)
{
    smp_loader *loader = NULL;
    sums all = { 0 };
    const uint64_t trained = r->rank.job->batch.seq_len; /* the shape of the last step */
    smp_status status = smp_loader_create(v->samples, &v->options, errors, &loader);

    *stopped_p = false;
    for (uint64_t i = 0; i < v->batches && status == SMP_OK && !*stopped_p; i++) {
        status = add_batch(loader, r, errors, &all);
        if (status == SMP_OK && i + 1 < v->batches) {
            status = smp_exec_stops(r, stop, errors, stopped_p);
        }
    }
    smp_loader_destroy(loader);
    if (status == SMP_OK) {
        status = smp_runner_shape(r, trained, errors);
    }
    *loss_p = all.loss / all.targets;
    return status;
}
