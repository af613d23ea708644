/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives between threads of one process.
 *
 * Members post the addresses of their operands and meet; each then works on its own part of
 * the result, reading the others' memory in the order of the members; and they meet again
 * before anyone's operands may change.  A world of one rank never waits.
 */
#include "config.h"

#include "exec/comm.h"
#include "exec/store.h"

#include "base/arena.h"
#include "base/text.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What the members of a group share. */
typedef struct group {
    struct group *next;
    char *name;
    uint32_t *members;
    uint32_t n;
    uint64_t *arrivals;        /* of each member, ever */
    void **operand;            /* posted by each member */
    pthread_mutex_t lock;      /* of arrivals */
    pthread_cond_t changed;
} group;

struct smp_world {
    pthread_mutex_t lock;      /* of the list of groups */
    group *groups;
    uint32_t ranks;
    double timeout_s;
    atomic_uint failed;        /* a rank + 1 that is gone: no wait can end well */
};

struct smp_channel {
    smp_world *world;
    group *group;
    uint32_t me;               /* among the members */
};

static smp_status make_lock(smp_world *world)
{
    return pthread_mutex_init(&world->lock, NULL) == 0 ? SMP_OK : SMP_SYSTEM;
}

smp_status smp_threads_create(uint32_t ranks, double timeout_s, smp_errors *errors,
                              smp_world **world_p)
{
    smp_world *world = smp_heap_alloc(1, sizeof *world);

    world->ranks = ranks;
    world->timeout_s = timeout_s;
    if (make_lock(world) != SMP_OK) {
        free(world);
        return smp_fail(errors, SMP_SYSTEM, NULL, "a lock cannot be made");
    }
    *world_p = world;
    return SMP_OK;
}

static void threads_destroy(smp_world *world)
{
    if (!world) {
        return;
    }
    while (world->groups) {
        group *g = world->groups;

        world->groups = g->next;
        (void)pthread_cond_destroy(&g->changed);
        (void)pthread_mutex_destroy(&g->lock);
        free(g->name);
        free(g->members);
        free(g->arrivals);
        free(g->operand);
        free(g);
    }
    (void)pthread_mutex_destroy(&world->lock);
    free(world);
}

/* ---- groups ---- */

static group *find_group(smp_world *world, const char *name, const uint32_t *members,
                         uint32_t n)
{
    for (group *g = world->groups; g; g = g->next) {
        if (g->n == n && strcmp(g->name, name) == 0
            && memcmp(g->members, members, n * sizeof *members) == 0) {
            return g;
        }
    }
    return NULL;
}

static group *make_group(smp_world *world, const char *name, const uint32_t *members,
                         uint32_t n)
{
    group *g = smp_heap_alloc(1, sizeof *g);
    pthread_condattr_t attributes;

    g->n = n;
    g->name = smp_heap_alloc(strlen(name) + 1, 1);
    memcpy(g->name, name, strlen(name) + 1);
    g->members = smp_heap_alloc(n, sizeof *g->members);
    memcpy(g->members, members, n * sizeof *members);
    g->arrivals = smp_heap_alloc(n, sizeof *g->arrivals);
    g->operand = smp_heap_alloc(n, sizeof *g->operand);
    (void)pthread_mutex_init(&g->lock, NULL);
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&g->changed, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    g->next = world->groups;
    world->groups = g;
    return g;
}

static smp_status threads_join(smp_world *world, const char *name, const uint32_t *members,
                               uint32_t n, uint32_t rank, smp_errors *errors,
                               smp_channel **channel_p)
{
    smp_channel *channel = smp_heap_alloc(1, sizeof *channel);

    (void)errors;
    channel->world = world;
    (void)pthread_mutex_lock(&world->lock);
    channel->group = find_group(world, name, members, n);
    if (!channel->group) {
        channel->group = make_group(world, name, members, n);
    }
    (void)pthread_mutex_unlock(&world->lock);
    while (channel->me + 1 < n && members[channel->me] != rank) {
        channel->me++;
    }
    *channel_p = channel;
    return SMP_OK;
}

