/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix products over CBLAS, and the bias that goes with them.
 *
 * fp32 operands go to sgemm as they lie.  Operands of 16 bits are turned to fp32 by tiles of
 * bounded size, products are summed in fp32 and rounded once, when the last tile of k is in.
 */
#include "config.h"

#include "exec/cpu.h"

#include "base/arena.h"

#ifndef SMP_PLAIN_BLAS
#include <cblas.h>
#endif
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { TILE_M = 256, TILE_N = 256, TILE_K = 512 };
/* Multiplications that are worth a thread of their own; and borders of parts are multiples of
 * what kernels of BLAS take at once, so that each element is summed as in the whole. */
enum { WORTH = 1 << 22, BORDER = 64 };

typedef struct product {
    bool ta, tb;
    uint64_t m, n, k;
    float factor;
    smp_matrix a, b;
    bool add;
    void *c;
    smp_dtype dtype;
    uint64_t ldc;
    const void *bias;          /* [n] of a's type, of each row of c; or NULL */
} product;

#ifdef SMP_PLAIN_BLAS
/* For ThreadSanitizer, which sees nothing of what a BLAS library accesses. */
static void sgemm(bool ta, bool tb, uint64_t m, uint64_t n, uint64_t k, float factor,
                  const float *a, uint64_t lda, const float *b, uint64_t ldb, float beta,
                  float *c, uint64_t ldc)
{
    for (uint64_t i = 0; i < m; i++) {
        for (uint64_t j = 0; j < n; j++) {
            float sum = 0;

            for (uint64_t l = 0; l < k; l++) {
                sum += (ta ? a[l * lda + i] : a[i * lda + l])
                       * (tb ? b[j * ldb + l] : b[l * ldb + j]);
            }
            c[i * ldc + j] = factor * sum + (beta > 0 ? beta * c[i * ldc + j] : 0);
        }
    }
}

void smp_set_blas_threads(uint32_t threads)
{
    (void)threads;
}
#else
static void sgemm(bool ta, bool tb, uint64_t m, uint64_t n, uint64_t k, float factor,
                  const float *a, uint64_t lda, const float *b, uint64_t ldb, float beta,
                  float *c, uint64_t ldc)
{
    cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans,
                (int)m, (int)n, (int)k, factor, a, (int)lda, b, (int)ldb, beta, c, (int)ldc);
}

void smp_set_blas_threads(uint32_t threads)
{
    openblas_set_num_threads((int)threads);
}
#endif

/* Rows row0 .. and columns col0 .. of a stored matrix, packed. */
static void load_tile(float *tile, smp_matrix from, uint64_t row0, uint64_t rows,
                      uint64_t col0, uint64_t cols)
{
    for (uint64_t i = 0; i < rows; i++) {
        smp_load(tile + i * cols, from.data, from.dtype, (row0 + i) * from.ld + col0, cols);
    }
}

/* The bias of columns j0 .. in fp32, to each row of `rows`. */
static void fill_rows(const product *p, uint64_t j0, uint64_t cols, float *rows, uint64_t n_row,
                      uint64_t ld)
{
    for (uint64_t i = 0; i < n_row; i++) {
        smp_load(rows + i * ld, p->bias, p->a.dtype, j0, cols);
    }
}

