/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The result of a search for people at 80 columns, and as JSON.
 *
 * Nothing here depends on the clock unless the options ask for timing, so the same search
 * prints the same bytes.
 */
#include "config.h"

#include "plan/front.h"
#include "plan/plan_text.h"

#include "base/numeric.h"
#include "mesh/settings.h"
#include "model/model.h"
#include "sim/peaks.h"
#include "sim/sim.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Keys that a plan decides, in the order in which people read them. */
static const char *const shown_keys[] = {
    "tensor_parallel_degree", "expert_parallel_degree", "expert_layout", "rank_order",
    "moe_all_to_all_dispatcher", "sequence_parallel", "hybrid_shard_degree",
    "reshard_after_forward", "micro_batch", "accumulation", "checkpointing", "offload",
    "offload_layers", "activation_loading_horizon", "loss_chunks", "prefetch",
};
enum {
    N_SHOWN = sizeof shown_keys / sizeof shown_keys[0],
    COLUMNS = SMP_PLAN_COLUMNS,
    VALUE_BYTES = 96
};

/* ------------------------------------------------------------------ settings */

/* A key matters to people only where it acts. */
static bool acts(const smp_job *job, const char *key)
{
    const smp_settings *s = &job->settings;
    if (strcmp(key, "activation_loading_horizon") == 0) {
        return s->offload && s->sm_activation_offloading;
    }
    if (strcmp(key, "offload_layers") == 0) {
        return s->offload && s->offload_layers > 0;
    }
    if (strcmp(key, "expert_parallel_degree") == 0 || strcmp(key, "expert_layout") == 0 ||
        strcmp(key, "rank_order") == 0 || strcmp(key, "moe_all_to_all_dispatcher") == 0) {
        return s->expert_parallel_degree > 1;
    }
    if (strcmp(key, "sequence_parallel") == 0) {
        return s->tensor_parallel_degree > 1;
    }
    if (strcmp(key, "accumulation") == 0) {
        return job->micro_batches > 1;
    }
    if (strcmp(key, "reshard_after_forward") == 0 || strcmp(key, "prefetch") == 0) {
        return s->sharding == SMP_SHARDING_FULL &&
               (s->hybrid_shard_degree > 1 || s->precision != s->master);
    }
    return true;
}

static void value_of(const smp_job *job, const char *key, char value[VALUE_BYTES])
{
    if (!acts(job, key) || !smp_settings_get(&job->settings, key, value, VALUE_BYTES)) {
        snprintf(value, VALUE_BYTES, "-");
    }
}

/* Whether all of n configurations have the same value of a key. */
static bool is_common(const smp_found *const *found, uint32_t n, const char *key)
{
    char first[VALUE_BYTES];
    value_of(&found[0]->job, key, first);
    for (uint32_t i = 1; i < n; i++) {
        char value[VALUE_BYTES];
        value_of(&found[i]->job, key, value);
        if (strcmp(first, value) != 0) {
            return false;
        }
    }
    return true;
}

/* Words on lines of at most 80 columns; `used` is the column reached. */
static void put_word(FILE *stream, const char *word, size_t indent, size_t *used)
{
    const size_t n = strlen(word);
    if (*used > indent && *used + 2 + n > COLUMNS) {
        fprintf(stream, "\n%*s", (int)indent, "");
        *used = indent;
    }
    fprintf(stream, "%s%s", *used > indent ? "  " : "", word);
    *used += n + (*used > indent ? 2 : 0);
}

void smp_put_sentence(FILE *stream, const char *sentence)
{
    enum { FIRST = 2, LATER = 4 };
    size_t used = FIRST;
    fprintf(stream, "%*s", FIRST, "");
    for (const char *word = sentence; *word;) {
        const size_t n = strcspn(word, " ");
        if (word > sentence && used + 1 + n > COLUMNS) {
            fprintf(stream, "\n%*s", LATER, "");
            used = LATER;
        } else if (word > sentence) {
            fputc(' ', stream);
            used++;
        }
        fprintf(stream, "%.*s", (int)n, word);
        used += n;
        word += n + (word[n] == ' ');
    }
    fputc('\n', stream);
}

