/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Costs of tasks, each computed once: a search prices the same kernels and collectives for
 * thousands of configurations.
 */
#include "cost/cost.h"

#include "base/memo.h"

#include <stdlib.h>
#include <string.h>

/* All that smp_cost_task reads of a task and of the program that it is of. */
typedef struct price_key {
    uint16_t op;
    uint8_t dtype, dtype2, flags, kernels, loss, attention;
    uint32_t gpus; /* copies to and from the host share its links; else 0 */
    uint32_t placement[6];
    uint32_t unused;
    uint64_t dims[SMP_MAX_DIMS];
    double efficiency;
} price_key;

typedef struct price { price_key key; smp_cost cost; } price;

struct smp_prices { smp_memo *memo; };

smp_prices *smp_prices_create(void)
{
    smp_prices *prices = smp_heap_alloc(1, sizeof *prices);
    prices->memo = smp_memo_create(sizeof(price_key), sizeof(price));
    return prices;
}

void smp_prices_destroy(smp_prices *prices)
{
    if (prices) {
        smp_memo_destroy(prices->memo);
        free(prices);
    }
}

void smp_prices_task(smp_prices *prices, const smp_cluster *cluster,
                     const smp_profile *profile, const smp_program *program,
                     const smp_task *task, smp_cost *cost_p)
{
    price_key key;
    bool is_new = false;
    memset(&key, 0, sizeof key);
    key.op = task->op;
    key.dtype = task->dtype;
    key.dtype2 = task->dtype2;
    key.flags = task->flags;
    key.kernels = (uint8_t)program->kernels;
    key.loss = (uint8_t)program->loss;
    key.attention = (uint8_t)program->attention_kernel;
    key.efficiency = program->efficiency;
    memcpy(key.dims, task->dims, sizeof key.dims);
    if (task->comm != SMP_NO_COMM) {
        const smp_placement *p = &program->comms[task->comm].placement;
        const uint32_t words[] = {p->ranks, p->nodes, p->most_per_node, p->least_per_node,
                                  p->stride, p->sharers};
        memcpy(key.placement, words, sizeof words);
    }
    if (smp_op_info_of((smp_op)task->op)->klass == SMP_CLASS_HOST_COPY) {
        key.gpus = cluster->gpus;
    }
    price *at = smp_memo_at(prices->memo, &key, &is_new);
    if (is_new) {
        smp_cost_task(cluster, profile, program, task, &at->cost);
    }
    *cost_p = at->cost;
}
