/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of src/cost share: reading shipped files, and editing their text.
 */
#ifndef SMP_TESTS_COST_READ_H
#define SMP_TESTS_COST_READ_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* after the headers that it needs */
#include <cmocka.h>

#include "base/text.h"
#include "cost/cost.h"

#include <stdlib.h>
#include <string.h>

static inline smp_cluster *read_cluster(const char *name)
{
    smp_errors *errors = smp_errors_create();
    smp_cluster *cluster = NULL;
    if (smp_cluster_read(name, errors, &cluster) != SMP_OK) {
        smp_errors_print(errors, "test", stderr);
        fail();
    }
    smp_errors_destroy(errors);
    return cluster;
}

static inline smp_profile *read_profile(const smp_cluster *cluster)
{
    smp_errors *errors = smp_errors_create();
    smp_profile *profile = NULL;
    if (smp_profile_read_for(cluster, errors, &profile) != SMP_OK) {
        smp_errors_print(errors, "test", stderr);
        fail();
    }
    smp_errors_destroy(errors);
    return profile;
}

/* What the formulas say by themselves. */
static inline void forget_fits(smp_profile *profile)
{
    memset(profile->fits, 0, sizeof profile->fits);
}

/* A copy of `text` with the first `old` replaced; heap memory. */
static inline char *replaced(const char *text, const char *old, const char *with)
{
    const char *at = strstr(text, old);
    if (at == NULL) {
        fail_msg("not in the text: %s", old);
    }
    smp_text out = {0};
    smp_text_add_n(&out, text, (size_t)(at - text));
    smp_text_add(&out, "%s%s", with, at + strlen(old));
    return out.data;
}

/* Some failure contains `part`. */
static inline void expect_failure(const smp_errors *errors, const char *part)
{
    for (size_t i = 0; i < smp_errors_count(errors); i++) {
        if (strstr(smp_errors_text(errors, i), part) != NULL) {
            return;
        }
    }
    smp_errors_print(errors, "test", stderr);
    fail_msg("no failure contains: %s", part);
}

#endif
