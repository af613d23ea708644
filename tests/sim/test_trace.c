/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The trace and the plots, held against the simulation that they show: every task once, no
 * two at once on a stream, times to the picosecond, the memory that was planned; data files
 * that do not grow with the number of tasks and that stay when there is no gnuplot.
 */
#include "config.h"

#include "tests/step/step_jobs.h"

#include "base/gnuplot.h"
#include "sim/sim.h"

#include <cjson/cJSON.h>
#include <stdio.h>

static smp_simulation *simulate(bench *b)
{
    smp_simulation *simulation = NULL;
    bench_lower(b);
    check_ok(smp_simulate(&b->job, b->step, b->errors, &simulation), b->errors);
    return simulation;
}

/* The whole of a file, on the heap. */
static char *slurp(const char *path, size_t *n_p)
{
    FILE *stream = fopen(path, "rb");
    assert_non_null(stream);
    assert_int_equal(fseek(stream, 0, SEEK_END), 0);
    const long n = ftell(stream);
    assert_true(n > 0);
    rewind(stream);
    char *text = smp_heap_alloc((size_t)n + 1, 1);
    assert_int_equal(fread(text, 1, (size_t)n, stream), n);
    fclose(stream);
    if (n_p) {
        *n_p = (size_t)n;
    }
    return text;
}

/* A name of this process with an ending; overwritten by the second call after it. */
static const char *own(const char *end)
{
    static char names[2][64];
    static unsigned next;
    char *name = names[next++ % 2];
    snprintf(name, sizeof names[0], "trace-%ld%s", (long)getpid(), end);
    return name;
}

static double number(const cJSON *object, const char *key)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, key);
    assert_true(cJSON_IsNumber(value));
    return value->valuedouble;
}

static const char *string(const cJSON *object, const char *key)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
    assert_non_null(text);
    return text;
}

/* Times of small jobs are below 2^53 ps, and so exact as doubles. */
static int64_t ps_of(const cJSON *event, const char *key)
{
    return (int64_t)llround(number(event, key) * 1e6);
}

static cJSON *trace_of(const smp_simulation *simulation, bench *b)
{
    const char *path = own(".json");
    check_ok(smp_simulation_trace(simulation, path, b->errors), b->errors);
    char *text = slurp(path, NULL);
    cJSON *trace = cJSON_Parse(text);
    assert_non_null(trace);
    free(text);
    (void)unlink(path);
    return trace;
}

static const cJSON *events_of(const cJSON *trace)
{
    const cJSON *events = cJSON_GetObjectItemCaseSensitive(trace, "traceEvents");
    assert_true(cJSON_IsArray(events));
    return events;
}

/* A root unit that outweighs everything else. */
#define VOCABULARY                                                                          \
    "{\"model_type\": \"llama\", \"num_hidden_layers\": 4, \"hidden_size\": 512, "           \
    "\"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"intermediate_size\": 1024, "  \
    "\"vocab_size\": 65536, \"max_position_embeddings\": 4096, "                            \
    "\"tie_word_embeddings\": false}"

typedef struct highest { uint64_t bytes, points; } highest;

static uint64_t sum_of(const smp_live_point *point)
{
    uint64_t sum = 0;
    for (int k = 0; k < SMP_KINDS; k++) {
        sum += k == SMP_KIND_TOKEN ? 0 : point->kind_bytes[k];
    }
    return sum;
}

static void keep_highest(void *context, const smp_live_point *point)
{
    highest *h = context;
    h->bytes = sum_of(point) > h->bytes ? sum_of(point) : h->bytes;
    h->points++;
}

static const char *const jobs[] = {
    "",
    "checkpointing=full offload=true activation_loading_horizon=2",
    "tensor_parallel_degree=2 sequence_parallel=true hybrid_shard_degree=2",
    "sharding=optimizer hybrid_shard_degree=4 accumulation=last",
};
enum { JOBS = sizeof jobs / sizeof jobs[0] };

