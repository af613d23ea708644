/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files of a fuzz target, for readers and writers that take a path.
 */
#include "config.h"

#include "fuzz.h"

#include <unistd.h>

enum { FILES = 3 }; /* the input, two outputs */

static char paths[FILES][256];

static void remove_files(void)
{
    for (int i = 0; i < FILES; i++) {
        (void)unlink(paths[i]);
    }
}

static void name_files(void)
{
    const char *directory = getenv("TMPDIR");

    if (paths[0][0] != '\0') {
        return;
    }
    for (int i = 0; i < FILES; i++) {
        (void)snprintf(paths[i], sizeof paths[i], "%s/smp-fuzz-%ld-%d.json",
                       directory && strlen(directory) < 200 ? directory : "/tmp",
                       (long)getpid(), i);
    }
    FUZZ_CHECK(atexit(remove_files) == 0);
}

const char *fuzz_file(const uint8_t *data, size_t size)
{
    FILE *stream;

    name_files();
    stream = fopen(paths[0], "wb");
    FUZZ_CHECK(stream != NULL);
    FUZZ_CHECK(fwrite(data, 1, size, stream) == size);
    FUZZ_CHECK(fclose(stream) == 0);
    return paths[0];
}

const char *fuzz_output(int i)
{
    name_files();
    return paths[1 + i];
}

bool fuzz_outputs_equal(void)
{
    FILE *first = fopen(fuzz_output(0), "rb");
    FILE *second = fopen(fuzz_output(1), "rb");
    int a, b;

    FUZZ_CHECK(first != NULL && second != NULL);
    do {
        a = getc(first);
        b = getc(second);
    } while (a == b && a != EOF);
    (void)fclose(first);
    (void)fclose(second);
    return a == b;
}
