/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rotary positions [Su et al. 2021]: tables of angles with every scaling, rotation of q and k,
 * and the q, k, v of latent attention [DeepSeek-V2, 2024, sec. 2.1.2].
 *
 * A pair is elements i and i + rotated / 2 of a head (transformers' rotate_half), or 2i and
 * 2i + 1 in families that interleave them.
 */
#include "config.h"

#include "exec/cpu.h"

#include "base/arena.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- tables ---- */

/* The pair, as a real number, that turns `turns` times over the original positions. */
static double pair_of_turns(const smp_model *model, double theta, uint64_t pairs, double turns)
{
    return (double)pairs * log(model->rope_original_positions / (turns * 6.283185307179586))
           / log(theta);
}

/* yarn: fast pairs keep their frequency, slow ones are interpolated, a ramp between the two
 * [Peng et al. 2023, sec. 3.2; transformers, modeling_rope_utils.py]. */
static double yarn_frequency(const smp_model *model, double theta, uint64_t pairs, uint64_t i,
                             double f)
{
    double low = pair_of_turns(model, theta, pairs, model->rope_beta_fast);
    double high = pair_of_turns(model, theta, pairs, model->rope_beta_slow), ramp;

    low = model->rope_ramp_unrounded ? low : floor(low);
    high = model->rope_ramp_unrounded ? high : ceil(high);
    low = low < 0 ? 0 : low;
    high = high > 2.0 * (double)pairs - 1 ? 2.0 * (double)pairs - 1 : high;
    high = high > low ? high : low + 0.001;
    ramp = ((double)i - low) / (high - low);
    ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    return f * (1 - ramp) + f / model->rope_factor * ramp;
}

static double llama3_frequency(const smp_model *model, double f)
{
    double wave = 6.283185307179586 / f, smooth;
    double low = model->rope_original_positions / model->rope_low_freq;
    double high = model->rope_original_positions / model->rope_high_freq;

    if (wave > low) {
        return f / model->rope_factor;
    }
    if (wave < high) {
        return f;
    }
    smooth = (model->rope_original_positions / wave - model->rope_low_freq)
             / (model->rope_high_freq - model->rope_low_freq);
    return (1 - smooth) * f / model->rope_factor + smooth * f;
}

/* dynamic: the base grows with the length beyond the positions of the model. */
static double dynamic_theta(const smp_model *model, double theta, uint64_t pairs, uint64_t seq)
{
    double most = (double)model->max_positions, n = (double)(2 * pairs);

    if ((double)seq <= most || pairs < 2) {
        return theta;
    }
    return theta * pow(model->rope_factor * (double)seq / most - (model->rope_factor - 1),
                       n / (n - 2));
}

/* Frequency of pair i, scaled as transformers' modeling_rope_utils.py does for the type. */
static double frequency(const smp_model *model, double theta, uint64_t pairs, uint64_t seq,
                        uint64_t i)
{
    double f = pow(theta, -(double)i / (double)pairs);

    switch (model->rope_scaling) {
    case SMP_ROPE_PLAIN:
        break;
    case SMP_ROPE_LINEAR:
        return f / model->rope_factor;
    case SMP_ROPE_DYNAMIC:
        return pow(dynamic_theta(model, theta, pairs, seq), -(double)i / (double)pairs);
    case SMP_ROPE_YARN:
        return yarn_frequency(model, theta, pairs, i, f);
    case SMP_ROPE_LONGROPE:
        return f / ((double)seq > model->rope_original_positions
                        ? model->rope_long_factors[i]
                        : model->rope_short_factors[i]);
    case SMP_ROPE_LLAMA3:
        return llama3_frequency(model, f);
    }
    return f;
}

/* One table: cosines of all positions, then sines; pair i turns by f[i] a position. */
static void fill_table(float *table, uint64_t seq, uint64_t pairs, const double *f,
                       double scale)
{
    for (uint64_t t = 0; t < seq; t++) {
        for (uint64_t i = 0; i < pairs; i++) {
            table[t * pairs + i] = (float)(scale * cos((double)t * f[i]));
            table[(seq + t) * pairs + i] = (float)(scale * sin((double)t * f[i]));
        }
    }
}

float *smp_cpu_rope_tables(smp_cpu *cpu)
{
    const smp_model *model = cpu->rank->job->model;
    const smp_attention *a = &model->kinds[0].attention;
    uint64_t seq = cpu->rank->job->batch.seq_len, pairs;
    bool local = model->rope_local_theta > 0;
    float *table;
    double *f;

    if (model->position != SMP_POSITION_ROPE) {
        return NULL;
    }
    pairs = (a->kv_lora_rank > 0 ? a->qk_rope_dim
                                 : (uint64_t)((double)a->head_dim * model->rotary_frac)) / 2;
    f = smp_heap_alloc(pairs, sizeof *f);
    table = smp_heap_alloc((local ? 4 : 2) * pairs * seq, sizeof *table);
    for (uint64_t i = 0; i < pairs; i++) {
        f[i] = frequency(model, model->rope_theta, pairs, seq, i);
    }
    fill_table(table, seq, pairs, f, model->rope_attention_factor);
    cpu->cosines = cpu->local_cosines = table;
    cpu->sines = cpu->local_sines = table + seq * pairs;
    if (local) {
        for (uint64_t i = 0; i < pairs; i++) {
            f[i] = pow(model->rope_local_theta, -(double)i / (double)pairs);
        }
        fill_table(table + 2 * seq * pairs, seq, pairs, f, 1);
        cpu->local_cosines = table + 2 * seq * pairs;
        cpu->local_sines = table + 3 * seq * pairs;
    }
    free(f);
    return table;
}

/* ---- rotation ---- */

/* One head of a token; sign -1: its transpose, which is the gradient. */
static void turn(const smp_cpu *cpu, const smp_launch *l, float *x, uint64_t half,
                 uint64_t position, float sign)
{
    bool local = l->block->attention.window > 0;
    const float *c = (local ? cpu->local_cosines : cpu->cosines) + position * half;
    const float *s = (local ? cpu->local_sines : cpu->sines) + position * half;
    bool woven = cpu->rank->job->model->rope_interleaved;
    uint64_t stride = woven ? 2 : 1, other = woven ? 1 : half;

    for (uint64_t j = 0; j < half; j++) {
        float a = x[stride * j], b = x[stride * j + other];

        x[stride * j] = a * c[j] - sign * b * s[j];
        x[stride * j + other] = b * c[j] + sign * a * s[j];
    }
}

static void rotate(const smp_cpu *cpu, const smp_launch *l, float sign)
{
    uint64_t tokens = l->task->dims[0], n_head = l->task->dims[1] + l->task->dims[2];
    uint64_t d = l->task->dims[3], half = l->task->dims[4] / 2, seq = l->task->dims[5];
    uint64_t width = (n_head + l->task->dims[2]) * d;
    smp_dtype t = (smp_dtype)l->task->dtype;
    float *scratch = smp_heap_alloc(2 * half, sizeof *scratch);

    for (uint64_t i = 0; i < tokens * n_head; i++) {
        uint64_t token = i / n_head, first = token * width + i % n_head * d;

        smp_load(scratch, l->at[0], t, first, 2 * half);
        turn(cpu, l, scratch, half, token % seq - smp_begin_of(cpu, l, token), sign);
        smp_store(l->at[0], t, first, scratch, 2 * half);
    }
    free(scratch);
}

void smp_cpu_rope(const smp_cpu *cpu, const smp_launch *l)
{
    rotate(cpu, l, 1.0f);
}

void smp_cpu_rope_grad(const smp_cpu *cpu, const smp_launch *l)
{
    rotate(cpu, l, -1.0f);
}

/* ---- latent attention ---- */

/* Sizes of a token's rows: q of all heads, kv of all heads, the latent, q k v of all heads. */
typedef struct latent {
    uint64_t tokens, heads, nope, rope, v, seq, row;
    uint64_t d, q_width, kv_width, width;
    smp_dtype t;
} latent;

static latent make_latent(const smp_launch *l)
{
    const uint64_t *n = l->task->dims;
    latent s = { n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[2] + n[3], n[1] * (n[2] + n[3]),
                 n[1] * (n[2] + n[4]), n[1] * (2 * (n[2] + n[3]) + n[4]),
                 (smp_dtype)l->task->dtype };

    return s;
}

/* k's part of head h, and v's, in a row of q k v. */
static uint64_t k_at(const latent *s, uint64_t h)
{
    return s->q_width + h * s->d;
}

static uint64_t v_at(const latent *s, uint64_t h)
{
    return 2 * s->q_width + h * s->v;
}

void smp_cpu_latent(const smp_cpu *cpu, const smp_launch *l)
{
    latent s = make_latent(l);
    float *y = smp_heap_alloc(s.width + s.kv_width + s.rope, sizeof *y);
    float *kv = y + s.width, *shared = kv + s.kv_width;

    for (uint64_t i = 0; i < s.tokens; i++) {
        uint64_t position = i % s.seq - smp_begin_of(cpu, l, i);

        smp_load(y, l->at[0], s.t, i * s.q_width, s.q_width);
        smp_load(kv, l->at[1], s.t, i * s.kv_width, s.kv_width);
        smp_load(shared, l->at[2], s.t, (i + 1) * s.row - s.rope, s.rope);
        turn(cpu, l, shared, s.rope / 2, position, 1.0f);
        for (uint64_t h = 0; h < s.heads; h++) {
            const float *of = kv + h * (s.nope + s.v);

            turn(cpu, l, y + h * s.d + s.nope, s.rope / 2, position, 1.0f);
            memcpy(y + k_at(&s, h), of, s.nope * sizeof *y);
            memcpy(y + k_at(&s, h) + s.nope, shared, s.rope * sizeof *y);
            memcpy(y + v_at(&s, h), of + s.nope, s.v * sizeof *y);
        }
        smp_store(l->at[3], s.t, i * s.width, y, s.width);
    }
    free(y);
}

void smp_cpu_latent_grad(const smp_cpu *cpu, const smp_launch *l)
{
    latent s = make_latent(l);
    float *dy = smp_heap_alloc(s.width + s.kv_width + s.rope, sizeof *dy);
    float *dkv = dy + s.width, *shared = dkv + s.kv_width;

    for (uint64_t i = 0; i < s.tokens; i++) {
        uint64_t position = i % s.seq - smp_begin_of(cpu, l, i);

        smp_load(dy, l->at[0], s.t, i * s.width, s.width);
        memset(shared, 0, s.rope * sizeof *shared);
        for (uint64_t h = 0; h < s.heads; h++) {
            float *of = dkv + h * (s.nope + s.v), *dk = dy + k_at(&s, h);

            turn(cpu, l, dy + h * s.d + s.nope, s.rope / 2, position, -1.0f);
            memcpy(of, dk, s.nope * sizeof *of);
            memcpy(of + s.nope, dy + v_at(&s, h), s.v * sizeof *of);
            for (uint64_t j = 0; j < s.rope; j++) {
                shared[j] += dk[s.nope + j];
            }
        }
        turn(cpu, l, shared, s.rope / 2, position, -1.0f);
        smp_store(l->at[1], s.t, i * s.q_width, dy, s.q_width);
        smp_store(l->at[2], s.t, i * s.kv_width, dkv, s.kv_width);
        smp_store(l->at[3], s.t, (i + 1) * s.row - s.rope, shared, s.rope);
    }
    free(dy);
}
