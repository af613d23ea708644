/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tasks of experts with what was measured: grouped products, exchanges inside a node, fused
 * kernels; and the tasks of a layer together, beside the published times of layers.
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

static void machine_open(machine *m, const char *name, uint32_t nodes)
{
    memset(m, 0, sizeof *m);
    m->cluster = read_cluster(name);
    m->profile = read_profile(m->cluster);
    m->comm = (smp_comm){.name = "expert", .group = SMP_GROUP_EXPERT, .ranks = 8 * nodes,
                         .placement = {8 * nodes, nodes, 8, 8, 1, nodes > 1}};
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

static smp_cost cost_of(const machine *m, const smp_task *task)
{
    smp_cost cost;
    smp_cost_task(m->cluster, m->profile, &m->program, task, &cost);
    return cost;
}

static double seconds_of(const machine *m, const smp_task *task)
{
    const smp_cost cost = cost_of(m, task);
    return smp_cost_seconds(&cost);
}

static smp_task task_of(smp_op op)
{
    return (smp_task){.name = "t", .op = (uint16_t)op, .dtype = SMP_BF16, .dtype2 = SMP_BF16};
}

/* One of the two products of a layer as it is lowered: rows x k by n x k for each expert. */
static smp_task product_of(const smp_experts *layer, smp_op op, bool down)
{
    const uint64_t rows = layer->tokens * layer->top_k / layer->ep;
    const uint64_t n = down ? layer->hidden : 2 * layer->ffn;
    const uint64_t k = down ? layer->ffn : layer->hidden;
    smp_task task = task_of(op);
    const uint64_t dims[SMP_MAX_DIMS] = {2 * rows, rows, n, k, layer->experts / layer->ep,
                                         layer->ep, down ? 1 : 2, 1};
    memcpy(task.dims, dims, sizeof dims);
    return task;
}

/* DeepSeek-V3's experts over 32 ranks. */
static const smp_experts deepseek = {.tokens = 32768, .hidden = 7168, .ffn = 2048, .top_k = 8,
                                     .experts = 256, .ep = 32, .dtype = SMP_BF16};

/* The correction of a product is that of the layer, relative to the formula of each; gradients
 * have it too, with more spread; without a fit there is none. */
static void products_take_the_fit(void **state)
{
    (void)state;
    static const smp_op ops[] = {SMP_OP_GROUPED_MATMUL, SMP_OP_GROUPED_MATMUL_DX,
                                 SMP_OP_GROUPED_MATMUL_DW};
    machine m;
    machine_open(&m, "dgx-h100", 1);
    smp_cost layer;
    smp_cost bare;
    smp_cost_experts(m.profile, &deepseek, &layer);
    assert_non_null(layer.fit);
    for (int i = 0; i < 6; i++) {
        const smp_task task = product_of(&deepseek, ops[i / 2], i % 2 == 1);
        const smp_cost fitted = cost_of(&m, &task);
        smp_cost_kernel_model(m.profile, &task, &bare);
        assert_ptr_equal(fitted.fit, layer.fit);
        assert_int_equal(fitted.unverified, i >= 2);
        near(fitted.spread, layer.spread * (i < 2 ? 1.0 : 1.5), 1e-12);
        const smp_profile with = *m.profile;
        smp_cost plain;
        forget_fits(m.profile);
        smp_cost_experts(m.profile, &deepseek, &plain);
        *m.profile = with;
        near(smp_cost_seconds(&fitted) / smp_cost_seconds(&bare),
             smp_cost_seconds(&layer) / smp_cost_seconds(&plain), 1e-9);
    }
    machine_close(&m);
}

/* Far more rows than were measured: flagged, and still the formula times a constant. */
static void far_out_is_flagged(void **state)
{
    (void)state;
    machine m;
    machine_open(&m, "dgx-h100", 1);
    smp_experts large = deepseek;
    smp_task task = product_of(&large, SMP_OP_GROUPED_MATMUL, false);
    assert_false(cost_of(&m, &task).extrapolated);
    large.tokens *= 1024;
    task = product_of(&large, SMP_OP_GROUPED_MATMUL, false);
    const smp_cost far = cost_of(&m, &task);
    assert_true(far.extrapolated);
    large.tokens *= 2;
    task = product_of(&large, SMP_OP_GROUPED_MATMUL, false);
    near(seconds_of(&m, &task), 2.0 * smp_cost_seconds(&far), 0.01);
    machine_close(&m);
}

/* Seconds of a layer's forward as it is lowered for one rank of several: rows sorted by
 * expert, two products, the activation, rows sorted back; tokens to rows and back. */
static double layer_seconds(const machine *m, const smp_experts *layer)
{
    const uint64_t rows = layer->tokens * layer->top_k / layer->ep;
    smp_task up = product_of(layer, SMP_OP_GROUPED_MATMUL, false);
    smp_task down = product_of(layer, SMP_OP_GROUPED_MATMUL, true);
    smp_task gated = task_of(SMP_OP_GATED);
    smp_task permute = task_of(SMP_OP_PERMUTE);
    smp_task combine = task_of(SMP_OP_COMBINE);
    gated.dims[0] = gated.dims[3] = rows;
    gated.dims[1] = layer->ffn;
    permute.dims[0] = combine.dims[0] = layer->tokens / layer->ep;
    permute.dims[1] = combine.dims[1] = layer->hidden;
    permute.dims[2] = combine.dims[2] = layer->top_k;
    permute.dims[3] = combine.dims[3] = permute.dims[4] = combine.dims[4] = rows;
    return seconds_of(m, &up) + seconds_of(m, &down) + seconds_of(m, &gated) +
           seconds_of(m, &permute) + seconds_of(m, &combine);
}

/* What the tasks add up to is what the layer was measured to take, for sizes of models and
 * rows enough for products to decide. */
static void tasks_add_up_to_the_layer(void **state)
{
    (void)state;
    static const smp_experts layers[] = {
        {32768, 7168, 2048, 8, 256, 32, SMP_BF16}, /* DeepSeek-V3 */
        {16384, 4096, 14336, 2, 8, 8, SMP_BF16},   /* Mixtral 8x7B */
        {16384, 2048, 768, 8, 128, 8, SMP_BF16},   /* Qwen3 30B */
    };
    machine m;
    machine_open(&m, "dgx-h100", 1);
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
        smp_cost whole;
        smp_cost_experts(m.profile, &layers[i], &whole);
        near(layer_seconds(&m, &layers[i]), smp_cost_seconds(&whole), 0.2);
    }
    machine_close(&m);
}

