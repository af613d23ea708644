/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "Tried to allocate 31.32 GiB": which tensor is this?
 *
 * Every buffer of the step is described as a product: tokens x a width of the model x bytes,
 * or elements of a unit x bytes.  The widths tried are those of the model under its tensor
 * degree, the one that the buffer's name suggests first.  A given size is then held against
 * the buffers as they are, and against the token counts with which a product would have it.
 * Some sizes that the step never has, but PyTorch programs do, are described beside them.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "sim/sim.h"

#include "base/numeric.h"
#include "step/order.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    WIDTHS = 64, BASES = 4, TEXT_BYTES = 160, COUNTS_SHOWN = 6,
    ROUND_TOKENS = 128,   /* token counts are multiples of this, or whole sequences */
    MOST_TOKENS = 1 << 21 /* more in a micro-batch are not plausible */
};

/* ------------------------------------------------------------------------- size */

/* PyTorch prints two decimals of a binary unit, so a size with a unit may be off by half of
 * the last; a number of bytes by what the allocator rounds up to. */
typedef struct size { uint64_t bytes, slack_bytes; } size;

static bool unit_of(const char *text, double *factor_p)
{
    static const struct { const char *name; double factor; } units[] = {
        {"B", 1},      {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
        {"KB", 1e3},   {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},
    };
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (strcmp(text, units[i].name) == 0) {
            *factor_p = units[i].factor;
            return true;
        }
    }
    return false;
}

static smp_status parse_size(const char *text, smp_errors *errors, size *size_p)
{
    const uint64_t rounding = 512; /* kMinBlockSize of PyTorch's allocator (spec 3) */
    const smp_place place = {.file = "--allocation"};
    char *end = NULL;
    double factor = 1;
    double value = 0;
    if (text[0] >= '0' && text[0] <= '9' && text[1] != 'x' && text[1] != 'X') {
        value = strtod(text, &end);
        end += strspn(end, " ");
    }
    bool unit = end && *end != '\0';
    if (!end || (unit && !unit_of(end, &factor)) || !(value * factor >= 1) ||
        !(value * factor < 0x1p60)) {
        return smp_fail(errors, SMP_INPUT, &place,
                        "%s: must be a size from 1 byte to 1 EiB: a number, and perhaps one of "
                        "B, KiB, MiB, GiB, TiB, KB, MB, GB, TB",
                        text);
    }
    size_p->bytes = (uint64_t)(value * factor + 0.5);
    size_p->slack_bytes = factor > 1 ? (uint64_t)(0.005 * factor) : rounding;
    return SMP_OK;
}

/* --------------------------------------------------------------------- products */

/* tokens x width x element bytes. */
typedef struct width {
    char words[64];   /* "hidden 4096" */
    const char *hint; /* part of the names of buffers that have it */
    uint64_t value;
    uint32_t element_bytes; /* 0: those of the buffer are tried */
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
    add_width(d, "feed-forward", "mlp.product", ffn, 0);
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
    d->shards = set->sharding == SMP_SHARDING_NONE
                    ? 1
                    : smp_mesh_group_size(step->mesh, SMP_GROUP_SHARD);
    add_width(d, "vocabulary", "logits", smp_local_vocab(job->model->vocab, t), 0);
    for (uint32_t k = 0; k < job->model->n_kind; k++) {
        add_block(d, &job->model->kinds[k]);
    }
    add_width(d, "mask: hidden", "mask", job->model->hidden, 1);
    add_width(d, "three statistics x parts", "stats", 3 * (uint64_t)t, 4);
    add_width(d, "hidden", "", job->model->hidden, 0);
}

/* A buffer or a case in words, with the bytes that a token of the micro-batch adds. */
typedef struct product {
    char words[TEXT_BYTES];
    double token_bytes; /* 0: does not grow with tokens */
} product;

static bool same_size(uint64_t elems, uint32_t element_bytes, uint64_t bytes)
{
    return smp_round_up(smp_mul(elems, element_bytes), SMP_ALIGN_BYTES) == bytes;
}

