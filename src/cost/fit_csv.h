/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading CSV (RFC 4180): a header, then rows of as many fields, quoted where needed.
 * Internal to src/cost.
 */
#ifndef SMP_COST_FIT_CSV_H
#define SMP_COST_FIT_CSV_H

#include "base/arena.h"
#include "smp.h"

enum { SMP_CSV_COLUMNS = 64 };

typedef struct smp_csv_field { const char *text; uint32_t column; } smp_csv_field;

typedef struct smp_csv {
    smp_arena *arena;   /* strings live here */
    const char *file;
    const char *next, *end;
    uint32_t line;      /* of the row just read */
    uint32_t next_line;
    uint32_t n_column;
    const char *names[SMP_CSV_COLUMNS];
    smp_csv_field fields[SMP_CSV_COLUMNS];
    uint64_t digest;    /* of the row's bytes */
} smp_csv;

/* Reads the header. */
SMP_CHECK smp_status smp_csv_open(const char *text, size_t n, const char *file,
                                  smp_arena *arena, smp_errors *errors, smp_csv *csv);
/* The next row into `fields`; false at the end.  A row that is no row is told and skipped. */
bool smp_csv_row(smp_csv *csv, smp_errors *errors);
/* A field by name; "" when the file has no such column. */
const char *smp_csv_text(const smp_csv *csv, const char *name);
/* A number within [low, high]; false when the field is empty.  What is no number is told, and
 * *good_p becomes false. */
bool smp_csv_number(const smp_csv *csv, const char *name, double low, double high,
                    smp_errors *errors, bool *good_p, double *value_p);
smp_place smp_csv_place(const smp_csv *csv, const char *name);

#endif
