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
 * Overlap (engine_rates.c), with smp_engine_input.overlap: where classes meet, each works on
 * the collective at its own rate and it ends when the last is done.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "sim/engine_queue.h"
#include "sim/watch.h"

#include <stdlib.h>

/* ---------------------------------------------------------------------- run */

/* The stored task at the head of an actor. */
static inline uint32_t head_task(const smp_lane *lane, const smp_actor *actor,
                                 uint32_t stream)
{
    uint32_t g = lane->program->order[actor->instance].segment;
    return lane->lists[lane->list0[g * SMP_STREAMS + stream] + actor->item];
}

/* Moves to the next task of the stream at or after (instance, item). */
static void settle(const smp_lane *lane, smp_actor *actor, uint32_t stream)
{
    const smp_program *program = lane->program;
    while (actor->instance < program->n_instance) {
        const uint32_t *list0 =
            &lane->list0[program->order[actor->instance].segment * SMP_STREAMS + stream];
        if (actor->item < list0[1] - list0[0]) {
            break;
        }
        actor->instance++;
        actor->item = 0;
    }
    actor->has_waits = false;
    actor->state = SMP_ACTOR_IDLE;
}

static void keep_ready(smp_engine *engine, uint32_t c, const smp_actor *actor, uint32_t task,
                       bool by_host)
{
    if (!engine->input->records) {
        return;
    }
    smp_record *record =
        &engine->input->records[c][engine->input->record0[c][actor->instance] + task];
    record->ready_ps = actor->ready_ps;
    bool caused = engine->has_cause && !by_host;
    record->cause_class = (uint16_t)(caused ? engine->cause_class : c);
    record->cause_instance = caused ? engine->cause_instance : actor->instance;
    record->cause_task = caused ? engine->cause_task : (uint16_t)task;
}

/* Task `task` of an instance, which is task `at` of the program. */
static int64_t duration_of(const smp_lane *lane, uint32_t instance, uint32_t task, uint32_t at)
{
    const int64_t *drawn_ps = lane->drawn_ps ? lane->drawn_ps[instance] : NULL;
    return drawn_ps ? drawn_ps[task] : lane->duration_ps[at];
}

/* Starts the head of an actor now; it lasts duration_ps where nothing slows
 * it. */
static void start(smp_engine *engine, uint32_t index, uint32_t task, int64_t duration_ps)
{
    uint32_t c = index / SMP_STREAMS;
    const smp_lane *lane = &engine->lanes[c];
    smp_actor *actor = &engine->actors[index];
    actor->state = SMP_ACTOR_RUNNING;
    if (engine->input->records) {
        smp_record *record =
            &engine->input->records[c][engine->input->record0[c][actor->instance] + task];
        record->start_ps = engine->now_ps;
        record->end_ps = engine->now_ps + duration_ps;
    }
    smp_event_push(engine, engine->now_ps + duration_ps, index);
    if (lane->kinds) {
        const smp_program *program = lane->program;
        const uint32_t segment = program->order[actor->instance].segment;
        actor->kind = lane->kinds[program->segments[segment].task0 + task];
        actor->slow_q16 = SMP_ALONE_Q16;
        actor->left_ps = duration_ps;
        actor->since_ps = engine->now_ps;
        actor->leader = SMP_NOBODY;
        smp_engine_running(engine, index, true);
    }
    if (engine->input->watch && smp_watch_start(engine->input->watch, engine, index)) {
        engine->is_seen = true;
    }
}

static void start_all(smp_engine *engine, const smp_meeting *meeting, bool by_host)
{
    uint32_t index = meeting->first;
    int64_t duration_ps = meeting->duration_ps;
    while (index != UINT32_MAX) {
        smp_actor *actor = &engine->actors[index];
        const smp_lane *lane = &engine->lanes[index / SMP_STREAMS];
        uint32_t next = actor->next_meeting;
        uint32_t task = head_task(lane, actor, index % SMP_STREAMS);
        /* What let the last class arrive is what let all of them start. */
        keep_ready(engine, index / SMP_STREAMS, actor, task, by_host);
        start(engine, index, task, duration_ps);
        actor->leader = meeting->first;
        index = next;
    }
    engine->actors[meeting->first].unfinished = meeting->arrived;
}

