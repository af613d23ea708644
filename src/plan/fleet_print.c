/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A comparison of clusters and numbers of GPUs for people at 80 columns, and as JSON.
 *
 * Costs of what was not searched are bounds and printed as "at least".  Nothing depends on
 * the clock unless the options ask for timing.
 */
#include "config.h"

#include "plan/fleet.h"
#include "plan/plan_text.h"

#include "base/numeric.h"
#include "mesh/settings.h"
#include "model/model.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { SECONDS_PER_DAY = 86400 };

static const smp_found *found_of(const smp_candidate *candidate)
{
    return &candidate->plan->found[0];
}

static double tokens_per_s(const smp_candidate *candidate)
{
    return found_of(candidate)->report.tokens_per_s_per_gpu * candidate->gpus;
}

static bool has_run(const smp_fleet *fleet)
{
    return fleet->options.tokens > 0;
}

/* Why a candidate is not shown, as people see it: a bound and an exact plan that miss a
 * limit are one reason. */
static smp_standing reason_of(const smp_fleet *fleet, const smp_candidate *candidate)
{
    const double within_s = fleet->options.within_s;
    if (candidate->standing != SMP_STANDING_FOUND || candidate->meets) {
        return candidate->standing;
    }
    return within_s > 0 && candidate->bill.seconds > within_s ? SMP_STANDING_LATE
                                                              : SMP_STANDING_DEAR;
}

static bool is_shown(const smp_fleet *fleet, const smp_candidate *candidate)
{
    for (uint32_t i = 0; i < smp_fleet_shown(fleet); i++) {
        if (fleet->ranked[i] == candidate) {
            return true;
        }
    }
    return false;
}

/* --------------------------------------------------------------------- people */

static const char *show_money(double money, char text[16])
{
    if (isnan(money)) {
        return "-";
    }
    if (money < 9999.995) {
        snprintf(text, 16, "%.2f", money);
    } else if (money < 9999999.5) {
        snprintf(text, 16, "%.0f", money);
    } else {
        snprintf(text, 16, "%.5g M", money / 1e6);
    }
    return text;
}

static void put_job(const smp_fleet *fleet, FILE *stream)
{
    const smp_job *job = &fleet->candidates[0].job;
    const smp_fleet_options *o = &fleet->options;
    char budget[16];
    fprintf(stream, "%s, sequences of %" PRIu64 " tokens, %" PRIu64 " per step; margin %.3g %% "
            "of memory\n", job->model->name, job->batch.seq_len, job->batch.global_batch,
            100 * o->plan.margin_frac);
    smp_put_stack(&job->settings, stream);
    if (has_run(fleet)) {
        fprintf(stream, "a run of %s tokens", smp_show_count(o->tokens));
        if (o->within_s > 0) {
            fprintf(stream, ", within %.4g days", o->within_s / SECONDS_PER_DAY);
        }
        if (o->budget > 0) {
            fprintf(stream, ", for at most %s %s", fleet->currency,
                    show_money(o->budget, budget));
        }
        fputs(o->within_s > 0 && o->budget > 0 ? ";\n    failures" : "; failures", stream);
        fputs(" and restarts not counted\n", stream);
    }
}

static void put_search(const smp_fleet *fleet, FILE *stream)
{
    fprintf(stream, "%u number%s of GPUs, %u searched; %" PRIu64 " configurations, %" PRIu64
            " simulated", fleet->n_candidate, fleet->n_candidate == 1 ? "" : "s",
            fleet->searched, fleet->info.enumerated, fleet->info.evaluated);
    if (fleet->options.plan.timing) {
        fprintf(stream, "; %s", smp_show_seconds(fleet->info.seconds));
    }
    fputs("\n\n", stream);
}

static void put_row(const smp_fleet *fleet, const smp_candidate *c, const char *number,
                    FILE *stream)
{
    const smp_report *report = &found_of(c)->report;
    char money[16];
    char days[16];
    snprintf(days, sizeof days, has_run(fleet) ? "%.2f" : "-", c->bill.seconds /
             SECONDS_PER_DAY);
    fprintf(stream, "%2s %-16.16s %5u %8s %8s %7s %8s %9s %9s\n", number,
            c->job.cluster->name, c->gpus, smp_show_seconds(report->step_time_s),
            smp_show_count(tokens_per_s(c)), days, smp_show_count(c->bill.gpu_hours),
            show_money(c->bill.money, money), smp_show_bytes(report->memory.peak_bytes));
}

