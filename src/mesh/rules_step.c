/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of all that is no degree: sharding, batch, checkpointing, types, experts' rows, and
 * what a stack can do. */
#include "config.h"

#include "mesh/resolve.h"
#include "mesh/runtime.h"

#include <inttypes.h>
#include <string.h>

static bool sharding_holds(const smp_resolving *st)
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

static void sharding_why(const smp_resolving *st, smp_text *text)
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

static bool reshard_holds(const smp_resolving *st)
{
    const smp_settings *s = &st->job.settings;

    return st->asked->sharding_strategy == SMP_STRATEGY_UNSET ||
           !smp_key_given(st->asked, SMP_KEY_RESHARD_AFTER_FORWARD) ||
           s->sharding != SMP_SHARDING_FULL || s->hybrid_shard_degree == 1 ||
           s->reshard_after_forward == st->asked->reshard_after_forward;
}

static void reshard_why(const smp_resolving *st, smp_text *text)
{
    char strategy[32];

    (void)smp_settings_get(&st->job.settings, "sharding_strategy", strategy, sizeof(strategy));
    smp_text_add(text, "sharding_strategy %s acts, which %s after forward; legal here: %s",
                 strategy, st->job.settings.reshard_after_forward ? "reshards" : "keeps units",
                 st->job.settings.reshard_after_forward ? "true" : "false");
}

static bool seq_holds(const smp_resolving *st)
{
    const smp_model *model = st->job.model;
    uint64_t seq = st->job.batch.seq_len;

    return seq > 0 && (model->position != SMP_POSITION_LEARNED || model->max_positions == 0 ||
                       seq <= model->max_positions);
}

static void seq_why(const smp_resolving *st, smp_text *text)
{
    smp_text_add(text, "must be 1 or more");
    if (st->job.model->position == SMP_POSITION_LEARNED) {
        smp_text_add(text, ", and at most the %" PRIu64 " learned positions of %s",
                     st->job.model->max_positions, st->job.model->name);
    }
}

static bool global_batch_holds(const smp_resolving *st)
{
    uint64_t batch = st->job.batch.global_batch;

    return batch > 0 && (st->job.data_ranks == 0 || batch % st->job.data_ranks == 0);
}

static void global_batch_why(const smp_resolving *st, smp_text *text)
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

static bool micro_batch_holds(const smp_resolving *st)
{
    return st->job.data_ranks == 0 || !global_batch_holds(st) ||
           st->job.batch.global_batch / st->job.data_ranks % st->job.settings.micro_batch == 0;
}

static void micro_batch_why(const smp_resolving *st, smp_text *text)
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

static bool visits_hold(const smp_resolving *st)
{
    return st->job.micro_batches <= most_micro_batches(st->job.model);
}

static void visits_why(const smp_resolving *st, smp_text *text)
{
    smp_text_add(text, "makes %" PRIu64 " micro-batches of global_batch %" PRIu64 ": a step of "
                 "%u layers may have %" PRIu64, st->job.micro_batches,
                 st->job.batch.global_batch, st->job.model->n_layer,
                 most_micro_batches(st->job.model));
}

static bool loss_chunks_hold(const smp_resolving *st)
{
    return smp_micro_batch_tokens(&st->job) % st->job.settings.loss_chunks == 0;
}

static void loss_chunks_why(const smp_resolving *st, smp_text *text)
{
    smp_text_add(text, "must divide the %" PRIu64 " tokens of a micro-batch",
                 smp_micro_batch_tokens(&st->job));
}

static bool first_holds(const smp_resolving *st)
{
    return st->job.settings.checkpointing != SMP_CHECKPOINTING_FIRST ||
           st->job.settings.checkpointing_layers <= st->job.model->n_layer;
}

static void first_why(const smp_resolving *st, smp_text *text)
{
    smp_text_add(text, "%s has %u layers; legal here: none, selective:attention, selective:op, "
                 "full, first:1 to first:%u", st->job.model->name, st->job.model->n_layer,
                 st->job.model->n_layer);
}

static void offload_why(const smp_resolving *st, smp_text *text)
{
    const char *file = st->asked->origin[SMP_KEY_OFFLOAD].file;
    bool smp = file != NULL && strncmp(file, "--", 2) != 0; /* a file, not an option */
    char value[32];

    (void)smp_settings_get(&st->job.settings, "checkpointing", value, sizeof(value));
    smp_text_add(text, "moves the inputs of checkpointed layers: needs checkpointing full or "
                 "first:K%s, which is %s; legal here: false",
                 smp ? " (a setting here; SMP leaves it to the script)" : "", value);
}

static bool preloading_holds(const smp_resolving *st)
{
    const smp_settings *s = &st->job.settings;

    return !s->offload || smp_runtime_offloads(s);
}

