/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to the cpu device: one head of packed q, k, v, for streaming and naive attention.
 */
#ifndef SMP_EXEC_CPU_HEAD_H
#define SMP_EXEC_CPU_HEAD_H

#include "exec/cpu.h"

/* Where one operand of attention lies: elements from token to token, from head to head, from
 * sequence to sequence.  So q, k and v may be parts of one tensor or tensors of their own, by
 * tokens (b s h d) or by heads (b h s d). */
typedef struct smp_lie { void *data; uint64_t token, head, sequence; } smp_lie;

/* One attention over all heads of all sequences. */
typedef struct smp_heads {
    const smp_cpu *cpu;              /* with the launch: documents and dice of dropout */
    const smp_launch *launch;
    smp_dtype dtype;
    uint64_t batch, seq, heads, kv_heads, d, dv;
    uint64_t window;                 /* keys that a query sees, itself included; 0: all */
    bool chunked;                    /* the window does not slide */
    bool causal;
    float scale;                     /* of the logits; 0: 1 / sqrt(d) */
    float cap;                       /* 0: none */
    double dropout;
    const void *sinks;               /* a logit of no key for each head, or NULL */
    smp_lie q, k, v, y;
    float *lse;                      /* [batch, seq, heads], fp32 */
    smp_lie dy, dq, dk, dvalues;     /* backward only */
    float *dsinks;                   /* [batch, heads], added to */
} smp_heads;

/* First key that query i sees in a document that begins at `begin`: one of the last `window`,
 * or, chunked, of the same multiple of it.  It never decreases with i. */
static inline uint64_t smp_first_key(uint64_t i, uint64_t begin, uint64_t window, bool chunked)
{
    uint64_t first = window > 0 && i + 1 > window ? i + 1 - window : 0;

    if (window > 0 && chunked) {
        first = i - (i - begin) % window;
    }
    return begin > first ? begin : first;
}

/* y and lse; then dq, dk, dvalues and dsinks. */
void smp_attend(const smp_heads *heads);
void smp_attend_grad(const smp_heads *heads);

/* The attention of a task on packed q, k, v; y and gradients are left to the caller. */
smp_heads smp_heads_of(const smp_cpu *cpu, const smp_launch *launch, void *qkv);
/* The parts of q, k and v in a packed tensor of the same shape. */
void smp_heads_split(const smp_heads *heads, void *qkv, smp_lie *q, smp_lie *k, smp_lie *v);
smp_lie smp_heads_out(const smp_heads *heads, void *y);

/* One head of one sequence. */
typedef struct smp_head {
    const smp_heads *all;
    uint64_t sample, index, global;  /* of the head: on this rank, in the model */
    smp_matrix q, k, v;
    float scale, alibi, sink;
} smp_head;
smp_head smp_head_of(const smp_heads *heads, uint64_t sample, uint64_t index);
/* A head's part of an operand. */
void *smp_lie_at(const smp_heads *heads, smp_lie lie, uint64_t sample, uint64_t head);

/* A matrix from element `first` of data on; one from row `row0` on. */
smp_matrix smp_matrix_at(const void *data, smp_dtype dtype, uint64_t first, uint64_t ld);
smp_matrix smp_matrix_rows(smp_matrix matrix, uint64_t row0);

#endif
