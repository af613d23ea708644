/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of a command line, and which of them are one.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "tools/paths.h"

#include <stdlib.h>
#include <string.h>

static void add(cli_paths *paths, const char *option, bool written, const char *path,
                const char *suffix)
{
    if (!path) {
        return;
    }
    if (paths->n == paths->capacity) {
        paths->capacity = paths->capacity ? 2 * paths->capacity : 16;
        paths->at = realloc(paths->at, paths->capacity * sizeof *paths->at);
    }
    const size_t room = strlen(path) + strlen(suffix) + 1;
    char *copy = malloc(room);
    if (!paths->at || !copy) {
        fprintf(stderr, "out of memory\n");
        exit(SMP_SYSTEM);
    }
    snprintf(copy, room, "%s%s", path, suffix);
    cli_path *added = &paths->at[paths->n++];
    *added = (cli_path){.option = option, .path = copy, .written = written};
    added->is_there = strcmp(copy, "-") != 0 && stat(copy, &added->facts) == 0;
}

void cli_paths_read(cli_paths *paths, const char *option, const char *path)
{
    if (path && strcmp(path, "-") != 0) { /* standard input is no file of ours */
        add(paths, option, false, path, "");
    }
}

/* A file that may be read beside or instead of the one named. */
static void read_if_there(cli_paths *paths, const char *option, const char *path,
                          const char *suffix)
{
    const size_t n = paths->n;
    add(paths, option, false, path, suffix);
    if (paths->n > n && !paths->at[n].is_there) {
        free(paths->at[n].path);
        paths->n = n;
    }
}

void cli_paths_read_tokens(cli_paths *paths, const char *option, const char *path)
{
    static const char *const suffixes[] = {".bin", ".idx"};
    const size_t n = path ? strlen(path) : 0;
    const bool ends = n > 4 && (strcmp(path + n - 4, suffixes[0]) == 0 ||
                                strcmp(path + n - 4, suffixes[1]) == 0);
    cli_paths_read(paths, option, path);
    for (size_t i = 0; path && i < 2; i++) {
        char *stem = strndup(path, ends ? n - 4 : n);
        read_if_there(paths, option, stem, suffixes[i]);
        free(stem);
    }
}

void cli_paths_read_config(cli_paths *paths, const char *option, const char *path)
{
    read_if_there(paths, option, path, "");
    read_if_there(paths, option, path, "/config.json");
}

void cli_paths_read_job(cli_paths *paths, const cli_job *job, const char *plan_path)
{
    cli_paths_read(paths, "the plan", plan_path);
    cli_paths_read_config(paths, "--model", job->model);
    cli_paths_read_config(paths, "--cluster", job->cluster);
    cli_paths_read_config(paths, "--profile", job->profile);
    cli_paths_read(paths, "--smp", job->smp_file);
}

void cli_paths_write(cli_paths *paths, const char *option, const char *path,
                     const char *suffix)
{
    add(paths, option, true, path, suffix);
}

/* Where the last component of a path begins. */
static size_t base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) + 1 : 0;
}

/* The directory that a new file of this path would be in. */
static bool directory_of(const char *path, struct stat *facts)
{
    const size_t n = base_of(path);
    char *directory = n > 0 ? strndup(path, n) : strdup(".");
    const bool found = directory && stat(directory, facts) == 0;
    free(directory);
    return found;
}

static bool one_inode(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static bool same_file(const cli_path *a, const cli_path *b)
{
    struct stat in_a;
    struct stat in_b;
    if (a->is_there != b->is_there) {
        return false;
    }
    if (a->is_there) { /* a device or a pipe is not written over */
        return S_ISREG(a->facts.st_mode) && one_inode(&a->facts, &b->facts);
    }
    return strcmp(a->path, b->path) == 0 ||
           (strcmp(a->path + base_of(a->path), b->path + base_of(b->path)) == 0 &&
            directory_of(a->path, &in_a) && directory_of(b->path, &in_b) &&
            one_inode(&in_a, &in_b));
}

static smp_status check_pair(const cli_path *out, const cli_path *other, smp_errors *errors)
{
    const smp_place place = {
        .file = strcmp(out->path, "-") == 0 ? "standard output" : out->path};
    if (!same_file(out, other)) {
        return SMP_OK;
    }
    if (other->written) {
        return smp_fail(errors, SMP_INPUT, &place,
                        "is also what %s writes: give another %s", other->option, out->option);
    }
    return smp_fail(errors, SMP_INPUT, &place, "is also what is read as %s: give another %s",
                    other->option, out->option);
}

smp_status cli_paths_check(cli_paths *paths, smp_errors *errors)
{
    smp_status status = SMP_OK;
    for (size_t i = 0; i < paths->n && status == SMP_OK; i++) {
        const cli_path *out = &paths->at[i];
        if (out->written && out->is_there && S_ISDIR(out->facts.st_mode)) {
            const smp_place place = {.file = out->path};
            status = smp_fail(errors, SMP_INPUT, &place, "is a directory: %s needs a file",
                              out->option);
        }
        for (size_t k = 0; out->written && k < paths->n && status == SMP_OK; k++) {
            const bool seen = paths->at[k].written && k >= i; /* pairs of outputs once */
            status = seen ? SMP_OK : check_pair(out, &paths->at[k], errors);
        }
    }
    for (size_t i = 0; i < paths->n; i++) {
        free(paths->at[i].path);
    }
    free(paths->at);
    *paths = (cli_paths){0};
    return status;
}
