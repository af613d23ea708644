/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of the nodes of experts. */
#include "step/walk.h"

#include "base/numeric.h"

/* Each rank's loss is a mean over its own tokens, and an expert sees those of all ranks of the
 * expert group: its gradients are divided by their number here, so that the average over its
 * copies is that over all data ranks. */
static void grouped_grad(smp_walk *w, const smp_node *node)
{
    uint8_t x = node->in[0];
    smp_ref dy = smp_walk_grad(w, node->out[0]), layout = smp_walk_at(w, node->in[1]);
    smp_task task = smp_walk_grad_task(w, node, node->names.dx, SMP_OP_GROUPED_MATMUL_DX);

    task.dims[2] = node->dims[3];
    task.dims[3] = node->dims[2];
    smp_walk_add(w, &task,
                 (smp_access[]){smp_reads(dy), smp_reads(layout),
                                smp_reads(smp_walk_weight(w, node->weight, node->n_weight)),
                                smp_writes(smp_walk_grad(w, x))},
                 4);
    smp_walk_finish(w, node);
    w->graph->tensors[x].has_grad = true;
    task = smp_walk_grad_task(w, node, node->names.dw, SMP_OP_GROUPED_MATMUL_DW);
    task.dims[5] = w->low->expert;
    task.dtype2 = (uint8_t)w->low->reduce;
    task.flags |= smp_walk_flag(w, node->weight);
    smp_walk_add(w, &task,
                 (smp_access[]){smp_reads(dy), smp_reads(smp_walk_at(w, x)), smp_reads(layout),
                                smp_walk_weight_grad(w, node->weight, node->n_weight)},
                 4);
    if (node->bias != SMP_ROLES) {
        smp_build_extend(&w->low->build, smp_walk_weight_grad(w, node->bias, node->n_bias));
    }
    smp_walk_finish(w, node);
}

static void route_grad(smp_walk *w, const smp_node *node)
{
    const smp_settings *set = w->low->set;
    bool aux = set->smp_moe && set->moe_load_balancing == SMP_BALANCING_AUX_LOSS;
    /* Ranks of the tensor group that route the same tokens each add a part. */
    double parts = w->low->sequence ? 1 : w->low->tensor;
    smp_task task = smp_walk_grad_task(w, node, node->names.dx, SMP_OP_ROUTE_GRAD);

    task.dims[4] = aux ? smp_rate_bits(set->moe_aux_loss_coeff / parts) : 0;
    task.dims[5] = set->smp_moe ? smp_rate_bits(set->moe_z_loss_coeff / parts) : 0;
    smp_walk_add(w, &task,
                 (smp_access[]){smp_reads(smp_walk_grad(w, node->out[0])),
                                smp_reads(smp_walk_at(w, node->in[0])),
                                smp_reads(smp_walk_at(w, node->out[0])),
                                smp_writes(smp_walk_grad(w, node->in[0])),
                                smp_reads((smp_ref){w->low->scalars, 0, 64, 64})},
                 5);
    if (node->extra != SMP_NO_TENSOR) {
        smp_build_extend(&w->low->build, smp_reads(smp_walk_at(w, node->extra)));
    }
    if (node->bias != SMP_ROLES) {
        smp_build_extend(&w->low->build, smp_walk_weight_grad(w, node->bias, 1));
    }
}

/* The first contribution to the gradient of tokens writes, later ones add.  Where rows have
 * weights, so has the gradient, and that of a weight is drow x. */
static void permute_grad(smp_walk *w, const smp_node *node)
{
    uint8_t x = node->in[0];
    bool has = w->graph->tensors[x].has_grad;
    smp_task task = smp_walk_grad_task(w, node, node->names.dx, SMP_OP_PERMUTE_GRAD);

    task.flags |= has ? SMP_FLAG_ACCUMULATE : 0;
    smp_walk_add(w, &task,
                 (smp_access[]){smp_reads(smp_walk_grad(w, node->out[0])),
                                smp_reads(smp_walk_at(w, node->in[1])),
                                smp_reads(smp_walk_at(w, node->in[2])),
                                smp_adds(smp_walk_grad(w, x), has)},
                 4);
    w->graph->tensors[x].has_grad = true;
    if (node->dims[5]) {
        smp_build_extend(&w->low->build, smp_reads(smp_walk_at(w, x)));
        smp_build_extend(&w->low->build, smp_writes(smp_walk_grad(w, node->in[1])));
        w->graph->tensors[node->in[1]].has_grad = true;
    }
}