/* One complete event per task, in the order of issue, with the times of its record. */
static void test_tasks(void **state)
{
    (void)state;
    for (int j = 0; j < JOBS; j++) {
        bench b;
        bench_open(&b, LLAMA(6, 4), 8, 512, 32, jobs[j]);
        smp_simulation *simulation = simulate(&b);
        cJSON *trace = trace_of(simulation, &b);
        const cJSON *event = events_of(trace)->child;
        uint64_t n = 0;
        for (uint32_t c = 0; c < b.step->n_program; c++) {
            const smp_program *program = b.step->programs[c];
            for (uint32_t i = 0; i < program->n_instance; i++) {
                const smp_instance *instance = &program->order[i];
                const smp_segment *segment = &program->segments[instance->segment];
                for (uint32_t t = 0; t < segment->n_task; t++, n++) {
                    const smp_record *r =
                        &simulation->records[c][simulation->record0[c][i] + t];
                    const smp_task *task = &program->tasks[segment->task0 + t];
                    while (strcmp(string(event, "ph"), "X") != 0) {
                        event = event->next;
                        assert_non_null(event);
                    }
                    const cJSON *args = cJSON_GetObjectItemCaseSensitive(event, "args");
                    check_contains(string(event, "name"), task->name);
                    check_i64(ps_of(event, "ts"), r->start_ps);
                    check_i64(ps_of(event, "dur"), r->end_ps - r->start_ps);
                    check_rel(number(event, "pid"), c + 1.0, 0);
                    check_rel(number(args, "layer"), instance->layer, 0);
                    check_rel(number(args, "micro_batch"), instance->micro_batch, 0);
                    check_rel(number(args, "flops"), (double)smp_task_flops(task), 0);
                    check_rel(number(args, "bytes"), (double)smp_task_bytes(task), 0);
                    check_text(string(args, "op"), smp_op_info_of((smp_op)task->op)->name);
                    event = event->next;
                }
            }
        }
        for (; event; event = event->next) {
            assert_string_not_equal(string(event, "ph"), "X");
        }
        check_u64(n, smp_simulation_report(simulation)->tasks);
        cJSON_Delete(trace);
        smp_simulation_destroy(simulation);
        bench_close(&b);
    }
}

/* Threads are named, in one process each, and run one task at a time. */
static void test_streams(void **state)
{
    enum { THREADS = 1024 };
    (void)state;
    for (int j = 0; j < JOBS; j++) {
        int64_t free_ps[THREADS] = {0};
        int process[THREADS] = {0};
        bool named[THREADS] = {false};
        bench b;
        bench_open(&b, LLAMA(6, 4), 8, 512, 32, jobs[j]);
        smp_simulation *simulation = simulate(&b);
        cJSON *trace = trace_of(simulation, &b);
        const cJSON *event = NULL;
        cJSON_ArrayForEach(event, events_of(trace))
        {
            const int thread = strcmp(string(event, "ph"), "C") == 0
                                   ? 0 : (int)number(event, "tid");
            assert_in_range(thread, 0, THREADS - 1);
            if (strcmp(string(event, "name"), "thread_name") == 0) {
                assert_false(named[thread]);
                named[thread] = true;
                process[thread] = (int)number(event, "pid");
            }
            if (strcmp(string(event, "ph"), "X") == 0) {
                assert_true(named[thread]);
                check_u64((uint64_t)process[thread], (uint64_t)number(event, "pid"));
                assert_true(ps_of(event, "ts") >= free_ps[thread]);
                free_ps[thread] = ps_of(event, "ts") + ps_of(event, "dur");
            }
        }
        cJSON_Delete(trace);
        smp_simulation_destroy(simulation);
        bench_close(&b);
    }
}

/* The counters: kinds add up to the total, which is what the sweep gives and what the arena
 * holds. */
static void check_counters(const smp_simulation *simulation, bench *b, uint64_t *most_p)
{
    cJSON *trace = trace_of(simulation, b);
    const cJSON *event = NULL;
    highest expected = {0};
    uint64_t most = 0;
    uint64_t sum = 0;
    uint64_t n = 0;
    int64_t last_ps = -1;
    smp_live_sweep(simulation, 0, keep_highest, &expected);
    cJSON_ArrayForEach(event, events_of(trace))
    {
        if (strcmp(string(event, "ph"), "C") != 0 || number(event, "pid") > 1) {
            continue;
        }
        const cJSON *args = cJSON_GetObjectItemCaseSensitive(event, "args");
        if (strcmp(string(event, "name"), "live bytes by kind") == 0) {
            const cJSON *kind = NULL;
            sum = 0;
            cJSON_ArrayForEach(kind, args) { sum += (uint64_t)kind->valuedouble; }
            assert_true(ps_of(event, "ts") > last_ps);
            last_ps = ps_of(event, "ts");
            n++;
        } else {
            check_u64((uint64_t)number(args, "device"), sum);
            check_i64(ps_of(event, "ts"), last_ps);
            most = sum > most ? sum : most;
        }
    }
    check_u64(n, expected.points);
    check_u64(most, expected.bytes);
    check_i64(last_ps, smp_simulation_report(simulation)->step_ps);
    cJSON_Delete(trace);
    *most_p = most;
}

/* Where everything is on one stream, simulated time is the order of issue, and the highest
 * point is the peak of serial issue; elsewhere streams overlap, within the arena. */
