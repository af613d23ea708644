/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations that not every family has, and their gradients, against formulas in double:
 * experts, latent attention, bounds, gates.
 */
#include "config.h"

#include "tests/exec/gradients.h"

#include "exec/cpu_rows.h"

/* ---- routing ---- */

enum { TOKENS = 4, EXPERTS = 6, TOP = 3 };

#define SCALE 1.5

static uint64_t route_dims3(const gradient_case *c)
{
    const float scale = (float)SCALE;
    uint32_t bits;

    memcpy(&bits, &scale, sizeof bits);
    return c->kind | (uint64_t)bits << 32;
}

static void scores_of(const gradient_case *c, const double *x, double *s)
{
    double sum = 0;

    for (int e = 0; e < EXPERTS; e++) {
        sum += exp(x[e]);
    }
    for (int e = 0; e < EXPERTS; e++) {
        s[e] = c->kind & SMP_ROUTE_SIGMOID ? 1 / (1 + exp(-x[e])) : exp(x[e]) / sum;
    }
}

static void chosen_of(const gradient_case *c, int t, const double *s, int *chosen)
{
    for (int k = 0; k < TOP; k++) {
        int best = -1;

        for (int e = 0; e < EXPERTS; e++) {
            bool taken = false;

            for (int j = 0; j < k; j++) {
                taken = taken || chosen[j] == e;
            }
            best = !taken && (best < 0 || s[e] > s[best]) ? e : best;
        }
        chosen[k] = (c->kind & 3) == SMP_BALANCING_BALANCED ? (t * TOP + k) % EXPERTS : best;
    }
}

static void route_reference(const gradient_case *c, const double *x, double *y)
{
    for (int t = 0; t < TOKENS; t++) {
        double s[EXPERTS], sum = 0;
        int chosen[TOP];

        scores_of(c, x + t * EXPERTS, s);
        chosen_of(c, t, s, chosen);
        for (int k = 0; k < TOP; k++) {
            sum += s[chosen[k]];
        }
        for (int k = 0; k < TOP; k++) {
            y[t * TOP + k] = SCALE * s[chosen[k]] / (c->kind & SMP_ROUTE_NORMALISE ? sum : 1);
        }
    }
}

static void route_run(const gradient_case *c, const float *x, float *y, const float *dy,
                      float *dx)
{
    smp_choice choice[TOKENS * TOP];
    int32_t counts[EXPERTS], total = 0;
    float state[SMP_SCALARS] = { [SMP_SCALAR_LOSS_SCALE] = 1 };

    job.micro_batches = 1;
    job.batch.seq_len = TOKENS;
    job.settings.micro_batch = 1;
    LAUNCH(smp_cpu_route, DIMS(TOKENS, EXPERTS, TOP, route_dims3(c)), 0, in(x), choice, counts);
    for (int i = 0; i < TOKENS * TOP; i++) {
        y[i] = choice[i].weight;
    }
    for (int e = 0; e < EXPERTS; e++) {
        total += counts[e];
    }
    assert_int_equal(total, TOKENS * TOP);
    LAUNCH(smp_cpu_route_grad, DIMS(TOKENS, EXPERTS, TOP, route_dims3(c)), 0, in(dy), in(x),
           choice, dx, state);
}

/* Balancing and z loss; choices do not change with x. */
#define AUX 0.75
#define Z 0.5

static void losses_reference(const gradient_case *c, const double *x, double *y)
{
    double p[EXPERTS] = { 0 }, n[EXPERTS] = { 0 }, z = 0;

    y[0] = 0;
    for (int t = 0; t < TOKENS; t++) {
        double s[EXPERTS], sum = 0;
        int chosen[TOP];

        scores_of(c, x + t * EXPERTS, s);
        chosen_of(c, t, s, chosen);
        for (int e = 0; e < EXPERTS; e++) {
            p[e] += s[e];
            sum += exp(x[t * EXPERTS + e]);
        }
        for (int k = 0; k < TOP; k++) {
            n[chosen[k]]++;
        }
        z += log(sum) * log(sum) / TOKENS;
    }
    for (int e = 0; e < EXPERTS; e++) {
        y[0] += AUX * EXPERTS / (TOKENS * TOKENS * TOP) * p[e] * n[e];
    }
    y[0] += Z * z;
}

