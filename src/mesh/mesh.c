/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks, coordinates, groups and where they lie.
 *
 * A rank is a number in a mixed radix system whose digits are the coordinates, in rank order.
 * The members of a group are the ranks that differ in the digits of the group only, so their
 * order by rank is that of the number made of these digits alone.
 */
#include "config.h"

#include "mesh/mesh_int.h"

#include "base/arena.h"
#include "base/numeric.h"

#include <stdlib.h>
#include <string.h>

const char *smp_axis_name(smp_axis axis)
{
    static const char *const names[SMP_AXES] = {
        "tensor", "context", "shard", "expert", "replica"
    };
    return names[axis];
}

const char *smp_group_name(smp_group group)
{
    static const char *const names[SMP_GROUPS] = {
        "tensor", "context", "shard", "expert", "replica", "dense_replica", "expert_shard",
        "model", "world"
    };
    return names[group];
}

static bool group_varies(const smp_mesh *mesh, smp_group group, smp_axis axis)
{
    enum {
        T = 1U << SMP_AXIS_TENSOR, C = 1U << SMP_AXIS_CONTEXT, S = 1U << SMP_AXIS_SHARD,
        E = 1U << SMP_AXIS_EXPERT, R = 1U << SMP_AXIS_REPLICA
    };
    static const uint8_t axes[SMP_GROUPS] = {[SMP_GROUP_TENSOR] = T,
                                             [SMP_GROUP_CONTEXT] = C,
                                             [SMP_GROUP_SHARD] = C | S,
                                             [SMP_GROUP_EXPERT] = E,
                                             [SMP_GROUP_REPLICA] = R,
                                             [SMP_GROUP_DENSE_REPLICA] = E | R,
                                             [SMP_GROUP_EXPERT_SHARD] = C | S,
                                             [SMP_GROUP_MODEL] = T | C | S | E,
                                             [SMP_GROUP_WORLD] = T | C | S | E | R};
    uint32_t varies = axes[group];

    if (mesh->nested && group == SMP_GROUP_SHARD) {
        varies = C | S | E;
    } else if (mesh->nested && group == SMP_GROUP_DENSE_REPLICA) {
        varies = R;
    }
    return (varies >> axis & 1U) != 0;
}

/* The digits of a kind of group, fastest first. */
static void lay_out_group(smp_mesh *mesh, smp_group group)
{
    smp_digits *digits = &mesh->digits[group];

    digits->n_digit = 0;
    digits->ranks = 1;
    for (int i = 0; i < (int)SMP_AXES; i++) {
        smp_axis axis = mesh->order[i];
        if (group_varies(mesh, group, axis) && mesh->degree[axis] > 1) {
            digits->degree[digits->n_digit] = mesh->degree[axis];
            digits->stride[digits->n_digit] = mesh->stride[axis];
            digits->n_digit++;
            digits->ranks *= mesh->degree[axis];
        }
    }
}

static bool is_permutation(const smp_axis order[SMP_AXES])
{
    unsigned seen = 0;

    for (int i = 0; i < (int)SMP_AXES; i++) {
        if ((unsigned)order[i] >= SMP_AXES) {
            return false;
        }
        seen |= 1U << order[i];
    }
    return seen == (1U << SMP_AXES) - 1;
}

static smp_status create(const uint32_t degree[SMP_AXES], const smp_axis order[SMP_AXES],
                         bool nested, uint32_t gpus_per_node, smp_errors *errors,
                         smp_mesh **mesh_p)
{
    uint64_t world = 1;

    if (!is_permutation(order) || gpus_per_node == 0) {
        return smp_fail(errors, SMP_INPUT, NULL,
                        "mesh: rank_order must name each axis once, and a node have a GPU");
    }
    for (int i = 0; i < (int)SMP_AXES; i++) {
        world *= degree[order[i]];
        if (world == 0 || world > INT32_MAX) {
            return smp_fail(errors, SMP_INPUT, NULL,
                            "mesh: the product of the degrees must be 1 to %d ranks",
                            INT32_MAX);
        }
    }
    smp_mesh *mesh = smp_heap_alloc(1, sizeof(*mesh));
    mesh->world = (uint32_t)world;
    mesh->gpus_per_node = gpus_per_node;
    mesh->nested = nested;
    uint32_t stride = 1;
    for (int i = 0; i < (int)SMP_AXES; i++) {
        mesh->order[i] = order[i];
        mesh->degree[order[i]] = degree[order[i]];
        mesh->stride[order[i]] = stride;
        stride *= degree[order[i]];
    }
    for (int g = 0; g < (int)SMP_GROUPS; g++) {
        lay_out_group(mesh, (smp_group)g);
    }
    *mesh_p = mesh;
    return SMP_OK;
}

