/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Growing strings, numbers for people, and the JSON writer.
 */
#include "config.h"

#include "base/text.h"

#include "base/arena.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void smp_text_free(smp_text *text)
{
    free(text->data);
    *text = (smp_text){0};
}

/* Room for n more bytes and the terminator. */
static void reserve(smp_text *text, size_t n)
{
    size_t wanted = text->length + n + 1;

    if (wanted > text->capacity) {
        text->capacity = wanted > 2 * text->capacity ? wanted : 2 * text->capacity;
        text->capacity = text->capacity < 64 ? 64 : text->capacity;
        text->data = smp_heap_grow(text->data, text->capacity, 1);
    }
}

void smp_text_add_n(smp_text *text, const char *bytes, size_t n)
{
    reserve(text, n);
    if (n != 0) {
        memcpy(text->data + text->length, bytes, n);
    }
    text->length += n;
    text->data[text->length] = '\0';
}

void smp_text_add(smp_text *text, const char *format, ...)
{
    va_list args;
    int length;

    va_start(args, format);
    length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    reserve(text, length > 0 ? (size_t)length : 0);
    va_start(args, format);
    if (length > 0) {
        (void)vsnprintf(text->data + text->length, (size_t)length + 1, format, args);
        text->length += (size_t)length;
    }
    va_end(args);
    text->data[text->length] = '\0';
}

/* ------------------------------------------------------- numbers for people */

enum { SHOWN = 4, SHOWN_BYTES = 32 };

static char *shown_buffer(void)
{
    static _Thread_local char buffers[SHOWN][SHOWN_BYTES];
    static _Thread_local unsigned next;

    return buffers[next++ % SHOWN];
}

/* Three significant digits, but never fewer than all digits before the point: so 999.96
 * becomes "1000", and a caller that steps by 1000 or 1024 has chosen the unit before. */
static const char *show_scaled(const char *sign, double value, const char *unit)
{
    char *buffer = shown_buffer();
    int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;

    (void)snprintf(buffer, SHOWN_BYTES, "%s%.*f%s%s", sign, decimals, value,
                   unit[0] != '\0' ? " " : "", unit);
    return buffer;
}

static const char *show_bytes(const char *sign, uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    size_t i = 0;

    if (bytes < 1024) {
        char *buffer = shown_buffer();

        (void)snprintf(buffer, SHOWN_BYTES, "%s%" PRIu64 " B", sign, bytes);
        return buffer;
    }
    /* From 999.5 on the next unit: "0.98 GiB" rather than "1000 MiB". */
    while (value >= 999.5 && i + 1 < sizeof units / sizeof *units) {
        value /= 1024;
        i++;
    }
    return show_scaled(sign, value, units[i]);
}

const char *smp_show_bytes(uint64_t bytes)
{
    return show_bytes("", bytes);
}

const char *smp_show_signed_bytes(int64_t bytes)
{
    return bytes < 0 ? show_bytes("-", (uint64_t)0 - (uint64_t)bytes)
                     : show_bytes("", (uint64_t)bytes);
}

/* Zero and what is no ordinary number; true if so. */
static bool show_special(double value, const char **shown_p)
{
    if (isfinite(value) && value != 0.0) {
        return false;
    }
    *shown_p = isnan(value) ? "nan" : value > 0 ? "inf" : value < 0 ? "-inf" : "0";
    return true;
}

const char *smp_show_seconds(double seconds)
{
    static const char *const units[] = {"ps", "ns", "us", "ms", "s"};
    const char *sign = seconds < 0 ? "-" : "";
    const char *shown;
    double value = fabs(seconds);
    size_t i = 4;

    if (show_special(seconds, &shown)) {
        return seconds == 0.0 ? "0 s" : shown;
    }
    if (value >= 99999.5) { /* a day and more: days, so that ten characters suffice */
        return show_scaled(sign, value / 86400, "d");
    }
    while (value < 0.9995 && i > 0) {
        value *= 1000;
        i--;
    }
    return show_scaled(sign, value, units[i]);
}

const char *smp_show_count(double count)
{
    static const char *const units[] = {"", "K", "M", "B", "T", "P", "E"};
    const char *sign = count < 0 ? "-" : "";
    const char *shown;
    double value = fabs(count);
    size_t i = 0;

    if (show_special(count, &shown)) {
        return shown;
    }
    if (value < 999.5 && value == floor(value)) {
        char *buffer = shown_buffer();

        (void)snprintf(buffer, SHOWN_BYTES, "%s%.0f", sign, value);
        return buffer;
    }
    while (value >= 999.5 && i + 1 < sizeof units / sizeof *units) {
        value /= 1000;
        i++;
    }
    return show_scaled(sign, value, units[i]);
}
