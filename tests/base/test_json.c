/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The JSON reader: what is wrong gives one line with its position; integers are exact; typed
 * members name value, rule and range.
 */
#include "config.h"

#include "tests/check.h"

#include "base/json.h"
#include "base/numeric.h"
#include "base/text.h"

#include <sys/stat.h>

/* Parses text of n bytes that is wrong: exactly one message, and it is `message`. */
static void check_wrong_n(const char *text, size_t n, const char *message)
{
    smp_errors *errors = smp_errors_create();
    smp_json *json = NULL;

    assert_int_equal(smp_json_parse(text, n, "x", errors, &json), SMP_INPUT);
    assert_null(json);
    assert_int_equal(smp_errors_count(errors), 1);
    check_text(smp_errors_text(errors, 0), message);
    smp_errors_destroy(errors);
}

static void check_wrong(const char *text, const char *message)
{
    check_wrong_n(text, strlen(text), message);
}

static smp_json *parse(const char *text, smp_errors *errors)
{
    smp_json *json = NULL;

    check_ok(smp_json_parse(text, strlen(text), "x", errors, &json), errors);
    return json;
}

static void test_grammar(void **state)
{
    static const struct {
        const char *text, *message;
    } wrong[] = {
        {"", "x: empty; a JSON value is needed"},
        {" \n\t\r\n", "x: only blanks; a JSON value is needed"},
        {"{\"a\": [1, 2", "x:1:12: the text ends where ',' or ']' is due"},
        {"{\"a\": ", "x:1:7: the text ends where a value is due"},
        {"{\n \"a\" 1}", "x:2:6: '1' instead of ':'"},
        {"{\n \"a\": 1\n \"b\": 2}", "x:3:2: '\"' instead of ',' or '}'"},
        {"[1,]", "x:1:4: ']' after a comma: JSON has no trailing commas"},
        {"{\"a\":1,}", "x:1:8: '}' after a comma: JSON has no trailing commas"},
        {"{a: 1}", "x:1:2: 'a' instead of a key in double quotes"},
        {"{'a': 1}", "x:1:2: ''' instead of a key in double quotes"},
        {"[1 // one\n]", "x:1:4: '/' instead of ',' or ']': JSON has no comments"},
        {"{} {}", "x:1:4: '{' instead of the end of the text"},
        {"[NaN]", "x:1:2: NaN is no JSON value"},
        {"[Infinity]", "x:1:2: Infinity is no JSON value"},
        {"[-Infinity]", "x:1:2: -Infinity is no JSON value"},
        {"[True]", "x:1:2: True is no JSON value"},
        {"[01]", "x:1:2: a number does not start with 0"},
        {"[-]", "x:1:3: ']' instead of a digit"},
        {"[+1]", "x:1:2: '+' instead of a value"},
        {"[1.]", "x:1:4: ']' instead of a digit after the point"},
        {"[1e+]", "x:1:5: ']' instead of a digit of the exponent"},
        {"[\"a", "x:1:2: a string that is not closed on its line"},
        {"[\"a\nb\"]", "x:1:2: a string that is not closed on its line"},
        {"[\"\t\"]", "x:1:3: byte 0x09 in a string: control characters are written as escapes"},
        {"[\"\\x\"]",
         "x:1:3: an escape in a string is one of \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX"},
        {"[\"\\u12G4\"]", "x:1:3: \\u needs four hexadecimal digits"},
        {"[\"\\u0000\"]", "x:1:3: \\u0000 is not accepted in a string"},
        {"[\"\\ud83d\"]", "x:1:3: \\ud83d is half of a surrogate pair"},
        {"[\"\\ude00\\ud83d\"]", "x:1:3: \\ude00 is half of a surrogate pair"},
        {"[\"\xc3\x28\"]", "x:1:3: byte 0xc3: not UTF-8 text"},
        {"[\"\xc0\x80\"]", "x:1:3: byte 0xc0: not UTF-8 text"},
        {"[\"\xed\xa0\x80\"]", "x:1:3: byte 0xed: not UTF-8 text"},
        {"[\"\xf4\x90\x80\x80\"]", "x:1:3: byte 0xf4: not UTF-8 text"},
        {"[\"\xe2\x82", "x:1:3: byte 0xe2: not UTF-8 text"},
        {"[\xff]", "x:1:2: byte 0xff instead of a value"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        check_wrong(wrong[i].text, wrong[i].message);
    }
}

static void test_encodings(void **state)
{
    static const char elf[] = "\x7f" "ELF\x02\x01\x01\0\0\0";
    smp_errors *errors = smp_errors_create();
    smp_json *json;

    (void)state;
    check_wrong_n("\xff\xfe{\0}\0", 6, "x: UTF-16 or UTF-32 text; JSON is UTF-8");
    check_wrong_n("\xfe\xff\0{\0}", 6, "x: UTF-16 or UTF-32 text; JSON is UTF-8");
    check_wrong_n("{\0}\0", 4, "x: UTF-16 or UTF-32 text; JSON is UTF-8");
    check_wrong_n("\0{\0}", 4, "x: UTF-16 or UTF-32 text; JSON is UTF-8");
    check_wrong_n("\0\0\0{", 4, "x: UTF-16 or UTF-32 text; JSON is UTF-8");
    check_wrong_n("[1,\0]", 5, "x:1:4: byte 0x00 instead of a value: not a text file");
    check_wrong_n(elf, sizeof elf, "x:1:1: byte 0x7f instead of a value");
    check_wrong_n("[\"a\0b\"]", 7,
                  "x:1:4: byte 0x00 in a string: control characters are written as escapes");
    json = parse("\xef\xbb\xbf[\"\xc3\xa4\\u00e4\\ud83d\\ude00\"]", errors); /* with a mark */
    check_text(smp_json_root(json)->child->valuestring, "\xc3\xa4\xc3\xa4\xf0\x9f\x98\x80");
    smp_json_destroy(json);
    smp_errors_destroy(errors);
}

static void test_numbers(void **state)
{
    smp_errors *errors = smp_errors_create();
    smp_json *json = parse("[1e308, -1e308, 1e-999999, 0.1]", errors);
    const cJSON *value = smp_json_root(json)->child;
    char digits[80] = "1234567890123456789012345678901234567890123456789012345678901234";

    (void)state;
    check_rel(value->valuedouble, 1e308, 0);
    check_rel(value->next->valuedouble, -1e308, 0);
    check_rel(value->next->next->valuedouble, 0, 0);
    check_rel(value->next->next->next->valuedouble, 0.1, 0);
    smp_json_destroy(json);
    check_wrong("[1, 1e309]", "x:1:5: 1e309 is outside the range of double (about 1.8e308)");
    check_wrong("-1e309", "x:1:1: -1e309 is outside the range of double (about 1.8e308)");
    check_wrong(digits, "x:1:1: a number of 64 characters; at most 63 are accepted");
    digits[63] = '\0';
    json = parse(digits, errors);
    smp_json_destroy(json);
    smp_errors_destroy(errors);
}

static void test_integers(void **state)
{
    static const struct {
        const char *text;
        bool integer;
        uint64_t u;
    } cases[] = {
        {"0", true, 0},
        {"-0", true, 0},
        {"0.0", true, 0},
        {"0e99999999999999999999", true, 0},
        {"9007199254740993", true, 9007199254740993u}, /* 2^53 + 1: no double */
        {"9223372036854775807", true, INT64_MAX},
        {"9223372036854775808", true, 1ULL << 63},
        {"18446744073709551615", true, UINT64_MAX},
        {"18446744073709551616", false, 0},
        {"100000000000000000000", false, 0},
        {"1e19", true, 10000000000000000000u},
        {"1e20", false, 0},
        {"1e3", true, 1000},
        {"4.0", true, 4},
        {"1.25e2", true, 125},
        {"1.25e1", false, 0},
        {"1200e-2", true, 12},
        {"1200e-3", false, 0},
        {"1e-999999999999999999999", false, 0},
        {"0.1e1", true, 1},
        {"1.5", false, 0},
        {"-1", false, 0},
        {"\"1\"", false, 0},
        {"true", false, 0},
    };
    smp_errors *errors = smp_errors_create();

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        smp_json *json = parse(cases[i].text, errors);
        uint64_t u = 77;
        bool integer = smp_json_u64(json, smp_json_root(json), &u);

        if (integer != cases[i].integer) {
            fail_msg("%s: integer %d", cases[i].text, integer);
        }
        check_u64(u, integer ? cases[i].u : 77);
        smp_json_destroy(json);
    }
    smp_errors_destroy(errors);
}

