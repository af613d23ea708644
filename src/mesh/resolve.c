/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From settings as given to settings that act, and the rules that they must keep.
 *
 * `act` computes the acting values; it is pure and cannot fail.  `check` returns the set of
 * broken rules.  Only when that set is not empty are messages composed, with the legal values
 * found by trying: a value of a key is legal when no rule of that key is broken with it.  So a
 * search that tries many jobs pays for no text.
 *
 * Meaning of the degrees: world = tensor x expert x hybrid_shard x replicas, with context
 * inside hybrid_shard [SageMaker documentation, "SMP v2 core features: hybrid sharded data
 * parallelism" and "reference" for the orthogonal layout; in the nested one expert too lies
 * inside hybrid_shard; the divisibility is that of AWS's own validator in
 * sagemaker-hyperpod-training-adapter-for-nemo, validate_distributed_degrees].
 */
#include "config.h"

#include "mesh/mesh.h"
#include "mesh/runtime.h"
#include "mesh/settings.h"

#include "base/numeric.h"
#include "base/text.h"
#include "model/model.h"

#include <inttypes.h>
#include <string.h>

/* A job on its way: `job` holds the acting settings once `act` has run. */
typedef struct state {
    smp_job job;
    const smp_settings *asked; /* as given, and what the stack puts where nothing is */
    smp_settings stacked;      /* `asked` where the stack puts something */
    uint32_t rest;             /* world / (tensor x expert), nested world / tensor; 0 when
                                  that is no integer */
    bool strategy_forced;      /* the given sharding_strategy does not act */
} state;

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
static void act_strategy(state *st)
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

static void act_sharding(state *st)
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
}

static bool is_nested(const smp_settings *s)
{
    return s->expert_layout == SMP_EXPERT_LAYOUT_NESTED;
}

/* Nested: expert ranks beside each other inside the shard group, so that rows stay on the links
 * of a node where it holds all of them; orthogonal: the order of the table. */
static void act_rank_order(const smp_settings *asked, smp_settings *s)
{
    static const smp_axis beside[SMP_AXES] = {SMP_AXIS_TENSOR, SMP_AXIS_CONTEXT,
                                              SMP_AXIS_EXPERT, SMP_AXIS_SHARD,
                                              SMP_AXIS_REPLICA};

    if (is_nested(s) && s->expert_parallel_degree > 1 &&
        !smp_key_given(asked, SMP_KEY_RANK_ORDER)) {
        memcpy(s->rank_order, beside, sizeof(beside));
    }
}

/* Defaults that a stack has of its own (src/mesh/runtime.h). */
static const smp_settings *with_stack(state *st, const smp_settings *asked)
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
static bool accumulation_holds(const state *st)
{
    const smp_settings *s = &st->job.settings;

    return !smp_runtime_of(s->stack)->accumulates_whole || s->sharding == SMP_SHARDING_FULL ||
           s->accumulation == SMP_ACCUMULATION_LAST || st->job.micro_batches <= 1;
}

/* Degrees here are at least 1: rule RANGE has been checked. */
static void act(state *st, const smp_settings *given)
{
    const smp_settings *asked = with_stack(st, given);
    smp_job *job = &st->job;
    smp_settings *s = &job->settings;
    uint64_t outer = smp_mul(s->tensor_parallel_degree,
                             is_nested(s) ? 1 : s->expert_parallel_degree);
    uint64_t same = smp_mul(s->tensor_parallel_degree, s->context_parallel_degree);

    st->asked = asked;
    job->world = smp_cluster_gpus(job->cluster);
    st->rest = job->world % outer == 0 ? (uint32_t)(job->world / outer) : 0;
    act_rank_order(asked, s);
    act_sharding(st);
    act_checkpointing(s, job->model->n_layer);
    if (s->tensor_parallel_degree == 1 ||
        (!smp_key_given(asked, SMP_KEY_SEQUENCE_PARALLEL) &&
         job->batch.seq_len % s->tensor_parallel_degree != 0)) {
        s->sequence_parallel = false;
    }
    job->data_ranks = job->world % same == 0 ? (uint32_t)(job->world / same) : 0;
    job->replicas = s->hybrid_shard_degree > 0 ? st->rest / s->hybrid_shard_degree : 0;
    uint64_t turn = smp_mul(job->data_ranks, s->micro_batch);
    job->micro_batches = turn > 0 ? job->batch.global_batch / turn : 0;
    if (!accumulation_holds(st) && !smp_key_given(asked, SMP_KEY_ACCUMULATION)) {
        s->accumulation = SMP_ACCUMULATION_LAST;
    }
}

