/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report for people (80 columns) and as JSON.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "sim/peaks.h"
#include "sim/sim.h"
#include "sim/what_if.h"

#include "base/numeric.h"
#include "mesh/settings.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { WIDTH = 80, VALUE_BYTES = 128 };

/* -------------------------------------------------------------------- values */

static double percent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

/* Sizes of memory, in the order in which both outputs show them. */
typedef struct named_bytes {
    const char *key, *title;
    uint64_t bytes;
} named_bytes;

enum { MEMORY_PARTS = 9 };

static void list_memory(const smp_memory_parts *p, named_bytes list[MEMORY_PARTS])
{
    const named_bytes rows[MEMORY_PARTS] = {
        {"parameters_bytes", "parameters", p->parameters_bytes},
        {"gradients_bytes", "gradients", p->gradients_bytes},
        {"optimizer_bytes", "optimizer state", p->optimizer_bytes},
        {"unsharded_bytes", "unsharded parameters, gradients", p->unsharded_bytes},
        {"activations_bytes", "activations", p->activations_bytes},
        {"logits_bytes", "logits", p->logits_bytes},
        {"communication_bytes", "communication buffers (estimate)", p->communication_bytes},
        {"context_bytes", "context (estimate)", p->context_bytes},
        {"fragmentation_bytes", "fragmentation", p->fragmentation_bytes},
    };
    memcpy(list, rows, sizeof rows);
}

/* ---------------------------------------------------------------------- text */

static void text_job(smp_text *text, const smp_simulation *simulation)
{
    const smp_job *job = simulation->job;
    char stack[VALUE_BYTES];
    smp_text_add(text, "%s on %u x %s (%s, %u node%s of %u)\n", job->model->name,
                 job->world, smp_cluster_gpu(job->cluster), smp_cluster_name(job->cluster),
                 smp_cluster_nodes(job->cluster),
                 smp_cluster_nodes(job->cluster) == 1 ? "" : "s",
                 smp_cluster_gpus_per_node(job->cluster));
    if (job->settings.stack != SMP_STACK_NATIVE &&
        smp_settings_get(&job->settings, "stack", stack, sizeof stack)) {
        smp_text_add(text, "run by %s%s\n", stack, job->settings.compile ? ", compiled" : "");
    }
    smp_text_add(text,
                 "%" PRIu64 " sequences of %" PRIu64
                 " tokens a step: %u data ranks x %" PRIu64 " micro-batches x %u\n",
                 job->batch.global_batch, job->batch.seq_len, job->data_ranks,
                 job->micro_batches, job->settings.micro_batch);
}

/* All settings that act; those given by the user are marked.  Those of experts, from
 * expert_layout to before stack, do nothing for a model without. */
static void text_settings(smp_text *text, const smp_job *job)
{
    const smp_settings *settings = &job->settings;
    size_t n = 0;
    const smp_setting_info *table = smp_settings_table(&n);
    smp_text_add(text, "\nSettings that act (* given, others by default or rule)\n");
    const size_t experts = (size_t)smp_settings_find("expert_layout");
    const size_t software = (size_t)smp_settings_find("stack");
    size_t column = 0;
    for (size_t i = 0; i < n; i++) {
        char value[VALUE_BYTES];
        if ((i >= experts && i < software && smp_model_experts(job->model) == 0) ||
            !smp_settings_get(settings, table[i].key, value, sizeof value)) {
            continue;
        }
        bool given = smp_settings_given(settings, table[i].key);
        size_t length = strlen(table[i].key) + 1 + strlen(value) + (given ? 1 : 0);
        if (column > 0 && column + 2 + length > WIDTH) {
            smp_text_add(text, "\n");
            column = 0;
        }
        smp_text_add(text, "  %s=%s%s", table[i].key, value, given ? "*" : "");
        column += 2 + length;
    }
    smp_text_add(text, "\n");
}

static void text_step(smp_text *text, const smp_simulation *simulation)
{
    const smp_report *r = &simulation->report;
    const smp_cluster *cluster = simulation->job->cluster;
    smp_text_add(text, "\nStep time           %s   (80 %% interval %s to %s)\n",
                 smp_show_seconds(r->step_time_s), smp_show_seconds(r->interval_low_s),
                 smp_show_seconds(r->interval_high_s));
    smp_text_add(text, "Throughput          %.1f tokens/s/GPU, %s tokens/s\n",
                 r->tokens_per_s_per_gpu,
                 smp_show_count(r->tokens_per_s_per_gpu * (double)simulation->job->world));
    if (r->peak_flops_per_s > 0) {
        smp_text_add(text, "Utilisation         MFU %.1f %%, HFU %.1f %%\n", 100 * r->mfu,
                     100 * r->hfu);
    }
    if (r->cost_per_billion_tokens > 0) {
        smp_text_add(text, "Price               %.2f %s per billion tokens\n",
                     r->cost_per_billion_tokens, cluster->currency ? cluster->currency : "USD");
    }
}

