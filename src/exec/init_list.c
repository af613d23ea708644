/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether everything was initialised, and what with.
 */
#include "config.h"

#include "exec/run.h"
#include "exec/store.h"

#include "base/arena.h"

#include <math.h>
#include <stdlib.h>

enum { CHUNK = 4096 };

typedef struct checking {
    smp_runner *runner;
    uint64_t *visited;         /* elements of each block, then of the root */
    uint64_t total;
    smp_status status;
    smp_errors *errors;
} checking;

/* Reads the range back from the device. */
static void check_range(checking *c, const smp_owned *o, const char *at)
{
    smp_runner *r = c->runner;
    smp_dtype t = (smp_dtype)o->task->dtype;
    float *values = smp_heap_alloc(2 * CHUNK, sizeof *values);
    void *stored = values + CHUNK;

    for (uint64_t i = 0; i < o->elems && c->status == SMP_OK; i += CHUNK) {
        uint64_t n = o->elems - i < CHUNK ? o->elems - i : CHUNK;

        r->ops->copy(r->device, SMP_STREAM_COMPUTE, stored, at + i * smp_dtype_bytes(t),
                     n * smp_dtype_bytes(t));
        c->status = r->ops->sync(r->device, c->errors);
        smp_load(values, stored, t, 0, n);
        for (uint64_t j = 0; j < n && c->status == SMP_OK; j++) {
            if (!isfinite(values[j])) {
                c->status = smp_fail(c->errors, SMP_SYSTEM, NULL,
                                     "rank %u: element %llu of %s, layer %u, has no initial "
                                     "value",
                                     r->rank.rank, (unsigned long long)(o->first + i + j),
                                     o->unit->name, o->layer);
            }
        }
    }
    free(values);
}

static void check_owned(void *context, const smp_owned *o)
{
    checking *c = context;
    smp_runner *r = c->runner;
    uint32_t place = o->unit->block ? o->layer : r->rank.job->model->n_layer;

    c->visited[place] += o->elems;
    c->total += o->elems;
    check_range(c, o, smp_runner_operand(r, o->instance, o->task_index, 0));
}

/* A block of which the rank has a part, yet of which nothing was seen, was forgotten. */
static smp_status check_places(const checking *c)
{
    const smp_program *p = c->runner->rank.program;
    uint32_t n_layer = c->runner->rank.job->model->n_layer;
    uint64_t root = 0, least = UINT64_MAX;

    for (uint32_t i = 0; i < p->n_unit; i++) {
        uint64_t own = p->units[i].own_elems;

        if (!p->units[i].block) {
            root += own;
        } else {
            least = own < least ? own : least;
        }
    }
    if (c->visited[n_layer] != root) {
        return smp_fail(c->errors, SMP_SYSTEM, NULL,
                        "rank %u: %llu of %llu elements of the root were initialised",
                        c->runner->rank.rank, (unsigned long long)c->visited[n_layer],
                        (unsigned long long)root);
    }
    for (uint32_t layer = 0; layer < n_layer; layer++) {
        if (c->visited[layer] < least) {
            return smp_fail(c->errors, SMP_SYSTEM, NULL,
                            "rank %u: layer %u was not initialised", c->runner->rank.rank,
                            layer);
        }
    }
    return SMP_OK;
}

smp_status smp_runner_check_init(smp_runner *r, smp_errors *errors, uint64_t *elems_p)
{
    checking c = { .runner = r, .errors = errors };

    c.visited = smp_heap_alloc((size_t)r->rank.job->model->n_layer + 1, sizeof *c.visited);
    smp_runner_owned(r, check_owned, &c);
    if (c.status == SMP_OK) {
        c.status = check_places(&c);
    }
    free(c.visited);
    if (c.status == SMP_OK) {
        *elems_p = c.total;
    }
    return c.status;
}

/* ---- the list ---- */

static void print_values(const smp_rank *rank, const smp_param *param, uint32_t layer,
                         FILE *stream)
{
    const smp_init_rule *rule = smp_init_rule_of(rank->init_rules, param, layer);

    if (!rule) {
        smp_init_describe(rank, param, stream);
    } else if (rule->kind == SMP_INIT_CONSTANT) {
        (void)fprintf(stream, "%g", rule->a);
    } else {
        (void)fprintf(stream, rule->kind == SMP_INIT_NORMAL ? "normal(%g, %g)"
                                                            : "uniform(%g, %g)",
                      rule->a, rule->b);
    }
    (void)fprintf(stream, "%s\n", rule ? "  by a rule" : "");
}

static void print_param(const smp_rank *rank, const smp_param *param, uint32_t layer,
                        FILE *stream)
{
    char name[SMP_NAME_BYTES], shape[48];

    smp_param_name(param, layer, name);
    if (param->n_dim > 1) {
        (void)snprintf(shape, sizeof shape, "[%llu, %llu]", (unsigned long long)param->shape[0],
                       (unsigned long long)param->shape[1]);
    } else {
        (void)snprintf(shape, sizeof shape, "[%llu]", (unsigned long long)param->shape[0]);
    }
    (void)fprintf(stream, "init  %-52s %-16s ", name, shape);
    print_values(rank, param, layer, stream);
}

void smp_init_list(const smp_rank *rank, FILE *stream)
{
    const smp_model *model = rank->job->model;

    for (uint32_t i = 0; i < model->n_root; i++) {
        print_param(rank, &model->root[i], 0, stream);
    }
    for (uint32_t layer = 0; layer < model->n_layer; layer++) {
        const smp_block *block = smp_model_block(model, layer);

        for (uint32_t i = 0; i < block->n_param; i++) {
            print_param(rank, &block->params[i], layer, stream);
        }
    }
}
