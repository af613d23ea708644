/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of measurements: which columns a kind needs, and what the formula says of each row.
 * Columns are described in smp-calibrate(1).
 */
#include "config.h"

#include "cost/fit_csv.h"
#include "cost/fit_make.h"
#include "cost/nccl.h"

#include "base/numeric.h"

#include <stdlib.h>
#include <string.h>

/* How published tables name the GPUs of shipped profiles. */
static const struct { const char *gpu, *profile; } gpu_names[] = {
    {"A100 SXM4 80GB", "a100-sxm-80gb"}, {"A100", "a100-sxm-80gb"},
    {"A100 80GB (p4de.24xlarge)", "a100-sxm-80gb"},
    {"H100 SXM 80GB", "h100-sxm"}, {"H100", "h100-sxm"}, {"H100 (p5.48xlarge)", "h100-sxm"},
    {"H200 SXM", "h200-sxm"}, {"H200", "h200-sxm"}, {"H200 (p5en.48xlarge)", "h200-sxm"},
    {"H200 (p5en)", "h200-sxm"}, {"B200 SXM", "b200-sxm"}, {"B200", "b200-sxm"}};

/* Where they ran, when a column "cluster" does not say: first match of both wins. */
static const struct { const char *gpu, *link, *cluster; } places[] = {
    {"(p4de.24xlarge)", "EFA", "p4de.24xlarge"}, {"(p5.48xlarge)", "EFA", "p5.48xlarge"},
    {"(p5en", "EFA", "p5en.48xlarge"},           {"B200", "(P6-B200)", "p6-b200.48xlarge"},
    {"A100", "single node", "dgx-a100"},         {"H100", "single node", "dgx-h100"},
    {"H200", "single node", "dgx-h200"},         {"B200", "single node", "dgx-b200"}};

typedef struct rows_reader {
    smp_csv csv;
    const smp_profile *profile; /* fitted */
    const char *gpu;
    smp_errors *errors;
    smp_fit_set *set;
    bool good; /* of the row */
} rows_reader;

void smp_fit_set_init(smp_fit_set *set)
{
    *set = (smp_fit_set){.arena = smp_arena_create()};
}

void smp_fit_set_free(smp_fit_set *set)
{
    for (size_t i = 0; i < set->n_place; i++) {
        smp_profile_destroy(set->places[i].profile);
        smp_cluster_destroy(set->places[i].cluster);
    }
    free(set->rows);
    free(set->sources);
    smp_arena_destroy(set->arena);
}

static double number(rows_reader *r, const char *name, double low, double high)
{
    double value = 0.0;
    if (!smp_csv_number(&r->csv, name, low, high, r->errors, &r->good, &value) && r->good) {
        const smp_place place = smp_csv_place(&r->csv, name);
        (void)smp_fail(r->errors, SMP_INPUT, &place, "%s is missing: op \"%s\" needs it", name,
                       smp_csv_text(&r->csv, "op"));
        r->good = false;
    }
    return value;
}

static double optional(rows_reader *r, const char *name, double low, double high, double absent)
{
    double value = absent;
    (void)smp_csv_number(&r->csv, name, low, high, r->errors, &r->good, &value);
    return value;
}

static uint64_t count(rows_reader *r, const char *name)
{
    return (uint64_t)number(r, name, 1.0, 1e12);
}

static uint64_t family_of(uint64_t a, uint64_t b, uint64_t c)
{
    const uint64_t all[] = {a, b, c};
    return smp_hash(all, sizeof all, 1);
}

static uint32_t source_of(rows_reader *r)
{
    smp_fit_set *set = r->set;
    const char *key = smp_csv_text(&r->csv, "source");
    if (key[0] == '\0') {
        key = r->csv.file;
    }
    for (size_t i = 0; i < set->n_source; i++) {
        if (strcmp(set->sources[i].key, key) == 0) {
            return (uint32_t)i;
        }
    }
    SMP_GROW(set->sources, set->n_source, set->source_capacity);
    key = smp_arena_strdup(set->arena, key);
    set->sources[set->n_source] = (smp_fit_source){key, key};
    return (uint32_t)set->n_source++;
}