static void preloading_why(const smp_resolving *st, smp_text *text)
{
    smp_text_add(text, "%s has no offloading that loads ahead; legal here: false, or "
                 "sm_activation_offloading false",
                 smp_runtime_of(st->job.settings.stack)->title);
}

static bool offload_layers_hold(const smp_resolving *st)
{
    const smp_settings *s = &st->job.settings;

    return !s->offload || !smp_offload_holds(st) ||
           s->offload_layers <= s->checkpointing_layers;
}

static void offload_layers_why(const smp_resolving *st, smp_text *text)
{
    smp_text_add(text, "only checkpointed layers are offloaded, of which there are %u; legal "
                 "here: 0 (all) to %u", st->job.settings.checkpointing_layers,
                 st->job.settings.checkpointing_layers);
}

static bool sequence_parallel_holds(const smp_resolving *st)
{
    return !st->job.settings.sequence_parallel ||
           st->job.batch.seq_len % st->job.settings.tensor_parallel_degree == 0;
}

static void sequence_parallel_why(const smp_resolving *st, smp_text *text)
{
    smp_text_add(text, "tensor_parallel_degree %u must divide seq_len %" PRIu64
                 "; legal here: false", st->job.settings.tensor_parallel_degree,
                 st->job.batch.seq_len);
}

static bool supported(const smp_resolving *st, smp_precision precision)
{
    return st->job.profile == NULL || smp_profile_supports(st->job.profile, precision);
}

static bool precision_holds(const smp_resolving *st)
{
    return supported(st, st->job.settings.precision);
}

static void precision_why(const smp_resolving *st, smp_text *text)
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

static bool master_holds(const smp_resolving *st)
{
    const smp_settings *s = &st->job.settings;

    return s->master == SMP_PRECISION_FP32 ||
           (s->master == SMP_PRECISION_BF16 && s->precision == SMP_PRECISION_BF16);
}

static void master_why(const smp_resolving *st, smp_text *text)
{
    smp_text_add(text, "must be fp32, or bf16 with precision bf16; legal here: %s",
                 st->job.settings.precision == SMP_PRECISION_BF16 ? "fp32, bf16" : "fp32");
}

static bool reduce_holds(const smp_resolving *st)
{
    const smp_settings *s = &st->job.settings;

    return s->reduce_dtype == SMP_PRECISION_FP32 || s->reduce_dtype == s->precision;
}

static void reduce_why(const smp_resolving *st, smp_text *text)
{
    char precision[8];

    (void)smp_settings_get(&st->job.settings, "precision", precision, sizeof(precision));
    smp_text_add(text, "must be fp32 or the precision, which is %s", precision);
}

static bool in_fp32_holds(const smp_resolving *st)
{
    const smp_settings *s = &st->job.settings;

    return !s->attention_in_fp32 || s->attention == SMP_ATTENTION_NAIVE;
}

static void in_fp32_why(const smp_resolving *st, smp_text *text)
{
    (void)st;
    smp_text_add(text, "fused attention has 16-bit inputs and sums in fp32: needs attention "
                 "naive; legal here: false");
}

/* bf16 has the range of fp32, and fused attention keeps its scores in fp32: neither
 * overflows. */
static bool layer_scaling_holds(const smp_resolving *st)
{
    const smp_settings *s = &st->job.settings;

    return !s->qk_layer_scaling ||
           (s->attention == SMP_ATTENTION_NAIVE && s->precision != SMP_PRECISION_BF16);
}

static void layer_scaling_why(const smp_resolving *st, smp_text *text)
{
    smp_text_add(text, "is for scores that overflow in fp16, which %s; legal here: false",
                 st->job.settings.precision == SMP_PRECISION_BF16
                     ? "those in bf16 do not" : "fused attention keeps in fp32");
}

/* Where norms stand behind the sum, the residual is what a norm makes in the precision. */
static bool residual_holds(const smp_resolving *st)
{
    const smp_model *model = st->job.model;

    for (uint32_t k = 0; k < model->n_kind && st->job.settings.fp32_residual; k++) {
        if (model->kinds[k].norm_place == SMP_NORM_AFTER_RESIDUAL) {
            return false;
        }
    }
    return true;
}

static void residual_why(const smp_resolving *st, smp_text *text)
{
    smp_text_add(text, "in %s the residual is the output of a norm; legal here: false",
                 st->job.model->name);
}

static bool pad_holds(const smp_resolving *st)
{
    return !st->job.settings.capacity_pad || st->job.settings.capacity_factor > 0;
}

static void pad_why(const smp_resolving *st, smp_text *text)
{
    (void)st;
    smp_text_add(text, "fills experts up to their capacity: needs capacity_factor above 0; "
                 "legal here: false");
}

