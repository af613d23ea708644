/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of published training runs, as bench/accuracy reads, predicts and reports them.
 *
 *   accuracy_rows.c  a row of a table: what it states, which stack ran it, what was measured
 *   accuracy_job.c   a row as a job of libsmp, and what libsmp predicts of it
 *   accuracy.c       the report
 *
 * A row that cannot be expressed keeps the reason; one in which a setting is not stated keeps
 * which, and is listed apart.
 */
#ifndef SMP_BENCH_ACCURACY_H
#define SMP_BENCH_ACCURACY_H

#include "base/arena.h"
#include "smp.h"

#include <cjson/cJSON.h>

/* Software that ran a row, in terms of settings; facts from its documentation, named beside
 * the table in accuracy_rows.c.  Nothing here is a measured figure. */
typedef struct stack {
    const char *name;
    const char *software;        /* stacks of one software share an efficiency */
    const char *settings[8];     /* in every row: "key=value" */
    bool reserved;               /* logs what PyTorch's allocator has reserved */
    bool last;                   /* reduces gradients in the last micro-batch only */
    bool sequence_parallel;      /* with tensor parallelism, where the row does not say */
    bool naive_attention;        /* runs from before fused attention */
    double dropout;              /* of GPT models, whose rows do not state it */
    uint32_t vocab_multiple;     /* pads the vocabulary to a multiple of it */
} stack;

/* Where a row's memory was read. */
typedef enum memory_kind { MEMORY_NONE, MEMORY_ALLOCATOR, MEMORY_DEVICE } memory_kind;

/* Where the predicted time comes from. */
typedef enum part { PART_MATMUL, PART_ATTENTION, PART_MEMORY, PART_WAITING, PARTS } part;

typedef struct published {
    const char *id, *source;     /* source: the part of the file's name after "training_" */
    const cJSON *row, *model, *parallel;
    const stack *stack;
    const char *reason;          /* why it is not expressed, or NULL */
    const char *unstated;        /* what the row leaves open, "recompute micro-batch", or "" */
    const char *beside;          /* what the row states and no setting says, or "" */
    /* as stated, 0: not stated */
    uint32_t gpus, gpus_per_node, tensor, fsdp, replicas, expert, zero, optimizer_shard;
    bool zero_stated;
    uint64_t micro_batch, global_batch, seq_len;
    const char *dtype, *recompute, *notes, *gpu, *interconnect;
    /* measured, 0: not */
    double measured_s, measured_bytes;
    memory_kind memory;
    bool out_of_memory;
    bool finds;                  /* the efficiency of its software was found on it */
    /* predicted */
    double alone_s;              /* with efficiency 1 */
    double predicted_s, predicted_bytes, low_s, high_s;
    double idle_frac;            /* of the step: compute waits for communication or copies */
    const char *profile;
    double parts_s[PARTS];       /* they add up to predicted_s */
    bool fits;
} published;

typedef struct published_list {
    published *rows;
    size_t n, capacity;
    cJSON **documents; /* what rows point into */
    size_t n_document, document_capacity;
} published_list;

/* Reads every training_*.json of a directory, in the order of names and rows, into an empty
 * list; destroy it in any case. */
SMP_CHECK smp_status published_read(const char *directory, smp_arena *arena, smp_errors *errors,
                                    published_list *list_p);
void published_destroy(published_list *list);
/* Predicts a row without a reason; sets the reason where libsmp refuses it.  `efficiency`: the
 * setting of this name. */
void published_predict(published *p, const char *models, double efficiency, smp_arena *arena);

/* A number, string or boolean of an object; 0, NULL or false where absent or null. */
double published_number(const cJSON *object, const char *key);
const char *published_string(const cJSON *object, const char *key);
bool published_states(const cJSON *object, const char *key);
/* Adds a word to a list in text, where it is not there yet. */
const char *published_join(smp_arena *arena, const char *list, const char *word);

#endif
