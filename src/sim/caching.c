/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The emulated allocator: blocks in segments, free blocks by pool and stream.
 *
 * Free blocks are looked through one by one: there are few at a time, a training step frees
 * what it takes.
 */
#include "config.h"

#include "sim/caching.h"

#include "base/arena.h"
#include "base/numeric.h"

#include <stdlib.h>

enum { NONE = SMP_CACHING_NONE, POOLS = 2 };
static const uint64_t unit_bytes = 512;
static const uint64_t small_most_bytes = (uint64_t)1 << 20;
static const uint64_t small_segment_bytes = (uint64_t)2 << 20;
static const uint64_t large_segment_bytes = (uint64_t)20 << 20;
static const uint64_t own_segment_bytes = (uint64_t)10 << 20; /* from here on */
static const uint64_t large_round_bytes = (uint64_t)2 << 20;
static const uint64_t range_bytes = (uint64_t)1 << 48; /* of an expandable segment */

typedef enum block_state {
    BLOCK_UNUSED, BLOCK_FREE, BLOCK_TAKEN, BLOCK_PENDING, BLOCK_UNMAPPED
} block_state;

typedef struct block {
    block_state state;
    uint8_t pool, stream;
    bool expandable;
    uint16_t recorded;   /* other streams, as bits */
    uint32_t prev, next; /* neighbours in the segment */
    uint32_t at;         /* place in its list */
    uint64_t address, bytes, asked_bytes;
    int64_t ready_ps;
} block;

typedef struct list { uint32_t *items; size_t n, capacity; } list;

struct smp_caching {
    smp_caching_options options;
    smp_caching_stats stats;
    block *blocks;
    size_t n_block, capacity;
    list unused;                              /* numbers of blocks to use again */
    list free[POOLS][SMP_CACHING_STREAMS];
    list unmapped[POOLS][SMP_CACHING_STREAMS];
    list pending;
    uint64_t next_address;
};

/* -------------------------------------------------------------------- lists */

static void list_add(smp_caching *c, list *l, uint32_t number)
{
    SMP_GROW(l->items, l->n, l->capacity);
    c->blocks[number].at = (uint32_t)l->n;
    l->items[l->n++] = number;
}

static void list_remove(smp_caching *c, list *l, uint32_t number)
{
    const uint32_t at = c->blocks[number].at;
    l->items[at] = l->items[--l->n];
    c->blocks[l->items[at]].at = at;
}

static list *free_list(smp_caching *c, const block *b)
{
    return &c->free[b->pool][b->stream];
}

static list *unmapped_list(smp_caching *c, const block *b)
{
    return &c->unmapped[b->pool][b->stream];
}

static uint32_t new_block(smp_caching *c, const block *value)
{
    uint32_t number = 0;
    if (c->unused.n > 0) {
        number = c->unused.items[--c->unused.n];
    } else {
        SMP_GROW(c->blocks, c->n_block, c->capacity);
        number = (uint32_t)c->n_block++;
    }
    c->blocks[number] = *value;
    return number;
}

static void drop_block(smp_caching *c, uint32_t number)
{
    c->blocks[number].state = BLOCK_UNUSED;
    list_add(c, &c->unused, number);
}

/* ---------------------------------------------------------- cutting and merging */

/* Cuts a block, which is in no list, at `bytes`; returns the number of the rear part, in the
 * same state and in no list either. */
static uint32_t cut(smp_caching *c, uint32_t number, uint64_t bytes)
{
    block rear = c->blocks[number];
    rear.address += bytes;
    rear.bytes -= bytes;
    rear.prev = number;
    const uint32_t after = new_block(c, &rear);
    if (rear.next != NONE) {
        c->blocks[rear.next].prev = after;
    }
    c->blocks[number].next = after;
    c->blocks[number].bytes = bytes;
    return after;
}

/* Joins `second`, in no list, to the block before it. */
static void join(smp_caching *c, uint32_t first, uint32_t second)
{
    c->blocks[first].bytes += c->blocks[second].bytes;
    c->blocks[first].next = c->blocks[second].next;
    if (c->blocks[second].next != NONE) {
        c->blocks[c->blocks[second].next].prev = first;
    }
    drop_block(c, second);
}

static bool is_state(const smp_caching *c, uint32_t number, block_state state)
{
    return number != NONE && c->blocks[number].state == state;
}

