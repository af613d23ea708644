/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arenas of repeated layers: see skeleton.h.
 *
 * Why it is exact.  Layers of a stack that may share with the same items form a lump, and in
 * first fit a lump is as good as its layers one by one: an item lies above a lump, below it,
 * or shares with all of it.  A layer more in the middle of a run of alike ones makes the lump
 * it lies in longer by a stride and the static part by the layer's parameters.  It leaves items
 * and conflicts as they are, since lives that do not span the run and what clocks do not know
 * reach over two layers at most (rings have two slots), which is not proved but tested
 * (tests/step/test_skeleton.c); and so it leaves the sequences, as items are sorted by what
 * does not count layers (memory.c).  So the packing of the longer program is that of the
 * skeleton with longer lumps.
 *
 * Why it is linear.  Let a be an address inside a lump, at the end of a layer which is not the
 * lump's last, and insert d bytes there.  Say that in every packing tried each item that may
 * share with the lump ends at or below a.  Then in each the items keep their places, but that
 * all from a on move up by d.  By induction over the sequence, let this be so for the items
 * placed before, and an item of n bytes have been at p, the lowest place without conflict.
 *   - It conflicts with the lump: no place that touches the inserted bytes will do.  Places
 *     that end at or below a, and those from a + d on, are what they were, in the same order.
 *   - It does not: p + n <= a, and below a nothing has changed.
 * Tops of arenas move by d too, since the lump's last layer does; what lay at the top still
 * does, and nothing else; so the same sequences come next, and all their tops, of which the
 * lowest counts, are larger by d.  The condition holds again, for this address and others.
 * Bytes inserted at the floor move everything.  A search that ends early has met the top of the
 * stacks, which moves by d, or a clique that fills the arena.  That contains the lump, for else
 * one of its items that may share with the lump would fill the lump's end, above a; so its
 * bytes too are larger by d, and no sequence does better.
 */
#include "step/skeleton.h"

#include "base/numeric.h"
#include "step/layout.h"

#include <stdlib.h>
#include <string.h>

/* Of a stack at a layer: the entry and the lump that has it; no entry: lump is SMP_NO_ITEM. */
typedef struct cell { uint32_t entry, lump; } cell;

typedef struct side {
    smp_space space;
    smp_pack *pack;
    smp_layout_lump *lumps;
    uint64_t *strides;      /* by lump */
    uint64_t floor;
    uint64_t *static_bytes; /* by layer */
    cell *cells;            /* by stack and layer */
    uint32_t n_stack;
} side;

static const smp_space spaces[] = {SMP_SPACE_DEVICE, SMP_SPACE_HOST};
enum { MARGIN = 1 }; /* alike layers beside those that repeat */
enum { SIDES = sizeof spaces / sizeof *spaces };

struct smp_skeleton {
    uint32_t n_layer;
    side sides[SIDES];
};

/* ---------------------------------------------------------------------- making */

static uint32_t count_layers(const smp_program *program)
{
    uint32_t n = 0;
    for (uint32_t b = 0; b < program->n_buffer; b++) {
        const smp_buffer *buffer = &program->buffers[b];
        const uint32_t layers = buffer->entry_of_layer ? buffer->layers : buffer->entries;
        if (buffer->index == SMP_INDEX_LAYER && buffer->slots == 0) {
            n = n > buffer->first + layers ? n : buffer->first + layers;
        }
    }
    return n;
}

static bool has_entry(uint32_t first, uint32_t end, const uint16_t *entry_of_layer,
                      uint32_t layer)
{
    return layer >= first && layer < end
           && (!entry_of_layer || entry_of_layer[layer - first] != SMP_NO_ENTRY);
}

static void add_static(const smp_program *program, uint32_t n_layer, smp_space space,
                       uint64_t *bytes)
{
    for (uint32_t b = 0; b < program->n_buffer; b++) {
        const smp_buffer *buffer = &program->buffers[b];
        const uint32_t layers = buffer->entry_of_layer ? buffer->layers : buffer->entries;
        if (buffer->space != space || buffer->scope != SMP_SCOPE_STEP
            || buffer->index != SMP_INDEX_LAYER || buffer->slots > 0) {
            continue;
        }
        for (uint32_t layer = 0; layer < n_layer; layer++) {
            if (has_entry(buffer->first, buffer->first + layers, buffer->entry_of_layer,
                          layer)) {
                bytes[layer] = smp_add(bytes[layer], buffer->bytes);
            }
        }
    }
}

static uint32_t lump_of(const side *at, uint32_t stack, uint32_t entry)
{
    uint32_t l = 0;
    while (at->lumps[l].stack != stack || entry < at->lumps[l].entry
           || entry >= at->lumps[l].entry + at->lumps[l].entries) {
        l++;
    }
    return l;
}

