/* SPDX-License-Identifier: Apache-2.0 */
/*
 * olmo2: llama with its norms behind attention and MLP, before the residual, and norms over
 * all heads of q and of k together.
 */
#include "model/family.h"

#define LAYER "model.layers.{}."

static const smp_key keys[] = {
    SMP_KEY(VOCAB, "vocab_size", 50304),
    SMP_KEY(HIDDEN, "hidden_size", 4096),
    SMP_KEY(FFN, "intermediate_size", 11008),
    SMP_KEY(LAYERS, "num_hidden_layers", 32),
    SMP_KEY(HEADS, "num_attention_heads", 32),
    SMP_KEY_OPEN(KV_HEADS, "num_key_value_heads", SMP_OPEN),
    SMP_KEY_WORD(ACTIVATION, "hidden_act", "silu"),
    SMP_KEY(POSITIONS, "max_position_embeddings", 2048),
    SMP_KEY(INIT, "initializer_range", 0.02),
    SMP_KEY(NORM_EPS, "rms_norm_eps", 1e-5),
    SMP_KEY(TIED, "tie_word_embeddings", 0),
    SMP_KEY(ROPE_THETA, "rope_theta", 10000),
    SMP_KEY(ATTENTION_DROPOUT, "attention_dropout", 0),
    SMP_KEY(QKV_BIAS, "attention_bias", 0),
    SMP_FIXED(QK_NORM_WHOLE, 1),
    SMP_END_KEYS,
};

static const smp_row block[] = {
    SMP_W(Q_W, LAYER "self_attn.q_proj.weight", Q, HIDDEN, OUT),
    SMP_W(K_W, LAYER "self_attn.k_proj.weight", KV, HIDDEN, KV),
    SMP_W(V_W, LAYER "self_attn.v_proj.weight", KV, HIDDEN, KV),
    SMP_V_IF(QKV_BIAS, Q_B, LAYER "self_attn.q_proj.bias", Q, OUT),
    SMP_V_IF(QKV_BIAS, K_B, LAYER "self_attn.k_proj.bias", KV, KV),
    SMP_V_IF(QKV_BIAS, V_B, LAYER "self_attn.v_proj.bias", KV, KV),
    SMP_V(Q_NORM_W, LAYER "self_attn.q_norm.weight", Q, OUT),
    SMP_V(K_NORM_W, LAYER "self_attn.k_norm.weight", KV, KV),
    SMP_W(O_W, LAYER "self_attn.o_proj.weight", HIDDEN, Q, IN),
    SMP_V_IF(OUT_BIAS, O_B, LAYER "self_attn.o_proj.bias", HIDDEN, NONE),
    SMP_V(POST_NORM1_W, LAYER "post_attention_layernorm.weight", HIDDEN, NONE),
    SMP_ROWS_MLP(LAYER),
    SMP_V(POST_NORM2_W, LAYER "post_feedforward_layernorm.weight", HIDDEN, NONE),
    SMP_END_ROWS,
};

const smp_family smp_family_olmo2 = {
    .model_type = "olmo2",
    .norm = SMP_NORM_RMS,
    .norm_place = SMP_NORM_AFTER,
    .gated = true,
    .position = SMP_POSITION_ROPE,
    .keys = keys,
    .block = block,
    .root = smp_llama_root,
};
