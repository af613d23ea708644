/* SPDX-License-Identifier: Apache-2.0 */
/* Times and arenas of mixes: see mix.h. */
#include "config.h"

#include "plan/mix.h"

#include "base/memo.h"
#include "base/numeric.h"
#include "mesh/mesh.h"
#include "plan/word.h"
#include "sim/peaks.h"
#include "sim/sim.h"
#include "step/order.h"
#include "step/skeleton.h"

#include <stdlib.h>
#include <string.h>

enum { LATEST = 4 }; /* families looked at before all others */
enum { FEWEST = 6 }; /* micro-batches that stand for more (evaluate.c) */

/* Layers kept of a run: tried one after the other until something repeats. */
static const uint32_t keeps[] = {SMP_KEEP_FEWEST, 8, 14, 26};
enum { KEEPS = sizeof keeps / sizeof keeps[0] };

/* Jobs on the same ranks with the same state. */
typedef struct family_key {
    const smp_model *model;
    const smp_cluster *cluster;
    const smp_profile *profile;
    uint64_t seq_len, micro_batches;
    smp_settings settings;  /* those of mixes at fixed values */
} family_key;

typedef struct family {
    family_key key;
    smp_ranks ranks;
    bool opened, known;
    uint32_t number;
    uint32_t n_part, n_short; /* of the fewest layers: all, and those too short to repeat */
    uint32_t n_grown[KEEPS], n_steady[KEEPS]; /* parts simulated, and of them steady */
    uint32_t ranks_a_node;
    /* highest peaks less the arenas */
    uint64_t device_bytes, host_bytes;
} family;

/* A job with few layers. */
typedef struct part_key {
    uint32_t family, horizon, keep;
    uint16_t alike[SMP_MOST_RUNS], kept[SMP_MOST_RUNS];
} part_key;

/* Lengths from which on the arena grows evenly. */
typedef struct even { int32_t more[SMP_MOST_RUNS]; uint64_t arena_bytes[SMP_SPACES]; } even;
enum { MOST_EVEN = 6, MOST_LEAST = 31 };

/* A step where tasks slow each other, and what it grows by: a layer of each run in all
 * micro-batches and in one of the middle, and such a micro-batch; -1: not steady. */
typedef struct growth {
    int64_t step_ps, layer_ps[SMP_MOST_RUNS];
    int64_t middle_ps, middle_layer_ps[SMP_MOST_RUNS];
} growth;

typedef struct part {
    part_key key;
    const smp_word *word;   /* NULL: nothing repeats */
    smp_passes passes;
    bool has_grown;
    growth growth;
    const smp_skeleton *skeleton;
    uint32_t layer[SMP_MOST_RUNS]; /* that is repeated */
    uint64_t slope_bytes[SMP_MOST_RUNS][SMP_SPACES];
    even even[MOST_EVEN];
    uint32_t n_even;
} part;

struct smp_mixes {
    smp_arena *arena;
    smp_memo *families, *parts;
    family *latest[LATEST];
    uint32_t next_latest;
    family **all; /* heap */
    size_t n_family, family_room;
    uint64_t n_lowered;
    smp_skeleton_room room;
    smp_prices *prices;     /* on this cluster and profile */
    const smp_cluster *cluster;
    const smp_profile *profile;
    bool overlaps;          /* tasks slow each other */
    smp_overlap overlap;
};

smp_mixes *smp_mixes_create(void)
{
    smp_mixes *mixes = smp_heap_alloc(1, sizeof *mixes);
    *mixes = (smp_mixes){.arena = smp_arena_create(),
                         .families = smp_memo_create(sizeof(family_key), sizeof(family)),
                         .parts = smp_memo_create(sizeof(part_key), sizeof(part))};
    return mixes;
}

void smp_mixes_destroy(smp_mixes *mixes)
{
    if (mixes) {
        for (size_t i = 0; i < mixes->n_family; i++) {
            smp_ranks_destroy(&mixes->all[i]->ranks);
        }
        free(mixes->all);
        smp_skeleton_room_free(&mixes->room);
        smp_prices_destroy(mixes->prices);
        smp_memo_destroy(mixes->families);
        smp_memo_destroy(mixes->parts);
        smp_arena_destroy(mixes->arena);
        free(mixes);
    }
}

