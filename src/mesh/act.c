/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From settings as given to settings that act: what a stack, automatic degrees and strategies
 * make of them.  Pure, and cannot fail; whether the result is legal is for the rules.
 */
#include "config.h"

#include "mesh/resolve.h"
#include "mesh/runtime.h"

#include <string.h>

/* What hybrid_shard_degree 0 means.  With tensor parallelism SMP takes the largest possible
 * degree; without it native FSDP acts, whose HYBRID_SHARD is SMP's degree 8 [ibid.]. */
static uint32_t automatic_degree(const smp_settings *asked, uint32_t rest)
{
    if (asked->sharding == SMP_SHARDING_NONE) {
        return 1;
    }
    if (asked->tensor_parallel_degree > 1) {
        return rest;
    }
    switch (asked->sharding_strategy) {
    case SMP_STRATEGY_HYBRID_SHARD:
    case SMP_STRATEGY_HYBRID_SHARD_ZERO2:
        return 8;
    case SMP_STRATEGY_NO_SHARD:
        return 1;
    case SMP_STRATEGY_UNSET:
    case SMP_STRATEGY_FULL_SHARD:
    case SMP_STRATEGY_SHARD_GRAD_OP:
        break;
    }
    return rest;
}

/* sharding=full with two ranks or more: the strategy is HYBRID_SHARD unless ZERO2 is asked
 * for.  SHARD_GRAD_OP where it is native is ZERO2 over all ranks. */
static void act_strategy(smp_resolving *st)
{
    const smp_settings *asked = st->asked;
    smp_settings *s = &st->job.settings;
    smp_strategy strategy = asked->sharding_strategy;
    bool native = asked->hybrid_shard_degree == 0 && asked->tensor_parallel_degree == 1;

    if (strategy != SMP_STRATEGY_UNSET) {
        s->reshard_after_forward = strategy != SMP_STRATEGY_HYBRID_SHARD_ZERO2 &&
                                   !(native && strategy == SMP_STRATEGY_SHARD_GRAD_OP);
        st->strategy_forced = strategy == SMP_STRATEGY_NO_SHARD ||
                              (!native && strategy == SMP_STRATEGY_SHARD_GRAD_OP);
    }
    s->sharding_strategy = s->reshard_after_forward ? SMP_STRATEGY_HYBRID_SHARD
                                                    : SMP_STRATEGY_HYBRID_SHARD_ZERO2;
}

static void act_sharding(smp_resolving *st)
{
    const smp_settings *asked = st->asked;
    smp_settings *s = &st->job.settings;

    if (s->hybrid_shard_degree == 0) {
        s->hybrid_shard_degree = automatic_degree(asked, st->rest);
    }
    if (s->hybrid_shard_degree == 1) {
        /* One rank shares with nobody.  sharding=full keeps FSDP's layout, a cast of each
         * unit when it is used; the others are plain replicas. */
        bool plain = asked->sharding == SMP_SHARDING_OPTIMIZER ||
                     (asked->sharding_strategy == SMP_STRATEGY_NO_SHARD &&
                      !smp_key_given(asked, SMP_KEY_SHARDING));
        s->sharding = plain ? SMP_SHARDING_NONE : asked->sharding;
        s->sharding_strategy = SMP_STRATEGY_NO_SHARD;
    } else if (s->sharding == SMP_SHARDING_FULL) {
        act_strategy(st);
    } else {
        s->sharding_strategy = SMP_STRATEGY_UNSET;
    }
    if (s->sharding != SMP_SHARDING_FULL) {
        s->reshard_after_forward = false; /* nothing is gathered before forward */
    }
}

static void act_checkpointing(smp_settings *s, uint32_t n_layer)
{
    if (s->checkpointing == SMP_CHECKPOINTING_FIRST && s->checkpointing_layers == n_layer) {
        s->checkpointing = SMP_CHECKPOINTING_FULL;
    }
    if (s->checkpointing == SMP_CHECKPOINTING_NONE) {
        s->checkpointing_layers = 0;
    } else if (s->checkpointing != SMP_CHECKPOINTING_FIRST) {
        s->checkpointing_layers = n_layer;
    }
    if (s->offload_layers == s->checkpointing_layers) {
        s->offload_layers = 0;
    }
}

/* Nested: expert ranks beside each other inside the shard group, so that rows stay on the links
 * of a node where it holds all of them; orthogonal: the order of the table. */
static void act_rank_order(const smp_settings *asked, smp_settings *s)
{
    static const smp_axis beside[SMP_AXES] = {SMP_AXIS_TENSOR, SMP_AXIS_CONTEXT,
                                              SMP_AXIS_EXPERT, SMP_AXIS_SHARD,
                                              SMP_AXIS_REPLICA};

    if (smp_nested(s) && s->expert_parallel_degree > 1 &&
        !smp_key_given(asked, SMP_KEY_RANK_ORDER)) {
        memcpy(s->rank_order, beside, sizeof(beside));
    }
}