static void threads_leave(smp_channel *channel)
{
    free(channel);
}

static void threads_abandon(smp_world *world, uint32_t rank)
{
    unsigned none = 0;

    (void)atomic_compare_exchange_strong(&world->failed, &none, rank + 1);
    (void)pthread_mutex_lock(&world->lock);
    for (group *g = world->groups; g; g = g->next) {
        (void)pthread_mutex_lock(&g->lock);
        (void)pthread_cond_broadcast(&g->changed);
        (void)pthread_mutex_unlock(&g->lock);
    }
    (void)pthread_mutex_unlock(&world->lock);
}

/* ---- meeting ---- */

static bool all_arrived(const group *g, uint64_t round)
{
    for (uint32_t i = 0; i < g->n; i++) {
        if (g->arrivals[i] < round) {
            return false;
        }
    }
    return true;
}

static smp_status report_missing(const smp_channel *channel, uint64_t round,
                                 smp_errors *errors)
{
    const group *g = channel->group;
    smp_text missing = { 0 }, all = { 0 };
    smp_status status;

    for (uint32_t i = 0; i < g->n; i++) {
        smp_text_add(&all, " %u", g->members[i]);
        if (g->arrivals[i] < round) {
            smp_text_add(&missing, " %u", g->members[i]);
        }
    }
    status = smp_fail(errors, SMP_SYSTEM, NULL,
                      "rank %u waited %g s in group %s (ranks%s): not arrived:%s",
                      g->members[channel->me], channel->world->timeout_s, g->name, all.data,
                      missing.data);
    smp_text_free(&missing);
    smp_text_free(&all);
    return status;
}

static struct timespec deadline_after(double seconds)
{
    struct timespec t;
    double whole = floor(seconds);

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += (time_t)whole;
    t.tv_nsec += (long)((seconds - whole) * 1e9);
    if (t.tv_nsec >= 1000000000L) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000L;
    }
    return t;
}

/* Until every member has come here as often as this one. */
static smp_status meet(const smp_channel *channel, void *operand, smp_errors *errors)
{
    smp_world *world = channel->world;
    group *g = channel->group;
    struct timespec deadline = deadline_after(world->timeout_s);
    smp_status status = SMP_OK;
    uint64_t round;
    int error = 0;

    (void)pthread_mutex_lock(&g->lock);
    if (operand) { /* else the others may still be reading the last one */
        g->operand[channel->me] = operand;
    }
    round = ++g->arrivals[channel->me];
    if (all_arrived(g, round)) {
        (void)pthread_cond_broadcast(&g->changed);
    }
    while (!all_arrived(g, round) && atomic_load(&world->failed) == 0 && error == 0) {
        error = pthread_cond_timedwait(&g->changed, &g->lock, &deadline);
    }
    if (!all_arrived(g, round)) {
        unsigned failed = atomic_load(&world->failed);

        status = failed > 0 ? smp_fail(errors, SMP_SYSTEM, NULL,
                                       "rank %u stopped because rank %u failed",
                                       g->members[channel->me], failed - 1)
                            : report_missing(channel, round, errors);
    }
    (void)pthread_mutex_unlock(&g->lock);
    return status;
}

/* ---- sums ---- */

enum { CHUNK = 1024 };

/* Elements first .. first + n of every member's operand, in the order of the members. */
static void sum_chunk(const group *g, uint64_t first, uint64_t n, smp_dtype dtype,
                      float factor, float *sum)
{
    float scratch[CHUNK];

    smp_load(sum, g->operand[0], dtype, first, n);
    for (uint32_t r = 1; r < g->n; r++) {
        const float *x = smp_row(g->operand[r], dtype, first, n, scratch);

        for (uint64_t i = 0; i < n; i++) {
            sum[i] += x[i];
        }
    }
    for (uint64_t i = 0; i < n; i++) {
        sum[i] *= factor;
    }
}

