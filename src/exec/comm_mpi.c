/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives between processes over MPI.
 *
 * MPI moves bytes; sums are made here, in the order of the members as with threads.  Everything
 * goes in chunks, so that no implementation needs scratch of the size of a message.  Waiting
 * polls, because MPI has no deadline: when one passes, those who wait tell each other, and
 * who is not heard of has not arrived.
 */
#include "config.h"

#include "exec/comm.h"
#include "exec/store.h"

#include "base/arena.h"
#include "base/numeric.h"
#include "base/text.h"

#include <mpi.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CHUNK = 65536, TAG_LATE = 4242, TAG_PART = 4243 }; /* elements of a chunk */

struct smp_world {
    double timeout_s;
};

struct smp_channel {
    smp_world *world;
    MPI_Comm comm;
    char *name;
    uint32_t *members;
    uint32_t n, me;
    float *send, *receive, *sum;  /* n chunks, n chunks, one chunk */
};

smp_status smp_mpi_begin(bool async, smp_errors *errors)
{
    int given = 0;

    if (MPI_Init_thread(NULL, NULL, async ? MPI_THREAD_MULTIPLE : MPI_THREAD_FUNNELED, &given)
        != MPI_SUCCESS) {
        return smp_fail(errors, SMP_SYSTEM, NULL, "MPI does not start");
    }
    if (async && given < MPI_THREAD_MULTIPLE) {
        return smp_fail(errors, SMP_INPUT, NULL,
                        "--async needs an MPI library that several threads may call");
    }
    return SMP_OK;
}

void smp_mpi_end(int status)
{
    int started = 0;

    (void)MPI_Initialized(&started);
    if (started && status == 0) {
        (void)MPI_Finalize();
    } else if (started) {
        (void)MPI_Abort(MPI_COMM_WORLD, status);
    }
}

uint32_t smp_mpi_rank(void)
{
    int rank = 0;

    (void)MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return (uint32_t)rank;
}

bool smp_mpi_agrees(uint64_t value)
{
    uint64_t least[2] = { value, ~value };

    (void)MPI_Allreduce(MPI_IN_PLACE, least, 2, MPI_UINT64_T, MPI_MIN, MPI_COMM_WORLD);
    return least[0] == ~least[1];
}

uint32_t smp_mpi_ranks(void)
{
    int ranks = 1;

    (void)MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    return (uint32_t)ranks;
}

void smp_mpi_here(uint32_t *rank_p, uint32_t *ranks_p)
{
    int rank = 0, ranks = 1;
    MPI_Comm here;

    if (MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here)
        == MPI_SUCCESS) {
        (void)MPI_Comm_rank(here, &rank);
        (void)MPI_Comm_size(here, &ranks);
        (void)MPI_Comm_free(&here);
    }
    *rank_p = (uint32_t)rank;
    *ranks_p = (uint32_t)ranks;
}

smp_status smp_mpi_create(double timeout_s, smp_errors *errors, smp_world **world_p)
{
    (void)errors;
    *world_p = smp_heap_alloc(1, sizeof **world_p);
    (*world_p)->timeout_s = timeout_s;
    return SMP_OK;
}

static void mpi_destroy(smp_world *world)
{
    free(world);
}

