/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every operation of the cpu device and its gradient against formulas in double.
 *
 * A case has its inputs x as one vector and says y = f(x) in double, plainly.  The kernel must
 * give y, and its gradient must give d(sum c y) / dx, for random c, as central differences of
 * f have it: error O(h^2) ~ 1e-8 for h = 1e-4, so what remains is fp32.
 */
#include "config.h"

#include "tests/exec/gradients.h"

/* ---- matmul, bias ---- */

enum { M = 5, N = 4, K = 3 };

static void matmul_reference(const gradient_case *c, const double *x, double *y)
{
    const double *w = x + M * K, *b = w + N * K;

    (void)c;
    for (int i = 0; i < M; i++) {
        for (int j = 0; j < N; j++) {
            y[i * N + j] = b[j];
            for (int k = 0; k < K; k++) {
                y[i * N + j] += x[i * K + k] * w[j * K + k];
            }
        }
    }
}

static void matmul_run(const gradient_case *c, const float *x, float *y, const float *dy,
                       float *dx)
{
    float *w = in(x) + M * K, *b = w + N * K, *dw = dx + M * K, *db = dw + N * K;

    (void)c;
    LAUNCH(smp_cpu_matmul, DIMS(M, N, K), 0, in(x), w, y, b);
    LAUNCH(smp_cpu_matmul_dx, DIMS(M, K, N), 0, in(dy), w, dx);
    LAUNCH(smp_cpu_matmul_dw, DIMS(N, K, M), 0, in(dy), in(x), dw, db);
}

static void bias_reference(const gradient_case *c, const double *x, double *y)
{
    (void)c;
    for (int i = 0; i < M * N; i++) {
        y[i] = x[i] + x[M * N + i % N];
    }
}

static void bias_run(const gradient_case *c, const float *x, float *y, const float *dy,
                     float *dx)
{
    (void)c;
    memcpy(y, x, M * N * sizeof *y);
    memcpy(dx, dy, M * N * sizeof *y);
    LAUNCH(smp_cpu_bias, DIMS(M, N), 0, y, in(x) + M * N);
    LAUNCH(smp_cpu_bias_grad, DIMS(M, N), 0, in(dy), dx + M * N);
}

/* ---- norms ---- */

enum { ROWS = 3, WIDTH = 6 };

static void norm_row(const double *x, const double *w, const double *b, int n, bool layer,
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
        y[i] = (x[i] - mean) / sqrt(var + model.norm_eps) * w[i] + (b ? b[i] : 0);
    }
}

static void norm_reference(const gradient_case *c, const double *x, double *y)
{
    const double *w = x + ROWS * WIDTH;

    for (int i = 0; i < ROWS; i++) {
        norm_row(x + i * WIDTH, w, c->flags ? w + WIDTH : NULL, WIDTH,
                 c->kind == SMP_NORM_LAYER, y + i * WIDTH);
    }
}

static void norm_run(const gradient_case *c, const float *x, float *y, const float *dy,
                     float *dx)
{
    float *w = in(x) + ROWS * WIDTH, *dw = dx + ROWS * WIDTH;

    /* The last operands are absent in a norm without bias. */
    LAUNCH(smp_cpu_norm, DIMS(ROWS, WIDTH, c->kind), 0, in(x), w, y,
           c->flags ? w + WIDTH : NULL);
    LAUNCH(smp_cpu_norm_grad, DIMS(ROWS, WIDTH, c->kind), 0, in(dy), in(x), w, dx, dw,
           c->flags ? dw + WIDTH : NULL);
}

enum { TOKENS = 3, HEADS = 4, KV = 2, HEAD_DIM = 6, QKV = (HEADS + 2 * KV) * HEAD_DIM };

static void qk_norm_reference(const gradient_case *c, const double *x, double *y)
{
    const double *q = x + TOKENS * QKV, *k = q + HEAD_DIM;

    (void)c;
    memcpy(y, x, TOKENS * QKV * sizeof *y);
    for (int i = 0; i < TOKENS * (HEADS + KV); i++) {
        int at = i / (HEADS + KV) * QKV + i % (HEADS + KV) * HEAD_DIM;

        norm_row(x + at, i % (HEADS + KV) < HEADS ? q : k, NULL, HEAD_DIM, false, y + at);
    }
}