/* ------------------------------------------------------------------ rules */

/* A rule is true when it holds, and also when it has nothing to say because a rule that comes
 * before it is broken. */

static bool range_holds(const smp_job *job)
{
    const smp_settings *s = &job->settings;

    return s->tensor_parallel_degree > 0 && s->context_parallel_degree > 0 &&
           s->expert_parallel_degree > 0 && s->micro_batch > 0 && s->loss_chunks > 0 &&
           s->activation_loading_horizon > 0 && smp_cluster_gpus(job->cluster) > 0;
}

/* Latent attention has no key-value heads to divide: each head makes its own from the latent,
 * which every tensor rank has. */
static bool heads_divide(const smp_attention *a, uint32_t t)
{
    return a->heads % t == 0 &&
           (a->kv_lora_rank > 0 || a->kv_heads % t == 0 || t % a->kv_heads == 0);
}

static bool heads_hold(const state *st)
{
    for (uint32_t k = 0; k < st->job.model->n_kind; k++) {
        if (!heads_divide(&st->job.model->kinds[k].attention,
                          st->job.settings.tensor_parallel_degree)) {
            return false;
        }
    }
    return true;
}

static void heads_why(const state *st, smp_text *text)
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

static bool ffn_holds(const state *st)
{
    for (uint32_t k = 0; k < st->job.model->n_kind; k++) {
        if (uneven_ffn(&st->job.model->kinds[k], st->job.settings.tensor_parallel_degree)) {
            return false;
        }
    }
    return true;
}

static void ffn_why(const state *st, smp_text *text)
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

static bool tensor_world_holds(const state *st)
{
    return st->job.world % st->job.settings.tensor_parallel_degree == 0;
}

static void tensor_world_why(const state *st, smp_text *text)
{
    smp_text_add(text, "must divide the %u GPUs", st->job.world);
}

static uint32_t most_experts(const smp_model *model)
{
    uint32_t most = 0;

    for (uint32_t k = 0; k < model->n_kind; k++) {
        most = model->kinds[k].moe.experts > most ? model->kinds[k].moe.experts : most;
    }
    return most;
}

/* Each expert rank has as many experts as the others, as Megatron requires
 * [megatron/core/transformer/moe/experts.py]. */
static bool experts_hold(const state *st)
{
    uint32_t degree = st->job.settings.expert_parallel_degree;

    for (uint32_t k = 0; k < st->job.model->n_kind; k++) {
        if (st->job.model->kinds[k].moe.experts % degree != 0) {
            return false;
        }
    }
    return degree == 1 || (most_experts(st->job.model) > 0 && st->job.settings.smp_moe);
}

static void experts_why(const state *st, smp_text *text)
{
    uint32_t experts = most_experts(st->job.model);

    if (experts == 0) {
        smp_text_add(text, "model %s has no experts", st->job.model->name);
    } else if (!st->job.settings.smp_moe) {
        smp_text_add(text, "smp_moe false has no expert parallelism");
    } else {
        smp_text_add(text, "must divide the %u experts of a layer", experts);
    }
}

/* Nested: a part of the shard group, beside context. */
static bool nested_holds(const state *st)
{
    const smp_settings *s = &st->job.settings;

    return !is_nested(s) || st->rest == 0 ||
           s->hybrid_shard_degree %
                   smp_mul(s->expert_parallel_degree, s->context_parallel_degree) == 0;
}

static void nested_why(const state *st, smp_text *text)
{
    const smp_settings *s = &st->job.settings;

    smp_text_add(text, "expert_layout nested: must divide hybrid_shard_degree %u",
                 s->hybrid_shard_degree);
    if (s->context_parallel_degree > 1) {
        smp_text_add(text, " / context_parallel_degree %u", s->context_parallel_degree);
    }
}

