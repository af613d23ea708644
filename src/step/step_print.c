/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The step program as text, for people: at most 100 columns, the same byte for byte.
 *
 * In the order of reading: what runs where (streams, communicators), what lies where
 * (buffers), what is done (segments with their tasks and waits), in which order, and what it
 * takes.  Repetition is written once: layers as "times", micro-batches that are alike as one.
 */
#include "base/text.h"
#include "step/order.h"

#include <string.h>

enum { COLUMNS = 100, MOST_PERIOD = 12 };

/* Text that wraps between words; later lines of a paragraph are indented. */
struct page {
    smp_text text;
    size_t line_start;
    int indent;
};

static size_t column(const struct page *page)
{
    return page->text.length - page->line_start;
}

static void new_line(struct page *page)
{
    while (page->text.length > page->line_start &&
           page->text.data[page->text.length - 1] == ' ') {
        page->text.length--;
    }
    smp_text_add(&page->text, "\n");
    page->line_start = page->text.length;
}

/* Adds words that stay together, on a new line when they do not fit. */
static void put(struct page *page, const char *format, ...) SMP_PRINTF(2, 3);
static void put(struct page *page, const char *format, ...)
{
    char word[256];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(word, sizeof word, format, args);
    va_end(args);
    n = n < (int)sizeof word ? n : (int)sizeof word - 1;
    if (column(page) + (size_t)n > COLUMNS && column(page) > (size_t)page->indent) {
        new_line(page);
        smp_text_add(&page->text, "%*s", page->indent, "");
    }
    smp_text_add_n(&page->text, word, (size_t)n);
}

static void heading(struct page *page, const char *title)
{
    new_line(page);
    put(page, "%s", title);
    new_line(page);
}

/* ------------------------------------------------------------- what runs where */

static void print_streams(struct page *page, const smp_program *program)
{
    uint64_t n_task[SMP_STREAMS] = {0}, n_wait = 0;
    for (uint32_t i = 0; i < program->n_instance; i++) {
        const smp_segment *segment = &program->segments[program->order[i].segment];
        for (uint32_t t = segment->task0; t < segment->task0 + segment->n_task; t++) {
            n_task[program->tasks[t].stream]++;
        }
        n_wait += program->patterns[program->order[i].pattern].n_wait;
    }
    heading(page, "Streams (tasks in a step)");
    page->indent = 2;
    put(page, "  ");
    for (uint32_t s = 0; s < SMP_STREAMS; s++) {
        if (n_task[s] > 0) {
            put(page, "%s %llu   ", smp_stream_name((smp_stream)s),
                (unsigned long long)n_task[s]);
        }
    }
    put(page, "waits between them %llu", (unsigned long long)n_wait);
    new_line(page);
}

static void print_comms(struct page *page, const smp_program *program)
{
    if (program->n_comm == 0) {
        return;
    }
    heading(page, "Communicators");
    for (uint32_t c = 0; c < program->n_comm; c++) {
        const smp_comm *comm = &program->comms[c];
        const smp_placement *at = &comm->placement;
        page->indent = 14;
        put(page, "  %-12s %-14s %5u ranks on %u node%s", comm->name,
            smp_group_name(comm->group), comm->ranks, at->nodes, at->nodes == 1 ? "" : "s");
        bool even = at->least_per_node == at->most_per_node;
        put(page, even ? ", %u a node" : ", %u or less a node", at->most_per_node);
        put(page, at->stride == 1 ? ", side by side" : ", %u ranks apart", at->stride);
        if (at->nodes > 1) {
            put(page, at->sharers == at->least_per_node ? ", alone on its network"
                                                        : ", %.3g share the network",
                (double)at->sharers / (double)at->least_per_node);
        }
        new_line(page);
    }
}

/* ------------------------------------------------------------- what lies where */

static void entries_text(const smp_buffer *buffer, char text[32])
{
    if (buffer->index == SMP_INDEX_TURN) {
        (void)snprintf(text, 32, "turn mod %u", smp_place_count(buffer));
    } else if (buffer->index == SMP_INDEX_LAYER && buffer->slots > 0) {
        (void)snprintf(text, 32, "layer mod %u", buffer->slots);
    } else if (buffer->index == SMP_INDEX_LAYER) {
        uint32_t last = buffer->first - 1
                        + (buffer->entry_of_layer ? buffer->layers : buffer->entries);

        (void)snprintf(text, 32, "%u of layer %u..%u", buffer->entries, buffer->first, last);
        if (!buffer->entry_of_layer) {
            (void)snprintf(text, 32, "layer %u..%u", buffer->first, last);
        }
    } else {
        (void)snprintf(text, 32, "one");
    }
}

