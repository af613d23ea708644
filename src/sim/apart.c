/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running a compiled step over all ranks.
 *
 * One operation is a few passes over vectors of a class: the latest of its sources, then the
 * duration.  Vectors of 16,384 ranks take 128 KiB, and as slots are used again at once, those
 * in use stay in the second level of the cache.
 */
#include "config.h"

#include "sim/apart_int.h"

#include "mesh/mesh.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------- making */

static void sort_ranks(smp_apart *a)
{
    const smp_classes *classes = a->simulation->step->classes;
    a->first = SMP_ARENA_ARRAY(a->arena, (size_t)a->n_class + 1, uint32_t);
    a->rank_of = SMP_ARENA_ARRAY(a->arena, a->world, uint32_t);
    for (uint32_t c = 0; c < a->n_class; c++) {
        a->first[c + 1] = a->first[c] + classes->classes[c].count;
    }
    uint32_t *next = smp_heap_alloc(a->n_class, sizeof *next);
    memcpy(next, a->first, a->n_class * sizeof *next);
    for (uint32_t rank = 0; rank < a->world; rank++) {
        a->rank_of[next[classes->class_of_rank[rank]]++] = rank;
    }
    free(next);
}

static void make_state(smp_apart *a)
{
    a->slots = SMP_ARENA_ARRAY(a->arena, a->n_class, int64_t *);
    for (uint32_t c = 0; c < a->n_class; c++) {
        const size_t ranks = a->first[c + 1] - a->first[c];
        a->slots[c] = SMP_ARENA_ARRAY(a->arena, ranks * a->n_slot[c], int64_t);
    }
    a->meet_ps = SMP_ARENA_ARRAY(a->arena, a->world, int64_t);
    a->rank_factor = SMP_ARENA_ARRAY(a->arena, a->world, double);
}

smp_status smp_apart_create(const smp_simulation *simulation, smp_errors *errors,
                            smp_apart **apart_p)
{
    smp_arena *arena = smp_arena_create();
    smp_apart *a = SMP_ARENA_NEW(arena, smp_apart);
    *a = (smp_apart){.arena = arena, .simulation = simulation,
                     .world = smp_mesh_world(simulation->step->mesh),
                     .n_class = simulation->step->n_program};
    sort_ranks(a);
    const smp_status status = smp_apart_compile(a, errors);
    if (status != SMP_OK) {
        smp_apart_destroy(a);
        return status;
    }
    make_state(a);
    *apart_p = a;
    return SMP_OK;
}

void smp_apart_destroy(smp_apart *apart)
{
    if (apart) {
        free(apart->ops);
        free(apart->sources);
        smp_arena_destroy(apart->arena);
    }
}

uint64_t smp_apart_tasks(const smp_apart *apart)
{
    uint64_t n = 0;
    for (uint32_t c = 0; c < apart->n_class; c++) {
        const smp_program *program = apart->simulation->step->programs[c];
        n += (uint64_t)apart->simulation->record0[c][program->n_instance] *
             (apart->first[c + 1] - apart->first[c]);
    }
    return n;
}

uint64_t smp_apart_state_bytes(const smp_apart *apart)
{
    uint64_t bytes = apart->world * (sizeof(int64_t) + sizeof(double));
    for (uint32_t c = 0; c < apart->n_class; c++) {
        bytes += (uint64_t)apart->n_slot[c] * (apart->first[c + 1] - apart->first[c]) *
                 sizeof(int64_t);
    }
    return bytes;
}

/* ------------------------------------------------------------------ running */

typedef struct run {
    smp_apart *apart;
    const smp_apart_run_input *input;
} run;

/* Some ranks of one class, small enough for their vectors to stay in the first level of the
 * cache between the passes of an operation. */
enum { CHUNK = 1024 };
typedef struct chunk { uint32_t klass, first, n; } chunk; /* first: in the class */

static int64_t *vector(const smp_apart *a, uint32_t c, uint32_t slot)
{
    return a->slots[c] + (size_t)slot * (a->first[c + 1] - a->first[c]);
}

/* The latest of the sources, into the operation's own vector. */
static void find_ready(const smp_apart *a, const smp_apart_op *op, chunk part, int64_t *to_ps)
{
    const uint32_t *sources = &a->sources[op->source0];
    if (op->n_source == 0) {
        for (uint32_t i = 0; i < part.n; i++) {
            to_ps[i] = op->issue_ps;
        }
        return;
    }
    const int64_t *one_ps = vector(a, part.klass, sources[0]) + part.first;
    if (op->n_source == 1) {
        memcpy(to_ps, one_ps, part.n * sizeof *to_ps);
    }
    for (uint32_t s = 1; s < op->n_source; s++) {
        const int64_t *other_ps = vector(a, part.klass, sources[s]) + part.first;
        for (uint32_t i = 0; i < part.n; i++) {
            to_ps[i] = one_ps[i] > other_ps[i] ? one_ps[i] : other_ps[i];
        }
        one_ps = to_ps;
    }
    for (uint32_t i = 0; op->issue_ps > 0 && i < part.n; i++) {
        to_ps[i] = to_ps[i] > op->issue_ps ? to_ps[i] : op->issue_ps;
    }
}

