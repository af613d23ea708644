/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event engine: which task runs when.  Not what it costs (src/cost), nor what the times
 * mean (parts.c).
 *
 * An actor is a stream of a class.  It runs its tasks in issue order, one at a time, so at
 * most one event per actor is pending and the event queue never holds more than classes x
 * streams entries: it is a binary heap in one small array.  Everything else is looked up in
 * tables made once per run:
 *
 *   position   A task's running number on its stream is position0[instance][stream] + its rank
 *              among the tasks of its segment on that stream.  "Has the awaited task ended?"
 *              is then one comparison with the number of tasks its stream has completed.
 *   blocked    An actor that meets an unfinished wait remembers the position it needs and sets
 *              its bit with the stream it waits for; completing a task looks at those only.
 *
 * Collectives of communicators in which several classes meet are matched by (communicator
 * name, group, meeting) and their running number on it in issue order.
 *
 * Overlap.  With smp_engine_input.overlap a task runs slower beside tasks of other kinds on the
 * same device.  When what runs there has changed and time is about to pass, the rest of each
 * running task is computed from the time it has run at its old rate, and its end moved.  All
 * of this is differences of times in integers, so a shift in time shifts the result.  Where
 * classes meet, each works on the collective at its own rate and it ends when the last is done.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "sim/lane.h"

#include "base/numeric.h"

#include <stdlib.h>
#include <string.h>

#define NOBODY UINT32_MAX
enum { ALONE_Q16 = 1 << 16, STREAMS = SMP_STREAMS };

/* ENDING: done, but other classes still work on the collective. */
typedef enum actor_state {
    ACTOR_IDLE, ACTOR_ISSUE, ACTOR_RUNNING, ACTOR_MEETING, ACTOR_ENDING
} actor_state;

typedef struct actor {
    uint32_t instance;     /* of the task at the head; n_instance: all done */
    uint32_t item;         /* of that task in the segment's list of this stream */
    uint32_t wait;         /* next wait to look at */
    uint32_t need;         /* position awaited while blocked */
    uint32_t done;         /* tasks completed */
    uint32_t blocked;      /* streams of this class that await this one, as bits */
    uint32_t next_meeting; /* list of actors in one rendezvous */
    actor_state state;
    bool has_waits;        /* `wait` is set for the head */
    int64_t ready_ps;
    /* while running, where overlap is modelled */
    uint8_t kind;
    uint32_t slow_q16;     /* time over time alone, in 2^-16 */
    int64_t left_ps, since_ps; /* time alone that was left at `since` */
    uint32_t leader;       /* first actor of the collective it is in, or NOBODY */
    uint32_t unfinished;   /* of a leader: actors that still work */
} actor;

/* A collective that some classes have reached and others have not. */
typedef struct meeting {
    uint32_t sequence;
    uint32_t arrived;
    uint32_t first;        /* actor; linked by next_meeting */
    int64_t duration_ps;   /* longest of the classes' */
} meeting;

typedef struct channel {
    uint32_t members;      /* classes that meet here */
    uint32_t n_open;
    meeting *open;         /* members x STREAMS places: no class can be in more */
} channel;

typedef struct event {
    int64_t time_ps;
    uint32_t actor;
} event;

typedef struct engine {
    const smp_engine_input *input;
    smp_arena *arena;
    smp_lane *lanes;
    uint32_t n_lane;
    actor *actors;         /* [class * STREAMS + stream] */
    channel *channels;
    event *heap;
    uint32_t *place;       /* by actor: of its event in the heap */
    uint32_t n_heap;
    uint32_t *changed;     /* classes to rate anew */
    uint32_t n_changed;
    int64_t now_ps;
    uint32_t cause_class, cause_instance; /* the task that just ended */
    uint16_t cause_task;
    bool has_cause;
} engine;

/* ------------------------------------------------------------------- tables */

/* One communicator of one class, before channels are numbered. */
typedef struct seat {
    const smp_comm *comm;
    uint32_t lane, index;
} seat;

