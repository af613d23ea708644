/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peaks outside the steady step, held against closed forms, and the search for the tensor
 * that an allocation is.
 *
 * Letters: P parameters (tied ones once), V vocabulary, h hidden, R ranks of a node.  The
 * jobs are sharded by 8 into shards that are multiples of 256 bytes, so nothing is rounded.
 */
#ifdef HAVE_CONFIG_H
#include "config.h" /* open_memstream of POSIX 2008 */
#endif

#include "tests/sim/small_job.h"
#include "tests/step/step_jobs.h"

#include "plan/plan.h"
#include "sim/peaks.h"

#include <cjson/cJSON.h>

/* By hand.  LLAMA(4, 4): block 512 x (3 x 512 + 3 x 1024) + 2 x 512, root 2 x 1024 x 512 + 512.
 * GPT2: block 12 x 512 x 512 + 13 x 512, root 1000 x 512 + 1024 x 512 + 2 x 512, tied. */
#define LLAMA_BLOCK ((uint64_t)512 * (3 * 512 + 3 * 1024) + 1024)
#define LLAMA_ROOT ((uint64_t)2 * 1024 * 512 + 512)
#define LLAMA_P (4 * LLAMA_BLOCK + LLAMA_ROOT)
#define GPT2_P (4 * ((uint64_t)12 * 512 * 512 + 13 * 512) + 1000 * 512 + 1024 * 512 + 1024)

static const smp_memory *open_peaks(bench *b, smp_simulation **simulation_p,
                                    const char *config, uint32_t gpus, uint64_t batch,
                                    const char *settings)
{
    bench_open(b, config, gpus, 512, batch, settings);
    bench_lower(b);
    check_ok(smp_simulate(&b->job, b->step, b->errors, simulation_p), b->errors);
    return &smp_simulation_report(*simulation_p)->memory;
}

static void close_peaks(bench *b, smp_simulation *simulation)
{
    smp_simulation_destroy(simulation);
    bench_close(b);
}

static uint64_t part_bytes(const smp_memory *memory, smp_moment moment, const char *name)
{
    const smp_peak *peak = &memory->peaks[moment];
    for (uint32_t i = 0; i < peak->n_part; i++) {
        if (strcmp(peak->parts[i].name, name) == 0) {
            return peak->parts[i].bytes;
        }
    }
    return 0;
}

static uint64_t host_bytes(const smp_memory *memory, smp_moment moment)
{
    return memory->peaks[moment].host_bytes_per_node;
}

/* ------------------------------------------------------------------ properties */

static void check_peak(const smp_memory *m, const smp_peak *peak)
{
    uint64_t device = 0, host = 0;
    assert_true(peak->n_part > 0 && peak->n_part <= SMP_PEAK_PARTS);
    for (uint32_t i = 0; i < peak->n_part; i++) {
        const smp_peak_part *part = &peak->parts[i];
        bool overhead = strcmp(part->name, "communicators") == 0 ||
                        strcmp(part->name, "context") == 0;
        assert_int_equal(part->estimate, overhead);
        assert_true(part->bytes > 0);
        *(part->host ? &host : &device) += part->bytes;
    }
    check_u64(device, peak->device_bytes);
    check_u64(host, peak->host_bytes_per_node);
    /* one arena, allocated at the start */
    check_u64(peak->device_bytes, m->peak_bytes);
}

static void parts_add_up(void **state)
{
    (void)state;
    for (size_t i = 0; i < SMALL_CASES; i++) {
        small_job *s = small_case_simulate(i);
        const smp_memory *m = &smp_simulation_report(s->simulation)->memory;
        uint64_t comms = 0;
        for (int k = 0; k < SMP_MOMENTS; k++) {
            check_peak(m, &m->peaks[k]);
        }
        for (uint32_t c = 0; c < m->n_comm; c++) {
            assert_true(m->comms[c].ranks > 1 && m->comms[c].name[0] != '\0');
            comms += m->comms[c].bytes;
        }
        check_u64(comms, part_bytes(m, SMP_MOMENT_STEADY, "communicators"));
        check_u64(host_bytes(m, SMP_MOMENT_STEADY), m->host_bytes_per_node);
        /* Replica 0 holds all of the state once, the other nodes nothing of it. */
        assert_true(host_bytes(m, SMP_MOMENT_SAVE_ASYNC) >
                    host_bytes(m, SMP_MOMENT_STEADY));
        small_job_free(s);
    }
}

