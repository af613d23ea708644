/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemma: llama with heads of 256, the embedding scaled by sqrt(hidden) and tied, norms that
 * multiply by 1 + weight.  The library takes "hidden_activation", else tanh gelu, whatever
 * "hidden_act" says.
 */
#include "model/family.h"

#include <math.h>

static const smp_key keys[] = {
    SMP_KEY(VOCAB, "vocab_size", 256000),
    SMP_KEY(HIDDEN, "hidden_size", 3072),
    SMP_KEY(FFN, "intermediate_size", 24576),
    SMP_KEY(LAYERS, "num_hidden_layers", 28),
    SMP_KEY(HEADS, "num_attention_heads", 16),
    SMP_KEY(KV_HEADS, "num_key_value_heads", 16),
    SMP_KEY(HEAD_DIM, "head_dim", 256),
    {.fact = SMP_FACT_ACTIVATION, .key = "hidden_activation",
     .word = "gelu_pytorch_tanh", .null = SMP_NULL_OPEN},
    SMP_KEY(POSITIONS, "max_position_embeddings", 8192),
    SMP_KEY(INIT, "initializer_range", 0.02),
    SMP_KEY(NORM_EPS, "rms_norm_eps", 1e-6),
    SMP_KEY(TIED, "tie_word_embeddings", 1),
    SMP_KEY(ROPE_THETA, "rope_theta", 10000),
    SMP_KEY(ATTENTION_DROPOUT, "attention_dropout", 0),
    SMP_KEY(QKV_BIAS, "attention_bias", 0),
    SMP_END_KEYS,
};

/* The embedding is multiplied by sqrt(hidden). */
static void derive(smp_facts *facts)
{
    facts->value[SMP_FACT_EMBEDDING_SCALE] = sqrt(facts->value[SMP_FACT_HIDDEN]);
}

const smp_family smp_family_gemma = {
    .model_type = "gemma",
    .norm = SMP_NORM_RMS,
    .norm_offset = 1,
    .gated = true,
    .position = SMP_POSITION_ROPE,
    .keys = keys,
    .block = smp_llama_block,
    .root = smp_llama_root,
    .derive = derive,
};
