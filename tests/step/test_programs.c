/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory plan, waits and verifier on programs of real jobs: thousands of random ones of tiny
 * models under all settings, and the shipped models.
 */
#include "config.h"

#include "tests/check.h"

#include "base/numeric.h"
#include "model/model.h"
#include "step/program.h"

static smp_errors *errors;

static int set_up(void **state)
{
    (void)state;
    errors = smp_errors_create();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    smp_errors_destroy(errors);
    return 0;
}

typedef struct dice { uint64_t seed, n; } dice;

static uint32_t draw(dice *d, uint32_t below)
{
    uint32_t words[4];
    smp_random4(d->seed, 1, d->n++, words);
    return words[0] % below;
}

/* Tiny models of four shapes; the number of layers follows. */
static const char *const models[] = {
    "{\"model_type\": \"llama\", \"hidden_size\": 64, \"intermediate_size\": 96,"
    " \"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"vocab_size\": 257,"
    " \"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-5, \"num_hidden_layers\": ",
    "{\"model_type\": \"gpt2\", \"n_embd\": 48, \"n_head\": 4, \"n_positions\": 256,"
    " \"vocab_size\": 101, \"resid_pdrop\": 0.1, \"attn_pdrop\": 0.1, \"embd_pdrop\": 0.1,"
    " \"n_layer\": ",
    "{\"model_type\": \"gpt_neox\", \"hidden_size\": 64, \"intermediate_size\": 256,"
    " \"num_attention_heads\": 8, \"vocab_size\": 130, \"rotary_pct\": 0.25,"
    " \"max_position_embeddings\": 2048, \"use_parallel_residual\": true,"
    " \"num_hidden_layers\": ",
    "{\"model_type\": \"qwen3\", \"hidden_size\": 64, \"intermediate_size\": 128,"
    " \"head_dim\": 32,"
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 4, \"vocab_size\": 300,"
    " \"max_position_embeddings\": 4096, \"tie_word_embeddings\": true,"
    " \"num_hidden_layers\": ",
};

/* Values of settings, one of which is drawn, or none: then the default acts. */
static const char *const choices[][5] = {
    {"sharding=full", "sharding=optimizer", "sharding=none"},
    {"hybrid_shard_degree=0", "hybrid_shard_degree=1", "hybrid_shard_degree=2",
     "hybrid_shard_degree=4"},
    {"tensor_parallel_degree=1", "tensor_parallel_degree=2", "tensor_parallel_degree=4"},
    {"micro_batch=1", "micro_batch=2"},
    {"checkpointing=none", "checkpointing=selective", "checkpointing=selective:op",
     "checkpointing=full", "checkpointing=first:2"},
    {"offload=true", "offload=false"},
    {"offload_layers=1", "offload_layers=2", "offload_layers=3"},
    {"sm_activation_offloading=true", "sm_activation_offloading=false"},
    {"activation_loading_horizon=1", "activation_loading_horizon=2",
     "activation_loading_horizon=3"},
    {"reshard_after_forward=true", "reshard_after_forward=false"},
    {"accumulation=every", "accumulation=last"},
    {"sequence_parallel=true", "sequence_parallel=false"},
    {"precision=bf16", "precision=fp16", "precision=fp32"},
    {"master=fp32", "master=bf16"},
    {"reduce_dtype=fp32", "reduce_dtype=bf16"},
    {"attention=flash", "attention=naive"},
    {"optimizer=adamw", "optimizer=sgd"},
    {"loss_chunks=1", "loss_chunks=2", "loss_chunks=4"},
    {"prefetch=backward_pre", "prefetch=backward_post", "prefetch=none"},
    {"forward_prefetch=true", "forward_prefetch=false"},
    {"allow_empty_shards=true"},
    {"stack=fsdp1", "stack=fsdp2", "stack=megatron", "stack=deepspeed"},
    {"compile=true"},
    {"loss_kernel=fused", "loss_kernel=compiled", "loss_kernel=copy", "loss_kernel=eager"},
    {"overlap_reduce=false"},
    {"overlap_gather=false"},
};

typedef struct bench {
    smp_model *model;
    smp_job job;
} bench;

static void bench_close(bench *b)
{
    smp_model_destroy(b->model);
}

/* Clusters of the sizes in use and the profile are read once. */
static const uint32_t sizes[] = {1, 2, 4, 7, 8, 16, 24, 64};
enum { SIZES = sizeof sizes / sizeof *sizes };
static smp_cluster *clusters[SIZES];
static smp_profile *profile;

static int read_machines(void **state)
{
    const char *path = check_source("configs/clusters/p5.48xlarge.json");
    (void)set_up(state);
    for (uint32_t k = 0; k < SIZES; k++) {
        check_ok(smp_cluster_read(path, errors, &clusters[k]), errors);
        check_ok(smp_cluster_set_gpus(clusters[k], sizes[k], errors), errors);
    }
    check_ok(smp_profile_read(check_source("configs/profiles/h100-sxm.json"), errors,
                              &profile), errors);
    return 0;
}

