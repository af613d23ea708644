/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The space of settings, as a mixed radix number: one digit per dimension.
 *
 * Nothing is stored but the values of each dimension.  A pinned dimension has one value, the
 * one given.  Points that would lower to the same program as a point with a smaller code
 * (a horizon without offload, an accumulation rule with one micro-batch, resharding what is
 * not sharded) are skipped, so that every program is met once.
 */
#include "config.h"

#include "plan/plan.h"

#include "base/numeric.h"
#include "mesh/runtime.h"
#include "mesh/settings.h"
#include "model/model.h"

#include <string.h>

static bool given(const smp_job *job, const char *key)
{
    return smp_settings_given(&job->settings, key);
}

static void set_choices(smp_plan_space *space, smp_dim dim, const smp_choice *choices,
                        uint32_t n)
{
    space->choices[dim] = SMP_ARENA_ARRAY(space->arena, n, smp_choice);
    for (uint32_t i = 0; i < n; i++) {
        space->choices[dim][i] = choices[i];
    }
    space->n_choice[dim] = n;
}

static void set_values(smp_plan_space *space, smp_dim dim, const uint32_t *values, uint32_t n)
{
    space->choices[dim] = SMP_ARENA_ARRAY(space->arena, n, smp_choice);
    for (uint32_t i = 0; i < n; i++) {
        space->choices[dim][i].value = values[i];
    }
    space->n_choice[dim] = n;
}

static void pin(smp_plan_space *space, smp_dim dim, uint32_t value)
{
    set_values(space, dim, &value, 1);
    space->pinned[dim] = true;
}

/* All divisors of n up to `most`, ascending, as the values of a dimension. */
static void set_divisors(smp_plan_space *space, smp_dim dim, uint64_t n, uint64_t most)
{
    uint32_t count = 0;
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1) {
            space->choices[dim] = SMP_ARENA_ARRAY(space->arena, count, smp_choice);
            space->n_choice[dim] = count;
        }
        count = 0;
        for (uint64_t d = 1; d <= n && d <= most; d++) {
            if (n % d == 0) {
                if (pass == 1) {
                    space->choices[dim][count].value = (uint32_t)d;
                }
                count++;
            }
        }
    }
}

static void add_tensor(smp_plan_space *space)
{
    const smp_job *job = space->job;
    if (given(job, "tensor_parallel_degree")) {
        pin(space, SMP_DIM_TENSOR, job->settings.tensor_parallel_degree);
    } else { /* a tensor group stays inside a node */
        set_divisors(space, SMP_DIM_TENSOR, job->cluster->gpus, job->cluster->gpus_per_node);
    }
    if (given(job, "sequence_parallel")) {
        pin(space, SMP_DIM_SEQUENCE, job->settings.sequence_parallel);
    } else {
        set_values(space, SMP_DIM_SEQUENCE, (const uint32_t[]){1, 0}, 2);
    }
}

/* What divides the experts of every layer that has any; 1 without experts. */
static uint64_t common_experts(const smp_model *model)
{
    uint64_t common = 0;
    for (uint32_t kind = 0; kind < model->n_kind; kind++) {
        uint64_t a = model->kinds[kind].moe.experts;
        uint64_t b = common;
        while (b > 0) {
            const uint64_t rest = a % b;
            a = b;
            b = rest;
        }
        common = a;
    }
    return common;
}

/* Layouts and dispatchers differ where several ranks split the experts (is_copy).  Order 0: as
 * given or by default; 1: the other one, expert ranks beside each other in the orthogonal
 * layout, and shards before them in the nested one. */
static void add_expert(smp_plan_space *space)
{
    const smp_job *job = space->job;
    const smp_settings *s = &job->settings;
    const uint64_t common = common_experts(job->model);
    const bool alone = common < 2 || !s->smp_moe;
    if (given(job, "expert_parallel_degree") || alone) {
        pin(space, SMP_DIM_EXPERT, s->expert_parallel_degree);
    } else {
        set_divisors(space, SMP_DIM_EXPERT, common, job->cluster->gpus);
    }
    if (given(job, "expert_layout") || alone) {
        pin(space, SMP_DIM_LAYOUT, (uint32_t)s->expert_layout);
    } else {
        set_values(space, SMP_DIM_LAYOUT,
                   (const uint32_t[]){SMP_EXPERT_LAYOUT_ORTHOGONAL, SMP_EXPERT_LAYOUT_NESTED},
                   2);
    }
    if (given(job, "moe_all_to_all_dispatcher") || alone) {
        pin(space, SMP_DIM_EXCHANGE, s->moe_all_to_all_dispatcher);
    } else {
        set_values(space, SMP_DIM_EXCHANGE, (const uint32_t[]){1, 0}, 2);
    }
    if (given(job, "rank_order") || alone) {
        pin(space, SMP_DIM_ORDER, 0);
    } else {
        set_values(space, SMP_DIM_ORDER, (const uint32_t[]){0, 1}, 2);
    }
}

