/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost of a task: kernels by a roofline whose compute side knows tiles and waves, copies
 * by latency and rate, collectives by src/cost/nccl.c.  Formulas in docs/costs.md.
 */
#include "config.h"

#include "cost/fit.h"
#include "cost/stack.h"

#include "base/numeric.h"

#include <math.h>

double smp_cost_seconds(const smp_cost *cost)
{
    const double kernel = cost->compute_s > cost->memory_s ? cost->compute_s : cost->memory_s;
    return cost->launch_s + kernel + cost->latency_s + cost->transfer_s;
}

/* Dense peak; a type that the device lacks is computed in fp32. */
static double peak_of(const smp_profile *profile, smp_dtype dtype)
{
    const double peak = profile->peak_flops[dtype].value;
    return peak > 0.0 ? peak : profile->peak_flops[SMP_F32].value;
}

/* Output tiles of matrix kernels, and what share of the rate of the largest they reach: a tile
 * of a x b reads (a + b) k for a b k products, so smaller tiles are bound by shared memory. */
typedef struct tile { uint32_t m, n; double rate; } tile;
static const tile tiles[] = {{256, 128, 1.0}, {128, 256, 1.0}, {128, 128, 0.95},
                             {128, 64, 0.8},  {64, 128, 0.8},  {64, 64, 0.62},
                             {32, 64, 0.4},   {16, 64, 0.22},
                             /* only where tiles may be any multiple of 8 wide */
                             {128, 192, 0.97}, {128, 160, 0.96}, {128, 96, 0.88},
                             {128, 80, 0.84}};
enum { N_TILE = sizeof tiles / sizeof tiles[0], N_TILE_BEFORE_SM90 = 8 };
/* Filling and draining the pipeline of a tile costs about as much as 128 columns of k. */
static const double tile_overhead_k = 128.0;
/* Longest k that one tile works through before several share it (split-k). */
static const double split_k_least = 1024.0;
static const double max_split_k = 16.0;

/* One choice of tile: waves of tiles over the multiprocessors, each wave as long as a tile. */
static double tiled_s(const smp_profile *profile, double peak, const tile *t, uint64_t batch,
                      uint64_t m, uint64_t n, uint64_t k)
{
    const double units = (double)profile->multiprocessors;
    const double count = (double)smp_ceil_div(m, t->m) * (double)smp_ceil_div(n, t->n) *
                         (double)batch;
    double split = 1.0;
    while (split < max_split_k && 2.0 * split * count <= units &&
           (double)k / (2.0 * split) >= split_k_least) {
        split *= 2.0;
    }
    const double per_unit = peak * profile->matmul_efficiency.value * t->rate / units;
    const double whole = count * split / units;
    double waves = (double)(uint64_t)whole;
    waves += whole > waves ? 1.0 : 0.0;
    const double tile_s = 2.0 * (double)t->m * (double)t->n *
                          ((double)k / split + tile_overhead_k) / per_unit;
    /* partial sums of a split in fp32, written and read */
    const double partial_bytes = split > 1.0 ? 8.0 * (double)m * (double)n * split : 0.0;
    return waves * tile_s +
           partial_bytes / (profile->memory_Bps.value * profile->memory_efficiency.value);
}

double smp_cost_matmul_s(const smp_profile *profile, smp_dtype dtype, uint64_t batch,
                         uint64_t m, uint64_t n, uint64_t k)
{
    const double peak = peak_of(profile, dtype);
    if (profile->compute_capability == 0) { /* cores of a host: blocked, no tiles to fill */
        const double flops = 2.0 * (double)batch * (double)m * (double)n * (double)k;
        return flops / (peak * profile->matmul_efficiency.value);
    }
    double best = 0.0;
    /* Hopper's wgmma takes n of 8 to 256 in steps of 8 (PTX ISA, wgmma.mma_async) */
    const size_t n_tile = profile->compute_capability >= 90 ? N_TILE : N_TILE_BEFORE_SM90;
    for (size_t i = 0; i < n_tile; i++) {
        const double s = tiled_s(profile, peak, &tiles[i], batch, m, n, k);
        if (i == 0 || s < best) {
            best = s;
        }
    }
    return best;
}

