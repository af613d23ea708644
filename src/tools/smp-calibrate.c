/* SPDX-License-Identifier: Apache-2.0 */
/*
 * smp-calibrate: a profile from measured rows.  Arguments and presentation only; fitting is
 * src/cost.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "smp.h"
#include "tools/paths.h"

#include <string.h>

typedef struct options {
    cli_list from;
    const char *profile, *like, *gpu, *output, *plot;
} options;

static const cli_option table[] = {
    CLI_HEADING("Input"),
    CLI_LIST("from", 'f', "CSV", options, from, "measured rows; may be given several times"),
    CLI_TEXT("profile", 'p', "P", options, profile,
             "a profile file or name to start from; default: the name of the output"),
    CLI_TEXT("gpu", 'g', "TEXT", options, gpu,
             "rows whose column gpu says TEXT; default: usual names of the profile's GPU"),
    CLI_TEXT("like", 0, "P", options, like,
             "take over the fits of profile P, a GPU with the same chip, instead of rows"),
    CLI_HEADING("Output"),
    CLI_TEXT("output", 'o', "PROFILE", options, output,
             "write the profile with its fits; without it only the report is printed"),
    CLI_TEXT("plot", 0, "DIR", options, plot, "plot the residuals of each fit into DIR"),
    CLI_COMMON_OPTIONS,
};

static const char *const usage[] = {
    "--from CSV [--from CSV]... -o PROFILE [option]...",
    NULL,
};

static const char *const examples[] = {
    "smp-calibrate --from gemm.csv --from attention.csv --profile h100-sxm \\",
    "              -o my-h100.json --plot residuals",
    NULL,
};

static const cli_program program = {
    .name = "smp-calibrate",
    .usage = usage,
    .about = "Fits measured kernels and collectives, stores the fits in a profile, and prints "
             "how well they predict rows that were held back.",
    .options = table,
    .n_option = sizeof table / sizeof table[0],
    .notes = "Exit status: 0 done, 1 the system failed, 2 an input is wrong.",
    .examples = examples,
    .max_operands = 0,
};

/* "dir/h100-sxm.json" -> "h100-sxm" into `name`; false when it is too long. */
static bool name_of(const char *path, char *name, size_t size)
{
    const char *slash = strrchr(path, '/');
    const char *base = slash ? slash + 1 : path;
    size_t n = strlen(base);
    if (n > 5 && strcmp(base + n - 5, ".json") == 0) {
        n -= 5;
    }
    if (n == 0 || n >= size) {
        return false;
    }
    memcpy(name, base, n);
    name[n] = '\0';
    return true;
}

static smp_status run(const options *o, smp_errors *errors)
{
    char name[256];
    const char *profile = o->profile;
    cli_paths paths = {0};
    if ((o->from.count == 0) != (o->like != NULL)) {
        return smp_fail(errors, SMP_INPUT, NULL,
                        "either --from, a CSV file of measured rows, or --like, a profile, "
                        "must be given");
    }
    for (size_t i = 0; i < o->from.count; i++) {
        cli_paths_read(&paths, "--from", o->from.values[i]);
    }
    cli_paths_write(&paths, "-o", o->output, "");
    if (cli_paths_check(&paths, errors) != SMP_OK) {
        return SMP_INPUT;
    }
    if (!profile && o->output && name_of(o->output, name, sizeof name)) {
        profile = name;
    }
    if (!profile) {
        return smp_fail(errors, SMP_INPUT, NULL,
                        "--profile is missing: the profile whose peaks the fits start from");
    }
    const smp_calibrate_options how = {.files = o->from.values, .n_file = o->from.count,
                                       .profile = profile, .like = o->like, .gpu = o->gpu,
                                       .output = o->output, .plots = o->plot};
    return smp_calibrate(&how, stdout, errors);
}

int main(int argc, char **argv)
{
    cli_begin();
    smp_errors *errors = smp_errors_create();
    options o = {0};
    cli_list operands = {0};
    bool done = false;
    smp_status st = cli_parse(&program, argc, argv, &o, &operands, errors, &done);
    if (st == SMP_OK && !done) {
        st = run(&o, errors);
    }
    (void)st; /* the collector has it */
    cli_list_free(&o.from);
    cli_list_free(&operands);
    return cli_end("smp-calibrate", errors);
}
