/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixture of experts in the graph of a block.
 *
 * The router chooses top_k experts for each token; rows (a token at one of its experts) are
 * brought to the rank that has the expert, multiplied there with its weights, brought back
 * and summed.  Two dispatchers [Megatron-LM, megatron/core/transformer/moe/
 * token_dispatcher.py]: all-to-all sends each row once; all-gather sends every token to every
 * expert rank, which takes the rows of its experts, and sums are scattered back.
 *
 * Under sequence parallelism a tensor rank routes its part of the tokens, and the rows that
 * arrive are gathered over the tensor group; without it all tensor ranks route all tokens,
 * alike, and the sum over the tensor group is taken once, of the output.
 *
 * Programs are static and rows are not: buffers have room for a bound of rows, times are those
 * of the expected rows (smp_expert_sizes).
 */
#include "step/graph.h"

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ceil(n x factor) where the factor is a decimal number: products within 1e-9 of an integer
 * are that integer. */
static uint64_t scaled(uint64_t n, double factor)
{
    double product = (double)n * factor - 1e-9 * (double)n;
    uint64_t whole = product > 0 ? (uint64_t)product : 0;

    return (double)whole < product ? whole + 1 : whole;
}

/* Rows that one rank's experts receive, as a bound and as expected; spec 6.6. */
static void measure_received(const smp_lowering *low, const smp_moe *moe, smp_expert_sizes *z)
{
    const smp_settings *set = low->set;
    uint64_t mean = smp_mul(z->tokens, moe->top_k);
    uint64_t worst = smp_mul(smp_mul(z->tokens, low->expert),
                             smaller(moe->top_k, z->experts));
    uint64_t full = smp_mul(smp_mul(z->experts, low->expert), z->capacity);

    if (low->expert == 1) {
        z->bound = z->expected = z->sent;
        return;
    }
    if (set->moe_load_balancing == SMP_BALANCING_BALANCED) {
        /* in turn: an expert has at most ceil(tokens k / experts) rows of each rank */
        uint64_t each = smp_ceil_div(mean, moe->experts);

        full = smp_mul(smp_mul(z->experts, low->expert),
                       z->capacity ? smaller(each, z->capacity) : each);
        z->bound = set->capacity_pad ? smp_mul(smp_mul(z->experts, low->expert), z->capacity)
                                     : smaller(worst, full);
        z->expected = set->capacity_pad ? z->bound : smaller(mean, z->bound);
        return;
    }
    z->expected = smaller(scaled(mean, smp_imbalance_mean(&set->imbalance)), worst);
    if (z->capacity == 0) {
        z->bound = smaller(scaled(mean, set->moe_rows_factor), worst);
        z->bound = z->bound > z->expected ? z->bound : z->expected;
    } else if (set->capacity_pad) {
        z->bound = z->expected = full;
    } else {
        z->bound = smaller(worst, full);
        z->expected = smaller(z->expected, z->bound);
    }
}

static void measure(const smp_lowering *low, const smp_moe *moe, smp_expert_sizes *z)
{
    const smp_settings *set = low->set;
    uint64_t rows;

    *z = (smp_expert_sizes){ .tokens = low->rows };
    z->experts = moe->experts / low->expert;
    z->ffn = moe->ffn / low->tensor;
    z->shared_ffn = moe->shared_ffn / low->tensor;
    rows = smp_mul(z->tokens, moe->top_k);
    if (set->smp_moe && set->capacity_factor > 0) {
        /* ceil(T k / E x factor) in one rounding; no expert has more than all tokens */
        uint64_t share = scaled(rows, set->capacity_factor);

        z->capacity = smaller(smp_ceil_div(share > 0 ? share : 1, moe->experts), z->tokens);
    }
    z->sent = rows;
    if (z->capacity > 0) {
        uint64_t full = smp_mul(z->capacity, moe->experts);

        z->sent = set->capacity_pad ? full : smaller(rows, full);
    }
    measure_received(low, moe, z);
}

/* ---- nodes ---- */

