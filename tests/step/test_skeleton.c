/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arenas of repeated layers: for random jobs, the arena that follows from a job with few
 * layers is the arena of the job itself, to the byte; slopes hold where they are said to.
 */
#include "config.h"

#include "tests/step/random_jobs.h"

#include "mesh/settings.h"
#include "step/skeleton.h"

enum { MOST_LAYERS = 48, MOST_REPEATS = 16, FEW = 5, MOST_PERIOD = 3 };

/* Layers of one kind, of kinds that alternate, and with some of another kind before. */
static const char *const mixed_models[] = {
    "{\"model_type\": \"mixtral\", \"hidden_size\": 64, \"intermediate_size\": 96,"
    " \"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"vocab_size\": 257,"
    " \"max_position_embeddings\": 4096, \"num_local_experts\": 4, \"num_experts_per_tok\": 2,"
    " \"num_hidden_layers\": ",
    "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 64, \"intermediate_size\": 96,"
    " \"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"head_dim\": 8,"
    " \"vocab_size\": 257, \"max_position_embeddings\": 4096, \"num_experts\": 8,"
    " \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 32, \"decoder_sparse_step\": 2,"
    " \"num_hidden_layers\": ",
    "{\"model_type\": \"gemma2\", \"hidden_size\": 64, \"intermediate_size\": 96,"
    " \"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"head_dim\": 8,"
    " \"vocab_size\": 257, \"max_position_embeddings\": 4096, \"sliding_window\": 32,"
    " \"num_hidden_layers\": ",
    "{\"model_type\": \"deepseek_v3\", \"hidden_size\": 64, \"intermediate_size\": 96,"
    " \"num_attention_heads\": 8, \"num_key_value_heads\": 8, \"vocab_size\": 257,"
    " \"max_position_embeddings\": 4096, \"n_shared_experts\": 1,"
    " \"first_k_dense_replace\": 1, \"q_lora_rank\": 24, \"kv_lora_rank\": 16,"
    " \"qk_nope_head_dim\": 8, \"qk_rope_head_dim\": 4, \"v_head_dim\": 6,"
    " \"n_routed_experts\": 8, \"num_experts_per_tok\": 2, \"n_group\": 2,"
    " \"topk_group\": 1, \"moe_intermediate_size\": 32, \"num_hidden_layers\": ",
};

static void set(smp_job *job, const char *key, uint32_t value)
{
    char text[64];
    (void)snprintf(text, sizeof text, "%s%u", key, value);
    check_ok(smp_settings_assign(&job->settings, text, "--set", errors), errors);
}

/* False where the settings break a rule. */
static bool random_job(bench *b, dice *d)
{
    char text[1024];
    const uint32_t which = draw(d, 8), n_layer = 1 + draw(d, MOST_LAYERS);
    *b = (bench){0};
    const int n = snprintf(text, sizeof text, "%s%u}",
                           which < 4 ? models[which] : mixed_models[which - 4], n_layer);
    check_ok(smp_model_parse(text, (size_t)n, "tiny", "tiny", errors, &b->model), errors);
    const uint32_t size = draw(d, SIZES - 1);
    bench_cluster(b, size);
    draw_settings(b, d);
    set(&b->job, "expert_parallel_degree=", draw(d, 3) ? 1 : 2);
    if (draw(d, 3) > 0) {
        const uint32_t checkpointed = 1 + draw(d, n_layer);
        set(&b->job, "checkpointing=first:", checkpointed);
        set(&b->job, "offload_layers=", draw(d, checkpointed + 1));
    }
    set(&b->job, "activation_loading_horizon=", 1 + draw(d, 6));
    b->job.batch.seq_len = 64u << draw(d, 3);
    b->job.batch.global_batch = 2 * sizes[size] * (1 + draw(d, 6));
    const bool good = smp_job_resolve(&b->job, errors) == SMP_OK;
    smp_errors_clear(errors);
    return good;
}

/* ----------------------------------------------------------------- fewer layers */

typedef struct fewer {
    smp_job job;
    smp_model model;
    uint8_t kinds[MOST_LAYERS];
    uint32_t n;
    smp_repeat repeats[MOST_REPEATS];
} fewer;

/* Layers that are checkpointed, those whose inputs are in the ring, those that are stored. */
typedef struct limits { uint32_t checkpointed, offloaded, stored; } limits;

static limits limits_of(const smp_job *job)
{
    const smp_settings *set_ = &job->settings;
    const uint32_t horizon = set_->activation_loading_horizon;
    uint32_t layers = smp_offloaded_layers(set_);
    limits at = {.checkpointed = set_->checkpointing_layers};
    if (set_->sm_activation_offloading && horizon >= layers) {
        layers = 0;
    }
    at.offloaded = layers;
    at.stored = set_->sm_activation_offloading && layers > 0 ? layers - horizon : layers;
    return at;
}

