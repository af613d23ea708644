/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of operations, names, and the work of a task by closed forms.
 *
 * Bytes count each operand once as it passes through device memory: read, written, or both
 * where it is added to.  Operations that only move memory count no floating point work:
 * their time is that of their bytes.
 */
#include "step/program.h"

#include "base/numeric.h"

static const smp_op_info ops[SMP_OPS] = {
#define INFO(NAME, text, klass, doc) { text, SMP_CLASS_##klass, doc },
    SMP_OP_LIST(INFO)
#undef INFO
};

const smp_op_info *smp_op_info_of(smp_op op)
{
    return &ops[op];
}

smp_dtype smp_precision_dtype(smp_precision precision)
{
    switch (precision) {
    case SMP_PRECISION_BF16:
        return SMP_BF16;
    case SMP_PRECISION_FP16:
        return SMP_F16;
    case SMP_PRECISION_FP32:
        break;
    }
    return SMP_F32;
}

uint32_t smp_dtype_bytes(smp_dtype dtype)
{
    static const uint32_t bytes[SMP_DTYPES] = { 4, 2, 2, 1, 4 };

    return bytes[dtype];
}

const char *smp_dtype_name(smp_dtype dtype)
{
    static const char *const names[SMP_DTYPES] = { "fp32", "bf16", "fp16", "u8", "i32" };

    return names[dtype];
}

const char *smp_stream_name(smp_stream stream)
{
    static const char *const names[SMP_STREAMS] = { "compute", "unshard", "reduce",
                                                    "replicate", "tensor", "expert",
                                                    "shared", "offload", "load" };

    return names[stream];
}

const char *smp_kind_name(smp_buffer_kind kind)
{
    static const char *const names[SMP_KINDS] = { "parameter", "gradient", "optimizer",
                                                  "unsharded", "activation", "logits",
                                                  "workspace", "comm", "scalar", "token" };

    return names[kind];
}

/* Pairs (query, key) of causal attention in one sequence: s^2/2, the half of the square, as
 * is the printed rule; with a window of w < s: s w - w^2/2; cut into parts of w: the halves of
 * their squares. */
static uint64_t causal_pairs(uint64_t seq, uint64_t window, bool chunked)
{
    if (window == 0 || window >= seq) {
        return smp_mul(seq, seq) / 2;
    }
    if (chunked) {
        uint64_t rest = seq % window;

        return (smp_mul(seq / window, smp_mul(window, window)) + rest * rest) / 2;
    }
    return smp_mul(seq, window) - smp_mul(window, window) / 2;
}

/* Head size of v. */
static uint64_t v_dim(const smp_task *t)
{
    return t->dims[6] > 0 ? t->dims[6] : t->dims[4];
}

/* `qk` products with q or k and `v` with v, of heads x (pairs) x head size, FMA = 2. */
static uint64_t attention_products(const smp_task *t, uint64_t qk, uint64_t v)
{
    uint64_t pairs = (t->flags & SMP_FLAG_CAUSAL) ? causal_pairs(t->dims[1], t->dims[5],
                                                                t->flags & SMP_FLAG_CHUNKED)
                                                  : smp_mul(t->dims[1], t->dims[1]);
    uint64_t width = smp_mul(t->dims[2], qk * t->dims[4] + v * v_dim(t));

    return smp_mul(2, smp_mul(smp_mul(t->dims[0], pairs), width));
}

uint64_t smp_task_flops(const smp_task *task)
{
    const uint64_t *d = task->dims;

    switch (task->op) {
    case SMP_OP_MATMUL:
    case SMP_OP_MATMUL_DX:
    case SMP_OP_MATMUL_DW:
        return smp_mul(2, smp_mul(smp_mul(d[0], d[1]), d[2]));
    case SMP_OP_GROUPED_MATMUL:
    case SMP_OP_GROUPED_MATMUL_DX:
    case SMP_OP_GROUPED_MATMUL_DW: /* of the rows that are expected, not of the bound */
        return smp_mul(2, smp_mul(smp_mul(d[1], d[2]), d[3]));
    case SMP_OP_ATTENTION: /* q k^T and p v */
        return attention_products(task, 1, 1);
    case SMP_OP_ATTENTION_GRAD: /* scores again, dq, dk; dp, dv: 2.5 x forward where head
                                   sizes are equal (FlashAttention) */
        return attention_products(task, 3, 2);
    case SMP_OP_SCORES:
        return attention_products(task, 1, 0);
    case SMP_OP_VALUES:
        return attention_products(task, 0, 1);
    case SMP_OP_SCORES_GRAD: /* dq and dk */
        return attention_products(task, 2, 0);
    case SMP_OP_VALUES_GRAD: /* dp and dv */
        return attention_products(task, 0, 2);
    default:
        return 0;
    }
}

