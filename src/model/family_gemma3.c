/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemma3 (text): gemma2 without caps, with norms of q and k and one full layer in six.  Window
 * layers rotate by "rope_local_base_freq" instead of "rope_theta", which changes no cost.
 */
#include "model/family.h"

#include <math.h>

#define LAYER "model.layers.{}."

static const smp_key keys[] = {
    SMP_KEY(VOCAB, "vocab_size", 262208),
    SMP_KEY(HIDDEN, "hidden_size", 2304),
    SMP_KEY(FFN, "intermediate_size", 9216),
    SMP_KEY(LAYERS, "num_hidden_layers", 26),
    SMP_KEY(HEADS, "num_attention_heads", 8),
    SMP_KEY(KV_HEADS, "num_key_value_heads", 4),
    SMP_KEY(HEAD_DIM, "head_dim", 256),
    SMP_KEY_WORD(ACTIVATION, "hidden_activation", "gelu_pytorch_tanh"),
    SMP_KEY(POSITIONS, "max_position_embeddings", 131072),
    SMP_KEY(INIT, "initializer_range", 0.02),
    SMP_KEY(NORM_EPS, "rms_norm_eps", 1e-6),
    SMP_KEY(TIED, "tie_word_embeddings", 1),
    SMP_KEY(ROPE_THETA, "rope_theta", 1000000),
    SMP_KEY(ATTENTION_DROPOUT, "attention_dropout", 0),
    SMP_KEY(QKV_BIAS, "attention_bias", 0),
    SMP_KEY(QUERY_SCALAR, "query_pre_attn_scalar", 256),
    SMP_KEY_OPEN(WINDOW, "sliding_window", 4096),
    SMP_KEY_OPEN(LAYER_TYPES, "layer_types", SMP_OPEN),
    SMP_KEY_OPEN(LOGIT_SOFTCAP, "final_logit_softcapping", SMP_OPEN),
    SMP_KEY_OPEN(ATTENTION_SOFTCAP, "attn_logit_softcapping", SMP_OPEN),
    SMP_KEY(WINDOW_PATTERN, "sliding_window_pattern", 6),
    SMP_FIXED(QK_NORM, 1),
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

static const smp_refusal refusals[] = {
    {"use_bidirectional_attention", SMP_HARMLESS_FALSE, "attention to later tokens"},
    {NULL, SMP_HARMLESS_FALSE, NULL},
};

/* The embedding is multiplied by sqrt(hidden). */
static void derive(smp_facts *facts)
{
    facts->value[SMP_FACT_EMBEDDING_SCALE] = sqrt(facts->value[SMP_FACT_HIDDEN]);
}

const smp_family smp_family_gemma3 = {
    .model_type = "gemma3_text",
    .norm = SMP_NORM_RMS,
    .norm_offset = 1,
    .rope_local_theta = 10000,
    .norm_place = SMP_NORM_AROUND,
    .gated = true,
    .position = SMP_POSITION_ROPE,
    .windows = SMP_WINDOWS_PATTERN,
    .keys = keys,
    .block = block,
    .root = smp_llama_root,
    .refusals = refusals,
    .derive = derive,
};