/* A block becomes free and takes in its free neighbours; returns what it is then part of. */
static uint32_t set_free(smp_caching *c, uint32_t number)
{
    c->blocks[number].state = BLOCK_FREE;
    c->blocks[number].recorded = 0;
    const uint32_t next = c->blocks[number].next;
    if (is_state(c, next, BLOCK_FREE)) {
        list_remove(c, free_list(c, &c->blocks[next]), next);
        join(c, number, next);
    }
    const uint32_t prev = c->blocks[number].prev;
    if (is_state(c, prev, BLOCK_FREE)) {
        list_remove(c, free_list(c, &c->blocks[prev]), prev);
        join(c, prev, number);
        number = prev;
    }
    list_add(c, free_list(c, &c->blocks[number]), number);
    return number;
}

static void set_unmapped(smp_caching *c, uint32_t number)
{
    c->blocks[number].state = BLOCK_UNMAPPED;
    const uint32_t next = c->blocks[number].next;
    if (is_state(c, next, BLOCK_UNMAPPED)) {
        list_remove(c, unmapped_list(c, &c->blocks[next]), next);
        join(c, number, next);
    }
    const uint32_t prev = c->blocks[number].prev;
    if (is_state(c, prev, BLOCK_UNMAPPED)) {
        list_remove(c, unmapped_list(c, &c->blocks[prev]), prev);
        join(c, prev, number);
        number = prev;
    }
    list_add(c, unmapped_list(c, &c->blocks[number]), number);
}

/* ------------------------------------------------------------------- events */

static void process_events(smp_caching *c, int64_t now_ps)
{
    for (size_t i = 0; i < c->pending.n;) {
        const uint32_t number = c->pending.items[i];
        if (c->blocks[number].ready_ps > now_ps) {
            i++;
            continue;
        }
        list_remove(c, &c->pending, number);
        c->stats.active_bytes -= c->blocks[number].bytes;
        (void)set_free(c, number);
    }
}

static int64_t last_event_ps(const smp_caching *c, int64_t now_ps)
{
    for (size_t i = 0; i < c->pending.n; i++) {
        const int64_t ready_ps = c->blocks[c->pending.items[i]].ready_ps;
        now_ps = ready_ps > now_ps ? ready_ps : now_ps;
    }
    return now_ps;
}

/* ------------------------------------------------------------- from the device */

static uint64_t granule_of(uint32_t pool)
{
    return pool == 0 ? small_segment_bytes : large_segment_bytes;
}

static bool has_room(const smp_caching *c, uint64_t bytes)
{
    return c->stats.reserved_bytes + bytes <= c->options.capacity_bytes;
}

/* Whole segments that are free go back; of expandable ones, whole units. */
static void give_back(smp_caching *c, uint32_t number)
{
    block *b = &c->blocks[number];
    if (!b->expandable) {
        if (b->prev == NONE && b->next == NONE) {
            c->stats.reserved_bytes -= b->bytes;
            list_remove(c, free_list(c, b), number);
            drop_block(c, number);
        }
        return;
    }
    /* Units are counted from where the range begins. */
    const uint64_t granule = granule_of(b->pool);
    const uint64_t base = b->address / range_bytes * range_bytes;
    const uint64_t from = base + smp_round_up(b->address - base, granule);
    const uint64_t to = base + (b->address + b->bytes - base) / granule * granule;
    if (to <= from) {
        return;
    }
    list_remove(c, free_list(c, b), number);
    c->stats.reserved_bytes -= to - from;
    uint32_t middle = number;
    if (from > b->address) {
        middle = cut(c, number, from - b->address);
        list_add(c, free_list(c, &c->blocks[number]), number);
    }
    if (c->blocks[middle].bytes > to - from) {
        const uint32_t rear = cut(c, middle, to - from);
        list_add(c, free_list(c, &c->blocks[rear]), rear);
    }
    set_unmapped(c, middle);
}

static void give_back_all(smp_caching *c)
{
    for (int pool = 0; pool < POOLS; pool++) {
        for (int s = 0; s < SMP_CACHING_STREAMS; s++) {
            const list *l = &c->free[pool][s];
            uint32_t *numbers = smp_heap_alloc(l->n + 1, sizeof *numbers);
            const size_t n = l->n;
            for (size_t i = 0; i < n; i++) {
                numbers[i] = l->items[i];
            }
            for (size_t i = 0; i < n; i++) {
                give_back(c, numbers[i]);
            }
            free(numbers);
        }
    }
}

