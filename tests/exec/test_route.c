/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choice of experts, held against its rules written out in double: scores, the four
 * balancing modes, capacity.  (Gradients: test_more_gradients.c; ranks: test_balancing.c.)
 */
#include "config.h"

#include "tests/exec/tiny.h"

#include "exec/cpu.h"
#include "exec/cpu_rows.h"

#include "base/numeric.h"

static const char MIXTRAL[] =
    TINY_OF("mixtral", ", \"num_key_value_heads\": 4, \"num_local_experts\": 4, "
            "\"num_experts_per_tok\": 2");

enum { TOKENS = 24, EXPERTS = 6, MOST_K = 3, CASES = 20 };

static smp_job job;
static smp_rank rank = { .job = &job, .tensor = 1, .data_ranks = 1 };
static smp_cpu cpu = { .rank = &rank };

typedef struct routed {
    float logits[TOKENS * EXPERTS];
    uint64_t k;
    smp_choice choice[TOKENS * MOST_K];
    int32_t counts[EXPERTS];
} routed;

/* Logits of a case, and what the device makes of them. */
static void draw(routed *r, uint64_t number, double spread)
{
    for (uint64_t i = 0; i < TOKENS * EXPERTS; i++) {
        uint32_t u[4];

        smp_random4(61, number, i, u);
        r->logits[i] = (float)(spread * ((double)u[0] * 0x1p-31 - 1));
    }
    r->k = 1 + number % MOST_K;
}

static void route(routed *r, uint64_t flags, uint64_t capacity)
{
    const float scale = 1;
    uint32_t bits;
    smp_task task = { .op = SMP_OP_ROUTE, .dtype = SMP_F32 };
    smp_launch launch = { .task = &task, .at = { r->logits, r->choice, r->counts },
                          .n_operand = 3 };

    memcpy(&bits, &scale, sizeof bits);
    task.dims[0] = TOKENS;
    task.dims[1] = EXPERTS;
    task.dims[2] = r->k;
    task.dims[3] = flags | (uint64_t)bits << 32;
    task.dims[4] = 1 + (UINT64_C(1) << 32);
    task.dims[5] = capacity;
    smp_cpu_route(&cpu, &launch);
}

static double softmax(const routed *r, uint64_t t, uint64_t e)
{
    double sum = 0;

    for (uint64_t i = 0; i < EXPERTS; i++) {
        sum += exp((double)r->logits[t * EXPERTS + i]);
    }
    return exp((double)r->logits[t * EXPERTS + e]) / sum;
}

static double sigmoid(const routed *r, uint64_t t, uint64_t e)
{
    return 1 / (1 + exp(-(double)r->logits[t * EXPERTS + e]));
}

/* Whether `chosen` are the k largest of x, none of them twice. */
static void check_largest(const routed *r, uint64_t t, const double *x)
{
    for (uint64_t k = 0; k < r->k; k++) {
        uint64_t above = 0, e = (uint64_t)r->choice[t * r->k + k].expert;

        assert_true(e < EXPERTS);
        for (uint64_t i = 0; i < EXPERTS; i++) {
            above += x[i] > x[e];
        }
        assert_true(above < r->k);
        for (uint64_t j = 0; j < k; j++) {
            assert_true(r->choice[t * r->k + j].expert != r->choice[t * r->k + k].expert);
        }
    }
}

static void the_largest_scores_are_chosen(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < CASES; i++) {
        for (int form = 0; form < 4; form++) {
            bool sigmoids = form & 1, normal = form & 2;
            routed r;

            draw(&r, i, 3);
            route(&r, SMP_BALANCING_NONE | (sigmoids ? SMP_ROUTE_SIGMOID : 0)
                          | (normal ? SMP_ROUTE_NORMALISE : 0), 0);
            for (uint64_t t = 0; t < TOKENS; t++) {
                double x[EXPERTS], sum = 0;

                for (uint64_t e = 0; e < EXPERTS; e++) {
                    x[e] = sigmoids ? sigmoid(&r, t, e) : softmax(&r, t, e);
                }
                check_largest(&r, t, x);
                for (uint64_t k = 0; k < r.k; k++) {
                    sum += x[r.choice[t * r.k + k].expert];
                }
                for (uint64_t k = 0; k < r.k; k++) {
                    smp_choice c = r.choice[t * r.k + k];

                    check_rel((double)c.weight, x[c.expert] / (normal ? sum : 1), 1e-5);
                }
            }
        }
    }
}

