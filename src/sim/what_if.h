/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/sim: questions about a simulated step, answered behind its report.
 *
 * Each question is a file of its own: it reads its options, computes, and writes its section
 * of the text and its member of the JSON object.
 */
#ifndef SMP_SIM_WHAT_IF_H
#define SMP_SIM_WHAT_IF_H

#include "base/arena.h"
#include "base/text.h"
#include "sim/sim.h"
#include "sim/training.h"

/* ---- ranks apart (ranks.c) */

typedef struct smp_ranks_wait {
    const char *comm;
    uint64_t collectives;
    double mean_s; /* over ranks and runs, a step */
} smp_ranks_wait;

typedef struct smp_ranks_answer {
    double kernel_cv, collective_cv, rank_cv;
    uint32_t ranks, runs, n_slow_rank, n_slow_link;
    uint64_t seed, tasks, state_bytes;
    double quiet_s; /* no noise: the report's step */
    double mean_s, least_s, p10_s, median_s, p90_s, most_s;
    uint32_t last;  /* rank that ended last most often, the lowest of equals */
    uint32_t last_runs;
    smp_ranks_wait *waits;
    uint32_t n_wait;
} smp_ranks_answer;

bool smp_ranks_asked(const smp_what_if_options *options);
SMP_CHECK smp_status smp_ranks_answer_find(const smp_simulation *simulation,
                                           const smp_what_if_options *options,
                                           smp_arena *arena, smp_errors *errors,
                                           smp_ranks_answer *answer_p);
void smp_ranks_answer_text(const smp_ranks_answer *answer, smp_text *text);
void smp_ranks_answer_out(const smp_ranks_answer *answer, smp_json_out *out);

/* ---- lost ranks (lost.c) */

typedef struct smp_lost_answer {
    uint32_t ranks;    /* lost */
    uint32_t replicas, replicas_left; /* of the model */
    uint32_t gpus, gpus_left, idle;   /* idle: of the replicas lost, without the ranks lost */
    uint64_t batch, batch_left;       /* sequences a step */
    double step_s, step_left_s;       /* what is left is 0 where no replica is */
    double tokens_per_s, tokens_per_s_left;
} smp_lost_answer;

SMP_CHECK smp_status smp_lost_answer_find(const smp_simulation *simulation,
                                          const smp_what_if_options *options,
                                          smp_errors *errors, smp_lost_answer *answer_p);
void smp_lost_answer_text(const smp_lost_answer *answer, smp_text *text);
void smp_lost_answer_out(const smp_lost_answer *answer, smp_json_out *out);

/* ---- failures and training runs (runs.c) */

enum { SMP_MONTHS = 1000 };

typedef struct smp_failures_answer {
    smp_failures failures;
    double gpu_mtbf_s, load_s;
    double best_s, young_s, daly_s; /* intervals of work between checkpoints */
    uint64_t steps;    /* between checkpoints, given or the best */
    bool steps_given, save_given, load_given, restart_given;
    double interval_s; /* of these steps */
    double goodput;    /* closed form */
    double month_mean, month_p10, month_p90; /* simulated */
    double failures_per_day;
} smp_failures_answer;

SMP_CHECK smp_status smp_failures_answer_find(const smp_simulation *simulation,
                                              const smp_what_if_options *options,
                                              double step_s, smp_errors *errors,
                                              smp_failures_answer *answer_p);
void smp_failures_answer_text(const smp_failures_answer *answer, smp_text *text);
void smp_failures_answer_out(const smp_failures_answer *answer, smp_json_out *out);

typedef struct smp_training_answer {
    double tokens, step_s, goodput;
    smp_training training, low, high; /* at the ends of the interval of the step */
    const char *currency;
} smp_training_answer;

SMP_CHECK smp_status smp_training_answer_find(const smp_simulation *simulation, double tokens,
                                              double step_s, double goodput, smp_errors *errors,
                                              smp_training_answer *answer_p);
void smp_training_answer_text(const smp_training_answer *answer, smp_text *text);
void smp_training_answer_out(const smp_training_answer *answer, smp_json_out *out);

/* ---- memory under PyTorch's allocator (allocator.c) */

enum { SMP_ALLOCATOR_ROWS = 4 };
typedef struct smp_allocator_row {
    bool expandable, limited; /* expandable_segments, limit_all_gathers */
    uint64_t live_bytes, allocated_bytes, active_bytes, reserved_bytes; /* at most */
    uint64_t unused_bytes;    /* of what is reserved, where most is: the least not allocated */
    uint64_t flushes, failures; /* of the last step */
    uint64_t segments;
} smp_allocator_row;
typedef struct smp_allocator_answer {
    uint64_t capacity_bytes, arena_bytes, tensors;
    smp_allocator_row rows[SMP_ALLOCATOR_ROWS];
} smp_allocator_answer;

SMP_CHECK smp_status smp_allocator_answer_find(const smp_simulation *simulation,
                                               const char *allocator, smp_errors *errors,
                                               smp_allocator_answer *answer_p);
/* With fsdp_cache_flush_warnings: a warning where the step would flush the cache under the
 * settings that act. */
void smp_allocator_warn(const smp_simulation *simulation, smp_errors *errors);
void smp_allocator_answer_text(const smp_allocator_answer *answer, smp_text *text);
void smp_allocator_answer_out(const smp_allocator_answer *answer, smp_json_out *out);

/* ---- all of them (what_if.c) */

struct smp_what_ifs {
    smp_arena *arena;
    bool has_ranks, has_lost, has_failures, has_training, has_allocator;
    smp_ranks_answer ranks;
    smp_lost_answer lost;
    smp_failures_answer failures;
    smp_training_answer training;
    smp_allocator_answer allocator;
};
/* Members of the report's object. */
void smp_what_ifs_out(const smp_what_ifs *what_ifs, smp_json_out *out);
void smp_what_ifs_text(const smp_what_ifs *what_ifs, smp_text *text);

#endif