static void put_head(const smp_fleet *fleet, FILE *stream)
{
    if (!has_run(fleet)) {
        fputs("GPU hours and cost per 1e9 tokens\n", stream);
    }
    fprintf(stream, " # %-16s %5s %8s %8s %7s %8s %9s %9s\n", "cluster", "GPUs", "step",
            "tokens/s", "days", "GPU h", fleet->currency ? fleet->currency : "cost", "peak");
}

static void put_table(const smp_fleet *fleet, FILE *stream)
{
    const uint32_t n = smp_fleet_shown(fleet);
    const smp_found **found = SMP_ARENA_ARRAY(fleet->arena, n, const smp_found *);
    uint32_t *numbers = SMP_ARENA_ARRAY(fleet->arena, n, uint32_t);
    put_head(fleet, stream);
    for (uint32_t i = 0; i < n; i++) {
        numbers[i] = i + 1;
        char number[12];
        snprintf(number, sizeof number, "%u", i + 1);
        put_row(fleet, fleet->ranked[i], number, stream);
        found[i] = found_of(fleet->ranked[i]);
    }
    fputc('\n', stream);
    smp_put_settings(found, numbers, n, stream);
}

static const char *percent_more(char text[24], double value, double than)
{
    snprintf(text, 24, "%+.1f %%", 100 * (value / than - 1));
    return text;
}

/* Why the first ranks before another: money is price times GPU hours, and GPU hours are what
 * a GPU makes of its time. */
static void put_against(const smp_fleet *fleet, uint32_t i, FILE *stream)
{
    const smp_candidate *a = fleet->ranked[0];
    const smp_candidate *b = fleet->ranked[i];
    const double price_a = a->job.cluster->price_per_gpu_hour.value;
    const double price_b = b->job.cluster->price_per_gpu_hour.value;
    char money[24];
    char hours[24];
    char price[24];
    char time[24];
    percent_more(hours, b->bill.gpu_hours, a->bill.gpu_hours);
    percent_more(time, b->bill.seconds, a->bill.seconds);
    smp_text text = {0};
    smp_text_add(&text, "%u: time %s, GPU hours %s", i + 1, time, hours);
    if (price_a > 0 && price_b > 0 && a->offer != b->offer) {
        smp_text_add(&text, ", cost %s (price of a GPU hour %s)",
                     percent_more(money, b->bill.money, a->bill.money),
                     percent_more(price, price_b, price_a));
    }
    smp_text_add(&text, "; MFU %.1f %% against %.1f %%, communication not hidden %.1f %% of "
                 "the step against %.1f %%", 100 * found_of(b)->report.mfu,
                 100 * found_of(a)->report.mfu, 100 * smp_exposed_share(found_of(b)),
                 100 * smp_exposed_share(found_of(a)));
    smp_put_sentence(stream, text.data);
    smp_text_free(&text);
}

static void put_recommendation(const smp_fleet *fleet, FILE *stream)
{
    static const char *const best[] = {"soonest done", "cheapest", "fewest GPUs"};
    const smp_candidate *c = fleet->ranked[0];
    const bool limits = fleet->options.within_s > 0 || fleet->options.budget > 0;
    char money[16];
    smp_text text = {0};
    smp_text_add(&text, "Recommended: %u GPU%s of %s, the %s%s", c->gpus,
                 c->gpus == 1 ? "" : "s", c->job.cluster->name,
                 best[fleet->options.plan.objective], limits ? " that meets the limits" : "");
    if (has_run(fleet)) {
        smp_text_add(&text, ": %.2f days", c->bill.seconds / SECONDS_PER_DAY);
        if (fleet->options.within_s > 0) {
            smp_text_add(&text, " of %.4g", fleet->options.within_s / SECONDS_PER_DAY);
        }
        smp_text_add(&text, ", %s GPU hours", smp_show_count(c->bill.gpu_hours));
        if (!isnan(c->bill.money)) {
            smp_text_add(&text, ", %s %s", fleet->currency, show_money(c->bill.money, money));
        }
    }
    fputc('\n', stream);
    smp_put_sentence(stream, text.data);
    smp_text_free(&text);
    for (uint32_t i = 1; i < smp_fleet_shown(fleet); i++) {
        put_against(fleet, i, stream);
    }
}

