/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The conformance suite of communicators: one rank's part, the same for every backend.
 *
 * Every collective is compared bit by bit with the sum or copy in the order of the members.
 * Sizes are such that parts are smaller and larger than the chunks of the backends.
 */
#ifndef TESTS_EXEC_COMM_SUITE_H
#define TESTS_EXEC_COMM_SUITE_H

#include "exec/comm.h"
#include "exec/store.h"

#include "base/arena.h"
#include "base/numeric.h"

#include <stdlib.h>
#include <string.h>

enum { SUITE_SIZES = 6 };

/* Element i of what member r gives: of both signs and many magnitudes, so that sums in
 * another order differ. */
static inline float suite_value(uint32_t r, uint64_t i)
{
    uint32_t u[4];

    smp_random4(7, r, i, u);
    return ((float)(u[0] >> 8) - 8388608.0f) / (float)(1u << u[1] % 23);
}

static inline float suite_stored(uint32_t r, uint64_t i, smp_dtype dtype)
{
    float x = suite_value(r, i), y;
    float place;

    smp_store(&place, dtype, 0, &x, 1);
    smp_load(&y, &place, dtype, 0, 1);
    return y;
}

static inline float suite_sum(uint32_t n, uint64_t i, smp_dtype dtype, float factor)
{
    float sum = suite_stored(0, i, dtype), place, y;

    for (uint32_t r = 1; r < n; r++) {
        sum += suite_stored(r, i, dtype);
    }
    sum *= factor;
    smp_store(&place, dtype, 0, &sum, 1);
    smp_load(&y, &place, dtype, 0, 1);
    return y;
}

static inline void suite_fill(void *to, uint32_t me, uint64_t n, smp_dtype dtype)
{
    for (uint64_t i = 0; i < n; i++) {
        float x = suite_value(me, i);

        smp_store(to, dtype, i, &x, 1);
    }
}

static inline bool suite_equals(const void *place, smp_dtype dtype, uint64_t at, float expected)
{
    float x;

    smp_load(&x, place, dtype, at, 1);
    return memcmp(&x, &expected, sizeof x) == 0;
}

/* NULL, or what is wrong. */
static inline const char *suite_reductions(const smp_comm_ops *ops, smp_channel *c, uint32_t n,
                                           uint32_t me, uint64_t part, smp_dtype dtype,
                                           float factor, smp_errors *errors)
{
    float *x = smp_heap_alloc((size_t)(n * part) + 1, sizeof *x);
    float *y = smp_heap_alloc((size_t)part + 1, sizeof *y);
    const char *wrong = NULL;

    suite_fill(x, me, n * part, dtype);
    if (ops->reduce_scatter(c, x, y, part, dtype, factor, errors) != SMP_OK) {
        wrong = "reduce_scatter failed";
    }
    for (uint64_t i = 0; i < part && !wrong; i++) {
        if (!suite_equals(y, dtype, i, suite_sum(n, me * part + i, dtype, factor))) {
            wrong = "reduce_scatter";
        }
    }
    /* In place: the result is this member's part of the operand. */
    if (!wrong
        && ops->reduce_scatter(c, x, (char *)x + me * part * smp_dtype_bytes(dtype), part,
                               dtype, factor, errors) != SMP_OK) {
        wrong = "reduce_scatter in place failed";
    }
    for (uint64_t i = 0; i < part && !wrong; i++) {
        if (!suite_equals(x, dtype, me * part + i,
                          suite_sum(n, me * part + i, dtype, factor))) {
            wrong = "reduce_scatter in place";
        }
    }
    suite_fill(x, me, n * part, dtype);
    if (!wrong && ops->all_reduce(c, x, n * part, dtype, factor, errors) != SMP_OK) {
        wrong = "all_reduce failed";
    }
    for (uint64_t i = 0; i < n * part && !wrong; i++) {
        if (!suite_equals(x, dtype, i, suite_sum(n, i, dtype, factor))) {
            wrong = "all_reduce";
        }
    }
    free(x);
    free(y);
    return wrong;
}

