/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verifier over all classes of ranks:
 *   meetings  all classes that meet on a communicator issue the same sequence there
 *   progress  the union of the programs, with collectives as rendezvous, runs to its end
 * after verify.c has proved each program.
 */
#include "step/expand.h"

#include "base/numeric.h"

#include <stdlib.h>
#include <string.h>

/* A communicator as the classes that meet on it know it. */
struct meeting {
    const smp_comm *comm;
    uint32_t n_member;   /* classes */
    uint32_t n_arrived;  /* of them, at the next collective */
    uint32_t done;       /* collectives that have been held */
};

struct member {
    smp_expanded x;
    uint32_t *next;       /* by stream and rank in it: heap of positions, n entries */
    uint32_t begin[SMP_STREAMS], at[SMP_STREAMS], end[SMP_STREAMS];
    bool arrived[SMP_STREAMS];
    uint32_t held[SMP_STREAMS]; /* number of the collective it has arrived for */
    uint32_t *meeting_of_comm;
    uint32_t *wait_at;    /* by position: first wait in program->waits */
    bool *ended;          /* by position */
};

struct gathering {
    struct member *members;
    uint32_t n_member;
    struct meeting *meetings;
    uint32_t n_meeting;
    smp_errors *errors;
};

static bool comm_same(const smp_comm *a, const smp_comm *b)
{
    return a->group == b->group && a->meeting == b->meeting && strcmp(a->name, b->name) == 0;
}

static void join_meetings(struct gathering *g, struct member *member)
{
    const smp_program *program = member->x.program;
    member->meeting_of_comm =
        smp_heap_alloc((size_t)program->n_comm + 1, sizeof *member->meeting_of_comm);
    for (uint32_t c = 0; c < program->n_comm; c++) {
        uint32_t m = 0;
        while (m < g->n_meeting && !comm_same(g->meetings[m].comm, &program->comms[c])) {
            m++;
        }
        if (m == g->n_meeting) {
            g->meetings[g->n_meeting++] = (struct meeting){.comm = &program->comms[c]};
        }
        g->meetings[m].n_member++;
        member->meeting_of_comm[c] = m;
    }
}

/* The next collective on the meeting at or after *position; NULL at the end. */
static const smp_task *next_collective(const struct member *member, uint32_t meeting,
                                       uint32_t *position)
{
    for (; *position < member->x.n; ++*position) {
        const smp_task *task = smp_task_at(&member->x, *position);
        if (task->comm != SMP_NO_COMM && member->meeting_of_comm[task->comm] == meeting) {
            return task;
        }
    }
    return NULL;
}

static bool takes_part(const struct member *member, uint32_t meeting)
{
    for (uint32_t c = 0; c < member->x.program->n_comm; c++) {
        if (member->meeting_of_comm[c] == meeting) {
            return true;
        }
    }
    return false;
}

static smp_status compare_pair(const struct gathering *g, uint32_t meeting,
                               const struct member *a, const struct member *b)
{
    uint32_t p = 0, q = 0, number = 0;
    char name[192], name2[192];
    for (;; p++, q++, number++) {
        const smp_task *x = next_collective(a, meeting, &p);
        const smp_task *y = next_collective(b, meeting, &q);
        if (x == NULL && y == NULL) {
            return SMP_OK;
        }
        if (x != NULL && y != NULL && x->op == y->op && x->dtype == y->dtype &&
            x->dims[0] == y->dims[0]) {
            continue;
        }
        return smp_fail(g->errors, SMP_SYSTEM, NULL,
                        "verifier: collective %u on communicator %s differs between classes: "
                        "rank %u issues %s, rank %u issues %s", number,
                        g->meetings[meeting].comm->name, a->x.program->representative,
                        x == NULL ? "nothing" : smp_name_at(&a->x, p, name),
                        b->x.program->representative,
                        y == NULL ? "nothing" : smp_name_at(&b->x, q, name2));
    }
}

static smp_status compare_sequences(const struct gathering *g)
{
    smp_status status = SMP_OK;
    for (uint32_t m = 0; m < g->n_meeting && status == SMP_OK; m++) {
        const struct member *first = NULL;
        for (uint32_t k = 0; k < g->n_member && status == SMP_OK; k++) {
            if (!takes_part(&g->members[k], m)) {
                continue;
            }
            if (first == NULL) {
                first = &g->members[k];
            } else {
                status = compare_pair(g, m, first, &g->members[k]);
            }
        }
    }
    return status;
}

