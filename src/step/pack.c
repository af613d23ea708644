/* SPDX-License-Identifier: Apache-2.0 */
/* Packing by first fit: see pack.h. */
#include "step/pack.h"

#include "base/numeric.h"

#include <stdlib.h>
#include <string.h>

typedef struct sort_key { uint64_t major, minor; uint32_t item; } sort_key;

static int key_compare(const void *a, const void *b)
{
    const sort_key *x = a, *y = b;
    if (x->major != y->major) {
        return x->major > y->major ? -1 : 1;
    }
    if (x->minor != y->minor) {
        return x->minor > y->minor ? -1 : 1;
    }
    return (x->item > y->item) - (x->item < y->item);
}

/* Bytes of an item and of those that it conflicts with: fixed ranges, whose sizes may vary
 * between problems alike otherwise, do not count. */
static uint64_t neighbourhood_bytes(const smp_pack *pack, uint32_t item)
{
    uint64_t bytes = pack->bytes[item];
    for (uint32_t i = 0; i < pack->n_item; i++) {
        bytes += i != item && smp_pack_conflicts(pack, item, i) ? pack->bytes[i] : 0;
    }
    return bytes;
}

enum { BY_SIZE, BY_NEIGHBOURHOOD, BY_REACH, BY_AREA, BY_START };

static sort_key key_of(const smp_pack *pack, const smp_pack_item *item, uint32_t number,
                       uint32_t by)
{
    switch (by) {
    case BY_NEIGHBOURHOOD:
        return (sort_key){neighbourhood_bytes(pack, number), item->bytes, number};
    case BY_REACH:
        return (sort_key){item->reach, item->bytes, number};
    case BY_AREA:
        return (sort_key){smp_mul(item->bytes, item->reach), item->reach, number};
    case BY_START:
        return (sort_key){~(uint64_t)item->start, item->bytes, number};
    case BY_SIZE:
    default:
        return (sort_key){item->bytes, item->reach, number};
    }
}

static void add_sequence(smp_pack *pack, const smp_pack_item *items, uint32_t by,
                         sort_key *keys, uint32_t *sequence)
{
    const size_t bytes = pack->n_item * sizeof *sequence;
    for (uint32_t i = 0; i < pack->n_item; i++) {
        keys[i] = key_of(pack, &items[i], i, by);
    }
    if (pack->n_item > 0) {
        qsort(keys, pack->n_item, sizeof *keys, key_compare);
    }
    for (uint32_t i = 0; i < pack->n_item; i++) {
        sequence[i] = keys[i].item;
    }
    for (uint32_t s = 0; s < pack->n_sequence; s++) {
        if (memcmp(pack->sequence[s], sequence, bytes) == 0) {
            return;
        }
    }
    pack->sequence[pack->n_sequence++] = sequence;
}

smp_pack *smp_pack_create(smp_arena *arena, uint32_t n_item, const smp_pack_item *items,
                          uint32_t n_fixed)
{
    smp_pack *pack = SMP_ARENA_NEW(arena, smp_pack);
    *pack = (smp_pack){.n_item = n_item, .n_fixed = n_fixed,
                       .words = (n_item + n_fixed) / 64 + 1};
    pack->bytes = SMP_ARENA_ARRAY(arena, n_item, uint64_t);
    pack->conflict = SMP_ARENA_ARRAY(arena, (size_t)n_item * pack->words, uint64_t);
    for (uint32_t i = 0; i < n_item; i++) {
        pack->bytes[i] = items[i].bytes;
    }
    return pack;
}

void smp_pack_sort(smp_pack *pack, smp_arena *arena, const smp_pack_item *items)
{
    sort_key *keys = SMP_ARENA_ARRAY(arena, pack->n_item, sort_key);
    for (uint32_t by = 0; by < SMP_PACK_ORDERS; by++) {
        add_sequence(pack, items, by, keys, SMP_ARENA_ARRAY(arena, pack->n_item, uint32_t));
    }
}

/* ----------------------------------------------------------------------- room */

enum {
    ROUNDS = 8,      /* of moving the topmost item to the front, from each sequence */
    MOST_NODES = 256 /* of the search for a clique */
};

void smp_pack_room_free(smp_pack_room *room)
{
    free(room->placed);
    free(room->bases);
    free(room->seen);
    free(room->sequence);
    free(room->lists);
    *room = (smp_pack_room){0};
}

