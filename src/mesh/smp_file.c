/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SMP files: the JSON object of SageMaker's model parallel library, read and written.
 *
 * A file holds SMP v2's keys and the rest of our vocabulary, or SMP v1's keys.  Both may be
 * wrapped as in an estimator's `distribution`: {"smdistributed": {"modelparallel":
 * {"enabled": true, "parameters": {...}}}}, from any level on.
 */
#include "config.h"

#include "mesh/smp_file.h"

#include "base/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A place that outlives the document, for messages when the job is resolved. */
static smp_place lasting_place(const smp_reading *r, const cJSON *value, int key)
{
    smp_place place = smp_json_place(r->json, value);

    place.file = r->path;
    place.path = NULL;
#define PATH(KEY, field, kind, low, words, range, initial, v2, searched, meaning) "$." #field,
    static const char *const paths[] = {SMP_SETTING_LIST(PATH)};
#undef PATH
    if (!r->wrapped) { /* SMP v1 may have another name for it */
        const char *v1 = smp_v1_path(value->string);
        place.path = v1 != NULL ? v1 : paths[key];
    }
    return place;
}

void smp_reading_set(smp_reading *r, const cJSON *value, const char *key, const char *text)
{
    smp_place place = lasting_place(r, value, smp_settings_find(key));

    r->failed |= smp_settings_set(&r->settings, key, text, &place, r->errors) != SMP_OK;
}

/* An array of names as the comma-separated text of a setting; false: not all are names. */
static bool join_names(const cJSON *array, char *text, size_t size_bytes)
{
    size_t used = 0;

    text[0] = '\0';
    for (const cJSON *item = array->child; item != NULL; item = item->next) {
        if (!cJSON_IsString(item)) {
            return false;
        }
        int n = snprintf(text + used, size_bytes - used, "%s%s", used > 0 ? "," : "",
                         item->valuestring);
        if (n < 0 || (size_t)n >= size_bytes - used) {
            return false;
        }
        used += (size_t)n;
    }
    return true;
}

bool smp_reading_text(const smp_reading *r, const cJSON *value, smp_setting_kind kind,
                      char *text, size_t size_bytes)
{
    uint64_t number;

    switch (kind) {
    case SMP_SETTING_INTEGER:
        if (!cJSON_IsNumber(value) || !smp_json_u64(r->json, value, &number)) {
            return false;
        }
        snprintf(text, size_bytes, "%" PRIu64, number);
        return true;
    case SMP_SETTING_NUMBER:
        snprintf(text, size_bytes, "%.17g", value->valuedouble);
        return cJSON_IsNumber(value);
    case SMP_SETTING_BOOLEAN:
        snprintf(text, size_bytes, "%s", cJSON_IsTrue(value) ? "true" : "false");
        return cJSON_IsBool(value);
    case SMP_SETTING_IMBALANCE:
    case SMP_SETTING_RATE:
        if (cJSON_IsNumber(value)) {
            snprintf(text, size_bytes, "%.17g", value->valuedouble);
            return true;
        }
        break;
    case SMP_SETTING_RANK_ORDER:
        if (cJSON_IsArray(value)) {
            return join_names(value, text, size_bytes);
        }
        break;
    case SMP_SETTING_WORD:
    case SMP_SETTING_CHECKPOINTING:
        break;
    }
    if (!cJSON_IsString(value)) {
        return false;
    }
    snprintf(text, size_bytes, "%s", value->valuestring);
    return true;
}

void smp_reading_refuse(const smp_reading *r, const cJSON *value, const char *rule)
{
    smp_place place = smp_json_place(r->json, value);
    size_t n;
    const char *source = smp_json_source(r->json, value, &n);
    const int shown = (int)(n < 40 ? n : 40);

    (void)smp_fail(r->errors, SMP_INPUT, &place, "%s %.*s%s: must be %s", value->string, shown,
                   source, n > 40 ? "..." : "", rule);
}

