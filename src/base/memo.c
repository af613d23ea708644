/* SPDX-License-Identifier: Apache-2.0 */
/* A table of records found by their keys: open addressing over pointers; see memo.h. */
#include "base/memo.h"

#include "base/numeric.h"

#include <stdlib.h>
#include <string.h>

typedef struct slot { uint64_t hash; void *record; } slot; /* NULL: free */

struct smp_memo {
    smp_arena *arena;
    size_t key_bytes, record_bytes, n;
    slot *slots;
    size_t n_slot; /* a power of two, more than 4/3 of the records */
};

smp_memo *smp_memo_create(size_t key_bytes, size_t record_bytes)
{
    enum { FIRST = 64 };
    smp_memo *memo = smp_heap_alloc(1, sizeof *memo);

    memo->arena = smp_arena_create();
    memo->key_bytes = key_bytes;
    memo->record_bytes = record_bytes;
    memo->n_slot = FIRST;
    memo->slots = smp_heap_alloc(FIRST, sizeof *memo->slots);
    return memo;
}

void smp_memo_destroy(smp_memo *memo)
{
    if (memo) {
        smp_arena_destroy(memo->arena);
        free(memo->slots);
        free(memo);
    }
}

/* As smp_hash, eight bytes at a time. */
static uint64_t hash_key(const void *key, size_t n)
{
    const unsigned char *byte = key;
    uint64_t hash = 0x9e3779b97f4a7c15u, word;

    for (; n >= sizeof word; n -= sizeof word, byte += sizeof word) {
        memcpy(&word, byte, sizeof word);
        hash = (hash ^ word) * 0xff51afd7ed558ccdu;
        hash ^= hash >> 32;
    }
    return n > 0 ? smp_hash(byte, n, hash) : hash;
}

static slot *find_slot(const smp_memo *memo, slot *slots, size_t n_slot, uint64_t hash,
                       const void *key)
{
    size_t at = (size_t)hash & (n_slot - 1);

    while (slots[at].record != NULL &&
           (slots[at].hash != hash || memcmp(slots[at].record, key, memo->key_bytes) != 0)) {
        at = (at + 1) & (n_slot - 1);
    }
    return &slots[at];
}

static void grow(smp_memo *memo)
{
    size_t n_slot = 2 * memo->n_slot;
    slot *slots = smp_heap_alloc(n_slot, sizeof *slots);

    for (size_t i = 0; i < memo->n_slot; i++) {
        const slot *old = &memo->slots[i];
        if (old->record != NULL) {
            *find_slot(memo, slots, n_slot, old->hash, old->record) = *old;
        }
    }
    free(memo->slots);
    memo->slots = slots;
    memo->n_slot = n_slot;
}

void *smp_memo_at(smp_memo *memo, const void *key, bool *is_new_p)
{
    uint64_t hash = hash_key(key, memo->key_bytes);
    slot *at = find_slot(memo, memo->slots, memo->n_slot, hash, key);

    *is_new_p = at->record == NULL;
    if (!*is_new_p) {
        return at->record;
    }
    if (4 * (memo->n + 1) > 3 * memo->n_slot) {
        grow(memo);
        at = find_slot(memo, memo->slots, memo->n_slot, hash, key);
    }
    memo->n++;
    *at = (slot){hash, smp_arena_alloc(memo->arena, 1, memo->record_bytes)};
    memcpy(at->record, key, memo->key_bytes);
    return at->record;
}
