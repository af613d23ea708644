/* SPDX-License-Identifier: Apache-2.0 */
/*
 * smp_simulate: durations from costs, the engine, and the figures of the report.
 *
 * Interval.  A profile gives a relative standard deviation for a kernel's time about the
 * model.  Repetitions of one kernel shape err together: the model is wrong about the shape, not
 * about the run.  Different shapes err partly together, since they rest on the same
 * efficiency: half of the variance is taken as common to a class of operations, half as
 * independent from shape to shape.  Classes are independent.  With x_k the standard deviation
 * of shape k times its seconds on the path that time.parts follows,
 *     sigma^2 = sum over classes of ( (sum_k x_k)^2 + sum_k x_k^2 ) / 2,
 * and the 80 % interval is step +- 1.2816 sigma (a normal error).  The share of one half is an
 * assumption; it lies between "all shapes err alike" and "errors average out".  Added to
 * sigma^2 is the square of what the efficiency of a software stack leaves of the step
 * (docs/stacks.md).
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "sim/sim.h"

#include "base/numeric.h"
#include "cost/stack.h"
#include "mesh/runtime.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --------------------------------------------------------------------- batch */

void smp_job_default_batch(smp_job *job)
{
    enum { LONGEST = 8192, UNKNOWN = 4096 };
    if (job->batch.seq_len == 0) {
        uint64_t positions = job->model->max_positions;
        job->batch.seq_len = positions == 0        ? UNKNOWN
                             : positions < LONGEST ? positions
                                                   : LONGEST;
    }
    if (job->batch.global_batch == 0) {
        uint64_t model_ranks = smp_mul(job->settings.tensor_parallel_degree,
                                       job->settings.context_parallel_degree);
        uint64_t data_ranks = model_ranks ? smp_cluster_gpus(job->cluster) / model_ranks : 0;
        job->batch.global_batch =
            smp_mul(data_ranks > 0 ? data_ranks : 1, job->settings.micro_batch);
    }
}

/* ------------------------------------------------------------------ interval */

/* The time of one stored task on the path, with what makes it a shape. */
typedef struct share {
    const smp_task *task;
    smp_op_class klass;
    double x_s; /* standard deviation in seconds */
} share;

static int share_compare(const void *a_, const void *b_)
{
    const share *a = a_;
    const share *b = b_;
    if (a->klass != b->klass) {
        return a->klass < b->klass ? -1 : 1;
    }
    if (a->task->op != b->task->op) {
        return a->task->op < b->task->op ? -1 : 1;
    }
    if (a->task->dtype != b->task->dtype) {
        return a->task->dtype < b->task->dtype ? -1 : 1;
    }
    if (a->task->comm != b->task->comm) {
        return a->task->comm < b->task->comm ? -1 : 1;
    }
    return memcmp(a->task->dims, b->task->dims, sizeof a->task->dims);
}

/* Standard deviation of the step in seconds; see the head of this file. */
static double step_sigma_s(const smp_simulation *simulation)
{
    smp_arena *arena = smp_arena_create();
    size_t n = 0;
    for (uint32_t c = 0; c < simulation->step->n_program; c++) {
        n += simulation->step->programs[c]->n_task;
    }
    share *shares = SMP_ARENA_ARRAY(arena, n, share);
    n = 0;
    for (uint32_t c = 0; c < simulation->step->n_program; c++) {
        const smp_program *program = simulation->step->programs[c];
        for (uint32_t t = 0; t < program->n_task; t++) {
            double path_s = smp_s_from_ps(simulation->path_ps[c][t]);
            const smp_task *task = &program->tasks[t];
            if (path_s > 0) {
                shares[n++] = (share){task, smp_op_info_of((smp_op)task->op)->klass,
                                      path_s * simulation->cost[c][t].spread};
            }
        }
    }
    if (n > 0) {
        qsort(shares, n, sizeof *shares, share_compare);
    }
    double variance = 0;
    double class_s = 0;
    for (size_t first = 0, end = 0; first < n; first = end) {
        double shape_s = 0;
        for (end = first; end < n && share_compare(&shares[first], &shares[end]) == 0; end++) {
            shape_s += shares[end].x_s;
        }
        class_s += shape_s;
        variance += shape_s * shape_s / 2;
        if (end == n || shares[end].klass != shares[first].klass) {
            variance += class_s * class_s / 2;
            class_s = 0;
        }
    }
    smp_arena_destroy(arena);
    const double stack_s = smp_runtime_of(simulation->job->settings.stack)->spread *
                           simulation->report.step_time_s;
    return sqrt(variance + stack_s * stack_s);
}

/* -------------------------------------------------------------------- report */

