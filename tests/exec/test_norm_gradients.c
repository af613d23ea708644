/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Norms with tails, norms of q and k in every form, also over tensor ranks, and q by its
 * position, and their gradients, against formulas in double.
 */
#include "config.h"

#include "tests/exec/gradients.h"

/* ---- norms: with 1 + weight, with a tail that is copied; of q and k in every form ---- */

enum { ROWS = 3, WIDTH = 6, TAIL = 2, ROW = WIDTH + TAIL };

static void normed(const double *x, const double *w, const double *b, int n, bool layer,
                   double *y)
{
    double mean = 0, var = 0;

    for (int i = 0; i < n && layer; i++) {
        mean += x[i] / n;
    }
    for (int i = 0; i < n; i++) {
        var += (x[i] - mean) * (x[i] - mean) / n;
    }
    for (int i = 0; i < n; i++) {
        y[i] = (x[i] - mean) / sqrt(var + model.norm_eps) * (model.norm_offset + w[i])
               + (b ? b[i] : 0);
    }
}

static void tail_reference(const gradient_case *c, const double *x, double *y)
{
    model.norm_offset = (double)c->kind;
    memcpy(y, x, ROWS * ROW * sizeof *y);
    for (int i = 0; i < ROWS; i++) {
        normed(x + i * ROW, x + ROWS * ROW, NULL, WIDTH, false, y + i * ROW);
    }
}

static void tail_run(const gradient_case *c, const float *x, float *y, const float *dy,
                     float *dx)
{
    model.norm_offset = (double)c->kind;
    LAUNCH(smp_cpu_norm, DIMS(ROWS, WIDTH, SMP_NORM_RMS, TAIL), 0, in(x), in(x) + ROWS * ROW,
           y);
    LAUNCH(smp_cpu_norm_grad, DIMS(ROWS, WIDTH, SMP_NORM_RMS, TAIL), 0, in(dy), in(x),
           in(x) + ROWS * ROW, dx, dx + ROWS * ROW);
}

enum { HEADS = 4, KV = 2, DIM = 3, QKV = (HEADS + 2 * KV) * DIM, Q_N = HEADS * DIM,
       K_N = KV * DIM };

/* Elements of a case's weights of q, of k. */
static int q_weights(const gradient_case *c)
{
    return c->kind == SMP_QK_SHARED ? DIM : Q_N;
}

static int k_weights(const gradient_case *c)
{
    return c->kind == SMP_QK_SHARED ? DIM : K_N;
}

static void qk_reference(const gradient_case *c, const double *x, double *y)
{
    const double *q = x + ROWS * QKV, *k = q + q_weights(c);
    const double *qb = c->flags ? k + k_weights(c) : NULL, *kb = qb ? qb + q_weights(c) : NULL;

    model.norm_offset = 0;
    memcpy(y, x, ROWS * QKV * sizeof *y);
    for (int t = 0; t < ROWS; t++) {
        const double *in_x = x + t * QKV;
        double *out = y + t * QKV;

        if (c->kind == SMP_QK_WHOLE) {
            normed(in_x, q, NULL, Q_N, false, out);
            normed(in_x + Q_N, k, NULL, K_N, false, out + Q_N);
            continue;
        }
        for (int h = 0; h < HEADS + KV; h++) {
            int of = h < HEADS ? h : h - HEADS, at = c->kind == SMP_QK_OWN ? of * DIM : 0;
            const double *bias = h < HEADS ? qb : kb;

            normed(in_x + h * DIM, (h < HEADS ? q : k) + at, bias ? bias + at : NULL, DIM,
                   c->flags != 0 || c->kind == SMP_QK_OWN, out + h * DIM);
        }
    }
}

