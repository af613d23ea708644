/* SPDX-License-Identifier: Apache-2.0 */
/* Lowering: buffers, those that emitters find by name and those of the whole program. */
#include "step/lower.h"

#include "base/numeric.h"

#include <string.h>

smp_ref smp_whole(uint16_t buffer, uint64_t bytes)
{
    return (smp_ref){ .buffer = buffer, .bytes = bytes };
}

smp_access smp_token(uint16_t buffer)
{
    return (smp_access){ .buffer = buffer, .writes = true, .bytes = 1 };
}

static smp_named *find_named(smp_lowering *low, const char *name, uint32_t stack)
{
    for (uint32_t i = 0; i < low->n_named; i++) {
        if (low->named[i].stack == stack && strcmp(low->named[i].name, name) == 0) {
            return &low->named[i];
        }
    }
    SMP_GROW(low->named, low->n_named, low->cap_named);
    low->named[low->n_named] = (smp_named){ name, stack, SMP_NO_BUFFER, 0 };
    return &low->named[low->n_named++];
}

static uint16_t named_buffer(smp_lowering *low, uint32_t stack, const smp_buffer *buffer)
{
    smp_named *named = find_named(low, buffer->name, stack);
    uint64_t bytes = smp_round_up(buffer->bytes, SMP_ALIGN_BYTES);

    if (named->buffer == SMP_NO_BUFFER) {
        named->buffer = smp_build_buffer(&low->build, buffer);
    } else if (low->build.program->buffers[named->buffer].bytes < bytes) {
        low->build.program->buffers[named->buffer].bytes = bytes;
    }
    return named->buffer;
}

uint16_t smp_lower_scratch(smp_lowering *low, const char *name, smp_buffer_kind kind,
                           uint64_t bytes)
{
    return named_buffer(
        low, UINT32_MAX,
        &(smp_buffer){ .name = name, .kind = kind, .scope = SMP_SCOPE_INSTANCE,
                       .bytes = bytes });
}

uint16_t smp_lower_kept(smp_lowering *low, const smp_variant *variant, const char *name,
                        uint64_t bytes)
{
    uint16_t buffer = named_buffer(low, variant->stack,
                                   &(smp_buffer){ .name = name,
                                                  .kind = SMP_KIND_ACTIVATION,
                                                  .index = SMP_INDEX_LAYER,
                                                  .scope = SMP_SCOPE_MICROBATCH,
                                                  .bytes = bytes });
    smp_named *named = find_named(low, name, variant->stack);

    named->variants |= smp_variant_bit(low, variant);
    smp_set_layers(low, &low->build.program->buffers[buffer], variant->stack, named->variants);
    return buffer;
}

uint16_t smp_lower_token(smp_lowering *low, const char *name)
{
    return smp_build_buffer(&low->build, &(smp_buffer){ .name = name,
                                                        .kind = SMP_KIND_TOKEN,
                                                        .space = SMP_SPACE_TOKEN,
                                                        .bytes = 1 });
}

static uint16_t plain_buffer(smp_lowering *low, const char *name, smp_buffer_kind kind,
                             smp_scope scope, uint64_t bytes)
{
    return smp_build_buffer(&low->build, &(smp_buffer){ .name = name, .kind = kind,
                                                        .scope = scope, .bytes = bytes });
}

/* Inputs of the layers: a ring where they are offloaded, a stack for the others and for the
 * input of the final norm. */
static void add_layer_inputs(smp_lowering *low, uint64_t bytes)
{
    uint32_t n = low->model->n_layer, k = low->offloaded;
    uint32_t in_ring = k == n ? n + 1 : k;
    uint32_t want =
        low->set->sm_activation_offloading ? low->set->activation_loading_horizon + 2 : 2;
    smp_buffer x = { .name = "x", .kind = SMP_KIND_ACTIVATION, .index = SMP_INDEX_LAYER,
                     .scope = SMP_SCOPE_MICROBATCH, .bytes = bytes };

    low->x = low->x_ring = low->host = low->load_token = SMP_NO_BUFFER;
    if (k < n) {
        x.first = k;
        x.entries = n + 1 - k;
        low->x = smp_build_buffer(&low->build, &x);
    }
    if (k == 0) {
        return;
    }
    x.name = "x.ring";
    x.first = 0;
    x.entries = 1;
    x.slots = want < in_ring ? want : in_ring;
    low->x_ring = smp_build_buffer(&low->build, &x);
    x.name = "x.host";
    x.space = SMP_SPACE_HOST;
    x.entries = low->stored;
    x.slots = 0;
    low->host = smp_build_buffer(&low->build, &x);
    if (low->set->sm_activation_offloading) {
        low->load_token = smp_build_buffer(
            &low->build, &(smp_buffer){ .name = "load", .kind = SMP_KIND_TOKEN,
                                        .space = SMP_SPACE_TOKEN, .index = SMP_INDEX_LAYER,
                                        .slots = low->set->activation_loading_horizon,
                                        .bytes = 1 });
    }
}

/* What a micro-batch trains on, and the next one's, which comes while this one runs. */
static void add_inputs(smp_lowering *low)
{
    uint64_t longest = smp_mul(smp_inputs_elems(low, low->job->batch.longest), 4);

    low->inputs = plain_buffer(low, "inputs", SMP_KIND_SCALAR, SMP_SCOPE_STEP,
                               smp_mul(smp_inputs_elems(low, low->seq), 4));
    low->next_inputs =
        plain_buffer(low, "inputs.next", SMP_KIND_SCALAR, SMP_SCOPE_STEP, longest);
}

static bool has_shared_experts(const smp_model *model)
{
    for (uint32_t k = 0; k < model->n_kind; k++) {
        if (model->kinds[k].moe.experts > 0 && model->kinds[k].moe.shared_ffn > 0) {
            return true;
        }
    }
    return false;
}

void smp_lower_buffers(smp_lowering *low)
{
    uint64_t e = smp_dtype_bytes(low->compute);
    uint64_t elems = smp_mul(low->rows, low->hidden), bytes = smp_mul(elems, e);
    uint64_t residual = smp_mul(elems, smp_dtype_bytes(low->residual));

    low->scalars = plain_buffer(low, "scalars", SMP_KIND_SCALAR, SMP_SCOPE_STEP, 256);
    add_inputs(low);
    low->d = plain_buffer(low, "d", SMP_KIND_WORKSPACE, SMP_SCOPE_MICROBATCH, residual);
    low->units_token = SMP_NO_BUFFER;
    if (low->expert > 1 && has_shared_experts(low->model)) {
        low->units_token = smp_lower_token(low, "multiprocessors");
    }
    if (low->model->embedding_dropout > 0) {
        low->embed_mask = plain_buffer(low, "embed.mask", SMP_KIND_ACTIVATION,
                                       SMP_SCOPE_MICROBATCH, elems);
    }
    if (low->model->embedding_width != low->model->hidden) {
        low->embed_narrow =
            plain_buffer(low, "embed.narrow", SMP_KIND_ACTIVATION, SMP_SCOPE_MICROBATCH,
                         smp_mul(smp_mul(low->rows, low->model->embedding_width), e));
    }
    if (low->model->embedding_norm) {
        low->embed_raw = plain_buffer(low, "embed.raw", SMP_KIND_ACTIVATION,
                                      SMP_SCOPE_MICROBATCH, bytes);
    }
    add_layer_inputs(low, residual);
}
