/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file that holds a fuzz input, for readers that take a path.
 */
#include "config.h"

#include "fuzz.h"

#include <unistd.h>

static char path[256];

static void remove_file(void)
{
    (void)unlink(path);
}

const char *fuzz_file(const uint8_t *data, size_t size)
{
    const char *directory = getenv("TMPDIR");
    FILE *stream;

    if (path[0] == '\0') {
        (void)snprintf(path, sizeof path, "%s/smp-fuzz-%ld.json",
                       directory && strlen(directory) < 200 ? directory : "/tmp",
                       (long)getpid());
        FUZZ_CHECK(atexit(remove_file) == 0);
    }
    stream = fopen(path, "wb");
    FUZZ_CHECK(stream != NULL);
    FUZZ_CHECK(fwrite(data, 1, size, stream) == size);
    FUZZ_CHECK(fclose(stream) == 0);
    return path;
}
