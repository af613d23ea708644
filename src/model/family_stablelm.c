/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stablelm: layer norms with bias, gated MLP, rope on a quarter of each head; with
 * "use_parallel_residual" attention and MLP stand beside each other behind one norm.
 */
#include "model/family.h"

#define LAYER "model.layers.{}."

static const smp_key keys[] = {
    SMP_KEY(VOCAB, "vocab_size", 50304),
    SMP_KEY(HIDDEN, "hidden_size", 2560),
    SMP_KEY(FFN, "intermediate_size", 6912),
    SMP_KEY(LAYERS, "num_hidden_layers", 32),
    SMP_KEY(HEADS, "num_attention_heads", 32),
    SMP_KEY(KV_HEADS, "num_key_value_heads", 32),
    SMP_KEY_WORD(ACTIVATION, "hidden_act", "silu"),
    SMP_KEY(POSITIONS, "max_position_embeddings", 4096),
    SMP_KEY(INIT, "initializer_range", 0.02),
    SMP_KEY(NORM_EPS, "layer_norm_eps", 1e-5),
    SMP_KEY(TIED, "tie_word_embeddings", 0),
    SMP_KEY(ROPE_THETA, "rope_theta", 10000),
    SMP_KEY(ATTENTION_DROPOUT, "attention_dropout", 0),
    SMP_KEY(QKV_BIAS, "use_qkv_bias", 0),
    SMP_KEY(QK_NORM_OWN, "qk_layernorm", 0),
    SMP_KEY(PARALLEL, "use_parallel_residual", 0),
    SMP_KEY(SINGLE_NORM, "use_parallel_residual", 0),
    SMP_KEY(RESIDUAL_DROPOUT, "hidden_dropout", 0),
    SMP_KEY_2(ROTARY_FRAC, "partial_rotary_factor", "rope_parameters.partial_rotary_factor",
              0.25),
    SMP_FIXED(OUT_BIAS, 0),
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
    SMP_V_IF(QK_NORM_OWN, Q_NORM_W, LAYER "self_attn.q_layernorm.norms.weight", Q, OUT),
    SMP_V_IF(QK_NORM_OWN, K_NORM_W, LAYER "self_attn.k_layernorm.norms.weight", KV, KV),
    SMP_W(O_W, LAYER "self_attn.o_proj.weight", HIDDEN, Q, IN),
    SMP_V_IF(TWO_NORMS, NORM2_W, LAYER "post_attention_layernorm.weight", HIDDEN, NONE),
    SMP_V_IF(TWO_NORMS, NORM2_B, LAYER "post_attention_layernorm.bias", HIDDEN, NONE),
    SMP_ROWS_MLP(LAYER),
    SMP_END_ROWS,
};

static const smp_row root[] = {
    SMP_W(EMBED, "model.embed_tokens.weight", VOCAB, HIDDEN, VOCAB),
    SMP_V(FINAL_NORM_W, "model.norm.weight", HIDDEN, NONE),
    SMP_V(FINAL_NORM_B, "model.norm.bias", HIDDEN, NONE),
    SMP_HEAD("lm_head.weight"),
    SMP_END_ROWS,
};

const smp_family smp_family_stablelm = {
    .model_type = "stablelm",
    .norm = SMP_NORM_LAYER,
    .norm_bias = true,
    .gated = true,
    .position = SMP_POSITION_ROPE,
    .keys = keys,
    .block = block,
    .root = root,
};
