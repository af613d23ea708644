/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ends of the model: embedding, and the head with its loss, chunk by chunk.
 *
 * Under tensor parallelism the vocabulary is split over the tensor group: the embedding's
 * parts are summed, and each rank has the logits of its part of the vocabulary.  Of the loss
 * each rank gathers (maximum, sum of exponentials, target logit) of every part: 12 bytes a
 * token, one collective, exact.  Forward and backward of a chunk are one segment, so that
 * only one chunk of logits exists at a time.  With distribute_embedding off each tensor rank
 * has the whole table and the whole head, and uses them on its own rows.
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

/* The table's rows are summed over the tensor group, projected to the hidden size where they
 * are narrower, given their positions, normed and thinned; most models have few of these. */
typedef struct ends {
    uint64_t width;                 /* of the table */
    uint64_t full_elems, narrow_elems, row_elems; /* tokens x width, rows x width, x hidden */
    uint64_t e;
    bool project, norm, dropout;
    smp_ref looked_up, raw, y, x;   /* after the sum, projection, norm, dropout */
    smp_ref residual;               /* x as the first layer reads it */
} ends;

/* Whether tensor ranks have their own rows between embedding and head, and all rows there. */
static bool gathers(const smp_lowering *low)
{
    return low->sequence && low->vocab_parts > 1;
}

/* Rows that the rank looks up, and the first of them. */
static uint64_t lookups(const smp_lowering *low)
{
    return low->vocab_parts > 1 ? low->tokens : low->rows;
}

static uint64_t first_lookup(const smp_lowering *low)
{
    return low->sequence && low->vocab_parts == 1 ? low->tensor_rank * low->rows : 0;
}

static ends measure(smp_lowering *low)
{
    uint64_t width = low->model->embedding_width;
    ends m = { .width = width,
               .full_elems = smp_mul(low->tokens, width),
               .narrow_elems = smp_mul(low->rows, width),
               .row_elems = smp_mul(low->rows, low->hidden),
               .e = smp_dtype_bytes(low->compute),
               .project = smp_has(&low->root, SMP_ROLE_EMBED_IN_W),
               .norm = smp_has(&low->root, SMP_ROLE_EMBED_NORM_W),
               .dropout = low->model->embedding_dropout > 0 };

    m.residual = smp_whole(low->variants[low->variant_of_layer[0]].input,
                           smp_mul(m.row_elems, smp_dtype_bytes(low->residual)));
    m.x = smp_residual_flag(low) ? scratch_ref(low, "embed.out", smp_mul(m.row_elems, m.e))
                                 : m.residual;
    m.y = m.dropout ? scratch_ref(low, "embed.y", m.x.bytes) : m.x;
    m.raw = m.norm ? smp_whole(low->embed_raw, m.x.bytes) : m.y;
    m.looked_up =
        m.project ? smp_whole(low->embed_narrow, smp_mul(m.narrow_elems, m.e)) : m.raw;
    return m;
}

static smp_ref root_weight(const smp_lowering *low, smp_role role)
{
    return smp_weight(low, &low->root, role, 1);
}

static smp_access root_grad(const smp_lowering *low, smp_role role, bool add)
{
    return smp_adds(smp_weight_grad(low, &low->root, role, 1), add);
}

/* The ids of the micro-batch, or the targets, which follow them. */
static smp_ref inputs_of(const smp_lowering *low, bool targets)
{
    return smp_part(smp_whole(low->inputs, smp_mul(low->tokens, 8)),
                    targets ? low->tokens : 0, low->tokens, 4);
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
                   (smp_access[]){ smp_reads(root_weight(low, SMP_ROLE_POSITION)),
                                   smp_updates(x) },
                   2);
}

static void add_cast(smp_lowering *low, const char *name, smp_phase phase, smp_ref from,
                     smp_ref to, uint64_t elems, bool to_fp32)
{
    smp_task task = end_task(low, name, SMP_OP_CAST, phase);

    task.dtype = (uint8_t)(to_fp32 ? SMP_F32 : low->compute);
    task.dtype2 = (uint8_t)(to_fp32 ? low->compute : SMP_F32);
    set_dims(&task, elems, 0, 0, 0);
    smp_build_task(&low->build, &task, (smp_access[]){ smp_reads(from), smp_writes(to) }, 2);
}

/* y = x W^T on the rank's own rows: each tensor rank has all of W. */
static void add_project(smp_lowering *low, const char *name, smp_role role, smp_ref x,
                        smp_ref y, uint64_t rows, uint64_t out, uint64_t in)
{
    smp_task task = end_task(low, name, SMP_OP_MATMUL, SMP_PHASE_FORWARD);

    set_dims(&task, rows, out, in, 0);
    smp_build_task(&low->build, &task,
                   (smp_access[]){ smp_reads(x), smp_reads(root_weight(low, role)),
                                   smp_writes(y) },
                   3);
}

