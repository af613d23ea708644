/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Points of the fine space: all of the space that is not fine, and of the rest the sparing
 * ones, which save no more activations than they must.  A point is sparing where it would not
 * fit with one layer fewer checkpointed, nor with one fewer offloaded, all else being equal.
 * Each of these saves memory and, where nothing slows anything, never time; so the others are
 * hardly worth anything, and are not in the space.
 */
#ifndef SMP_PLAN_SPARING_H
#define SMP_PLAN_SPARING_H

#include "plan/mix.h"

typedef struct smp_pricing {
    const smp_plan_space *space;
    smp_mixes *mixes;       /* NULL: everything is simulated */
    uint64_t limit_bytes;   /* of a device */
} smp_pricing;

typedef struct smp_price {
    bool legal;             /* else nothing else is said */
    bool fits;
    bool known;             /* by smp_mix_price */
    int64_t step_ps;        /* -1: not known, or not asked for */
    int64_t alone_ps;       /* where nothing slows anything; -1: not asked for */
    uint64_t device_bytes;
    uint32_t offloaded;     /* layers */
} smp_price;

/* `times` as of smp_mix_price. */
SMP_CHECK smp_status smp_price_point(const smp_pricing *pricing, const smp_point *point,
                                     unsigned times, smp_errors *errors, smp_price *price_p);
/* Whether a point offloads anything. */
bool smp_offloads(const smp_plan_space *space, const smp_point *point);
/* Whether the mesh with one layer fewer checkpointed fits, with nothing offloaded. */
SMP_CHECK smp_status smp_fits_with_fewer_layers(const smp_pricing *pricing,
                                                const smp_point *mesh, smp_errors *errors,
                                                bool *fits_p);
/* Of a point that fits, whether it is in the fine space. */
SMP_CHECK smp_status smp_is_sparing(const smp_pricing *pricing, const smp_point *point,
                                    smp_errors *errors, bool *is_p);
/* The point with all layers offloaded, which becomes *point. */
SMP_CHECK smp_status smp_price_coarse(const smp_pricing *pricing, smp_point *point,
                                      smp_errors *errors, smp_price *price_p);
/* The sparing point among those that differ from this in the number of layers offloaded only;
 * *found_p false: there is none. */
SMP_CHECK smp_status smp_find_sparing(const smp_pricing *pricing, smp_point *point,
                                      smp_errors *errors, smp_price *price_p, bool *found_p);

#endif