/* Products of naive attention: batch x heads matrices of seq x seq and seq x head_dim. */
static double product_s(const smp_profile *profile, const smp_task *task)
{
    const smp_dtype dtype = (smp_dtype)task->dtype;
    const uint64_t *d = task->dims;
    if (task->op == SMP_OP_MATMUL || task->op == SMP_OP_MATMUL_DX ||
        task->op == SMP_OP_MATMUL_DW) {
        return smp_cost_matmul_s(profile, dtype, 1, d[0], d[1], d[2]);
    }
    if (task->op == SMP_OP_GROUPED_MATMUL || task->op == SMP_OP_GROUPED_MATMUL_DX) {
        return smp_cost_matmul_s(profile, dtype, d[4], smp_ceil_div(d[1], d[4]), d[2], d[3]);
    }
    if (task->op == SMP_OP_GROUPED_MATMUL_DW) { /* rows of an expert are summed over */
        return smp_cost_matmul_s(profile, dtype, d[4], d[2], d[3], smp_ceil_div(d[1], d[4]));
    }
    const uint64_t batch = smp_mul(d[0], d[2]);
    const double square = smp_cost_matmul_s(profile, dtype, batch, d[1], d[1], d[4]);
    const double narrow = smp_cost_matmul_s(profile, dtype, batch, d[1], d[4], d[1]);
    if (task->op == SMP_OP_SCORES) {
        return square;
    }
    if (d[6] > 0 && task->op != SMP_OP_SCORES_GRAD) { /* heads of v have their own size */
        smp_task same = *task;
        same.dims[4] = d[6];
        same.dims[6] = 0;
        return product_s(profile, &same);
    }
    if (task->op == SMP_OP_VALUES) {
        return narrow;
    }
    return task->op == SMP_OP_VALUES_GRAD ? square + narrow : 2.0 * narrow;
}

/* Fused attention: the asymptotic efficiency, reached as seq / (seq + half); softmax costs
 * about as much as 32 columns of the head (so narrow heads reach less; 128 is the figure's
 * size); a kernel with fewer blocks of 128 queries than multiprocessors leaves some idle. */
static double attention_s(const smp_profile *profile, const smp_task *task,
                          const smp_attention_rates *rates)
{
    const bool backward = task->op == SMP_OP_ATTENTION_GRAD;
    const uint64_t *d = task->dims;
    const double seq = (double)d[1];
    const double head_dim = (double)d[4];
    const double ramp = seq / (seq + (backward ? rates->half_seq_grad : rates->half_seq));
    const double width = head_dim * (128.0 + 32.0) / (128.0 * (head_dim + 32.0));
    const double blocks = (double)d[0] * (double)d[2] * (double)smp_ceil_div(d[1], 128);
    const double units = (double)profile->multiprocessors;
    const double fill = blocks < units ? blocks / units : 1.0;
    return (double)smp_task_flops(task) / (peak_of(profile, (smp_dtype)task->dtype) *
                                           (backward ? rates->backward : rates->forward) *
                                           ramp * width * fill);
}

/* The kernel that the profile's figures are of. */
static smp_attention_rates own_rates(const smp_profile *profile)
{
    const double half_seq = profile->attention_half_seq.value;

    return (smp_attention_rates){profile->attention_efficiency.value,
                                 profile->attention_grad_efficiency.value, half_seq, half_seq};
}

/* Every GPU that shares a link to the host copies at the same time. */
static void copy_cost(const smp_cluster *cluster, const smp_profile *profile,
                      const smp_task *task, smp_cost *cost)
{
    const uint32_t in_node =
        cluster->gpus < cluster->gpus_per_node ? cluster->gpus : cluster->gpus_per_node;
    const uint32_t sharing =
        cluster->gpus_per_host_link < in_node ? cluster->gpus_per_host_link : in_node;
    const uint64_t bytes = smp_mul(task->dims[0], smp_dtype_bytes((smp_dtype)task->dtype));
    cost->latency_s = profile->copy_latency_s.value;
    cost->transfer_s = (double)bytes * (double)sharing /
                       (cluster->pcie_Bps.value * profile->copy_efficiency.value);
    cost->spread = profile->spread.value;
    cost->basis =
        cost->latency_s > cost->transfer_s ? &profile->copy_latency_s : &cluster->pcie_Bps;
}

