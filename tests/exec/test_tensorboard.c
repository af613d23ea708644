/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Event files by a reader of our own: framing, checksums, fields, and the values of a run; or,
 * built without protobuf-c, that the option is refused.
 */
#include "config.h"

#include "tests/exec/tiny.h"

#include "exec/tensorboard.h"

#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

static const char directory[] = "test-events.tmp";

#ifdef SMP_HAVE_PROTOBUF_C

/* ---- the reader ---- */

typedef struct bytes { const uint8_t *at; size_t n; } bytes;

/* By polynomial division, from the highest power: each byte mirrored, and so is the rest
 * [RFC 3720, 12.1]. */
static uint32_t checksum(bytes b)
{
    uint64_t rest = 0xffffffffu;
    uint32_t mirrored = 0;

    for (size_t i = 0; i < b.n; i++) {
        for (int k = 0; k < 8; k++) {
            uint64_t bit = ((uint64_t)b.at[i] >> k & 1) ^ (rest >> 31);

            rest = (rest << 1 & 0xffffffffu) ^ (bit ? 0x1edc6f41u : 0);
        }
    }
    for (int k = 0; k < 32; k++) {
        mirrored |= (uint32_t)(rest >> k & 1) << (31 - k);
    }
    mirrored = ~mirrored;
    return ((mirrored >> 15) | (mirrored << 17)) + 0xa282ead8u;
}

static uint64_t number(const uint8_t *at, int n)
{
    uint64_t x = 0;

    for (int i = 0; i < n; i++) {
        x |= (uint64_t)at[i] << (8 * i);
    }
    return x;
}

/* Takes the next record off the file. */
static bytes next_record(bytes *file)
{
    bytes data = { file->at + 12, 0 };

    assert_true(file->n >= 16);
    data.n = number(file->at, 8);
    assert_true(data.n <= file->n - 16);
    assert_int_equal(number(file->at + 8, 4), checksum((bytes){ file->at, 8 }));
    assert_int_equal(number(data.at + data.n, 4), checksum(data));
    file->at += 16 + data.n;
    file->n -= 16 + data.n;
    return data;
}

static uint64_t next_varint(bytes *b)
{
    uint64_t x = 0;

    for (int shift = 0; shift < 64; shift += 7) {
        uint8_t byte;

        assert_true(b->n > 0);
        byte = *b->at++;
        b->n--;
        x |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) {
            return x;
        }
    }
    fail_msg("a number is too long");
    return 0;
}

/* The next field of a message: its number, wire type (0 varint, 1: 8 bytes, 2: length and
 * bytes, 5: 4 bytes) and contents. */
typedef struct field { uint64_t number, type, value; bytes data; } field;

static field next_field(bytes *b)
{
    uint64_t key = next_varint(b), n;
    field f = { .number = key >> 3, .type = key & 7 };

    assert_true(f.type == 0 || f.type == 1 || f.type == 2 || f.type == 5);
    if (f.type == 0) {
        f.value = next_varint(b);
        return f;
    }
    n = f.type == 1 ? 8 : f.type == 5 ? 4 : next_varint(b);
    assert_true(n <= b->n);
    f.data = (bytes){ b->at, n };
    b->at += n;
    b->n -= n;
    return f;
}

typedef struct event {
    double wall_time;
    int64_t step;
    char version[32];
    uint32_t n_value;
    struct { char tag[32]; float value; } values[16];
} event;

static void copy_text(char *to, size_t size, bytes from)
{
    assert_true(from.n < size);
    memcpy(to, from.at, from.n);
    to[from.n] = '\0';
}

static void read_value(event *e, bytes b)
{
    assert_true(e->n_value < 16);
    while (b.n > 0) {
        field f = next_field(&b);
        uint32_t bits;

        if (f.number == 1) {
            copy_text(e->values[e->n_value].tag, 32, f.data);
        } else {
            assert_true(f.number == 2 && f.type == 5);
            bits = (uint32_t)number(f.data.at, 4);
            memcpy(&e->values[e->n_value].value, &bits, 4);
        }
    }
    e->n_value++;
}

static event read_event(bytes b)
{
    event e = { 0 };

    while (b.n > 0) {
        field f = next_field(&b);
        uint64_t bits;

        if (f.number == 1 && f.type == 1) {
            bits = number(f.data.at, 8);
            memcpy(&e.wall_time, &bits, 8);
        } else if (f.number == 2 && f.type == 0) {
            e.step = (int64_t)f.value;
        } else if (f.number == 3 && f.type == 2) {
            copy_text(e.version, sizeof e.version, f.data);
        } else {
            assert_true(f.number == 5 && f.type == 2);
            while (f.data.n > 0) {
                field value = next_field(&f.data);

                assert_true(value.number == 1 && value.type == 2);
                read_value(&e, value.data);
            }
        }
    }
    return e;
}

/* ---- the file ---- */

