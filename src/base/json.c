/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON documents: the text, cJSON's tree of it, and the spans of the scan joined to the tree.
 */
#include "config.h"

#include "base/json.h"

#include "base/arena.h"
#include "base/json_scan.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A node of the tree and the index of its span; sorted by address to find one by the other. */
typedef struct node_index {
    const cJSON *node;
    uint32_t index;
} node_index;

struct smp_json {
    smp_arena *arena; /* name and paths */
    char *text;
    const char *name;
    cJSON *root;
    smp_json_spans spans;
    const cJSON **node; /* node of each span */
    node_index *by_node;
};

enum { DUPLICATES_TOLD = 20 };

/* ------------------------------------------------------------------ places */

static int compare_nodes(const void *a, const void *b)
{
    const node_index *x = a;
    const node_index *y = b;

    return ((uintptr_t)x->node > (uintptr_t)y->node)
           - ((uintptr_t)x->node < (uintptr_t)y->node);
}

/* The index of a value's span; UINT32_MAX for a value of another document. */
static uint32_t index_of(const smp_json *json, const cJSON *value)
{
    node_index wanted = {value, 0};
    const node_index *found = bsearch(&wanted, json->by_node, json->spans.count,
                                      sizeof *json->by_node, compare_nodes);

    return found ? found->index : UINT32_MAX;
}

static bool is_identifier(const char *key)
{
    if (key[0] == '\0') {
        return false;
    }
    for (const char *c = key; *c != '\0'; c++) {
        if (!(*c >= 'a' && *c <= 'z') && !(*c >= 'A' && *c <= 'Z') && !(*c >= '0' && *c <= '9')
            && *c != '_' && *c != '-') {
            return false;
        }
    }
    return true;
}

/* "$.rope_scaling.factor", "$.links[2]", "$["a b"]". */
static void add_path(const smp_json *json, uint32_t index, smp_text *path)
{
    const smp_json_span *span = &json->spans.span[index];
    const cJSON *node = json->node[index];

    if (index == 0) {
        smp_text_add(path, "$");
        return;
    }
    add_path(json, span->parent, path);
    if (node->string == NULL) {
        smp_text_add(path, "[%u]", (unsigned)span->ordinal);
    } else if (is_identifier(node->string)) {
        smp_text_add(path, ".%s", node->string);
    } else {
        smp_text_add(path, "[\"%.60s\"]", node->string);
    }
}

smp_place smp_json_place(const smp_json *json, const cJSON *value)
{
    uint32_t index = index_of(json, value);
    smp_place place = {.file = json->name};
    smp_text path = {0};

    if (index == UINT32_MAX) {
        return place;
    }
    add_path(json, index, &path);
    place.line = json->spans.span[index].line;
    place.column = json->spans.span[index].column;
    place.path = smp_arena_strdup(json->arena, path.data);
    smp_text_free(&path);
    return place;
}

smp_place smp_json_key_place(const smp_json *json, const cJSON *member)
{
    uint32_t index = index_of(json, member);
    smp_place place = smp_json_place(json, member);

    if (index != UINT32_MAX) {
        place.line = json->spans.span[index].key_line;
        place.column = json->spans.span[index].key_column;
    }
    return place;
}

/* -------------------------------------------------------------- keys twice */

static int compare_keys(const void *a, const void *b)
{
    const node_index *x = a;
    const node_index *y = b;
    int order = strcmp(x->node->string, y->node->string);

    return order ? order : (x->index > y->index) - (x->index < y->index);
}

static void fail_duplicate(const smp_json *json, uint32_t first, uint32_t second,
                           smp_errors *errors)
{
    smp_place where = smp_json_key_place(json, json->node[second]);

    (void)smp_fail(errors, SMP_INPUT, &where, "key given twice (first on line %u)",
                   (unsigned)json->spans.span[first].key_line);
}

/* The members are sorted by key in a scratch array, so that an object of a million keys is
 * no trap. */
static void check_object(const smp_json *json, const node_index *members, size_t count,
                         size_t *told, smp_errors *errors)
{
    for (size_t i = 1; i < count && *told < DUPLICATES_TOLD; i++) {
        if (strcmp(members[i - 1].node->string, members[i].node->string) == 0) {
            fail_duplicate(json, members[i - 1].index, members[i].index, errors);
            (*told)++;
        }
    }
}

