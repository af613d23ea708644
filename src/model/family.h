/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a family of models declares, and what the generic reader makes of it.
 *
 * A family is data: which keys of a config.json it reads (with aliases and the defaults of
 * the library that defines them), which parameters its blocks have under which conditions,
 * and which keys it cannot honour.  The reader turns the keys into numbered facts, derives
 * the facts that were left open, checks them, and builds the model from facts and rows.
 * A new family is one file with one smp_family and one line in registry.c; a feature that no
 * family had so far is a new fact.  Internal to src/model.
 *
 * Keys and defaults are those of Hugging Face transformers (releases 4.57 and 5.24,
 * src/transformers/models/FAMILY/configuration_FAMILY.py); parameter names and shapes those
 * of the modeling_FAMILY.py beside it.
 */
#ifndef SMP_MODEL_FAMILY_H
#define SMP_MODEL_FAMILY_H

#include "base/json.h"
#include "model/model.h"

/* Everything that a config.json can say, under one name.  Flags are 0 or 1. */
typedef enum smp_fact {
    SMP_FACT_NONE,
    SMP_FACT_LAYERS, SMP_FACT_HIDDEN, SMP_FACT_VOCAB, SMP_FACT_HEADS,
    SMP_FACT_KV_HEADS,      /* open: as many as heads */
    SMP_FACT_HEAD_DIM,      /* open: hidden / heads */
    SMP_FACT_FFN,           /* open: 4 hidden */
    SMP_FACT_POSITIONS,
    SMP_FACT_ACTIVATION,    /* a word */
    SMP_FACT_NORM_EPS, SMP_FACT_INIT, SMP_FACT_TIED,
    SMP_FACT_ATTENTION_DROPOUT, SMP_FACT_RESIDUAL_DROPOUT, SMP_FACT_EMBEDDING_DROPOUT,
    SMP_FACT_QKV_BIAS, SMP_FACT_OUT_BIAS, /* out open: as qkv */
    SMP_FACT_MLP_BIAS, SMP_FACT_QK_NORM, SMP_FACT_PARALLEL, SMP_FACT_HEAD_BIAS,
    SMP_FACT_ROPE_THETA,
    SMP_FACT_ROTARY_FRAC,
    SMP_FACT_WINDOW,        /* tokens; open or 0: none */
    SMP_FACT_USE_WINDOW,    /* whether the window acts at all */
    SMP_FACT_WINDOW_FROM,   /* layers from this one on have the window */
    SMP_FACT_LAYER_TYPES,   /* a list of "full_attention" and "sliding_attention" */
    SMP_FACT_WINDOW_PATTERN, /* every so many layers one has full attention */
    SMP_FACT_NO_ROPE_EVERY,  /* every so many layers one does not rotate; 0: all do */
    SMP_FACT_ROPE_LAYERS,    /* a list of 1 (rotates) and 0, which overrides it; empty: not */
    SMP_FACT_QK_NORM_WHOLE, SMP_FACT_QK_NORM_OWN, SMP_FACT_SINKS,
    SMP_FACT_QK_NORM_BARE,   /* without weights, on layers that rotate */
    SMP_FACT_TEMPERED,       /* q is scaled by its position on layers that do not rotate */
    SMP_FACT_TEMPERATURE, SMP_FACT_TEMPERATURE_FLOOR, /* by these: see smp_attention */
    SMP_FACT_QUERY_SCALAR,   /* logits are scaled by 1 / sqrt of it; open: head size */
    SMP_FACT_ATTENTION_SOFTCAP, SMP_FACT_LOGIT_SOFTCAP, SMP_FACT_CLIP_QKV,
    SMP_FACT_EMBEDDING_SCALE, SMP_FACT_LOGIT_SCALE,
    SMP_FACT_ALIBI, SMP_FACT_EMBEDDING_NORM,
    SMP_FACT_EMBEDDING_WIDTH, /* open: hidden */
    SMP_FACT_EMBEDDING_PROJECTED, /* derived: width differs from hidden */
    SMP_FACT_FINAL_NORM,
    SMP_FACT_PRE_NORM,       /* 0: norms after the residual (opt-350m) */
    SMP_FACT_SINGLE_NORM, SMP_FACT_TWO_NORMS, /* two: derived, the opposite of single */
    SMP_FACT_MULTI_QUERY, SMP_FACT_NEW_BLOCKS, SMP_FACT_PARALLEL_NORMS, /* falcon */
    SMP_FACT_ROTARY_DIM,
    SMP_FACT_EXPANSION,      /* ffn / hidden */
    SMP_FACT_Q_LORA,         /* 0: q is one matrix */
    SMP_FACT_KV_LORA, SMP_FACT_QK_NOPE, SMP_FACT_QK_ROPE, SMP_FACT_V_DIM,
    SMP_FACT_Q_DOWN_BIAS,    /* derived: q_lora and attention bias */
    SMP_FACT_EXPERTS, SMP_FACT_TOP_K, SMP_FACT_MOE_FFN, SMP_FACT_SHARED_FFN,
    SMP_FACT_SHARED_EXPERTS, /* number; their ffn is that many times MOE_FFN */
    SMP_FACT_SHARED_GATE, SMP_FACT_ROUTER_BIAS, SMP_FACT_CORRECTION_BIAS,
    SMP_FACT_SCORING,        /* a word: softmax or sigmoid */
    SMP_FACT_TOPK_METHOD,    /* a word */
    SMP_FACT_NORM_TOPK, SMP_FACT_ROUTED_SCALE, SMP_FACT_GROUPS, SMP_FACT_TOPK_GROUPS,
    SMP_FACT_SPARSE_STEP,    /* every so many layers one has experts */
    SMP_FACT_FIRST_DENSE,    /* leading layers without experts */
    SMP_FACT_MOE_EVERY,      /* deepseek's moe_layer_freq: only 1 is read */
    SMP_FACT_MLP_ONLY,       /* a list of layers without experts */
    SMP_FACT_MOE_LAYERS,     /* a list of those with experts, which overrides all else */
    SMP_FACT_IS_MOE, SMP_FACT_IS_DENSE, /* of the layer being built */
    SMP_FACT_HAS_SHARED,     /* derived: IS_MOE and shared experts */
    SMP_FACTS
} smp_fact;