static inline int64_t scaled(int64_t duration_ps, double factor)
{
    return (int64_t)((double)duration_ps * factor + 0.5);
}

/* Random words of one task.  Four ranks share a counter; the rank's number selects its own. */
typedef struct words {
    uint64_t seed, task;
    uint32_t block; /* whose words these are */
    uint32_t word[4];
} words;

static inline words words_of(uint64_t seed, const smp_apart_op *op)
{
    return (words){.seed = seed, .task = (uint64_t)op->instance << 32 | op->task,
                   .block = UINT32_MAX};
}

static inline uint32_t word_of(words *w, uint32_t rank)
{
    if (rank / 4 != w->block) {
        w->block = rank / 4;
        smp_random4(w->seed, w->task, w->block, w->word);
    }
    return w->word[rank % 4];
}

/* The words of n ranks; `word` has room for CHUNK + 8.  Ranks in a row are done at once. */
static const uint32_t *chunk_words(uint64_t seed, const smp_apart_op *op,
                                   const uint32_t *ranks, uint32_t n, uint32_t *word)
{
    words w = words_of(seed, op);
    if (ranks[n - 1] - ranks[0] == n - 1) {
        const uint32_t block = ranks[0] / 4;
        smp_random4_many(seed, w.task, block, ranks[n - 1] / 4 - block + 1, word);
        return word + ranks[0] % 4;
    }
    for (uint32_t i = 0; i < n; i++) {
        word[i] = word_of(&w, ranks[i]);
    }
    return word;
}

static void add_durations(const run *r, const smp_apart_op *op, chunk part, int64_t *end_ps)
{
    const smp_apart *a = r->apart;
    const smp_noise *noise = r->input->noise;
    const uint32_t *ranks = &a->rank_of[a->first[part.klass] + part.first];
    const double *lasting = &a->rank_factor[a->first[part.klass] + part.first];
    if (noise->kernel) {
        uint32_t word[CHUNK + 8];
        const uint32_t *own = chunk_words(r->input->seed, op, ranks, part.n, word);
        for (uint32_t i = 0; i < part.n; i++) {
            const double factor = smp_noise_factor(noise->kernel, own[i]);
            end_ps[i] += scaled(op->duration_ps, lasting[i] * factor);
        }
    } else if (noise->rank_factor) {
        for (uint32_t i = 0; i < part.n; i++) {
            end_ps[i] += scaled(op->duration_ps, lasting[i]);
        }
    } else {
        for (uint32_t i = 0; i < part.n; i++) {
            end_ps[i] += op->duration_ps;
        }
    }
}

static void visit(const run *r, const smp_apart_op *op)
{
    const smp_apart *a = r->apart;
    if (r->input->visit) {
        r->input->visit(r->input->visit_context, op->klass, op->instance, op->task,
                        &a->rank_of[a->first[op->klass]], vector(a, op->klass, op->slot),
                        a->first[op->klass + 1] - a->first[op->klass]);
    }
}

static void run_op(const run *r, const smp_apart_op *op)
{
    const smp_apart *a = r->apart;
    const uint32_t n = a->first[op->klass + 1] - a->first[op->klass];
    for (uint32_t at = 0; at < n; at += CHUNK) {
        const chunk part = {op->klass, at, n - at < CHUNK ? n - at : CHUNK};
        int64_t *to_ps = vector(a, op->klass, op->slot) + at;
        find_ready(a, op, part, to_ps);
        if (!op->meets) {
            add_durations(r, op, part, to_ps);
        }
    }
}

/* -------------------------------------------------------------- collectives */

/* The latest rank of each group, over all classes that meet. */
static void find_latest(const smp_apart *a, const smp_apart_op *first, const smp_apart_op *last)
{
    const smp_apart_circle *circle = &a->circles[last->circle];
    memset(a->meet_ps, 0, circle->n_group * sizeof *a->meet_ps);
    for (const smp_apart_op *op = first; op <= last; op++) {
        const uint32_t n = a->first[op->klass + 1] - a->first[op->klass];
        const uint32_t *group_of = &circle->group_of[a->first[op->klass]];
        const int64_t *ready_ps = vector(a, op->klass, op->slot);
        for (uint32_t i = 0; i < n; i++) {
            int64_t *latest_ps = &a->meet_ps[group_of[i]];
            *latest_ps = *latest_ps > ready_ps[i] ? *latest_ps : ready_ps[i];
        }
    }
}

