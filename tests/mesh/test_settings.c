/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings by name: defaults, text in and out, refusals; SMP v2 and v1 files; what is
 * exported reads back as the same settings.
 */
#include "config.h"

#include "tests/mesh/jobs.h"

#include "base/numeric.h"
#include "mesh/settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ----------------------------------------------------------------- helpers */

static void value_is(const smp_settings *settings, const char *key, const char *value)
{
    char text[96];

    assert_true(smp_settings_get(settings, key, text, sizeof(text)));
    assert_string_equal(text, value);
}

/* Reads `text` as an SMP file; the place of messages is `smp.json`. */
static smp_status read_text(const char *text, smp_settings *settings, smp_errors *errors)
{
    FILE *file = fopen("smp.json", "w");

    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    smp_status status = smp_settings_read(settings, "smp.json", errors);
    (void)unlink("smp.json");
    return status;
}

static void read_ok(const char *text, smp_settings *settings)
{
    smp_errors *errors = smp_errors_create();

    smp_settings_init(settings);
    smp_status status = read_text(text, settings, errors);
    if (status != SMP_OK) {
        print_message("%s\n", smp_errors_text(errors, 0));
    }
    assert_int_equal(status, SMP_OK);
    smp_errors_destroy(errors);
}

/* Some failure or warning holds the text. */
static void expect_message(const smp_errors *errors, const char *text)
{
    for (size_t i = 0; i < smp_errors_count(errors); i++) {
        if (strstr(smp_errors_text(errors, i), text) != NULL) {
            return;
        }
    }
    for (size_t i = 0; i < smp_warnings_count(errors); i++) {
        if (strstr(smp_warnings_text(errors, i), text) != NULL) {
            return;
        }
    }
    for (size_t i = 0; i < smp_errors_count(errors); i++) {
        print_message("%s\n", smp_errors_text(errors, i));
    }
    fail_msg("no message holds \"%s\"", text);
}

static void read_fails(const char *text, size_t n_message, const char *message)
{
    smp_errors *errors = smp_errors_create();
    smp_settings settings, before;

    smp_settings_init(&settings);
    before = settings;
    assert_int_equal(read_text(text, &settings, errors), SMP_INPUT);
    expect_message(errors, message);
    assert_int_equal(smp_errors_count(errors), n_message);
    assert_memory_equal(&settings, &before, sizeof(settings));
    smp_errors_destroy(errors);
}

static void expect_refused(const char *assignment, const char *message)
{
    smp_errors *errors = smp_errors_create();
    smp_settings settings;

    smp_settings_init(&settings);
    assert_int_equal(smp_settings_assign(&settings, assignment, "--set", errors), SMP_INPUT);
    expect_message(errors, message);
    assert_int_equal(settings.given, 0);
    smp_errors_destroy(errors);
}

/* ------------------------------------------------------------------- tests */

static void defaults_are_those_of_smp_v2(void **state)
{
    smp_settings s;
    size_t n;
    const smp_setting_info *table = smp_settings_table(&n);
    uint32_t n_v2 = 0;

    (void)state;
    assert_int_equal(n, SMP_SETTINGS);
    smp_settings_init(&s);
    for (size_t i = 0; i < n; i++) {
        value_is(&s, table[i].key, table[i].initial);
        assert_false(smp_settings_given(&s, table[i].key));
        assert_int_equal(smp_settings_find(table[i].key), i);
        n_v2 += table[i].smp_v2;
    }
    assert_int_equal(n_v2, 9);
    assert_int_equal(s.hybrid_shard_degree, 0);
    assert_true(s.sm_activation_offloading);
    assert_int_equal(s.activation_loading_horizon, 2);
    assert_true(s.fsdp_cache_flush_warnings);
    assert_false(s.allow_empty_shards);
    assert_int_equal(s.tensor_parallel_degree, 1);
    assert_int_equal(s.random_seed, 12345);
    assert_int_equal(s.precision, SMP_PRECISION_BF16);
    assert_int_equal(s.master, SMP_PRECISION_FP32);
    assert_int_equal(smp_settings_find("tensor"), -1);
}

