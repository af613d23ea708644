/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forward and backward segments of a block, from its graph.
 *
 * Gradients of activations are scratch, except that of the residual, which is one buffer for
 * the whole backward and is added to in place: what a branch reads of it is read before the
 * branch's norm adds to it.
 */
#include "step/block.h"

#include "base/numeric.h"

typedef struct walk {
    smp_lowering *low;
    const smp_variant *variant;
    smp_graph *graph;
    bool add;                  /* to gradients of parameters */
} walk;

/* Gives every tensor its buffer. */
static void place(walk *w)
{
    for (uint32_t i = 0; i < w->graph->n_tensor; i++) {
        smp_tensor *t = &w->graph->tensors[i];

        t->has_grad = false;
        if (t->storage != i) {
            t->at = w->graph->tensors[t->storage].at;
        } else if (i == w->graph->input) {
            t->at = smp_whole(w->variant->input, t->bytes);
        } else if (i == w->graph->output) {
            t->at = smp_whole(w->variant->output, t->bytes);
            t->at.delta = 1;
        } else if (smp_graph_keeps(w->graph, i)) {
            t->at = smp_whole(smp_lower_kept(w->low, w->variant, t->name, t->bytes),
                              t->bytes);
        } else {
            t->at = smp_whole(
                smp_lower_scratch(w->low, t->name, SMP_KIND_WORKSPACE, t->bytes), t->bytes);
        }
    }
}

static smp_ref at(const walk *w, uint8_t tensor)
{
    return w->graph->tensors[tensor].at;
}

/* Where the gradient of a tensor lies; scratch unless it is shared with another's. */
static smp_ref grad_at(walk *w, uint8_t tensor)
{
    smp_tensor *t = &w->graph->tensors[tensor];

    if (!t->has_grad && t->grad.bytes == 0) {
        uint64_t bytes = t->grad_bytes ? t->grad_bytes : t->bytes;

        t->grad = smp_whole(
            smp_lower_scratch(w->low, t->grad_name, SMP_KIND_WORKSPACE, bytes), bytes);
    }
    return t->grad;
}

/* The gradient of `tensor` is that of `other`. */
static void share_grad(walk *w, uint8_t tensor, uint8_t other)
{
    w->graph->tensors[tensor].grad = grad_at(w, other);
    w->graph->tensors[tensor].has_grad = true;
}

static smp_task task_of(const walk *w, const smp_node *node, const char *name, uint32_t op,
                        smp_phase phase)
{
    smp_task task = { .name = name,
                      .op = (uint16_t)op,
                      .stream = node->stream,
                      .phase = (uint8_t)phase,
                      .dtype = (uint8_t)w->low->compute,
                      .dtype2 = (uint8_t)w->low->compute,
                      .comm = SMP_NO_COMM,
                      .flags = node->flags };

    if (node->fp32) {
        task.dtype = task.dtype2 = SMP_F32;
    }
    for (int i = 0; i < SMP_MAX_DIMS; i++) {
        task.dims[i] = node->dims[i];
    }
    return task;
}

static void add(walk *w, const smp_task *task, const smp_access *access, uint32_t n)
{
    smp_build_task(&w->low->build, task, access, n);
}

/* After all operands of the task added last: it shares the multiprocessors with tasks of
 * another stream, which count as if they had all of them, so the two must not overlap. */
static void finish(walk *w, const smp_node *node)
{
    if (node->exclusive) {
        smp_build_extend(&w->low->build, smp_token(w->low->units_token));
    }
}

static uint8_t comm_of(const smp_lowering *low, const smp_node *node)
{
    switch ((smp_node_group)node->group) {
    case SMP_NODE_EXPERT:
        return low->expert_comm;
    case SMP_NODE_SHARD_SUM:
        return low->shard_sum_comm;
    case SMP_NODE_REPLICA_SUM:
        return low->replica_sum_comm;
    case SMP_NODE_TENSOR:
        break;
    }
    return low->tensor_comm;
}

static void add_collective(walk *w, const smp_node *node, const char *name, smp_op op,
                           smp_phase phase, smp_ref from, smp_ref to)
{
    smp_task task = task_of(w, node, name, (uint32_t)op, phase);
    const smp_access apart[2] = { smp_reads(from), smp_writes(to) };
    const smp_access inplace[1] = { smp_updates(to) };

    task.stream = node->group == SMP_NODE_TENSOR ? SMP_STREAM_TENSOR : SMP_STREAM_EXPERT;
    task.comm = comm_of(w->low, node);
    if (op == SMP_OP_ALL_REDUCE) {
        add(w, &task, inplace, 1);
    } else {
        add(w, &task, apart, 2);
    }
}

