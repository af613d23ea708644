/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text out: numbers for people, the JSON writer, files that appear whole, data lookup, and
 * the messages of the collector.
 */
#include "config.h"

#include "tests/check.h"

#include "base/json.h"
#include "base/numeric.h"
#include "base/text.h"

#include <fcntl.h>
#include <sys/stat.h>

static void test_growing(void **state)
{
    smp_text text = {0};

    (void)state;
    for (int i = 0; i < 1000; i++) {
        smp_text_add(&text, "%d,", i % 10);
    }
    assert_int_equal(text.length, 2000);
    assert_int_equal(strlen(text.data), 2000);
    smp_text_add_n(&text, "a\0b", 3);
    assert_int_equal(text.length, 2003);
    assert_int_equal(text.data[2003], '\0');
    smp_text_free(&text);
    assert_null(text.data);
}

static void test_show(void **state)
{
    (void)state;
    check_text(smp_show_bytes(0), "0 B");
    check_text(smp_show_bytes(1023), "1023 B");
    check_text(smp_show_bytes(1024), "1.00 KiB");
    check_text(smp_show_bytes(13207024435), "12.3 GiB");
    check_text(smp_show_bytes(1023ULL << 20), "1.00 GiB");
    check_text(smp_show_bytes(UINT64_MAX), "16.0 EiB");
    check_text(smp_show_signed_bytes(-1536), "-1.50 KiB");
    check_text(smp_show_signed_bytes(INT64_MIN), "-8.00 EiB");
    check_text(smp_show_seconds(0), "0 s");
    check_text(smp_show_seconds(0.0015), "1.50 ms");
    check_text(smp_show_seconds(0.9999), "1.00 s");
    check_text(smp_show_seconds(12.34), "12.3 s");
    check_text(smp_show_seconds(1e-13), "0.10 ps");
    check_text(smp_show_seconds(864000), "10.0 d");
    check_text(smp_show_seconds((double)INFINITY), "inf");
    check_text(smp_show_count(405.9e9), "406 B");
    check_text(smp_show_count(7), "7");
    check_text(smp_show_count(1234), "1.23 K");
    check_text(smp_show_count(-2.5e6), "-2.50 M");
    check_text(smp_show_count((double)NAN), "nan");
}

/* At most ten characters, whatever the value; four calls in one printf stay apart. */
static void test_show_width(void **state)
{
    const char *a = smp_show_bytes(1);
    const char *b = smp_show_bytes(2);
    const char *c = smp_show_count(3);
    const char *d = smp_show_seconds(4);

    (void)state;
    check_text(a, "1 B");
    check_text(b, "2 B");
    check_text(c, "3");
    check_text(d, "4.00 s");
    for (uint64_t i = 0; i < 20000; i++) {
        uint32_t r[4];
        uint64_t value;

        smp_random4(11, 0, i, r);
        value = (((uint64_t)r[0] << 32) | r[1]) >> (r[2] % 64);
        assert_in_range(strlen(smp_show_bytes(value)), 1, 10);
        assert_in_range(strlen(smp_show_signed_bytes(-(int64_t)(value >> 1))), 1, 10);
        assert_in_range(strlen(smp_show_count(-(double)value)), 1, 10);
        assert_in_range(strlen(smp_show_seconds((double)value * 1e-12)), 1, 10);
    }
}

static void test_writer(void **state)
{
    smp_json_out out = {0};

    (void)state;
    smp_out_object(&out, NULL);
    smp_out_string(&out, "name", "a \"b\"\\\n\x01");
    smp_out_u64(&out, "max", UINT64_MAX);
    smp_out_i64(&out, "min", INT64_MIN);
    smp_out_array(&out, "list");
    smp_out_double(&out, NULL, 0.1);
    smp_out_double(&out, NULL, (double)NAN);
    smp_out_bool(&out, NULL, true);
    smp_out_string(&out, NULL, NULL);
    smp_out_end_array(&out);
    smp_out_array(&out, "none");
    smp_out_end_array(&out);
    smp_out_object(&out, "nothing");
    smp_out_end_object(&out);
    smp_out_end_object(&out);
    check_text(out.text.data, "{\n"
                              "  \"name\": \"a \\\"b\\\"\\\\\\n\\u0001\",\n"
                              "  \"max\": 18446744073709551615,\n"
                              "  \"min\": -9223372036854775808,\n"
                              "  \"list\": [\n"
                              "    0.1,\n"
                              "    null,\n"
                              "    true,\n"
                              "    null\n"
                              "  ],\n"
                              "  \"none\": [],\n"
                              "  \"nothing\": {}\n"
                              "}\n");
    smp_text_free(&out.text);
}