typedef struct experts {
    smp_graph *g;
    const sizes *s;
    const smp_lowering *low;
    const smp_moe *moe;
    smp_expert_sizes z;
    uint64_t parts;   /* ranks whose rows meet at an expert rank */
    bool exchange;    /* all-to-all; else all-gather, where there are several expert ranks */
    bool many;        /* several expert ranks */
    uint8_t choice, counts;
    uint8_t layout;   /* of the rows at this rank's experts */
    bool beside;      /* shared experts run beside the exchange */
} experts;

static smp_node *last(experts *x)
{
    return &x->g->nodes[x->g->n_node - 1];
}

static uint64_t row_bytes(const experts *x, uint64_t rows)
{
    return smp_mul(smp_mul(rows, x->low->hidden), x->s->e);
}

static smp_node *add_collective(experts *x, smp_op op, smp_names names, smp_node_group group,
                                uint8_t in, uint8_t out, uint64_t elems, bool words)
{
    smp_node *node = add_node(x->g, (uint32_t)op, names, in, SMP_NO_TENSOR, out,
                              SMP_NO_TENSOR);

    node->group = (uint8_t)group;
    node->fp32 = words;
    set_dims(node, elems, 0, 0, 0, 0, 0);
    return node;
}

/* All-to-all of equal parts: every rank then has a part of each rank's tokens. */
static uint8_t add_shuffle(experts *x, smp_names names, const char *name, const char *grad,
                           uint8_t in)
{
    uint64_t elems = smp_mul(x->z.tokens, x->low->hidden);
    uint8_t out;
    smp_node *node;

    if (!x->low->set->global_token_shuffle || !x->many || !x->low->set->smp_moe) {
        return in;
    }
    out = add_tensor(x->g, name, grad, row_bytes(x, x->z.tokens));
    node = add_collective(x, SMP_OP_ALL_TO_ALL, names, SMP_NODE_EXPERT, in, out, elems, false);
    set_dims(node, elems, elems, elems, 0, 0, 0);
    return out;
}

/* How the router works, in one number: see smp_route. */
static uint64_t route_mode(const experts *x)
{
    const smp_settings *set = x->low->set;
    smp_balancing balancing = set->smp_moe ? set->moe_load_balancing : SMP_BALANCING_NONE;
    float scale = (float)x->moe->scale;
    uint32_t bits;

    memcpy(&bits, &scale, sizeof bits);
    return (uint64_t)balancing | (x->moe->sigmoid_scores ? SMP_ROUTE_SIGMOID : 0U)
           | (x->moe->norm_topk ? SMP_ROUTE_NORMALISE : 0U)
           | (set->capacity_policy == SMP_CAPACITY_POSITION ? SMP_ROUTE_POSITION : 0U)
           | (set->capacity_pad ? SMP_ROUTE_PAD : 0U) | (uint64_t)bits << 32;
}

/* Sums for the balancing loss, over all tokens that it counts. */
static void add_statistics(experts *x, smp_node *route, uint8_t logits)
{
    const smp_lowering *low = x->low;
    uint64_t elems = smp_mul(2, x->moe->experts);
    uint8_t sums;
    smp_node *node;

    if (!low->set->smp_moe || low->set->moe_load_balancing != SMP_BALANCING_AUX_LOSS) {
        return;
    }
    sums = TENSOR(x->g, "moe.statistics", smp_mul(elems, 4));
    node = add_node(x->g, SMP_OP_ROUTE_STATISTICS, NAMES("moe.statistics"), logits, x->choice,
                    sums, SMP_NO_TENSOR);
    set_dims(node, x->z.tokens, x->moe->experts, x->moe->top_k, 0, 0, 0);
    if (low->sequence) {
        uint8_t sum = add_alias(x->g, sums);

        add_collective(x, SMP_OP_ALL_REDUCE, NAMES("moe.statistics.tensor"), SMP_NODE_TENSOR,
                       sums, sum, elems, true);
        sums = sum;
    }
    for (int i = 0; i < 2; i++) {
        bool shard = i == 0;
        uint8_t comm = shard ? low->shard_sum_comm : low->replica_sum_comm, sum;

        if (comm != SMP_NO_COMM) {
            sum = add_alias(x->g, sums);
            add_collective(x, SMP_OP_ALL_REDUCE,
                           shard ? NAMES("moe.statistics.shard")
                                 : NAMES("moe.statistics.replica"),
                           shard ? SMP_NODE_SHARD_SUM : SMP_NODE_REPLICA_SUM, sums, sum, elems,
                           true);
            sums = sum;
        }
    }
    route->extra = sums;
}

