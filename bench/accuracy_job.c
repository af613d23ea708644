/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A published row as a job of libsmp: model from the sizes that the row states, cluster and
 * profile from its GPU and network, settings from its layout; and the prediction.
 */
#include "config.h"

#include "bench/accuracy.h"

#include "base/json.h"
#include "cost/cost.h"
#include "model/model.h"
#include "sim/sim.h"
#include "sim/what_if.h"
#include "step/program.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool starts(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

static bool says(const char *text, const char *word)
{
    return text != NULL && strstr(text, word) != NULL;
}

/* ------------------------------------------------------------------- model */

/* Which family a name belongs to, and the published configuration that it varies. */
static const struct { const char *name, *family, *file; } families[] = {
    {"MPT", "mpt", NULL},
    {"GPT-OSS-120B", NULL, "openai--gpt-oss-120b"},
    {"GPT", "gpt2", NULL},
    {"BLOOM", "bloom", NULL},
    {"Mixtral", "mixtral", NULL},
    {"Qwen3-30B-A3B", NULL, "Qwen--Qwen3-30B-A3B"},
    {"Qwen3-235B", NULL, "Qwen--Qwen3-30B-A3B"},
    {"DeepSeek-V2", NULL, "deepseek-ai--DeepSeek-V2-Lite"},
    {"DeepSeek-V3", NULL, "deepseek-ai--DeepSeek-V3"},
    {"Moonlight", NULL, "deepseek-ai--DeepSeek-V3"},
    {"Llama4", NULL, "meta-llama--Llama-4-Scout-17B-16E-Instruct"},
    {"InternLM", "llama", NULL},
    {"Llama", "llama", NULL},
    {"TinyLlama", "llama", NULL},
};

static void put(cJSON *config, const char *key, double value)
{
    cJSON_DeleteItemFromObjectCaseSensitive(config, key);
    (void)cJSON_AddNumberToObject(config, key, value);
}

/* A size of the row under the configuration's key, where the row states it. */
static void copy_size(cJSON *config, const char *key, const published *p, const char *from)
{
    const double value = published_number(p->model, from);

    if (value > 0) {
        put(config, key, value);
    }
}

static double padded_vocab(const published *p)
{
    const double vocab = published_number(p->model, "vocab");
    const uint32_t m = p->stack->vocab_multiple;

    return m == 0 ? vocab : (double)(((uint64_t)vocab + m - 1) / m * m);
}

/* Keys that llama, mixtral and the published configurations share. */
static void put_common(cJSON *config, const published *p)
{
    static const char *const keys[][2] = {
        {"num_hidden_layers", "layers"}, {"hidden_size", "hidden"},
        {"num_attention_heads", "heads"}, {"num_key_value_heads", "kv_heads"},
        {"intermediate_size", "ffn"}};

    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        copy_size(config, keys[i][0], p, keys[i][1]);
    }
    put(config, "vocab_size", padded_vocab(p));
}

/* Learned positions sized to the sequence, as GPT and MPT training does; MPT's alibi of ours
 * costs the same and has no table of positions (0.1 % of the parameters). */
static void put_gpt(cJSON *config, const published *p)
{
    const double dropout = p->stack->dropout;
    const double hidden = published_number(p->model, "hidden");
    const double ffn = published_number(p->model, "ffn");

    copy_size(config, "n_embd", p, "hidden");
    copy_size(config, "n_layer", p, "layers");
    copy_size(config, "n_head", p, "heads");
    put(config, "n_inner", ffn > 0 ? ffn : 4 * hidden);
    put(config, "n_positions", (double)p->seq_len);
    put(config, "vocab_size", padded_vocab(p));
    put(config, "resid_pdrop", dropout);
    put(config, "embd_pdrop", dropout);
    put(config, "attn_pdrop", dropout);
}