static smp_status threads_reduce_scatter(smp_channel *channel, const void *x, void *y,
                                         uint64_t part, smp_dtype dtype, float factor,
                                         smp_errors *errors)
{
    union { const void *in; void *out; } operand = { x };
    smp_status status = meet(channel, operand.out, errors);
    float sum[CHUNK];

    if (status != SMP_OK) {
        return status;
    }
    for (uint64_t i = 0; i < part; i += CHUNK) {
        uint64_t n = part - i < CHUNK ? part - i : CHUNK;

        sum_chunk(channel->group, channel->me * part + i, n, dtype, factor, sum);
        smp_store(y, dtype, i, sum, n);
    }
    return meet(channel, NULL, errors);
}

static smp_status threads_all_reduce(smp_channel *channel, void *x, uint64_t elems,
                                     smp_dtype dtype, float factor, smp_errors *errors)
{
    const group *g = channel->group;
    uint64_t part = elems / g->n + (elems % g->n != 0);
    uint64_t first = channel->me * part, end = first + part < elems ? first + part : elems;
    smp_status status = meet(channel, x, errors);
    float sum[CHUNK];

    if (status != SMP_OK) {
        return status;
    }
    for (uint64_t i = first; i < end; i += CHUNK) {
        uint64_t n = end - i < CHUNK ? end - i : CHUNK;

        sum_chunk(g, i, n, dtype, factor, sum);
        for (uint32_t r = 0; r < g->n; r++) { /* nobody else touches this part */
            smp_store(g->operand[r], dtype, i, sum, n);
        }
    }
    return meet(channel, NULL, errors);
}

/* ---- copies ---- */

static smp_status threads_all_gather(smp_channel *channel, const void *x, void *y,
                                     uint64_t part_bytes, smp_errors *errors)
{
    union { const void *in; void *out; } operand = { x };
    smp_status status = meet(channel, operand.out, errors);

    for (uint32_t r = 0; r < channel->group->n && status == SMP_OK; r++) {
        char *to = (char *)y + r * part_bytes;

        if (to != channel->group->operand[r]) {
            memcpy(to, channel->group->operand[r], part_bytes);
        }
    }
    return status == SMP_OK ? meet(channel, NULL, errors) : status;
}

typedef struct parts { const char *x; const uint64_t *send; } parts;

static smp_status threads_all_to_all(smp_channel *channel, const void *x,
                                     const uint64_t *send, void *y, const uint64_t *receive,
                                     smp_errors *errors)
{
    parts mine = { x, send };
    smp_status status = meet(channel, &mine, errors);
    char *to = y;

    for (uint32_t r = 0; r < channel->group->n && status == SMP_OK; r++) {
        const parts *from = channel->group->operand[r];
        uint64_t first = 0;

        for (uint32_t i = 0; i < channel->me; i++) {
            first += from->send[i];
        }
        memcpy(to, from->x + first, receive[r]);
        to += receive[r];
    }
    return status == SMP_OK ? meet(channel, NULL, errors) : status;
}

static smp_status threads_broadcast(smp_channel *channel, void *x, uint64_t bytes,
                                    uint32_t root, smp_errors *errors)
{
    smp_status status = meet(channel, x, errors);

    if (status == SMP_OK && channel->me != root) {
        memcpy(x, channel->group->operand[root], bytes);
    }
    return status == SMP_OK ? meet(channel, NULL, errors) : status;
}

static smp_status threads_barrier(smp_channel *channel, smp_errors *errors)
{
    return meet(channel, NULL, errors);
}

const smp_comm_ops smp_comm_threads = {
    .name = "threads",
    .destroy = threads_destroy,
    .join = threads_join,
    .leave = threads_leave,
    .all_gather = threads_all_gather,
    .reduce_scatter = threads_reduce_scatter,
    .all_reduce = threads_all_reduce,
    .all_to_all = threads_all_to_all,
    .broadcast = threads_broadcast,
    .barrier = threads_barrier,
    .abandon = threads_abandon,
};
