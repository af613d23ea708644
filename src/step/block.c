/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The graph of a transformer block and what checkpointing keeps of it.
 *
 * Without tensor parallelism there are no collectives; with it, column parallel products
 * stand behind a FORK (or, under sequence parallelism, an all-gather) and row parallel ones
 * before an all-reduce (a reduce-scatter) [Shoeybi et al. 2019; Korthikanti et al. 2022].
 */
#include "step/graph.h"

static void set_qk_dims(smp_node *node, const sizes *s)
{
    const smp_attention *a = &s->block->attention;
    smp_qk_form form = a->qk_norm_whole ? SMP_QK_WHOLE
                       : a->qk_norm_own ? SMP_QK_OWN
                                        : SMP_QK_SHARED;

    set_dims(node, s->low->tokens, s->heads, s->kv_heads, s->head_dim,
             (uint64_t)s->block->norm, (uint64_t)form);
    if (form == SMP_QK_WHOLE) {
        node->dims[6] = s->copies;
        node->dims[7] = s->low->tensor;
    }
}

/* A norm over all heads takes its sums over the tensor group: 8 bytes a token. */
static uint8_t add_qk_stats(smp_graph *g, const sizes *s, uint8_t qkv)
{
    uint8_t stats, summed;
    smp_node *node;

    if (!s->block->attention.qk_norm_whole || s->low->tensor == 1) {
        return SMP_NO_TENSOR;
    }
    stats = TENSOR(g, "attention.stats", smp_mul(s->low->tokens, 8));
    node = add_node(g, SMP_OP_QK_STATS, NAMES("attention.qk_stats"), qkv, SMP_NO_TENSOR,
                    stats, SMP_NO_TENSOR);
    set_qk_dims(node, s);
    summed = add_alias(g, stats);
    node = add_node(g, SMP_OP_ALL_REDUCE, NAMES("attention.qk_sum"), stats, SMP_NO_TENSOR,
                    summed, SMP_NO_TENSOR);
    node->fp32 = true;
    set_dims(node, smp_mul(s->low->tokens, 2), 0, 0, 0, 0, 0);
    /* As with what the norm keeps: qkv is made again, or not, with its sums. */
    g->tensors[stats].producer = g->tensors[summed].producer = g->tensors[qkv].producer;
    return summed;
}

static uint8_t add_qk_norm(smp_graph *g, const sizes *s, uint8_t qkv)
{
    uint64_t width = (s->heads + s->kv_heads) * s->head_dim;
    uint8_t stats = add_qk_stats(g, s, qkv);
    uint8_t raw = TENSOR(g, "attention.raw", smp_mul(s->low->tokens, width * s->e));
    uint8_t normed = add_alias(g, qkv);
    smp_node *node = add_node(g, SMP_OP_QK_NORM, NAMES("attention.qk_norm"), qkv, stats,
                              normed, raw);

    /* What it keeps was in qkv, and goes with it. */
    g->tensors[raw].producer = g->tensors[qkv].producer;
    node->weight = SMP_ROLE_Q_NORM_W;
    if (block_has(s->block, SMP_ROLE_Q_NORM_B)) {
        node->bias = SMP_ROLE_Q_NORM_B;
    }
    set_qk_dims(node, s);
    return normed;
}

static uint8_t add_clip(smp_graph *g, const sizes *s, uint8_t qkv, uint64_t elems)
{
    uint8_t mask = TENSOR(g, "attention.clip_mask", elems), clipped = add_alias(g, qkv);
    smp_node *node = add_node(g, SMP_OP_CLIP, NAMES("attention.clip"), qkv, SMP_NO_TENSOR,
                              clipped, mask);

    (void)s;
    g->tensors[mask].producer = g->tensors[qkv].producer;
    set_dims(node, elems, 0, 0, 0, 0, 0);
    return clipped;
}

/* Whether the stack has q, k and v, gate and up as products each: of blocks like llama's, with
 * gated MLPs and nothing but rope between the products and attention. */
