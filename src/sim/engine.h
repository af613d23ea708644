/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of the event engine: for its files only (engine.c says how it works). */
#ifndef SMP_SIM_ENGINE_H
#define SMP_SIM_ENGINE_H

#include "sim/lane.h"

#define SMP_NOBODY UINT32_MAX
enum { SMP_ALONE_Q16 = 1 << 16 };

/* ENDING: done, but other classes still work on the collective. */
typedef enum smp_actor_state {
    SMP_ACTOR_IDLE, SMP_ACTOR_ISSUE, SMP_ACTOR_RUNNING, SMP_ACTOR_MEETING, SMP_ACTOR_ENDING
} smp_actor_state;

typedef struct smp_actor {
    uint32_t instance;     /* of the task at the head; n_instance: all done */
    uint32_t item;         /* of that task in the segment's list of this stream */
    uint32_t wait;         /* next wait to look at */
    uint32_t need;         /* position awaited while blocked */
    uint32_t done;         /* tasks completed */
    uint32_t blocked;      /* streams of this class that await this one, as bits */
    uint32_t next_meeting; /* list of actors in one rendezvous */
    smp_actor_state state;
    bool has_waits;        /* `wait` is set for the head */
    int64_t ready_ps;
    /* while running, where overlap is modelled */
    uint8_t kind;
    uint32_t slow_q16;     /* time over time alone, in 2^-16 */
    int64_t left_ps, since_ps; /* time alone that was left at `since` */
    uint32_t leader;       /* first actor of the collective it is in, or SMP_NOBODY */
    uint32_t unfinished;   /* of a leader: actors that still work */
} smp_actor;

/* A collective that some classes have reached and others have not. */
typedef struct smp_meeting {
    uint32_t sequence;
    uint32_t arrived;
    uint32_t first;        /* actor; linked by next_meeting */
    int64_t duration_ps;   /* longest of the classes' */
} smp_meeting;

typedef struct smp_meeting_place {
    uint32_t members;      /* classes that meet here */
    uint32_t n_open;
    smp_meeting *open;     /* members x SMP_STREAMS: no class can be in more */
} smp_meeting_place;

typedef struct smp_event {
    int64_t time_ps;
    uint32_t actor;
} smp_event;

typedef struct smp_engine {
    const smp_engine_input *input;
    smp_arena *arena;
    smp_lane *lanes;
    uint32_t n_lane;
    smp_actor *actors;     /* [class * SMP_STREAMS + stream] */
    smp_meeting_place *channels;
    smp_event *heap;
    uint32_t *place;       /* by actor: of its event in the heap */
    uint32_t n_heap;
    uint32_t *changed;     /* classes to rate anew */
    uint32_t n_changed;
    int64_t now_ps;
    uint32_t cause_class, cause_instance; /* the task that just ended */
    uint16_t cause_task;
    bool has_cause;
    bool is_seen;          /* the watch looks at the state before time passes */
} smp_engine;

/* engine_init.c: all tables of a run, in `engine->arena`; the caller destroys it. */
void smp_engine_init(smp_engine *engine, const smp_engine_input *input);

/* engine_rates.c: a task of an actor starts or ends on its device; and, when time is about to
 * pass, the rates of all devices where that changed something. */
void smp_engine_running(smp_engine *engine, uint32_t actor, bool starts);
void smp_engine_rate(smp_engine *engine);

#endif
