/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tools to build the graph of a block: for block.c, block_core.c and block_moe.c only.
 */
#ifndef SMP_STEP_GRAPH_H
#define SMP_STEP_GRAPH_H

#include "step/block.h"

#include "base/numeric.h"

#include <string.h>

#define NAMES(n) (smp_names){ n, n ".again", n ".dx", n ".dw", n ".regather", n ".dx.add" }
#define TENSOR(g, n, bytes) add_tensor((g), n, "d." n, (bytes))

typedef struct sizes {
    const smp_lowering *low;
    const smp_block *block;
    uint64_t e;                 /* bytes of an element in compute precision */
    uint64_t residual;          /* ... and of one of the residual */
    uint64_t heads, kv_heads, head_dim, v_dim, ffn; /* of this rank */
    uint64_t copies;            /* ranks that hold the same key-value head */
    uint64_t rotated;
} sizes;

static inline uint8_t add_tensor(smp_graph *g, const char *name, const char *grad,
                                 uint64_t bytes)
{
    uint8_t id = (uint8_t)g->n_tensor++;

    g->tensors[id] = (smp_tensor){ .name = name,
                                   .grad_name = grad,
                                   .bytes = bytes,
                                   .storage = id,
                                   .gathered = SMP_NO_TENSOR,
                                   .producer = (uint8_t)g->n_node };
    return id;
}

/* A tensor in the place of `old`. */
static inline uint8_t add_alias(smp_graph *g, uint8_t old)
{
    uint8_t id = (uint8_t)g->n_tensor++;

    g->tensors[id] = g->tensors[old];
    return id;
}

static inline smp_node *add_node(smp_graph *g, uint32_t op, smp_names names, uint8_t in0,
                                 uint8_t in1, uint8_t out0, uint8_t out1)
{
    smp_node *node = &g->nodes[g->n_node++];

    memset(node, 0, sizeof *node);
    node->op = (uint16_t)op;
    node->names = names;
    node->in[0] = in0;
    node->in[1] = in1;
    node->in[2] = SMP_NO_TENSOR;
    node->out[0] = out0;
    node->out[1] = out1;
    node->weight = node->bias = SMP_ROLES;
    node->extra = SMP_NO_TENSOR;
    return node;
}

static inline void set_dims(smp_node *node, uint64_t a, uint64_t b, uint64_t c, uint64_t d,
                            uint64_t e, uint64_t f)
{
    const uint64_t dims[SMP_MAX_DIMS] = { a, b, c, d, e, f };

    memcpy(node->dims, dims, sizeof dims);
}

static inline bool block_has(const smp_block *block, smp_role role)
{
    for (uint32_t i = 0; i < block->n_param; i++) {
        if (block->params[i].role == role) {
            return true;
        }
    }
    return false;
}

/* A norm of the first `width` elements of each row; what is behind them is copied. */
static inline uint8_t add_part_norm(smp_graph *g, const sizes *s, smp_names names, uint8_t x,
                                    uint8_t y, smp_role weight, uint64_t width, uint64_t tail)
{
    smp_node *node = add_node(g, SMP_OP_NORM, names, x, SMP_NO_TENSOR, y, SMP_NO_TENSOR);

    node->weight = weight;
    node->n_weight = 1;
    set_dims(node, s->low->rows, width, (uint64_t)s->block->norm, tail, 0, 0);
    return y;
}

/* A norm of a tensor like the residual, with its bias where it has one. */
static inline uint8_t add_norm(smp_graph *g, const sizes *s, smp_names names, const char *name,
                               const char *grad, uint8_t x, smp_role weight)
{
    uint64_t elems = smp_mul(s->low->rows, s->low->hidden);
    uint8_t y = add_tensor(g, name, grad, smp_mul(elems, s->e));

    add_part_norm(g, s, names, x, y, weight, s->low->hidden, 0);
    if (block_has(s->block, (smp_role)(weight + 1))) {
        g->nodes[g->n_node - 1].bias = (smp_role)(weight + 1);
        g->nodes[g->n_node - 1].n_bias = 1;
    }
    return y;
}