static void count_waits(smp_apart *a, const smp_apart_op *first, const smp_apart_op *last)
{
    smp_apart_wait *wait = &a->waits[last->wait];
    for (const smp_apart_op *op = first; op <= last; op++) {
        const uint32_t n = a->first[op->klass + 1] - a->first[op->klass];
        const uint32_t *group_of = &a->circles[op->circle].group_of[a->first[op->klass]];
        const int64_t *ready_ps = vector(a, op->klass, op->slot);
        double waited_ps = 0;
        for (uint32_t i = 0; i < n; i++) {
            waited_ps += (double)(a->meet_ps[group_of[i]] - ready_ps[i]);
        }
        wait->mean_ps += waited_ps / (double)a->world;
        wait->collectives += op->klass == 0; /* the class of rank 0 */
    }
}

/* From the starts of the groups to their ends. */
static void last_groups(const run *r, const smp_apart_op *last, int64_t duration_ps)
{
    const smp_apart_circle *circle = &r->apart->circles[last->circle];
    const smp_noise *noise = r->input->noise;
    words w = words_of(r->input->seed, last);
    for (uint32_t g = 0; g < circle->n_group; g++) {
        double factor = noise->link_factor ? circle->link[g] : 1.0;
        if (noise->collective) {
            factor *= smp_noise_factor(noise->collective, word_of(&w, circle->lowest[g]));
        }
        r->apart->meet_ps[g] += scaled(duration_ps, factor);
    }
}

/* A collective that all of its classes have reached: the ops first to last. */
static void meet(const run *r, const smp_apart_op *first, const smp_apart_op *last)
{
    smp_apart *a = r->apart;
    int64_t duration_ps = 0;
    for (const smp_apart_op *op = first; op <= last; op++) {
        duration_ps = duration_ps > op->duration_ps ? duration_ps : op->duration_ps;
    }
    find_latest(a, first, last);
    count_waits(a, first, last);
    last_groups(r, last, duration_ps);
    for (const smp_apart_op *op = first; op <= last; op++) {
        const uint32_t n = a->first[op->klass + 1] - a->first[op->klass];
        const uint32_t *group_of = &a->circles[op->circle].group_of[a->first[op->klass]];
        int64_t *end_ps = vector(a, op->klass, op->slot);
        for (uint32_t i = 0; i < n; i++) {
            end_ps[i] = a->meet_ps[group_of[i]];
        }
        visit(r, op);
    }
}

/* ---------------------------------------------------------------------- all */

static void prepare(const run *r)
{
    smp_apart *a = r->apart;
    const smp_noise *noise = r->input->noise;
    for (uint32_t i = 0; i < a->n_wait; i++) {
        a->waits[i].collectives = 0;
        a->waits[i].mean_ps = 0;
    }
    for (uint32_t p = 0; p < a->world; p++) {
        a->rank_factor[p] = noise->rank_factor ? noise->rank_factor[a->rank_of[p]] : 1.0;
    }
    for (uint32_t i = 0; noise->link_factor && i < a->n_circle; i++) {
        const smp_apart_circle *circle = &a->circles[i];
        memset(circle->link, 0, circle->n_group * sizeof *circle->link);
        for (uint32_t p = 0; p < a->world; p++) {
            const double factor = noise->link_factor[a->rank_of[p]];
            double *link = &circle->link[circle->group_of[p]];
            *link = *link > factor ? *link : factor;
        }
    }
}

/* When each rank is done, and the last of them. */
static void find_ends(const run *r, smp_apart_result *result)
{
    const smp_apart *a = r->apart;
    *result = (smp_apart_result){.last = UINT32_MAX, .waits = a->waits, .n_wait = a->n_wait};
    for (uint32_t p = 0, c = 0; p < a->world; p++) {
        while (p >= a->first[c + 1]) {
            c++;
        }
        int64_t end_ps = 0;
        for (uint32_t s = 0; s < SMP_STREAMS; s++) {
            const uint32_t slot = a->final[c * SMP_STREAMS + s];
            if (slot != SMP_APART_NONE) {
                const int64_t stream_ps = vector(a, c, slot)[p - a->first[c]];
                end_ps = end_ps > stream_ps ? end_ps : stream_ps;
            }
        }
        const uint32_t rank = a->rank_of[p];
        if (end_ps > result->end_ps || (end_ps == result->end_ps && rank < result->last)) {
            result->end_ps = end_ps;
            result->last = rank;
        }
        if (r->input->rank_end_ps) {
            r->input->rank_end_ps[rank] = end_ps;
        }
    }
}

void smp_apart_run(smp_apart *apart, const smp_apart_run_input *input,
                   smp_apart_result *result_p)
{
    const run r = {apart, input};
    prepare(&r);
    for (uint64_t i = 0; i < apart->n_op; i++) {
        const smp_apart_op *op = &apart->ops[i];
        run_op(&r, op);
        if (op->completes) {
            meet(&r, op + 1 - op->n_meet, op);
        } else if (!op->meets) {
            visit(&r, op);
        }
    }
    find_ends(&r, result_p);
}