static void qk_norm_run(const gradient_case *c, const float *x, float *y, const float *dy,
                        float *dx)
{
    float *w = in(x) + TOKENS * QKV, *dw = dx + TOKENS * QKV, raw[TOKENS * QKV];

    (void)c;
    memcpy(y, x, TOKENS * QKV * sizeof *y);
    memcpy(dx, dy, TOKENS * QKV * sizeof *y);
    LAUNCH(smp_cpu_qk_norm, DIMS(TOKENS, HEADS, KV, HEAD_DIM), 0, y, w, w + HEAD_DIM, raw);
    LAUNCH(smp_cpu_qk_norm_grad, DIMS(TOKENS, HEADS, KV, HEAD_DIM), 0, dx, raw, w,
           w + HEAD_DIM, dw, dw + HEAD_DIM);
}

/* ---- rope: half of the head, positions start over after two tokens ---- */

enum { ROTATED = 4 };

static void rope_reference(const gradient_case *c, const double *x, double *y)
{
    (void)c;
    memcpy(y, x, TOKENS * QKV * sizeof *y);
    for (int i = 0; i < TOKENS * (HEADS + KV); i++) {
        int token = i / (HEADS + KV), at = token * QKV + i % (HEADS + KV) * HEAD_DIM;

        for (int j = 0; j < ROTATED / 2; j++) {
            double co = (double)table[0][token % 2 * 2 + j];
            double si = (double)table[1][token % 2 * 2 + j];

            y[at + j] = x[at + j] * co - x[at + 2 + j] * si;
            y[at + 2 + j] = x[at + 2 + j] * co + x[at + j] * si;
        }
    }
}

static void rope_run(const gradient_case *c, const float *x, float *y, const float *dy,
                     float *dx)
{
    (void)c;
    memcpy(y, x, TOKENS * QKV * sizeof *y);
    memcpy(dx, dy, TOKENS * QKV * sizeof *y);
    LAUNCH(smp_cpu_rope, DIMS(TOKENS, HEADS, KV, HEAD_DIM, ROTATED, 2), 0, y);
    LAUNCH(smp_cpu_rope_grad, DIMS(TOKENS, HEADS, KV, HEAD_DIM, ROTATED, 2), 0, dx);
}

/* ---- attention: two sequences ---- */

enum { BATCH = 2, SEQ = 7, A_HEADS = 2, A_KV = 1, A_DIM = 2,
       A_QKV = (A_HEADS + 2 * A_KV) * A_DIM, A_Y = A_HEADS * A_DIM };

/* What flags of a case mean. */
enum { CAPPED = 1, SLOPED = 2, DROPPED = 4, NAIVE = 8, CHUNKED = 16, SUNK = 32 };
enum { A_X = BATCH * SEQ * A_QKV }; /* q, k and v; sinks come behind */

static void prepare_attention(const gradient_case *c)
{
    block.attention = (smp_attention){ .heads = A_HEADS, .kv_heads = A_KV, .head_dim = A_DIM,
                                       .softcap = c->flags & CAPPED ? 1.5 : 0,
                                       .dropout = c->flags & DROPPED ? 0.25 : 0 };
    model.position = c->flags & SLOPED ? SMP_POSITION_ALIBI : SMP_POSITION_NONE;
    job.settings.micro_batch = BATCH;
    job.settings.random_seed = 5;
    job.settings.attention_dropout = -1; /* the model's */
    job.settings.precision = SMP_PRECISION_FP32; /* of sinks */
}

/* Kept probabilities are scaled by 4 / 3; the dice are the kernel's own. */
static double kept(const gradient_case *c, int b, int h, int i, int j)
{
    const smp_launch l = { .block = &block };
    smp_dice dice;

    if (!(c->flags & DROPPED)) {
        return 1;
    }
    dice = smp_dice_of(&cpu, &l, (uint64_t)b, SMP_SITE_PROBABILITIES);
    return smp_dice_throw(&dice, (uint64_t)((h * SEQ + i) * SEQ + j)) < 0x40000000u ? 0
                                                                                  : 4.0 / 3;
}

