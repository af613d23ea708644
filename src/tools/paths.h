/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files that a command line names, so that no output is written over an input or over
 * another output.
 */
#ifndef SMP_TOOLS_PATHS_H
#define SMP_TOOLS_PATHS_H

#include "tools/cli.h"

#include <sys/stat.h>

typedef struct cli_path {
    const char *option; /* that names it, or "the plan" */
    char *path;         /* heap */
    bool written, is_there;
    struct stat facts;  /* where it is there */
} cli_path;

/* Starts from {0}; cli_paths_check releases it. */
typedef struct cli_paths { cli_path *at; size_t n, capacity; } cli_paths;

/* All take NULL for an option that was not given; strings of options must outlive the list. */
void cli_paths_read(cli_paths *paths, const char *option, const char *path);
/* A file of tokens, or Megatron's pair of .bin and .idx. */
void cli_paths_read_tokens(cli_paths *paths, const char *option, const char *path);
/* A file or its directory; a name under configs is not looked up. */
void cli_paths_read_config(cli_paths *paths, const char *option, const char *path);
/* The plan, or model, cluster, profile, and settings. */
void cli_paths_read_job(cli_paths *paths, const cli_job *job, const char *plan_path);
/* PATH followed by `suffix`; "-" is standard output. */
void cli_paths_write(cli_paths *paths, const char *option, const char *path,
                     const char *suffix);

/* SMP_INPUT, and nothing was opened, where an output is the same file as an input or another
 * output: the same regular file by device and inode, or the same name where neither is there.
 * Also where an output is a directory.  Frees the list. */
SMP_CHECK smp_status cli_paths_check(cli_paths *paths, smp_errors *errors);

#endif
