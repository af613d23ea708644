/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plots through gnuplot: started without a shell, output under its name only when complete.
 */
#ifndef SMP_BASE_GNUPLOT_H
#define SMP_BASE_GNUPLOT_H

#include "smp.h"

/* Runs `gnuplot -c SCRIPT DATA OUTPUT TERMINAL ARGS...` on a script of plots/: OUTPUT is a
 * temporary file that becomes `path` when gnuplot succeeds, TERMINAL "svg" or "png", `args`
 * at most six strings and NULL.  SMP_SYSTEM without gnuplot; the data file stays. */
SMP_CHECK smp_status smp_plot_run(const char *script, const char *data_path, const char *path,
                                  const char *const *args, smp_errors *errors);

#endif
