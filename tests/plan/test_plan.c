/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans and plan files: what fits and what does not, the same output twice, files that come
 * back as they were and files that must be refused.
 */
#include "config.h"

#include "tests/plan/small.h"

#include "plan/plan_text.h"

#include <stdio.h>

static void create(small *s, const char *model, const char *cluster, uint32_t gpus,
                   uint64_t seq_len, uint64_t global_batch)
{
    *s = (small){.errors = smp_errors_create()};
    check_ok(smp_model_read(check_source(model), s->errors, &s->model), s->errors);
    check_ok(smp_cluster_read(cluster, s->errors, &s->cluster), s->errors);
    check_ok(smp_cluster_set_gpus(s->cluster, gpus, s->errors), s->errors);
    check_ok(smp_profile_read_for(s->cluster, s->errors, &s->profile), s->errors);
    s->job = (smp_job){.model = s->model, .cluster = s->cluster, .profile = s->profile};
    s->job.batch = (smp_batch){.seq_len = seq_len, .global_batch = global_batch};
    smp_settings_init(&s->job.settings);
}

static smp_status run(small *s, smp_objective objective, smp_plan **plan_p)
{
    smp_plan_options options;
    smp_plan_options_init(&options);
    options.objective = objective;
    return smp_plan_search(&s->job, &options, s->errors, plan_p);
}

/* What a plan prints; heap memory. */
static char *printed(const smp_plan *plan, bool json, smp_errors *errors)
{
    FILE *stream = tmpfile();
    assert_non_null(stream);
    check_ok(smp_plan_print(plan, json, stream, errors), errors);
    const long n = ftell(stream);
    assert_true(n > 0);
    char *text = smp_heap_alloc((size_t)n + 1, 1);
    rewind(stream);
    assert_int_equal(fread(text, 1, (size_t)n, stream), n);
    (void)fclose(stream);
    return text;
}

static void check_columns(const char *text)
{
    size_t column = 0;
    for (const char *c = text; *c; c++) {
        column = *c == '\n' ? 0 : column + 1;
        assert_true(column <= 80);
    }
}

static void test_gpt2_fits(void **state)
{
    (void)state;
    small s;
    smp_plan *plan = NULL;
    create(&s, "configs/models/gpt2.json", "dgx-h100", 1, 1024, 32);
    check_ok(run(&s, SMP_OBJECTIVE_TIME, &plan), s.errors);
    assert_true(smp_plan_count(plan) == 5);
    const smp_report *r = smp_plan_report(plan, 0);
    assert_true(r->memory.fits);
    assert_true((double)r->memory.peak_bytes <= 0.97 * (double)r->memory.capacity_bytes);
    for (size_t i = 1; i < 5; i++) {
        assert_true(smp_plan_report(plan, i)->step_ps >= r->step_ps);
    }
    char *text = printed(plan, false, s.errors);
    check_contains(text, "gap 0");
    check_contains(text, "Why not, for plan 1:");
    check_contains(text, "\n checkpointing full ");
    check_contains(text, "  compute +");
    check_columns(text);
    free(text);
    smp_plan_destroy(plan);
    small_destroy(&s);
}

/* 16 bytes of state for each of 69e9 parameters are 1.1 TB, on 8 x 80 GB. */
static void test_70b_does_not_fit(void **state)
{
    (void)state;
    small s;
    smp_plan *plan = NULL;
    create(&s, "configs/models/Llama-2-70B.json", "dgx-h100", 8, 4096, 64);
    check_fails(run(&s, SMP_OBJECTIVE_TIME, &plan), SMP_INFEASIBLE, s.errors, "lacks");
    check_u64(smp_plan_count(plan), 0);
    char *text = printed(plan, false, s.errors);
    check_contains(text, "Nothing fits.");
    check_columns(text);
    free(text);
    smp_plan_destroy(plan);
    small_destroy(&s);
}

