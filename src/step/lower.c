/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lowering: from a resolved job to the step programs of its classes of ranks.
 *
 * This file decides (dtypes, buffers, rings, variants of blocks) and gives the host order;
 * blocks, ends and units are emitted by walk.c, lower_ends.c and lower_units.c.
 */
#include "step/lower.h"

#include "base/numeric.h"
#include "mesh/settings.h"

#include <stdlib.h>
#include <string.h>

/* ---- small services of the emitters ---- */

smp_ref smp_whole(uint16_t buffer, uint64_t bytes)
{
    return (smp_ref){ .buffer = buffer, .bytes = bytes };
}

smp_access smp_token(uint16_t buffer)
{
    return (smp_access){ .buffer = buffer, .writes = true, .bytes = 1 };
}

static smp_named *find_named(smp_lowering *low, const char *name, uint32_t stack)
{
    for (uint32_t i = 0; i < low->n_named; i++) {
        if (low->named[i].stack == stack && strcmp(low->named[i].name, name) == 0) {
            return &low->named[i];
        }
    }
    SMP_GROW(low->named, low->n_named, low->cap_named);
    low->named[low->n_named] = (smp_named){ name, stack, SMP_NO_BUFFER, 0 };
    return &low->named[low->n_named++];
}

static uint16_t named_buffer(smp_lowering *low, uint32_t stack, const smp_buffer *buffer)
{
    smp_named *named = find_named(low, buffer->name, stack);
    uint64_t bytes = smp_round_up(buffer->bytes, SMP_ALIGN_BYTES);

    if (named->buffer == SMP_NO_BUFFER) {
        named->buffer = smp_build_buffer(&low->build, buffer);
    } else if (low->build.program->buffers[named->buffer].bytes < bytes) {
        low->build.program->buffers[named->buffer].bytes = bytes;
    }
    return named->buffer;
}

uint16_t smp_lower_scratch(smp_lowering *low, const char *name, smp_buffer_kind kind,
                           uint64_t bytes)
{
    return named_buffer(
        low, UINT32_MAX,
        &(smp_buffer){ .name = name, .kind = kind, .scope = SMP_SCOPE_INSTANCE,
                       .bytes = bytes });
}

uint16_t smp_lower_kept(smp_lowering *low, const smp_variant *variant, const char *name,
                        uint64_t bytes)
{
    uint16_t buffer = named_buffer(low, variant->stack,
                                   &(smp_buffer){ .name = name,
                                                  .kind = SMP_KIND_ACTIVATION,
                                                  .index = SMP_INDEX_LAYER,
                                                  .scope = SMP_SCOPE_MICROBATCH,
                                                  .bytes = bytes });
    smp_named *named = find_named(low, name, variant->stack);

    named->variants |= smp_variant_bit(low, variant);
    smp_set_layers(low, &low->build.program->buffers[buffer], variant->stack, named->variants);
    return buffer;
}

/* ---- what the settings decide ---- */

static smp_dtype dtype_of(smp_precision precision)
{
    switch (precision) {
    case SMP_PRECISION_BF16:
        return SMP_BF16;
    case SMP_PRECISION_FP16:
        return SMP_F16;
    case SMP_PRECISION_FP32:
        break;
    }
    return SMP_F32;
}

static void decide_share(smp_lowering *low, smp_share *share, smp_group shard,
                         smp_group replica)
{
    share->shard_group = smp_mesh_group_size(low->mesh, shard);
    share->replicas = smp_mesh_group_size(low->mesh, replica);
    share->shard = 1;
    share->weight = 1;
    if (low->set->sharding != SMP_SHARDING_NONE) {
        share->shard = share->shard_group;
        share->shard_rank = smp_mesh_group_rank(low->mesh, shard, low->rank);
    }
}

static void decide_ranks(smp_lowering *low)
{
    smp_coords coords;
    bool nested;

    smp_mesh_coords(low->mesh, low->rank, &coords);
    low->tensor = smp_mesh_degree(low->mesh, SMP_AXIS_TENSOR);
    low->tensor_rank = coords.axis[SMP_AXIS_TENSOR];
    low->expert = smp_mesh_degree(low->mesh, SMP_AXIS_EXPERT);
    nested = smp_nested(low->set);
    decide_share(low, &low->dense, SMP_GROUP_SHARD, SMP_GROUP_DENSE_REPLICA);
    low->dense.prefix = "";
    low->experts = low->dense;
    if (low->expert > 1) {
        decide_share(low, &low->experts, SMP_GROUP_EXPERT_SHARD, SMP_GROUP_REPLICA);
        low->experts.prefix = "experts.";
        low->experts.weight = nested ? 1 : low->expert;
    }
}

