/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An epoch over sequences of varying length, by policy of filling up: waste, programs, time.
 *
 * A step program has one shape, so all sequences of a step (global_batch of them, in order;
 * an incomplete last step is dropped) are filled up to one length.  Each length is lowered
 * and simulated once; policies share what they have in common.
 *
 * Compiling.  Before its first step, a length needs a program of its own.  Estimate: the host
 * issues each task once while the graph is captured, host_launch_s a task.
 */
#include "config.h"

#include "sim/lengths.h"
#include "sim/sim.h"

#include "base/numeric.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* What one length takes. */
typedef struct shape {
    bool known;
    double step_s, compile_s;
    uint64_t peak_bytes;
    bool fits;
    uint32_t policy; /* number + 1 of the last policy that counted it */
} shape;

typedef struct epoch {
    const smp_job *job;    /* not resolved; its seq_len is the longest there is */
    const smp_lengths_options *options;
    smp_arena *arena;
    smp_lengths lengths;
    shape *shapes;         /* by length over granule */
    uint64_t granule, global_batch, most;
    uint64_t simulated;    /* lengths */
    smp_epoch *epochs;
    size_t n_epoch;
} epoch;

enum { DRAWN_STEPS = 128, MOST_POLICIES = 64 };

/* What sequence and context parallelism divide a sequence by (rules in src/mesh). */
static uint64_t granule_of(const smp_job *job)
{
    const smp_settings *s = &job->settings;
    const uint64_t context = s->context_parallel_degree > 1 ? 2 : 1;
    return smp_mul(smp_mul(s->tensor_parallel_degree, s->context_parallel_degree), context);
}

/* -------------------------------------------------------------------- shapes */

static uint64_t most_tasks(const smp_step *step)
{
    uint64_t most = 0;
    for (uint32_t c = 0; c < step->n_program; c++) {
        const smp_program *program = step->programs[c];
        uint64_t n = 0;
        for (uint32_t i = 0; i < program->n_instance; i++) {
            n += program->segments[program->order[i].segment].n_task;
        }
        most = most > n ? most : n;
    }
    return most;
}

static smp_status simulate_shape(epoch *e, uint64_t length, smp_errors *errors, shape *to)
{
    smp_job job = *e->job;
    smp_step *step = NULL;
    smp_simulation *simulation = NULL;
    job.batch.seq_len = length;
    job.batch.global_batch = e->global_batch;
    smp_status status = smp_job_resolve(&job, errors);
    if (status == SMP_OK) {
        status = smp_step_lower(&job, errors, &step);
    }
    if (status == SMP_OK) {
        status = smp_simulate(&job, step, errors, &simulation);
    }
    if (status == SMP_OK) {
        const smp_report *report = smp_simulation_report(simulation);
        *to = (shape){.known = true, .step_s = report->step_time_s,
                      .peak_bytes = report->memory.peak_bytes, .fits = report->memory.fits};
        to->compile_s = e->options->compile_s >= 0
                            ? e->options->compile_s
                            : (double)most_tasks(step) * job.profile->host_launch_s.value;
        e->simulated++;
    }
    smp_simulation_destroy(simulation);
    smp_step_destroy(step);
    return status;
}

static smp_status run_policy(epoch *e, uint32_t number, smp_errors *errors)
{
    smp_epoch *row = &e->epochs[number];
    smp_status status = SMP_OK;
    row->fits = true;
    row->steps = e->lengths.n / e->global_batch;
    for (uint64_t step = 0; step < row->steps && status == SMP_OK; step++) {
        const uint32_t *list = &e->lengths.list[step * e->global_batch];
        uint64_t longest = 0;
        for (uint64_t i = 0; i < e->global_batch; i++) {
            longest = longest > list[i] ? longest : list[i];
            row->tokens += (double)list[i];
        }
        const uint64_t length = smp_pad_shape(&row->pad, longest, e->granule, e->most);
        shape *at = &e->shapes[length / e->granule];
        if (!at->known) {
            status = simulate_shape(e, length, errors, at);
        }
        if (status == SMP_OK && at->policy != number + 1) {
            at->policy = number + 1;
            row->shapes++;
            row->compile_s += at->compile_s;
            row->fits = row->fits && at->fits;
            if (length > row->longest_shape) {
                row->longest_shape = length;
                row->peak_bytes = at->peak_bytes;
            }
        }
        row->train_s += at->step_s;
        row->computed_tokens += (double)length * (double)e->global_batch;
    }
    return status;
}

/* --------------------------------------------------------------------- input */

static smp_status read_policies(epoch *e, smp_errors *errors)
{
    static const char *const usual[] = {"max_length", "longest", "bucket:512"};
    const smp_place where = {.file = "--pad"};
    const smp_lengths_options *o = e->options;
    const char *const *pads = o->n_pad > 0 ? o->pads : usual;
    e->n_epoch = o->n_pad > 0 ? o->n_pad : sizeof usual / sizeof usual[0];
    if (e->n_epoch > MOST_POLICIES) {
        return smp_fail(errors, SMP_INPUT, &where, "given %zu times: at most %d", e->n_epoch,
                        (int)MOST_POLICIES);
    }
    e->epochs = SMP_ARENA_ARRAY(e->arena, e->n_epoch, smp_epoch);
    for (size_t i = 0; i < e->n_epoch; i++) {
        const smp_status status = smp_pad_read(pads[i], errors, &e->epochs[i].pad);
        if (status != SMP_OK) {
            return status;
        }
    }
    return SMP_OK;
}

