/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Admissible bounds of time and memory: never above what the simulator says.
 *
 * Time.  The end of a step is a maximum of sums of durations (a longest path), so any path is
 * a bound.  The head bound is the path of forward and backward through the compute stream and
 * what it needs of tensor ranks (head.h): it depends on few settings only.  The mesh bound
 * knows where expert ranks lie, and adds what must come before the first and after the last
 * task of the head: the gather of the root unit, its reductions and the optimizer; and no
 * stream can end before the sum of its own tasks.
 *
 * Memory.  Optimizer state, stacks of saved activations, gathered root unit, and the larger of
 * logits and one block's parameters with their gradients.  What this leaves out only adds:
 * workspaces, staging, padding.
 */
#include "config.h"

#include "plan/plan.h"

#include "base/memo.h"
#include "base/numeric.h"
#include "mesh/runtime.h"
#include "mesh/settings.h"
#include "model/model.h"
#include "plan/head.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What decides how ranks of each kind lie; the layout and the order of ranks being one of two,
 * the order is known by its third axis. */
typedef struct mesh_key {
    uint32_t tensor, shard, expert, order, gpus, nested;
} mesh_key;

/* What the streams of parameters take in one round, and the root unit's part of it. */
typedef struct traffic {
    int64_t gathers, scatters, sums;
    int64_t gathers_on[SMP_LINKS], scatters_on[SMP_LINKS], sums_on[SMP_LINKS];
    /* root unit */
    int64_t first_on[SMP_LINKS], last_on[SMP_LINKS];
    /* of two layers, at most */
    int64_t two_gathers, two_scatters;
} traffic;

/* The parameters of one share of the units: experts where several ranks split them, or all
 * others. */
typedef enum share { DENSE, EXPERTS, SHARES } share;

/* Sums over units: whole elements and elements of one shard; the largest block. */
typedef struct units { uint64_t whole, shard, root, blocks, largest; } units;

typedef struct mesh_part {
    mesh_key key;
    bool has_traffic;
    units units[SHARES];
    uint64_t comm_bytes; /* of communicators */
    smp_placement experts;
    traffic traffic;
    int64_t update_ps;
} mesh_part;

/* Elements of units on one tensor and expert rank: [share][kind of block, last the root]. */
typedef struct sizes_key { uint32_t tensor, expert; } sizes_key;
typedef struct sizes { sizes_key key; uint64_t *elems[SHARES]; } sizes;

struct smp_bounds {
    smp_heads *heads;
    smp_memo *meshes, *sizes;
    smp_arena *arena;
    uint32_t *layers; /* by kind of block; NULL: not counted yet */
};

smp_bounds *smp_bounds_create(void)
{
    smp_bounds *bounds = smp_heap_alloc(1, sizeof(smp_bounds));
    bounds->heads = smp_heads_create();
    bounds->meshes = smp_memo_create(sizeof(mesh_key), sizeof(mesh_part));
    bounds->sizes = smp_memo_create(sizeof(sizes_key), sizeof(sizes));
    bounds->arena = smp_arena_create();
    return bounds;
}

void smp_bounds_destroy(smp_bounds *bounds)
{
    if (bounds) {
        smp_heads_destroy(bounds->heads);
        smp_memo_destroy(bounds->meshes);
        smp_memo_destroy(bounds->sizes);
        smp_arena_destroy(bounds->arena);
        free(bounds);
    }
}

uint32_t smp_expert_shards(const smp_settings *s)
{
    return s->hybrid_shard_degree / (smp_nested(s) ? s->expert_parallel_degree : 1);
}

/* ---------------------------------------------------------------------- units */

static uint32_t shards_of(const smp_settings *s, share of)
{
    return of == EXPERTS ? smp_expert_shards(s) : s->hybrid_shard_degree;
}

static smp_dtype dtype_of(smp_precision precision)
{
    return precision == SMP_PRECISION_FP32 ? SMP_F32
           : precision == SMP_PRECISION_BF16 ? SMP_BF16 : SMP_F16;
}

static uint64_t dtype_bytes(smp_precision precision)
{
    return smp_dtype_bytes(dtype_of(precision));
}