/* The input of a column parallel product: every rank needs all tokens. */
static inline uint8_t add_spread(smp_graph *g, const sizes *s, smp_names names, uint8_t x,
                                 const char *name, const char *grad, uint64_t width)
{
    uint64_t elems = smp_mul(s->low->tokens, width);
    uint8_t y;
    smp_node *node;

    if (s->low->tensor == 1) {
        return x;
    }
    if (!s->low->sequence) {
        y = add_alias(g, x);
        g->tensors[y].grad_name = grad;
        node = add_node(g, SMP_NODE_FORK, names, x, SMP_NO_TENSOR, y, SMP_NO_TENSOR);
    } else {
        y = add_tensor(g, name, grad, smp_mul(elems, s->e));
        g->tensors[y].gathered = x;
        node = add_node(g, SMP_OP_ALL_GATHER, names, x, SMP_NO_TENSOR, y, SMP_NO_TENSOR);
    }
    set_dims(node, elems, 0, 0, 0, 0, 0);
    return y;
}

/* The same product on `rows` tokens; `row` as in the operation's dims. */
static inline uint8_t add_product(smp_graph *g, smp_names names, uint8_t x, uint8_t y,
                                  smp_role weight, uint8_t n, const uint64_t mnk[3],
                                  uint64_t row)
{
    smp_node *node = add_node(g, SMP_OP_MATMUL, names, x, SMP_NO_TENSOR, y, SMP_NO_TENSOR);

    node->weight = weight;
    node->n_weight = n;
    set_dims(node, mnk[0], mnk[1], mnk[2], row, 0, 0);
    return y;
}

static inline uint8_t add_matmul(smp_graph *g, const sizes *s, smp_names names, uint8_t x,
                                 uint8_t y, smp_role weight, uint8_t n, uint64_t out,
                                 uint64_t in)
{
    return add_product(g, names, x, y, weight, n, (uint64_t[]){ s->low->tokens, out, in }, 0);
}

static inline void set_bias(smp_graph *g, const sizes *s, smp_role bias, uint8_t n)
{
    if (block_has(s->block, bias)) {
        g->nodes[g->n_node - 1].bias = bias;
        g->nodes[g->n_node - 1].n_bias = n;
    }
}

/* A bias after a reduction, in place. */
static inline uint8_t add_bias(smp_graph *g, const sizes *s, smp_names names, uint8_t x,
                               smp_role bias)
{
    uint8_t y;
    smp_node *node;

    if (!block_has(s->block, bias)) {
        return x;
    }
    y = add_alias(g, x);
    node = add_node(g, SMP_OP_BIAS, names, x, SMP_NO_TENSOR, y, SMP_NO_TENSOR);
    node->bias = bias;
    node->n_bias = 1;
    set_dims(node, s->low->rows, s->low->hidden, 0, 0, 0, 0);
    return y;
}

/* The sum over the tensor group of what each of its ranks has a part of. */
static inline uint8_t add_sum(smp_graph *g, const sizes *s, smp_names names, uint8_t x,
                              const char *name, const char *grad)
{
    uint64_t elems = smp_mul(s->low->tokens, s->low->hidden);
    uint8_t y;
    smp_node *node;

    if (s->low->sequence) {
        y = add_tensor(g, name, grad, smp_mul(smp_mul(s->low->rows, s->low->hidden), s->e));
        node = add_node(g, SMP_OP_REDUCE_SCATTER, names, x, SMP_NO_TENSOR, y, SMP_NO_TENSOR);
    } else {
        y = add_alias(g, x);
        node = add_node(g, SMP_OP_ALL_REDUCE, names, x, SMP_NO_TENSOR, y, SMP_NO_TENSOR);
    }
    set_dims(node, elems, 0, 0, 0, 0, 0);
    return y;
}

static inline uint8_t add_residual(smp_graph *g, const sizes *s, smp_names names, uint8_t a,
                                   uint8_t b, uint8_t y)
{
    smp_node *node = add_node(g, SMP_OP_ADD, names, a, b, y, SMP_NO_TENSOR);

    set_dims(node, smp_mul(s->low->rows, s->low->hidden), 0, 0, 0, 0, 0);
    return y;
}

/* block_core.c: from q, k, v (`kv`: k and v where they are tensors of their own) to what
 * attention gives; dropout of a tensor at one of the sites. */
uint8_t smp_graph_add_core(smp_graph *g, const sizes *s, uint8_t qkv, const uint8_t kv[2]);
uint8_t smp_graph_add_dropout(smp_graph *g, const sizes *s, smp_names names, uint8_t x,
                              uint8_t y, uint8_t mask, uint64_t elems, uint64_t site);
/* block_moe.c: experts in place of the MLP, from the normed input to the summed output. */
uint8_t smp_graph_add_moe(smp_graph *g, const sizes *s, uint8_t x);
/* Marks what the gradients of its operations read; false: the operation is not one of its. */
bool smp_graph_moe_needs(const smp_node *node, uint8_t need[3]);

#endif