static void decide_sizes(smp_lowering *low)
{
    low->compute = dtype_of(low->set->precision);
    low->master = dtype_of(low->set->master);
    low->reduce = dtype_of(low->set->reduce_dtype);
    low->casts = low->compute != low->master;
    low->batch = low->set->micro_batch;
    low->seq = low->job->batch.seq_len;
    low->tokens = smp_mul(low->batch, low->seq);
    low->sequence = low->set->sequence_parallel && low->tensor > 1;
    low->rows = low->sequence ? low->tokens / low->tensor : low->tokens;
    low->hidden = low->model->hidden;
    low->local_vocab = smp_local_vocab(low->model->vocab, low->tensor);
    low->n_chunk = low->set->loss_chunks ? low->set->loss_chunks : 1;
    if (low->n_chunk > low->rows) {
        low->n_chunk = (uint32_t)low->rows;
    }
    /* Chunks are of equal size but for the last, which is not empty. */
    low->n_chunk =
        (uint32_t)smp_ceil_div(low->rows, smp_ceil_div(low->rows, low->n_chunk));
}

static void decide_gradients(smp_lowering *low, smp_share *share)
{
    bool many = low->job->micro_batches > 1;
    bool full = low->set->sharding == SMP_SHARDING_FULL;

    low->once = !many || low->set->accumulation == SMP_ACCUMULATION_LAST;
    if (!full || (share->shard == 1 && low->reduce == low->master)) {
        share->home = SMP_HOME_WHOLE;
        share->accumulates = share->shard > 1 && !low->once;
        share->n_write = many && !share->accumulates ? 2 : 1;
    } else if (low->once && many) {
        share->home = SMP_HOME_LAYER;
        share->accumulates = true;
        share->n_write = 2;
    } else {
        share->home = SMP_HOME_RING;
        share->accumulates = true;
        share->n_write = 1;
    }
    share->gathers = full && (share->shard > 1 || low->casts);
    share->keeps_gathered = share->gathers && !low->set->reshard_after_forward;
}

static uint16_t token_buffer(smp_lowering *low, const char *name)
{
    return smp_build_buffer(&low->build, &(smp_buffer){ .name = name,
                                                        .kind = SMP_KIND_TOKEN,
                                                        .space = SMP_SPACE_TOKEN,
                                                        .bytes = 1 });
}

static void decide_gathers(smp_lowering *low)
{
    low->n_write = low->dense.n_write > low->experts.n_write ? low->dense.n_write
                                                             : low->experts.n_write;
    low->orders_forward = low->dense.gathers && !low->set->forward_prefetch;
    low->orders_backward = low->dense.gathers && !low->dense.keeps_gathered
                           && low->set->prefetch != SMP_PREFETCH_BACKWARD_PRE;
    low->orders_reduce = low->orders_backward && low->set->prefetch == SMP_PREFETCH_NONE;
    low->slots = low->orders_forward && low->orders_backward ? 1 : 2;
    low->prefetch_token = low->orders_forward || low->orders_backward
                              ? token_buffer(low, "prefetch")
                              : SMP_NO_BUFFER;
}

/* What the software does otherwise than the native executor. */
static void decide_stack(smp_lowering *low)
{
    smp_program *program = low->build.program;

    low->runtime = smp_runtime_of(low->set->stack);
    low->kernels = smp_runtime_kernels(low->runtime, low->set->compile);
    low->loss = low->set->loss_kernel;
    low->comm_token = low->reduce_token = SMP_NO_BUFFER;
    if (low->runtime->one_comm) {
        low->comm_token = token_buffer(low, "communicator");
    }
    if (!low->set->overlap_reduce) {
        low->reduce_token = token_buffer(low, "backward");
    }
    program->kernels = low->kernels;
    program->loss = low->loss;
    program->attention_kernel = low->set->attention_kernel;
    program->efficiency = low->set->efficiency;
    program->host_launches = !low->runtime->captured;
}

static void decide_checkpointing(smp_lowering *low)
{
    uint32_t n = low->model->n_layer, horizon = low->set->activation_loading_horizon, layers;

    if (low->set->checkpointing == SMP_CHECKPOINTING_FIRST) {
        low->checkpointed =
            low->set->checkpointing_layers < n ? low->set->checkpointing_layers : n;
    } else if (low->set->checkpointing != SMP_CHECKPOINTING_NONE) {
        low->checkpointed = n;
    }
    layers = smp_offloaded_layers(low->set);
    if (!low->set->sm_activation_offloading) {
        low->offloaded = low->stored = layers;
    } else if (horizon < layers) { /* the last ones are never stored */
        low->offloaded = layers;
        low->stored = layers - horizon;
    }
}

/* ---- communicators ---- */

