/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs: what hybrid_shard_degree and sharding_strategy become, every rule with its legal
 * values, several broken rules at once, resolved settings resolve to themselves.
 */
#include "config.h"

#include "tests/mesh/jobs.h"

#include "base/arena.h"
#include "base/numeric.h"
#include "mesh/mesh.h"
#include "mesh/settings.h"
#include "model/model.h"

/* ----------------------------------------------------------------- helpers */

/* A list of assignments, applied to default settings. */
static void bench_set_all(bench *b, const char *assignments)
{
    char text[256], *rest = text;

    smp_settings_init(&b->job.settings);
    snprintf(text, sizeof(text), "%s", assignments);
    for (char *word = strtok_r(rest, " ", &rest); word != NULL;
         word = strtok_r(rest, " ", &rest)) {
        bench_set(b, word);
    }
}

static void resolves(bench *b)
{
    smp_status status = smp_job_resolve(&b->job, b->errors);

    if (status != SMP_OK) {
        print_error("%s\n", smp_errors_text(b->errors, 0));
    }
    assert_int_equal(status, SMP_OK);
}

/* Resolving fails with n messages, of which one holds the text; the job is unchanged. */
static void breaks(bench *b, size_t n_message, const char *text)
{
    smp_job before = b->job;
    bool found = false;

    assert_int_equal(smp_job_resolve(&b->job, b->errors), SMP_INPUT);
    assert_memory_equal(&b->job, &before, sizeof(before));
    assert_false(smp_job_try(&b->job));
    for (size_t i = 0; i < smp_errors_count(b->errors); i++) {
        found = found || strstr(smp_errors_text(b->errors, i), text) != NULL;
    }
    if (!found || smp_errors_count(b->errors) != n_message) {
        print_error("wanted \"%s\"\n", text);
        for (size_t i = 0; i < smp_errors_count(b->errors); i++) {
            print_error("got    \"%s\"\n", smp_errors_text(b->errors, i));
        }
        fail();
    }
    smp_errors_clear(b->errors);
}

/* Default settings of one model and cluster, the assignments, and the message. */
static void job_breaks(const char *model, uint32_t gpus, uint64_t seq, uint64_t batch,
                       const char *assignments, size_t n_message, const char *text)
{
    bench b;

    bench_open(&b, model, "p5.48xlarge", gpus, seq, batch);
    bench_set_all(&b, assignments);
    breaks(&b, n_message, text);
    bench_close(&b);
}

/* ------------------------------------------------------------------- tests */