static bool is_separate(const sizes *s)
{
    const smp_attention *a = &s->block->attention;

    return s->low->runtime->separate && s->block->mlp.gated && a->clip <= 0 && !a->qk_norm
           && !a->qk_norm_bare && !(a->temperature > 0)
           && s->low->set->attention == SMP_ATTENTION_FLASH;
}

static uint8_t add_rope(smp_graph *g, const sizes *s, smp_names names, uint8_t x,
                        uint64_t heads, uint64_t kv_heads)
{
    uint8_t turned;

    if (s->rotated == 0) {
        return x;
    }
    turned = add_alias(g, x);
    set_dims(add_node(g, SMP_OP_ROPE, names, x, SMP_NO_TENSOR, turned, SMP_NO_TENSOR),
             s->low->tokens, heads, kv_heads, s->head_dim, s->rotated, s->low->seq);
    return turned;
}

/* Heads of q and k divided by their root mean square.  Backward reads what came out, which
 * attention keeps anyway, and one number a head: dx = rstd (dy - y mean(y dy)). */
static uint8_t add_qk_rms(smp_graph *g, const sizes *s, uint8_t qkv)
{
    uint64_t heads = s->heads + s->kv_heads;
    uint8_t rstd = TENSOR(g, "attention.rstd", smp_mul(s->low->tokens, heads * 4));
    uint8_t normed = add_alias(g, qkv);
    smp_node *node = add_node(g, SMP_OP_QK_RMS, NAMES("attention.qk_rms"), qkv, SMP_NO_TENSOR,
                              normed, rstd);

    g->tensors[rstd].producer = g->tensors[qkv].producer;
    set_dims(node, s->low->tokens, s->heads, s->kv_heads, s->head_dim, 0, 0);
    return normed;
}

/* q scaled by its position; positions below the floor have factor 1. */
static uint8_t add_temper(smp_graph *g, const sizes *s, uint8_t qkv)
{
    const smp_attention *a = &s->block->attention;
    uint8_t tempered;

    if (!(a->temperature > 0) || s->low->seq < a->temperature_floor) {
        return qkv;
    }
    tempered = add_alias(g, qkv);
    set_dims(add_node(g, SMP_OP_TEMPER, NAMES("attention.temper"), qkv, SMP_NO_TENSOR,
                      tempered, SMP_NO_TENSOR),
             s->low->tokens, s->heads, s->kv_heads, s->head_dim, s->low->seq, 0);
    return tempered;
}

/* Three products of their own, and attention that reads three tensors. */
static uint8_t add_separate(smp_graph *g, const sizes *s, uint8_t x, uint8_t kv[2])
{
    uint64_t h = s->low->hidden, tokens = s->low->tokens;
    uint64_t wide = s->heads * s->head_dim, narrow = s->kv_heads * s->head_dim;
    uint8_t q = TENSOR(g, "attention.q", smp_mul(tokens, wide * s->e));

    add_matmul(g, s, NAMES("attention.q"), x, q, SMP_ROLE_Q_W, 1, wide, h);
    set_bias(g, s, SMP_ROLE_Q_B, 1);
    kv[0] = TENSOR(g, "attention.k", smp_mul(tokens, narrow * s->e));
    add_matmul(g, s, NAMES("attention.k"), x, kv[0], SMP_ROLE_K_W, 1, narrow, h);
    set_bias(g, s, SMP_ROLE_K_B, 1);
    kv[1] = TENSOR(g, "attention.v", smp_mul(tokens, narrow * s->e));
    add_matmul(g, s, NAMES("attention.v"), x, kv[1], SMP_ROLE_V_W, 1, narrow, h);
    set_bias(g, s, SMP_ROLE_V_B, 1);
    q = add_rope(g, s, NAMES("attention.rope_q"), q, s->heads, 0);
    kv[0] = add_rope(g, s, NAMES("attention.rope_k"), kv[0], 0, s->kv_heads);
    return q;
}

