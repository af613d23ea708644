/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event engine against an evaluation that has no events, and against closed forms.
 */
#include "tests/sim/random_step.h"

#include <math.h>

enum { PROGRAMS = 3000, MOST_CLASSES = 3 };

/* ------------------------------------------- longest path in the order of issue */

typedef struct path {
    int64_t end_ps[MOST_CLASSES][1024]; /* by running number of the task */
    int64_t stream_ps[MOST_CLASSES][SMP_STREAMS];
    int64_t issued_ps[MOST_CLASSES];
    int64_t last_ps[MOST_CLASSES];
} path;

static bool meets(const random_step *r, uint32_t a, uint32_t b, uint8_t comm)
{
    return a == b || (comm != SMP_NO_COMM && r->step.programs[a]->comms[comm].meeting ==
                                                 r->step.programs[b]->comms[comm].meeting);
}

static int64_t ready_ps(const random_step *r, const path *x, const uint32_t *first, uint32_t c,
                        uint32_t i, uint32_t t)
{
    const smp_program *p = r->step.programs[c];
    const smp_pattern *pattern = &p->patterns[p->order[i].pattern];
    uint32_t stored = p->segments[p->order[i].segment].task0 + t;
    int64_t ps = x->stream_ps[c][p->tasks[stored].stream];
    for (uint32_t w = pattern->wait0; w < pattern->wait0 + pattern->n_wait; w++) {
        if (p->waits[w].task == t) {
            int64_t other = x->end_ps[c][first[i - p->waits[w].back] + p->waits[w].source];
            ps = other > ps ? other : ps;
        }
    }
    return x->issued_ps[c] > ps ? x->issued_ps[c] : ps;
}

/* All tasks wait for earlier ones only, so one pass in issue order is a topological order. */
static void longest_path(const random_step *r, bool host, path *x)
{
    memset(x, 0, sizeof *x);
    const smp_program *common = r->step.programs[0];
    uint32_t first[64];
    uint32_t n = 0;
    for (uint32_t i = 0; i < common->n_instance; i++) {
        const smp_segment *segment = &common->segments[common->order[i].segment];
        first[i] = n;
        for (uint32_t t = 0; t < segment->n_task; t++, n++) {
            const smp_task *task = &common->tasks[segment->task0 + t];
            int64_t ready[MOST_CLASSES];
            for (uint32_t c = 0; c < r->step.n_program; c++) {
                x->issued_ps[c] += host ? r->issue_ps[c][segment->task0 + t] : 0;
                ready[c] = ready_ps(r, x, first, c, i, t);
            }
            for (uint32_t c = 0; c < r->step.n_program; c++) {
                int64_t start_ps = 0;
                int64_t duration_ps = 0;
                for (uint32_t d = 0; d < r->step.n_program; d++) {
                    if (meets(r, c, d, task->comm)) {
                        int64_t own_ps = r->duration_ps[d][segment->task0 + t];
                        start_ps = ready[d] > start_ps ? ready[d] : start_ps;
                        duration_ps = own_ps > duration_ps ? own_ps : duration_ps;
                    }
                }
                x->end_ps[c][n] = x->stream_ps[c][task->stream] = start_ps + duration_ps;
                x->last_ps[c] = x->end_ps[c][n] > x->last_ps[c] ? x->end_ps[c][n]
                                                               : x->last_ps[c];
            }
        }
    }
}

static void check_against_path(uint64_t seed, bool host)
{
    static path x;
    smp_errors *errors = smp_errors_create();
    random_step *r = random_create(seed, 1 + (uint32_t)(seed % MOST_CLASSES));
    smp_simulation *s = random_simulate(r, host, errors);
    longest_path(r, host, &x);
    uint32_t slowest = 0;
    for (uint32_t c = 0; c < r->step.n_program; c++) {
        slowest = x.last_ps[c] > x.last_ps[slowest] ? c : slowest;
        uint32_t n = s->record0[c][r->step.programs[c]->n_instance];
        for (uint32_t k = 0; k < n; k++) {
            if (s->records[c][k].end_ps != x.end_ps[c][k]) {
                print_error("seed %" PRIu64 " class %u task %u\n", seed, c, k);
            }
            check_i64(s->records[c][k].end_ps, x.end_ps[c][k]);
            assert_true(s->records[c][k].ready_ps <= s->records[c][k].start_ps);
        }
    }
    check_i64(s->report.step_ps, x.last_ps[slowest]);
    check_u64(s->slowest, slowest);
    random_destroy(r);
    smp_errors_destroy(errors);
}

