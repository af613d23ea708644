/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layout of a program's memory before anything shares: static buffers (scope STEP), then
 * stacks (LAYER buffers without a ring; those over the same layers are interleaved), then items
 * one after the other.
 */
#include "step/layout.h"

#include "base/numeric.h"

#include <stdlib.h>
#include <string.h>

enum { NONE = SMP_NO_ITEM };
static const uint64_t most_bytes = (uint64_t)1 << 60;

static bool is_stacked(const smp_buffer *buffer)
{
    return buffer->scope != SMP_SCOPE_STEP && buffer->space != SMP_SPACE_TOKEN &&
           buffer->index == SMP_INDEX_LAYER && buffer->slots == 0;
}

static bool is_static(const smp_buffer *buffer)
{
    return buffer->scope == SMP_SCOPE_STEP || buffer->space == SMP_SPACE_TOKEN;
}

/* Static buffers and tokens, one after the other. */
static void place_static(smp_layout *p)
{
    smp_program *program = p->program;
    for (uint32_t b = 0; b < program->n_buffer; b++) {
        smp_buffer *buffer = &program->buffers[b];
        uint64_t *top = &p->floor[buffer->space];
        if (!is_static(buffer)) {
            continue;
        }
        uint64_t bytes = smp_place_bytes(buffer);
        uint32_t n_slot = buffer->index == SMP_INDEX_TURN ? smp_place_count(buffer) : 0;
        buffer->base = *top;
        buffer->stride = bytes;
        for (uint32_t s = 0; s < n_slot; s++) {
            program->slot_bases[buffer->slot_base + s] = *top + s * bytes;
        }
        *top = smp_add(*top, smp_mul(bytes, smp_place_count(buffer)));
    }
}

static smp_layout_stack *find_stack(smp_layout *p, const smp_buffer *buffer)
{
    for (uint32_t s = 0; s < p->n_stack; s++) {
        smp_layout_stack *stack = &p->stacks[s];
        if (stack->space == buffer->space && stack->first == buffer->first &&
            stack->entries == buffer->entries &&
            stack->entry_of_layer == buffer->entry_of_layer) {
            return stack;
        }
    }
    p->stacks[p->n_stack] = (smp_layout_stack){
        .first = buffer->first,
        .end = buffer->first + (buffer->entry_of_layer ? buffer->layers : buffer->entries),
        .entries = buffer->entries, .entry_of_layer = buffer->entry_of_layer,
        .space = (uint8_t)buffer->space};
    return &p->stacks[p->n_stack++];
}

static int stack_compare(const void *a, const void *b)
{
    const smp_layout_stack *x = a, *y = b;
    if (x->end != y->end) {
        return x->end < y->end ? -1 : 1;
    }
    if (x->first != y->first) {
        return x->first > y->first ? 1 : -1;
    }
    return (x->entries > y->entries) - (x->entries < y->entries);
}

/* The last layers lie on top: they are free again first, next to the items. */
static void place_stacks(smp_layout *p)
{
    smp_program *program = p->program;
    for (uint32_t b = 0; b < program->n_buffer; b++) {
        if (is_stacked(&program->buffers[b])) {
            smp_layout_stack *stack = find_stack(p, &program->buffers[b]);
            stack->stride = smp_add(stack->stride, program->buffers[b].bytes);
        }
    }
    if (p->n_stack > 0) {
        qsort(p->stacks, p->n_stack, sizeof *p->stacks, stack_compare);
    }
    memcpy(p->stack_top, p->floor, sizeof p->floor);
    for (uint32_t s = 0; s < p->n_stack; s++) {
        smp_layout_stack *stack = &p->stacks[s];
        uint64_t *top = &p->stack_top[stack->space];
        stack->base = *top;
        *top = smp_add(*top, smp_mul(stack->stride, stack->entries));
        stack->item0 = p->n_item;
        for (uint32_t e = 0; e < stack->entries; e++) {
            p->items[p->n_item++] = (smp_layout_item){
                .bytes = stack->stride, .base = stack->base + e * stack->stride,
                .buffer = NONE, .space = stack->space, .fixed = true};
        }
    }
}

/* Addresses inside the stack: the buffers of a layer in the order of the table. */
static void enter_stack(smp_layout *p, uint32_t b, uint64_t *offsets)
{
    smp_buffer *buffer = &p->program->buffers[b];
    const smp_layout_stack *stack = find_stack(p, buffer);
    uint64_t *offset = &offsets[stack - p->stacks];
    buffer->base = stack->base + *offset;
    buffer->stride = stack->stride;
    *offset += buffer->bytes;
    for (uint32_t e = 0; e < buffer->entries; e++) {
        p->item_of_place[p->place0[b] + e] = stack->item0 + e;
    }
}