/* 405B on one node: exit 3, the bytes, and a count of GPUs that fits and is the smallest. */
static void test_405b_on_one_node(void **state)
{
    (void)state;
    small s;
    smp_plan *plan = NULL;
    create(&s, "configs/models/Llama-3.1-405B.json", "p5.48xlarge", 8, 8192, 64);
    check_fails(run(&s, SMP_OBJECTIVE_TIME, &plan), SMP_INFEASIBLE, s.errors, "GPUs would fit");
    assert_true(plan->has_nearest && plan->nearest_excess_bytes > 0);
    /* the state alone: 16 x 405.85e9 / 8 bytes */
    assert_true(plan->nearest_excess_bytes > 700000000000);
    check_u64(plan->nearest_excess_bytes,
              smp_report_excess(&plan->nearest.report, plan->options.margin_frac));
    assert_true(plan->fitting_gpus % 8 == 0 && plan->fitting_gpus > 80);
    char *text = printed(plan, true, s.errors);
    check_contains(text, "\"shortfall_bytes\": ");
    check_contains(text, "\"plans\": []");
    free(text);
    const uint32_t fitting = plan->fitting_gpus;
    smp_plan_destroy(plan);
    check_ok(smp_cluster_set_gpus(s.cluster, fitting, s.errors), s.errors);
    small_pin(&s, "micro_batch=1");
    small_pin(&s, "checkpointing=full");
    check_ok(run(&s, SMP_OBJECTIVE_TIME, &plan), s.errors);
    assert_true(smp_plan_count(plan) > 0);
    smp_plan_destroy(plan);
    small_destroy(&s);
}

static void test_pins(void **state)
{
    (void)state;
    small s;
    smp_plan *plan = NULL;
    create(&s, "configs/models/gpt2.json", "dgx-h100", 4, 512, 32);
    small_pin(&s, "tensor_parallel_degree=2");
    small_pin(&s, "checkpointing=first:3");
    small_pin(&s, "offload=true");
    check_ok(run(&s, SMP_OBJECTIVE_TIME, &plan), s.errors);
    for (size_t i = 0; i < smp_plan_count(plan); i++) {
        const smp_settings *set = &smp_plan_job(plan, i)->settings;
        assert_int_equal(set->tensor_parallel_degree, 2);
        assert_int_equal(set->checkpointing, SMP_CHECKPOINTING_FIRST);
        assert_int_equal(set->checkpointing_layers, 3);
        assert_true(set->offload);
    }
    smp_plan_destroy(plan);
    small_destroy(&s);
}

/* Pins that no configuration can keep are an input error that names the rule. */
static void test_impossible_pins(void **state)
{
    (void)state;
    small s;
    smp_plan *plan = NULL;
    create(&s, "configs/models/gpt2.json", "dgx-h100", 4, 512, 32);
    small_pin(&s, "tensor_parallel_degree=5");
    check_fails(run(&s, SMP_OBJECTIVE_TIME, &plan), SMP_INPUT, s.errors,
                "tensor_parallel_degree");
    assert_null(plan);
    small_destroy(&s);
}

/* GPT-2 needs one GPU; cost prefers fewer GPUs because small groups waste less. */
static void test_objectives(void **state)
{
    (void)state;
    small s;
    smp_plan *plan = NULL;
    create(&s, "configs/models/gpt2.json", "p5.48xlarge", 4, 512, 32);
    small_pin(&s, "checkpointing=none");
    small_pin(&s, "loss_chunks=1");
    check_ok(run(&s, SMP_OBJECTIVE_GPUS, &plan), s.errors);
    check_u64(smp_plan_job(plan, 0)->world, 1);
    smp_plan_destroy(plan);
    check_ok(run(&s, SMP_OBJECTIVE_COST, &plan), s.errors);
    for (size_t i = 1; i < smp_plan_count(plan); i++) {
        assert_true(smp_plan_report(plan, i - 1)->cost_per_billion_tokens <=
                    smp_plan_report(plan, i)->cost_per_billion_tokens * (1 + 1e-9));
    }
    smp_plan_destroy(plan);
    small_destroy(&s);
}

static void test_same_twice(void **state)
{
    (void)state;
    for (int json = 0; json < 2; json++) {
        char *text[2];
        for (int i = 0; i < 2; i++) {
            small s;
            smp_plan *plan = NULL;
            create(&s, "configs/models/gpt2.json", "dgx-h100", 2, 512, 16);
            check_ok(run(&s, SMP_OBJECTIVE_TIME, &plan), s.errors);
            text[i] = printed(plan, json == 1, s.errors);
            smp_plan_destroy(plan);
            small_destroy(&s);
        }
        check_text(text[0], text[1]);
        free(text[0]);
        free(text[1]);
    }
}

/* ---------------------------------------------------------------- plan files */

static char *read_file(const char *path, size_t *n_p)
{
    FILE *stream = fopen(path, "rb");
    assert_non_null(stream);
    char *text = smp_heap_alloc(1 << 20, 1);
    *n_p = fread(text, 1, (1 << 20) - 1, stream);
    (void)fclose(stream);
    return text;
}