static void make_room(smp_pack_room *room, const smp_pack *pack)
{
    const uint32_t n = pack->n_item + pack->n_fixed;
    const size_t lists = ((size_t)pack->n_item + 1) * n;
    if (n > room->capacity || room->capacity == 0) {
        room->capacity = n + n / 2 + 16;
        room->placed = smp_heap_grow(room->placed, room->capacity, sizeof *room->placed);
        room->bases = smp_heap_grow(room->bases, room->capacity, sizeof *room->bases);
        room->sequence = smp_heap_grow(room->sequence, room->capacity, sizeof *room->sequence);
        room->seen = smp_heap_grow(room->seen, (size_t)SMP_PACK_ORDERS * ROUNDS,
                                   sizeof *room->seen);
    }
    if (lists > room->list_capacity) {
        room->lists = smp_heap_grow(room->lists, lists, sizeof *room->lists);
        room->list_capacity = lists;
    }
}

/* ---------------------------------------------------------------------- bound */

/* A search for the heaviest clique: of items and fixed ranges, any two of which conflict or
 * are fixed.  Such lie apart in any packing, so it bounds the arena from below. */
typedef struct clique {
    const smp_pack *pack;
    const smp_pack_range *fixed;
    uint32_t n_node;
    uint64_t best_bytes;
} clique;

/* Extends a clique of items of `bytes` by items, the heaviest first; `fixed`: the fixed ranges
 * that conflict with all of it.  Lists lie one behind the other: `items`, `fixed`, room for
 * those of the next. */
static void extend_clique(clique *c, uint32_t *items, uint32_t n_item, uint32_t n_fixed,
                          uint64_t bytes)
{
    uint32_t *fixed = items + n_item, *next = fixed + n_fixed;
    uint64_t most_bytes = bytes, fixed_bytes = 0;
    for (uint32_t f = 0; f < n_fixed; f++) {
        fixed_bytes += c->fixed[fixed[f]].end - c->fixed[fixed[f]].base;
    }
    c->best_bytes = c->best_bytes > bytes + fixed_bytes ? c->best_bytes : bytes + fixed_bytes;
    for (uint32_t k = 0; k < n_item; k++) {
        most_bytes += c->pack->bytes[items[k]];
    }
    for (uint32_t k = 0; k < n_item && c->n_node < MOST_NODES; k++) {
        if (most_bytes + fixed_bytes <= c->best_bytes) {
            return;
        }
        uint32_t n_next = 0, n_left = 0;
        for (uint32_t j = k + 1; j < n_item; j++) {
            next[n_next] = items[j];
            n_next += smp_pack_conflicts(c->pack, items[k], items[j]);
        }
        for (uint32_t f = 0; f < n_fixed; f++) {
            next[n_next + n_left] = fixed[f];
            n_left += smp_pack_conflicts(c->pack, items[k], c->pack->n_item + fixed[f]);
        }
        c->n_node++;
        extend_clique(c, next, n_next, n_left, bytes + c->pack->bytes[items[k]]);
        most_bytes -= c->pack->bytes[items[k]];
    }
}

/* A lower bound of the arena, space->target at least. */
static uint64_t bound(const smp_pack *pack, const smp_pack_space *space, smp_pack_room *room)
{
    clique c = {.pack = pack, .fixed = space->fixed};
    for (uint32_t i = 0; i < pack->n_item; i++) {
        room->lists[i] = pack->sequence[0][i]; /* by size */
    }
    for (uint32_t f = 0; f < pack->n_fixed; f++) {
        room->lists[pack->n_item + f] = f;
    }
    extend_clique(&c, room->lists, pack->n_item, pack->n_fixed, 0);
    const uint64_t bytes = space->floor + c.best_bytes;
    return bytes > space->target ? bytes : space->target;
}

/* ------------------------------------------------------------------- first fit */

/* The lowest place of an item that conflicts with none of the placed ones: `all`, by base. */
static uint64_t first_fit(const smp_pack_range *all, uint32_t n, uint64_t floor,
                          uint64_t bytes, const uint64_t *bits)
{
    uint64_t at = floor;
    for (uint32_t o = 0; o < n && all[o].base < at + bytes; o++) {
        const bool blocks = (bits[all[o].number / 64] >> (all[o].number % 64) & 1) != 0;
        at = blocks && all[o].end > at ? all[o].end : at;
    }
    return at;
}

