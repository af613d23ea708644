/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every combination of the options of attention, in every type, against plain attention in
 * double: the output, and the gradients by the chain rule written out on the whole matrix of
 * probabilities (which test_gradients holds against differences).
 */
#include "config.h"

#include "tests/exec/tiny.h"

#include "exec/cpu_head.h"

#include "base/numeric.h"

enum { BATCH = 2, SEQ = 9, D = 4, MOST = 6000 };

/* What is chosen: the number of values of each option. */
enum { PLACE, HEADS, DV, CAUSAL, WINDOW, SCALE, CAP, ALIBI, DROPOUT, SINKS, TYPE, OPTIONS };
static const int values[OPTIONS] = { 5, 3, 2, 2, 3, 2, 2, 2, 2, 2, 3 };

static smp_model model = { .name = "test", .family = "llama" };
static smp_block block;
static smp_job job = { .model = &model };
static smp_rank rank = { .job = &job, .tensor = 1, .data_ranks = 1 };
static smp_cpu cpu = { .rank = &rank };

typedef struct combination {
    int of[OPTIONS];
    int heads, kv, dv, window;
    double scale, cap, rate;
    smp_heads all;
    smp_launch launch;
} combination;

static float memory[4][MOST]; /* q, k, v and their gradients; y and dy */
static uint16_t half[4][MOST]; /* the same in 16 bits, at the same places */

/* What may be wrong: sums in another order; or roundings of results, and of y in backward. */
typedef struct type { smp_dtype dtype; double tolerance; } type;
static const type types[] = { { SMP_F32, 4e-6 }, { SMP_BF16, 0.04 }, { SMP_F16, 0.005 } };

static smp_dtype dtype_of(const combination *c)
{
    return types[c->of[TYPE]].dtype;
}

static void to_half(smp_lie *lie)
{
    for (int i = 0; i < 4; i++) {
        const float *at = lie->data;

        if (at >= memory[i] && at < memory[i] + MOST) {
            lie->data = half[i] + (at - memory[i]);
            return;
        }
    }
}

/* All operands to 16 bits; numbers are such that this changes none. */
static void narrow(combination *c)
{
    smp_lie *lies[] = { &c->all.q, &c->all.k, &c->all.v, &c->all.y, &c->all.dy, &c->all.dq,
                        &c->all.dk, &c->all.dvalues };

    for (int i = 0; i < 4; i++) {
        smp_store(half[i], dtype_of(c), 0, memory[i], MOST);
    }
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        to_half(lies[i]);
    }
}

static void widen(combination *c)
{
    for (int i = 1; i < 3; i++) {
        smp_load(memory[i], half[i], dtype_of(c), 0, MOST);
    }
}

/* q, k, v of their own by tokens or by heads; q k v packed; kv packed; heads of q k v packed
 * beside each other by heads. */
static void place(combination *c, float *q_k_v, smp_lie *q, smp_lie *k, smp_lie *v)
{
    uint64_t n = (uint64_t)c->heads, m = (uint64_t)c->kv, dv = (uint64_t)c->dv;
    float *ks = q_k_v + BATCH * SEQ * n * D, *vs = ks + BATCH * SEQ * m * D;

    switch (c->of[PLACE]) {
    case 0: /* b s h d */
        *q = (smp_lie){ q_k_v, n * D, D, SEQ * n * D };
        *k = (smp_lie){ ks, m * D, D, SEQ * m * D };
        *v = (smp_lie){ vs, m * dv, dv, SEQ * m * dv };
        break;
    case 1: /* b h s d */
        *q = (smp_lie){ q_k_v, D, SEQ * D, SEQ * n * D };
        *k = (smp_lie){ ks, D, SEQ * D, SEQ * m * D };
        *v = (smp_lie){ vs, dv, SEQ * dv, SEQ * m * dv };
        break;
    case 2:
        smp_heads_split(&c->all, q_k_v, q, k, v);
        break;
    case 3: /* q, then k and v in one tensor b s (k heads, v heads) */
        *q = (smp_lie){ q_k_v, n * D, D, SEQ * n * D };
        *k = (smp_lie){ ks, m * (D + dv), D, SEQ * m * (D + dv) };
        *v = (smp_lie){ ks + m * D, m * (D + dv), dv, SEQ * m * (D + dv) };
        break;
    default: /* b (q heads, k heads, v heads) s d */
        *q = (smp_lie){ q_k_v, D, SEQ * D, SEQ * (n * D + m * (D + dv)) };
        *k = (smp_lie){ q_k_v + SEQ * n * D, D, SEQ * D, q->sequence };
        *v = (smp_lie){ q_k_v + SEQ * (n + m) * D, dv, SEQ * dv, q->sequence };
        break;
    }
}

static double at(smp_lie lie, int b, int h, int t, int i)
{
    return (double)((const float *)lie.data)[(uint64_t)b * lie.sequence
                                             + (uint64_t)h * lie.head
                                             + (uint64_t)t * lie.token + (uint64_t)i];
}

