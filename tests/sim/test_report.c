/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report: its sums, its figures, both ways of printing it, sweeps and the default batch.
 */
#ifdef HAVE_CONFIG_H
#include "config.h" /* open_memstream of POSIX 2008 */
#endif

#include "tests/sim/small_job.h"

#include <cjson/cJSON.h>

static void time_adds_up(void **state)
{
    (void)state;
    for (size_t i = 0; i < SMALL_CASES; i++) {
        small_job *s = small_case_simulate(i);
        const smp_report *r = smp_simulation_report(s->simulation);
        const smp_time_parts *t = &r->time;
        check_i64(t->compute_ps + t->optimizer_ps + t->launch_ps + t->shard_ps + t->replica_ps +
                      t->tensor_ps + t->expert_ps + t->world_ps + t->offload_ps, r->step_ps);
        assert_true(t->compute_ps > 0 && t->optimizer_ps > 0 && t->launch_ps > 0);
        check_rel(r->step_time_s, (double)r->step_ps * 1e-12, 1e-15);
        small_job_free(s);
    }
}

static void memory_adds_up(void **state)
{
    (void)state;
    for (size_t i = 0; i < SMALL_CASES; i++) {
        small_job *s = small_case_simulate(i);
        const smp_memory *m = &smp_simulation_report(s->simulation)->memory;
        const smp_memory_parts *p = &m->parts;
        check_u64(p->parameters_bytes + p->gradients_bytes + p->optimizer_bytes +
                      p->unsharded_bytes + p->activations_bytes + p->logits_bytes +
                      p->communication_bytes + p->context_bytes + p->fragmentation_bytes,
                  m->peak_bytes);
        check_i64(m->margin_bytes, (int64_t)m->capacity_bytes - (int64_t)m->peak_bytes);
        check_u64(m->arena_bytes, m->live_bytes + p->fragmentation_bytes);
        assert_true(m->fits);
        small_job_free(s);
    }
}

/* 16 bytes a parameter of fp32 master, gradient and AdamW [Rajbhandari et al. 2020]. */
static void figures_follow_their_definitions(void **state)
{
    (void)state;
    small_job *s = small_case_simulate(3);
    const smp_report *r = smp_simulation_report(s->simulation);
    double tokens = 512.0 * 32;
    double peak = s->profile->peak_flops[SMP_BF16].value;
    check_rel(r->tokens_per_s_per_gpu, tokens / r->step_time_s / 16, 1e-12);
    check_rel(r->peak_flops_per_s, peak, 0);
    check_rel(r->mfu, s->step->model_flops / (r->step_time_s * 16 * peak), 1e-12);
    assert_true(r->hfu >= r->mfu && r->mfu > 0 && r->hfu < 1);
    check_rel(r->memory.state_bytes_per_parameter, 16, 0);
    check_rel(r->cost_per_billion_tokens,
              s->cluster->price_per_gpu_hour.value * 16 * r->step_time_s / 3600 / tokens * 1e9,
              1e-12);
    assert_true(r->interval_low_s < r->step_time_s && r->step_time_s < r->interval_high_s);
    check_rel(r->interval_high_s - r->step_time_s, 1.2815515655446004 * s->simulation->sigma_s,
              1e-9);
    small_job_free(s);
}

/* All spreads equal: sigma lies between that of one error for everything and that of
 * independent shapes. */
static void interval_lies_between_the_extremes(void **state)
{
    (void)state;
    small_job *s = small_case_simulate(1);
    double common_s = 0;
    double square = 0;
    const smp_program *p = s->step->programs[0];
    for (uint32_t t = 0; t < p->n_task; t++) {
        double x_s = (double)s->simulation->path_ps[0][t] * 1e-12 *
                     s->simulation->cost[0][t].spread;
        common_s += x_s;
        square += x_s * x_s;
    }
    assert_true(s->simulation->sigma_s <= common_s);
    assert_true(s->simulation->sigma_s >= sqrt(square / 2));
    small_job_free(s);
}

static void host_memory_is_of_the_fullest_node(void **state)
{
    (void)state;
    small_job *s = small_case_simulate(4);
    const smp_memory *m = &smp_simulation_report(s->simulation)->memory;
    assert_true(m->host_bytes > 0);
    check_u64(m->host_bytes_per_node, 8 * m->host_bytes);
    small_job_free(s);
    /* More host memory than the node has does not fit, whatever the device says. */
    s = small_job_read("configs/clusters/dgx-h100.json", 8, 8,
                       "checkpointing=full offload=true activation_loading_horizon=1");
    s->cluster->host_memory_bytes.value = 1e6;
    small_job_simulate(s);
    m = &smp_simulation_report(s->simulation)->memory;
    assert_true(m->margin_bytes > 0);
    assert_false(m->fits);
    small_job_free(s);
}

