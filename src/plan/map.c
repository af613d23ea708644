/* SPDX-License-Identifier: Apache-2.0 */
/* (max, +) matrices in doubles: see map.h. */
#include "config.h"

#include "plan/map.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif
#include <math.h>

enum { BLOCK = SMP_MAP_BLOCK };

smp_map smp_map_create(smp_arena *arena, uint32_t n_out, uint32_t n_in,
                       const int64_t *entries)
{
    const uint32_t n_block = (n_out + BLOCK - 1) / BLOCK;
    double *at = SMP_ARENA_ARRAY(arena, (size_t)n_block * BLOCK * n_in, double);
    for (uint32_t i = 0; i < n_block * BLOCK; i++) {
        double *row = at + (size_t)(i / BLOCK) * BLOCK * n_in + i % BLOCK;
        for (uint32_t j = 0; j < n_in; j++) {
            const int64_t x = i < n_out ? entries[(size_t)i * n_in + j] : SMP_MAP_NEVER;
            row[(size_t)j * BLOCK] = x > SMP_MAP_NEVER ? (double)x : -(double)INFINITY;
        }
    }
    return (smp_map){n_out, n_in, at};
}

/* out[k] = max over j of at[j * BLOCK + k] + in[j], of a block. */
#ifdef __SSE2__
static void apply_block(const double *at, const double *in, uint32_t n, double *out)
{
    const __m128d none = _mm_set1_pd(-(double)INFINITY);
    __m128d a = none, b = none, c = none, d = none;
    for (uint32_t j = 0; j < n; j++, at += BLOCK) {
        const __m128d x = _mm_set1_pd(in[j]);
        a = _mm_max_pd(a, _mm_add_pd(_mm_loadu_pd(at), x));
        b = _mm_max_pd(b, _mm_add_pd(_mm_loadu_pd(at + 2), x));
        c = _mm_max_pd(c, _mm_add_pd(_mm_loadu_pd(at + 4), x));
        d = _mm_max_pd(d, _mm_add_pd(_mm_loadu_pd(at + 6), x));
    }
    _mm_storeu_pd(out, a);
    _mm_storeu_pd(out + 2, b);
    _mm_storeu_pd(out + 4, c);
    _mm_storeu_pd(out + 6, d);
}
#else
static void apply_block(const double *at, const double *in, uint32_t n, double *out)
{
    for (uint32_t k = 0; k < BLOCK; k++) {
        out[k] = -(double)INFINITY;
    }
    for (uint32_t j = 0; j < n; j++, at += BLOCK) {
        for (uint32_t k = 0; k < BLOCK; k++) {
            const double sum = at[k] + in[j];
            out[k] = sum > out[k] ? sum : out[k];
        }
    }
}
#endif

void smp_map_apply(const smp_map *map, const double *in, double *out)
{
    const double *at = map->at;
    for (uint32_t i = 0; i < map->n_out; i += BLOCK, at += (size_t)BLOCK * map->n_in) {
        apply_block(at, in, map->n_in, out + i);
    }
}
