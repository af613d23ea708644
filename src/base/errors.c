/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The collector of messages.  Text is formatted when a message is added, so that places and
 * arguments need not outlive the call.
 */
#include "config.h"

#include "base/arena.h"
#include "base/text.h"

#include <stdlib.h>

typedef struct messages {
    const char **text;
    size_t count, capacity;
} messages;

struct smp_errors {
    smp_arena *arena;
    messages failures, warnings;
    smp_status status;
};

smp_errors *smp_errors_create(void)
{
    smp_errors *errors = smp_heap_alloc(1, sizeof *errors);

    errors->arena = smp_arena_create();
    return errors;
}

void smp_errors_destroy(smp_errors *errors)
{
    if (errors == NULL) {
        return;
    }
    free(errors->failures.text);
    free(errors->warnings.text);
    smp_arena_destroy(errors->arena);
    free(errors);
}

/* "file:line:column: $.path: " with the parts that are known. */
static void add_place(smp_text *text, const smp_place *where)
{
    if (where == NULL) {
        return;
    }
    if (where->file != NULL) {
        smp_text_add(text, "%s:", where->file);
        if (where->line != 0) {
            smp_text_add(text, "%u:", (unsigned)where->line);
            if (where->column != 0) {
                smp_text_add(text, "%u:", (unsigned)where->column);
            }
        }
        smp_text_add(text, " ");
    }
    if (where->path != NULL && where->path[0] != '\0') {
        smp_text_add(text, "%s: ", where->path);
    }
}

static const char hex_digits[] = "0123456789abcdef";

/* A message is one line whatever a user put into a name: control characters become \xNN. */
static const char *one_line(smp_arena *arena, const smp_text *text)
{
    char *line = smp_arena_alloc(arena, text->length + 1, 4);
    char *end = line;

    for (size_t i = 0; i < text->length; i++) {
        unsigned char c = (unsigned char)text->data[i];

        if (c < 0x20 || c == 0x7F) {
            *end++ = '\\';
            *end++ = 'x';
            *end++ = hex_digits[c >> 4];
            *end++ = hex_digits[c & 15];
        } else {
            *end++ = (char)c;
        }
    }
    *end = '\0';
    return line;
}

static void add_message(smp_errors *errors, messages *list, const smp_place *where,
                        const char *format, va_list args) SMP_PRINTF(4, 0);
static void add_message(smp_errors *errors, messages *list, const smp_place *where,
                        const char *format, va_list args)
{
    smp_text text = {0};
    smp_arena_mark mark = smp_arena_here(errors->arena);
    char *message = smp_arena_vprintf(errors->arena, format, args);

    add_place(&text, where);
    smp_text_add(&text, "%s", message);
    smp_arena_reset(errors->arena, mark);
    SMP_GROW(list->text, list->count, list->capacity);
    list->text[list->count++] = one_line(errors->arena, &text);
    smp_text_free(&text);
}

smp_status smp_fail(smp_errors *errors, smp_status status, const smp_place *where,
                    const char *format, ...)
{
    va_list args;

    va_start(args, format);
    add_message(errors, &errors->failures, where, format, args);
    va_end(args);
    if (errors->status == SMP_OK) {
        errors->status = status;
    }
    return status;
}

void smp_warn(smp_errors *errors, const smp_place *where, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    add_message(errors, &errors->warnings, where, format, args);
    va_end(args);
}

size_t smp_errors_count(const smp_errors *errors)
{
    return errors->failures.count;
}

size_t smp_warnings_count(const smp_errors *errors)
{
    return errors->warnings.count;
}

smp_status smp_errors_status(const smp_errors *errors)
{
    return errors->status;
}

const char *smp_errors_text(const smp_errors *errors, size_t i)
{
    return i < errors->failures.count ? errors->failures.text[i] : NULL;
}

const char *smp_warnings_text(const smp_errors *errors, size_t i)
{
    return i < errors->warnings.count ? errors->warnings.text[i] : NULL;
}

void smp_errors_print(const smp_errors *errors, const char *program, FILE *stream)
{
    for (size_t i = 0; i < errors->failures.count; i++) {
        fprintf(stream, "%s: %s\n", program, errors->failures.text[i]);
    }
    for (size_t i = 0; i < errors->warnings.count; i++) {
        fprintf(stream, "%s: warning: %s\n", program, errors->warnings.text[i]);
    }
}

void smp_errors_clear(smp_errors *errors)
{
    errors->failures.count = 0;
    errors->warnings.count = 0;
    errors->status = SMP_OK;
    smp_arena_reset(errors->arena, (smp_arena_mark){NULL, 0});
}