static int seat_compare(const void *a_, const void *b_)
{
    const seat *a = a_;
    const seat *b = b_;
    if (a->comm->group != b->comm->group) {
        return a->comm->group < b->comm->group ? -1 : 1;
    }
    if (a->comm->meeting != b->comm->meeting) {
        return a->comm->meeting < b->comm->meeting ? -1 : 1;
    }
    int order = strcmp(a->comm->name, b->comm->name);
    if (order != 0) {
        return order;
    }
    return a->lane < b->lane ? -1 : a->lane > b->lane;
}

static bool seat_meets(const seat *a, const seat *b)
{
    return a->comm->group == b->comm->group && a->comm->meeting == b->comm->meeting &&
           strcmp(a->comm->name, b->comm->name) == 0;
}

/* Numbers the communicators in which several classes meet. */
static void make_channels(engine *engine_)
{
    uint32_t n = 0;
    for (uint32_t c = 0; c < engine_->n_lane; c++) {
        smp_lane *lane_ = &engine_->lanes[c];
        lane_->channel = SMP_ARENA_ARRAY(engine_->arena, lane_->program->n_comm, uint32_t);
        n += lane_->program->n_comm;
    }
    seat *seats = SMP_ARENA_ARRAY(engine_->arena, n, seat);
    uint32_t used = 0;
    for (uint32_t c = 0; c < engine_->n_lane; c++) {
        const smp_program *program = engine_->lanes[c].program;
        for (uint32_t k = 0; k < program->n_comm; k++) {
            seats[used++] = (seat){.comm = &program->comms[k], .lane = c, .index = k};
        }
    }
    if (n > 0) {
        qsort(seats, n, sizeof *seats, seat_compare);
    }
    engine_->channels = SMP_ARENA_ARRAY(engine_->arena, n, channel);
    uint32_t n_channel = 0;
    for (uint32_t first = 0, end = 0; first < n; first = end) {
        for (end = first; end < n && seat_meets(&seats[first], &seats[end]); end++) {
        }
        uint32_t number = end - first > 1 ? n_channel++ : SMP_NO_CHANNEL;
        for (uint32_t i = first; i < end; i++) {
            engine_->lanes[seats[i].lane].channel[seats[i].index] = number;
        }
        if (number != SMP_NO_CHANNEL) {
            channel *channel_ = &engine_->channels[number];
            channel_->members = end - first;
            channel_->open = SMP_ARENA_ARRAY(engine_->arena, (size_t)(end - first) * STREAMS,
                                             meeting);
        }
    }
}

static void engine_init(engine *engine_, const smp_engine_input *input)
{
    const smp_step *step = input->step;
    smp_arena *arena = smp_arena_create();
    *engine_ = (engine){.input = input, .arena = arena, .n_lane = step->n_program};
    engine_->lanes = SMP_ARENA_ARRAY(arena, step->n_program, smp_lane);
    engine_->actors = SMP_ARENA_ARRAY(arena, (size_t)step->n_program * STREAMS, actor);
    engine_->heap = SMP_ARENA_ARRAY(arena, (size_t)step->n_program * STREAMS + 1, event);
    engine_->place = SMP_ARENA_ARRAY(arena, (size_t)step->n_program * STREAMS, uint32_t);
    engine_->changed = SMP_ARENA_ARRAY(arena, step->n_program, uint32_t);
    for (uint32_t c = 0; c < step->n_program; c++) {
        smp_lane *lane_ = &engine_->lanes[c];
        lane_->program = step->programs[c];
        lane_->duration_ps = input->duration_ps[c];
        lane_->drawn_ps = input->drawn_ps ? input->drawn_ps[c] : NULL;
        lane_->kinds = input->overlap ? input->kinds[c] : NULL;
        for (uint32_t k = 0; k < SMP_OVERLAP_KINDS; k++) {
            lane_->slow_q16[k] = ALONE_Q16;
        }
        smp_lane_make(arena, lane_, input->host_issue_ps ? input->host_issue_ps[c] : NULL);
    }
    make_channels(engine_);
    for (uint32_t c = 0; c < step->n_program; c++) {
        smp_lane_sequences(arena, &engine_->lanes[c]);
    }
}

/* -------------------------------------------------------------------- queue */

static inline bool event_before(const event *a, const event *b)
{
    return a->time_ps < b->time_ps || (a->time_ps == b->time_ps && a->actor < b->actor);
}

