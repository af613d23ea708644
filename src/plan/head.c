/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Heads of points, each measured once on a program of one rank without memory plan and waits;
 * see head.h.
 *
 * The program is that of as few nodes as show the same tensor group and the same shape of
 * parameters, and of three micro-batches: the others repeat the second.
 */
#include "plan/head.h"

#include "base/memo.h"
#include "base/numeric.h"
#include "model/model.h"
#include "plan/chain.h"
#include "plan/plan.h"
#include "step/lower.h"

#include <stdlib.h>
#include <string.h>

/* What decides a head. */
typedef struct head_key {
    uint32_t tensor, expert, micro_batch, layers, micro_batches;
    uint32_t gpus; /* 0: measured on few nodes, the same for all counts */
    smp_checkpointing checkpointing;
    smp_accumulation accumulation;
    /* where backward adds to gradients and where it writes */
    bool sequence_parallel, sharded, experts_sharded, nested, all_to_all;
    bool unused[3];
} head_key;

typedef struct head {
    head_key key;
    uint64_t stack_bytes, full_layer_bytes;
} head;

/* Times do not depend on the number of micro-batches but for its factor. */
typedef struct time_key {
    head_key head;
    uint32_t placement[6]; /* of the expert group; 0: no time for exchanges */
    uint64_t micro_batches;
} time_key;

typedef struct head_time {
    time_key key;
    smp_chain chain;
} head_time;

struct smp_heads {
    smp_memo *heads, *times;
    smp_prices *prices;
    /* the program lowered last, and its key */
    smp_arena *arena;
    head_key key;
    smp_program *program; /* NULL: none */
};

smp_heads *smp_heads_create(void)
{
    smp_heads *heads = smp_heap_alloc(1, sizeof *heads);
    heads->heads = smp_memo_create(sizeof(head_key), sizeof(head));
    heads->times = smp_memo_create(sizeof(time_key), sizeof(head_time));
    heads->prices = smp_prices_create();
    heads->arena = smp_arena_create();
    return heads;
}

void smp_heads_destroy(smp_heads *heads)
{
    if (heads) {
        smp_memo_destroy(heads->heads);
        smp_memo_destroy(heads->times);
        smp_prices_destroy(heads->prices);
        smp_arena_destroy(heads->arena);
        free(heads);
    }
}

/* ------------------------------------------------------------------ few nodes */

/* GPUs on which the head behaves as on all: the tensor group lies alike when its ranks are
 * adjacent, and parameters are sharded where they are.  0 where that is not so. */
static uint32_t few_gpus(const smp_job *job)
{
    const smp_settings *s = &job->settings;
    const uint32_t shards = s->hybrid_shard_degree > 1 ? 2 : 1;
    const uint64_t apart = smp_mul(s->tensor_parallel_degree, s->expert_parallel_degree);
    const uint64_t gpus = smp_round_up(smp_mul(apart, shards), job->cluster->gpus_per_node);
    const bool alike = s->rank_order[0] == SMP_AXIS_TENSOR && gpus < job->world &&
                       gpus % apart == 0 && s->context_parallel_degree == 1;
    return alike ? (uint32_t)gpus : 0;
}

static smp_job on_few_nodes(const smp_job *job, smp_arena *arena)
{
    const uint32_t gpus = few_gpus(job);
    const smp_settings *s = &job->settings;
    smp_job out = *job;
    if (gpus == 0) {
        return out;
    }
    out.cluster = smp_cluster_resized(arena, job->cluster, gpus);
    out.world = gpus;
    out.data_ranks = gpus / s->tensor_parallel_degree;
    const uint32_t rest = smp_nested(s) ? out.data_ranks
                                       : out.data_ranks / s->expert_parallel_degree;
    out.settings.hybrid_shard_degree = s->hybrid_shard_degree == 1  ? 1
                                       : smp_expert_shards(s) > 1 ? rest
                                       : smp_nested(s) ? s->expert_parallel_degree : rest;
    out.replicas = rest / out.settings.hybrid_shard_degree;
    return out;
}

/* The job cut down to what the head decides, with the fastest values of all else. */
static smp_job cut_down(const smp_job *job, const head_key *key, smp_arena *arena)
{
    smp_job few = on_few_nodes(job, arena);
    smp_settings *s = &few.settings;
    s->offload = false;
    s->loss_chunks = 1; /* chunks only add launches to compute */
    s->prefetch = SMP_PREFETCH_BACKWARD_PRE;
    s->forward_prefetch = true;
    few.micro_batches = key->micro_batches;
    few.batch.global_batch =
        smp_mul(key->micro_batches, smp_mul(s->micro_batch, few.data_ranks));
    return few;
}

static void fill_key(const smp_job *job, head_key *key)
{
    const smp_settings *s = &job->settings;
    memset(key, 0, sizeof *key);
    key->tensor = s->tensor_parallel_degree;
    key->expert = s->expert_parallel_degree;
    key->micro_batch = s->micro_batch;
    key->layers = s->checkpointing_layers;
    key->micro_batches = job->micro_batches > 3 ? 3 : (uint32_t)job->micro_batches;
    key->gpus = few_gpus(job) ? 0 : job->world;
    key->checkpointing = s->checkpointing;
    key->accumulation = s->accumulation;
    key->sequence_parallel = s->sequence_parallel;
    key->sharded = s->hybrid_shard_degree > 1;
    key->experts_sharded = smp_expert_shards(s) > 1;
    key->nested = smp_nested(s);
    key->all_to_all = s->moe_all_to_all_dispatcher;
}

