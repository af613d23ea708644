/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verifier: a proof that a step program runs right in any timing.
 *
 * It shares nothing with the derivation of waits.  The whole program is expanded, every
 * instance of every micro-batch, with the waits as they are written down:
 *   order     what a task comes after: its predecessor on the stream and its waits, as vector
 *             clocks [Fidge 1988; Mattern 1989]
 *   races     a map from addresses to (last writer, last reader of each stream) that is cut
 *             at the bounds of accesses as they come; every access must come after what it
 *             conflicts with.  Checking the last ones is enough: they came after the others.
 *   contents  a read must find what its own entry was written with, not another entry's data
 *             that lie at the same place
 *   bounds    accesses inside entries, entries inside the arenas
 *   comms     collectives of one communicator follow one another
 * and over all classes of ranks:
 *   meetings  all classes that meet on a communicator issue the same sequence there
 *   progress  the union of the programs, with collectives as rendezvous, runs to its end
 */
#include "base/numeric.h"
#include "step/program.h"

#include <stdlib.h>
#include <string.h>

enum { NOT = 0xffffffffu };

/* ------------------------------------------------------------------ expansion */

/* A program with one row per task that runs. */
struct expanded {
    const smp_program *program;
    uint32_t n;
    uint32_t *first;     /* by instance: its first position; n_instance + 1 */
    uint32_t *instance;  /* by position */
    uint32_t *clocks;    /* by position: SMP_STREAMS entries, position + 1 */
};

static const smp_task *task_at(const struct expanded *x, uint32_t position)
{
    uint32_t i = x->instance[position];
    const smp_segment *segment = &x->program->segments[x->program->order[i].segment];
    return &x->program->tasks[segment->task0 + (position - x->first[i])];
}

/* "qkv_dw of backward (layer 3, micro-batch 1, turn 7; instance 15, compute)" */
static const char *name_at(const struct expanded *x, uint32_t position, char text[192])
{
    uint32_t i = x->instance[position];
    const smp_instance *it = &x->program->order[i];
    const smp_task *task = task_at(x, position);
    (void)snprintf(text, 192, "%s of %s (layer %u, micro-batch %u, turn %u; instance %u, %s)",
                   task->name, x->program->segments[it->segment].name, it->layer,
                   it->micro_batch, it->turn, i, smp_stream_name((smp_stream)task->stream));
    return text;
}

static void release(struct expanded *x)
{
    free(x->first);
    free(x->instance);
    free(x->clocks);
}

static smp_status expand(const smp_program *program, struct expanded *x, smp_errors *errors)
{
    uint64_t n = 0;
    *x = (struct expanded){.program = program};
    for (uint32_t i = 0; i < program->n_instance; i++) {
        if (program->order[i].segment >= program->n_segment) {
            return smp_fail(errors, SMP_SYSTEM, NULL, "verifier: instance %u has no segment",
                            i);
        }
        n += program->segments[program->order[i].segment].n_task;
    }
    if (n >= NOT) {
        return smp_fail(errors, SMP_SYSTEM, NULL,
                        "verifier: a step of %llu tasks is too long to expand",
                        (unsigned long long)n);
    }
    x->n = (uint32_t)n;
    x->first = smp_heap_alloc((size_t)program->n_instance + 1, sizeof *x->first);
    x->instance = smp_heap_alloc((size_t)n + 1, sizeof *x->instance);
    uint32_t position = 0;
    for (uint32_t i = 0; i < program->n_instance; i++) {
        const smp_segment *segment = &program->segments[program->order[i].segment];
        x->first[i] = position;
        for (uint32_t t = 0; t < segment->n_task; t++) {
            x->instance[position++] = i;
        }
    }
    x->first[program->n_instance] = position;
    return SMP_OK;
}

/* Position that a wait of instance i names, NOT if there is none before the waiting task. */
static uint32_t source_of(const struct expanded *x, uint32_t i, const smp_wait *wait)
{
    if (wait->back > i) {
        return NOT;
    }
    uint32_t from = i - wait->back;
    uint32_t source = x->first[from] + wait->source;
    bool inside = source < x->first[from + 1];
    return inside && source < x->first[i] + wait->task ? source : NOT;
}