static bool try_width(const describer *d, const width *w, uint64_t bytes, product *p)
{
    for (int b = 0; b < BASES; b++) {
        uint64_t elems = smp_mul(d->bases[b].tokens, w->value);
        for (uint32_t e = w->element_bytes ? w->element_bytes : 4; e > 0;
             e = w->element_bytes ? 0 : e / 2) {
            if (same_size(elems, e, bytes)) {
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

static bool by_tokens(const describer *d, const smp_buffer *buffer, product *p)
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
                    product *p)
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
                            const smp_buffer *buffer, product *p)
{
    *p = (product){.token_bytes = 0};
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

/* -------------------------------------------------------------------- candidates */

/* Something whose size is held against the one asked for. */
typedef struct candidate {
    char name[64];
    const char *kind;
    product product;
    uint64_t bytes;
    bool pytorch;
} candidate;

typedef struct candidates { candidate *list; size_t n, capacity; } candidates;

static void add_candidate(candidates *all, const char *name, const char *kind,
                          const product *p, uint64_t bytes, bool pytorch)
{
    for (size_t i = 0; i < all->n; i++) {
        if (strcmp(all->list[i].name, name) == 0 && all->list[i].bytes == bytes) {
            return;
        }
    }
    SMP_GROW(all->list, all->n, all->capacity);
    candidate *one = &all->list[all->n++];
    *one = (candidate){.kind = kind, .product = *p, .bytes = bytes, .pytorch = pytorch};
    (void)snprintf(one->name, sizeof one->name, "%s", name);
}

static void add_buffers(const describer *d, const smp_program *program, candidates *all)
{
    for (uint32_t b = 0; b < program->n_buffer; b++) {
        const smp_buffer *buffer = &program->buffers[b];
        uint32_t count = smp_place_count(buffer);
        product p;
        if (buffer->space == SMP_SPACE_TOKEN) {
            continue;
        }
        describe_buffer(d, program, buffer, &p);
        add_candidate(all, buffer->name, smp_kind_name(buffer->kind), &p, buffer->bytes, false);
        if (count > 1) {
            char name[64];
            product together = {.token_bytes = 0}; /* no allocation, but several */
            (void)snprintf(name, sizeof name, "%s, all %u", buffer->name, count);
            (void)snprintf(together.words, sizeof together.words, "%u x (%.140s)", count,
                           p.words);
            add_candidate(all, name, smp_kind_name(buffer->kind), &together,
                          smp_mul(count, buffer->bytes), false);
        }
    }
}

static void add_per_token(const describer *d, const char *name, const char *words,
                          uint64_t token_bytes, candidates *all)
{
    product p = {.token_bytes = (double)token_bytes};
    (void)snprintf(p.words, sizeof p.words, "tokens %" PRIu64 " x %s", d->tokens, words);
    add_candidate(all, name, "PyTorch", &p, smp_mul(d->tokens, token_bytes), true);
}

static void add_fixed(const char *name, const char *words, uint64_t elems, uint32_t e,
                      candidates *all)
{
    product p = {.token_bytes = 0};
    (void)snprintf(p.words, sizeof p.words, "%s %" PRIu64 " x %u bytes", words, elems, e);
    add_candidate(all, name, "PyTorch", &p, smp_mul(elems, e), true);
}

/* What training scripts in PyTorch allocate and the step does not. */
static void add_pytorch(const describer *d, candidates *all)
{
    const smp_model *model = d->job->model;
    uint64_t heads = model->kinds[0].attention.heads;
    char words[TEXT_BYTES];
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

/* ------------------------------------------------------------------------ answers */

static double difference(const candidate *c, uint64_t bytes)
{
    return (double)c->bytes - (double)bytes;
}

static bool matches(const candidate *c, uint64_t bytes)
{
    double off = difference(c, bytes);
    return (off < 0 ? -off : off) <= 0.01 * (double)bytes;
}

/* Nearest first, those of the step before PyTorch's. */
typedef struct match { const candidate *candidate; double off; } match;

static int match_compare(const void *a_, const void *b_)
{
    const match *a = a_;
    const match *b = b_;
    if (a->candidate->pytorch != b->candidate->pytorch) {
        return a->candidate->pytorch ? 1 : -1;
    }
    if (a->off < b->off || a->off > b->off) {
        return a->off < b->off ? -1 : 1;
    }
    return (a->candidate > b->candidate) - (a->candidate < b->candidate);
}

typedef struct token_count {
    const candidate *candidate;
    uint64_t tokens;
    uint64_t step;     /* it is a multiple of: a sequence, or a power of two */
    bool sequences;
} token_count;

/* The roundest number of tokens with which `c` would have the size: whole sequences, else a
 * multiple of a power of two so large that chance would seldom find one. */
static bool count_tokens(const describer *d, const candidate *c, const size *s,
                         token_count *count_p)
{
    if (c->product.token_bytes <= 0) {
        return false;
    }
    double low = ((double)s->bytes - (double)s->slack_bytes) / c->product.token_bytes;
    double high = ((double)s->bytes + (double)s->slack_bytes) / c->product.token_bytes;
    double wide = 4 * (high - low);
    double seq = (double)d->job->batch.seq_len;
    if (high < ROUND_TOKENS || low > MOST_TOKENS) {
        return false;
    }
    uint64_t sequences = (uint64_t)(high / seq);
    *count_p = (token_count){c, sequences * d->job->batch.seq_len, d->job->batch.seq_len, true};
    if (sequences > 0 && (double)sequences * seq >= low && seq >= wide) {
        return true;
    }
    for (double step = 0x1p40; step >= ROUND_TOKENS && step >= wide; step /= 2) {
        uint64_t n = (uint64_t)(high / step);
        if (n > 0 && (double)n * step >= low) {
            *count_p = (token_count){c, n * (uint64_t)step, (uint64_t)step, false};
            return true;
        }
    }
    return false;
}

static int count_compare(const void *a_, const void *b_)
{
    const token_count *a = a_;
    const token_count *b = b_;
    if (a->sequences != b->sequences) {
        return a->sequences ? -1 : 1;
    }
    if (a->step != b->step) {
        return a->step > b->step ? -1 : 1;
    }
    return (a->candidate > b->candidate) - (a->candidate < b->candidate);
}

typedef struct answer {
    size size;
    match *matches;
    token_count *counts;
    size_t n_match, n_count;
} answer;

/* Candidates that need the same tokens for the same reason are one answer. */
static bool is_told(const answer *a, const candidate *c)
{
    for (size_t i = 0; i < a->n_count; i++) {
        double bytes = a->counts[i].candidate->product.token_bytes - c->product.token_bytes;
        if (bytes >= 0 && bytes <= 0) {
            return true;
        }
    }
    return false;
}

static void find_answer(const describer *d, const candidates *all, answer *a)
{
    a->matches = smp_heap_alloc(all->n + 1, sizeof *a->matches);
    a->counts = smp_heap_alloc(all->n + 1, sizeof *a->counts);
    for (size_t i = 0; i < all->n; i++) {
        const candidate *c = &all->list[i];
        if (matches(c, a->size.bytes)) {
            double off = difference(c, a->size.bytes);
            a->matches[a->n_match++] = (match){c, off < 0 ? -off : off};
        } else if (!is_told(a, c) && count_tokens(d, c, &a->size, &a->counts[a->n_count])) {
            a->n_count++;
        }
    }
    qsort(a->matches, a->n_match, sizeof *a->matches, match_compare);
    qsort(a->counts, a->n_count, sizeof *a->counts, count_compare);
    a->n_count = a->n_count < COUNTS_SHOWN ? a->n_count : COUNTS_SHOWN;
}

/* ------------------------------------------------------------------------ output */

static void text_answer(smp_text *text, const describer *d, const answer *a)
{
    smp_text_add(text, "Allocation of %" PRIu64 " bytes (%s)\n", a->size.bytes,
                 smp_show_bytes(a->size.bytes));
    smp_text_add(text, "\nOf this size in this job (1 %% either way)\n%s",
                 a->n_match == 0 ? "  nothing\n" : "");
    for (size_t i = 0; i < a->n_match; i++) {
        const candidate *c = a->matches[i].candidate;
        smp_text_add(text, "  %-50s %10s %+9.3f %%\n    %s; %s\n", c->name,
                     smp_show_bytes(c->bytes),
                     100 * difference(c, a->size.bytes) / (double)a->size.bytes, c->kind,
                     c->product.words);
    }
    smp_text_add(text,
                 "\nWith another number of tokens in a micro-batch (here %" PRIu64 ")\n%s",
                 d->tokens, a->n_count == 0 ? "  no round number explains it\n" : "");
    for (size_t i = 0; i < a->n_count; i++) {
        const token_count *count = &a->counts[i];
        smp_text_add(text, "  %" PRIu64 " tokens", count->tokens);
        if (count->sequences) {
            smp_text_add(text, " = %" PRIu64 " x %" PRIu64, count->tokens / count->step,
                         count->step);
        }
        const char *words = strstr(count->candidate->product.words, " x ");
        smp_text_add(text, ": %s%s\n    %s\n", count->candidate->pytorch ? "PyTorch, " : "",
                     count->candidate->name, words ? words + 3 : "");
    }
}

static void out_candidate(smp_json_out *out, const candidate *c)
{
    smp_out_string(out, "name", c->name);
    smp_out_string(out, "source", c->pytorch ? "pytorch" : "step");
    smp_out_string(out, "kind", c->kind);
    smp_out_string(out, "formula", c->product.words);
}

static void out_answer(smp_json_out *out, const answer *a)
{
    smp_out_object(out, NULL);
    smp_out_object(out, "allocation");
    smp_out_u64(out, "bytes", a->size.bytes);
    smp_out_u64(out, "slack_bytes", a->size.slack_bytes);
    smp_out_array(out, "matches");
    for (size_t i = 0; i < a->n_match; i++) {
        smp_out_object(out, NULL);
        out_candidate(out, a->matches[i].candidate);
        smp_out_u64(out, "bytes", a->matches[i].candidate->bytes);
        smp_out_end_object(out);
    }
    smp_out_end_array(out);
    smp_out_array(out, "token_counts");
    for (size_t i = 0; i < a->n_count; i++) {
        smp_out_object(out, NULL);
        smp_out_u64(out, "tokens", a->counts[i].tokens);
        out_candidate(out, a->counts[i].candidate);
        smp_out_double(out, "bytes_per_token", a->counts[i].candidate->product.token_bytes);
        smp_out_end_object(out);
    }
    smp_out_end_array(out);
    smp_out_end_object(out);
    smp_out_end_object(out);
}

smp_status smp_allocation_print(const smp_job *job, const smp_step *step, const char *size_text,
                                bool json, FILE *stream, smp_errors *errors)
{
    answer a = {.n_match = 0};
    smp_status status = parse_size(size_text, errors, &a.size);
    if (status != SMP_OK) {
        return status;
    }
    describer d;
    candidates all = {0};
    describe(&d, job, step);
    for (uint32_t c = 0; c < step->n_program; c++) {
        add_buffers(&d, step->programs[c], &all);
    }
    add_pytorch(&d, &all);
    find_answer(&d, &all, &a);
    smp_json_out out = {0};
    smp_text text = {0};
    if (json) {
        out_answer(&out, &a);
        text = out.text;
    } else {
        text_answer(&text, &d, &a);
    }
    fwrite(text.data, 1, text.length, stream);
    smp_text_free(&text);
    free(a.matches);
    free(a.counts);
    free(all.list);
    return smp_stream_check(stream, "output", errors);
}