smp_status smp_mesh_create_degrees(const uint32_t degree[SMP_AXES],
                                   const smp_axis order[SMP_AXES], uint32_t gpus_per_node,
                                   smp_errors *errors, smp_mesh **mesh_p)
{
    return create(degree, order, false, gpus_per_node, errors, mesh_p);
}

smp_status smp_mesh_create(const smp_job *job, smp_errors *errors, smp_mesh **mesh_p)
{
    const smp_settings *s = &job->settings;
    const bool nested = smp_nested(s);
    uint32_t degree[SMP_AXES];

    degree[SMP_AXIS_TENSOR] = s->tensor_parallel_degree;
    degree[SMP_AXIS_CONTEXT] = s->context_parallel_degree;
    degree[SMP_AXIS_SHARD] = s->hybrid_shard_degree / s->context_parallel_degree;
    degree[SMP_AXIS_EXPERT] = s->expert_parallel_degree;
    degree[SMP_AXIS_REPLICA] = job->replicas;
    if (nested) {
        degree[SMP_AXIS_SHARD] /= s->expert_parallel_degree;
    }
    return create(degree, s->rank_order, nested, smp_cluster_gpus_per_node(job->cluster),
                  errors, mesh_p);
}

void smp_mesh_destroy(smp_mesh *mesh)
{
    free(mesh);
}

uint32_t smp_mesh_world(const smp_mesh *mesh)
{
    return mesh->world;
}

uint32_t smp_mesh_degree(const smp_mesh *mesh, smp_axis axis)
{
    return mesh->degree[axis];
}

void smp_mesh_coords(const smp_mesh *mesh, uint32_t rank, smp_coords *coords_p)
{
    for (int a = 0; a < (int)SMP_AXES; a++) {
        coords_p->axis[a] = rank / mesh->stride[a] % mesh->degree[a];
    }
}

uint32_t smp_mesh_rank(const smp_mesh *mesh, const smp_coords *coords)
{
    uint32_t rank = 0;

    for (int a = 0; a < (int)SMP_AXES; a++) {
        rank += coords->axis[a] * mesh->stride[a];
    }
    return rank;
}

uint32_t smp_mesh_group_size(const smp_mesh *mesh, smp_group group)
{
    return mesh->digits[group].ranks;
}

uint32_t smp_mesh_group_rank(const smp_mesh *mesh, smp_group group, uint32_t rank)
{
    const smp_digits *digits = &mesh->digits[group];
    uint32_t index = 0, weight = 1;

    for (uint32_t i = 0; i < digits->n_digit; i++) {
        index += rank / digits->stride[i] % digits->degree[i] * weight;
        weight *= digits->degree[i];
    }
    return index;
}

/* The offset of member `index` of any group of this kind from the group's first member. */
static uint32_t offset_of_member(const smp_digits *digits, uint32_t index)
{
    uint32_t offset = 0;

    for (uint32_t i = 0; i < digits->n_digit; i++) {
        offset += index % digits->degree[i] * digits->stride[i];
        index /= digits->degree[i];
    }
    return offset;
}

uint32_t smp_mesh_first_member(const smp_mesh *mesh, smp_group group, uint32_t rank)
{
    const smp_digits *digits = &mesh->digits[group];

    for (uint32_t i = 0; i < digits->n_digit; i++) {
        rank -= rank / digits->stride[i] % digits->degree[i] * digits->stride[i];
    }
    return rank;
}

