/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library in one page: read inputs, make a job, ask its mesh, lower its step program,
 * simulate it.  It uses nothing but smp.h.
 *
 *   examples/groups [RANK]      groups of a rank of Llama-3.1-8B on two p5.48xlarge
 */
#include <smp.h>

#include <stdlib.h>

static void print_group(const smp_mesh *mesh, smp_group group, uint32_t rank)
{
    uint32_t n = smp_mesh_group_size(mesh, group);
    uint32_t *members = malloc(n * sizeof(*members));

    if (members == NULL) {
        return;
    }
    smp_mesh_members(mesh, group, rank, members);
    printf("%-13s", smp_group_name(group));
    for (uint32_t i = 0; i < n; i++) {
        printf(" %u", members[i]);
    }
    printf("\n");
    free(members);
}

static void print_mesh(const smp_job *job, const smp_mesh *mesh, uint32_t rank)
{
    smp_coords at;
    char degree[16];

    smp_mesh_coords(mesh, rank, &at);
    (void)smp_settings_get(&job->settings, "hybrid_shard_degree", degree, sizeof(degree));
    printf("rank %u of %u: tensor %u, shard %u of %s\n", rank, smp_mesh_world(mesh),
           at.axis[SMP_AXIS_TENSOR], at.axis[SMP_AXIS_SHARD], degree);
    print_group(mesh, SMP_GROUP_TENSOR, rank);
    print_group(mesh, SMP_GROUP_SHARD, rank);
    print_group(mesh, SMP_GROUP_REPLICA, rank);
}

static smp_status simulate(const smp_job *job, smp_errors *errors)
{
    smp_step *step = NULL;
    smp_simulation *simulation = NULL;

    smp_status status = smp_step_lower(job, errors, &step);
    status = status != SMP_OK ? status : smp_step_verify(step, errors);
    status = status != SMP_OK ? status : smp_simulate(job, step, errors, &simulation);
    if (status == SMP_OK) {
        const smp_report *report = smp_simulation_report(simulation);
        printf("step %.3f s, %.1f GiB of %.1f GiB: %s\n", report->step_time_s,
               (double)report->memory.peak_bytes / (1 << 30),
               (double)report->memory.capacity_bytes / (1 << 30),
               report->memory.fits ? "fits" : "does not fit");
    }
    smp_simulation_destroy(simulation);
    smp_step_destroy(step);
    return status;
}

static smp_status run(smp_job *job, uint32_t rank, smp_errors *errors)
{
    smp_mesh *mesh = NULL;

    smp_status status = smp_settings_assign(&job->settings, "tensor_parallel_degree=4",
                                            "example", errors);
    status = status != SMP_OK ? status : smp_job_resolve(job, errors);
    status = status != SMP_OK ? status : smp_mesh_create(job, errors, &mesh);
    if (status != SMP_OK) {
        return status;
    }
    print_mesh(job, mesh, rank % smp_mesh_world(mesh));
    smp_mesh_destroy(mesh);
    return simulate(job, errors);
}

int main(int argc, char **argv)
{
    smp_errors *errors = smp_errors_create();
    smp_model *model = NULL;
    smp_cluster *cluster = NULL;
    smp_profile *profile = NULL;

    smp_status status = smp_model_read("Llama-3.1-8B", errors, &model);
    status = status != SMP_OK ? status : smp_cluster_read("p5.48xlarge", errors, &cluster);
    status = status != SMP_OK ? status : smp_cluster_set_nodes(cluster, 2, errors);
    status = status != SMP_OK ? status : smp_profile_read_for(cluster, errors, &profile);
    if (status == SMP_OK) {
        smp_job job = {.model = model, .cluster = cluster, .profile = profile,
                       .batch = {.seq_len = 8192, .global_batch = 16}};
        smp_settings_init(&job.settings);
        status = run(&job, argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0, errors);
    }
    smp_errors_print(errors, "groups", stderr);
    smp_profile_destroy(profile);
    smp_cluster_destroy(cluster);
    smp_model_destroy(model);
    smp_errors_destroy(errors);
    return (int)status;
}