static void equals_longest_path(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < PROGRAMS; seed++) {
        check_against_path(seed, false);
    }
}

static void equals_longest_path_with_host(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < PROGRAMS; seed++) {
        check_against_path(seed, true);
    }
}

/* ------------------------------------------------------------------- properties */

static void never_below_the_busiest_stream(void **state)
{
    (void)state;
    smp_errors *errors = smp_errors_create();
    for (uint64_t seed = 0; seed < PROGRAMS; seed++) {
        random_step *r = random_create(seed, 1);
        smp_simulation *s = random_simulate(r, false, errors);
        const smp_program *p = r->step.programs[0];
        int64_t busy_ps[SMP_STREAMS] = {0};
        int64_t serial_ps = 0;
        for (uint32_t i = 0; i < p->n_instance; i++) {
            const smp_segment *segment = &p->segments[p->order[i].segment];
            for (uint32_t t = segment->task0; t < segment->task0 + segment->n_task; t++) {
                busy_ps[p->tasks[t].stream] += r->duration_ps[0][t];
                serial_ps += r->duration_ps[0][t];
            }
        }
        for (int k = 0; k < SMP_STREAMS; k++) {
            assert_true(s->report.step_ps >= busy_ps[k]);
        }
        assert_true(s->report.step_ps <= serial_ps);
        random_destroy(r);
    }
    smp_errors_destroy(errors);
}

/* With all waits, then with those of one class gone: never slower. */
static void a_wait_never_speeds_up(void **state)
{
    (void)state;
    smp_errors *errors = smp_errors_create();
    for (uint64_t seed = 0; seed < PROGRAMS; seed++) {
        random_step *r = random_create(seed, 2);
        int64_t with_ps = random_simulate(r, false, errors)->report.step_ps;
        smp_program *p = r->step.programs[0];
        uint32_t i = (uint32_t)(seed % p->n_instance);
        p->patterns[i].n_wait -= p->patterns[i].n_wait > 0;
        int64_t less_ps = random_simulate(r, false, errors)->report.step_ps;
        assert_true(less_ps <= with_ps);
        for (i = 0; i < p->n_instance; i++) {
            p->patterns[i].n_wait = 0;
        }
        assert_true(random_simulate(r, false, errors)->report.step_ps <= less_ps);
        random_destroy(r);
    }
    smp_errors_destroy(errors);
}

/* ------------------------------------------------------------------ closed forms */

enum { LAYERS = 10 };

/* One segment: gather (stream unshard), then compute, `layers` times.  The compute waits for
 * its gather; with one slot the gather also waits for the compute before it. */
static int64_t pipeline_ps(int64_t gather_ps, int64_t compute_ps, bool one_slot)
{
    smp_task tasks[] = {{.name = "gather", .stream = SMP_STREAM_UNSHARD, .comm = SMP_NO_COMM},
                        {.name = "compute", .stream = SMP_STREAM_COMPUTE, .comm = SMP_NO_COMM}};
    smp_segment segment = {"layer", 0, 2};
    smp_instance order[LAYERS] = {{0}};
    smp_wait waits[] = {{1, 0, 0}, {0, 1, 1}, {1, 0, 0}};
    smp_pattern patterns[] = {{0, 1}, {1, 2}};
    for (uint32_t i = 0; i < LAYERS; i++) {
        order[i].pattern = one_slot && i > 0;
    }
    smp_program p = {.tasks = tasks, .n_task = 2, .segments = &segment, .n_segment = 1,
                     .order = order, .n_instance = LAYERS, .patterns = patterns,
                     .n_pattern = 2, .waits = waits, .n_wait = 3};
    smp_program *programs[] = {&p};
    smp_step step = {.programs = programs, .n_program = 1};
    int64_t durations[] = {gather_ps, compute_ps};
    int64_t *duration_ps[] = {durations};
    smp_errors *errors = smp_errors_create();
    int64_t end_ps = -1;
    uint32_t slowest = 9;
    check_ok(smp_engine_run(&step, duration_ps, NULL, NULL, errors, &end_ps, &slowest), errors);
    check_u64(slowest, 0);
    smp_errors_destroy(errors);
    return end_ps;
}

