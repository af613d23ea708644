/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exact time and memory of one job, however many micro-batches its step has.
 *
 * The start of every task is a maximum of sums of durations, so a micro-batch is a map that
 * commutes with a shift in time: F(x + c) = F(x) + c (Baccelli, Cohen, Olsder, Quadrat,
 * "Synchronization and Linearity", 1992, chapter 3).  Micro-batches in the middle of a step
 * have the same tasks and the same waits, hence the same F.  If every task of one middle
 * micro-batch runs exactly c after the same task of the one before, then so it does in all
 * that follow, and each adds c to the step.  This is checked on the records of a step with
 * few micro-batches, over two successive pairs, because a wait may reach back over two of
 * them; while it does not hold, more are simulated, at last all.
 *
 * The rates at which overlapping tasks run depend on what runs, not on when, so they shift as
 * well; two repetitions show that the states at the ends of micro-batches are equal but for
 * the shift.  Where the host launches every kernel, its time for a micro-batch must not be
 * longer than the shift, or it would fall behind later; where it is shorter, nothing in the
 * last micro-batch and the update may wait for the host, which is further ahead later.
 *
 * Memory from four micro-batches on does not depend on their number: the memory plan walks four
 * (src/step/memory.c).
 */
#include "config.h"

#include "plan/plan.h"

#include "base/numeric.h"
#include "mesh/mesh.h"
#include "sim/peaks.h"
#include "sim/sim.h"

/* First, three in the middle, last, and one more that may differ: prefetch for the last. */
enum { FEWEST = 6 };

smp_job smp_with_expected_rows(const smp_job *job)
{
    smp_job out = *job;
    const double mean = smp_imbalance_mean(&job->settings.imbalance);
    out.settings.imbalance = (smp_imbalance){.kind = SMP_IMBALANCE_CONSTANT, .mean = mean};
    return out;
}

/* A resolved job with another number of micro-batches. */
static smp_job with_micro_batches(const smp_job *job, uint64_t n)
{
    smp_job out = smp_with_expected_rows(job);
    out.micro_batches = n;
    out.batch.global_batch = smp_mul(n, smp_mul(job->settings.micro_batch, job->data_ranks));
    return out;
}

/* What of a step is asked for: its time; also its memory; also what the memory plan pays for
 * overlap. */
typedef enum detail { TIME, MEMORY, SAFETY } detail;

/* How a job is simulated. */
typedef struct wanted {
    detail detail;
    bool alone;             /* also where nothing slows */
    const smp_ranks *ranks; /* of the job, or NULL */
} wanted;

static smp_status lower(const smp_job *job, wanted how, smp_errors *errors, smp_step **step_p)
{
    if (how.detail == TIME) {
        return how.ranks ? smp_step_lower_apart_on(job, how.ranks, errors, step_p)
                         : smp_step_lower_apart(job, errors, step_p);
    }
    if (how.detail == MEMORY) {
        return how.ranks ? smp_step_lower_arena_on(job, how.ranks, errors, step_p)
                         : smp_step_lower_arena(job, errors, step_p);
    }
    return smp_step_lower(job, errors, step_p);
}

static smp_status simulate(const smp_job *job, wanted how, smp_errors *errors,
                           smp_step **step_p, smp_simulation **simulation_p)
{
    smp_step *step = NULL;
    smp_status st = lower(job, how, errors, &step);
    if (st != SMP_OK) {
        return st;
    }
    st = how.detail == TIME ? smp_simulate_times(job, step, errors, simulation_p)
                            : smp_simulate(job, step, errors, simulation_p);
    if (st != SMP_OK) {
        smp_step_destroy(step);
        return st;
    }
    *step_p = step;
    return SMP_OK;
}

smp_status smp_evaluate_fully(const smp_job *job, smp_errors *errors, smp_report *report_p)
{
    smp_step *step = NULL;
    smp_simulation *simulation = NULL;
    const smp_job expected = smp_with_expected_rows(job);
    const smp_status st =
        simulate(&expected, (wanted){.detail = SAFETY}, errors, &step, &simulation);
    if (st == SMP_OK) {
        *report_p = *smp_simulation_report(simulation);
        smp_simulation_destroy(simulation);
        smp_step_destroy(step);
    }
    return st;
}

