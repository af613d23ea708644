/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One topological order for the tasks of all classes, and slots for their ends.
 *
 * Heads of streams advance like actors of the event engine, but without time: a head may be
 * taken when what it waits for has been taken, a collective when all classes that meet there
 * stand at it.  A vector is kept while its stream has no later task or a wait on it is ahead;
 * then its slot is used again, the latest first, for that one is in the cache.
 */
#include "config.h"

#include "sim/apart_int.h"

#include "mesh/mesh.h"

#include <stdlib.h>
#include <string.h>

enum { STREAMS = SMP_STREAMS };

/* A class while it is being put in order.  `number` of a task: its record's, record0 + task. */
typedef struct lane {
    const smp_program *program;
    const uint32_t *record0;
    uint32_t *instance_of;       /* by number */
    uint32_t *queue;             /* numbers by stream, each in issue order */
    uint32_t queue0[STREAMS + 1];
    uint32_t head[STREAMS];      /* in queue */
    uint32_t stream_task[STREAMS]; /* number of the last one taken, or SMP_APART_NONE */
    uint32_t *wait0;             /* by number: its first wait, as index + 1; 0: none */
    uint32_t *uses;              /* by number: waits on it that are ahead, and its stream */
    uint32_t *slot;              /* by number, once taken; SMP_APART_NONE before */
    uint32_t *sequence;          /* by number, of a collective on its communicator */
    uint32_t *channel;           /* by communicator */
    uint32_t *free_slots, n_free, capacity_free, n_slot;
} lane;

/* Where classes meet, and who stands there. */
typedef struct channel {
    const smp_comm *comm;
    uint32_t members, arrived, sequence;
    uint32_t *number;            /* by class: of the task that stands here */
    uint32_t *lanes;             /* that have arrived */
    uint32_t circle, wait;
} channel;

typedef struct compiler {
    smp_apart *apart;
    smp_arena *scratch;
    lane *lanes;
    channel *channels;
    uint32_t n_channel;
    uint64_t capacity_op, n_left;
} compiler;

/* ------------------------------------------------------------------ circles */

static uint32_t find_circle(smp_apart *a, const smp_comm *comm)
{
    for (uint32_t i = 0; i < a->n_circle; i++) {
        if (a->circles[i].group == comm->group && a->circles[i].ranks == comm->ranks) {
            return i;
        }
    }
    const smp_mesh *mesh = a->simulation->step->mesh;
    smp_apart_circle *circle = &a->circles[a->n_circle];
    uint32_t *group_of_rank = smp_heap_alloc(a->world, sizeof *group_of_rank);
    uint32_t *members =
        smp_heap_alloc(smp_mesh_group_size(mesh, comm->group), sizeof *members);
    *circle = (smp_apart_circle){.group = comm->group, .ranks = comm->ranks};
    circle->group_of = SMP_ARENA_ARRAY(a->arena, a->world, uint32_t);
    circle->lowest = SMP_ARENA_ARRAY(a->arena, a->world / comm->ranks, uint32_t);
    circle->link = SMP_ARENA_ARRAY(a->arena, a->world / comm->ranks, double);
    /* Ranks ascend, and so do the members of a group: a group is met at its lowest rank.  A
     * communicator of fewer ranks than its group is a block of consecutive members. */
    for (uint32_t rank = 0; rank < a->world; rank++) {
        const uint32_t me = smp_mesh_group_rank(mesh, comm->group, rank);
        if (me % comm->ranks != 0) {
            continue;
        }
        smp_mesh_members(mesh, comm->group, rank, members);
        circle->lowest[circle->n_group] = rank;
        for (uint32_t i = 0; i < comm->ranks; i++) {
            group_of_rank[members[me + i]] = circle->n_group;
        }
        circle->n_group++;
    }
    for (uint32_t p = 0; p < a->world; p++) {
        circle->group_of[p] = group_of_rank[a->rank_of[p]];
    }
    free(members);
    free(group_of_rank);
    return a->n_circle++;
}

static uint32_t find_wait(smp_apart *a, const char *name)
{
    for (uint32_t i = 0; i < a->n_wait; i++) {
        if (strcmp(a->waits[i].comm, name) == 0) {
            return i;
        }
    }
    a->waits[a->n_wait].comm = name;
    return a->n_wait++;
}