/* The last layer in the ring is another than those before: its output is not in the ring. */
static uint32_t stretch_end(const smp_model *model, const limits *at, uint32_t layer)
{
    const uint32_t last = at->offloaded > 0 ? at->offloaded - 1 : 0;
    const uint32_t ends[] = {at->stored < last ? at->stored : last, last, at->offloaded,
                             at->checkpointed, model->n_layer};
    uint32_t k = 0;
    while (layer >= ends[k]) {
        k++;
    }
    return ends[k];
}

/* Layers from `layer` on whose kinds repeat with a period, at most up to `end`. */
static uint32_t run_length(const smp_model *model, uint32_t layer, uint32_t end,
                           uint32_t period)
{
    uint32_t n = end - layer < period ? end - layer : period;
    while (layer + n < end
           && model->kind_of_layer[layer + n] == model->kind_of_layer[layer + n - period]) {
        n++;
    }
    return n;
}

static void keep(fewer *f, const smp_model *model, uint32_t layer, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        f->kinds[f->model.n_layer++] = model->kind_of_layer[layer + i];
    }
}

/* Copies the layers of [layer, end), of long runs FEW periods and what is left over. */
static void keep_few(fewer *f, const smp_model *model, uint32_t layer, uint32_t end)
{
    while (layer < end) {
        uint32_t period = 1, n = 0;
        for (; period <= MOST_PERIOD; period++) {
            n = run_length(model, layer, end, period);
            if (n > FEW * period) {
                break;
            }
        }
        if (period > MOST_PERIOD || n / period == FEW) {
            keep(f, model, layer++, 1);
            continue;
        }
        f->repeats[f->n++] = (smp_repeat){f->model.n_layer + FEW / 2 * period, period,
                                          n / period - FEW};
        keep(f, model, layer, FEW * period + n % period);
        layer += n;
    }
}

/* What is offloaded and not stored is as long as the horizon: never cut. */
static void reduce(const smp_job *job, fewer *f)
{
    const limits at = limits_of(job);
    uint32_t checkpointed = 0, offloaded = 0;
    f->n = 0;
    f->model = *job->model;
    f->model.kind_of_layer = f->kinds;
    f->model.n_layer = 0;
    for (uint32_t layer = 0, end; layer < job->model->n_layer; layer = end) {
        end = stretch_end(job->model, &at, layer);
        if (layer >= at.stored && layer < at.offloaded) {
            keep(f, job->model, layer, end - layer);
        } else {
            keep_few(f, job->model, layer, end);
        }
        offloaded = end <= at.offloaded ? f->model.n_layer : offloaded;
        checkpointed = end <= at.checkpointed ? f->model.n_layer : checkpointed;
    }
    f->job = *job;
    f->job.model = &f->model;
    f->job.settings.checkpointing_layers = checkpointed;
    if (at.offloaded > 0) {
        f->job.settings.offload_layers = offloaded == checkpointed ? 0 : offloaded;
    }
}

/* ------------------------------------------------------------------------ tests */

typedef struct seen { uint32_t jobs, programs, repeats, periods, linear, bent; } seen;

/* From fewer repeats the slopes lead to `longer`, the arena of all of them. */
static void check_slopes(const smp_skeleton *skeleton, const fewer *f, dice *d,
                         smp_skeleton_room *room, const smp_repeated *longer, seen *s)
{
    smp_repeat repeats[MOST_REPEATS];
    smp_slope slopes[MOST_REPEATS];
    smp_repeated at;
    bool linear = true;
    for (uint32_t i = 0; i < f->n; i++) {
        repeats[i] = f->repeats[i];
        repeats[i].more = draw(d, (uint32_t)repeats[i].more + 1);
    }
    assert_true(smp_skeleton_arena(skeleton, f->n, repeats, room, &at, slopes));
    for (uint32_t i = 0; i < f->n; i++) {
        const uint64_t more = (uint64_t)(f->repeats[i].more - repeats[i].more);
        linear = linear && (more == 0 || slopes[i].linear);
        for (uint32_t space = 0; space < SMP_SPACES; space++) {
            at.arena_bytes[space] += more * slopes[i].bytes[space];
        }
    }
    s->linear += linear;
    s->bent += !linear;
    for (uint32_t space = 0; linear && space < SMP_SPACES; space++) {
        check_u64(at.arena_bytes[space], longer->arena_bytes[space]);
    }
}

static void check_program(smp_program *few, const smp_program *all, const fewer *f, dice *d,
                          smp_skeleton_room *room, seen *s)
{
    smp_arena *arena = smp_arena_create();
    smp_skeleton *skeleton;
    smp_repeated at;
    check_ok(smp_skeleton_create(few, arena, errors, &skeleton), errors);
    assert_true(smp_skeleton_arena(skeleton, f->n, f->repeats, room, &at, NULL));
    check_u64(at.arena_bytes[SMP_SPACE_DEVICE], all->arena_bytes);
    check_u64(at.arena_bytes[SMP_SPACE_HOST], all->host_arena_bytes);
    for (uint32_t k = 0; k < 3; k++) {
        check_slopes(skeleton, f, d, room, &at, s);
    }
    s->programs++;
    smp_arena_destroy(arena);
}

