/* SPDX-License-Identifier: Apache-2.0 */
/* The longest path by (max, +) products: see word.h. */
#include "config.h"

#include "plan/word.h"

#include "base/numeric.h"
#include "plan/map.h"

#include <stdlib.h>
#include <string.h>

enum {
    STREAM_END = UINT32_MAX,    /* as the instance of a mark */
    MOST_MARKS = 40,
    MOST_PERIOD = 8,            /* instances of a layer in a pass */
    MOST_TIMES = (MOST_MARKS + SMP_MAP_BLOCK - 1) / SMP_MAP_BLOCK * SMP_MAP_BLOCK,
    POWERS = 14,                /* layers and micro-batches below 2^14 are one product each */
    FIRST_MIDDLE = 3            /* micro-batch that is repeated */
};
static const int64_t never = SMP_MAP_NEVER;

/* A time that tasks behind a cut depend on: the end of a task, or of a stream. */
typedef struct mark { uint32_t instance; uint32_t task; } mark;

/* A task that later instances wait for, the last of them at `last_use`. */
typedef struct source { mark mark; uint32_t last_use; } source;

/* What the tasks from instance `at` on depend on. */
typedef struct cut { uint32_t at, n; mark marks[MOST_MARKS]; } cut;

/* A (max, +) matrix: out[i] = max over j of at[i * n_in + j] + in[j]. */
typedef struct matrix { uint32_t n_out, n_in; int64_t *at; } matrix;

typedef enum kind { ONCE, REPEATED, MIDDLE_BEGINS, MIDDLE_ENDS } kind;

typedef struct stretch {
    kind kind;
    smp_map once;
    uint32_t run;              /* REPEATED */
    uint32_t n_changed;        /* the times that change; REPEATED: and their powers of two */
    uint8_t changed[MOST_MARKS];
    smp_map power[POWERS];
    uint32_t n_power;
} stretch;

struct smp_word {
    stretch *stretches;
    uint32_t n;
    uint32_t n_end;            /* ends of streams, the first of the last times */
};

/* A segment at the layers of a run in a micro-batch. */
typedef struct passing { uint32_t layers; bool repeated; } passing;

typedef struct writing {
    const smp_program *program;
    const int64_t *duration_ps;
    const smp_runs *runs;
    smp_arena *arena;          /* of the word */
    smp_arena *scratch;
    uint32_t *first_task;      /* by instance: number of its first task in the step */
    source *sources;           /* in the order of the step */
    uint32_t n_source, oldest; /* those before `oldest` are not waited for from `here` on */
    uint32_t uses;             /* streams, as bits */
    passing *passing;          /* by micro-batch, run and segment */
    int64_t *rows;             /* by task of a stretch; heap */
    size_t n_row;
    smp_word *word;
    smp_passes passes;
    cut here;
} writing;

/* ------------------------------------------------------------------- the cuts */

static void number_tasks(writing *w)
{
    const smp_program *p = w->program;
    uint32_t n = 0;
    w->first_task = SMP_ARENA_ARRAY(w->scratch, (size_t)p->n_instance + 1, uint32_t);
    for (uint32_t i = 0; i < p->n_instance; i++) {
        w->first_task[i] = n;
        n += p->segments[p->order[i].segment].n_task;
    }
    w->first_task[p->n_instance] = n;
}

static void list_sources(writing *w)
{
    const smp_program *p = w->program;
    const uint32_t n_task = w->first_task[p->n_instance];
    uint32_t *last_use = SMP_ARENA_ARRAY(w->scratch, n_task, uint32_t);
    for (uint32_t i = 0; i < p->n_instance; i++) {
        const smp_pattern pattern = p->patterns[p->order[i].pattern];
        for (uint32_t k = pattern.wait0; k < pattern.wait0 + pattern.n_wait; k++) {
            last_use[w->first_task[i - p->waits[k].back] + p->waits[k].source] = i;
        }
    }
    w->sources = SMP_ARENA_ARRAY(w->scratch, n_task, source);
    for (uint32_t i = 0; i < p->n_instance; i++) {
        for (uint32_t t = w->first_task[i]; t < w->first_task[i + 1]; t++) {
            if (last_use[t] > i) {
                w->sources[w->n_source++] =
                    (source){{i, t - w->first_task[i]}, last_use[t]};
            }
        }
    }
}