static uint64_t sum_elems(const smp_job *job, const smp_block *block, share of)
{
    const smp_model *model = job->model;
    const smp_settings *s = &job->settings;
    const smp_param *params = block ? block->params : model->root;
    const uint32_t n = block ? block->n_param : model->n_root;
    const bool apart = s->expert_parallel_degree > 1;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        const bool expert = apart && smp_role_is_expert(params[i].role);
        if (expert == (of == EXPERTS)) {
            const bool vocab = params[i].split == SMP_SPLIT_VOCAB;
            const uint64_t local = smp_param_local_elems(
                model, block, &params[i],
                vocab ? smp_vocab_parts(s) : s->tensor_parallel_degree);
            sum = smp_add(sum, expert ? local / s->expert_parallel_degree : local);
        }
    }
    return sum;
}

static const sizes *find_sizes(smp_bounds *bounds, const smp_job *job)
{
    const smp_model *model = job->model;
    const sizes_key key = {job->settings.tensor_parallel_degree,
                           job->settings.expert_parallel_degree};
    bool is_new = false;
    sizes *at = smp_memo_at(bounds->sizes, &key, &is_new);
    for (int of = 0; is_new && of < SHARES; of++) {
        at->elems[of] = SMP_ARENA_ARRAY(bounds->arena, model->n_kind + 1, uint64_t);
        for (uint32_t kind = 0; kind <= model->n_kind; kind++) {
            const smp_block *block = kind < model->n_kind ? &model->kinds[kind] : NULL;
            at->elems[of][kind] = sum_elems(job, block, (share)of);
        }
    }
    if (!bounds->layers) {
        bounds->layers = SMP_ARENA_ARRAY(bounds->arena, model->n_kind, uint32_t);
        for (uint32_t i = 0; i < model->n_layer; i++) {
            bounds->layers[model->kind_of_layer[i]]++;
        }
    }
    return at;
}

static units count_units(const smp_bounds *bounds, const sizes *at, const smp_job *job,
                         share of)
{
    const uint32_t degree = shards_of(&job->settings, of);
    const uint32_t n_kind = job->model->n_kind;
    units u = {.root = at->elems[of][n_kind]};
    u.shard = smp_ceil_div(u.root, degree);
    for (uint32_t kind = 0; kind < n_kind; kind++) {
        const uint64_t elems = at->elems[of][kind];
        const uint64_t layers = bounds->layers[kind];
        u.blocks = smp_add(u.blocks, smp_mul(layers, elems));
        u.shard = smp_add(u.shard, smp_mul(layers, smp_ceil_div(elems, degree)));
        u.largest = elems > u.largest ? elems : u.largest;
    }
    u.whole = smp_add(u.root, u.blocks);
    return u;
}

/* Whether gathers have a communicator of their own. */
static bool gathers_shards(const smp_settings *s)
{
    return s->sharding == SMP_SHARDING_FULL && s->hybrid_shard_degree > 1;
}

/* NCCL's buffers of the communicators of rank 0. */
static uint64_t communicator_bytes(const smp_job *job, const smp_mesh *mesh)
{
    const struct { smp_group group; bool used; } comms[] = {
        /* gathers, where they have a communicator of their own */
        {SMP_GROUP_SHARD, gathers_shards(&job->settings) &&
                              !smp_runtime_of(job->settings.stack)->one_comm},
        {SMP_GROUP_SHARD, true}, /* reductions */
        {SMP_GROUP_DENSE_REPLICA, true},
        {SMP_GROUP_TENSOR, true},
        {SMP_GROUP_WORLD, true},
        {SMP_GROUP_EXPERT, true},
    };
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof comms / sizeof comms[0]; i++) {
        smp_comm comm = {.group = comms[i].group,
                         .ranks = smp_mesh_group_size(mesh, comms[i].group)};
        if (comms[i].used && comm.ranks > 1) {
            smp_mesh_placement(mesh, comm.group, 0, &comm.placement);
            sum = smp_add(sum, smp_cost_comm_bytes(job->cluster, job->profile, &comm));
        }
    }
    return sum;
}