/* ----------------------------------------------------------------- channels */

static void make_channels(compiler *k)
{
    smp_apart *a = k->apart;
    uint32_t most = 0;
    for (uint32_t c = 0; c < a->n_class; c++) {
        most += k->lanes[c].program->n_comm;
    }
    k->channels = SMP_ARENA_ARRAY(k->scratch, most, channel);
    a->circles = SMP_ARENA_ARRAY(a->arena, most, smp_apart_circle);
    a->waits = SMP_ARENA_ARRAY(a->arena, most, smp_apart_wait);
    for (uint32_t c = 0; c < a->n_class; c++) {
        lane *lane_ = &k->lanes[c];
        lane_->channel = SMP_ARENA_ARRAY(k->scratch, lane_->program->n_comm, uint32_t);
        for (uint32_t i = 0; i < lane_->program->n_comm; i++) {
            const smp_comm *comm = &lane_->program->comms[i];
            uint32_t n = 0;
            while (n < k->n_channel && !(k->channels[n].comm->group == comm->group &&
                                         k->channels[n].comm->meeting == comm->meeting &&
                                         strcmp(k->channels[n].comm->name, comm->name) == 0)) {
                n++;
            }
            channel *channel_ = &k->channels[n];
            if (n == k->n_channel) {
                k->n_channel++;
                *channel_ = (channel){.comm = comm};
                channel_->number = SMP_ARENA_ARRAY(k->scratch, a->n_class, uint32_t);
                channel_->lanes = SMP_ARENA_ARRAY(k->scratch, a->n_class, uint32_t);
                channel_->circle = find_circle(a, comm);
                channel_->wait = find_wait(a, comm->name);
            }
            channel_->members++;
            lane_->channel[i] = n;
        }
    }
}

/* -------------------------------------------------------------------- lanes */

static const smp_task *task_of(const lane *lane_, uint32_t number)
{
    const uint32_t i = lane_->instance_of[number];
    const smp_segment *segment = &lane_->program->segments[lane_->program->order[i].segment];
    return &lane_->program->tasks[segment->task0 + (number - lane_->record0[i])];
}

static void number_tasks(compiler *k, lane *lane_, uint32_t n)
{
    const smp_program *program = lane_->program;
    uint32_t *count = SMP_ARENA_ARRAY(k->scratch, (size_t)program->n_comm + 1, uint32_t);
    lane_->instance_of = SMP_ARENA_ARRAY(k->scratch, n, uint32_t);
    lane_->queue = SMP_ARENA_ARRAY(k->scratch, n, uint32_t);
    lane_->sequence = SMP_ARENA_ARRAY(k->scratch, n, uint32_t);
    for (uint32_t i = 0; i < program->n_instance; i++) {
        for (uint32_t at = lane_->record0[i]; at < lane_->record0[i + 1]; at++) {
            lane_->instance_of[at] = i;
            const smp_task *task = task_of(lane_, at);
            lane_->queue0[task->stream + 1]++;
            if (task->comm != SMP_NO_COMM) {
                lane_->sequence[at] = count[task->comm]++;
            }
        }
    }
    for (uint32_t s = 0; s < STREAMS; s++) {
        lane_->queue0[s + 1] += lane_->queue0[s];
        lane_->head[s] = lane_->queue0[s];
        lane_->stream_task[s] = SMP_APART_NONE;
    }
    for (uint32_t at = 0; at < n; at++) {
        lane_->queue[lane_->head[task_of(lane_, at)->stream]++] = at;
    }
    memcpy(lane_->head, lane_->queue0, sizeof lane_->head);
}

static void count_uses(compiler *k, lane *lane_, uint32_t n)
{
    const smp_program *program = lane_->program;
    lane_->wait0 = SMP_ARENA_ARRAY(k->scratch, n, uint32_t);
    lane_->uses = SMP_ARENA_ARRAY(k->scratch, n, uint32_t);
    lane_->slot = SMP_ARENA_ARRAY(k->scratch, n, uint32_t);
    memset(lane_->slot, 0xff, n * sizeof *lane_->slot);
    for (uint32_t at = 0; at < n; at++) {
        lane_->uses[at] = 1; /* its stream: what comes next there, or the end of the step */
    }
    for (uint32_t i = 0; i < program->n_instance; i++) {
        const smp_pattern *pattern = &program->patterns[program->order[i].pattern];
        for (uint32_t w = pattern->wait0 + pattern->n_wait; w-- > pattern->wait0;) {
            const smp_wait *wait = &program->waits[w];
            lane_->wait0[lane_->record0[i] + wait->task] = w + 1;
            lane_->uses[lane_->record0[i - wait->back] + wait->source]++;
        }
    }
}