static void choose(combination *c)
{
    static const int heads[3][2] = { { 2, 2 }, { 4, 2 }, { 3, 1 } };

    c->heads = heads[c->of[HEADS]][0];
    c->kv = heads[c->of[HEADS]][1];
    c->dv = c->of[DV] ? 3 : D;
    c->window = c->of[WINDOW] ? 4 : 0;
    c->scale = c->of[SCALE] ? 0.8 : 0;
    c->cap = c->of[CAP] ? 1.2 : 0;
    c->rate = c->of[DROPOUT] ? 0.25 : 0;
    model.position = c->of[ALIBI] ? SMP_POSITION_ALIBI : SMP_POSITION_NONE;
    block.attention = (smp_attention){ .heads = (uint32_t)c->heads };
    job.settings.micro_batch = BATCH;
    c->launch = (smp_launch){ .block = &block };
    c->all = (smp_heads){ .cpu = &cpu, .launch = &c->launch, .dtype = SMP_F32, .batch = BATCH,
                          .seq = SEQ, .heads = (uint64_t)c->heads,
                          .kv_heads = (uint64_t)c->kv, .d = D, .dv = (uint64_t)c->dv,
                          .window = (uint64_t)c->window, .chunked = c->of[WINDOW] == 2,
                          .causal = c->of[CAUSAL] != 0,
                          .scale = (float)c->scale, .cap = (float)c->cap,
                          .dropout = c->rate };
    place(c, memory[0], &c->all.q, &c->all.k, &c->all.v);
    place(c, memory[1], &c->all.dq, &c->all.dk, &c->all.dvalues);
}

/* Whether query t sees key j: in a window that slides, or in the same part of the sequence. */
static bool is_seen(const combination *c, int t, int j)
{
    if (c->of[CAUSAL] && j > t) {
        return false;
    }
    if (c->of[WINDOW] == 2) { /* later parts are hidden by causality alone */
        return j >= t / c->window * c->window;
    }
    return !c->window || t - j < c->window;
}

/* Probabilities of one query, what dropout makes of them, and the slope of the cap. */
typedef struct row { double p[SEQ], kept[SEQ], slope[SEQ], sink; } row;

static void make_row(const combination *c, const float *sinks, int b, int h, int t, row *r)
{
    int kv = h / (c->heads / c->kv);
    smp_dice dice = smp_dice_of(&cpu, &c->launch, (uint64_t)b, SMP_SITE_PROBABILITIES);
    double sum = c->of[SINKS] ? exp((double)sinks[h]) : 0;

    r->sink = sum;
    for (int j = 0; j < SEQ; j++) {
        double s = 0;

        for (int i = 0; i < D; i++) {
            s += at(c->all.q, b, h, t, i) * at(c->all.k, b, kv, j, i);
        }
        s *= c->of[SCALE] ? 0.8 : 1 / sqrt(D);
        r->slope[j] = c->of[CAP] ? 1 - tanh(s / c->cap) * tanh(s / c->cap) : 1;
        s = c->of[CAP] ? c->cap * tanh(s / c->cap) : s;
        s -= (double)smp_alibi_slope(&model, &block.attention, (uint64_t)h) * (t - j);
        r->p[j] = is_seen(c, t, j) ? exp(s) : 0;
        sum += r->p[j];
    }
    r->sink /= sum;
    for (int j = 0; j < SEQ; j++) {
        uint32_t u = smp_dice_throw(&dice, (uint64_t)((h * SEQ + t) * SEQ + j));

        r->p[j] /= sum;
        r->kept[j] = !c->of[DROPOUT] ? 1 : u < 0x40000000u ? 0 : 4.0 / 3;
    }
}

typedef struct expected { double dq[MOST], dk[MOST], dv[MOST], dsinks[BATCH * 4]; } expected;

static int index_of(const combination *c, int b, int h, int t, int i, bool q)
{
    return ((b * (q ? c->heads : c->kv) + h) * SEQ + t) * 8 + i;
}

/* Adds the gradients that one query gives, from dy. */
static void add_row(const combination *c, const row *r, int b, int h, int t, expected *e)
{
    int kv = h / (c->heads / c->kv);
    double dp[SEQ], mean = 0, scale = c->of[SCALE] ? 0.8 : 1 / sqrt(D);

    for (int j = 0; j < SEQ; j++) {
        dp[j] = 0;
        for (int i = 0; i < c->dv; i++) {
            dp[j] += at(c->all.dy, b, h, t, i) * at(c->all.v, b, kv, j, i) * r->kept[j];
            e->dv[index_of(c, b, kv, j, i, false)] +=
                r->p[j] * r->kept[j] * at(c->all.dy, b, h, t, i);
        }
        mean += dp[j] * r->p[j];
    }
    e->dsinks[b * c->heads + h] -= r->sink * mean;
    for (int j = 0; j < SEQ; j++) {
        double ds = r->p[j] * (dp[j] - mean) * r->slope[j] * scale;

        for (int i = 0; i < D; i++) {
            e->dq[index_of(c, b, h, t, i, true)] += ds * at(c->all.k, b, kv, j, i);
            e->dk[index_of(c, b, kv, j, i, false)] += ds * at(c->all.q, b, h, t, i);
        }
    }
}

