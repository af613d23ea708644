/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits: the fewest edges between streams that order all conflicting accesses.
 *
 * Tasks are taken in issue order.  Each must follow the last writer of what it reads, and the
 * last writer and readers of what it writes (order.c).  Of the tasks to follow, the latest of
 * each stream is kept unless the stream's own past or another kept one already implies it; so
 * taking away any wait leaves that very pair of accesses unordered.
 *
 * Micro-batches repeat.  When all that later tasks can depend on is, at the start of one
 * block, what it was one period earlier (but for the shift), every following block alike has
 * the same waits: the rest of the middle is filled in, and only the last block is derived.
 */
#include "base/numeric.h"
#include "step/order.h"

#include <stdlib.h>
#include <string.h>

typedef struct deriving {
    smp_program *program;
    smp_blocks blocks;
    smp_order *order;
    uint32_t position;
    uint32_t *walked;     /* heap: by position, the instance in the walk */
    size_t n_walked, walked_capacity;
    uint32_t *walk;       /* heap: instances derived */
    size_t n_walk, walk_capacity;
    uint32_t jump_from, skipped; /* after the jump: walked instances from jump_from on
                                    stand for those `skipped` later */
    smp_wait *waits;      /* heap */
    size_t n_wait, wait_capacity;
    smp_pattern *patterns; /* heap */
    size_t n_pattern, pattern_capacity;
    uint32_t *table;      /* heap: open addressing, pattern + 1 */
    size_t table_size;
} deriving;

static uint64_t pattern_hash(const deriving *d, smp_pattern pattern)
{
    uint64_t h = pattern.n_wait;
    for (uint32_t w = pattern.wait0; w < pattern.wait0 + pattern.n_wait; w++) {
        uint64_t word = (uint64_t)d->waits[w].back << 32 |
                        (uint64_t)d->waits[w].task << 16 | d->waits[w].source;
        h = (h ^ word) * 0x9e3779b97f4a7c15u;
        h ^= h >> 31;
    }
    return h;
}

static bool pattern_same(const deriving *d, smp_pattern a, smp_pattern b)
{
    if (a.n_wait != b.n_wait) {
        return false;
    }
    for (uint32_t w = 0; w < a.n_wait; w++) {
        const smp_wait *x = &d->waits[a.wait0 + w], *y = &d->waits[b.wait0 + w];
        if (x->task != y->task || x->source != y->source || x->back != y->back) {
            return false;
        }
    }
    return true;
}

static size_t pattern_slot(const deriving *d, smp_pattern pattern)
{
    size_t at = (size_t)pattern_hash(d, pattern) & (d->table_size - 1);
    while (d->table[at] != 0 && !pattern_same(d, d->patterns[d->table[at] - 1], pattern)) {
        at = (at + 1) & (d->table_size - 1);
    }
    return at;
}

static void grow_table(deriving *d)
{
    free(d->table);
    d->table_size = d->table_size > 0 ? 2 * d->table_size : 256;
    d->table = smp_heap_alloc(d->table_size, sizeof *d->table);
    for (size_t p = 0; p < d->n_pattern; p++) {
        d->table[pattern_slot(d, d->patterns[p])] = (uint32_t)p + 1;
    }
}

/* The pattern made of the waits from wait0 on; they are dropped when it is known. */
static uint32_t intern(deriving *d, uint32_t wait0)
{
    if (2 * (d->n_pattern + 1) > d->table_size) {
        grow_table(d);
    }
    smp_pattern pattern = {wait0, (uint32_t)d->n_wait - wait0};
    size_t at = pattern_slot(d, pattern);
    if (d->table[at] != 0) {
        d->n_wait = wait0;
        return d->table[at] - 1;
    }
    SMP_GROW(d->patterns, d->n_pattern, d->pattern_capacity);
    d->patterns[d->n_pattern++] = pattern;
    d->table[at] = (uint32_t)d->n_pattern;
    return (uint32_t)d->n_pattern - 1;
}

static uint32_t real_instance(const deriving *d, uint32_t walked)
{
    return d->skipped > 0 && walked >= d->jump_from ? walked + d->skipped : walked;
}

static void add_wait(deriving *d, uint32_t instance, uint32_t task, uint32_t source)
{
    uint32_t walked = d->walked[source], first = source;
    while (first > 0 && d->walked[first - 1] == walked) {
        first--;
    }
    SMP_GROW(d->waits, d->n_wait, d->wait_capacity);
    d->waits[d->n_wait++] = (smp_wait){
        .task = (uint16_t)task,
        .source = (uint16_t)(source - first),
        .back = instance - real_instance(d, walked),
    };
}

static void derive_instance(deriving *d, uint32_t instance)
{
    smp_instance *it = &d->program->order[instance];
    const smp_segment *segment = &d->program->segments[it->segment];
    uint32_t wait0 = (uint32_t)d->n_wait;
    SMP_GROW(d->walk, d->n_walk, d->walk_capacity);
    d->walk[d->n_walk++] = instance;
    for (uint32_t t = 0; t < segment->n_task; t++) {
        uint32_t sources[SMP_STREAMS];
        SMP_GROW(d->walked, d->n_walked, d->walked_capacity);
        d->walked[d->n_walked++] = instance - d->skipped;
        uint32_t n = smp_order_task(d->order, it, &d->program->tasks[segment->task0 + t],
                                    d->position++, sources);
        for (uint32_t i = 0; i < n; i++) {
            add_wait(d, instance, t, sources[i]);
        }
    }
    it->pattern = intern(d, wait0);
}

