/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The step program: one optimizer step of one class of ranks, as data.
 *
 *   task      an operation with its sizes, the stream it runs on and its operands
 *   access    an operand: a buffer, a range in it, read and/or written
 *   segment   a short list of tasks, stored once: the forward of a block, the gather of a
 *             unit, ...
 *   instance  a segment at a (layer, micro-batch, turn); the order of instances is the order
 *             in which the host issues, and the order in which a serial executor runs
 *   pattern   the waits of an instance, shared by all instances with the same waits
 *   buffer    memory with an address formula; where it lies is decided by the memory plan
 *
 * Streams are FIFO.  A wait names a task of the same or an earlier instance.  Lowering says
 * nothing about waits: it issues tasks in host order with their accesses, the memory plan
 * gives every buffer its place, and waits are then derived from the accesses, on places: a
 * task waits for every earlier task on another stream that accesses the same place unless
 * both only read.  So data flow, reuse of memory, rate limits (rings of k slots), the
 * order on one communicator and credits (tokens) are one mechanism, and the verifier can
 * prove the whole of it.
 *
 * Addresses: index = NONE: base.  LAYER: base + (layer + delta - first) * stride, modulo
 * `slots` when slots > 0; or base + entry_of_layer[layer + delta - first] * stride.
 * TURN: slot_base[(turn + delta) mod slots].
 */
#ifndef SMP_STEP_PROGRAM_H
#define SMP_STEP_PROGRAM_H

#include "base/arena.h"
#include "mesh/mesh.h"
#include "mesh/runtime.h"
#include "model/model.h"
#include "smp.h"

typedef enum smp_dtype { SMP_F32, SMP_BF16, SMP_F16, SMP_U8, SMP_I32, SMP_DTYPES } smp_dtype;
uint32_t smp_dtype_bytes(smp_dtype dtype);
smp_dtype smp_precision_dtype(smp_precision precision);
const char *smp_dtype_name(smp_dtype dtype);

/* Share of the probabilities that training drops. */
static inline double smp_attention_dropout(const smp_settings *settings,
                                           const smp_attention *attention)
{
    return settings->attention_dropout < 0 ? attention->dropout : settings->attention_dropout;
}

typedef enum smp_op_class {
    SMP_CLASS_MATMUL,     /* tensor cores */
    SMP_CLASS_ATTENTION,  /* fused attention */
    SMP_CLASS_MEMORY,     /* bound by memory traffic: norms, activations, casts, optimizer */
    SMP_CLASS_COLLECTIVE,
    SMP_CLASS_HOST_COPY   /* device to host or back */
} smp_op_class;

/* X(NAME, "text", class, "operands in order; dims in order; what it does")
 * Operands are the task's accesses in this order; r read, w written, a written or added to
 * (flag ACCUMULATE).  Optional operands in brackets come last; tokens that order the task
 * come after all operands. */