static void first_step_is_steady(void **state)
{
    (void)state;
    bench b;
    smp_simulation *simulation = NULL;
    const smp_memory *m = open_peaks(&b, &simulation, LLAMA(4, 4), 8, 8, "");
    const smp_peak *first = &m->peaks[SMP_MOMENT_FIRST_STEP];
    const smp_peak *steady = &m->peaks[SMP_MOMENT_STEADY];
    check_contains(first->note, "as the steady step");
    assert_int_equal(first->n_part, steady->n_part);
    for (uint32_t i = 0; i < steady->n_part; i++) {
        check_u64(first->parts[i].bytes, steady->parts[i].bytes);
    }
    check_u64(part_bytes(m, SMP_MOMENT_FIRST_STEP, "optimizer state"), 8 * LLAMA_P / 8);
    close_peaks(&b, simulation);
}

/* Micro-batches that the planner extends rather than simulates. */
static void extended_peaks_are_exact(void **state)
{
    (void)state;
    bench b;
    smp_report quick, full;
    bench_open(&b, LLAMA(4, 4), 8, 512, 8 * 24, "checkpointing=full offload=true");
    check_ok(smp_job_resolve(&b.job, b.errors), b.errors);
    check_ok(smp_evaluate(&b.job, false, b.errors, &quick, NULL, NULL), b.errors);
    check_ok(smp_evaluate_fully(&b.job, b.errors, &full), b.errors);
    for (int k = 0; k < SMP_MOMENTS; k++) {
        check_peak(&quick.memory, &quick.memory.peaks[k]);
        check_u64(quick.memory.peaks[k].device_bytes, full.memory.peaks[k].device_bytes);
        check_u64(quick.memory.peaks[k].host_bytes_per_node,
                  full.memory.peaks[k].host_bytes_per_node);
    }
    bench_close(&b);
}

/* ----------------------------------------------------------------- closed forms */

static void check_hosts(const smp_memory *m, uint64_t p, uint64_t tensor, uint32_t ranks)
{
    check_u64(host_bytes(m, SMP_MOMENT_INIT_DELAYED), 0);
    check_u64(host_bytes(m, SMP_MOMENT_INIT_EVERY_RANK), ranks * 4 * p);
    check_u64(host_bytes(m, SMP_MOMENT_INIT_RANK0), 4 * p);
    /* parameters, m and v in fp32 of one replica */
    check_u64(host_bytes(m, SMP_MOMENT_SAVE_ASYNC), 12 * p);
    /* the pieces are no larger than what there is */
    check_u64(host_bytes(m, SMP_MOMENT_SAVE_SHARDED), 12 * p);
    check_u64(host_bytes(m, SMP_MOMENT_SAVE_FULL), 2 * 4 * tensor);
}

static void llama(void **state)
{
    (void)state;
    bench b;
    smp_simulation *simulation = NULL;
    const smp_memory *m = open_peaks(&b, &simulation, LLAMA(4, 4), 8, 8, "micro_batch=1");
    check_u64(smp_model_parameters(b.model), LLAMA_P);
    check_hosts(m, LLAMA_P, 1024 * 512, 8);
    check_u64(host_bytes(m, SMP_MOMENT_LOAD_SAME), 12 * LLAMA_P);
    check_u64(host_bytes(m, SMP_MOMENT_LOAD_OTHER), 12 * LLAMA_P);
    check_u64(part_bytes(m, SMP_MOMENT_INIT_DELAYED, "parameters"), 4 * LLAMA_P / 8);
    check_u64(part_bytes(m, SMP_MOMENT_INIT_RANK0, "a unit on its way, in the arena"),
              4 * LLAMA_BLOCK);
    check_u64(part_bytes(m, SMP_MOMENT_SAVE_FULL, "a tensor on its way, in the arena"),
              4 * 1024 * 512);
    close_peaks(&b, simulation);
}

/* Two replicas on a node, and on two nodes: one of them is saved, all of them load. */
static void replicas_are_saved_once(void **state)
{
    (void)state;
    static const uint32_t gpus[] = {8, 16};
    static const char *const settings[] = {"hybrid_shard_degree=4", "hybrid_shard_degree=8"};
    for (int i = 0; i < 2; i++) {
        bench b;
        smp_simulation *simulation = NULL;
        const smp_memory *m =
            open_peaks(&b, &simulation, LLAMA(4, 4), gpus[i], gpus[i], settings[i]);
        check_hosts(m, LLAMA_P, 1024 * 512, 8);
        check_u64(host_bytes(m, SMP_MOMENT_LOAD_SAME), (i == 0 ? 2U : 1U) * 12 * LLAMA_P);
        close_peaks(&b, simulation);
    }
}