static uint64_t attention_bytes(const smp_task *t, uint64_t e)
{
    uint64_t tokens = smp_mul(t->dims[0], t->dims[1]);
    uint64_t q = smp_mul(tokens, t->dims[2] * t->dims[4]);
    uint64_t k = smp_mul(tokens, t->dims[3] * t->dims[4]);
    uint64_t v = smp_mul(tokens, t->dims[3] * v_dim(t));
    uint64_t y = smp_mul(tokens, t->dims[2] * v_dim(t));
    uint64_t scores = smp_mul(smp_mul(tokens, t->dims[1]), t->dims[2]);
    uint64_t lse = smp_mul(tokens, t->dims[2] * 4);
    uint64_t qk = smp_add(q, k), pv = smp_add(scores, v);
    uint64_t all = smp_add(smp_add(qk, v), y);

    switch (t->op) {
    case SMP_OP_ATTENTION: /* qkv, y, lse */
        return smp_add(smp_mul(all, e), lse);
    case SMP_OP_ATTENTION_GRAD: /* dy, y, qkv, dqkv, lse */
        return smp_add(smp_mul(smp_mul(2, all), e), lse);
    case SMP_OP_SCORES: /* q, k, scores */
        return smp_mul(smp_add(qk, scores), e);
    case SMP_OP_VALUES: /* probabilities, v, y */
        return smp_mul(smp_add(pv, y), e);
    case SMP_OP_VALUES_GRAD: /* dy, p, v, dp, dv */
        return smp_mul(smp_add(y, smp_mul(2, pv)), e);
    default: /* SCORES_GRAD: dscores, q, k, dq, dk */
        return smp_mul(smp_add(scores, smp_mul(2, qk)), e);
    }
}

/* Bytes of an operand of `elems` elements that is written (1) or added to (2). */
static uint64_t out_bytes(const smp_task *t, uint64_t elems, uint64_t bytes)
{
    return smp_mul(smp_mul(elems, bytes), t->flags & SMP_FLAG_ACCUMULATE ? 2 : 1);
}

static uint64_t matmul_bytes(const smp_task *t, uint64_t e, uint64_t e2)
{
    const uint64_t *d = t->dims;
    uint64_t mk = smp_mul(d[0], d[2]), nk = smp_mul(d[1], d[2]), mn = smp_mul(d[0], d[1]);

    return smp_add(smp_mul(smp_add(mk, nk), e), out_bytes(t, mn, e2));
}

static uint64_t table_bytes(const smp_task *t, uint64_t e, uint64_t e2)
{
    const uint64_t *d = t->dims;
    uint64_t x = smp_mul(d[0], d[1]), table = smp_mul(d[2], d[1]);

    switch (t->op) {
    case SMP_OP_EMBED: /* rows of the table, y, ids */
        return 2 * x * e + 4 * d[0];
    case SMP_OP_EMBED_GRAD: /* dy, rows added to; the table is zeroed first when written */
        return x * e + 2 * x * e2 + 4 * d[0]
               + (t->flags & SMP_FLAG_ACCUMULATE ? 0 : smp_mul(table, e2));
    case SMP_OP_POSITION:
        return 2 * x * e + table * e;
    default:
        return x * e + out_bytes(t, table, e2);
    }
}

/* Of an element of the residual. */
static uint64_t residual_bytes(const smp_task *t, uint64_t e)
{
    return t->flags & SMP_FLAG_FP32_RESIDUAL ? 4 : e;
}

static uint64_t norm_bytes(const smp_task *t, uint64_t e, uint64_t e2)
{
    const uint64_t *d = t->dims;
    uint64_t x = smp_mul(d[0], d[1] + d[3]), wide = residual_bytes(t, e);

    switch (t->op) {
    case SMP_OP_NORM: /* x, w, y */
        return x * (wide + e) + d[1] * e;
    case SMP_OP_NORM_GRAD: /* dy, x, dx (added to: twice), w, dw */
        return x * (e + wide * (t->flags & SMP_FLAG_ADD_DX ? 3 : 2)) + d[1] * e
               + out_bytes(t, d[1], e2);
    case SMP_OP_BIAS:
        return 2 * x * e + d[1] * e;
    default: /* BIAS_GRAD */
        return x * e + out_bytes(t, d[1], e2);
    }
}

