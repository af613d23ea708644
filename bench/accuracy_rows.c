/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of published training runs: what each states, and why some cannot be expressed.
 *
 * The rule for what a row leaves open is here and in docs/accuracy.md, and is the same for
 * every row of a stack.
 */
#include "config.h"

#include "bench/accuracy.h"

#include "base/json.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Sources: FSDP1's MixedPrecision (pytorch.org/docs/stable/fsdp.html; Composer's
 * get_mixed_precision: DEFAULT reduces in fp32, PURE in the precision); torchtitan's
 * parallelize (parameters bf16, reductions fp32); Megatron-LM's arguments (bf16 turns on
 * accumulate-allreduce-grads-in-fp32, gradients are reduced at the end of accumulation, hidden
 * and attention dropout are 0.1); DeepSpeed communication_data_type (the parameters' type);
 * InternEvo doc/en/usage.md (zero1; tensor mode mtp has no sequence parallelism); llm.c
 * train_gpt2.cu (gradients in bf16, vocabulary padded to 128); torchtune
 * full_finetune_single_device (every state in bf16).  Logits in fp32 for the loss: torchtitan
 * components/loss.py, Megatron core/tensor_parallel/cross_entropy.py (both .float()), torchtune
 * modules/loss (chunks one by one). */
static const stack stacks[] = {
    {.name = "fsdp1", .software = "fsdp1", .settings = {"stack=fsdp1", "reduce_dtype=fp32"}},
    /* submit_benchmarks.py: --attn_impl triton; MPT's loss_fn is fused_crossentropy */
    {.name = "llm-foundry", .software = "fsdp1",
     .settings = {"stack=fsdp1", "reduce_dtype=fp32", "attention_kernel=triton",
                  "loss_kernel=fused"}},
    /* torchtitan logs reserved memory (components/metrics.py) */
    {.name = "fsdp2", .software = "fsdp2", .settings = {"stack=fsdp2"}, .reserved = true,
     .sequence_parallel = true},
    /* the loss was not compiled from December 2024 (pull request 755) to April 2025 (1033) */
    {.name = "fsdp2-2024", .software = "fsdp2",
     .settings = {"stack=fsdp2", "loss_kernel=eager"}, .reserved = true,
     .sequence_parallel = true},
    {.name = "megatron", .software = "megatron", .settings = {"stack=megatron"}, .last = true,
     .sequence_parallel = true},
    /* _cef: --cross-entropy-loss-fusion --cross-entropy-fusion-impl te (docs/strategy-zh.md of
     * SimuMax); the gradient takes the place of the logits, in their type
     * (transformer_engine/pytorch/triton/cross_entropy.py) */
    {.name = "megatron-te-loss", .software = "megatron",
     .settings = {"stack=megatron", "loss_kernel=fused"}, .last = true,
     .sequence_parallel = true},
    {.name = "megatron-2021", .software = "megatron-2021", .settings = {"stack=megatron"},
     .last = true, .naive_attention = true, .dropout = 0.1},
    {.name = "internevo", .software = "internevo", .settings = {"stack=deepspeed"},
     .last = true},
    {.name = "deepspeed", .software = "deepspeed",
     .settings = {"stack=deepspeed", "precision=fp16"}, .naive_attention = true,
     .dropout = 0.1},
    {.name = "llm.c", .software = "llm.c",
     .settings = {"reduce_dtype=bf16", "attention_kernel=flash2"}, .last = true,
     .vocab_multiple = 128},
    {.name = "torchtune", .software = "torchtune",
     .settings = {"stack=fsdp2", "master=bf16", "reduce_dtype=bf16"}, .last = true},
};

/* The first that matches file and, where given, the start of the id. */
static const struct { const char *source, *id, *stack; uint64_t seq_len; } origins[] = {
    {"llmfoundry", "", "llm-foundry", 0},
    /* llama3 configurations: 8192 tokens */
    {"torchtitan", "torchtitan2025", "fsdp2", 8192},
    {"torchtitan", "torchtitan_h200", "fsdp2", 8192},
    {"torchtitan", "", "fsdp2-2024", 8192},
    /* torchao's table: H100 of early 2025, B200 of late 2025 */
    {"torchao", "torchao_llama3_8b_B200", "fsdp2", 0},
    {"torchao", "", "fsdp2-2024", 0},
    {"pytorch_blogs", "float8", "fsdp2", 0},
    {"pytorch_blogs", "", "fsdp1", 0},
    {"internevo", "", "internevo", 2048}, /* configs/7B_sft.py */
    {"megatron_sc21", "sc21_t2_zero3", "deepspeed", 0},
    {"megatron_sc21", "", "megatron-2021", 0},
    {"korthikanti2022", "", "megatron-2021", 0},
    {"bloom", "", "megatron-2021", 0},
    {"deepspeed_azure", "", "deepspeed", 0},
    {"mlengineering_zero3_offload", "", "deepspeed", 0},
    {"llmc", "", "llm.c", 0},
    {"misc", "torchtune", "torchtune", 0},
    {"misc", "tinyllama", "fsdp1", 0},
    {"simumax_b200", "", "megatron-te-loss", 0},
    {"", "", "megatron", 0},
};

static const stack *find_stack(const char *name)
{
    size_t i = 0;

    while (strcmp(stacks[i].name, name) != 0) {
        i++;
    }
    return &stacks[i];
}

double published_number(const cJSON *object, const char *key)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, key);

    return cJSON_IsNumber(value) ? value->valuedouble : 0;
}