uint64_t smp_mixes_lowered(const smp_mixes *mixes)
{
    return mixes->n_lowered;
}

/* ------------------------------------------------------------------- families */

static void key_of(const smp_job *job, family_key *key)
{
    memset(key, 0, sizeof *key);
    key->model = job->model;
    key->cluster = job->cluster;
    key->profile = job->profile;
    key->seq_len = job->batch.seq_len;
    key->micro_batches = job->micro_batches;
    memcpy(&key->settings, &job->settings, sizeof key->settings);
    key->settings.offload = false;
    key->settings.offload_layers = 0;
    key->settings.checkpointing_layers = 0;
    key->settings.activation_loading_horizon = 0;
    if (smp_checkpoints_by_layer(key->settings.checkpointing)) {
        key->settings.checkpointing = SMP_CHECKPOINTING_NONE;
    }
}

/* What lives through the step: all that is known of a program whose memory is not planned. */
static void count_state(smp_program *program)
{
    for (uint32_t b = 0; b < program->n_buffer; b++) {
        const smp_buffer *buffer = &program->buffers[b];
        if (buffer->space == SMP_SPACE_DEVICE && buffer->scope == SMP_SCOPE_STEP) {
            const uint64_t bytes = smp_mul(buffer->bytes, smp_place_count(buffer));
            uint64_t *sum = &program->live_kind_bytes[buffer->kind];
            *sum = smp_add(*sum, bytes);
            program->live_bytes = smp_add(program->live_bytes, bytes);
        }
    }
}

/* What the peaks of a family have besides the arenas. */
static void measure_peaks(const smp_job *job, const smp_step *step, family *f)
{
    const smp_program *program = step->programs[0];
    const uint64_t arena_bytes = program->arena_bytes;
    const uint64_t on_host = smp_mul(f->ranks_a_node, program->host_arena_bytes);
    smp_memory memory;
    uint32_t fullest = 0;
    smp_memory_split(job, step, &memory, &fullest);
    f->device_bytes =
        memory.peaks[smp_peaks_most(&memory, false)].device_bytes - arena_bytes;
    f->host_bytes = memory.peaks[smp_peaks_most(&memory, true)].host_bytes_per_node - on_host;
}

/* Of one class, on nodes that are alike. */
static smp_status open_family(smp_mixes *mixes, const smp_job *job, smp_errors *errors,
                              family *f)
{
    const uint32_t per_node = smp_cluster_gpus_per_node(job->cluster);
    smp_step *step = NULL;
    f->opened = true;
    f->number = (uint32_t)mixes->n_family;
    SMP_GROW(mixes->all, mixes->n_family, mixes->family_room);
    mixes->all[mixes->n_family++] = f;
    f->ranks_a_node = job->world < per_node ? job->world : per_node;
    smp_status status = smp_ranks_create(job, errors, &f->ranks);
    if (status != SMP_OK || f->ranks.classes->n_class > 1 ||
        job->world % f->ranks_a_node != 0) {
        return status;
    }
    status = smp_step_lower_apart_on(job, &f->ranks, errors, &step);
    if (status != SMP_OK) {
        return status;
    }
    f->known = !step->programs[0]->host_launches;
    if (f->known) {
        count_state(step->programs[0]);
        measure_peaks(job, step, f);
    }
    smp_step_destroy(step);
    return SMP_OK;
}

static smp_status find_family(smp_mixes *mixes, const smp_job *job, smp_errors *errors,
                              family **family_p)
{
    family_key key;
    bool is_new = false;
    smp_status status = SMP_OK;
    key_of(job, &key);
    for (uint32_t i = 0; i < LATEST; i++) {
        family *f = mixes->latest[i];
        if (f && memcmp(&f->key, &key, sizeof key) == 0) {
            *family_p = f;
            return SMP_OK;
        }
    }
    family *f = smp_memo_at(mixes->families, &key, &is_new);
    mixes->latest[mixes->next_latest++ % LATEST] = f;
    if (!f->opened) {
        status = open_family(mixes, job, errors, f);
    }
    *family_p = f;
    return status;
}

