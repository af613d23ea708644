/* SPDX-License-Identifier: Apache-2.0 */
/*
 * It learns: a text, the same way each time.  (One batch by heart: test_train.c.)
 */
#include "config.h"

#include "tests/exec/tiny.h"

#define BYTE_LLAMA                                                                          \
    "{\"model_type\": \"llama\", \"vocab_size\": 257, \"hidden_size\": 64, "                \
    "\"intermediate_size\": 128, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "    \
    "\"num_key_value_heads\": 4, \"max_position_embeddings\": 64, "                         \
    "\"tie_word_embeddings\": false}"

enum { STEPS = 120 };

static void learn(tiny *t, uint32_t ranks, const char *settings, uint32_t loader_threads)
{
    tiny_open(t, BYTE_LLAMA, ranks, 64, 8);
    tiny_set(t, settings);
    t->options.data = check_source("src/smp.h");
    t->options.validation = check_source("src/exec/run.h");
    t->options.validation_batches = 4;
    t->options.hyper.lr = 1e-2;
    t->options.hyper.warmup_steps = 10;
    t->options.loader_threads = loader_threads;
    tiny_train(t, STEPS);
}

static double mean(const tiny *t, int first, int n)
{
    double sum = 0;

    for (int i = first; i < first + n; i++) {
        sum += t->result.steps[i].loss;
    }
    return sum / n;
}

/* A model that knows nothing has ln 257 = 5.55 nats a byte; one that knows how often each byte
 * comes has 3.39 on this text (its entropy).  What is below was learnt from context, and serves
 * on a text that was not read. */
static void a_text_is_learnt(void **state)
{
    tiny t;

    (void)state;
    learn(&t, 2, "micro_batch=4", 1);
    check_rel(t.result.steps[0].loss, log(257), 0.03);
    assert_true(mean(&t, STEPS - 10, 10) < 2.6);
    assert_true(mean(&t, STEPS - 10, 10) < mean(&t, STEPS / 2, 10));
    assert_true(t.result.validation_loss < 3.0);
    tiny_close(&t);
}

static void it_is_the_same_again(void **state)
{
    tiny a, b;

    (void)state;
    learn(&a, 2, "micro_batch=2 tensor_parallel_degree=2", 0);
    learn(&b, 2, "micro_batch=2 tensor_parallel_degree=2", 3);
    for (int i = 0; i < STEPS; i++) {
        check_rel(b.result.steps[i].loss, a.result.steps[i].loss, 0);
        check_rel(b.result.steps[i].norm, a.result.steps[i].norm, 0);
    }
    check_rel(b.result.validation_loss, a.result.validation_loss, 0);
    tiny_close(&a);
    tiny_close(&b);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_text_is_learnt),
    cmocka_unit_test(it_is_the_same_again),
};

CHECK_MAIN(tests)
