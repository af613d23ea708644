/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mesh for people, at most 80 columns, and as JSON.
 *
 * People see every group of a small world; of a large one the first and the last groups of a
 * kind, since the others follow from these and the strides.  JSON holds everything.
 */
#include "config.h"

#include "mesh/mesh_int.h"

#include "base/arena.h"
#include "base/text.h"

#include <stdlib.h>

enum {
    SHOW_RANKS = 64, /* worlds up to this size are printed rank by rank */
    SHOW_GROUPS = 8, /* groups of a kind that are printed of a larger world */
    COLUMNS = 80
};

/* The end of the run that starts at member i: members at equal distances. */
static uint32_t run_end(const uint32_t *members, uint32_t n, uint32_t i)
{
    uint32_t end = i + 1;

    while (end < n && members[end] - members[end - 1] == members[i + 1] - members[i]) {
        end++;
    }
    return end;
}

/* "0-7", "0-56/8" (every eighth rank), "0-3 8-11": runs of equal distance. */
static void add_ranks(smp_text *text, const uint32_t *members, uint32_t n)
{
    for (uint32_t i = 0; i < n;) {
        uint32_t end = i + 1 < n ? run_end(members, n, i) : i + 1;
        uint32_t step = i + 1 < n ? members[i + 1] - members[i] : 1;
        if (end - i < 3 && step > 1) {
            end = i + 1; /* two ranks apart are no run */
        }
        smp_text_add(text, "%s%u", i > 0 ? " " : "", members[i]);
        if (end - i > 1) {
            smp_text_add(text, "-%u", members[end - 1]);
            if (step > 1) {
                smp_text_add(text, "/%u", step);
            }
        }
        i = end;
    }
}

/* Adds a word to a paragraph, on a new line where it would pass the margin. */
static void add_word(smp_text *text, size_t *line_start, int indent, const char *word,
                     size_t length)
{
    size_t column = text->length - *line_start;

    if (column + 1 + length > COLUMNS && column > (size_t)indent) {
        *line_start = text->length + 1;
        smp_text_add(text, "\n%*s", indent - 1, "");
    }
    smp_text_add(text, " ");
    smp_text_add_n(text, word, length);
}

/* A group's ranks in braces; long lists break at spaces. */
static void add_group(smp_text *text, size_t *line_start, int indent, const uint32_t *members,
                      uint32_t n)
{
    smp_text ranks = {0};

    smp_text_add(&ranks, "{");
    add_ranks(&ranks, members, n);
    smp_text_add(&ranks, "}");
    for (size_t i = 0; i < ranks.length;) {
        size_t end = i;
        while (end < ranks.length && ranks.data[end] != ' ') {
            end++;
        }
        add_word(text, line_start, indent, ranks.data + i, end - i);
        i = end + 1;
    }
    smp_text_free(&ranks);
}

static void add_groups(smp_text *text, const smp_mesh *mesh, smp_group group, uint32_t *members)
{
    enum { INDENT = 4 };
    uint32_t size = smp_mesh_group_size(mesh, group), count = mesh->world / size, seen = 0;
    bool all = mesh->world <= SHOW_RANKS;
    char line[64];
    size_t line_start;

    smp_text_add(text, "  %s: %u group%s of %u\n", smp_group_name(group), count,
                 count == 1 ? "" : "s", size);
    if (size == 1) {
        return;
    }
    line_start = text->length;
    smp_text_add(text, "%*s", INDENT - 1, "");
    for (uint32_t rank = 0; rank < mesh->world; rank++) {
        if (smp_mesh_first_member(mesh, group, rank) != rank) {
            continue;
        }
        seen++;
        if (all || seen < SHOW_GROUPS || seen == count) {
            smp_mesh_members(mesh, group, rank, members);
            add_group(text, &line_start, INDENT, members, size);
        } else if (seen == SHOW_GROUPS) {
            int n = snprintf(line, sizeof(line), "...");
            add_word(text, &line_start, INDENT, line, (size_t)n);
        }
    }
    smp_text_add(text, "\n");
}

static void add_axes(smp_text *text, const smp_mesh *mesh)
{
    smp_text_add(text, "world %u ranks, %u to a node; axes from the fastest:\n", mesh->world,
                 mesh->gpus_per_node);
    smp_text_add(text, "  axis     degree  stride  coordinate of rank r\n");
    for (int i = 0; i < (int)SMP_AXES; i++) {
        smp_axis axis = mesh->order[i];
        smp_text_add(text, "  %-8s %6u  %6u  ", smp_axis_name(axis), mesh->degree[axis],
                     mesh->stride[axis]);
        if (mesh->degree[axis] > 1) {
            smp_text_add(text, "r / %u mod %u\n", mesh->stride[axis], mesh->degree[axis]);
        } else {
            smp_text_add(text, "0\n");
        }
    }
}

