/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Event files: records of protocol buffers.
 *
 * A record is its length (8 bytes), a checksum of these bytes (4), the event, and a checksum of
 * it (4), all little-endian [TensorFlow, "TFRecord and tf.train.Example", "TFRecords format
 * details"].  A checksum is a masked CRC-32C: rotated right by 15 bits, plus 0xa282ead8.
 * TensorBoard takes files whose names hold "tfevents".
 */
#include "config.h"

#include "exec/tensorboard.h"

#include "base/arena.h"
#include "base/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef SMP_HAVE_PROTOBUF_C
#include "exec/events.pb-c.h"

enum { MOST_VALUES = 16 };

struct smp_board {
    FILE *stream;
    char *path;
};

/* CRC-32C [Castagnoli et al. 1993; RFC 3720, appendix B.4], bit by bit: an event has some 200
 * bytes. */
static uint32_t crc32c(const uint8_t *bytes, size_t n)
{
    uint32_t crc = 0xffffffffu;

    for (size_t i = 0; i < n; i++) {
        crc ^= bytes[i];
        for (int k = 0; k < 8; k++) {
            crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78u : 0);
        }
    }
    return ~crc;
}

static void put_le(uint8_t *to, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) {
        to[i] = (uint8_t)(value >> (8 * i));
    }
}

static void put_checksum(uint8_t *to, const uint8_t *bytes, size_t n)
{
    uint32_t crc = crc32c(bytes, n);

    put_le(to, ((crc >> 15) | (crc << 17)) + 0xa282ead8u, 4);
}

static smp_status write_event(smp_board *board, Smp__Event *event, smp_errors *errors)
{
    struct timespec now;
    size_t n;
    uint8_t *record;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    event->has_wall_time = true;
    event->wall_time = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    n = smp__event__get_packed_size(event);
    record = smp_heap_alloc(n + 16, 1);
    put_le(record, n, 8);
    put_checksum(record + 8, record, 8);
    (void)smp__event__pack(event, record + 12);
    put_checksum(record + 12 + n, record + 12, n);
    (void)fwrite(record, 1, n + 16, board->stream);
    free(record);
    /* one flush: the next would find the buffer empty and no longer say why it failed */
    return smp_stream_check(board->stream, board->path, errors);
}

/* events.out.tfevents.SECONDS.HOST.PROCESS, as others name them. */
static char *file_name(const char *directory)
{
    enum { MORE = 400 };
    size_t size = strlen(directory) + MORE;
    char host[256] = "host", *path = smp_heap_alloc(size, 1);

    (void)gethostname(host, sizeof host - 1);
    (void)snprintf(path, size, "%s/events.out.tfevents.%010lld.%s.%ld", directory,
                   (long long)time(NULL), host, (long)getpid());
    return path;
}

smp_status smp_board_create(const char *directory, smp_errors *errors, smp_board **board_p)
{
    char version[] = "brain.Event:2";
    smp_status status = smp_make_directory(directory, errors);
    Smp__Event event = SMP__EVENT__INIT;
    smp_board *board;

    if (status != SMP_OK) {
        return status;
    }
    board = smp_heap_alloc(1, sizeof *board);
    board->path = file_name(directory);
    board->stream = fopen(board->path, "wbe");
    if (board->stream) {
        event.file_version = version;
        status = write_event(board, &event, errors);
    } else {
        status = smp_fail(errors, SMP_SYSTEM, &(smp_place){ .file = board->path },
                          "cannot be written: %s", strerror(errno));
    }
    if (status != SMP_OK) {
        smp_errors *ignored = smp_errors_create(); /* the first failure is told */
        smp_status closed = smp_board_close(board, ignored);

        (void)closed;
        smp_errors_destroy(ignored);
        return status;
    }
    *board_p = board;
    return SMP_OK;
}

smp_status smp_board_add(smp_board *board, uint64_t step, const smp_board_value *values,
                         size_t n, smp_errors *errors)
{
    Smp__Value all[MOST_VALUES], *pointers[MOST_VALUES];
    Smp__Summary summary = SMP__SUMMARY__INIT;
    Smp__Event event = SMP__EVENT__INIT;

    n = n < MOST_VALUES ? n : MOST_VALUES;
    for (size_t i = 0; i < n; i++) {
        smp__value__init(&all[i]);
        all[i].tag = (char *)(uintptr_t)values[i].tag; /* is only read */
        all[i].has_simple_value = true;
        all[i].simple_value = (float)values[i].value;
        pointers[i] = &all[i];
    }
    summary.n_value = n;
    summary.value = pointers;
    event.has_step = true;
    event.step = (int64_t)step;
    event.summary = &summary;
    return write_event(board, &event, errors);
}

smp_status smp_board_close(smp_board *board, smp_errors *errors)
{
    smp_status status = SMP_OK;

    if (!board) {
        return SMP_OK;
    }
    if (board->stream && fclose(board->stream) != 0) {
        status = smp_fail(errors, SMP_SYSTEM, &(smp_place){ .file = board->path },
                          "writing failed: %s", strerror(errno));
    }
    free(board->path);
    free(board);
    return status;
}

#else

smp_status smp_board_create(const char *directory, smp_errors *errors, smp_board **board_p)
{
    (void)directory;
    (void)board_p;
    return smp_fail(errors, SMP_INPUT, &(smp_place){ .file = "--tensorboard" },
                    "this program was built without protobuf-c, which writes event files");
}

smp_status smp_board_add(smp_board *board, uint64_t step, const smp_board_value *values,
                         size_t n, smp_errors *errors)
{
    (void)board;
    (void)step;
    (void)values;
    (void)n;
    (void)errors;
    return SMP_OK;
}

smp_status smp_board_close(smp_board *board, smp_errors *errors)
{
    (void)board;
    (void)errors;
    return SMP_OK;
}
#endif
