/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why the obvious alternatives lose: neighbours of the best plan, one setting changed each,
 * simulated, and compared part by part.  A sentence names what costs most: the bytes a
 * neighbour lacks, or the time it adds and the part of the step that grows most.
 */
#include "config.h"

#include "plan/plan.h"

#include "base/numeric.h"

#include <stdlib.h>
#include <string.h>

/* A neighbour: changes settings; false when the change makes no sense for this plan. */
typedef bool (*change_fn)(const smp_job *job, smp_settings *s);

static bool tensor_up(const smp_job *job, smp_settings *s)
{
    const uint32_t shard = s->hybrid_shard_degree;
    s->tensor_parallel_degree *= 2;
    if (job->settings.tensor_parallel_degree == 1) {
        s->sequence_parallel = true;
    }
    /* the same ranks hold a whole model, where they suffice */
    s->hybrid_shard_degree = shard > 1 ? shard / 2 : 1;
    return s->tensor_parallel_degree <= job->world;
}

static bool tensor_down(const smp_job *job, smp_settings *s)
{
    if (job->settings.tensor_parallel_degree % 2 != 0) {
        return false;
    }
    s->tensor_parallel_degree /= 2;
    s->hybrid_shard_degree *= 2;
    s->sequence_parallel = s->sequence_parallel && s->tensor_parallel_degree > 1;
    return true;
}

/* The smallest tensor group that crosses nodes: the obvious way to more memory. */
static bool tensor_across(const smp_job *job, smp_settings *s)
{
    const uint32_t old = s->tensor_parallel_degree;
    const uint32_t degree = 2 * job->cluster->gpus_per_node;
    if (degree <= 2 * old || job->world % degree != 0) {
        return false; /* tensor_up tries it */
    }
    s->tensor_parallel_degree = degree;
    s->sequence_parallel = s->sequence_parallel || old == 1;
    s->hybrid_shard_degree = s->hybrid_shard_degree > degree / old
                                 ? s->hybrid_shard_degree / (degree / old) : 1;
    return true;
}

static bool has_experts(const smp_job *job)
{
    for (uint32_t kind = 0; kind < job->model->n_kind; kind++) {
        if (job->model->kinds[kind].moe.experts > 0) {
            return true;
        }
    }
    return false;
}

/* Twice the expert ranks on the same ranks: in the orthogonal layout fewer shard the rest. */
static bool expert_up(const smp_job *job, smp_settings *s)
{
    const bool nested = s->expert_layout == SMP_EXPERT_LAYOUT_NESTED;
    s->expert_parallel_degree *= 2;
    if (!nested && s->hybrid_shard_degree % 2 == 0) {
        s->hybrid_shard_degree /= 2;
    }
    return has_experts(job);
}

static bool expert_down(const smp_job *job, smp_settings *s)
{
    if (s->expert_parallel_degree % 2 != 0) {
        return false;
    }
    s->expert_parallel_degree /= 2;
    if (s->expert_layout == SMP_EXPERT_LAYOUT_ORTHOGONAL) {
        s->hybrid_shard_degree *= 2;
    }
    return has_experts(job);
}

static bool layout_other(const smp_job *job, smp_settings *s)
{
    const bool nested = s->expert_layout == SMP_EXPERT_LAYOUT_NESTED;
    const uint32_t ep = s->expert_parallel_degree;
    s->expert_layout = nested ? SMP_EXPERT_LAYOUT_ORTHOGONAL : SMP_EXPERT_LAYOUT_NESTED;
    /* the same ranks hold one copy of the experts */
    s->hybrid_shard_degree = nested ? s->hybrid_shard_degree / ep : s->hybrid_shard_degree * ep;
    return has_experts(job) && ep > 1;
}

static bool dispatcher_other(const smp_job *job, smp_settings *s)
{
    s->moe_all_to_all_dispatcher = !s->moe_all_to_all_dispatcher;
    return has_experts(job) && s->expert_parallel_degree > 1;
}

static bool set_checkpointing(smp_settings *s, smp_checkpointing checkpointing)
{
    if (s->checkpointing == checkpointing) {
        return false;
    }
    s->checkpointing = checkpointing;
    s->checkpointing_layers = 0;
    s->offload = s->offload && checkpointing == SMP_CHECKPOINTING_FULL;
    return true;
}

static bool checkpointing_none(const smp_job *job, smp_settings *s)
{
    (void)job;
    return set_checkpointing(s, SMP_CHECKPOINTING_NONE);
}

static bool checkpointing_selective(const smp_job *job, smp_settings *s)
{
    (void)job;
    return set_checkpointing(s, SMP_CHECKPOINTING_SELECTIVE_OP);
}

