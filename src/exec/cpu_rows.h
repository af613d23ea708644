/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to the cpu device: chosen experts, and where the rows of tokens at experts stand.
 */
#ifndef SMP_EXEC_CPU_ROWS_H
#define SMP_EXEC_CPU_ROWS_H

#include "exec/cpu.h"

enum { SMP_MAX_GROUPS = 256 };

/* An expert of a token; a negative number is the complement of one that dropped it. */
typedef struct smp_choice { float weight; int32_t expert; } smp_choice;

static inline uint32_t smp_choice_expert(smp_choice choice)
{
    return (uint32_t)(choice.expert < 0 ? ~choice.expert : choice.expert);
}

/* What operations read besides rows: counts[experts] of the rank's own tokens, or a layout
 * [parts + 2, experts]: rows of each part at each expert, then of the rank's own experts how
 * many there are and where they begin. */
typedef struct smp_row_plan {
    uint64_t experts, parts;       /* parts 0: counts */
    uint64_t first, own;           /* experts of this rank, all where parts is 0 */
    const int32_t *counts;
} smp_row_plan;
smp_row_plan smp_rows_plan(const smp_cpu *cpu, const smp_launch *launch, uint32_t operand);
/* Rows of one of the rank's experts, and where they begin. */
typedef struct smp_row_range { uint64_t first, n; } smp_row_range;
smp_row_range smp_rows_of(const smp_row_plan *plan, uint64_t own_expert);

#endif
