/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpt_oss: routed experts with biases, router with bias, biases in attention, one sink a head,
 * and a window in every other layer.
 */
#include "model/family.h"

#define LAYER "model.layers.{}."

static const smp_key keys[] = {
    SMP_KEY(VOCAB, "vocab_size", 201088),
    SMP_KEY(HIDDEN, "hidden_size", 2880),
    SMP_KEY(FFN, "intermediate_size", 2880),
    SMP_KEY(LAYERS, "num_hidden_layers", 36),
    SMP_KEY(HEADS, "num_attention_heads", 64),
    SMP_KEY(KV_HEADS, "num_key_value_heads", 8),
    SMP_KEY(HEAD_DIM, "head_dim", 64),
    SMP_KEY_WORD(ACTIVATION, "hidden_act", "silu"),
    SMP_KEY(POSITIONS, "max_position_embeddings", 131072),
    SMP_KEY(INIT, "initializer_range", 0.02),
    SMP_KEY(NORM_EPS, "rms_norm_eps", 1e-5),
    SMP_KEY(TIED, "tie_word_embeddings", 0),
    SMP_KEY(ROPE_THETA, "rope_theta", 150000),
    SMP_KEY(ATTENTION_DROPOUT, "attention_dropout", 0),
    SMP_KEY(MOE_FFN, "intermediate_size", 2880),
    SMP_KEY_OPEN(WINDOW, "sliding_window", 128),
    SMP_KEY_OPEN(LAYER_TYPES, "layer_types", SMP_OPEN),
    SMP_KEY(TOP_K, "num_experts_per_tok", 4),
    SMP_KEY(EXPERTS, "num_local_experts", 128),
    SMP_FIXED(WINDOW_PATTERN, 2),
    SMP_FIXED(QKV_BIAS, 1),
    SMP_FIXED(SINKS, 1),
    SMP_FIXED(ROUTER_BIAS, 1),
    SMP_FIXED(NORM_TOPK, 1),
    SMP_END_KEYS,
};

static const smp_row block[] = {
    SMP_V(NORM1_W, LAYER "input_layernorm.weight", HIDDEN, NONE),
    SMP_W(Q_W, LAYER "self_attn.q_proj.weight", Q, HIDDEN, OUT),
    SMP_W(K_W, LAYER "self_attn.k_proj.weight", KV, HIDDEN, KV),
    SMP_W(V_W, LAYER "self_attn.v_proj.weight", KV, HIDDEN, KV),
    SMP_V(Q_B, LAYER "self_attn.q_proj.bias", Q, OUT),
    SMP_V(K_B, LAYER "self_attn.k_proj.bias", KV, KV),
    SMP_V(V_B, LAYER "self_attn.v_proj.bias", KV, KV),
    SMP_V(SINKS, LAYER "self_attn.sinks", HEADS, OUT),
    SMP_W(O_W, LAYER "self_attn.o_proj.weight", HIDDEN, Q, IN),
    SMP_V(O_B, LAYER "self_attn.o_proj.bias", HIDDEN, NONE),
    SMP_V(NORM2_W, LAYER "post_attention_layernorm.weight", HIDDEN, NONE),
    SMP_W_IF(IS_MOE, ROUTER_W, LAYER "mlp.router.weight", EXPERTS, HIDDEN, NONE),
    SMP_V_IF(IS_MOE, ROUTER_B, LAYER "mlp.router.bias", EXPERTS, NONE),
    SMP_EXPERT_W(EXPERT_GATE_W, LAYER "mlp.experts.gate_up_proj", MOE_FFN, HIDDEN, EXPERT_OUT),
    SMP_EXPERT_W(EXPERT_UP_W, LAYER "mlp.experts.gate_up_proj", MOE_FFN, HIDDEN, EXPERT_OUT),
    SMP_EXPERT_V(EXPERT_GATE_B, LAYER "mlp.experts.gate_up_proj_bias", MOE_FFN, EXPERT_OUT),
    SMP_EXPERT_V(EXPERT_UP_B, LAYER "mlp.experts.gate_up_proj_bias", MOE_FFN, EXPERT_OUT),
    SMP_EXPERT_W(EXPERT_DOWN_W, LAYER "mlp.experts.down_proj", HIDDEN, MOE_FFN, EXPERT_IN),
    SMP_EXPERT_V(EXPERT_DOWN_B, LAYER "mlp.experts.down_proj_bias", HIDDEN, NONE),
    SMP_END_ROWS,
};

const smp_family smp_family_gpt_oss = {
    .model_type = "gpt_oss",
    .norm = SMP_NORM_RMS,
    .gated = true,
    .clamped_swiglu = true,
    .position = SMP_POSITION_ROPE,
    .windows = SMP_WINDOWS_PATTERN,
    .keys = keys,
    .block = block,
    .root = smp_llama_root,
};
