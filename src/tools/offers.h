/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The clusters and numbers of GPUs that a command line of smp-plan names.
 */
#ifndef SMP_TOOLS_OFFERS_H
#define SMP_TOOLS_OFFERS_H

#include "tools/cli.h"
#include "tools/quantity.h"

/* Options as given; nodes and gpus: none, one for all clusters, or one for each in order. */
typedef struct cli_places { cli_list clusters, nodes, gpus; } cli_places;

#define CLI_PLACE_OPTIONS(type, field)                                                        \
    CLI_LIST("cluster", 'c', "C", type, field.clusters,                                       \
             "a cluster file or a name under configs/clusters; repeated: clusters to "        \
             "compare"),                                                                      \
    CLI_LIST("nodes", 'n', "LIST", type, field.nodes,                                         \
             "nodes to use: N, or several to compare: 8,16,32 or 8..32 or 8..32/8; once "     \
             "for all clusters, or once for each"),                                           \
    CLI_LIST("gpus", 'g', "LIST", type, field.gpus,                                           \
             "the same in GPUs, filling nodes in order")

typedef struct cli_offers {
    cli_inputs *inputs; /* of each cluster */
    cli_counts *counts; /* of GPUs; n 0: all */
    smp_offer *offers;
    size_t n;
    bool compare;       /* more than one cluster or number of GPUs */
} cli_offers;

/* Reads model, clusters and profiles.  `all`: where no number is given, every number of GPUs
 * is to be compared, else the cluster is used as it is. */
SMP_CHECK smp_status cli_offers_read(const cli_job *job, const cli_places *places, bool all,
                                     smp_errors *errors, cli_offers *offers_p);
void cli_offers_free(cli_offers *offers);

#endif