static void add_router(experts *x, uint8_t in)
{
    uint64_t logit_elems = smp_mul(x->z.tokens, x->moe->experts);
    uint8_t logits = TENSOR(x->g, "moe.logits", smp_mul(logit_elems, 4));
    smp_node *node;

    x->g->tensors[logits].grad_bytes = smp_mul(logit_elems, x->s->e);
    add_matmul(x->g, x->s, NAMES("moe.router"), in, logits, SMP_ROLE_ROUTER_W, 1,
               x->moe->experts, x->low->hidden);
    x->g->nodes[x->g->n_node - 1].dims[0] = x->z.tokens;
    x->g->nodes[x->g->n_node - 1].fp32_out = true;
    set_bias(x->g, x->s, SMP_ROLE_ROUTER_B, 1);
    /* weight and number of each chosen expert */
    x->choice = TENSOR(x->g, "moe.choice", smp_mul(smp_mul(x->z.tokens, x->moe->top_k), 8));
    x->g->tensors[x->choice].grad_bytes = smp_mul(smp_mul(x->z.tokens, x->moe->top_k), 4);
    x->counts = TENSOR(x->g, "moe.counts", smp_mul(x->moe->experts, 4));
    node = add_node(x->g, SMP_OP_ROUTE, NAMES("moe.route"), logits, SMP_NO_TENSOR, x->choice,
                    x->counts);
    if (block_has(x->s->block, SMP_ROLE_ROUTER_CORRECTION)) {
        node->bias = SMP_ROLE_ROUTER_CORRECTION;
        node->n_bias = 1;
    }
    set_dims(node, x->z.tokens, x->moe->experts, x->moe->top_k, route_mode(x),
             x->moe->groups | (uint64_t)x->moe->topk_groups << 32, x->z.capacity);
    add_statistics(x, node, logits);
}

/* Gathers numbers of four bytes over the expert group, then over the tensor group where its
 * ranks have different tokens. */
static uint8_t add_gather(experts *x, const smp_names names[2], const char *const text[2],
                          const char *const grad[2], uint8_t in, uint64_t elems, bool words)
{
    uint64_t e = words ? 4 : x->s->e;
    uint8_t out = in;

    if (x->many) {
        elems = smp_mul(elems, x->low->expert);
        out = add_tensor(x->g, text[0], grad[0], smp_mul(elems, e));
        x->g->tensors[out].grad_bytes = words ? smp_mul(elems, 2) : 0; /* of weights only */
        add_collective(x, SMP_OP_ALL_GATHER, names[0], SMP_NODE_EXPERT, in, out, elems, words);
        in = out;
    }
    if (x->low->sequence) {
        elems = smp_mul(elems, x->low->tensor);
        out = add_tensor(x->g, text[1], grad[1], smp_mul(elems, e));
        x->g->tensors[out].grad_bytes = words ? smp_mul(elems, 2) : 0;
        add_collective(x, SMP_OP_ALL_GATHER, names[1], SMP_NODE_TENSOR, in, out, elems, words);
    }
    return out;
}

/* From the counts of all ranks to where rows stand; says when there are more than fit. */
static void add_layout(experts *x)
{
    static const char *const text[2] = { "moe.counts.all", "moe.counts.tensor" };
    uint64_t words = smp_mul(x->parts + 2, x->moe->experts);
    uint8_t all;
    smp_node *node;

    if (x->parts == 1) {
        x->layout = x->counts;
        return;
    }
    all = add_gather(x, (smp_names[]){ NAMES("moe.counts"), NAMES("moe.counts.tensor") }, text,
                     text, x->counts, x->moe->experts, true);
    x->layout = TENSOR(x->g, "moe.layout", smp_mul(words, 4));
    node = add_node(x->g, SMP_OP_EXPERT_ROWS, NAMES("moe.layout"), all, SMP_NO_TENSOR,
                    x->layout, SMP_NO_TENSOR);
    set_dims(node, x->moe->experts, x->parts, x->z.experts, x->z.bound, 0, 0);
}

