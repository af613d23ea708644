/* SPDX-License-Identifier: Apache-2.0 */
/*
 * smp-sim: one configuration, simulated and shown.  Arguments and presentation only.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "tools/paths.h"
#include "tools/quantity.h"

typedef struct options {
    cli_job job;
    cli_list sweep;
    bool json, describe, ranks, program, explain, verify;
    const char *allocation;
    const char *trace, *memory_plot, *timeline_plot;
    const char *tokens;
    smp_what_if_options what_if;
    cli_list slow_ranks, slow_links, lost_ranks;
    smp_lengths_options lengths;
    cli_list pads;
} options;

static const cli_option table[] = {
    CLI_JOB_OPTIONS(options, job),
    CLI_SET_OPTION("set", options, job, "one setting (see smp(5)); may be repeated"),
    CLI_HEADING("What to show"),
    CLI_FLAG("json", 'j', options, json, "the report as JSON"),
    CLI_FLAG("explain", 'e', options, explain,
             "also what the largest costs rest on, with citations"),
    CLI_LIST("sweep", 0, "K=A,B,C", options, sweep,
             "a table over values of a setting, seq_len or global_batch; several: the product"),
    CLI_FLAG("describe", 'd', options, describe,
             "the model: counts, shapes, how tensor parallelism splits them"),
    CLI_FLAG("ranks", 'r', options, ranks, "coordinates and groups of every rank"),
    CLI_FLAG("program", 0, options, program, "the step program, task by task"),
    CLI_FLAG("verify", 0, options, verify,
             "prove that no two tasks conflict and no rank can deadlock"),
    CLI_TEXT("allocation", 0, "SIZE", options, allocation,
             "which tensor an allocation of this size is: 2GiB, 1.5e9, 34359738368"),
    CLI_HEADING("What if: noise, failures, training runs, another allocator"),
    CLI_FLAG("ranks-apart", 0, options, what_if.ranks_apart,
             "simulate every rank by itself, not one of each class"),
    CLI_TEXT("jitter", 0, "CV", options, what_if.jitter,
             "random times, standard deviation over mean: CV, or CV,CV for kernels and "
             "collectives, or \"profile\"; ranks apart"),
    CLI_DOUBLE("rank-spread", 0, "CV", options, what_if.rank_spread,
               "ranks differ in speed for good, by this much; ranks apart"),
    CLI_LIST("slow-rank", 0, "R:F", options, slow_ranks,
             "kernels of rank R take F times as long; may be repeated"),
    CLI_LIST("slow-link", 0, "R:F", options, slow_links,
             "collectives with rank R take F times as long; may be repeated"),
    CLI_LIST("lost-rank", 0, "R", options, lost_ranks,
             "rank R is lost: go on without its replica; may be repeated"),
    CLI_U64("seed", 0, "N", options, what_if.seed, "of the random numbers; default 1"),
    CLI_U32("runs", 0, "N", options, what_if.runs, "seeds N, N+1, ... to run; default 8"),
    CLI_DOUBLE("mtbf", 0, "H", options, what_if.mtbf_h,
               "goodput with a failure in H hours of a GPU"),
    CLI_DOUBLE("save-time", 0, "S", options, what_if.save_s,
               "training stops S seconds for a checkpoint; default: the copy to the host"),
    CLI_DOUBLE("load-time", 0, "S", options, what_if.load_s,
               "loading a checkpoint; default: the copy from the host"),
    CLI_DOUBLE("restart-time", 0, "S", options, what_if.restart_s,
               "from a failure to loading; default 600"),
    CLI_U64("checkpoint-every", 0, "N", options, what_if.checkpoint_every,
            "steps between checkpoints; default: the best"),
    CLI_TEXT("tokens", 0, "N", options, tokens,
             "days, GPU hours and money to train on N tokens: 15.6T, 300B, 1e12"),
    CLI_TEXT("allocator", 0, "caching", options, what_if.allocator,
             "memory as PyTorch's caching allocator would hold it"),
    CLI_HEADING("Sequences of varying length"),
    CLI_TEXT("lengths", 0, "FILE|DIST", options, lengths.lengths,
             "an epoch over sequences of these lengths: a file of whole numbers, "
             "lognormal:MEAN,SD or uniform:A,B"),
    CLI_LIST("pad", 0, "POLICY", options, pads,
             "max_length, longest or bucket:N; may be repeated; default: each of them"),
    CLI_U64("sequences", 0, "N", options, lengths.sequences,
            "of the epoch; default: all of the file, or 128 steps"),
    CLI_DOUBLE("compile-time", 0, "S", options, lengths.compile_s,
               "for one program; default: the host issues every task once"),
    CLI_HEADING("Files"),
    CLI_TEXT("trace", 't', "FILE", options, trace,
             "Chrome trace JSON: open it in ui.perfetto.dev; - is standard output"),
    CLI_TEXT("memory-plot", 0, "FILE", options, memory_plot,
             "memory over time as .svg or .png; the data stay in FILE.dat"),
    CLI_TEXT("timeline-plot", 0, "FILE", options, timeline_plot,
             "streams over time as .svg or .png; the data stay in FILE.dat"),
    CLI_HEADING("Other"),
    CLI_COMMON_OPTIONS
};

static const char *const usage[] = {
    "PLAN.json [OPTION]...",
    "--model M --cluster C [OPTION]...",
    NULL
};

static const char *const examples[] = {
    "smp-sim --model Llama-3.1-8B --cluster dgx-h100 --nodes 1 --seq-len 8192",
    "smp-sim plan.json --set checkpointing=none   # recompute nothing",
    "smp-sim plan.json --sweep micro_batch=1,2,4 --sweep loss_chunks=1,8",
    "smp-sim plan.json --trace trace.json --memory-plot memory.svg",
    "smp-sim plan.json --jitter 0.05 --rank-spread 0.01 --slow-rank 17:1.3",
    "smp-sim plan.json --mtbf 50000 --tokens 15.6T # failures, days and money",
    "smp-sim plan.json --lengths lognormal:900,700 --pad longest --pad bucket:256",
    "smp-sim plan.json --explain                  # which figures it rests on",
    "smp-sim plan.json --allocation 31.31GiB      # which tensor is that?",
    "smp-sim --model gpt2 --describe --json",
    NULL
};

static const cli_program program = {
    .name = "smp-sim",
    .usage = usage,
    .about = "Simulates one training step of a model on a cluster: time and what it consists\n"
             "of, memory to the byte, and whether it fits.  Absent settings take their\n"
             "defaults; smp-plan searches for the best ones.",
    .options = table,
    .n_option = sizeof table / sizeof table[0],
    .notes = "Exit status: 0 simulated (also when it does not fit: \"fits\" says so), 1 the\n"
             "system failed, 2 an input or the usage is wrong.",
    .examples = examples,
    .max_operands = 1
};

/* ------------------------------------------------------------------ commands */