static void text_time(smp_text *text, const smp_simulation *simulation)
{
    static const char *const titles[SMP_PARTS] = {
        [SMP_PART_COMPUTE] = "compute",
        [SMP_PART_OPTIMIZER] = "optimizer",
        [SMP_PART_LAUNCH] = "launch",
        [SMP_PART_SHARD] = "exposed: sharding",
        [SMP_PART_REPLICA] = "exposed: replicas",
        [SMP_PART_TENSOR] = "exposed: tensor parallel",
        [SMP_PART_EXPERT] = "exposed: expert parallel",
        [SMP_PART_WORLD] = "exposed: norm and others",
        [SMP_PART_OFFLOAD] = "exposed: offload",
    };
    smp_time_parts parts = simulation->report.time;
    smp_text_add(text, "\nTime of the step%30s%8s\n", "", "%");
    for (int i = 0; i < SMP_PARTS; i++) {
        int64_t part_ps = *smp_time_part(&parts, (smp_part)i);
        if (part_ps != 0 || i == SMP_PART_COMPUTE) {
            smp_text_add(text, "  %-34s%10s%8.1f\n", titles[i],
                         smp_show_seconds(smp_s_from_ps(part_ps)),
                         percent((double)part_ps, (double)simulation->report.step_ps));
        }
    }
}

static void text_memory(smp_text *text, const smp_simulation *simulation)
{
    const smp_memory *m = &simulation->report.memory;
    named_bytes rows[MEMORY_PARTS];
    list_memory(&m->parts, rows);
    smp_text_add(text, "\nMemory of a GPU at its peak%19s%8s\n", "", "%");
    for (int i = 0; i < MEMORY_PARTS; i++) {
        if (rows[i].bytes > 0) {
            smp_text_add(text, "  %-34s%10s%8.1f\n", rows[i].title,
                         smp_show_bytes(rows[i].bytes),
                         percent((double)rows[i].bytes, (double)m->peak_bytes));
        }
    }
    smp_text_add(text, "  %-34s%10s   of %s: %s %s\n", "peak", smp_show_bytes(m->peak_bytes),
                 smp_show_bytes(m->capacity_bytes),
                 m->margin_bytes >= 0 ? "free" : "DOES NOT FIT, short by",
                 smp_show_bytes((uint64_t)(m->margin_bytes < 0 ? -m->margin_bytes
                                                               : m->margin_bytes)));
    smp_text_add(text, "  arena %s (%" PRIu64 " bytes); of it for safety across streams %s\n",
                 smp_show_bytes(m->arena_bytes), m->arena_bytes,
                 smp_show_bytes(m->safety_bytes));
    smp_text_add(text,
                 "  state of the precision policy: %g bytes per parameter, before sharding\n",
                 m->state_bytes_per_parameter);
    if (m->host_bytes_per_node > 0) {
        smp_text_add(text, "  host memory %s a node of %s%s\n",
                     smp_show_bytes(m->host_bytes_per_node),
                     smp_show_bytes(m->host_capacity_bytes),
                     m->host_bytes_per_node > m->host_capacity_bytes ? ": DOES NOT FIT" : "");
    }
}

static void text_notes(smp_text *text, const smp_simulation *simulation)
{
    const smp_report *r = &simulation->report;
    char precision[VALUE_BYTES] = "";
    bool known = smp_settings_get(&simulation->job->settings, "precision", precision,
                                  sizeof precision);
    if (r->peak_flops_per_s > 0) {
        smp_text_add(
            text,
            "\nMFU = model FLOPs / (step time x GPUs x peak), HFU the same with hardware "
            "FLOPs.\n"
            "  model FLOPs %.4g a step: nothing recomputed, causal attention by half\n"
            "  hardware FLOPs %.4g: those of all tasks run\n"
            "  peak %.4g TFLOP/s a GPU, dense %s [%s]\n",
            r->model_flops, r->hardware_flops, r->peak_flops_per_s * 1e-12,
            known ? precision : "", smp_profile_name(simulation->job->profile));
    }
    smp_text_add(text, "Simulated %" PRIu64 " tasks in %u class%s of ranks.\n", r->tasks,
                 r->classes, r->classes == 1 ? "" : "es");
}

/* ---------------------------------------------------------------------- JSON */

static void out_memory(smp_json_out *out, const smp_memory *m)
{
    named_bytes rows[MEMORY_PARTS];
    list_memory(&m->parts, rows);
    smp_out_object(out, "memory");
    smp_out_u64(out, "arena_bytes", m->arena_bytes);
    smp_out_u64(out, "peak_bytes", m->peak_bytes);
    smp_out_u64(out, "capacity_bytes", m->capacity_bytes);
    smp_out_bool(out, "fits", m->fits);
    smp_out_i64(out, "margin_bytes", m->margin_bytes);
    smp_out_u64(out, "live_bytes", m->live_bytes);
    smp_out_u64(out, "safety_bytes", m->safety_bytes);
    smp_out_u64(out, "host_bytes", m->host_bytes);
    smp_out_u64(out, "host_bytes_per_node", m->host_bytes_per_node);
    smp_out_u64(out, "host_capacity_bytes", m->host_capacity_bytes);
    smp_out_double(out, "state_bytes_per_parameter", m->state_bytes_per_parameter);
    smp_out_object(out, "parts");
    for (int i = 0; i < MEMORY_PARTS; i++) {
        smp_out_u64(out, rows[i].key, rows[i].bytes);
    }
    smp_out_end_object(out);
    smp_out_peaks(out, m);
    smp_out_end_object(out);
}

