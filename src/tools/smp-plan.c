/* SPDX-License-Identifier: Apache-2.0 */
/*
 * smp-plan: which settings to train with.  Arguments and presentation only; the search is
 * src/plan.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "smp.h"
#include "tools/offers.h"
#include "tools/paths.h"

#include <string.h>

typedef struct options {
    cli_job job;
    cli_places places;
    const char *objective, *output, *export, *pareto;
    const char *tokens, *within, *budget, *deadline;
    uint32_t top, threads;
    double margin_percent, deadline_s;
    bool fine, json, no_prune, timing;
} options;

static const cli_option table[] = {
    CLI_MODEL_OPTION(options, job),
    CLI_PLACE_OPTIONS(options, places),
    CLI_REST_OPTIONS(options, job),
    CLI_SET_OPTION("pin", options, job, "fix a setting that would be searched, or another one"),
    CLI_HEADING("Search"),
    CLI_TEXT("objective", 0, "WHAT", options, objective,
             "time (default), cost or gpus: the last two also try fewer GPUs; in "
             "comparisons cost is the default"),
    CLI_U32_IN("top", 'k', "N", options, top, 1, 1000, "plans to show; default: 5"),
    CLI_DOUBLE_BELOW("margin", 0, "PERCENT", options, margin_percent, 100,
                     "of a GPU's memory that a plan must leave free; default: 3"),
    CLI_TEXT("deadline", 0, "TIME", options, deadline,
             "stop then (1s, 500ms, 2min) with the best so far, and say how far from the best "
             "it can be"),
    CLI_FLAG("fine", 0, options, fine,
             "a larger space: every number of layers checkpointed and offloaded, "
             "more loss chunks"),
    CLI_U32("threads", 0, "N", options, threads,
            "that simulate; default: one for each processor.  Changes no result"),
    CLI_FLAG("no-prune", 0, options, no_prune, "simulate every configuration"),
    CLI_HEADING("A whole run"),
    CLI_TEXT("tokens", 0, "N", options, tokens,
             "train on N tokens (1T, 300B): which number of GPUs? without --nodes or --gpus "
             "every one over which the batch divides"),
    CLI_TEXT("within", 0, "TIME", options, within, "be done in so long: 30d, 36h, 2w"),
    CLI_TEXT("budget", 0, "MONEY", options, budget,
             "cost at most so much (2.5M, 800k), in the currency of the clusters' prices"),
    CLI_HEADING("Output"),
    CLI_TEXT("output", 'o', "FILE", options, output, "write the best plan for smp-sim"),
    CLI_TEXT("export", 0, "smp-v2 FILE", options, export,
             "write the best plan's settings as an SMP v2 configuration"),
    CLI_TEXT("pareto", 0, "FILE", options, pareto,
             "plot time against memory: FILE ends in .svg or .png"),
    CLI_FLAG("json", 0, options, json, "print JSON"),
    CLI_FLAG("timing", 0, options, timing, "say how long the search took"),
    CLI_COMMON_OPTIONS,
};

static const char *const usage[] = {
    "--model M --cluster C [--nodes N] [option]...",
    "--model M --cluster C [--cluster C]... --tokens N [--within T]",
    NULL,
};

static const char *const examples[] = {
    "smp-plan --model Llama-3.1-70B --cluster p5.48xlarge --nodes 8 \\",
    "         --seq-len 8192 --global-batch 1024 -o plan.json",
    "smp-plan -m gpt2 -c dgx-h100 -g 1 --pin checkpointing=none --json",
    "smp-plan -m Llama-3.1-8B -c p5.48xlarge -c p4d.24xlarge -b 1024 \\",
    "         --tokens 1T --within 30d",
    "smp-plan -m Llama-3.1-8B -c dgx-h100 -c dgx-a100 -n 4 -n 8 -b 512",
    NULL,
};

static const cli_program program = {
    .name = "smp-plan",
    .usage = usage,
    .about = "Searches for the fastest settings to train a model on a cluster, says what they "
             "cost and why the alternatives lose.",
    .options = table,
    .n_option = sizeof table / sizeof table[0],
    .notes = "Exit status: 0 done, 1 the system failed, 2 an input is wrong, 3 nothing fits.",
    .examples = examples,
    .max_operands = 1,
};

static smp_status read_objective(const char *text, smp_errors *errors,
                                 smp_objective *objective_p)
{
    static const char *const names[] = {"time", "cost", "gpus"};
    static const smp_objective values[] = {SMP_OBJECTIVE_TIME, SMP_OBJECTIVE_COST,
                                           SMP_OBJECTIVE_GPUS};
    if (!text) {
        return SMP_OK;
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(text, names[i]) == 0) {
            *objective_p = values[i];
            return SMP_OK;
        }
    }
    const smp_place place = {.file = "--objective"};
    return smp_fail(errors, SMP_INPUT, &place, "%s: must be time, cost or gpus", text);
}

static smp_status check(const options *o, const cli_list *operands, smp_errors *errors)
{
    if (o->export && (strcmp(o->export, "smp-v2") != 0 || operands->count != 1)) {
        const smp_place place = {.file = "--export"};
        return smp_fail(errors, SMP_INPUT, &place,
                        "%s: must be smp-v2, followed by the file to write", o->export);
    }
    if (!o->export && operands->count > 0) {
        return smp_fail(errors, SMP_INPUT, NULL, "%s: no such argument; options start with --",
                        operands->values[0]);
    }
    if (o->deadline_s > 0 && (o->pareto || o->no_prune)) {
        const smp_place place = {.file = "--deadline"};
        return smp_fail(errors, SMP_INPUT, &place, "cannot be used with %s, which looks at all",
                        o->pareto ? "--pareto" : "--no-prune");
    }
    if (o->pareto && smp_plot_check(o->pareto, errors) != SMP_OK) {
        return SMP_INPUT;
    }
    return SMP_OK;
}

static smp_status write_files(const options *o, const char *export_path, const smp_plan *plan,
                              smp_errors *errors)
{
    const smp_job *best = smp_plan_job(plan, 0);
    smp_status st = SMP_OK;
    if (o->output) {
        st = smp_plan_write(best, smp_plan_report(plan, 0), o->output, errors);
    }
    if (st == SMP_OK && export_path) {
        st = smp_settings_export(&best->settings, export_path, errors);
    }
    if (st == SMP_OK && o->pareto) {
        st = smp_plan_pareto(plan, o->pareto, errors);
    }
    return st;
}

static void set_options(const options *o, smp_progress *progress, smp_plan_options *how)
{
    how->top = o->top;
    how->threads = o->threads;
    how->margin_frac = o->margin_percent / 100;
    how->prune = !o->no_prune;
    how->fine = o->fine;
    how->timing = o->timing;
    how->front = o->pareto != NULL;
    how->progress = smp_progress_update;
    how->progress_context = progress;
}

/* A file that is written to standard output has it for itself. */
static FILE *report_stream(const options *o, const char *export_path)
{
    const bool taken = (o->output && strcmp(o->output, "-") == 0) ||
                       (export_path && strcmp(export_path, "-") == 0);
    return taken ? stderr : stdout;
}