/* Defaults that a stack has of its own (src/mesh/runtime.h). */
static const smp_settings *with_stack(smp_resolving *st, const smp_settings *asked)
{
    const smp_runtime *runtime = smp_runtime_of(asked->stack);
    smp_settings *s = &st->job.settings;
    bool reduces = runtime->reduces_in_precision && !smp_key_given(asked, SMP_KEY_REDUCE_DTYPE);
    bool shards = runtime->shards_optimizer && !smp_key_given(asked, SMP_KEY_SHARDING) &&
                  asked->sharding_strategy == SMP_STRATEGY_UNSET;

    if (s->efficiency <= 0) {
        s->efficiency = runtime->efficiency;
    }
    if (s->attention_kernel == SMP_KERNEL_STACK) {
        s->attention_kernel = runtime->attention;
    }
    s->compile = s->compile && runtime->compiles;
    if (s->loss_kernel == SMP_LOSS_STACK) {
        s->loss_kernel = smp_runtime_loss(runtime, s->compile);
    }
    if (reduces) {
        s->reduce_dtype = s->precision;
    }
    if (!shards) {
        return asked;
    }
    st->stacked = *asked;
    st->stacked.sharding = s->sharding = SMP_SHARDING_OPTIMIZER;
    return &st->stacked;
}

/* Software that reduces whole gradients once a step; with sharding=full it cannot. */
bool smp_accumulation_holds(const smp_resolving *st)
{
    const smp_settings *s = &st->job.settings;

    return !smp_runtime_of(s->stack)->accumulates_whole || s->sharding == SMP_SHARDING_FULL ||
           s->accumulation == SMP_ACCUMULATION_LAST || st->job.micro_batches <= 1;
}

bool smp_offload_holds(const smp_resolving *st)
{
    const smp_settings *s = &st->job.settings;

    return !s->offload || s->checkpointing == SMP_CHECKPOINTING_FULL ||
           s->checkpointing == SMP_CHECKPOINTING_FIRST;
}

static bool yields(const smp_settings *settings, smp_key key)
{
    return (settings->yields >> key & 1U) != 0;
}

/* What a plan offloads gives way to settings that came after the plan. */
static void act_offload(smp_resolving *st)
{
    smp_settings *s = &st->job.settings;

    if (s->offload && yields(s, SMP_KEY_OFFLOAD) &&
        !(smp_offload_holds(st) && smp_runtime_offloads(s))) {
        s->offload = false;
        st->offload_yields = true;
    }
    if (yields(s, SMP_KEY_OFFLOAD_LAYERS) && s->offload_layers > s->checkpointing_layers) {
        s->offload_layers = 0;
    }
}

/* What changes nothing in fp32, or where one rank has all, is off. */
static void act_types(smp_settings *s)
{
    s->attention_in_fp32 = s->attention_in_fp32 && s->precision != SMP_PRECISION_FP32;
    s->fp32_residual = s->fp32_residual && s->precision != SMP_PRECISION_FP32;
    if (s->distribute_embedding == SMP_DISTRIBUTE_AUTO || s->tensor_parallel_degree == 1) {
        s->distribute_embedding = SMP_DISTRIBUTE_ON;
    }
}

void smp_act(smp_resolving *st, const smp_settings *given)
{
    const smp_settings *asked = with_stack(st, given);
    smp_job *job = &st->job;
    smp_settings *s = &job->settings;
    uint64_t outer = smp_mul(s->tensor_parallel_degree,
                             smp_nested(s) ? 1 : s->expert_parallel_degree);
    uint64_t same = smp_mul(s->tensor_parallel_degree, s->context_parallel_degree);

    st->asked = asked;
    job->world = smp_cluster_gpus(job->cluster);
    st->rest = job->world % outer == 0 ? (uint32_t)(job->world / outer) : 0;
    act_rank_order(asked, s);
    act_sharding(st);
    act_checkpointing(s, job->model->n_layer);
    act_offload(st);
    act_types(s);
    if (s->tensor_parallel_degree == 1 ||
        (!smp_key_given(asked, SMP_KEY_SEQUENCE_PARALLEL) &&
         job->batch.seq_len % s->tensor_parallel_degree != 0)) {
        s->sequence_parallel = false;
    }
    job->data_ranks = job->world % same == 0 ? (uint32_t)(job->world / same) : 0;
    job->replicas = s->hybrid_shard_degree > 0 ? st->rest / s->hybrid_shard_degree : 0;
    uint64_t turn = smp_mul(job->data_ranks, s->micro_batch);
    job->micro_batches = turn > 0 ? job->batch.global_batch / turn : 0;
    if (!smp_accumulation_holds(st) && !smp_key_given(asked, SMP_KEY_ACCUMULATION)) {
        s->accumulation = SMP_ACCUMULATION_LAST;
    }
}