static uint32_t new_segment(smp_caching *c, uint32_t pool, uint32_t stream, uint64_t bytes)
{
    const uint64_t large_bytes = bytes < own_segment_bytes
                                     ? large_segment_bytes
                                     : smp_round_up(bytes, large_round_bytes);
    const uint64_t segment_bytes = pool == 0 ? small_segment_bytes : large_bytes;
    if (!has_room(c, segment_bytes)) {
        return NONE;
    }
    const block b = {.state = BLOCK_FREE, .pool = (uint8_t)pool, .stream = (uint8_t)stream,
                     .prev = NONE, .next = NONE, .address = c->next_address,
                     .bytes = segment_bytes};
    c->next_address += segment_bytes;
    c->stats.reserved_bytes += segment_bytes;
    c->stats.segments++;
    const uint32_t number = new_block(c, &b);
    list_add(c, free_list(c, &c->blocks[number]), number);
    return number;
}

/* ------------------------------------------------------- expandable segments */

/* The lowest run of free and unmapped blocks that holds `bytes`. */
static uint32_t find_run(const smp_caching *c, uint32_t pool, uint32_t stream, uint64_t bytes)
{
    const list *l = &c->unmapped[pool][stream];
    uint32_t best = NONE;
    for (size_t i = 0; i < l->n; i++) {
        uint32_t from = l->items[i];
        if (is_state(c, c->blocks[from].prev, BLOCK_FREE)) {
            from = c->blocks[from].prev;
        }
        uint64_t sum = 0;
        for (uint32_t at = from; sum < bytes && (is_state(c, at, BLOCK_FREE) ||
                                                 is_state(c, at, BLOCK_UNMAPPED));
             at = c->blocks[at].next) {
            sum += c->blocks[at].bytes;
        }
        if (sum >= bytes &&
            (best == NONE || c->blocks[from].address < c->blocks[best].address)) {
            best = from;
        }
    }
    return best;
}

/* Backs the front of an unmapped block; returns the free block that it is then part of. */
static uint32_t map_front(smp_caching *c, uint32_t number, uint64_t bytes)
{
    const uint64_t granule = granule_of(c->blocks[number].pool);
    uint64_t mapped = smp_round_up(bytes, granule);
    mapped = mapped < c->blocks[number].bytes ? mapped : c->blocks[number].bytes;
    if (!has_room(c, mapped)) {
        return NONE;
    }
    list_remove(c, unmapped_list(c, &c->blocks[number]), number);
    if (mapped < c->blocks[number].bytes) {
        const uint32_t rest = cut(c, number, mapped);
        list_add(c, unmapped_list(c, &c->blocks[rest]), rest);
    }
    c->stats.reserved_bytes += mapped;
    c->stats.segments += mapped / granule;
    return set_free(c, number);
}

static uint32_t expand(smp_caching *c, uint32_t pool, uint32_t stream, uint64_t bytes)
{
    uint32_t number = find_run(c, pool, stream, bytes);
    if (number == NONE) {
        const block b = {.state = BLOCK_UNMAPPED, .pool = (uint8_t)pool,
                         .stream = (uint8_t)stream, .expandable = true, .prev = NONE,
                         .next = NONE, .address = smp_round_up(c->next_address, range_bytes),
                         .bytes = range_bytes};
        c->next_address = b.address + range_bytes;
        number = new_block(c, &b);
        list_add(c, unmapped_list(c, &c->blocks[number]), number);
    }
    if (c->blocks[number].state == BLOCK_UNMAPPED) {
        number = map_front(c, number, bytes);
    }
    while (number != NONE && c->blocks[number].bytes < bytes) {
        number = map_front(c, c->blocks[number].next, bytes - c->blocks[number].bytes);
    }
    return number;
}

/* ------------------------------------------------------------------ interface */

smp_caching *smp_caching_create(const smp_caching_options *options)
{
    smp_caching *c = smp_heap_alloc(1, sizeof *c);
    c->options = *options;
    return c;
}

void smp_caching_destroy(smp_caching *c)
{
    if (!c) {
        return;
    }
    for (int pool = 0; pool < POOLS; pool++) {
        for (int s = 0; s < SMP_CACHING_STREAMS; s++) {
            free(c->free[pool][s].items);
            free(c->unmapped[pool][s].items);
        }
    }
    free(c->pending.items);
    free(c->unused.items);
    free(c->blocks);
    free(c);
}

