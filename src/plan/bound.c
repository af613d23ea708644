/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Admissible bounds of time and memory: never above what the simulator says.
 *
 * Time.  The end of a step is a maximum of sums of durations (a longest path), so setting
 * durations to zero never makes it later.  The head bound keeps the compute and tensor
 * streams of forward and backward and drops everything else: it then depends on few settings
 * only.  It is measured on the smallest program that shows the pattern, two layers of each
 * treatment and two micro-batches, and extended by the increments that one more layer and
 * one more micro-batch bring.
 *     T(k, r, m) >= t + (k - k0) dk + (r - r0) dr, each of the three affine in m
 * with k layers checkpointed and r not.  The mesh bound adds what must come before the first
 * and after the last task of the head: the gather of the root unit, its reductions and the
 * optimizer; and no stream can end before the sum of its own tasks.
 *
 * Memory.  Optimizer state, stacks of saved activations (measured on the same small
 * programs), gathered root unit, and the larger of logits and one block's parameters with
 * their gradients.  What this leaves out only adds: workspaces, staging, padding,
 * communicators.
 */
#include "config.h"

#include "plan/plan.h"

#include "base/numeric.h"
#include "model/model.h"
#include "sim/sim.h"

#include <stdlib.h>
#include <string.h>

/* What one small program shows. */
typedef struct shown { int64_t time_ps; uint64_t stack_bytes; } shown;

/* One entry of the memo: what decides the head, then the measurements. */
typedef struct head_key {
    uint32_t tensor, expert, micro_batch, layers_full, layers_rest, micro_batches;
    bool sequence_parallel, exchange;
    /* decide where backward adds to gradients and where it writes */
    bool sharded, experts_sharded;
    smp_checkpointing checkpointing;
    smp_accumulation accumulation;
    uint32_t gpus; /* 0: measured on few nodes, the same for all counts */
} head_key;

typedef struct head_entry {
    head_key key;
    /* [micro-batches: fewest, one more][base, one more checkpointed, one more not] */
    shown at[2][3];
} head_entry;

/* Bytes of communicators by what decides them, sharding being fixed; the order of ranks is
 * known by its third axis. */
typedef struct comm_key { uint32_t tensor, shard, expert, nested, order, gpus; } comm_key;
typedef struct comm_entry { comm_key key; uint64_t bytes; } comm_entry;

struct smp_bounds {
    head_entry *entries;
    size_t n, room;
    comm_entry *comms;
    size_t n_comm, comm_room;
};

smp_bounds *smp_bounds_create(void)
{
    return smp_heap_alloc(1, sizeof(smp_bounds));
}

void smp_bounds_destroy(smp_bounds *bounds)
{
    if (bounds) {
        free(bounds->entries);
        free(bounds->comms);
        free(bounds);
    }
}

/* ------------------------------------------------------------ small programs */

/* The sum of the stacks of saved activations of a program. */
static uint64_t stack_bytes(const smp_program *program)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < program->n_buffer; i++) {
        const smp_buffer *b = &program->buffers[i];
        if (b->space == SMP_SPACE_DEVICE && b->kind == SMP_KIND_ACTIVATION &&
            b->index == SMP_INDEX_LAYER && b->slots == 0) {
            sum = smp_add(sum, smp_mul(b->entries, b->bytes));
        }
    }
    return sum;
}

/* Only what the head decides: products, norms and the like of the compute stream and the
 * collectives they wait for; changes of dtype and copies depend on sharding. */
static bool belongs_to_head(const smp_task *task)
{
    return (task->stream == SMP_STREAM_COMPUTE || task->stream == SMP_STREAM_TENSOR) &&
           task->phase != SMP_PHASE_UPDATE && task->op != SMP_OP_CAST &&
           task->op != SMP_OP_FILL && task->op != SMP_OP_ACCUMULATE &&
           task->op != SMP_OP_STORE && task->op != SMP_OP_LOAD;
}