static void text_is_read_and_printed_canonically(void **state)
{
    static const struct { const char *assignment, *key, *value; } cases[] = {
        {"offload=1", "offload", "true"},
        {"sm_activation_offloading=0", "sm_activation_offloading", "false"},
        {"checkpointing=selective", "checkpointing", "selective:attention"},
        {"checkpointing=selective:op", "checkpointing", "selective:op"},
        {"checkpointing=first:12", "checkpointing", "first:12"},
        {"sharding_strategy=_HYBRID_SHARD_ZERO2", "sharding_strategy", "_HYBRID_SHARD_ZERO2"},
        {"random_seed=4294967295", "random_seed", "4294967295"},
        {"rank_order=expert,tensor,context,shard,replica", "rank_order",
         "expert,tensor,context,shard,replica"},
        {"rank_order=cluster", "rank_order", "tensor,context,shard,expert,replica"},
        {"rank_order=spread", "rank_order", "context,shard,expert,replica,tensor"},
        {"rank_order=DTP", "rank_order", "tensor,context,shard,expert,replica"},
        {"rank_order=PTD", "rank_order", "context,shard,expert,replica,tensor"},
    };
    smp_errors *errors = smp_errors_create();

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        smp_settings s;
        smp_settings_init(&s);
        assert_int_equal(smp_settings_assign(&s, cases[i].assignment, "--set", errors), SMP_OK);
        value_is(&s, cases[i].key, cases[i].value);
        assert_true(smp_settings_given(&s, cases[i].key));
    }
    smp_errors_destroy(errors);
}

static void wrong_text_is_refused(void **state)
{
    (void)state;
    expect_refused("tensor_paralel_degree=2", "did you mean tensor_parallel_degree?");
    expect_refused("tensor_parallel_degree=0", "tensor_parallel_degree 0: must be an integer");
    expect_refused("tensor_parallel_degree=-1", "tensor_parallel_degree -1: must be");
    expect_refused("micro_batch=4294967296", "micro_batch 4294967296: must be");
    expect_refused("micro_batch=9223372036854775808", "must be an integer");
    expect_refused("micro_batch=99999999999999999999999999", "must be an integer");
    expect_refused("micro_batch=1e3", "must be an integer");
    expect_refused("micro_batch=", "(empty)");
    expect_refused("activation_loading_horizon=0", "must be an integer: 1 or more");
    expect_refused("attention_dropout=1", "must be model, or 0 to less than 1");
    expect_refused("attention_dropout=-1", "must be model, or 0 to less than 1");
    expect_refused("offload=yes", "must be true or false");
    expect_refused("sharding=half", "must be full, optimizer or none");
    expect_refused("checkpointing=first:0", "first:K");
    expect_refused("checkpointing=first:", "first:K");
    expect_refused("rank_order=tensor,tensor,shard,expert,replica", "the five axes");
    expect_refused("rank_order=tensor,context,shard,expert", "the five axes");
    expect_refused("rank_order=tensor,context,shard,expert,replica,", "the five axes");
    expect_refused("rank_order=DPD", "the five axes");
    expect_refused("offload", "must be key=value");
    expect_refused("=1", "must be key=value");
}

static void v2_files_are_read(void **state)
{
    smp_settings s;

    (void)state;
    read_ok("{\"hybrid_shard_degree\": 16, \"tensor_parallel_degree\": 4.0,"
            " \"sm_activation_offloading\": false, \"sharding_strategy\": \"SHARD_GRAD_OP\","
            " \"rank_order\": [\"tensor\", \"context\", \"expert\", \"shard\", \"replica\"]}",
            &s);
    assert_int_equal(s.hybrid_shard_degree, 16);
    assert_int_equal(s.tensor_parallel_degree, 4);
    assert_false(s.sm_activation_offloading);
    assert_int_equal(s.sharding_strategy, SMP_STRATEGY_SHARD_GRAD_OP);
    value_is(&s, "rank_order", "tensor,context,expert,shard,replica");
    assert_true(smp_settings_given(&s, "tensor_parallel_degree"));
    assert_false(smp_settings_given(&s, "random_seed"));
    assert_string_equal(s.origin[SMP_KEY_HYBRID_SHARD_DEGREE].path, "$.hybrid_shard_degree");
    assert_int_equal(s.origin[SMP_KEY_HYBRID_SHARD_DEGREE].line, 1);
    read_ok("{}", &s);
    assert_int_equal(s.given, 0);
    read_ok("{\"smdistributed\": {\"modelparallel\": {\"enabled\": true, \"parameters\":"
            " {\"tensor_parallel_degree\": 8}}}}", &s);
    assert_int_equal(s.tensor_parallel_degree, 8);
    read_ok("{\"expert_parallel_degree\": 2, \"moe\": {\"moe_load_balancing\": \"aux_loss\","
            " \"random_seed\": 7, \"moe_aux_loss_coeff\": 0.01, \"imbalance\": 1.5,"
            " \"global_token_shuffle\": true, \"moe_all_to_all_dispatcher\": false}}", &s);
    assert_int_equal(s.moe_load_balancing, SMP_BALANCING_AUX_LOSS);
    assert_int_equal(s.random_seed, 7);
    value_is(&s, "moe_aux_loss_coeff", "0.01");
    value_is(&s, "imbalance", "1.5");
    assert_true(s.global_token_shuffle && !s.moe_all_to_all_dispatcher);
    assert_null(s.origin[SMP_KEY_IMBALANCE].path);
}

