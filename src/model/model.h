/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transformer that a config.json describes: blocks, parameters, counts.
 *
 * A model is embedding, blocks 0..n_layer-1, final norm, head.  Blocks of one kind are alike
 * (`kinds`); a family whose layers differ (leading dense layers, sliding windows in every
 * other layer) has several.  A kind lists its parameters in the order in which they lie in
 * the flat parameter of the block: q, k, v adjacent and gate, up adjacent, so that each is
 * one matrix product.  Nothing here knows about ranks or time.
 */
#ifndef SMP_MODEL_MODEL_H
#define SMP_MODEL_MODEL_H

#include "base/arena.h"
#include "smp.h"

typedef enum smp_norm_kind { SMP_NORM_RMS, SMP_NORM_LAYER } smp_norm_kind;
typedef enum smp_activation {
    SMP_ACT_SILU, SMP_ACT_GELU, SMP_ACT_GELU_TANH, SMP_ACT_RELU, SMP_ACT_QUICK_GELU,
    SMP_ACT_CLAMPED_SWIGLU /* gated only: gpt_oss */
} smp_activation;
typedef enum smp_rope_scaling {
    SMP_ROPE_PLAIN, SMP_ROPE_LINEAR, SMP_ROPE_DYNAMIC, SMP_ROPE_YARN, SMP_ROPE_LONGROPE,
    SMP_ROPE_LLAMA3
} smp_rope_scaling;
typedef enum smp_position_kind {
    SMP_POSITION_NONE, SMP_POSITION_ROPE, SMP_POSITION_LEARNED, SMP_POSITION_ALIBI
} smp_position_kind;

/* Where the norms of a block stand.  f is attention or MLP. */
typedef enum smp_norm_place {
    SMP_NORM_BEFORE,        /* x + f(norm x) */
    SMP_NORM_AFTER,         /* x + norm f(x) */
    SMP_NORM_AROUND,        /* x + post(f(norm x)) */
    SMP_NORM_AFTER_RESIDUAL /* norm(x + f(x)) */
} smp_norm_place;

/* How tensor parallelism of degree t splits a parameter, by its first dimension (out
 * features; a Conv1D weight is declared by its logical [out, in] and marked). */
typedef enum smp_split {
    SMP_SPLIT_NONE,   /* a whole copy on each rank */
    SMP_SPLIT_OUT,    /* column parallel: out features / t */
    SMP_SPLIT_KV,     /* column parallel over kv heads; fewer heads than t: copies */
    SMP_SPLIT_IN,     /* row parallel: in features / t */
    SMP_SPLIT_VOCAB,  /* vocabulary / t, padded to a multiple of t */
    SMP_SPLIT_EXPERT_OUT, SMP_SPLIT_EXPERT_IN /* as OUT and IN inside one expert */
} smp_split;

/* What a parameter is for.  The order is that of the flat parameter of a unit. */
typedef enum smp_role {
    SMP_ROLE_EMBED, SMP_ROLE_POSITION, SMP_ROLE_EMBED_IN_W, /* embedding width to hidden */
    SMP_ROLE_EMBED_NORM_W, SMP_ROLE_EMBED_NORM_B,
    SMP_ROLE_NORM1_W, SMP_ROLE_NORM1_B,
    SMP_ROLE_Q_W, SMP_ROLE_K_W, SMP_ROLE_V_W, SMP_ROLE_Q_B, SMP_ROLE_K_B, SMP_ROLE_V_B,
    SMP_ROLE_Q_NORM_W, SMP_ROLE_Q_NORM_B, SMP_ROLE_K_NORM_W, SMP_ROLE_K_NORM_B,
    /* latent attention: down to the rank, norm, up to the heads */
    SMP_ROLE_Q_DOWN_W, SMP_ROLE_Q_DOWN_B, SMP_ROLE_Q_DOWN_NORM_W, SMP_ROLE_Q_UP_W,
    SMP_ROLE_KV_DOWN_W, SMP_ROLE_KV_DOWN_B, SMP_ROLE_KV_DOWN_NORM_W, SMP_ROLE_KV_UP_W,
    SMP_ROLE_SINKS, /* one logit a head that takes part in the softmax */
    SMP_ROLE_O_W, SMP_ROLE_O_B,
    SMP_ROLE_POST_NORM1_W, SMP_ROLE_POST_NORM1_B,
    SMP_ROLE_NORM2_W, SMP_ROLE_NORM2_B,
    SMP_ROLE_GATE_W, SMP_ROLE_UP_W, SMP_ROLE_GATE_B, SMP_ROLE_UP_B,
    SMP_ROLE_DOWN_W, SMP_ROLE_DOWN_B,
    SMP_ROLE_ROUTER_W, SMP_ROLE_ROUTER_B,
    SMP_ROLE_ROUTER_CORRECTION, /* added to scores for the choice of experts only */
    SMP_ROLE_EXPERT_GATE_W, SMP_ROLE_EXPERT_UP_W, SMP_ROLE_EXPERT_GATE_B,
    SMP_ROLE_EXPERT_UP_B, SMP_ROLE_EXPERT_DOWN_W, SMP_ROLE_EXPERT_DOWN_B,
    SMP_ROLE_SHARED_GATE_W, SMP_ROLE_SHARED_UP_W, SMP_ROLE_SHARED_DOWN_W,
    SMP_ROLE_SHARED_ROUTER_W, /* sigmoid gate on the shared experts' output */
    SMP_ROLE_POST_NORM2_W, SMP_ROLE_POST_NORM2_B,
    SMP_ROLE_FINAL_NORM_W, SMP_ROLE_FINAL_NORM_B, SMP_ROLE_EMBED_OUT_W,
    SMP_ROLE_HEAD_W, SMP_ROLE_HEAD_B,
    SMP_ROLES
} smp_role;