static bool pad_holds(const state *st)
{
    return !st->job.settings.capacity_pad || st->job.settings.capacity_factor > 0;
}

static void pad_why(const state *st, smp_text *text)
{
    (void)st;
    smp_text_add(text, "fills experts up to their capacity: needs capacity_factor above 0; "
                 "legal here: false");
}

/* Without experts on several ranks every rank has all rows, whatever the imbalance. */
static bool imbalance_holds(const state *st)
{
    const smp_settings *s = &st->job.settings;

    if (s->expert_parallel_degree == 1) {
        return true;
    }
    if (s->moe_load_balancing == SMP_BALANCING_BALANCED) {
        return s->imbalance.kind == SMP_IMBALANCE_CONSTANT && s->imbalance.mean <= 1;
    }
    return s->capacity_factor > 0 || smp_imbalance_mean(&s->imbalance) <= s->moe_rows_factor;
}

static void imbalance_why(const state *st, smp_text *text)
{
    if (st->job.settings.moe_load_balancing == SMP_BALANCING_BALANCED) {
        smp_text_add(text, "moe_load_balancing balanced sends each expert the same number of "
                     "rows; legal here: 1");
    } else {
        char most[32];
        (void)smp_settings_get(&st->job.settings, "moe_rows_factor", most, sizeof(most));
        smp_text_add(text, "more rows than moe_rows_factor %s has room for, so that no step "
                     "would act; legal here: 1 to %s, or capacity_factor above 0", most, most);
    }
}

static bool statistics_hold(const state *st)
{
    const smp_settings *s = &st->job.settings;

    return s->moe_statistics == SMP_MOE_LOCAL ||
           s->moe_load_balancing == SMP_BALANCING_AUX_LOSS;
}

static void statistics_why(const state *st, smp_text *text)
{
    (void)st;
    smp_text_add(text, "only the balancing loss is counted over data ranks: needs "
                 "moe_load_balancing aux_loss; legal here: local");
}

static bool expert_world_holds(const state *st)
{
    return !tensor_world_holds(st) || st->rest > 0;
}

static void expert_world_why(const state *st, smp_text *text)
{
    uint32_t t = st->job.settings.tensor_parallel_degree;

    smp_text_add(text, "must divide %u GPUs / tensor_parallel_degree %u = %u", st->job.world, t,
                 st->job.world / t);
}

static bool shard_world_holds(const state *st)
{
    return st->rest == 0 || st->rest % st->job.settings.hybrid_shard_degree == 0;
}

static void shard_world_why(const state *st, smp_text *text)
{
    const smp_settings *s = &st->job.settings;

    if (st->asked->hybrid_shard_degree == 0) {
        smp_text_add(text, "means %u with sharding_strategy %s: ", s->hybrid_shard_degree,
                     st->asked->sharding_strategy == SMP_STRATEGY_HYBRID_SHARD
                         ? "HYBRID_SHARD" : "_HYBRID_SHARD_ZERO2");
    }
    if (is_nested(s)) {
        smp_text_add(text, "must divide %u GPUs / tensor_parallel_degree %u = %u",
                     st->job.world, s->tensor_parallel_degree, st->rest);
        return;
    }
    smp_text_add(text, "must divide %u GPUs / (tensor_parallel_degree %u x "
                 "expert_parallel_degree %u) = %u", st->job.world, s->tensor_parallel_degree,
                 s->expert_parallel_degree, st->rest);
}

static bool context_lowered_holds(const state *st)
{
    return st->job.settings.context_parallel_degree == 1;
}

static void context_lowered_why(const state *st, smp_text *text)
{
    (void)st;
    smp_text_add(text, "context parallelism is not lowered yet");
}

static bool context_shard_holds(const state *st)
{
    const smp_settings *s = &st->job.settings;

    return s->context_parallel_degree == 1 || st->rest == 0 ||
           s->hybrid_shard_degree % s->context_parallel_degree == 0;
}

static void context_shard_why(const state *st, smp_text *text)
{
    smp_text_add(text, "must divide hybrid_shard_degree %u, of which it is a part",
                 st->job.settings.hybrid_shard_degree);
}