/* All that does not depend on heads and leaves, once for each mesh. */
static smp_status find_mesh(smp_bounds *bounds, const smp_job *job, smp_errors *errors,
                            mesh_part **part_p)
{
    const smp_settings *s = &job->settings;
    const mesh_key key = {s->tensor_parallel_degree, s->hybrid_shard_degree,
                          s->expert_parallel_degree, (uint32_t)s->rank_order[2], job->world,
                          smp_nested(s)};
    bool is_new = false;
    mesh_part *part = smp_memo_at(bounds->meshes, &key, &is_new);
    *part_p = part;
    if (!is_new) {
        return SMP_OK;
    }
    smp_mesh *mesh = NULL;
    const smp_status st = smp_mesh_create(job, errors, &mesh);
    if (st != SMP_OK) {
        return st;
    }
    const sizes *at = find_sizes(bounds, job);
    for (int of = 0; of < SHARES; of++) {
        part->units[of] = count_units(bounds, at, job, (share)of);
    }
    part->comm_bytes = communicator_bytes(job, mesh);
    smp_mesh_placement(mesh, SMP_GROUP_EXPERT, 0, &part->experts);
    smp_mesh_destroy(mesh);
    return SMP_OK;
}

/* ----------------------------------------------------------------------- time */

static int64_t collective_ps(const smp_job *job, smp_op op, const smp_placement *placement,
                             uint64_t bytes)
{
    if (placement->ranks <= 1 || bytes == 0) {
        return 0;
    }
    smp_cost cost;
    smp_cost_collective(job->cluster, job->profile, op, placement, bytes, &cost);
    return smp_ps_from_s(smp_cost_seconds(&cost));
}

