/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A (max, +) matrix, made to be applied: out[i] = max over j of m[i][j] + in[j].
 *
 * In doubles, of which processors have a maximum: whole numbers below 2^53 and their sums are
 * exact.  Rows lie in blocks of SMP_MAP_BLOCK, a block column by column.
 */
#ifndef SMP_PLAN_MAP_H
#define SMP_PLAN_MAP_H

#include "base/arena.h"

#include <stdint.h>

#define SMP_MAP_NEVER (INT64_MIN / 4) /* an entry of minus infinity */
static const double smp_map_most = 9007199254740992.0; /* 2^53: from here on not exact */
enum { SMP_MAP_BLOCK = 8 };

typedef struct smp_map { uint32_t n_out, n_in; const double *at; } smp_map;

/* entries[i * n_in + j], in the arena; n_in is 1 or more. */
smp_map smp_map_create(smp_arena *arena, uint32_t n_out, uint32_t n_in,
                       const int64_t *entries);
/* `out` has room for n_out, rounded up to whole blocks; it is not `in`. */
void smp_map_apply(const smp_map *map, const double *in, double *out);

#endif
