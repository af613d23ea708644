/* SPDX-License-Identifier: Apache-2.0 */
/* Lowering: the communicators of a rank. */
#include "step/lower.h"

#include "base/numeric.h"

static uint8_t add_comm(smp_lowering *low, const smp_class *klass, const char *name,
                        smp_group group, bool used)
{
    smp_comm comm = { .name = name, .group = group };

    comm.ranks = smp_mesh_group_size(low->mesh, group);
    if (!used || comm.ranks < 2) {
        return SMP_NO_COMM;
    }
    if (klass) {
        comm.placement = klass->placement[group];
        comm.meeting = klass->meeting[group];
    } else {
        smp_mesh_placement(low->mesh, group, low->rank, &comm.placement);
    }
    return smp_build_comm(&low->build, &comm);
}

/* Ranks of the tensor group that hold the same key-value heads: consecutive ones. */
static uint8_t add_kv_comm(smp_lowering *low)
{
    smp_comm comm;
    const smp_attention *attention = &low->model->kinds[0].attention;
    uint32_t kv = attention->kv_heads;

    if (low->tensor_comm == SMP_NO_COMM || kv >= low->tensor || attention->kv_lora_rank > 0) {
        return SMP_NO_COMM;
    }
    comm = low->build.program->comms[low->tensor_comm];
    comm.name = "tensor_kv";
    comm.ranks = comm.placement.ranks = low->tensor / kv;
    comm.placement.nodes =
        (uint32_t)smp_ceil_div(comm.ranks, comm.placement.most_per_node);
    if (comm.placement.most_per_node > comm.ranks) {
        comm.placement.most_per_node = comm.ranks;
    }
    if (comm.placement.least_per_node > comm.placement.most_per_node) {
        comm.placement.least_per_node = comm.placement.most_per_node;
    }
    return smp_build_comm(&low->build, &comm);
}

static void add_share_comms(smp_lowering *low, const smp_class *klass, smp_share *share,
                            smp_group shard, smp_group replica)
{
    smp_arena *arena = low->build.program->arena;
    bool unshard = share->shard > 1
                   && (share->gathers || low->set->sharding == SMP_SHARDING_OPTIMIZER);
    bool one = low->runtime->one_comm && unshard;

    share->unshard_comm = add_comm(low, klass,
                                   smp_arena_printf(arena, "%s%s", share->prefix,
                                                    one ? "shard" : "unshard"),
                                   shard, unshard);
    share->reduce_comm = one ? share->unshard_comm
                             : add_comm(low, klass,
                                        smp_arena_printf(arena, "%sreduce", share->prefix),
                                        shard, true);
    share->replicate_comm =
        add_comm(low, klass, smp_arena_printf(arena, "%sreplicate", share->prefix), replica,
                 true);
}

/* In the orthogonal layout experts are sharded over the same ranks as all else, and use the
 * same communicators; nested, over a part of them. */
static void share_comms_of_experts(smp_lowering *low, const smp_class *klass)
{
    smp_share *experts = &low->experts;

    if (low->expert > 1 && smp_nested(low->set)) {
        add_share_comms(low, klass, experts, SMP_GROUP_EXPERT_SHARD, SMP_GROUP_REPLICA);
        return;
    }
    experts->unshard_comm = low->dense.unshard_comm;
    experts->reduce_comm = low->dense.reduce_comm;
    experts->replicate_comm =
        low->expert > 1 ? add_comm(low, klass, "experts.replicate", SMP_GROUP_REPLICA, true)
                        : low->dense.replicate_comm;
}

void smp_lower_comms(smp_lowering *low, const smp_class *klass)
{
    bool sums = smp_model_experts(low->model) > 0 && low->set->smp_moe
                && low->set->moe_statistics == SMP_MOE_DATA;

    add_share_comms(low, klass, &low->dense, SMP_GROUP_SHARD, SMP_GROUP_DENSE_REPLICA);
    share_comms_of_experts(low, klass);
    low->tensor_comm = add_comm(low, klass, "tensor", SMP_GROUP_TENSOR, true);
    low->kv_comm = add_kv_comm(low);
    low->world_comm = add_comm(low, klass, "world", SMP_GROUP_WORLD, true);
    low->expert_comm = add_comm(low, klass, "expert", SMP_GROUP_EXPERT, true);
    low->shard_sum_comm = add_comm(low, klass, "statistics.shard", SMP_GROUP_SHARD, sums);
    low->replica_sum_comm = add_comm(low, klass, "statistics.replica",
                                     SMP_GROUP_DENSE_REPLICA, sums);
}