/* --describe needs no cluster. */
static smp_status describe(const options *o, smp_errors *errors)
{
    smp_model *model = NULL;
    smp_settings settings;
    smp_settings_init(&settings);
    if (!o->job.model) {
        return smp_fail(errors, SMP_INPUT, NULL, "--describe needs --model");
    }
    for (size_t i = 0; i < o->job.set.count; i++) {
        smp_status one = smp_settings_assign(&settings, o->job.set.values[i], "--set", errors);
        if (one != SMP_OK) {
            return one;
        }
    }
    smp_status status = smp_model_read(o->job.model, errors, &model);
    if (status == SMP_OK) {
        status = smp_model_describe(model, settings.tensor_parallel_degree, o->json, stdout,
                                    errors);
    }
    smp_model_destroy(model);
    return status;
}

static smp_status show_ranks(const options *o, const smp_job *job, smp_errors *errors)
{
    smp_mesh *mesh = NULL;
    smp_status status = smp_mesh_create(job, errors, &mesh);
    if (status == SMP_OK) {
        status = smp_mesh_print(mesh, o->json, stdout, errors);
    }
    smp_mesh_destroy(mesh);
    return status;
}

/* All files that were asked for, even when one of them fails. */
static smp_status write_files(const options *o, const smp_simulation *simulation,
                              smp_errors *errors)
{
    smp_status first = SMP_OK;
    if (o->trace) {
        smp_status status = smp_simulation_trace(simulation, o->trace, errors);
        first = first == SMP_OK ? status : first;
    }
    if (o->memory_plot) {
        smp_status status = smp_simulation_plot_memory(simulation, o->memory_plot, errors);
        first = first == SMP_OK ? status : first;
    }
    if (o->timeline_plot) {
        smp_status status = smp_simulation_plot_timeline(simulation, o->timeline_plot, errors);
        first = first == SMP_OK ? status : first;
    }
    return first;
}