static void pipelines(void **state)
{
    (void)state;
    /* Two stages of unlimited depth: the slower runs without a gap, the faster shows once. */
    check_i64(pipeline_ps(3, 7, false), 3 + LAYERS * 7);
    check_i64(pipeline_ps(7, 3, false), LAYERS * 7 + 3);
    check_i64(pipeline_ps(5, 5, false), 5 + LAYERS * 5);
    /* One slot: nothing overlaps. */
    check_i64(pipeline_ps(3, 7, true), LAYERS * (3 + 7));
    check_i64(pipeline_ps(0, 0, true), 0);
}

static void a_collective_waits_for_the_last_class(void **state)
{
    (void)state;
    /* Class 0 computes 5, class 1 computes 20; the all-reduce costs them 3 and 4 and ends at
     * 20 + 4 for both. */
    smp_task tasks[] = {{.name = "compute", .comm = SMP_NO_COMM},
                        {.name = "reduce", .op = SMP_OP_ALL_REDUCE, .comm = 0}};
    smp_segment segment = {"s", 0, 2};
    smp_instance order = {0};
    smp_pattern pattern = {0, 0};
    smp_comm comm = {.name = "world", .group = SMP_GROUP_WORLD};
    smp_program p = {.tasks = tasks, .n_task = 2, .segments = &segment, .n_segment = 1,
                     .order = &order, .n_instance = 1, .patterns = &pattern, .n_pattern = 1,
                     .comms = &comm, .n_comm = 1};
    smp_program *programs[] = {&p, &p};
    smp_step step = {.programs = programs, .n_program = 2};
    int64_t first[] = {5, 3};
    int64_t second[] = {20, 4};
    int64_t *duration_ps[] = {first, second};
    smp_record a[2], b[2];
    smp_record *records[] = {a, b};
    uint32_t index[] = {0, 2};
    const uint32_t *record0[] = {index, index};
    smp_errors *errors = smp_errors_create();
    int64_t end_ps = 0;
    uint32_t slowest = 9;
    check_ok(smp_engine_run(&step, duration_ps, records, record0, errors, &end_ps, &slowest),
             errors);
    check_i64(end_ps, 24);
    check_u64(slowest, 0);
    check_i64(a[1].ready_ps, 5);
    check_i64(a[1].start_ps, 20);
    check_u64(a[1].cause_class, 1);
    check_u64(a[1].cause_task, 0);
    check_i64(b[1].ready_ps, 20);
    smp_errors_destroy(errors);
}

/* ----------------------------------------------------------------------- overlap */

/* Two tasks of these kinds and durations, each on a stream of its own, from time 0. */
static void beside(const smp_overlap *overlap, const uint8_t kinds[2], const int64_t alone[2],
                   int64_t end_ps[2])
{
    smp_task tasks[] = {{.name = "a", .stream = SMP_STREAM_COMPUTE, .comm = SMP_NO_COMM},
                        {.name = "b", .stream = SMP_STREAM_REDUCE, .comm = SMP_NO_COMM}};
    smp_segment segment = {"s", 0, 2};
    smp_instance order = {0};
    smp_pattern pattern = {0, 0};
    smp_program p = {.tasks = tasks, .n_task = 2, .segments = &segment, .n_segment = 1,
                     .order = &order, .n_instance = 1, .patterns = &pattern, .n_pattern = 1};
    smp_program *programs[] = {&p};
    smp_step step = {.programs = programs, .n_program = 1};
    int64_t durations[] = {alone[0], alone[1]};
    int64_t *duration_ps[] = {durations};
    smp_record records_[2];
    smp_record *records[] = {records_};
    uint32_t index[] = {0, 2};
    const uint32_t *record0[] = {index};
    const uint8_t *kinds_[] = {kinds};
    smp_engine_input input = {.step = &step, .duration_ps = duration_ps, .records = records,
                              .record0 = record0, .overlap = overlap, .kinds = kinds_};
    smp_errors *errors = smp_errors_create();
    int64_t last_ps = 0;
    uint32_t slowest = 0;
    check_ok(smp_engine_simulate(&input, errors, &last_ps, &slowest), errors);
    end_ps[0] = records_[0].end_ps;
    end_ps[1] = records_[1].end_ps;
    check_i64(last_ps, end_ps[0] > end_ps[1] ? end_ps[0] : end_ps[1]);
    smp_errors_destroy(errors);
}