/* The plan file of a small search, as text. */
static char *plan_text(small *s, size_t *n_p)
{
    smp_plan *plan = NULL;
    create(s, "configs/models/gpt2.json", "p5.48xlarge", 4, 512, 32);
    small_pin(s, "checkpointing=first:3");
    check_ok(run(s, SMP_OBJECTIVE_TIME, &plan), s->errors);
    const char *path = check_file("", 0);
    check_ok(smp_plan_write(smp_plan_job(plan, 0), smp_plan_report(plan, 0), path, s->errors),
             s->errors);
    smp_plan_destroy(plan);
    return read_file(path, n_p);
}

static void test_round_trip(void **state)
{
    (void)state;
    small s;
    size_t n = 0;
    char *text = plan_text(&s, &n);
    smp_planned *planned = NULL;
    check_ok(smp_plan_read(check_file(text, n), s.errors, &planned), s.errors);
    check_text(smp_model_name(planned->model), "gpt2");
    check_u64(smp_cluster_gpus(planned->cluster), 4);
    check_u64(smp_model_parameters(planned->model), smp_model_parameters(s.model));
    assert_true(planned->has_predicted);
    /* the file says enough to simulate the same step */
    smp_job job = planned->job;
    smp_report report;
    check_ok(smp_job_resolve(&job, s.errors), s.errors);
    check_ok(smp_evaluate_fully(&job, s.errors, &report), s.errors);
    check_i64(report.step_ps, planned->predicted.step_ps);
    check_u64(report.memory.peak_bytes, planned->predicted.memory.peak_bytes);
    /* and comes back byte for byte */
    const char *path = check_file("", 0);
    check_ok(smp_plan_write(&planned->job, &planned->predicted, path, s.errors), s.errors);
    size_t n_again = 0;
    char *again = read_file(path, &n_again);
    check_text(again, text);
    free(again);
    free(text);
    smp_planned_destroy(planned);
    small_destroy(&s);
}

/* Replaces one part of the text and expects the reader to refuse it with `message`. */
static void check_tampered(const char *text, const char *old, const char *new_part,
                           const char *message, smp_errors *errors)
{
    smp_planned *planned = NULL;
    const char *at = strstr(text, old);
    assert_non_null(at);
    char *changed = smp_heap_alloc(strlen(text) + strlen(new_part) + 1, 1);
    const size_t before = (size_t)(at - text);
    memcpy(changed, text, before);
    memcpy(changed + before, new_part, strlen(new_part));
    memcpy(changed + before + strlen(new_part), at + strlen(old), strlen(at + strlen(old)) + 1);
    const char *path = check_file(changed, strlen(changed));
    check_fails(smp_plan_read(path, errors, &planned), SMP_INPUT, errors, message);
    assert_null(planned);
    free(changed);
}

/* A plan from before there was a setting: the line of the key is not there. */
static void test_older(void **state)
{
    (void)state;
    small s;
    size_t n = 0;
    char *text = plan_text(&s, &n);
    smp_planned *planned = NULL;
    char *line = strstr(text, "\"offload_layers\"");
    assert_non_null(line);
    const char *next = strchr(line, '\n') + 1;
    memmove(line, next, strlen(next) + 1);
    check_ok(smp_plan_read(check_file(text, strlen(text)), s.errors, &planned), s.errors);
    smp_job job = planned->job;
    smp_report report;
    check_ok(smp_job_resolve(&job, s.errors), s.errors);
    check_ok(smp_evaluate_fully(&job, s.errors, &report), s.errors);
    check_i64(report.step_ps, planned->predicted.step_ps);
    free(text);
    smp_planned_destroy(planned);
    small_destroy(&s);
}

static void test_tampered(void **state)
{
    (void)state;
    small s;
    size_t n = 0;
    char *text = plan_text(&s, &n);
    smp_errors *errors = s.errors;
    check_tampered(text, "\"smp_plan\": 1", "\"smp_plan\": 2", "version", errors);
    check_tampered(text, "\"smp_plan\": 1,", "", "smp_plan", errors);
    check_tampered(text, "\"gpus\": 4", "\"gpus\": 0", "gpus", errors);
    check_tampered(text, "\"gpus\": 4", "\"gpus\": 7", "$.settings", errors);
    check_tampered(text, "\"seq_len\": 512", "\"seq_len\": \"512\"", "$.batch.seq_len", errors);
    check_tampered(text, "\"micro_batch\"", "\"micro_bath\"", "micro_b", errors);
    check_tampered(text, "\"first:3\"", "\"first:0\"", "checkpointing", errors);
    check_tampered(text, "\"first:3\"", "\"first:99\"", "checkpointing", errors);
    check_tampered(text, "\"n_layer\": 12", "\"n_layer\": -1", "n_layer", errors);
    check_tampered(text, "\"fits\": true", "\"fits\": 1", "$.predicted.fits", errors);
    check_tampered(text, "\"predicted\"", "\"predict\"", "predict", errors);
    free(text);
    small_destroy(&s);
}

