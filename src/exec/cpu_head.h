/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to the cpu device: one head of packed q, k, v, for streaming and naive attention.
 */
#ifndef SMP_EXEC_CPU_HEAD_H
#define SMP_EXEC_CPU_HEAD_H

#include "exec/cpu.h"

/* One head of one sequence. */
typedef struct smp_head {
    const smp_cpu *cpu;
    const smp_launch *launch;
    smp_dtype dtype;
    uint64_t seq, d, dv, width, window; /* width: elements from token to token of qkv */
    uint64_t heads, v0;              /* heads of the rank; v's first element in a token */
    uint64_t sample, index, global;  /* of the head: on this rank, in the model */
    uint64_t out_width;              /* elements from token to token of y */
    smp_matrix q, k, v;
    float scale, cap, alibi, sink;
    bool sinks;                      /* the head has one: a logit of no key */
} smp_head;

smp_head smp_head_of(const smp_cpu *cpu, const smp_launch *launch, const void *qkv,
                     uint64_t sample, uint64_t index);
/* With its sink, where `sinks` of the rank's heads are given. */
void smp_head_sink(smp_head *head, const void *sinks_or_null);
/* Head size of v. */
uint64_t smp_v_dim(const smp_launch *launch);
/* A matrix from element `first` of data on; one from row `row0` on. */
smp_matrix smp_matrix_at(const void *data, smp_dtype dtype, uint64_t first, uint64_t ld);
smp_matrix smp_matrix_rows(smp_matrix matrix, uint64_t row0);

#endif
