/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of the nodes of a block, and the walk back over them. */
#include "step/walk.h"

#include "base/numeric.h"

smp_task smp_walk_grad_task(const smp_walk *w, const smp_node *node, const char *name,
                            uint32_t op)
{
    smp_task task = smp_walk_task(w, node, name, op, SMP_PHASE_BACKWARD);

    task.flags = node->flags;
    return task;
}

/* Where an operation that only writes leaves its part of a gradient to which others have
 * contributed: beside it. */
static smp_ref part_at(smp_walk *w, uint8_t tensor)
{
    const smp_tensor *t = &w->graph->tensors[tensor];
    const char *name;

    if (!t->has_grad) {
        return smp_walk_grad(w, tensor);
    }
    name = smp_arena_printf(w->low->build.program->arena, "%s.part", t->grad_name);
    return smp_whole(smp_lower_scratch(w->low, name, SMP_KIND_WORKSPACE, t->bytes), t->bytes);
}

/* Adds what lies at `part` to the gradient; nothing to do where it has been written there. */
static void add_part(smp_walk *w, const smp_node *node, uint8_t tensor, smp_ref part)
{
    smp_tensor *t = &w->graph->tensors[tensor];
    smp_task task =
        smp_walk_task(w, node, node->names.add, SMP_OP_ACCUMULATE, SMP_PHASE_BACKWARD);

    if (t->has_grad) {
        task.flags |= SMP_FLAG_ACCUMULATE;
        task.dims[0] = t->bytes / smp_dtype_bytes(w->low->compute);
        smp_walk_add(w, &task,
                     (smp_access[]){smp_reads(part), smp_updates(smp_walk_grad(w, tensor))}, 2);
    }
    t->has_grad = true;
}

/* A gathered input is not kept: it is gathered again, once a backward. */
static void regather(smp_walk *w, const smp_node *node)
{
    smp_tensor *t = &w->graph->tensors[node->in[0]];
    smp_node gather = {.op = SMP_OP_ALL_GATHER};

    if (t->gathered == SMP_NO_TENSOR || t->regathered) {
        return;
    }
    t->regathered = true;
    gather.dims[0] = t->bytes / smp_dtype_bytes(w->low->compute);
    smp_walk_collective(w, &gather, node->names.regather, SMP_OP_ALL_GATHER, SMP_PHASE_BACKWARD,
                        smp_walk_at(w, t->gathered), smp_walk_at(w, node->in[0]));
}

/* The input gradient.  Rows that are longer than the product's columns have the rest of them
 * from elsewhere; otherwise a second reader of the input adds to what the first wrote. */
static void matmul_dx(smp_walk *w, const smp_node *node)
{
    uint8_t x = node->in[0];
    bool has = w->graph->tensors[x].has_grad;
    smp_ref dx = smp_walk_grad(w, x);
    smp_task task = smp_walk_grad_task(w, node, node->names.dx, SMP_OP_MATMUL_DX);

    task.flags |= has && node->dims[3] == 0 ? SMP_FLAG_ACCUMULATE : 0;
    task.dims[1] = node->dims[2];
    task.dims[2] = node->dims[1];
    smp_walk_add(w, &task,
                 (smp_access[]){smp_reads(smp_walk_grad(w, node->out[0])),
                                smp_reads(smp_walk_weight(w, node->weight, node->n_weight)),
                                smp_adds(dx, has)},
                 3);
    smp_walk_finish(w, node);
    w->graph->tensors[x].has_grad = true;
}

/* Eager PyTorch holds outputs that selective checkpointing marks until backward is there,
 * whether it reads them or not. */
static bool holds_output(const smp_walk *w, const smp_node *node)
{
    return w->variant->mode == SMP_CHECKPOINTING_SELECTIVE_OP && w->low->runtime->separate
           && !w->low->set->compile && smp_graph_keeps(w->graph, node->out[0]);
}

/* The input gradient is made first, so that its reduction over the tensor group runs beside
 * the weight gradient. */