static smp_status report(const options *o, const smp_job *job, const smp_step *step,
                         smp_errors *errors)
{
    smp_simulation *simulation = NULL;
    smp_status status = smp_simulate(job, step, errors, &simulation);
    if (status != SMP_OK) {
        return status;
    }
    /* A file that cannot be named so is told before anything is printed; one that cannot be
     * written (a full disk, no gnuplot) does not cost the report. */
    bool trace_only = o->trace && o->trace[0] == '-' && o->trace[1] == '\0';
    smp_what_ifs *what_ifs = NULL;
    status = smp_what_ifs_find(simulation, &o->what_if, errors, &what_ifs);
    if (status != SMP_OK) {
        smp_simulation_destroy(simulation);
        return status;
    }
    smp_status files = write_files(o, simulation, errors);
    if (files != SMP_INPUT && !trace_only) {
        if (!o->explain || !o->json) {
            status = smp_simulation_print_with(simulation, what_ifs, o->json, stdout, errors);
        }
        if (status == SMP_OK && o->explain) {
            if (!o->json) {
                putchar('\n');
            }
            status = smp_simulation_explain(simulation, what_ifs, o->json, stdout, errors);
        }
    }
    status = status == SMP_OK ? files : status;
    smp_what_ifs_destroy(what_ifs);
    smp_simulation_destroy(simulation);
    return status;
}

static smp_status lower_and_show(const options *o, const smp_job *job, smp_errors *errors)
{
    smp_step *step = NULL;
    smp_status status = smp_step_lower(job, errors, &step);
    if (status == SMP_OK && o->verify) {
        status = smp_step_verify(step, errors);
        if (status == SMP_OK && !o->json && !o->program) {
            puts("Verified: conflicting accesses are ordered, communicators agree, no "
                 "deadlock.\n");
        }
    }
    if (status == SMP_OK && o->allocation) {
        status = smp_allocation_print(job, step, o->allocation, o->json, stdout, errors);
    } else if (status == SMP_OK) {
        status = o->program ? smp_step_print(step, stdout, errors)
                            : report(o, job, step, errors);
    }
    smp_step_destroy(step);
    return status;
}

static bool asks_what_if(const options *o)
{
    const smp_what_if_options *w = &o->what_if;
    return w->ranks_apart || w->jitter || w->rank_spread > 0 || w->n_slow_rank > 0 ||
           w->n_slow_link > 0 || w->n_lost_rank > 0 || w->mtbf_h >= 0 || w->tokens >= 0 ||
           w->allocator;
}