static void add_project_grads(smp_lowering *low, const char *const names[2], smp_role role,
                              smp_ref dy, smp_ref x, smp_ref dx, const uint64_t mnk[3],
                              bool add)
{
    smp_task task = end_task(low, names[0], SMP_OP_MATMUL_DX, SMP_PHASE_BACKWARD);

    set_dims(&task, mnk[0], mnk[2], mnk[1], 0);
    smp_build_task(&low->build, &task,
                   (smp_access[]){ smp_reads(dy), smp_reads(root_weight(low, role)),
                                   smp_writes(dx) },
                   3);
    task = end_task(low, names[1], SMP_OP_MATMUL_DW, SMP_PHASE_BACKWARD);
    set_grad(low, &task, add);
    set_dims(&task, mnk[1], mnk[2], mnk[0], 0);
    smp_build_task(&low->build, &task,
                   (smp_access[]){ smp_reads(dy), smp_reads(x), root_grad(low, role, add) },
                   3);
}

/* The final norm reads the residual. */
static uint8_t norm_flag(const smp_lowering *low, smp_role role)
{
    return role == SMP_ROLE_FINAL_NORM_W ? smp_residual_flag(low) : 0;
}

/* A norm of the root unit; its bias follows its weight in the roles. */
static void add_norm(smp_lowering *low, const char *name, smp_role role, smp_ref x, smp_ref y,
                     uint64_t rows)
{
    smp_task task = end_task(low, name, SMP_OP_NORM, SMP_PHASE_FORWARD);

    set_dims(&task, rows, low->hidden, (uint64_t)low->variants[0].block->norm, 0);
    task.flags |= norm_flag(low, role);
    smp_build_task(&low->build, &task,
                   (smp_access[]){ smp_reads(x), smp_reads(root_weight(low, role)),
                                   smp_writes(y) },
                   3);
    if (smp_has(&low->root, (smp_role)(role + 1))) {
        smp_build_extend(&low->build, smp_reads(root_weight(low, (smp_role)(role + 1))));
    }
}

static void add_norm_grad(smp_lowering *low, const char *name, smp_role role, smp_ref dy,
                          smp_ref x, smp_ref dx, uint64_t rows, bool add)
{
    smp_task task = end_task(low, name, SMP_OP_NORM_GRAD, SMP_PHASE_BACKWARD);

    set_grad(low, &task, add);
    set_dims(&task, rows, low->hidden, (uint64_t)low->variants[0].block->norm, 0);
    task.flags |= norm_flag(low, role);
    smp_build_task(&low->build, &task,
                   (smp_access[]){ smp_reads(dy), smp_reads(x),
                                   smp_reads(root_weight(low, role)), smp_writes(dx),
                                   root_grad(low, role, add) },
                   5);
    if (smp_has(&low->root, (smp_role)(role + 1))) {
        smp_build_extend(&low->build, root_grad(low, (smp_role)(role + 1), add));
    }
}

static void lower_embed(smp_lowering *low)
{
    ends m = measure(low);
    smp_ref full = m.looked_up;
    smp_task task = end_task(low, "embed", SMP_OP_EMBED, SMP_PHASE_FORWARD);

    low->embed = smp_build_segment(&low->build, "embed");
    if (gathers(low)) {
        full = scratch_ref(low, "embed.full", smp_mul(m.full_elems, m.e));
    }
    set_dims(&task, lookups(low), m.width, low->local_vocab, first_lookup(low));
    smp_build_task(&low->build, &task,
                   (smp_access[]){ smp_reads(root_weight(low, SMP_ROLE_EMBED)),
                                   smp_reads(inputs_of(low, false)), smp_writes(full) },
                   3);
    if (low->vocab_parts > 1) {
        add_collective(low, "embed.sum",
                       low->sequence ? SMP_OP_REDUCE_SCATTER : SMP_OP_ALL_REDUCE,
                       SMP_PHASE_FORWARD, full, m.looked_up, m.full_elems, low->compute);
    }
    if (m.project) {
        add_project(low, "embed.project", SMP_ROLE_EMBED_IN_W, m.looked_up, m.raw, low->rows,
                    low->hidden, m.width);
    }
    lower_position(low, m.raw);
    if (m.norm) {
        add_norm(low, "embed.norm", SMP_ROLE_EMBED_NORM_W, m.raw, m.y, low->rows);
    }
    if (m.dropout) {
        smp_ref mask = smp_whole(low->embed_mask, m.row_elems);

        task = end_task(low, "embed.dropout", SMP_OP_DROPOUT, SMP_PHASE_FORWARD);
        set_dims(&task, m.row_elems, smp_rate_bits(low->model->embedding_dropout),
                 smp_mul(low->seq, low->hidden), smp_mul(low->seq, low->hidden));
        task.dims[4] = low->sequence ? low->tensor_rank * m.row_elems : 0;
        task.dims[5] = SMP_SITE_EMBED;
        smp_build_task(&low->build, &task,
                       (smp_access[]){ smp_reads(m.y), smp_writes(m.x), smp_writes(mask) }, 3);
    }
    if (smp_residual_flag(low)) {
        add_cast(low, "embed.widen", SMP_PHASE_FORWARD, m.x, m.residual, m.row_elems, true);
    }
}

