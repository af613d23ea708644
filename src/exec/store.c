/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers of 16 bits in memory: bf16 and fp16, to and from fp32.
 *
 * Rounding is to nearest, ties to even.  fp16 beyond 65504 becomes infinity, which the
 * overflow flag of the step then sees; subnormal fp16 numbers are kept.
 */
#include "config.h"

#include "exec/store.h"

#include <math.h>
#include <string.h>

static uint32_t bits_of(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

float smp_f32_of_bf16(uint16_t bits)
{
    return float_of((uint32_t)bits << 16);
}

uint16_t smp_bf16_of_f32(float x)
{
    uint32_t bits = bits_of(x);

    if ((bits & 0x7fffffffu) > 0x7f800000u) { /* rounding could make a NaN infinite */
        return (uint16_t)(bits >> 16 | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

float smp_f32_of_f16(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, rest = bits & 0x7fffu;

    if (rest >= 0x7c00u) {
        return float_of(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    }
    if (rest < 0x400u) { /* subnormal: a multiple of 2^-24 */
        float x = (float)rest * 0x1p-24f;

        return sign ? -x : x;
    }
    return float_of(sign | ((rest << 13) + ((127u - 15u) << 23)));
}

uint16_t smp_f16_of_f32(float x)
{
    uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;

    if (rest > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u);
    }
    if (rest >= 0x477ff000u) { /* 65520 and more round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (rest < 0x38800000u) { /* below 2^-14: adding 0.5 leaves the multiple of 2^-24 */
        return (uint16_t)(sign | (bits_of(float_of(rest) + 0.5f) - 0x3f000000u));
    }
    rest += 0xfffu + (rest >> 13 & 1u);
    return (uint16_t)(sign | ((rest - ((127u - 15u) << 23)) >> 13));
}

void smp_load(float *to, const void *from, smp_dtype dtype, uint64_t first, uint64_t n)
{
    const uint16_t *half = (const uint16_t *)from + first;

    if (dtype == SMP_F32) {
        memcpy(to, (const float *)from + first, n * sizeof *to);
    } else if (dtype == SMP_BF16) {
        for (uint64_t i = 0; i < n; i++) {
            to[i] = float_of((uint32_t)half[i] << 16);
        }
    } else {
        for (uint64_t i = 0; i < n; i++) {
            to[i] = smp_f32_of_f16(half[i]);
        }
    }
}

void smp_store(void *to, smp_dtype dtype, uint64_t first, const float *from, uint64_t n)
{
    uint16_t *half = (uint16_t *)to + first;

    if (dtype == SMP_F32) {
        float *place = (float *)to + first;

        if (place != from) {
            memcpy(place, from, n * sizeof *from);
        }
    } else if (dtype == SMP_BF16) {
        for (uint64_t i = 0; i < n; i++) {
            half[i] = smp_bf16_of_f32(from[i]);
        }
    } else {
        for (uint64_t i = 0; i < n; i++) {
            half[i] = smp_f16_of_f32(from[i]);
        }
    }
}

void smp_store_add(void *to, smp_dtype dtype, uint64_t first, const float *from, uint64_t n)
{
    uint16_t *half = (uint16_t *)to + first;

    if (dtype == SMP_F32) {
        float *place = (float *)to + first;

        for (uint64_t i = 0; i < n; i++) {
            place[i] += from[i];
        }
    } else if (dtype == SMP_BF16) {
        for (uint64_t i = 0; i < n; i++) {
            half[i] = smp_bf16_of_f32(smp_f32_of_bf16(half[i]) + from[i]);
        }
    } else {
        for (uint64_t i = 0; i < n; i++) {
            half[i] = smp_f16_of_f32(smp_f32_of_f16(half[i]) + from[i]);
        }
    }
}

const float *smp_row(const void *from, smp_dtype dtype, uint64_t first, uint64_t n,
                     float *scratch)
{
    if (dtype == SMP_F32) {
        return (const float *)from + first;
    }
    smp_load(scratch, from, dtype, first, n);
    return scratch;
}