static smp_status mpi_join(smp_world *world, const char *name, const uint32_t *members,
                           uint32_t n, uint32_t rank, smp_errors *errors,
                           smp_channel **channel_p)
{
    smp_channel *c = smp_heap_alloc(1, sizeof *c);
    int *ranks = smp_heap_alloc(n, sizeof *ranks);
    MPI_Group all, some;
    int error;

    c->world = world;
    c->n = n;
    c->members = smp_heap_alloc(n, sizeof *c->members);
    c->name = smp_heap_alloc(strlen(name) + 1, 1);
    memcpy(c->name, name, strlen(name) + 1);
    for (uint32_t i = 0; i < n; i++) {
        c->members[i] = members[i];
        ranks[i] = (int)members[i];
        c->me = members[i] == rank ? i : c->me;
    }
    (void)MPI_Comm_group(MPI_COMM_WORLD, &all);
    (void)MPI_Group_incl(all, (int)n, ranks, &some);
    error = MPI_Comm_create_group(MPI_COMM_WORLD, some,
                                  (int)(smp_hash(name, strlen(name), 0) % 32000), &c->comm);
    (void)MPI_Group_free(&some);
    (void)MPI_Group_free(&all);
    free(ranks);
    c->send = smp_heap_alloc((size_t)n * CHUNK, sizeof *c->send);
    c->receive = smp_heap_alloc((size_t)n * CHUNK, sizeof *c->receive);
    c->sum = smp_heap_alloc(CHUNK, sizeof *c->sum);
    *channel_p = c;
    return error == MPI_SUCCESS ? SMP_OK
                                : smp_fail(errors, SMP_SYSTEM, NULL,
                                           "MPI makes no communicator for group %s", name);
}

static void mpi_leave(smp_channel *c)
{
    if (c) {
        (void)MPI_Comm_free(&c->comm);
        free(c->name);
        free(c->members);
        free(c->send);
        free(c->receive);
        free(c->sum);
        free(c);
    }
}

/* ---- waiting ---- */