/* q, k and v of a token beside each other, from one product. */
static uint8_t add_qkv(smp_graph *g, const sizes *s, uint8_t x)
{
    uint64_t width = (s->heads + 2 * s->kv_heads) * s->head_dim, tokens = s->low->tokens;
    uint8_t qkv = TENSOR(g, "attention.qkv", smp_mul(tokens, width * s->e));

    add_matmul(g, s, NAMES("attention.qkv"), x, qkv, SMP_ROLE_Q_W, 3, width, s->low->hidden);
    set_bias(g, s, SMP_ROLE_Q_B, 3);
    if (s->block->attention.clip > 0) {
        qkv = add_clip(g, s, qkv, smp_mul(tokens, width));
    }
    if (s->block->attention.qk_norm) {
        qkv = add_qk_norm(g, s, qkv);
    }
    qkv = add_rope(g, s, NAMES("attention.rope"), qkv, s->heads, s->kv_heads);
    if (s->block->attention.qk_norm_bare) {
        qkv = add_qk_rms(g, s, qkv);
    }
    return add_temper(g, s, qkv);
}

/* ---- latent attention ---- */

/* q through its latent: down and norm on the rank's own rows, as each rank has the whole
 * weights; only the latent goes to all ranks.  Without a latent, one column parallel product
 * [DeepSeek-V2, 2024, sec. 2.1.2]. */
static uint8_t add_latent_q(smp_graph *g, const sizes *s, uint8_t x)
{
    uint64_t rank = s->block->attention.q_lora_rank, tokens = s->low->tokens;
    uint64_t width = s->heads * s->head_dim, rows = s->low->rows;
    uint8_t q, down, normed;

    if (rank == 0) {
        x = add_spread(g, s, NAMES("attention.spread"), x, "attention.in", "d.attention.in",
                       s->low->hidden);
        q = TENSOR(g, "attention.q", smp_mul(tokens, width * s->e));
        return add_matmul(g, s, NAMES("attention.q"), x, q, SMP_ROLE_Q_W, 1, width,
                          s->low->hidden);
    }
    down = TENSOR(g, "attention.q_down", smp_mul(rows, rank * s->e));
    add_product(g, NAMES("attention.q_down"), x, down, SMP_ROLE_Q_DOWN_W, 1,
                (uint64_t[]){ rows, rank, s->low->hidden }, 0);
    set_bias(g, s, SMP_ROLE_Q_DOWN_B, 1);
    normed = TENSOR(g, "attention.q_latent", smp_mul(rows, rank * s->e));
    add_part_norm(g, s, NAMES("attention.q_norm"), down, normed, SMP_ROLE_Q_DOWN_NORM_W, rank,
                  0);
    normed = add_spread(g, s, NAMES("attention.q_spread"), normed, "attention.q_latents",
                        "d.attention.q_latents", rank);
    q = TENSOR(g, "attention.q", smp_mul(tokens, width * s->e));
    return add_matmul(g, s, NAMES("attention.q_up"), normed, q, SMP_ROLE_Q_UP_W, 1, width,
                      rank);
}

/* The latent of k and v with k's rope part behind it, which takes no part in the norm. */
static uint8_t add_kv_latent(smp_graph *g, const sizes *s, uint8_t x)
{
    const smp_attention *a = &s->block->attention;
    uint64_t width = (uint64_t)a->kv_lora_rank + a->qk_rope_dim, rows = s->low->rows;
    uint8_t down = TENSOR(g, "attention.kv_down", smp_mul(rows, width * s->e)), normed;

    add_product(g, NAMES("attention.kv_down"), x, down, SMP_ROLE_KV_DOWN_W, 1,
                (uint64_t[]){ rows, width, s->low->hidden }, 0);
    set_bias(g, s, SMP_ROLE_KV_DOWN_B, 1);
    normed = TENSOR(g, "attention.kv_latent", smp_mul(rows, width * s->e));
    add_part_norm(g, s, NAMES("attention.kv_norm"), down, normed, SMP_ROLE_KV_DOWN_NORM_W,
                  a->kv_lora_rank, a->qk_rope_dim);
    return add_spread(g, s, NAMES("attention.kv_spread"), normed, "attention.kv_latents",
                      "d.attention.kv_latents", width);
}