/* Doubles read back equal, bit for bit, over all exponents. */
static void test_doubles(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 5000; i++) {
        smp_json_out out = {0};
        uint32_t r[4];
        uint64_t bits;
        double value, again;

        smp_random4(12, 0, i, r);
        bits = ((uint64_t)r[0] << 32) | r[1];
        memcpy(&value, &bits, sizeof value);
        if (!isfinite(value)) {
            continue;
        }
        smp_out_double(&out, NULL, value);
        again = strtod(out.text.data, NULL);
        assert_memory_equal(&again, &value, sizeof value);
        smp_text_free(&out.text);
    }
}

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

static void test_files(void **state)
{
    const char *path = check_file("old", 3);
    smp_errors *errors = smp_errors_create();
    smp_file *file;
    char temporary[200];
    char content[16] = {0};
    FILE *stream;

    (void)state;
    (void)snprintf(temporary, sizeof temporary, "%s.tmp-%ld", path, (long)getpid());
    check_ok(smp_file_create(path, errors, &file), errors);
    fprintf(smp_file_stream(file), "half");
    assert_true(exists(temporary));
    smp_file_abandon(file);
    assert_false(exists(temporary));
    check_ok(smp_file_write(path, "new", 3, errors), errors);
    assert_false(exists(temporary));
    stream = fopen(path, "r");
    assert_non_null(stream);
    assert_int_equal(fread(content, 1, sizeof content, stream), 3);
    (void)fclose(stream);
    check_text(content, "new");
    check_fails(smp_file_create("no/such/place", errors, &file), SMP_SYSTEM, errors,
                "no/such/place: cannot be written: No such file");
    check_fails(smp_file_create(".", errors, &file), SMP_SYSTEM, errors, "directory");
    smp_file_abandon(NULL);
    smp_errors_destroy(errors);
}

static void test_directories(void **state)
{
    smp_errors *errors = smp_errors_create();
    char top[64], inner[80], file[80];

    (void)state;
    (void)snprintf(top, sizeof top, "test-directories-%ld.tmp", (long)getpid());
    (void)snprintf(inner, sizeof inner, "%s/a", top);
    (void)snprintf(file, sizeof file, "%s/f", top);
    check_ok(smp_make_directory(inner, errors), errors);
    check_ok(smp_make_directory(inner, errors), errors);
    assert_true(exists(inner));
    check_ok(smp_file_write(file, "x", 1, errors), errors);
    check_fails(smp_make_directory(file, errors), SMP_SYSTEM, errors,
                "/f: cannot be made: Not a directory");
    (void)snprintf(inner, sizeof inner, "%s/f/b", top);
    check_fails(smp_make_directory(inner, errors), SMP_SYSTEM, errors, "Not a directory");
    (void)unlink(file);
    (void)snprintf(inner, sizeof inner, "%s/a", top);
    assert_int_equal(rmdir(inner), 0);
    assert_int_equal(rmdir(top), 0);
    smp_errors_destroy(errors);
}

/* A full disk is reported, and a device is written in place. */
static void test_full_disk(void **state)
{
    smp_errors *errors = smp_errors_create();
    struct stat info;

    (void)state;
    if (!exists("/dev/full")) {
        smp_errors_destroy(errors);
        skip();
    }
    check_fails(smp_file_write("/dev/full", "x", 1, errors), SMP_SYSTEM, errors, "No space");
    assert_int_equal(stat("/dev/full", &info), 0);
    assert_true(S_ISCHR(info.st_mode));
    smp_errors_destroy(errors);
}

