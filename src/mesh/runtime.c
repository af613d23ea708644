/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The declarations of stacks.  A fact of a software stands here and nowhere else; where it was
 * read stands in docs/stacks.md.
 */
#include "config.h"

#include "mesh/runtime.h"

static const smp_runtime runtimes[] = {
    [SMP_STACK_NATIVE] = {
        .title = "this project's executor",
        .captured = true,
        .preloads = true,
        .loss = SMP_LOSS_FUSED,
        .attention = SMP_KERNEL_BEST,
        .efficiency = 1,
        .efficiency_source = "kernels run as they were measured alone",
    },
    [SMP_STACK_FSDP1] = {
        .title = "PyTorch FullyShardedDataParallel",
        .one_comm = true,
        .kernels = SMP_KERNELS_EAGER,
        .loss = SMP_LOSS_EAGER,
        .compiles = true,
        .reduces_in_precision = true,
        .preloads = true,
        .attention = SMP_KERNEL_FLASH2,
        .efficiency = 0.85,
        .spread = 0.06,
        .efficiency_source = "bench/accuracy: llm-foundry on A100 and H100, every second of "
                             "101 rows; the others are then 2.7 % off",
    },
    [SMP_STACK_FSDP2] = {
        .title = "PyTorch fully_shard, as torchtitan uses it",
        .separate = true,
        .kernels = SMP_KERNELS_EAGER,
        .loss = SMP_LOSS_EAGER,
        .compiles = true,
        .attention = SMP_KERNEL_FLASH2,
        .efficiency = 0.84,
        .spread = 0.06,
        .efficiency_source = "bench/accuracy: torchtitan and torchao on A100 and H100, every "
                             "second of 8 rows; the others are then 2.8 % off",
    },
    [SMP_STACK_MEGATRON] = {
        .title = "Megatron-LM with Transformer Engine",
        .loss = SMP_LOSS_COPY,
        .shards_optimizer = true,
        .accumulates_whole = true,
        .placeholders = true,
        .attention = SMP_KERNEL_BEST,
        .efficiency = 0.8,
        .spread = 0.1,
        .efficiency_source = "bench/accuracy: Megatron-LM on B200 as SimuMax published it, "
                             "every second of 8 rows; the others are then 6.9 % off",
    },
    [SMP_STACK_DEEPSPEED] = {
        .title = "DeepSpeed ZeRO",
        .loss = SMP_LOSS_COPY,
        .reduces_in_precision = true,
        .accumulates_whole = true,
        .attention = SMP_KERNEL_FLASH2,
        .efficiency = 0.8,
        .spread = 0.12,
        .efficiency_source = "bench/accuracy: InternEvo (ZeRO 1) on A100, every second of 21 "
                             "rows; the others are then 3.4 % off; DeepSpeed itself has two "
                             "rows, of 2021",
    },
};

const smp_runtime *smp_runtime_of(smp_stack_name stack)
{
    return &runtimes[stack];
}

bool smp_runtime_offloads(const smp_settings *settings)
{
    return !settings->sm_activation_offloading || smp_runtime_of(settings->stack)->preloads;
}

smp_kernel_form smp_runtime_kernels(const smp_runtime *runtime, bool compile)
{
    return runtime->compiles && compile ? SMP_KERNELS_FUSED : runtime->kernels;
}

smp_loss_kernel smp_runtime_loss(const smp_runtime *runtime, bool compile)
{
    if (runtime->compiles && compile && runtime->loss == SMP_LOSS_EAGER) {
        return SMP_LOSS_COMPILED;
    }
    return runtime->loss;
}