static uint8_t add_latent_qkv(smp_graph *g, const sizes *s, uint8_t x)
{
    const smp_attention *a = &s->block->attention;
    uint64_t row = (uint64_t)a->kv_lora_rank + a->qk_rope_dim, tokens = s->low->tokens;
    uint64_t wide = s->heads * (a->qk_nope_dim + s->v_dim);
    uint64_t width = s->heads * (2 * s->head_dim + s->v_dim);
    uint8_t q = add_latent_q(g, s, x), latent = add_kv_latent(g, s, x), kv, qkv;
    smp_node *node;

    kv = TENSOR(g, "attention.kv", smp_mul(tokens, wide * s->e));
    add_product(g, NAMES("attention.kv_up"), latent, kv, SMP_ROLE_KV_UP_W, 1,
                (uint64_t[]){ tokens, wide, a->kv_lora_rank }, row);
    qkv = TENSOR(g, "attention.qkv", smp_mul(tokens, width * s->e));
    node = add_node(g, SMP_OP_LATENT, NAMES("attention.join"), q, kv, qkv, SMP_NO_TENSOR);
    node->in[2] = latent;
    set_dims(node, tokens, s->heads, a->qk_nope_dim, a->qk_rope_dim, s->v_dim, s->low->seq);
    node->dims[6] = row;
    return qkv;
}

/* ---- branches ---- */

/* From the normed input to this rank's part of the output. */
static uint8_t add_attention(smp_graph *g, const sizes *s, uint8_t x)
{
    uint8_t kv[2] = { SMP_NO_TENSOR, SMP_NO_TENSOR }, qkv, y;

    if (s->block->attention.kv_lora_rank > 0) {
        qkv = add_latent_qkv(g, s, x);
    } else {
        qkv = is_separate(s) ? add_separate(g, s, x, kv) : add_qkv(g, s, x);
    }
    y = smp_graph_add_core(g, s, qkv, kv);
    x = TENSOR(g, "attention.o", smp_mul(smp_mul(s->low->tokens, s->low->hidden), s->e));
    return add_matmul(g, s, NAMES("attention.o"), y, x, SMP_ROLE_O_W, 1, s->low->hidden,
                      s->heads * s->v_dim);
}

static uint8_t add_mlp(smp_graph *g, const sizes *s, uint8_t x)
{
    const smp_mlp *mlp = &s->block->mlp;
    uint64_t elems = smp_mul(s->low->tokens, s->ffn), wide = mlp->gated ? 2 : 1;
    uint8_t gate = SMP_NO_TENSOR, up, y;
    smp_node *node;

    if (is_separate(s)) {
        gate = TENSOR(g, "mlp.gate", smp_mul(elems, s->e));
        add_matmul(g, s, NAMES("mlp.gate"), x, gate, SMP_ROLE_GATE_W, 1, s->ffn,
                   s->low->hidden);
        set_bias(g, s, SMP_ROLE_GATE_B, 1);
        wide = 1;
    }
    up = TENSOR(g, "mlp.up", smp_mul(elems, wide * s->e));
    add_matmul(g, s, NAMES("mlp.up"), x, up, wide == 2 ? SMP_ROLE_GATE_W : SMP_ROLE_UP_W,
               (uint8_t)wide, s->ffn * wide, s->low->hidden);
    set_bias(g, s, wide == 2 ? SMP_ROLE_GATE_B : SMP_ROLE_UP_B, (uint8_t)wide);
    y = TENSOR(g, "mlp.product", smp_mul(elems, s->e));
    node = add_node(g, mlp->gated ? SMP_OP_GATED : SMP_OP_ACTIVATION, NAMES("mlp.act"),
                    gate != SMP_NO_TENSOR ? gate : up, gate != SMP_NO_TENSOR ? up : gate, y,
                    SMP_NO_TENSOR);
    if (mlp->gated) {
        set_dims(node, s->low->tokens, s->ffn, (uint64_t)mlp->activation, 0, 0, 0);
    } else {
        set_dims(node, elems, (uint64_t)mlp->activation, 0, 0, 0, 0);
    }
    x = TENSOR(g, "mlp.down", smp_mul(smp_mul(s->low->tokens, s->low->hidden), s->e));
    return add_matmul(g, s, NAMES("mlp.down"), y, x, SMP_ROLE_DOWN_W, 1, s->low->hidden,
                      s->ffn);
}

