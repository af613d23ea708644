/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of this program: a chunked bump allocator with marks, and checked heap calls.
 *
 * An arena owns everything allocated from it; there is no free of a single object.  Out of
 * memory never returns NULL: it calls the handler of smp_on_out_of_memory().
 */
#ifndef SMP_BASE_ARENA_H
#define SMP_BASE_ARENA_H

#include "smp.h"

#include <stdarg.h>

typedef struct smp_arena smp_arena;
typedef struct smp_arena_mark { void *chunk; size_t used_bytes; } smp_arena_mark;

smp_arena *smp_arena_create(void);
void smp_arena_destroy(smp_arena *arena); /* NULL is fine */
/* Zeroed, aligned for any type.  n_elem * elem_bytes is checked for overflow. */
void *smp_arena_alloc(smp_arena *arena, size_t n_elem, size_t elem_bytes);
char *smp_arena_strdup(smp_arena *arena, const char *text);
char *smp_arena_strndup(smp_arena *arena, const char *text, size_t n);
char *smp_arena_printf(smp_arena *arena, const char *format, ...) SMP_PRINTF(2, 3);
char *smp_arena_vprintf(smp_arena *arena, const char *format, va_list args) SMP_PRINTF(2, 0);
smp_arena_mark smp_arena_here(const smp_arena *arena);
/* Releases everything allocated since the mark; chunks are kept for reuse. */
void smp_arena_reset(smp_arena *arena, smp_arena_mark mark);

#define SMP_ARENA_NEW(arena, type) ((type *)smp_arena_alloc((arena), 1, sizeof(type)))
#define SMP_ARENA_ARRAY(arena, n, type) ((type *)smp_arena_alloc((arena), (n), sizeof(type)))

/* Heap for objects that grow; never NULL, zeroed by smp_heap_alloc. */
void *smp_heap_alloc(size_t n_elem, size_t elem_bytes);
void *smp_heap_grow(void *old, size_t n_elem, size_t elem_bytes); /* as realloc, checked */
/* Number of heap calls (arena chunks included) since the start: for tests that assert
 * that a hot path does not allocate. */
uint64_t smp_heap_calls(void);

/* Makes room for one more element in a heap array {pointer, count, capacity}. */
#define SMP_GROW(array, count, capacity)                                               \
    do {                                                                               \
        if ((count) >= (capacity)) {                                                   \
            (capacity) = (capacity) ? 2 * (capacity) : 16;                             \
            (array) = smp_heap_grow((array), (capacity), sizeof *(array));             \
        }                                                                              \
    } while (0)

#endif