static void qk_run(const gradient_case *c, const float *x, float *y, const float *dy, float *dx)
{
    int nq = q_weights(c), nk = k_weights(c);
    float *q = in(x) + ROWS * QKV, *b = q + nq + nk, *dq = dx + ROWS * QKV, *db = dq + nq + nk;
    float raw[ROWS * QKV];
    uint64_t kind = c->flags || c->kind == SMP_QK_OWN ? SMP_NORM_LAYER : SMP_NORM_RMS;

    model.norm_offset = 0;
    memcpy(y, x, ROWS * QKV * sizeof *y);
    memcpy(dx, dy, ROWS * QKV * sizeof *y);
    LAUNCH(smp_cpu_qk_norm, DIMS(ROWS, HEADS, KV, DIM, kind, c->kind), 0, y, q, q + nq, raw,
           c->flags ? b : NULL, b + nq);
    LAUNCH(smp_cpu_qk_norm_grad, DIMS(ROWS, HEADS, KV, DIM, kind, c->kind), 0, dx, raw, q,
           q + nq, dq, dq + nq, c->flags ? db : NULL, db + nq);
}

/* Two tensor ranks with a head of q each, and each with a copy of the one of k: x
 * has q of both, k once, v of none; the weights likewise. */
enum { S_DIM = 4, S_HEADS = 2, S_X = (S_HEADS + 1) * S_DIM };

static void shared_reference(const gradient_case *c, const double *x, double *y)
{
    const double *w = x + ROWS * S_X;

    (void)c;
    for (int t = 0; t < ROWS; t++) {
        const double *row = x + t * S_X;

        normed(row, w, NULL, S_HEADS * S_DIM, false, y + t * S_X);
        normed(row + S_HEADS * S_DIM, w + S_HEADS * S_DIM, NULL, S_DIM, false,
               y + t * S_X + S_HEADS * S_DIM);
    }
}

/* What a rank has of rows of x: a head of q, one of k, room for v. */
static void take_part(float *part, const float *x, int of)
{
    for (int t = 0; t < ROWS; t++) {
        memcpy(part + t * 3 * S_DIM, x + t * S_X + of * S_DIM, S_DIM * sizeof *x);
        memcpy(part + t * 3 * S_DIM + S_DIM, x + t * S_X + S_HEADS * S_DIM, S_DIM * sizeof *x);
    }
}

static void put_part(float *x, const float *part, int of)
{
    for (int t = 0; t < ROWS; t++) {
        memcpy(x + t * S_X + of * S_DIM, part + t * 3 * S_DIM, S_DIM * sizeof *x);
        memcpy(x + t * S_X + S_HEADS * S_DIM, part + t * 3 * S_DIM + S_DIM, S_DIM * sizeof *x);
    }
}

static void add_sums(float *to, const float *from)
{
    for (int i = 0; i < 2 * ROWS; i++) {
        to[i] += from[i];
    }
}

/* Both ranks have the whole gradient of their copy of k, and of its weights. */
#define S_DIMS DIMS(ROWS, 1, 1, S_DIM, SMP_NORM_RMS, SMP_QK_WHOLE, 2, 2)
static void shared_run(const gradient_case *c, const float *x, float *y, const float *dy,
                       float *dx)
{
    float part[2][ROWS * 3 * S_DIM], d[2][ROWS * 3 * S_DIM], raw[2][ROWS * 2 * S_DIM];
    float one[2 * ROWS], stats[2 * ROWS] = { 0 }, dots[2 * ROWS] = { 0 }, dk[2][S_DIM];
    float *w = in(x) + ROWS * S_X, *dw = dx + ROWS * S_X, *k = w + S_HEADS * S_DIM;

    (void)c;
    for (int r = 0; r < 2; r++) {
        take_part(part[r], x, r);
        take_part(d[r], dy, r);
        LAUNCH(smp_cpu_qk_stats, S_DIMS, 0, part[r], one);
        add_sums(stats, one);
    }
    for (int r = 0; r < 2; r++) {
        LAUNCH(smp_cpu_qk_norm, S_DIMS, 0, part[r], w + r * S_DIM, k, raw[r], stats);
        put_part(y, part[r], r);
        LAUNCH(smp_cpu_qk_dots, S_DIMS, 0, d[r], raw[r], stats, w + r * S_DIM, k, one);
        add_sums(dots, one);
    }
    for (int r = 0; r < 2; r++) {
        LAUNCH(smp_cpu_qk_norm_grad, S_DIMS, 0, d[r], raw[r], w + r * S_DIM, k, dw + r * S_DIM,
               dk[r], stats, dots);
        put_part(dx, d[r], r);
    }
    assert_memory_equal(dk[0], dk[1], sizeof dk[0]);
    memcpy(dw + S_HEADS * S_DIM, dk[0], sizeof dk[0]);
}