/* Parameters of routed experts, which expert parallelism splits by experts. */
static inline bool smp_role_is_expert(smp_role role)
{
    return role >= SMP_ROLE_EXPERT_GATE_W && role <= SMP_ROLE_EXPERT_DOWN_B;
}

typedef struct smp_param {
    smp_role role;
    const char *name;   /* Hugging Face name, "{}" for the layer and the expert number */
    uint32_t n_dim;     /* 1 or 2; fused tensors of the checkpoint appear as the parts
                           they consist of only in `role`; `name` is then the same */
    uint64_t shape[2];  /* [out, in], [vocabulary, hidden] or [features] */
    smp_split split;
    bool transposed;    /* the checkpoint stores [in, out] (Conv1D) */
    uint64_t count;     /* experts that have it each; 1 outside of experts */
} smp_param;

typedef struct smp_attention {
    uint32_t heads, kv_heads, head_dim;
    bool qkv_bias, out_bias, qk_norm;
    uint32_t window;      /* sliding window in tokens, 0: none */
    bool chunked;         /* the window does not slide: a token sees what has its multiple */
    double dropout;       /* on the probabilities */
    bool qk_norm_whole;   /* the norm is over all heads of q (of k), not over each head */
    bool qk_norm_own;     /* each head has weights of its own for its norm */
    bool qk_norm_bare;    /* each head of q and k is divided by its rms, after rope */
    bool no_rope;         /* this layer does not rotate, though the model does */
    /* q is scaled by 1 + temperature log(1 + floor((position + 1) / temperature_floor)), with
     * positions from 0; 0: not [Nakanishi 2025; transformers, modeling_llama4.py] */
    double temperature;
    uint32_t temperature_floor;
    bool sinks;
    double scale;         /* of the logits; 0: 1 / sqrt(size of a q head) */
    double softcap;       /* c tanh(logits / c); 0: none */
    double clip;          /* q, k, v clipped to [-clip, clip]; 0: not */
    /* multi-head latent attention [DeepSeek-V2, 2024, sec. 2.1]; kv_lora_rank 0: none.
     * head_dim is then nope + rope, and only the rope part is rotated. */
    uint32_t q_lora_rank, kv_lora_rank, qk_nope_dim, qk_rope_dim, v_head_dim;
} smp_attention;

typedef struct smp_mlp {
    uint64_t ffn;
    bool gated;
    bool bias;
    smp_activation activation;
} smp_mlp;

/* Routed experts in place of the MLP; experts 0: none. */
typedef struct smp_moe {
    uint32_t experts, top_k;
    uint64_t ffn;           /* of one expert */
    uint64_t shared_ffn;    /* of the shared experts together; 0: none */
    bool shared_gate;       /* their output is weighted by a sigmoid of the input */
    bool sigmoid_scores;    /* else softmax */
    bool correction_bias;   /* a bias on the scores, for the choice only */
    bool router_bias;
    bool norm_topk;         /* weights of the chosen are normalised to sum 1 */
    uint32_t groups, topk_groups; /* choice limited to groups of experts; 0 or 1: not */
    double scale;           /* of the routed output */
    bool weighs_input;      /* weights multiply what experts read, not what they return */
    bool gated, bias;
    smp_activation activation;
} smp_moe;

