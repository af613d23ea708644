/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Amounts and lists of numbers as people write them on a command line.
 */
#ifndef SMP_TOOLS_QUANTITY_H
#define SMP_TOOLS_QUANTITY_H

#include "tools/cli.h"

/* A number above 0 with a suffix: 1T, 15.6T, 300B, 2.5M, 10k, 1e12 (B and G are 10^9). */
SMP_CHECK smp_status cli_amount(const char *option, const char *text, smp_errors *errors,
                                double *value_p);
/* A time above 0 with its unit: 30d, 36h, 2w, 90min, 600s. */
SMP_CHECK smp_status cli_duration(const char *option, const char *text, smp_errors *errors,
                                  double *seconds_p);

/* Seconds, alone or with a unit, ms too; 0 is a time. */
SMP_CHECK smp_status cli_seconds(const char *option, const char *text, smp_errors *errors,
                                 double *seconds_p);

/* Rising numbers; `values` is heap memory. */
typedef struct cli_counts { uint32_t *values; size_t n; } cli_counts;
/* "8", "8,16,64", "8..64" (all from 8 to 64), "8..64/8" (every eighth); each above the one
 * before, from 1 to 65536. */
SMP_CHECK smp_status cli_counts_read(const char *option, const char *text, smp_errors *errors,
                                     cli_counts *counts_p);
void cli_counts_free(cli_counts *counts);

#endif
