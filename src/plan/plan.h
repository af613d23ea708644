/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The planner: a space of settings, bounds on time and memory, a best-first search.
 *
 *   space      the settings to choose from, as digits of a mixed radix number
 *   bound      admissible bounds: never above the simulated time, never above the memory
 *   evaluate   exact time and memory of one job, in a time that does not grow with the
 *              number of micro-batches
 *   mix        exact time and memory of jobs with many layers, from such with few
 *   sparing    which points of the fine space are worth a look
 *   search     branch and bound over three levels of digits; early: what it begins with where
 *              there is a deadline
 *   lean       what is told where nothing fits
 *   plan       numbers of GPUs, and what is made of the best
 *   explain    what the neighbours of the best plan cost
 *
 * The digits fall into three levels.  The head decides what the compute and tensor streams
 * do; the mesh adds how parameters are sharded; the leaf adds settings that save memory and
 * never time.  Values of a leaf digit are ordered by speed, so that a point whose leaf
 * digits are all at most those of another, the rest being equal, is never slower where tasks
 * that run beside each other do not slow each other down: its time alone is a bound.
 */
#ifndef SMP_PLAN_PLAN_H
#define SMP_PLAN_PLAN_H

#include "base/arena.h"
#include "base/text.h"
#include "cost/cost.h"
#include "smp.h"
#include "step/program.h"

typedef enum smp_dim {
    /* head */
    SMP_DIM_TENSOR, SMP_DIM_EXPERT, SMP_DIM_SEQUENCE, SMP_DIM_MICRO, SMP_DIM_CHECKPOINTING,
    SMP_DIM_ACCUMULATION, SMP_DIM_EXCHANGE,
    /* mesh */
    SMP_DIM_SHARD, SMP_DIM_LAYOUT, SMP_DIM_ORDER, SMP_DIM_RESHARD,
    SMP_DIM_CHUNKS,
    /* leaf */
    SMP_DIM_OFFLOAD, SMP_DIM_OFFLOAD_LAYERS, SMP_DIM_PREFETCH,
    SMP_DIMS,
    SMP_DIM_MESH = SMP_DIM_SHARD,
    SMP_DIM_LEAF = SMP_DIM_OFFLOAD
} smp_dim;

/* One value of a dimension: how it changes settings depends on the dimension (space.c). */
typedef struct smp_choice {
    uint32_t value;
    smp_checkpointing checkpointing; /* SMP_DIM_CHECKPOINTING; value is K of first:K */
} smp_choice;

typedef struct smp_plan_space {
    smp_arena *arena;
    const smp_job *job;      /* model, cluster, profile, batch and pins */
    bool fine;
    smp_choice *choices[SMP_DIMS];
    uint32_t n_choice[SMP_DIMS];
    bool pinned[SMP_DIMS];
    /* digits of checkpointing of none, the first, and all layers, in the order of layers */
    uint32_t *by_layer, n_by_layer;
    bool *groups;            /* by tensor, expert, shard, layout and order: can be legal */
    uint64_t *leaves;        /* by checkpointing and prefetch: points of a mesh + 1, or 0 */
} smp_plan_space;

typedef struct smp_point { uint32_t digit[SMP_DIMS]; } smp_point;

/* `job` is borrowed.  `fine`: every number of checkpointed layers instead of quarters, every
 * number of offloaded ones instead of all, and 1, 2, 4, 8 and 16 chunks of the loss instead of
 * 1 and 8. */
smp_plan_space *smp_plan_space_create(const smp_job *job, bool fine);
void smp_plan_space_destroy(smp_plan_space *space);
/* Next point in the order of codes, changing only digits low..high-1; false after the last,
 * when those digits are zero again. */
bool smp_plan_space_next(const smp_plan_space *space, smp_point *point, int low, int high);
/* The place of a point in the order of all points. */
uint64_t smp_plan_space_code(const smp_plan_space *space, const smp_point *point);
/* The resolved job of a point.  False when a rule is broken, or when another point has the
 * same program and a smaller code. */
bool smp_plan_space_job(const smp_plan_space *space, const smp_point *point, smp_job *job_p);
/* The same in two steps: the job of the head and mesh digits, with leaf digits 0, and from it
 * that of a point with these head and mesh digits. */
