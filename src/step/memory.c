/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory plan: gives every buffer its place in the arena of its space.
 *
 * Structure, from address 0: static buffers (scope STEP), then stacks (LAYER buffers without
 * a ring; those over the same layers are interleaved), then items: scratch, root buffers and
 * slots of rings.  Items may share places with each other and with the layers of stacks.
 *
 * Life.  A life of a place runs from the first access to an entry there to the last one before
 * the place holds something else (another key, smp_entry_key) or is written anew as a whole.
 *
 * Sharing.  Two places may share bytes when no life of one overlaps a life of the other in
 * issue order, and if, wherever a life of one begins, all earlier accesses to the other have
 * already happened by the order that exists without sharing: clocks on a trial layout in which
 * every place has bytes of its own.  So sharing orders nothing that was not ordered: waits and
 * times are those of the program in which every item lies apart (smp_step_lower_apart).
 *
 * safety_bytes is what that second condition costs: the arena less the one that the same
 * packing gives for a serial executor, where lives that do not overlap in issue order may
 * share, the slots of one ring included.
 *
 * Packing is first fit over several orders of items, the best kept; then items at the top are
 * moved to the front and packed again as long as it helps (a bounded number of rounds).
 */
#include "base/numeric.h"
#include "step/order.h"

#include <stdlib.h>
#include <string.h>

enum {
    NONE = 0xffffffffu,
    ROUNDS = 32,           /* of moving the topmost item to the front */
    MOST_PERIOD = 8        /* blocks of a ring's period that are walked */
};
static const uint64_t most_bytes = (uint64_t)1 << 60;

/* A range of bytes that is placed as a whole: a slot, a ring by layer, a buffer without
 * index, or a layer of a stack. */
struct item {
    uint64_t bytes, base;
    uint64_t span;      /* tasks during which it is alive */
    uint32_t first;     /* first life's start */
    uint32_t buffer;    /* NONE: a layer of a stack */
    uint32_t slot;
    uint8_t space;
    bool fixed;         /* its base is given */
};

struct stack {
    uint64_t base, stride;
    uint32_t first, end, entries, item0; /* end: after the last layer */
    const uint16_t *entry_of_layer;
    uint8_t space;
};

struct life { uint32_t place, start, end, next_ending; };

typedef struct planning {
    smp_program *program;
    smp_arena *scratch;
    uint32_t *place0;       /* of a buffer: number of its first place */
    uint32_t n_place;
    uint32_t *item_of_place; /* NONE: static */
    uint32_t *buffer_of_place;
    struct item *items;
    uint32_t n_item;
    struct stack *stacks;
    uint32_t n_stack;
    uint64_t floor[SMP_SPACES]; /* top of the static part */
    uint64_t stack_top[SMP_SPACES];
    uint32_t *walk;         /* instances walked */
    uint32_t n_walk;
    struct life *lives;            /* heap */
    size_t n_life, life_capacity;
    uint32_t n_position;
    uint32_t words;         /* of a row of bits */
    uint64_t *serial;       /* n_item rows: alive at once in issue order */
    uint64_t *conflict;     /* n_item rows: may not share */
} planning;

static uint64_t *row(const planning *p, uint64_t *matrix, uint32_t i)
{
    return matrix + (size_t)i * p->words;
}

static bool bit(const uint64_t *bits, uint32_t i)
{
    return (bits[i / 64] >> (i % 64) & 1) != 0;
}

static void set_bit(uint64_t *bits, uint32_t i)
{
    bits[i / 64] |= (uint64_t)1 << (i % 64);
}

/* --------------------------------------------------------------------- layout */

static bool is_stacked(const smp_buffer *buffer)
{
    return buffer->scope != SMP_SCOPE_STEP && buffer->space != SMP_SPACE_TOKEN &&
           buffer->index == SMP_INDEX_LAYER && buffer->slots == 0;
}

static bool is_static(const smp_buffer *buffer)
{
    return buffer->scope == SMP_SCOPE_STEP || buffer->space == SMP_SPACE_TOKEN;
}

