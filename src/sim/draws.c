/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Durations of tasks whose rows are drawn: with an imbalance that is a distribution, each layer
 * of each micro-batch has its own, in forward, recomputation and backward alike.
 */
#include "config.h"

#include "sim/sim.h"

#include "base/numeric.h"

#include <math.h>

/* Draws are rounded to these parts of the mean number of rows, so that equal ones are priced
 * once; more than LEVELS parts are as many. */
enum { PARTS = 128, LEVELS = 8192 };

typedef struct draws {
    const smp_simulation *simulation;
    const smp_program *program;
    const int64_t *expected_ps; /* by task */
    double mean;
    bool *varies;               /* by segment */
    int64_t ***at_level;        /* by segment and level; NULL: not met yet */
} draws;

static void find_varying(draws *d)
{
    const smp_program *p = d->program;

    for (uint32_t s = 0; s < p->n_segment; s++) {
        for (uint32_t t = 0; t < p->segments[s].n_task; t++) {
            smp_task task = p->tasks[p->segments[s].task0 + t];

            d->varies[s] = smp_task_scale_rows(&task, 2) || d->varies[s];
            task = p->tasks[p->segments[s].task0 + t];
            d->varies[s] = smp_task_scale_rows(&task, 0.5) || d->varies[s];
        }
    }
}

static int64_t *price(const draws *d, const smp_segment *segment, uint32_t level)
{
    const smp_job *job = d->simulation->job;
    int64_t *duration = SMP_ARENA_ARRAY(d->simulation->arena, segment->n_task, int64_t);

    for (uint32_t t = 0; t < segment->n_task; t++) {
        smp_task task = d->program->tasks[segment->task0 + t];
        smp_cost cost;

        duration[t] = d->expected_ps[segment->task0 + t];
        if (smp_task_scale_rows(&task, (double)level / PARTS / d->mean)) {
            smp_cost_task(job->cluster, job->profile, d->program, &task, &cost);
            duration[t] = smp_ps_from_s(smp_cost_seconds(&cost));
        }
    }
    return duration;
}

static const int64_t *draw(draws *d, const smp_instance *instance)
{
    const smp_settings *s = &d->simulation->job->settings;
    const double value = smp_imbalance_draw(&s->imbalance, s->random_seed, instance->layer,
                                            instance->micro_batch);
    const double parts = floor(value * PARTS + 0.5);
    const uint32_t level = parts < LEVELS ? (uint32_t)parts : LEVELS;
    const uint32_t segment = instance->segment;
    int64_t **levels = d->at_level[segment];

    if (levels == NULL) {
        levels = SMP_ARENA_ARRAY(d->simulation->arena, LEVELS + 1, int64_t *);
        d->at_level[segment] = levels;
    }
    if (levels[level] == NULL) {
        levels[level] = price(d, &d->program->segments[segment], level);
    }
    return levels[level];
}

const int64_t *const *smp_draw_durations(const smp_simulation *simulation, uint32_t c)
{
    const smp_settings *s = &simulation->job->settings;
    const smp_program *program = simulation->step->programs[c];
    smp_arena *arena = simulation->arena;
    draws d = {.simulation = simulation, .program = program,
               .expected_ps = simulation->duration_ps[c],
               .mean = smp_imbalance_mean(&s->imbalance)};

    if (s->imbalance.kind == SMP_IMBALANCE_CONSTANT || s->expert_parallel_degree == 1) {
        return NULL;
    }
    d.varies = SMP_ARENA_ARRAY(arena, program->n_segment, bool);
    d.at_level = SMP_ARENA_ARRAY(arena, program->n_segment, int64_t **);
    find_varying(&d);
    const int64_t **drawn = SMP_ARENA_ARRAY(arena, program->n_instance, const int64_t *);
    for (uint32_t i = 0; i < program->n_instance; i++) {
        const smp_instance *instance = &program->order[i];
        drawn[i] = d.varies[instance->segment] ? draw(&d, instance) : NULL;
    }
    return drawn;
}
