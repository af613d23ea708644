/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Four tiny models, the grid of their layouts, and the training of a layout beside that of one
 * rank; for one .c file each.
 */
#ifndef TESTS_EXEC_LAYOUTS_H
#define TESTS_EXEC_LAYOUTS_H

#include "tests/exec/ranks.h"

#include "mesh/mesh.h"

/* ---- models ---- */

#define MOE_SETTINGS                                                                        \
    " moe_load_balancing=none moe_z_loss_coeff=0.01 moe_rows_factor=8"

static const char MIXTRAL[] = TINY_MIXTRAL;
static const char DEEPSEEK[] = TINY_DEEPSEEK;

typedef struct layouts_model { const char *name, *config; bool moe; } layouts_model;
static const layouts_model layouts_models[] = {
    { "llama", TINY_LLAMA, false },
    { "gpt2", TINY_GPT2, false },
    { "mixtral", MIXTRAL, true },
    { "deepseek", DEEPSEEK, true },
};
enum { MODELS = sizeof layouts_models / sizeof layouts_models[0] };

/* ---- the grid ---- */

enum { DIMENSIONS = 12, VALUES = 8, ASYNC = 10 };
enum { STEPS = 20, MOST_POINTS = 400000 };
/* Losses fall, and what rounding differs grows little in 20 steps: one rank's run from initial
 * parameters each moved by one unit in its last place has gradients that are off by at most
 * 5.0e-6 (deepseek), 2.1e-6 (mixtral), 6.7e-7 (llama), 4.2e-7 (gpt2) in any step (the worst of
 * 20 draws of the signs).  At 0.1 these are 8.8e-5, 1.6e-5, 1.9e-6 and 4.3e-7: there rounding
 * alone leaves the tolerance. */
static const double LR = 0.05, TOLERANCE = 1e-5;

static const char *const grid[DIMENSIONS][VALUES] = {
    { "1", "2", "4", "8" }, /* ranks */
    { "", "tensor_parallel_degree=2", "tensor_parallel_degree=4" },
    { "", "sequence_parallel=false" },
    { "", "expert_parallel_degree=2", "expert_parallel_degree=4" },
    { "", "expert_layout=nested" },
    { "", "moe_all_to_all_dispatcher=false" },
    { "", "hybrid_shard_degree=1", "hybrid_shard_degree=2", "hybrid_shard_degree=4" },
    { "", "sharding=optimizer", "sharding=none" },
    { "micro_batch=1", "micro_batch=1 accumulation=last", "micro_batch=2",
      "micro_batch=2 accumulation=last", "micro_batch=4", "micro_batch=8" },
    { "", "checkpointing=full", "checkpointing=selective", "checkpointing=selective:op",
      "checkpointing=first:2", "checkpointing=full offload=true activation_loading_horizon=1",
      "checkpointing=full offload=true activation_loading_horizon=2" },
    { "", "async" },
    { "", "loss_chunks=2 attention=naive", "prefetch=none forward_prefetch=false",
      "prefetch=backward_post", "reshard_after_forward=false" },
};

typedef struct point { uint8_t value[DIMENSIONS]; } point;

static inline uint32_t ranks_of(point p)
{
    return 1u << p.value[0];
}

/* The settings of a point, all but those that are no settings. */
static inline void settings_of(point p, bool moe, char *text, size_t n)
{
    size_t used = (size_t)snprintf(text, n, "optimizer=sgd%s", moe ? MOE_SETTINGS : "");

    for (int d = 1; d < DIMENSIONS; d++) {
        if (d != ASYNC && used < n) {
            used += (size_t)snprintf(text + used, n - used, " %s", grid[d][p.value[d]]);
        }
    }
}

/* Values that change nothing are left at the first. */
static inline bool is_plain(point p, bool moe)
{
    bool tensor = p.value[1] > 0, expert = p.value[3] > 0;

    return (tensor || p.value[2] == 0) && (expert || (p.value[4] == 0 && p.value[5] == 0))
           && (moe || !expert);
}

static inline bool next_point(point *p)
{
    for (int d = 0; d < DIMENSIONS; d++) {
        if (++p->value[d] < VALUES && grid[d][p->value[d]]) {
            return true;
        }
        p->value[d] = 0;
    }
    return false;
}

typedef struct points { point *at; size_t n; } points;

/* All legal points, with serial streams alone or with both kinds, in an order of chance. */
static inline points legal_points(const char *config, bool moe, bool serial)
{
    points all = { .at = smp_heap_alloc(MOST_POINTS, sizeof(point)) };
    point p = { 0 };
    tiny t[4];
    smp_settings plain;

    for (uint32_t i = 0; i < 4; i++) {
        tiny_open(&t[i], config, 1u << i, 16, 8);
    }
    plain = t[0].job.settings;
    do {
        tiny *of = &t[p.value[0]];
        char text[512];

        if (!is_plain(p, moe) || p.value[ASYNC] > 0) {
            continue;
        }
        of->job.settings = plain;
        settings_of(p, moe, text, sizeof text);
        tiny_set(of, text);
        if (smp_job_try(&of->job)) {
            assert_true(all.n + 2 <= MOST_POINTS);
            all.at[all.n++] = p;
            p.value[ASYNC] = 1;
            all.at[all.n] = p;
            all.n += !serial;
            p.value[ASYNC] = 0;
        }
    } while (next_point(&p));
    for (uint32_t i = 0; i < 4; i++) {
        tiny_close(&t[i]);
    }
    for (size_t i = all.n; i > 1; i--) {
        uint32_t u[4];
        size_t j;

        smp_random4(17, 0, i, u);
        j = u[0] % i;
        p = all.at[i - 1];
        all.at[i - 1] = all.at[j];
        all.at[j] = p;
    }
    return all;
}

/* ---- training ---- */

static inline trained train_alone(const char *config, bool moe, uint32_t steps)
{
    char text[512];
    trained one;

    settings_of((point){ .value = { [8] = 5 } }, moe, text, sizeof text);
    one = train_job(config, text, 1, false, steps, LR);
    /* A choice by less than rounding could fall differently elsewhere. */
    assert_true(!moe || one.gap > 1e-6);
    return one;
}

/* What differs from one rank's training; in `text`, empty where nothing does. */
static inline void try_layout(const char *config, bool moe, point p, const trained *one,
                              uint32_t steps, char *text, size_t size)
{
    char settings[512];
    trained other;

    settings_of(p, moe, settings, sizeof settings);
    other = train_job(config, settings, ranks_of(p), p.value[ASYNC] > 0, steps, LR);
    differ(settings, &other, one, steps, TOLERANCE, text, size);
    trained_free(&other);
}

#endif
