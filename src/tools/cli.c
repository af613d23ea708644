/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command lines: parsing, help, and the options that name a job.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "tools/cli.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef PACKAGE_VERSION
#define PACKAGE_VERSION "0"
#endif

enum { HELP_WIDTH = 80, HELP_INDENT = 26, LONGEST_WORD = 64 };

/* ---------------------------------------------------------------- spelling */

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Edit distance [Levenshtein 1966]; words of LONGEST_WORD bytes and more are far from all. */
static size_t edit_distance(const char *a, const char *b)
{
    size_t row[LONGEST_WORD + 1];
    size_t n = strlen(a);
    size_t m = strlen(b);
    if (n > LONGEST_WORD || m > LONGEST_WORD) {
        return LONGEST_WORD;
    }
    for (size_t j = 0; j <= m; j++) {
        row[j] = j;
    }
    for (size_t i = 1; i <= n; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t changed = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = least(changed, least(row[j], row[j - 1]) + 1);
        }
    }
    return row[m];
}

static const char *nearest_option(const cli_program *program, const char *name)
{
    const char *best = NULL;
    size_t best_distance = strlen(name) / 3 + 2;
    for (size_t i = 0; i < program->n_option; i++) {
        const char *known = program->options[i].name;
        if (known) {
            size_t distance = edit_distance(name, known);
            if (distance < best_distance) {
                best = known;
                best_distance = distance;
            }
        }
    }
    return best;
}

/* ------------------------------------------------------------------ values */

static void list_add(cli_list *list, const char *value)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 8;
        const char **grown = realloc(list->values, capacity * sizeof *grown);
        if (!grown) {
            fprintf(stderr, "out of memory\n");
            exit(SMP_SYSTEM);
        }
        list->values = grown;
        list->capacity = capacity;
    }
    list->values[list->count++] = value;
}

void cli_list_free(cli_list *list)
{
    free(list->values);
    *list = (cli_list){0};
}

smp_status cli_number(const char *option, const char *text, uint64_t low, uint64_t high,
                      smp_errors *errors, uint64_t *value_p)
{
    smp_place where = {.file = option};
    char *end = NULL;
    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    /* strtoull takes signs and blanks; a count has neither. */
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || value < low ||
        value > high) {
        return smp_fail(errors, SMP_INPUT, &where,
                        "'%s': must be a whole number from %" PRIu64 " to %" PRIu64, text, low,
                        high);
    }
    *value_p = value;
    return SMP_OK;
}

/* 1e6, not 1e+06. */
static const char *show_bound(double bound, char text[32])
{
    snprintf(text, 32, "%g", bound);
    char *plus = strstr(text, "e+");
    if (plus) {
        const char *digits = plus + 2 + strspn(plus + 2, "0");
        memmove(plus + 1, digits, strlen(digits) + 1);
    }
    return text;
}

smp_status cli_real(const char *option, const char *text, cli_range range, smp_errors *errors,
                    double *value_p)
{
    smp_place where = {.file = option};
    char low[32];
    char high[32];
    char *end = NULL;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= range.low && value <= range.high) ||
        (range.below && value >= range.high)) {
        return smp_fail(errors, SMP_INPUT, &where, "'%s': must be a number from %s to %s%s",
                        text, show_bound(range.low, low), range.below ? "less than " : "",
                        show_bound(range.high, high));
    }
    *value_p = value;
    return SMP_OK;
}

static smp_status store(const cli_option *row, const char *shown, const char *text,
                        void *fields, smp_errors *errors)
{
    void *field = (char *)fields + row->offset;
    const bool ranged = row->high > 0;
    const uint64_t low = ranged ? (uint64_t)row->low : 1;
    const uint64_t high = ranged ? (uint64_t)row->high : UINT32_MAX;
    const cli_range range = {row->low, ranged ? row->high : 1e15, row->below};
    uint64_t number = 0;
    switch (row->kind) {
    case CLI_KIND_FLAG:
        *(bool *)field = true;
        return SMP_OK;
    case CLI_KIND_TEXT:
        *(const char **)field = text;
        return SMP_OK;
    case CLI_KIND_LIST:
        list_add(field, text);
        return SMP_OK;
    case CLI_KIND_DOUBLE:
        return cli_real(shown, text, range, errors, field);
    case CLI_KIND_U32:
        if (cli_number(shown, text, low, high, errors, &number) == SMP_OK) {
            *(uint32_t *)field = (uint32_t)number;
            return SMP_OK;
        }
        return SMP_INPUT;
    case CLI_KIND_U64:
        if (cli_number(shown, text, low, high, errors, &number) == SMP_OK) {
            *(uint64_t *)field = number;
            return SMP_OK;
        }
        return SMP_INPUT;
    case CLI_KIND_HEADING:
    case CLI_KIND_HELP:
    case CLI_KIND_VERSION:
        break;
    }
    return SMP_OK;
}