/* Messages about the inner documents name the line of the plan file. */
static void test_place(void **state)
{
    (void)state;
    small s;
    size_t n = 0;
    char *text = plan_text(&s, &n);
    unsigned line = 1;
    char *at = strstr(text, "\"n_head\": 12");
    assert_non_null(at);
    for (const char *c = text; c < at; c++) {
        line += *c == '\n';
    }
    at[strlen("\"n_head\": ")] = '0'; /* 02: not JSON */
    char expected[64];
    snprintf(expected, sizeof expected, ":%u:", line);
    smp_planned *planned = NULL;
    check_fails(smp_plan_read(check_file(text, n), s.errors, &planned), SMP_INPUT, s.errors,
                expected);
    at[strlen("\"n_head\": ")] = '-'; /* -2: JSON, but no number of heads */
    check_fails(smp_plan_read(check_file(text, n), s.errors, &planned), SMP_INPUT, s.errors,
                expected);
    free(text);
    small_destroy(&s);
}

/* No prefix of a plan file is one. */
static void test_truncated(void **state)
{
    (void)state;
    small s;
    size_t n = 0;
    char *text = plan_text(&s, &n);
    for (size_t cut = 0; cut < n - 2; cut += 1 + cut / 16) {
        smp_planned *planned = NULL;
        assert_int_equal(smp_plan_read(check_file(text, cut), s.errors, &planned), SMP_INPUT);
        assert_true(smp_errors_count(s.errors) > 0);
        assert_null(planned);
        smp_errors_clear(s.errors);
    }
    free(text);
    small_destroy(&s);
}

/* Exported settings, read back as pins, leave one configuration: the plan. */
static void test_export(void **state)
{
    (void)state;
    small s;
    smp_plan *plan = NULL;
    create(&s, "configs/models/gpt2.json", "dgx-h100", 8, 512, 32);
    check_ok(run(&s, SMP_OBJECTIVE_TIME, &plan), s.errors);
    for (size_t i = 0; i < smp_plan_count(plan); i++) {
        const char *path = check_file("", 0);
        smp_plan *again = NULL;
        check_ok(smp_settings_export(&smp_plan_job(plan, i)->settings, path, s.errors),
                 s.errors);
        smp_settings_init(&s.job.settings);
        check_ok(smp_settings_read(&s.job.settings, path, s.errors), s.errors);
        check_ok(run(&s, SMP_OBJECTIVE_TIME, &again), s.errors);
        check_u64(smp_plan_search_info(again)->enumerated, 1);
        check_u64(smp_plan_count(again), 1);
        check_i64(smp_plan_report(again, 0)->step_ps, smp_plan_report(plan, i)->step_ps);
        check_u64(smp_plan_report(again, 0)->memory.peak_bytes,
                  smp_plan_report(plan, i)->memory.peak_bytes);
        smp_plan_destroy(again);
    }
    smp_plan_destroy(plan);
    small_destroy(&s);
}

/* The data of the plot are written whether or not gnuplot is there. */
static void test_pareto(void **state)
{
    (void)state;
    small s;
    smp_plan *plan = NULL;
    char path[64];
    char data[80];
    create(&s, "configs/models/gpt2.json", "dgx-h100", 2, 512, 16);
    check_ok(run(&s, SMP_OBJECTIVE_TIME, &plan), s.errors);
    check_fails(smp_plan_pareto(plan, "x.pdf", s.errors), SMP_INPUT, s.errors, ".svg or .png");
    snprintf(path, sizeof path, "pareto-%ld.svg", (long)getpid());
    snprintf(data, sizeof data, "%s.dat", path);
    const smp_status st = smp_plan_pareto(plan, path, s.errors);
    assert_true(st == SMP_OK || st == SMP_SYSTEM);
    size_t n = 0;
    char *text = read_file(data, &n);
    check_contains(text, "# front");
    check_contains(text, "# plans");
    free(text);
    (void)unlink(path);
    (void)unlink(data);
    smp_plan_destroy(plan);
    small_destroy(&s);
}

