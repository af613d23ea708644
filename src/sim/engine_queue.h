/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of the event engine: a binary heap by time, then by actor, that knows where the
 * event of each actor is.  In a header because it is most of what the engine does. */
#ifndef SMP_SIM_ENGINE_QUEUE_H
#define SMP_SIM_ENGINE_QUEUE_H

#include "sim/engine.h"

static inline bool smp_event_before(const smp_event *a, const smp_event *b)
{
    return a->time_ps < b->time_ps || (a->time_ps == b->time_ps && a->actor < b->actor);
}

static inline void smp_event_set(smp_engine *engine, uint32_t at, smp_event event)
{
    engine->heap[at] = event;
    engine->place[event.actor] = at;
}

/* Puts an event at or above `at`. */
static inline void smp_event_rise(smp_engine *engine, uint32_t at, smp_event event)
{
    const smp_event *heap = engine->heap;
    while (at > 0 && smp_event_before(&event, &heap[(at - 1) / 2])) {
        smp_event_set(engine, at, heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    smp_event_set(engine, at, event);
}

/* Puts an event at or below `at`. */
static inline void smp_event_sink(smp_engine *engine, uint32_t at, smp_event event)
{
    const smp_event *heap = engine->heap;
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= engine->n_heap) {
            break;
        }
        if (child + 1 < engine->n_heap && smp_event_before(&heap[child + 1], &heap[child])) {
            child++;
        }
        if (!smp_event_before(&heap[child], &event)) {
            break;
        }
        smp_event_set(engine, at, heap[child]);
        at = child;
    }
    smp_event_set(engine, at, event);
}

static inline void smp_event_push(smp_engine *engine, int64_t time_ps, uint32_t actor_index)
{
    const smp_event event = {.time_ps = time_ps, .actor = actor_index};
    smp_event_rise(engine, engine->n_heap++, event);
}

static inline smp_event smp_event_pop(smp_engine *engine)
{
    smp_event top = engine->heap[0];
    smp_event last = engine->heap[--engine->n_heap];
    if (engine->n_heap > 0) {
        smp_event_sink(engine, 0, last);
    }
    return top;
}

/* The event of an actor comes at another time. */
static inline void smp_event_move(smp_engine *engine, uint32_t actor_index, int64_t time_ps)
{
    const uint32_t at = engine->place[actor_index];
    const smp_event moved = {.time_ps = time_ps, .actor = actor_index};
    if (smp_event_before(&moved, &engine->heap[at])) {
        smp_event_rise(engine, at, moved);
    } else {
        smp_event_sink(engine, at, moved);
    }
}

#endif