/* The head of an actor reaches a collective in which several classes meet. */
static void arrive(smp_engine *engine, uint32_t index, uint32_t task, bool by_host)
{
    const smp_lane *lane = &engine->lanes[index / SMP_STREAMS];
    smp_actor *actor = &engine->actors[index];
    const smp_program *program = lane->program;
    uint32_t at = program->segments[program->order[actor->instance].segment].task0 + task;
    const smp_site *site = &lane->sites[at];
    smp_meeting_place *channel = &engine->channels[lane->channel[site->comm]];
    uint32_t sequence =
        lane->sequence0[(size_t)actor->instance * program->n_comm + site->comm] +
        site->comm_rank;
    uint32_t m = 0;
    while (m < channel->n_open && channel->open[m].sequence != sequence) {
        m++;
    }
    smp_meeting *meeting = &channel->open[m];
    if (m == channel->n_open) {
        channel->n_open++;
        *meeting = (smp_meeting){.sequence = sequence, .first = UINT32_MAX};
    }
    actor->state = SMP_ACTOR_MEETING;
    actor->next_meeting = meeting->first;
    meeting->first = index;
    meeting->arrived++;
    const int64_t duration_ps = duration_of(lane, actor->instance, task, at);
    if (duration_ps > meeting->duration_ps) {
        meeting->duration_ps = duration_ps;
    }
    if (meeting->arrived == channel->members) {
        smp_meeting complete = *meeting;
        channel->open[m] = channel->open[--channel->n_open];
        start_all(engine, &complete, by_host);
    }
}

/* True when every wait of the head is done; else notes what it is blocked by. */
static bool waits_done(smp_engine *engine, uint32_t c, uint32_t stream, uint32_t task)
{
    const smp_lane *lane = &engine->lanes[c];
    const smp_program *program = lane->program;
    smp_actor *actors = &engine->actors[c * SMP_STREAMS];
    smp_actor *actor = &actors[stream];
    uint32_t p = program->order[actor->instance].pattern;
    if (task >= lane->wait_tasks[p]) {
        return true;
    }
    const uint32_t *index = &lane->wait_index[lane->wait_index0[p] + task];
    if (!actor->has_waits) {
        actor->wait = index[0];
        actor->has_waits = true;
    }
    for (; actor->wait < index[1]; actor->wait++) {
        const smp_wait *wait = &program->waits[actor->wait];
        uint32_t source = actor->instance - wait->back;
        uint32_t at = program->segments[program->order[source].segment].task0 + wait->source;
        const smp_site *site = &lane->sites[at];
        uint32_t position = lane->position0[(size_t)source * SMP_STREAMS + site->stream] +
                            site->rank;
        if (actors[site->stream].done <= position) {
            actor->need = position;
            actors[site->stream].blocked |= 1u << stream;
            return false;
        }
    }
    return true;
}

/* Starts the head of a free actor if it may. */
static void try_start(smp_engine *engine, uint32_t index)
{
    uint32_t c = index / SMP_STREAMS;
    uint32_t stream = index % SMP_STREAMS;
    const smp_lane *lane = &engine->lanes[c];
    const smp_program *program = lane->program;
    smp_actor *actor = &engine->actors[index];
    if (actor->instance >= program->n_instance) {
        return;
    }
    uint32_t task = head_task(lane, actor, stream);
    bool by_host = actor->state == SMP_ACTOR_ISSUE;
    if (!by_host && !waits_done(engine, c, stream, task)) {
        return;
    }
    uint32_t at = program->segments[program->order[actor->instance].segment].task0 + task;
    actor->ready_ps = engine->now_ps;
    if (lane->issue0_ps && !by_host) {
        int64_t issued_ps = lane->issue0_ps[actor->instance] + lane->issue_ps[at];
        if (issued_ps > engine->now_ps) {
            actor->state = SMP_ACTOR_ISSUE;
            smp_event_push(engine, issued_ps, index);
            return;
        }
    }
    if (lane->sites[at].comm != SMP_NO_COMM) {
        arrive(engine, index, task, by_host);
        return;
    }
    keep_ready(engine, c, actor, task, by_host);
    start(engine, index, task, duration_of(lane, actor->instance, task, at));
}

/* Whether other classes still work on the collective whose part of this actor is done; the
 * last one lets all of them end. */
static bool awaits_others(smp_engine *engine, uint32_t index)
{
    smp_actor *actor = &engine->actors[index];
    const uint32_t leader = actor->leader;
    if (!engine->input->overlap || leader == SMP_NOBODY) {
        return false;
    }
    actor->state = SMP_ACTOR_ENDING;
    if (--engine->actors[leader].unfinished == 0) {
        for (uint32_t i = leader; i != UINT32_MAX; i = engine->actors[i].next_meeting) {
            engine->actors[i].leader = SMP_NOBODY;
            smp_event_push(engine, engine->now_ps, i);
        }
    }
    return true;
}

/* What the end of a task leaves where overlap is modelled. */
static void end_running(smp_engine *engine, uint32_t index)
{
    const uint32_t c = index / SMP_STREAMS;
    const smp_actor *actor = &engine->actors[index];
    smp_engine_running(engine, index, false);
    if (engine->input->records) {
        const uint32_t task = head_task(&engine->lanes[c], actor, index % SMP_STREAMS);
        engine->input->records[c][engine->input->record0[c][actor->instance] + task].end_ps =
            engine->now_ps;
    }
}