static const smp_home *home_of(const walk *w, smp_role role)
{
    return w->low->expert > 1 && smp_role_is_expert(role) ? &w->variant->experts
                                                          : &w->variant->home;
}

static smp_ref weight(const walk *w, smp_role role, uint32_t n)
{
    return smp_weight(w->low, home_of(w, role), role, n);
}

/* Whether the gradient of a parameter is added to. */
static bool adds(const walk *w, smp_role role)
{
    return w->add && home_of(w, role)->share->n_write > 1;
}

static uint8_t add_flag(const walk *w, smp_role role)
{
    return adds(w, role) ? SMP_FLAG_ACCUMULATE : 0;
}

static smp_access weight_grad(const walk *w, smp_role role, uint32_t n)
{
    return smp_adds(smp_weight_grad(w->low, home_of(w, role), role, n), adds(w, role));
}

/* ---- forward ---- */

static void forward_qk_norm(walk *w, const smp_node *node, const smp_task *task)
{
    add(w, task,
        (smp_access[]){ smp_updates(at(w, node->in[0])),
                        smp_reads(weight(w, SMP_ROLE_Q_NORM_W, 1)),
                        smp_reads(weight(w, SMP_ROLE_K_NORM_W, 1)),
                        smp_writes(at(w, node->out[1])) },
        4);
    if (node->in[1] != SMP_NO_TENSOR) {
        smp_build_extend(&w->low->build, smp_reads(at(w, node->in[1])));
    }
    if (node->bias != SMP_ROLES) {
        smp_build_extend(&w->low->build, smp_reads(weight(w, SMP_ROLE_Q_NORM_B, 1)));
        smp_build_extend(&w->low->build, smp_reads(weight(w, SMP_ROLE_K_NORM_B, 1)));
    }
}

static void forward_node(walk *w, const smp_node *node, smp_phase phase)
{
    const char *name =
        phase == SMP_PHASE_FORWARD ? node->names.forward : node->names.again;
    smp_task task = task_of(w, node, name, node->op, phase);
    smp_access access[6];
    uint32_t n = 0;

    switch (node->op) {
    case SMP_NODE_FORK:
        return;
    case SMP_OP_ALL_TO_ALL:
        add_collective(w, node, name, SMP_OP_ALL_TO_ALL, phase, at(w, node->in[0]),
                       at(w, node->out[0]));
        if (node->in[1] != SMP_NO_TENSOR) {
            smp_build_extend(&w->low->build, smp_reads(at(w, node->in[1])));
        }
        return;
    case SMP_OP_ALL_GATHER:
    case SMP_OP_REDUCE_SCATTER:
    case SMP_OP_ALL_REDUCE:
        add_collective(w, node, name, (smp_op)node->op, phase, at(w, node->in[0]),
                       at(w, node->out[0]));
        return;
    case SMP_OP_BIAS:
    case SMP_OP_ROPE:
    case SMP_OP_TEMPER:
        access[n++] = smp_updates(at(w, node->in[0]));
        break;
    case SMP_OP_CLIP:
    case SMP_OP_QK_RMS:
        access[n++] = smp_updates(at(w, node->in[0]));
        access[n++] = smp_writes(at(w, node->out[1]));
        break;
    case SMP_OP_QK_NORM:
        forward_qk_norm(w, node, &task);
        return;
    default:
        for (int i = 0; i < 3; i++) {
            if (node->in[i] != SMP_NO_TENSOR) {
                access[n++] = smp_reads(at(w, node->in[i]));
            }
        }
        if (node->weight != SMP_ROLES) {
            access[n++] = smp_reads(weight(w, node->weight, node->n_weight));
        }
        access[n++] = smp_writes(at(w, node->out[0]));
        if (node->out[1] != SMP_NO_TENSOR) {
            access[n++] = smp_writes(at(w, node->out[1]));
        }
        if (node->op == SMP_OP_EXPERT_ROWS) {
            access[n++] = smp_updates((smp_ref){ w->low->scalars, 0, 0, 16 });
        }
        break;
    }
    if (node->fp32_out) {
        task.dtype2 = SMP_F32;
    }
    if (node->bias != SMP_ROLES) {
        add(w, &task, access, n);
        smp_build_extend(&w->low->build, smp_reads(weight(w, node->bias, node->n_bias)));
        finish(w, node);
        return;
    }
    add(w, &task, access, n);
    finish(w, node);
}

