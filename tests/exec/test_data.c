/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a run reads: batches that can be resumed, shapes, documents that do not see each other,
 * validation, rules of initial values.
 */
#include "config.h"

#include "tests/exec/tiny.h"

#include "base/numeric.h"

static const char MIXTRAL[] = TINY_MIXTRAL;
static const char DEEPSEEK[] = TINY_DEEPSEEK;
/* Padding goes to experts as tokens do (so there is room); no loss of the router sees it. */
#define ROUTED "moe_rows_factor=4 optimizer=sgd moe_load_balancing=aux_loss " \
               "moe_aux_loss_coeff=0.5 moe_z_loss_coeff=0.25 moe_statistics=data"
/* Documents end in tokens without a target, which the losses of a router see. */
#define DROPLESS "moe_load_balancing=none moe_z_loss_coeff=0 moe_rows_factor=4 optimizer=sgd"

/* Documents of 1 to 17 tokens, each ended by '.', out of a vocabulary of 97. */
static const char *documents_file(void)
{
    static char path[64];
    char text[2048];
    size_t n = 0;

    for (unsigned d = 0; n + 20 < sizeof text; d++) {
        for (unsigned i = 0; i < d * 7 % 17; i++) {
            text[n++] = (char)(48 + (d * 5 + i * i) % 40);
        }
        text[n++] = '.';
    }
    (void)snprintf(path, sizeof path, "%s", check_file(text, n));
    return path;
}

/* ---- loader ---- */

typedef struct source { smp_errors *errors; smp_tokens *tokens; smp_samples samples; } source;

static source open_source(bool padded)
{
    source s = { .errors = smp_errors_create() };

    check_ok(smp_tokens_open(documents_file(), '.', s.errors, &s.tokens), s.errors);
    check_ok(smp_samples_init(s.tokens, 8, padded, true, s.errors, &s.samples), s.errors);
    return s;
}

static void close_source(source *s)
{
    smp_samples_fini(&s->samples);
    smp_tokens_close(s->tokens);
    smp_errors_destroy(s->errors);
}

static uint64_t hash_batch(const smp_loaded *b, uint64_t rows)
{
    uint64_t n = rows * b->seq * sizeof(int32_t);
    uint64_t hash = smp_hash(b->ids, n, b->seq);

    hash = smp_hash(b->targets, n, hash);
    hash = smp_hash(b->begins, n, hash);
    return smp_hash(&b->targets_counted, sizeof b->targets_counted, hash);
}

enum { ROWS = 3, BATCHES = 90 };

/* Batches of a rank from a state on, each valid while `kept` more are asked for; the state at
 * `at` comes back. */
static smp_loader_state hashes(source *s, smp_loader_options o, int n, uint64_t *out, int at)
{
    smp_loader *loader = NULL;
    smp_loader_state state = o.start;
    const smp_loaded *batches[BATCHES];

    check_ok(smp_loader_create(&s->samples, &o, s->errors, &loader), s->errors);
    for (int i = 0; i < n; i++) {
        check_ok(smp_loader_next(loader, s->errors, &batches[i]), s->errors);
        out[i] = hash_batch(batches[i], o.rows);
        for (int k = 1; k <= (int)o.kept && k <= i; k++) {
            assert_true(hash_batch(batches[i - k], o.rows) == out[i - k]);
        }
        if (i + 1 == at) {
            state = smp_loader_state_of(loader, 0);
        }
    }
    smp_loader_destroy(loader);
    return state;
}

/* However many threads read ahead, and wherever a run is resumed, in whichever epoch. */
static void batches_are_the_same_again(void **state)
{
    (void)state;
    for (int padded = 0; padded < 2; padded++) {
        source s = open_source(padded);
        smp_loader_options o = { .rows = ROWS, .data_rank = 1, .data_ranks = 2, .vocab = 97,
                                 .pad = padded ? SMP_PAD_LONGEST : SMP_PAD_NONE,
                                 .multiple = 2, .start = { .seed = 7, .shuffle = true } };
        uint64_t want[BATCHES], got[BATCHES];

        (void)hashes(&s, o, BATCHES, want, 0);
        assert_true(s.samples.n < (uint64_t)2 * ROWS * BATCHES); /* epochs are passed */
        for (int at = 1; at < BATCHES; at += 13) {
            smp_loader_options from = o;

            o.threads = (uint32_t)at % 4;
            o.kept = (uint32_t)at % 3;
            from.start = hashes(&s, o, at, got, at);
            from.threads = 2;
            from.kept = 2;
            (void)hashes(&s, from, BATCHES - at, got + at, 0);
            assert_memory_equal(got, want, sizeof want);
        }
        close_source(&s);
    }
}

/* The ranks of a step together take the samples of the order, one after the other, and agree
 * on shape and count. */
