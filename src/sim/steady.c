/* SPDX-License-Identifier: Apache-2.0 */
/* Passes that are steady: see steady.h. */
#include "config.h"

#include "sim/steady.h"

#include "sim/watch.h"

#include <string.h>

/* What the future of a stream depends on.  Times are differences. */
typedef struct head {
    uint32_t instance, item, wait, blocked, slow_q16;
    smp_actor_state state;
    int64_t left_ps, ran_ps, ends_ps;
} head;

/* The state at the start of a layer. */
typedef struct state {
    bool any;
    uint32_t instance; /* that starts */
    int64_t now_ps;
    head heads[SMP_STREAMS];
} state;

/* A pass with the segment at the start of whose first task on a stream it is looked at, the
 * streams that have tasks in it (bits), and its latest state. */
typedef struct watched {
    smp_pass *pass;
    uint16_t segment;
    uint8_t stream;
    uint32_t streams;
    state latest;
} watched;

struct smp_watch {
    const smp_program *program;
    watched *at;
    uint32_t n;
    uint32_t *by_segment; /* [micro-batch * n_segment + segment]: 1 + the pass, or 0 */
    uint32_t instance;    /* whose start is to be looked at */
};

/* ---------------------------------------------------------------------- marks */

static uint32_t streams_of(const smp_program *program, const smp_segment *segment)
{
    uint32_t streams = 0;
    for (uint32_t t = segment->task0; t < segment->task0 + segment->n_task; t++) {
        streams |= 1u << program->tasks[t].stream;
    }
    return streams;
}

/* The first segment of a pass that computes, else the first that does anything. */
static void choose_mark(const smp_program *program, watched *w)
{
    bool computes = false;
    for (uint32_t i = 0; i < w->pass->period; i++) {
        const uint16_t number = program->order[w->pass->at + i].segment;
        const smp_segment *segment = &program->segments[number];
        const uint32_t streams = streams_of(program, segment);
        const bool does = (streams & 1u << SMP_STREAM_COMPUTE) != 0;
        if (streams != 0 && (w->streams == 0 || (does && !computes))) {
            computes = does;
            w->segment = number;
            w->stream = does ? SMP_STREAM_COMPUTE : program->tasks[segment->task0].stream;
        }
        w->streams |= streams;
    }
}

static uint32_t *place_of(smp_watch *watch, uint32_t micro_batch, uint32_t segment)
{
    return &watch->by_segment[(size_t)micro_batch * watch->program->n_segment + segment];
}

static void watch_passes(smp_watch *watch, smp_pass *passes, uint32_t n, smp_arena *arena)
{
    const smp_program *program = watch->program;
    watch->at = SMP_ARENA_ARRAY(arena, n, watched);
    watch->n = n;
    watch->by_segment =
        SMP_ARENA_ARRAY(arena, program->micro_batches * program->n_segment, uint32_t);
    for (uint32_t p = 0; p < n; p++) {
        watched *w = &watch->at[p];
        *w = (watched){.pass = &passes[p]};
        passes[p].more_ps = -1;
        choose_mark(program, w);
        for (uint32_t mb = 0; mb < program->micro_batches; mb++) {
            uint32_t *place = place_of(watch, mb, w->segment);
            if ((passes[p].is_middle || mb == passes[p].micro_batch) && *place == 0) {
                *place = 1 + p;
            }
        }
    }
}

/* --------------------------------------------------------------------- states */

bool smp_watch_start(smp_watch *watch, const smp_engine *engine, uint32_t actor)
{
    const smp_actor *a = &engine->actors[actor];
    const smp_instance *it = &watch->program->order[a->instance];
    const uint32_t p = *place_of(watch, it->micro_batch, it->segment);
    if (p == 0 || a->item > 0 || watch->at[p - 1].stream != actor) {
        return false;
    }
    watch->instance = a->instance;
    return true;
}

static void take_state(const smp_engine *engine, uint32_t instance, state *s)
{
    *s = (state){.any = true, .instance = instance, .now_ps = engine->now_ps};
    for (uint32_t q = 0; q < SMP_STREAMS; q++) {
        const smp_actor *a = &engine->actors[q];
        head *h = &s->heads[q];
        *h = (head){.instance = a->instance, .item = a->item, .blocked = a->blocked,
                    .state = a->state};
        if (a->state == SMP_ACTOR_RUNNING) {
            h->slow_q16 = a->slow_q16;
            h->left_ps = a->left_ps;
            h->ran_ps = engine->now_ps - a->since_ps;
            h->ends_ps = engine->heap[engine->place[q]].time_ps - engine->now_ps;
        } else {
            h->wait = a->wait;
        }
    }
}

