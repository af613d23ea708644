/* SPDX-License-Identifier: Apache-2.0 */
/* What a search has still to look at: a binary heap of parts of the space by their bounds.  In
 * a header because it is search.c's alone. */
#ifndef SMP_PLAN_QUEUE_H
#define SMP_PLAN_QUEUE_H

#include "plan/plan.h"

typedef enum level {
    LEVEL_HEAD, LEVEL_MESH, LEVEL_PRICED_MESH, LEVEL_POINT, LEVEL_PRICED, LEVEL_TIMED
} level;

/* What plans are ranked by; of a part of the space, a lower bound of the ranks in it. */
typedef struct rank { int64_t step_ps; uint64_t code; } rank;

typedef struct item {
    rank bound;
    level level;
    smp_point point;
} item;

typedef struct heap { item *items; size_t n, room; } heap;

static inline int compare_ranks(const rank *a, const rank *b)
{
    if (a->step_ps != b->step_ps) {
        return a->step_ps < b->step_ps ? -1 : 1;
    }
    return (a->code > b->code) - (a->code < b->code);
}

static inline bool is_before(const item *a, const item *b)
{
    const int order = compare_ranks(&a->bound, &b->bound);
    return order != 0 ? order < 0 : a->level < b->level;
}

static inline void heap_push(heap *h, const item *new_item)
{
    SMP_GROW(h->items, h->n, h->room);
    size_t i = h->n++;
    while (i > 0 && is_before(new_item, &h->items[(i - 1) / 2])) {
        h->items[i] = h->items[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h->items[i] = *new_item;
}

static inline item heap_pop(heap *h)
{
    const item top = h->items[0];
    const item last = h->items[--h->n];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= h->n) {
            break;
        }
        if (child + 1 < h->n && is_before(&h->items[child + 1], &h->items[child])) {
            child++;
        }
        if (!is_before(&h->items[child], &last)) {
            break;
        }
        h->items[i] = h->items[child];
        i = child;
    }
    h->items[i] = last;
    return top;
}

#endif