static void losses_run(const gradient_case *c, const float *x, float *y, const float *dy,
                       float *dx)
{
    smp_choice choice[TOKENS * TOP];
    int32_t counts[EXPERTS];
    float none[TOKENS * TOP] = { 0 }, sums[2 * EXPERTS];
    float state[SMP_SCALARS] = { [SMP_SCALAR_LOSS_SCALE] = dy[0] };
    double wide[TOKENS * EXPERTS], loss[1];

    job.micro_batches = 1;
    job.batch.seq_len = TOKENS;
    job.settings.micro_batch = 1;
    for (int i = 0; i < TOKENS * EXPERTS; i++) {
        wide[i] = (double)x[i];
    }
    losses_reference(c, wide, loss); /* no operation gives the value */
    y[0] = (float)loss[0];
    LAUNCH(smp_cpu_route, DIMS(TOKENS, EXPERTS, TOP, route_dims3(c)), 0, in(x), choice, counts);
    LAUNCH(smp_cpu_route_statistics, DIMS(TOKENS, EXPERTS, TOP), 0, in(x), choice, sums);
    LAUNCH(smp_cpu_route_grad,
           DIMS(TOKENS, EXPERTS, TOP, route_dims3(c), (uint64_t)(AUX * 0x1p32),
                (uint64_t)(Z * 0x1p32)),
           0, none, in(x), choice, dx, state, sums);
}

/* ---- rows: tokens to experts and back, weighted; one pair is dropped ---- */

enum { HIDDEN = 5, PAIRS = TOKENS * 2 };

static const int32_t experts_of[PAIRS] = { 2, 0, 0, 1, ~1, 2, 2, 1 };
static const int32_t rows_of_experts[3] = { 2, 2, 3 };

/* kind 1: the weights multiply what experts read, of which the square, say, comes back. */
static void rows_reference(const gradient_case *c, const double *x, double *y)
{
    const double *w = x + TOKENS * HIDDEN;

    for (int i = 0; i < TOKENS * HIDDEN; i++) {
        int t = i / HIDDEN;

        y[i] = 0;
        for (int k = 0; k < 2; k++) {
            double row = w[2 * t + k] * x[i];

            y[i] += experts_of[2 * t + k] < 0 ? 0 : c->kind ? row * row : row;
        }
    }
}

static void squares_run(const float *x, float *y, const float *dy, float *dx,
                        smp_choice *choice, int32_t *counts)
{
    float rows[PAIRS * HIDDEN] = { 0 }, squares[PAIRS * HIDDEN], drows[PAIRS * HIDDEN];

    LAUNCH(smp_cpu_permute, DIMS(TOKENS, HIDDEN, 2, PAIRS, PAIRS, 1), 0, in(x), choice, counts,
           rows);
    for (int i = 0; i < PAIRS * HIDDEN; i++) {
        squares[i] = rows[i] * rows[i];
    }
    LAUNCH(smp_cpu_combine, DIMS(TOKENS, HIDDEN, 2, PAIRS, PAIRS, 1), 0, squares, choice,
           counts, y);
    LAUNCH(smp_cpu_permute, DIMS(TOKENS, HIDDEN, 2, PAIRS, PAIRS, 0), 0, in(dy), choice,
           counts, drows);
    for (int i = 0; i < PAIRS * HIDDEN; i++) {
        drows[i] *= 2 * rows[i];
    }
    LAUNCH(smp_cpu_permute_grad, DIMS(TOKENS, HIDDEN, 2, PAIRS, PAIRS, 1), 0, drows, choice,
           counts, dx, in(x), dx + TOKENS * HIDDEN);
}

