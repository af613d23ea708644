/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running a step program.
 */
#include "config.h"

#include "exec/clock.h"
#include "exec/run.h"
#include "exec/store.h"

#include "base/numeric.h"
#include "base/text.h"
#include "step/lower.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- making a runner ---- */

static void fill_rank(smp_runner *r, const smp_job *job, uint32_t rank)
{
    smp_coords coords;
    uint32_t shards = smp_mesh_degree(r->mesh, SMP_AXIS_SHARD);
    uint32_t experts = smp_mesh_degree(r->mesh, SMP_AXIS_EXPERT);

    smp_mesh_coords(r->mesh, rank, &coords);
    r->rank.job = job;
    r->rank.rank = rank;
    r->rank.tensor = smp_mesh_degree(r->mesh, SMP_AXIS_TENSOR);
    r->rank.tensor_rank = coords.axis[SMP_AXIS_TENSOR];
    r->rank.expert = experts;
    r->rank.expert_rank = coords.axis[SMP_AXIS_EXPERT];
    r->rank.data_ranks = job->data_ranks;
    r->rank.data_rank = (coords.axis[SMP_AXIS_REPLICA] * experts
                         + coords.axis[SMP_AXIS_EXPERT]) * shards
                        + coords.axis[SMP_AXIS_SHARD];
    r->rank.copies = smp_mesh_group_size(r->mesh, SMP_GROUP_DENSE_REPLICA);
    if (job->settings.sharding == SMP_SHARDING_NONE) {
        r->rank.copies *= smp_mesh_group_size(r->mesh, SMP_GROUP_SHARD);
    }
    r->rank.sequence = job->settings.sequence_parallel && r->rank.tensor > 1;
    r->rank.hyper = r->options.hyper;
}

static smp_status lower(smp_runner *r, smp_errors *errors)
{
    smp_program *program = NULL;
    smp_status status = smp_lower_rank(r->rank.job, r->mesh, r->rank.rank, NULL, r->arena,
                                       errors, &program);

    if (status == SMP_OK) {
        status = smp_program_plan_arena(program, errors);
    }
    if (status == SMP_OK) {
        status = smp_program_derive_waits(program, errors);
    }
    r->rank.program = program;
    return status;
}

static smp_status check_memory(const smp_runner *r, smp_errors *errors)
{
    uint64_t limit = r->options.device_memory_bytes, need = r->rank.program->arena_bytes;
    uint64_t all = smp_add(need, r->rank.program->host_arena_bytes);
    const smp_place place = { .file = "--device-memory" };

    if (r->options.host_share_bytes > 0 && all > r->options.host_share_bytes) {
        char there[32];

        (void)snprintf(there, sizeof there, "%s", smp_show_bytes(r->options.host_share_bytes));
        return smp_fail(errors, SMP_INFEASIBLE, NULL,
                        "the step program of rank %u needs %s, and this machine's memory has "
                        "%s for each rank of it", r->rank.rank, smp_show_bytes(all), there);
    }
    if (limit > 0 && need > limit) {
        return smp_fail(errors, SMP_INFEASIBLE, &place,
                        "%llu bytes: the step program of rank %u needs %llu",
                        (unsigned long long)limit, r->rank.rank, (unsigned long long)need);
    }
    return SMP_OK;
}

static smp_status check_tasks(const smp_runner *r, smp_errors *errors)
{
    for (uint32_t i = 0; i < r->rank.program->n_task; i++) {
        const smp_task *task = &r->rank.program->tasks[i];
        bool collective = task->op == SMP_OP_ALL_GATHER || task->op == SMP_OP_ALL_REDUCE
                          || task->op == SMP_OP_REDUCE_SCATTER
                          || task->op == SMP_OP_ALL_TO_ALL;

        if (!collective && r->ops->supports && !r->ops->supports(r->device, task)) {
            return smp_fail(errors, SMP_INPUT, NULL,
                            "device %s does not run task %s (%s in %s)", r->ops->name,
                            task->name, smp_op_info_of((smp_op)task->op)->name,
                            smp_dtype_name((smp_dtype)task->dtype));
        }
    }
    return SMP_OK;
}

