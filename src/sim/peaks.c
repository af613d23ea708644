/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peaks of memory outside the steady step: initialization, saving, loading.
 *
 * The native runtime allocates one arena at the start and nothing after it.  So no moment
 * needs more of the device than the step does: what is sent or read then passes through the
 * part of the arena that holds nothing between two steps (all but parameters, optimizer state
 * and scalars), in pieces when it is larger.  The host is another matter; docs/formulas.md,
 * "Peaks", has every term.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "sim/peaks.h"

#include "base/numeric.h"
#include "sim/sim.h"
#include "step/order.h"

#include <stdlib.h>
#include <string.h>

/* Files are read and written through two pinned pieces a rank: one is filled while the other
 * drains.  64 MB is the part size of uploads to S3 in SMP's checkpoints (spec 1.9). */
static const uint64_t staging_bytes = 2 * ((uint64_t)64 << 20);
enum { MODEL_BYTES = 4 }; /* a model that is made whole is made in fp32 (spec 1.8) */

static const char name_activations[] = "activations";
static const char name_rest[] = "rest of the arena";

/* ---------------------------------------------------------------- what there is */

/* Sizes from which the peaks are made. */
typedef struct sizes {
    const smp_memory *memory;
    uint64_t parameters_bytes, optimizer_bytes; /* of the arena, static */
    uint64_t collectives_bytes;   /* staging of collectives in the arena */
    uint64_t communicators_bytes;
    uint64_t free_bytes;          /* largest range of the arena free between two steps */
    uint64_t unit_bytes;          /* largest unit of a tensor rank, in master precision */
    uint64_t tensor_bytes;        /* largest tensor of a checkpoint, in master precision */
    uint64_t model_bytes;         /* the whole model in fp32 */
} sizes;

/* What the host of a node holds for one moment, on the node that needs most. */
typedef struct node_bytes { uint64_t offload_bytes, own_bytes; } node_bytes;

static uint32_t master_bytes(const smp_job *job)
{
    return job->settings.master == SMP_PRECISION_FP32 ? 4 : 2;
}

static bool is_kept(const smp_buffer *buffer)
{
    return buffer->space == SMP_SPACE_DEVICE && buffer->scope == SMP_SCOPE_STEP &&
           (buffer->kind == SMP_KIND_PARAMETER || buffer->kind == SMP_KIND_OPTIMIZER ||
            buffer->kind == SMP_KIND_SCALAR);
}

typedef struct range { uint64_t start, end; } range;

static int range_compare(const void *a_, const void *b_)
{
    const range *a = a_;
    const range *b = b_;
    return (a->start > b->start) - (a->start < b->start);
}

/* The largest range of the arena that holds nothing from one step to the next. */
static uint64_t largest_free_bytes(const smp_program *program)
{
    size_t n = 0;
    for (uint32_t b = 0; b < program->n_buffer; b++) {
        n += is_kept(&program->buffers[b]) ? smp_place_count(&program->buffers[b]) : 0;
    }
    range *kept = smp_heap_alloc(n + 1, sizeof *kept);
    n = 0;
    for (uint32_t b = 0; b < program->n_buffer; b++) {
        const smp_buffer *buffer = &program->buffers[b];
        uint32_t count = is_kept(buffer) ? smp_place_count(buffer) : 0;
        for (uint32_t i = 0; i < count; i++) {
            uint64_t start = smp_place_address(program, buffer, i);
            kept[n++] = (range){start, start + buffer->bytes};
        }
    }
    kept[n++] = (range){program->arena_bytes, program->arena_bytes};
    qsort(kept, n, sizeof *kept, range_compare);
    uint64_t most_bytes = 0;
    uint64_t end = 0;
    for (size_t i = 0; i < n; i++) {
        if (kept[i].start > end && kept[i].start - end > most_bytes) {
            most_bytes = kept[i].start - end;
        }
        end = kept[i].end > end ? kept[i].end : end;
    }
    free(kept);
    return most_bytes;
}