static void rows_run(const gradient_case *c, const float *x, float *y, const float *dy,
                     float *dx)
{
    const float *w = x + TOKENS * HIDDEN;
    smp_choice choice[PAIRS];
    int32_t counts[3];
    float rows[PAIRS * HIDDEN], drows[PAIRS * HIDDEN];

    block.moe.experts = 3;
    plan_bytes = sizeof counts;
    memcpy(counts, rows_of_experts, sizeof counts);
    for (int i = 0; i < PAIRS; i++) {
        choice[i] = (smp_choice){ experts_of[i] < 0 ? 0 : w[i], experts_of[i] };
    }
    plan_operand = 2;
    if (c->kind) {
        squares_run(x, y, dy, dx, choice, counts);
        return;
    }
    LAUNCH(smp_cpu_permute, DIMS(TOKENS, HIDDEN, 2, PAIRS, PAIRS), 0, in(x), choice, counts,
           rows);
    LAUNCH(smp_cpu_combine, DIMS(TOKENS, HIDDEN, 2, PAIRS, PAIRS), 0, rows, choice, counts, y);
    plan_operand = 3;
    LAUNCH(smp_cpu_combine_grad, DIMS(TOKENS, HIDDEN, 2, PAIRS, PAIRS), 0, in(dy), rows, choice,
           counts, drows, dx + TOKENS * HIDDEN);
    plan_operand = 2;
    LAUNCH(smp_cpu_permute_grad, DIMS(TOKENS, HIDDEN, 2, PAIRS, PAIRS), 0, drows, choice,
           counts, dx);
}

/* ---- products of experts: two parameters of each, with biases; one has no rows ---- */

enum { G_EXPERTS = 3, G_ROWS = 7, G_N = 4, G_K = 3, G_BOTH = 2 * G_N,
       G_X = G_ROWS * G_K, G_W = G_EXPERTS * G_BOTH * G_K };

static const int32_t group_rows[G_EXPERTS] = { 4, 0, 3 };

static void grouped_reference(const gradient_case *c, const double *x, double *y)
{
    const double *w = x + G_X, *b = w + G_W;

    (void)c;
    for (int i = 0; i < G_ROWS * G_BOTH; i++) {
        int row = i / G_BOTH, j = i % G_BOTH, e = row < group_rows[0] ? 0 : 2;
        int at = (j / G_N * G_EXPERTS + e) * G_N + j % G_N;

        y[i] = b[at];
        for (int k = 0; k < G_K; k++) {
            y[i] += x[row * G_K + k] * w[at * G_K + k];
        }
    }
}

static void grouped_run(const gradient_case *c, const float *x, float *y, const float *dy,
                        float *dx)
{
    float *w = in(x) + G_X, *dw = dx + G_X;
    int32_t counts[G_EXPERTS];

    (void)c;
    block.moe.experts = G_EXPERTS;
    plan_bytes = sizeof counts;
    memcpy(counts, group_rows, sizeof counts);
    plan_operand = 1;
    LAUNCH(smp_cpu_grouped_matmul, DIMS(G_ROWS, G_ROWS, G_BOTH, G_K, G_EXPERTS, 0, 2, 1), 0,
           in(x), counts, w, y, w + G_W);
    LAUNCH(smp_cpu_grouped_matmul_dx, DIMS(G_ROWS, G_ROWS, G_K, G_BOTH, G_EXPERTS, 0, 2, 1), 0,
           in(dy), counts, w, dx);
    plan_operand = 2;
    LAUNCH(smp_cpu_grouped_matmul_dw, DIMS(G_ROWS, G_ROWS, G_BOTH, G_K, G_EXPERTS, 1, 2, 1), 0,
           in(dy), in(x), counts, dw, dw + G_W);
}

/* ---- gates ---- */

static void gate_reference(const gradient_case *c, const double *x, double *y)
{
    (void)c;
    for (int i = 0; i < TOKENS * HIDDEN; i++) {
        y[i] = x[TOKENS + i] / (1 + exp(-x[i / HIDDEN]));
    }
}

