/* SPDX-License-Identifier: Apache-2.0 */
/* Points that save no more than they must: see sparing.h. */
#include "config.h"

#include "plan/sparing.h"

#include "mesh/settings.h"
#include "sim/peaks.h"

#include <math.h>

/* By simulation, where nothing can be put together. */
static smp_status simulate(const smp_job *job, smp_errors *errors, smp_mix *mix)
{
    smp_report report;
    const smp_status st = smp_evaluate(job, false, errors, &report, &mix->alone_ps, NULL);
    if (st == SMP_OK) {
        mix->step_ps = report.step_ps;
        const smp_memory *memory = &report.memory;
        mix->device_bytes = memory->peaks[smp_peaks_most(memory, false)].device_bytes;
        mix->host_bytes = memory->peaks[smp_peaks_most(memory, true)].host_bytes_per_node;
    }
    return st;
}

smp_status smp_price_point(const smp_pricing *pricing, const smp_point *point, unsigned times,
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
        st = smp_mix_price(pricing->mixes, &job, times, errors, &mix, &price_p->known);
    }
    if (st == SMP_OK && !price_p->known) {
        st = simulate(&job, errors, &mix);
    }
    price_p->step_ps = mix.step_ps;
    price_p->alone_ps = mix.alone_ps;
    price_p->device_bytes = mix.device_bytes;
    price_p->offloaded = job.settings.offload ? smp_offloaded_layers(&job.settings) : 0;
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

bool smp_offloads(const smp_plan_space *space, const smp_point *point)
{
    return space->choices[SMP_DIM_OFFLOAD][point->digit[SMP_DIM_OFFLOAD]].value > 0;
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
    if (!smp_offloads(space, point)) {
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

/* Fewer layers checkpointed by one, and as many offloaded as can be. */
static bool checkpoint_fewer(const smp_plan_space *space, smp_point *point)
{
    uint32_t *digit = &point->digit[SMP_DIM_CHECKPOINTING];
    const smp_choice *choices = space->choices[SMP_DIM_CHECKPOINTING];
    if (!smp_checkpoints_by_layer(choices[*digit].checkpointing)) {
        return false;
    }
    do {
        if (*digit == 0) {
            return false;
        }
        --*digit;
    } while (!smp_checkpoints_by_layer(choices[*digit].checkpointing));
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
    const smp_status st = smp_price_point(pricing, &point, 0, errors, &price);
    *fits_p = st == SMP_OK && price.legal && price.fits;
    return st;
}

smp_status smp_is_sparing(const smp_pricing *pricing, const smp_point *point,
                          smp_errors *errors, bool *is_p)
{
    bool fewer_fit = false;
    if (smp_is_coarse(pricing->space, point)) {
        *is_p = true;
        return SMP_OK;
    }
    smp_status st = fits_there(pricing, *point, offload_fewer, errors, &fewer_fit);
    if (st == SMP_OK && !fewer_fit) {
        st = fits_there(pricing, *point, checkpoint_fewer, errors, &fewer_fit);
    }
    *is_p = !fewer_fit;
    return st;
}

smp_status smp_fits_with_fewer_layers(const smp_pricing *pricing, const smp_point *mesh,
                                      smp_errors *errors, bool *fits_p)
{
    *fits_p = false;
    return smp_offloads(pricing->space, mesh)
               ? SMP_OK
               : fits_there(pricing, *mesh, checkpoint_fewer, errors, fits_p);
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

/* Points that offload `low` to `high` digits of layers: those below do not fit on a device, and
 * the last does. */
typedef struct bracket {
    uint32_t low, high;
    smp_price least, most;  /* fewest layers that were priced, and those of `high` */
} bracket;

/* Bytes fall evenly with layers, nearly: the digit at which they come below the limit. */
static uint32_t guess(const smp_pricing *pricing, const bracket *b)
{
    const uint64_t more = b->least.device_bytes - b->most.device_bytes;
    const uint32_t layers = b->most.offloaded - b->least.offloaded;
    const uint64_t room = pricing->limit_bytes - b->most.device_bytes;
    if (b->least.device_bytes <= b->most.device_bytes || layers == 0) {
        return b->low + (b->high - b->low) / 2;
    }
    const double fewer = (double)room / (double)more * layers;
    const double digit = (double)b->most.offloaded - floor(fewer) - 1;
    return digit < b->low ? b->low : digit < b->high ? (uint32_t)digit : b->high - 1;
}

/* Narrows the bracket to one digit; *price_p: its price. */
static smp_status narrow(const smp_pricing *pricing, bracket *b, smp_point at,
                         smp_errors *errors)
{
    enum { GUESSES = 4 };
    for (int n = 0; b->low < b->high; n++) {
        smp_price price = {0};
        const uint32_t middle =
            n < GUESSES ? guess(pricing, b) : b->low + (b->high - b->low) / 2;
        if (!last_legal(pricing->space, &at, b->low, middle)) {
            b->low = middle + 1;
            continue;
        }
        const smp_status st = smp_price_point(pricing, &at, SMP_MIX_STEP, errors, &price);
        if (st != SMP_OK) {
            return st;
        }
        if (price.device_bytes <= pricing->limit_bytes) {
            b->high = at.digit[SMP_DIM_OFFLOAD_LAYERS];
            b->most = price;
        } else {
            b->low = middle + 1;
            b->least = price;
        }
    }
    return SMP_OK;
}

smp_status smp_price_coarse(const smp_pricing *pricing, smp_point *point, smp_errors *errors,
                            smp_price *price_p)
{
    const uint32_t last = pricing->space->n_choice[SMP_DIM_OFFLOAD_LAYERS] - 1;
    *price_p = (smp_price){0};
    point->digit[SMP_DIM_OFFLOAD_LAYERS] = last;
    return smp_price_point(pricing, point, SMP_MIX_STEP, errors, price_p);
}

/* The more layers are offloaded the less memory a device needs, and the more a host. */
smp_status smp_find_sparing(const smp_pricing *pricing, smp_point *point, smp_errors *errors,
                            smp_price *price_p, bool *found_p)
{
    const smp_plan_space *space = pricing->space;
    smp_point without = *point;
    bracket b = {0};
    *found_p = false;
    if (!last_legal(space, point, 0, space->n_choice[SMP_DIM_OFFLOAD_LAYERS] - 1)) {
        return SMP_OK;
    }
    smp_status st = smp_price_point(pricing, point, SMP_MIX_STEP, errors, &b.most);
    if (st != SMP_OK || b.most.device_bytes > pricing->limit_bytes) {
        return st;
    }
    b.high = point->digit[SMP_DIM_OFFLOAD_LAYERS];
    b.least = b.most;
    if (without_offload(space, &without)) {
        st = smp_price_point(pricing, &without, 0, errors, &b.least);
    }
    st = st == SMP_OK ? narrow(pricing, &b, *point, errors) : st;
    point->digit[SMP_DIM_OFFLOAD_LAYERS] = b.high;
    *price_p = b.most;
    return st == SMP_OK && b.most.fits ? smp_is_sparing(pricing, point, errors, found_p) : st;
}
