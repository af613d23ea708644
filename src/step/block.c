/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The graph of a transformer block and what checkpointing keeps of it.
 *
 * Without tensor parallelism there are no collectives; with it, column parallel products
 * stand behind a FORK (or, under sequence parallelism, an all-gather) and row parallel ones
 * before an all-reduce (a reduce-scatter) [Shoeybi et al. 2019; Korthikanti et al. 2022].
 */
#include "step/graph.h"

#include "base/numeric.h"

#include <string.h>

/* Of the residual's rows, or of the probabilities [batch, heads, seq, seq] of this rank. */
static uint8_t add_dropout(smp_graph *g, const sizes *s, smp_names names, uint8_t x,
                           uint8_t y, uint8_t mask, uint64_t elems, uint64_t site)
{
    const smp_block *block = s->block;
    smp_node *node = add_node(g, SMP_OP_DROPOUT, names, x, SMP_NO_TENSOR, y, mask);
    uint64_t rank = s->low->tensor_rank, seq = s->low->seq;

    if (site == SMP_SITE_PROBABILITIES) {
        uint64_t square = smp_mul(seq, seq), width = smp_mul(s->heads, square);

        set_dims(node, elems, smp_rate_bits(block->attention.dropout), width,
                 smp_mul(block->attention.heads, square), rank * width, site);
    } else {
        uint64_t stride = smp_mul(seq, s->low->hidden);

        set_dims(node, elems, smp_rate_bits(block->residual_dropout), stride, stride,
                 s->low->sequence ? rank * elems : 0, site);
    }
    return y;
}

static void set_attention_dims(smp_node *node, const sizes *s)
{
    set_dims(node, s->low->batch, s->low->seq, s->heads, s->kv_heads, s->head_dim,
             s->block->attention.window);
}

/* Scores, softmax, dropout and values as matrices in memory. */
static uint8_t add_naive(smp_graph *g, const sizes *s, uint8_t qkv, uint8_t y)
{
    uint64_t rows = smp_mul(smp_mul(s->low->batch, s->low->seq), s->heads);
    uint64_t elems = smp_mul(rows, s->low->seq);
    uint32_t first = g->n_node;
    uint8_t scores = TENSOR(g, "attention.scores", elems * s->e), p;

    set_attention_dims(add_node(g, SMP_OP_SCORES, NAMES("attention.scores"), qkv,
                                SMP_NO_TENSOR, scores, SMP_NO_TENSOR),
                       s);
    p = TENSOR(g, "attention.probabilities", elems * s->e);
    set_dims(add_node(g, SMP_OP_SOFTMAX, NAMES("attention.softmax"), scores, SMP_NO_TENSOR,
                      p, SMP_NO_TENSOR),
             rows, s->low->seq, s->block->attention.window, 0, 0, 0);
    if (s->block->attention.dropout > 0) {
        uint8_t dropped = TENSOR(g, "attention.dropped", elems * s->e);
        uint8_t mask = TENSOR(g, "attention.mask", elems);

        p = add_dropout(g, s, NAMES("attention.dropout"), p, dropped, mask, elems,
                        SMP_SITE_PROBABILITIES);
    }
    for (uint32_t i = first; i < g->n_node; i++) {
        g->nodes[i].core = true;
    }
    g->tensors[y].producer = (uint8_t)g->n_node;
    set_attention_dims(add_node(g, SMP_OP_VALUES, NAMES("attention.values"), p, qkv, y,
                                SMP_NO_TENSOR),
                       s);
    return y;
}

static uint8_t add_core(smp_graph *g, const sizes *s, uint8_t qkv)
{
    uint64_t elems = smp_mul(s->low->tokens, s->heads * s->head_dim);
    uint8_t y = TENSOR(g, "attention.y", elems * s->e), lse;
    smp_node *node;

    if (s->low->set->attention == SMP_ATTENTION_NAIVE) {
        return add_naive(g, s, qkv, y);
    }
    lse = TENSOR(g, "attention.lse", smp_mul(s->low->tokens, s->heads * 4));
    node = add_node(g, SMP_OP_ATTENTION, NAMES("attention.core"), qkv, SMP_NO_TENSOR, y, lse);
    set_attention_dims(node, s);
    node->flags = SMP_FLAG_CAUSAL;
    node->core = true;
    return y;
}

