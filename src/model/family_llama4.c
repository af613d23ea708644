/* SPDX-License-Identifier: Apache-2.0 */
/*
 * llama4 (text): experts in every "interleave_moe_layer_step"-th layer beside one
 * shared expert, chunked attention with rope in three layers of four and full attention
 * without it in the fourth, where q is scaled by its position; norms of q and k come after
 * rope and have no weights.  The weight of an expert, the sigmoid of its logit, multiplies
 * what the expert reads.  "intermediate_size" is an expert's, "intermediate_size_mlp" that of
 * a dense layer.
 */
#include "model/family.h"

#define LAYER "model.layers.{}."

static const smp_key keys[] = {
    SMP_KEY(VOCAB, "vocab_size", 202048),
    SMP_KEY(HIDDEN, "hidden_size", 5120),
    SMP_KEY(FFN, "intermediate_size_mlp", 16384),
    SMP_KEY(LAYERS, "num_hidden_layers", 48),
    SMP_KEY(HEADS, "num_attention_heads", 40),
    SMP_KEY_OPEN(KV_HEADS, "num_key_value_heads", 8),
    SMP_KEY_OPEN(HEAD_DIM, "head_dim", 128),
    SMP_KEY_WORD(ACTIVATION, "hidden_act", "silu"),
    SMP_KEY(POSITIONS, "max_position_embeddings", 131072),
    SMP_KEY(INIT, "initializer_range", 0.02),
    SMP_KEY(NORM_EPS, "rms_norm_eps", 1e-5),
    SMP_KEY(TIED, "tie_word_embeddings", 0),
    SMP_KEY(ROPE_THETA, "rope_theta", 500000),
    SMP_KEY(ATTENTION_DROPOUT, "attention_dropout", 0),
    SMP_KEY(QKV_BIAS, "attention_bias", 0),
    SMP_KEY(MOE_FFN, "intermediate_size", 8192),
    SMP_KEY(SHARED_FFN, "intermediate_size", 8192),
    SMP_KEY(TOP_K, "num_experts_per_tok", 1),
    SMP_KEY(EXPERTS, "num_local_experts", 16),
    SMP_KEY(QK_NORM_BARE, "use_qk_norm", 1),
    SMP_KEY(TEMPERED, "attn_temperature_tuning", 1),
    SMP_KEY(TEMPERATURE, "attn_scale", 0.1),
    SMP_KEY(TEMPERATURE_FLOOR, "floor_scale", 8192),
    SMP_KEY_OPEN(LAYER_TYPES, "layer_types", SMP_OPEN),
    SMP_KEY(SPARSE_STEP, "interleave_moe_layer_step", 1),
    SMP_KEY_OPEN(MOE_LAYERS, "moe_layers", SMP_OPEN),
    SMP_KEY_OPEN(ROPE_LAYERS, "no_rope_layers", SMP_OPEN), /* 1: has rope */
    SMP_KEY(NO_ROPE_EVERY, "no_rope_layer_interval", 4),
    SMP_KEY(WINDOW_PATTERN, "no_rope_layer_interval", 4),
    SMP_KEY_OPEN(WINDOW, "attention_chunk_size", 8192),
    {.fact = SMP_FACT_SCORING, .word = "sigmoid"},
    SMP_END_KEYS,
};

static const smp_row block[] = {
    SMP_V(NORM1_W, LAYER "input_layernorm.weight", HIDDEN, NONE),
    SMP_ROWS_ATTENTION(LAYER),
    SMP_V(NORM2_W, LAYER "post_attention_layernorm.weight", HIDDEN, NONE),
    SMP_W_IF(IS_DENSE, GATE_W, LAYER "feed_forward.gate_proj.weight", FFN, HIDDEN, OUT),
    SMP_W_IF(IS_DENSE, UP_W, LAYER "feed_forward.up_proj.weight", FFN, HIDDEN, OUT),
    SMP_W_IF(IS_DENSE, DOWN_W, LAYER "feed_forward.down_proj.weight", HIDDEN, FFN, IN),
    SMP_W_IF(IS_MOE, ROUTER_W, LAYER "feed_forward.router.weight", EXPERTS, HIDDEN, NONE),
    SMP_EXPERT_W(EXPERT_GATE_W, LAYER "feed_forward.experts.gate_up_proj", MOE_FFN, HIDDEN,
                 EXPERT_OUT),
    SMP_EXPERT_W(EXPERT_UP_W, LAYER "feed_forward.experts.gate_up_proj", MOE_FFN, HIDDEN,
                 EXPERT_OUT),
    SMP_EXPERT_W(EXPERT_DOWN_W, LAYER "feed_forward.experts.down_proj", HIDDEN, MOE_FFN,
                 EXPERT_IN),
    SMP_ROWS_SHARED(LAYER, "feed_forward.shared_expert"),
    SMP_END_ROWS,
};

const smp_family smp_family_llama4 = {
    .model_type = "llama4_text",
    .norm = SMP_NORM_RMS,
    .gated = true,
    .position = SMP_POSITION_ROPE,
    .windows = SMP_WINDOWS_PATTERN,
    .chunked_window = true,
    .weighs_input = true,
    .rope_interleaved = true,
    .keys = keys,
    .block = block,
    .root = smp_llama_root,
};
