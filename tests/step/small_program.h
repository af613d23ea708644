/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small step programs for tests: a builder, and a generator of random ones.  Nothing here
 * knows of models; sizes, streams and orders are arbitrary but the data flow is sound: what
 * a task reads has been written as the same entry before, or is static.
 */
#ifndef SMP_TESTS_SMALL_PROGRAM_H
#define SMP_TESTS_SMALL_PROGRAM_H

#include "base/numeric.h"
#include "step/order.h"

#include <string.h>

enum { SMALL_MOST = 4096 };

/* An empty program with room for SMALL_MOST of everything. */
static inline smp_program *small_create(void)
{
    smp_arena *arena = smp_arena_create();
    smp_program *p = SMP_ARENA_NEW(arena, smp_program);
    p->arena = arena;
    p->count = 1;
    p->micro_batches = 1;
    p->comms = SMP_ARENA_ARRAY(arena, 16, smp_comm);
    p->buffers = SMP_ARENA_ARRAY(arena, 64, smp_buffer);
    p->tasks = SMP_ARENA_ARRAY(arena, SMALL_MOST, smp_task);
    p->accesses = SMP_ARENA_ARRAY(arena, SMALL_MOST, smp_access);
    p->segments = SMP_ARENA_ARRAY(arena, 256, smp_segment);
    p->order = SMP_ARENA_ARRAY(arena, SMALL_MOST, smp_instance);
    return p;
}

static inline uint16_t small_buffer(smp_program *p, smp_buffer buffer)
{
    buffer.name = smp_arena_printf(p->arena, "b%u", p->n_buffer);
    if (buffer.entries == 0) {
        buffer.entries = 1;
    }
    p->buffers[p->n_buffer] = buffer;
    return (uint16_t)p->n_buffer++;
}

static inline uint16_t small_segment(smp_program *p, const char *name)
{
    p->segments[p->n_segment] = (smp_segment){name, p->n_task, 0};
    return (uint16_t)p->n_segment++;
}

static inline smp_task *small_task(smp_program *p, smp_stream stream)
{
    smp_segment *segment = &p->segments[p->n_segment - 1];
    smp_task *task = &p->tasks[p->n_task++];
    *task = (smp_task){.name = smp_arena_printf(p->arena, "t%u", segment->n_task++),
                       .op = SMP_OP_ADD, .stream = (uint8_t)stream, .comm = SMP_NO_COMM,
                       .dims = {1}, .access0 = p->n_access};
    return task;
}

/* An operand of the task added last: `how` is "r", "w" or "rw". */
static inline void small_access(smp_program *p, uint16_t buffer, int delta, const char *how,
                                uint64_t offset_bytes, uint64_t bytes)
{
    p->tasks[p->n_task - 1].n_access++;
    p->accesses[p->n_access++] = (smp_access){
        .buffer = buffer, .delta = (int8_t)delta, .reads = how[0] == 'r',
        .writes = how[0] == 'w' || how[1] == 'w', .offset_bytes = offset_bytes, .bytes = bytes};
}

static inline void small_whole(smp_program *p, uint16_t buffer, int delta, const char *how)
{
    small_access(p, buffer, delta, how, 0, smp_place_bytes(&p->buffers[buffer]));
}

static inline void small_instance(smp_program *p, uint16_t segment, uint32_t layer,
                                  uint32_t micro_batch, uint32_t turn)
{
    p->order[p->n_instance++] = (smp_instance){.segment = segment, .layer = (uint16_t)layer,
                                               .micro_batch = micro_batch, .turn = turn};
}

/* ------------------------------------------------------------------ random ones */

typedef struct small_random { uint64_t seed, n; } small_random;

static inline uint32_t small_draw(small_random *random, uint32_t below)
{
    uint32_t words[4];
    smp_random4(random->seed, 0, random->n++, words);
    return words[0] % below;
}

static inline smp_buffer small_random_buffer(small_random *r, uint32_t n_layer)
{
    smp_buffer b = {.index = (smp_index)small_draw(r, 3), .scope = (smp_scope)small_draw(r, 3),
                    .kind = (smp_buffer_kind)small_draw(r, SMP_KIND_TOKEN)};
    uint32_t space = small_draw(r, 8);
    b.space = space == 0 ? SMP_SPACE_HOST : space == 1 ? SMP_SPACE_TOKEN : SMP_SPACE_DEVICE;
    b.entries = 1;
    b.bytes = SMP_ALIGN_BYTES * (uint64_t)(1 + small_draw(r, 12));
    if (b.index == SMP_INDEX_TURN) {
        b.slots = 1 + small_draw(r, 3);
    } else if (b.index == SMP_INDEX_LAYER) {
        b.slots = small_draw(r, 2) == 0 ? 0 : 1 + small_draw(r, 3);
        b.entries = b.slots == 0 ? n_layer : 1;
    }
    if (b.space == SMP_SPACE_TOKEN) {
        b.kind = SMP_KIND_TOKEN;
        b.bytes = 0;
    }
    return b;
}

