/* SPDX-License-Identifier: Apache-2.0 */
/*
 * qwen3: llama with an RMS norm over each head of q and k, and heads of 128 unless the config
 * says otherwise, whatever hidden_size is.  Sliding windows as in qwen2.
 */
#include "model/family.h"

static const smp_key keys[] = {
    SMP_KEY(VOCAB, "vocab_size", 151936),
    SMP_KEY(HIDDEN, "hidden_size", 4096),
    SMP_KEY(FFN, "intermediate_size", 22016),
    SMP_KEY(LAYERS, "num_hidden_layers", 32),
    SMP_KEY(HEADS, "num_attention_heads", 32),
    SMP_KEY_OPEN(KV_HEADS, "num_key_value_heads", 32),
    SMP_KEY(HEAD_DIM, "head_dim", 128),
    SMP_KEY_WORD(ACTIVATION, "hidden_act", "silu"),
    SMP_KEY(POSITIONS, "max_position_embeddings", 32768),
    SMP_KEY(INIT, "initializer_range", 0.02),
    SMP_KEY(NORM_EPS, "rms_norm_eps", 1e-6),
    SMP_KEY(TIED, "tie_word_embeddings", 0),
    SMP_KEY(ROPE_THETA, "rope_theta", 10000),
    SMP_KEY(QKV_BIAS, "attention_bias", 0),
    SMP_KEY(USE_WINDOW, "use_sliding_window", 0),
    SMP_KEY_OPEN(WINDOW, "sliding_window", 4096),
    SMP_KEY(WINDOW_FROM, "max_window_layers", 28),
    SMP_KEY_OPEN(LAYER_TYPES, "layer_types", SMP_OPEN),
    SMP_KEY(ATTENTION_DROPOUT, "attention_dropout", 0),
    SMP_FIXED(QK_NORM, 1),
    SMP_END_KEYS,
};

const smp_family smp_family_qwen3 = {
    .model_type = "qwen3",
    .norm = SMP_NORM_RMS,
    .gated = true,
    .position = SMP_POSITION_ROPE,
    .windows = SMP_WINDOWS_FROM,
    .keys = keys,
    .block = smp_llama_block,
    .root = smp_llama_root,
};