/* The candidates from `first` up to `end` of one cluster share a reason: one line. */
static void put_group(const smp_fleet *fleet, uint32_t first, uint32_t end, FILE *stream)
{
    const smp_candidate *c = &fleet->candidates[first];
    double seconds = (double)INFINITY;
    double money = (double)INFINITY;
    double hours = (double)INFINITY;
    char text[16];
    for (uint32_t i = first; i < end; i++) {
        seconds = fmin(seconds, fleet->candidates[i].bill.seconds);
        money = fmin(money, fleet->candidates[i].bill.money);
        hours = fmin(hours, fleet->candidates[i].bill.gpu_hours);
    }
    fprintf(stream, "  %-16.16s %5u", c->job.cluster->name, c->gpus);
    if (end > first + 1) {
        fprintf(stream, " to %5u (%u numbers)", fleet->candidates[end - 1].gpus, end - first);
    }
    switch (reason_of(fleet, c)) {
    case SMP_STANDING_RULES:
        fputs(": no settings follow the rules\n", stream);
        break;
    case SMP_STANDING_MEMORY:
        fputs(": nothing fits into memory\n", stream);
        break;
    case SMP_STANDING_LATE:
        fprintf(stream, ": %.4g days or more\n", seconds / SECONDS_PER_DAY);
        break;
    case SMP_STANDING_DEAR:
        fprintf(stream, ": %s %s or more\n", fleet->currency, show_money(money, text));
        break;
    case SMP_STANDING_OPEN:
    case SMP_STANDING_FOUND:
        if (fleet->options.plan.objective == SMP_OBJECTIVE_COST && isfinite(money)) {
            fprintf(stream, ": behind, %s %s or more\n", fleet->currency,
                    show_money(money, text));
        } else {
            fprintf(stream, ": behind, %s GPU hours or more\n", smp_show_count(hours));
        }
        break;
    }
}

/* What is not in the table, neighbours with one reason in one line. */
static void put_others(const smp_fleet *fleet, FILE *stream)
{
    bool any = false;
    for (uint32_t i = 0; i < fleet->n_candidate;) {
        const smp_candidate *c = &fleet->candidates[i];
        if (is_shown(fleet, c)) {
            i++;
            continue;
        }
        const bool behind = reason_of(fleet, c) == SMP_STANDING_OPEN ||
                            reason_of(fleet, c) == SMP_STANDING_FOUND;
        uint32_t end = i + 1;
        while (end < fleet->n_candidate && fleet->candidates[end].offer == c->offer &&
               !is_shown(fleet, &fleet->candidates[end])) {
            const smp_standing other = reason_of(fleet, &fleet->candidates[end]);
            const bool alike = behind ? other == SMP_STANDING_OPEN ||
                                            other == SMP_STANDING_FOUND
                                      : other == reason_of(fleet, c);
            if (!alike) {
                break;
            }
            end++;
        }
        fputs(any ? "" : "\nNot in the table:\n", stream);
        any = true;
        put_group(fleet, i, end, stream);
        i = end;
    }
}

static void put_nearest(const smp_fleet *fleet, FILE *stream)
{
    const smp_candidate *c = fleet->nearest;
    if (c->standing == SMP_STANDING_FOUND) {
        fputs("Nothing meets the limits. The nearest:\n", stream);
        put_head(fleet, stream);
        put_row(fleet, c, "", stream);
        fputc('\n', stream);
        smp_put_job_settings(&found_of(c)->job, "    ", stream);
        return;
    }
    fprintf(stream, "Nothing fits. The nearest, %u GPUs of %s, lacks %s (%" PRIu64
            " bytes):\n", c->gpus, c->job.cluster->name,
            smp_show_bytes(c->plan->nearest_excess_bytes), c->plan->nearest_excess_bytes);
    smp_put_job_settings(&c->plan->nearest.job, "    ", stream);
}

static void print_text(const smp_fleet *fleet, FILE *stream)
{
    put_job(fleet, stream);
    put_search(fleet, stream);
    if (fleet->n_ranked > 0) {
        put_table(fleet, stream);
        put_recommendation(fleet, stream);
    } else {
        put_nearest(fleet, stream);
    }
    put_others(fleet, stream);
    smp_put_front(&fleet->front, fleet->currency, true, stream);
    if (fleet->n_ranked > 0) {
        smp_put_why(fleet->ranked[0]->plan, stream);
    }
}

/* ----------------------------------------------------------------------- JSON */

static const char *standing_name(smp_standing standing)
{
    static const char *const names[] = {"behind", "rules", "memory", "late", "dear", "found"};
    return names[standing];
}