/* What a column parallel product of a branch reads; latent attention has its own way. */
static uint8_t spread_branch(smp_graph *g, const sizes *s, bool attention, uint8_t x)
{
    if (!attention) {
        return add_spread(g, s, NAMES("mlp.spread"), x, "mlp.in", "d.mlp.in", s->low->hidden);
    }
    if (s->block->attention.kv_lora_rank > 0) {
        return x;
    }
    return add_spread(g, s, NAMES("attention.spread"), x, "attention.in", "d.attention.in",
                      s->low->hidden);
}

/* The product that ends a branch, summed over the tensor group, with its bias added once. */
static uint8_t end_branch(smp_graph *g, const sizes *s, bool attention, uint8_t x)
{
    smp_role bias = attention ? SMP_ROLE_O_B : SMP_ROLE_DOWN_B;

    if (s->low->tensor == 1) {
        set_bias(g, s, bias, 1);
        return x;
    }
    if (attention) {
        x = add_sum(g, s, NAMES("attention.sum"), x, "attention.out", "d.attention.out");
        return add_bias(g, s, NAMES("attention.bias"), x, bias);
    }
    x = add_sum(g, s, NAMES("mlp.sum"), x, "mlp.out", "d.mlp.out");
    return add_bias(g, s, NAMES("mlp.bias"), x, bias);
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
        return smp_graph_add_dropout(g, s, NAMES("attention.out_dropout"), x, y, mask, elems,
                           SMP_SITE_ATTENTION);
    }
    y = TENSOR(g, "mlp.thinned", smp_mul(elems, s->e));
    mask = TENSOR(g, "mlp.mask", elems);
    return smp_graph_add_dropout(g, s, NAMES("mlp.dropout"), x, y, mask, elems, SMP_SITE_MLP);
}

static void measure(const smp_lowering *low, const smp_block *block, sizes *s)
{
    s->low = low;
    s->block = block;
    s->e = smp_dtype_bytes(low->compute);
    s->residual = smp_dtype_bytes(low->residual);
    s->heads = block->attention.heads / low->tensor;
    s->kv_heads = smp_local_kv_heads(block->attention.kv_heads, low->tensor);
    s->head_dim = block->attention.head_dim;
    s->copies = s->kv_heads * low->tensor / block->attention.kv_heads;
    s->v_dim = s->head_dim;
    if (block->attention.kv_lora_rank > 0) {
        s->kv_heads = s->heads;
        s->head_dim = (uint64_t)block->attention.qk_nope_dim + block->attention.qk_rope_dim;
        s->v_dim = block->attention.v_head_dim;
    }
    s->ffn = block->mlp.ffn / low->tensor;
    s->rotated = 0;
    if (low->model->position == SMP_POSITION_ROPE && !block->attention.no_rope) {
        s->rotated = (uint64_t)((double)s->head_dim * low->model->rotary_frac);
    }
}

/* The node that was added last reads, or reads and writes, the residual. */
static void touch_residual(smp_graph *g, const sizes *s)
{
    g->nodes[g->n_node - 1].flags |= smp_residual_flag(s->low);
}

static uint8_t add_total(smp_graph *g, const sizes *s, bool attention, uint8_t x, uint8_t y)
{
    uint64_t bytes = smp_mul(smp_mul(s->low->rows, s->low->hidden), s->residual);
    uint8_t out;

    if (s->block->norm_place != SMP_NORM_AFTER_RESIDUAL) {
        out = attention ? TENSOR(g, "mid", bytes) : TENSOR(g, "out", bytes);
        (void)(attention ? add_residual(g, s, NAMES("attention.add"), x, y, out)
                         : add_residual(g, s, NAMES("mlp.add"), x, y, out));
        touch_residual(g, s);
        return out;
    }
    out = attention ? TENSOR(g, "attention.total", bytes) : TENSOR(g, "mlp.total", bytes);
    g->tensors[out].residual = attention;
    if (attention) {
        add_residual(g, s, NAMES("attention.add"), x, y, out);
        return add_norm(g, s, NAMES("norm1"), "norm1", "d.norm1", out, SMP_ROLE_NORM1_W);
    }
    add_residual(g, s, NAMES("mlp.add"), x, y, out);
    return add_norm(g, s, NAMES("norm2"), "norm2", "d.norm2", out, SMP_ROLE_NORM2_W);
}

