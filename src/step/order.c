/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Order of tasks from the places they access: see order.h.
 */
#include "step/order.h"

#include "base/numeric.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------ blocks and places */

static uint64_t gcd(uint64_t a, uint64_t b)
{
    while (b != 0) {
        uint64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* Turns may be counted by several counters; each must move evenly from block to block. */
static bool block_alike(const smp_program *program, const smp_blocks *blocks, uint32_t b)
{
    uint32_t n = blocks->first[2] - blocks->first[1];
    const smp_instance *one = program->order + blocks->first[1];
    const smp_instance *two = program->order + blocks->first[2];
    const smp_instance *other = program->order + blocks->first[b];
    if (blocks->first[b + 1] - blocks->first[b] != n) {
        return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (other[i].segment != one[i].segment || other[i].layer != one[i].layer ||
            other[i].micro_batch - one[i].micro_batch != b - 1 ||
            other[i].turn - one[i].turn != (b - 1) * (two[i].turn - one[i].turn)) {
            return false;
        }
    }
    return true;
}

/* Least common multiple of `period` and the blocks after which the rings that the segment
 * uses are back at the same slot, when the turn moves by `turns` a block. */
static uint64_t segment_period(const smp_program *program, const smp_segment *segment,
                               uint32_t turns, uint64_t period)
{
    for (uint32_t t = segment->task0; t < segment->task0 + segment->n_task; t++) {
        const smp_task *task = &program->tasks[t];
        for (uint32_t a = task->access0; a < task->access0 + task->n_access; a++) {
            const smp_buffer *buffer = &program->buffers[program->accesses[a].buffer];
            if (buffer->index == SMP_INDEX_TURN && buffer->slots > 0) {
                uint64_t own = buffer->slots / gcd(buffer->slots, turns);
                period = smp_mul(period / gcd(period, own), own);
            }
        }
    }
    return period;
}

static uint32_t ring_period(const smp_program *program, const smp_blocks *blocks,
                            smp_arena *arena)
{
    uint64_t period = 1;
    uint32_t *seen = SMP_ARENA_ARRAY(arena, program->n_segment, uint32_t); /* turns + 1 */
    for (uint32_t i = blocks->first[1]; i < blocks->first[2]; i++) {
        const smp_instance *it = &program->order[i];
        const smp_instance *next = it + (blocks->first[2] - blocks->first[1]);
        uint32_t turns = next->turn - it->turn;
        if (seen[it->segment] != turns + 1) {
            seen[it->segment] = turns + 1;
            period = segment_period(program, &program->segments[it->segment], turns, period);
        }
    }
    return period > UINT32_MAX ? UINT32_MAX : (uint32_t)period;
}

void smp_blocks_find(const smp_program *program, smp_arena *arena, smp_blocks *blocks_p)
{
    uint32_t n_instance = program->n_instance, n = 0;
    uint32_t *first = SMP_ARENA_ARRAY(arena, (size_t)n_instance + 2, uint32_t);
    for (uint32_t i = 0; i < n_instance; i++) {
        const smp_instance *begun = n > 0 ? &program->order[first[n - 1]] : NULL;
        if (begun == NULL || program->order[i].micro_batch > begun->micro_batch) {
            first[n++] = i;
        }
    }
    first[n] = n_instance;
    *blocks_p = (smp_blocks){.n = n, .first = first, .regular = n >= 4, .period = 1};
    if (n < 4) {
        return;
    }
    for (uint32_t b = 2; b + 1 < n && blocks_p->regular; b++) {
        blocks_p->regular = block_alike(program, blocks_p, b);
    }
    if (blocks_p->regular) {
        blocks_p->period = ring_period(program, blocks_p, arena);
    }
}

uint32_t smp_place_count(const smp_buffer *buffer)
{
    if (buffer->index == SMP_INDEX_NONE) {
        return 1;
    }
    if (buffer->slots > 0) {
        return buffer->slots;
    }
    return buffer->index == SMP_INDEX_LAYER ? buffer->entries : 1;
}

uint64_t smp_place_address(const smp_program *program, const smp_buffer *buffer,
                           uint32_t place)
{
    if (buffer->index == SMP_INDEX_TURN) {
        return program->slot_bases[buffer->slot_base + place];
    }
    return buffer->base + place * buffer->stride;
}

uint64_t smp_buffer_address(const smp_program *program, const smp_buffer *buffer,
                            const smp_instance *instance, int delta)
{
    return smp_place_address(program, buffer, smp_place_of(buffer, instance, delta));
}

uint64_t smp_entry_key(const smp_buffer *buffer, const smp_instance *instance,
                       uint32_t instance_index, int delta)
{
    uint64_t index = (uint64_t)smp_place_index(buffer, instance, delta) & 0xffffffffu;
    switch (buffer->scope) {
    case SMP_SCOPE_INSTANCE:
        return (uint64_t)instance_index << 32 | index;
    case SMP_SCOPE_MICROBATCH:
        return buffer->index == SMP_INDEX_TURN
                   ? index
                   : (uint64_t)instance->micro_batch << 32 | index;
    case SMP_SCOPE_STEP:
    default:
        return index;
    }
}

/* ----------------------------------------------------------------------- cells */

struct cell {
    uint32_t writer;               /* position + 1 of the last writer */
    uint16_t readers;              /* streams that have read since: bits */
    uint16_t writer_stream;
    uint32_t reader[SMP_STREAMS];  /* position + 1 of the last reader, by stream */
};

typedef struct cell_range { uint32_t low, high; } cell_range; /* cells low .. high - 1 */

struct smp_order {
    const smp_program *program;
    uint32_t *table;      /* of an access: first of its ranges, one per place */
    cell_range *ranges;
    struct cell *cells;
    uint32_t n_cell;
    uint32_t n_stream;
    uint32_t stream[SMP_STREAMS]; /* dense numbers */
    uint32_t current[SMP_STREAMS][SMP_STREAMS]; /* clock of the last task of a stream */
    cell_range *task_ranges; /* heap: those of the accesses of the present task */
    uint32_t task_capacity;
    uint32_t *clocks;     /* heap: n_stream entries per position */
    size_t capacity;
};

/* An access without its instance: accesses alike in these share their ranges, from `access`
 * on, one for each place. */
typedef struct shape { uint64_t offset_bytes, bytes; uint32_t buffer, access; } shape;

static int address_compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Accesses sorted by buffer, in their order; first[b]: the first of buffer b. */
static uint32_t *sort_accesses(const smp_program *program, smp_arena *arena,
                               uint32_t **first_p)
{
    uint32_t *first = SMP_ARENA_ARRAY(arena, (size_t)program->n_buffer + 2, uint32_t);
    uint32_t *sorted = SMP_ARENA_ARRAY(arena, program->n_access, uint32_t);
    for (uint32_t a = 0; a < program->n_access; a++) {
        first[program->accesses[a].buffer + 2]++;
    }
    for (uint32_t b = 2; b < program->n_buffer + 2; b++) {
        first[b] += first[b - 1];
    }
    for (uint32_t a = 0; a < program->n_access; a++) {
        sorted[first[program->accesses[a].buffer + 1]++] = a;
    }
    *first_p = first;
    return sorted;
}

/* Distinct shapes, those of a buffer together; table[access] becomes the first range of the
 * access. */
static uint32_t collect_shapes(smp_order *order, shape *shapes, smp_arena *arena,
                               uint32_t *n_range_p)
{
    const smp_program *program = order->program;
    uint32_t n_shape = 0, n_range = 0, *first = NULL;
    const uint32_t *sorted = sort_accesses(program, arena, &first);
    for (uint32_t b = 0; b < program->n_buffer; b++) {
        const uint32_t shape0 = n_shape, n_place = smp_place_count(&program->buffers[b]);
        for (uint32_t k = first[b]; k < first[b + 1]; k++) {
            const smp_access *access = &program->accesses[sorted[k]];
            uint32_t s = shape0;
            while (s < n_shape && (shapes[s].offset_bytes != access->offset_bytes ||
                                   shapes[s].bytes != access->bytes)) {
                s++;
            }
            if (s == n_shape) {
                shapes[n_shape++] = (shape){access->offset_bytes, access->bytes, b, n_range};
                n_range += n_place;
            }
            order->table[sorted[k]] = shapes[s].access;
        }
    }
    *n_range_p = n_range;
    return n_shape;
}

static uint32_t find_bound(const uint64_t *bounds, uint32_t n, uint64_t address)
{
    uint32_t low = 0, high = n;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (bounds[middle] < address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Ranges of one space; its cells are numbered from order->n_cell. */
static void cut_space(smp_order *order, smp_space space, const shape *shapes,
                      uint32_t n_shape, uint64_t *bounds)
{
    const smp_program *program = order->program;
    uint32_t n = 0, n_unique = 0;
    for (uint32_t s = 0; s < n_shape; s++) {
        const smp_buffer *buffer = &program->buffers[shapes[s].buffer];
        uint32_t n_place = buffer->space == space ? smp_place_count(buffer) : 0;
        for (uint32_t p = 0; p < n_place; p++) {
            uint64_t at = smp_place_address(program, buffer, p) + shapes[s].offset_bytes;
            bounds[n++] = at;
            bounds[n++] = at + shapes[s].bytes;
        }
    }
    if (n > 0) {
        qsort(bounds, n, sizeof *bounds, address_compare);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (n_unique == 0 || bounds[i] != bounds[n_unique - 1]) {
            bounds[n_unique++] = bounds[i];
        }
    }
    for (uint32_t s = 0; s < n_shape; s++) {
        const smp_buffer *buffer = &program->buffers[shapes[s].buffer];
        uint32_t n_place = buffer->space == space ? smp_place_count(buffer) : 0;
        for (uint32_t p = 0; p < n_place; p++) {
            uint64_t at = smp_place_address(program, buffer, p) + shapes[s].offset_bytes;
            cell_range *range = &order->ranges[shapes[s].access + p];
            range->low = order->n_cell + find_bound(bounds, n_unique, at);
            range->high = order->n_cell + find_bound(bounds, n_unique, at + shapes[s].bytes);
        }
    }
    order->n_cell += n_unique;
}

static void add_bound(uint64_t *bounds, uint32_t *n, uint64_t at)
{
    uint32_t k = *n;
    while (k > 0 && bounds[k - 1] > at) {
        k--;
    }
    if (k > 0 && bounds[k - 1] == at) {
        return;
    }
    memmove(bounds + k + 1, bounds + k, (*n - k) * sizeof *bounds);
    bounds[k] = at;
    ++*n;
}

/* Ranges of a buffer whose places are apart, by its n shapes. */
static void cut_buffer(smp_order *order, const shape *shapes, uint32_t n, uint64_t *bounds)
{
    const uint32_t n_place = smp_place_count(&order->program->buffers[shapes->buffer]);
    uint32_t n_bound = 0;
    for (uint32_t s = 0; s < n; s++) {
        add_bound(bounds, &n_bound, shapes[s].offset_bytes);
        add_bound(bounds, &n_bound, shapes[s].offset_bytes + shapes[s].bytes);
    }
    for (uint32_t s = 0; s < n; s++) {
        const uint64_t at = shapes[s].offset_bytes;
        const uint32_t low = find_bound(bounds, n_bound, at);
        const uint32_t high = find_bound(bounds, n_bound, at + shapes[s].bytes);
        for (uint32_t p = 0; p < n_place; p++) {
            const uint32_t cell0 = order->n_cell + p * (n_bound - 1);
            order->ranges[shapes[s].access + p] = (cell_range){cell0 + low, cell0 + high};
        }
    }
    order->n_cell += n_place * (n_bound - 1);
}

static void cut_places(smp_order *order, const shape *shapes, uint32_t n_shape,
                       uint64_t *bounds)
{
    for (uint32_t s = 0, n = 0; s < n_shape; s += n) {
        n = 1;
        while (s + n < n_shape && shapes[s + n].buffer == shapes[s].buffer) {
            n++;
        }
        cut_buffer(order, shapes + s, n, bounds);
    }
}

smp_order *smp_order_create(const smp_program *program, smp_arena *arena)
{
    smp_order *order = SMP_ARENA_NEW(arena, smp_order);
    order->program = program;
    for (uint32_t s = 0; s < SMP_STREAMS; s++) {
        order->stream[s] = SMP_STREAMS;
    }
    for (uint32_t t = 0; t < program->n_task; t++) {
        if (order->stream[program->tasks[t].stream] == SMP_STREAMS) {
            order->stream[program->tasks[t].stream] = order->n_stream++;
        }
    }
    uint32_t n_range = 0;
    shape *shapes = SMP_ARENA_ARRAY(arena, program->n_access, shape);
    order->table = SMP_ARENA_ARRAY(arena, program->n_access, uint32_t);
    uint32_t n_shape = collect_shapes(order, shapes, arena, &n_range);
    order->ranges = SMP_ARENA_ARRAY(arena, n_range, cell_range);
    uint64_t *bounds = SMP_ARENA_ARRAY(arena, 2 * (size_t)n_range, uint64_t);
    if (program->apart) {
        cut_places(order, shapes, n_shape, bounds);
    }
    for (uint32_t space = 0; !program->apart && space < SMP_SPACES; space++) {
        cut_space(order, (smp_space)space, shapes, n_shape, bounds);
    }
    order->cells = SMP_ARENA_ARRAY(arena, order->n_cell, struct cell);
    return order;
}

void smp_order_destroy(smp_order *order)
{
    if (order != NULL) {
        free(order->task_ranges);
        free(order->clocks);
        order->task_ranges = NULL;
        order->clocks = NULL;
    }
}

uint32_t smp_order_streams(const smp_order *order)
{
    return order->n_stream;
}

uint32_t smp_order_stream(const smp_order *order, const smp_task *task)
{
    return order->stream[task->stream];
}

const uint32_t *smp_order_clock(const smp_order *order, uint32_t position)
{
    return order->clocks + (size_t)position * order->n_stream;
}

void smp_order_keep(const smp_order *order, uint32_t n, smp_arena *arena, smp_clocks *clocks)
{
    const size_t n_entry = (size_t)n * order->n_stream;
    clocks->n_stream = order->n_stream;
    memcpy(clocks->stream, order->stream, sizeof clocks->stream);
    clocks->clock = SMP_ARENA_ARRAY(arena, n_entry, uint32_t);
    memcpy(clocks->clock, order->clocks, n_entry * sizeof *clocks->clock);
}

/* ----------------------------------------------------------------------- order */

/* The ranges of a task's accesses. */
static const cell_range *ranges_of(smp_order *order, const smp_instance *instance,
                                   const smp_task *task)
{
    const smp_program *program = order->program;
    if (task->n_access > order->task_capacity) {
        order->task_capacity = 2 * task->n_access;
        order->task_ranges = smp_heap_grow(order->task_ranges, order->task_capacity,
                                           sizeof *order->task_ranges);
    }
    for (uint32_t k = 0; k < task->n_access; k++) {
        const smp_access *a = &program->accesses[task->access0 + k];
        const smp_buffer *buffer = &program->buffers[a->buffer];
        order->task_ranges[k] = order->ranges[order->table[task->access0 + k] +
                                              smp_place_of(buffer, instance, a->delta)];
    }
    return order->task_ranges;
}

static void raise_to(uint32_t *value, uint32_t other)
{
    if (*value < other) {
        *value = other;
    }
}

/* need[q]: the last task of stream q that this task must follow. */
static void find_needs(const smp_order *order, const smp_task *task,
                       const cell_range *ranges, uint32_t need[SMP_STREAMS])
{
    for (uint32_t k = 0; k < task->n_access; k++) {
        const bool writes = order->program->accesses[task->access0 + k].writes;
        const cell_range range = ranges[k];
        for (uint32_t c = range.low; c < range.high; c++) {
            const struct cell *cell = &order->cells[c];
            if (!writes || cell->readers == 0) {
                raise_to(&need[cell->writer_stream], cell->writer);
                continue;
            }
            /* every reader comes after the last writer, so readers are enough */
            for (uint32_t q = 0; q < order->n_stream; q++) {
                if ((cell->readers >> q & 1) != 0) {
                    raise_to(&need[q], cell->reader[q]);
                }
            }
        }
    }
}

/* Reads first: a task that reads and writes a cell counts as its writer. */
static void note_accesses(smp_order *order, const smp_task *task, const cell_range *ranges,
                          uint32_t stream, uint32_t name, bool writes)
{
    for (uint32_t k = 0; k < task->n_access; k++) {
        if (order->program->accesses[task->access0 + k].writes != writes) {
            continue;
        }
        const cell_range range = ranges[k];
        for (uint32_t c = range.low; c < range.high; c++) {
            struct cell *cell = &order->cells[c];
            if (writes) {
                cell->writer = name;
                cell->writer_stream = (uint16_t)stream;
                cell->readers = 0;
            } else {
                cell->reader[stream] = name;
                cell->readers = (uint16_t)(cell->readers | 1u << stream);
            }
        }
    }
}

static uint32_t *grow_clocks(smp_order *order, uint32_t position)
{
    size_t wanted = ((size_t)position + 1) * order->n_stream;
    if (wanted > order->capacity) {
        order->capacity = wanted + wanted / 2 + 4096;
        order->clocks = smp_heap_grow(order->clocks, order->capacity, sizeof *order->clocks);
    }
    return order->clocks + (size_t)position * order->n_stream;
}

uint32_t smp_order_task(smp_order *order, const smp_instance *instance, const smp_task *task,
                        uint32_t position, uint32_t sources[SMP_STREAMS])
{
    uint32_t n_stream = order->n_stream, stream = order->stream[task->stream], n = 0;
    uint32_t *current = order->current[stream];
    uint32_t need[SMP_STREAMS] = {0};
    const cell_range *ranges = ranges_of(order, instance, task);
    find_needs(order, task, ranges, need);
    need[stream] = 0; /* its own stream is FIFO */
    for (uint32_t q = 0; q < n_stream; q++) {
        bool implied = need[q] <= current[q];
        for (uint32_t r = 0; r < n_stream && !implied; r++) {
            implied = r != q && need[r] > current[r] &&
                      smp_order_clock(order, need[r] - 1)[q] >= need[q];
        }
        if (!implied) {
            sources[n++] = need[q] - 1;
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t *clock = smp_order_clock(order, sources[i]);
        for (uint32_t q = 0; q < n_stream; q++) {
            raise_to(&current[q], clock[q]);
        }
    }
    current[stream] = position + 1;
    memcpy(grow_clocks(order, position), current, n_stream * sizeof *current);
    note_accesses(order, task, ranges, stream, position + 1, false);
    note_accesses(order, task, ranges, stream, position + 1, true);
    return n;
}

/* ------------------------------------------------------------------ repetition */

struct epoch {
    uint32_t before, recent, now; /* each a period after the one before */
    uint32_t floor[SMP_STREAMS]; /* what every other active stream knows of a stream */
    uint64_t hash;
};

static void mix(struct epoch *epoch, uint64_t word)
{
    uint64_t h = (epoch->hash ^ word) * 0x9e3779b97f4a7c15u;
    epoch->hash = h ^ h >> 29;
}

/* A task of stream q.  What all know already can cause no wait and counts as nothing; a task
 * of the last two periods is named by its distance (a stream that has one task a period knows
 * of the others what they had done a period ago), an older one by its position: it stays. */
static void mix_name(struct epoch *epoch, uint32_t q, uint32_t name)
{
    if (name <= epoch->floor[q]) {
        name = 0;
    }
    mix(epoch, name > epoch->before ? (uint64_t)1 << 32 | (epoch->now + 1 - name) : name);
}

static void mix_source(struct epoch *epoch, const smp_order *order, uint32_t stream,
                       uint32_t name)
{
    mix_name(epoch, stream, name);
    for (uint32_t q = 0; q < order->n_stream && name > epoch->floor[stream]; q++) {
        mix_name(epoch, q, smp_order_clock(order, name - 1)[q]);
    }
}

/* Streams without a task in the last period have none in what repeats either. */
static void find_floor(struct epoch *epoch, const smp_order *order)
{
    for (uint32_t q = 0; q < order->n_stream; q++) {
        epoch->floor[q] = UINT32_MAX;
        for (uint32_t s = 0; s < order->n_stream; s++) {
            bool active = s != q && order->current[s][s] > epoch->recent;
            if (active && order->current[s][q] < epoch->floor[q]) {
                epoch->floor[q] = order->current[s][q];
            }
        }
    }
}

static bool cell_is_recent(const smp_order *order, const struct cell *cell, uint32_t recent)
{
    bool is = cell->writer > recent;
    for (uint32_t q = 0; q < order->n_stream && !is; q++) {
        is = (cell->readers >> q & 1) != 0 && cell->reader[q] > recent;
    }
    return is;
}

/* Cells that nothing touched for a period are not touched by what repeats either. */
uint64_t smp_order_hash(const smp_order *order, uint32_t before, uint32_t recent,
                        uint32_t now)
{
    struct epoch epoch = {.before = before, .recent = recent, .now = now, .hash = 1};
    find_floor(&epoch, order);
    for (uint32_t c = 0; c < order->n_cell; c++) {
        const struct cell *cell = &order->cells[c];
        if (!cell_is_recent(order, cell, recent)) {
            continue;
        }
        mix(&epoch, (uint64_t)c << 32 | (uint64_t)cell->writer_stream << 16 | cell->readers);
        mix_source(&epoch, order, cell->writer_stream, cell->writer);
        for (uint32_t q = 0; q < order->n_stream; q++) {
            if ((cell->readers >> q & 1) != 0) {
                mix_source(&epoch, order, q, cell->reader[q]);
            }
        }
    }
    for (uint32_t s = 0; s < order->n_stream; s++) {
        for (uint32_t q = 0; q < order->n_stream; q++) {
            mix_name(&epoch, q, order->current[s][q]);
        }
    }
    return epoch.hash;
}