static void set_event(engine *engine_, uint32_t at, event event_)
{
    engine_->heap[at] = event_;
    engine_->place[event_.actor] = at;
}

/* Puts an event at or above `at`. */
static void sift_up(engine *engine_, uint32_t at, event event_)
{
    const event *heap = engine_->heap;
    while (at > 0 && event_before(&event_, &heap[(at - 1) / 2])) {
        set_event(engine_, at, heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    set_event(engine_, at, event_);
}

/* Puts an event at or below `at`. */
static void sift_down(engine *engine_, uint32_t at, event event_)
{
    const event *heap = engine_->heap;
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= engine_->n_heap) {
            break;
        }
        if (child + 1 < engine_->n_heap && event_before(&heap[child + 1], &heap[child])) {
            child++;
        }
        if (!event_before(&heap[child], &event_)) {
            break;
        }
        set_event(engine_, at, heap[child]);
        at = child;
    }
    set_event(engine_, at, event_);
}

static void push(engine *engine_, int64_t time_ps, uint32_t actor_index)
{
    sift_up(engine_, engine_->n_heap++, (event){.time_ps = time_ps, .actor = actor_index});
}

static event pop(engine *engine_)
{
    event top = engine_->heap[0];
    event last = engine_->heap[--engine_->n_heap];
    if (engine_->n_heap > 0) {
        sift_down(engine_, 0, last);
    }
    return top;
}

/* Moves the event of an actor to another time. */
static void move_event(engine *engine_, uint32_t actor_index, int64_t time_ps)
{
    const uint32_t at = engine_->place[actor_index];
    const event moved = {.time_ps = time_ps, .actor = actor_index};
    if (event_before(&moved, &engine_->heap[at])) {
        sift_up(engine_, at, moved);
    } else {
        sift_down(engine_, at, moved);
    }
}

/* ------------------------------------------------------------------ overlap */

enum { KIND_BITS = 8, KIND_MASK = (1 << KIND_BITS) - 1 };

/* Whether any collective is among the tasks of all kinds. */
static inline bool has_collective(uint64_t running)
{
    return running >> SMP_OVERLAP_IN_NODE * KIND_BITS != 0;
}

/* How much longer a task of each kind takes beside what else runs on its device: each other
 * task adds what one of its kind adds alone. */
static void find_slows(const engine *engine_, smp_lane *lane_)
{
    lane_->rated = lane_->now_running;
    for (uint32_t kind = 0; kind < SMP_OVERLAP_KINDS; kind++) {
        uint64_t slow_q16 = ALONE_Q16;
        for (uint32_t k = 1; k < SMP_OVERLAP_KINDS; k++) {
            const uint32_t n = lane_->rated >> k * KIND_BITS & KIND_MASK;
            const uint32_t others = n - (n > 0 && k == kind);
            const uint32_t more_q16 =
                engine_->input->overlap->slow_q16[kind][k] - ALONE_Q16;
            if (others > 0 && more_q16 > 0) {
                slow_q16 = slow_q16 * (ALONE_Q16 + (uint64_t)others * more_q16) >> 16;
            }
        }
        lane_->slow_q16[kind] = (uint32_t)slow_q16;
    }
}

/* Time that `alone_ps` takes at a rate, rounded up; and time alone of what was done. */
static int64_t slowed(int64_t alone_ps, uint32_t slow_q16)
{
    const int64_t low = alone_ps & (ALONE_Q16 - 1);
    return (alone_ps >> 16) * slow_q16 + ((low * slow_q16 + ALONE_Q16 - 1) >> 16);
}

static int64_t done_alone(int64_t elapsed_ps, uint32_t slow_q16)
{
    return elapsed_ps / slow_q16 * ALONE_Q16 + ((elapsed_ps % slow_q16) << 16) / slow_q16;
}

