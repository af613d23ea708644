/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The step as PyTorch would hold it: every life of a buffer a tensor of its own, asked of the
 * caching allocator (caching.c) in the order of issue.
 *
 * Tensors.  Buffers that live for the whole step are allocated first and stay.  Any other
 * tensor is allocated before the task that first accesses it, on that task's stream, and
 * released behind the last one in issue order, as reference counts do; streams that used it
 * beside its own were recorded.
 *
 * Clocks.  The device runs as the simulation says.  The host issues one kernel every
 * host_launch_s and runs ahead of it; it stands still at the end of each step, where the loss
 * is read, at a flush, and with limit_all_gathers before the all-gather that would make three
 * gathered units at once: until the older of the two is free (torch.distributed.fsdp keeps
 * events of two).  What the host finds free at a request depends on how far ahead it is.
 *
 * Not modelled: workspaces of libraries, tensors that a framework makes beside those of the
 * step, roundup_power2_divisions and garbage_collection_threshold.
 */
#include "config.h"

#include "sim/caching.h"
#include "sim/what_if.h"

#include "base/numeric.h"
#include "cost/stack.h"
#include "step/order.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { NOTHING = 0xffffffffu, STEPS = 3, GATHERS = 2 };

/* One tensor. */
typedef struct tensor {
    uint64_t bytes;
    uint32_t first, last; /* tasks in issue order */
    uint32_t streams;     /* that use it, as bits */
    uint8_t stream;       /* it is allocated on */
    bool gathered;        /* parameters of a unit */
    uint32_t next_first;  /* of the same first task, in order of access */
    uint32_t next_last;
    uint32_t block;
} tensor;

/* What the open life of a place is. */
typedef struct place { uint64_t key; uint32_t tensor; } place;

typedef struct replay {
    const smp_simulation *simulation;
    const smp_program *program;
    const uint32_t *record0;
    const smp_record *records;
    tensor *tensors;
    size_t n_tensor, capacity;
    uint32_t *first_of, *first_end, *last_of; /* by task: lists of tensors */
    uint32_t *place0;
    place *places;
    uint32_t n_task;
    int64_t *launch_ps;   /* by stored task: what the host takes to issue it */
} replay;

/* -------------------------------------------------------------------- tensors */

static bool is_kept(const smp_buffer *buffer)
{
    return buffer->space == SMP_SPACE_DEVICE && buffer->scope == SMP_SCOPE_STEP;
}

static bool is_transient(const smp_buffer *buffer)
{
    return buffer->space == SMP_SPACE_DEVICE && buffer->scope != SMP_SCOPE_STEP;
}

/* Does the task write all of the entry and read none of it?  Then it is a new tensor. */
static bool writes_anew(const replay *r, const smp_task *task, const smp_instance *instance,
                        uint32_t number, uint32_t at)
{
    const smp_buffer *buffer = &r->program->buffers[number];
    bool whole = false;
    for (uint32_t a = task->access0; a < task->access0 + task->n_access; a++) {
        const smp_access *access = &r->program->accesses[a];
        if (access->buffer != number || smp_place_of(buffer, instance, access->delta) != at) {
            continue;
        }
        if (access->reads) {
            return false;
        }
        whole = whole || (access->offset_bytes == 0 && access->bytes == buffer->bytes);
    }
    return whole;
}

static uint32_t open_tensor(replay *r, const smp_buffer *buffer, uint8_t stream,
                            uint32_t number)
{
    SMP_GROW(r->tensors, r->n_tensor, r->capacity);
    r->tensors[r->n_tensor] = (tensor){
        .bytes = buffer->bytes, .first = number, .last = number, .stream = stream,
        .gathered = buffer->kind == SMP_KIND_UNSHARDED && stream == SMP_STREAM_UNSHARD,
        .next_first = NOTHING, .next_last = NOTHING, .block = SMP_CACHING_NONE};
    return (uint32_t)r->n_tensor++;
}

/* `number` is the task's place in issue order. */
static void touch(replay *r, const smp_task *task, const smp_access *access,
                  uint32_t instance_number, uint32_t number)
{
    const smp_instance *instance = &r->program->order[instance_number];
    const smp_buffer *buffer = &r->program->buffers[access->buffer];
    const uint32_t at = smp_place_of(buffer, instance, access->delta);
    place *place_ = &r->places[r->place0[access->buffer] + at];
    const uint64_t key = smp_entry_key(buffer, instance, instance_number, access->delta);
    const bool open = place_->tensor != NOTHING && place_->key == key;
    const bool again = open && access->writes && r->tensors[place_->tensor].last != number &&
                       writes_anew(r, task, instance, access->buffer, at);
    if (!open || again) {
        const uint32_t opened = open_tensor(r, buffer, task->stream, number);
        *place_ = (place){key, opened};
    }
    tensor *t = &r->tensors[place_->tensor];
    t->last = number;
    t->streams |= 1u << task->stream;
}

