/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The strict scan of JSON text (internal to src/base): checks the grammar of RFC 8259 and
 * records where each value lies.  Builds no tree; knows nothing of keys said twice.
 */
#ifndef SMP_BASE_JSON_SCAN_H
#define SMP_BASE_JSON_SCAN_H

#include "smp.h"

enum {
    SMP_JSON_DEPTH = 256,
    SMP_JSON_BYTES = 64 * 1024 * 1024,
    SMP_JSON_VALUES = 4 * 1000 * 1000, /* about 500 MB of tree: more is no configuration */
    SMP_JSON_NUMBER_BYTES = 63         /* what cJSON 1.7 takes */
};

/* A value in the text, and the place of its key if it has one (else of the value). */
typedef struct smp_json_span {
    uint32_t offset, size_bytes;
    uint32_t line, column;
    uint32_t key_line, key_column;
    uint32_t parent;  /* index of the enclosing value; the root's is its own, 0 */
    uint32_t ordinal; /* position among the children of the parent */
} smp_json_span;

typedef struct smp_json_spans {
    smp_json_span *span; /* heap; in document order: a parent before its children */
    size_t count, capacity;
} smp_json_spans;

/* Spans are filled as far as the text is right; the caller frees them in any case. */
SMP_CHECK smp_status smp_json_scan(const char *text, size_t n, const char *name,
                                   smp_errors *errors, smp_json_spans *spans);

#endif