static smp_status open_device(smp_runner *r, smp_errors *errors)
{
    const smp_program *p = r->rank.program;
    smp_status status =
        r->ops->open(&r->rank, &r->options.device_options, errors, &r->device);
    void *memory[2] = { NULL, NULL };

    if (status == SMP_OK) {
        status = check_tasks(r, errors);
    }
    if (status == SMP_OK) {
        status = r->ops->alloc(r->device, SMP_SPACE_DEVICE, p->arena_bytes, errors,
                               &memory[0]);
    }
    if (status == SMP_OK) {
        status = r->ops->alloc(r->device, SMP_SPACE_HOST, p->host_arena_bytes, errors,
                               &memory[1]);
    }
    r->memory[SMP_SPACE_DEVICE] = memory[0];
    r->memory[SMP_SPACE_HOST] = memory[1];
    return status;
}

/* The members of a communicator: its group, or the part of it that is one block of
 * comm->ranks consecutive members. */
static smp_status join_comm(smp_runner *r, const smp_comm *comm, smp_errors *errors,
                            smp_bound_channel *bound)
{
    uint32_t n = smp_mesh_group_size(r->mesh, comm->group);
    uint32_t me = smp_mesh_group_rank(r->mesh, comm->group, r->rank.rank);
    uint32_t *members = smp_heap_alloc(n, sizeof *members);
    smp_status status;

    smp_mesh_members(r->mesh, comm->group, r->rank.rank, members);
    bound->ops = r->options.comm;
    status = bound->ops->join(r->options.world, comm->name, members + me / comm->ranks
                                                                          * comm->ranks,
                              comm->ranks, r->rank.rank, errors, &bound->channel);
    free(members);
    return status;
}

static smp_status join_comms(smp_runner *r, smp_errors *errors)
{
    const smp_program *p = r->rank.program;
    const smp_comm everyone = { .name = "everyone", .group = SMP_GROUP_WORLD,
                                .ranks = r->rank.job->world };
    smp_status status = join_comm(r, &everyone, errors, &r->everyone);

    r->channels = SMP_ARENA_ARRAY(r->arena, p->n_comm + 1, smp_bound_channel);
    for (uint32_t i = 0; i < p->n_comm && status == SMP_OK; i++) {
        status = join_comm(r, &p->comms[i], errors, &r->channels[i]);
    }
    return status;
}

/* Numbers of tasks over the whole step, and which of them are waited for. */
void smp_runner_index(smp_runner *r)
{
    const smp_program *p = r->rank.program;

    r->record0 = SMP_ARENA_ARRAY(r->arena, p->n_instance + 1, uint64_t);
    r->awaited = SMP_ARENA_ARRAY(r->arena, p->n_task, bool);
    for (uint32_t i = 0; i < p->n_instance; i++) {
        const smp_pattern *pattern = &p->patterns[p->order[i].pattern];

        r->record0[i] = r->n_record;
        r->n_record += p->segments[p->order[i].segment].n_task;
        for (uint32_t w = 0; w < pattern->n_wait; w++) {
            const smp_wait *wait = &p->waits[pattern->wait0 + w];

            r->awaited[p->segments[p->order[i - wait->back].segment].task0 + wait->source] =
                true;
        }
    }
    for (uint32_t i = 0; i < p->n_task; i++) {
        r->streams |= 1u << p->tasks[i].stream;
    }
    r->record0[p->n_instance] = r->n_record;
    r->events = SMP_ARENA_ARRAY(r->arena, r->n_record, smp_event);
    if (r->options.measure) {
        r->spans = SMP_ARENA_ARRAY(r->arena, r->n_record, smp_span);
    }
}

smp_status smp_runner_create(const smp_job *job, const smp_mesh *mesh, uint32_t rank,
                             const smp_runner_options *options, smp_errors *errors,
                             smp_runner **runner_p)
{
    smp_arena *arena = smp_arena_create();
    smp_runner *r = SMP_ARENA_NEW(arena, smp_runner);
    smp_status status;

    r->arena = arena;
    r->mesh = mesh;
    r->options = *options;
    r->ops = options->device;
    fill_rank(r, job, rank);
    status = lower(r, errors);
    if (status == SMP_OK) {
        status = check_memory(r, errors);
    }
    if (status == SMP_OK) {
        status = open_device(r, errors);
    }
    if (status == SMP_OK) {
        status = join_comms(r, errors);
    }
    if (status != SMP_OK) {
        smp_runner_destroy(r);
        return status;
    }
    smp_runner_index(r);
    *runner_p = r;
    return SMP_OK;
}