static void rate_anew(engine *engine_, uint32_t c)
{
    smp_lane *lane_ = &engine_->lanes[c];
    lane_->changed = false;
    if (!has_collective(lane_->now_running | lane_->rated)) {
        return; /* only collectives slow, or are slowed */
    }
    if (lane_->now_running != lane_->rated) {
        find_slows(engine_, lane_);
    }
    for (uint32_t s = 0; lane_->running >> s != 0; s++) {
        actor *actor_ = &engine_->actors[c * STREAMS + s];
        const uint32_t slow_q16 = lane_->slow_q16[actor_->kind];
        if (!(lane_->running >> s & 1u) || slow_q16 == actor_->slow_q16 ||
            actor_->state != ACTOR_RUNNING) {
            continue;
        }
        const int64_t done = done_alone(engine_->now_ps - actor_->since_ps, actor_->slow_q16);
        actor_->left_ps = done < actor_->left_ps ? actor_->left_ps - done : 0;
        actor_->since_ps = engine_->now_ps;
        actor_->slow_q16 = slow_q16;
        move_event(engine_, c * STREAMS + s,
                   engine_->now_ps + slowed(actor_->left_ps, slow_q16));
    }
}

static void rate_all(engine *engine_)
{
    while (engine_->n_changed > 0) {
        rate_anew(engine_, engine_->changed[--engine_->n_changed]);
    }
}

/* A task of a stream starts or ends on its device. */
static void note_running(engine *engine_, uint32_t index, bool starts)
{
    const uint32_t c = index / STREAMS;
    smp_lane *lane_ = &engine_->lanes[c];
    const uint8_t kind = engine_->actors[index].kind;
    const uint64_t one = kind == SMP_OVERLAP_NONE ? 0 : UINT64_C(1) << kind * KIND_BITS;
    lane_->running ^= 1u << index % STREAMS;
    lane_->now_running += starts ? one : 0 - one;
    if (!lane_->changed && kind != SMP_OVERLAP_NONE) {
        lane_->changed = true;
        engine_->changed[engine_->n_changed++] = c;
    }
}

/* ---------------------------------------------------------------------- run */

/* The stored task at the head of an actor. */
static inline uint32_t head_task(const smp_lane *lane_, const actor *actor_, uint32_t stream)
{
    uint32_t g = lane_->program->order[actor_->instance].segment;
    return lane_->lists[lane_->list0[g * STREAMS + stream] + actor_->item];
}

/* Moves to the next task of the stream at or after (instance, item). */
static void settle(const smp_lane *lane_, actor *actor_, uint32_t stream)
{
    const smp_program *program = lane_->program;
    while (actor_->instance < program->n_instance) {
        const uint32_t *list0 =
            &lane_->list0[program->order[actor_->instance].segment * STREAMS + stream];
        if (actor_->item < list0[1] - list0[0]) {
            break;
        }
        actor_->instance++;
        actor_->item = 0;
    }
    actor_->has_waits = false;
    actor_->state = ACTOR_IDLE;
}

static void keep_ready(engine *engine_, uint32_t c, const actor *actor_, uint32_t task,
                       bool by_host)
{
    if (!engine_->input->records) {
        return;
    }
    smp_record *record =
        &engine_->input->records[c][engine_->input->record0[c][actor_->instance] + task];
    record->ready_ps = actor_->ready_ps;
    bool caused = engine_->has_cause && !by_host;
    record->cause_class = (uint16_t)(caused ? engine_->cause_class : c);
    record->cause_instance = caused ? engine_->cause_instance : actor_->instance;
    record->cause_task = caused ? engine_->cause_task : (uint16_t)task;
}

/* Task `task` of an instance, which is task `at` of the program. */
static int64_t duration_of(const smp_lane *lane_, uint32_t instance, uint32_t task, uint32_t at)
{
    const int64_t *drawn_ps = lane_->drawn_ps ? lane_->drawn_ps[instance] : NULL;
    return drawn_ps ? drawn_ps[task] : lane_->duration_ps[at];
}

/* Starts the head of an actor now; it lasts duration_ps where nothing slows
 * it. */
