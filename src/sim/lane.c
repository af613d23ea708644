/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables of a program for the event engine: tasks by segment and stream, running numbers,
 * waits by task, host times.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "sim/lane.h"

#include <string.h>

enum { STREAMS = SMP_STREAMS };

static void make_lists(smp_arena *arena, smp_lane *lane_)
{
    const smp_program *program = lane_->program;
    lane_->sites = SMP_ARENA_ARRAY(arena, program->n_task, smp_site);
    lane_->lists = SMP_ARENA_ARRAY(arena, program->n_task, uint16_t);
    lane_->list0 = SMP_ARENA_ARRAY(arena, (size_t)program->n_segment * STREAMS + 1, uint32_t);
    uint32_t used = 0;
    for (uint32_t g = 0; g < program->n_segment; g++) {
        const smp_segment *segment = &program->segments[g];
        for (uint32_t s = 0; s < STREAMS; s++) {
            lane_->list0[g * STREAMS + s] = used;
            uint32_t rank = 0;
            for (uint32_t t = 0; t < segment->n_task; t++) {
                smp_site *site_ = &lane_->sites[segment->task0 + t];
                if (program->tasks[segment->task0 + t].stream == s) {
                    site_->rank = rank++;
                    site_->stream = (uint8_t)s;
                    lane_->lists[used++] = (uint16_t)t;
                }
            }
        }
    }
    lane_->list0[program->n_segment * STREAMS] = used;
}

static void make_positions(smp_arena *arena, smp_lane *lane_)
{
    const smp_program *program = lane_->program;
    size_t n = (size_t)program->n_instance * STREAMS;
    lane_->position0 = SMP_ARENA_ARRAY(arena, n, uint32_t);
    uint32_t total[STREAMS] = {0};
    for (uint32_t i = 0; i < program->n_instance; i++) {
        memcpy(&lane_->position0[(size_t)i * STREAMS], total, sizeof total);
        const uint32_t *list0 = &lane_->list0[program->order[i].segment * STREAMS];
        for (uint32_t s = 0; s < STREAMS; s++) {
            total[s] += list0[s + 1] - list0[s];
        }
    }
}

static void make_wait_index(smp_arena *arena, smp_lane *lane_)
{
    const smp_program *program = lane_->program;
    lane_->wait_index0 = SMP_ARENA_ARRAY(arena, program->n_pattern, uint32_t);
    lane_->wait_tasks = SMP_ARENA_ARRAY(arena, program->n_pattern, uint32_t);
    size_t total = 0;
    for (uint32_t p = 0; p < program->n_pattern; p++) {
        const smp_pattern *pattern = &program->patterns[p];
        const smp_wait *waits = &program->waits[pattern->wait0];
        lane_->wait_index0[p] = (uint32_t)total;
        lane_->wait_tasks[p] = pattern->n_wait ? waits[pattern->n_wait - 1].task + 1u : 0;
        total += lane_->wait_tasks[p] + 1;
    }
    lane_->wait_index = SMP_ARENA_ARRAY(arena, total, uint32_t);
    for (uint32_t p = 0; p < program->n_pattern; p++) {
        const smp_pattern *pattern = &program->patterns[p];
        uint32_t *index = &lane_->wait_index[lane_->wait_index0[p]];
        uint32_t w = 0;
        for (uint32_t t = 0; t <= lane_->wait_tasks[p]; t++) {
            while (w < pattern->n_wait && program->waits[pattern->wait0 + w].task < t) {
                w++;
            }
            index[t] = pattern->wait0 + w;
        }
    }
}

static void make_issue(smp_arena *arena, smp_lane *lane_, const int64_t *host_issue_ps)
{
    const smp_program *program = lane_->program;
    lane_->issue_ps = SMP_ARENA_ARRAY(arena, program->n_task, int64_t);
    lane_->issue0_ps = SMP_ARENA_ARRAY(arena, program->n_instance, int64_t);
    for (uint32_t g = 0; g < program->n_segment; g++) {
        const smp_segment *segment = &program->segments[g];
        int64_t sum_ps = 0;
        for (uint32_t t = 0; t < segment->n_task; t++) {
            sum_ps += host_issue_ps[segment->task0 + t];
            lane_->issue_ps[segment->task0 + t] = sum_ps;
        }
    }
    int64_t host_ps = 0;
    for (uint32_t i = 0; i < program->n_instance; i++) {
        const smp_segment *segment = &program->segments[program->order[i].segment];
        lane_->issue0_ps[i] = host_ps;
        if (segment->n_task > 0) {
            host_ps += lane_->issue_ps[segment->task0 + segment->n_task - 1];
        }
    }
}

void smp_lane_make(smp_arena *arena, smp_lane *lane, const int64_t *host_issue_ps)
{
    make_lists(arena, lane);
    make_positions(arena, lane);
    make_wait_index(arena, lane);
    if (host_issue_ps) {
        make_issue(arena, lane, host_issue_ps);
    }
}

void smp_lane_sequences(smp_arena *arena, smp_lane *lane_)
{
    const smp_program *program = lane_->program;
    uint32_t n = program->n_comm;
    bool any = false;
    for (uint32_t k = 0; k < n; k++) {
        any = any || lane_->channel[k] != SMP_NO_CHANNEL;
    }
    if (!any) {
        for (uint32_t t = 0; t < program->n_task; t++) {
            lane_->sites[t].comm = SMP_NO_COMM;
        }
        return;
    }
    uint32_t *count = SMP_ARENA_ARRAY(arena, n, uint32_t);
    uint32_t *in_segment = SMP_ARENA_ARRAY(arena, (size_t)program->n_segment * n, uint32_t);
    for (uint32_t g = 0; g < program->n_segment; g++) {
        const smp_segment *segment = &program->segments[g];
        for (uint32_t t = segment->task0; t < segment->task0 + segment->n_task; t++) {
            uint8_t comm = program->tasks[t].comm;
            lane_->sites[t].comm = SMP_NO_COMM;
            if (comm != SMP_NO_COMM && lane_->channel[comm] != SMP_NO_CHANNEL) {
                lane_->sites[t].comm = comm;
                lane_->sites[t].comm_rank = in_segment[(size_t)g * n + comm]++;
            }
        }
    }
    lane_->sequence0 = SMP_ARENA_ARRAY(arena, (size_t)program->n_instance * n, uint32_t);
    for (uint32_t i = 0; i < program->n_instance; i++) {
        uint32_t g = program->order[i].segment;
        for (uint32_t k = 0; k < n; k++) {
            lane_->sequence0[(size_t)i * n + k] = count[k];
            count[k] += in_segment[(size_t)g * n + k];
        }
    }
}