#define SMP_OP_LIST(X)                                                                        \
    X(EMBED, "embed", MEMORY, "r table, r ids, w y; tokens, hidden, vocab, first token of the micro-batch; rows of the vocabulary outside the rank's part give 0; times the model's embedding_scale, as is its gradient") \
    X(EMBED_GRAD, "embed_grad", MEMORY, "r dy, r ids, a dtable; tokens, hidden, vocab, first token") \
    X(POSITION, "position", MEMORY, "r table, a x; tokens, hidden, positions, first token: adds learned positions") \
    X(POSITION_GRAD, "position_grad", MEMORY, "r dx, a dtable; tokens, hidden, positions, first token") \
    X(MATMUL, "matmul", MATMUL, "r x[m,k], r w[n,k], w y[m,n], [r bias[n]]; m, n, k, row: elements from one row of x to the next, 0: k") \
    X(MATMUL_DX, "matmul_dx", MATMUL, "r dy[m,k], r w[k,n], a dx[m,n]; m, n, k, row of dx: the input gradient, n in features, k out features; columns of dx beyond n are left alone") \
    X(MATMUL_DW, "matmul_dw", MATMUL, "r dy[k,m], r x[k,n], a dw[m,n], [a dbias[m]]; m, n, k, row of x: the weight gradient, m out features, n in features, k tokens") \
    X(NORM, "norm", MEMORY, "r x, r w, w y, [r bias]; rows, width, smp_norm_kind, tail: elements behind the width in each row, copied") \
    X(NORM_GRAD, "norm_grad", MEMORY, "r dy, r x, r w, a dx (flag ADD_DX), a dw, [a dbias]; rows, width, smp_norm_kind, tail: statistics are computed again") \
    X(QK_NORM, "qk_norm", MEMORY, "a qkv, r q_w, r k_w, w raw[tokens, (heads + kv_heads) head_dim], [r stats], [r q_bias, r k_bias]; tokens, heads, kv_heads, head_dim, smp_norm_kind, smp_qk_form, copies of a kv head, tensor ranks: q and k in place, what they were is kept for backward") \
    X(QK_NORM_GRAD, "qk_norm_grad", MEMORY, "a dqkv, r raw, r q_w, r k_w, a dq_w, a dk_w, [r stats, r dots], [a dq_bias, a dk_bias]; dims as QK_NORM: what dots take from k is divided by the copies of a kv head") \
    X(QK_STATS, "qk_stats", MEMORY, "r qkv, w stats[tokens, 2]; dims as QK_NORM: sums of squares of the rank's part of q and of k in fp32 (of k divided by copies), to be summed over the tensor ranks; form whole only") \
    X(QK_DOTS, "qk_dots", MEMORY, "r dqkv, r raw, r stats, r q_w, r k_w, w dots[tokens, 2]; dims as QK_NORM: sums over the rank's part of dy w x / rms, to be summed over the tensor ranks") \
    X(QK_RMS, "qk_rms", MEMORY, "a qkv, w rstd[tokens, heads + kv_heads] fp32; tokens, heads, kv_heads, head_dim: each head of q and k is divided by its root mean square, in place") \
    X(QK_RMS_GRAD, "qk_rms_grad", MEMORY, "a dqkv, r qkv as QK_RMS left it, r rstd; dims as QK_RMS") \
    X(TEMPER, "temper", MEMORY, "a qkv; tokens, heads, kv_heads, head_dim, seq: scales q by its position in place (smp_attention.temperature); of dqkv: its own gradient") \
    X(CLIP, "clip", MEMORY, "a x, w mask; elements: to the block's attention.clip; one byte of mask an element") \
    X(CLIP_GRAD, "clip_grad", MEMORY, "a dx, r mask; elements: zero where clipped") \
    X(LATENT, "latent", MEMORY, "r q[heads (nope + rope)], r kv[heads (nope + v)], r latent, w qkv; tokens, heads, nope, rope, v, seq, row of latent: q, k and v of latent attention; the rope parts of q and of the latent's last elements are rotated, the latter are k's in all heads") \
    X(LATENT_GRAD, "latent_grad", MEMORY, "r dqkv, w dq, w dkv, w dlatent; dims as LATENT: of dlatent only the rope part, summed over heads") \
    X(BIAS, "bias", MEMORY, "a x, r bias; rows, width: in place, for biases that are added after a reduction") \
    X(BIAS_GRAD, "bias_grad", MEMORY, "r dy, a dbias; rows, width") \
    X(ROPE, "rope", MEMORY, "a qkv; tokens, heads, kv_heads, head_dim, rotated, seq: in place on q and k") \
    X(ROPE_GRAD, "rope_grad", MEMORY, "a dqkv; tokens, heads, kv_heads, head_dim, rotated, seq: the inverse rotation, in place") \
    X(ATTENTION, "attention", ATTENTION, "r qkv, w y, w lse, [r sinks]; batch, seq, heads, kv_heads, head_dim, window, head_dim of v where it differs; fused, causal; scale, softcap and alibi are the model's") \
    X(ATTENTION_GRAD, "attention_grad", ATTENTION, "r dy, r qkv, r y, r lse, w dqkv, [r sinks, a dsinks]; dims as ATTENTION; dsinks in dtype2") \
    X(SCORES, "scores", MATMUL, "r qkv, w scores; dims as ATTENTION: q k^T of naive attention (flag LAYER_SCALED: over the number of the layer, also in the other three)") \
    X(SOFTMAX, "softmax", MEMORY, "r scores, w probabilities, [r sinks]; rows, width, window: causal; softcap, alibi") \
    X(SOFTMAX_GRAD, "softmax_grad", MEMORY, "r dprobabilities, r probabilities, w dscores, [r scores where they are capped], [r sinks, a dsinks]; rows, width") \
    X(VALUES, "values", MATMUL, "r probabilities, r qkv, w y; dims as ATTENTION") \
    X(VALUES_GRAD, "values_grad", MATMUL, "r dy, r probabilities, r qkv, w dprobabilities, w dqkv; dims as ATTENTION: writes the part of v") \
    X(SCORES_GRAD, "scores_grad", MATMUL, "r dscores, r qkv, a dqkv; dims as ATTENTION: writes the parts of q and k") \
    X(ACTIVATION, "activation", MEMORY, "r x, w y; elements, smp_activation, [expected elements]") \
    X(ACTIVATION_GRAD, "activation_grad", MEMORY, "r dy, r x, w dx; elements, smp_activation, [expected elements]") \
    X(GATED, "gated", MEMORY, "r gate_up, w y; tokens, ffn, smp_activation, [expected tokens]: y = act(gate) * up") \
    X(GATED_GRAD, "gated_grad", MEMORY, "r dy, r gate_up, w dgate_up; tokens, ffn, smp_activation, [expected tokens]") \
    X(DROPOUT, "dropout", MEMORY, "r x, w y, w mask; elements, rate / 2^-32, width, stride, first, site: one byte of mask an element; element i is number first + i / width * stride + i % width of the micro-batch over the tensor group, stride the elements of one sequence; site tells the dropouts of a layer apart") \
    X(DROPOUT_GRAD, "dropout_grad", MEMORY, "r dy, r mask, w dx; elements, rate / 2^-32") \
    X(ADD, "add", MEMORY, "r a, r b, w y; elements") \
    X(COPY, "copy", MEMORY, "r x, w y; elements") \
    X(ACCUMULATE, "accumulate", MEMORY, "r x, a y; elements: y = or += x, from dtype to dtype2") \
    X(CAST, "cast", MEMORY, "r x, w y; elements: from dtype2 to dtype") \
    X(FILL, "fill", MEMORY, "w y; elements: zero") \
    X(LOSS, "loss", MEMORY, "r logits, r targets, w stats[tokens, 3]; logits are scaled and capped as the model says; tokens, vocab of the rank, first token, true vocab: maximum, sum of exponentials and target logit over the rank's part") \
    X(LOSS_GRAD, "loss_grad", MEMORY, "a logits, r targets, r stats[parts, tokens, 3], a loss, r scalars (the loss scale); tokens, vocab of the rank, first token, true vocab, parts, tokens that the loss is a mean over: logits become their gradient in place") \
    X(SQUARES, "squares", MEMORY, "r gradient, a sum; elements, unit, first element in the unit: adds sum of squares (each over smp_unit_param.copies, times smp_unit.weight) and overflow flag") \
    X(SCALARS, "scalars", MEMORY, "r sum, a scalars; 1: clip factor, loss scale, step count, on the device") \
    X(ADAMW, "adamw", MEMORY, "a parameter, r gradient, a m, a v, r scalars; elements, unit, first element in the unit, 1: decay joins the gradient: update selected by the overflow flag; gradient in dtype2") \
    X(SGD, "sgd", MEMORY, "a parameter, r gradient, a momentum, r scalars; elements, unit, first element in the unit; gradient in dtype2") \
    X(ALL_GATHER, "all_gather", COLLECTIVE, "r x, w y; elements of y; x may be this rank's part of y") \
    X(REDUCE_SCATTER, "reduce_scatter", COLLECTIVE, "r x, w y; elements of x") \
    X(ALL_REDUCE, "all_reduce", COLLECTIVE, "a x; elements; in place") \
    X(INPUT, "input", HOST_COPY, "w inputs; elements at most: ids and then targets of the next micro-batch, or of the first of the next step, from wherever the host has them") \
    X(STORE, "store", HOST_COPY, "r device, w host; elements") \
    X(LOAD, "load", HOST_COPY, "r host, w device; elements") \
    X(ROUTE, "route", MEMORY, "r logits[tokens, experts] fp32, w choice[tokens, top_k] of (weight fp32, expert i32), w counts[experts] i32, [r correction]; tokens, experts, top_k, smp_route, groups + chosen groups 2^32, capacity: what lies beyond the capacity has weight 0") \
    X(ROUTE_STATISTICS, "route_statistics", MEMORY, "r logits, r choice, w sums[2, experts] fp32; tokens, experts, top_k: probabilities and choices of each expert") \
    X(ROUTE_GRAD, "route_grad", MEMORY, "r dchoice, r logits, r choice, w dlogits, r scalars (the loss scale), [r sums], [a dcorrection: 0]; tokens, experts, top_k, smp_route, coefficient of the balancing loss / 2^-32, of the z loss / 2^-32") \
    X(EXPERT_ROWS, "expert_rows", MEMORY, "r counts[parts, experts], w layout[parts + 2, experts], a sum; experts, parts, experts of the rank, bound: where rows stand; more than the bound are cut off and counted in the sum") \
    X(PERMUTE, "permute", MEMORY, "r x[tokens, hidden], r choice, r counts or layout, w rows[bound, hidden]; tokens, hidden, top_k, bound, expected rows, 1: times the weight: copies of tokens, by expert") \
    X(PERMUTE_GRAD, "permute_grad", MEMORY, "r drows, r choice, r counts or layout, a dx, [r x, w dchoice where rows have weights]; dims as PERMUTE") \
    X(SORT_ROWS, "sort_rows", MEMORY, "r x, r layout, w y; bound, expected rows, hidden, 1: back: rows by source rank to rows by expert") \
    X(COMBINE, "combine", MEMORY, "r rows, r choice, r counts or layout, w y; tokens, hidden, top_k, bound, expected rows, 1: without weights, so that its gradient is PERMUTE: weighted sums; 0 for tokens without rows") \
    X(COMBINE_GRAD, "combine_grad", MEMORY, "r dy, r rows, r choice, r counts or layout, w drows, w dchoice; tokens, hidden, top_k, bound, expected rows") \
    X(GROUPED_MATMUL, "grouped_matmul", MATMUL, "r x[bound, k], r counts or layout, r w[experts, n, k], w y[bound, n], [r bias[experts, n]]; bound, expected rows, n, k, experts of the rank, expert ranks, parameters that follow each other (gate and up: 2), each of all experts, ranks whose results are summed: each adds the bias divided by their number") \
    X(GROUPED_MATMUL_DX, "grouped_matmul_dx", MATMUL, "r dy[bound, k], r counts or layout, r w[experts, k, n], w dx[bound, n]; dims as GROUPED_MATMUL") \
    X(GROUPED_MATMUL_DW, "grouped_matmul_dw", MATMUL, "r dy[bound, n], r x[bound, k], r counts or layout, a dw[experts, n, k], [a dbias]; dims as GROUPED_MATMUL: gradients are divided by the expert ranks, dbias also by the ranks that each add a part of the bias") \
    X(GATE_ROWS, "gate_rows", MEMORY, "r gate[rows], r x, w y; rows, width: y = sigmoid(gate) x") \
    X(GATE_ROWS_GRAD, "gate_rows_grad", MEMORY, "r dy, r gate, r x, w dgate, w dx; rows, width") \
    X(ALL_TO_ALL, "all_to_all", COLLECTIVE, "r x, w y, [r layout]; elements of x, of y, expected elements that the busiest rank sends or receives, 1: rows go back to where they came from, [tokens of the rank, top_k + 2^32 groups of experts that a token goes to, hidden, groups of experts (1: it goes to any)]: the optional ones where fused kernels send rows, for costs")

