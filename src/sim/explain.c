/* SPDX-License-Identifier: Apache-2.0 */
/*
 * smp-sim --explain: what the largest costs of a step rest on.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "sim/peaks.h"
#include "sim/sim.h"

#include "base/numeric.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 24, WIDTH = 80 };

/* All tasks of one name and cost; spent_ps: the time that they took, slowed by others. */
typedef struct cost_group {
    const smp_task *task;
    const smp_cost *cost;
    uint64_t count;
    int64_t each_ps, path_ps, spent_ps;
} cost_group;

static int64_t busy_ps(const cost_group *group)
{
    return (int64_t)group->count * group->each_ps;
}

/* By time on the path, then by busy time, then by name. */
static int group_compare(const void *a_, const void *b_)
{
    const cost_group *a = a_;
    const cost_group *b = b_;
    if (a->path_ps != b->path_ps) {
        return a->path_ps > b->path_ps ? -1 : 1;
    }
    if (busy_ps(a) != busy_ps(b)) {
        return busy_ps(a) > busy_ps(b) ? -1 : 1;
    }
    return strcmp(a->task->name, b->task->name);
}

static bool same_group(const cost_group *group, const smp_task *task, int64_t duration_ps)
{
    return group->each_ps == duration_ps && group->task->op == task->op &&
           group->task->stream == task->stream && strcmp(group->task->name, task->name) == 0;
}

/* Time that each stored task took, over all its instances; heap. */
static int64_t *spent_by_task(const smp_simulation *simulation, uint32_t c)
{
    const smp_program *program = simulation->step->programs[c];
    int64_t *spent_ps = smp_heap_alloc(program->n_task + 1, sizeof *spent_ps);
    for (uint32_t i = 0; i < program->n_instance; i++) {
        const smp_segment *segment = &program->segments[program->order[i].segment];
        const smp_record *records = simulation->records[c] + simulation->record0[c][i];
        for (uint32_t t = 0; t < segment->n_task; t++) {
            spent_ps[segment->task0 + t] += records[t].end_ps - records[t].start_ps;
        }
    }
    return spent_ps;
}

static size_t group_costs(const smp_simulation *simulation, uint32_t c, cost_group *groups)
{
    const smp_program *program = simulation->step->programs[c];
    uint64_t *count = smp_heap_alloc(program->n_segment + 1, sizeof *count);
    int64_t *spent_ps = spent_by_task(simulation, c);
    for (uint32_t i = 0; i < program->n_instance; i++) {
        count[program->order[i].segment]++;
    }
    size_t n = 0;
    for (uint32_t g = 0; g < program->n_segment; g++) {
        const smp_segment *segment = &program->segments[g];
        for (uint32_t t = segment->task0; t < segment->task0 + segment->n_task; t++) {
            const smp_task *task = &program->tasks[t];
            int64_t duration_ps = simulation->duration_ps[c][t];
            size_t k = 0;
            while (k < n && !same_group(&groups[k], task, duration_ps)) {
                k++;
            }
            if (k == n) {
                groups[n++] = (cost_group){.task = task,
                                           .cost = &simulation->cost[c][t],
                                           .each_ps = duration_ps};
            }
            groups[k].count += count[g];
            groups[k].spent_ps += spent_ps[t];
            groups[k].path_ps += simulation->path_ps[c][t];
        }
    }
    free(count);
    free(spent_ps);
    if (n > 0) {
        qsort(groups, n, sizeof *groups, group_compare);
    }
    return n;
}

static const char *binding_factor(const smp_cost *cost)
{
    double kernel_s = cost->compute_s > cost->memory_s ? cost->compute_s : cost->memory_s;
    if (cost->launch_s >= kernel_s && cost->launch_s >= cost->latency_s &&
        cost->launch_s >= cost->transfer_s) {
        return "launch";
    }
    if (cost->latency_s >= kernel_s && cost->latency_s >= cost->transfer_s) {
        return "latency";
    }
    if (cost->transfer_s >= kernel_s) {
        return "bandwidth";
    }
    return cost->compute_s >= cost->memory_s ? "compute" : "memory";
}

/* The number of a figure in the list of sources; adds it when new. */
static size_t cite(const smp_figure **cited, size_t *n, const smp_figure *figure)
{
    for (size_t i = 0; i < *n; i++) {
        if (cited[i] == figure) {
            return i + 1;
        }
    }
    cited[(*n)++] = figure;
    return *n;
}

