/* SPDX-License-Identifier: Apache-2.0 */
/* Lowering: what the settings decide: dtypes, sizes, homes of gradients, order of gathers,
 * layers that are checkpointed and offloaded. */
#include "step/lower.h"

#include "base/numeric.h"
#include "mesh/settings.h"

static void decide_share(smp_lowering *low, smp_share *share, smp_group shard,
                         smp_group replica)
{
    share->shard_group = smp_mesh_group_size(low->mesh, shard);
    share->replicas = smp_mesh_group_size(low->mesh, replica);
    share->shard = 1;
    share->weight = 1;
    if (low->set->sharding != SMP_SHARDING_NONE) {
        share->shard = share->shard_group;
        share->shard_rank = smp_mesh_group_rank(low->mesh, shard, low->rank);
    }
}

static void decide_ranks(smp_lowering *low)
{
    smp_coords coords;
    bool nested;

    smp_mesh_coords(low->mesh, low->rank, &coords);
    low->tensor = smp_mesh_degree(low->mesh, SMP_AXIS_TENSOR);
    low->tensor_rank = coords.axis[SMP_AXIS_TENSOR];
    low->expert = smp_mesh_degree(low->mesh, SMP_AXIS_EXPERT);
    nested = smp_nested(low->set);
    decide_share(low, &low->dense, SMP_GROUP_SHARD, SMP_GROUP_DENSE_REPLICA);
    low->dense.prefix = "";
    low->experts = low->dense;
    if (low->expert > 1) {
        decide_share(low, &low->experts, SMP_GROUP_EXPERT_SHARD, SMP_GROUP_REPLICA);
        low->experts.prefix = "experts.";
        low->experts.weight = nested ? 1 : low->expert;
    }
}

static void decide_sizes(smp_lowering *low)
{
    low->compute = smp_precision_dtype(low->set->precision);
    low->master = smp_precision_dtype(low->set->master);
    low->reduce = smp_precision_dtype(low->set->reduce_dtype);
    low->residual = low->set->fp32_residual ? SMP_F32 : low->compute;
    low->casts = low->compute != low->master;
    low->batch = low->set->micro_batch;
    low->seq = low->job->batch.seq_len;
    low->tokens = smp_mul(low->batch, low->seq);
    low->sequence = low->set->sequence_parallel && low->tensor > 1;
    low->rows = low->sequence ? low->tokens / low->tensor : low->tokens;
    low->hidden = low->model->hidden;
    low->vocab_parts = smp_vocab_parts(low->set);
    low->local_vocab = smp_local_vocab(low->model->vocab, low->vocab_parts);
    low->n_chunk = low->set->loss_chunks ? low->set->loss_chunks : 1;
    if (low->n_chunk > low->rows) {
        low->n_chunk = (uint32_t)low->rows;
    }
    /* Chunks are of equal size but for the last, which is not empty. */
    low->n_chunk =
        (uint32_t)smp_ceil_div(low->rows, smp_ceil_div(low->rows, low->n_chunk));
}

static void decide_gradients(smp_lowering *low, smp_share *share)
{
    bool many = low->job->micro_batches > 1;
    bool full = low->set->sharding == SMP_SHARDING_FULL;

    low->once = !many || low->set->accumulation == SMP_ACCUMULATION_LAST;
    if (!full || (share->shard == 1 && low->reduce == low->master)) {
        share->home = SMP_HOME_WHOLE;
        share->accumulates = share->shard > 1 && !low->once;
        share->n_write = many && !share->accumulates ? 2 : 1;
    } else if (low->once && many) {
        share->home = SMP_HOME_LAYER;
        share->accumulates = true;
        share->n_write = 2;
    } else {
        share->home = SMP_HOME_RING;
        share->accumulates = true;
        share->n_write = 1;
    }
    share->gathers = full && (share->shard > 1 || low->casts);
    share->keeps_gathered = share->gathers && !low->set->reshard_after_forward;
}

static void decide_gathers(smp_lowering *low)
{
    low->n_write = low->dense.n_write > low->experts.n_write ? low->dense.n_write
                                                             : low->experts.n_write;
    low->orders_forward = low->dense.gathers && !low->set->forward_prefetch;
    low->orders_backward = low->dense.gathers && !low->dense.keeps_gathered
                           && low->set->prefetch != SMP_PREFETCH_BACKWARD_PRE;
    low->orders_reduce = low->orders_backward && low->set->prefetch == SMP_PREFETCH_NONE;
    low->slots = low->orders_forward && low->orders_backward ? 1 : 2;
    low->prefetch_token = low->orders_forward || low->orders_backward
                              ? smp_lower_token(low, "prefetch")
                              : SMP_NO_BUFFER;
}

/* What the software does otherwise than the native executor. */
static void decide_stack(smp_lowering *low)
{
    smp_program *program = low->build.program;

    low->runtime = smp_runtime_of(low->set->stack);
    low->kernels = smp_runtime_kernels(low->runtime, low->set->compile);
    low->loss = low->set->loss_kernel;
    low->comm_token = low->reduce_token = low->update_token = SMP_NO_BUFFER;
    low->reduced_token = smp_lower_token(low, "gradients");
    if (low->runtime->one_comm) {
        low->comm_token = smp_lower_token(low, "communicator");
    }
    if (!low->set->overlap_reduce) {
        low->reduce_token = smp_lower_token(low, "backward");
    }
    if (!low->set->overlap_gather) {
        low->update_token = smp_lower_token(low, "update");
    }
    program->kernels = low->kernels;
    program->loss = low->loss;
    program->attention_kernel = low->set->attention_kernel;
    program->efficiency = low->set->efficiency;
    program->host_launches = !low->runtime->captured;
}

static void decide_checkpointing(smp_lowering *low)
{
    uint32_t n = low->model->n_layer, horizon = low->set->activation_loading_horizon, layers;

    if (low->set->checkpointing == SMP_CHECKPOINTING_FIRST) {
        low->checkpointed =
            low->set->checkpointing_layers < n ? low->set->checkpointing_layers : n;
    } else if (low->set->checkpointing != SMP_CHECKPOINTING_NONE) {
        low->checkpointed = n;
    }
    layers = smp_offloaded_layers(low->set);
    if (!low->set->sm_activation_offloading) {
        low->offloaded = low->stored = layers;
    } else if (horizon < layers) { /* the last ones are never stored */
        low->offloaded = layers;
        low->stored = layers - horizon;
    }
}

void smp_lower_decide(smp_lowering *low)
{
    decide_ranks(low);
    decide_sizes(low);
    decide_gradients(low, &low->dense);
    decide_gradients(low, &low->experts);
    decide_gathers(low);
    decide_checkpointing(low);
    decide_stack(low);
}
