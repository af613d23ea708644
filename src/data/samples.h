/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Samples of at most seq tokens, cut from a file of tokens.
 *
 * Packed: sample i is tokens i * seq .. (i + 1) * seq, across documents.
 * Padded: each document is cut into samples of seq tokens, the last one shorter; what a row has
 * beyond its sample is padding.  A document of n tokens has n - 1 that have a successor, and
 * only those are read as inputs, so a document of one token gives none.
 */
#ifndef SMP_DATA_SAMPLES_H
#define SMP_DATA_SAMPLES_H

#include "data/tokens.h"

typedef struct smp_samples {
    const smp_tokens *tokens;
    uint64_t seq, n;           /* n samples, at least 1 */
    bool padded;
    bool documents;            /* packed: tokens see only their own document */
    uint64_t *first;           /* padded: the first token of each sample, n entries */
    uint32_t *length;          /* padded: tokens of it */
} smp_samples;

/* Fails where there is not one sample.  `tokens` must outlive the samples. */
SMP_CHECK smp_status smp_samples_init(const smp_tokens *tokens, uint64_t seq, bool padded,
                                      bool documents, smp_errors *errors,
                                      smp_samples *samples_p);
void smp_samples_fini(smp_samples *samples);
uint64_t smp_samples_length(const smp_samples *samples, uint64_t i);
/* Targets that count: in a padded sample one for each token; in a packed one, when documents
 * are kept apart, all but those that are the first token of another document. */
uint64_t smp_samples_targets(const smp_samples *samples, uint64_t i);
/* Fills rows of `width` >= length: ids, targets (-1: does not count) and where the document of
 * each token begins in the row.  Padding has id 0, no target, and is a document by itself.
 * Fails at a token that is not below `vocab`, with its place in the file. */
SMP_CHECK smp_status smp_samples_read(const smp_samples *samples, uint64_t i, uint64_t width,
                                      uint64_t vocab, smp_errors *errors, int32_t *ids,
                                      int32_t *targets, int32_t *begins);

#endif