static smp_overlap no_slowdown(void)
{
    smp_overlap o;
    for (int a = 0; a < SMP_OVERLAP_KINDS; a++) {
        for (int b = 0; b < SMP_OVERLAP_KINDS; b++) {
            o.slow_q16[a][b] = 1u << 16;
        }
    }
    return o;
}

static void overlap_closed_forms(void **state)
{
    (void)state;
    smp_overlap o = no_slowdown();
    int64_t end_ps[2];
    const uint8_t kernel[] = {SMP_OVERLAP_MATRIX, SMP_OVERLAP_IN_NODE};
    /* A product at half its rate beside a collective at two thirds: the collective of 60 ends
     * at 90, when 45 of the product's 100 are done; the other 55 run alone. */
    o.slow_q16[SMP_OVERLAP_MATRIX][SMP_OVERLAP_IN_NODE] = 2u << 16;
    o.slow_q16[SMP_OVERLAP_IN_NODE][SMP_OVERLAP_MATRIX] = 3u << 15;
    beside(&o, kernel, (int64_t[]){100, 60}, end_ps);
    check_i64(end_ps[1], 90);
    check_i64(end_ps[0], 145);
    /* Two collectives share a link: 40 ends at 80, the other has 60 left. */
    o.slow_q16[SMP_OVERLAP_BETWEEN][SMP_OVERLAP_BETWEEN] = 2u << 16;
    const uint8_t same[] = {SMP_OVERLAP_BETWEEN, SMP_OVERLAP_BETWEEN};
    beside(&o, same, (int64_t[]){100, 40}, end_ps);
    check_i64(end_ps[1], 80);
    check_i64(end_ps[0], 140);
    /* Collectives on other links, and copies, do not disturb. */
    const uint8_t apart[] = {SMP_OVERLAP_BETWEEN, SMP_OVERLAP_IN_NODE};
    beside(&o, apart, (int64_t[]){100, 40}, end_ps);
    check_i64(end_ps[0] + end_ps[1], 140);
    const uint8_t copy[] = {SMP_OVERLAP_MATRIX, SMP_OVERLAP_NONE};
    beside(&o, copy, (int64_t[]){100, 40}, end_ps);
    check_i64(end_ps[0] + end_ps[1], 140);
}

/* Transfers that arrive on one link at some times and alone take others: max-min fair shares
 * are equal ones, since each could use all of the link.  From event to event, in reals. */
static void share_fluidly(uint32_t n, const int64_t *arrive_ps, const int64_t *alone_ps,
                          double *end_ps)
{
    double left[4];
    double now = 0;

    for (uint32_t i = 0; i < n; i++) {
        left[i] = (double)alone_ps[i];
    }
    for (uint32_t ended = 0; ended < n;) {
        double next = (double)INFINITY;
        uint32_t active = 0;
        for (uint32_t i = 0; i < n; i++) {
            active += left[i] > 0 && (double)arrive_ps[i] <= now;
        }
        for (uint32_t i = 0; i < n; i++) {
            const bool here = (double)arrive_ps[i] <= now;
            const double at = here ? now + left[i] * active : (double)arrive_ps[i];
            next = left[i] > 0 && at < next ? at : next;
        }
        for (uint32_t i = 0; i < n; i++) {
            if (left[i] > 0 && (double)arrive_ps[i] <= now) {
                left[i] -= (next - now) / active;
                if (left[i] < 1e-3) {
                    left[i] = 0;
                    end_ps[i] = next;
                    ended++;
                }
            }
        }
        now = next;
    }
}

