/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training of tiny models: it learns.
 */
#include "config.h"

#include "tests/exec/jobs.h"

static void learns(void **state)
{
    tiny t;

    (void)state;
    tiny_open(&t, TINY_LLAMA, 1, 16, 4);
    t.options.log = getenv("SMP_TEST_LOG") ? stderr : NULL;
    tiny_train(&t, 10);
    assert_true(t.result.steps[9].loss < t.result.steps[0].loss);
    tiny_close(&t);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(learns),
};

CHECK_MAIN(tests)