static smp_status search(const options *o, const smp_job *job, const char *export_path,
                         smp_errors *errors)
{
    smp_plan_options how;
    smp_plan_options_init(&how);
    smp_status st = read_objective(o->objective, errors, &how.objective);
    if (st != SMP_OK) {
        return st;
    }
    smp_progress *progress = smp_progress_create(stderr, "searching");
    set_options(o, progress, &how);
    how.deadline_s = o->deadline_s;
    smp_plan *plan = NULL;
    st = smp_plan_search(job, &how, errors, &plan);
    smp_progress_destroy(progress);
    if (st != SMP_OK && st != SMP_INFEASIBLE) {
        return st;
    }
    smp_status printed = smp_plan_print(plan, o->json, report_stream(o, export_path), errors);
    if (printed == SMP_OK && st == SMP_OK) {
        printed = write_files(o, export_path, plan, errors);
    }
    smp_plan_destroy(plan);
    return st != SMP_OK ? st : printed;
}

static smp_status read_run(const options *o, smp_errors *errors, smp_fleet_options *how)
{
    smp_status st = SMP_OK;
    if (!o->tokens && (o->within || o->budget)) {
        const smp_place place = {.file = o->within ? "--within" : "--budget"};
        return smp_fail(errors, SMP_INPUT, &place, "needs --tokens: how long is the run?");
    }
    if (o->tokens) {
        st = cli_amount("--tokens", o->tokens, errors, &how->tokens);
    }
    if (st == SMP_OK && o->within) {
        st = cli_duration("--within", o->within, errors, &how->within_s);
    }
    if (st == SMP_OK && o->budget) {
        st = cli_amount("--budget", o->budget, errors, &how->budget);
    }
    return st;
}

