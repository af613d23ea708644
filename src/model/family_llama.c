/* SPDX-License-Identifier: Apache-2.0 */
/*
 * llama: RMS norm before attention and MLP, grouped queries with rope, gated MLP.
 * Its parameter names are also those of many later families, which use these rows.
 */
#include "model/family.h"

#define LAYER "model.layers.{}."

const smp_row smp_llama_block[] = {
    SMP_V(NORM1_W, LAYER "input_layernorm.weight", HIDDEN, NONE),
    SMP_ROWS_ATTENTION(LAYER),
    SMP_V(NORM2_W, LAYER "post_attention_layernorm.weight", HIDDEN, NONE),
    SMP_ROWS_MLP(LAYER),
    SMP_END_ROWS,
};

const smp_row smp_llama_root[] = {
    SMP_W(EMBED, "model.embed_tokens.weight", VOCAB, HIDDEN, VOCAB),
    SMP_V(FINAL_NORM_W, "model.norm.weight", HIDDEN, NONE),
    SMP_HEAD("lm_head.weight"),
    SMP_END_ROWS,
};

static const smp_key keys[] = {
    SMP_KEY(VOCAB, "vocab_size", 32000),
    SMP_KEY(HIDDEN, "hidden_size", 4096),
    SMP_KEY(FFN, "intermediate_size", 11008),
    SMP_KEY(LAYERS, "num_hidden_layers", 32),
    SMP_KEY(HEADS, "num_attention_heads", 32),
    SMP_KEY_OPEN(KV_HEADS, "num_key_value_heads", SMP_OPEN),
    SMP_KEY_OPEN(HEAD_DIM, "head_dim", SMP_OPEN),
    SMP_KEY_WORD(ACTIVATION, "hidden_act", "silu"),
    SMP_KEY(POSITIONS, "max_position_embeddings", 2048),
    SMP_KEY(INIT, "initializer_range", 0.02),
    SMP_KEY(NORM_EPS, "rms_norm_eps", 1e-6),
    SMP_KEY(TIED, "tie_word_embeddings", 0),
    SMP_KEY(ROPE_THETA, "rope_theta", 10000),
    SMP_KEY(QKV_BIAS, "attention_bias", 0),
    SMP_KEY(ATTENTION_DROPOUT, "attention_dropout", 0),
    SMP_KEY(MLP_BIAS, "mlp_bias", 0),
    SMP_END_KEYS,
};

const smp_family smp_family_llama = {
    .model_type = "llama",
    .norm = SMP_NORM_RMS,
    .gated = true,
    .position = SMP_POSITION_ROPE,
    .keys = keys,
    .block = smp_llama_block,
    .root = smp_llama_root,
};