/* From the gradient of layer 0's input back to what the table's rows were summed to. */
static smp_ref lower_embed_inner(smp_lowering *low, const ends *m, smp_ref d, bool add)
{
    smp_task task;

    if (m->dropout) {
        smp_ref thinned = scratch_ref(low, "d.embed", m->x.bytes);

        task = end_task(low, "embed.dropout.dx", SMP_OP_DROPOUT_GRAD, SMP_PHASE_BACKWARD);
        set_dims(&task, m->row_elems, smp_rate_bits(low->model->embedding_dropout), 0, 0);
        smp_build_task(&low->build, &task,
                       (smp_access[]){ smp_reads(d),
                                       smp_reads(smp_whole(low->embed_mask, m->row_elems)),
                                       smp_writes(thinned) },
                       3);
        d = thinned;
    }
    if (m->norm) {
        smp_ref raw = scratch_ref(low, "d.embed.raw", m->x.bytes);

        add_norm_grad(low, "embed.norm.dx", SMP_ROLE_EMBED_NORM_W, d, m->raw, raw, low->rows,
                      add);
        d = raw;
    }
    if (smp_has(&low->root, SMP_ROLE_POSITION)) {
        task = end_task(low, "embed.position.dw", SMP_OP_POSITION_GRAD, SMP_PHASE_BACKWARD);
        set_grad(low, &task, add);
        set_dims(&task, low->rows, low->hidden, low->seq,
                 low->sequence ? low->tensor_rank * low->rows : 0);
        smp_build_task(&low->build, &task,
                       (smp_access[]){ smp_reads(d), root_grad(low, SMP_ROLE_POSITION, add) },
                       2);
    }
    if (m->project) {
        smp_ref narrow = scratch_ref(low, "d.embed.narrow", m->looked_up.bytes);

        add_project_grads(low,
                          (const char *const[]){ "embed.project.dx", "embed.project.dw" },
                          SMP_ROLE_EMBED_IN_W, d, m->looked_up, narrow,
                          (uint64_t[]){ low->rows, low->hidden, m->width }, add);
        d = narrow;
    }
    return d;
}

static void lower_embed_grad(smp_lowering *low, bool add)
{
    ends m = measure(low);
    smp_ref d;
    smp_task task;

    low->embed_grad[add] =
        smp_build_segment(&low->build, add ? "embed_grad.add" : "embed_grad");
    d = smp_whole(low->d, m.residual.bytes);
    if (smp_residual_flag(low)) {
        smp_ref narrow = scratch_ref(low, "d.embed.out", m.x.bytes);

        add_cast(low, "embed.widen.dx", SMP_PHASE_BACKWARD, d, narrow, m.row_elems, false);
        d = narrow;
    }
    d = lower_embed_inner(low, &m, d, add);
    if (gathers(low)) {
        smp_ref full = scratch_ref(low, "d.embed.full", smp_mul(m.full_elems, m.e));

        add_collective(low, "embed.sum.dx", SMP_OP_ALL_GATHER, SMP_PHASE_BACKWARD, d, full,
                       m.full_elems, low->compute);
        d = full;
    }
    task = end_task(low, "embed.dw", SMP_OP_EMBED_GRAD, SMP_PHASE_BACKWARD);
    add = add || low->model->tied; /* the head has written it */
    set_grad(low, &task, add);
    set_dims(&task, lookups(low), m.width, low->local_vocab, first_lookup(low));
    smp_build_task(&low->build, &task,
                   (smp_access[]){ smp_reads(d), smp_reads(inputs_of(low, false)),
                                   root_grad(low, SMP_ROLE_EMBED, add) },
                   3);
    if (low->reduce_token != SMP_NO_BUFFER) {
        smp_build_extend(&low->build, smp_token(low->reduce_token));
    }
}