static int forget_machines(void **state)
{
    for (uint32_t k = 0; k < SIZES; k++) {
        smp_cluster_destroy(clusters[k]);
    }
    smp_profile_destroy(profile);
    return tear_down(state);
}

static void bench_cluster(bench *b, uint32_t size)
{
    b->job.model = b->model;
    b->job.cluster = clusters[size];
    b->job.profile = profile;
    smp_settings_init(&b->job.settings);
}

static void draw_settings(bench *b, dice *d)
{
    for (size_t c = 0; c < sizeof choices / sizeof *choices; c++) {
        uint32_t n = 0, pick = draw(d, 6);
        while (n < 5 && choices[c][n] != NULL) {
            n++;
        }
        if (pick < n) {
            check_ok(smp_settings_assign(&b->job.settings, choices[c][pick], "--set", errors),
                     errors);
        }
    }
}

/* The step of a random job, or NULL where its settings break a rule. */
static smp_step *random_step(bench *b, uint64_t seed)
{
    dice d = {seed, 0};
    smp_step *step = NULL;
    char text[512];
    *b = (bench){0};
    int n = snprintf(text, sizeof text, "%s%u}", models[draw(&d, 4)], 1 + draw(&d, 6));
    check_ok(smp_model_parse(text, (size_t)n, "tiny", "tiny", errors, &b->model), errors);
    uint32_t size = draw(&d, SIZES - 1);
    bench_cluster(b, size);
    draw_settings(b, &d);
    b->job.batch.seq_len = 64u << draw(&d, 3);
    b->job.batch.global_batch = 2 * sizes[size] * (1 + draw(&d, 6));
    if (smp_job_resolve(&b->job, errors) != SMP_OK) {
        smp_errors_clear(errors);
        return NULL;
    }
    if (smp_step_lower(&b->job, errors, &step) != SMP_OK) {
        print_error("seed %llu\n", (unsigned long long)seed);
        check_ok(SMP_SYSTEM, errors);
    }
    return step;
}

static void random_jobs_verify(void **state)
{
    uint32_t n_verified = 0;
    (void)state;
    for (uint64_t seed = 0; seed < 7000; seed++) {
        bench b;
        smp_step *step = random_step(&b, seed);
        if (step != NULL) {
            if (smp_step_verify(step, errors) != SMP_OK) {
                print_error("seed %llu\n", (unsigned long long)seed);
                check_ok(SMP_SYSTEM, errors);
            }
            for (uint32_t k = 0; k < step->n_program; k++) {
                const smp_program *p = step->programs[k];
                assert_true(p->arena_bytes >= p->live_bytes);
                assert_true(p->arena_bytes >= p->safety_bytes + p->live_bytes);
            }
            n_verified++;
            smp_step_destroy(step);
        }
        bench_close(&b);
    }
    print_message("# %u jobs verified\n", n_verified);
    assert_true(n_verified >= 3000);
}

static void delete_each_wait(smp_program *p)
{
    for (uint32_t q = 0; q < p->n_pattern; q++) {
        smp_pattern *pattern = &p->patterns[q];
        uint32_t n = pattern->n_wait;
        smp_wait *waits = p->waits + pattern->wait0, kept[256];
        assert_true(n <= 256);
        memcpy(kept, waits, n * sizeof *kept);
        for (uint32_t w = 0; w < n; w++) {
            memmove(waits + w, kept + w + 1, (n - w - 1) * sizeof *kept);
            pattern->n_wait = n - 1;
            if (smp_program_verify(p, errors) == SMP_OK) {
                fail_msg("wait %u of pattern %u can be spared", w, q);
            }
            smp_errors_clear(errors);
            memcpy(waits, kept, n * sizeof *kept);
            pattern->n_wait = n;
        }
    }
}

static void no_wait_of_a_job_is_spare(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 50; seed++) {
        bench b;
        smp_step *step = random_step(&b, seed);
        if (step != NULL) {
            delete_each_wait(step->programs[0]);
            smp_step_destroy(step);
        }
        bench_close(&b);
    }
}