static void raise_clock(uint32_t *clock, const uint32_t *other)
{
    for (uint32_t s = 0; s < SMP_STREAMS; s++) {
        clock[s] = clock[s] > other[s] ? clock[s] : other[s];
    }
}

static smp_status bad_wait(const struct expanded *x, uint32_t i, const smp_wait *wait,
                           smp_errors *errors)
{
    const smp_instance *it = &x->program->order[i];
    return smp_fail(errors, SMP_SYSTEM, NULL,
                    "verifier: a wait of instance %u (%s) is malformed: task %u for task %u "
                    "of the instance %u back; sources must come before, in order of tasks", i,
                    x->program->segments[it->segment].name, wait->task, wait->source,
                    wait->back);
}

static smp_status find_clocks(struct expanded *x, smp_errors *errors)
{
    const smp_program *program = x->program;
    uint32_t last[SMP_STREAMS] = {0}; /* position + 1 of the last task of a stream */
    x->clocks = smp_heap_alloc(((size_t)x->n + 1) * SMP_STREAMS, sizeof *x->clocks);
    for (uint32_t i = 0; i < program->n_instance; i++) {
        if (program->order[i].pattern >= program->n_pattern) {
            return smp_fail(errors, SMP_SYSTEM, NULL, "verifier: instance %u has no pattern",
                            i);
        }
        const smp_pattern *pattern = &program->patterns[program->order[i].pattern];
        const smp_wait *wait = program->waits + pattern->wait0, *end = wait + pattern->n_wait;
        for (uint32_t p = x->first[i]; p < x->first[i + 1]; p++) {
            uint32_t *clock = x->clocks + (size_t)p * SMP_STREAMS;
            uint32_t stream = task_at(x, p)->stream;
            if (last[stream] > 0) {
                raise_clock(clock, x->clocks + (size_t)(last[stream] - 1) * SMP_STREAMS);
            }
            for (; wait < end && wait->task == p - x->first[i]; wait++) {
                uint32_t source = source_of(x, i, wait);
                if (source == NOT) {
                    return bad_wait(x, i, wait, errors);
                }
                raise_clock(clock, x->clocks + (size_t)source * SMP_STREAMS);
            }
            clock[stream] = last[stream] = p + 1;
        }
        if (wait < end) {
            return bad_wait(x, i, wait, errors);
        }
    }
    return SMP_OK;
}

static bool comes_after(const struct expanded *x, uint32_t position, uint32_t earlier)
{
    return x->clocks[(size_t)position * SMP_STREAMS + task_at(x, earlier)->stream] > earlier;
}

/* ---------------------------------------------------------------- map of bytes */

/* Bytes from `start` to the start of the next piece, all with the same history. */
struct piece {
    uint32_t writer;               /* position + 1 */
    uint32_t buffer;               /* that the writer wrote as, */
    uint64_t contents;             /* and which of its entries */
    uint32_t reader[SMP_STREAMS];  /* position + 1, since the last write */
    uint32_t reader_buffer;        /* of the latest reader, for messages */
};

struct boundary { uint64_t start; uint32_t piece; };

struct byte_map {
    struct boundary *boundaries; /* heap, by start; the first starts at 0 */
    size_t n_boundary, boundary_capacity;
    struct piece *pieces;        /* heap */
    size_t n_piece, piece_capacity;
};

static void map_init(struct byte_map *map)
{
    *map = (struct byte_map){0};
    SMP_GROW(map->boundaries, map->n_boundary, map->boundary_capacity);
    SMP_GROW(map->pieces, map->n_piece, map->piece_capacity);
    map->pieces[map->n_piece++] = (struct piece){.buffer = NOT};
    map->boundaries[map->n_boundary++] = (struct boundary){0, 0};
}

static void map_free(struct byte_map *map)
{
    free(map->boundaries);
    free(map->pieces);
}