static smp_status prepare(epoch *e, smp_errors *errors)
{
    const smp_place where = {.file = "--lengths"};
    smp_job job = *e->job;
    smp_job_default_batch(&job);
    /* Tells what is wrong with the job once, before any length is tried. */
    smp_job resolved = job;
    smp_status status = smp_job_resolve(&resolved, errors);
    if (status == SMP_OK) {
        status = read_policies(e, errors);
    }
    if (status != SMP_OK) {
        return status;
    }
    e->most = job.batch.seq_len;
    e->global_batch = job.batch.global_batch;
    e->granule = granule_of(&job);
    if (e->most % e->granule != 0) { /* legal without sequence parallelism: one at a time */
        e->granule = 1;
    }
    const uint64_t n = e->options->sequences > 0 ? e->options->sequences
                       : smp_lengths_drawn(e->options->lengths)
                           ? smp_mul(e->global_batch, DRAWN_STEPS)
                           : 0;
    status = smp_lengths_read(e->options->lengths, n, e->options->seed, e->most, e->arena,
                              errors, &e->lengths);
    if (status == SMP_OK && e->lengths.n < e->global_batch) {
        status = smp_fail(errors, SMP_INPUT, &where,
                          "%" PRIu64 " sequences are less than one step of %" PRIu64,
                          e->lengths.n, e->global_batch);
    }
    e->shapes = SMP_ARENA_ARRAY(e->arena, e->most / e->granule + 1, shape);
    return status;
}

/* -------------------------------------------------------------------- output */

static double waste(const smp_epoch *row)
{
    return 1 - row->tokens / row->computed_tokens;
}

static void text_table(const epoch *e, smp_text *text)
{
    smp_text_add(text,
                 "%s: %" PRIu64 " sequences, %.1f tokens on average, at most %" PRIu64 "\n",
                 e->options->lengths, e->lengths.n, e->lengths.sum / (double)e->lengths.n,
                 e->most);
    if (e->lengths.cut > 0) {
        smp_text_add(text, "%" PRIu64 " were longer and are cut to %" PRIu64 "\n",
                     e->lengths.cut, e->most);
    }
    smp_text_add(text, "%" PRIu64 " steps of %" PRIu64 " sequences; %" PRIu64
                       " sequences at the end make no step\n\n",
                 e->epochs[0].steps, e->global_batch, e->lengths.n % e->global_batch);
    smp_text_add(text, "%-16s%9s%9s%11s%11s%11s%12s\n", "pad", "waste %", "programs",
                 "compile", "train", "total", "peak");
    bool unfit = false;
    for (size_t i = 0; i < e->n_epoch; i++) {
        const smp_epoch *row = &e->epochs[i];
        smp_text_add(text, "%-16s%9.2f%9" PRIu64 "%11s%11s%11s%11s%s\n", row->pad.text,
                     100 * waste(row), row->shapes, smp_show_seconds(row->compile_s),
                     smp_show_seconds(row->train_s),
                     smp_show_seconds(row->compile_s + row->train_s),
                     smp_show_bytes(row->peak_bytes), row->fits ? "" : "!");
        unfit = unfit || !row->fits;
    }
    smp_text_add(text, "%s", unfit ? "! does not fit\n" : "");
}

static void out_table(const epoch *e, smp_json_out *out)
{
    smp_out_object(out, NULL);
    smp_out_string(out, "lengths", e->options->lengths);
    smp_out_u64(out, "sequences", e->lengths.n);
    smp_out_double(out, "mean_tokens", e->lengths.sum / (double)e->lengths.n);
    smp_out_u64(out, "most_tokens", e->most);
    smp_out_u64(out, "cut_sequences", e->lengths.cut);
    smp_out_u64(out, "dropped_sequences", e->lengths.n % e->global_batch);
    smp_out_u64(out, "global_batch", e->global_batch);
    smp_out_array(out, "policies");
    for (size_t i = 0; i < e->n_epoch; i++) {
        const smp_epoch *row = &e->epochs[i];
        smp_out_object(out, NULL);
        smp_out_string(out, "pad", row->pad.text);
        smp_out_u64(out, "steps", row->steps);
        smp_out_u64(out, "programs", row->shapes);
        smp_out_double(out, "tokens", row->tokens);
        smp_out_double(out, "computed_tokens", row->computed_tokens);
        smp_out_double(out, "waste", waste(row));
        smp_out_double(out, "compile_s", row->compile_s);
        smp_out_double(out, "train_s", row->train_s);
        smp_out_double(out, "total_s", row->compile_s + row->train_s);
        smp_out_u64(out, "longest_shape", row->longest_shape);
        smp_out_u64(out, "peak_bytes", row->peak_bytes);
        smp_out_bool(out, "fits", row->fits);
        smp_out_end_object(out);
    }
    smp_out_end_array(out);
    smp_out_end_object(out);
}

void smp_lengths_options_init(smp_lengths_options *options)
{
    *options = (smp_lengths_options){.seed = 1, .compile_s = -1};
}

smp_status smp_lengths_print(const smp_job *job, const smp_lengths_options *options, bool json,
                             FILE *stream, smp_errors *errors)
{
    epoch e = {.job = job, .options = options, .arena = smp_arena_create()};
    smp_status status = prepare(&e, errors);
    for (uint32_t i = 0; i < e.n_epoch && status == SMP_OK; i++) {
        status = run_policy(&e, i, errors);
    }
    if (status == SMP_OK) {
        smp_json_out out = {0};
        smp_text text = {0};
        if (json) {
            out_table(&e, &out);
            text = out.text;
        } else {
            text_table(&e, &text);
        }
        fwrite(text.data, 1, text.length, stream);
        smp_text_free(&text);
        status = smp_stream_check(stream, "output", errors);
    }
    smp_arena_destroy(e.arena);
    return status;
}
