/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rope scaling: "rope_scaling" with "rope_type" or, in older files, "type"; or the newer
 * "rope_parameters", which also holds "rope_theta" and "partial_rotary_factor".  Which keys
 * a type needs, and the defaults of the others, are those of transformers,
 * modeling_rope_utils.py.
 */
#include "model/family.h"

#include <math.h>
#include <string.h>

typedef struct rope_type {
    const char *word;
    smp_rope_scaling scaling;
    bool needs_factor, needs_freq;
} rope_type;

static const rope_type types[] = {
    {"default", SMP_ROPE_PLAIN, false, false},
    {"mrope", SMP_ROPE_PLAIN, false, false}, /* of text alone: the same as default */
    {"linear", SMP_ROPE_LINEAR, true, false},
    {"dynamic", SMP_ROPE_DYNAMIC, true, false},
    {"yarn", SMP_ROPE_YARN, true, false},
    {"longrope", SMP_ROPE_LONGROPE, false, false},
    {"su", SMP_ROPE_LONGROPE, false, false}, /* its name in the first phi3 files */
    {"llama3", SMP_ROPE_LLAMA3, true, true},
};

static const rope_type *find_type(const char *word)
{
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(types[i].word, word) == 0) {
            return &types[i];
        }
    }
    return NULL;
}

static const rope_type *read_type(const smp_facts *facts, const smp_reader *reader)
{
    const char *word = NULL, *old_word = NULL;
    bool has_new = smp_read_string(reader, "rope_type", false, &word);
    bool has_old = smp_read_string(reader, "type", false, &old_word);
    const char *key = has_new ? "rope_type" : "type";
    const char *used = has_new ? word : has_old ? old_word : "default";
    const rope_type *type = find_type(used);
    smp_place place = smp_json_place(facts->json, reader->object);

    if (!type) {
        place = smp_json_place(facts->json, smp_object_at(reader->object, key));
        (void)smp_fail(facts->errors, SMP_INPUT, &place,
                       "%s \"%.40s\": not supported (legal: default, linear, dynamic, yarn, "
                       "longrope, llama3)", key, used);
        return NULL;
    }
    if (has_new && has_old) {
        const rope_type *old_type = find_type(old_word);
        if (!old_type || old_type->scaling != type->scaling) {
            (void)smp_fail(facts->errors, SMP_INPUT, &place,
                           "rope_type \"%.40s\" and type \"%.40s\": must say the same", word,
                           old_word);
            return NULL;
        }
    }
    return type;
}

/* yarn's scale of the attention [Peng et al. 2023, eq. 22]: 0.1 mscale ln(factor) + 1. */
static double yarn_scale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static double yarn_attention_factor(const smp_reader *reader, double factor)
{
    double given = 0, mscale = 0, mscale_all = 0;
    if (smp_read_double(reader, "attention_factor", false, 0, 1e6, &given)) {
        return given;
    }
    (void)smp_read_double(reader, "mscale", false, 0, 1e6, &mscale);
    (void)smp_read_double(reader, "mscale_all_dim", false, 0, 1e6, &mscale_all);
    if (mscale > 0 && mscale_all > 0) {
        return yarn_scale(factor, mscale) / yarn_scale(factor, mscale_all);
    }
    return yarn_scale(factor, 1);
}

/* longrope's, from the ratio of positions after and before [Ding et al. 2024, eq. 4]. */
static double long_attention_factor(const smp_reader *reader, double factor, double original)
{
    double given = 0;
    if (smp_read_double(reader, "attention_factor", false, 0, 1e6, &given)) {
        return given;
    }
    return factor <= 1 || original <= 1 ? 1 : sqrt(1 + log(factor) / log(original));
}

/* One factor per rotated pair. */
static const double *read_factors(const smp_facts *facts, const smp_reader *reader,
                                  const char *key, uint64_t pairs, smp_arena *arena)
{
    const cJSON *list = smp_read_member(reader, key, true);
    if (!list) {
        return NULL;
    }
    uint64_t n = cJSON_IsArray(list) ? (uint64_t)cJSON_GetArraySize(list) : 0;
    smp_place place = smp_json_place(facts->json, list);
    if (n != pairs) {
        (void)smp_fail(facts->errors, SMP_INPUT, &place,
                       "%s: must be a list of %llu numbers, one per rotated pair of a head",
                       key, (unsigned long long)pairs);
        return NULL;
    }
    double *factors = SMP_ARENA_ARRAY(arena, n, double);
    const cJSON *item = list->child;
    for (uint64_t i = 0; item; item = item->next, i++) {
        factors[i] = cJSON_IsNumber(item) ? item->valuedouble : 0;
        if (!(factors[i] > 0)) {
            place = smp_json_place(facts->json, item);
            (void)smp_fail(facts->errors, SMP_INPUT, &place, "%s: must be a number above 0",
                           key);
            return NULL;
        }
    }
    return factors;
}

