/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reader of clusters: every shipped file, overrides of the count, the text that plan files
 * keep, and bad input, all of it told at once.
 */
#include "config.h"

#include "read.h"

#include <math.h>

static const char *const shipped[] = {
    "p3dn.24xlarge", "p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge", "p5e.48xlarge",
    "p5en.48xlarge", "p6-b200.48xlarge", "dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200",
    "l40s-pcie", "cpu"};
enum { N_SHIPPED = sizeof shipped / sizeof shipped[0] };

static void shipped_clusters_read(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_SHIPPED; i++) {
        smp_cluster *cluster = read_cluster(shipped[i]);
        smp_profile *profile = read_profile(cluster);
        assert_string_equal(smp_cluster_name(cluster), shipped[i]);
        assert_string_equal(smp_profile_name(profile), smp_cluster_gpu(cluster));
        assert_int_equal(smp_cluster_gpus(cluster),
                         smp_cluster_nodes(cluster) * smp_cluster_gpus_per_node(cluster));
        assert_true(cluster->memory_bytes.value > 0.0);
        assert_non_null(cluster->link_Bps.source);
        smp_profile_destroy(profile);
        smp_cluster_destroy(cluster);
    }
}

/* What the driver reports, in MiB. */
static void capacities(void **state)
{
    static const struct { const char *name; double mib; } cases[] = {
        {"p4d.24xlarge", 40960.0}, {"p4de.24xlarge", 81920.0}, {"p5.48xlarge", 81559.0},
        {"dgx-h200", 143771.0}, {"dgx-b200", 183359.0}, {"l40s-pcie", 46068.0}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        smp_cluster *cluster = read_cluster(cases[i].name);
        assert_true(cluster->memory_bytes.value == cases[i].mib * 1048576.0);
        smp_cluster_destroy(cluster);
    }
}

static void counts_are_overridden(void **state)
{
    (void)state;
    smp_errors *errors = smp_errors_create();
    smp_cluster *cluster = read_cluster("dgx-h100");
    assert_int_equal(smp_cluster_set_gpus(cluster, 7, errors), SMP_OK);
    assert_int_equal(smp_cluster_nodes(cluster), 1);
    assert_int_equal(smp_cluster_gpus(cluster), 7);
    assert_int_equal(smp_cluster_set_gpus(cluster, 24, errors), SMP_OK);
    assert_int_equal(smp_cluster_nodes(cluster), 3);
    assert_int_equal(smp_cluster_set_gpus(cluster, 25, errors), SMP_OK);
    assert_int_equal(smp_cluster_nodes(cluster), 4);
    assert_int_equal(smp_cluster_set_nodes(cluster, 5, errors), SMP_OK);
    assert_int_equal(smp_cluster_gpus(cluster), 40);
    assert_int_equal(smp_cluster_set_gpus(cluster, 0, errors), SMP_INPUT);
    assert_int_equal(smp_cluster_set_nodes(cluster, 0, errors), SMP_INPUT);
    assert_int_equal(smp_cluster_set_nodes(cluster, UINT32_MAX, errors), SMP_INPUT);
    assert_int_equal(smp_cluster_gpus(cluster), 40);
    smp_cluster_destroy(cluster);
    smp_cluster *cpu = read_cluster("cpu");
    const uint32_t cores = smp_cluster_gpus(cpu);
    const double memory = cpu->memory_bytes.value * cores;
    const uint32_t many = cores <= 256 ? 4 * cores : 1024; /* threads */
    assert_int_equal(smp_cluster_set_gpus(cpu, many, errors), SMP_OK);
    assert_int_equal(smp_cluster_nodes(cpu), 1);
    assert_int_equal(smp_cluster_gpus(cpu), many);
    assert_true(fabs(cpu->memory_bytes.value * many / memory - 1.0) < 1e-12);
    assert_int_equal(smp_cluster_set_gpus(cpu, 1, errors), SMP_OK);
    assert_int_equal(smp_cluster_gpus_per_node(cpu), cores);
    assert_true(fabs(cpu->memory_bytes.value * cores / memory - 1.0) < 1e-12);
    assert_int_equal(smp_cluster_set_gpus(cpu, 1025, errors), SMP_INPUT);
    assert_int_equal(smp_cluster_set_nodes(cpu, 2, errors), SMP_INPUT);
    expect_failure(errors, "has no network");
    smp_cluster_destroy(cpu);
    smp_errors_destroy(errors);
}