/* SMPv2-REF's table: rows are hybrid_shard_degree, strategy and tensor degree on 32 GPUs. */
static void shard_degree_follows_the_table(void **state)
{
    static const struct {
        const char *given;
        uint32_t degree, replicas;
        smp_sharding sharding;
        bool reshard;
        smp_strategy strategy;
    } rows[] = {
        {"", 32, 1, SMP_SHARDING_FULL, true, SMP_STRATEGY_HYBRID_SHARD},
        {"tensor_parallel_degree=4", 8, 1, SMP_SHARDING_FULL, true, SMP_STRATEGY_HYBRID_SHARD},
        {"sharding_strategy=FULL_SHARD", 32, 1, SMP_SHARDING_FULL, true,
         SMP_STRATEGY_HYBRID_SHARD},
        {"sharding_strategy=SHARD_GRAD_OP", 32, 1, SMP_SHARDING_FULL, false,
         SMP_STRATEGY_HYBRID_SHARD_ZERO2},
        {"sharding_strategy=HYBRID_SHARD", 8, 4, SMP_SHARDING_FULL, true,
         SMP_STRATEGY_HYBRID_SHARD},
        {"sharding_strategy=_HYBRID_SHARD_ZERO2", 8, 4, SMP_SHARDING_FULL, false,
         SMP_STRATEGY_HYBRID_SHARD_ZERO2},
        {"sharding_strategy=NO_SHARD", 1, 32, SMP_SHARDING_NONE, false, SMP_STRATEGY_NO_SHARD},
        {"sharding_strategy=HYBRID_SHARD tensor_parallel_degree=2", 16, 1, SMP_SHARDING_FULL,
         true, SMP_STRATEGY_HYBRID_SHARD},
        {"sharding_strategy=SHARD_GRAD_OP tensor_parallel_degree=2", 16, 1, SMP_SHARDING_FULL,
         true, SMP_STRATEGY_HYBRID_SHARD},
        {"hybrid_shard_degree=4", 4, 8, SMP_SHARDING_FULL, true, SMP_STRATEGY_HYBRID_SHARD},
        {"hybrid_shard_degree=4 sharding_strategy=FULL_SHARD", 4, 8, SMP_SHARDING_FULL, true,
         SMP_STRATEGY_HYBRID_SHARD},
        {"hybrid_shard_degree=4 sharding_strategy=SHARD_GRAD_OP", 4, 8, SMP_SHARDING_FULL, true,
         SMP_STRATEGY_HYBRID_SHARD},
        {"hybrid_shard_degree=4 sharding_strategy=NO_SHARD", 4, 8, SMP_SHARDING_FULL, true,
         SMP_STRATEGY_HYBRID_SHARD},
        {"hybrid_shard_degree=4 sharding_strategy=_HYBRID_SHARD_ZERO2", 4, 8,
         SMP_SHARDING_FULL, false, SMP_STRATEGY_HYBRID_SHARD_ZERO2},
        {"hybrid_shard_degree=4 reshard_after_forward=false", 4, 8, SMP_SHARDING_FULL, false,
         SMP_STRATEGY_HYBRID_SHARD_ZERO2},
        {"hybrid_shard_degree=1", 1, 32, SMP_SHARDING_FULL, true, SMP_STRATEGY_NO_SHARD},
        {"hybrid_shard_degree=1 tensor_parallel_degree=8", 1, 4, SMP_SHARDING_FULL, true,
         SMP_STRATEGY_NO_SHARD},
        {"sharding=none", 1, 32, SMP_SHARDING_NONE, false, SMP_STRATEGY_NO_SHARD},
        {"sharding=optimizer", 32, 1, SMP_SHARDING_OPTIMIZER, false, SMP_STRATEGY_UNSET},
        {"sharding=optimizer hybrid_shard_degree=8", 8, 4, SMP_SHARDING_OPTIMIZER, false,
         SMP_STRATEGY_UNSET},
        {"sharding=optimizer hybrid_shard_degree=1", 1, 32, SMP_SHARDING_NONE, false,
         SMP_STRATEGY_NO_SHARD},
    };
    bench b;

    (void)state;
    bench_open(&b, "Llama-3.1-8B", "p5.48xlarge", 32, 8192, 64);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        bench_set_all(&b, rows[i].given);
        resolves(&b);
        assert_int_equal(b.job.settings.hybrid_shard_degree, rows[i].degree);
        assert_int_equal(b.job.replicas, rows[i].replicas);
        assert_int_equal(b.job.settings.sharding, rows[i].sharding);
        assert_int_equal(b.job.settings.reshard_after_forward, rows[i].reshard);
        assert_int_equal(b.job.settings.sharding_strategy, rows[i].strategy);
        assert_int_equal(b.job.world, 32);
    }
    bench_close(&b);
}

static void batches_are_divided(void **state)
{
    bench b;

    (void)state;
    bench_open(&b, "Llama-3.1-8B", "p5.48xlarge", 64, 8192, 512);
    bench_set_all(&b, "tensor_parallel_degree=4 micro_batch=2");
    resolves(&b);
    assert_int_equal(b.job.data_ranks, 16);
    assert_int_equal(b.job.micro_batches, 16);
    assert_true(b.job.settings.sequence_parallel);
    /* Sequence parallelism over one rank is none. */
    bench_set_all(&b, "sequence_parallel=true");
    resolves(&b);
    assert_false(b.job.settings.sequence_parallel);
    /* Not asked for, and not possible: off. */
    b.job.batch.seq_len = 8190;
    bench_set_all(&b, "tensor_parallel_degree=4");
    resolves(&b);
    assert_false(b.job.settings.sequence_parallel);
    bench_close(&b);
}

static void layers_checkpointed_are_counted(void **state)
{
    static const struct {
        const char *given;
        uint32_t layers;
        smp_checkpointing kind;
    } rows[] = {
        {"", 0, SMP_CHECKPOINTING_NONE},
        {"checkpointing=full", 32, SMP_CHECKPOINTING_FULL},
        {"checkpointing=selective", 32, SMP_CHECKPOINTING_SELECTIVE_ATTENTION},
        {"checkpointing=first:31", 31, SMP_CHECKPOINTING_FIRST},
        {"checkpointing=first:32", 32, SMP_CHECKPOINTING_FULL},
    };
    bench b;

    (void)state;
    bench_open(&b, "Llama-3.1-8B", "p5.48xlarge", 8, 8192, 8);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        bench_set_all(&b, rows[i].given);
        resolves(&b);
        assert_int_equal(b.job.settings.checkpointing, rows[i].kind);
        assert_int_equal(b.job.settings.checkpointing_layers, rows[i].layers);
    }
    bench_close(&b);
}

