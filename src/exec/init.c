/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Initial values by global element: every layout starts from the same bits.
 *
 * Weights are normal(0, initializer_range), biases 0, norms such that they multiply by 1, rows
 * of a padded vocabulary 0.
 * In gpt2 the projections into the residual are scaled by 1 / sqrt(2 n_layer), as
 * transformers' GPT2PreTrainedModel does.  Rules of the user come first (init_rules.h).
 */
#include "config.h"

#include "exec/run.h"

#include "base/numeric.h"
#include "mesh/mesh.h"

#include <math.h>
#include <string.h>

static const smp_unit_param *param_at(const smp_unit *unit, uint64_t at)
{
    uint32_t i = 0;

    while (i + 1 < unit->n_param && at >= unit->params[i + 1].offset) {
        i++;
    }
    return &unit->params[i];
}

/* Tensor ranks that split the parameter, if it is split at all. */
static uint32_t parts_of(const smp_rank *rank, const smp_param *param)
{
    return param->split == SMP_SPLIT_VOCAB ? smp_vocab_parts(&rank->job->settings)
                                           : rank->tensor;
}

/* First row of the whole parameter on this tensor rank. */
static uint64_t first_row(const smp_rank *rank, const smp_unit *unit, const smp_param *param,
                          uint64_t rows)
{
    uint32_t kv;

    switch (param->split) {
    case SMP_SPLIT_OUT:
    case SMP_SPLIT_EXPERT_OUT:
        return rank->tensor_rank * rows;
    case SMP_SPLIT_VOCAB:
        return parts_of(rank, param) > 1 ? rank->tensor_rank * rows : 0;
    case SMP_SPLIT_KV:
        kv = unit->block ? unit->block->attention.kv_heads : rank->tensor;
        return kv >= rank->tensor ? rank->tensor_rank * rows
                                  : rank->tensor_rank / (rank->tensor / kv) * rows;
    case SMP_SPLIT_NONE:
    case SMP_SPLIT_IN:
    case SMP_SPLIT_EXPERT_IN:
        break;
    }
    return 0;
}

uint64_t smp_global_element(const smp_rank *rank, const smp_unit *unit, uint64_t at,
                            const smp_param **param_p)
{
    const smp_unit_param *p = param_at(unit, at);
    const smp_param *all = unit->block ? unit->block->params : rank->job->model->root;
    const smp_param *param = &all[p->param];
    uint64_t shape[2] = { 1, 1 }, width, row, column, each, expert, whole;
    bool in = param->split == SMP_SPLIT_IN || param->split == SMP_SPLIT_EXPERT_IN;

    *param_p = param;
    smp_param_local_shape(rank->job->model, unit->block, param, parts_of(rank, param), shape);
    width = param->n_dim > 1 ? shape[1] : 1;
    each = shape[0] * width; /* of one expert; the whole where there are none */
    expert = (at - p->offset) / each
             + (unit->experts > 1 ? rank->expert_rank * (param->count / unit->experts) : 0);
    row = (at - p->offset) % each / width + first_row(rank, unit, param, shape[0]);
    column = (at - p->offset) % width;
    if (in && param->n_dim > 1) {
        column += rank->tensor_rank * width;
    }
    if (row >= param->shape[0]) {
        return UINT64_MAX;
    }
    whole = param->shape[0] * (param->n_dim > 1 ? param->shape[1] : 1);
    return expert * whole + (param->n_dim > 1 ? row * param->shape[1] + column : row);
}

static bool is_norm(smp_role role)
{
    switch ((int)role) {
    case SMP_ROLE_EMBED_NORM_W:
    case SMP_ROLE_NORM1_W:
    case SMP_ROLE_NORM2_W:
    case SMP_ROLE_Q_NORM_W:
    case SMP_ROLE_K_NORM_W:
    case SMP_ROLE_POST_NORM1_W:
    case SMP_ROLE_POST_NORM2_W:
    case SMP_ROLE_FINAL_NORM_W:
    case SMP_ROLE_Q_DOWN_NORM_W:
    case SMP_ROLE_KV_DOWN_NORM_W:
        return true;
    default:
        return false;
    }
}

/* Standard normal numbers index .. index + n by Box and Muller's transformation, two from each
 * pair of words. */
