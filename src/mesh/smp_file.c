/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SMP files: the JSON object of SageMaker's model parallel library, read and written.
 *
 * A file holds SMP v2's keys and the rest of our vocabulary, or SMP v1's keys.  Both may be
 * wrapped as in an estimator's `distribution`: {"smdistributed": {"modelparallel":
 * {"enabled": true, "parameters": {...}}}}, from any level on.  v1's keys are those of the
 * SageMaker Python SDK's reference [smd_model_parallel_general.rst]; where v2 or we have the
 * same idea a key is translated, else it is named in a warning.
 */
#include "config.h"

#include "mesh/settings.h"

#include "base/json.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* What becomes of a v1 key. */
typedef enum v1_kind {
    V1_NONE,      /* without equivalent: `text` says why */
    V1_SAME,      /* the same key and meaning */
    V1_ONE,       /* only the value 1 has an equivalent: nothing */
    V1_ALWAYS,    /* always true here: nothing to set */
    V1_OFFLOAD, V1_HORIZON, V1_PLACEMENT, V1_OPTIMIZE, V1_FP16, V1_BF16,
    V1_SHARD_OPTIMIZER, V1_SHARDED_DATA
} v1_kind;

typedef struct v1_key { const char *name; v1_kind kind; const char *text; } v1_key;

#define NO_PIPELINE "there is no pipeline parallelism"
#define NO_FRAMEWORK "it configures another software"
#define NO_BUCKETS "units are gathered and reduced whole"

static const v1_key v1_keys[] = {
    {"pipeline_parallel_degree", V1_ONE, NO_PIPELINE},
    {"partitions", V1_ONE, NO_PIPELINE},
    {"microbatches", V1_NONE, "give micro_batch, the sequences of one micro-batch"},
    {"pipeline", V1_NONE, NO_PIPELINE},
    {"optimize", V1_OPTIMIZE, NULL},
    {"placement_strategy", V1_PLACEMENT, NULL},
    {"auto_partition", V1_NONE, NO_PIPELINE},
    {"default_partition", V1_NONE, NO_PIPELINE},
    {"contiguous", V1_NONE, NO_PIPELINE},
    {"horovod", V1_NONE, NO_FRAMEWORK},
    {"memory_weight", V1_NONE, NO_PIPELINE},
    {"ddp", V1_ALWAYS, "data parallelism is always on"},
    {"active_microbatches", V1_NONE, NO_PIPELINE},
    {"deterministic_server", V1_NONE, NO_FRAMEWORK},
    {"offload_activations", V1_OFFLOAD, NULL},
    {"activation_loading_horizon", V1_HORIZON, NULL},
    {"tensor_parallel_degree", V1_SAME, NULL},
    {"fp16", V1_FP16, NULL},
    {"fp16_params", V1_FP16, NULL},
    {"bf16", V1_BF16, NULL},
    {"shard_optimizer_state", V1_SHARD_OPTIMIZER, NULL},
    {"prescaled_batch", V1_ALWAYS, "the ranks of a tensor group always read the same batch"},
    {"skip_tracing", V1_NONE, NO_FRAMEWORK},
    {"sharded_data_parallel_degree", V1_SHARDED_DATA, NULL},
    {"sdp_reduce_bucket_size", V1_NONE, NO_BUCKETS},
    {"sdp_param_persistence_threshold", V1_NONE, NO_BUCKETS},
    {"sdp_max_live_parameters", V1_NONE, NO_BUCKETS},
    {"sdp_hierarchical_allgather", V1_NONE, "the collective library chooses the algorithm"},
    {"sdp_gradient_clipping", V1_NONE, "gradients are always clipped by their global norm"},
    {"ddp_dist_backend", V1_NONE, NO_FRAMEWORK},
};
enum { V1_KEYS = sizeof(v1_keys) / sizeof(v1_keys[0]) };

typedef struct reading {
    const smp_json *json;
    const char *path; /* of the file, as the caller gave it */
    const cJSON *object; /* with the settings */
    bool wrapped, failed;
    smp_settings settings;
    smp_errors *errors;
} reading;

static const v1_key *find_v1(const char *name)
{
    for (int i = 0; i < (int)V1_KEYS; i++) {
        if (strcmp(v1_keys[i].name, name) == 0) {
            return &v1_keys[i];
        }
    }
    return NULL;
}

/* v1 keys that say that a file is of v1: not the two that v2 has as well. */
static bool is_only_v1(const char *name)
{
    return find_v1(name) != NULL && smp_settings_find(name) < 0;
}

