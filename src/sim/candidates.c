/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers of a step and allocations of PyTorch programs as products.  The widths tried are
 * those of the model under its tensor degree, the one that the buffer's name suggests first.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "sim/candidates.h"

#include "base/numeric.h"
#include "step/order.h"

#include <inttypes.h>
#include <string.h>

enum { WIDTHS = 64, BASES = 6 };

/* tokens x width x element bytes. */
typedef struct width {
    char words[64];   /* "hidden 4096" */
    const char *hint; /* part of the names of buffers that have it */
    uint64_t value;
    uint32_t element_bytes; /* 0: compute precision, else 4 or 2 */
} width;

typedef struct base { const char *words; uint64_t tokens; } base;

typedef struct describer {
    const smp_job *job;
    const smp_step *step;
    uint64_t tokens;      /* of a micro-batch on a rank */
    width widths[WIDTHS];
    size_t n_width;
    base bases[BASES];
    uint32_t shards;
} describer;

static void add_width(describer *d, const char *name, const char *hint, uint64_t value,
                      uint32_t element_bytes)
{
    width one = {.hint = hint, .value = value, .element_bytes = element_bytes};
    for (size_t i = 0; i < d->n_width; i++) {
        if (d->widths[i].value == value && strcmp(d->widths[i].hint, hint) == 0 &&
            d->widths[i].element_bytes == element_bytes) {
            return;
        }
    }
    if (value > 0 && d->n_width < WIDTHS) {
        (void)snprintf(one.words, sizeof one.words, "%s %" PRIu64, name, value);
        d->widths[d->n_width++] = one;
    }
}

static void add_experts(describer *d, const smp_moe *moe)
{
    uint32_t t = d->job->settings.tensor_parallel_degree;
    uint64_t ffn = smp_ceil_div(moe->ffn, t);
    uint64_t shared = smp_ceil_div(moe->shared_ffn, t);
    if (moe->experts == 0) {
        return;
    }
    if (moe->gated) {
        add_width(d, "gate and up", "experts.up", 2 * ffn, 0);
        add_width(d, "gate and up", "shared.up", 2 * shared, 0);
    }
    add_width(d, "feed-forward", "experts.", ffn, 0);
    add_width(d, "feed-forward", "shared.", shared, 0);
    add_width(d, "scores: experts", "moe.logits", moe->experts, 4);
    add_width(d, "scores: experts", "moe.logits", moe->experts, 0);
    add_width(d, "expert and weight: top-k", "moe.choice", moe->top_k, 8);
    add_width(d, "weight: top-k", "moe.choice", moe->top_k, 4);
}

static void add_block(describer *d, const smp_block *block)
{
    uint32_t t = d->job->settings.tensor_parallel_degree;
    const smp_attention *a = &block->attention;
    uint64_t heads = smp_ceil_div(a->heads, t);
    uint64_t kv = smp_local_kv_heads(a->kv_heads, t);
    uint64_t ffn = smp_ceil_div(block->mlp.ffn, t);
    add_width(d, "q, k and v", "qkv", (heads + 2 * kv) * a->head_dim, 0);
    add_width(d, "heads x head size", "attention.y", heads * a->head_dim, 0);
    add_width(d, "q and k", "raw", (heads + kv) * a->head_dim, 0);
    add_width(d, "log-sum-exp: heads", "lse", heads, 4);
    uint64_t scores = smp_mul(heads, d->job->batch.seq_len);
    add_width(d, "heads x sequence", "scores", scores, 0);
    add_width(d, "heads x sequence", "probabilities", scores, 0);
    add_width(d, "heads x sequence", "dropped", scores, 0);
    add_width(d, "heads x sequence", "attention.mask", scores, 1);
    if (block->mlp.gated) {
        add_width(d, "gate and up", "mlp.up", 2 * ffn, 0);
    }
    add_width(d, "feed-forward", "mlp.up", ffn, 0);
    if (a->kv_lora_rank > 0) {
        add_width(d, "latent and rope", "kv_", a->kv_lora_rank + a->qk_rope_dim, 0);
    }
    add_experts(d, &block->moe);
    add_width(d, "feed-forward", "mlp.product", ffn, 0);
}

/* Rows of width hidden that the buffer `name` has room for; 0 where there is none. */
static uint64_t rows_of(const describer *d, const char *name)
{
    const smp_program *program = d->step->programs[0];
    uint64_t row_bytes = smp_mul(d->job->model->hidden,
                                 d->job->settings.precision == SMP_PRECISION_FP32 ? 4 : 2);
    for (uint32_t b = 0; b < program->n_buffer; b++) {
        if (strcmp(program->buffers[b].name, name) == 0) {
            return program->buffers[b].bytes / row_bytes;
        }
    }
    return 0;
}