static void tensor_degrees_have_rules(void **state)
{
    (void)state;
    job_breaks("Llama-3.1-70B", 192, 8192, 192, "tensor_parallel_degree=24", 2,
               "tensor_parallel_degree 24: must divide 64 attention heads, and 8 key-value "
               "heads or be a multiple of them; legal here: 1, 2, 4, 8, 16, 32, 64");
    job_breaks("gpt2-xl", 8, 1024, 8, "tensor_parallel_degree=2", 1,
               "tensor_parallel_degree 2: must divide 25 attention heads, and 25 key-value "
               "heads or be a multiple of them; legal here: 1");
    job_breaks("Llama-3.1-8B", 7, 8192, 7, "tensor_parallel_degree=2", 1,
               "tensor_parallel_degree 2: must divide the 7 GPUs; legal here: 1");
    job_breaks("Llama-3.1-8B", 8, 8192, 8, "tensor_parallel_degree=16", 1,
               "must divide the 8 GPUs; legal here: 1, 2, 4, 8");
    job_breaks("Llama-3.1-8B", 8, 8190, 8, "tensor_parallel_degree=4 sequence_parallel=true", 1,
               "--set: sequence_parallel true: tensor_parallel_degree 4 must divide seq_len "
               "8190; legal here: false");
}

/* Two key-value heads on eight ranks are copied; 50257 tokens on eight ranks are padded. */
static void copies_and_padding_are_legal(void **state)
{
    static const char config[] =
        "{\"model_type\": \"llama\", \"hidden_size\": 512, \"num_hidden_layers\": 2,"
        " \"num_attention_heads\": 16, \"num_key_value_heads\": 2, \"vocab_size\": 50257,"
        " \"intermediate_size\": 1024, \"max_position_embeddings\": 2048}";
    bench b;
    smp_model *small = NULL;

    (void)state;
    bench_open(&b, "Llama-3.1-8B", "p5.48xlarge", 8, 2048, 8);
    assert_int_equal(smp_model_parse(config, strlen(config), "small.json", "small", b.errors,
                                     &small), SMP_OK);
    b.job.model = small;
    bench_set_all(&b, "tensor_parallel_degree=8");
    resolves(&b);
    bench_set_all(&b, "tensor_parallel_degree=2");
    resolves(&b);
    bench_set_all(&b, "tensor_parallel_degree=3");
    breaks(&b, 3, "must divide 16 attention heads, and 2 key-value heads or be a multiple of "
                  "them; legal here: 1, 2, 4, 8");
    smp_model_destroy(small);
    bench_close(&b);
    bench_open(&b, "gpt2", "p5.48xlarge", 8, 1024, 8);
    bench_set_all(&b, "tensor_parallel_degree=4");
    resolves(&b);
    bench_close(&b);
}

static void shard_degrees_have_rules(void **state)
{
    bench b;

    (void)state;
    job_breaks("Llama-3.1-8B", 64, 8192, 64, "hybrid_shard_degree=128", 1,
               "hybrid_shard_degree 128: must divide 64 GPUs / (tensor_parallel_degree 1 x "
               "expert_parallel_degree 1) = 64; legal here: 0, 1, 2, 4, 8, 16, 32, 64");
    job_breaks("Llama-3.1-8B", 24, 8192, 24, "hybrid_shard_degree=16", 1,
               "legal here: 0, 1, 2, 3, 4, 6, 8, 12, 24");
    job_breaks(
        "Llama-3.1-8B", 7, 8192, 7, "sharding_strategy=HYBRID_SHARD", 1,
        "hybrid_shard_degree 0: means 8 with sharding_strategy HYBRID_SHARD: must divide "
        "7 GPUs");
    job_breaks("Llama-3.1-8B", 8, 8192, 8, "sharding=none hybrid_shard_degree=4", 1,
               "sharding none: does not agree with hybrid_shard_degree 4 and "
               "sharding_strategy unset; legal here: full, optimizer");
    job_breaks("Llama-3.1-8B", 8, 8192, 8, "sharding=optimizer sharding_strategy=FULL_SHARD", 1,
               "legal here: full");
    job_breaks("Llama-3.1-8B", 8, 8192, 8,
               "sharding_strategy=FULL_SHARD reshard_after_forward=false", 1,
               "reshard_after_forward false: sharding_strategy HYBRID_SHARD acts, which "
               "reshards after forward; legal here: true");
    /* 7 GPUs and 3 nodes of 8 are worlds like others. */
    bench_open(&b, "Llama-3.1-8B", "p5.48xlarge", 7, 8192, 14);
    resolves(&b);
    assert_int_equal(b.job.settings.hybrid_shard_degree, 7);
    bench_close(&b);
    bench_open(&b, "Llama-3.1-8B", "p5.48xlarge", 24, 8192, 24);
    bench_set_all(&b, "hybrid_shard_degree=12");
    resolves(&b);
    assert_int_equal(b.job.replicas, 2);
    bench_close(&b);
}