static bool context_seq_holds(const state *st)
{
    uint64_t c = st->job.settings.context_parallel_degree;

    return c == 1 || st->job.batch.seq_len % (2 * c) == 0;
}

static void context_seq_why(const state *st, smp_text *text)
{
    smp_text_add(text, "twice the degree must divide seq_len %" PRIu64,
                 st->job.batch.seq_len);
}

/* torch.chunk of a unit of N elements over F ranks gives ceil(N / F) to each until none are
 * left [PyTorch, fsdp/_flat_param.py]: the last rank has none when (F - 1) ceil(N / F) >= N. */
static bool leaves_empty(uint64_t n_elem, uint32_t degree)
{
    return smp_mul(degree - 1, smp_ceil_div(n_elem, degree)) >= n_elem;
}

/* Elements of a unit on one tensor and expert rank: of experts, or of all else. */
static uint64_t unit_elems(const state *st, const smp_block *block, bool expert)
{
    const smp_settings *s = &st->job.settings;
    const smp_model *model = st->job.model;
    const smp_param *params = block != NULL ? block->params : model->root;
    uint32_t n = block != NULL ? block->n_param : model->n_root;
    uint64_t sum = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (smp_role_is_expert(params[i].role) == expert) {
            sum = smp_add(sum, smp_param_local_elems(model, block, &params[i],
                                                     s->tensor_parallel_degree));
        }
    }
    return expert ? sum / s->expert_parallel_degree : sum;
}

/* Elements of the first unit that would leave a rank without any; 0: none does.  Experts are
 * a unit of their own when they are split over ranks. */
static uint64_t empty_unit(const state *st, uint32_t *degree_p)
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
        *degree_p = is_nested(s) ? s->hybrid_shard_degree / ep : s->hybrid_shard_degree;
        if (ep > 1 && experts > 0 && leaves_empty(experts, *degree_p)) {
            return experts;
        }
        *degree_p = s->hybrid_shard_degree;
    }
    return 0;
}

static bool empty_holds(const state *st)
{
    uint32_t degree;

    return empty_unit(st, &degree) == 0;
}

static void empty_why(const state *st, smp_text *text)
{
    uint32_t degree;
    uint64_t elems = empty_unit(st, &degree);

    smp_text_add(text, "%u ranks cannot share a unit of %" PRIu64 " elements without empty "
                 "shards, which allow_empty_shards permits", degree, elems);
}

static bool sharding_holds(const state *st)
{
    const smp_settings *asked = st->asked;

    switch (asked->sharding) {
    case SMP_SHARDING_FULL:
        return true;
    case SMP_SHARDING_OPTIMIZER:
        return asked->sharding_strategy == SMP_STRATEGY_UNSET;
    case SMP_SHARDING_NONE:
        break;
    }
    return asked->hybrid_shard_degree <= 1 &&
           (asked->sharding_strategy == SMP_STRATEGY_UNSET ||
            asked->sharding_strategy == SMP_STRATEGY_NO_SHARD);
}

static void sharding_why(const state *st, smp_text *text)
{
    const smp_settings *asked = st->asked;
    char strategy[32];

    (void)smp_settings_get(asked, "sharding_strategy", strategy, sizeof(strategy));
    smp_text_add(text, "does not agree with hybrid_shard_degree %u and sharding_strategy %s; "
                 "legal here: ", asked->hybrid_shard_degree, strategy);
    switch (asked->sharding_strategy) {
    case SMP_STRATEGY_UNSET:
        smp_text_add(text, "full, optimizer");
        break;
    case SMP_STRATEGY_NO_SHARD:
        smp_text_add(text, "full%s", asked->hybrid_shard_degree > 1 ? "" : ", none");
        break;
    case SMP_STRATEGY_FULL_SHARD:
    case SMP_STRATEGY_SHARD_GRAD_OP:
    case SMP_STRATEGY_HYBRID_SHARD:
    case SMP_STRATEGY_HYBRID_SHARD_ZERO2:
        smp_text_add(text, "full");
        break;
    }
}