static int compare_doubles(const void *left, const void *right)
{
    const double a = *(const double *)left;
    const double b = *(const double *)right;
    return (a > b) - (a < b);
}

/* The table's H100 rows of gated experts, at least 32 rows an expert: the tasks of a layer
 * beside the time measured. */
static void published_layers(void **state)
{
    (void)state;
    enum { MOST = 2000 };
    static double off[MOST];
    char path[4096];
    char line[1024];
    const char *shared = getenv("SMP_SHARED_DATA");
    snprintf(path, sizeof path, "%s/measured/moe_gemm.csv",
             shared != NULL ? shared : SMP_SOURCE_DIR "/../shared/data");
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        print_message("no %s: skipped\n", path);
        skip();
    }
    machine m;
    machine_open(&m, "dgx-h100", 1);
    size_t n = 0;
    while (fgets(line, sizeof line, file) != NULL && n < MOST) {
        unsigned long long tokens, hidden, ffn, k, experts, ep, local;
        double ms;
        char gpu[64];
        char dtype[16];
        const char *rest = strchr(line, ',');
        if (rest == NULL || strstr(line, "nongated") != NULL ||
            sscanf(rest, ",moe_experts_fwd,%llu,%llu,%llu,%llu,%llu,%llu,%llu,%63[^,],%15[^,]"
                         ",%lf", &tokens, &hidden, &ffn, &k, &experts, &ep, &local, gpu, dtype,
                   &ms) != 10 ||
            strcmp(gpu, "H100 SXM 80GB") != 0 || strcmp(dtype, "bf16") != 0 ||
            experts % ep != 0 || tokens * k / experts < 32) {
            continue;
        }
        const smp_experts layer = {tokens, hidden, ffn, k, experts, ep, SMP_BF16};
        off[n++] = fabs(layer_seconds(&m, &layer) / (ms * 1e-3) - 1.0);
    }
    fclose(file);
    assert_true(n > 100);
    qsort(off, n, sizeof off[0], compare_doubles);
    print_message("%zu layers: half within %.1f %%, nine in ten within %.1f %%\n", n,
                  100.0 * off[n / 2], 100.0 * off[n / 10 * 9]);
    assert_true(off[n / 2] < 0.15);
    machine_close(&m);
}