/* The marks at an instance, w->here or behind it; false: too many. */
static bool make_cut(const writing *w, uint32_t at, cut *c)
{
    c->at = at;
    c->n = 0;
    for (uint32_t q = 0; q < SMP_STREAMS; q++) {
        if (w->uses >> q & 1u) {
            c->marks[c->n++] = (mark){STREAM_END, q};
        }
    }
    for (uint32_t k = w->oldest; k < w->n_source && w->sources[k].mark.instance < at; k++) {
        if (w->sources[k].last_use < at) {
            continue;
        }
        if (c->n == MOST_MARKS) {
            return false;
        }
        c->marks[c->n++] = w->sources[k].mark;
    }
    return true;
}

static void move_here(writing *w, const cut *to)
{
    w->here = *to;
    while (w->oldest < w->n_source && w->sources[w->oldest].mark.instance < to->at &&
           w->sources[w->oldest].last_use < to->at) {
        w->oldest++;
    }
}

static uint32_t find_mark(const cut *c, uint32_t instance, uint32_t task)
{
    uint32_t m = 0;
    while (m < c->n && (c->marks[m].instance != instance || c->marks[m].task != task)) {
        m++;
    }
    return m;
}

/* Of the marks that are n times `step` instances from this one, those before it. */
static uint32_t place_among_alike(const cut *c, const mark *m, uint32_t step)
{
    uint32_t place = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        const mark *other = &c->marks[i];
        place += other->instance != STREAM_END && other->task == m->task &&
                 other->instance < m->instance && (m->instance - other->instance) % step == 0;
    }
    return place;
}

/* The twin of a mark in a cut `step` instances on: itself or what is as much further.  Alike
 * ones keep their order, since none passes another.  NULL: it has none. */
static const mark *twin_of(const cut *c, const mark *m, const cut *there, uint32_t step)
{
    if (m->instance == STREAM_END) {
        return &there->marks[find_mark(there, STREAM_END, m->task)];
    }
    const uint32_t place = place_among_alike(c, m, step);
    for (uint32_t i = 0; i < there->n; i++) {
        const mark *other = &there->marks[i];
        if (other->instance != STREAM_END && other->task == m->task &&
            (other->instance == m->instance || other->instance == m->instance + step) &&
            place_among_alike(there, other, step) == place) {
            return other;
        }
    }
    return NULL;
}

/* The cut `step` instances behind c, its marks in the order of those of which they are the
 * twins; false: they are not twins. */
static bool make_twin(const writing *w, const cut *c, uint32_t step, cut *twin)
{
    cut there;
    if (!make_cut(w, c->at + step, &there) || there.n != c->n) {
        return false;
    }
    *twin = (cut){.at = there.at};
    for (uint32_t m = 0; m < c->n; m++) {
        const mark *other = twin_of(c, &c->marks[m], &there, step);
        if (other == NULL) {
            return false;
        }
        twin->marks[twin->n++] = *other;
    }
    return true;
}

/* ------------------------------------------------------------------ the matrices */

static matrix new_matrix(smp_arena *arena, uint32_t n_out, uint32_t n_in)
{
    return (matrix){n_out, n_in, SMP_ARENA_ARRAY(arena, (size_t)n_out * n_in, int64_t)};
}

static void raise_row(int64_t *row, const int64_t *by, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        row[i] = row[i] > by[i] ? row[i] : by[i];
    }
}

/* The row of a time at the cut `from`, or of a task behind it. */
static void raise_to_mark(const writing *w, const cut *from, int64_t *row, uint32_t instance,
                          uint32_t task)
{
    if (instance != STREAM_END && instance >= from->at) {
        const uint32_t number = w->first_task[instance] + task - w->first_task[from->at];
        raise_row(row, w->rows + (size_t)number * from->n, from->n);
        return;
    }
    const uint32_t m = find_mark(from, instance, task);
    row[m] = row[m] > 0 ? row[m] : 0;
}