#define SMP_OP_ENUM_(NAME, text, klass, doc) SMP_OP_##NAME,
typedef enum smp_op { SMP_OP_LIST(SMP_OP_ENUM_) SMP_OPS } smp_op;
#undef SMP_OP_ENUM_
typedef struct smp_op_info {
    const char *name;
    smp_op_class klass;
    const char *doc;
} smp_op_info;
const smp_op_info *smp_op_info_of(smp_op op);

/* dims[3] of ROUTE and ROUTE_GRAD: an smp_balancing, these, and in the upper half the bits of
 * the scale of the weights, a float. */
enum {
    SMP_ROUTE_SIGMOID = 16,   /* scores; else softmax */
    SMP_ROUTE_NORMALISE = 32, /* weights of the chosen sum to 1 */
    SMP_ROUTE_POSITION = 64,  /* drops the last tokens beyond the capacity, else the lightest */
    SMP_ROUTE_PAD = 128       /* experts are filled up to the capacity */
};

/* Where dropout stands in a layer (probabilities: inside attention, fused or not). */
enum { SMP_SITE_PROBABILITIES, SMP_SITE_ATTENTION, SMP_SITE_MLP, SMP_SITE_EMBED };

/* What a norm of q and k is over, and which weights it has. */
typedef enum smp_qk_form {
    SMP_QK_SHARED, /* each head; the weights of a head are those of all */
    SMP_QK_OWN,    /* each head, with weights of its own */
    SMP_QK_WHOLE   /* all heads of q, all heads of k: over the tensor ranks */
} smp_qk_form;