/* Parts that a checkpoint holds as one tensor (a fused q, k, v) have one name. */
static uint64_t largest_of(const smp_param *params, uint32_t n)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t elems = 0;
        for (uint32_t k = 0; k < n; k++) {
            if (strcmp(params[i].name, params[k].name) == 0) {
                elems = smp_add(elems, params[k].n_dim == 2 ? smp_mul(params[k].shape[0],
                                                                      params[k].shape[1])
                                                            : params[k].shape[0]);
            }
        }
        most = elems > most ? elems : most;
    }
    return most;
}

static uint64_t largest_tensor(const smp_model *model)
{
    uint64_t most = largest_of(model->root, model->n_root);
    for (uint32_t k = 0; k < model->n_kind; k++) {
        uint64_t elems = largest_of(model->kinds[k].params, model->kinds[k].n_param);
        most = elems > most ? elems : most;
    }
    return most;
}

static sizes measure(const smp_job *job, const smp_program *program, const smp_memory *memory)
{
    uint64_t unit_elems = 0;
    for (uint32_t u = 0; u < program->n_unit; u++) {
        uint64_t elems = program->units[u].elems;
        unit_elems = elems > unit_elems ? elems : unit_elems;
    }
    return (sizes){
        .memory = memory,
        .parameters_bytes = program->live_kind_bytes[SMP_KIND_PARAMETER],
        .optimizer_bytes = program->live_kind_bytes[SMP_KIND_OPTIMIZER],
        .collectives_bytes = program->live_kind_bytes[SMP_KIND_COMM],
        .communicators_bytes =
            memory->parts.communication_bytes - program->live_kind_bytes[SMP_KIND_COMM],
        .free_bytes = largest_free_bytes(program),
        .unit_bytes = smp_mul(unit_elems, master_bytes(job)),
        .tensor_bytes = smp_mul(largest_tensor(job->model), master_bytes(job)),
        .model_bytes = smp_mul(job->model->parameters, MODEL_BYTES),
    };
}

/* What a sharded checkpoint holds of a rank: master parameters and optimizer state of its
 * shard.  Each moment of the optimizer is as large as the shard of master parameters, which is
 * of kind optimizer itself where the parameters kept are a copy in compute precision. */
static uint64_t state_bytes(const smp_job *job, const smp_program *program)
{
    const smp_settings *set = &job->settings;
    uint64_t optimizer_bytes = program->live_kind_bytes[SMP_KIND_OPTIMIZER];
    uint64_t moments = set->optimizer == SMP_OPTIMIZER_SGD ? 1 : 2;
    if (set->sharding != SMP_SHARDING_FULL && set->master != set->precision) {
        return optimizer_bytes;
    }
    return optimizer_bytes / moments * (moments + 1);
}

/* Replicas hold the same state: the first of them writes it. */
static bool is_writer(const smp_job *job, const smp_mesh *mesh, uint32_t rank)
{
    smp_coords at;
    smp_mesh_coords(mesh, rank, &at);
    bool whole = job->settings.sharding == SMP_SHARDING_NONE;
    return at.axis[SMP_AXIS_REPLICA] == 0 &&
           (!whole || (at.axis[SMP_AXIS_SHARD] == 0 && at.axis[SMP_AXIS_CONTEXT] == 0));
}

