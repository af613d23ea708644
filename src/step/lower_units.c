/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Units of parameters: flat layout, buffers, gather, reduction, norm and update.
 *
 * Sharding follows FSDP: the unit is one flat vector, cut into ceil(N / degree) elements a
 * rank, so the last ranks may hold less (spec 2.1).  Reductions average over data ranks; sums
 * over the tensor group (parameters of which every tensor rank has a copy but sees only a
 * part of the tokens or heads) do not.
 */
#include "step/lower.h"

#include "base/numeric.h"

#include <string.h>

/* ---- layout ---- */

/* The ranks of a layout: of the tensor group, and those of it that split the vocabulary. */
typedef struct parts { uint32_t tensor, vocab; } parts;

static bool is_split(const smp_param *param, parts of)
{
    return param->split != SMP_SPLIT_NONE
           && (param->split != SMP_SPLIT_VOCAB || of.vocab == of.tensor);
}

static uint32_t copies_of(const smp_param *param, const smp_block *block, parts of)
{
    uint32_t tensor = of.tensor;

    if (!is_split(param, of)) {
        return tensor;
    }
    if (param->split == SMP_SPLIT_KV && block && block->attention.kv_heads < tensor) {
        return tensor / block->attention.kv_heads;
    }
    return 1;
}

/* Which parameters a unit has. */
typedef enum contents { ALL, NO_EXPERTS, ONLY_EXPERTS } contents;

static void lay(const smp_model *model, const smp_block *block, parts of, contents which,
                smp_unit *unit, bool split)
{
    const smp_param *params = block ? block->params : model->root;
    uint32_t n = block ? block->n_param : model->n_root;

    for (uint32_t i = 0; i < n; i++) {
        smp_unit_param *p;

        if (is_split(&params[i], of) != split
            || (which != ALL
                && smp_role_is_expert(params[i].role) != (which == ONLY_EXPERTS))) {
            continue;
        }
        p = &unit->params[unit->n_param];
        p->role = params[i].role;
        p->param = i;
        p->offset = unit->elems;
        p->elems = smp_param_local_elems(model, block, &params[i],
                                         is_split(&params[i], of) ? of.tensor : 1)
                   / unit->experts;
        p->copies = copies_of(&params[i], block, of);
        unit->at[p->role] = (int8_t)unit->n_param++;
        unit->elems = smp_add(unit->elems, p->elems);
    }
}

void smp_unit_layout(const smp_job *job, const smp_block *block, bool of_experts,
                     const smp_share *share, smp_unit *unit_p)
{
    const smp_model *model = job->model;
    const parts of = { job->settings.tensor_parallel_degree, smp_vocab_parts(&job->settings) };
    uint32_t expert = job->settings.expert_parallel_degree;
    contents which = expert == 1 ? ALL : of_experts ? ONLY_EXPERTS : NO_EXPERTS;

    memset(unit_p, 0, sizeof *unit_p);
    memset(unit_p->at, -1, sizeof unit_p->at);
    unit_p->name = !block ? "root" : of_experts ? "experts" : "block";
    unit_p->block = block;
    unit_p->experts = of_experts ? expert : 1;
    unit_p->weight = share->weight;
    lay(model, block, of, which, unit_p, true);
    unit_p->tail = unit_p->elems;
    lay(model, block, of, which, unit_p, false);
    unit_p->shard_elems = smp_ceil_div(unit_p->elems, share->shard);
    unit_p->own_first = smp_mul(share->shard_rank, unit_p->shard_elems);
    if (unit_p->own_first >= unit_p->elems) {
        unit_p->own_elems = 0;
    } else if (unit_p->elems - unit_p->own_first < unit_p->shard_elems) {
        unit_p->own_elems = unit_p->elems - unit_p->own_first;
    } else {
        unit_p->own_elems = unit_p->shard_elems;
    }
}

bool smp_has(const smp_home *home, smp_role role)
{
    return home->layout.at[role] >= 0;
}