static void normals(uint64_t seed, uint64_t high, uint64_t index, uint64_t n, double range,
                    float *out)
{
    double radius = 0, angle = 0;

    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = index + i;

        if (i == 0 || (at & 1) == 0) {
            uint32_t u[4];

            smp_random4(seed, high, at >> 2, u);
            radius = sqrt(-2 * log(((double)u[at & 2] + 1) * 0x1p-32));
            angle = 6.283185307179586 * ((double)u[(at & 2) + 1] * 0x1p-32);
        }
        out[i] = (float)(range * (radius * (at & 1 ? sin(angle) : cos(angle))));
    }
}

static double range_of(const smp_model *model, smp_role role)
{
    bool projection = role == SMP_ROLE_O_W || role == SMP_ROLE_DOWN_W;

    return strcmp(model->family, "gpt2") == 0 && projection
               ? model->initializer_range / sqrt(2.0 * model->n_layer)
               : model->initializer_range;
}

/* Matrices, and the two vectors that modeling_gpt_oss.py draws as well. */
static bool is_drawn(const smp_param *param)
{
    return param->n_dim > 1 || param->role == SMP_ROLE_SINKS
           || param->role == SMP_ROLE_ROUTER_B;
}

/* Elements of the unit from `at` on that follow each other in the whole parameter, too. */
static uint64_t run_of(const smp_rank *rank, const smp_unit *unit, uint64_t at)
{
    const smp_unit_param *p = param_at(unit, at);
    const smp_param *all = unit->block ? unit->block->params : rank->job->model->root;
    uint64_t shape[2] = { 1, 1 }, in = at - p->offset;

    smp_param_local_shape(rank->job->model, unit->block, &all[p->param],
                          parts_of(rank, &all[p->param]), shape);
    return all[p->param].n_dim > 1 ? shape[1] - in % shape[1] : shape[0] - in % shape[0];
}

/* Values of a rule; uniform ones are made from one word each. */
static void follow_rule(const smp_init_rule *rule, uint64_t seed, uint64_t high, uint64_t index,
                        uint64_t n, float *out)
{
    if (rule->kind == SMP_INIT_NORMAL) {
        normals(seed, high, index, n, rule->b, out);
    }
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = index + i;
        uint32_t u[4];

        if (rule->kind == SMP_INIT_NORMAL) {
            out[i] = (float)(rule->a + (double)out[i]);
        } else if (rule->kind == SMP_INIT_UNIFORM) {
            smp_random4(seed, high, at >> 2, u);
            out[i] = (float)(rule->a + (rule->b - rule->a) * ((double)u[at & 3] * 0x1p-32));
        } else {
            out[i] = (float)rule->a;
        }
    }
}

void smp_init_values(const smp_rank *rank, const smp_unit *unit, uint32_t layer, uint64_t at,
                     uint64_t n, float *out)
{
    const smp_model *model = rank->job->model;
    uint64_t high0 = (uint64_t)(unit->block ? layer + 1 : 0) << 16;
    const smp_param *last = NULL;
    const smp_init_rule *rule = NULL;

    for (uint64_t i = 0; i < n;) {
        const smp_param *param;
        uint64_t index = smp_global_element(rank, unit, at + i, &param);
        uint64_t run = run_of(rank, unit, at + i);

        run = run < n - i ? run : n - i;
        if (param != last) {
            rule = smp_init_rule_of(rank->init_rules, param, layer);
            last = param;
        }
        if (rule && index != UINT64_MAX) {
            follow_rule(rule, rank->job->settings.random_seed, high0 + (uint64_t)param->role,
                        index, run, out + i);
        } else if (is_drawn(param) && index != UINT64_MAX) {
            normals(rank->job->settings.random_seed, high0 + (uint64_t)param->role, index, run,
                    range_of(model, param->role), out + i);
        } else {
            bool one = param->n_dim == 1 && is_norm(param->role);

            for (uint64_t j = 0; j < run; j++) {
                out[i + j] = one ? 1.0f - (float)model->norm_offset : 0.0f;
            }
        }
        i += run;
    }
}

void smp_init_describe(const smp_rank *rank, const smp_param *param, FILE *stream)
{
    if (is_drawn(param)) {
        (void)fprintf(stream, "normal(0, %g)", range_of(rank->job->model, param->role));
    } else {
        (void)fprintf(stream, "%g",
                      is_norm(param->role) ? 1 - rank->job->model->norm_offset : 0.0);
    }
}
