/* SPDX-License-Identifier: Apache-2.0 */
/* The program builder; see build.h. */
#include "step/build.h"

#include "base/numeric.h"

#include <stdlib.h>
#include <string.h>

void smp_build_init(smp_build *build, smp_arena *arena)
{
    memset(build, 0, sizeof *build);
    build->program = SMP_ARENA_NEW(arena, smp_program);
    build->program->arena = arena;
}

/* Moves a heap array into the arena. */
static void *settle(smp_arena *arena, void *heap, uint32_t n, size_t elem_bytes)
{
    void *array = smp_arena_alloc(arena, n ? n : 1, elem_bytes);

    if (n) {
        memcpy(array, heap, n * elem_bytes);
    }
    free(heap);
    return array;
}

void smp_build_finish(smp_build *build)
{
    smp_program *p = build->program;

    p->comms = settle(p->arena, p->comms, p->n_comm, sizeof *p->comms);
    p->units = settle(p->arena, p->units, p->n_unit, sizeof *p->units);
    p->buffers = settle(p->arena, p->buffers, p->n_buffer, sizeof *p->buffers);
    p->tasks = settle(p->arena, p->tasks, p->n_task, sizeof *p->tasks);
    p->accesses = settle(p->arena, p->accesses, p->n_access, sizeof *p->accesses);
    p->segments = settle(p->arena, p->segments, p->n_segment, sizeof *p->segments);
    p->order = settle(p->arena, p->order, p->n_instance, sizeof *p->order);
}

uint8_t smp_build_comm(smp_build *build, const smp_comm *comm)
{
    smp_program *p = build->program;

    SMP_GROW(p->comms, p->n_comm, build->cap_comm);
    p->comms[p->n_comm] = *comm;
    return (uint8_t)p->n_comm++;
}

uint16_t smp_build_unit(smp_build *build, const smp_unit *unit)
{
    smp_program *p = build->program;

    SMP_GROW(p->units, p->n_unit, build->cap_unit);
    p->units[p->n_unit] = *unit;
    return (uint16_t)p->n_unit++;
}

uint16_t smp_build_buffer(smp_build *build, const smp_buffer *buffer)
{
    smp_program *p = build->program;
    smp_buffer *b;

    SMP_GROW(p->buffers, p->n_buffer, build->cap_buffer);
    b = &p->buffers[p->n_buffer];
    *b = *buffer;
    if (b->space != SMP_SPACE_TOKEN) {
        b->bytes = smp_round_up(b->bytes ? b->bytes : 1, SMP_ALIGN_BYTES);
    }
    if (b->entries == 0) {
        b->entries = 1;
    }
    return (uint16_t)p->n_buffer++;
}

uint16_t smp_build_segment(smp_build *build, const char *name)
{
    smp_program *p = build->program;

    SMP_GROW(p->segments, p->n_segment, build->cap_segment);
    p->segments[p->n_segment] =
        (smp_segment){ .name = name, .task0 = p->n_task, .n_task = 0 };
    return (uint16_t)p->n_segment++;
}

void smp_build_extend(smp_build *build, smp_access access)
{
    smp_program *p = build->program;

    SMP_GROW(p->accesses, p->n_access, build->cap_access);
    p->accesses[p->n_access++] = access;
    p->tasks[p->n_task - 1].n_access++;
}

void smp_build_task(smp_build *build, const smp_task *task, const smp_access *access,
                    uint32_t n_access)
{
    smp_program *p = build->program;
    smp_task *t;

    SMP_GROW(p->tasks, p->n_task, build->cap_task);
    t = &p->tasks[p->n_task++];
    *t = *task;
    t->access0 = p->n_access;
    t->n_access = 0;
    for (uint32_t i = 0; i < n_access; i++) {
        smp_build_extend(build, access[i]);
    }
    p->segments[p->n_segment - 1].n_task++;
}

void smp_build_instance(smp_build *build, uint16_t segment, uint32_t layer,
                        uint32_t micro_batch, uint32_t turn)
{
    smp_program *p = build->program;

    SMP_GROW(p->order, p->n_instance, build->cap_instance);
    p->order[p->n_instance++] = (smp_instance){ .segment = segment,
                                                .layer = (uint16_t)layer,
                                                .micro_batch = micro_batch,
                                                .turn = turn };
}

static smp_access access_of(smp_ref ref, bool reads, bool writes)
{
    return (smp_access){ .buffer = ref.buffer,
                         .delta = ref.delta,
                         .reads = reads,
                         .writes = writes,
                         .offset_bytes = ref.offset_bytes,
                         .bytes = ref.bytes };
}

smp_access smp_reads(smp_ref ref)
{
    return access_of(ref, true, false);
}

smp_access smp_writes(smp_ref ref)
{
    return access_of(ref, false, true);
}

smp_access smp_updates(smp_ref ref)
{
    return access_of(ref, true, true);
}

smp_access smp_adds(smp_ref ref, bool accumulate)
{
    return access_of(ref, accumulate, true);
}

smp_ref smp_part(smp_ref ref, uint64_t elem0, uint64_t n_elem, uint32_t elem_bytes)
{
    ref.offset_bytes += smp_mul(elem0, elem_bytes);
    ref.bytes = smp_mul(n_elem, elem_bytes);
    return ref;
}