static void fill_rates(const smp_simulation *simulation, smp_report *report)
{
    enum { SECONDS_PER_HOUR = 3600 };
    const double quantile = 1.2815515655446004; /* 90 % of a normal distribution */
    const smp_job *job = simulation->job;
    double world = (double)job->world;
    double tokens = (double)job->batch.seq_len * (double)job->batch.global_batch;
    double step_s = report->step_time_s;
    double low_s = step_s - quantile * simulation->sigma_s;
    report->interval_low_s = low_s > 0 ? low_s : 0;
    report->interval_high_s = step_s + quantile * simulation->sigma_s;
    report->model_flops = simulation->step->model_flops;
    report->hardware_flops = simulation->step->hardware_flops;
    report->peak_flops_per_s =
        job->profile->peak_flops[smp_precision_dtype(job->settings.precision)].value;
    if (step_s > 0) {
        report->tokens_per_s_per_gpu = tokens / step_s / world;
        if (report->peak_flops_per_s > 0) {
            double possible_flops = step_s * world * report->peak_flops_per_s;
            report->mfu = report->model_flops / possible_flops;
            report->hfu = report->hardware_flops / possible_flops;
        }
    }
    report->cost_per_billion_tokens = step_s * world / SECONDS_PER_HOUR *
                                      job->cluster->price_per_gpu_hour.value / tokens * 1e9;
}

/* ------------------------------------------------------------------ simulate */

/* Times are 64-bit picoseconds, 106 days: a step has room for what overlap and waiting for
 * other ranks add to the tasks of one. */
static smp_status check_length(const smp_program *program, const smp_cost *cost,
                               smp_errors *errors)
{
    enum { SECONDS_PER_DAY = 86400, MOST_DAYS = 13 };
    double *segment_s = smp_heap_alloc(program->n_segment, sizeof *segment_s);
    double sum_s = 0;
    for (uint32_t s = 0; s < program->n_segment; s++) {
        for (uint32_t t = 0; t < program->segments[s].n_task; t++) {
            segment_s[s] += smp_cost_seconds(&cost[program->segments[s].task0 + t]);
        }
    }
    for (uint32_t i = 0; i < program->n_instance; i++) {
        sum_s += segment_s[program->order[i].segment];
    }
    free(segment_s);
    const double days = sum_s / SECONDS_PER_DAY;
    return days <= MOST_DAYS ? SMP_OK
                             : smp_fail(errors, SMP_INPUT, NULL,
                                        "the tasks of rank %u in one step take %.3g days: must "
                                        "be at most %d; lower seq_len or global_batch",
                                        program->representative, days, MOST_DAYS);
}

/* Costs and durations of the tasks of a program. */
static smp_status price(const smp_job *job, const smp_program *program, smp_prices *prices,
                        smp_errors *errors, smp_cost *cost, int64_t *duration_ps)
{
    for (uint32_t t = 0; t < program->n_task; t++) {
        const smp_task *task = &program->tasks[t];
        if (prices) {
            smp_prices_task(prices, job->cluster, job->profile, program, task, &cost[t]);
        } else {
            smp_cost_task(job->cluster, job->profile, program, task, &cost[t]);
        }
    }
    const smp_status status = check_length(program, cost, errors);
    for (uint32_t t = 0; status == SMP_OK && t < program->n_task; t++) {
        duration_ps[t] = smp_ps_from_s(smp_cost_seconds(&cost[t]));
    }
    return status;
}

smp_status smp_price_program(const smp_job *job, const smp_program *program,
                             smp_prices *prices, smp_arena *arena, smp_errors *errors,
                             int64_t **duration_ps_p)
{
    smp_cost *cost = SMP_ARENA_ARRAY(arena, program->n_task, smp_cost);
    *duration_ps_p = SMP_ARENA_ARRAY(arena, program->n_task, int64_t);
    return price(job, program, prices, errors, cost, *duration_ps_p);
}

static smp_status price_tasks(smp_simulation *simulation, smp_errors *errors)
{
    const smp_step *step = simulation->step;
    smp_arena *arena = simulation->arena;
    uint32_t n = step->n_program;
    simulation->duration_ps = SMP_ARENA_ARRAY(arena, n, int64_t *);
    simulation->cost = SMP_ARENA_ARRAY(arena, n, smp_cost *);
    simulation->path_ps = SMP_ARENA_ARRAY(arena, n, int64_t *);
    for (uint32_t c = 0; c < n; c++) {
        const smp_program *program = step->programs[c];
        simulation->duration_ps[c] = SMP_ARENA_ARRAY(arena, program->n_task, int64_t);
        simulation->cost[c] = SMP_ARENA_ARRAY(arena, program->n_task, smp_cost);
        simulation->path_ps[c] = SMP_ARENA_ARRAY(arena, program->n_task, int64_t);
        const smp_status status = price(simulation->job, program, NULL, errors,
                                        simulation->cost[c], simulation->duration_ps[c]);
        if (status != SMP_OK) {
            return status;
        }
    }
    return SMP_OK;
}

/* What the host takes to launch each task; NULL: the step is a captured graph. */
static int64_t **host_issue(const smp_simulation *simulation)
{
    const smp_step *step = simulation->step;
    if (!step->programs[0]->host_launches) {
        return NULL;
    }
    const double launch_s = simulation->job->profile->host_launch_s.value;
    int64_t **issue_ps = SMP_ARENA_ARRAY(simulation->arena, step->n_program, int64_t *);
    for (uint32_t c = 0; c < step->n_program; c++) {
        const smp_program *program = step->programs[c];
        issue_ps[c] = SMP_ARENA_ARRAY(simulation->arena, program->n_task, int64_t);
        for (uint32_t t = 0; t < program->n_task; t++) {
            const double kernels = smp_cost_kernels(program, &program->tasks[t]);
            issue_ps[c][t] = smp_ps_from_s(kernels * launch_s);
        }
    }
    return issue_ps;
}

