/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every legal layout of the grid of layouts.h trains for 20 steps as one rank does.  Part of
 * `make check-full`; the arguments are models, none: all of them.
 *
 * Many layouts come to the same step programs on the same mesh (program_key.h), and are so the
 * same computation: a prefetch where nothing is sharded, say.  Of these the first runs.
 * Streams are serial, but in one of eight, by chance, beside each other.
 *
 * As many processes as there are cores share the work; one that dies is replaced, and what it
 * ran has failed.  With SMP_CHECK_SECONDS no training of a model starts after that time; the
 * order is one of chance, so that what ran was drawn without preference.  Every minute, and at
 * the end, a line says how far it is.  Exit status 1: something failed, or has not run.
 */
#include "config.h"

#include "tests/exec/layouts.h"
#include "tests/exec/program_key.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

enum { WORKERS_MAX = 64, ASYNC_OF = 8, NONE_YET = -1 };

/* What the processes share. */
typedef struct work {
    const layouts_model *model;
    points all;
    size_t n;                          /* of all, or of the first ones */
    time_t end;
    /* shared memory */
    program_key *keys;                 /* of each point */
    uint32_t *first;                   /* points that stand for others, too, in order */
    uint32_t *same;                    /* and how many */
    atomic_size_t *next, *ran, *stood_for, *failed;
    atomic_int *busy;                  /* of each worker: what it is at, or NONE_YET */
} work;

static void *shared(size_t n, size_t bytes)
{
    void *p = mmap(NULL, n * bytes + 1, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                   0);

    if (p == MAP_FAILED) {
        perror("shared memory");
        exit(99);
    }
    return p;
}

/* ---- processes ---- */

typedef void worker_main(const work *w, atomic_int *busy);

static pid_t start(const work *w, worker_main *run, int worker)
{
    pid_t id = fork();

    if (id < 0) {
        perror("fork");
        exit(99);
    }
    if (id == 0) {
        run(w, &w->busy[worker]);
        exit(0);
    }
    return id;
}

static void print_state(const work *w)
{
    (void)printf("# %s: %zu of %zu programs ran, for %zu layouts; %zu failed\n",
                 w->model->name, atomic_load(w->ran), w->n, atomic_load(w->stood_for),
                 atomic_load(w->failed));
    (void)fflush(stdout);
}

/* A worker that has ended: done, or dead with what it was at. */
static bool is_done(const work *w, int status, int worker)
{
    int at = atomic_load(&w->busy[worker]);

    if (at == NONE_YET && status != 0) {
        (void)printf("# a process died outside any layout\n");
        exit(99);
    }
    if (status != 0) {
        (void)printf("# %s: a process died (%s %d) in layout %d\n", w->model->name,
                     WIFSIGNALED(status) ? "signal" : "status",
                     WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), at);
        atomic_fetch_add(w->failed, 1);
        atomic_store(&w->busy[worker], NONE_YET);
    }
    return status == 0;
}

/* Runs the workers until all are done. */
static void run_workers(const work *w, worker_main *run)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int n = cores < 1 ? 1 : cores > WORKERS_MAX ? WORKERS_MAX : (int)cores, left = n;
    pid_t id[WORKERS_MAX];
    time_t said = time(NULL);

    atomic_store(w->next, 0);
    for (int i = 0; i < n; i++) {
        atomic_store(&w->busy[i], NONE_YET);
        id[i] = start(w, run, i);
    }
    while (left > 0) {
        (void)usleep(20000);
        for (int i = 0; i < n; i++) {
            int status;

            if (id[i] > 0 && waitpid(id[i], &status, WNOHANG) == id[i]) {
                bool done = is_done(w, status, i);

                id[i] = done ? 0 : start(w, run, i);
                left -= done;
            }
        }
        if (time(NULL) >= said + 60) {
            said = time(NULL);
            print_state(w);
        }
    }
}

/* ---- keys ---- */

static void find_keys(const work *w, atomic_int *busy)
{
    tiny t[4];
    smp_settings plain;
    size_t i;

    (void)busy;
    for (uint32_t r = 0; r < 4; r++) {
        tiny_open(&t[r], w->model->config, 1u << r, 16, 8);
    }
    plain = t[0].job.settings;
    while ((i = atomic_fetch_add(w->next, 1)) < w->n) {
        tiny *of = &t[w->all.at[i].value[0]];
        char text[512];

        of->job.settings = plain;
        settings_of(w->all.at[i], w->model->moe, text, sizeof text);
        tiny_set(of, text);
        check_ok(smp_job_resolve(&of->job, of->errors), of->errors);
        w->keys[i] = key_of(&of->job);
    }
}

