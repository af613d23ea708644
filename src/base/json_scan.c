/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The strict scan of JSON text: a recursive descent with bounded depth.  The first fault
 * ends it, since what follows a fault cannot be told from its consequences.
 */
#include "config.h"

#include "base/json_scan.h"

#include "base/arena.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct scanner {
    const char *text;
    size_t n, at;
    size_t line_start; /* offset of the first byte of the line that `at` is on */
    uint32_t line, depth;
    const char *name;
    smp_errors *errors;
    smp_json_spans *spans;
} scanner;

static bool scan_value(scanner *s, uint32_t parent, uint32_t ordinal, const smp_place *key);

static smp_place place_of(const scanner *s, size_t offset)
{
    return (smp_place){s->name, s->line, (uint32_t)(offset - s->line_start + 1), NULL};
}

static bool fault_at(const scanner *s, size_t offset, const char *format, ...) SMP_PRINTF(3, 4);
static bool fault_at(const scanner *s, size_t offset, const char *format, ...)
{
    smp_place where = place_of(s, offset);
    char message[200];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(message, sizeof message, format, args);
    va_end(args);
    (void)smp_fail(s->errors, SMP_INPUT, &where, "%s", message);
    return false;
}

/* What stands at `at`, for messages: "the end of the file", "'x'", "byte 0x07". */
static bool fault_found(const scanner *s, const char *wanted)
{
    unsigned char c;

    if (s->at >= s->n) {
        return fault_at(s, s->n, "the text ends where %s is due", wanted);
    }
    c = (unsigned char)s->text[s->at];
    if (c == 0) {
        return fault_at(s, s->at, "byte 0x00 instead of %s: not a text file", wanted);
    }
    if (c < 0x20 || c >= 0x7F) {
        return fault_at(s, s->at, "byte 0x%02x instead of %s", (unsigned)c, wanted);
    }
    if (c == '/' || c == '#') {
        return fault_at(s, s->at, "'%c' instead of %s: JSON has no comments", c, wanted);
    }
    return fault_at(s, s->at, "'%c' instead of %s", c, wanted);
}

static int peek(const scanner *s)
{
    return s->at < s->n ? (unsigned char)s->text[s->at] : -1;
}

static void skip_blanks(scanner *s)
{
    for (; s->at < s->n; s->at++) {
        char c = s->text[s->at];

        if (c == '\n') {
            s->line++;
            s->line_start = s->at + 1;
        } else if (c != ' ' && c != '\t' && c != '\r') {
            return;
        }
    }
}

static bool is_digit(int c)
{
    return c >= '0' && c <= '9';
}

/* Length of the well-formed UTF-8 character at p (RFC 3629, section 4), or 0. */
static size_t utf8_length(const unsigned char *p, size_t n)
{
    size_t length = p[0] < 0x80 ? 1 : p[0] < 0xC2 ? 0 : p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3
                  : p[0] < 0xF5 ? 4 : 0;

    if (length == 0 || length > n) {
        return 0;
    }
    for (size_t i = 1; i < length; i++) {
        if ((p[i] & 0xC0) != 0x80) {
            return 0;
        }
    }
    if ((p[0] == 0xE0 && p[1] < 0xA0) || (p[0] == 0xED && p[1] > 0x9F)
        || (p[0] == 0xF0 && p[1] < 0x90) || (p[0] == 0xF4 && p[1] > 0x8F)) {
        return 0; /* overlong, a surrogate, or above U+10FFFF */
    }
    return length;
}

/* Value of the four hexadecimal digits at offset, or -1. */
static int hex4(const scanner *s, size_t offset)
{
    int value = 0;

    for (size_t i = offset; i < offset + 4; i++) {
        int c = i < s->n ? (unsigned char)s->text[i] : -1;
        int digit = is_digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10
                  : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;

        if (digit < 0) {
            return -1;
        }
        value = 16 * value + digit;
    }
    return value;
}

/* \uXXXX, or the pair of them that makes one character; `at` is on the backslash. */
static bool scan_unicode_escape(scanner *s)
{
    int code = hex4(s, s->at + 2);
    int low;

    if (code < 0) {
        return fault_at(s, s->at, "\\u needs four hexadecimal digits");
    }
    if (code == 0) {
        return fault_at(s, s->at, "\\u0000 is not accepted in a string");
    }
    if (code < 0xD800 || code > 0xDFFF) {
        s->at += 6;
        return true;
    }
    low = s->at + 7 < s->n && s->text[s->at + 6] == '\\' && s->text[s->at + 7] == 'u'
              ? hex4(s, s->at + 8) : -1;
    if (code > 0xDBFF || low < 0xDC00 || low > 0xDFFF) {
        return fault_at(s, s->at, "\\u%04x is half of a surrogate pair", (unsigned)code);
    }
    s->at += 12;
    return true;
}