void smp_reading_key(smp_reading *r, const cJSON *value)
{
    int key = smp_settings_find(value->string);
    char text[128], rule[256];
    size_t n;

    if (key < 0) {
        const char *nearest = smp_nearest_word(value->string, smp_setting_keys());
        smp_place place = smp_json_place(r->json, value);
        (void)smp_fail(r->errors, SMP_INPUT, &place, "unknown setting %.60s%s%s%s",
                       value->string, nearest != NULL ? "; did you mean " : "",
                       nearest != NULL ? nearest : "", nearest != NULL ? "?" : "");
        return;
    }
    const smp_setting_info *info = &smp_settings_table(&n)[key];
    if (!smp_reading_text(r, value, smp_key_kind((smp_key)key), text, sizeof(text))) {
        snprintf(rule, sizeof(rule), "%s%s",
                 smp_key_kind((smp_key)key) == SMP_SETTING_INTEGER  ? "an integer: "
                 : smp_key_kind((smp_key)key) == SMP_SETTING_NUMBER ? "a number: " : "",
                 info->range);
        smp_reading_refuse(r, value, rule);
        return;
    }
    smp_reading_set(r, value, info->key, text);
}

/* The object `moe` of an SMP file: MoEConfig [SMPv2-REF], and this program's keys for
 * experts.  Each is the setting of the same name. */
static bool is_moe_key(const char *name)
{
    static const char *const names[] = {
        "random_seed", "expert_layout", "smp_moe", "moe_load_balancing",
        "global_token_shuffle", "moe_all_to_all_dispatcher", "moe_aux_loss_coeff",
        "moe_z_loss_coeff", "capacity_factor", "capacity_policy", "capacity_pad",
        "moe_rows_factor", "imbalance", "moe_statistics", "moe_dispatch_kernels"
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(names[i], name) == 0) {
            return true;
        }
    }
    return false;
}

static void read_moe(smp_reading *r, const cJSON *object)
{
    if (!cJSON_IsObject(object)) {
        smp_reading_refuse(r, object, "an object with the keys of MoEConfig");
        return;
    }
    const bool wrapped = r->wrapped;
    r->wrapped = true; /* its keys have no path of their own */
    for (const cJSON *value = object->child; value != NULL; value = value->next) {
        smp_place place = smp_json_place(r->json, value);
        if (smp_settings_find(value->string) >= 0 && !is_moe_key(value->string)) {
            (void)smp_fail(r->errors, SMP_INPUT, &place, "%s: is no key of moe",
                           value->string);
        } else if (is_moe_key(value->string) &&
                   cJSON_GetObjectItemCaseSensitive(r->object, value->string) != NULL) {
            (void)smp_fail(r->errors, SMP_INPUT, &place, "%s: given twice, beside moe and "
                           "in it", value->string);
        } else {
            smp_reading_key(r, value); /* says if it is unknown */
        }
    }
    r->wrapped = wrapped;
}

/* ------------------------------------------------------------- the file */

/* The object with the parameters, inside the wrappers that are there; NULL: reported. */
static const cJSON *unwrap(smp_reading *r, const cJSON *root)
{
    static const char *const wrappers[] = {"smdistributed", "modelparallel", "parameters"};
    const cJSON *object = root;

    for (size_t i = 0; i < sizeof(wrappers) / sizeof(wrappers[0]) && cJSON_IsObject(object);
         i++) {
        const cJSON *inner = cJSON_GetObjectItemCaseSensitive(object, wrappers[i]);
        if (inner == NULL) {
            continue;
        }
        for (const cJSON *other = object->child; other != NULL; other = other->next) {
            if (other != inner && strcmp(other->string, "enabled") != 0) {
                smp_place place = smp_json_place(r->json, other);
                (void)smp_fail(r->errors, SMP_INPUT, &place, "%.60s: unknown beside %s",
                               other->string, wrappers[i]);
            }
        }
        object = inner;
        r->wrapped = true;
    }
    if (!cJSON_IsObject(object)) {
        smp_place place = smp_json_place(r->json, object);
        (void)smp_fail(r->errors, SMP_INPUT, &place,
                       "an SMP file must hold an object of settings");
        return NULL;
    }
    return object;
}

