/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to the cpu device: the operations, and reading and writing of stored numbers.
 *
 * Everything is computed in fp32; bf16 and fp16 are storage.  A kernel works on rows: a row in
 * fp32 is used where it lies, a row in 16 bits goes through the caller's scratch row.
 */
#ifndef SMP_EXEC_CPU_H
#define SMP_EXEC_CPU_H

#include "exec/device.h"
#include "exec/pool.h"
#include "exec/store.h"

/* What a kernel knows: the rank, the task with its operands, and constants of the device. */
typedef struct smp_cpu {
    const smp_rank *rank;
    const float *cosines, *sines; /* [seq, rotated / 2], or NULL */
    const float *local_cosines, *local_sines; /* of layers with a window, where they differ */
    smp_pool *pool;               /* shares long loops; may be NULL */
} smp_cpu;

typedef void smp_kernel(const smp_cpu *cpu, const smp_launch *launch);

#define SMP_CPU_KERNELS(X)                                                                    \
    X(EMBED, embed) X(EMBED_GRAD, embed_grad) X(POSITION, position)                           \
    X(POSITION_GRAD, position_grad) X(MATMUL, matmul) X(MATMUL_DX, matmul_dx)                 \
    X(MATMUL_DW, matmul_dw) X(NORM, norm) X(NORM_GRAD, norm_grad) X(QK_NORM, qk_norm)         \
    X(QK_NORM_GRAD, qk_norm_grad) X(QK_STATS, qk_stats) X(QK_DOTS, qk_dots)                   \
    X(QK_RMS, qk_rms) X(QK_RMS_GRAD, qk_rms_grad) X(TEMPER, temper)                           \
    X(BIAS, bias) X(BIAS_GRAD, bias_grad) X(ROPE, rope)                                       \
    X(ROPE_GRAD, rope_grad) X(ATTENTION, attention) X(ATTENTION_GRAD, attention_grad)         \
    X(SCORES, scores) X(SOFTMAX, softmax) X(SOFTMAX_GRAD, softmax_grad) X(VALUES, values)     \
    X(VALUES_GRAD, values_grad) X(SCORES_GRAD, scores_grad) X(ACTIVATION, activation)         \
    X(ACTIVATION_GRAD, activation_grad) X(GATED, gated) X(GATED_GRAD, gated_grad)             \
    X(DROPOUT, dropout) X(DROPOUT_GRAD, dropout_grad) X(ADD, add) X(COPY, copy)               \
    X(ACCUMULATE, accumulate) X(CAST, cast) X(FILL, fill) X(LOSS, loss)                       \
    X(LOSS_GRAD, loss_grad) X(SQUARES, squares) X(SCALARS, scalars) X(ADAMW, adamw)           \
    X(SGD, sgd) X(INPUT, input) X(STORE, copy) X(LOAD, copy) X(ROUTE, route)                  \
    X(ROUTE_STATISTICS, route_statistics) X(ROUTE_GRAD, route_grad)                           \
    X(EXPERT_ROWS, expert_rows) X(PERMUTE, permute) X(PERMUTE_GRAD, permute_grad)             \
    X(SORT_ROWS, sort_rows) X(COMBINE, combine) X(COMBINE_GRAD, combine_grad)                 \
    X(GROUPED_MATMUL, grouped_matmul) X(GROUPED_MATMUL_DX, grouped_matmul_dx)                 \
    X(GROUPED_MATMUL_DW, grouped_matmul_dw) X(GATE_ROWS, gate_rows)                           \
    X(GATE_ROWS_GRAD, gate_rows_grad) X(LATENT, latent) X(LATENT_GRAD, latent_grad)           \
    X(CLIP, clip) X(CLIP_GRAD, clip_grad)

#define SMP_CPU_DECLARE_(OP, name) smp_kernel smp_cpu_##name;
SMP_CPU_KERNELS(SMP_CPU_DECLARE_)
#undef SMP_CPU_DECLARE_

/* A kernel's loop with what it knows: `run` gets the address of one. */
typedef struct smp_work { const smp_cpu *cpu; const smp_launch *launch; void *more; } smp_work;
/* Elements of a loop over numbers that are worth a thread of their own. */
enum { SMP_GRAIN = 16384 };

/* ---- products (cpu_matmul.c) ---- */

/* A matrix in memory as it is stored: `ld` elements from row to row. */
typedef struct smp_matrix { const void *data; smp_dtype dtype; uint64_t ld; } smp_matrix;
/* c[m,n] = or += op(a) op(b), row major; op(a) is [m,k].  The pool's threads share a large one,
 * which changes no bit of it; NULL: on this thread, as inside a loop of the pool. */
