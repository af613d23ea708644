/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Predicted against measured: what smp-exec --compare prints.
 */
#ifndef SMP_COMPARE_COMPARE_H
#define SMP_COMPARE_COMPARE_H

#include "exec/exec.h"

/* Simulates the job's step and prints it beside the measured one: tasks by time, the step,
 * memory. */
SMP_CHECK smp_status smp_compare(const smp_job *job, const smp_exec_result *result,
                                  FILE *stream, smp_errors *errors);

#endif