/* Parsed from its own text, a cluster is the same; "auto" has become a number. */
static void text_reads_back(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_SHIPPED; i++) {
        smp_errors *errors = smp_errors_create();
        smp_cluster *a = read_cluster(shipped[i]);
        smp_cluster *b = NULL;
        assert_null(strstr(a->text, "\"auto\""));
        assert_int_equal(smp_cluster_parse(a->text, strlen(a->text), "plan.json", a->name,
                                           errors, &b),
                         SMP_OK);
        assert_string_equal(a->text, b->text);
        assert_string_equal(a->name, b->name);
        assert_int_equal(a->gpus_per_node, b->gpus_per_node);
        assert_true(a->host_memory_bytes.value == b->host_memory_bytes.value);
        smp_cluster_destroy(a);
        smp_cluster_destroy(b);
        smp_errors_destroy(errors);
    }
}

static size_t parse_fails(const char *text, smp_errors *errors)
{
    smp_cluster *cluster = NULL;
    assert_int_equal(smp_cluster_parse(text, strlen(text), "bad.json", "bad", errors, &cluster),
                     SMP_INPUT);
    assert_null(cluster);
    return smp_errors_count(errors);
}

static void all_problems_at_once(void **state)
{
    static const char text[] = "{\"format\": \"smp-cluster-1\",\n"
                               " \"gpus\": \"h100-sxm\",\n"
                               " \"nodes\": -1,\n"
                               " \"gpus_per_node\": \"eight\",\n"
                               " \"gpu_memory_bytes\": {\"value\": 80e9},\n"
                               " \"link\": {\"kind\": \"nvlonk\", \"Bps\": 450e9},\n"
                               " \"network\": {\"nics\": 8, \"nic_Bps\": {\"value\": 1e308,\n"
                               "   \"source\": \"x\"}, \"latency_s\": {\"value\": 0,\n"
                               "   \"source\": \"\"}},\n"
                               " \"host\": null}";
    (void)state;
    smp_errors *errors = smp_errors_create();
    assert_true(parse_fails(text, errors) >= 9);
    expect_failure(errors, "bad.json:2:");
    expect_failure(errors, "gpus");        /* unknown, and "gpu" is missing */
    expect_failure(errors, "bad.json:3:"); /* nodes -1 */
    expect_failure(errors, "bad.json:4:"); /* gpus_per_node is no number */
    expect_failure(errors, "source");      /* a figure without one */
    expect_failure(errors, "must be one of pcie, nvlink, nvlink-mesh, memory");
    expect_failure(errors, "bad.json:7:"); /* 1e308 */
    expect_failure(errors, "is empty");
    expect_failure(errors, "host");
    smp_errors_destroy(errors);
}

/* One change to a good file, and what must be said about it. */
static void single_problems(void **state)
{
    static const struct { const char *old, *with, *part; } cases[] = {
        {"smp-cluster-1", "smp-cluster-9", "must be \"smp-cluster-1\""},
        {"\"gpus_per_node\"", "\"gpu_per_node\"", "gpus_per_node"},
        {"\"nodes\": 8", "\"nodes\": 1.5", "nodes"},
        {"\"nodes\": 8", "\"nodes\": 65537", "65536"},
        {"\"kind\": \"nvlink\"", "\"kind\": \"pcie\"", "switch_reduction true"},
        {"\"gpus_per_link\": 1", "\"gpus_per_link\": 9", "at most gpus_per_node, 8"},
        {"\"processor\": \"intel\"", "\"processor\": \"arm\"", "intel, amd, other"},
        {"\"network\"", "\"networks\"", "network"}};
    (void)state;
    smp_cluster *cluster = read_cluster("dgx-h100");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        smp_errors *errors = smp_errors_create();
        char *text = replaced(cluster->text, cases[i].old, cases[i].with);
        (void)parse_fails(text, errors);
        expect_failure(errors, cases[i].part);
        free(text);
        smp_errors_destroy(errors);
    }
    smp_cluster_destroy(cluster);
}

static void nonsense(void **state)
{
    static const char *const texts[] = {
        "", "[]", "null", "12", "{", "{}", "\xff\xfe", "{\"format\": NaN}",
        "{\"nodes\": 1, \"nodes\": 2}", "{\"link\": [], \"host\": 3, \"network\": \"\"}"};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        smp_errors *errors = smp_errors_create();
        assert_true(parse_fails(texts[i], errors) > 0);
        smp_errors_destroy(errors);
    }
    smp_errors *errors = smp_errors_create();
    smp_cluster *cluster = NULL;
    assert_int_not_equal(smp_cluster_read("no-such-cluster", errors, &cluster), SMP_OK);
    smp_cluster_destroy(NULL);
    smp_errors_destroy(errors);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shipped_clusters_read), cmocka_unit_test(capacities),
        cmocka_unit_test(counts_are_overridden), cmocka_unit_test(text_reads_back),
        cmocka_unit_test(all_problems_at_once),  cmocka_unit_test(single_problems),
        cmocka_unit_test(nonsense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