static void ranks_share_the_order(void **state)
{
    source s = open_source(true);
    smp_sampler order = { .n = s.samples.n, .ranks = 1, .seed = 3, .shuffle = true };
    smp_loader *loaders[2] = { NULL };
    uint64_t place = 0;

    (void)state;
    for (uint32_t r = 0; r < 2; r++) {
        smp_loader_options o = { .rows = ROWS, .data_rank = r, .data_ranks = 2, .vocab = 97,
                                 .pad = SMP_PAD_BUCKET, .bucket = 3, .multiple = 1,
                                 .threads = 1, .drop_last = true,
                                 .start = { .seed = 3, .shuffle = true } };

        check_ok(smp_loader_create(&s.samples, &o, s.errors, &loaders[r]), s.errors);
    }
    for (; place + 2 * ROWS <= s.samples.n; place += 2 * ROWS) {
        const smp_loaded *b[2] = { NULL };
        double counted = 0;

        check_ok(smp_loader_next(loaders[0], s.errors, &b[0]), s.errors);
        check_ok(smp_loader_next(loaders[1], s.errors, &b[1]), s.errors);
        check_u64(b[0]->seq, b[1]->seq);
        assert_true(b[0]->seq % 3 == 0 || b[0]->seq == 8);
        for (uint64_t i = 0; i < 2 * ROWS; i++) {
            uint64_t sample = smp_sampler_at(&order, 0, place + i);
            const smp_loaded *from = b[i % 2];

            check_i64(from->ids[i / 2 * from->seq],
                      smp_tokens_at(s.tokens, s.samples.first[sample]));
            counted += (double)s.samples.length[sample];
        }
        check_rel(b[0]->targets_counted, counted, 0);
        check_rel(b[1]->targets_counted, counted, 0);
    }
    smp_loader_destroy(loaders[0]);
    smp_loader_destroy(loaders[1]);
    close_source(&s);
}

/* ---- shapes ---- */

static void train_padded(tiny *t, const char *config, uint32_t ranks, const char *settings,
                         smp_pad pad)
{
    tiny_open(t, config, ranks, 16, 8);
    tiny_set(t, settings);
    t->options.data = documents_file();
    t->options.separator = '.';
    t->options.pad = pad;
    t->options.bucket = 4;
    t->options.hyper.eps = 1e-3; /* of exactly zero gradients only the rounding differs */
    tiny_train(t, 12);
}

/* What is padded changes nothing but rounding: rows as long as the longest sample give the
 * losses of rows of full length; and means are over the targets of the global batch, however
 * unevenly layouts share them out. */
static void padding_changes_nothing(void **state)
{
    static const struct { const char *config; uint32_t ranks; const char *settings; } runs[] = {
        { TINY_LLAMA, 1, "micro_batch=8" },
        { TINY_LLAMA, 1, "micro_batch=2 attention=naive loss_chunks=2" },
        { TINY_LLAMA, 2, "micro_batch=2 checkpointing=full offload=true" },
        { TINY_LLAMA, 4, "micro_batch=2 tensor_parallel_degree=2 loss_chunks=2" },
        { TINY_GPT2, 2, "micro_batch=2 sharding=optimizer" },
        { TINY_GPT2, 2, "micro_batch=4 tensor_parallel_degree=2 sequence_parallel=false" },
        { MIXTRAL, 1, "micro_batch=8 " ROUTED },
        { MIXTRAL, 2, "micro_batch=4 expert_parallel_degree=2 " ROUTED },
        { DEEPSEEK, 1, "micro_batch=8 " ROUTED },
        { DEEPSEEK, 2, "micro_batch=8 tensor_parallel_degree=2 " ROUTED },
        { DEEPSEEK, 2, "micro_batch=4 " ROUTED },
    };

    double loss[12] = { 0 }, norm[12] = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        bool first = i == 0 || strcmp(runs[i].config, runs[i - 1].config) != 0;
        tiny full, longest, bucket;
        uint64_t shorter = 0;

        train_padded(&full, runs[i].config, runs[i].ranks, runs[i].settings,
                     SMP_PAD_MAX_LENGTH);
        train_padded(&longest, runs[i].config, runs[i].ranks, runs[i].settings,
                     SMP_PAD_LONGEST);
        train_padded(&bucket, runs[i].config, runs[i].ranks, runs[i].settings,
                     SMP_PAD_BUCKET);
        for (int k = 0; k < 12; k++) {
            check_rel(longest.result.steps[k].loss, full.result.steps[k].loss, 1e-5);
            check_rel(bucket.result.steps[k].loss, full.result.steps[k].loss, 1e-5);
            check_rel(longest.result.steps[k].norm, full.result.steps[k].norm, 1e-4);
            check_u64(full.result.steps[k].seq, 16);
            loss[k] = first ? full.result.steps[k].loss : loss[k];
            norm[k] = first ? full.result.steps[k].norm : norm[k];
            check_rel(full.result.steps[k].loss, loss[k], 1e-5);
            check_rel(full.result.steps[k].norm, norm[k], 1e-4);
            shorter += longest.result.steps[k].seq < 16;
        }
        assert_true(shorter > 0);
        check_u64(full.result.compiles, 0);
        assert_true(bucket.result.compiles >= 1 && bucket.result.compiles <= 3);
        assert_true(longest.result.compiles >= bucket.result.compiles);
        check_u64(longest.result.arena_bytes, full.result.arena_bytes);
        tiny_close(&full);
        tiny_close(&longest);
        tiny_close(&bucket);
    }
}