/* Index of the boundary at `address`, cutting the piece there if it has none. */
static size_t map_cut(struct byte_map *map, uint64_t address)
{
    size_t low = 0, high = map->n_boundary;
    while (high - low > 1) { /* boundary low is at or before the address */
        size_t middle = low + (high - low) / 2;
        if (map->boundaries[middle].start <= address) {
            low = middle;
        } else {
            high = middle;
        }
    }
    if (map->boundaries[low].start == address) {
        return low;
    }
    SMP_GROW(map->boundaries, map->n_boundary, map->boundary_capacity);
    SMP_GROW(map->pieces, map->n_piece, map->piece_capacity);
    struct boundary *at = map->boundaries + low + 1;
    memmove(at + 1, at, (map->n_boundary - low - 1) * sizeof *at);
    map->pieces[map->n_piece] = map->pieces[map->boundaries[low].piece];
    *at = (struct boundary){address, (uint32_t)map->n_piece};
    map->n_boundary++;
    map->n_piece++;
    return low + 1;
}

/* ----------------------------------------------------------------------- races */

struct proof {
    struct expanded x;
    struct byte_map maps[SMP_SPACES];
    uint32_t *last_collective; /* by communicator: position + 1 */
    smp_errors *errors;
};

/* Where an operand lies: worked out here once more, from the formula in program.h. */
struct operand {
    const smp_buffer *buffer;
    uint64_t low, high;  /* addresses */
    uint64_t contents;   /* which entry: index and, unless static, micro-batch or instance */
};

static bool find_operand(const struct expanded *x, uint32_t position, const smp_access *access,
                         struct operand *o)
{
    const smp_program *program = x->program;
    uint32_t i = x->instance[position];
    const smp_instance *it = &program->order[i];
    if (access->buffer >= program->n_buffer) {
        return false;
    }
    const smp_buffer *buffer = &program->buffers[access->buffer];
    uint64_t bytes = buffer->space == SMP_SPACE_TOKEN ? 1 : buffer->bytes;
    int64_t index = 0;
    if (buffer->index == SMP_INDEX_LAYER) {
        index = smp_layer_entry(buffer, (int64_t)it->layer + access->delta);
    } else if (buffer->index == SMP_INDEX_TURN) {
        index = (int64_t)it->turn + access->delta;
    }
    bool is_ring = buffer->slots > 0 && buffer->index != SMP_INDEX_NONE;
    bool is_stack = !is_ring && buffer->index == SMP_INDEX_LAYER;
    if (index < 0 || (is_stack && index >= buffer->entries) || access->bytes == 0 ||
        access->bytes > bytes || access->offset_bytes > bytes - access->bytes) {
        return false;
    }
    uint64_t place = is_ring ? (uint64_t)index % buffer->slots : (uint64_t)index;
    if (buffer->index == SMP_INDEX_TURN) {
        o->low = program->slot_bases[buffer->slot_base + (is_ring ? place : 0)];
    } else {
        o->low = buffer->base + place * buffer->stride;
    }
    o->low += access->offset_bytes;
    o->high = o->low + access->bytes;
    o->buffer = buffer;
    o->contents = (uint64_t)index;
    if (buffer->scope == SMP_SCOPE_INSTANCE) {
        o->contents |= (uint64_t)i << 32;
    } else if (buffer->scope == SMP_SCOPE_MICROBATCH && buffer->index != SMP_INDEX_TURN) {
        o->contents |= (uint64_t)it->micro_batch << 32;
    }
    uint64_t top = buffer->space == SMP_SPACE_DEVICE ? program->arena_bytes
                   : buffer->space == SMP_SPACE_HOST ? program->host_arena_bytes
                                                     : UINT64_MAX;
    return o->high <= top;
}

static smp_status out_of_bounds(const struct proof *proof, uint32_t position,
                                const smp_access *access)
{
    char name[192];
    const smp_program *program = proof->x.program;
    bool known = access->buffer < program->n_buffer;
    const char *buffer = known ? program->buffers[access->buffer].name : "no buffer";
    return smp_fail(proof->errors, SMP_SYSTEM, NULL,
                    "verifier: %s accesses bytes %llu+%llu of %s%+d, which lie outside the "
                    "entry or the arena", name_at(&proof->x, position, name),
                    (unsigned long long)access->offset_bytes,
                    (unsigned long long)access->bytes, buffer, access->delta);
}