static void test_find(void **state)
{
    smp_errors *errors = smp_errors_create();
    char *found = NULL;
    const char *path = check_file("{}", 2);

    (void)state;
    check_ok(smp_find_config("models", path, errors, &found), errors);
    check_text(found, path);
    free(found);
    assert_int_equal(mkdir("test-configs.tmp", 0700) | mkdir("test-configs.tmp/models", 0700),
                     0);
    check_ok(smp_file_write("test-configs.tmp/models/small.json", "{}", 2, errors), errors);
    check_ok(smp_file_write("test-configs.tmp/config.json", "{}", 2, errors), errors);
    assert_int_equal(setenv("SMP_CONFIGS", "test-configs.tmp", 1), 0);
    check_ok(smp_find_config("models", "small", errors, &found), errors);
    check_text(found, "test-configs.tmp/models/small.json");
    free(found);
    check_ok(smp_find_config("models", "test-configs.tmp", errors, &found), errors);
    check_text(found, "test-configs.tmp/config.json");
    free(found);
    check_fails(smp_find_config("models", "smal", errors, &found), SMP_INPUT, errors, "small");
    check_fails(smp_find_config("models", "", errors, &found), SMP_INPUT, errors, "empty name");
    check_fails(smp_find_config("models", "test-configs.tmp/models", errors, &found), SMP_INPUT,
                errors, "without config.json");
    check_fails(smp_find_plot_script("none.gp", errors, &found), SMP_SYSTEM, errors, "none.gp");
    assert_int_equal(unsetenv("SMP_CONFIGS"), 0);
    (void)unlink("test-configs.tmp/models/small.json");
    (void)unlink("test-configs.tmp/config.json");
    (void)rmdir("test-configs.tmp/models");
    (void)rmdir("test-configs.tmp");
    smp_errors_destroy(errors);
}

static void test_messages(void **state)
{
    smp_errors *errors = smp_errors_create();
    smp_place where = {"m.json", 3, 14, "$.a.b"};

    (void)state;
    assert_int_equal(smp_errors_status(errors), SMP_OK);
    smp_warn(errors, NULL, "odd %d", 1);
    assert_int_equal(smp_errors_status(errors), SMP_OK);
    assert_int_equal(smp_fail(errors, SMP_INPUT, &where, "%s", "bad\nvalue\x7f"), SMP_INPUT);
    assert_int_equal(smp_fail(errors, SMP_SYSTEM, &(smp_place){.file = "--set"}, "x"),
                     SMP_SYSTEM);
    check_text(smp_errors_text(errors, 0), "m.json:3:14: $.a.b: bad\\x0avalue\\x7f");
    check_text(smp_errors_text(errors, 1), "--set: x");
    assert_null(smp_errors_text(errors, 2));
    check_text(smp_warnings_text(errors, 0), "odd 1");
    assert_int_equal(smp_errors_count(errors), 2);
    assert_int_equal(smp_warnings_count(errors), 1);
    assert_int_equal(smp_errors_status(errors), SMP_INPUT);
    smp_errors_clear(errors);
    assert_int_equal(smp_errors_count(errors) + smp_warnings_count(errors), 0);
    assert_int_equal(smp_errors_status(errors), SMP_OK);
    smp_errors_destroy(errors);
    smp_errors_destroy(NULL);
}

static void test_print(void **state)
{
    smp_errors *errors = smp_errors_create();
    FILE *stream = tmpfile();
    char text[200] = {0};

    (void)state;
    assert_non_null(stream);
    smp_warn(errors, NULL, "careful");
    for (int i = 0; i < 100; i++) {
        (void)smp_fail(errors, SMP_INPUT, NULL, "number %d", i);
    }
    smp_errors_print(errors, "smp-x", stream);
    rewind(stream);
    assert_non_null(fgets(text, sizeof text, stream));
    check_text(text, "smp-x: number 0\n");
    for (int i = 0; i < 100; i++) {
        assert_non_null(fgets(text, sizeof text, stream));
    }
    check_text(text, "smp-x: warning: careful\n");
    assert_null(fgets(text, sizeof text, stream));
    (void)fclose(stream);
    smp_errors_destroy(errors);
}

/* Where there is no terminal, progress prints nothing. */
static void test_progress(void **state)
{
    FILE *stream = tmpfile();
    smp_progress *progress = smp_progress_create(stream, "searching");

    (void)state;
    for (uint64_t i = 0; i <= 100; i++) {
        smp_progress_update(progress, i, 100);
    }
    smp_progress_destroy(progress);
    smp_progress_destroy(NULL);
    assert_int_equal(ftell(stream), 0);
    (void)fclose(stream);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_growing),    cmocka_unit_test(test_show),
    cmocka_unit_test(test_show_width), cmocka_unit_test(test_writer),
    cmocka_unit_test(test_doubles),    cmocka_unit_test(test_files),
    cmocka_unit_test(test_directories),
        cmocka_unit_test(test_full_disk),  cmocka_unit_test(test_find),
    cmocka_unit_test(test_messages),   cmocka_unit_test(test_print),
    cmocka_unit_test(test_progress),
};

CHECK_MAIN(tests)
