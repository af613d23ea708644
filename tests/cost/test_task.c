/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost of tasks: closed forms at the ends of the roofline, tiles and waves, attention,
 * copies, every operation of the table, overheads, and the published matrix products.
 */
#include "config.h"

#include "read.h"

#include <math.h>
#include <stdio.h>

typedef struct machine {
    smp_cluster *cluster;
    smp_profile *profile;
    smp_comm comm;
    smp_program program;
} machine;

static void machine_open(machine *m, const char *name)
{
    memset(m, 0, sizeof *m);
    m->cluster = read_cluster(name);
    m->profile = read_profile(m->cluster);
    forget_fits(m->profile);
    m->comm = (smp_comm){.name = "shard", .group = SMP_GROUP_SHARD, .ranks = 8,
                         .placement = {8, 1, 8, 8, 1, 0}};
    m->program.comms = &m->comm;
    m->program.n_comm = 1;
}

static void machine_close(machine *m)
{
    smp_profile_destroy(m->profile);
    smp_cluster_destroy(m->cluster);
}

static void near(double got, double want, double relative)
{
    if (!(fabs(got - want) <= relative * fabs(want))) {
        fail_msg("%.9g is not %.9g within %g", got, want, relative);
    }
}

static smp_task task_of(smp_op op, uint64_t d0, uint64_t d1, uint64_t d2)
{
    return (smp_task){.name = "t", .op = (uint16_t)op, .dtype = SMP_BF16, .dtype2 = SMP_BF16,
                      .dims = {d0, d1, d2}};
}

static smp_cost cost_of(const machine *m, smp_task task)
{
    smp_cost cost;
    smp_cost_task(m->cluster, m->profile, &m->program, &task, &cost);
    return cost;
}

/* Whole waves of the largest tile: 12 x 22 tiles of 256 x 128 are 2 waves of 132; each tile
 * works through k and an overhead of 128. */
static void whole_waves(void **state)
{
    (void)state;
    machine m;
    machine_open(&m, "dgx-h100");
    const double k = 8192.0;
    const double rate = 989e12 * m.profile->matmul_efficiency.value / 132.0;
    near(smp_cost_matmul_s(m.profile, SMP_BF16, 1, 12 * 256, 22 * 128, 8192),
         2.0 * 2.0 * 256.0 * 128.0 * (k + 128.0) / rate, 1e-12);
    /* one more row of tiles starts another wave, or smaller tiles */
    assert_true(smp_cost_matmul_s(m.profile, SMP_BF16, 1, 12 * 256 + 1, 22 * 128, 8192) >
                1.02 * smp_cost_matmul_s(m.profile, SMP_BF16, 1, 12 * 256, 22 * 128, 8192));
    machine_close(&m);
}

/* 64 rows of a 7B model's projection: the weight passes through memory once, which is longer
 * than the products take at full rate. */
static void few_rows(void **state)
{
    (void)state;
    machine m;
    machine_open(&m, "dgx-h100");
    const smp_cost cost = cost_of(&m, task_of(SMP_OP_MATMUL, 64, 4096, 4096));
    const double full = 2.0 * 64.0 * 4096.0 * 4096.0 / (989e12 * 0.84);
    assert_true(smp_cost_seconds(&cost) > 3.0 * full);
    const double bytes = 2.0 * (64.0 * 4096.0 * 2.0 + 4096.0 * 4096.0);
    near(cost.memory_s, bytes / (3350e9 * m.profile->memory_efficiency.value), 1e-9);
    machine_close(&m);
}

/* Time never falls when a size grows, and doubles or more when a large size doubles. */
static void matmul_is_monotone(void **state)
{
    (void)state;
    machine m;
    machine_open(&m, "dgx-a100");
    uint64_t seed = 12345;
    for (int i = 0; i < 4000; i++) {
        uint64_t d[3];
        for (int j = 0; j < 3; j++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            d[j] = 1 + (seed >> 33) % (1u << (4 + (seed >> 60)));
        }
        const double s = smp_cost_matmul_s(m.profile, SMP_BF16, 1, d[0], d[1], d[2]);
        const double flops = 2.0 * (double)d[0] * (double)d[1] * (double)d[2];
        assert_true(s >= flops / (312e12 * m.profile->matmul_efficiency.value));
        assert_true(smp_cost_matmul_s(m.profile, SMP_BF16, 1, 2 * d[0], d[1], d[2]) >= s);
        assert_true(smp_cost_matmul_s(m.profile, SMP_BF16, 1, d[0], d[1] + 64, d[2]) >= s);
    }
    machine_close(&m);
}

/* Bytes over the reached rate: one element-wise addition of 2^28 elements reads two and writes
 * one. */
static void memory_bound(void **state)
{
    (void)state;
    machine m;
    machine_open(&m, "dgx-h100");
    const smp_cost cost = cost_of(&m, task_of(SMP_OP_ADD, 1u << 28, 0, 0));
    near(smp_cost_seconds(&cost) - cost.launch_s,
         3.0 * 2.0 * 268435456.0 / (3350e9 * m.profile->memory_efficiency.value), 1e-9);
    assert_ptr_equal(cost.basis, &m.profile->memory_efficiency);
    assert_true(cost.compute_s == 0.0);
    machine_close(&m);
}