/* A norm of the residual. */
static uint8_t add_first_norm(smp_graph *g, const sizes *s, bool attention, uint8_t x)
{
    uint8_t y = attention
                    ? add_norm(g, s, NAMES("norm1"), "norm1", "d.norm1", x, SMP_ROLE_NORM1_W)
                    : add_norm(g, s, NAMES("norm2"), "norm2", "d.norm2", x, SMP_ROLE_NORM2_W);

    touch_residual(g, s);
    return y;
}

/* The residual as a branch without a norm before it reads it. */
static uint8_t add_narrow(smp_graph *g, const sizes *s, bool attention, uint8_t x)
{
    uint64_t elems = smp_mul(s->low->rows, s->low->hidden), bytes = smp_mul(elems, s->e);
    uint8_t y;

    if (s->low->residual == s->low->compute) {
        return x;
    }
    y = attention ? TENSOR(g, "attention.x", bytes) : TENSOR(g, "mlp.x", bytes);
    set_dims(attention ? add_node(g, SMP_OP_CAST, NAMES("attention.cast"), x, SMP_NO_TENSOR, y,
                                  SMP_NO_TENSOR)
                       : add_node(g, SMP_OP_CAST, NAMES("mlp.cast"), x, SMP_NO_TENSOR, y,
                                  SMP_NO_TENSOR),
             elems, 0, 0, 0, 0, 0);
    return y;
}

/* x + f(x), with norms where the block has them. */
static uint8_t add_branch(smp_graph *g, const sizes *s, bool attention, uint8_t x)
{
    smp_norm_place norms = s->block->norm_place;
    uint8_t y = x;

    if (norms == SMP_NORM_BEFORE || norms == SMP_NORM_AROUND) {
        y = add_first_norm(g, s, attention, x);
    } else if (norms == SMP_NORM_AFTER) {
        y = add_narrow(g, s, attention, x);
    }
    if (!attention && s->block->moe.experts > 0) {
        y = smp_graph_add_moe(g, s, y);
    } else {
        y = spread_branch(g, s, attention, y);
        y = attention ? add_attention(g, s, y) : add_mlp(g, s, y);
        y = end_branch(g, s, attention, y);
    }
    if (norms == SMP_NORM_AFTER || norms == SMP_NORM_AROUND) {
        y = attention ? add_norm(g, s, NAMES("post_norm1"), "post_norm1", "d.post_norm1", y,
                                 SMP_ROLE_POST_NORM1_W)
                      : add_norm(g, s, NAMES("post_norm2"), "post_norm2", "d.post_norm2", y,
                                 SMP_ROLE_POST_NORM2_W);
    }
    return add_total(g, s, attention, x, add_branch_dropout(g, s, attention, y));
}

/* The parts of both branches are added before they are summed over the tensor group: one
 * reduction instead of two.  Dropout of each branch needs each sum, and forbids it. */
static uint8_t add_joint_end(smp_graph *g, const sizes *s, uint8_t x, uint8_t a, uint8_t m)
{
    uint64_t elems = smp_mul(s->low->tokens, s->low->hidden);
    uint8_t y = TENSOR(g, "branches", smp_mul(elems, s->e)), out;

    set_dims(add_node(g, SMP_OP_ADD, NAMES("branches.join"), a, m, y, SMP_NO_TENSOR), elems,
             0, 0, 0, 0, 0);
    y = add_sum(g, s, NAMES("branches.sum"), y, "branches.out", "d.branches.out");
    y = add_bias(g, s, NAMES("attention.bias"), y, SMP_ROLE_O_B);
    y = add_bias(g, s, NAMES("mlp.bias"), y, SMP_ROLE_DOWN_B);
    out = TENSOR(g, "out", smp_mul(smp_mul(s->low->rows, s->low->hidden), s->residual));
    add_residual(g, s, NAMES("mlp.add"), x, y, out);
    touch_residual(g, s);
    return out;
}

