/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cohere: layer norm without bias, attention and gated MLP beside each other behind one norm,
 * logits scaled by "logit_scale", tied.
 */
#include "model/family.h"

#define LAYER "model.layers.{}."

static const smp_key keys[] = {
    SMP_KEY(VOCAB, "vocab_size", 256000),
    SMP_KEY(HIDDEN, "hidden_size", 8192),
    SMP_KEY(FFN, "intermediate_size", 22528),
    SMP_KEY(LAYERS, "num_hidden_layers", 40),
    SMP_KEY(HEADS, "num_attention_heads", 64),
    SMP_KEY_OPEN(KV_HEADS, "num_key_value_heads", SMP_OPEN),
    SMP_KEY_WORD(ACTIVATION, "hidden_act", "silu"),
    SMP_KEY(POSITIONS, "max_position_embeddings", 8192),
    SMP_KEY(INIT, "initializer_range", 0.02),
    SMP_KEY(NORM_EPS, "layer_norm_eps", 1e-5),
    SMP_KEY(TIED, "tie_word_embeddings", 1),
    SMP_KEY(ROPE_THETA, "rope_theta", 10000),
    SMP_KEY(ATTENTION_DROPOUT, "attention_dropout", 0),
    SMP_KEY(LOGIT_SCALE, "logit_scale", 0.0625),
    SMP_KEY(QKV_BIAS, "attention_bias", 0),
    SMP_KEY(QK_NORM_OWN, "use_qk_norm", 0),
    SMP_FIXED(PARALLEL, 1),
    SMP_FIXED(SINGLE_NORM, 1),
    SMP_END_KEYS,
};

static const smp_row block[] = {
    SMP_V(NORM1_W, LAYER "input_layernorm.weight", HIDDEN, NONE),
    SMP_W(Q_W, LAYER "self_attn.q_proj.weight", Q, HIDDEN, OUT),
    SMP_W(K_W, LAYER "self_attn.k_proj.weight", KV, HIDDEN, KV),
    SMP_W(V_W, LAYER "self_attn.v_proj.weight", KV, HIDDEN, KV),
    SMP_V_IF(QKV_BIAS, Q_B, LAYER "self_attn.q_proj.bias", Q, OUT),
    SMP_V_IF(QKV_BIAS, K_B, LAYER "self_attn.k_proj.bias", KV, KV),
    SMP_V_IF(QKV_BIAS, V_B, LAYER "self_attn.v_proj.bias", KV, KV),
    SMP_V_IF(QK_NORM_OWN, Q_NORM_W, LAYER "self_attn.q_norm.weight", Q, OUT),
    SMP_V_IF(QK_NORM_OWN, K_NORM_W, LAYER "self_attn.k_norm.weight", KV, KV),
    SMP_W(O_W, LAYER "self_attn.o_proj.weight", HIDDEN, Q, IN),
    SMP_V_IF(OUT_BIAS, O_B, LAYER "self_attn.o_proj.bias", HIDDEN, NONE),
    SMP_ROWS_MLP(LAYER),
    SMP_END_ROWS,
};

const smp_family smp_family_cohere = {
    .model_type = "cohere",
    .norm = SMP_NORM_LAYER,
    .gated = true,
    .position = SMP_POSITION_ROPE,
    .rope_interleaved = true,
    .keys = keys,
    .block = block,
    .root = smp_llama_root,
};
