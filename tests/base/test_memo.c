/* SPDX-License-Identifier: Apache-2.0 */
/* Memos: records are found again, are new once, and stay where they are while others come. */
#include "config.h"

#include "tests/check.h"

#include "base/memo.h"

#include <string.h>

typedef struct record {
    uint32_t key[3]; /* no multiple of eight bytes: the rest of a word counts too */
    uint64_t value;
} record;

enum { KEY_BYTES = 3 * sizeof(uint32_t), RECORDS = 5000 };

static void fill_key(uint32_t key[3], uint32_t i)
{
    key[0] = i % 10;
    key[1] = i / 10 % 10;
    key[2] = i / 100;
}

static void test_records(void **state)
{
    smp_memo *memo = smp_memo_create(KEY_BYTES, sizeof(record));
    record **made = smp_heap_alloc(RECORDS, sizeof *made);
    uint32_t key[3];
    bool is_new = false;

    (void)state;
    for (uint32_t i = 0; i < RECORDS; i++) {
        fill_key(key, i);
        made[i] = smp_memo_at(memo, key, &is_new);
        assert_true(is_new);
        assert_memory_equal(made[i]->key, key, sizeof key);
        check_u64(made[i]->value, 0);
        made[i]->value = i + 1;
    }
    for (uint32_t i = 0; i < RECORDS; i++) {
        fill_key(key, i);
        assert_ptr_equal(smp_memo_at(memo, key, &is_new), made[i]);
        assert_false(is_new);
        check_u64(made[i]->value, i + 1);
    }
    free(made);
    smp_memo_destroy(memo);
    smp_memo_destroy(NULL);
}

static const struct CMUnitTest tests[] = { cmocka_unit_test(test_records) };

CHECK_MAIN(tests)