static void put_mpt(cJSON *config, const published *p)
{
    const double hidden = published_number(p->model, "hidden");

    copy_size(config, "d_model", p, "hidden");
    copy_size(config, "n_layers", p, "layers");
    copy_size(config, "n_heads", p, "heads");
    put(config, "expansion_ratio", published_number(p->model, "ffn") / hidden);
    put(config, "max_seq_len", (double)p->seq_len);
    put(config, "vocab_size", padded_vocab(p));
    (void)cJSON_AddTrueToObject(config, "no_bias");
    cJSON *attention = cJSON_AddObjectToObject(config, "attn_config");
    (void)cJSON_AddTrueToObject(attention, "alibi");
}

static void put_bloom(cJSON *config, const published *p)
{
    copy_size(config, "hidden_size", p, "hidden");
    copy_size(config, "n_layer", p, "layers");
    copy_size(config, "n_head", p, "heads");
    put(config, "vocab_size", padded_vocab(p));
}

/* Expert layers, and the latent attention of those that have it. */
static void put_experts(cJSON *config, const published *p)
{
    static const char *const names[] = {"num_local_experts", "num_experts", "n_routed_experts"};
    static const char *const keys[][2] = {
        {"num_experts_per_tok", "top_k"}, {"moe_intermediate_size", "moe_ffn"},
        {"q_lora_rank", "q_lora_rank"}, {"kv_lora_rank", "kv_lora_rank"},
        {"qk_nope_head_dim", "qk_nope_head_dim"}, {"qk_rope_head_dim", "qk_rope_head_dim"},
        {"v_head_dim", "v_head_dim"}, {"first_k_dense_replace", "dense_layers"}};
    const double shared = published_number(p->model, "shared_ffn");
    const double ffn = published_number(p->model, "moe_ffn");

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (published_states(config, names[i])) {
            copy_size(config, names[i], p, "experts");
        }
    }
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (published_states(config, keys[i][0]) || i >= 2) {
            copy_size(config, keys[i][0], p, keys[i][1]);
        }
    }
    if (published_states(config, "n_shared_experts") && shared > 0 && ffn > 0) {
        put(config, "n_shared_experts", shared / ffn);
    }
    if (published_states(p->model, "kv_lora_rank") &&
        !published_states(p->model, "q_lora_rank")) {
        cJSON_DeleteItemFromObjectCaseSensitive(config, "q_lora_rank");
        (void)cJSON_AddNullToObject(config, "q_lora_rank");
    }
}

static void put_llama(cJSON *config, const published *p)
{
    const char *name = published_string(p->model, "name");

    put_common(config, p);
    copy_size(config, "head_dim", p, "head_dim");
    put(config, "max_position_embeddings", (double)p->seq_len);
    (void)cJSON_AddBoolToObject(config, "tie_word_embeddings", starts(name, "Llama-3.2"));
    /* InternLM's first generation has biases on q, k, v and the output. */
    (void)cJSON_AddBoolToObject(config, "attention_bias", starts(name, "InternLM"));
}

static void put_mixtral(cJSON *config, const published *p)
{
    put_common(config, p);
    copy_size(config, "num_local_experts", p, "experts");
    copy_size(config, "num_experts_per_tok", p, "top_k");
}

static const struct { const char *family; void (*put)(cJSON *, const published *); } puts_[] = {
    {"mpt", put_mpt}, {"gpt2", put_gpt}, {"bloom", put_bloom}, {"llama", put_llama},
    {"mixtral", put_mixtral}};

static cJSON *family_config(const char *family, const published *p)
{
    cJSON *config = cJSON_CreateObject();
    size_t i = 0;

    (void)cJSON_AddStringToObject(config, "model_type", family);
    while (strcmp(puts_[i].family, family) != 0) {
        i++;
    }
    puts_[i].put(config, p);
    return config;
}

static cJSON *load(const char *path)
{
    smp_errors *quiet = smp_errors_create();
    smp_text text = {0};
    cJSON *root = NULL;

    if (smp_json_load(path, quiet, &text) == SMP_OK) {
        root = cJSON_ParseWithLength(text.data, text.length);
    }
    smp_text_free(&text);
    smp_errors_destroy(quiet);
    return root;
}