/* What a task belongs to: for the parts of time. */
typedef enum smp_phase {
    SMP_PHASE_FORWARD, SMP_PHASE_RECOMPUTE, SMP_PHASE_BACKWARD, SMP_PHASE_UPDATE, SMP_PHASES
} smp_phase;

typedef enum smp_stream {
    SMP_STREAM_COMPUTE, SMP_STREAM_UNSHARD, SMP_STREAM_REDUCE, SMP_STREAM_REPLICATE,
    SMP_STREAM_TENSOR, SMP_STREAM_EXPERT, SMP_STREAM_SHARED, SMP_STREAM_OFFLOAD,
    SMP_STREAM_LOAD, SMP_STREAMS
} smp_stream;
const char *smp_stream_name(smp_stream stream);

typedef enum smp_buffer_kind {
    SMP_KIND_PARAMETER,  /* shard, or whole where not sharded */
    SMP_KIND_GRADIENT,   /* reduced gradient kept over the step */
    SMP_KIND_OPTIMIZER,
    SMP_KIND_UNSHARDED,  /* gathered parameters, gradients before reduction */
    SMP_KIND_ACTIVATION, /* saved for backward */
    SMP_KIND_LOGITS,
    SMP_KIND_WORKSPACE,  /* transient inside a segment; counted as activations */
    SMP_KIND_COMM,       /* staging of collectives */
    SMP_KIND_SCALAR,     /* loss scale, flags, norms, ids and targets */
    SMP_KIND_TOKEN,      /* no memory: an order to keep */
    SMP_KINDS
} smp_buffer_kind;
const char *smp_kind_name(smp_buffer_kind kind);