static void add_micro_batch(smp_plan_space *space)
{
    const smp_job *job = space->job;
    /* More sequences than this at once gain nothing and fit nowhere. */
    enum { MOST = 4096 };
    if (given(job, "micro_batch")) {
        pin(space, SMP_DIM_MICRO, job->settings.micro_batch);
    } else {
        set_divisors(space, SMP_DIM_MICRO, job->batch.global_batch, MOST);
    }
    if (given(job, "accumulation")) {
        pin(space, SMP_DIM_ACCUMULATION, (uint32_t)job->settings.accumulation);
    } else {
        set_values(space, SMP_DIM_ACCUMULATION,
                   (const uint32_t[]){SMP_ACCUMULATION_EVERY, SMP_ACCUMULATION_LAST}, 2);
    }
}

static bool is_quarter(uint32_t k, uint32_t n_layer)
{
    return k == n_layer / 4 || k == n_layer / 2 || k == n_layer * 3 / 4;
}

static bool is_coarse_chunks(uint32_t chunks)
{
    return chunks == 1 || chunks == 8;
}

static void add_checkpointing(smp_plan_space *space)
{
    const smp_job *job = space->job;
    if (given(job, "checkpointing")) {
        const smp_choice as_given = {job->settings.checkpointing_layers,
                                     job->settings.checkpointing};
        set_choices(space, SMP_DIM_CHECKPOINTING, &as_given, 1);
        space->pinned[SMP_DIM_CHECKPOINTING] = true;
        return;
    }
    const uint32_t n_layer = job->model->n_layer;
    smp_choice *choices = SMP_ARENA_ARRAY(space->arena, 3 + (size_t)n_layer, smp_choice);
    uint32_t n = 0;
    choices[n++] = (smp_choice){0, SMP_CHECKPOINTING_NONE};
    choices[n++] = (smp_choice){0, SMP_CHECKPOINTING_SELECTIVE_ATTENTION};
    choices[n++] = (smp_choice){0, SMP_CHECKPOINTING_SELECTIVE_OP};
    for (uint32_t k = 1; k < n_layer; k++) {
        if (space->fine || is_quarter(k, n_layer)) {
            choices[n++] = (smp_choice){k, SMP_CHECKPOINTING_FIRST};
        }
    }
    choices[n++] = (smp_choice){0, SMP_CHECKPOINTING_FULL};
    set_choices(space, SMP_DIM_CHECKPOINTING, choices, n);
}

/* Digits of checkpointing of none, the first and all layers. */
static void list_by_layer(smp_plan_space *space)
{
    const uint32_t n = space->n_choice[SMP_DIM_CHECKPOINTING];
    space->by_layer = SMP_ARENA_ARRAY(space->arena, n, uint32_t);
    for (uint32_t digit = 0; digit < n; digit++) {
        if (smp_checkpoints_by_layer(
                space->choices[SMP_DIM_CHECKPOINTING][digit].checkpointing)) {
            space->by_layer[space->n_by_layer++] = digit;
        }
    }
}

/* Value 0: no offload; else the horizon.  Larger horizons are faster and come first. */
static void add_offload(smp_plan_space *space)
{
    const smp_job *job = space->job;
    const smp_settings *s = &job->settings;
    const bool offload_given = given(job, "offload");
    uint32_t values[6];
    uint32_t n = 0;
    if (!offload_given || !s->offload) {
        values[n++] = 0;
    }
    if (!offload_given || s->offload) {
        if (given(job, "activation_loading_horizon") || !s->sm_activation_offloading) {
            values[n++] = s->activation_loading_horizon;
        } else {
            for (uint32_t horizon = 8; horizon > 0; horizon /= 2) {
                if (horizon < job->model->n_layer || horizon == 1) {
                    values[n++] = horizon;
                }
            }
        }
    }
    set_values(space, SMP_DIM_OFFLOAD, values, n);
    space->pinned[SMP_DIM_OFFLOAD] = offload_given;
}