void smp_runner_destroy(smp_runner *r)
{
    if (!r) {
        return;
    }
    r->ops->close(r->device);
    for (uint32_t i = 0; r->channels && i < r->rank.program->n_comm; i++) {
        if (r->channels[i].channel) {
            r->channels[i].ops->leave(r->channels[i].channel);
        }
    }
    if (r->everyone.channel) {
        r->everyone.ops->leave(r->everyone.channel);
    }
    free(r->shapes);
    smp_arena_destroy(r->arena);
}

/* ---- running ---- */

static void *address_of(const smp_runner *r, const smp_instance *instance,
                        const smp_access *access)
{
    const smp_program *p = r->rank.program;
    const smp_buffer *buffer = &p->buffers[access->buffer];

    return r->memory[buffer->space]
           + smp_buffer_address(p, buffer, instance, access->delta) + access->offset_bytes;
}

/* Where the host has what INPUT copies: of the step's next micro-batch, or of the first of the
 * next step; where that is not known yet, of this one's, which nobody will read. */
static void find_inputs(const smp_pass *pass, smp_launch *l)
{
    const smp_job *job = pass->rank.job;
    bool last = l->micro_batch + 1 == job->micro_batches;
    const smp_inputs *from = last && pass->next.ids ? &pass->next : &pass->inputs;
    uint64_t tokens = job->settings.micro_batch * from->seq;
    uint64_t first = last ? 0 : (l->micro_batch + 1) * tokens;

    l->host[0] = from->ids + first;
    l->host[1] = from->targets + first;
    l->host_bytes = tokens * sizeof *from->ids;
}

static void fill_launch(const smp_runner *r, const smp_pass *pass, uint32_t instance,
                        const smp_task *task, smp_launch *launch)
{
    const smp_program *p = r->rank.program;
    const smp_instance *at = &p->order[instance];

    *launch = (smp_launch){ .task = task,
                            .rank = &pass->rank,
                            .block = smp_model_block(r->rank.job->model, at->layer),
                            .layer = at->layer,
                            .micro_batch = at->micro_batch,
                            .step = pass->step };
    for (uint32_t i = 0; i < task->n_access; i++) {
        const smp_access *access = &p->accesses[task->access0 + i];

        if (p->buffers[access->buffer].space != SMP_SPACE_TOKEN) {
            launch->at[launch->n_operand] = address_of(r, at, access);
            launch->bytes[launch->n_operand++] = access->bytes;
        }
    }
    if (task->op == SMP_OP_INPUT) {
        find_inputs(pass, launch);
    }
}

/* Equal parts, or the rows that a layout counts: those of this rank's tokens to the ranks of
 * their experts, or back.  A layout has lines for the members of this rank's expert group one
 * after the other, and other tensor ranks' before or behind them. */
static smp_status all_to_all(const smp_bound_channel *c, uint32_t n, const smp_launch *l,
                             smp_errors *errors)
{
    uint64_t e = smp_dtype_bytes((smp_dtype)l->task->dtype);
    uint64_t *bytes = smp_heap_alloc(2 * (size_t)n, sizeof *bytes);
    uint64_t experts = l->block->moe.experts, each = experts / n;
    uint64_t first = l->rank->sequence ? l->rank->tensor_rank * (uint64_t)n : 0;
    const int32_t *counts = l->n_operand > 2 ? l->at[2] : NULL;
    bool back = l->task->dims[3] != 0;
    smp_status status;

    for (uint32_t i = 0; i < n; i++) {
        uint64_t out = 0, in = 0, row = l->rank->job->model->hidden * e;

        for (uint64_t j = 0; j < each && counts; j++) {
            out += (uint64_t)counts[(first + l->rank->expert_rank) * experts + i * each + j];
            in += (uint64_t)counts[(first + i) * experts + l->rank->expert_rank * each + j];
        }
        bytes[i] = counts ? (back ? in : out) * row : l->task->dims[0] / n * e;
        bytes[n + i] = counts ? (back ? out : in) * row : l->task->dims[1] / n * e;
    }
    status = c->ops->all_to_all(c->channel, l->at[0], bytes, l->at[1], bytes + n, errors);
    free(bytes);
    return status;
}

