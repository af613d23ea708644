/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plan files: one job as JSON, with model, cluster and profile by value, so that it means the
 * same on another machine and after the shipped data have changed.
 *
 *     {"smp_plan": 1, "model": {"name", "config"}, "cluster": {"name", "gpus", "description"},
 *      "profile": {"name", "description"}, "batch": {"seq_len", "global_batch"},
 *      "settings": {every key}, "predicted": {...}}
 *
 * The inner documents are read by their own readers from text in which everything outside
 * them is blank, so that messages name lines and columns of the plan file.
 */
#include "config.h"

#include "plan/plan.h"

#include "base/json.h"
#include "base/numeric.h"
#include "mesh/settings.h"
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

enum { FORMAT_VERSION = 1 };

/* What smp_plan_read returns: the public part first, and what owns its strings. */
typedef struct planned_box { smp_planned planned; smp_arena *arena; } planned_box;

/* ------------------------------------------------------------------- writing */

/* A JSON text as a value of the document. */
static smp_status out_text(smp_json_out *out, const char *key, const char *text,
                           const char *name, smp_errors *errors)
{
    smp_json *json = NULL;
    const smp_status st = smp_json_parse(text, strlen(text), name, errors, &json);
    if (st == SMP_OK) {
        smp_out_value(out, key, smp_json_root(json));
        smp_json_destroy(json);
    }
    return st;
}

static void out_predicted(smp_json_out *out, const smp_report *report)
{
    smp_out_object(out, "predicted");
    smp_out_i64(out, "step_ps", report->step_ps);
    smp_out_double(out, "tokens_per_s_per_gpu", report->tokens_per_s_per_gpu);
    smp_out_double(out, "mfu", report->mfu);
    smp_out_double(out, "hfu", report->hfu);
    smp_out_double(out, "cost_per_billion_tokens", report->cost_per_billion_tokens);
    smp_out_u64(out, "arena_bytes", report->memory.arena_bytes);
    smp_out_u64(out, "peak_bytes", report->memory.peak_bytes);
    smp_out_u64(out, "capacity_bytes", report->memory.capacity_bytes);
    smp_out_bool(out, "fits", report->memory.fits);
    smp_out_end_object(out);
}

static smp_status out_plan(smp_json_out *out, const smp_job *job, const smp_report *predicted,
                           smp_errors *errors)
{
    smp_out_object(out, NULL);
    smp_out_u64(out, "smp_plan", FORMAT_VERSION);
    smp_out_object(out, "model");
    smp_out_string(out, "name", job->model->name);
    smp_status st = out_text(out, "config", job->model->config, job->model->name, errors);
    if (st != SMP_OK) {
        return st;
    }
    smp_out_end_object(out);
    smp_out_object(out, "cluster");
    smp_out_string(out, "name", job->cluster->name);
    smp_out_u64(out, "gpus", job->cluster->gpus);
    st = out_text(out, "description", job->cluster->text, job->cluster->name, errors);
    if (st != SMP_OK) {
        return st;
    }
    smp_out_end_object(out);
    smp_out_object(out, "profile");
    smp_out_string(out, "name", job->profile->name);
    st = out_text(out, "description", job->profile->text, job->profile->name, errors);
    if (st != SMP_OK) {
        return st;
    }
    smp_out_end_object(out);
    smp_out_object(out, "batch");
    smp_out_u64(out, "seq_len", job->batch.seq_len);
    smp_out_u64(out, "global_batch", job->batch.global_batch);
    smp_out_end_object(out);
    /* The acting strategy only repeats sharding and reshard_after_forward; left in, it would
     * overrule a what-if on either. */
    smp_settings settings = job->settings;
    settings.sharding_strategy = SMP_STRATEGY_UNSET;
    smp_out_settings(out, "settings", &settings);
    if (predicted) {
        out_predicted(out, predicted);
    }
    smp_out_end_object(out);
    return SMP_OK;
}

smp_status smp_plan_write(const smp_job *job, const smp_report *predicted, const char *path,
                          smp_errors *errors)
{
    smp_job resolved = *job;
    smp_status st = smp_job_resolve(&resolved, errors);
    if (st != SMP_OK) {
        return st;
    }
    smp_json_out out = {0};
    st = out_plan(&out, &resolved, predicted, errors);
    if (st == SMP_OK) {
        smp_text_add(&out.text, "\n");
        st = smp_file_write(path, out.text.data, out.text.length, errors);
    }
    smp_text_free(&out.text);
    return st;
}

