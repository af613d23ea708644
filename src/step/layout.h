/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/step: what the memory plan knows of a program before it packs: layout, items
 * and which of them may not share places.  memory.c says what these words mean.
 */
#ifndef SMP_STEP_LAYOUT_H
#define SMP_STEP_LAYOUT_H

#include "step/order.h"
#include "step/pack.h"

/* A range of bytes that is placed as a whole: a slot, a ring by layer, a buffer without
 * index, or a layer of a stack.  Layers of stacks come first. */
typedef struct smp_layout_item {
    uint64_t bytes, base;
    uint32_t start;     /* of its first life */
    uint32_t reach;     /* length of its longest life, clipped */
    uint32_t buffer;    /* SMP_NO_ITEM: a layer of a stack */
    uint32_t slot;
    uint8_t space;
    bool fixed;         /* its base is given */
} smp_layout_item;

enum { SMP_NO_ITEM = 0xffffffffu };

typedef struct smp_layout_stack {
    uint64_t base, stride;
    uint32_t first, end, entries, item0; /* end: after the last layer */
    const uint16_t *entry_of_layer;      /* as in smp_buffer */
    uint8_t space;
} smp_layout_stack;

struct smp_life;

typedef struct smp_layout {
    smp_program *program;
    smp_arena *scratch;
    uint32_t *place0;       /* of a buffer: number of its first place */
    uint32_t n_place;
    uint32_t *item_of_place; /* SMP_NO_ITEM: static */
    uint32_t *buffer_of_place;
    smp_layout_item *items;
    uint32_t n_item;
    smp_layout_stack *stacks; /* in the order in which they lie */
    uint32_t n_stack;
    uint64_t floor[SMP_SPACES]; /* top of the static part */
    uint64_t stack_top[SMP_SPACES];
    uint32_t *walk;         /* instances walked */
    uint32_t n_walk;
    struct smp_life *lives; /* heap */
    size_t n_life, life_capacity;
    uint32_t n_position;
    uint32_t words;         /* of a row of bits */
    uint64_t *serial;       /* n_item rows: alive at once in issue order */
    uint64_t *conflict;     /* n_item rows: may not share */
} smp_layout;

/* Layers of a stack that follow each other and conflict with the same items. */
typedef struct smp_layout_lump {
    uint32_t stack, entry, entries; /* the first, how many */
} smp_layout_lump;

/* The packing of one space: its items that are not fixed, lumps as fixed ranges. */
typedef struct smp_layout_packing {
    smp_pack *pack;
    uint32_t *items;        /* of pack's items: index in layout->items */
    smp_layout_lump *lumps; /* pack->n_fixed, by address */
} smp_layout_packing;

/* layout.c: everything up to `stack_top`, every item at a place of its own. */
SMP_CHECK smp_status smp_layout_create(smp_program *program, smp_arena *scratch,
                                       smp_errors *errors, smp_layout *layout);
/* Writes the item's base to where the program has it. */
void smp_layout_set_base(const smp_layout *layout, const smp_layout_item *item);

/* memory.c: the rest too; items stay at places of their own. */
SMP_CHECK smp_status smp_layout_find(smp_program *program, smp_arena *scratch,
                                     smp_errors *errors, smp_layout *layout);
/* In layout->scratch; `matrix` is layout->conflict or ->serial. */
void smp_layout_pack(const smp_layout *layout, smp_space space, const uint64_t *matrix,
                     smp_layout_packing *out);

#endif