/* ---- documents ---- */

static smp_exec_step step_of(const char *config, const char *settings, const char *text,
                             uint64_t seq, uint64_t batch, bool documents, smp_pad pad)
{
    tiny t;
    smp_exec_step step;

    tiny_open(&t, config, 1, seq, batch);
    tiny_set(&t, settings);
    t.options.data = check_file(text, strlen(text));
    t.options.separator = '.';
    t.options.documents = documents;
    t.options.pad = pad;
    t.options.shuffle = false;
    tiny_train(&t, 1);
    step = t.result.steps[0];
    tiny_close(&t);
    return step;
}

/* Three documents of 8 tokens and one more token.  Packed in a row of 24 and kept apart, their
 * 21 targets have the mean loss and the gradient of three padded rows; seen together,
 * another. */
static void documents_do_not_see_each_other(void **state)
{
    static const char text[] = "ABCDEFG.HIJKLMN.OPQRSTU.V";
    static const char *const configs[] = {
        TINY_LLAMA, TINY_GPT2,
        TINY_OF("mistral", ", \"sliding_window\": 5, \"num_key_value_heads\": 2"),
        MIXTRAL, DEEPSEEK
    };
    static const char *const settings[] = { "attention=flash " DROPLESS,
                                            "attention=naive " DROPLESS };

    (void)state;
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        for (size_t k = 0; k < 2; k++) {
            smp_exec_step apart = step_of(configs[i], settings[k], text, 24, 1, true,
                                          SMP_PAD_NONE);
            smp_exec_step rows = step_of(configs[i], settings[k], text, 24, 3, true,
                                         SMP_PAD_MAX_LENGTH);
            smp_exec_step together = step_of(configs[i], settings[k], text, 24, 1, false,
                                             SMP_PAD_NONE);

            check_rel(apart.loss, rows.loss, 1e-6);
            check_rel(apart.norm, rows.norm, 1e-5);
            assert_true(fabs(together.loss - apart.loss) > 1e-5);
            assert_true(fabs(together.norm - apart.norm) > 1e-4);
        }
    }
}

/* ---- validation ---- */

static void validation_changes_nothing(void **state)
{
    static const char dropout[] =
        "{\"model_type\": \"gpt2\", \"vocab_size\": 97, \"n_embd\": 32, \"n_layer\": 2, "
        "\"n_head\": 4, \"n_positions\": 64, \"resid_pdrop\": 0.1, \"embd_pdrop\": 0.2, "
        "\"attn_pdrop\": 0.3}";

    (void)state;
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        tiny plain, with;

        tiny_open(&plain, dropout, ranks, 16, 8);
        tiny_set(&plain, "micro_batch=4 precision=fp16");
        tiny_train(&plain, 6);
        tiny_open(&with, dropout, ranks, 16, 8);
        tiny_set(&with, "micro_batch=4 precision=fp16");
        with.options.validation = with.options.data;
        with.options.validate_every = 2;
        with.options.validation_batches = 2;
        tiny_train(&with, 6);
        for (int k = 0; k < 6; k++) {
            check_rel(with.result.steps[k].loss, plain.result.steps[k].loss, 0);
            check_rel(with.result.steps[k].norm, plain.result.steps[k].norm, 0);
        }
        assert_true(with.result.validation_loss > 3 && with.result.validation_loss < 5);
        tiny_close(&plain);
        tiny_close(&with);
    }
}

/* Before anything is learnt, and with dropout off, the validation loss of the batch that a step
 * reads is the loss of that step. */
static void validation_is_the_loss(void **state)
{
    tiny t;

    (void)state;
    tiny_open(&t, TINY_LLAMA, 2, 16, 8);
    tiny_set(&t, "micro_batch=4");
    t.options.validation = t.options.data;
    t.options.validation_batches = 1;
    t.options.shuffle = false;
    t.options.hyper.lr = 0;
    tiny_train(&t, 1);
    check_rel(t.result.validation_loss, t.result.steps[0].loss, 1e-6);
    tiny_close(&t);
}

/* ---- stopping, resuming ---- */