static smp_status run_collective(void *context, const smp_launch *l, smp_errors *errors)
{
    const smp_runner *r = context;
    const smp_bound_channel *c = &r->channels[l->task->comm];
    uint32_t n = l->rank->program->comms[l->task->comm].ranks;
    smp_dtype t = (smp_dtype)l->task->dtype;
    uint64_t elems = l->task->dims[0];
    float factor = l->task->flags & SMP_FLAG_AVERAGE ? 1.0f / (float)n : 1.0f;

    switch (l->task->op) {
    case SMP_OP_ALL_TO_ALL:
        return all_to_all(c, n, l, errors);
    case SMP_OP_ALL_GATHER:
        return c->ops->all_gather(c->channel, l->at[0], l->at[1],
                                  elems / n * smp_dtype_bytes(t), errors);
    case SMP_OP_REDUCE_SCATTER:
        return c->ops->reduce_scatter(c->channel, l->at[0], l->at[1], elems / n, t, factor,
                                      errors);
    default:
        return c->ops->all_reduce(c->channel, l->at[0], elems, t, factor, errors);
    }
}

void smp_runner_issue(smp_runner *r, const smp_pass *pass, uint32_t instance, uint32_t index)
{
    const smp_program *p = r->rank.program;
    const smp_segment *segment = &p->segments[p->order[instance].segment];
    const smp_task *task = &p->tasks[segment->task0 + index];
    uint64_t record = r->record0[instance] + index;
    smp_launch launch;

    fill_launch(r, pass, instance, task, &launch);
    /* what is measured is the last step of training, also where a validation follows it */
    launch.span = r->spans && !pass->rank.rows.evaluating ? &r->spans[record] : NULL;
    if (smp_op_info_of((smp_op)task->op)->klass == SMP_CLASS_COLLECTIVE) {
        r->ops->call(r->device, (smp_stream)task->stream, run_collective, r, &launch);
    } else {
        r->ops->launch(r->device, (smp_stream)task->stream, &launch);
    }
    if (r->awaited[segment->task0 + index]) {
        r->ops->record(r->device, (smp_stream)task->stream, &r->events[record]);
    }
}

static void run_instance(smp_runner *r, const smp_pass *pass, uint32_t i)
{
    const smp_program *p = r->rank.program;
    const smp_segment *segment = &p->segments[p->order[i].segment];
    const smp_pattern *pattern = &p->patterns[p->order[i].pattern];
    uint32_t w = 0;

    for (uint32_t t = 0; t < segment->n_task; t++) {
        smp_stream stream = (smp_stream)p->tasks[segment->task0 + t].stream;

        for (; w < pattern->n_wait && p->waits[pattern->wait0 + w].task == t; w++) {
            const smp_wait *wait = &p->waits[pattern->wait0 + w];

            if (r->options.without_wait != pattern->wait0 + w + 1) {
                r->ops->wait(r->device, stream,
                             r->events[r->record0[i - wait->back] + wait->source]);
            }
        }
        smp_runner_issue(r, pass, i, t);
    }
}

static void *named_place(const smp_runner *r, const char *name)
{
    const smp_program *p = r->rank.program;
    const smp_instance first = { 0 };

    for (uint32_t i = 0; i < p->n_buffer; i++) {
        if (strcmp(p->buffers[i].name, name) == 0) {
            return r->memory[p->buffers[i].space]
                   + smp_buffer_address(p, &p->buffers[i], &first, 0);
        }
    }
    return NULL;
}

/* ---- steps ---- */

static smp_pass *new_pass(smp_runner *r)
{
    smp_pass *pass = &r->passes[r->begun++ % SMP_PASSES];

    pass->rank = r->rank;
    pass->step = r->step;
    pass->end_ns = 0;
    return pass;
}