/* What is saved of a rank: master parameters and moments, not the copy in bf16; with momentum
 * one of them; without sharding by one rank for all. */
static void state_of_other_policies(void **state)
{
    (void)state;
    static const struct { const char *settings; uint64_t bytes; } cases[] = {
        {"sharding=optimizer", 12},
        {"sharding=optimizer precision=fp32", 12},
        {"sharding=none", 12},
        {"optimizer=sgd", 8},
        {"master=bf16 reduce_dtype=bf16", 6},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bench b;
        smp_simulation *simulation = NULL;
        const smp_memory *m =
            open_peaks(&b, &simulation, LLAMA(4, 4), 8, 8, cases[i].settings);
        /* shards of bf16 are rounded up to 256 bytes: at most 5 units x 8 ranks x 3 */
        check_rel((double)host_bytes(m, SMP_MOMENT_SAVE_ASYNC),
                  (double)(cases[i].bytes * LLAMA_P), i == 4 ? 5e-4 : 0);
        close_peaks(&b, simulation);
    }
}

/* Embedding and head are one parameter: made, held, sent and saved once. */
static void tied_embeddings_are_made_once(void **state)
{
    (void)state;
    bench b;
    smp_simulation *simulation = NULL;
    const smp_memory *m = open_peaks(&b, &simulation, GPT2, 8, 8, "delayed_init=true");
    check_u64(smp_model_parameters(b.model), GPT2_P);
    check_hosts(m, GPT2_P, 512 * 2048, 8);
    check_u64(part_bytes(m, SMP_MOMENT_INIT_DELAYED, "parameters"), 4 * GPT2_P / 8);
    close_peaks(&b, simulation);

    /* the same model untied has V h parameters more */
    static const char untied[] =
        "{\"model_type\": \"qwen3\", \"num_hidden_layers\": 3, \"hidden_size\": 512, "
        "\"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"head_dim\": 64, "
        "\"intermediate_size\": 1024, \"vocab_size\": 1000, \"tie_word_embeddings\": false, "
        "\"max_position_embeddings\": 4096}";
    uint64_t made[2], whole[2];
    for (int i = 0; i < 2; i++) {
        m = open_peaks(&b, &simulation, i == 0 ? QWEN3 : untied, 8, 8, "delayed_init=true");
        made[i] = part_bytes(m, SMP_MOMENT_INIT_DELAYED, "parameters");
        whole[i] = host_bytes(m, SMP_MOMENT_INIT_EVERY_RANK);
        close_peaks(&b, simulation);
    }
    check_u64(made[1] - made[0], 4 * 1000 * 512 / 8);
    check_u64(whole[1] - whole[0], 8 * 4 * 1000 * 512);
}

/* A fused q, k, v is one tensor of a checkpoint: with a narrow feed-forward the largest. */
static void fused_tensors_are_whole(void **state)
{
    (void)state;
    bench b;
    smp_simulation *simulation = NULL;
    const smp_memory *m = open_peaks(
        &b, &simulation,
        "{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_embd\": 512, \"n_head\": 8, "
        "\"n_inner\": 512, \"n_positions\": 512, \"vocab_size\": 256}",
        8, 8, "");
    check_u64(host_bytes(m, SMP_MOMENT_SAVE_FULL), 2 * 4 * 3 * 512 * 512);
    close_peaks(&b, simulation);
}

/* ----------------------------------------------------------------- large models */

typedef struct large {
    smp_errors *errors;
    smp_model *model;
    smp_cluster *cluster;
    smp_profile *profile;
    smp_job job;
    smp_step *step;
    smp_simulation *simulation;
} large;

