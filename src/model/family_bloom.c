/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bloom: alibi instead of positions, a norm behind the embedding, biases everywhere.
 */
#include "model/family.h"

#define LAYER "transformer.h.{}."

static const smp_key keys[] = {
    SMP_KEY(VOCAB, "vocab_size", 250880),
    SMP_KEY_2(HIDDEN, "n_embed", "hidden_size", 64),
    SMP_KEY_2(LAYERS, "n_layer", "num_hidden_layers", 2),
    SMP_KEY_2(HEADS, "n_head", "num_attention_heads", 8),
    SMP_KEY(NORM_EPS, "layer_norm_epsilon", 1e-5),
    SMP_KEY(INIT, "initializer_range", 0.02),
    SMP_KEY(TIED, "tie_word_embeddings", 1),
    SMP_KEY(RESIDUAL_DROPOUT, "hidden_dropout", 0),
    SMP_KEY(ATTENTION_DROPOUT, "attention_dropout", 0),
    {.fact = SMP_FACT_ACTIVATION, .word = "gelu_pytorch_tanh"},
    SMP_FIXED(QKV_BIAS, 1),
    SMP_FIXED(MLP_BIAS, 1),
    SMP_FIXED(ALIBI, 1),
    SMP_FIXED(EMBEDDING_NORM, 1),
    SMP_END_KEYS,
};

static const smp_row block[] = {
    SMP_V(NORM1_W, LAYER "input_layernorm.weight", HIDDEN, NONE),
    SMP_V(NORM1_B, LAYER "input_layernorm.bias", HIDDEN, NONE),
    SMP_W(Q_W, LAYER "self_attention.query_key_value.weight", Q, HIDDEN, OUT),
    SMP_W(K_W, LAYER "self_attention.query_key_value.weight", KV, HIDDEN, KV),
    SMP_W(V_W, LAYER "self_attention.query_key_value.weight", KV, HIDDEN, KV),
    SMP_V(Q_B, LAYER "self_attention.query_key_value.bias", Q, OUT),
    SMP_V(K_B, LAYER "self_attention.query_key_value.bias", KV, KV),
    SMP_V(V_B, LAYER "self_attention.query_key_value.bias", KV, KV),
    SMP_W(O_W, LAYER "self_attention.dense.weight", HIDDEN, Q, IN),
    SMP_V(O_B, LAYER "self_attention.dense.bias", HIDDEN, NONE),
    SMP_V(NORM2_W, LAYER "post_attention_layernorm.weight", HIDDEN, NONE),
    SMP_V(NORM2_B, LAYER "post_attention_layernorm.bias", HIDDEN, NONE),
    SMP_W(UP_W, LAYER "mlp.dense_h_to_4h.weight", FFN, HIDDEN, OUT),
    SMP_V(UP_B, LAYER "mlp.dense_h_to_4h.bias", FFN, OUT),
    SMP_W(DOWN_W, LAYER "mlp.dense_4h_to_h.weight", HIDDEN, FFN, IN),
    SMP_V(DOWN_B, LAYER "mlp.dense_4h_to_h.bias", HIDDEN, NONE),
    SMP_END_ROWS,
};

static const smp_row root[] = {
    SMP_W(EMBED, "transformer.word_embeddings.weight", VOCAB, HIDDEN, VOCAB),
    SMP_V(EMBED_NORM_W, "transformer.word_embeddings_layernorm.weight", HIDDEN, NONE),
    SMP_V(EMBED_NORM_B, "transformer.word_embeddings_layernorm.bias", HIDDEN, NONE),
    SMP_V(FINAL_NORM_W, "transformer.ln_f.weight", HIDDEN, NONE),
    SMP_V(FINAL_NORM_B, "transformer.ln_f.bias", HIDDEN, NONE),
    SMP_HEAD("lm_head.weight"),
    SMP_END_ROWS,
};

static const smp_refusal refusals[] = {
    {"apply_residual_connection_post_layernorm", SMP_HARMLESS_FALSE,
     "a residual taken behind the norm"},
    {NULL, SMP_HARMLESS_FALSE, NULL},
};

const smp_family smp_family_bloom = {
    .model_type = "bloom",
    .norm = SMP_NORM_LAYER,
    .norm_bias = true,
    .position = SMP_POSITION_ALIBI,
    .keys = keys,
    .block = block,
    .root = root,
    .refusals = refusals,
};
