/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Experts: grouped products on one rank, and the way of tokens to their experts and back.
 * Formulas and their sources in docs/costs.md.
 */
#include "config.h"

#include "cost/fit_make.h"

#include "base/numeric.h"

#include <math.h>

/* Kernels of a layer: two grouped products, the activation, and sorting, spreading and
 * gathering rows. */
static const double expert_kernels = 6.0;

static double rows_of(const smp_experts *layer)
{
    return (double)layer->tokens * (double)layer->top_k / (double)layer->ep;
}

static double local_of(const smp_experts *layer)
{
    const double local = (double)layer->experts / (double)layer->ep;
    return local < 1.0 ? 1.0 : local;
}

void smp_fit_experts_at(const smp_experts *layer, double *at)
{
    at[0] = rows_of(layer) / local_of(layer);
    at[1] = local_of(layer);
    at[2] = (double)layer->hidden * (double)layer->ffn;
    at[3] = (double)layer->ep;
}

void smp_cost_experts_model(const smp_profile *profile, const smp_experts *layer,
                            smp_cost *cost_p)
{
    const double rows = rows_of(layer);
    const double local = local_of(layer);
    const double used = rows < local ? rows : local; /* experts whose weights are read */
    const double h = (double)layer->hidden;
    const double f = (double)layer->ffn;
    const uint64_t batch = (uint64_t)(local + 0.5);
    const uint64_t each = rows / local <= 1.0 ? 1 : (uint64_t)ceil(rows / local);
    /* gate and up in one product, then down */
    const double compute = smp_cost_matmul_s(profile, layer->dtype, batch, each,
                                             2 * layer->ffn, layer->hidden) +
                           smp_cost_matmul_s(profile, layer->dtype, batch, each,
                                             layer->hidden, layer->ffn);
    /* weights; rows in, gate_up out and in, activation out and in, rows out; spread, gathered;
     * tokens in and out */
    const double elements = used * 3.0 * h * f + rows * (h + 2.0 * f + 2.0 * f + f + f + h) +
                            rows * 2.0 * h + 2.0 * (double)layer->tokens * h;
    smp_cost cost = {0};
    cost.launch_s = expert_kernels * profile->launch_s.value;
    cost.compute_s = compute;
    cost.memory_s = elements * (double)smp_dtype_bytes(layer->dtype) /
                    (profile->memory_Bps.value * profile->memory_efficiency.value);
    cost.spread = 3.0 * profile->spread.value; /* 20 to 40 % off without a fit */
    cost.basis = cost.memory_s >= cost.compute_s ? &profile->memory_efficiency
                                                 : &profile->matmul_efficiency;
    *cost_p = cost;
}

void smp_cost_experts(const smp_profile *profile, const smp_experts *layer, smp_cost *cost_p)
{
    smp_cost_experts_model(profile, layer, cost_p);
    const smp_fit *fit = profile->fits[SMP_FIT_EXPERTS];
    if (fit != NULL && layer->dtype != SMP_F32) {
        double at[SMP_FIT_AXES];
        smp_fit_experts_at(layer, at);
        smp_fit_apply(fit, at, cost_p);
    }
}

/* Of `places`, how many does a token with k experts chosen at random reach? */
static double reached(double places, double k)
{
    return places * (1.0 - pow(1.0 - 1.0 / places, k));
}

/* Multiprocessors that the parameters of dispatch refer to, DeepEP's default. */
static const double reference_units = 20.0;
/* The smallest message starts later by this share for each doubling of nodes. */
static const double start_per_doubling = 0.4;
/* How sharply the larger of two bounds decides. */
static const double sharpness = 6.0;

/* A token goes once to each rank that holds one of its experts.  Copying is bound by the
 * multiprocessors, which between nodes handle it again where it arrives; the network by the
 * ports, which it crosses once for each other node that it reaches. */
double smp_fit_dispatch_s(const double *parameters, const smp_dispatch *d, double port_Bps)
{
    const double nodes = (double)d->nodes;
    const double tokens = (double)d->tokens;
    const double bytes = (double)d->hidden * d->element_bytes;
    const double k = (double)d->top_k;
    const double start = parameters[0] * (1.0 + start_per_doubling * log2(nodes));
    const double again = 1.0 + parameters[3] * (nodes - 1.0) / nodes;
    const double copying = tokens *
                           (parameters[1] + parameters[2] * bytes * reached(d->ranks, k)) *
                           again * reference_units / (double)d->multiprocessors;
    if (d->nodes < 2) {
        return start + copying;
    }
    const double places = reached(nodes, k);
    const bool limited = d->most_nodes > 0 && (double)d->most_nodes < places;
    const double others = (limited ? (double)d->most_nodes : places) * (nodes - 1.0) / nodes;
    const double network = tokens * bytes * others / (port_Bps * parameters[4]);
    return start + pow(pow(copying, sharpness) + pow(network, sharpness), 1.0 / sharpness);
}

void smp_fit_dispatch_at(const smp_dispatch *d, double *at)
{
    at[0] = (double)d->tokens;
    at[1] = (double)d->hidden;
    at[2] = (double)d->top_k;
}

void smp_cost_dispatch(const smp_cluster *cluster, const smp_profile *profile,
                       const smp_dispatch *dispatch, smp_cost *cost_p)
{
    /* Hopper's, for a GPU that has no fit: see docs/costs.md */
    static const double usual[] = {33e-6, 30e-9, 0.4e-12, 0.6, 0.9};
    const smp_fit *fit =
        profile->fits[dispatch->combine ? SMP_FIT_COMBINE : SMP_FIT_DISPATCH];
    const double port =
        cluster->nic_Bps.value * (double)cluster->nics / (double)cluster->gpus_per_node;
    smp_cost cost = {0};
    if (dispatch->ranks > 1 && dispatch->tokens > 0) {
        const double *parameters = fit != NULL ? fit->parameters : usual;
        cost.latency_s = parameters[0];
        cost.transfer_s = smp_fit_dispatch_s(parameters, dispatch, port) - cost.latency_s;
        cost.spread = 2.0 * profile->collective_spread.value;
        cost.basis = dispatch->nodes > 1 ? &cluster->nic_Bps : &cluster->link_Bps;
        cost.unverified = fit == NULL;
        if (fit != NULL) {
            double at[SMP_FIT_AXES];
            smp_fit_dispatch_at(dispatch, at);
            smp_fit_apply(fit, at, &cost);
        }
    }
    *cost_p = cost;
}