/* ------------------------------------------------------------ kinds of rows */

static double kernel_seconds(rows_reader *r) { return number(r, "time_ms", 1e-6, 1e9) * 1e-3; }

static bool matmul_row(rows_reader *r, smp_fit_row *row)
{
    const char *dtype = smp_csv_text(&r->csv, "dtype");
    const char *layout = smp_csv_text(&r->csv, "layout");
    if ((strcmp(dtype, "bf16") != 0 && strcmp(dtype, "fp16") != 0) ||
        (layout[0] != '\0' && strcmp(layout, "TN") != 0)) {
        return false; /* a precision or a layout that no fit is about; TN: BLAS's, forward */
    }
    smp_task task = {.op = SMP_OP_MATMUL, .dtype = SMP_BF16, .dtype2 = SMP_BF16};
    task.dims[0] = count(r, "m");
    task.dims[1] = count(r, "n");
    task.dims[2] = count(r, "k");
    row->kind = SMP_FIT_MATMUL;
    const double tflops = optional(r, "tflops", 0.0, 1e6, 0.0);
    const bool by_rate = smp_csv_text(&r->csv, "time_ms")[0] == '\0' && tflops > 0.0;
    row->seconds = by_rate ? (double)smp_task_flops(&task) / (tflops * 1e12)
                           : kernel_seconds(r);
    row->family = family_of(task.dims[1], task.dims[2], 0);
    if (r->good) {
        smp_cost cost;
        smp_cost_kernel_model(r->profile, &task, &cost);
        row->model_s = smp_cost_seconds(&cost);
        for (int d = 0; d < 3; d++) {
            row->at[d] = (double)task.dims[d];
        }
    }
    return true;
}

static bool attention_row(rows_reader *r, smp_fit_row *row)
{
    const char *dtype = smp_csv_text(&r->csv, "dtype");
    const char *causal = smp_csv_text(&r->csv, "causal");
    if ((strcmp(dtype, "bf16") != 0 && strcmp(dtype, "fp16") != 0) ||
        (causal[0] != 'T' && causal[0] != 't' && causal[0] != '1')) {
        return false;
    }
    smp_task task = {.op = SMP_OP_ATTENTION, .dtype = SMP_BF16, .dtype2 = SMP_BF16,
                     .flags = SMP_FLAG_CAUSAL};
    static const char *const names[] = {"batch", "seq_len", "heads", "kv_heads", "head_dim"};
    for (int d = 0; d < 5; d++) {
        task.dims[d] = count(r, names[d]);
    }
    row->kind = SMP_FIT_ATTENTION;
    row->seconds = kernel_seconds(r);
    row->family = family_of(task.dims[2], task.dims[3], task.dims[4]);
    if (r->good) {
        smp_cost cost;
        smp_cost_kernel_model(r->profile, &task, &cost);
        row->model_s = smp_cost_seconds(&cost);
        row->at[0] = (double)task.dims[1];
        row->at[1] = (double)smp_mul(task.dims[0], task.dims[2]);
        row->at[2] = (double)task.dims[2] / (double)task.dims[3];
        row->at[3] = (double)task.dims[4];
    }
    return true;
}

static bool experts_row(rows_reader *r, smp_fit_row *row)
{
    const char *dtype = smp_csv_text(&r->csv, "dtype");
    if (strcmp(dtype, "bf16") != 0 && strcmp(dtype, "fp16") != 0) {
        return false;
    }
    const smp_experts layer = {.tokens = count(r, "tokens"), .hidden = count(r, "hidden"),
                               .ffn = count(r, "moe_ffn"), .top_k = count(r, "top_k"),
                               .experts = count(r, "experts"), .ep = count(r, "ep"),
                               .dtype = SMP_BF16};
    row->kind = SMP_FIT_EXPERTS;
    row->seconds = kernel_seconds(r);
    row->family = family_of(layer.hidden, layer.ffn, layer.top_k);
    if (r->good) {
        smp_cost cost;
        smp_cost_experts_model(r->profile, &layer, &cost);
        row->model_s = smp_cost_seconds(&cost);
        smp_fit_experts_at(&layer, row->at);
    }
    return true;
}

