/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the keys of a config.json to facts: names, aliases, types, ranges, defaults, nulls.
 * Rules between facts are in rules.c.
 */
#include "model/family.h"

#include <string.h>

typedef enum fact_type {
    TYPE_U64, TYPE_DOUBLE, TYPE_FLAG,
    TYPE_TRUTH, /* a flag for which Python's truth of any number is taken */
    TYPE_WORD, TYPE_LIST
} fact_type;

/* Type, range and the value of a fact that the family does not mention.  The ranges keep
 * every product of two sizes within 64 bits and exclude what no transformer has. */
typedef struct fact_info {
    fact_type type;
    double low, high;
    double absent;
    const char *name;
} fact_info;

static const fact_info infos[SMP_FACTS] = {
    [SMP_FACT_LAYERS] = {TYPE_U64, 1, 10000, SMP_OPEN, "num_hidden_layers"},
    [SMP_FACT_HIDDEN] = {TYPE_U64, 1, 1 << 20, SMP_OPEN, "hidden_size"},
    [SMP_FACT_VOCAB] = {TYPE_U64, 1, 1 << 28, SMP_OPEN, "vocab_size"},
    [SMP_FACT_HEADS] = {TYPE_U64, 1, 1 << 16, SMP_OPEN, "num_attention_heads"},
    [SMP_FACT_KV_HEADS] = {TYPE_U64, 1, 1 << 16, SMP_OPEN, "num_key_value_heads"},
    [SMP_FACT_HEAD_DIM] = {TYPE_U64, 1, 1 << 16, SMP_OPEN, "head_dim"},
    [SMP_FACT_FFN] = {TYPE_U64, 1, 1 << 24, SMP_OPEN, "intermediate_size"},
    [SMP_FACT_POSITIONS] = {TYPE_U64, 1, 1 << 30, SMP_OPEN, "max_position_embeddings"},
    [SMP_FACT_ACTIVATION] = {TYPE_WORD, 0, 0, 0, "hidden_act"},
    [SMP_FACT_NORM_EPS] = {TYPE_DOUBLE, 0, 1, 1e-5, "norm_eps"},
    [SMP_FACT_INIT] = {TYPE_DOUBLE, 0, 1, 0.02, "initializer_range"},
    [SMP_FACT_TIED] = {TYPE_FLAG, 0, 1, 1, "tie_word_embeddings"},
    [SMP_FACT_ATTENTION_DROPOUT] = {TYPE_DOUBLE, 0, 1, 0, "attention_dropout"},
    [SMP_FACT_RESIDUAL_DROPOUT] = {TYPE_DOUBLE, 0, 1, 0, "resid_pdrop"},
    [SMP_FACT_EMBEDDING_DROPOUT] = {TYPE_DOUBLE, 0, 1, 0, "embd_pdrop"},
    [SMP_FACT_QKV_BIAS] = {TYPE_FLAG, 0, 1, 0, "attention_bias"},
    [SMP_FACT_OUT_BIAS] = {TYPE_FLAG, 0, 1, SMP_OPEN, "attention_bias"},
    [SMP_FACT_MLP_BIAS] = {TYPE_FLAG, 0, 1, 0, "mlp_bias"},
    [SMP_FACT_QK_NORM] = {TYPE_FLAG, 0, 1, 0, "qk_norm"},
    [SMP_FACT_PARALLEL] = {TYPE_FLAG, 0, 1, 0, "use_parallel_residual"},
    [SMP_FACT_HEAD_BIAS] = {TYPE_FLAG, 0, 1, 0, "lm_head_bias"},
    [SMP_FACT_ROPE_THETA] = {TYPE_DOUBLE, 1, 1e15, 10000, "rope_theta"},
    [SMP_FACT_ROTARY_FRAC] = {TYPE_DOUBLE, 0, 1, 1, "partial_rotary_factor"},
    [SMP_FACT_WINDOW] = {TYPE_U64, 1, 1 << 30, SMP_OPEN, "sliding_window"},
    [SMP_FACT_USE_WINDOW] = {TYPE_FLAG, 0, 1, 1, "use_sliding_window"},
    [SMP_FACT_WINDOW_FROM] = {TYPE_U64, 0, 1 << 20, 0, "max_window_layers"},
    [SMP_FACT_LAYER_TYPES] = {TYPE_LIST, 0, 0, SMP_OPEN, "layer_types"},
    [SMP_FACT_WINDOW_PATTERN] = {TYPE_U64, 1, 10000, 1, "sliding_window_pattern"},
    [SMP_FACT_NO_ROPE_EVERY] = {TYPE_U64, 0, 10000, 0, "no_rope_layer_interval"},
    [SMP_FACT_ROPE_LAYERS] = {TYPE_LIST, 0, 0, SMP_OPEN, "no_rope_layers"},
    [SMP_FACT_QK_NORM_WHOLE] = {TYPE_FLAG, 0, 1, 0, "qk_norm"},
    [SMP_FACT_QK_NORM_OWN] = {TYPE_FLAG, 0, 1, 0, "qk_norm"},
    [SMP_FACT_QK_NORM_BARE] = {TYPE_FLAG, 0, 1, 0, "use_qk_norm"},
    [SMP_FACT_TEMPERED] = {TYPE_TRUTH, 0, 1, 0, "attn_temperature_tuning"},
    [SMP_FACT_TEMPERATURE] = {TYPE_DOUBLE, 0, 1e6, 0, "attn_scale"},
    [SMP_FACT_TEMPERATURE_FLOOR] = {TYPE_U64, 1, 1 << 30, 1, "floor_scale"},
    [SMP_FACT_SINKS] = {TYPE_FLAG, 0, 1, 0, "sinks"},
    [SMP_FACT_QUERY_SCALAR] = {TYPE_DOUBLE, 1e-6, 1e9, SMP_OPEN, "query_pre_attn_scalar"},
    [SMP_FACT_ATTENTION_SOFTCAP] = {TYPE_DOUBLE, 1e-6, 1e9, SMP_OPEN, "attn_logit_softcapping"},
    [SMP_FACT_LOGIT_SOFTCAP] = {TYPE_DOUBLE, 1e-6, 1e9, SMP_OPEN, "final_logit_softcapping"},
    [SMP_FACT_CLIP_QKV] = {TYPE_DOUBLE, 1e-6, 1e9, SMP_OPEN, "clip_qkv"},
    [SMP_FACT_EMBEDDING_SCALE] = {TYPE_DOUBLE, 0, 1e9, 1, "embedding_scale"},
    [SMP_FACT_LOGIT_SCALE] = {TYPE_DOUBLE, 1e-9, 1e9, 1, "logit_scale"},
    [SMP_FACT_ALIBI] = {TYPE_FLAG, 0, 1, 0, "alibi"},
    [SMP_FACT_EMBEDDING_NORM] = {TYPE_FLAG, 0, 1, 0, "embedding_norm"},
    [SMP_FACT_EMBEDDING_WIDTH] = {TYPE_U64, 1, 1 << 20, SMP_OPEN, "word_embed_proj_dim"},
    [SMP_FACT_EMBEDDING_PROJECTED] = {TYPE_FLAG, 0, 1, 0, "word_embed_proj_dim"},
    [SMP_FACT_FINAL_NORM] = {TYPE_FLAG, 0, 1, 1, "final_norm"},
    [SMP_FACT_PRE_NORM] = {TYPE_FLAG, 0, 1, 1, "do_layer_norm_before"},
    [SMP_FACT_SINGLE_NORM] = {TYPE_FLAG, 0, 1, 0, "single_norm"},
    [SMP_FACT_TWO_NORMS] = {TYPE_FLAG, 0, 1, 1, "two_norms"},
    [SMP_FACT_MULTI_QUERY] = {TYPE_FLAG, 0, 1, 0, "multi_query"},
    [SMP_FACT_NEW_BLOCKS] = {TYPE_FLAG, 0, 1, 0, "new_decoder_architecture"},
    [SMP_FACT_PARALLEL_NORMS] = {TYPE_U64, 1, 2, SMP_OPEN, "num_ln_in_parallel_attn"},
    [SMP_FACT_ROTARY_DIM] = {TYPE_U64, 2, 1 << 16, SMP_OPEN, "rotary_dim"},
    [SMP_FACT_EXPANSION] = {TYPE_U64, 1, 1024, 4, "expansion_ratio"},
    [SMP_FACT_Q_LORA] = {TYPE_U64, 1, 1 << 20, SMP_OPEN, "q_lora_rank"},
    [SMP_FACT_KV_LORA] = {TYPE_U64, 1, 1 << 20, SMP_OPEN, "kv_lora_rank"},
    [SMP_FACT_QK_NOPE] = {TYPE_U64, 0, 1 << 16, 0, "qk_nope_head_dim"},
    [SMP_FACT_QK_ROPE] = {TYPE_U64, 2, 1 << 16, 0, "qk_rope_head_dim"},
    [SMP_FACT_V_DIM] = {TYPE_U64, 1, 1 << 16, SMP_OPEN, "v_head_dim"},
    [SMP_FACT_Q_DOWN_BIAS] = {TYPE_FLAG, 0, 1, 0, "attention_bias"},
    [SMP_FACT_EXPERTS] = {TYPE_U64, 1, 1 << 16, SMP_OPEN, "num_experts"},
    [SMP_FACT_TOP_K] = {TYPE_U64, 1, 1 << 16, SMP_OPEN, "num_experts_per_tok"},
    [SMP_FACT_MOE_FFN] = {TYPE_U64, 1, 1 << 24, SMP_OPEN, "moe_intermediate_size"},
    [SMP_FACT_SHARED_FFN] = {TYPE_U64, 0, 1 << 24, 0, "shared_expert_intermediate_size"},
    [SMP_FACT_SHARED_EXPERTS] = {TYPE_U64, 0, 4096, SMP_OPEN, "n_shared_experts"},
    [SMP_FACT_SHARED_GATE] = {TYPE_FLAG, 0, 1, 0, "shared_expert_gate"},
    [SMP_FACT_ROUTER_BIAS] = {TYPE_FLAG, 0, 1, 0, "router_bias"},
    [SMP_FACT_CORRECTION_BIAS] = {TYPE_FLAG, 0, 1, 0, "e_score_correction_bias"},
    [SMP_FACT_SCORING] = {TYPE_WORD, 0, 0, 0, "scoring_func"},
    [SMP_FACT_TOPK_METHOD] = {TYPE_WORD, 0, 0, 0, "topk_method"},
    [SMP_FACT_NORM_TOPK] = {TYPE_FLAG, 0, 1, 0, "norm_topk_prob"},
    [SMP_FACT_ROUTED_SCALE] = {TYPE_DOUBLE, 1e-9, 1e9, 1, "routed_scaling_factor"},
    [SMP_FACT_GROUPS] = {TYPE_U64, 1, 1 << 16, SMP_OPEN, "n_group"},
    [SMP_FACT_TOPK_GROUPS] = {TYPE_U64, 1, 1 << 16, SMP_OPEN, "topk_group"},
    [SMP_FACT_SPARSE_STEP] = {TYPE_U64, 1, 10000, 1, "decoder_sparse_step"},
    [SMP_FACT_FIRST_DENSE] = {TYPE_U64, 0, 10000, 0, "first_k_dense_replace"},
    [SMP_FACT_MOE_EVERY] = {TYPE_U64, 1, 1, 1, "moe_layer_freq"},
    [SMP_FACT_MLP_ONLY] = {TYPE_LIST, 0, 0, SMP_OPEN, "mlp_only_layers"},
    [SMP_FACT_MOE_LAYERS] = {TYPE_LIST, 0, 0, SMP_OPEN, "moe_layers"},
    [SMP_FACT_IS_MOE] = {TYPE_FLAG, 0, 1, 0, "experts"},
    [SMP_FACT_IS_DENSE] = {TYPE_FLAG, 0, 1, 1, "mlp"},
    [SMP_FACT_HAS_SHARED] = {TYPE_FLAG, 0, 1, 0, "shared_experts"},
};

