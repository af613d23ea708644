/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The graph of a block: the core of attention, fused or as matrices in memory, and dropout.
 */
#include "step/graph.h"

/* Of the residual's rows, or of the probabilities [batch, heads, seq, seq] of this rank. */
uint8_t smp_graph_add_dropout(smp_graph *g, const sizes *s, smp_names names, uint8_t x,
                              uint8_t y, uint8_t mask, uint64_t elems, uint64_t site)
{
    const smp_block *block = s->block;
    smp_node *node = add_node(g, SMP_OP_DROPOUT, names, x, SMP_NO_TENSOR, y, mask);
    uint64_t rank = s->low->tensor_rank, seq = s->low->seq;

    if (site == SMP_SITE_PROBABILITIES) {
        double rate = smp_attention_dropout(s->low->set, &block->attention);
        uint64_t square = smp_mul(seq, seq), width = smp_mul(s->heads, square);

        set_dims(node, elems, smp_rate_bits(rate), width,
                 smp_mul(block->attention.heads, square), rank * width, site);
    } else {
        uint64_t stride = smp_mul(seq, s->low->hidden);

        set_dims(node, elems, smp_rate_bits(block->residual_dropout), stride, stride,
                 s->low->sequence ? rank * elems : 0, site);
    }
    return y;
}

static uint8_t window_flag(const sizes *s)
{
    return s->block->attention.chunked ? SMP_FLAG_CHUNKED : 0;
}

static void set_attention_dims(smp_node *node, const sizes *s)
{
    set_dims(node, s->low->batch, s->low->seq, s->heads, s->kv_heads, s->head_dim,
             s->block->attention.window);
    node->dims[6] = s->v_dim == s->head_dim ? 0 : s->v_dim;
}

static void set_sinks(smp_node *node, const sizes *s)
{
    if (s->block->attention.sinks) {
        node->bias = SMP_ROLE_SINKS;
        node->n_bias = 1;
    }
}

/* A tensor in another type: to fp32, or from it. */
static uint8_t add_cast(smp_graph *g, smp_names names, uint8_t x, uint8_t y, uint64_t elems,
                        bool to_fp32)
{
    smp_node *node = add_node(g, SMP_OP_CAST, names, x, SMP_NO_TENSOR, y, SMP_NO_TENSOR);

    node->fp32_out = to_fp32;
    set_dims(node, elems, 0, 0, 0, 0, 0);
    return y;
}

static uint8_t add_probabilities(smp_graph *g, const sizes *s, uint8_t qkv, uint64_t e)
{
    uint64_t rows = smp_mul(smp_mul(s->low->batch, s->low->seq), s->heads);
    uint64_t elems = smp_mul(rows, s->low->seq);
    uint8_t scaled = s->low->set->qk_layer_scaling ? SMP_FLAG_LAYER_SCALED : 0, p;
    uint8_t scores = TENSOR(g, "attention.scores", smp_mul(elems, e));
    smp_node *node = add_node(g, SMP_OP_SCORES, NAMES("attention.scores"), qkv, SMP_NO_TENSOR,
                              scores, SMP_NO_TENSOR);

    set_attention_dims(node, s);
    node->flags = scaled;
    p = TENSOR(g, "attention.probabilities", smp_mul(elems, e));
    node = add_node(g, SMP_OP_SOFTMAX, NAMES("attention.softmax"), scores, SMP_NO_TENSOR, p,
                    SMP_NO_TENSOR);
    set_dims(node, rows, s->low->seq, s->block->attention.window, 0, 0, 0);
    set_sinks(node, s);
    node->flags = window_flag(s) | scaled;
    node->needs_input = s->block->attention.softcap > 0;
    if (smp_attention_dropout(s->low->set, &s->block->attention) > 0) {
        uint8_t dropped = TENSOR(g, "attention.dropped", smp_mul(elems, e));
        uint8_t mask = TENSOR(g, "attention.mask", elems);

        p = smp_graph_add_dropout(g, s, NAMES("attention.dropout"), p, dropped, mask, elems,
                                  SMP_SITE_PROBABILITIES);
    }
    return p;
}

/* Scores, softmax, dropout and values as matrices in memory; with attention_in_fp32 all of
 * them in fp32, between a cast of q, k, v and one of the output. */
static uint8_t add_naive(smp_graph *g, const sizes *s, uint8_t qkv, uint8_t y)
{
    bool wide = s->low->set->attention_in_fp32;
    uint64_t e = wide ? 4 : s->e, width = s->heads * s->v_dim;
    uint64_t in = s->heads * s->head_dim + s->kv_heads * (s->head_dim + s->v_dim);
    uint64_t elems = smp_mul(s->low->tokens, width), all = smp_mul(s->low->tokens, in);
    uint32_t first = g->n_node, core;
    uint8_t p, out = y;

    if (wide) {
        qkv = add_cast(g, NAMES("attention.widen"), qkv,
                       TENSOR(g, "attention.qkv.fp32", smp_mul(all, 4)), all, true);
    }
    core = g->n_node;
    p = add_probabilities(g, s, qkv, e);
    for (uint32_t i = first; i < g->n_node; i++) {
        g->nodes[i].core = true;
    }
    if (wide) {
        out = TENSOR(g, "attention.y.fp32", smp_mul(elems, 4));
    }
    g->tensors[out].producer = (uint8_t)g->n_node;
    set_attention_dims(add_node(g, SMP_OP_VALUES, NAMES("attention.values"), p, qkv, out,
                                SMP_NO_TENSOR),
                       s);
    for (uint32_t i = core; i < g->n_node && wide; i++) {
        g->nodes[i].fp32 = true;
    }
    if (wide) {
        g->tensors[y].producer = (uint8_t)g->n_node;
        add_cast(g, NAMES("attention.narrow"), out, y, elems, false);
    }
    return y;
}

uint8_t smp_graph_add_core(smp_graph *g, const sizes *s, uint8_t qkv, const uint8_t kv[2])
{
    uint64_t elems = smp_mul(s->low->tokens, s->heads * s->v_dim);
    uint8_t y = TENSOR(g, "attention.y", elems * s->e), lse;
    smp_node *node;

    if (s->low->set->attention == SMP_ATTENTION_NAIVE) {
        return add_naive(g, s, qkv, y);
    }
    lse = TENSOR(g, "attention.lse", smp_mul(s->low->tokens, s->heads * 4));
    node = add_node(g, SMP_OP_ATTENTION, NAMES("attention.core"), qkv, SMP_NO_TENSOR, y, lse);
    node->in[1] = kv[0];
    node->in[2] = kv[1];
    set_attention_dims(node, s);
    set_sinks(node, s);
    node->flags = SMP_FLAG_CAUSAL | window_flag(s);
    node->core = true;
    return y;
}