bool smp_plan_space_mesh(const smp_plan_space *space, const smp_point *point, smp_job *job_p);
bool smp_plan_space_leaf(const smp_plan_space *space, const smp_point *point,
                         const smp_job *mesh, smp_job *job_p);
/* Of the points with the head, mesh and prefetch digits of *point, the one that offloads most,
 * which becomes *point; false: none is legal. */
bool smp_plan_space_least_leaf(const smp_plan_space *space, smp_point *point,
                               const smp_job *mesh, smp_job *job_p);
/* Checkpointing of none, the first and all layers is one thing. */
bool smp_checkpoints_by_layer(smp_checkpointing checkpointing);
/* Whether rules say of this digit of checkpointing what they say of the one before. */
bool smp_checkpoints_alike(const smp_plan_space *space, uint32_t digit);
/* How many legal points there are with the head and mesh digits of `point`. */
uint64_t smp_plan_space_leaves(const smp_plan_space *space, const smp_point *point,
                               const smp_job *mesh);
/* The same with any checkpointing. */
uint64_t smp_plan_space_count(const smp_plan_space *space, const smp_point *mesh);
/* Whether a point, or some point of a mesh, is also in the space that is not fine. */
bool smp_is_coarse(const smp_plan_space *space, const smp_point *point);
bool smp_is_coarse_mesh(const smp_plan_space *space, const smp_point *mesh);
/* The points of the space. */
uint64_t smp_plan_space_total(const smp_plan_space *space);
/* Digits of `a` say the same or less memory saving than those of `b`, the rest equal: then
 * the step of `b` takes no less than that of `a` where nothing slows anything. */
bool smp_point_dominates(const smp_point *a, const smp_point *b);

/* Bounds. */
typedef struct smp_bounds smp_bounds; /* memoised parts */
smp_bounds *smp_bounds_create(void);
void smp_bounds_destroy(smp_bounds *bounds);
/* Lower bound of the step time over all settings that share the head digits of `job`
 * (`mesh` false), or head and mesh digits (true). */
SMP_CHECK smp_status smp_bound_time(smp_bounds *bounds, const smp_job *job, bool mesh,
                                    smp_errors *errors, int64_t *bound_ps_p);
/* Lower bound of the peak memory of exactly this job; without `saved` activations and logits,
 * of all jobs that share its head and mesh digits. */
SMP_CHECK smp_status smp_bound_memory(smp_bounds *bounds, const smp_job *job, bool saved,
                                      smp_errors *errors, uint64_t *bound_bytes_p);
/* The same of all points of a mesh, whose job is `mesh_job`: that of the leaf that saves most;
 * UINT64_MAX where none is legal. */
SMP_CHECK smp_status smp_bound_least_memory(smp_bounds *bounds, const smp_plan_space *space,
                                            const smp_point *mesh, const smp_job *mesh_job,
                                            smp_errors *errors, uint64_t *bytes_p);
/* Ranks over which the experts of an expert rank are sharded. */
uint32_t smp_expert_shards(const smp_settings *settings);

/* A plan is judged by what is expected of a distribution of rows, not by a draw: the job with
 * that. */
smp_job smp_with_expected_rows(const smp_job *job);
/* Exact step time and memory of a resolved job.  Simulates few micro-batches and extends
 * them when each repeats the one before it shifted in time (evaluate.c).  Time parts are exact
 * when `parts`; otherwise they are those of what was simulated, and safety_bytes is 0.  Both
 * outputs may be NULL: `alone_ps_p` a lower bound of the step where nothing slows anything,
 * exact where it repeats;
 * `micro_batches_p` how many were simulated. */
SMP_CHECK smp_status smp_evaluate(const smp_job *job, bool parts, smp_errors *errors,
                                  smp_report *report_p, int64_t *alone_ps_p,
                                  uint64_t *micro_batches_p);
/* The same on ranks that are there. */
SMP_CHECK smp_status smp_evaluate_on(const smp_job *job, const smp_ranks *ranks, bool parts,
                                     smp_errors *errors, smp_report *report_p,
                                     int64_t *alone_ps_p, uint64_t *micro_batches_p);
/* Step time alone, without a memory plan: sharing of memory adds no wait, so it is the same
 * to the picosecond.  `ranks` of the job, or NULL; `alone_ps_p` as above. */
