/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arenas and checked heap calls.  Chunks form a list; a reset keeps the chunks behind the
 * mark, so that a loop that fills and resets an arena stops calling the heap.
 */
#include "config.h"

#include "base/arena.h"

#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 64 * 1024 };

typedef struct chunk {
    struct chunk *next;
    size_t capacity_bytes;
    max_align_t data[];
} chunk;

struct smp_arena {
    chunk *first;
    chunk *current; /* chunks behind it are empty and free for reuse */
    size_t used_bytes;
};

static _Atomic uint64_t heap_calls;

static void report_out_of_memory(size_t size_bytes)
{
    fprintf(stderr, "smp: out of memory (%zu bytes wanted)\n", size_bytes);
    exit(SMP_SYSTEM);
}

static void (*out_of_memory)(size_t size_bytes) = report_out_of_memory;

void smp_on_out_of_memory(void (*handler)(size_t size_bytes))
{
    out_of_memory = handler ? handler : report_out_of_memory;
}

/* A handler that returns all the same must not lead to a NULL in the caller's hands. */
static void fail_out_of_memory(size_t size_bytes)
{
    out_of_memory(size_bytes);
    abort();
}

static size_t checked_size(size_t n_elem, size_t elem_bytes)
{
    if (elem_bytes != 0 && n_elem > (size_t)PTRDIFF_MAX / elem_bytes) {
        fail_out_of_memory(SIZE_MAX);
    }
    return n_elem * elem_bytes;
}

void *smp_heap_alloc(size_t n_elem, size_t elem_bytes)
{
    size_t size_bytes = checked_size(n_elem, elem_bytes);
    void *memory = calloc(1, size_bytes ? size_bytes : 1);

    atomic_fetch_add_explicit(&heap_calls, 1, memory_order_relaxed);
    if (memory == NULL) {
        fail_out_of_memory(size_bytes);
    }
    return memory;
}

void *smp_heap_grow(void *old, size_t n_elem, size_t elem_bytes)
{
    size_t size_bytes = checked_size(n_elem, elem_bytes);
    void *memory = realloc(old, size_bytes ? size_bytes : 1);

    atomic_fetch_add_explicit(&heap_calls, 1, memory_order_relaxed);
    if (memory == NULL) {
        fail_out_of_memory(size_bytes);
    }
    return memory;
}

uint64_t smp_heap_calls(void)
{
    return atomic_load_explicit(&heap_calls, memory_order_relaxed);
}

smp_arena *smp_arena_create(void)
{
    return smp_heap_alloc(1, sizeof(smp_arena));
}

void smp_arena_destroy(smp_arena *arena)
{
    chunk *next;

    if (arena == NULL) {
        return;
    }
    for (chunk *c = arena->first; c != NULL; c = next) {
        next = c->next;
        free(c);
    }
    free(arena);
}

/* Makes a chunk current that holds size_bytes: a kept one if the next is large enough,
 * else a new one put in before it. */
static void advance(smp_arena *arena, size_t size_bytes)
{
    chunk **link = arena->current ? &arena->current->next : &arena->first;

    if (*link == NULL || (*link)->capacity_bytes < size_bytes) {
        size_t capacity_bytes = size_bytes > CHUNK_BYTES ? size_bytes : CHUNK_BYTES;
        /* what is allocated from it is zeroed then */
        chunk *made = smp_heap_grow(NULL, 1, sizeof(chunk) + capacity_bytes);

        made->capacity_bytes = capacity_bytes;
        made->next = *link;
        *link = made;
    }
    arena->current = *link;
    arena->used_bytes = 0;
}

void *smp_arena_alloc(smp_arena *arena, size_t n_elem, size_t elem_bytes)
{
    size_t size_bytes = checked_size(n_elem, elem_bytes);
    size_t step_bytes = alignof(max_align_t);
    char *place;

    if (size_bytes > (size_t)PTRDIFF_MAX - sizeof(chunk) - step_bytes) {
        fail_out_of_memory(size_bytes);
    }
    size_bytes =
        size_bytes ? (size_bytes + step_bytes - 1) / step_bytes * step_bytes : step_bytes;
    if (arena->current == NULL
        || arena->current->capacity_bytes - arena->used_bytes < size_bytes) {
        advance(arena, size_bytes);
    }
    place = (char *)arena->current->data + arena->used_bytes;
    arena->used_bytes += size_bytes;
    return memset(place, 0, size_bytes);
}

char *smp_arena_strndup(smp_arena *arena, const char *text, size_t n)
{
    size_t length = strnlen(text, n);
    char *copy = smp_arena_alloc(arena, length + 1, 1);

    memcpy(copy, text, length);
    return copy;
}

char *smp_arena_strdup(smp_arena *arena, const char *text)
{
    return smp_arena_strndup(arena, text, strlen(text));
}

char *smp_arena_vprintf(smp_arena *arena, const char *format, va_list args)
{
    va_list again;
    char *text;
    int length;

    va_copy(again, args);
    length = vsnprintf(NULL, 0, format, again);
    va_end(again);
    if (length < 0) {
        return smp_arena_strdup(arena, "(text that cannot be formatted)");
    }
    text = smp_arena_alloc(arena, (size_t)length + 1, 1);
    (void)vsnprintf(text, (size_t)length + 1, format, args);
    return text;
}

char *smp_arena_printf(smp_arena *arena, const char *format, ...)
{
    va_list args;
    char *text;

    va_start(args, format);
    text = smp_arena_vprintf(arena, format, args);
    va_end(args);
    return text;
}

smp_arena_mark smp_arena_here(const smp_arena *arena)
{
    return (smp_arena_mark){arena->current, arena->used_bytes};
}

void smp_arena_reset(smp_arena *arena, smp_arena_mark mark)
{
    arena->current = mark.chunk;
    arena->used_bytes = mark.used_bytes;
}