/* Fills the middle from block `b` on with the patterns of one period earlier. */
static void repeat_patterns(deriving *d, uint32_t b)
{
    const smp_blocks *blocks = &d->blocks;
    uint32_t last = blocks->first[blocks->n - 1];
    uint32_t length = blocks->first[b] - blocks->first[b - blocks->period];
    for (uint32_t i = blocks->first[b]; i < last; i++) {
        d->program->order[i].pattern = d->program->order[i - length].pattern;
    }
    d->jump_from = blocks->first[b - 2 * blocks->period]; /* what a hash speaks of */
    d->skipped = last - blocks->first[b];
}

static void derive_all(deriving *d, uint32_t *start, uint64_t *hash)
{
    const smp_blocks *blocks = &d->blocks;
    uint32_t period = blocks->period;
    bool repeats = false;
    for (uint32_t b = 0; b < blocks->n; b++) {
        start[b] = d->position;
        /* blocks 1.. are alike, so two whole periods of them must lie behind */
        if (blocks->regular && 2 * (uint64_t)period < b && b + 1 < blocks->n) {
            hash[b] = smp_order_hash(d->order, start[b - 2 * period], start[b - period],
                                     start[b]);
            repeats = repeats || (3 * (uint64_t)period < b && hash[b] == hash[b - period]);
            if (repeats && (blocks->n - 1 - b) % period == 0) {
                repeat_patterns(d, b);
                b = blocks->n - 1;
            }
        }
        for (uint32_t i = blocks->first[b]; i < blocks->first[b + 1]; i++) {
            derive_instance(d, i);
        }
    }
}

/* Blocks alike have the same layers, so the second stands for the rest of the middle. */
static smp_status check_places(const smp_program *program, const smp_blocks *blocks,
                               smp_errors *errors)
{
    for (uint32_t i = 0; i < program->n_instance; i++) {
        if (blocks->regular && i == blocks->first[2]) {
            i = blocks->first[blocks->n - 1];
        }
        const smp_instance *it = &program->order[i];
        const smp_segment *segment = &program->segments[it->segment];
        for (uint32_t t = segment->task0; t < segment->task0 + segment->n_task; t++) {
            const smp_task *task = &program->tasks[t];
            for (uint32_t a = task->access0; a < task->access0 + task->n_access; a++) {
                const smp_access *access = &program->accesses[a];
                const smp_buffer *buffer = &program->buffers[access->buffer];
                if (smp_place_of(buffer, it, access->delta) == SMP_NO_PLACE) {
                    return smp_fail(errors, SMP_SYSTEM, NULL,
                                    "step program: %s of %s (instance %u) accesses %s outside "
                                    "its %u entries", task->name, segment->name, i,
                                    buffer->name, smp_place_count(buffer));
                }
            }
        }
    }
    return SMP_OK;
}

static void keep(deriving *d)
{
    smp_program *program = d->program;
    program->n_wait = (uint32_t)d->n_wait;
    program->n_pattern = (uint32_t)d->n_pattern;
    program->waits = SMP_ARENA_ARRAY(program->arena, d->n_wait, smp_wait);
    program->patterns = SMP_ARENA_ARRAY(program->arena, d->n_pattern, smp_pattern);
    if (d->n_wait > 0) {
        memcpy(program->waits, d->waits, d->n_wait * sizeof *d->waits);
    }
    if (d->n_pattern > 0) {
        memcpy(program->patterns, d->patterns, d->n_pattern * sizeof *d->patterns);
    }
    if (program->clocks && program->apart) {
        smp_clocks *clocks = program->clocks;
        smp_order_keep(d->order, d->position, program->arena, clocks);
        clocks->n_walk = (uint32_t)d->n_walk;
        clocks->walk = SMP_ARENA_ARRAY(program->arena, d->n_walk, uint32_t);
        memcpy(clocks->walk, d->walk, d->n_walk * sizeof *d->walk);
    }
}

smp_status smp_program_derive_waits(smp_program *program, smp_errors *errors)
{
    smp_arena *scratch = smp_arena_create();
    deriving d = {.program = program};
    smp_blocks_find(program, scratch, &d.blocks);
    smp_status status = check_places(program, &d.blocks, errors);
    if (status != SMP_OK) {
        smp_arena_destroy(scratch);
        return status;
    }
    d.order = smp_order_create(program, scratch);
    derive_all(&d, SMP_ARENA_ARRAY(scratch, (size_t)d.blocks.n + 1, uint32_t),
               SMP_ARENA_ARRAY(scratch, (size_t)d.blocks.n + 1, uint64_t));
    keep(&d);
    free(d.walked);
    free(d.walk);
    free(d.waits);
    free(d.patterns);
    free(d.table);
    smp_order_destroy(d.order);
    smp_arena_destroy(scratch);
    return SMP_OK;
}
