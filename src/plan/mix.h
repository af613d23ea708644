/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixes: the jobs that differ in which layers are checkpointed and which of them offloaded,
 * and how far ahead they are loaded.  Their times (word.h) and arenas (skeleton.h) are put
 * together from those of jobs with few layers, which are lowered once.
 *
 * Exact, to the picosecond and to the byte: what simulating all of it would say.  Where tasks
 * slow each other that takes passes that are steady (sim/steady.h).
 */
#ifndef SMP_PLAN_MIX_H
#define SMP_PLAN_MIX_H

#include "plan/plan.h"

/* What has been lowered, found again; not shared by threads. */
typedef struct smp_mixes smp_mixes;
smp_mixes *smp_mixes_create(void);
void smp_mixes_destroy(smp_mixes *mixes); /* NULL is fine */

typedef struct smp_mix {
    int64_t step_ps;          /* -1: not known, or not asked for */
    int64_t alone_ps;         /* where nothing slows anything; -1: not asked for */
    uint64_t arena_bytes, host_arena_bytes;
    uint64_t device_bytes;    /* highest peak of a device and, of a node, of host memory */
    uint64_t host_bytes;
} smp_mix;

/* What is asked for besides memory: the time of what fits into the cluster's memories, or where
 * that is not known its time alone; the time alone of all; the time of what does not fit. */
enum { SMP_MIX_STEP = 1, SMP_MIX_ALONE = 2, SMP_MIX_UNFIT = 4 };

/* A resolved job; *known_p false: it cannot be put together (several classes of ranks, a host
 * that launches every kernel, layers of too many kinds), and nothing is said.  No allocation
 * once what it is made of has been lowered. */
SMP_CHECK smp_status smp_mix_price(smp_mixes *mixes, const smp_job *job, unsigned times,
                                   smp_errors *errors, smp_mix *mix_p, bool *known_p);
/* The ranks of a job that was priced, NULL where it was not known; they live as long as
 * `mixes`. */
const smp_ranks *smp_mix_ranks(smp_mixes *mixes, const smp_job *job);
/* Programs lowered so far. */
uint64_t smp_mixes_lowered(const smp_mixes *mixes);

#endif
