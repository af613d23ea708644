/* SPDX-License-Identifier: Apache-2.0 */
/*
 * smp-exec: trains by a plan.  Arguments and presentation only; what runs is src/exec.
 */
#include "config.h"

#include "compare/compare.h"
#include "tools/paths.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef struct options {
    cli_job job;
    const char *data, *metrics, *tensorboard, *trace, *schedule, *pad, *attention, *validation;
    const char *init_rules;
    const char *eot, *loader_threads, *scale_rule, *loss_scale, *device_memory;
    uint64_t scale_window, delayed_shift; /* 0: not given, as other numbers from 1 */
    uint64_t steps, warmup, validate_every, validation_batches;
    uint32_t threads;
    double min_lr; /* or NO_RATE */
    double lr, weight_decay, beta1, beta2, eps, momentum, clip, timeout;
    double init_scale, min_scale;
    bool async, shuffle, no_shuffle, no_drop_last, compare, dry_run, verbose;
} options;

enum { NO_RATE = -1 }; /* not given */
/* Loss scales are kept in fp32. */
#define LEAST_SCALE 1e-30
#define MOST_SCALE 1e30

static const cli_option table[] = {
    CLI_JOB_OPTIONS(options, job),
    CLI_SET_OPTION("set", options, job, "one setting (see smp(5)); may be repeated"),
    CLI_HEADING("Data"),
    CLI_TEXT("data", 'd', "FILE", options, data,
             "tokens (.bin as llm.c and nanoGPT write them; Megatron's .bin and .idx) or text, "
             "a byte a token"),
    CLI_TEXT("eval", 'e', "FILE", options, validation,
             "data for a validation loss, after the last step"),
    CLI_U64("eval-every", 0, "N", options, validate_every, "and after every N steps"),
    CLI_U64("eval-batches", 0, "N", options, validation_batches,
            "global batches of it, from its start; default: 16"),
    CLI_TEXT("eot", 0, "ID", options, eot,
             "the token that ends documents in files without an index"),
    CLI_TEXT("pack-attention", 0, "WHAT", options, attention,
             "document (default): tokens of one document see each other only, and positions "
             "start anew; none: all that is in the row"),
    CLI_TEXT("pad", 0, "HOW", options, pad,
             "a document a row instead of packed ones: max_length, longest or bucket:N"),
    CLI_FLAG("shuffle", 0, options, shuffle, "sequences in another order each epoch (default)"),
    CLI_FLAG("no-shuffle", 0, options, no_shuffle, "sequences in the order of the file"),
    CLI_FLAG("no-drop-last", 0, options, no_drop_last,
             "fill the last round of an epoch from its start; default: drop it"),
    CLI_TEXT("loader-threads", 0, "N", options, loader_threads,
             "of each rank, that read ahead; 0: none; default: 1"),
    CLI_HEADING("Training"),
    CLI_U64("steps", 0, "N", options, steps, "optimizer steps; default: 10"),
    CLI_TEXT("init-rules", 0, "FILE", options, init_rules,
             "lines 'PATTERN normal MEAN DEVIATION' (or uniform, constant, zeros, ones): "
             "initial values by names"),
    CLI_DOUBLE_IN("lr", 0, "X", options, lr, 0, 1e6, "peak learning rate; default: 6e-4"),
    CLI_DOUBLE_IN("min-lr", 0, "X", options, min_lr, 0, 1e6,
                  "where linear and cosine end; default: a tenth of --lr"),
    CLI_U64_IN("warmup", 0, "N", options, warmup, 0, UINT32_MAX,
               "steps from 0 to the peak; default: 0"),
    CLI_TEXT("schedule", 0, "WHAT", options, schedule,
             "constant (default), linear or cosine, over --steps"),
    CLI_DOUBLE_IN("weight-decay", 0, "X", options, weight_decay, 0, 1e6,
                  "of matrices; default: 0.1"),
    CLI_DOUBLE_BELOW("beta1", 0, "X", options, beta1, 1, "of AdamW and Adam; default: 0.9"),
    CLI_DOUBLE_BELOW("beta2", 0, "X", options, beta2, 1, "of AdamW and Adam; default: 0.95"),
    CLI_DOUBLE_IN("eps", 0, "X", options, eps, 1e-30, 1e6, "of AdamW and Adam; default: 1e-8"),
    CLI_DOUBLE_BELOW("momentum", 0, "X", options, momentum, 1, "of SGD; default: 0.9"),
    CLI_DOUBLE_IN("clip", 0, "X", options, clip, 0, 1e30,
                  "largest gradient norm, 0: any; default: 1"),
    CLI_TEXT("loss-scale", 0, "X", options, loss_scale,
             "a fixed number, or dynamic (default): with fp16 as the rule says, else 1"),
    CLI_TEXT("loss-scale-rule", 0, "WHAT", options, scale_rule,
             "of a dynamic one: torch (GradScaler's; default) or smp (SMP v1's)"),
    CLI_DOUBLE_IN("init-scale", 0, "X", options, init_scale, LEAST_SCALE, MOST_SCALE,
                  "where a dynamic one starts; default: 65536, with smp 2^32"),
    CLI_U64_IN("scale-window", 0, "N", options, scale_window, 1, 1 << 23,
               "steps without overflow after which it doubles; default: 2000, with smp 1000"),
    CLI_DOUBLE_IN("min-scale", 0, "X", options, min_scale, LEAST_SCALE, MOST_SCALE,
                  "of smp: its least; default: 1"),
    CLI_U64_IN("delayed-shift", 0, "N", options, delayed_shift, 1, 1 << 23,
               "of smp: overflows until it halves; default: 1"),
    CLI_HEADING("Execution"),
    CLI_TEXT("device-memory", 0, "BYTES", options, device_memory,
             "refuse a plan whose arena is larger; default: no limit"),
    CLI_FLAG("async", 0, options, async, "a thread for each stream, ordered by the waits"),
    CLI_U32_IN("threads", 0, "N", options, threads, 1, 1024,
               "that share the operations of a rank; default: cores over ranks"),
    CLI_DOUBLE_IN("timeout", 0, "S", options, timeout, 1e-3, 1e9,
                  "seconds that a collective waits for a rank; default: 600"),
    CLI_FLAG("dry-run", 0, options, dry_run, "one step, then what it took"),
    CLI_HEADING("Output"),
    CLI_FLAG("verbose", 'v', options, verbose,
             "say where each rank is, and what each tensor starts from"),
    CLI_TEXT("metrics", 0, "FILE", options, metrics,
             "a JSON line for each step; -: standard output, and what is printed goes to "
             "standard error"),
    CLI_TEXT("tensorboard", 0, "DIR", options, tensorboard,
             "event files for TensorBoard: the numbers of --metrics (where built in)"),
    CLI_TEXT("trace", 't', "FILE", options, trace,
             "measured times of the last step, as smp-sim --trace writes predicted ones; -: as "
             "with --metrics"),
    CLI_FLAG("compare", 0, options, compare, "print predicted against measured, by task"),
    CLI_COMMON_OPTIONS
};

