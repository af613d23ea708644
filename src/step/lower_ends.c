/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ends of the model: embedding, and the head with its loss, chunk by chunk.
 *
 * Under tensor parallelism the vocabulary is split over the tensor group: the embedding's
 * parts are summed, and each rank has the logits of its part of the vocabulary.  Of the loss
 * each rank gathers (maximum, sum of exponentials, target logit) of every part: 12 bytes a
 * token, one collective, exact.  Forward and backward of a chunk are one segment, so that
 * only one chunk of logits exists at a time.
 */
#include "step/lower.h"

#include "base/numeric.h"

static smp_task end_task(const smp_lowering *low, const char *name, smp_op op,
                         smp_phase phase)
{
    return (smp_task){ .name = name,
                       .op = (uint16_t)op,
                       .stream = SMP_STREAM_COMPUTE,
                       .phase = (uint8_t)phase,
                       .dtype = (uint8_t)low->compute,
                       .dtype2 = (uint8_t)low->compute,
                       .comm = SMP_NO_COMM };
}

static void set_dims(smp_task *task, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    task->dims[0] = a;
    task->dims[1] = b;
    task->dims[2] = c;
    task->dims[3] = d;
}

/* A task whose parameter gradient is written, or added to where `add`. */
static void set_grad(const smp_lowering *low, smp_task *task, bool add)
{
    task->dtype2 = (uint8_t)low->reduce;
    if (add) {
        task->flags |= SMP_FLAG_ACCUMULATE;
    }
}

static void add_collective(smp_lowering *low, const char *name, smp_op op, smp_phase phase,
                           smp_ref from, smp_ref to, uint64_t elems, smp_dtype dtype)
{
    smp_task task = end_task(low, name, op, phase);

    task.stream = SMP_STREAM_TENSOR;
    task.comm = low->tensor_comm;
    task.dtype = task.dtype2 = (uint8_t)dtype;
    task.dims[0] = elems;
    if (op == SMP_OP_ALL_REDUCE) {
        smp_build_task(&low->build, &task, (smp_access[]){ smp_updates(to) }, 1);
    } else {
        smp_build_task(&low->build, &task, (smp_access[]){ smp_reads(from), smp_writes(to) },
                       2);
    }
}

static smp_ref scratch_ref(smp_lowering *low, const char *name, uint64_t bytes)
{
    return smp_whole(smp_lower_scratch(low, name, SMP_KIND_WORKSPACE, bytes), bytes);
}

/* ---- embedding ---- */

typedef struct ends {
    uint64_t full_elems, row_elems; /* tokens x hidden, rows x hidden */
    uint64_t e;
    bool dropout;
    smp_ref x; /* input of layer 0 */
} ends;

static ends measure(const smp_lowering *low)
{
    ends m = { .full_elems = smp_mul(low->tokens, low->hidden),
               .row_elems = smp_mul(low->rows, low->hidden),
               .e = smp_dtype_bytes(low->compute),
               .dropout = low->model->embedding_dropout > 0 };

    m.x = smp_whole(low->variants[low->variant_of_layer[0]].input, smp_mul(m.row_elems, m.e));
    return m;
}

static void lower_position(smp_lowering *low, smp_ref x)
{
    smp_task task = end_task(low, "embed.position", SMP_OP_POSITION, SMP_PHASE_FORWARD);

    if (!smp_has(&low->root, SMP_ROLE_POSITION)) {
        return;
    }
    set_dims(&task, low->rows, low->hidden, low->seq,
             low->sequence ? low->tensor_rank * low->rows : 0);
    smp_build_task(&low->build, &task,
                   (smp_access[]){ smp_reads(smp_weight(low, &low->root, SMP_ROLE_POSITION,
                                                        1)),
                                   smp_updates(x) },
                   2);
}