/* Every number of the first layers; 0: all that are checkpointed.  Fewer are faster and come
 * first. */
static void add_offload_layers(smp_plan_space *space)
{
    const smp_job *job = space->job;
    const uint32_t n_layer = job->model->n_layer;
    if (given(job, "offload_layers") || !space->fine) {
        pin(space, SMP_DIM_OFFLOAD_LAYERS, job->settings.offload_layers);
        return;
    }
    uint32_t *values = SMP_ARENA_ARRAY(space->arena, n_layer, uint32_t);
    for (uint32_t layers = 1; layers < n_layer; layers++) {
        values[layers - 1] = layers;
    }
    set_values(space, SMP_DIM_OFFLOAD_LAYERS, values, n_layer);
}

static void add_sharding(smp_plan_space *space)
{
    const smp_job *job = space->job;
    const smp_settings *s = &job->settings;
    if (given(job, "hybrid_shard_degree")) {
        pin(space, SMP_DIM_SHARD, s->hybrid_shard_degree);
    } else if (s->sharding_strategy == SMP_STRATEGY_NO_SHARD) {
        pin(space, SMP_DIM_SHARD, 1);
    } else {
        set_divisors(space, SMP_DIM_SHARD, job->cluster->gpus, job->cluster->gpus);
    }
    if (given(job, "reshard_after_forward") || given(job, "sharding_strategy")) {
        pin(space, SMP_DIM_RESHARD, s->reshard_after_forward);
    } else {
        set_values(space, SMP_DIM_RESHARD, (const uint32_t[]){0, 1}, 2);
    }
    /* Value 0: prefetch as given or by default; 1: none, which saves a ring slot. */
    if (given(job, "prefetch") || given(job, "forward_prefetch")) {
        pin(space, SMP_DIM_PREFETCH, 0);
    } else {
        set_values(space, SMP_DIM_PREFETCH, (const uint32_t[]){0, 1}, 2);
    }
}

/* Powers of two up to 16 that divide every sequence.  More chunks need less memory, and more
 * launches; under tensor parallelism the reductions of one overlap with the next. */
static void add_chunks(smp_plan_space *space)
{
    const smp_job *job = space->job;
    enum { MOST = 16 };
    uint32_t values[5];
    uint32_t n = 0;
    if (given(job, "loss_chunks")) {
        pin(space, SMP_DIM_CHUNKS, job->settings.loss_chunks);
        return;
    }
    for (uint32_t chunks = 1; chunks <= MOST && job->batch.seq_len % chunks == 0; chunks *= 2) {
        if (space->fine || is_coarse_chunks(chunks)) {
            values[n++] = chunks;
        }
    }
    set_values(space, SMP_DIM_CHUNKS, values, n);
}

bool smp_checkpoints_by_layer(smp_checkpointing checkpointing)
{
    return checkpointing == SMP_CHECKPOINTING_NONE ||
           checkpointing == SMP_CHECKPOINTING_FIRST || checkpointing == SMP_CHECKPOINTING_FULL;
}

void smp_plan_space_destroy(smp_plan_space *space)
{
    if (space) {
        smp_arena_destroy(space->arena);
    }
}

bool smp_plan_space_next(const smp_plan_space *space, smp_point *point, int low, int high)
{
    for (int dim = high - 1; dim >= low; dim--) {
        if (++point->digit[dim] < space->n_choice[dim]) {
            return true;
        }
        point->digit[dim] = 0;
    }
    return false;
}

uint64_t smp_plan_space_code(const smp_plan_space *space, const smp_point *point)
{
    uint64_t code = 0;
    for (int dim = 0; dim < SMP_DIMS; dim++) {
        code = smp_add(smp_mul(code, space->n_choice[dim]), point->digit[dim]);
    }
    return code;
}

bool smp_point_dominates(const smp_point *a, const smp_point *b)
{
    for (int dim = 0; dim < SMP_DIMS; dim++) {
        if (dim < SMP_DIM_LEAF ? a->digit[dim] != b->digit[dim]
                               : a->digit[dim] > b->digit[dim]) {
            return false;
        }
    }
    return true;
}

