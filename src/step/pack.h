/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/step: packing of items into one space.
 *
 * An item is a range of bytes whose place is wanted, a fixed range one whose place is given;
 * two of them that conflict may not share a byte.  Fixed ranges lie apart from each other.
 *
 * First fit: items are placed one after the other, each at the lowest place where it conflicts
 * with nothing placed before.  What comes out depends on the sequence alone, and is tried for
 * several: sorted by size, size with all that conflicts, reach, size times reach, and start;
 * from each, the topmost item is moved to the front and all packed again, as long as this gives
 * a sequence that is new.
 */
#ifndef SMP_STEP_PACK_H
#define SMP_STEP_PACK_H

#include "base/arena.h"

enum { SMP_PACK_ORDERS = 5 };

typedef struct smp_pack_item {
    uint64_t bytes;         /* above 0 */
    uint32_t reach, start;  /* what sequences are sorted by: see memory.c */
} smp_pack_item;

typedef struct smp_pack {
    uint32_t n_item, n_fixed;
    uint32_t words;         /* of a row of bits */
    uint64_t *bytes;        /* of an item */
    uint64_t *conflict;     /* n_item rows: bit i item i, bit n_item + f fixed range f */
    uint32_t *sequence[SMP_PACK_ORDERS]; /* to begin with; distinct */
    uint32_t n_sequence;
} smp_pack;

typedef struct smp_pack_range { uint64_t base, end; uint32_t number; } smp_pack_range;

/* An address that no item without conflict with fixed range `fixed` may pass: `holds` becomes
 * false when one ends above it in any packing tried. */
typedef struct smp_pack_cut { uint64_t at; uint32_t fixed; bool holds; } smp_pack_cut;

/* The fixed ranges by address; arena from floor on, at least up to `top`. */
typedef struct smp_pack_space {
    const smp_pack_range *fixed;
    uint64_t floor, top;
    uint64_t target;        /* a lower bound of the result: ends the search when reached */
} smp_pack_space;

/* Room that packing needs; zero to begin with, grows, any problem may use it. */
typedef struct smp_pack_room {
    smp_pack_range *placed;
    uint64_t *bases, *seen;
    uint32_t *sequence, *lists;
    uint32_t capacity;      /* items and fixed ranges */
    size_t list_capacity;
} smp_pack_room;
void smp_pack_room_free(smp_pack_room *room);

/* A problem without conflicts, in `arena`.  When they are entered, smp_pack_sort makes the
 * sequences of the same items. */
smp_pack *smp_pack_create(smp_arena *arena, uint32_t n_item, const smp_pack_item *items,
                          uint32_t n_fixed);
void smp_pack_sort(smp_pack *pack, smp_arena *arena, const smp_pack_item *items);
static inline void smp_pack_conflict(smp_pack *pack, uint32_t item, uint32_t other)
{
    pack->conflict[(size_t)item * pack->words + other / 64] |= (uint64_t)1 << (other % 64);
}
static inline bool smp_pack_conflicts(const smp_pack *pack, uint32_t item, uint32_t other)
{
    const uint64_t *row = pack->conflict + (size_t)item * pack->words;
    return (row[other / 64] >> (other % 64) & 1) != 0;
}

/* The lowest top found; best_bases (NULL: not asked) gets the items' places. */
uint64_t smp_pack_best(const smp_pack *pack, const smp_pack_space *space, smp_pack_room *room,
                       uint32_t n_cut, smp_pack_cut *cuts, uint64_t *best_bases);

#endif