static bool checkpointing_full(const smp_job *job, smp_settings *s)
{
    (void)job;
    return set_checkpointing(s, SMP_CHECKPOINTING_FULL);
}

static bool shard_node(const smp_job *job, smp_settings *s)
{
    const uint32_t degree = job->cluster->gpus_per_node / s->tensor_parallel_degree;
    if (degree <= 1 || degree == s->hybrid_shard_degree) {
        return false;
    }
    s->hybrid_shard_degree = degree;
    return true;
}

static bool shard_world(const smp_job *job, smp_settings *s)
{
    const bool nested = s->expert_layout == SMP_EXPERT_LAYOUT_NESTED;
    const uint32_t degree = job->world / s->tensor_parallel_degree /
                            (nested ? 1 : s->expert_parallel_degree);
    if (degree == s->hybrid_shard_degree) {
        return false;
    }
    s->hybrid_shard_degree = degree;
    return true;
}

static bool micro_batch_up(const smp_job *job, smp_settings *s)
{
    (void)job;
    s->micro_batch *= 2;
    return true;
}

static bool micro_batch_down(const smp_job *job, smp_settings *s)
{
    (void)job;
    if (s->micro_batch % 2 != 0) {
        return false;
    }
    s->micro_batch /= 2;
    return true;
}

static bool offload_other(const smp_job *job, smp_settings *s)
{
    (void)job;
    s->offload = !s->offload;
    return true;
}

static bool reshard_other(const smp_job *job, smp_settings *s)
{
    s->reshard_after_forward = !s->reshard_after_forward;
    return job->settings.sharding == SMP_SHARDING_FULL;
}

static bool accumulation_other(const smp_job *job, smp_settings *s)
{
    s->accumulation = s->accumulation == SMP_ACCUMULATION_EVERY ? SMP_ACCUMULATION_LAST
                                                                : SMP_ACCUMULATION_EVERY;
    return job->micro_batches > 1;
}

static bool sequence_other(const smp_job *job, smp_settings *s)
{
    s->sequence_parallel = !s->sequence_parallel;
    return job->settings.tensor_parallel_degree > 1;
}

static const struct neighbour { const char *key; change_fn change; } neighbours[] = {
    {"tensor_parallel_degree", tensor_up},
    {"tensor_parallel_degree", tensor_down},
    {"tensor_parallel_degree", tensor_across},
    {"expert_parallel_degree", expert_up},
    {"expert_parallel_degree", expert_down},
    {"expert_layout", layout_other},
    {"moe_all_to_all_dispatcher", dispatcher_other},
    {"checkpointing", checkpointing_none},
    {"checkpointing", checkpointing_selective},
    {"checkpointing", checkpointing_full},
    {"hybrid_shard_degree", shard_node},
    {"hybrid_shard_degree", shard_world},
    {"micro_batch", micro_batch_up},
    {"micro_batch", micro_batch_down},
    {"offload", offload_other},
    {"reshard_after_forward", reshard_other},
    {"accumulation", accumulation_other},
    {"sequence_parallel", sequence_other},
};
enum { N_NEIGHBOUR = sizeof neighbours / sizeof neighbours[0] };

/* The part of the step that grew most (or, `sign` -1, shrank most). */
static int64_t largest_time(const smp_time_parts *new, const smp_time_parts *old, int sign,
                            const char **name_p)
{
    const struct part { const char *name; int64_t more_ps; } parts[] = {
        {"compute", new->compute_ps - old->compute_ps},
        {"optimizer", new->optimizer_ps - old->optimizer_ps},
        {"kernel launches", new->launch_ps - old->launch_ps},
        {"exposed gathers and reductions of shards", new->shard_ps - old->shard_ps},
        {"exposed all-reduce over replicas", new->replica_ps - old->replica_ps},
        {"exposed tensor-parallel communication", new->tensor_ps - old->tensor_ps},
        {"exposed expert communication", new->expert_ps - old->expert_ps},
        {"reductions over all ranks", new->world_ps - old->world_ps},
        {"exposed offload copies", new->offload_ps - old->offload_ps},
    };
    size_t most = 0;
    for (size_t i = 1; i < sizeof parts / sizeof parts[0]; i++) {
        if (parts[i].more_ps * sign > parts[most].more_ps * sign) {
            most = i;
        }
    }
    *name_p = parts[most].name;
    return parts[most].more_ps;
}

