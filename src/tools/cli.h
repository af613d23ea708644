/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command lines of the programs: one table of options drives parsing and --help.
 *
 * A program declares a struct for its options, a table of rows that point into it by offset,
 * and a cli_program.  Rows without a name are headings of the help.  Every mistake becomes
 * one line in the collector; unknown options name the nearest known one.  What this is not:
 * anything that knows about time or memory.
 *
 *     struct options { cli_job job; bool json; };
 *     static const cli_option table[] = {
 *         CLI_JOB_OPTIONS(struct options, job),
 *         CLI_FLAG("json", 0, struct options, json, "print JSON"),
 *     };
 */
#ifndef SMP_TOOLS_CLI_H
#define SMP_TOOLS_CLI_H

#include "smp.h"

/* Values of an option that may be given several times, in the order given. */
typedef struct cli_list { const char **values; size_t count, capacity; } cli_list;

typedef enum cli_kind {
    CLI_KIND_HEADING, CLI_KIND_FLAG, CLI_KIND_TEXT, CLI_KIND_U32, CLI_KIND_U64, CLI_KIND_DOUBLE,
    CLI_KIND_LIST, CLI_KIND_HELP, CLI_KIND_VERSION
} cli_kind;

typedef struct cli_option {
    const char *name;     /* without "--"; NULL: `help` is a heading */
    char letter;          /* short form, 0: none */
    cli_kind kind;
    const char *argument; /* name of the value in the help; NULL: takes none */
    size_t offset; /* of the field: bool, const char *, uint32_t, uint64_t, double, cli_list */
    const char *help;
    double low, high;     /* of a number; both 0: from 1, or a real one from 0 to 1e15 */
    bool below;           /* and it is less than `high` */
} cli_option;

#define CLI_HEADING(title) {.kind = CLI_KIND_HEADING, .help = (title)}
#define CLI_ROW_(kind_, name_, letter_, argument_, type, field, help_)                        \
    CLI_RANGE_ROW_(kind_, name_, letter_, argument_, type, field, 0, 0, help_)
#define CLI_RANGE_ROW_(kind_, name_, letter_, argument_, type, field, low_, high_, help_)     \
    {.name = (name_), .letter = (letter_), .kind = (kind_), .argument = (argument_),          \
     .offset = offsetof(type, field), .help = (help_), .low = (low_), .high = (high_)}
#define CLI_FLAG(name, letter, type, field, help)                                             \
    CLI_ROW_(CLI_KIND_FLAG, name, letter, NULL, type, field, help)
#define CLI_TEXT(name, letter, argument, type, field, help)                                   \
    CLI_ROW_(CLI_KIND_TEXT, name, letter, argument, type, field, help)
#define CLI_U32(name, letter, argument, type, field, help)                                    \
    CLI_ROW_(CLI_KIND_U32, name, letter, argument, type, field, help)
#define CLI_U64(name, letter, argument, type, field, help)                                    \
    CLI_ROW_(CLI_KIND_U64, name, letter, argument, type, field, help)
#define CLI_DOUBLE(name, letter, argument, type, field, help)                                 \
    CLI_ROW_(CLI_KIND_DOUBLE, name, letter, argument, type, field, help)
/* Numbers from `low` to `high`, both included; whole ones below 2^53. */
#define CLI_U32_IN(name, letter, argument, type, field, low, high, help)                      \
    CLI_RANGE_ROW_(CLI_KIND_U32, name, letter, argument, type, field, low, high, help)
#define CLI_U64_IN(name, letter, argument, type, field, low, high, help)                      \
    CLI_RANGE_ROW_(CLI_KIND_U64, name, letter, argument, type, field, low, high, help)
#define CLI_DOUBLE_IN(name, letter, argument, type, field, low, high, help)                   \
    CLI_RANGE_ROW_(CLI_KIND_DOUBLE, name, letter, argument, type, field, low, high, help)
/* From 0 to less than `high_`. */
#define CLI_DOUBLE_BELOW(name_, letter_, argument_, type, field, high_, help_)                \
    {.name = (name_), .letter = (letter_), .kind = CLI_KIND_DOUBLE, .argument = (argument_),  \
     .offset = offsetof(type, field), .help = (help_), .high = (high_), .below = true}
#define CLI_LIST(name, letter, argument, type, field, help)                                   \
    CLI_ROW_(CLI_KIND_LIST, name, letter, argument, type, field, help)
/* --help and --version; every table has them. */
#define CLI_COMMON_OPTIONS                                                                    \
    {.name = "help", .letter = 'h', .kind = CLI_KIND_HELP, .help = "print this help"},        \
    {.name = "version", .kind = CLI_KIND_VERSION, .help = "print the version"}