/* The next instance of a micro-batch at or after i; n_instance when there is none. */
static uint32_t next_of(const smp_program *program, uint32_t i, uint64_t micro_batch)
{
    while (i < program->n_instance && program->order[i].micro_batch != micro_batch) {
        i++;
    }
    return i;
}

/* Whether the tasks of two instances are alike and the second's lie *shift_p after the
 * first's; *shift_p is set by the first pair of all. */
static bool is_shifted(const smp_simulation *simulation, uint32_t class, uint32_t i, uint32_t j,
                       bool *any_p, int64_t *shift_p)
{
    const smp_program *program = simulation->step->programs[class];
    const smp_instance *a = &program->order[i];
    const smp_instance *b = &program->order[j];
    if (a->segment != b->segment || a->layer != b->layer) {
        return false;
    }
    const smp_record *first = simulation->records[class] + simulation->record0[class][i];
    const smp_record *second = simulation->records[class] + simulation->record0[class][j];
    for (uint32_t t = 0; t < program->segments[a->segment].n_task; t++) {
        const int64_t shift = second[t].end_ps - first[t].end_ps;
        if (!*any_p) {
            *any_p = true;
            *shift_p = shift;
        }
        if (shift != *shift_p || second[t].start_ps - first[t].start_ps != shift) {
            return false;
        }
    }
    return true;
}

/* Whether in every class micro-batch `second` repeats `second` - 1, the shift of all being
 * the same. */
static bool repeats(const smp_simulation *simulation, uint64_t second, bool *any_p,
                    int64_t *shift_p)
{
    for (uint32_t class = 0; class < simulation->step->n_program; class++) {
        const smp_program *program = simulation->step->programs[class];
        uint32_t i = next_of(program, 0, second - 1);
        uint32_t j = next_of(program, 0, second);
        while (i < program->n_instance && j < program->n_instance) {
            if (!is_shifted(simulation, class, i, j, any_p, shift_p)) {
                return false;
            }
            i = next_of(program, i + 1, second - 1);
            j = next_of(program, j + 1, second);
        }
        if (i != j) {
            return false;
        }
    }
    return *any_p;
}

/* Host time of a micro-batch; 0 where the host launches nothing. */
static int64_t host_ps(const smp_simulation *simulation, uint64_t micro_batch)
{
    int64_t most_ps = 0;
    for (uint32_t c = 0; simulation->host_issue_ps && c < simulation->step->n_program; c++) {
        const smp_program *program = simulation->step->programs[c];
        int64_t sum_ps = 0;
        for (uint32_t i = 0; i < program->n_instance; i++) {
            const smp_segment *segment = &program->segments[program->order[i].segment];
            for (uint32_t t = 0; t < segment->n_task; t++) {
                sum_ps += program->order[i].micro_batch == micro_batch
                              ? simulation->host_issue_ps[c][segment->task0 + t]
                              : 0;
            }
        }
        most_ps = sum_ps > most_ps ? sum_ps : most_ps;
    }
    return most_ps;
}

/* Whether a task of an instance starts when the host launches it: no other task's end lets it
 * start (sim.h). */
static bool waits_for_host(const smp_simulation *simulation, uint32_t class, uint32_t instance)
{
    const smp_program *program = simulation->step->programs[class];
    const smp_record *records =
        simulation->records[class] + simulation->record0[class][instance];
    for (uint32_t t = 0; t < program->segments[program->order[instance].segment].n_task; t++) {
        if (records[t].cause_class == class && records[t].cause_instance == instance &&
            records[t].cause_task == t) {
            return true;
        }
    }
    return false;
}

/* Whether the host holds up nothing from micro-batch `first` on. */
static bool host_is_ahead(const smp_simulation *simulation, uint64_t first)
{
    for (uint32_t c = 0; c < simulation->step->n_program; c++) {
        const smp_program *program = simulation->step->programs[c];
        for (uint32_t i = 0; i < program->n_instance; i++) {
            if (program->order[i].micro_batch >= first && waits_for_host(simulation, c, i)) {
                return false;
            }
        }
    }
    return true;
}