/* ------------------------------------------------------------------ the program */

/* Lowers the program of a key, unless it was the last. */
static smp_status need_program(smp_heads *heads, const smp_job *job, const head_key *key,
                               smp_errors *errors)
{
    if (heads->program && memcmp(&heads->key, key, sizeof *key) == 0) {
        return SMP_OK;
    }
    smp_mesh *mesh = NULL;
    smp_arena_reset(heads->arena, (smp_arena_mark){0});
    heads->program = NULL;
    heads->key = *key;
    const smp_job few = cut_down(job, key, heads->arena);
    smp_status st = smp_mesh_create(&few, errors, &mesh);
    if (st == SMP_OK) {
        st = smp_lower_rank(&few, mesh, 0, NULL, heads->arena, errors, &heads->program);
        smp_mesh_destroy(mesh);
    }
    return st;
}

/* Stacks of saved activations; the input is all that a layer leaves with full checkpointing. */
static void measure_stacks(const smp_program *program, head *at)
{
    for (uint32_t i = 0; i < program->n_buffer; i++) {
        const smp_buffer *b = &program->buffers[i];
        if (b->space == SMP_SPACE_DEVICE && b->kind == SMP_KIND_ACTIVATION &&
            b->index == SMP_INDEX_LAYER && b->slots == 0) {
            at->stack_bytes = smp_add(at->stack_bytes, smp_mul(b->entries, b->bytes));
            if (strcmp(b->name, "x") == 0) {
                at->full_layer_bytes = b->bytes;
            }
        }
    }
}

smp_status smp_head_stacks(smp_heads *heads, const smp_job *job, smp_errors *errors,
                           uint64_t *bytes_p, uint64_t *full_layer_bytes_p)
{
    head_key key;
    bool is_new = false;
    fill_key(job, &key);
    head *at = smp_memo_at(heads->heads, &key, &is_new);
    if (is_new) {
        const smp_status st = need_program(heads, job, &key, errors);
        if (st != SMP_OK) {
            return st;
        }
        measure_stacks(heads->program, at);
    }
    *bytes_p = at->stack_bytes;
    *full_layer_bytes_p = at->full_layer_bytes;
    return SMP_OK;
}

/* Durations of the tasks on the path; 0 for exchanges that have no placement, and for sums of
 * statistics over data ranks, which sharding decides. */
static void price(smp_heads *heads, const smp_job *job, const smp_placement *experts,
                  int64_t *duration_ps)
{
    smp_program *program = heads->program;
    for (uint32_t t = 0; t < program->n_task; t++) {
        const smp_task *task = &program->tasks[t];
        const smp_comm *comm = task->comm != SMP_NO_COMM ? &program->comms[task->comm] : NULL;
        if (!smp_chain_has(task)) {
            continue;
        }
        smp_cost cost = {0};
        if (!comm || comm->group == SMP_GROUP_TENSOR) {
            smp_prices_task(heads->prices, job->cluster, job->profile, program, task, &cost);
        } else if (comm->group == SMP_GROUP_EXPERT && experts) {
            program->comms[task->comm].placement = *experts;
            smp_prices_task(heads->prices, job->cluster, job->profile, program, task, &cost);
        }
        duration_ps[t] = smp_ps_from_s(smp_cost_seconds(&cost));
    }
}

/* Reductions of one chunk of the loss run beside the next one: with chunks none of them may
 * be waited for. */
static void drop_loss_sums(const smp_program *program, int64_t *duration_ps)
{
    for (uint32_t s = 0; s < program->n_segment; s++) {
        const smp_segment *segment = &program->segments[s];
        if (strncmp(segment->name, "head", 4) != 0) {
            continue;
        }
        for (uint32_t t = segment->task0; t < segment->task0 + segment->n_task; t++) {
            duration_ps[t] = program->tasks[t].comm != SMP_NO_COMM ? 0 : duration_ps[t];
        }
    }
}

smp_status smp_head_chain(smp_heads *heads, const smp_job *job,
                          const smp_placement *experts, smp_errors *errors,
                          smp_chain *chain_p)
{
    time_key key;
    bool is_new = false;
    memset(&key, 0, sizeof key);
    fill_key(job, &key.head);
    key.micro_batches = job->micro_batches;
    if (experts && experts->ranks > 1) {
        const uint32_t words[] = {experts->ranks, experts->nodes, experts->most_per_node,
                                  experts->least_per_node, experts->stride, experts->sharers};
        memcpy(key.placement, words, sizeof words);
    }
    head_time *at = smp_memo_at(heads->times, &key, &is_new);
    if (is_new) {
        const smp_status st = need_program(heads, job, &key.head, errors);
        if (st != SMP_OK) {
            return st;
        }
        const smp_arena_mark mark = smp_arena_here(heads->arena);
        int64_t *duration_ps =
            SMP_ARENA_ARRAY(heads->arena, heads->program->n_task, int64_t);
        price(heads, job, experts, duration_ps);
        drop_loss_sums(heads->program, duration_ps);
        smp_chain_measure(heads->program, duration_ps, job->micro_batches, heads->arena,
                          &at->chain);
        smp_arena_reset(heads->arena, mark);
    }
    *chain_p = at->chain;
    return SMP_OK;
}
