/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules between the facts of a config.json: what follows from what, and what must hold.
 * Every broken rule is reported, each at the place of the value that breaks it.
 */
#include "model/family.h"

#include "base/text.h"

#include <string.h>

static const struct {
    const char *word;
    smp_activation activation;
} activations[] = {
    /* transformers/activations.py, ACT2FN: the three tanh forms are one function */
    {"silu", SMP_ACT_SILU}, {"swish", SMP_ACT_SILU}, {"gelu", SMP_ACT_GELU},
    {"gelu_new", SMP_ACT_GELU_TANH}, {"gelu_pytorch_tanh", SMP_ACT_GELU_TANH},
    {"gelu_fast", SMP_ACT_GELU_TANH}, {"relu", SMP_ACT_RELU},
    {"quick_gelu", SMP_ACT_QUICK_GELU},
};

bool smp_activation_find(const char *word, smp_activation *activation_p)
{
    for (size_t i = 0; i < sizeof activations / sizeof activations[0]; i++) {
        if (strcmp(activations[i].word, word) == 0) {
            *activation_p = activations[i].activation;
            return true;
        }
    }
    return false;
}

static void check_activation(const smp_facts *facts)
{
    const char *word = facts->word[SMP_FACT_ACTIVATION];
    smp_activation activation;
    if (!word || smp_activation_find(word, &activation)) {
        return;
    }
    smp_text legal = {0};
    for (size_t i = 0; i < sizeof activations / sizeof activations[0]; i++) {
        smp_text_add(&legal, "%s%s", i ? ", " : "", activations[i].word);
    }
    smp_place place = smp_fact_place(facts, SMP_FACT_ACTIVATION);
    (void)smp_fail(facts->errors, SMP_INPUT, &place, "%s \"%.40s\": not supported (legal: %s)",
                   facts->key[SMP_FACT_ACTIVATION], word, legal.data);
    smp_text_free(&legal);
}

/* The divisors of n, as text; at most 24 of them. */
static void list_divisors(smp_text *text, uint64_t n)
{
    int listed = 0;
    for (uint64_t d = 1; d <= n && listed < 24; d++) {
        if (n % d == 0) {
            smp_text_add(text, "%s%llu", listed++ ? ", " : "", (unsigned long long)d);
        }
    }
}

static void fail_divides(const smp_facts *facts, smp_fact fact, smp_fact into)
{
    uint64_t n = smp_fact_u64(facts, fact), m = smp_fact_u64(facts, into);
    smp_place place = smp_fact_place(facts, fact);
    smp_text legal = {0};
    list_divisors(&legal, m);
    (void)smp_fail(facts->errors, SMP_INPUT, &place, "%s %llu: must divide %s %llu (legal: %s)",
                   facts->key[fact], (unsigned long long)n, facts->key[into],
                   (unsigned long long)m, legal.data);
    smp_text_free(&legal);
}

/* Experts: shared ones, and the choice among all. */
static void derive_experts(smp_facts *facts)
{
    double *v = facts->value;
    if (v[SMP_FACT_SHARED_EXPERTS] > 0) {
        v[SMP_FACT_SHARED_FFN] = v[SMP_FACT_SHARED_EXPERTS] * v[SMP_FACT_MOE_FFN];
    }
    if (v[SMP_FACT_Q_LORA] > 0) {
        v[SMP_FACT_Q_DOWN_BIAS] = v[SMP_FACT_QKV_BIAS];
    }
    if (v[SMP_FACT_EMBEDDING_WIDTH] < 0) {
        v[SMP_FACT_EMBEDDING_WIDTH] = v[SMP_FACT_HIDDEN];
    }
    v[SMP_FACT_EMBEDDING_PROJECTED] = v[SMP_FACT_EMBEDDING_WIDTH] != v[SMP_FACT_HIDDEN];
    v[SMP_FACT_TWO_NORMS] = !(v[SMP_FACT_SINGLE_NORM] > 0);
}