void smp_mesh_members(const smp_mesh *mesh, smp_group group, uint32_t rank, uint32_t *members)
{
    const smp_digits *digits = &mesh->digits[group];
    uint32_t first = smp_mesh_first_member(mesh, group, rank);

    /* Doubling: the members of the first i digits, repeated for each value of digit i. */
    members[0] = first;
    uint32_t n = 1;
    for (uint32_t i = 0; i < digits->n_digit; i++) {
        for (uint32_t j = n; j < n * digits->degree[i]; j++) {
            members[j] = members[j - n] + digits->stride[i];
        }
        n *= digits->degree[i];
    }
}

uint32_t smp_mesh_leaving(const smp_mesh *mesh, smp_group group, uint32_t node)
{
    const smp_digits *digits = &mesh->digits[group];
    uint32_t last = offset_of_member(digits, digits->ranks - 1);
    uint32_t from = node * mesh->gpus_per_node;
    uint32_t to = from + mesh->gpus_per_node < mesh->world ? from + mesh->gpus_per_node
                                                           : mesh->world;
    uint32_t count = 0;

    if (digits->ranks == 1) {
        return 0;
    }
    for (uint32_t rank = from; rank < to; rank++) {
        uint32_t first = smp_mesh_first_member(mesh, group, rank);
        count += first / mesh->gpus_per_node != (first + last) / mesh->gpus_per_node;
    }
    return count;
}

bool smp_mesh_nodes_alike(const smp_mesh *mesh)
{
    uint32_t left = mesh->gpus_per_node;

    if (mesh->world % left != 0) {
        return false;
    }
    for (int a = 0; a < (int)SMP_AXES && left > 1; a++) {
        const uint32_t degree = mesh->degree[mesh->order[a]];
        if (degree % left != 0 && left % degree != 0) {
            return false;
        }
        left = degree % left == 0 ? 1 : left / degree;
    }
    return left == 1;
}

/* The node on which a group has the smallest part of the network: ranks that leave the node,
 * for each member there. */
typedef struct crowd { uint32_t leaving, members; } crowd;

/* Counts the members on one node of a group; `leaving` is 0 for a group inside it. */
static void add_node(smp_placement *p, crowd *worst, uint32_t members, uint32_t leaving)
{
    p->nodes++;
    p->most_per_node = members > p->most_per_node ? members : p->most_per_node;
    p->least_per_node = members < p->least_per_node ? members : p->least_per_node;
    if ((uint64_t)leaving * worst->members > (uint64_t)worst->leaving * members) {
        *worst = (crowd){leaving, members};
    }
}

void smp_mesh_place(const smp_mesh *mesh, smp_group group, uint32_t rank,
                    const uint32_t *leaving, smp_placement *placement_p)
{
    const smp_digits *digits = &mesh->digits[group];
    const uint32_t gpus = mesh->gpus_per_node;
    const uint32_t first = smp_mesh_first_member(mesh, group, rank);
    const uint32_t last = first + offset_of_member(digits, digits->ranks - 1);
    const bool wide = first / gpus != last / gpus;
    const bool alike = wide && leaving == NULL && smp_mesh_nodes_alike(mesh);
    smp_placement p = {.ranks = digits->ranks, .least_per_node = UINT32_MAX};
    crowd worst = {0, 1};
    uint32_t here = 0, member = first, next;

    for (uint32_t i = 1; i <= digits->ranks; i++, member = next) {
        next = i < digits->ranks ? first + offset_of_member(digits, i) : UINT32_MAX;
        here++;
        if (next / gpus == member / gpus) {
            p.stride = p.stride == 0 || next - member < p.stride ? next - member : p.stride;
            continue;
        }
        add_node(&p, &worst, here,
                 !wide     ? 0
                 : leaving ? leaving[member / gpus]
                           : smp_mesh_leaving(mesh, group, member / gpus));
        if (alike) { /* the first node says all */
            p.nodes = digits->ranks / here;
            break;
        }
        here = 0;
    }
    p.sharers = (uint32_t)smp_ceil_div((uint64_t)worst.leaving * p.least_per_node,
                                       worst.members);
    p.stride = p.stride > 0 ? p.stride : 1;
    *placement_p = p;
}

void smp_mesh_placement(const smp_mesh *mesh, smp_group group, uint32_t rank,
                        smp_placement *placement_p)
{
    smp_mesh_place(mesh, group, rank, NULL, placement_p);
}
