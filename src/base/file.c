/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Output files that appear whole: written as PATH.tmp-PID beside PATH, then renamed.
 */
#include "config.h"

#include "base/text.h"

#include "base/arena.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct smp_file {
    FILE *stream;
    char *path;
    char *temporary; /* NULL: written in place (standard output, devices, pipes) */
};

static smp_status fail_system(smp_errors *errors, const char *path, const char *what, int error)
{
    return smp_fail(errors, SMP_SYSTEM, &(smp_place){.file = path}, "%s: %s", what,
                    strerror(error));
}

static void free_file(smp_file *file)
{
    free(file->path);
    free(file->temporary);
    free(file);
}

/* Something that is there and is no regular file (/dev/null, a pipe) must not be replaced. */
static bool written_in_place(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}

static FILE *open_stream(smp_file *file)
{
    if (strcmp(file->path, "-") == 0) {
        return stdout;
    }
    if (!written_in_place(file->path)) {
        smp_text text = {0};

        smp_text_add(&text, "%s.tmp-%ld", file->path, (long)getpid());
        file->temporary = text.data;
    }
    return fopen(file->temporary ? file->temporary : file->path, "we");
}

smp_status smp_file_create(const char *path, smp_errors *errors, smp_file **file_p)
{
    smp_text copy = {0};
    smp_file *file;
    struct stat info;

    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        return smp_fail(errors, SMP_SYSTEM, &(smp_place){.file = path},
                        "cannot be written: it is a directory");
    }
    file = smp_heap_alloc(1, sizeof *file);
    smp_text_add(&copy, "%s", path);
    file->path = copy.data;
    file->stream = open_stream(file);
    if (file->stream == NULL) {
        int error = errno;

        free_file(file);
        return fail_system(errors, path, "cannot be written", error);
    }
    *file_p = file;
    return SMP_OK;
}

FILE *smp_file_stream(smp_file *file)
{
    return file->stream;
}

smp_status smp_stream_check(FILE *stream, const char *name, smp_errors *errors)
{
    errno = 0;
    if (fflush(stream) != 0 || ferror(stream)) {
        return fail_system(errors, name, "writing failed", errno ? errno : EIO);
    }
    return SMP_OK;
}

/* Closes and renames; errno of the first call that failed, else 0. */
static int finish(smp_file *file)
{
    int error = 0;

    if (file->stream == stdout) {
        return 0;
    }
    if (fclose(file->stream) != 0) {
        error = errno;
    }
    if (error == 0 && file->temporary != NULL && rename(file->temporary, file->path) != 0) {
        error = errno;
    }
    if (error != 0 && file->temporary != NULL) {
        (void)unlink(file->temporary);
    }
    return error;
}

smp_status smp_file_commit(smp_file *file, smp_errors *errors)
{
    smp_status status = smp_stream_check(
        file->stream, file->stream == stdout ? "standard output" : file->path, errors);
    int error;

    if (status != SMP_OK) {
        smp_file_abandon(file);
        return status;
    }
    error = finish(file);
    if (error != 0) {
        status = fail_system(errors, file->path, "cannot be written", error);
    }
    free_file(file);
    return status;
}

void smp_file_abandon(smp_file *file)
{
    if (file == NULL) {
        return;
    }
    if (file->stream != stdout) {
        (void)fclose(file->stream);
    }
    if (file->temporary != NULL) {
        (void)unlink(file->temporary);
    }
    free_file(file);
}

smp_status smp_file_write(const char *path, const char *bytes, size_t n, smp_errors *errors)
{
    smp_file *file;
    smp_status status = smp_file_create(path, errors, &file);

    if (status != SMP_OK) {
        return status;
    }
    errno = 0;
    if (fwrite(bytes, 1, n, file->stream) < n) { /* now, while errno says why */
        status = fail_system(errors, path, "writing failed", errno ? errno : EIO);
        smp_file_abandon(file);
        return status;
    }
    return smp_file_commit(file, errors);
}

smp_status smp_read_status(int error)
{
    return error == ENOENT || error == ENOTDIR || error == EISDIR || error == EACCES
                   || error == ELOOP || error == ENAMETOOLONG
               ? SMP_INPUT
               : SMP_SYSTEM;
}

smp_status smp_make_directory(const char *path, smp_errors *errors)
{
    smp_text text = {0};
    struct stat info;
    int error = 0;

    smp_text_add(&text, "%s", path);
    for (size_t i = 1; i <= text.length; i++) {
        const char end = text.data[i];

        if (end == '/' || end == '\0') {
            text.data[i] = '\0';
            error = mkdir(text.data, 0777) == 0 || errno == EEXIST ? 0 : errno;
            text.data[i] = end;
        }
    }
    smp_text_free(&text);
    if (error == 0 && stat(path, &info) == 0 && !S_ISDIR(info.st_mode)) {
        error = ENOTDIR;
    }
    return error == 0 ? SMP_OK : fail_system(errors, path, "cannot be made", error);
}