static void test_memory(void **state)
{
    (void)state;
    uint64_t most = 0;
    bench b;
    bench_open(&b, GPT2, 1, 512, 4, "sharding=none precision=fp32 reduce_dtype=fp32");
    smp_simulation *simulation = simulate(&b);
    check_counters(simulation, &b, &most);
    check_u64(most, smp_simulation_report(simulation)->memory.live_bytes);
    smp_simulation_destroy(simulation);
    bench_close(&b);
    /* The parts of rank 0 of what is gathered for the second micro-batch may be written while
     * the first still uses the others: the place counts once. */
    bench_open(&b, VOCABULARY, 7, 512, 14, "reshard_after_forward=false");
    simulation = simulate(&b);
    check_counters(simulation, &b, &most);
    assert_true(most <= b.step->programs[0]->arena_bytes);
    smp_simulation_destroy(simulation);
    bench_close(&b);
    for (int j = 0; j < JOBS; j++) {
        bench_open(&b, LLAMA(6, 4), 8, 512, 32, jobs[j]);
        simulation = simulate(&b);
        check_counters(simulation, &b, &most);
        assert_true(most <= b.step->programs[0]->arena_bytes);
        smp_simulation_destroy(simulation);
        bench_close(&b);
    }
}

/* Same simulation, same bytes. */
static void test_twice(void **state)
{
    (void)state;
    bench b;
    bench_open(&b, LLAMA(6, 4), 8, 512, 32, jobs[1]);
    smp_simulation *simulation = simulate(&b);
    size_t n[2];
    char *text[2];
    for (int i = 0; i < 2; i++) {
        const char *path = own(".json");
        check_ok(smp_simulation_trace(simulation, path, b.errors), b.errors);
        text[i] = slurp(path, &n[i]);
        (void)unlink(path);
    }
    check_u64(n[0], n[1]);
    assert_memory_equal(text[0], text[1], n[0]);
    free(text[0]);
    free(text[1]);
    check_fails(smp_simulation_trace(simulation, "no/such/folder/x.json", b.errors), SMP_SYSTEM,
                b.errors, "cannot be written");
    smp_simulation_destroy(simulation);
    bench_close(&b);
}

typedef smp_status (*plotter)(const smp_simulation *, const char *, smp_errors *);

/* Plots without gnuplot and returns the data file's text. */
static char *data_of(plotter plot, const smp_simulation *simulation, bench *b, size_t *n_p)
{
    const char *path = own(".svg");
    const char *data = own(".svg.dat");
    check_fails(plot(simulation, path, b->errors), SMP_SYSTEM, b->errors, data);
    assert_int_not_equal(access(path, F_OK), 0);
    char *text = slurp(data, n_p);
    (void)unlink(data);
    return text;
}

/* Rows of memory: time never goes back, the highest sum is that of the sweep and of what
 * lies outside the arena. */
static void check_memory_data(const char *text, const smp_simulation *simulation)
{
    enum { AREAS = 8 };
    const smp_memory *m = &smp_simulation_report(simulation)->memory;
    highest expected = {0};
    double last_s = 0;
    double most = 0;
    smp_live_sweep(simulation, simulation->fullest, keep_highest, &expected);
    for (const char *line = text; *line; line = strchr(line, '\n') + 1) {
        if (*line == '#') {
            continue;
        }
        char *next = NULL;
        double sum = 0;
        const double time_s = strtod(line, &next);
        assert_true(time_s >= last_s);
        last_s = time_s;
        for (int i = 0; i < AREAS; i++) {
            sum += strtod(next, &next);
        }
        most = sum > most ? sum : most;
    }
    check_rel(most, (double)(expected.bytes + m->peak_bytes - m->arena_bytes), 0);
    check_rel(last_s, smp_simulation_report(simulation)->step_time_s, 1e-11);
}

/* Boxes of a row do not overlap and lie in the step; returns their number. */
static size_t check_boxes(const char *text, const smp_simulation *simulation)
{
    enum { ROWS = SMP_STREAMS + 1, SHADES = 11 };
    const double step_ms = 1e3 * smp_simulation_report(simulation)->step_time_s;
    double free_ms[ROWS] = {0};
    size_t n = 0;
    for (const char *line = text; *line; line = strchr(line, '\n') + 1) {
        unsigned row = 0;
        int shade = 0;
        double from_ms = 0;
        double to_ms = 0;
        if (*line == '\n') {
            memset(free_ms, 0, sizeof free_ms);
        } else if (*line != '#') {
            assert_int_equal(sscanf(line, "%u %lf %lf %d", &row, &from_ms, &to_ms, &shade), 4);
            assert_in_range(row, 0, ROWS - 1);
            assert_in_range(shade, 0, SHADES - 1);
            assert_true(from_ms >= free_ms[row] - 1e-9 * step_ms);
            assert_true(to_ms >= from_ms && to_ms <= step_ms * (1 + 1e-9));
            free_ms[row] = to_ms;
            n++;
        }
    }
    return n;
}

