/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How kernels and collectives that run at the same time slow each other down: figures of the
 * profile for kernels beside collectives, and shares of a link for collectives beside each
 * other.  When they overlap is the engine's (src/sim/engine.c).
 */
#include "config.h"

#include "cost/cost.h"

static uint32_t q16(const smp_figure *figure)
{
    return figure->value > 1.0 ? (uint32_t)(figure->value * 65536.0 + 0.5) : 1u << 16;
}

bool smp_cost_overlap(const smp_profile *profile, smp_overlap *overlap_p)
{
    static const smp_overlap_kind links[] = {SMP_OVERLAP_IN_NODE, SMP_OVERLAP_BETWEEN};

    if (profile->compute_capability == 0 || profile->matrix_beside_collective.value <= 0) {
        return false;
    }
    for (int a = 0; a < SMP_OVERLAP_KINDS; a++) {
        for (int b = 0; b < SMP_OVERLAP_KINDS; b++) {
            overlap_p->slow_q16[a][b] = 1u << 16;
        }
    }
    for (int i = 0; i < 2; i++) {
        const smp_overlap_kind link = links[i];
        overlap_p->slow_q16[SMP_OVERLAP_MATRIX][link] = q16(&profile->matrix_beside_collective);
        overlap_p->slow_q16[SMP_OVERLAP_MEMORY][link] = q16(&profile->memory_beside_collective);
        overlap_p->slow_q16[link][SMP_OVERLAP_MATRIX] = q16(&profile->collective_beside_matrix);
        overlap_p->slow_q16[link][SMP_OVERLAP_MEMORY] = q16(&profile->collective_beside_memory);
        overlap_p->slow_q16[link][link] = 2u << 16; /* each has half of the link */
    }
    return true;
}

smp_overlap_kind smp_cost_overlap_kind(const smp_program *program, const smp_task *task)
{
    switch (smp_op_info_of((smp_op)task->op)->klass) {
    case SMP_CLASS_MATMUL:
    case SMP_CLASS_ATTENTION:
        return SMP_OVERLAP_MATRIX;
    case SMP_CLASS_MEMORY:
        return SMP_OVERLAP_MEMORY;
    case SMP_CLASS_COLLECTIVE:
        return program->comms[task->comm].placement.nodes > 1 ? SMP_OVERLAP_BETWEEN
                                                              : SMP_OVERLAP_IN_NODE;
    case SMP_CLASS_HOST_COPY:
        break;
    }
    return SMP_OVERLAP_NONE;
}