static void chain_tensors(replay *r, smp_arena *arena)
{
    r->first_of = SMP_ARENA_ARRAY(arena, r->n_task, uint32_t);
    r->first_end = SMP_ARENA_ARRAY(arena, r->n_task, uint32_t);
    r->last_of = SMP_ARENA_ARRAY(arena, r->n_task, uint32_t);
    memset(r->first_of, 0xff, r->n_task * sizeof *r->first_of);
    memset(r->last_of, 0xff, r->n_task * sizeof *r->last_of);
    for (uint32_t i = 0; i < r->n_tensor; i++) {
        tensor *t = &r->tensors[i];
        if (r->first_of[t->first] == NOTHING) {
            r->first_of[t->first] = i;
        } else {
            r->tensors[r->first_end[t->first]].next_first = i;
        }
        r->first_end[t->first] = i;
        t->next_last = r->last_of[t->last];
        r->last_of[t->last] = i;
    }
}

static void find_tensors(replay *r, smp_arena *arena)
{
    const smp_program *program = r->program;
    r->place0 = SMP_ARENA_ARRAY(arena, (size_t)program->n_buffer + 1, uint32_t);
    for (uint32_t b = 0; b < program->n_buffer; b++) {
        r->place0[b + 1] = r->place0[b] + smp_place_count(&program->buffers[b]);
    }
    r->places = SMP_ARENA_ARRAY(arena, r->place0[program->n_buffer], place);
    memset(r->places, 0xff, r->place0[program->n_buffer] * sizeof *r->places);
    for (uint32_t i = 0; i < program->n_instance; i++) {
        const smp_segment *segment = &program->segments[program->order[i].segment];
        for (uint32_t t = 0; t < segment->n_task; t++) {
            const smp_task *task = &program->tasks[segment->task0 + t];
            for (uint32_t a = task->access0; a < task->access0 + task->n_access; a++) {
                if (is_transient(&program->buffers[program->accesses[a].buffer])) {
                    touch(r, task, &program->accesses[a], i, r->record0[i] + t);
                }
            }
        }
    }
    chain_tensors(r, arena);
}

/* --------------------------------------------------------------------- clocks */

typedef struct clocks {
    int64_t host_ps, offset_ps;            /* offset: when the device's step began */
    int64_t stream_ps[SMP_STREAMS];        /* end of the latest task issued */
    int64_t free_ps[GATHERS];              /* events of gathered units, the oldest first */
    uint32_t n_free;
    bool limited;
} clocks;

/* limit_all_gathers: the host waits for the oldest of two gathered units to be free. */
static void limit(clocks *k)
{
    if (k->limited && k->n_free == GATHERS) {
        k->host_ps = k->free_ps[0] > k->host_ps ? k->free_ps[0] : k->host_ps;
        k->free_ps[0] = k->free_ps[1];
        k->n_free--;
    }
}

static int64_t event_ps(const clocks *k, const tensor *t)
{
    int64_t ready_ps = k->host_ps;
    for (uint32_t s = 0; s < SMP_STREAMS; s++) {
        if ((t->streams >> s & 1u) && k->stream_ps[s] > ready_ps) {
            ready_ps = k->stream_ps[s];
        }
    }
    return ready_ps;
}

static void note_peaks(const smp_caching *caching, smp_allocator_row *row)
{
    const smp_caching_stats s = smp_caching_stats_of(caching);
    row->live_bytes = row->live_bytes > s.live_bytes ? row->live_bytes : s.live_bytes;
    if (s.allocated_bytes > row->allocated_bytes) {
        row->allocated_bytes = s.allocated_bytes;
    }
    row->active_bytes = row->active_bytes > s.active_bytes ? row->active_bytes : s.active_bytes;
    if (s.reserved_bytes >= row->reserved_bytes) {
        const uint64_t unused_bytes = s.reserved_bytes - s.allocated_bytes;
        const bool higher = s.reserved_bytes > row->reserved_bytes;
        row->unused_bytes =
            higher || unused_bytes < row->unused_bytes ? unused_bytes : row->unused_bytes;
        row->reserved_bytes = s.reserved_bytes;
    }
}

static void take_tensors(replay *r, smp_caching *caching, clocks *k, uint32_t number,
                         smp_allocator_row *row)
{
    for (uint32_t i = r->first_of[number]; i != NOTHING; i = r->tensors[i].next_first) {
        tensor *t = &r->tensors[i];
        if (t->gathered) {
            limit(k);
        }
        t->block = smp_caching_malloc(caching, t->stream, t->bytes, &k->host_ps);
        for (uint32_t s = 0; t->block != SMP_CACHING_NONE && s < SMP_STREAMS; s++) {
            if (t->streams >> s & 1u) {
                smp_caching_record(caching, t->block, s);
            }
        }
        note_peaks(caching, row);
    }
}