/* Whether the host is no reason that more micro-batches would not repeat. */
static bool host_keeps_up(const smp_simulation *simulation, uint64_t n, int64_t shift_ps)
{
    const int64_t each_ps = host_ps(simulation, n - 2);
    return !simulation->host_issue_ps || each_ps == shift_ps ||
           (each_ps < shift_ps && host_is_ahead(simulation, n - 1));
}

/* Whether the middle of n micro-batches repeats, each *shift_p after the one before. */
static bool is_steady(const smp_simulation *simulation, uint64_t n, int64_t *shift_p)
{
    bool any = false;
    return n >= FEWEST && repeats(simulation, n - 3, &any, shift_p) &&
           repeats(simulation, n - 2, &any, shift_p) &&
           host_keeps_up(simulation, n, *shift_p);
}

static void extend_part(int64_t *part_ps, int64_t fewer_ps, uint64_t more)
{
    *part_ps += (*part_ps - fewer_ps) * (int64_t)more;
}

/* Makes the report of a job with n micro-batches one of all.  Each adds shift_ps; the parts of
 * `fewer`, a report with n - 1, say of what it consists (NULL: not asked). */
static void extend(smp_report *report, const smp_report *fewer, const smp_job *job,
                   uint64_t n, int64_t shift_ps)
{
    const uint64_t more = job->micro_batches - n;
    const double before_s = report->step_time_s;
    report->step_ps += shift_ps * (int64_t)more;
    report->step_time_s = smp_s_from_ps(report->step_ps);
    const double slower = report->step_time_s / before_s;
    const double larger = (double)job->micro_batches / (double)n;
    report->interval_low_s *= slower;
    report->interval_high_s *= slower;
    report->model_flops *= larger;
    report->hardware_flops *= larger;
    report->tokens_per_s_per_gpu *= larger / slower;
    report->mfu *= larger / slower;
    report->hfu *= larger / slower;
    report->cost_per_billion_tokens *= slower / larger;
    if (fewer) {
        const smp_time_parts *old = &fewer->time;
        smp_time_parts *new = &report->time;
        extend_part(&new->compute_ps, old->compute_ps, more);
        extend_part(&new->optimizer_ps, old->optimizer_ps, more);
        extend_part(&new->launch_ps, old->launch_ps, more);
        extend_part(&new->shard_ps, old->shard_ps, more);
        extend_part(&new->replica_ps, old->replica_ps, more);
        extend_part(&new->tensor_ps, old->tensor_ps, more);
        extend_part(&new->expert_ps, old->expert_ps, more);
        extend_part(&new->world_ps, old->world_ps, more);
        extend_part(&new->offload_ps, old->offload_ps, more);
    }
}

/* A simulated step whose middle micro-batches may repeat, each `shift_ps` after the one
 * before. */
typedef struct trial {
    smp_report report;
    bool steady;
    int64_t shift_ps;
    /* the same where nothing slows anything */
    int64_t alone_ps, alone_shift_ps;
} trial;

/* Simulates n micro-batches. */
static smp_status try_micro_batches(const smp_job *job, uint64_t n, wanted how,
                                    smp_errors *errors, trial *out)
{
    const smp_job fewer = with_micro_batches(job, n);
    smp_step *step = NULL;
    smp_simulation *simulation = NULL;
    smp_status st = simulate(&fewer, how, errors, &step, &simulation);
    if (st != SMP_OK) {
        return st;
    }
    *out = (trial){.report = *smp_simulation_report(simulation)};
    out->steady = is_steady(simulation, n, &out->shift_ps);
    out->alone_ps = out->report.step_ps;
    out->alone_shift_ps = out->shift_ps;
    if (how.alone && simulation->overlaps) {
        st = smp_simulation_alone(simulation, errors, &out->alone_ps);
        if (!is_steady(simulation, n, &out->alone_shift_ps)) {
            out->alone_shift_ps = 0; /* more micro-batches end no earlier */
        }
    }
    smp_simulation_destroy(simulation);
    smp_step_destroy(step);
    return st;
}