/* In place on q and k; what is kept of them is written or read besides; statistics are two
 * numbers of fp32 a token. */
static uint64_t rotary_bytes(const smp_task *t, uint64_t e)
{
    const uint64_t *d = t->dims;
    uint64_t heads = smp_mul(d[0], d[1] + d[2]);
    uint64_t stats = d[7] > 1 ? smp_mul(d[0], 8) : 0;

    switch (t->op) {
    case SMP_OP_QK_NORM:
        return 3 * smp_mul(heads, d[3]) * e + stats;
    case SMP_OP_QK_NORM_GRAD: /* dots as well */
        return 3 * smp_mul(heads, d[3]) * e + 2 * stats;
    case SMP_OP_QK_STATS:
        return smp_mul(heads, d[3]) * e + stats;
    case SMP_OP_QK_RMS: /* and 1 / rms of each head, fp32 */
        return smp_mul(heads, 2 * d[3] * e + 4);
    case SMP_OP_QK_RMS_GRAD:
        return smp_mul(heads, 3 * d[3] * e + 4);
    case SMP_OP_TEMPER:
        return 2 * smp_mul(smp_mul(d[0], d[1]), d[3]) * e;
    case SMP_OP_QK_DOTS: /* dqkv, raw, stats, dots */
        return 2 * smp_mul(heads, d[3]) * e + 2 * stats;
    default:
        return 2 * smp_mul(heads, d[4]) * e;
    }
}

/* q, kv and the rope part of the latent on one side, q, k and v on the other. */
static uint64_t latent_bytes(const smp_task *t, uint64_t e)
{
    const uint64_t *d = t->dims;
    uint64_t a = d[1], nope = d[2], rope = d[3], v = d[4];
    uint64_t parts = a * (nope + rope) + a * (nope + v) + rope;

    return smp_mul(smp_mul(d[0], parts + a * (2 * (nope + rope) + v)), e);
}

static uint64_t loss_bytes(const smp_task *t, uint64_t e)
{
    uint64_t logits = smp_mul(t->dims[0], t->dims[1]);

    if (t->op == SMP_OP_LOSS) {
        return logits * e + t->dims[0] * (4 + 12);
    }
    return 2 * logits * e + t->dims[0] * (4 + 12 * t->dims[4]);
}

static uint64_t update_bytes(const smp_task *t, uint64_t e, uint64_t e2)
{
    switch (t->op) {
    case SMP_OP_ADAMW: /* parameter, m, v read and written; gradient read */
        return smp_mul(t->dims[0], 6 * e + e2);
    case SMP_OP_SGD:
        return smp_mul(t->dims[0], 4 * e + e2);
    case SMP_OP_SQUARES:
        return smp_mul(t->dims[0], e);
    default: /* SCALARS */
        return 64;
    }
}

/* Passes over the scores that sinkhorn takes: two an iteration; the number of iterations
 * depends on the scores and is an estimate. */
enum { SINKHORN_PASSES = 16 };

static uint64_t route_bytes(const smp_task *t, uint64_t e)
{
    const uint64_t *d = t->dims;
    uint64_t scores = smp_mul(d[0], d[1]), choice = smp_mul(smp_mul(d[0], d[2]), 8);
    bool sinkhorn = (d[3] & 3) == SMP_BALANCING_SINKHORN;

    switch (t->op) {
    case SMP_OP_ROUTE:
        return smp_mul(scores, 4 * (sinkhorn ? SINKHORN_PASSES + 1 : 1)) + choice + 4 * d[1];
    case SMP_OP_ROUTE_STATISTICS:
        return scores * 4 + choice + 8 * d[1];
    case SMP_OP_ROUTE_GRAD: /* logits, dlogits, choice, dchoice */
        return scores * (4 + e) + choice + choice / 2;
    default: /* EXPERT_ROWS */
        return smp_mul(2 * d[1] + 2, d[0]) * 4;
    }
}