static smp_task exchange_of(uint64_t elems)
{
    smp_task task = task_of(SMP_OP_ALL_TO_ALL);
    task.dims[0] = task.dims[1] = task.dims[2] = elems;
    return task;
}

/* Inside a node as measured for all-to-all, between nodes by the formula. */
static void exchanges_take_the_fit_inside_a_node(void **state)
{
    (void)state;
    for (uint32_t nodes = 1; nodes <= 4; nodes *= 4) {
        machine m;
        machine_open(&m, "dgx-h100", nodes);
        const smp_task task = exchange_of(1u << 24);
        const smp_cost cost = cost_of(&m, &task);
        smp_cost inside;
        smp_cost_all_to_all(m.cluster, m.profile, 8, 2u << 24, &inside);
        if (nodes == 1) {
            assert_non_null(cost.fit);
            near(smp_cost_seconds(&cost), smp_cost_seconds(&inside), 1e-12);
            forget_fits(m.profile);
            assert_null(cost_of(&m, &task).fit);
        } else {
            assert_null(cost.fit);
            assert_true(smp_cost_seconds(&cost) > smp_cost_seconds(&inside));
        }
        machine_close(&m);
    }
}

/* Rows of a token that go to the same rank or node cross once: with eight experts a token on
 * four nodes fused kernels beat a row each; the busiest rank has as many more tokens. */
static void fused_kernels_send_tokens_once(void **state)
{
    (void)state;
    machine m;
    machine_open(&m, "dgx-h100", 4);
    const uint64_t tokens = 8192, h = 7168;
    smp_task rows = exchange_of(tokens * 8 * h);
    smp_task fused = rows;
    fused.dims[4] = tokens;
    fused.dims[6] = h;
    fused.dims[5] = 8;
    const smp_cost cost = cost_of(&m, &fused);
    const smp_dispatch dispatch = {.tokens = tokens, .hidden = h, .top_k = 8, .ranks = 32,
                                   .nodes = 4, .element_bytes = 2, .multiprocessors = 20};
    smp_cost want;
    smp_cost_dispatch(m.cluster, m.profile, &dispatch, &want);
    near(smp_cost_seconds(&cost), smp_cost_seconds(&want), 1e-12);
    assert_false(cost.extrapolated);
    assert_true(smp_cost_seconds(&cost) < 0.7 * seconds_of(&m, &rows));
    smp_task busy = fused;
    busy.dims[2] *= 2;
    near(seconds_of(&m, &busy), 2.0 * smp_cost_seconds(&cost), 0.1);
    /* two of four groups: a token goes to at most two nodes */
    smp_task limited = fused;
    limited.dims[5] |= UINT64_C(2) << 32;
    limited.dims[7] = 4;
    assert_true(seconds_of(&m, &limited) < 0.8 * smp_cost_seconds(&cost));
    m.comm.placement.nodes = 8;
    m.comm.placement.ranks = 64;
    assert_true(cost_of(&m, &fused).extrapolated);
    machine_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_take_the_fit),
        cmocka_unit_test(far_out_is_flagged),
        cmocka_unit_test(tasks_add_up_to_the_layer),
        cmocka_unit_test(published_layers),
        cmocka_unit_test(exchanges_take_the_fit_inside_a_node),
        cmocka_unit_test(fused_kernels_send_tokens_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