static void context_and_experts_are_refused_by_name(void **state)
{
    (void)state;
    job_breaks("Llama-3.1-8B", 64, 8192, 64, "context_parallel_degree=2", 1,
               "context_parallel_degree 2: context parallelism is not lowered yet; "
               "legal here: 1");
    /* All that is wrong is told together. */
    job_breaks("Llama-3.1-8B", 64, 8190, 64, "context_parallel_degree=8 hybrid_shard_degree=4",
               3, "must divide hybrid_shard_degree 4, of which it is a part");
    job_breaks("Llama-3.1-8B", 64, 8190, 64, "context_parallel_degree=8 hybrid_shard_degree=4",
               3, "twice the degree must divide seq_len 8190");
    job_breaks("Llama-3.1-8B", 8, 8192, 8, "expert_parallel_degree=2", 1,
               "expert_parallel_degree 2: model Llama-3.1-8B has no experts; legal here: 1");
}

static void batch_sizes_have_rules(void **state)
{
    (void)state;
    job_breaks("Llama-3.1-8B", 64, 8192, 100, "", 1,
               "global_batch 100: must be a multiple of the 64 data ranks (64 GPUs / "
               "tensor_parallel_degree 1); nearest: 64, 128");
    job_breaks("Llama-3.1-8B", 64, 8192, 0, "", 1, "global_batch 0: must be a multiple");
    job_breaks("Llama-3.1-8B", 64, 8192, 512, "micro_batch=3", 1,
               "micro_batch 3: must divide global_batch 512 / 64 data ranks = 8; legal here: "
               "1, 2, 4, 8");
    job_breaks("Llama-3.1-8B", 8, 8192, 8, "loss_chunks=5", 1,
               "loss_chunks 5: must divide the 8192 tokens of a micro-batch; legal here: 1, 2, "
               "4, 8,");
    job_breaks("gpt2", 8, 131072, 8, "", 1,
               "seq_len 131072: must be 1 or more, and at most the 1024 learned positions of "
               "gpt2");
    job_breaks("Llama-3.1-8B", 8, 0, 8, "", 1, "seq_len 0: must be 1 or more");
}

static void long_sequences_warn_with_rope(void **state)
{
    bench b;

    (void)state;
    bench_open(&b, "Llama-2-7B", "p5.48xlarge", 8, 131072, 8);
    resolves(&b);
    assert_int_equal(smp_warnings_count(b.errors), 1);
    assert_non_null(strstr(smp_warnings_text(b.errors, 0), "was made for 4096 positions"));
    bench_close(&b);
    bench_open(&b, "Llama-3.1-8B", "p5.48xlarge", 8, 131072, 8);
    resolves(&b);
    assert_int_equal(smp_warnings_count(b.errors), 0);
    bench_close(&b);
}

static void checkpointing_and_offload_have_rules(void **state)
{
    (void)state;
    job_breaks("Llama-3.1-8B", 8, 8192, 8, "checkpointing=first:33", 1,
               "checkpointing first:33: Llama-3.1-8B has 32 layers; legal here: none,");
    job_breaks("Llama-3.1-8B", 8, 8192, 8, "offload=true", 1,
               "offload true: moves the inputs of checkpointed layers: needs checkpointing "
               "full or first:K, which is none; legal here: false");
    job_breaks("Llama-3.1-8B", 8, 8192, 8, "offload=true checkpointing=selective", 1,
               "which is selective:attention");
    job_breaks("Llama-3.1-8B", 8, 8192, 8, "offload=true checkpointing=first:6 "
               "offload_layers=7", 1, "offload_layers 7: only checkpointed layers are "
               "offloaded, of which there are 6; legal here: 0 (all) to 6");
    job_breaks("Llama-3.1-8B", 8, 8192, 8, "offload=true checkpointing=full "
               "offload_layers=33", 1, "of which there are 32");
}