/* Each key of MoEConfig, and of experts here, in the object moe: the setting of its name. */
static void every_key_of_moe_is_a_setting(void **state)
{
    static const struct { const char *key, *json, *value; } keys[] = {
        {"smp_moe", "false", "false"},
        {"random_seed", "99", "99"},
        {"moe_load_balancing", "\"balanced\"", "balanced"},
        {"global_token_shuffle", "true", "true"},
        {"moe_all_to_all_dispatcher", "false", "false"},
        {"moe_aux_loss_coeff", "0.25", "0.25"},
        {"moe_z_loss_coeff", "0", "0"},
        {"expert_layout", "\"nested\"", "nested"},
        {"moe_dispatch_kernels", "\"deepep\"", "deepep"},
        {"capacity_factor", "1.25", "1.25"},
        {"capacity_policy", "\"position\"", "position"},
        {"capacity_pad", "true", "true"},
        {"moe_rows_factor", "4", "4"},
        {"imbalance", "\"lognormal:1.5,0.25\"", "lognormal:1.5,0.25"},
        {"moe_statistics", "\"data\"", "data"},
    };
    smp_settings s;
    char text[256];

    (void)state;
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        snprintf(text, sizeof(text), "{\"moe\": {\"%s\": %s}}", keys[i].key, keys[i].json);
        read_ok(text, &s);
        value_is(&s, keys[i].key, keys[i].value);
        assert_true(smp_settings_given(&s, keys[i].key));
    }
    /* MoEConfig's defaults */
    read_ok("{\"moe\": {}}", &s);
    value_is(&s, "smp_moe", "true");
    value_is(&s, "random_seed", "12345");
    value_is(&s, "moe_load_balancing", "sinkhorn");
    value_is(&s, "global_token_shuffle", "false");
    value_is(&s, "moe_all_to_all_dispatcher", "true");
    value_is(&s, "moe_aux_loss_coeff", "0.001");
    value_is(&s, "moe_z_loss_coeff", "0.001");
}

static void wrong_files_are_refused(void **state)
{
    (void)state;
    read_fails("{\"tensor_parallel_degree\": \"8\"}", 1,
               "$.tensor_parallel_degree: tensor_parallel_degree \"8\": must be an integer");
    read_fails("{\"tensor_parallel_degree\": 1.5}", 1, "must be an integer");
    read_fails("{\"tensor_parallel_degree\": 1e308}", 1, "must be an integer");
    read_fails("{\"tensor_parallel_degree\": -1}", 1, "must be an integer");
    read_fails("{\"tensor_parallel_degree\": 9223372036854775808}", 1, "must be an integer");
    read_fails("{\"offload\": 1}", 1, "must be true or false");
    read_fails("{\"offload\": null}", 1, "must be true or false");
    read_fails("{\"sharding\": [\"full\"]}", 1,
               "sharding [\"full\"]: must be full, optimizer or none");
    read_fails("{\"rank_order\": [1, 2]}", 1, "must be the five axes");
    /* All at once, each with its place. */
    read_fails("{\"tensor_paralel_degree\": 2,\n\"offload\": 3,\n\"micro_batch\": 0}", 3,
               "smp.json:1:27: $.tensor_paralel_degree: unknown setting "
               "tensor_paralel_degree; did you mean tensor_parallel_degree?");
    read_fails("[1]", 1, "must hold an object");
    read_fails("{\"parameters\": 3}", 1, "must hold an object");
    read_fails("{\"parameters\": {}, \"mpi\": {}}", 1, "mpi: unknown beside parameters");
    read_fails("", 1, "smp.json");
    read_fails("{\"offload\": true, \"offload\": true}", 1, "offload");
    read_fails("{\"imbalance\": 0.5}", 1, "imbalance 0.5: must be 1 or more, normal:MEAN,");
    read_fails("{\"moe\": 1}", 1, "must be an object with the keys of MoEConfig");
    read_fails("{\"moe\": {\"offload\": true}}", 1, "offload: is no key of moe");
    read_fails("{\"random_seed\": 1, \"moe\": {\"random_seed\": 1}}", 1, "given twice");
}

