/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The JSON writer: the text depends on the values alone.
 */
#include "config.h"

#include "base/text.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void indent(smp_json_out *out)
{
    for (int i = 0; i < out->depth; i++) {
        smp_text_add_n(&out->text, "  ", 2);
    }
}

static void add_quoted(smp_text *text, const char *value)
{
    smp_text_add_n(text, "\"", 1);
    for (const char *c = value; *c != '\0'; c++) {
        if (*c == '"' || *c == '\\') {
            smp_text_add(text, "\\%c", *c);
        } else if (*c == '\n') {
            smp_text_add_n(text, "\\n", 2);
        } else if (*c == '\t') {
            smp_text_add_n(text, "\\t", 2);
        } else if ((unsigned char)*c < 0x20) {
            smp_text_add(text, "\\u%04x", (unsigned)(unsigned char)*c);
        } else {
            smp_text_add_n(text, c, 1);
        }
    }
    smp_text_add_n(text, "\"", 1);
}

/* Comma, newline, indentation and key before a value; none of them before the outermost. */
static void begin_value(smp_json_out *out, const char *key)
{
    if (out->depth > 0) {
        smp_text_add(&out->text, out->first ? "\n" : ",\n");
        indent(out);
    }
    out->first = false;
    if (key != NULL) {
        add_quoted(&out->text, key);
        smp_text_add_n(&out->text, ": ", 2);
    }
}

static void open_nest(smp_json_out *out, const char *key, const char *bracket)
{
    begin_value(out, key);
    smp_text_add_n(&out->text, bracket, 1);
    out->depth++;
    out->first = true;
}

static void close_nest(smp_json_out *out, const char *bracket)
{
    out->depth--;
    if (!out->first) {
        smp_text_add_n(&out->text, "\n", 1);
        indent(out);
    }
    smp_text_add_n(&out->text, bracket, 1);
    out->first = false;
    if (out->depth == 0) {
        smp_text_add_n(&out->text, "\n", 1);
    }
}

void smp_out_object(smp_json_out *out, const char *key)
{
    open_nest(out, key, "{");
}

void smp_out_array(smp_json_out *out, const char *key)
{
    open_nest(out, key, "[");
}

void smp_out_end_object(smp_json_out *out)
{
    close_nest(out, "}");
}

void smp_out_end_array(smp_json_out *out)
{
    close_nest(out, "]");
}

void smp_out_string(smp_json_out *out, const char *key, const char *value)
{
    begin_value(out, key);
    if (value == NULL) {
        smp_text_add_n(&out->text, "null", 4);
    } else {
        add_quoted(&out->text, value);
    }
}

void smp_out_u64(smp_json_out *out, const char *key, uint64_t value)
{
    begin_value(out, key);
    smp_text_add(&out->text, "%" PRIu64, value);
}

void smp_out_i64(smp_json_out *out, const char *key, int64_t value)
{
    begin_value(out, key);
    smp_text_add(&out->text, "%" PRId64, value);
}

/* The fewest digits that read back as the same double; 17 always do. */
static void add_double(smp_text *text, double value)
{
    char buffer[40];

    if (!isfinite(value)) {
        smp_text_add_n(text, "null", 4);
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        (void)snprintf(buffer, sizeof buffer, "%.*g", digits, value);
        if (strtod(buffer, NULL) == value) {
            break;
        }
    }
    smp_text_add(text, "%s", buffer);
}

void smp_out_double(smp_json_out *out, const char *key, double value)
{
    begin_value(out, key);
    add_double(&out->text, value);
}

void smp_out_numbers(smp_json_out *out, const char *key, const double *values, size_t n)
{
    enum { WIDTH = 92 };
    begin_value(out, key);
    smp_text_add_n(&out->text, "[", 1);
    out->depth++;
    size_t column = WIDTH;
    for (size_t i = 0; i < n; i++) {
        char number[32];
        const int length = snprintf(number, sizeof number, "%.10g", values[i]);
        if (column + (size_t)length + 2 > WIDTH) {
            smp_text_add_n(&out->text, "\n", 1);
            indent(out);
            column = 2 * (size_t)out->depth;
        } else {
            smp_text_add_n(&out->text, " ", 1);
        }
        smp_text_add(&out->text, "%s%s", number, i + 1 < n ? "," : "");
        column += (size_t)length + 2;
    }
    out->depth--;
    smp_text_add_n(&out->text, "]", 1);
}

void smp_out_bool(smp_json_out *out, const char *key, bool value)
{
    begin_value(out, key);
    smp_text_add(&out->text, "%s", value ? "true" : "false");
}

void smp_out_value(smp_json_out *out, const char *key, const cJSON *value)
{
    if (cJSON_IsObject(value) || cJSON_IsArray(value)) {
        bool object = cJSON_IsObject(value);

        open_nest(out, key, object ? "{" : "[");
        for (const cJSON *child = value->child; child != NULL; child = child->next) {
            smp_out_value(out, object ? child->string : NULL, child);
        }
        close_nest(out, object ? "}" : "]");
    } else if (cJSON_IsString(value)) {
        smp_out_string(out, key, value->valuestring);
    } else if (cJSON_IsBool(value)) {
        smp_out_bool(out, key, cJSON_IsTrue(value));
    } else if (cJSON_IsNumber(value)) {
        smp_out_double(out, key, value->valuedouble);
    } else {
        smp_out_string(out, key, NULL);
    }
}