static const char *const usage[] = {
    "PLAN.json --data FILE [OPTION]...",
    "--model M --cluster cpu --data FILE [OPTION]...",
    NULL
};

static const char *const examples[] = {
    "smp-exec plan.json --data README.md --steps 100 --metrics run.jsonl",
    "smp-exec plan.json --data train.bin --eval val.bin --eval-every 50 --steps 500",
    "smp-exec plan.json --data tokens.bin --async --trace trace.json --compare",
    NULL
};

static const cli_program program = {
    .name = "smp-exec",
    .usage = usage,
    .about = "Trains the model of a plan on this host: each rank of the plan is a thread, and\n"
             "what runs is the step program that smp-sim simulates.",
    .options = table,
    .n_option = sizeof table / sizeof table[0],
    .notes = "Exit status: 0 trained (or ended after a step by an interrupt; a second one\n"
             "kills), 1 the system failed, 2 an input or the usage is wrong, 3 the plan\n"
             "needs more memory than --device-memory or this machine has.",
    .examples = examples,
    .max_operands = 1
};

/* Where lines for people go: standard output, unless a file was asked for there. */
static FILE *report(const options *o)
{
    const bool taken = (o->metrics && strcmp(o->metrics, "-") == 0)
                       || (o->trace && strcmp(o->trace, "-") == 0);

    return taken ? stderr : stdout;
}