static smp_status check_duplicates(const smp_json *json, smp_errors *errors)
{
    node_index *members = smp_heap_alloc(json->spans.count, sizeof *members);
    size_t told = 0;

    for (size_t i = 0; i < json->spans.count; i++) {
        size_t count = 0;

        if (!cJSON_IsObject(json->node[i])) {
            continue;
        }
        for (const cJSON *child = json->node[i]->child; child != NULL; child = child->next) {
            members[count++] = (node_index){child, index_of(json, child)};
        }
        qsort(members, count, sizeof *members, compare_keys);
        check_object(json, members, count, &told, errors);
    }
    free(members);
    return told == 0 ? SMP_OK : SMP_INPUT;
}

/* ----------------------------------------------------------- making a tree */

/* Scan and tree are walked in document order together; depth is bounded by the scan. */
static void join_nodes(smp_json *json, const cJSON *node, uint32_t *next)
{
    uint32_t self = (*next)++;

    json->node[self] = node;
    json->by_node[self] = (node_index){node, self};
    for (const cJSON *child = node->child; child != NULL; child = child->next) {
        join_nodes(json, child, next);
    }
}

static smp_status build(smp_json *json, size_t n, smp_errors *errors)
{
    smp_status status = smp_json_scan(json->text, n, json->name, errors, &json->spans);
    uint32_t next = 0;

    if (status != SMP_OK) {
        return status;
    }
    json->root = cJSON_ParseWithLength(json->text, n);
    if (json->root == NULL) { /* the text is right, so only memory can have failed */
        return smp_fail(errors, SMP_SYSTEM, &(smp_place){.file = json->name},
                        "not enough memory for its %zu values", json->spans.count);
    }
    json->node = smp_heap_alloc(json->spans.count, sizeof *json->node);
    json->by_node = smp_heap_alloc(json->spans.count, sizeof *json->by_node);
    join_nodes(json, json->root, &next);
    qsort(json->by_node, json->spans.count, sizeof *json->by_node, compare_nodes);
    return check_duplicates(json, errors);
}

/* Takes over `text`, heap memory of n bytes and a terminator. */
static smp_status parse_taken(char *text, size_t n, const char *name, smp_errors *errors,
                              smp_json **json_p)
{
    smp_json *json = smp_heap_alloc(1, sizeof *json);
    smp_status status;

    json->arena = smp_arena_create();
    json->text = text;
    json->name = smp_arena_strdup(json->arena, name);
    if (n >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) {
        memset(text, ' ', 3); /* a byte order mark is harmless: positions stay */
    }
    status = build(json, n, errors);
    if (status != SMP_OK) {
        smp_json_destroy(json);
        return status;
    }
    *json_p = json;
    return SMP_OK;
}

smp_status smp_json_parse(const char *text, size_t n, const char *name, smp_errors *errors,
                          smp_json **json_p)
{
    char *copy = smp_heap_alloc(n + 1, 1);

    if (n != 0) {
        memcpy(copy, text, n);
    }
    return parse_taken(copy, n, name, errors, json_p);
}

/* ------------------------------------------------------------ reading files */

static smp_status fail_read(const char *path, int error, smp_errors *errors)
{
    return smp_fail(errors, smp_read_status(error), &(smp_place){.file = path},
                    "cannot be read: %s", strerror(error));
}

/* Reads to the end, or one byte more than is accepted; errno or 0. */
static int read_all(int fd, smp_text *text)
{
    static const size_t step_bytes = 1 << 16;
    char *block = smp_heap_alloc(step_bytes, 1);
    int error = 0;

    while (text->length <= SMP_JSON_BYTES) {
        ssize_t got = read(fd, block, step_bytes);

        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            error = got < 0 ? errno : 0;
            break;
        }
        smp_text_add_n(text, block, (size_t)got);
    }
    free(block);
    return error;
}