static bool scan_escape(scanner *s)
{
    int c = s->at + 1 < s->n ? (unsigned char)s->text[s->at + 1] : -1;

    if (c == 'u') {
        return scan_unicode_escape(s);
    }
    if (c < 0 || c == 0 || strchr("\"\\/bfnrt", c) == NULL) {
        return fault_at(s, s->at,
                        "an escape in a string is one of \\\" \\\\ \\/ \\b \\f \\n \\r "
                        "\\t \\uXXXX");
    }
    s->at += 2;
    return true;
}

static bool scan_string(scanner *s)
{
    size_t start = s->at++;

    for (;;) {
        int c = peek(s);
        size_t length;

        if (c < 0 || c == '\n') {
            return fault_at(s, start, "a string that is not closed on its line");
        }
        if (c == '"') {
            s->at++;
            return true;
        }
        if (c == '\\') {
            if (!scan_escape(s)) {
                return false;
            }
            continue;
        }
        if (c < 0x20) {
            return fault_at(s, s->at, "byte 0x%02x in a string: control characters are "
                                      "written as escapes", (unsigned)c);
        }
        length = utf8_length((const unsigned char *)s->text + s->at, s->n - s->at);
        if (length == 0) {
            return fault_at(s, s->at, "byte 0x%02x: not UTF-8 text", (unsigned)c);
        }
        s->at += length;
    }
}

static bool skip_digits(scanner *s)
{
    size_t start = s->at;

    while (is_digit(peek(s))) {
        s->at++;
    }
    return s->at > start;
}

/* The value must fit a double; a value too small for one is 0, as everywhere. */
static bool check_number(const scanner *s, size_t start)
{
    char digits[SMP_JSON_NUMBER_BYTES + 1];
    size_t n = s->at - start;

    if (n > SMP_JSON_NUMBER_BYTES) {
        return fault_at(s, start, "a number of %zu characters; at most %d are accepted", n,
                        SMP_JSON_NUMBER_BYTES);
    }
    memcpy(digits, s->text + start, n);
    digits[n] = '\0';
    if (!isfinite(strtod(digits, NULL))) {
        return fault_at(s, start, "%s is outside the range of double (about 1.8e308)", digits);
    }
    return true;
}

static bool scan_number(scanner *s)
{
    size_t start = s->at;

    s->at += peek(s) == '-';
    if (peek(s) == '0') {
        s->at++;
        if (is_digit(peek(s))) {
            return fault_at(s, start, "a number does not start with 0");
        }
    } else if (!skip_digits(s)) {
        return fault_found(s, "a digit");
    }
    if (peek(s) == '.') {
        s->at++;
        if (!skip_digits(s)) {
            return fault_found(s, "a digit after the point");
        }
    }
    if (peek(s) == 'e' || peek(s) == 'E') {
        s->at++;
        s->at += peek(s) == '+' || peek(s) == '-';
        if (!skip_digits(s)) {
            return fault_found(s, "a digit of the exponent");
        }
    }
    return check_number(s, start);
}

/* true, false, null; and words that people and other writers put where a value is due. */
static bool scan_word(scanner *s)
{
    static const char *const words[] = {"true", "false", "null"};
    size_t length = 0;

    while (s->at + length < s->n && length < 32) {
        char c = s->text[s->at + length];

        if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && c != '_') {
            break;
        }
        length++;
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (length == strlen(words[i]) && memcmp(s->text + s->at, words[i], length) == 0) {
            s->at += length;
            return true;
        }
    }
    if (length == 0) {
        return fault_found(s, "a value");
    }
    return fault_at(s, s->at, "%.*s is no JSON value", (int)length, s->text + s->at);
}

/* After an element: true with *more_p set at a comma, cleared at the closing bracket. */
static bool scan_separator(scanner *s, char close, bool *more_p)
{
    char wanted[] = "',' or ' '";

    wanted[8] = close;
    skip_blanks(s);
    if (peek(s) == close) {
        s->at++;
        *more_p = false;
        return true;
    }
    if (peek(s) != ',') {
        return fault_found(s, wanted);
    }
    s->at++;
    skip_blanks(s);
    if (peek(s) == close) {
        return fault_at(s, s->at, "'%c' after a comma: JSON has no trailing commas", close);
    }
    *more_p = true;
    return true;
}

