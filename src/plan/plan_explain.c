/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why the obvious alternatives lose: neighbours of the best plan, one setting changed each,
 * simulated, and compared part by part.  What limits a neighbour is what costs most: the
 * bytes it lacks, or the part of the step that grows most.
 */
#include "config.h"

#include "plan/plan.h"

#include "base/numeric.h"
#include "mesh/settings.h"

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

/* Twice the expert ranks on the same ranks: in the orthogonal layout fewer shard the rest. */
static bool expert_up(const smp_job *job, smp_settings *s)
{
    const bool nested = smp_nested(s);
    s->expert_parallel_degree *= 2;
    if (!nested && s->hybrid_shard_degree % 2 == 0) {
        s->hybrid_shard_degree /= 2;
    }
    return smp_model_experts(job->model) > 0;
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
    return smp_model_experts(job->model) > 0;
}

static bool layout_other(const smp_job *job, smp_settings *s)
{
    const bool nested = smp_nested(s);
    const uint32_t ep = s->expert_parallel_degree;
    s->expert_layout = nested ? SMP_EXPERT_LAYOUT_ORTHOGONAL : SMP_EXPERT_LAYOUT_NESTED;
    /* the same ranks hold one copy of the experts */
    s->hybrid_shard_degree = nested ? s->hybrid_shard_degree / ep : s->hybrid_shard_degree * ep;
    return smp_model_experts(job->model) > 0 && ep > 1;
}

static bool order_other(const smp_job *job, smp_settings *s)
{
    for (int i = 0; i < (int)SMP_AXES; i++) {
        const smp_axis axis = job->settings.rank_order[i];
        s->rank_order[i] = axis == SMP_AXIS_EXPERT  ? SMP_AXIS_SHARD
                           : axis == SMP_AXIS_SHARD ? SMP_AXIS_EXPERT : axis;
    }
    s->given |= UINT64_C(1) << SMP_KEY_RANK_ORDER; /* against the default of the layout */
    return s->expert_parallel_degree > 1 && smp_expert_shards(s) > 1;
}