static void start(engine *engine_, uint32_t index, uint32_t task, int64_t duration_ps)
{
    uint32_t c = index / STREAMS;
    const smp_lane *lane_ = &engine_->lanes[c];
    actor *actor_ = &engine_->actors[index];
    actor_->state = ACTOR_RUNNING;
    if (engine_->input->records) {
        smp_record *record =
            &engine_->input->records[c][engine_->input->record0[c][actor_->instance] + task];
        record->start_ps = engine_->now_ps;
        record->end_ps = engine_->now_ps + duration_ps;
    }
    push(engine_, engine_->now_ps + duration_ps, index);
    if (lane_->kinds) {
        const smp_program *program = lane_->program;
        const uint32_t segment = program->order[actor_->instance].segment;
        actor_->kind = lane_->kinds[program->segments[segment].task0 + task];
        actor_->slow_q16 = ALONE_Q16;
        actor_->left_ps = duration_ps;
        actor_->since_ps = engine_->now_ps;
        actor_->leader = NOBODY;
        note_running(engine_, index, true);
    }
}

static void start_all(engine *engine_, const meeting *meeting_, bool by_host)
{
    uint32_t index = meeting_->first;
    int64_t duration_ps = meeting_->duration_ps;
    while (index != UINT32_MAX) {
        actor *actor_ = &engine_->actors[index];
        const smp_lane *lane_ = &engine_->lanes[index / STREAMS];
        uint32_t next = actor_->next_meeting;
        uint32_t task = head_task(lane_, actor_, index % STREAMS);
        /* What let the last class arrive is what let all of them start. */
        keep_ready(engine_, index / STREAMS, actor_, task, by_host);
        start(engine_, index, task, duration_ps);
        actor_->leader = meeting_->first;
        index = next;
    }
    engine_->actors[meeting_->first].unfinished = meeting_->arrived;
}

/* The head of an actor reaches a collective in which several classes meet. */
static void arrive(engine *engine_, uint32_t index, uint32_t task, bool by_host)
{
    const smp_lane *lane_ = &engine_->lanes[index / STREAMS];
    actor *actor_ = &engine_->actors[index];
    const smp_program *program = lane_->program;
    uint32_t at = program->segments[program->order[actor_->instance].segment].task0 + task;
    const smp_site *site_ = &lane_->sites[at];
    channel *channel_ = &engine_->channels[lane_->channel[site_->comm]];
    uint32_t sequence =
        lane_->sequence0[(size_t)actor_->instance * program->n_comm + site_->comm] +
        site_->comm_rank;
    uint32_t m = 0;
    while (m < channel_->n_open && channel_->open[m].sequence != sequence) {
        m++;
    }
    meeting *meeting_ = &channel_->open[m];
    if (m == channel_->n_open) {
        channel_->n_open++;
        *meeting_ = (meeting){.sequence = sequence, .first = UINT32_MAX};
    }
    actor_->state = ACTOR_MEETING;
    actor_->next_meeting = meeting_->first;
    meeting_->first = index;
    meeting_->arrived++;
    const int64_t duration_ps = duration_of(lane_, actor_->instance, task, at);
    if (duration_ps > meeting_->duration_ps) {
        meeting_->duration_ps = duration_ps;
    }
    if (meeting_->arrived == channel_->members) {
        meeting complete = *meeting_;
        channel_->open[m] = channel_->open[--channel_->n_open];
        start_all(engine_, &complete, by_host);
    }
}

/* True when every wait of the head is done; else notes what it is blocked by. */
static bool waits_done(engine *engine_, uint32_t c, uint32_t stream, uint32_t task)
{
    const smp_lane *lane_ = &engine_->lanes[c];
    const smp_program *program = lane_->program;
    actor *actors = &engine_->actors[c * STREAMS];
    actor *actor_ = &actors[stream];
    uint32_t p = program->order[actor_->instance].pattern;
    if (task >= lane_->wait_tasks[p]) {
        return true;
    }
    const uint32_t *index = &lane_->wait_index[lane_->wait_index0[p] + task];
    if (!actor_->has_waits) {
        actor_->wait = index[0];
        actor_->has_waits = true;
    }
    for (; actor_->wait < index[1]; actor_->wait++) {
        const smp_wait *wait = &program->waits[actor_->wait];
        uint32_t source = actor_->instance - wait->back;
        uint32_t at = program->segments[program->order[source].segment].task0 + wait->source;
        const smp_site *site_ = &lane_->sites[at];
        uint32_t position = lane_->position0[(size_t)source * STREAMS + site_->stream] +
                            site_->rank;
        if (actors[site_->stream].done <= position) {
            actor_->need = position;
            actors[site_->stream].blocked |= 1u << stream;
            return false;
        }
    }
    return true;
}