static void test_depth(void **state)
{
    smp_errors *errors = smp_errors_create();
    char *text = malloc(20001);
    smp_json *json;

    (void)state;
    assert_non_null(text);
    memset(text, '[', 10000);
    memset(text + 10000, ']', 10000);
    text[20000] = '\0';
    check_wrong(text, "x:1:257: nested deeper than 256 brackets");
    check_wrong_n(text, 10000, "x:1:257: nested deeper than 256 brackets");
    text[10256] = '\0';
    json = parse(text + 10000 - 256, errors);
    smp_json_destroy(json);
    free(text);
    smp_errors_destroy(errors);
}

static void test_duplicates(void **state)
{
    smp_errors *errors = smp_errors_create();
    smp_json *json = NULL;
    const char *text = "{\"a\": 1,\n \"b\": {\"c\": 1, \"c\": 2},\n \"\\u0061\": 3, \"A\": 4}";

    (void)state;
    assert_int_equal(smp_json_parse(text, strlen(text), "x", errors, &json), SMP_INPUT);
    assert_int_equal(smp_errors_count(errors), 2);
    check_text(smp_errors_text(errors, 0), "x:3:2: $.a: key given twice (first on line 1)");
    check_text(smp_errors_text(errors, 1), "x:2:16: $.b.c: key given twice (first on line 2)");
    smp_errors_destroy(errors);
}

