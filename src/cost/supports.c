/* SPDX-License-Identifier: Apache-2.0 */
/* Which precisions the GPU of a profile computes in: those with a peak. */
#include "config.h"

#include "cost/cost.h"

bool smp_profile_supports(const smp_profile *profile, smp_precision precision)
{
    static const smp_dtype dtypes[] = {
        [SMP_PRECISION_BF16] = SMP_BF16, [SMP_PRECISION_FP16] = SMP_F16,
        [SMP_PRECISION_FP32] = SMP_F32
    };
    return profile->peak_flops[dtypes[precision]].value > 0;
}