/* Ranks that take turns on the cores of a host. */
static double turns_of(const smp_cluster *cluster)
{
    const bool crowded =
        cluster->link == SMP_LINK_MEMORY && cluster->gpus_per_node > cluster->cores;
    return crowded ? (double)cluster->gpus_per_node / (double)cluster->cores : 1.0;
}

void smp_cost_kernel_model(const smp_profile *profile, const smp_task *task, smp_cost *cost_p)
{
    smp_cost cost = {0};
    const smp_op_class kind = smp_op_info_of((smp_op)task->op)->klass;
    const smp_figure *compute = &profile->matmul_efficiency;
    cost.launch_s = profile->launch_s.value;
    cost.memory_s = (double)smp_task_bytes(task) /
                    (profile->memory_Bps.value * profile->memory_efficiency.value);
    if (kind == SMP_CLASS_MATMUL) {
        cost.compute_s = product_s(profile, task);
    } else if (kind == SMP_CLASS_ATTENTION) {
        const smp_attention_rates rates = own_rates(profile);
        cost.compute_s = attention_s(profile, task, &rates);
        compute = task->op == SMP_OP_ATTENTION_GRAD ? &profile->attention_grad_efficiency
                                                    : &profile->attention_efficiency;
    }
    const bool memory = cost.memory_s >= cost.compute_s;
    const double largest = memory ? cost.memory_s : cost.compute_s;
    cost.spread = profile->spread.value;
    cost.basis = cost.launch_s > largest ? &profile->launch_s
                 : memory                ? &profile->memory_efficiency
                                         : compute;
    *cost_p = cost;
}

/* Attention's two gradients have few measurements: the size of the whole comes from
 * attention_grad_efficiency, and from the forward fit only how it depends on the sizes, that
 * is, what it says here less what it says of long sequences on a full device. */
static void apply_grad_fit(const smp_fit *fit, const double *at, smp_cost *cost)
{
    const double full[] = {16384.0, 128.0, at[2], at[3]};
    bool ignored = false;
    const double spread = cost->spread;
    const smp_figure *basis = cost->basis;
    const double back = exp(-smp_fit_log(fit, full, &ignored));
    smp_fit_apply(fit, at, cost);
    cost->launch_s *= back;
    cost->compute_s *= back;
    cost->memory_s *= back;
    cost->spread = cost->spread > spread ? cost->spread : spread;
    cost->basis = basis;
    cost->unverified = true;
}

/* Grouped products take over what was measured of whole layers of experts relative to their
 * formula, of which the products are nearly all; their gradients too, with half as much spread
 * again. */
static void apply_experts_fit(const smp_fit *fit, const smp_task *task, smp_cost *cost)
{
    const uint64_t *d = task->dims;
    const bool forward = task->op == SMP_OP_GROUPED_MATMUL;
    if (d[1] == 0 || d[6] == 0) {
        return;
    }
    const double local = (double)d[4];
    const double wide = (double)smp_mul(d[2], d[3]) / (double)d[6]; /* hidden x ffn */
    const double at[] = {(double)d[1] / local, local, wide, (double)d[5]};
    smp_fit_apply(fit, at, cost);
    cost->spread *= forward ? 1.0 : 1.5;
    cost->unverified = !forward;
}

/* Fits are of 16-bit kernels.  Both gradients of a product take over the fit of the forward
 * one at the same m, n, k, with half as much spread again: their layouts differ. */