static cJSON *model_config(const published *p, const char *models, smp_arena *arena)
{
    const char *name = published_string(p->model, "name");
    size_t i = 0, n = sizeof families / sizeof families[0];

    while (i < n && !starts(name, families[i].name)) {
        i++;
    }
    if (i == n) {
        return NULL;
    }
    if (families[i].file == NULL) {
        return family_config(families[i].family, p);
    }
    cJSON *config = load(smp_arena_printf(arena, "%s/%s.json", models, families[i].file));
    if (config != NULL && !published_states(config, "layer_types")) {
        put_common(config, p);
        put_experts(config, p);
    }
    return config;
}

static smp_model *make_model(const published *p, const char *models, smp_arena *arena,
                             smp_errors *errors)
{
    smp_model *model = NULL;
    cJSON *config = model_config(p, models, arena);
    char *text = config ? cJSON_PrintUnformatted(config) : NULL;

    if (text != NULL && smp_model_parse(text, strlen(text), "row", p->id, errors, &model)) {
        model = NULL;
    }
    cJSON_free(text);
    cJSON_Delete(config);
    return model;
}

/* ----------------------------------------------------- cluster and profile */

/* What a row calls its GPU, and the shipped cluster with it; the first that matches.  Network
 * not stated: that of the DGX of this GPU. */
static const struct { const char *gpu, *cluster; } gpus[] = {
    {"GB200", NULL}, {"GB300", NULL}, {"B300", NULL}, {"MI300X", NULL},
    {"A100 40GB (p4d)", "p4d.24xlarge"},
    {"A100", "dgx-a100"}, {"A800", "dgx-a100"}, {"H100", "dgx-h100"},
    {"H200", "dgx-h200"}, {"B200", "dgx-b200"},
};

static const char *cluster_name(const published *p)
{
    for (size_t i = 0; i < sizeof gpus / sizeof gpus[0]; i++) {
        if (starts(p->gpu, gpus[i].gpu)) {
            return gpus[i].cluster;
        }
    }
    return NULL;
}

static void set_figure(cJSON *object, const char *key, double value)
{
    cJSON *figure = cJSON_GetObjectItemCaseSensitive(object, key);

    if (figure != NULL) {
        put(figure, "value", value);
    }
}

/* What the row says of its machines and the shipped cluster does not. */
static void adapt_cluster(cJSON *cluster, const published *p)
{
    cJSON *network = cJSON_GetObjectItemCaseSensitive(cluster, "network");

    if (starts(p->gpu, "A100 40GB") && !says(p->gpu, "p4d")) {
        cJSON_DeleteItemFromObjectCaseSensitive(cluster, "gpu");
        (void)cJSON_AddStringToObject(cluster, "gpu", "a100-sxm-40gb");
        set_figure(cluster, "gpu_memory_bytes", 40960.0 * 1048576);
    }
    /* Four ports of 100 Gb/s, as InternEvo's RoCE and Jean Zay's Omni-Path. */
    if (says(p->interconnect, "4 * 100Gb") || says(p->interconnect, "4x Omni-Path")) {
        put(network, "nics", 4);
        set_figure(network, "nic_Bps", 12.5e9);
    }
    /* A800: the A100 with 400 GB/s of NVLink, both directions together. */
    if (starts(p->gpu, "A800")) {
        set_figure(cJSON_GetObjectItemCaseSensitive(cluster, "link"), "Bps", 200e9);
    }
    /* torchtitan's performance.md: 95.00 GiB as PyTorch reports, 2.4 TB/s. */
    if (says(p->gpu, "HBM2e")) {
        set_figure(cluster, "gpu_memory_bytes", 96.0 * 1073741824);
    }
}

static smp_cluster *make_cluster(const published *p, const char *name, smp_errors *errors)
{
    smp_cluster *cluster = NULL;
    char *path = NULL;

    if (smp_find_config("clusters", name, errors, &path)) {
        return NULL;
    }
    cJSON *root = load(path);
    free(path);
    adapt_cluster(root, p);
    char *text = cJSON_PrintUnformatted(root);
    if (text == NULL || smp_cluster_parse(text, strlen(text), name, name, errors, &cluster)) {
        cluster = NULL;
    } else if (smp_cluster_set_gpus(cluster, p->gpus, errors)) {
        smp_cluster_destroy(cluster);
        cluster = NULL;
    }
    cJSON_free(text);
    cJSON_Delete(root);
    return cluster;
}