static smp_status read_schedule(const char *text, smp_errors *errors, smp_schedule *schedule_p)
{
    static const char *const names[] = { "constant", "linear", "cosine" };
    const smp_place place = { .file = "--schedule" };

    for (int i = 0; i < 3; i++) {
        if (!text || strcmp(text, names[i]) == 0) {
            *schedule_p = (smp_schedule)i;
            return SMP_OK;
        }
    }
    return smp_fail(errors, SMP_INPUT, &place, "%s: must be constant, linear or cosine", text);
}

/* The rule's defaults, and what was given instead. */
static smp_status read_scaler(const options *o, smp_errors *errors, smp_scaler *scaler_p)
{
    const smp_place place = { .file = "--loss-scale-rule" };
    bool smp = o->scale_rule && strcmp(o->scale_rule, "smp") == 0;
    smp_scaler scaler = smp_scaler_of(smp ? SMP_SCALER_SMP : SMP_SCALER_TORCH);

    if (o->scale_rule && !smp && strcmp(o->scale_rule, "torch") != 0) {
        return smp_fail(errors, SMP_INPUT, &place, "%s: must be torch or smp", o->scale_rule);
    }
    if (!smp && (o->min_scale > 0 || o->delayed_shift > 0)) {
        return smp_fail(errors, SMP_INPUT, NULL, "--min-scale and --delayed-shift are of "
                        "--loss-scale-rule smp");
    }
    scaler.first = o->init_scale > 0 ? o->init_scale : scaler.first;
    scaler.least = o->min_scale > 0 ? o->min_scale : scaler.least;
    scaler.window = o->scale_window > 0 ? o->scale_window : scaler.window;
    scaler.shift = o->delayed_shift > 0 ? o->delayed_shift : scaler.shift;
    *scaler_p = scaler;
    return SMP_OK;
}

/* What a dynamic loss scale is given although there is none. */
static smp_status check_scaler(const options *o, const smp_job *job, smp_errors *errors)
{
    const struct { bool given; const char *name; } ofs[] = {
        { o->scale_rule != NULL, "--loss-scale-rule" }, { o->init_scale > 0, "--init-scale" },
        { o->scale_window > 0, "--scale-window" }, { o->min_scale > 0, "--min-scale" },
        { o->delayed_shift > 0, "--delayed-shift" },
    };
    const bool fixed = o->loss_scale && strcmp(o->loss_scale, "dynamic") != 0;

    for (size_t i = 0; i < sizeof ofs / sizeof ofs[0]; i++) {
        if (ofs[i].given && (fixed || job->settings.precision != SMP_PRECISION_FP16)) {
            return smp_fail(errors, SMP_INPUT, NULL, "%s is of a dynamic loss scale, %s",
                            ofs[i].name,
                            fixed ? "and --loss-scale gives a fixed one"
                                  : "which only precision=fp16 has");
        }
    }
    return SMP_OK;
}

static smp_status check_schedule(const options *o, const smp_hyper *h, smp_errors *errors)
{
    const smp_place place = { .file = "--min-lr" };

    if (h->schedule == SMP_SCHEDULE_CONSTANT && o->min_lr >= 0) {
        return smp_fail(errors, SMP_INPUT, NULL, "--min-lr is where --schedule linear or "
                        "cosine ends: not with constant");
    }
    if (h->schedule != SMP_SCHEDULE_CONSTANT && h->min_lr > h->lr) {
        return smp_fail(errors, SMP_INPUT, &place, "%g is above --lr, %g: must be at most "
                        "that", h->min_lr, h->lr);
    }
    return SMP_OK;
}