static smp_status race(const struct proof *proof, uint32_t position, const smp_access *access,
                       const struct operand *o, uint32_t earlier, uint32_t other, bool wrote)
{
    char name[192], name2[192];
    return smp_fail(proof->errors, SMP_SYSTEM, NULL,
                    "verifier: nothing orders %s, which %s %s, after %s, which %s %s: conflict "
                    "in %s bytes %llu..%llu",
                    name_at(&proof->x, position, name), access->writes ? "writes" : "reads",
                    o->buffer->name, name_at(&proof->x, earlier, name2),
                    wrote ? "writes" : "reads", proof->x.program->buffers[other].name,
                    o->buffer->space == SMP_SPACE_HOST ? "host" : "device",
                    (unsigned long long)o->low, (unsigned long long)o->high - 1);
}

static smp_status clobbered(const struct proof *proof, uint32_t position,
                            const struct operand *o, const struct piece *piece)
{
    char name[192], name2[192];
    const smp_buffer *wrote = &proof->x.program->buffers[piece->buffer];
    bool same = wrote == o->buffer;
    return smp_fail(proof->errors, SMP_SYSTEM, NULL,
                    "verifier: %s reads %s at bytes %llu..%llu, but finds what %s wrote there "
                    "as %s", name_at(&proof->x, position, name), o->buffer->name,
                    (unsigned long long)o->low, (unsigned long long)o->high - 1,
                    name_at(&proof->x, piece->writer - 1, name2),
                    same ? "another entry of it" : wrote->name);
}

static smp_status check_piece(const struct proof *proof, uint32_t position,
                              const smp_access *access, const struct operand *o,
                              const struct piece *piece)
{
    const struct expanded *x = &proof->x;
    if (piece->writer > 0 && piece->writer - 1 != position &&
        !comes_after(x, position, piece->writer - 1)) {
        return race(proof, position, access, o, piece->writer - 1, piece->buffer, true);
    }
    for (uint32_t s = 0; access->writes && s < SMP_STREAMS; s++) {
        uint32_t reader = piece->reader[s];
        if (reader > 0 && reader - 1 != position && !comes_after(x, position, reader - 1)) {
            return race(proof, position, access, o, reader - 1, piece->reader_buffer, false);
        }
    }
    if (access->reads && o->buffer->space != SMP_SPACE_TOKEN && piece->writer > 0 &&
        (piece->buffer != access->buffer || piece->contents != o->contents)) {
        return clobbered(proof, position, o, piece);
    }
    return SMP_OK;
}

static void note_piece(const struct expanded *x, uint32_t position, const smp_access *access,
                       const struct operand *o, struct piece *piece)
{
    if (access->writes) {
        *piece = (struct piece){
            .writer = position + 1, .buffer = access->buffer, .contents = o->contents};
    } else if (piece->writer != position + 1) {
        piece->reader[task_at(x, position)->stream] = position + 1;
        piece->reader_buffer = access->buffer;
    }
}

static smp_status check_collective(struct proof *proof, uint32_t position)
{
    const smp_program *program = proof->x.program;
    const smp_task *task = task_at(&proof->x, position);
    char name[192], name2[192];
    bool collective = smp_op_info_of((smp_op)task->op)->klass == SMP_CLASS_COLLECTIVE;
    if (collective != (task->comm != SMP_NO_COMM) ||
        (collective && task->comm >= program->n_comm)) {
        return smp_fail(proof->errors, SMP_SYSTEM, NULL,
                        "verifier: %s: a collective has a communicator, and nothing else does",
                        name_at(&proof->x, position, name));
    }
    if (!collective) {
        return SMP_OK;
    }
    uint32_t *last = &proof->last_collective[task->comm];
    if (*last > 0 && !comes_after(&proof->x, position, *last - 1)) {
        return smp_fail(proof->errors, SMP_SYSTEM, NULL,
                        "verifier: nothing orders %s after %s on communicator %s",
                        name_at(&proof->x, position, name),
                        name_at(&proof->x, *last - 1, name2), program->comms[task->comm].name);
    }
    *last = position + 1;
    return SMP_OK;
}

