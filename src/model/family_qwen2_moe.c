/* SPDX-License-Identifier: Apache-2.0 */
/*
 * qwen2_moe: qwen2 with routed experts, and one shared expert behind a sigmoid gate.
 */
#include "model/family.h"

#define LAYER "model.layers.{}."

static const smp_key keys[] = {
    SMP_KEY(VOCAB, "vocab_size", 151936),
    SMP_KEY(HIDDEN, "hidden_size", 2048),
    SMP_KEY(FFN, "intermediate_size", 5632),
    SMP_KEY(LAYERS, "num_hidden_layers", 24),
    SMP_KEY(HEADS, "num_attention_heads", 16),
    SMP_KEY_OPEN(KV_HEADS, "num_key_value_heads", 16),
    SMP_KEY_WORD(ACTIVATION, "hidden_act", "silu"),
    SMP_KEY(POSITIONS, "max_position_embeddings", 32768),
    SMP_KEY(INIT, "initializer_range", 0.02),
    SMP_KEY(NORM_EPS, "rms_norm_eps", 1e-6),
    SMP_KEY(TIED, "tie_word_embeddings", 0),
    SMP_KEY(ROPE_THETA, "rope_theta", 10000),
    SMP_KEY(ATTENTION_DROPOUT, "attention_dropout", 0),
    SMP_KEY(USE_WINDOW, "use_sliding_window", 0),
    SMP_KEY_OPEN(WINDOW, "sliding_window", 4096),
    SMP_KEY(WINDOW_FROM, "max_window_layers", 28),
    SMP_KEY_OPEN(LAYER_TYPES, "layer_types", SMP_OPEN),
    SMP_KEY(MOE_FFN, "moe_intermediate_size", 1408),
    SMP_KEY(SHARED_FFN, "shared_expert_intermediate_size", 5632),
    SMP_KEY(TOP_K, "num_experts_per_tok", 4),
    SMP_KEY(EXPERTS, "num_experts", 60),
    SMP_KEY(NORM_TOPK, "norm_topk_prob", 0),
    SMP_KEY(SPARSE_STEP, "decoder_sparse_step", 1),
    SMP_KEY_OPEN(MLP_ONLY, "mlp_only_layers", SMP_OPEN),
    SMP_KEY(QKV_BIAS, "qkv_bias", 1),
    SMP_FIXED(OUT_BIAS, 0),
    SMP_FIXED(SHARED_GATE, 1),
    SMP_END_KEYS,
};

static const smp_row block[] = {
    SMP_V(NORM1_W, LAYER "input_layernorm.weight", HIDDEN, NONE),
    SMP_ROWS_ATTENTION(LAYER),
    SMP_V(NORM2_W, LAYER "post_attention_layernorm.weight", HIDDEN, NONE),
    SMP_ROWS_MLP(LAYER),
    SMP_ROWS_EXPERTS(LAYER),
    SMP_ROWS_SHARED(LAYER, "mlp.shared_expert"),
    SMP_W_IF(SHARED_GATE, SHARED_ROUTER_W, LAYER "mlp.shared_expert_gate.weight", ONE, HIDDEN,
             NONE),
    SMP_END_ROWS,
};

const smp_family smp_family_qwen2_moe = {
    .model_type = "qwen2_moe",
    .norm = SMP_NORM_RMS,
    .gated = true,
    .position = SMP_POSITION_ROPE,
    .windows = SMP_WINDOWS_FROM,
    .keys = keys,
    .block = block,
    .root = smp_llama_root,
};