smp_status smp_settings_read(smp_settings *settings, const char *path, smp_errors *errors)
{
    smp_json *json = NULL;
    size_t before = smp_errors_count(errors);
    smp_status status = smp_json_read(path, errors, &json);

    if (status != SMP_OK) {
        return status;
    }
    smp_reading r = {.json = json, .path = path, .settings = *settings, .errors = errors};
    const cJSON *object = unwrap(&r, smp_json_root(json));
    bool v1 = false;
    for (const cJSON *value = object != NULL ? object->child : NULL; value != NULL;
         value = value->next) {
        v1 = v1 || smp_is_only_v1(value->string);
    }
    if (object != NULL && v1) {
        smp_reading_v1(&r, object);
    } else if (object != NULL) {
        r.object = object;
        for (const cJSON *value = object->child; value != NULL; value = value->next) {
            if (strcmp(value->string, "moe") == 0) {
                read_moe(&r, value);
            } else {
                smp_reading_key(&r, value);
            }
        }
    }
    smp_json_destroy(json);
    if (r.failed || smp_errors_count(errors) > before) {
        return SMP_INPUT;
    }
    *settings = r.settings;
    return SMP_OK;
}

/* A setting as the kind of JSON value that a reader of its kind accepts. */
static void out_value(smp_json_out *out, smp_key id, const char *key, const char *value)
{
    switch (smp_key_kind(id)) {
    case SMP_SETTING_INTEGER:
        smp_out_u64(out, key, strtoull(value, NULL, 10));
        break;
    case SMP_SETTING_NUMBER:
        smp_out_double(out, key, strtod(value, NULL));
        break;
    case SMP_SETTING_IMBALANCE:
    case SMP_SETTING_RATE:
        if (value[0] < '0' || value[0] > '9') {
            smp_out_string(out, key, value);
        } else {
            smp_out_double(out, key, strtod(value, NULL));
        }
        break;
    case SMP_SETTING_BOOLEAN:
        smp_out_bool(out, key, strcmp(value, "true") == 0);
        break;
    case SMP_SETTING_WORD:
    case SMP_SETTING_CHECKPOINTING:
    case SMP_SETTING_RANK_ORDER:
        smp_out_string(out, key, value);
        break;
    }
}

void smp_out_settings(smp_json_out *out, const char *key, const smp_settings *settings)
{
    size_t n;
    const smp_setting_info *table = smp_settings_table(&n);

    smp_out_object(out, key);
    for (size_t i = 0; i < n; i++) {
        char value[96];
        if (smp_settings_get(settings, table[i].key, value, sizeof(value))) {
            out_value(out, (smp_key)i, table[i].key, value);
        }
    }
    smp_out_end_object(out);
}

smp_status smp_settings_export(const smp_settings *settings, const char *path,
                               smp_errors *errors)
{
    size_t n;
    const smp_setting_info *table = smp_settings_table(&n);
    smp_json_out out = {0};
    char value[96];

    smp_out_object(&out, NULL);
    for (size_t i = 0; i < n; i++) {
        (void)smp_settings_get(settings, table[i].key, value, sizeof(value));
        const bool software = i >= SMP_KEY_STACK; /* figures of a rule, not of the user */
        if (!table[i].smp_v2 && !table[i].searched && !smp_key_given(settings, (smp_key)i) &&
            (software || strcmp(value, table[i].initial) == 0)) {
            continue;
        }
        out_value(&out, (smp_key)i, table[i].key, value);
    }
    smp_out_end_object(&out);
    smp_status status = smp_file_write(path, out.text.data, out.text.length, errors);
    smp_text_free(&out.text);
    return status;
}
