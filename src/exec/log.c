/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines of a run: for people, and as JSON.
 *
 * The file of metrics is written as the run goes, a line at a time, so that it can be followed
 * and a run that is killed leaves what it did.
 */
#include "config.h"

#include "exec/clock.h"
#include "exec/exec.h"
#include "exec/tensorboard.h"

#include "base/arena.h"
#include "base/text.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct smp_log {
    FILE *lines, *metrics;     /* or NULL */
    const char *metrics_path;
    smp_board *board;          /* or NULL */
    uint64_t steps;
    bool terminal, has_bar, scaled;
    double start_s;
};

/* Returns an error number. */
static int close_metrics(smp_log *log)
{
    return log->metrics && log->metrics != stdout && fclose(log->metrics) != 0 ? errno : 0;
}

smp_status smp_log_create(const smp_exec_options *o, smp_errors *errors, smp_log **log_p)
{
    smp_log *log = smp_heap_alloc(1, sizeof *log);

    log->lines = o->log;
    log->steps = o->steps;
    /* mpirun lends every rank a terminal, wherever its own output goes */
    log->terminal = o->log && !o->mpi && isatty(fileno(o->log)) == 1;
    log->start_s = smp_now_s();
    log->metrics_path = o->metrics;
    if (o->metrics) {
        log->metrics = strcmp(o->metrics, "-") == 0 ? stdout : fopen(o->metrics, "we");
        if (!log->metrics) {
            int error = errno;

            free(log);
            return smp_fail(errors, SMP_SYSTEM, &(smp_place){ .file = o->metrics },
                            "cannot be written: %s", strerror(error));
        }
    }
    if (o->tensorboard) {
        smp_status status = smp_board_create(o->tensorboard, errors, &log->board);

        if (status != SMP_OK) {
            close_metrics(log);
            free(log);
            return status;
        }
    }
    *log_p = log;
    return SMP_OK;
}

static void wipe_bar(smp_log *log)
{
    if (log->has_bar) {
        (void)fprintf(log->lines, "\r\033[K");
        log->has_bar = false;
    }
}

/* On a terminal: how far the run is, how long the rest takes at the pace so far, and the
 * memory, which is the same in every step. */
static void draw_bar(smp_log *log, uint64_t done, uint64_t arena_bytes)
{
    enum { WIDTH = 30 };
    char bar[WIDTH + 1];
    double left = (smp_now_s() - log->start_s) / (double)done * (double)(log->steps - done);
    uint64_t filled = done * WIDTH / log->steps;

    if (log->terminal && done < log->steps) {
        memset(bar, '.', WIDTH);
        memset(bar, '#', filled);
        bar[WIDTH] = '\0';
        (void)fprintf(log->lines, "[%s] %llu of %llu, %d:%02d left, %s", bar,
                      (unsigned long long)done, (unsigned long long)log->steps,
                      (int)(left / 60), (int)left % 60, smp_show_bytes(arena_bytes));
        log->has_bar = true;
    }
}

void smp_log_line(smp_log *log, const char *format, ...)
{
    va_list args;

    if (log && log->lines) {
        wipe_bar(log);
        va_start(args, format);
        (void)vfprintf(log->lines, format, args);
        va_end(args);
        (void)fputc('\n', log->lines);
        (void)fflush(log->lines);
    }
}

static smp_status check(smp_log *log, smp_errors *errors)
{
    smp_status status = SMP_OK;

    if (log->lines) {
        status = smp_stream_check(log->lines, "standard output", errors);
    }
    if (status == SMP_OK && log->metrics) {
        status = smp_stream_check(log->metrics, log->metrics_path, errors);
    }
    return status;
}

/* The sign of a NaN says nothing. */
static double shown(double x)
{
    return isnan(x) ? (double)NAN : x;
}

/* JSON has no word for what is not finite. */
static const char *json_number(double x, char text[32])
{
    (void)snprintf(text, 32, "%.9g", x);
    return isfinite(x) ? text : "null";
}

/* In place of the rates of a step that trained. */
static const char *why_skipped(const smp_exec_step *s)
{
    return s->rows_cut > 0 ? "skipped: no room for expert rows" : "skipped: overflow";
}

/* Dynamic ones are powers of two, and large. */
static void show_scale(double scale, char text[32])
{
    int power = 0;
    bool exact = !(frexp(scale, &power) > 0.5) && scale >= 1024;

    if (exact) {
        (void)snprintf(text, 32, "  scale 2^%d", power - 1);
    } else {
        (void)snprintf(text, 32, "  scale %g", scale);
    }
}