/* A power limit below that of the profile: what the chip switches takes power with the cube of
 * its clock (voltage follows the clock), 100 W it takes anyway. */
static void limit_power(cJSON *profile, double watts, double usual_watts)
{
    const cJSON *rate = cJSON_GetObjectItemCaseSensitive(profile, "sustained_flops");
    const double still = 100;

    set_figure(profile, "sustained_flops",
               published_number(rate, "value") *
                   cbrt((watts - still) / (usual_watts - still)));
}

static smp_profile *make_profile(const published *p, const smp_cluster *cluster,
                                 smp_errors *errors)
{
    smp_profile *profile = NULL;
    char *path = NULL;
    const char *name = smp_cluster_gpu(cluster);

    if (smp_find_config("profiles", name, errors, &path)) {
        return NULL;
    }
    cJSON *root = load(path);
    free(path);
    if (says(p->gpu, "HBM2e")) {
        set_figure(root, "memory_Bps", 2.4e12);
    }
    if (says(p->gpu, "500W")) {
        limit_power(root, 500, 700);
    }
    char *text = cJSON_PrintUnformatted(root);
    if (text == NULL || smp_profile_parse(text, strlen(text), name, name, errors, &profile)) {
        profile = NULL;
    }
    cJSON_free(text);
    cJSON_Delete(root);
    return profile;
}

/* ---------------------------------------------------------------- settings */

static void set(smp_settings *settings, smp_errors *errors, const char *key, const char *value)
{
    if (smp_settings_set(settings, key, value, NULL, errors)) {
        return; /* the collector has the message */
    }
}

static void set_number(smp_settings *settings, smp_errors *errors, const char *key, uint64_t n)
{
    char text[24];

    (void)snprintf(text, sizeof text, "%llu", (unsigned long long)n);
    set(settings, errors, key, text);
}

/* ZeRO stages: 3 shares all, 1 and 2 the optimizer state over the stated ranks (else all that
 * hold a copy), 0 nothing. */
static void set_sharding(const published *p, smp_settings *s, smp_errors *errors)
{
    const uint32_t copies = p->gpus / p->tensor;

    if (p->zero == 3) {
        set(s, errors, "sharding", "full");
        set_number(s, errors, "hybrid_shard_degree", p->fsdp);
    } else if (p->zero > 0) {
        set(s, errors, "sharding", "optimizer");
        set_number(s, errors, "hybrid_shard_degree",
                   p->optimizer_shard > 0 ? p->optimizer_shard : copies);
    } else {
        set(s, errors, "sharding", "none");
        set_number(s, errors, "hybrid_shard_degree", 1);
    }
}

static void set_experts(const published *p, smp_settings *s, smp_errors *errors)
{
    set_number(s, errors, "expert_parallel_degree", p->expert);
    if (p->expert > 1) {
        /* Megatron's order of ranks, tp-cp-ep-dp-pp (parallel_state.py), and memory for the
         * rows that arrive, here their mean. */
        set(s, errors, "expert_layout", "nested");
        set(s, errors, "rank_order", "tensor,context,expert,shard,replica");
        set(s, errors, "moe_load_balancing", "balanced");
        set(s, errors, "moe_rows_factor", "1");
    }
    /* HybridEP is priced as DeepEP: both send a token to a node once. */
    if (says(p->notes, "DeepEP") || says(p->notes, "HybridEP") || says(p->id, "DeepEP")) {
        set(s, errors, "moe_dispatch_kernels", "deepep");
    }
    if (says(p->notes, "capacity factor 1 with padding")) {
        set(s, errors, "capacity_factor", "1");
        set(s, errors, "capacity_pad", "true");
    }
}