static uint8_t add_permute(experts *x, smp_op op, smp_names names, uint8_t in, uint8_t choice,
                           uint8_t plan, uint8_t out, uint64_t tokens, uint64_t bound,
                           uint64_t expected)
{
    smp_node *node = add_node(x->g, (uint32_t)op, names, in, choice, out, SMP_NO_TENSOR);

    node->in[2] = plan;
    set_dims(node, tokens, x->low->hidden, x->moe->top_k, bound, expected,
             x->moe->weighs_input);
    return out;
}

/* Rows of this rank to the ranks of their experts, or back. */
static uint8_t add_exchange(experts *x, smp_names names, uint8_t in, uint8_t out, bool back)
{
    uint64_t h = x->low->hidden, sent = smp_mul(x->z.sent, h), got = smp_mul(x->z.bound, h);
    uint64_t busiest = x->z.expected > x->z.sent ? x->z.expected : x->z.sent;
    smp_node *node = add_collective(x, SMP_OP_ALL_TO_ALL, names, SMP_NODE_EXPERT, in, out, 0,
                                    false);

    node->in[1] = x->layout;
    set_dims(node, back ? got : sent, back ? sent : got, smp_mul(busiest, h), back, 0, 0);
    if (x->low->set->moe_dispatch_kernels == SMP_DISPATCH_DEEPEP) {
        node->dims[4] = x->z.tokens;
        node->dims[5] = x->moe->top_k | (uint64_t)x->moe->topk_groups << 32;
        node->dims[6] = h;
        node->dims[7] = x->moe->groups > 0 ? x->moe->groups : 1;
    }
    return out;
}

/* Rows by source rank to rows by expert, or back; nothing to do for rows of one source, and
 * for one expert whose rows come without gaps. */
static uint8_t add_sort(experts *x, smp_names names, const char *name, const char *grad,
                        uint8_t in, uint64_t gathered, bool back)
{
    uint64_t bound = smp_mul(x->z.bound, gathered);
    uint8_t out;
    smp_node *node;

    if (x->parts == 1 || (x->z.experts == 1 && gathered == 1)) {
        return in;
    }
    out = add_tensor(x->g, name, grad, row_bytes(x, bound));
    node = add_node(x->g, SMP_OP_SORT_ROWS, names, in, x->layout, out, SMP_NO_TENSOR);
    set_dims(node, bound, smp_mul(x->z.expected, gathered), x->low->hidden, back, 0, 0);
    return out;
}

static smp_node *add_grouped(experts *x, smp_names names, uint8_t in, uint8_t out,
                             smp_role weight, uint8_t n_weight, uint64_t width, uint64_t depth,
                             uint64_t gathered)
{
    smp_node *node = add_node(x->g, SMP_OP_GROUPED_MATMUL, names, in, x->layout, out,
                              SMP_NO_TENSOR);

    node->weight = weight;
    node->n_weight = n_weight;
    node->exclusive = x->beside;
    set_dims(node, smp_mul(x->z.bound, gathered), smp_mul(x->z.expected, gathered), width,
             depth, x->z.experts, 0);
    node->dims[5] = x->low->expert;
    node->dims[6] = n_weight;
    node->dims[7] = 1;
    return node;
}

/* The experts themselves: rows in, rows out. */
static uint8_t add_experts(experts *x, uint8_t in, uint64_t gathered)
{
    uint64_t bound = smp_mul(x->z.bound, gathered), f = x->z.ffn;
    uint64_t expected = smp_mul(x->z.expected, gathered);
    uint8_t wide = x->moe->gated ? 2 : 1, up, y, out;
    smp_role first = x->moe->gated ? SMP_ROLE_EXPERT_GATE_W : SMP_ROLE_EXPERT_UP_W;
    smp_node *node;

    up = TENSOR(x->g, "experts.up", smp_mul(smp_mul(bound, f * wide), x->s->e));
    add_grouped(x, NAMES("experts.up"), in, up, first, wide, f * wide, x->low->hidden,
                gathered);
    set_bias(x->g, x->s, x->moe->gated ? SMP_ROLE_EXPERT_GATE_B : SMP_ROLE_EXPERT_UP_B, wide);
    y = TENSOR(x->g, "experts.product", smp_mul(smp_mul(bound, f), x->s->e));
    node = add_node(x->g, x->moe->gated ? SMP_OP_GATED : SMP_OP_ACTIVATION,
                    NAMES("experts.act"), up, SMP_NO_TENSOR, y, SMP_NO_TENSOR);
    node->exclusive = x->beside;
    if (x->moe->gated) {
        set_dims(node, bound, f, (uint64_t)x->moe->activation, expected, 0, 0);
    } else {
        set_dims(node, smp_mul(bound, f), (uint64_t)x->moe->activation, smp_mul(expected, f),
                 0, 0, 0);
    }
    out = TENSOR(x->g, "experts.down", row_bytes(x, bound));
    add_grouped(x, NAMES("experts.down"), y, out, SMP_ROLE_EXPERT_DOWN_W, 1, x->low->hidden, f,
                gathered);
    set_bias(x->g, x->s, SMP_ROLE_EXPERT_DOWN_B, 1);
    last(x)->dims[7] = x->low->tensor; /* their sums are what is summed over the group */
    return out;
}