/* ---------------------------------------------------------------------- parts */

static smp_prices *prices_of(smp_mixes *mixes, const smp_job *job)
{
    if (mixes->cluster != job->cluster || mixes->profile != job->profile) {
        smp_prices_destroy(mixes->prices);
        mixes->prices = smp_prices_create();
        mixes->cluster = job->cluster;
        mixes->profile = job->profile;
        mixes->overlaps = smp_cost_overlap(job->profile, &mixes->overlap);
    }
    return mixes->prices;
}

static void add_ps(int64_t *sum_ps, int64_t more_ps)
{
    *sum_ps = *sum_ps < 0 || more_ps < 0 ? -1 : *sum_ps + more_ps;
}

/* The time with more layers and micro-batches; -1: not known. */
static int64_t grown_ps(const growth *g, const smp_runs *runs, const int32_t *more,
                        uint64_t more_middle)
{
    int64_t step_ps = g->step_ps;
    int64_t middle_ps = g->middle_ps;
    for (uint32_t r = 0; r < runs->n; r++) {
        if (more[r] != 0 && g->layer_ps[r] < 0) {
            return -1;
        }
        step_ps += more[r] * g->layer_ps[r];
        middle_ps += more[r] * g->middle_layer_ps[r];
    }
    if (more_middle > 0 && g->middle_ps < 0) {
        return -1;
    }
    return more_middle > 0 ? step_ps + middle_ps * (int64_t)more_middle : step_ps;
}

/* The job with few layers, and no more micro-batches than stand for all. */
typedef struct lowered {
    smp_arena *arena; /* NULL: not lowered */
    smp_step *step;
    int64_t *duration_ps;
} lowered;

static void release(lowered *low)
{
    if (low->arena) {
        smp_step_destroy(low->step);
        smp_arena_destroy(low->arena);
    }
    *low = (lowered){0};
}

static smp_status lower(smp_mixes *mixes, const smp_job *job, const family *f,
                        const smp_runs *runs, smp_errors *errors, lowered *low)
{
    smp_cut cut;
    low->arena = smp_arena_create();
    smp_cut_make(job, runs, low->arena, &cut);
    if (job->micro_batches > FEWEST) {
        cut.job.micro_batches = FEWEST;
    }
    mixes->n_lowered++;
    const smp_status status =
        smp_step_lower_skeleton_on(&cut.job, &f->ranks, errors, &low->step);
    return status == SMP_OK
               ? smp_price_program(&cut.job, low->step->programs[0], prices_of(mixes, job),
                                   low->arena, errors, &low->duration_ps)
               : status;
}

static void keep_passes(smp_arena *arena, const smp_passes *passes, part *p)
{
    p->passes.n = passes->n;
    p->passes.at = SMP_ARENA_ARRAY(arena, passes->n, smp_pass);
    p->passes.run = SMP_ARENA_ARRAY(arena, passes->n, uint32_t);
    for (uint32_t i = 0; i < passes->n; i++) {
        p->passes.at[i] = passes->at[i];
        p->passes.run[i] = passes->run[i];
    }
}

static smp_status open_part(smp_mixes *mixes, const smp_job *job, const family *f,
                            const smp_runs *runs, smp_errors *errors, lowered *low, part *p)
{
    smp_skeleton *skeleton = NULL;
    smp_passes passes = {0};
    smp_status status = lower(mixes, job, f, runs, errors, low);
    if (status == SMP_OK) {
        p->word = smp_word_create(low->step->programs[0], low->duration_ps, runs,
                                  job->micro_batches > FEWEST, mixes->arena, low->arena,
                                  &passes);
    }
    if (p->word) {
        keep_passes(mixes->arena, &passes, p);
        status = smp_skeleton_create(low->step->programs[0], mixes->arena, errors, &skeleton);
        p->skeleton = skeleton;
    }
    for (uint32_t r = 0; r < runs->n; r++) {
        p->layer[r] = runs->run[r].at + runs->run[r].kept / 2;
    }
    return status;
}

