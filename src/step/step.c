/* SPDX-License-Identifier: Apache-2.0 */
/* The step of a job: the programs of its classes of ranks, lowered, placed and with waits, and
 * what a step costs as a whole. */
#include "step/lower.h"

#include "base/numeric.h"
#include "step/order.h"

#include <stdlib.h>

/* What has no operation here yet is refused by its name, never left out. */
static const char *missing(const smp_model *model)
{
    for (uint32_t k = 0; k < model->n_kind; k++) {
        if (model->kinds[k].attention.kv_heads != model->kinds[0].attention.kv_heads) {
            return "a number of key-value heads that differs between layers";
        }
    }
    return NULL;
}

static smp_status check_model(const smp_job *job, smp_errors *errors)
{
    const smp_model *model = job->model;
    const char *feature = missing(model);

    if (feature) {
        return smp_fail(errors, SMP_INPUT, NULL, "%s: %s cannot be lowered to a step yet",
                        model->name, feature);
    }
    if (job->settings.context_parallel_degree > 1) {
        return smp_fail(errors, SMP_INPUT, NULL,
                        "context_parallel_degree %u: context parallelism cannot be lowered "
                        "yet; legal here: 1",
                        job->settings.context_parallel_degree);
    }
    if (job->micro_batches > UINT32_MAX / (2 * model->n_layer)) {
        return smp_fail(errors, SMP_INPUT, NULL,
                        "%llu micro-batches of %u layers: a step has at most %u visits of "
                        "layers",
                        (unsigned long long)job->micro_batches, model->n_layer, UINT32_MAX);
    }
    return SMP_OK;
}

/* The elements that the shard ranks hold of a unit: all `shard_elems`, then at most one that
 * holds less, then none.  Adds to each rank's colour how often its part shrank from that of
 * the rank before, so that ranks are alike when they are in every unit; false: all are. */
static bool add_colours(const smp_unit *unit, uint32_t degree, uint32_t *colour_of_shard)
{
    uint64_t before = unit->shard_elems;
    uint32_t cuts = 0;

    for (uint32_t r = 0; r < degree; r++) {
        uint64_t first = smp_mul(r, unit->shard_elems);
        uint64_t left = first < unit->elems ? unit->elems - first : 0;
        uint64_t own = left < unit->shard_elems ? left : unit->shard_elems;

        cuts += own < before;
        before = own;
        colour_of_shard[r] += cuts;
    }
    return cuts > 0;
}

/* Colours of the positions in a shard group, by the parts of all units sharded over it. */
static uint32_t *group_colours(const smp_job *job, const smp_mesh *mesh, smp_group group,
                               bool of_experts)
{
    smp_share share = { .shard = smp_mesh_group_size(mesh, group), .weight = 1 };
    uint32_t *of_shard = smp_heap_alloc(share.shard, sizeof *of_shard);
    bool uneven = false;

    for (uint32_t k = 0; k <= job->model->n_kind; k++) {
        const smp_block *block = k < job->model->n_kind ? &job->model->kinds[k] : NULL;
        smp_unit unit;

        smp_unit_layout(job, block, of_experts, &share, &unit);
        uneven |= unit.elems > 0 && add_colours(&unit, share.shard, of_shard);
    }
    if (!uneven) {
        free(of_shard);
        return NULL;
    }
    return of_shard;
}