static smp_task attention_of(smp_op op, uint64_t batch, uint64_t seq, uint64_t heads,
                             uint64_t head_dim)
{
    smp_task t = task_of(op, batch, seq, heads);
    t.flags = SMP_FLAG_CAUSAL;
    t.dims[3] = heads;
    t.dims[4] = head_dim;
    return t;
}

/* Full blocks, head size 128: flops / (peak x efficiency x seq / (seq + half)); causal counts
 * half of 4 b h s^2 d, backward 2.5 times that at its own efficiency. */
static void attention(void **state)
{
    (void)state;
    machine m;
    machine_open(&m, "dgx-h100");
    const double s = 8192.0;
    const double flops = 2.0 * 2.0 * 16.0 * s * s * 128.0;
    const double ramp = s / (s + m.profile->attention_half_seq.value);
    const smp_cost f = cost_of(&m, attention_of(SMP_OP_ATTENTION, 2, 8192, 16, 128));
    const smp_cost b = cost_of(&m, attention_of(SMP_OP_ATTENTION_GRAD, 2, 8192, 16, 128));
    near(f.compute_s, flops / (989e12 * m.profile->attention_efficiency.value * ramp), 1e-9);
    near(b.compute_s,
         2.5 * flops / (989e12 * m.profile->attention_grad_efficiency.value * ramp), 1e-9);
    assert_ptr_equal(f.basis, &m.profile->attention_efficiency);
    /* FlashAttention-3 reaches 602 TFLOP/s here, and 522 backward */
    near(flops / f.compute_s, 602e12, 0.02);
    near(2.5 * flops / b.compute_s, 522e12, 0.02);
    /* one head of one short sequence leaves multiprocessors idle */
    const smp_cost one = cost_of(&m, attention_of(SMP_OP_ATTENTION, 1, 1024, 1, 128));
    const smp_cost all = cost_of(&m, attention_of(SMP_OP_ATTENTION, 1, 1024, 16, 128));
    assert_true(one.compute_s > all.compute_s / 2.0);
    machine_close(&m);
}

/* Two GPUs of a DGX A100 share a link to the host; those of a DGX H100 do not. */
static void host_copies(void **state)
{
    (void)state;
    machine m;
    machine_open(&m, "dgx-a100");
    smp_errors *errors = smp_errors_create();
    const smp_task store = task_of(SMP_OP_STORE, 1u << 28, 0, 0);
    const double alone = 2.0 * 268435456.0 / (31.5e9 * m.profile->copy_efficiency.value);
    smp_cost cost = cost_of(&m, store);
    near(smp_cost_seconds(&cost), m.profile->copy_latency_s.value + 2.0 * alone, 1e-9);
    assert_ptr_equal(cost.basis, &m.cluster->pcie_Bps);
    assert_int_equal(smp_cluster_set_gpus(m.cluster, 1, errors), SMP_OK);
    cost = cost_of(&m, store);
    near(smp_cost_seconds(&cost), m.profile->copy_latency_s.value + alone, 1e-9);
    smp_errors_destroy(errors);
    machine_close(&m);
}

/* Every operation on every shipped cluster has a finite cost with a basis and a spread. */
static void every_operation(void **state)
{
    static const char *const names[] = {"p3dn.24xlarge", "p4d.24xlarge", "p5.48xlarge",
                                        "dgx-b200", "l40s-pcie", "cpu"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        machine m;
        machine_open(&m, names[i]);
        for (int op = 0; op < SMP_OPS; op++) {
            smp_task t = task_of((smp_op)op, 2, 512, 8);
            t.dims[3] = 2;
            t.dims[4] = 64;
            const smp_cost a = cost_of(&m, t);
            const smp_cost b = cost_of(&m, t);
            const double s = smp_cost_seconds(&a);
            assert_true(isfinite(s) && s > 0.0 && s < 10.0);
            assert_true(s == smp_cost_seconds(&b));
            assert_non_null(a.basis);
            assert_true(a.spread > 0.0);
        }
        machine_close(&m);
    }
}

/* Twice as many ranks as cores: each kernel takes twice as long. */
static void crowded_host(void **state)
{
    (void)state;
    machine m;
    machine_open(&m, "cpu");
    smp_errors *errors = smp_errors_create();
    const smp_task task = task_of(SMP_OP_MATMUL, 512, 512, 512);
    const smp_cost before = cost_of(&m, task);
    assert_int_equal(smp_cluster_set_gpus(m.cluster, 2 * m.cluster->cores, errors), SMP_OK);
    near(cost_of(&m, task).compute_s, 2.0 * before.compute_s, 1e-12);
    smp_errors_destroy(errors);
    machine_close(&m);
}