static double now_s(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Who else is late waits here too: they say so to each other, for two seconds. */
static void hear(const smp_channel *c, bool *heard)
{
    MPI_Request sent;
    double end = now_s() + 2;

    for (uint32_t i = 0; i < c->n; i++) {
        heard[i] = i == c->me;
        if (i != c->me && MPI_Isend(NULL, 0, MPI_BYTE, (int)i, TAG_LATE, c->comm, &sent)
                              == MPI_SUCCESS) {
            (void)MPI_Request_free(&sent);
        }
    }
    while (now_s() < end) {
        MPI_Status status;
        int there = 0;

        (void)MPI_Iprobe(MPI_ANY_SOURCE, TAG_LATE, c->comm, &there, &status);
        if (there) {
            (void)MPI_Recv(NULL, 0, MPI_BYTE, status.MPI_SOURCE, TAG_LATE, c->comm, &status);
            heard[status.MPI_SOURCE] = true;
        } else {
            (void)sched_yield();
        }
    }
}

static smp_status report_missing(const smp_channel *c, smp_errors *errors)
{
    smp_text missing = { 0 }, all = { 0 };
    bool *heard = smp_heap_alloc(c->n, sizeof *heard);
    smp_status status;

    hear(c, heard);
    for (uint32_t i = 0; i < c->n; i++) {
        smp_text_add(&all, " %u", c->members[i]);
        if (!heard[i]) {
            smp_text_add(&missing, " %u", c->members[i]);
        }
    }
    status = smp_fail(errors, SMP_SYSTEM, NULL,
                      "rank %u waited %g s in group %s (ranks%s): not arrived:%s",
                      c->members[c->me], c->world->timeout_s, c->name, all.data,
                      missing.data ? missing.data : " none, the network is slow");
    smp_text_free(&missing);
    smp_text_free(&all);
    free(heard);
    return status;
}

static smp_status finish(const smp_channel *c, MPI_Request *request, smp_errors *errors)
{
    double deadline = now_s() + c->world->timeout_s;
    int done = 0;

    for (;;) {
        if (MPI_Test(request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
            return smp_fail(errors, SMP_SYSTEM, NULL, "rank %u: MPI fails in group %s",
                            c->members[c->me], c->name);
        }
        if (done) {
            return SMP_OK;
        }
        if (now_s() > deadline) {
            return report_missing(c, errors);
        }
        (void)sched_yield();
    }
}

/* ---- one chunk ---- */

/* c->sum: the sum over members of their chunk for this one; c->send holds one for each. */
static smp_status sum_chunks(const smp_channel *c, uint64_t n, smp_dtype dtype, float factor,
                             smp_errors *errors)
{
    int bytes = (int)(n * smp_dtype_bytes(dtype));
    MPI_Request request;
    smp_status status;

    (void)MPI_Ialltoall(c->send, bytes, MPI_BYTE, c->receive, bytes, MPI_BYTE, c->comm,
                        &request);
    status = finish(c, &request, errors);
    if (status != SMP_OK) {
        return status;
    }
    smp_load(c->sum, c->receive, dtype, 0, n);
    for (uint32_t r = 1; r < c->n; r++) {
        float x[1024];

        for (uint64_t i = 0; i < n; i += 1024) {
            uint64_t k = n - i < 1024 ? n - i : 1024;

            smp_load(x, c->receive, dtype, r * n + i, k);
            for (uint64_t j = 0; j < k; j++) {
                c->sum[i + j] += x[j];
            }
        }
    }
    for (uint64_t i = 0; i < n; i++) {
        c->sum[i] *= factor;
    }
    return SMP_OK;
}

static void pack(const smp_channel *c, uint32_t slot, uint64_t slot_elems, const void *x,
                 uint64_t first, uint64_t n, smp_dtype dtype)
{
    uint64_t e = smp_dtype_bytes(dtype);
    char *to = (char *)c->send + slot * slot_elems * e;

    memcpy(to, (const char *)x + first * e, n * e);
    memset(to + n * e, 0, (slot_elems - n) * e);
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ---- collectives ---- */

static smp_status mpi_reduce_scatter(smp_channel *c, const void *x, void *y, uint64_t part,
                                     smp_dtype dtype, float factor, smp_errors *errors)
{
    smp_status status = SMP_OK;

    for (uint64_t i = 0; i < part && status == SMP_OK; i += CHUNK) {
        uint64_t n = least(CHUNK, part - i);

        for (uint32_t r = 0; r < c->n; r++) {
            pack(c, r, n, x, r * part + i, n, dtype);
        }
        status = sum_chunks(c, n, dtype, factor, errors);
        if (status == SMP_OK) {
            smp_store(y, dtype, i, c->sum, n);
        }
    }
    return status;
}

/* The parts of a block of at most n chunks: each member sums one, then all get all. */
static smp_status reduce_block(smp_channel *c, void *x, uint64_t first, uint64_t elems,
                               smp_dtype dtype, float factor, smp_errors *errors)
{
    uint64_t e = smp_dtype_bytes(dtype), n = smp_ceil_div(elems, c->n);
    MPI_Request request;
    smp_status status;

    for (uint32_t r = 0; r < c->n; r++) {
        uint64_t start = least(r * n, elems);

        pack(c, r, n, x, first + start, least(n, elems - start), dtype);
    }
    status = sum_chunks(c, n, dtype, factor, errors);
    if (status == SMP_OK) {
        smp_store(c->send, dtype, 0, c->sum, n);
        (void)MPI_Iallgather(c->send, (int)(n * e), MPI_BYTE, c->receive, (int)(n * e),
                             MPI_BYTE, c->comm, &request);
        status = finish(c, &request, errors);
    }
    if (status == SMP_OK) {
        memcpy((char *)x + first * e, c->receive, elems * e);
    }
    return status;
}

static smp_status mpi_all_reduce(smp_channel *c, void *x, uint64_t elems, smp_dtype dtype,
                                 float factor, smp_errors *errors)
{
    uint64_t block = (uint64_t)c->n * CHUNK;
    smp_status status = SMP_OK;

    for (uint64_t i = 0; i < elems && status == SMP_OK; i += block) {
        status = reduce_block(c, x, i, least(block, elems - i), dtype, factor, errors);
    }
    return status;
}

static smp_status mpi_all_gather(smp_channel *c, const void *x, void *y, uint64_t part_bytes,
                                 smp_errors *errors)
{
    const uint64_t chunk = CHUNK * sizeof *c->send;
    smp_status status = SMP_OK;

    for (uint64_t i = 0; i < part_bytes && status == SMP_OK; i += chunk) {
        uint64_t n = least(chunk, part_bytes - i);
        MPI_Request request;

        memcpy(c->send, (const char *)x + i, n);
        (void)MPI_Iallgather(c->send, (int)n, MPI_BYTE, c->receive, (int)n, MPI_BYTE, c->comm,
                             &request);
        status = finish(c, &request, errors);
        for (uint32_t r = 0; r < c->n && status == SMP_OK; r++) {
            memcpy((char *)y + r * part_bytes + i, (char *)c->receive + r * n, n);
        }
    }
    return status;
}

/* One chunk to a member and one from another, where there are any left. */
static smp_status swap_chunk(smp_channel *c, const char *x, uint64_t send, uint32_t to, char *y,
                             uint64_t receive, uint32_t from, smp_errors *errors)
{
    MPI_Request in, out;
    smp_status status = SMP_OK;

    if (receive > 0) {
        (void)MPI_Irecv(y, (int)receive, MPI_BYTE, (int)from, TAG_PART, c->comm, &in);
    }
    if (send > 0) {
        (void)MPI_Isend(x, (int)send, MPI_BYTE, (int)to, TAG_PART, c->comm, &out);
        status = finish(c, &out, errors);
    }
    if (receive > 0 && status == SMP_OK) {
        status = finish(c, &in, errors);
    }
    return status;
}

static uint64_t sum_before(const uint64_t *bytes, uint32_t n)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < n; i++) {
        sum += bytes[i];
    }
    return sum;
}

/* Pair by pair: in step s each member sends to the s-th after it. */
static smp_status mpi_all_to_all(smp_channel *c, const void *x, const uint64_t *send, void *y,
                                 const uint64_t *receive, smp_errors *errors)
{
    const uint64_t chunk = CHUNK * sizeof *c->send;
    smp_status status = SMP_OK;

    memcpy((char *)y + sum_before(receive, c->me), (const char *)x + sum_before(send, c->me),
           send[c->me]);
    for (uint32_t s = 1; s < c->n; s++) {
        uint32_t to = (c->me + s) % c->n, from = (c->me + c->n - s) % c->n;
        const char *out = (const char *)x + sum_before(send, to);
        char *in = (char *)y + sum_before(receive, from);

        for (uint64_t i = 0; (i < send[to] || i < receive[from]) && status == SMP_OK;
             i += chunk) {
            uint64_t n_out = i < send[to] ? least(chunk, send[to] - i) : 0;
            uint64_t n_in = i < receive[from] ? least(chunk, receive[from] - i) : 0;

            status = swap_chunk(c, out + i, n_out, to, in + i, n_in, from, errors);
        }
    }
    return status;
}

static smp_status mpi_broadcast(smp_channel *c, void *x, uint64_t bytes, uint32_t root,
                                smp_errors *errors)
{
    const uint64_t chunk = CHUNK * sizeof *c->send;
    smp_status status = SMP_OK;

    for (uint64_t i = 0; i < bytes && status == SMP_OK; i += chunk) {
        MPI_Request request;

        (void)MPI_Ibcast((char *)x + i, (int)least(chunk, bytes - i), MPI_BYTE, (int)root,
                         c->comm, &request);
        status = finish(c, &request, errors);
    }
    return status;
}

static smp_status mpi_barrier(smp_channel *c, smp_errors *errors)
{
    MPI_Request request;

    (void)MPI_Ibarrier(c->comm, &request);
    return finish(c, &request, errors);
}

const smp_comm_ops smp_comm_mpi = {
    .name = "mpi",
    .destroy = mpi_destroy,
    .join = mpi_join,
    .leave = mpi_leave,
    .all_gather = mpi_all_gather,
    .reduce_scatter = mpi_reduce_scatter,
    .all_reduce = mpi_all_reduce,
    .all_to_all = mpi_all_to_all,
    .broadcast = mpi_broadcast,
    .barrier = mpi_barrier,
};