static void lower_embed(smp_lowering *low)
{
    ends m = measure(low);
    smp_ref y = m.dropout ? scratch_ref(low, "embed.y", smp_mul(m.row_elems, m.e)) : m.x;
    smp_ref full = y;
    smp_task task = end_task(low, "embed", SMP_OP_EMBED, SMP_PHASE_FORWARD);

    low->embed = smp_build_segment(&low->build, "embed");
    if (low->sequence) {
        full = scratch_ref(low, "embed.full", smp_mul(m.full_elems, m.e));
    }
    set_dims(&task, low->tokens, low->hidden, low->local_vocab, 0);
    smp_build_task(&low->build, &task,
                   (smp_access[]){ smp_reads(smp_weight(low, &low->root, SMP_ROLE_EMBED, 1)),
                                   smp_reads(smp_whole(low->ids, low->build.program
                                                                     ->buffers[low->ids]
                                                                     .bytes)),
                                   smp_writes(full) },
                   3);
    if (low->tensor > 1) {
        add_collective(low, "embed.sum",
                       low->sequence ? SMP_OP_REDUCE_SCATTER : SMP_OP_ALL_REDUCE,
                       SMP_PHASE_FORWARD, full, y, m.full_elems, low->compute);
    }
    lower_position(low, y);
    if (m.dropout) {
        smp_ref mask = smp_whole(low->embed_mask, m.row_elems);

        task = end_task(low, "embed.dropout", SMP_OP_DROPOUT, SMP_PHASE_FORWARD);
        set_dims(&task, m.row_elems, smp_rate_bits(low->model->embedding_dropout),
                 smp_mul(low->seq, low->hidden), smp_mul(low->seq, low->hidden));
        task.dims[4] = low->sequence ? low->tensor_rank * m.row_elems : 0;
        task.dims[5] = SMP_SITE_EMBED;
        smp_build_task(&low->build, &task,
                       (smp_access[]){ smp_reads(y), smp_writes(m.x), smp_writes(mask) }, 3);
    }
}

static void lower_embed_grad(smp_lowering *low, bool add)
{
    ends m = measure(low);
    smp_ref d = smp_whole(low->d, smp_mul(m.row_elems, m.e));
    smp_task task;

    low->embed_grad[add] =
        smp_build_segment(&low->build, add ? "embed_grad.add" : "embed_grad");
    if (m.dropout) {
        smp_ref thinned = scratch_ref(low, "d.embed", smp_mul(m.row_elems, m.e));

        task = end_task(low, "embed.dropout.dx", SMP_OP_DROPOUT_GRAD, SMP_PHASE_BACKWARD);
        set_dims(&task, m.row_elems, smp_rate_bits(low->model->embedding_dropout), 0, 0);
        smp_build_task(&low->build, &task,
                       (smp_access[]){ smp_reads(d),
                                       smp_reads(smp_whole(low->embed_mask, m.row_elems)),
                                       smp_writes(thinned) },
                       3);
        d = thinned;
    }
    if (smp_has(&low->root, SMP_ROLE_POSITION)) {
        task = end_task(low, "embed.position.dw", SMP_OP_POSITION_GRAD, SMP_PHASE_BACKWARD);
        set_grad(low, &task, add);
        set_dims(&task, low->rows, low->hidden, low->seq,
                 low->sequence ? low->tensor_rank * low->rows : 0);
        smp_build_task(
            &low->build, &task,
            (smp_access[]){ smp_reads(d), smp_adds(smp_weight_grad(low, &low->root,
                                                                   SMP_ROLE_POSITION, 1),
                                                   add) },
            2);
    }
    if (low->sequence) {
        smp_ref full = scratch_ref(low, "d.embed.full", smp_mul(m.full_elems, m.e));

        add_collective(low, "embed.sum.dx", SMP_OP_ALL_GATHER, SMP_PHASE_BACKWARD, d, full,
                       m.full_elems, low->compute);
        d = full;
    }
    task = end_task(low, "embed.dw", SMP_OP_EMBED_GRAD, SMP_PHASE_BACKWARD);
    add = add || low->model->tied; /* the head has written it */
    set_grad(low, &task, add);
    set_dims(&task, low->tokens, low->hidden, low->local_vocab, 0);
    smp_build_task(
        &low->build, &task,
        (smp_access[]){ smp_reads(d),
                        smp_reads(smp_whole(low->ids,
                                            low->build.program->buffers[low->ids].bytes)),
                        smp_adds(smp_weight_grad(low, &low->root, SMP_ROLE_EMBED, 1), add) },
        3);
}

/* ---- head ---- */

typedef struct chunk {
    uint64_t row0, rows;  /* of this rank's rows */
    uint64_t tokens;      /* rows of all tensor ranks under sequence parallelism */
    smp_ref x, d;         /* input of the final norm and its gradient */
    smp_ref in;           /* input of the head, whole */
    smp_ref norm, logits, stats;
    smp_role weight, bias;
} chunk;