/* The same by the engine: on each stream something that takes the time until the transfer
 * arrives, and the transfer. */
static void share_by_events(uint32_t n, const int64_t *arrive_ps, const int64_t *alone_ps,
                            smp_record records_[8])
{
    smp_task tasks[8];
    int64_t durations[8];
    uint8_t kinds_[8];
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < 2; k++) {
            tasks[2 * i + k] = (smp_task){.name = "t", .comm = SMP_NO_COMM,
                                          .stream = (uint8_t)(SMP_STREAM_UNSHARD + i)};
            durations[2 * i + k] = k == 0 ? arrive_ps[i] : alone_ps[i];
            kinds_[2 * i + k] = k == 0 ? SMP_OVERLAP_NONE : SMP_OVERLAP_BETWEEN;
        }
    }
    smp_segment segment = {"s", 0, 2 * n};
    smp_instance order = {0};
    smp_pattern pattern = {0, 0};
    smp_program p = {.tasks = tasks, .n_task = 2 * n, .segments = &segment, .n_segment = 1,
                     .order = &order, .n_instance = 1, .patterns = &pattern, .n_pattern = 1};
    smp_program *programs[] = {&p};
    smp_step step = {.programs = programs, .n_program = 1};
    int64_t *duration_ps[] = {durations};
    smp_record *records[] = {records_};
    uint32_t index[] = {0, 2 * n};
    const uint32_t *record0[] = {index};
    const uint8_t *kinds[] = {kinds_};
    smp_overlap overlap = no_slowdown();
    overlap.slow_q16[SMP_OVERLAP_BETWEEN][SMP_OVERLAP_BETWEEN] = 2u << 16;
    smp_engine_input input = {.step = &step, .duration_ps = duration_ps, .records = records,
                              .record0 = record0, .overlap = &overlap, .kinds = kinds};
    smp_errors *errors = smp_errors_create();
    int64_t last_ps = 0;
    uint32_t slowest = 0;
    check_ok(smp_engine_simulate(&input, errors, &last_ps, &slowest), errors);
    smp_errors_destroy(errors);
}

/* Up to four transfers: as the fluid model to a few picoseconds, which rounding takes; and one
 * that meets no other takes what it takes alone, to the picosecond. */
static void links_are_shared_fairly(void **state)
{
    uint32_t met = 0, alone = 0;

    (void)state;
    for (uint64_t seed = 0; seed < 2000; seed++) {
        int64_t arrive_ps[4], alone_ps[4];
        double end_ps[4];
        smp_record records[8];
        uint32_t words[4];
        smp_random4(seed, 1, 0, words);
        const uint32_t n = 1 + words[0] % 4, spread = 1u << 10 << words[1] % 14;
        for (uint32_t i = 0; i < n; i++) {
            smp_random4(seed, 2, i, words);
            arrive_ps[i] = 1 + words[0] % spread;
            alone_ps[i] = 1000 + words[1] % 100000;
        }
        share_fluidly(n, arrive_ps, alone_ps, end_ps);
        share_by_events(n, arrive_ps, alone_ps, records);
        for (uint32_t i = 0; i < n; i++) {
            const smp_record *r = &records[2 * i + 1];
            bool meets = false;
            check_i64(r->start_ps, arrive_ps[i]);
            assert_true(fabs((double)r->end_ps - end_ps[i]) <= 16);
            for (uint32_t j = 0; j < n; j++) {
                meets = meets || (j != i && records[2 * j + 1].start_ps < r->end_ps &&
                                  r->start_ps < records[2 * j + 1].end_ps);
            }
            met += meets;
            alone += !meets;
            if (!meets) {
                check_i64(r->end_ps - r->start_ps, alone_ps[i]);
            }
        }
    }
    assert_true(met > 1000 && alone > 1000);
}