/* A place that outlives the document, for messages when the job is resolved. */
static smp_place lasting_place(const reading *r, const cJSON *value, int key)
{
    smp_place place = smp_json_place(r->json, value);

    place.file = r->path;
    place.path = NULL;
#define PATH(KEY, field, kind, low, words, range, initial, v2, searched, meaning) "$." #field,
    static const char *const paths[] = {SMP_SETTING_LIST(PATH)};
#undef PATH
    if (!r->wrapped) {
        place.path = paths[key];
    }
    return place;
}

static void set(reading *r, const cJSON *value, const char *key, const char *text)
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

/* The value of a key as text, when its JSON type suits the key. */
static bool text_of(const reading *r, const cJSON *value, smp_setting_kind kind, char *text,
                    size_t size_bytes)
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

static void wrong_type(const reading *r, const cJSON *value, const char *rule)
{
    smp_place place = smp_json_place(r->json, value);
    size_t n;
    const char *source = smp_json_source(r->json, value, &n);
    const int shown = (int)(n < 40 ? n : 40);

    (void)smp_fail(r->errors, SMP_INPUT, &place, "%s %.*s%s: must be %s", value->string, shown,
                   source, n > 40 ? "..." : "", rule);
}

static void read_v2_key(reading *r, const cJSON *value)
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
    if (!text_of(r, value, smp_key_kind((smp_key)key), text, sizeof(text))) {
        snprintf(rule, sizeof(rule), "%s%s",
                 smp_key_kind((smp_key)key) == SMP_SETTING_INTEGER  ? "an integer: "
                 : smp_key_kind((smp_key)key) == SMP_SETTING_NUMBER ? "a number: " : "",
                 info->range);
        wrong_type(r, value, rule);
        return;
    }
    set(r, value, info->key, text);
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

static void read_moe(reading *r, const cJSON *object)
{
    if (!cJSON_IsObject(object)) {
        wrong_type(r, object, "an object with the keys of MoEConfig");
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
            read_v2_key(r, value); /* says if it is unknown */
        }
    }
    r->wrapped = wrapped;
}

/* ---------------------------------------------------------------- SMP v1 */

static void warn_v1(const reading *r, const cJSON *value, const char *text)
{
    smp_place place = smp_json_place(r->json, value);

    smp_warn(r->errors, &place, "SMP v1 key %s has no equivalent: %s", value->string, text);
}

static bool v1_integer(const reading *r, const cJSON *value, char *text, size_t size_bytes)
{
    if (text_of(r, value, SMP_SETTING_INTEGER, text, size_bytes) && strcmp(text, "0") != 0) {
        return true;
    }
    wrong_type(r, value, "an integer: 1 or more");
    return false;
}

static bool v1_boolean(const reading *r, const cJSON *value)
{
    if (!cJSON_IsBool(value)) {
        wrong_type(r, value, "true or false");
    }
    return cJSON_IsTrue(value);
}

/* fp16 trains in fp16 with an fp32 master; false leaves fp32, v1's default, unless another
 * key of the file says otherwise. */
static void read_v1_precision(reading *r, const cJSON *value, const char *word)
{
    if (v1_boolean(r, value)) {
        set(r, value, "precision", word);
    } else if (cJSON_IsBool(value) && !smp_settings_given(&r->settings, "precision")) {
        set(r, value, "precision", "fp32");
    }
}

/* Degree 1 is v1's way to say that nothing is sharded; optimizer state may still be. */
static void read_v1_sharded_data(reading *r, const cJSON *value)
{
    char text[32];

    if (!v1_integer(r, value, text, sizeof(text))) {
        return;
    }
    if (strcmp(text, "1") != 0) {
        set(r, value, "hybrid_shard_degree", text);
        set(r, value, "sharding", "full");
    } else if (!smp_settings_given(&r->settings, "sharding")) {
        set(r, value, "hybrid_shard_degree", "1");
        set(r, value, "sharding", "none");
    }
}

/* shard_optimizer_state has a say only where parameters are not sharded. */
static void read_v1_shard_optimizer(reading *r, const cJSON *value)
{
    bool full = smp_settings_given(&r->settings, "sharding") &&
                r->settings.sharding == SMP_SHARDING_FULL;

    if (v1_boolean(r, value) && !full) {
        set(r, value, "hybrid_shard_degree", "0");
        set(r, value, "sharding", "optimizer");
    }
}

