/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One asynchronous step without wait number N of the program, for a build with
 * ThreadSanitizer: it must report a race for each N, and none for 0.  The argument is N; "n"
 * prints how many waits there are, "k" the numbers of those that keep nothing but an order: for
 * a token, which has no memory.
 */
#include "config.h"

#include "exec/run.h"

#include "base/arena.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char config[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 97, \"hidden_size\": 16, "
    "\"intermediate_size\": 24, \"num_hidden_layers\": 4, \"num_attention_heads\": 2, "
    "\"num_key_value_heads\": 2, \"max_position_embeddings\": 64}";

static const char *const settings[] = {
    "precision=bf16", "micro_batch=1", "checkpointing=full", "offload=true",
    "activation_loading_horizon=1",
};

/* A task at an instance. */
typedef struct place { const smp_task *task; const smp_instance *instance; } place;

static uint64_t address_of(const smp_program *p, place at, const smp_access *access)
{
    return smp_buffer_address(p, &p->buffers[access->buffer], at.instance, access->delta)
           + access->offset_bytes;
}

static bool clashes(const smp_program *p, place a, const smp_access *x, place b,
                    const smp_access *y)
{
    uint64_t from = address_of(p, a, x), other = address_of(p, b, y);

    return p->buffers[x->buffer].space == p->buffers[y->buffer].space
           && from < other + y->bytes && other < from + x->bytes && (x->writes || y->writes);
}

/* Both tasks have a token, and no memory that either writes. */
static bool is_for_token(const smp_program *p, place a, place b)
{
    bool token = false, memory = false;

    for (uint32_t i = 0; i < a.task->n_access * b.task->n_access; i++) {
        const smp_access *x = &p->accesses[a.task->access0 + i / b.task->n_access];
        const smp_access *y = &p->accesses[b.task->access0 + i % b.task->n_access];
        bool clash = clashes(p, a, x, b, y);

        token = token || (clash && p->buffers[x->buffer].space == SMP_SPACE_TOKEN);
        memory = memory || (clash && p->buffers[x->buffer].space != SMP_SPACE_TOKEN);
    }
    return token && !memory;
}

static void print_tokens(const smp_program *p)
{
    bool *told = smp_heap_alloc(p->n_wait, sizeof *told);

    for (uint32_t i = 0; i < p->n_instance; i++) {
        const smp_pattern *pattern = &p->patterns[p->order[i].pattern];

        for (uint32_t w = pattern->wait0; w < pattern->wait0 + pattern->n_wait; w++) {
            const smp_wait *wait = &p->waits[w];
            const smp_instance *here = &p->order[i], *there = here - wait->back;
            uint32_t a = p->segments[here->segment].task0 + wait->task;
            uint32_t b = p->segments[there->segment].task0 + wait->source;

            if (!told[w] && is_for_token(p, (place){ &p->tasks[a], here },
                                         (place){ &p->tasks[b], there })) {
                (void)printf("%u\n", w + 1);
                told[w] = true;
            }
        }
    }
    free(told);
}

static smp_status run(const smp_job *job, uint32_t without, char ask, smp_errors *errors)
{
    smp_runner_options options = { .device = &smp_device_cpu,
                                   .device_options = { .async = true, .threads = 1 },
                                   .comm = &smp_comm_threads, .without_wait = without };
    int32_t ids[32] = { 0 };
    const smp_inputs inputs = { .seq = job->batch.seq_len, .ids = ids, .targets = ids };
    const smp_pass *pass = NULL;
    smp_mesh *mesh = NULL;
    smp_runner *runner = NULL;
    smp_status status = smp_mesh_create(job, errors, &mesh);

    smp_hyper_init(&options.hyper);
    if (status == SMP_OK) {
        status = smp_threads_create(1, 10, errors, &options.world);
    }
    if (status == SMP_OK) {
        status = smp_runner_create(job, mesh, 0, &options, errors, &runner);
    }
    if (status == SMP_OK && ask == 'k') {
        print_tokens(runner->rank.program);
    } else if (status == SMP_OK && ask == 'n') {
        (void)printf("%u\n", runner->rank.program->n_wait);
    } else if (status == SMP_OK) {
        status = smp_runner_init(runner, errors);
    }
    for (int i = 0; i < 2 && status == SMP_OK && ask != 'n' && ask != 'k'; i++) {
        status = smp_runner_begin(runner, &inputs, i == 0 ? &inputs : NULL, errors);
    }
    while (status == SMP_OK && runner && runner->ended < runner->begun) {
        status = smp_runner_end(runner, errors, &pass);
    }
    smp_runner_destroy(runner);
    smp_comm_threads.destroy(options.world);
    smp_mesh_destroy(mesh);
    return status;
}

int main(int argc, char **argv)
{
    smp_errors *errors = smp_errors_create();
    smp_job job = { .batch = { .seq_len = 16, .global_batch = 2 } };
    smp_model *model = NULL;
    smp_cluster *cluster = NULL;
    smp_profile *profile = NULL;
    const char *argument = argc > 1 ? argv[1] : "0";
    smp_status status = smp_model_parse(config, strlen(config), "tiny", "tiny", errors, &model);

    smp_settings_init(&job.settings);
    if (status == SMP_OK) {
        status = smp_cluster_read("cpu", errors, &cluster);
    }
    if (status == SMP_OK) {
        status = smp_cluster_set_gpus(cluster, 1, errors);
    }
    if (status == SMP_OK) {
        status = smp_profile_read("cpu", errors, &profile);
    }
    for (size_t i = 0; i < sizeof settings / sizeof settings[0] && status == SMP_OK; i++) {
        status = smp_settings_assign(&job.settings, settings[i], "--set", errors);
    }
    job.model = model;
    job.cluster = cluster;
    job.profile = profile;
    if (status == SMP_OK) {
        status = smp_job_resolve(&job, errors);
    }
    if (status == SMP_OK) {
        status = run(&job, (uint32_t)strtoul(argument, NULL, 10), argument[0],
                     errors);
    }
    smp_errors_print(errors, "check_waits", stderr);
    smp_profile_destroy(profile);
    smp_cluster_destroy(cluster);
    smp_model_destroy(model);
    smp_errors_destroy(errors);
    return (int)status;
}