static smp_status run_head(const smp_job *job, const smp_step *step, smp_errors *errors,
                           int64_t *end_ps_p)
{
    smp_arena *arena = smp_arena_create();
    int64_t **duration = SMP_ARENA_ARRAY(arena, step->n_program, int64_t *);
    for (uint32_t c = 0; c < step->n_program; c++) {
        const smp_program *program = step->programs[c];
        duration[c] = SMP_ARENA_ARRAY(arena, program->n_task, int64_t);
        for (uint32_t t = 0; t < program->n_task; t++) {
            if (belongs_to_head(&program->tasks[t])) {
                smp_cost cost;
                smp_cost_task(job->cluster, job->profile, program, &program->tasks[t], &cost);
                duration[c][t] = smp_ps_from_s(smp_cost_seconds(&cost));
            }
        }
    }
    uint32_t slowest = 0;
    const smp_status st = smp_engine_run(step, (int64_t *const *)duration, NULL, NULL, errors,
                                         end_ps_p, &slowest);
    smp_arena_destroy(arena);
    return st;
}

/* Checkpointing that keeps nothing of a layer but its input. */
static bool is_whole(smp_checkpointing checkpointing)
{
    return checkpointing == SMP_CHECKPOINTING_FULL || checkpointing == SMP_CHECKPOINTING_FIRST;
}

/* The job cut down to `full` checkpointed and `rest` other layers and n micro-batches. */
static smp_status show(const smp_job *job, uint32_t full, uint32_t rest, uint64_t n,
                       smp_errors *errors, shown *shown_p)
{
    smp_model model = *job->model;
    model.n_layer = full + rest;
    smp_job small = *job;
    small.model = &model;
    small.settings.checkpointing_layers =
        is_whole(job->settings.checkpointing) ? full
        : job->settings.checkpointing == SMP_CHECKPOINTING_NONE ? 0 : rest;
    small.micro_batches = n;
    small.batch.global_batch = n * job->settings.micro_batch * job->data_ranks;
    smp_step *step = NULL;
    smp_status st = smp_step_lower_apart(&small, errors, &step);
    if (st != SMP_OK) {
        return st;
    }
    shown_p->stack_bytes = stack_bytes(step->programs[0]);
    st = run_head(&small, step, errors, &shown_p->time_ps);
    smp_step_destroy(step);
    return st;
}

/* Layers before the first from which on all are of one kind: leading dense layers. */
static uint32_t leading(const smp_model *model)
{
    uint32_t n = model->n_layer - 1;
    while (n > 0 && model->kind_of_layer[n - 1] == model->kind_of_layer[model->n_layer - 1]) {
        n--;
    }
    return n;
}

/* Of `layers` from layer `first` on, how many the small program has: the leading ones and two
 * of those that are alike. */
static uint32_t cut(const smp_model *model, uint32_t first, uint32_t layers)
{
    const uint32_t lead = leading(model);
    const uint32_t other = lead > first ? lead - first : 0;
    return layers <= other + 3 ? layers : other + 2;
}

/* Layers of a job whose whole forward is repeated in backward, and the others. */
static void split_layers(const smp_job *job, uint32_t *full_p, uint32_t *rest_p)
{
    *full_p = is_whole(job->settings.checkpointing) ? job->settings.checkpointing_layers : 0;
    *rest_p = job->model->n_layer - *full_p;
}

/* GPUs on which the head behaves as on all: the tensor group lies alike when its ranks are
 * adjacent, and parameters are sharded where they are.  0 where that is not so. */
static uint32_t few_nodes(const smp_job *job)
{
    const smp_settings *s = &job->settings;
    const uint32_t shards = s->hybrid_shard_degree > 1 ? 2 : 1;
    const uint64_t apart = smp_mul(s->tensor_parallel_degree, s->expert_parallel_degree);
    const uint64_t gpus = smp_round_up(smp_mul(apart, shards), job->cluster->gpus_per_node);
    const bool alike = s->rank_order[0] == SMP_AXIS_TENSOR && gpus < job->world &&
                       gpus % apart == 0 && s->context_parallel_degree == 1;
    return alike ? (uint32_t)gpus : 0;
}