static bool reshard_holds(const state *st)
{
    const smp_settings *s = &st->job.settings;

    return st->asked->sharding_strategy == SMP_STRATEGY_UNSET ||
           !smp_key_given(st->asked, SMP_KEY_RESHARD_AFTER_FORWARD) ||
           s->sharding != SMP_SHARDING_FULL || s->hybrid_shard_degree == 1 ||
           s->reshard_after_forward == st->asked->reshard_after_forward;
}

static void reshard_why(const state *st, smp_text *text)
{
    char strategy[32];

    (void)smp_settings_get(&st->job.settings, "sharding_strategy", strategy, sizeof(strategy));
    smp_text_add(text, "sharding_strategy %s acts, which %s after forward; legal here: %s",
                 strategy, st->job.settings.reshard_after_forward ? "reshards" : "keeps units",
                 st->job.settings.reshard_after_forward ? "true" : "false");
}

static bool seq_holds(const state *st)
{
    const smp_model *model = st->job.model;
    uint64_t seq = st->job.batch.seq_len;

    return seq > 0 && (model->position != SMP_POSITION_LEARNED || model->max_positions == 0 ||
                       seq <= model->max_positions);
}

static void seq_why(const state *st, smp_text *text)
{
    smp_text_add(text, "must be 1 or more");
    if (st->job.model->position == SMP_POSITION_LEARNED) {
        smp_text_add(text, ", and at most the %" PRIu64 " learned positions of %s",
                     st->job.model->max_positions, st->job.model->name);
    }
}

static bool global_batch_holds(const state *st)
{
    uint64_t batch = st->job.batch.global_batch;

    return batch > 0 && (st->job.data_ranks == 0 || batch % st->job.data_ranks == 0);
}

static void global_batch_why(const state *st, smp_text *text)
{
    uint64_t d = st->job.data_ranks > 0 ? st->job.data_ranks : 1;
    uint64_t below = st->job.batch.global_batch / d * d;

    smp_text_add(text, "must be a multiple of the %" PRIu64 " data ranks (%u GPUs / "
                 "tensor_parallel_degree %u); nearest: ", d, st->job.world,
                 st->job.settings.tensor_parallel_degree);
    if (below > 0) {
        smp_text_add(text, "%" PRIu64 ", ", below);
    }
    smp_text_add(text, "%" PRIu64, smp_add(below, d));
}

static bool micro_batch_holds(const state *st)
{
    return st->job.data_ranks == 0 || !global_batch_holds(st) ||
           st->job.batch.global_batch / st->job.data_ranks % st->job.settings.micro_batch == 0;
}

static void micro_batch_why(const state *st, smp_text *text)
{
    uint64_t each = st->job.batch.global_batch / st->job.data_ranks;

    smp_text_add(text, "must divide global_batch %" PRIu64 " / %u data ranks = %" PRIu64,
                 st->job.batch.global_batch, st->job.data_ranks, each);
}

/* Forward and backward of a layer for a micro-batch is a visit each.  A step is simulated visit
 * by visit, at some 700 bytes and 5 us each: 3 GB and half a minute at most. */
enum { MOST_VISITS = 1 << 22 };

static uint64_t most_micro_batches(const smp_model *model)
{
    return MOST_VISITS / 2 / model->n_layer;
}

static bool visits_hold(const state *st)
{
    return st->job.micro_batches <= most_micro_batches(st->job.model);
}

static void visits_why(const state *st, smp_text *text)
{
    smp_text_add(text, "makes %" PRIu64 " micro-batches of global_batch %" PRIu64 ": a step of "
                 "%u layers may have %" PRIu64, st->job.micro_batches,
                 st->job.batch.global_batch, st->job.model->n_layer,
                 most_micro_batches(st->job.model));
}

static uint64_t tokens(const state *st)
{
    return smp_mul(st->job.settings.micro_batch, st->job.batch.seq_len);
}

static bool loss_chunks_hold(const state *st)
{
    return tokens(st) % st->job.settings.loss_chunks == 0;
}

static void loss_chunks_why(const state *st, smp_text *text)
{
    smp_text_add(text, "must divide the %" PRIu64 " tokens of a micro-batch", tokens(st));
}

