/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Live bytes over simulated time, for the trace and the memory plot.
 *
 * This is not the memory plan: the plan is made for the order of issue and decides addresses;
 * here the same lives are laid over the times of one simulation.  A life runs from the start
 * of the first access to a place to the end of the last one before the place holds something
 * else or is written anew as a whole.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "sim/sim.h"

#include "base/numeric.h"

#include <stdlib.h>

/* One life: what a place holds from the first access to the last. */
typedef struct life {
    uint64_t key;
    int64_t from_ps, to_ps;
    int64_t before_ps; /* end of the life before it at this place */
    bool any;
} life;

/* A life begins or ends. */
typedef struct change {
    int64_t time_ps;
    uint32_t buffer;
    bool begins;
} change;

typedef struct collector {
    const smp_program *program;
    uint32_t *place0;  /* by buffer, one more at the end: its places in `lives` */
    life *lives;       /* by place: the one that is open */
    change *changes;
    size_t n_change, capacity;
} collector;

static uint32_t place_count(const smp_buffer *buffer)
{
    uint32_t n = buffer->slots ? buffer->slots : buffer->entries;
    return n > 0 ? n : 1;
}

/* Place of an access inside its buffer, as smp_buffer_address takes it. */
static uint32_t place_of(const smp_buffer *buffer, const smp_instance *instance, int delta)
{
    int64_t index = 0;
    switch (buffer->index) {
    case SMP_INDEX_TURN: index = (int64_t)instance->turn + delta; break;
    case SMP_INDEX_LAYER:
        index = smp_layer_entry(buffer, (int64_t)instance->layer + delta);
        break;
    case SMP_INDEX_NONE: break;
    }
    return (uint32_t)((uint64_t)index % place_count(buffer));
}

/* What a place holds: different keys are different data (smp_scope). */
static uint64_t life_key(const smp_buffer *buffer, const smp_instance *instance,
                         uint32_t instance_number, int delta)
{
    if (buffer->scope == SMP_SCOPE_INSTANCE) {
        return instance_number;
    }
    switch (buffer->index) {
    case SMP_INDEX_TURN: return (uint64_t)((int64_t)instance->turn + delta);
    case SMP_INDEX_LAYER:
        return (uint64_t)((int64_t)instance->layer + delta) << 32 | instance->micro_batch;
    case SMP_INDEX_NONE: break;
    }
    return instance->micro_batch;
}

/* A life may begin in a part of the place whose other parts the life before still uses: the
 * place is counted once. */
static void close_life(collector *k, uint32_t buffer, life *life_)
{
    if (life_->any) {
        life_->from_ps = life_->from_ps > life_->before_ps ? life_->from_ps : life_->before_ps;
        life_->to_ps = life_->to_ps > life_->from_ps ? life_->to_ps : life_->from_ps;
        life_->before_ps = life_->to_ps;
        SMP_GROW(k->changes, k->n_change, k->capacity);
        k->changes[k->n_change++] = (change){life_->from_ps, buffer, true};
        SMP_GROW(k->changes, k->n_change, k->capacity);
        k->changes[k->n_change++] = (change){life_->to_ps, buffer, false};
    }
    life_->any = false;
}

/* Does the task write all of this place and read none of it? */
static bool writes_anew(const smp_program *program, const smp_task *task,
                        const smp_instance *instance, uint32_t number, uint32_t place)
{
    const smp_buffer *buffer = &program->buffers[number];
    bool whole = false;
    for (uint32_t a = task->access0; a < task->access0 + task->n_access; a++) {
        const smp_access *access = &program->accesses[a];
        if (access->buffer != number || place_of(buffer, instance, access->delta) != place) {
            continue;
        }
        if (access->reads) {
            return false;
        }
        whole = whole || (access->offset_bytes == 0 && access->bytes == buffer->bytes);
    }
    return whole;
}

/* Lives begin and end in the order of issue, as in the memory plan. */
static void touch(collector *k, const smp_task *task, const smp_access *access,
                  uint32_t instance_number, const smp_record *record)
{
    const smp_instance *instance = &k->program->order[instance_number];
    const smp_buffer *buffer = &k->program->buffers[access->buffer];
    uint32_t place = place_of(buffer, instance, access->delta);
    life *life_ = &k->lives[k->place0[access->buffer] + place];
    uint64_t key = life_key(buffer, instance, instance_number, access->delta);
    bool fresh = !life_->any || life_->key != key ||
                 (access->writes && life_->to_ps <= record->start_ps &&
                  writes_anew(k->program, task, instance, access->buffer, place));
    if (fresh) {
        close_life(k, access->buffer, life_);
        *life_ = (life){key, record->start_ps, record->end_ps, life_->before_ps, true};
        return;
    }
    life_->from_ps = record->start_ps < life_->from_ps ? record->start_ps : life_->from_ps;
    life_->to_ps = record->end_ps > life_->to_ps ? record->end_ps : life_->to_ps;
}

