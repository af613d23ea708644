/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The executor on this host: GPT-2 124M, 4 sequences of 64 and of 256 tokens, fp32, against a
 * floor: every matrix product of the step alone, at its own shape, transposes and threads, and
 * the bytes of AdamW at the rate of a copy.  Prints what it finds; judges nothing.
 *
 * OpenBLAS chooses its kernels by the processor, or by OPENBLAS_CORETYPE, which is printed.
 */
#include "config.h"

#include "exec/cpu.h"
#include "exec/exec.h"

#include "base/arena.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char config[] =
    "{\"model_type\": \"gpt2\", \"vocab_size\": 50257, \"n_embd\": 768, \"n_layer\": 12, "
    "\"n_head\": 12, \"n_positions\": 1024, \"resid_pdrop\": 0.0, \"embd_pdrop\": 0.0, "
    "\"attn_pdrop\": 0.0}";

static double now_s(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Best of five runs of one product on memory of its own. */
static double time_product(const smp_task *task)
{
    const uint64_t *d = task->dims;
    uint64_t most = d[0] * d[2] + d[1] * d[2] + d[0] * d[1] + d[0] + d[1] + d[2];
    float *memory = smp_heap_alloc(most, sizeof *memory);
    smp_task alone = *task;
    smp_launch l = { .task = &alone, .n_operand = 3 };
    smp_cpu cpu = { 0 };
    double best = 1e30;

    memset(memory, 0x3c, most * sizeof *memory); /* touched, and no denormal numbers */
    l.at[0] = memory;
    l.at[1] = memory + d[0] * d[2];
    l.at[2] = memory + d[0] * d[2] + d[1] * d[2];
    alone.flags = 0;
    for (int i = 0; i < 5; i++) {
        double start = now_s(), seconds;

        (task->op == SMP_OP_MATMUL      ? smp_cpu_matmul
         : task->op == SMP_OP_MATMUL_DX ? smp_cpu_matmul_dx
                                        : smp_cpu_matmul_dw)(&cpu, &l);
        seconds = now_s() - start;
        best = seconds < best ? seconds : best;
    }
    free(memory);
    return best;
}

static double copy_rate(void)
{
    enum { BYTES = 256 << 20 };
    char *from = smp_heap_alloc(BYTES, 1), *to = smp_heap_alloc(BYTES, 1);
    double best = 1e30;

    memset(from, 1, BYTES);
    memset(to, 2, BYTES);
    for (int i = 0; i < 5; i++) {
        double start = now_s(), seconds;

        memcpy(to, from, BYTES);
        seconds = now_s() - start;
        best = seconds < best ? seconds : best;
    }
    free(from);
    free(to);
    return 2.0 * BYTES / best; /* read and written */
}

static void print_floor(const smp_program *p, const smp_exec_measured *m, double copy_Bps)
{
    double products = 0, measured = 0, optimizer = 0;

    for (uint32_t i = 0; i < p->n_task; i++) {
        const smp_task *task = &p->tasks[i];

        if (m->runs[i] == 0) {
            continue;
        }
        if (task->op == SMP_OP_MATMUL || task->op == SMP_OP_MATMUL_DX
            || task->op == SMP_OP_MATMUL_DW) {
            products += time_product(task) * (double)m->runs[i];
            measured += m->seconds[i];
        } else if (task->op == SMP_OP_ADAMW) {
            optimizer += (double)smp_task_bytes(task) * (double)m->runs[i] / copy_Bps;
        }
    }
    (void)printf("  products alone %.3f s (in the step %.3f s), AdamW at the copy rate %.3f s\n"
                 "  floor %.3f s, step %.3f s: %.0f %% of the floor's speed\n",
                 products, measured, optimizer, products + optimizer, m->step_seconds,
                 100 * (products + optimizer) / m->step_seconds);
}

static const char *make_tokens(void)
{
    static char path[64];
    FILE *stream;
    uint32_t x = 1;

    (void)snprintf(path, sizeof path, "bench-%ld.bin", (long)getpid());
    stream = fopen(path, "wb");
    for (int i = 0; stream && i < 8192; i++) {
        x = x * 1664525u + 1013904223u;
        (void)fputc((int)(x >> 16 & 0xff), stream);
        (void)fputc((int)(x >> 24) % 196, stream);
    }
    if (stream) {
        (void)fclose(stream);
    }
    return path;
}

static smp_status bench(smp_job *job, uint32_t threads, const char *data, double copy_Bps,
                        smp_errors *errors)
{
    smp_exec_options options;
    smp_exec_result result = { 0 };
    smp_step *step = NULL;
    smp_status status;

    smp_exec_options_init(&options);
    options.data = data;
    options.steps = 3;
    options.threads = threads;
    options.measure = true;
    status = smp_exec_run(job, &options, errors, &result);
    if (status == SMP_OK) {
        status = smp_step_lower(job, errors, &step);
    }
    if (status == SMP_OK) {
        (void)printf("T=%llu, threads %u: %.0f tokens/s\n",
                     (unsigned long long)job->batch.seq_len, threads,
                     4.0 * (double)job->batch.seq_len / result.measured.step_seconds);
        print_floor(step->programs[0], &result.measured, copy_Bps);
    }
    smp_step_destroy(step);
    smp_exec_result_free(&result);
    return status;
}

int main(void)
{
    static const uint64_t lengths[] = { 64, 256 };
    smp_errors *errors = smp_errors_create();
    const char *data = make_tokens(), *core = getenv("OPENBLAS_CORETYPE");
    smp_model *model = NULL;
    smp_cluster *cluster = NULL;
    smp_profile *profile = NULL;
    double copy_Bps = copy_rate();
    smp_status status = smp_model_parse(config, strlen(config), "gpt2", "gpt2", errors, &model);

    if (status == SMP_OK) {
        status = smp_cluster_read("cpu", errors, &cluster);
    }
    if (status == SMP_OK) {
        status = smp_cluster_set_gpus(cluster, 1, errors);
    }
    if (status == SMP_OK) {
        status = smp_profile_read("cpu", errors, &profile);
    }
    (void)printf("OPENBLAS_CORETYPE %s, copy rate %.1f GB/s\n", core ? core : "unset",
                 copy_Bps * 1e-9);
    for (uint32_t i = 0; i < 4 && status == SMP_OK; i++) {
        smp_job job = { .model = model, .cluster = cluster, .profile = profile,
                        .batch = { .seq_len = lengths[i / 2], .global_batch = 4 } };

        smp_settings_init(&job.settings);
        status = smp_settings_assign(&job.settings, "precision=fp32", "--set", errors);
        if (status == SMP_OK) {
            status = smp_settings_assign(&job.settings, "micro_batch=4", "--set", errors);
        }
        if (status == SMP_OK) {
            status = smp_job_resolve(&job, errors);
        }
        if (status == SMP_OK) {
            status = bench(&job, i % 2 + 1, data, copy_Bps, errors);
        }
    }
    (void)unlink(data);
    smp_errors_print(errors, "bench/exec", stderr);
    smp_profile_destroy(profile);
    smp_cluster_destroy(cluster);
    smp_model_destroy(model);
    smp_errors_destroy(errors);
    return (int)status;
}