static void what_does_not_fit_is_simulated(void **state)
{
    (void)state;
    small_job *s = small_job_read("configs/clusters/dgx-h100.json", 8, 8, "");
    s->cluster->memory_bytes.value = 1e9;
    small_job_simulate(s);
    const smp_report *r = smp_simulation_report(s->simulation);
    assert_false(r->memory.fits);
    assert_true(r->memory.margin_bytes < 0 && r->step_time_s > 0);
    small_job_free(s);
}

/* ------------------------------------------------------------------- printing */

static smp_status explain_text(const smp_simulation *simulation, FILE *stream,
                               smp_errors *errors)
{
    return smp_simulation_explain(simulation, NULL, false, stream, errors);
}

static smp_status print_text(const smp_simulation *simulation, FILE *stream, smp_errors *errors)
{
    return smp_simulation_print(simulation, false, stream, errors);
}

static smp_status print_json(const smp_simulation *simulation, FILE *stream, smp_errors *errors)
{
    return smp_simulation_print(simulation, true, stream, errors);
}

static void check_width(const char *text)
{
    for (const char *line = text; *line;) {
        size_t n = strcspn(line, "\n");
        if (n > 80) {
            print_error("%zu columns: %.*s\n", n, (int)n, line);
            fail();
        }
        line += n + (line[n] == '\n');
    }
}

static void text_fits_80_columns_and_repeats(void **state)
{
    (void)state;
    for (size_t i = 0; i < SMALL_CASES; i++) {
        small_job *s = small_case_simulate(i);
        small_job *again = small_case_simulate(i);
        char *text = small_capture(print_text, s);
        char *other = small_capture(print_text, again);
        check_width(text);
        check_text(other, text);
        check_contains(text, "MFU = model FLOPs");
        free(text);
        free(other);
        text = small_capture(explain_text, s);
        check_width(text);
        check_contains(text, "Figures\n[1] ");
        free(text);
        small_job_free(s);
        small_job_free(again);
    }
}

static double number_at(const cJSON *root, const char *object, const char *inner,
                        const char *key)
{
    const cJSON *at = root;
    at = object ? cJSON_GetObjectItemCaseSensitive(at, object) : at;
    at = inner ? cJSON_GetObjectItemCaseSensitive(at, inner) : at;
    at = cJSON_GetObjectItemCaseSensitive(at, key);
    if (!cJSON_IsNumber(at)) {
        print_error("no number %s.%s.%s\n", object ? object : "", inner ? inner : "", key);
        fail();
    }
    return at->valuedouble;
}

static void json_has_the_named_keys(void **state)
{
    (void)state;
    small_job *s = small_case_simulate(4);
    const smp_report *r = smp_simulation_report(s->simulation);
    char *text = small_capture(print_json, s);
    cJSON *root = cJSON_Parse(text);
    assert_non_null(root);
    check_rel(number_at(root, NULL, NULL, "step_time_s"), r->step_time_s, 0);
    check_rel(number_at(root, NULL, NULL, "tokens_per_s_per_gpu"), r->tokens_per_s_per_gpu, 0);
    check_rel(number_at(root, NULL, NULL, "mfu"), r->mfu, 0);
    check_rel(number_at(root, NULL, NULL, "hfu"), r->hfu, 0);
    check_rel(number_at(root, NULL, "memory", "arena_bytes"), (double)r->memory.arena_bytes, 0);
    check_rel(number_at(root, NULL, "memory", "peak_bytes"), (double)r->memory.peak_bytes, 0);
    check_rel(number_at(root, NULL, "memory", "host_bytes_per_node"),
              (double)r->memory.host_bytes_per_node, 0);
    check_rel(number_at(root, NULL, "settings", "tensor_parallel_degree"), 4, 0);
    const cJSON *memory = cJSON_GetObjectItemCaseSensitive(root, "memory");
    assert_true(cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(memory, "fits")));
    const cJSON *part = NULL;
    double sum = 0;
    cJSON_ArrayForEach(part, cJSON_GetObjectItemCaseSensitive(memory, "parts"))
    {
        sum += part->valuedouble;
    }
    check_rel(sum, (double)r->memory.peak_bytes, 0);
    sum = 0;
    const cJSON *times = cJSON_GetObjectItemCaseSensitive(root, "time");
    cJSON_ArrayForEach(part, cJSON_GetObjectItemCaseSensitive(times, "parts_ps"))
    {
        sum += part->valuedouble;
    }
    check_rel(sum, (double)r->step_ps, 0);
    sum = 0;
    cJSON_ArrayForEach(part, cJSON_GetObjectItemCaseSensitive(times, "parts"))
    {
        sum += part->valuedouble;
    }
    check_rel(sum, r->step_time_s, 1e-12);
    const cJSON *settings = cJSON_GetObjectItemCaseSensitive(root, "settings");
    assert_true(cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(settings, "offload")));
    cJSON_Delete(root);
    free(text);
    small_job_free(s);
}

