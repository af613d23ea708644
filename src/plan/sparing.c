/* SPDX-License-Identifier: Apache-2.0 */
/* Points that save no more than they must: see sparing.h. */
#include "config.h"

#include "plan/sparing.h"

#include "sim/peaks.h"

/* By simulation, where nothing can be put together. */
static smp_status simulate(const smp_job *job, smp_errors *errors, smp_mix *mix)
{
    smp_report report;
    const smp_status st = smp_evaluate(job, false, errors, &report, &mix->alone_ps, NULL);
    if (st == SMP_OK) {
        const smp_memory *memory = &report.memory;
        mix->device_bytes = memory->peaks[smp_peaks_most(memory, false)].device_bytes;
        mix->host_bytes = memory->peaks[smp_peaks_most(memory, true)].host_bytes_per_node;
    }
    return st;
}

smp_status smp_price_point(const smp_pricing *pricing, const smp_point *point,
                           smp_errors *errors, smp_price *price_p)
{
    smp_job job;
    smp_mix mix = {0};
    smp_status st = SMP_OK;
    *price_p = (smp_price){.legal = smp_plan_space_job(pricing->space, point, &job)};
    if (!price_p->legal) {
        return SMP_OK;
    }
    if (pricing->mixes) {
        st = smp_mix_price(pricing->mixes, &job, errors, &mix, &price_p->known);
    }
    if (st == SMP_OK && !price_p->known) {
        st = simulate(&job, errors, &mix);
    }
    price_p->alone_ps = mix.alone_ps;
    price_p->fits = mix.device_bytes <= pricing->limit_bytes &&
                    (double)mix.host_bytes <= job.cluster->host_memory_bytes.value;
    return st;
}

/* ------------------------------------------------------------------ neighbours */

static bool is_legal(const smp_plan_space *space, const smp_point *point)
{
    smp_job job;
    return smp_plan_space_job(space, point, &job);
}

/* No offload, where the space has that. */
static bool without_offload(const smp_plan_space *space, smp_point *point)
{
    point->digit[SMP_DIM_OFFLOAD] = 0;
    point->digit[SMP_DIM_OFFLOAD_LAYERS] = 0;
    return space->choices[SMP_DIM_OFFLOAD][0].value == 0 && is_legal(space, point);
}

/* Fewer layers offloaded by one; false: the space has no such point. */
static bool offload_fewer(const smp_plan_space *space, smp_point *point)
{
    if (space->choices[SMP_DIM_OFFLOAD][point->digit[SMP_DIM_OFFLOAD]].value == 0) {
        return false;
    }
    while (point->digit[SMP_DIM_OFFLOAD_LAYERS] > 0) {
        point->digit[SMP_DIM_OFFLOAD_LAYERS]--;
        if (is_legal(space, point)) {
            return true;
        }
    }
    return without_offload(space, point);
}

/* Whether a choice checkpoints whole layers from the first on, or none. */
static bool is_by_layer(const smp_choice *choice)
{
    return choice->checkpointing == SMP_CHECKPOINTING_FIRST ||
           choice->checkpointing == SMP_CHECKPOINTING_FULL ||
           choice->checkpointing == SMP_CHECKPOINTING_NONE;
}

/* Fewer layers checkpointed by one, and as many offloaded as can be. */
static bool checkpoint_fewer(const smp_plan_space *space, smp_point *point)
{
    uint32_t *digit = &point->digit[SMP_DIM_CHECKPOINTING];
    const smp_choice *choices = space->choices[SMP_DIM_CHECKPOINTING];
    if (!is_by_layer(&choices[*digit])) {
        return false;
    }
    do {
        if (*digit == 0) {
            return false;
        }
        --*digit;
    } while (!is_by_layer(&choices[*digit]));
    if (is_legal(space, point)) {
        return true;
    }
    point->digit[SMP_DIM_OFFLOAD_LAYERS] = space->n_choice[SMP_DIM_OFFLOAD_LAYERS] - 1;
    return is_legal(space, point) || without_offload(space, point);
}

typedef bool neighbour(const smp_plan_space *space, smp_point *point);

static smp_status fits_there(const smp_pricing *pricing, smp_point point, neighbour *to,
                             smp_errors *errors, bool *fits_p)
{
    smp_price price;
    *fits_p = false;
    if (!to(pricing->space, &point)) {
        return SMP_OK;
    }
    const smp_status st = smp_price_point(pricing, &point, errors, &price);
    *fits_p = st == SMP_OK && price.legal && price.fits;
    return st;
}

smp_status smp_is_sparing(const smp_pricing *pricing, const smp_point *point,
                          smp_errors *errors, bool *is_p)
{
    bool fewer_fit = false;
    smp_status st = fits_there(pricing, *point, offload_fewer, errors, &fewer_fit);
    if (st == SMP_OK && !fewer_fit) {
        st = fits_there(pricing, *point, checkpoint_fewer, errors, &fewer_fit);
    }
    *is_p = !fewer_fit;
    return st;
}

/* ---------------------------------------------------------------------- search */

/* The last digit of layers offloaded from `least` to `most` that is legal; false: none. */
static bool last_legal(const smp_plan_space *space, smp_point *point, uint32_t least,
                       uint32_t most)
{
    for (uint32_t digit = most + 1; digit-- > least;) {
        point->digit[SMP_DIM_OFFLOAD_LAYERS] = digit;
        if (is_legal(space, point)) {
            return true;
        }
    }
    return false;
}

/* The more layers are offloaded the less memory is needed: the fewest that fit lie between
 * those that do and those that do not. */
smp_status smp_find_sparing(const smp_pricing *pricing, smp_point *point, smp_errors *errors,
                            smp_price *price_p, bool *found_p)
{
    const smp_plan_space *space = pricing->space;
    smp_point at = *point;
    *found_p = false;
    if (!last_legal(space, &at, 0, space->n_choice[SMP_DIM_OFFLOAD_LAYERS] - 1)) {
        return SMP_OK;
    }
    smp_status st = smp_price_point(pricing, &at, errors, price_p);
    if (st != SMP_OK || !price_p->fits) {
        return st;
    }
    *point = at;
    uint32_t low = 0; /* digits below it do not fit, or are not legal */
    while (st == SMP_OK && low < point->digit[SMP_DIM_OFFLOAD_LAYERS]) {
        const uint32_t high = point->digit[SMP_DIM_OFFLOAD_LAYERS];
        const uint32_t middle = low + (high - low) / 2;
        smp_price price = {0};
        if (last_legal(space, &at, low, middle)) {
            st = smp_price_point(pricing, &at, errors, &price);
        }
        if (st == SMP_OK && price.fits) {
            *point = at;
            *price_p = price;
        } else {
            low = middle + 1;
        }
    }
    return st == SMP_OK ? smp_is_sparing(pricing, point, errors, found_p) : st;
}