static bool is_nested(const smp_settings *s)
{
    return s->expert_layout == SMP_EXPERT_LAYOUT_NESTED;
}

/* Ranks over which the experts of an expert rank are sharded. */
static uint32_t expert_shards(const smp_settings *s)
{
    return s->hybrid_shard_degree / (is_nested(s) ? s->expert_parallel_degree : 1);
}

static smp_job on_few_nodes(const smp_job *job, smp_arena *arena)
{
    const uint32_t gpus = few_nodes(job);
    const uint32_t tensor = job->settings.tensor_parallel_degree;
    smp_job out = *job;
    if (gpus == 0) {
        return out;
    }
    out.cluster = smp_cluster_resized(arena, job->cluster, gpus);
    out.world = gpus;
    out.data_ranks = gpus / tensor;
    const smp_settings *s = &job->settings;
    const uint32_t rest = is_nested(s) ? out.data_ranks
                                       : out.data_ranks / s->expert_parallel_degree;
    out.settings.hybrid_shard_degree = s->hybrid_shard_degree == 1 ? 1
                                       : expert_shards(s) > 1      ? rest
                                       : is_nested(s) ? s->expert_parallel_degree : rest;
    out.replicas = rest / out.settings.hybrid_shard_degree;
    return out;
}

static smp_status measure(const smp_job *job, const head_key *key, smp_errors *errors,
                          head_entry *entry)
{
    entry->key = *key;
    smp_arena *arena = smp_arena_create();
    smp_job few = on_few_nodes(job, arena);
    few.settings.offload = false;
    few.settings.loss_chunks = 1; /* chunks only add launches */
    uint32_t full = 0;
    uint32_t rest = 0;
    split_layers(job, &full, &rest);
    const uint32_t more[3][2] = {{0, 0}, {key->layers_full < full, 0},
                                 {0, key->layers_rest < rest}};
    smp_status st = SMP_OK;
    for (uint32_t m = 0; m < 2 && st == SMP_OK; m++) {
        for (uint32_t i = 0; i < 3 && st == SMP_OK; i++) {
            const bool same = i > 0 && more[i][0] == 0 && more[i][1] == 0;
            if (m == 1 && job->micro_batches <= key->micro_batches) {
                entry->at[1][i] = entry->at[0][i];
            } else if (same) {
                entry->at[m][i] = entry->at[m][0];
            } else {
                st = show(&few, key->layers_full + more[i][0], key->layers_rest + more[i][1],
                          key->micro_batches + m, errors, &entry->at[m][i]);
            }
        }
    }
    smp_arena_destroy(arena);
    return st;
}

/* Keys are compared as bytes, so padding must be zero. */
static void fill_key(const smp_job *job, head_key *key)
{
    uint32_t full = 0;
    uint32_t rest = 0;
    split_layers(job, &full, &rest);
    memset(key, 0, sizeof *key);
    key->tensor = job->settings.tensor_parallel_degree;
    key->micro_batch = job->settings.micro_batch;
    key->layers_full = cut(job->model, 0, full);
    key->layers_rest = cut(job->model, full, rest);
    key->micro_batches = job->micro_batches > 2 ? 2 : (uint32_t)job->micro_batches;
    key->sequence_parallel = job->settings.sequence_parallel;
    key->exchange = job->settings.moe_all_to_all_dispatcher;
    key->expert = job->settings.expert_parallel_degree;
    key->sharded = job->settings.hybrid_shard_degree > 1;
    key->experts_sharded = expert_shards(&job->settings) > 1;
    key->checkpointing = job->settings.checkpointing;
    key->accumulation = job->settings.accumulation;
    key->gpus = few_nodes(job) ? 0 : job->world;
}