static void add_coords(smp_text *text, const smp_mesh *mesh)
{
    smp_coords c;

    if (mesh->world > SHOW_RANKS) {
        return; /* the table of axes says it */
    }
    smp_text_add(text, "ranks:\n  rank  node  tensor  context  shard  expert  replica\n");
    for (uint32_t rank = 0; rank < mesh->world; rank++) {
        smp_mesh_coords(mesh, rank, &c);
        smp_text_add(text, "  %4u  %4u  %6u  %7u  %5u  %6u  %7u\n", rank,
                     rank / mesh->gpus_per_node, c.axis[SMP_AXIS_TENSOR],
                     c.axis[SMP_AXIS_CONTEXT], c.axis[SMP_AXIS_SHARD], c.axis[SMP_AXIS_EXPERT],
                     c.axis[SMP_AXIS_REPLICA]);
    }
}

static void print_people(const smp_mesh *mesh, FILE *stream)
{
    smp_text text = {0};
    uint32_t *members = smp_heap_alloc(mesh->world, sizeof(*members));

    add_axes(&text, mesh);
    add_coords(&text, mesh);
    smp_text_add(&text, "groups (a-b/s: every s-th rank from a to b):\n");
    for (int g = 0; g < (int)SMP_GROUPS; g++) {
        add_groups(&text, mesh, (smp_group)g, members);
    }
    fwrite(text.data, 1, text.length, stream);
    free(members);
    smp_text_free(&text);
}

static void out_groups(smp_json_out *out, const smp_mesh *mesh, smp_group group,
                       uint32_t *members)
{
    uint32_t size = smp_mesh_group_size(mesh, group);

    smp_out_array(out, smp_group_name(group));
    for (uint32_t rank = 0; rank < mesh->world; rank++) {
        if (smp_mesh_first_member(mesh, group, rank) != rank) {
            continue;
        }
        smp_out_array(out, NULL);
        smp_mesh_members(mesh, group, rank, members);
        for (uint32_t i = 0; i < size; i++) {
            smp_out_u64(out, NULL, members[i]);
        }
        smp_out_end_array(out);
    }
    smp_out_end_array(out);
}

static void out_ranks(smp_json_out *out, const smp_mesh *mesh)
{
    smp_coords c;

    smp_out_array(out, "ranks");
    for (uint32_t rank = 0; rank < mesh->world; rank++) {
        smp_mesh_coords(mesh, rank, &c);
        smp_out_object(out, NULL);
        smp_out_u64(out, "rank", rank);
        smp_out_u64(out, "node", rank / mesh->gpus_per_node);
        for (int a = 0; a < (int)SMP_AXES; a++) {
            smp_out_u64(out, smp_axis_name((smp_axis)a), c.axis[a]);
        }
        smp_out_end_object(out);
    }
    smp_out_end_array(out);
}

static void print_json(const smp_mesh *mesh, FILE *stream)
{
    smp_json_out out = {0};
    uint32_t *members = smp_heap_alloc(mesh->world, sizeof(*members));

    smp_out_object(&out, NULL);
    smp_out_u64(&out, "world", mesh->world);
    smp_out_u64(&out, "gpus_per_node", mesh->gpus_per_node);
    smp_out_array(&out, "rank_order");
    for (int i = 0; i < (int)SMP_AXES; i++) {
        smp_out_string(&out, NULL, smp_axis_name(mesh->order[i]));
    }
    smp_out_end_array(&out);
    smp_out_object(&out, "degrees");
    for (int a = 0; a < (int)SMP_AXES; a++) {
        smp_out_u64(&out, smp_axis_name((smp_axis)a), mesh->degree[a]);
    }
    smp_out_end_object(&out);
    out_ranks(&out, mesh);
    smp_out_object(&out, "groups");
    for (int g = 0; g < (int)SMP_GROUPS; g++) {
        out_groups(&out, mesh, (smp_group)g, members);
    }
    smp_out_end_object(&out);
    smp_out_end_object(&out);
    fwrite(out.text.data, 1, out.text.length, stream);
    fputc('\n', stream);
    free(members);
    smp_text_free(&out.text);
}

smp_status smp_mesh_print(const smp_mesh *mesh, bool json, FILE *stream, smp_errors *errors)
{
    if (json) {
        print_json(mesh, stream);
    } else {
        print_people(mesh, stream);
    }
    return smp_stream_check(stream, "output", errors);
}