static smp_ref param_range(const smp_home *home, uint16_t buffer, smp_role role, uint32_t n,
                           uint32_t elem_bytes)
{
    const smp_unit_param *p = &home->layout.params[home->layout.at[role]];
    uint64_t elems = 0;

    for (uint32_t i = 0; i < n; i++) {
        elems += p[i].elems;
    }
    return smp_part((smp_ref){ .buffer = buffer }, p->offset, elems, elem_bytes);
}

smp_ref smp_weight(const smp_lowering *low, const smp_home *home, smp_role role, uint32_t n)
{
    return param_range(home, home->weights, role, n, smp_dtype_bytes(low->compute));
}

smp_ref smp_weight_grad(const smp_lowering *low, const smp_home *home, smp_role role,
                        uint32_t n)
{
    return param_range(home, home->grads, role, n, smp_dtype_bytes(low->reduce));
}

/* ---- buffers ---- */

static uint16_t ring_buffer(smp_lowering *low, const smp_share *share, const char *name,
                            smp_buffer_kind kind, uint32_t slots, uint64_t bytes)
{
    const char *text = smp_arena_printf(low->build.program->arena, "%s%s", share->prefix, name);

    return smp_build_buffer(&low->build, &(smp_buffer){ .name = text,
                                                        .kind = kind,
                                                        .index = SMP_INDEX_TURN,
                                                        .scope = SMP_SCOPE_MICROBATCH,
                                                        .slots = slots,
                                                        .bytes = bytes });
}

void smp_lower_rings(smp_lowering *low, smp_share *share, uint64_t shard_elems)
{
    uint64_t whole = smp_mul(shard_elems, share->shard);
    uint32_t reduce = smp_dtype_bytes(low->reduce);

    if (share->gathers && !share->keeps_gathered) {
        share->ring = ring_buffer(low, share, "gathered", SMP_KIND_UNSHARDED, low->slots,
                                smp_mul(whole, smp_dtype_bytes(low->compute)));
    }
    if (share->home == SMP_HOME_RING) {
        share->ring_grads =
            ring_buffer(low, share, "gradients", SMP_KIND_UNSHARDED, 2, smp_mul(whole, reduce));
    }
    if (share->home != SMP_HOME_WHOLE && share->shard > 1
        && !(low->once && low->reduce == low->master)) {
        share->ring_reduced =
            ring_buffer(low, share, "reduced", SMP_KIND_COMM, 2, smp_mul(shard_elems, reduce));
    }
}

/* Where the layers of a home are: see smp_lower_home. */
typedef struct place {
    const char *name;
    uint32_t stack;
    uint64_t variants;
} place;

/* A buffer of the unit: one entry for each of its layers, or one for the root. */
static uint16_t unit_buffer(smp_lowering *low, const smp_home *home, const place *stack,
                            const char *name, smp_buffer_kind kind, smp_scope scope,
                            uint64_t elems, smp_dtype dtype)
{
    smp_buffer buffer = { .kind = kind,
                          .scope = scope,
                          .bytes = smp_mul(elems, smp_dtype_bytes(dtype)) };

    if (stack) {
        buffer.name = smp_arena_printf(low->build.program->arena, "blocks%s.%s%s",
                                       stack->name, home->share->prefix, name);
        smp_set_layers(low, &buffer, stack->stack, stack->variants);
    } else {
        buffer.name = smp_arena_printf(low->build.program->arena, "root.%s", name);
    }
    return smp_build_buffer(&low->build, &buffer);
}

