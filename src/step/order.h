/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/step: what must come after what, found from the places that tasks access.
 *
 * Used twice: by the memory plan, on a trial layout in which nothing shares a place (which
 * accesses are ordered anyway?), and by the derivation of waits, on the final layout.  The
 * verifier does not use it.
 *
 *   block  the instances of one micro-batch, as a range of the order
 *   place  one entry or slot of a buffer, numbered from 0 inside the buffer
 *   cell   a range of addresses that no access cuts
 *   clock  of a task: for each stream, the latest task that is known to have ended when this
 *          one ends [Mattern 1989]; tasks are named by position + 1, 0: none
 */
#ifndef SMP_STEP_ORDER_H
#define SMP_STEP_ORDER_H

#include "step/program.h"

typedef struct smp_blocks {
    uint32_t n;
    uint32_t *first;  /* n + 1 instances: block b is first[b] .. first[b + 1] - 1 */
    bool regular;     /* blocks 1 .. n - 2 are alike but for micro-batch and turn */
    uint32_t period;  /* blocks after which every ring stands at the same slot again */
} smp_blocks;

void smp_blocks_find(const smp_program *program, smp_arena *arena, smp_blocks *blocks_p);

enum { SMP_NO_PLACE = 0xffffffffu };

uint32_t smp_place_count(const smp_buffer *buffer);
/* Index before any ring wraps it: layer or turn plus delta, 0 for NONE. */
static inline int64_t smp_place_index(const smp_buffer *buffer, const smp_instance *instance,
                                      int delta)
{
    switch (buffer->index) {
    case SMP_INDEX_LAYER:
        return smp_layer_entry(buffer, (int64_t)instance->layer + delta);
    case SMP_INDEX_TURN:
        return (int64_t)instance->turn + delta;
    case SMP_INDEX_NONE:
    default:
        return 0;
    }
}
/* SMP_NO_PLACE when the index is outside the buffer. */
static inline uint32_t smp_place_of(const smp_buffer *buffer, const smp_instance *instance,
                                    int delta)
{
    int64_t index = smp_place_index(buffer, instance, delta);
    if (index < 0) {
        return SMP_NO_PLACE;
    }
    if (buffer->index == SMP_INDEX_NONE) {
        return 0;
    }
    if (buffer->slots > 0) {
        return (uint32_t)(index % buffer->slots);
    }
    return index < (int64_t)buffer->entries ? (uint32_t)index : SMP_NO_PLACE;
}
uint64_t smp_place_address(const smp_program *program, const smp_buffer *buffer,
                           uint32_t place);
/* Bytes that an entry takes in its space: 1 for tokens. */
static inline uint64_t smp_place_bytes(const smp_buffer *buffer)
{
    return buffer->space == SMP_SPACE_TOKEN ? 1 : buffer->bytes;
}
/* What an entry holds: entries at one place with different keys are different data. */
uint64_t smp_entry_key(const smp_buffer *buffer, const smp_instance *instance,
                       uint32_t instance_index, int delta);

/* Clocks of a walk over the instances of a program with places apart: those from the
 * derivation of waits, in program->arena. */
typedef struct smp_clocks {
    uint32_t n_stream, stream[SMP_STREAMS]; /* dense numbers */
    uint32_t *walk, n_walk; /* instances */
    uint32_t *clock;        /* n_stream entries per task, in the order of the walk */
} smp_clocks;

typedef struct smp_order smp_order;

/* Everything lives in `arena`.  Places that are apart (program->apart) are cut each by itself,
 * all others by address.  The addresses must be final for the life of the object. */
smp_order *smp_order_create(const smp_program *program, smp_arena *arena);
void smp_order_destroy(smp_order *order); /* the growing part */
uint32_t smp_order_streams(const smp_order *order);
uint32_t smp_order_stream(const smp_order *order, const smp_task *task); /* dense number */
/* Orders the task at `position` (they come in sequence from 0) after all that it must
 * follow; writes the positions of the tasks it has to wait for and returns their number.
 * None of them is implied by another or by its stream.  All places must be valid. */
uint32_t smp_order_task(smp_order *order, const smp_instance *instance, const smp_task *task,
                        uint32_t position, uint32_t sources[SMP_STREAMS]);
/* Clock of a task already ordered: smp_order_streams entries. */
const uint32_t *smp_order_clock(const smp_order *order, uint32_t position);
/* Copies the clocks of the first n tasks, and what numbers their streams. */
void smp_order_keep(const smp_order *order, uint32_t n, smp_arena *arena, smp_clocks *clocks);
/* Hash of all that later tasks can depend on, with positions from `before` on taken relative
 * to `now`; two periods lie between, and `recent` is the end of the first.  Equal hashes one
 * period apart: everything repeats from here. */
uint64_t smp_order_hash(const smp_order *order, uint32_t before, uint32_t recent,
                        uint32_t now);

#endif