/* ---- norms without weights, and q by its position: two sequences of two tokens ---- */

static void rms_reference(const gradient_case *c, const double *x, double *y)
{
    double ones[DIM];

    (void)c;
    for (int i = 0; i < DIM; i++) {
        ones[i] = 1;
    }
    memcpy(y, x, ROWS * QKV * sizeof *y);
    for (int i = 0; i < ROWS * (HEADS + KV); i++) {
        int at = i / (HEADS + KV) * QKV + i % (HEADS + KV) * DIM;

        normed(x + at, ones, NULL, DIM, false, y + at);
    }
}

static void rms_run(const gradient_case *c, const float *x, float *y, const float *dy,
                    float *dx)
{
    float rstd[ROWS * (HEADS + KV)];

    (void)c;
    memcpy(y, x, ROWS * QKV * sizeof *y);
    memcpy(dx, dy, ROWS * QKV * sizeof *y);
    LAUNCH(smp_cpu_qk_rms, DIMS(ROWS, HEADS, KV, DIM), 0, y, rstd);
    LAUNCH(smp_cpu_qk_rms_grad, DIMS(ROWS, HEADS, KV, DIM), 0, dx, y, rstd);
}

/* Positions 0 .. 4 with a floor of 2: 0, 1, 1, 2, 2 steps. */
enum { T_TOKENS = 5 };

static void temper_reference(const gradient_case *c, const double *x, double *y)
{
    static const double steps[T_TOKENS] = { 0, 1, 1, 2, 2 };

    (void)c;
    memcpy(y, x, T_TOKENS * QKV * sizeof *y);
    for (int i = 0; i < T_TOKENS * Q_N; i++) {
        y[i / Q_N * QKV + i % Q_N] *= 1 + 0.75 * log(1 + steps[i / Q_N]);
    }
}

static void temper_run(const gradient_case *c, const float *x, float *y, const float *dy,
                       float *dx)
{
    (void)c;
    block.attention.temperature = 0.75;
    block.attention.temperature_floor = 2;
    memcpy(y, x, T_TOKENS * QKV * sizeof *y);
    memcpy(dx, dy, T_TOKENS * QKV * sizeof *y);
    LAUNCH(smp_cpu_temper, DIMS(T_TOKENS, HEADS, KV, DIM, T_TOKENS), 0, y);
    LAUNCH(smp_cpu_temper, DIMS(T_TOKENS, HEADS, KV, DIM, T_TOKENS), 0, dx);
}

/* ---- all ---- */

#define QK(text, form, bias, n)                                                             \
    { text, ROWS *QKV + (n) * (1 + (bias)), ROWS *QKV, qk_reference, qk_run, form, bias }

static const gradient_case cases[] = {
    { "norm with a tail", ROWS * ROW + WIDTH, ROWS * ROW, tail_reference, tail_run, 0, 0 },
    { "norm by 1 + weight", ROWS * ROW + WIDTH, ROWS * ROW, tail_reference, tail_run, 1, 0 },
    QK("norm of q and k", SMP_QK_SHARED, 0, 2 * DIM),
    QK("norm of q and k with biases", SMP_QK_SHARED, 1, 2 * DIM),
    QK("norm of q and k by own weights", SMP_QK_OWN, 0, Q_N + K_N),
    QK("norm of q and k over all heads", SMP_QK_WHOLE, 0, Q_N + K_N),
    { "norm of q and k over tensor ranks", ROWS * S_X + S_X, ROWS * S_X, shared_reference,
      shared_run, 0, 0 },
    { "norm of q and k without weights", ROWS * QKV, ROWS * QKV, rms_reference, rms_run, 0, 0 },
    { "q by its position", T_TOKENS * QKV, T_TOKENS * QKV, temper_reference, temper_run, 0, 0 },
};

static void gradients_are_derivatives(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check_case(&cases[i]);
        model.norm_offset = 0;
    }
    check_coverage(FILE_NORM_GRADIENTS);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(gradients_are_derivatives),
};

CHECK_MAIN(tests)