static void make_items(smp_layout *p)
{
    smp_program *program = p->program;
    uint64_t *offsets = SMP_ARENA_ARRAY(p->scratch, p->n_stack, uint64_t);
    for (uint32_t b = 0; b < program->n_buffer; b++) {
        smp_buffer *buffer = &program->buffers[b];
        uint32_t n_place = smp_place_count(buffer), place0 = p->place0[b];
        bool by_slot = buffer->index == SMP_INDEX_TURN;
        if (is_static(buffer)) {
            continue;
        }
        if (is_stacked(buffer)) {
            enter_stack(p, b, offsets);
            continue;
        }
        buffer->stride = buffer->bytes;
        for (uint32_t s = 0; s < n_place; s++) {
            p->item_of_place[place0 + s] = p->n_item;
            if (by_slot || s + 1 == n_place) {
                p->items[p->n_item++] = (smp_layout_item){
                    .bytes = by_slot ? buffer->bytes : smp_mul(buffer->bytes, n_place),
                    .buffer = b, .slot = by_slot ? s : 0, .space = (uint8_t)buffer->space};
            }
        }
    }
}

static void number_places(smp_layout *p)
{
    smp_program *program = p->program;
    uint32_t n_slot = 0, n_layer_item = 0;
    p->place0 = SMP_ARENA_ARRAY(p->scratch, program->n_buffer, uint32_t);
    for (uint32_t b = 0; b < program->n_buffer; b++) {
        smp_buffer *buffer = &program->buffers[b];
        p->place0[b] = p->n_place;
        p->n_place += smp_place_count(buffer);
        if (buffer->index == SMP_INDEX_TURN) {
            buffer->slot_base = n_slot;
            n_slot += smp_place_count(buffer);
        }
        n_layer_item += is_stacked(buffer) ? buffer->entries : 0;
    }
    program->n_slot_base = n_slot;
    program->slot_bases = SMP_ARENA_ARRAY(program->arena, n_slot, uint64_t);
    p->item_of_place = SMP_ARENA_ARRAY(p->scratch, p->n_place, uint32_t);
    p->buffer_of_place = SMP_ARENA_ARRAY(p->scratch, p->n_place, uint32_t);
    p->items = SMP_ARENA_ARRAY(p->scratch, (size_t)p->n_place + n_layer_item, smp_layout_item);
    p->stacks = SMP_ARENA_ARRAY(p->scratch, program->n_buffer, smp_layout_stack);
    for (uint32_t b = 0; b < program->n_buffer; b++) {
        for (uint32_t e = 0; e < smp_place_count(&program->buffers[b]); e++) {
            p->item_of_place[p->place0[b] + e] = NONE;
            p->buffer_of_place[p->place0[b] + e] = b;
        }
    }
}

void smp_layout_set_base(const smp_layout *p, const smp_layout_item *item)
{
    if (item->buffer == NONE) {
        return;
    }
    smp_buffer *buffer = &p->program->buffers[item->buffer];
    if (buffer->index == SMP_INDEX_TURN) {
        p->program->slot_bases[buffer->slot_base + item->slot] = item->base;
    } else {
        buffer->base = item->base;
    }
}

/* Every item at a place of its own. */
static void place_apart(smp_layout *p)
{
    uint64_t top[SMP_SPACES];
    memcpy(top, p->stack_top, sizeof top);
    for (uint32_t i = 0; i < p->n_item; i++) {
        smp_layout_item *at = &p->items[i];
        if (!at->fixed) {
            at->base = top[at->space];
            top[at->space] += at->bytes;
            smp_layout_set_base(p, at);
        }
    }
    p->program->apart = true;
    p->program->arena_bytes = top[SMP_SPACE_DEVICE];
    p->program->host_arena_bytes = top[SMP_SPACE_HOST];
}

/* Sizes too large to add up never get further: nothing below can overflow. */
static smp_status check_sizes(const smp_program *program, smp_errors *errors)
{
    uint64_t total = 0;
    for (uint32_t b = 0; b < program->n_buffer; b++) {
        const smp_buffer *buffer = &program->buffers[b];
        total = smp_add(total, smp_mul(buffer->bytes, smp_place_count(buffer)));
        if (total > most_bytes) {
            return smp_fail(errors, SMP_INPUT, NULL,
                            "the buffers of one rank come to more than 2^60 bytes at %s "
                            "(%u entries of %llu bytes)", buffer->name,
                            smp_place_count(buffer), (unsigned long long)buffer->bytes);
        }
    }
    return SMP_OK;
}

smp_status smp_layout_create(smp_program *program, smp_arena *scratch, smp_errors *errors,
                             smp_layout *p)
{
    const smp_status status = check_sizes(program, errors);
    if (status == SMP_OK) {
        *p = (smp_layout){.program = program, .scratch = scratch};
        number_places(p);
        place_static(p);
        place_stacks(p);
        make_items(p);
        place_apart(p);
    }
    return status;
}

smp_status smp_program_place_apart(smp_program *program, smp_errors *errors)
{
    smp_layout layout;
    smp_arena *scratch = smp_arena_create();
    const smp_status status = smp_layout_create(program, scratch, errors, &layout);
    smp_arena_destroy(scratch);
    return status;
}
