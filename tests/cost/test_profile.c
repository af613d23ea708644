/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reader of profiles: shipped files are sane, samples and fits are checked in form, bad
 * input is told with its place.
 */
#include "config.h"

#include "read.h"

static const char *const shipped[] = {"v100-sxm2-32gb", "a100-sxm-40gb", "a100-sxm-80gb",
                                      "h100-sxm",       "h200-sxm",      "b200-sxm",
                                      "l40s",           "cpu"};
enum { N_SHIPPED = sizeof shipped / sizeof shipped[0] };

static smp_profile *read_named(const char *name)
{
    smp_errors *errors = smp_errors_create();
    smp_profile *profile = NULL;
    if (smp_profile_read(name, errors, &profile) != SMP_OK) {
        smp_errors_print(errors, "test", stderr);
        fail();
    }
    smp_errors_destroy(errors);
    return profile;
}

static void shipped_profiles_read(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_SHIPPED; i++) {
        smp_profile *profile = read_named(shipped[i]);
        assert_string_equal(smp_profile_name(profile), shipped[i]);
        assert_true(profile->peak_flops[SMP_F32].value > 0.0);
        assert_true(profile->peak_flops[SMP_U8].value == 0.0);
        assert_true(profile->matmul_efficiency.value <= 1.0);
        assert_non_null(profile->spread.source);
        smp_profile_destroy(profile);
    }
    smp_profile *v100 = read_named("v100-sxm2-32gb");
    assert_true(v100->peak_flops[SMP_BF16].value == 0.0); /* the GPU has no bf16 */
    assert_true(v100->peak_flops[SMP_F16].value == 125e12);
    smp_profile_destroy(v100);
}

static void text_reads_back(void **state)
{
    (void)state;
    smp_errors *errors = smp_errors_create();
    smp_profile *a = read_named("h100-sxm");
    smp_profile *b = NULL;
    assert_int_equal(
        smp_profile_parse(a->text, strlen(a->text), "plan.json", a->name, errors, &b), SMP_OK);
    assert_string_equal(a->text, b->text);
    assert_true(a->launch_s.value == b->launch_s.value);
    smp_profile_destroy(a);
    smp_profile_destroy(b);
    smp_errors_destroy(errors);
}

static const char measured[] =
    "\"samples\": [{\"op\": \"matmul\", \"dtype\": \"bf16\", \"sizes\": [8192, 8192, 8192],"
    " \"seconds\": 1.4e-3, \"source\": \"here\"}],\n"
    "\"sample_sets\": [{\"op\": \"all_gather\", \"rows\": 20, \"digest\": \"sha256:0\","
    " \"source\": \"there\"}],\n"
    "\"fits\": [{\"op\": \"attention\", \"form\": \"ramp\", \"parameters\": {\"half\": 450},"
    " \"spread\": 0.05, \"range\": {\"seq\": [512, 16384]}, \"source\": \"here\"}],\n"
    "\"title\"";

static void samples_and_fits(void **state)
{
    (void)state;
    smp_errors *errors = smp_errors_create();
    smp_profile *a = read_named("l40s");
    char *text = replaced(a->text, "\"title\"", measured);
    smp_profile *b = NULL;
    assert_int_equal(smp_profile_parse(text, strlen(text), "p.json", "p", errors, &b), SMP_OK);
    assert_int_equal(b->n_sample, 1);
    assert_int_equal(b->n_fit, 1);
    free(text);
    smp_profile_destroy(a);
    smp_profile_destroy(b);
    smp_errors_destroy(errors);
}

static void single_problems(void **state)
{
    static const struct { const char *old, *with, *part; } cases[] = {
        {"\"op\": \"matmul\"", "\"op\": \"matmull\"", "did you mean \"matmul\""},
        {"[8192, 8192, 8192]", "[8192, \"x\"]", "must hold numbers"},
        {"[8192, 8192, 8192]", "{}", "must be an array of numbers"},
        {"[512, 16384]", "[512, 256]", "low at most high"},
        {"[512, 16384]", "[512]", "low at most high"},
        {"\"seconds\": 1.4e-3", "\"seconds\": -1", "seconds"},
        {"\"rows\": 20", "\"rows\": 0", "rows"},
        {"\"spread\": 0.05", "\"sprea\": 0.05", "spread"},
        {"\"samples\": [", "\"samples\": [7, ", "each must be an object"},
        {"\"fits\": [{", "\"fits\": {\"x\": [{", "p.json"},
        {"\"form\": \"ramp\"", "\"form\": 3", "form"},
        {"\"fp32\"", "\"fp33\"", "fp32"},
        {"\"compute_capability\": ", "\"compute_capability\": -", "compute_capability"},
        {"\"multiprocessors\": 142", "\"multiprocessors\": 0", "multiprocessors"},
        {"\"matmul\": {", "\"matmul\": {\"unit\": 1, ", "unit"}};
    (void)state;
    smp_profile *a = read_named("l40s");
    char *good = replaced(a->text, "\"title\"", measured);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        smp_errors *errors = smp_errors_create();
        smp_profile *b = NULL;
        char *text = replaced(good, cases[i].old, cases[i].with);
        assert_int_equal(smp_profile_parse(text, strlen(text), "p.json", "p", errors, &b),
                         SMP_INPUT);
        assert_null(b);
        expect_failure(errors, cases[i].part);
        free(text);
        smp_errors_destroy(errors);
    }
    free(good);
    smp_profile_destroy(a);
}

static void all_problems_at_once(void **state)
{
    static const char text[] =
        "{\"format\": \"smp-profile-2\",\n \"compute_capability\": 9000,\n"
        " \"peak_flops\": {\"bf16\": {\"value\": -5, \"source\": \"x\"}},\n"
        " \"memory\": 1}";
    (void)state;
    smp_errors *errors = smp_errors_create();
    smp_profile *profile = NULL;
    assert_int_equal(smp_profile_parse(text, strlen(text), "p.json", "p", errors, &profile),
                     SMP_INPUT);
    expect_failure(errors, "p.json:1:");
    expect_failure(errors, "p.json:2:");
    expect_failure(errors, "p.json:3:");
    expect_failure(errors, "p.json:4:");
    expect_failure(errors, "title");
    expect_failure(errors, "launch_s");
    assert_true(smp_errors_count(errors) >= 12);
    smp_errors_destroy(errors);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shipped_profiles_read), cmocka_unit_test(text_reads_back),
        cmocka_unit_test(samples_and_fits),      cmocka_unit_test(single_problems),
        cmocka_unit_test(all_problems_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
