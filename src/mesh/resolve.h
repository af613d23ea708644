/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From settings as given to settings that act, and the rules that they must keep: between
 * act.c, the files of rules and resolve.c.
 *
 * Meaning of the degrees: world = tensor x expert x hybrid_shard x replicas, with context
 * inside hybrid_shard [SageMaker documentation, "SMP v2 core features: hybrid sharded data
 * parallelism" and "reference" for the orthogonal layout; in the nested one expert too lies
 * inside hybrid_shard; the divisibility is that of AWS's own validator in
 * sagemaker-hyperpod-training-adapter-for-nemo, validate_distributed_degrees].
 */
#ifndef SMP_MESH_RESOLVE_H
#define SMP_MESH_RESOLVE_H

#include "base/numeric.h"
#include "base/text.h"
#include "mesh/mesh.h"
#include "mesh/settings.h"
#include "model/model.h"

/* A job on its way: `job` holds the acting settings once smp_act has run. */
typedef struct smp_resolving {
    smp_job job;
    const smp_settings *asked; /* as given, and what the stack puts where nothing is */
    smp_settings stacked;      /* `asked` where the stack puts something */
    uint32_t rest;             /* world / (tensor x expert), nested world / tensor; 0 when
                                  that is no integer */
    bool strategy_forced;      /* the given sharding_strategy does not act */
    bool offload_yields;       /* the plan's offload does not act */
} smp_resolving;

/* Computes the acting values of `given`.  Degrees in it are at least 1. */
void smp_act(smp_resolving *st, const smp_settings *given);

/* Whether the stack can reduce as often as `accumulation` says: a rule, and what acts where
 * nothing is given. */
bool smp_accumulation_holds(const smp_resolving *st);

/* Whether the checkpointing leaves something to offload. */
bool smp_offload_holds(const smp_resolving *st);

static inline uint64_t smp_micro_batch_tokens(const smp_job *job)
{
    return smp_mul(job->settings.micro_batch, job->batch.seq_len);
}

/* A rule belongs to a key (smp_key), or to a field of the batch. */
enum { SMP_KEY_SEQ_LEN = SMP_KEYS, SMP_KEY_GLOBAL_BATCH };

typedef struct smp_rule {
    int key;
    bool legal; /* list the legal values by trying; without, `why` says them */
    /* True when the rule holds, and also when it has nothing to say because a rule that comes
     * before it is broken. */
    bool (*holds)(const smp_resolving *st);
    void (*why)(const smp_resolving *st, smp_text *text); /* appends; called when broken */
} smp_rule;

/* In the order in which they are reported; each ends with a row without `holds`. */
extern const smp_rule smp_rules_degrees[];
extern const smp_rule smp_rules_step[];

#endif
