/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mixtral: mistral with routed experts in place of every MLP; the weights of the chosen add up
 * to 1.
 */
#include "model/family.h"

#define LAYER "model.layers.{}."

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
    SMP_KEY(NORM_EPS, "rms_norm_eps", 1e-5),
    SMP_KEY(TIED, "tie_word_embeddings", 0),
    SMP_KEY(ROPE_THETA, "rope_theta", 1000000),
    SMP_KEY(ATTENTION_DROPOUT, "attention_dropout", 0),
    SMP_KEY(MOE_FFN, "intermediate_size", 14336),
    SMP_KEY_OPEN(WINDOW, "sliding_window", SMP_OPEN),
    SMP_KEY(TOP_K, "num_experts_per_tok", 2),
    SMP_KEY(EXPERTS, "num_local_experts", 8),
    SMP_FIXED(NORM_TOPK, 1),
    SMP_END_KEYS,
};

static const smp_row block[] = {
    SMP_V(NORM1_W, LAYER "input_layernorm.weight", HIDDEN, NONE),
    SMP_ROWS_ATTENTION(LAYER),
    SMP_V(NORM2_W, LAYER "post_attention_layernorm.weight", HIDDEN, NONE),
    SMP_W_IF(IS_MOE, ROUTER_W, LAYER "block_sparse_moe.gate.weight", EXPERTS, HIDDEN, NONE),
    SMP_EXPERT_W(EXPERT_GATE_W, LAYER "block_sparse_moe.experts.{}.w1.weight", MOE_FFN,
                 HIDDEN, EXPERT_OUT),
    SMP_EXPERT_W(EXPERT_UP_W, LAYER "block_sparse_moe.experts.{}.w3.weight", MOE_FFN, HIDDEN,
                 EXPERT_OUT),
    SMP_EXPERT_W(EXPERT_DOWN_W, LAYER "block_sparse_moe.experts.{}.w2.weight", HIDDEN,
                 MOE_FFN, EXPERT_IN),
    SMP_END_ROWS,
};

const smp_family smp_family_mixtral = {
    .model_type = "mixtral",
    .norm = SMP_NORM_RMS,
    .gated = true,
    .position = SMP_POSITION_ROPE,
    .keys = keys,
    .block = block,
    .root = smp_llama_root,
};
