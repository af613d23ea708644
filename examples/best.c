/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans, simulates and prints: Llama-3.1-8B on one node of 8 H100, with settings as KEY=VALUE.
 *
 *   cc best.c $(pkg-config --cflags --libs smp) -o best && ./best micro_batch=1
 */
#include <smp.h>

/* The best plan, and its step in full. */
static smp_status print_best(const smp_job *job, smp_errors *errors)
{
    smp_plan *plan = NULL;
    smp_step *step = NULL;
    smp_simulation *simulation = NULL;
    smp_plan_options options;
    smp_status status;

    smp_plan_options_init(&options);
    status = smp_plan_search(job, &options, errors, &plan);
    if (status == SMP_OK) {
        status = smp_step_lower(smp_plan_job(plan, 0), errors, &step);
    }
    if (status == SMP_OK) {
        status = smp_simulate(smp_plan_job(plan, 0), step, errors, &simulation);
    }
    if (status == SMP_OK) {
        status = smp_simulation_print(simulation, false, stdout, errors);
        printf("best of %zu: %.3f s a step\n", smp_plan_count(plan),
               smp_simulation_report(simulation)->step_time_s);
    }
    smp_simulation_destroy(simulation);
    smp_step_destroy(step);
    smp_plan_destroy(plan);
    return status;
}

int main(int argc, char **argv)
{
    smp_errors *errors = smp_errors_create();
    smp_model *model = NULL;
    smp_cluster *cluster = NULL;
    smp_profile *profile = NULL;
    smp_status status = smp_model_read("Llama-3.1-8B", errors, &model);

    if (status == SMP_OK) {
        status = smp_cluster_read("dgx-h100", errors, &cluster);
    }
    if (status == SMP_OK) {
        status = smp_profile_read_for(cluster, errors, &profile);
    }
    if (status == SMP_OK) {
        smp_job job = { .model = model, .cluster = cluster, .profile = profile,
                        .batch = { .seq_len = 4096, .global_batch = 64 } };

        smp_settings_init(&job.settings);
        for (int i = 1; i < argc && status == SMP_OK; i++) {
            status = smp_settings_assign(&job.settings, argv[i], "argument", errors);
        }
        status = status == SMP_OK ? print_best(&job, errors) : status;
    }
    smp_errors_print(errors, "best", stderr);
    smp_profile_destroy(profile);
    smp_cluster_destroy(cluster);
    smp_model_destroy(model);
    smp_errors_destroy(errors);
    return (int)status;
}