void smp_runner_put_inputs(smp_runner *r, const smp_inputs *inputs)
{
    char *to = named_place(r, "inputs.next");
    uint64_t bytes = r->rank.job->settings.micro_batch * inputs->seq * sizeof *inputs->ids;

    r->ops->copy(r->device, SMP_STREAM_COMPUTE, to, inputs->ids, bytes);
    r->ops->copy(r->device, SMP_STREAM_COMPUTE, to + bytes, inputs->targets, bytes);
}

static bool has_other(const smp_runner *r, smp_stream stream)
{
    return stream != SMP_STREAM_COMPUTE && (r->streams >> stream & 1u) != 0;
}

/* A stream is ordered by itself; the others wait for the whole of the last step. */
static void follow_last(smp_runner *r)
{
    const smp_pass *last = &r->passes[(r->begun + SMP_PASSES - 2) % SMP_PASSES];

    for (smp_stream s = 0; s < SMP_STREAMS && r->begun > 1; s++) {
        if (has_other(r, s)) {
            r->ops->wait(r->device, s, last->end);
        }
    }
}

static smp_status stamp(void *context, const smp_launch *launch, smp_errors *errors)
{
    (void)launch;
    (void)errors;
    ((smp_pass *)context)->end_ns = smp_now_ns();
    return SMP_OK;
}

/* Where all streams meet. */
static void close_pass(smp_runner *r, smp_pass *pass)
{
    const char *scalars = named_place(r, "scalars");
    const smp_launch nothing = { .rank = &pass->rank };

    for (smp_stream s = 0; s < SMP_STREAMS; s++) {
        if (has_other(r, s)) {
            smp_event event;

            r->ops->record(r->device, s, &event);
            r->ops->wait(r->device, SMP_STREAM_COMPUTE, event);
        }
    }
    r->ops->copy(r->device, SMP_STREAM_COMPUTE, pass->scalars,
                 scalars + SMP_SCALARS_OFFSET_BYTES, sizeof pass->scalars);
    r->ops->call(r->device, SMP_STREAM_COMPUTE, stamp, pass, &nothing);
    r->ops->record(r->device, SMP_STREAM_COMPUTE, &pass->end);
}

smp_status smp_runner_begin(smp_runner *r, const smp_inputs *inputs, const smp_inputs *next,
                            smp_errors *errors)
{
    smp_status status = smp_runner_shape(r, inputs->seq, errors);
    smp_pass *pass;

    if (status != SMP_OK) {
        return status;
    }
    r->rank.rows = inputs->rows;
    pass = new_pass(r);
    pass->inputs = *inputs;
    pass->next = next ? *next : (smp_inputs){ 0 };
    follow_last(r);
    if (r->ahead != inputs->ids) {
        smp_runner_put_inputs(r, inputs);
    }
    r->ahead = pass->next.ids;
    for (uint32_t i = 0; i < r->rank.program->n_instance; i++) {
        run_instance(r, pass, i);
    }
    r->step += !inputs->rows.evaluating;
    close_pass(r, pass);
    return SMP_OK;
}

smp_status smp_runner_end(smp_runner *r, smp_errors *errors, const smp_pass **pass_p)
{
    const smp_pass *pass = &r->passes[r->ended++ % SMP_PASSES];

    *pass_p = pass;
    r->ops->await(r->device, pass->end);
    return pass->end_ns > 0 ? SMP_OK : r->ops->sync(r->device, errors);
}

smp_status smp_runner_step(smp_runner *r, const smp_inputs *inputs, smp_errors *errors,
                           const smp_pass **pass_p)
{
    smp_status status = smp_runner_begin(r, inputs, NULL, errors);

    return status == SMP_OK ? smp_runner_end(r, errors, pass_p) : status;
}

void *smp_runner_operand(const smp_runner *r, uint32_t instance, uint32_t task,
                         uint32_t operand)
{
    const smp_program *p = r->rank.program;
    const smp_instance *at = &p->order[instance];
    const smp_task *t = &p->tasks[p->segments[at->segment].task0 + task];

    return address_of(r, at, &p->accesses[t->access0 + operand]);
}

