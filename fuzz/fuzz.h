/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every fuzz target shares.  Each target states in its first comment the property that
 * holds for all inputs; breaking it aborts, which the fuzzer and the replay both see.
 */
#ifndef SMP_FUZZ_H
#define SMP_FUZZ_H

#include "smp.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Always on, unlike assert. */
#define FUZZ_CHECK(condition)                                                          \
    do {                                                                               \
        if (!(condition)) {                                                            \
            fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #condition);    \
            abort();                                                                   \
        }                                                                              \
    } while (0)

/* What holds after any reader: it succeeded and collected nothing, or failed and said why,
 * each message one line. */
static inline void fuzz_check_errors(smp_status status, const smp_errors *errors)
{
    FUZZ_CHECK((status == SMP_OK) == (smp_errors_count(errors) == 0));
    FUZZ_CHECK(status == smp_errors_status(errors));
    for (size_t i = 0; i < smp_errors_count(errors); i++) {
        const char *text = smp_errors_text(errors, i);

        FUZZ_CHECK(text[0] != '\0' && strchr(text, '\n') == NULL);
    }
}

/* A file that holds the input, for readers that take a path.  The name is the same for all
 * inputs of a process, in $TMPDIR or /tmp. */
const char *fuzz_file(const uint8_t *data, size_t size);
/* Paths beside it for what a target writes; removed at the end.  i: 0 or 1. */
const char *fuzz_output(int i);
/* True when both outputs were written and are equal byte for byte. */
bool fuzz_outputs_equal(void);

#endif
