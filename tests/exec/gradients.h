/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations of the cpu device against formulas in double: for one .c file each.
 *
 * A case has its inputs x as one vector and says y = f(x) in double, plainly.  The kernel must
 * give y, and its gradient must give d(sum c y) / dx, for random c, as central differences of
 * f have it: error O(h^2) ~ 1e-8 for h = 1e-4, so what remains is fp32.
 */
#ifndef TESTS_EXEC_GRADIENTS_H
#define TESTS_EXEC_GRADIENTS_H

#include "tests/exec/tiny.h"

#include "exec/cpu.h"

#include "base/numeric.h"

enum { MAX = 2048 };

typedef struct gradient_case gradient_case;
struct gradient_case {
    const char *name;
    uint64_t n_in, n_out;
    void (*reference)(const gradient_case *c, const double *x, double *y);
    /* Fills y, then dx from dy. */
    void (*run)(const gradient_case *c, const float *x, float *y, const float *dy, float *dx);
    uint64_t kind, flags;      /* of the case */
};

/* ---- which operations have cases ---- */

/* Each operation of backward, and the file that has its case. */
enum { FILE_GRADIENTS = 1, FILE_MORE_GRADIENTS, FILE_NORM_GRADIENTS };
static const uint8_t file_of[SMP_OPS] = {
    [SMP_OP_EMBED_GRAD] = FILE_GRADIENTS,
    [SMP_OP_POSITION_GRAD] = FILE_GRADIENTS,
    [SMP_OP_MATMUL_DX] = FILE_GRADIENTS,
    [SMP_OP_MATMUL_DW] = FILE_GRADIENTS,
    [SMP_OP_NORM_GRAD] = FILE_NORM_GRADIENTS,
    [SMP_OP_QK_NORM_GRAD] = FILE_NORM_GRADIENTS,
    [SMP_OP_QK_DOTS] = FILE_NORM_GRADIENTS,
    [SMP_OP_QK_RMS_GRAD] = FILE_NORM_GRADIENTS,
    [SMP_OP_TEMPER] = FILE_NORM_GRADIENTS, /* its own gradient */
    [SMP_OP_CLIP_GRAD] = FILE_MORE_GRADIENTS,
    [SMP_OP_LATENT_GRAD] = FILE_MORE_GRADIENTS,
    [SMP_OP_BIAS_GRAD] = FILE_GRADIENTS,
    [SMP_OP_ROPE_GRAD] = FILE_GRADIENTS,
    [SMP_OP_ATTENTION_GRAD] = FILE_GRADIENTS,
    [SMP_OP_SOFTMAX_GRAD] = FILE_GRADIENTS,
    [SMP_OP_VALUES_GRAD] = FILE_GRADIENTS,
    [SMP_OP_SCORES_GRAD] = FILE_GRADIENTS,
    [SMP_OP_ACTIVATION_GRAD] = FILE_GRADIENTS,
    [SMP_OP_GATED_GRAD] = FILE_GRADIENTS,
    [SMP_OP_DROPOUT_GRAD] = FILE_GRADIENTS,
    [SMP_OP_LOSS_GRAD] = FILE_GRADIENTS,
    [SMP_OP_ROUTE_GRAD] = FILE_MORE_GRADIENTS,
    [SMP_OP_PERMUTE_GRAD] = FILE_MORE_GRADIENTS,
    [SMP_OP_COMBINE_GRAD] = FILE_MORE_GRADIENTS,
    [SMP_OP_GROUPED_MATMUL_DX] = FILE_MORE_GRADIENTS,
    [SMP_OP_GROUPED_MATMUL_DW] = FILE_MORE_GRADIENTS,
    [SMP_OP_GATE_ROWS_GRAD] = FILE_MORE_GRADIENTS,
};

static smp_kernel *const kernels[SMP_OPS] = {
#define KERNEL_OF_(OP, name) [SMP_OP_##OP] = smp_cpu_##name,
    SMP_CPU_KERNELS(KERNEL_OF_)
#undef KERNEL_OF_
};
static bool ran[SMP_OPS]; /* in a case */

static inline bool ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);

    return n >= m && strcmp(name + n - m, end) == 0;
}

/* Every operation whose name is that of a gradient is in the table, and those of the file have
 * run in its cases. */