/* --------------------------------------------------------------- sweeps, batch */

static char *sweep(small_job *s, const char *const *axes, size_t n, bool json)
{
    char *text = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    check_ok(smp_sweep_print(&s->job, axes, n, json, stream, s->errors), s->errors);
    fclose(stream);
    return text;
}

static void sweeps_are_products(void **state)
{
    (void)state;
    static const char *const axes[] = {"tensor_parallel_degree=1,3,2", "micro_batch=1,2"};
    small_job *s = small_job_read("configs/clusters/dgx-h100.json", 8, 16, "");
    char *text = sweep(s, axes, 2, true);
    cJSON *root = cJSON_Parse(text);
    const cJSON *rows = cJSON_GetObjectItemCaseSensitive(root, "rows");
    check_u64((uint64_t)cJSON_GetArraySize(rows), 6);
    for (int i = 0; i < 6; i++) {
        const cJSON *error =
            cJSON_GetObjectItemCaseSensitive(cJSON_GetArrayItem(rows, i), "error");
        assert_int_equal(cJSON_IsNull(error), i / 2 != 1);
    }
    /* The third axis value, first micro-batch, is what simulating it alone gives. */
    small_job *alone = small_job_read("configs/clusters/dgx-h100.json", 8, 16,
                                      "tensor_parallel_degree=2 micro_batch=1");
    small_job_simulate(alone);
    check_rel(number_at(cJSON_GetArrayItem(rows, 4), NULL, NULL, "step_time_s"),
              smp_simulation_report(alone->simulation)->step_time_s, 0);
    small_job_free(alone);
    cJSON_Delete(root);
    free(text);
    text = sweep(s, axes, 2, false);
    check_width(text);
    check_contains(text, "must divide 8 attention heads");
    free(text);
    small_job_free(s);
}

static void sweeps_refuse_bad_axes(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"micro_batch", "must be key=value"}, {"=1", "must be key=value"},
        {"micro_batch=1,,2", "an empty value"}, {"micro=1", "neither a setting"},
        {"micro_batch=", "must be key=value"},
    };
    small_job *s = small_job_read("configs/clusters/dgx-h100.json", 8, 16, "");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        check_fails(smp_sweep_print(&s->job, &bad[i][0], 1, false, stdout, s->errors),
                    SMP_INPUT, s->errors, bad[i][1]);
    }
    small_job_free(s);
}

static void batch_has_defaults(void **state)
{
    (void)state;
    small_job *s = small_job_read("configs/clusters/dgx-h100.json", 8, 16,
                                  "tensor_parallel_degree=2 micro_batch=3");
    s->job.batch = (smp_batch){ 0, 0, 0 };
    smp_job_default_batch(&s->job);
    check_u64(s->job.batch.seq_len, 2048);
    check_u64(s->job.batch.global_batch, 4 * 3);
    s->job.batch = (smp_batch){ 128, 7, 0 };
    smp_job_default_batch(&s->job);
    check_u64(s->job.batch.seq_len, 128);
    check_u64(s->job.batch.global_batch, 7);
    small_job_free(s);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(time_adds_up),
    cmocka_unit_test(memory_adds_up),
    cmocka_unit_test(figures_follow_their_definitions),
    cmocka_unit_test(interval_lies_between_the_extremes),
    cmocka_unit_test(host_memory_is_of_the_fullest_node),
    cmocka_unit_test(what_does_not_fit_is_simulated),
    cmocka_unit_test(text_fits_80_columns_and_repeats),
    cmocka_unit_test(json_has_the_named_keys),
    cmocka_unit_test(sweeps_are_products),
    cmocka_unit_test(sweeps_refuse_bad_axes),
    cmocka_unit_test(batch_has_defaults),
};

CHECK_MAIN(tests)