typedef enum smp_space {
    SMP_SPACE_DEVICE,
    SMP_SPACE_HOST,
    SMP_SPACE_TOKEN,
    SMP_SPACES
} smp_space;
typedef enum smp_index { SMP_INDEX_NONE, SMP_INDEX_LAYER, SMP_INDEX_TURN } smp_index;

/* How long the contents of an entry must survive; entries are also distinguished by their
 * index, so that a LAYER buffer of scope MICROBATCH lives from its first access at (layer,
 * micro-batch) to its last.  Used by the memory plan and the live-bytes count. */
typedef enum smp_scope {
    SMP_SCOPE_STEP,       /* the whole step: static */
    SMP_SCOPE_MICROBATCH, /* from first to last access within a micro-batch (or a turn) */
    SMP_SCOPE_INSTANCE    /* within one instance of a segment: scratch */
} smp_scope;

typedef struct smp_buffer {
    const char *name;
    smp_buffer_kind kind;
    smp_space space;
    smp_index index;
    smp_scope scope;
    uint32_t first;        /* LAYER: the layer of entry 0 */
    uint32_t entries;      /* LAYER with slots == 0: number of layers covered; else 1 */
    uint32_t layers;       /* of the table below */
    const uint16_t *entry_of_layer; /* LAYER with slots == 0, where not every layer from the
                              first to the last has an entry: that of layer first + i */
    uint32_t slots;        /* ring size, 0: no ring */
    uint64_t bytes;        /* of one entry, a multiple of SMP_ALIGN_BYTES */
    /* filled by the memory plan */
    uint64_t base, stride; /* NONE and LAYER */
    uint32_t slot_base;    /* TURN: index in program->slot_bases */
} smp_buffer;
enum { SMP_ALIGN_BYTES = 256, SMP_NO_ENTRY = 0xffff };