static uint8_t add_combine(experts *x, uint8_t rows, uint8_t choice, uint8_t plan,
                           uint64_t tokens, uint64_t bound, uint64_t expected)
{
    uint8_t out = TENSOR(x->g, "moe.sum", row_bytes(x, tokens));

    return add_permute(x, SMP_OP_COMBINE, NAMES("moe.combine"), rows, choice, plan, out,
                       tokens, bound, expected);
}

/* ---- shared experts ---- */

static void set_beside(experts *x, uint32_t first)
{
    for (uint32_t i = first; i < x->g->n_node && x->beside; i++) {
        x->g->nodes[i].stream = SMP_STREAM_SHARED;
        x->g->nodes[i].exclusive = true;
    }
}

/* Weighted by a sigmoid of the input [Qwen1.5-MoE]. */
static uint8_t add_gate(experts *x, uint8_t in, uint8_t y)
{
    uint8_t gate, out;
    smp_node *node;

    if (!x->moe->shared_gate) {
        return y;
    }
    gate = TENSOR(x->g, "shared.gate", smp_mul(x->z.tokens, x->s->e));
    add_matmul(x->g, x->s, NAMES("shared.gate"), in, gate, SMP_ROLE_SHARED_ROUTER_W, 1, 1,
               x->low->hidden);
    last(x)->dims[0] = x->z.tokens;
    out = TENSOR(x->g, "shared.out", row_bytes(x, x->z.tokens));
    node = add_node(x->g, SMP_OP_GATE_ROWS, NAMES("shared.weigh"), gate, y, out,
                    SMP_NO_TENSOR);
    set_dims(node, x->z.tokens, x->low->hidden, 0, 0, 0, 0);
    return out;
}

static uint8_t add_shared(experts *x, uint8_t in)
{
    const smp_lowering *low = x->low;
    uint64_t f = x->z.shared_ffn, elems = smp_mul(low->tokens, f);
    uint64_t wide = x->moe->gated ? 2 : 1;
    uint32_t first = x->g->n_node;
    uint8_t whole = in, up, y, out;
    smp_node *node;

    if (low->sequence) {
        whole = add_spread(x->g, x->s, NAMES("shared.spread"), in, "shared.in", "d.shared.in",
                           low->hidden);
    }
    up = TENSOR(x->g, "shared.up", smp_mul(elems, wide * x->s->e));
    add_matmul(x->g, x->s, NAMES("shared.up"), whole, up,
               x->moe->gated ? SMP_ROLE_SHARED_GATE_W : SMP_ROLE_SHARED_UP_W, (uint8_t)wide,
               f * wide, low->hidden);
    y = TENSOR(x->g, "shared.product", smp_mul(elems, x->s->e));
    node = add_node(x->g, x->moe->gated ? SMP_OP_GATED : SMP_OP_ACTIVATION,
                    NAMES("shared.act"), up, SMP_NO_TENSOR, y, SMP_NO_TENSOR);
    if (x->moe->gated) {
        set_dims(node, low->tokens, f, (uint64_t)x->moe->activation, 0, 0, 0);
    } else {
        set_dims(node, elems, (uint64_t)x->moe->activation, 0, 0, 0, 0);
    }
    out = TENSOR(x->g, "shared.down", row_bytes(x, low->tokens));
    add_matmul(x->g, x->s, NAMES("shared.down"), y, out, SMP_ROLE_SHARED_DOWN_W, 1,
               low->hidden, f);
    if (low->sequence) {
        y = out;
        out = TENSOR(x->g, "shared.sum", row_bytes(x, low->rows));
        add_collective(x, SMP_OP_REDUCE_SCATTER, NAMES("shared.sum"), SMP_NODE_TENSOR, y, out,
                       smp_mul(low->tokens, low->hidden), false);
    }
    out = add_gate(x, in, out);
    set_beside(x, first);
    return out;
}