static void matmul_grad(smp_walk *w, const smp_node *node)
{
    smp_ref dy = smp_walk_grad(w, node->out[0]);
    smp_task task = smp_walk_grad_task(w, node, node->names.dw, SMP_OP_MATMUL_DW);

    regather(w, node);
    matmul_dx(w, node);
    task.dims[0] = node->dims[1];
    task.dims[1] = node->dims[2];
    task.dims[2] = node->dims[0];
    task.dtype2 = (uint8_t)w->low->reduce;
    task.flags |= smp_walk_flag(w, node->weight);
    smp_walk_add(w, &task,
                 (smp_access[]){smp_reads(dy), smp_reads(smp_walk_at(w, node->in[0])),
                                smp_walk_weight_grad(w, node->weight, node->n_weight)},
                 3);
    if (node->bias != SMP_ROLES) {
        smp_build_extend(&w->low->build, smp_walk_weight_grad(w, node->bias, node->n_bias));
    }
    if (holds_output(w, node)) {
        smp_build_extend(&w->low->build, smp_reads(smp_walk_at(w, node->out[0])));
    }
    smp_walk_finish(w, node);
}

static void norm_grad(smp_walk *w, const smp_node *node)
{
    uint8_t x = node->in[0];
    smp_task task = smp_walk_grad_task(w, node, node->names.dx, SMP_OP_NORM_GRAD);
    bool has = w->graph->tensors[x].has_grad;

    task.dtype2 = (uint8_t)w->low->reduce;
    task.flags |= (uint8_t)(smp_walk_flag(w, node->weight) | (has ? SMP_FLAG_ADD_DX : 0));
    smp_walk_add(w, &task,
                 (smp_access[]){smp_reads(smp_walk_grad(w, node->out[0])),
                                smp_reads(smp_walk_at(w, x)),
                                smp_reads(smp_walk_weight(w, node->weight, 1)),
                                smp_adds(smp_walk_grad(w, x), has),
                                smp_walk_weight_grad(w, node->weight, 1)},
                 5);
    w->graph->tensors[x].has_grad = true;
    if (node->bias != SMP_ROLES) {
        smp_build_extend(&w->low->build, smp_walk_weight_grad(w, node->bias, 1));
    }
}

/* Sums over all heads that the gradient of a norm over all heads takes. */
static smp_ref qk_dots(smp_walk *w, const smp_node *node)
{
    uint64_t bytes = smp_mul(w->low->tokens, 8);
    smp_ref dots = smp_whole(
        smp_lower_scratch(w->low, "attention.dots", SMP_KIND_WORKSPACE, bytes), bytes);
    smp_task task = smp_walk_grad_task(w, node, "attention.qk_dots", SMP_OP_QK_DOTS);
    smp_node sum = {.fp32 = true, .dims = {smp_mul(w->low->tokens, 2)}};

    smp_walk_add(w, &task,
                 (smp_access[]){smp_reads(smp_walk_grad(w, node->out[0])),
                                smp_reads(smp_walk_at(w, node->out[1])),
                                smp_reads(smp_walk_at(w, node->in[1])),
                                smp_reads(smp_walk_weight(w, SMP_ROLE_Q_NORM_W, 1)),
                                smp_reads(smp_walk_weight(w, SMP_ROLE_K_NORM_W, 1)),
                                smp_writes(dots)},
                 6);
    smp_walk_collective(w, &sum, "attention.qk_dots.sum", SMP_OP_ALL_REDUCE, SMP_PHASE_BACKWARD,
                        dots, dots);
    return dots;
}

static void qk_norm_grad(smp_walk *w, const smp_node *node)
{
    bool whole = node->in[1] != SMP_NO_TENSOR;
    smp_ref dots = whole ? qk_dots(w, node) : (smp_ref){0};
    smp_task task = smp_walk_grad_task(w, node, node->names.dx, SMP_OP_QK_NORM_GRAD);

    task.dtype2 = (uint8_t)w->low->reduce;
    task.flags |= smp_walk_flag(w, SMP_ROLE_Q_NORM_W);
    smp_walk_add(w, &task,
                 (smp_access[]){smp_updates(smp_walk_grad(w, node->out[0])),
                                smp_reads(smp_walk_at(w, node->out[1])),
                                smp_reads(smp_walk_weight(w, SMP_ROLE_Q_NORM_W, 1)),
                                smp_reads(smp_walk_weight(w, SMP_ROLE_K_NORM_W, 1)),
                                smp_walk_weight_grad(w, SMP_ROLE_Q_NORM_W, 1),
                                smp_walk_weight_grad(w, SMP_ROLE_K_NORM_W, 1)},
                 6);
    if (whole) {
        smp_build_extend(&w->low->build, smp_reads(smp_walk_at(w, node->in[1])));
        smp_build_extend(&w->low->build, smp_reads(dots));
    }
    if (node->bias != SMP_ROLES) {
        smp_build_extend(&w->low->build, smp_walk_weight_grad(w, SMP_ROLE_Q_NORM_B, 1));
        smp_build_extend(&w->low->build, smp_walk_weight_grad(w, SMP_ROLE_K_NORM_B, 1));
    }
    smp_walk_share(w, node->in[0], node->out[0]);
}