/* Sums without weights send each row the gradient of its token. */
static void plain_combine_grad(smp_walk *w, const smp_node *node)
{
    smp_task task = smp_walk_grad_task(w, node, node->names.dx, SMP_OP_PERMUTE);

    task.dims[5] = 0;
    smp_walk_add(w, &task,
                 (smp_access[]){smp_reads(smp_walk_grad(w, node->out[0])),
                                smp_reads(smp_walk_at(w, node->in[1])),
                                smp_reads(smp_walk_at(w, node->in[2])),
                                smp_writes(smp_walk_grad(w, node->in[0]))},
                 4);
    w->graph->tensors[node->in[0]].has_grad = true;
}

static void combine_grad(smp_walk *w, const smp_node *node)
{
    smp_task task = smp_walk_grad_task(w, node, node->names.dx, SMP_OP_COMBINE_GRAD);

    if (node->dims[5]) {
        plain_combine_grad(w, node);
        return;
    }
    smp_walk_add(w, &task,
                 (smp_access[]){smp_reads(smp_walk_grad(w, node->out[0])),
                                smp_reads(smp_walk_at(w, node->in[0])),
                                smp_reads(smp_walk_at(w, node->in[1])),
                                smp_reads(smp_walk_at(w, node->in[2])),
                                smp_writes(smp_walk_grad(w, node->in[0])),
                                smp_writes(smp_walk_grad(w, node->in[1]))},
                 6);
    w->graph->tensors[node->in[0]].has_grad = true;
    w->graph->tensors[node->in[1]].has_grad = true;
}

static void gate_rows_grad(smp_walk *w, const smp_node *node)
{
    smp_task task = smp_walk_grad_task(w, node, node->names.dx, SMP_OP_GATE_ROWS_GRAD);

    smp_walk_add(w, &task,
                 (smp_access[]){smp_reads(smp_walk_grad(w, node->out[0])),
                                smp_reads(smp_walk_at(w, node->in[0])),
                                smp_reads(smp_walk_at(w, node->in[1])),
                                smp_writes(smp_walk_grad(w, node->in[0])),
                                smp_writes(smp_walk_grad(w, node->in[1]))},
                 5);
    smp_walk_finish(w, node);
    w->graph->tensors[node->in[0]].has_grad = true;
    w->graph->tensors[node->in[1]].has_grad = true;
}

/* A permutation's gradient is the inverse one. */
static void sort_grad(smp_walk *w, const smp_node *node)
{
    smp_task task = smp_walk_grad_task(w, node, node->names.dx, SMP_OP_SORT_ROWS);

    task.dims[3] = !node->dims[3];
    smp_walk_add(w, &task,
                 (smp_access[]){smp_reads(smp_walk_grad(w, node->out[0])),
                                smp_reads(smp_walk_at(w, node->in[1])),
                                smp_writes(smp_walk_grad(w, node->in[0]))},
                 3);
    w->graph->tensors[node->in[0]].has_grad = true;
}

/* Rows go back the way they came. */
static void exchange_grad(smp_walk *w, const smp_node *node)
{
    smp_node back = *node;

    back.dims[0] = node->dims[1];
    back.dims[1] = node->dims[0];
    back.dims[3] = node->in[1] != SMP_NO_TENSOR && !node->dims[3];
    smp_walk_collective(w, &back, node->names.dx, SMP_OP_ALL_TO_ALL, SMP_PHASE_BACKWARD,
                        smp_walk_grad(w, node->out[0]), smp_walk_grad(w, node->in[0]));
    if (node->in[1] != SMP_NO_TENSOR) {
        smp_build_extend(&w->low->build, smp_reads(smp_walk_at(w, node->in[1])));
    }
    w->graph->tensors[node->in[0]].has_grad = true;
}

bool smp_walk_expert_grad(smp_walk *w, const smp_node *node)
{
    switch (node->op) {
    case SMP_OP_GROUPED_MATMUL:
        grouped_grad(w, node);
        return true;
    case SMP_OP_ROUTE:
        route_grad(w, node);
        return true;
    case SMP_OP_PERMUTE:
        permute_grad(w, node);
        return true;
    case SMP_OP_COMBINE:
        combine_grad(w, node);
        return true;
    case SMP_OP_GATE_ROWS:
        gate_rows_grad(w, node);
        return true;
    case SMP_OP_SORT_ROWS:
        sort_grad(w, node);
        return true;
    case SMP_OP_ALL_TO_ALL:
        exchange_grad(w, node);
        return true;
    case SMP_OP_EXPERT_ROWS:
    case SMP_OP_ROUTE_STATISTICS:
        return true; /* numbers of rows have no gradient */
    default:
        return false;
    }
}