static int64_t largest_memory(const smp_memory_parts *new, const smp_memory_parts *old,
                              const char **name_p)
{
    const struct part { const char *name; uint64_t new_bytes, old_bytes; } parts[] = {
        {"parameters", new->parameters_bytes, old->parameters_bytes},
        {"gradients", new->gradients_bytes, old->gradients_bytes},
        {"optimizer state", new->optimizer_bytes, old->optimizer_bytes},
        {"unsharded parameters and gradients", new->unsharded_bytes, old->unsharded_bytes},
        {"activations", new->activations_bytes, old->activations_bytes},
        {"logits", new->logits_bytes, old->logits_bytes},
        {"communication buffers", new->communication_bytes, old->communication_bytes},
    };
    int64_t most = INT64_MIN;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        const int64_t more = (int64_t)parts[i].new_bytes - (int64_t)parts[i].old_bytes;
        if (more > most) {
            most = more;
            *name_p = parts[i].name;
        }
    }
    return most;
}

/* Which links rows of experts take to the ranks that have them; "" without such ranks. */
static const char *expert_links(smp_arena *arena, const smp_job *job, smp_errors *errors)
{
    const bool rows = job->settings.moe_all_to_all_dispatcher;
    smp_mesh *mesh = NULL;
    smp_placement p;
    if (!has_experts(job) || job->settings.expert_parallel_degree == 1 ||
        smp_mesh_create(job, errors, &mesh) != SMP_OK) {
        return "";
    }
    smp_mesh_placement(mesh, SMP_GROUP_EXPERT, 0, &p);
    smp_mesh_destroy(mesh);
    const char *what = rows ? "all-to-all" : "all-gather of tokens";
    if (p.nodes == 1) {
        return smp_arena_printf(arena, "%s inside a node", what);
    }
    if (!rows || p.most_per_node != p.least_per_node) {
        return smp_arena_printf(arena, "%s over %u nodes", what, p.nodes);
    }
    return smp_arena_printf(arena, "%s over %u nodes, %u/%u of it by the network", what,
                            p.nodes, p.nodes - 1, p.nodes);
}

/* "tensor_parallel_degree 16 crosses the node"; names a shard degree that had to follow, and
 * other links of experts. */
static char *title_of(smp_arena *arena, const smp_job *best, const smp_job *job,
                      const char *key, smp_errors *errors)
{
    char value[64];
    if (!smp_settings_get(&job->settings, key, value, sizeof value)) {
        value[0] = '\0';
    }
    const smp_cluster *cluster = job->cluster;
    const bool tensor = strcmp(key, "tensor_parallel_degree") == 0;
    const bool crosses =
        tensor && job->settings.tensor_parallel_degree > cluster->gpus_per_node;
    const uint32_t shard = job->settings.hybrid_shard_degree;
    char *title = smp_arena_printf(arena, "%s %s%s", key, value,
                                   crosses ? " crosses the node" : "");
    const char *links = expert_links(arena, job, errors);
    const bool moved = strcmp(links, expert_links(arena, best, errors)) != 0 && *links;
    const bool experts = strncmp(key, "expert_", 7) == 0;
    if ((tensor || experts) && shard != best->settings.hybrid_shard_degree) {
        title = smp_arena_printf(arena, "%s (hybrid_shard_degree %u%s%s)", title, shard,
                                 moved ? "; " : "", moved ? links : "");
    } else if (moved) {
        title = smp_arena_printf(arena, "%s (%s)", title, links);
    }
    return title;
}

static char *sentence_memory(const smp_plan *plan, const smp_found *best,
                             const smp_found *other, const char *title)
{
    const smp_memory *memory = &other->report.memory;
    const double margin = plan->options.margin_frac;
    const char *part = "";
    const int64_t more = largest_memory(&memory->parts, &best->report.memory.parts, &part);
    const uint64_t limit = smp_memory_limit(&other->report, margin);
    if (memory->peak_bytes <= limit) {
        return smp_arena_printf(plan->arena, "%s: %s of host memory short", title,
                                smp_show_bytes(smp_report_excess(&other->report, margin)));
    }
    const char *excess = smp_show_bytes(smp_report_excess(&other->report, margin));
    const char *what = memory->peak_bytes > memory->capacity_bytes ? "short"
                                                                   : "short of the margin";
    if (more <= 0) {
        return smp_arena_printf(plan->arena, "%s: %s %s", title, excess, what);
    }
    return smp_arena_printf(plan->arena, "%s: %s %s (%s +%s)", title, excess, what, part,
                            smp_show_bytes((uint64_t)more));
}

static const char *signed_seconds(const smp_plan *plan, int64_t ps)
{
    return smp_arena_printf(plan->arena, "%c%s", ps < 0 ? '-' : '+',
                            smp_show_seconds(smp_s_from_ps(llabs(ps))));
}

