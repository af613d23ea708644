/* SPDX-License-Identifier: Apache-2.0 */
/* Lowering: the host order, in which instances of segments are issued. */
#include "step/lower.h"

static void issue(smp_lowering *low, uint16_t segment, uint32_t layer, uint64_t micro_batch,
                  uint64_t turn)
{
    if (segment != SMP_NO_SEGMENT && low->build.program->segments[segment].n_task > 0) {
        smp_build_instance(&low->build, segment, layer, (uint32_t)micro_batch,
                           (uint32_t)turn);
    }
}

static const smp_segments *segments_of(const smp_lowering *low, uint32_t layer)
{
    return &low->variants[low->variant_of_layer[layer]].segments;
}

/* NULL: the layer has no unit of experts. */
static const smp_segments *experts_of(const smp_lowering *low, uint32_t layer)
{
    const smp_variant *v = &low->variants[low->variant_of_layer[layer]];

    return v->experts.layout.elems > 0 ? &v->expert_segments : NULL;
}

/* Each block is visited twice a micro-batch: up, then down. */
static uint64_t turn_up(const smp_lowering *low, uint64_t mb, uint32_t layer)
{
    return mb * 2 * low->model->n_layer + layer;
}

static uint64_t turn_down(const smp_lowering *low, uint64_t mb, uint32_t layer)
{
    return (mb + 1) * 2 * low->model->n_layer - 1 - layer;
}

static void gather_up(smp_lowering *low, uint64_t mb, uint32_t layer)
{
    if (layer < low->model->n_layer && !(low->dense.keeps_gathered && low->once && mb > 0)) {
        issue(low, segments_of(low, layer)->gather[0], layer, mb, turn_up(low, mb, layer));
        if (experts_of(low, layer)) {
            issue(low, experts_of(low, layer)->gather[0], layer, mb,
                  turn_up(low, mb, layer));
        }
    }
}

/* `layer` counts down and may have passed 0. */
static void gather_down(smp_lowering *low, uint64_t mb, uint32_t layer)
{
    if (layer < low->model->n_layer) {
        issue(low, segments_of(low, layer)->gather[1], layer, mb, turn_down(low, mb, layer));
        if (experts_of(low, layer)) {
            issue(low, experts_of(low, layer)->gather[1], layer, mb,
                  turn_down(low, mb, layer));
        }
    }
}

static void reduce(smp_lowering *low, const smp_share *share, const smp_segments *segments,
                   uint32_t layer, uint64_t mb, uint64_t turn)
{
    bool last = mb + 1 == low->job->micro_batches;
    int second = share->accumulates ? mb > 0 && !low->once : last;

    if (last || !low->once) {
        issue(low, segments->reduce[second], layer, mb, turn);
    }
}

/* Reductions that wait for the end of backward come behind it, so that what is on their
 * streams is in the order in which it may run. */
static bool reduces_later(const smp_lowering *low)
{
    return low->reduce_token != SMP_NO_BUFFER;
}

/* Experts first: their gradients are finished before those of attention. */
static void reduce_layer(smp_lowering *low, uint32_t layer, uint64_t mb, uint64_t turn)
{
    if (experts_of(low, layer)) {
        reduce(low, &low->experts, experts_of(low, layer), layer, mb, turn);
    }
    reduce(low, &low->dense, segments_of(low, layer), layer, mb, turn);
}

static void order_forward(smp_lowering *low, uint64_t mb)
{
    bool ahead = low->set->sm_activation_offloading;

    if (!(low->dense.keeps_gathered && low->once && mb > 0)) {
        issue(low, low->root_segments.gather[0], 0, mb, 0);
    }
    gather_up(low, mb, 0);
    issue(low, low->embed, 0, mb, 0);
    for (uint32_t i = 0; i < low->model->n_layer; i++) {
        if (!low->orders_forward) {
            gather_up(low, mb, i + 1);
        }
        if (i < low->stored && ahead) {
            issue(low, low->store, i, mb, 0); /* beside the forward that reads it too */
        }
        issue(low, segments_of(low, i)->forward, i, mb, turn_up(low, mb, i));
        if (low->orders_forward) {
            gather_up(low, mb, i + 1);
        }
        if (i < low->stored && !ahead) {
            issue(low, low->store, i, mb, 0);
        }
    }
}