/* ---- backward ---- */

static smp_task grad_task(const walk *w, const smp_node *node, const char *name, uint32_t op)
{
    smp_task task = task_of(w, node, name, op, SMP_PHASE_BACKWARD);

    task.flags = node->flags;
    return task;
}

/* Where an operation that only writes leaves its part of a gradient to which others have
 * contributed: beside it. */
static smp_ref part_at(walk *w, uint8_t tensor)
{
    const smp_tensor *t = &w->graph->tensors[tensor];
    const char *name;

    if (!t->has_grad) {
        return grad_at(w, tensor);
    }
    name = smp_arena_printf(w->low->build.program->arena, "%s.part", t->grad_name);
    return smp_whole(smp_lower_scratch(w->low, name, SMP_KIND_WORKSPACE, t->bytes), t->bytes);
}

/* Adds what lies at `part` to the gradient; nothing to do where it has been written there. */
static void add_part(walk *w, const smp_node *node, uint8_t tensor, smp_ref part)
{
    smp_tensor *t = &w->graph->tensors[tensor];
    smp_task task = task_of(w, node, node->names.add, SMP_OP_ACCUMULATE, SMP_PHASE_BACKWARD);

    if (t->has_grad) {
        task.flags |= SMP_FLAG_ACCUMULATE;
        task.dims[0] = t->bytes / smp_dtype_bytes(w->low->compute);
        add(w, &task, (smp_access[]){ smp_reads(part), smp_updates(grad_at(w, tensor)) }, 2);
    }
    t->has_grad = true;
}

/* A gathered input is not kept: it is gathered again, once a backward. */
static void regather(walk *w, const smp_node *node)
{
    smp_tensor *t = &w->graph->tensors[node->in[0]];
    smp_node gather = { .op = SMP_OP_ALL_GATHER };

    if (t->gathered == SMP_NO_TENSOR || t->regathered) {
        return;
    }
    t->regathered = true;
    gather.dims[0] = t->bytes / smp_dtype_bytes(w->low->compute);
    add_collective(w, &gather, node->names.regather, SMP_OP_ALL_GATHER, SMP_PHASE_BACKWARD,
                   at(w, t->gathered), at(w, node->in[0]));
}

/* The input gradient.  Rows that are longer than the product's columns have the rest of them
 * from elsewhere; otherwise a second reader of the input adds to what the first wrote. */
static void matmul_dx(walk *w, const smp_node *node)
{
    uint8_t x = node->in[0];
    bool has = w->graph->tensors[x].has_grad;
    smp_ref dx = grad_at(w, x);
    smp_task task = grad_task(w, node, node->names.dx, SMP_OP_MATMUL_DX);

    task.flags |= has && node->dims[3] == 0 ? SMP_FLAG_ACCUMULATE : 0;
    task.dims[1] = node->dims[2];
    task.dims[2] = node->dims[1];
    add(w, &task,
        (smp_access[]){ smp_reads(grad_at(w, node->out[0])),
                        smp_reads(weight(w, node->weight, node->n_weight)),
                        smp_adds(dx, has) },
        3);
    finish(w, node);
    w->graph->tensors[x].has_grad = true;
}

/* Eager PyTorch holds outputs that selective checkpointing marks until backward is there,
 * whether it reads them or not. */
static bool holds_output(const walk *w, const smp_node *node)
{
    return w->variant->mode == SMP_CHECKPOINTING_SELECTIVE_OP && w->low->runtime->separate
           && !w->low->set->compile && smp_graph_keeps(w->graph, node->out[0]);
}

/* The input gradient is made first, so that its reduction over the tensor group runs beside
 * the weight gradient. */