typedef struct smp_access {
    uint16_t buffer;
    int8_t delta;           /* added to layer or turn */
    bool reads, writes;
    uint64_t offset_bytes, bytes; /* range inside the entry; bytes > 0 except tokens (1) */
} smp_access;

enum { SMP_NO_COMM = 255, SMP_MAX_DIMS = 8 };
/* Task flags. */
enum {
    SMP_FLAG_ACCUMULATE = 1, /* outputs marked `a` are added to */
    SMP_FLAG_CAUSAL = 2,
    SMP_FLAG_AVERAGE = 4,    /* a reduction that divides by the group size */
    SMP_FLAG_ADD_DX = 8,     /* NORM_GRAD: dx is added to (ACCUMULATE speaks of dw, dbias) */
    SMP_FLAG_CHUNKED = 16,   /* the window does not slide: the sequence is cut into windows */
    SMP_FLAG_FP32_RESIDUAL = 32, /* NORM, NORM_GRAD: x and dx are fp32; ADD: a and y are */
    SMP_FLAG_LAYER_SCALED = 64   /* scores are stored divided by the layer's number, from 1 */
};

typedef struct smp_task {
    const char *name;       /* "attention.qkv", unique inside its segment */
    uint16_t op;            /* smp_op */
    uint8_t stream;         /* smp_stream */
    uint8_t phase;          /* smp_phase */
    uint8_t dtype;          /* of inputs and arithmetic */
    uint8_t dtype2;         /* of the output, or the source of a cast */
    uint8_t comm;           /* index in program->comms, or SMP_NO_COMM */
    uint8_t flags;
    uint64_t dims[SMP_MAX_DIMS]; /* meaning per operation: SMP_OP_LIST */
    uint32_t access0, n_access;  /* slice of program->accesses */
} smp_task;

typedef struct smp_segment {
    const char *name;       /* "forward", "gather", ... */
    uint32_t task0, n_task; /* slice of program->tasks */
} smp_segment;

typedef struct smp_instance {
    uint16_t segment;
    uint16_t layer;         /* block, or chunk of the loss; 0 where it has none */
    uint32_t micro_batch;
    uint32_t turn;          /* running number of the visit of a unit: rings */
    uint32_t pattern;       /* index in program->patterns */
} smp_instance;