static smp_choice choice_of(const smp_plan_space *space, const smp_point *point, smp_dim dim)
{
    return space->choices[dim][point->digit[dim]];
}

static uint32_t choice_value(const smp_plan_space *space, const smp_point *point, smp_dim dim)
{
    return choice_of(space, point, dim).value;
}

static void apply_leaf(const smp_plan_space *space, const smp_point *point, smp_settings *s)
{
    const uint32_t horizon = choice_value(space, point, SMP_DIM_OFFLOAD);
    s->offload = horizon > 0;
    if (horizon > 0) {
        s->activation_loading_horizon = horizon;
    }
    if (horizon > 0 || space->pinned[SMP_DIM_OFFLOAD_LAYERS]) {
        s->offload_layers = choice_value(space, point, SMP_DIM_OFFLOAD_LAYERS);
    }
    s->loss_chunks = choice_value(space, point, SMP_DIM_CHUNKS);
    if (choice_value(space, point, SMP_DIM_PREFETCH) == 1) {
        s->prefetch = SMP_PREFETCH_NONE;
        s->forward_prefetch = false;
    }
}

static void apply_expert(const smp_plan_space *space, const smp_point *point, smp_settings *s)
{
    s->expert_parallel_degree = choice_value(space, point, SMP_DIM_EXPERT);
    s->expert_layout = (smp_expert_layout)choice_value(space, point, SMP_DIM_LAYOUT);
    s->moe_all_to_all_dispatcher = choice_value(space, point, SMP_DIM_EXCHANGE) != 0;
    if (choice_value(space, point, SMP_DIM_ORDER) == 1) {
        static const smp_axis orders[2][SMP_AXES] = {
            {SMP_AXIS_TENSOR, SMP_AXIS_CONTEXT, SMP_AXIS_EXPERT, SMP_AXIS_SHARD,
             SMP_AXIS_REPLICA},
            {SMP_AXIS_TENSOR, SMP_AXIS_CONTEXT, SMP_AXIS_SHARD, SMP_AXIS_EXPERT,
             SMP_AXIS_REPLICA}};
        const bool nested = smp_nested(s);
        memcpy(s->rank_order, orders[nested], sizeof orders[nested]);
        s->given |= UINT64_C(1) << SMP_KEY_RANK_ORDER; /* against the default of the layout */
    }
}

static void apply(const smp_plan_space *space, const smp_point *point, smp_settings *s)
{
    s->tensor_parallel_degree = choice_value(space, point, SMP_DIM_TENSOR);
    apply_expert(space, point, s);
    s->sequence_parallel = choice_value(space, point, SMP_DIM_SEQUENCE) != 0;
    if (s->tensor_parallel_degree == 1 && !space->pinned[SMP_DIM_SEQUENCE]) {
        s->sequence_parallel = false;
    }
    s->micro_batch = choice_value(space, point, SMP_DIM_MICRO);
    s->checkpointing = choice_of(space, point, SMP_DIM_CHECKPOINTING).checkpointing;
    s->checkpointing_layers = choice_value(space, point, SMP_DIM_CHECKPOINTING);
    s->hybrid_shard_degree = choice_value(space, point, SMP_DIM_SHARD);
    s->accumulation = (smp_accumulation)choice_value(space, point, SMP_DIM_ACCUMULATION);
    s->reshard_after_forward = choice_value(space, point, SMP_DIM_RESHARD) != 0;
    s->loss_chunks = choice_value(space, point, SMP_DIM_CHUNKS);
    apply_leaf(space, point, s);
}

/* Known before any rule is tried: the degrees divide the ranks. */
static bool divides_well(const smp_plan_space *space, const smp_point *point)
{
    const uint32_t tensor = choice_value(space, point, SMP_DIM_TENSOR);
    const uint32_t expert = choice_value(space, point, SMP_DIM_EXPERT);
    const uint32_t shard = choice_value(space, point, SMP_DIM_SHARD);
    const bool nested = choice_value(space, point, SMP_DIM_LAYOUT) == SMP_EXPERT_LAYOUT_NESTED;
    return space->job->cluster->gpus / tensor % shard == 0 && (!nested || shard % expert == 0);
}