static void matmul_grad(walk *w, const smp_node *node)
{
    smp_ref dy = grad_at(w, node->out[0]);
    smp_task task = grad_task(w, node, node->names.dw, SMP_OP_MATMUL_DW);

    regather(w, node);
    matmul_dx(w, node);
    task.dims[0] = node->dims[1];
    task.dims[1] = node->dims[2];
    task.dims[2] = node->dims[0];
    task.dtype2 = (uint8_t)w->low->reduce;
    task.flags |= add_flag(w, node->weight);
    add(w, &task,
        (smp_access[]){ smp_reads(dy), smp_reads(at(w, node->in[0])),
                        weight_grad(w, node->weight, node->n_weight) },
        3);
    if (node->bias != SMP_ROLES) {
        smp_build_extend(&w->low->build, weight_grad(w, node->bias, node->n_bias));
    }
    if (holds_output(w, node)) {
        smp_build_extend(&w->low->build, smp_reads(at(w, node->out[0])));
    }
    finish(w, node);
}

static void norm_grad(walk *w, const smp_node *node)
{
    uint8_t x = node->in[0];
    smp_task task = grad_task(w, node, node->names.dx, SMP_OP_NORM_GRAD);
    bool has = w->graph->tensors[x].has_grad;

    task.dtype2 = (uint8_t)w->low->reduce;
    task.flags |= (uint8_t)(add_flag(w, node->weight) | (has ? SMP_FLAG_ADD_DX : 0));
    add(w, &task,
        (smp_access[]){ smp_reads(grad_at(w, node->out[0])), smp_reads(at(w, x)),
                        smp_reads(weight(w, node->weight, 1)),
                        smp_adds(grad_at(w, x), has), weight_grad(w, node->weight, 1) },
        5);
    w->graph->tensors[x].has_grad = true;
    if (node->bias != SMP_ROLES) {
        smp_build_extend(&w->low->build, weight_grad(w, node->bias, 1));
    }
}

/* Sums over all heads that the gradient of a norm over all heads takes. */
static smp_ref qk_dots(walk *w, const smp_node *node)
{
    uint64_t bytes = smp_mul(w->low->tokens, 8);
    smp_ref dots = smp_whole(smp_lower_scratch(w->low, "attention.dots", SMP_KIND_WORKSPACE,
                                               bytes),
                             bytes);
    smp_task task = grad_task(w, node, "attention.qk_dots", SMP_OP_QK_DOTS);
    smp_node sum = { .fp32 = true, .dims = { smp_mul(w->low->tokens, 2) } };

    add(w, &task,
        (smp_access[]){ smp_reads(grad_at(w, node->out[0])), smp_reads(at(w, node->out[1])),
                        smp_reads(at(w, node->in[1])),
                        smp_reads(weight(w, SMP_ROLE_Q_NORM_W, 1)),
                        smp_reads(weight(w, SMP_ROLE_K_NORM_W, 1)), smp_writes(dots) },
        6);
    add_collective(w, &sum, "attention.qk_dots.sum", SMP_OP_ALL_REDUCE, SMP_PHASE_BACKWARD,
                   dots, dots);
    return dots;
}

static void qk_norm_grad(walk *w, const smp_node *node)
{
    bool whole = node->in[1] != SMP_NO_TENSOR;
    smp_ref dots = whole ? qk_dots(w, node) : (smp_ref){ 0 };
    smp_task task = grad_task(w, node, node->names.dx, SMP_OP_QK_NORM_GRAD);

    task.dtype2 = (uint8_t)w->low->reduce;
    task.flags |= add_flag(w, SMP_ROLE_Q_NORM_W);
    add(w, &task,
        (smp_access[]){ smp_updates(grad_at(w, node->out[0])), smp_reads(at(w, node->out[1])),
                        smp_reads(weight(w, SMP_ROLE_Q_NORM_W, 1)),
                        smp_reads(weight(w, SMP_ROLE_K_NORM_W, 1)),
                        weight_grad(w, SMP_ROLE_Q_NORM_W, 1),
                        weight_grad(w, SMP_ROLE_K_NORM_W, 1) },
        6);
    if (whole) {
        smp_build_extend(&w->low->build, smp_reads(at(w, node->in[1])));
        smp_build_extend(&w->low->build, smp_reads(dots));
    }
    if (node->bias != SMP_ROLES) {
        smp_build_extend(&w->low->build, weight_grad(w, SMP_ROLE_Q_NORM_B, 1));
        smp_build_extend(&w->low->build, weight_grad(w, SMP_ROLE_K_NORM_B, 1));
    }
    share_grad(w, node->in[0], node->out[0]);
}