/* The object and last name of a path such as "ffn_config.moe_top_k"; NULL when an object on
 * the way is missing. */
static const cJSON *path_parent(const cJSON *object, const char *path, const char **last_p)
{
    const char *dot = strchr(path, '.');
    while (dot && object) {
        const cJSON *child = object->child;
        size_t n = (size_t)(dot - path);
        while (child && (strlen(child->string) != n || strncmp(child->string, path, n) != 0)) {
            child = child->next;
        }
        object = child && cJSON_IsObject(child) ? child : NULL;
        path = dot + 1;
        dot = strchr(path, '.');
    }
    *last_p = path;
    return object;
}

const cJSON *smp_object_at(const cJSON *object, const char *path)
{
    const char *last;
    const cJSON *parent = path_parent(object, path, &last);
    return parent ? cJSON_GetObjectItemCaseSensitive(parent, last) : NULL;
}

smp_place smp_fact_place(const smp_facts *facts, smp_fact fact)
{
    return smp_json_place(facts->json, facts->node[fact] ? facts->node[fact] : facts->object);
}

/* A flag is true or false; as in Python, null is false and 0 and 1 are accepted. */
static void read_flag(const smp_reader *reader, const char *name, const cJSON *node,
                      double *value_p)
{
    bool flag = false;
    if (cJSON_IsNull(node)) {
        *value_p = 0;
    } else if (cJSON_IsNumber(node) && (node->valuedouble == 0 || node->valuedouble == 1)) {
        *value_p = node->valuedouble;
    } else if (smp_read_bool(reader, name, true, &flag)) {
        *value_p = flag;
    }
}

