/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opt: learned positions (two more than "max_position_embeddings", the library's offset), relu.
 * 350m has norms behind the residual, no final norm and an embedding of another width.
 */
#include "model/family.h"

#define LAYER "model.decoder.layers.{}."

static const smp_key keys[] = {
    SMP_KEY(VOCAB, "vocab_size", 50272),
    SMP_KEY(HIDDEN, "hidden_size", 768),
    SMP_KEY(LAYERS, "num_hidden_layers", 12),
    SMP_KEY(FFN, "ffn_dim", 3072),
    SMP_KEY(POSITIONS, "max_position_embeddings", 2048),
    SMP_KEY(PRE_NORM, "do_layer_norm_before", 1),
    SMP_KEY_OPEN(EMBEDDING_WIDTH, "word_embed_proj_dim", SMP_OPEN),
    SMP_KEY(RESIDUAL_DROPOUT, "dropout", 0.1),
    SMP_KEY(ATTENTION_DROPOUT, "attention_dropout", 0),
    SMP_KEY(HEADS, "num_attention_heads", 12),
    SMP_KEY_WORD(ACTIVATION, "activation_function", "relu"),
    SMP_KEY(INIT, "init_std", 0.02),
    SMP_KEY(QKV_BIAS, "enable_bias", 1),
    SMP_KEY(MLP_BIAS, "enable_bias", 1),
    SMP_KEY(TIED, "tie_word_embeddings", 1),
    SMP_END_KEYS,
};

static const smp_row block[] = {
    SMP_V(NORM1_W, LAYER "self_attn_layer_norm.weight", HIDDEN, NONE),
    SMP_V(NORM1_B, LAYER "self_attn_layer_norm.bias", HIDDEN, NONE),
    SMP_W(Q_W, LAYER "self_attn.q_proj.weight", Q, HIDDEN, OUT),
    SMP_W(K_W, LAYER "self_attn.k_proj.weight", KV, HIDDEN, KV),
    SMP_W(V_W, LAYER "self_attn.v_proj.weight", KV, HIDDEN, KV),
    SMP_V_IF(QKV_BIAS, Q_B, LAYER "self_attn.q_proj.bias", Q, OUT),
    SMP_V_IF(QKV_BIAS, K_B, LAYER "self_attn.k_proj.bias", KV, KV),
    SMP_V_IF(QKV_BIAS, V_B, LAYER "self_attn.v_proj.bias", KV, KV),
    SMP_W(O_W, LAYER "self_attn.out_proj.weight", HIDDEN, Q, IN),
    SMP_V_IF(OUT_BIAS, O_B, LAYER "self_attn.out_proj.bias", HIDDEN, NONE),
    SMP_V(NORM2_W, LAYER "final_layer_norm.weight", HIDDEN, NONE),
    SMP_V(NORM2_B, LAYER "final_layer_norm.bias", HIDDEN, NONE),
    SMP_W(UP_W, LAYER "fc1.weight", FFN, HIDDEN, OUT),
    SMP_V_IF(MLP_BIAS, UP_B, LAYER "fc1.bias", FFN, OUT),
    SMP_W(DOWN_W, LAYER "fc2.weight", HIDDEN, FFN, IN),
    SMP_V_IF(MLP_BIAS, DOWN_B, LAYER "fc2.bias", HIDDEN, NONE),
    SMP_END_ROWS,
};

static const smp_row root[] = {
    SMP_W(EMBED, "model.decoder.embed_tokens.weight", VOCAB, EMBEDDING, VOCAB),
    SMP_W(POSITION, "model.decoder.embed_positions.weight", POSITIONS, HIDDEN, NONE),
    SMP_W_IF(EMBEDDING_PROJECTED, EMBED_IN_W, "model.decoder.project_in.weight", HIDDEN,
             EMBEDDING, NONE),
    SMP_V_IF(FINAL_NORM, FINAL_NORM_W, "model.decoder.final_layer_norm.weight", HIDDEN, NONE),
    SMP_V_IF(FINAL_NORM, FINAL_NORM_B, "model.decoder.final_layer_norm.bias", HIDDEN, NONE),
    SMP_W_IF(EMBEDDING_PROJECTED, EMBED_OUT_W, "model.decoder.project_out.weight", EMBEDDING,
             HIDDEN, NONE),
    {.role = SMP_ROLE_HEAD_W, .name = "lm_head.weight", .out = SMP_DIM_VOCAB,
     .in = SMP_DIM_EMBEDDING, .split = SMP_SPLIT_VOCAB, .unless = SMP_FACT_TIED},
    SMP_END_ROWS,
};

static const smp_refusal refusals[] = {
    {"_remove_final_layer_norm", SMP_HARMLESS_FALSE, "a checkpoint from before release 4.20.1"},
    {"layer_norm_elementwise_affine", SMP_HARMLESS_TRUE, "norms without weights"},
    {NULL, SMP_HARMLESS_FALSE, NULL},
};

static void derive(smp_facts *facts)
{
    facts->value[SMP_FACT_POSITIONS] += 2;
    facts->value[SMP_FACT_FINAL_NORM] = facts->value[SMP_FACT_PRE_NORM];
}

const smp_family smp_family_opt = {
    .model_type = "opt",
    .norm = SMP_NORM_LAYER,
    .norm_bias = true,
    .position = SMP_POSITION_LEARNED,
    .first_position = 2,
    .keys = keys,
    .block = block,
    .root = root,
    .refusals = refusals,
    .derive = derive,
};
