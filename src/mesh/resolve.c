/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a job can be, and if not, why: the rules, tried one after the other.
 *
 * Only when one is broken are messages composed, with the legal values found by trying: a value
 * of a key is legal when no rule of that key is broken with it.  So a search that tries many
 * jobs pays for no text.
 */
#include "config.h"

#include "mesh/resolve.h"
#include "mesh/runtime.h"

#include <inttypes.h>

static const smp_rule *const tables[] = {smp_rules_degrees, smp_rules_step};
enum { TABLES = sizeof(tables) / sizeof(tables[0]) };

/* The first broken rule from here on in its table, or NULL. */
static const smp_rule *next_broken(const smp_resolving *st, const smp_rule *rule)
{
    while (rule->holds != NULL && rule->holds(st)) {
        rule++;
    }
    return rule->holds != NULL ? rule : NULL;
}

static bool key_is_legal(const smp_resolving *st, int key)
{
    for (int t = 0; t < (int)TABLES; t++) {
        for (const smp_rule *rule = tables[t]; rule->holds != NULL; rule++) {
            if (rule->key == key && !rule->holds(st)) {
                return false;
            }
        }
    }
    return true;
}

/* The field of a key whose legal values are listed, in any settings. */
static uint32_t *integer_of(smp_settings *s, int key)
{
    switch (key) {
    case SMP_KEY_TENSOR_PARALLEL_DEGREE:
        return &s->tensor_parallel_degree;
    case SMP_KEY_EXPERT_PARALLEL_DEGREE:
        return &s->expert_parallel_degree;
    case SMP_KEY_CONTEXT_PARALLEL_DEGREE:
        return &s->context_parallel_degree;
    case SMP_KEY_HYBRID_SHARD_DEGREE:
        return &s->hybrid_shard_degree;
    case SMP_KEY_MICRO_BATCH:
        return &s->micro_batch;
    default:
        return &s->loss_chunks;
    }
}

static void add_legal(const smp_resolving *st, const smp_job *asked, int key, smp_text *text)
{
    enum { AT_MOST = 20, LAST = 1 << 18 };
    uint64_t limit = key == SMP_KEY_MICRO_BATCH   ? st->job.batch.global_batch
                     : key == SMP_KEY_LOSS_CHUNKS ? smp_micro_batch_tokens(&st->job)
                                                  : st->job.world;
    smp_settings settings = asked->settings;
    uint32_t *value = integer_of(&settings, key);
    uint32_t n = 0;

    limit = limit < LAST ? limit : LAST;
    smp_text_add(text, "; legal here: ");
    for (*value = key == SMP_KEY_HYBRID_SHARD_DEGREE ? 0 : 1; *value <= limit; (*value)++) {
        smp_resolving other = {.job = *asked};
        other.job.settings = settings;
        smp_act(&other, &settings);
        if (key_is_legal(&other, key)) {
            if (n == AT_MOST) {
                smp_text_add(text, ", ...");
                return;
            }
            smp_text_add(text, "%s%u", n > 0 ? ", " : "", *value);
            n++;
        }
    }
    if (n == 0) {
        smp_text_add(text, "none");
    }
}

static void report(const smp_resolving *st, const smp_job *asked, const smp_rule *broken,
                   smp_errors *errors)
{
    const smp_place *where = NULL;
    const char *name;
    char value[96];
    size_t n;
    smp_text text = {0};

    if (broken->key < (int)SMP_KEYS) {
        name = smp_settings_table(&n)[broken->key].key;
        (void)smp_settings_get(&asked->settings, name, value, sizeof(value));
        where = asked->settings.origin[broken->key].file != NULL
                    ? &asked->settings.origin[broken->key] : NULL;
    } else {
        bool seq = broken->key == SMP_KEY_SEQ_LEN;
        name = seq ? "seq_len" : "global_batch";
        snprintf(value, sizeof(value), "%" PRIu64,
                 seq ? asked->batch.seq_len : asked->batch.global_batch);
    }
    smp_text_add(&text, "%s %s: ", name, value);
    broken->why(st, &text);
    if (broken->legal) {
        add_legal(st, asked, broken->key, &text);
    }
    (void)smp_fail(errors, SMP_INPUT, where, "%s", text.data);
    smp_text_free(&text);
}

static void warn(const smp_resolving *st, const smp_settings *asked, smp_errors *errors)
{
    const smp_model *model = st->job.model;
    const smp_settings *s = &st->job.settings;

    if (st->strategy_forced) {
        char given[32], acting[32];
        (void)smp_settings_get(asked, "sharding_strategy", given, sizeof(given));
        (void)smp_settings_get(s, "sharding_strategy", acting, sizeof(acting));
        smp_warn(errors, &asked->origin[SMP_KEY_SHARDING_STRATEGY],
                 "sharding_strategy %s: hybrid_shard_degree %u with tensor_parallel_degree %u "
                 "makes it %s", given, s->hybrid_shard_degree, s->tensor_parallel_degree,
                 acting);
    }
    if (st->offload_yields) {
        smp_warn(errors, &asked->origin[SMP_KEY_OFFLOAD],
                 "offload true of the plan does not act: %s",
                 smp_runtime_offloads(s) ? "this checkpointing keeps nothing that it moves"
                                         : "the software has no offloading that loads ahead");
    }
    if (model->position != SMP_POSITION_LEARNED && model->max_positions > 0 &&
        st->job.batch.seq_len > model->max_positions) {
        smp_warn(errors, NULL, "seq_len %" PRIu64 ": %s was made for %" PRIu64 " positions",
                 st->job.batch.seq_len, model->name, model->max_positions);
    }
}

static bool range_holds(const smp_job *job)
{
    const smp_settings *s = &job->settings;

    return s->tensor_parallel_degree > 0 && s->context_parallel_degree > 0 &&
           s->expert_parallel_degree > 0 && s->micro_batch > 0 && s->loss_chunks > 0 &&
           s->activation_loading_horizon > 0 && smp_cluster_gpus(job->cluster) > 0;
}

static smp_status range_fail(const smp_job *job, smp_errors *errors)
{
    return smp_fail(errors, SMP_INPUT, NULL,
                    "settings: degrees, micro_batch, loss_chunks, activation_loading_horizon "
                    "and the number of GPUs (%u) must be 1 or more",
                    smp_cluster_gpus(job->cluster));
}

bool smp_job_try(smp_job *job)
{
    smp_resolving st = {.job = *job};

    if (!range_holds(job)) {
        return false;
    }
    smp_act(&st, &job->settings);
    for (int t = 0; t < (int)TABLES; t++) {
        if (next_broken(&st, tables[t]) != NULL) {
            return false;
        }
    }
    *job = st.job;
    return true;
}

smp_status smp_job_resolve(smp_job *job, smp_errors *errors)
{
    smp_resolving st = {.job = *job};
    smp_status status = SMP_OK;

    if (!range_holds(job)) {
        return range_fail(job, errors);
    }
    smp_act(&st, &job->settings);
    for (int t = 0; t < (int)TABLES; t++) {
        const smp_rule *rule = tables[t];
        while ((rule = next_broken(&st, rule)) != NULL) {
            report(&st, job, rule++, errors);
            status = SMP_INPUT;
        }
    }
    if (status == SMP_OK) {
        warn(&st, &job->settings, errors);
        *job = st.job;
    }
    return status;
}