/* Kinds of all tasks by what they are, collectives on links by communicator. */
static uint8_t **random_kinds(const random_step *r)
{
    uint8_t **kinds = SMP_ARENA_ARRAY(r->arena, r->step.n_program, uint8_t *);
    for (uint32_t c = 0; c < r->step.n_program; c++) {
        const smp_program *p = r->step.programs[c];
        kinds[c] = SMP_ARENA_ARRAY(r->arena, p->n_task, uint8_t);
        for (uint32_t t = 0; t < p->n_task; t++) {
            const smp_task *task = &p->tasks[t];
            kinds[c][t] = task->op == SMP_OP_ALL_REDUCE
                              ? (uint8_t)(SMP_OVERLAP_IN_NODE + task->comm)
                          : task->op == SMP_OP_STORE ? SMP_OVERLAP_NONE
                          : task->op == SMP_OP_ADD   ? SMP_OVERLAP_MEMORY
                                                     : SMP_OVERLAP_MATRIX;
        }
    }
    return kinds;
}

static int64_t random_run(const random_step *r, const smp_overlap *overlap,
                          uint8_t *const *kinds, smp_record **records, uint32_t **record0,
                          smp_errors *errors)
{
    smp_engine_input input = {.step = &r->step, .duration_ps = r->duration_ps,
                              .records = records, .record0 = (const uint32_t *const *)record0,
                              .overlap = overlap, .kinds = (const uint8_t *const *)kinds};
    int64_t end_ps = 0;
    uint32_t slowest = 0;
    check_ok(smp_engine_simulate(&input, errors, &end_ps, &slowest), errors);
    return end_ps;
}

/* Factors of one change nothing; larger ones let no task end earlier than without, and none
 * last shorter than alone. */
static void overlap_only_lengthens(void **state)
{
    (void)state;
    smp_errors *errors = smp_errors_create();
    for (uint64_t seed = 0; seed < 600; seed++) {
        random_step *r = random_create(seed, 1 + (uint32_t)(seed % MOST_CLASSES));
        const uint32_t n = r->step.n_program;
        uint8_t **kinds = random_kinds(r);
        smp_record *runs[3][MOST_CLASSES];
        uint32_t *index[MOST_CLASSES];
        smp_overlap o = no_slowdown(), none = no_slowdown();
        for (int a = 1; a < SMP_OVERLAP_KINDS; a++) {
            for (int b = SMP_OVERLAP_IN_NODE; b < SMP_OVERLAP_KINDS; b++) {
                o.slow_q16[a][b] += draw(r, 1u << 16);
                o.slow_q16[b][a] += draw(r, 1u << 15);
            }
        }
        for (uint32_t c = 0; c < n; c++) {
            index[c] = SMP_ARENA_ARRAY(r->arena, r->step.programs[c]->n_instance + 1, uint32_t);
            const uint64_t m = smp_records_index(r->step.programs[c], index[c]);
            for (int k = 0; k < 3; k++) {
                runs[k][c] = SMP_ARENA_ARRAY(r->arena, m, smp_record);
            }
        }
        const int64_t plain_ps = random_run(r, NULL, NULL, runs[0], index, errors);
        check_i64(random_run(r, &none, kinds, runs[1], index, errors), plain_ps);
        assert_true(random_run(r, &o, kinds, runs[2], index, errors) >= plain_ps);
        for (uint32_t c = 0; c < n; c++) {
            for (uint32_t i = 0; i < index[c][r->step.programs[c]->n_instance]; i++) {
                const smp_record *a = &runs[0][c][i], *b = &runs[1][c][i], *s = &runs[2][c][i];
                check_i64(b->start_ps, a->start_ps);
                check_i64(b->end_ps, a->end_ps);
                assert_true(s->start_ps >= a->start_ps && s->end_ps >= a->end_ps);
                assert_true(s->end_ps - s->start_ps >= a->end_ps - a->start_ps);
            }
        }
        random_destroy(r);
    }
    smp_errors_destroy(errors);
}

