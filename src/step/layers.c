/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which layers have an entry of a buffer.
 *
 * Kinds of layers may alternate (dense and expert layers, say), and a buffer that only some of
 * them use has entries for these: those of a contiguous range of layers by their number, others
 * by a table.  Buffers of the same layers share the table, by which the memory plan knows that
 * they form one stack.
 */
#include "step/lower.h"

#include "base/numeric.h"

enum { VARIANT_BITS = 64 };

uint64_t smp_variant_bit(const smp_lowering *low, const smp_variant *variant)
{
    const uint64_t every = ~UINT64_C(0);

    return low->n_variant > VARIANT_BITS ? every : UINT64_C(1) << (variant - low->variants);
}

static bool in_span(const smp_lowering *low, const smp_layer_set *span, uint32_t layer)
{
    uint8_t v = low->variant_of_layer[layer];

    return low->variants[v].stack == span->stack
           && (span->variants & smp_variant_bit(low, &low->variants[v])) != 0;
}

static void number_entries(smp_lowering *low, smp_layer_set *span)
{
    const smp_stack *stack = &low->stacks[span->stack];
    uint32_t last = stack->first;
    uint16_t *entry;

    span->first = UINT32_MAX;
    for (uint32_t layer = stack->first; layer <= stack->last; layer++) {
        if (in_span(low, span, layer)) {
            span->first = span->entries == 0 ? layer : span->first;
            last = layer;
            span->entries++;
        }
    }
    span->layers = last - span->first + 1;
    if (span->layers == span->entries) {
        return;
    }
    entry = SMP_ARENA_ARRAY(low->build.program->arena, span->layers, uint16_t);
    for (uint32_t i = 0, n = 0; i < span->layers; i++) {
        entry[i] = in_span(low, span, span->first + i) ? (uint16_t)n++ : SMP_NO_ENTRY;
    }
    span->entry_of_layer = entry;
}

void smp_set_layers(smp_lowering *low, smp_buffer *buffer, uint32_t stack, uint64_t variants)
{
    smp_layer_set *span = NULL;

    for (uint32_t i = 0; i < low->n_span && !span; i++) {
        if (low->spans[i].stack == stack && low->spans[i].variants == variants) {
            span = &low->spans[i];
        }
    }
    if (!span) {
        SMP_GROW(low->spans, low->n_span, low->cap_span);
        span = &low->spans[low->n_span++];
        *span = (smp_layer_set){ .stack = stack, .variants = variants };
        number_entries(low, span);
    }
    buffer->index = SMP_INDEX_LAYER;
    buffer->first = span->first;
    buffer->entries = span->entries;
    buffer->layers = span->layers;
    buffer->entry_of_layer = span->entry_of_layer;
}