/* Without experts on several ranks every rank has all rows, whatever the imbalance. */
static bool imbalance_holds(const smp_resolving *st)
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

static void imbalance_why(const smp_resolving *st, smp_text *text)
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

static bool statistics_hold(const smp_resolving *st)
{
    const smp_settings *s = &st->job.settings;

    return s->moe_statistics == SMP_MOE_LOCAL ||
           s->moe_load_balancing == SMP_BALANCING_AUX_LOSS;
}

static void statistics_why(const smp_resolving *st, smp_text *text)
{
    (void)st;
    smp_text_add(text, "only the balancing loss is counted over data ranks: needs "
                 "moe_load_balancing aux_loss; legal here: local");
}

static bool efficiency_holds(const smp_resolving *st)
{
    return st->job.settings.efficiency >= 0.01 && st->job.settings.efficiency <= 1;
}

static void efficiency_why(const smp_resolving *st, smp_text *text)
{
    (void)st;
    smp_text_add(text, "must be from 0.01 to 1, or 0 for that of the stack");
}

static void accumulation_why(const smp_resolving *st, smp_text *text)
{
    smp_text_add(text, "%s reduces whole gradients once a step; legal here: last",
                 smp_runtime_of(st->job.settings.stack)->title);
}

/* With sharding=full gradients of few units exist at once. */
static bool overlap_holds(const smp_resolving *st)
{
    const smp_settings *s = &st->job.settings;

    return s->overlap_reduce || s->sharding != SMP_SHARDING_FULL;
}

static void overlap_why(const smp_resolving *st, smp_text *text)
{
    (void)st;
    smp_text_add(text, "gradients that wait for the end of backward must be whole: needs "
                 "sharding optimizer or none; legal here: true");
}

/* With sharding=full the next forward gathers. */
static bool gathers_holds(const smp_resolving *st)
{
    const smp_settings *s = &st->job.settings;

    return s->overlap_gather || s->sharding != SMP_SHARDING_FULL;
}

static void gathers_why(const smp_resolving *st, smp_text *text)
{
    (void)st;
    smp_text_add(text, "parameters that are gathered when all are updated must be whole: "
                 "needs sharding optimizer or none; legal here: true");
}

const smp_rule smp_rules_step[] = {
    {SMP_KEY_SHARDING, false, sharding_holds, sharding_why},
    {SMP_KEY_RESHARD_AFTER_FORWARD, false, reshard_holds, reshard_why},
    {SMP_KEY_SEQ_LEN, false, seq_holds, seq_why},
    {SMP_KEY_GLOBAL_BATCH, false, global_batch_holds, global_batch_why},
    {SMP_KEY_MICRO_BATCH, true, micro_batch_holds, micro_batch_why},
    {SMP_KEY_MICRO_BATCH, true, visits_hold, visits_why},
    {SMP_KEY_LOSS_CHUNKS, true, loss_chunks_hold, loss_chunks_why},
    {SMP_KEY_CHECKPOINTING, false, first_holds, first_why},
    {SMP_KEY_OFFLOAD, false, smp_offload_holds, offload_why},
    {SMP_KEY_OFFLOAD_LAYERS, false, offload_layers_hold, offload_layers_why},
    {SMP_KEY_SEQUENCE_PARALLEL, false, sequence_parallel_holds, sequence_parallel_why},
    {SMP_KEY_PRECISION, false, precision_holds, precision_why},
    {SMP_KEY_MASTER, false, master_holds, master_why},
    {SMP_KEY_REDUCE_DTYPE, false, reduce_holds, reduce_why},
    {SMP_KEY_ATTENTION_IN_FP32, false, in_fp32_holds, in_fp32_why},
    {SMP_KEY_QK_LAYER_SCALING, false, layer_scaling_holds, layer_scaling_why},
    {SMP_KEY_FP32_RESIDUAL, false, residual_holds, residual_why},
    {SMP_KEY_CAPACITY_PAD, false, pad_holds, pad_why},
    {SMP_KEY_IMBALANCE, false, imbalance_holds, imbalance_why},
    {SMP_KEY_MOE_STATISTICS, false, statistics_hold, statistics_why},
    {SMP_KEY_EFFICIENCY, false, efficiency_holds, efficiency_why},
    {SMP_KEY_ACCUMULATION, false, smp_accumulation_holds, accumulation_why},
    {SMP_KEY_OFFLOAD, false, preloading_holds, preloading_why},
    {SMP_KEY_OVERLAP_REDUCE, false, overlap_holds, overlap_why},
    {SMP_KEY_OVERLAP_GATHER, false, gathers_holds, gathers_why},
    {.holds = NULL},
};