static void bias_grad(smp_walk *w, const smp_node *node)
{
    smp_task task = smp_walk_grad_task(w, node, node->names.dw, SMP_OP_BIAS_GRAD);

    task.dtype2 = (uint8_t)w->low->reduce;
    task.flags |= smp_walk_flag(w, node->bias);
    smp_walk_add(w, &task,
                 (smp_access[]){smp_reads(smp_walk_grad(w, node->out[0])),
                                smp_walk_weight_grad(w, node->bias, 1)},
                 2);
    smp_walk_share(w, node->in[0], node->out[0]);
}

/* Whether the gradient writes those of all inputs. */
static bool writes_all(smp_op op)
{
    return op == SMP_OP_VALUES_GRAD || op == SMP_OP_ATTENTION_GRAD || op == SMP_OP_GATED_GRAD;
}

/* Gradients that read `extra` tensors besides dy and write the gradient of the first input. */
static void plain_grad(smp_walk *w, const smp_node *node, smp_op op, const uint8_t *extra,
                       uint32_t n_extra)
{
    smp_task task = smp_walk_grad_task(w, node, node->names.dx, (uint32_t)op);
    smp_access access[9];
    uint32_t n = 0;

    access[n++] = smp_reads(smp_walk_grad(w, node->out[0]));
    for (uint32_t i = 0; i < n_extra; i++) {
        if (extra[i] != SMP_NO_TENSOR) {
            access[n++] = smp_reads(smp_walk_at(w, extra[i]));
        }
    }
    access[n++] = smp_writes(smp_walk_grad(w, node->in[0]));
    w->graph->tensors[node->in[0]].has_grad = true;
    for (int i = 1; i < 3; i++) { /* dqkv as well: the part of v; k, v; up */
        if (writes_all(op) && node->in[i] != SMP_NO_TENSOR) {
            access[n++] = smp_writes(smp_walk_grad(w, node->in[i]));
            w->graph->tensors[node->in[i]].has_grad = true;
        }
    }
    if (node->bias == SMP_ROLE_SINKS) {
        task.dtype2 = (uint8_t)w->low->reduce;
        task.flags |= smp_walk_flag(w, SMP_ROLE_SINKS);
    }
    smp_walk_add(w, &task, access, n);
    if (node->needs_input) {
        smp_build_extend(&w->low->build, smp_reads(smp_walk_at(w, node->in[0])));
    }
    if (node->bias == SMP_ROLE_SINKS) {
        smp_build_extend(&w->low->build, smp_reads(smp_walk_weight(w, SMP_ROLE_SINKS, 1)));
        smp_build_extend(&w->low->build, smp_walk_weight_grad(w, SMP_ROLE_SINKS, 1));
    }
    smp_walk_finish(w, node);
}

/* The two ends of tensor parallelism are each other's gradients. */
static void collective_grad(smp_walk *w, const smp_node *node)
{
    uint8_t x = node->in[0], y = node->out[0];
    smp_node back = *node;
    smp_ref part;

    switch (node->op) {
    case SMP_OP_ALL_REDUCE:
        smp_walk_share(w, x, y);
        return;
    case SMP_NODE_FORK:
        smp_walk_collective(w, node, node->names.dx, SMP_OP_ALL_REDUCE, SMP_PHASE_BACKWARD,
                            smp_walk_grad(w, y), smp_walk_grad(w, y));
        if (w->graph->tensors[x].has_grad) {
            add_part(w, node, x, smp_walk_grad(w, y));
        } else {
            smp_walk_share(w, x, y);
        }
        return;
    default:
        part = part_at(w, x);
        back.dims[0] /= node->fp32 ? 2 : 1; /* of (weight, number), weights only */
        smp_walk_collective(w, &back, node->names.dx,
                            node->op == SMP_OP_ALL_GATHER ? SMP_OP_REDUCE_SCATTER
                                                          : SMP_OP_ALL_GATHER,
                            SMP_PHASE_BACKWARD, smp_walk_grad(w, y), part);
        add_part(w, node, x, part);
        return;
    }
}

