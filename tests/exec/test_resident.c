/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arenas of more than 1 GiB: what the process holds in anonymous memory while it trains, all
 * its ranks together, is device arenas + host arenas + OTHER_BYTES, within 5 %.  Part of
 * `make check-full` alone.
 */
#include "config.h"

#include "tests/exec/tiny.h"

/* For each process: buffers of BLAS, programs, queues of streams, batches read ahead. */
static const double OTHER_BYTES = 16.0 * (1 << 20);

static const char CONFIG[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 4096, \"hidden_size\": 1024, "
    "\"intermediate_size\": 3072, \"num_hidden_layers\": 5, \"num_attention_heads\": 16, "
    "\"num_key_value_heads\": 16, \"max_position_embeddings\": 256, "
    "\"tie_word_embeddings\": false}";

static double anonymous_bytes(void)
{
    FILE *stream = fopen("/proc/self/status", "r");
    char line[256];
    double kib = 0;

    assert_non_null(stream);
    while (fgets(line, sizeof line, stream)) {
        if (strncmp(line, "RssAnon:", 8) == 0) {
            kib = strtod(line + 8, NULL);
        }
    }
    (void)fclose(stream);
    return kib * 1024;
}

static void note_memory(void *context, smp_runner *runner, uint64_t step)
{
    double *most = context, now = anonymous_bytes();

    (void)step;
    if (runner->rank.rank == 0) {
        *most = now > *most ? now : *most;
    }
}

static void check_resident(uint32_t ranks, const char *settings, bool async)
{
    tiny t;
    double most = 0, arenas, before;

    tiny_open(&t, CONFIG, ranks, 128, 8);
    tiny_set(&t, settings);
    t.options.async = async;
    t.options.after_step = note_memory;
    t.options.context = &most;
    before = anonymous_bytes();
    tiny_train(&t, 2);
    arenas = ranks * (double)(t.result.arena_bytes + t.result.host_arena_bytes);
    print_message("%u ranks, %s: arenas %.1f MiB, grown by %.1f MiB\n", ranks, settings,
                  arenas / (1 << 20), (most - before) / (1 << 20));
    assert_true(arenas > (double)(1 << 30));
    check_rel(most - before, arenas + OTHER_BYTES, 0.05);
    tiny_close(&t);
}

static void arenas_are_what_is_resident(void **state)
{
    (void)state;
    check_resident(1, "micro_batch=2", false);
    check_resident(2, "micro_batch=2 checkpointing=full offload=true", true);
    check_resident(4, "micro_batch=1 tensor_parallel_degree=2", false);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(arenas_are_what_is_resident),
};

CHECK_MAIN(tests)
