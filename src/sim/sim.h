/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The discrete-event simulation of a step: every class of ranks, streams, waits, rendezvous.
 *
 * Time is int64_t picoseconds; event order is (time, class, stream), so it is total.  A task
 * starts when its stream is free, its waits are done, the host has issued it and, for a
 * collective, when every class that meets there has reached it; then it lasts what src/cost
 * says (a collective: the longest of what it costs the classes that meet, for it ends for all
 * of them at once).
 */
#ifndef SMP_SIM_SIM_H
#define SMP_SIM_SIM_H

#include "base/arena.h"
#include "base/text.h"
#include "cost/cost.h"
#include "smp.h"
#include "step/program.h"

/* When a task of a class ran, and what its start waited for. */
typedef struct smp_record {
    int64_t start_ps, end_ps;
    int64_t ready_ps;      /* when its stream was free and its waits done (collectives may
                              start later, when the last class arrives) */
    uint32_t cause_instance; /* the task whose end let this one start; itself: none (the
                                start of the step, or the issue by the host) */
    uint16_t cause_task;
    uint16_t cause_class;
} smp_record;

/* Where the seconds of a step went: the axes and copies that fill idle gaps of compute. */
typedef enum smp_part {
    SMP_PART_COMPUTE, SMP_PART_OPTIMIZER, SMP_PART_LAUNCH, SMP_PART_SHARD, SMP_PART_REPLICA,
    SMP_PART_TENSOR, SMP_PART_EXPERT, SMP_PART_WORLD, SMP_PART_OFFLOAD, SMP_PARTS
} smp_part;
const char *smp_part_name(smp_part part);

struct smp_simulation {
    smp_arena *arena;
    const smp_job *job;
    const smp_step *step;
    smp_report report;
    uint32_t slowest;        /* class that ends last */
    uint32_t fullest;        /* class with the highest peak of memory */
    /* per class: durations by task (program->n_task), cost by task, first record of each
     * instance (n_instance + 1), and the records */
    int64_t **duration_ps;
    int64_t **host_issue_ps; /* NULL: the host launches nothing */
    smp_cost **cost;
    uint32_t **record0;
    smp_record **records;
    int64_t **path_ps;       /* per class and task: time on the path of smp_report.time */
    double sigma_s;          /* standard deviation behind the interval */
    const int64_t *const **drawn_ps; /* as in smp_engine_input */
    bool overlaps;           /* the profile says how tasks slow each other down */
};

/* What the engine runs.  All arrays are per class, then per task or instance. */
typedef struct smp_engine_input {
    const smp_step *step;
    int64_t *const *duration_ps;
    /* By class and instance: durations of its tasks, NULL: as above; the whole or a class may
     * be NULL as well. */
    const int64_t *const *const *drawn_ps;
    /* Time the host takes to issue a task; the host issues in the order of instances and never
     * waits.  NULL: a captured graph, everything is issued at 0. */
    int64_t *const *host_issue_ps;
    /* NULL: nothing is kept.  record0 as in smp_simulation. */
    smp_record *const *records;
    const uint32_t *const *record0;
    /* How tasks slow each other down, and the smp_overlap_kind of each task; NULL: not. */
    const smp_overlap *overlap;
    const uint8_t *const *kinds;
    /* NULL: nobody looks on (steady.c does, at one class with overlap) */
    struct smp_watch *watch;
} smp_engine_input;

/* Step end of all classes in picoseconds, and the class that ends last (the lowest of equals).
 * Cost: O((tasks + waits) log streams), no allocation per task. */
SMP_CHECK smp_status smp_engine_simulate(const smp_engine_input *input, smp_errors *errors,
                                         int64_t *end_ps_p, uint32_t *slowest_p);
/* The same without a host. */
SMP_CHECK smp_status smp_engine_run(const smp_step *step, int64_t *const *duration_ps,
                                    smp_record *const *records, const uint32_t *const *record0,
                                    smp_errors *errors, int64_t *end_ps_p, uint32_t *slowest_p);

/* Durations by instance of class c where the imbalance of experts is drawn (drawn_ps above);
 * NULL: nothing is. */
const int64_t *const *smp_draw_durations(const smp_simulation *simulation, uint32_t c);
/* As smp_simulate, but nothing of the report is filled in but the time of the step. */
SMP_CHECK smp_status smp_simulate_times(const smp_job *job, const smp_step *step,
                                        smp_errors *errors, smp_simulation **simulation_p);
/* Runs the step of a simulation again as if nothing slowed anything; never ends later.  The
 * records are overwritten. */
SMP_CHECK smp_status smp_simulation_alone(const smp_simulation *simulation, smp_errors *errors,
                                          int64_t *end_ps_p);

/* What the tasks of a program last where nothing slows them, by task; in the arena.  `prices`
 * (NULL: none) remembers them. */
SMP_CHECK smp_status smp_price_program(const smp_job *job, const smp_program *program,
                                       smp_prices *prices, smp_arena *arena,
                                       smp_errors *errors, int64_t **duration_ps_p);

/* Fills record0 (n_instance + 1 entries) and returns the number of records. */
uint64_t smp_records_index(const smp_program *program, uint32_t *record0);

/* Splits the step over parts; path_ps (per class, per task, zeroed) receives the time by
 * task.  The parts add up to end_ps exactly. */
void smp_time_split(const smp_simulation *simulation, int64_t end_ps,
                    smp_time_parts *parts_p);
int64_t *smp_time_part(smp_time_parts *parts, smp_part part);

/* Memory of a step by class; cluster and profile give capacity and estimates. */
void smp_memory_split(const smp_job *job, const smp_step *step, smp_memory *memory_p,
                      uint32_t *fullest_p);

/* Live bytes over time, by kind: one point per change, in order of time. */
typedef struct smp_live_point {
    int64_t time_ps;
    uint64_t kind_bytes[SMP_KINDS]; /* on the device */
    uint64_t host_bytes;
} smp_live_point;
/* Calls visit for every point of class c.  Lives are those of the memory plan (live.c);
 * scope STEP lives from 0 to the end of the step.  The sum never exceeds the arena. */
void smp_live_sweep(const smp_simulation *simulation, uint32_t c,
                    void (*visit)(void *context, const smp_live_point *point), void *context);

/* The report without braces: for objects of smp-sim, sweeps and plans. */
void smp_out_report(smp_json_out *out, const smp_job *job, const smp_report *report);
/* The job, its report and the answers (or NULL), without braces. */
void smp_out_simulation(smp_json_out *out, const smp_simulation *simulation,
                        const smp_what_ifs *what_ifs);

#endif