/* sharding=full: shards are what stays; the whole unit is gathered for its use. */
static void full_home(smp_lowering *low, smp_home *home, const place *stack,
                      uint64_t shard, uint64_t whole)
{
    smp_scope scope =
        home->share->keeps_gathered && low->once ? SMP_SCOPE_STEP : SMP_SCOPE_MICROBATCH;

    home->master = unit_buffer(low, home, stack, "parameters", SMP_KIND_PARAMETER,
                               SMP_SCOPE_STEP, shard, low->master);
    home->weights = home->master;
    if (home->share->gathers && stack && !home->share->keeps_gathered) {
        home->weights = home->share->ring;
    } else if (home->share->gathers) {
        home->weights = unit_buffer(low, home, stack, "gathered", SMP_KIND_UNSHARDED, scope,
                                    whole, low->compute);
    }
    if (home->share->home == SMP_HOME_WHOLE) {
        home->grads = unit_buffer(low, home, stack, "gradients", SMP_KIND_GRADIENT,
                                  SMP_SCOPE_STEP, whole, low->reduce);
        home->shard_grads = home->grads;
        home->grad_dtype = low->reduce;
        return;
    }
    home->grads = home->share->ring_grads;
    if (!stack || home->share->home == SMP_HOME_LAYER) {
        home->grads = unit_buffer(low, home, stack, "whole_gradients", SMP_KIND_UNSHARDED,
                                  home->share->home == SMP_HOME_LAYER ? SMP_SCOPE_STEP
                                                              : SMP_SCOPE_MICROBATCH,
                                  whole, low->reduce);
    }
    home->shard_grads = unit_buffer(low, home, stack, "gradients", SMP_KIND_GRADIENT,
                                    SMP_SCOPE_STEP, shard, low->master);
    home->grad_dtype = low->master;
    if (home->share->ring_reduced != SMP_NO_BUFFER) {
        home->reduced = stack ? home->share->ring_reduced
                              : unit_buffer(low, home, NULL, "reduced", SMP_KIND_COMM,
                                            SMP_SCOPE_MICROBATCH, shard, low->reduce);
    }
}

/* sharding=optimizer and none: parameters and gradients whole. */
static void whole_home(smp_lowering *low, smp_home *home, const place *stack,
                       uint64_t shard, uint64_t whole)
{
    home->weights = unit_buffer(low, home, stack, "parameters", SMP_KIND_PARAMETER,
                                SMP_SCOPE_STEP, whole, low->compute);
    home->master = home->weights;
    home->master_first = home->layout.own_first;
    if (low->casts) {
        home->master = unit_buffer(low, home, stack, "master", SMP_KIND_OPTIMIZER,
                                   SMP_SCOPE_STEP, shard, low->master);
        home->master_first = 0;
    }
    home->grads = unit_buffer(low, home, stack, "gradients", SMP_KIND_GRADIENT, SMP_SCOPE_STEP,
                              whole, low->reduce);
    home->shard_grads = home->grads;
    home->grad_first = home->layout.own_first;
    home->grad_dtype = low->reduce;
    if (home->share->accumulates) {
        home->shard_grads = unit_buffer(low, home, stack, "reduced", SMP_KIND_GRADIENT,
                                        SMP_SCOPE_STEP, shard, low->master);
        home->grad_first = 0;
        home->grad_dtype = low->master;
    }
}

void smp_lower_home(smp_lowering *low, smp_home *home, const char *name, uint32_t number,
                    uint64_t variants)
{
    const place layers = { name, number, variants };
    const place *stack = name ? &layers : NULL;
    uint64_t shard = home->layout.shard_elems, whole = smp_mul(shard, home->share->shard);

    home->reduced = home->moment2 = SMP_NO_BUFFER;
    if (low->set->sharding == SMP_SHARDING_FULL) {
        full_home(low, home, stack, shard, whole);
    } else {
        whole_home(low, home, stack, shard, whole);
    }
    if (low->set->optimizer == SMP_OPTIMIZER_SGD) {
        home->moment1 = unit_buffer(low, home, stack, "momentum", SMP_KIND_OPTIMIZER,
                                    SMP_SCOPE_STEP, shard, low->master);
        return;
    }
    home->moment1 = unit_buffer(low, home, stack, "m", SMP_KIND_OPTIMIZER, SMP_SCOPE_STEP,
                                shard, low->master);
    home->moment2 = unit_buffer(low, home, stack, "v", SMP_KIND_OPTIMIZER, SMP_SCOPE_STEP,
                                shard, low->master);
}

/* ---- segments ---- */