/* The settings of a job that the n configurations have in common, or not; all where n is 0. */
static void put_some(const smp_found *const *found, uint32_t n, const smp_job *job, bool common,
                     const char *head, FILE *stream)
{
    const size_t indent = strlen(head);
    size_t used = indent;
    fputs(head, stream);
    for (size_t i = 0; i < N_SHOWN; i++) {
        char value[VALUE_BYTES];
        char word[VALUE_BYTES + 64];
        value_of(job, shown_keys[i], value);
        if (strcmp(value, "-") == 0 ||
            (n > 0 && is_common(found, n, shown_keys[i]) != common)) {
            continue;
        }
        snprintf(word, sizeof word, "%s %s", shown_keys[i], value);
        put_word(stream, word, indent, &used);
    }
    fputc('\n', stream);
}

void smp_put_job_settings(const smp_job *job, const char *head, FILE *stream)
{
    put_some(NULL, 0, job, false, head, stream);
}

void smp_put_settings(const smp_found *const *found, const uint32_t *numbers, uint32_t n,
                      FILE *stream)
{
    if (n == 1) {
        smp_put_job_settings(&found[0]->job, " 1  ", stream);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        char head[16];
        snprintf(head, sizeof head, "%2u  ", numbers[i]);
        put_some(found, n, &found[i]->job, false, head, stream);
    }
    put_some(found, n, &found[0]->job, true, "all ", stream);
}

/* -------------------------------------------------------------------- people */

void smp_put_stack(const smp_settings *settings, FILE *stream)
{
    char stack[32];
    if (settings->stack != SMP_STACK_NATIVE &&
        smp_settings_get(settings, "stack", stack, sizeof stack)) {
        fprintf(stream, "run by %s%s\n", stack, settings->compile ? ", compiled" : "");
    }
}

static void put_job(const smp_plan *plan, FILE *stream)
{
    const smp_job *job = &plan->job;
    const smp_cluster *cluster = job->cluster;
    fprintf(stream, "%s on %s: %u GPU%s (%s), %u node%s\n", job->model->name, cluster->name,
            cluster->gpus, cluster->gpus == 1 ? "" : "s", cluster->gpu,
            cluster->nodes, cluster->nodes == 1 ? "" : "s");
    fprintf(stream,
            "sequences of %" PRIu64 " tokens, %" PRIu64 " per step; margin %.3g %% of memory\n",
            job->batch.seq_len, job->batch.global_batch, 100 * plan->options.margin_frac);
    smp_put_stack(&job->settings, stream);
}

static void put_search(const smp_plan *plan, FILE *stream)
{
    const smp_search_info *info = &plan->info;
    fprintf(stream, "%" PRIu64 " configurations: %" PRIu64 " %s, %" PRIu64 " simulated; ",
            info->enumerated, info->pruned, info->exhausted ? "pruned" : "pruned or left",
            info->evaluated);
    if (info->exhausted && info->gap <= 0) {
        fputs("gap 0: nothing is better", stream);
    } else {
        fprintf(stream, "gap %.2f %%%s", 100 * info->gap, info->exhausted ? "" : " (deadline)");
    }
    if (plan->options.timing) {
        fprintf(stream, "; %s", smp_show_seconds(info->seconds));
    }
    fputs("\n\n", stream);
}

static void put_cost(double cost, FILE *stream)
{
    if (cost > 0) {
        fprintf(stream, "  %13.2f", cost);
    } else {
        fprintf(stream, "  %13s", "-");
    }
}

static void put_table(const smp_plan *plan, const uint32_t *first, FILE *stream)
{
    const char *currency = plan->job.cluster->currency;
    char price[32];
    snprintf(price, sizeof price, "%s/1e9 tok", currency ? currency : "cost");
    fprintf(stream, " #   GPUs   step time  tok/s/GPU    MFU        peak      margin  %13s\n",
            price);
    for (uint32_t i = 0; i < plan->n_found; i++) {
        const smp_report *r = &plan->found[i].report;
        if (first[i] != i) {
            continue;
        }
        fprintf(stream, "%2u  %5u  %10s  %9.1f  %4.1f%%  %10s  %10s", i + 1,
                plan->found[i].job.world, smp_show_seconds(r->step_time_s),
                r->tokens_per_s_per_gpu, 100 * r->mfu, smp_show_bytes(r->memory.peak_bytes),
                smp_show_signed_bytes(r->memory.margin_bytes));
        put_cost(r->cost_per_billion_tokens, stream);
        fputc('\n', stream);
        smp_put_ties(plan, first, i, stream);
    }
    fputc('\n', stream);
}

/* "+5.61 GiB" */
static const char *signed_bytes(int64_t bytes, char text[24])
{
    snprintf(text, 24, "%s%s", bytes < 0 ? "" : "+", smp_show_signed_bytes(bytes));
    return text;
}