/* ---- parameters ---- */

void smp_runner_owned(smp_runner *r, void (*visit)(void *context, const smp_owned *owned),
                      void *context)
{
    const smp_program *p = r->rank.program;

    for (uint32_t i = 0; i < p->n_instance; i++) {
        const smp_segment *segment = &p->segments[p->order[i].segment];

        for (uint32_t t = 0; t < segment->n_task; t++) {
            const smp_task *task = &p->tasks[segment->task0 + t];

            if (task->op == SMP_OP_ADAMW || task->op == SMP_OP_SGD) {
                visit(context, &(smp_owned){ .unit = &p->units[task->dims[1]],
                                             .layer = p->order[i].layer,
                                             .first = task->dims[2],
                                             .elems = task->dims[0],
                                             .task = task,
                                             .instance = i,
                                             .task_index = t });
            }
        }
    }
}

enum { INIT_CHUNK = 4096 };

/* The values of one unit are made on the host in the master's dtype and copied. */
static void init_owned(void *context, const smp_owned *o)
{
    smp_runner *r = context;
    char *to = smp_runner_operand(r, o->instance, o->task_index, 0);
    smp_dtype t = (smp_dtype)o->task->dtype;
    smp_errors *errors = smp_errors_create();
    float *values = smp_heap_alloc(2 * INIT_CHUNK, sizeof *values);
    void *stored = values + INIT_CHUNK;

    for (uint64_t i = 0; i < o->elems; i += INIT_CHUNK) {
        uint64_t n = o->elems - i < INIT_CHUNK ? o->elems - i : INIT_CHUNK;

        smp_init_values(&r->rank, o->unit, o->layer, o->first + i, n, values);
        smp_store(stored, t, 0, values, n);
        r->ops->copy(r->device, SMP_STREAM_COMPUTE, to + i * smp_dtype_bytes(t), stored,
                     n * smp_dtype_bytes(t));
        if (r->ops->sync(r->device, errors) != SMP_OK) {
            break; /* the next sync of the caller fails as well */
        }
    }
    free(values);
    smp_errors_destroy(errors);
}

/* What follows the optimizer in its segment brings master parameters to where the next step
 * reads them; so it does with the first ones. */
static void spread_parameters(smp_runner *r, const smp_pass *pass)
{
    const smp_program *p = r->rank.program;

    for (uint32_t i = 0; i < p->n_instance; i++) {
        const smp_segment *segment = &p->segments[p->order[i].segment];

        if (strcmp(segment->name, "update") != 0) {
            continue;
        }
        for (uint32_t t = 0; t < segment->n_task; t++) {
            uint32_t op = p->tasks[segment->task0 + t].op;

            if (op != SMP_OP_ADAMW && op != SMP_OP_SGD) {
                smp_runner_issue(r, pass, i, t);
            }
        }
    }
}

smp_status smp_runner_init(smp_runner *r, smp_errors *errors)
{
    float state[SMP_SCALARS] = { 0 };
    smp_pass pass = { 0 };
    char *scalars = named_place(r, "scalars");
    bool half = r->rank.job->settings.precision == SMP_PRECISION_FP16;
    smp_status status;

    state[SMP_SCALAR_LOSS_SCALE] = half ? (float)r->rank.hyper.scaler.first : 1.0f;
    state[SMP_SCALAR_SHIFT] = (float)(r->rank.hyper.scaler.shift - 1);
    if (r->rank.hyper.loss_scale > 0) {
        state[SMP_SCALAR_LOSS_SCALE] = (float)r->rank.hyper.loss_scale;
    } else if (!half) {
        r->rank.hyper.loss_scale = 1; /* other types have the range of fp32 */
    }
    r->ops->copy(r->device, SMP_STREAM_COMPUTE, scalars + SMP_SCALARS_OFFSET_BYTES, state,
                 sizeof state);
    status = r->ops->sync(r->device, errors);
    if (status == SMP_OK) {
        smp_runner_owned(r, init_owned, r);
        pass.rank = r->rank;
        spread_parameters(r, &pass);
        status = r->ops->sync(r->device, errors);
    }
    return status;
}
