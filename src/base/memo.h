/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A table of records found by their first bytes, the key: for results that are computed once.
 *
 * Keys are compared as bytes, so padding in them must be zero.  Records are never moved or
 * removed.
 */
#ifndef SMP_BASE_MEMO_H
#define SMP_BASE_MEMO_H

#include "base/arena.h"

typedef struct smp_memo smp_memo;

/* Records of record_bytes whose first key_bytes are the key. */
smp_memo *smp_memo_create(size_t key_bytes, size_t record_bytes);
void smp_memo_destroy(smp_memo *memo); /* NULL is fine */
/* The record with this key; a new one has the key and is zero otherwise, and *is_new_p is
 * true. */
void *smp_memo_at(smp_memo *memo, const void *key, bool *is_new_p);

#endif
