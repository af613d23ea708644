/* SPDX-License-Identifier: Apache-2.0 */
/* What the readers of SMP files share: smp_file.c and smp_v1.c. */
#ifndef SMP_MESH_SMP_FILE_H
#define SMP_MESH_SMP_FILE_H

#include "base/json.h"
#include "mesh/settings.h"

typedef struct smp_reading {
    const smp_json *json;
    const char *path;    /* of the file, as the caller gave it */
    const cJSON *object; /* with the settings */
    bool wrapped, failed;
    smp_settings settings;
    smp_errors *errors;
} smp_reading;

/* Sets a setting from what stands at `value`. */
void smp_reading_set(smp_reading *r, const cJSON *value, const char *key, const char *text);
/* The value of a key as text, when its JSON type suits the key. */
bool smp_reading_text(const smp_reading *r, const cJSON *value, smp_setting_kind kind,
                      char *text, size_t size_bytes);
/* The value is not of the type that the rule says. */
void smp_reading_refuse(const smp_reading *r, const cJSON *value, const char *rule);
/* One member of the object: the key of a setting and its value. */
void smp_reading_key(smp_reading *r, const cJSON *value);

/* smp_v1.c.  Keys that say that a file is of v1: not those that v2 has as well. */
bool smp_is_only_v1(const char *name);
/* "$.KEY" of a key of v1's reference, a constant; NULL: it is none. */
const char *smp_v1_path(const char *name);
void smp_reading_v1(smp_reading *r, const cJSON *object);

#endif