static void sum_growth(const smp_passes *passes, growth *g)
{
    uint32_t middle = UINT32_MAX;
    for (uint32_t p = 0; p < passes->n; p++) {
        if (passes->at[p].is_middle) {
            middle = passes->at[p].micro_batch;
            g->middle_ps = passes->at[p].more_ps;
        }
    }
    for (uint32_t p = 0; p < passes->n; p++) {
        const smp_pass *pass = &passes->at[p];
        if (!pass->is_middle) {
            add_ps(&g->layer_ps[passes->run[p]], pass->more_ps);
        }
        if (!pass->is_middle && pass->micro_batch == middle) {
            add_ps(&g->middle_layer_ps[passes->run[p]], pass->more_ps);
        }
    }
}

/* Simulates the few layers with what tasks do to each other, unless that is done; lowers them
 * again where they are not there. */
static smp_status grow_part(smp_mixes *mixes, const smp_job *job, const family *f,
                            const smp_runs *runs, smp_errors *errors, lowered *low, part *p)
{
    if (p->has_grown) {
        return SMP_OK;
    }
    smp_status status = low->step ? SMP_OK : lower(mixes, job, f, runs, errors, low);
    if (status == SMP_OK) {
        status = smp_steady_run(low->step, low->duration_ps, &mixes->overlap, p->passes.at,
                                p->passes.n, errors, &p->growth.step_ps);
    }
    sum_growth(&p->passes, &p->growth);
    p->has_grown = status == SMP_OK;
    return status;
}

static void part_key_of(const smp_job *job, const family *f, uint32_t keep,
                        const smp_runs *runs, part_key *key)
{
    memset(key, 0, sizeof *key);
    key->family = f->number;
    key->keep = keep;
    key->horizon = job->settings.offload ? 1 + job->settings.activation_loading_horizon : 0;
    for (uint32_t r = 0; r < runs->n; r++) {
        key->alike[r] = (uint16_t)runs->run[r].alike;
        key->kept[r] = (uint16_t)runs->run[r].kept;
    }
}

/* The arenas by what is known to grow evenly; false: these lengths are not among it. */
static bool extend_even(const part *p, const smp_runs *runs, const int32_t *more,
                        uint64_t bytes[SMP_SPACES])
{
    uint32_t e = 0;
    for (uint32_t r = 0; e < p->n_even && r < runs->n; r++) {
        if (more[r] < p->even[e].more[r]) {
            e++;
            r = UINT32_MAX; /* the next from its first run on */
        }
    }
    if (e == p->n_even) {
        return false;
    }
    memcpy(bytes, p->even[e].arena_bytes, sizeof p->even[e].arena_bytes);
    for (uint32_t r = 0; r < runs->n; r++) {
        const uint64_t beyond = (uint64_t)(more[r] - p->even[e].more[r]);
        for (int space = 0; space < SMP_SPACES; space++) {
            bytes[space] += beyond * p->slope_bytes[r][space];
        }
    }
    return true;
}

/* Packs with these lengths; notes where they begin to be even.  False: no layers repeat. */
static bool pack(smp_mixes *mixes, part *p, const smp_runs *runs, const int32_t *more,
                 uint64_t bytes[SMP_SPACES])
{
    smp_repeat repeats[SMP_MOST_RUNS] = {{0}};
    smp_slope slopes[SMP_MOST_RUNS];
    smp_repeated out;
    uint32_t n = 0;
    bool linear = p->n_even < MOST_EVEN;
    for (uint32_t r = 0; r < runs->n; r++) {
        if (runs->run[r].repeats) {
            repeats[n++] = (smp_repeat){p->layer[r], 1, more[r]};
        }
    }
    if (!smp_skeleton_arena(p->skeleton, n, repeats, &mixes->room, &out, slopes)) {
        return false;
    }
    memcpy(bytes, out.arena_bytes, sizeof out.arena_bytes);
    for (uint32_t i = 0; i < n; i++) {
        linear = linear && slopes[i].linear;
    }
    if (linear) {
        even *e = &p->even[p->n_even++];
        memcpy(e->more, more, sizeof e->more);
        memcpy(e->arena_bytes, bytes, sizeof e->arena_bytes);
        for (uint32_t r = 0, i = 0; r < runs->n; r++) {
            if (runs->run[r].repeats) {
                memcpy(p->slope_bytes[r], slopes[i++].bytes, sizeof p->slope_bytes[r]);
            }
        }
    }
    return true;
}

