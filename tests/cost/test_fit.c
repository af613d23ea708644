/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fits: data made from known parameters give them back, wrong tables are told with their
 * place, what is written reads back, sizes outside the range are flagged, and on the published
 * tables the error of held-back rows stays below what docs/costs.md promises.
 */
#include "config.h"

#include "read.h"

#include "base/numeric.h"
#include "cost/fit_make.h"

#include <math.h>
#include <stdio.h>
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

static double random_unit(uint64_t i, uint32_t word)
{
    uint32_t out[4];
    smp_random4(42, 0, i, out);
    return ((double)out[word] + 0.5) / 4294967296.0;
}

static void near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance)) {
        fail_msg("%.9g is not %.9g within %g", got, want, tolerance);
    }
}

static void set_axis(smp_fit_axis *axis, double from, double step, uint32_t n)
{
    axis->n = n;
    for (uint32_t i = 0; i < n; i++) {
        axis->at[i] = from + step * i;
    }
}

/* g(x, y) = 0.3 - 0.1 x + 0.05 y, in octaves from the first knots, has no second differences:
 * the lattice must find it; every tenth row is off by a factor of e and must not matter. */
static void lattice_finds_a_plane(void **state)
{
    enum { N = 600 };
    static double at[N][SMP_FIT_AXES], y[N];
    (void)state;
    smp_arena *arena = smp_arena_create();
    smp_fit fit = {.n_axis = 2};
    set_axis(&fit.axis[0], 4.0, 1.0, 6);
    set_axis(&fit.axis[1], 10.0, 2.0, 4);
    for (uint32_t i = 0; i < N; i++) {
        const double u = 5.0 * random_unit(i, 0);
        const double v = 6.0 * random_unit(i, 1);
        at[i][0] = exp2(4.0 + u);
        at[i][1] = exp2(10.0 + v);
        y[i] = 0.3 - 0.1 * u + 0.05 * v + 0.02 * (random_unit(i, 2) - 0.5) +
               (i % 10 == 0 ? 1.0 : 0.0);
    }
    smp_fit_lattice(&fit, arena, (const double(*)[SMP_FIT_AXES])at, y, N, 0.1);
    for (uint32_t i = 0; i < fit.axis[0].n; i++) {
        for (uint32_t j = 0; j < fit.axis[1].n; j++) {
            near(fit.values[i * 4 + j], 0.3 - 0.1 * i + 0.1 * j, 0.02);
        }
    }
    smp_arena_destroy(arena);
}

/* Half-way between knots the value is the mean; beyond the edge that of the edge, flagged. */
static void evaluation(void **state)
{
    double values[] = {0.0, 0.2, 0.4, 1.0};
    smp_fit fit = {.n_axis = 2, .values = values, .low = {2.0, 16.0}, .high = {4.0, 64.0}};
    (void)state;
    set_axis(&fit.axis[0], 1.0, 1.0, 2);
    set_axis(&fit.axis[1], 4.0, 2.0, 2);
    bool outside = false;
    near(smp_fit_log(&fit, (const double[]){2.0, 64.0}, &outside), 0.2, 1e-12);
    near(smp_fit_log(&fit, (const double[]){exp2(1.5), 32.0}, &outside), 0.4, 1e-12);
    assert_false(outside);
    near(smp_fit_log(&fit, (const double[]){8.0, 1e9}, &outside), 1.0, 1e-12);
    assert_true(outside);
    outside = false;
    near(smp_fit_log(&fit, (const double[]){1.0, 16.0}, &outside), 0.0, 1e-12);
    assert_true(outside);
}