static void order_backward(smp_lowering *low, uint64_t mb)
{
    int add = mb > 0 && low->n_write > 1;
    bool ahead = low->set->sm_activation_offloading;
    uint32_t horizon = low->set->activation_loading_horizon;

    for (uint32_t i = low->model->n_layer; i-- > 0;) {
        uint64_t turn = turn_down(low, mb, i);

        if (!low->orders_backward) {
            gather_down(low, mb, i - 1);
        }
        if (i < low->stored && !ahead) {
            issue(low, low->load, i, mb, 0);
        }
        issue(low, segments_of(low, i)->backward[add], i, mb, turn);
        if (i < low->offloaded && ahead && i >= horizon) {
            issue(low, low->load, i - horizon, mb, 0);
        }
        if (low->orders_backward && !low->orders_reduce) {
            gather_down(low, mb, i - 1);
        }
        if (!reduces_later(low)) {
            reduce_layer(low, i, mb, turn);
        }
        if (low->orders_reduce) {
            gather_down(low, mb, i - 1);
        }
    }
    issue(low, low->embed_grad[add], 0, mb, 0);
    for (uint32_t i = low->model->n_layer; reduces_later(low) && i-- > 0;) {
        reduce_layer(low, i, mb, turn_down(low, mb, i));
    }
    reduce(low, &low->dense, &low->root_segments, 0, mb, 0);
}

/* The gathers that wait for all updates: after them in the order too. */
static void order_publish(smp_lowering *low, uint64_t mb)
{
    issue(low, low->root_segments.publish, 0, mb, 0);
    for (uint32_t i = 0; i < low->model->n_layer; i++) {
        issue(low, segments_of(low, i)->publish, i, mb, 0);
        if (experts_of(low, i)) {
            issue(low, experts_of(low, i)->publish, i, mb, 0);
        }
    }
}

static void order_update(smp_lowering *low)
{
    uint64_t mb = low->job->micro_batches - 1;
    uint32_t n = low->model->n_layer;

    /* In the order in which backward has finished the gradients. */
    for (uint32_t i = n; i-- > 0;) {
        if (experts_of(low, i)) {
            issue(low, experts_of(low, i)->squares, i, mb, 0);
        }
        issue(low, segments_of(low, i)->squares, i, mb, 0);
    }
    issue(low, low->root_segments.squares, 0, mb, 0);
    issue(low, low->norm, 0, mb, 0);
    issue(low, low->root_segments.update, 0, mb, 0);
    for (uint32_t i = 0; i < n; i++) {
        issue(low, segments_of(low, i)->update, i, mb, 0);
        if (experts_of(low, i)) {
            issue(low, experts_of(low, i)->update, i, mb, 0);
        }
    }
    order_publish(low, mb);
}

void smp_lower_order(smp_lowering *low)
{
    uint32_t last = low->model->n_layer - 1;

    issue(low, low->begin, 0, 0, 0);
    for (uint64_t mb = 0; mb < low->job->micro_batches; mb++) {
        int add = mb > 0 && low->n_write > 1;

        issue(low, low->inputs_segment, 0, mb, 0);
        order_forward(low, mb);
        if (!low->orders_backward) {
            gather_down(low, mb, last);
        }
        for (uint32_t c = 0; c < low->n_chunk; c++) {
            issue(low, low->heads[add][c], last, mb, 0);
        }
        if (low->orders_backward) {
            gather_down(low, mb, last);
        }
        order_backward(low, mb);
    }
    order_update(low);
}
