/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reader of profiles.  For all inputs: a profile or lines that say why not, never both; a
 * profile's own text reads back as the same text.
 */
#include "config.h"

#include "fuzz.h"

#include "cost/cost.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    smp_errors *errors = smp_errors_create();
    smp_profile *first = NULL, *again = NULL;
    smp_status status =
        smp_profile_parse((const char *)data, size, "input", "input", errors, &first);

    fuzz_check_errors(status, errors);
    FUZZ_CHECK((status == SMP_OK) == (first != NULL));
    if (status == SMP_OK) {
        status = smp_profile_parse(first->text, strlen(first->text), "again", "input", errors,
                                   &again);
        FUZZ_CHECK(status == SMP_OK);
        FUZZ_CHECK(strcmp(first->text, again->text) == 0);
    }
    smp_profile_destroy(first);
    smp_profile_destroy(again);
    smp_errors_destroy(errors);
    return 0;
}