/* Within 4 %: two weak priors pull a little. */
static void dispatch_gives_its_parameters_back(void **state)
{
    enum { N = 200 };
    static smp_fit_row rows[N];
    static const smp_fit_row *list[N];
    static const double truth[] = {20e-6, 50e-9, 0.8e-12, 1.1, 0.87};
    (void)state;
    for (uint32_t i = 0; i < N; i++) {
        const uint32_t nodes = 1u << (i % 3);
        rows[i] = (smp_fit_row){
            .kind = SMP_FIT_DISPATCH, .port_Bps = 50e9,
            .dispatch = {.tokens = 256u << (i % 10), .hidden = 2048 * (1 + i % 4),
                         .top_k = 1 + i % 8, .ranks = 8 * nodes, .nodes = nodes,
                         .element_bytes = 1.0, .multiprocessors = i % 2 == 0 ? 8 : 24}};
        rows[i].seconds = smp_fit_dispatch_s(truth, &rows[i].dispatch, 50e9);
        list[i] = &rows[i];
    }
    double found[5];
    assert_true(smp_fit_dispatch_parameters(list, N, found));
    for (int i = 0; i < 5; i++) {
        near(found[i] / truth[i], 1.0, 0.04);
    }
}

/* ------------------------------------------------------------------ tables */

static smp_profile *h100(void)
{
    smp_errors *errors = smp_errors_create();
    smp_profile *profile = NULL;
    assert_int_equal(smp_profile_read("h100-sxm", errors, &profile), SMP_OK);
    smp_errors_destroy(errors);
    return profile;
}

static const char good_table[] =
    "op,gpu,dtype,m,n,k,time_ms,source\n"
    "gemm,h100-sxm,bf16,4096,4096,4096,0.2,\"ours, \"\"quoted\"\"\"\r\n"
    "\n"
    "gemm,A100,bf16,4096,4096,4096,0.5,ours\n"
    "conv,h100-sxm,bf16,4096,4096,4096,0.5,ours\n"
    "gemm,H100 SXM 80GB,bf16,1024,4096,4096,0.06,ours";

static void tables_are_read(void **state)
{
    (void)state;
    smp_errors *errors = smp_errors_create();
    smp_profile *profile = h100();
    smp_fit_set set;
    smp_fit_set_init(&set);
    assert_int_equal(smp_fit_rows_parse(good_table, sizeof good_table - 1, "t.csv", profile,
                                        NULL, errors, &set), SMP_OK);
    assert_int_equal(set.n, 2);
    assert_int_equal(set.other_gpu, 1);
    assert_int_equal(set.unused, 1);
    assert_int_equal(set.n_source, 2);
    assert_string_equal(set.sources[0].key, "ours, \"quoted\"");
    assert_true(set.rows[0].at[0] == 4096.0 && set.rows[0].seconds == 0.2e-3);
    assert_int_equal(set.rows[1].line, 6);
    smp_fit_set_free(&set);
    smp_profile_destroy(profile);
    smp_errors_destroy(errors);
}

static void wrong_tables_are_told(void **state)
{
    static const struct { const char *text, *part; } cases[] = {
        {"", "t.csv:1:1: the file is empty"},
        {"gpu,m\nx,1\n", "t.csv:1:1: the header has no column \"op\""},
        {"op,gpu,dtype,m,n,k,time_ms\ngemm,h100-sxm,bf16,12x,4,4,1\n",
         "t.csv:2:20: m \"12x\": must be a number"},
        {"op,gpu,dtype,m,n,k,time_ms\ngemm,h100-sxm,bf16,4,4,4,-1\n", "t.csv:2:26: time_ms"},
        {"op,gpu,dtype,m,n,k,time_ms\ngemm,h100-sxm,bf16,4,4,4,nan\n", "t.csv:2:26: time_ms"},
        {"op,gpu,dtype,m,n,k,time_ms\ngemm,h100-sxm,bf16,4,4,1e999,1\n", "t.csv:2:24: k"},
        {"op,gpu,dtype,m,n,k,time_ms\ngemm,h100-sxm,bf16,4,4,,1\n", "t.csv:2:24: k is missing"},
        {"op,gpu,dtype,m\ngemm,h100-sxm,bf16,4\n", "t.csv:2:1: n is missing"},
        {"op,gpu\ngemm,h100-sxm,3\n", "t.csv:2:1: 3 fields: the header names 2"},
        {"op,gpu\n\"gemm,h100-sxm\n", "t.csv:2:1: a quoted field does not end"},
        {"op,gpu,cluster,ranks,gpus_per_node,message_bytes,time_us\n"
         "all_reduce,h100-sxm,nowhere,8,8,1024,10\n", "nowhere"}};
    (void)state;
    smp_profile *profile = h100();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        smp_errors *errors = smp_errors_create();
        smp_fit_set set;
        smp_fit_set_init(&set);
        assert_int_equal(smp_fit_rows_parse(cases[i].text, strlen(cases[i].text), "t.csv",
                                            profile, NULL, errors, &set), SMP_INPUT);
        assert_int_equal(smp_errors_count(errors), 1);
        expect_failure(errors, cases[i].part);
        smp_fit_set_free(&set);
        smp_errors_destroy(errors);
    }
    smp_profile_destroy(profile);
}