/* A file of nothing but duplicates does not flood the screen. */
static void test_many_duplicates(void **state)
{
    smp_errors *errors = smp_errors_create();
    smp_json *json = NULL;
    smp_text text = {0};

    (void)state;
    smp_text_add(&text, "{\"k\":0");
    for (int i = 0; i < 20000; i++) {
        smp_text_add(&text, ",\"k\":%d", i);
    }
    smp_text_add(&text, "}");
    assert_int_equal(smp_json_parse(text.data, text.length, "x", errors, &json), SMP_INPUT);
    assert_int_equal(smp_errors_count(errors), 20);
    smp_text_free(&text);
    smp_errors_destroy(errors);
}

static void test_places(void **state)
{
    smp_errors *errors = smp_errors_create();
    smp_json *json = parse("{\n"
                           "  \"a\": {\"b-1\": [10, {\"c d\": true}]},\n"
                           "  \"e\": null\n}",
                           errors);
    const cJSON *a = smp_json_root(json)->child;
    const cJSON *list = a->child;
    const cJSON *deep = list->child->next->child;
    smp_place place = smp_json_place(json, smp_json_root(json));
    cJSON stranger = {0};

    (void)state;
    check_text(place.path, "$");
    check_u64(place.line, 1);
    check_u64(place.column, 1);
    place = smp_json_place(json, deep);
    check_text(place.file, "x");
    check_text(place.path, "$.a.b-1[1][\"c d\"]");
    check_u64(place.line, 2);
    check_u64(place.column, 29);
    place = smp_json_place(json, a->next);
    check_text(place.path, "$.e");
    check_u64(place.line, 3);
    check_u64(place.column, 8);
    place = smp_json_place(json, &stranger);
    assert_null(place.path);
    check_u64(place.line, 0);
    smp_json_destroy(json);
    smp_errors_destroy(errors);
}

static void test_members(void **state)
{
    smp_errors *errors = smp_errors_create();
    smp_json *json = parse("{\"u\": 7, \"d\": 2.5, \"b\": true, \"s\": \"t\", \"n\": null,\n"
                           " \"o\": {\"x\": 1}, \"U\": 8}", errors);
    smp_reader r, inner;
    uint64_t u = 1;
    double d = 1;
    bool b = false;
    const char *s = "unset";

    (void)state;
    check_ok(smp_read_root(json, errors, &r), errors);
    assert_true(smp_read_u64(&r, "u", true, 0, 10, &u) && u == 7);
    assert_true(smp_read_double(&r, "d", true, 0, 10, &d) && d == 2.5);
    assert_true(smp_read_double(&r, "u", true, 0, 10, &d) && d == 7.0);
    assert_true(smp_read_bool(&r, "b", true, &b) && b);
    assert_true(smp_read_string(&r, "s", true, &s));
    check_text(s, "t");
    assert_true(smp_read_object(&r, "o", true, &inner));
    assert_true(smp_read_u64(&inner, "x", true, 0, 10, &u) && u == 1);
    assert_false(smp_read_u64(&r, "n", false, 0, 10, &u));
    assert_false(smp_read_u64(&r, "absent", false, 0, 10, &u));
    check_u64(u, 1);
    assert_int_equal(smp_errors_count(errors), 0);
    assert_false(smp_read_u64(&r, "n", true, 0, 10, &u));
    assert_false(smp_read_u64(&inner, "absent", true, 0, 10, &u));
    check_text(smp_errors_text(errors, 0), "x:1:46: $.n: null: \"n\" is required");
    check_text(smp_errors_text(errors, 1), "x:2:7: $.o: \"absent\" is missing");
    smp_json_destroy(json);
    smp_errors_destroy(errors);
}

