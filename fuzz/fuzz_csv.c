/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reader of tables of measurements.  For all inputs: rows, or lines that say why not; every
 * row has a positive time and a positive prediction.  Inputs that name files of this machine
 * as clusters are left out.  What does not depend on the input, the profile and the clusters
 * that rows name, is read once: it would take nearly all of the time.
 */
#include "config.h"

#include "fuzz.h"

#include "cost/fit_make.h"

#include <math.h>

static smp_profile *profile;
static smp_fit_place places[SMP_FIT_PLACES];
static size_t n_place;

static void forget(void)
{
    smp_fit_set set;
    smp_fit_set_init(&set);
    memcpy(set.places, places, sizeof places);
    set.n_place = n_place;
    smp_fit_set_free(&set);
    smp_profile_destroy(profile);
}

static void read_profile(void)
{
    smp_errors *errors = smp_errors_create();
    FUZZ_CHECK(smp_profile_read("h100-sxm", errors, &profile) == SMP_OK);
    FUZZ_CHECK(atexit(forget) == 0);
    smp_errors_destroy(errors);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (profile == NULL) {
        read_profile();
    }
    if (memchr(data, '/', size) != NULL) {
        return 0;
    }
    smp_errors *errors = smp_errors_create();
    smp_fit_set set;
    smp_fit_set_init(&set);
    memcpy(set.places, places, sizeof places);
    set.n_place = n_place;
    const smp_status status =
        smp_fit_rows_parse((const char *)data, size, "input", profile, NULL, errors, &set);
    FUZZ_CHECK((status == SMP_OK) == (smp_errors_count(errors) == 0));
    for (size_t i = 0; i < set.n; i++) {
        const double s = smp_fit_predict(NULL, &set.rows[i]);
        FUZZ_CHECK(set.rows[i].seconds > 0.0 && isfinite(set.rows[i].seconds));
        FUZZ_CHECK(s > 0.0 && isfinite(s));
    }
    memcpy(places, set.places, sizeof places);
    n_place = set.n_place;
    set.n_place = 0; /* kept for the next input */
    smp_fit_set_free(&set);
    smp_errors_destroy(errors);
    return 0;
}
