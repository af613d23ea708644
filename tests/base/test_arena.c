/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arenas and heap: alignment, zeroing, marks, reuse without heap calls, out of memory.
 */
#include "config.h"

#include "tests/check.h"

#include "base/arena.h"

#include <stdalign.h>

static void test_zeroed_and_aligned(void **state)
{
    smp_arena *arena = smp_arena_create();

    (void)state;
    for (size_t n = 0; n < 300; n++) {
        unsigned char *bytes = smp_arena_alloc(arena, n, 7);

        assert_int_equal((uintptr_t)bytes % alignof(max_align_t), 0);
        for (size_t i = 0; i < 7 * n; i++) {
            assert_int_equal(bytes[i], 0);
        }
        memset(bytes, 0xAA, 7 * n);
    }
    smp_arena_destroy(arena);
    smp_arena_destroy(NULL);
}

/* Memory behind a mark is zero again when it is handed out again. */
static void test_reset(void **state)
{
    smp_arena *arena = smp_arena_create();
    smp_arena_mark empty = smp_arena_here(arena);
    char *kept = smp_arena_strdup(arena, "kept");
    smp_arena_mark mark = smp_arena_here(arena);
    char *first = smp_arena_alloc(arena, 100, 1);
    char *second;

    (void)state;
    memset(first, 1, 100);
    smp_arena_reset(arena, mark);
    second = smp_arena_alloc(arena, 100, 1);
    assert_ptr_equal(first, second);
    assert_int_equal(second[99], 0);
    check_text(kept, "kept");
    smp_arena_reset(arena, empty);
    assert_ptr_equal(smp_arena_alloc(arena, 5, 1), kept);
    smp_arena_destroy(arena);
}

/* A loop that fills and resets stops calling the heap, large blocks included. */
static void test_reuse(void **state)
{
    smp_arena *arena = smp_arena_create();
    smp_arena_mark empty = smp_arena_here(arena);
    uint64_t calls = 0;

    (void)state;
    for (int round = 0; round < 50; round++) {
        for (size_t i = 0; i < 200; i++) {
            (void)smp_arena_alloc(arena, 1, i % 50 == 49 ? 200000 : 1000);
        }
        smp_arena_reset(arena, empty);
        if (round == 0) {
            calls = smp_heap_calls();
        }
    }
    check_u64(smp_heap_calls(), calls);
    smp_arena_destroy(arena);
}

static void test_text(void **state)
{
    smp_arena *arena = smp_arena_create();

    (void)state;
    check_text(smp_arena_printf(arena, "%d-%s", 7, "x"), "7-x");
    check_text(smp_arena_strndup(arena, "abcdef", 3), "abc");
    check_text(smp_arena_strndup(arena, "ab", 30), "ab");
    check_text(smp_arena_printf(arena, "%s", ""), "");
    assert_int_equal(strlen(smp_arena_printf(arena, "%100000d", 1)), 100000);
    smp_arena_destroy(arena);
}

static void test_grow(void **state)
{
    int *array = NULL;
    size_t count = 0, capacity = 0;

    (void)state;
    for (int i = 0; i < 1000; i++) {
        SMP_GROW(array, count, capacity);
        array[count++] = i;
    }
    assert_int_equal(array[999], 999);
    assert_true(capacity >= count && capacity < 2048);
    free(array);
}

static jmp_buf no_memory;
static size_t wanted_bytes;

static void jump(size_t size_bytes)
{
    wanted_bytes = size_bytes;
    longjmp(no_memory, 1);
}

/* Sizes that overflow, and sizes that no machine has, reach the handler. */
static void test_out_of_memory(void **state)
{
    smp_arena *arena = smp_arena_create();
    volatile int reached = 0;

    (void)state;
    smp_on_out_of_memory(jump);
    if (setjmp(no_memory) == 0) {
        (void)smp_arena_alloc(arena, SIZE_MAX / 2, 3);
    } else {
        reached++;
    }
    assert_true(wanted_bytes == SIZE_MAX);
    if (setjmp(no_memory) == 0) {
        (void)smp_heap_alloc(SIZE_MAX, 2);
    } else {
        reached++;
    }
    if (setjmp(no_memory) == 0) {
        (void)smp_heap_grow(NULL, SIZE_MAX / 4, 8);
    } else {
        reached++;
    }
    if (setjmp(no_memory) == 0) {
        (void)smp_arena_alloc(arena, PTRDIFF_MAX - 8, 1);
    } else {
        reached++;
    }
    smp_on_out_of_memory(NULL);
    assert_int_equal(reached, 4);
    smp_arena_destroy(arena);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_zeroed_and_aligned), cmocka_unit_test(test_reset),
    cmocka_unit_test(test_reuse),              cmocka_unit_test(test_text),
    cmocka_unit_test(test_grow),               cmocka_unit_test(test_out_of_memory),
};

CHECK_MAIN(tests)
