/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings by name: the table, defaults, text in and text out.
 *
 * Rules between settings, model and cluster are not here but in rules_degrees.c and
 * rules_step.c; this file refuses only what no job could
 * use.
 */
#include "config.h"

#include "mesh/settings.h"

#include "base/json.h"

#include <stdlib.h>
#include <string.h>

static const char *const strategy_words[] = {
    "unset", "FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2", "NO_SHARD",
    NULL
};
static const char *const sharding_words[] = {"full", "optimizer", "none", NULL};
static const char *const accumulation_words[] = {"every", "last", NULL};
static const char *const precision_words[] = {"bf16", "fp16", "fp32", NULL};
static const char *const attention_words[] = {"flash", "naive", NULL};
static const char *const optimizer_words[] = {"adamw", "sgd", "adam", NULL};
static const char *const distribute_words[] = {"auto", "on", "off", NULL};
static const char *const prefetch_words[] = {"backward_pre", "backward_post", "none", NULL};

static const char *const seed_words[] = {"global", "smp", NULL};
static const char *const layout_words[] = {"orthogonal", "nested", NULL};
static const char *const balancing_words[] = {"sinkhorn", "aux_loss", "balanced", "none",
                                              NULL};
static const char *const kernels_words[] = {"nccl", "deepep", NULL};
static const char *const policy_words[] = {"probs", "position", NULL};
static const char *const statistics_words[] = {"local", "data", NULL};
static const char *const stack_words[] = {"native", "fsdp1", "fsdp2", "megatron", "deepspeed",
                                          NULL};
static const char *const kernel_words[] = {"stack", "best", "flash2", "triton", NULL};
static const char *const loss_words[] = {"stack", "fused", "compiled", "copy", "eager",
                                         NULL};

#define TYPE_INTEGER "integer"
#define TYPE_NUMBER "number"
#define TYPE_IMBALANCE "number or name"
#define TYPE_RATE "number or name"
#define TYPE_BOOLEAN "boolean"
#define TYPE_WORD "name"
#define TYPE_CHECKPOINTING "name"
#define TYPE_RANK_ORDER "list of names"

#define INFO(KEY, field, kind, low, words, range, initial, v2, searched, meaning)             \
    {#field, TYPE_##kind, range, initial, meaning, v2, searched},
static const smp_setting_info infos[] = {SMP_SETTING_LIST(INFO)};
#undef INFO

typedef struct field {
    smp_setting_kind kind;
    uint32_t low;
    size_t offset;
    const char *const *words;
} field;

#define FIELD(KEY, name, kind, low, words, range, initial, v2, searched, meaning)             \
    {SMP_SETTING_##kind, low, offsetof(smp_settings, name), words},
static const field fields[] = {SMP_SETTING_LIST(FIELD)};
#undef FIELD

#define KEY(KEY, field, kind, low, words, range, initial, v2, searched, meaning) #field,
static const char *const keys[] = {SMP_SETTING_LIST(KEY) NULL};
#undef KEY

_Static_assert(SMP_KEYS == (int)SMP_SETTINGS, "SMP_SETTINGS in smp.h is the number of keys");
_Static_assert(SMP_KEYS <= 64, "smp_settings.given has 64 bits");
/* Fields of enum type are read and written as uint32_t. */
_Static_assert(sizeof(smp_strategy) == 4 && sizeof(smp_sharding) == 4 &&
                   sizeof(smp_accumulation) == 4 && sizeof(smp_precision) == 4 &&
                   sizeof(smp_attention_kind) == 4 && sizeof(smp_optimizer) == 4 &&
                   sizeof(smp_prefetch) == 4 && sizeof(smp_seed_rule) == 4 &&
                   sizeof(smp_expert_layout) == 4 &&
                   sizeof(smp_balancing) == 4 && sizeof(smp_capacity_policy) == 4 &&
                   sizeof(smp_moe_statistics) == 4 && sizeof(smp_dispatch_kernels) == 4 &&
                   sizeof(smp_stack_name) == 4 && sizeof(smp_attention_kernel) == 4 &&
                   sizeof(smp_loss_kernel) == 4 && sizeof(smp_distribute) == 4,
               "enums of settings have the size of uint32_t");

const smp_setting_info *smp_settings_table(size_t *count_p)
{
    *count_p = SMP_KEYS;
    return infos;
}

smp_setting_kind smp_key_kind(smp_key key)
{
    return fields[key].kind;
}

const char *const *smp_setting_keys(void)
{
    return keys;
}

int smp_settings_find(const char *key)
{
    for (int i = 0; i < (int)SMP_KEYS; i++) {
        if (strcmp(keys[i], key) == 0) {
            return i;
        }
    }
    return -1;
}

/* Decimal digits only: no sign, space, exponent or hexadecimal. */
static bool parse_integer(const char *text, uint32_t low, uint32_t *value_p)
{
    uint64_t value = 0;

    if (*text == '\0') {
        return false;
    }
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9') {
            return false;
        }
        value = value * 10 + (uint64_t)(*text - '0');
        if (value > UINT32_MAX) {
            return false;
        }
    }
    if (value < low) {
        return false;
    }
    *value_p = (uint32_t)value;
    return true;
}