/* ---- the two dispatchers ---- */

/* Rows by all-to-all (none where one rank has all experts).  Shared experts stand between
 * dispatch and experts, so that they run while rows travel. */
static uint8_t add_by_rows(experts *x, uint8_t in, uint8_t *shared_p)
{
    uint64_t gathered = x->low->sequence ? x->low->tensor : 1;
    uint64_t elems = smp_mul(smp_mul(x->z.bound, x->low->hidden), gathered);
    uint8_t rows = TENSOR(x->g, "moe.rows", row_bytes(x, x->z.sent)), other;

    add_permute(x, SMP_OP_PERMUTE, NAMES("moe.permute"), in, x->choice, x->counts, rows,
                x->z.tokens, x->z.sent, x->z.sent);
    if (x->many) {
        other = TENSOR(x->g, "moe.received", row_bytes(x, x->z.bound));
        rows = add_exchange(x, NAMES("moe.dispatch"), rows, other, false);
    }
    *shared_p = x->z.shared_ffn > 0 ? add_shared(x, in) : SMP_NO_TENSOR;
    if (gathered > 1) {
        other = TENSOR(x->g, "moe.gathered", smp_mul(elems, x->s->e));
        add_collective(x, SMP_OP_ALL_GATHER, NAMES("moe.gather"), SMP_NODE_TENSOR, rows, other,
                       elems, false);
        rows = other;
    }
    rows = add_sort(x, NAMES("moe.sort"), "moe.sorted", "d.moe.sorted", rows, gathered,
                    false);
    rows = add_experts(x, rows, gathered);
    rows = add_sort(x, NAMES("moe.unsort"), "moe.unsorted", "d.moe.unsorted", rows,
                    gathered, true);
    if (gathered > 1) {
        other = TENSOR(x->g, "moe.summed", row_bytes(x, x->z.bound));
        add_collective(x, SMP_OP_REDUCE_SCATTER, NAMES("moe.scatter"), SMP_NODE_TENSOR, rows,
                       other, elems, false);
        rows = other;
    }
    if (x->many) {
        other = TENSOR(x->g, "moe.returned", row_bytes(x, x->z.sent));
        rows = add_exchange(x, NAMES("moe.return"), rows, other, true);
    }
    return add_combine(x, rows, x->choice, x->counts, x->z.tokens, x->z.sent, x->z.sent);
}

/* All tokens of the expert group (and of the tensor group, under sequence parallelism) on
 * every rank: the volume does not depend on top_k. */