static void print_step(smp_log *log, uint64_t step, const smp_exec_step *s,
                       uint64_t arena_bytes)
{
    char scale[32] = "", rates[64];
    int n;

    log->scaled = log->scaled || s->loss_scale > 1 || s->loss_scale < 1;
    if (log->scaled) {
        show_scale(s->loss_scale, scale);
    }
    n = snprintf(rates, sizeof rates, "%.0f tok/s", s->targets / s->seconds);
    if (s->mfu > 0) {
        (void)snprintf(rates + n, sizeof rates - (size_t)n, "  mfu %.*f%%", log->scaled ? 0 : 1,
                       100 * s->mfu);
    }
    wipe_bar(log);
    (void)fprintf(log->lines, "step %llu  loss %#.6g  norm %.4g  lr %.3g%s  %s\n",
                  (unsigned long long)(step + 1), shown(s->loss), shown(s->norm), s->lr, scale,
                  s->skipped ? why_skipped(s) : rates);
    draw_bar(log, step + 1, arena_bytes);
}

static smp_status add_step(smp_log *log, uint64_t step, const smp_exec_step *s,
                           uint64_t arena_bytes, smp_errors *errors)
{
    const smp_board_value values[] = {
        { "loss", s->loss },
        { "gradient_norm", s->norm },
        { "lr", s->lr },
        { "loss_scale", s->loss_scale },
        { "tokens_per_s", s->targets / s->seconds },
        { "mfu", s->mfu },
        { "arena_bytes", (double)arena_bytes },
    };

    return log->board ? smp_board_add(log->board, step + 1, values,
                                      sizeof values / sizeof values[0], errors)
                      : SMP_OK;
}

smp_status smp_log_step(smp_log *log, uint64_t step, const smp_exec_step *s,
                        uint64_t arena_bytes, smp_errors *errors)
{
    smp_status status;
    char loss[32], norm[32];

    if (log->lines) {
        print_step(log, step, s, arena_bytes);
    }
    if (log->metrics) {
        (void)fprintf(log->metrics,
                      "{\"step\": %llu, \"loss\": %s, \"gradient_norm\": %s, \"lr\": %.9g, "
                      "\"loss_scale\": %.9g, \"skipped\": %s, \"seq_len\": %llu, "
                      "\"tokens\": %.0f, \"arena_bytes\": %llu, \"seconds\": %.6f, "
                      "\"tokens_per_s\": %.1f, \"mfu\": %.4f}\n",
                      (unsigned long long)(step + 1), json_number(s->loss, loss),
                      json_number(s->norm, norm), s->lr, s->loss_scale,
                      s->skipped ? "true" : "false", (unsigned long long)s->seq, s->targets,
                      (unsigned long long)arena_bytes, s->seconds, s->targets / s->seconds,
                      s->mfu);
    }
    status = check(log, errors);
    return status == SMP_OK ? add_step(log, step, s, arena_bytes, errors) : status;
}

smp_status smp_log_validation(smp_log *log, uint64_t step, double loss, double seconds,
                              smp_errors *errors)
{
    char text[32];
    smp_status status;

    smp_log_line(log, "step %llu  validation loss %#.6g  %.1f s", (unsigned long long)step,
                 shown(loss), seconds);
    if (log->metrics) {
        (void)fprintf(log->metrics,
                      "{\"step\": %llu, \"validation_loss\": %s, \"seconds\": %.6f}\n",
                      (unsigned long long)step, json_number(loss, text), seconds);
    }
    status = check(log, errors);
    if (status == SMP_OK && log->board) {
        status = smp_board_add(log->board, step,
                               &(smp_board_value){ "validation_loss", loss }, 1, errors);
    }
    return status;
}

smp_status smp_log_close(smp_log *log, smp_errors *errors)
{
    smp_status status, board;
    int error;

    if (!log) {
        return SMP_OK;
    }
    if (log->lines) {
        wipe_bar(log);
    }
    status = check(log, errors);
    board = smp_board_close(log->board, errors);
    status = status == SMP_OK ? board : status;
    error = close_metrics(log);
    if (error != 0 && status == SMP_OK) {
        status = smp_fail(errors, SMP_SYSTEM, &(smp_place){ .file = log->metrics_path },
                          "writing failed: %s", strerror(error));
    }
    free(log);
    return status;
}
