/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CSV with places, for messages that name file:line:column.
 */
#include "config.h"

#include "cost/fit_csv.h"

#include "base/numeric.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST_FIELD = 4096 };

static smp_status broken(const smp_csv *csv, uint32_t line, uint32_t column,
                         smp_errors *errors, const char *what)
{
    const smp_place place = {.file = csv->file, .line = line, .column = column};
    return smp_fail(errors, SMP_INPUT, &place, "%s", what);
}

/* One field from csv->next, which moves behind it and its comma; *last_p: the row ends. */
static const char *read_field(smp_csv *csv, const char *row, smp_errors *errors, bool *last_p,
                              bool *good_p, uint32_t *column_p)
{
    char buffer[LONGEST_FIELD];
    size_t n = 0;
    const char *c = csv->next;
    *column_p = (uint32_t)(c - row) + 1;
    const bool quoted = c < csv->end && *c == '"';
    bool open = quoted;
    c += quoted ? 1 : 0;
    while (c < csv->end && (open || (*c != ',' && *c != '\n' && *c != '\r'))) {
        if (open && *c == '"') {
            if (c + 1 < csv->end && c[1] == '"') {
                c++;
            } else {
                open = false;
                c++;
                continue;
            }
        } else if (open && *c == '\n') {
            break;
        }
        if (n + 1 < sizeof buffer) {
            buffer[n] = *c;
        }
        n++;
        c++;
    }
    if (open || n + 1 >= sizeof buffer) {
        *good_p = false;
        (void)broken(csv, csv->line, *column_p, errors,
                     open ? "a quoted field does not end on its line"
                          : "a field is longer than 4095 bytes");
        n = n + 1 >= sizeof buffer ? sizeof buffer - 1 : n;
    }
    *last_p = c >= csv->end || *c != ',';
    csv->next = *last_p ? c : c + 1;
    return smp_arena_strndup(csv->arena, buffer, n);
}

/* Moves to the line after the one read. */
static void finish_line(smp_csv *csv)
{
    while (csv->next < csv->end && *csv->next != '\n') {
        csv->next++;
    }
    csv->next += csv->next < csv->end ? 1 : 0;
    csv->next_line++;
}

static bool read_row(smp_csv *csv, smp_errors *errors, uint32_t *n_p)
{
    const char *row = csv->next;
    bool last = false;
    bool good = true;
    uint32_t n = 0;
    csv->line = csv->next_line;
    while (!last) {
        uint32_t column;
        const char *text = read_field(csv, row, errors, &last, &good, &column);
        if (n < SMP_CSV_COLUMNS) {
            csv->fields[n] = (smp_csv_field){text, column};
        }
        n++;
    }
    csv->digest = smp_hash(row, (size_t)(csv->next - row), 0);
    finish_line(csv);
    *n_p = n;
    return good;
}

smp_status smp_csv_open(const char *text, size_t n, const char *file, smp_arena *arena,
                        smp_errors *errors, smp_csv *csv)
{
    *csv = (smp_csv){.arena = arena, .file = file, .next = text, .end = text + n,
                     .next_line = 1};
    if (memchr(text, '\0', n) != NULL) {
        return broken(csv, 1, 1, errors, "not a CSV file: it holds NUL bytes");
    }
    if (n >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) {
        csv->next += 3;
    }
    if (n == 0) {
        return broken(csv, 1, 1, errors, "the file is empty: a header with column names is "
                                         "needed");
    }
    uint32_t columns = 0;
    if (!read_row(csv, errors, &columns)) {
        return SMP_INPUT;
    }
    if (columns > SMP_CSV_COLUMNS) {
        return broken(csv, 1, 1, errors, "more than 64 columns");
    }
    csv->n_column = columns;
    for (uint32_t i = 0; i < columns; i++) {
        csv->names[i] = csv->fields[i].text;
    }
    return SMP_OK;
}

bool smp_csv_row(smp_csv *csv, smp_errors *errors)
{
    while (csv->next < csv->end) {
        uint32_t n = 0;
        if (*csv->next == '\n' || *csv->next == '\r') {
            finish_line(csv);
            continue;
        }
        const bool good = read_row(csv, errors, &n);
        if (good && n == csv->n_column) {
            return true;
        }
        if (good) {
            const smp_place place = {.file = csv->file, .line = csv->line, .column = 1};
            (void)smp_fail(errors, SMP_INPUT, &place, "%u fields: the header names %u", n,
                           csv->n_column);
        }
    }
    return false;
}

static const smp_csv_field *field_of(const smp_csv *csv, const char *name)
{
    for (uint32_t i = 0; i < csv->n_column; i++) {
        if (strcmp(csv->names[i], name) == 0) {
            return &csv->fields[i];
        }
    }
    return NULL;
}

const char *smp_csv_text(const smp_csv *csv, const char *name)
{
    const smp_csv_field *field = field_of(csv, name);
    return field == NULL ? "" : field->text;
}

smp_place smp_csv_place(const smp_csv *csv, const char *name)
{
    const smp_csv_field *field = field_of(csv, name);
    return (smp_place){.file = csv->file,
                       .line = csv->line,
                       .column = field == NULL ? 1 : field->column};
}

bool smp_csv_number(const smp_csv *csv, const char *name, double low, double high,
                    smp_errors *errors, bool *good_p, double *value_p)
{
    const char *text = smp_csv_text(csv, name);
    if (text[0] == '\0') {
        return false;
    }
    char *end = NULL;
    const double value = strtod(text, &end);
    if (*end == '\0' && isfinite(value) && value >= low && value <= high) {
        *value_p = value;
        return true;
    }
    const smp_place place = smp_csv_place(csv, name);
    (void)smp_fail(errors, SMP_INPUT, &place, "%s \"%.40s\": must be a number from %g to %g",
                   name, text, low, high);
    *good_p = false;
    return false;
}