static void test_data_files(void **state)
{
    (void)state;
    char *saved = strdup(getenv("PATH") ? getenv("PATH") : "");
    assert_int_equal(setenv("PATH", "", 1), 0);
    for (int j = 0; j < JOBS; j++) {
        bench b;
        bench_open(&b, LLAMA(6, 4), 8, 512, 32, jobs[j]);
        smp_simulation *simulation = simulate(&b);
        char *text = data_of(smp_simulation_plot_memory, simulation, &b, NULL);
        check_memory_data(text, simulation);
        free(text);
        text = data_of(smp_simulation_plot_timeline, simulation, &b, NULL);
        assert_true(check_boxes(text, simulation) > 0);
        free(text);
        smp_simulation_destroy(simulation);
        bench_close(&b);
    }
    assert_int_equal(setenv("PATH", saved, 1), 0);
    free(saved);
}

/* Several hundred thousand tasks: neither file grows beyond what a picture can show. */
static void test_many_tasks(void **state)
{
    enum { MOST = 5 * 1000 * 1000, TASKS = 200 * 1000 };
    (void)state;
    char *saved = strdup(getenv("PATH") ? getenv("PATH") : "");
    size_t n = 0;
    bench b;
    bench_open(&b, LLAMA(80, 4), 8, 512, 1024, "tensor_parallel_degree=2 checkpointing=full");
    smp_simulation *simulation = simulate(&b);
    assert_true(smp_simulation_report(simulation)->tasks > TASKS);
    assert_int_equal(setenv("PATH", "", 1), 0);
    char *text = data_of(smp_simulation_plot_memory, simulation, &b, &n);
    assert_true(n < MOST);
    check_memory_data(text, simulation);
    free(text);
    text = data_of(smp_simulation_plot_timeline, simulation, &b, &n);
    assert_true(n < MOST);
    check_boxes(text, simulation);
    free(text);
    assert_int_equal(setenv("PATH", saved, 1), 0);
    free(saved);
    smp_simulation_destroy(simulation);
    bench_close(&b);
}

static void test_names(void **state)
{
    (void)state;
    bench b;
    bench_open(&b, GPT2, 1, 512, 4, "");
    smp_simulation *simulation = simulate(&b);
    const char *const wrong[] = {"x.pdf", "x", ".svg", "x.SVG", "x.png.dat", ""};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        check_fails(smp_simulation_plot_memory(simulation, wrong[i], b.errors), SMP_INPUT,
                    b.errors, ".svg or .png");
        check_fails(smp_simulation_plot_timeline(simulation, wrong[i], b.errors), SMP_INPUT,
                    b.errors, ".svg or .png");
    }
    smp_simulation_destroy(simulation);
    bench_close(&b);
}

/* With gnuplot the picture is there, also under a name that gnuplot would take for a shell
 * command; without, this test has nothing to say. */
static void test_pictures(void **state)
{
    (void)state;
    static const char svg[] = "<?xml";
    static const char png[] = "\x89PNG";
    bench b;
    bench_open(&b, LLAMA(6, 4), 8, 512, 32, jobs[1]);
    smp_simulation *simulation = simulate(&b);
    const plotter plots[] = {smp_simulation_plot_memory, smp_simulation_plot_timeline};
    const char *const names[] = {"| trace-it's a test.svg", "< trace test.png"};
    for (int p = 0; p < 4; p++) {
        const char *name = names[p % 2];
        char data[64];
        snprintf(data, sizeof data, "%s.dat", name);
        const smp_status status = plots[p / 2](simulation, name, b.errors);
        (void)unlink(data);
        if (status == SMP_SYSTEM && strstr(smp_errors_text(b.errors, 0), "cannot be run")) {
            print_message("# no gnuplot\n");
            break;
        }
        check_ok(status, b.errors);
        size_t n = 0;
        char *text = slurp(name, &n);
        assert_true(n > 1000);
        assert_memory_equal(text, p % 2 ? png : svg, p % 2 ? 4 : 5);
        free(text);
        (void)unlink(name);
    }
    smp_simulation_destroy(simulation);
    bench_close(&b);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_tasks),      cmocka_unit_test(test_streams),
    cmocka_unit_test(test_memory),     cmocka_unit_test(test_twice),
    cmocka_unit_test(test_data_files), cmocka_unit_test(test_many_tasks),
    cmocka_unit_test(test_names),      cmocka_unit_test(test_pictures),
};

CHECK_MAIN(tests)
