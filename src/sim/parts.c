/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a step's time and memory consist of.
 *
 * Time is read off the compute stream of the class that ends last.  While a task runs there,
 * its launch overhead is launch and the rest its phase.  While none runs, the causes of the
 * next task are walked back from its start: each interval belongs to the collective or copy
 * that filled it.  What no task filled (the host, or nothing yet) is launch.  Every picosecond
 * is charged once, so the parts add up to the step.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "sim/peaks.h"
#include "sim/sim.h"

#include "base/numeric.h"

const char *smp_part_name(smp_part part)
{
    static const char *const names[SMP_PARTS] = {
        [SMP_PART_COMPUTE] = "compute",   [SMP_PART_OPTIMIZER] = "optimizer",
        [SMP_PART_LAUNCH] = "launch",     [SMP_PART_SHARD] = "exposed_shard",
        [SMP_PART_REPLICA] = "exposed_replica", [SMP_PART_TENSOR] = "exposed_tensor",
        [SMP_PART_EXPERT] = "exposed_expert",   [SMP_PART_WORLD] = "exposed_world",
        [SMP_PART_OFFLOAD] = "exposed_offload",
    };
    return names[part];
}

int64_t *smp_time_part(smp_time_parts *parts, smp_part part)
{
    switch (part) {
    case SMP_PART_OPTIMIZER: return &parts->optimizer_ps;
    case SMP_PART_LAUNCH: return &parts->launch_ps;
    case SMP_PART_SHARD: return &parts->shard_ps;
    case SMP_PART_REPLICA: return &parts->replica_ps;
    case SMP_PART_TENSOR: return &parts->tensor_ps;
    case SMP_PART_EXPERT: return &parts->expert_ps;
    case SMP_PART_WORLD: return &parts->world_ps;
    case SMP_PART_OFFLOAD: return &parts->offload_ps;
    case SMP_PART_COMPUTE:
    case SMP_PARTS:
        break;
    }
    return &parts->compute_ps;
}

/* --------------------------------------------------------------------- time */

static smp_part part_of_group(smp_group group)
{
    switch (group) {
    case SMP_GROUP_TENSOR: return SMP_PART_TENSOR;
    case SMP_GROUP_CONTEXT:
    case SMP_GROUP_EXPERT_SHARD:
    case SMP_GROUP_SHARD: return SMP_PART_SHARD;
    case SMP_GROUP_EXPERT: return SMP_PART_EXPERT;
    case SMP_GROUP_REPLICA:
    case SMP_GROUP_DENSE_REPLICA: return SMP_PART_REPLICA;
    case SMP_GROUP_MODEL:
    case SMP_GROUP_WORLD:
    case SMP_GROUPS:
        break;
    }
    return SMP_PART_WORLD;
}

/* Kernels on a communication stream (a cast before a gather) belong to what they serve. */
static smp_part part_of_stream(const smp_task *task)
{
    switch ((smp_stream)task->stream) {
    case SMP_STREAM_UNSHARD:
    case SMP_STREAM_REDUCE: return SMP_PART_SHARD;
    case SMP_STREAM_REPLICATE: return SMP_PART_REPLICA;
    case SMP_STREAM_TENSOR: return SMP_PART_TENSOR;
    case SMP_STREAM_EXPERT: return SMP_PART_EXPERT;
    case SMP_STREAM_OFFLOAD:
    case SMP_STREAM_LOAD: return SMP_PART_OFFLOAD;
    case SMP_STREAM_COMPUTE:
    case SMP_STREAM_SHARED:
    case SMP_STREAMS:
        break;
    }
    return task->phase == SMP_PHASE_UPDATE ? SMP_PART_OPTIMIZER : SMP_PART_COMPUTE;
}

/* The part that a task is charged to when it fills a gap of compute; for a compute kernel,
 * where its own time goes. */
static smp_part part_of(const smp_program *program, const smp_task *task)
{
    smp_op_class klass = smp_op_info_of((smp_op)task->op)->klass;
    if (klass == SMP_CLASS_HOST_COPY) {
        return SMP_PART_OFFLOAD;
    }
    if (klass == SMP_CLASS_COLLECTIVE && task->comm != SMP_NO_COMM) {
        return part_of_group(program->comms[task->comm].group);
    }
    return part_of_stream(task);
}