static const smp_memory *large_open(large *l, const char *model, uint32_t nodes,
                                    const char *delayed)
{
    char path[128];
    *l = (large){.errors = smp_errors_create()};
    (void)snprintf(path, sizeof path, "configs/models/%s.json", model);
    check_ok(smp_model_read(check_source(path), l->errors, &l->model), l->errors);
    check_ok(smp_cluster_read(check_source("configs/clusters/p5.48xlarge.json"), l->errors,
                              &l->cluster), l->errors);
    check_ok(smp_cluster_set_nodes(l->cluster, nodes, l->errors), l->errors);
    check_ok(smp_profile_read_for(l->cluster, l->errors, &l->profile), l->errors);
    l->job = (smp_job){.model = l->model, .cluster = l->cluster, .profile = l->profile,
                       .batch = {.seq_len = 4096}};
    smp_settings_init(&l->job.settings);
    const char *const settings[] = {"tensor_parallel_degree=8", "checkpointing=full", delayed};
    for (int i = 0; i < 3; i++) {
        check_ok(smp_settings_assign(&l->job.settings, settings[i], "--set", l->errors),
                 l->errors);
    }
    smp_job_default_batch(&l->job);
    check_ok(smp_job_resolve(&l->job, l->errors), l->errors);
    check_ok(smp_step_lower(&l->job, l->errors, &l->step), l->errors);
    check_ok(smp_simulate(&l->job, l->step, l->errors, &l->simulation), l->errors);
    return &smp_simulation_report(l->simulation)->memory;
}

static void large_close(large *l)
{
    smp_simulation_destroy(l->simulation);
    smp_step_destroy(l->step);
    smp_profile_destroy(l->profile);
    smp_cluster_destroy(l->cluster);
    smp_model_destroy(l->model);
    smp_errors_destroy(l->errors);
}

/* 282 GB in fp32, gathered by one rank: its GPU holds one tensor at most, in memory that it
 * has anyway; its host two. */
static void a_full_save_of_70b_is_not_on_a_gpu(void **state)
{
    (void)state;
    large l;
    const uint64_t tensor = (uint64_t)4 * 128256 * 8192; /* embedding, head */
    const smp_memory *m = large_open(&l, "Llama-3.1-70B", 4, "delayed_init=true");
    const smp_peak *save = &m->peaks[SMP_MOMENT_SAVE_FULL];
    assert_true(m->fits && save->fits && save->counts);
    assert_true(4 * smp_model_parameters(l.model) > 3 * m->capacity_bytes);
    check_u64(save->device_bytes, m->peaks[SMP_MOMENT_STEADY].device_bytes);
    check_u64(part_bytes(m, SMP_MOMENT_SAVE_FULL, "a tensor on its way, in the arena"), tensor);
    check_u64(save->host_bytes_per_node, 2 * tensor);
    large_close(&l);
}

static char *printed(const smp_simulation *simulation, bool json, smp_errors *errors)
{
    char *text = NULL;
    size_t n = 0;
    FILE *stream = open_memstream(&text, &n);
    assert_non_null(stream);
    check_ok(smp_simulation_print(simulation, json, stream, errors), errors);
    fclose(stream);
    return text;
}

/* 8 ranks x 1.6 TB on a host of 2.2 TB. */
static void whole_405b_on_every_rank_does_not_fit(void **state)
{
    (void)state;
    large l;
    const smp_memory *m = large_open(&l, "Llama-3.1-405B", 16, "delayed_init=false");
    const smp_peak *init = &m->peaks[SMP_MOMENT_INIT_EVERY_RANK];
    const uint64_t host = 8 * 4 * smp_model_parameters(l.model);
    assert_true(!m->fits && init->counts && !init->fits && m->margin_bytes > 0);
    assert_true(!m->peaks[SMP_MOMENT_INIT_DELAYED].counts);
    check_u64(init->host_bytes_per_node, host);
    const smp_report *report = smp_simulation_report(l.simulation);
    assert_false(smp_report_fits(report, 0.03));
    check_u64(smp_report_excess(report, 0.03), host - m->host_capacity_bytes);
    char *text = printed(l.simulation, false, l.errors);
    check_contains(text, "init, on every rank     ");
    check_contains(text, "11.8 TiB  SHORT BY 9.81 TiB\n");
    check_contains(text, "DOES NOT FIT");
    free(text);
    large_close(&l);

    m = large_open(&l, "Llama-3.1-405B", 16, "delayed_init=true");
    assert_true(m->fits && !m->peaks[SMP_MOMENT_INIT_EVERY_RANK].counts);
    large_close(&l);
}

/* ----------------------------------------------------------------------- output */

static const cJSON *member(const cJSON *object, const char *path)
{
    char words[128];
    (void)snprintf(words, sizeof words, "%s", path);
    for (char *word = strtok(words, "."); word; word = strtok(NULL, ".")) {
        object = cJSON_GetObjectItemCaseSensitive(object, word);
        assert_non_null(object);
    }
    return object;
}