static double logit(const gradient_case *c, const double *q, const double *k, int h, int i,
                    int j)
{
    double s = 0;

    for (int d = 0; d < A_DIM; d++) {
        s += q[d] * k[d] / sqrt(A_DIM);
    }
    if (c->flags & CAPPED) {
        s = 1.5 * tanh(s / 1.5);
    }
    return c->flags & SLOPED ? s - pow(2, -8.0 * (h + 1) / A_HEADS) * (i - j) : s;
}

static void attend(const gradient_case *c, const double *x, int b, int h, int i, double *y)
{
    const double *q = x + (b * SEQ + i) * A_QKV + h * A_DIM;
    double sum = c->flags & SUNK ? exp(x[A_X + h]) : 0, p[SEQ] = { 0 };

    for (int j = 0; j <= i; j++) {
        const double *k = x + (b * SEQ + j) * A_QKV + A_HEADS * A_DIM;

        if (c->kind == 0 || (c->flags & CHUNKED ? j / (int)c->kind == i / (int)c->kind
                                                 : i - j < (int)c->kind)) {
            p[j] = exp(logit(c, q, k, h, i, j));
            sum += p[j];
        }
    }
    for (int d = 0; d < A_DIM; d++) {
        y[d] = 0;
        for (int j = 0; j <= i; j++) {
            y[d] += p[j] / sum * kept(c, b, h, i, j)
                    * x[(b * SEQ + j) * A_QKV + (A_HEADS + A_KV) * A_DIM + d];
        }
    }
}

static void attention_reference(const gradient_case *c, const double *x, double *y)
{
    prepare_attention(c);
    for (int i = 0; i < BATCH * SEQ * A_HEADS; i++) {
        attend(c, x, i / A_HEADS / SEQ, i % A_HEADS, i / A_HEADS % SEQ,
               y + i * A_DIM);
    }
}

#define A_DIMS(last) DIMS(BATCH, SEQ, A_HEADS, A_KV, A_DIM, last)

static void naive_run(const gradient_case *c, const float *x, float *y, const float *dy,
                      float *dx)
{
    enum { SQUARES = BATCH * A_HEADS * SEQ * SEQ, S_ROWS = BATCH * A_HEADS * SEQ };
    float s[SQUARES], p[SQUARES], dropped[SQUARES], dp[SQUARES], ds[SQUARES];
    uint8_t mask[SQUARES];
    float *probabilities = c->flags & DROPPED ? dropped : p;
    const uint64_t square = A_HEADS * SEQ * SEQ;
    float *sinks = c->flags & SUNK ? in(x) + A_X : NULL;

    LAUNCH(smp_cpu_scores, A_DIMS(0), 0, in(x), s);
    LAUNCH(smp_cpu_softmax, DIMS(S_ROWS, SEQ, c->kind),
           c->flags & CHUNKED ? SMP_FLAG_CHUNKED : 0, s, p, sinks);
    LAUNCH(smp_cpu_dropout, DIMS(SQUARES, 0x40000000u, square, square, 0,
                                 SMP_SITE_PROBABILITIES), 0, p, dropped, (float *)(void *)mask);
    LAUNCH(smp_cpu_values, A_DIMS(0), 0, probabilities, in(x), y);
    LAUNCH(smp_cpu_values_grad, A_DIMS(0), 0, in(dy), probabilities, in(x), dp, dx);
    if (c->flags & DROPPED) {
        LAUNCH(smp_cpu_dropout_grad, DIMS(SQUARES, 0x40000000u, square, square, 0, 0), 0, dp,
               (float *)(void *)mask, ds);
        memcpy(dp, ds, sizeof dp);
    }
    if (c->flags & CAPPED) {
        LAUNCH(smp_cpu_softmax_grad, DIMS(S_ROWS, SEQ), 0, dp, p, ds, s, sinks, dx + A_X);
    } else {
        LAUNCH(smp_cpu_softmax_grad, DIMS(S_ROWS, SEQ), 0, dp, p, ds, sinks, dx + A_X);
    }
    LAUNCH(smp_cpu_scores_grad, A_DIMS(0), 0, ds, in(x), dx);
}