/* Of rows those that are expected, not the bound. */
static uint64_t rows_bytes(const smp_task *t, uint64_t e)
{
    const uint64_t *d = t->dims;
    uint64_t tokens = smp_mul(d[0], d[1]), rows = smp_mul(d[4], d[1]);
    uint64_t choice = smp_mul(smp_mul(d[0], d[2]), 8);

    switch (t->op) {
    case SMP_OP_PERMUTE: /* every row read and written */
        return 2 * rows * e + choice;
    case SMP_OP_PERMUTE_GRAD:
        return rows * e + out_bytes(t, tokens, e) + choice
               + (d[5] ? rows * e + choice / 2 : 0); /* x once a row, dchoice */
    case SMP_OP_COMBINE:
        return (rows + tokens) * e + choice;
    case SMP_OP_COMBINE_GRAD: /* dy once a row, rows, drows */
        return 3 * rows * e + choice + choice / 2;
    case SMP_OP_SORT_ROWS:
        return 2 * smp_mul(d[1], d[2]) * e;
    case SMP_OP_GATE_ROWS:
        return (2 * tokens + d[0]) * e;
    default: /* GATE_ROWS_GRAD: dy, x, dx, gate, dgate */
        return (3 * tokens + 2 * d[0]) * e;
    }
}

static uint64_t grouped_bytes(const smp_task *t, uint64_t e, uint64_t e2)
{
    const uint64_t *d = t->dims;
    uint64_t x = smp_mul(d[1], d[3]), y = smp_mul(d[1], d[2]);
    uint64_t w = smp_mul(smp_mul(d[2], d[3]), d[4]);

    if (t->op == SMP_OP_GROUPED_MATMUL_DW) {
        return smp_add(smp_mul(smp_add(x, y), e), out_bytes(t, w, e2));
    }
    return smp_mul(smp_add(smp_add(x, y), w), e);
}

/* Operations on `elements`, in bytes of each. */
static uint64_t element_bytes(const smp_task *t, uint64_t e, uint64_t e2)
{
    uint64_t n = t->dims[0];

    switch (t->op) {
    case SMP_OP_SOFTMAX:
        return 2 * smp_mul(n, t->dims[1]) * e;
    case SMP_OP_SOFTMAX_GRAD:
        return 3 * smp_mul(n, t->dims[1]) * e;
    case SMP_OP_GATED:
        return 3 * smp_mul(t->dims[3] ? t->dims[3] : n, t->dims[1]) * e;
    case SMP_OP_GATED_GRAD:
        return 5 * smp_mul(t->dims[3] ? t->dims[3] : n, t->dims[1]) * e;
    case SMP_OP_ACTIVATION:
        return 2 * smp_mul(t->dims[2] ? t->dims[2] : n, e);
    case SMP_OP_COPY:
        return 2 * smp_mul(n, e);
    case SMP_OP_ACTIVATION_GRAD:
        return 3 * smp_mul(t->dims[2] ? t->dims[2] : n, e);
    case SMP_OP_ADD:
        return smp_mul(n, e + 2 * residual_bytes(t, e));
    case SMP_OP_CLIP:
    case SMP_OP_CLIP_GRAD:
    case SMP_OP_DROPOUT:
    case SMP_OP_DROPOUT_GRAD:
        return smp_mul(n, 2 * e + 1);
    case SMP_OP_ACCUMULATE:
        return smp_add(smp_mul(n, e), out_bytes(t, n, e2));
    case SMP_OP_CAST:
        return smp_mul(n, e + e2);
    default: /* FILL, collectives, host copies */
        return smp_mul(n, e);
    }
}