/* ------------------------------------------------------------------ round trip */

/* Products that take 1.25 times what the formula says. */
static char *slow_products(const smp_profile *profile)
{
    smp_text text = {0};
    smp_text_add(&text, "op,gpu,dtype,m,n,k,time_ms,source\n");
    for (uint32_t i = 0; i < 120; i++) {
        smp_task task = {.op = SMP_OP_MATMUL, .dtype = SMP_BF16, .dtype2 = SMP_BF16,
                         .dims = {512u << (i % 4), 1024u << (i % 5), 1024u << (i % 3)}};
        smp_cost cost;
        smp_cost_kernel_model(profile, &task, &cost);
        smp_text_add(&text, "matmul,h100-sxm,bf16,%llu,%llu,%llu,%.9g,made\n",
                     (unsigned long long)task.dims[0], (unsigned long long)task.dims[1],
                     (unsigned long long)task.dims[2], 1.25e3 * smp_cost_seconds(&cost));
    }
    return text.data;
}

/* A directory and the files in it. */
static void remove_files(const char *path)
{
    DIR *all = opendir(path);
    struct dirent *entry;
    char file[400];

    assert_non_null(all);
    while ((entry = readdir(all)) != NULL) {
        (void)snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        (void)unlink(file);
    }
    (void)closedir(all);
    assert_int_equal(rmdir(path), 0);
}

static void profiles_with_fits_read_back(void **state)
{
    (void)state;
    char directory[] = "/tmp/smp-fit-XXXXXX";
    assert_non_null(mkdtemp(directory));
    char table[64];
    char first[64];
    char second[64];
    (void)snprintf(table, sizeof table, "%s/t.csv", directory);
    (void)snprintf(first, sizeof first, "%s/a.json", directory);
    (void)snprintf(second, sizeof second, "%s/b.json", directory);
    smp_errors *errors = smp_errors_create();
    smp_profile *profile = h100();
    char *text = slow_products(profile);
    FILE *quiet = fopen("/dev/null", "w");
    assert_int_equal(smp_file_write(table, text, strlen(text), errors), SMP_OK);
    const char *files[] = {table};
    smp_calibrate_options o = {.files = files, .n_file = 1, .profile = "h100-sxm",
                               .output = first};
    assert_int_equal(smp_calibrate(&o, quiet, errors), SMP_OK);
    struct stat info;
    char plots[64];
    (void)snprintf(plots, sizeof plots, "%s/plots", directory);
    o.plots = plots; /* made, and whatever becomes of the plots, the profile is there */
    assert_int_equal(unlink(first), 0);
    const smp_status plotted = smp_calibrate(&o, quiet, errors);
    assert_true(plotted == SMP_OK || plotted == SMP_SYSTEM); /* without gnuplot */
    smp_errors_clear(errors);
    assert_int_equal(stat(first, &info), 0);
    assert_int_equal(stat(plots, &info), 0);
    assert_true(S_ISDIR(info.st_mode));
    remove_files(plots);
    o.plots = NULL;
    o.profile = first; /* named a.json: the rows name the GPU of another profile */
    o.gpu = "h100-sxm";
    o.output = second;
    assert_int_equal(smp_calibrate(&o, quiet, errors), SMP_OK);
    smp_profile *a = NULL;
    smp_profile *b = NULL;
    assert_int_equal(smp_profile_read(first, errors, &a), SMP_OK);
    assert_int_equal(smp_profile_read(second, errors, &b), SMP_OK);
    assert_string_equal(a->text, b->text);
    assert_null(a->fits[SMP_FIT_ATTENTION]); /* the old fits are gone */
    bool outside = false;
    near(smp_fit_log(a->fits[SMP_FIT_MATMUL], (const double[]){1024, 4096, 2048}, &outside),
         log(1.25), 0.005);
    assert_false(outside);
    smp_profile_destroy(a);
    smp_profile_destroy(b);
    smp_profile_destroy(profile);
    smp_errors_destroy(errors);
    (void)fclose(quiet);
    free(text);
    (void)unlink(table);
    (void)unlink(first);
    (void)unlink(second);
    assert_int_equal(rmdir(directory), 0);
}