static uint32_t acting_layers(const char *settings)
{
    bench b;
    uint32_t layers;

    bench_open(&b, "Llama-3.1-8B", "p5.48xlarge", 8, 8192, 8);
    bench_set_all(&b, settings);
    resolves(&b);
    layers = b.job.settings.offload_layers;
    assert_int_equal(layers == 0 && b.job.settings.offload
                         ? b.job.settings.checkpointing_layers : layers,
                     smp_offloaded_layers(&b.job.settings));
    bench_close(&b);
    return layers;
}

static void all_layers_are_said_by_0(void **state)
{
    (void)state;
    assert_int_equal(acting_layers("offload=true checkpointing=first:6 offload_layers=6"), 0);
    assert_int_equal(acting_layers("offload=true checkpointing=full offload_layers=32"), 0);
    assert_int_equal(acting_layers("offload=true checkpointing=full offload_layers=31"), 31);
    assert_int_equal(acting_layers("offload=true checkpointing=full"), 0);
}

static void precisions_have_rules(void **state)
{
    bench b;

    (void)state;
    job_breaks("Llama-3.1-8B", 8, 8192, 8, "master=fp16", 1, "master fp16: must be fp32, or");
    job_breaks("Llama-3.1-8B", 8, 8192, 8, "master=bf16 precision=fp16", 1,
               "master bf16: must be fp32, or bf16 with precision bf16; legal here: fp32");
    job_breaks("Llama-3.1-8B", 8, 8192, 8, "reduce_dtype=fp16", 1,
               "reduce_dtype fp16: must be fp32 or the precision, which is bf16");
    job_breaks("Llama-3.1-8B", 8, 8192, 8, "attention_in_fp32=true", 1,
               "attention_in_fp32 true: fused attention has 16-bit inputs");
    job_breaks("Llama-3.1-8B", 8, 8192, 8, "qk_layer_scaling=true attention=naive", 1,
               "qk_layer_scaling true: is for scores that overflow in fp16, which those in "
               "bf16 do not; legal here: false");
    job_breaks("Llama-3.1-8B", 8, 8192, 8, "qk_layer_scaling=true precision=fp16", 1,
               "which fused attention keeps in fp32; legal here: false");
    bench_open(&b, "gpt2", "p3dn.24xlarge", 8, 1024, 8);
    breaks(&b, 1,
           "precision bf16: profile v100-sxm2-32gb has no peak for it; legal here: fp16, "
           "fp32");
    bench_set_all(&b, "precision=fp16 reduce_dtype=fp16");
    resolves(&b);
    bench_close(&b);
}

/* Two layers of hidden 4 and ffn 6, no biases, without ties: a block has norms 4 + 4,
 * q, k, v, o 4 x 16, gate, up, down 3 x 24 = 144 elements; the root has embedding and head
 * 2 x 7 x 4 and a norm of 4 = 60.  torch.chunk gives ceil(60 / F) to each: with F = 8 the
 * pieces are 8 and the last has 4; with F = 16 they are 4, and the last rank has none. */
static void empty_shards_are_refused(void **state)
{
    static const char config[] =
        "{\"model_type\": \"llama\", \"hidden_size\": 4, \"num_hidden_layers\": 2,"
        " \"num_attention_heads\": 2, \"num_key_value_heads\": 2, \"vocab_size\": 7,"
        " \"intermediate_size\": 6, \"max_position_embeddings\": 64,"
        " \"tie_word_embeddings\": false}";
    bench b;
    smp_model *tiny = NULL;

    (void)state;
    bench_open(&b, "Llama-3.1-8B", "p5.48xlarge", 16, 64, 16);
    assert_int_equal(smp_model_parse(config, strlen(config), "tiny.json", "tiny", b.errors,
                                     &tiny), SMP_OK);
    b.job.model = tiny;
    assert_int_equal(smp_model_parameters(tiny), 2 * 144 + 60);
    breaks(&b, 1, "hybrid_shard_degree 0: 16 ranks cannot share a unit of 60 elements without "
                  "empty shards, which allow_empty_shards permits; legal here: 1, 2, 4, 8");
    bench_set_all(&b, "allow_empty_shards=true");
    resolves(&b);
    bench_set_all(&b, "hybrid_shard_degree=8");
    resolves(&b);
    smp_model_destroy(tiny);
    bench_close(&b);
}