/* Settings as "key value, key value" and, behind a semicolon or alone, words. */
static void assign_followers(smp_settings *settings, const char *with, smp_errors *errors)
{
    while (with && *with && *with != ';') {
        char key[64];
        char value[64];
        char assignment[130];
        int n = 0;
        assert_int_equal(sscanf(with, "%63s %63[^,;]%n", key, value, &n), 2);
        if (!smp_settings_get(settings, key, assignment, sizeof assignment)) {
            return;
        }
        snprintf(assignment, sizeof assignment, "%s=%s", key, value);
        check_ok(smp_settings_assign(settings, assignment, "with", errors), errors);
        with += n;
        with += strncmp(with, ", ", 2) == 0 ? 2 : 0;
    }
}

/* Each row is what a simulation of the best plan with the settings it names says. */
static void check_neighbours(const small *s, const smp_plan *plan)
{
    assert_true(plan->n_neighbour > 0);
    for (uint32_t i = 0; i < plan->n_neighbour; i++) {
        const smp_neighbour *n = &plan->neighbours[i];
        smp_job job = plan->found[0].job;
        smp_report report;
        char assignment[160];
        job.settings.sharding_strategy = SMP_STRATEGY_UNSET; /* follows the others */
        snprintf(assignment, sizeof assignment, "%s=%s", n->key, n->value);
        check_ok(smp_settings_assign(&job.settings, assignment, "why", s->errors), s->errors);
        assign_followers(&job.settings, n->with, s->errors);
        check_ok(smp_job_resolve(&job, s->errors), s->errors);
        check_ok(smp_evaluate_fully(&job, s->errors, &report), s->errors);
        check_i64(n->more_ps, report.step_ps - plan->found[0].report.step_ps);
        check_i64(n->more_bytes, (int64_t)report.memory.peak_bytes -
                                     (int64_t)plan->found[0].report.memory.peak_bytes);
        check_u64(n->excess_bytes, smp_report_excess(&report, plan->options.margin_frac));
    }
}

static bool has_neighbour(const smp_plan *plan, const char *key, const char *value)
{
    for (uint32_t i = 0; i < plan->n_neighbour; i++) {
        if (strcmp(plan->neighbours[i].key, key) == 0 &&
            strcmp(plan->neighbours[i].value, value) == 0) {
            return true;
        }
    }
    return false;
}

static void test_neighbours(void **state)
{
    (void)state;
    small s;
    smp_plan *plan = NULL;
    create(&s, "configs/models/gpt2.json", "dgx-h100", 8, 512, 32);
    small_pin(&s, "checkpointing=first:8");
    small_pin(&s, "offload=true");
    small_pin(&s, "offload_layers=6");
    small_pin(&s, "tensor_parallel_degree=1");
    check_ok(run(&s, SMP_OBJECTIVE_TIME, &plan), s.errors);
    check_neighbours(&s, plan);
    /* quarters of twelve layers, 8 being all; one layer fewer and more */
    assert_true(has_neighbour(plan, "offload_layers", "3"));
    assert_true(has_neighbour(plan, "offload_layers", "0"));
    assert_true(has_neighbour(plan, "checkpointing", "first:7"));
    assert_true(has_neighbour(plan, "checkpointing", "first:9"));
    assert_true(has_neighbour(plan, "offload", "false"));
    assert_false(has_neighbour(plan, "rank_order", "tensor,context,expert,shard,replica"));
    smp_plan_destroy(plan);
    small_destroy(&s);
}

/* Of experts: twice the shards beside twice the expert ranks. */
static void test_expert_neighbours(void **state)
{
    (void)state;
    small s;
    smp_plan *plan = NULL;
    create(&s, "configs/models/gpt2.json", "dgx-h100", 8, 512, 32);
    smp_model_destroy(s.model);
    s.job.model = s.model = small_moe(2, 2, s.errors);
    small_pin(&s, "expert_parallel_degree=2");
    small_pin(&s, "expert_layout=orthogonal");
    small_pin(&s, "hybrid_shard_degree=2");
    check_ok(run(&s, SMP_OBJECTIVE_TIME, &plan), s.errors);
    check_neighbours(&s, plan);
    assert_true(has_neighbour(plan, "rank_order", "tensor,context,expert,shard,replica") ||
                has_neighbour(plan, "rank_order", "tensor,context,shard,expert,replica"));
    smp_plan_destroy(plan);
    small_destroy(&s);
}