/* What the library derives where a key is absent or null. */
static void derive(smp_facts *facts)
{
    double *v = facts->value;
    if (facts->family->derive) {
        facts->family->derive(facts);
    }
    derive_experts(facts);
    uint64_t hidden = smp_fact_u64(facts, SMP_FACT_HIDDEN);
    uint64_t heads = smp_fact_u64(facts, SMP_FACT_HEADS);

    if (v[SMP_FACT_KV_HEADS] < 0) {
        v[SMP_FACT_KV_HEADS] = (double)heads;
    }
    if (v[SMP_FACT_HEAD_DIM] < 0 && v[SMP_FACT_KV_LORA] > 0) {
        v[SMP_FACT_HEAD_DIM] = v[SMP_FACT_QK_NOPE] + v[SMP_FACT_QK_ROPE];
    } else if (v[SMP_FACT_HEAD_DIM] < 0) {
        if (hidden % heads != 0) {
            fail_divides(facts, SMP_FACT_HEADS, SMP_FACT_HIDDEN);
        }
        v[SMP_FACT_HEAD_DIM] = hidden >= heads ? (double)(hidden / heads) : 1;
    }
    if (v[SMP_FACT_FFN] < 0) {
        v[SMP_FACT_FFN] = 4 * (double)hidden;
    }
    if (v[SMP_FACT_OUT_BIAS] < 0) {
        v[SMP_FACT_OUT_BIAS] = v[SMP_FACT_QKV_BIAS];
    }
    if (v[SMP_FACT_WINDOW] < 0 || v[SMP_FACT_USE_WINDOW] == 0) {
        v[SMP_FACT_WINDOW] = 0;
    }
}

/* Rope turns pairs: the rotated part of a head is even [RoFormer, Su et al. 2021, eq. 15]. */
static void check_rope(const smp_facts *facts)
{
    uint64_t head_dim = smp_fact_u64(facts, SMP_FACT_HEAD_DIM);
    bool latent = facts->value[SMP_FACT_KV_LORA] > 0;
    uint64_t rotated = latent ? smp_fact_u64(facts, SMP_FACT_QK_ROPE)
                              : (uint64_t)((double)head_dim *
                                           facts->value[SMP_FACT_ROTARY_FRAC]);
    bool given = facts->node[SMP_FACT_HEAD_DIM] != NULL;
    if (rotated >= 2 && rotated % 2 == 0) {
        return;
    }
    smp_fact fact = facts->node[SMP_FACT_ROTARY_FRAC] ? SMP_FACT_ROTARY_FRAC
                    : given                           ? SMP_FACT_HEAD_DIM
                                                      : SMP_FACT_HIDDEN;
    smp_place place = smp_fact_place(facts, fact);
    (void)smp_fail(facts->errors, SMP_INPUT, &place,
                   "%s: rope rotates %llu of %llu values of a head%s: must be even, at least 2",
                   facts->key[fact], (unsigned long long)rotated, (unsigned long long)head_dim,
                   given ? "" : " (hidden / heads)");
}

static void check_layer_types(const smp_facts *facts)
{
    const cJSON *list = facts->node[SMP_FACT_LAYER_TYPES];
    uint64_t layers = smp_fact_u64(facts, SMP_FACT_LAYERS), n = 0;
    if (!list || !cJSON_IsArray(list)) {
        return;
    }
    for (const cJSON *item = list->child; item; item = item->next, n++) {
        const char *word = cJSON_IsString(item) ? item->valuestring : NULL;
        if (!word || (strcmp(word, "full_attention") != 0 &&
                      strcmp(word, facts->family->chunked_window
                                       ? "chunked_attention" : "sliding_attention") != 0)) {
            smp_place place = smp_json_place(facts->json, item);
            (void)smp_fail(facts->errors, SMP_INPUT, &place,
                           "layer_types \"%.40s\": not supported (legal: full_attention, "
                           "%s_attention)", word ? word : "?",
                           facts->family->chunked_window ? "chunked" : "sliding");
        }
    }
    if (n != layers) {
        smp_place place = smp_json_place(facts->json, list);
        (void)smp_fail(facts->errors, SMP_INPUT, &place,
                       "layer_types has %llu entries: must have one for each of %llu layers",
                       (unsigned long long)n, (unsigned long long)layers);
    }
}

/* Entries of a list, numbers of at most `high`; `n` of them, or any number where it is 0. */
static void check_numbers(const smp_facts *facts, smp_fact fact, uint64_t n, double high)
{
    const cJSON *list = facts->node[fact];
    uint64_t found = 0;
    if (!list || !cJSON_IsArray(list) || !list->child) {
        return;
    }
    for (const cJSON *item = list->child; item; item = item->next, found++) {
        double value = cJSON_IsNumber(item) ? item->valuedouble : -1;
        if (value < 0 || value > high || value != (double)(uint32_t)value) {
            smp_place place = smp_json_place(facts->json, item);
            (void)smp_fail(facts->errors, SMP_INPUT, &place,
                           "%s: entry %llu must be an integer from 0 to %.0f",
                           facts->key[fact], (unsigned long long)found, high);
        }
    }
    if (n > 0 && found != n) {
        smp_place place = smp_json_place(facts->json, list);
        (void)smp_fail(facts->errors, SMP_INPUT, &place,
                       "%s has %llu entries: must have one for each of %llu layers",
                       facts->key[fact], (unsigned long long)found, (unsigned long long)n);
    }
}

