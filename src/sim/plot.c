/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plots of memory and timeline: a data file, then gnuplot on a script of plots/.
 *
 * The data file is complete before gnuplot starts and is kept.  Data are thinned to what a
 * picture can show, BINS columns: the memory plot keeps the lowest and the highest point of
 * each, and in the timeline what is narrower than a column is drawn in the colour that fills
 * most of it.  So neither grows with the number of tasks.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "sim/sim.h"

#include "base/gnuplot.h"
#include "base/numeric.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { BINS = 1500 };

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

/* Two lines; the scripts switch the markup of titles off. */
static char *title_of(smp_arena *arena, const smp_simulation *simulation, const char *what)
{
    const smp_job *job = simulation->job;
    const smp_settings *settings = &job->settings;
    char checkpointing[64] = "";
    smp_settings_get(settings, "checkpointing", checkpointing, sizeof checkpointing);
    const char *experts =
        settings->expert_parallel_degree == 1
            ? "" : smp_arena_printf(arena, ", expert %u", settings->expert_parallel_degree);
    return smp_arena_printf(
        arena,
        "%s: %s on %u GPUs (%s)\nstep %s, sequence %" PRIu64 ", global batch %" PRIu64
        ", shard %u, tensor %u%s, replicas %u, micro-batch %u (%" PRIu64
        " a step), checkpointing %s",
        what, smp_model_name(job->model), job->world, smp_cluster_name(job->cluster),
        smp_show_seconds(simulation->report.step_time_s), job->batch.seq_len,
        job->batch.global_batch, settings->hybrid_shard_degree,
        settings->tensor_parallel_degree, experts, job->replicas, settings->micro_batch,
        job->micro_batches, checkpointing);
}

/* -------------------------------------------------------------------- memory */

/* Areas of the memory plot from the bottom; the script has the same order.  The first is
 * what lies outside the arena. */
typedef enum area {
    AREA_OUTSIDE, AREA_PARAMETERS, AREA_OPTIMIZER, AREA_GRADIENTS, AREA_UNSHARDED,
    AREA_ACTIVATIONS, AREA_WORKSPACE, AREA_LOGITS, AREAS
} area;

typedef struct memory_plot {
    const smp_simulation *simulation;
    FILE *stream;
    int64_t bin; /* -1: none yet */
    bool any;
    smp_live_point last; /* written last; holds until the next one */
    smp_live_point lowest, highest;
    uint64_t lowest_bytes, highest_bytes;
} memory_plot;

static void put_row(const memory_plot *plot, int64_t time_ps, const smp_live_point *point)
{
    const smp_memory *m = &plot->simulation->report.memory;
    const uint64_t *kind = point->kind_bytes;
    const uint64_t bytes[AREAS] = {
        [AREA_OUTSIDE] = m->peak_bytes - m->arena_bytes,
        [AREA_PARAMETERS] = kind[SMP_KIND_PARAMETER],
        [AREA_OPTIMIZER] = kind[SMP_KIND_OPTIMIZER],
        [AREA_GRADIENTS] = kind[SMP_KIND_GRADIENT],
        [AREA_UNSHARDED] = kind[SMP_KIND_UNSHARDED],
        [AREA_ACTIVATIONS] = kind[SMP_KIND_ACTIVATION],
        [AREA_WORKSPACE] = kind[SMP_KIND_WORKSPACE] + kind[SMP_KIND_SCALAR] +
                           kind[SMP_KIND_COMM],
        [AREA_LOGITS] = kind[SMP_KIND_LOGITS],
    };
    fprintf(plot->stream, "%.12g", smp_s_from_ps(time_ps));
    for (int i = 0; i < AREAS; i++) {
        fprintf(plot->stream, " %" PRIu64, bytes[i]);
    }
    fprintf(plot->stream, " %" PRIu64 "\n", point->host_bytes);
}