/* Whether parameters are gathered, or cast to compute precision, before use, and so again for
 * backward; without that prefetch saves nothing. */
static bool gathers(const smp_settings *s)
{
    return s->sharding == SMP_SHARDING_FULL &&
           (s->hybrid_shard_degree > 1 || s->precision != s->master);
}

/* Whether a head or mesh digit that changes nothing here is not at its first value. */
static bool is_copy_mesh(const smp_plan_space *space, const smp_point *point,
                         const smp_job *job)
{
    const smp_settings *s = &job->settings;
    /* the two orders are one where either axis has one rank */
    const bool nested = smp_nested(s);
    const uint32_t expert = s->expert_parallel_degree;
    const uint32_t shard = s->hybrid_shard_degree / (nested ? expert : 1);
    return (s->tensor_parallel_degree == 1 && point->digit[SMP_DIM_SEQUENCE] > 0) ||
           (shard == 1 && point->digit[SMP_DIM_ORDER] > 0) ||
           (job->micro_batches == 1 && point->digit[SMP_DIM_ACCUMULATION] > 0) ||
           /* the stack has only one way */
           (uint32_t)s->accumulation != choice_value(space, point, SMP_DIM_ACCUMULATION) ||
           (!gathers(s) && point->digit[SMP_DIM_RESHARD] > 0);
}

/* The same of leaf digits. */
static bool is_copy_leaf(const smp_plan_space *space, const smp_point *point,
                         const smp_job *job)
{
    const smp_settings *s = &job->settings;
    return (!gathers(s) && point->digit[SMP_DIM_PREFETCH] > 0) ||
           (!s->offload && point->digit[SMP_DIM_OFFLOAD_LAYERS] > 0) ||
           /* 0 stands for all of them */
           (s->offload && !space->pinned[SMP_DIM_OFFLOAD_LAYERS] &&
            s->offload_layers >= s->checkpointing_layers) ||
           (s->offload &&
            (!space->pinned[SMP_DIM_OFFLOAD] ||
             point->digit[SMP_DIM_OFFLOAD_LAYERS] + 1U <
                 space->n_choice[SMP_DIM_OFFLOAD_LAYERS]) &&
            /* the last inputs, as many as the horizon, are never stored */
            s->sm_activation_offloading &&
            s->activation_loading_horizon >= smp_offloaded_layers(s));
}

/* The first point with these digits of what decides groups of ranks, and with values of the
 * other dimensions that break no rule unless all do. */
static smp_point easiest(const smp_plan_space *space, const smp_point *groups)
{
    smp_point point = {{0}};
    point.digit[SMP_DIM_CHECKPOINTING] = space->n_choice[SMP_DIM_CHECKPOINTING] - 1;
    point.digit[SMP_DIM_TENSOR] = groups->digit[SMP_DIM_TENSOR];
    point.digit[SMP_DIM_EXPERT] = groups->digit[SMP_DIM_EXPERT];
    point.digit[SMP_DIM_SHARD] = groups->digit[SMP_DIM_SHARD];
    point.digit[SMP_DIM_LAYOUT] = groups->digit[SMP_DIM_LAYOUT];
    point.digit[SMP_DIM_ORDER] = groups->digit[SMP_DIM_ORDER];
    return point;
}

static size_t groups_code(const smp_plan_space *space, const smp_point *point)
{
    static const smp_dim dims[] = {SMP_DIM_TENSOR, SMP_DIM_EXPERT, SMP_DIM_SHARD,
                                   SMP_DIM_LAYOUT, SMP_DIM_ORDER};
    size_t code = 0;
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        code = code * space->n_choice[dims[i]] + point->digit[dims[i]];
    }
    return code;
}

/* Known before any rule is tried: with all experts on each rank there is nothing to lay out. */
static bool lays_out_nothing(const smp_plan_space *space, const smp_point *point)
{
    return choice_value(space, point, SMP_DIM_EXPERT) == 1 &&
           (point->digit[SMP_DIM_LAYOUT] > 0 || point->digit[SMP_DIM_EXCHANGE] > 0 ||
            point->digit[SMP_DIM_ORDER] > 0);
}