static void set_recompute(const published *p, smp_settings *s, smp_errors *errors)
{
    char text[32];

    /* Every second layer costs what the first half does. */
    if (strcmp(p->recompute, "every second layer") == 0) {
        (void)snprintf(text, sizeof text, "first:%u",
                       (unsigned)published_number(p->model, "layers") / 2);
        set(s, errors, "checkpointing", text);
    } else {
        set(s, errors, "checkpointing", p->recompute);
    }
}

static void set_all(published *p, smp_settings *s, smp_errors *errors, smp_arena *arena)
{
    const cJSON *sp = cJSON_GetObjectItemCaseSensitive(p->parallel, "sp");
    bool sequence = cJSON_IsBool(sp) ? cJSON_IsTrue(sp) : p->stack->sequence_parallel;

    for (size_t i = 0; p->stack->settings[i] != NULL; i++) {
        if (smp_settings_assign(s, p->stack->settings[i], "--set", errors)) {
            return;
        }
    }
    if (says(p->dtype, "pure")) { /* Composer's PURE reduces in the precision */
        set(s, errors, "reduce_dtype", "bf16");
    }
    set(s, errors, "precision", says(p->dtype, "fp16") ? "fp16" : "bf16");
    set(s, errors, "attention", p->stack->naive_attention ? "naive" : "flash");
    set_number(s, errors, "tensor_parallel_degree", p->tensor);
    set_sharding(p, s, errors);
    set_experts(p, s, errors);
    set_recompute(p, s, errors);
    set_number(s, errors, "micro_batch", p->micro_batch);
    set(s, errors, "accumulation", p->stack->last && p->zero < 2 ? "last" : "every");
    if (p->tensor > 1) {
        set(s, errors, "sequence_parallel", sequence ? "true" : "false");
        if (!cJSON_IsBool(sp)) {
            p->unstated = published_join(arena, p->unstated, "sequence parallelism");
        }
    }
    if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(p->row, "compile"))) {
        set(s, errors, "compile", "true");
    }
    if (says(p->notes, "overlap disabled")) {
        set(s, errors, "overlap_reduce", "false");
        set(s, errors, "overlap_gather", "false");
    }
    if (says(p->id, "chunkedCE")) { /* torchtune's CEWithChunkedOutputLoss: 8 parts */
        set(s, errors, "loss_chunks", "8");
    }
}

/* What is stated and not modelled, so that the reader may weigh the row. */
static void note_beside(published *p, smp_arena *arena)
{
    static const struct { const char *word, *what; } marks[] = {
        {"asyncTP", "async TP"}, {"HybridEP", "HybridEP"}, {"tp-comm-overlap", "TP overlap"}};

    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        if (says(p->notes, marks[i].word) || says(p->id, marks[i].word)) {
            p->beside = published_join(arena, p->beside, marks[i].what);
        }
    }
}

/* -------------------------------------------------------------- prediction */

/* Whether FLOP/s and time that a row states agree with the model's operations, which the
 * sources count in several ways: by causal attention or not, with what is recomputed or not. */
static bool agrees(const published *p, const smp_report *r)
{
    const cJSON *m = cJSON_GetObjectItemCaseSensitive(p->row, "measured");
    const double stated = published_number(m, "tflops_per_gpu") * 1e12 * p->gpus *
                          p->measured_s;

    return stated <= 0 || (stated > 0.4 * r->model_flops && stated < 2.5 * r->model_flops);
}

/* Which part of the model a task's time comes from. */
static part part_of(const smp_task *task)
{
    switch (smp_op_info_of(task->op)->klass) {
    case SMP_CLASS_MATMUL: return PART_MATMUL;
    case SMP_CLASS_ATTENTION: return PART_ATTENTION;
    case SMP_CLASS_MEMORY: return PART_MEMORY;
    case SMP_CLASS_COLLECTIVE:
    case SMP_CLASS_HOST_COPY: break;
    }
    return PART_WAITING;
}

static void take_parts(published *p, const smp_simulation *simulation)
{
    const uint32_t c = simulation->slowest;
    const smp_program *program = simulation->step->programs[c];

    for (uint32_t t = 0; t < program->n_task; t++) {
        p->parts_s[part_of(&program->tasks[t])] += 1e-12 * (double)simulation->path_ps[c][t];
    }
}