/* Starts the head of a free actor if it may. */
static void try_start(engine *engine_, uint32_t index)
{
    uint32_t c = index / STREAMS;
    uint32_t stream = index % STREAMS;
    const smp_lane *lane_ = &engine_->lanes[c];
    const smp_program *program = lane_->program;
    actor *actor_ = &engine_->actors[index];
    if (actor_->instance >= program->n_instance) {
        return;
    }
    uint32_t task = head_task(lane_, actor_, stream);
    bool by_host = actor_->state == ACTOR_ISSUE;
    if (!by_host && !waits_done(engine_, c, stream, task)) {
        return;
    }
    uint32_t at = program->segments[program->order[actor_->instance].segment].task0 + task;
    actor_->ready_ps = engine_->now_ps;
    if (lane_->issue0_ps && !by_host) {
        int64_t issued_ps = lane_->issue0_ps[actor_->instance] + lane_->issue_ps[at];
        if (issued_ps > engine_->now_ps) {
            actor_->state = ACTOR_ISSUE;
            push(engine_, issued_ps, index);
            return;
        }
    }
    if (lane_->sites[at].comm != SMP_NO_COMM) {
        arrive(engine_, index, task, by_host);
        return;
    }
    keep_ready(engine_, c, actor_, task, by_host);
    start(engine_, index, task, duration_of(lane_, actor_->instance, task, at));
}

/* Whether other classes still work on the collective whose part of this actor is done; the
 * last one lets all of them end. */
static bool awaits_others(engine *engine_, uint32_t index)
{
    actor *actor_ = &engine_->actors[index];
    const uint32_t leader = actor_->leader;
    if (!engine_->input->overlap || leader == NOBODY) {
        return false;
    }
    actor_->state = ACTOR_ENDING;
    if (--engine_->actors[leader].unfinished == 0) {
        for (uint32_t i = leader; i != UINT32_MAX; i = engine_->actors[i].next_meeting) {
            engine_->actors[i].leader = NOBODY;
            push(engine_, engine_->now_ps, i);
        }
    }
    return true;
}

/* What the end of a task leaves where overlap is modelled. */
static void end_running(engine *engine_, uint32_t index)
{
    const uint32_t c = index / STREAMS;
    const actor *actor_ = &engine_->actors[index];
    note_running(engine_, index, false);
    if (engine_->input->records) {
        const uint32_t task = head_task(&engine_->lanes[c], actor_, index % STREAMS);
        engine_->input->records[c][engine_->input->record0[c][actor_->instance] + task].end_ps =
            engine_->now_ps;
    }
}

/* The running task of an actor ends now. */
static void complete(engine *engine_, uint32_t index)
{
    uint32_t c = index / STREAMS;
    uint32_t stream = index % STREAMS;
    const smp_lane *lane_ = &engine_->lanes[c];
    actor *actor_ = &engine_->actors[index];
    if (lane_->kinds) {
        end_running(engine_, index);
    }
    engine_->has_cause = true;
    engine_->cause_class = c;
    engine_->cause_instance = actor_->instance;
    engine_->cause_task = (uint16_t)head_task(lane_, actor_, stream);
    actor_->done++;
    actor_->item++;
    settle(lane_, actor_, stream);
    try_start(engine_, index);
    uint32_t waiting = engine_->actors[index].blocked;
    for (uint32_t s = 0; waiting >> s != 0; s++) {
        actor *other = &engine_->actors[c * STREAMS + s];
        if ((waiting >> s & 1u) && other->need < actor_->done) {
            actor_->blocked &= ~(1u << s);
            try_start(engine_, c * STREAMS + s);
        }
    }
}

/* ----------------------------------------------------------------- deadlock */