static void read_longrope(const smp_facts *facts, const smp_reader *reader, smp_model *model)
{
    /* phi3 keeps the old length outside; elsewhere it stands in the object */
    const smp_reader outer = {facts->json, facts->object, facts->errors};
    uint64_t pairs = (uint64_t)(facts->value[SMP_FACT_HEAD_DIM] * model->rotary_frac) / 2;
    (void)smp_read_double(&outer, "original_max_position_embeddings", false, 1, 1e12,
                          &model->rope_original_positions);
    if (model->rope_factor <= 0) {
        model->rope_factor = (double)model->max_positions / model->rope_original_positions;
    }
    model->rope_short_factors =
        read_factors(facts, reader, "short_factor", pairs, model->arena);
    model->rope_long_factors = read_factors(facts, reader, "long_factor", pairs, model->arena);
    model->rope_attention_factor =
        long_attention_factor(reader, model->rope_factor, model->rope_original_positions);
}

/* Latent attention scales its logits as well, by the square [modeling_deepseek_v3.py]; only
 * models that have it use the factor. */
static void read_logit_factor(const smp_reader *reader, smp_model *model)
{
    double mscale_all = 0, scale;
    (void)smp_read_double(reader, "mscale_all_dim", false, 0, 1e6, &mscale_all);
    scale = mscale_all > 0 ? yarn_scale(model->rope_factor, mscale_all) : 1;
    model->rope_logit_factor = scale * scale;
}

static void read_scaling(const smp_facts *facts, const smp_reader *reader,
                         const rope_type *type, smp_model *model)
{
    model->rope_scaling = type->scaling;
    (void)smp_read_double(reader, "factor", type->needs_factor, 1e-3, 1e6, &model->rope_factor);
    (void)smp_read_double(reader, "low_freq_factor", type->needs_freq, 1e-6, 1e6,
                          &model->rope_low_freq);
    (void)smp_read_double(reader, "high_freq_factor", type->needs_freq, 1e-6, 1e6,
                          &model->rope_high_freq);
    (void)smp_read_double(reader, "original_max_position_embeddings", false, 1, 1e12,
                          &model->rope_original_positions);
    if (type->scaling == SMP_ROPE_LLAMA3 && model->rope_high_freq < model->rope_low_freq) {
        smp_place place =
            smp_json_place(facts->json, smp_object_at(reader->object, "high_freq_factor"));
        (void)smp_fail(facts->errors, SMP_INPUT, &place,
                       "high_freq_factor %g: must not be below low_freq_factor %g",
                       model->rope_high_freq, model->rope_low_freq);
    }
    if (type->scaling == SMP_ROPE_YARN) {
        model->rope_beta_fast = 32;
        model->rope_beta_slow = 1;
        (void)smp_read_double(reader, "beta_fast", false, 0, 1e6, &model->rope_beta_fast);
        (void)smp_read_double(reader, "beta_slow", false, 0, 1e6, &model->rope_beta_slow);
        model->rope_ramp_unrounded = cJSON_IsFalse(smp_object_at(reader->object, "truncate"));
        model->rope_attention_factor = yarn_attention_factor(reader, model->rope_factor);
        read_logit_factor(reader, model);
    }
    if (type->scaling == SMP_ROPE_LONGROPE) {
        read_longrope(facts, reader, model);
    }
}

void smp_rope_read(smp_facts *facts, smp_model *model)
{
    const smp_reader outer = {facts->json, facts->object, facts->errors};
    smp_reader reader;
    model->rope_theta = facts->value[SMP_FACT_ROPE_THETA];
    model->rotary_frac = facts->value[SMP_FACT_ROTARY_FRAC];
    model->rope_scaling = SMP_ROPE_PLAIN;
    model->rope_original_positions = (double)model->max_positions;
    model->rope_attention_factor = model->rope_logit_factor = 1;
    if (facts->family->position != SMP_POSITION_ROPE || facts->family->ignores_rope_scaling) {
        return;
    }
    model->rope_local_theta = facts->family->rope_local_theta;
    if (model->rope_local_theta > 0) {
        (void)smp_read_double(&outer, "rope_local_base_freq", false, 1, 1e15,
                              &model->rope_local_theta);
    }
    if (!smp_read_object(&outer, "rope_scaling", false, &reader) &&
        !smp_read_object(&outer, "rope_parameters", false, &reader)) {
        return;
    }
    (void)smp_read_double(&reader, "rope_theta", false, 1, 1e15, &model->rope_theta);
    const rope_type *type = read_type(facts, &reader);
    if (type) {
        read_scaling(facts, &reader, type, model);
    }
}
