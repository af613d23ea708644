/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The least squares behind a fit.
 *
 * Lattice: minimise  sum w (y - B g)^2 + s sum (second differences of g)^2 + small terms, where
 * B holds the corner weights of each row.  w are Tukey's bisquare weights of the residuals,
 * found again in each of a few rounds, so that a row that is plainly off does not bend the
 * surface.  Second differences are divided by the distance of their knots, so that unequal
 * knots bend alike; first differences and a ridge, both far smaller, decide where no row is
 * near: the surface then goes on flat, and to 0.
 */
#include "config.h"

#include "cost/fit_make.h"

#include <gsl/gsl_errno.h>
#include <gsl/gsl_linalg.h>
#include <gsl/gsl_multifit_nlinear.h>
#include <gsl/gsl_sort.h>
#include <gsl/gsl_statistics_double.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 4, CORNERS = 1 << SMP_FIT_AXES };
static const double first_share = 0.02; /* of the stiffness */
static const double ridge = 1e-4;
static const double tukey = 4.685;      /* 95 % efficient for normal residuals */
static const double least_weight = 0.02;

typedef struct solver {
    uint32_t n;          /* values */
    gsl_matrix *smooth;  /* the penalties' normal matrix */
    gsl_matrix *normal;
    gsl_vector *right, *g;
} solver;

static void add_outer(gsl_matrix *a, const uint32_t *index, const double *c, int n, double s)
{
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            *gsl_matrix_ptr(a, index[i], index[j]) += s * c[i] * c[j];
        }
    }
}

/* Penalties along axis d on the line that starts at value `first`. */
static void add_line(solver *s, const smp_fit_axis *axis, uint32_t first, uint32_t stride,
                     double stiffness)
{
    for (uint32_t j = 0; j + 1 < axis->n; j++) {
        const double h = axis->at[j + 1] - axis->at[j];
        const uint32_t pair[] = {first + j * stride, first + (j + 1) * stride};
        const double slope[] = {-1.0 / h, 1.0 / h};
        add_outer(s->smooth, pair, slope, 2, first_share * stiffness * h);
        if (j + 2 >= axis->n) {
            break;
        }
        const double h2 = axis->at[j + 2] - axis->at[j + 1];
        const double mean = 0.5 * (h + h2);
        const uint32_t three[] = {pair[0], pair[1], first + (j + 2) * stride};
        const double bend[] = {1.0 / h, -1.0 / h - 1.0 / h2, 1.0 / h2};
        add_outer(s->smooth, three, bend, 3, stiffness * mean);
    }
}

static void add_penalties(solver *s, const smp_fit *fit, double stiffness)
{
    uint32_t stride = s->n;
    for (uint32_t d = 0; d < fit->n_axis; d++) {
        const uint32_t block = stride;
        stride /= fit->axis[d].n;
        for (uint32_t v = 0; v < s->n; v++) {
            if (v % block < stride) {
                add_line(s, &fit->axis[d], v, stride, stiffness);
            }
        }
    }
    for (uint32_t v = 0; v < s->n; v++) {
        *gsl_matrix_ptr(s->smooth, v, v) += ridge;
    }
}

/* Median of |r|, as the standard deviation of a normal distribution. */
static double scale_of(const double *r, size_t n, double *work)
{
    for (size_t i = 0; i < n; i++) {
        work[i] = fabs(r[i]);
    }
    gsl_sort(work, 1, n);
    return 1.4826 * gsl_stats_median_from_sorted_data(work, 1, n) + 1e-9;
}

static void solve_round(solver *s, const uint32_t *index, const double *corner,
                        uint32_t n_corner, const double *y, const double *w, size_t n)
{
    gsl_matrix_memcpy(s->normal, s->smooth);
    gsl_vector_set_zero(s->right);
    for (size_t i = 0; i < n; i++) {
        const uint32_t *at = index + i * CORNERS;
        const double *c = corner + i * CORNERS;
        for (uint32_t a = 0; a < n_corner; a++) {
            if (c[a] == 0.0) {
                continue;
            }
            *gsl_vector_ptr(s->right, at[a]) += w[i] * c[a] * y[i];
            for (uint32_t b = 0; b < n_corner; b++) {
                *gsl_matrix_ptr(s->normal, at[a], at[b]) += w[i] * c[a] * c[b];
            }
        }
    }
    (void)gsl_linalg_cholesky_decomp1(s->normal); /* positive: the ridge */
    (void)gsl_linalg_cholesky_solve(s->normal, s->right, s->g);
}

static void weigh(const solver *s, const uint32_t *index, const double *corner,
                  uint32_t n_corner, const double *y, double *w, double *r, double *work,
                  size_t n)
{
    for (size_t i = 0; i < n; i++) {
        r[i] = y[i];
        for (uint32_t a = 0; a < n_corner; a++) {
            r[i] -= corner[i * CORNERS + a] * gsl_vector_get(s->g, index[i * CORNERS + a]);
        }
    }
    const double scale = tukey * scale_of(r, n, work);
    for (size_t i = 0; i < n; i++) {
        const double u = r[i] / scale;
        const double inner = 1.0 - u * u;
        w[i] = (fabs(u) < 1.0 ? inner * inner : 0.0) + least_weight;
    }
}