static uint8_t add_comm(smp_lowering *low, const smp_class *klass, const char *name,
                        smp_group group, bool used)
{
    smp_comm comm = { .name = name, .group = group };

    comm.ranks = smp_mesh_group_size(low->mesh, group);
    if (!used || comm.ranks < 2) {
        return SMP_NO_COMM;
    }
    smp_mesh_placement(low->mesh, group, low->rank, &comm.placement);
    comm.meeting = klass ? klass->meeting[group] : 0;
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

/* Whether a layer has experts, or shared ones beside them. */
static bool has_experts(const smp_model *model, bool shared)
{
    for (uint32_t k = 0; k < model->n_kind; k++) {
        const smp_moe *moe = &model->kinds[k].moe;

        if (moe->experts > 0 && (!shared || moe->shared_ffn > 0)) {
            return true;
        }
    }
    return false;
}

static void add_comms(smp_lowering *low, const smp_class *klass)
{
    bool sums = has_experts(low->model, false) && low->set->smp_moe
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

/* ---- buffers of the whole program ---- */

static uint16_t plain_buffer(smp_lowering *low, const char *name, smp_buffer_kind kind,
                             smp_scope scope, uint64_t bytes)
{
    return smp_build_buffer(&low->build, &(smp_buffer){ .name = name, .kind = kind,
                                                        .scope = scope, .bytes = bytes });
}

/* Inputs of the layers: a ring where they are offloaded, a stack for the others and for the
 * input of the final norm. */
static void add_inputs(smp_lowering *low, uint64_t bytes)
{
    uint32_t n = low->model->n_layer, k = low->offloaded;
    uint32_t in_ring = k == n ? n + 1 : k;
    uint32_t want =
        low->set->sm_activation_offloading ? low->set->activation_loading_horizon + 2 : 2;
    smp_buffer x = { .name = "x", .kind = SMP_KIND_ACTIVATION, .index = SMP_INDEX_LAYER,
                     .scope = SMP_SCOPE_MICROBATCH, .bytes = bytes };

    low->x = low->x_ring = low->host = low->load_token = SMP_NO_BUFFER;
    if (k < n) {
        x.first = k;
        x.entries = n + 1 - k;
        low->x = smp_build_buffer(&low->build, &x);
    }
    if (k == 0) {
        return;
    }
    x.name = "x.ring";
    x.first = 0;
    x.entries = 1;
    x.slots = want < in_ring ? want : in_ring;
    low->x_ring = smp_build_buffer(&low->build, &x);
    x.name = "x.host";
    x.space = SMP_SPACE_HOST;
    x.entries = low->stored;
    x.slots = 0;
    low->host = smp_build_buffer(&low->build, &x);
    if (low->set->sm_activation_offloading) {
        low->load_token = smp_build_buffer(
            &low->build, &(smp_buffer){ .name = "load", .kind = SMP_KIND_TOKEN,
                                        .space = SMP_SPACE_TOKEN, .index = SMP_INDEX_LAYER,
                                        .slots = low->set->activation_loading_horizon,
                                        .bytes = 1 });
    }
}

static void add_buffers(smp_lowering *low)
{
    uint64_t e = smp_dtype_bytes(low->compute);
    uint64_t elems = smp_mul(low->rows, low->hidden), bytes = smp_mul(elems, e);
    uint64_t ids = smp_mul(smp_mul(low->tokens, low->job->micro_batches), 4);

    low->scalars = plain_buffer(low, "scalars", SMP_KIND_SCALAR, SMP_SCOPE_STEP, 256);
    low->ids = plain_buffer(low, "ids", SMP_KIND_SCALAR, SMP_SCOPE_STEP, ids);
    low->targets = plain_buffer(low, "targets", SMP_KIND_SCALAR, SMP_SCOPE_STEP, ids);
    low->d = plain_buffer(low, "d", SMP_KIND_WORKSPACE, SMP_SCOPE_MICROBATCH, bytes);
    low->units_token = SMP_NO_BUFFER;
    if (low->expert > 1 && has_experts(low->model, true)) {
        low->units_token = smp_build_buffer(
            &low->build, &(smp_buffer){ .name = "multiprocessors", .kind = SMP_KIND_TOKEN,
                                        .space = SMP_SPACE_TOKEN, .bytes = 1 });
    }
    if (low->model->embedding_dropout > 0) {
        low->embed_mask = plain_buffer(low, "embed.mask", SMP_KIND_ACTIVATION,
                                       SMP_SCOPE_MICROBATCH, elems);
    }
    if (low->model->embedding_width != low->model->hidden) {
        low->embed_narrow =
            plain_buffer(low, "embed.narrow", SMP_KIND_ACTIVATION, SMP_SCOPE_MICROBATCH,
                         smp_mul(smp_mul(low->rows, low->model->embedding_width), e));
    }
    if (low->model->embedding_norm) {
        low->embed_raw = plain_buffer(low, "embed.raw", SMP_KIND_ACTIVATION,
                                      SMP_SCOPE_MICROBATCH, bytes);
    }
    add_inputs(low, bytes);
}

/* ---- variants and stacks ---- */

static smp_variant variant_of(const smp_lowering *low, uint32_t layer)
{
    uint32_t k = low->offloaded;
    smp_variant v = { .block = smp_model_block(low->model, layer),
                      .mode = SMP_CHECKPOINTING_NONE,
                      .offloaded = layer < k };

    if (layer < low->checkpointed) {
        v.mode = low->set->checkpointing == SMP_CHECKPOINTING_FIRST ? SMP_CHECKPOINTING_FULL
                                                                    : low->set->checkpointing;
    }
    v.input = layer < k ? low->x_ring : low->x;
    v.output = layer + 1 < k || k == low->model->n_layer ? low->x_ring : low->x;
    return v;
}

static bool same_variant(const smp_variant *a, const smp_variant *b)
{
    return a->block == b->block && a->mode == b->mode && a->input == b->input
           && a->output == b->output && a->offloaded == b->offloaded;
}

static smp_status add_variants(smp_lowering *low)
{
    smp_arena *arena = low->build.program->arena;
    uint32_t n = low->model->n_layer;

    low->variant_of_layer = SMP_ARENA_ARRAY(arena, n, uint8_t);
    low->variants = SMP_ARENA_ARRAY(arena, n < UINT8_MAX ? n : UINT8_MAX, smp_variant);
    for (uint32_t layer = 0; layer < n; layer++) {
        smp_variant v = variant_of(low, layer);
        uint32_t i = 0;

        while (i < low->n_variant && !same_variant(&low->variants[i], &v)) {
            i++;
        }
        if (i == UINT8_MAX) {
            return smp_fail(low->errors, SMP_INPUT, NULL,
                            "%s: more than %d kinds of layers cannot be lowered",
                            low->model->name, UINT8_MAX);
        }
        if (i == low->n_variant) {
            v.first = layer;
            low->variants[low->n_variant++] = v;
        }
        low->variants[i].last = layer;
        low->variant_of_layer[layer] = (uint8_t)i;
    }
    return SMP_OK;
}

/* Variants come in the order of their first layers; those that overlap form one stack. */
static void add_stacks(smp_lowering *low)
{
    smp_arena *arena = low->build.program->arena;

    low->stacks = SMP_ARENA_ARRAY(arena, low->n_variant, smp_stack);
    for (uint32_t i = 0; i < low->n_variant; i++) {
        smp_variant *v = &low->variants[i];
        smp_stack *s = low->n_stack ? &low->stacks[low->n_stack - 1] : NULL;

        if (!s || v->first > s->last) {
            s = &low->stacks[low->n_stack];
            s->first = v->first;
            s->last = v->last;
            s->suffix = low->n_stack ? smp_arena_printf(arena, ".%u", low->n_stack) : "";
            low->n_stack++;
        }
        s->last = v->last > s->last ? v->last : s->last;
        v->stack = low->n_stack - 1;
    }
}

/* ---- units ---- */

static void add_layout(smp_lowering *low, const smp_block *block, bool of_experts,
                       const smp_share *share, smp_home *home)
{
    smp_unit_layout(low->model, block, low->tensor, low->expert, of_experts, share,
                    &home->layout);
    home->share = share;
    if (home->layout.elems > 0) { /* else no experts in this layer */
        home->unit = smp_build_unit(&low->build, &home->layout);
    }
}

static void add_layouts(smp_lowering *low)
{
    for (uint32_t i = 0; i < low->n_variant; i++) {
        smp_variant *v = &low->variants[i];

        add_layout(low, v->block, false, &low->dense, &v->home);
        if (low->expert > 1) {
            add_layout(low, v->block, true, &low->experts, &v->experts);
        }
    }
    add_layout(low, NULL, false, &low->dense, &low->root);
}

static smp_home *home_of(smp_variant *variant, bool of_experts)
{
    return of_experts ? &variant->experts : &variant->home;
}

/* The buffers of another variant, with the variant's own layout. */
static void take_home(smp_home *home, const smp_home *other)
{
    smp_unit layout = home->layout;
    uint16_t unit = home->unit;

    *home = *other;
    home->layout = layout;
    home->unit = unit;
    home->master_first = home->master == home->weights ? layout.own_first : 0;
    home->grad_first = home->shard_grads == home->grads ? layout.own_first : 0;
}

static void add_rings(smp_lowering *low, smp_share *share, bool of_experts)
{
    uint64_t largest = 0;

    share->ring = share->ring_grads = share->ring_reduced = SMP_NO_BUFFER;
    for (uint32_t i = 0; i < low->n_variant; i++) {
        uint64_t n = home_of(&low->variants[i], of_experts)->layout.shard_elems;

        largest = n > largest ? n : largest;
    }
    if (largest > 0) {
        smp_lower_rings(low, share, largest);
    }
}

/* Homes of a stack's layers: variants whose units are of one size share buffers. */
static void add_homes(smp_lowering *low, uint32_t stack, bool of_experts)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < low->n_variant; i++) {
        smp_home *home = home_of(&low->variants[i], of_experts);
        uint64_t variants = 0;
        bool has = low->variants[i].stack == stack && home->layout.elems > 0;

        for (uint32_t j = 0; j < low->n_variant && has; j++) {
            const smp_home *other = home_of(&low->variants[j], of_experts);

            if (low->variants[j].stack == stack
                && other->layout.shard_elems == home->layout.shard_elems) {
                variants |= smp_variant_bit(low, &low->variants[j]);
                if (j < i) {
                    take_home(home, other);
                    has = false;
                }
            }
        }
        if (has) {
            const char *name = n == 0 ? low->stacks[stack].suffix
                                      : smp_arena_printf(low->build.program->arena, "%s-%u",
                                                         low->stacks[stack].suffix, n);

            smp_lower_home(low, home, name, stack, variants);
            n++;
        }
    }
}