uint64_t smp_task_bytes(const smp_task *task)
{
    uint64_t e = smp_dtype_bytes((smp_dtype)task->dtype);
    uint64_t e2 = smp_dtype_bytes((smp_dtype)task->dtype2);

    switch (task->op) {
    case SMP_OP_EMBED:
    case SMP_OP_EMBED_GRAD:
    case SMP_OP_POSITION:
    case SMP_OP_POSITION_GRAD:
        return table_bytes(task, e, e2);
    case SMP_OP_MATMUL:
    case SMP_OP_MATMUL_DX:
    case SMP_OP_MATMUL_DW:
        return matmul_bytes(task, e, e2);
    case SMP_OP_GROUPED_MATMUL:
    case SMP_OP_GROUPED_MATMUL_DX:
    case SMP_OP_GROUPED_MATMUL_DW:
        return grouped_bytes(task, e, e2);
    case SMP_OP_ROUTE:
    case SMP_OP_ROUTE_STATISTICS:
    case SMP_OP_ROUTE_GRAD:
    case SMP_OP_EXPERT_ROWS:
        return route_bytes(task, e);
    case SMP_OP_PERMUTE:
    case SMP_OP_PERMUTE_GRAD:
    case SMP_OP_SORT_ROWS:
    case SMP_OP_COMBINE:
    case SMP_OP_COMBINE_GRAD:
    case SMP_OP_GATE_ROWS:
    case SMP_OP_GATE_ROWS_GRAD:
        return rows_bytes(task, e);
    case SMP_OP_ALL_TO_ALL: /* the busiest rank's rows */
        return smp_mul(task->dims[2], e);
    case SMP_OP_NORM:
    case SMP_OP_NORM_GRAD:
    case SMP_OP_BIAS:
    case SMP_OP_BIAS_GRAD:
        return norm_bytes(task, e, e2);
    case SMP_OP_QK_NORM:
    case SMP_OP_QK_NORM_GRAD:
    case SMP_OP_QK_STATS:
    case SMP_OP_QK_DOTS:
    case SMP_OP_QK_RMS:
    case SMP_OP_QK_RMS_GRAD:
    case SMP_OP_TEMPER:
    case SMP_OP_ROPE:
    case SMP_OP_ROPE_GRAD:
        return rotary_bytes(task, e);
    case SMP_OP_LATENT:
    case SMP_OP_LATENT_GRAD:
        return latent_bytes(task, e);
    case SMP_OP_ATTENTION:
    case SMP_OP_ATTENTION_GRAD:
    case SMP_OP_SCORES:
    case SMP_OP_SCORES_GRAD:
    case SMP_OP_VALUES:
    case SMP_OP_VALUES_GRAD:
        return attention_bytes(task, e);
    case SMP_OP_LOSS:
    case SMP_OP_LOSS_GRAD:
        return loss_bytes(task, e);
    case SMP_OP_SQUARES:
    case SMP_OP_SCALARS:
    case SMP_OP_ADAMW:
    case SMP_OP_SGD:
        return update_bytes(task, e, e2);
    default:
        return element_bytes(task, e, e2);
    }
}

/* Where the expected number stands in the dims, and where the bound; false: no rows of
 * experts. */
static bool rows_at(const smp_task *t, int *expected_p, uint64_t *bound_p)
{
    const uint64_t *d = t->dims;

    switch (t->op) {
    case SMP_OP_GROUPED_MATMUL:
    case SMP_OP_GROUPED_MATMUL_DX:
    case SMP_OP_GROUPED_MATMUL_DW:
    case SMP_OP_SORT_ROWS:
        *expected_p = 1;
        *bound_p = d[0];
        return true;
    case SMP_OP_PERMUTE:
    case SMP_OP_PERMUTE_GRAD:
    case SMP_OP_COMBINE:
    case SMP_OP_COMBINE_GRAD:
        *expected_p = 4;
        *bound_p = d[3];
        return true;
    case SMP_OP_GATED:
    case SMP_OP_GATED_GRAD:
        *expected_p = 3;
        *bound_p = d[0];
        return d[3] > 0;
    case SMP_OP_ACTIVATION:
    case SMP_OP_ACTIVATION_GRAD:
        *expected_p = 2;
        *bound_p = d[0];
        return d[2] > 0;
    case SMP_OP_ALL_TO_ALL:
        *expected_p = 2;
        *bound_p = d[0] > d[1] ? d[0] : d[1];
        return true;
    default:
        return false;
    }
}

bool smp_task_scale_rows(smp_task *task, double factor)
{
    int at = 0;
    uint64_t bound = 0, least = 1;

    /* where all places are taken, numbers do not vary: rows of the rank's own tokens, padded
     * experts */
    if (!rows_at(task, &at, &bound) || task->dims[at] == 0 || task->dims[at] >= bound) {
        return false;
    }
    if (task->op == SMP_OP_ALL_TO_ALL) { /* what is sent does not vary */
        least = task->dims[0] < task->dims[1] ? task->dims[0] : task->dims[1];
    }
    uint64_t rows = (uint64_t)((double)task->dims[at] * factor + 0.5);
    rows = rows < least ? least : rows;
    rows = rows > bound ? bound : rows;
    bool changed = rows != task->dims[at];
    task->dims[at] = rows;
    return changed;
}
