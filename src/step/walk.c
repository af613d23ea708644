/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forward and backward segments of a block, from its graph.
 *
 * Gradients of activations are scratch, except that of the residual, which is one buffer for
 * the whole backward and is added to in place: what a branch reads of it is read before the
 * branch's norm adds to it.
 */
#include "step/walk.h"

#include "base/numeric.h"

/* Gives every tensor its buffer. */
static void place(smp_walk *w)
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
            t->at = smp_whole(smp_lower_kept(w->low, w->variant, t->name, t->bytes), t->bytes);
        } else {
            t->at = smp_whole(smp_lower_scratch(w->low, t->name, SMP_KIND_WORKSPACE, t->bytes),
                              t->bytes);
        }
    }
}

smp_ref smp_walk_at(const smp_walk *w, uint8_t tensor)
{
    return w->graph->tensors[tensor].at;
}

smp_ref smp_walk_grad(smp_walk *w, uint8_t tensor)
{
    smp_tensor *t = &w->graph->tensors[tensor];

    if (!t->has_grad && t->grad.bytes == 0) {
        uint64_t bytes = t->grad_bytes ? t->grad_bytes : t->bytes;

        t->grad = smp_whole(smp_lower_scratch(w->low, t->grad_name, SMP_KIND_WORKSPACE, bytes),
                            bytes);
    }
    return t->grad;
}

void smp_walk_share(smp_walk *w, uint8_t tensor, uint8_t other)
{
    w->graph->tensors[tensor].grad = smp_walk_grad(w, other);
    w->graph->tensors[tensor].has_grad = true;
}

smp_task smp_walk_task(const smp_walk *w, const smp_node *node, const char *name, uint32_t op,
                       smp_phase phase)
{
    smp_task task = {.name = name,
                     .op = (uint16_t)op,
                     .stream = node->stream,
                     .phase = (uint8_t)phase,
                     .dtype = (uint8_t)w->low->compute,
                     .dtype2 = (uint8_t)w->low->compute,
                     .comm = SMP_NO_COMM,
                     .flags = node->flags};

    if (node->fp32) {
        task.dtype = task.dtype2 = SMP_F32;
    }
    for (int i = 0; i < SMP_MAX_DIMS; i++) {
        task.dims[i] = node->dims[i];
    }
    return task;
}

void smp_walk_add(smp_walk *w, const smp_task *task, const smp_access *access, uint32_t n)
{
    smp_build_task(&w->low->build, task, access, n);
}

void smp_walk_finish(smp_walk *w, const smp_node *node)
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

void smp_walk_collective(smp_walk *w, const smp_node *node, const char *name, smp_op op,
                         smp_phase phase, smp_ref from, smp_ref to)
{
    smp_task task = smp_walk_task(w, node, name, (uint32_t)op, phase);
    const smp_access apart[2] = {smp_reads(from), smp_writes(to)};
    const smp_access inplace[1] = {smp_updates(to)};

    task.stream = node->group == SMP_NODE_TENSOR ? SMP_STREAM_TENSOR : SMP_STREAM_EXPERT;
    task.comm = comm_of(w->low, node);
    if (op == SMP_OP_ALL_REDUCE) {
        smp_walk_add(w, &task, inplace, 1);
    } else {
        smp_walk_add(w, &task, apart, 2);
    }
}

static const smp_home *home_of(const smp_walk *w, smp_role role)
{
    return w->low->expert > 1 && smp_role_is_expert(role) ? &w->variant->experts
                                                          : &w->variant->home;
}

smp_ref smp_walk_weight(const smp_walk *w, smp_role role, uint32_t n)
{
    return smp_weight(w->low, home_of(w, role), role, n);
}

/* Whether the gradient of a parameter is added to. */
static bool adds(const smp_walk *w, smp_role role)
{
    return w->add && home_of(w, role)->share->n_write > 1;
}

uint8_t smp_walk_flag(const smp_walk *w, smp_role role)
{
    return adds(w, role) ? SMP_FLAG_ACCUMULATE : 0;
}

smp_access smp_walk_weight_grad(const smp_walk *w, smp_role role, uint32_t n)
{
    return smp_adds(smp_weight_grad(w->low, home_of(w, role), role, n), adds(w, role));
}