/* Static buffers and tokens, one after the other. */
static void place_static(planning *p)
{
    smp_program *program = p->program;
    for (uint32_t b = 0; b < program->n_buffer; b++) {
        smp_buffer *buffer = &program->buffers[b];
        uint64_t *top = &p->floor[buffer->space];
        if (!is_static(buffer)) {
            continue;
        }
        uint64_t bytes = smp_place_bytes(buffer);
        uint32_t n_slot = buffer->index == SMP_INDEX_TURN ? smp_place_count(buffer) : 0;
        buffer->base = *top;
        buffer->stride = bytes;
        for (uint32_t s = 0; s < n_slot; s++) {
            program->slot_bases[buffer->slot_base + s] = *top + s * bytes;
        }
        *top = smp_add(*top, smp_mul(bytes, smp_place_count(buffer)));
    }
}

static struct stack *find_stack(planning *p, const smp_buffer *buffer)
{
    for (uint32_t s = 0; s < p->n_stack; s++) {
        struct stack *stack = &p->stacks[s];
        if (stack->space == buffer->space && stack->first == buffer->first &&
            stack->entries == buffer->entries &&
            stack->entry_of_layer == buffer->entry_of_layer) {
            return stack;
        }
    }
    p->stacks[p->n_stack] = (struct stack){
        .first = buffer->first,
        .end = buffer->first + (buffer->entry_of_layer ? buffer->layers : buffer->entries),
        .entries = buffer->entries, .entry_of_layer = buffer->entry_of_layer,
        .space = (uint8_t)buffer->space};
    return &p->stacks[p->n_stack++];
}

static int stack_compare(const void *a, const void *b)
{
    const struct stack *x = a, *y = b;
    if (x->end != y->end) {
        return x->end < y->end ? -1 : 1;
    }
    if (x->first != y->first) {
        return x->first > y->first ? 1 : -1;
    }
    return (x->entries > y->entries) - (x->entries < y->entries);
}

/* The last layers lie on top: they are free again first, next to the items. */
static void place_stacks(planning *p)
{
    smp_program *program = p->program;
    for (uint32_t b = 0; b < program->n_buffer; b++) {
        if (is_stacked(&program->buffers[b])) {
            struct stack *stack = find_stack(p, &program->buffers[b]);
            stack->stride = smp_add(stack->stride, program->buffers[b].bytes);
        }
    }
    if (p->n_stack > 0) {
        qsort(p->stacks, p->n_stack, sizeof *p->stacks, stack_compare);
    }
    memcpy(p->stack_top, p->floor, sizeof p->floor);
    for (uint32_t s = 0; s < p->n_stack; s++) {
        struct stack *stack = &p->stacks[s];
        uint64_t *top = &p->stack_top[stack->space];
        stack->base = *top;
        *top = smp_add(*top, smp_mul(stack->stride, stack->entries));
        stack->item0 = p->n_item;
        for (uint32_t e = 0; e < stack->entries; e++) {
            p->items[p->n_item++] = (struct item){
                .bytes = stack->stride, .base = stack->base + e * stack->stride,
                .buffer = NONE, .space = stack->space, .fixed = true};
        }
    }
}

/* Addresses inside the stack: the buffers of a layer in the order of the table. */
static void enter_stack(planning *p, uint32_t b, uint64_t *offsets)
{
    smp_buffer *buffer = &p->program->buffers[b];
    const struct stack *stack = find_stack(p, buffer);
    uint64_t *offset = &offsets[stack - p->stacks];
    buffer->base = stack->base + *offset;
    buffer->stride = stack->stride;
    *offset += buffer->bytes;
    for (uint32_t e = 0; e < buffer->entries; e++) {
        p->item_of_place[p->place0[b] + e] = stack->item0 + e;
    }
}

static void make_items(planning *p)
{
    smp_program *program = p->program;
    uint64_t *offsets = SMP_ARENA_ARRAY(p->scratch, p->n_stack, uint64_t);
    for (uint32_t b = 0; b < program->n_buffer; b++) {
        smp_buffer *buffer = &program->buffers[b];
        uint32_t n_place = smp_place_count(buffer), place0 = p->place0[b];
        bool by_slot = buffer->index == SMP_INDEX_TURN;
        if (is_static(buffer)) {
            continue;
        }
        if (is_stacked(buffer)) {
            enter_stack(p, b, offsets);
            continue;
        }
        buffer->stride = buffer->bytes;
        for (uint32_t s = 0; s < n_place; s++) {
            p->item_of_place[place0 + s] = p->n_item;
            if (by_slot || s + 1 == n_place) {
                p->items[p->n_item++] = (struct item){
                    .bytes = by_slot ? buffer->bytes : smp_mul(buffer->bytes, n_place),
                    .buffer = b, .slot = by_slot ? s : 0, .space = (uint8_t)buffer->space};
            }
        }
    }
}

