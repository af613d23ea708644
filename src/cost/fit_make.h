/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From measured rows to fits: rows of CSV files, the least squares behind a lattice, and how
 * well what was fitted predicts rows that it did not see.  Used by calibration, never by the
 * simulator.  Internal to src/cost, its tests and bench/.
 */
#ifndef SMP_COST_FIT_MAKE_H
#define SMP_COST_FIT_MAKE_H

#include "cost/fit.h"

/* A cluster that rows name, and the profile of its GPU. */
typedef struct smp_fit_place {
    char name[64];
    smp_cluster *cluster;
    smp_profile *profile;
} smp_fit_place;
enum { SMP_FIT_PLACES = 16 };

/* One measurement, with what the formula says of it. */
typedef struct smp_fit_row {
    smp_fit_kind kind;
    double at[SMP_FIT_AXES];
    double seconds, model_s;
    smp_dispatch dispatch;   /* the two kinds whose formula has parameters */
    double port_Bps;
    const smp_fit_place *place; /* collectives: where, over how many nodes */
    uint32_t nodes;
    uint64_t family;         /* rows of one shape: held back together */
    uint32_t source;         /* index in the sources of the set */
    uint64_t digest;
    bool fixed;              /* its family is never held back */
    uint32_t line;
} smp_fit_row;

typedef struct smp_fit_source {
    const char *key, *text; /* "s2" and what it stands for */
} smp_fit_source;

typedef struct smp_fit_set {
    smp_arena *arena;
    smp_fit_row *rows;
    size_t n, capacity;
    smp_fit_source *sources;
    size_t n_source, source_capacity;
    smp_fit_place places[SMP_FIT_PLACES]; /* each read once: many rows name the same */
    size_t n_place;
    uint64_t other_gpu, unused; /* rows left out: of another GPU, of nothing we fit */
} smp_fit_set;
void smp_fit_set_init(smp_fit_set *set);
void smp_fit_set_free(smp_fit_set *set);

/* Adds the rows of a CSV file that are of `gpu` (a name that published tables use, or NULL:
 * the profile's own names).  All wrong rows are told with file:line:column. */
SMP_CHECK smp_status smp_fit_rows_read(const char *path, const smp_profile *profile,
                                       const char *gpu, smp_errors *errors, smp_fit_set *set);
/* The same from text; `name` stands for the file. */
SMP_CHECK smp_status smp_fit_rows_parse(const char *text, size_t n, const char *name,
                                        const smp_profile *profile, const char *gpu,
                                        smp_errors *errors, smp_fit_set *set);

/* Rows of `kind` that a fit is made of, in the order read.  Where several sources measured,
 * the one with most rows decides inside its range and others only add what lies beyond.
 * Returns their number; rows_p: heap memory. */
size_t smp_fit_select(const smp_fit_set *set, smp_fit_kind kind, const smp_fit_row ***rows_p);

/* Error of held-back rows, as shares. */
typedef struct smp_fit_score {
    size_t n;
    double median, p95, p68;
} smp_fit_score;
typedef struct smp_fit_scores {
    smp_fit_score model;   /* the formula without a fit */
    smp_fit_score fitted;  /* rows that the fit has seen */
    smp_fit_score rows;    /* a fifth of the rows held back, five times */
    smp_fit_score shapes;  /* a fifth of the families held back, five times */
} smp_fit_scores;

/* The fit of some rows; spread and basis are left empty.  NULL: too few rows. */
smp_fit *smp_fit_solve(smp_arena *arena, smp_fit_kind kind, const smp_fit_row *const *rows,
                       size_t n);
/* The seconds that a fit, or NULL for the formula alone, gives for a row. */
double smp_fit_predict(const smp_fit *fit, const smp_fit_row *row);
/* Scores, and log(predicted / measured) of the held-back families for each row when
 * residuals is not NULL. */
void smp_fit_validate(smp_fit_kind kind, const smp_fit_row *const *rows, size_t n,
                      smp_fit_scores *scores_p, double *residuals);

/* Least squares of y at the points, robust (Tukey's bisquare), with second differences along
 * each axis kept small: `stiffness` weighs them.  The axes must be set; fills values. */
void smp_fit_lattice(smp_fit *fit, smp_arena *arena, const double (*at)[SMP_FIT_AXES],
                     const double *y, size_t n, double stiffness);
/* Moves the values of a collective's fit as little as needed for time never to fall when the
 * message grows, on the clusters of the rows. */
void smp_fit_make_monotone(smp_fit *fit, const smp_fit_row *const *rows, size_t n);
/* Parameters of dispatch and combine by gsl_multifit_nlinear; false when it does not settle. */
bool smp_fit_dispatch_parameters(const smp_fit_row *const *rows, size_t n, double *parameters);
/* The formula of dispatch and combine, in seconds. */
double smp_fit_dispatch_s(const double *parameters, const smp_dispatch *d, double port_Bps);
void smp_fit_dispatch_at(const smp_dispatch *d, double *at);
/* Experts without a fit, and their place on the axes. */
void smp_cost_experts_model(const smp_profile *profile, const smp_experts *layer,
                            smp_cost *cost_p);
void smp_fit_experts_at(const smp_experts *layer, double *at);

#endif