/* A decimal number with or without fraction and exponent. */
static bool parse_number(const char *text, uint32_t low, double *value_p)
{
    enum { MOST = 1000000 };
    char *end;

    if (*text < '0' || *text > '9' || text[strspn(text, "0123456789.eE+-")] != '\0') {
        return false;
    }
    double value = strtod(text, &end);
    if (*end != '\0' || !(value >= low) || value > MOST) {
        return false;
    }
    *value_p = value;
    return true;
}

/* The number before the comma is the mean, the one behind it the standard deviation. */
static bool parse_imbalance(const char *text, uint32_t low, smp_imbalance *value_p)
{
    static const struct { const char *name; smp_imbalance_kind kind; } names[] = {
        {"normal:", SMP_IMBALANCE_NORMAL}, {"lognormal:", SMP_IMBALANCE_LOGNORMAL}};
    smp_imbalance value = {.kind = SMP_IMBALANCE_CONSTANT};
    const char *comma = strchr(text, ',');
    char mean[32];

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const size_t n = strlen(names[i].name);
        if (strncmp(text, names[i].name, n) == 0) {
            value.kind = names[i].kind;
            text += n;
        }
    }
    if (value.kind == SMP_IMBALANCE_CONSTANT) {
        if (!parse_number(text, low, &value.mean)) {
            return false;
        }
    } else {
        if (comma == NULL || (size_t)(comma - text) >= sizeof(mean)) {
            return false;
        }
        memcpy(mean, text, (size_t)(comma - text));
        mean[comma - text] = '\0';
        if (!parse_number(mean, low, &value.mean) ||
            !parse_number(comma + 1, 0, &value.deviation)) {
            return false;
        }
    }
    *value_p = value;
    return true;
}

/* The model's rate is a negative number. */
static bool parse_rate(const char *text, double *value_p)
{
    double value = -1;

    if (strcmp(text, "model") != 0 && !(parse_number(text, 0, &value) && value < 1)) {
        return false;
    }
    *value_p = value;
    return true;
}

static bool parse_boolean(const char *text, bool *value_p)
{
    bool yes = strcmp(text, "true") == 0 || strcmp(text, "1") == 0;
    bool no = strcmp(text, "false") == 0 || strcmp(text, "0") == 0;

    if (yes || no) {
        *value_p = yes;
    }
    return yes || no;
}

static bool parse_word(const char *text, const char *const *words, uint32_t *value_p)
{
    for (uint32_t i = 0; words[i] != NULL; i++) {
        if (strcmp(words[i], text) == 0) {
            *value_p = i;
            return true;
        }
    }
    return false;
}

static bool parse_checkpointing(const char *text, smp_settings *settings)
{
    static const struct { const char *text; smp_checkpointing value; } names[] = {
        {"none", SMP_CHECKPOINTING_NONE},
        {"selective", SMP_CHECKPOINTING_SELECTIVE_ATTENTION},
        {"selective:attention", SMP_CHECKPOINTING_SELECTIVE_ATTENTION},
        {"selective:op", SMP_CHECKPOINTING_SELECTIVE_OP},
        {"full", SMP_CHECKPOINTING_FULL},
    };
    uint32_t layers;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(names[i].text, text) == 0) {
            settings->checkpointing = names[i].value;
            settings->checkpointing_layers = 0;
            return true;
        }
    }
    if (strncmp(text, "first:", 6) == 0 && parse_integer(text + 6, 1, &layers)) {
        settings->checkpointing = SMP_CHECKPOINTING_FIRST;
        settings->checkpointing_layers = layers;
        return true;
    }
    return false;
}

/* "tensor,context,shard,expert,replica" in any order. */
static bool parse_axes(const char *text, smp_axis order[SMP_AXES])
{
    bool seen[SMP_AXES] = {false};

    for (int i = 0; i < (int)SMP_AXES; i++) {
        size_t n = strcspn(text, ",");
        int axis = 0;
        while (axis < (int)SMP_AXES && (strlen(smp_axis_name((smp_axis)axis)) != n ||
                                        strncmp(smp_axis_name((smp_axis)axis), text, n) != 0)) {
            axis++;
        }
        if (axis == (int)SMP_AXES || seen[axis]) {
            return false;
        }
        seen[axis] = true;
        order[i] = (smp_axis)axis;
        text += n;
        if (*text != (i + 1 < (int)SMP_AXES ? ',' : '\0')) {
            return false;
        }
        text++;
    }
    return true;
}