static bool dispatcher_other(const smp_job *job, smp_settings *s)
{
    s->moe_all_to_all_dispatcher = !s->moe_all_to_all_dispatcher;
    return smp_model_experts(job->model) > 0 && s->expert_parallel_degree > 1;
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

static bool checkpointing_attention(const smp_job *job, smp_settings *s)
{
    (void)job;
    return set_checkpointing(s, SMP_CHECKPOINTING_SELECTIVE_ATTENTION);
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

static bool checkpoints_layers(const smp_settings *s)
{
    return s->checkpointing == SMP_CHECKPOINTING_FIRST ||
           s->checkpointing == SMP_CHECKPOINTING_FULL;
}

/* The first `layers` checkpointed, and of them as many offloaded as before. */
static bool set_first(smp_settings *s, uint32_t layers)
{
    s->checkpointing = SMP_CHECKPOINTING_FIRST;
    s->checkpointing_layers = layers;
    s->offload_layers = s->offload_layers < layers ? s->offload_layers : 0;
    return layers > 0;
}

static bool checkpointing_fewer(const smp_job *job, smp_settings *s)
{
    return checkpoints_layers(&job->settings) && set_first(s, s->checkpointing_layers - 1);
}

static bool checkpointing_more(const smp_job *job, smp_settings *s)
{
    return job->settings.checkpointing == SMP_CHECKPOINTING_FIRST &&
           set_first(s, s->checkpointing_layers + 1);
}

/* The next divisor of n above or below a value; 0: there is none. */
static uint32_t next_divisor(uint64_t n, uint32_t value, bool up)
{
    const uint64_t step = up ? 1 : UINT64_MAX; /* modulo 2^64, -1 */
    for (uint64_t d = value + step; d > 0 && d <= n; d += step) {
        if (n % d == 0) {
            return (uint32_t)d;
        }
    }
    return 0;
}

/* Ranks that may share the training state. */
static uint32_t most_shards(const smp_job *job)
{
    const smp_settings *s = &job->settings;
    const bool nested = smp_nested(s);
    return job->world / s->tensor_parallel_degree / (nested ? 1 : s->expert_parallel_degree);
}

static bool set_shard(smp_settings *s, uint32_t degree)
{
    if (degree == 0 || degree == s->hybrid_shard_degree) {
        return false;
    }
    s->hybrid_shard_degree = degree;
    return true;
}

static bool shard_up(const smp_job *job, smp_settings *s)
{
    return set_shard(s, next_divisor(most_shards(job), s->hybrid_shard_degree, true));
}

static bool shard_down(const smp_job *job, smp_settings *s)
{
    return set_shard(s, next_divisor(most_shards(job), s->hybrid_shard_degree, false));
}

static bool shard_node(const smp_job *job, smp_settings *s)
{
    const uint32_t degree = job->cluster->gpus_per_node / s->tensor_parallel_degree;
    return degree > 1 && set_shard(s, degree);
}

static bool shard_world(const smp_job *job, smp_settings *s)
{
    return set_shard(s, most_shards(job));
}

static bool micro_batch_up(const smp_job *job, smp_settings *s)
{
    s->micro_batch =
        next_divisor(job->batch.global_batch / job->data_ranks, s->micro_batch, true);
    return s->micro_batch > 0;
}

static bool micro_batch_down(const smp_job *job, smp_settings *s)
{
    s->micro_batch =
        next_divisor(job->batch.global_batch / job->data_ranks, s->micro_batch, false);
    return s->micro_batch > 0;
}

static bool horizon_up(const smp_job *job, smp_settings *s)
{
    s->activation_loading_horizon *= 2;
    return job->settings.offload && s->sm_activation_offloading;
}

static bool horizon_down(const smp_job *job, smp_settings *s)
{
    s->activation_loading_horizon /= 2;
    return job->settings.offload && s->sm_activation_offloading &&
           s->activation_loading_horizon > 0;
}

static bool chunks_other(const smp_job *job, smp_settings *s)
{
    (void)job;
    s->loss_chunks = s->loss_chunks == 1 ? 8 : 1;
    return true;
}

static bool prefetch_other(const smp_job *job, smp_settings *s)
{
    const bool none = s->prefetch == SMP_PREFETCH_NONE;
    s->prefetch = none ? SMP_PREFETCH_BACKWARD_PRE : SMP_PREFETCH_NONE;
    s->forward_prefetch = none;
    return job->settings.sharding == SMP_SHARDING_FULL && job->settings.hybrid_shard_degree > 1;
}

static bool offload_other(const smp_job *job, smp_settings *s)
{
    (void)job;
    s->offload = !s->offload;
    return true;
}

/* A quarter of the layers fewer or more offloaded, of those that are checkpointed. */
static uint32_t quarter(const smp_job *job)
{
    return job->model->n_layer < 4 ? 1 : job->model->n_layer / 4;
}

static bool offload_fewer(const smp_job *job, smp_settings *s)
{
    const uint32_t layers = smp_offloaded_layers(&job->settings);
    s->offload_layers = layers > quarter(job) ? layers - quarter(job) : 0;
    return s->offload_layers > 0;
}

static bool offload_more(const smp_job *job, smp_settings *s)
{
    const uint32_t layers = smp_offloaded_layers(&job->settings) + quarter(job);
    s->offload_layers = layers < s->checkpointing_layers ? layers : 0; /* 0: all */
    return job->settings.offload && job->settings.offload_layers > 0;
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
    {"rank_order", order_other},
    {"moe_all_to_all_dispatcher", dispatcher_other},
    {"checkpointing", checkpointing_none},
    {"checkpointing", checkpointing_attention},
    {"checkpointing", checkpointing_selective},
    {"checkpointing", checkpointing_fewer},
    {"checkpointing", checkpointing_more},
    {"checkpointing", checkpointing_full},
    {"hybrid_shard_degree", shard_down},
    {"hybrid_shard_degree", shard_up},
    {"hybrid_shard_degree", shard_node},
    {"hybrid_shard_degree", shard_world},
    {"micro_batch", micro_batch_up},
    {"micro_batch", micro_batch_down},
    {"offload", offload_other},
    {"offload_layers", offload_fewer},
    {"offload_layers", offload_more},
    {"activation_loading_horizon", horizon_up},
    {"activation_loading_horizon", horizon_down},
    {"reshard_after_forward", reshard_other},
    {"accumulation", accumulation_other},
    {"sequence_parallel", sequence_other},
    {"loss_chunks", chunks_other},
    {"prefetch", prefetch_other},
};
enum { N_NEIGHBOUR = sizeof neighbours / sizeof neighbours[0] };

/* A part of time or memory, and how much more of it a neighbour has. */
typedef struct part { const char *name, *brief; int64_t more; } part;

/* The part that grew most (or, `sign` -1, shrank most). */
static part largest_part(const part *parts, size_t n, int sign)
{
    size_t most = 0;
    for (size_t i = 1; i < n; i++) {
        if (parts[i].more * sign > parts[most].more * sign) {
            most = i;
        }
    }
    return parts[most];
}

static part largest_time(const smp_time_parts *new, const smp_time_parts *old, int sign)
{
    const part parts[] = {
        {"compute", "compute", new->compute_ps - old->compute_ps},
        {"optimizer", "optimizer", new->optimizer_ps - old->optimizer_ps},
        {"kernel launches", "launches", new->launch_ps - old->launch_ps},
        {"exposed gathers and reductions of shards", "shards", new->shard_ps - old->shard_ps},
        {"exposed all-reduce over replicas", "replicas", new->replica_ps - old->replica_ps},
        {"exposed tensor-parallel communication", "tensor", new->tensor_ps - old->tensor_ps},
        {"exposed expert communication", "experts", new->expert_ps - old->expert_ps},
        {"reductions over all ranks", "world", new->world_ps - old->world_ps},
        {"exposed offload copies", "copies", new->offload_ps - old->offload_ps},
    };
    return largest_part(parts, sizeof parts / sizeof parts[0], sign);
}

static int64_t more_bytes(uint64_t new_bytes, uint64_t old_bytes)
{
    return (int64_t)new_bytes - (int64_t)old_bytes;
}

static part largest_memory(const smp_memory_parts *new, const smp_memory_parts *old)
{
    const part parts[] = {
        {"parameters", NULL, more_bytes(new->parameters_bytes, old->parameters_bytes)},
        {"gradients", NULL, more_bytes(new->gradients_bytes, old->gradients_bytes)},
        {"optimizer state", NULL, more_bytes(new->optimizer_bytes, old->optimizer_bytes)},
        {"unsharded parameters and gradients", NULL,
         more_bytes(new->unsharded_bytes, old->unsharded_bytes)},
        {"activations", NULL, more_bytes(new->activations_bytes, old->activations_bytes)},
        {"logits", NULL, more_bytes(new->logits_bytes, old->logits_bytes)},
        {"communication buffers", NULL,
         more_bytes(new->communication_bytes, old->communication_bytes)},
    };
    return largest_part(parts, sizeof parts / sizeof parts[0], 1);
}

/* Which links rows of experts take to the ranks that have them; "" without such ranks. */
static const char *expert_links(smp_arena *arena, const smp_job *job, smp_errors *errors)
{
    const bool rows = job->settings.moe_all_to_all_dispatcher;
    smp_mesh *mesh = NULL;
    smp_placement p;
    if (smp_model_experts(job->model) == 0 || job->settings.expert_parallel_degree == 1 ||
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

/* "tensor_parallel_degree 16 crosses the node"; names a shard degree that had to follow. */
static const char *title_of(smp_arena *arena, const smp_job *job, const smp_neighbour *n)
{
    const bool crosses = strcmp(n->key, "tensor_parallel_degree") == 0 &&
                         job->settings.tensor_parallel_degree > job->cluster->gpus_per_node;
    const char *title = smp_arena_printf(arena, "%s %s%s", n->key, n->value,
                                         crosses ? " crosses the node" : "");
    return n->with ? smp_arena_printf(arena, "%s (%s)", title, n->with) : title;
}

static void explain_memory(const smp_plan *plan, const smp_found *best, const smp_found *other,
                           const char *title, smp_neighbour *n)
{
    smp_arena *arena = plan->arena;
    const smp_memory *memory = &other->report.memory;
    const part most = largest_memory(&memory->parts, &best->report.memory.parts);
    const uint64_t limit = smp_memory_limit(&other->report, plan->options.margin_frac);
    const char *excess = smp_show_bytes(n->excess_bytes);
    n->limit = smp_arena_printf(arena, "short %s", excess);
    if (memory->peak_bytes <= limit) {
        n->limit = smp_arena_printf(arena, "host short %s", excess);
        n->why = smp_arena_printf(arena, "%s: %s of host memory short", title, excess);
        return;
    }
    const char *what = memory->peak_bytes > memory->capacity_bytes ? "short"
                                                                   : "short of the margin";
    n->why = most.more <= 0 ? smp_arena_printf(arena, "%s: %s %s", title, excess, what)
                            : smp_arena_printf(arena, "%s: %s %s (%s +%s)", title, excess, what,
                                               most.name, smp_show_bytes((uint64_t)most.more));
}

static const char *signed_seconds(const smp_plan *plan, int64_t ps)
{
    return smp_arena_printf(plan->arena, "%c%s", ps < 0 ? '-' : '+',
                            smp_show_seconds(smp_s_from_ps(llabs(ps))));
}

static void explain_time(const smp_plan *plan, const smp_found *best, const smp_found *other,
                         const char *title, smp_neighbour *n)
{
    if (n->more_ps == 0) {
        n->limit = "nothing";
        n->why = smp_arena_printf(plan->arena, "%s: the same time", title);
        return;
    }
    const int sign = n->more_ps > 0 ? 1 : -1;
    const part most = largest_time(&other->report.time, &best->report.time, sign);
    const part against = largest_time(&other->report.time, &best->report.time, -sign);
    const double share = 100 * (double)n->more_ps / (double)best->report.step_ps;
    const char *text = smp_arena_printf(plan->arena, "%s: %s (%+.1f %%), %s %s", title,
                                        signed_seconds(plan, n->more_ps), share, most.name,
                                        signed_seconds(plan, most.more));
    /* what is saved elsewhere, where that is much of it */
    if (llabs(against.more) > llabs(most.more) / 4) {
        text = smp_arena_printf(plan->arena, "%s, %s %s", text, against.name,
                                signed_seconds(plan, against.more));
    }
    n->outside = sign < 0;
    n->limit = smp_arena_printf(plan->arena, "%s %s", most.brief,
                                signed_seconds(plan, most.more));
    n->why = smp_arena_printf(plan->arena, "%s%s", text,
                              sign > 0 ? ""
                              : plan->info.exhausted
                                  ? "; outside the space that is searched"
                                  : "; not reached by the deadline");
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
                                        "would be faster (not searched)"};
    const smp_job *job = &plan->found[0].job;
    const uint32_t ep = job->settings.expert_parallel_degree;
    char *text = ep == 1 ? smp_arena_printf(plan->arena, "Experts are all on each rank")
                         : smp_arena_printf(plan->arena, "Experts lie on %u ranks, %s", ep,
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

/* Settings that had to follow the one that was changed. */
static void add_followers(const smp_settings *best, const smp_settings *s, const char *key,
                          smp_text *text)
{
    static const char *const followers[] = {"hybrid_shard_degree", "sequence_parallel",
                                            "offload", "forward_prefetch"};
    for (size_t i = 0; i < sizeof followers / sizeof followers[0]; i++) {
        char old[96];
        char new[96];
        if (strcmp(key, followers[i]) != 0 &&
            smp_settings_get(best, followers[i], old, sizeof old) &&
            smp_settings_get(s, followers[i], new, sizeof new) && strcmp(old, new) != 0) {
            smp_text_add(text, "%s%s %s", text->length > 0 ? ", " : "", followers[i], new);
        }
    }
}

/* The setting that was changed; those that had to follow, and other links of experts. */
static void name_change(smp_arena *arena, const smp_job *best, const smp_job *job,
                        smp_neighbour *n, smp_errors *errors)
{
    char value[96];
    if (!smp_settings_get(&job->settings, n->key, value, sizeof value)) {
        value[0] = '\0';
    }
    n->value = smp_arena_strdup(arena, value);
    smp_text with = {0};
    add_followers(&best->settings, &job->settings, n->key, &with);
    const char *links = expert_links(arena, job, errors);
    if (*links != '\0' && strcmp(links, expert_links(arena, best, errors)) != 0) {
        smp_text_add(&with, "%s%s", with.length > 0 ? "; " : "", links);
    }
    n->with = with.length > 0 ? smp_arena_strdup(arena, with.data) : NULL;
    smp_text_free(&with);
}

static bool is_known(const smp_plan *plan, const smp_neighbour *n)
{
    for (uint32_t i = 0; i < plan->n_neighbour; i++) {
        if (strcmp(plan->neighbours[i].key, n->key) == 0 &&
            strcmp(plan->neighbours[i].value, n->value) == 0) {
            return true;
        }
    }
    return false;
}

/* Simulates one neighbour and adds it; illegal ones are left out. */
static smp_status explain_one(smp_plan *plan, const struct neighbour *neighbour,
                              smp_errors *errors, verdict *verdict_p)
{
    const smp_found *best = &plan->found[0];
    smp_found other = {.job = best->job};
    smp_settings *s = &other.job.settings;
    smp_neighbour n = {.key = neighbour->key};
    /* the acting strategy repeats what sharding and reshard_after_forward say */
    s->sharding_strategy = SMP_STRATEGY_UNSET;
    if (!neighbour->change(&best->job, s) || !smp_job_try(&other.job)) {
        return SMP_OK;
    }
    name_change(plan->arena, &best->job, &other.job, &n, errors);
    if (is_known(plan, &n)) {
        return SMP_OK;
    }
    const smp_status st = smp_evaluate(&other.job, true, errors, &other.report, NULL, NULL);
    if (st != SMP_OK) {
        return st;
    }
    *verdict_p = verdict_of(plan, &other.report);
    n.more_ps = other.report.step_ps - best->report.step_ps;
    n.more_bytes =
        more_bytes(other.report.memory.peak_bytes, best->report.memory.peak_bytes);
    n.excess_bytes = smp_report_excess(&other.report, plan->options.margin_frac);
    const char *title = title_of(plan->arena, &other.job, &n);
    if (smp_report_fits(&other.report, plan->options.margin_frac)) {
        explain_time(plan, best, &other, title, &n);
    } else {
        explain_memory(plan, best, &other, title, &n);
    }
    plan->neighbours[plan->n_neighbour++] = n;
    return SMP_OK;
}

smp_status smp_plan_explain(smp_plan *plan, smp_errors *errors)
{
    if (plan->n_found == 0) {
        return SMP_OK;
    }
    verdict all[N_NEIGHBOUR] = {ILLEGAL};
    plan->n_neighbour = 0;
    plan->neighbours = SMP_ARENA_ARRAY(plan->arena, N_NEIGHBOUR, smp_neighbour);
    for (size_t i = 0; i < N_NEIGHBOUR; i++) {
        const smp_status st = explain_one(plan, &neighbours[i], errors, &all[i]);
        if (st != SMP_OK) {
            return st;
        }
    }
    if (smp_model_experts(plan->found[0].job.model) > 0) {
        plan->experts = sentence_experts(plan, all, errors);
    }
    return SMP_OK;
}
