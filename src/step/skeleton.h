/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arena of a program with many alike layers, from one with few.
 *
 * A skeleton is what the memory plan knows of a lowered program: static bytes, stacks, items
 * and which of them may not share.  From it follows the arena of a program in which some of
 * the layers occur more often, without lowering that.
 */
#ifndef SMP_STEP_SKELETON_H
#define SMP_STEP_SKELETON_H

#include "step/pack.h"
#include "step/program.h"

typedef struct smp_skeleton smp_skeleton;

/* Layers layer .. layer + layers - 1 occur `more` times more, where they are; -1: do not. */
typedef struct smp_repeat { uint32_t layer, layers; int64_t more; } smp_repeat;

/* Bytes by space; those of tokens stay 0. */
typedef struct smp_repeated {
    uint64_t arena_bytes[SMP_SPACES]; /* arena_bytes and host_arena_bytes of the program */
} smp_repeated;

/* What one more of a repeat adds to each arena.  `linear`: exactly so, from these repeats on:
 * however much larger `more` becomes, and that of other linear ones. */
typedef struct smp_slope { uint64_t bytes[SMP_SPACES]; bool linear; } smp_slope;

/* Room that smp_skeleton_arena needs; zero to begin with, grows, any skeleton may use it. */
typedef struct smp_skeleton_room {
    smp_pack_room pack;
    smp_pack_range *ranges;
    smp_pack_cut *cuts;
    uint32_t *owners;       /* of cuts: their repeat */
    uint64_t *entries;      /* of lumps */
    uint32_t capacity, cut_capacity;
} smp_skeleton_room;
void smp_skeleton_room_free(smp_skeleton_room *room);

/* In `arena`; keeps no pointer to the program, whose buffers are put where
 * smp_program_place_apart puts them. */
SMP_CHECK smp_status smp_skeleton_create(smp_program *program, smp_arena *arena,
                                         smp_errors *errors, smp_skeleton **skeleton_p);

/* The arena of the program in which each of n repeats, of different layers, occurs so often;
 * slopes (NULL: not asked) gets n entries.  False: a repeat does not lie inside a run of alike
 * layers that reaches as many layers further at both ends, or these may not share with
 * the same items; then nothing is known, and the program has to have more layers.  Runs of
 * five layers are enough for all jobs seen, those of alternating kinds of five periods.  Does
 * not allocate once `room` is large enough. */
SMP_CHECK bool smp_skeleton_arena(const smp_skeleton *skeleton, uint32_t n,
                                  const smp_repeat *repeats, smp_skeleton_room *room,
                                  smp_repeated *out, smp_slope *slopes);

#endif