/* From the normed input to the summed output, before dropout. */
static uint8_t add_attention(smp_graph *g, const sizes *s, uint8_t x)
{
    uint64_t width = (s->heads + 2 * s->kv_heads) * s->head_dim, tokens = s->low->tokens;
    uint8_t qkv, y;
    smp_node *node;

    x = add_spread(g, s, NAMES("attention.spread"), x, "attention.in", "d.attention.in");
    qkv = TENSOR(g, "attention.qkv", smp_mul(tokens, width * s->e));
    add_matmul(g, s, NAMES("attention.qkv"), x, qkv, SMP_ROLE_Q_W, 3, width, s->low->hidden);
    set_bias(g, s, SMP_ROLE_Q_B, 3);
    if (s->block->attention.qk_norm) {
        uint64_t heads = (s->heads + s->kv_heads) * s->head_dim;
        uint8_t raw = TENSOR(g, "attention.raw", smp_mul(tokens, heads * s->e));
        uint8_t normed = add_alias(g, qkv);

        /* What it keeps was in qkv, and goes with it. */
        g->tensors[raw].producer = g->tensors[qkv].producer;
        node = add_node(g, SMP_OP_QK_NORM, NAMES("attention.qk_norm"), qkv, SMP_NO_TENSOR,
                        normed, raw);
        node->weight = SMP_ROLE_Q_NORM_W;
        set_dims(node, tokens, s->heads, s->kv_heads, s->head_dim, 0, 0);
        qkv = normed;
    }
    if (s->rotated > 0) {
        uint8_t turned = add_alias(g, qkv);

        node = add_node(g, SMP_OP_ROPE, NAMES("attention.rope"), qkv, SMP_NO_TENSOR, turned,
                        SMP_NO_TENSOR);
        set_dims(node, tokens, s->heads, s->kv_heads, s->head_dim, s->rotated, s->low->seq);
        qkv = turned;
    }
    y = add_core(g, s, qkv);
    x = TENSOR(g, "attention.o", smp_mul(smp_mul(tokens, s->low->hidden), s->e));
    add_matmul(g, s, NAMES("attention.o"), y, x, SMP_ROLE_O_W, 1, s->low->hidden,
               s->heads * s->head_dim);
    return add_reduction(g, s,
                         (smp_names[]){ NAMES("attention.sum"), NAMES("attention.bias") }, x,
                         "attention.out", "d.attention.out", SMP_ROLE_O_B);
}

static uint8_t add_mlp(smp_graph *g, const sizes *s, uint8_t x)
{
    const smp_mlp *mlp = &s->block->mlp;
    uint64_t elems = smp_mul(s->low->tokens, s->ffn), wide = mlp->gated ? 2 : 1;
    uint8_t up, y;
    smp_node *node;

    x = add_spread(g, s, NAMES("mlp.spread"), x, "mlp.in", "d.mlp.in");
    up = TENSOR(g, "mlp.up", smp_mul(elems, wide * s->e));
    add_matmul(g, s, NAMES("mlp.up"), x, up, mlp->gated ? SMP_ROLE_GATE_W : SMP_ROLE_UP_W,
               (uint8_t)wide, s->ffn * wide, s->low->hidden);
    set_bias(g, s, mlp->gated ? SMP_ROLE_GATE_B : SMP_ROLE_UP_B, (uint8_t)wide);
    y = TENSOR(g, "mlp.product", smp_mul(elems, s->e));
    node = add_node(g, mlp->gated ? SMP_OP_GATED : SMP_OP_ACTIVATION, NAMES("mlp.act"), up,
                    SMP_NO_TENSOR, y, SMP_NO_TENSOR);
    if (mlp->gated) {
        set_dims(node, s->low->tokens, s->ffn, (uint64_t)mlp->activation, 0, 0, 0);
    } else {
        set_dims(node, elems, (uint64_t)mlp->activation, 0, 0, 0, 0);
    }
    x = TENSOR(g, "mlp.down", smp_mul(smp_mul(s->low->tokens, s->low->hidden), s->e));
    add_matmul(g, s, NAMES("mlp.down"), y, x, SMP_ROLE_DOWN_W, 1, s->low->hidden, s->ffn);
    return add_reduction(g, s, (smp_names[]){ NAMES("mlp.sum"), NAMES("mlp.bias") }, x,
                         "mlp.out", "d.mlp.out", SMP_ROLE_DOWN_B);
}