/* The cluster that a row names, or that its columns gpu and interconnect tell. */
static const smp_fit_place *cluster_of(rows_reader *r)
{
    const char *name = smp_csv_text(&r->csv, "cluster");
    const char *gpu = smp_csv_text(&r->csv, "gpu");
    const char *link = smp_csv_text(&r->csv, "interconnect");
    for (size_t i = 0; name[0] == '\0' && i < sizeof places / sizeof places[0]; i++) {
        if (strstr(gpu, places[i].gpu) != NULL && strstr(link, places[i].link) != NULL) {
            name = places[i].cluster;
        }
    }
    if (name[0] == '\0') {
        return NULL;
    }
    smp_fit_set *set = r->set;
    for (size_t i = 0; i < set->n_place; i++) {
        if (strcmp(set->places[i].name, name) == 0) {
            return &set->places[i];
        }
    }
    smp_fit_place e = {0};
    if (set->n_place == SMP_FIT_PLACES || strlen(name) >= sizeof e.name) {
        const smp_place place = smp_csv_place(&r->csv, "cluster");
        (void)smp_fail(r->errors, SMP_INPUT, &place, "cluster \"%.60s\": more than 16 clusters "
                       "or a name of more than 63 bytes", name);
        r->good = false;
        return NULL;
    }
    memcpy(e.name, name, strlen(name) + 1);
    if (smp_cluster_read(name, r->errors, &e.cluster) != SMP_OK ||
        smp_profile_read_for(e.cluster, r->errors, &e.profile) != SMP_OK) {
        smp_cluster_destroy(e.cluster);
        r->good = false;
        return NULL;
    }
    set->places[set->n_place] = e;
    return &set->places[set->n_place++];
}

static double collective_seconds(rows_reader *r, smp_op op, double ranks, double bytes)
{
    const double us = optional(r, "time_us", 1e-3, 1e12, 0.0);
    const double bus = optional(r, "busbw_GBps", 0.0, 1e6, 0.0);
    if (us > 0.0) {
        return us * 1e-6;
    }
    const double factor = (op == SMP_OP_ALL_REDUCE ? 2.0 : 1.0) * (ranks - 1.0) / ranks;
    return bus > 0.0 ? bytes * factor / (bus * 1e9) : 0.0;
}

/* A row whose column "algo" names what was forced is no measurement of NCCL's own choice. */
static bool chosen_freely(const rows_reader *r)
{
    return strstr(smp_csv_text(&r->csv, "id"), "nvls_off") == NULL;
}

static bool collective_row(rows_reader *r, smp_fit_kind kind, smp_op op, smp_fit_row *row)
{
    const double ranks = optional(r, "ranks", 1.0, 1e6, 0.0);
    const double bytes = optional(r, "message_bytes", 1.0, 1e15, 0.0);
    const double per_node = optional(r, "gpus_per_node", 1.0, 1e6, 0.0);
    const smp_fit_place *place = r->good ? cluster_of(r) : NULL;
    if (!r->good) {
        return true;
    }
    row->seconds = ranks >= 2.0 ? collective_seconds(r, op, ranks, bytes) : 0.0;
    if (place == NULL || bytes < 1.0 || per_node < 1.0 || !(row->seconds > 0.0) ||
        !chosen_freely(r)) {
        return false; /* a summary, or a machine that is not described */
    }
    const bool between = ranks > per_node;
    if (between && kind != SMP_FIT_ALL_REDUCE) {
        return false;
    }
    const uint32_t n = (uint32_t)ranks;
    smp_placement p = {.ranks = n, .nodes = 1, .most_per_node = n, .least_per_node = n,
                       .stride = 1};
    if (between) {
        p.nodes = n / (uint32_t)per_node;
        p.most_per_node = p.least_per_node = (uint32_t)per_node;
        p.sharers = p.least_per_node;
    }
    smp_cost cost;
    const smp_profile *profile = between ? place->profile : r->profile;
    if (kind == SMP_FIT_ALL_TO_ALL) {
        smp_cost_all_to_all_model(place->cluster, profile, n, (uint64_t)bytes, &cost);
    } else {
        smp_cost_collective_model(place->cluster, profile, op, &p, (uint64_t)bytes, &cost);
    }
    row->place = place;
    row->nodes = p.nodes;
    row->kind = between ? SMP_FIT_ALL_REDUCE_NODES : kind;
    row->model_s = smp_cost_seconds(&cost);
    row->at[0] = between ? bytes / ranks : ranks;
    row->at[1] = bytes;
    row->family = between ? smp_hash(place->name, strlen(place->name), 0)
                          : family_of((uint64_t)bytes, 0, 0);
    return true;
}