/* speed: norms and residuals are copies on every tensor rank; memory: they are split. */
static void read_v1_optimize(reading *r, const cJSON *value)
{
    bool speed = cJSON_IsString(value) && strcmp(value->valuestring, "speed") == 0;
    bool memory = cJSON_IsString(value) && strcmp(value->valuestring, "memory") == 0;

    if (speed || memory) {
        set(r, value, "sequence_parallel", memory ? "true" : "false");
    } else {
        wrong_type(r, value, "memory or speed");
    }
}

static void read_v1_placement(reading *r, const cJSON *value)
{
    if (cJSON_IsString(value) && strchr(value->valuestring, ',') == NULL) {
        set(r, value, "rank_order", value->valuestring);
    } else {
        wrong_type(r, value, "cluster, spread or a permutation of DPT");
    }
}

static void read_v1_horizon(reading *r, const cJSON *value)
{
    char text[32];
    smp_place place = smp_json_place(r->json, value);

    if (v1_integer(r, value, text, sizeof(text))) {
        set(r, value, "activation_loading_horizon", text);
        smp_warn(r->errors, &place, "activation_loading_horizon counts pipeline tasks in "
                 "SMP v1 and layers here");
    }
}

static void read_v1_key(reading *r, const cJSON *value)
{
    const v1_key *key = find_v1(value->string);
    char text[32];

    switch (key->kind) {
    case V1_NONE:
        warn_v1(r, value, key->text);
        break;
    case V1_SAME:
        read_v2_key(r, value);
        break;
    case V1_ONE:
        if (v1_integer(r, value, text, sizeof(text)) && strcmp(text, "1") != 0) {
            warn_v1(r, value, key->text);
        }
        break;
    case V1_ALWAYS:
        if (!v1_boolean(r, value) && cJSON_IsBool(value)) {
            warn_v1(r, value, key->text);
        }
        break;
    case V1_OFFLOAD:
        set(r, value, "offload", v1_boolean(r, value) ? "true" : "false");
        break;
    case V1_HORIZON:
        read_v1_horizon(r, value);
        break;
    case V1_PLACEMENT:
        read_v1_placement(r, value);
        break;
    case V1_OPTIMIZE:
        read_v1_optimize(r, value);
        break;
    case V1_FP16:
        read_v1_precision(r, value, "fp16");
        break;
    case V1_BF16:
        read_v1_precision(r, value, "bf16");
        break;
    case V1_SHARD_OPTIMIZER:
        read_v1_shard_optimizer(r, value);
        break;
    case V1_SHARDED_DATA:
        read_v1_sharded_data(r, value);
        break;
    }
}

static void read_v1(reading *r, const cJSON *object)
{
    for (const cJSON *value = object->child; value != NULL; value = value->next) {
        if (find_v1(value->string) != NULL) {
            read_v1_key(r, value);
        } else if (smp_settings_find(value->string) >= 0) {
            smp_place place = smp_json_place(r->json, value);
            (void)smp_fail(r->errors, SMP_INPUT, &place,
                           "%s: a file with keys of SMP v1 may not hold keys of SMP v2 or of "
                           "this program", value->string);
        } else {
            read_v2_key(r, value); /* says that it is unknown */
        }
    }
}

/* ------------------------------------------------------------- the file */

/* The object with the parameters, inside the wrappers that are there; NULL: reported. */
static const cJSON *unwrap(reading *r, const cJSON *root)
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
    reading r = {.json = json, .path = path, .settings = *settings, .errors = errors};
    const cJSON *object = unwrap(&r, smp_json_root(json));
    bool v1 = false;
    for (const cJSON *value = object != NULL ? object->child : NULL; value != NULL;
         value = value->next) {
        v1 = v1 || is_only_v1(value->string);
    }
    if (object != NULL && v1) {
        read_v1(&r, object);
    } else if (object != NULL) {
        r.object = object;
        for (const cJSON *value = object->child; value != NULL; value = value->next) {
            if (strcmp(value->string, "moe") == 0) {
                read_moe(&r, value);
            } else {
                read_v2_key(&r, value);
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
        if (strchr(value, ':') != NULL) {
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
        if (!table[i].smp_v2 && !table[i].searched && !smp_key_given(settings, (smp_key)i) &&
            strcmp(value, table[i].initial) == 0) {
            continue;
        }
        out_value(&out, (smp_key)i, table[i].key, value);
    }
    smp_out_end_object(&out);
    smp_status status = smp_file_write(path, out.text.data, out.text.length, errors);
    smp_text_free(&out.text);
    return status;
}
