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

#define SMP_KEY(fact_, key_, absent) {.fact = SMP_FACT_##fact_, .key = (key_), .value = (absent)}
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
    SMP_DIM_HEAD_DIM, SMP_DIM_FFN,
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
    SMP_WINDOWS_FROM /* layers from WINDOW_FROM on; "layer_types" overrides */
} smp_windows;

typedef struct smp_facts smp_facts;

typedef struct smp_family {
    const char *model_type;
    smp_norm_kind norm;
    bool norm_bias;
    bool gated;
    smp_position_kind position;
    smp_windows windows;
    const smp_key *keys;         /* ends with fact NONE */
    const smp_row *block, *root; /* in the order of smp_role; end with name NULL */
    const smp_refusal *refusals; /* ends with key NULL; may be NULL */
} smp_family;

/* The facts of one config.json while it is read. */
struct smp_facts {
    const smp_family *family;
    const smp_json *json;
    smp_errors *errors;
    const cJSON *object;              /* what holds the keys */
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
extern const smp_family smp_family_gpt2, smp_family_gpt_neox, smp_family_llama,
    smp_family_mistral, smp_family_qwen2, smp_family_qwen3;

#endif