static void add_units(smp_lowering *low)
{
    add_rings(low, &low->dense, false);
    add_rings(low, &low->experts, true);
    for (uint32_t i = 0; i < low->n_stack; i++) {
        add_homes(low, i, false);
        add_homes(low, i, true);
    }
    smp_lower_home(low, &low->root, NULL, 0, 0);
}

/* ---- segments that belong to no unit ---- */

static void add_copy(smp_lowering *low, uint16_t *segment_p, smp_op op, smp_stream stream)
{
    bool store = op == SMP_OP_STORE;
    uint64_t elems = smp_mul(low->rows, low->hidden);
    uint64_t bytes = smp_mul(elems, smp_dtype_bytes(low->compute));
    smp_ref device = smp_whole(low->x_ring, bytes), host = smp_whole(low->host, bytes);
    smp_task task = { .name = store ? "store" : "load",
                      .op = (uint16_t)op,
                      .stream = (uint8_t)stream,
                      .phase = store ? SMP_PHASE_FORWARD : SMP_PHASE_BACKWARD,
                      .dtype = (uint8_t)low->compute,
                      .dtype2 = (uint8_t)low->compute,
                      .comm = SMP_NO_COMM,
                      .dims = { elems } };

    *segment_p = smp_build_segment(&low->build, task.name);
    smp_build_task(&low->build, &task,
                   (smp_access[]){ smp_reads(store ? device : host),
                                   smp_writes(store ? host : device) },
                   2);
    if (!store && low->load_token != SMP_NO_BUFFER) {
        smp_build_extend(&low->build, smp_token(low->load_token));
    }
}