/* SMP v1's placement_strategy: the rightmost letter varies fastest over consecutive ranks;
 * cluster is DPT and spread TPD.  D stands for all axes but tensor, P has degree 1. */
static bool parse_letters(const char *text, smp_axis order[SMP_AXES])
{
    const char *letters = strcmp(text, "cluster") == 0 ? "DPT"
                          : strcmp(text, "spread") == 0 ? "TPD" : text;
    uint32_t n = 0;

    if (strlen(letters) != 3 || strchr(letters, 'D') == NULL || strchr(letters, 'P') == NULL ||
        strchr(letters, 'T') == NULL) {
        return false;
    }
    for (int i = 2; i >= 0; i--) {
        if (letters[i] == 'T') {
            order[n++] = SMP_AXIS_TENSOR;
        } else if (letters[i] == 'D') {
            order[n++] = SMP_AXIS_CONTEXT;
            order[n++] = SMP_AXIS_SHARD;
            order[n++] = SMP_AXIS_EXPERT;
            order[n++] = SMP_AXIS_REPLICA;
        }
    }
    return true;
}

static bool parse_rank_order(const char *text, smp_settings *settings)
{
    smp_axis order[SMP_AXES];

    if (!parse_axes(text, order) && !parse_letters(text, order)) {
        return false;
    }
    memcpy(settings->rank_order, order, sizeof(order));
    return true;
}

/* Writes the field of a key, or leaves it alone and returns false. */
static bool parse(smp_key key, const char *text, smp_settings *settings)
{
    const field *f = &fields[key];
    char *place = (char *)settings + f->offset;
    uint32_t number = 0;
    double real = 0;
    bool flag = false, ok = false;

    switch (f->kind) {
    case SMP_SETTING_IMBALANCE:
        return parse_imbalance(text, f->low, &settings->imbalance);
    case SMP_SETTING_NUMBER:
    case SMP_SETTING_RATE:
        ok = f->kind == SMP_SETTING_RATE ? parse_rate(text, &real)
                                         : parse_number(text, f->low, &real);
        if (ok) {
            memcpy(place, &real, sizeof(real));
        }
        return ok;
    case SMP_SETTING_INTEGER:
        ok = parse_integer(text, f->low, &number);
        break;
    case SMP_SETTING_WORD:
        ok = parse_word(text, f->words, &number);
        break;
    case SMP_SETTING_BOOLEAN:
        ok = parse_boolean(text, &flag);
        if (ok) {
            memcpy(place, &flag, sizeof(flag));
        }
        return ok;
    case SMP_SETTING_CHECKPOINTING:
        return parse_checkpointing(text, settings);
    case SMP_SETTING_RANK_ORDER:
        return parse_rank_order(text, settings);
    }
    if (ok) {
        memcpy(place, &number, sizeof(number));
    }
    return ok;
}

void smp_settings_init(smp_settings *settings)
{
    memset(settings, 0, sizeof(*settings));
    for (int i = 0; i < (int)SMP_KEYS; i++) {
        /* Cannot fail: a test reads every default back. */
        (void)parse((smp_key)i, infos[i].initial, settings);
    }
}

void smp_settings_unset(smp_settings *settings, smp_key key)
{
    (void)parse(key, infos[key].initial, settings); /* as in smp_settings_init */
    settings->given &= ~(UINT64_C(1) << key);
    settings->yields &= ~(UINT64_C(1) << key);
    settings->origin[key] = (smp_place){0};
}

smp_status smp_settings_set(smp_settings *settings, const char *key, const char *value,
                            const smp_place *where, smp_errors *errors)
{
    int i = smp_settings_find(key);

    if (i < 0) {
        const char *nearest = smp_nearest_word(key, keys);
        return smp_fail(errors, SMP_INPUT, where, "unknown setting %.60s%s%s%s", key,
                        nearest != NULL ? "; did you mean " : "",
                        nearest != NULL ? nearest : "", nearest != NULL ? "?" : "");
    }
    if (!parse((smp_key)i, value, settings)) {
        return smp_fail(errors, SMP_INPUT, where, "%s %.60s: must be %s%s", key,
                        *value != '\0' ? value : "(empty)",
                        fields[i].kind == SMP_SETTING_INTEGER  ? "an integer: "
                        : fields[i].kind == SMP_SETTING_NUMBER ? "a number: " : "",
                        infos[i].range);
    }
    settings->given |= UINT64_C(1) << i;
    settings->yields &= ~(UINT64_C(1) << i);
    settings->origin[i] = where != NULL ? *where : (smp_place){0};
    return SMP_OK;
}

