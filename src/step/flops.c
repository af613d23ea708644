/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model's own floating point work, by which mfu is measured: no recomputation, no
 * padding, no copies; spec 2.6 and docs/formulas.md.
 *
 * Forward, per token (FMA = 2): q 2 h a d; k and v 4 h kv d; o 2 a d h; attention core over
 * the causal half: 2 s a d (with a window of w < s: 4 (w - w^2/(2 s)) a d; in parts of w: 2 w
 * a d where w divides s, in general 2 a d / s times the squares of the parts); MLP 4 h f, gated
 * 6 h f; logits 2 h V.  Latent attention: q 2 h r + 2 r a (n + p) through a latent of r, else
 * 2 h a (n + p); k and v 2 h (c + p) + 2 c a (n + v); core s a (n + p + v); o 2 a v h, with
 * n, p the parts of a head without and with rope, c the latent of k and v.  A table narrower
 * than h has projections of 2 h w each way and logits of 2 w V.  With E experts of which a
 * token goes to k: router 2 h E, and the MLP of k experts and of the shared ones; experts that
 * it does not go to count nothing.  Backward is twice forward.
 */
#include "step/lower.h"

#include <math.h>

static double mlp_flops(const smp_block *block, double h)
{
    const smp_moe *moe = &block->moe;

    if (moe->experts == 0) {
        return (block->mlp.gated ? 6 : 4) * h * (double)block->mlp.ffn;
    }
    return 2 * h * ((double)moe->experts + (moe->shared_gate ? 1 : 0))
           + (moe->gated ? 6 : 4) * h
                 * ((double)moe->top_k * (double)moe->ffn + (double)moe->shared_ffn);
}

static double latent_flops(const smp_attention *a, double h, double keys)
{
    double qk = (double)a->qk_nope_dim + a->qk_rope_dim, heads = a->heads, v = a->v_head_dim;
    double q = a->q_lora_rank > 0 ? (h + heads * qk) * a->q_lora_rank : h * heads * qk;
    double kv = h * ((double)a->kv_lora_rank + a->qk_rope_dim)
                + a->kv_lora_rank * heads * (a->qk_nope_dim + v);

    return 2 * (q + kv + heads * v * h + keys * heads * (qk + v));
}

/* The mean number of keys that a query sees. */
static double keys_of(const smp_attention *a, double seq)
{
    double window = a->window > 0 && a->window < seq ? (double)a->window : seq;
    double parts = floor(seq / window), rest = seq - parts * window;

    if (a->chunked) {
        return (parts * window * window + rest * rest) / (2 * seq);
    }
    return window - window * window / (2 * seq);
}

static double block_flops(const smp_model *model, const smp_block *block, double seq)
{
    const smp_attention *a = &block->attention;
    double h = (double)model->hidden, ad = (double)a->heads * a->head_dim;
    double kvd = (double)a->kv_heads * a->head_dim;
    double keys = keys_of(a, seq);
    double attention = 4 * h * ad + 4 * h * kvd + 4 * keys * ad;

    if (a->kv_lora_rank > 0) {
        attention = latent_flops(a, h, keys);
    }
    return attention + mlp_flops(block, h);
}

double smp_model_flops(const smp_job *job)
{
    const smp_model *model = job->model;
    double seq = (double)job->batch.seq_len, h = (double)model->hidden;
    double tokens = seq * (double)job->batch.global_batch;
    double width = (double)model->embedding_width;
    double forward = 2 * width * (double)model->vocab;

    if (model->embedding_width != model->hidden) {
        forward += 4 * h * width;
    }
    for (uint32_t i = 0; i < model->n_layer; i++) {
        forward += block_flops(model, smp_model_block(model, i), seq);
    }
    return 3 * forward * tokens;
}
