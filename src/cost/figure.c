/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading figures: a number is refused without the source that it rests on.
 */
#include "config.h"

#include "cost/figure.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

static const char *const figure_keys[] = {"value", "source", NULL};

bool smp_figure_text(const smp_reader *r, smp_arena *arena, const char *key, bool required,
                     const char **text_p)
{
    const char *text = NULL;
    if (!smp_read_string(r, key, required, &text)) {
        return false;
    }
    if (text[0] == '\0') {
        const smp_place place = smp_json_place(r->json, smp_read_member(r, key, false));
        (void)smp_fail(r->errors, SMP_INPUT, &place, "%s is empty: a text is needed", key);
        return false;
    }
    *text_p = smp_arena_strdup(arena, text);
    return true;
}

bool smp_figure_read(const smp_reader *r, smp_arena *arena, const char *key, bool required,
                     double low, double high, const double *automatic, smp_figure *figure_p)
{
    smp_reader figure;
    if (!smp_read_object(r, key, required, &figure)) {
        return false;
    }
    smp_read_reject_unknown(&figure, figure_keys);
    smp_figure result = {0.0, NULL};
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(figure.object, "value");
    bool good;
    if (automatic != NULL && cJSON_IsString(value) && strcmp(value->valuestring, "auto") == 0) {
        result.value = *automatic;
        good = true;
    } else {
        good = smp_read_double(&figure, "value", true, low, high, &result.value);
    }
    if (!smp_figure_text(&figure, arena, "source", true, &result.source) || !good) {
        return false;
    }
    *figure_p = result;
    return true;
}

void smp_figure_format(const smp_reader *r, const char *format)
{
    const char *text = NULL;
    if (smp_read_string(r, "format", true, &text) && strcmp(text, format) != 0) {
        const smp_place place = smp_json_place(r->json, smp_read_member(r, "format", false));
        (void)smp_fail(r->errors, SMP_INPUT, &place, "format \"%s\": must be \"%s\"", text,
                       format);
    }
}

bool smp_figure_root(const smp_json *json, smp_errors *errors, smp_reader *r_p)
{
    const cJSON *root = smp_json_root(json);
    if (!cJSON_IsObject(root)) {
        const smp_place place = smp_json_place(json, root);
        (void)smp_fail(errors, SMP_INPUT, &place, "the file must hold one JSON object");
        return false;
    }
    *r_p = (smp_reader){json, root, errors};
    return true;
}

smp_status smp_figure_load(const char *kind, const char *name_or_path, smp_errors *errors,
                           char **path_p, smp_json **json_p)
{
    char *path = NULL;
    smp_status status = smp_find_config(kind, name_or_path, errors, &path);
    if (status != SMP_OK) {
        return status;
    }
    status = smp_json_read(path, errors, json_p);
    if (status != SMP_OK) {
        free(path);
        return status;
    }
    *path_p = path;
    return SMP_OK;
}

const char *smp_figure_name(smp_arena *arena, const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *base = slash == NULL ? path : slash + 1;
    const size_t n = strlen(base);
    const bool suffix = n > 5 && strcmp(base + n - 5, ".json") == 0;
    return smp_arena_strndup(arena, base, suffix ? n - 5 : n);
}
