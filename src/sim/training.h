/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From one step to a training run: failures, checkpoints, days and money.  Closed forms, and
 * a simulation of months that they are checked against.
 */
#ifndef SMP_SIM_TRAINING_H
#define SMP_SIM_TRAINING_H

#include "smp.h"

/* What interrupts a run.  Failures are a Poisson process of the whole job; a failure loses
 * the work since the last checkpoint and may strike during work, saving or restart. */
typedef struct smp_failures {
    double mtbf_s;    /* of the whole job: that of a GPU over the number of GPUs */
    double save_s;    /* training stands still for a checkpoint */
    double restart_s; /* from a failure until training goes on, loading included */
} smp_failures;

/* Useful share of the time when `interval_s` of work lie between checkpoints:
 *   interval / (M e^(R/M) (e^((interval + C)/M) - 1)),  M = mtbf, C = save, R = restart
 * [Daly 2006, "A higher order estimate of the optimum checkpoint interval for restart dumps",
 * the model with failures during saves and restarts]. */
double smp_failures_goodput(const smp_failures *failures, double interval_s);
/* First order: sqrt(2 C M) [Young 1974]. */
double smp_failures_young_s(const smp_failures *failures);
/* Higher order [Daly 2006]: sqrt(2 C M) (1 + sqrt(x) / 3 + x / 9) - C with x = C / 2M; M where
 * C >= 2 M. */
double smp_failures_daly_s(const smp_failures *failures);
/* The interval of highest goodput: 1 - t/M = e^(-(t + C)/M), so
 * t = M (1 + W(-e^(-1 - C/M))), W the principal branch of Lambert's function. */
double smp_failures_best_s(const smp_failures *failures);
/* Useful share of `span_s`, with failures drawn by (seed, run). */
double smp_failures_simulate(const smp_failures *failures, double interval_s, double span_s,
                             uint64_t seed, uint64_t run);

/* What it takes to train on `tokens`. */
typedef struct smp_training {
    double steps, days, gpu_hours;
    double money; /* 0: the price is unknown */
} smp_training;
/* `goodput` is the useful share of the time, 1 without failures. */
smp_training smp_training_estimate(double tokens, double tokens_per_step, double step_s,
                                   double goodput, uint32_t gpus, double price_per_gpu_hour);

#endif