/* ------------------------------------------------------------------------ hosts */

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* What one rank adds to its node's host in each moment. */
static void add_rank(const smp_job *job, const smp_step *step, const sizes *s, uint32_t rank,
                     node_bytes node[SMP_MOMENTS])
{
    const smp_program *program = step->programs[step->classes->class_of_rank[rank]];
    uint64_t state = state_bytes(job, program);
    uint64_t staging = least(staging_bytes, state);
    bool writes = is_writer(job, step->mesh, rank);
    uint64_t own[SMP_MOMENTS] = {
        [SMP_MOMENT_INIT_EVERY_RANK] = s->model_bytes,
        [SMP_MOMENT_INIT_RANK0] = rank == 0 ? s->model_bytes : 0,
        [SMP_MOMENT_SAVE_SHARDED] = writes ? staging : 0,
        [SMP_MOMENT_SAVE_ASYNC] = writes ? state : 0,
        /* one tensor arrives while the one before is written */
        [SMP_MOMENT_SAVE_FULL] = rank == 0 ? smp_mul(2, s->tensor_bytes) : 0,
        [SMP_MOMENT_LOAD_SAME] = staging,
        [SMP_MOMENT_LOAD_OTHER] = staging,
    };
    for (int m = 0; m < SMP_MOMENTS; m++) {
        node[m].offload_bytes = smp_add(node[m].offload_bytes, program->host_arena_bytes);
        node[m].own_bytes = smp_add(node[m].own_bytes, own[m]);
    }
}

static void measure_hosts(const smp_job *job, const smp_step *step, const sizes *s,
                          node_bytes most[SMP_MOMENTS])
{
    uint32_t world = smp_mesh_world(step->mesh);
    uint32_t per_node = smp_cluster_gpus_per_node(job->cluster);
    memset(most, 0, SMP_MOMENTS * sizeof *most);
    for (uint32_t first = 0; first < world; first += per_node) {
        node_bytes node[SMP_MOMENTS] = {{0}};
        for (uint32_t rank = first; rank < world && rank - first < per_node; rank++) {
            add_rank(job, step, s, rank, node);
        }
        for (int m = 0; m < SMP_MOMENTS; m++) {
            if (smp_add(node[m].offload_bytes, node[m].own_bytes) >
                smp_add(most[m].offload_bytes, most[m].own_bytes)) {
                most[m] = node[m];
            }
        }
    }
}

/* ------------------------------------------------------------------------ peaks */

static void add_part(smp_peak *peak, const char *name, uint64_t bytes, bool host,
                     bool estimate)
{
    if (bytes == 0) {
        return;
    }
    peak->parts[peak->n_part++] = (smp_peak_part){name, bytes, host, estimate};
    if (host) {
        peak->host_bytes_per_node = smp_add(peak->host_bytes_per_node, bytes);
    } else {
        peak->device_bytes = smp_add(peak->device_bytes, bytes);
    }
}

static void add_overheads(const sizes *s, smp_peak *peak)
{
    add_part(peak, "communicators", s->communicators_bytes, false, true);
    add_part(peak, "context", s->memory->parts.context_bytes, false, true);
}

/* While no step runs; `staging` bytes of the arena serve the moment. */
static void fill_idle(const sizes *s, const char *name, uint64_t staging, smp_peak *peak)
{
    uint64_t used = smp_add(s->parameters_bytes, s->optimizer_bytes);
    staging = least(staging, s->free_bytes);
    add_part(peak, "parameters", s->parameters_bytes, false, false);
    add_part(peak, "optimizer state", s->optimizer_bytes, false, false);
    add_part(peak, name, staging, false, false);
    add_part(peak, name_rest, s->memory->arena_bytes - used - staging, false, false);
    add_overheads(s, peak);
}

static void fill_step(const sizes *s, smp_peak *peak)
{
    const smp_memory_parts *p = &s->memory->parts;
    add_part(peak, "parameters", p->parameters_bytes, false, false);
    add_part(peak, "gradients", p->gradients_bytes, false, false);
    add_part(peak, "optimizer state", p->optimizer_bytes, false, false);
    add_part(peak, "unsharded parameters and gradients", p->unsharded_bytes, false, false);
    add_part(peak, name_activations, p->activations_bytes, false, false);
    add_part(peak, "logits", p->logits_bytes, false, false);
    add_part(peak, "staging of collectives", s->collectives_bytes, false, false);
    add_part(peak, "fragmentation", p->fragmentation_bytes, false, false);
    add_overheads(s, peak);
}

