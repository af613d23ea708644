/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the lowering share: one context per program, made from a resolved job
 * for one rank, filled in by the files lower_*.c and read by the emitters.
 *
 * A variant is a kind of block under one checkpointing mode; its segments are stored once.
 * Variants whose layers interleave form a stack: they share the buffers that have one entry
 * a layer, sized for the largest of them.
 */
#ifndef SMP_STEP_LOWER_H
#define SMP_STEP_LOWER_H

#include "base/numeric.h"
#include "step/build.h"

enum { SMP_NO_BUFFER = UINT16_MAX, SMP_NO_SEGMENT = UINT16_MAX, SMP_MAX_NODES = 96 };

/* Where gradients of parameters go while a micro-batch's backward runs. */
typedef enum smp_grad_home {
    SMP_HOME_RING,  /* a ring of two, reduced after each backward */
    SMP_HOME_LAYER, /* one for each unit over the step, reduced after the last micro-batch */
    SMP_HOME_WHOLE  /* the gradients that the update reads, not sharded or reduced in place */
} smp_grad_home;

/* What parameters that are split and reduced over the same ranks have in common: those of
 * experts, and all others. */
typedef struct smp_share {
    const char *prefix;     /* of the names of its rings */
    uint32_t shard, shard_rank; /* that parameters are split by: 1 with sharding none */
    uint32_t shard_group, replicas; /* that gradients are reduced over */
    uint32_t weight;        /* see smp_unit */
    uint8_t unshard_comm, reduce_comm, replicate_comm;
    bool gathers;           /* parameters are gathered or cast before use */
    bool keeps_gathered;    /* from forward to backward: no ring */
    smp_grad_home home;
    /* Reduced gradients: true: segment reduce[0] writes and [1] adds to the shard's gradient;
     * false: reduced where they are, and [1] is the reduction of the last micro-batch, which
     * sums over the tensor group as well. */
    bool accumulates;
    int n_write;            /* 2 where later micro-batches add to gradients */
    uint16_t ring, ring_grads, ring_reduced; /* of gathered parameters, ... */
} smp_share;

/* The parameters of a unit and where they lie. */
typedef struct smp_home {
    const smp_share *share;
    uint16_t unit;          /* index in program->units */
    smp_unit layout;
    uint16_t weights;       /* whole, in compute precision: forward and backward read it */
    uint16_t master;        /* shard that the update writes; may be `weights` itself */
    uint16_t grads;         /* whole gradients in reduce_dtype */
    uint16_t shard_grads;   /* what the update reads; may be `grads` itself */
    uint16_t reduced;       /* staging of the reduced gradient, or SMP_NO_BUFFER */
    uint16_t moment1, moment2;
    uint64_t master_first, grad_first; /* the rank's part inside master and shard_grads */
    smp_dtype grad_dtype;   /* of shard_grads */
} smp_home;

typedef struct smp_segments {
    uint16_t forward, backward[2];      /* [1]: adds to gradients */
    uint16_t gather[2];                 /* for forward, for backward */
    uint16_t reduce[2];                 /* see smp_lowering.accumulates */
    uint16_t squares, update;
    uint16_t publish; /* gathers what was updated, where that waits for all updates */
} smp_segments;

typedef struct smp_stack {
    uint32_t first, last;   /* layers */
    const char *suffix;     /* of buffer names: "", ".1", ... */
} smp_stack;

/* Layers of a stack: those of some of its variants (layers.c). */
typedef struct smp_layer_set {
    uint32_t stack;
    uint64_t variants;      /* smp_variant_bit of each */
    uint32_t first, layers, entries;
    const uint16_t *entry_of_layer;
} smp_layer_set;

typedef struct smp_variant {
    const smp_block *block;
    smp_checkpointing mode; /* NONE, SELECTIVE_ATTENTION, SELECTIVE_OP or FULL */
    uint16_t input, output; /* the buffers of its input and of the next layer's input */
    bool offloaded;
    uint32_t first, last;   /* hull of its layers */
    uint32_t stack;
    smp_home home, experts; /* as those of the stack */
    smp_segments segments, expert_segments; /* of experts: gather, reduce, squares, update */
} smp_variant;