static void collective_tasks(void **state)
{
    (void)state;
    machine m;
    machine_open(&m, "dgx-h100");
    const smp_cost task = cost_of(&m, task_of(SMP_OP_ALL_GATHER, 1u << 28, 0, 0));
    smp_cost direct;
    smp_cost_collective(m.cluster, m.profile, SMP_OP_ALL_GATHER, &m.comm.placement,
                        2u * (1u << 28), &direct);
    assert_true(smp_cost_seconds(&task) == smp_cost_seconds(&direct));
    assert_string_equal(smp_algorithm_name(task.algorithm), "Ring");
    assert_string_equal(smp_protocol_name(task.protocol), "Simple");
    machine_close(&m);
}

/* H100, ring of eight: 24 channels after doubling, each with 4 MiB + 512 KiB + 4.69 MiB. */
static void overheads(void **state)
{
    (void)state;
    machine m;
    machine_open(&m, "dgx-h100");
    assert_int_equal(smp_cost_comm_bytes(m.cluster, m.profile, &m.comm),
                     24u * ((4u << 20) + (512u << 10) + 4915200u));
    smp_comm tensor = m.comm;
    tensor.group = SMP_GROUP_TENSOR; /* reduces: NVLS, 16 channels x 8 heads x 2 MiB more */
    assert_int_equal(smp_cost_comm_bytes(m.cluster, m.profile, &tensor),
                     smp_cost_comm_bytes(m.cluster, m.profile, &m.comm) +
                         16u * 8u * (2u << 20));
    smp_comm alone = m.comm;
    alone.ranks = 1;
    assert_int_equal(smp_cost_comm_bytes(m.cluster, m.profile, &alone), 0);
    const uint64_t context = smp_cost_context_bytes(m.profile);
    assert_true(context > 400u << 20 && context < 2048u << 20);
    machine_close(&m);
    machine_open(&m, "cpu");
    assert_int_equal(smp_cost_comm_bytes(m.cluster, m.profile, &m.comm), 0);
    assert_int_equal(smp_cost_context_bytes(m.profile), 0);
    machine_close(&m);
}

/* Mean of log(predicted / measured) over the published bf16 products of one GPU, by name in
 * the file.  Columns: id, op, m, n, k, gpu, dtype, tflops, time_ms, source. */
static double mean_log_error(FILE *file, const char *gpu, const machine *m, int *count_p)
{
    char line[512];
    double sum = 0.0;
    *count_p = 0;
    rewind(file);
    while (fgets(line, sizeof line, file) != NULL) {
        unsigned long long size[3];
        char name[64], dtype[16];
        double tflops, ms;
        if (sscanf(line, "%*[^,],%*[^,],%llu,%llu,%llu,%63[^,],%15[^,],%lf,%lf", &size[0],
                   &size[1], &size[2], name, dtype, &tflops, &ms) == 7 &&
            strncmp(name, gpu, strlen(gpu)) == 0 && strcmp(dtype, "bf16") == 0) {
            const smp_cost cost =
                cost_of(m, task_of(SMP_OP_MATMUL, size[0], size[1], size[2]));
            sum += log(smp_cost_seconds(&cost) / (ms * 1e-3));
            ++*count_p;
        }
    }
    return *count_p > 0 ? sum / *count_p : 0.0;
}

static void published_products(void **state)
{
    static const struct { const char *gpu, *cluster; } cases[] = {
        {"A100", "dgx-a100"}, {"H100", "dgx-h100"}, {"H200", "dgx-h200"}, {"B200", "dgx-b200"}};
    (void)state;
    smp_text path = {0};
    const char *data = getenv("SMP_SHARED_DATA");
    const char *source = getenv("srcdir");
    if (data != NULL) {
        smp_text_add(&path, "%s/measured/gemm.csv", data);
    } else {
        smp_text_add(&path, "%s/../shared/data/measured/gemm.csv",
                     source != NULL ? source : ".");
    }
    FILE *file = fopen(path.data, "r");
    smp_text_free(&path);
    if (file == NULL) {
        print_message("measured/gemm.csv is absent: skipped\n");
        skip();
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        machine m;
        int count;
        machine_open(&m, cases[i].cluster);
        m.profile->sustained_flops.value = 0; /* most were timed for a few milliseconds */
        const double error = mean_log_error(file, cases[i].gpu, &m, &count);
        assert_true(count > 1000);
        if (fabs(error) > 0.05) {
            fail_msg("%s: mean log error %.3f over %d products", cases[i].gpu, error, count);
        }
        machine_close(&m);
    }
    fclose(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_waves),      cmocka_unit_test(few_rows),
        cmocka_unit_test(matmul_is_monotone), cmocka_unit_test(memory_bound),
        cmocka_unit_test(attention),        cmocka_unit_test(host_copies),
        cmocka_unit_test(every_operation),  cmocka_unit_test(crowded_host),
        cmocka_unit_test(collective_tasks), cmocka_unit_test(overheads),
        cmocka_unit_test(published_products),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
