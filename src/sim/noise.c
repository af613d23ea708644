/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables of random factors.
 */
#include "config.h"

#include "sim/noise.h"

#include <gsl/gsl_cdf.h>
#include <math.h>

/* A lognormal of mean 1 and coefficient of variation c has sigma^2 = ln(1 + c^2) and
 * mu = -sigma^2 / 2 [Johnson, Kotz & Balakrishnan 1994, ch. 14]. */
void smp_noise_fill(smp_noise_table *table, double cv)
{
    const double variance = log1p(cv * cv);
    const double sigma = sqrt(variance);
    const double mu = -variance / 2;
    for (uint32_t octave = 0; octave < SMP_NOISE_OCTAVES; octave++) {
        for (uint32_t bin = 0; bin < SMP_NOISE_BINS; bin++) {
            const uint32_t at = octave * SMP_NOISE_BINS + bin;
            /* where this bin begins, as a share of all words */
            const double tail =
                ldexp(1.0 + (double)bin / SMP_NOISE_BINS, (int)octave) * 0x1p-32;
            table->factor[0][at] = gsl_cdf_lognormal_Pinv(tail, mu, sigma);
            table->factor[1][at] = gsl_cdf_lognormal_Qinv(tail, mu, sigma);
        }
    }
    const uint32_t end = SMP_NOISE_OCTAVES * SMP_NOISE_BINS;
    table->factor[0][end] = table->factor[1][end] = exp(mu); /* the median */
}