static inline void small_random_task(smp_program *p, small_random *r, uint32_t n_stream)
{
    static const char *const how[] = {"r", "w", "rw", "r"};
    small_task(p, (smp_stream)small_draw(r, n_stream));
    uint32_t n = 1 + small_draw(r, 3);
    for (uint32_t a = 0; a < n; a++) {
        uint16_t buffer = (uint16_t)small_draw(r, p->n_buffer);
        uint64_t units = smp_place_bytes(&p->buffers[buffer]) / SMP_ALIGN_BYTES;
        const char *mode = how[small_draw(r, 4)];
        if (units < 2 || small_draw(r, 2) == 0) {
            small_whole(p, buffer, 0, mode);
            continue;
        }
        uint64_t low = small_draw(r, (uint32_t)units);
        uint64_t n_unit = 1 + small_draw(r, (uint32_t)(units - low));
        small_access(p, buffer, 0, mode, low * SMP_ALIGN_BYTES, n_unit * SMP_ALIGN_BYTES);
    }
}

/* What each 256 bytes of each place hold, place by place: nothing shares yet. */
typedef struct small_contents {
    uint64_t key[16][64 * 8];
    bool known[16][64 * 8];
} small_contents;

/* Turns reads of what was not written as the same entry into writes; true if any. */
static inline bool small_repair_once(smp_program *p)
{
    static small_contents now;
    bool changed = false;
    memset(&now, 0, sizeof now);
    for (uint32_t i = 0; i < p->n_instance; i++) {
        const smp_segment *segment = &p->segments[p->order[i].segment];
        for (uint32_t t = segment->task0; t < segment->task0 + segment->n_task; t++) {
            for (uint32_t pass = 0; pass < 2; pass++) {
                for (uint32_t a = 0; a < p->tasks[t].n_access; a++) {
                    smp_access *access = &p->accesses[p->tasks[t].access0 + a];
                    const smp_buffer *b = &p->buffers[access->buffer];
                    uint32_t place = smp_place_of(b, &p->order[i], 0) + 8u * access->buffer;
                    uint64_t key = smp_entry_key(b, &p->order[i], i, 0);
                    uint64_t low = access->offset_bytes / SMP_ALIGN_BYTES;
                    uint64_t high = (access->offset_bytes + access->bytes + 255) / 256;
                    for (uint64_t u = low; u < high; u++) {
                        bool good = now.known[u][place] ? now.key[u][place] == key
                                                        : b->scope == SMP_SCOPE_STEP;
                        if (pass == 0 && access->reads && !good) {
                            access->reads = false;
                            access->writes = changed = true;
                        }
                        if (pass == 1 && access->writes) {
                            now.known[u][place] = true;
                            now.key[u][place] = key;
                        }
                    }
                }
            }
        }
    }
    return changed;
}

/* A block template repeated over micro-batches; its first and last may differ. */
static inline void small_random_order(smp_program *p, small_random *r, uint32_t n_layer)
{
    uint32_t n_block = 1 + small_draw(r, 9), length = 1 + small_draw(r, 6);
    uint32_t head = small_draw(r, 3), tail = small_draw(r, 3), turn = 0;
    uint32_t segment[16], layer[16], step[16];
    for (uint32_t i = 0; i < length; i++) {
        segment[i] = small_draw(r, p->n_segment);
        layer[i] = small_draw(r, n_layer);
        step[i] = small_draw(r, 2);
    }
    p->micro_batches = n_block;
    for (uint32_t m = 0; m < n_block; m++) {
        for (uint32_t i = 0; m == 0 && i < head; i++) {
            small_instance(p, (uint16_t)small_draw(r, p->n_segment), i % n_layer, m, turn);
        }
        for (uint32_t i = 0; i < length; i++) {
            turn += step[i];
            small_instance(p, (uint16_t)segment[i], layer[i], m, turn);
        }
        for (uint32_t i = 0; m + 1 == n_block && i < tail; i++) {
            small_instance(p, (uint16_t)small_draw(r, p->n_segment), i % n_layer, m, turn);
        }
    }
}

static inline smp_program *small_random_program(uint64_t seed)
{
    small_random r = {seed, 0};
    smp_program *p = small_create();
    uint32_t n_layer = 1 + small_draw(&r, 4), n_stream = 1 + small_draw(&r, 6);
    uint32_t n_buffer = 2 + small_draw(&r, 14), n_segment = 1 + small_draw(&r, 5);
    for (uint32_t b = 0; b < n_buffer; b++) {
        (void)small_buffer(p, small_random_buffer(&r, n_layer));
    }
    for (uint32_t s = 0; s < n_segment; s++) {
        (void)small_segment(p, smp_arena_printf(p->arena, "s%u", s));
        uint32_t n_task = 1 + small_draw(&r, 5);
        for (uint32_t t = 0; t < n_task; t++) {
            small_random_task(p, &r, n_stream);
        }
    }
    small_random_order(p, &r, n_layer);
    while (small_repair_once(p)) {
    }
    return p;
}

#endif