static chunk make_chunk(smp_lowering *low, uint32_t i)
{
    uint64_t e = smp_dtype_bytes(low->compute), step = smp_ceil_div(low->rows, low->n_chunk);
    uint64_t row_bytes = smp_mul(low->hidden, e), logits;
    chunk c = { .row0 = step * i };

    c.rows = c.row0 + step < low->rows ? step : low->rows - c.row0;
    c.tokens = c.rows * (low->sequence ? low->tensor : 1);
    c.x = (smp_ref){ .buffer =
                         low->variants[low->variant_of_layer[low->model->n_layer - 1]].output,
                     .delta = 1,
                     .offset_bytes = smp_mul(c.row0, row_bytes),
                     .bytes = smp_mul(c.rows, row_bytes) };
    c.d = c.x;
    c.d.buffer = low->d;
    c.d.delta = 0;
    c.norm = scratch_ref(low, "head.norm", smp_mul(c.rows, row_bytes));
    c.in = low->sequence ? scratch_ref(low, "head.in", smp_mul(c.tokens, row_bytes)) : c.norm;
    logits = smp_mul(smp_mul(c.tokens, low->local_vocab), e);
    c.logits = smp_whole(smp_lower_scratch(low, "logits", SMP_KIND_LOGITS, logits), logits);
    c.stats = scratch_ref(low, "loss.stats", smp_mul(c.tokens, 12 * low->tensor));
    c.weight = low->model->tied ? SMP_ROLE_EMBED : SMP_ROLE_HEAD_W;
    c.bias = SMP_ROLE_HEAD_B;
    return c;
}

static void head_forward(smp_lowering *low, const chunk *c)
{
    const smp_home *root = &low->root;
    smp_task task = end_task(low, "head.norm", SMP_OP_NORM, SMP_PHASE_FORWARD);

    set_dims(&task, c->rows, low->hidden, (uint64_t)low->variants[0].block->norm, 0);
    smp_build_task(&low->build, &task,
                   (smp_access[]){ smp_reads(c->x),
                                   smp_reads(smp_weight(low, root, SMP_ROLE_FINAL_NORM_W, 1)),
                                   smp_writes(c->norm) },
                   3);
    if (smp_has(root, SMP_ROLE_FINAL_NORM_B)) {
        smp_build_extend(&low->build,
                         smp_reads(smp_weight(low, root, SMP_ROLE_FINAL_NORM_B, 1)));
    }
    if (low->sequence) {
        add_collective(low, "head.spread", SMP_OP_ALL_GATHER, SMP_PHASE_FORWARD, c->norm,
                       c->in, smp_mul(c->tokens, low->hidden), low->compute);
    }
    task = end_task(low, "head.logits", SMP_OP_MATMUL, SMP_PHASE_FORWARD);
    set_dims(&task, c->tokens, low->local_vocab, low->hidden, 0);
    smp_build_task(&low->build, &task,
                   (smp_access[]){ smp_reads(c->in), smp_reads(smp_weight(low, root,
                                                                          c->weight, 1)),
                                   smp_writes(c->logits) },
                   3);
    if (smp_has(root, c->bias)) {
        smp_build_extend(&low->build, smp_reads(smp_weight(low, root, c->bias, 1)));
    }
}

static void head_loss(smp_lowering *low, const chunk *c)
{
    smp_task task = end_task(low, "loss", SMP_OP_LOSS, SMP_PHASE_FORWARD);
    smp_ref targets = smp_whole(low->targets, low->build.program->buffers[low->targets].bytes);
    smp_ref own = smp_part(c->stats, smp_mul(low->tensor_rank, c->tokens), c->tokens, 12);
    uint64_t first = c->row0 * (low->sequence ? low->tensor : 1);

    set_dims(&task, c->tokens, low->local_vocab, first, low->model->vocab);
    smp_build_task(&low->build, &task,
                   (smp_access[]){ smp_reads(c->logits), smp_reads(targets),
                                   smp_writes(own) },
                   3);
    if (low->tensor > 1) {
        add_collective(low, "loss.parts", SMP_OP_ALL_GATHER, SMP_PHASE_FORWARD, own, c->stats,
                       smp_mul(c->tokens, 3 * low->tensor), SMP_F32);
    }
    task = end_task(low, "loss.grad", SMP_OP_LOSS_GRAD, SMP_PHASE_BACKWARD);
    set_dims(&task, c->tokens, low->local_vocab, first, low->model->vocab);
    task.dims[4] = low->tensor;
    task.dims[5] = smp_mul(low->tokens, low->job->micro_batches);
    task.flags = SMP_FLAG_ACCUMULATE;
    smp_build_task(&low->build, &task,
                   (smp_access[]){ smp_updates(c->logits), smp_reads(targets),
                                   smp_reads(c->stats),
                                   smp_updates((smp_ref){ low->scalars, 0, 0, 16 }),
                                   smp_reads((smp_ref){ low->scalars, 0, 64, 64 }) },
                   5);
}