static void enter_cells(const smp_layout *layout, smp_space space, uint32_t n_layer,
                        smp_arena *arena, side *at)
{
    at->cells = SMP_ARENA_ARRAY(arena, (size_t)layout->n_stack * n_layer, cell);
    for (uint32_t s = 0; s < layout->n_stack; s++) {
        const smp_layout_stack *stack = &layout->stacks[s];
        if (stack->space != space) {
            continue;
        }
        cell *cells = at->cells + (size_t)at->n_stack++ * n_layer;
        for (uint32_t layer = 0, entry = 0; layer < n_layer; layer++) {
            cells[layer].lump = SMP_NO_ITEM;
            if (has_entry(stack->first, stack->end, stack->entry_of_layer, layer)) {
                cells[layer] = (cell){entry, lump_of(at, s, entry)};
                entry++;
            }
        }
    }
}

static void make_side(const smp_layout *layout, smp_space space, uint32_t n_layer,
                      smp_arena *arena, side *at)
{
    smp_layout_packing packing;
    smp_layout_pack(layout, space, layout->conflict, &packing);
    *at = (side){.space = space, .pack = packing.pack, .lumps = packing.lumps,
                 .floor = layout->floor[space]};
    at->strides = SMP_ARENA_ARRAY(arena, at->pack->n_fixed, uint64_t);
    for (uint32_t l = 0; l < at->pack->n_fixed; l++) {
        at->strides[l] = layout->stacks[at->lumps[l].stack].stride;
    }
    at->static_bytes = SMP_ARENA_ARRAY(arena, n_layer, uint64_t);
    add_static(layout->program, n_layer, space, at->static_bytes);
    enter_cells(layout, space, n_layer, arena, at);
}

smp_status smp_skeleton_create(smp_program *program, smp_arena *arena, smp_errors *errors,
                               smp_skeleton **skeleton_p)
{
    smp_layout layout;
    smp_arena *scratch = smp_arena_create();
    const smp_status status = smp_layout_find(program, scratch, errors, &layout);
    if (status == SMP_OK) {
        smp_skeleton *skeleton = SMP_ARENA_NEW(arena, smp_skeleton);
        skeleton->n_layer = count_layers(program);
        layout.scratch = arena; /* what packing is made of is kept */
        for (uint32_t i = 0; i < SIDES; i++) {
            make_side(&layout, spaces[i], skeleton->n_layer, arena, &skeleton->sides[i]);
        }
        *skeleton_p = skeleton;
    }
    smp_arena_destroy(scratch);
    return status;
}

/* --------------------------------------------------------------------- asking */

void smp_skeleton_room_free(smp_skeleton_room *room)
{
    smp_pack_room_free(&room->pack);
    free(room->ranges);
    free(room->cuts);
    free(room->owners);
    free(room->entries);
    *room = (smp_skeleton_room){0};
}

static void make_room(smp_skeleton_room *room, uint32_t n_lump, uint32_t n_cut)
{
    if (n_lump > room->capacity) {
        room->ranges = smp_heap_grow(room->ranges, n_lump, sizeof *room->ranges);
        room->entries = smp_heap_grow(room->entries, n_lump, sizeof *room->entries);
        room->capacity = n_lump;
    }
    if (n_cut > room->cut_capacity) {
        room->cuts = smp_heap_grow(room->cuts, n_cut, sizeof *room->cuts);
        room->owners = smp_heap_grow(room->owners, n_cut, sizeof *room->owners);
        room->cut_capacity = n_cut;
    }
}

/* Entries that one more of the repeat adds to a stack; *lump_p is the lump they lie in.  False:
 * there is no lump that reaches as many entries further at both ends. */
static bool entries_of(const side *at, const cell *cells, const smp_repeat *repeat,
                       uint32_t *lump_p, uint32_t *entries_p)
{
    uint32_t n = 0, first = 0, end = 0;
    for (uint32_t layer = repeat->layer; layer < repeat->layer + repeat->layers; layer++) {
        if (cells[layer].lump != SMP_NO_ITEM) {
            first = n == 0 ? cells[layer].entry : first;
            end = cells[layer].entry + 1;
            *lump_p = cells[layer].lump;
            n++;
        }
    }
    *entries_p = n;
    if (n == 0) {
        return true;
    }
    const smp_layout_lump *lump = &at->lumps[*lump_p];
    return first >= lump->entry + n && end + n <= lump->entry + lump->entries;
}

/* Whether two layers have parameters of one size and lie in the same stacks. */
static bool are_alike(const smp_skeleton *skeleton, uint32_t a, uint32_t b)
{
    for (uint32_t i = 0; i < SIDES; i++) {
        const side *at = &skeleton->sides[i];
        if (at->static_bytes[a] != at->static_bytes[b]) {
            return false;
        }
        for (uint32_t s = 0; s < at->n_stack; s++) {
            const cell *cells = at->cells + (size_t)s * skeleton->n_layer;
            if ((cells[a].lump == SMP_NO_ITEM) != (cells[b].lump == SMP_NO_ITEM)) {
                return false;
            }
        }
    }
    return true;
}