/* A kind of block. */
typedef struct smp_block {
    smp_norm_kind norm;
    bool norm_bias;
    bool parallel_residual; /* x + attention(norm1 x) + mlp(norm2 x) */
    smp_norm_place norm_place;
    bool single_norm;       /* with parallel_residual: norm1 serves attention and MLP */
    double residual_dropout;
    smp_attention attention;
    smp_mlp mlp;            /* acts when moe.experts is 0 */
    smp_moe moe;
    smp_param *params;
    uint32_t n_param;
} smp_block;

struct smp_model {
    smp_arena *arena;      /* owns everything below */
    const char *name;      /* as given by the user, without directories and suffix */
    const char *family;    /* model_type */
    const char *config;    /* text of the config.json, for plan files */
    uint32_t n_layer;
    uint64_t hidden;
    uint64_t vocab;
    uint64_t max_positions; /* 0: unknown */
    bool tied;              /* head and embedding are one parameter */
    smp_position_kind position;
    bool alibi_over_root;    /* slopes of alibi are divided by sqrt(head_dim): falcon */
    uint32_t first_position; /* row of the table of positions that token 0 has */
    double rope_theta;
    double rotary_frac;     /* of head_dim that is rotated */
    bool rope_interleaved;  /* pairs are neighbours, not half a rotated part apart */
    smp_rope_scaling rope_scaling;
    double rope_factor, rope_low_freq, rope_high_freq, rope_original_positions;
    double rope_attention_factor;  /* yarn, longrope: scale of cos and sin; else 1 */
    double rope_logit_factor;      /* of attention logits, from yarn's mscale_all_dim */
    double rope_local_theta;       /* of layers with a window, unscaled; 0: as the others */
    double rope_beta_fast, rope_beta_slow;                    /* yarn */
    bool rope_ramp_unrounded;                                 /* yarn: its ends */
    const double *rope_short_factors, *rope_long_factors;     /* longrope: per pair */
    double embedding_dropout;
    uint64_t embedding_width; /* hidden, unless projections lie between (opt-350m) */
    bool embedding_norm, head_bias;
    double embedding_scale, logit_scale; /* factors; 1: none */
    double logit_softcap;                /* 0: none */
    double norm_offset;                  /* RMS norms multiply by this + weight */
    double norm_eps, initializer_range;
    smp_block *kinds;
    uint32_t n_kind;
    uint8_t *kind_of_layer; /* n_layer entries */
    smp_param *root;        /* embedding, positions, final norm, head (absent when tied) */
    uint32_t n_root;
    uint64_t parameters, active_parameters;
};

/* Reads a model from the text of a config.json; `place_name` stands for the file. */
SMP_CHECK smp_status smp_model_parse(const char *text, size_t n, const char *place_name,
                                     const char *model_name, smp_errors *errors,
                                     smp_model **model_p);
static inline const smp_block *smp_model_block(const smp_model *model, uint32_t layer)
{
    return &model->kinds[model->kind_of_layer[layer]];
}
/* Of the layer that has most; 0: a model without experts. */
uint32_t smp_model_experts(const smp_model *model);
uint64_t smp_param_elems(const smp_param *param);
/* Elements of the parameter on one tensor rank of degree t: split, padded, or copied. */
uint64_t smp_param_local_elems(const smp_model *model, const smp_block *block_or_null,
                               const smp_param *param, uint32_t tensor_degree);
/* Key-value heads of one tensor rank: kv_heads / t, at least 1. */
uint32_t smp_local_kv_heads(uint32_t kv_heads, uint32_t tensor_degree);
/* Vocabulary of one tensor rank: padded up to a multiple of t, divided by t. */
uint64_t smp_local_vocab(uint64_t vocab, uint32_t tensor_degree);

/* Shape of the parameter on one tensor rank of degree t; out has n_dim places. */
void smp_param_local_shape(const smp_model *model, const smp_block *block_or_null,
                           const smp_param *param, uint32_t tensor_degree, uint64_t *shape);
const char *smp_split_name(smp_split split);

#endif