/* Reads the one file in the directory and removes both. */
static bytes take_file(uint8_t *memory, size_t size)
{
    DIR *all = opendir(directory);
    char path[400] = "";
    struct dirent *entry;
    bytes file = { memory, 0 };
    FILE *stream;

    assert_non_null(all);
    while ((entry = readdir(all)) != NULL) {
        if (entry->d_name[0] != '.') {
            assert_string_equal(path, "");
            assert_non_null(strstr(entry->d_name, "tfevents"));
            (void)snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        }
    }
    (void)closedir(all);
    stream = fopen(path, "rb");
    assert_non_null(stream);
    file.n = fread(memory, 1, size, stream);
    assert_true(file.n < size);
    (void)fclose(stream);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(directory), 0);
    return file;
}

static double value_of(const event *e, const char *tag)
{
    for (uint32_t i = 0; i < e->n_value; i++) {
        if (strcmp(e->values[i].tag, tag) == 0) {
            return (double)e->values[i].value;
        }
    }
    fail_msg("no %s", tag);
    return 0;
}

static void checksums_are_the_known_ones(void **state)
{
    uint8_t ones[32];
    uint32_t mask = 0xa282ead8u, crc = 0x62a8ab43u; /* of 32 bytes of ones: RFC 3720, B.4 */

    (void)state;
    memset(ones, 0xff, sizeof ones);
    assert_int_equal(checksum((bytes){ ones, 32 }), ((crc >> 15) | (crc << 17)) + mask);
}

static void events_hold_the_run(void **state)
{
    static uint8_t memory[65536];
    bytes file;
    event e;
    tiny t;

    (void)state;
    tiny_open(&t, TINY_LLAMA, 2, 16, 8);
    tiny_set(&t, "micro_batch=2 precision=fp16");
    t.options.tensorboard = directory;
    t.options.validation = t.options.data;
    t.options.validation_batches = 1;
    tiny_train(&t, 3);
    file = take_file(memory, sizeof memory);
    e = read_event(next_record(&file));
    assert_string_equal(e.version, "brain.Event:2");
    assert_int_equal(e.n_value, 0);
    for (int i = 0; i < 3; i++) {
        const smp_exec_step *s = &t.result.steps[i];

        e = read_event(next_record(&file));
        assert_int_equal(e.step, i + 1);
        assert_true(e.wall_time > 1.5e9);
        assert_int_equal(e.n_value, 7);
        check_rel(value_of(&e, "loss"), (double)(float)s->loss, 0);
        check_rel(value_of(&e, "gradient_norm"), (double)(float)s->norm, 0);
        check_rel(value_of(&e, "lr"), (double)(float)s->lr, 0);
        check_rel(value_of(&e, "loss_scale"), 65536, 0);
        check_rel(value_of(&e, "tokens_per_s"), s->targets / s->seconds, 1e-6);
        check_rel(value_of(&e, "arena_bytes"), (double)(float)t.result.arena_bytes, 1e-6);
        assert_true(value_of(&e, "mfu") <= 0); /* not measured: a zero that is there */
    }
    e = read_event(next_record(&file));
    assert_int_equal(e.step, 3);
    check_rel(value_of(&e, "validation_loss"), (double)(float)t.result.validation_loss, 0);
    assert_int_equal(file.n, 0);
    tiny_close(&t);
}

static void a_directory_that_cannot_be_made_is_told(void **state)
{
    tiny t;

    (void)state;
    tiny_open(&t, TINY_LLAMA, 1, 16, 8);
    t.options.tensorboard = "/dev/null/events";
    check_ok(smp_job_resolve(&t.job, t.errors), t.errors);
    check_fails(smp_exec_run(&t.job, &t.options, t.errors, &t.result), SMP_SYSTEM, t.errors,
                "/dev/null/events: cannot be made: Not a directory");
    tiny_close(&t);
}

/* Why a write failed, as it does on a full disk; here by a limit on the size of files. */
static void a_failed_write_is_told(void **state)
{
    struct rlimit before, none;
    smp_errors *errors = smp_errors_create();
    smp_board *board = NULL;
    uint8_t memory[8];

    (void)state;
    assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    none = (struct rlimit){ .rlim_cur = 0, .rlim_max = before.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    check_fails(smp_board_create(directory, errors, &board), SMP_SYSTEM, errors,
                "writing failed: File too large");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    check_u64(take_file(memory, sizeof memory).n, 0);
    smp_errors_destroy(errors);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(checksums_are_the_known_ones),
    cmocka_unit_test(events_hold_the_run),
    cmocka_unit_test(a_directory_that_cannot_be_made_is_told),
    cmocka_unit_test(a_failed_write_is_told),
};

#else

static void the_option_is_refused(void **state)
{
    tiny t;

    (void)state;
    tiny_open(&t, TINY_LLAMA, 1, 16, 8);
    t.options.tensorboard = directory;
    check_ok(smp_job_resolve(&t.job, t.errors), t.errors);
    check_fails(smp_exec_run(&t.job, &t.options, t.errors, &t.result), SMP_INPUT, t.errors,
                "--tensorboard: this program was built without protobuf-c");
    tiny_close(&t);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(the_option_is_refused),
};
#endif

CHECK_MAIN(tests)