static void number_places(planning *p)
{
    smp_program *program = p->program;
    uint32_t n_slot = 0, n_layer_item = 0;
    p->place0 = SMP_ARENA_ARRAY(p->scratch, program->n_buffer, uint32_t);
    for (uint32_t b = 0; b < program->n_buffer; b++) {
        smp_buffer *buffer = &program->buffers[b];
        p->place0[b] = p->n_place;
        p->n_place += smp_place_count(buffer);
        if (buffer->index == SMP_INDEX_TURN) {
            buffer->slot_base = n_slot;
            n_slot += smp_place_count(buffer);
        }
        n_layer_item += is_stacked(buffer) ? buffer->entries : 0;
    }
    program->n_slot_base = n_slot;
    program->slot_bases = SMP_ARENA_ARRAY(program->arena, n_slot, uint64_t);
    p->item_of_place = SMP_ARENA_ARRAY(p->scratch, p->n_place, uint32_t);
    p->buffer_of_place = SMP_ARENA_ARRAY(p->scratch, p->n_place, uint32_t);
    p->items = SMP_ARENA_ARRAY(p->scratch, (size_t)p->n_place + n_layer_item, struct item);
    p->stacks = SMP_ARENA_ARRAY(p->scratch, program->n_buffer, struct stack);
    for (uint32_t b = 0; b < program->n_buffer; b++) {
        for (uint32_t e = 0; e < smp_place_count(&program->buffers[b]); e++) {
            p->item_of_place[p->place0[b] + e] = NONE;
            p->buffer_of_place[p->place0[b] + e] = b;
        }
    }
}

static void set_base(planning *p, const struct item *item)
{
    if (item->buffer == NONE) {
        return;
    }
    smp_buffer *buffer = &p->program->buffers[item->buffer];
    if (buffer->index == SMP_INDEX_TURN) {
        p->program->slot_bases[buffer->slot_base + item->slot] = item->base;
    } else {
        buffer->base = item->base;
    }
}

/* ---------------------------------------------------------------------- lives */

/* First blocks, one period of the middle and the last stand for all when blocks are alike. */
static void choose_walk(planning *p)
{
    smp_blocks blocks;
    smp_blocks_find(p->program, p->scratch, &blocks);
    uint32_t period = blocks.period < MOST_PERIOD ? blocks.period : MOST_PERIOD;
    p->walk = SMP_ARENA_ARRAY(p->scratch, p->program->n_instance, uint32_t);
    for (uint32_t b = 0; b < blocks.n; b++) {
        if (blocks.regular && b > 1 + period && b + 1 < blocks.n) {
            continue;
        }
        for (uint32_t i = blocks.first[b]; i < blocks.first[b + 1]; i++) {
            p->walk[p->n_walk++] = i;
        }
    }
}

typedef struct place_state { uint64_t key; uint32_t life; } place_state;

/* Does the task do nothing with this place but write all of it? */
static bool writes_anew(const planning *p, const smp_task *task, const smp_instance *it,
                        uint32_t place)
{
    const smp_program *program = p->program;
    bool whole = false;
    for (uint32_t a = task->access0; a < task->access0 + task->n_access; a++) {
        const smp_access *access = &program->accesses[a];
        const smp_buffer *buffer = &program->buffers[access->buffer];
        if (p->place0[access->buffer] + smp_place_of(buffer, it, access->delta) != place) {
            continue;
        }
        if (access->reads) {
            return false;
        }
        whole = whole || (access->offset_bytes == 0 && access->bytes == buffer->bytes);
    }
    return whole;
}

static smp_status outside(const planning *p, const smp_task *task, uint32_t instance,
                          const smp_buffer *buffer, smp_errors *errors)
{
    const smp_instance *it = &p->program->order[instance];
    return smp_fail(errors, SMP_SYSTEM, NULL,
                    "step program: task %s of segment %s, instance %u (layer %u, micro-batch "
                    "%u, turn %u), accesses %s outside its %u entries or its %llu bytes",
                    task->name, p->program->segments[it->segment].name, instance, it->layer,
                    it->micro_batch, it->turn, buffer->name, smp_place_count(buffer),
                    (unsigned long long)buffer->bytes);
}

static bool access_is_inside(const smp_access *access, const smp_buffer *buffer, uint32_t place)
{
    uint64_t bytes = smp_place_bytes(buffer);
    return place != SMP_NO_PLACE && access->bytes > 0 && access->bytes <= bytes &&
           access->offset_bytes <= bytes - access->bytes;
}

