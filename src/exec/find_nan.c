/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a loss that is no number comes from.
 *
 * A step whose loss is not finite has changed no parameter, nor has one that was begun behind
 * it (SMP_SCALAR_HALTED), so its forward can be run again, task by task, and each output looked
 * at.  All ranks do so together, since their collectives need each other.
 */
#include "config.h"

#include "exec/run.h"
#include "exec/store.h"

#include "base/arena.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 4096 };

/* The operand of a forward operation that holds its result in the task's dtype, or -1. */
static int result_of(const smp_task *task)
{
    switch ((int)task->op) {
    case SMP_OP_BIAS:
    case SMP_OP_ROPE:
    case SMP_OP_QK_RMS:
    case SMP_OP_TEMPER:
    case SMP_OP_ALL_REDUCE:
        return 0;
    case SMP_OP_POSITION:
    case SMP_OP_ATTENTION:
    case SMP_OP_SCORES:
    case SMP_OP_SOFTMAX:
    case SMP_OP_ACTIVATION:
    case SMP_OP_GATED:
    case SMP_OP_DROPOUT:
    case SMP_OP_CAST:
    case SMP_OP_ALL_GATHER:
        return 1;
    case SMP_OP_EMBED:
    case SMP_OP_MATMUL:
    case SMP_OP_NORM:
    case SMP_OP_VALUES:
    case SMP_OP_ADD:
        return 2;
    default:
        return -1;
    }
}

static smp_status is_finite(smp_runner *r, const char *at, uint64_t bytes, smp_dtype t,
                            smp_errors *errors, bool *finite_p)
{
    float *values = smp_heap_alloc(2 * CHUNK, sizeof *values);
    void *stored = values + CHUNK;
    uint64_t elems = bytes / smp_dtype_bytes(t);
    smp_status status = SMP_OK;

    *finite_p = true;
    for (uint64_t i = 0; i < elems && *finite_p && status == SMP_OK; i += CHUNK) {
        uint64_t n = elems - i < CHUNK ? elems - i : CHUNK;

        r->ops->copy(r->device, SMP_STREAM_COMPUTE, stored, at + i * smp_dtype_bytes(t),
                     n * smp_dtype_bytes(t));
        status = r->ops->sync(r->device, errors);
        smp_load(values, stored, t, 0, n);
        for (uint64_t j = 0; j < n; j++) {
            *finite_p = *finite_p && isfinite(values[j]);
        }
    }
    free(values);
    return status;
}

/* Runs a task and looks at what it made. */
static smp_status try_task(smp_runner *r, const smp_pass *pass, uint32_t instance,
                           uint32_t index, bool look, smp_errors *errors, bool *finite_p)
{
    const smp_program *p = r->rank.program;
    const smp_task *task = &p->tasks[p->segments[p->order[instance].segment].task0 + index];
    int operand = result_of(task);
    smp_status status;

    *finite_p = true;
    smp_runner_issue(r, pass, instance, index);
    status = r->ops->sync(r->device, errors);
    if (status != SMP_OK || operand < 0 || !look || task->phase != SMP_PHASE_FORWARD
        || (task->dtype != SMP_F32 && task->dtype != SMP_BF16 && task->dtype != SMP_F16)) {
        return status;
    }
    return is_finite(r, smp_runner_operand(r, instance, index, (uint32_t)operand),
                     p->accesses[task->access0 + (uint32_t)operand].bytes,
                     (smp_dtype)task->dtype, errors, finite_p);
}

/* The first task of this rank whose result is not finite: its instance in the upper half and
 * its place in the segment in the lower; UINT64_MAX: none. */
static smp_status find_here(smp_runner *r, const smp_pass *pass, smp_errors *errors,
                            uint64_t *place_p)
{
    const smp_program *p = r->rank.program;

    *place_p = UINT64_MAX;
    for (uint32_t i = 0; i < p->n_instance; i++) {
        const smp_segment *segment = &p->segments[p->order[i].segment];

        for (uint32_t t = 0; t < segment->n_task; t++) {
            bool finite;
            smp_status status;

            if (p->tasks[segment->task0 + t].phase == SMP_PHASE_UPDATE) {
                return SMP_OK;
            }
            status = try_task(r, pass, i, t, *place_p == UINT64_MAX, errors, &finite);
            if (status != SMP_OK) {
                return status;
            }
            if (!finite) {
                *place_p = (uint64_t)i << 32 | t;
            }
        }
    }
    return SMP_OK;
}

/* The earliest of all ranks, the lowest of those that have it. */
static smp_status find_first(smp_runner *r, const smp_pass *pass, smp_errors *errors,
                             uint64_t *place_p, uint32_t *rank_p)
{
    uint32_t world = r->rank.job->world;
    uint64_t *places = smp_heap_alloc(world, sizeof *places), here;
    smp_status status = find_here(r, pass, errors, &here);

    if (status == SMP_OK) {
        status = r->everyone.ops->all_gather(r->everyone.channel, &here, places, sizeof here,
                                             errors);
    }
    *place_p = UINT64_MAX;
    for (uint32_t i = 0; i < world && status == SMP_OK; i++) {
        if (places[i] < *place_p) {
            *place_p = places[i];
            *rank_p = i;
        }
    }
    free(places);
    return status;
}

/* Its inputs, shape and noise again, on the parameters that have not changed since. */
static smp_status repeat(smp_runner *r, const smp_pass *pass, smp_errors *errors,
                         uint64_t *place_p, uint32_t *rank_p)
{
    smp_pass again = { .inputs = pass->inputs, .step = pass->step };
    smp_status status = r->ops->sync(r->device, errors);

    if (status == SMP_OK) {
        status = smp_runner_shape(r, pass->inputs.seq, errors);
    }
    if (status != SMP_OK) {
        return status;
    }
    smp_runner_put_inputs(r, &pass->inputs);
    r->rank.rows = pass->inputs.rows;
    again.rank = r->rank;
    return find_first(r, &again, errors, place_p, rank_p);
}

smp_status smp_runner_find_nan(smp_runner *r, const smp_pass *pass, smp_errors *errors)
{
    const char *loss = isnan(pass->scalars[SMP_SCALAR_LOSS]) ? "nan" : "infinite";
    const smp_program *p;
    const smp_instance *at;
    uint64_t place = UINT64_MAX;
    uint32_t rank = 0;
    smp_status status = repeat(r, pass, errors, &place, &rank);

    if (status != SMP_OK) {
        return status;
    }
    if (place == UINT64_MAX) {
        return smp_fail(errors, SMP_SYSTEM, NULL,
                        "step %" PRIu64 ": the loss is %s; no task before it has a result that "
                        "is not finite",
                        pass->step + 1, loss);
    }
    p = r->rank.program;
    at = &p->order[place >> 32];
    return smp_fail(errors, SMP_SYSTEM, NULL,
                    "step %" PRIu64 ": the loss is %s; the first task whose result is not "
                    "finite is %s in %s of layer %u, micro-batch %u, on rank %u",
                    pass->step + 1, loss,
                    p->tasks[p->segments[at->segment].task0 + (uint32_t)place].name,
                    p->segments[at->segment].name, at->layer, at->micro_batch, rank);
}