/* Options that would be ignored without another, or beside another. */
static smp_status check_options(const options *o, smp_errors *errors)
{
    const smp_what_if_options *w = &o->what_if;
    const bool lengths = o->lengths.lengths != NULL;
    const bool no_report = lengths || o->sweep.count > 0;
    const struct { bool wrong; const char *message; } rules[] = {
        {lengths && o->sweep.count > 0, "--lengths and --sweep: give one of them"},
        {no_report && asks_what_if(o),
         "--lengths and --sweep print a table: what-ifs of a report cannot be given with them"},
        {!lengths && (o->pads.count > 0 || o->lengths.sequences > 0 ||
                      o->lengths.compile_s >= 0),
         "--pad, --sequences and --compile-time need --lengths"},
        {w->mtbf_h < 0 && (w->save_s >= 0 || w->load_s >= 0 || w->restart_s >= 0 ||
                           w->checkpoint_every > 0),
         "--save-time, --load-time, --restart-time and --checkpoint-every need --mtbf"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        if (rules[i].wrong) {
            return smp_fail(errors, SMP_INPUT, NULL, "%s", rules[i].message);
        }
    }
    return SMP_OK;
}

/* Plots leave their data beside them. */
static smp_status check_paths(const options *o, const char *plan_path, smp_errors *errors)
{
    cli_paths paths = {0};
    cli_paths_read_job(&paths, &o->job, plan_path);
    cli_paths_read(&paths, "--lengths", o->lengths.lengths);
    cli_paths_write(&paths, "--trace", o->trace, "");
    cli_paths_write(&paths, "--memory-plot", o->memory_plot, "");
    cli_paths_write(&paths, "--memory-plot", o->memory_plot, ".dat");
    cli_paths_write(&paths, "--timeline-plot", o->timeline_plot, "");
    cli_paths_write(&paths, "--timeline-plot", o->timeline_plot, ".dat");
    return cli_paths_check(&paths, errors);
}

static smp_status simulate(const options *o, const char *plan_path, smp_errors *errors)
{
    cli_inputs inputs;
    smp_status status = check_options(o, errors);
    if (status == SMP_OK) {
        status = check_paths(o, plan_path, errors);
    }
    if (status != SMP_OK) {
        return status;
    }
    status = cli_job_read(&o->job, plan_path, errors, &inputs);
    if (status != SMP_OK) {
        return status;
    }
    if (o->sweep.count > 0) {
        status = smp_sweep_print(&inputs.job, o->sweep.values, o->sweep.count, o->json, stdout,
                                 errors);
        cli_inputs_free(&inputs);
        return status;
    }
    if (o->lengths.lengths) {
        status = smp_lengths_print(&inputs.job, &o->lengths, o->json, stdout, errors);
        cli_inputs_free(&inputs);
        return status;
    }
    smp_job_default_batch(&inputs.job);
    status = smp_job_resolve(&inputs.job, errors);
    if (status == SMP_OK) {
        status = o->ranks ? show_ranks(o, &inputs.job, errors)
                          : lower_and_show(o, &inputs.job, errors);
    }
    cli_inputs_free(&inputs);
    return status;
}

int main(int argc, char **argv)
{
    cli_begin();
    smp_errors *errors = smp_errors_create();
    options o = {0};
    cli_list operands = {0};
    bool done = false;
    smp_what_if_options_init(&o.what_if);
    smp_lengths_options_init(&o.lengths);
    smp_status status = cli_parse(&program, argc, argv, &o, &operands, errors, &done);
    o.what_if.slow_ranks = o.slow_ranks.values;
    o.what_if.n_slow_rank = o.slow_ranks.count;
    o.what_if.slow_links = o.slow_links.values;
    o.what_if.n_slow_link = o.slow_links.count;
    o.what_if.lost_ranks = o.lost_ranks.values;
    o.what_if.n_lost_rank = o.lost_ranks.count;
    o.lengths.seed = o.what_if.seed;
    o.lengths.pads = o.pads.values;
    o.lengths.n_pad = o.pads.count;
    if (status == SMP_OK && !done && o.tokens) {
        status = cli_amount("--tokens", o.tokens, errors, &o.what_if.tokens);
    }
    if (status == SMP_OK && !done) {
        const char *plan_path = operands.count > 0 ? operands.values[0] : NULL;
        status = o.describe ? describe(&o, errors) : simulate(&o, plan_path, errors);
    }
    cli_list_free(&o.job.set);
    cli_list_free(&o.sweep);
    cli_list_free(&o.slow_ranks);
    cli_list_free(&o.slow_links);
    cli_list_free(&o.lost_ranks);
    cli_list_free(&o.pads);
    cli_list_free(&operands);
    int exit_status = cli_end(program.name, errors);
    return exit_status != 0 ? exit_status : (int)status;
}