/* The resolved job of a point whose leaf digits count as 0. */
static bool try_mesh(const smp_plan_space *space, const smp_point *point, smp_job *job_p)
{
    if (lays_out_nothing(space, point)) {
        return false;
    }
    if (!space->pinned[SMP_DIM_SHARD] && !divides_well(space, point)) {
        return false;
    }
    *job_p = *space->job;
    apply(space, point, &job_p->settings);
    return smp_job_try(job_p);
}

/* Most points break a rule about groups of ranks: found once for each of them. */
static void find_groups(smp_plan_space *space)
{
    smp_point point = {{0}};
    size_t n = 1;
    n *= space->n_choice[SMP_DIM_TENSOR] * (size_t)space->n_choice[SMP_DIM_EXPERT];
    n *= space->n_choice[SMP_DIM_SHARD] * (size_t)space->n_choice[SMP_DIM_LAYOUT];
    n *= space->n_choice[SMP_DIM_ORDER];
    space->groups = SMP_ARENA_ARRAY(space->arena, n, bool);
    do {
        do {
            smp_job job;
            const smp_point tried = easiest(space, &point);
            space->groups[groups_code(space, &point)] = try_mesh(space, &tried, &job);
        } while (smp_plan_space_next(space, &point, SMP_DIM_SHARD, SMP_DIM_RESHARD));
    } while (smp_plan_space_next(space, &point, SMP_DIM_TENSOR, SMP_DIM_SEQUENCE));
}

bool smp_plan_space_mesh(const smp_plan_space *space, const smp_point *point, smp_job *job_p)
{
    smp_point mesh = *point;
    for (int dim = SMP_DIM_LEAF; dim < SMP_DIMS; dim++) {
        mesh.digit[dim] = 0;
    }
    return space->groups[groups_code(space, point)] && try_mesh(space, &mesh, job_p) &&
           !is_copy_mesh(space, &mesh, job_p);
}

bool smp_plan_space_leaf(const smp_plan_space *space, const smp_point *point,
                         const smp_job *mesh, smp_job *job_p)
{
    const bool whole = (mesh->settings.checkpointing == SMP_CHECKPOINTING_FULL ||
                        mesh->settings.checkpointing == SMP_CHECKPOINTING_FIRST) &&
                       smp_runtime_offloads(&mesh->settings);
    const uint64_t tokens = smp_mul(mesh->settings.micro_batch, mesh->batch.seq_len);
    if (space->pinned[SMP_DIM_OFFLOAD_LAYERS] &&
        choice_value(space, point, SMP_DIM_OFFLOAD) > 0 &&
        choice_value(space, point, SMP_DIM_OFFLOAD_LAYERS) >
            mesh->settings.checkpointing_layers) {
        return false; /* rule of offload_layers */
    }
    if ((choice_value(space, point, SMP_DIM_OFFLOAD) > 0 && !whole) ||
        tokens % choice_value(space, point, SMP_DIM_CHUNKS) != 0) {
        return false; /* rules of offload and loss_chunks (src/mesh/rules_step.c) */
    }
    *job_p = *mesh;
    apply_leaf(space, point, &job_p->settings);
    return !is_copy_leaf(space, point, job_p);
}

bool smp_plan_space_least_leaf(const smp_plan_space *space, smp_point *point,
                               const smp_job *mesh, smp_job *job_p)
{
    for (uint32_t h = space->n_choice[SMP_DIM_OFFLOAD]; h-- > 0;) {
        for (uint32_t j = space->n_choice[SMP_DIM_OFFLOAD_LAYERS]; j-- > 0;) {
            point->digit[SMP_DIM_OFFLOAD] = h;
            point->digit[SMP_DIM_OFFLOAD_LAYERS] = j;
            if (smp_plan_space_leaf(space, point, mesh, job_p)) {
                return true;
            }
        }
    }
    return false;
}

/* It depends on checkpointing, on whether there is anything to prefetch, and on whether the
 * chunks of the loss are legal. */