SMP_CHECK smp_status smp_evaluate_time(const smp_job *job, const smp_ranks *ranks,
                                       smp_errors *errors, int64_t *step_ps_p,
                                       int64_t *alone_ps_p);
/* The same by simulating everything. */
SMP_CHECK smp_status smp_evaluate_fully(const smp_job *job, smp_errors *errors,
                                        smp_report *report_p);
/* Bytes that a plan may use at most: capacity less the margin. */
uint64_t smp_memory_limit(const smp_report *report, double margin_frac);
bool smp_report_fits(const smp_report *report, double margin_frac);
/* By how much the highest peak, on the device or in host memory, is over its limit; 0: all
 * peaks fit. */
uint64_t smp_report_excess(const smp_report *report, double margin_frac);

/* A configuration with what it costs. */
typedef struct smp_found {
    smp_job job;
    smp_report report;
    uint64_t code;
} smp_found;

/* A priced candidate, for the plot of time against memory. */
typedef struct smp_spot { int64_t step_ps; uint64_t peak_bytes; bool fits; } smp_spot;

/* A configuration on the front (front.h).  time_s and cost: of a step and of its GPU seconds;
 * of a run and in money where clusters are compared. */
typedef struct smp_front_point {
    double time_s, cost;
    uint64_t peak_bytes;
    smp_found found;
} smp_front_point;

typedef struct smp_front { smp_front_point *at; size_t n, room; } smp_front; /* heap */

/* What one setting changes: a neighbour of the best plan. */
typedef struct smp_neighbour {
    const char *key, *value;   /* the setting and its value there */
    const char *with;          /* other settings that had to follow, or NULL */
    int64_t more_ps, more_bytes; /* step time and peak memory over the best plan's */
    uint64_t excess_bytes;     /* what it lacks; 0: it fits */
    bool outside;              /* faster, but not in the space that is searched */
    const char *limit;         /* the part that changes most, and by how much: short */
    const char *why;           /* a sentence */
} smp_neighbour;

struct smp_plan {
    smp_arena *arena;
    smp_job job;                 /* as given, with pins */
    smp_plan_options options;
    smp_search_info info;
    double start_s;              /* of the search, by the clock */
    bool stopped;                /* by the deadline */
    smp_found *found;            /* best first */
    uint32_t n_found;
    smp_spot *spots;             /* heap */
    size_t n_spot, spot_room;
    smp_front front;             /* where options.front asks for it */
    uint64_t front_evaluated;    /* simulated for it */
    bool has_nearest;
    smp_found nearest;
    uint64_t nearest_excess_bytes;
    uint32_t fitting_gpus;       /* 0: no count up to the limit of the search fits */
    uint32_t largest_gpus_tried;
    smp_neighbour *neighbours;   /* of the best */
    uint32_t n_neighbour;
    const char *experts;         /* a sentence on where the experts of the best lie; or NULL */
};

/* plan.c.  Plans to keep; bytes that one may use of a device of the job's cluster. */
uint32_t smp_plan_top(const smp_plan *plan);
uint64_t smp_plan_limit(const smp_plan *plan, const smp_job *job);
/* Whether a deadline has passed; then the search stops with something left that may take as
 * little as bound_ps, while the best so far takes best_ps (0: nothing is known). */
bool smp_plan_is_late(const smp_plan *plan);
void smp_plan_stop(smp_plan *plan, int64_t best_ps, int64_t bound_ps);
/* Less time, or as much with a smaller code. */
bool smp_is_faster(const smp_found *a, const smp_found *b);
/* Keeps the best, by the plan's objective, of what it has and n more. */
void smp_plan_merge(smp_plan *plan, const smp_found *found, uint32_t n);
/* The next number of GPUs worth renting: those that divide a node, and whole nodes. */
uint32_t smp_next_gpus(const smp_cluster *cluster, uint32_t gpus);
/* A cluster with another number of GPUs, made of whole nodes from one node on; the copy
 * lies in the arena and borrows the rest. */
const smp_cluster *smp_cluster_resized(smp_arena *arena, const smp_cluster *cluster,
                                       uint32_t gpus);

/* Fills plan->neighbours and plan->experts. */
SMP_CHECK smp_status smp_plan_explain(smp_plan *plan, smp_errors *errors);

#endif