/* -------------------------------------------------------------------- help */

/* Wraps words after column `indent`; line ends in the text stay. */
static void print_wrapped(const char *text, int indent)
{
    int column = indent;
    while (*text) {
        const int n = (int)strcspn(text, " \n");
        if (column > indent && column + 1 + n > HELP_WIDTH) {
            printf("\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            putchar(' ');
            column++;
        }
        printf("%.*s", n, text);
        column += n;
        text += n;
        if (*text == '\n') {
            printf("\n%*s", indent, "");
            column = indent;
        }
        text += *text != '\0';
    }
    putchar('\n');
}

static void print_option(const cli_option *row)
{
    char head[HELP_WIDTH];
    char letter[8] = "    ";
    if (row->letter) {
        snprintf(letter, sizeof letter, "-%c, ", row->letter);
    }
    int n = snprintf(head, sizeof head, "  %s--%s%s%s", letter, row->name,
                     row->argument ? " " : "", row->argument ? row->argument : "");
    if (n + 2 > HELP_INDENT) {
        printf("%s\n%*s", head, HELP_INDENT, "");
    } else {
        printf("%-*s", HELP_INDENT, head);
    }
    print_wrapped(row->help, HELP_INDENT);
}

static void print_help(const cli_program *program)
{
    for (size_t i = 0; program->usage[i]; i++) {
        printf("%s %s %s\n", i == 0 ? "Usage:" : "      ", program->name, program->usage[i]);
    }
    putchar('\n');
    print_wrapped(program->about, 0);
    for (size_t i = 0; i < program->n_option; i++) {
        const cli_option *row = &program->options[i];
        if (row->kind == CLI_KIND_HEADING) {
            printf("\n%s:\n", row->help);
        } else {
            print_option(row);
        }
    }
    if (program->notes) {
        printf("\n%s\n", program->notes);
    }
    printf("\nExamples:\n");
    for (size_t i = 0; program->examples[i]; i++) {
        printf("  %s\n", program->examples[i]);
    }
}

/* ----------------------------------------------------------------- parsing */

typedef struct parser {
    const cli_program *program;
    int argc, at;
    char **argv;
    void *fields;
    smp_errors *errors;
    bool done;
} parser;

/* Acts on one option; `value` is what stood behind "=", or NULL. */
static smp_status take(parser *p, const cli_option *row, const char *shown, const char *value)
{
    smp_place where = {.file = shown};
    if (row->kind == CLI_KIND_HELP) {
        print_help(p->program);
        p->done = true;
        return SMP_OK;
    }
    if (row->kind == CLI_KIND_VERSION) {
        printf("%s (smp) %s\n", p->program->name, PACKAGE_VERSION);
        p->done = true;
        return SMP_OK;
    }
    if (!row->argument && value) {
        return smp_fail(p->errors, SMP_INPUT, &where, "takes no value, but got '%s'", value);
    }
    if (row->argument && !value) {
        if (p->at + 1 >= p->argc) {
            return smp_fail(p->errors, SMP_INPUT, &where, "needs a value: %s %s", shown,
                            row->argument);
        }
        value = p->argv[++p->at];
    }
    if (row->argument && *value == '\0') {
        return smp_fail(p->errors, SMP_INPUT, &where, "needs a value that is not empty");
    }
    return store(row, shown, value, p->fields, p->errors);
}

static smp_status take_long(parser *p, const char *argument)
{
    char name[LONGEST_WORD];
    char shown[LONGEST_WORD + 3];
    size_t n = strcspn(argument + 2, "=");
    const char *value = argument[2 + n] == '=' ? argument + 3 + n : NULL;
    snprintf(name, sizeof name, "%.*s", (int)least(n, sizeof name - 1), argument + 2);
    snprintf(shown, sizeof shown, "--%s", name);
    for (size_t i = 0; i < p->program->n_option; i++) {
        const cli_option *row = &p->program->options[i];
        if (row->name && strcmp(row->name, name) == 0) {
            return take(p, row, shown, value);
        }
    }
    const char *near = nearest_option(p->program, name);
    return smp_fail(p->errors, SMP_INPUT, NULL, "unknown option '%s'%s%s%s; see --help", shown,
                    near ? "; did you mean '--" : "", near ? near : "", near ? "'?" : "");
}

/* "-n 8" or "-n8"; letters are not bundled. */
static smp_status take_short(parser *p, const char *argument)
{
    char shown[3] = {'-', argument[1], '\0'};
    for (size_t i = 0; i < p->program->n_option; i++) {
        const cli_option *row = &p->program->options[i];
        if (row->letter && row->letter == argument[1]) {
            return take(p, row, shown, argument[2] ? argument + 2 : NULL);
        }
    }
    return smp_fail(p->errors, SMP_INPUT, NULL, "unknown option '%.40s'; see --help", argument);
}

static const char *running = "smp"; /* the program, for a signal handler */

smp_status cli_parse(const cli_program *program, int argc, char **argv, void *fields,
                     cli_list *operands, smp_errors *errors, bool *done_p)
{
    parser p = {.program = program, .argc = argc, .argv = argv, .fields = fields,
                .errors = errors};
    bool only_operands = false;
    running = program->name;
    for (p.at = 1; p.at < argc && !p.done; p.at++) {
        const char *argument = argv[p.at];
        smp_status status = SMP_OK;
        if (!only_operands && strcmp(argument, "--") == 0) {
            only_operands = true;
        } else if (!only_operands && strncmp(argument, "--", 2) == 0) {
            status = take_long(&p, argument);
        } else if (!only_operands && argument[0] == '-' && argument[1]) {
            status = take_short(&p, argument);
        } else if (operands->count == program->max_operands) {
            status = smp_fail(errors, SMP_INPUT, NULL,
                              "unexpected argument '%.200s'; see --help", argument);
        } else {
            list_add(operands, argument);
        }
        /* An option that is not understood may swallow its value: go no further. */
        if (status != SMP_OK) {
            break;
        }
    }
    *done_p = p.done;
    return smp_errors_status(errors);
}

/* ----------------------------------------------------------- begin and end */

/* A mapped file that becomes shorter leaves pages that are not there. */
static void fail_mapped(int number)
{
    static const char text[] = ": a page cannot be read: a data file has become shorter while "
                               "it was in use\n";
    static atomic_flag told = ATOMIC_FLAG_INIT;
    (void)number;
    while (atomic_flag_test_and_set(&told)) { /* another thread says it and ends all */
        (void)pause();
    }
    (void)!write(STDERR_FILENO, running, strlen(running));
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    _exit(SMP_SYSTEM);
}

void cli_begin(void)
{
    struct sigaction mapped = {.sa_handler = fail_mapped};
    signal(SIGPIPE, SIG_IGN);
    (void)sigemptyset(&mapped.sa_mask);
    (void)sigaction(SIGBUS, &mapped, NULL);
}

int cli_end(const char *program, smp_errors *errors)
{
    /* Output that was lost on the way has been told. */
    if ((fflush(stdout) != 0 || ferror(stdout)) && smp_errors_status(errors) != SMP_SYSTEM) {
        smp_status lost = smp_fail(errors, SMP_SYSTEM, NULL, "standard output: %s",
                                   strerror(errno ? errno : EIO));
        (void)lost;
    }
    smp_errors_print(errors, program, stderr);
    int status = (int)smp_errors_status(errors);
    smp_errors_destroy(errors);
    return status;
}

/* --------------------------------------------------------------------- job */

static smp_status read_parts(const cli_job *options, smp_errors *errors, cli_inputs *inputs)
{
    if (!options->model) {
        smp_fail(errors, SMP_INPUT, NULL, "--model is missing: what is to be trained?");
    }
    if (!options->cluster) {
        smp_fail(errors, SMP_INPUT, NULL, "--cluster is missing: where is it to be trained?");
    }
    if (smp_errors_status(errors) != SMP_OK) {
        return SMP_INPUT;
    }
    /* All three are read even when one fails, so that all mistakes are told at once. */
    smp_status model = smp_model_read(options->model, errors, &inputs->model);
    smp_status cluster = smp_cluster_read(options->cluster, errors, &inputs->cluster);
    smp_status profile = SMP_OK;
    if (options->profile) {
        profile = smp_profile_read(options->profile, errors, &inputs->profile);
    } else if (cluster == SMP_OK) {
        profile = smp_profile_read_for(inputs->cluster, errors, &inputs->profile);
    }
    if (model != SMP_OK || cluster != SMP_OK || profile != SMP_OK) {
        return smp_errors_status(errors);
    }
    inputs->job.model = inputs->model;
    inputs->job.cluster = inputs->cluster;
    inputs->job.profile = inputs->profile;
    smp_settings_init(&inputs->job.settings);
    return SMP_OK;
}

static smp_status read_plan(const cli_job *options, const char *plan_path, smp_errors *errors,
                            cli_inputs *inputs)
{
    const char *also = options->model ? "--model" : options->cluster ? "--cluster"
                       : options->profile ? "--profile" : NULL;
    if (also) {
        return smp_fail(errors, SMP_INPUT, NULL,
                        "%s cannot be given with a plan file, which holds it: '%s'", also,
                        plan_path);
    }
    smp_status status = smp_plan_read(plan_path, errors, &inputs->planned);
    if (status == SMP_OK) {
        inputs->job = inputs->planned->job;
    }
    return status;
}

static smp_status set_counts(const cli_job *options, smp_errors *errors, cli_inputs *inputs)
{
    smp_cluster *cluster = inputs->planned ? inputs->planned->cluster : inputs->cluster;
    if (options->nodes && options->gpus) {
        return smp_fail(errors, SMP_INPUT, NULL, "--nodes and --gpus: give one of them");
    }
    if (options->nodes) {
        return smp_cluster_set_nodes(cluster, options->nodes, errors);
    }
    if (options->gpus) {
        return smp_cluster_set_gpus(cluster, options->gpus, errors);
    }
    return SMP_OK;
}

smp_status cli_job_read(const cli_job *options, const char *plan_path, smp_errors *errors,
                        cli_inputs *inputs_p)
{
    cli_inputs inputs = {0};
    smp_status status = plan_path ? read_plan(options, plan_path, errors, &inputs)
                                  : read_parts(options, errors, &inputs);
    if (status == SMP_OK) {
        status = set_counts(options, errors, &inputs);
    }
    if (status == SMP_OK) {
        if (options->seq_len) {
            inputs.job.batch.seq_len = options->seq_len;
        }
        if (options->global_batch) {
            inputs.job.batch.global_batch = options->global_batch;
        }
        if (options->smp_file) {
            status = smp_settings_read(&inputs.job.settings, options->smp_file, errors);
        }
        if (options->stack) {
            const smp_place place = {.file = "--stack"};
            smp_status one = smp_settings_set(&inputs.job.settings, "stack", options->stack,
                                              &place, errors);
            status = status == SMP_OK ? one : status;
        }
        for (size_t i = 0; i < options->set.count; i++) {
            smp_status one = smp_settings_assign(&inputs.job.settings, options->set.values[i],
                                                 options->set_name ? options->set_name
                                                                   : "--set", errors);
            status = status == SMP_OK ? one : status;
        }
    }
    if (status != SMP_OK) {
        cli_inputs_free(&inputs);
        return status;
    }
    *inputs_p = inputs;
    return SMP_OK;
}

void cli_inputs_free(cli_inputs *inputs)
{
    smp_planned_destroy(inputs->planned);
    smp_profile_destroy(inputs->profile);
    smp_cluster_destroy(inputs->cluster);
    smp_model_destroy(inputs->model);
    *inputs = (cli_inputs){0};
}