/* Gradients in place that read nothing else: of a rotation the one back, of a factor itself. */
static void turn_grad(smp_walk *w, const smp_node *node, smp_op op)
{
    smp_task task = smp_walk_grad_task(w, node, node->names.dx, (uint32_t)op);

    smp_walk_add(w, &task, (smp_access[]){smp_updates(smp_walk_grad(w, node->out[0]))}, 1);
    smp_walk_share(w, node->in[0], node->out[0]);
}

static void qk_rms_grad(smp_walk *w, const smp_node *node)
{
    smp_task task = smp_walk_grad_task(w, node, node->names.dx, SMP_OP_QK_RMS_GRAD);

    smp_walk_add(w, &task,
                 (smp_access[]){smp_updates(smp_walk_grad(w, node->out[0])),
                                smp_reads(smp_walk_at(w, node->out[0])),
                                smp_reads(smp_walk_at(w, node->out[1]))},
                 3);
    smp_walk_share(w, node->in[0], node->out[0]);
}

static void scores_grad(smp_walk *w, const smp_node *node)
{
    smp_task task = smp_walk_grad_task(w, node, node->names.dx, SMP_OP_SCORES_GRAD);

    smp_walk_add(
        w, &task,
        (smp_access[]){smp_reads(smp_walk_grad(w, node->out[0])),
                       smp_reads(smp_walk_at(w, node->in[0])),
                       smp_updates(smp_walk_grad(w, node->in[0]))}, /* the part of v stays */
        3);
}

static void clip_grad(smp_walk *w, const smp_node *node)
{
    smp_task task = smp_walk_grad_task(w, node, node->names.dx, SMP_OP_CLIP_GRAD);

    smp_walk_add(w, &task,
                 (smp_access[]){smp_updates(smp_walk_grad(w, node->out[0])),
                                smp_reads(smp_walk_at(w, node->out[1]))},
                 2);
    smp_walk_share(w, node->in[0], node->out[0]);
}

static void latent_grad(smp_walk *w, const smp_node *node)
{
    smp_task task = smp_walk_grad_task(w, node, node->names.dx, SMP_OP_LATENT_GRAD);

    smp_walk_add(w, &task,
                 (smp_access[]){smp_reads(smp_walk_grad(w, node->out[0])),
                                smp_writes(smp_walk_grad(w, node->in[0])),
                                smp_writes(smp_walk_grad(w, node->in[1])),
                                smp_writes(smp_walk_grad(w, node->in[2]))},
                 4);
    for (int i = 0; i < 3; i++) {
        w->graph->tensors[node->in[i]].has_grad = true;
    }
}

/* Adds the gradient of y to that of x, or writes it there, in x's type: of casts, and of what
 * joins a residual that is in fp32. */
static void convert_grad(smp_walk *w, const smp_node *node, uint8_t x, uint8_t y, bool to_fp32)
{
    smp_task task = smp_walk_grad_task(w, node, node->names.dx, SMP_OP_ACCUMULATE);
    bool has = w->graph->tensors[x].has_grad;

    task.dtype = (uint8_t)(to_fp32 ? w->low->compute : SMP_F32);
    task.dtype2 = (uint8_t)(to_fp32 ? SMP_F32 : w->low->compute);
    task.flags = has ? SMP_FLAG_ACCUMULATE : 0;
    smp_walk_add(w, &task,
                 (smp_access[]){smp_reads(smp_walk_grad(w, y)),
                                smp_adds(smp_walk_grad(w, x), has)},
                 2);
    w->graph->tensors[x].has_grad = true;
}

/* The gradient of a sum is that of both inputs. */
static void add_grad(smp_walk *w, const smp_node *node)
{
    smp_walk_share(w, node->in[0], node->out[0]);
    if (node->flags & SMP_FLAG_FP32_RESIDUAL) {
        convert_grad(w, node, node->in[1], node->out[0], false);
    } else {
        smp_walk_share(w, node->in[1], node->out[0]);
    }
}

void smp_walk_backward(smp_walk *w, const smp_node *node)
{
    switch (node->op) {
    case SMP_OP_ADD:
        add_grad(w, node);
        break;
    case SMP_OP_CAST:
        convert_grad(w, node, node->in[0], node->out[0], !node->fp32_out);
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
        plain_grad(
            w, node, SMP_OP_ATTENTION_GRAD,
            (uint8_t[]){node->in[0], node->in[1], node->in[2], node->out[0], node->out[1]}, 5);
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
        if (!smp_walk_expert_grad(w, node)
            && (!node->fp32 || w->graph->tensors[node->out[0]].has_grad)) {
            collective_grad(w, node);
        }
        break;
    }
}
