/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that are lost while no spare stands by.
 *
 * A rank takes with it the others that hold a copy of the model together with it (its model
 * group: tensor, expert and shard ranks), since parameters, gradients and optimizer state of
 * the lost one are nowhere else among them.  The other replicas go on, each with the sequences
 * that it had, so a step has fewer.  They are simulated as a job of that many GPUs that fill
 * nodes in order: exact where replicas fill whole nodes; elsewhere the holes that the lost ones
 * leave are closed.
 */
#include "config.h"

#include "sim/what_if.h"

#include "base/numeric.h"
#include "cost/cost.h"
#include "mesh/mesh.h"

#include <inttypes.h>
#include <stdlib.h>

/* Marks the first member of the model group of each rank in the list. */
static smp_status mark_lost(const smp_mesh *mesh, const smp_what_if_options *o, bool *ranks,
                            bool *replicas, uint32_t *members, smp_errors *errors)
{
    const uint32_t world = smp_mesh_world(mesh);
    const smp_place where = {.file = "--lost-rank"};
    for (size_t i = 0; i < o->n_lost_rank; i++) {
        char *end = NULL;
        const unsigned long long rank = strtoull(o->lost_ranks[i], &end, 10);
        if (o->lost_ranks[i][0] < '0' || o->lost_ranks[i][0] > '9' || *end != '\0' ||
            rank >= world) {
            return smp_fail(errors, SMP_INPUT, &where, "'%s': must be a rank from 0 to %u",
                            o->lost_ranks[i], world - 1);
        }
        smp_mesh_members(mesh, SMP_GROUP_MODEL, (uint32_t)rank, members);
        ranks[rank] = true;
        replicas[members[0]] = true;
    }
    return SMP_OK;
}

static uint32_t count(const bool *marks, uint32_t n)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += marks[i];
    }
    return sum;
}

/* The job of the replicas that are left. */
static smp_status simulate_left(const smp_simulation *simulation, smp_errors *errors,
                                smp_lost_answer *a)
{
    smp_cluster cluster = *simulation->job->cluster;
    smp_job job = *simulation->job;
    smp_step *step = NULL;
    smp_simulation *left = NULL;
    cluster.gpus = a->gpus_left;
    cluster.nodes = (uint32_t)smp_ceil_div(a->gpus_left, cluster.gpus_per_node);
    job.cluster = &cluster;
    job.batch.global_batch = a->batch_left;
    /* the acting strategy repeats what sharding and the degrees say */
    job.settings.sharding_strategy = SMP_STRATEGY_UNSET;
    smp_status status = smp_job_resolve(&job, errors);
    if (status == SMP_OK) {
        status = smp_step_lower(&job, errors, &step);
    }
    if (status == SMP_OK) {
        status = smp_simulate(&job, step, errors, &left);
    }
    if (status == SMP_OK) {
        a->step_left_s = left->report.step_time_s;
        a->tokens_per_s_left = left->report.tokens_per_s_per_gpu * a->gpus_left;
    }
    smp_simulation_destroy(left);
    smp_step_destroy(step);
    return status;
}

smp_status smp_lost_answer_find(const smp_simulation *simulation,
                                const smp_what_if_options *o, smp_errors *errors,
                                smp_lost_answer *answer_p)
{
    const smp_job *job = simulation->job;
    const smp_mesh *mesh = simulation->step->mesh;
    const uint32_t world = smp_mesh_world(mesh);
    const uint32_t group = smp_mesh_group_size(mesh, SMP_GROUP_MODEL);
    bool *ranks = smp_heap_alloc(world, sizeof *ranks);
    bool *replicas = smp_heap_alloc(world, sizeof *replicas);
    uint32_t *members = smp_heap_alloc(world, sizeof *members);
    smp_lost_answer a = {.replicas = world / group, .gpus = world,
                         .batch = job->batch.global_batch,
                         .step_s = simulation->report.step_time_s,
                         .tokens_per_s = simulation->report.tokens_per_s_per_gpu * world};
    smp_status status = mark_lost(mesh, o, ranks, replicas, members, errors);
    if (status == SMP_OK) {
        a.ranks = count(ranks, world);
        a.replicas_left = a.replicas - count(replicas, world);
        a.gpus_left = a.replicas_left * group;
        a.idle = world - a.gpus_left - a.ranks;
        a.batch_left = a.batch / a.replicas * a.replicas_left;
        status = a.replicas_left > 0 ? simulate_left(simulation, errors, &a) : SMP_OK;
    }
    free(members);
    free(replicas);
    free(ranks);
    *answer_p = a;
    return status;
}

void smp_lost_answer_text(const smp_lost_answer *a, smp_text *text)
{
    smp_text_add(text, "\nLost: %u rank%s, and with %s %u of %u replicas of the model\n",
                 a->ranks, a->ranks == 1 ? "" : "s", a->ranks == 1 ? "it" : "them",
                 a->replicas - a->replicas_left, a->replicas);
    if (a->replicas_left == 0) {
        smp_text_add(text, "  no replica is left: training stops until it is restarted from a "
                           "checkpoint\n");
        return;
    }
    smp_text_add(text, "  %-24s%14s%14s\n", "", "before", "going on");
    smp_text_add(text, "  %-24s%14u%14u   (%u idle)\n", "GPUs", a->gpus, a->gpus_left, a->idle);
    smp_text_add(text, "  %-24s%14" PRIu64 "%14" PRIu64 "\n", "sequences a step", a->batch,
                 a->batch_left);
    smp_text_add(text, "  %-24s%14s", "step", smp_show_seconds(a->step_s));
    smp_text_add(text, "%14s   (%+.2f %%)\n", smp_show_seconds(a->step_left_s),
                 100 * (a->step_left_s / a->step_s - 1));
    smp_text_add(text, "  %-24s%14.0f%14.0f   (%+.2f %%)\n", "tokens/s", a->tokens_per_s,
                 a->tokens_per_s_left, 100 * (a->tokens_per_s_left / a->tokens_per_s - 1));
}

void smp_lost_answer_out(const smp_lost_answer *a, smp_json_out *out)
{
    smp_out_object(out, "lost_ranks");
    smp_out_u64(out, "ranks", a->ranks);
    smp_out_u64(out, "replicas", a->replicas);
    smp_out_u64(out, "replicas_left", a->replicas_left);
    smp_out_u64(out, "gpus_left", a->gpus_left);
    smp_out_u64(out, "gpus_idle", a->idle);
    smp_out_u64(out, "global_batch_left", a->batch_left);
    smp_out_double(out, "step_s", a->step_left_s);
    smp_out_double(out, "tokens_per_s", a->tokens_per_s_left);
    smp_out_end_object(out);
}
