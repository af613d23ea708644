/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a mesh: for the files of src/mesh only. */
#ifndef SMP_MESH_MESH_INT_H
#define SMP_MESH_MESH_INT_H

#include "mesh/mesh.h"

/* A kind of group: the axes in which its members differ, fastest first, without those of
 * degree 1.  Member i has digits i in this mixed radix. */
typedef struct smp_digits {
    uint32_t n_digit;
    uint32_t degree[SMP_AXES], stride[SMP_AXES];
    uint32_t ranks;
} smp_digits;

struct smp_mesh {
    uint32_t world, gpus_per_node;
    uint32_t degree[SMP_AXES], stride[SMP_AXES]; /* coordinate a = rank / stride % degree */
    smp_axis order[SMP_AXES];
    bool nested; /* the expert axis is a part of the shard group */
    smp_digits digits[SMP_GROUPS];
};

/* The lowest rank of the group of `rank`: names the group. */
uint32_t smp_mesh_first_member(const smp_mesh *mesh, smp_group group, uint32_t rank);
/* Whether nodes are full and their borders cut the axes evenly.  Then all ranks lie alike:
 * steps along the axes take a rank to any other, and map nodes to nodes and groups to groups,
 * where the axis that the border cuts counts as two, inside a node and over nodes. */
bool smp_mesh_nodes_alike(const smp_mesh *mesh);
/* Ranks of the node whose group of this kind has members elsewhere too. */
uint32_t smp_mesh_leaving(const smp_mesh *mesh, smp_group group, uint32_t node);
/* smp_mesh_placement with smp_mesh_leaving of every node at hand; NULL: not at hand. */
void smp_mesh_place(const smp_mesh *mesh, smp_group group, uint32_t rank,
                    const uint32_t *leaving, smp_placement *placement_p);

#endif