/* ------------------------------------------------------------------- reading */

/* The text of a value, at the line and column where it stands in the file; heap memory. */
static char *text_in_place(const smp_json *json, const cJSON *value, size_t *n_p)
{
    size_t n_root = 0;
    size_t n = 0;
    const cJSON *root = smp_json_root(json);
    const smp_place start = smp_json_place(json, root);
    const char *from = smp_json_source(json, root, &n_root);
    const char *source = smp_json_source(json, value, &n);
    uint32_t line = start.line;
    uint32_t column = start.column;
    for (const char *c = from; c < source; c++) {
        if (*c == '\n') {
            line++;
            column = 1;
        } else {
            column++;
        }
    }
    const size_t blank = (size_t)(line - 1) + (column - 1);
    char *text = smp_heap_alloc(blank + n + 1, 1);
    memset(text, '\n', line - 1);
    memset(text + (line - 1), ' ', column - 1);
    memcpy(text + blank, source, n);
    *n_p = blank + n;
    return text;
}

/* An inner document: its name and the text of the member `key`; NULL when it is missing. */
static char *read_inner(const smp_reader *r, const char *key, const char **name_p, size_t *n_p)
{
    const bool named = smp_read_string(r, "name", true, name_p);
    const cJSON *value = smp_read_member(r, key, true);
    return named && value ? text_in_place(r->json, value, n_p) : NULL;
}

static void read_model(const smp_reader *root, const char *path, smp_planned *planned)
{
    static const char *const known[] = {"name", "config", NULL};
    smp_reader r;
    const char *name = NULL;
    size_t n = 0;
    if (!smp_read_object(root, "model", true, &r)) {
        return;
    }
    smp_read_reject_unknown(&r, known);
    char *text = read_inner(&r, "config", &name, &n);
    if (text && smp_model_parse(text, n, path, name, r.errors, &planned->model) != SMP_OK) {
        planned->model = NULL;
    }
    free(text);
}

static void read_cluster(const smp_reader *root, const char *path, smp_planned *planned)
{
    static const char *const known[] = {"name", "gpus", "description", NULL};
    smp_reader r;
    const char *name = NULL;
    size_t n = 0;
    uint64_t gpus = 0;
    if (!smp_read_object(root, "cluster", true, &r)) {
        return;
    }
    smp_read_reject_unknown(&r, known);
    const bool counted = smp_read_u64(&r, "gpus", true, 1, UINT32_MAX, &gpus);
    char *text = read_inner(&r, "description", &name, &n);
    if (text &&
        smp_cluster_parse(text, n, path, name, r.errors, &planned->cluster) != SMP_OK) {
        planned->cluster = NULL;
    }
    if (planned->cluster && counted &&
        smp_cluster_set_gpus(planned->cluster, (uint32_t)gpus, r.errors) != SMP_OK) {
        smp_cluster_destroy(planned->cluster);
        planned->cluster = NULL;
    }
    free(text);
}

static void read_profile(const smp_reader *root, const char *path, smp_planned *planned)
{
    static const char *const known[] = {"name", "description", NULL};
    smp_reader r;
    const char *name = NULL;
    size_t n = 0;
    if (!smp_read_object(root, "profile", true, &r)) {
        return;
    }
    smp_read_reject_unknown(&r, known);
    char *text = read_inner(&r, "description", &name, &n);
    if (text &&
        smp_profile_parse(text, n, path, name, r.errors, &planned->profile) != SMP_OK) {
        planned->profile = NULL;
    }
    free(text);
}

static void read_batch(const smp_reader *root, smp_batch *batch)
{
    static const char *const known[] = {"seq_len", "global_batch", NULL};
    enum { MOST = 1 << 30 };
    smp_reader r;
    if (smp_read_object(root, "batch", true, &r)) {
        smp_read_reject_unknown(&r, known);
        smp_read_u64(&r, "seq_len", true, 1, MOST, &batch->seq_len);
        smp_read_u64(&r, "global_batch", true, 1, MOST, &batch->global_batch);
    }
}