static void out_time(smp_json_out *out, const smp_report *report)
{
    smp_time_parts parts = report->time;
    smp_out_object(out, "time");
    smp_out_i64(out, "step_ps", report->step_ps);
    smp_out_object(out, "parts");
    for (int i = 0; i < SMP_PARTS; i++) {
        char key[VALUE_BYTES];
        snprintf(key, sizeof key, "%s_s", smp_part_name((smp_part)i));
        smp_out_double(out, key, smp_s_from_ps(*smp_time_part(&parts, (smp_part)i)));
    }
    smp_out_end_object(out);
    smp_out_object(out, "parts_ps");
    for (int i = 0; i < SMP_PARTS; i++) {
        smp_out_i64(out, smp_part_name((smp_part)i), *smp_time_part(&parts, (smp_part)i));
    }
    smp_out_end_object(out);
    smp_out_end_object(out);
}

void smp_out_report(smp_json_out *out, const smp_job *job, const smp_report *report)
{
    smp_out_double(out, "step_time_s", report->step_time_s);
    smp_out_array(out, "step_time_80_percent_interval_s");
    smp_out_double(out, NULL, report->interval_low_s);
    smp_out_double(out, NULL, report->interval_high_s);
    smp_out_end_array(out);
    smp_out_double(out, "tokens_per_s_per_gpu", report->tokens_per_s_per_gpu);
    smp_out_double(out, "mfu", report->mfu);
    smp_out_double(out, "hfu", report->hfu);
    smp_out_object(out, "mfu_basis");
    smp_out_string(out, "formula", "model_flops / (step_time_s * gpus * peak_flops_per_s)");
    smp_out_string(out, "causal", "attention counted by half");
    smp_out_double(out, "model_flops", report->model_flops);
    smp_out_double(out, "hardware_flops", report->hardware_flops);
    smp_out_double(out, "peak_flops_per_s", report->peak_flops_per_s);
    smp_out_end_object(out);
    const bool priced = report->cost_per_billion_tokens > 0;
    smp_out_double(out, "cost_per_billion_tokens",
                   priced ? report->cost_per_billion_tokens : (double)NAN);
    smp_out_string(out, "currency", priced ? job->cluster->currency : NULL);
    out_time(out, report);
    out_memory(out, &report->memory);
    smp_out_u64(out, "tasks", report->tasks);
    smp_out_u64(out, "classes", report->classes);
}

static void out_job(smp_json_out *out, const smp_job *job)
{
    smp_out_string(out, "model", job->model->name);
    smp_out_string(out, "cluster", smp_cluster_name(job->cluster));
    smp_out_string(out, "profile", smp_profile_name(job->profile));
    smp_out_u64(out, "nodes", smp_cluster_nodes(job->cluster));
    smp_out_u64(out, "gpus", job->world);
    smp_out_object(out, "batch");
    smp_out_u64(out, "seq_len", job->batch.seq_len);
    smp_out_u64(out, "global_batch", job->batch.global_batch);
    smp_out_u64(out, "data_ranks", job->data_ranks);
    smp_out_u64(out, "micro_batches", job->micro_batches);
    smp_out_end_object(out);
    smp_out_settings(out, "settings", &job->settings);
}

void smp_out_simulation(smp_json_out *out, const smp_simulation *simulation,
                        const smp_what_ifs *what_ifs)
{
    out_job(out, simulation->job);
    smp_out_report(out, simulation->job, &simulation->report);
    smp_what_ifs_out(what_ifs, out);
}

smp_status smp_simulation_print_with(const smp_simulation *simulation,
                                     const smp_what_ifs *what_ifs, bool json, FILE *stream,
                                     smp_errors *errors)
{
    smp_json_out out = {0};
    smp_text text = {0};
    if (json) {
        smp_out_object(&out, NULL);
        smp_out_simulation(&out, simulation, what_ifs);
        smp_out_end_object(&out);
        text = out.text;
    } else {
        text_job(&text, simulation);
        text_step(&text, simulation);
        text_time(&text, simulation);
        text_memory(&text, simulation);
        smp_text_peaks(&text, &simulation->report.memory);
        text_settings(&text, simulation->job);
        text_notes(&text, simulation);
        smp_what_ifs_text(what_ifs, &text);
    }
    fwrite(text.data, 1, text.length, stream);
    smp_text_free(&text);
    return smp_stream_check(stream, "output", errors);
}

smp_status smp_simulation_print(const smp_simulation *simulation, bool json, FILE *stream,
                                smp_errors *errors)
{
    return smp_simulation_print_with(simulation, NULL, json, stream, errors);
}
