/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Live bytes over simulated time, for the trace and the memory plot.
 *
 * This is not the memory plan: the plan is made for the order of issue and decides addresses;
 * here the same lifetimes are laid over the times of one simulation.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "sim/sim.h"

#include "base/numeric.h"

#include <stdlib.h>

/* One entry of a buffer in one lifetime; `key` is what distinguishes it from others. */
typedef struct life {
    uint64_t key;
    uint32_t buffer;
    bool used;
    int64_t from_ps, to_ps;
} life;

typedef struct lives {
    life *slots; /* open addressing, a power of two */
    size_t n_slot, n_used;
} lives;

static life *find_slot(const lives *table, uint32_t buffer, uint64_t key)
{
    uint64_t words[2] = {buffer, key};
    size_t at = (size_t)smp_hash(words, sizeof words, 0) & (table->n_slot - 1);
    while (table->slots[at].used &&
           (table->slots[at].buffer != buffer || table->slots[at].key != key)) {
        at = (at + 1) & (table->n_slot - 1);
    }
    return &table->slots[at];
}

static void grow(lives *table)
{
    lives bigger = {.n_slot = 2 * table->n_slot, .n_used = table->n_used};
    bigger.slots = smp_heap_alloc(bigger.n_slot, sizeof *bigger.slots);
    for (size_t i = 0; i < table->n_slot; i++) {
        if (table->slots[i].used) {
            *find_slot(&bigger, table->slots[i].buffer, table->slots[i].key) = table->slots[i];
        }
    }
    free(table->slots);
    *table = bigger;
}

static void touch(lives *table, uint32_t buffer, uint64_t key, int64_t from_ps, int64_t to_ps)
{
    if (2 * table->n_used >= table->n_slot) {
        grow(table);
    }
    life *slot = find_slot(table, buffer, key);
    if (!slot->used) {
        *slot = (life){key, buffer, true, from_ps, to_ps};
        table->n_used++;
        return;
    }
    slot->from_ps = from_ps < slot->from_ps ? from_ps : slot->from_ps;
    slot->to_ps = to_ps > slot->to_ps ? to_ps : slot->to_ps;
}

/* Which lifetime of a buffer an access belongs to (smp_scope): 32 bits of index above 32 of
 * micro-batch; an instance has a number of its own. */
static uint64_t life_key(const smp_buffer *buffer, const smp_access *access,
                         const smp_instance *instance, uint32_t instance_number)
{
    if (buffer->scope == SMP_SCOPE_INSTANCE) {
        return instance_number;
    }
    switch (buffer->index) {
    case SMP_INDEX_TURN:
        return (uint64_t)(uint32_t)((int64_t)instance->turn + access->delta) << 32;
    case SMP_INDEX_LAYER:
        return (uint64_t)(uint32_t)((int64_t)instance->layer + access->delta) << 32 |
               instance->micro_batch;
    case SMP_INDEX_NONE:
        break;
    }
    return instance->micro_batch;
}

static void collect(const smp_simulation *simulation, uint32_t c, lives *table)
{
    const smp_program *program = simulation->step->programs[c];
    for (uint32_t i = 0; i < program->n_instance; i++) {
        const smp_instance *instance = &program->order[i];
        const smp_segment *segment = &program->segments[instance->segment];
        const smp_record *records = &simulation->records[c][simulation->record0[c][i]];
        for (uint32_t t = 0; t < segment->n_task; t++) {
            const smp_task *task = &program->tasks[segment->task0 + t];
            for (uint32_t a = task->access0; a < task->access0 + task->n_access; a++) {
                const smp_access *access = &program->accesses[a];
                const smp_buffer *buffer = &program->buffers[access->buffer];
                if (buffer->space != SMP_SPACE_TOKEN && buffer->scope != SMP_SCOPE_STEP) {
                    touch(table, access->buffer, life_key(buffer, access, instance, i),
                          records[t].start_ps, records[t].end_ps);
                }
            }
        }
    }
}

/* A lifetime begins or ends. */
typedef struct change {
    int64_t time_ps;
    uint32_t buffer;
    bool begins;
} change;

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

static change *sort_changes(const lives *table)
{
    change *changes = smp_heap_alloc(2 * table->n_used + 1, sizeof *changes);
    size_t n = 0;
    for (size_t i = 0; i < table->n_slot; i++) {
        const life *slot = &table->slots[i];
        if (slot->used) {
            changes[n++] = (change){slot->from_ps, slot->buffer, true};
            changes[n++] = (change){slot->to_ps, slot->buffer, false};
        }
    }
    qsort(changes, n, sizeof *changes, change_compare);
    return changes;
}

static void apply(smp_live_point *point, const smp_buffer *buffer, bool begins)
{
    uint64_t *bytes = buffer->space == SMP_SPACE_HOST ? &point->host_bytes
                                                      : &point->kind_bytes[buffer->kind];
    *bytes = begins ? *bytes + buffer->bytes : *bytes - buffer->bytes;
}

void smp_live_sweep(const smp_simulation *simulation, uint32_t c,
                    void (*visit)(void *context, const smp_live_point *point), void *context)
{
    enum { FIRST_SLOTS = 1024 };
    const smp_program *program = simulation->step->programs[c];
    lives table = {.n_slot = FIRST_SLOTS};
    table.slots = smp_heap_alloc(table.n_slot, sizeof *table.slots);
    collect(simulation, c, &table);
    smp_live_point point = {0};
    for (uint32_t b = 0; b < program->n_buffer; b++) {
        const smp_buffer *buffer = &program->buffers[b];
        if (buffer->scope == SMP_SCOPE_STEP && buffer->space != SMP_SPACE_TOKEN) {
            uint64_t places = buffer->slots ? buffer->slots : buffer->entries;
            uint64_t *bytes = buffer->space == SMP_SPACE_HOST ? &point.host_bytes
                                                              : &point.kind_bytes[buffer->kind];
            *bytes += smp_mul(buffer->bytes, places ? places : 1);
        }
    }
    change *changes = sort_changes(&table);
    size_t n = 2 * table.n_used;
    for (size_t i = 0; i < n;) {
        int64_t time_ps = changes[i].time_ps;
        if (time_ps > point.time_ps) {
            visit(context, &point);
        }
        point.time_ps = time_ps;
        while (i < n && changes[i].time_ps == time_ps) {
            apply(&point, &program->buffers[changes[i].buffer], changes[i].begins);
            i++;
        }
    }
    visit(context, &point);
    if (point.time_ps < simulation->report.step_ps) {
        point.time_ps = simulation->report.step_ps;
        visit(context, &point);
    }
    free(changes);
    free(table.slots);
}
