/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plots of memory and timeline: a data file, then gnuplot on a script of plots/.
 *
 * The data file is complete before gnuplot starts and is kept.  Data are thinned to what a
 * picture can show: the memory plot keeps the highest point of each of BINS intervals, the
 * timeline joins boxes of one colour that are closer than a pixel.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "sim/sim.h"

#include "base/numeric.h"

#include <errno.h>
#include <inttypes.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { BINS = 1500 };

/* ------------------------------------------------------------------- gnuplot */

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text);
    size_t m = strlen(end);
    return n > m && strcmp(text + n - m, end) == 0;
}

smp_status smp_plot_check(const char *path, smp_errors *errors)
{
    if (ends_with(path, ".svg") || ends_with(path, ".png")) {
        return SMP_OK;
    }
    return smp_fail(errors, SMP_INPUT, NULL, "plot file '%s': must end in .svg or .png", path);
}

/* Waits for the child; 0 when it exited with 0. */
static int wait_for(pid_t child)
{
    int state = 0;
    while (waitpid(child, &state, 0) < 0) {
        if (errno != EINTR) {
            return -1;
        }
    }
    return WIFEXITED(state) ? WEXITSTATUS(state) : -1;
}

/* Standard output is given to the caller's data, so gnuplot's goes to standard error. */
static smp_status run_gnuplot(char **argv, const char *data_path, smp_errors *errors)
{
    posix_spawn_file_actions_t actions;
    pid_t child = 0;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    int failed = posix_spawnp(&child, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed != 0) {
        return smp_fail(errors, SMP_SYSTEM, NULL,
                        "cannot run gnuplot (%s): install it (Debian: gnuplot-nox) to get the "
                        "plot; its data are in %s", strerror(failed), data_path);
    }
    int status = wait_for(child);
    if (status != 0) {
        return smp_fail(errors, SMP_SYSTEM, NULL,
                        "gnuplot failed with status %d; the plot's data are in %s", status,
                        data_path);
    }
    return SMP_OK;
}

smp_status smp_plot_run(const char *script, const char *data_path, const char *path,
                        const char *const *args, smp_errors *errors)
{
    char *script_path = NULL;
    smp_status status = smp_find_plot_script(script, errors, &script_path);
    if (status != SMP_OK) {
        return status;
    }
    smp_arena *arena = smp_arena_create();
    size_t n = 0;
    while (args[n]) {
        n++;
    }
    char **argv = SMP_ARENA_ARRAY(arena, n + 7, char *);
    char *part = smp_arena_printf(arena, "%s.part", path);
    argv[0] = smp_arena_strdup(arena, "gnuplot");
    argv[1] = smp_arena_strdup(arena, "-c");
    argv[2] = script_path;
    argv[3] = smp_arena_strdup(arena, data_path);
    argv[4] = part;
    argv[5] = smp_arena_strdup(arena, ends_with(path, ".png") ? "png" : "svg");
    for (size_t i = 0; i < n; i++) {
        argv[6 + i] = smp_arena_strdup(arena, args[i]);
    }
    status = run_gnuplot(argv, data_path, errors);
    if (status != SMP_OK) {
        unlink(part);
    } else if (rename(part, path) != 0) {
        status = smp_fail(errors, SMP_SYSTEM, NULL, "%s: %s", path, strerror(errno));
        unlink(part);
    }
    smp_arena_destroy(arena);
    free(script_path);
    return status;
}

/* Opens PATH.dat and finishes it; both plots share this frame. */
typedef void (*data_writer)(const smp_simulation *simulation, FILE *stream);

static smp_status write_data(const smp_simulation *simulation, const char *data_path,
                             data_writer writer, smp_errors *errors)
{
    smp_file *file = NULL;
    smp_status status = smp_file_create(data_path, errors, &file);
    if (status != SMP_OK) {
        return status;
    }
    writer(simulation, smp_file_stream(file));
    return smp_file_commit(file, errors);
}

/* Gnuplot reads "{", "_" and "^" of titles as markup; the scripts switch that off. */
static char *title_of(smp_arena *arena, const smp_simulation *simulation, const char *what)
{
    const smp_job *job = simulation->job;
    return smp_arena_printf(arena, "%s: %s on %u x %s, step %s", what, job->model->name,
                            job->world, smp_cluster_gpu(job->cluster),
                            smp_show_seconds(simulation->report.step_time_s));
}

/* -------------------------------------------------------------------- memory */

typedef struct memory_plot {
    const smp_simulation *simulation;
    FILE *stream;
    int64_t bin;
    bool any;
    smp_live_point highest;
    uint64_t highest_bytes;
} memory_plot;

