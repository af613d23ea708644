/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running gnuplot on a script of plots/: the picture appears whole or not at all.
 */
#include "config.h"

#include "base/arena.h"
#include "base/text.h"

#include <errno.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text);
    size_t m = strlen(end);
    return n > m && strcmp(text + n - m, end) == 0;
}

smp_status smp_plot_check(const char *path, smp_errors *errors)
{
    if (ends_with(path, ".svg") || ends_with(path, ".png")) {
        return SMP_OK;
    }
    return smp_fail(errors, SMP_INPUT, NULL, "plot file '%s': must end in .svg or .png", path);
}

/* Waits for the child; 0 when it exited with 0. */
static int wait_for(pid_t child)
{
    int state = 0;
    while (waitpid(child, &state, 0) < 0) {
        if (errno != EINTR) {
            return -1;
        }
    }
    return WIFEXITED(state) ? WEXITSTATUS(state) : -1;
}

/* Standard output is given to the caller's data, so gnuplot's goes to standard error. */
static smp_status run_gnuplot(char **argv, const char *data_path, smp_errors *errors)
{
    posix_spawn_file_actions_t actions;
    pid_t child = 0;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    int failed = posix_spawnp(&child, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed != 0) {
        return smp_fail(errors, SMP_SYSTEM, NULL,
                        "cannot run gnuplot (%s): install it (Debian: gnuplot-nox) to get the "
                        "plot; its data are in %s", strerror(failed), data_path);
    }
    int status = wait_for(child);
    if (status != 0) {
        return smp_fail(errors, SMP_SYSTEM, NULL,
                        "gnuplot failed with status %d; the plot's data are in %s", status,
                        data_path);
    }
    return SMP_OK;
}

smp_status smp_plot_run(const char *script, const char *data_path, const char *path,
                        const char *const *args, smp_errors *errors)
{
    char *script_path = NULL;
    smp_status status = smp_find_plot_script(script, errors, &script_path);
    if (status != SMP_OK) {
        return status;
    }
    smp_arena *arena = smp_arena_create();
    size_t n = 0;
    while (args[n]) {
        n++;
    }
    char **argv = SMP_ARENA_ARRAY(arena, n + 7, char *);
    char *part = smp_arena_printf(arena, "%s.part", path);
    argv[0] = smp_arena_strdup(arena, "gnuplot");
    argv[1] = smp_arena_strdup(arena, "-c");
    argv[2] = script_path;
    argv[3] = smp_arena_strdup(arena, data_path);
    argv[4] = part;
    argv[5] = smp_arena_strdup(arena, ends_with(path, ".png") ? "png" : "svg");
    for (size_t i = 0; i < n; i++) {
        argv[6 + i] = smp_arena_strdup(arena, args[i]);
    }
    status = run_gnuplot(argv, data_path, errors);
    if (status != SMP_OK) {
        unlink(part);
    } else if (rename(part, path) != 0) {
        status = smp_fail(errors, SMP_SYSTEM, NULL, "%s: %s", path, strerror(errno));
        unlink(part);
    }
    smp_arena_destroy(arena);
    free(script_path);
    return status;
}
