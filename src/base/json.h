/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading JSON with positions, over cJSON.
 *
 * A strict scan of the text comes first: UTF-8, RFC 8259 grammar, no duplicate keys, no
 * NaN or Infinity, numbers within double and of at most 63 characters, nesting at most 256,
 * files at most 64 MiB.  It records where each value starts; cJSON then builds the tree, and
 * both are walked in document order to join them.  So every later message can name
 * file:line:column and the JSON path.
 */
#ifndef SMP_BASE_JSON_H
#define SMP_BASE_JSON_H

#include "base/text.h"
#include "smp.h"

#include <cjson/cJSON.h>

typedef struct smp_json smp_json;

SMP_CHECK smp_status smp_json_read(const char *path, smp_errors *errors, smp_json **json_p);
/* The bytes of a file of at most 64 MiB, before any check; smp_text_free them. */
SMP_CHECK smp_status smp_json_load(const char *path, smp_errors *errors, smp_text *text_p);
/* `name` stands for the file in messages; the text is copied. */
SMP_CHECK smp_status smp_json_parse(const char *text, size_t n, const char *name,
                                    smp_errors *errors, smp_json **json_p);
void smp_json_destroy(smp_json *json);
const cJSON *smp_json_root(const smp_json *json);
/* Place of a value in its file; strings live as long as the document. */
smp_place smp_json_place(const smp_json *json, const cJSON *value);
/* The same, but line and column of the member's key. */
smp_place smp_json_key_place(const smp_json *json, const cJSON *member);
/* The text of a value in its file, n bytes without a terminator. */
const char *smp_json_source(const smp_json *json, const cJSON *value, size_t *n_p);
/* Unsigned integers exact to 64 bits, from the text of the number: "1e3" and "4.0" are
 * integers, "1.5", "-1" and 2^64 are not.  False if not an integer in range. */
bool smp_json_u64(const smp_json *json, const cJSON *value, uint64_t *u_p);

/* Typed members of an object.  A missing or null member returns false and leaves the output
 * alone; a member of the wrong type or outside [low, high] adds a failure that names value,
 * rule and legal range, and returns false.  `required` makes missing or null a failure. */
typedef struct smp_reader {
    const smp_json *json;
    const cJSON *object;
    smp_errors *errors;
} smp_reader;

/* A reader of the root, which must be an object. */
SMP_CHECK smp_status smp_read_root(const smp_json *json, smp_errors *errors,
                                   smp_reader *reader_p);
const cJSON *smp_read_member(const smp_reader *r, const char *key, bool required);
bool smp_read_u64(const smp_reader *r, const char *key, bool required, uint64_t low,
                  uint64_t high, uint64_t *value_p);
bool smp_read_double(const smp_reader *r, const char *key, bool required, double low,
                     double high, double *value_p);
bool smp_read_bool(const smp_reader *r, const char *key, bool required, bool *value_p);
/* The string lives as long as the document. */
bool smp_read_string(const smp_reader *r, const char *key, bool required, const char **value_p);
bool smp_read_object(const smp_reader *r, const char *key, bool required, smp_reader *value_p);
/* A failure for each member whose key is not in `known` (NULL-terminated), with the nearest
 * known key as a hint. */
void smp_read_reject_unknown(const smp_reader *r, const char *const *known);
/* The known word nearest to `word` by edit distance, or NULL when none is near. */
const char *smp_nearest_word(const char *word, const char *const *known);

#endif