/* A buffer found by its name; `stack` says whose, or that it is scratch. */
typedef struct smp_named {
    const char *name;
    uint32_t stack;
    uint16_t buffer;
    uint64_t variants;      /* that use it */
} smp_named;

/* Sizes of the experts of a layer on one rank; rows are tokens at one of their experts. */
typedef struct smp_expert_sizes {
    uint64_t tokens;          /* that the rank routes */
    uint64_t experts, ffn, shared_ffn; /* of the rank */
    uint64_t capacity;        /* rows an expert takes of one rank's tokens; 0: all */
    uint64_t sent;            /* rows of the rank's tokens */
    uint64_t bound, expected; /* rows at the rank's experts: room, and for times */
} smp_expert_sizes;

typedef struct smp_lowering {
    const smp_job *job;
    const smp_model *model;
    const smp_settings *set;
    const smp_mesh *mesh;
    smp_errors *errors;
    smp_build build;
    uint32_t rank;
    /* degrees and this rank's positions */
    uint32_t tensor, tensor_rank;
    uint32_t expert;        /* ranks that split the experts */
    smp_share dense, experts; /* alike where one rank has all experts */
    bool sequence;          /* sequence parallel, and tensor > 1 */
    uint8_t tensor_comm, kv_comm, world_comm;
    uint8_t expert_comm, shard_sum_comm, replica_sum_comm;
    smp_dtype compute, master, reduce;
    smp_dtype residual;     /* of the inputs of layers and their gradient */
    uint64_t batch, seq, tokens; /* of a micro-batch on this data rank */
    uint64_t rows;          /* tokens / tensor under sequence parallelism */
    uint64_t hidden, local_vocab;
    uint32_t vocab_parts;   /* tensor ranks that split the vocabulary: all, or 1 */
    bool casts;             /* master is not in compute precision */
    bool once;              /* gradients are reduced once a step */
    int n_write;            /* 2 where later micro-batches add to gradients of some share */
    uint32_t slots;         /* of the ring of gathered parameters */
    bool orders_forward, orders_backward; /* gathers wait for the unit before by a token */
    bool orders_reduce;     /* ... and for its reduction */
    const smp_runtime *runtime; /* of the stack */
    smp_kernel_form kernels;
    smp_loss_kernel loss;
    uint32_t checkpointed;  /* layers 0 .. checkpointed - 1 */
    uint32_t offloaded;     /* layers 0 .. offloaded - 1 have their inputs in the ring */
    uint32_t stored;        /* layers 0 .. stored - 1 are stored and loaded */
    uint32_t n_chunk;       /* of the loss */
    smp_variant *variants; uint32_t n_variant;
    smp_stack *stacks; uint32_t n_stack;
    uint8_t *variant_of_layer;
    smp_home root;
    smp_segments root_segments;
    /* segments */
    uint16_t begin, inputs_segment, embed, *heads[2], embed_grad[2], norm, store, load;
    /* buffers */
    uint16_t x_ring, x, host, d, scalars, embed_mask;
    uint16_t inputs, next_inputs; /* ids, then targets */
    uint16_t embed_narrow, embed_raw; /* what the embedding's projection and norm read */
    uint16_t prefetch_token, load_token, units_token;
    uint16_t comm_token;    /* of collectives of the shard group that share a communicator */
    uint16_t reduce_token;  /* backward has ended */
    uint16_t reduced_token; /* all gradients are reduced */
    uint16_t update_token;  /* all parameters are updated */
    smp_named *named; uint32_t n_named, cap_named;
    smp_layer_set *spans; uint32_t n_span, cap_span;
} smp_lowering;

/* What becomes of a job, in this order: lower_decide.c, lower_comms.c, lower_buffers.c,
 * lower_variants.c, segments (lower.c), lower_order.c. */
