/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fits: what measured kernels and collectives did, relative to the formulas of src/cost.
 *
 * A fit is a lattice of corrections.  At a point x of its axes (sizes, on a scale of log2)
 *
 *     measured = formula(x) exp(g(x)),   g multilinear between the knots of the lattice,
 *
 * and outside the lattice g keeps the value of the nearest edge: the formula decides how time
 * grows, the fit by how much it was wrong.  Formula and meaning of the axes belong to a kind;
 * docs/costs.md names them.  A fit never changes what NCCL's tuner would choose.
 * Internal to src/cost.
 */
#ifndef SMP_COST_FIT_H
#define SMP_COST_FIT_H

#include "base/json.h"
#include "cost/cost.h"

enum { SMP_FIT_AXES = 4, SMP_FIT_KNOTS = 64, SMP_FIT_VALUES = 8192, SMP_FIT_PARAMETERS = 6 };

typedef struct smp_fit_axis {
    uint32_t n;
    double at[SMP_FIT_KNOTS]; /* log2 of the sizes, ascending */
} smp_fit_axis;

struct smp_fit {
    smp_fit_kind kind;
    uint32_t n_axis;
    smp_fit_axis axis[SMP_FIT_AXES];
    double *values; /* logarithms; the last axis is the fastest */
    double low[SMP_FIT_AXES], high[SMP_FIT_AXES]; /* sizes that were fitted on */
    double parameters[SMP_FIT_PARAMETERS];        /* of the kind's formula, where it has any */
    double spread;     /* relative, 68 % of the held-back rows lie within */
    smp_figure basis;  /* for smp_cost: {median held-back error, where the rows are from} */
};

/* What is fixed about a kind. */
typedef struct smp_fit_info {
    const char *op, *form; /* as in the file */
    uint32_t n_axis;
    const char *axis[SMP_FIT_AXES];
    uint32_t n_parameter;
    const char *parameter[SMP_FIT_PARAMETERS];
} smp_fit_info;
const smp_fit_info *smp_fit_info_of(smp_fit_kind kind);

/* g at a point; sets *outside_p when the point lies outside the range fitted on and leaves it
 * alone otherwise.  No heap, well under a microsecond. */
double smp_fit_log(const smp_fit *fit, const double *sizes, bool *outside_p);
/* Multiplies every factor of the cost by exp(g), and takes over spread and basis. */
void smp_fit_apply(const smp_fit *fit, const double *sizes, smp_cost *cost);

/* The corner weights of a point: 1 << n_axis indices into the values, for the solver. */
void smp_fit_corners(const smp_fit *fit, const double *sizes, uint32_t *index_p,
                     double *weight_p);
uint32_t smp_fit_n_value(const smp_fit *fit);

/* A member of "fits": NULL when it is of no kind that the model uses, or wrong (told). */
const smp_fit *smp_fit_read(const smp_reader *r, smp_arena *arena);
void smp_fit_write(const smp_fit *fit, smp_json_out *out);

#endif
