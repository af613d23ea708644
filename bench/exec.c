/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The executor on this host: GPT-2 124M, 4 sequences of 64 and of 256 tokens, fp32, against a
 * floor: every matrix product of the step alone, at its own shape, transposes and threads, and
 * the bytes of AdamW at the rate of a copy.  A product is timed twice with the threads of the
 * BLAS library and twice with those of the device; the shortest counts.  The floor is measured
 * between the steps, and both are medians, so that what else the host does falls on both; times
 * are also given in processor time, which other processes stretch less, but in which a thread
 * that has nothing to do costs nothing.  Prints what it finds; judges nothing.
 *
 * OpenBLAS chooses its kernels by the processor, or by OPENBLAS_CORETYPE, which is printed.
 */
#include "config.h"

#include "exec/cpu.h"
#include "exec/exec.h"

#include "base/arena.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static const char config[] =
    "{\"model_type\": \"gpt2\", \"vocab_size\": 50257, \"n_embd\": 768, \"n_layer\": 12, "
    "\"n_head\": 12, \"n_positions\": 1024, \"resid_pdrop\": 0.0, \"embd_pdrop\": 0.0, "
    "\"attn_pdrop\": 0.0}";

enum { STEPS = 5, CLOCKS = 2 };
static const char *const clock_names[CLOCKS] = { "elapsed", "processor" };

