/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpt_bigcode: gpt2 with plain linear layers and, with "multi_query", one key-value head.
 */
#include "model/family.h"

#define LAYER "transformer.h.{}."

static const smp_key keys[] = {
    SMP_KEY(VOCAB, "vocab_size", 50257),
    SMP_KEY_2(POSITIONS, "n_positions", "max_position_embeddings", 1024),
    SMP_KEY_2(HIDDEN, "n_embd", "hidden_size", 768),
    SMP_KEY_2(LAYERS, "n_layer", "num_hidden_layers", 12),
    SMP_KEY_2(HEADS, "n_head", "num_attention_heads", 12),
    SMP_KEY_OPEN(FFN, "n_inner", SMP_OPEN),
    SMP_KEY_WORD(ACTIVATION, "activation_function", "gelu_pytorch_tanh"),
    SMP_KEY(RESIDUAL_DROPOUT, "resid_pdrop", 0.1),
    SMP_KEY(EMBEDDING_DROPOUT, "embd_pdrop", 0.1),
    SMP_KEY(ATTENTION_DROPOUT, "attn_pdrop", 0.1),
    SMP_KEY(NORM_EPS, "layer_norm_epsilon", 1e-5),
    SMP_KEY(INIT, "initializer_range", 0.02),
    SMP_KEY(TIED, "tie_word_embeddings", 1),
    SMP_KEY(MULTI_QUERY, "multi_query", 1),
    SMP_FIXED(QKV_BIAS, 1),
    SMP_FIXED(MLP_BIAS, 1),
    SMP_END_KEYS,
};

static const smp_row block[] = {
    SMP_V(NORM1_W, LAYER "ln_1.weight", HIDDEN, NONE),
    SMP_V(NORM1_B, LAYER "ln_1.bias", HIDDEN, NONE),
    SMP_W(Q_W, LAYER "attn.c_attn.weight", Q, HIDDEN, OUT),
    SMP_W(K_W, LAYER "attn.c_attn.weight", KV, HIDDEN, KV),
    SMP_W(V_W, LAYER "attn.c_attn.weight", KV, HIDDEN, KV),
    SMP_V(Q_B, LAYER "attn.c_attn.bias", Q, OUT),
    SMP_V(K_B, LAYER "attn.c_attn.bias", KV, KV),
    SMP_V(V_B, LAYER "attn.c_attn.bias", KV, KV),
    SMP_W(O_W, LAYER "attn.c_proj.weight", HIDDEN, Q, IN),
    SMP_V(O_B, LAYER "attn.c_proj.bias", HIDDEN, NONE),
    SMP_V(NORM2_W, LAYER "ln_2.weight", HIDDEN, NONE),
    SMP_V(NORM2_B, LAYER "ln_2.bias", HIDDEN, NONE),
    SMP_W(UP_W, LAYER "mlp.c_fc.weight", FFN, HIDDEN, OUT),
    SMP_V(UP_B, LAYER "mlp.c_fc.bias", FFN, OUT),
    SMP_W(DOWN_W, LAYER "mlp.c_proj.weight", HIDDEN, FFN, IN),
    SMP_V(DOWN_B, LAYER "mlp.c_proj.bias", HIDDEN, NONE),
    SMP_END_ROWS,
};

static const smp_row root[] = {
    SMP_W(EMBED, "transformer.wte.weight", VOCAB, HIDDEN, VOCAB),
    SMP_W(POSITION, "transformer.wpe.weight", POSITIONS, HIDDEN, NONE),
    SMP_V(FINAL_NORM_W, "transformer.ln_f.weight", HIDDEN, NONE),
    SMP_V(FINAL_NORM_B, "transformer.ln_f.bias", HIDDEN, NONE),
    SMP_HEAD("lm_head.weight"),
    SMP_END_ROWS,
};

static const smp_refusal refusals[] = {
    {"scale_attn_weights", SMP_HARMLESS_TRUE, "attention without 1/sqrt(head size)"},
    {NULL, SMP_HARMLESS_FALSE, NULL},
};

static void derive(smp_facts *facts)
{
    if (facts->value[SMP_FACT_MULTI_QUERY] > 0) {
        facts->value[SMP_FACT_KV_HEADS] = 1;
    }
}

const smp_family smp_family_gpt_bigcode = {
    .model_type = "gpt_bigcode",
    .norm = SMP_NORM_LAYER,
    .norm_bias = true,
    .position = SMP_POSITION_LEARNED,
    .keys = keys,
    .block = block,
    .root = root,
    .refusals = refusals,
    .derive = derive,
};