static smp_task plain_task(const char *name, smp_op op, smp_stream stream, smp_phase phase,
                           smp_dtype dtype, smp_dtype dtype2, uint64_t elems)
{
    return (smp_task){ .name = name,
                       .op = (uint16_t)op,
                       .stream = (uint8_t)stream,
                       .phase = (uint8_t)phase,
                       .dtype = (uint8_t)dtype,
                       .dtype2 = (uint8_t)dtype2,
                       .comm = SMP_NO_COMM,
                       .dims = { elems } };
}

/* Elements `first` .. of a buffer of the unit. */
static smp_ref elems_of(uint16_t buffer, uint64_t first, uint64_t n, smp_dtype dtype)
{
    return smp_part((smp_ref){ .buffer = buffer }, first, n, smp_dtype_bytes(dtype));
}

static smp_ref own_of(const smp_home *home, uint16_t buffer, uint64_t first, smp_dtype dtype)
{
    return elems_of(buffer, first, home->layout.own_elems, dtype);
}

/* All-gather in place, or from the master shard where no cast puts it in place.  Padding at
 * the end of a shard travels but has no contents: nothing reads it, so an empty shard is only
 * written to. */
static void add_gather(smp_lowering *low, const smp_home *home, smp_phase phase, bool shard)
{
    uint64_t own = home->layout.own_elems;
    uint64_t whole = smp_mul(home->layout.shard_elems, home->share->shard);
    smp_task task = plain_task("gather", SMP_OP_ALL_GATHER, SMP_STREAM_UNSHARD, phase,
                               low->compute, low->compute, whole);
    smp_ref from = shard ? elems_of(home->master, 0, own, low->master)
                         : elems_of(home->weights, home->layout.own_first, own, low->compute);
    smp_ref to = elems_of(home->weights, 0, whole, low->compute);

    task.comm = home->share->unshard_comm;
    smp_build_task(&low->build, &task,
                   (smp_access[]){ own > 0 ? smp_reads(from) : smp_writes(to),
                                   smp_writes(to) },
                   2);
    if (low->comm_token != SMP_NO_BUFFER) {
        smp_build_extend(&low->build, smp_token(low->comm_token));
    }
}

static void add_cast(smp_lowering *low, const smp_home *home, smp_stream stream,
                     smp_phase phase)
{
    smp_task task = plain_task("cast", SMP_OP_CAST, stream, phase, low->compute, low->master,
                               home->layout.own_elems);

    if (home->layout.own_elems == 0) {
        return;
    }
    smp_build_task(&low->build, &task,
                   (smp_access[]){ smp_reads(own_of(home, home->master, 0, low->master)),
                                   smp_writes(own_of(home, home->weights,
                                                     home->layout.own_first,
                                                     low->compute)) },
                   2);
}

static void lower_gather(smp_lowering *low, const smp_home *home, smp_segments *segments,
                         int backward)
{
    smp_phase phase = backward ? SMP_PHASE_BACKWARD : SMP_PHASE_FORWARD;
    uint32_t task0 = low->build.program->n_task;

    segments->gather[backward] =
        smp_build_segment(&low->build, backward ? "gather.backward" : "gather");
    if (low->casts) {
        add_cast(low, home, SMP_STREAM_UNSHARD, phase);
    }
    if (home->layout.block && (backward ? low->orders_backward : low->orders_forward)
        && low->build.program->n_task > task0) {
        smp_build_extend(&low->build, smp_token(low->prefetch_token));
    }
    if (home->share->shard > 1) {
        bool first = low->build.program->n_task == task0;

        add_gather(low, home, phase, !low->casts);
        if (first && home->layout.block
            && (backward ? low->orders_backward : low->orders_forward)) {
            smp_build_extend(&low->build, smp_token(low->prefetch_token));
        }
    }
}

/* Sums over the tensor group, in place in the whole gradient. */
static void add_tensor_sum(smp_lowering *low, const smp_home *home, const char *name,
                           uint8_t comm, uint64_t first, uint64_t n)
{
    smp_task task = plain_task(name, SMP_OP_ALL_REDUCE, SMP_STREAM_TENSOR,
                               SMP_PHASE_BACKWARD, low->reduce, low->reduce, n);

    task.comm = comm;
    smp_build_task(&low->build, &task,
                   (smp_access[]){ smp_updates(elems_of(home->grads, first, n,
                                                        low->reduce)) },
                   1);
}