static inline const char *suite_copies(const smp_comm_ops *ops, smp_channel *c, uint32_t n,
                                       uint32_t me, uint64_t part, smp_errors *errors)
{
    float *y = smp_heap_alloc((size_t)(n * part) + 1, sizeof *y);
    const char *wrong = NULL;

    for (int in_place = 0; in_place < 2 && !wrong; in_place++) {
        float *x = smp_heap_alloc((size_t)part + 1, sizeof *x);
        float *own = in_place ? y + me * part : x;

        memset(y, 0, (size_t)(n * part) * sizeof *y);
        suite_fill(own, me, part, SMP_F32);
        if (ops->all_gather(c, own, y, part * sizeof *y, errors) != SMP_OK) {
            wrong = "all_gather failed";
        }
        for (uint64_t i = 0; i < n * part && !wrong; i++) {
            if (!suite_equals(y, SMP_F32, i, suite_value((uint32_t)(i / part), i % part))) {
                wrong = "all_gather";
            }
        }
        free(x);
    }
    for (uint32_t root = 0; root < n && !wrong; root++) {
        suite_fill(y, me, part, SMP_F32);
        if (ops->broadcast(c, y, part * sizeof *y, root, errors) != SMP_OK) {
            wrong = "broadcast failed";
        }
        for (uint64_t i = 0; i < part && !wrong; i++) {
            if (!suite_equals(y, SMP_F32, i, suite_value(root, i))) {
                wrong = "broadcast";
            }
        }
    }
    free(y);
    return wrong;
}

/* Elements that member `from` sends to member `to`: none, a few, more than a chunk. */
static inline uint64_t suite_part(uint32_t from, uint32_t to, uint64_t size)
{
    uint32_t u[4];

    smp_random4(11, from, to, u);
    return u[0] % 4 == 0 ? 0 : size + u[1] % 7;
}

/* Element i of what member `from` sends to member `to` is suite_value(from, 1000 to + i). */
static inline const char *suite_exchange(const smp_comm_ops *ops, smp_channel *c, uint32_t n,
                                         uint32_t me, uint64_t size, smp_errors *errors)
{
    float *x = smp_heap_alloc((size_t)n * (size + 8), sizeof *x);
    float *y = smp_heap_alloc((size_t)n * (size + 8), sizeof *y);
    uint64_t send[64], receive[64], at = 0;
    const char *wrong = NULL;

    for (uint32_t r = 0; r < n; r++) {
        send[r] = suite_part(me, r, size) * sizeof *x;
        receive[r] = suite_part(r, me, size) * sizeof *x;
        for (uint64_t i = 0; i < suite_part(me, r, size); i++) {
            x[at++] = suite_value(me, 1000 * r + i);
        }
    }
    if (ops->all_to_all(c, x, send, y, receive, errors) != SMP_OK) {
        wrong = "all_to_all failed";
    }
    at = 0;
    for (uint32_t r = 0; r < n && !wrong; r++) {
        for (uint64_t i = 0; i < suite_part(r, me, size) && !wrong; i++) {
            wrong = suite_equals(y, SMP_F32, at++, suite_value(r, 1000 * me + i))
                        ? NULL
                        : "all_to_all";
        }
    }
    free(x);
    free(y);
    return wrong;
}

static inline const char *suite_channel(const smp_comm_ops *ops, smp_channel *c, uint32_t n,
                                        uint32_t me, smp_errors *errors)
{
    static const uint64_t parts[SUITE_SIZES] = { 1, 2, 7, 1024, 1025, 66001 };
    static const smp_dtype dtypes[3] = { SMP_F32, SMP_BF16, SMP_F16 };
    const char *wrong = NULL;

    for (int i = 0; i < SUITE_SIZES && !wrong; i++) {
        wrong = suite_copies(ops, c, n, me, parts[i], errors);
        wrong = wrong ? wrong : suite_exchange(ops, c, n, me, parts[i], errors);
        for (int t = 0; t < (parts[i] < 60000 ? 3 : 1) && !wrong; t++) {
            wrong = suite_reductions(ops, c, n, me, parts[i], dtypes[t],
                                     t == 0 ? 1.0f : 1.0f / (float)n, errors);
        }
    }
    if (!wrong && ops->barrier(c, errors) != SMP_OK) {
        wrong = "barrier failed";
    }
    return wrong;
}

/* All ranks, then those of the same parity, in a group of their own. */
static inline const char *suite_rank(const smp_comm_ops *ops, smp_world *world, uint32_t rank,
                                     uint32_t n, smp_errors *errors)
{
    uint32_t members[64], half[64], n_half = 0, me = 0;
    smp_channel *all = NULL, *some = NULL;
    const char *wrong = NULL;

    for (uint32_t i = 0; i < n; i++) {
        members[i] = i;
        if (i % 2 == rank % 2) {
            me = i == rank ? n_half : me;
            half[n_half++] = i;
        }
    }
    if (ops->join(world, "all", members, n, rank, errors, &all) != SMP_OK
        || ops->join(world, "half", half, n_half, rank, errors, &some) != SMP_OK) {
        return "join";
    }
    wrong = suite_channel(ops, all, n, rank, errors);
    if (!wrong) {
        wrong = suite_channel(ops, some, n_half, me, errors);
    }
    ops->leave(some);
    ops->leave(all);
    return wrong;
}

#endif