typedef struct smp_wait {
    uint16_t task;          /* the one that waits: index in its segment */
    uint16_t source;        /* awaited: index in the segment of the source instance */
    uint32_t back;          /* source instance = this instance - back; 0: the same */
} smp_wait;
typedef struct smp_pattern { uint32_t wait0, n_wait; } smp_pattern; /* sorted by task */

typedef struct smp_comm {
    const char *name;
    smp_group group;
    uint32_t ranks;
    smp_placement placement;
    uint32_t meeting;       /* see smp_class: which classes meet here */
} smp_comm;

/* The parameters of one unit on one tensor rank, as they lie in its flat buffer: those that
 * tensor parallelism splits in the order of roles, then those of which every tensor rank has
 * a whole copy, in the same order. */
typedef struct smp_unit_param {
    smp_role role;
    uint32_t param;         /* index in the block's params, or in the model's root */
    uint64_t offset, elems;
    uint32_t copies;        /* tensor ranks that hold the same elements */
} smp_unit_param;
typedef struct smp_unit {
    const char *name;
    const smp_block *block; /* NULL: the root unit */
    smp_unit_param params[SMP_ROLES];
    uint32_t n_param;
    int8_t at[SMP_ROLES];   /* index in params, or -1 */
    uint64_t elems;         /* of the whole unit */
    uint64_t tail;          /* offset of the first parameter that is not split */
    uint64_t shard_elems;   /* of a shard, padding included: ceil(elems / degree) */
    uint64_t own_first, own_elems; /* the rank's part; equal to the whole where unsharded */
    uint32_t experts;       /* ranks that split the experts, of which it has those of one; 1:
                               all, or none; their parameters lie one expert after the other */
    uint32_t weight;        /* of its squares in the gradient's norm: ranks that hold other
                               elements where others hold copies */
} smp_unit;

typedef struct smp_program {
    smp_arena *arena;       /* owns everything */
    uint32_t representative, count; /* of the class of ranks */
    smp_comm *comms; uint32_t n_comm;
    smp_unit *units; uint32_t n_unit; /* blocks by variant, then the root */
    smp_buffer *buffers; uint32_t n_buffer;
    smp_task *tasks; uint32_t n_task;
    smp_access *accesses; uint32_t n_access;
    smp_segment *segments; uint32_t n_segment;
    smp_instance *order; uint32_t n_instance;
    smp_pattern *patterns; uint32_t n_pattern;
    smp_wait *waits; uint32_t n_wait;
    uint64_t *slot_bases; uint32_t n_slot_base;
    uint64_t micro_batches;
    /* how the software runs it (src/mesh/runtime.h); zero: as the native executor does */
    smp_kernel_form kernels;
    smp_loss_kernel loss;
    smp_attention_kernel attention_kernel;
    double efficiency;
    bool host_launches;     /* the host launches every kernel: no captured graph */
    /* the memory plan's result */
    uint64_t arena_bytes, host_arena_bytes;
    uint64_t live_bytes;    /* peak of live bytes in serial issue order */
    uint64_t live_kind_bytes[SMP_KINDS]; /* at that peak; sums to live_bytes */
    bool apart;             /* every place has bytes of its own */
    struct smp_clocks *clocks; /* NULL: not kept (step/order.h) */
    uint64_t safety_bytes;  /* arena bytes beyond those that serial execution would need */
} smp_program;

/* Index of a LAYER buffer for a layer before any ring wraps it; below 0: none. */
static inline int64_t smp_layer_entry(const smp_buffer *buffer, int64_t layer)
{
    int64_t index = layer - (int64_t)buffer->first;
    bool inside = index >= 0 && index < (int64_t)buffer->layers;

    if (buffer->entry_of_layer == NULL) {
        return index;
    }
    return inside && buffer->entry_of_layer[index] != SMP_NO_ENTRY
               ? (int64_t)buffer->entry_of_layer[index] : -1;
}