/* The parameters from role `first` to `last` of which each tensor rank has a copy. */
static void add_role_sum(smp_lowering *low, const smp_home *home, const char *name,
                         smp_role first, smp_role last)
{
    const smp_unit *u = &home->layout;
    uint64_t from = 0, n = 0;

    for (int role = (int)first; role <= (int)last; role++) {
        if (u->at[role] >= 0 && u->params[u->at[role]].offset >= u->tail) {
            from = n == 0 ? u->params[u->at[role]].offset : from;
            n = u->params[u->at[role]].offset + u->params[u->at[role]].elems - from;
        }
    }
    if (n > 0) {
        add_tensor_sum(low, home, name, low->tensor_comm, from, n);
    }
}

/* Key-value weights that several tensor ranks hold are summed over those ranks; parameters
 * that all hold are summed where ranks saw different tokens (sequence parallelism) or
 * different heads (norms of q and k). */
static void add_tensor_sums(smp_lowering *low, const smp_home *home)
{
    const smp_unit *u = &home->layout;
    static const struct { smp_role first, last; const char *name; } kv[3] = {
        { SMP_ROLE_K_W, SMP_ROLE_V_W, "sum.kv_weight" },
        { SMP_ROLE_K_B, SMP_ROLE_V_B, "sum.kv_bias" },
        { SMP_ROLE_K_NORM_W, SMP_ROLE_K_NORM_W, "sum.k_norm" }
    };

    for (int i = 0; i < 3; i++) {
        int8_t at = u->at[kv[i].first];

        if (at >= 0 && u->params[at].offset < u->tail && u->params[at].copies > 1) {
            const smp_unit_param *last = &u->params[u->at[kv[i].last]];

            add_tensor_sum(low, home, kv[i].name, low->kv_comm, u->params[at].offset,
                           last->offset + last->elems - u->params[at].offset);
        }
    }
    if (low->tensor == 1) {
        return;
    }
    if (low->sequence) {
        if (u->elems > u->tail) {
            add_tensor_sum(low, home, "sum.copies", low->tensor_comm, u->tail,
                           u->elems - u->tail);
        }
        return;
    }
    add_role_sum(low, home, "sum.qk_norm", SMP_ROLE_Q_NORM_W, SMP_ROLE_K_NORM_B);
    /* Their gradients come from outputs of which each rank has a part. */
    add_role_sum(low, home, "sum.router", SMP_ROLE_ROUTER_W, SMP_ROLE_ROUTER_CORRECTION);
    add_role_sum(low, home, "sum.expert_bias", SMP_ROLE_EXPERT_DOWN_B, SMP_ROLE_EXPERT_DOWN_B);
    add_role_sum(low, home, "sum.shared_router", SMP_ROLE_SHARED_ROUTER_W,
                 SMP_ROLE_SHARED_ROUTER_W);
}

/* Where the reduced gradient of the rank's part appears. */
static smp_ref reduced_ref(const smp_lowering *low, const smp_home *home)
{
    uint64_t n = home->layout.shard_elems;

    if (home->reduced != SMP_NO_BUFFER) {
        return elems_of(home->reduced, 0, n, low->reduce);
    }
    if (home->share->home == SMP_HOME_WHOLE || home->share->shard == 1) {
        return elems_of(home->grads, home->layout.own_first, n, low->reduce);
    }
    return elems_of(home->shard_grads, 0, n, low->reduce);
}