static void check_experts(const smp_facts *facts)
{
    uint64_t experts = smp_fact_u64(facts, SMP_FACT_EXPERTS);
    uint64_t top_k = smp_fact_u64(facts, SMP_FACT_TOP_K);
    uint64_t groups = smp_fact_u64(facts, SMP_FACT_GROUPS);
    uint64_t topk_groups = smp_fact_u64(facts, SMP_FACT_TOPK_GROUPS);
    const char *scoring = facts->word[SMP_FACT_SCORING];
    if (experts == 0) {
        return;
    }
    if (top_k == 0 || top_k > experts) {
        smp_place place = smp_fact_place(facts, SMP_FACT_TOP_K);
        (void)smp_fail(facts->errors, SMP_INPUT, &place,
                       "%s %llu: must be from 1 to %llu experts", facts->key[SMP_FACT_TOP_K],
                       (unsigned long long)top_k,
                       (unsigned long long)experts);
    }
    if (groups > 0 && experts % groups != 0) {
        fail_divides(facts, SMP_FACT_GROUPS, SMP_FACT_EXPERTS);
    }
    if (groups > 0 && topk_groups > groups) {
        smp_place place = smp_fact_place(facts, SMP_FACT_TOPK_GROUPS);
        (void)smp_fail(facts->errors, SMP_INPUT, &place, "%s %llu: must be at most %s %llu",
                       facts->key[SMP_FACT_TOPK_GROUPS], (unsigned long long)topk_groups,
                       facts->key[SMP_FACT_GROUPS], (unsigned long long)groups);
    }
    if (scoring && strcmp(scoring, "softmax") != 0 && strcmp(scoring, "sigmoid") != 0) {
        smp_place place = smp_fact_place(facts, SMP_FACT_SCORING);
        (void)smp_fail(facts->errors, SMP_INPUT, &place,
                       "%s \"%.40s\": not supported (legal: softmax, sigmoid)",
                       facts->key[SMP_FACT_SCORING], scoring);
    }
}

static bool is_harmless(const cJSON *node, smp_harmless harmless)
{
    bool empty = cJSON_IsNull(node) || cJSON_IsFalse(node) ||
                 (cJSON_IsNumber(node) && node->valuedouble == 0) ||
                 (cJSON_IsString(node) && !node->valuestring[0]) ||
                 ((cJSON_IsArray(node) || cJSON_IsObject(node)) && !node->child);
    return harmless == SMP_HARMLESS_FALSE ? empty : !empty;
}

/* Keys of every family that make it another model. */
static const smp_refusal common_refusals[] = {
    {"add_cross_attention", SMP_HARMLESS_FALSE, "cross attention"},
    {"is_encoder_decoder", SMP_HARMLESS_FALSE, "an encoder and a decoder"},
    {"pruned_heads", SMP_HARMLESS_FALSE, "heads that differ by layer"},
    {"block_configs", SMP_HARMLESS_FALSE, "blocks configured layer by layer"},
    {"hybrid_override_pattern", SMP_HARMLESS_FALSE, "layers that are no attention blocks"},
    {NULL, SMP_HARMLESS_FALSE, NULL},
};

static void refuse(const smp_facts *facts, const smp_refusal *refusals)
{
    for (const smp_refusal *r = refusals; r && r->key; r++) {
        const cJSON *node = smp_object_at(facts->object, r->key);
        if (node && !is_harmless(node, r->harmless)) {
            smp_place place = smp_json_place(facts->json, node);
            (void)smp_fail(facts->errors, SMP_INPUT, &place, "%s: %s is not supported "
                           "(legal: %s, or left out)", r->key, r->why,
                           r->harmless == SMP_HARMLESS_FALSE ? "false or null" : "true");
        }
    }
}

void smp_facts_check(smp_facts *facts)
{
    refuse(facts, common_refusals);
    refuse(facts, facts->family->refusals);
    derive(facts);
    if (smp_fact_u64(facts, SMP_FACT_HEADS) % smp_fact_u64(facts, SMP_FACT_KV_HEADS) != 0) {
        fail_divides(facts, SMP_FACT_KV_HEADS, SMP_FACT_HEADS);
    }
    if (facts->family->position == SMP_POSITION_ROPE &&
        !(facts->value[SMP_FACT_ALIBI] > 0)) {
        check_rope(facts);
    }
    check_activation(facts);
    check_layer_types(facts);
    check_numbers(facts, SMP_FACT_ROPE_LAYERS, smp_fact_u64(facts, SMP_FACT_LAYERS), 1);
    check_numbers(facts, SMP_FACT_MOE_LAYERS, 0, facts->value[SMP_FACT_LAYERS] - 1);
    check_experts(facts);
}
