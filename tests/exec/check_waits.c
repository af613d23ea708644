/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One asynchronous step without wait number N of the program, for a build with
 * ThreadSanitizer: it must report a race for each N, and none for 0.  The argument is N; "n"
 * prints how many waits there are.
 */
#include "config.h"

#include "exec/run.h"

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

static smp_status run(const smp_job *job, uint32_t without, bool count, smp_errors *errors)
{
    smp_runner_options options = { .device = &smp_device_cpu,
                                   .device_options = { .async = true, .threads = 1 },
                                   .comm = &smp_comm_threads, .without_wait = without };
    int32_t ids[32] = { 0 };
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
    if (status == SMP_OK && count) {
        (void)printf("%u\n", runner->rank.program->n_wait);
    } else if (status == SMP_OK) {
        status = smp_runner_init(runner, errors);
    }
    for (int i = 0; i < 2 && status == SMP_OK && !count; i++) {
        status = smp_runner_step(runner, ids, ids, errors);
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
        status = run(&job, (uint32_t)strtoul(argument, NULL, 10), argument[0] == 'n', errors);
    }
    smp_errors_print(errors, "check_waits", stderr);
    smp_profile_destroy(profile);
    smp_cluster_destroy(cluster);
    smp_model_destroy(model);
    smp_errors_destroy(errors);
    return (int)status;
}
