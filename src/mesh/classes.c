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
 * colours in its group of kind g; NULL as long as there is one colour. */
typedef struct refinement {
    const smp_mesh *mesh;
    uint32_t *colour, n_colour;
    uint32_t *signature[SMP_GROUPS];
    uint32_t *members, *tuples, *leaving;
    numbering table;
} refinement;

enum { PLACEMENT_WORDS = 6, OWN_WORDS = 1 + SMP_GROUPS * PLACEMENT_WORDS };

static uint32_t *own_tuple(const refinement *r, uint32_t rank)
{
    return r->tuples + (size_t)rank * OWN_WORDS;
}

static void keep_placement(const refinement *r, smp_group group, uint32_t rank,
                           const smp_placement *p)
{
    const uint32_t words[PLACEMENT_WORDS] = {p->ranks,          p->nodes,  p->most_per_node,
                                             p->least_per_node, p->stride, p->sharers};
    memcpy(own_tuple(r, rank) + 1 + (unsigned)group * PLACEMENT_WORDS, words, sizeof words);
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
        smp_mesh_members(mesh, group, rank, r->members);
        for (uint32_t i = 0; i < size; i++) {
            keep_placement(r, group, r->members[i], &p);
        }
    }
}

static void colour_by_place(refinement *r, const uint32_t *colour_of_rank, smp_arena *arena)
{
    uint32_t world = r->mesh->world;

    r->leaving = SMP_ARENA_ARRAY(arena, world, uint32_t);
    r->tuples = SMP_ARENA_ARRAY(arena, (size_t)world * OWN_WORDS, uint32_t);
    for (int g = 0; g < (int)SMP_GROUPS; g++) {
        place_groups(r, (smp_group)g);
    }
    for (uint32_t rank = 0; rank < world; rank++) {
        own_tuple(r, rank)[0] = colour_of_rank != NULL ? colour_of_rank[rank] : 0;
        r->colour[rank] = number_of(&r->table, own_tuple(r, rank), OWN_WORDS);
    }
    r->n_colour = r->table.n;
}

/* Where all ranks lie alike only the caller's colours tell them apart. */
static void colour_by_caller(refinement *r, const uint32_t *colour_of_rank)
{
    for (uint32_t rank = 0; rank < r->mesh->world; rank++) {
        r->colour[rank] = number_of(&r->table, &colour_of_rank[rank], 1);
    }
    r->n_colour = r->table.n;
}

/* Colours that no round has split yet. */
static void colour_first(refinement *r, const uint32_t *colour_of_rank, smp_arena *arena)
{
    const bool alike = smp_mesh_nodes_alike(r->mesh);

    r->colour = SMP_ARENA_ARRAY(arena, r->mesh->world, uint32_t);
    r->members = SMP_ARENA_ARRAY(arena, r->mesh->world, uint32_t);
    if (alike && colour_of_rank == NULL) {
        r->n_colour = 1; /* that of the zeros */
        return;
    }
    numbering_init(&r->table, arena, r->mesh->world);
    if (alike) {
        colour_by_caller(r, colour_of_rank);
    } else {
        colour_by_place(r, colour_of_rank, arena);
    }
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

static void refine_all(refinement *r, smp_arena *arena)
{
    const uint32_t world = r->mesh->world;

    r->tuples = SMP_ARENA_ARRAY(arena, (size_t)world * (1 + SMP_GROUPS), uint32_t);
    for (int g = 0; g < (int)SMP_GROUPS; g++) {
        r->signature[g] = SMP_ARENA_ARRAY(arena, world, uint32_t);
    }
    while (refine(r)) {
    }
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
                class->meeting[g] = r->signature[g] != NULL ? r->signature[g][rank] : 0;
                smp_mesh_placement(r->mesh, (smp_group)g, rank, &class->placement[g]);
            }
        }
        out->class_of_rank[rank] = r->colour[rank];
    }
    return out;
}

smp_status smp_mesh_classes(const smp_mesh *mesh, const uint32_t *colour_of_rank,
                            smp_errors *errors, smp_classes **classes_p)
{
    smp_arena *arena = smp_arena_create();
    refinement r = {.mesh = mesh};

    (void)errors; /* nothing can fail: out of memory does not return */
    colour_first(&r, colour_of_rank, arena);
    /* Of one colour nothing splits: all groups of a kind have the same size, so the same
     * multiset. */
    if (r.n_colour > 1) {
        refine_all(&r, arena);
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