/* Whether --fine would search values of this setting that were not searched. */
static bool may_be_finer(const smp_plan *plan, const char *key)
{
    return !plan->options.fine && !smp_settings_given(&plan->job.settings, key) &&
           (strcmp(key, "checkpointing") == 0 || strcmp(key, "offload_layers") == 0 ||
            strcmp(key, "loss_chunks") == 0);
}

void smp_put_why(const smp_plan *plan, FILE *stream)
{
    bool outside = false;
    bool finer = false;
    if (plan->n_neighbour == 0) {
        return;
    }
    fprintf(stream, "\nWhy not, for plan 1: one setting changed, the others kept\n"
            " %-32s %8s %7s %10s  %s\n", "setting", "step", "", "peak", "mostly");
    for (uint32_t i = 0; i < plan->n_neighbour; i++) {
        const smp_neighbour *n = &plan->neighbours[i];
        char name[128];
        char bytes[24];
        char time[24];
        snprintf(name, sizeof name, "%s %s", n->key, n->value);
        snprintf(time, sizeof time, "%c%s", n->more_ps < 0 ? '-' : '+',
                 smp_show_seconds(fabs(smp_s_from_ps(n->more_ps))));
        fprintf(stream, "%c%-32s", n->outside ? '*' : ' ', name);
        if (strlen(name) > 32) {
            fprintf(stream, "\n%33s", "");
        }
        fprintf(stream, " %8s %+6.1f%% %10s  %s\n", time,
                100 * (double)n->more_ps / (double)plan->found[0].report.step_ps,
                signed_bytes(n->more_bytes, bytes), n->limit);
        if (n->with) {
            fprintf(stream, "   with %s\n", n->with);
        }
        outside = outside || n->outside;
        finer = finer || (n->outside && may_be_finer(plan, n->key));
    }
    if (outside) {
        fputs(!plan->info.exhausted ? "* faster, but not reached by the deadline\n"
              : finer ? "* faster, but outside the space that is searched; try --fine\n"
                      : "* faster, but outside the space that is searched\n", stream);
    }
    if (plan->experts) {
        smp_put_sentence(stream, plan->experts);
    }
}

static void put_plans(const smp_plan *plan, FILE *stream)
{
    uint32_t *first = SMP_ARENA_ARRAY(plan->arena, plan->n_found, uint32_t);
    uint32_t *numbers = SMP_ARENA_ARRAY(plan->arena, plan->n_found, uint32_t);
    const smp_found **found = SMP_ARENA_ARRAY(plan->arena, plan->n_found, const smp_found *);
    uint32_t n = 0;
    smp_plan_find_ties(plan, first);
    put_table(plan, first, stream);
    for (uint32_t i = 0; i < plan->n_found; i++) {
        if (first[i] == i) {
            found[n] = &plan->found[i];
            numbers[n++] = i + 1;
        }
    }
    smp_put_settings(found, numbers, n, stream);
    smp_put_front(&plan->front, plan->job.cluster->currency, false, stream);
    smp_put_why(plan, stream);
}

/* The words of a name from column 47 on, in lines of at most 80. */
static void put_front_name(const char *name, FILE *stream)
{
    enum { INDENT = 46, WIDTH = 80 };
    size_t column = INDENT;
    fputc(' ', stream);
    while (*name) {
        const size_t n = strcspn(name, " ");
        if (column + 1 + n > WIDTH) {
            fprintf(stream, "\n%*s", INDENT, "");
            column = INDENT;
        }
        fprintf(stream, " %.*s", (int)n, name);
        column += 1 + n;
        name += n + (name[n] == ' ' ? 1 : 0);
    }
    fputc('\n', stream);
}