/* -------------------------------------------------------------------- order */

static uint32_t take_slot(lane *lane_)
{
    return lane_->n_free > 0 ? lane_->free_slots[--lane_->n_free] : lane_->n_slot++;
}

static void drop_use(lane *lane_, uint32_t number)
{
    if (--lane_->uses[number] == 0) {
        SMP_GROW(lane_->free_slots, lane_->n_free, lane_->capacity_free);
        lane_->free_slots[lane_->n_free++] = lane_->slot[number];
    }
}

typedef struct wait_range { uint32_t from, to; } wait_range;

static wait_range waits_of(const lane *lane_, uint32_t number)
{
    const smp_program *program = lane_->program;
    const uint32_t i = lane_->instance_of[number];
    const smp_pattern *pattern = &program->patterns[program->order[i].pattern];
    const uint32_t end = pattern->wait0 + pattern->n_wait;
    wait_range range = {0, 0};
    if (lane_->wait0[number] > 0) {
        range.from = range.to = lane_->wait0[number] - 1;
        while (range.to < end &&
               program->waits[range.to].task == program->waits[range.from].task) {
            range.to++;
        }
    }
    return range;
}

static uint32_t awaited(const lane *lane_, uint32_t number, uint32_t w)
{
    const smp_wait *wait = &lane_->program->waits[w];
    return lane_->record0[lane_->instance_of[number] - wait->back] + wait->source;
}

static bool may_be_taken(const lane *lane_, uint32_t number)
{
    const wait_range range = waits_of(lane_, number);
    for (uint32_t w = range.from; w < range.to; w++) {
        if (lane_->slot[awaited(lane_, number, w)] == SMP_APART_NONE) {
            return false;
        }
    }
    return true;
}

static void add_source(smp_apart *a, uint32_t slot)
{
    SMP_GROW(a->sources, a->n_source, a->source_capacity);
    a->sources[a->n_source++] = slot;
}

/* When the host issued the task, where the class waited for nothing else. */
static int64_t issue_of(const smp_record *record, uint32_t c, uint32_t instance, uint32_t task)
{
    const bool by_host = record->cause_class == c && record->cause_instance == instance &&
                         record->cause_task == task;
    return by_host ? record->ready_ps : 0;
}

/* Appends the operation of a task. */
static smp_apart_op *emit(compiler *k, uint32_t c, uint32_t number)
{
    smp_apart *a = k->apart;
    lane *lane_ = &k->lanes[c];
    const uint32_t s = task_of(lane_, number)->stream;
    const wait_range range = waits_of(lane_, number);
    const smp_record *record = &a->simulation->records[c][number];
    const uint32_t i = lane_->instance_of[number];
    const uint32_t t = number - lane_->record0[i];
    SMP_GROW(a->ops, a->n_op, k->capacity_op);
    smp_apart_op *op = &a->ops[a->n_op++];
    *op = (smp_apart_op){.duration_ps = record->end_ps - record->start_ps, .klass = c,
                         .issue_ps = issue_of(record, c, i, t), .instance = i,
                         .task = (uint16_t)t, .source0 = (uint32_t)a->n_source};
    if (lane_->stream_task[s] != SMP_APART_NONE) {
        add_source(a, lane_->slot[lane_->stream_task[s]]);
    }
    for (uint32_t w = range.from; w < range.to; w++) {
        add_source(a, lane_->slot[awaited(lane_, number, w)]);
    }
    op->n_source = (uint32_t)a->n_source - op->source0;
    /* Taken before the sources are released: an operation does not write over what it reads. */
    lane_->slot[number] = op->slot = take_slot(lane_);
    if (lane_->stream_task[s] != SMP_APART_NONE) {
        drop_use(lane_, lane_->stream_task[s]);
    }
    for (uint32_t w = range.from; w < range.to; w++) {
        drop_use(lane_, awaited(lane_, number, w));
    }
    lane_->stream_task[s] = number;
    lane_->head[s]++;
    k->n_left--;
    return op;
}