static void head_matmul_grads(smp_lowering *low, const chunk *c, smp_ref d_in, bool add)
{
    const smp_home *root = &low->root;
    smp_task task = end_task(low, "head.dx", SMP_OP_MATMUL_DX, SMP_PHASE_BACKWARD);

    set_dims(&task, c->tokens, low->hidden, low->local_vocab, 0);
    smp_build_task(&low->build, &task,
                   (smp_access[]){ smp_reads(c->logits), smp_reads(smp_weight(low, root,
                                                                              c->weight, 1)),
                                   smp_writes(d_in) },
                   3);
    task = end_task(low, "head.dw", SMP_OP_MATMUL_DW, SMP_PHASE_BACKWARD);
    set_grad(low, &task, add);
    set_dims(&task, low->local_vocab, low->hidden, c->tokens, 0);
    smp_build_task(&low->build, &task,
                   (smp_access[]){ smp_reads(c->logits), smp_reads(c->in),
                                   smp_adds(smp_weight_grad(low, root, c->weight, 1), add) },
                   3);
    if (smp_has(root, c->bias)) {
        smp_build_extend(&low->build, smp_adds(smp_weight_grad(low, root, c->bias, 1), add));
    }
}

static void head_backward(smp_lowering *low, const chunk *c, bool add)
{
    const smp_home *root = &low->root;
    smp_ref d_in = scratch_ref(low, "d.head.in", c->in.bytes), d_norm = d_in;
    smp_task task = end_task(low, "head.norm.dx", SMP_OP_NORM_GRAD, SMP_PHASE_BACKWARD);

    head_matmul_grads(low, c, d_in, add);
    if (low->sequence) {
        d_norm = scratch_ref(low, "d.head.norm", c->norm.bytes);
    }
    if (low->tensor > 1) {
        add_collective(low, "head.spread.dx",
                       low->sequence ? SMP_OP_REDUCE_SCATTER : SMP_OP_ALL_REDUCE,
                       SMP_PHASE_BACKWARD, d_in, d_norm, smp_mul(c->tokens, low->hidden),
                       low->compute);
    }
    set_grad(low, &task, add);
    set_dims(&task, c->rows, low->hidden, (uint64_t)low->variants[0].block->norm, 0);
    smp_build_task(
        &low->build, &task,
        (smp_access[]){ smp_reads(d_norm), smp_reads(c->x),
                        smp_reads(smp_weight(low, root, SMP_ROLE_FINAL_NORM_W, 1)),
                        smp_writes(c->d),
                        smp_adds(smp_weight_grad(low, root, SMP_ROLE_FINAL_NORM_W, 1), add) },
        5);
    if (smp_has(root, SMP_ROLE_FINAL_NORM_B)) {
        smp_build_extend(&low->build,
                         smp_adds(smp_weight_grad(low, root, SMP_ROLE_FINAL_NORM_B, 1), add));
    }
    if (low->orders_backward) {
        smp_build_extend(&low->build, smp_token(low->prefetch_token));
    }
}

/* One segment for each chunk: its rows are ranges of larger buffers. */
static void lower_heads(smp_lowering *low, bool add)
{
    low->heads[add] =
        SMP_ARENA_ARRAY(low->build.program->arena, low->n_chunk, uint16_t);
    for (uint32_t i = 0; i < low->n_chunk; i++) {
        chunk c = make_chunk(low, i);

        low->heads[add][i] = smp_build_segment(&low->build, add ? "head.add" : "head");
        head_forward(low, &c);
        head_loss(low, &c);
        head_backward(low, &c, add || i > 0);
    }
}

void smp_lower_ends(smp_lowering *low)
{
    lower_embed(low);
    for (int i = 0; i < low->dense.n_write; i++) {
        lower_heads(low, i == 1);
        lower_embed_grad(low, i == 1);
    }
    if (low->n_write > low->dense.n_write) { /* only gradients of experts are added to */
        low->heads[1] = low->heads[0];
        low->embed_grad[1] = low->embed_grad[0];
    }
}