const char *published_string(const cJSON *object, const char *key)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, key);

    return cJSON_IsString(value) ? value->valuestring : NULL;
}

bool published_states(const cJSON *object, const char *key)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, key);

    return value != NULL && !cJSON_IsNull(value);
}

const char *published_join(smp_arena *arena, const char *list, const char *word)
{
    return *list == '\0'              ? word
           : strstr(list, word) != NULL ? list
                                        : smp_arena_printf(arena, "%s, %s", list, word);
}

static uint32_t count(const cJSON *object, const char *key)
{
    const double value = published_number(object, key);

    return value > 0 && value < 1e9 ? (uint32_t)value : 0;
}

static bool says(const char *text, const char *word)
{
    return text != NULL && strstr(text, word) != NULL;
}

static void read_stack(published *p)
{
    size_t i = 0;

    while ((*origins[i].source != '\0' && strcmp(origins[i].source, p->source) != 0) ||
           strncmp(p->id, origins[i].id, strlen(origins[i].id)) != 0) {
        i++;
    }
    p->stack = find_stack(origins[i].stack);
    if (p->seq_len == 0) {
        p->seq_len = origins[i].seq_len;
    }
}

static void read_stated(published *p)
{
    p->gpu = published_string(p->row, "gpu");
    p->interconnect = published_string(p->row, "interconnect");
    p->dtype = published_string(p->row, "dtype");
    p->recompute = published_string(p->row, "recompute");
    p->notes = published_string(p->row, "notes");
    p->gpus = count(p->row, "gpus");
    p->gpus_per_node = count(p->row, "gpus_per_node");
    p->micro_batch = count(p->row, "micro_batch");
    p->global_batch = count(p->row, "global_batch");
    p->seq_len = count(p->row, "seq_len");
    p->tensor = count(p->parallel, "tp");
    p->fsdp = count(p->parallel, "fsdp");
    p->replicas = count(p->parallel, "replicas");
    p->expert = count(p->parallel, "ep");
    p->zero_stated = published_states(p->parallel, "zero");
    p->zero = count(p->parallel, "zero");
    p->optimizer_shard = count(p->parallel, "optimizer_shard_degree");
    p->unstated = "";
    p->beside = "";
}

/* Floating point operations of one step as the table's authors count them, where they give
 * the formula: 96 B s l h^2 (1 + s / 6h + V / 16 l h) with recomputation [Narayanan et al., SC
 * 2021, section 5.1], 72 B s l h^2 (1 + s / 6h + V / 12 l h) without [Megatron-LM's README];
 * it turns their FLOP/s into the step time it was made from. */
static double stated_flops(const published *p)
{
    const bool recomputed = strcmp(p->source, "megatron_sc21") == 0;
    const double s = (double)p->seq_len, l = published_number(p->model, "layers");
    const double h = published_number(p->model, "hidden");
    const double v = published_number(p->model, "vocab"), k = recomputed ? 96 : 72;

    if ((!recomputed && strcmp(p->source, "megatron_core_h100") != 0) || h <= 0 || l <= 0) {
        return 0;
    }
    return k * (double)p->global_batch * s * l * h * h *
           (1 + s / (6 * h) + v / (k / 6 * l * h));
}