static smp_status collect_task(planning *p, place_state *states, const smp_task *task,
                               uint32_t instance, smp_errors *errors)
{
    const smp_instance *it = &p->program->order[instance];
    uint32_t position = p->n_position;
    for (uint32_t a = task->access0; a < task->access0 + task->n_access; a++) {
        const smp_access *access = &p->program->accesses[a];
        const smp_buffer *buffer = &p->program->buffers[access->buffer];
        uint32_t place = smp_place_of(buffer, it, access->delta);
        if (!access_is_inside(access, buffer, place)) {
            return outside(p, task, instance, buffer, errors);
        }
        place += p->place0[access->buffer];
        if (p->item_of_place[place] == NONE) {
            continue;
        }
        place_state *state = &states[place];
        uint64_t key = smp_entry_key(buffer, it, instance, access->delta);
        bool fresh = state->life == NONE || state->key != key ||
                     (p->lives[state->life].end != position && access->writes &&
                      writes_anew(p, task, it, place));
        if (fresh) {
            SMP_GROW(p->lives, p->n_life, p->life_capacity);
            state->key = key;
            state->life = (uint32_t)p->n_life;
            p->lives[p->n_life++] = (struct life){.place = place, .start = position};
        }
        p->lives[state->life].end = position;
    }
    return SMP_OK;
}

static smp_status collect_lives(planning *p, smp_errors *errors)
{
    const smp_program *program = p->program;
    place_state *states = SMP_ARENA_ARRAY(p->scratch, p->n_place, place_state);
    for (uint32_t i = 0; i < p->n_place; i++) {
        states[i].life = NONE;
    }
    for (uint32_t w = 0; w < p->n_walk; w++) {
        const smp_segment *segment = &program->segments[program->order[p->walk[w]].segment];
        for (uint32_t t = 0; t < segment->n_task; t++, p->n_position++) {
            smp_status status = collect_task(p, states, &program->tasks[segment->task0 + t],
                                             p->walk[w], errors);
            if (status != SMP_OK) {
                return status;
            }
        }
    }
    return SMP_OK;
}

/* ------------------------------------------------------------------ conflicts */

/* The items that a stream has touched, the latest first. */
typedef struct touched_item { uint32_t position, newer, older; } touched_item; /* items */
typedef struct touch_log { touched_item *items; uint32_t newest; } touch_log; /* by item */

/* The sweep over positions: what is alive, and by which streams it has been touched. */
typedef struct sweep {
    smp_order *order;
    uint32_t n_stream;
    uint64_t *alive;       /* bits: items with a life that has begun and not ended */
    uint32_t *n_alive;     /* lives, by item */
    uint16_t *touched;     /* by place: streams in the present life */
    touch_log log[SMP_STREAMS]; /* last accesses to items, by stream */
    uint64_t total_bytes;
    uint64_t kind_bytes[SMP_KINDS];
} sweep;

static void start_totals(planning *p, sweep *s)
{
    for (uint32_t b = 0; b < p->program->n_buffer; b++) {
        const smp_buffer *buffer = &p->program->buffers[b];
        if (buffer->space == SMP_SPACE_DEVICE && buffer->scope == SMP_SCOPE_STEP) {
            uint64_t bytes = smp_mul(buffer->bytes, smp_place_count(buffer));
            s->total_bytes = smp_add(s->total_bytes, bytes);
            s->kind_bytes[buffer->kind] = smp_add(s->kind_bytes[buffer->kind], bytes);
        }
    }
    p->program->live_bytes = s->total_bytes;
    memcpy(p->program->live_kind_bytes, s->kind_bytes, sizeof s->kind_bytes);
}

static void begin_life(planning *p, sweep *s, const struct life *life)
{
    uint32_t i = p->item_of_place[life->place];
    const smp_buffer *buffer = &p->program->buffers[p->buffer_of_place[life->place]];
    uint64_t *bits = row(p, p->serial, i);
    for (uint32_t w = 0; w < p->words; w++) {
        bits[w] |= s->alive[w];
    }
    if (s->n_alive[i]++ == 0) {
        set_bit(s->alive, i);
    }
    s->touched[life->place] = 0;
    p->items[i].span += life->end - life->start + 1;
    if (p->items[i].first > life->start) {
        p->items[i].first = life->start;
    }
    if (buffer->space == SMP_SPACE_DEVICE) {
        s->total_bytes = smp_add(s->total_bytes, buffer->bytes);
        s->kind_bytes[buffer->kind] = smp_add(s->kind_bytes[buffer->kind], buffer->bytes);
    }
}

