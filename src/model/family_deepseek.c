/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deepseek: routed and shared experts behind leading dense layers.  deepseek (moe-16b) has
 * plain attention; v2 latent attention [DeepSeek-V2, 2024, sec. 2.1]; v3 and kimi_k2 also
 * sigmoid
 * scores and a bias for the choice of experts, a parameter without gradient that counts.
 * Layers that predict further tokens (num_nextn_predict_layers) are not part of the model.
 * An absent q_lora_rank of v2 is none, as in published files from which nulls were dropped
 * (V2-Lite); the library would take 1536, which the files that have it say themselves.
 * The defaults of deepseek and kimi_k2 are those of the configuration_deepseek.py that they
 * are published with.
 */
#include "model/family.h"

#define LAYER "model.layers.{}."

static const smp_key keys[] = {
    SMP_KEY(VOCAB, "vocab_size", 102400),
    SMP_KEY(HIDDEN, "hidden_size", 4096),
    SMP_KEY(FFN, "intermediate_size", 11008),
    SMP_KEY(LAYERS, "num_hidden_layers", 30),
    SMP_KEY(HEADS, "num_attention_heads", 32),
    SMP_KEY_OPEN(KV_HEADS, "num_key_value_heads", SMP_OPEN),
    SMP_KEY_WORD(ACTIVATION, "hidden_act", "silu"),
    SMP_KEY(POSITIONS, "max_position_embeddings", 2048),
    SMP_KEY(INIT, "initializer_range", 0.02),
    SMP_KEY(NORM_EPS, "rms_norm_eps", 1e-6),
    SMP_KEY(TIED, "tie_word_embeddings", 0),
    SMP_KEY(ROPE_THETA, "rope_theta", 10000),
    SMP_KEY(ATTENTION_DROPOUT, "attention_dropout", 0),
    SMP_KEY(QKV_BIAS, "attention_bias", 0),
    SMP_KEY(MOE_FFN, "moe_intermediate_size", 1407),
    SMP_KEY_OPEN(EXPERTS, "n_routed_experts", SMP_OPEN),
    SMP_KEY_OPEN(TOP_K, "num_experts_per_tok", SMP_OPEN),
    SMP_KEY_OPEN(SHARED_EXPERTS, "n_shared_experts", SMP_OPEN),
    SMP_KEY(FIRST_DENSE, "first_k_dense_replace", 0),
    SMP_KEY(MOE_EVERY, "moe_layer_freq", 1),
    SMP_KEY(NORM_TOPK, "norm_topk_prob", 0),
    SMP_KEY_WORD(SCORING, "scoring_func", "softmax"),
    SMP_KEY(ROUTED_SCALE, "routed_scaling_factor", 1),
    SMP_KEY_OPEN(GROUPS, "n_group", SMP_OPEN),
    SMP_KEY_OPEN(TOPK_GROUPS, "topk_group", SMP_OPEN),
    SMP_END_KEYS,
};

