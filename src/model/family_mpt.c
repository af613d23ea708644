/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mpt: alibi always (the library has no other positions for it), layer norms and linear layers
 * without bias, one fused q, k, v.
 */
#include "model/family.h"

#define LAYER "transformer.blocks.{}."

static const smp_key keys[] = {
    SMP_KEY_2(HIDDEN, "d_model", "hidden_size", 2048),
    SMP_KEY_2(HEADS, "n_heads", "num_attention_heads", 16),
    SMP_KEY_2(LAYERS, "n_layers", "num_hidden_layers", 24),
    SMP_KEY(EXPANSION, "expansion_ratio", 4),
    SMP_KEY(POSITIONS, "max_seq_len", 2048),
    SMP_KEY(VOCAB, "vocab_size", 50368),
    SMP_KEY(RESIDUAL_DROPOUT, "resid_pdrop", 0),
    SMP_KEY(NORM_EPS, "layer_norm_epsilon", 1e-5),
    SMP_KEY(EMBEDDING_DROPOUT, "emb_pdrop", 0),
    SMP_KEY(ATTENTION_DROPOUT, "attn_config.attn_pdrop", 0),
    SMP_KEY_OPEN(CLIP_QKV, "attn_config.clip_qkv", SMP_OPEN),
    SMP_KEY(INIT, "initializer_range", 0.02),
    SMP_KEY(TIED, "tie_word_embeddings", 1),
    {.fact = SMP_FACT_ACTIVATION, .word = "gelu"},
    SMP_FIXED(ALIBI, 1),
    SMP_END_KEYS,
};

static const smp_row block[] = {
    SMP_V(NORM1_W, LAYER "norm_1.weight", HIDDEN, NONE),
    SMP_W(Q_W, LAYER "attn.Wqkv.weight", Q, HIDDEN, OUT),
    SMP_W(K_W, LAYER "attn.Wqkv.weight", KV, HIDDEN, KV),
    SMP_W(V_W, LAYER "attn.Wqkv.weight", KV, HIDDEN, KV),
    SMP_W(O_W, LAYER "attn.out_proj.weight", HIDDEN, Q, IN),
    SMP_V(NORM2_W, LAYER "norm_2.weight", HIDDEN, NONE),
    SMP_W(UP_W, LAYER "ffn.up_proj.weight", FFN, HIDDEN, OUT),
    SMP_W(DOWN_W, LAYER "ffn.down_proj.weight", HIDDEN, FFN, IN),
    SMP_END_ROWS,
};

static const smp_row root[] = {
    SMP_W(EMBED, "transformer.wte.weight", VOCAB, HIDDEN, VOCAB),
    SMP_V(FINAL_NORM_W, "transformer.norm_f.weight", HIDDEN, NONE),
    SMP_HEAD("lm_head.weight"),
    SMP_END_ROWS,
};

static const smp_refusal refusals[] = {
    {"attn_config.qk_ln", SMP_HARMLESS_FALSE, "a norm of q and k"},
    {"attn_config.prefix_lm", SMP_HARMLESS_FALSE, "a prefix with full attention"},
    {"attn_config.softmax_scale", SMP_HARMLESS_FALSE, "a scale of the attention logits"},
    {"logit_scale", SMP_HARMLESS_FALSE, "a scale of the logits"},
    {"no_bias", SMP_HARMLESS_TRUE, "biases"},
    {"attn_config.alibi", SMP_HARMLESS_TRUE, "positions other than alibi"},
    {NULL, SMP_HARMLESS_FALSE, NULL},
};

static void derive(smp_facts *facts)
{
    double *v = facts->value;
    v[SMP_FACT_FFN] = v[SMP_FACT_EXPANSION] * v[SMP_FACT_HIDDEN];
}

const smp_family smp_family_mpt = {
    .model_type = "mpt",
    .norm = SMP_NORM_LAYER,
    .position = SMP_POSITION_ALIBI,
    .keys = keys,
    .block = block,
    .root = root,
    .refusals = refusals,
    .derive = derive,
};
