/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of tokens: text, llm.c, nanoGPT, Megatron; and documents in them.
 *
 * What a file is follows from its name and first bytes:
 *   NAME.idx, or NAME.bin beside NAME.idx, or NAME of both   Megatron's indexed dataset
 *   NAME.bin with a header of 1024 bytes      llm.c: magic 20240520, version 1, uint16; or
 *                                             magic 20240801, version 7, uint32
 *   NAME.bin                                  nanoGPT: uint16
 *   anything else                             text: each byte is a token
 * All are little endian and mapped, not read.  Token ids are not checked here: what is legal
 * is the model's to say.  This is no tokenizer but for the bytes of text.
 */
#ifndef SMP_DATA_TOKENS_H
#define SMP_DATA_TOKENS_H

#include "smp.h"

typedef enum smp_token_format {
    SMP_TOKENS_TEXT, SMP_TOKENS_LLMC, SMP_TOKENS_NANOGPT, SMP_TOKENS_MEGATRON
} smp_token_format;
const char *smp_token_format_name(smp_token_format format);

enum { SMP_BYTE_TOKENS = 256, SMP_END_OF_TEXT = 256 }; /* of the byte-level tokenizer */
enum { SMP_NO_SEPARATOR = -1 };

typedef struct smp_tokens smp_tokens;
typedef struct smp_tokens_facts {
    const char *path;          /* of the file that holds the tokens; lives with them */
    smp_token_format format;
    uint32_t token_bytes;      /* in the file */
    uint64_t tokens, documents;
} smp_tokens_facts;

/* Documents are those of Megatron's index; in other files each ends with a token `separator`
 * (SMP_NO_SEPARATOR: the file is one document).  A file that is truncated, longer than its
 * header says or without a token is an input error. */
SMP_CHECK smp_status smp_tokens_open(const char *path, int64_t separator, smp_errors *errors,
                                     smp_tokens **tokens_p);
void smp_tokens_close(smp_tokens *tokens); /* NULL is fine */
const smp_tokens_facts *smp_tokens_facts_of(const smp_tokens *tokens);
int64_t smp_tokens_at(const smp_tokens *tokens, uint64_t i);
/* First token of document i; of document number `documents`: the number of tokens. */
uint64_t smp_tokens_document(const smp_tokens *tokens, uint64_t i);
/* The document that holds token i: the last one that begins at i or before. */
uint64_t smp_tokens_document_of(const smp_tokens *tokens, uint64_t i);

/* Bytes that begin llm.c's header; no text in UTF-8 begins so. */
enum { SMP_TOKENS_MAGIC_BYTES = 4 };
bool smp_tokens_magic(const unsigned char first[SMP_TOKENS_MAGIC_BYTES]);

/* Writes LLMC or NANOGPT; the file appears when it is complete.  A name under which it would be
 * read as something else is an input error, and so is, at the end, that there is no token. */
typedef struct smp_tokens_writer smp_tokens_writer;
SMP_CHECK smp_status smp_tokens_create(const char *path, smp_token_format format,
                                       smp_errors *errors, smp_tokens_writer **writer_p);
void smp_tokens_put(smp_tokens_writer *writer, uint16_t token);
/* Both free the writer. */
SMP_CHECK smp_status smp_tokens_commit(smp_tokens_writer *writer, smp_errors *errors);
void smp_tokens_abandon(smp_tokens_writer *writer);

#endif