static char *sentence_time(const smp_plan *plan, const smp_found *best, const smp_found *other,
                           const char *title)
{
    const int64_t more_ps = other->report.step_ps - best->report.step_ps;
    if (more_ps == 0) {
        return smp_arena_printf(plan->arena, "%s: the same time", title);
    }
    const int sign = more_ps > 0 ? 1 : -1;
    const char *part = "";
    const char *other_part = "";
    const int64_t part_ps =
        largest_time(&other->report.time, &best->report.time, sign, &part);
    const int64_t against_ps =
        largest_time(&other->report.time, &best->report.time, -sign, &other_part);
    const double share = 100 * (double)more_ps / (double)best->report.step_ps;
    const char *text = smp_arena_printf(plan->arena, "%s: %s (%+.1f %%), %s %s", title,
                                        signed_seconds(plan, more_ps), share, part,
                                        signed_seconds(plan, part_ps));
    /* what is saved elsewhere, where that is much of it */
    if (llabs(against_ps) > llabs(part_ps) / 4) {
        text = smp_arena_printf(plan->arena, "%s, %s %s", text, other_part,
                                signed_seconds(plan, against_ps));
    }
    return smp_arena_printf(plan->arena, "%s%s", text,
                            sign > 0 ? "" : "; outside the space that is searched");
}

/* What became of another way to hold the experts. */
typedef enum verdict { ILLEGAL, UNFIT, SLOWER, FASTER } verdict;

static verdict verdict_of(const smp_plan *plan, const smp_report *other)
{
    return !smp_report_fits(other, plan->options.margin_frac)          ? UNFIT
           : other->step_ps >= plan->found[0].report.step_ps ? SLOWER
                                                             : FASTER;
}

/* Where the experts are, which links their rows take, and what the other ways come to: tensor
 * parallelism inside experts, more expert ranks, or fewer with more sharding. */
static char *sentence_experts(const smp_plan *plan, const verdict *all, smp_errors *errors)
{
    static const struct { change_fn change; const char *name; } ways[] = {
        {tensor_up, "tensor parallelism inside experts"},
        {expert_up, "more expert ranks"},
        {expert_down, "fewer expert ranks and more sharding"},
    };
    static const char *const words[] = {"", "does not fit", "is slower",
                                        "would be faster, outside the space"};
    const smp_job *job = &plan->found[0].job;
    const uint32_t ep = job->settings.expert_parallel_degree;
    char *text = ep == 1 ? smp_arena_printf(plan->arena, "experts are all on each rank")
                         : smp_arena_printf(plan->arena, "experts lie on %u ranks, %s", ep,
                                            expert_links(plan->arena, job, errors));
    const char *between = "; ";
    for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
        for (size_t i = 0; i < N_NEIGHBOUR; i++) {
            if (neighbours[i].change == ways[w].change && all[i] != ILLEGAL) {
                text = smp_arena_printf(plan->arena, "%s%s%s %s", text, between, ways[w].name,
                                        words[all[i]]);
                between = ", ";
            }
        }
    }
    return text;
}

/* Simulates one neighbour and adds its sentence; illegal ones are left out. */
static smp_status explain_one(smp_plan *plan, const struct neighbour *neighbour,
                              smp_errors *errors, verdict *verdict_p)
{
    const smp_found *best = &plan->found[0];
    smp_found other = {.job = best->job};
    smp_settings *s = &other.job.settings;
    /* the acting strategy repeats what sharding and reshard_after_forward say */
    s->sharding_strategy = SMP_STRATEGY_UNSET;
    if (!neighbour->change(&best->job, s) || !smp_job_try(&other.job)) {
        return SMP_OK;
    }
    const smp_status st = smp_evaluate(&other.job, true, errors, &other.report, NULL);
    if (st != SMP_OK) {
        return st;
    }
    *verdict_p = verdict_of(plan, &other.report);
    const char *title =
        title_of(plan->arena, &best->job, &other.job, neighbour->key, errors);
    plan->why[plan->n_why++] = smp_report_fits(&other.report, plan->options.margin_frac)
                                   ? sentence_time(plan, best, &other, title)
                                   : sentence_memory(plan, best, &other, title);
    return SMP_OK;
}

smp_status smp_plan_explain(smp_plan *plan, smp_errors *errors)
{
    if (plan->n_found == 0) {
        return SMP_OK;
    }
    verdict all[N_NEIGHBOUR] = {ILLEGAL};
    plan->why = SMP_ARENA_ARRAY(plan->arena, N_NEIGHBOUR + 1, char *);
    for (size_t i = 0; i < N_NEIGHBOUR; i++) {
        const smp_status st = explain_one(plan, &neighbours[i], errors, &all[i]);
        if (st != SMP_OK) {
            return st;
        }
    }
    if (has_experts(&plan->found[0].job)) {
        plan->why[plan->n_why++] = sentence_experts(plan, all, errors);
    }
    return SMP_OK;
}