/* Colours of the ranks by the sizes of their shards; NULL: all are alike. */
static uint32_t *shard_colours(const smp_job *job, const smp_mesh *mesh)
{
    uint32_t world = smp_mesh_world(mesh), *dense, *experts = NULL, *of_rank = NULL;
    uint32_t size = smp_mesh_group_size(mesh, SMP_GROUP_SHARD);

    if (job->settings.sharding == SMP_SHARDING_NONE || size == 1) {
        return NULL;
    }
    dense = group_colours(job, mesh, SMP_GROUP_SHARD, false);
    if (smp_mesh_degree(mesh, SMP_AXIS_EXPERT) > 1) {
        experts = group_colours(job, mesh, SMP_GROUP_EXPERT_SHARD, true);
    }
    if (dense || experts) {
        of_rank = smp_heap_alloc(world, sizeof *of_rank);
    }
    for (uint32_t rank = 0; of_rank && rank < world; rank++) {
        uint32_t at = smp_mesh_group_rank(mesh, SMP_GROUP_SHARD, rank);
        uint32_t in = smp_mesh_group_rank(mesh, SMP_GROUP_EXPERT_SHARD, rank);

        /* fewer cuts than twice the units are possible */
        of_rank[rank] = (dense ? dense[at] : 0) + (experts ? experts[in] * 4096 : 0);
    }
    free(dense);
    free(experts);
    return of_rank;
}

static void sum_flops(smp_step *step)
{
    for (uint32_t c = 0; c < step->n_program; c++) {
        const smp_program *p = step->programs[c];
        double *segment = smp_heap_alloc(p->n_segment, sizeof *segment), sum = 0;

        for (uint32_t s = 0; s < p->n_segment; s++) {
            for (uint32_t t = 0; t < p->segments[s].n_task; t++) {
                segment[s] += (double)smp_task_flops(&p->tasks[p->segments[s].task0 + t]);
            }
        }
        for (uint32_t i = 0; i < p->n_instance; i++) {
            sum += segment[p->order[i].segment];
        }
        step->hardware_flops += sum * p->count;
        free(segment);
    }
}

/* Bytes of parameter, gradient and optimizer state for each parameter, before sharding. */
static double state_bytes(const smp_settings *set)
{
    uint32_t compute = smp_dtype_bytes(smp_precision_dtype(set->precision));
    uint32_t master = smp_dtype_bytes(smp_precision_dtype(set->master));
    uint32_t reduce = smp_dtype_bytes(smp_precision_dtype(set->reduce_dtype));
    uint32_t moments = set->optimizer == SMP_OPTIMIZER_SGD ? master : 2 * master;

    if (set->sharding == SMP_SHARDING_FULL) {
        return master + master + moments;
    }
    return compute + reduce + (set->precision == set->master ? 0 : master) + moments;
}

typedef smp_status place_function(smp_program *program, smp_errors *errors);

/* Counts saturate; a time made from one that did would be too short. */
static smp_status check_work(const smp_program *program, smp_errors *errors)
{
    for (uint32_t t = 0; t < program->n_task; t++) {
        const smp_task *task = &program->tasks[t];
        if (smp_task_flops(task) == UINT64_MAX) {
            return smp_fail(errors, SMP_INPUT, NULL,
                            "%s is one task of more than 2^64 floating-point operations: lower "
                            "seq_len or micro_batch, or raise tensor_parallel_degree",
                            task->name);
        }
    }
    return SMP_OK;
}

static smp_status lower_classes(smp_step *step, const smp_job *job, place_function *place,
                                smp_errors *errors)
{
    smp_status status = SMP_OK;

    step->n_program = step->classes->n_class;
    step->programs = SMP_ARENA_ARRAY(step->arena, step->n_program, smp_program *);
    for (uint32_t c = 0; c < step->n_program && status == SMP_OK; c++) {
        const smp_class *klass = &step->classes->classes[c];

        status = smp_lower_rank(job, step->mesh, klass->representative, klass, step->arena,
                                errors, &step->programs[c]);
        if (status == SMP_OK) {
            status = check_work(step->programs[c], errors);
        }
        if (status == SMP_OK) {
            status = place(step->programs[c], errors);
        }
        if (status == SMP_OK) {
            status = smp_program_derive_waits(step->programs[c], errors);
        }
    }
    return status;
}

