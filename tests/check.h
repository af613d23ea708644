/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every test program shares: cmocka with its includes, assertions that print both
 * operands, the places of test inputs.  It is no test and holds no data.
 *
 *   check_rel(actual, expected, 1e-12)   relative tolerance; expected 0 must be met exactly
 *   check_u64 check_i64 check_text check_contains
 *   check_ok(call, errors)               SMP_OK, else prints what was collected
 *   check_fails(call, SMP_INPUT, errors, "part of the message")
 *   check_shared("models-parameters.json")  path, or the test is skipped
 *   check_source("configs/models")       path in the source tree
 *   CHECK_MAIN(tests)                    the main of a program with one group
 *
 * $SMP_TEST_FILTER (with * and ?) selects tests of a program by name.
 */
#ifndef SMP_TESTS_CHECK_H
#define SMP_TESTS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "smp.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define check_rel(actual, expected, tolerance)                                              \
    check_rel_at((actual), (expected), (tolerance), #actual, __FILE__, __LINE__)
#define check_u64(actual, expected)                                                         \
    check_u64_at((actual), (expected), #actual, __FILE__, __LINE__)
#define check_i64(actual, expected)                                                         \
    check_i64_at((actual), (expected), #actual, __FILE__, __LINE__)
#define check_text(actual, expected)                                                        \
    check_text_at((actual), (expected), #actual, __FILE__, __LINE__)
#define check_contains(text, part)                                                          \
    check_contains_at((text), (part), #text, __FILE__, __LINE__)
#define check_ok(call, errors) check_ok_at((call), (errors), #call, __FILE__, __LINE__)
#define check_fails(call, status, errors, part)                                             \
    check_fails_at((call), (status), (errors), (part), #call, __FILE__, __LINE__)

static inline void check_rel_at(double actual, double expected, double tolerance,
                                const char *what, const char *file, int line)
{
    double error = fabs(actual - expected);

    if (!(error <= tolerance * fabs(expected))) { /* false for NaN */
        print_error("%s is %.17g, expected %.17g within %g\n", what, actual, expected,
                    tolerance);
        _fail(file, line);
    }
}

static inline void check_u64_at(uint64_t actual, uint64_t expected, const char *what,
                                const char *file, int line)
{
    if (actual != expected) {
        print_error("%s is %" PRIu64 ", expected %" PRIu64 "\n", what, actual, expected);
        _fail(file, line);
    }
}

static inline void check_i64_at(int64_t actual, int64_t expected, const char *what,
                                const char *file, int line)
{
    if (actual != expected) {
        print_error("%s is %" PRId64 ", expected %" PRId64 "\n", what, actual, expected);
        _fail(file, line);
    }
}

static inline void check_text_at(const char *actual, const char *expected, const char *what,
                                 const char *file, int line)
{
    if (actual == NULL || strcmp(actual, expected) != 0) {
        print_error("%s is \"%s\", expected \"%s\"\n", what, actual ? actual : "(null)",
                    expected);
        _fail(file, line);
    }
}

static inline void check_contains_at(const char *text, const char *part, const char *what,
                                     const char *file, int line)
{
    if (text == NULL || strstr(text, part) == NULL) {
        print_error("%s lacks \"%s\": \"%s\"\n", what, part, text ? text : "(null)");
        _fail(file, line);
    }
}

static inline void check_ok_at(smp_status status, const smp_errors *errors, const char *what,
                               const char *file, int line)
{
    if (status != SMP_OK || smp_errors_count(errors) != 0) {
        print_error("%s has status %d; %zu failures\n", what, (int)status,
                    smp_errors_count(errors));
        for (size_t i = 0; i < smp_errors_count(errors); i++) {
            print_error("  %s\n", smp_errors_text(errors, i));
        }
        _fail(file, line);
    }
}

/* The call fails with `status` and some message holds `part`; the collector is cleared. */
static inline void check_fails_at(smp_status actual, smp_status status, smp_errors *errors,
                                  const char *part, const char *what, const char *file,
                                  int line)
{
    bool found = false;

    for (size_t i = 0; i < smp_errors_count(errors); i++) {
        found = found || strstr(smp_errors_text(errors, i), part) != NULL;
    }
    if (actual != status || !found) {
        print_error("%s has status %d, expected %d with \"%s\"\n", what, (int)actual,
                    (int)status, part);
        for (size_t i = 0; i < smp_errors_count(errors); i++) {
            print_error("  %s\n", smp_errors_text(errors, i));
        }
        _fail(file, line);
    }
    smp_errors_clear(errors);
}

/* The path of a file of the source tree; overwritten by the fourth call after it. */
static inline const char *check_source(const char *name)
{
    static char paths[4][2048];
    static unsigned next;
    const char *source = getenv("srcdir");
    char *path = paths[next++ % 4];

    (void)snprintf(path, sizeof paths[0], "%s/%s", source ? source : SMP_SOURCE_DIR, name);
    return path;
}

/* The path of a file of the shared data, which lie beside a checkout or where
 * $SMP_SHARED_DATA says; where they are not, the test is skipped. */
static inline const char *check_shared(const char *name)
{
    static char path[2048];
    const char *shared = getenv("SMP_SHARED_DATA");

    (void)snprintf(path, sizeof path, "%s/%s",
                   shared && shared[0] ? shared : check_source("../shared/data"), name);
    if (access(path, R_OK) != 0) {
        print_message("# no shared data: %s\n", name);
        skip();
    }
    return path;
}

/* Writes a file of the test's own in the working directory (the build tree) and returns its
 * name; the same for all calls of a process, so one file at a time. */
static inline const char *check_file(const void *bytes, size_t n)
{
    static char path[64];
    FILE *stream;

    (void)snprintf(path, sizeof path, "test-%ld.tmp", (long)getpid());
    stream = fopen(path, "wb");
    if (stream == NULL || fwrite(bytes, 1, n, stream) != n || fclose(stream) != 0) {
        fail_msg("%s cannot be written", path);
    }
    return path;
}

static inline void check_remove_file(void)
{
    char path[64];

    (void)snprintf(path, sizeof path, "test-%ld.tmp", (long)getpid());
    (void)unlink(path);
}

#define CHECK_MAIN(tests)                                                                   \
    int main(void)                                                                          \
    {                                                                                       \
        int failed;                                                                         \
        const char *filter = getenv("SMP_TEST_FILTER");                                     \
                                                                                            \
        if (filter != NULL) {                                                               \
            cmocka_set_test_filter(filter);                                                 \
        }                                                                                   \
        failed = cmocka_run_group_tests(tests, NULL, NULL);                                 \
        check_remove_file();                                                                \
        return failed;                                                                      \
    }

#endif