static void end_life(planning *p, sweep *s, const struct life *life)
{
    uint32_t i = p->item_of_place[life->place];
    const smp_buffer *buffer = &p->program->buffers[p->buffer_of_place[life->place]];
    if (--s->n_alive[i] == 0) {
        s->alive[i / 64] &= ~((uint64_t)1 << (i % 64));
    }
    if (buffer->space == SMP_SPACE_DEVICE) {
        s->total_bytes -= buffer->bytes;
        s->kind_bytes[buffer->kind] -= buffer->bytes;
    }
}

/* A stream touches item i for the first time in a life: which others are not done with?
 * Those that a stream has accessed later than this clock knows. */
static void check_others(planning *p, sweep *s, uint32_t i, const uint32_t *clock)
{
    uint64_t *bits = row(p, p->conflict, i);
    const uint8_t space = p->items[i].space;
    for (uint32_t q = 0; q < s->n_stream; q++) {
        const touch_log *log = &s->log[q];
        for (uint32_t k = log->newest; k != NONE && log->items[k].position >= clock[q];
             k = log->items[k].older) {
            if (k != i && p->items[k].space == space) {
                set_bit(bits, k);
            }
        }
    }
}

static void note_touch(touch_log *log, uint32_t position, uint32_t item)
{
    touched_item *at = &log->items[item];
    at->position = position;
    if (log->newest == item) {
        return;
    }
    if (at->newer != NONE) { /* it has been in the list */
        log->items[at->newer].older = at->older;
        if (at->older != NONE) {
            log->items[at->older].newer = at->newer;
        }
    }
    at->newer = NONE;
    at->older = log->newest;
    if (log->newest != NONE) {
        log->items[log->newest].newer = item;
    }
    log->newest = item;
}

static void sweep_task(planning *p, sweep *s, const smp_task *task, uint32_t instance,
                       uint32_t position)
{
    const smp_instance *it = &p->program->order[instance];
    uint32_t stream = smp_order_stream(s->order, task), sources[SMP_STREAMS];
    (void)smp_order_task(s->order, it, task, position, sources);
    const uint32_t *clock = smp_order_clock(s->order, position);
    for (uint32_t a = task->access0; a < task->access0 + task->n_access; a++) {
        const smp_access *access = &p->program->accesses[a];
        const smp_buffer *buffer = &p->program->buffers[access->buffer];
        uint32_t place = p->place0[access->buffer] + smp_place_of(buffer, it, access->delta);
        uint32_t i = p->item_of_place[place];
        if (i == NONE) {
            continue;
        }
        if ((s->touched[place] >> stream & 1) == 0) {
            s->touched[place] = (uint16_t)(s->touched[place] | 1u << stream);
            check_others(p, s, i, clock);
        }
        note_touch(&s->log[stream], position, i);
    }
}

static void start_logs(planning *p, sweep *s)
{
    for (uint32_t q = 0; q < s->n_stream; q++) {
        s->log[q] = (touch_log){SMP_ARENA_ARRAY(p->scratch, p->n_item, touched_item), NONE};
        for (uint32_t i = 0; i < p->n_item; i++) {
            s->log[q].items[i] = (touched_item){0, NONE, NONE};
        }
    }
}

static void start_sweep(planning *p, sweep *s)
{
    size_t n_item = p->n_item;
    s->order = smp_order_create(p->program, p->scratch);
    s->n_stream = smp_order_streams(s->order);
    s->alive = SMP_ARENA_ARRAY(p->scratch, p->words, uint64_t);
    s->n_alive = SMP_ARENA_ARRAY(p->scratch, n_item, uint32_t);
    s->touched = SMP_ARENA_ARRAY(p->scratch, p->n_place, uint16_t);
    start_logs(p, s);
    for (uint32_t i = 0; i < p->n_item; i++) {
        p->items[i].first = NONE;
    }
    start_totals(p, s);
}

static void note_peak(planning *p, const sweep *s)
{
    if (s->total_bytes > p->program->live_bytes) {
        p->program->live_bytes = s->total_bytes;
        memcpy(p->program->live_kind_bytes, s->kind_bytes, sizeof s->kind_bytes);
    }
}