static uint8_t add_by_tokens(experts *x, uint8_t in, uint8_t *shared_p)
{
    static const char *const text[2] = { "moe.tokens.all", "moe.tokens.tensor" };
    static const char *const grad[2] = { "d.moe.tokens.all", "d.moe.tokens.tensor" };
    static const char *const choice_text[2] = { "moe.choice.all", "moe.choice.tensor" };
    static const char *const choice_grad[2] = { "d.moe.choice.all", "d.moe.choice.tensor" };
    uint64_t gathered = x->low->sequence ? x->low->tensor : 1;
    uint64_t tokens = smp_mul(x->z.tokens, x->parts), h = x->low->hidden;
    uint8_t choice, rows, y, whole;

    choice = add_gather(x, (smp_names[]){ NAMES("moe.choice"), NAMES("moe.choice.tensor") },
                        choice_text, choice_grad, x->choice,
                        smp_mul(smp_mul(x->z.tokens, x->moe->top_k), 2), true);
    whole = add_gather(x, (smp_names[]){ NAMES("moe.tokens"), NAMES("moe.tokens.tensor") },
                       text, grad, in, smp_mul(x->z.tokens, h), false);
    *shared_p = x->z.shared_ffn > 0 ? add_shared(x, in) : SMP_NO_TENSOR;
    rows = TENSOR(x->g, "moe.rows", row_bytes(x, smp_mul(x->z.bound, gathered)));
    add_permute(x, SMP_OP_PERMUTE, NAMES("moe.permute"), whole, choice, x->layout, rows,
                tokens, smp_mul(x->z.bound, gathered), smp_mul(x->z.expected, gathered));
    rows = add_experts(x, rows, gathered);
    y = add_combine(x, rows, choice, x->layout, tokens, smp_mul(x->z.bound, gathered),
                    smp_mul(x->z.expected, gathered));
    if (gathered > 1) {
        whole = TENSOR(x->g, "moe.scattered", row_bytes(x, tokens / gathered));
        add_collective(x, SMP_OP_REDUCE_SCATTER, NAMES("moe.scatter"), SMP_NODE_TENSOR, y,
                       whole, smp_mul(tokens, h), false);
        y = whole;
    }
    whole = TENSOR(x->g, "moe.returned", row_bytes(x, x->z.tokens));
    add_collective(x, SMP_OP_REDUCE_SCATTER, NAMES("moe.return"), SMP_NODE_EXPERT, y, whole,
                   smp_mul(tokens / gathered, h), false);
    return whole;
}

uint8_t smp_graph_add_moe(smp_graph *g, const sizes *s, uint8_t in)
{
    const smp_lowering *low = s->low;
    experts x = { .g = g, .s = s, .low = low, .moe = &s->block->moe };
    uint8_t shared, y, sum;

    measure(low, x.moe, &x.z);
    x.many = low->expert > 1;
    x.exchange = low->set->moe_all_to_all_dispatcher;
    x.parts = smp_mul(low->expert, low->sequence ? low->tensor : 1);
    x.beside = x.many && x.exchange && x.z.shared_ffn > 0;
    if (!low->sequence) {
        in = add_spread(g, s, NAMES("moe.spread"), in, "moe.in", "d.moe.in",
                        low->hidden);
    }
    in = add_shuffle(&x, NAMES("moe.shuffle"), "moe.shuffled", "d.moe.shuffled", in);
    add_router(&x, in);
    add_layout(&x);
    y = x.many && !x.exchange ? add_by_tokens(&x, in, &shared) : add_by_rows(&x, in, &shared);
    if (shared != SMP_NO_TENSOR) {
        sum = TENSOR(g, "moe.out", row_bytes(&x, x.z.tokens));
        y = add_residual(g, s, NAMES("moe.add"), y, shared, sum);
    }
    y = add_shuffle(&x, NAMES("moe.unshuffle"), "moe.unshuffled", "d.moe.unshuffled", y);
    if (low->tensor > 1 && !low->sequence) {
        sum = add_alias(g, y);
        add_collective(&x, SMP_OP_ALL_REDUCE, NAMES("moe.tensor_sum"), SMP_NODE_TENSOR, y, sum,
                       smp_mul(low->tokens, low->hidden), false);
        y = sum;
    }
    return y;
}

bool smp_graph_moe_needs(const smp_node *node, uint8_t need[3])
{
    switch (node->op) {
    case SMP_OP_ROUTE:
        need[0] = node->in[0];
        need[1] = node->out[0];
        need[2] = node->extra;
        return true;
    case SMP_OP_PERMUTE:
        need[0] = node->in[1];
        need[1] = node->in[2];
        need[2] = node->dims[5] ? node->in[0] : SMP_NO_TENSOR;
        return true;
    case SMP_OP_COMBINE:
        need[0] = node->dims[5] ? SMP_NO_TENSOR : node->in[0];
        need[1] = node->in[1];
        need[2] = node->in[2];
        return true;
    case SMP_OP_GROUPED_MATMUL:
    case SMP_OP_GATE_ROWS:
        need[0] = node->in[0];
        need[1] = node->in[1];
        return true;
    case SMP_OP_SORT_ROWS:
    case SMP_OP_ALL_TO_ALL:
        need[0] = node->in[1];
        return true;
    default:
        return false;
    }
}