static void take(published *p, const smp_report *r)
{
    if (!agrees(p, r)) {
        p->reason = "its own FLOP/s contradict its batch and time";
    }
    const smp_time_parts *t = &r->time;
    const int64_t idle = t->shard_ps + t->replica_ps + t->tensor_ps + t->expert_ps +
                         t->world_ps + t->offload_ps;

    memset(p->parts_s, 0, sizeof p->parts_s);
    p->predicted_s = r->step_time_s;
    p->low_s = r->interval_low_s;
    p->high_s = r->interval_high_s;
    p->idle_frac = (double)idle / (double)r->step_ps;
    /* PyTorch's allocator has neither the context nor NCCL's buffers. */
    p->predicted_bytes = (double)(p->memory == MEMORY_DEVICE ? r->memory.peak_bytes
                                                             : r->memory.arena_bytes);
    p->fits = r->memory.fits;
}

/* What PyTorch's allocator reserves for the step, with its default segments and, as FSDP does,
 * at most two gathers in flight. */
static smp_status take_reserved(published *p, const smp_simulation *simulation,
                                smp_errors *errors)
{
    smp_allocator_answer answer;
    smp_status status = SMP_OK;

    if (!p->stack->reserved || p->memory != MEMORY_ALLOCATOR) {
        return SMP_OK;
    }
    status = smp_allocator_answer_find(simulation, "caching", errors, &answer);
    for (int i = 0; status == SMP_OK && i < SMP_ALLOCATOR_ROWS; i++) {
        if (!answer.rows[i].expandable && answer.rows[i].limited) {
            p->predicted_bytes = (double)answer.rows[i].reserved_bytes;
        }
    }
    return status;
}

static smp_status simulate(published *p, smp_job *job, smp_errors *errors)
{
    smp_step *step = NULL;
    smp_simulation *simulation = NULL;
    smp_status status = smp_job_resolve(job, errors);

    if (status == SMP_OK) {
        status = smp_step_lower(job, errors, &step);
    }
    if (status == SMP_OK) {
        status = smp_simulate(job, step, errors, &simulation);
    }
    if (status == SMP_OK) {
        take(p, smp_simulation_report(simulation));
        take_parts(p, simulation);
        status = take_reserved(p, simulation, errors);
    }
    smp_simulation_destroy(simulation);
    smp_step_destroy(step);
    return status;
}

void published_predict(published *p, const char *models, double efficiency, smp_arena *arena)
{
    const char *name = cluster_name(p);

    if (name == NULL) {
        p->reason = "GPU without a profile";
        return;
    }
    smp_errors *errors = smp_errors_create();
    smp_profile *profile = NULL;
    smp_cluster *cluster = make_cluster(p, name, errors);
    smp_model *model = make_model(p, models, arena, errors);
    p->profile = cluster ? smp_arena_strdup(arena, smp_cluster_gpu(cluster)) : NULL;
    profile = cluster ? make_profile(p, cluster, errors) : NULL;
    if (model != NULL && profile != NULL) {
        smp_job job = {.model = model, .cluster = cluster, .profile = profile,
                       .batch = {.seq_len = p->seq_len, .global_batch = p->global_batch}};
        smp_settings_init(&job.settings);
        char text[24];
        (void)snprintf(text, sizeof text, "%.6f", efficiency);
        set(&job.settings, errors, "efficiency", text);
        set_all(p, &job.settings, errors, arena);
        note_beside(p, arena);
        p->predicted_s = 0;
        if (smp_errors_count(errors) == 0 && simulate(p, &job, errors)) {
            p->predicted_s = 0;
        }
    }
    if (p->predicted_s <= 0 && p->reason == NULL) {
        p->reason = smp_errors_count(errors) > 0
                        ? smp_arena_printf(arena, "refused: %s", smp_errors_text(errors, 0))
                        : "no family for the model";
    }
    smp_profile_destroy(profile);
    smp_cluster_destroy(cluster);
    smp_model_destroy(model);
    smp_errors_destroy(errors);
}