static bool scan_key(scanner *s, smp_place *key)
{
    skip_blanks(s);
    if (peek(s) != '"') {
        return fault_found(s, "a key in double quotes");
    }
    *key = place_of(s, s->at);
    if (!scan_string(s)) {
        return false;
    }
    skip_blanks(s);
    if (peek(s) != ':') {
        return fault_found(s, "':'");
    }
    s->at++;
    return true;
}

static bool scan_nest(scanner *s, uint32_t self, char close)
{
    bool more = true;

    if (++s->depth > SMP_JSON_DEPTH) {
        return fault_at(s, s->at, "nested deeper than %d brackets", SMP_JSON_DEPTH);
    }
    s->at++;
    skip_blanks(s);
    if (peek(s) == close) {
        s->at++;
        more = false;
    }
    for (uint32_t ordinal = 0; more; ordinal++) {
        smp_place key = {0};

        if ((close == '}' && !scan_key(s, &key))
            || !scan_value(s, self, ordinal, close == '}' ? &key : NULL)
            || !scan_separator(s, close, &more)) {
            return false;
        }
    }
    s->depth--;
    return true;
}

/* Adds a span that starts at `at`; false when there are too many. */
static bool open_span(scanner *s, uint32_t parent, uint32_t ordinal, const smp_place *key)
{
    smp_json_spans *spans = s->spans;
    smp_place here = place_of(s, s->at);

    if (spans->count >= SMP_JSON_VALUES) {
        return fault_at(s, s->at, "more than %d values in one file", SMP_JSON_VALUES);
    }
    SMP_GROW(spans->span, spans->count, spans->capacity);
    spans->span[spans->count++] = (smp_json_span){
        (uint32_t)s->at, 0, here.line, here.column, key ? key->line : here.line,
        key ? key->column : here.column, parent, ordinal};
    return true;
}

static bool scan_value(scanner *s, uint32_t parent, uint32_t ordinal, const smp_place *key)
{
    uint32_t self = (uint32_t)s->spans->count;
    bool right;
    int c;

    skip_blanks(s);
    if (!open_span(s, parent, ordinal, key)) {
        return false;
    }
    c = peek(s);
    if (c == '{') {
        right = scan_nest(s, self, '}');
    } else if (c == '[') {
        right = scan_nest(s, self, ']');
    } else if (c == '"') {
        right = scan_string(s);
    } else if (c == '-' && s->at + 1 < s->n && s->text[s->at + 1] == 'I') {
        right = fault_at(s, s->at, "-Infinity is no JSON value");
    } else if (c == '-' || is_digit(c)) {
        right = scan_number(s);
    } else {
        right = scan_word(s);
    }
    if (right) {
        smp_json_span *span = &s->spans->span[self];

        span->size_bytes = (uint32_t)s->at - span->offset;
    }
    return right;
}

/* A file in another encoding is told as such: its bytes would only confuse. */
static bool check_encoding(const scanner *s)
{
    const unsigned char *p = (const unsigned char *)s->text;
    smp_place where = {.file = s->name};
    bool wide = s->n >= 2
             && ((p[0] == 0xFF && p[1] == 0xFE) || (p[0] == 0xFE && p[1] == 0xFF)
                 || (p[0] == 0 && p[1] != 0 && p[1] < 0x80)
                 || (p[0] != 0 && p[0] < 0x80 && p[1] == 0)
                 || (s->n >= 4 && p[0] == 0 && p[1] == 0 && (p[2] == 0xFE || p[3] == '{')));

    if (wide) {
        (void)smp_fail(s->errors, SMP_INPUT, &where, "UTF-16 or UTF-32 text; JSON is UTF-8");
    }
    return !wide;
}

smp_status smp_json_scan(const char *text, size_t n, const char *name, smp_errors *errors,
                         smp_json_spans *spans)
{
    scanner s = {text, n, 0, 0, 1, 0, name, errors, spans};

    if (n > SMP_JSON_BYTES) {
        return smp_fail(errors, SMP_INPUT, &(smp_place){.file = name},
                        "more than %d MiB: too large", SMP_JSON_BYTES / 1024 / 1024);
    }
    if (!check_encoding(&s)) {
        return SMP_INPUT;
    }
    skip_blanks(&s);
    if (s.at == n) {
        return smp_fail(errors, SMP_INPUT, &(smp_place){.file = name},
                        n == 0 ? "empty; a JSON value is needed"
                               : "only blanks; a JSON value is needed");
    }
    if (!scan_value(&s, 0, 0, NULL)) {
        return SMP_INPUT;
    }
    skip_blanks(&s);
    if (s.at < n) {
        (void)fault_found(&s, "the end of the text");
        return SMP_INPUT;
    }
    return SMP_OK;
}