static smp_status find_head(smp_bounds *bounds, const smp_job *job, smp_errors *errors,
                            const head_entry **entry_p)
{
    head_key key;
    fill_key(job, &key);
    for (size_t i = 0; i < bounds->n; i++) {
        if (memcmp(&bounds->entries[i].key, &key, sizeof key) == 0) {
            *entry_p = &bounds->entries[i];
            return SMP_OK;
        }
    }
    SMP_GROW(bounds->entries, bounds->n, bounds->room);
    head_entry *entry = &bounds->entries[bounds->n];
    const smp_status st = measure(job, &key, errors, entry);
    if (st == SMP_OK) {
        bounds->n++;
        *entry_p = entry;
    }
    return st;
}

static int64_t extend_layers(const shown at[3], uint32_t more_full, uint32_t more_rest)
{
    return at[0].time_ps + (at[1].time_ps - at[0].time_ps) * (int64_t)more_full +
           (at[2].time_ps - at[0].time_ps) * (int64_t)more_rest;
}

static int64_t head_time(const smp_job *job, const head_entry *entry)
{
    uint32_t full = 0;
    uint32_t rest = 0;
    split_layers(job, &full, &rest);
    const uint32_t more_full = full - entry->key.layers_full;
    const uint32_t more_rest = rest - entry->key.layers_rest;
    const int64_t fewest = extend_layers(entry->at[0], more_full, more_rest);
    const int64_t next = extend_layers(entry->at[1], more_full, more_rest);
    const uint64_t more = job->micro_batches - entry->key.micro_batches;
    return fewest + (next - fewest) * (int64_t)more;
}

/* -------------------------------------------------------------- closed forms */

/* The parameters of one share of the units: experts where several ranks split them, or all
 * others. */
typedef enum share { DENSE, EXPERTS, SHARES } share;

static uint64_t unit_elems(const smp_job *job, const smp_block *block, share of)
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
            const uint64_t local =
                smp_param_local_elems(model, block, &params[i], s->tensor_parallel_degree);
            sum = smp_add(sum, expert ? local / s->expert_parallel_degree : local);
        }
    }
    return sum;
}

