/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys of SMP v1, as in the SageMaker Python SDK's reference [smd_model_parallel_general.rst]:
 * where v2 or we have the same idea a key is translated, else it is named in a warning.
 */
#include "config.h"

#include "mesh/smp_file.h"

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

typedef struct v1_key { const char *name, *path; v1_kind kind; const char *text; } v1_key;

#define NO_PIPELINE "there is no pipeline parallelism"
#define NO_FRAMEWORK "it configures another software"
#define NO_BUCKETS "units are gathered and reduced whole"

#define KEY(name, kind, text) {name, "$." name, kind, text}
static const v1_key v1_keys[] = {
    KEY("pipeline_parallel_degree", V1_ONE, NO_PIPELINE),
    KEY("partitions", V1_ONE, NO_PIPELINE),
    KEY("microbatches", V1_NONE, "give micro_batch, the sequences of one micro-batch"),
    KEY("pipeline", V1_NONE, NO_PIPELINE),
    KEY("optimize", V1_OPTIMIZE, NULL),
    KEY("placement_strategy", V1_PLACEMENT, NULL),
    KEY("auto_partition", V1_NONE, NO_PIPELINE),
    KEY("default_partition", V1_NONE, NO_PIPELINE),
    KEY("contiguous", V1_NONE, NO_PIPELINE),
    KEY("horovod", V1_NONE, NO_FRAMEWORK),
    KEY("memory_weight", V1_NONE, NO_PIPELINE),
    KEY("ddp", V1_ALWAYS, "data parallelism is always on"),
    KEY("active_microbatches", V1_NONE, NO_PIPELINE),
    KEY("deterministic_server", V1_NONE, NO_FRAMEWORK),
    KEY("offload_activations", V1_OFFLOAD, NULL),
    KEY("activation_loading_horizon", V1_HORIZON, NULL),
    KEY("tensor_parallel_degree", V1_SAME, NULL),
    KEY("fp16", V1_FP16, NULL),
    KEY("fp16_params", V1_FP16, NULL),
    KEY("bf16", V1_BF16, NULL),
    KEY("shard_optimizer_state", V1_SHARD_OPTIMIZER, NULL),
    KEY("prescaled_batch", V1_ALWAYS, "the ranks of a tensor group always read the same batch"),
    KEY("skip_tracing", V1_NONE, NO_FRAMEWORK),
    KEY("sharded_data_parallel_degree", V1_SHARDED_DATA, NULL),
    KEY("sdp_reduce_bucket_size", V1_NONE, NO_BUCKETS),
    KEY("sdp_param_persistence_threshold", V1_NONE, NO_BUCKETS),
    KEY("sdp_max_live_parameters", V1_NONE, NO_BUCKETS),
    KEY("sdp_hierarchical_allgather", V1_NONE, "the collective library chooses the algorithm"),
    KEY("sdp_gradient_clipping", V1_NONE, "gradients are always clipped by their global norm"),
    KEY("ddp_dist_backend", V1_NONE, NO_FRAMEWORK),
};
#undef KEY
enum { V1_KEYS = sizeof(v1_keys) / sizeof(v1_keys[0]) };

static const v1_key *find_v1(const char *name)
{
    for (int i = 0; i < (int)V1_KEYS; i++) {
        if (strcmp(v1_keys[i].name, name) == 0) {
            return &v1_keys[i];
        }
    }
    return NULL;
}

const char *smp_v1_path(const char *name)
{
    const v1_key *key = find_v1(name);

    return key != NULL ? key->path : NULL;
}

bool smp_is_only_v1(const char *name)
{
    return find_v1(name) != NULL && smp_settings_find(name) < 0;
}

static void warn_v1(const smp_reading *r, const cJSON *value, const char *text)
{
    smp_place place = smp_json_place(r->json, value);

    smp_warn(r->errors, &place, "SMP v1 key %s has no equivalent: %s", value->string, text);
}

