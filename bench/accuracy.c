/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Predictions held against published training runs: for each row of the tables predicted,
 * measured and error of step time and peak memory, then by source and over all; and the
 * verdicts of what fits.  A report, not a test.
 *
 * Every software has one efficiency, found on every second of its rows; times are reported
 * without it on all rows, and with it on the others.
 *
 *     make bench/accuracy && bench/accuracy [--plot FILE.svg|FILE.png] [DATA]
 *
 * DATA holds published/training_*.json and models/; default: $SMP_SHARED_DATA, else
 * ../shared/data.  How to read the report, and what it says today: docs/accuracy.md.
 */
#include "config.h"

#include "bench/accuracy.h"

#include "base/gnuplot.h"
#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One number of a row against what was measured; ALONE: time with efficiency 1. */
typedef enum quantity { ALONE, TIME, MEMORY } quantity;

typedef struct options { const char *data, *plot; } options;

/* Predicted / measured - 1 of rows that were chosen; heap. */
typedef struct errors_list { double *e; size_t n, capacity; } errors_list;

static bool has(const published *p, quantity q)
{
    return p->reason == NULL && (q == MEMORY ? p->measured_bytes : p->measured_s) > 0;
}

static double ratio(const published *p, quantity q)
{
    return q == ALONE  ? p->alone_s / p->measured_s
           : q == TIME ? p->predicted_s / p->measured_s
                       : p->predicted_bytes / p->measured_bytes;
}

static bool stated(const published *p)
{
    return *p->unstated == '\0';
}

/* ------------------------------------------------------------- statistics */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Linear between order statistics; `values` is sorted by this call. */
static double quantile(double *values, size_t n, double q)
{
    if (n == 0) {
        return (double)NAN;
    }
    qsort(values, n, sizeof *values, by_value);
    const double at = q * (double)(n - 1);
    const size_t i = (size_t)at;
    const double next = i + 1 < n ? values[i + 1] : values[i];
    return values[i] + (at - (double)i) * (next - values[i]);
}

typedef struct summary { size_t n; double median, p90, within, bias; } summary;

static void add_error(errors_list *list, double error)
{
    SMP_GROW(list->e, list->n, list->capacity);
    list->e[list->n++] = error;
}

static summary summarize(errors_list *list)
{
    summary s = {.n = list->n, .bias = quantile(list->e, list->n, 0.5)};
    size_t near = 0;

    for (size_t i = 0; i < list->n; i++) {
        list->e[i] = fabs(list->e[i]);
        near += list->e[i] <= 0.2;
    }
    s.median = quantile(list->e, list->n, 0.5);
    s.p90 = quantile(list->e, list->n, 0.9);
    s.within = list->n > 0 ? (double)near / (double)list->n : (double)NAN;
    free(list->e);
    *list = (errors_list){0};
    return s;
}

/* Which rows a summary is about. */
typedef struct choice {
    const char *source;  /* NULL: all */
    const char *stack;   /* NULL: all */
    bool all;            /* also rows that leave something unstated */
    bool others;         /* without rows on which an efficiency was found */
} choice;

static bool chosen(const published *p, const choice *c, quantity q)
{
    return has(p, q) && (c->all || stated(p)) && !(c->others && p->finds) &&
           (c->source == NULL || strcmp(c->source, p->source) == 0) &&
           (c->stack == NULL || strcmp(c->stack, p->stack->software) == 0);
}

static summary summarize_rows(const published_list *list, const choice *c, quantity q)
{
    errors_list errors = {0};

    for (size_t i = 0; i < list->n; i++) {
        if (chosen(&list->rows[i], c, q)) {
            add_error(&errors, ratio(&list->rows[i], q) - 1);
        }
    }
    return summarize(&errors);
}

static void print_summary(const char *name, const summary *s)
{
    (void)printf("  %-28s %4zu  %7.1f %7.1f %8.0f %+8.1f\n", name, s->n, 100 * s->median,
                 100 * s->p90, 100 * s->within, 100 * s->bias);
}