static void attention_run(const gradient_case *c, const float *x, float *y, const float *dy,
                          float *dx)
{
    float lse[BATCH * SEQ * A_HEADS];
    float *sinks = c->flags & SUNK ? in(x) + A_X : NULL;
    uint32_t flags = SMP_FLAG_CAUSAL;

    prepare_attention(c);
    if (c->flags & NAIVE) {
        naive_run(c, x, y, dy, dx);
        return;
    }
    flags |= c->flags & CHUNKED ? SMP_FLAG_CHUNKED : 0;
    LAUNCH(smp_cpu_attention, A_DIMS(c->kind), flags, in(x), y, lse, sinks);
    LAUNCH(smp_cpu_attention_grad, A_DIMS(c->kind), flags, in(dy), in(x), y, lse, dx, sinks,
           dx + A_X);
}

/* ---- activations ---- */

static double act(uint64_t kind, double x)
{
    switch ((smp_activation)kind) {
    case SMP_ACT_SILU:
        return x / (1 + exp(-x));
    case SMP_ACT_GELU:
        return 0.5 * x * (1 + erf(x / sqrt(2)));
    case SMP_ACT_GELU_TANH:
        return 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846)
                                   * (x + 0.044715 * x * x * x)));
    case SMP_ACT_RELU:
        return x > 0 ? x : 0;
    case SMP_ACT_QUICK_GELU:
        return x / (1 + exp(-1.702 * x));
    case SMP_ACT_CLAMPED_SWIGLU: /* gated only: a case of its own */
        break;
    }
    return (double)NAN;
}

static void activation_reference(const gradient_case *c, const double *x, double *y)
{
    for (int i = 0; i < M * N; i++) {
        y[i] = act(c->kind, x[i]);
    }
}

static void activation_run(const gradient_case *c, const float *x, float *y, const float *dy,
                           float *dx)
{
    LAUNCH(smp_cpu_activation, DIMS(M * N, c->kind), 0, in(x), y);
    LAUNCH(smp_cpu_activation_grad, DIMS(M * N, c->kind), 0, in(dy), in(x), dx);
}

static void gated_reference(const gradient_case *c, const double *x, double *y)
{
    for (int i = 0; i < M * N; i++) {
        const double *row = x + i / N * 2 * N;

        y[i] = act(c->kind, row[i % N]) * row[N + i % N];
    }
}

static void gated_run(const gradient_case *c, const float *x, float *y, const float *dy,
                      float *dx)
{
    LAUNCH(smp_cpu_gated, DIMS(M, N, c->kind), 0, in(x), y);
    LAUNCH(smp_cpu_gated_grad, DIMS(M, N, c->kind), 0, in(dy), in(x), dx);
}

/* ---- embedding with positions: 5 tokens, a vocabulary of 4, positions start over at 3 ---- */

enum { E_TOKENS = 5, E_VOCAB = 4, E_HIDDEN = 3, E_SEQ = 3 };

static const int32_t ids[E_TOKENS] = { 2, 0, 2, 3, 0 };

static void embed_reference(const gradient_case *c, const double *x, double *y)
{
    (void)c;
    for (int i = 0; i < E_TOKENS * E_HIDDEN; i++) {
        y[i] = x[ids[i / E_HIDDEN] * E_HIDDEN + i % E_HIDDEN]
               + x[(E_VOCAB + i / E_HIDDEN % E_SEQ) * E_HIDDEN + i % E_HIDDEN];
    }
}

static void embed_run(const gradient_case *c, const float *x, float *y, const float *dy,
                      float *dx)
{
    int32_t copy[E_TOKENS];

    (void)c;
    memcpy(copy, ids, sizeof copy);
    LAUNCH(smp_cpu_embed, DIMS(E_TOKENS, E_HIDDEN, E_VOCAB), 0, in(x), (float *)(void *)copy,
           y);
    LAUNCH(smp_cpu_position, DIMS(E_TOKENS, E_HIDDEN, E_SEQ, 0), 0,
           in(x) + E_VOCAB * E_HIDDEN, y);
    memset(dx, 0, (E_VOCAB + E_SEQ) * E_HIDDEN * sizeof *dx);
    LAUNCH(smp_cpu_embed_grad, DIMS(E_TOKENS, E_HIDDEN, E_VOCAB), SMP_FLAG_ACCUMULATE, in(dy),
           (float *)(void *)copy, dx);
    LAUNCH(smp_cpu_position_grad, DIMS(E_TOKENS, E_HIDDEN, E_SEQ, 0), SMP_FLAG_ACCUMULATE,
           in(dy), dx + E_VOCAB * E_HIDDEN);
}