/* Rows of several nodes come from a cluster of this GPU's kind of box: eight GPUs, a port of
 * 400 Gb/s each, as DGX H100 and H200 have. */
static const double dispatch_port_Bps = 50e9;
/* Nodes from which the rows of the published tables are outliers: half the rate per port that
 * four nodes reach, the time moved between "time" and "notify". */
static const double outlier_nodes = 8.0;

static bool dispatch_row(rows_reader *r, bool combine, smp_fit_row *row)
{
    const double nodes = number(r, "nodes", 1.0, 1e6);
    const double ranks = number(r, "ranks", 1.0, 1e6);
    row->dispatch = (smp_dispatch){.tokens = count(r, "tokens_per_rank"),
                                   .hidden = count(r, "hidden"), .top_k = count(r, "top_k"),
                                   .ranks = (uint32_t)ranks, .nodes = (uint32_t)nodes,
                                   .element_bytes = combine ? 2.0 : 1.0 + 4.0 / 128.0,
                                   .multiprocessors = (uint32_t)count(r, "sms"),
                                   .combine = combine};
    row->kind = combine ? SMP_FIT_COMBINE : SMP_FIT_DISPATCH;
    row->seconds = number(r, "time_us", 1e-3, 1e12) * 1e-6;
    row->port_Bps = dispatch_port_Bps;
    row->family = row->dispatch.nodes;
    row->fixed = row->dispatch.nodes == 1;
    smp_fit_dispatch_at(&row->dispatch, row->at);
    return nodes < outlier_nodes || smp_csv_text(&r->csv, "cluster")[0] != '\0';
}

/* Operations by their names in the tables, and in the step program where they differ. */
static bool row_of(rows_reader *r, smp_fit_row *row)
{
    const char *op = smp_csv_text(&r->csv, "op");
    if (strcmp(op, "gemm") == 0 || strcmp(op, "matmul") == 0) {
        return matmul_row(r, row);
    }
    if (strcmp(op, "attention_fwd") == 0 || strcmp(op, "attention") == 0) {
        return attention_row(r, row);
    }
    if (strcmp(op, "all_gather") == 0) {
        return collective_row(r, SMP_FIT_ALL_GATHER, SMP_OP_ALL_GATHER, row);
    }
    if (strcmp(op, "reduce_scatter") == 0) {
        return collective_row(r, SMP_FIT_REDUCE_SCATTER, SMP_OP_REDUCE_SCATTER, row);
    }
    if (strcmp(op, "all_reduce") == 0) {
        return collective_row(r, SMP_FIT_ALL_REDUCE, SMP_OP_ALL_REDUCE, row);
    }
    if (strcmp(op, "all_to_all") == 0) {
        return collective_row(r, SMP_FIT_ALL_TO_ALL, SMP_OP_ALL_GATHER, row);
    }
    if (strcmp(op, "moe_experts_fwd") == 0 || strcmp(op, "experts") == 0) {
        return experts_row(r, row);
    }
    const bool combine = strcmp(op, "moe_combine") == 0;
    if ((combine || strcmp(op, "moe_dispatch") == 0) &&
        smp_csv_text(&r->csv, "tokens_per_rank")[0] != '\0') {
        return dispatch_row(r, combine, row);
    }
    return false;
}

static bool same_chip(const smp_profile *profile, const char *name)
{
    return profile->compute_capability == 90 &&
           (strcmp(name, "h100-sxm") == 0 || strcmp(name, "h200-sxm") == 0);
}

/* Is the row of the GPU that is fitted?  All-reduce between nodes is fitted over all GPUs, and
 * dispatch between nodes over GPUs of one chip: its time is the network's. */