static void v1_files_are_translated(void **state)
{
    smp_settings s;
    smp_errors *errors = smp_errors_create();

    (void)state;
    smp_settings_init(&s);
    assert_int_equal(
        read_text("{\"pipeline_parallel_degree\": 1, \"ddp\": true, \"placement_strategy\":"
                  " \"spread\",\n \"tensor_parallel_degree\": 4, \"offload_activations\": true,"
                  " \"fp16\": true, \"shard_optimizer_state\": true, \"optimize\": \"speed\","
                  "\n \"microbatches\": 4, \"activation_loading_horizon\": 3}",
                  &s, errors), SMP_OK);
    assert_int_equal(s.tensor_parallel_degree, 4);
    value_is(&s, "rank_order", "context,shard,expert,replica,tensor");
    assert_true(s.offload);
    assert_string_equal(s.origin[SMP_KEY_OFFLOAD].path, "$.offload_activations");
    assert_string_equal(s.origin[SMP_KEY_TENSOR_PARALLEL_DEGREE].path,
                        "$.tensor_parallel_degree");
    assert_int_equal(s.precision, SMP_PRECISION_FP16);
    assert_int_equal(s.sharding, SMP_SHARDING_OPTIMIZER);
    assert_int_equal(s.hybrid_shard_degree, 0);
    assert_false(s.sequence_parallel);
    assert_int_equal(s.activation_loading_horizon, 3);
    expect_message(errors, "smp.json:3:");
    expect_message(errors, "SMP v1 key microbatches has no equivalent: give micro_batch");
    expect_message(errors, "counts pipeline tasks in SMP v1");
    assert_int_equal(smp_warnings_count(errors), 2);
    smp_errors_destroy(errors);
    read_ok("{\"sharded_data_parallel_degree\": 32, \"bf16\": true, \"fp16\": false}", &s);
    assert_int_equal(s.hybrid_shard_degree, 32);
    assert_int_equal(s.sharding, SMP_SHARDING_FULL);
    assert_int_equal(s.precision, SMP_PRECISION_BF16);
    read_ok("{\"shard_optimizer_state\": true, \"sharded_data_parallel_degree\": 1}", &s);
    assert_int_equal(s.sharding, SMP_SHARDING_OPTIMIZER);
    assert_int_equal(s.hybrid_shard_degree, 0);
    read_ok("{\"sharded_data_parallel_degree\": 1, \"fp16_params\": false}", &s);
    assert_int_equal(s.sharding, SMP_SHARDING_NONE);
    assert_int_equal(s.precision, SMP_PRECISION_FP32);
}

/* Every key of v1's reference is read or named: none is unknown, none is silent. */
static void every_v1_key_is_known(void **state)
{
    static const char *const warned[] = {
        "\"pipeline_parallel_degree\": 2", "\"partitions\": 2", "\"microbatches\": 4",
        "\"pipeline\": \"interleaved\"", "\"auto_partition\": true", "\"default_partition\": 0",
        "\"contiguous\": true", "\"horovod\": false", "\"memory_weight\": 0.8",
        "\"ddp\": false", "\"active_microbatches\": 4", "\"deterministic_server\": false",
        "\"prescaled_batch\": false", "\"skip_tracing\": false",
        "\"sdp_reduce_bucket_size\": 5e8", "\"sdp_param_persistence_threshold\": 1e6",
        "\"sdp_max_live_parameters\": 1e9", "\"sdp_hierarchical_allgather\": true",
        "\"sdp_gradient_clipping\": 1.0", "\"ddp_dist_backend\": \"auto\""
    };
    char text[256];

    (void)state;
    for (size_t i = 0; i < sizeof(warned) / sizeof(warned[0]); i++) {
        smp_errors *errors = smp_errors_create();
        smp_settings s;
        smp_settings_init(&s);
        snprintf(text, sizeof(text), "{%s}", warned[i]);
        assert_int_equal(read_text(text, &s, errors), SMP_OK);
        assert_int_equal(smp_warnings_count(errors), 1);
        expect_message(errors, "has no equivalent");
        smp_errors_destroy(errors);
    }
}

