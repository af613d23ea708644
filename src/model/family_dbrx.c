/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dbrx: layer norms without bias, grouped queries with clipped q, k, v, routed experts whose
 * weights are normalised, not tied.
 */
#include "model/family.h"

#define LAYER "transformer.blocks.{}."

static const smp_key keys[] = {
    SMP_KEY_2(HIDDEN, "d_model", "hidden_size", 2048),
    SMP_KEY_2(HEADS, "n_heads", "num_attention_heads", 16),
    SMP_KEY_2(LAYERS, "n_layers", "num_hidden_layers", 24),
    SMP_KEY_2(POSITIONS, "max_seq_len", "max_position_embeddings", 2048),
    SMP_KEY(VOCAB, "vocab_size", 32000),
    SMP_KEY(RESIDUAL_DROPOUT, "resid_pdrop", 0),
    SMP_KEY(EMBEDDING_DROPOUT, "emb_pdrop", 0),
    SMP_KEY(ATTENTION_DROPOUT, "attn_config.attn_pdrop", 0),
    SMP_KEY_OPEN(CLIP_QKV, "attn_config.clip_qkv", SMP_OPEN),
    SMP_KEY(KV_HEADS, "attn_config.kv_n_heads", 1),
    SMP_KEY(ROPE_THETA, "attn_config.rope_theta", 10000),
    SMP_KEY_WORD(ACTIVATION, "ffn_config.ffn_act_fn.name", "silu"),
    SMP_KEY(MOE_FFN, "ffn_config.ffn_hidden_size", 3584),
    SMP_KEY(EXPERTS, "ffn_config.moe_num_experts", 4),
    SMP_KEY(TOP_K, "ffn_config.moe_top_k", 1),
    SMP_KEY_OPEN(NORM_TOPK, "ffn_config.moe_normalize_expert_weights", 1),
    SMP_KEY(INIT, "initializer_range", 0.02),
    SMP_FIXED(TIED, 0),
    SMP_END_KEYS,
};

static const smp_row block[] = {
    SMP_V(NORM1_W, LAYER "norm_attn_norm.norm_1.weight", HIDDEN, NONE),
    SMP_W(Q_W, LAYER "norm_attn_norm.attn.Wqkv.weight", Q, HIDDEN, OUT),
    SMP_W(K_W, LAYER "norm_attn_norm.attn.Wqkv.weight", KV, HIDDEN, KV),
    SMP_W(V_W, LAYER "norm_attn_norm.attn.Wqkv.weight", KV, HIDDEN, KV),
    SMP_W(O_W, LAYER "norm_attn_norm.attn.out_proj.weight", HIDDEN, Q, IN),
    SMP_V(NORM2_W, LAYER "norm_attn_norm.norm_2.weight", HIDDEN, NONE),
    SMP_W_IF(IS_MOE, ROUTER_W, LAYER "ffn.router.layer.weight", EXPERTS, HIDDEN, NONE),
    SMP_EXPERT_W(EXPERT_GATE_W, LAYER "ffn.experts.mlp.w1", MOE_FFN, HIDDEN, EXPERT_OUT),
    SMP_EXPERT_W(EXPERT_UP_W, LAYER "ffn.experts.mlp.v1", MOE_FFN, HIDDEN, EXPERT_OUT),
    SMP_EXPERT_W(EXPERT_DOWN_W, LAYER "ffn.experts.mlp.w2", HIDDEN, MOE_FFN, EXPERT_IN),
    SMP_END_ROWS,
};

static const smp_row root[] = {
    SMP_W(EMBED, "transformer.wte.weight", VOCAB, HIDDEN, VOCAB),
    SMP_V(FINAL_NORM_W, "transformer.norm_f.weight", HIDDEN, NONE),
    SMP_HEAD("lm_head.weight"),
    SMP_END_ROWS,
};

static const smp_refusal refusals[] = {
    {"tie_word_embeddings", SMP_HARMLESS_FALSE, "a tied head"},
    {NULL, SMP_HARMLESS_FALSE, NULL},
};

const smp_family smp_family_dbrx = {
    .model_type = "dbrx",
    .norm = SMP_NORM_LAYER,
    .gated = true,
    .position = SMP_POSITION_ROPE,
    .ignores_rope_scaling = true,
    .keys = keys,
    .block = block,
    .root = root,
    .refusals = refusals,
};