/* Costs of a candidate; `exact`: of its plan, else the least that they can be. */
static void out_bill(smp_json_out *out, const smp_fleet *fleet, const smp_candidate *c)
{
    smp_out_bool(out, "exact", c->standing == SMP_STANDING_FOUND);
    smp_out_double(out, "days",
                   has_run(fleet) ? c->bill.seconds / SECONDS_PER_DAY : (double)NAN);
    smp_out_double(out, "gpu_hours", c->bill.gpu_hours);
    smp_out_double(out, "cost", c->bill.money);
}

static void out_candidate(smp_json_out *out, const char *key, const smp_fleet *fleet,
                          const smp_candidate *c, bool with_plan)
{
    smp_out_object(out, key);
    smp_out_string(out, "cluster", c->job.cluster->name);
    smp_out_u64(out, "gpus", c->gpus);
    smp_out_u64(out, "nodes", c->job.cluster->nodes);
    smp_out_string(out, "standing", standing_name(reason_of(fleet, c)));
    if (c->standing != SMP_STANDING_RULES && c->standing != SMP_STANDING_MEMORY) {
        out_bill(out, fleet, c);
    }
    if (c->standing == SMP_STANDING_FOUND) {
        smp_out_double(out, "tokens_per_s", tokens_per_s(c));
        if (with_plan) {
            smp_out_found(out, "plan", found_of(c));
        }
    } else if (with_plan && c->plan && c->plan->has_nearest) {
        smp_out_u64(out, "shortfall_bytes", c->plan->nearest_excess_bytes);
        smp_out_found(out, "plan", &c->plan->nearest);
    }
    smp_out_end_object(out);
}

static void out_limit(smp_json_out *out, const char *key, double value)
{
    smp_out_double(out, key, value > 0 ? value : (double)NAN);
}

static void out_job(smp_json_out *out, const smp_fleet *fleet)
{
    const smp_job *job = &fleet->candidates[0].job;
    const smp_fleet_options *o = &fleet->options;
    smp_out_string(out, "model", job->model->name);
    smp_out_u64(out, "seq_len", job->batch.seq_len);
    smp_out_u64(out, "global_batch", job->batch.global_batch);
    smp_out_string(out, "objective", smp_objective_name(o->plan.objective));
    smp_out_double(out, "margin_frac", o->plan.margin_frac);
    out_limit(out, "tokens", o->tokens);
    out_limit(out, "within_days", o->within_s / SECONDS_PER_DAY);
    out_limit(out, "budget", o->budget);
    smp_out_string(out, "currency", fleet->currency);
}

static void print_json(const smp_fleet *fleet, FILE *stream)
{
    smp_json_out out = {0};
    smp_out_object(&out, NULL);
    out_job(&out, fleet);
    smp_out_array(&out, "alternatives");
    for (uint32_t i = 0; i < smp_fleet_shown(fleet); i++) {
        out_candidate(&out, NULL, fleet, fleet->ranked[i], true);
    }
    smp_out_end_array(&out);
    if (fleet->nearest) {
        out_candidate(&out, "nearest", fleet, fleet->nearest, true);
    }
    smp_out_array(&out, "others");
    for (uint32_t i = 0; i < fleet->n_candidate; i++) {
        if (!is_shown(fleet, &fleet->candidates[i])) {
            out_candidate(&out, NULL, fleet, &fleet->candidates[i], false);
        }
    }
    smp_out_end_array(&out);
    if (fleet->n_ranked > 0) {
        smp_out_why(&out, fleet->ranked[0]->plan);
    }
    if (fleet->options.plan.front) {
        smp_out_front(&out, &fleet->front, true);
    }
    smp_out_object(&out, "search");
    smp_out_u64(&out, "gpu_counts", fleet->n_candidate);
    smp_out_u64(&out, "searched", fleet->searched);
    smp_out_search(&out, &fleet->info, fleet->options.plan.timing);
    smp_out_end_object(&out);
    smp_out_end_object(&out);
    fwrite(out.text.data, 1, out.text.length, stream);
    smp_text_free(&out.text);
}

smp_status smp_fleet_print(const smp_fleet *fleet, bool json, FILE *stream, smp_errors *errors)
{
    if (json) {
        print_json(fleet, stream);
    } else {
        print_text(fleet, stream);
    }
    return smp_stream_check(stream, "standard output", errors);
}