static void put_memory(const memory_plot *plot)
{
    const smp_memory *m = &plot->simulation->report.memory;
    const uint64_t *kind = plot->highest.kind_bytes;
    uint64_t outside_bytes = m->peak_bytes - m->arena_bytes;
    fprintf(plot->stream,
            "%.9g %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64
            " %" PRIu64 " %" PRIu64 "\n",
            smp_s_from_ps(plot->highest.time_ps), outside_bytes, kind[SMP_KIND_PARAMETER],
            kind[SMP_KIND_OPTIMIZER], kind[SMP_KIND_GRADIENT], kind[SMP_KIND_UNSHARDED],
            kind[SMP_KIND_ACTIVATION] + kind[SMP_KIND_WORKSPACE] + kind[SMP_KIND_SCALAR] +
                kind[SMP_KIND_COMM],
            kind[SMP_KIND_LOGITS], plot->highest.host_bytes);
}

static void visit_memory(void *context, const smp_live_point *point)
{
    memory_plot *plot = context;
    int64_t step_ps = plot->simulation->report.step_ps;
    int64_t bin = step_ps > 0 ? (int64_t)((double)point->time_ps / (double)step_ps * BINS) : 0;
    uint64_t sum_bytes = 0;
    for (int k = 0; k < SMP_KINDS; k++) {
        sum_bytes += point->kind_bytes[k];
    }
    if (plot->any && bin != plot->bin) {
        put_memory(plot);
        plot->any = false;
    }
    if (!plot->any || sum_bytes > plot->highest_bytes) {
        plot->highest = *point;
        plot->highest_bytes = sum_bytes;
    }
    plot->any = true;
    plot->bin = bin;
}

static void write_memory(const smp_simulation *simulation, FILE *stream)
{
    memory_plot plot = {.simulation = simulation, .stream = stream};
    fputs("# seconds, then bytes: context and NCCL, parameters, optimizer state, gradients,\n"
          "# unsharded, activations, logits, host\n", stream);
    smp_live_sweep(simulation, simulation->fullest, visit_memory, &plot);
    put_memory(&plot);
}

smp_status smp_simulation_plot_memory(const smp_simulation *simulation, const char *path,
                                      smp_errors *errors)
{
    const smp_memory *m = &simulation->report.memory;
    smp_status status = smp_plot_check(path, errors);
    if (status != SMP_OK) {
        return status;
    }
    smp_arena *arena = smp_arena_create();
    char *data_path = smp_arena_printf(arena, "%s.dat", path);
    const char *const args[] = {
        title_of(arena, simulation, "Memory of one GPU"),
        smp_arena_printf(arena, "%" PRIu64, m->capacity_bytes),
        smp_arena_printf(arena, "%" PRIu64, m->peak_bytes), NULL
    };
    status = write_data(simulation, data_path, write_memory, errors);
    if (status == SMP_OK) {
        status = smp_plot_run("memory.gp", data_path, path, args, errors);
    }
    smp_arena_destroy(arena);
    return status;
}

/* ------------------------------------------------------------------ timeline */

/* Colours of the timeline; the script has the same order. */
typedef enum shade {
    SHADE_MATMUL, SHADE_ATTENTION, SHADE_MEMORY, SHADE_GATHER, SHADE_REDUCE, SHADE_COPY
} shade;

static shade shade_of(const smp_task *task)
{
    switch (smp_op_info_of((smp_op)task->op)->klass) {
    case SMP_CLASS_MATMUL: return SHADE_MATMUL;
    case SMP_CLASS_ATTENTION: return SHADE_ATTENTION;
    case SMP_CLASS_COLLECTIVE:
        return task->op == SMP_OP_ALL_GATHER ? SHADE_GATHER : SHADE_REDUCE;
    case SMP_CLASS_HOST_COPY: return SHADE_COPY;
    case SMP_CLASS_MEMORY:
        break;
    }
    return SHADE_MEMORY;
}

typedef struct box {
    int64_t from_ps, to_ps;
    shade shade;
    bool open;
} box;

typedef struct panel {
    int64_t from_ps, to_ps;
} panel;

enum { PANELS = 3, FIRST_LAYERS = 3 };

/* Rows of the plot from the top: the streams in use; returns their number. */
static uint32_t number_rows(const smp_program *program, uint32_t row[SMP_STREAMS])
{
    bool used[SMP_STREAMS] = {false};
    uint32_t n = 0;
    for (uint32_t t = 0; t < program->n_task; t++) {
        used[program->tasks[t].stream] = true;
    }
    for (uint32_t s = 0; s < SMP_STREAMS; s++) {
        row[s] = used[s] ? n++ : UINT32_MAX;
    }
    return n;
}

/* Panels: the whole step; the forward of the first layers; as long around the start of
 * backward. */
