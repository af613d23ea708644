/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training data: a file of tokens, and who reads which part of it.
 *
 * A file that ends in .bin holds uint16 tokens, with llm.c's header of 1024 bytes (magic
 * 20240520) or bare as nanoGPT writes it; any other file is text, a byte a token.  Sequence i
 * is tokens i * seq .. i * seq + seq, its targets one further.
 */
#ifndef SMP_EXEC_DATA_H
#define SMP_EXEC_DATA_H

#include "smp.h"

typedef struct smp_corpus smp_corpus;

/* Tokens must be below `vocab`: checked where they are read. */
SMP_CHECK smp_status smp_corpus_open(const char *path, uint64_t seq, uint64_t vocab,
                                     smp_errors *errors, smp_corpus **corpus_p);
void smp_corpus_close(smp_corpus *corpus);
uint64_t smp_corpus_sequences(const smp_corpus *corpus);
SMP_CHECK smp_status smp_corpus_read(const smp_corpus *corpus, uint64_t sequence, int32_t *ids,
                                     int32_t *targets, smp_errors *errors);

/* The order of an epoch, dealt out as torch's DistributedSampler does: rank r of R takes
 * places r, r + R, ...; without drop_last the order starts over to fill the last round. */
typedef struct smp_sampler {
    uint64_t n;                /* sequences */
    uint32_t rank, ranks;
    bool shuffle, drop_last;
    uint64_t seed;
    uint64_t epoch;            /* of `order`; order NULL: none yet */
    uint64_t *order;
} smp_sampler;
void smp_sampler_init(smp_sampler *sampler, uint64_t n, uint32_t rank, uint32_t ranks,
                      uint64_t seed, bool shuffle, bool drop_last);
void smp_sampler_fini(smp_sampler *sampler);
uint64_t smp_sampler_per_epoch(const smp_sampler *sampler); /* of one rank */
/* The sequence at this rank's place `at`, counted over epochs. */
uint64_t smp_sampler_at(smp_sampler *sampler, uint64_t at);

#endif