static bool first_holds(const state *st)
{
    return st->job.settings.checkpointing != SMP_CHECKPOINTING_FIRST ||
           st->job.settings.checkpointing_layers <= st->job.model->n_layer;
}

static void first_why(const state *st, smp_text *text)
{
    smp_text_add(text, "%s has %u layers; legal here: none, selective:attention, selective:op, "
                 "full, first:1 to first:%u", st->job.model->name, st->job.model->n_layer,
                 st->job.model->n_layer);
}

static bool offload_holds(const state *st)
{
    const smp_settings *s = &st->job.settings;

    return !s->offload || s->checkpointing == SMP_CHECKPOINTING_FULL ||
           s->checkpointing == SMP_CHECKPOINTING_FIRST;
}

static void offload_why(const state *st, smp_text *text)
{
    char value[32];

    (void)smp_settings_get(&st->job.settings, "checkpointing", value, sizeof(value));
    smp_text_add(text, "moves the inputs of checkpointed layers: needs checkpointing full or "
                 "first:K, which is %s; legal here: false", value);
}

static bool sequence_parallel_holds(const state *st)
{
    return !st->job.settings.sequence_parallel ||
           st->job.batch.seq_len % st->job.settings.tensor_parallel_degree == 0;
}

static void sequence_parallel_why(const state *st, smp_text *text)
{
    smp_text_add(text, "tensor_parallel_degree %u must divide seq_len %" PRIu64
                 "; legal here: false", st->job.settings.tensor_parallel_degree,
                 st->job.batch.seq_len);
}

static bool supported(const state *st, smp_precision precision)
{
    return st->job.profile == NULL || smp_profile_supports(st->job.profile, precision);
}

static bool precision_holds(const state *st)
{
    return supported(st, st->job.settings.precision);
}

static void precision_why(const state *st, smp_text *text)
{
    static const char *const names[] = {"bf16", "fp16", "fp32"};
    const char *comma = "";

    smp_text_add(text, "profile %s has no peak for it; legal here: ",
                 smp_profile_name(st->job.profile));
    for (int p = 0; p < 3; p++) {
        if (supported(st, (smp_precision)p)) {
            smp_text_add(text, "%s%s", comma, names[p]);
            comma = ", ";
        }
    }
}

static bool master_holds(const state *st)
{
    const smp_settings *s = &st->job.settings;

    return s->master == SMP_PRECISION_FP32 ||
           (s->master == SMP_PRECISION_BF16 && s->precision == SMP_PRECISION_BF16);
}

static void master_why(const state *st, smp_text *text)
{
    smp_text_add(text, "must be fp32, or bf16 with precision bf16; legal here: %s",
                 st->job.settings.precision == SMP_PRECISION_BF16 ? "fp32, bf16" : "fp32");
}

static bool reduce_holds(const state *st)
{
    const smp_settings *s = &st->job.settings;

    return s->reduce_dtype == SMP_PRECISION_FP32 || s->reduce_dtype == s->precision;
}

static void reduce_why(const state *st, smp_text *text)
{
    char precision[8];

    (void)smp_settings_get(&st->job.settings, "precision", precision, sizeof(precision));
    smp_text_add(text, "must be fp32 or the precision, which is %s", precision);
}

static bool efficiency_holds(const state *st)
{
    return st->job.settings.efficiency <= 1;
}

static void efficiency_why(const state *st, smp_text *text)
{
    (void)st;
    smp_text_add(text, "must be at most 1; legal here: 0 to 1");
}

static void accumulation_why(const state *st, smp_text *text)
{
    smp_text_add(text, "%s reduces whole gradients once a step; legal here: last",
                 smp_runtime_of(st->job.settings.stack)->title);
}

static bool preloading_holds(const state *st)
{
    const smp_settings *s = &st->job.settings;

    return !s->offload || smp_runtime_offloads(s);
}

static void preloading_why(const state *st, smp_text *text)
{
    smp_text_add(text, "%s has no offloading that loads ahead; legal here: false, or "
                 "sm_activation_offloading false",
                 smp_runtime_of(st->job.settings.stack)->title);
}