static void queue_tasks(struct member *member)
{
    const smp_expanded *x = &member->x;
    uint32_t fill[SMP_STREAMS], count[SMP_STREAMS] = {0}, total = 0;
    member->next = smp_heap_alloc((size_t)x->n + 1, sizeof *member->next);
    member->wait_at = smp_heap_alloc((size_t)x->n + 1, sizeof *member->wait_at);
    member->ended = smp_heap_alloc((size_t)x->n + 1, sizeof *member->ended);
    for (uint32_t p = 0; p < x->n; p++) {
        count[smp_task_at(x, p)->stream]++;
    }
    for (uint32_t s = 0; s < SMP_STREAMS; s++) {
        member->begin[s] = member->at[s] = fill[s] = total;
        total += count[s];
        member->end[s] = total;
    }
    for (uint32_t p = 0; p < x->n; p++) {
        member->next[fill[smp_task_at(x, p)->stream]++] = p;
    }
    for (uint32_t i = 0; i < x->program->n_instance; i++) {
        const smp_pattern *pattern = &x->program->patterns[x->program->order[i].pattern];
        uint32_t w = pattern->wait0;
        for (uint32_t p = x->first[i]; p < x->first[i + 1]; p++) {
            member->wait_at[p] = w;
            while (w < pattern->wait0 + pattern->n_wait &&
                   x->program->waits[w].task == p - x->first[i]) {
                w++;
            }
        }
    }
}

static bool waits_are_done(const struct member *member, uint32_t position)
{
    const smp_expanded *x = &member->x;
    uint32_t i = x->instance[position];
    const smp_pattern *pattern = &x->program->patterns[x->program->order[i].pattern];
    for (uint32_t w = member->wait_at[position]; w < pattern->wait0 + pattern->n_wait &&
                                                 x->program->waits[w].task ==
                                                     position - x->first[i]; w++) {
        if (!member->ended[smp_wait_source(x, i, &x->program->waits[w])]) {
            return false;
        }
    }
    return true;
}

/* Can the task at the head of the stream end?  A collective ends when all have arrived. */
static bool head_ends(struct gathering *g, struct member *member, uint32_t stream)
{
    uint32_t position = member->next[member->at[stream]];
    const smp_task *task = smp_task_at(&member->x, position);
    if (!member->arrived[stream] && !waits_are_done(member, position)) {
        return false;
    }
    if (task->comm == SMP_NO_COMM) {
        return true;
    }
    struct meeting *meeting = &g->meetings[member->meeting_of_comm[task->comm]];
    if (!member->arrived[stream]) {
        member->arrived[stream] = true;
        member->held[stream] = meeting->done;
        if (++meeting->n_arrived == meeting->n_member) {
            meeting->n_arrived = 0;
            meeting->done++;
        }
    }
    return meeting->done > member->held[stream];
}

static smp_status stuck(const struct gathering *g)
{
    char name[192];
    for (uint32_t k = 0; k < g->n_member; k++) {
        for (uint32_t s = 0; s < SMP_STREAMS; s++) {
            const struct member *member = &g->members[k];
            if (member->at[s] < member->end[s]) {
                return smp_fail(g->errors, SMP_SYSTEM, NULL,
                                "verifier: deadlock: rank %u never gets past %s",
                                member->x.program->representative,
                                smp_name_at(&member->x, member->next[member->at[s]], name));
            }
        }
    }
    return SMP_OK;
}

/* Kahn's algorithm over the union of all programs, stream by stream. */
static smp_status run_to_end(struct gathering *g)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t k = 0; k < g->n_member; k++) {
            struct member *member = &g->members[k];
            for (uint32_t s = 0; s < SMP_STREAMS; s++) {
                while (member->at[s] < member->end[s] && head_ends(g, member, s)) {
                    member->ended[member->next[member->at[s]++]] = true;
                    member->arrived[s] = false;
                    moved = true;
                }
            }
        }
    }
    return stuck(g);
}

static smp_status gather_members(const smp_step *step, struct gathering *g)
{
    smp_status status = SMP_OK;
    for (uint32_t k = 0; k < step->n_program && status == SMP_OK; k++) {
        struct member *member = &g->members[g->n_member++];
        status = smp_expand(step->programs[k], &member->x, g->errors);
        if (status == SMP_OK) {
            join_meetings(g, member);
            queue_tasks(member);
        }
    }
    return status;
}

smp_status smp_step_verify(const smp_step *step, smp_errors *errors)
{
    smp_status status = SMP_OK;
    uint32_t n_comm = 0;
    for (uint32_t k = 0; k < step->n_program && status == SMP_OK; k++) {
        status = smp_program_verify(step->programs[k], errors);
        n_comm += step->programs[k]->n_comm;
    }
    if (status != SMP_OK) {
        return status;
    }
    struct gathering g = {.errors = errors};
    g.members = smp_heap_alloc((size_t)step->n_program + 1, sizeof *g.members);
    g.meetings = smp_heap_alloc((size_t)n_comm + 1, sizeof *g.meetings);
    status = gather_members(step, &g);
    if (status == SMP_OK) {
        status = compare_sequences(&g);
    }
    if (status == SMP_OK) {
        status = run_to_end(&g);
    }
    for (uint32_t k = 0; k < g.n_member; k++) {
        smp_expanded_free(&g.members[k].x);
        free(g.members[k].next);
        free(g.members[k].meeting_of_comm);
        free(g.members[k].wait_at);
        free(g.members[k].ended);
    }
    free(g.members);
    free(g.meetings);
    return status;
}