/* As many micro-batches as it takes; *n_p: how many. */
static smp_status try_enough(const smp_job *job, wanted how, smp_errors *errors, trial *out,
                             uint64_t *n_p)
{
    uint64_t n = FEWEST < job->micro_batches ? FEWEST : job->micro_batches;
    for (;;) {
        const smp_status st = try_micro_batches(job, n, how, errors, out);
        if (st != SMP_OK) {
            return st;
        }
        if (out->steady || n == job->micro_batches) {
            break;
        }
        n = 2 * n < job->micro_batches ? 2 * n : job->micro_batches;
    }
    out->alone_ps += n < job->micro_batches
                         ? out->alone_shift_ps * (int64_t)(job->micro_batches - n)
                         : 0;
    *n_p = n;
    return SMP_OK;
}

smp_status smp_evaluate_time(const smp_job *job, const smp_ranks *ranks, smp_errors *errors,
                             int64_t *step_ps_p, int64_t *alone_ps_p)
{
    uint64_t n = 0;
    trial last;
    const wanted how = {TIME, alone_ps_p != NULL, ranks};
    const smp_status st = try_enough(job, how, errors, &last, &n);
    if (st == SMP_OK) {
        *step_ps_p = last.report.step_ps;
        if (n < job->micro_batches) {
            *step_ps_p += last.shift_ps * (int64_t)(job->micro_batches - n);
        }
        if (alone_ps_p) {
            *alone_ps_p = last.alone_ps;
        }
    }
    return st;
}

smp_status smp_evaluate_on(const smp_job *job, const smp_ranks *ranks, bool parts,
                           smp_errors *errors, smp_report *report_p, int64_t *alone_ps_p,
                           uint64_t *micro_batches_p)
{
    const wanted how = {parts ? SAFETY : MEMORY, alone_ps_p != NULL, ranks};
    uint64_t n = 0;
    trial last;
    smp_status st = try_enough(job, how, errors, &last, &n);
    if (st != SMP_OK) {
        return st;
    }
    *report_p = last.report;
    if (n < job->micro_batches && parts) { /* with n - 1 the host may hold up the end */
        const smp_job next = with_micro_batches(job, n + 1);
        st = smp_evaluate_fully(&next, errors, report_p);
        if (st != SMP_OK) {
            return st;
        }
        extend(report_p, &last.report, job, n + 1, last.shift_ps);
    } else if (n < job->micro_batches) {
        extend(report_p, NULL, job, n, last.shift_ps);
    }
    if (alone_ps_p) {
        *alone_ps_p = last.alone_ps;
    }
    if (micro_batches_p) {
        *micro_batches_p = n;
    }
    return SMP_OK;
}

smp_status smp_evaluate(const smp_job *job, bool parts, smp_errors *errors,
                        smp_report *report_p, int64_t *alone_ps_p, uint64_t *micro_batches_p)
{
    return smp_evaluate_on(job, NULL, parts, errors, report_p, alone_ps_p, micro_batches_p);
}

uint64_t smp_memory_limit(const smp_report *report, double margin_frac)
{
    return (uint64_t)((double)report->memory.capacity_bytes * (1 - margin_frac));
}

uint64_t smp_report_excess(const smp_report *report, double margin_frac)
{
    const smp_memory *memory = &report->memory;
    const uint64_t limit = smp_memory_limit(report, margin_frac);
    const uint64_t on_device = memory->peaks[smp_peaks_most(memory, false)].device_bytes;
    const uint64_t on_host = memory->peaks[smp_peaks_most(memory, true)].host_bytes_per_node;
    const uint64_t device = on_device > limit ? on_device - limit : 0;
    const uint64_t host = on_host > memory->host_capacity_bytes
                              ? on_host - memory->host_capacity_bytes
                              : 0;
    return device > host ? device : host;
}

bool smp_report_fits(const smp_report *report, double margin_frac)
{
    return report->memory.fits && smp_report_excess(report, margin_frac) == 0;
}