static void bias_grad(walk *w, const smp_node *node)
{
    smp_task task = grad_task(w, node, node->names.dw, SMP_OP_BIAS_GRAD);

    task.dtype2 = (uint8_t)w->low->reduce;
    task.flags |= add_flag(w, node->bias);
    add(w, &task,
        (smp_access[]){ smp_reads(grad_at(w, node->out[0])), weight_grad(w, node->bias, 1) },
        2);
    share_grad(w, node->in[0], node->out[0]);
}

/* Whether the gradient writes those of all inputs. */
static bool writes_all(smp_op op)
{
    return op == SMP_OP_VALUES_GRAD || op == SMP_OP_ATTENTION_GRAD || op == SMP_OP_GATED_GRAD;
}

/* Gradients that read `extra` tensors besides dy and write the gradient of the first input. */
static void plain_grad(walk *w, const smp_node *node, smp_op op, const uint8_t *extra,
                       uint32_t n_extra)
{
    smp_task task = grad_task(w, node, node->names.dx, (uint32_t)op);
    smp_access access[9];
    uint32_t n = 0;

    access[n++] = smp_reads(grad_at(w, node->out[0]));
    for (uint32_t i = 0; i < n_extra; i++) {
        if (extra[i] != SMP_NO_TENSOR) {
            access[n++] = smp_reads(at(w, extra[i]));
        }
    }
    access[n++] = smp_writes(grad_at(w, node->in[0]));
    w->graph->tensors[node->in[0]].has_grad = true;
    for (int i = 1; i < 3; i++) { /* dqkv as well: the part of v; k, v; up */
        if (writes_all(op) && node->in[i] != SMP_NO_TENSOR) {
            access[n++] = smp_writes(grad_at(w, node->in[i]));
            w->graph->tensors[node->in[i]].has_grad = true;
        }
    }
    if (node->bias == SMP_ROLE_SINKS) {
        task.dtype2 = (uint8_t)w->low->reduce;
        task.flags |= add_flag(w, SMP_ROLE_SINKS);
    }
    add(w, &task, access, n);
    if (node->needs_input) {
        smp_build_extend(&w->low->build, smp_reads(at(w, node->in[0])));
    }
    if (node->bias == SMP_ROLE_SINKS) {
        smp_build_extend(&w->low->build, smp_reads(weight(w, SMP_ROLE_SINKS, 1)));
        smp_build_extend(&w->low->build, weight_grad(w, SMP_ROLE_SINKS, 1));
    }
    finish(w, node);
}

/* ---- experts ---- */

/* Each rank's loss is a mean over its own tokens, and an expert sees those of all ranks of the
 * expert group: its gradients are divided by their number here, so that the average over its
 * copies is that over all data ranks. */
static void grouped_grad(walk *w, const smp_node *node)
{
    uint8_t x = node->in[0];
    smp_ref dy = grad_at(w, node->out[0]), layout = at(w, node->in[1]);
    smp_task task = grad_task(w, node, node->names.dx, SMP_OP_GROUPED_MATMUL_DX);

    task.dims[2] = node->dims[3];
    task.dims[3] = node->dims[2];
    add(w, &task,
        (smp_access[]){ smp_reads(dy), smp_reads(layout),
                        smp_reads(weight(w, node->weight, node->n_weight)),
                        smp_writes(grad_at(w, x)) },
        4);
    finish(w, node);
    w->graph->tensors[x].has_grad = true;
    task = grad_task(w, node, node->names.dw, SMP_OP_GROUPED_MATMUL_DW);
    task.dims[5] = w->low->expert;
    task.dtype2 = (uint8_t)w->low->reduce;
    task.flags |= add_flag(w, node->weight);
    add(w, &task,
        (smp_access[]){ smp_reads(dy), smp_reads(at(w, x)), smp_reads(layout),
                        weight_grad(w, node->weight, node->n_weight) },
        4);
    if (node->bias != SMP_ROLES) {
        smp_build_extend(&w->low->build, weight_grad(w, node->bias, node->n_bias));
    }
    finish(w, node);
}