static void describe(describer *d, const smp_job *job, const smp_step *step)
{
    const smp_settings *set = &job->settings;
    uint32_t t = set->tensor_parallel_degree;
    uint64_t tokens = smp_mul(set->micro_batch, job->batch.seq_len);
    tokens /= set->context_parallel_degree;
    uint64_t rows = set->sequence_parallel ? smp_ceil_div(tokens, t) : tokens;
    *d = (describer){.job = job, .step = step, .tokens = tokens};
    d->bases[0] = (base){"tokens", tokens};
    d->bases[1] = (base){"tokens of a rank", rows};
    d->bases[2] = (base){"tokens of a chunk", smp_ceil_div(rows, set->loss_chunks) *
                                                  (rows == tokens ? 1 : t)};
    d->bases[3] = (base){"tokens of a chunk and rank", smp_ceil_div(rows, set->loss_chunks)};
    d->bases[4] = (base){"rows of the rank's experts", rows_of(d, "experts.down")};
    d->bases[5] = (base){"rows sent to experts", rows_of(d, "moe.rows")};
    d->shards = set->sharding == SMP_SHARDING_NONE
                    ? 1
                    : smp_mesh_group_size(step->mesh, SMP_GROUP_SHARD);
    add_width(d, "vocabulary", "logits",
              smp_local_vocab(job->model->vocab, smp_vocab_parts(set)), 0);
    for (uint32_t k = 0; k < job->model->n_kind; k++) {
        add_block(d, &job->model->kinds[k]);
    }
    add_width(d, "mask: hidden", "mask", job->model->hidden, 1);
    add_width(d, "three statistics x parts", "stats", 3 * (uint64_t)t, 4);
    add_width(d, "hidden", "", job->model->hidden, 0);
}

static bool same_size(uint64_t elems, uint32_t element_bytes, uint64_t bytes)
{
    return smp_round_up(smp_mul(elems, element_bytes), SMP_ALIGN_BYTES) == bytes;
}

static bool try_width(const describer *d, const width *w, uint64_t bytes, smp_product *p)
{
    uint32_t compute_bytes = d->job->settings.precision == SMP_PRECISION_FP32 ? 4 : 2;
    const uint32_t tried[2] = {w->element_bytes ? w->element_bytes : compute_bytes,
                               w->element_bytes ? w->element_bytes : 6 - compute_bytes};
    for (int i = 0; i < 2; i++) {
        uint32_t e = tried[i];
        for (int b = 0; b < BASES; b++) {
            uint64_t elems = smp_mul(d->bases[b].tokens, w->value);
            if (elems > 0 && same_size(elems, e, bytes)) {
                (void)snprintf(p->words, sizeof p->words, "%s %" PRIu64 " x %s x %u byte%s",
                               d->bases[b].words, d->bases[b].tokens, w->words, e,
                               e == 1 ? "" : "s");
                p->token_bytes = (double)d->bases[b].tokens / (double)d->tokens *
                                 (double)w->value * (double)e;
                return true;
            }
        }
    }
    return false;
}

static bool by_tokens(const describer *d, const smp_buffer *buffer, smp_product *p)
{
    for (int suggested = 1; suggested >= 0; suggested--) {
        for (size_t i = 0; i < d->n_width; i++) {
            const width *w = &d->widths[i];
            bool hinted = strstr(buffer->name, w->hint) != NULL;
            if (hinted == (suggested == 1) && try_width(d, w, buffer->bytes, p)) {
                return true;
            }
        }
    }
    return false;
}

static bool by_unit(const describer *d, const smp_program *program, const smp_buffer *buffer,
                    smp_product *p)
{
    for (uint32_t u = 0; u < program->n_unit; u++) {
        const smp_unit *unit = &program->units[u];
        uint64_t whole = smp_mul(unit->shard_elems, d->shards);
        for (uint32_t e = 4; e >= 2; e /= 2) {
            if (d->shards > 1 && same_size(unit->shard_elems, e, buffer->bytes)) {
                (void)snprintf(p->words, sizeof p->words,
                               "parameters of unit %s %" PRIu64 " / shards %u x %u bytes",
                               unit->name, unit->elems, d->shards, e);
                return true;
            }
            if (same_size(whole, e, buffer->bytes)) {
                (void)snprintf(p->words, sizeof p->words,
                               "parameters of unit %s %" PRIu64 " x %u bytes", unit->name,
                               unit->elems, e);
                return true;
            }
        }
    }
    return false;
}

static void describe_buffer(const describer *d, const smp_program *program,
                            const smp_buffer *buffer, smp_product *p)
{
    *p = (smp_product){.token_bytes = 0};
    switch (buffer->kind) {
    case SMP_KIND_PARAMETER:
    case SMP_KIND_GRADIENT:
    case SMP_KIND_OPTIMIZER:
    case SMP_KIND_UNSHARDED:
    case SMP_KIND_COMM:
        if (by_unit(d, program, buffer, p)) {
            return;
        }
        break;
    case SMP_KIND_ACTIVATION:
    case SMP_KIND_LOGITS:
    case SMP_KIND_WORKSPACE:
        if (by_tokens(d, buffer, p)) {
            return;
        }
        break;
    case SMP_KIND_SCALAR:
    case SMP_KIND_TOKEN:
    case SMP_KINDS:
        break;
    }
    (void)snprintf(p->words, sizeof p->words, "%" PRIu64 " bytes", buffer->bytes);
}