static void clear_row(int64_t *row, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        row[i] = never;
    }
}

/* Rows of all tasks from one cut up to an instance; last[q]: the last task on a stream. */
static void fill_rows(const writing *w, const cut *from, uint32_t end, mark last[SMP_STREAMS])
{
    const smp_program *p = w->program;
    int64_t *row = w->rows;
    for (uint32_t q = 0; q < SMP_STREAMS; q++) {
        last[q] = (mark){STREAM_END, q};
    }
    for (uint32_t i = from->at; i < end; i++) {
        const smp_segment *segment = &p->segments[p->order[i].segment];
        const smp_pattern pattern = p->patterns[p->order[i].pattern];
        uint32_t k = pattern.wait0;
        for (uint32_t t = 0; t < segment->n_task; t++, row += from->n) {
            const uint32_t q = p->tasks[segment->task0 + t].stream;
            const int64_t lasts_ps = w->duration_ps[segment->task0 + t];
            clear_row(row, from->n);
            raise_to_mark(w, from, row, last[q].instance, last[q].task);
            for (; k < pattern.wait0 + pattern.n_wait && p->waits[k].task == t; k++) {
                raise_to_mark(w, from, row, i - p->waits[k].back, p->waits[k].source);
            }
            for (uint32_t m = 0; m < from->n; m++) {
                row[m] += row[m] > never ? lasts_ps : 0;
            }
            last[q] = (mark){i, t};
        }
    }
}

static matrix make_matrix(writing *w, const cut *from, const cut *to)
{
    mark last[SMP_STREAMS];
    const size_t n_row = (size_t)(w->first_task[to->at] - w->first_task[from->at]) * from->n;
    if (n_row > w->n_row) {
        w->n_row = 2 * n_row;
        w->rows = smp_heap_grow(w->rows, w->n_row, sizeof *w->rows);
    }
    matrix out = new_matrix(w->scratch, to->n, from->n);
    fill_rows(w, from, to->at, last);
    for (uint32_t m = 0; m < to->n; m++) {
        const mark *at = &to->marks[m];
        int64_t *row = out.at + (size_t)m * from->n;
        clear_row(row, from->n);
        if (at->instance == STREAM_END) {
            at = &last[at->task];
        }
        raise_to_mark(w, from, row, at->instance, at->task);
    }
    return out;
}

static matrix multiply(smp_arena *arena, const matrix *a, const matrix *b)
{
    matrix out = new_matrix(arena, a->n_out, b->n_in);
    for (uint32_t i = 0; i < a->n_out; i++) {
        int64_t *row = out.at + (size_t)i * b->n_in;
        clear_row(row, b->n_in);
        for (uint32_t k = 0; k < a->n_in; k++) {
            const int64_t x = a->at[(size_t)i * a->n_in + k];
            for (uint32_t j = 0; x > never && j < b->n_in; j++) {
                const int64_t y = b->at[(size_t)k * b->n_in + j];
                row[j] = y > never && x + y > row[j] ? x + y : row[j];
            }
        }
    }
    return out;
}

/* ---------------------------------------------------------------- the stretches */

static stretch *add_stretch(writing *w, kind kind_)
{
    stretch *s = &w->word->stretches[w->word->n++];
    *s = (stretch){.kind = kind_};
    return s;
}

/* What lies between the last cut and this one. */
static void go_to(writing *w, const cut *to)
{
    if (to->at > w->here.at) {
        const matrix once = make_matrix(w, &w->here, to);
        add_stretch(w, ONCE)->once = smp_map_create(w->arena, once.n_out, once.n_in, once.at);
        move_here(w, to);
    }
}

/* Whether a time that a matrix makes is the one it had, and nothing else depends on it. */
static bool is_idle(const matrix *m, uint32_t i)
{
    for (uint32_t j = 0; j < m->n_in; j++) {
        const int64_t own = j == i ? 0 : never;
        if (m->at[(size_t)i * m->n_in + j] != own || m->at[(size_t)j * m->n_in + i] != own) {
            return false;
        }
    }
    return true;
}

