/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random steps for the tests of the simulation: classes with the same tasks in the same order
 * but other waits and durations, so that collectives meet and nothing deadlocks.  Waits name
 * earlier tasks in the order of issue.  No memory, no addresses: the engine reads none.
 */
#ifndef SMP_TESTS_RANDOM_STEP_H
#define SMP_TESTS_RANDOM_STEP_H

#include "tests/check.h"

#include "base/numeric.h"
#include "sim/sim.h"

enum { RANDOM_COMMS = 2, RANDOM_MOST_WAITS = 3 };

typedef struct random_step {
    smp_arena *arena;
    smp_step step;
    int64_t **duration_ps;
    int64_t **issue_ps;
    uint64_t seed, counter;
} random_step;

static inline uint32_t draw(random_step *r, uint32_t below)
{
    uint32_t words[4];
    smp_random4(r->seed, 0, r->counter++, words);
    return words[0] % below;
}

static inline void random_tasks(random_step *r, smp_program *p)
{
    static const smp_op kernels[] = {SMP_OP_MATMUL, SMP_OP_ADD, SMP_OP_ATTENTION};
    p->n_segment = 1 + draw(r, 4);
    p->segments = SMP_ARENA_ARRAY(r->arena, p->n_segment, smp_segment);
    p->tasks = SMP_ARENA_ARRAY(r->arena, p->n_segment * 6, smp_task);
    for (uint32_t g = 0; g < p->n_segment; g++) {
        uint32_t n = draw(r, 7);
        p->segments[g] = (smp_segment){smp_arena_printf(r->arena, "s%u", g), p->n_task, n};
        for (uint32_t t = 0; t < n; t++) {
            smp_task *task = &p->tasks[p->n_task++];
            *task = (smp_task){.name = smp_arena_printf(r->arena, "t%u", t),
                               .op = (uint16_t)kernels[draw(r, 3)],
                               .stream = (uint8_t)draw(r, 2), .comm = SMP_NO_COMM,
                               .phase = (uint8_t)draw(r, SMP_PHASES), .dims = {64, 64, 64}};
            if (draw(r, 3) == 0) {
                /* A communicator keeps to one stream, as its order demands. */
                task->comm = (uint8_t)draw(r, RANDOM_COMMS);
                task->op = SMP_OP_ALL_REDUCE;
                task->stream = (uint8_t)(SMP_STREAM_REDUCE + task->comm);
            } else if (draw(r, 6) == 0) {
                task->op = SMP_OP_STORE;
                task->stream = SMP_STREAM_OFFLOAD;
            }
        }
    }
    p->n_instance = 1 + draw(r, 14);
    p->order = SMP_ARENA_ARRAY(r->arena, p->n_instance, smp_instance);
    for (uint32_t i = 0; i < p->n_instance; i++) {
        p->order[i].segment = (uint16_t)draw(r, p->n_segment);
        p->order[i].layer = (uint16_t)i;
    }
}

/* Each instance has a pattern of its own. */
static inline void random_waits(random_step *r, smp_program *p)
{
    p->patterns = SMP_ARENA_ARRAY(r->arena, p->n_instance, smp_pattern);
    p->waits = SMP_ARENA_ARRAY(r->arena, (size_t)p->n_instance * 7 * RANDOM_MOST_WAITS,
                               smp_wait);
    for (uint32_t i = 0; i < p->n_instance; i++) {
        const smp_segment *segment = &p->segments[p->order[i].segment];
        p->order[i].pattern = i;
        p->patterns[i].wait0 = p->n_wait;
        for (uint32_t t = 0; t < segment->n_task; t++) {
            for (uint32_t w = draw(r, RANDOM_MOST_WAITS + 1); w > 0; w--) {
                uint32_t back = draw(r, i + 1 < 4 ? i + 1 : 4);
                uint32_t n = back == 0 ? t : p->segments[p->order[i - back].segment].n_task;
                if (n > 0) {
                    p->waits[p->n_wait++] =
                        (smp_wait){(uint16_t)t, (uint16_t)draw(r, n), back};
                }
            }
        }
        p->patterns[i].n_wait = p->n_wait - p->patterns[i].wait0;
    }
    p->n_pattern = p->n_instance;
}