/* x + attention(norm1 x) + mlp(norm2 x), or with one norm for both.  Both norms first:
 * backward adds their gradients to that of the residual, which both branches must have read
 * by then. */
static uint8_t add_parallel(smp_graph *g, const sizes *s, uint8_t x)
{
    uint8_t n1 = add_first_norm(g, s, true, x), n2 = n1, a, m;

    if (!s->block->single_norm) {
        n2 = add_first_norm(g, s, false, x);
    }
    n1 = spread_branch(g, s, true, n1);
    a = add_attention(g, s, n1);
    if (s->low->tensor > 1 && s->block->residual_dropout <= 0) {
        m = s->block->single_norm ? n1 : spread_branch(g, s, false, n2);
        return add_joint_end(g, s, x, a, add_mlp(g, s, m));
    }
    a = add_branch_dropout(g, s, true, end_branch(g, s, true, a));
    x = add_total(g, s, true, x, a);
    m = s->block->single_norm ? n1 : spread_branch(g, s, false, n2);
    m = end_branch(g, s, false, add_mlp(g, s, m));
    return add_total(g, s, false, x, add_branch_dropout(g, s, false, m));
}

static void add_nodes(smp_graph *g, const sizes *s)
{
    uint8_t x = TENSOR(g, "x", smp_mul(smp_mul(s->low->rows, s->low->hidden), s->residual));

    g->input = x;
    g->tensors[x].producer = SMP_NO_TENSOR;
    if (s->block->parallel_residual) {
        g->output = add_parallel(g, s, x);
    } else {
        g->output = add_branch(g, s, false, add_branch(g, s, true, x));
    }
}

/* Marks what the gradient of a node reads, besides gradients and parameters. */
static void mark_needs(smp_graph *g, const smp_node *node)
{
    uint8_t need[5] = { SMP_NO_TENSOR, SMP_NO_TENSOR, SMP_NO_TENSOR, SMP_NO_TENSOR,
                        SMP_NO_TENSOR };

    switch (node->op) {
    case SMP_OP_NORM:
    case SMP_OP_MATMUL:
    case SMP_OP_SCORES:
    case SMP_OP_ACTIVATION:
        need[0] = node->in[0];
        break;
    case SMP_OP_GATED:
    case SMP_OP_VALUES:
        need[0] = node->in[0];
        need[1] = node->in[1];
        break;
    case SMP_OP_ATTENTION:
        need[0] = node->in[0];
        need[1] = node->out[0];
        need[2] = node->out[1];
        need[3] = node->in[1];
        need[4] = node->in[2];
        break;
    case SMP_OP_SOFTMAX:
        need[0] = node->out[0];
        need[1] = node->needs_input ? node->in[0] : SMP_NO_TENSOR;
        break;
    case SMP_OP_QK_NORM:
        need[0] = node->out[1];
        need[1] = node->in[1];
        break;
    case SMP_OP_QK_RMS:
        need[0] = node->out[0];
        need[1] = node->out[1];
        break;
    case SMP_OP_CLIP:
    case SMP_OP_DROPOUT:
        need[0] = node->out[1];
        break;
    default:
        (void)smp_graph_moe_needs(node, need);
        break;
    }
    for (int i = 0; i < 5; i++) {
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
 * matmul, the first included; with `all` also where backward does not read them, as PyTorch's
 * selective checkpointing does. */
static void mark_dropped(smp_graph *g, smp_checkpointing mode, bool all)
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
            if (keep && all) {
                g->tensors[g->tensors[node->out[0]].storage].needed = true;
            }
        }
        node->dropped = !keep || (node->op == SMP_OP_ALL_GATHER && !node->fp32);
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
        for (int k = 0; k < 3 && g->again[i]; k++) {
            if (node->in[k] != SMP_NO_TENSOR) {
                g->tensors[g->tensors[node->in[k]].storage].needed = true;
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
    mark_dropped(graph, mode, low->runtime->separate && !low->set->compile);
    mark_again(graph);
}