typedef struct cli_program {
    const char *name;              /* "smp-sim" */
    const char *const *usage;      /* lines after the name; NULL-terminated */
    const char *about;             /* a paragraph */
    const cli_option *options;
    size_t n_option;
    const char *notes;             /* printed after the options, lines of at most 80 columns */
    const char *const *examples;   /* NULL-terminated */
    size_t max_operands;           /* arguments that are not options */
} cli_program;

/* Parses into `fields` (zeroed or holding defaults).  `done_p` becomes true when --help or
 * --version was answered on standard output: then there is nothing left to do. */
SMP_CHECK smp_status cli_parse(const cli_program *program, int argc, char **argv, void *fields,
                               cli_list *operands, smp_errors *errors, bool *done_p);
void cli_list_free(cli_list *list);
/* One number for all of it: whole decimal, in range; else one failure naming the option. */
SMP_CHECK smp_status cli_number(const char *option, const char *text, uint64_t low,
                                uint64_t high, smp_errors *errors, uint64_t *value_p);
/* The same for a real number; `below`: less than `high`. */
typedef struct cli_range { double low, high; bool below; } cli_range;
SMP_CHECK smp_status cli_real(const char *option, const char *text, cli_range range,
                              smp_errors *errors, double *value_p);

/* To be called first in main: a closed pipe is a write error, not a signal. */
void cli_begin(void);
/* To be called last: prints what `errors` holds, checks that standard output arrived, frees
 * the collector and returns the exit status. */
int cli_end(const char *program, smp_errors *errors);

/* ---- options that name a job: model, cluster, profile, batch, settings */

typedef struct cli_job {
    const char *model, *cluster, *profile, *smp_file, *stack;
    uint32_t nodes, gpus;             /* 0: not given */
    uint64_t seq_len, global_batch;   /* 0: not given */
    cli_list set;                     /* key=value */
    const char *set_name;             /* the option that `set` is of; NULL: --set */
} cli_job;

#define CLI_JOB_OPTIONS(type, field)                                                          \
    CLI_MODEL_OPTION(type, field),                                                            \
    CLI_TEXT("cluster", 'c', "C", type, field.cluster,                                        \
             "a cluster file or a name under configs/clusters"),                              \
    CLI_U32("nodes", 'n', "N", type, field.nodes, "use N nodes of the cluster"),              \
    CLI_U32("gpus", 'g', "N", type, field.gpus, "use N GPUs, filling nodes in order"),        \
    CLI_REST_OPTIONS(type, field)
/* The same without the cluster, for smp-plan, which takes several. */
#define CLI_MODEL_OPTION(type, field)                                                         \
    CLI_HEADING("Job"),                                                                       \
    CLI_TEXT("model", 'm', "M", type, field.model,                                            \
             "a config.json, its directory, or a name under configs/models")
#define CLI_REST_OPTIONS(type, field)                                                         \
    CLI_TEXT("profile", 'p', "P", type, field.profile,                                        \
             "a profile file or name; default: that of the cluster's GPU"),                   \
    CLI_U64("seq-len", 's', "N", type, field.seq_len,                                         \
            "tokens per sequence; default: the model's positions, at most 8192"),             \
    CLI_U64("global-batch", 'b', "N", type, field.global_batch,                               \
            "sequences per step; default: one micro-batch per data rank"),                    \
    CLI_TEXT("smp", 0, "FILE", type, field.smp_file,                                          \
             "settings from an SMP configuration, v2 or v1 (JSON)"),                          \
    CLI_TEXT("stack", 0, "S", type, field.stack,                                              \
             "software that runs it: native (default), fsdp1, fsdp2, megatron, deepspeed")
/* Settings one by one; smp-plan calls the option "pin". */
#define CLI_SET_OPTION(name, type, field, help)                                               \
    CLI_LIST(name, 0, "KEY=VALUE", type, field.set, help)

/* What the options name, read; released by cli_inputs_free. */
typedef struct cli_inputs {
    smp_model *model;
    smp_cluster *cluster;
    smp_profile *profile;
    smp_planned *planned; /* of a plan file; then the three above are NULL */
    smp_job job;          /* not yet resolved */
} cli_inputs;

/* Reads a plan file (`plan_path`, or NULL) or model, cluster and profile, then applies
 * counts, batch, --smp and --set in this order. */
SMP_CHECK smp_status cli_job_read(const cli_job *options, const char *plan_path,
                                  smp_errors *errors, cli_inputs *inputs_p);
void cli_inputs_free(cli_inputs *inputs);

#endif