static void mixed_and_wrong_v1_files_are_refused(void **state)
{
    (void)state;
    read_fails("{\"microbatches\": 2, \"hybrid_shard_degree\": 4}", 1,
               "hybrid_shard_degree: a file with keys of SMP v1 may not hold keys of SMP v2");
    read_fails("{\"microbatches\": 2, \"micro_batch\": 4}", 1, "micro_batch: a file with");
    read_fails("{\"microbatches\": 2, \"tensor_degree\": 4}", 1, "unknown setting");
    read_fails("{\"partitions\": 0}", 1, "partitions 0: must be an integer: 1 or more");
    read_fails("{\"fp16\": 1}", 1, "must be true or false");
    read_fails("{\"optimize\": \"both\"}", 1, "optimize \"both\": must be memory or speed");
    read_fails("{\"placement_strategy\": \"tensor,context,shard,expert,replica\"}", 1,
               "must be cluster, spread or a permutation of DPT");
    read_fails("{\"placement_strategy\": \"DDD\"}", 1, "rank_order DDD");
}

/* Draws legal text for every key. */
static void draw(smp_settings *s, uint64_t seed, smp_errors *errors)
{
    static const char *const words[][6] = {
        {"sharding_strategy", "FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD",
         "_HYBRID_SHARD_ZERO2", "NO_SHARD"},
        {"sharding", "full", "optimizer", "none", "full", "none"},
        {"checkpointing", "none", "selective", "selective:op", "full", "first:7"},
        {"accumulation", "every", "last", "every", "last", "last"},
        {"precision", "bf16", "fp16", "fp32", "bf16", "fp32"},
        {"master", "fp32", "bf16", "fp32", "bf16", "fp32"},
        {"reduce_dtype", "fp32", "bf16", "fp16", "bf16", "fp32"},
        {"attention", "flash", "naive", "flash", "naive", "flash"},
        {"optimizer", "adamw", "sgd", "adam", "sgd", "adam"},
        {"prefetch", "backward_pre", "backward_post", "none", "none", "none"},
        {"rank_order", "cluster", "spread", "replica,expert,shard,context,tensor", "TDP",
         "PTD"},
        {"expert_layout", "orthogonal", "nested", "nested", "orthogonal", "nested"},
        {"moe_load_balancing", "sinkhorn", "aux_loss", "balanced", "none", "aux_loss"},
        {"capacity_policy", "probs", "position", "probs", "position", "position"},
        {"seed_rule", "global", "smp", "smp", "global", "smp"},
        {"imbalance", "1", "2.5", "normal:1.5,0.25", "lognormal:2,0.125", "1.25"},
        {"moe_dispatch_kernels", "nccl", "deepep", "deepep", "nccl", "deepep"},
        {"moe_statistics", "local", "data", "data", "local", "data"},
        {"stack", "fsdp1", "fsdp2", "megatron", "deepspeed", "native"},
        {"attention_kernel", "best", "flash2", "triton", "stack", "flash2"},
        {"attention_dropout", "model", "0", "0.1", "0.25", "model"},
        {"distribute_embedding", "auto", "on", "off", "off", "on"},
        {"loss_kernel", "fused", "compiled", "copy", "eager", "stack"},
    };
    size_t n;
    const smp_setting_info *table = smp_settings_table(&n);
    uint32_t r[4];
    char text[64];

    for (size_t i = 0; i < n; i++) {
        smp_random4(seed, i, 0, r);
        if (r[0] % 2 == 0) {
            continue;
        }
        snprintf(text, sizeof(text), "%s",
                 smp_key_kind((smp_key)i) == SMP_SETTING_BOOLEAN
                     ? (r[1] % 2 == 0 ? "true" : "false") : "");
        if (smp_key_kind((smp_key)i) == SMP_SETTING_INTEGER) {
            snprintf(text, sizeof(text), "%u", 1 + r[1] % 1000);
        } else if (smp_key_kind((smp_key)i) == SMP_SETTING_NUMBER) {
            snprintf(text, sizeof(text), "%.17g", 1 + r[1] / 4294967296.0);
        }
        for (size_t w = 0; w < sizeof(words) / sizeof(words[0]); w++) {
            if (strcmp(words[w][0], table[i].key) == 0) {
                snprintf(text, sizeof(text), "%s", words[w][1 + r[1] % 5]);
            }
        }
        assert_int_equal(smp_settings_set(s, table[i].key, text[0] != '\0' ? text : "unset",
                                          NULL, errors), SMP_OK);
    }
}

