/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reader of plan files.  For all inputs: a plan or lines that say why not, never both; a plan
 * that is written reads back and is written the same again.
 */
#include "config.h"

#include "fuzz.h"

static void check_written(const smp_planned *planned, smp_errors *errors)
{
    smp_planned *again = NULL;

    FUZZ_CHECK(smp_plan_write(&planned->job, NULL, fuzz_output(0), errors) == SMP_OK);
    FUZZ_CHECK(smp_plan_read(fuzz_output(0), errors, &again) == SMP_OK);
    FUZZ_CHECK(smp_plan_write(&again->job, NULL, fuzz_output(1), errors) == SMP_OK);
    FUZZ_CHECK(fuzz_outputs_equal());
    smp_planned_destroy(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    smp_errors *errors = smp_errors_create();
    smp_planned *planned = NULL;
    smp_status status = smp_plan_read(fuzz_file(data, size), errors, &planned);

    fuzz_check_errors(status, errors);
    FUZZ_CHECK((status == SMP_OK) == (planned != NULL));
    if (status == SMP_OK) {
        check_written(planned, errors);
        smp_planned_destroy(planned);
    }
    smp_errors_destroy(errors);
    return 0;
}
