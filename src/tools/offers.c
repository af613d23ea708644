/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clusters and numbers of GPUs from a command line.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "tools/offers.h"

#include <stdio.h>
#include <stdlib.h>

static smp_status check_lists(const cli_places *places, smp_errors *errors)
{
    const size_t n = places->clusters.count;
    const cli_list *counts = places->nodes.count > 0 ? &places->nodes : &places->gpus;
    const smp_place place = {.file = places->nodes.count > 0 ? "--nodes" : "--gpus"};
    if (places->nodes.count > 0 && places->gpus.count > 0) {
        return smp_fail(errors, SMP_INPUT, NULL, "--nodes and --gpus: give one of them");
    }
    if (counts->count > 1 && counts->count != n) {
        return smp_fail(errors, SMP_INPUT, &place,
                        "given %zu times: must be given once for all clusters, or once for "
                        "each of the %zu", counts->count, n);
    }
    return SMP_OK;
}

/* Numbers of GPUs of one cluster, each of which it must be able to have. */
static smp_status read_counts(const cli_places *places, size_t i, smp_cluster *cluster,
                              smp_errors *errors, cli_counts *counts)
{
    const bool nodes = places->nodes.count > 0;
    const cli_list *list = nodes ? &places->nodes : &places->gpus;
    if (list->count == 0) {
        return SMP_OK;
    }
    smp_status st = cli_counts_read(nodes ? "--nodes" : "--gpus",
                                    list->values[list->count > 1 ? i : 0], errors, counts);
    for (size_t k = 0; st == SMP_OK && k < counts->n; k++) {
        st = nodes ? smp_cluster_set_nodes(cluster, counts->values[k], errors)
                   : smp_cluster_set_gpus(cluster, counts->values[k], errors);
        counts->values[k] = smp_cluster_gpus(cluster);
    }
    return st;
}

static smp_status read_one(const cli_job *job, const cli_places *places, size_t i, bool all,
                           smp_errors *errors, cli_offers *out)
{
    cli_job one = *job;
    cli_inputs *inputs = &out->inputs[i];
    cli_counts *counts = &out->counts[i];
    one.cluster = i < places->clusters.count ? places->clusters.values[i] : NULL;
    smp_status st = cli_job_read(&one, NULL, errors, inputs);
    if (st == SMP_OK) {
        st = read_counts(places, i, inputs->cluster, errors, counts);
    }
    if (st != SMP_OK) {
        return st;
    }
    out->compare = out->compare || counts->n > 1 || (all && counts->n == 0);
    if (!all && counts->n == 0) {
        char text[16];
        snprintf(text, sizeof text, "%u", smp_cluster_gpus(inputs->cluster));
        st = cli_counts_read("--cluster", text, errors, counts);
    }
    out->offers[i] = (smp_offer){&inputs->job, counts->values, counts->n};
    return st;
}

smp_status cli_offers_read(const cli_job *job, const cli_places *places, bool all,
                           smp_errors *errors, cli_offers *offers_p)
{
    /* without a cluster the first one's reader says that it is missing */
    const size_t n = places->clusters.count > 0 ? places->clusters.count : 1;
    cli_offers out = {.n = n, .compare = n > 1};
    smp_status st = check_lists(places, errors);
    if (st != SMP_OK) {
        return st;
    }
    out.inputs = calloc(n, sizeof *out.inputs);
    out.counts = calloc(n, sizeof *out.counts);
    out.offers = calloc(n, sizeof *out.offers);
    if (!out.inputs || !out.counts || !out.offers) {
        st = smp_fail(errors, SMP_SYSTEM, NULL, "out of memory");
    }
    for (size_t i = 0; i < n && st == SMP_OK; i++) {
        st = read_one(job, places, i, all, errors, &out);
    }
    if (st == SMP_OK && (out.compare || all) && job->global_batch == 0) {
        st = smp_fail(errors, SMP_INPUT, NULL,
                      "--global-batch is missing: runs on several numbers of GPUs compare only "
                      "with the same sequences in a step");
    }
    if (st != SMP_OK) {
        cli_offers_free(&out);
        return st;
    }
    for (size_t i = 0; i < n; i++) {
        smp_job_default_batch(&out.inputs[i].job);
    }
    *offers_p = out;
    return SMP_OK;
}

void cli_offers_free(cli_offers *offers)
{
    for (size_t i = 0; i < offers->n; i++) {
        if (offers->inputs) {
            cli_inputs_free(&offers->inputs[i]);
        }
        if (offers->counts) {
            cli_counts_free(&offers->counts[i]);
        }
    }
    free(offers->inputs);
    free(offers->counts);
    free(offers->offers);
    *offers = (cli_offers){0};
}