static void add_other_segments(smp_lowering *low)
{
    smp_task zero = { .name = "zero", .op = SMP_OP_FILL, .stream = SMP_STREAM_COMPUTE,
                      .phase = SMP_PHASE_FORWARD, .dtype = SMP_F32, .dtype2 = SMP_F32,
                      .comm = SMP_NO_COMM, .dims = { 4 } };
    bool ahead = low->set->sm_activation_offloading;

    low->begin = smp_build_segment(&low->build, "begin");
    smp_build_task(&low->build, &zero,
                   (smp_access[]){ smp_writes((smp_ref){ low->scalars, 0, 0, 16 }) }, 1);
    if (low->offloaded > 0) {
        add_copy(low, &low->store, SMP_OP_STORE,
                 ahead ? SMP_STREAM_OFFLOAD : SMP_STREAM_COMPUTE);
        add_copy(low, &low->load, SMP_OP_LOAD, ahead ? SMP_STREAM_LOAD : SMP_STREAM_COMPUTE);
    }
    smp_lower_norm(low);
}

static void add_segments(smp_lowering *low)
{
    add_other_segments(low);
    smp_lower_ends(low);
    for (uint32_t i = 0; i < low->n_variant; i++) {
        smp_lower_block(low, &low->variants[i]);
        smp_lower_unit(low, &low->variants[i].home, &low->variants[i].segments);
        if (low->variants[i].experts.layout.elems > 0) {
            smp_lower_unit(low, &low->variants[i].experts,
                           &low->variants[i].expert_segments);
        }
    }
    smp_lower_unit(low, &low->root, &low->root_segments);
}

/* ---- host order ---- */

static void issue(smp_lowering *low, uint16_t segment, uint32_t layer, uint64_t micro_batch,
                  uint64_t turn)
{
    if (segment != SMP_NO_SEGMENT && low->build.program->segments[segment].n_task > 0) {
        smp_build_instance(&low->build, segment, layer, (uint32_t)micro_batch,
                           (uint32_t)turn);
    }
}

static const smp_segments *segments_of(const smp_lowering *low, uint32_t layer)
{
    return &low->variants[low->variant_of_layer[layer]].segments;
}

/* NULL: the layer has no unit of experts. */
static const smp_segments *experts_of(const smp_lowering *low, uint32_t layer)
{
    const smp_variant *v = &low->variants[low->variant_of_layer[layer]];

    return v->experts.layout.elems > 0 ? &v->expert_segments : NULL;
}

/* Each block is visited twice a micro-batch: up, then down. */
static uint64_t turn_up(const smp_lowering *low, uint64_t mb, uint32_t layer)
{
    return mb * 2 * low->model->n_layer + layer;
}

static uint64_t turn_down(const smp_lowering *low, uint64_t mb, uint32_t layer)
{
    return (mb + 1) * 2 * low->model->n_layer - 1 - layer;
}

static void gather_up(smp_lowering *low, uint64_t mb, uint32_t layer)
{
    if (layer < low->model->n_layer && !(low->dense.keeps_gathered && low->once && mb > 0)) {
        issue(low, segments_of(low, layer)->gather[0], layer, mb, turn_up(low, mb, layer));
        if (experts_of(low, layer)) {
            issue(low, experts_of(low, layer)->gather[0], layer, mb,
                  turn_up(low, mb, layer));
        }
    }
}