static uint32_t shards_of(const smp_settings *s, share of)
{
    return of == EXPERTS ? expert_shards(s) : s->hybrid_shard_degree;
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

/* Sums over units: whole elements and elements of one shard; the largest block. */
typedef struct units { uint64_t whole, shard, root, blocks, largest; } units;

static units count_units(const smp_job *job, share of)
{
    const smp_model *model = job->model;
    const uint32_t degree = shards_of(&job->settings, of);
    units u = {0};
    u.root = unit_elems(job, NULL, of);
    u.shard = smp_ceil_div(u.root, degree);
    for (uint32_t kind = 0; kind < model->n_kind; kind++) {
        const uint64_t elems = unit_elems(job, &model->kinds[kind], of);
        uint64_t layers = 0;
        for (uint32_t i = 0; i < model->n_layer; i++) {
            layers += model->kind_of_layer[i] == kind;
        }
        u.blocks = smp_add(u.blocks, smp_mul(layers, elems));
        u.shard = smp_add(u.shard, smp_mul(layers, smp_ceil_div(elems, degree)));
        u.largest = elems > u.largest ? elems : u.largest;
    }
    u.whole = smp_add(u.root, u.blocks);
    return u;
}

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
    if (job->settings.optimizer != SMP_OPTIMIZER_ADAMW ||
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

/* What the streams of parameters take in one round, and the root unit's part of it. */
typedef struct traffic { int64_t gathers, scatters, sums, ends; } traffic;

static void add_traffic(const smp_job *job, const smp_mesh *mesh, share of, traffic *sum)
{
    const smp_settings *s = &job->settings;
    const uint32_t degree = shards_of(s, of);
    const uint64_t compute = dtype_bytes(s->precision);
    const uint64_t reduce = dtype_bytes(s->reduce_dtype);
    smp_placement shard;
    smp_placement replica;
    smp_mesh_placement(mesh, of == EXPERTS ? SMP_GROUP_EXPERT_SHARD : SMP_GROUP_SHARD, 0,
                       &shard);
    smp_mesh_placement(mesh, of == EXPERTS ? SMP_GROUP_REPLICA : SMP_GROUP_DENSE_REPLICA, 0,
                       &replica);
    for (uint32_t layer = 0; layer < job->model->n_layer; layer++) {
        const uint64_t n = unit_elems(job, smp_model_block(job->model, layer), of);
        sum->gathers += collective_ps(job, SMP_OP_ALL_GATHER, &shard, n * compute);
        sum->scatters += collective_ps(job, SMP_OP_REDUCE_SCATTER, &shard, n * reduce);
        sum->sums += collective_ps(job, SMP_OP_ALL_REDUCE, &replica,
                                   smp_ceil_div(n, degree) * reduce);
    }
    const uint64_t root = unit_elems(job, NULL, of);
    sum->ends += collective_ps(job, SMP_OP_ALL_GATHER, &shard, root * compute) +
                 collective_ps(job, SMP_OP_REDUCE_SCATTER, &shard, root * reduce) +
                 collective_ps(job, SMP_OP_ALL_REDUCE, &replica,
                               smp_ceil_div(root, degree) * reduce);
}

/* Bound of everything that parameters need: see the head of this file. */
static smp_status mesh_time(const smp_job *job, int64_t head_ps, smp_errors *errors,
                            int64_t *bound_ps_p)
{
    const smp_settings *s = &job->settings;
    if (s->sharding != SMP_SHARDING_FULL || s->hybrid_shard_degree <= 1) {
        *bound_ps_p = head_ps;
        return SMP_OK;
    }
    smp_mesh *mesh = NULL;
    const smp_status st = smp_mesh_create(job, errors, &mesh);
    if (st != SMP_OK) {
        return st;
    }
    /* gathers too: what is reduced once may stay gathered over the step */
    const int64_t rounds =
        s->accumulation == SMP_ACCUMULATION_EVERY ? (int64_t)job->micro_batches : 1;
    traffic sum = {0};
    uint64_t updated = 0;
    for (int of = 0; of < SHARES; of++) {
        add_traffic(job, mesh, (share)of, &sum);
        updated = smp_add(updated, count_units(job, (share)of).shard);
    }
    *bound_ps_p = larger(larger(head_ps + sum.ends + update_ps(job, updated),
                                sum.gathers * rounds),
                         larger(sum.scatters * rounds, sum.sums * rounds));
    smp_mesh_destroy(mesh);
    return SMP_OK;
}

smp_status smp_bound_time(smp_bounds *bounds, const smp_job *job, bool mesh, smp_errors *errors,
                          int64_t *bound_ps_p)
{
    const head_entry *entry = NULL;
    const smp_status st = find_head(bounds, job, errors, &entry);
    if (st != SMP_OK) {
        return st;
    }
    const int64_t head_ps = head_time(job, entry);
    if (mesh) {
        return mesh_time(job, head_ps, errors, bound_ps_p);
    }
    *bound_ps_p = head_ps;
    return SMP_OK;
}

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
    l.moments = l.master * (s->optimizer == SMP_OPTIMIZER_ADAMW ? 2 : 1);
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
    const uint64_t tokens = smp_mul(s->micro_batch, job->batch.seq_len) / s->loss_chunks;
    const uint64_t vocab = smp_local_vocab(job->model->vocab, s->tensor_parallel_degree);
    return smp_mul(smp_mul(tokens, vocab), dtype_bytes(s->precision));
}

/* Saved activations: measured stacks, extended to all layers; offloaded inputs are at least
 * as many as the horizon. */
static uint64_t saved_bytes(const smp_job *job, const head_entry *entry)
{
    uint32_t full = 0;
    uint32_t rest = 0;
    split_layers(job, &full, &rest);
    const shown *at = entry->at[0];
    const uint64_t per_full = at[1].stack_bytes - at[0].stack_bytes;
    const uint64_t per_rest = at[2].stack_bytes - at[0].stack_bytes;
    uint64_t sum = smp_add(at[0].stack_bytes,
                           smp_mul(per_rest, rest - entry->key.layers_rest));
    sum = smp_add(sum, smp_mul(per_full, full - entry->key.layers_full));
    if (job->settings.offload) {
        const uint32_t kept = job->settings.sm_activation_offloading
                                  ? job->settings.activation_loading_horizon
                                  : 1;
        const uint64_t gone = smp_mul(per_full, full > kept ? full - kept : 0);
        sum = sum > gone ? sum - gone : 0;
    }
    return sum;
}

/* NCCL's buffers of the communicators of rank 0. */
static smp_status communicator_bytes(smp_bounds *bounds, const smp_job *job, const layout *l,
                                     smp_errors *errors, uint64_t *bytes_p)
{
    const smp_settings *s = &job->settings;
    const comm_key key = {s->tensor_parallel_degree, s->hybrid_shard_degree,
                          s->expert_parallel_degree, is_nested(s), (uint32_t)s->rank_order[2],
                          job->world};
    for (size_t i = 0; i < bounds->n_comm; i++) {
        if (memcmp(&bounds->comms[i].key, &key, sizeof key) == 0) {
            *bytes_p = bounds->comms[i].bytes;
            return SMP_OK;
        }
    }
    const struct { smp_group group; bool used; } comms[] = {
        {SMP_GROUP_SHARD, l->sharded && l->full}, /* gathers */
        {SMP_GROUP_SHARD, true},                  /* reductions */
        {SMP_GROUP_DENSE_REPLICA, true},
        {SMP_GROUP_TENSOR, true},
        {SMP_GROUP_WORLD, true},
        {SMP_GROUP_EXPERT, true},
    };
    smp_mesh *mesh = NULL;
    const smp_status st = smp_mesh_create(job, errors, &mesh);
    if (st != SMP_OK) {
        return st;
    }
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof comms / sizeof comms[0]; i++) {
        smp_comm comm = {.group = comms[i].group,
                         .ranks = smp_mesh_group_size(mesh, comms[i].group)};
        if (comms[i].used && comm.ranks > 1) {
            smp_mesh_placement(mesh, comm.group, 0, &comm.placement);
            sum = smp_add(sum, smp_cost_comm_bytes(job->cluster, job->profile, &comm));
        }
    }
    smp_mesh_destroy(mesh);
    SMP_GROW(bounds->comms, bounds->n_comm, bounds->comm_room);
    bounds->comms[bounds->n_comm++] = (comm_entry){key, sum};
    *bytes_p = sum;
    return SMP_OK;
}

smp_status smp_bound_memory(smp_bounds *bounds, const smp_job *job, smp_errors *errors,
                            uint64_t *bound_bytes_p)
{
    const head_entry *entry = NULL;
    const layout dense = layout_of(job, DENSE);
    uint64_t sum = 0;
    smp_status st = find_head(bounds, job, errors, &entry);
    if (st == SMP_OK) {
        st = communicator_bytes(bounds, job, &dense, errors, &sum);
    }
    if (st != SMP_OK) {
        return st;
    }
    uint64_t rings = 0;
    for (int of = 0; of < SHARES; of++) {
        const layout l = layout_of(job, (share)of);
        const units u = count_units(job, (share)of);
        uint64_t ring = 0;
        sum = smp_add(sum, state_bytes(&l, &u));
        sum = smp_add(sum, beside_bytes(job, &l, &u, &ring));
        rings = smp_add(rings, ring);
    }
    const uint64_t logits = logits_bytes(job);
    sum = smp_add(sum, smp_cost_context_bytes(job->profile));
    sum = smp_add(sum, saved_bytes(job, entry));
    *bound_bytes_p = smp_add(sum, logits > rings ? logits : rings);
    return SMP_OK;
}