/* First row of its source: sources are met in order. */
static bool first_of_source(const published_list *list, size_t i)
{
    return i == 0 || strcmp(list->rows[i].source, list->rows[i - 1].source) != 0;
}

/* By source, their mean, and pooled. */
static void print_sources(const published_list *list, const char *title, quantity q,
                          const choice *which)
{
    summary mean = {0};
    size_t n = 0;

    (void)printf("\n%s, %s\n  %-28s %4s  %7s %7s %8s %8s\n", title,
                 which->all ? "rows with something unstated included"
                            : "rows that state all settings",
                 "source", "rows", "median", "90th", "in 20 %", "bias");
    for (size_t i = 0; i < list->n; i++) {
        choice c = *which;
        c.source = list->rows[i].source;
        if (!first_of_source(list, i)) {
            continue;
        }
        const summary s = summarize_rows(list, &c, q);
        if (s.n == 0) {
            continue;
        }
        print_summary(c.source, &s);
        mean.median += s.median;
        mean.p90 += s.p90;
        mean.within += s.within;
        mean.bias += s.bias;
        mean.n += s.n;
        n++;
    }
    if (n > 0) {
        const double k = 1.0 / (double)n;
        const summary pooled = summarize_rows(list, which, q);
        mean = (summary){mean.n, mean.median * k, mean.p90 * k, mean.within * k, mean.bias * k};
        print_summary("mean over sources", &mean);
        print_summary("pooled", &pooled);
    }
}

/* ---------------------------------------------- efficiency of a software */

/* The efficiency of a software is the median of predicted / measured over every second of its
 * rows in the order of the tables (the first, the third ...), at most 1; it changes all of its
 * rows.  Rows that leave something unstated take no part in finding it. */
static double find_efficiency(published_list *list, const char *software)
{
    const choice c = {.stack = software};
    errors_list found = {0};
    size_t n = 0;

    for (size_t i = 0; i < list->n; i++) {
        if (chosen(&list->rows[i], &c, ALONE) && n++ % 2 == 0) {
            list->rows[i].finds = true;
            add_error(&found, ratio(&list->rows[i], ALONE));
        }
    }
    const double efficiency = found.n > 0 ? quantile(found.e, found.n, 0.5) : 1;
    free(found.e);
    return efficiency < 1 ? efficiency : 1;
}

static void print_efficiency(const published_list *list, const char *software,
                             double efficiency)
{
    const choice others = {.stack = software, .others = true}, all = {.stack = software};
    const summary b = summarize_rows(list, &others, ALONE);
    const summary a = summarize_rows(list, &others, TIME);
    const size_t n = summarize_rows(list, &all, TIME).n;

    if (n > 0) {
        (void)printf("  %-14s %8.3f %6zu %6zu  %7.1f %7.1f %5.0f  %7.1f %7.1f %5.0f\n",
                     software, efficiency, n - a.n, a.n, 100 * b.median, 100 * b.p90,
                     100 * b.within, 100 * a.median, 100 * a.p90, 100 * a.within);
    }
}

static void apply_efficiencies(published_list *list, const char *models, smp_arena *arena)
{
    (void)printf("\nOne efficiency a software: found on every second row, errors of the "
                 "others\n  %-14s %8s %6s %6s  %-21s  %-21s\n  %-14s %8s %6s %6s  %7s %7s "
                 "%5s  %7s %7s %5s\n", "", "", "", "", "     without", "     with",
                 "software", "value", "found", "others", "median", "90th", "20 %", "median",
                 "90th", "20 %");
    for (size_t i = 0; i < list->n; i++) {
        const char *software = list->rows[i].stack->software;
        bool seen = false;
        for (size_t k = 0; k < i; k++) {
            seen = seen || strcmp(list->rows[k].stack->software, software) == 0;
        }
        if (seen) {
            continue;
        }
        const double efficiency = find_efficiency(list, software);
        for (size_t k = i; k < list->n; k++) {
            published *p = &list->rows[k];
            if (p->reason == NULL && strcmp(p->stack->software, software) == 0) {
                published_predict(p, models, efficiency, arena);
            }
        }
        print_efficiency(list, software, efficiency);
    }
}