/* Two rows for a step up or down: areas are drawn from row to row by straight lines. */
static void put_point(memory_plot *plot, const smp_live_point *point)
{
    if (plot->any) {
        put_row(plot, point->time_ps, &plot->last);
    }
    put_row(plot, point->time_ps, point);
    plot->last = *point;
    plot->any = true;
}

static void put_bin(memory_plot *plot)
{
    if (plot->bin < 0) {
        return;
    }
    if (plot->lowest.time_ps == plot->highest.time_ps) {
        put_point(plot, &plot->highest);
    } else if (plot->lowest.time_ps < plot->highest.time_ps) {
        put_point(plot, &plot->lowest);
        put_point(plot, &plot->highest);
    } else {
        put_point(plot, &plot->highest);
        put_point(plot, &plot->lowest);
    }
}

static void visit_memory(void *context, const smp_live_point *point)
{
    memory_plot *plot = context;
    const int64_t step_ps = plot->simulation->report.step_ps;
    const int64_t bin =
        step_ps > 0 ? (int64_t)((double)point->time_ps / (double)step_ps * BINS) : 0;
    uint64_t sum_bytes = 0;
    for (int k = 0; k < SMP_KINDS; k++) {
        sum_bytes += k == SMP_KIND_TOKEN ? 0 : point->kind_bytes[k];
    }
    const bool fresh = bin != plot->bin;
    if (fresh) {
        put_bin(plot);
        plot->bin = bin;
    }
    if (fresh || sum_bytes > plot->highest_bytes) {
        plot->highest = *point;
        plot->highest_bytes = sum_bytes;
    }
    if (fresh || sum_bytes < plot->lowest_bytes) {
        plot->lowest = *point;
        plot->lowest_bytes = sum_bytes;
    }
}

static void write_memory(const smp_simulation *simulation, FILE *stream)
{
    memory_plot plot = {.simulation = simulation, .stream = stream, .bin = -1};
    fputs("# seconds, then bytes: context and communicators, parameters, optimizer state,\n"
          "# gradients, unsharded, activations, workspace, logits; host\n", stream);
    smp_live_sweep(simulation, simulation->fullest, visit_memory, &plot);
    put_bin(&plot);
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
        title_of(arena, simulation, "Memory of one GPU over a step"),
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
    SHADE_MATMUL, SHADE_ATTENTION, SHADE_MEMORY, SHADE_GATHER, SHADE_REDUCE,
    SHADE_EXCHANGE, SHADE_COPY, SHADE_FORWARD, SHADE_RECOMPUTE, SHADE_BACKWARD, SHADE_UPDATE,
    SHADES
} shade;

static shade shade_of(const smp_task *task)
{
    switch (smp_op_info_of((smp_op)task->op)->klass) {
    case SMP_CLASS_MATMUL: return SHADE_MATMUL;
    case SMP_CLASS_ATTENTION: return SHADE_ATTENTION;
    case SMP_CLASS_COLLECTIVE:
        return task->op == SMP_OP_ALL_GATHER   ? SHADE_GATHER
               : task->op == SMP_OP_ALL_TO_ALL ? SHADE_EXCHANGE
                                               : SHADE_REDUCE;
    case SMP_CLASS_HOST_COPY: return SHADE_COPY;
    case SMP_CLASS_MEMORY:
        break;
    }
    return SHADE_MEMORY;
}

/* Row 0 holds the phases of the compute stream, the streams in use follow. */
enum { ROW_PHASE, ROWS = SMP_STREAMS + 1 };

static uint32_t number_rows(const smp_program *program, uint32_t row[SMP_STREAMS])
{
    bool used[SMP_STREAMS] = {false};
    uint32_t n = ROW_PHASE + 1;
    for (uint32_t t = 0; t < program->n_task; t++) {
        used[program->tasks[t].stream] = true;
    }
    for (uint32_t s = 0; s < SMP_STREAMS; s++) {
        row[s] = used[s] ? n++ : UINT32_MAX;
    }
    return n;
}