static atomic_bool stop;

static void stop_after_three(void *context, smp_runner *runner, uint64_t step)
{
    (void)context;
    if (step == 2 && runner->rank.rank == 1) {
        atomic_store(&stop, true);
    }
}

/* One rank is told; all finish the same step, and the data go on from there. */
static void a_signal_ends_the_run_after_its_step(void **state)
{
    tiny t;

    (void)state;
    atomic_store(&stop, false);
    tiny_open(&t, TINY_LLAMA, 4, 16, 8);
    tiny_set(&t, "micro_batch=2 tensor_parallel_degree=2");
    t.options.stop = &stop;
    t.options.after_step = stop_after_three;
    tiny_train(&t, 50);
    assert_true(t.result.stopped);
    assert_true(t.result.n_step >= 3 && t.result.n_step <= 4);
    check_u64(t.result.end.epoch, 0);
    check_u64(t.result.end.position, t.result.n_step * 4);
    tiny_close(&t);
}

/* ---- initial values ---- */

/* Another file than that of the data. */
static const char *rules_file(const char *text)
{
    static char path[64];
    FILE *stream;

    (void)snprintf(path, sizeof path, "test-rules-%ld.tmp", (long)getpid());
    stream = fopen(path, "w");
    if (!stream || fputs(text, stream) < 0 || fclose(stream) != 0) {
        fail_msg("%s cannot be written", path);
    }
    return path;
}

static void rules_of_initial_values(void **state)
{
    static const char rules[] = "# heads\nlm_head.weight constant 0 # all logits are 0\n"
                                "model.layers.[01].* normal 0 0.5\n";
    static const struct { const char *text, *part; } wrong[] = {
        { "lm_head.weight normal 0", ":1: normal needs 2 numbers" },
        { "\nlm_head.weight gauss 0 1", ":2: 'gauss' after the pattern" },
        { "lm_head.weight zeros 1", "is more than it takes" },
        { "lm_head.weight uniform 1 0", "is below LOW" },
        { "head zeros", "'head' matches no parameter" },
    };
    tiny t;

    (void)state;
    tiny_open(&t, TINY_LLAMA, 2, 16, 8);
    tiny_set(&t, "micro_batch=4");
    t.options.init_rules = rules_file(rules);
    tiny_train(&t, 1);
    check_rel(t.result.steps[0].loss, log(97), 1e-6); /* uniform over the vocabulary */
    smp_exec_result_free(&t.result);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        t.options.init_rules = rules_file(wrong[i].text);
        check_fails(smp_exec_run(&t.job, &t.options, t.errors, &t.result), SMP_INPUT, t.errors,
                    wrong[i].part);
    }
    (void)unlink(t.options.init_rules);
    tiny_close(&t);
}

static void spoil(void *context, const smp_owned *owned)
{
    smp_runner *runner = context;
    float *first = smp_runner_operand(runner, owned->instance, owned->task_index, 0);

    if (owned->unit->block && owned->layer == 1) {
        first[owned->elems - 1] = NAN;
    }
}

static void check_runner(void *context, smp_runner *runner, uint64_t step)
{
    smp_errors *errors = smp_errors_create();
    uint64_t elems = 0, *total = context;

    (void)step;
    check_ok(smp_runner_check_init(runner, errors, &elems), errors);
    total[runner->rank.rank] = elems;
    if (runner->rank.rank == 1) {
        smp_runner_owned(runner, spoil, runner);
        check_fails(smp_runner_check_init(runner, errors, &elems), SMP_SYSTEM, errors,
                    "layer 1, has no initial value");
    }
    smp_errors_destroy(errors);
}

/* Two ranks have all elements between them; one that has no value is seen. */
static void every_element_is_initialised(void **state)
{
    uint64_t elems[2] = { 0 };
    tiny t;

    (void)state;
    tiny_open(&t, TINY_LLAMA, 2, 16, 8);
    tiny_set(&t, "micro_batch=4");
    t.options.after_step = check_runner;
    t.options.context = elems;
    tiny_train(&t, 1);
    assert_true(elems[0] + elems[1] >= smp_model_parameters(t.model));
    assert_true(elems[0] + elems[1] < smp_model_parameters(t.model) + 8); /* padded shards */
    tiny_close(&t);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(batches_are_the_same_again),
    cmocka_unit_test(ranks_share_the_order),
    cmocka_unit_test(padding_changes_nothing),
    cmocka_unit_test(documents_do_not_see_each_other),
    cmocka_unit_test(validation_changes_nothing),
    cmocka_unit_test(validation_is_the_loss),
    cmocka_unit_test(a_signal_ends_the_run_after_its_step),
    cmocka_unit_test(rules_of_initial_values),
    cmocka_unit_test(every_element_is_initialised),
};

CHECK_MAIN(tests)