/* The matrix from a cut to its twin, and its powers, without the times it leaves alone. */
static void repeat_to(writing *w, const cut *twin, uint32_t run)
{
    const smp_run *last = &w->runs->run[w->runs->n - 1];
    const uint32_t most = last->first + last->layers; /* layers of the whole job */
    const matrix whole = make_matrix(w, &w->here, twin);
    stretch *s = add_stretch(w, REPEATED);
    s->run = run;
    for (uint32_t i = 0; i < whole.n_out; i++) {
        if (!is_idle(&whole, i)) {
            s->changed[s->n_changed++] = (uint8_t)i;
        }
    }
    matrix power = new_matrix(w->scratch, s->n_changed, s->n_changed);
    for (uint32_t i = 0; i < s->n_changed; i++) {
        for (uint32_t j = 0; j < s->n_changed; j++) {
            power.at[i * s->n_changed + j] =
                whole.at[(size_t)s->changed[i] * whole.n_in + s->changed[j]];
        }
    }
    s->power[s->n_power++] = smp_map_create(w->arena, power.n_out, power.n_in, power.at);
    while (s->n_power < POWERS && 1u << s->n_power <= most) {
        power = multiply(w->scratch, &power, &power);
        s->power[s->n_power++] = smp_map_create(w->arena, power.n_out, power.n_in, power.at);
    }
    move_here(w, twin);
}

/* -------------------------------------------------------------------- the layers */

static uint32_t run_of(const smp_runs *runs, uint32_t layer)
{
    for (uint32_t r = 0; r < runs->n; r++) {
        if (layer - runs->run[r].at < runs->run[r].kept) {
            return r;
        }
    }
    return SMP_MOST_RUNS;
}

/* Whether the `period` instances from `at` on come again behind themselves, a layer on. */
static bool comes_again(const writing *w, uint32_t at, uint32_t period)
{
    const smp_instance *a = &w->program->order[at], *b = a + period;
    const uint32_t run = run_of(w->runs, a->layer);
    if (at + 2 * period > w->program->n_instance) {
        return false;
    }
    const int32_t direction = (int32_t)b->layer - (int32_t)a->layer;
    if (direction != 1 && direction != -1) {
        return false;
    }
    for (uint32_t i = 0; i < period; i++) {
        if (run_of(w->runs, a[i].layer) != run || run_of(w->runs, b[i].layer) != run ||
            a[i].segment != b[i].segment || a[i].pattern != b[i].pattern ||
            a[i].micro_batch != b[i].micro_batch ||
            (int32_t)b[i].layer - (int32_t)a[i].layer != direction) {
            return false;
        }
    }
    return true;
}

/* The shortest period from `at` on; 0: none. */
static uint32_t period_at(const writing *w, uint32_t at)
{
    for (uint32_t period = 1; period <= MOST_PERIOD; period++) {
        if (comes_again(w, at, period)) {
            return period;
        }
    }
    return 0;
}

/* What is known of a segment at the layers of a run in a micro-batch. */
static passing *passing_of(const writing *w, uint32_t i)
{
    const smp_instance *it = &w->program->order[i];
    const size_t run = (size_t)it->micro_batch * w->runs->n + run_of(w->runs, it->layer);
    return &w->passing[run * w->program->n_segment + it->segment];
}

static void note_pass(writing *w, uint32_t at, uint32_t period, uint32_t run, bool is_middle)
{
    const smp_run *r = &w->runs->run[run];
    w->passes.run[w->passes.n] = run;
    w->passes.at[w->passes.n++] =
        (smp_pass){.at = at, .period = period, .micro_batch = w->program->order[at].micro_batch,
                   .first = r->at, .end = r->at + r->kept, .is_middle = is_middle};
}

