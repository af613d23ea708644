/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels as a software stack runs them: attention of another generation, operations that are
 * several kernels, and the share of their rates that kernels reach inside a step.
 * Not which stack does what: src/mesh/runtime.c.  Sources and derivations: docs/stacks.md.
 */
#include "config.h"

#include "cost/stack.h"

#include "model/model.h"

/* Kernels on mma.sync do so many operations a clock and multiprocessor on every GPU from SM80
 * on, while the peak of SM90 is twice, of SM100 four times that of SM80. */
static double generation(const smp_profile *profile)
{
    return profile->compute_capability >= 100 ? 4.0
           : profile->compute_capability >= 90 ? 2.0 : 1.0;
}

bool smp_cost_attention_rates(const smp_profile *profile, smp_attention_kernel kernel,
                              smp_attention_rates *rates_p)
{
    const double peak = profile->peak_flops[SMP_BF16].value;
    const bool old = profile->compute_capability < 80 || peak <= 0;

    if (old || kernel == SMP_KERNEL_STACK || kernel == SMP_KERNEL_BEST) {
        return false;
    }
    if (kernel == SMP_KERNEL_TRITON) {
        /* fused attention in Triton on A100, causal, head size 64, at 1024 to 16384: forward
         * 84, 102, 113, 119, 122 TFLOP/s, backward 49, 62, 72, 77, 81; here at head size 128
         * by the rule of widths (x 1.2), as shares of 312 [triton-lang/triton PR 1917,
         * "before"] */
        *rates_p = (smp_attention_rates){0.48 / generation(profile),
                                         0.32 / generation(profile), 480, 730};
        return true;
    }
    if (profile->compute_capability < 90) {
        return false; /* the profile's kernel is FlashAttention-2 */
    }
    /* FlashAttention-2 on H100: forward 338.5 TFLOP/s at 8192 [waynehacking8/
     * blackwell-tensorcore-kernels, results/reference/fa2.txt]; forward and backward 221, 265,
     * 294, 308, 328 at 1024 to 16384 [Shah et al. 2024; Dao-AILab/flash-attention, assets],
     * causal, head size 128.  On other GPUs the same rate of a multiprocessor. */
    const double chip = 989e12 * (double)profile->multiprocessors / 132.0 / peak;
    *rates_p = (smp_attention_rates){0.36 * chip, 0.32 * chip, 450, 450};
    return true;
}

/* Passes over memory in units of the fused kernel's bytes, and kernels; counted in
 * docs/stacks.md from the operators that PyTorch dispatches. */
typedef struct eager { uint16_t op; double passes, kernels; } eager;
static const eager eagers[] = {
    {SMP_OP_NORM_GRAD, 2.0, 3},   {SMP_OP_ROPE, 5.0, 6},       {SMP_OP_ROPE_GRAD, 5.0, 6},
    {SMP_OP_GATED, 1.67, 2},      {SMP_OP_GATED_GRAD, 1.8, 3}, {SMP_OP_QK_NORM, 6.0, 12},
    {SMP_OP_QK_NORM_GRAD, 7.0, 20}, {SMP_OP_SQUARES, 3.0, 4},  {SMP_OP_ADAMW, 2.9, 12},
    {SMP_OP_EMBED_GRAD, 1.5, 6},  {SMP_OP_ROUTE, 3.0, 8},      {SMP_OP_ROUTE_GRAD, 3.0, 8},
    {SMP_OP_CLIP, 2.0, 2},        {SMP_OP_CLIP_GRAD, 2.0, 3},  {SMP_OP_QK_RMS, 8.0, 14},
    {SMP_OP_QK_RMS_GRAD, 10.0, 24}, {SMP_OP_TEMPER, 3.0, 8},
};
/* RMS norms are several operators where layer norms have kernels of their own. */
static const eager rms_norm = {SMP_OP_NORM, 8.5, 6}, rms_norm_grad = {SMP_OP_NORM_GRAD, 10, 12};

static eager eager_of(const smp_task *task)
{
    if (task->dims[2] == SMP_NORM_RMS && task->op == SMP_OP_NORM) {
        return rms_norm;
    }
    if (task->dims[2] == SMP_NORM_RMS && task->op == SMP_OP_NORM_GRAD) {
        return rms_norm_grad;
    }
    for (size_t i = 0; i < sizeof eagers / sizeof eagers[0]; i++) {
        if (eagers[i].op == task->op) {
            return eagers[i];
        }
    }
    return (eager){task->op, 1, 1};
}

/* Reading bf16, writing and reading fp32 (docs/stacks.md), over the 2 bytes a logit that the
 * loss in place reads and the 4 that its gradient moves. */
static eager loss_of(const smp_task *task, smp_loss_kernel form)
{
    const bool gradient = task->op == SMP_OP_LOSS_GRAD;

    if (form == SMP_LOSS_COMPILED) {
        return (eager){task->op, gradient ? 1 : 2, 2};
    }
    if (form == SMP_LOSS_COPY) {
        return (eager){task->op, gradient ? 3.5 : 5, gradient ? 2 : 3};
    }
    return (eager){task->op, gradient ? 6.5 : 9, gradient ? 4 : 3};
}

static eager form_of(const smp_program *program, const smp_task *task)
{
    const bool loss = task->op == SMP_OP_LOSS || task->op == SMP_OP_LOSS_GRAD;

    if (loss && program->loss >= SMP_LOSS_COMPILED) {
        return loss_of(task, program->loss);
    }
    if (program->kernels == SMP_KERNELS_EAGER) {
        return eager_of(task);
    }
    return (eager){task->op, 1, 1};
}

double smp_cost_kernels(const smp_program *program, const smp_task *task)
{
    return form_of(program, task).kernels;
}

void smp_cost_stack(const smp_program *program, const smp_task *task, smp_cost *cost)
{
    const eager form = form_of(program, task);

    cost->memory_s *= form.passes;
    cost->launch_s *= form.kernels;
}

void smp_cost_in_step(const smp_program *program, smp_cost *cost)
{
    const double efficiency = program->efficiency;

    if (efficiency > 0 && efficiency < 1) {
        cost->compute_s /= efficiency;
        cost->memory_s /= efficiency;
        cost->latency_s /= efficiency;
        cost->transfer_s /= efficiency;
        cost->bus_Bps *= efficiency;
    }
}
