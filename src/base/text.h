/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text out: growing strings, numbers for people, JSON writing, files that appear whole.
 */
#ifndef SMP_BASE_TEXT_H
#define SMP_BASE_TEXT_H

#include "smp.h"

/* A growing string; start from {0}, release with smp_text_free. */
typedef struct smp_text { char *data; size_t length, capacity; } smp_text;
void smp_text_free(smp_text *text);
void smp_text_add(smp_text *text, const char *format, ...) SMP_PRINTF(2, 3);
void smp_text_add_n(smp_text *text, const char *bytes, size_t n);

/* "12.3 GiB", "1.50 ms", "405.9 B": at most 10 characters.  Four buffers in rotation per
 * thread, so that four may stand in one printf. */
const char *smp_show_bytes(uint64_t bytes);
const char *smp_show_signed_bytes(int64_t bytes);
const char *smp_show_seconds(double seconds);
const char *smp_show_count(double count);

/* JSON writer: two-space indentation, keys in the order given, doubles with 17 significant
 * digits at most (shortest that reads back equal), so output is the same byte for byte. */
typedef struct smp_json_out {
    smp_text text;
    int depth;  /* of open brackets; at 0 the document is complete and ends in a newline */
    bool first; /* nothing stands in the innermost bracket yet */
} smp_json_out;
/* The key is NULL inside arrays and at the top. */
void smp_out_object(smp_json_out *out, const char *key);
void smp_out_array(smp_json_out *out, const char *key);
void smp_out_end_object(smp_json_out *out);
void smp_out_end_array(smp_json_out *out);
void smp_out_string(smp_json_out *out, const char *key, const char *value); /* NULL: null */
void smp_out_u64(smp_json_out *out, const char *key, uint64_t value);
void smp_out_i64(smp_json_out *out, const char *key, int64_t value);
void smp_out_double(smp_json_out *out, const char *key, double value); /* non-finite: null */
/* An array of numbers with ten significant digits, several to a line. */
void smp_out_numbers(smp_json_out *out, const char *key, const double *values, size_t n);
void smp_out_bool(smp_json_out *out, const char *key, bool value);
/* Inserts a parsed value as it is. */
struct cJSON;
void smp_out_value(smp_json_out *out, const char *key, const struct cJSON *value);

/* A file under its final name only when complete: written beside it under a temporary name,
 * flushed, renamed.  "-" is standard output.  Close reports any write error. */
typedef struct smp_file smp_file;
SMP_CHECK smp_status smp_file_create(const char *path, smp_errors *errors, smp_file **file_p);
FILE *smp_file_stream(smp_file *file);
SMP_CHECK smp_status smp_file_commit(smp_file *file, smp_errors *errors); /* frees it */
void smp_file_abandon(smp_file *file);                                    /* removes, frees */
SMP_CHECK smp_status smp_file_write(const char *path, const char *bytes, size_t n,
                                    smp_errors *errors);
/* Flushes a stream such as stdout and fails when anything written to it was lost. */
SMP_CHECK smp_status smp_stream_check(FILE *stream, const char *name, smp_errors *errors);

/* Of an input that cannot be read: SMP_INPUT where `error`, an errno, is of the path (not
 * there, a directory, not permitted), else SMP_SYSTEM. */
smp_status smp_read_status(int error);

/* Makes a directory, and those above it, where they are missing. */
SMP_CHECK smp_status smp_make_directory(const char *path, smp_errors *errors);

/* Finds a data file: PATH itself, then NAME(.json) under configs/KIND of $SMP_CONFIGS, the
 * build tree and the installed place; the same for plots/.  The result is heap memory. */
SMP_CHECK smp_status smp_find_config(const char *kind, const char *name_or_path,
                                     smp_errors *errors, char **path_p);
SMP_CHECK smp_status smp_find_plot_script(const char *name, smp_errors *errors, char **path_p);

#endif
