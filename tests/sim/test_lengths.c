/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Epochs over sequences of varying length: rows against steps simulated one by one, policies
 * that coincide, distributions against their own moments.
 */
#ifdef HAVE_CONFIG_H
#include "config.h" /* open_memstream of POSIX 2008 */
#endif

#include "tests/sim/small_job.h"

#include "sim/lengths.h"

#include <cjson/cJSON.h>
#include <math.h>

static const char cluster[] = "configs/clusters/dgx-h100.json";

static cJSON *epoch_json(small_job *s, const smp_lengths_options *o)
{
    char *text = NULL;
    size_t n = 0;
    FILE *stream = open_memstream(&text, &n);
    assert_non_null(stream);
    check_ok(smp_lengths_print(&s->job, o, true, stream, s->errors), s->errors);
    fclose(stream);
    cJSON *json = cJSON_Parse(text);
    assert_non_null(json);
    free(text);
    return json;
}

static double field(const cJSON *json, int policy, const char *key)
{
    const cJSON *row = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "policies"), policy);
    const cJSON *value = cJSON_GetObjectItem(row, key);
    assert_true(cJSON_IsNumber(value));
    return value->valuedouble;
}

/* Step time at one length, by itself. */
static double step_s(uint64_t length, const char *settings)
{
    small_job *s = small_job_read(cluster, 2, 2, settings);
    s->job.batch.seq_len = length;
    small_job_simulate(s);
    const double seconds = s->simulation->report.step_time_s;
    small_job_free(s);
    return seconds;
}

static char *write_lengths(const char *text)
{
    static char path[] = "test_lengths.txt";
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    return path;
}

/* Six lengths, two a step: steps of 128 and 256, 100 and 100, 512 and 384 (600 is cut). */
static void adds_up_by_hand(void **state)
{
    (void)state;
    static const char *const pads[] = {"max_length", "longest", "bucket:128", "bucket:512",
                                       "bucket:4096"};
    small_job *s = small_job_read(cluster, 2, 2, "checkpointing=full");
    smp_lengths_options o;
    smp_lengths_options_init(&o);
    o.lengths = write_lengths("128 256\n100\n100\n600 384\n77\n");
    o.pads = pads;
    o.n_pad = 5;
    o.compile_s = 10;
    cJSON *json = epoch_json(s, &o);
    const double tokens = 128 + 256 + 100 + 100 + 512 + 384;
    const double t100 = step_s(100, "checkpointing=full");
    const double t128 = step_s(128, "checkpointing=full");
    const double t256 = step_s(256, "checkpointing=full");
    const double t512 = step_s(512, "checkpointing=full");
    static const double programs[] = {1, 3, 3, 1, 1};
    const double computed[] = {3 * 1024, 512 + 200 + 1024, 512 + 256 + 1024, 3072, 3072};
    const double train_s[] = {3 * t512, t256 + t100 + t512, t256 + t128 + t512, 3 * t512,
                              3 * t512};
    for (int i = 0; i < 5; i++) {
        check_rel(field(json, i, "steps"), 3, 0);
        check_rel(field(json, i, "programs"), programs[i], 0);
        check_rel(field(json, i, "tokens"), tokens, 0);
        check_rel(field(json, i, "computed_tokens"), computed[i], 0);
        check_rel(field(json, i, "waste"), 1 - tokens / computed[i], 1e-12);
        check_rel(field(json, i, "compile_s"), 10 * programs[i], 0);
        check_rel(field(json, i, "train_s"), train_s[i], 1e-12);
        check_rel(field(json, i, "total_s"), train_s[i] + 10 * programs[i], 1e-12);
    }
    check_rel(cJSON_GetObjectItem(json, "cut_sequences")->valuedouble, 1, 0);
    check_rel(cJSON_GetObjectItem(json, "dropped_sequences")->valuedouble, 1, 0);
    cJSON_Delete(json);
    small_job_free(s);
    remove("test_lengths.txt");
}