/* What null means where the key is present. */
typedef enum smp_null {
    SMP_NULL_WRONG, /* the library fails on it: so do we (a flag: null is false) */
    SMP_NULL_OPEN   /* derived, or "none" */
} smp_null;

#define SMP_OPEN (-1.0) /* the value of a fact that nothing has set yet */

/* A key of a config.json.  With `key` NULL the family fixes the value.  A key may be a path
 * into nested objects ("attn_config.alibi"). */
typedef struct smp_key {
    smp_fact fact;
    const char *key, *alias; /* the first of the two that is present counts */
    double value;            /* when absent; SMP_OPEN: derived */
    const char *word;        /* the same for a fact that is a word */
    smp_null null;
} smp_key;

#define SMP_KEY(fact_, key_, absent) \
    {.fact = SMP_FACT_##fact_, .key = (key_), .value = (absent)}
#define SMP_KEY_2(fact_, key_, alias_, absent) \
    {.fact = SMP_FACT_##fact_, .key = (key_), .alias = (alias_), .value = (absent)}
/* A key whose null leaves the fact open. */
#define SMP_KEY_OPEN(fact_, key_, absent) \
    {.fact = SMP_FACT_##fact_, .key = (key_), .value = (absent), .null = SMP_NULL_OPEN}
#define SMP_KEY_WORD(fact_, key_, absent) \
    {.fact = SMP_FACT_##fact_, .key = (key_), .word = (absent)}
/* A value that the family fixes. */
#define SMP_FIXED(fact_, value_) {.fact = SMP_FACT_##fact_, .value = (value_)}
#define SMP_END_KEYS {.fact = SMP_FACT_NONE}

/* A dimension of a parameter. */
typedef enum smp_dim {
    SMP_DIM_NONE, SMP_DIM_HIDDEN, SMP_DIM_VOCAB, SMP_DIM_POSITIONS,
    SMP_DIM_Q,        /* heads x head_dim */
    SMP_DIM_KV,       /* kv heads x head_dim */
    SMP_DIM_HEAD_DIM, SMP_DIM_FFN, SMP_DIM_HEADS, SMP_DIM_ONE, SMP_DIM_EMBEDDING,
    SMP_DIM_Q_LORA, SMP_DIM_KV_LORA,
    SMP_DIM_KV_DOWN,  /* kv_lora + the rope part, which all heads share */
    SMP_DIM_KV_UP,    /* heads x (nope + v) */
    SMP_DIM_V,        /* heads x v */
    SMP_DIM_EXPERTS, SMP_DIM_MOE_FFN, SMP_DIM_SHARED_FFN,
    SMP_DIMS
} smp_dim;

/* A parameter.  It exists when the fact `when` (if any) is set and `unless` (if any) is not. */
typedef struct smp_row {
    smp_role role;
    const char *name;
    smp_dim out, in; /* `in` NONE: one-dimensional */
    smp_split split;
    smp_fact when, unless;
    bool transposed;
    bool per_expert;
} smp_row;

/* A matrix, a vector; the same under a condition. */
#define SMP_W(role_, name_, out_, in_, split_) \
    {.role = SMP_ROLE_##role_, .name = (name_), .out = SMP_DIM_##out_, \
     .in = SMP_DIM_##in_, .split = SMP_SPLIT_##split_}
#define SMP_W_IF(fact_, role_, name_, out_, in_, split_) \
    {.role = SMP_ROLE_##role_, .name = (name_), .out = SMP_DIM_##out_, \
     .in = SMP_DIM_##in_, .split = SMP_SPLIT_##split_, .when = SMP_FACT_##fact_}
#define SMP_V(role_, name_, out_, split_) \
    {.role = SMP_ROLE_##role_, .name = (name_), .out = SMP_DIM_##out_, \
     .split = SMP_SPLIT_##split_}
#define SMP_V_IF(fact_, role_, name_, out_, split_) \
    {.role = SMP_ROLE_##role_, .name = (name_), .out = SMP_DIM_##out_, \
     .split = SMP_SPLIT_##split_, .when = SMP_FACT_##fact_}
/* Of each expert, in layers that have experts. */
#define SMP_EXPERT_W(role_, name_, out_, in_, split_) \
    {.role = SMP_ROLE_##role_, .name = (name_), .out = SMP_DIM_##out_, \
     .in = SMP_DIM_##in_, .split = SMP_SPLIT_##split_, .when = SMP_FACT_IS_MOE, \
     .per_expert = true}
#define SMP_EXPERT_V(role_, name_, out_, split_) \
    {.role = SMP_ROLE_##role_, .name = (name_), .out = SMP_DIM_##out_, \
     .split = SMP_SPLIT_##split_, .when = SMP_FACT_IS_MOE, .per_expert = true}
/* llama's attention between its norms, under the prefix of a layer. */
#define SMP_ROWS_ATTENTION(layer) \
    SMP_W(Q_W, layer "self_attn.q_proj.weight", Q, HIDDEN, OUT), \
    SMP_W(K_W, layer "self_attn.k_proj.weight", KV, HIDDEN, KV), \
    SMP_W(V_W, layer "self_attn.v_proj.weight", KV, HIDDEN, KV), \
    SMP_V_IF(QKV_BIAS, Q_B, layer "self_attn.q_proj.bias", Q, OUT), \
    SMP_V_IF(QKV_BIAS, K_B, layer "self_attn.k_proj.bias", KV, KV), \
    SMP_V_IF(QKV_BIAS, V_B, layer "self_attn.v_proj.bias", KV, KV), \
    SMP_V_IF(QK_NORM, Q_NORM_W, layer "self_attn.q_norm.weight", HEAD_DIM, NONE), \
    SMP_V_IF(QK_NORM, K_NORM_W, layer "self_attn.k_norm.weight", HEAD_DIM, NONE), \
    SMP_W(O_W, layer "self_attn.o_proj.weight", HIDDEN, Q, IN), \
    SMP_V_IF(OUT_BIAS, O_B, layer "self_attn.o_proj.bias", HIDDEN, NONE)
/* llama's MLP, in layers without experts. */
#define SMP_ROWS_MLP(layer) \
    SMP_W_IF(IS_DENSE, GATE_W, layer "mlp.gate_proj.weight", FFN, HIDDEN, OUT), \
    SMP_W_IF(IS_DENSE, UP_W, layer "mlp.up_proj.weight", FFN, HIDDEN, OUT), \
    SMP_V_IF(MLP_BIAS, GATE_B, layer "mlp.gate_proj.bias", FFN, OUT), \
    SMP_V_IF(MLP_BIAS, UP_B, layer "mlp.up_proj.bias", FFN, OUT), \
    SMP_W_IF(IS_DENSE, DOWN_W, layer "mlp.down_proj.weight", HIDDEN, FFN, IN), \
    SMP_V_IF(MLP_BIAS, DOWN_B, layer "mlp.down_proj.bias", HIDDEN, NONE)
#define SMP_ROWS_EXPERTS(layer) \
    SMP_W_IF(IS_MOE, ROUTER_W, layer "mlp.gate.weight", EXPERTS, HIDDEN, NONE), \
    SMP_V_IF(CORRECTION_BIAS, ROUTER_CORRECTION, layer "mlp.gate.e_score_correction_bias", \
             EXPERTS, NONE), \
    SMP_EXPERT_W(EXPERT_GATE_W, layer "mlp.experts.{}.gate_proj.weight", MOE_FFN, HIDDEN, \
                 EXPERT_OUT), \
    SMP_EXPERT_W(EXPERT_UP_W, layer "mlp.experts.{}.up_proj.weight", MOE_FFN, HIDDEN, \
                 EXPERT_OUT), \
    SMP_EXPERT_W(EXPERT_DOWN_W, layer "mlp.experts.{}.down_proj.weight", HIDDEN, MOE_FFN, \
                 EXPERT_IN)
#define SMP_ROWS_SHARED(layer, module) \
    SMP_W_IF(HAS_SHARED, SHARED_GATE_W, layer module ".gate_proj.weight", SHARED_FFN, HIDDEN, \
             OUT), \
    SMP_W_IF(HAS_SHARED, SHARED_UP_W, layer module ".up_proj.weight", SHARED_FFN, HIDDEN, \
             OUT), \
    SMP_W_IF(HAS_SHARED, SHARED_DOWN_W, layer module ".down_proj.weight", HIDDEN, SHARED_FFN, \
             IN)
/* The head: absent when it is the embedding. */
#define SMP_HEAD(name_) \
    {.role = SMP_ROLE_HEAD_W, .name = (name_), .out = SMP_DIM_VOCAB, \
     .in = SMP_DIM_HIDDEN, .split = SMP_SPLIT_VOCAB, .unless = SMP_FACT_TIED}
#define SMP_END_ROWS {.name = NULL}

/* A key that changes the model in a way we do not follow, unless it has its harmless value. */
typedef enum smp_harmless { SMP_HARMLESS_FALSE, SMP_HARMLESS_TRUE } smp_harmless;
typedef struct smp_refusal {
    const char *key;
    smp_harmless harmless; /* FALSE: also null, 0, "", [] and {}, as in Python */
    const char *why;
} smp_refusal;

/* Which layers have the sliding window. */
typedef enum smp_windows {
    SMP_WINDOWS_ALL, /* every layer, when there is a window */
    SMP_WINDOWS_FROM,   /* layers from WINDOW_FROM on; "layer_types" overrides */
    SMP_WINDOWS_PATTERN /* all but every WINDOW_PATTERN-th; "layer_types" overrides */
} smp_windows;

typedef struct smp_facts smp_facts;

typedef struct smp_family {
    const char *model_type;
    smp_norm_kind norm;
    bool norm_bias;
    bool gated;
    bool clamped_swiglu;         /* whatever the activation's word is */
    smp_position_kind position;
    smp_windows windows;
    smp_norm_place norm_place;
    bool ignores_rope_scaling;   /* the library never looks at it */
    bool chunked_window, weighs_input; /* these: see smp_attention, smp_moe */
    bool rope_interleaved;       /* these: see smp_model */
    double norm_offset, rope_local_theta;
    bool alibi_over_root;
    uint32_t first_position;
    const smp_key *keys;         /* ends with fact NONE */
    const smp_row *block, *root; /* in the order of smp_role; end with name NULL */
    const smp_refusal *refusals; /* ends with key NULL; may be NULL */
    /* What follows from several keys at once, before the general derivation; may be NULL. */
    void (*derive)(smp_facts *facts);
} smp_family;

/* The facts of one config.json while it is read. */
struct smp_facts {
    const smp_family *family;
    const smp_json *json;
    smp_errors *errors;
    const cJSON *object;              /* what holds the keys */
    const cJSON *outer;               /* the config around a text_config, or NULL */
    double value[SMP_FACTS];
    const char *word[SMP_FACTS];
    const cJSON *node[SMP_FACTS];     /* NULL: the key is absent */
    const char *key[SMP_FACTS];       /* the name under which the fact is known */
};

/* The families, NULL-terminated, and one by name. */
const smp_family *const *smp_families(void);
const smp_family *smp_family_find(const char *model_type);

/* Reads every key of the family and reports every value of wrong type or out of range. */
void smp_facts_read(smp_facts *facts);
/* Derives what is open, then reports every broken rule between facts. */
void smp_facts_check(smp_facts *facts);
static inline uint64_t smp_fact_u64(const smp_facts *facts, smp_fact fact)
{
    return facts->value[fact] > 0 ? (uint64_t)facts->value[fact] : 0;
}
/* Place of a fact's value, or of the object that lacks it. */
smp_place smp_fact_place(const smp_facts *facts, smp_fact fact);
/* The member at a path such as "a.b", or NULL. */
const cJSON *smp_object_at(const cJSON *object, const char *path);
/* False: no such activation. */
bool smp_activation_find(const char *word, smp_activation *activation_p);
/* Reads rope_theta's companions: rope_scaling, or the newer rope_parameters. */
void smp_rope_read(smp_facts *facts, smp_model *model);

/* Rows that several families share under the same names (family_llama.c). */
extern const smp_row smp_llama_block[], smp_llama_root[];

/* Kinds of layers, parameters and counts, from checked facts. */
void smp_model_build(const smp_facts *facts, smp_model *model);

/* The families' declarations, one file each. */
extern const smp_family smp_family_bloom;
extern const smp_family smp_family_cohere;
extern const smp_family smp_family_dbrx;
extern const smp_family smp_family_deepseek;
extern const smp_family smp_family_deepseek_v2;
extern const smp_family smp_family_deepseek_v3;
extern const smp_family smp_family_falcon;
extern const smp_family smp_family_gemma;
extern const smp_family smp_family_gemma2;
extern const smp_family smp_family_gemma3;
extern const smp_family smp_family_gpt2;
extern const smp_family smp_family_gpt_bigcode;
extern const smp_family smp_family_gpt_neox;
extern const smp_family smp_family_gpt_oss;
extern const smp_family smp_family_gptj;
extern const smp_family smp_family_kimi_k2;
extern const smp_family smp_family_llama;
extern const smp_family smp_family_llama4;
extern const smp_family smp_family_mistral;
extern const smp_family smp_family_mixtral;
extern const smp_family smp_family_mpt;
extern const smp_family smp_family_olmo2;
extern const smp_family smp_family_opt;
extern const smp_family smp_family_phi;
extern const smp_family smp_family_phi3;
extern const smp_family smp_family_qwen2;
extern const smp_family smp_family_qwen2_moe;
extern const smp_family smp_family_qwen3;
extern const smp_family smp_family_qwen3_moe;
extern const smp_family smp_family_qwen3_vl_moe_text;
extern const smp_family smp_family_stablelm;
extern const smp_family smp_family_starcoder2;

#endif