/* AdamW in fp32 reads parameter, gradient, m and v and writes all but the gradient. */
static int64_t update_ps(const smp_job *job, uint64_t elems)
{
    enum { BYTES = 4 * 4 + 3 * 4 };
    if (job->settings.optimizer == SMP_OPTIMIZER_SGD ||
        job->settings.master != SMP_PRECISION_FP32) {
        return 0;
    }
    const double rate = job->profile->memory_Bps.value * job->profile->memory_efficiency.value;
    return rate > 0 ? smp_ps_from_s((double)elems * BYTES / rate) : 0;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void add_traffic(const smp_bounds *bounds, const sizes *at, const smp_job *job,
                        const smp_mesh *mesh, share of, traffic *sum)
{
    const smp_settings *s = &job->settings;
    const uint32_t degree = shards_of(s, of);
    const uint64_t compute = dtype_bytes(s->precision);
    const uint64_t reduce = dtype_bytes(s->reduce_dtype);
    const uint32_t n_kind = job->model->n_kind;
    int64_t two_gathers = 0;
    int64_t two_scatters = 0;
    smp_placement shard;
    smp_placement replica;
    smp_mesh_placement(mesh, of == EXPERTS ? SMP_GROUP_EXPERT_SHARD : SMP_GROUP_SHARD, 0,
                       &shard);
    smp_mesh_placement(mesh, of == EXPERTS ? SMP_GROUP_REPLICA : SMP_GROUP_DENSE_REPLICA, 0,
                       &replica);
    for (uint32_t kind = 0; kind <= n_kind; kind++) {
        const uint64_t n = at->elems[of][kind];
        const int64_t layers = kind < n_kind ? (int64_t)bounds->layers[kind] : 0;
        const int64_t gather = collective_ps(job, SMP_OP_ALL_GATHER, &shard, n * compute);
        const int64_t scatter = collective_ps(job, SMP_OP_REDUCE_SCATTER, &shard, n * reduce);
        const int64_t sums = collective_ps(job, SMP_OP_ALL_REDUCE, &replica,
                                           smp_ceil_div(n, degree) * reduce);
        sum->gathers += layers * gather;
        sum->scatters += layers * scatter;
        sum->sums += layers * sums;
        sum->gathers_on[shard.nodes > 1] += layers * gather;
        sum->scatters_on[shard.nodes > 1] += layers * scatter;
        sum->sums_on[replica.nodes > 1] += layers * sums;
        two_gathers = larger(two_gathers, 2 * gather);
        two_scatters = larger(two_scatters, 2 * scatter);
        if (kind == n_kind) {
            sum->first_on[shard.nodes > 1] += gather;
            sum->last_on[shard.nodes > 1] += scatter;
            sum->last_on[replica.nodes > 1] += sums;
        }
    }
    sum->two_gathers += two_gathers;
    sum->two_scatters += two_scatters;
}

/* Measures the traffic of a mesh when it is first asked for. */
static smp_status need_traffic(smp_bounds *bounds, const smp_job *job, smp_errors *errors,
                               mesh_part *part)
{
    smp_mesh *mesh = NULL;
    if (part->has_traffic) {
        return SMP_OK;
    }
    const smp_status st = smp_mesh_create(job, errors, &mesh);
    if (st != SMP_OK) {
        return st;
    }
    uint64_t updated = 0;
    for (int of = 0; of < SHARES; of++) {
        add_traffic(bounds, find_sizes(bounds, job), job, mesh, (share)of, &part->traffic);
        updated = smp_add(updated, part->units[of].shard);
    }
    part->update_ps = update_ps(job, updated);
    part->has_traffic = true;
    smp_mesh_destroy(mesh);
    return SMP_OK;
}

/* What collectives beside kernels cost where the profile says so. */
typedef struct beside {
    double kernel, collective; /* time beside the other over time alone, at least */
    bool shared;               /* collectives share a link: its work adds up */
} beside;

static beside beside_of(const smp_profile *profile)
{
    static const smp_overlap_kind kernels[] = {SMP_OVERLAP_MATRIX, SMP_OVERLAP_MEMORY};
    static const smp_overlap_kind links[] = {SMP_OVERLAP_IN_NODE, SMP_OVERLAP_BETWEEN};
    const double one = 65536;
    smp_overlap overlap;
    beside out = {1, 1, false};
    if (!smp_cost_overlap(profile, &overlap)) {
        return out;
    }
    out = (beside){2, 2, true};
    for (int k = 0; k < 2; k++) {
        out.shared = out.shared && overlap.slow_q16[links[k]][links[k]] >= 2 * one;
        for (int l = 0; l < 2; l++) {
            const double slow = overlap.slow_q16[kernels[k]][links[l]] / one;
            const double slowed = overlap.slow_q16[links[l]][kernels[k]] / one;
            out.kernel = slow < out.kernel ? slow : out.kernel;
            out.collective = slowed < out.collective ? slowed : out.collective;
        }
    }
    return out;
}

/* By how much collectives of parameters delay the path that they run beside, at least.  A link
 * does 1 / c of its work a second beside a kernel, however many collectives share it, and the
 * kernel then does 1 / k, or 1 / k^2 with both links busy: the least delay has both busy as
 * long as there is work for both.  Only beside collectives of the path on the other link is it
 * free; beside those on the same link, and where nothing of the path runs, a second of work
 * takes a second. */
static int64_t delay_ps(const beside *b, const int64_t work_ps[SMP_LINKS],
                        const int64_t free_ps[SMP_LINKS])
{
    double left[SMP_LINKS];
    for (int l = 0; l < SMP_LINKS; l++) {
        left[l] = work_ps[l] > free_ps[l] ? (double)(work_ps[l] - free_ps[l]) : 0;
    }
    const bool in_node = left[SMP_LINK_IN_NODE] < left[SMP_LINK_BETWEEN];
    const double both = in_node ? left[SMP_LINK_IN_NODE] : left[SMP_LINK_BETWEEN];
    const double most = in_node ? left[SMP_LINK_BETWEEN] : left[SMP_LINK_IN_NODE];
    const double one = 1 - 1 / b->kernel;
    const double two = 1 - 1 / (b->kernel * b->kernel);
    /* rounding of rates and of durations: a millionth less */
    return (int64_t)(b->collective * (two * both + one * (most - both)) * (1 - 1e-6));
}

/* Least time in which kernels and a link get through their work: beside each other the first
 * does 1 / k and the second 1 / c of it a second, so that each second both are busy saves
 * 1 / k + 1 / c - 1; at most, all kernels run beside the link or all of the link's work beside
 * kernels. */
static int64_t both_ps(const beside *b, int64_t kernels_ps, int64_t link_ps)
{
    const double k = b->kernel * (double)kernels_ps;
    const double c = b->collective * (double)link_ps;
    const double saved = fmax(0, 1 / b->kernel + 1 / b->collective - 1);
    /* rounding, as in delay_ps */
    return (int64_t)(((double)(kernels_ps + link_ps) - fmin(k, c) * saved) * (1 - 1e-6));
}

/* Least time of a stretch of the path with `work` of parameters to do beside it, and `ends` on
 * links and `kernels` of its own before or after it. */
static int64_t stretch_ps(const beside *b, const smp_stretch *path,
                          const int64_t work_ps[SMP_LINKS], const int64_t ends_ps[SMP_LINKS],
                          int64_t kernels_ps)
{
    int64_t free_ps[SMP_LINKS];
    int64_t sum_ps = path->path_ps + kernels_ps;
    int64_t most_ps = 0;
    for (int l = 0; l < SMP_LINKS; l++) {
        const int other = SMP_LINKS - 1 - l;
        const int64_t link_ps = work_ps[l] + path->inside_ps[l] + ends_ps[l];
        free_ps[l] = path->link_ps[other] + ends_ps[other];
        sum_ps += ends_ps[l];
        most_ps = larger(most_ps, both_ps(b, path->kernel_ps, link_ps) + kernels_ps);
    }
    return b->shared ? larger(sum_ps + delay_ps(b, work_ps, free_ps), most_ps) : sum_ps;
}

/* How often the work of one round is done in a step. */
typedef struct rounds { int64_t gathers, reductions; } rounds;

static rounds rounds_of(const smp_job *job)
{
    const smp_settings *s = &job->settings;
    const int64_t steps = (int64_t)job->micro_batches;
    rounds r = {.reductions = s->accumulation == SMP_ACCUMULATION_EVERY ? steps : 1};
    /* what is reduced once may stay gathered over the step */
    r.gathers = s->reshard_after_forward ? 2 * steps : r.reductions;
    return r;
}

/* All of the step as one stretch. */
static int64_t whole_ps(const smp_job *job, const beside *b, const smp_chain *chain,
                        const mesh_part *part)
{
    const rounds r = rounds_of(job);
    const traffic *sum = &part->traffic;
    int64_t work_ps[SMP_LINKS];
    int64_t ends_ps[SMP_LINKS];
    for (int l = 0; l < SMP_LINKS; l++) {
        work_ps[l] = sum->gathers_on[l] * r.gathers +
                     (sum->scatters_on[l] + sum->sums_on[l]) * r.reductions;
        ends_ps[l] = sum->first_on[l] + sum->last_on[l];
    }
    const int64_t streams = larger(sum->gathers * r.gathers,
                                   larger(sum->scatters, sum->sums) * r.reductions);
    return larger(stretch_ps(b, &chain->whole, work_ps, ends_ps, part->update_ps), streams);
}

/* Forward and backward of each micro-batch one after the other.  What is gathered for forward
 * must be there before backward begins, and what is gathered for backward and reduced comes
 * after that, but for two layers: rings of gathered parameters and of gradients have two
 * slots, so that no stream is further ahead or behind.  The last micro-batch ends when
 * everything is reduced. */
static int64_t stretches_ps(const smp_job *job, const beside *b, const smp_chain *chain,
                            const mesh_part *part)
{
    const bool again = job->settings.reshard_after_forward;
    const bool every = job->settings.accumulation == SMP_ACCUMULATION_EVERY;
    const traffic *sum = &part->traffic;
    const int64_t none[SMP_LINKS] = {0};
    int64_t total = 0;
    for (int n = 0; n < 3; n++) {
        const bool is_first = n == 0 || (n == 2 && job->micro_batches == 1);
        const int64_t times = n != 1 ? 1 : (int64_t)job->micro_batches - 2;
        int64_t up[SMP_LINKS];
        int64_t down[SMP_LINKS];
        if (times <= 0 || (n == 0 && job->micro_batches == 1)) {
            continue;
        }
        for (int l = 0; l < SMP_LINKS; l++) {
            const bool gathers = is_first || again || every;
            const int64_t ahead = is_first ? 0 : sum->two_gathers;
            up[l] = gathers ? larger(0, sum->gathers_on[l] - ahead) : 0;
            down[l] = again ? larger(0, sum->gathers_on[l] - sum->two_gathers) : 0;
            if (n == 2) {
                down[l] += sum->scatters_on[l] + sum->sums_on[l];
            } else if (every) {
                down[l] += larger(0, sum->scatters_on[l] - sum->two_scatters);
            }
        }
        total += times * (stretch_ps(b, &chain->part[n][0], up,
                                     is_first ? sum->first_on : none, 0) +
                          stretch_ps(b, &chain->part[n][1], down,
                                     n == 2 ? sum->last_on : none,
                                     n == 2 ? part->update_ps : 0));
    }
    return total;
}

/* Bound of everything that parameters need: see the head of this file. */
static int64_t mesh_time(const smp_job *job, const smp_chain *chain, const mesh_part *part)
{
    const beside b = beside_of(job->profile);
    return larger(whole_ps(job, &b, chain, part), stretches_ps(job, &b, chain, part));
}

smp_status smp_bound_time(smp_bounds *bounds, const smp_job *job, bool mesh, smp_errors *errors,
                          int64_t *bound_ps_p)
{
    const smp_settings *s = &job->settings;
    mesh_part *part = NULL;
    smp_chain chain;
    smp_status st = mesh ? find_mesh(bounds, job, errors, &part) : SMP_OK;
    if (st == SMP_OK) {
        st = smp_head_chain(bounds->heads, job, mesh ? &part->experts : NULL, errors, &chain);
    }
    if (st != SMP_OK) {
        return st;
    }
    *bound_ps_p = chain.whole.path_ps;
    if (mesh && s->sharding == SMP_SHARDING_FULL) {
        st = need_traffic(bounds, job, errors, part);
        *bound_ps_p = st == SMP_OK ? mesh_time(job, &chain, part) : 0;
    }
    return st;
}

/* --------------------------------------------------------------------- memory */

/* What the settings make of the units of parameters (src/step/lower_units.c). */
typedef struct layout {
    bool full, sharded, casts; /* sharding=full; by more than one rank; to compute precision */
    bool gathers, keeps;       /* before use; from forward to backward */
    bool whole_gradients;      /* the update reads gradients where backward wrote them */
    bool once;                 /* reduced once a step */
    uint64_t compute, master, reduce, moments; /* bytes of an element */
} layout;

static layout layout_of(const smp_job *job, share of)
{
    const smp_settings *s = &job->settings;
    layout l = {
        .full = s->sharding == SMP_SHARDING_FULL,
        .sharded = s->sharding != SMP_SHARDING_NONE && shards_of(s, of) > 1,
        .casts = s->precision != s->master,
        .once = job->micro_batches == 1 || s->accumulation == SMP_ACCUMULATION_LAST,
        .compute = dtype_bytes(s->precision),
        .master = dtype_bytes(s->master),
        .reduce = dtype_bytes(s->reduce_dtype),
    };
    l.moments = l.master * (s->optimizer == SMP_OPTIMIZER_SGD ? 1 : 2);
    l.gathers = l.full && (l.sharded || l.casts);
    l.keeps = l.gathers && !s->reshard_after_forward;
    l.whole_gradients = !l.full || (!l.sharded && l.reduce == l.master);
    return l;
}

/* Parameters, gradients and optimizer state that stay over the step. */
static uint64_t state_bytes(const layout *l, const units *u)
{
    const uint64_t shard = l->sharded ? u->shard : u->whole;
    uint64_t sum = smp_mul(shard, l->moments);
    if (!l->full) {
        sum = smp_add(sum, smp_mul(u->whole, l->compute + l->reduce));
        sum = smp_add(sum, l->casts ? smp_mul(shard, l->master) : 0);
        return smp_add(sum, l->sharded && !l->once ? smp_mul(shard, l->master) : 0);
    }
    sum = smp_add(sum, smp_mul(shard, l->master));
    return smp_add(sum, l->whole_gradients ? smp_mul(u->whole, l->reduce)
                                           : smp_mul(shard, l->master));
}

/* What lies beside all saved activations when backward begins: gathered units and whole
 * gradients; *ring_p: besides, the ring slots of blocks. */
static uint64_t beside_bytes(const smp_job *job, const layout *l, const units *u,
                             uint64_t *ring_p)
{
    uint64_t sum = 0;
    uint64_t ring = 0;
    if (l->keeps) {
        sum = smp_mul(u->whole, l->compute);
    } else if (l->gathers) {
        sum = smp_mul(u->root, l->compute);
        ring = smp_mul(u->largest, l->compute);
    }
    if (!l->whole_gradients) {
        const bool layers = l->once && job->micro_batches > 1;
        sum = smp_add(sum, smp_mul(layers ? u->whole : u->root, l->reduce));
        ring = smp_add(ring, layers ? 0 : smp_mul(u->largest, l->reduce));
    }
    *ring_p = ring;
    return sum;
}

static uint64_t logits_bytes(const smp_job *job)
{
    const smp_settings *s = &job->settings;
    const uint64_t parts = smp_vocab_parts(s), apart = s->sequence_parallel && parts == 1
                                                          ? s->tensor_parallel_degree : 1;
    const uint64_t tokens =
        smp_mul(s->micro_batch, job->batch.seq_len) / s->loss_chunks / apart;
    const uint64_t vocab = smp_local_vocab(job->model->vocab, (uint32_t)parts);
    return smp_mul(smp_mul(tokens, vocab), dtype_bytes(s->precision));
}

/* Saved activations; offloaded inputs are at least as many as the horizon. */
static uint64_t saved_bytes(const smp_job *job, uint64_t stacks, uint64_t full_layer)
{
    const smp_settings *s = &job->settings;
    const bool whole = s->checkpointing == SMP_CHECKPOINTING_FULL ||
                       s->checkpointing == SMP_CHECKPOINTING_FIRST;
    if (!s->offload || !whole) {
        return stacks;
    }
    const uint32_t kept = s->sm_activation_offloading ? s->activation_loading_horizon : 1;
    const uint32_t layers = smp_offloaded_layers(s);
    const uint64_t gone = smp_mul(full_layer, layers > kept ? layers - kept : 0);
    return stacks > gone ? stacks - gone : 0;
}

smp_status smp_bound_memory(smp_bounds *bounds, const smp_job *job, bool saved,
                            smp_errors *errors, uint64_t *bound_bytes_p)
{
    mesh_part *part = NULL;
    smp_status st = find_mesh(bounds, job, errors, &part);
    if (st != SMP_OK) {
        return st;
    }
    uint64_t sum = smp_add(part->comm_bytes, smp_cost_context_bytes(job->profile));
    uint64_t rings = 0;
    for (int of = 0; of < SHARES; of++) {
        const layout l = layout_of(job, (share)of);
        const units *u = &part->units[of];
        uint64_t ring = 0;
        sum = smp_add(sum, state_bytes(&l, u));
        sum = smp_add(sum, beside_bytes(job, &l, u, &ring));
        rings = smp_add(rings, ring);
    }
    if (saved) {
        uint64_t stacks = 0;
        uint64_t full_layer = 0;
        const uint64_t logits = logits_bytes(job);
        st = smp_head_stacks(bounds->heads, job, errors, &stacks, &full_layer);
        sum = smp_add(sum, saved_bytes(job, stacks, full_layer));
        rings = logits > rings ? logits : rings;
    }
    *bound_bytes_p = smp_add(sum, rings);
    return st;
}

smp_status smp_bound_least_memory(smp_bounds *bounds, const smp_plan_space *space,
                                  const smp_point *mesh, const smp_job *mesh_job,
                                  smp_errors *errors, uint64_t *bytes_p)
{
    smp_point leaf = *mesh;
    smp_job job;
    *bytes_p = UINT64_MAX;
    return smp_plan_space_least_leaf(space, &leaf, mesh_job, &job)
               ? smp_bound_memory(bounds, &job, true, errors, bytes_p)
               : SMP_OK;
}
