/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/sim: PyTorch's caching allocator of CUDA memory, emulated.
 *
 * What a training script asks for, what blocks it gets, and what is taken from the device for
 * it.  Rules after c10/cuda/CUDACachingAllocator.cpp and the notes "CUDA semantics: memory
 * management" of PyTorch's documentation; defaults of its settings:
 *   - a request is rounded up to 512 bytes; up to 1 MiB it comes from the small pool, whose
 *     segments have 2 MiB; above, from the large pool, whose segments have 20 MiB for requests
 *     below 10 MiB, else the request rounded up to 2 MiB;
 *   - the smallest free block of the same pool and stream that is large enough, the lowest of
 *     equals; what is left of it becomes a free block if it has 512 bytes (small pool,
 *     expandable segments) or more than 1 MiB;
 *   - a block used by other streams is free again when what those had queued up at its release
 *     has run, which is looked up at the next request; neighbours merge when both are free;
 *   - when the device has no room, all unsplit free segments are given back, after waiting for
 *     outstanding events, and the request is tried once more: a flush of the cache;
 *   - expandable segments: one range of addresses a pool and stream, backed in units of 2 MiB
 *     (small) or 20 MiB, from which whole free units are taken back in a flush.
 */
#ifndef SMP_SIM_CACHING_H
#define SMP_SIM_CACHING_H

#include "smp.h"

enum { SMP_CACHING_STREAMS = 16, SMP_CACHING_NONE = 0xffffffffu };

typedef struct smp_caching_options {
    uint64_t capacity_bytes;  /* what the device can give */
    bool expandable;
    uint64_t max_split_bytes; /* 0: no limit */
} smp_caching_options;

typedef struct smp_caching_stats {
    uint64_t live_bytes;      /* as asked for */
    uint64_t allocated_bytes; /* blocks in use */
    uint64_t active_bytes;    /* and those that wait for other streams */
    uint64_t reserved_bytes;  /* taken from the device */
    uint64_t flushes, failures;
    uint64_t segments;        /* taken from the device, in all (units, where expandable) */
} smp_caching_stats;

typedef struct smp_caching smp_caching;
smp_caching *smp_caching_create(const smp_caching_options *options);
void smp_caching_destroy(smp_caching *caching);

/* A block on `stream`, or SMP_CACHING_NONE when there is no room after a flush.  `now_ps` is
 * the host's time; a flush sets it to when the last outstanding event has come. */
uint32_t smp_caching_malloc(smp_caching *caching, uint32_t stream, uint64_t bytes,
                            int64_t *now_ps);
/* The block is used on `stream` too. */
void smp_caching_record(smp_caching *caching, uint32_t block, uint32_t stream);
/* `ready_ps`: when what the other streams that used it have queued up so far will have run. */
void smp_caching_free(smp_caching *caching, uint32_t block, int64_t ready_ps);
/* Gives back what is not in use (empty_cache); events of the past come first. */
void smp_caching_empty(smp_caching *caching, int64_t now_ps);
smp_caching_stats smp_caching_stats_of(const smp_caching *caching);
/* Where a block lies, for tests: blocks in use never overlap. */
uint64_t smp_caching_address(const smp_caching *caching, uint32_t block);
uint64_t smp_caching_size(const smp_caching *caching, uint32_t block);

#endif