/* The running task of an actor ends now. */
static void complete(smp_engine *engine, uint32_t index)
{
    uint32_t c = index / SMP_STREAMS;
    uint32_t stream = index % SMP_STREAMS;
    const smp_lane *lane = &engine->lanes[c];
    smp_actor *actor = &engine->actors[index];
    if (lane->kinds) {
        end_running(engine, index);
    }
    engine->has_cause = true;
    engine->cause_class = c;
    engine->cause_instance = actor->instance;
    engine->cause_task = (uint16_t)head_task(lane, actor, stream);
    actor->done++;
    actor->item++;
    settle(lane, actor, stream);
    try_start(engine, index);
    uint32_t waiting = engine->actors[index].blocked;
    for (uint32_t s = 0; waiting >> s != 0; s++) {
        smp_actor *other = &engine->actors[c * SMP_STREAMS + s];
        if ((waiting >> s & 1u) && other->need < actor->done) {
            actor->blocked &= ~(1u << s);
            try_start(engine, c * SMP_STREAMS + s);
        }
    }
}

/* ----------------------------------------------------------------- deadlock */

/* Names what the head of an actor is stuck on. */
static void describe_stuck(const smp_engine *engine, uint32_t index, smp_text *text)
{
    uint32_t stream = index % SMP_STREAMS;
    const smp_lane *lane = &engine->lanes[index / SMP_STREAMS];
    const smp_program *program = lane->program;
    const smp_actor *actor = &engine->actors[index];
    const smp_instance *instance = &program->order[actor->instance];
    const smp_segment *segment = &program->segments[instance->segment];
    uint32_t task = head_task(lane, actor, stream);
    smp_text_add(text, "%sclass %u stream %s: %s.%s (layer %u, micro-batch %u)",
                 text->length ? "; " : "", index / SMP_STREAMS,
                 smp_stream_name((smp_stream)stream), segment->name,
                 program->tasks[segment->task0 + task].name,
                 (unsigned)instance->layer, instance->micro_batch);
    if (actor->state == SMP_ACTOR_MEETING) {
        smp_text_add(text, " waits for other ranks");
        return;
    }
    const smp_wait *wait = &program->waits[actor->wait];
    const smp_instance *source = &program->order[actor->instance - wait->back];
    const smp_segment *other = &program->segments[source->segment];
    smp_text_add(text, " waits for %s.%s (layer %u, micro-batch %u)", other->name,
                 program->tasks[other->task0 + wait->source].name, (unsigned)source->layer,
                 source->micro_batch);
}

static smp_status check_finished(const smp_engine *engine, smp_errors *errors)
{
    enum { SHOWN = 4 };
    smp_text text = {0};
    uint32_t stuck = 0;
    for (uint32_t index = 0; index < engine->n_lane * SMP_STREAMS; index++) {
        const smp_lane *lane = &engine->lanes[index / SMP_STREAMS];
        if (engine->actors[index].instance >= lane->program->n_instance) {
            continue;
        }
        if (stuck++ < SHOWN) {
            describe_stuck(engine, index, &text);
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
    smp_engine engine;
    smp_engine_init(&engine, input);
    uint32_t n_actor = engine.n_lane * SMP_STREAMS;
    for (uint32_t index = 0; index < n_actor; index++) {
        settle(&engine.lanes[index / SMP_STREAMS], &engine.actors[index], index % SMP_STREAMS);
    }
    for (uint32_t index = 0; index < n_actor; index++) {
        if (engine.actors[index].state == SMP_ACTOR_IDLE) {
            try_start(&engine, index);
        }
    }
    uint32_t slowest = 0;
    int64_t end_ps = 0;
    while (engine.n_heap > 0) {
        if (engine.n_changed > 0 && engine.heap[0].time_ps > engine.now_ps) {
            smp_engine_rate(&engine);
        }
        if (engine.is_seen && engine.heap[0].time_ps > engine.now_ps) {
            engine.is_seen = false;
            smp_watch_look(input->watch, &engine);
        }
        smp_event event = smp_event_pop(&engine);
        engine.now_ps = event.time_ps;
        if (engine.actors[event.actor].state == SMP_ACTOR_ISSUE) {
            try_start(&engine, event.actor);
            continue;
        }
        if (awaits_others(&engine, event.actor)) {
            continue;
        }
        uint32_t c = event.actor / SMP_STREAMS;
        if (event.time_ps > end_ps || c < slowest) {
            slowest = c;
        }
        end_ps = event.time_ps;
        complete(&engine, event.actor);
    }
    smp_status status = check_finished(&engine, errors);
    smp_arena_destroy(engine.arena);
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
