/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training runs of a simulated job: failures and checkpoints, days and money.
 *
 * What is not given is estimated.  Saving: training stands still while a rank's state is
 * copied to the host (files are written in the background), so the state's bytes over the
 * GPU's share of the link to the host.  Loading: the same the other way; from storage it
 * takes longer.  Restart: until the job runs again, RESTART_S, an assumption.
 */
#include "config.h"

#include "sim/what_if.h"

#include "base/numeric.h"

#include <gsl/gsl_sort.h>
#include <gsl/gsl_statistics_double.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

static const double hour_s = 3600;
static const double restart_assumed_s = 600;
/* Expected during one step with its checkpoint and restart: beyond, e^-100 of the time is
 * useful. */
enum { MOST_FAILURES = 100 };

/* ----------------------------------------------------------------- failures */

static double copy_state_s(const smp_simulation *simulation)
{
    const smp_cluster *cluster = simulation->job->cluster;
    const smp_profile *profile = simulation->job->profile;
    const smp_memory_parts *parts = &simulation->report.memory.parts;
    const double bytes = (double)(parts->parameters_bytes + parts->optimizer_bytes);
    const double sharing = (double)cluster->gpus_per_host_link;
    return profile->copy_latency_s.value +
           bytes * sharing / (cluster->pcie_Bps.value * profile->copy_efficiency.value);
}

/* Goodput of many months: mean, and where 80 % of them lie. */
static void simulate_months(smp_failures_answer *a, uint64_t seed)
{
    const double month_s = 30 * 24 * hour_s;
    double *shares = smp_heap_alloc(SMP_MONTHS, sizeof *shares);
    for (uint32_t i = 0; i < SMP_MONTHS; i++) {
        shares[i] = smp_failures_simulate(&a->failures, a->interval_s, month_s, seed, i);
    }
    gsl_sort(shares, 1, SMP_MONTHS);
    a->month_mean = gsl_stats_mean(shares, 1, SMP_MONTHS);
    a->month_p10 = gsl_stats_quantile_from_sorted_data(shares, 1, SMP_MONTHS, 0.1);
    a->month_p90 = gsl_stats_quantile_from_sorted_data(shares, 1, SMP_MONTHS, 0.9);
    free(shares);
}

smp_status smp_failures_answer_find(const smp_simulation *simulation,
                                    const smp_what_if_options *o, double step_s,
                                    smp_errors *errors, smp_failures_answer *answer_p)
{
    const double copy_s = copy_state_s(simulation);
    smp_failures_answer a = {.gpu_mtbf_s = o->mtbf_h * hour_s,
                             .save_given = o->save_s >= 0, .load_given = o->load_s >= 0,
                             .restart_given = o->restart_s >= 0,
                             .steps_given = o->checkpoint_every > 0};
    a.load_s = a.load_given ? o->load_s : copy_s;
    a.failures.mtbf_s = a.gpu_mtbf_s / (double)simulation->job->world;
    a.failures.save_s = a.save_given ? o->save_s : copy_s;
    a.failures.restart_s = (a.restart_given ? o->restart_s : restart_assumed_s) + a.load_s;
    const double needed_s = a.failures.save_s + a.failures.restart_s + step_s;
    if (needed_s > MOST_FAILURES * a.failures.mtbf_s) {
        const smp_place where = {.file = "--mtbf"};
        return smp_fail(errors, SMP_INPUT, &where,
                        "%g h a GPU is a failure every %g s of %u GPUs, and a step, a "
                        "checkpoint and a restart take %g s: next to no step would be kept",
                        o->mtbf_h, a.failures.mtbf_s, simulation->job->world, needed_s);
    }
    a.best_s = smp_failures_best_s(&a.failures);
    a.young_s = smp_failures_young_s(&a.failures);
    a.daly_s = smp_failures_daly_s(&a.failures);
    a.steps = o->checkpoint_every;
    if (!a.steps_given) {
        const double steps = floor(a.best_s / step_s + 0.5);
        a.steps = steps > 1 ? (uint64_t)steps : 1;
    }
    a.interval_s = (double)a.steps * step_s;
    a.goodput = smp_failures_goodput(&a.failures, a.interval_s);
    a.failures_per_day = 24 * hour_s / a.failures.mtbf_s;
    simulate_months(&a, o->seed);
    *answer_p = a;
    return SMP_OK;
}

