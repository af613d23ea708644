/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory plan: gives every buffer its place in the arena of its space.
 *
 * Structure, from address 0: static buffers, then stacks (layout.c), then items: scratch, root
 * buffers and slots of rings.  Items may share places with each other and with the layers of
 * stacks.
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
 * Packing (pack.c) is told of each item how long its longest life is, up to a few tasks, and
 * in which order items are first used: neither depends on how many layers of a kind follow
 * each other.
 */
#include "base/numeric.h"
#include "step/layout.h"

#include <stdlib.h>
#include <string.h>

enum {
    NONE = SMP_NO_ITEM,
    MOST_REACH = 8,        /* tasks: longer lives count as this */
    MOST_PERIOD = 8        /* blocks of a ring's period that are walked */
};

struct smp_life { uint32_t place, start, end, next_ending; };

static uint64_t *row(const smp_layout *p, uint64_t *matrix, uint32_t i)
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

/* ---------------------------------------------------------------------- lives */

/* First blocks, one period of the middle and the last stand for all when blocks are alike. */
static void choose_walk(smp_layout *p)
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
static bool writes_anew(const smp_layout *p, const smp_task *task, const smp_instance *it,
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

static smp_status outside(const smp_layout *p, const smp_task *task, uint32_t instance,
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

static smp_status collect_task(smp_layout *p, place_state *states, const smp_task *task,
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
            p->lives[p->n_life++] = (struct smp_life){.place = place, .start = position};
        }
        p->lives[state->life].end = position;
    }
    return SMP_OK;
}

static smp_status collect_lives(smp_layout *p, smp_errors *errors)
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
    smp_order *order;      /* NULL: clocks are at hand */
    const smp_clocks *clocks;
    uint32_t n_stream;
    uint64_t *alive;       /* bits: items with a life that has begun and not ended */
    uint32_t *n_alive;     /* lives, by item */
    uint16_t *touched;     /* by place: streams in the present life */
    touch_log log[SMP_STREAMS]; /* last accesses to items, by stream */
    uint64_t total_bytes;
    uint64_t kind_bytes[SMP_KINDS];
} sweep;

static void start_totals(smp_layout *p, sweep *s)
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

static void note_life(smp_layout_item *item, const struct smp_life *life)
{
    const uint32_t tasks = life->end - life->start + 1;
    const uint32_t reach = tasks < MOST_REACH ? tasks : MOST_REACH;
    item->reach = item->reach > reach ? item->reach : reach;
    item->start = item->start < life->start ? item->start : life->start;
}

static void begin_life(smp_layout *p, sweep *s, const struct smp_life *life)
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
    note_life(&p->items[i], life);
    if (buffer->space == SMP_SPACE_DEVICE) {
        s->total_bytes = smp_add(s->total_bytes, buffer->bytes);
        s->kind_bytes[buffer->kind] = smp_add(s->kind_bytes[buffer->kind], buffer->bytes);
    }
}

static void end_life(smp_layout *p, sweep *s, const struct smp_life *life)
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
static void check_others(smp_layout *p, sweep *s, uint32_t i, const uint32_t *clock)
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

static const uint32_t *clock_of(const sweep *s, const smp_instance *it, const smp_task *task,
                                uint32_t position, uint32_t *stream_p)
{
    uint32_t sources[SMP_STREAMS];
    if (s->clocks) {
        *stream_p = s->clocks->stream[task->stream];
        return s->clocks->clock + (size_t)position * s->n_stream;
    }
    *stream_p = smp_order_stream(s->order, task);
    (void)smp_order_task(s->order, it, task, position, sources);
    return smp_order_clock(s->order, position);
}