static void route_grad(walk *w, const smp_node *node)
{
    const smp_settings *set = w->low->set;
    bool aux = set->smp_moe && set->moe_load_balancing == SMP_BALANCING_AUX_LOSS;
    /* Ranks of the tensor group that route the same tokens each add a part. */
    double parts = w->low->sequence ? 1 : w->low->tensor;
    smp_task task = grad_task(w, node, node->names.dx, SMP_OP_ROUTE_GRAD);

    task.dims[4] = aux ? smp_rate_bits(set->moe_aux_loss_coeff / parts) : 0;
    task.dims[5] = set->smp_moe ? smp_rate_bits(set->moe_z_loss_coeff / parts) : 0;
    add(w, &task,
        (smp_access[]){ smp_reads(grad_at(w, node->out[0])), smp_reads(at(w, node->in[0])),
                        smp_reads(at(w, node->out[0])), smp_writes(grad_at(w, node->in[0])),
                        smp_reads((smp_ref){ w->low->scalars, 0, 64, 64 }) },
        5);
    if (node->extra != SMP_NO_TENSOR) {
        smp_build_extend(&w->low->build, smp_reads(at(w, node->extra)));
    }
    if (node->bias != SMP_ROLES) {
        smp_build_extend(&w->low->build, weight_grad(w, node->bias, 1));
    }
}

/* The first contribution to the gradient of tokens writes, later ones add.  Where rows have
 * weights, so has the gradient, and that of a weight is drow x. */
static void permute_grad(walk *w, const smp_node *node)
{
    uint8_t x = node->in[0];
    bool has = w->graph->tensors[x].has_grad;
    smp_task task = grad_task(w, node, node->names.dx, SMP_OP_PERMUTE_GRAD);

    task.flags |= has ? SMP_FLAG_ACCUMULATE : 0;
    add(w, &task,
        (smp_access[]){ smp_reads(grad_at(w, node->out[0])), smp_reads(at(w, node->in[1])),
                        smp_reads(at(w, node->in[2])), smp_adds(grad_at(w, x), has) },
        4);
    w->graph->tensors[x].has_grad = true;
    if (node->dims[5]) {
        smp_build_extend(&w->low->build, smp_reads(at(w, x)));
        smp_build_extend(&w->low->build, smp_writes(grad_at(w, node->in[1])));
        w->graph->tensors[node->in[1]].has_grad = true;
    }
}

/* Sums without weights send each row the gradient of its token. */
static void plain_combine_grad(walk *w, const smp_node *node)
{
    smp_task task = grad_task(w, node, node->names.dx, SMP_OP_PERMUTE);

    task.dims[5] = 0;
    add(w, &task,
        (smp_access[]){ smp_reads(grad_at(w, node->out[0])), smp_reads(at(w, node->in[1])),
                        smp_reads(at(w, node->in[2])), smp_writes(grad_at(w, node->in[0])) },
        4);
    w->graph->tensors[node->in[0]].has_grad = true;
}

static void combine_grad(walk *w, const smp_node *node)
{
    smp_task task = grad_task(w, node, node->names.dx, SMP_OP_COMBINE_GRAD);

    if (node->dims[5]) {
        plain_combine_grad(w, node);
        return;
    }
    add(w, &task,
        (smp_access[]){ smp_reads(grad_at(w, node->out[0])), smp_reads(at(w, node->in[0])),
                        smp_reads(at(w, node->in[1])), smp_reads(at(w, node->in[2])),
                        smp_writes(grad_at(w, node->in[0])),
                        smp_writes(grad_at(w, node->in[1])) },
        6);
    w->graph->tensors[node->in[0]].has_grad = true;
    w->graph->tensors[node->in[1]].has_grad = true;
}

static void gate_rows_grad(walk *w, const smp_node *node)
{
    smp_task task = grad_task(w, node, node->names.dx, SMP_OP_GATE_ROWS_GRAD);

    add(w, &task,
        (smp_access[]){ smp_reads(grad_at(w, node->out[0])), smp_reads(at(w, node->in[0])),
                        smp_reads(at(w, node->in[1])), smp_writes(grad_at(w, node->in[0])),
                        smp_writes(grad_at(w, node->in[1])) },
        5);
    finish(w, node);
    w->graph->tensors[node->in[0]].has_grad = true;
    w->graph->tensors[node->in[1]].has_grad = true;
}

/* A permutation's gradient is the inverse one. */
static void sort_grad(walk *w, const smp_node *node)
{
    smp_task task = grad_task(w, node, node->names.dx, SMP_OP_SORT_ROWS);

    task.dims[3] = !node->dims[3];
    add(w, &task,
        (smp_access[]){ smp_reads(grad_at(w, node->out[0])), smp_reads(at(w, node->in[1])),
                        smp_writes(grad_at(w, node->in[0])) },
        3);
    w->graph->tensors[node->in[0]].has_grad = true;
}