/* A task of a class in the order. */
typedef struct spot {
    uint32_t c, instance, task;
} spot;

typedef struct splitter {
    const smp_simulation *simulation;
    smp_time_parts *parts;
} splitter;

static const smp_record *record_at(const smp_simulation *simulation, spot at)
{
    return &simulation->records[at.c][simulation->record0[at.c][at.instance] + at.task];
}

static uint32_t stored_at(const smp_simulation *simulation, spot at)
{
    const smp_program *program = simulation->step->programs[at.c];
    return program->segments[program->order[at.instance].segment].task0 + at.task;
}

static void charge(const splitter *s, smp_part part, spot at, int64_t amount_ps)
{
    *smp_time_part(s->parts, part) += amount_ps;
    if (s->simulation->path_ps) {
        s->simulation->path_ps[at.c][stored_at(s->simulation, at)] += amount_ps;
    }
}

/* Charges the idle time [from_ps, to_ps] of compute before `at`, which starts at to_ps.
 * Waiting for a kernel of another class is what the collective costs that waits for it; so
 * is the time until a late class arrives. */
static void charge_gap(const splitter *s, spot at, int64_t from_ps, int64_t to_ps)
{
    const smp_program *own = s->simulation->step->programs[at.c];
    smp_part waiting = part_of(own, &own->tasks[stored_at(s->simulation, at)]);
    while (to_ps > from_ps) {
        const smp_record *record = record_at(s->simulation, at);
        spot cause = {record->cause_class, record->cause_instance, record->cause_task};
        if (cause.c == at.c && cause.instance == at.instance && cause.task == at.task) {
            break;
        }
        const smp_program *program = s->simulation->step->programs[cause.c];
        const smp_task *task = &program->tasks[stored_at(s->simulation, cause)];
        const smp_record *source = record_at(s->simulation, cause);
        smp_part part = part_of(program, task);
        if (part == SMP_PART_COMPUTE || part == SMP_PART_OPTIMIZER) {
            part = waiting;
        } else {
            waiting = part;
        }
        int64_t start_ps = source->start_ps > from_ps ? source->start_ps : from_ps;
        charge(s, part, cause, to_ps - start_ps);
        to_ps = start_ps;
        at = cause;
    }
    charge(s, SMP_PART_LAUNCH, at, to_ps - from_ps);
}

static void charge_busy(const splitter *s, spot at, const smp_record *record)
{
    const smp_program *program = s->simulation->step->programs[at.c];
    uint32_t stored = stored_at(s->simulation, at);
    smp_part part = part_of(program, &program->tasks[stored]);
    int64_t whole_ps = record->end_ps - record->start_ps;
    int64_t launch_ps = 0;
    if (part == SMP_PART_COMPUTE || part == SMP_PART_OPTIMIZER) {
        launch_ps = smp_ps_from_s(s->simulation->cost[at.c][stored].launch_s);
        launch_ps = launch_ps < whole_ps ? launch_ps : whole_ps;
    }
    charge(s, SMP_PART_LAUNCH, at, launch_ps);
    charge(s, part, at, whole_ps - launch_ps);
}

void smp_time_split(const smp_simulation *simulation, int64_t end_ps, smp_time_parts *parts_p)
{
    smp_time_parts parts = {0};
    splitter s = {.simulation = simulation, .parts = &parts};
    uint32_t c = simulation->slowest;
    const smp_program *program = simulation->step->programs[c];
    int64_t at_ps = 0;
    spot last = {.c = c};
    int64_t last_ps = -1;
    for (uint32_t i = 0; i < program->n_instance; i++) {
        const smp_segment *segment = &program->segments[program->order[i].segment];
        for (uint32_t t = 0; t < segment->n_task; t++) {
            spot at = {.c = c, .instance = i, .task = t};
            const smp_record *record = record_at(simulation, at);
            if (record->end_ps >= last_ps) {
                last_ps = record->end_ps;
                last = at;
            }
            if (program->tasks[segment->task0 + t].stream != SMP_STREAM_COMPUTE) {
                continue;
            }
            charge_gap(&s, at, at_ps, record->start_ps);
            charge_busy(&s, at, record);
            at_ps = record->end_ps;
        }
    }
    /* What runs after the last kernel: the last task to end, then what it waited for. */
    if (end_ps > at_ps) {
        const smp_record *record = record_at(simulation, last);
        int64_t start_ps = record->start_ps > at_ps ? record->start_ps : at_ps;
        smp_part part = part_of(program, &program->tasks[stored_at(simulation, last)]);
        charge(&s, part, last, end_ps - start_ps);
        charge_gap(&s, last, at_ps, start_ps);
    }
    *parts_p = parts;
}

