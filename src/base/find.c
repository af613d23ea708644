/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the data files are: $SMP_CONFIGS; the source tree, for a program that runs from
 * its build tree; else the installed place.  So tests and a developer see the files they
 * edit, and an installed program never looks into the tree that it was built in.
 */
#include "config.h"

#include "base/text.h"

#include "base/arena.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

/* Set by the build: the top of the build tree, the top of the source tree, and the
 * installed data directory. */
#ifndef SMP_BUILD_DIR
#error "SMP_BUILD_DIR, SMP_SOURCE_DIR and SMP_DATA_DIR come from Makefile.am"
#endif

static bool is_file(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 && !S_ISDIR(info.st_mode);
}

static bool is_directory(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static bool lies_in(const char *path, const char *directory)
{
    size_t n = strlen(directory);

    return strncmp(path, directory, n) == 0 && path[n] == '/';
}

/* Writes the directory of the running program, without links; false where /proc is not. */
static bool program_directory(char *path, size_t size_bytes)
{
    ssize_t n = readlink("/proc/self/exe", path, size_bytes - 1);
    char *slash;

    if (n <= 0) {
        return false;
    }
    path[n] = '\0';
    slash = strrchr(path, '/');
    if (slash == NULL) {
        return false;
    }
    *slash = '\0';
    return true;
}

/* The directory that holds configs/ and plots/, on the heap.  A program in PREFIX/bin uses
 * PREFIX/share/smp if that is there, which also serves a staged or moved installation. */
static char *data_directory(void)
{
    char program[PATH_MAX], build[PATH_MAX];
    smp_text text = {0};

    if (program_directory(program, sizeof program)) {
        char *base = strrchr(program, '/');

        if (base != NULL && strcmp(base, "/bin") == 0) {
            smp_text_add(&text, "%.*s/share/%s", (int)(base - program), program,
                         PACKAGE_TARNAME);
            if (is_directory(text.data)) {
                return text.data;
            }
            smp_text_free(&text);
        } else if (realpath(SMP_BUILD_DIR, build) != NULL
                   && (strcmp(program, build) == 0 || lies_in(program, build))) {
            smp_text_add(&text, "%s", SMP_SOURCE_DIR);
            return text.data;
        }
    }
    smp_text_add(&text, "%s", SMP_DATA_DIR);
    return text.data;
}

/* The first entry of a directory, in byte order, that is NAME.json but for upper and lower
 * case; heap memory, or NULL. */
static char *find_any_case(const char *directory, const char *name)
{
    DIR *stream = opendir(directory);
    struct dirent *entry;
    smp_text best = {0};
    size_t n = strlen(name);

    while (stream != NULL && (entry = readdir(stream)) != NULL) {
        if (strncasecmp(entry->d_name, name, n) == 0 && strcmp(entry->d_name + n, ".json") == 0
            && (best.data == NULL || strcmp(entry->d_name, best.data) < 0)) {
            smp_text_free(&best);
            smp_text_add(&best, "%s", entry->d_name);
        }
    }
    if (stream != NULL) {
        (void)closedir(stream);
    }
    return best.data;
}

/* DIRECTORY/NAME, or with .json after it, or that in other case; heap memory, or NULL if
 * none is a file. */
static char *find_in(const char *directory, const char *name)
{
    smp_text text = {0};
    char *other;

    smp_text_add(&text, "%s/%s", directory, name);
    if (is_file(text.data)) {
        return text.data;
    }
    smp_text_add(&text, ".json");
    if (is_file(text.data)) {
        return text.data;
    }
    smp_text_free(&text);
    other = find_any_case(directory, name);
    if (other != NULL) {
        smp_text_add(&text, "%s/%s", directory, other);
        free(other);
        if (is_file(text.data)) {
            return text.data;
        }
        smp_text_free(&text);
    }
    return NULL;
}

/* The directories of one kind of data, in order of search: [0] of $SMP_CONFIGS, or empty
 * when that is not set; [1] of the build tree or the installed place. */
static void search_places(const char *top, const char *kind, smp_text places[2])
{
    const char *given = getenv("SMP_CONFIGS");
    char *data = data_directory();

    if (given != NULL && given[0] != '\0') {
        smp_text_add(&places[0], "%s/%s", given, kind);
    }
    smp_text_add(&places[1], "%s/%s%s%s", data, top, top[0] != '\0' ? "/" : "", kind);
    free(data);
}

static int compare_names(const void *a, const void *b)
{
    const char *const *x = a;
    const char *const *y = b;

    return strcmp(*x, *y);
}

typedef struct name_list { char **at; size_t n, room; } name_list; /* heap */

/* The names of the *.json of a directory. */
static void add_names(name_list *names, const char *directory)
{
    DIR *stream = opendir(directory);
    struct dirent *entry;

    while (stream != NULL && (entry = readdir(stream)) != NULL) {
        size_t n = strlen(entry->d_name);

        if (n > 5 && strcmp(entry->d_name + n - 5, ".json") == 0) {
            smp_text name = {0};

            smp_text_add_n(&name, entry->d_name, n - 5);
            SMP_GROW(names->at, names->n, names->room);
            names->at[names->n++] = name.data;
        }
    }
    if (stream != NULL) {
        (void)closedir(stream);
    }
}

/* "NAME, NAME", sorted, each once; frees them. */
static void print_names(smp_text *text, name_list *names)
{
    if (names->n > 0) {
        qsort(names->at, names->n, sizeof *names->at, compare_names);
    }
    for (size_t i = 0; i < names->n; i++) {
        if (i == 0 || strcmp(names->at[i], names->at[i - 1]) != 0) {
            smp_text_add(text, "%s%s", text->length ? ", " : "", names->at[i]);
        }
    }
    for (size_t i = 0; i < names->n; i++) {
        free(names->at[i]);
    }
    free(names->at);
}

static smp_status fail_not_found(const char *kind, const char *name, const smp_text places[2],
                                 smp_errors *errors)
{
    smp_text names = {0};
    name_list found = {0};
    int kind_length = (int)strlen(kind);
    smp_status status;

    for (int i = 0; i < 2; i++) {
        if (places[i].length != 0) {
            add_names(&found, places[i].data);
        }
    }
    print_names(&names, &found);
    if (names.length == 0) {
        smp_text_add(&names, "none in %s, and $SMP_CONFIGS names %s", places[1].data,
                     places[0].length ? places[0].data : "no other place");
    }
    kind_length -= kind_length > 0 && kind[kind_length - 1] == 's';
    status = smp_fail(errors, SMP_INPUT, &(smp_place){.file = name},
                      "%s; %s %.*s of that name (known: %s)",
                      is_directory(name) ? "a directory without config.json" : "no such file",
                      "and no", kind_length, kind, names.data);
    smp_text_free(&names);
    return status;
}

/* The file a user names directly: PATH, or PATH/config.json of a directory; else NULL. */
static char *find_given(const char *path)
{
    smp_text text = {0};

    if (is_file(path)) {
        smp_text_add(&text, "%s", path);
        return text.data;
    }
    if (is_directory(path)) {
        smp_text_add(&text, "%s%sconfig.json", path,
                     path[strlen(path) - 1] == '/' ? "" : "/");
        if (is_file(text.data)) {
            return text.data;
        }
        smp_text_free(&text);
    }
    return NULL;
}

smp_status smp_find_config(const char *kind, const char *name_or_path, smp_errors *errors,
                           char **path_p)
{
    smp_text places[2] = {{0}, {0}};
    smp_status status = SMP_OK;
    char *found;

    if (name_or_path[0] == '\0') {
        return smp_fail(errors, SMP_INPUT, NULL, "an empty name instead of a file or one of %s",
                        kind);
    }
    found = find_given(name_or_path);
    search_places("configs", kind, places);
    for (int i = 0; i < 2 && found == NULL; i++) {
        found = places[i].length ? find_in(places[i].data, name_or_path) : NULL;
    }
    if (found != NULL) {
        *path_p = found;
    } else {
        status = fail_not_found(kind, name_or_path, places, errors);
    }
    smp_text_free(&places[0]);
    smp_text_free(&places[1]);
    return status;
}

smp_status smp_find_plot_script(const char *name, smp_errors *errors, char **path_p)
{
    smp_text places[2] = {{0}, {0}};
    smp_status status = SMP_OK;
    char *found = NULL;

    search_places("", "plots", places);
    for (int i = 0; i < 2 && found == NULL; i++) {
        found = places[i].length ? find_in(places[i].data, name) : NULL;
    }
    if (found != NULL) {
        *path_p = found;
    } else {
        status = smp_fail(errors, SMP_SYSTEM, &(smp_place){.file = places[1].data},
                          "the plot script %s is not there", name);
    }
    smp_text_free(&places[0]);
    smp_text_free(&places[1]);
    return status;
}