static inline void random_durations(random_step *r, uint32_t c)
{
    const smp_program *p = r->step.programs[c];
    r->duration_ps[c] = SMP_ARENA_ARRAY(r->arena, p->n_task, int64_t);
    r->issue_ps[c] = SMP_ARENA_ARRAY(r->arena, p->n_task, int64_t);
    for (uint32_t t = 0; t < p->n_task; t++) {
        /* Small numbers, so that ties and zeros are frequent. */
        r->duration_ps[c][t] = draw(r, 4) == 0 ? draw(r, 100) : draw(r, 6);
        r->issue_ps[c][t] = draw(r, 5);
    }
}

static inline void random_comms(random_step *r, smp_program *p, uint32_t c, bool apart)
{
    static const char *const names[RANDOM_COMMS] = {"unshard", "replicate"};
    p->comms = SMP_ARENA_ARRAY(r->arena, RANDOM_COMMS, smp_comm);
    p->n_comm = RANDOM_COMMS;
    for (uint32_t k = 0; k < RANDOM_COMMS; k++) {
        p->comms[k] = (smp_comm){.name = names[k],
                                 .group = k == 0 ? SMP_GROUP_SHARD : SMP_GROUP_REPLICA,
                                 .ranks = 4, .meeting = k == 1 && apart ? c : 0};
    }
}

static inline random_step *random_create(uint64_t seed, uint32_t n_class)
{
    smp_arena *arena = smp_arena_create();
    random_step *r = SMP_ARENA_NEW(arena, random_step);
    *r = (random_step){.arena = arena, .seed = seed};
    r->step.n_program = n_class;
    r->step.programs = SMP_ARENA_ARRAY(arena, n_class, smp_program *);
    r->duration_ps = SMP_ARENA_ARRAY(arena, n_class, int64_t *);
    r->issue_ps = SMP_ARENA_ARRAY(arena, n_class, int64_t *);
    smp_program common = {0};
    random_tasks(r, &common);
    bool apart = draw(r, 2) == 0;
    for (uint32_t c = 0; c < n_class; c++) {
        smp_program *p = SMP_ARENA_NEW(arena, smp_program);
        *p = common;
        p->count = 1;
        p->order = SMP_ARENA_ARRAY(arena, p->n_instance, smp_instance);
        memcpy(p->order, common.order, p->n_instance * sizeof *p->order);
        random_waits(r, p);
        random_comms(r, p, c, apart);
        r->step.programs[c] = p;
        random_durations(r, c);
    }
    return r;
}

static inline void random_destroy(random_step *r)
{
    smp_arena_destroy(r->arena);
}

/* A simulation with records, run with or without the host; the arena is the step's. */
static inline smp_simulation *random_simulate(random_step *r, bool host, smp_errors *errors)
{
    smp_simulation *s = SMP_ARENA_NEW(r->arena, smp_simulation);
    uint32_t n = r->step.n_program;
    *s = (smp_simulation){.arena = r->arena, .step = &r->step, .duration_ps = r->duration_ps};
    s->cost = SMP_ARENA_ARRAY(r->arena, n, smp_cost *);
    s->record0 = SMP_ARENA_ARRAY(r->arena, n, uint32_t *);
    s->records = SMP_ARENA_ARRAY(r->arena, n, smp_record *);
    s->path_ps = SMP_ARENA_ARRAY(r->arena, n, int64_t *);
    for (uint32_t c = 0; c < n; c++) {
        const smp_program *p = r->step.programs[c];
        s->cost[c] = SMP_ARENA_ARRAY(r->arena, p->n_task, smp_cost);
        s->path_ps[c] = SMP_ARENA_ARRAY(r->arena, p->n_task, int64_t);
        for (uint32_t t = 0; t < p->n_task; t++) {
            s->cost[c][t].launch_s = 2e-12;
        }
        s->record0[c] = SMP_ARENA_ARRAY(r->arena, p->n_instance + 1, uint32_t);
        uint64_t n_record = smp_records_index(p, s->record0[c]);
        s->records[c] = SMP_ARENA_ARRAY(r->arena, n_record, smp_record);
    }
    smp_engine_input input = {
        .step = &r->step, .duration_ps = r->duration_ps, .records = s->records,
        .host_issue_ps = host ? (int64_t *const *)r->issue_ps : NULL,
        .record0 = (const uint32_t *const *)s->record0
    };
    check_ok(smp_engine_simulate(&input, errors, &s->report.step_ps, &s->slowest), errors);
    return s;
}

#endif