/* Whether the layers of the repeat follow and precede alike ones, MARGIN times. */
static bool is_inside(const smp_skeleton *skeleton, const smp_repeat *repeat)
{
    const uint64_t margin = (uint64_t)MARGIN * repeat->layers;
    const uint64_t end = (uint64_t)repeat->layer + repeat->layers + margin;
    if (repeat->layers == 0 || repeat->layer < margin || end > skeleton->n_layer) {
        return false;
    }
    for (uint32_t layer = repeat->layer - (uint32_t)margin; layer + repeat->layers < end;
         layer++) {
        if (!are_alike(skeleton, layer, layer + repeat->layers)) {
            return false;
        }
    }
    return true;
}

typedef struct growth { uint64_t floor, slope; } growth; /* of an arena: bytes */

/* Adds what a repeat, the number `owner`, brings to a space. */
static bool add_repeat(const smp_skeleton *skeleton, const side *at, const smp_repeat *repeat,
                       uint32_t owner, smp_skeleton_room *room, uint32_t *n_cut,
                       growth *growth_p)
{
    uint64_t bytes = 0;
    for (uint32_t layer = repeat->layer; layer < repeat->layer + repeat->layers; layer++) {
        bytes = smp_add(bytes, at->static_bytes[layer]);
    }
    *growth_p = (growth){bytes * (uint64_t)repeat->more, bytes};
    for (uint32_t s = 0; s < at->n_stack; s++) {
        uint32_t lump = 0, n = 0;
        const cell *cells = at->cells + (size_t)s * skeleton->n_layer;
        if (!entries_of(at, cells, repeat, &lump, &n)) {
            return false;
        }
        if (n > 0) {
            room->entries[lump] += n * (uint64_t)repeat->more;
            room->owners[*n_cut] = owner;
            room->cuts[(*n_cut)++] = (smp_pack_cut){.fixed = lump, .holds = true};
            growth_p->slope += n * at->strides[lump];
        }
    }
    return true;
}

/* Places lumps and cuts from the floor on; the top of the stacks. */
static uint64_t place_lumps(const side *at, uint64_t floor, smp_skeleton_room *room,
                            uint32_t n_cut)
{
    uint64_t top = floor;
    for (uint32_t l = 0; l < at->pack->n_fixed; l++) {
        const uint64_t base = top;
        top = smp_add(top, smp_mul(room->entries[l], at->strides[l]));
        room->ranges[l] = (smp_pack_range){base, top, at->pack->n_item + l};
    }
    for (uint32_t c = 0; c < n_cut; c++) {
        const uint32_t lump = room->cuts[c].fixed;
        room->cuts[c].at = room->ranges[lump].end - at->strides[lump];
    }
    return top;
}

static bool pack_side(const smp_skeleton *skeleton, const side *at, uint32_t n,
                      const smp_repeat *repeats, smp_skeleton_room *room,
                      uint64_t *arena_bytes, smp_slope *slopes)
{
    uint32_t n_cut = 0;
    uint64_t floor = at->floor;
    make_room(room, at->pack->n_fixed, n * at->n_stack);
    for (uint32_t l = 0; l < at->pack->n_fixed; l++) {
        room->entries[l] = at->lumps[l].entries;
    }
    for (uint32_t i = 0; i < n; i++) {
        growth grown;
        if (!add_repeat(skeleton, at, &repeats[i], i, room, &n_cut, &grown)) {
            return false;
        }
        floor += grown.floor; /* less where layers are taken out */
        if (slopes) {
            slopes[i].bytes[at->space] = grown.slope;
        }
    }
    const uint64_t top = place_lumps(at, floor, room, n_cut);
    const smp_pack_space space = {room->ranges, floor, top, top};
    *arena_bytes = smp_pack_best(at->pack, &space, &room->pack, slopes ? n_cut : 0, room->cuts,
                                 NULL);
    for (uint32_t c = 0; slopes && c < n_cut; c++) {
        slopes[room->owners[c]].linear &= room->cuts[c].holds;
    }
    return true;
}

bool smp_skeleton_arena(const smp_skeleton *skeleton, uint32_t n, const smp_repeat *repeats,
                        smp_skeleton_room *room, smp_repeated *out, smp_slope *slopes)
{
    *out = (smp_repeated){0};
    for (uint32_t i = 0; i < n; i++) {
        if (!is_inside(skeleton, &repeats[i])) {
            return false;
        }
        if (slopes) {
            slopes[i] = (smp_slope){.linear = true};
        }
    }
    for (uint32_t i = 0; i < SIDES; i++) {
        if (!pack_side(skeleton, &skeleton->sides[i], n, repeats, room,
                       &out->arena_bytes[spaces[i]], slopes)) {
            return false;
        }
    }
    return true;
}
