/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemma2: gemma with norms before and after attention and MLP, capped logits, and a sliding
 * window in every other layer.
 */
#include "model/family.h"

#include <math.h>

#define LAYER "model.layers.{}."

static const smp_key keys[] = {
    SMP_KEY(VOCAB, "vocab_size", 256000),
    SMP_KEY(HIDDEN, "hidden_size", 2304),
    SMP_KEY(FFN, "intermediate_size", 9216),
    SMP_KEY(LAYERS, "num_hidden_layers", 26),
    SMP_KEY(HEADS, "num_attention_heads", 8),
    SMP_KEY(KV_HEADS, "num_key_value_heads", 4),
    SMP_KEY(HEAD_DIM, "head_dim", 256),
    SMP_KEY_WORD(ACTIVATION, "hidden_activation", "gelu_pytorch_tanh"),
    SMP_KEY(POSITIONS, "max_position_embeddings", 8192),
    SMP_KEY(INIT, "initializer_range", 0.02),
    SMP_KEY(NORM_EPS, "rms_norm_eps", 1e-6),
    SMP_KEY(TIED, "tie_word_embeddings", 1),
    SMP_KEY(ROPE_THETA, "rope_theta", 10000),
    SMP_KEY(ATTENTION_DROPOUT, "attention_dropout", 0),
    SMP_KEY(QKV_BIAS, "attention_bias", 0),
    SMP_KEY(QUERY_SCALAR, "query_pre_attn_scalar", 256),
    SMP_KEY_OPEN(WINDOW, "sliding_window", 4096),
    SMP_KEY_OPEN(LAYER_TYPES, "layer_types", SMP_OPEN),
    SMP_KEY_OPEN(LOGIT_SOFTCAP, "final_logit_softcapping", 30),
    SMP_KEY_OPEN(ATTENTION_SOFTCAP, "attn_logit_softcapping", 50),
    SMP_FIXED(WINDOW_PATTERN, 2),
    SMP_END_KEYS,
};

static const smp_row block[] = {
    SMP_V(NORM1_W, LAYER "input_layernorm.weight", HIDDEN, NONE),
    SMP_ROWS_ATTENTION(LAYER),
    SMP_V(POST_NORM1_W, LAYER "post_attention_layernorm.weight", HIDDEN, NONE),
    SMP_V(NORM2_W, LAYER "pre_feedforward_layernorm.weight", HIDDEN, NONE),
    SMP_ROWS_MLP(LAYER),
    SMP_V(POST_NORM2_W, LAYER "post_feedforward_layernorm.weight", HIDDEN, NONE),
    SMP_END_ROWS,
};

/* The embedding is multiplied by sqrt(hidden). */
static void derive(smp_facts *facts)
{
    facts->value[SMP_FACT_EMBEDDING_SCALE] = sqrt(facts->value[SMP_FACT_HIDDEN]);
}

const smp_family smp_family_gemma2 = {
    .model_type = "gemma2",
    .norm = SMP_NORM_RMS,
    .norm_offset = 1,
    .norm_place = SMP_NORM_AROUND,
    .gated = true,
    .position = SMP_POSITION_ROPE,
    .windows = SMP_WINDOWS_PATTERN,
    .keys = keys,
    .block = block,
    .root = smp_llama_root,
    .derive = derive,
};