/* `layer` counts down and may have passed 0. */
static void gather_down(smp_lowering *low, uint64_t mb, uint32_t layer)
{
    if (layer < low->model->n_layer) {
        issue(low, segments_of(low, layer)->gather[1], layer, mb, turn_down(low, mb, layer));
        if (experts_of(low, layer)) {
            issue(low, experts_of(low, layer)->gather[1], layer, mb,
                  turn_down(low, mb, layer));
        }
    }
}

static void reduce(smp_lowering *low, const smp_share *share, const smp_segments *segments,
                   uint32_t layer, uint64_t mb, uint64_t turn)
{
    bool last = mb + 1 == low->job->micro_batches;
    int second = share->accumulates ? mb > 0 && !low->once : last;

    if (last || !low->once) {
        issue(low, segments->reduce[second], layer, mb, turn);
    }
}

/* Reductions that wait for the end of backward come behind it, so that what is on their
 * streams is in the order in which it may run. */
static bool reduces_later(const smp_lowering *low)
{
    return low->reduce_token != SMP_NO_BUFFER;
}

/* Experts first: their gradients are finished before those of attention. */
static void reduce_layer(smp_lowering *low, uint32_t layer, uint64_t mb, uint64_t turn)
{
    if (experts_of(low, layer)) {
        reduce(low, &low->experts, experts_of(low, layer), layer, mb, turn);
    }
    reduce(low, &low->dense, segments_of(low, layer), layer, mb, turn);
}

static void order_forward(smp_lowering *low, uint64_t mb)
{
    bool ahead = low->set->sm_activation_offloading;

    if (!(low->dense.keeps_gathered && low->once && mb > 0)) {
        issue(low, low->root_segments.gather[0], 0, mb, 0);
    }
    gather_up(low, mb, 0);
    issue(low, low->embed, 0, mb, 0);
    for (uint32_t i = 0; i < low->model->n_layer; i++) {
        if (!low->orders_forward) {
            gather_up(low, mb, i + 1);
        }
        if (i < low->stored && ahead) {
            issue(low, low->store, i, mb, 0); /* beside the forward that reads it too */
        }
        issue(low, segments_of(low, i)->forward, i, mb, turn_up(low, mb, i));
        if (low->orders_forward) {
            gather_up(low, mb, i + 1);
        }
        if (i < low->stored && !ahead) {
            issue(low, low->store, i, mb, 0);
        }
    }
}

static void order_backward(smp_lowering *low, uint64_t mb)
{
    int add = mb > 0 && low->n_write > 1;
    bool ahead = low->set->sm_activation_offloading;
    uint32_t horizon = low->set->activation_loading_horizon;

    for (uint32_t i = low->model->n_layer; i-- > 0;) {
        uint64_t turn = turn_down(low, mb, i);

        if (!low->orders_backward) {
            gather_down(low, mb, i - 1);
        }
        if (i < low->stored && !ahead) {
            issue(low, low->load, i, mb, 0);
        }
        issue(low, segments_of(low, i)->backward[add], i, mb, turn);
        if (i < low->offloaded && ahead && i >= horizon) {
            issue(low, low->load, i - horizon, mb, 0);
        }
        if (low->orders_backward && !low->orders_reduce) {
            gather_down(low, mb, i - 1);
        }
        if (!reduces_later(low)) {
            reduce_layer(low, i, mb, turn);
        }
        if (low->orders_reduce) {
            gather_down(low, mb, i - 1);
        }
    }
    issue(low, low->embed_grad[add], 0, mb, 0);
    for (uint32_t i = low->model->n_layer; reduces_later(low) && i-- > 0;) {
        reduce_layer(low, i, mb, turn_down(low, mb, i));
    }
    reduce(low, &low->dense, &low->root_segments, 0, mb, 0);
}

static void order_update(smp_lowering *low)
{
    uint64_t mb = low->job->micro_batches - 1;
    uint32_t n = low->model->n_layer;

    /* In the order in which backward has finished the gradients. */
    for (uint32_t i = n; i-- > 0;) {
        if (experts_of(low, i)) {
            issue(low, experts_of(low, i)->squares, i, mb, 0);
        }
        issue(low, segments_of(low, i)->squares, i, mb, 0);
    }
    issue(low, low->root_segments.squares, 0, mb, 0);
    issue(low, low->norm, 0, mb, 0);
    issue(low, low->root_segments.update, 0, mb, 0);
    for (uint32_t i = 0; i < n; i++) {
        issue(low, segments_of(low, i)->update, i, mb, 0);
        if (experts_of(low, i)) {
            issue(low, experts_of(low, i)->update, i, mb, 0);
        }
    }
}

static void add_order(smp_lowering *low)
{
    uint32_t last = low->model->n_layer - 1;

    issue(low, low->begin, 0, 0, 0);
    for (uint64_t mb = 0; mb < low->job->micro_batches; mb++) {
        int add = mb > 0 && low->n_write > 1;

        order_forward(low, mb);
        if (!low->orders_backward) {
            gather_down(low, mb, last);
        }
        for (uint32_t c = 0; c < low->n_chunk; c++) {
            issue(low, low->heads[add][c], last, mb, 0);
        }
        if (low->orders_backward) {
            gather_down(low, mb, last);
        }
        order_backward(low, mb);
    }
    order_update(low);
}