static void close_to(const combination *c, const char *what, double x, double y)
{
    if (!(fabs(x - y) < types[c->of[TYPE]].tolerance)) {
        fail_msg("%s is %.9g, expected %.9g (place %d heads %d dv %d causal %d window %d scale "
                 "%d cap %d alibi %d dropout %d sinks %d type %d)",
                 what, x, y, c->of[0], c->of[1], c->of[2], c->of[3], c->of[4], c->of[5],
                 c->of[6], c->of[7], c->of[8], c->of[9], c->of[10]);
    }
}

static void check_query(const combination *c, const float *sinks, int b, int h, int t,
                        expected *e)
{
    int kv = h / (c->heads / c->kv);
    row r;

    make_row(c, sinks, b, h, t, &r);
    for (int i = 0; i < c->dv; i++) {
        double y = 0;

        for (int j = 0; j < SEQ; j++) {
            y += r.p[j] * r.kept[j] * at(c->all.v, b, kv, j, i);
        }
        close_to(c, "y", at(c->all.y, b, h, t, i), y);
    }
    add_row(c, &r, b, h, t, e);
}

static void check_heads(const combination *c, const expected *e, int b, int t)
{
    for (int h = 0; h < c->heads; h++) {
        for (int i = 0; i < D; i++) {
            close_to(c, "dq", at(c->all.dq, b, h, t, i),
                     e->dq[index_of(c, b, h, t, i, true)]);
        }
    }
    for (int h = 0; h < c->kv; h++) {
        for (int i = 0; i < D; i++) {
            close_to(c, "dk", at(c->all.dk, b, h, t, i),
                     e->dk[index_of(c, b, h, t, i, false)]);
        }
        for (int i = 0; i < c->dv; i++) {
            close_to(c, "dv", at(c->all.dvalues, b, h, t, i),
                     e->dv[index_of(c, b, h, t, i, false)]);
        }
    }
}

/* Forward and backward in the combination's type; results come back to `memory`, where the
 * lies of `c` are. */
static void run(combination *c, const float *sinks)
{
    combination narrowed = *c;
    uint16_t half_sinks[4];

    if (dtype_of(c) == SMP_F32) {
        smp_attend(&c->all);
        smp_attend_grad(&c->all);
        return;
    }
    narrow(&narrowed);
    narrowed.all.dtype = dtype_of(c);
    narrowed.all.launch = &narrowed.launch;
    smp_store(half_sinks, dtype_of(c), 0, sinks, 4);
    narrowed.all.sinks = c->all.sinks ? half_sinks : NULL;
    smp_attend(&narrowed.all);
    smp_attend_grad(&narrowed.all);
    widen(&narrowed);
}

static void check_combination(combination *c)
{
    static expected e;
    float lse[BATCH * SEQ * 4], sinks[4] = { 0.25f, -0.75f, 1.125f, 0.375f };
    float dsinks[BATCH * 4] = { 0 };

    choose(c);
    memset(&e, 0, sizeof e);
    c->all.lse = lse;
    c->all.sinks = c->of[SINKS] ? sinks : NULL;
    c->all.dsinks = dsinks;
    c->all.y = (smp_lie){ memory[2], (uint64_t)(c->heads * c->dv), (uint64_t)c->dv,
                          (uint64_t)(SEQ * c->heads * c->dv) };
    c->all.dy = c->all.y;
    c->all.dy.data = memory[3];
    run(c, sinks);
    for (int i = 0; i < BATCH * c->heads * SEQ; i++) {
        check_query(c, sinks, i / SEQ / c->heads, i / SEQ % c->heads, i % SEQ, &e);
    }
    for (int i = 0; i < BATCH * SEQ; i++) {
        check_heads(c, &e, i / SEQ, i % SEQ);
    }
    for (int i = 0; i < BATCH * c->heads && c->of[SINKS]; i++) {
        close_to(c, "dsinks", (double)dsinks[i], e.dsinks[i]);
    }
}

static void every_combination_is_right(void **state)
{
    combination c = { 0 };
    int option = 0;

    (void)state;
    for (uint64_t i = 0; i < MOST; i++) {
        uint32_t u[4];

        smp_random4(31, 0, i, u);
        memory[0][i] = (float)(u[0] % 255) * 0x1p-7f - 127 * 0x1p-7f; /* all types have these */
        memory[3][i] = (float)(u[1] % 255) * 0x1p-7f - 127 * 0x1p-7f;
    }
    while (option < OPTIONS) {
        check_combination(&c);
        for (option = 0; option < OPTIONS && ++c.of[option] == values[option]; option++) {
            c.of[option] = 0;
        }
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_combination_is_right),
};

CHECK_MAIN(tests)