/* First checks all operands of the task, then notes its reads, then its writes. */
static smp_status prove_task(struct proof *proof, uint32_t position)
{
    const smp_program *program = proof->x.program;
    const smp_task *task = task_at(&proof->x, position);
    smp_status status = check_collective(proof, position);
    for (int pass = 0; pass < 3; pass++) {
        for (uint32_t a = 0; a < task->n_access && status == SMP_OK; a++) {
            const smp_access *access = &program->accesses[task->access0 + a];
            struct operand o;
            if (!find_operand(&proof->x, position, access, &o)) {
                return out_of_bounds(proof, position, access);
            }
            if (pass > 0 && access->writes != (pass == 2)) {
                continue;
            }
            struct byte_map *map = &proof->maps[o.buffer->space];
            size_t low = map_cut(map, o.low), high = map_cut(map, o.high);
            for (size_t b = low; b < high && status == SMP_OK; b++) {
                struct piece *piece = &map->pieces[map->boundaries[b].piece];
                if (pass == 0) {
                    status = check_piece(proof, position, access, &o, piece);
                } else {
                    note_piece(&proof->x, position, access, &o, piece);
                }
            }
        }
    }
    return status;
}

smp_status smp_program_verify(const smp_program *program, smp_errors *errors)
{
    struct proof proof = {.errors = errors};
    smp_status status = expand(program, &proof.x, errors);
    if (status == SMP_OK) {
        status = find_clocks(&proof.x, errors);
    }
    proof.last_collective =
        smp_heap_alloc((size_t)program->n_comm + 1, sizeof *proof.last_collective);
    for (uint32_t s = 0; s < SMP_SPACES; s++) {
        map_init(&proof.maps[s]);
    }
    for (uint32_t p = 0; p < proof.x.n && status == SMP_OK; p++) {
        status = prove_task(&proof, p);
    }
    for (uint32_t s = 0; s < SMP_SPACES; s++) {
        map_free(&proof.maps[s]);
    }
    free(proof.last_collective);
    release(&proof.x);
    return status;
}

/* -------------------------------------------------------- meetings and progress */

/* A communicator as the classes that meet on it know it. */
struct meeting {
    const smp_comm *comm;
    uint32_t n_member;   /* classes */
    uint32_t n_arrived;  /* of them, at the next collective */
    uint32_t done;       /* collectives that have been held */
};

struct member {
    struct expanded x;
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
        const smp_task *task = task_at(&member->x, *position);
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
                        x == NULL ? "nothing" : name_at(&a->x, p, name),
                        b->x.program->representative,
                        y == NULL ? "nothing" : name_at(&b->x, q, name2));
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
    const struct expanded *x = &member->x;
    uint32_t fill[SMP_STREAMS], count[SMP_STREAMS] = {0}, total = 0;
    member->next = smp_heap_alloc((size_t)x->n + 1, sizeof *member->next);
    member->wait_at = smp_heap_alloc((size_t)x->n + 1, sizeof *member->wait_at);
    member->ended = smp_heap_alloc((size_t)x->n + 1, sizeof *member->ended);
    for (uint32_t p = 0; p < x->n; p++) {
        count[task_at(x, p)->stream]++;
    }
    for (uint32_t s = 0; s < SMP_STREAMS; s++) {
        member->begin[s] = member->at[s] = fill[s] = total;
        total += count[s];
        member->end[s] = total;
    }
    for (uint32_t p = 0; p < x->n; p++) {
        member->next[fill[task_at(x, p)->stream]++] = p;
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
    const struct expanded *x = &member->x;
    uint32_t i = x->instance[position];
    const smp_pattern *pattern = &x->program->patterns[x->program->order[i].pattern];
    for (uint32_t w = member->wait_at[position]; w < pattern->wait0 + pattern->n_wait &&
                                                 x->program->waits[w].task ==
                                                     position - x->first[i]; w++) {
        if (!member->ended[source_of(x, i, &x->program->waits[w])]) {
            return false;
        }
    }
    return true;
}

/* Can the task at the head of the stream end?  A collective ends when all have arrived. */
static bool head_ends(struct gathering *g, struct member *member, uint32_t stream)
{
    uint32_t position = member->next[member->at[stream]];
    const smp_task *task = task_at(&member->x, position);
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
                                name_at(&member->x, member->next[member->at[s]], name));
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
        status = expand(step->programs[k], &member->x, g->errors);
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
        release(&g.members[k].x);
        free(g.members[k].next);
        free(g.members[k].meeting_of_comm);
        free(g.members[k].wait_at);
        free(g.members[k].ended);
    }
    free(g.members);
    free(g.meetings);
    return status;
}