void smp_put_front(const smp_front *front, const char *currency, bool run, FILE *stream)
{
    size_t picked[SMP_FRONT_PICKED];
    const size_t n = smp_front_pick(front, picked);
    char price[32];
    bool clusters = false; /* of more than one cluster */
    if (front->n == 0) {
        return;
    }
    for (size_t i = 1; i < front->n; i++) {
        clusters = clusters || strcmp(front->at[i].found.job.cluster->name,
                                      front->at[0].found.job.cluster->name) != 0;
    }
    snprintf(price, sizeof price, run ? "%s" : "%s/1e9 tok", currency ? currency : "cost");
    fprintf(stream, "\nFront: nothing else is as good in time, memory and cost (%zu of %zu)\n"
            " # %5s %10s %10s %13s  %s\n", n, front->n, "GPUs", run ? "run" : "step", "peak",
            price, "settings");
    for (size_t i = 0; i < n; i++) {
        const smp_front_point *p = &front->at[picked[i]];
        const double cost = run ? p->cost : p->found.report.cost_per_billion_tokens;
        char name[SMP_FRONT_NAME];
        char money[24] = "-";
        if (cost > 0 && isfinite(cost) && currency) {
            snprintf(money, sizeof money, "%.2f", cost);
        }
        fprintf(stream, " %c %5u %10s %10s %13s", (char)('a' + i), p->found.job.world,
                smp_show_seconds(p->time_s), smp_show_bytes(p->peak_bytes), money);
        put_front_name(smp_front_name(&p->found.job, name), stream);
        if (clusters) {
            fprintf(stream, "%47s%s\n", "", p->found.job.cluster->name);
        }
    }
}

void smp_out_front(smp_json_out *out, const smp_front *front, bool run)
{
    smp_out_array(out, "front");
    for (size_t i = 0; i < front->n; i++) {
        const smp_front_point *p = &front->at[i];
        char name[SMP_FRONT_NAME];
        smp_out_object(out, NULL);
        smp_out_string(out, "name", smp_front_name(&p->found.job, name));
        smp_out_string(out, "cluster", p->found.job.cluster->name);
        smp_out_u64(out, "gpus", p->found.job.world);
        smp_out_double(out, "step_time_s", p->found.report.step_time_s);
        smp_out_u64(out, "peak_bytes", p->peak_bytes);
        smp_out_double(out, "cost_per_billion_tokens",
                       p->found.report.cost_per_billion_tokens > 0
                           ? p->found.report.cost_per_billion_tokens : (double)NAN);
        if (run) {
            smp_out_double(out, "days", p->time_s / 86400);
            smp_out_double(out, "cost", p->cost);
        }
        smp_out_settings(out, "settings", &p->found.job.settings);
        smp_out_end_object(out);
    }
    smp_out_end_array(out);
}

static void put_nearest(const smp_plan *plan, FILE *stream)
{
    const smp_memory *memory = &plan->nearest.report.memory;
    fprintf(stream, "Nothing fits. The nearest configuration lacks %s (%" PRIu64 " bytes):\n",
            smp_show_bytes(plan->nearest_excess_bytes), plan->nearest_excess_bytes);
    smp_put_job_settings(&plan->nearest.job, "    ", stream);
    fprintf(stream, "    peak %s of %s, of which %.3g %% must stay free\n",
            smp_show_bytes(memory->peak_bytes), smp_show_bytes(memory->capacity_bytes),
            100 * plan->options.margin_frac);
    const smp_moment moment = smp_peaks_most(memory, true);
    if (memory->peaks[moment].host_bytes_per_node > memory->host_capacity_bytes) {
        fprintf(stream, "    host memory %s per node of %s (%s)\n",
                smp_show_bytes(memory->peaks[moment].host_bytes_per_node),
                smp_show_bytes(memory->host_capacity_bytes), smp_moment_texts[moment].title);
    }
    if (plan->fitting_gpus > 0) {
        fprintf(stream, "The smallest number of such GPUs that fits is %u.\n",
                plan->fitting_gpus);
    } else {
        fprintf(stream, "No number of such GPUs up to %u fits; more would get no part of "
                "a sequence.\n", plan->largest_gpus_tried);
    }
}

/* ---------------------------------------------------------------------- JSON */

void smp_out_found(smp_json_out *out, const char *key, const smp_found *found)
{
    smp_out_object(out, key);
    smp_out_u64(out, "gpus", found->job.world);
    smp_out_settings(out, "settings", &found->job.settings);
    smp_out_u64(out, "data_ranks", found->job.data_ranks);
    smp_out_u64(out, "micro_batches", found->job.micro_batches);
    smp_out_u64(out, "replicas", found->job.replicas);
    smp_out_report(out, &found->job, &found->report);
    smp_out_end_object(out);
}

const char *smp_objective_name(smp_objective objective)
{
    switch (objective) {
    case SMP_OBJECTIVE_TIME:
        return "time";
    case SMP_OBJECTIVE_COST:
        return "cost";
    case SMP_OBJECTIVE_GPUS:
        return "gpus";
    }
    return "";
}