static void add_shard_reduction(smp_lowering *low, const smp_home *home, smp_ref to)
{
    uint64_t whole = smp_mul(home->layout.shard_elems, home->share->shard);
    bool scatter = home->share->shard > 1;
    smp_task task = plain_task(scatter ? "reduce_scatter" : "all_reduce",
                               scatter ? SMP_OP_REDUCE_SCATTER : SMP_OP_ALL_REDUCE,
                               SMP_STREAM_REDUCE, SMP_PHASE_BACKWARD, low->reduce,
                               low->reduce, whole);
    smp_ref from = elems_of(home->grads, 0, home->layout.elems, low->reduce);

    task.comm = home->share->reduce_comm;
    task.flags = SMP_FLAG_AVERAGE;
    if (scatter) {
        smp_build_task(&low->build, &task, (smp_access[]){ smp_reads(from), smp_writes(to) },
                       2);
    } else {
        smp_build_task(&low->build, &task, (smp_access[]){ smp_updates(from) }, 1);
    }
    if (low->orders_reduce && home->layout.block) {
        smp_build_extend(&low->build, smp_token(low->prefetch_token));
    }
    if (low->comm_token != SMP_NO_BUFFER) {
        smp_build_extend(&low->build, smp_token(low->comm_token));
    }
    if (low->reduce_token != SMP_NO_BUFFER) {
        smp_build_extend(&low->build, smp_token(low->reduce_token));
    }
}

static void add_accumulate(smp_lowering *low, const smp_home *home, smp_ref from, bool add)
{
    smp_stream stream = home->share->replicas > 1   ? SMP_STREAM_REPLICATE
                        : home->share->shard > 1    ? SMP_STREAM_REDUCE
                                            : SMP_STREAM_COMPUTE;
    uint64_t n = home->layout.own_elems;
    smp_task task = plain_task("accumulate", SMP_OP_ACCUMULATE, stream, SMP_PHASE_BACKWARD,
                               low->reduce, home->grad_dtype, n);

    task.flags = add ? SMP_FLAG_ACCUMULATE : 0;
    if (n > 0) {
        from.bytes = smp_mul(n, smp_dtype_bytes(low->reduce));
        smp_build_task(&low->build, &task,
                       (smp_access[]){ smp_reads(from),
                                       smp_adds(own_of(home, home->shard_grads,
                                                       home->grad_first, home->grad_dtype),
                                                add) },
                       2);
    }
}

static void lower_reduce(smp_lowering *low, const smp_home *home, smp_segments *segments,
                         int second)
{
    smp_ref to = reduced_ref(low, home);

    uint32_t task0 = low->build.program->n_task;

    segments->reduce[second] =
        smp_build_segment(&low->build, second ? "reduce.later" : "reduce");
    if (home->share->accumulates || second) {
        add_tensor_sums(low, home);
    }
    if (home->share->shard_group > 1) {
        add_shard_reduction(low, home, to);
    }
    if (home->share->replicas > 1) {
        smp_task task = plain_task("replicate", SMP_OP_ALL_REDUCE, SMP_STREAM_REPLICATE,
                                   SMP_PHASE_BACKWARD, low->reduce, low->reduce,
                                   home->layout.shard_elems);

        task.comm = home->share->replicate_comm;
        task.flags = SMP_FLAG_AVERAGE;
        smp_build_task(&low->build, &task, (smp_access[]){ smp_updates(to) }, 1);
    }
    if (to.buffer != home->shard_grads) {
        add_accumulate(low, home, to, second);
    }
    if (low->build.program->n_task > task0) {
        smp_build_extend(&low->build,
                         (smp_access){ .buffer = low->reduced_token,
                                       .reads = true,
                                       .bytes = 1 });
    }
}

static void lower_squares(smp_lowering *low, const smp_home *home, smp_segments *segments)
{
    smp_task task = plain_task("squares", SMP_OP_SQUARES, SMP_STREAM_COMPUTE,
                               SMP_PHASE_UPDATE, home->grad_dtype, SMP_F32,
                               home->layout.own_elems);

    segments->squares = smp_build_segment(&low->build, "squares");
    if (home->layout.own_elems == 0) {
        return;
    }
    task.flags = SMP_FLAG_ACCUMULATE;
    task.dims[1] = home->unit;
    task.dims[2] = home->layout.own_first;
    smp_build_task(&low->build, &task,
                   (smp_access[]){ smp_reads(own_of(home, home->shard_grads, home->grad_first,
                                                    home->grad_dtype)),
                                   smp_updates((smp_ref){ low->scalars, 0, 0, 16 }),
                                   smp_token(low->reduced_token) },
                   3);
}

