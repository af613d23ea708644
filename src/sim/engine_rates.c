/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Overlap in the event engine: a task runs slower beside tasks of other kinds on the same
 * device.  When what runs there has changed and time is about to pass, the rest of each
 * running task is computed from the time it has run at its old rate, and its end moved.  All
 * of this is differences of times in integers, so a shift in time shifts the result.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "sim/engine_queue.h"

enum { KIND_BITS = 8, KIND_MASK = (1 << KIND_BITS) - 1 };

/* Whether any collective is among the tasks of all kinds. */
static inline bool has_collective(uint64_t running)
{
    return running >> SMP_OVERLAP_IN_NODE * KIND_BITS != 0;
}

/* How much longer a task of each kind takes beside what else runs on its device: each other
 * task adds what one of its kind adds alone. */
static void find_slows(const smp_engine *engine, smp_lane *lane)
{
    lane->rated = lane->now_running;
    for (uint32_t kind = 0; kind < SMP_OVERLAP_KINDS; kind++) {
        uint64_t slow_q16 = SMP_ALONE_Q16;
        for (uint32_t k = 1; k < SMP_OVERLAP_KINDS; k++) {
            const uint32_t n = lane->rated >> k * KIND_BITS & KIND_MASK;
            const uint32_t others = n - (n > 0 && k == kind);
            const uint32_t more_q16 =
                engine->input->overlap->slow_q16[kind][k] - SMP_ALONE_Q16;
            if (others > 0 && more_q16 > 0) {
                slow_q16 = slow_q16 * (SMP_ALONE_Q16 + (uint64_t)others * more_q16) >> 16;
            }
        }
        lane->slow_q16[kind] = (uint32_t)slow_q16;
    }
}

/* Time that `alone_ps` takes at a rate, rounded up; and time alone of what was done. */
static int64_t slowed(int64_t alone_ps, uint32_t slow_q16)
{
    const int64_t low = alone_ps & (SMP_ALONE_Q16 - 1);
    return (alone_ps >> 16) * slow_q16 + ((low * slow_q16 + SMP_ALONE_Q16 - 1) >> 16);
}

static int64_t done_alone(int64_t elapsed_ps, uint32_t slow_q16)
{
    return elapsed_ps / slow_q16 * SMP_ALONE_Q16 + ((elapsed_ps % slow_q16) << 16) / slow_q16;
}

static void rate_anew(smp_engine *engine, uint32_t c)
{
    smp_lane *lane = &engine->lanes[c];
    lane->changed = false;
    if (!has_collective(lane->now_running | lane->rated)) {
        return; /* only collectives slow, or are slowed */
    }
    if (lane->now_running != lane->rated) {
        find_slows(engine, lane);
    }
    for (uint32_t s = 0; lane->running >> s != 0; s++) {
        smp_actor *actor = &engine->actors[c * SMP_STREAMS + s];
        const uint32_t slow_q16 = lane->slow_q16[actor->kind];
        if (!(lane->running >> s & 1u) || slow_q16 == actor->slow_q16 ||
            actor->state != SMP_ACTOR_RUNNING) {
            continue;
        }
        const int64_t done = done_alone(engine->now_ps - actor->since_ps, actor->slow_q16);
        actor->left_ps = done < actor->left_ps ? actor->left_ps - done : 0;
        actor->since_ps = engine->now_ps;
        actor->slow_q16 = slow_q16;
        smp_event_move(engine, c * SMP_STREAMS + s,
                   engine->now_ps + slowed(actor->left_ps, slow_q16));
    }
}

void smp_engine_rate(smp_engine *engine)
{
    while (engine->n_changed > 0) {
        rate_anew(engine, engine->changed[--engine->n_changed]);
    }
}

void smp_engine_running(smp_engine *engine, uint32_t index, bool starts)
{
    const uint32_t c = index / SMP_STREAMS;
    smp_lane *lane = &engine->lanes[c];
    const uint8_t kind = engine->actors[index].kind;
    const uint64_t one = kind == SMP_OVERLAP_NONE ? 0 : UINT64_C(1) << kind * KIND_BITS;
    lane->running ^= 1u << index % SMP_STREAMS;
    lane->now_running += starts ? one : 0 - one;
    if (!lane->changed && kind != SMP_OVERLAP_NONE) {
        lane->changed = true;
        engine->changed[engine->n_changed++] = c;
    }
}
