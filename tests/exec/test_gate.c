/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which families the cpu device runs.
 */
#include "config.h"

#include "tests/check.h"
#include "tests/exec/reference/reference.h"

#include "exec/device.h"
#include "model/family.h"

/* The device runs a family if and only if there is a reference of it. */
static void no_family_runs_without_a_reference(void **state)
{
    smp_errors *errors = smp_errors_create();

    (void)state;
    for (size_t i = 0; smp_families()[i]; i++) {
        smp_model model = { .name = "m", .family = smp_families()[i]->model_type };
        smp_block block = { 0 };
        smp_job job = { .model = &model };
        smp_rank rank = { .job = &job };
        smp_device_options options = { .threads = 1 };
        smp_device *device = NULL;
        bool found = false;

        model.kinds = &block;
        for (size_t k = 0; k < sizeof references / sizeof references[0]; k++) {
            found = found || strcmp(references[k].family, model.family) == 0;
        }
        if ((smp_device_cpu.open(&rank, &options, errors, &device) == SMP_OK) != found) {
            fail_msg("%s: %s", model.family, found ? "has a reference" : "has no reference");
        }
        smp_device_cpu.close(device);
    }
    smp_errors_destroy(errors);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(no_family_runs_without_a_reference),
};

CHECK_MAIN(tests)