/* ---- loss: one number, whose gradient the kernel writes in place of the logits ---- */

enum { L_TOKENS = 4, L_VOCAB = 5, L_TRUE = 4 };

static const int32_t targets[L_TOKENS] = { 3, 0, -1, 1 };

static void loss_reference(const gradient_case *c, const double *x, double *y)
{
    (void)c;
    y[0] = 0;
    for (int i = 0; i < L_TOKENS; i++) {
        double sum = 0;

        for (int j = 0; j < L_TRUE; j++) {
            sum += exp(x[i * L_VOCAB + j]);
        }
        y[0] += targets[i] < 0 ? 0 : (log(sum) - x[i * L_VOCAB + targets[i]]) / 10;
    }
}

static void loss_run(const gradient_case *c, const float *x, float *y, const float *dy,
                     float *dx)
{
    int32_t copy[L_TOKENS];
    float stats[3 * L_TOKENS], sums[SMP_SUMS] = { 0 }, state[SMP_SCALARS] = { 0 };

    (void)c;
    job.settings.micro_batch = 1;
    job.batch.seq_len = L_TOKENS;
    memcpy(copy, targets, sizeof copy);
    memcpy(dx, x, L_TOKENS * L_VOCAB * sizeof *dx);
    state[SMP_SCALAR_LOSS_SCALE] = dy[0]; /* multiplies the gradient */
    LAUNCH(smp_cpu_loss, DIMS(L_TOKENS, L_VOCAB, 0, L_TRUE), 0, dx, (float *)(void *)copy,
           stats);
    LAUNCH(smp_cpu_loss_grad, DIMS(L_TOKENS, L_VOCAB, 0, L_TRUE, 1, 10), 0, dx,
           (float *)(void *)copy, stats, sums, state);
    y[0] = sums[SMP_SUM_LOSS];
}

/* ---- the comparison ---- */

#define NORM(text, layer, bias)                                                             \
    { text, ROWS *WIDTH + WIDTH * (1 + (bias)), ROWS *WIDTH, norm_reference, norm_run,      \
      (layer), (bias) }
#define ATTENTION(text, window, flags)                                                      \
    { text, A_X + ((flags) & SUNK ? A_HEADS : 0), BATCH *SEQ *A_Y, attention_reference,     \
      attention_run, (window), (flags) }
