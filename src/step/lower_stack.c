/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that the software of a stack holds over the step and no task accesses.
 *
 * Placeholders.  A module that adds its weight gradient to the gradient buffer itself still
 * owes autograd a tensor, for the hooks of the parameter to run.  Transformer Engine keeps one
 * tensor of each shape and type for that, made at first use and never freed (get_dummy_wgrad in
 * transformer_engine/pytorch/module/base.py; of linear layers since 2.3, of grouped ones since
 * 2.10); Megatron-LM takes those of its output layer from the same place
 * (core/tensor_parallel/layers.py).  Contents are never read.
 */
#include "step/lower.h"

#include "base/numeric.h"

/* Out and in features of the weight whose gradient the task makes: of one expert, as experts
 * of a layer are of one shape.  False: none. */
static bool weight_shape(const smp_task *task, uint64_t shape[2])
{
    if (task->op == SMP_OP_MATMUL_DW) {
        shape[0] = task->dims[0];
        shape[1] = task->dims[1];
        return true;
    }
    if (task->op == SMP_OP_GROUPED_MATMUL_DW) {
        shape[0] = task->dims[2];
        shape[1] = task->dims[3];
        return true;
    }
    return false;
}

/* Whether an earlier task has a weight of this shape. */
static bool seen(const smp_program *program, uint32_t n_task, const uint64_t shape[2])
{
    uint64_t other[2];

    for (uint32_t t = 0; t < n_task; t++) {
        if (weight_shape(&program->tasks[t], other) && other[0] == shape[0]
            && other[1] == shape[1]) {
            return true;
        }
    }
    return false;
}

void smp_lower_placeholders(smp_lowering *low)
{
    const smp_program *program = low->build.program;
    uint64_t shape[2];

    for (uint32_t t = 0; low->runtime->placeholders && t < program->n_task; t++) {
        if (weight_shape(&program->tasks[t], shape) && !seen(program, t, shape)) {
            const uint64_t elems = smp_mul(shape[0], shape[1]);

            (void)smp_build_buffer(
                &low->build,
                &(smp_buffer){ .name = smp_arena_printf(program->arena, "placeholder.%s",
                                                        program->tasks[t].name),
                               .kind = SMP_KIND_UNSHARDED,
                               .scope = SMP_SCOPE_STEP,
                               .bytes = smp_mul(elems, smp_dtype_bytes(low->compute)) });
        }
    }
}