static void sweep_lives(planning *p)
{
    const smp_program *program = p->program;
    sweep s = {0};
    uint32_t *ending = SMP_ARENA_ARRAY(p->scratch, p->n_position, uint32_t);
    uint32_t position = 0;
    size_t next = 0;
    start_sweep(p, &s);
    for (size_t l = 0; l < p->n_life; l++) { /* lists by end, life + 1 */
        p->lives[l].next_ending = ending[p->lives[l].end];
        ending[p->lives[l].end] = (uint32_t)l + 1;
    }
    for (uint32_t w = 0; w < p->n_walk; w++) {
        const smp_segment *segment = &program->segments[program->order[p->walk[w]].segment];
        for (uint32_t t = 0; t < segment->n_task; t++, position++) {
            for (; next < p->n_life && p->lives[next].start == position; next++) {
                begin_life(p, &s, &p->lives[next]);
            }
            note_peak(p, &s);
            sweep_task(p, &s, &program->tasks[segment->task0 + t], p->walk[w], position);
            for (uint32_t l = ending[position]; l != 0; l = p->lives[l - 1].next_ending) {
                end_life(p, &s, &p->lives[l - 1]);
            }
        }
    }
    smp_order_destroy(s.order);
}

/* Sets bit (j, i) where (i, j) is.  In blocks of 64 x 64, whose words stay in the cache. */
static void make_symmetric(const planning *p, uint64_t *matrix)
{
    enum { WIDTH = 64 };
    for (uint32_t first = 0; first < p->n_item; first += WIDTH) {
        const uint32_t end = p->n_item - first < WIDTH ? p->n_item : first + WIDTH;
        for (uint32_t w = 0; w < p->words; w++) {
            for (uint32_t i = first; i < end; i++) {
                const uint64_t word = row(p, matrix, i)[w];
                for (uint32_t k = 0; word != 0 && k < WIDTH; k++) {
                    if (word >> k & 1u) {
                        set_bit(row(p, matrix, w * WIDTH + k), i);
                    }
                }
            }
        }
    }
}

/* The phase of a ring differs between micro-batches: what one slot may not share with, none
 * may.  `apart`: the slots of a ring never share with each other. */
static void join_rings(planning *p, uint64_t *matrix, bool apart)
{
    for (uint32_t i = 0; i < p->n_item; i++) {
        uint32_t n = 1;
        while (p->items[i].buffer != NONE && i + n < p->n_item &&
               p->items[i + n].buffer == p->items[i].buffer) {
            n++;
        }
        uint64_t *all = row(p, matrix, i);
        for (uint32_t k = 1; k < n; k++) {
            for (uint32_t w = 0; w < p->words; w++) {
                all[w] |= row(p, matrix, i + k)[w];
            }
        }
        for (uint32_t k = 0; apart && n > 1 && k < n; k++) {
            set_bit(all, i + k);
        }
        for (uint32_t k = 1; k < n; k++) {
            memcpy(row(p, matrix, i + k), all, p->words * sizeof *all);
        }
        i += n - 1;
    }
    make_symmetric(p, matrix);
}

static void find_conflicts(planning *p)
{
    p->words = p->n_item / 64 + 1;
    size_t n = (size_t)p->n_item * p->words;
    p->serial = SMP_ARENA_ARRAY(p->scratch, n, uint64_t);
    p->conflict = SMP_ARENA_ARRAY(p->scratch, n, uint64_t);
    uint64_t top[SMP_SPACES];
    memcpy(top, p->stack_top, sizeof top);
    for (uint32_t i = 0; i < p->n_item; i++) { /* the trial layout: nothing shares */
        if (!p->items[i].fixed) {
            p->items[i].base = top[p->items[i].space];
            top[p->items[i].space] += p->items[i].bytes;
            set_base(p, &p->items[i]);
        }
    }
    sweep_lives(p);
    for (size_t w = 0; w < n; w++) {
        p->conflict[w] |= p->serial[w];
    }
    join_rings(p, p->conflict, true);
    join_rings(p, p->serial, false);
}

/* -------------------------------------------------------------------- packing */

/* An item at its place. */
typedef struct placed { uint64_t base, end; uint32_t item; } placed;

typedef struct packing {
    uint32_t *sequence;   /* items in the order of placing */
    uint32_t n;
    placed *fixed;        /* by base: items whose place is given */
    uint32_t n_fixed;
    placed *placed;       /* by base, fixed ones included */
    uint64_t *bases;      /* by item */
    uint64_t top;
} packing;

