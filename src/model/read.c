/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a config.json from file, directory or shipped name, and refusing what we cannot. */
#include "config.h"

#include "model/family.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static smp_status refuse_type(const smp_facts *facts, const cJSON *node, const char *what)
{
    smp_text names = {0};
    const smp_family *const *families = smp_families();
    for (size_t i = 0; families[i]; i++) {
        smp_text_add(&names, "%s%s", i ? ", " : "", families[i]->model_type);
    }
    smp_place place = smp_json_place(facts->json, node);
    smp_status status = smp_fail(facts->errors, SMP_INPUT, &place, "%s (supported: %s)", what,
                                 names.data);
    smp_text_free(&names);
    return status;
}

/* A config of several models (text and vision, say): the text model is read from its
 * text_config when that is of a supported family; "tie_word_embeddings" may stand outside. */
static bool enter_text_config(smp_facts *facts)
{
    const cJSON *nested = smp_object_at(facts->object, "text_config");
    const cJSON *type = nested ? smp_object_at(nested, "model_type") : NULL;
    const smp_family *family =
        cJSON_IsString(type) ? smp_family_find(type->valuestring) : NULL;
    if (family) {
        facts->family = family;
        facts->outer = facts->object;
        facts->object = nested;
    }
    return family != NULL;
}

/* Sets the family, or tells which ones there are. */
static smp_status find_family(smp_facts *facts)
{
    const cJSON *root = facts->object;
    const cJSON *type = smp_object_at(root, "model_type");
    smp_text what = {0};
    smp_status status = SMP_OK;

    if (!cJSON_IsString(type)) {
        smp_text_add(&what, "%s", type ? "model_type: must be the name of a family"
                     : smp_object_at(root, "auto_map")
                         ? "model_type is missing, and code that auto_map names is not run"
                         : "model_type is missing");
        status = refuse_type(facts, type ? type : root, what.data);
    } else {
        facts->family = smp_family_find(type->valuestring);
        if (!facts->family && !enter_text_config(facts)) {
            const cJSON *nested = smp_object_at(root, "text_config.model_type");
            smp_text_add(&what, "model_type \"%.60s\"", type->valuestring);
            if (cJSON_IsString(nested)) {
                smp_text_add(&what, " with text_config \"%.60s\"", nested->valuestring);
            }
            smp_text_add(&what, ": not a supported family");
            status = refuse_type(facts, type, what.data);
        }
    }
    smp_text_free(&what);
    return status;
}

static void warn_architecture(const smp_facts *facts)
{
    const cJSON *list = smp_object_at(facts->object, "architectures");
    const cJSON *first = cJSON_IsArray(list) ? list->child : NULL;
    static const char *const other[] = {"Classification", "QuestionAnswering", "RewardModel"};
    for (size_t i = 0; cJSON_IsString(first) && i < sizeof other / sizeof other[0]; i++) {
        if (strstr(first->valuestring, other[i])) {
            smp_place place = smp_json_place(facts->json, first);
            smp_warn(facts->errors, &place,
                     "architectures \"%.60s\": read as the causal language model of its family",
                     first->valuestring);
        }
    }
}

static smp_status read_facts(smp_facts *facts, smp_model *model)
{
    size_t failures = smp_errors_count(facts->errors);
    if (!cJSON_IsObject(facts->object)) {
        smp_place place = smp_json_place(facts->json, facts->object);
        return smp_fail(facts->errors, SMP_INPUT, &place,
                        "a config.json must be an object, with model_type");
    }
    smp_status status = find_family(facts);
    if (status) {
        return status;
    }
    model->family = facts->family->model_type;
    warn_architecture(facts);
    smp_facts_read(facts);
    smp_facts_check(facts);
    model->max_positions = smp_fact_u64(facts, SMP_FACT_POSITIONS);
    smp_rope_read(facts, model);
    if (smp_errors_count(facts->errors) != failures) {
        return SMP_INPUT;
    }
    smp_model_build(facts, model);
    if (model->parameters > INT64_MAX) {
        smp_place place = smp_json_place(facts->json, facts->object);
        return smp_fail(facts->errors, SMP_INPUT, &place,
                        "the model has more than 2^63 parameters: sizes are wrong");
    }
    return SMP_OK;
}

