/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of the event engine: lanes, actors, and the channels in which classes meet. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "sim/engine.h"

#include <stdlib.h>
#include <string.h>

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
static void make_channels(smp_engine *engine)
{
    uint32_t n = 0;
    for (uint32_t c = 0; c < engine->n_lane; c++) {
        smp_lane *lane = &engine->lanes[c];
        lane->channel = SMP_ARENA_ARRAY(engine->arena, lane->program->n_comm, uint32_t);
        n += lane->program->n_comm;
    }
    seat *seats = SMP_ARENA_ARRAY(engine->arena, n, seat);
    uint32_t used = 0;
    for (uint32_t c = 0; c < engine->n_lane; c++) {
        const smp_program *program = engine->lanes[c].program;
        for (uint32_t k = 0; k < program->n_comm; k++) {
            seats[used++] = (seat){.comm = &program->comms[k], .lane = c, .index = k};
        }
    }
    if (n > 0) {
        qsort(seats, n, sizeof *seats, seat_compare);
    }
    engine->channels = SMP_ARENA_ARRAY(engine->arena, n, smp_meeting_place);
    uint32_t n_channel = 0;
    for (uint32_t first = 0, end = 0; first < n; first = end) {
        for (end = first; end < n && seat_meets(&seats[first], &seats[end]); end++) {
        }
        uint32_t number = end - first > 1 ? n_channel++ : SMP_NO_CHANNEL;
        for (uint32_t i = first; i < end; i++) {
            engine->lanes[seats[i].lane].channel[seats[i].index] = number;
        }
        if (number != SMP_NO_CHANNEL) {
            smp_meeting_place *channel = &engine->channels[number];
            channel->members = end - first;
            channel->open = SMP_ARENA_ARRAY(engine->arena, (size_t)(end - first) * SMP_STREAMS,
                                             smp_meeting);
        }
    }
}

void smp_engine_init(smp_engine *engine, const smp_engine_input *input)
{
    const smp_step *step = input->step;
    smp_arena *arena = smp_arena_create();
    *engine = (smp_engine){.input = input, .arena = arena, .n_lane = step->n_program};
    engine->lanes = SMP_ARENA_ARRAY(arena, step->n_program, smp_lane);
    engine->actors = SMP_ARENA_ARRAY(arena, (size_t)step->n_program * SMP_STREAMS, smp_actor);
    engine->heap = SMP_ARENA_ARRAY(arena, (size_t)step->n_program * SMP_STREAMS + 1, smp_event);
    engine->place = SMP_ARENA_ARRAY(arena, (size_t)step->n_program * SMP_STREAMS, uint32_t);
    engine->changed = SMP_ARENA_ARRAY(arena, step->n_program, uint32_t);
    for (uint32_t c = 0; c < step->n_program; c++) {
        smp_lane *lane = &engine->lanes[c];
        lane->program = step->programs[c];
        lane->duration_ps = input->duration_ps[c];
        lane->drawn_ps = input->drawn_ps ? input->drawn_ps[c] : NULL;
        lane->kinds = input->overlap ? input->kinds[c] : NULL;
        for (uint32_t k = 0; k < SMP_OVERLAP_KINDS; k++) {
            lane->slow_q16[k] = SMP_ALONE_Q16;
        }
        smp_lane_make(arena, lane, input->host_issue_ps ? input->host_issue_ps[c] : NULL);
    }
    make_channels(engine);
    for (uint32_t c = 0; c < step->n_program; c++) {
        smp_lane_sequences(arena, &engine->lanes[c]);
    }
}
