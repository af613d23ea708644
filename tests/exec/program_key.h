/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a job is to the executor, in 128 bits: jobs with equal keys are the same computation.
 *
 * A rank's runner, made as for training, knows: the rank (smp_rank), its step program, the
 * members of the communicators that it joins, and the few values of the job below, which
 * kernels read beside the program.  All of it for all ranks goes into the key.  What the
 * program carries for costs alone does not.  For one .c file each.
 */
#ifndef TESTS_EXEC_PROGRAM_KEY_H
#define TESTS_EXEC_PROGRAM_KEY_H

#include "tests/check.h"

#include "base/numeric.h"
#include "exec/run.h"

typedef struct program_key { uint64_t word[2]; } program_key;

static inline void key_bytes(program_key *key, const void *bytes, size_t n)
{
    key->word[0] = smp_hash(bytes, n, key->word[0]);
    key->word[1] = smp_hash(bytes, n, ~key->word[1]);
}

static inline void key_text(program_key *key, const char *text)
{
    key_bytes(key, text, strlen(text) + 1);
}

/* Numbers one after the other: structs have gaps. */
#define KEY_NUMBERS(key, ...)                                                               \
    key_bytes(key, (const uint64_t[]){ __VA_ARGS__ }, sizeof((const uint64_t[]){ __VA_ARGS__ }))

/* ---- the program ---- */

static inline void key_buffer(program_key *key, const smp_buffer *b)
{
    key_text(key, b->name);
    KEY_NUMBERS(key, b->space, b->index, b->first, b->entries, b->layers, b->slots, b->bytes,
                b->base, b->stride, b->slot_base);
    if (b->entry_of_layer) {
        key_bytes(key, b->entry_of_layer, b->layers * sizeof *b->entry_of_layer);
    }
}

static inline void key_tasks(program_key *key, const smp_program *p)
{
    KEY_NUMBERS(key, p->n_task, p->n_access, p->n_segment);
    for (uint32_t i = 0; i < p->n_task; i++) {
        const smp_task *t = &p->tasks[i];

        key_text(key, t->name);
        KEY_NUMBERS(key, t->op, t->stream, t->phase, t->dtype, t->dtype2, t->comm, t->flags,
                    t->access0, t->n_access);
        key_bytes(key, t->dims, sizeof t->dims);
    }
    for (uint32_t i = 0; i < p->n_access; i++) {
        const smp_access *a = &p->accesses[i];

        KEY_NUMBERS(key, a->buffer, (uint64_t)a->delta, a->reads, a->writes, a->offset_bytes,
                    a->bytes);
    }
    for (uint32_t i = 0; i < p->n_segment; i++) {
        key_text(key, p->segments[i].name);
        KEY_NUMBERS(key, p->segments[i].task0, p->segments[i].n_task);
    }
}

static inline void key_unit(program_key *key, const smp_model *model, const smp_unit *u)
{
    key_text(key, u->name);
    KEY_NUMBERS(key, u->block ? (uint64_t)(u->block - model->kinds) + 1 : 0, u->n_param,
                u->elems, u->tail, u->shard_elems, u->own_first, u->own_elems, u->experts,
                u->weight);
    for (uint32_t i = 0; i < u->n_param; i++) {
        const smp_unit_param *p = &u->params[i];

        KEY_NUMBERS(key, (uint64_t)p->role, p->param, p->offset, p->elems, p->copies);
    }
}

static inline void key_program(program_key *key, const smp_model *model, const smp_program *p)
{
    KEY_NUMBERS(key, p->n_comm, p->n_unit, p->n_buffer, p->n_instance, p->n_pattern, p->n_wait,
                p->n_slot_base, p->micro_batches, p->arena_bytes, p->host_arena_bytes);
    for (uint32_t i = 0; i < p->n_buffer; i++) {
        key_buffer(key, &p->buffers[i]);
    }
    key_tasks(key, p);
    for (uint32_t i = 0; i < p->n_unit; i++) {
        key_unit(key, model, &p->units[i]);
    }
    for (uint32_t i = 0; i < p->n_instance; i++) {
        const smp_instance *o = &p->order[i];

        KEY_NUMBERS(key, o->segment, o->layer, o->micro_batch, o->turn, o->pattern);
    }
    for (uint32_t i = 0; i < p->n_pattern; i++) {
        KEY_NUMBERS(key, p->patterns[i].wait0, p->patterns[i].n_wait);
    }
    for (uint32_t i = 0; i < p->n_wait; i++) {
        KEY_NUMBERS(key, p->waits[i].task, p->waits[i].source, p->waits[i].back);
    }
    key_bytes(key, p->slot_bases, p->n_slot_base * sizeof *p->slot_bases);
}

/* ---- what is beside it ---- */

static inline void key_rank(program_key *key, const smp_rank *r)
{
    const smp_job *job = r->job;

    KEY_NUMBERS(key, r->rank, r->tensor, r->tensor_rank, r->data_rank, r->data_ranks, r->expert,
                r->expert_rank, r->copies, r->sequence);
    KEY_NUMBERS(key, job->world, job->micro_batches, job->settings.micro_batch,
                job->batch.seq_len, (uint64_t)job->settings.precision,
                job->settings.random_seed, (uint64_t)job->settings.seed_rule);
    key_text(key, job->model->name);
}

/* A communicator that notes who is in its channels, and a device that does nothing. */
struct smp_world { program_key *key; };

static inline smp_status key_join(smp_world *world, const char *name, const uint32_t *members,
                                  uint32_t n, uint32_t rank, smp_errors *errors,
                                  smp_channel **channel_p)
{
    (void)errors;
    key_text(world->key, name);
    KEY_NUMBERS(world->key, n, rank);
    key_bytes(world->key, members, n * sizeof *members);
    *channel_p = NULL;
    return SMP_OK;
}

static inline smp_status key_open(const smp_rank *rank, const smp_device_options *options,
                                  smp_errors *errors, smp_device **device_p)
{
    (void)rank;
    (void)options;
    (void)errors;
    *device_p = NULL;
    return SMP_OK;
}

static inline void key_close(smp_device *device)
{
    (void)device;
}

static inline smp_status key_alloc(smp_device *device, smp_space space, uint64_t bytes,
                                   smp_errors *errors, void **address_p)
{
    (void)device;
    (void)space;
    (void)bytes;
    (void)errors;
    *address_p = NULL;
    return SMP_OK;
}

/* ---- the job ---- */

/* Of a resolved job. */
static inline program_key key_of(const smp_job *job)
{
    static const smp_device_ops nothing = { .name = "nothing", .open = key_open,
                                            .close = key_close, .alloc = key_alloc };
    static const smp_comm_ops noting = { .name = "noting", .join = key_join };
    program_key key = { { 0 } };
    smp_errors *errors = smp_errors_create();
    smp_world world = { &key };
    smp_mesh *mesh = NULL;

    check_ok(smp_mesh_create(job, errors, &mesh), errors);
    for (uint32_t rank = 0; rank < job->world; rank++) {
        smp_runner_options options = { .device = &nothing, .comm = &noting, .world = &world };
        smp_runner *runner = NULL;

        check_ok(smp_runner_create(job, mesh, rank, &options, errors, &runner), errors);
        key_rank(&key, &runner->rank);
        key_program(&key, job->model, runner->rank.program);
        smp_runner_destroy(runner);
    }
    smp_mesh_destroy(mesh);
    smp_errors_destroy(errors);
    return key;
}

#endif