smp_status smp_ranks_create(const smp_job *job, smp_errors *errors, smp_ranks *ranks_p)
{
    smp_ranks ranks = { NULL, NULL };
    smp_status status = smp_mesh_create(job, errors, &ranks.mesh);

    if (status == SMP_OK) {
        uint32_t *colours = shard_colours(job, ranks.mesh);

        status = smp_mesh_classes(ranks.mesh, colours, errors, &ranks.classes);
        free(colours);
    }
    if (status != SMP_OK) {
        smp_ranks_destroy(&ranks);
        return status;
    }
    *ranks_p = ranks;
    return SMP_OK;
}

void smp_ranks_destroy(smp_ranks *ranks)
{
    smp_classes_destroy(ranks->classes);
    smp_mesh_destroy(ranks->mesh);
}

static smp_status lower_on(const smp_job *job, const smp_ranks *ranks, place_function *place,
                           smp_errors *errors, smp_step **step_p)
{
    smp_arena *arena = smp_arena_create();
    smp_step *step = SMP_ARENA_NEW(arena, smp_step);
    smp_status status;

    step->arena = arena;
    step->mesh = ranks->mesh;
    step->classes = ranks->classes;
    step->borrows_ranks = true;
    status = lower_classes(step, job, place, errors);
    if (status != SMP_OK) {
        smp_step_destroy(step);
        return status;
    }
    step->model_flops = smp_model_flops(job);
    sum_flops(step);
    step->state_bytes_per_parameter = state_bytes(&job->settings);
    *step_p = step;
    return SMP_OK;
}

static smp_status lower(const smp_job *job, place_function *place, smp_errors *errors,
                        smp_step **step_p)
{
    smp_ranks ranks = { NULL, NULL };
    smp_status status = check_model(job, errors);

    if (status == SMP_OK) {
        status = smp_ranks_create(job, errors, &ranks);
    }
    if (status != SMP_OK) {
        return status;
    }
    status = lower_on(job, &ranks, place, errors, step_p);
    if (status != SMP_OK) {
        smp_ranks_destroy(&ranks);
        return status;
    }
    (*step_p)->borrows_ranks = false;
    return SMP_OK;
}

smp_status smp_step_lower_apart_on(const smp_job *job, const smp_ranks *ranks,
                                   smp_errors *errors, smp_step **step_p)
{
    const smp_status status = check_model(job, errors);

    return status == SMP_OK ? lower_on(job, ranks, smp_program_place_apart, errors, step_p)
                            : status;
}

smp_status smp_step_lower_arena_on(const smp_job *job, const smp_ranks *ranks,
                                   smp_errors *errors, smp_step **step_p)
{
    const smp_status status = check_model(job, errors);

    return status == SMP_OK ? lower_on(job, ranks, smp_program_plan_arena, errors, step_p)
                            : status;
}

static smp_status place_and_keep_clocks(smp_program *program, smp_errors *errors)
{
    program->clocks = SMP_ARENA_NEW(program->arena, smp_clocks);
    return smp_program_place_apart(program, errors);
}

smp_status smp_step_lower_skeleton_on(const smp_job *job, const smp_ranks *ranks,
                                      smp_errors *errors, smp_step **step_p)
{
    const smp_status status = check_model(job, errors);

    return status == SMP_OK ? lower_on(job, ranks, place_and_keep_clocks, errors, step_p)
                            : status;
}

smp_status smp_step_lower(const smp_job *job, smp_errors *errors, smp_step **step_p)
{
    return lower(job, smp_program_plan_memory, errors, step_p);
}

smp_status smp_step_lower_arena(const smp_job *job, smp_errors *errors, smp_step **step_p)
{
    return lower(job, smp_program_plan_arena, errors, step_p);
}

smp_status smp_step_lower_apart(const smp_job *job, smp_errors *errors, smp_step **step_p)
{
    return lower(job, smp_program_place_apart, errors, step_p);
}

void smp_step_destroy(smp_step *step)
{
    if (step) {
        smp_ranks ranks = { step->mesh, step->classes };

        if (!step->borrows_ranks) {
            smp_ranks_destroy(&ranks);
        }
        smp_arena_destroy(step->arena);
    }
}