static void add_optimizer(smp_lowering *low, const smp_home *home)
{
    bool sgd = low->set->optimizer == SMP_OPTIMIZER_SGD;
    bool adam = low->set->optimizer == SMP_OPTIMIZER_ADAM;
    smp_task task = plain_task(sgd ? "sgd" : adam ? "adam" : "adamw",
                               sgd ? SMP_OP_SGD : SMP_OP_ADAMW, SMP_STREAM_COMPUTE,
                               SMP_PHASE_UPDATE, low->master, home->grad_dtype,
                               home->layout.own_elems);
    smp_access access[5];
    uint32_t n = 0;

    if (home->layout.own_elems == 0) {
        return;
    }
    task.dims[1] = home->unit;
    task.dims[2] = home->layout.own_first;
    task.dims[3] = adam;
    access[n++] = smp_updates(own_of(home, home->master, home->master_first, low->master));
    access[n++] = smp_reads(own_of(home, home->shard_grads, home->grad_first,
                                   home->grad_dtype));
    access[n++] = smp_updates(own_of(home, home->moment1, 0, low->master));
    if (!sgd) {
        access[n++] = smp_updates(own_of(home, home->moment2, 0, low->master));
    }
    access[n++] = smp_reads((smp_ref){ low->scalars, 0, 64, 64 });
    smp_build_task(&low->build, &task, access, n);
}

static void lower_update(smp_lowering *low, const smp_home *home, smp_segments *segments)
{
    segments->update = smp_build_segment(&low->build, "update");
    add_optimizer(low, home);
    if (low->set->sharding == SMP_SHARDING_FULL) {
        return;
    }
    if (low->casts) {
        add_cast(low, home, SMP_STREAM_COMPUTE, SMP_PHASE_UPDATE);
    }
    if (low->update_token != SMP_NO_BUFFER && home->layout.own_elems > 0) {
        smp_build_extend(&low->build, smp_token(low->update_token));
    }
    if (home->share->shard > 1) {
        if (low->update_token != SMP_NO_BUFFER) {
            segments->publish = smp_build_segment(&low->build, "publish");
        }
        add_gather(low, home, SMP_PHASE_UPDATE, false);
        if (low->update_token != SMP_NO_BUFFER) {
            smp_build_extend(&low->build, smp_token(low->update_token));
        }
    }
}

void smp_lower_unit(smp_lowering *low, const smp_home *home, smp_segments *segments)
{
    segments->gather[0] = segments->gather[1] = segments->publish = SMP_NO_SEGMENT;
    if (home->share->gathers) {
        lower_gather(low, home, segments, 0);
        if (home->layout.block && !home->share->keeps_gathered) {
            lower_gather(low, home, segments, 1);
        }
    }
    lower_reduce(low, home, segments, 0);
    lower_reduce(low, home, segments, 1);
    lower_squares(low, home, segments);
    lower_update(low, home, segments);
}

/* Sum of squares, overflow flag and loss over all ranks, then the scalars of the update. */
void smp_lower_norm(smp_lowering *low)
{
    smp_task task = plain_task("norm.sum", SMP_OP_ALL_REDUCE, SMP_STREAM_REDUCE,
                               SMP_PHASE_UPDATE, SMP_F32, SMP_F32, 4);

    low->norm = smp_build_segment(&low->build, "norm");
    if (low->world_comm != SMP_NO_COMM) {
        task.comm = low->world_comm;
        smp_build_task(&low->build, &task,
                       (smp_access[]){ smp_updates((smp_ref){ low->scalars, 0, 0, 16 }) }, 1);
    }
    task = plain_task("norm.scalars", SMP_OP_SCALARS, SMP_STREAM_COMPUTE, SMP_PHASE_UPDATE,
                      SMP_F32, SMP_F32, 1);
    smp_build_task(&low->build, &task,
                   (smp_access[]){ smp_reads((smp_ref){ low->scalars, 0, 0, 16 }),
                                   smp_updates((smp_ref){ low->scalars, 0, 64, 64 }) },
                   2);
}