static const char *scope_text(smp_scope scope)
{
    return scope == SMP_SCOPE_STEP ? "step" : scope == SMP_SCOPE_INSTANCE ? "instance" : "use";
}

static void print_where(struct page *page, const smp_program *program, const smp_buffer *buffer)
{
    if (buffer->index == SMP_INDEX_TURN) {
        for (uint32_t s = 0; s < smp_place_count(buffer); s++) {
            put(page, "%s%#llx", s == 0 ? "" : ", ",
                (unsigned long long)program->slot_bases[buffer->slot_base + s]);
        }
    } else {
        put(page, "%#llx", (unsigned long long)buffer->base);
        if (smp_place_count(buffer) > 1) {
            put(page, " + i * %#llx", (unsigned long long)buffer->stride);
        }
    }
}

static bool next_space(smp_space space, smp_space *next_p)
{
    if (space == SMP_SPACE_TOKEN) {
        return false;
    }
    *next_p = (smp_space)(space + 1);
    return true;
}

static void print_space(struct page *page, const smp_program *program, smp_space space)
{
    static const char *const titles[SMP_SPACES] = {
        "Buffers on the device", "Buffers in pinned host memory",
        "Tokens (no memory: an order to keep)"};
    bool any = false;
    for (uint32_t b = 0; b < program->n_buffer; b++) {
        const smp_buffer *buffer = &program->buffers[b];
        char entries[32], bytes[16];
        if (buffer->space != space) {
            continue;
        }
        if (!any) {
            heading(page, titles[space]);
            put(page, "  %-22s %-10s %10s  %-12s %-8s  %s", "name", "kind", "an entry",
                "entries", "lives", "address");
            new_line(page);
        }
        any = true;
        entries_text(buffer, entries);
        (void)snprintf(bytes, sizeof bytes, "%s",
                       space == SMP_SPACE_TOKEN ? "-" : smp_show_bytes(buffer->bytes));
        page->indent = 71;
        put(page, "  %-22s %-10s %10s  %-12s %-8s  ", buffer->name,
            smp_kind_name(buffer->kind), bytes, entries, scope_text(buffer->scope));
        print_where(page, program, buffer);
        new_line(page);
    }
}

/* ----------------------------------------------------------------- what is done */

static void print_operand(struct page *page, const smp_program *program,
                          const smp_access *access)
{
    const smp_buffer *buffer = &program->buffers[access->buffer];
    char where[96] = "", range[64] = "";
    const char *index = buffer->index == SMP_INDEX_TURN ? "turn" : "layer";
    if (buffer->index != SMP_INDEX_NONE && access->delta != 0) {
        (void)snprintf(where, sizeof where, "[%s%+d]", index, access->delta);
    }
    if (access->bytes != smp_place_bytes(buffer)) {
        (void)snprintf(range, sizeof range, "(%s at %s)", smp_show_bytes(access->bytes),
                       access->offset_bytes == 0 ? "0" : smp_show_bytes(access->offset_bytes));
    }
    put(page, "%s %s%s%s  ", access->reads ? access->writes ? "rw" : "r" : "w", buffer->name,
        where, range);
}

