/* SPDX-License-Identifier: Apache-2.0 */
/* Packing by first fit: see pack.h. */
#include "step/pack.h"

#include "base/numeric.h"

#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 32 }; /* of moving the topmost item to the front, from each sequence */

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

enum { BY_SIZE, BY_REACH, BY_AREA, BY_START };

static sort_key key_of(const smp_pack_item *item, uint32_t number, uint32_t by)
{
    switch (by) {
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
        keys[i] = key_of(&items[i], i, by);
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
    sort_key *keys = SMP_ARENA_ARRAY(arena, n_item, sort_key);
    *pack = (smp_pack){.n_item = n_item, .n_fixed = n_fixed,
                       .words = (n_item + n_fixed) / 64 + 1};
    pack->bytes = SMP_ARENA_ARRAY(arena, n_item, uint64_t);
    pack->conflict = SMP_ARENA_ARRAY(arena, (size_t)n_item * pack->words, uint64_t);
    for (uint32_t i = 0; i < n_item; i++) {
        pack->bytes[i] = items[i].bytes;
    }
    for (uint32_t by = 0; by < SMP_PACK_ORDERS; by++) {
        add_sequence(pack, items, by, keys, SMP_ARENA_ARRAY(arena, n_item, uint32_t));
    }
    return pack;
}

/* ------------------------------------------------------------------- first fit */

void smp_pack_room_free(smp_pack_room *room)
{
    free(room->placed);
    free(room->bases);
    free(room->seen);
    free(room->sequence);
    *room = (smp_pack_room){0};
}

static void make_room(smp_pack_room *room, uint32_t n)
{
    if (n > room->capacity || room->capacity == 0) {
        const uint32_t capacity = n + n / 2 + 16;
        room->placed = smp_heap_grow(room->placed, capacity, sizeof *room->placed);
        room->bases = smp_heap_grow(room->bases, capacity, sizeof *room->bases);
        room->sequence = smp_heap_grow(room->sequence, capacity, sizeof *room->sequence);
        room->seen = smp_heap_grow(room->seen, (size_t)SMP_PACK_ORDERS * ROUNDS,
                                   sizeof *room->seen);
        room->capacity = capacity;
    }
}

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
    memcpy(room->placed, space->fixed, pack->n_fixed * sizeof *room->placed);
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
    make_room(room, pack->n_item + pack->n_fixed);
    for (uint32_t s = 0; s < pack->n_sequence && best > space->target; s++) {
        memcpy(room->sequence, pack->sequence[s], pack->n_item * sizeof *room->sequence);
        for (uint32_t round = 0; round < ROUNDS && best > space->target; round++) {
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