void smp_failures_answer_text(const smp_failures_answer *a, smp_text *text)
{
    smp_text_add(text, "\nFailures: one in %.0f h a GPU, one in %s of this job (%.3g a day)\n",
                 a->gpu_mtbf_s / hour_s, smp_show_seconds(a->failures.mtbf_s),
                 a->failures_per_day);
    smp_text_add(text, "  checkpoint stops training for %s (%s)\n",
                 smp_show_seconds(a->failures.save_s),
                 a->save_given ? "given" : "estimate: copy to the host");
    smp_text_add(text, "  restart %s (%s) + load %s (%s)\n",
                 smp_show_seconds(a->failures.restart_s - a->load_s),
                 a->restart_given ? "given" : "assumed", smp_show_seconds(a->load_s),
                 a->load_given ? "given" : "estimate: copy from the host");
    smp_text_add(text, "  best interval %s (Young %s, Daly %s)\n", smp_show_seconds(a->best_s),
                 smp_show_seconds(a->young_s), smp_show_seconds(a->daly_s));
    smp_text_add(text, "  a checkpoint every %" PRIu64 " step%s (%s, %s)\n", a->steps,
                 a->steps == 1 ? "" : "s", smp_show_seconds(a->interval_s),
                 a->steps_given ? "given" : "the best");
    smp_text_add(text,
                 "  goodput %.2f %%; of %d simulated months %.2f %% (80 %%: %.2f to %.2f)\n",
                 100 * a->goodput, SMP_MONTHS, 100 * a->month_mean, 100 * a->month_p10,
                 100 * a->month_p90);
}

void smp_failures_answer_out(const smp_failures_answer *a, smp_json_out *out)
{
    smp_out_object(out, "failures");
    smp_out_double(out, "mtbf_of_gpu_s", a->gpu_mtbf_s);
    smp_out_double(out, "mtbf_s", a->failures.mtbf_s);
    smp_out_double(out, "save_s", a->failures.save_s);
    smp_out_double(out, "load_s", a->load_s);
    smp_out_double(out, "restart_and_load_s", a->failures.restart_s);
    smp_out_double(out, "best_interval_s", a->best_s);
    smp_out_double(out, "young_interval_s", a->young_s);
    smp_out_double(out, "daly_interval_s", a->daly_s);
    smp_out_u64(out, "checkpoint_every_steps", a->steps);
    smp_out_double(out, "interval_s", a->interval_s);
    smp_out_double(out, "goodput", a->goodput);
    smp_out_object(out, "goodput_of_months");
    smp_out_u64(out, "months", SMP_MONTHS);
    smp_out_double(out, "mean", a->month_mean);
    smp_out_double(out, "p10", a->month_p10);
    smp_out_double(out, "p90", a->month_p90);
    smp_out_end_object(out);
    smp_out_end_object(out);
}

/* ------------------------------------------------------------- training runs */

smp_status smp_training_answer_find(const smp_simulation *simulation, double tokens,
                                    double step_s, double goodput, smp_errors *errors,
                                    smp_training_answer *answer_p)
{
    const smp_job *job = simulation->job;
    const smp_report *report = &simulation->report;
    const double step_tokens = (double)job->batch.seq_len * (double)job->batch.global_batch;
    const double price = job->cluster->price_per_gpu_hour.value;
    const smp_place where = {.file = "--tokens"};
    if (tokens < 1 || tokens > 1e18) {
        return smp_fail(errors, SMP_INPUT, &where, "%g: must be from 1 to 1e18", tokens);
    }
    /* The interval is that of the step, noise and failures apart. */
    const double scale = step_s / report->step_time_s;
    smp_training_answer a = {.tokens = tokens, .step_s = step_s, .goodput = goodput,
                             .currency = job->cluster->currency};
    a.training =
        smp_training_estimate(tokens, step_tokens, step_s, goodput, job->world, price);
    a.low = smp_training_estimate(tokens, step_tokens, report->interval_low_s * scale, goodput,
                                  job->world, price);
    a.high = smp_training_estimate(tokens, step_tokens, report->interval_high_s * scale,
                                   goodput, job->world, price);
    *answer_p = a;
    return SMP_OK;
}

void smp_training_answer_text(const smp_training_answer *a, smp_text *text)
{
    smp_text_add(text, "\nTraining on %s tokens: %.0f steps of %s, goodput %.2f %%\n",
                 smp_show_count(a->tokens), a->training.steps, smp_show_seconds(a->step_s),
                 100 * a->goodput);
    smp_text_add(text, "  %.4g days   (80 %% interval %.4g to %.4g)\n", a->training.days,
                 a->low.days, a->high.days);
    smp_text_add(text, "  %.0f GPU hours\n", a->training.gpu_hours);
    if (a->training.money > 0) {
        smp_text_add(text, "  %.0f %s\n", a->training.money,
                     a->currency ? a->currency : "USD");
    }
}

void smp_training_answer_out(const smp_training_answer *a, smp_json_out *out)
{
    const bool priced = a->training.money > 0;
    smp_out_object(out, "training");
    smp_out_double(out, "tokens", a->tokens);
    smp_out_double(out, "steps", a->training.steps);
    smp_out_double(out, "step_s", a->step_s);
    smp_out_double(out, "goodput", a->goodput);
    smp_out_double(out, "days", a->training.days);
    smp_out_array(out, "days_80_percent_interval");
    smp_out_double(out, NULL, a->low.days);
    smp_out_double(out, NULL, a->high.days);
    smp_out_end_array(out);
    smp_out_double(out, "gpu_hours", a->training.gpu_hours);
    smp_out_double(out, "money", priced ? a->training.money : (double)NAN);
    smp_out_string(out, "currency", priced ? a->currency : NULL);
    smp_out_end_object(out);
}