/* Arena at most 1.05 times the live peak, what streams cost apart (docs/architecture.md). */
static void shipped_models_are_packed(void **state)
{
    static const char *const names[] = {
        "gpt2", "gpt2-xl", "Llama-2-7B", "Llama-2-13B", "Llama-2-70B", "Llama-3.1-8B",
        "Llama-3.1-70B", "Llama-3.1-405B", "Qwen2-7B", "Qwen3-8B", "Qwen3-32B", "Mistral-7B",
        "gpt-neox-20b"};
    static const char *const sets[][2] = {
        {"checkpointing=none", "micro_batch=1"}, {"checkpointing=full", "micro_batch=2"},
        {"checkpointing=selective", "micro_batch=1"}, {"checkpointing=full", "offload=true"},
        {"sharding=optimizer", "checkpointing=full"},
        {"checkpointing=full", "reshard_after_forward=false"},
        {"checkpointing=full", "accumulation=last"},
        {"tensor_parallel_degree=4", "checkpointing=selective:op"}};
    uint32_t n_packed = 0;
    (void)state;
    for (size_t m = 0; m < sizeof names / sizeof *names; m++) {
        for (size_t s = 0; s < sizeof sets / sizeof *sets; s++) {
            bench b = {0};
            smp_step *step;
            char path[128];
            (void)snprintf(path, sizeof path, "configs/models/%s.json", names[m]);
            check_ok(smp_model_read(check_source(path), errors, &b.model), errors);
            bench_cluster(&b, SIZES - 1);
            b.job.batch = (smp_batch){.seq_len = 1024, .global_batch = 256};
            for (uint32_t k = 0; k < 2; k++) {
                check_ok(smp_settings_assign(&b.job.settings, sets[s][k], "--set", errors),
                         errors);
            }
            if (!smp_job_try(&b.job)) { /* 25 heads of gpt2-xl over four ranks */
                bench_close(&b);
                continue;
            }
            n_packed++;
            check_ok(smp_step_lower(&b.job, errors, &step), errors);
            check_ok(smp_step_verify(step, errors), errors);
            const smp_program *p = step->programs[0];
            if ((double)(p->arena_bytes - p->safety_bytes) > 1.05 * (double)p->live_bytes) {
                fail_msg("%s with %s %s: arena %llu, safety %llu, live %llu", names[m],
                         sets[s][0], sets[s][1], (unsigned long long)p->arena_bytes,
                         (unsigned long long)p->safety_bytes,
                         (unsigned long long)p->live_bytes);
            }
            smp_step_destroy(step);
            bench_close(&b);
        }
    }
    assert_int_equal(n_packed, sizeof names / sizeof *names * (sizeof sets / sizeof *sets) - 1);
}

/* Heap calls of the derivation of waits for a job of so many micro-batches. */
static uint64_t heap_calls(uint64_t micro_batches)
{
    bench b = {0};
    smp_step *step;
    check_ok(smp_model_read(check_source("configs/models/gpt2.json"), errors, &b.model),
             errors);
    bench_cluster(&b, 4);
    b.job.batch = (smp_batch){.seq_len = 1024, .global_batch = 8 * micro_batches};
    check_ok(smp_settings_assign(&b.job.settings, "micro_batch=1", "--set", errors), errors);
    check_ok(smp_job_resolve(&b.job, errors), errors);
    check_ok(smp_step_lower(&b.job, errors, &step), errors);
    check_u64(step->programs[0]->micro_batches, micro_batches);
    uint64_t before = smp_heap_calls();
    check_ok(smp_program_derive_waits(step->programs[0], errors), errors);
    uint64_t calls = smp_heap_calls() - before;
    smp_step_destroy(step);
    bench_close(&b);
    return calls;
}

/* The clocks and names of walked tasks grow by steps: 64 times the micro-batches, walked one
 * by one, would take 10 steps of 1.5 and 6 of 2 more.  Repeated ones take a larger arena. */
static void middle_micro_batches_are_not_walked(void **state)
{
    (void)state;
    assert_true(heap_calls(512) <= heap_calls(8) + 4);
}

/* No line over 100 columns, the same text twice, totals at the end. */
static void print_is_readable(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 100; seed++) {
        bench b;
        char *text[2] = {NULL, NULL};
        size_t size[2] = {0, 0};
        smp_step *step = random_step(&b, seed);
        for (uint32_t k = 0; step != NULL && k < 2; k++) {
            FILE *stream = open_memstream(&text[k], &size[k]);
            check_ok(smp_step_print(step, stream, errors), errors);
            (void)fclose(stream);
        }
        if (step != NULL) {
            check_text(text[0], text[1]);
            for (const char *line = text[0]; *line != '\0';) {
                size_t length = strcspn(line, "\n");
                if (length > 100) {
                    fail_msg("line of %zu columns: %.*s", length, (int)length, line);
                }
                assert_true(length == 0 || line[length - 1] != ' ');
                line += length + (line[length] == '\n' ? 1 : 0);
            }
            check_contains(text[0], "arena in pinned host memory");
        }
        free(text[0]);
        free(text[1]);
        smp_step_destroy(step);
        bench_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_jobs_verify),
        cmocka_unit_test(no_wait_of_a_job_is_spare),
        cmocka_unit_test(shipped_models_are_packed),
        cmocka_unit_test(middle_micro_batches_are_not_walked),
        cmocka_unit_test(print_is_readable),
    };
    const char *filter = getenv("SMP_TEST_FILTER");
    if (filter != NULL) {
        cmocka_set_test_filter(filter);
    }
    return cmocka_run_group_tests(tests, read_machines, forget_machines);
}
