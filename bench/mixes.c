/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Configurations priced a second, to the end: time and peak memory of mixes of checkpointed
 * and offloaded layers (src/plan/mix.h) of Llama-3.1-405B on 16,384 H100, on one core.  A
 * sample of what is priced is lowered and simulated whole, as smp-sim does, and both must agree
 * to the picosecond and the byte.  What fits but has no time (no pass of it is steady,
 * src/sim/steady.h) is counted apart.  A report, not a test.
 *
 *     make bench/mixes && bench/mixes [SECONDS [MODEL CLUSTER GPUS SEQ BATCH]]
 */
#include "config.h"

#include "plan/mix.h"

#include "base/numeric.h"
#include "cost/cost.h"
#include "sim/peaks.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct tally {
    uint64_t refused, unknown, too_large, untimed, feasible;
    uint64_t checked, wrong;
    double all_s, cold_s, warm_s; /* the last two: feasible ones only */
    /* feasible ones of a family; heap */
    smp_point *points;
    size_t n_point, room;
} tally;

static double cpu_s(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

/* The whole job, lowered and simulated. */
static void check(const smp_job *job, const smp_mix *mix, smp_errors *errors, tally *t)
{
    smp_report report;
    t->checked++;
    if (smp_evaluate(job, false, errors, &report, NULL, NULL) != SMP_OK) {
        t->wrong++;
        return;
    }
    const smp_memory *memory = &report.memory;
    t->wrong += report.step_ps != mix->step_ps || memory->arena_bytes != mix->arena_bytes ||
                memory->peaks[smp_peaks_most(memory, false)].device_bytes != mix->device_bytes ||
                memory->peaks[smp_peaks_most(memory, true)].host_bytes_per_node !=
                    mix->host_bytes;
}

static void price(smp_mixes *mixes, const smp_job *job, const smp_point *point,
                  smp_errors *errors, tally *t)
{
    bool known = false;
    smp_mix mix;
    if (smp_mix_price(mixes, job, SMP_MIX_STEP, errors, &mix, &known) != SMP_OK || !known) {
        t->unknown++;
        return;
    }
    if ((double)mix.device_bytes > job->cluster->memory_bytes.value ||
        (double)mix.host_bytes > job->cluster->host_memory_bytes.value) {
        t->too_large++;
        return;
    }
    if (mix.step_ps < 0) {
        t->untimed++;
        return;
    }
    t->feasible++;
    SMP_GROW(t->points, t->n_point, t->room);
    t->points[t->n_point++] = *point;
}

/* All mixes of one point, whose checkpointing and leaf digits are 0. */
static void price_family(smp_mixes *mixes, const smp_plan_space *space, smp_point point,
                         smp_errors *errors, tally *t)
{
    for (uint32_t k = 0; k < space->n_choice[SMP_DIM_CHECKPOINTING]; k++) {
        smp_job mesh, job;
        point.digit[SMP_DIM_CHECKPOINTING] = k;
        if (!smp_plan_space_mesh(space, &point, &mesh)) {
            t->refused++;
            continue;
        }
        do {
            if (smp_plan_space_leaf(space, &point, &mesh, &job)) {
                price(mixes, &job, &point, errors, t);
            } else {
                t->refused++;
            }
        } while (smp_plan_space_next(space, &point, SMP_DIM_LEAF, SMP_DIMS));
    }
}

/* The feasible ones again, and nothing else: the seconds that takes. */
static double price_again(smp_mixes *mixes, const smp_plan_space *space, smp_errors *errors,
                          tally *t)
{
    enum { CHECK_EVERY = 20011 };
    const double start_s = cpu_s();
    smp_mix mix = {0};
    smp_job mesh = {0}, job = {0};
    bool known = false;
    uint32_t k = UINT32_MAX;
    for (size_t i = 0; i < t->n_point; i++) {
        if (t->points[i].digit[SMP_DIM_CHECKPOINTING] != k) {
            (void)smp_plan_space_mesh(space, &t->points[i], &mesh);
            k = t->points[i].digit[SMP_DIM_CHECKPOINTING];
        }
        (void)smp_plan_space_leaf(space, &t->points[i], &mesh, &job);
        t->unknown +=
            smp_mix_price(mixes, &job, SMP_MIX_STEP, errors, &mix, &known) != SMP_OK || !known;
    }
    const double used_s = cpu_s() - start_s;
    if (t->n_point > 0 && t->feasible / CHECK_EVERY > t->checked) {
        check(&job, &mix, errors, t);
    }
    return used_s;
}

/* The next point whose checkpointing and leaf digits are 0. */
static bool next_family(const smp_plan_space *space, smp_point *point)
{
    return smp_plan_space_next(space, point, SMP_DIM_MESH, SMP_DIM_LEAF) ||
           smp_plan_space_next(space, point, SMP_DIM_ACCUMULATION, SMP_DIM_MESH) ||
           smp_plan_space_next(space, point, 0, SMP_DIM_CHECKPOINTING);
}

/* Points of families with a legal configuration, in an order that has no system; heap. */
static size_t list_families(const smp_plan_space *space, smp_point **points_p)
{
    size_t n = 0, room = 0;
    smp_point point = {{0}};
    smp_job job;
    do {
        if (smp_plan_space_mesh(space, &point, &job)) {
            SMP_GROW(*points_p, n, room);
            (*points_p)[n++] = point;
        }
    } while (next_family(space, &point));
    for (size_t i = n; i > 1; i--) {
        uint32_t words[4];
        smp_random4(1, 0, i, words);
        const size_t other = words[0] % i;
        const smp_point kept = (*points_p)[i - 1];
        (*points_p)[i - 1] = (*points_p)[other];
        (*points_p)[other] = kept;
    }
    return n;
}

static void bench(const smp_job *job, double limit_s, smp_errors *errors)
{
    smp_plan_space *space = smp_plan_space_create(job, true);
    smp_mixes *mixes = smp_mixes_create();
    smp_point *points = NULL;
    const size_t n = list_families(space, &points);
    tally t = {0};
    size_t families = 0;
    smp_mixes *again = smp_mixes_create();
    while (families < n && t.all_s + t.cold_s + t.warm_s < limit_s) {
        const double start_s = cpu_s();
        price_family(mixes, space, points[families++], errors, &t);
        t.all_s += cpu_s() - start_s;
        t.cold_s += price_again(again, space, errors, &t);
        t.warm_s += price_again(again, space, errors, &t);
        t.n_point = 0;
    }
    const uint64_t priced = t.feasible + t.untimed + t.too_large;
    printf("%s, %u GPUs: %llu of %llu families\n", job->model->name, job->cluster->gpus,
           (unsigned long long)families, (unsigned long long)n);
    printf("  all: %.2f s of processor time for %llu configurations (%.0f/s), of which %llu are "
           "too large\n  and %llu without a time; %llu refused by rules, %llu not put together; "
           "%llu programs lowered\n", t.all_s, (unsigned long long)priced,
           (double)priced / t.all_s, (unsigned long long)t.too_large,
           (unsigned long long)t.untimed, (unsigned long long)t.refused,
           (unsigned long long)t.unknown, (unsigned long long)smp_mixes_lowered(mixes));
    printf("  the %llu feasible ones: %.2f s with the %llu programs lowered for them (%.0f/s), "
           "%.2f s when\n  these are there (%.0f/s)\n", (unsigned long long)t.feasible, t.cold_s,
           (unsigned long long)smp_mixes_lowered(again), (double)t.feasible / t.cold_s,
           t.warm_s, (double)t.feasible / t.warm_s);
    printf("  %llu of them simulated whole: %llu differ\n", (unsigned long long)t.checked,
           (unsigned long long)t.wrong);
    smp_mixes_destroy(again);
    free(t.points);
    free(points);
    smp_mixes_destroy(mixes);
    smp_plan_space_destroy(space);
}

int main(int argc, char **argv)
{
    const double limit_s = argc > 1 ? atof(argv[1]) : 10;
    const char *model_name = argc > 6 ? argv[2] : "Llama-3.1-405B";
    const char *cluster_name = argc > 6 ? argv[3] : "dgx-h100";
    const long gpus = argc > 6 ? strtol(argv[4], NULL, 10) : 16384;
    smp_job job = {.batch = {.seq_len = 8192, .global_batch = 2048}};
    smp_errors *errors = smp_errors_create();
    smp_model *model = NULL;
    smp_cluster *cluster = NULL;
    smp_profile *profile = NULL;
    if (argc > 6) {
        job.batch = (smp_batch){.seq_len = strtoull(argv[5], NULL, 10),
                                .global_batch = strtoull(argv[6], NULL, 10)};
    }
    if (smp_model_read(model_name, errors, &model) != SMP_OK ||
        smp_cluster_read(cluster_name, errors, &cluster) != SMP_OK ||
        smp_cluster_set_gpus(cluster, (uint32_t)gpus, errors) != SMP_OK ||
        smp_profile_read_for(cluster, errors, &profile) != SMP_OK) {
        smp_errors_print(errors, "bench/mixes", stderr);
        return 1;
    }
    job.model = model;
    job.cluster = cluster;
    job.profile = profile;
    smp_settings_init(&job.settings);
    bench(&job, limit_s, errors);
    smp_profile_destroy(profile);
    smp_cluster_destroy(cluster);
    smp_model_destroy(model);
    smp_errors_destroy(errors);
    return 0;
}