static void json_has_every_peak(void **state)
{
    (void)state;
    static const char *const peaks[SMP_MOMENTS] = {
        "init.delayed", "init.every_rank", "init.rank0", "first_step", "steady",
        "save.sharded", "save.sharded_async", "save.full", "load.same_layout",
        "load.other_layout"};
    bench b;
    smp_simulation *simulation = NULL;
    const smp_memory *m = open_peaks(&b, &simulation, LLAMA(4, 4), 8, 8, "");
    char *text = printed(simulation, true, b.errors);
    cJSON *root = cJSON_Parse(text);
    const cJSON *memory = member(root, "memory");
    for (int k = 0; k < SMP_MOMENTS; k++) {
        const cJSON *peak = member(member(memory, "peaks"), peaks[k]);
        check_rel(member(peak, "device_bytes")->valuedouble,
                  (double)m->peaks[k].device_bytes, 0);
        check_rel(member(peak, "host_bytes_per_node")->valuedouble,
                  (double)m->peaks[k].host_bytes_per_node, 0);
        assert_int_equal(cJSON_IsTrue(member(peak, "counts")), m->peaks[k].counts);
        assert_int_equal(cJSON_GetArraySize(member(peak, "parts")), m->peaks[k].n_part);
    }
    assert_int_equal(cJSON_GetArraySize(member(memory, "communicators")), 3);
    check_text(member(member(memory, "communicators")->child, "name")->valuestring, "unshard");
    cJSON_Delete(root);
    free(text);
    close_peaks(&b, simulation);
}

/* People read 80 columns. */
static void text_is_narrow(void **state)
{
    (void)state;
    bench b;
    smp_simulation *simulation = NULL;
    char *text = NULL;
    size_t n = 0;
    (void)open_peaks(&b, &simulation, LLAMA(4, 4), 8, 8, "delayed_init=false");
    FILE *stream = open_memstream(&text, &n);
    assert_non_null(stream);
    check_ok(smp_simulation_print(simulation, false, stream, b.errors), b.errors);
    smp_text parts = {0};
    smp_text_peak_parts(&parts, &smp_simulation_report(simulation)->memory);
    fputs(parts.data, stream);
    smp_text_free(&parts);
    check_ok(smp_allocation_print(&b.job, b.step, "2GiB", false, stream, b.errors), b.errors);
    fclose(stream);
    check_contains(text, "Communicators: NCCL's buffers on a GPU (estimates)\n  unshard");
    check_contains(text, "What each peak consists of");
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        if (strlen(line) > 80) {
            fail_msg("more than 80 columns: %s", line);
        }
    }
    free(text);
    close_peaks(&b, simulation);
}

/* ------------------------------------------------------------------- allocation */

static char *allocation(bench *b, const char *size, bool json)
{
    char *text = NULL;
    size_t n = 0;
    FILE *stream = open_memstream(&text, &n);
    assert_non_null(stream);
    check_ok(smp_allocation_print(&b->job, b->step, size, json, stream, b->errors), b->errors);
    fclose(stream);
    return text;
}

/* 16 sequences of 8192 tokens x a vocabulary of 131072 x 2 bytes = 2^35. */
static void logits_of_32_gib_are_found(void **state)
{
    (void)state;
    static const char *const sizes[] = {"32GiB", "32.00 GiB", "34359738368", "3.44e10"};
    bench b;
    bench_open(&b,
               "{\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"hidden_size\": 512, "
               "\"num_attention_heads\": 8, \"intermediate_size\": 1024, "
               "\"vocab_size\": 131072, \"max_position_embeddings\": 8192}",
               1, 8192, 16, "micro_batch=16");
    bench_lower(&b);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char *text = allocation(&b, sizes[i], true);
        cJSON *root = cJSON_Parse(text);
        const cJSON *first = member(root, "allocation.matches")->child;
        assert_non_null(first);
        check_text(member(first, "name")->valuestring, "logits");
        check_text(member(first, "kind")->valuestring, "logits");
        check_text(member(first, "formula")->valuestring,
                   "tokens 131072 x vocabulary 131072 x 2 bytes");
        check_rel(member(first, "bytes")->valuedouble, 34359738368.0, 0);
        cJSON_Delete(root);
        free(text);
    }
    /* twice the tokens, or fp32 with these */
    char *text = allocation(&b, "64GiB", false);
    check_contains(text, "  262144 tokens = 32 x 8192: logits\n");
    check_contains(text, "  logits in fp32 (logits.float(), cross entropy)");
    check_contains(text, "PyTorch; tokens 131072 x vocabulary 131072 x 4 bytes");
    free(text);
    bench_close(&b);
}

