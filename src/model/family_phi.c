/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phi: attention and MLP beside each other behind one layer norm, rope on half of each head,
 * biases everywhere, on the head too.
 */
#include "model/family.h"

#define LAYER "model.layers.{}."

static const smp_key keys[] = {
    SMP_KEY(VOCAB, "vocab_size", 51200),
    SMP_KEY(HIDDEN, "hidden_size", 2048),
    SMP_KEY(FFN, "intermediate_size", 8192),
    SMP_KEY(LAYERS, "num_hidden_layers", 24),
    SMP_KEY(HEADS, "num_attention_heads", 32),
    SMP_KEY_OPEN(KV_HEADS, "num_key_value_heads", SMP_OPEN),
    SMP_KEY_WORD(ACTIVATION, "hidden_act", "gelu_new"),
    SMP_KEY(POSITIONS, "max_position_embeddings", 2048),
    SMP_KEY(INIT, "initializer_range", 0.02),
    SMP_KEY(NORM_EPS, "layer_norm_eps", 1e-5),
    SMP_KEY(TIED, "tie_word_embeddings", 0),
    SMP_KEY(ROPE_THETA, "rope_theta", 10000),
    SMP_KEY(ATTENTION_DROPOUT, "attention_dropout", 0),
    SMP_KEY(RESIDUAL_DROPOUT, "resid_pdrop", 0),
    SMP_KEY(EMBEDDING_DROPOUT, "embd_pdrop", 0),
    SMP_KEY_2(ROTARY_FRAC, "partial_rotary_factor", "rope_parameters.partial_rotary_factor",
              0.5),
    SMP_KEY(QK_NORM, "qk_layernorm", 0),
    SMP_FIXED(QKV_BIAS, 1),
    SMP_FIXED(MLP_BIAS, 1),
    SMP_FIXED(PARALLEL, 1),
    SMP_FIXED(SINGLE_NORM, 1),
    SMP_FIXED(HEAD_BIAS, 1),
    SMP_END_KEYS,
};

static const smp_row block[] = {
    SMP_V(NORM1_W, LAYER "input_layernorm.weight", HIDDEN, NONE),
    SMP_V(NORM1_B, LAYER "input_layernorm.bias", HIDDEN, NONE),
    SMP_W(Q_W, LAYER "self_attn.q_proj.weight", Q, HIDDEN, OUT),
    SMP_W(K_W, LAYER "self_attn.k_proj.weight", KV, HIDDEN, KV),
    SMP_W(V_W, LAYER "self_attn.v_proj.weight", KV, HIDDEN, KV),
    SMP_V(Q_B, LAYER "self_attn.q_proj.bias", Q, OUT),
    SMP_V(K_B, LAYER "self_attn.k_proj.bias", KV, KV),
    SMP_V(V_B, LAYER "self_attn.v_proj.bias", KV, KV),
    SMP_V_IF(QK_NORM, Q_NORM_W, LAYER "self_attn.q_layernorm.weight", HEAD_DIM, NONE),
    SMP_V_IF(QK_NORM, Q_NORM_B, LAYER "self_attn.q_layernorm.bias", HEAD_DIM, NONE),
    SMP_V_IF(QK_NORM, K_NORM_W, LAYER "self_attn.k_layernorm.weight", HEAD_DIM, NONE),
    SMP_V_IF(QK_NORM, K_NORM_B, LAYER "self_attn.k_layernorm.bias", HEAD_DIM, NONE),
    SMP_W(O_W, LAYER "self_attn.dense.weight", HIDDEN, Q, IN),
    SMP_V(O_B, LAYER "self_attn.dense.bias", HIDDEN, NONE),
    SMP_W(UP_W, LAYER "mlp.fc1.weight", FFN, HIDDEN, OUT),
    SMP_V(UP_B, LAYER "mlp.fc1.bias", FFN, OUT),
    SMP_W(DOWN_W, LAYER "mlp.fc2.weight", HIDDEN, FFN, IN),
    SMP_V(DOWN_B, LAYER "mlp.fc2.bias", HIDDEN, NONE),
    SMP_END_ROWS,
};

static const smp_row root[] = {
    SMP_W(EMBED, "model.embed_tokens.weight", VOCAB, HIDDEN, VOCAB),
    SMP_V(FINAL_NORM_W, "model.final_layernorm.weight", HIDDEN, NONE),
    SMP_V(FINAL_NORM_B, "model.final_layernorm.bias", HIDDEN, NONE),
    SMP_HEAD("lm_head.weight"),
    SMP_V(HEAD_B, "lm_head.bias", VOCAB, VOCAB),
    SMP_END_ROWS,
};

const smp_family smp_family_phi = {
    .model_type = "phi",
    .norm = SMP_NORM_LAYER,
    .norm_bias = true,
    .position = SMP_POSITION_ROPE,
    .keys = keys,
    .block = block,
    .root = root,
};
