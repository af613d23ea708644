/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron's indexed dataset: NAME.bin holds token ids, NAME.idx says where sequences and
 * documents are.  [Megatron-LM, megatron/core/datasets/indexed_dataset.py and readme.md]
 *
 * The index, little endian and without padding:
 *   9 bytes "MMIDIDX\0\0"; u64 version, 1; u8 code of the type; u64 sequences S; u64 entries of
 *   the document index D; i32 lengths[S] in tokens; i64 pointers[S] in bytes of NAME.bin;
 *   i64 documents[D]: document i is sequences documents[i] .. documents[i + 1]
 * A byte for each sequence may follow (its mode, in multimodal sets) and is not read.
 * Sequences must follow each other in NAME.bin as they do in the index, as Megatron's tools
 * write them.
 */
#include "config.h"

#include "data/tokens_int.h"

#include "base/arena.h"

#include <stdlib.h>
#include <string.h>

enum { HEADER_BYTES = 34, LENGTH_BYTES = 4, POINTER_BYTES = 8 };

typedef struct megatron {
    const unsigned char *lengths, *pointers, *documents;
    uint64_t n_sequence, n_entry;
    const char *path;
} megatron;

static smp_status fail_index(const megatron *m, smp_errors *errors, const char *what)
{
    return smp_fail(errors, SMP_INPUT, &(smp_place){ .file = m->path }, "%s", what);
}

/* Codes of the types of whole numbers: uint8, int8, int16, int32, int64, uint16. */
static bool read_type(smp_tokens *tokens, uint8_t code)
{
    static const uint8_t bytes[] = { 0, 1, 1, 2, 4, 8, 0, 0, 2 };

    if (code >= sizeof bytes || bytes[code] == 0) {
        return false;
    }
    tokens->facts.token_bytes = bytes[code];
    tokens->is_signed = code >= 2 && code <= 5;
    return true;
}

static smp_status read_head(smp_tokens *tokens, const smp_mapped *file, megatron *m,
                            smp_errors *errors)
{
    static const unsigned char magic[9] = "MMIDIDX";
    const unsigned char *at = file->at;
    uint64_t rest = file->bytes - HEADER_BYTES;

    if (file->bytes < HEADER_BYTES || memcmp(at, magic, sizeof magic) != 0
        || smp_le(at + 9, 8) != 1) {
        return fail_index(m, errors, "not version 1 of Megatron's index");
    }
    if (!read_type(tokens, at[17])) {
        return smp_fail(errors, SMP_INPUT, &(smp_place){ .file = m->path },
                        "type code %u; token ids are of type 1 to 5 or 8", at[17]);
    }
    m->n_sequence = smp_le(at + 18, 8);
    m->n_entry = smp_le(at + 26, 8);
    if (m->n_sequence > rest / (LENGTH_BYTES + POINTER_BYTES)
        || m->n_entry > (rest - m->n_sequence * (LENGTH_BYTES + POINTER_BYTES))
                            / POINTER_BYTES) {
        return smp_fail(errors, SMP_INPUT, &(smp_place){ .file = m->path },
                        "%llu sequences and %llu documents do not fit in %llu bytes: it is "
                        "truncated",
                        (unsigned long long)m->n_sequence, (unsigned long long)m->n_entry,
                        (unsigned long long)file->bytes);
    }
    m->lengths = at + HEADER_BYTES;
    m->pointers = m->lengths + m->n_sequence * LENGTH_BYTES;
    m->documents = m->pointers + m->n_sequence * POINTER_BYTES;
    return SMP_OK;
}

/* Walks the sequences: each begins where the one before ends. */
static smp_status check_sequences(smp_tokens *tokens, const megatron *m, smp_errors *errors)
{
    uint64_t at = 0, size = tokens->facts.token_bytes, held = tokens->file.bytes / size;

    for (uint64_t i = 0; i < m->n_sequence; i++) {
        uint64_t length = smp_le(m->lengths + i * LENGTH_BYTES, LENGTH_BYTES);

        if (length > INT32_MAX || smp_le(m->pointers + i * POINTER_BYTES, 8) != at * size) {
            return smp_fail(errors, SMP_INPUT, &(smp_place){ .file = m->path },
                            "sequence %llu does not begin at byte %llu, where the one before "
                            "it ends",
                            (unsigned long long)i, (unsigned long long)(at * size));
        }
        at += length;
        if (at > held) {
            return smp_fail(errors, SMP_INPUT, &(smp_place){ .file = tokens->path },
                            "%llu bytes hold no sequence %llu, which its index has: it is "
                            "truncated",
                            (unsigned long long)tokens->file.bytes, (unsigned long long)i);
        }
    }
    tokens->facts.tokens = at;
    return SMP_OK;
}

/* Turns numbers of sequences into numbers of tokens; documents without a token are left out. */
static smp_status read_documents(smp_tokens *tokens, const megatron *m, smp_errors *errors)
{
    uint64_t n = 0, sequence = 0, token = 0;

    tokens->begins = smp_heap_alloc(m->n_entry + 2, sizeof *tokens->begins);
    for (uint64_t i = 0; i < m->n_entry; i++) {
        uint64_t entry = smp_le(m->documents + i * POINTER_BYTES, POINTER_BYTES);

        if (entry < sequence || entry > m->n_sequence || (i == 0 && entry != 0)) {
            return fail_index(m, errors, "documents must begin at sequence 0 and not fall");
        }
        for (; sequence < entry; sequence++) {
            token += smp_le(m->lengths + sequence * LENGTH_BYTES, LENGTH_BYTES);
        }
        if (token < tokens->facts.tokens && (n == 0 || tokens->begins[n - 1] < token)) {
            tokens->begins[n++] = token;
        }
    }
    if (n == 0) {
        tokens->begins[n++] = 0;
    }
    tokens->begins[n] = tokens->facts.tokens;
    tokens->facts.documents = n;
    return SMP_OK;
}

smp_status smp_megatron_read(smp_tokens *tokens, const char *index_path, smp_errors *errors)
{
    megatron m = { .path = index_path };
    smp_mapped index = { 0 };
    smp_status status = smp_map_file(index_path, errors, &index);

    tokens->facts.format = SMP_TOKENS_MEGATRON;
    tokens->first = tokens->file.at;
    if (status == SMP_OK) {
        status = read_head(tokens, &index, &m, errors);
    }
    if (status == SMP_OK) {
        status = check_sequences(tokens, &m, errors);
    }
    if (status == SMP_OK) {
        status = read_documents(tokens, &m, errors);
    }
    smp_unmap_file(&index);
    return status;
}