/* Python writes NaN and Infinity, which are no JSON, and published files have them in keys
 * that we do not read.  Outside of strings they become words of the same length, so that
 * places stay true and such a value in a key that we do read is of the wrong type. */
static void replace_python_words(char *text, size_t n)
{
    static const char *const words[][2] = {
        {"-Infinity", "\"-infini\""}, {"Infinity", "\"infini\""}, {"NaN", "\"N\""}};
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '"') {
            in_string = !in_string;
        } else if (in_string && text[i] == '\\') {
            i++;
        }
        for (size_t w = 0; !in_string && w < sizeof words / sizeof words[0]; w++) {
            size_t length = strlen(words[w][0]);
            if (length <= n - i && memcmp(text + i, words[w][0], length) == 0) {
                memcpy(text + i, words[w][1], length);
                i += length - 1;
                break;
            }
        }
    }
}

smp_status smp_model_parse(const char *text, size_t n, const char *place_name,
                           const char *model_name, smp_errors *errors, smp_model **model_p)
{
    smp_facts facts = {.errors = errors};
    smp_json *json = NULL;
    smp_arena *arena = smp_arena_create();
    char *clean = SMP_ARENA_ARRAY(arena, n + 1, char);
    if (n > 0) {
        memcpy(clean, text, n);
    }
    replace_python_words(clean, n);
    smp_status status = smp_json_parse(clean, n, place_name, errors, &json);
    if (status) {
        smp_arena_destroy(arena);
        return status;
    }
    smp_model *model = SMP_ARENA_NEW(arena, smp_model);
    model->arena = arena;
    model->name = smp_arena_strdup(arena, model_name);
    model->config = clean;
    facts.json = json;
    facts.object = smp_json_root(json);
    status = read_facts(&facts, model);
    smp_json_destroy(json);
    if (status) {
        smp_model_destroy(model);
        return status;
    }
    *model_p = model;
    return SMP_OK;
}

/* "dir/Name.json" is "Name"; "dir/Name/config.json" is "Name" as well. */
static char *name_of_path(smp_arena *arena, const char *path)
{
    size_t n = strlen(path);
    const char *config = "config.json";
    size_t n_config = strlen(config);
    if (n > n_config && strcmp(path + n - n_config, config) == 0 &&
        path[n - n_config - 1] == '/') {
        n -= n_config;
        while (n > 0 && path[n - 1] == '/') {
            n--;
        }
    } else if (n > 5 && strcmp(path + n - 5, ".json") == 0) {
        n -= 5;
    }
    size_t from = n;
    while (from > 0 && path[from - 1] != '/') {
        from--;
    }
    return n > from ? smp_arena_strndup(arena, path + from, n - from)
                    : smp_arena_strdup(arena, "model");
}

static bool is_directory(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

smp_status smp_model_read(const char *name_or_path, smp_errors *errors, smp_model **model_p)
{
    char *found = NULL;
    smp_status status = SMP_OK;
    smp_arena *arena = smp_arena_create();
    const char *path;

    if (is_directory(name_or_path)) {
        path = smp_arena_printf(arena, "%s/config.json", name_or_path);
    } else {
        status = smp_find_config("models", name_or_path, errors, &found);
        path = found;
    }
    smp_text text = {0};
    if (!status) {
        status = smp_json_load(path, errors, &text);
    }
    if (!status) {
        status = smp_model_parse(text.data, text.length, path, name_of_path(arena, path),
                                 errors, model_p);
    }
    smp_text_free(&text);
    free(found);
    smp_arena_destroy(arena);
    return status;
}

void smp_model_destroy(smp_model *model)
{
    if (model) {
        smp_arena_destroy(model->arena);
    }
}

const char *smp_model_name(const smp_model *model)
{
    return model->name;
}

const char *smp_model_family(const smp_model *model)
{
    return model->family;
}

uint64_t smp_model_parameters(const smp_model *model)
{
    return model->parameters;
}

uint64_t smp_model_active_parameters(const smp_model *model)
{
    return model->active_parameters;
}
