/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verifier: a proof that a step program runs right in any timing.
 *
 * It shares nothing with the derivation of waits.  The whole program is expanded (expand.h):
 *   order     what a task comes after: its predecessor on the stream and its waits, as vector
 *             clocks [Fidge 1988; Mattern 1989]
 *   races     a map from addresses to (last writer, last reader of each stream) that is cut
 *             at the bounds of accesses as they come; every access must come after what it
 *             conflicts with.  Checking the last ones is enough: they came after the others.
 *   contents  a read must find what its own entry was written with, not another entry's data
 *             that lie at the same place
 *   bounds    accesses inside entries, entries inside the arenas
 *   comms     collectives of one communicator follow one another
 * What classes of ranks are to each other is proved by meetings.c.
 */
#include "step/expand.h"

#include "base/numeric.h"

#include <stdlib.h>
#include <string.h>

/* --------------------------------------------------------------------- order */

static void raise_clock(uint32_t *clock, const uint32_t *other)
{
    for (uint32_t s = 0; s < SMP_STREAMS; s++) {
        clock[s] = clock[s] > other[s] ? clock[s] : other[s];
    }
}

static smp_status bad_wait(const smp_expanded *x, uint32_t i, const smp_wait *wait,
                           smp_errors *errors)
{
    const smp_instance *it = &x->program->order[i];
    return smp_fail(errors, SMP_SYSTEM, NULL,
                    "verifier: a wait of instance %u (%s) is malformed: task %u for task %u "
                    "of the instance %u back; sources must come before, in order of tasks", i,
                    x->program->segments[it->segment].name, wait->task, wait->source,
                    wait->back);
}

static smp_status find_clocks(smp_expanded *x, smp_errors *errors)
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
            uint32_t stream = smp_task_at(x, p)->stream;
            if (last[stream] > 0) {
                raise_clock(clock, x->clocks + (size_t)(last[stream] - 1) * SMP_STREAMS);
            }
            for (; wait < end && wait->task == p - x->first[i]; wait++) {
                uint32_t source = smp_wait_source(x, i, wait);
                if (source == SMP_NO_POSITION) {
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

static bool comes_after(const smp_expanded *x, uint32_t position, uint32_t earlier)
{
    const uint32_t *clock = x->clocks + (size_t)position * SMP_STREAMS;
    return clock[smp_task_at(x, earlier)->stream] > earlier;
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
    map->pieces[map->n_piece++] = (struct piece){.buffer = UINT32_MAX};
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
    smp_expanded x;
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

static bool find_operand(const smp_expanded *x, uint32_t position, const smp_access *access,
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
                    "entry or the arena", smp_name_at(&proof->x, position, name),
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
                    smp_name_at(&proof->x, position, name), access->writes ? "writes" : "reads",
                    o->buffer->name, smp_name_at(&proof->x, earlier, name2),
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
                    "as %s", smp_name_at(&proof->x, position, name), o->buffer->name,
                    (unsigned long long)o->low, (unsigned long long)o->high - 1,
                    smp_name_at(&proof->x, piece->writer - 1, name2),
                    same ? "another entry of it" : wrote->name);
}

static smp_status check_piece(const struct proof *proof, uint32_t position,
                              const smp_access *access, const struct operand *o,
                              const struct piece *piece)
{
    const smp_expanded *x = &proof->x;
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

static void note_piece(const smp_expanded *x, uint32_t position, const smp_access *access,
                       const struct operand *o, struct piece *piece)
{
    if (access->writes) {
        *piece = (struct piece){
            .writer = position + 1, .buffer = access->buffer, .contents = o->contents};
    } else if (piece->writer != position + 1) {
        piece->reader[smp_task_at(x, position)->stream] = position + 1;
        piece->reader_buffer = access->buffer;
    }
}

static smp_status check_collective(struct proof *proof, uint32_t position)
{
    const smp_program *program = proof->x.program;
    const smp_task *task = smp_task_at(&proof->x, position);
    char name[192], name2[192];
    bool collective = smp_op_info_of((smp_op)task->op)->klass == SMP_CLASS_COLLECTIVE;
    if (collective != (task->comm != SMP_NO_COMM) ||
        (collective && task->comm >= program->n_comm)) {
        return smp_fail(proof->errors, SMP_SYSTEM, NULL,
                        "verifier: %s: a collective has a communicator, and nothing else does",
                        smp_name_at(&proof->x, position, name));
    }
    if (!collective) {
        return SMP_OK;
    }
    uint32_t *last = &proof->last_collective[task->comm];
    if (*last > 0 && !comes_after(&proof->x, position, *last - 1)) {
        return smp_fail(proof->errors, SMP_SYSTEM, NULL,
                        "verifier: nothing orders %s after %s on communicator %s",
                        smp_name_at(&proof->x, position, name),
                        smp_name_at(&proof->x, *last - 1, name2),
                        program->comms[task->comm].name);
    }
    *last = position + 1;
    return SMP_OK;
}

/* First checks all operands of the task, then notes its reads, then its writes. */
static smp_status prove_task(struct proof *proof, uint32_t position)
{
    const smp_program *program = proof->x.program;
    const smp_task *task = smp_task_at(&proof->x, position);
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
    smp_status status = smp_expand(program, &proof.x, errors);
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
    smp_expanded_free(&proof.x);
    return status;
}
