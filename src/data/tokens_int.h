/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of a token file, for the readers of its formats.
 */
#ifndef SMP_DATA_TOKENS_INT_H
#define SMP_DATA_TOKENS_INT_H

#include "data/tokens.h"

enum {
    SMP_LLMC_HEADER_BYTES = 1024, SMP_LLMC_MAGIC = 20240520, SMP_LLMC_VERSION = 1,
    SMP_LLMC_WIDE_MAGIC = 20240801, SMP_LLMC_WIDE_VERSION = 7
};

typedef struct smp_mapped { void *at; size_t bytes; } smp_mapped;

struct smp_tokens {
    smp_tokens_facts facts;
    char *path;
    smp_mapped file;
    const unsigned char *first; /* token */
    bool is_signed;
    uint64_t *begins;           /* of documents, and the end; NULL: one document */
};

/* An empty file is mapped as 0 bytes. */
SMP_CHECK smp_status smp_map_file(const char *path, smp_errors *errors, smp_mapped *mapped_p);
void smp_unmap_file(smp_mapped *mapped);
uint64_t smp_le(const unsigned char *at, uint32_t bytes); /* little endian, 1 to 8 bytes */

/* Fails for a regular file's name that is not that of llm.c's or nanoGPT's tokens. */
SMP_CHECK smp_status smp_check_name(const char *path, smp_errors *errors);

/* Fills facts, `first` and `begins` from the index; tokens->file is mapped. */
SMP_CHECK smp_status smp_megatron_read(smp_tokens *tokens, const char *index_path,
                                       smp_errors *errors);

#endif
