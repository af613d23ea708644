/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a plan costs to find: for each published configuration under DATA/models on 8, 64 and
 * 1,024 H100 the seconds of processor time, the candidates and how many of them were
 * simulated.  A report, not a test.
 *
 *     make bench/plan && bench/plan [DATA [PART]]
 *
 * DATA: default $SMP_SHARED_DATA, else ../shared/data.  With PART, only models whose file
 * names contain it.
 */
#include "smp.h"

#include "base/arena.h"
#include "base/text.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SEQ_LEN = 2048, SHORT_SEQ_LEN = 1024, GLOBAL_BATCH = 1024 };

static double cpu_s(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Paths of the JSON files of a directory, sorted; heap. */
static size_t list_models(const char *data, const char *part, char ***paths_p)
{
    size_t n = 0, room = 0;
    char directory[4096];
    struct dirent *entry;
    DIR *stream;

    (void)snprintf(directory, sizeof directory, "%s/models", data);
    stream = opendir(directory);
    while (stream && (entry = readdir(stream)) != NULL) {
        const char *dot = strrchr(entry->d_name, '.');
        smp_text path = { 0 };

        if (!dot || strcmp(dot, ".json") != 0 || strstr(entry->d_name, part) == NULL) {
            continue;
        }
        smp_text_add(&path, "%s/%s", directory, entry->d_name);
        SMP_GROW(*paths_p, n, room);
        (*paths_p)[n++] = path.data;
    }
    if (stream) {
        (void)closedir(stream);
    }
    if (n > 0) {
        qsort(*paths_p, n, sizeof **paths_p, by_name);
    }
    return n;
}

/* Learned positions may be too few. */
static smp_status search(smp_job *job, smp_errors *errors, smp_plan **plan_p)
{
    smp_plan_options options;
    smp_status status;

    smp_plan_options_init(&options);
    smp_settings_init(&job->settings);
    job->batch = (smp_batch){.seq_len = SEQ_LEN, .global_batch = GLOBAL_BATCH};
    status = smp_plan_search(job, &options, errors, plan_p);
    if (status == SMP_INPUT) {
        smp_errors_clear(errors);
        job->batch.seq_len = SHORT_SEQ_LEN;
        status = smp_plan_search(job, &options, errors, plan_p);
    }
    return status;
}

static double bench_size(const smp_model *model, uint32_t gpus, smp_errors *errors)
{
    smp_cluster *cluster = NULL;
    smp_profile *profile = NULL;
    smp_plan *plan = NULL;
    smp_job job = { .model = model };
    double start = cpu_s(), seconds;
    smp_status status = smp_cluster_read("dgx-h100", errors, &cluster);

    if (status == SMP_OK) {
        status = smp_cluster_set_gpus(cluster, gpus, errors);
    }
    if (status == SMP_OK) {
        status = smp_profile_read_for(cluster, errors, &profile);
    }
    job.cluster = cluster;
    job.profile = profile;
    if (status == SMP_OK) {
        status = search(&job, errors, &plan);
    }
    seconds = cpu_s() - start;
    if (plan) {
        const smp_search_info *info = smp_plan_search_info(plan);

        printf("  %5.2f s %7llu %5llu%s", seconds, (unsigned long long)info->enumerated,
               (unsigned long long)info->evaluated, status == SMP_OK ? " " : "-");
    } else {
        printf("  %5.2f s %14s", seconds, "refused");
    }
    smp_plan_destroy(plan);
    smp_profile_destroy(profile);
    smp_cluster_destroy(cluster);
    smp_errors_clear(errors);
    return seconds;
}

static double bench_model(const char *path, smp_errors *errors)
{
    static const uint32_t sizes[] = { 8, 64, 1024 };
    smp_model *model = NULL;
    const char *name = strrchr(path, '/') + 1;
    double most = 0;

    printf("%-46.*s", (int)strcspn(name, "\n") - 5, name);
    if (smp_model_read(path, errors, &model) != SMP_OK) {
        printf("  the model is refused\n");
        smp_errors_clear(errors);
        return 0;
    }
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        double seconds = bench_size(model, sizes[i], errors);

        most = seconds > most ? seconds : most;
    }
    printf("\n");
    (void)fflush(stdout);
    smp_model_destroy(model);
    return most;
}

int main(int argc, char **argv)
{
    const char *data = argc > 1 ? argv[1] : getenv("SMP_SHARED_DATA");
    smp_errors *errors = smp_errors_create();
    char **paths = NULL;
    size_t n = list_models(data ? data : "../shared/data", argc > 2 ? argv[2] : "", &paths);
    double most = 0;

    printf("smp-plan on dgx-h100, %d x %d tokens a step: processor time, candidates, simulated;"
           " -: nothing fits\n%-46s  %-23s %-23s %s\n", GLOBAL_BATCH, SEQ_LEN, "", "  8 GPUs",
           "  64 GPUs", "  1024 GPUs");
    for (size_t i = 0; i < n; i++) {
        double seconds = bench_model(paths[i], errors);

        most = seconds > most ? seconds : most;
        free(paths[i]);
    }
    printf("%zu models; the longest search took %.2f s of processor time\n", n, most);
    if (n == 0) {
        printf("no models: the shared data are not there\n");
    }
    free(paths);
    smp_errors_destroy(errors);
    return 0;
}
