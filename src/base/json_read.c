/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Typed members of JSON objects, and the messages when they are not as they must be.
 */
#include "config.h"

#include "base/json.h"

#include "base/text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

enum { EXCERPT_BYTES = 40 };

/* How a value looks in its file, cut to a length that fits a line. */
static void add_excerpt(smp_text *text, const smp_json *json, const cJSON *value)
{
    size_t n;
    const char *source = smp_json_source(json, value, &n);

    if (cJSON_IsObject(value)) {
        smp_text_add(text, "an object");
    } else if (cJSON_IsArray(value)) {
        smp_text_add(text, "an array");
    } else if (n <= EXCERPT_BYTES) {
        smp_text_add_n(text, source, n);
    } else {
        size_t cut = EXCERPT_BYTES;

        while (cut > 0 && ((unsigned char)source[cut] & 0xC0) == 0x80) {
            cut--; /* not inside a character */
        }
        smp_text_add_n(text, source, cut);
        smp_text_add(text, "...");
    }
}

static void fail_value(const smp_reader *r, const cJSON *value, const char *format, ...)
    SMP_PRINTF(3, 4);
static void fail_value(const smp_reader *r, const cJSON *value, const char *format, ...)
{
    smp_place where = smp_json_place(r->json, value);
    smp_text text = {0};
    char rule[200];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(rule, sizeof rule, format, args);
    va_end(args);
    add_excerpt(&text, r->json, value);
    (void)smp_fail(r->errors, SMP_INPUT, &where, "%s: must be %s", text.data, rule);
    smp_text_free(&text);
}

smp_status smp_read_root(const smp_json *json, smp_errors *errors, smp_reader *reader_p)
{
    smp_reader r = {json, smp_json_root(json), errors};

    if (!cJSON_IsObject(r.object)) {
        fail_value(&r, r.object, "an object");
        return SMP_INPUT;
    }
    *reader_p = r;
    return SMP_OK;
}

const cJSON *smp_read_member(const smp_reader *r, const char *key, bool required)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(r->object, key);

    if (value != NULL && !cJSON_IsNull(value)) {
        return value;
    }
    if (required) {
        smp_place where = smp_json_place(r->json, value != NULL ? value : r->object);

        (void)smp_fail(r->errors, SMP_INPUT, &where,
                       value != NULL ? "null: \"%s\" is required" : "\"%s\" is missing", key);
    }
    return NULL;
}

bool smp_read_u64(const smp_reader *r, const char *key, bool required, uint64_t low,
                  uint64_t high, uint64_t *value_p)
{
    const cJSON *value = smp_read_member(r, key, required);
    uint64_t u;

    if (value == NULL) {
        return false;
    }
    if (smp_json_u64(r->json, value, &u) && u >= low && u <= high) {
        *value_p = u;
        return true;
    }
    if (high == UINT64_MAX) {
        fail_value(r, value, "an integer of at least %" PRIu64 " and below 2^64", low);
    } else {
        fail_value(r, value, "an integer from %" PRIu64 " to %" PRIu64, low, high);
    }
    return false;
}

bool smp_read_double(const smp_reader *r, const char *key, bool required, double low,
                     double high, double *value_p)
{
    const cJSON *value = smp_read_member(r, key, required);

    if (value == NULL) {
        return false;
    }
    if (cJSON_IsNumber(value) && value->valuedouble >= low && value->valuedouble <= high) {
        *value_p = value->valuedouble;
        return true;
    }
    if (high > 1e300) {
        fail_value(r, value, "a number of at least %.9g", low);
    } else {
        fail_value(r, value, "a number from %.9g to %.9g", low, high);
    }
    return false;
}

bool smp_read_bool(const smp_reader *r, const char *key, bool required, bool *value_p)
{
    const cJSON *value = smp_read_member(r, key, required);

    if (value == NULL) {
        return false;
    }
    if (!cJSON_IsBool(value)) {
        fail_value(r, value, "true or false");
        return false;
    }
    *value_p = cJSON_IsTrue(value);
    return true;
}

bool smp_read_string(const smp_reader *r, const char *key, bool required, const char **value_p)
{
    const cJSON *value = smp_read_member(r, key, required);

    if (value == NULL) {
        return false;
    }
    if (!cJSON_IsString(value)) {
        fail_value(r, value, "a string");
        return false;
    }
    *value_p = value->valuestring;
    return true;
}

bool smp_read_object(const smp_reader *r, const char *key, bool required, smp_reader *value_p)
{
    const cJSON *value = smp_read_member(r, key, required);

    if (value == NULL) {
        return false;
    }
    if (!cJSON_IsObject(value)) {
        fail_value(r, value, "an object");
        return false;
    }
    *value_p = (smp_reader){r->json, value, r->errors};
    return true;
}

/* --------------------------------------------------------------- near words */

enum { WORD_BYTES = 64 };

static unsigned lower(char c)
{
    return (unsigned char)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
}

/* Levenshtein's distance without regard to case [Wagner, Fischer 1974]; both words are
 * shorter than WORD_BYTES. */
static size_t distance(const char *a, const char *b)
{
    size_t row[WORD_BYTES];
    size_t n = strlen(b);

    for (size_t j = 0; j <= n; j++) {
        row[j] = j;
    }
    for (size_t i = 1; a[i - 1] != '\0'; i++) {
        size_t diagonal = row[0];

        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t change = diagonal + (lower(a[i - 1]) != lower(b[j - 1]));
            size_t insert = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;

            diagonal = row[j];
            row[j] = change < insert ? change : insert;
        }
    }
    return row[n];
}

const char *smp_nearest_word(const char *word, const char *const *known)
{
    size_t length = strlen(word);
    size_t best = length / 3 + 2; /* one more than what still counts as near */
    const char *nearest = NULL;

    if (length >= WORD_BYTES) {
        return NULL;
    }
    for (; *known != NULL; known++) {
        size_t d = strlen(*known) < WORD_BYTES ? distance(word, *known) : best;

        if (d < best) {
            best = d;
            nearest = *known;
        }
    }
    return nearest;
}

static bool is_known(const char *key, const char *const *known)
{
    for (; *known != NULL; known++) {
        if (strcmp(key, *known) == 0) {
            return true;
        }
    }
    return false;
}

static void fail_unknown(const smp_reader *r, const cJSON *member, const char *const *known)
{
    const char *nearest = smp_nearest_word(member->string, known);
    smp_place where = smp_json_key_place(r->json, member);
    smp_text text = {0};

    if (nearest != NULL) {
        smp_text_add(&text, "did you mean \"%s\"?", nearest);
    } else {
        smp_text_add(&text, "known:");
        for (size_t i = 0; known[i] != NULL; i++) {
            smp_text_add(&text, "%s %s", i > 0 ? "," : "", known[i]);
        }
    }
    (void)smp_fail(r->errors, SMP_INPUT, &where, "unknown key (%s)", text.data);
    smp_text_free(&text);
}

void smp_read_reject_unknown(const smp_reader *r, const char *const *known)
{
    for (const cJSON *m = r->object->child; m != NULL; m = m->next) {
        if (!is_known(m->string, known)) {
            fail_unknown(r, m, known);
        }
    }
}
