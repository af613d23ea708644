/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading tokens from a mapped file; the sampler.
 */
#include "config.h"

#include "exec/data.h"

#include "base/arena.h"
#include "base/numeric.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER_BYTES = 1024, HEADER_MAGIC = 20240520 };

struct smp_corpus {
    char *path;
    void *map;
    size_t map_bytes;
    const unsigned char *tokens;
    uint64_t n_token, seq, vocab;
    bool wide;                 /* two bytes a token, little endian */
};

void smp_corpus_close(smp_corpus *corpus)
{
    if (corpus) {
        if (corpus->map) {
            (void)munmap(corpus->map, corpus->map_bytes);
        }
        free(corpus->path);
        free(corpus);
    }
}

static smp_status map_file(smp_corpus *corpus, int file, smp_errors *errors)
{
    const smp_place place = { .file = corpus->path };
    struct stat facts;
    void *map;

    if (file < 0 || fstat(file, &facts) != 0) {
        return smp_fail(errors, errno == ENOENT ? SMP_INPUT : SMP_SYSTEM, &place, "%s",
                        strerror(errno));
    }
    if (!S_ISREG(facts.st_mode) || facts.st_size == 0) {
        return smp_fail(errors, SMP_INPUT, &place, "not a file with tokens or text");
    }
    map = mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    if (map == MAP_FAILED) {
        return smp_fail(errors, SMP_SYSTEM, &place, "%s", strerror(errno));
    }
    corpus->map = map;
    corpus->map_bytes = (size_t)facts.st_size;
    return SMP_OK;
}

static smp_status find_tokens(smp_corpus *corpus, smp_errors *errors)
{
    const smp_place place = { .file = corpus->path };
    size_t length = strlen(corpus->path), bytes = corpus->map_bytes;
    int32_t header[3];

    corpus->tokens = corpus->map;
    corpus->wide = length > 4 && strcmp(corpus->path + length - 4, ".bin") == 0;
    corpus->n_token = corpus->wide ? bytes / 2 : bytes;
    if (corpus->wide && bytes >= HEADER_BYTES) {
        memcpy(header, corpus->map, sizeof header);
        if (header[0] == HEADER_MAGIC) {
            corpus->tokens += HEADER_BYTES;
            corpus->n_token = (bytes - HEADER_BYTES) / 2;
            if (header[1] != 1 || (uint64_t)header[2] != corpus->n_token) {
                return smp_fail(errors, SMP_INPUT, &place,
                                "header says version %d and %d tokens, the file holds %llu; "
                                "must be version 1 and complete",
                                header[1], header[2], (unsigned long long)corpus->n_token);
            }
        }
    }
    if (corpus->n_token <= corpus->seq) {
        return smp_fail(errors, SMP_INPUT, &place,
                        "%llu tokens; a sequence of %llu needs one more than that",
                        (unsigned long long)corpus->n_token, (unsigned long long)corpus->seq);
    }
    return SMP_OK;
}

smp_status smp_corpus_open(const char *path, uint64_t seq, uint64_t vocab, smp_errors *errors,
                           smp_corpus **corpus_p)
{
    smp_corpus *corpus = smp_heap_alloc(1, sizeof *corpus);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    smp_status status;

    corpus->path = smp_heap_alloc(strlen(path) + 1, 1);
    memcpy(corpus->path, path, strlen(path) + 1);
    corpus->seq = seq;
    corpus->vocab = vocab;
    status = map_file(corpus, file, errors);
    if (file >= 0) {
        (void)close(file);
    }
    if (status == SMP_OK) {
        status = find_tokens(corpus, errors);
    }
    if (status != SMP_OK) {
        smp_corpus_close(corpus);
        return status;
    }
    *corpus_p = corpus;
    return SMP_OK;
}

uint64_t smp_corpus_sequences(const smp_corpus *corpus)
{
    return (corpus->n_token - 1) / corpus->seq;
}

static uint32_t token_at(const smp_corpus *corpus, uint64_t i)
{
    const unsigned char *t = corpus->tokens;

    return corpus->wide ? (uint32_t)(t[2 * i] | t[2 * i + 1] << 8) : t[i];
}

smp_status smp_corpus_read(const smp_corpus *corpus, uint64_t sequence, int32_t *ids,
                           int32_t *targets, smp_errors *errors)
{
    const smp_place place = { .file = corpus->path };
    uint64_t first = sequence * corpus->seq;

    for (uint64_t i = 0; i <= corpus->seq; i++) {
        uint32_t token = token_at(corpus, first + i);

        if (token >= corpus->vocab) {
            return smp_fail(errors, SMP_INPUT, &place,
                            "token %u at %llu: the model's vocabulary has %llu", token,
                            (unsigned long long)(first + i),
                            (unsigned long long)corpus->vocab);
        }
        if (i < corpus->seq) {
            ids[i] = (int32_t)token;
        }
        if (i > 0) {
            targets[i - 1] = (int32_t)token;
        }
    }
    return SMP_OK;
}

/* ---- sampler ---- */

void smp_sampler_init(smp_sampler *s, uint64_t n, uint32_t rank, uint32_t ranks,
                      uint64_t seed, bool shuffle, bool drop_last)
{
    *s = (smp_sampler){ .n = n, .rank = rank, .ranks = ranks, .shuffle = shuffle,
                        .drop_last = drop_last && n >= ranks, .seed = seed };
}

void smp_sampler_fini(smp_sampler *s)
{
    free(s->order);
    s->order = NULL;
}

uint64_t smp_sampler_per_epoch(const smp_sampler *s)
{
    return s->drop_last ? s->n / s->ranks : smp_ceil_div(s->n, s->ranks);
}

/* Fisher and Yates' shuffle; seed + epoch as torch's sampler has it. */
static void make_order(smp_sampler *s, uint64_t epoch)
{
    s->order = smp_heap_grow(s->order, s->n, sizeof *s->order);
    s->epoch = epoch;
    for (uint64_t i = 0; i < s->n; i++) {
        s->order[i] = i;
    }
    for (uint64_t i = s->n - 1; s->shuffle && i > 0; i--) {
        uint32_t u[4];
        uint64_t word, j, kept = s->order[i];

        smp_random4(s->seed + epoch, 0x73616d706c657264u, i, u);
        word = (uint64_t)u[0] << 32 | u[1];
        j = word % (i + 1); /* off by less than i / 2^64 from uniform */
        s->order[i] = s->order[j];
        s->order[j] = kept;
    }
}

uint64_t smp_sampler_at(smp_sampler *s, uint64_t at)
{
    uint64_t each = smp_sampler_per_epoch(s), epoch = at / each;

    if (!s->order || s->epoch != epoch) {
        make_order(s, epoch);
    }
    return s->order[(at % each * s->ranks + s->rank) % s->n];
}
