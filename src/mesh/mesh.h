/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks and their groups: world = tensor x expert x (context x shard) x replica.
 *
 * `hybrid_shard_degree` counts context and shard together (context lies inside the shard
 * group, SMPv2-REF); the axis SMP_AXIS_SHARD is what is left of it.  The order of axes is a
 * setting; the default, fastest first, is tensor, context, shard, expert, replica.  In the
 * nested layout `hybrid_shard_degree` counts the expert axis as well: parameters that are not
 * experts' are sharded over SMP_GROUP_SHARD, experts over SMP_GROUP_EXPERT_SHARD inside it.
 *
 * Placement: ranks fill nodes in order, gpus_per_node to a node, whatever the degrees: the
 * members of a group may lie on nodes in unequal numbers, and the last node may be filled in
 * part.  Where a group lies decides which links it uses; two groups of one kind with the same
 * placement are alike.
 */
#ifndef SMP_MESH_MESH_H
#define SMP_MESH_MESH_H

#include "smp.h"

/* As smp_job_resolve, without messages: for a search.  True: the job is resolved; false: it is
 * unchanged.  Uses no heap. */
bool smp_job_try(smp_job *job);

static inline bool smp_nested(const smp_settings *settings)
{
    return settings->expert_layout == SMP_EXPERT_LAYOUT_NESTED;
}

/* Tensor ranks that split the vocabulary; of settings that are resolved. */
static inline uint32_t smp_vocab_parts(const smp_settings *settings)
{
    return settings->distribute_embedding == SMP_DISTRIBUTE_OFF
               ? 1 : settings->tensor_parallel_degree;
}

/* The expected imbalance, 1 or more: where a single number is needed. */
double smp_imbalance_mean(const smp_imbalance *imbalance);
/* That of one layer and micro-batch: the same for the same seed, whatever else is drawn. */
double smp_imbalance_draw(const smp_imbalance *imbalance, uint64_t seed, uint64_t layer,
                          uint64_t micro_batch);

/* Where the members of one group lie. */
typedef struct smp_placement {
    uint32_t ranks;         /* members */
    uint32_t nodes;         /* distinct nodes they lie on */
    uint32_t most_per_node; /* members on the fullest of these nodes */
    uint32_t least_per_node;
    uint32_t stride;        /* least distance of consecutive members on one node, 1: adjacent;
                               1 where no node has two */
    uint32_t sharers;       /* ranks that use a node's network at once, these members among
                               them, for least_per_node members: of n members on a node each
                               group has n / sum of n over the groups of this kind that leave
                               the node; the smallest such part, over the nodes of this group,
                               is least_per_node / sharers (rounded down by less than one
                               rank).  0 for a group inside one node */
} smp_placement;

void smp_mesh_placement(const smp_mesh *mesh, smp_group group, uint32_t rank,
                        smp_placement *placement_p);

/* A class of ranks that behave alike: the same shard sizes and, for every kind of group, the
 * same placement and the same classes among the members (stable partition of the ranks). */
typedef struct smp_class {
    uint32_t representative; /* lowest rank of the class */
    uint32_t count;
    /* Which rendezvous of group kind g this class takes part in: classes with equal numbers
     * meet in their collectives on g. */
    uint32_t meeting[SMP_GROUPS];
    smp_placement placement[SMP_GROUPS]; /* as smp_mesh_placement says of any of its ranks */
} smp_class;

typedef struct smp_classes {
    smp_class *classes; /* ordered by representative */
    uint32_t n_class;
    uint32_t *class_of_rank; /* world entries */
} smp_classes;

/* `colour_of_rank` gives ranks that differ for a reason of the caller's (uneven shards)
 * different numbers; NULL: all alike.  Cost O(world x groups x rounds). */
SMP_CHECK smp_status smp_mesh_classes(const smp_mesh *mesh, const uint32_t *colour_of_rank,
                                      smp_errors *errors, smp_classes **classes_p);
void smp_classes_destroy(smp_classes *classes);

/* Degrees only, without a job: for tests and tools. */
SMP_CHECK smp_status smp_mesh_create_degrees(const uint32_t degree[SMP_AXES],
                                             const smp_axis order[SMP_AXES],
                                             uint32_t gpus_per_node, smp_errors *errors,
                                             smp_mesh **mesh_p);

#endif