static void read_value(smp_facts *facts, const smp_key *key, const char *path,
                       const cJSON *node)
{
    const fact_info *info = &infos[key->fact];
    const char *name;
    smp_reader reader = {facts->json, path_parent(facts->object, path, &name), facts->errors};
    double *value_p = &facts->value[key->fact];
    uint64_t u;

    switch (info->type) {
    case TYPE_U64:
        if (smp_read_u64(&reader, name, true, (uint64_t)info->low, (uint64_t)info->high, &u)) {
            *value_p = (double)u;
        }
        break;
    case TYPE_DOUBLE:
        (void)smp_read_double(&reader, name, true, info->low, info->high, value_p);
        break;
    case TYPE_FLAG:
        read_flag(&reader, name, node, value_p);
        break;
    case TYPE_TRUTH:
        if (cJSON_IsNumber(node)) {
            *value_p = node->valuedouble != 0;
        } else {
            read_flag(&reader, name, node, value_p);
        }
        break;
    case TYPE_WORD:
        (void)smp_read_string(&reader, name, true, &facts->word[key->fact]);
        break;
    case TYPE_LIST:
        if (!cJSON_IsArray(node)) {
            smp_place place = smp_json_place(facts->json, node);
            (void)smp_fail(facts->errors, SMP_INPUT, &place, "%s: must be a list", name);
        }
        break;
    }
}