void smp_out_search(smp_json_out *out, const smp_search_info *info, bool timing)
{
    smp_out_u64(out, "enumerated", info->enumerated);
    smp_out_u64(out, "pruned", info->pruned);
    smp_out_u64(out, "evaluated", info->evaluated);
    smp_out_bool(out, "exhausted", info->exhausted);
    smp_out_double(out, "gap", info->gap);
    /* by the clock, so only where it is asked for: else the same search, the same bytes */
    smp_out_double(out, "seconds", timing ? info->seconds : (double)NAN);
}

static void out_neighbour(smp_json_out *out, const smp_plan *plan, const smp_neighbour *n)
{
    smp_out_object(out, NULL);
    smp_out_string(out, "setting", n->key);
    smp_out_string(out, "value", n->value);
    smp_out_string(out, "with", n->with);
    smp_out_double(out, "step_time_change_s", smp_s_from_ps(n->more_ps));
    smp_out_double(out, "step_time_change_frac",
                   (double)n->more_ps / (double)plan->found[0].report.step_ps);
    smp_out_i64(out, "peak_change_bytes", n->more_bytes);
    smp_out_bool(out, "fits", n->excess_bytes == 0);
    smp_out_u64(out, "shortfall_bytes", n->excess_bytes);
    smp_out_bool(out, "in_space", !n->outside);
    smp_out_string(out, "limit", n->limit);
    smp_out_string(out, "why", n->why);
    smp_out_end_object(out);
}

void smp_out_why(smp_json_out *out, const smp_plan *plan)
{
    smp_out_array(out, "why");
    for (uint32_t i = 0; i < plan->n_neighbour; i++) {
        smp_out_string(out, NULL, plan->neighbours[i].why);
    }
    if (plan->experts) {
        smp_out_string(out, NULL, plan->experts);
    }
    smp_out_end_array(out);
    smp_out_array(out, "sensitivity");
    for (uint32_t i = 0; i < plan->n_neighbour; i++) {
        out_neighbour(out, plan, &plan->neighbours[i]);
    }
    smp_out_end_array(out);
}

double smp_exposed_share(const smp_found *found)
{
    const smp_time_parts *t = &found->report.time;
    const int64_t exposed_ps = t->shard_ps + t->replica_ps + t->tensor_ps + t->expert_ps +
                               t->world_ps + t->offload_ps;
    return (double)exposed_ps / (double)found->report.step_ps;
}

static void out_nearest(smp_json_out *out, const smp_plan *plan)
{
    smp_out_object(out, "infeasible");
    smp_out_u64(out, "shortfall_bytes", plan->nearest_excess_bytes);
    if (plan->fitting_gpus > 0) {
        smp_out_u64(out, "fitting_gpus", plan->fitting_gpus);
    } else {
        smp_out_string(out, "fitting_gpus", NULL);
    }
    smp_out_found(out, "nearest", &plan->nearest);
    smp_out_end_object(out);
}

static void print_json(const smp_plan *plan, FILE *stream)
{
    smp_json_out out = {0};
    smp_out_object(&out, NULL);
    smp_out_string(&out, "model", plan->job.model->name);
    smp_out_string(&out, "cluster", plan->job.cluster->name);
    smp_out_u64(&out, "gpus", plan->job.cluster->gpus);
    smp_out_u64(&out, "seq_len", plan->job.batch.seq_len);
    smp_out_u64(&out, "global_batch", plan->job.batch.global_batch);
    smp_out_string(&out, "objective", smp_objective_name(plan->options.objective));
    smp_out_double(&out, "margin_frac", plan->options.margin_frac);
    smp_out_array(&out, "plans");
    for (uint32_t i = 0; i < plan->n_found; i++) {
        smp_out_found(&out, NULL, &plan->found[i]);
    }
    smp_out_end_array(&out);
    smp_out_why(&out, plan);
    if (plan->options.front) {
        smp_out_front(&out, &plan->front, false);
    }
    if (plan->has_nearest) {
        out_nearest(&out, plan);
    }
    smp_out_object(&out, "search");
    smp_out_search(&out, &plan->info, plan->options.timing);
    smp_out_end_object(&out);
    smp_out_end_object(&out);
    fwrite(out.text.data, 1, out.text.length, stream);
    smp_text_free(&out.text);
}

smp_status smp_plan_print(const smp_plan *plan, bool json, FILE *stream, smp_errors *errors)
{
    if (json) {
        print_json(plan, stream);
    } else {
        put_job(plan, stream);
        put_search(plan, stream);
        if (plan->n_found > 0) {
            put_plans(plan, stream);
        } else {
            put_nearest(plan, stream);
        }
    }
    return smp_stream_check(stream, "standard output", errors);
}