static void check_job(const smp_job *job, dice *d, smp_skeleton_room *room, seen *s)
{
    fewer f;
    smp_step *few, *all;
    reduce(job, &f);
    if (f.n == 0) {
        return;
    }
    check_ok(smp_step_lower_arena(job, errors, &all), errors);
    check_ok(smp_step_lower_apart(&f.job, errors, &few), errors);
    check_u64(few->n_program, all->n_program);
    for (uint32_t k = 0; k < few->n_program; k++) {
        check_program(few->programs[k], all->programs[k], &f, d, room, s);
    }
    s->jobs++;
    for (uint32_t i = 0; i < f.n; i++) {
        s->repeats++;
        s->periods += f.repeats[i].layers > 1;
    }
    smp_step_destroy(few);
    smp_step_destroy(all);
}

static void few_layers_tell_the_arena_of_many(void **state)
{
    smp_skeleton_room room = {0};
    seen s = {0};
    (void)state;
    for (uint64_t seed = 0; seed < 7000; seed++) {
        bench b;
        dice d = {seed, 0};
        if (random_job(&b, &d)) {
            check_job(&b.job, &d, &room, &s);
        }
        bench_close(&b);
    }
    smp_skeleton_room_free(&room);
    print_message("# %u jobs, %u programs, %u repeats (%u of several layers), %u linear, %u "
                  "not\n", s.jobs, s.programs, s.repeats, s.periods, s.linear, s.bent);
    assert_true(s.jobs > 1500 && s.periods > 300);
    assert_true(s.linear > 8 * s.bent && s.bent > 50);
}

/* Llama-2-7B with so many layers, all alike. */
static smp_step *lower_llama(bench *b, smp_model *model, uint32_t n_layer)
{
    static uint8_t kinds[MOST_LAYERS];
    smp_step *step;
    *model = *b->model;
    model->n_layer = n_layer;
    model->kind_of_layer = kinds;
    b->job.model = model;
    check_ok(smp_step_lower_apart(&b->job, errors, &step), errors);
    return step;
}

static void open_llama(bench *b)
{
    *b = (bench){0};
    check_ok(smp_model_read(check_source("configs/models/Llama-2-7B.json"), errors, &b->model),
             errors);
    bench_cluster(b, 4);
    b->job.batch = (smp_batch){.seq_len = 1024, .global_batch = 16};
    check_ok(smp_settings_assign(&b->job.settings, "micro_batch=1", "--set", errors), errors);
    check_ok(smp_settings_assign(&b->job.settings, "checkpointing=none", "--set", errors),
             errors);
    check_ok(smp_job_resolve(&b->job, errors), errors);
}

/* Of n layers, those with two alike ones on either side. */
static void what_lies_at_the_ends_is_not_repeated(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 9; n++) {
        bench b;
        smp_model model;
        smp_skeleton *skeleton;
        smp_skeleton_room room = {0};
        open_llama(&b);
        smp_step *step = lower_llama(&b, &model, n);
        check_ok(smp_skeleton_create(step->programs[0], step->arena, errors, &skeleton),
                 errors);
        for (uint32_t layer = 0; layer < n + 2; layer++) {
            for (uint32_t layers = 0; layers <= 3; layers++) {
                const smp_repeat repeat = {layer, layers, 3};
                smp_repeated at;
                const bool inside =
                    layers > 0 && layer >= layers && layer + 2 * layers <= n;
                assert_int_equal(smp_skeleton_arena(skeleton, 1, &repeat, &room, &at, NULL),
                                 inside);
            }
        }
        smp_skeleton_room_free(&room);
        smp_step_destroy(step);
        bench_close(&b);
    }
}

static void asking_does_not_allocate(void **state)
{
    bench b;
    smp_model model;
    smp_skeleton *skeleton;
    smp_skeleton_room room = {0};
    smp_repeated at;
    smp_slope slope;
    (void)state;
    open_llama(&b);
    smp_step *step = lower_llama(&b, &model, FEW);
    check_ok(smp_skeleton_create(step->programs[0], step->arena, errors, &skeleton), errors);
    smp_repeat repeat = {FEW / 2, 1, 0};
    assert_true(smp_skeleton_arena(skeleton, 1, &repeat, &room, &at, &slope));
    const uint64_t before = smp_heap_calls();
    for (repeat.more = 1; repeat.more < 100; repeat.more++) {
        assert_true(smp_skeleton_arena(skeleton, 1, &repeat, &room, &at, &slope));
    }
    check_u64(smp_heap_calls() - before, 0);
    smp_skeleton_room_free(&room);
    smp_step_destroy(step);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_layers_tell_the_arena_of_many),
        cmocka_unit_test(what_lies_at_the_ends_is_not_repeated),
        cmocka_unit_test(asking_does_not_allocate),
    };
    const char *filter = getenv("SMP_TEST_FILTER");
    if (filter != NULL) {
        cmocka_set_test_filter(filter);
    }
    return cmocka_run_group_tests(tests, read_machines, forget_machines);
}