/* ------------------------------------------------------------------- memory */

/* Host memory of the fullest node: pinned buffers of all its ranks. */
static uint64_t host_bytes_per_node(const smp_job *job, const smp_step *step)
{
    uint32_t world = smp_mesh_world(step->mesh);
    uint32_t per_node = smp_cluster_gpus_per_node(job->cluster);
    uint64_t most_bytes = 0;
    uint64_t node_bytes = 0;
    for (uint32_t rank = 0; rank < world; rank++) {
        if (rank % per_node == 0) {
            node_bytes = 0;
        }
        uint32_t c = step->classes->class_of_rank[rank];
        node_bytes = smp_add(node_bytes, step->programs[c]->host_arena_bytes);
        most_bytes = node_bytes > most_bytes ? node_bytes : most_bytes;
    }
    return most_bytes;
}

static void split_program(const smp_job *job, const smp_program *program, smp_memory *m)
{
    const uint64_t *live = program->live_kind_bytes;
    uint64_t comm_bytes = 0;
    for (uint32_t k = 0; k < program->n_comm; k++) {
        comm_bytes = smp_add(comm_bytes, smp_cost_comm_bytes(job->cluster, job->profile,
                                                             &program->comms[k]));
    }
    uint64_t context_bytes = smp_cost_context_bytes(job->profile);
    m->arena_bytes = program->arena_bytes;
    m->live_bytes = program->live_bytes;
    m->safety_bytes = program->safety_bytes;
    m->host_bytes = program->host_arena_bytes;
    m->peak_bytes = smp_add(program->arena_bytes, smp_add(comm_bytes, context_bytes));
    m->parts = (smp_memory_parts){
        .parameters_bytes = live[SMP_KIND_PARAMETER],
        .gradients_bytes = live[SMP_KIND_GRADIENT],
        .optimizer_bytes = live[SMP_KIND_OPTIMIZER],
        .unsharded_bytes = live[SMP_KIND_UNSHARDED],
        /* Token ids, targets and device scalars are inputs of the step like activations. */
        .activations_bytes = live[SMP_KIND_ACTIVATION] + live[SMP_KIND_WORKSPACE] +
                             live[SMP_KIND_SCALAR],
        .logits_bytes = live[SMP_KIND_LOGITS],
        .communication_bytes = smp_add(live[SMP_KIND_COMM], comm_bytes),
        .context_bytes = context_bytes,
        .fragmentation_bytes = program->arena_bytes - program->live_bytes,
    };
}

void smp_memory_split(const smp_job *job, const smp_step *step, smp_memory *memory_p,
                      uint32_t *fullest_p)
{
    smp_memory memory = {0};
    uint32_t fullest = 0;
    for (uint32_t c = 0; c < step->n_program; c++) {
        smp_memory one = {0};
        split_program(job, step->programs[c], &one);
        if (c == 0 || one.peak_bytes > memory.peak_bytes) {
            memory = one;
            fullest = c;
        }
    }
    /* A double holds these figures exactly: they are below 2^53. */
    memory.capacity_bytes = (uint64_t)job->cluster->memory_bytes.value;
    memory.host_capacity_bytes = (uint64_t)job->cluster->host_memory_bytes.value;
    memory.host_bytes_per_node = host_bytes_per_node(job, step);
    uint64_t peak_bytes = memory.peak_bytes < INT64_MAX ? memory.peak_bytes : INT64_MAX;
    memory.margin_bytes = (int64_t)memory.capacity_bytes - (int64_t)peak_bytes;
    memory.state_bytes_per_parameter = step->state_bytes_per_parameter;
    smp_peaks_fill(job, step, fullest, &memory);
    *memory_p = memory;
    *fullest_p = fullest;
}