/* Options that go together, or do not. */
static smp_status check_together(const options *o, const smp_exec_options *e,
                                 const smp_job *job, smp_errors *errors)
{
    const bool varies = e->pad == SMP_PAD_LONGEST || e->pad == SMP_PAD_BUCKET;
    const struct { bool wrong; const char *message; } rules[] = {
        { !o->data, "--data FILE is missing" },
        { o->validate_every > 0 && !o->validation, "--eval-every is of --eval FILE, which is "
                                                   "missing" },
        { o->validation_batches > 0 && !o->validation, "--eval-batches is of --eval FILE, "
                                                       "which is missing" },
        { o->attention && o->pad, "--pack-attention is of packed rows: not with --pad, which "
                                  "has a document a row" },
        { o->compare && varies, "--compare predicts steps of full length: not with --pad "
                                "longest or bucket" },
        { o->shuffle && o->no_shuffle, "--shuffle and --no-shuffle: give one" },
    };
    const smp_place place = { .file = "--pad" };

    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        if (rules[i].wrong) {
            return smp_fail(errors, SMP_INPUT, NULL, "%s", rules[i].message);
        }
    }
    if (e->pad == SMP_PAD_BUCKET && e->bucket > job->batch.seq_len) {
        return smp_fail(errors, SMP_INPUT, &place, "bucket:%llu: must be at most %llu, the "
                        "sequence length (--seq-len)", (unsigned long long)e->bucket,
                        (unsigned long long)job->batch.seq_len);
    }
    return check_scaler(o, job, errors);
}

static smp_status read_loss_scale(const char *text, smp_errors *errors, double *scale_p)
{
    const smp_place place = { .file = "--loss-scale" };
    char *rest = NULL;

    *scale_p = 0; /* dynamic */
    if (!text || strcmp(text, "dynamic") == 0) {
        return SMP_OK;
    }
    *scale_p = strtod(text, &rest);
    if (rest == text || *rest != '\0' || !(*scale_p >= LEAST_SCALE && *scale_p <= MOST_SCALE)) {
        return smp_fail(errors, SMP_INPUT, &place,
                        "'%s': must be dynamic, or a number from %g to 1e30", text,
                        LEAST_SCALE);
    }
    return SMP_OK;
}