/* Rows go back the way they came. */
static void exchange_grad(walk *w, const smp_node *node)
{
    smp_node back = *node;

    back.dims[0] = node->dims[1];
    back.dims[1] = node->dims[0];
    back.dims[3] = node->in[1] != SMP_NO_TENSOR && !node->dims[3];
    add_collective(w, &back, node->names.dx, SMP_OP_ALL_TO_ALL, SMP_PHASE_BACKWARD,
                   grad_at(w, node->out[0]), grad_at(w, node->in[0]));
    if (node->in[1] != SMP_NO_TENSOR) {
        smp_build_extend(&w->low->build, smp_reads(at(w, node->in[1])));
    }
    w->graph->tensors[node->in[0]].has_grad = true;
}

/* False: the operation is none of experts'. */
static bool expert_grad(walk *w, const smp_node *node)
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

/* The two ends of tensor parallelism are each other's gradients. */
static void collective_grad(walk *w, const smp_node *node)
{
    uint8_t x = node->in[0], y = node->out[0];
    smp_node back = *node;
    smp_ref part;

    switch (node->op) {
    case SMP_OP_ALL_REDUCE:
        share_grad(w, x, y);
        return;
    case SMP_NODE_FORK:
        add_collective(w, node, node->names.dx, SMP_OP_ALL_REDUCE, SMP_PHASE_BACKWARD,
                       grad_at(w, y), grad_at(w, y));
        if (w->graph->tensors[x].has_grad) {
            add_part(w, node, x, grad_at(w, y));
        } else {
            share_grad(w, x, y);
        }
        return;
    default:
        part = part_at(w, x);
        back.dims[0] /= node->fp32 ? 2 : 1; /* of (weight, number), weights only */
        add_collective(w, &back, node->names.dx,
                       node->op == SMP_OP_ALL_GATHER ? SMP_OP_REDUCE_SCATTER
                                                     : SMP_OP_ALL_GATHER,
                       SMP_PHASE_BACKWARD, grad_at(w, y), part);
        add_part(w, node, x, part);
        return;
    }
}

/* Gradients in place that read nothing else: of a rotation the one back, of a factor itself. */
static void turn_grad(walk *w, const smp_node *node, smp_op op)
{
    smp_task task = grad_task(w, node, node->names.dx, (uint32_t)op);

    add(w, &task, (smp_access[]){ smp_updates(grad_at(w, node->out[0])) }, 1);
    share_grad(w, node->in[0], node->out[0]);
}

static void qk_rms_grad(walk *w, const smp_node *node)
{
    smp_task task = grad_task(w, node, node->names.dx, SMP_OP_QK_RMS_GRAD);

    add(w, &task,
        (smp_access[]){ smp_updates(grad_at(w, node->out[0])), smp_reads(at(w, node->out[0])),
                        smp_reads(at(w, node->out[1])) },
        3);
    share_grad(w, node->in[0], node->out[0]);
}

static void scores_grad(walk *w, const smp_node *node)
{
    smp_task task = grad_task(w, node, node->names.dx, SMP_OP_SCORES_GRAD);

    add(w, &task,
        (smp_access[]){ smp_reads(grad_at(w, node->out[0])), smp_reads(at(w, node->in[0])),
                        smp_updates(grad_at(w, node->in[0])) }, /* the part of v stays */
        3);
}

static void clip_grad(walk *w, const smp_node *node)
{
    smp_task task = grad_task(w, node, node->names.dx, SMP_OP_CLIP_GRAD);

    add(w, &task,
        (smp_access[]){ smp_updates(grad_at(w, node->out[0])),
                        smp_reads(at(w, node->out[1])) },
        2);
    share_grad(w, node->in[0], node->out[0]);
}

static void latent_grad(walk *w, const smp_node *node)
{
    smp_task task = grad_task(w, node, node->names.dx, SMP_OP_LATENT_GRAD);

    add(w, &task,
        (smp_access[]){ smp_reads(grad_at(w, node->out[0])),
                        smp_writes(grad_at(w, node->in[0])),
                        smp_writes(grad_at(w, node->in[1])),
                        smp_writes(grad_at(w, node->in[2])) },
        4);
    for (int i = 0; i < 3; i++) {
        w->graph->tensors[node->in[i]].has_grad = true;
    }
}

