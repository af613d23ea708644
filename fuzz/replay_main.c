/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a fuzz target on each file of its corpus, as a test that speaks TAP; or on the files
 * named as arguments, to reproduce what a fuzzer found.  The corpus of fuzz_NAME is
 * fuzz/corpus/NAME below $srcdir or the source tree.
 */
#include "config.h"

#include "fuzz.h"

#include <dirent.h>
#include <unistd.h>

static int compare(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_input(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static bool run_file(const char *path)
{
    FILE *stream = fopen(path, "rb");
    uint8_t *data = NULL;
    size_t size = 0, capacity = 0;
    bool read_all;

    if (stream == NULL) {
        return false;
    }
    for (;;) {
        size_t got;

        capacity += 65536;
        data = realloc(data, capacity);
        FUZZ_CHECK(data != NULL);
        got = fread(data + size, 1, capacity - size, stream);
        size += got;
        if (size < capacity) {
            break;
        }
    }
    read_all = !ferror(stream);
    (void)fclose(stream);
    if (read_all) {
        (void)LLVMFuzzerTestOneInput(data, size);
    }
    free(data);
    return read_all;
}

/* Prints TAP; the number of files that could not be read.  A broken property aborts. */
static int run_files(int count, char *const *files)
{
    int failed = 0;

    printf("1..%d\n", count);
    for (int i = 0; i < count; i++) {
        bool right;

        (void)fflush(stdout); /* a crash leaves the results before it */
        right = run_file(files[i]);
        failed += !right;
        printf("%s %d - %s\n", right ? "ok" : "not ok", i + 1, files[i]);
    }
    return failed;
}

/* Goes to the corpus of the program, named by what follows the last "fuzz_". */
static bool enter_corpus(const char *program)
{
    const char *slash = strrchr(program, '/');
    const char *name = strstr(slash ? slash : program, "fuzz_");
    const char *source = getenv("srcdir");
    char directory[2048];

    (void)snprintf(directory, sizeof directory, "%s/fuzz/corpus/%s",
                   source ? source : SMP_SOURCE_DIR, name ? name + strlen("fuzz_") : "");
    return chdir(directory) == 0;
}

static int run_corpus(const char *program)
{
    struct dirent **entries = NULL;
    char **files;
    int count = enter_corpus(program) ? scandir(".", &entries, is_input, compare) : 0;
    int failed;

    if (count <= 0) {
        printf("1..1\nnot ok 1 - no corpus of %s\n", program);
        return 1;
    }
    files = calloc((size_t)count, sizeof *files);
    FUZZ_CHECK(files != NULL);
    for (int i = 0; i < count; i++) {
        files[i] = entries[i]->d_name;
    }
    failed = run_files(count, files);
    for (int i = 0; i < count; i++) {
        free(entries[i]);
    }
    free(entries);
    free(files);
    return failed;
}

int main(int argc, char **argv)
{
    return argc > 1 ? run_files(argc - 1, argv + 1) : run_corpus(argv[0]);
}
