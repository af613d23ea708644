/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs gnuplot; knows nothing of what is plotted.
 */
#include "config.h"

#include "base/gnuplot.h"

#include "base/arena.h"
#include "base/text.h"

#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static bool ends_in(const char *path, const char *suffix)
{
    const size_t n = strlen(path);
    const size_t m = strlen(suffix);
    return n > m && strcmp(path + n - m, suffix) == 0;
}

smp_status smp_plot_check(const char *path, smp_errors *errors)
{
    if (ends_in(path, ".svg") || ends_in(path, ".png")) {
        return SMP_OK;
    }
    return smp_fail(errors, SMP_INPUT, &(smp_place){.file = path},
                    "the name of a plot must end in .svg or .png");
}

/* gnuplot takes names that begin with < or | as commands for a shell, and ~ as a home. */
static char *plain_name(smp_arena *arena, const char *path)
{
    return path[0] == '/' ? smp_arena_strdup(arena, path)
                          : smp_arena_printf(arena, "./%s", path);
}

/* Standard output may carry the caller's results: what gnuplot says goes to standard error. */
static int spawn(char *const *argv, pid_t *pid_p)
{
    posix_spawn_file_actions_t actions;
    int error = posix_spawn_file_actions_init(&actions);
    if (error == 0) {
        error = posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
        if (error == 0) {
            error = posix_spawnp(pid_p, argv[0], &actions, NULL, argv, environ);
        }
        (void)posix_spawn_file_actions_destroy(&actions);
    }
    return error;
}

static smp_status run(char *const *argv, const char *data_path, smp_errors *errors)
{
    pid_t pid = 0;
    const int error = spawn(argv, &pid);
    if (error != 0) {
        return smp_fail(errors, SMP_SYSTEM, NULL,
                        "gnuplot cannot be run (%s): install it (Debian: gnuplot-nox) to get "
                        "the plot; its data are in %s", strerror(error), data_path);
    }
    int status = 0;
    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR) {
            return smp_fail(errors, SMP_SYSTEM, NULL, "gnuplot was lost: %s", strerror(errno));
        }
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        return smp_fail(errors, SMP_SYSTEM, NULL,
                        "gnuplot failed; the data of the plot are in %s", data_path);
    }
    return SMP_OK;
}

smp_status smp_plot_run(const char *script, const char *data_path, const char *path,
                        const char *const *args, smp_errors *errors)
{
    enum { FIXED = 6, MOST = FIXED + 6 };
    char *script_path = NULL;
    smp_status st = smp_find_plot_script(script, errors, &script_path);
    if (st != SMP_OK) {
        return st;
    }
    smp_arena *arena = smp_arena_create();
    char *output =
        smp_arena_printf(arena, "%s.tmp-%ld", plain_name(arena, path), (long)getpid());
    char *argv[MOST + 1] = {smp_arena_strdup(arena, "gnuplot"),
                            smp_arena_strdup(arena, "-c"),
                            script_path,
                            plain_name(arena, data_path),
                            output,
                            smp_arena_strdup(arena, ends_in(path, ".png") ? "png" : "svg")};
    for (int i = 0; args[i] != NULL && i < MOST - FIXED; i++) {
        argv[FIXED + i] = smp_arena_strdup(arena, args[i]);
    }
    st = run(argv, data_path, errors);
    if (st == SMP_OK && rename(output, path) != 0) {
        st = smp_fail(errors, SMP_SYSTEM, &(smp_place){.file = path}, "cannot be written: %s",
                      strerror(errno));
    }
    if (st != SMP_OK) {
        (void)unlink(output);
    }
    free(script_path);
    smp_arena_destroy(arena);
    return st;
}