/* Step time as stated, from tokens/s, or from FLOP/s by the source's own formula. */
static void read_measured(published *p)
{
    const cJSON *m = cJSON_GetObjectItemCaseSensitive(p->row, "measured");
    const double tokens = (double)p->global_batch * (double)p->seq_len;
    const double rate = published_number(m, "tokens_per_s_per_gpu");
    const double flops = published_number(m, "tflops_per_gpu") * 1e12 * p->gpus;

    p->measured_s = published_number(m, "step_time_s");
    if (p->measured_s <= 0 && rate > 0 && p->gpus > 0) {
        p->measured_s = tokens / (rate * p->gpus);
    }
    if (p->measured_s <= 0 && flops > 0) {
        p->measured_s = stated_flops(p) / flops;
    }
    p->out_of_memory = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(m, "oom"));
    /* Tools that print "GB" of device memory divide by 2^30. */
    static const struct { const char *key; memory_kind kind; } keys[] = {
        {"peak_mem_gib", MEMORY_ALLOCATOR}, {"peak_mem_gb", MEMORY_ALLOCATOR},
        {"peak_mem_gb_nvidia_smi", MEMORY_DEVICE}};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0] && p->measured_bytes <= 0; i++) {
        p->measured_bytes = published_number(m, keys[i].key) * 1073741824.0;
        p->memory = p->measured_bytes > 0 ? keys[i].kind : MEMORY_NONE;
    }
}

/* The written rule for what a row leaves open: degrees that only split nothing are 1; no
 * accumulation; ZeRO-1 in Megatron (its recipes' distributed optimizer); no recomputation,
 * which is every stack's default; the sequence of the stack's configuration. */
static void fill_unstated(published *p, smp_arena *arena)
{
    const bool recipe = strcmp(p->stack->name, "megatron") == 0;

    if (!published_states(p->row, "seq_len")) {
        p->unstated = published_join(arena, p->unstated, "sequence");
    }
    if (!p->zero_stated && p->gpus > 1) {
        p->zero = recipe ? 1 : 0;
        p->unstated = published_join(arena, p->unstated, "sharding");
    }
    if (p->dtype == NULL) { /* Megatron's recipes */
        p->dtype = "bf16";
        p->unstated = published_join(arena, p->unstated, "precision");
    }
    if (says(p->gpu, "power limited")) { /* by how much is not said */
        p->unstated = published_join(arena, p->unstated, "power limit");
    }
    if (p->recompute == NULL) {
        p->recompute = "none";
        p->unstated = published_join(arena, p->unstated, "recompute");
    }
    p->tensor = p->tensor > 0 ? p->tensor : 1;
    p->fsdp = p->fsdp > 0 ? p->fsdp : 1;
    p->replicas = p->replicas > 0 ? p->replicas : 1;
    p->expert = p->expert > 0 ? p->expert : 1;
    const uint64_t data_ranks = p->gpus / p->tensor;
    if (p->micro_batch == 0 && data_ranks > 0 && p->global_batch > 0) {
        p->micro_batch = p->global_batch / data_ranks;
        p->unstated = published_join(arena, p->unstated, "micro-batch");
    }
    if (p->global_batch == 0) {
        p->global_batch = p->micro_batch * data_ranks;
        p->unstated = published_join(arena, p->unstated, "global batch");
    }
}

static bool offloads_state(const published *p)
{
    const char *offload = published_string(p->row, "offload");

    return offload != NULL && strcmp(offload, "none") != 0;
}

/* Recomputation as a value of the setting checkpointing, or NULL. */
static const char *checkpointing(const published *p)
{
    static const struct { const char *stated, *value; } names[] = {
        {"none", "none"}, {"full", "full"}, {"selective (op)", "selective:op"},
        {"selective (attention core)", "selective:attention"},
        {"selective: core_attn", "selective:attention"}};

    for (size_t i = 0; p->recompute && i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i].stated, p->recompute) == 0) {
            return names[i].value;
        }
    }
    return says(p->recompute, "selective layer") ? "every second layer" : NULL;
}

/* Why a row cannot be expressed, before anything is filled in. */
static const char *why_not(const published *p)
{
    const bool degrees = published_states(p->parallel, "tp") &&
                         published_states(p->parallel, "pp");

    if (published_number(p->parallel, "pp") > 1) {
        return "pipeline parallelism";
    }
    if (published_number(p->parallel, "cp") > 1) {
        return "context parallelism";
    }
    if (says(p->dtype, "fp8") || says(p->dtype, "fp4") || says(p->dtype, "float8")) {
        return "fp8 or fp4";
    }
    if (p->dtype == NULL && strcmp(p->stack->name, "megatron") != 0) {
        return "precision not stated";
    }
    if (p->gpus == 0) {
        return "number of GPUs not stated";
    }
    if (p->gpus > 1 && !degrees) {
        return "parallel layout not stated";
    }
    if (published_number(p->model, "hidden") <= 0) {
        return "sizes of the model not stated";
    }
    if (says(p->notes, "INCONSISTENT") || says(p->notes, "AMBIGUOUS")) {
        return "contradicts itself (marked so in the table)";
    }
    if (offloads_state(p)) {
        return "offload of parameters or optimizer state";
    }
    if (says(p->id, "optinbwd")) {
        return "optimizer inside backward";
    }
    if (p->recompute != NULL && checkpointing(p) == NULL) {
        return "recomputes what no setting of checkpointing does";
    }
    if (p->micro_batch == 0 && p->global_batch == 0) {
        return "batch not stated";
    }
    if (p->seq_len == 0) {
        return "sequence not stated";
    }
    return NULL;
}

