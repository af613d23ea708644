/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reader of tables of measurements.  For all inputs: rows, or lines that say why not; every
 * row has a positive time and a positive prediction.  Inputs that name files of this machine
 * as clusters are left out.
 */
#include "config.h"

#include "fuzz.h"

#include "cost/fit_make.h"

#include <math.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    smp_errors *errors = smp_errors_create();
    smp_profile *profile = NULL;
    if (memchr(data, '/', size) != NULL ||
        smp_profile_read("h100-sxm", errors, &profile) != SMP_OK) {
        smp_errors_destroy(errors);
        return 0;
    }
    smp_fit_set set;
    smp_fit_set_init(&set);
    const smp_status status =
        smp_fit_rows_parse((const char *)data, size, "input", profile, NULL, errors, &set);
    FUZZ_CHECK((status == SMP_OK) == (smp_errors_count(errors) == 0));
    for (size_t i = 0; i < set.n; i++) {
        const double s = smp_fit_predict(NULL, &set.rows[i]);
        FUZZ_CHECK(set.rows[i].seconds > 0.0 && isfinite(set.rows[i].seconds));
        FUZZ_CHECK(s > 0.0 && isfinite(s));
    }
    smp_fit_set_free(&set);
    smp_profile_destroy(profile);
    smp_errors_destroy(errors);
    return 0;
}