static bool v1_integer(const smp_reading *r, const cJSON *value, char *text, size_t size_bytes)
{
    if (smp_reading_text(r, value, SMP_SETTING_INTEGER, text, size_bytes) &&
        strcmp(text, "0") != 0) {
        return true;
    }
    smp_reading_refuse(r, value, "an integer: 1 or more");
    return false;
}

static bool v1_boolean(const smp_reading *r, const cJSON *value)
{
    if (!cJSON_IsBool(value)) {
        smp_reading_refuse(r, value, "true or false");
    }
    return cJSON_IsTrue(value);
}

/* fp16 trains in fp16 with an fp32 master; false leaves fp32, v1's default, unless another
 * key of the file says otherwise. */
static void read_v1_precision(smp_reading *r, const cJSON *value, const char *word)
{
    if (v1_boolean(r, value)) {
        smp_reading_set(r, value, "precision", word);
    } else if (cJSON_IsBool(value) && !smp_settings_given(&r->settings, "precision")) {
        smp_reading_set(r, value, "precision", "fp32");
    }
}

/* Degree 1 is v1's way to say that nothing is sharded; optimizer state may still be. */
static void read_v1_sharded_data(smp_reading *r, const cJSON *value)
{
    char text[32];

    if (!v1_integer(r, value, text, sizeof(text))) {
        return;
    }
    if (strcmp(text, "1") != 0) {
        smp_reading_set(r, value, "hybrid_shard_degree", text);
        smp_reading_set(r, value, "sharding", "full");
    } else if (!smp_settings_given(&r->settings, "sharding")) {
        smp_reading_set(r, value, "hybrid_shard_degree", "1");
        smp_reading_set(r, value, "sharding", "none");
    }
}

/* shard_optimizer_state has a say only where parameters are not sharded. */
static void read_v1_shard_optimizer(smp_reading *r, const cJSON *value)
{
    bool full = smp_settings_given(&r->settings, "sharding") &&
                r->settings.sharding == SMP_SHARDING_FULL;

    if (v1_boolean(r, value) && !full) {
        smp_reading_set(r, value, "hybrid_shard_degree", "0");
        smp_reading_set(r, value, "sharding", "optimizer");
    }
}

/* speed: norms and residuals are copies on every tensor rank; memory: they are split. */
static void read_v1_optimize(smp_reading *r, const cJSON *value)
{
    bool speed = cJSON_IsString(value) && strcmp(value->valuestring, "speed") == 0;
    bool memory = cJSON_IsString(value) && strcmp(value->valuestring, "memory") == 0;

    if (speed || memory) {
        smp_reading_set(r, value, "sequence_parallel", memory ? "true" : "false");
    } else {
        smp_reading_refuse(r, value, "memory or speed");
    }
}

static void read_v1_placement(smp_reading *r, const cJSON *value)
{
    if (cJSON_IsString(value) && strchr(value->valuestring, ',') == NULL) {
        smp_reading_set(r, value, "rank_order", value->valuestring);
    } else {
        smp_reading_refuse(r, value, "cluster, spread or a permutation of DPT");
    }
}

static void read_v1_horizon(smp_reading *r, const cJSON *value)
{
    char text[32];
    smp_place place = smp_json_place(r->json, value);

    if (v1_integer(r, value, text, sizeof(text))) {
        smp_reading_set(r, value, "activation_loading_horizon", text);
        smp_warn(r->errors, &place, "activation_loading_horizon counts pipeline tasks in "
                 "SMP v1 and layers here");
    }
}

static void read_v1_key(smp_reading *r, const cJSON *value)
{
    const v1_key *key = find_v1(value->string);
    char text[32];

    switch (key->kind) {
    case V1_NONE:
        warn_v1(r, value, key->text);
        break;
    case V1_SAME:
        smp_reading_key(r, value);
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
        smp_reading_set(r, value, "offload", v1_boolean(r, value) ? "true" : "false");
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

void smp_reading_v1(smp_reading *r, const cJSON *object)
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
            smp_reading_key(r, value); /* says that it is unknown */
        }
    }
}