/* Looks for the least lengths that are even, the same for all runs. */
static bool find_even(smp_mixes *mixes, part *p, const smp_runs *runs)
{
    for (int32_t least = -1; least <= MOST_LEAST && p->n_even == 0; least = 2 * least + 2) {
        int32_t more[SMP_MOST_RUNS] = {0};
        uint64_t bytes[SMP_SPACES];
        for (uint32_t r = 0; r < runs->n; r++) {
            more[r] = runs->run[r].repeats ? least : 0;
        }
        if (!pack(mixes, p, runs, more, bytes)) {
            return false;
        }
    }
    return true;
}

static bool arenas_of(smp_mixes *mixes, part *p, const smp_runs *runs, const int32_t *more,
                      uint64_t bytes[SMP_SPACES])
{
    return extend_even(p, runs, more, bytes) || pack(mixes, p, runs, more, bytes);
}

/* ---------------------------------------------------------------------- entry */

static void fill(const family *f, const uint64_t bytes[SMP_SPACES], smp_mix *mix)
{
    mix->arena_bytes = bytes[SMP_SPACE_DEVICE];
    mix->host_arena_bytes = bytes[SMP_SPACE_HOST];
    mix->device_bytes = smp_add(f->device_bytes, mix->arena_bytes);
    mix->host_bytes =
        smp_add(f->host_bytes, smp_mul(f->ranks_a_node, mix->host_arena_bytes));
    mix->step_ps = mix->alone_ps = -1;
}

static bool fits(const smp_job *job, const smp_mix *mix)
{
    return (double)mix->device_bytes <= job->cluster->memory_bytes.value &&
           (double)mix->host_bytes <= job->cluster->host_memory_bytes.value;
}

static bool wants_step(const smp_job *job, const smp_mix *mix, unsigned times)
{
    return (times & SMP_MIX_UNFIT) != 0 || ((times & SMP_MIX_STEP) != 0 && fits(job, mix));
}

/* Whether so few layers are kept that less than half of the parts of a family are steady. */
static bool is_hopeless(const family *f, uint32_t k)
{
    enum { TRIES = 8 };
    return f->n_grown[k] >= TRIES && 2 * f->n_steady[k] < f->n_grown[k];
}

/* The time of a part with so many layers more where tasks slow each other; -1: not known. */
static smp_status find_step(smp_mixes *mixes, const smp_job *job, family *f, uint32_t k,
                            const smp_runs *runs, const int32_t *more, uint64_t more_middle,
                            smp_errors *errors, lowered *low, part *p, int64_t *step_ps_p)
{
    const bool is_new = !p->has_grown;
    if (is_new && is_hopeless(f, k)) {
        return SMP_OK;
    }
    const smp_status status = grow_part(mixes, job, f, runs, errors, low, p);
    if (status == SMP_OK) {
        *step_ps_p = grown_ps(&p->growth, runs, more, more_middle);
        f->n_grown[k] += is_new;
        f->n_steady[k] += is_new && *step_ps_p >= 0;
    }
    return status;
}

/* *known_p false: the step takes longer than a word can say. */
static smp_status find_times(smp_mixes *mixes, const smp_job *job, family *f, uint32_t k,
                             const smp_runs *runs, const int32_t *more, unsigned times,
                             smp_errors *errors, lowered *low, part *p, smp_mix *mix,
                             bool *known_p)
{
    const uint64_t more_middle = job->micro_batches > FEWEST ? job->micro_batches - FEWEST : 0;
    const bool step = wants_step(job, mix, times);
    smp_status status = SMP_OK;
    if (step && mixes->overlaps) {
        status = find_step(mixes, job, f, k, runs, more, more_middle, errors, low, p,
                           &mix->step_ps);
    }
    if ((times & SMP_MIX_ALONE) != 0 || (step && mix->step_ps < 0)) {
        mix->alone_ps = smp_word_end(p->word, more, more_middle);
        *known_p = mix->alone_ps >= 0;
        if (!mixes->overlaps) {
            mix->step_ps = mix->alone_ps;
        }
    }
    return status;
}