static void add_candidate(smp_candidates *all, const char *name, const char *kind,
                          const smp_product *p, uint64_t bytes, bool pytorch)
{
    for (size_t i = 0; i < all->n; i++) {
        if (strcmp(all->list[i].name, name) == 0 && all->list[i].bytes == bytes) {
            return;
        }
    }
    SMP_GROW(all->list, all->n, all->capacity);
    smp_candidate *one = &all->list[all->n++];
    *one = (smp_candidate){.kind = kind, .product = *p, .bytes = bytes, .pytorch = pytorch};
    (void)snprintf(one->name, sizeof one->name, "%s", name);
}

static void add_buffers(const describer *d, const smp_program *program, smp_candidates *all)
{
    for (uint32_t b = 0; b < program->n_buffer; b++) {
        const smp_buffer *buffer = &program->buffers[b];
        uint32_t count = smp_place_count(buffer);
        smp_product p;
        if (buffer->space == SMP_SPACE_TOKEN) {
            continue;
        }
        describe_buffer(d, program, buffer, &p);
        add_candidate(all, buffer->name, smp_kind_name(buffer->kind), &p, buffer->bytes, false);
        if (count > 1) {
            char name[64];
            smp_product together = {.token_bytes = 0}; /* no allocation, but several */
            (void)snprintf(name, sizeof name, "%s, all %u", buffer->name, count);
            (void)snprintf(together.words, sizeof together.words, "%u x (%.140s)", count,
                           p.words);
            add_candidate(all, name, smp_kind_name(buffer->kind), &together,
                          smp_mul(count, buffer->bytes), false);
        }
    }
}

static void add_per_token(const describer *d, const char *name, const char *words,
                          uint64_t token_bytes, smp_candidates *all)
{
    smp_product p = {.token_bytes = (double)token_bytes};
    (void)snprintf(p.words, sizeof p.words, "tokens %" PRIu64 " x %s", d->tokens, words);
    add_candidate(all, name, "PyTorch", &p, smp_mul(d->tokens, token_bytes), true);
}

static void add_fixed(const char *name, const char *words, uint64_t elems, uint32_t e,
                      smp_candidates *all)
{
    smp_product p = {.token_bytes = 0};
    (void)snprintf(p.words, sizeof p.words, "%s %" PRIu64 " x %u bytes", words, elems, e);
    add_candidate(all, name, "PyTorch", &p, smp_mul(elems, e), true);
}

/* What training scripts in PyTorch allocate and the step does not. */
static void add_pytorch(const describer *d, smp_candidates *all)
{
    const smp_model *model = d->job->model;
    uint64_t heads = model->kinds[0].attention.heads;
    char words[SMP_PRODUCT_BYTES];
    (void)snprintf(words, sizeof words, "vocabulary %" PRIu64 " x 4 bytes", model->vocab);
    add_per_token(d, "logits in fp32 (logits.float(), cross entropy)", words,
                  smp_mul(4, model->vocab), all);
    (void)snprintf(words, sizeof words, "vocabulary %" PRIu64 " x 2 bytes", model->vocab);
    add_per_token(d, "logits in 16 bit, not split", words, smp_mul(2, model->vocab), all);
    uint64_t scores = smp_mul(heads, d->job->batch.seq_len);
    for (uint32_t e = 2; e <= 4; e *= 2) {
        (void)snprintf(words, sizeof words,
                       "heads %" PRIu64 " x sequence %" PRIu64 " x %u bytes", heads,
                       d->job->batch.seq_len, e);
        add_per_token(d, e == 2 ? "scores of eager attention in 16 bit"
                                : "softmax of eager attention in fp32",
                      words, smp_mul(e, scores), all);
    }
    add_fixed("embedding or head in fp32", "vocabulary x hidden",
              smp_mul(model->vocab, model->hidden), 4, all);
    add_fixed("embedding or head in 16 bit", "vocabulary x hidden",
              smp_mul(model->vocab, model->hidden), 2, all);
    add_fixed("whole model in fp32", "parameters", model->parameters, 4, all);
    add_fixed("whole model in 16 bit", "parameters", model->parameters, 2, all);
}

void smp_candidates_make(const smp_job *job, const smp_step *step, smp_candidates *all)
{
    describer d;
    describe(&d, job, step);
    *all = (smp_candidates){.tokens = d.tokens};
    for (uint32_t c = 0; c < step->n_program; c++) {
        add_buffers(&d, step->programs[c], all);
    }
    add_pytorch(&d, all);
}