static void test_wrong_types(void **state)
{
    smp_errors *errors = smp_errors_create();
    smp_json *json =
        parse("{\"a\": 1.5, \"b\": 18446744073709551616, \"c\": -1, \"d\": [1],\n"
              "\"e\": \"a string that is much longer than what one wants to see\"}",
              errors);
    smp_reader r, inner;
    uint64_t u = 0;
    double d = 0;
    bool b = false;
    const char *s = NULL;

    (void)state;
    check_ok(smp_read_root(json, errors, &r), errors);
    assert_false(smp_read_u64(&r, "a", false, 1, 64, &u));
    assert_false(smp_read_u64(&r, "b", false, 1, UINT64_MAX, &u));
    assert_false(smp_read_double(&r, "c", false, 0, 1e308, &d));
    assert_false(smp_read_double(&r, "a", false, 0, 1, &d));
    assert_false(smp_read_string(&r, "d", false, &s));
    assert_false(smp_read_bool(&r, "e", false, &b));
    assert_false(smp_read_object(&r, "a", false, &inner));
    check_text(smp_errors_text(errors, 0), "x:1:7: $.a: 1.5: must be an integer from 1 to 64");
    check_text(smp_errors_text(errors, 1), "x:1:17: $.b: 18446744073709551616: must be an "
                                           "integer of at least 1 and below 2^64");
    check_text(smp_errors_text(errors, 2), "x:1:44: $.c: -1: must be a number of at least 0");
    check_text(smp_errors_text(errors, 3), "x:1:7: $.a: 1.5: must be a number from 0 to 1");
    check_text(smp_errors_text(errors, 4), "x:1:53: $.d: an array: must be a string");
    check_text(
        smp_errors_text(errors, 5),
        "x:2:6: $.e: \"a string that is much longer than what ...: must be true or false");
    check_text(smp_errors_text(errors, 6), "x:1:7: $.a: 1.5: must be an object");
    assert_int_equal(smp_errors_count(errors), 7);
    smp_json_destroy(json);
    smp_errors_clear(errors);
    json = parse("[1]", errors);
    check_fails(smp_read_root(json, errors, &r), SMP_INPUT, errors,
                "x:1:1: $: an array: must be an object");
    smp_json_destroy(json);
    smp_errors_destroy(errors);
}

static void test_unknown_keys(void **state)
{
    static const char *const known[] = {"tensor_parallel_degree", "random_seed", NULL};
    smp_errors *errors = smp_errors_create();
    smp_json *json = parse("{\"random_seed\": 1, \"tensor_paralel_degree\": 2, \"zzz\": 3}",
                           errors);
    smp_reader r;

    (void)state;
    check_ok(smp_read_root(json, errors, &r), errors);
    smp_read_reject_unknown(&r, known);
    assert_int_equal(smp_errors_count(errors), 2);
    check_text(smp_errors_text(errors, 0), "x:1:20: $.tensor_paralel_degree: unknown key (did "
                                           "you mean \"tensor_parallel_degree\"?)");
    check_text(smp_errors_text(errors, 1), "x:1:48: $.zzz: unknown key (known: "
                                           "tensor_parallel_degree, random_seed)");
    smp_json_destroy(json);
    smp_errors_destroy(errors);
}

static void test_nearest(void **state)
{
    static const char *const known[] = {"offload", "optimizer", "full", NULL};

    (void)state;
    check_text(smp_nearest_word("ofload", known), "offload");
    check_text(smp_nearest_word("OPTIMISER", known), "optimizer");
    check_text(smp_nearest_word("ful", known), "full");
    assert_null(smp_nearest_word("precision", known));
    assert_null(smp_nearest_word("", known));
}

