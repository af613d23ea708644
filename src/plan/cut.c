/* SPDX-License-Identifier: Apache-2.0 */
/* A job with fewer layers: see cut.h. */
#include "config.h"

#include "plan/cut.h"

#include "mesh/settings.h"
#include "model/model.h"

/* What the lowering makes of a layer but for its block (lower_variants.c): where its input
 * and its output lie, whether the input is stored, whether it is checkpointed. */
typedef enum standing { STORED, IN_RING, LEAVES_RING, CHECKPOINTED, PLAIN, PLACES } standing;

enum { LAST_KEPT = 5 }; /* of the fewest layers, those of the last run */

typedef struct bounds { uint32_t stored, offloaded, checkpointed, horizon; } bounds;

static bounds bounds_of(const smp_job *job)
{
    const smp_settings *s = &job->settings;
    const uint32_t horizon = s->sm_activation_offloading ? s->activation_loading_horizon : 0;
    bounds b = {.checkpointed = s->checkpointing_layers, .offloaded = smp_offloaded_layers(s),
                .horizon = horizon};
    if (horizon >= b.offloaded) {
        b.offloaded = 0;
    }
    b.stored = b.offloaded > 0 ? b.offloaded - horizon : 0;
    return b;
}

/* The place of a layer, and the first layer behind it that has another one. */
static uint32_t place_of(const bounds *b, uint32_t layer, uint32_t n_layer, uint32_t *end_p)
{
    if (b->offloaded > 0 && layer + 1 == b->offloaded) {
        *end_p = layer + 1;
        return layer < b->stored ? LEAVES_RING + PLACES : LEAVES_RING;
    }
    if (layer < b->stored) {
        *end_p = b->stored < b->offloaded ? b->stored : b->offloaded - 1;
        return STORED;
    }
    if (layer < b->offloaded) {
        *end_p = b->offloaded - 1;
        return IN_RING;
    }
    *end_p = layer < b->checkpointed ? b->checkpointed : n_layer;
    return layer < b->checkpointed ? CHECKPOINTED : PLAIN;
}

/* As few as are enough in most jobs: one more where gathers run ahead of backward through two
 * slots. */
static uint32_t fewest(const smp_settings *s, uint32_t place)
{
    switch (place % PLACES) {
    case STORED:
        return 4;
    case CHECKPOINTED:
        return s->prefetch != SMP_PREFETCH_NONE && s->reshard_after_forward ? 4 : 3;
    default:
        return LAST_KEPT;
    }
}

/* Loads run ahead of backward by the horizon, and the ring behind what is stored is as long. */
static void keep_layers(const smp_settings *s, smp_run *run, uint32_t place, uint32_t keep,
                        uint32_t horizon)
{
    if (keep == SMP_KEEP_FEWEST) {
        keep = fewest(s, place);
    }
    if (place == STORED) {
        keep += horizon;
    }
    run->repeats = place != IN_RING && run->layers + 1 >= keep;
    run->kept = run->repeats ? keep : run->layers;
}

static uint32_t end_of_kind(const smp_model *model, uint32_t layer, uint32_t end)
{
    uint32_t i = layer + 1;
    if (model->n_kind == 1) {
        return end;
    }
    while (i < end && model->kind_of_layer[i] == model->kind_of_layer[layer]) {
        i++;
    }
    return i;
}

/* Cuts runs to the layers that they have. */
static void shorten(smp_runs *runs)
{
    uint32_t at = 0;
    for (uint32_t r = 0; r < runs->n; r++) {
        smp_run *run = &runs->run[r];
        run->repeats = run->repeats && run->kept <= run->layers;
        run->kept = run->kept < run->layers ? run->kept : run->layers;
        run->at = at;
        at += run->kept;
    }
}

/* Rings of two slots are used in turn, also from one micro-batch to the next: the number of
 * layers that are left out is even. */
static void keep_even(smp_runs *runs)
{
    uint32_t r = runs->n - 1;
    if (smp_runs_missing(runs) % 2 == 0) {
        return;
    }
    while (r > 0 && runs->run[r].kept >= runs->run[r].layers) {
        r--;
    }
    if (runs->run[r].kept >= runs->run[r].layers) {
        shorten(runs);
        return;
    }
    runs->run[r].kept++;
    for (r++; r < runs->n; r++) {
        runs->run[r].at++;
    }
}

void smp_runs_find(const smp_job *job, uint32_t keep, smp_runs *runs)
{
    const smp_model *model = job->model;
    const bounds b = bounds_of(job);
    uint32_t at = 0;
    runs->n = 0;
    for (uint32_t layer = 0; layer < model->n_layer;) {
        uint32_t end = 0;
        const uint32_t place = place_of(&b, layer, model->n_layer, &end);
        end = end_of_kind(model, layer, end);
        if (runs->n == SMP_MOST_RUNS) {
            runs->n = 0;
            return;
        }
        smp_run *run = &runs->run[runs->n++];
        *run = (smp_run){.first = layer, .layers = end - layer, .at = at,
                         .alike = 2U * PLACES * model->kind_of_layer[layer] + place};
        /* the last layers are followed by the loss, whatever they are */
        keep_layers(&job->settings, run, place,
                    keep == SMP_KEEP_FEWEST && end == model->n_layer ? LAST_KEPT : keep,
                    b.horizon);
        at += run->kept;
        layer = end;
    }
    keep_even(runs);
}

uint32_t smp_runs_missing(const smp_runs *runs)
{
    uint32_t missing = 0;
    for (uint32_t r = 0; r < runs->n; r++) {
        missing += runs->run[r].layers - runs->run[r].kept;
    }
    return missing;
}

/* Of the first n layers those that the runs keep; n is the end of a run. */
static uint32_t kept_of_first(const smp_runs *runs, uint32_t n)
{
    uint32_t kept = 0;
    for (uint32_t r = 0; r < runs->n && runs->run[r].first < n; r++) {
        kept += runs->run[r].kept;
    }
    return kept;
}

void smp_cut_make(const smp_job *job, const smp_runs *runs, smp_arena *arena, smp_cut *cut)
{
    const uint32_t n_layer = kept_of_first(runs, job->model->n_layer);
    uint8_t *kinds = SMP_ARENA_ARRAY(arena, n_layer, uint8_t);
    smp_settings *s = &cut->job.settings;
    for (uint32_t r = 0; r < runs->n; r++) {
        const smp_run *run = &runs->run[r];
        for (uint32_t i = 0; i < run->kept; i++) {
            kinds[run->at + i] = job->model->kind_of_layer[run->first];
        }
    }
    cut->runs = *runs;
    cut->model = *job->model;
    cut->model.n_layer = n_layer;
    cut->model.kind_of_layer = kinds;
    cut->job = *job;
    cut->job.model = &cut->model;
    s->checkpointing_layers = kept_of_first(runs, s->checkpointing_layers);
    s->offload_layers = kept_of_first(runs, s->offload_layers);
}