/* Address of entry (instance, delta) of a buffer, in its space. */
uint64_t smp_buffer_address(const smp_program *program, const smp_buffer *buffer,
                            const smp_instance *instance, int delta);
/* Work of a task: floating point operations (FMA = 2; causal attention counts the half it
 * computes) and bytes moved through device memory; for a collective, the message as
 * nccl-tests counts it.  Formulas beside the code, sources in docs/formulas.md. */
uint64_t smp_task_flops(const smp_task *task);
uint64_t smp_task_bytes(const smp_task *task);
/* Another number of rows at the experts of the busiest rank, `factor` times the expected one,
 * at most the bound; false: the task's work does not depend on it. */
bool smp_task_scale_rows(smp_task *task, double factor);

/* The ranks of a job.  Jobs that differ in layers of the same kinds, micro-batches and what
 * saves activations only have the same. */
typedef struct smp_ranks {
    smp_mesh *mesh;
    smp_classes *classes;
} smp_ranks;
SMP_CHECK smp_status smp_ranks_create(const smp_job *job, smp_errors *errors,
                                      smp_ranks *ranks_p);
void smp_ranks_destroy(smp_ranks *ranks);

struct smp_step {
    smp_arena *arena;
    smp_program **programs; /* one per class */
    uint32_t n_program;
    smp_mesh *mesh;
    smp_classes *classes;
    bool borrows_ranks;     /* mesh and classes are those of an smp_ranks */
    /* totals of one rank and step, for mfu: model flops per token and so on are in job.h */
    double model_flops;     /* of the whole step over all ranks, without recomputation */
    double hardware_flops;  /* with recomputation */
    double state_bytes_per_parameter;
};

/* Plans memory: gives every buffer its place.  Then smp_program_derive_waits fills patterns
 * and waits.  Both are called by smp_step_lower. */
SMP_CHECK smp_status smp_program_plan_memory(smp_program *program, smp_errors *errors);
/* The same places; safety_bytes stays 0. */
SMP_CHECK smp_status smp_program_plan_arena(smp_program *program, smp_errors *errors);
/* Instead of a plan: every ring slot and scratch buffer at a place of its own.  A step takes
 * exactly as long as with a plan (memory.c).  live_bytes stays 0. */
SMP_CHECK smp_status smp_program_place_apart(smp_program *program, smp_errors *errors);
SMP_CHECK smp_status smp_program_derive_waits(smp_program *program, smp_errors *errors);
/* Proof for one program: every two conflicting accesses are ordered by a happens-before
 * path.  smp_step_verify calls it for each class and checks the union. */
SMP_CHECK smp_status smp_program_verify(const smp_program *program, smp_errors *errors);

/* As smp_step_lower, but for safety_bytes, which stay 0: for a search. */
SMP_CHECK smp_status smp_step_lower_arena(const smp_job *job, smp_errors *errors,
                                          smp_step **step_p);
/* As smp_step_lower, with places apart: for lower bounds of time. */
SMP_CHECK smp_status smp_step_lower_apart(const smp_job *job, smp_errors *errors,
                                          smp_step **step_p);
/* The same on ranks that are there; they outlive the step. */
SMP_CHECK smp_status smp_step_lower_apart_on(const smp_job *job, const smp_ranks *ranks,
                                             smp_errors *errors, smp_step **step_p);
SMP_CHECK smp_status smp_step_lower_arena_on(const smp_job *job, const smp_ranks *ranks,
                                             smp_errors *errors, smp_step **step_p);

/* The same; programs keep what smp_skeleton_create would otherwise find again. */
SMP_CHECK smp_status smp_step_lower_skeleton_on(const smp_job *job, const smp_ranks *ranks,
                                                smp_errors *errors, smp_step **step_p);

#endif