/* ---- one rank, all classes ---- */

/* What has no operation here yet is refused by its name, never left out. */
static const char *missing(const smp_model *model)
{
    for (uint32_t k = 0; k < model->n_kind; k++) {
        if (model->kinds[k].attention.kv_heads != model->kinds[0].attention.kv_heads) {
            return "a number of key-value heads that differs between layers";
        }
    }
    return NULL;
}

static smp_status check_model(const smp_job *job, smp_errors *errors)
{
    const smp_model *model = job->model;
    const char *feature = missing(model);

    if (feature) {
        return smp_fail(errors, SMP_INPUT, NULL, "%s: %s cannot be lowered to a step yet",
                        model->name, feature);
    }
    if (job->settings.context_parallel_degree > 1) {
        return smp_fail(errors, SMP_INPUT, NULL,
                        "context_parallel_degree %u: context parallelism cannot be lowered "
                        "yet; legal here: 1",
                        job->settings.context_parallel_degree);
    }
    if (job->micro_batches > UINT32_MAX / (2 * model->n_layer)) {
        return smp_fail(errors, SMP_INPUT, NULL,
                        "%llu micro-batches of %u layers: a step has at most %u visits of "
                        "layers",
                        (unsigned long long)job->micro_batches, model->n_layer, UINT32_MAX);
    }
    return SMP_OK;
}

smp_status smp_lower_rank(const smp_job *job, const smp_mesh *mesh, uint32_t rank,
                          const smp_class *klass, smp_arena *arena, smp_errors *errors,
                          smp_program **program_p)
{
    smp_lowering low = { .job = job, .model = job->model, .set = &job->settings,
                         .mesh = mesh, .errors = errors, .rank = rank };
    smp_status status;

    smp_build_init(&low.build, arena);
    low.build.program->representative = rank;
    low.build.program->count = klass ? klass->count : 1;
    low.build.program->micro_batches = job->micro_batches;
    decide_ranks(&low);
    decide_sizes(&low);
    decide_gradients(&low, &low.dense);
    decide_gradients(&low, &low.experts);
    decide_gathers(&low);
    decide_checkpointing(&low);
    decide_stack(&low);
    add_comms(&low, klass);
    add_buffers(&low);
    status = add_variants(&low);
    if (status == SMP_OK) {
        add_stacks(&low);
        add_layouts(&low);
        add_units(&low);
        add_segments(&low);
        smp_lower_placeholders(&low);
        add_order(&low);
    }
    smp_build_finish(&low.build);
    free(low.named);
    free(low.spans);
    if (status == SMP_OK) {
        *program_p = low.build.program;
    }
    return status;
}

/* The elements that the shard ranks hold of a unit: all `shard_elems`, then at most one that
 * holds less, then none.  Adds to each rank's colour how often its part shrank from that of
 * the rank before, so that ranks are alike when they are in every unit; false: all are. */
static bool add_colours(const smp_unit *unit, uint32_t degree, uint32_t *colour_of_shard)
{
    uint64_t before = unit->shard_elems;
    uint32_t cuts = 0;

    for (uint32_t r = 0; r < degree; r++) {
        uint64_t first = smp_mul(r, unit->shard_elems);
        uint64_t left = first < unit->elems ? unit->elems - first : 0;
        uint64_t own = left < unit->shard_elems ? left : unit->shard_elems;

        cuts += own < before;
        before = own;
        colour_of_shard[r] += cuts;
    }
    return cuts > 0;
}

/* Colours of the positions in a shard group, by the parts of all units sharded over it. */
static uint32_t *group_colours(const smp_job *job, const smp_mesh *mesh, smp_group group,
                               bool of_experts)
{
    uint32_t tensor = smp_mesh_degree(mesh, SMP_AXIS_TENSOR);
    smp_share share = { .shard = smp_mesh_group_size(mesh, group), .weight = 1 };
    uint32_t *of_shard = smp_heap_alloc(share.shard, sizeof *of_shard);
    bool uneven = false;

    for (uint32_t k = 0; k <= job->model->n_kind; k++) {
        const smp_block *block = k < job->model->n_kind ? &job->model->kinds[k] : NULL;
        smp_unit unit;

        smp_unit_layout(job->model, block, tensor, smp_mesh_degree(mesh, SMP_AXIS_EXPERT),
                        of_experts, &share, &unit);
        uneven |= unit.elems > 0 && add_colours(&unit, share.shard, of_shard);
    }
    if (!uneven) {
        free(of_shard);
        return NULL;
    }
    return of_shard;
}

