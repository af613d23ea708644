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
 * ran has failed.  With SMP_CHECK_SECONDS no training of a model starts after that time; what
 * ran are then the programs of the first layouts in an order of chance.  Every minute, and at
 * the end, a line says how far it is.  Exit status 1: something failed, or has not run.
 */
#include "config.h"

#include "tests/exec/layouts.h"
#include "tests/exec/program_key.h"

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

enum { WORKERS_MAX = 64, ASYNC_OF = 8, NONE_YET = -1 };

/* What the processes share. */
typedef struct work {
    const layouts_model *model;
    points all;
    program_key *keys;                 /* of each point */
    uint32_t *first;                   /* points that stand for others, too, in order */
    size_t n;                          /* of them */
    uint32_t *same;                    /* of each point: those that it stands for */
    time_t end;
    /* shared memory */
    program_key *found;                /* of each of `first` */
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

/* The ranks of a layout wait for each other more than they compute: on one core they do so
 * without waking another. */
static void stay_on_core(int worker)
{
#ifdef CPU_SET
    cpu_set_t all, one;
    int nth = 0;

    if (sched_getaffinity(0, sizeof all, &all) != 0) {
        return;
    }
    for (size_t core = 0; core < CPU_SETSIZE; core++) {
        if (CPU_ISSET(core, &all) && nth++ == worker) {
            CPU_ZERO(&one);
            CPU_SET(core, &one);
            (void)sched_setaffinity(0, sizeof one, &one);
        }
    }
#else
    (void)worker;
#endif
}

static pid_t start(const work *w, worker_main *run, int worker)
{
    pid_t id = fork();

    if (id < 0) {
        perror("fork");
        exit(99);
    }
    if (id == 0) {
        stay_on_core(worker);
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

/* A worker has died: what it was at has failed.  False: it was at nothing that another worker
 * would not die of as well. */
static bool note_death(const work *w, int status, int worker)
{
    int at = atomic_load(&w->busy[worker]);

    (void)printf("# %s: a process died (%s %d)", w->model->name,
                 WIFSIGNALED(status) ? "signal" : "status",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    if (at != NONE_YET) {
        char text[512];

        settings_of(w->all.at[at], w->model->moe, text, sizeof text);
        (void)printf(" in %u ranks, %s", ranks_of(w->all.at[at]), text);
        atomic_fetch_add(w->failed, 1);
        atomic_store(&w->busy[worker], NONE_YET);
    }
    (void)printf("\n");
    (void)fflush(stdout);
    return at != NONE_YET;
}

/* One that has ended is replaced unless it was done; false: it is no use. */
static bool look_after(const work *w, worker_main *run, pid_t *id, int worker)
{
    int status;

    if (*id > 0 && waitpid(*id, &status, WNOHANG) == *id) {
        *id = 0;
        if (status != 0) {
            if (!note_death(w, status, worker)) {
                return false;
            }
            *id = start(w, run, worker);
        }
    }
    return true;
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
        left = 0;
        for (int i = 0; i < n; i++) {
            if (!look_after(w, run, &id[i], i)) {
                for (int k = 0; k < n; k++) {
                    (void)(id[k] > 0 && kill(id[k], SIGTERM));
                }
                exit(99);
            }
            left += id[i] > 0;
        }
        if (w->end > 0 && time(NULL) >= said + 60) {
            said = time(NULL);
            print_state(w);
        }
    }
}

/* ---- what is the same ---- */

/* Jobs of 1, 2, 4 and 8 ranks. */
typedef struct jobs { tiny of[4]; smp_settings plain; } jobs;

static void open_jobs(jobs *j, const layouts_model *model)
{
    for (uint32_t r = 0; r < 4; r++) {
        tiny_open(&j->of[r], model->config, 1u << r, 16, 8);
    }
    j->plain = j->of[0].job.settings;
}

static void close_jobs(jobs *j)
{
    for (uint32_t r = 0; r < 4; r++) {
        tiny_close(&j->of[r]);
    }
}

static const smp_job *resolve(jobs *j, const layouts_model *model, point p)
{
    tiny *t = &j->of[p.value[0]];
    char text[512];

    t->job.settings = j->plain;
    settings_of(p, model->moe, text, sizeof text);
    tiny_set(t, text);
    check_ok(smp_job_resolve(&t->job, t->errors), t->errors);
    return &t->job;
}

/* Of the values that act and the ranks; not of who gave them, which no step program knows. */
static program_key key_of_values(const smp_job *job)
{
    program_key key = { { 0 } };
    smp_settings values = job->settings;

    values.given = values.yields = 0;
    memset(values.origin, 0, sizeof values.origin);
    key_bytes(&key, &values, sizeof values);
    KEY_NUMBERS(&key, job->world);
    return key;
}

static void find_values(const work *w)
{
    jobs j;

    open_jobs(&j, w->model);
    for (size_t i = 0; i < w->all.n; i++) {
        w->keys[i] = key_of_values(resolve(&j, w->model, w->all.at[i]));
    }
    close_jobs(&j);
}

static void find_programs(const work *w, atomic_int *busy)
{
    jobs j;
    size_t i;

    (void)busy;
    open_jobs(&j, w->model);
    while ((i = atomic_fetch_add(w->next, 1)) < w->n) {
        w->found[i] = key_of(resolve(&j, w->model, w->all.at[w->first[i]]));
    }
    close_jobs(&j);
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

/* Of the points in `first` leaves the first of each key. */
static void leave_first(work *w)
{
    keyed *sorted = smp_heap_alloc(w->n, sizeof *sorted);
    size_t n = 0;

    for (size_t i = 0; i < w->n; i++) {
        sorted[i] = (keyed){ w->keys[w->first[i]], w->first[i] };
    }
    qsort(sorted, w->n, sizeof *sorted, compare_keyed);
    for (size_t i = 0; i < w->n; i++) {
        uint32_t at = sorted[i].point;

        if (i == 0 || memcmp(&sorted[i].key, &sorted[i - 1].key, sizeof sorted[i].key) != 0) {
            w->first[n++] = at;
        } else {
            w->same[w->first[n - 1]] += w->same[at];
        }
    }
    qsort(w->first, n, sizeof *w->first, compare_points);
    w->n = n;
    free(sorted);
}

/* Points whose settings come to the same values have the same programs, without a look. */
static void find_first(work *w)
{
    w->n = w->all.n;
    for (size_t i = 0; i < w->n; i++) {
        w->first[i] = (uint32_t)i;
        w->same[i] = 1;
    }
    find_values(w);
    leave_first(w);
    run_workers(w, find_programs);
    for (size_t i = 0; i < w->n; i++) {
        w->keys[w->first[i]] = w->found[i];
    }
    leave_first(w);
    (void)printf("# %s: %zu legal layouts have %zu programs\n", w->model->name, w->all.n,
                 w->n);
    (void)fflush(stdout);
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

static void open_work(work *w, const layouts_model *model)
{
    size_t n;

    *w = (work){ .model = model, .all = legal_points(model->config, model->moe, true) };
    n = w->all.n;
    w->keys = smp_heap_alloc(n, sizeof *w->keys);
    w->first = smp_heap_alloc(n, sizeof *w->first);
    w->same = smp_heap_alloc(n, sizeof *w->same);
    w->found = shared(n, sizeof *w->found);
    w->busy = shared(WORKERS_MAX, sizeof *w->busy);
    w->next = shared(4, sizeof *w->next);
    w->ran = w->next + 1;
    w->stood_for = w->next + 2;
    w->failed = w->next + 3;
}

/* True: every layout has been run, or one with the same programs, and none failed. */
static bool check_model(const layouts_model *model)
{
    const char *seconds = getenv("SMP_CHECK_SECONDS");
    work w;

    open_work(&w, model);
    find_first(&w);
    w.end = time(NULL) + (seconds ? (time_t)atol(seconds) : (time_t)1 << 30);
    run_workers(&w, train);
    print_state(&w);
    free(w.all.at);
    free(w.keys);
    free(w.first);
    free(w.same);
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
            (void)fflush(stdout);
            good = good && all;
        }
    }
    (void)printf("1..%d\n", number);
    return good ? 0 : 1;
}