static const char *why_not_filled(const published *p)
{
    const uint64_t degrees = (uint64_t)p->tensor * p->fsdp * p->replicas;

    if (degrees != p->gpus) {
        return "degrees do not multiply to the number of GPUs";
    }
    if (p->measured_s <= 0 && p->measured_bytes <= 0) {
        return "neither time nor tokens/s nor memory measured";
    }
    return NULL;
}

static void add_row(const cJSON *row, const char *source, smp_arena *arena,
                    published_list *list)
{
    SMP_GROW(list->rows, list->n, list->capacity);
    published *p = &list->rows[list->n++];
    *p = (published){.source = source, .row = row};
    p->id = published_string(row, "id");
    p->id = p->id != NULL ? p->id : "?";
    p->model = cJSON_GetObjectItemCaseSensitive(row, "model");
    p->parallel = cJSON_GetObjectItemCaseSensitive(row, "parallel");
    read_stated(p);
    read_stack(p);
    p->reason = why_not(p);
    if (p->reason == NULL) {
        fill_unstated(p, arena);
        read_measured(p);
        p->recompute = checkpointing(p);
        p->reason = why_not_filled(p);
    }
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* "training_X.json" gives X; else NULL. */
static const char *source_of(const char *file, smp_arena *arena)
{
    const char *start = "training_", *end = ".json";
    const size_t n = strlen(file), skip = strlen(start), tail = strlen(end);

    if (n <= skip + tail || strncmp(file, start, skip) != 0 ||
        strcmp(file + n - tail, end) != 0) {
        return NULL;
    }
    return smp_arena_strndup(arena, file + skip, n - skip - tail);
}

/* Names of sources in a directory, sorted; heap. */
static size_t list_sources(const char *directory, smp_arena *arena, const char ***sources_p)
{
    const char **sources = NULL;
    size_t n = 0, capacity = 0;
    DIR *dir = opendir(directory);

    for (struct dirent *entry = dir ? readdir(dir) : NULL; entry; entry = readdir(dir)) {
        const char *source = source_of(entry->d_name, arena);
        if (source != NULL) {
            SMP_GROW(sources, n, capacity);
            sources[n++] = source;
        }
    }
    if (dir) {
        (void)closedir(dir);
    }
    if (n > 0) {
        qsort(sources, n, sizeof *sources, by_name);
    }
    *sources_p = sources;
    return n;
}

smp_status published_read(const char *directory, smp_arena *arena, smp_errors *errors,
                          published_list *list_p)
{
    const char **sources = NULL;
    const size_t n = list_sources(directory, arena, &sources);
    smp_status status = SMP_OK;

    for (size_t i = 0; i < n && status == SMP_OK; i++) {
        smp_text text = {0};
        const char *path = smp_arena_printf(arena, "%s/training_%s.json", directory,
                                            sources[i]);
        status = smp_json_load(path, errors, &text);
        cJSON *root = status == SMP_OK ? cJSON_ParseWithLength(text.data, text.length) : NULL;
        smp_text_free(&text);
        if (status == SMP_OK && !cJSON_IsArray(root)) {
            status = smp_fail(errors, SMP_INPUT, &(smp_place){.file = path},
                              "is no JSON array of runs");
        }
        const cJSON *row;
        cJSON_ArrayForEach(row, root) {
            add_row(row, sources[i], arena, list_p);
        }
        SMP_GROW(list_p->documents, list_p->n_document, list_p->document_capacity);
        list_p->documents[list_p->n_document++] = root;
    }
    free(sources);
    return status;
}

void published_destroy(published_list *list)
{
    for (size_t i = 0; i < list->n_document; i++) {
        cJSON_Delete(list->documents[i]);
    }
    free(list->documents);
    free(list->rows);
    *list = (published_list){0};
}
