/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Amounts, times and lists of numbers on a command line.  Each mistake is one line that says
 * what is legal.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "tools/quantity.h"

#include <stdlib.h>
#include <string.h>

/* What may follow a number, and its worth. */
typedef struct suffix { const char *text; double worth; } suffix;

/* The number at the start of a text: digits, a point, an exponent; no sign, no hexadecimal. */
static bool read_number(const char *text, double *value_p, const char **rest_p)
{
    char *end = NULL;
    if ((text[0] < '0' || text[0] > '9') || text[1] == 'x' || text[1] == 'X') {
        return false;
    }
    *value_p = strtod(text, &end);
    *rest_p = end;
    return true;
}

static bool read_quantity(const char *text, const suffix *suffixes, size_t n, double most,
                          double *value_p)
{
    const char *rest = NULL;
    double value = 0;
    if (!read_number(text, &value, &rest)) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        if (strcmp(rest, suffixes[i].text) == 0) {
            value *= suffixes[i].worth;
            if (value > 0 && value <= most) {
                *value_p = value;
                return true;
            }
        }
    }
    return false;
}

smp_status cli_amount(const char *option, const char *text, smp_errors *errors, double *value_p)
{
    static const suffix suffixes[] = {{"", 1}, {"k", 1e3}, {"K", 1e3}, {"M", 1e6},
                                      {"B", 1e9}, {"G", 1e9}, {"T", 1e12}, {"P", 1e15}};
    if (read_quantity(text, suffixes, sizeof suffixes / sizeof suffixes[0], 1e18, value_p)) {
        return SMP_OK;
    }
    const smp_place place = {.file = option};
    return smp_fail(errors, SMP_INPUT, &place,
                    "'%s': must be a number above 0, at most 1e18, alone or with k, M, B (or "
                    "G), T or P behind it: 1T, 15.6T, 300B, 2.5M, 1e12", text);
}

smp_status cli_duration(const char *option, const char *text, smp_errors *errors,
                        double *seconds_p)
{
    static const suffix suffixes[] = {{"s", 1}, {"min", 60}, {"h", 3600}, {"d", 86400},
                                      {"w", 7 * 86400}};
    const double century_s = 100 * 365.25 * 86400;
    if (read_quantity(text, suffixes, sizeof suffixes / sizeof suffixes[0], century_s,
                      seconds_p)) {
        return SMP_OK;
    }
    const smp_place place = {.file = option};
    return smp_fail(errors, SMP_INPUT, &place,
                    "'%s': must be a number above 0 and its unit, s, min, h, d or w, at most "
                    "100 years: 30d, 36h, 2w", text);
}

smp_status cli_seconds(const char *option, const char *text, smp_errors *errors,
                       double *seconds_p)
{
    static const suffix suffixes[] = {{"", 1}, {"ms", 1e-3}, {"s", 1}, {"min", 60},
                                      {"h", 3600}};
    const char *rest = NULL;
    double value = 0;
    if ((read_number(text, &value, &rest) && *rest == '\0' && value <= 0) ||
        read_quantity(text, suffixes, sizeof suffixes / sizeof suffixes[0], 1e9, &value)) {
        *seconds_p = value;
        return SMP_OK;
    }
    const smp_place place = {.file = option};
    return smp_fail(errors, SMP_INPUT, &place,
                    "'%s': must be a number of seconds from 0 to 1e9, or a time with its unit, "
                    "ms, s, min or h: 1s, 500ms, 2min", text);
}

/* ----------------------------------------------------------------- lists of numbers */

enum { MOST = 65536 };

/* A whole number from 1 to MOST; moves the text behind it. */
static bool read_whole(const char **text, uint32_t *value_p)
{
    uint32_t value = 0;
    const char *c = *text;
    for (; *c >= '0' && *c <= '9'; c++) {
        value = value * 10 + (uint32_t)(*c - '0');
        if (value > MOST) {
            return false;
        }
    }
    if (c == *text || value == 0) {
        return false;
    }
    *text = c;
    *value_p = value;
    return true;
}

/* N or A..B or A..B/STEP. */
static bool read_range(const char **text, uint32_t *low_p, uint32_t *high_p, uint32_t *step_p)
{
    *step_p = 1;
    if (!read_whole(text, low_p)) {
        return false;
    }
    *high_p = *low_p;
    if (strncmp(*text, "..", 2) == 0) {
        *text += 2;
        if (!read_whole(text, high_p) || *high_p < *low_p) {
            return false;
        }
        if (**text == '/') {
            (*text)++;
            return read_whole(text, step_p);
        }
    }
    return true;
}

/* Counts the numbers; writes them where values is not NULL. */
static bool read_counts(const char *text, uint32_t *values, size_t *n_p)
{
    uint32_t last = 0;
    *n_p = 0;
    for (;;) {
        uint32_t low = 0;
        uint32_t high = 0;
        uint32_t step = 0;
        if (!read_range(&text, &low, &high, &step) || low <= last) {
            return false;
        }
        for (uint32_t value = low; value <= high; value += step) {
            if (values) {
                values[*n_p] = value;
            }
            (*n_p)++;
            last = value;
        }
        if (*text == '\0') {
            return true;
        }
        if (*text++ != ',') {
            return false;
        }
    }
}

smp_status cli_counts_read(const char *option, const char *text, smp_errors *errors,
                           cli_counts *counts_p)
{
    size_t n = 0;
    if (!read_counts(text, NULL, &n)) {
        const smp_place place = {.file = option};
        return smp_fail(errors, SMP_INPUT, &place,
                        "'%s': must be whole numbers from 1 to %d, each above the one before: "
                        "8, or 8,16,64, or a range 8..64, or every eighth of it 8..64/8", text,
                        (int)MOST);
    }
    counts_p->values = malloc(n * sizeof *counts_p->values);
    if (!counts_p->values) {
        return smp_fail(errors, SMP_SYSTEM, NULL, "out of memory");
    }
    counts_p->n = n;
    return read_counts(text, counts_p->values, &n) ? SMP_OK : SMP_INPUT;
}

void cli_counts_free(cli_counts *counts)
{
    free(counts->values);
    *counts = (cli_counts){0};
}