/* How much longer it took than alone, since others ran beside it; 1: nothing did. */
static double slowed(const cost_group *group)
{
    const int64_t alone_ps = busy_ps(group);
    return alone_ps > 0 ? (double)group->spent_ps / (double)alone_ps : 1.0;
}

static void add_slowed(smp_text *text, const cost_group *group)
{
    const double factor = slowed(group);
    if (factor > 1.0005) {
        smp_text_add(text, "    %.1f %% longer beside what runs at the same time\n",
                     100.0 * (factor - 1.0));
    }
}

/* nccl-tests' algorithm bandwidth: bytes over time. */
static double algorithm_Bps(const cost_group *group)
{
    const double each_s = smp_s_from_ps(group->each_ps);
    return each_s > 0 ? (double)smp_task_bytes(group->task) / each_s : 0.0;
}

static void add_detail(smp_text *text, const smp_program *program, const cost_group *group)
{
    const smp_task *task = group->task;
    const smp_cost *cost = group->cost;
    if (smp_op_info_of((smp_op)task->op)->klass == SMP_CLASS_COLLECTIVE &&
        task->comm != SMP_NO_COMM) {
        const smp_comm *comm = &program->comms[task->comm];
        smp_text_add(text, "    %s %s, %u ranks on %u node%s, %s %s, %u channels\n",
                     smp_op_info_of((smp_op)task->op)->name,
                     smp_show_bytes(smp_task_bytes(task)), comm->ranks, comm->placement.nodes,
                     comm->placement.nodes == 1 ? "" : "s", smp_algorithm_name(cost->algorithm),
                     smp_protocol_name(cost->protocol), cost->channels);
        smp_text_add(text, "    algbw %.1f GB/s, busbw %.1f GB/s; latency %s + transfer %s\n",
                     algorithm_Bps(group) * 1e-9, cost->bus_Bps * 1e-9,
                     smp_show_seconds(cost->latency_s), smp_show_seconds(cost->transfer_s));
        return;
    }
    double each_s = smp_s_from_ps(group->each_ps);
    smp_text_add(text, "    launch %s", smp_show_seconds(cost->launch_s));
    if (cost->compute_s > 0) {
        double flops = (double)smp_task_flops(task);
        smp_text_add(text, ", compute %s (%.3g TFLOP/s)", smp_show_seconds(cost->compute_s),
                     each_s > 0 ? flops / each_s * 1e-12 : 0);
    }
    if (cost->memory_s > 0) {
        smp_text_add(text, ", memory %s (%s)", smp_show_seconds(cost->memory_s),
                     smp_show_bytes(smp_task_bytes(task)));
    }
    if (cost->transfer_s > 0) {
        smp_text_add(text, ", transfer %s (%s)", smp_show_seconds(cost->transfer_s),
                     smp_show_bytes(smp_task_bytes(task)));
    }
    smp_text_add(text, "\n");
}

/* What stands behind the number: a fit of measurements, how near, where it does not reach. */
static void add_evidence(smp_text *text, const smp_cost *cost)
{
    if (cost->fit == NULL && !cost->unverified) {
        return;
    }
    smp_text_add(text, "    %s, +- %.1f %%%s%s\n",
                 cost->fit != NULL ? "fitted" : "formula", 100.0 * cost->spread,
                 cost->extrapolated ? ", extrapolated beyond the sizes measured" : "",
                 cost->unverified ? ", unverified" : "");
}

/* Bytes up to the next blank; of a path too long for a line, up to a slash that fits. */
static size_t word_length(const char *word, size_t most)
{
    const size_t n = strcspn(word, " ");
    if (n <= most) {
        return n;
    }
    size_t cut = most;
    while (cut > 0 && word[cut - 1] != '/') {
        cut--;
    }
    return cut > 0 ? cut : most;
}

/* Words of `words`, wrapped, after `head`. */
static void add_wrapped(smp_text *text, const char *head, const char *words)
{
    size_t column = strlen(head);
    smp_text_add(text, "%s", head);
    while (*words) {
        size_t n = word_length(words, WIDTH - 6);
        if (column + 1 + n > WIDTH) {
            smp_text_add(text, "\n     ");
            column = 5;
        }
        smp_text_add(text, " %.*s", (int)n, words);
        column += 1 + n;
        words += n + strspn(words + n, " ");
    }
    smp_text_add(text, "\n");
}