static void deadlock_is_named(void **state)
{
    (void)state;
    /* The gather waits for the compute of its own instance, which waits for the gather. */
    smp_task tasks[] = {{.name = "gather", .stream = SMP_STREAM_UNSHARD, .comm = SMP_NO_COMM},
                        {.name = "qkv", .stream = SMP_STREAM_COMPUTE, .comm = SMP_NO_COMM}};
    smp_segment segment = {"forward", 0, 2};
    smp_instance order = {.layer = 3};
    smp_wait waits[] = {{0, 1, 0}, {1, 0, 0}};
    smp_pattern pattern = {0, 2};
    smp_program p = {.tasks = tasks, .n_task = 2, .segments = &segment, .n_segment = 1,
                     .order = &order, .n_instance = 1, .patterns = &pattern, .n_pattern = 1,
                     .waits = waits, .n_wait = 2};
    smp_program *programs[] = {&p};
    smp_step step = {.programs = programs, .n_program = 1};
    int64_t durations[] = {1, 1};
    int64_t *duration_ps[] = {durations};
    smp_errors *errors = smp_errors_create();
    int64_t end_ps = -7;
    uint32_t slowest = 9;
    check_fails(smp_engine_run(&step, duration_ps, NULL, NULL, errors, &end_ps, &slowest),
                SMP_SYSTEM, errors, "forward.qkv (layer 3, micro-batch 0) waits for");
    check_i64(end_ps, -7);
    smp_errors_destroy(errors);
}

static void no_allocation_per_task(void **state)
{
    (void)state;
    enum { INSTANCES = 50000 };
    smp_arena *arena = smp_arena_create();
    smp_task tasks[] = {{.name = "a", .comm = SMP_NO_COMM}, {.name = "b", .comm = SMP_NO_COMM}};
    smp_segment segment = {"s", 0, 2};
    smp_pattern pattern = {0, 0};
    smp_program p = {.tasks = tasks, .n_task = 2, .segments = &segment, .n_segment = 1,
                     .n_instance = INSTANCES, .patterns = &pattern, .n_pattern = 1};
    p.order = SMP_ARENA_ARRAY(arena, INSTANCES, smp_instance);
    smp_program *programs[] = {&p};
    smp_step step = {.programs = programs, .n_program = 1};
    int64_t durations[] = {1, 2};
    int64_t *duration_ps[] = {durations};
    smp_errors *errors = smp_errors_create();
    int64_t end_ps = 0;
    uint32_t slowest = 9;
    uint64_t before = smp_heap_calls();
    check_ok(smp_engine_run(&step, duration_ps, NULL, NULL, errors, &end_ps, &slowest), errors);
    assert_true(smp_heap_calls() - before < 32);
    check_i64(end_ps, 3 * INSTANCES);
    smp_errors_destroy(errors);
    smp_arena_destroy(arena);
}

/* --------------------------------------------------------------- parts of time */

static void parts_add_up(void **state)
{
    (void)state;
    smp_errors *errors = smp_errors_create();
    for (uint64_t seed = 0; seed < PROGRAMS; seed++) {
        random_step *r = random_create(seed, 1 + (uint32_t)(seed % MOST_CLASSES));
        smp_simulation *s = random_simulate(r, seed % 2 == 1, errors);
        smp_time_parts parts;
        smp_time_split(s, s->report.step_ps, &parts);
        int64_t sum_ps = 0;
        for (int k = 0; k < SMP_PARTS; k++) {
            int64_t part_ps = *smp_time_part(&parts, (smp_part)k);
            assert_true(part_ps >= 0);
            sum_ps += part_ps;
        }
        check_i64(sum_ps, s->report.step_ps);
        int64_t path_ps = 0;
        for (uint32_t c = 0; c < r->step.n_program; c++) {
            for (uint32_t t = 0; t < r->step.programs[c]->n_task; t++) {
                path_ps += s->path_ps[c][t];
            }
        }
        check_i64(path_ps, s->report.step_ps);
        random_destroy(r);
    }
    smp_errors_destroy(errors);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(equals_longest_path),
    cmocka_unit_test(equals_longest_path_with_host),
    cmocka_unit_test(never_below_the_busiest_stream),
    cmocka_unit_test(a_wait_never_speeds_up),
    cmocka_unit_test(pipelines),
    cmocka_unit_test(a_collective_waits_for_the_last_class),
    cmocka_unit_test(overlap_closed_forms),
    cmocka_unit_test(links_are_shared_fairly),
    cmocka_unit_test(overlap_only_lengthens),
    cmocka_unit_test(deadlock_is_named),
    cmocka_unit_test(no_allocation_per_task),
    cmocka_unit_test(parts_add_up),
};

CHECK_MAIN(tests)