/* Less filling never computes more tokens, and never takes longer to train. */
static void policies_are_ordered(void **state)
{
    (void)state;
    static const char *const pads[] = {"longest", "bucket:1", "bucket:64", "bucket:128",
                                       "bucket:256", "bucket:512", "max_length"};
    static const char *const lengths[] = {"lognormal:200,150", "uniform:1,512", "uniform:9,9"};
    for (size_t k = 0; k < 3; k++) {
        small_job *s = small_job_read(cluster, 4, 4, "tensor_parallel_degree=2");
        smp_lengths_options o;
        smp_lengths_options_init(&o);
        o.lengths = lengths[k];
        o.pads = pads;
        o.n_pad = 7;
        o.sequences = 80;
        cJSON *json = epoch_json(s, &o);
        for (int i = 1; i < 7; i++) {
            assert_true(field(json, i, "computed_tokens") >=
                        field(json, i - 1, "computed_tokens"));
            assert_true(field(json, i, "train_s") >= field(json, i - 1, "train_s") * 0.999);
            assert_true(field(json, i, "waste") >= 0 && field(json, i, "waste") < 1);
        }
        check_rel(field(json, 1, "train_s"), field(json, 0, "train_s"), 0);
        check_rel(field(json, 6, "train_s"), field(json, 5, "train_s"), 0);
        check_rel(field(json, 6, "compile_s"), field(json, 5, "compile_s"), 0);
        assert_true(field(json, 0, "compile_s") > 0);
        cJSON_Delete(json);
        small_job_free(s);
    }
}

/* Sample moments of 200,000 draws, within five standard errors. */
static void distributions_have_their_moments(void **state)
{
    (void)state;
    enum { N = 200000 };
    static const struct { const char *text; double mean, sd; } cases[] = {
        {"lognormal:900,700", 900, 700}, {"lognormal:50,5", 50, 5},
        {"uniform:10,2009", 1009.5, 577.35}, {"uniform:7,7", 7, 0}};
    smp_arena *arena = smp_arena_create();
    smp_errors *errors = smp_errors_create();
    for (size_t k = 0; k < 4; k++) {
        smp_lengths l;
        check_ok(smp_lengths_read(cases[k].text, N, 3, 1000000, arena, errors, &l), errors);
        double squares = 0;
        const double mean = l.sum / N;
        for (uint64_t i = 0; i < l.n; i++) {
            squares += ((double)l.list[i] - mean) * ((double)l.list[i] - mean) / N;
        }
        check_u64(l.n, N);
        assert_true(fabs(mean - cases[k].mean) <= 5 * cases[k].sd / sqrt(N) + 1e-9);
        assert_true(fabs(sqrt(squares) - cases[k].sd) <= 0.03 * cases[k].sd + 1e-6);
    }
    smp_errors_destroy(errors);
    smp_arena_destroy(arena);
}

static void shapes_are_rounded(void **state)
{
    (void)state;
    const smp_pad longest = {.kind = SMP_PAD_LONGEST};
    const smp_pad bucket = {.kind = SMP_PAD_BUCKET, .bucket = 100};
    check_u64(smp_pad_shape(&longest, 17, 1, 512), 17);
    check_u64(smp_pad_shape(&longest, 17, 16, 512), 32);
    check_u64(smp_pad_shape(&longest, 512, 16, 512), 512);
    check_u64(smp_pad_shape(&bucket, 100, 1, 512), 100);
    check_u64(smp_pad_shape(&bucket, 101, 16, 512), 208);
    check_u64(smp_pad_shape(&bucket, 510, 16, 512), 512);
}

static void bad_inputs_are_named(void **state)
{
    (void)state;
    static const char *const lengths[] = {"lognormal:", "lognormal:5", "lognormal:5,0",
                                          "lognormal:0,5", "lognormal:5,x", "uniform:5,4",
                                          "uniform:0,4", "uniform:1,2,3", "uniform:1,2x"};
    static const char *const pads[] = {"", "max", "bucket", "bucket:", "bucket:0", "bucket:-4",
                                       "bucket:8x"};
    static const char *const files[] = {"", " \n", "12 x", "0", "-3", "1.5", "99999999999"};
    small_job *s = small_job_read(cluster, 1, 1, "");
    smp_lengths_options o;
    smp_lengths_options_init(&o);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        o.lengths = lengths[i];
        check_fails(smp_lengths_print(&s->job, &o, false, stdout, s->errors), SMP_INPUT,
                    s->errors, "--lengths");
    }
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        o.lengths = write_lengths(files[i]);
        check_fails(smp_lengths_print(&s->job, &o, false, stdout, s->errors), SMP_INPUT,
                    s->errors, "test_lengths.txt:");
    }
    remove("test_lengths.txt");
    o.lengths = "uniform:1,9";
    o.n_pad = 1;
    for (size_t i = 0; i < sizeof pads / sizeof pads[0]; i++) {
        o.pads = &pads[i];
        check_fails(smp_lengths_print(&s->job, &o, false, stdout, s->errors), SMP_INPUT,
                    s->errors, "--pad");
    }
    small_job_free(s);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(adds_up_by_hand),
    cmocka_unit_test(policies_are_ordered),
    cmocka_unit_test(distributions_have_their_moments),
    cmocka_unit_test(shapes_are_rounded),
    cmocka_unit_test(bad_inputs_are_named),
};
CHECK_MAIN(tests)