/* Several clusters or numbers of GPUs. */
static smp_status compare(const options *o, const cli_offers *offers,
                          const smp_fleet_options *run, const char *export_path,
                          smp_errors *errors)
{
    smp_fleet_options how = *run;
    smp_plan_options_init(&how.plan);
    how.plan.objective = SMP_OBJECTIVE_COST;
    smp_status st = read_objective(o->objective, errors, &how.plan.objective);
    if (st != SMP_OK) {
        return st;
    }
    smp_progress *progress = smp_progress_create(stderr, "comparing");
    set_options(o, progress, &how.plan);
    smp_fleet *fleet = NULL;
    st = smp_fleet_search(offers->offers, offers->n, &how, errors, &fleet);
    smp_progress_destroy(progress);
    if (st != SMP_OK && st != SMP_INFEASIBLE) {
        return st;
    }
    smp_status printed = smp_fleet_print(fleet, o->json, report_stream(o, export_path),
                                         errors);
    if (printed == SMP_OK && st == SMP_OK) {
        printed = write_files(o, export_path, smp_fleet_best(fleet), errors);
    }
    smp_fleet_destroy(fleet);
    return st != SMP_OK ? st : printed;
}

static smp_status check_paths(const options *o, const char *export_path, smp_errors *errors)
{
    cli_paths paths = {0};
    cli_paths_read_job(&paths, &o->job, NULL);
    for (size_t i = 0; i < o->places.clusters.count; i++) {
        cli_paths_read_config(&paths, "--cluster", o->places.clusters.values[i]);
    }
    cli_paths_write(&paths, "-o", o->output, "");
    cli_paths_write(&paths, "--export", export_path, "");
    cli_paths_write(&paths, "--pareto", o->pareto, "");
    cli_paths_write(&paths, "--pareto", o->pareto, ".dat");
    return cli_paths_check(&paths, errors);
}

static smp_status run(const options *o, const cli_list *operands, smp_errors *errors)
{
    smp_fleet_options fleet = {0};
    smp_status st = check(o, operands, errors);
    if (st == SMP_OK) {
        st = read_run(o, errors, &fleet);
    }
    if (st != SMP_OK) {
        return st;
    }
    cli_offers offers = {0};
    const bool whole = fleet.tokens > 0;
    const char *export_path = o->export ? operands->values[0] : NULL;
    if (check_paths(o, export_path, errors) != SMP_OK) {
        return SMP_INPUT;
    }
    st = cli_offers_read(&o->job, &o->places, whole, errors, &offers);
    if (st == SMP_OK && o->deadline_s > 0 && (whole || offers.compare)) {
        const smp_place place = {.file = "--deadline"};
        st = smp_fail(errors, SMP_INPUT, &place,
                      "is for one cluster: a comparison names the cheapest or soonest of all");
    }
    if (st == SMP_OK) {
        st = whole || offers.compare ? compare(o, &offers, &fleet, export_path, errors)
                                     : search(o, offers.offers[0].job, export_path, errors);
    }
    cli_offers_free(&offers);
    return st;
}

int main(int argc, char **argv)
{
    cli_begin();
    smp_errors *errors = smp_errors_create();
    options o = {.top = 5, .margin_percent = 3, .job.set_name = "--pin"};
    cli_list operands = {0};
    bool done = false;
    smp_status st = cli_parse(&program, argc, argv, &o, &operands, errors, &done);
    if (st == SMP_OK && !done && o.deadline) {
        st = cli_seconds("--deadline", o.deadline, errors, &o.deadline_s);
    }
    if (st == SMP_OK && !done) {
        st = run(&o, &operands, errors);
    }
    (void)st; /* the collector has it */
    cli_list_free(&o.job.set);
    cli_list_free(&o.places.clusters);
    cli_list_free(&o.places.nodes);
    cli_list_free(&o.places.gpus);
    cli_list_free(&operands);
    return cli_end("smp-plan", errors);
}
