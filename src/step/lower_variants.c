/* SPDX-License-Identifier: Apache-2.0 */
/* Lowering: variants of blocks, the stacks that they form, their units and where these lie. */
#include "step/lower.h"

/* What layers of one variant have in common. */
typedef struct likeness {
    const smp_block *block;
    smp_checkpointing mode;
    uint16_t input, output;
    bool offloaded;
} likeness;

static likeness likeness_of(const smp_lowering *low, uint32_t layer)
{
    uint32_t k = low->offloaded;
    likeness like = { .block = smp_model_block(low->model, layer),
                      .mode = SMP_CHECKPOINTING_NONE,
                      .offloaded = layer < k };

    if (layer < low->checkpointed) {
        like.mode = low->set->checkpointing == SMP_CHECKPOINTING_FIRST
                        ? SMP_CHECKPOINTING_FULL
                        : low->set->checkpointing;
    }
    like.input = layer < k ? low->x_ring : low->x;
    like.output = layer + 1 < k || k == low->model->n_layer ? low->x_ring : low->x;
    return like;
}

static bool is_like(const likeness *a, const likeness *b)
{
    return a->block == b->block && a->mode == b->mode && a->input == b->input
           && a->output == b->output && a->offloaded == b->offloaded;
}

static bool has_likeness(const smp_variant *v, const likeness *like)
{
    likeness own = { v->block, v->mode, v->input, v->output, v->offloaded };

    return is_like(&own, like);
}

/* Layers that are not like the one before: no fewer than variants. */
static uint32_t count_changes(const smp_lowering *low)
{
    uint32_t changes = 1;

    for (uint32_t layer = 1; layer < low->model->n_layer; layer++) {
        likeness a = likeness_of(low, layer - 1), b = likeness_of(low, layer);

        changes += !is_like(&a, &b);
    }
    return changes;
}

static smp_status add_variants(smp_lowering *low)
{
    smp_arena *arena = low->build.program->arena;
    uint32_t n = low->model->n_layer, most = count_changes(low);

    low->variant_of_layer = SMP_ARENA_ARRAY(arena, n, uint8_t);
    low->variants = SMP_ARENA_ARRAY(arena, most < UINT8_MAX ? most : UINT8_MAX, smp_variant);
    for (uint32_t layer = 0; layer < n; layer++) {
        likeness like = likeness_of(low, layer);
        uint32_t i = 0;

        while (i < low->n_variant && !has_likeness(&low->variants[i], &like)) {
            i++;
        }
        if (i == UINT8_MAX) {
            return smp_fail(low->errors, SMP_INPUT, NULL,
                            "%s: more than %d kinds of layers cannot be lowered",
                            low->model->name, UINT8_MAX);
        }
        if (i == low->n_variant) {
            low->variants[low->n_variant++] = (smp_variant){
                .block = like.block, .mode = like.mode, .input = like.input,
                .output = like.output, .offloaded = like.offloaded, .first = layer };
        }
        low->variants[i].last = layer;
        low->variant_of_layer[layer] = (uint8_t)i;
    }
    return SMP_OK;
}

/* Variants come in the order of their first layers; those that overlap form one stack. */
static void add_stacks(smp_lowering *low)
{
    smp_arena *arena = low->build.program->arena;

    low->stacks = SMP_ARENA_ARRAY(arena, low->n_variant, smp_stack);
    for (uint32_t i = 0; i < low->n_variant; i++) {
        smp_variant *v = &low->variants[i];
        smp_stack *s = low->n_stack ? &low->stacks[low->n_stack - 1] : NULL;

        if (!s || v->first > s->last) {
            s = &low->stacks[low->n_stack];
            s->first = v->first;
            s->last = v->last;
            s->suffix = low->n_stack ? smp_arena_printf(arena, ".%u", low->n_stack) : "";
            low->n_stack++;
        }
        s->last = v->last > s->last ? v->last : s->last;
        v->stack = low->n_stack - 1;
    }
}

static void add_layout(smp_lowering *low, const smp_block *block, bool of_experts,
                       const smp_share *share, smp_home *home)
{
    smp_unit_layout(low->job, block, of_experts, share, &home->layout);
    home->share = share;
    if (home->layout.elems > 0) { /* else no experts in this layer */
        home->unit = smp_build_unit(&low->build, &home->layout);
    }
}

static void add_layouts(smp_lowering *low)
{
    for (uint32_t i = 0; i < low->n_variant; i++) {
        smp_variant *v = &low->variants[i];

        add_layout(low, v->block, false, &low->dense, &v->home);
        if (low->expert > 1) {
            add_layout(low, v->block, true, &low->experts, &v->experts);
        }
    }
    add_layout(low, NULL, false, &low->dense, &low->root);
}

static smp_home *home_of(smp_variant *variant, bool of_experts)
{
    return of_experts ? &variant->experts : &variant->home;
}

/* The buffers of another variant, with the variant's own layout. */
static void take_home(smp_home *home, const smp_home *other)
{
    smp_unit layout = home->layout;
    uint16_t unit = home->unit;

    *home = *other;
    home->layout = layout;
    home->unit = unit;
    home->master_first = home->master == home->weights ? layout.own_first : 0;
    home->grad_first = home->shard_grads == home->grads ? layout.own_first : 0;
}

static void add_rings(smp_lowering *low, smp_share *share, bool of_experts)
{
    uint64_t largest = 0;

    share->ring = share->ring_grads = share->ring_reduced = SMP_NO_BUFFER;
    for (uint32_t i = 0; i < low->n_variant; i++) {
        uint64_t n = home_of(&low->variants[i], of_experts)->layout.shard_elems;

        largest = n > largest ? n : largest;
    }
    if (largest > 0) {
        smp_lower_rings(low, share, largest);
    }
}

/* Homes of a stack's layers: variants whose units are of one size share buffers. */
static void add_homes(smp_lowering *low, uint32_t stack, bool of_experts)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < low->n_variant; i++) {
        smp_home *home = home_of(&low->variants[i], of_experts);
        uint64_t variants = 0;
        bool has = low->variants[i].stack == stack && home->layout.elems > 0;

        for (uint32_t j = 0; j < low->n_variant && has; j++) {
            const smp_home *other = home_of(&low->variants[j], of_experts);

            if (low->variants[j].stack == stack
                && other->layout.shard_elems == home->layout.shard_elems) {
                variants |= smp_variant_bit(low, &low->variants[j]);
                if (j < i) {
                    take_home(home, other);
                    has = false;
                }
            }
        }
        if (has) {
            const char *name = n == 0 ? low->stacks[stack].suffix
                                      : smp_arena_printf(low->build.program->arena, "%s-%u",
                                                         low->stacks[stack].suffix, n);

            smp_lower_home(low, home, name, stack, variants);
            n++;
        }
    }
}

static void add_units(smp_lowering *low)
{
    add_rings(low, &low->dense, false);
    add_rings(low, &low->experts, true);
    for (uint32_t i = 0; i < low->n_stack; i++) {
        add_homes(low, i, false);
        add_homes(low, i, true);
    }
    smp_lower_home(low, &low->root, NULL, 0, 0);
}

smp_status smp_lower_variants(smp_lowering *low)
{
    smp_status status = add_variants(low);

    if (status == SMP_OK) {
        add_stacks(low);
        add_layouts(low);
        add_units(low);
    }
    return status;
}