static void store_tile(const product *p, const float *tile, uint64_t i0, uint64_t rows,
                       uint64_t j0, uint64_t cols)
{
    for (uint64_t i = 0; i < rows; i++) {
        (p->add ? smp_store_add : smp_store)(p->c, p->dtype, (i0 + i) * p->ldc + j0,
                                             tile + i * cols, cols);
    }
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Of one thread, made when it first needs them: as thread-local variables these 1.3 MB would
 * be cleared at the start of every thread. */
typedef struct tiles {
    float a[TILE_M * TILE_K], b[TILE_N * TILE_K], c[TILE_M * TILE_N];
} tiles;

static pthread_key_t tiles_key;

static void make_tiles_key(void)
{
    if (pthread_key_create(&tiles_key, free) != 0) {
        abort(); /* more than 1024 keys in one process */
    }
}

static tiles *own_tiles(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    tiles *own;

    (void)pthread_once(&once, make_tiles_key);
    own = pthread_getspecific(tiles_key);
    if (!own) {
        own = smp_heap_alloc(1, sizeof *own);
        (void)pthread_setspecific(tiles_key, own);
    }
    return own;
}

static void tile_of_c(const product *p, tiles *own, uint64_t i0, uint64_t j0)
{
    float *a = own->a, *b = own->b, *c = own->c;
    uint64_t m = least(TILE_M, p->m - i0), n = least(TILE_N, p->n - j0);

    if (p->bias) {
        fill_rows(p, j0, n, c, m, n);
    }
    for (uint64_t k0 = 0; k0 < p->k; k0 += TILE_K) {
        uint64_t k = least(TILE_K, p->k - k0);

        if (p->ta) {
            load_tile(a, p->a, k0, k, i0, m);
        } else {
            load_tile(a, p->a, i0, m, k0, k);
        }
        if (p->tb) {
            load_tile(b, p->b, j0, n, k0, k);
        } else {
            load_tile(b, p->b, k0, k, j0, n);
        }
        sgemm(p->ta, p->tb, m, n, k, p->factor, a, p->ta ? m : k, b, p->tb ? k : n,
              k0 > 0 || p->bias ? 1.0f : 0.0f, c, n);
    }
    store_tile(p, c, i0, m, j0, n);
}

/* Tiles of c, by columns within rows. */
static void tiles_loop(void *context, uint64_t first, uint64_t end)
{
    const product *p = context;
    uint64_t across = (p->n + TILE_N - 1) / TILE_N;
    tiles *own = own_tiles();

    for (uint64_t i = first; i < end; i++) {
        tile_of_c(p, own, i / across * TILE_M, i % across * TILE_N);
    }
}

/* A product in fp32, and how c is cut: in `down` x `across` parts. */
typedef struct cut { const product *p; uint64_t down, across; } cut;

/* Where part i of n of a dimension begins. */
static uint64_t border(uint64_t dim, uint64_t i, uint64_t n)
{
    return i == n ? dim : dim * i / n / BORDER * BORDER;
}

static void parts_loop(void *context, uint64_t first, uint64_t end)
{
    const cut *c = context;
    const product *p = c->p;

    for (uint64_t at = first; at < end; at++) {
        uint64_t i = at / c->across, j = at % c->across;
        uint64_t i0 = border(p->m, i, c->down), j0 = border(p->n, j, c->across);
        uint64_t m = border(p->m, i + 1, c->down) - i0, n = border(p->n, j + 1, c->across) - j0;
        float *to = (float *)p->c + i0 * p->ldc + j0;

        if (p->bias) {
            fill_rows(p, j0, n, to, m, p->ldc);
        }
        sgemm(p->ta, p->tb, m, n, p->k, p->factor,
              (const float *)p->a.data + (p->ta ? i0 : i0 * p->a.ld), p->a.ld,
              (const float *)p->b.data + (p->tb ? j0 * p->b.ld : j0), p->b.ld,
              p->add || p->bias ? 1.0f : 0.0f, to, p->ldc);
    }
}

/* A part reads its rows of op(a) and its columns of op(b): the grid that reads least. */
static cut cut_of(const product *p, uint64_t parts)
{
    cut best = { p, 1, 1 };
    uint64_t least_read = UINT64_MAX;

    for (uint64_t down = 1; down <= parts; down++) {
        uint64_t across = parts / down, read = p->m / down + p->n / across;

        if (parts % down == 0 && p->m / down >= (down > 1 ? BORDER : 1)
            && p->n / across >= (across > 1 ? BORDER : 1) && read < least_read) {
            best = (cut){ p, down, across };
            least_read = read;
        }
    }
    return best;
}

static void run_product(smp_pool *pool, const product *p)
{
    union { const product *in; void *out; } context = { p };
    cut c;

    if (p->m == 0 || p->n == 0) {
        return;
    }
    if (p->a.dtype == SMP_F32 && p->b.dtype == SMP_F32 && p->dtype == SMP_F32) {
        c = cut_of(p, least(smp_pool_threads(pool), p->m * p->n * p->k / WORTH + 1));
        smp_pool_run(pool, c.down * c.across, 1, parts_loop, &c);
        return;
    }
    smp_pool_run(pool, (p->m + TILE_M - 1) / TILE_M * ((p->n + TILE_N - 1) / TILE_N), 1,
                 tiles_loop, context.out);
}

void smp_product(smp_pool *pool, bool ta, bool tb, uint64_t m, uint64_t n, uint64_t k,
                 float factor, smp_matrix a, smp_matrix b, bool add, void *c, smp_dtype dtype,
                 uint64_t ldc)
{
    run_product(pool, &(product){ ta, tb, m, n, k, factor, a, b, add, c, dtype, ldc, NULL });
}

/* ---- tasks ---- */

/* x[rows, width] and a vector of `width`: the bias that is added, or the sum of the rows. */
typedef struct columns {
    void *x, *vector;
    smp_dtype dtype, dtype2;   /* of x, of the vector */
    uint64_t rows, width;
    bool add;
} columns;

enum { COLUMNS = 128 };

static uint64_t blocks_of(const columns *c)
{
    return (c->width + COLUMNS - 1) / COLUMNS;
}

static uint64_t block_grain(const columns *c)
{
    return SMP_GRAIN / (c->rows * COLUMNS + 1) + 1;
}

static void add_rows_loop(void *context, uint64_t first, uint64_t end)
{
    const columns *c = context;

    for (uint64_t j0 = first * COLUMNS; j0 < end * COLUMNS && j0 < c->width; j0 += COLUMNS) {
        uint64_t n = least(COLUMNS, c->width - j0);
        float scratch[COLUMNS];
        const float *b = smp_row(c->vector, c->dtype2, j0, n, scratch);

        for (uint64_t i = 0; i < c->rows; i++) {
            smp_store_add(c->x, c->dtype, i * c->width + j0, b, n);
        }
    }
}

/* A block of columns at a time, so that the sums stay in fp32. */
static void sum_rows_loop(void *context, uint64_t first, uint64_t end)
{
    const columns *c = context;

    for (uint64_t j0 = first * COLUMNS; j0 < end * COLUMNS && j0 < c->width; j0 += COLUMNS) {
        uint64_t n = least(COLUMNS, c->width - j0);
        float scratch[COLUMNS], total[COLUMNS] = { 0 };

        for (uint64_t i = 0; i < c->rows; i++) {
            const float *row = smp_row(c->x, c->dtype, i * c->width + j0, n, scratch);

            for (uint64_t j = 0; j < n; j++) {
                total[j] += row[j];
            }
        }
        (c->add ? smp_store_add : smp_store)(c->vector, c->dtype2, j0, total, n);
    }
}

/* x of type `to` += bias of type `dtype`, each row. */
static void add_rows(const smp_cpu *cpu, void *x, smp_dtype to, uint64_t rows, uint64_t width,
                     void *bias, smp_dtype dtype)
{
    columns c = { .x = x, .vector = bias, .dtype = to, .dtype2 = dtype, .rows = rows,
                  .width = width };

    smp_pool_run(cpu->pool, blocks_of(&c), block_grain(&c), add_rows_loop, &c);
}

static void sum_rows(const smp_cpu *cpu, void *dy, smp_dtype dtype, uint64_t rows,
                     uint64_t width, bool add, void *sum, smp_dtype dtype2)
{
    columns c = { dy, sum, dtype, dtype2, rows, width, add };

    smp_pool_run(cpu->pool, blocks_of(&c), block_grain(&c), sum_rows_loop, &c);
}

void smp_cpu_bias(const smp_cpu *cpu, const smp_launch *l)
{
    add_rows(cpu, l->at[0], (smp_dtype)l->task->dtype, l->task->dims[0], l->task->dims[1],
             l->at[1], (smp_dtype)l->task->dtype);
}

void smp_cpu_bias_grad(const smp_cpu *cpu, const smp_launch *l)
{
    sum_rows(cpu, l->at[0], (smp_dtype)l->task->dtype, l->task->dims[0], l->task->dims[1],
             l->task->flags & SMP_FLAG_ACCUMULATE, l->at[1], (smp_dtype)l->task->dtype2);
}

/* Elements from one row of the wide operand to the next. */
static uint64_t row_of(const smp_launch *l, uint64_t width)
{
    return l->task->dims[3] > 0 ? l->task->dims[3] : width;
}

void smp_cpu_matmul(const smp_cpu *cpu, const smp_launch *l)
{
    uint64_t m = l->task->dims[0], n = l->task->dims[1], k = l->task->dims[2];
    smp_dtype t = (smp_dtype)l->task->dtype;

    run_product(cpu->pool, &(product){ .tb = true, .m = m, .n = n, .k = k, .factor = 1.0f,
                                       .a = { l->at[0], t, row_of(l, k) },
                                       .b = { l->at[1], t, k }, .c = l->at[2],
                                       .dtype = (smp_dtype)l->task->dtype2, .ldc = n,
                                       .bias = l->n_operand > 3 ? l->at[3] : NULL });
}

void smp_cpu_matmul_dx(const smp_cpu *cpu, const smp_launch *l)
{
    uint64_t m = l->task->dims[0], n = l->task->dims[1], k = l->task->dims[2];
    smp_dtype t = (smp_dtype)l->task->dtype;

    smp_product(cpu->pool, false, false, m, n, k, 1.0f, (smp_matrix){ l->at[0], t, k },
                (smp_matrix){ l->at[1], t, n }, l->task->flags & SMP_FLAG_ACCUMULATE,
                l->at[2], t, row_of(l, n));
}

void smp_cpu_matmul_dw(const smp_cpu *cpu, const smp_launch *l)
{
    uint64_t m = l->task->dims[0], n = l->task->dims[1], k = l->task->dims[2];
    smp_dtype t = (smp_dtype)l->task->dtype, t2 = (smp_dtype)l->task->dtype2;
    bool add = l->task->flags & SMP_FLAG_ACCUMULATE;

    smp_product(cpu->pool, true, false, m, n, k, 1.0f, (smp_matrix){ l->at[0], t, m },
                (smp_matrix){ l->at[1], t, row_of(l, n) }, add, l->at[2], t2, n);
    if (l->n_operand > 3) {
        sum_rows(cpu, l->at[0], t, k, m, add, l->at[3], t2);
    }
}