/* Names what the head of an actor is stuck on. */
static void describe_stuck(const engine *engine_, uint32_t index, smp_text *text)
{
    uint32_t stream = index % STREAMS;
    const smp_lane *lane_ = &engine_->lanes[index / STREAMS];
    const smp_program *program = lane_->program;
    const actor *actor_ = &engine_->actors[index];
    const smp_instance *instance = &program->order[actor_->instance];
    const smp_segment *segment = &program->segments[instance->segment];
    uint32_t task = head_task(lane_, actor_, stream);
    smp_text_add(text, "%sclass %u stream %s: %s.%s (layer %u, micro-batch %u)",
                 text->length ? "; " : "", index / STREAMS, smp_stream_name((smp_stream)stream),
                 segment->name, program->tasks[segment->task0 + task].name,
                 (unsigned)instance->layer, instance->micro_batch);
    if (actor_->state == ACTOR_MEETING) {
        smp_text_add(text, " waits for other ranks");
        return;
    }
    const smp_wait *wait = &program->waits[actor_->wait];
    const smp_instance *source = &program->order[actor_->instance - wait->back];
    const smp_segment *other = &program->segments[source->segment];
    smp_text_add(text, " waits for %s.%s (layer %u, micro-batch %u)", other->name,
                 program->tasks[other->task0 + wait->source].name, (unsigned)source->layer,
                 source->micro_batch);
}

static smp_status check_finished(const engine *engine_, smp_errors *errors)
{
    enum { SHOWN = 4 };
    smp_text text = {0};
    uint32_t stuck = 0;
    for (uint32_t index = 0; index < engine_->n_lane * STREAMS; index++) {
        const smp_lane *lane_ = &engine_->lanes[index / STREAMS];
        if (engine_->actors[index].instance >= lane_->program->n_instance) {
            continue;
        }
        if (stuck++ < SHOWN) {
            describe_stuck(engine_, index, &text);
        }
    }
    if (stuck == 0) {
        return SMP_OK;
    }
    smp_fail(errors, SMP_SYSTEM, NULL, "the step program deadlocks with %u streams stuck: %s%s",
             stuck, text.data, stuck > SHOWN ? "; ..." : "");
    smp_text_free(&text);
    return SMP_SYSTEM;
}

/* -------------------------------------------------------------------- entry */

smp_status smp_engine_simulate(const smp_engine_input *input, smp_errors *errors,
                               int64_t *end_ps_p, uint32_t *slowest_p)
{
    engine engine_;
    engine_init(&engine_, input);
    uint32_t n_actor = engine_.n_lane * STREAMS;
    for (uint32_t index = 0; index < n_actor; index++) {
        settle(&engine_.lanes[index / STREAMS], &engine_.actors[index], index % STREAMS);
    }
    for (uint32_t index = 0; index < n_actor; index++) {
        if (engine_.actors[index].state == ACTOR_IDLE) {
            try_start(&engine_, index);
        }
    }
    uint32_t slowest = 0;
    int64_t end_ps = 0;
    while (engine_.n_heap > 0) {
        if (engine_.n_changed > 0 && engine_.heap[0].time_ps > engine_.now_ps) {
            rate_all(&engine_);
        }
        event event_ = pop(&engine_);
        engine_.now_ps = event_.time_ps;
        if (engine_.actors[event_.actor].state == ACTOR_ISSUE) {
            try_start(&engine_, event_.actor);
            continue;
        }
        if (awaits_others(&engine_, event_.actor)) {
            continue;
        }
        uint32_t c = event_.actor / STREAMS;
        if (event_.time_ps > end_ps || c < slowest) {
            slowest = c;
        }
        end_ps = event_.time_ps;
        complete(&engine_, event_.actor);
    }
    smp_status status = check_finished(&engine_, errors);
    smp_arena_destroy(engine_.arena);
    if (status == SMP_OK) {
        *end_ps_p = end_ps;
        *slowest_p = slowest;
    }
    return status;
}

smp_status smp_engine_run(const smp_step *step, int64_t *const *duration_ps,
                          smp_record *const *records, const uint32_t *const *record0,
                          smp_errors *errors, int64_t *end_ps_p, uint32_t *slowest_p)
{
    smp_engine_input input = {
        .step = step, .duration_ps = duration_ps, .records = records, .record0 = record0
    };
    return smp_engine_simulate(&input, errors, end_ps_p, slowest_p);
}

uint64_t smp_records_index(const smp_program *program, uint32_t *record0)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < program->n_instance; i++) {
        record0[i] = n;
        n += program->segments[program->order[i].segment].n_task;
    }
    record0[program->n_instance] = n;
    return n;
}