/* Whether instance i is a layer's of a pass. */
static bool has_instance(const smp_program *program, const smp_pass *pass, uint32_t i)
{
    const smp_instance *it = &program->order[i];
    bool has = false;
    if (pass->is_middle) {
        return it->micro_batch + 1 < program->micro_batches;
    }
    for (uint32_t k = 0; k < pass->period; k++) {
        has = has || program->order[pass->at + k].segment == it->segment;
    }
    return has && it->micro_batch == pass->micro_batch && it->layer >= pass->first &&
           it->layer < pass->end;
}

/* A stream that has ended, or waits for something that no layer of the pass does. */
static bool is_parked(const smp_program *program, const smp_pass *pass, const head *a,
                      const head *b)
{
    if (a->state != SMP_ACTOR_IDLE || b->state != SMP_ACTOR_IDLE ||
        a->instance != b->instance || a->item != b->item || a->blocked != b->blocked) {
        return false;
    }
    return a->instance >= program->n_instance ||
           (a->wait == b->wait &&
            !has_instance(program, pass, a->instance - program->waits[a->wait].back));
}

/* A stream that is as far one layer on, in this pass. */
static bool is_shifted(const smp_program *program, const smp_pass *pass, const head *a,
                       const head *b)
{
    if (b->instance != a->instance + pass->period || b->instance >= program->n_instance ||
        !has_instance(program, pass, a->instance) ||
        !has_instance(program, pass, b->instance)) {
        return false;
    }
    const smp_instance *from = &program->order[a->instance];
    const smp_instance *to = &program->order[b->instance];
    return from->segment == to->segment && from->pattern == to->pattern &&
           a->item == b->item && a->wait == b->wait && a->blocked == b->blocked &&
           a->slow_q16 == b->slow_q16 && a->state == b->state && a->left_ps == b->left_ps &&
           a->ran_ps == b->ran_ps && a->ends_ps == b->ends_ps;
}

/* Streams with tasks in the pass are one layer on, and all others are parked. */
static bool is_steady(const smp_program *program, const watched *w, const state *b)
{
    const state *a = &w->latest;
    bool steady = a->any;
    for (uint32_t q = 0; q < SMP_STREAMS; q++) {
        steady = steady && ((w->streams >> q & 1u) != 0
                                ? is_shifted(program, w->pass, &a->heads[q], &b->heads[q])
                                : is_parked(program, w->pass, &a->heads[q], &b->heads[q]));
    }
    return steady;
}

void smp_watch_look(smp_watch *watch, const smp_engine *engine)
{
    const smp_instance *it = &watch->program->order[watch->instance];
    watched *w = &watch->at[*place_of(watch, it->micro_batch, it->segment) - 1];
    const smp_pass *pass = w->pass;
    state now;
    /* of micro-batches those from the one before the middle on */
    if (pass->more_ps >= 0 ||
        (pass->is_middle && watch->instance + pass->period < pass->at)) {
        return;
    }
    take_state(engine, watch->instance, &now);
    if (is_steady(watch->program, w, &now)) {
        w->pass->more_ps = now.now_ps - w->latest.now_ps;
    }
    w->latest = now;
}

/* ---------------------------------------------------------------------- entry */

smp_status smp_steady_run(const smp_step *step, int64_t *duration_ps,
                          const smp_overlap *overlap, smp_pass *passes, uint32_t n,
                          smp_errors *errors, int64_t *end_ps_p)
{
    const smp_program *program = step->programs[0];
    smp_arena *arena = smp_arena_create();
    uint8_t *kinds = SMP_ARENA_ARRAY(arena, program->n_task, uint8_t);
    smp_watch watch = {.program = program};
    uint32_t slowest = 0;
    for (uint32_t t = 0; t < program->n_task; t++) {
        kinds[t] = (uint8_t)smp_cost_overlap_kind(program, &program->tasks[t]);
    }
    watch_passes(&watch, passes, n, arena);
    const smp_engine_input input = {
        .step = step,
        .duration_ps = &duration_ps,
        .overlap = overlap,
        .kinds = (const uint8_t *const[]){kinds},
        .watch = &watch,
    };
    const smp_status st = smp_engine_simulate(&input, errors, end_ps_p, &slowest);
    smp_arena_destroy(arena);
    return st;
}