/* Repeats the layer that begins here, if one does that is still to be repeated. */
static bool repeat_here(writing *w, uint32_t at)
{
    const uint32_t run = run_of(w->runs, w->program->order[at].layer);
    const uint32_t period = w->runs->run[run].repeats ? period_at(w, at) : 0;
    cut here, twin;
    for (uint32_t i = at; i < at + period; i++) {
        if (passing_of(w, i)->repeated) {
            return false;
        }
    }
    if (period == 0 || !make_cut(w, at, &here)) {
        return false;
    }
    if (at == w->here.at) {
        here = w->here; /* in its order */
    }
    if (!make_twin(w, &here, period, &twin)) {
        return false;
    }
    go_to(w, &here);
    for (uint32_t i = at; i < at + period; i++) {
        passing_of(w, i)->repeated = true;
    }
    repeat_to(w, &twin, run);
    note_pass(w, at, period, run, false);
    return true;
}

/* Repeats a layer of every pass from here up to instance `end`. */
static void repeat_layers(writing *w, uint32_t end)
{
    for (uint32_t at = w->here.at; at < end;) {
        at = repeat_here(w, at) ? w->here.at : at + 1;
    }
}

/* Whether each segment that several layers of a cut run have is repeated in every
 * micro-batch. */
static bool all_repeated(const writing *w)
{
    for (uint32_t i = 0; i < w->program->n_instance; i++) {
        passing *at = passing_of(w, i);
        at->layers++;
        if (at->layers > 1 && !at->repeated &&
            w->runs->run[run_of(w->runs, w->program->order[i].layer)].repeats) {
            return false;
        }
    }
    return true;
}

/* ---------------------------------------------------------------- micro-batches */

static uint32_t first_of(const smp_program *program, uint32_t micro_batch)
{
    uint32_t i = 0;
    while (i < program->n_instance && program->order[i].micro_batch < micro_batch) {
        i++;
    }
    return i;
}

/* Whether the micro-batch before FIRST_MIDDLE is like it. */
static bool middle_repeats(const smp_program *program, uint32_t begin, uint32_t step)
{
    const smp_instance *a = &program->order[begin - step], *b = &program->order[begin];
    if (begin - first_of(program, FIRST_MIDDLE - 1) != step) {
        return false;
    }
    for (uint32_t i = 0; i < step; i++) {
        if (a[i].segment != b[i].segment || a[i].layer != b[i].layer ||
            a[i].pattern != b[i].pattern) {
            return false;
        }
    }
    return true;
}

/* Marks the micro-batch that is repeated; its layers are repeated as in all others. */
static bool repeat_middle(writing *w)
{
    const smp_program *p = w->program;
    const uint32_t begin = first_of(p, FIRST_MIDDLE), end = first_of(p, FIRST_MIDDLE + 1);
    cut here, twin;
    repeat_layers(w, begin);
    if (end == p->n_instance || !middle_repeats(p, begin, end - begin) ||
        !make_cut(w, begin, &here) || !make_twin(w, &here, end - begin, &twin)) {
        return false;
    }
    go_to(w, &here);
    (void)add_stretch(w, MIDDLE_BEGINS);
    repeat_layers(w, end);
    go_to(w, &twin);
    move_here(w, &twin);
    add_stretch(w, MIDDLE_ENDS)->n_changed = twin.n;
    return true;
}

/* ------------------------------------------------------------------------ entry */

/* What the first tasks depend on: nothing but the beginning, at 0. */
static void begin(writing *w)
{
    const smp_program *p = w->program;
    for (uint32_t t = 0; t < p->n_task; t++) {
        w->uses |= 1u << p->tasks[t].stream;
    }
    (void)make_cut(w, 0, &w->here);
}

static bool write_all(writing *w, bool middle)
{
    const smp_program *p = w->program;
    cut end;
    begin(w);
    if (middle && !repeat_middle(w)) {
        return false;
    }
    repeat_layers(w, p->n_instance);
    if (!make_cut(w, p->n_instance, &end)) {
        return false;
    }
    go_to(w, &end);
    w->word->n_end = end.n;
    if (middle) {
        const uint32_t at = first_of(p, FIRST_MIDDLE);
        note_pass(w, at, first_of(p, FIRST_MIDDLE + 1) - at, 0, true);
    }
    return all_repeated(w);
}