static const char moe[] =
    "{\"model_type\": \"mixtral\", \"num_hidden_layers\": 2, \"hidden_size\": 512, "
    "\"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"intermediate_size\": 1024, "
    "\"vocab_size\": 1024, \"num_local_experts\": 8, \"num_experts_per_tok\": 2, "
    "\"max_position_embeddings\": 4096}";

/* Counts and offsets of experts: bytes by the expert, not by the token. */
static bool is_bookkeeping(const smp_buffer *buffer)
{
    return buffer->kind == SMP_KIND_SCALAR || strncmp(buffer->name, "moe.counts", 10) == 0 ||
           strcmp(buffer->name, "moe.layout") == 0;
}

/* Every buffer is found by its size, and is a product of sizes that mean something. */
static void every_buffer_is_explained(void **state)
{
    (void)state;
    static const char *const configs[] = {LLAMA(3, 4), GPT2, QWEN3, NEOX, moe};
    static const char *const settings[] = {
        "", "tensor_parallel_degree=2 attention=naive loss_chunks=4",
        "tensor_parallel_degree=4 sequence_parallel=false checkpointing=full offload=true",
        "sharding=optimizer accumulation=last", "sharding=none micro_batch=2",
        "hybrid_shard_degree=3 checkpointing=selective allow_empty_shards=true"};
    for (size_t i = 0; i < 30; i++) {
        bench b;
        uint32_t gpus = i / 5 == 5 ? 3 : 8;
        bench_open(&b, configs[i % 5], gpus, 512, 2 * gpus, settings[i / 5]);
        bench_lower(&b);
        const smp_program *program = b.step->programs[0];
        for (uint32_t k = 0; k < program->n_buffer; k++) {
            const smp_buffer *buffer = &program->buffers[k];
            char size[32];
            bool found = false;
            if (buffer->space == SMP_SPACE_TOKEN || is_bookkeeping(buffer)) {
                continue;
            }
            (void)snprintf(size, sizeof size, "%" PRIu64, buffer->bytes);
            char *text = allocation(&b, size, true);
            cJSON *root = cJSON_Parse(text);
            const cJSON *match = NULL;
            cJSON_ArrayForEach(match, member(root, "allocation.matches")) {
                if (strcmp(member(match, "name")->valuestring, buffer->name) == 0) {
                    found = true;
                    check_contains(member(match, "formula")->valuestring, " x ");
                }
            }
            if (!found) {
                fail_msg("%s of %s bytes is not found", buffer->name, size);
            }
            cJSON_Delete(root);
            free(text);
        }
        bench_close(&b);
    }
}

static void wrong_sizes_are_refused(void **state)
{
    (void)state;
    static const char *const sizes[] = {"", "x", "0", "-1", "0x10", "4XB", "1GiBs", "nan",
                                        "inf", "1e30", "GiB", "2 2GiB"};
    bench b;
    bench_open(&b, LLAMA(2, 4), 1, 512, 1, "");
    bench_lower(&b);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        check_fails(smp_allocation_print(&b.job, b.step, sizes[i], false, stdout, b.errors),
                    SMP_INPUT, b.errors, "must be a size from 1 byte to 1 EiB");
    }
    bench_close(&b);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(parts_add_up),
    cmocka_unit_test(first_step_is_steady),
    cmocka_unit_test(extended_peaks_are_exact),
    cmocka_unit_test(llama),
    cmocka_unit_test(replicas_are_saved_once),
    cmocka_unit_test(state_of_other_policies),
    cmocka_unit_test(tied_embeddings_are_made_once),
    cmocka_unit_test(fused_tensors_are_whole),
    cmocka_unit_test(a_full_save_of_70b_is_not_on_a_gpu),
    cmocka_unit_test(whole_405b_on_every_rank_does_not_fit),
    cmocka_unit_test(json_has_every_peak),
    cmocka_unit_test(text_is_narrow),
    cmocka_unit_test(logits_of_32_gib_are_found),
    cmocka_unit_test(every_buffer_is_explained),
    cmocka_unit_test(wrong_sizes_are_refused),
};

CHECK_MAIN(tests)