smp_status smp_json_load(const char *path, smp_errors *errors, smp_text *text_p)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    smp_text text = {0};
    struct stat info;
    int error = 0;

    if (fd < 0) {
        return fail_read(path, errno, errors);
    }
    if (fstat(fd, &info) != 0) {
        error = errno;
    } else if (S_ISDIR(info.st_mode)) {
        error = EISDIR;
    } else if (S_ISREG(info.st_mode) && info.st_size > SMP_JSON_BYTES) {
        (void)close(fd);
        return smp_fail(errors, SMP_INPUT, &(smp_place){.file = path},
                        "more than %d MiB: too large", SMP_JSON_BYTES / 1024 / 1024);
    } else {
        smp_text_add_n(&text, "", 0);
        error = read_all(fd, &text);
    }
    (void)close(fd);
    if (error != 0) {
        smp_text_free(&text);
        return fail_read(path, error, errors);
    }
    *text_p = text;
    return SMP_OK;
}

smp_status smp_json_read(const char *path, smp_errors *errors, smp_json **json_p)
{
    smp_text text;
    smp_status status = smp_json_load(path, errors, &text);

    if (status != SMP_OK) {
        return status;
    }
    return parse_taken(text.data, text.length, path, errors, json_p);
}

void smp_json_destroy(smp_json *json)
{
    if (json == NULL) {
        return;
    }
    cJSON_Delete(json->root);
    free(json->spans.span);
    free(json->node);
    free(json->by_node);
    free(json->text);
    smp_arena_destroy(json->arena);
    free(json);
}

const cJSON *smp_json_root(const smp_json *json)
{
    return json->root;
}

const char *smp_json_source(const smp_json *json, const cJSON *value, size_t *n_p)
{
    uint32_t index = index_of(json, value);

    if (index == UINT32_MAX) {
        *n_p = 0;
        return "";
    }
    *n_p = json->spans.span[index].size_bytes;
    return json->text + json->spans.span[index].offset;
}

/* ------------------------------------------------------------ exact integers */

/* A decimal number as digits x 10^exponent, without zeros at either end of the digits. */
typedef struct decimal {
    char digit[SMP_JSON_NUMBER_BYTES];
    size_t n;
    long exponent;
} decimal;

/* The exponent after 'e', held within a range that decides every case the same way. */
static long read_exponent(const char *text, size_t n)
{
    bool negative = n > 0 && text[0] == '-';
    long value = 0;

    for (size_t i = n > 0 && (text[0] == '-' || text[0] == '+'); i < n; i++) {
        value = value > 100000 ? value : 10 * value + (text[i] - '0');
    }
    return negative ? -value : value;
}

/* `text` has the grammar of a JSON number without its sign. */
static decimal read_decimal(const char *text, size_t n)
{
    decimal d = {{0}, 0, 0};
    bool fraction = false;

    for (size_t i = 0; i < n; i++) {
        if (text[i] == 'e' || text[i] == 'E') {
            d.exponent += read_exponent(text + i + 1, n - i - 1);
            break;
        }
        if (text[i] == '.') {
            fraction = true;
            continue;
        }
        d.exponent -= fraction;
        if (d.n > 0 || text[i] != '0') {
            d.digit[d.n++] = text[i];
        }
    }
    while (d.n > 0 && d.digit[d.n - 1] == '0') {
        d.n--;
        d.exponent++;
    }
    return d;
}

bool smp_json_u64(const smp_json *json, const cJSON *value, uint64_t *u_p)
{
    size_t n;
    const char *text = smp_json_source(json, value, &n);
    bool negative = n > 0 && text[0] == '-';
    uint64_t u = 0;
    decimal d;

    if (!cJSON_IsNumber(value)) {
        return false;
    }
    d = read_decimal(text + negative, n - negative);
    if (d.n > 0 && (negative || d.exponent < 0 || d.exponent > 19)) {
        return false;
    }
    for (size_t i = 0; i < d.n + (d.n > 0 ? (size_t)d.exponent : 0); i++) {
        uint64_t digit = i < d.n ? (uint64_t)(d.digit[i] - '0') : 0;

        if (u > (UINT64_MAX - digit) / 10) {
            return false;
        }
        u = 10 * u + digit;
    }
    *u_p = u;
    return true;
}