static void insert_placed(placed *all, uint32_t n, placed new_item)
{
    uint32_t at = n;
    while (at > 0 && all[at - 1].base > new_item.base) {
        at--;
    }
    memmove(all + at + 1, all + at, (n - at) * sizeof *all);
    all[at] = new_item;
}

static void place_fixed(const planning *p, packing *k, smp_space space)
{
    k->n_fixed = 0;
    for (uint32_t i = 0; i < p->n_item; i++) {
        const struct item *item = &p->items[i];
        if (item->fixed && item->space == space) {
            k->bases[i] = item->base;
            insert_placed(k->fixed, k->n_fixed++,
                          (placed){item->base, item->base + item->bytes, i});
        }
    }
}

/* The lowest place of an item that conflicts with none of the placed ones. */
static uint64_t first_fit(const placed *all, uint32_t n, uint64_t floor, uint64_t bytes,
                          const uint64_t *bits)
{
    uint64_t at = floor;
    for (uint32_t o = 0; o < n; o++) {
        if (all[o].base >= at + bytes) {
            break;
        }
        if (all[o].end > at && bit(bits, all[o].item)) {
            at = all[o].end;
        }
    }
    return at;
}

/* First fit in the order given; sets bases and top. */
static void pack(const planning *p, packing *k, smp_space space, uint64_t *matrix)
{
    uint32_t n = k->n_fixed;
    k->top = p->stack_top[space];
    memcpy(k->placed, k->fixed, n * sizeof *k->fixed);
    for (uint32_t s = 0; s < k->n; s++) {
        const uint32_t i = k->sequence[s];
        const uint64_t bytes = p->items[i].bytes;
        const uint64_t at =
            first_fit(k->placed, n, p->floor[space], bytes, row(p, matrix, i));
        k->bases[i] = at;
        k->top = k->top > at + bytes ? k->top : at + bytes;
        insert_placed(k->placed, n++, (placed){at, at + bytes, i});
    }
}

typedef struct sort_key { uint64_t major, minor; uint32_t item; } sort_key;

static int key_compare(const void *a, const void *b)
{
    const sort_key *x = a, *y = b;
    if (x->major != y->major) {
        return x->major > y->major ? -1 : 1;
    }
    if (x->minor != y->minor) {
        return x->minor > y->minor ? -1 : 1;
    }
    return (x->item > y->item) - (x->item < y->item);
}

enum { BY_SIZE, BY_SPAN, BY_AREA, BY_START, ORDERS };

static void sort_items(const planning *p, packing *k, smp_space space, int by, sort_key *keys)
{
    k->n = 0;
    for (uint32_t i = 0; i < p->n_item; i++) {
        const struct item *item = &p->items[i];
        if (item->fixed || item->space != space) {
            continue;
        }
        uint64_t major = item->bytes, minor = item->span;
        if (by == BY_SPAN) {
            major = item->span;
            minor = item->bytes;
        } else if (by == BY_AREA) {
            major = smp_mul(item->bytes, item->span);
        } else if (by == BY_START) {
            major = ~(uint64_t)item->first;
            minor = item->bytes;
        }
        keys[k->n++] = (sort_key){major, minor, i};
    }
    if (k->n > 0) {
        qsort(keys, k->n, sizeof *keys, key_compare);
    }
    for (uint32_t s = 0; s < k->n; s++) {
        k->sequence[s] = keys[s].item;
    }
}

/* Moves the topmost item to the front; false when it is there already. */
static bool promote_top(const planning *p, packing *k)
{
    uint32_t at = 0;
    for (uint32_t s = 0; s < k->n; s++) {
        if (k->bases[k->sequence[s]] + p->items[k->sequence[s]].bytes == k->top) {
            at = s;
        }
    }
    if (at == 0) {
        return false;
    }
    uint32_t item = k->sequence[at];
    memmove(k->sequence + 1, k->sequence, at * sizeof *k->sequence);
    k->sequence[0] = item;
    return true;
}