void smp_lower_decide(smp_lowering *low);
void smp_lower_comms(smp_lowering *low, const smp_class *class_or_null);
void smp_lower_buffers(smp_lowering *low);
SMP_CHECK smp_status smp_lower_variants(smp_lowering *low);
void smp_lower_order(smp_lowering *low);

/* A buffer that only orders tasks. */
uint16_t smp_lower_token(smp_lowering *low, const char *name);
/* Scratch of a segment: one buffer for each name, as large as its largest use. */
uint16_t smp_lower_scratch(smp_lowering *low, const char *name, smp_buffer_kind kind,
                           uint64_t bytes);
/* A tensor that forward leaves for backward: one entry for each layer that does. */
uint16_t smp_lower_kept(smp_lowering *low, const smp_variant *variant, const char *name,
                        uint64_t bytes);
/* layers.c: gives a buffer entries for the layers of some variants of a stack. */
uint64_t smp_variant_bit(const smp_lowering *low, const smp_variant *variant);
void smp_set_layers(smp_lowering *low, smp_buffer *buffer, uint32_t stack, uint64_t variants);
smp_ref smp_whole(uint16_t buffer, uint64_t bytes);
smp_access smp_token(uint16_t buffer);
/* A parameter in the whole unit, and its gradient; `n` roles that follow each other make one
 * operand. */
smp_ref smp_weight(const smp_lowering *low, const smp_home *home, smp_role role, uint32_t n);
smp_ref smp_weight_grad(const smp_lowering *low, const smp_home *home, smp_role role,
                        uint32_t n);
bool smp_has(const smp_home *home, smp_role role);

/* Dropout rates travel as fractions of 2^32: exact, and equal on every machine. */
static inline uint64_t smp_rate_bits(double rate)
{
    return (uint64_t)(rate * 4294967296.0 + 0.5);
}

/* Ids and targets of a micro-batch whose rows have `seq` tokens, at least the program's. */
static inline uint64_t smp_inputs_elems(const smp_lowering *low, uint64_t seq)
{
    return smp_mul(2, smp_mul(low->batch, seq > low->seq ? seq : low->seq));
}

/* Of tasks that touch the residual. */
static inline uint8_t smp_residual_flag(const smp_lowering *low)
{
    return low->residual != low->compute ? SMP_FLAG_FP32_RESIDUAL : 0;
}

/* Flat layout of a unit on a tensor and expert rank, split over shards as `share` says.
 * Experts are a unit of their own where `expert`, their degree, is above 1. */
void smp_unit_layout(const smp_job *job, const smp_block *block, bool of_experts,
                     const smp_share *share, smp_unit *unit_p);
/* Floating point work of the model for one step, all ranks, without recomputation. */
double smp_model_flops(const smp_job *job);

/* walk.c: forward and backward segments of a variant. */
void smp_lower_block(smp_lowering *low, smp_variant *variant);
/* lower_ends.c: embedding, loss chunks, their backward. */
void smp_lower_ends(smp_lowering *low);
/* lower_units.c: gather, reduce, squares, update, norm; buffers of a unit. */
void smp_lower_rings(smp_lowering *low, smp_share *share, uint64_t shard_elems);
/* Of the layers of some variants of a stack, `name` ending the name of their stack; or of the
 * root unit, `name` NULL. */
void smp_lower_home(smp_lowering *low, smp_home *home, const char *name, uint32_t stack,
                    uint64_t variants);
void smp_lower_unit(smp_lowering *low, const smp_home *home, smp_segments *segments);
void smp_lower_norm(smp_lowering *low);
/* Buffers of the stack that no task accesses; after all segments. */
void smp_lower_placeholders(smp_lowering *low);
/* The program of one rank, before memory plan and waits. */
SMP_CHECK smp_status smp_lower_rank(const smp_job *job, const smp_mesh *mesh, uint32_t rank,
                                    const smp_class *class_or_null, smp_arena *arena,
                                    smp_errors *errors, smp_program **program_p);

#endif