static void test_files(void **state)
{
    smp_errors *errors = smp_errors_create();
    smp_json *json = NULL;
    const char *path;

    (void)state;
    check_fails(smp_json_read(".", errors, &json), SMP_INPUT, errors,
                ".: cannot be read: Is a directory");
    check_fails(smp_json_read("no/such/file", errors, &json), SMP_INPUT, errors,
                "no/such/file: cannot be read: No such file or directory");
    check_fails(smp_json_read("/dev/null", errors, &json), SMP_INPUT, errors, "empty");
    path = check_file("{\"a\": 1", 7);
    check_fails(smp_json_read(path, errors, &json), SMP_INPUT, errors, ":1:8: the text ends");
    assert_int_equal(truncate(path, 65L * 1024 * 1024), 0);
    check_fails(smp_json_read(path, errors, &json), SMP_INPUT, errors, "more than 64 MiB");
    path = check_file("{\"a\": 1}\n", 9);
    check_ok(smp_json_read(path, errors, &json), errors);
    smp_json_destroy(json);
    smp_json_destroy(NULL);
    smp_errors_destroy(errors);
}

/* A random value of bounded depth as text; `counter` draws from a seeded stream. */
static void add_random(smp_text *text, uint64_t *counter, int depth)
{
    uint32_t r[4];

    smp_random4(13, 0, (*counter)++, r);
    if (depth > 0 && r[0] % 3 == 0) {
        bool object = r[1] % 2;

        smp_text_add(text, object ? "{ " : "[ ");
        for (uint32_t i = 0; i < r[2] % 5; i++) {
            smp_text_add(text, "%s", i > 0 ? ", \n" : "");
            if (object) {
                smp_text_add(text, "\"k%u\" : ", (unsigned)i);
            }
            add_random(text, counter, depth - 1);
        }
        smp_text_add(text, object ? " }" : "]");
    } else if (r[1] % 4 == 0) {
        smp_text_add(text, "%s", r[2] % 3 == 0 ? "true" : r[2] % 3 == 1 ? "false" : "null");
    } else if (r[1] % 4 == 1) {
        smp_text_add(text, "\"s\\n%u\"", (unsigned)r[2]);
    } else {
        smp_text_add(text, "%.17g", (double)(int32_t)r[2] * exp2((double)(r[3] % 100)));
    }
}

static void check_columns(const smp_json *json, const char *text, const cJSON *value)
{
    smp_place place = smp_json_place(json, value);
    const char *line = text;
    size_t n;
    const char *source = smp_json_source(json, value, &n);

    for (uint32_t i = 1; i < place.line; i++) {
        line = strchr(line, '\n') + 1;
    }
    assert_memory_equal(line + place.column - 1, source, n);
    for (const cJSON *child = value->child; child != NULL; child = child->next) {
        check_columns(json, text, child);
    }
}

/* Written, read and written again is the same; every place is where the value stands. */
static void test_round_trip(void **state)
{
    uint64_t counter = 0;

    (void)state;
    for (int i = 0; i < 300; i++) {
        smp_errors *errors = smp_errors_create();
        smp_text text = {0};
        smp_json_out first = {0}, second = {0};
        smp_json *json, *again;

        add_random(&text, &counter, 6);
        json = parse(text.data, errors);
        check_columns(json, text.data, smp_json_root(json));
        smp_out_value(&first, NULL, smp_json_root(json));
        again = parse(first.text.data, errors);
        smp_out_value(&second, NULL, smp_json_root(again));
        check_text(second.text.data, first.text.data);
        smp_json_destroy(json);
        smp_json_destroy(again);
        smp_text_free(&text);
        smp_text_free(&first.text);
        smp_text_free(&second.text);
        smp_errors_destroy(errors);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_grammar),      cmocka_unit_test(test_encodings),
    cmocka_unit_test(test_numbers),      cmocka_unit_test(test_integers),
    cmocka_unit_test(test_depth),        cmocka_unit_test(test_duplicates),
    cmocka_unit_test(test_many_duplicates), cmocka_unit_test(test_places),
    cmocka_unit_test(test_members),      cmocka_unit_test(test_wrong_types),
    cmocka_unit_test(test_unknown_keys), cmocka_unit_test(test_nearest),
    cmocka_unit_test(test_files),        cmocka_unit_test(test_round_trip),
};

CHECK_MAIN(tests)