/* "phase compute unshard ...": names of the rows. */
static char *row_names(smp_arena *arena, const smp_program *program)
{
    uint32_t row[SMP_STREAMS];
    char *names = smp_arena_strdup(arena, "phase");
    number_rows(program, row);
    for (uint32_t s = 0; s < SMP_STREAMS; s++) {
        if (row[s] != UINT32_MAX) {
            names = smp_arena_printf(arena, "%s %s", names, smp_stream_name((smp_stream)s));
        }
    }
    return names;
}

typedef struct panel {
    int64_t from_ps, to_ps;
} panel;

enum { PANELS = 3, FIRST_LAYERS = 3 };

/* Panels: the whole step; the forward of the first layers; the start of backward, for about
 * twice as long, since backward takes that much longer. */
static void choose_panels(const smp_simulation *simulation, panel panels[PANELS])
{
    const uint32_t c = simulation->slowest;
    const smp_program *program = simulation->step->programs[c];
    const int64_t step_ps = simulation->report.step_ps;
    int64_t forward_ps = -1;
    int64_t backward_ps = -1;
    for (uint32_t i = 0; i < program->n_instance && backward_ps < 0; i++) {
        const smp_segment *segment = &program->segments[program->order[i].segment];
        for (uint32_t t = 0; t < segment->n_task && backward_ps < 0; t++) {
            const smp_task *task = &program->tasks[segment->task0 + t];
            const smp_record *r = &simulation->records[c][simulation->record0[c][i] + t];
            if (task->stream != SMP_STREAM_COMPUTE) {
                continue;
            }
            if (task->phase != SMP_PHASE_FORWARD) {
                backward_ps = r->start_ps;
            } else if (program->order[i].layer == FIRST_LAYERS && forward_ps < 0) {
                forward_ps = r->start_ps;
            }
        }
    }
    backward_ps = backward_ps < 0 ? step_ps / 2 : backward_ps;
    forward_ps = forward_ps <= 0 ? backward_ps : forward_ps;
    forward_ps = forward_ps <= 0 ? step_ps : forward_ps;
    const int64_t from_ps = backward_ps > forward_ps / 4 ? backward_ps - forward_ps / 4 : 0;
    const int64_t to_ps = from_ps + 2 * forward_ps - forward_ps / 4;
    panels[0] = (panel){0, step_ps};
    panels[1] = (panel){0, forward_ps};
    panels[2] = (panel){from_ps, to_ps < step_ps ? to_ps : step_ps};
}

/* A box that may still grow.  While it is narrower than a column it collects whatever comes;
 * then it is of the colour that fills most of it. */
typedef struct box {
    bool open;
    int64_t from_ps, to_ps;
    int64_t busy_ps[SHADES];
    const char *name; /* of the only task in it, else NULL */
} box;

typedef struct timeline {
    FILE *stream;
    panel panel;
    int64_t column_ps;
    box boxes[ROWS];
} timeline;

static shade main_shade(const box *box_)
{
    shade most = SHADE_MATMUL;
    for (int i = 1; i < SHADES; i++) {
        most = box_->busy_ps[i] > box_->busy_ps[most] ? (shade)i : most;
    }
    return most;
}

static void put_box(timeline *t, uint32_t row)
{
    enum { LABEL_COLUMNS = 30 }; /* narrower boxes have no room for a name */
    box *box_ = &t->boxes[row];
    if (!box_->open) {
        return;
    }
    const int64_t from_ps =
        box_->from_ps > t->panel.from_ps ? box_->from_ps : t->panel.from_ps;
    const int64_t to_ps = box_->to_ps < t->panel.to_ps ? box_->to_ps : t->panel.to_ps;
    const bool named = box_->name && to_ps - from_ps >= LABEL_COLUMNS * t->column_ps;
    fprintf(t->stream, "%u %.12g %.12g %d \"%s\" %" PRId64 "\n", row,
            smp_s_from_ps(from_ps) * 1e3, smp_s_from_ps(to_ps) * 1e3, (int)main_shade(box_),
            named ? box_->name : "", named ? (to_ps - from_ps) / t->column_ps : 0);
    *box_ = (box){0};
}

