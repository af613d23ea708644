/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpt_neox: layer norms, rope on a quarter of each head, attention and MLP beside each other
 * (each behind its own norm) unless "use_parallel_residual" is false.
 */
#include "model/family.h"

#define LAYER "gpt_neox.layers.{}."

static const smp_key keys[] = {
    SMP_KEY(VOCAB, "vocab_size", 50432),
    SMP_KEY(HIDDEN, "hidden_size", 6144),
    SMP_KEY(LAYERS, "num_hidden_layers", 44),
    SMP_KEY(HEADS, "num_attention_heads", 64),
    SMP_KEY(FFN, "intermediate_size", 24576),
    SMP_KEY_WORD(ACTIVATION, "hidden_act", "gelu"),
    SMP_KEY_2(ROTARY_FRAC, "rotary_pct", "rope_parameters.partial_rotary_factor", 0.25),
    SMP_KEY_2(ROPE_THETA, "rotary_emb_base", "rope_theta", 10000),
    SMP_KEY(ATTENTION_DROPOUT, "attention_dropout", 0),
    SMP_KEY(RESIDUAL_DROPOUT, "hidden_dropout", 0),
    SMP_KEY(EMBEDDING_DROPOUT, "hidden_dropout", 0),
    SMP_KEY(POSITIONS, "max_position_embeddings", 2048),
    SMP_KEY(INIT, "initializer_range", 0.02),
    SMP_KEY(NORM_EPS, "layer_norm_eps", 1e-5),
    SMP_KEY(TIED, "tie_word_embeddings", 0),
    SMP_KEY(PARALLEL, "use_parallel_residual", 1),
    SMP_KEY(QKV_BIAS, "attention_bias", 1),
    SMP_FIXED(MLP_BIAS, 1),
    SMP_END_KEYS,
};

static const smp_row block[] = {
    SMP_V(NORM1_W, LAYER "input_layernorm.weight", HIDDEN, NONE),
    SMP_V(NORM1_B, LAYER "input_layernorm.bias", HIDDEN, NONE),
    SMP_W(Q_W, LAYER "attention.query_key_value.weight", Q, HIDDEN, OUT),
    SMP_W(K_W, LAYER "attention.query_key_value.weight", KV, HIDDEN, KV),
    SMP_W(V_W, LAYER "attention.query_key_value.weight", KV, HIDDEN, KV),
    SMP_V_IF(QKV_BIAS, Q_B, LAYER "attention.query_key_value.bias", Q, OUT),
    SMP_V_IF(QKV_BIAS, K_B, LAYER "attention.query_key_value.bias", KV, KV),
    SMP_V_IF(QKV_BIAS, V_B, LAYER "attention.query_key_value.bias", KV, KV),
    SMP_W(O_W, LAYER "attention.dense.weight", HIDDEN, Q, IN),
    SMP_V_IF(OUT_BIAS, O_B, LAYER "attention.dense.bias", HIDDEN, NONE),
    SMP_V(NORM2_W, LAYER "post_attention_layernorm.weight", HIDDEN, NONE),
    SMP_V(NORM2_B, LAYER "post_attention_layernorm.bias", HIDDEN, NONE),
    SMP_W(UP_W, LAYER "mlp.dense_h_to_4h.weight", FFN, HIDDEN, OUT),
    SMP_V(UP_B, LAYER "mlp.dense_h_to_4h.bias", FFN, OUT),
    SMP_W(DOWN_W, LAYER "mlp.dense_4h_to_h.weight", HIDDEN, FFN, IN),
    SMP_V(DOWN_B, LAYER "mlp.dense_4h_to_h.bias", HIDDEN, NONE),
    SMP_END_ROWS,
};

static const smp_row root[] = {
    SMP_W(EMBED, "gpt_neox.embed_in.weight", VOCAB, HIDDEN, VOCAB),
    SMP_V(FINAL_NORM_W, "gpt_neox.final_layer_norm.weight", HIDDEN, NONE),
    SMP_V(FINAL_NORM_B, "gpt_neox.final_layer_norm.bias", HIDDEN, NONE),
    SMP_HEAD("embed_out.weight"),
    SMP_END_ROWS,
};

const smp_family smp_family_gpt_neox = {
    .model_type = "gpt_neox",
    .norm = SMP_NORM_LAYER,
    .norm_bias = true,
    .position = SMP_POSITION_ROPE,
    .keys = keys,
    .block = block,
    .root = root,
};