/* -------------------------------------------------------- what is off */

/* Factors x >= 0 on parts of the predicted time, waiting left as it is, that make measured
 * times out of predicted ones with least squares of relative errors: coordinate descent, each
 * step exact.  They tell which part carries the error and are applied to nothing. */
static void find_factors(const published *const *rows, size_t n, double x[PARTS])
{
    for (int j = 0; j < PARTS; j++) {
        x[j] = 1;
    }
    for (int round = 0; round < 2000; round++) {
        for (int k = 0; k < PART_WAITING; k++) {
            double product = 0, square = 0;
            for (size_t i = 0; i < n; i++) {
                const double a = rows[i]->parts_s[k] / rows[i]->measured_s;
                double rest = 1;
                for (int j = 0; j < PARTS; j++) {
                    rest -= j == k ? 0 : x[j] * rows[i]->parts_s[j] / rows[i]->measured_s;
                }
                product += a * rest;
                square += a * a;
            }
            x[k] = square > 0 && product > 0 ? product / square : 0;
        }
    }
}

static void print_factors(const published *const *rows, size_t n)
{
    double x[PARTS], share[PARTS] = {0};
    errors_list errors = {0};

    find_factors(rows, n, x);
    for (size_t i = 0; i < n; i++) {
        double time = 0;
        for (int j = 0; j < PARTS; j++) {
            time += x[j] * rows[i]->parts_s[j];
            share[j] += 100 * rows[i]->parts_s[j] / rows[i]->predicted_s / (double)n;
        }
        add_error(&errors, time / rows[i]->measured_s - 1);
    }
    const summary s = summarize(&errors);
    (void)printf("  %-14s %-14s %4zu  %4.2f (%2.0f %%)  %4.2f (%2.0f %%)  %4.2f (%2.0f %%)"
                 "  %4.1f\n", rows[0]->stack->name, rows[0]->profile, n, x[PART_MATMUL],
                 share[PART_MATMUL], x[PART_ATTENTION], share[PART_ATTENTION],
                 x[PART_MEMORY], share[PART_MEMORY], 100 * s.median);
}

/* Groups of one stack on one GPU with rows enough to tell parts apart. */
static void print_parts(const published_list *list)
{
    enum { ENOUGH = 20 };
    const published **rows = smp_heap_alloc(list->n, sizeof(published *));

    (void)printf("\nFactors on parts of the time that would meet the measured ones (share of "
                 "the prediction)\n  %-14s %-14s %4s  %-11s  %-11s  %-11s  %s\n", "stack",
                 "GPU", "rows", "products", "attention", "other", "left, %");
    for (size_t i = 0; i < list->n; i++) {
        const published *a = &list->rows[i];
        size_t n = 0;
        bool first = has(a, TIME);
        for (size_t k = 0; first && k < list->n; k++) {
            const published *b = &list->rows[k];
            if (has(b, TIME) && b->stack == a->stack && strcmp(b->profile, a->profile) == 0) {
                first = k >= i;
                rows[n++] = b;
            }
        }
        if (first && n >= ENOUGH) {
            print_factors(rows, n);
        }
    }
    free(rows);
}

/* ------------------------------------------------------------------ rows */

static void print_pair(double predicted, double measured, double unit)
{
    if (measured > 0) {
        (void)printf(" %8.3f %8.3f %+6.1f", measured / unit, predicted / unit,
                     100 * (predicted / measured - 1));
    } else {
        (void)printf(" %8s %8.3f %6s", "-", predicted / unit, "");
    }
}

