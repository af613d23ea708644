/* SPDX-License-Identifier: Apache-2.0 */
/* The path through forward and backward that holds for all settings of a head: chain.h. */
#include "plan/chain.h"

#include "base/numeric.h"
#include "cost/cost.h"
#include "step/order.h"

enum { NONE = 0xffffffffu, MOST_LINKS = 64 };
static const int64_t UNREACHED = INT64_MIN;

bool smp_chain_has(const smp_task *task)
{
    const bool stream = task->stream == SMP_STREAM_COMPUTE ||
                        task->stream == SMP_STREAM_TENSOR ||
                        task->stream == SMP_STREAM_EXPERT || task->stream == SMP_STREAM_SHARED;
    return stream && task->phase != SMP_PHASE_UPDATE && task->op != SMP_OP_CAST &&
           task->op != SMP_OP_FILL && task->op != SMP_OP_ACCUMULATE &&
           task->op != SMP_OP_STORE && task->op != SMP_OP_LOAD;
}

static bool is_anchor(const smp_task *task)
{
    return task->stream == SMP_STREAM_COMPUTE && smp_chain_has(task);
}

/* The path between the first compute tasks of two neighbours; equal for all neighbours that
 * differ by as many layers and turns. */
typedef struct link {
    uint32_t from, to; /* segments */
    int32_t layers, turns;
    bool starts;       /* a new micro-batch */
    int64_t ps;
} link;

/* An access of a task on the path. */
typedef struct touch {
    uint32_t node, next; /* next: earlier touch of the same buffer, or NONE */
    uint32_t place;
    bool writes;
    uint64_t first, end; /* bytes inside the entry */
} touch;

typedef struct walker {
    const smp_program *program;
    const int64_t *duration_ps;
    uint32_t *anchor;    /* by segment: its first compute task, or NONE */
    int64_t *at_ps;      /* by node of the current pair: longest path to its end */
    touch *touches;
    uint32_t n_touch;
    uint32_t *newest;    /* by buffer: its last touch, or NONE */
    int64_t stream_ps[SMP_STREAMS]; /* end of the last node on each stream */
    link *links;
    uint32_t n_link;
} walker;

/* ------------------------------------------------------------------- one pair */

static void begin_pair(walker *w)
{
    w->n_touch = 0;
    for (uint32_t b = 0; b < w->program->n_buffer; b++) {
        w->newest[b] = NONE;
    }
    for (uint32_t s = 0; s < SMP_STREAMS; s++) {
        w->stream_ps[s] = UNREACHED;
    }
}

/* When the last node that must come before this access ends. */
static int64_t before_access(const walker *w, const smp_access *access, uint32_t place)
{
    int64_t most = UNREACHED;
    for (uint32_t i = w->newest[access->buffer]; i != NONE; i = w->touches[i].next) {
        const touch *t = &w->touches[i];
        if (t->place == place && (t->writes || access->writes) &&
            t->first < access->offset_bytes + access->bytes && access->offset_bytes < t->end &&
            w->at_ps[t->node] > most) {
            most = w->at_ps[t->node];
        }
    }
    return most;
}

/* Longest path to the start of a task. */
static int64_t reach(const walker *w, const smp_instance *instance, const smp_task *task)
{
    int64_t most = w->stream_ps[task->stream];
    for (uint32_t a = task->access0; a < task->access0 + task->n_access; a++) {
        const smp_access *access = &w->program->accesses[a];
        const smp_buffer *buffer = &w->program->buffers[access->buffer];
        const int64_t before =
            before_access(w, access, smp_place_of(buffer, instance, access->delta));
        most = before > most ? before : most;
    }
    return most;
}

static void note(walker *w, const smp_instance *instance, const smp_task *task, uint32_t node)
{
    for (uint32_t a = task->access0; a < task->access0 + task->n_access; a++) {
        const smp_access *access = &w->program->accesses[a];
        const smp_buffer *buffer = &w->program->buffers[access->buffer];
        w->touches[w->n_touch] = (touch){
            node, w->newest[access->buffer], smp_place_of(buffer, instance, access->delta),
            access->writes, access->offset_bytes, access->offset_bytes + access->bytes};
        w->newest[access->buffer] = w->n_touch++;
    }
}

