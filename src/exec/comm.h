/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a communicator is to the executor: collectives over the ranks of one group.
 *
 * A world is what the ranks share (threads of a process, MPI's world); a channel is one rank's
 * end of one group.  Members call the same collectives in the same order.  Sums are made in
 * the order of the members in fp32 and rounded once, so every backend gives the same bits.
 * A collective that waits longer than the world's time-out fails and says who is missing.
 */
#ifndef SMP_EXEC_COMM_H
#define SMP_EXEC_COMM_H

#include "step/program.h"

typedef struct smp_world smp_world;
typedef struct smp_channel smp_channel;

typedef struct smp_comm_ops {
    const char *name;
    /* required */
    void (*destroy)(smp_world *world);
    /* `members` in ascending order holds `rank`; all members give the same list and name. */
    smp_status (*join)(smp_world *world, const char *name, const uint32_t *members,
                       uint32_t n_member, uint32_t rank, smp_errors *errors,
                       smp_channel **channel_p);
    void (*leave)(smp_channel *channel);
    /* y is the parts of all members in order; x may be this member's part of y. */
    smp_status (*all_gather)(smp_channel *channel, const void *x, void *y,
                             uint64_t part_bytes, smp_errors *errors);
    /* y: this member's part of the sum of x times `factor`; y may be that part of x. */
    smp_status (*reduce_scatter)(smp_channel *channel, const void *x, void *y,
                                 uint64_t part_elems, smp_dtype dtype, float factor,
                                 smp_errors *errors);
    smp_status (*all_reduce)(smp_channel *channel, void *x, uint64_t elems, smp_dtype dtype,
                             float factor, smp_errors *errors);
    /* Parts of any size, one after the other: send[i] bytes of x go to member i, and receive[i]
     * bytes of y come from it.  What one member sends another is what that one receives. */
    smp_status (*all_to_all)(smp_channel *channel, const void *x, const uint64_t *send,
                             void *y, const uint64_t *receive, smp_errors *errors);
    smp_status (*broadcast)(smp_channel *channel, void *x, uint64_t bytes, uint32_t root,
                            smp_errors *errors);
    smp_status (*barrier)(smp_channel *channel, smp_errors *errors);
    /* optional: NULL means that others find out by the time-out */
    void (*abandon)(smp_world *world, uint32_t rank); /* this rank is dead: waits end */
} smp_comm_ops;

extern const smp_comm_ops smp_comm_threads;
/* A world of `ranks` threads of this process; of one rank, nothing ever waits ("self"). */
SMP_CHECK smp_status smp_threads_create(uint32_t ranks, double timeout_s, smp_errors *errors,
                                        smp_world **world_p);

/* Over MPI, where it is built in: one rank a process.  `begin` before and `end` after
 * everything else; `end` of a failed program takes the other ranks down. */
extern const smp_comm_ops smp_comm_mpi;
SMP_CHECK smp_status smp_mpi_begin(bool async, smp_errors *errors);
void smp_mpi_end(int exit_status);
uint32_t smp_mpi_rank(void);
/* Whether all ranks have the same value; each has to ask. */
bool smp_mpi_agrees(uint64_t value);
uint32_t smp_mpi_ranks(void);
/* Place of this process among those of its machine, and their number. */
void smp_mpi_here(uint32_t *rank_p, uint32_t *ranks_p);
SMP_CHECK smp_status smp_mpi_create(double timeout_s, smp_errors *errors,
                                    smp_world **world_p);

#endif
