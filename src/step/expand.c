/* SPDX-License-Identifier: Apache-2.0 */
/* A program with one row for each task that runs, for the verifier. */
#include "step/expand.h"

#include "base/numeric.h"

#include <stdlib.h>

const smp_task *smp_task_at(const smp_expanded *x, uint32_t position)
{
    uint32_t i = x->instance[position];
    const smp_segment *segment = &x->program->segments[x->program->order[i].segment];
    return &x->program->tasks[segment->task0 + (position - x->first[i])];
}

const char *smp_name_at(const smp_expanded *x, uint32_t position, char text[192])
{
    uint32_t i = x->instance[position];
    const smp_instance *it = &x->program->order[i];
    const smp_task *task = smp_task_at(x, position);
    (void)snprintf(text, 192, "%s of %s (layer %u, micro-batch %u, turn %u; instance %u, %s)",
                   task->name, x->program->segments[it->segment].name, it->layer,
                   it->micro_batch, it->turn, i, smp_stream_name((smp_stream)task->stream));
    return text;
}

void smp_expanded_free(smp_expanded *x)
{
    free(x->first);
    free(x->instance);
    free(x->clocks);
}

smp_status smp_expand(const smp_program *program, smp_expanded *x, smp_errors *errors)
{
    uint64_t n = 0;
    *x = (smp_expanded){.program = program};
    for (uint32_t i = 0; i < program->n_instance; i++) {
        if (program->order[i].segment >= program->n_segment) {
            return smp_fail(errors, SMP_SYSTEM, NULL, "verifier: instance %u has no segment",
                            i);
        }
        n += program->segments[program->order[i].segment].n_task;
    }
    if (n >= SMP_NO_POSITION) {
        return smp_fail(errors, SMP_SYSTEM, NULL,
                        "verifier: a step of %llu tasks is too long to expand",
                        (unsigned long long)n);
    }
    x->n = (uint32_t)n;
    x->first = smp_heap_alloc((size_t)program->n_instance + 1, sizeof *x->first);
    x->instance = smp_heap_alloc((size_t)n + 1, sizeof *x->instance);
    uint32_t position = 0;
    for (uint32_t i = 0; i < program->n_instance; i++) {
        const smp_segment *segment = &program->segments[program->order[i].segment];
        x->first[i] = position;
        for (uint32_t t = 0; t < segment->n_task; t++) {
            x->instance[position++] = i;
        }
    }
    x->first[program->n_instance] = position;
    return SMP_OK;
}

uint32_t smp_wait_source(const smp_expanded *x, uint32_t i, const smp_wait *wait)
{
    if (wait->back > i) {
        return SMP_NO_POSITION;
    }
    uint32_t from = i - wait->back;
    uint32_t source = x->first[from] + wait->source;
    bool inside = source < x->first[from + 1];
    return inside && source < x->first[i] + wait->task ? source : SMP_NO_POSITION;
}