static void forward_qk_norm(smp_walk *w, const smp_node *node, const smp_task *task)
{
    smp_walk_add(w, task,
                 (smp_access[]){smp_updates(smp_walk_at(w, node->in[0])),
                                smp_reads(smp_walk_weight(w, SMP_ROLE_Q_NORM_W, 1)),
                                smp_reads(smp_walk_weight(w, SMP_ROLE_K_NORM_W, 1)),
                                smp_writes(smp_walk_at(w, node->out[1]))},
                 4);
    if (node->in[1] != SMP_NO_TENSOR) {
        smp_build_extend(&w->low->build, smp_reads(smp_walk_at(w, node->in[1])));
    }
    if (node->bias != SMP_ROLES) {
        smp_build_extend(&w->low->build, smp_reads(smp_walk_weight(w, SMP_ROLE_Q_NORM_B, 1)));
        smp_build_extend(&w->low->build, smp_reads(smp_walk_weight(w, SMP_ROLE_K_NORM_B, 1)));
    }
}

static void forward_node(smp_walk *w, const smp_node *node, smp_phase phase)
{
    const char *name = phase == SMP_PHASE_FORWARD ? node->names.forward : node->names.again;
    smp_task task = smp_walk_task(w, node, name, node->op, phase);
    smp_access access[6];
    uint32_t n = 0;

    switch (node->op) {
    case SMP_NODE_FORK:
        return;
    case SMP_OP_ALL_TO_ALL:
        smp_walk_collective(w, node, name, SMP_OP_ALL_TO_ALL, phase,
                            smp_walk_at(w, node->in[0]), smp_walk_at(w, node->out[0]));
        if (node->in[1] != SMP_NO_TENSOR) {
            smp_build_extend(&w->low->build, smp_reads(smp_walk_at(w, node->in[1])));
        }
        return;
    case SMP_OP_ALL_GATHER:
    case SMP_OP_REDUCE_SCATTER:
    case SMP_OP_ALL_REDUCE:
        smp_walk_collective(w, node, name, (smp_op)node->op, phase, smp_walk_at(w, node->in[0]),
                            smp_walk_at(w, node->out[0]));
        return;
    case SMP_OP_BIAS:
    case SMP_OP_ROPE:
    case SMP_OP_TEMPER:
        access[n++] = smp_updates(smp_walk_at(w, node->in[0]));
        break;
    case SMP_OP_CLIP:
    case SMP_OP_QK_RMS:
        access[n++] = smp_updates(smp_walk_at(w, node->in[0]));
        access[n++] = smp_writes(smp_walk_at(w, node->out[1]));
        break;
    case SMP_OP_QK_NORM:
        forward_qk_norm(w, node, &task);
        return;
    case SMP_OP_CAST:
        task.dtype = (uint8_t)(node->fp32_out ? SMP_F32 : w->low->compute);
        task.dtype2 = (uint8_t)(node->fp32_out ? w->low->compute : SMP_F32);
        access[n++] = smp_reads(smp_walk_at(w, node->in[0]));
        access[n++] = smp_writes(smp_walk_at(w, node->out[0]));
        smp_walk_add(w, &task, access, n);
        return;
    default:
        for (int i = 0; i < 3; i++) {
            if (node->in[i] != SMP_NO_TENSOR) {
                access[n++] = smp_reads(smp_walk_at(w, node->in[i]));
            }
        }
        if (node->weight != SMP_ROLES) {
            access[n++] = smp_reads(smp_walk_weight(w, node->weight, node->n_weight));
        }
        access[n++] = smp_writes(smp_walk_at(w, node->out[0]));
        if (node->out[1] != SMP_NO_TENSOR) {
            access[n++] = smp_writes(smp_walk_at(w, node->out[1]));
        }
        if (node->op == SMP_OP_EXPERT_ROWS) {
            access[n++] = smp_updates((smp_ref){w->low->scalars, 0, 0, 16});
        }
        break;
    }
    if (node->fp32_out) {
        task.dtype2 = SMP_F32;
    }
    if (node->bias != SMP_ROLES) {
        smp_walk_add(w, &task, access, n);
        smp_build_extend(&w->low->build,
                         smp_reads(smp_walk_weight(w, node->bias, node->n_bias)));
        smp_walk_finish(w, node);
        return;
    }
    smp_walk_add(w, &task, access, n);
    smp_walk_finish(w, node);
}

static void emit_backward(smp_walk *w)
{
    smp_graph *g = w->graph;

    for (uint32_t i = 0; i < g->n_tensor; i++) {
        g->tensors[i].has_grad = g->tensors[i].regathered = false;
        g->tensors[i].grad = (smp_ref){0};
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
        smp_walk_backward(w, &g->nodes[i]);
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
    smp_walk w = {.low = low, .variant = variant, .graph = &graph};

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