/* ---- head ---- */

/* A chunk's way: final norm (none where the last block ends with one), projection to the
 * table's width, the whole rows of all tensor ranks, logits. */
typedef struct chunk {
    uint64_t row0, rows;  /* of this rank's rows */
    uint64_t tokens;      /* rows of all tensor ranks where they are gathered */
    uint64_t width;       /* of the table */
    bool has_norm, project;
    smp_ref x, d;         /* input of the final norm and its gradient */
    smp_ref norm, out;    /* after the norm, after the projection */
    smp_ref in;           /* input of the head, whole */
    smp_ref logits, stats;
    smp_ref beside;       /* what the loss keeps beside the logits; no bytes: nothing */
    smp_role weight, bias;
} chunk;

static void place_chunk(smp_lowering *low, chunk *c)
{
    uint64_t e = smp_dtype_bytes(low->compute), logits;
    uint64_t row_bytes = smp_mul(low->hidden, smp_dtype_bytes(low->residual));
    uint64_t norm_bytes = smp_mul(smp_mul(c->rows, low->hidden), e);
    uint64_t narrow_bytes = smp_mul(c->width, e);

    c->x = (smp_ref){
        .buffer = low->variants[low->variant_of_layer[low->model->n_layer - 1]].output,
        .delta = 1,
        .offset_bytes = smp_mul(c->row0, row_bytes),
        .bytes = smp_mul(c->rows, row_bytes) };
    c->d = c->x;
    c->d.buffer = low->d;
    c->d.delta = 0;
    c->norm = c->has_norm ? scratch_ref(low, "head.norm", norm_bytes) : c->x;
    c->out = c->project ? scratch_ref(low, "head.out", smp_mul(c->rows, narrow_bytes))
                        : c->norm;
    c->in = gathers(low) ? scratch_ref(low, "head.in", smp_mul(c->tokens, narrow_bytes))
                          : c->out;
    logits = smp_mul(smp_mul(c->tokens, low->local_vocab), e);
    c->logits = smp_whole(smp_lower_scratch(low, "logits", SMP_KIND_LOGITS, logits), logits);
    c->stats = scratch_ref(low, "loss.stats", smp_mul(c->tokens, 12 * low->vocab_parts));
    c->beside.bytes = 0;
    if (low->loss >= SMP_LOSS_COMPILED) {
        uint64_t each = low->loss == SMP_LOSS_COMPILED ? e
                        : low->loss == SMP_LOSS_COPY   ? 4 : 12;
        uint64_t bytes = smp_mul(smp_mul(c->tokens, low->local_vocab), each);

        c->beside = smp_whole(smp_lower_scratch(low, "logits.beside", SMP_KIND_LOGITS, bytes),
                            bytes);
    }
}

static chunk make_chunk(smp_lowering *low, uint32_t i)
{
    uint64_t step = smp_ceil_div(low->rows, low->n_chunk);
    chunk c = { .row0 = step * i };

    c.rows = c.row0 + step < low->rows ? step : low->rows - c.row0;
    c.tokens = c.rows * (gathers(low) ? low->tensor : 1);
    c.width = low->model->embedding_width;
    c.has_norm = smp_has(&low->root, SMP_ROLE_FINAL_NORM_W);
    c.project = smp_has(&low->root, SMP_ROLE_EMBED_OUT_W);
    c.weight = low->model->tied ? SMP_ROLE_EMBED : SMP_ROLE_HEAD_W;
    c.bias = SMP_ROLE_HEAD_B;
    place_chunk(low, &c);
    return c;
}

static void head_forward(smp_lowering *low, const chunk *c)
{
    smp_task task;

    if (c->has_norm) {
        add_norm(low, "head.norm", SMP_ROLE_FINAL_NORM_W, c->x, c->norm, c->rows);
    }
    if (c->project) {
        add_project(low, "head.project", SMP_ROLE_EMBED_OUT_W, c->norm, c->out, c->rows,
                    c->width, low->hidden);
    }
    if (gathers(low)) {
        add_collective(low, "head.spread", SMP_OP_ALL_GATHER, SMP_PHASE_FORWARD, c->out,
                       c->in, smp_mul(c->tokens, c->width), low->compute);
    }
    task = end_task(low, "head.logits", SMP_OP_MATMUL, SMP_PHASE_FORWARD);
    set_dims(&task, c->tokens, low->local_vocab, c->width, 0);
    smp_build_task(&low->build, &task,
                   (smp_access[]){ smp_reads(c->in), smp_reads(root_weight(low, c->weight)),
                                   smp_writes(c->logits) },
                   3);
    if (smp_has(&low->root, c->bias)) {
        smp_build_extend(&low->build, smp_reads(root_weight(low, c->bias)));
    }
}