static void export_reads_back(void **state)
{
    smp_errors *errors = smp_errors_create();
    size_t n;
    const smp_setting_info *table = smp_settings_table(&n);

    (void)state;
    for (uint64_t seed = 0; seed < 300; seed++) {
        smp_settings s, back;
        char value[96];
        smp_settings_init(&s);
        draw(&s, seed, errors);
        assert_int_equal(smp_settings_export(&s, "export.json", errors), SMP_OK);
        smp_settings_init(&back);
        assert_int_equal(smp_settings_read(&back, "export.json", errors), SMP_OK);
        for (size_t i = 0; i < n; i++) {
            assert_true(smp_settings_get(&s, table[i].key, value, sizeof(value)));
            value_is(&back, table[i].key, value);
            /* What a plan fixes stays fixed. */
            assert_true(smp_key_given(&back, (smp_key)i) ||
                        !(smp_key_given(&s, (smp_key)i) || table[i].smp_v2 ||
                          table[i].searched));
        }
    }
    (void)unlink("export.json");
    assert_int_equal(smp_errors_count(errors), 0);
    assert_int_equal(smp_settings_export(&(smp_settings){0}, "absent/export.json", errors),
                     SMP_SYSTEM);
    smp_errors_destroy(errors);
}

/* The files that are shipped, of both versions. */
static void shipped_files_are_read(void **state)
{
    static const char *const names[] = {"hybrid-node", "llama-70b-tp8", "offload",
                                        "v1-sharded-data"};
    smp_errors *errors = smp_errors_create();
    smp_settings s;
    char path[512];

    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s.json", check_source("configs/smp"), names[i]);
        smp_settings_init(&s);
        check_ok(smp_settings_read(&s, path, errors), errors);
        assert_true(smp_settings_given(&s, "hybrid_shard_degree") ||
                    s.tensor_parallel_degree > 1);
    }
    smp_errors_destroy(errors);
}

/* smp(5) holds each key with its type, range and default, word by word. */
static void the_manual_knows_every_setting(void **state)
{
    enum { MOST = 1 << 16 };
    char *page = calloc(1, MOST + 1), want[512];
    FILE *file = fopen(check_source("man/smp.5"), "r");
    size_t n;
    const smp_setting_info *table = smp_settings_table(&n);

    (void)state;
    assert_non_null(file);
    assert_true(fread(page, 1, MOST, file) > 0);
    assert_int_equal(fclose(file), 0);
    for (char *c = page; *c != '\0'; c++) {
        *c = *c == '\n' ? ' ' : *c;
    }
    for (size_t i = 0; i < n; i++) {
        snprintf(want, sizeof(want), ".TP .B %s %s; %s. Default: %s. %s", table[i].key,
                 table[i].type, table[i].range, table[i].initial,
                 table[i].searched ? "Searched." : "");
        check_contains(page, want);
    }
    free(page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_those_of_smp_v2),
        cmocka_unit_test(text_is_read_and_printed_canonically),
        cmocka_unit_test(wrong_text_is_refused),
        cmocka_unit_test(v2_files_are_read),
        cmocka_unit_test(every_key_of_moe_is_a_setting),
        cmocka_unit_test(wrong_files_are_refused),
        cmocka_unit_test(v1_files_are_translated),
        cmocka_unit_test(every_v1_key_is_known),
        cmocka_unit_test(mixed_and_wrong_v1_files_are_refused),
        cmocka_unit_test(export_reads_back),
        cmocka_unit_test(shipped_files_are_read),
        cmocka_unit_test(the_manual_knows_every_setting),
    };
    return cmocka_run_group_tests_name("settings", tests, NULL, NULL);
}