static void apply_kernel_fit(const smp_profile *profile, const smp_task *task, smp_cost *cost)
{
    const smp_fit *matmul = profile->fits[SMP_FIT_MATMUL];
    const smp_fit *attention = profile->fits[SMP_FIT_ATTENTION];
    const smp_fit *experts = profile->fits[SMP_FIT_EXPERTS];
    const bool grouped = task->op == SMP_OP_GROUPED_MATMUL ||
                         task->op == SMP_OP_GROUPED_MATMUL_DX ||
                         task->op == SMP_OP_GROUPED_MATMUL_DW;
    const uint64_t *d = task->dims;
    if (grouped) { /* 20 to 40 % off without a fit (docs/costs.md) */
        cost->spread *= 3.0;
        cost->unverified = true;
    }
    if (task->dtype != SMP_BF16 && task->dtype != SMP_F16) {
        return;
    }
    const bool forward = task->op == SMP_OP_MATMUL;
    if (matmul != NULL &&
        (forward || task->op == SMP_OP_MATMUL_DX || task->op == SMP_OP_MATMUL_DW)) {
        const double at[] = {(double)d[0], (double)d[1], (double)d[2]};
        smp_fit_apply(matmul, at, cost);
        cost->spread *= forward ? 1.0 : 1.5;
        cost->unverified = !forward;
    } else if (experts != NULL && grouped) {
        apply_experts_fit(experts, task, cost);
    } else if (attention != NULL &&
               (task->op == SMP_OP_ATTENTION || task->op == SMP_OP_ATTENTION_GRAD)) {
        const double at[] = {(double)d[1], (double)smp_mul(d[0], d[2]),
                             (double)d[2] / (double)d[3], (double)d[4]};
        if (task->op == SMP_OP_ATTENTION) {
            smp_fit_apply(attention, at, cost);
        } else {
            apply_grad_fit(attention, at, cost);
        }
    }
}

/* Products are timed alone for milliseconds; in a step the device is under load all the time,
 * and its power limit bounds the rate. */
static void apply_power(const smp_profile *profile, const smp_task *task, smp_cost *cost)
{
    const double rate = profile->sustained_flops.value;
    const bool product = smp_op_info_of((smp_op)task->op)->klass == SMP_CLASS_MATMUL;

    if (product && rate > 0.0 && (task->dtype == SMP_BF16 || task->dtype == SMP_F16)) {
        const double least_s = (double)smp_task_flops(task) / rate;
        if (least_s > cost->compute_s) {
            cost->compute_s = least_s;
            cost->basis = &profile->sustained_flops;
        }
    }
}

static void kernel_cost(const smp_cluster *cluster, const smp_profile *profile,
                        const smp_program *program, const smp_task *task, smp_cost *cost)
{
    smp_attention_rates rates;
    const bool attention = smp_op_info_of((smp_op)task->op)->klass == SMP_CLASS_ATTENTION;

    smp_cost_kernel_model(profile, task, cost);
    if (attention && smp_cost_attention_rates(profile, program->attention_kernel, &rates)) {
        cost->compute_s = attention_s(profile, task, &rates);
        cost->unverified = true;
    } else {
        apply_kernel_fit(profile, task, cost);
    }
    apply_power(profile, task, cost);
    cost->memory_s *= turns_of(cluster);
    cost->compute_s *= turns_of(cluster);
    smp_cost_stack(program, task, cost);
}

void smp_cost_task(const smp_cluster *cluster, const smp_profile *profile,
                   const smp_program *program, const smp_task *task, smp_cost *cost_p)
{
    smp_cost cost = {0};
    const smp_op_class kind = smp_op_info_of((smp_op)task->op)->klass;
    switch (kind) {
    case SMP_CLASS_COLLECTIVE:
        if (task->op == SMP_OP_ALL_TO_ALL) {
            smp_cost_exchange_task(cluster, profile, &program->comms[task->comm].placement,
                                   task, &cost);
            break;
        }
        smp_cost_collective(cluster, profile, (smp_op)task->op,
                            &program->comms[task->comm].placement, smp_task_bytes(task), &cost);
        break;
    case SMP_CLASS_HOST_COPY:
        copy_cost(cluster, profile, task, &cost);
        break;
    case SMP_CLASS_MATMUL:
    case SMP_CLASS_ATTENTION:
    case SMP_CLASS_MEMORY:
        kernel_cost(cluster, profile, program, task, &cost);
        break;
    }
    if (kind != SMP_CLASS_HOST_COPY) {
        smp_cost_in_step(program, &cost);
    }
    *cost_p = cost;
}