/* With keeps[k] layers of a run. */
static smp_status price_with(smp_mixes *mixes, const smp_job *job, family *f, uint32_t k,
                             unsigned times, smp_errors *errors, smp_mix *mix, bool *known_p)
{
    const uint32_t keep = keeps[k];
    smp_runs runs;
    part_key key;
    bool is_new = false;
    int32_t more[SMP_MOST_RUNS] = {0};
    uint64_t bytes[SMP_SPACES];
    lowered low = {0};
    smp_status status = SMP_OK;
    smp_runs_find(job, keep, &runs);
    if (runs.n == 0) {
        return SMP_OK;
    }
    part_key_of(job, f, keep, &runs, &key);
    part *p = smp_memo_at(mixes->parts, &key, &is_new);
    if (is_new) {
        status = open_part(mixes, job, f, &runs, errors, &low, p);
        if (status == SMP_OK && p->word && !find_even(mixes, p, &runs)) {
            p->word = NULL;
        }
        f->n_part += keep == SMP_KEEP_FEWEST;
        f->n_short += keep == SMP_KEEP_FEWEST && p->word == NULL;
    }
    for (uint32_t r = 0; r < runs.n; r++) {
        more[r] = (int32_t)runs.run[r].layers - (int32_t)runs.run[r].kept;
    }
    *known_p = status == SMP_OK && p->word && arenas_of(mixes, p, &runs, more, bytes);
    if (*known_p) {
        fill(f, bytes, mix);
        status = find_times(mixes, job, f, k, &runs, more, times, errors, &low, p, mix,
                            known_p);
    }
    release(&low);
    return status;
}

static bool is_unsteady(const smp_mixes *mixes, const smp_job *job, const smp_mix *mix,
                        unsigned times)
{
    return mixes->overlaps && mix->step_ps < 0 && wants_step(job, mix, times);
}

/* Where the fewest layers are too few for half of a family's parts, they are not tried; nor,
 * for a time, where others are steady more often. */
static uint32_t first_keep(const family *f, unsigned times)
{
    enum { TRIES = 8 };
    const uint32_t first = f->n_part >= TRIES && 2 * f->n_short > f->n_part ? 1 : 0;
    uint32_t k = first;
    while ((times & SMP_MIX_STEP) != 0 && k < KEEPS && is_hopeless(f, k)) {
        k++;
    }
    return k < KEEPS ? k : first;
}

smp_status smp_mix_price(smp_mixes *mixes, const smp_job *job, unsigned times,
                         smp_errors *errors, smp_mix *mix_p, bool *known_p)
{
    family *f = NULL;
    smp_job expected;
    if (job->settings.imbalance.kind != SMP_IMBALANCE_CONSTANT) {
        expected = smp_with_expected_rows(job);
        job = &expected;
    }
    smp_status status = find_family(mixes, job, errors, &f);
    *known_p = false;
    uint32_t k = first_keep(f, times);
    for (; status == SMP_OK && f->known && !*known_p && k < KEEPS; k++) {
        status = price_with(mixes, job, f, k, times, errors, mix_p, known_p);
    }
    /* passes may be steady where they are longer */
    for (; status == SMP_OK && *known_p && is_unsteady(mixes, job, mix_p, times) && k < KEEPS;
         k++) {
        smp_mix longer;
        bool known = false;
        if (!is_hopeless(f, k)) {
            status = price_with(mixes, job, f, k, times, errors, &longer, &known);
            mix_p->step_ps = known ? longer.step_ps : -1;
        }
    }
    return status;
}

const smp_ranks *smp_mix_ranks(smp_mixes *mixes, const smp_job *job)
{
    family_key key;
    bool is_new = false;
    key_of(job, &key);
    const family *f = smp_memo_at(mixes->families, &key, &is_new);
    return f->known ? &f->ranks : NULL;
}