static void head_loss(smp_lowering *low, const chunk *c)
{
    smp_task task = end_task(low, "loss", SMP_OP_LOSS, SMP_PHASE_FORWARD);
    smp_ref targets = inputs_of(low, true);
    uint64_t part = low->vocab_parts > 1 ? low->tensor_rank : 0;
    smp_ref own = smp_part(c->stats, smp_mul(part, c->tokens), c->tokens, 12);
    uint64_t first = gathers(low) ? c->row0 * low->tensor : first_lookup(low) + c->row0;

    set_dims(&task, c->tokens, low->local_vocab, first, low->model->vocab);
    smp_build_task(&low->build, &task,
                   (smp_access[]){ smp_reads(c->logits), smp_reads(targets),
                                   smp_writes(own) },
                   3);
    if (c->beside.bytes > 0) {
        smp_build_extend(&low->build, smp_writes(c->beside));
    }
    if (low->vocab_parts > 1) {
        add_collective(low, "loss.parts", SMP_OP_ALL_GATHER, SMP_PHASE_FORWARD, own, c->stats,
                       smp_mul(c->tokens, 3 * low->vocab_parts), SMP_F32);
    }
    task = end_task(low, "loss.grad", SMP_OP_LOSS_GRAD, SMP_PHASE_BACKWARD);
    set_dims(&task, c->tokens, low->local_vocab, first, low->model->vocab);
    task.dims[4] = low->vocab_parts;
    task.dims[5] = smp_mul(low->tokens, low->job->micro_batches);
    task.flags = SMP_FLAG_ACCUMULATE;
    smp_build_task(&low->build, &task,
                   (smp_access[]){ smp_updates(c->logits), smp_reads(targets),
                                   smp_reads(c->stats),
                                   smp_updates((smp_ref){ low->scalars, 0, 0, 16 }),
                                   smp_reads((smp_ref){ low->scalars, 0, 64, 64 }) },
                   5);
    if (c->beside.bytes > 0) {
        smp_build_extend(&low->build, smp_updates(c->beside));
    }
}

static void head_matmul_grads(smp_lowering *low, const chunk *c, smp_ref d_in, bool add)
{
    smp_task task = end_task(low, "head.dx", SMP_OP_MATMUL_DX, SMP_PHASE_BACKWARD);

    set_dims(&task, c->tokens, c->width, low->local_vocab, 0);
    smp_build_task(&low->build, &task,
                   (smp_access[]){ smp_reads(c->logits),
                                   smp_reads(root_weight(low, c->weight)), smp_writes(d_in) },
                   3);
    task = end_task(low, "head.dw", SMP_OP_MATMUL_DW, SMP_PHASE_BACKWARD);
    set_grad(low, &task, add);
    set_dims(&task, low->local_vocab, c->width, c->tokens, 0);
    smp_build_task(&low->build, &task,
                   (smp_access[]){ smp_reads(c->logits), smp_reads(c->in),
                                   root_grad(low, c->weight, add) },
                   3);
    if (smp_has(&low->root, c->bias)) {
        smp_build_extend(&low->build, root_grad(low, c->bias, add));
    }
}

static void head_backward(smp_lowering *low, const chunk *c, bool add)
{
    smp_ref d_norm = c->has_norm ? scratch_ref(low, "d.head.norm", c->norm.bytes) : c->d;
    smp_ref d_out = c->project ? scratch_ref(low, "d.head.out", c->out.bytes) : d_norm;
    smp_ref d_in = gathers(low) ? scratch_ref(low, "d.head.in", c->in.bytes) : d_out;

    head_matmul_grads(low, c, d_in, add);
    if (low->vocab_parts > 1) {
        add_collective(low, "head.spread.dx",
                       low->sequence ? SMP_OP_REDUCE_SCATTER : SMP_OP_ALL_REDUCE,
                       SMP_PHASE_BACKWARD, d_in, d_out, smp_mul(c->tokens, c->width),
                       low->compute);
    }
    if (c->project) {
        add_project_grads(low, (const char *const[]){ "head.project.dx", "head.project.dw" },
                          SMP_ROLE_EMBED_OUT_W, d_out, c->norm, d_norm,
                          (uint64_t[]){ c->rows, c->width, low->hidden }, add);
    }
    if (c->has_norm) {
        add_norm_grad(low, "head.norm.dx", SMP_ROLE_FINAL_NORM_W, d_norm, c->x, c->d, c->rows,
                      add);
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