/* Packs a space by all orders; best_bases gets the lowest arena found, which is returned. */
static uint64_t pack_best(planning *p, smp_space space, uint64_t *matrix, uint64_t target,
                          uint64_t *best_bases)
{
    packing k = {
        .sequence = SMP_ARENA_ARRAY(p->scratch, p->n_item, uint32_t),
        .fixed = SMP_ARENA_ARRAY(p->scratch, p->n_item, placed),
        .placed = SMP_ARENA_ARRAY(p->scratch, p->n_item, placed),
        .bases = SMP_ARENA_ARRAY(p->scratch, p->n_item, uint64_t)};
    sort_key *keys = SMP_ARENA_ARRAY(p->scratch, p->n_item, sort_key);
    uint64_t best = UINT64_MAX;
    place_fixed(p, &k, space);
    for (int by = 0; by < ORDERS && best > target; by++) {
        sort_items(p, &k, space, by, keys);
        for (uint32_t round = 0; round < ROUNDS && best > target; round++) {
            pack(p, &k, space, matrix);
            if (k.top < best) {
                best = k.top;
                memcpy(best_bases, k.bases, p->n_item * sizeof *best_bases);
            }
            if (!promote_top(p, &k)) {
                break;
            }
        }
    }
    return best;
}

/* `safety`: also what a serial executor would need. */
static void place_items(planning *p, bool safety)
{
    smp_program *program = p->program;
    uint64_t *bases = SMP_ARENA_ARRAY(p->scratch, p->n_item, uint64_t);
    const uint64_t serial = safety ? pack_best(p, SMP_SPACE_DEVICE, p->serial,
                                               program->live_bytes, bases)
                                   : UINT64_MAX;
    for (uint32_t space = 0; space < SMP_SPACES; space++) {
        uint64_t target = p->stack_top[space];
        if (space == SMP_SPACE_DEVICE && target < program->live_bytes) {
            target = program->live_bytes;
        }
        uint64_t top = pack_best(p, (smp_space)space, p->conflict, target, bases);
        for (uint32_t i = 0; i < p->n_item; i++) {
            if (!p->items[i].fixed && p->items[i].space == space) {
                p->items[i].base = bases[i];
                set_base(p, &p->items[i]);
            }
        }
        if (space == SMP_SPACE_DEVICE) {
            program->arena_bytes = top;
            program->safety_bytes = top > serial ? top - serial : 0;
        } else if (space == SMP_SPACE_HOST) {
            program->host_arena_bytes = top;
        }
    }
}

/* Every item at a place of its own. */
static void place_apart(planning *p)
{
    uint64_t top[SMP_SPACES];
    memcpy(top, p->stack_top, sizeof top);
    for (uint32_t i = 0; i < p->n_item; i++) {
        struct item *at = &p->items[i];
        if (!at->fixed) {
            at->base = top[at->space];
            top[at->space] += at->bytes;
            set_base(p, at);
        }
    }
    p->program->arena_bytes = top[SMP_SPACE_DEVICE];
    p->program->host_arena_bytes = top[SMP_SPACE_HOST];
}

/* Sizes too large to add up never get further: nothing below can overflow. */
static smp_status check_sizes(const smp_program *program, smp_errors *errors)
{
    uint64_t total = 0;
    for (uint32_t b = 0; b < program->n_buffer; b++) {
        const smp_buffer *buffer = &program->buffers[b];
        total = smp_add(total, smp_mul(buffer->bytes, smp_place_count(buffer)));
        if (total > most_bytes) {
            return smp_fail(errors, SMP_INPUT, NULL,
                            "the buffers of one rank come to more than 2^60 bytes at %s "
                            "(%u entries of %llu bytes)", buffer->name,
                            smp_place_count(buffer), (unsigned long long)buffer->bytes);
        }
    }
    return SMP_OK;
}

typedef enum how { APART, PACKED, PACKED_WITH_SAFETY } how;

static smp_status plan(smp_program *program, how how_, smp_errors *errors)
{
    smp_status status = check_sizes(program, errors);
    if (status != SMP_OK) {
        return status;
    }
    planning p = {.program = program, .scratch = smp_arena_create()};
    number_places(&p);
    place_static(&p);
    place_stacks(&p);
    make_items(&p);
    if (how_ == APART) {
        place_apart(&p);
    } else {
        choose_walk(&p);
        status = collect_lives(&p, errors);
        if (status == SMP_OK) {
            find_conflicts(&p);
            place_items(&p, how_ == PACKED_WITH_SAFETY);
        }
    }
    free(p.lives);
    smp_arena_destroy(p.scratch);
    return status;
}

smp_status smp_program_plan_memory(smp_program *program, smp_errors *errors)
{
    return plan(program, PACKED_WITH_SAFETY, errors);
}

smp_status smp_program_plan_arena(smp_program *program, smp_errors *errors)
{
    return plan(program, PACKED, errors);
}

smp_status smp_program_place_apart(smp_program *program, smp_errors *errors)
{
    return plan(program, APART, errors);
}