static bool changes_over_time(const smp_buffer *buffer)
{
    return buffer->space != SMP_SPACE_TOKEN && buffer->scope != SMP_SCOPE_STEP;
}

static void collect(const smp_simulation *simulation, uint32_t c, collector *k)
{
    const smp_program *program = k->program;
    for (uint32_t i = 0; i < program->n_instance; i++) {
        const smp_segment *segment = &program->segments[program->order[i].segment];
        const smp_record *records = &simulation->records[c][simulation->record0[c][i]];
        for (uint32_t t = 0; t < segment->n_task; t++) {
            const smp_task *task = &program->tasks[segment->task0 + t];
            for (uint32_t a = task->access0; a < task->access0 + task->n_access; a++) {
                const smp_access *access = &program->accesses[a];
                if (changes_over_time(&program->buffers[access->buffer])) {
                    touch(k, task, access, i, &records[t]);
                }
            }
        }
    }
    for (uint32_t b = 0; b < program->n_buffer; b++) {
        for (uint32_t p = k->place0[b]; p < k->place0[b + 1]; p++) {
            close_life(k, b, &k->lives[p]);
        }
    }
}

/* ---------------------------------------------------------------------- sweep */

/* Ends come first, so that a place handed on at one instant is not counted twice. */
static int change_compare(const void *a_, const void *b_)
{
    const change *a = a_;
    const change *b = b_;
    if (a->time_ps != b->time_ps) {
        return a->time_ps < b->time_ps ? -1 : 1;
    }
    if (a->begins != b->begins) {
        return a->begins ? 1 : -1;
    }
    return a->buffer < b->buffer ? -1 : a->buffer > b->buffer;
}

static void apply(smp_live_point *point, const smp_buffer *buffer, bool begins)
{
    uint64_t *bytes = buffer->space == SMP_SPACE_HOST ? &point->host_bytes
                                                      : &point->kind_bytes[buffer->kind];
    *bytes = begins ? *bytes + buffer->bytes : *bytes - buffer->bytes;
}

/* Everything of scope STEP, from the start. */
static void add_static(const smp_program *program, smp_live_point *point)
{
    for (uint32_t b = 0; b < program->n_buffer; b++) {
        const smp_buffer *buffer = &program->buffers[b];
        if (buffer->scope == SMP_SCOPE_STEP && buffer->space != SMP_SPACE_TOKEN) {
            uint64_t *bytes = buffer->space == SMP_SPACE_HOST
                                  ? &point->host_bytes
                                  : &point->kind_bytes[buffer->kind];
            *bytes += smp_mul(buffer->bytes, place_count(buffer));
        }
    }
}

static collector collect_changes(const smp_simulation *simulation, uint32_t c)
{
    const smp_program *program = simulation->step->programs[c];
    collector k = {.program = program};
    k.place0 = smp_heap_alloc((size_t)program->n_buffer + 1, sizeof *k.place0);
    for (uint32_t b = 0; b < program->n_buffer; b++) {
        k.place0[b + 1] = k.place0[b] + place_count(&program->buffers[b]);
    }
    k.lives = smp_heap_alloc((size_t)k.place0[program->n_buffer] + 1, sizeof *k.lives);
    collect(simulation, c, &k);
    free(k.lives);
    free(k.place0);
    if (k.n_change > 0) {
        qsort(k.changes, k.n_change, sizeof *k.changes, change_compare);
    }
    return k;
}

void smp_live_sweep(const smp_simulation *simulation, uint32_t c,
                    void (*visit)(void *context, const smp_live_point *point), void *context)
{
    collector k = collect_changes(simulation, c);
    smp_live_point point = {0};
    add_static(k.program, &point);
    for (size_t i = 0; i < k.n_change;) {
        int64_t time_ps = k.changes[i].time_ps;
        if (time_ps > point.time_ps) {
            visit(context, &point);
        }
        point.time_ps = time_ps;
        for (; i < k.n_change && k.changes[i].time_ps == time_ps; i++) {
            apply(&point, &k.program->buffers[k.changes[i].buffer], k.changes[i].begins);
        }
    }
    visit(context, &point);
    if (point.time_ps < simulation->report.step_ps) {
        point.time_ps = simulation->report.step_ps;
        visit(context, &point);
    }
    free(k.changes);
}