smp_status smp_settings_assign(smp_settings *settings, const char *assignment,
                               const char *option, smp_errors *errors)
{
    smp_place where = {.file = option};
    const char *equals = strchr(assignment, '=');
    char key[64];

    if (equals == NULL || equals == assignment) {
        return smp_fail(errors, SMP_INPUT, &where, "%.60s: must be key=value", assignment);
    }
    size_t n = (size_t)(equals - assignment);
    if (n >= sizeof(key)) {
        return smp_fail(errors, SMP_INPUT, &where, "unknown setting %.60s", assignment);
    }
    memcpy(key, assignment, n);
    key[n] = '\0';
    return smp_settings_set(settings, key, equals + 1, &where, errors);
}

bool smp_settings_given(const smp_settings *settings, const char *key)
{
    int i = smp_settings_find(key);

    return i >= 0 && smp_key_given(settings, (smp_key)i);
}

static void print_checkpointing(const smp_settings *settings, char *buffer, size_t size_bytes)
{
    switch (settings->checkpointing) {
    case SMP_CHECKPOINTING_NONE:
        snprintf(buffer, size_bytes, "none");
        break;
    case SMP_CHECKPOINTING_SELECTIVE_ATTENTION:
        snprintf(buffer, size_bytes, "selective:attention");
        break;
    case SMP_CHECKPOINTING_SELECTIVE_OP:
        snprintf(buffer, size_bytes, "selective:op");
        break;
    case SMP_CHECKPOINTING_FULL:
        snprintf(buffer, size_bytes, "full");
        break;
    case SMP_CHECKPOINTING_FIRST:
        snprintf(buffer, size_bytes, "first:%u", settings->checkpointing_layers);
        break;
    }
}

static void print_rank_order(const smp_settings *settings, char *buffer, size_t size_bytes)
{
    const smp_axis *order = settings->rank_order;

    snprintf(buffer, size_bytes, "%s,%s,%s,%s,%s", smp_axis_name(order[0]),
             smp_axis_name(order[1]), smp_axis_name(order[2]), smp_axis_name(order[3]),
             smp_axis_name(order[4]));
}

/* The fewest digits that read back as the same number. */
static void print_number(double value, char *buffer, size_t size_bytes)
{
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(buffer, size_bytes, "%.*g", digits, value);
        double back = strtod(buffer, NULL);
        if (memcmp(&back, &value, sizeof(value)) == 0) {
            return;
        }
    }
}

static void print_imbalance(const smp_imbalance *value, char *buffer, size_t size_bytes)
{
    char mean[32], deviation[32];

    print_number(value->mean, mean, sizeof(mean));
    print_number(value->deviation, deviation, sizeof(deviation));
    if (value->kind == SMP_IMBALANCE_CONSTANT) {
        snprintf(buffer, size_bytes, "%s", mean);
        return;
    }
    snprintf(buffer, size_bytes, "%s:%s,%s",
             value->kind == SMP_IMBALANCE_NORMAL ? "normal" : "lognormal", mean, deviation);
}

bool smp_settings_get(const smp_settings *settings, const char *key, char *buffer,
                      size_t size_bytes)
{
    int i = smp_settings_find(key);
    uint32_t number;
    double real;
    bool flag;

    if (i < 0) {
        return false;
    }
    const char *place = (const char *)settings + fields[i].offset;
    switch (fields[i].kind) {
    case SMP_SETTING_INTEGER:
        memcpy(&number, place, sizeof(number));
        snprintf(buffer, size_bytes, "%u", number);
        break;
    case SMP_SETTING_NUMBER:
        memcpy(&real, place, sizeof(real));
        print_number(real, buffer, size_bytes);
        break;
    case SMP_SETTING_RATE:
        memcpy(&real, place, sizeof(real));
        if (real < 0) {
            snprintf(buffer, size_bytes, "model");
        } else {
            print_number(real, buffer, size_bytes);
        }
        break;
    case SMP_SETTING_IMBALANCE:
        print_imbalance(&settings->imbalance, buffer, size_bytes);
        break;
    case SMP_SETTING_WORD:
        memcpy(&number, place, sizeof(number));
        snprintf(buffer, size_bytes, "%s", fields[i].words[number]);
        break;
    case SMP_SETTING_BOOLEAN:
        memcpy(&flag, place, sizeof(flag));
        snprintf(buffer, size_bytes, "%s", flag ? "true" : "false");
        break;
    case SMP_SETTING_CHECKPOINTING:
        print_checkpointing(settings, buffer, size_bytes);
        break;
    case SMP_SETTING_RANK_ORDER:
        print_rank_order(settings, buffer, size_bytes);
        break;
    }
    return true;
}