/* Walks tasks from `first` to before `end` of an instance; the first node's start is 0 where
 * `opens`. */
static uint32_t walk(walker *w, const smp_instance *instance, uint32_t first, uint32_t end,
                     bool opens, uint32_t node)
{
    for (uint32_t t = first; t < end; t++) {
        const smp_task *task = &w->program->tasks[t];
        if (!smp_chain_has(task)) {
            continue;
        }
        const int64_t start_ps = opens && t == first ? 0 : reach(w, instance, task);
        w->at_ps[node] = start_ps == UNREACHED ? UNREACHED : start_ps + w->duration_ps[t];
        if (w->at_ps[node] > w->stream_ps[task->stream]) {
            w->stream_ps[task->stream] = w->at_ps[node];
        }
        note(w, instance, task, node++);
    }
    return node;
}

static int64_t pair_ps(walker *w, const smp_instance *from, const smp_instance *to)
{
    const smp_segment *segment = &w->program->segments[from->segment];
    const smp_segment *other = &w->program->segments[to->segment];
    const uint32_t last = w->anchor[to->segment];
    begin_pair(w);
    const uint32_t node = walk(w, from, w->anchor[from->segment],
                               segment->task0 + segment->n_task, true, 0);
    (void)walk(w, to, other->task0, last, false, node);
    return reach(w, to, &w->program->tasks[last]);
}

/* From the first compute task of the last instance to its end. */
static int64_t tail_ps(walker *w, const smp_instance *from)
{
    const smp_segment *segment = &w->program->segments[from->segment];
    int64_t most = 0;
    begin_pair(w);
    (void)walk(w, from, w->anchor[from->segment], segment->task0 + segment->n_task, true, 0);
    for (uint32_t s = 0; s < SMP_STREAMS; s++) {
        most = w->stream_ps[s] > most ? w->stream_ps[s] : most;
    }
    return most;
}

static int64_t link_ps(walker *w, const smp_instance *from, const smp_instance *to)
{
    const link key = {from->segment, to->segment, (int32_t)to->layer - (int32_t)from->layer,
                      (int32_t)(to->turn - from->turn),
                      to->micro_batch != from->micro_batch, 0};
    for (uint32_t i = w->n_link; i-- > 0;) {
        const link *at = &w->links[i];
        if (at->from == key.from && at->to == key.to && at->layers == key.layers &&
            at->turns == key.turns && at->starts == key.starts) {
            return at->ps;
        }
    }
    const int64_t ps = pair_ps(w, from, to);
    if (w->n_link < MOST_LINKS) {
        w->links[w->n_link] = key;
        w->links[w->n_link++].ps = ps;
    }
    return ps;
}

/* ------------------------------------------------------------------- the chain */

static void init(walker *w, const smp_program *program, const int64_t *duration_ps,
                 smp_arena *scratch)
{
    uint32_t most_nodes = 0;
    *w = (walker){.program = program, .duration_ps = duration_ps};
    w->anchor = SMP_ARENA_ARRAY(scratch, program->n_segment, uint32_t);
    for (uint32_t s = 0; s < program->n_segment; s++) {
        const smp_segment *segment = &program->segments[s];
        w->anchor[s] = NONE;
        for (uint32_t t = segment->n_task; t-- > 0;) {
            if (is_anchor(&program->tasks[segment->task0 + t])) {
                w->anchor[s] = segment->task0 + t;
            }
        }
        most_nodes = segment->n_task > most_nodes ? segment->n_task : most_nodes;
    }
    w->at_ps = SMP_ARENA_ARRAY(scratch, 2 * (size_t)most_nodes + 1, int64_t);
    w->touches = SMP_ARENA_ARRAY(scratch, 2 * (size_t)program->n_access, touch);
    w->newest = SMP_ARENA_ARRAY(scratch, program->n_buffer, uint32_t);
    w->links = SMP_ARENA_ARRAY(scratch, MOST_LINKS, link);
}

