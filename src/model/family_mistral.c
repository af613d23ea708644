/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mistral: llama without any bias, 8 key-value heads and a sliding window of 4096 unless the
 * config says otherwise; "sliding_window": null means full attention.  The library ignores
 * "layer_types" here, and so do we.
 */
#include "model/family.h"

static const smp_key keys[] = {
    SMP_KEY(VOCAB, "vocab_size", 32000),
    SMP_KEY(HIDDEN, "hidden_size", 4096),
    SMP_KEY(FFN, "intermediate_size", 14336),
    SMP_KEY(LAYERS, "num_hidden_layers", 32),
    SMP_KEY(HEADS, "num_attention_heads", 32),
    SMP_KEY_OPEN(KV_HEADS, "num_key_value_heads", 8),
    SMP_KEY_OPEN(HEAD_DIM, "head_dim", SMP_OPEN),
    SMP_KEY_WORD(ACTIVATION, "hidden_act", "silu"),
    SMP_KEY(POSITIONS, "max_position_embeddings", 131072),
    SMP_KEY(INIT, "initializer_range", 0.02),
    SMP_KEY(NORM_EPS, "rms_norm_eps", 1e-6),
    SMP_KEY(TIED, "tie_word_embeddings", 0),
    SMP_KEY(ROPE_THETA, "rope_theta", 10000),
    SMP_KEY_OPEN(WINDOW, "sliding_window", 4096),
    SMP_KEY(ATTENTION_DROPOUT, "attention_dropout", 0),
    SMP_END_KEYS,
};

const smp_family smp_family_mistral = {
    .model_type = "mistral",
    .norm = SMP_NORM_RMS,
    .gated = true,
    .position = SMP_POSITION_ROPE,
    .windows = SMP_WINDOWS_ALL,
    .keys = keys,
    .block = smp_llama_block,
    .root = smp_llama_root,
};