static const smp_key v2_keys[] = {
    SMP_KEY(VOCAB, "vocab_size", 32000),
    SMP_KEY(HIDDEN, "hidden_size", 4096),
    SMP_KEY(FFN, "intermediate_size", 11008),
    SMP_KEY(LAYERS, "num_hidden_layers", 32),
    SMP_KEY(HEADS, "num_attention_heads", 32),
    SMP_KEY_OPEN(KV_HEADS, "num_key_value_heads", SMP_OPEN),
    SMP_KEY_WORD(ACTIVATION, "hidden_act", "silu"),
    SMP_KEY(POSITIONS, "max_position_embeddings", 2048),
    SMP_KEY(INIT, "initializer_range", 0.02),
    SMP_KEY(NORM_EPS, "rms_norm_eps", 1e-6),
    SMP_KEY(TIED, "tie_word_embeddings", 0),
    SMP_KEY(ROPE_THETA, "rope_theta", 10000),
    SMP_KEY(ATTENTION_DROPOUT, "attention_dropout", 0),
    SMP_KEY(QKV_BIAS, "attention_bias", 0),
    SMP_KEY(MOE_FFN, "moe_intermediate_size", 1407),
    SMP_KEY_OPEN(EXPERTS, "n_routed_experts", 64),
    SMP_KEY_OPEN(TOP_K, "num_experts_per_tok", SMP_OPEN),
    SMP_KEY_OPEN(SHARED_EXPERTS, "n_shared_experts", 2),
    SMP_KEY(FIRST_DENSE, "first_k_dense_replace", 0),
    SMP_KEY(MOE_EVERY, "moe_layer_freq", 1),
    SMP_KEY(NORM_TOPK, "norm_topk_prob", 0),
    SMP_KEY_WORD(SCORING, "scoring_func", "softmax"),
    SMP_KEY(ROUTED_SCALE, "routed_scaling_factor", 1),
    SMP_KEY_OPEN(GROUPS, "n_group", SMP_OPEN),
    SMP_KEY_OPEN(TOPK_GROUPS, "topk_group", SMP_OPEN),
    SMP_KEY_OPEN(Q_LORA, "q_lora_rank", SMP_OPEN),
    SMP_KEY(KV_LORA, "kv_lora_rank", 512),
    SMP_KEY(QK_NOPE, "qk_nope_head_dim", 128),
    SMP_KEY(QK_ROPE, "qk_rope_head_dim", 64),
    SMP_KEY(V_DIM, "v_head_dim", 128),
    SMP_KEY(MLP_BIAS, "mlp_bias", 0),
    SMP_END_KEYS,
};

static const smp_key v3_keys[] = {
    SMP_KEY(VOCAB, "vocab_size", 129280),
    SMP_KEY(HIDDEN, "hidden_size", 7168),
    SMP_KEY(FFN, "intermediate_size", 18432),
    SMP_KEY(LAYERS, "num_hidden_layers", 61),
    SMP_KEY(HEADS, "num_attention_heads", 128),
    SMP_KEY_OPEN(KV_HEADS, "num_key_value_heads", SMP_OPEN),
    SMP_KEY_WORD(ACTIVATION, "hidden_act", "silu"),
    SMP_KEY(POSITIONS, "max_position_embeddings", 4096),
    SMP_KEY(INIT, "initializer_range", 0.02),
    SMP_KEY(NORM_EPS, "rms_norm_eps", 1e-6),
    SMP_KEY(TIED, "tie_word_embeddings", 0),
    SMP_KEY(ROPE_THETA, "rope_theta", 10000),
    SMP_KEY(ATTENTION_DROPOUT, "attention_dropout", 0),
    SMP_KEY(QKV_BIAS, "attention_bias", 0),
    SMP_KEY(MOE_FFN, "moe_intermediate_size", 2048),
    SMP_KEY_OPEN(EXPERTS, "n_routed_experts", 256),
    SMP_KEY_OPEN(TOP_K, "num_experts_per_tok", 8),
    SMP_KEY_OPEN(SHARED_EXPERTS, "n_shared_experts", 1),
    SMP_KEY(FIRST_DENSE, "first_k_dense_replace", 3),
    SMP_KEY(MOE_EVERY, "moe_layer_freq", 1),
    SMP_KEY(NORM_TOPK, "norm_topk_prob", 1),
    SMP_KEY_WORD(SCORING, "scoring_func", "sigmoid"),
    SMP_KEY(ROUTED_SCALE, "routed_scaling_factor", 2.5),
    SMP_KEY_OPEN(GROUPS, "n_group", 8),
    SMP_KEY_OPEN(TOPK_GROUPS, "topk_group", 4),
    SMP_KEY_OPEN(Q_LORA, "q_lora_rank", 1536),
    SMP_KEY(KV_LORA, "kv_lora_rank", 512),
    SMP_KEY(QK_NOPE, "qk_nope_head_dim", 128),
    SMP_KEY(QK_ROPE, "qk_rope_head_dim", 64),
    SMP_KEY(V_DIM, "v_head_dim", 128),
    SMP_FIXED(CORRECTION_BIAS, 1),
    SMP_END_KEYS,
};