static const uint8_t *const *overlap_kinds(const smp_simulation *simulation)
{
    const smp_step *step = simulation->step;
    uint8_t **kinds = SMP_ARENA_ARRAY(simulation->arena, step->n_program, uint8_t *);
    for (uint32_t c = 0; c < step->n_program; c++) {
        const smp_program *program = step->programs[c];
        kinds[c] = SMP_ARENA_ARRAY(simulation->arena, program->n_task, uint8_t);
        for (uint32_t t = 0; t < program->n_task; t++) {
            kinds[c][t] = (uint8_t)smp_cost_overlap_kind(program, &program->tasks[t]);
        }
    }
    return (const uint8_t *const *)kinds;
}

/* Runs the step; `overlap` NULL: nothing slows anything. */
static smp_status run(const smp_simulation *simulation, const smp_overlap *overlap,
                      smp_errors *errors, int64_t *end_ps_p, uint32_t *slowest_p)
{
    const smp_engine_input input = {
        .step = simulation->step,
        .duration_ps = simulation->duration_ps,
        .drawn_ps = simulation->drawn_ps,
        .host_issue_ps = simulation->host_issue_ps,
        .records = simulation->records,
        .record0 = (const uint32_t *const *)simulation->record0,
        .overlap = overlap,
        .kinds = overlap ? overlap_kinds(simulation) : NULL,
    };
    return smp_engine_simulate(&input, errors, end_ps_p, slowest_p);
}

smp_status smp_simulation_alone(const smp_simulation *simulation, smp_errors *errors,
                                int64_t *end_ps_p)
{
    uint32_t slowest = 0;
    return run(simulation, NULL, errors, end_ps_p, &slowest);
}

static void make_records(smp_simulation *simulation)
{
    const smp_step *step = simulation->step;
    uint32_t n = step->n_program;
    simulation->record0 = SMP_ARENA_ARRAY(simulation->arena, n, uint32_t *);
    simulation->records = SMP_ARENA_ARRAY(simulation->arena, n, smp_record *);
    for (uint32_t c = 0; c < n; c++) {
        const smp_program *program = step->programs[c];
        simulation->record0[c] =
            SMP_ARENA_ARRAY(simulation->arena, (size_t)program->n_instance + 1, uint32_t);
        uint64_t n_record = smp_records_index(program, simulation->record0[c]);
        simulation->records[c] = SMP_ARENA_ARRAY(simulation->arena, n_record, smp_record);
        simulation->report.tasks += n_record;
    }
}

smp_status smp_simulate_times(const smp_job *job, const smp_step *step, smp_errors *errors,
                              smp_simulation **simulation_p)
{
    smp_arena *arena = smp_arena_create();
    smp_simulation *simulation = SMP_ARENA_NEW(arena, smp_simulation);
    *simulation = (smp_simulation){.arena = arena, .job = job, .step = step};
    smp_status status = price_tasks(simulation, errors);
    if (status != SMP_OK) {
        smp_arena_destroy(arena);
        return status;
    }
    simulation->host_issue_ps = host_issue(simulation);
    make_records(simulation);
    smp_report *report = &simulation->report;
    simulation->drawn_ps = SMP_ARENA_ARRAY(arena, step->n_program, const int64_t *const *);
    for (uint32_t c = 0; c < step->n_program; c++) {
        simulation->drawn_ps[c] = smp_draw_durations(simulation, c);
    }
    smp_overlap overlap;
    simulation->overlaps = smp_cost_overlap(job->profile, &overlap);
    status = run(simulation, simulation->overlaps ? &overlap : NULL, errors,
                 &report->step_ps, &simulation->slowest);
    if (status != SMP_OK) {
        smp_arena_destroy(arena);
        return status;
    }
    report->step_time_s = smp_s_from_ps(report->step_ps);
    report->classes = step->n_program;
    *simulation_p = simulation;
    return SMP_OK;
}

smp_status smp_simulate(const smp_job *job, const smp_step *step, smp_errors *errors,
                        smp_simulation **simulation_p)
{
    smp_simulation *simulation = NULL;
    const smp_status status = smp_simulate_times(job, step, errors, &simulation);
    if (status != SMP_OK) {
        return status;
    }
    smp_report *report = &simulation->report;
    smp_time_split(simulation, report->step_ps, &report->time);
    smp_memory_split(job, step, &report->memory, &simulation->fullest);
    simulation->sigma_s = step_sigma_s(simulation);
    fill_rates(simulation, report);
    *simulation_p = simulation;
    return SMP_OK;
}

void smp_simulation_destroy(smp_simulation *simulation)
{
    if (simulation) {
        smp_arena_destroy(simulation->arena);
    }
}

const smp_report *smp_simulation_report(const smp_simulation *simulation)
{
    return &simulation->report;
}