static void release_tensors(replay *r, smp_caching *caching, clocks *k, uint32_t number)
{
    for (uint32_t i = r->last_of[number]; i != NOTHING; i = r->tensors[i].next_last) {
        const tensor *t = &r->tensors[i];
        const int64_t ready_ps = event_ps(k, t);
        if (t->block != SMP_CACHING_NONE) {
            smp_caching_free(caching, t->block, ready_ps);
        }
        if (t->gathered && k->limited && k->n_free < GATHERS) {
            k->free_ps[k->n_free++] = ready_ps;
        }
    }
}

static void price_launches(replay *r, smp_arena *arena)
{
    const double launch_s = r->simulation->job->profile->host_launch_s.value;
    r->launch_ps = SMP_ARENA_ARRAY(arena, r->program->n_task, int64_t);
    for (uint32_t t = 0; t < r->program->n_task; t++) {
        r->launch_ps[t] = smp_ps_from_s(smp_cost_kernels(r->program, &r->program->tasks[t]) *
                                        launch_s);
    }
}

static void replay_step(replay *r, smp_caching *caching, clocks *k, smp_allocator_row *row)
{
    const smp_program *program = r->program;
    for (uint32_t i = 0; i < program->n_instance; i++) {
        const smp_segment *segment = &program->segments[program->order[i].segment];
        for (uint32_t t = 0; t < segment->n_task; t++) {
            const uint32_t number = r->record0[i] + t;
            int64_t *stream_ps = &k->stream_ps[program->tasks[segment->task0 + t].stream];
            take_tensors(r, caching, k, number, row);
            k->host_ps += r->launch_ps[segment->task0 + t];
            *stream_ps = k->offset_ps + r->records[number].end_ps;
            release_tensors(r, caching, k, number);
        }
    }
}

/* Some steps, since the cache takes one to fill; counts are those of the last. */
static void replay_row(replay *r, uint64_t capacity_bytes, smp_allocator_row *row)
{
    const smp_caching_options options = {.capacity_bytes = capacity_bytes,
                                         .expandable = row->expandable};
    smp_caching *caching = smp_caching_create(&options);
    clocks k = {.limited = row->limited};
    for (uint32_t b = 0; b < r->program->n_buffer; b++) {
        const smp_buffer *buffer = &r->program->buffers[b];
        for (uint32_t p = 0; is_kept(buffer) && p < smp_place_count(buffer); p++) {
            (void)smp_caching_malloc(caching, SMP_STREAM_COMPUTE, buffer->bytes, &k.host_ps);
        }
    }
    for (uint32_t step = 0; step < STEPS; step++) {
        const smp_caching_stats before = smp_caching_stats_of(caching);
        replay_step(r, caching, &k, row);
        const smp_caching_stats after = smp_caching_stats_of(caching);
        row->flushes = after.flushes - before.flushes;
        row->failures = after.failures - before.failures;
        k.offset_ps += r->simulation->report.step_ps;
        k.offset_ps = k.offset_ps > k.host_ps ? k.offset_ps : k.host_ps;
        k.host_ps = k.offset_ps;
        k.n_free = 0;
    }
    row->segments = smp_caching_stats_of(caching).segments;
    smp_caching_destroy(caching);
}

static void open_replay(replay *r, const smp_simulation *simulation, smp_arena *arena)
{
    const uint32_t c = simulation->fullest;
    const smp_program *program = simulation->step->programs[c];
    *r = (replay){.simulation = simulation, .program = program,
                  .record0 = simulation->record0[c], .records = simulation->records[c],
                  .n_task = simulation->record0[c][program->n_instance]};
    find_tensors(r, arena);
    price_launches(r, arena);
}

/* What the device has for the allocator. */
static uint64_t capacity_of(const smp_simulation *simulation)
{
    const smp_memory *m = &simulation->report.memory;
    const uint64_t taken_bytes = m->parts.context_bytes + m->parts.communication_bytes;
    return m->capacity_bytes > taken_bytes ? m->capacity_bytes - taken_bytes : 0;
}

/* Under the settings that act, and PyTorch's default of no expandable segments. */
static void warn_of_row(const smp_simulation *simulation, const smp_allocator_row *row,
                        smp_errors *errors)
{
    const smp_settings *settings = &simulation->job->settings;
    if (row->expandable || row->limited != settings->limit_all_gathers ||
        !settings->fsdp_cache_flush_warnings || row->flushes == 0) {
        return;
    }
    smp_text still = {0};
    if (row->failures > 0) {
        smp_text_add(&still, ", and %" PRIu64 " times still finds no memory", row->failures);
    }
    smp_warn(errors, NULL, "PyTorch's caching allocator flushes its cache %" PRIu64
             " times a step%s (fsdp_cache_flush_warnings): %sraise hybrid_shard_degree or save "
             "memory", row->flushes, still.data ? still.data : "",
             row->limited ? "" : "set limit_all_gathers, ");
    smp_text_free(&still);
}