static bool may_use(const smp_caching *c, const block *b, uint64_t bytes)
{
    const uint64_t limit = c->options.max_split_bytes;
    if (b->bytes < bytes) {
        return false;
    }
    if (limit == 0 || b->expandable) {
        return true;
    }
    return bytes < limit ? b->bytes < limit : b->bytes < bytes + large_segment_bytes;
}

static uint32_t best_fit(const smp_caching *c, uint32_t pool, uint32_t stream, uint64_t bytes)
{
    const list *l = &c->free[pool][stream];
    uint32_t best = NONE;
    for (size_t i = 0; i < l->n; i++) {
        const block *b = &c->blocks[l->items[i]];
        if (!may_use(c, b, bytes)) {
            continue;
        }
        const block *so_far = best != NONE ? &c->blocks[best] : NULL;
        if (!so_far || b->bytes < so_far->bytes ||
            (b->bytes == so_far->bytes && b->address < so_far->address)) {
            best = l->items[i];
        }
    }
    return best;
}

static uint32_t find_block(smp_caching *c, uint32_t pool, uint32_t stream, uint64_t bytes)
{
    return c->options.expandable ? expand(c, pool, stream, bytes)
                                 : new_segment(c, pool, stream, bytes);
}

static bool splits(const smp_caching *c, const block *b, uint64_t bytes)
{
    const uint64_t rest = b->bytes - bytes;
    if (b->pool == 0 || b->expandable) {
        return rest >= unit_bytes;
    }
    return rest > small_most_bytes &&
           (c->options.max_split_bytes == 0 || bytes < c->options.max_split_bytes);
}

uint32_t smp_caching_malloc(smp_caching *c, uint32_t stream, uint64_t bytes, int64_t *now_ps)
{
    const uint64_t size = bytes > 0 ? smp_round_up(bytes, unit_bytes) : unit_bytes;
    const uint32_t pool = size > small_most_bytes;
    process_events(c, *now_ps);
    uint32_t number = best_fit(c, pool, stream, size);
    if (number == NONE) {
        number = find_block(c, pool, stream, size);
    }
    if (number == NONE) {
        c->stats.flushes++;
        *now_ps = last_event_ps(c, *now_ps);
        process_events(c, *now_ps);
        give_back_all(c);
        number = find_block(c, pool, stream, size);
    }
    if (number == NONE) {
        c->stats.failures++;
        return NONE;
    }
    list_remove(c, free_list(c, &c->blocks[number]), number);
    if (splits(c, &c->blocks[number], size)) {
        const uint32_t rest = cut(c, number, size);
        list_add(c, free_list(c, &c->blocks[rest]), rest);
    }
    block *b = &c->blocks[number];
    b->state = BLOCK_TAKEN;
    b->asked_bytes = bytes;
    b->recorded = 0;
    c->stats.live_bytes += bytes;
    c->stats.allocated_bytes += b->bytes;
    c->stats.active_bytes += b->bytes;
    return number;
}

void smp_caching_record(smp_caching *c, uint32_t number, uint32_t stream)
{
    if (stream != c->blocks[number].stream) {
        c->blocks[number].recorded |= (uint16_t)(1u << stream);
    }
}

void smp_caching_free(smp_caching *c, uint32_t number, int64_t ready_ps)
{
    block *b = &c->blocks[number];
    c->stats.live_bytes -= b->asked_bytes;
    c->stats.allocated_bytes -= b->bytes;
    if (b->recorded != 0) {
        b->state = BLOCK_PENDING;
        b->ready_ps = ready_ps;
        list_add(c, &c->pending, number);
        return;
    }
    c->stats.active_bytes -= b->bytes;
    (void)set_free(c, number);
}

void smp_caching_empty(smp_caching *c, int64_t now_ps)
{
    process_events(c, now_ps);
    give_back_all(c);
}

smp_caching_stats smp_caching_stats_of(const smp_caching *c)
{
    return c->stats;
}

uint64_t smp_caching_address(const smp_caching *c, uint32_t number)
{
    return c->blocks[number].address;
}

uint64_t smp_caching_size(const smp_caching *c, uint32_t number)
{
    return c->blocks[number].bytes;
}