/* The iteration of Megatron-LM's sinkhorn in double, far beyond its tolerance: the factors of
 * rows and columns with which all rows have the same sum, and all columns. */
static void balance(const routed *r, double *x)
{
    double column[EXPERTS], row;

    for (uint64_t e = 0; e < EXPERTS; e++) {
        column[e] = 1;
    }
    for (int round = 0; round < 2000; round++) {
        double sums[EXPERTS] = { 0 };

        for (uint64_t t = 0; t < TOKENS; t++) {
            row = 0;
            for (uint64_t e = 0; e < EXPERTS; e++) {
                row += exp((double)r->logits[t * EXPERTS + e]) * column[e];
            }
            for (uint64_t e = 0; e < EXPERTS; e++) {
                x[t * EXPERTS + e] = exp((double)r->logits[t * EXPERTS + e]) / row / TOKENS;
                sums[e] += x[t * EXPERTS + e];
            }
        }
        for (uint64_t e = 0; e < EXPERTS; e++) {
            column[e] = 1 / sums[e] / EXPERTS;
        }
    }
    for (uint64_t i = 0; i < TOKENS * EXPERTS; i++) {
        x[i] *= column[i % EXPERTS];
    }
}

/* The choice is that of the balanced matrix, where it is clear; weights are those of the scores
 * (a softmax for several experts a token, a sigmoid for one), which do not sum to 1. */
static void sinkhorn_chooses_by_the_balanced_matrix(void **state)
{
    uint64_t otherwise = 0;

    (void)state;
    for (uint64_t i = 0; i < CASES; i++) {
        double x[TOKENS * EXPERTS];
        routed r, plain;

        draw(&r, i, 2);
        for (uint64_t t = 0; t < TOKENS; t++) { /* all tokens like the first expert */
            r.logits[t * EXPERTS] += 3;
        }
        plain = r;
        route(&r, SMP_BALANCING_SINKHORN | SMP_ROUTE_NORMALISE, 0);
        route(&plain, SMP_BALANCING_NONE, 0);
        balance(&r, x);
        for (uint64_t t = 0; t < TOKENS; t++) {
            for (uint64_t k = 0; k < r.k; k++) {
                smp_choice c = r.choice[t * r.k + k];
                uint64_t above = 0;

                check_rel((double)c.weight,
                          r.k == 1 ? sigmoid(&r, t, (uint64_t)c.expert)
                                   : softmax(&r, t, (uint64_t)c.expert), 1e-5);
                for (uint64_t e = 0; e < EXPERTS; e++) { /* by more than the tolerance */
                    above += x[t * EXPERTS + e] > 1.01 * x[t * EXPERTS + (uint64_t)c.expert];
                }
                assert_true(above < r.k);
            }
        }
        for (uint64_t e = 0; e < EXPERTS; e++) {
            otherwise += r.counts[e] != plain.counts[e];
        }
        assert_true(r.counts[0] < plain.counts[0]);
    }
    assert_true(otherwise > CASES);
}

/* No factors balance a matrix in which all tokens want two experts and nothing else: the rounds
 * have a cap, and the choice is one. */
static void sinkhorn_ends(void **state)
{
    routed r;

    (void)state;
    draw(&r, 1, 1);
    for (uint64_t t = 0; t < TOKENS; t++) {
        for (uint64_t e = 0; e < EXPERTS; e++) {
            r.logits[t * EXPERTS + e] = e < 2 ? (t == 0 ? -40.0f : 40.0f) : -40.0f - (float)t;
        }
    }
    route(&r, SMP_BALANCING_SINKHORN, 0);
    for (uint64_t i = 0; i < TOKENS * r.k; i++) {
        assert_true(r.choice[i].expert >= 0 && r.choice[i].expert < EXPERTS);
        assert_true(isfinite(r.choice[i].weight));
    }
}