/* Time alone of what a segment has of the path. */
typedef struct sums { int64_t link_ps[SMP_LINKS], kernel_ps; } sums;

static sums *sum_segments(const smp_program *program, const int64_t *duration_ps,
                          smp_arena *scratch)
{
    sums *all = SMP_ARENA_ARRAY(scratch, program->n_segment, sums);
    for (uint32_t s = 0; s < program->n_segment; s++) {
        const smp_segment *segment = &program->segments[s];
        for (uint32_t t = segment->task0; t < segment->task0 + segment->n_task; t++) {
            const smp_task *task = &program->tasks[t];
            if (!smp_chain_has(task)) {
                continue;
            }
            if (task->comm != SMP_NO_COMM) {
                const bool between = program->comms[task->comm].placement.nodes > 1;
                all[s].link_ps[between] += duration_ps[t];
            } else if (is_anchor(task) &&
                       smp_cost_overlap_kind(program, task) != SMP_OVERLAP_NONE) {
                all[s].kernel_ps += duration_ps[t];
            }
        }
    }
    return all;
}

static void add_stretch(smp_stretch *sum, const smp_stretch *more, int64_t times)
{
    sum->path_ps += more->path_ps * times;
    sum->kernel_ps += more->kernel_ps * times;
    for (int l = 0; l < SMP_LINKS; l++) {
        sum->link_ps[l] += more->link_ps[l] * times;
        sum->inside_ps[l] += more->inside_ps[l] * times;
    }
}

/* Which micro-batch of a chain one of the program's is. */
static int number_of(const smp_program *program, uint32_t micro_batch)
{
    return micro_batch + 1 == program->micro_batches ? 2 : (int)micro_batch;
}

void smp_chain_measure(const smp_program *program, const int64_t *duration_ps,
                       uint64_t micro_batches, smp_arena *scratch, smp_chain *chain_p)
{
    walker w;
    const smp_instance *before = NULL;
    smp_stretch *at = NULL;
    smp_chain chain = {.whole = {0}};
    int64_t waiting_ps[SMP_LINKS] = {0};
    const sums *of = sum_segments(program, duration_ps, scratch);
    init(&w, program, duration_ps, scratch);
    for (uint32_t i = 0; i < program->n_instance; i++) {
        const smp_instance *it = &program->order[i];
        const uint32_t anchor = w.anchor[it->segment];
        if (anchor == NONE) {
            continue;
        }
        if (before) {
            at->path_ps += link_ps(&w, before, it);
        }
        const bool starts = !before || it->micro_batch != before->micro_batch;
        smp_stretch *parts = chain.part[number_of(program, it->micro_batch)];
        const bool backward = program->tasks[anchor].phase != SMP_PHASE_FORWARD;
        smp_stretch *left = at;
        if (starts || backward) { /* once backward has begun, it goes on */
            at = &parts[!starts];
        }
        at->kernel_ps += of[it->segment].kernel_ps;
        /* the last instance of a stretch may end after it, the first has begun before it */
        for (int l = 0; l < SMP_LINKS; l++) {
            const int64_t own_ps = of[it->segment].link_ps[l];
            at->inside_ps[l] += left == at ? waiting_ps[l] : 0;
            waiting_ps[l] = left == at ? own_ps : 0;
            at->link_ps[l] += own_ps;
            if (left && left != at) {
                left->link_ps[l] += own_ps;
            }
        }
        before = it;
    }
    if (before) {
        at->path_ps += tail_ps(&w, before);
    }
    for (int n = 0; n < 3; n++) {
        const int64_t times = n == 1 ? (micro_batches > 2 ? (int64_t)micro_batches - 2 : 0) : 1;
        add_stretch(&chain.whole, &chain.part[n][0], times);
        add_stretch(&chain.whole, &chain.part[n][1], times);
    }
    *chain_p = chain;
}