static void add_sources(smp_text *text, const smp_figure *const *cited, size_t n)
{
    smp_text_add(text, "\nFigures\n");
    for (size_t i = 0; i < n; i++) {
        char head[64];
        snprintf(head, sizeof head, "[%zu] %.6g", i + 1, cited[i]->value);
        add_wrapped(text, head, cited[i]->source ? cited[i]->source : "no source given");
    }
}

static bool is_collective(const smp_task *task)
{
    return smp_op_info_of((smp_op)task->op)->klass == SMP_CLASS_COLLECTIVE &&
           task->comm != SMP_NO_COMM;
}

/* The same to nccl-tests. */
static bool same_collective(const smp_task *a, const smp_task *b)
{
    return is_collective(b) && a->op == b->op && a->comm == b->comm &&
           smp_task_bytes(a) == smp_task_bytes(b);
}

static void add_collective(smp_text *text, const smp_program *program, const cost_group *group,
                           uint64_t count)
{
    const smp_task *task = group->task;
    const smp_cost *cost = group->cost;
    const smp_comm *comm = &program->comms[task->comm];
    char ranks[24];
    snprintf(ranks, sizeof ranks, "%u/%u", comm->ranks, comm->placement.nodes);
    smp_text_add(text, "%-14s %-8.8s%6" PRIu64 "%9s %7s %-8s%-6s %8s%5.0f%4.0f%s\n",
                 smp_op_info_of((smp_op)task->op)->name, comm->name, count,
                 smp_show_bytes(smp_task_bytes(task)), ranks,
                 smp_algorithm_name(cost->algorithm), smp_protocol_name(cost->protocol),
                 smp_show_seconds(smp_s_from_ps(group->each_ps)), algorithm_Bps(group) * 1e-9,
                 cost->bus_Bps * 1e-9,
                 cost->unverified ? "u" : cost->extrapolated ? "x" : "");
}

/* Every collective of the class, in the columns of nccl-tests. */
static void add_collectives(smp_text *text, const smp_program *program,
                            const cost_group *groups, size_t n)
{
    bool any = false;
    for (size_t i = 0; i < n && groups[i].count > 0; i++) {
        uint64_t count = 0;
        size_t first = i;
        for (size_t k = 0; is_collective(groups[i].task) && k < n; k++) {
            if (same_collective(groups[i].task, groups[k].task)) {
                first = k < first ? k : first;
                count += groups[k].count;
            }
        }
        if (count == 0 || first < i) {
            continue;
        }
        if (!any) {
            smp_text_add(text, "\nCollectives, as nccl-tests prints them (GB/s; x: "
                         "extrapolated, u: unverified)\n%-14s %-8s%6s%9s %7s %-8s%-6s %8s%5s"
                         "%4s\n", "operation", "comm", "count", "size", "ranks/n", "algo",
                         "proto", "time", "alg", "bus");
            any = true;
        }
        add_collective(text, program, &groups[i], count);
    }
}

/* ---------------------------------------------------------------------- JSON */

static void out_collective(smp_json_out *out, const smp_program *program,
                           const cost_group *group)
{
    const smp_task *task = group->task;
    const smp_cost *cost = group->cost;
    if (!is_collective(task)) {
        return;
    }
    const smp_comm *comm = &program->comms[task->comm];
    smp_out_object(out, "collective");
    smp_out_string(out, "communicator", comm->name);
    smp_out_u64(out, "bytes", smp_task_bytes(task));
    smp_out_u64(out, "ranks", comm->ranks);
    smp_out_u64(out, "nodes", comm->placement.nodes);
    smp_out_string(out, "algorithm", smp_algorithm_name(cost->algorithm));
    smp_out_string(out, "protocol", smp_protocol_name(cost->protocol));
    smp_out_u64(out, "channels", cost->channels);
    smp_out_double(out, "algbw_Bps", algorithm_Bps(group));
    smp_out_double(out, "busbw_Bps", cost->bus_Bps);
    smp_out_end_object(out);
}

