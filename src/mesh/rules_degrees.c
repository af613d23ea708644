/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of the degrees of parallelism: what divides what, and who would be left without. */
#include "config.h"

#include "mesh/resolve.h"

#include <inttypes.h>

/* Latent attention has no key-value heads to divide: each head makes its own from the latent,
 * which every tensor rank has. */
static bool heads_divide(const smp_attention *a, uint32_t t)
{
    return a->heads % t == 0 &&
           (a->kv_lora_rank > 0 || a->kv_heads % t == 0 || t % a->kv_heads == 0);
}

static bool heads_hold(const smp_resolving *st)
{
    for (uint32_t k = 0; k < st->job.model->n_kind; k++) {
        if (!heads_divide(&st->job.model->kinds[k].attention,
                          st->job.settings.tensor_parallel_degree)) {
            return false;
        }
    }
    return true;
}

static void heads_why(const smp_resolving *st, smp_text *text)
{
    const smp_block *block = st->job.model->kinds;
    const smp_attention *a;

    while (heads_divide(&block->attention, st->job.settings.tensor_parallel_degree)) {
        block++;
    }
    a = &block->attention;
    smp_text_add(text, "must divide %u attention heads", a->heads);
    if (a->kv_lora_rank == 0) {
        smp_text_add(text, ", and %u key-value heads or be a multiple of them", a->kv_heads);
    }
}

/* The features that tensor parallelism cannot split, or 0. */
static uint64_t uneven_ffn(const smp_block *block, uint32_t tensor)
{
    if (block->moe.experts == 0) {
        return block->mlp.ffn % tensor != 0 ? block->mlp.ffn : 0;
    }
    return block->moe.ffn % tensor != 0          ? block->moe.ffn
           : block->moe.shared_ffn % tensor != 0 ? block->moe.shared_ffn : 0;
}

static bool ffn_holds(const smp_resolving *st)
{
    for (uint32_t k = 0; k < st->job.model->n_kind; k++) {
        if (uneven_ffn(&st->job.model->kinds[k], st->job.settings.tensor_parallel_degree)) {
            return false;
        }
    }
    return true;
}

static void ffn_why(const smp_resolving *st, smp_text *text)
{
    uint32_t k = 0;

    while (!uneven_ffn(&st->job.model->kinds[k], st->job.settings.tensor_parallel_degree)) {
        k++;
    }
    smp_text_add(text, "must divide the %" PRIu64 " features inside the MLP%s",
                 uneven_ffn(&st->job.model->kinds[k],
                            st->job.settings.tensor_parallel_degree),
                 st->job.model->kinds[k].moe.experts > 0 ? " of an expert" : "");
}

static bool tensor_world_holds(const smp_resolving *st)
{
    return st->job.world % st->job.settings.tensor_parallel_degree == 0;
}

static void tensor_world_why(const smp_resolving *st, smp_text *text)
{
    smp_text_add(text, "must divide the %u GPUs", st->job.world);
}

/* Each expert rank has as many experts as the others, as Megatron requires
 * [megatron/core/transformer/moe/experts.py]. */
static bool experts_hold(const smp_resolving *st)
{
    uint32_t degree = st->job.settings.expert_parallel_degree;

    for (uint32_t k = 0; k < st->job.model->n_kind; k++) {
        if (st->job.model->kinds[k].moe.experts % degree != 0) {
            return false;
        }
    }
    return degree == 1 || (smp_model_experts(st->job.model) > 0 && st->job.settings.smp_moe);
}

static void experts_why(const smp_resolving *st, smp_text *text)
{
    uint32_t experts = smp_model_experts(st->job.model);

    if (experts == 0) {
        smp_text_add(text, "model %s has no experts", st->job.model->name);
    } else if (!st->job.settings.smp_moe) {
        smp_text_add(text, "smp_moe false has no expert parallelism");
    } else {
        smp_text_add(text, "must divide the %u experts of a layer", experts);
    }
}