void smp_product(smp_pool *pool_or_null, bool a_transposed, bool b_transposed, uint64_t m,
                 uint64_t n, uint64_t k, float factor, smp_matrix a, smp_matrix b, bool add,
                 void *c, smp_dtype dtype, uint64_t ldc);

/* Of the process.  The device takes one, since its pool shares products: threads of BLAS spin
 * when a product has ended, on the cores that the pool's next loop wants. */
void smp_set_blas_threads(uint32_t threads);
double smp_cpu_peak(smp_pool *pool_or_null); /* FLOP/s (peak.c) */

/* ---- rotary positions (cpu_rope.c) ---- */

/* Makes the tables of the rank's model; the caller frees what it returns, which may be NULL. */
float *smp_cpu_rope_tables(smp_cpu *cpu);

/* ---- vector code ---- */

/* Loops in a function so marked are compiled for wider vectors too, and the processor chooses
 * at the start; contraction is off, so the results are the same.  Sanitizers run before the
 * choice can be made. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__linux__) \
    && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define SMP_WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SMP_WIDE
#endif

/* Sum of a[i] * b[i] in double, in eight parts that make a vector. */
double smp_dot(const float *a, const float *b, uint64_t n);
double smp_sum(const float *a, uint64_t n);
float smp_max(const float *a, uint64_t n); /* -infinity of none; a NaN counts nothing */

/* ---- elementary functions ---- */

/* e^x within 2 units in the last place; a loop over it becomes vector code.  Cody and Waite's
 * reduction; the polynomial is Cephes' expf. */
static inline float smp_expf(float x)
{
    union { float f; int32_t i; } power;
    float n, r, p;

    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    n = x * 1.44269504f + 12582912.0f; /* rounds to an integer in the low bits */
    n -= 12582912.0f;
    r = x - n * 0.693359375f;
    r -= n * -2.12194440e-4f;
    p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    /* A NaN has no power of two, and stays one by p. */
    power.i = ((int32_t)(n >= -127.0f ? n : 0.0f) + 127) * (1 << 23);
    return p * power.f;
}

/* Where in its sequence the document of a token begins; tokens of the launch's micro-batch. */
static inline uint64_t smp_begin_of(const smp_cpu *cpu, const smp_launch *l, uint64_t token)
{
    const smp_job *job = cpu->rank->job;
    uint64_t tokens = job->settings.micro_batch * job->batch.seq_len;
    const int32_t *begins = cpu->rank->rows.begins;

    return begins ? (uint64_t)begins[l->micro_batch * tokens + token] : 0;
}

/* Whether a token of the launch's micro-batch is padding. */
static inline bool smp_is_padding(const smp_cpu *cpu, const smp_launch *l, uint64_t token)
{
    uint64_t position;

    if (!cpu->rank->rows.padded) {
        return false;
    }
    position = token % cpu->rank->job->batch.seq_len;
    return position > 0 && smp_begin_of(cpu, l, token) == position;
}

/* What a head (of the model) takes off its logits for each token of distance; 0: none. */
float smp_alibi_slope(const smp_model *model, const smp_attention *attention, uint64_t head);

/* ---- norms (cpu_norm.c) ---- */

typedef struct smp_moments { float mean, rstd; } smp_moments;
smp_moments smp_measure(const float *x, uint64_t n, bool layer, double eps);
void smp_norm_row(float *y, const float *x, const float *w, const float *b_or_null, uint64_t n,
                  smp_moments moments);
/* Means over the row of dy w (layer norm only) and of dy w xhat. */
typedef struct smp_norm_sums { float mean, dot; } smp_norm_sums;
/* Adds the row's part of the gradients of w and b besides. */
smp_norm_sums smp_norm_sums_of(const float *dy, const float *x, const float *w, uint64_t n,
                               bool layer, smp_moments moments, float *dw, float *db_or_null);
void smp_norm_row_dx(float *dx, const float *dy, const float *x, const float *w, uint64_t n,
                     smp_moments moments, smp_norm_sums sums);

/* ---- dropout ---- */

/* A uniform word for element `index` of site `site`, layer and sample of a step.  It depends on
 * no degree of parallelism. */
typedef struct smp_dice { uint64_t seed, high; } smp_dice;
smp_dice smp_dice_of(const smp_cpu *cpu, const smp_launch *launch, uint64_t sample,
                     uint64_t site);
uint32_t smp_dice_throw(const smp_dice *dice, uint64_t index);
/* The throws first .. first + n. */
void smp_dice_throws(const smp_dice *dice, uint64_t first, uint64_t n, uint32_t *out);

#endif
