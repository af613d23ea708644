/* SPDX-License-Identifier: Apache-2.0 */
/*
 * falcon: the 7b form (one key-value head, attention and MLP beside each other behind one norm)
 * and the 40b form ("new_decoder_architecture": groups of heads, a norm for each of the two).
 */
#include "model/family.h"

#define LAYER "transformer.h.{}."

static const smp_key keys[] = {
    SMP_KEY(VOCAB, "vocab_size", 65024),
    SMP_KEY_2(HIDDEN, "n_embed", "hidden_size", 4544),
    SMP_KEY_2(LAYERS, "num_hidden_layers", "n_layer", 32),
    SMP_KEY_2(HEADS, "num_attention_heads", "n_head", 71),
    SMP_KEY_OPEN(PARALLEL_NORMS, "num_ln_in_parallel_attn", SMP_OPEN),
    SMP_KEY(NORM_EPS, "layer_norm_epsilon", 1e-5),
    SMP_KEY(INIT, "initializer_range", 0.02),
    SMP_KEY(RESIDUAL_DROPOUT, "hidden_dropout", 0),
    SMP_KEY(ATTENTION_DROPOUT, "attention_dropout", 0),
    SMP_KEY_OPEN(KV_HEADS, "num_kv_heads", SMP_OPEN),
    SMP_KEY(ALIBI, "alibi", 0),
    SMP_KEY(NEW_BLOCKS, "new_decoder_architecture", 0),
    SMP_KEY(MULTI_QUERY, "multi_query", 1),
    SMP_KEY(PARALLEL, "parallel_attn", 1),
    SMP_KEY(QKV_BIAS, "bias", 0),
    SMP_KEY(MLP_BIAS, "bias", 0),
    SMP_KEY(POSITIONS, "max_position_embeddings", 2048),
    SMP_KEY(ROPE_THETA, "rope_theta", 10000),
    SMP_KEY_OPEN(FFN, "ffn_hidden_size", SMP_OPEN),
    SMP_KEY_WORD(ACTIVATION, "activation", "gelu"),
    SMP_KEY(TIED, "tie_word_embeddings", 1),
    SMP_END_KEYS,
};

/* The first norm has another name in blocks with two of them beside each other. */
static const smp_row block[] = {
    {.role = SMP_ROLE_NORM1_W, .name = LAYER "input_layernorm.weight", .out = SMP_DIM_HIDDEN},
    {.role = SMP_ROLE_NORM1_B, .name = LAYER "input_layernorm.bias", .out = SMP_DIM_HIDDEN},
    SMP_W(Q_W, LAYER "self_attention.query_key_value.weight", Q, HIDDEN, OUT),
    SMP_W(K_W, LAYER "self_attention.query_key_value.weight", KV, HIDDEN, KV),
    SMP_W(V_W, LAYER "self_attention.query_key_value.weight", KV, HIDDEN, KV),
    SMP_V_IF(QKV_BIAS, Q_B, LAYER "self_attention.query_key_value.bias", Q, OUT),
    SMP_V_IF(QKV_BIAS, K_B, LAYER "self_attention.query_key_value.bias", KV, KV),
    SMP_V_IF(QKV_BIAS, V_B, LAYER "self_attention.query_key_value.bias", KV, KV),
    SMP_W(O_W, LAYER "self_attention.dense.weight", HIDDEN, Q, IN),
    SMP_V_IF(OUT_BIAS, O_B, LAYER "self_attention.dense.bias", HIDDEN, NONE),
    SMP_V_IF(TWO_NORMS, NORM2_W, LAYER "post_attention_layernorm.weight", HIDDEN, NONE),
    SMP_V_IF(TWO_NORMS, NORM2_B, LAYER "post_attention_layernorm.bias", HIDDEN, NONE),
    SMP_W(UP_W, LAYER "mlp.dense_h_to_4h.weight", FFN, HIDDEN, OUT),
    SMP_V_IF(MLP_BIAS, UP_B, LAYER "mlp.dense_h_to_4h.bias", FFN, OUT),
    SMP_W(DOWN_W, LAYER "mlp.dense_4h_to_h.weight", HIDDEN, FFN, IN),
    SMP_V_IF(MLP_BIAS, DOWN_B, LAYER "mlp.dense_4h_to_h.bias", HIDDEN, NONE),
    SMP_END_ROWS,
};

static const smp_row root[] = {
    SMP_W(EMBED, "transformer.word_embeddings.weight", VOCAB, HIDDEN, VOCAB),
    SMP_V(FINAL_NORM_W, "transformer.ln_f.weight", HIDDEN, NONE),
    SMP_V(FINAL_NORM_B, "transformer.ln_f.bias", HIDDEN, NONE),
    SMP_HEAD("lm_head.weight"),
    SMP_END_ROWS,
};

static const smp_refusal refusals[] = {
    {"apply_residual_connection_post_layernorm", SMP_HARMLESS_FALSE,
     "a residual taken behind the norm"},
    {NULL, SMP_HARMLESS_FALSE, NULL},
};

static void derive(smp_facts *facts)
{
    double *v = facts->value;
    bool two = v[SMP_FACT_PARALLEL_NORMS] >= 2 ||
               (v[SMP_FACT_PARALLEL_NORMS] < 0 && v[SMP_FACT_NEW_BLOCKS] > 0);
    v[SMP_FACT_SINGLE_NORM] = v[SMP_FACT_PARALLEL] > 0 && !two;
    if (!(v[SMP_FACT_NEW_BLOCKS] > 0)) {
        v[SMP_FACT_KV_HEADS] = v[SMP_FACT_MULTI_QUERY] > 0 ? 1 : v[SMP_FACT_HEADS];
    }
}

const smp_family smp_family_falcon = {
    .model_type = "falcon",
    .norm = SMP_NORM_LAYER,
    .norm_bias = true,
    .position = SMP_POSITION_ROPE,
    .alibi_over_root = true,
    .keys = keys,
    .block = block,
    .root = root,
    .refusals = refusals,
    .derive = derive,
};