static void gate_run(const gradient_case *c, const float *x, float *y, const float *dy,
                     float *dx)
{
    (void)c;
    LAUNCH(smp_cpu_gate_rows, DIMS(TOKENS, HIDDEN), 0, in(x), in(x) + TOKENS, y);
    LAUNCH(smp_cpu_gate_rows_grad, DIMS(TOKENS, HIDDEN), 0, in(dy), in(x), in(x) + TOKENS, dx,
           dx + TOKENS);
}

/* gpt_oss: inputs times 12, so that both bounds of 7 are reached. */
enum { S_ROWS = 6, S_FFN = 5 };

static void swiglu_reference(const gradient_case *c, const double *x, double *y)
{
    (void)c;
    for (int i = 0; i < S_ROWS * S_FFN; i++) {
        double g = fmin(12 * x[i / S_FFN * 2 * S_FFN + i % S_FFN], 7);
        double u = 12 * x[(i / S_FFN * 2 + 1) * S_FFN + i % S_FFN];

        y[i] = g / (1 + exp(-1.702 * g)) * (fmax(fmin(u, 7), -7) + 1) / 12;
    }
}

static void swiglu_run(const gradient_case *c, const float *x, float *y, const float *dy,
                       float *dx)
{
    float wide[2 * S_ROWS * S_FFN];

    (void)c;
    for (int i = 0; i < 2 * S_ROWS * S_FFN; i++) {
        wide[i] = 12 * x[i];
    }
    LAUNCH(smp_cpu_gated, DIMS(S_ROWS, S_FFN, SMP_ACT_CLAMPED_SWIGLU), 0, wide, y);
    LAUNCH(smp_cpu_gated_grad, DIMS(S_ROWS, S_FFN, SMP_ACT_CLAMPED_SWIGLU), 0, in(dy), wide,
           dx);
    for (int i = 0; i < S_ROWS * S_FFN; i++) {
        y[i] /= 12; /* and 12 dx / 12 is dx */
    }
}

static void clip_reference(const gradient_case *c, const double *x, double *y)
{
    for (uint64_t i = 0; i < c->n_in; i++) {
        y[i] = fmax(fmin(x[i], 0.5), -0.5);
    }
}

static void clip_run(const gradient_case *c, const float *x, float *y, const float *dy,
                     float *dx)
{
    uint8_t mask[64];

    block.attention.clip = 0.5;
    memcpy(y, x, c->n_in * sizeof *y);
    memcpy(dx, dy, c->n_in * sizeof *dx);
    LAUNCH(smp_cpu_clip, DIMS(c->n_in), 0, y, (float *)(void *)mask);
    LAUNCH(smp_cpu_clip_grad, DIMS(c->n_in), 0, dx, (float *)(void *)mask);
}

/* ---- latent attention ---- */

enum { L_HEADS = 2, NOPE = 3, TURNED = 4, L_V = 2, LATENT = 5, L_ROW = LATENT + TURNED,
       L_Q = L_HEADS * (NOPE + TURNED), L_KV = L_HEADS * (NOPE + L_V),
       L_QKV = L_HEADS * (2 * (NOPE + TURNED) + L_V) };

static void turn(const gradient_case *c, const double *x, int t, double *y)
{
    for (int j = 0; j < 2; j++) {
        double co = (double)table[0][t % 2 * 2 + j], si = (double)table[1][t % 2 * 2 + j];
        int a = c->kind ? 2 * j : j, b = c->kind ? 2 * j + 1 : j + 2;

        y[a] = x[a] * co - x[b] * si;
        y[b] = x[b] * co + x[a] * si;
    }
}