static void fill_device(const sizes *s, smp_moment moment, smp_peak *peak)
{
    switch (moment) {
    case SMP_MOMENT_FIRST_STEP:
    case SMP_MOMENT_STEADY:
    case SMP_MOMENT_SAVE_ASYNC: /* steps go on */
        fill_step(s, peak);
        return;
    case SMP_MOMENT_INIT_RANK0:
        fill_idle(s, "a unit on its way, in the arena", s->unit_bytes, peak);
        return;
    case SMP_MOMENT_SAVE_FULL:
        fill_idle(s, "a tensor on its way, in the arena", s->tensor_bytes, peak);
        return;
    case SMP_MOMENT_INIT_DELAYED:
    case SMP_MOMENT_INIT_EVERY_RANK:
    case SMP_MOMENT_SAVE_SHARDED:
    case SMP_MOMENT_LOAD_SAME:
    case SMP_MOMENT_LOAD_OTHER:
    case SMP_MOMENTS:
        break;
    }
    fill_idle(s, "", 0, peak);
}

/* Initialization goes one way; saving in the background is a choice, since the sharded save
 * waits where there is no room for a snapshot; every other moment comes in a long run. */
static bool counts(const smp_job *job, smp_moment moment)
{
    if (moment == SMP_MOMENT_INIT_DELAYED) {
        return job->settings.delayed_init;
    }
    if (moment == SMP_MOMENT_INIT_EVERY_RANK) {
        return !job->settings.delayed_init;
    }
    return moment != SMP_MOMENT_INIT_RANK0 && moment != SMP_MOMENT_SAVE_ASYNC;
}

static void judge(smp_memory *memory)
{
    memory->fits = true;
    for (int m = 0; m < SMP_MOMENTS; m++) {
        smp_peak *peak = &memory->peaks[m];
        peak->fits = peak->device_bytes <= memory->capacity_bytes &&
                     peak->host_bytes_per_node <= memory->host_capacity_bytes;
        memory->fits = memory->fits && (peak->fits || !peak->counts);
    }
}

static void fill_comms(const smp_job *job, const smp_program *program, smp_memory *memory)
{
    memory->n_comm = 0;
    for (uint32_t c = 0; c < program->n_comm && c < SMP_MEMORY_COMMS; c++) {
        const smp_comm *comm = &program->comms[c];
        smp_comm_memory *one = &memory->comms[memory->n_comm++];
        *one = (smp_comm_memory){
            .ranks = comm->ranks,
            .nodes = comm->placement.nodes,
            .bytes = smp_cost_comm_bytes(job->cluster, job->profile, comm),
        };
        (void)snprintf(one->name, sizeof one->name, "%s", comm->name);
    }
}

void smp_peaks_fill(const smp_job *job, const smp_step *step, uint32_t fullest,
                    smp_memory *memory)
{
    const smp_program *program = step->programs[fullest];
    sizes s = measure(job, program, memory);
    node_bytes hosts[SMP_MOMENTS];
    measure_hosts(job, step, &s, hosts);
    fill_comms(job, program, memory);
    for (int m = 0; m < SMP_MOMENTS; m++) {
        smp_peak *peak = &memory->peaks[m];
        *peak = (smp_peak){.counts = counts(job, (smp_moment)m),
                           .note = smp_moment_texts[m].note};
        fill_device(&s, (smp_moment)m, peak);
        add_part(peak, "offloaded activations", hosts[m].offload_bytes, true, false);
        add_part(peak, smp_moment_texts[m].host, hosts[m].own_bytes, true, false);
    }
    judge(memory);
}

smp_moment smp_peaks_most(const smp_memory *memory, bool host)
{
    smp_moment most = SMP_MOMENT_STEADY;
    for (int m = 0; m < SMP_MOMENTS; m++) {
        const smp_peak *peak = &memory->peaks[m];
        const smp_peak *top = &memory->peaks[most];
        if (peak->counts && (host ? peak->host_bytes_per_node > top->host_bytes_per_node
                                  : peak->device_bytes > top->device_bytes)) {
            most = (smp_moment)m;
        }
    }
    return most;
}