/* What one line of ties says, and which plan each is folded into. */
static void check_ties(const smp_plan *plan, const uint32_t *first, uint32_t of,
                       const char *expected)
{
    uint32_t found[8];
    char *text = NULL;
    size_t size = 0;
    smp_plan_find_ties(plan, found);
    assert_memory_equal(found, first, plan->n_found * sizeof *first);
    FILE *stream = open_memstream(&text, &size);
    smp_put_ties(plan, found, of, stream);
    (void)fclose(stream);
    check_text(text, expected);
    free(text);
}

/* Six plans made from one: steps 1, 1, 1.0005, 1.0006, 1, 1 s. */
static void test_ties(void **state)
{
    (void)state;
    enum { N = 6 };
    static const int64_t steps_ps[N] = {1000000000000, 1000000000000, 1000500000000,
                                        1000600000000, 1000000000000, 1000000000000};
    static const uint32_t horizons[N] = {8, 4, 8, 4, 2, 8}, chunks[N] = {8, 8, 1, 1, 8, 8};
    small s;
    smp_plan *plan = NULL;
    smp_found found[N];
    create(&s, "configs/models/gpt2.json", "dgx-h100", 8, 512, 32);
    small_pin(&s, "checkpointing=full");
    small_pin(&s, "offload=true");
    check_ok(run(&s, SMP_OBJECTIVE_TIME, &plan), s.errors);
    smp_found *kept = plan->found;
    const uint32_t n_kept = plan->n_found;
    for (int i = 0; i < N; i++) {
        found[i] = kept[0];
        found[i].job.settings.activation_loading_horizon = horizons[i];
        found[i].job.settings.loss_chunks = chunks[i];
        found[i].report.step_ps = steps_ps[i];
        found[i].report.memory.peak_bytes = (uint64_t)(5 + i) << 30;
    }
    found[5].job.settings.micro_batch *= 2; /* differs in more */
    plan->found = found;
    plan->n_found = N;
    check_ties(plan, (const uint32_t[N]){0, 0, 0, 3, 0, 5}, 0,
               "  1-3, 5 within 0.05 %, peak 5.00 GiB to 9.00 GiB: "
               "activation_loading_horizon\n"
               "    8|4|2 with loss_chunks 8, 8 with loss_chunks 1\n");
    check_ties(plan, (const uint32_t[N]){0, 0, 0, 3, 0, 5}, 3, "");
    plan->n_found = 4;
    found[3].report.step_ps = steps_ps[2];
    check_ties(plan, (const uint32_t[N]){0, 0, 0, 0}, 0,
               "  1-4 within 0.05 %, peak 5.00 GiB to 8.00 GiB: activation_loading_horizon "
               "8|4,\n    loss_chunks 8|1\n");
    for (int i = 0; i < N; i++) {
        found[i].job.settings.offload = false;
        found[i].report.step_ps = steps_ps[0];
    }
    plan->n_found = 3;
    check_ties(plan, (const uint32_t[N]){0, 0, 0}, 0,
               "  1-3 take the same time, peak 5.00 GiB to 7.00 GiB: loss_chunks 8|1\n");
    /* JSON has them all, the table the first */
    char *text = printed(plan, false, s.errors);
    check_columns(text);
    assert_null(strstr(text, "\n 2      8"));
    free(text);
    text = printed(plan, true, s.errors);
    size_t rows = 0;
    for (const char *at = text; (at = strstr(at, "\"mfu\":")) != NULL; at++) {
        rows++;
    }
    check_u64(rows, 3);
    free(text);
    plan->found = kept;
    plan->n_found = n_kept;
    smp_plan_destroy(plan);
    small_destroy(&s);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_ties),
    cmocka_unit_test(test_neighbours),  cmocka_unit_test(test_expert_neighbours),
    cmocka_unit_test(test_gpt2_fits),   cmocka_unit_test(test_70b_does_not_fit),
    cmocka_unit_test(test_405b_on_one_node), cmocka_unit_test(test_pins),
    cmocka_unit_test(test_impossible_pins), cmocka_unit_test(test_objectives),
    cmocka_unit_test(test_same_twice),  cmocka_unit_test(test_round_trip),
    cmocka_unit_test(test_older),       cmocka_unit_test(test_tampered),
    cmocka_unit_test(test_place),       cmocka_unit_test(test_truncated),
    cmocka_unit_test(test_export),      cmocka_unit_test(test_pareto),
};

CHECK_MAIN(tests)
