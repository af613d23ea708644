/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Classes of ranks: the coarsest partition that is finer than the placements (and the
 * caller's colours) and stable: ranks of one class have, for every kind of group, the same
 * classes among the members, each as often.
 *
 * Colour refinement: colours start from what ranks are by themselves; in each round a rank's
 * new colour is its old one together with, for each kind of group, the multiset of colours in
 * its group.  When no colour splits, the partition is stable.  Exact: multisets and tuples
 * become numbers through a table that compares contents, never by hash alone.
 */
#include "config.h"

#include "mesh/mesh_int.h"

#include "base/arena.h"
#include "base/numeric.h"

#include <stdlib.h>
#include <string.h>

/* Tuples of numbers to small numbers, in the order of first appearance.  Open addressing;
 * `slots` holds number + 1. */
typedef struct numbering {
    uint32_t *slots, n_slot; /* a power of two, more than twice the tuples */
    const uint32_t **tuples;
    uint32_t *lengths;
    uint32_t n;
} numbering;

static void numbering_init(numbering *table, smp_arena *arena, uint32_t most)
{
    table->n_slot = 4;
    while (table->n_slot / 2 <= most) {
        table->n_slot *= 2;
    }
    table->slots = SMP_ARENA_ARRAY(arena, table->n_slot, uint32_t);
    table->tuples = SMP_ARENA_ARRAY(arena, most, const uint32_t *);
    table->lengths = SMP_ARENA_ARRAY(arena, most, uint32_t);
    table->n = 0;
}

static void numbering_clear(numbering *table)
{
    memset(table->slots, 0, table->n_slot * sizeof(*table->slots));
    table->n = 0;
}

/* Word by word: this runs over all ranks, and smp_hash goes byte by byte.  The multiplier is
 * that of Fibonacci hashing [Knuth, TAOCP 3, 6.4]. */
static uint32_t hash_tuple(const uint32_t *tuple, uint32_t length)
{
    uint64_t hash = length;

    for (uint32_t i = 0; i < length; i++) {
        hash = (hash ^ tuple[i]) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 32;
    }
    return (uint32_t)hash;
}

/* The tuple is kept by pointer until the table is cleared. */
static uint32_t number_of(numbering *table, const uint32_t *tuple, uint32_t length)
{
    size_t n_byte = length * sizeof(*tuple);
    uint32_t mask = table->n_slot - 1;
    uint32_t slot = hash_tuple(tuple, length) & mask;

    for (; table->slots[slot] != 0; slot = (slot + 1) & mask) {
        uint32_t number = table->slots[slot] - 1;
        if (table->lengths[number] == length &&
            memcmp(table->tuples[number], tuple, n_byte) == 0) {
            return number;
        }
    }
    table->slots[slot] = ++table->n;
    table->tuples[table->n - 1] = tuple;
    table->lengths[table->n - 1] = length;
    return table->n - 1;
}

/* Space of one refinement.  `signature[g]`: for each rank, the number of the multiset of
 * colours in its group of kind g. */
typedef struct refinement {
    const smp_mesh *mesh;
    uint32_t *colour, n_colour;
    uint32_t *signature[SMP_GROUPS];
    uint32_t *members, *tuples, *leaving;
    uint32_t *own;      /* OWN_WORDS of each rank; of those of the first node where all nodes
                           are alike */
    uint32_t n_own;
    numbering table;
} refinement;

enum { PLACEMENT_WORDS = 6, OWN_WORDS = 1 + SMP_GROUPS * PLACEMENT_WORDS };

static void keep_placement(const refinement *r, smp_group group, uint32_t rank,
                           const uint32_t words[PLACEMENT_WORDS])
{
    uint32_t *tuple = r->own + (size_t)rank * OWN_WORDS;
    memcpy(tuple + 1 + (unsigned)group * PLACEMENT_WORDS, words,
           PLACEMENT_WORDS * sizeof *words);
}

/* As place_groups, from the groups of the first node. */
static void place_first_node(const refinement *r, smp_group group)
{
    const smp_mesh *mesh = r->mesh;
    const uint32_t gpus = mesh->gpus_per_node;
    const uint32_t leaving = smp_mesh_leaving(mesh, group, 0);

    for (uint32_t node = 0; node < mesh->world / gpus; node++) {
        r->leaving[node] = leaving;
    }
    for (uint32_t rank = 0; rank < gpus; rank++) {
        const uint32_t first = smp_mesh_first_member(mesh, group, rank);
        smp_placement p;
        if (first < rank) {
            keep_placement(r, group, rank, r->own + (size_t)first * OWN_WORDS + 1 +
                                               (unsigned)group * PLACEMENT_WORDS);
            continue;
        }
        smp_mesh_place(mesh, group, rank, r->leaving, &p);
        keep_placement(r, group, rank,
                       (const uint32_t[]){p.ranks, p.nodes, p.most_per_node,
                                          p.least_per_node, p.stride, p.sharers});
    }
}

/* For all ranks, what smp_mesh_placement says of one kind of group: each group is measured
 * once, at its first member, and copied to the others. */
static void place_groups(const refinement *r, smp_group group)
{
    const smp_mesh *mesh = r->mesh;
    uint32_t size = smp_mesh_group_size(mesh, group);

    for (uint32_t node = 0; node * mesh->gpus_per_node < mesh->world; node++) {
        r->leaving[node] = smp_mesh_leaving(mesh, group, node);
    }
    for (uint32_t rank = 0; rank < mesh->world; rank++) {
        if (smp_mesh_first_member(mesh, group, rank) != rank) {
            continue;
        }
        smp_placement p;
        smp_mesh_place(mesh, group, rank, r->leaving, &p);
        uint32_t words[PLACEMENT_WORDS] = {p.ranks, p.nodes, p.most_per_node,
                                           p.least_per_node, p.stride, p.sharers};
        smp_mesh_members(mesh, group, rank, r->members);
        for (uint32_t i = 0; i < size; i++) {
            keep_placement(r, group, r->members[i], words);
        }
    }
}

/* Numbers what the ranks are by themselves: two numbers, of the place and of both. */
static void number_places(refinement *r, const uint32_t *colour_of_rank)
{
    const uint32_t world = r->mesh->world;

    for (uint32_t rank = 0; rank < r->n_own; rank++) {
        r->colour[rank] = number_of(&r->table, r->own + (size_t)rank * OWN_WORDS, OWN_WORDS);
    }
    for (uint32_t rank = r->n_own; rank < world; rank++) {
        r->colour[rank] = r->colour[rank % r->n_own];
    }
    if (colour_of_rank == NULL) {
        return;
    }
    numbering_clear(&r->table);
    for (uint32_t rank = 0; rank < world; rank++) {
        uint32_t *pair = r->tuples + (size_t)rank * 2;
        pair[0] = r->colour[rank];
        pair[1] = colour_of_rank[rank];
        r->colour[rank] = number_of(&r->table, pair, 2);
    }
}

static void colour_by_place(refinement *r, const uint32_t *colour_of_rank)
{
    const bool alike = smp_mesh_nodes_alike(r->mesh);

    for (int g = 0; g < (int)SMP_GROUPS; g++) {
        if (alike) {
            place_first_node(r, (smp_group)g);
        } else {
            place_groups(r, (smp_group)g);
        }
    }
    number_places(r, colour_of_rank);
    r->n_colour = r->table.n;
}

static int compare_u32(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

static bool is_ascending(const uint32_t *colours, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        if (colours[i - 1] > colours[i]) {
            return false;
        }
    }
    return true;
}

static void sort_colours(uint32_t *colours, uint32_t n)
{
    if (is_ascending(colours, n)) {
        return;
    }
    if (n > 32) {
        qsort(colours, n, sizeof(*colours), compare_u32);
        return;
    }
    for (uint32_t i = 1; i < n; i++) {
        uint32_t value = colours[i], j = i;
        for (; j > 0 && colours[j - 1] > value; j--) {
            colours[j] = colours[j - 1];
        }
        colours[j] = value;
    }
}

/* Numbers the multisets of colours of all groups of one kind, in the order of first ranks. */
static void sign_groups(refinement *r, smp_group group)
{
    const smp_mesh *mesh = r->mesh;
    uint32_t size = smp_mesh_group_size(mesh, group), used = 0;

    numbering_clear(&r->table);
    for (uint32_t rank = 0; rank < mesh->world; rank++) {
        if (smp_mesh_first_member(mesh, group, rank) != rank) {
            continue;
        }
        uint32_t *tuple = r->tuples + used;
        smp_mesh_members(mesh, group, rank, r->members);
        for (uint32_t i = 0; i < size; i++) {
            tuple[i] = r->colour[r->members[i]];
        }
        sort_colours(tuple, size);
        uint32_t number = number_of(&r->table, tuple, size);
        for (uint32_t i = 0; i < size; i++) {
            r->signature[group][r->members[i]] = number;
        }
        used += size;
    }
}

/* One round; true when a colour was split. */
static bool refine(refinement *r)
{
    uint32_t world = r->mesh->world, before = r->n_colour;

    for (int g = 0; g < (int)SMP_GROUPS; g++) {
        sign_groups(r, (smp_group)g);
    }
    numbering_clear(&r->table);
    for (uint32_t rank = 0; rank < world; rank++) {
        uint32_t *tuple = r->tuples + (size_t)rank * (1 + SMP_GROUPS);
        tuple[0] = r->colour[rank];
        for (int g = 0; g < (int)SMP_GROUPS; g++) {
            tuple[1 + g] = r->signature[g][rank];
        }
        r->colour[rank] = number_of(&r->table, tuple, 1 + SMP_GROUPS);
    }
    r->n_colour = r->table.n;
    return r->n_colour > before;
}

static smp_placement placement_of(const refinement *r, smp_group group, uint32_t rank)
{
    const uint32_t *words = r->own + (size_t)(rank % r->n_own) * OWN_WORDS + 1 +
                            (unsigned)group * PLACEMENT_WORDS;
    return (smp_placement){words[0], words[1], words[2], words[3], words[4], words[5]};
}

/* Colours are numbered in the order of their lowest ranks, and so are the classes. */
static smp_classes *collect(const refinement *r)
{
    smp_classes *out = smp_heap_alloc(1, sizeof(*out));
    uint32_t world = r->mesh->world;

    out->n_class = r->n_colour;
    out->classes = smp_heap_alloc(out->n_class, sizeof(*out->classes));
    out->class_of_rank = smp_heap_alloc(world, sizeof(*out->class_of_rank));
    for (uint32_t rank = 0; rank < world; rank++) {
        smp_class *class = &out->classes[r->colour[rank]];
        if (class->count++ == 0) {
            class->representative = rank;
            for (int g = 0; g < (int)SMP_GROUPS; g++) {
                class->meeting[g] = r->n_colour > 1 ? r->signature[g][rank] : 0;
                class->placement[g] = placement_of(r, (smp_group)g, rank);
            }
        }
        out->class_of_rank[rank] = r->colour[rank];
    }
    return out;
}

/* What rounds need, at most once. */
static void make_room(refinement *r, smp_arena *arena)
{
    const uint32_t world = r->mesh->world;

    if (r->tuples != NULL) {
        return;
    }
    r->tuples = SMP_ARENA_ARRAY(arena, (size_t)world * (1 + SMP_GROUPS), uint32_t);
    for (int g = 0; g < (int)SMP_GROUPS; g++) {
        r->signature[g] = SMP_ARENA_ARRAY(arena, world, uint32_t);
    }
}

smp_status smp_mesh_classes(const smp_mesh *mesh, const uint32_t *colour_of_rank,
                            smp_errors *errors, smp_classes **classes_p)
{
    smp_arena *arena = smp_arena_create();
    refinement r = {.mesh = mesh};

    (void)errors; /* nothing can fail: out of memory does not return */
    r.colour = SMP_ARENA_ARRAY(arena, mesh->world, uint32_t);
    r.leaving = SMP_ARENA_ARRAY(arena, mesh->world, uint32_t);
    r.members = SMP_ARENA_ARRAY(arena, mesh->world, uint32_t);
    r.n_own = smp_mesh_nodes_alike(mesh) ? mesh->gpus_per_node : mesh->world;
    r.own = SMP_ARENA_ARRAY(arena, (size_t)r.n_own * OWN_WORDS, uint32_t);
    numbering_init(&r.table, arena, mesh->world);
    if (colour_of_rank) {
        make_room(&r, arena);
    }
    colour_by_place(&r, colour_of_rank);
    /* Of one colour nothing splits: all groups of a kind have the same size, so the same
     * multiset, whose number is 0. */
    if (r.n_colour > 1) {
        make_room(&r, arena);
        while (refine(&r)) {
        }
    }
    *classes_p = collect(&r);
    smp_arena_destroy(arena);
    return SMP_OK;
}

void smp_classes_destroy(smp_classes *classes)
{
    if (classes != NULL) {
        free(classes->classes);
        free(classes->class_of_rank);
        free(classes);
    }
}