/* A setting's value as smp_settings_set reads it. */
static char *setting_text(const smp_json *json, const cJSON *value, smp_arena *arena)
{
    size_t n = 0;
    const char *source = smp_json_source(json, value, &n);
    return cJSON_IsString(value) ? smp_arena_strdup(arena, value->valuestring)
                                 : smp_arena_strndup(arena, source, n);
}

/* Every key is written; one that is absent is newer than the plan, and the default of a new key
 * means what was done before there was the key. */
static void read_settings(const smp_reader *root, smp_arena *arena, smp_settings *settings)
{
    smp_reader r;
    size_t n = 0;
    const smp_setting_info *table = smp_settings_table(&n);
    if (!smp_read_object(root, "settings", true, &r)) {
        return;
    }
    smp_read_reject_unknown(&r, smp_setting_keys());
    for (size_t i = 0; i < n; i++) {
        const cJSON *value = smp_read_member(&r, table[i].key, false);
        if (!value) {
            continue;
        }
        smp_place place = smp_json_place(r.json, value);
        place.file = smp_arena_strdup(arena, place.file);
        place.path = smp_arena_strdup(arena, place.path);
        const smp_status st = smp_settings_set(
            settings, table[i].key, setting_text(r.json, value, arena), &place, r.errors);
        (void)st; /* the collector has it */
    }
}

static void read_predicted(const smp_reader *root, smp_planned *planned)
{
    static const char *const known[] = {
        "step_ps", "tokens_per_s_per_gpu", "mfu", "hfu", "cost_per_billion_tokens",
        "arena_bytes", "peak_bytes", "capacity_bytes", "fits", NULL};
    smp_reader r;
    smp_report *p = &planned->predicted;
    uint64_t step_ps = 0;
    if (!smp_read_object(root, "predicted", false, &r)) {
        return;
    }
    smp_read_reject_unknown(&r, known);
    if (smp_read_u64(&r, "step_ps", true, 0, INT64_MAX, &step_ps)) {
        p->step_ps = (int64_t)step_ps;
        p->step_time_s = smp_s_from_ps(p->step_ps);
    }
    smp_read_double(&r, "tokens_per_s_per_gpu", true, 0, 1e300, &p->tokens_per_s_per_gpu);
    smp_read_double(&r, "mfu", true, 0, 1e300, &p->mfu);
    smp_read_double(&r, "hfu", true, 0, 1e300, &p->hfu);
    smp_read_double(&r, "cost_per_billion_tokens", true, 0, 1e300,
                    &p->cost_per_billion_tokens);
    smp_read_u64(&r, "arena_bytes", true, 0, UINT64_MAX, &p->memory.arena_bytes);
    smp_read_u64(&r, "peak_bytes", true, 0, UINT64_MAX, &p->memory.peak_bytes);
    smp_read_u64(&r, "capacity_bytes", true, 0, UINT64_MAX, &p->memory.capacity_bytes);
    smp_read_bool(&r, "fits", true, &p->memory.fits);
    p->memory.margin_bytes = (int64_t)(p->memory.capacity_bytes - p->memory.peak_bytes);
    planned->has_predicted = true;
}

/* The file that is at hand when somebody has no plan yet. */
static bool is_model(const smp_reader *root)
{
    return !smp_read_member(root, "smp_plan", false) &&
           (smp_read_member(root, "model_type", false) ||
            smp_read_member(root, "architectures", false));
}

static bool read_version(const smp_reader *root)
{
    uint64_t version = 0;
    if (is_model(root)) {
        const smp_place place = {.file = smp_json_place(root->json, root->object).file};
        const smp_status st =
            smp_fail(root->errors, SMP_INPUT, &place,
                     "is a model's config.json and no plan: smp-plan makes a plan of it, and "
                     "--model takes it as it is");
        (void)st;
        return false;
    }
    if (!smp_read_u64(root, "smp_plan", true, 0, UINT64_MAX, &version)) {
        return false;
    }
    if (version != FORMAT_VERSION) {
        const smp_place place =
            smp_json_place(root->json, smp_read_member(root, "smp_plan", true));
        const smp_status st =
            smp_fail(root->errors, SMP_INPUT, &place,
                     "%llu: this program reads plan files of version %d",
                     (unsigned long long)version, FORMAT_VERSION);
        (void)st;
        return false;
    }
    return true;
}