/* Dropout of a branch before it joins the residual. */
static uint8_t add_branch_dropout(smp_graph *g, const sizes *s, bool attention, uint8_t x)
{
    uint64_t elems = smp_mul(s->low->rows, s->low->hidden);
    uint8_t y, mask;

    if (s->block->residual_dropout <= 0) {
        return x;
    }
    if (attention) {
        y = TENSOR(g, "attention.thinned", smp_mul(elems, s->e));
        mask = TENSOR(g, "attention.out_mask", elems);
        return add_dropout(g, s, NAMES("attention.out_dropout"), x, y, mask, elems,
                           SMP_SITE_ATTENTION);
    }
    y = TENSOR(g, "mlp.thinned", smp_mul(elems, s->e));
    mask = TENSOR(g, "mlp.mask", elems);
    return add_dropout(g, s, NAMES("mlp.dropout"), x, y, mask, elems, SMP_SITE_MLP);
}

static void measure(const smp_lowering *low, const smp_block *block, sizes *s)
{
    s->low = low;
    s->block = block;
    s->e = smp_dtype_bytes(low->compute);
    s->heads = block->attention.heads / low->tensor;
    s->kv_heads = smp_local_kv_heads(block->attention.kv_heads, low->tensor);
    s->head_dim = block->attention.head_dim;
    s->ffn = block->mlp.ffn / low->tensor;
    s->rotated = 0;
    if (low->model->position == SMP_POSITION_ROPE) {
        s->rotated = (uint64_t)((double)s->head_dim * low->model->rotary_frac);
    }
}

static void add_nodes(smp_graph *g, const sizes *s)
{
    uint64_t bytes = smp_mul(smp_mul(s->low->rows, s->low->hidden), s->e);
    uint8_t x = TENSOR(g, "x", bytes), n1, n2 = SMP_NO_TENSOR, mid, out, branch;

    g->input = x;
    g->tensors[x].producer = SMP_NO_TENSOR;
    n1 = TENSOR(g, "norm1", bytes);
    add_norm(g, s, NAMES("norm1"), x, n1, SMP_ROLE_NORM1_W);
    if (s->block->parallel_residual) {
        /* Both norms first: backward adds their gradients to that of the residual, which
         * both branches must have read by then. */
        n2 = TENSOR(g, "norm2", bytes);
        add_norm(g, s, NAMES("norm2"), x, n2, SMP_ROLE_NORM2_W);
    }
    branch = add_branch_dropout(g, s, true, add_attention(g, s, n1));
    mid = TENSOR(g, "mid", bytes);
    add_residual(g, s, NAMES("attention.add"), x, branch, mid);
    if (!s->block->parallel_residual) {
        n2 = TENSOR(g, "norm2", bytes);
        add_norm(g, s, NAMES("norm2"), mid, n2, SMP_ROLE_NORM2_W);
    }
    branch = s->block->moe.experts > 0 ? smp_graph_add_moe(g, s, n2) : add_mlp(g, s, n2);
    branch = add_branch_dropout(g, s, false, branch);
    out = TENSOR(g, "out", bytes);
    add_residual(g, s, NAMES("mlp.add"), mid, branch, out);
    g->output = out;
}