static void print_row(const published *p)
{
    print_pair(p->predicted_s, p->measured_s, 1);
    if (p->measured_s > 0) {
        (void)printf(" %+6.1f%c", 100 * (p->alone_s / p->measured_s - 1), p->finds ? '*' : ' ');
    } else {
        (void)printf(" %6s ", "");
    }
    (void)printf(" %4.0f ", 100 * p->idle_frac);
    print_pair(p->predicted_bytes, p->measured_bytes, 1073741824.0);
    (void)printf(" %s %s%s%s%s%s%s\n", p->fits ? "yes" : "NO ", p->id,
                 *p->unstated ? " [unstated: " : "", p->unstated, *p->unstated ? "]" : "",
                 *p->beside ? " beside: " : "", p->beside);
}

static void print_rows(const published_list *list, bool with_all)
{
    (void)printf("\n%s\n %8s %8s %6s %6s  %4s  %8s %8s %6s fit row\n",
                 with_all ? "Rows that state all settings (s, % off, % off with efficiency 1, "
                            "% waiting; GiB, % off)\n*: an efficiency was found on it"
                          : "Rows that leave settings unstated",
                 "measured", "model", "%", "alone", "idle", "measured", "model", "%");
    for (size_t i = 0; i < list->n; i++) {
        const published *p = &list->rows[i];
        if (p->reason == NULL && stated(p) == with_all) {
            print_row(p);
        }
    }
}

static void print_reasons(const published_list *list)
{
    size_t expressed = 0;

    for (size_t i = 0; i < list->n; i++) {
        expressed += list->rows[i].reason == NULL;
    }
    (void)printf("%zu rows, %zu expressed; the others:\n", list->n, expressed);
    for (size_t i = 0; i < list->n; i++) {
        const char *reason = list->rows[i].reason;
        size_t n = 0, first = i;
        for (size_t k = 0; reason != NULL && k < list->n; k++) {
            const bool same = list->rows[k].reason && !strcmp(list->rows[k].reason, reason);
            n += same;
            first = same && k < first ? k : first;
        }
        if (n > 0 && first == i) {
            (void)printf("  %4zu  %s\n", n, reason);
        }
    }
}

/* How often the measured time lies in the predicted interval, on rows that state everything and
 * on which no efficiency was found. */
static void print_intervals(const published_list *list)
{
    const choice others = {.others = true};
    size_t n = 0, inside = 0;

    for (size_t i = 0; i < list->n; i++) {
        const published *p = &list->rows[i];
        if (chosen(p, &others, TIME)) {
            n++;
            inside += p->measured_s >= p->low_s && p->measured_s <= p->high_s;
        }
    }
    if (n > 0) {
        (void)printf("\nMeasured times inside the predicted 80 %% interval: %zu of %zu\n",
                     inside, n);
    }
}

/* Rows that ran must fit, rows that ran out of memory must not. */
static void print_verdicts(const published_list *list)
{
    size_t count[2][2] = {{0}};

    for (size_t i = 0; i < list->n; i++) {
        const published *p = &list->rows[i];
        if (p->reason == NULL) {
            count[p->out_of_memory][p->fits]++;
        }
    }
    (void)printf("\nVerdicts\n  ran: %zu predicted to fit, %zu not\n"
                 "  out of memory: %zu predicted to fit, %zu not\n",
                 count[0][1], count[0][0], count[1][1], count[1][0]);
    for (size_t i = 0; i < list->n; i++) {
        const published *p = &list->rows[i];
        if (p->reason == NULL && p->fits == p->out_of_memory) {
            (void)printf("  wrong: %s\n", p->id);
        }
    }
}

/* ------------------------------------------------------------------ plot */

/* One block a source that has points, for gnuplot's index: its name, then measured and
 * predicted of time and of memory, "NaN" where not measured. */