static bool expert_world_holds(const smp_resolving *st)
{
    return !tensor_world_holds(st) || st->rest > 0;
}

static void expert_world_why(const smp_resolving *st, smp_text *text)
{
    uint32_t t = st->job.settings.tensor_parallel_degree;

    smp_text_add(text, "must divide %u GPUs / tensor_parallel_degree %u = %u", st->job.world, t,
                 st->job.world / t);
}

/* Nested: a part of the shard group, beside context. */
static bool nested_holds(const smp_resolving *st)
{
    const smp_settings *s = &st->job.settings;

    return !smp_nested(s) || st->rest == 0 ||
           s->hybrid_shard_degree %
                   smp_mul(s->expert_parallel_degree, s->context_parallel_degree) == 0;
}

static void nested_why(const smp_resolving *st, smp_text *text)
{
    const smp_settings *s = &st->job.settings;

    smp_text_add(text, "expert_layout nested: must divide hybrid_shard_degree %u",
                 s->hybrid_shard_degree);
    if (s->context_parallel_degree > 1) {
        smp_text_add(text, " / context_parallel_degree %u", s->context_parallel_degree);
    }
}

static bool shard_world_holds(const smp_resolving *st)
{
    return st->rest == 0 || st->rest % st->job.settings.hybrid_shard_degree == 0;
}

static void shard_world_why(const smp_resolving *st, smp_text *text)
{
    const smp_settings *s = &st->job.settings;

    if (st->asked->hybrid_shard_degree == 0) {
        smp_text_add(text, "means %u with sharding_strategy %s: ", s->hybrid_shard_degree,
                     st->asked->sharding_strategy == SMP_STRATEGY_HYBRID_SHARD
                         ? "HYBRID_SHARD" : "_HYBRID_SHARD_ZERO2");
    }
    if (smp_nested(s)) {
        smp_text_add(text, "must divide %u GPUs / tensor_parallel_degree %u = %u",
                     st->job.world, s->tensor_parallel_degree, st->rest);
        return;
    }
    smp_text_add(text, "must divide %u GPUs / (tensor_parallel_degree %u x "
                 "expert_parallel_degree %u) = %u", st->job.world, s->tensor_parallel_degree,
                 s->expert_parallel_degree, st->rest);
}

/* torch.chunk of a unit of N elements over F ranks gives ceil(N / F) to each until none are
 * left [PyTorch, fsdp/_flat_param.py]: the last rank has none when (F - 1) ceil(N / F) >= N. */
static bool leaves_empty(uint64_t n_elem, uint32_t degree)
{
    return smp_mul(degree - 1, smp_ceil_div(n_elem, degree)) >= n_elem;
}

/* Elements of a unit on one tensor and expert rank: of experts, or of all else. */
static uint64_t unit_elems(const smp_resolving *st, const smp_block *block, bool expert)
{
    const smp_settings *s = &st->job.settings;
    const smp_model *model = st->job.model;
    const smp_param *params = block != NULL ? block->params : model->root;
    uint32_t n = block != NULL ? block->n_param : model->n_root;
    uint64_t sum = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (smp_role_is_expert(params[i].role) == expert) {
            const bool vocab = params[i].split == SMP_SPLIT_VOCAB;
            sum = smp_add(sum, smp_param_local_elems(model, block, &params[i],
                                                     vocab ? smp_vocab_parts(s)
                                                           : s->tensor_parallel_degree));
        }
    }
    return expert ? sum / s->expert_parallel_degree : sum;
}

/* Elements of the first unit that would leave a rank without any; 0: none does.  Experts are
 * a unit of their own when they are split over ranks. */