/* A class stands at a collective; true when it was the last, and all have gone through. */
static bool meet(compiler *k, uint32_t c, uint32_t number)
{
    const lane *lane_ = &k->lanes[c];
    channel *channel_ = &k->channels[lane_->channel[task_of(lane_, number)->comm]];
    for (uint32_t i = 0; i < channel_->arrived; i++) {
        if (channel_->lanes[i] == c) {
            return false; /* stands there already */
        }
    }
    if (channel_->arrived > 0 && channel_->sequence != lane_->sequence[number]) {
        return false;
    }
    channel_->sequence = lane_->sequence[number];
    channel_->lanes[channel_->arrived++] = c;
    channel_->number[c] = number;
    if (channel_->arrived < channel_->members) {
        return false;
    }
    for (uint32_t i = 0; i < channel_->members; i++) {
        smp_apart_op *op = emit(k, channel_->lanes[i], channel_->number[channel_->lanes[i]]);
        op->meets = true;
        op->completes = i + 1 == channel_->members;
        op->n_meet = channel_->members;
        op->circle = channel_->circle;
        op->wait = channel_->wait;
    }
    channel_->arrived = 0;
    return true;
}

/* Takes the heads of a class as far as they go; true when any was taken. */
static bool advance(compiler *k, uint32_t c)
{
    lane *lane_ = &k->lanes[c];
    bool any = false;
    for (bool again = true; again;) {
        again = false;
        for (uint32_t s = 0; s < STREAMS; s++) {
            while (lane_->head[s] < lane_->queue0[s + 1]) {
                const uint32_t number = lane_->queue[lane_->head[s]];
                if (!may_be_taken(lane_, number)) {
                    break;
                }
                if (task_of(lane_, number)->comm == SMP_NO_COMM) {
                    (void)emit(k, c, number);
                } else if (!meet(k, c, number)) {
                    break;
                }
                again = any = true;
            }
        }
    }
    return any;
}

static smp_status put_in_order(compiler *k, smp_errors *errors)
{
    for (bool again = true; again && k->n_left > 0;) {
        again = false;
        for (uint32_t c = 0; c < k->apart->n_class; c++) {
            again = advance(k, c) || again;
        }
    }
    if (k->n_left > 0) {
        return smp_fail(errors, SMP_SYSTEM, NULL,
                        "the step program deadlocks: %llu tasks of its classes cannot be "
                        "ordered",
                        (unsigned long long)k->n_left);
    }
    return SMP_OK;
}

smp_status smp_apart_compile(smp_apart *apart, smp_errors *errors)
{
    compiler k = {.apart = apart, .scratch = smp_arena_create()};
    k.lanes = SMP_ARENA_ARRAY(k.scratch, apart->n_class, lane);
    for (uint32_t c = 0; c < apart->n_class; c++) {
        const smp_program *program = apart->simulation->step->programs[c];
        const uint32_t n = apart->simulation->record0[c][program->n_instance];
        k.lanes[c] = (lane){.program = program, .record0 = apart->simulation->record0[c]};
        number_tasks(&k, &k.lanes[c], n);
        count_uses(&k, &k.lanes[c], n);
        k.n_left += n;
    }
    make_channels(&k);
    const smp_status status = put_in_order(&k, errors);
    apart->n_slot = SMP_ARENA_ARRAY(apart->arena, apart->n_class, uint32_t);
    apart->final = SMP_ARENA_ARRAY(apart->arena, (size_t)apart->n_class * STREAMS, uint32_t);
    for (uint32_t c = 0; c < apart->n_class; c++) {
        const lane *lane_ = &k.lanes[c];
        apart->n_slot[c] = lane_->n_slot;
        for (uint32_t s = 0; s < STREAMS; s++) {
            const uint32_t number = lane_->stream_task[s];
            apart->final[c * STREAMS + s] =
                number != SMP_APART_NONE ? lane_->slot[number] : SMP_APART_NONE;
        }
        free(lane_->free_slots);
    }
    smp_arena_destroy(k.scratch);
    return status;
}