static const smp_row block[] = {
    SMP_V(NORM1_W, LAYER "input_layernorm.weight", HIDDEN, NONE),
    SMP_ROWS_ATTENTION(LAYER),
    SMP_V(NORM2_W, LAYER "post_attention_layernorm.weight", HIDDEN, NONE),
    SMP_ROWS_MLP(LAYER),
    SMP_ROWS_EXPERTS(LAYER),
    SMP_ROWS_SHARED(LAYER, "mlp.shared_experts"),
    SMP_END_ROWS,
};

static const smp_row latent_block[] = {
    SMP_V(NORM1_W, LAYER "input_layernorm.weight", HIDDEN, NONE),
    {.role = SMP_ROLE_Q_W, .name = LAYER "self_attn.q_proj.weight", .out = SMP_DIM_Q,
     .in = SMP_DIM_HIDDEN, .split = SMP_SPLIT_OUT, .unless = SMP_FACT_Q_LORA},
    SMP_W_IF(Q_LORA, Q_DOWN_W, LAYER "self_attn.q_a_proj.weight", Q_LORA, HIDDEN, NONE),
    SMP_V_IF(Q_DOWN_BIAS, Q_DOWN_B, LAYER "self_attn.q_a_proj.bias", Q_LORA, NONE),
    SMP_V_IF(Q_LORA, Q_DOWN_NORM_W, LAYER "self_attn.q_a_layernorm.weight", Q_LORA, NONE),
    SMP_W_IF(Q_LORA, Q_UP_W, LAYER "self_attn.q_b_proj.weight", Q, Q_LORA, OUT),
    SMP_W(KV_DOWN_W, LAYER "self_attn.kv_a_proj_with_mqa.weight", KV_DOWN, HIDDEN, NONE),
    SMP_V_IF(QKV_BIAS, KV_DOWN_B, LAYER "self_attn.kv_a_proj_with_mqa.bias", KV_DOWN, NONE),
    SMP_V(KV_DOWN_NORM_W, LAYER "self_attn.kv_a_layernorm.weight", KV_LORA, NONE),
    SMP_W(KV_UP_W, LAYER "self_attn.kv_b_proj.weight", KV_UP, KV_LORA, OUT),
    SMP_W(O_W, LAYER "self_attn.o_proj.weight", HIDDEN, V, IN),
    SMP_V_IF(OUT_BIAS, O_B, LAYER "self_attn.o_proj.bias", HIDDEN, NONE),
    SMP_V(NORM2_W, LAYER "post_attention_layernorm.weight", HIDDEN, NONE),
    SMP_ROWS_MLP(LAYER),
    SMP_ROWS_EXPERTS(LAYER),
    SMP_ROWS_SHARED(LAYER, "mlp.shared_experts"),
    SMP_END_ROWS,
};

const smp_family smp_family_deepseek = {
    .model_type = "deepseek",
    .norm = SMP_NORM_RMS,
    .keys = keys,
    .block = block,
    .gated = true,
    .position = SMP_POSITION_ROPE,
    .root = smp_llama_root,
};

const smp_family smp_family_deepseek_v2 = {
    .model_type = "deepseek_v2",
    .norm = SMP_NORM_RMS,
    .keys = v2_keys,
    .block = latent_block,
    .gated = true,
    .position = SMP_POSITION_ROPE,
    .rope_interleaved = true,
    .root = smp_llama_root,
};

const smp_family smp_family_deepseek_v3 = {
    .model_type = "deepseek_v3",
    .norm = SMP_NORM_RMS,
    .keys = v3_keys,
    .block = latent_block,
    .gated = true,
    .position = SMP_POSITION_ROPE,
    .rope_interleaved = true,
    .root = smp_llama_root,
};

const smp_family smp_family_kimi_k2 = {
    .model_type = "kimi_k2",
    .norm = SMP_NORM_RMS,
    .keys = v3_keys,
    .block = latent_block,
    .gated = true,
    .position = SMP_POSITION_ROPE,
    .rope_interleaved = true,
    .root = smp_llama_root,
};