static void add_box(timeline *t, uint32_t row, const smp_record *r, shade shade_,
                    const char *name)
{
    box *box_ = &t->boxes[row];
    if (r->end_ps <= t->panel.from_ps || r->start_ps >= t->panel.to_ps ||
        r->end_ps == r->start_ps) {
        return;
    }
    if (box_->open) {
        const bool near = r->start_ps - box_->to_ps < t->column_ps;
        const bool tiny = r->end_ps - box_->from_ps <= t->column_ps;
        /* Phases join whatever their length; neighbouring kernels stay apart if they can. */
        const bool alike = main_shade(box_) == shade_ &&
                           (row == ROW_PHASE || r->end_ps - r->start_ps < 4 * t->column_ps);
        if (!near || !(tiny || alike)) {
            put_box(t, row);
        }
    }
    box_->name = box_->open && row != ROW_PHASE ? NULL : name;
    box_->from_ps = box_->open ? box_->from_ps : r->start_ps;
    box_->to_ps = r->end_ps;
    box_->busy_ps[shade_] += r->end_ps - r->start_ps;
    box_->open = true;
}

static void write_panel(const smp_simulation *simulation, const panel *panel_, FILE *stream)
{
    static const char *const phases[SMP_PHASES] = {
        [SMP_PHASE_FORWARD] = "forward", [SMP_PHASE_RECOMPUTE] = "recompute",
        [SMP_PHASE_BACKWARD] = "backward", [SMP_PHASE_UPDATE] = "update",
    };
    const uint32_t c = simulation->slowest;
    const smp_program *program = simulation->step->programs[c];
    uint32_t row[SMP_STREAMS];
    const int64_t column_ps = (panel_->to_ps - panel_->from_ps) / BINS;
    timeline t = {.stream = stream, .panel = *panel_,
                  .column_ps = column_ps > 0 ? column_ps : 1};
    const uint32_t n_row = number_rows(program, row);
    for (uint32_t i = 0; i < program->n_instance; i++) {
        const smp_segment *segment = &program->segments[program->order[i].segment];
        const smp_record *records = &simulation->records[c][simulation->record0[c][i]];
        for (uint32_t k = 0; k < segment->n_task; k++) {
            const smp_task *task = &program->tasks[segment->task0 + k];
            add_box(&t, row[task->stream], &records[k], shade_of(task), task->name);
            if (task->stream == SMP_STREAM_COMPUTE) {
                add_box(&t, ROW_PHASE, &records[k], (shade)(SHADE_FORWARD + task->phase),
                        phases[task->phase]);
            }
        }
    }
    for (uint32_t r = 0; r < n_row; r++) {
        put_box(&t, r);
    }
}

static void write_timeline(const smp_simulation *simulation, FILE *stream)
{
    panel panels[PANELS];
    choose_panels(simulation, panels);
    fputs("# row, start ms, end ms, colour, name where there is room, columns; blocks: whole\n"
          "# step, first layers, start of backward\n", stream);
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
    const smp_program *program = simulation->step->programs[simulation->slowest];
    char *data_path = smp_arena_printf(arena, "%s.dat", path);
    panel panels[PANELS];
    choose_panels(simulation, panels);
    char *windows = smp_arena_strdup(arena, "");
    for (int p = 0; p < PANELS; p++) {
        windows = smp_arena_printf(arena, "%s%.12g %.12g ", windows,
                                   smp_s_from_ps(panels[p].from_ps) * 1e3,
                                   smp_s_from_ps(panels[p].to_ps) * 1e3);
    }
    const char *const args[] = {title_of(arena, simulation, "Timeline of a step"),
                                row_names(arena, program), windows, NULL};
    status = write_data(simulation, data_path, write_timeline, errors);
    if (status == SMP_OK) {
        status = smp_plot_run("timeline.gp", data_path, path, args, errors);
    }
    smp_arena_destroy(arena);
    return status;
}
