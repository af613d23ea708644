/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of settings: every key once, with its field, kind, legal values and documentation.
 *
 * The enum of keys, the table of smp_settings_table, parser, printer and defaults are made
 * from this list.  A new setting is a field of smp_settings, a line here and, where it depends
 * on other settings, a rule in rules_step.c (rules_degrees.c for degrees).
 */
#ifndef SMP_MESH_SETTINGS_H
#define SMP_MESH_SETTINGS_H

#include "base/text.h"
#include "smp.h"

/* How the text of a setting is read and printed. */
typedef enum smp_setting_kind {
    SMP_SETTING_INTEGER, /* uint32_t, at least the number in the column `low` */
    SMP_SETTING_BOOLEAN,
    SMP_SETTING_WORD,    /* an enum; its names in the order of its values in `words` */
    SMP_SETTING_NUMBER,  /* double, at least the number in the column `low` */
    SMP_SETTING_IMBALANCE, /* a number, or a distribution of numbers of 1 or more */
    SMP_SETTING_RATE,    /* double, from 0 to less than 1, or "model": negative */
    SMP_SETTING_CHECKPOINTING,
    SMP_SETTING_RANK_ORDER
} smp_setting_kind;

/* X(KEY, field and key, kind, low, words, range for people, default, v2, searched, meaning) */
#define SMP_SETTING_LIST(X)                                                                   \
    X(HYBRID_SHARD_DEGREE, hybrid_shard_degree, INTEGER, 0, NULL,                             \
      "0, or a divisor of GPUs / (tensor_parallel_degree x expert_parallel_degree)", "0",     \
      true, true,                                                                             \
      "ranks that share one copy of the training state, context parallelism included; 0: "    \
      "as many as possible, or what sharding_strategy says")                                  \
    X(SM_ACTIVATION_OFFLOADING, sm_activation_offloading, BOOLEAN, 0, NULL,                   \
      "true or false", "true", true, false,                                                   \
      "scheme of offloading where offload is true: true loads ahead by the horizon, false "   \
      "stores and loads on the compute stream")                                               \
    X(ACTIVATION_LOADING_HORIZON, activation_loading_horizon, INTEGER, 1, NULL,               \
      "1 or more", "2", true, true,                                                           \
      "inputs of checkpointed layers that may be on the device at once when offloading")      \
    X(FSDP_CACHE_FLUSH_WARNINGS, fsdp_cache_flush_warnings, BOOLEAN, 0, NULL,                 \
      "true or false", "true", true, false,                                                   \
      "warn when PyTorch's allocator flushes its cache; native programs have none")           \
    X(ALLOW_EMPTY_SHARDS, allow_empty_shards, BOOLEAN, 0, NULL, "true or false", "false",     \
      true, false,                                                                            \
      "permit ranks that hold no element of a unit because it is too small to share")         \
    X(TENSOR_PARALLEL_DEGREE, tensor_parallel_degree, INTEGER, 1, NULL,                       \
      "a divisor of the GPUs and of the attention heads", "1", true, true,                    \
      "ranks that split each matrix of a layer")                                              \
    X(CONTEXT_PARALLEL_DEGREE, context_parallel_degree, INTEGER, 1, NULL,                     \
      "1; more is checked and refused: not lowered yet", "1", true, false,                    \
      "ranks that split each sequence; a part of hybrid_shard_degree")                        \
    X(EXPERT_PARALLEL_DEGREE, expert_parallel_degree, INTEGER, 1, NULL,                       \
      "a divisor of the GPUs and of the experts; 1 for a model without experts", "1", true,   \
      true, "ranks that split the experts of a layer")                                        \
    X(RANDOM_SEED, random_seed, INTEGER, 0, NULL, "0 or more", "12345", true, false,          \
      "seed of all random numbers")                                                           \
    X(SEED_RULE, seed_rule, WORD, 0, seed_words, "global or smp", "global", false, false,     \
      "noise of dropout in what tensor parallelism splits: global, the same in every "        \
      "layout; smp, random_seed + tensor rank is its seed")                                   \
    X(MICRO_BATCH, micro_batch, INTEGER, 1, NULL,                                             \
      "a divisor of global batch / data ranks", "1", false, true,                             \
      "sequences of one data rank in one forward and backward")                               \
    X(SHARDING_STRATEGY, sharding_strategy, WORD, 0, strategy_words,                          \
      "unset, FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD, _HYBRID_SHARD_ZERO2 or NO_SHARD",      \
      "unset", false, false,                                                                  \
      "PyTorch's name for a value of sharding and reshard_after_forward; decides what "       \
      "hybrid_shard_degree 0 means")                                                          \
    X(SHARDING, sharding, WORD, 0, sharding_words, "full, optimizer or none", "full", false,  \
      false,                                                                                  \
      "what hybrid_shard_degree ranks share: parameters, gradients and optimizer state; "     \
      "optimizer state only; nothing")                                                        \
    X(RESHARD_AFTER_FORWARD, reshard_after_forward, BOOLEAN, 0, NULL, "true or false",        \
      "true", false, true,                                                                    \
      "free gathered parameters after forward and gather them again for backward")            \
    X(CHECKPOINTING, checkpointing, CHECKPOINTING, 0, NULL,                                   \
      "none, selective, selective:attention, selective:op, full or first:K", "none", false,   \
      true,                                                                                   \
      "activations to drop in forward and compute again in backward; first:K is full for "    \
      "the first K layers")                                                                   \
    X(OFFLOAD, offload, BOOLEAN, 0, NULL, "true or false", "false", false, true,              \
      "keep the inputs of fully checkpointed layers in host memory")                          \
    X(OFFLOAD_LAYERS, offload_layers, INTEGER, 0, NULL,                                       \
      "0, or up to the number of checkpointed layers", "0", false, true,                      \
      "offload only the first so many of the checkpointed layers; 0: all of them")            \
    X(ACCUMULATION, accumulation, WORD, 0, accumulation_words, "every or last", "every",      \
      false, true,                                                                            \
      "reduce gradients in every micro-batch, or only in the last")                           \
    X(SEQUENCE_PARALLEL, sequence_parallel, BOOLEAN, 0, NULL, "true or false", "true", false, \
      true,                                                                                   \
      "with tensor_parallel_degree above 1, split norms and residuals over the sequence")     \
    X(PRECISION, precision, WORD, 0, precision_words, "bf16, fp16 or fp32", "bf16", false,    \
      false, "type of parameters and activations in computation")                             \
    X(MASTER, master, WORD, 0, precision_words, "fp32, or bf16 with precision bf16", "fp32",  \
      false, false, "type of the parameters that the optimizer updates, and of its state")    \
    X(REDUCE_DTYPE, reduce_dtype, WORD, 0, precision_words, "fp32, or the value of precision",\
      "fp32", false, false, "type of gradients in their reduction over ranks")                \
    X(ATTENTION, attention, WORD, 0, attention_words, "flash or naive", "flash", false,       \
      false, "fused attention, or one that stores its score matrices")                        \
    X(ATTENTION_DROPOUT, attention_dropout, RATE, 0, NULL,                                    \
      "model, or 0 to less than 1", "model", false, false,                                    \
      "share of the probabilities of attention that training drops; model: what its "         \
      "config.json says")                                                                     \
    X(ATTENTION_IN_FP32, attention_in_fp32, BOOLEAN, 0, NULL,                                 \
      "true or false; true needs attention naive", "false", false, false,                     \
      "with 16-bit precision: scores, probabilities and their products with q, k and v in "   \
      "fp32")                                                                                 \
    X(QK_LAYER_SCALING, qk_layer_scaling, BOOLEAN, 0, NULL,                                   \
      "true or false; true needs attention naive and precision fp16 or fp32", "false",        \
      false, false,                                                                           \
      "divide the scores of layer i, from 1, by i where they are stored, and multiply them "  \
      "again in their softmax: fp16 overflows later")                                         \
    X(FP32_RESIDUAL, fp32_residual, BOOLEAN, 0, NULL, "true or false", "false", false, false, \
      "with 16-bit precision: keep the residual and its gradient in fp32")                    \
    X(DISTRIBUTE_EMBEDDING, distribute_embedding, WORD, 0, distribute_words,                  \
      "auto, on or off", "auto", false, false,                                                \
      "with tensor_parallel_degree above 1: split the vocabulary of embedding and head over " \
      "tensor ranks; off: each has all of it; auto: on")                                      \
    X(OPTIMIZER, optimizer, WORD, 0, optimizer_words, "adamw, adam or sgd", "adamw",      \
      false, false,                                                                           \
      "update rule; adam adds weight decay to the gradient, sgd has momentum")                \
    X(LOSS_CHUNKS, loss_chunks, INTEGER, 1, NULL,                                             \
      "a divisor of the tokens of a micro-batch", "1", false, true,                           \
      "parts in which logits and loss are computed, one after the other")                     \
    X(PREFETCH, prefetch, WORD, 0, prefetch_words, "backward_pre, backward_post or none",     \
      "backward_pre", false, true,                                                            \
      "when backward gathers the next unit: before or after the gradients of this one")       \
    X(FORWARD_PREFETCH, forward_prefetch, BOOLEAN, 0, NULL, "true or false", "true", false,   \
      true, "gather the next unit before the forward of this one")                            \
    X(LIMIT_ALL_GATHERS, limit_all_gathers, BOOLEAN, 0, NULL, "true or false", "true", false, \
      false,                                                                                  \
      "hold the host back when two gathers are in flight; native programs always do this by " \
      "the size of their ring")                                                               \
    X(DELAYED_INIT, delayed_init, BOOLEAN, 0, NULL, "true or false", "true", false, false,    \
      "make only the rank's own shard at the start; false: every rank makes the whole model " \
      "in fp32 in host memory first")                                                         \
    X(RANK_ORDER, rank_order, RANK_ORDER, 0, NULL,                                            \
      "the five axes from the fastest, or cluster, spread, or the letters D, P, T from the "  \
      "slowest", "tensor,context,shard,expert,replica", false, false,                         \
      "order of the axes over consecutive ranks; where it is not set, expert ranks of "       \
      "expert_layout nested stand before shard, beside each other")                           \
    X(EXPERT_LAYOUT, expert_layout, WORD, 0, layout_words, "orthogonal or nested",            \
      "orthogonal", false, true,                                                              \
      "the ranks that split experts are an axis of their own, or a part of "                  \
      "hybrid_shard_degree")                                                                  \
    X(SMP_MOE, smp_moe, BOOLEAN, 0, NULL, "true or false", "true", false, false,              \
      "use this implementation of experts; false: the model's own layer, without expert "     \
      "parallelism, balancing and capacity")                                                  \
    X(MOE_LOAD_BALANCING, moe_load_balancing, WORD, 0, balancing_words,                       \
      "sinkhorn, aux_loss, balanced or none", "sinkhorn", false, false,                       \
      "how the router spreads tokens over experts; balanced: evenly, in turn")                \
    X(GLOBAL_TOKEN_SHUFFLE, global_token_shuffle, BOOLEAN, 0, NULL, "true or false", "false", \
      false, false, "exchange tokens over the expert group before routing and back after")    \
    X(MOE_ALL_TO_ALL_DISPATCHER, moe_all_to_all_dispatcher, BOOLEAN, 0, NULL,                 \
      "true or false", "true", false, true,                                                   \
      "send rows to their experts by all-to-all; false: all-gather tokens, reduce-scatter "   \
      "sums")                                                                                 \
    X(MOE_DISPATCH_KERNELS, moe_dispatch_kernels, WORD, 0, kernels_words, "nccl or deepep",   \
      "nccl", false, false,                                                                   \
      "what sends rows in the all-to-all: NCCL, each row for itself; or fused kernels, each " \
      "token once to each rank and node that it goes to")                                     \
    X(MOE_AUX_LOSS_COEFF, moe_aux_loss_coeff, NUMBER, 0, NULL, "0 or more", "0.001", false,   \
      false, "weight of the balancing loss with moe_load_balancing aux_loss")                 \
    X(MOE_Z_LOSS_COEFF, moe_z_loss_coeff, NUMBER, 0, NULL, "0 or more", "0.001", false,       \
      false, "weight of the loss on large router logits")                                     \
    X(CAPACITY_FACTOR, capacity_factor, NUMBER, 0, NULL, "0 or more", "0", false, false,      \
      "rows that an expert takes of a micro-batch over their mean, more are dropped; 0: "     \
      "none is dropped")                                                                      \
    X(CAPACITY_POLICY, capacity_policy, WORD, 0, policy_words, "probs or position", "probs",  \
      false, false, "rows dropped beyond the capacity: those of least weight, or the last")   \
    X(CAPACITY_PAD, capacity_pad, BOOLEAN, 0, NULL, "true or false; true needs "              \
      "capacity_factor", "false", false, false,                                               \
      "fill each expert up to its capacity with empty rows")                                  \
    X(MOE_ROWS_FACTOR, moe_rows_factor, NUMBER, 1, NULL, "1 or more", "2", false, false,      \
      "without capacity_factor: rows that an expert rank has room for over their mean; a "    \
      "step in which more arrive changes nothing")                                            \
    X(IMBALANCE, imbalance, IMBALANCE, 1, NULL,                                               \
      "1 or more, normal:MEAN,DEVIATION or lognormal:MEAN,DEVIATION", "1", false, false,      \
      "rows of the busiest expert rank over their mean, that times are computed with")        \
    X(MOE_STATISTICS, moe_statistics, WORD, 0, statistics_words, "local or data", "local",    \
      false, false,                                                                           \
      "tokens that the balancing loss counts: those of the micro-batch on one rank, or of "   \
      "all data ranks")                                                                       \
    X(STACK, stack, WORD, 0, stack_words, "native, fsdp1, fsdp2, megatron or deepspeed",      \
      "native", false, false,                                                                 \
      "software that runs the step, modelled: what it keeps in memory, fuses, and shares; "   \
      "only native can be executed here")                                                     \
    X(COMPILE, compile, BOOLEAN, 0, NULL, "true or false", "false", false, false,             \
      "stacks on PyTorch: a compiler fuses element-wise kernels (torch.compile)")             \
    X(ATTENTION_KERNEL, attention_kernel, WORD, 0, kernel_words,                              \
      "stack, best, flash2 or triton", "stack", false, false,                                 \
      "generation of fused attention that times are of: the stack's, the fastest known for "  \
      "the GPU, FlashAttention-2, or FlashAttention in Triton of 2022")                       \
    X(LOSS_KERNEL, loss_kernel, WORD, 0, loss_words,                                          \
      "stack, fused, compiled, copy or eager", "stack", false, false,                         \
      "what the loss keeps beside the logits: the stack's way; nothing; their gradient; a "   \
      "copy in fp32; what PyTorch's cross entropy keeps without a compiler")                  \
    X(OVERLAP_REDUCE, overlap_reduce, BOOLEAN, 0, NULL, "true or false", "true", false,       \
      false, "reduce gradients while backward runs; false: when it has ended")                \
    X(OVERLAP_GATHER, overlap_gather, BOOLEAN, 0, NULL, "true or false", "true", false,       \
      false, "sharding optimizer: gather updated parameters while others are updated; "       \
      "false: when all are")                                                                  \
    X(EFFICIENCY, efficiency, NUMBER, 0, NULL, "0, or 0.01 to 1", "0", false, false,     \
      "share of their rates alone that kernels and collectives reach inside a step; 0: the "  \
      "stack's figure, which is 1 for native")

#define SMP_KEY_ENUM_(KEY, field, kind, low, words, range, initial, v2, searched, meaning)    \
    SMP_KEY_##KEY,
typedef enum smp_key { SMP_SETTING_LIST(SMP_KEY_ENUM_) SMP_KEYS } smp_key;
#undef SMP_KEY_ENUM_

static inline bool smp_key_given(const smp_settings *settings, smp_key key)
{
    return (settings->given >> key & 1U) != 0;
}

/* Layers, from the first on, whose inputs are offloaded; of settings that are resolved. */
static inline uint32_t smp_offloaded_layers(const smp_settings *settings)
{
    uint32_t layers = settings->checkpointing_layers, asked = settings->offload_layers;

    if (!settings->offload) {
        return 0;
    }
    return asked > 0 && asked < layers ? asked : layers;
}

smp_setting_kind smp_key_kind(smp_key key);
/* Back to its default, not given. */
void smp_settings_unset(smp_settings *settings, smp_key key);
/* The settings object of every JSON output: those set, numbers and booleans as such. */
void smp_out_settings(smp_json_out *out, const char *key, const smp_settings *settings);
/* Keys of the table, NULL-terminated, for smp_nearest_word. */
const char *const *smp_setting_keys(void);

#endif