static void read_key(smp_facts *facts, const smp_key *key)
{
    const char *path = key->key;
    const cJSON *node = path ? smp_object_at(facts->object, path) : NULL;
    if (!node && key->alias) {
        node = smp_object_at(facts->object, key->alias);
        path = node ? key->alias : path;
    }
    facts->value[key->fact] = key->value;
    facts->word[key->fact] = key->word;
    facts->node[key->fact] = node;
    if (path) {
        facts->key[key->fact] = path;
    }
    if (!node && key->fact == SMP_FACT_TIED && path && facts->outer) {
        node = smp_object_at(facts->outer, path);
        facts->value[key->fact] = cJSON_IsBool(node) ? cJSON_IsTrue(node) : key->value;
        return;
    }
    if (!node) {
        return;
    }
    fact_type type = infos[key->fact].type;
    if (cJSON_IsNull(node) && type != TYPE_FLAG && type != TYPE_TRUTH) {
        facts->node[key->fact] = NULL;
        facts->value[key->fact] = SMP_OPEN;
        if (key->null == SMP_NULL_WRONG) {
            smp_place place = smp_json_place(facts->json, node);
            (void)smp_fail(facts->errors, SMP_INPUT, &place,
                           "%s null: must be given, or left out", path);
            facts->value[key->fact] = key->value; /* so that rules do not fail after it */
        }
        return;
    }
    read_value(facts, key, path, node);
}

void smp_facts_read(smp_facts *facts)
{
    for (size_t fact = 1; fact < SMP_FACTS; fact++) {
        facts->value[fact] = infos[fact].absent;
        facts->key[fact] = infos[fact].name;
    }
    for (const smp_key *key = facts->family->keys; key->fact != SMP_FACT_NONE; key++) {
        read_key(facts, key);
    }
}