static void insert(smp_pack_range *all, uint32_t n, smp_pack_range range)
{
    uint32_t at = n;
    while (at > 0 && all[at - 1].base > range.base) {
        at--;
    }
    memmove(all + at + 1, all + at, (n - at) * sizeof *all);
    all[at] = range;
}

/* Packs in the order of room->sequence; sets room->bases and returns the top. */
static uint64_t pack_once(const smp_pack *pack, const smp_pack_space *space,
                          smp_pack_room *room)
{
    uint64_t top = space->top;
    if (pack->n_fixed > 0) {
        memcpy(room->placed, space->fixed, pack->n_fixed * sizeof *room->placed);
    }
    for (uint32_t s = 0, n = pack->n_fixed; s < pack->n_item; s++, n++) {
        const uint32_t i = room->sequence[s];
        const uint64_t bytes = pack->bytes[i];
        const uint64_t at = first_fit(room->placed, n, space->floor, bytes,
                                      pack->conflict + (size_t)i * pack->words);
        room->bases[i] = at;
        top = top > at + bytes ? top : at + bytes;
        insert(room->placed, n, (smp_pack_range){at, at + bytes, i});
    }
    return top;
}

static void check_cuts(const smp_pack *pack, const smp_pack_room *room, uint32_t n_cut,
                       smp_pack_cut *cuts)
{
    for (uint32_t c = 0; c < n_cut; c++) {
        const uint32_t fixed = pack->n_item + cuts[c].fixed;
        for (uint32_t i = 0; cuts[c].holds && i < pack->n_item; i++) {
            cuts[c].holds = room->bases[i] + pack->bytes[i] <= cuts[c].at
                            || smp_pack_conflicts(pack, i, fixed);
        }
    }
}

/* Moves the topmost item, of several the last in the sequence, to the front; false when it is
 * there already. */
static bool promote_top(const smp_pack *pack, smp_pack_room *room, uint64_t top)
{
    uint32_t at = pack->n_item;
    while (at > 0 && room->bases[room->sequence[at - 1]] + pack->bytes[room->sequence[at - 1]]
                         != top) {
        at--;
    }
    if (at <= 1) {
        return false;
    }
    const uint32_t item = room->sequence[at - 1];
    memmove(room->sequence + 1, room->sequence, (at - 1) * sizeof *room->sequence);
    room->sequence[0] = item;
    return true;
}

/* Whether the sequence has not been packed before. */
static bool is_new(const smp_pack *pack, smp_pack_room *room, uint32_t *n_seen)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (uint32_t s = 0; s < pack->n_item; s++) { /* as FNV-1a: any mix will do */
        hash = (hash ^ room->sequence[s]) * UINT64_C(0x100000001b3);
    }
    for (uint32_t k = 0; k < *n_seen; k++) {
        if (room->seen[k] == hash) {
            return false;
        }
    }
    room->seen[(*n_seen)++] = hash;
    return true;
}

uint64_t smp_pack_best(const smp_pack *pack, const smp_pack_space *space, smp_pack_room *room,
                       uint32_t n_cut, smp_pack_cut *cuts, uint64_t *best_bases)
{
    uint64_t best = UINT64_MAX;
    uint32_t n_seen = 0;
    if (pack->n_item == 0) {
        return space->top;
    }
    make_room(room, pack);
    const uint64_t target = bound(pack, space, room);
    for (uint32_t s = 0; s < pack->n_sequence && best > target; s++) {
        memcpy(room->sequence, pack->sequence[s], pack->n_item * sizeof *room->sequence);
        for (uint32_t round = 0; round < ROUNDS && best > target; round++) {
            if (!is_new(pack, room, &n_seen)) {
                break;
            }
            const uint64_t top = pack_once(pack, space, room);
            check_cuts(pack, room, n_cut, cuts);
            if (top < best) {
                best = top;
                if (best_bases != NULL) {
                    memcpy(best_bases, room->bases, pack->n_item * sizeof *best_bases);
                }
            }
            if (!promote_top(pack, room, top)) {
                break;
            }
        }
    }
    return best;
}
