/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phi3: llama with q, k, v and gate, up fused in the checkpoint, dropout on the residual,
 * longrope and, in some sizes, rope on a part of each head.
 */
#include "model/family.h"

#define LAYER "model.layers.{}."

static const smp_key keys[] = {
    SMP_KEY(VOCAB, "vocab_size", 32064),
    SMP_KEY(HIDDEN, "hidden_size", 3072),
    SMP_KEY(FFN, "intermediate_size", 8192),
    SMP_KEY(LAYERS, "num_hidden_layers", 32),
    SMP_KEY(HEADS, "num_attention_heads", 32),
    SMP_KEY_OPEN(KV_HEADS, "num_key_value_heads", SMP_OPEN),
    SMP_KEY_WORD(ACTIVATION, "hidden_act", "silu"),
    SMP_KEY(POSITIONS, "max_position_embeddings", 4096),
    SMP_KEY(INIT, "initializer_range", 0.02),
    SMP_KEY(NORM_EPS, "rms_norm_eps", 1e-5),
    SMP_KEY(TIED, "tie_word_embeddings", 0),
    SMP_KEY(ROPE_THETA, "rope_theta", 10000),
    SMP_KEY(ATTENTION_DROPOUT, "attention_dropout", 0),
    SMP_KEY(RESIDUAL_DROPOUT, "resid_pdrop", 0),
    SMP_KEY(EMBEDDING_DROPOUT, "embd_pdrop", 0),
    SMP_KEY_2(ROTARY_FRAC, "partial_rotary_factor", "rope_parameters.partial_rotary_factor", 1),
    SMP_KEY_OPEN(WINDOW, "sliding_window", SMP_OPEN),
    SMP_END_KEYS,
};

static const smp_row block[] = {
    SMP_V(NORM1_W, LAYER "input_layernorm.weight", HIDDEN, NONE),
    SMP_W(Q_W, LAYER "self_attn.qkv_proj.weight", Q, HIDDEN, OUT),
    SMP_W(K_W, LAYER "self_attn.qkv_proj.weight", KV, HIDDEN, KV),
    SMP_W(V_W, LAYER "self_attn.qkv_proj.weight", KV, HIDDEN, KV),
    SMP_W(O_W, LAYER "self_attn.o_proj.weight", HIDDEN, Q, IN),
    SMP_V(NORM2_W, LAYER "post_attention_layernorm.weight", HIDDEN, NONE),
    SMP_W(GATE_W, LAYER "mlp.gate_up_proj.weight", FFN, HIDDEN, OUT),
    SMP_W(UP_W, LAYER "mlp.gate_up_proj.weight", FFN, HIDDEN, OUT),
    SMP_W(DOWN_W, LAYER "mlp.down_proj.weight", HIDDEN, FFN, IN),
    SMP_END_ROWS,
};

const smp_family smp_family_phi3 = {
    .model_type = "phi3",
    .norm = SMP_NORM_RMS,
    .gated = true,
    .position = SMP_POSITION_ROPE,
    .keys = keys,
    .block = block,
    .root = smp_llama_root,
};