static void balanced_gives_each_expert_the_same(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < MOST_K; i++) {
        routed r;

        draw(&r, i, 5);
        route(&r, SMP_BALANCING_BALANCED, 0);
        for (uint64_t e = 0; e < EXPERTS; e++) {
            check_u64((uint64_t)r.counts[e], TOKENS * r.k / EXPERTS);
        }
        for (uint64_t t = 0; t < TOKENS; t++) {
            for (uint64_t k = 0; k < r.k; k++) {
                smp_choice c = r.choice[t * r.k + k];

                for (uint64_t j = 0; j < k; j++) {
                    assert_true(r.choice[t * r.k + j].expert != c.expert);
                }
                check_rel((double)c.weight, softmax(&r, t, (uint64_t)c.expert), 1e-5);
            }
        }
    }
}

/* Of each expert's pairs at most `capacity` stay: the first, or those of largest weight. */
static void check_capacity(const routed *all, const routed *r, uint64_t capacity, bool first,
                           bool pad)
{
    for (uint64_t e = 0; e < EXPERTS; e++) {
        uint64_t n = 0, kept = 0;

        for (uint64_t i = 0; i < TOKENS * r->k; i++) {
            uint64_t before = 0;
            float weight = all->choice[i].weight;

            if ((uint64_t)all->choice[i].expert != e) {
                continue;
            }
            for (uint64_t j = 0; j < TOKENS * r->k; j++) {
                bool same = all->choice[j].expert == all->choice[i].expert;

                before += same && (first ? j < i : all->choice[j].weight > weight);
            }
            n++;
            if (before < capacity) {
                assert_int_equal(r->choice[i].expert, e);
                check_rel((double)r->choice[i].weight, (double)weight, 0);
                kept++;
            } else {
                assert_int_equal(r->choice[i].expert, ~(int32_t)e);
                assert_true(r->choice[i].weight <= 0 && r->choice[i].weight >= 0);
            }
        }
        check_u64(kept, n < capacity ? n : capacity);
        check_u64((uint64_t)r->counts[e], pad ? capacity : kept);
    }
}

static void capacity_drops_what_is_beyond_it(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < CASES; i++) {
        for (uint64_t capacity = 1; capacity < TOKENS; capacity += 4) {
            for (int form = 0; form < 4; form++) {
                uint64_t flags = (form & 1 ? SMP_ROUTE_POSITION : 0)
                                 | (form & 2 ? SMP_ROUTE_PAD : 0);
                routed all, r;

                draw(&all, i, 3);
                r = all;
                route(&all, SMP_BALANCING_NONE, 0);
                route(&r, SMP_BALANCING_NONE | flags, capacity);
                check_capacity(&all, &r, capacity, form & 1, form & 2);
            }
        }
    }
}

/* ceil(T k / E x factor) of the tokens that a rank routes: 128 of them, 2 of 4 experts each. */
static void capacity_is_a_factor_of_the_mean(void **state)
{
    static const struct { const char *factor; uint64_t rows; } cases[] = {
        { "capacity_factor=1", 64 }, { "capacity_factor=0.8", 52 },
        { "capacity_factor=1.25", 80 }, { "capacity_factor=1.26", 81 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        smp_step *step = NULL;
        uint64_t found = 0;
        tiny t;

        tiny_open(&t, MIXTRAL, 1, 16, 8);
        tiny_set(&t, "micro_batch=8 moe_load_balancing=none");
        tiny_set(&t, cases[i].factor);
        check_ok(smp_job_resolve(&t.job, t.errors), t.errors);
        check_ok(smp_step_lower(&t.job, t.errors, &step), t.errors);
        for (uint32_t k = 0; k < step->programs[0]->n_task; k++) {
            if (step->programs[0]->tasks[k].op == SMP_OP_ROUTE) {
                check_u64(step->programs[0]->tasks[k].dims[5], cases[i].rows);
                found++;
            }
        }
        assert_true(found > 0);
        smp_step_destroy(step);
        tiny_close(&t);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(the_largest_scores_are_chosen),
    cmocka_unit_test(sinkhorn_chooses_by_the_balanced_matrix),
    cmocka_unit_test(sinkhorn_ends),
    cmocka_unit_test(balanced_gives_each_expert_the_same),
    cmocka_unit_test(capacity_drops_what_is_beyond_it),
    cmocka_unit_test(capacity_is_a_factor_of_the_mean),
};

CHECK_MAIN(tests)