/* Marks what the gradient of a node reads, besides gradients and parameters. */
static void mark_needs(smp_graph *g, const smp_node *node)
{
    uint8_t need[3] = { SMP_NO_TENSOR, SMP_NO_TENSOR, SMP_NO_TENSOR };

    switch (node->op) {
    case SMP_OP_NORM:
    case SMP_OP_MATMUL:
    case SMP_OP_SCORES:
    case SMP_OP_ACTIVATION:
    case SMP_OP_GATED:
        need[0] = node->in[0];
        break;
    case SMP_OP_VALUES:
        need[0] = node->in[0];
        need[1] = node->in[1];
        break;
    case SMP_OP_ATTENTION:
        need[0] = node->in[0];
        need[1] = node->out[0];
        need[2] = node->out[1];
        break;
    case SMP_OP_SOFTMAX:
        need[0] = node->out[0];
        break;
    case SMP_OP_QK_NORM:
    case SMP_OP_DROPOUT:
        need[0] = node->out[1];
        break;
    default:
        (void)smp_graph_moe_needs(node, need);
        break;
    }
    for (int i = 0; i < 3; i++) {
        if (need[i] != SMP_NO_TENSOR) {
            const smp_tensor *t = &g->tensors[need[i]];
            /* A gathered input is gathered again beside its use. */
            uint8_t id = t->gathered == SMP_NO_TENSOR ? need[i] : t->gathered;

            g->tensors[g->tensors[id].storage].needed = true;
        }
    }
}

/* Products that torchtitan's policy counts: not those of the router. */
static bool is_counted(const smp_node *node)
{
    return node->op == SMP_OP_MATMUL && node->weight != SMP_ROLE_ROUTER_W
           && node->weight != SMP_ROLE_SHARED_ROUTER_W;
}

/* Which nodes' outputs the mode does not keep.  selective:op follows torchtitan's policy:
 * kept are attention, reduce-scatter, all-to-all, the choice of experts and every other
 * matmul, the first included. */
static void mark_dropped(smp_graph *g, smp_checkpointing mode)
{
    uint32_t n_matmul = 0;

    for (uint32_t i = 0; i < g->n_node; i++) {
        smp_node *node = &g->nodes[i];
        bool keep = true;

        if (mode == SMP_CHECKPOINTING_FULL) {
            keep = false;
        } else if (mode == SMP_CHECKPOINTING_SELECTIVE_ATTENTION) {
            keep = !node->core;
        } else if (mode == SMP_CHECKPOINTING_SELECTIVE_OP) {
            keep = node->op == SMP_OP_ATTENTION || node->op == SMP_OP_REDUCE_SCATTER
                   || node->op == SMP_OP_ALL_TO_ALL || node->op == SMP_OP_ROUTE
                   || (is_counted(node) && n_matmul % 2 == 0);
            n_matmul += is_counted(node);
        }
        node->dropped = !keep || (node->op == SMP_OP_ALL_GATHER && !node->words);
    }
}

bool smp_graph_keeps(const smp_graph *g, uint32_t tensor)
{
    const smp_tensor *t = &g->tensors[g->tensors[tensor].storage];

    return t->needed && t->producer != SMP_NO_TENSOR && !g->nodes[t->producer].dropped;
}

/* The closure of dropped tensors that backward needs.  Inputs of a node that is computed
 * again are needed too, and either kept or computed again themselves. */
static void mark_again(smp_graph *g)
{
    for (uint32_t i = g->n_node; i-- > 0;) {
        const smp_node *node = &g->nodes[i];

        for (int k = 0; k < 2; k++) {
            if (node->out[k] != SMP_NO_TENSOR) {
                const smp_tensor *t = &g->tensors[g->tensors[node->out[k]].storage];

                g->again[i] |= t->needed && !smp_graph_keeps(g, node->out[k]);
            }
        }
        const uint8_t in[3] = { node->in[0], node->in[1],
                                node->op == SMP_OP_ROUTE ? (uint8_t)SMP_NO_TENSOR
                                                         : node->extra };
        for (int k = 0; k < 3 && g->again[i]; k++) {
            if (in[k] != SMP_NO_TENSOR) {
                g->tensors[g->tensors[in[k]].storage].needed = true;
            }
        }
    }
}

void smp_graph_build(const smp_lowering *low, const smp_block *block, smp_checkpointing mode,
                     smp_graph *graph)
{
    sizes s;

    memset(graph, 0, sizeof *graph);
    measure(low, block, &s);
    add_nodes(graph, &s);
    for (uint32_t i = 0; i < graph->n_node; i++) {
        mark_needs(graph, &graph->nodes[i]);
    }
    mark_dropped(graph, mode);
    mark_again(graph);
}