/* ------------------------------------------------------------------ in costs */

static void costs_say_what_they_rest_on(void **state)
{
    (void)state;
    smp_cluster *cluster = read_cluster("dgx-h100");
    smp_profile *profile = read_profile(cluster);
    smp_program program = {0};
    smp_task task = {.op = SMP_OP_MATMUL, .dtype = SMP_BF16, .dtype2 = SMP_BF16,
                     .dims = {4096, 8192, 4096}};
    smp_cost cost;
    const uint64_t heap = smp_heap_calls();
    smp_cost_task(cluster, profile, &program, &task, &cost);
    assert_ptr_equal(cost.fit, profile->fits[SMP_FIT_MATMUL]);
    assert_false(cost.extrapolated || cost.unverified);
    assert_true(cost.spread == cost.fit->spread);
    assert_non_null(strstr(cost.basis->source, "aiconfigurator"));
    task.op = SMP_OP_MATMUL_DW;
    smp_cost_task(cluster, profile, &program, &task, &cost);
    assert_true(cost.unverified && cost.spread == 1.5 * cost.fit->spread);
    task.op = SMP_OP_MATMUL;
    task.dims[0] = 16; /* fewer rows than were measured */
    smp_cost model;
    smp_cost_task(cluster, profile, &program, &task, &cost);
    smp_cost_kernel_model(profile, &task, &model);
    assert_true(cost.extrapolated && cost.spread == 2.0 * cost.fit->spread);
    assert_true(smp_cost_seconds(&cost) < 2.0 * smp_cost_seconds(&model));
    task.dtype = SMP_F32;
    smp_cost_task(cluster, profile, &program, &task, &cost);
    assert_null(cost.fit);
    const smp_placement p = {16, 2, 8, 8, 1, 1};
    smp_cost_collective(cluster, profile, SMP_OP_ALL_GATHER, &p, 1u << 28, &cost);
    assert_true(cost.unverified && cost.spread == 2.0 * cost.fit->spread);
    assert_true(smp_heap_calls() == heap);
    smp_profile_destroy(profile);
    smp_cluster_destroy(cluster);
}

/* All shipped fits at any size: finite, positive, and never far from the formula. */
static void shipped_fits_are_sane(void **state)
{
    static const char *const clusters[] = {"dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200"};
    (void)state;
    for (size_t c = 0; c < 4; c++) {
        smp_cluster *cluster = read_cluster(clusters[c]);
        smp_profile *profile = read_profile(cluster);
        for (uint32_t i = 0; i < 4000; i++) {
            for (int k = 0; k < SMP_FIT_KINDS; k++) {
                const smp_fit *fit = profile->fits[k];
                double at[SMP_FIT_AXES];
                bool outside = false;
                for (uint32_t d = 0; fit != NULL && d < fit->n_axis; d++) {
                    at[d] = exp2(30.0 * random_unit(i + 4000u * d, (uint32_t)d));
                }
                const double g = fit == NULL ? 0.0 : smp_fit_log(fit, at, &outside);
                assert_true(fabs(g) < 3.0);
            }
        }
        assert_non_null(profile->fits[SMP_FIT_MATMUL]);
        assert_non_null(profile->fits[SMP_FIT_ATTENTION]);
        assert_non_null(profile->fits[SMP_FIT_ALL_REDUCE_NODES]);
        smp_profile_destroy(profile);
        smp_cluster_destroy(cluster);
    }
}

