/* SPDX-License-Identifier: Apache-2.0 */
/*
 * starcoder2: layer norms with bias, plain MLP, grouped queries with rope, biases by
 * "use_bias", tied.
 */
#include "model/family.h"

#define LAYER "model.layers.{}."

static const smp_key keys[] = {
    SMP_KEY(VOCAB, "vocab_size", 49152),
    SMP_KEY(HIDDEN, "hidden_size", 3072),
    SMP_KEY(FFN, "intermediate_size", 12288),
    SMP_KEY(LAYERS, "num_hidden_layers", 30),
    SMP_KEY(HEADS, "num_attention_heads", 24),
    SMP_KEY(KV_HEADS, "num_key_value_heads", 2),
    SMP_KEY_WORD(ACTIVATION, "hidden_act", "gelu_pytorch_tanh"),
    SMP_KEY(POSITIONS, "max_position_embeddings", 4096),
    SMP_KEY(INIT, "initializer_range", 0.018042),
    SMP_KEY(NORM_EPS, "norm_epsilon", 1e-5),
    SMP_KEY(TIED, "tie_word_embeddings", 1),
    SMP_KEY(ROPE_THETA, "rope_theta", 10000),
    SMP_KEY(ATTENTION_DROPOUT, "attention_dropout", 0),
    SMP_KEY(RESIDUAL_DROPOUT, "residual_dropout", 0),
    SMP_KEY(EMBEDDING_DROPOUT, "embedding_dropout", 0),
    SMP_KEY_OPEN(WINDOW, "sliding_window", SMP_OPEN),
    SMP_KEY(QKV_BIAS, "use_bias", 1),
    SMP_KEY(MLP_BIAS, "use_bias", 1),
    SMP_END_KEYS,
};

static const smp_row block[] = {
    SMP_V(NORM1_W, LAYER "input_layernorm.weight", HIDDEN, NONE),
    SMP_V(NORM1_B, LAYER "input_layernorm.bias", HIDDEN, NONE),
    SMP_W(Q_W, LAYER "self_attn.q_proj.weight", Q, HIDDEN, OUT),
    SMP_W(K_W, LAYER "self_attn.k_proj.weight", KV, HIDDEN, KV),
    SMP_W(V_W, LAYER "self_attn.v_proj.weight", KV, HIDDEN, KV),
    SMP_V_IF(QKV_BIAS, Q_B, LAYER "self_attn.q_proj.bias", Q, OUT),
    SMP_V_IF(QKV_BIAS, K_B, LAYER "self_attn.k_proj.bias", KV, KV),
    SMP_V_IF(QKV_BIAS, V_B, LAYER "self_attn.v_proj.bias", KV, KV),
    SMP_W(O_W, LAYER "self_attn.o_proj.weight", HIDDEN, Q, IN),
    SMP_V_IF(OUT_BIAS, O_B, LAYER "self_attn.o_proj.bias", HIDDEN, NONE),
    SMP_V(NORM2_W, LAYER "post_attention_layernorm.weight", HIDDEN, NONE),
    SMP_V(NORM2_B, LAYER "post_attention_layernorm.bias", HIDDEN, NONE),
    SMP_W(UP_W, LAYER "mlp.c_fc.weight", FFN, HIDDEN, OUT),
    SMP_V_IF(MLP_BIAS, UP_B, LAYER "mlp.c_fc.bias", FFN, OUT),
    SMP_W(DOWN_W, LAYER "mlp.c_proj.weight", HIDDEN, FFN, IN),
    SMP_V_IF(MLP_BIAS, DOWN_B, LAYER "mlp.c_proj.bias", HIDDEN, NONE),
    SMP_END_ROWS,
};

static const smp_row root[] = {
    SMP_W(EMBED, "model.embed_tokens.weight", VOCAB, HIDDEN, VOCAB),
    SMP_V(FINAL_NORM_W, "model.norm.weight", HIDDEN, NONE),
    SMP_V(FINAL_NORM_B, "model.norm.bias", HIDDEN, NONE),
    SMP_HEAD("lm_head.weight"),
    SMP_END_ROWS,
};

const smp_family smp_family_starcoder2 = {
    .model_type = "starcoder2",
    .norm = SMP_NORM_LAYER,
    .norm_bias = true,
    .position = SMP_POSITION_ROPE,
    .keys = keys,
    .block = block,
    .root = root,
};