static void backward_node(walk *w, const smp_node *node)
{
    switch (node->op) {
    case SMP_OP_ADD:
        share_grad(w, node->in[0], node->out[0]);
        share_grad(w, node->in[1], node->out[0]);
        break;
    case SMP_OP_MATMUL:
        matmul_grad(w, node);
        break;
    case SMP_OP_NORM:
        norm_grad(w, node);
        break;
    case SMP_OP_QK_NORM:
        qk_norm_grad(w, node);
        break;
    case SMP_OP_QK_STATS: /* part of the norm's gradient */
        break;
    case SMP_OP_BIAS:
        bias_grad(w, node);
        break;
    case SMP_OP_CLIP:
        clip_grad(w, node);
        break;
    case SMP_OP_LATENT:
        latent_grad(w, node);
        break;
    case SMP_OP_ROPE:
        turn_grad(w, node, SMP_OP_ROPE_GRAD);
        break;
    case SMP_OP_TEMPER:
        turn_grad(w, node, SMP_OP_TEMPER);
        break;
    case SMP_OP_QK_RMS:
        qk_rms_grad(w, node);
        break;
    case SMP_OP_ATTENTION:
        plain_grad(w, node, SMP_OP_ATTENTION_GRAD,
                   (uint8_t[]){ node->in[0], node->in[1], node->in[2], node->out[0],
                                node->out[1] },
                   5);
        break;
    case SMP_OP_SCORES:
        scores_grad(w, node);
        break;
    case SMP_OP_SOFTMAX:
        plain_grad(w, node, SMP_OP_SOFTMAX_GRAD, node->out, 1);
        break;
    case SMP_OP_VALUES:
        plain_grad(w, node, SMP_OP_VALUES_GRAD, node->in, 2);
        break;
    case SMP_OP_ACTIVATION:
        plain_grad(w, node, SMP_OP_ACTIVATION_GRAD, node->in, 1);
        break;
    case SMP_OP_GATED:
        plain_grad(w, node, SMP_OP_GATED_GRAD, node->in, 2);
        break;
    case SMP_OP_DROPOUT:
        plain_grad(w, node, SMP_OP_DROPOUT_GRAD, &node->out[1], 1);
        break;
    default:
        /* sums of statistics are part of the norm's gradient, counts have none */
        if (!expert_grad(w, node)
            && (!node->fp32 || w->graph->tensors[node->out[0]].has_grad)) {
            collective_grad(w, node);
        }
        break;
    }
}

static void emit_backward(walk *w)
{
    smp_graph *g = w->graph;

    for (uint32_t i = 0; i < g->n_tensor; i++) {
        g->tensors[i].has_grad = g->tensors[i].regathered = false;
        g->tensors[i].grad = (smp_ref){ 0 };
        if (g->tensors[i].residual) {
            g->tensors[i].grad = smp_whole(w->low->d, g->tensors[i].bytes);
        }
    }
    g->tensors[g->output].grad = smp_whole(w->low->d, g->tensors[g->output].bytes);
    g->tensors[g->output].has_grad = true;
    for (uint32_t i = 0; i < g->n_node; i++) {
        if (g->again[i]) {
            forward_node(w, &g->nodes[i], SMP_PHASE_RECOMPUTE);
        }
    }
    for (uint32_t i = g->n_node; i-- > 0;) {
        backward_node(w, &g->nodes[i]);
    }
    if (w->low->orders_backward) {
        smp_build_extend(&w->low->build, smp_token(w->low->prefetch_token));
    }
    if (w->variant->offloaded && w->low->load_token != SMP_NO_BUFFER) {
        smp_build_extend(&w->low->build, smp_token(w->low->load_token));
    }
}

void smp_lower_block(smp_lowering *low, smp_variant *variant)
{
    smp_graph graph;
    walk w = { .low = low, .variant = variant, .graph = &graph };

    smp_graph_build(low, variant->block, variant->mode, &graph);
    place(&w);
    variant->segments.forward = smp_build_segment(&low->build, "forward");
    for (uint32_t i = 0; i < graph.n_node; i++) {
        forward_node(&w, &graph.nodes[i], SMP_PHASE_FORWARD);
    }
    if (low->orders_forward) {
        smp_build_extend(&low->build, smp_token(low->prefetch_token));
    }
    for (int i = 0; i < low->n_write; i++) {
        w.add = i == 1;
        variant->segments.backward[i] =
            smp_build_segment(&low->build, w.add ? "backward.add" : "backward");
        emit_backward(&w);
    }
}