/* With sharding=full gradients of few units exist at once. */
static bool overlap_holds(const state *st)
{
    const smp_settings *s = &st->job.settings;

    return s->overlap_reduce || s->sharding != SMP_SHARDING_FULL;
}

static void overlap_why(const state *st, smp_text *text)
{
    (void)st;
    smp_text_add(text, "gradients that wait for the end of backward must be whole: needs "
                 "sharding optimizer or none; legal here: true");
}

typedef bool holds_function(const state *st);
typedef void why_function(const state *st, smp_text *text);

/* A rule belongs to a key, or to a field of the batch.  `legal`: list the legal values by
 * trying; the others say them in their text. */
enum { KEY_SEQ_LEN = SMP_KEYS, KEY_GLOBAL_BATCH };
typedef struct rule {
    int key;
    bool legal;
    holds_function *holds;
    why_function *why;
} rule;

static const rule rules[] = {
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
    {SMP_KEY_SHARDING, false, sharding_holds, sharding_why},
    {SMP_KEY_RESHARD_AFTER_FORWARD, false, reshard_holds, reshard_why},
    {KEY_SEQ_LEN, false, seq_holds, seq_why},
    {KEY_GLOBAL_BATCH, false, global_batch_holds, global_batch_why},
    {SMP_KEY_MICRO_BATCH, true, micro_batch_holds, micro_batch_why},
    {SMP_KEY_MICRO_BATCH, true, visits_hold, visits_why},
    {SMP_KEY_LOSS_CHUNKS, true, loss_chunks_hold, loss_chunks_why},
    {SMP_KEY_CHECKPOINTING, false, first_holds, first_why},
    {SMP_KEY_OFFLOAD, false, offload_holds, offload_why},
    {SMP_KEY_SEQUENCE_PARALLEL, false, sequence_parallel_holds, sequence_parallel_why},
    {SMP_KEY_PRECISION, false, precision_holds, precision_why},
    {SMP_KEY_MASTER, false, master_holds, master_why},
    {SMP_KEY_REDUCE_DTYPE, false, reduce_holds, reduce_why},
    {SMP_KEY_CAPACITY_PAD, false, pad_holds, pad_why},
    {SMP_KEY_IMBALANCE, false, imbalance_holds, imbalance_why},
    {SMP_KEY_MOE_STATISTICS, false, statistics_hold, statistics_why},
    {SMP_KEY_EFFICIENCY, false, efficiency_holds, efficiency_why},
    {SMP_KEY_ACCUMULATION, false, accumulation_holds, accumulation_why},
    {SMP_KEY_OFFLOAD, false, preloading_holds, preloading_why},
    {SMP_KEY_OVERLAP_REDUCE, false, overlap_holds, overlap_why},
};
enum { RULES = sizeof(rules) / sizeof(rules[0]) };

/* -------------------------------------------------------- messages */

static bool key_is_legal(const state *st, int key)
{
    for (int i = 0; i < (int)RULES; i++) {
        if (rules[i].key == key && !rules[i].holds(st)) {
            return false;
        }
    }
    return true;
}

/* The field of a key whose legal values are listed, in any settings. */
static uint32_t *integer_of(smp_settings *s, int key)
{
    switch (key) {
    case SMP_KEY_TENSOR_PARALLEL_DEGREE:
        return &s->tensor_parallel_degree;
    case SMP_KEY_EXPERT_PARALLEL_DEGREE:
        return &s->expert_parallel_degree;
    case SMP_KEY_CONTEXT_PARALLEL_DEGREE:
        return &s->context_parallel_degree;
    case SMP_KEY_HYBRID_SHARD_DEGREE:
        return &s->hybrid_shard_degree;
    case SMP_KEY_MICRO_BATCH:
        return &s->micro_batch;
    default:
        return &s->loss_chunks;
    }
}