static void print_task(struct page *page, const smp_program *program, uint32_t number,
                       const smp_task *task)
{
    char dims[200] = "";
    int at = 0;
    uint32_t n_dim = SMP_MAX_DIMS;
    while (n_dim > 1 && task->dims[n_dim - 1] == 0) {
        n_dim--;
    }
    for (uint32_t d = 0; d < n_dim; d++) {
        at += snprintf(dims + at, sizeof dims - (size_t)at, "%s%llu", d == 0 ? "" : " x ",
                       (unsigned long long)task->dims[d]);
    }
    page->indent = 10;
    put(page, "  %3u  %-24s %-14s ", number, task->name,
        smp_op_info_of((smp_op)task->op)->name);
    put(page, "%s  ", dims);
    put(page, task->dtype == task->dtype2 ? "%s" : "%s/%s",
        smp_dtype_name((smp_dtype)task->dtype), smp_dtype_name((smp_dtype)task->dtype2));
    put(page, "  on %s", smp_stream_name((smp_stream)task->stream));
    if (task->comm != SMP_NO_COMM) {
        put(page, " over %s", program->comms[task->comm].name);
    }
    if ((task->flags & SMP_FLAG_ACCUMULATE) != 0) {
        put(page, ", adds");
    }
    if ((task->flags & SMP_FLAG_AVERAGE) != 0) {
        put(page, ", averages");
    }
    if ((task->flags & SMP_FLAG_CAUSAL) != 0) {
        put(page, ", causal");
    }
    new_line(page);
    put(page, "%*s", 10, "");
    for (uint32_t a = 0; a < task->n_access; a++) {
        print_operand(page, program, &program->accesses[task->access0 + a]);
    }
    new_line(page);
}

/* A wait by names: "3 after qkv of forward, 2 back". */
static void print_pattern(struct page *page, const smp_program *program, uint32_t instance,
                          uint32_t n_instance)
{
    const smp_pattern *pattern = &program->patterns[program->order[instance].pattern];
    page->indent = 8;
    put(page, "    waits of %u instance%s (from layer %u, micro-batch %u):", n_instance,
        n_instance == 1 ? "" : "s", program->order[instance].layer,
        program->order[instance].micro_batch);
    for (uint32_t w = pattern->wait0; w < pattern->wait0 + pattern->n_wait; w++) {
        const smp_wait *wait = &program->waits[w];
        const smp_instance *from = &program->order[instance - wait->back];
        const smp_segment *segment = &program->segments[from->segment];
        const char *name = program->tasks[segment->task0 + wait->source].name;
        if (wait->back == 0) {
            put(page, " %u after %u %s;", wait->task, wait->source, name);
        } else {
            put(page, " %u after %s %u %s, %u back;", wait->task, segment->name, wait->source,
                name, wait->back);
        }
    }
    if (pattern->n_wait == 0) {
        put(page, " none");
    }
    new_line(page);
}

/* How often each pattern occurs, and where first. */
struct occurrence { uint32_t first, n; };

static void print_segments(struct page *page, const smp_program *program, smp_arena *scratch)
{
    struct occurrence *seen =
        SMP_ARENA_ARRAY(scratch, (size_t)program->n_pattern, struct occurrence);
    heading(page, "Segments (task, operation, sizes, types, stream; operands; what waits for "
                  "what)");
    for (uint32_t s = 0; s < program->n_segment; s++) {
        const smp_segment *segment = &program->segments[s];
        uint32_t n = 0;
        memset(seen, 0, program->n_pattern * sizeof *seen);
        for (uint32_t i = 0; i < program->n_instance; i++) {
            struct occurrence *at = &seen[program->order[i].pattern];
            if (program->order[i].segment == s) {
                at->first = at->n++ == 0 ? i : at->first;
                n++;
            }
        }
        if (n == 0) {
            continue;
        }
        new_line(page);
        put(page, "  %s: %u task%s, %u instance%s", segment->name, segment->n_task,
            segment->n_task == 1 ? "" : "s", n, n == 1 ? "" : "s");
        new_line(page);
        for (uint32_t t = 0; t < segment->n_task; t++) {
            print_task(page, program, t, &program->tasks[segment->task0 + t]);
        }
        for (uint32_t p = 0; p < program->n_pattern; p++) {
            if (seen[p].n > 0) {
                print_pattern(page, program, seen[p].first, seen[p].n);
            }
        }
    }
}

/* ------------------------------------------------------------------- the order */

/* How often the `period` instances at `i` repeat before `end`, the layer moving evenly. */
static uint32_t repeats(const smp_program *program, uint32_t i, uint32_t period, uint32_t end,
                        int *step_p)
{
    uint32_t n = 1;
    if (i + 2 * period > end) {
        return 1;
    }
    int step = (int)program->order[i + period].layer - (int)program->order[i].layer;
    for (uint32_t k = i + period; k < end; k++) {
        const smp_instance *now = &program->order[k], *then = &program->order[k - period];
        if (now->segment != then->segment || (int)now->layer - (int)then->layer != step) {
            break;
        }
        n += (k - i) % period == period - 1 ? 1 : 0;
    }
    *step_p = step;
    return n;
}