static bool of_this_gpu(const rows_reader *r)
{
    const char *gpu = smp_csv_text(&r->csv, "gpu");
    const char *op = smp_csv_text(&r->csv, "op");
    if (r->gpu != NULL) {
        return strcmp(gpu, r->gpu) == 0;
    }
    if (strcmp(gpu, r->profile->name) == 0) {
        return true;
    }
    const bool between = strtod(smp_csv_text(&r->csv, "ranks"), NULL) >
                         strtod(smp_csv_text(&r->csv, "gpus_per_node"), NULL);
    for (size_t i = 0; i < sizeof gpu_names / sizeof gpu_names[0]; i++) {
        if (strcmp(gpu, gpu_names[i].gpu) == 0) {
            return strcmp(r->profile->name, gpu_names[i].profile) == 0 ||
                   (between && strcmp(op, "all_reduce") == 0) ||
                   (between && strncmp(op, "moe_", 4) == 0 &&
                    same_chip(r->profile, gpu_names[i].profile));
        }
    }
    return false;
}

static void read_rows(rows_reader *r)
{
    while (smp_csv_row(&r->csv, r->errors)) {
        smp_fit_row row = {.line = r->csv.line, .digest = r->csv.digest};
        r->good = true;
        if (!of_this_gpu(r)) {
            r->set->other_gpu++;
        } else if (!row_of(r, &row)) {
            r->set->unused++;
        } else if (r->good) {
            row.source = source_of(r);
            SMP_GROW(r->set->rows, r->set->n, r->set->capacity);
            r->set->rows[r->set->n++] = row;
        }
    }
}

smp_status smp_fit_rows_parse(const char *text, size_t n, const char *name,
                              const smp_profile *profile, const char *gpu, smp_errors *errors,
                              smp_fit_set *set)
{
    static const char *const needed[] = {"op", "gpu"};
    const size_t before = smp_errors_count(errors);
    rows_reader r = {.profile = profile, .gpu = gpu, .errors = errors, .set = set};
    const char *file = smp_arena_strdup(set->arena, name);
    smp_status status = smp_csv_open(text, n, file, set->arena, errors, &r.csv);
    for (size_t i = 0; status == SMP_OK && i < 2; i++) {
        bool found = false;
        for (uint32_t c = 0; c < r.csv.n_column; c++) {
            found = found || strcmp(r.csv.names[c], needed[i]) == 0;
        }
        if (!found) {
            const smp_place place = {.file = file, .line = 1, .column = 1};
            status = smp_fail(errors, SMP_INPUT, &place, "the header has no column \"%s\"",
                              needed[i]);
        }
    }
    if (status == SMP_OK) {
        read_rows(&r);
    }
    return smp_errors_count(errors) == before ? SMP_OK : SMP_INPUT;
}

/* "- s1: what it is" lines of a SOURCES.md beside the file, if there is one. */
static void read_sources(const char *path, smp_fit_set *set)
{
    const char *slash = strrchr(path, '/');
    char *beside = smp_arena_printf(set->arena, "%.*sSOURCES.md",
                                    slash == NULL ? 0 : (int)(slash - path + 1), path);
    FILE *file = fopen(beside, "r");
    char line[1024];
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\r\n")] = '\0';
        char *colon = strstr(line, ": ");
        if (strncmp(line, "- ", 2) != 0 || colon == NULL) {
            continue;
        }
        *colon = '\0';
        for (size_t i = 0; i < set->n_source; i++) {
            if (strcmp(set->sources[i].key, line + 2) == 0) {
                set->sources[i].text = smp_arena_strdup(set->arena, colon + 2);
            }
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
}

smp_status smp_fit_rows_read(const char *path, const smp_profile *profile, const char *gpu,
                             smp_errors *errors, smp_fit_set *set)
{
    smp_text text = {0};
    smp_status status = smp_json_load(path, errors, &text);
    if (status == SMP_OK) {
        status = smp_fit_rows_parse(text.length > 0 ? text.data : "", text.length, path,
                                    profile, gpu, errors, set);
    }
    if (status == SMP_OK) {
        read_sources(path, set);
    }
    smp_text_free(&text);
    return status;
}
