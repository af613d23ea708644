/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lowering: from a resolved job to the step program of one rank.
 *
 * lower_decide.c decides; buffers, communicators, variants of blocks and the host order come
 * from the files of their names; blocks, ends and units are emitted by walk.c, lower_ends.c
 * and lower_units.c.
 */
#include "step/lower.h"

#include "base/numeric.h"

#include <stdlib.h>

static void add_copy(smp_lowering *low, uint16_t *segment_p, smp_op op, smp_stream stream)
{
    bool store = op == SMP_OP_STORE;
    uint64_t elems = smp_mul(low->rows, low->hidden);
    uint64_t bytes = smp_mul(elems, smp_dtype_bytes(low->residual));
    smp_ref device = smp_whole(low->x_ring, bytes), host = smp_whole(low->host, bytes);
    smp_task task = { .name = store ? "store" : "load",
                      .op = (uint16_t)op,
                      .stream = (uint8_t)stream,
                      .phase = store ? SMP_PHASE_FORWARD : SMP_PHASE_BACKWARD,
                      .dtype = (uint8_t)low->residual,
                      .dtype2 = (uint8_t)low->residual,
                      .comm = SMP_NO_COMM,
                      .dims = { elems } };

    *segment_p = smp_build_segment(&low->build, task.name);
    smp_build_task(&low->build, &task,
                   (smp_access[]){ smp_reads(store ? device : host),
                                   smp_writes(store ? host : device) },
                   2);
    if (!store && low->load_token != SMP_NO_BUFFER) {
        smp_build_extend(&low->build, smp_token(low->load_token));
    }
}

/* A micro-batch takes the inputs that came during the one before, and those of the next one
 * begin to come.  Next may be the first of another step, whose rows may be longer. */
static void lower_inputs(smp_lowering *low)
{
    uint64_t n = smp_inputs_elems(low, low->seq);
    uint64_t longest = smp_inputs_elems(low, low->job->batch.longest);
    smp_ref came = smp_whole(low->next_inputs, smp_mul(n, 4));
    smp_ref next = smp_whole(low->next_inputs, smp_mul(longest, 4));
    smp_task take = { .name = "inputs", .op = SMP_OP_COPY, .stream = SMP_STREAM_COMPUTE,
                      .phase = SMP_PHASE_FORWARD, .dtype = SMP_I32, .dtype2 = SMP_I32,
                      .comm = SMP_NO_COMM, .dims = { n } };
    smp_task load = { .name = "inputs.load", .op = SMP_OP_INPUT, .stream = SMP_STREAM_LOAD,
                      .phase = SMP_PHASE_FORWARD, .dtype = SMP_I32, .dtype2 = SMP_I32,
                      .comm = SMP_NO_COMM, .dims = { longest } };

    low->inputs_segment = smp_build_segment(&low->build, "inputs");
    smp_build_task(&low->build, &take,
                   (smp_access[]){ smp_reads(came),
                                   smp_writes(smp_whole(low->inputs, smp_mul(n, 4))) },
                   2);
    smp_build_task(&low->build, &load, (smp_access[]){ smp_writes(next) }, 1);
}

static void add_other_segments(smp_lowering *low)
{
    smp_task zero = { .name = "zero", .op = SMP_OP_FILL, .stream = SMP_STREAM_COMPUTE,
                      .phase = SMP_PHASE_FORWARD, .dtype = SMP_F32, .dtype2 = SMP_F32,
                      .comm = SMP_NO_COMM, .dims = { 4 } };
    bool ahead = low->set->sm_activation_offloading;

    low->begin = smp_build_segment(&low->build, "begin");
    smp_build_task(&low->build, &zero,
                   (smp_access[]){ smp_writes((smp_ref){ low->scalars, 0, 0, 16 }) }, 1);
    lower_inputs(low);
    if (low->offloaded > 0) {
        add_copy(low, &low->store, SMP_OP_STORE,
                 ahead ? SMP_STREAM_OFFLOAD : SMP_STREAM_COMPUTE);
        add_copy(low, &low->load, SMP_OP_LOAD, ahead ? SMP_STREAM_LOAD : SMP_STREAM_COMPUTE);
    }
    smp_lower_norm(low);
}

static void add_segments(smp_lowering *low)
{
    add_other_segments(low);
    smp_lower_ends(low);
    for (uint32_t i = 0; i < low->n_variant; i++) {
        smp_lower_block(low, &low->variants[i]);
        smp_lower_unit(low, &low->variants[i].home, &low->variants[i].segments);
        if (low->variants[i].experts.layout.elems > 0) {
            smp_lower_unit(low, &low->variants[i].experts,
                           &low->variants[i].expert_segments);
        }
    }
    smp_lower_unit(low, &low->root, &low->root_segments);
}

smp_status smp_lower_rank(const smp_job *job, const smp_mesh *mesh, uint32_t rank,
                          const smp_class *klass, smp_arena *arena, smp_errors *errors,
                          smp_program **program_p)
{
    smp_lowering low = { .job = job, .model = job->model, .set = &job->settings,
                         .mesh = mesh, .errors = errors, .rank = rank };
    smp_status status;

    smp_build_init(&low.build, arena);
    low.build.program->representative = rank;
    low.build.program->count = klass ? klass->count : 1;
    low.build.program->micro_batches = job->micro_batches;
    smp_lower_decide(&low);
    smp_lower_comms(&low, klass);
    smp_lower_buffers(&low);
    status = smp_lower_variants(&low);
    if (status == SMP_OK) {
        add_segments(&low);
        smp_lower_placeholders(&low);
        smp_lower_order(&low);
    }
    smp_build_finish(&low.build);
    free(low.named);
    free(low.spans);
    if (status == SMP_OK) {
        *program_p = low.build.program;
    }
    return status;
}
