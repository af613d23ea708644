/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Goodput under failures, the best checkpoint interval, and training runs.
 */
#include "config.h"

#include "sim/training.h"

#include "base/numeric.h"

#include <gsl/gsl_sf_lambert.h>
#include <math.h>

double smp_failures_goodput(const smp_failures *failures, double interval_s)
{
    const double m = failures->mtbf_s;
    const double segment = expm1((interval_s + failures->save_s) / m);
    return interval_s / (m * exp(failures->restart_s / m) * segment);
}

double smp_failures_young_s(const smp_failures *failures)
{
    return sqrt(2 * failures->save_s * failures->mtbf_s);
}

double smp_failures_daly_s(const smp_failures *failures)
{
    const double c = failures->save_s;
    const double m = failures->mtbf_s;
    if (c >= 2 * m) {
        return m;
    }
    const double x = c / (2 * m);
    return smp_failures_young_s(failures) * (1 + sqrt(x) / 3 + x / 9) - c;
}

double smp_failures_best_s(const smp_failures *failures)
{
    const double m = failures->mtbf_s;
    const double x = failures->save_s / m;
    /* W near -1/e loses half of its digits: there the first order is exact to more of them. */
    if (x < 1e-10) {
        return smp_failures_young_s(failures);
    }
    return m * (1 + gsl_sf_lambert_W0(-exp(-1 - x)));
}

typedef struct draws { uint64_t seed, run, count; } draws;

/* Time to the next failure: exponential. */
static double next_failure_s(draws *d, double mtbf_s)
{
    uint32_t words[4];
    smp_random4(d->seed, d->run, d->count++, words);
    const double u = ((double)words[0] + ((double)words[1] + 0.5) * 0x1p-32) * 0x1p-32;
    return -mtbf_s * log(u);
}

/* Work done in `time_s` without a failure: whole segments, and of what came after them the
 * part that will count. */
static double work_s(const smp_failures *f, double interval_s, double time_s, bool rest_counts)
{
    const double segment_s = interval_s + f->save_s;
    const double whole = floor(time_s / segment_s);
    const double rest_s = time_s - whole * segment_s;
    const double kept_s = rest_s < interval_s ? rest_s : interval_s;
    return whole * interval_s + (rest_counts ? kept_s : 0);
}

double smp_failures_simulate(const smp_failures *failures, double interval_s, double span_s,
                             uint64_t seed, uint64_t run)
{
    draws d = {seed, run, 0};
    double now_s = 0;
    double useful_s = 0;
    for (;;) {
        const double up_s = next_failure_s(&d, failures->mtbf_s);
        if (now_s + up_s >= span_s) {
            useful_s += work_s(failures, interval_s, span_s - now_s, true);
            break;
        }
        useful_s += work_s(failures, interval_s, up_s, false);
        now_s += up_s;
        /* A failure during restart begins it anew.  What is left of the time to the next
         * failure after a restart is exponential again. */
        double down_s = next_failure_s(&d, failures->mtbf_s);
        while (down_s < failures->restart_s && now_s < span_s) {
            now_s += down_s;
            down_s = next_failure_s(&d, failures->mtbf_s);
        }
        now_s += failures->restart_s;
        if (now_s >= span_s) {
            break;
        }
    }
    return useful_s / span_s;
}

smp_training smp_training_estimate(double tokens, double tokens_per_step, double step_s,
                                   double goodput, uint32_t gpus, double price_per_gpu_hour)
{
    const double hour_s = 3600;
    const double day_s = 24 * hour_s;
    smp_training t = {.steps = ceil(tokens / tokens_per_step)};
    const double total_s = t.steps * step_s / goodput;
    t.days = total_s / day_s;
    t.gpu_hours = total_s / hour_s * (double)gpus;
    t.money = t.gpu_hours * price_per_gpu_hour;
    return t;
}
