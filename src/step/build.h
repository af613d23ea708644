/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Builder of one step program: growing arrays of buffers, tasks, accesses, segments and
 * instances.  It knows nothing of models; lowering says what to add.  smp_build_finish moves
 * everything into the program's arena.
 */
#ifndef SMP_STEP_BUILD_H
#define SMP_STEP_BUILD_H

#include "step/program.h"

typedef struct smp_build {
    smp_program *program; /* counts act; the arrays lie on the heap until finish */
    uint32_t cap_comm, cap_unit, cap_buffer, cap_task, cap_access, cap_segment, cap_instance;
} smp_build;

/* A range of a buffer, without what is done to it. */
typedef struct smp_ref {
    uint16_t buffer;
    int8_t delta;
    uint64_t offset_bytes, bytes;
} smp_ref;

void smp_build_init(smp_build *build, smp_arena *arena);
void smp_build_finish(smp_build *build); /* frees the heap arrays */
uint8_t smp_build_comm(smp_build *build, const smp_comm *comm);
uint16_t smp_build_unit(smp_build *build, const smp_unit *unit);
/* `bytes` is rounded up to SMP_ALIGN_BYTES; `entries` 0 means 1. */
uint16_t smp_build_buffer(smp_build *build, const smp_buffer *buffer);
/* Opens a segment: tasks added from now on are its. */
uint16_t smp_build_segment(smp_build *build, const char *name);
/* Adds a task with its accesses; its slice of accesses is set here. */
void smp_build_task(smp_build *build, const smp_task *task, const smp_access *access,
                    uint32_t n_access);
/* One more access (a token) of the task added last. */
void smp_build_extend(smp_build *build, smp_access access);
/* Adds an instance at the end of the order. */
void smp_build_instance(smp_build *build, uint16_t segment, uint32_t layer,
                        uint32_t micro_batch, uint32_t turn);

smp_access smp_reads(smp_ref ref);
smp_access smp_writes(smp_ref ref);
smp_access smp_updates(smp_ref ref);              /* reads and writes */
smp_access smp_adds(smp_ref ref, bool accumulate); /* operand `a`: written or added to */
/* The part of `ref` that starts `elems` elements of `elem_bytes` in. */
smp_ref smp_part(smp_ref ref, uint64_t elem0, uint64_t n_elem, uint32_t elem_bytes);

#endif