static inline void check_coverage(uint8_t file)
{
    for (int op = 0; op < SMP_OPS; op++) {
        const char *name = smp_op_info_of((smp_op)op)->name;

        if ((ends_in(name, "_grad") || ends_in(name, "_dx") || ends_in(name, "_dw")
             || ends_in(name, "_dots")) && file_of[op] == 0) {
            fail_msg("%s: no case holds it against differences", name);
        }
        if (file_of[op] == file && !ran[op]) {
            fail_msg("%s: the table has it in this file, where no case runs it", name);
        }
    }
}

/* ---- what kernels need ---- */

static smp_model model = { .name = "test", .embedding_scale = 1, .logit_scale = 1,
                           .family = "llama", .position = SMP_POSITION_NONE,
                           .norm_eps = 1e-3 };
static smp_block block;
static smp_job job = { .model = &model };
static smp_rank rank = { .job = &job, .tensor = 1, .data_ranks = 1, .expert = 1 };
static float table[2][64];
static smp_cpu cpu = { .rank = &rank, .cosines = table[0], .sines = table[1],
                       .local_cosines = table[0], .local_sines = table[1] };

/* The operand whose size tells what it is (counts of rows), and its bytes. */
static uint32_t plan_operand = UINT32_MAX;
static uint64_t plan_bytes;

/* Operands of a launch: a NULL ends the list. */
static inline void launch(smp_kernel *kernel, const uint64_t dims[SMP_MAX_DIMS], uint32_t flags,
                   void *const *operands)
{
    smp_task task = { .dtype = SMP_F32, .dtype2 = SMP_F32, .flags = (uint8_t)flags };
    smp_launch l = { .task = &task, .block = &block };

    memcpy(task.dims, dims, sizeof task.dims);
    for (; operands[l.n_operand]; l.n_operand++) {
        l.at[l.n_operand] = operands[l.n_operand];
        l.bytes[l.n_operand] = l.n_operand == plan_operand ? plan_bytes
                                                           : MAX * sizeof(float) / 16;
    }
    kernel(&cpu, &l);
    for (int op = 0; op < SMP_OPS; op++) {
        ran[op] = ran[op] || kernels[op] == kernel;
    }
}
#define LAUNCH(kernel, dims, flags, ...)                                                    \
    launch((kernel), (const uint64_t[SMP_MAX_DIMS])dims, (flags),                           \
           (void *const[]){ __VA_ARGS__, NULL })
#define DIMS(...) { __VA_ARGS__ }

/* Kernels take operands that they only read without const. */
static inline float *in(const float *x)
{
    union { const float *in; float *out; } u = { x };

    return u.out;
}

/* ---- the comparison ---- */

static inline double noise(uint64_t stream, uint64_t i)
{
    uint32_t u[4];

    smp_random4(3, stream, i, u);
    return (double)(u[0] >> 8) * 0x1p-23 - 1;
}

static inline void check_case(const gradient_case *c)
{
    double x[MAX], y[MAX], up[MAX], down[MAX];
    float fx[MAX], fy[MAX], fdy[MAX], fdx[MAX];
    const double h = 1e-4;

    assert_true(c->n_in <= MAX && c->n_out <= MAX);
    for (uint64_t i = 0; i < c->n_in; i++) {
        fx[i] = (float)noise(1, i);
        x[i] = (double)fx[i];
        fdx[i] = NAN; /* the kernel must write every gradient */
    }
    for (uint64_t i = 0; i < c->n_out; i++) {
        fdy[i] = (float)noise(2, i);
    }
    c->reference(c, x, y);
    c->run(c, fx, fy, fdy, fdx);
    for (uint64_t i = 0; i < c->n_out; i++) {
        if (!(fabs(y[i] - (double)fy[i]) < 3e-6)) {
            fail_msg("%s: y[%d] is %.9g, expected %.9g", c->name, (int)i, (double)fy[i], y[i]);
        }
    }
    for (uint64_t i = 0; i < c->n_in; i++) {
        double kept_x = x[i], slope = 0;

        x[i] = kept_x + h;
        c->reference(c, x, up);
        x[i] = kept_x - h;
        c->reference(c, x, down);
        x[i] = kept_x;
        for (uint64_t j = 0; j < c->n_out; j++) {
            slope += (double)fdy[j] * (up[j] - down[j]) / (2 * h);
        }
        if (!(fabs(slope - (double)fdx[i]) < 1e-5 * (1 + fabs(slope)))) {
            fail_msg("%s: dx[%d] is %.9g, expected %.9g", c->name, (int)i, (double)fdx[i],
                     slope);
        }
    }
}

#endif