static void sweep_task(smp_layout *p, sweep *s, const smp_task *task, uint32_t instance,
                       uint32_t position)
{
    const smp_instance *it = &p->program->order[instance];
    uint32_t stream = 0;
    const uint32_t *clock = clock_of(s, it, task, position, &stream);
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

static void start_logs(smp_layout *p, sweep *s)
{
    for (uint32_t q = 0; q < s->n_stream; q++) {
        s->log[q] = (touch_log){SMP_ARENA_ARRAY(p->scratch, p->n_item, touched_item), NONE};
        for (uint32_t i = 0; i < p->n_item; i++) {
            s->log[q].items[i] = (touched_item){0, NONE, NONE};
        }
    }
}

static void start_sweep(smp_layout *p, sweep *s)
{
    size_t n_item = p->n_item;
    const smp_clocks *clocks = p->program->clocks;
    if (clocks && clocks->n_walk == p->n_walk &&
        memcmp(clocks->walk, p->walk, p->n_walk * sizeof *p->walk) == 0) {
        s->clocks = clocks;
        s->n_stream = clocks->n_stream;
    } else {
        s->order = smp_order_create(p->program, p->scratch);
        s->n_stream = smp_order_streams(s->order);
    }
    s->alive = SMP_ARENA_ARRAY(p->scratch, p->words, uint64_t);
    s->n_alive = SMP_ARENA_ARRAY(p->scratch, n_item, uint32_t);
    s->touched = SMP_ARENA_ARRAY(p->scratch, p->n_place, uint16_t);
    start_logs(p, s);
    for (uint32_t i = 0; i < p->n_item; i++) {
        p->items[i].start = NONE;
    }
    start_totals(p, s);
}

static void note_peak(smp_layout *p, const sweep *s)
{
    if (s->total_bytes > p->program->live_bytes) {
        p->program->live_bytes = s->total_bytes;
        memcpy(p->program->live_kind_bytes, s->kind_bytes, sizeof s->kind_bytes);
    }
}

static void sweep_lives(smp_layout *p)
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
static void make_symmetric(const smp_layout *p, uint64_t *matrix)
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

/* Which slot is used first depends on the number of layers. */
static void join_keys(smp_layout_item *slots, uint32_t n)
{
    for (uint32_t k = 1; k < n; k++) {
        slots[0].start = slots[0].start < slots[k].start ? slots[0].start : slots[k].start;
        slots[0].reach = slots[0].reach > slots[k].reach ? slots[0].reach : slots[k].reach;
    }
    for (uint32_t k = 1; k < n; k++) {
        slots[k].start = slots[0].start;
        slots[k].reach = slots[0].reach;
    }
}

/* The phase of a ring differs between micro-batches: what one slot may not share with, none
 * may.  `apart`: the slots of a ring never share with each other. */
static void join_rings(const smp_layout *p, uint64_t *matrix, bool apart)
{
    for (uint32_t i = 0; i < p->n_item; i++) {
        uint32_t n = 1;
        while (p->items[i].buffer != NONE && i + n < p->n_item &&
               p->items[i + n].buffer == p->items[i].buffer) {
            n++;
        }
        uint64_t *all = row(p, matrix, i);
        join_keys(&p->items[i], n);
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

static void find_conflicts(smp_layout *p)
{
    p->words = p->n_item / 64 + 1;
    size_t n = (size_t)p->n_item * p->words;
    p->serial = SMP_ARENA_ARRAY(p->scratch, n, uint64_t);
    p->conflict = SMP_ARENA_ARRAY(p->scratch, n, uint64_t);
    sweep_lives(p);
    for (size_t w = 0; w < n; w++) {
        p->conflict[w] |= p->serial[w];
    }
    join_rings(p, p->conflict, true);
    join_rings(p, p->serial, false);
}

/* -------------------------------------------------------------------- packing */

/* Whether two layers of a stack conflict with the same of these items. */
static bool same_column(const smp_layout *p, const uint64_t *matrix, uint32_t i, uint32_t j,
                        const uint32_t *items, uint32_t n)
{
    const uint64_t *x = matrix + (size_t)i * p->words, *y = matrix + (size_t)j * p->words;
    for (uint32_t k = 0; k < n; k++) {
        if (bit(x, items[k]) != bit(y, items[k])) {
            return false;
        }
    }
    return true;
}

static uint32_t find_lumps(const smp_layout *p, smp_space space, const uint64_t *matrix,
                           const uint32_t *items, uint32_t n, smp_layout_lump *lumps)
{
    uint32_t n_lump = 0;
    for (uint32_t s = 0; s < p->n_stack; s++) {
        const smp_layout_stack *stack = &p->stacks[s];
        for (uint32_t e = 0; stack->space == space && e < stack->entries; e++) {
            const uint32_t item = stack->item0 + e;
            if (e > 0 && same_column(p, matrix, item - 1, item, items, n)) {
                lumps[n_lump - 1].entries++;
            } else {
                lumps[n_lump++] = (smp_layout_lump){s, e, 1};
            }
        }
    }
    return n_lump;
}

static void enter_conflicts(const smp_layout *p, const uint64_t *matrix,
                            smp_layout_packing *out)
{
    smp_pack *pack = out->pack;
    for (uint32_t i = 0; i < pack->n_item; i++) {
        const uint64_t *bits = matrix + (size_t)out->items[i] * p->words;
        for (uint32_t j = 0; j < pack->n_item; j++) {
            if (bit(bits, out->items[j])) {
                smp_pack_conflict(pack, i, j);
            }
        }
        for (uint32_t f = 0; f < pack->n_fixed; f++) {
            const smp_layout_lump *lump = &out->lumps[f];
            if (bit(bits, p->stacks[lump->stack].item0 + lump->entry)) {
                smp_pack_conflict(pack, i, pack->n_item + f);
            }
        }
    }
}

void smp_layout_pack(const smp_layout *p, smp_space space, const uint64_t *matrix,
                           smp_layout_packing *out)
{
    uint32_t n = 0;
    smp_pack_item *items = SMP_ARENA_ARRAY(p->scratch, p->n_item, smp_pack_item);
    out->items = SMP_ARENA_ARRAY(p->scratch, p->n_item, uint32_t);
    out->lumps = SMP_ARENA_ARRAY(p->scratch, p->n_item, smp_layout_lump);
    for (uint32_t i = 0; i < p->n_item; i++) {
        const smp_layout_item *item = &p->items[i];
        if (!item->fixed && item->space == space) {
            items[n] = (smp_pack_item){item->bytes, item->reach, item->start};
            out->items[n++] = i;
        }
    }
    const uint32_t n_lump = find_lumps(p, space, matrix, out->items, n, out->lumps);
    out->pack = smp_pack_create(p->scratch, n, items, n_lump);
    enter_conflicts(p, matrix, out);
    smp_pack_sort(out->pack, p->scratch, items);
}

/* Packs a space; the lowest arena found.  Items get their places where `place`. */
static uint64_t pack_space(smp_layout *p, smp_space space, const uint64_t *matrix,
                           uint64_t target, bool place)
{
    smp_layout_packing packing;
    smp_pack_room room = {0};
    smp_layout_pack(p, space, matrix, &packing);
    const smp_pack *pack = packing.pack;
    smp_pack_range *fixed = SMP_ARENA_ARRAY(p->scratch, pack->n_fixed, smp_pack_range);
    uint64_t *bases = SMP_ARENA_ARRAY(p->scratch, pack->n_item, uint64_t);
    for (uint32_t f = 0; f < pack->n_fixed; f++) {
        const smp_layout_lump *lump = &packing.lumps[f];
        const smp_layout_stack *stack = &p->stacks[lump->stack];
        const uint64_t base = stack->base + lump->entry * stack->stride;
        fixed[f] = (smp_pack_range){base, base + lump->entries * stack->stride,
                                    pack->n_item + f};
    }
    const smp_pack_space where = {fixed, p->floor[space], p->stack_top[space], target};
    const uint64_t top = smp_pack_best(pack, &where, &room, 0, NULL, bases);
    for (uint32_t i = 0; place && i < pack->n_item; i++) {
        smp_layout_item *item = &p->items[packing.items[i]];
        item->base = bases[i];
        smp_layout_set_base(p, item);
    }
    smp_pack_room_free(&room);
    return top;
}

/* `safety`: also what a serial executor would need. */
static void place_items(smp_layout *p, bool safety)
{
    smp_program *program = p->program;
    const uint64_t stack_top = p->stack_top[SMP_SPACE_DEVICE];
    const uint64_t target =
        stack_top > program->live_bytes ? stack_top : program->live_bytes;
    program->apart = false;
    program->host_arena_bytes = pack_space(p, SMP_SPACE_HOST, p->conflict,
                                           p->stack_top[SMP_SPACE_HOST], true);
    program->arena_bytes = pack_space(p, SMP_SPACE_DEVICE, p->conflict, target, true);
    if (safety) {
        const uint64_t serial = pack_space(p, SMP_SPACE_DEVICE, p->serial, target, false);
        program->safety_bytes =
            program->arena_bytes > serial ? program->arena_bytes - serial : 0;
    }
}

smp_status smp_layout_find(smp_program *program, smp_arena *scratch, smp_errors *errors,
                           smp_layout *p)
{
    smp_status status = smp_layout_create(program, scratch, errors, p);
    if (status != SMP_OK) {
        return status;
    }
    choose_walk(p);
    status = collect_lives(p, errors);
    if (status == SMP_OK) {
        find_conflicts(p);
    }
    free(p->lives);
    p->lives = NULL;
    return status;
}

static smp_status plan(smp_program *program, bool safety, smp_errors *errors)
{
    smp_layout memory;
    smp_arena *scratch = smp_arena_create();
    const smp_status status = smp_layout_find(program, scratch, errors, &memory);
    if (status == SMP_OK) {
        place_items(&memory, safety);
    }
    smp_arena_destroy(scratch);
    return status;
}

smp_status smp_program_plan_memory(smp_program *program, smp_errors *errors)
{
    return plan(program, true, errors);
}

smp_status smp_program_plan_arena(smp_program *program, smp_errors *errors)
{
    return plan(program, false, errors);
}