static void all_broken_rules_are_told_at_once(void **state)
{
    job_breaks("gpt2", 8, 2048, 9,
               "tensor_parallel_degree=5 expert_parallel_degree=2 offload=true master=fp16 "
               "checkpointing=first:99", 7, "tensor_parallel_degree 5: must divide the 8 GPUs");
    (void)state;
}

static void draw(bench *b, uint64_t seed)
{
    static const char *const choices[] = {
        "hybrid_shard_degree=1", "hybrid_shard_degree=4", "hybrid_shard_degree=8",
        "tensor_parallel_degree=2", "tensor_parallel_degree=4", "sharding=optimizer",
        "sharding=none", "sharding=full", "sharding_strategy=FULL_SHARD",
        "sharding_strategy=SHARD_GRAD_OP", "sharding_strategy=HYBRID_SHARD",
        "sharding_strategy=_HYBRID_SHARD_ZERO2", "sharding_strategy=NO_SHARD",
        "reshard_after_forward=false", "checkpointing=full", "checkpointing=first:3",
        "checkpointing=first:32", "offload=true", "micro_batch=2", "sequence_parallel=false",
        "precision=fp16", "reduce_dtype=bf16", "loss_chunks=4", "accumulation=last"
    };
    uint32_t r[4];

    smp_settings_init(&b->job.settings);
    for (size_t i = 0; i < sizeof(choices) / sizeof(choices[0]); i++) {
        smp_random4(seed, i, 0, r);
        if (r[0] % 4 == 0) {
            bench_set(b, choices[i]);
        }
    }
}

/* Resolved settings, all given (as in a plan file), resolve to themselves; try and resolve
 * agree; a resolved job uses no heap. */
static void resolving_is_idempotent(void **state)
{
    bench b;
    uint32_t legal = 0;
    size_t n;
    const smp_setting_info *table = smp_settings_table(&n);

    (void)state;
    bench_open(&b, "Llama-3.1-8B", "p5.48xlarge", 32, 8192, 64);
    for (uint64_t seed = 0; seed < 2000; seed++) {
        draw(&b, seed);
        smp_job tried = b.job, again;
        uint64_t calls = smp_heap_calls();
        bool ok = smp_job_try(&tried);
        assert_int_equal(smp_heap_calls(), calls);
        assert_int_equal(smp_job_resolve(&b.job, b.errors), ok ? SMP_OK : SMP_INPUT);
        if (!ok) {
            smp_errors_clear(b.errors);
            continue;
        }
        legal++;
        again = b.job;
        again.settings.given = (UINT64_C(1) << n) - 1;
        assert_int_equal(smp_job_resolve(&again, b.errors), SMP_OK);
        for (size_t i = 0; i < n; i++) {
            char first[96], second[96], third[96];
            smp_settings_get(&b.job.settings, table[i].key, first, sizeof(first));
            smp_settings_get(&again.settings, table[i].key, second, sizeof(second));
            smp_settings_get(&tried.settings, table[i].key, third, sizeof(third));
            assert_string_equal(first, second);
            assert_string_equal(first, third);
        }
        assert_int_equal(b.job.replicas, again.replicas);
        assert_int_equal((uint64_t)b.job.settings.tensor_parallel_degree *
                         b.job.settings.hybrid_shard_degree * b.job.replicas, 32);
    }
    assert_true(legal > 200);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shard_degree_follows_the_table),
        cmocka_unit_test(batches_are_divided),
        cmocka_unit_test(layers_checkpointed_are_counted),
        cmocka_unit_test(tensor_degrees_have_rules),
        cmocka_unit_test(copies_and_padding_are_legal),
        cmocka_unit_test(shard_degrees_have_rules),
        cmocka_unit_test(context_and_experts_are_refused_by_name),
        cmocka_unit_test(batch_sizes_have_rules),
        cmocka_unit_test(long_sequences_warn_with_rope),
        cmocka_unit_test(checkpointing_and_offload_have_rules),
        cmocka_unit_test(all_layers_are_said_by_0),
        cmocka_unit_test(precisions_have_rules),
        cmocka_unit_test(empty_shards_are_refused),
        cmocka_unit_test(all_broken_rules_are_told_at_once),
        cmocka_unit_test(resolving_is_idempotent),
    };
    return cmocka_run_group_tests_name("resolve", tests, NULL, NULL);
}