void smp_allocator_warn(const smp_simulation *simulation, smp_errors *errors)
{
    const smp_settings *settings = &simulation->job->settings;
    smp_allocator_row row = {.limited = settings->limit_all_gathers};
    smp_arena *arena = smp_arena_create();
    replay r;
    open_replay(&r, simulation, arena);
    replay_row(&r, capacity_of(simulation), &row);
    warn_of_row(simulation, &row, errors);
    free(r.tensors);
    smp_arena_destroy(arena);
}

smp_status smp_allocator_answer_find(const smp_simulation *simulation, const char *allocator,
                                     smp_errors *errors, smp_allocator_answer *answer_p)
{
    const smp_place where = {.file = "--allocator"};
    if (strcmp(allocator, "caching") != 0) {
        return smp_fail(errors, SMP_INPUT, &where,
                        "'%s': must be caching, PyTorch's caching allocator", allocator);
    }
    smp_allocator_answer answer = {.capacity_bytes = capacity_of(simulation),
                                   .arena_bytes = simulation->report.memory.arena_bytes};
    smp_arena *arena = smp_arena_create();
    replay r;
    open_replay(&r, simulation, arena);
    answer.tensors = r.n_tensor;
    for (uint32_t i = 0; i < SMP_ALLOCATOR_ROWS; i++) {
        answer.rows[i] = (smp_allocator_row){.expandable = i / 2 == 1, .limited = i % 2 == 0};
        replay_row(&r, answer.capacity_bytes, &answer.rows[i]);
        warn_of_row(simulation, &answer.rows[i], errors);
    }
    free(r.tensors);
    smp_arena_destroy(arena);
    *answer_p = answer;
    return SMP_OK;
}

/* --------------------------------------------------------------------- output */

void smp_allocator_answer_text(const smp_allocator_answer *a, smp_text *text)
{
    smp_text_add(text,
                 "\nPyTorch's caching allocator: %" PRIu64
                 " tensors a step, %s for it (arena %s)\n",
                 a->tensors, smp_show_bytes(a->capacity_bytes), smp_show_bytes(a->arena_bytes));
    smp_text_add(text, "  %-11s%-11s%10s%10s%10s%10s%8s%6s\n", "expandable", "limit_all_",
                 "asked for", "allocated", "reserved", "unused", "flushes", "OOMs");
    smp_text_add(text, "  %-11s%-11s%10s%10s%10s%10s%8s%6s\n", "segments", "gathers",
                 "at most", "at most", "at most", "at peak", "a step", "");
    for (uint32_t i = 0; i < SMP_ALLOCATOR_ROWS; i++) {
        const smp_allocator_row *row = &a->rows[i];
        smp_text_add(text, "  %-11s%-11s%10s%10s%10s%10s%8" PRIu64 "%6" PRIu64 "\n",
                     row->expandable ? "true" : "false", row->limited ? "true" : "false",
                     smp_show_bytes(row->live_bytes), smp_show_bytes(row->allocated_bytes),
                     smp_show_bytes(row->reserved_bytes), smp_show_bytes(row->unused_bytes),
                     row->flushes, row->failures);
    }
}

void smp_allocator_answer_out(const smp_allocator_answer *a, smp_json_out *out)
{
    smp_out_object(out, "caching_allocator");
    smp_out_u64(out, "capacity_bytes", a->capacity_bytes);
    smp_out_u64(out, "tensors", a->tensors);
    smp_out_array(out, "cases");
    for (uint32_t i = 0; i < SMP_ALLOCATOR_ROWS; i++) {
        const smp_allocator_row *row = &a->rows[i];
        smp_out_object(out, NULL);
        smp_out_bool(out, "expandable_segments", row->expandable);
        smp_out_bool(out, "limit_all_gathers", row->limited);
        smp_out_u64(out, "live_bytes", row->live_bytes);
        smp_out_u64(out, "allocated_bytes", row->allocated_bytes);
        smp_out_u64(out, "active_bytes", row->active_bytes);
        smp_out_u64(out, "reserved_bytes", row->reserved_bytes);
        smp_out_u64(out, "unused_at_peak_bytes", row->unused_bytes);
        smp_out_u64(out, "flushes_per_step", row->flushes);
        smp_out_u64(out, "failures_per_step", row->failures);
        smp_out_u64(out, "segments", row->segments);
        smp_out_end_object(out);
    }
    smp_out_end_array(out);
    smp_out_end_object(out);
}