static void read_plan(const smp_reader *root, const char *path, smp_arena *arena,
                      smp_planned *planned)
{
    static const char *const known[] = {"smp_plan", "model", "cluster", "profile", "batch",
                                        "settings", "predicted", NULL};
    if (!read_version(root)) {
        return;
    }
    smp_read_reject_unknown(root, known);
    read_model(root, path, planned);
    read_cluster(root, path, planned);
    read_profile(root, path, planned);
    read_batch(root, &planned->job.batch);
    read_settings(root, arena, &planned->job.settings);
    read_predicted(root, planned);
}

static bool act_alike(const smp_settings *a, const smp_settings *b)
{
    size_t n = 0;
    const smp_setting_info *table = smp_settings_table(&n);
    for (size_t i = 0; i < n; i++) {
        char one[96], other[96];
        (void)smp_settings_get(a, table[i].key, one, sizeof(one));
        (void)smp_settings_get(b, table[i].key, other, sizeof(other));
        if (strcmp(one, other) != 0) {
            return false;
        }
    }
    return true;
}

/* A plan says every value that acts, also those that a rule gave: sequence_parallel by the
 * tensor degree, the efficiency by the stack.  Those are not held against what is set later, so
 * that they follow it as they would without a plan; and offloading yields where it cannot be.
 */
static void loosen(smp_job *job)
{
    static const smp_key by_rule[] = {
        SMP_KEY_SEQUENCE_PARALLEL, SMP_KEY_ACCUMULATION, SMP_KEY_RANK_ORDER,
        SMP_KEY_REDUCE_DTYPE, SMP_KEY_ATTENTION_KERNEL, SMP_KEY_LOSS_KERNEL,
        SMP_KEY_EFFICIENCY};
    smp_job acting = *job;
    if (!smp_job_try(&acting)) {
        return; /* resolving it has said why */
    }
    for (size_t i = 0; i < sizeof(by_rule) / sizeof(by_rule[0]); i++) {
        smp_job without = *job;
        smp_settings_unset(&without.settings, by_rule[i]);
        smp_job resolved = without;
        if (smp_job_try(&resolved) && act_alike(&resolved.settings, &acting.settings)) {
            job->settings = without.settings;
        }
    }
    job->settings.yields |= UINT64_C(1) << SMP_KEY_OFFLOAD |
                            UINT64_C(1) << SMP_KEY_OFFLOAD_LAYERS;
}

smp_status smp_plan_read(const char *path, smp_errors *errors, smp_planned **planned_p)
{
    smp_json *json = NULL;
    smp_status st = smp_json_read(path, errors, &json);
    if (st != SMP_OK) {
        return st;
    }
    smp_arena *arena = smp_arena_create();
    planned_box *box = SMP_ARENA_NEW(arena, planned_box);
    smp_planned *planned = &box->planned;
    box->arena = arena;
    smp_settings_init(&planned->job.settings);
    const size_t before = smp_errors_count(errors);
    smp_reader root;
    st = smp_read_root(json, errors, &root);
    if (st == SMP_OK) {
        read_plan(&root, smp_arena_strdup(arena, path), arena, planned);
    }
    planned->job.model = planned->model;
    planned->job.cluster = planned->cluster;
    planned->job.profile = planned->profile;
    if (smp_errors_count(errors) == before) { /* the rules between settings */
        smp_job check = planned->job;
        st = smp_job_resolve(&check, errors);
        loosen(&planned->job);
    }
    smp_json_destroy(json);
    if (smp_errors_count(errors) > before) {
        smp_planned_destroy(planned);
        return st == SMP_OK ? SMP_INPUT : st;
    }
    *planned_p = planned;
    return SMP_OK;
}

void smp_planned_destroy(smp_planned *planned)
{
    if (planned) {
        smp_model_destroy(planned->model);
        smp_cluster_destroy(planned->cluster);
        smp_profile_destroy(planned->profile);
        smp_arena_destroy(((planned_box *)planned)->arena);
    }
}
