/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers as they are stored, to and from fp32: bf16 and fp16 are types of memory here.
 */
#ifndef SMP_EXEC_STORE_H
#define SMP_EXEC_STORE_H

#include "step/program.h"

float smp_f32_of_bf16(uint16_t bits);
uint16_t smp_bf16_of_f32(float x); /* to nearest, ties to even; NaN stays NaN */
float smp_f32_of_f16(uint16_t bits);
uint16_t smp_f16_of_f32(float x);
/* n numbers starting at element `first`. */
void smp_load(float *to, const void *from, smp_dtype dtype, uint64_t first, uint64_t n);
void smp_store(void *to, smp_dtype dtype, uint64_t first, const float *from, uint64_t n);
void smp_store_add(void *to, smp_dtype dtype, uint64_t first, const float *from, uint64_t n);
/* The row itself where it is fp32, else its copy in scratch. */
const float *smp_row(const void *from, smp_dtype dtype, uint64_t first, uint64_t n,
                     float *scratch);

#endif