static uint64_t empty_unit(const smp_resolving *st, uint32_t *degree_p)
{
    const smp_settings *s = &st->job.settings;
    const smp_model *model = st->job.model;
    const uint32_t ep = s->expert_parallel_degree;

    *degree_p = s->hybrid_shard_degree;
    if (s->hybrid_shard_degree == 1 || s->allow_empty_shards || st->rest == 0 ||
        !heads_hold(st) || !ffn_holds(st) || !experts_hold(st) || !nested_holds(st)) {
        return 0;
    }
    for (uint32_t k = 0; k <= model->n_kind; k++) {
        const smp_block *block = k < model->n_kind ? &model->kinds[k] : NULL;
        uint64_t dense = unit_elems(st, block, false), experts = unit_elems(st, block, true);

        dense += ep == 1 ? experts : 0;
        if (dense > 0 && leaves_empty(dense, s->hybrid_shard_degree)) {
            return dense;
        }
        *degree_p = smp_nested(s) ? s->hybrid_shard_degree / ep : s->hybrid_shard_degree;
        if (ep > 1 && experts > 0 && leaves_empty(experts, *degree_p)) {
            return experts;
        }
        *degree_p = s->hybrid_shard_degree;
    }
    return 0;
}

static bool empty_holds(const smp_resolving *st)
{
    uint32_t degree;

    return empty_unit(st, &degree) == 0;
}

static void empty_why(const smp_resolving *st, smp_text *text)
{
    uint32_t degree;
    uint64_t elems = empty_unit(st, &degree);

    smp_text_add(text, "%u ranks cannot share a unit of %" PRIu64 " elements without empty "
                 "shards, which allow_empty_shards permits", degree, elems);
}

static bool context_shard_holds(const smp_resolving *st)
{
    const smp_settings *s = &st->job.settings;

    return s->context_parallel_degree == 1 || st->rest == 0 ||
           s->hybrid_shard_degree % s->context_parallel_degree == 0;
}

static void context_shard_why(const smp_resolving *st, smp_text *text)
{
    smp_text_add(text, "must divide hybrid_shard_degree %u, of which it is a part",
                 st->job.settings.hybrid_shard_degree);
}

static bool context_seq_holds(const smp_resolving *st)
{
    uint64_t c = st->job.settings.context_parallel_degree;

    return c == 1 || st->job.batch.seq_len % (2 * c) == 0;
}

static void context_seq_why(const smp_resolving *st, smp_text *text)
{
    smp_text_add(text, "twice the degree must divide seq_len %" PRIu64,
                 st->job.batch.seq_len);
}

static bool context_lowered_holds(const smp_resolving *st)
{
    return st->job.settings.context_parallel_degree == 1;
}

static void context_lowered_why(const smp_resolving *st, smp_text *text)
{
    (void)st;
    smp_text_add(text, "context parallelism is not lowered yet");
}

const smp_rule smp_rules_degrees[] = {
    {SMP_KEY_TENSOR_PARALLEL_DEGREE, true, heads_hold, heads_why},
    {SMP_KEY_TENSOR_PARALLEL_DEGREE, true, ffn_holds, ffn_why},
    {SMP_KEY_TENSOR_PARALLEL_DEGREE, true, tensor_world_holds, tensor_world_why},
    {SMP_KEY_EXPERT_PARALLEL_DEGREE, true, experts_hold, experts_why},
    {SMP_KEY_EXPERT_PARALLEL_DEGREE, true, expert_world_holds, expert_world_why},
    {SMP_KEY_HYBRID_SHARD_DEGREE, true, shard_world_holds, shard_world_why},
    {SMP_KEY_HYBRID_SHARD_DEGREE, true, empty_holds, empty_why},
    {SMP_KEY_EXPERT_PARALLEL_DEGREE, true, nested_holds, nested_why},
    {SMP_KEY_CONTEXT_PARALLEL_DEGREE, true, context_shard_holds, context_shard_why},
    {SMP_KEY_CONTEXT_PARALLEL_DEGREE, true, context_seq_holds, context_seq_why},
    {SMP_KEY_CONTEXT_PARALLEL_DEGREE, true, context_lowered_holds, context_lowered_why},
    {.holds = NULL},
};