/* A long run does not end with a path that could never be written. */
static smp_status check_writable(const char *path, smp_errors *errors)
{
    const smp_place place = { .file = path };
    char directory[4096];
    const char *slash = strrchr(path, '/');
    bool there = access(path, F_OK) == 0;

    (void)snprintf(directory, sizeof directory, "%.*s",
                   slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    return strcmp(path, "-") == 0 || access(there ? path : directory, W_OK) == 0
               ? SMP_OK
               : smp_fail(errors, SMP_SYSTEM, &place, "cannot be written: %s",
                          strerror(errno));
}

static smp_status check_paths(const options *o, const char *plan_path, smp_errors *errors)
{
    const smp_place place = { .file = o->tensorboard };
    cli_paths paths = { 0 };
    struct stat facts;

    if (o->tensorboard && stat(o->tensorboard, &facts) == 0 && !S_ISDIR(facts.st_mode)) {
        return smp_fail(errors, SMP_INPUT, &place,
                        "is no directory: --tensorboard needs one, or a new name");
    }
    cli_paths_read_job(&paths, &o->job, plan_path);
    cli_paths_read_tokens(&paths, "--data", o->data);
    cli_paths_read_tokens(&paths, "--eval", o->validation);
    cli_paths_read(&paths, "--init-rules", o->init_rules);
    cli_paths_write(&paths, "--metrics", o->metrics, "");
    cli_paths_write(&paths, "--trace", o->trace, "");
    return cli_paths_check(&paths, errors);
}

/* The first signal ends the run after its step, the second one at once.  Ranks read it. */
static atomic_bool interrupted;

static void interrupt(int number)
{
    if (atomic_exchange(&interrupted, true)) {
        (void)signal(number, SIG_DFL);
        (void)raise(number);
    }
}

static void catch_signals(void)
{
    struct sigaction action = { .sa_handler = interrupt, .sa_flags = SA_RESTART };

    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
}

/* Started by mpirun, mpiexec or srun: Open MPI and PMI name the size or rank of the job. */
static bool under_mpi(void)
{
#ifdef SMP_HAVE_MPI
    return getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMI_SIZE") || getenv("PMIX_RANK");
#else
    return false;
#endif
}

static bool first_process(void)
{
#ifdef SMP_HAVE_MPI
    return !under_mpi() || smp_mpi_rank() == 0;
#else
    return true;
#endif
}

static smp_status begin(bool async, smp_errors *errors)
{
#ifdef SMP_HAVE_MPI
    if (under_mpi()) {
        return smp_mpi_begin(async, errors);
    }
#endif
    (void)async;
    (void)errors;
    return SMP_OK;
}

static int end(int exit_status)
{
#ifdef SMP_HAVE_MPI
    if (under_mpi()) {
        smp_mpi_end(exit_status);
    }
#endif
    return exit_status;
}

/* What all ranks find is said once: while the others wait, rank 0 ends the job. */
static void let_first_speak(smp_status status)
{
    const struct timespec pause = { 2, 0 };

    if (status != SMP_OK && !first_process()) {
        (void)signal(SIGTERM, SIG_DFL);
        (void)nanosleep(&pause, NULL);
    }
}

/* A whole number of 0 and more. */
static smp_status read_count(const char *option, const char *text, uint64_t high,
                             smp_errors *errors, uint64_t *value_p)
{
    return text ? cli_number(option, text, 0, high, errors, value_p) : SMP_OK;
}

static smp_status read_pad(const char *text, smp_errors *errors, smp_exec_options *e)
{
    const smp_place place = { .file = "--pad" };

    if (!text) {
        return SMP_OK;
    }
    if (strncmp(text, "bucket:", 7) == 0) {
        e->pad = SMP_PAD_BUCKET;
        return cli_number("--pad bucket", text + 7, 1, UINT32_MAX, errors, &e->bucket);
    }
    if (strcmp(text, "max_length") != 0 && strcmp(text, "longest") != 0) {
        return smp_fail(errors, SMP_INPUT, &place,
                        "%s: must be max_length, longest or bucket:N", text);
    }
    e->pad = text[0] == 'm' ? SMP_PAD_MAX_LENGTH : SMP_PAD_LONGEST;
    return SMP_OK;
}

static smp_status fill_data(const options *o, smp_errors *errors, smp_exec_options *e)
{
    const smp_place place = { .file = "--pack-attention" };
    uint64_t separator = 0, threads = e->loader_threads;
    smp_status status = read_pad(o->pad, errors, e), one;

    one = read_count("--eot", o->eot, INT32_MAX, errors, &separator);
    status = status == SMP_OK ? one : status;
    one = read_count("--loader-threads", o->loader_threads, 64, errors, &threads);
    status = status == SMP_OK ? one : status;
    if (o->attention && strcmp(o->attention, "document") != 0
        && strcmp(o->attention, "none") != 0) {
        status = smp_fail(errors, SMP_INPUT, &place, "%s: must be document or none",
                          o->attention);
    }
    e->data = o->data;
    e->validation = o->validation;
    e->validate_every = o->validate_every;
    if (o->validation_batches > 0) {
        e->validation_batches = o->validation_batches;
    }
    e->separator = o->eot ? (int64_t)separator : SMP_NO_SEPARATOR;
    e->documents = !o->attention || strcmp(o->attention, "document") == 0;
    e->shuffle = !o->no_shuffle;
    e->drop_last = !o->no_drop_last;
    e->loader_threads = (uint32_t)threads;
    return status;
}

static smp_status fill_hyper(const options *o, smp_errors *errors, smp_hyper *h)
{
    double loss_scale = 0;
    smp_status status = read_schedule(o->schedule, errors, &h->schedule), one;

    one = read_loss_scale(o->loss_scale, errors, &loss_scale);
    status = status == SMP_OK ? one : status;
    one = read_scaler(o, errors, &h->scaler);
    status = status == SMP_OK ? one : status;
    h->lr = o->lr;
    h->min_lr = o->min_lr >= 0 ? o->min_lr : h->lr / 10;
    h->warmup_steps = o->warmup;
    h->total_steps = o->steps;
    h->beta1 = o->beta1;
    h->beta2 = o->beta2;
    h->eps = o->eps;
    h->weight_decay = o->weight_decay;
    h->momentum = o->momentum;
    h->clip = o->clip;
    h->loss_scale = loss_scale;
    return status == SMP_OK ? check_schedule(o, h, errors) : status;
}

static smp_status fill(const options *o, const smp_job *job, smp_errors *errors,
                       smp_exec_options *e)
{
    smp_status status, one;

    smp_exec_options_init(e);
    status = fill_data(o, errors, e);
    one = fill_hyper(o, errors, &e->hyper);
    status = status == SMP_OK ? one : status;
    status = status == SMP_OK ? check_together(o, e, job, errors) : status;
    if (status == SMP_OK && o->device_memory) {
        status = cli_number("--device-memory", o->device_memory, 1, INT64_MAX, errors,
                            &e->device_memory_bytes);
    }
    if (status == SMP_OK && o->trace && first_process()) {
        status = check_writable(o->trace, errors);
    }
    e->steps = o->dry_run ? 1 : o->steps;
    e->init_rules = o->init_rules;
    e->stop = &interrupted;
    e->verbose = o->verbose;
    e->places = o->verbose ? report(o) : NULL;
    e->measure_peak = true;
    e->async = o->async;
    e->threads = o->threads;
    e->timeout_s = o->timeout;
    e->mpi = under_mpi();
    e->log = first_process() ? report(o) : NULL;
    e->metrics = o->metrics;
    e->tensorboard = o->tensorboard;
    e->trace = o->trace;
    e->measure = o->compare;
    return status;
}

static smp_status train(const options *o, const smp_job *job, smp_errors *errors)
{
    smp_exec_options e;
    smp_exec_result result = { 0 };
    smp_status status = fill(o, job, errors, &e);

    if (status == SMP_OK) {
        catch_signals();
        status = smp_exec_run(job, &e, errors, &result);
    }
    if (status == SMP_OK && result.stopped && first_process()) {
        (void)fprintf(report(o), "stopped by a signal after step %llu\n",
                      (unsigned long long)result.n_step);
    }
    if (status == SMP_OK && o->dry_run && first_process()) {
        (void)fprintf(report(o),
                      "ranks %u  device arena %llu bytes  host arena %llu bytes  step %.3f s\n",
                      job->world, (unsigned long long)result.arena_bytes,
                      (unsigned long long)result.host_arena_bytes, result.steps[0].seconds);
    }
    if (status == SMP_OK && o->compare && result.n_step > 0 && first_process()) {
        status = smp_compare(job, &result, report(o), errors);
    }
    smp_exec_result_free(&result);
    return status;
}

static smp_status run(const options *o, const char *plan_path, smp_errors *errors)
{
    cli_inputs inputs = { 0 };
    smp_status status = check_paths(o, plan_path, errors);

    if (status == SMP_OK) {
        status = cli_job_read(&o->job, plan_path, errors, &inputs);
    }
    if (status == SMP_OK) {
        smp_job_default_batch(&inputs.job);
        status = smp_job_resolve(&inputs.job, errors);
    }
    if (status == SMP_OK) {
        status = train(o, &inputs.job, errors);
    }
    cli_inputs_free(&inputs);
    return status;
}

int main(int argc, char **argv)
{
    cli_begin();
    smp_errors *errors = smp_errors_create();
    smp_hyper h;
    smp_hyper_init(&h);
    options o = { .steps = 10, .lr = h.lr, .min_lr = NO_RATE, .weight_decay = h.weight_decay,
                  .beta1 = h.beta1, .beta2 = h.beta2, .eps = h.eps, .momentum = h.momentum,
                  .clip = h.clip, .timeout = 600 };
    cli_list operands = { 0 };
    bool done = false;
    smp_status status = cli_parse(&program, argc, argv, &o, &operands, errors, &done);
    if (status == SMP_OK && !done) {
        status = begin(o.async, errors);
    }
    if (status == SMP_OK && !done) {
        status = run(&o, operands.count > 0 ? operands.values[0] : NULL, errors);
        let_first_speak(status);
    }
    cli_list_free(&o.job.set);
    cli_list_free(&operands);
    return end(cli_end("smp-exec", errors));
}