static void latent_reference(const gradient_case *c, const double *x, double *y)
{
    const double *kv = x + TOKENS * L_Q, *latent = kv + TOKENS * L_KV;

    for (int t = 0; t < TOKENS; t++) {
        double *q = y + t * L_QKV, *k = q + L_Q, *v = k + L_Q;

        for (int h = 0; h < L_HEADS; h++) {
            const double *from = kv + t * L_KV + h * (NOPE + L_V);
            int at = h * (NOPE + TURNED);

            memcpy(q + at, x + t * L_Q + at, NOPE * sizeof *q);
            turn(c, x + t * L_Q + at + NOPE, t, q + at + NOPE);
            memcpy(k + at, from, NOPE * sizeof *k);
            turn(c, latent + t * L_ROW + LATENT, t, k + at + NOPE);
            memcpy(v + h * L_V, from + NOPE, L_V * sizeof *v);
        }
    }
}

static void latent_run(const gradient_case *c, const float *x, float *y, const float *dy,
                       float *dx)
{
    float *kv = in(x) + TOKENS * L_Q, *dkv = dx + TOKENS * L_Q;
    float *dlatent = dkv + TOKENS * L_KV;

    model.rope_interleaved = c->kind != 0;
    job.batch.seq_len = 2;
    job.settings.micro_batch = TOKENS / 2;
    LAUNCH(smp_cpu_latent, DIMS(TOKENS, L_HEADS, NOPE, TURNED, L_V, 2, L_ROW), 0, in(x), kv,
           kv + TOKENS * L_KV, y);
    LAUNCH(smp_cpu_latent_grad, DIMS(TOKENS, L_HEADS, NOPE, TURNED, L_V, 2, L_ROW), 0, in(dy),
           dx, dkv, dlatent);
    for (int t = 0; t < TOKENS; t++) { /* of the latent itself there is no gradient here */
        for (int j = 0; j < LATENT; j++) {
            dlatent[t * L_ROW + j] = 0;
        }
    }
    model.rope_interleaved = false;
}

#define ROUTE(text, mode) { text, TOKENS *EXPERTS, TOKENS *TOP, route_reference, route_run, \
                            (mode), 0 }

static const gradient_case cases[] = {
    ROUTE("route", SMP_BALANCING_NONE),
    ROUTE("route, normalised", SMP_BALANCING_NONE | SMP_ROUTE_NORMALISE),
    ROUTE("route, sigmoid", SMP_BALANCING_NONE | SMP_ROUTE_SIGMOID),
    ROUTE("route, sigmoid, normalised",
          SMP_BALANCING_NONE | SMP_ROUTE_SIGMOID | SMP_ROUTE_NORMALISE),
    ROUTE("route in turn", SMP_BALANCING_BALANCED | SMP_ROUTE_NORMALISE),
    { "balancing losses", TOKENS * EXPERTS, 1, losses_reference, losses_run,
      SMP_BALANCING_AUX_LOSS, 0 },
    { "rows of tokens", TOKENS * HIDDEN + PAIRS, TOKENS * HIDDEN, rows_reference, rows_run, 0,
      0 },
    { "rows with weights", TOKENS * HIDDEN + PAIRS, TOKENS * HIDDEN, rows_reference, rows_run,
      1, 0 },
    { "products of experts", G_X + G_W + G_EXPERTS * G_BOTH, G_ROWS * G_BOTH,
      grouped_reference, grouped_run, 0, 0 },
    { "rows behind a gate", TOKENS + TOKENS * HIDDEN, TOKENS * HIDDEN, gate_reference, gate_run,
      0, 0 },
    { "swiglu in bounds", 2 * S_ROWS * S_FFN, S_ROWS * S_FFN, swiglu_reference, swiglu_run, 0,
      0 },
    { "clip", 40, 40, clip_reference, clip_run, 0, 0 },
    { "latent", TOKENS * (L_Q + L_KV + L_ROW), TOKENS * L_QKV, latent_reference, latent_run, 0,
      0 },
    { "latent, neighbours turn", TOKENS * (L_Q + L_KV + L_ROW), TOKENS * L_QKV,
      latent_reference, latent_run, 1, 0 },
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
        plan_operand = UINT32_MAX;
    }
    check_coverage(FILE_MORE_GRADIENTS);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(gradients_are_derivatives),
};

CHECK_MAIN(tests)