#define ACTIVATION(kind)                                                                    \
    { #kind, M *N, M *N, activation_reference, activation_run, SMP_ACT_##kind, 0 },         \
    { "gated " #kind, 2 * M *N, M *N, gated_reference, gated_run, SMP_ACT_##kind, 0 }

static const gradient_case cases[] = {
    { "matmul", M * K + N * K + N, M * N, matmul_reference, matmul_run, 0, 0 },
    { "bias", M * N + N, M * N, bias_reference, bias_run, 0, 0 },
    NORM("rms norm", SMP_NORM_RMS, 0),
    NORM("rms norm with bias", SMP_NORM_RMS, 1),
    NORM("layer norm", SMP_NORM_LAYER, 0),
    NORM("layer norm with bias", SMP_NORM_LAYER, 1),
    { "qk norm", TOKENS * QKV + 2 * HEAD_DIM, TOKENS * QKV, qk_norm_reference, qk_norm_run, 0,
      0 },
    { "rope", TOKENS * QKV, TOKENS * QKV, rope_reference, rope_run, 0, 0 },
    ATTENTION("attention", 0, 0),
    ATTENTION("attention in a window", 3, 0),
    ATTENTION("attention in chunks", 3, CHUNKED),
    ATTENTION("attention with a cap", 0, CAPPED),
    ATTENTION("attention with slopes", 0, SLOPED),
    ATTENTION("attention with dropout", 0, DROPPED),
    ATTENTION("attention with sinks", 0, SUNK),
    ATTENTION("attention with everything", 4, CAPPED | SLOPED | DROPPED | SUNK),
    ATTENTION("naive attention", 0, NAIVE),
    ATTENTION("naive attention in a window", 3, NAIVE),
    ATTENTION("naive attention in chunks", 3, NAIVE | CHUNKED),
    ATTENTION("naive attention with dropout", 0, NAIVE | DROPPED),
    ATTENTION("naive attention with a cap", 0, NAIVE | CAPPED),
    ATTENTION("naive attention with slopes", 0, NAIVE | SLOPED),
    ATTENTION("naive attention with sinks", 0, NAIVE | SUNK),
    ATTENTION("naive attention with everything", 4, NAIVE | CAPPED | SLOPED | DROPPED | SUNK),
    ACTIVATION(SILU),
    ACTIVATION(GELU),
    ACTIVATION(GELU_TANH),
    ACTIVATION(RELU),
    ACTIVATION(QUICK_GELU),
    { "embedding and positions", (E_VOCAB + E_SEQ) * E_HIDDEN, E_TOKENS * E_HIDDEN,
      embed_reference, embed_run, 0, 0 },
    { "loss", L_TOKENS * L_VOCAB, 1, loss_reference, loss_run, 0, 0 },
};

static void gradients_are_derivatives(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        table[0][i] = (float)cos(0.3 + i);
        table[1][i] = (float)sin(0.3 + i);
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check_case(&cases[i]);
    }
    check_coverage(FILE_GRADIENTS);
}

/* A product is cut in three, at borders that divide nothing evenly, and is the same to the bit;
 * its bias, and what it adds to, are there once. */
static void shared_products_change_no_bit(void **state)
{
    enum { TALL = 300, BROAD = 520 };
    enum { Y = TALL * TALL, X = TALL * BROAD, DW = BROAD * BROAD };
    static float x[X], w[X], bias[TALL], out[2][Y + DW + X + TALL];
    smp_pool *pool = smp_pool_create(3);

    (void)state;
    for (uint64_t i = 0; i < X; i++) {
        x[i] = (float)noise(8, i);
        w[i] = (float)noise(9, i);
        bias[i % TALL] = (float)noise(10, i);
        out[0][i] = out[1][i] = (float)noise(11, i);
    }
    for (int t = 0; t < 2; t++) {
        float *y = out[t], *dw = y + Y, *dx = dw + DW, *db = dx + X;

        cpu.pool = t ? pool : NULL;
        LAUNCH(smp_cpu_matmul, DIMS(TALL, TALL, BROAD), 0, x, w, y, bias);
        LAUNCH(smp_cpu_matmul_dx, DIMS(TALL, BROAD, TALL), SMP_FLAG_ACCUMULATE, y, w, dx);
        LAUNCH(smp_cpu_matmul_dw, DIMS(BROAD, BROAD, TALL), SMP_FLAG_ACCUMULATE, x, w, dw);
        LAUNCH(smp_cpu_matmul_dw, DIMS(TALL, BROAD, TALL), 0, y, w, dw, db);
    }
    cpu.pool = NULL;
    smp_pool_destroy(pool);
    assert_memory_equal(out[0], out[1], sizeof out[0]);
    for (uint64_t i = 0; i < Y; i += 997) {
        double sum = (double)bias[i % TALL];

        for (uint64_t j = 0; j < BROAD; j++) {
            sum += (double)x[i / TALL * BROAD + j] * (double)w[i % TALL * BROAD + j];
        }
        assert_true(fabs((double)out[1][i] - sum) < 1e-4);
    }
}

/* Streaming against naive attention where there are many blocks, the last ones not full. */
static void blocks_join(void **state)
{
    enum { LONG = 301, DIM = 8, WIDE = 4 * DIM, Y = 2 * DIM };
    static float x[LONG * WIDE], y[2][LONG * Y], dy[LONG * Y], dx[2][LONG * WIDE];
    static float s[2 * LONG * LONG], p[2 * LONG * LONG], lse[2 * LONG];
    static const uint64_t windows[] = { 0, 1, 50, 130, 300 };

    (void)state;
    block = (smp_block){ .attention = { .heads = 2, .kv_heads = 1, .head_dim = DIM } };
    model.position = SMP_POSITION_NONE;
    for (int i = 0; i < LONG * WIDE; i++) {
        x[i] = (float)noise(3, (uint64_t)i);
        dy[i % (LONG * Y)] = (float)noise(4, (uint64_t)i);
    }
    for (size_t w = 0; w < sizeof windows / sizeof windows[0]; w++) {
        LAUNCH(smp_cpu_attention, DIMS(1, LONG, 2, 1, DIM, windows[w]), 0, x, y[0], lse);
        LAUNCH(smp_cpu_attention_grad, DIMS(1, LONG, 2, 1, DIM, windows[w]), 0, dy, x, y[0],
               lse, dx[0]);
        LAUNCH(smp_cpu_scores, DIMS(1, LONG, 2, 1, DIM), 0, x, s);
        LAUNCH(smp_cpu_softmax, DIMS(2 * LONG, LONG, windows[w]), 0, s, p);
        LAUNCH(smp_cpu_values, DIMS(1, LONG, 2, 1, DIM), 0, p, x, y[1]);
        LAUNCH(smp_cpu_values_grad, DIMS(1, LONG, 2, 1, DIM), 0, dy, p, x, s, dx[1]);
        LAUNCH(smp_cpu_softmax_grad, DIMS(2 * LONG, LONG), 0, s, p, s);
        LAUNCH(smp_cpu_scores_grad, DIMS(1, LONG, 2, 1, DIM), 0, s, x, dx[1]);
        for (int i = 0; i < LONG * WIDE; i++) {
            assert_true(fabsf(y[0][i % (LONG * Y)] - y[1][i % (LONG * Y)]) < 2e-6f);
            assert_true(fabsf(dx[0][i] - dx[1][i]) < 2e-5f);
        }
    }
}

/* Sums that are shared by threads, and rows: sizes at which loops are cut, to the bit. */
static void threads_change_no_bit(void **state)
{
    enum { TALL = 300, BROAD = 512, ALL = TALL * BROAD };
    static float x[ALL], dy[ALL], w[BROAD], out[2][3 * ALL + 2 * BROAD], lse[TALL * 8];
    smp_pool *pool = smp_pool_create(3);

    (void)state;
    block = (smp_block){ .attention = { .heads = 4, .kv_heads = 2, .head_dim = 64 } };
    model.position = SMP_POSITION_NONE;
    for (uint64_t i = 0; i < ALL; i++) {
        x[i] = (float)noise(5, i);
        dy[i] = (float)noise(6, i);
        w[i % BROAD] = (float)noise(7, i);
    }
    for (int t = 0; t < 2; t++) {
        cpu.pool = t ? pool : NULL;
        LAUNCH(smp_cpu_norm, DIMS(TALL, BROAD, SMP_NORM_LAYER), 0, x, w, out[t], w);
        LAUNCH(smp_cpu_norm_grad, DIMS(TALL, BROAD, SMP_NORM_LAYER), SMP_FLAG_ADD_DX, dy, x, w,
               out[t], out[t] + 3 * ALL, out[t] + 3 * ALL + BROAD);
        LAUNCH(smp_cpu_attention, DIMS(1, TALL, 4, 2, 64, 0), 0, x, out[t] + ALL, lse);
        LAUNCH(smp_cpu_attention_grad, DIMS(1, TALL, 4, 2, 64, 0), 0, dy, x, out[t] + ALL, lse,
               out[t] + 2 * ALL);
        LAUNCH(smp_cpu_bias, DIMS(TALL, BROAD), 0, out[t], w);
        LAUNCH(smp_cpu_bias_grad, DIMS(TALL, BROAD), SMP_FLAG_ACCUMULATE, out[t],
               out[t] + 3 * ALL);
        LAUNCH(smp_cpu_activation, DIMS(ALL, SMP_ACT_GELU_TANH), 0, out[t], out[t]);
    }
    cpu.pool = NULL;
    smp_pool_destroy(pool);
    assert_memory_equal(out[0], out[1], sizeof out[0]);
}

/* e^x of the kernels against the library's, over the whole range of finite results. */
static void exponential_is_close(void **state)
{
    (void)state;
    for (int i = -8700; i <= 8800; i++) {
        double x = (double)((float)i / 100);

        check_rel((double)smp_expf((float)x), exp(x), 3e-7);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(gradients_are_derivatives),
    cmocka_unit_test(blocks_join),
    cmocka_unit_test(threads_change_no_bit),
    cmocka_unit_test(shared_products_change_no_bit),
    cmocka_unit_test(exponential_is_close),
};

CHECK_MAIN(tests)