/* ------------------------------------------------------------------ published tables */

/* Medians of held-back rows, and of held-back shapes, clusters or numbers of nodes. */
static const double most_median[SMP_FIT_KINDS] = {
    [SMP_FIT_MATMUL] = 0.05,         [SMP_FIT_ATTENTION] = 0.08,
    [SMP_FIT_ALL_GATHER] = 0.08,     [SMP_FIT_REDUCE_SCATTER] = 0.08,
    [SMP_FIT_ALL_REDUCE] = 0.08,     [SMP_FIT_ALL_TO_ALL] = 0.08,
    [SMP_FIT_ALL_REDUCE_NODES] = 0.12, [SMP_FIT_EXPERTS] = 0.12,
    [SMP_FIT_DISPATCH] = 0.15,       [SMP_FIT_COMBINE] = 0.15};

static const char *shared_table(char *path, size_t size, const char *name)
{
    const char *shared = getenv("SMP_SHARED_DATA");
    const char *srcdir = getenv("srcdir");
    (void)snprintf(path, size, "%s%s/measured/%s.csv",
                   shared != NULL ? shared : srcdir != NULL ? srcdir : ".",
                   shared != NULL ? "" : "/../shared/data", name);
    return access(path, R_OK) == 0 ? path : NULL;
}

static void check_gpu(const char *name, char paths[][512], size_t n_path)
{
    smp_errors *errors = smp_errors_create();
    smp_profile *profile = NULL;
    assert_int_equal(smp_profile_read(name, errors, &profile), SMP_OK);
    smp_fit_set set;
    smp_fit_set_init(&set);
    for (size_t i = 0; i < n_path; i++) {
        assert_int_equal(smp_fit_rows_read(paths[i], profile, NULL, errors, &set), SMP_OK);
    }
    for (int k = 0; k < SMP_FIT_KINDS; k++) {
        const smp_fit_row **rows = NULL;
        const size_t n = smp_fit_select(&set, (smp_fit_kind)k, &rows);
        if (n >= 20) {
            smp_fit_scores scores;
            smp_fit_validate((smp_fit_kind)k, rows, n, &scores, NULL);
            if (scores.rows.median > most_median[k] || scores.shapes.median > most_median[k]) {
                fail_msg("%s %s: %.1f %% of rows, %.1f %% of shapes", name,
                         smp_fit_info_of((smp_fit_kind)k)->op, 100.0 * scores.rows.median,
                         100.0 * scores.shapes.median);
            }
            assert_true(scores.fitted.median <= scores.model.median);
        }
        free(rows);
    }
    smp_fit_set_free(&set);
    smp_profile_destroy(profile);
    smp_errors_destroy(errors);
}

static void held_back_rows(void **state)
{
    static const char *const names[] = {"gemm", "attention", "collectives", "moe_gemm",
                                        "moe_a2a"};
    static const char *const gpus[] = {"a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200-sxm"};
    char paths[5][512];
    (void)state;
    for (size_t i = 0; i < 5; i++) {
        if (shared_table(paths[i], sizeof paths[i], names[i]) == NULL) {
            (void)fprintf(stderr, "measured/%s.csv is absent: skipped\n", names[i]);
            skip();
        }
    }
    for (size_t g = 0; g < 4; g++) {
        check_gpu(gpus[g], paths, 5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lattice_finds_a_plane), cmocka_unit_test(evaluation),
        cmocka_unit_test(dispatch_gives_its_parameters_back),
        cmocka_unit_test(tables_are_read),       cmocka_unit_test(wrong_tables_are_told),
        cmocka_unit_test(profiles_with_fits_read_back),
        cmocka_unit_test(costs_say_what_they_rest_on),
        cmocka_unit_test(shipped_fits_are_sane), cmocka_unit_test(held_back_rows)};
    return cmocka_run_group_tests_name("fit", tests, NULL, NULL);
}