/* By the clock on the wall, or processor time of all threads over their number. */
static double now_s(int which, uint32_t threads)
{
    struct timespec t;

    (void)clock_gettime(which ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return ((double)t.tv_sec + (double)t.tv_nsec * 1e-9) / (which ? threads : 1);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double values[STEPS])
{
    qsort(values, STEPS, sizeof *values, ascending);
    return values[STEPS / 2];
}

/* One run. */
typedef struct measured {
    uint32_t threads;
    smp_pool *pool;
    double before[CLOCKS];              /* where the step began */
    double step[CLOCKS][STEPS], products[CLOCKS][STEPS], adamw[CLOCKS][STEPS];
    double seconds[SMP_OPS][STEPS];     /* of a step's tasks, elapsed */
    uint32_t n;
    float *memory;                      /* for products */
    char *from, *to;                    /* for copies */
} measured;

enum { COPIED = 64 << 20 };

static bool is_product(const smp_task *task)
{
    return task->op == SMP_OP_MATMUL || task->op == SMP_OP_MATMUL_DX
           || task->op == SMP_OP_MATMUL_DW;
}

static uint64_t product_elems(const smp_task *task)
{
    const uint64_t *d = task->dims;

    return d[0] * d[2] + d[1] * d[2] + d[0] * d[1];
}

/* The shortest of four runs of one product: by threads of BLAS, then by the pool's. */
static void time_product(const measured *m, const smp_task *task, double seconds[CLOCKS])
{
    const uint64_t *d = task->dims;
    smp_task alone = *task;
    smp_launch l = { .task = &alone, .n_operand = 3 };
    smp_cpu cpu = { 0 };

    l.at[0] = m->memory;
    l.at[1] = m->memory + d[0] * d[2];
    l.at[2] = m->memory + d[0] * d[2] + d[1] * d[2];
    alone.flags = 0;
    for (int i = 0; i < 4; i++) {
        double start[CLOCKS];

        smp_set_blas_threads(i < 2 ? m->threads : 1);
        cpu.pool = i < 2 ? NULL : m->pool;
        for (int c = 0; c < CLOCKS; c++) {
            start[c] = now_s(c, m->threads);
        }
        (task->op == SMP_OP_MATMUL      ? smp_cpu_matmul
         : task->op == SMP_OP_MATMUL_DX ? smp_cpu_matmul_dx
                                        : smp_cpu_matmul_dw)(&cpu, &l);
        for (int c = 0; c < CLOCKS; c++) {
            double now = now_s(c, m->threads) - start[c];

            seconds[c] = i == 0 || now < seconds[c] ? now : seconds[c];
        }
    }
}

/* Seconds that a byte takes, read or written: as if each thread copied at the rate of one. */
static void time_copy(const measured *m, double seconds[CLOCKS])
{
    for (int c = 0; c < CLOCKS; c++) {
        double start = now_s(c, m->threads);

        memcpy(m->to, m->from, COPIED);
        seconds[c] = (now_s(c, m->threads) - start) / (2.0 * COPIED);
    }
}

/* After a step: what it took, and then the floor of it. */
static void note_step(void *context, smp_runner *runner, uint64_t step)
{
    measured *m = context;
    const smp_program *p = runner->rank.program;
    smp_exec_measured tasks;
    double byte[CLOCKS];

    for (int c = 0; c < CLOCKS; c++) {
        m->step[c][step] = now_s(c, m->threads) - m->before[c];
    }
    smp_exec_measure(runner, &tasks);
    time_copy(m, byte);
    for (uint32_t i = 0; i < p->n_task; i++) {
        const smp_task *task = &p->tasks[i];
        double seconds[CLOCKS], runs = (double)tasks.runs[i];

        m->seconds[task->op][step] += tasks.seconds[i];
        if (runs > 0 && is_product(task)) {
            time_product(m, task, seconds);
        }
        for (int c = 0; c < CLOCKS && runs > 0; c++) {
            m->products[c][step] += is_product(task) ? seconds[c] * runs : 0;
            m->adamw[c][step] += task->op == SMP_OP_ADAMW
                                     ? (double)smp_task_bytes(task) * runs * byte[c]
                                     : 0;
        }
    }
    smp_exec_measured_free(&tasks);
    for (int c = 0; c < CLOCKS; c++) {
        m->before[c] = now_s(c, m->threads);
    }
}

static void print_floor(measured *m)
{
    for (int c = 0; c < CLOCKS; c++) {
        double step = median(m->step[c]), products = median(m->products[c]);
        double adamw = median(m->adamw[c]);

        (void)printf("  %-9s  step %.3f s; floor %.3f s: products %.3f s, AdamW at the copy "
                     "rate %.3f s; %.0f %% of the floor's speed\n",
                     clock_names[c], step, products + adamw, products, adamw,
                     100 * (products + adamw) / step);
    }
    (void)printf("  in the step, elapsed:");
    for (int op = 0; op < SMP_OPS; op++) {
        double seconds = median(m->seconds[op]);

        if (seconds >= 0.002) {
            (void)printf(" %s %.3f", smp_op_info_of((smp_op)op)->name, seconds);
        }
    }
    (void)printf("\n");
    (void)fflush(stdout);
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

/* Large pages where the host has them, as the arena; touched, and no denormal numbers. */
static void *touched(size_t bytes)
{
    enum { LARGE_PAGE = 2 << 20 };
    size_t whole = (bytes + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
    void *memory = aligned_alloc(LARGE_PAGE, whole);

    if (!memory) {
        abort();
    }
#ifdef MADV_HUGEPAGE
    (void)madvise(memory, whole, MADV_HUGEPAGE);
#endif
    memset(memory, 0x3c, whole);
    return memory;
}

static smp_status bench(smp_job *job, uint32_t threads, const char *data, smp_errors *errors)
{
    smp_exec_options options;
    smp_exec_result result = { 0 };
    measured *m = smp_heap_alloc(1, sizeof *m);
    smp_step *step = NULL;
    uint64_t most = 0;
    smp_status status = smp_step_lower(job, errors, &step);

    for (uint32_t i = 0; status == SMP_OK && i < step->programs[0]->n_task; i++) {
        const smp_task *task = &step->programs[0]->tasks[i];

        most = is_product(task) && product_elems(task) > most ? product_elems(task) : most;
    }
    m->threads = threads;
    m->pool = smp_pool_create(threads);
    m->memory = touched((size_t)most * sizeof *m->memory);
    m->from = touched(COPIED);
    m->to = touched(COPIED);
    smp_exec_options_init(&options);
    options.data = data;
    options.steps = STEPS;
    options.threads = threads;
    options.measure = true;
    options.after_step = note_step;
    options.context = m;
    if (status == SMP_OK) {
        status = smp_exec_run(job, &options, errors, &result);
    }
    if (status == SMP_OK) {
        (void)printf("T=%llu, threads %u\n", (unsigned long long)job->batch.seq_len, threads);
        print_floor(m);
    }
    smp_pool_destroy(m->pool);
    free(m->memory);
    free(m->from);
    free(m->to);
    free(m);
    smp_step_destroy(step);
    smp_exec_result_free(&result);
    return status;
}

/* bench/exec [TOKENS [THREADS]]: only these. */
int main(int argc, char **argv)
{
    static const uint64_t lengths[] = { 64, 256 };
    smp_errors *errors = smp_errors_create();
    const char *data = make_tokens(), *core = getenv("OPENBLAS_CORETYPE");
    smp_model *model = NULL;
    smp_cluster *cluster = NULL;
    smp_profile *profile = NULL;
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
    (void)printf("OPENBLAS_CORETYPE %s\n", core ? core : "unset");
    for (uint32_t i = 0; i < 4 && status == SMP_OK; i++) {
        smp_job job = { .model = model, .cluster = cluster, .profile = profile,
                        .batch = { .seq_len = lengths[i / 2], .global_batch = 4 } };

        if ((argc > 1 && strtoul(argv[1], NULL, 10) != lengths[i / 2])
            || (argc > 2 && strtoul(argv[2], NULL, 10) != i % 2 + 1)) {
            continue;
        }
        smp_settings_init(&job.settings);
        status = smp_settings_assign(&job.settings, "precision=fp32", "--set", errors);
        if (status == SMP_OK) {
            status = smp_settings_assign(&job.settings, "micro_batch=4", "--set", errors);
        }
        if (status == SMP_OK) {
            status = smp_job_resolve(&job, errors);
        }
        if (status == SMP_OK) {
            status = bench(&job, i % 2 + 1, data, errors);
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