typedef struct keyed { program_key key; uint32_t point; } keyed;

static int compare_keyed(const void *a, const void *b)
{
    const keyed *x = a, *y = b;
    int by_key = memcmp(&x->key, &y->key, sizeof x->key);

    return by_key != 0 ? by_key : (x->point > y->point) - (x->point < y->point);
}

static int compare_points(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

/* The first point of each key. */
static void find_first(work *w)
{
    keyed *sorted = smp_heap_alloc(w->all.n, sizeof *sorted);
    size_t n = 0;
    uint32_t of = 0;

    for (size_t i = 0; i < w->all.n; i++) {
        sorted[i] = (keyed){ w->keys[i], (uint32_t)i };
    }
    qsort(sorted, w->all.n, sizeof *sorted, compare_keyed);
    for (size_t i = 0; i < w->all.n; i++) {
        if (i == 0 || memcmp(&sorted[i].key, &sorted[i - 1].key, sizeof sorted[i].key) != 0) {
            of = w->first[n++] = sorted[i].point;
        }
        w->same[of]++;
    }
    qsort(w->first, n, sizeof *w->first, compare_points);
    w->n = n;
    free(sorted);
}

/* ---- training ---- */

static void train(const work *w, atomic_int *busy)
{
    trained one = train_alone(w->model->config, w->model->moe, STEPS);
    size_t i;

    while (time(NULL) < w->end && (i = atomic_fetch_add(w->next, 1)) < w->n) {
        point p = w->all.at[w->first[i]];
        char text[DIFFER_TEXT];
        uint32_t u[4];

        atomic_store(busy, (int)w->first[i]);
        smp_random4(18, 0, w->first[i], u);
        p.value[ASYNC] = u[0] % ASYNC_OF == 0;
        try_layout(w->model->config, w->model->moe, p, &one, STEPS, text, sizeof text);
        if (text[0] != '\0') {
            (void)printf("# %s: %u ranks%s, %s\n", w->model->name, ranks_of(p),
                         p.value[ASYNC] ? ", async" : "", text);
            (void)fflush(stdout);
            atomic_fetch_add(w->failed, 1);
        }
        atomic_fetch_add(w->ran, 1);
        atomic_fetch_add(w->stood_for, w->same[w->first[i]]);
        atomic_store(busy, NONE_YET);
    }
    trained_free(&one);
}

/* True: every layout has been run, or one with the same programs, and none failed. */
static bool check_model(const layouts_model *model)
{
    const char *seconds = getenv("SMP_CHECK_SECONDS");
    work w = { .model = model, .all = legal_points(model->config, model->moe, true) };

    w.n = w.all.n;
    w.keys = shared(w.all.n, sizeof *w.keys);
    w.first = shared(w.all.n, sizeof *w.first);
    w.same = shared(w.all.n, sizeof *w.same);
    w.next = shared(4, sizeof *w.next);
    w.ran = w.next + 1;
    w.stood_for = w.next + 2;
    w.failed = w.next + 3;
    w.busy = shared(WORKERS_MAX, sizeof *w.busy);
    run_workers(&w, find_keys);
    find_first(&w);
    (void)printf("# %s: %zu legal layouts have %zu programs\n", model->name, w.all.n, w.n);
    (void)fflush(stdout);
    w.end = time(NULL) + (seconds ? (time_t)atol(seconds) : (time_t)1 << 30);
    run_workers(&w, train);
    print_state(&w);
    free(w.all.at);
    return atomic_load(w.failed) == 0 && atomic_load(w.ran) == w.n;
}

int main(int argc, char **argv)
{
    int number = 0;
    bool good = true;

    for (int m = 0; m < MODELS; m++) {
        bool chosen = argc < 2;

        for (int i = 1; i < argc; i++) {
            chosen = chosen || strcmp(argv[i], layouts_models[m].name) == 0;
        }
        if (chosen) {
            bool all = check_model(&layouts_models[m]);

            (void)printf("%sok %d - every layout of %s for %d steps\n", all ? "" : "not ",
                         ++number, layouts_models[m].name, STEPS);
            good = good && all;
        }
    }
    (void)printf("1..%d\n", number);
    return good ? 0 : 1;
}
