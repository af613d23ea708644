/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gptj: attention and MLP beside each other behind one norm, rope on "rotary_dim" values of
 * each head, no bias in attention, a bias on the head.  The library ignores rope_scaling.
 */
#include "model/family.h"

#define LAYER "transformer.h.{}."

static const smp_key keys[] = {
    SMP_KEY(VOCAB, "vocab_size", 50400),
    SMP_KEY_2(POSITIONS, "n_positions", "max_position_embeddings", 2048),
    SMP_KEY_2(HIDDEN, "n_embd", "hidden_size", 4096),
    SMP_KEY_2(LAYERS, "n_layer", "num_hidden_layers", 28),
    SMP_KEY_2(HEADS, "n_head", "num_attention_heads", 16),
    SMP_KEY_OPEN(FFN, "n_inner", SMP_OPEN),
    SMP_KEY_WORD(ACTIVATION, "activation_function", "gelu_new"),
    SMP_KEY(RESIDUAL_DROPOUT, "resid_pdrop", 0),
    SMP_KEY(EMBEDDING_DROPOUT, "embd_pdrop", 0),
    SMP_KEY(ATTENTION_DROPOUT, "attn_pdrop", 0),
    SMP_KEY(NORM_EPS, "layer_norm_epsilon", 1e-5),
    SMP_KEY(INIT, "initializer_range", 0.02),
    SMP_KEY(TIED, "tie_word_embeddings", 0),
    SMP_KEY_OPEN(ROTARY_DIM, "rotary_dim", 64),
    SMP_FIXED(MLP_BIAS, 1),
    SMP_FIXED(PARALLEL, 1),
    SMP_FIXED(SINGLE_NORM, 1),
    SMP_FIXED(HEAD_BIAS, 1),
    SMP_END_KEYS,
};

static const smp_row block[] = {
    SMP_V(NORM1_W, LAYER "ln_1.weight", HIDDEN, NONE),
    SMP_V(NORM1_B, LAYER "ln_1.bias", HIDDEN, NONE),
    SMP_W(Q_W, LAYER "attn.q_proj.weight", Q, HIDDEN, OUT),
    SMP_W(K_W, LAYER "attn.k_proj.weight", KV, HIDDEN, KV),
    SMP_W(V_W, LAYER "attn.v_proj.weight", KV, HIDDEN, KV),
    SMP_W(O_W, LAYER "attn.out_proj.weight", HIDDEN, Q, IN),
    SMP_W(UP_W, LAYER "mlp.fc_in.weight", FFN, HIDDEN, OUT),
    SMP_V(UP_B, LAYER "mlp.fc_in.bias", FFN, OUT),
    SMP_W(DOWN_W, LAYER "mlp.fc_out.weight", HIDDEN, FFN, IN),
    SMP_V(DOWN_B, LAYER "mlp.fc_out.bias", HIDDEN, NONE),
    SMP_END_ROWS,
};

static const smp_row root[] = {
    SMP_W(EMBED, "transformer.wte.weight", VOCAB, HIDDEN, VOCAB),
    SMP_V(FINAL_NORM_W, "transformer.ln_f.weight", HIDDEN, NONE),
    SMP_V(FINAL_NORM_B, "transformer.ln_f.bias", HIDDEN, NONE),
    SMP_HEAD("lm_head.weight"),
    SMP_V(HEAD_B, "lm_head.bias", VOCAB, VOCAB),
    SMP_END_ROWS,
};

/* rotary_dim null: the whole head. */
static void derive(smp_facts *facts)
{
    double *v = facts->value;
    if (v[SMP_FACT_ROTARY_DIM] > 0) {
        v[SMP_FACT_ROTARY_FRAC] =
            v[SMP_FACT_ROTARY_DIM] * v[SMP_FACT_HEADS] / v[SMP_FACT_HIDDEN];
    }
}

const smp_family smp_family_gptj = {
    .model_type = "gptj",
    .norm = SMP_NORM_LAYER,
    .norm_bias = true,
    .position = SMP_POSITION_ROPE,
    .rope_interleaved = true,
    .ignores_rope_scaling = true,
    .keys = keys,
    .block = block,
    .root = root,
    .derive = derive,
};