static void write_points(const published_list *list, FILE *stream)
{
    const char *source = NULL;

    for (size_t i = 0; i < list->n; i++) {
        const published *p = &list->rows[i];
        if (p->reason != NULL) {
            continue;
        }
        if (source == NULL || strcmp(source, p->source) != 0) {
            (void)fprintf(stream, "%s\"%s\"\nNaN NaN NaN NaN\n", source ? "\n\n" : "",
                          p->source);
            source = p->source;
        }
        const double time = p->measured_s > 0 ? p->measured_s : (double)NAN;
        const double bytes = p->measured_bytes > 0 ? p->measured_bytes : (double)NAN;
        (void)fprintf(stream, "%.6g %.6g %.6g %.6g\n", time, p->predicted_s,
                      bytes / 1073741824.0, p->predicted_bytes / 1073741824.0);
    }
}

static smp_status plot(const published_list *list, const char *path, smp_errors *errors)
{
    static const char *const no_args[] = {NULL};
    char data[1024];
    smp_file *file = NULL;

    const int n = snprintf(data, sizeof data, "%s.dat", path);
    if (n < 0 || (size_t)n >= sizeof data) {
        return smp_fail(errors, SMP_INPUT, NULL, "%.80s...: the path is too long", path);
    }
    smp_status status = smp_file_create(data, errors, &file);
    if (status == SMP_OK) {
        write_points(list, smp_file_stream(file));
        status = smp_file_commit(file, errors);
    }
    return status == SMP_OK ? smp_plot_run("accuracy.gp", data, path, no_args, errors) : status;
}

/* ------------------------------------------------------------------ main */

static void print_all_sources(const published_list *list)
{
    const choice stated_rows = {0}, others = {.others = true}, all = {.all = true};

    print_sources(list, "Step time with efficiency 1", ALONE, &stated_rows);
    print_sources(list, "Step time of rows on which nothing was found", TIME, &others);
    print_sources(list, "Step time", TIME, &stated_rows);
    print_sources(list, "Step time", TIME, &all);
    print_sources(list, "Peak memory", MEMORY, &stated_rows);
    print_sources(list, "Peak memory", MEMORY, &all);
}

static smp_status report(const options *o, smp_arena *arena, smp_errors *errors)
{
    published_list list = {0};
    const char *models = smp_arena_printf(arena, "%s/models", o->data);
    const char *directory = smp_arena_printf(arena, "%s/published", o->data);
    smp_status status = published_read(directory, arena, errors, &list);

    if (status == SMP_OK && list.n == 0) {
        (void)printf("no published runs: %s holds none\n", directory);
    }
    for (size_t i = 0; status == SMP_OK && i < list.n; i++) {
        if (list.rows[i].reason == NULL) {
            published_predict(&list.rows[i], models, 1, arena);
            list.rows[i].alone_s = list.rows[i].predicted_s;
        }
    }
    if (status == SMP_OK && list.n > 0) {
        print_reasons(&list);
        print_parts(&list);
        apply_efficiencies(&list, models, arena);
        print_rows(&list, true);
        print_rows(&list, false);
        print_all_sources(&list);
        print_intervals(&list);
        print_verdicts(&list);
    }
    if (status == SMP_OK && list.n > 0 && o->plot != NULL) {
        status = plot(&list, o->plot, errors);
    }
    published_destroy(&list);
    return status;
}

static options read_options(int argc, char **argv)
{
    options o = {.data = getenv("SMP_SHARED_DATA")};

    o.data = o.data ? o.data : "../shared/data";
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--plot") == 0 && i + 1 < argc) {
            o.plot = argv[++i];
        } else {
            o.data = argv[i];
        }
    }
    return o;
}

int main(int argc, char **argv)
{
    const options o = read_options(argc, argv);
    smp_errors *errors = smp_errors_create();
    smp_arena *arena = smp_arena_create();
    smp_status status = o.plot ? smp_plot_check(o.plot, errors) : SMP_OK;

    if (status == SMP_OK) {
        status = report(&o, arena, errors);
    }
    smp_errors_print(errors, "bench/accuracy", stderr);
    smp_arena_destroy(arena);
    smp_errors_destroy(errors);
    return (int)status;
}
