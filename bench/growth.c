/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How time grows with layers, ranks, micro-batches and candidates: the least processor time of
 * several runs in milliseconds, as blocks of data for plots/growth.gp.  A report, not a test.
 *
 *     make growth                 measures and plots
 *     bench/growth [runs]         the data
 */
#include "smp.h"

#include "sim/apart.h"
#include "sim/sim.h"

#include "bench/bench.h"

#include <string.h>

typedef struct times { double lower_s, verify_s, simulate_s, apart_s; uint64_t tasks; } times;

static double least(double a, double b)
{
    return a > 0 && a < b ? a : b;
}

static smp_status measure_once(const smp_job *job, bool verify, times *t, smp_errors *errors)
{
    static smp_noise_table table;
    smp_step *step = NULL;
    smp_simulation *s = NULL;
    smp_apart *apart = NULL;
    double at[5];

    at[0] = bench_cpu_s();
    smp_status status = smp_step_lower(job, errors, &step);
    at[1] = bench_cpu_s();
    if (status == SMP_OK && verify) {
        status = smp_step_verify(step, errors);
    }
    at[2] = bench_cpu_s();
    status = status ? status : smp_simulate(job, step, errors, &s);
    at[3] = bench_cpu_s();
    status = status ? status : smp_apart_create(s, errors, &apart);
    if (status == SMP_OK) {
        smp_noise_fill(&table, 0.05);
        const smp_noise noise = { .kernel = &table, .collective = &table };
        const smp_apart_run_input input = { .noise = &noise, .seed = 1 };
        smp_apart_result result;
        smp_apart_run(apart, &input, &result);
        at[4] = bench_cpu_s();
        *t = (times){ least(t->lower_s, at[1] - at[0]), least(t->verify_s, at[2] - at[1]),
                      least(t->simulate_s, at[3] - at[2]), least(t->apart_s, at[4] - at[3]),
                      smp_apart_tasks(apart) };
    }
    smp_apart_destroy(apart);
    smp_simulation_destroy(s);
    smp_step_destroy(step);
    return status;
}

static smp_status measure(const smp_job *job, int runs, bool verify, times *t,
                          smp_errors *errors)
{
    smp_status status = SMP_OK;

    *t = (times){ .lower_s = 0 };
    for (int i = 0; i < runs && status == SMP_OK; i++) {
        status = measure_once(job, verify, t, errors);
    }
    return status;
}

static void print_row(double x, const times *t)
{
    printf("%.0f %.4f %.4f %.4f %.4f %llu\n", x, 1e3 * t->lower_s, 1e3 * t->verify_s,
           1e3 * t->simulate_s, 1e3 * t->apart_s, (unsigned long long)t->tasks);
    fflush(stdout);
}

static void heading(const char *name)
{
    printf("%s\n# lower verify simulate apart (ms), tasks of all ranks\n", name);
}

/* ---- the axes ---- */

/* A model of `layers` layers on 64 GPUs. */
static smp_status grow_layers(int runs, smp_errors *errors)
{
    smp_status status = SMP_OK;

    heading("\"layers\"");
    for (uint32_t layers = 16; layers <= 1024 && status == SMP_OK; layers *= 2) {
        static const bench_case base = { "gpt2", "dgx-h100", 64, 4096, 64,
                                         { "tensor_parallel_degree=8", "checkpointing=full" } };
        char config[512];
        const int n = snprintf(config, sizeof config,
                               "{\"model_type\": \"llama\", \"num_hidden_layers\": %u, "
                               "\"hidden_size\": 4096, \"num_attention_heads\": 32, "
                               "\"num_key_value_heads\": 8, \"intermediate_size\": 14336, "
                               "\"vocab_size\": 128256, \"max_position_embeddings\": 8192, "
                               "\"rms_norm_eps\": 1e-5}",
                               layers);
        smp_model *model = NULL;
        bench_job b;
        times t;
        status = smp_model_parse(config, (size_t)n, "growth", "growth", errors, &model);
        status = status ? status : bench_job_read(&base, errors, &b);
        if (status == SMP_OK) {
            b.job.model = model;
            status = smp_job_resolve(&b.job, errors);
            status = status ? status : measure(&b.job, runs, true, &t, errors);
            bench_job_free(&b);
        }
        if (status == SMP_OK) {
            print_row(layers, &t);
        }
        smp_model_destroy(model);
    }
    return status;
}

/* Llama-3.1-405B, one micro-batch on every rank. */
static smp_status grow_ranks(int runs, smp_errors *errors)
{
    smp_status status = SMP_OK;

    heading("\n\n\"ranks\"");
    for (uint32_t gpus = 64; gpus <= 16384 && status == SMP_OK; gpus *= 2) {
        const bench_case c = { "Llama-3.1-405B", "dgx-h100", gpus, 8192, gpus / 8,
                               { "tensor_parallel_degree=8", "checkpointing=full" } };
        bench_job b;
        times t;
        status = bench_job_make(&c, errors, &b);
        status = status ? status : measure(&b.job, runs, true, &t, errors);
        if (status == SMP_OK) {
            print_row(gpus, &t);
        }
        bench_job_free(&b);
    }
    return status;
}

static smp_status grow_micro_batches(int runs, smp_errors *errors)
{
    smp_status status = SMP_OK;

    heading("\n\n\"micro-batches\"");
    for (uint32_t n = 1; n <= 256 && status == SMP_OK; n *= 2) {
        const bench_case c = { "Llama-3.1-70B", "dgx-h100", 64, 8192, (uint64_t)16 * n,
                               { "tensor_parallel_degree=4", "checkpointing=full" } };
        bench_job b;
        times t;
        status = bench_job_make(&c, errors, &b);
        status = status ? status : measure(&b.job, runs, true, &t, errors);
        if (status == SMP_OK) {
            print_row(n, &t);
        }
        bench_job_free(&b);
    }
    return status;
}

/* A search on ever larger clusters: candidates of the space, and how long it took. */
static smp_status grow_candidates(smp_errors *errors)
{
    smp_status status = SMP_OK;

    printf("\n\n\"candidates\"\n# enumerated search (ms) evaluated\n");
    for (uint32_t gpus = 8; gpus <= 4096 && status == SMP_OK; gpus *= 2) {
        const bench_case c = { "Llama-3.1-8B", "dgx-h100", gpus, 8192, (uint64_t)gpus * 4, { 0 } };
        bench_job b;
        smp_plan_options options;
        smp_plan *plan = NULL;
        smp_plan_options_init(&options);
        status = bench_job_read(&c, errors, &b);
        const double from_s = bench_cpu_s();
        status = status ? status : smp_plan_search(&b.job, &options, errors, &plan);
        if (status == SMP_OK) {
            const smp_search_info *info = smp_plan_search_info(plan);
            printf("%llu %.3f %llu\n", (unsigned long long)info->enumerated,
                   1e3 * (bench_cpu_s() - from_s), (unsigned long long)info->evaluated);
            fflush(stdout);
        }
        smp_plan_destroy(plan);
        bench_job_free(&b);
    }
    return status;
}

int main(int argc, char **argv)
{
    const int runs = argc > 1 ? bench_runs(argc, argv) : 3;
    smp_errors *errors = smp_errors_create();
    smp_status status = grow_layers(runs, errors);

    status = status ? status : grow_ranks(runs, errors);
    status = status ? status : grow_micro_batches(runs, errors);
    status = status ? status : grow_candidates(errors);
    smp_errors_print(errors, "bench/growth", stderr);
    smp_errors_destroy(errors);
    return (int)status;
}