static void print_instances(struct page *page, const smp_program *program, uint32_t begin,
                            uint32_t end)
{
    for (uint32_t i = begin; i < end;) {
        uint32_t best = 1, times = 1;
        int step = 0;
        for (uint32_t period = 1; period <= MOST_PERIOD; period++) {
            int by = 0;
            uint32_t n = repeats(program, i, period, end, &by);
            if (n > 1 && n * period > times * best) {
                best = period;
                times = n;
                step = by;
            }
        }
        if (times > 1) {
            put(page, "%u times", times);
            put(page, step == 0 ? " (" : " (layer %+d each: ", step);
        }
        for (uint32_t k = 0; k < best; k++) {
            const char *after = k + 1 < best ? ", " : times > 1 ? "); " : "; ";
            put(page, "%s %u%s", program->segments[program->order[i + k].segment].name,
                program->order[i + k].layer, after);
        }
        i += best * times;
    }
}

static void print_order(struct page *page, const smp_program *program, smp_arena *scratch)
{
    smp_blocks blocks;
    smp_blocks_find(program, scratch, &blocks);
    heading(page, "Order of issue (segment and layer)");
    page->indent = 6;
    for (uint32_t b = 0; b < blocks.n; b++) {
        uint32_t micro_batch = program->order[blocks.first[b]].micro_batch;
        if (blocks.regular && b == 1) {
            put(page, "  micro-batches %u..%u, alike: ", micro_batch,
                program->order[blocks.first[blocks.n - 2]].micro_batch);
        } else if (blocks.regular && b > 1 && b + 1 < blocks.n) {
            continue;
        } else {
            put(page, "  micro-batch %u: ", micro_batch);
        }
        print_instances(page, program, blocks.first[b], blocks.first[b + 1]);
        new_line(page);
    }
}

/* ------------------------------------------------------------------ what it takes */

static void print_total(struct page *page, const char *what, uint64_t bytes)
{
    put(page, "  %-44s %16llu B  %10s", what, (unsigned long long)bytes, smp_show_bytes(bytes));
    new_line(page);
}

static void print_memory(struct page *page, const smp_program *program)
{
    heading(page, "Memory");
    for (uint32_t k = 0; k < SMP_KINDS; k++) {
        char what[64];
        (void)snprintf(what, sizeof what, "  %s", smp_kind_name((smp_buffer_kind)k));
        if (program->live_kind_bytes[k] > 0) {
            print_total(page, what, program->live_kind_bytes[k]);
        }
    }
    print_total(page, "live at the peak, in order of issue", program->live_bytes);
    print_total(page, "fragmentation and safety", program->arena_bytes - program->live_bytes);
    print_total(page, "  of it so that streams may overlap", program->safety_bytes);
    print_total(page, "arena", program->arena_bytes);
    print_total(page, "arena in pinned host memory", program->host_arena_bytes);
}

static void print_program(struct page *page, const smp_program *program)
{
    smp_arena *scratch = smp_arena_create();
    smp_space space = SMP_SPACE_DEVICE;
    print_streams(page, program);
    print_comms(page, program);
    do {
        print_space(page, program, space);
    } while (next_space(space, &space));
    print_segments(page, program, scratch);
    print_order(page, program, scratch);
    print_memory(page, program);
    smp_arena_destroy(scratch);
}

smp_status smp_step_print(const smp_step *step, FILE *stream, smp_errors *errors)
{
    struct page page = {0};
    for (uint32_t c = 0; c < step->n_program; c++) {
        const smp_program *program = step->programs[c];
        if (c > 0) {
            new_line(&page);
        }
        put(&page, "Step program of rank %u", program->representative);
        if (program->count > 1) {
            put(&page, " and the %u that behave alike", program->count - 1);
        }
        put(&page, " (class %u of %u): %llu micro-batch%s", c + 1, step->n_program,
            (unsigned long long)program->micro_batches,
            program->micro_batches == 1 ? "" : "es");
        new_line(&page);
        print_program(&page, program);
    }
    (void)fwrite(page.text.data, 1, page.text.length, stream);
    smp_text_free(&page.text);
    return smp_stream_check(stream, "the step program", errors);
}
