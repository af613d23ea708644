/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scalars for TensorBoard: a file of events in a directory.
 */
#ifndef SMP_EXEC_TENSORBOARD_H
#define SMP_EXEC_TENSORBOARD_H

#include "smp.h"

typedef struct smp_board smp_board;

typedef struct smp_board_value {
    const char *tag;
    double value; /* written as fp32 */
} smp_board_value;

/* A new file in the directory, which is made where it is missing.  SMP_SYSTEM when that fails,
 * SMP_INPUT when the program was built without protobuf-c. */
SMP_CHECK smp_status smp_board_create(const char *directory, smp_errors *errors,
                                      smp_board **board_p);
/* One event of `n` values; it is in the file when this returns. */
SMP_CHECK smp_status smp_board_add(smp_board *board, uint64_t step,
                                   const smp_board_value *values, size_t n,
                                   smp_errors *errors);
SMP_CHECK smp_status smp_board_close(smp_board *board, smp_errors *errors); /* NULL is fine */

#endif
