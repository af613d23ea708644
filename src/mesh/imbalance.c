/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The imbalance of experts: rows of the busiest expert rank over their mean, as a number or as
 * a distribution over layers and micro-batches.
 */
#include "config.h"

#include "mesh/mesh.h"

#include "base/numeric.h"

#include <math.h>

/* normal: draws below 1 count as 1, so E max(1, X) = 1 + (m - 1) P(a) + s p(a), where a is
 * (m - 1) / s, and p and P are density and distribution of the standard normal.  lognormal:
 * what is above 1 has the mean m - 1. */
double smp_imbalance_mean(const smp_imbalance *imbalance)
{
    const double over = imbalance->mean - 1, s = imbalance->deviation;

    if (imbalance->kind != SMP_IMBALANCE_NORMAL || !(s > 0)) {
        return imbalance->mean;
    }
    const double a = over / s;
    return 1 + over * 0.5 * erfc(-a / sqrt(2)) + s * exp(-a * a / 2) / sqrt(2 * acos(-1.0));
}

/* Box and Muller's transform of two uniform numbers. */
static double normal_of(uint64_t seed, uint64_t layer, uint64_t micro_batch)
{
    enum { IMBALANCE = 0x6d6f65 }; /* tells these numbers from others of the seed */
    uint32_t words[4];

    smp_random4(seed, (uint64_t)IMBALANCE << 32 | layer, micro_batch, words);
    const double u = ((double)words[0] + 0.5) / 4294967296.0;
    const double v = ((double)words[1] + 0.5) / 4294967296.0;
    return sqrt(-2 * log(u)) * cos(2 * acos(-1.0) * v);
}

double smp_imbalance_draw(const smp_imbalance *imbalance, uint64_t seed, uint64_t layer,
                          uint64_t micro_batch)
{
    const double over = imbalance->mean - 1, s = imbalance->deviation;

    if (imbalance->kind == SMP_IMBALANCE_CONSTANT || !(s > 0)) {
        return imbalance->mean;
    }
    const double z = normal_of(seed, layer, micro_batch);
    if (imbalance->kind == SMP_IMBALANCE_NORMAL) {
        return fmax(1, imbalance->mean + s * z);
    }
    if (!(over > 0)) {
        return 1;
    }
    /* of a lognormal with mean m and deviation s: sigma^2 = ln(1 + s^2/m^2), mu = ln m -
     * sigma^2/2 */
    const double sigma2 = log1p(s * s / (over * over));
    return 1 + exp(log(over) - sigma2 / 2 + sqrt(sigma2) * z);
}