static void out_group(smp_json_out *out, const smp_program *program, const cost_group *group)
{
    const smp_cost *cost = group->cost;
    smp_out_object(out, NULL);
    smp_out_string(out, "task", group->task->name);
    smp_out_string(out, "operation", smp_op_info_of((smp_op)group->task->op)->name);
    smp_out_string(out, "stream", smp_stream_name((smp_stream)group->task->stream));
    smp_out_u64(out, "count", group->count);
    smp_out_double(out, "each_s", smp_s_from_ps(group->each_ps));
    smp_out_double(out, "busy_s", smp_s_from_ps(busy_ps(group)));
    smp_out_double(out, "path_s", smp_s_from_ps(group->path_ps));
    smp_out_double(out, "slowed_by_overlap", slowed(group));
    smp_out_string(out, "bound_by", binding_factor(cost));
    smp_out_object(out, "factors_s");
    smp_out_double(out, "launch", cost->launch_s);
    smp_out_double(out, "compute", cost->compute_s);
    smp_out_double(out, "memory", cost->memory_s);
    smp_out_double(out, "latency", cost->latency_s);
    smp_out_double(out, "transfer", cost->transfer_s);
    smp_out_end_object(out);
    out_collective(out, program, group);
    smp_out_double(out, "spread", cost->spread);
    smp_out_bool(out, "fitted", cost->fit != NULL);
    smp_out_bool(out, "extrapolated", cost->extrapolated);
    smp_out_bool(out, "unverified", cost->unverified);
    if (cost->basis) {
        smp_out_object(out, "basis");
        smp_out_double(out, "value", cost->basis->value);
        smp_out_string(out, "source", cost->basis->source);
        smp_out_end_object(out);
    }
    smp_out_end_object(out);
}

static smp_status explain_json(const smp_simulation *simulation, const smp_what_ifs *what_ifs,
                               const cost_group *groups, size_t n, FILE *stream,
                               smp_errors *errors)
{
    const smp_program *program = simulation->step->programs[simulation->slowest];
    smp_json_out out = {0};
    smp_out_object(&out, NULL);
    smp_out_simulation(&out, simulation, what_ifs);
    smp_out_array(&out, "costs");
    for (size_t i = 0; i < n && groups[i].count > 0; i++) {
        out_group(&out, program, &groups[i]);
    }
    smp_out_end_array(&out);
    smp_out_end_object(&out);
    fwrite(out.text.data, 1, out.text.length, stream);
    smp_text_free(&out.text);
    return smp_stream_check(stream, "output", errors);
}

smp_status smp_simulation_explain(const smp_simulation *simulation,
                                  const smp_what_ifs *what_ifs, bool json, FILE *stream,
                                  smp_errors *errors)
{
    uint32_t c = simulation->slowest;
    const smp_program *program = simulation->step->programs[c];
    cost_group *groups = smp_heap_alloc(program->n_task + 1, sizeof *groups);
    size_t n = group_costs(simulation, c, groups);
    if (json) {
        const smp_status status = explain_json(simulation, what_ifs, groups, n, stream,
                                               errors);
        free(groups);
        return status;
    }
    const smp_figure *cited[SHOWN];
    size_t n_cited = 0;
    smp_text text = {0};
    smp_text_add(&text,
                 "Largest costs of the class that ends last (rank %u and %u more), step %s.\n"
                 "Busy: time on its stream; path: time the step waited for; share: of the "
                 "step.\n\n"
                 "%-24s%7s%9s%9s%9s%7s %s\n",
                 program->representative, program->count - 1,
                 smp_show_seconds(simulation->report.step_time_s), "task", "count", "each",
                 "busy", "path", "share", "bound by");
    for (size_t i = 0; i < n && i < SHOWN && groups[i].count > 0; i++) {
        const cost_group *group = &groups[i];
        smp_text_add(&text, "%-24.24s%7" PRIu64 "%9s%9s%9s%6.1f%% %s", group->task->name,
                     group->count, smp_show_seconds(smp_s_from_ps(group->each_ps)),
                     smp_show_seconds(smp_s_from_ps(busy_ps(group))),
                     smp_show_seconds(smp_s_from_ps(group->path_ps)),
                     100 * (double)group->path_ps / (double)simulation->report.step_ps,
                     binding_factor(group->cost));
        if (group->cost->basis) {
            smp_text_add(&text, " [%zu]", cite(cited, &n_cited, group->cost->basis));
        }
        smp_text_add(&text, "\n");
        add_detail(&text, program, group);
        add_slowed(&text, group);
        add_evidence(&text, group->cost);
    }
    add_collectives(&text, program, groups, n);
    add_sources(&text, cited, n_cited);
    smp_text_add(&text, "\n");
    smp_text_peak_parts(&text, &simulation->report.memory);
    fwrite(text.data, 1, text.length, stream);
    smp_text_free(&text);
    free(groups);
    return smp_stream_check(stream, "output", errors);
}