/* Colours of the ranks by the sizes of their shards; NULL: all are alike. */
static uint32_t *shard_colours(const smp_job *job, const smp_mesh *mesh)
{
    uint32_t world = smp_mesh_world(mesh), *dense, *experts = NULL, *of_rank = NULL;
    uint32_t size = smp_mesh_group_size(mesh, SMP_GROUP_SHARD);

    if (job->settings.sharding == SMP_SHARDING_NONE || size == 1) {
        return NULL;
    }
    dense = group_colours(job, mesh, SMP_GROUP_SHARD, false);
    if (smp_mesh_degree(mesh, SMP_AXIS_EXPERT) > 1) {
        experts = group_colours(job, mesh, SMP_GROUP_EXPERT_SHARD, true);
    }
    if (dense || experts) {
        of_rank = smp_heap_alloc(world, sizeof *of_rank);
    }
    for (uint32_t rank = 0; of_rank && rank < world; rank++) {
        uint32_t at = smp_mesh_group_rank(mesh, SMP_GROUP_SHARD, rank);
        uint32_t in = smp_mesh_group_rank(mesh, SMP_GROUP_EXPERT_SHARD, rank);

        /* fewer cuts than twice the units are possible */
        of_rank[rank] = (dense ? dense[at] : 0) + (experts ? experts[in] * 4096 : 0);
    }
    free(dense);
    free(experts);
    return of_rank;
}

static void sum_flops(smp_step *step)
{
    for (uint32_t c = 0; c < step->n_program; c++) {
        const smp_program *p = step->programs[c];
        double *segment = smp_heap_alloc(p->n_segment, sizeof *segment), sum = 0;

        for (uint32_t s = 0; s < p->n_segment; s++) {
            for (uint32_t t = 0; t < p->segments[s].n_task; t++) {
                segment[s] += (double)smp_task_flops(&p->tasks[p->segments[s].task0 + t]);
            }
        }
        for (uint32_t i = 0; i < p->n_instance; i++) {
            sum += segment[p->order[i].segment];
        }
        step->hardware_flops += sum * p->count;
        free(segment);
    }
}

/* Bytes of parameter, gradient and optimizer state for each parameter, before sharding. */
static double state_bytes(const smp_settings *set)
{
    uint32_t compute = smp_dtype_bytes(dtype_of(set->precision));
    uint32_t master = smp_dtype_bytes(dtype_of(set->master));
    uint32_t reduce = smp_dtype_bytes(dtype_of(set->reduce_dtype));
    uint32_t moments = set->optimizer == SMP_OPTIMIZER_SGD ? master : 2 * master;

    if (set->sharding == SMP_SHARDING_FULL) {
        return master + master + moments;
    }
    return compute + reduce + (set->precision == set->master ? 0 : master) + moments;
}

typedef smp_status place_function(smp_program *program, smp_errors *errors);

static smp_status lower_classes(smp_step *step, const smp_job *job, place_function *place,
                                smp_errors *errors)
{
    smp_status status = SMP_OK;

    step->n_program = step->classes->n_class;
    step->programs = SMP_ARENA_ARRAY(step->arena, step->n_program, smp_program *);
    for (uint32_t c = 0; c < step->n_program && status == SMP_OK; c++) {
        const smp_class *klass = &step->classes->classes[c];

        status = smp_lower_rank(job, step->mesh, klass->representative, klass, step->arena,
                                errors, &step->programs[c]);
        if (status == SMP_OK) {
            status = place(step->programs[c], errors);
        }
        if (status == SMP_OK) {
            status = smp_program_derive_waits(step->programs[c], errors);
        }
    }
    return status;
}

static smp_status lower(const smp_job *job, place_function *place, smp_errors *errors,
                        smp_step **step_p)
{
    smp_arena *arena = NULL;
    smp_step *step = NULL;
    uint32_t *colours = NULL;
    smp_status status = check_model(job, errors);

    if (status != SMP_OK) {
        return status;
    }
    arena = smp_arena_create();
    step = SMP_ARENA_NEW(arena, smp_step);
    step->arena = arena;
    status = smp_mesh_create(job, errors, &step->mesh);
    if (status == SMP_OK) {
        colours = shard_colours(job, step->mesh);
        status = smp_mesh_classes(step->mesh, colours, errors, &step->classes);
        free(colours);
    }
    if (status == SMP_OK) {
        status = lower_classes(step, job, place, errors);
    }
    if (status != SMP_OK) {
        smp_step_destroy(step);
        return status;
    }
    step->model_flops = smp_model_flops(job);
    sum_flops(step);
    step->state_bytes_per_parameter = state_bytes(&job->settings);
    *step_p = step;
    return SMP_OK;
}

smp_status smp_step_lower(const smp_job *job, smp_errors *errors, smp_step **step_p)
{
    return lower(job, smp_program_plan_memory, errors, step_p);
}

smp_status smp_step_lower_arena(const smp_job *job, smp_errors *errors, smp_step **step_p)
{
    return lower(job, smp_program_plan_arena, errors, step_p);
}

smp_status smp_step_lower_apart(const smp_job *job, smp_errors *errors, smp_step **step_p)
{
    return lower(job, smp_program_place_apart, errors, step_p);
}

void smp_step_destroy(smp_step *step)
{
    if (step) {
        smp_classes_destroy(step->classes);
        smp_mesh_destroy(step->mesh);
        smp_arena_destroy(step->arena);
    }
}