uint64_t smp_plan_space_leaves(const smp_plan_space *space, const smp_point *point,
                               const smp_job *mesh)
{
    const smp_settings *s = &mesh->settings;
    const uint64_t tokens = smp_mul(s->micro_batch, mesh->batch.seq_len);
    const bool prefetches = gathers(s);
    uint64_t *known =
        &space->leaves[2 * (size_t)point->digit[SMP_DIM_CHECKPOINTING] + prefetches];
    if (tokens % choice_value(space, point, SMP_DIM_CHUNKS) != 0) {
        return 0;
    }
    if (*known == 0) {
        smp_point leaf = *point;
        smp_job job;
        *known = 1;
        for (int dim = SMP_DIM_LEAF; dim < SMP_DIMS; dim++) {
            leaf.digit[dim] = 0;
        }
        do {
            *known += smp_plan_space_leaf(space, &leaf, mesh, &job);
        } while (smp_plan_space_next(space, &leaf, SMP_DIM_LEAF, SMP_DIMS));
    }
    return *known - 1;
}

/* Another number of first layers is no other matter, unless so many must be offloaded. */
bool smp_checkpoints_alike(const smp_plan_space *space, uint32_t digit)
{
    const smp_choice *choices = space->choices[SMP_DIM_CHECKPOINTING];
    const bool any = !space->pinned[SMP_DIM_OFFLOAD_LAYERS] ||
                     space->choices[SMP_DIM_OFFLOAD_LAYERS][0].value == 0;
    return digit > 0 && any && choices[digit].checkpointing == choices[digit - 1].checkpointing;
}

uint64_t smp_plan_space_count(const smp_plan_space *space, const smp_point *mesh)
{
    const smp_choice *choices = space->choices[SMP_DIM_CHECKPOINTING];
    uint64_t n = 0;
    smp_point point = *mesh;
    smp_job job;
    bool legal = false;
    for (uint32_t digit = 0; digit < space->n_choice[SMP_DIM_CHECKPOINTING]; digit++) {
        point.digit[SMP_DIM_CHECKPOINTING] = digit;
        if (!smp_checkpoints_alike(space, digit)) {
            legal = smp_plan_space_mesh(space, &point, &job);
        } else if (legal) {
            job.settings.checkpointing_layers = choices[digit].value;
        }
        n += legal ? smp_plan_space_leaves(space, &point, &job) : 0;
    }
    return n;
}

uint64_t smp_plan_space_total(const smp_plan_space *space)
{
    uint64_t n = 0;
    smp_point point = {{0}};
    do {
        n += point.digit[SMP_DIM_CHECKPOINTING] == 0 ? smp_plan_space_count(space, &point) : 0;
    } while (smp_plan_space_next(space, &point, 0, SMP_DIM_LEAF));
    return n;
}

bool smp_is_coarse_mesh(const smp_plan_space *space, const smp_point *mesh)
{
    const smp_choice checkpointing = choice_of(space, mesh, SMP_DIM_CHECKPOINTING);
    return (space->pinned[SMP_DIM_CHECKPOINTING] ||
            checkpointing.checkpointing != SMP_CHECKPOINTING_FIRST ||
            is_quarter(checkpointing.value, space->job->model->n_layer)) &&
           (space->pinned[SMP_DIM_CHUNKS] ||
            is_coarse_chunks(choice_value(space, mesh, SMP_DIM_CHUNKS)));
}

bool smp_is_coarse(const smp_plan_space *space, const smp_point *point)
{
    return smp_is_coarse_mesh(space, point) &&
           (choice_value(space, point, SMP_DIM_OFFLOAD) == 0 ||
            space->pinned[SMP_DIM_OFFLOAD_LAYERS] ||
            choice_value(space, point, SMP_DIM_OFFLOAD_LAYERS) == 0);
}

bool smp_plan_space_job(const smp_plan_space *space, const smp_point *point, smp_job *job_p)
{
    smp_job mesh;
    return smp_plan_space_mesh(space, point, &mesh) &&
           smp_plan_space_leaf(space, point, &mesh, job_p);
}

smp_plan_space *smp_plan_space_create(const smp_job *job, bool fine)
{
    smp_arena *arena = smp_arena_create();
    smp_plan_space *space = SMP_ARENA_NEW(arena, smp_plan_space);
    space->arena = arena;
    space->job = job;
    space->fine = fine;
    add_tensor(space);
    add_expert(space);
    add_micro_batch(space);
    add_checkpointing(space);
    list_by_layer(space);
    add_sharding(space);
    add_offload(space);
    add_offload_layers(space);
    add_chunks(space);
    space->leaves = SMP_ARENA_ARRAY(
        arena, 2 * (size_t)space->n_choice[SMP_DIM_CHECKPOINTING], uint64_t);
    find_groups(space);
    return space;
}