static void choose_panels(const smp_simulation *simulation, panel panels[PANELS])
{
    uint32_t c = simulation->slowest;
    const smp_program *program = simulation->step->programs[c];
    int64_t step_ps = simulation->report.step_ps;
    int64_t forward_ps = -1;
    int64_t backward_ps = -1;
    for (uint32_t i = 0; i < program->n_instance && backward_ps < 0; i++) {
        const smp_segment *segment = &program->segments[program->order[i].segment];
        for (uint32_t t = 0; t < segment->n_task && backward_ps < 0; t++) {
            const smp_task *task = &program->tasks[segment->task0 + t];
            int64_t start_ps = simulation->records[c][simulation->record0[c][i] + t].start_ps;
            if (task->stream != SMP_STREAM_COMPUTE) {
                continue;
            }
            if (task->phase != SMP_PHASE_FORWARD) {
                backward_ps = start_ps;
            } else if (program->order[i].layer == FIRST_LAYERS && forward_ps < 0) {
                forward_ps = start_ps;
            }
        }
    }
    backward_ps = backward_ps < 0 ? step_ps / 2 : backward_ps;
    forward_ps = forward_ps < 0 ? backward_ps : forward_ps;
    panels[0] = (panel){0, step_ps};
    panels[1] = (panel){0, forward_ps > 0 ? forward_ps : step_ps};
    int64_t from_ps = backward_ps - panels[1].to_ps / 4;
    from_ps = from_ps < 0 ? 0 : from_ps;
    int64_t to_ps = from_ps + panels[1].to_ps + panels[1].to_ps / 4;
    panels[2] = (panel){from_ps, to_ps < step_ps ? to_ps : step_ps};
}

static void put_box(FILE *stream, uint32_t row, const box *box_)
{
    fprintf(stream, "%u %.9g %.9g %d\n", row, smp_s_from_ps(box_->from_ps) * 1e3,
            smp_s_from_ps(box_->to_ps) * 1e3, (int)box_->shade);
}

static void write_panel(const smp_simulation *simulation, const panel *panel_, FILE *stream)
{
    uint32_t c = simulation->slowest;
    const smp_program *program = simulation->step->programs[c];
    uint32_t row[SMP_STREAMS];
    box boxes[SMP_STREAMS] = {{0}};
    int64_t pixel_ps = (panel_->to_ps - panel_->from_ps) / BINS;
    number_rows(program, row);
    for (uint32_t i = 0; i < program->n_instance; i++) {
        const smp_segment *segment = &program->segments[program->order[i].segment];
        for (uint32_t t = 0; t < segment->n_task; t++) {
            const smp_task *task = &program->tasks[segment->task0 + t];
            const smp_record *r = &simulation->records[c][simulation->record0[c][i] + t];
            box *open = &boxes[task->stream];
            if (r->end_ps <= panel_->from_ps || r->start_ps >= panel_->to_ps) {
                continue;
            }
            bool joins = open->open && (r->start_ps - open->to_ps) < pixel_ps &&
                         (open->shade == shade_of(task) || r->end_ps - r->start_ps < pixel_ps);
            if (joins) {
                open->to_ps = r->end_ps;
                continue;
            }
            if (open->open) {
                put_box(stream, row[task->stream], open);
            }
            *open = (box){r->start_ps, r->end_ps, shade_of(task), true};
        }
    }
    for (uint32_t s = 0; s < SMP_STREAMS; s++) {
        if (boxes[s].open) {
            put_box(stream, row[s], &boxes[s]);
        }
    }
}

static void write_timeline(const smp_simulation *simulation, FILE *stream)
{
    panel panels[PANELS];
    choose_panels(simulation, panels);
    fputs("# row, start ms, end ms, colour; blocks: whole step, first layers, start of "
          "backward\n", stream);
    for (int p = 0; p < PANELS; p++) {
        write_panel(simulation, &panels[p], stream);
        fputs("\n\n", stream);
    }
}

smp_status smp_simulation_plot_timeline(const smp_simulation *simulation, const char *path,
                                        smp_errors *errors)
{
    smp_status status = smp_plot_check(path, errors);
    if (status != SMP_OK) {
        return status;
    }
    smp_arena *arena = smp_arena_create();
    char *data_path = smp_arena_printf(arena, "%s.dat", path);
    const smp_program *program = simulation->step->programs[simulation->slowest];
    uint32_t row[SMP_STREAMS];
    uint32_t n = number_rows(program, row);
    char *names = smp_arena_strdup(arena, "");
    for (uint32_t s = 0, k = 0; s < SMP_STREAMS && k < n; s++) {
        if (row[s] == k) {
            names = smp_arena_printf(arena, "%s%s ", names, smp_stream_name((smp_stream)s));
            k++;
        }
    }
    panel panels[PANELS];
    choose_panels(simulation, panels);
    const char *args[2 + 2 * PANELS + 1] = {title_of(arena, simulation, "Timeline"), names};
    for (int p = 0; p < PANELS; p++) {
        args[2 + 2 * p] =
            smp_arena_printf(arena, "%.9g", smp_s_from_ps(panels[p].from_ps) * 1e3);
        args[3 + 2 * p] =
            smp_arena_printf(arena, "%.9g", smp_s_from_ps(panels[p].to_ps) * 1e3);
    }
    status = write_data(simulation, data_path, write_timeline, errors);
    if (status == SMP_OK) {
        status = smp_plot_run("timeline.gp", data_path, path, args, errors);
    }
    smp_arena_destroy(arena);
    return status;
}