smp_word *smp_word_create(const smp_program *program, const int64_t *duration_ps,
                          const smp_runs *runs, bool middle, smp_arena *arena,
                          smp_arena *scratch, smp_passes *passes_p)
{
    writing w = {.program = program, .duration_ps = duration_ps, .runs = runs, .arena = arena,
                 .scratch = scratch, .word = SMP_ARENA_NEW(arena, smp_word)};
    const uint64_t n_passing =
        program->micro_batches * runs->n * (uint64_t)program->n_segment;
    number_tasks(&w);
    list_sources(&w);
    w.passing = SMP_ARENA_ARRAY(w.scratch, n_passing, passing);
    w.word->stretches = SMP_ARENA_ARRAY(w.scratch, program->n_instance + 2, stretch);
    w.passes.at = SMP_ARENA_ARRAY(w.scratch, program->n_instance + 1, smp_pass);
    w.passes.run = SMP_ARENA_ARRAY(w.scratch, program->n_instance + 1, uint32_t);
    const bool repeats = write_all(&w, middle);
    if (repeats) {
        const stretch *written = w.word->stretches;
        w.word->stretches = SMP_ARENA_ARRAY(arena, w.word->n, stretch);
        memcpy(w.word->stretches, written, w.word->n * sizeof *written);
    }
    free(w.rows);
    if (passes_p) {
        *passes_p = w.passes;
    }
    return repeats ? w.word : NULL;
}

/* -------------------------------------------------------------------- evaluation */

static void apply_power(const stretch *s, uint32_t n, double *x)
{
    double a[MOST_TIMES], b[MOST_TIMES], *in = a, *out = b;
    for (uint32_t i = 0; i < s->n_changed; i++) {
        in[i] = x[s->changed[i]];
    }
    for (uint32_t k = 0; n >> k != 0; k++) {
        if (n >> k & 1u) {
            smp_map_apply(&s->power[k], in, out);
            double *const made = out;
            out = in;
            in = made;
        }
    }
    for (uint32_t i = 0; i < s->n_changed; i++) {
        x[s->changed[i]] = in[i];
    }
}

/* From one of two rooms to the other, *x_p is the one that holds the times. */
static void apply_stretch(const stretch *s, const int32_t *more, double **x_p, double **room_p)
{
    if (s->kind == ONCE) {
        double *const made = *room_p;
        smp_map_apply(&s->once, *x_p, made);
        *room_p = *x_p;
        *x_p = made;
    } else if (s->kind == REPEATED) {
        apply_power(s, (uint32_t)(1 + more[s->run]), *x_p);
    }
}

/* Whether all times are later by the same; then so they are from then on. */
static bool is_shifted(const double *before, const double *x, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        if (x[i] - before[i] != x[0] - before[0]) {
            return false;
        }
    }
    return true;
}

int64_t smp_word_end(const smp_word *word, const int32_t more[SMP_MOST_RUNS],
                     uint64_t more_middle)
{
    double a[MOST_TIMES] = {0}, b[MOST_TIMES], before[MOST_TIMES] = {0}, end_ps = 0;
    double *x = a, *room = b;
    uint32_t loop = 0;
    for (uint32_t i = 0; i < word->n; i++) {
        const stretch *s = &word->stretches[i];
        apply_stretch(s, more, &x, &room);
        if (s->kind == MIDDLE_BEGINS) {
            loop = i;
            memcpy(before, x, sizeof before);
        } else if (s->kind == MIDDLE_ENDS && more_middle > 0) {
            if (is_shifted(before, x, s->n_changed)) {
                const double shift_ps = (x[0] - before[0]) * (double)more_middle;
                for (uint32_t k = 0; k < s->n_changed; k++) {
                    x[k] += shift_ps;
                }
                continue;
            }
            memcpy(before, x, sizeof before);
            more_middle--;
            i = loop;
        }
    }
    for (uint32_t q = 0; q < word->n_end; q++) {
        end_ps = x[q] > end_ps ? x[q] : end_ps;
    }
    return end_ps < smp_map_most ? (int64_t)end_ps : -1;
}