static void add_legal(const state *st, const smp_job *asked, int key, smp_text *text)
{
    enum { AT_MOST = 20, LAST = 1 << 18 };
    uint64_t limit = key == SMP_KEY_MICRO_BATCH   ? st->job.batch.global_batch
                     : key == SMP_KEY_LOSS_CHUNKS ? tokens(st) : st->job.world;
    smp_settings settings = asked->settings;
    uint32_t *value = integer_of(&settings, key);
    uint32_t n = 0;

    limit = limit < LAST ? limit : LAST;
    smp_text_add(text, "; legal here: ");
    for (*value = key == SMP_KEY_HYBRID_SHARD_DEGREE ? 0 : 1; *value <= limit; (*value)++) {
        state other = {.job = *asked};
        other.job.settings = settings;
        act(&other, &settings);
        if (key_is_legal(&other, key)) {
            if (n == AT_MOST) {
                smp_text_add(text, ", ...");
                return;
            }
            smp_text_add(text, "%s%u", n > 0 ? ", " : "", *value);
            n++;
        }
    }
    if (n == 0) {
        smp_text_add(text, "none");
    }
}

static void report(const state *st, const smp_job *asked, const rule *broken,
                   smp_errors *errors)
{
    const smp_place *where = NULL;
    const char *name;
    char value[96];
    size_t n;
    smp_text text = {0};

    if (broken->key < (int)SMP_KEYS) {
        name = smp_settings_table(&n)[broken->key].key;
        (void)smp_settings_get(&asked->settings, name, value, sizeof(value));
        where = asked->settings.origin[broken->key].file != NULL
                    ? &asked->settings.origin[broken->key] : NULL;
    } else {
        bool seq = broken->key == KEY_SEQ_LEN;
        name = seq ? "seq_len" : "global_batch";
        snprintf(value, sizeof(value), "%" PRIu64,
                 seq ? asked->batch.seq_len : asked->batch.global_batch);
    }
    smp_text_add(&text, "%s %s: ", name, value);
    broken->why(st, &text);
    if (broken->legal) {
        add_legal(st, asked, broken->key, &text);
    }
    (void)smp_fail(errors, SMP_INPUT, where, "%s", text.data);
    smp_text_free(&text);
}

static void warn(const state *st, const smp_settings *asked, smp_errors *errors)
{
    const smp_model *model = st->job.model;
    const smp_settings *s = &st->job.settings;

    if (st->strategy_forced) {
        char given[32], acting[32];
        (void)smp_settings_get(asked, "sharding_strategy", given, sizeof(given));
        (void)smp_settings_get(s, "sharding_strategy", acting, sizeof(acting));
        smp_warn(errors, &asked->origin[SMP_KEY_SHARDING_STRATEGY],
                 "sharding_strategy %s: hybrid_shard_degree %u with tensor_parallel_degree %u "
                 "makes it %s", given, s->hybrid_shard_degree, s->tensor_parallel_degree,
                 acting);
    }
    if (model->position != SMP_POSITION_LEARNED && model->max_positions > 0 &&
        st->job.batch.seq_len > model->max_positions) {
        smp_warn(errors, NULL, "seq_len %" PRIu64 ": %s was made for %" PRIu64 " positions",
                 st->job.batch.seq_len, model->name, model->max_positions);
    }
}

static smp_status range_fail(const smp_job *job, smp_errors *errors)
{
    return smp_fail(errors, SMP_INPUT, NULL,
                    "settings: degrees, micro_batch, loss_chunks, activation_loading_horizon "
                    "and the number of GPUs (%u) must be 1 or more",
                    smp_cluster_gpus(job->cluster));
}

bool smp_job_try(smp_job *job)
{
    state st = {.job = *job};

    if (!range_holds(job)) {
        return false;
    }
    act(&st, &job->settings);
    for (int i = 0; i < (int)RULES; i++) {
        if (!rules[i].holds(&st)) {
            return false;
        }
    }
    *job = st.job;
    return true;
}

smp_status smp_job_resolve(smp_job *job, smp_errors *errors)
{
    state st = {.job = *job};
    smp_status status = SMP_OK;

    if (!range_holds(job)) {
        return range_fail(job, errors);
    }
    act(&st, &job->settings);
    for (int i = 0; i < (int)RULES; i++) {
        if (!rules[i].holds(&st)) {
            report(&st, job, &rules[i], errors);
            status = SMP_INPUT;
        }
    }
    if (status == SMP_OK) {
        warn(&st, &job->settings, errors);
        *job = st.job;
    }
    return status;
}
