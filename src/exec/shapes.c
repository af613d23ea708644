/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs of other shapes: a step whose rows are shorter than the plan's.
 *
 * A shape is lowered once ("compiled") and kept.  It has the same buffers as the plan's
 * program, none larger, so each takes the place that the plan gave it: the arena, parameters
 * and optimizer state stay where they are, whatever shape runs.  Waits are derived anew, since
 * operands are other ranges.
 */
#include "config.h"

#include "exec/clock.h"
#include "exec/run.h"

#include "step/lower.h"

#include <string.h>

/* Places of the plan's program for the buffers of another. */
static bool take_places(smp_program *to, const smp_program *from)
{
    bool same = to->n_buffer == from->n_buffer;

    for (uint32_t i = 0; same && i < to->n_buffer; i++) {
        smp_buffer *b = &to->buffers[i];
        const smp_buffer *a = &from->buffers[i];

        same = strcmp(a->name, b->name) == 0 && a->space == b->space && a->index == b->index
               && a->first == b->first && a->entries == b->entries && a->slots == b->slots
               && b->bytes <= a->bytes;
        b->base = a->base;
        b->stride = a->stride;
        b->slot_base = a->slot_base;
    }
    to->slot_bases = from->slot_bases;
    to->n_slot_base = from->n_slot_base;
    to->arena_bytes = from->arena_bytes;
    to->host_arena_bytes = from->host_arena_bytes;
    return same;
}

static smp_status compile(smp_runner *r, uint64_t seq, smp_errors *errors)
{
    const smp_shape *plan = &r->shapes[0];
    smp_job *job = SMP_ARENA_NEW(r->arena, smp_job);
    smp_program *program = NULL;
    smp_status status;

    *job = *plan->job;
    job->batch.longest = job->batch.seq_len;
    job->batch.seq_len = seq;
    status = smp_lower_rank(job, r->mesh, r->rank.rank, NULL, r->arena, errors, &program);
    if (status == SMP_OK && !take_places(program, plan->program)) {
        status = smp_fail(errors, SMP_INPUT, NULL,
                          "rows of %llu tokens make a program with other buffers than the "
                          "plan's of %llu; --pad max_length has one shape",
                          (unsigned long long)seq,
                          (unsigned long long)plan->job->batch.seq_len);
    }
    if (status == SMP_OK) {
        status = smp_program_derive_waits(program, errors);
    }
    if (status == SMP_OK) {
        r->rank.job = job;
        r->rank.program = program;
        r->n_record = 0;
        smp_runner_index(r);
    }
    return status;
}

static void use(smp_runner *r, const smp_shape *shape)
{
    r->rank.job = shape->job;
    r->rank.program = shape->program;
    r->record0 = shape->record0;
    r->n_record = shape->n_record;
    r->events = shape->events;
    r->spans = shape->spans;
    r->awaited = shape->awaited;
}

/* What the runner has now, as a shape. */
static smp_shape current(const smp_runner *r)
{
    return (smp_shape){ .seq = r->rank.job->batch.seq_len, .job = r->rank.job,
                        .program = r->rank.program, .record0 = r->record0,
                        .n_record = r->n_record, .events = r->events, .spans = r->spans,
                        .awaited = r->awaited };
}

static void add(smp_runner *r)
{
    SMP_GROW(r->shapes, r->n_shape, r->shape_capacity);
    r->shapes[r->n_shape++] = current(r);
}

smp_status smp_runner_shape(smp_runner *r, uint64_t seq, smp_errors *errors)
{
    double start = smp_now_s();
    smp_status status;

    if (r->rank.job->batch.seq_len == seq) {
        return SMP_OK;
    }
    if (r->n_shape == 0) {
        add(r);
    }
    for (uint32_t i = 0; i < r->n_shape; i++) {
        if (r->shapes[i].seq == seq) {
            use(r, &r->shapes[i]);
            return SMP_OK;
        }
    }
    status = compile(r, seq, errors);
    if (status == SMP_OK) {
        add(r);
        r->compiles++;
        r->compile_seconds += smp_now_s() - start;
    }
    return status;
}