void smp_fit_lattice(smp_fit *fit, smp_arena *arena, const double (*at)[SMP_FIT_AXES],
                     const double *y, size_t n, double stiffness)
{
    const uint32_t n_corner = 1u << fit->n_axis;
    solver s = {.n = smp_fit_n_value(fit)};
    s.smooth = gsl_matrix_calloc(s.n, s.n);
    s.normal = gsl_matrix_alloc(s.n, s.n);
    s.right = gsl_vector_alloc(s.n);
    s.g = gsl_vector_alloc(s.n);
    uint32_t *index = smp_heap_alloc(n * CORNERS, sizeof *index);
    double *corner = smp_heap_alloc(n * CORNERS, sizeof *corner);
    double *w = smp_heap_alloc(n * 3, sizeof *w);
    for (size_t i = 0; i < n; i++) {
        smp_fit_corners(fit, at[i], index + i * CORNERS, corner + i * CORNERS);
        w[i] = 1.0;
    }
    add_penalties(&s, fit, stiffness);
    for (int round = 0; round < ROUNDS; round++) {
        solve_round(&s, index, corner, n_corner, y, w, n);
        weigh(&s, index, corner, n_corner, y, w, w + n, w + 2 * n, n);
    }
    double *values = SMP_ARENA_ARRAY(arena, s.n, double);
    for (uint32_t v = 0; v < s.n; v++) {
        values[v] = gsl_vector_get(s.g, v);
    }
    fit->values = values;
    free(w);
    free(corner);
    free(index);
    gsl_vector_free(s.g);
    gsl_vector_free(s.right);
    gsl_matrix_free(s.normal);
    gsl_matrix_free(s.smooth);
}

/* ------------------------------------------- parameters of dispatch and combine */

enum { P_DISPATCH = 5 };
/* DeepEP reaches 43 to 47 GB/s of a port of 50 (README, H800 with 400 Gb/s InfiniBand): what
 * the rows leave open is taken from there. */
static const double port_prior = 0.9, port_prior_spread = 0.05;

typedef struct dispatch_data {
    const smp_fit_row *const *rows;
    size_t n;
} dispatch_data;

static int dispatch_residuals(const gsl_vector *x, void *data, gsl_vector *f)
{
    const dispatch_data *d = data;
    double p[P_DISPATCH];
    for (size_t i = 0; i < P_DISPATCH; i++) {
        const double bounded = fmin(fmax(gsl_vector_get(x, i), -60.0), 5.0);
        p[i] = exp(bounded);
    }
    for (size_t i = 0; i < d->n; i++) {
        const smp_fit_row *row = d->rows[i];
        const double s = smp_fit_dispatch_s(p, &row->dispatch, row->port_Bps);
        gsl_vector_set(f, i, log(s / row->seconds));
    }
    gsl_vector_set(f, d->n, log(p[4] / port_prior) / port_prior_spread);
    /* how much is handled again between nodes: open when all rows are of one node */
    gsl_vector_set(f, d->n + 1, 0.1 * log(p[3]));
    return GSL_SUCCESS;
}

bool smp_fit_dispatch_parameters(const smp_fit_row *const *rows, size_t n, double *parameters)
{
    static const double start[P_DISPATCH] = {33e-6, 30e-9, 0.4e-12, 0.6, 0.9};
    const dispatch_data data = {rows, n};
    gsl_multifit_nlinear_fdf fdf = {.f = dispatch_residuals, .n = n + 2, .p = P_DISPATCH};
    fdf.params = (void *)(uintptr_t)&data;
    gsl_multifit_nlinear_parameters how = gsl_multifit_nlinear_default_parameters();
    gsl_multifit_nlinear_workspace *work =
        gsl_multifit_nlinear_alloc(gsl_multifit_nlinear_trust, &how, n + 2, P_DISPATCH);
    double x0[P_DISPATCH];
    for (size_t i = 0; i < P_DISPATCH; i++) {
        x0[i] = log(start[i]);
    }
    gsl_vector_view x = gsl_vector_view_array(x0, P_DISPATCH);
    int info = 0;
    int status = gsl_multifit_nlinear_init(&x.vector, &fdf, work);
    if (status == GSL_SUCCESS) {
        status = gsl_multifit_nlinear_driver(200, 1e-8, 1e-8, 1e-8, NULL, NULL, &info, work);
    }
    const gsl_vector *best = gsl_multifit_nlinear_position(work);
    for (size_t i = 0; i < P_DISPATCH; i++) {
        parameters[i] = exp(gsl_vector_get(best, i));
    }
    gsl_multifit_nlinear_free(work);
    return status == GSL_SUCCESS || status == GSL_ENOPROG || status == GSL_EMAXITER;
}
