/* SPDX-License-Identifier: Apache-2.0 */
/*
 * smp.h: the public interface of libsmp, and the only header the programs use.
 *
 * Reading order, which is also the order of use:
 *   errors      what a call reports when an input is wrong
 *   inputs      model (Hugging Face config.json), cluster, profile
 *   settings    one vocabulary: SMP v2 keys and the rest, by name
 *   job         model + cluster + profile + batch + settings: one configuration
 *   mesh        ranks, coordinates, process groups
 *   step        the step program of a job, lowered and verified
 *   simulation  time and memory of a step
 *   plan        search over jobs, plan files
 *
 * Conventions
 *   Units are in names: _bytes (uint64_t), _s (double seconds), _ps (int64_t
 *   picoseconds of simulated time), _flops.  Functions that can fail return an
 *   smp_status, take the collector `errors` (never NULL) and write their output,
 *   always the last argument, only on success.  Objects made by *_read, *_create,
 *   *_lower or *_run are released by the matching *_destroy, which accepts NULL.
 *   Objects are immutable once made unless a function says otherwise, so they may
 *   be shared by threads; a collector may not.
 *   What a function returns by pointer (names, reports, jobs) belongs to the object that it
 *   was asked of and lives as long.  An object borrows what it was made from: a job its model,
 *   cluster and profile; a step its job; a simulation its job and step; what-ifs their
 *   simulation; a plan what its job points to.  These must outlive it.
 *   Running out of memory calls the handler of smp_on_out_of_memory().
 */
#ifndef SMP_H
#define SMP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SMP_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define SMP_CHECK __attribute__((warn_unused_result))
#else
#define SMP_PRINTF(fmt, args)
#define SMP_CHECK
#endif

/* ------------------------------------------------------------------ errors */

/* A status is also the exit status of a program that fails with it. */
typedef enum smp_status {
    SMP_OK = 0,
    SMP_SYSTEM = 1,    /* input/output, memory or device failed */
    SMP_INPUT = 2,     /* an input or the usage is wrong */
    SMP_INFEASIBLE = 3 /* no plan satisfies the constraints */
} smp_status;

/* Where in the user's input something is.  Unknown parts are NULL or 0. */
typedef struct smp_place {
    const char *file; /* path as the user gave it, or an option such as "--set" */
    uint32_t line;    /* from 1 */
    uint32_t column;  /* from 1, in bytes */
    const char *path; /* JSON path: "$.rope_scaling.factor" */
} smp_place;

/* Collects every message of a run, so that all broken rules are told at once. */
typedef struct smp_errors smp_errors;

smp_errors *smp_errors_create(void);
void smp_errors_destroy(smp_errors *errors);
/* Adds one message (no trailing newline) and returns `status`. `where` may be NULL. */
smp_status smp_fail(smp_errors *errors, smp_status status, const smp_place *where,
                    const char *format, ...) SMP_PRINTF(4, 5);
/* A message that fails nothing: the status of the collector does not change. */
void smp_warn(smp_errors *errors, const smp_place *where, const char *format, ...)
    SMP_PRINTF(3, 4);
size_t smp_errors_count(const smp_errors *errors);   /* failures, without warnings */
size_t smp_warnings_count(const smp_errors *errors);
/* SMP_OK when nothing failed, else the status of the first failure. */
smp_status smp_errors_status(const smp_errors *errors);
/* "file:line:column: $.path: message" of failure or warning i; owned by the collector. */
const char *smp_errors_text(const smp_errors *errors, size_t i);
const char *smp_warnings_text(const smp_errors *errors, size_t i);
/* Prints "program: text" lines for all failures and "program: warning: text". */
void smp_errors_print(const smp_errors *errors, const char *program, FILE *stream);
/* Forgets everything collected (for a caller that tries alternatives). */
void smp_errors_clear(smp_errors *errors);

/* Called when memory runs out; must not return.  The default prints one line and
 * exits with status 1. */
void smp_on_out_of_memory(void (*handler)(size_t size_bytes));

/* ---------------------------------------------------------------- progress */

/* One line on a terminal that says how far a long run is: nothing in the first two seconds
 * and nothing where `stream` is no terminal.  Its clock decides only when to print. */
typedef struct smp_progress smp_progress;
smp_progress *smp_progress_create(FILE *stream, const char *what); /* what: "searching" */
/* `progress` is an smp_progress: the function fits smp_plan_options.progress. */
void smp_progress_update(void *progress, uint64_t done, uint64_t total);
void smp_progress_destroy(smp_progress *progress); /* wipes the line */

/* ------------------------------------------------------------------ inputs */

typedef struct smp_model smp_model;
typedef struct smp_cluster smp_cluster;
typedef struct smp_profile smp_profile;

/* A name or path is: a file; a directory that holds config.json; or a name under
 * configs/models, configs/clusters, configs/profiles (without .json).  Data are
 * looked up in $SMP_CONFIGS, then the build tree, then the installed place.  SMP_INPUT when
 * there is none, or what it holds is wrong; SMP_SYSTEM when it cannot be read. */
SMP_CHECK smp_status smp_model_read(const char *name_or_path, smp_errors *errors,
                                    smp_model **model_p);
void smp_model_destroy(smp_model *model);
const char *smp_model_name(const smp_model *model);
const char *smp_model_family(const smp_model *model); /* "llama" */
/* Elements of all parameters, a tied one once; and of those that a token passes through: of
 * experts only the ones that it is sent to. */
uint64_t smp_model_parameters(const smp_model *model);
uint64_t smp_model_active_parameters(const smp_model *model);
/* The model for people (80 columns) or as JSON: family, counts, tied or not, layers,
 * and each parameter with its shape and how tensor parallelism of `tensor_degree`
 * splits it. */
SMP_CHECK smp_status smp_model_describe(const smp_model *model, uint32_t tensor_degree,
                                        bool json, FILE *stream, smp_errors *errors);

SMP_CHECK smp_status smp_cluster_read(const char *name_or_path, smp_errors *errors,
                                      smp_cluster **cluster_p);
void smp_cluster_destroy(smp_cluster *cluster);
const char *smp_cluster_name(const smp_cluster *cluster);
uint32_t smp_cluster_nodes(const smp_cluster *cluster);
uint32_t smp_cluster_gpus_per_node(const smp_cluster *cluster);
uint32_t smp_cluster_gpus(const smp_cluster *cluster); /* in use: the world size */
const char *smp_cluster_gpu(const smp_cluster *cluster); /* profile name: "h100-sxm" */
/* Overrides the count before the cluster is used: whole nodes, or a number of GPUs that
 * fills nodes in order (7 GPUs: one node; 24 of 8: three nodes).  SMP_INPUT: 0, or more than
 * the cluster can have. */
SMP_CHECK smp_status smp_cluster_set_nodes(smp_cluster *cluster, uint32_t nodes,
                                           smp_errors *errors);
SMP_CHECK smp_status smp_cluster_set_gpus(smp_cluster *cluster, uint32_t gpus,
                                          smp_errors *errors);

SMP_CHECK smp_status smp_profile_read(const char *name_or_path, smp_errors *errors,
                                      smp_profile **profile_p);
/* The shipped profile of the cluster's GPU. */
SMP_CHECK smp_status smp_profile_read_for(const smp_cluster *cluster, smp_errors *errors,
                                          smp_profile **profile_p);
void smp_profile_destroy(smp_profile *profile);
const char *smp_profile_name(const smp_profile *profile);

/* ------------------------------------------------------------- calibration */

/* Fits of measured rows (CSV, see smp-calibrate(1)), stored in a profile. */
typedef struct smp_calibrate_options {
    const char *const *files; /* CSV */
    size_t n_file;
    const char *profile;      /* what to start from: its peaks and efficiencies stay */
    const char *like;         /* take over this profile's fits, and read no rows; or NULL */
    const char *gpu;          /* rows whose column "gpu" says this; NULL: usual names */
    const char *output;       /* the profile with its fits; NULL: none is written */
    const char *plots;        /* directory for the residuals of each fit, made where it is
                                 missing; or NULL */
} smp_calibrate_options;
/* Prints to `report` how well each fit predicts rows that were held back from it. */
SMP_CHECK smp_status smp_calibrate(const smp_calibrate_options *options, FILE *report,
                                   smp_errors *errors);

/* ---------------------------------------------------------------- settings */

typedef enum smp_sharding {
    SMP_SHARDING_FULL,
    SMP_SHARDING_OPTIMIZER,
    SMP_SHARDING_NONE
} smp_sharding;
typedef enum smp_strategy { /* PyTorch's sharding_strategy, as given */
    SMP_STRATEGY_UNSET, SMP_STRATEGY_FULL_SHARD, SMP_STRATEGY_SHARD_GRAD_OP,
    SMP_STRATEGY_HYBRID_SHARD, SMP_STRATEGY_HYBRID_SHARD_ZERO2, SMP_STRATEGY_NO_SHARD
} smp_strategy;
typedef enum smp_checkpointing {
    SMP_CHECKPOINTING_NONE,
    SMP_CHECKPOINTING_SELECTIVE_ATTENTION, /* "selective" and "selective:attention" */
    SMP_CHECKPOINTING_SELECTIVE_OP,        /* "selective:op", torchtitan's policy */
    SMP_CHECKPOINTING_FULL,
    SMP_CHECKPOINTING_FIRST                /* "first:K": full for layers 0..K-1 */
} smp_checkpointing;
typedef enum smp_accumulation {
    SMP_ACCUMULATION_EVERY,
    SMP_ACCUMULATION_LAST
} smp_accumulation;
typedef enum smp_precision {
    SMP_PRECISION_BF16,
    SMP_PRECISION_FP16,
    SMP_PRECISION_FP32
} smp_precision;
typedef enum smp_attention_kind { SMP_ATTENTION_FLASH, SMP_ATTENTION_NAIVE } smp_attention_kind;
typedef enum smp_optimizer {
    SMP_OPTIMIZER_ADAMW, /* [Loshchilov and Hutter 2019] */
    SMP_OPTIMIZER_SGD,   /* with momentum */
    SMP_OPTIMIZER_ADAM   /* weight decay joins the gradient */
} smp_optimizer;
/* Whether tensor ranks split the vocabulary; after resolving on or off. */
typedef enum smp_distribute {
    SMP_DISTRIBUTE_AUTO, SMP_DISTRIBUTE_ON, SMP_DISTRIBUTE_OFF
} smp_distribute;
typedef enum smp_prefetch {
    SMP_PREFETCH_BACKWARD_PRE,
    SMP_PREFETCH_BACKWARD_POST,
    SMP_PREFETCH_NONE
} smp_prefetch;

typedef enum smp_seed_rule { SMP_SEED_GLOBAL, SMP_SEED_SMP } smp_seed_rule;

/* Where the ranks that split the experts stand. */
typedef enum smp_expert_layout {
    SMP_EXPERT_LAYOUT_ORTHOGONAL, /* an axis of its own, as in SMP v2 */
    SMP_EXPERT_LAYOUT_NESTED      /* a part of hybrid_shard_degree: experts are sharded over
                                     what is left of it, all else over the whole of it */
} smp_expert_layout;
typedef enum smp_balancing {
    SMP_BALANCING_SINKHORN, SMP_BALANCING_AUX_LOSS, SMP_BALANCING_BALANCED, SMP_BALANCING_NONE
} smp_balancing;
/* Which tokens an expert drops beyond its capacity: those of least weight, or the last. */
typedef enum smp_capacity_policy {
    SMP_CAPACITY_PROBS, SMP_CAPACITY_POSITION
} smp_capacity_policy;
typedef enum smp_imbalance_kind {
    SMP_IMBALANCE_CONSTANT, SMP_IMBALANCE_NORMAL, SMP_IMBALANCE_LOGNORMAL
} smp_imbalance_kind;
/* Rows of the busiest expert rank over their mean; a distribution is drawn from for each layer
 * and micro-batch. */
typedef struct smp_imbalance {
    smp_imbalance_kind kind;
    double mean, deviation;
} smp_imbalance;
typedef enum smp_dispatch_kernels {
    SMP_DISPATCH_NCCL, SMP_DISPATCH_DEEPEP
} smp_dispatch_kernels;
typedef enum smp_moe_statistics { SMP_MOE_LOCAL, SMP_MOE_DATA } smp_moe_statistics;
/* Which software runs the step (docs/stacks.md). */
typedef enum smp_stack_name {
    SMP_STACK_NATIVE, SMP_STACK_FSDP1, SMP_STACK_FSDP2, SMP_STACK_MEGATRON, SMP_STACK_DEEPSPEED
} smp_stack_name;
/* Generation of the fused attention kernel, for times. */
typedef enum smp_attention_kernel {
    SMP_KERNEL_STACK, /* that of the stack */
    SMP_KERNEL_BEST, SMP_KERNEL_FLASH2, SMP_KERNEL_TRITON
} smp_attention_kernel;
/* What the loss keeps beside the logits, of the same number of elements. */
typedef enum smp_loss_kernel {
    SMP_LOSS_STACK, /* that of the stack */
    SMP_LOSS_FUSED,    /* nothing: their gradient takes their place, in their type */
    SMP_LOSS_COMPILED, /* their gradient, in their type */
    SMP_LOSS_COPY,     /* a copy in fp32, whose place the gradient takes */
    SMP_LOSS_EAGER     /* the copy, the logarithm of its softmax and a gradient, in fp32 */
} smp_loss_kernel;

/* The axes of the mesh.  Context parallelism lies inside the shard axis; what is left of it
 * and the expert axis are in SMP_AXIS_SHARD and SMP_AXIS_EXPERT under both layouts. */
typedef enum smp_axis {
    SMP_AXIS_TENSOR, SMP_AXIS_CONTEXT, SMP_AXIS_SHARD, SMP_AXIS_EXPERT, SMP_AXIS_REPLICA,
    SMP_AXES
} smp_axis;

enum { SMP_SETTINGS = 56 }; /* number of keys */

/* Every setting; `smp_settings_table` documents each key.  As given until
 * smp_job_resolve has run; then every field holds the value that acts. */
typedef struct smp_settings {
    /* the nine keys of SMP v2 */
    uint32_t hybrid_shard_degree; /* 0: see smp_job_resolve */
    bool sm_activation_offloading;
    uint32_t activation_loading_horizon;
    bool fsdp_cache_flush_warnings;
    bool allow_empty_shards;
    uint32_t tensor_parallel_degree;
    uint32_t context_parallel_degree;
    uint32_t expert_parallel_degree;
    uint32_t random_seed;
    smp_seed_rule seed_rule;
    /* the rest of the vocabulary */
    uint32_t micro_batch; /* sequences per data rank and micro-batch */
    smp_strategy sharding_strategy;
    smp_sharding sharding;
    bool reshard_after_forward;
    smp_checkpointing checkpointing;
    uint32_t checkpointing_layers; /* K of first:K; after resolving, layers with
                                      checkpointing of any kind: none, K or all */
    bool offload;
    uint32_t offload_layers; /* 0: all that are checkpointed */
    smp_accumulation accumulation;
    bool sequence_parallel;
    smp_precision precision;
    smp_precision master;       /* fp32 or bf16 */
    smp_precision reduce_dtype; /* fp32, bf16 or fp16 */
    smp_attention_kind attention;
    double attention_dropout; /* negative: the model's */
    bool attention_in_fp32; /* naive attention with 16-bit precision */
    bool qk_layer_scaling;  /* naive attention */
    bool fp32_residual;     /* 16-bit precision */
    smp_distribute distribute_embedding;
    smp_optimizer optimizer;
    uint32_t loss_chunks;
    smp_prefetch prefetch;
    bool forward_prefetch;
    bool limit_all_gathers;
    bool delayed_init; /* false: every rank makes the whole model on its host first */
    smp_axis rank_order[SMP_AXES]; /* fastest axis first */
    /* mixture of experts; the first seven with random_seed are those of SMP's MoEConfig */
    smp_expert_layout expert_layout;
    bool smp_moe;
    smp_balancing moe_load_balancing;
    bool global_token_shuffle;
    bool moe_all_to_all_dispatcher;
    smp_dispatch_kernels moe_dispatch_kernels;
    double moe_aux_loss_coeff, moe_z_loss_coeff;
    double capacity_factor; /* 0: dropless */
    smp_capacity_policy capacity_policy;
    bool capacity_pad;
    double moe_rows_factor; /* bound of an expert rank's rows over their mean */
    smp_imbalance imbalance;
    smp_moe_statistics moe_statistics;
    /* the software that runs the step */
    smp_stack_name stack;
    bool compile;             /* stacks on PyTorch: element-wise kernels are fused */
    smp_attention_kernel attention_kernel;
    smp_loss_kernel loss_kernel;
    bool overlap_reduce;      /* gradients are reduced while backward runs */
    bool overlap_gather;      /* updated parameters are gathered while others are updated */
    double efficiency; /* 0: that of the stack; after resolving the one that acts */
    uint64_t given; /* bit i: key i of smp_settings_table was given (a pin) */
    uint64_t yields; /* bit i: given by a plan file; gives way to what is set later */
    smp_place origin[SMP_SETTINGS]; /* where key i was given, for messages; borrowed */
} smp_settings;

typedef struct smp_setting_info {
    const char *key;
    const char *type;    /* "integer", "boolean", "one of" ... for people */
    const char *range;   /* legal values, for people */
    const char *initial; /* default, as text */
    const char *meaning; /* one sentence */
    bool smp_v2;         /* one of the nine keys */
    bool searched;       /* smp-plan searches it when it is not given */
} smp_setting_info;

/* The table behind --set, --pin, SMP files, plan files, JSON output and smp(5). */
const smp_setting_info *smp_settings_table(size_t *count_p);
int smp_settings_find(const char *key); /* index in the table, or -1 */

void smp_settings_init(smp_settings *settings); /* all defaults, nothing given */
/* Sets one key from text and marks it given.  `where` is for messages, now and when the job
 * is resolved: its strings must outlive the settings. */
SMP_CHECK smp_status smp_settings_set(smp_settings *settings, const char *key,
                                      const char *value, const smp_place *where,
                                      smp_errors *errors);
/* "key=value" as on the command line; `option` names the place in messages ("--set") and must
 * outlive the settings. */
SMP_CHECK smp_status smp_settings_assign(smp_settings *settings, const char *assignment,
                                         const char *option, smp_errors *errors);
bool smp_settings_given(const smp_settings *settings, const char *key);
/* The value of a key as canonical text into buffer; false if there is no such key. */
bool smp_settings_get(const smp_settings *settings, const char *key, char *buffer,
                      size_t size_bytes);
/* Reads an SMP file: v2 keys and the rest of the vocabulary, or v1 keys, each of which is
 * translated or named as without equivalent (a warning).  `path` must outlive the settings. */
SMP_CHECK smp_status smp_settings_read(smp_settings *settings, const char *path,
                                       smp_errors *errors);
/* Writes the nine v2 keys, the keys that smp-plan searches, and the other given or
 * non-default keys, as an SMP file. */
SMP_CHECK smp_status smp_settings_export(const smp_settings *settings, const char *path,
                                         smp_errors *errors);

/* Whether the GPU computes in this precision: a V100 has no bf16. */
bool smp_profile_supports(const smp_profile *profile, smp_precision precision);

/* --------------------------------------------------------------------- job */

typedef struct smp_batch {
    uint64_t seq_len;      /* tokens per sequence */
    uint64_t global_batch; /* sequences per optimizer step, over all ranks */
    uint64_t longest;      /* tokens per sequence of other steps, where more than seq_len */
} smp_batch;

/* One configuration.  The pointers are borrowed: they must outlive the job. */
typedef struct smp_job {
    const smp_model *model;
    const smp_cluster *cluster;
    const smp_profile *profile;
    smp_batch batch;
    smp_settings settings;
    /* set by smp_job_resolve */
    uint32_t world;
    uint32_t data_ranks;    /* ranks with different samples: world / (tensor x context) */
    uint32_t replicas;      /* world / (tensor x expert x shard); nested: / (tensor x shard) */
    uint64_t micro_batches; /* per step and data rank */
} smp_job;

/* Checks every rule of the settings against model, cluster and batch, reports all that are
 * broken with the legal values (SMP_INPUT; the job is then unchanged), and writes the values
 * that act into job->settings. */
SMP_CHECK smp_status smp_job_resolve(smp_job *job, smp_errors *errors);
/* Fills in what of job->batch is 0, before resolving: the model's positions, at most 8192
 * (4096 where the model has no limit), and one micro-batch per data rank. */
void smp_job_default_batch(smp_job *job);

/* -------------------------------------------------------------------- mesh */

typedef struct smp_mesh smp_mesh;

/* The process groups of a rank; each is a set of ranks that differ in some axes only. */
typedef enum smp_group {
    SMP_GROUP_TENSOR,  /* differ in tensor */
    SMP_GROUP_CONTEXT, /* differ in context */
    SMP_GROUP_SHARD,   /* FSDP group: differ in context and shard, nested in expert too */
    SMP_GROUP_EXPERT,  /* differ in expert */
    SMP_GROUP_REPLICA, /* mutual replicas: differ in replica (and expert, for parameters
                          that are not experts': see SMP_GROUP_DENSE_REPLICA) */
    SMP_GROUP_DENSE_REPLICA, /* differ in replica and, unless nested, in expert */
    SMP_GROUP_EXPERT_SHARD,  /* FSDP group of experts: differ in context and shard */
    SMP_GROUP_MODEL,   /* one complete model instance: same replica */
    SMP_GROUP_WORLD,
    SMP_GROUPS
} smp_group;

typedef struct smp_coords { uint32_t axis[SMP_AXES]; } smp_coords;

/* Lays out world ranks in nodes of gpus_per_node consecutive ranks.  `job` must be
 * resolved. */
SMP_CHECK smp_status smp_mesh_create(const smp_job *job, smp_errors *errors, smp_mesh **mesh_p);
void smp_mesh_destroy(smp_mesh *mesh);
uint32_t smp_mesh_world(const smp_mesh *mesh);
uint32_t smp_mesh_degree(const smp_mesh *mesh, smp_axis axis); /* shard: without context */
/* Ranks are below smp_mesh_world, coordinates below the degrees. */
void smp_mesh_coords(const smp_mesh *mesh, uint32_t rank, smp_coords *coords_p);
uint32_t smp_mesh_rank(const smp_mesh *mesh, const smp_coords *coords);
uint32_t smp_mesh_group_size(const smp_mesh *mesh, smp_group group);
/* Position of `rank` among the members of its group, which are in ascending order. */
uint32_t smp_mesh_group_rank(const smp_mesh *mesh, smp_group group, uint32_t rank);
/* Writes the group's members in ascending order; members has smp_mesh_group_size places. */
void smp_mesh_members(const smp_mesh *mesh, smp_group group, uint32_t rank, uint32_t *members);
const char *smp_axis_name(smp_axis axis);
const char *smp_group_name(smp_group group);
/* Each rank's coordinates and the ranks of every group, for people or as JSON. */
SMP_CHECK smp_status smp_mesh_print(const smp_mesh *mesh, bool json, FILE *stream,
                                    smp_errors *errors);

/* -------------------------------------------------------------------- step */

/* The step programs of a job: one per class of ranks that behave alike. */
typedef struct smp_step smp_step;

/* Lowers a resolved job.  SMP_INPUT where the model has a feature that cannot be lowered. */
SMP_CHECK smp_status smp_step_lower(const smp_job *job, smp_errors *errors, smp_step **step_p);
void smp_step_destroy(smp_step *step);
/* Proves conflicting accesses ordered, communicators consistent, no deadlock; SMP_SYSTEM with
 * what is not.  Steps that smp_step_lower makes hold; a caller need not ask. */
SMP_CHECK smp_status smp_step_verify(const smp_step *step, smp_errors *errors);
/* The program as text: streams, communicators, buffers, segments, order. */
SMP_CHECK smp_status smp_step_print(const smp_step *step, FILE *stream, smp_errors *errors);

/* -------------------------------------------------------------- simulation */

/* Parts of the memory peak; they add up to peak_bytes. */
typedef struct smp_memory_parts {
    uint64_t parameters_bytes;
    uint64_t gradients_bytes;
    uint64_t optimizer_bytes;
    uint64_t unsharded_bytes;   /* gathered parameters and unreduced gradients */
    uint64_t activations_bytes;
    uint64_t logits_bytes;
    uint64_t communication_bytes; /* estimate: NCCL buffers of the communicators */
    uint64_t context_bytes;       /* estimate: CUDA context and kernels */
    uint64_t fragmentation_bytes; /* arena less the live bytes at the peak */
} smp_memory_parts;

/* Moments at which memory may peak, each in the ways in which it can be gone through.  What
 * happens in each is in docs/formulas.md, "Peaks". */
typedef enum smp_moment {
    SMP_MOMENT_INIT_DELAYED,    /* each rank makes its own shard only */
    SMP_MOMENT_INIT_EVERY_RANK, /* each rank makes the whole model on its host first */
    SMP_MOMENT_INIT_RANK0,      /* rank 0 alone has the whole model and sends it */
    SMP_MOMENT_FIRST_STEP,      /* optimizer state appears */
    SMP_MOMENT_STEADY,
    SMP_MOMENT_SAVE_SHARDED, SMP_MOMENT_SAVE_ASYNC, SMP_MOMENT_SAVE_FULL,
    SMP_MOMENT_LOAD_SAME, SMP_MOMENT_LOAD_OTHER, /* layout as it was saved, or another */
    SMP_MOMENTS
} smp_moment;
enum { SMP_PEAK_PARTS = 12, SMP_MEMORY_COMMS = 16 };

typedef struct smp_peak_part {
    const char *name; /* a constant */
    uint64_t bytes;
    bool host;        /* of the node that needs most; else of the GPU that does */
    bool estimate;    /* else exact */
} smp_peak_part;

typedef struct smp_peak {
    uint64_t device_bytes; /* the sum of the parts on the device */
    uint64_t host_bytes_per_node;
    bool counts;           /* the verdict needs it: a way that the settings take */
    bool fits;
    const char *note;      /* one clause, or NULL; a constant */
    uint32_t n_part;
    smp_peak_part parts[SMP_PEAK_PARTS];
} smp_peak;

/* Buffers of one communicator: an estimate. */
typedef struct smp_comm_memory {
    char name[20];
    uint32_t ranks, nodes;
    uint64_t bytes;
} smp_comm_memory;

typedef struct smp_memory {
    uint64_t arena_bytes;    /* what the executor allocates, to the byte */
    uint64_t peak_bytes;     /* arena + context + communicator buffers */
    uint64_t capacity_bytes; /* what the driver reports for the card */
    int64_t margin_bytes;    /* capacity - peak; negative: short by so much */
    bool fits;               /* every peak that counts: on the device and in host memory */
    uint64_t live_bytes;     /* peak of live bytes in serial issue order */
    uint64_t safety_bytes;   /* of the arena: what safety across streams costs */
    uint64_t host_bytes;     /* pinned host memory of one rank */
    uint64_t host_bytes_per_node;
    uint64_t host_capacity_bytes;
    double state_bytes_per_parameter; /* of the precision policy, before sharding */
    smp_memory_parts parts;
    smp_peak peaks[SMP_MOMENTS];
    smp_comm_memory comms[SMP_MEMORY_COMMS]; /* of the GPU that needs most memory */
    uint32_t n_comm;
} smp_memory;

/* Parts of the step time along the critical path of the slowest rank; communication and
 * copies count only where compute is idle.  They add up to the step exactly. */
typedef struct smp_time_parts {
    int64_t compute_ps;
    int64_t optimizer_ps;
    int64_t launch_ps;
    int64_t shard_ps;   /* exposed all-gather and reduce-scatter of parameters */
    int64_t replica_ps; /* exposed all-reduce over replicas */
    int64_t tensor_ps;
    int64_t expert_ps;
    int64_t world_ps;   /* gradient norm and other reductions over everything */
    int64_t offload_ps; /* exposed host copies */
} smp_time_parts;

typedef struct smp_report {
    double step_time_s;
    int64_t step_ps;
    double interval_low_s, interval_high_s; /* 80 % interval of the profile's spread */
    double tokens_per_s_per_gpu;
    double model_flops;    /* of the whole step, all ranks; formula in docs/formulas.md */
    double hardware_flops; /* as model_flops, recomputation included */
    double peak_flops_per_s; /* dense, of one GPU in the setting's precision */
    double mfu, hfu;
    double cost_per_billion_tokens; /* in the cluster's currency, 0: price unknown */
    smp_time_parts time;
    smp_memory memory;
    uint64_t tasks;
    uint32_t classes;
} smp_report;

typedef struct smp_simulation smp_simulation;

/* Simulates one step of a resolved job on its lowered program. */
SMP_CHECK smp_status smp_simulate(const smp_job *job, const smp_step *step, smp_errors *errors,
                                  smp_simulation **simulation_p);
void smp_simulation_destroy(smp_simulation *simulation);
const smp_report *smp_simulation_report(const smp_simulation *simulation);
/* Everything above for people at 80 columns, or as JSON (an object with the job's
 * settings and the report). */
SMP_CHECK smp_status smp_simulation_print(const smp_simulation *simulation, bool json,
                                          FILE *stream, smp_errors *errors);
/* Questions about a simulated step beyond its report.  smp_what_if_options_init fills in the
 * defaults, with which nothing is asked. */
typedef struct smp_what_if_options {
    /* every rank an actor of its own, with noise */
    bool ranks_apart;          /* also without any noise */
    const char *jitter;        /* "CV", "KERNEL_CV,COLLECTIVE_CV" or "profile" */
    double rank_spread;        /* CV of a lasting factor of each rank */
    const char *const *slow_ranks; /* "RANK:FACTOR" on the kernels of a rank */
    size_t n_slow_rank;
    const char *const *slow_links; /* "RANK:FACTOR" on collectives that it takes part in */
    size_t n_slow_link;
    const char *const *lost_ranks; /* "RANK": training goes on without their replicas */
    size_t n_lost_rank;
    uint64_t seed;             /* of the first run */
    uint32_t runs;             /* one more seed each */
    /* failures and checkpoints */
    double mtbf_h;             /* of one GPU, in hours; negative: not asked */
    double save_s, load_s, restart_s; /* negative: by estimate */
    uint64_t checkpoint_every; /* steps; 0: the best */
    /* a training run */
    double tokens;             /* negative: not asked */
    /* memory */
    const char *allocator;     /* "caching": PyTorch's */
} smp_what_if_options;
void smp_what_if_options_init(smp_what_if_options *options);

typedef struct smp_what_ifs smp_what_ifs; /* the answers */
SMP_CHECK smp_status smp_what_ifs_find(const smp_simulation *simulation,
                                       const smp_what_if_options *options, smp_errors *errors,
                                       smp_what_ifs **what_ifs_p);
void smp_what_ifs_destroy(smp_what_ifs *what_ifs);
/* As smp_simulation_print, with the answers (or NULL) behind. */
SMP_CHECK smp_status smp_simulation_print_with(const smp_simulation *simulation,
                                               const smp_what_ifs *what_ifs, bool json,
                                               FILE *stream, smp_errors *errors);

/* What-ifs: simulates every combination of values on top of `job`, which is not resolved.
 * An axis is "key=a,b,c": a setting, or seq_len, global_batch.  Prints one row each, in the
 * order of the product; a combination that breaks a rule is a row with the reason.  At most
 * 4096 combinations. */
SMP_CHECK smp_status smp_sweep_print(const smp_job *job, const char *const *axes, size_t n_axis,
                                     bool json, FILE *stream, smp_errors *errors);
/* An epoch over sequences of varying length: for each policy of filling up (max_length,
 * longest, bucket:N) padding waste, number of programs, what compiling them costs, and the
 * time in all.  `job` is not resolved; its seq_len is the longest there is. */
typedef struct smp_lengths_options {
    const char *lengths;     /* a file of whole numbers, lognormal:MEAN,SD or uniform:A,B */
    const char *const *pads; /* none: max_length, longest and bucket:512 */
    size_t n_pad;
    uint64_t sequences;      /* 0: all of a file, 128 steps of a distribution */
    uint64_t seed;
    double compile_s;        /* of one program; negative: by estimate */
} smp_lengths_options;
void smp_lengths_options_init(smp_lengths_options *options);
SMP_CHECK smp_status smp_lengths_print(const smp_job *job, const smp_lengths_options *options,
                                       bool json, FILE *stream, smp_errors *errors);
/* What costs rest on: formula, figures, citations, and of each collective what nccl-tests would
 * print.  The largest, for people; or all, as JSON: the object of smp_simulation_print_with and
 * an array "costs". */
SMP_CHECK smp_status smp_simulation_explain(const smp_simulation *simulation,
                                            const smp_what_ifs *what_ifs, bool json,
                                            FILE *stream, smp_errors *errors);
/* Which tensor an allocation of `size` is ("2GiB", "1.5e9", "34359738368"): the buffers of the
 * step with that size (1 % either way), usual cases in PyTorch, and the token counts that
 * would explain it.  For people or as JSON. */
SMP_CHECK smp_status smp_allocation_print(const smp_job *job, const smp_step *step,
                                          const char *size, bool json, FILE *stream,
                                          smp_errors *errors);
/* Chrome trace JSON (Perfetto): a row per stream, memory as a counter. */
SMP_CHECK smp_status smp_simulation_trace(const smp_simulation *simulation, const char *path,
                                          smp_errors *errors);
/* Plots through gnuplot; PATH ends in .svg or .png; the data file PATH.dat is written
 * first and stays when gnuplot is missing (then SMP_SYSTEM with a message). */
SMP_CHECK smp_status smp_simulation_plot_memory(const smp_simulation *simulation,
                                                const char *path, smp_errors *errors);
SMP_CHECK smp_status smp_simulation_plot_timeline(const smp_simulation *simulation,
                                                  const char *path, smp_errors *errors);

/* SMP_INPUT unless PATH ends in .svg or .png: for a program that plots at the end of long
 * work. */
SMP_CHECK smp_status smp_plot_check(const char *path, smp_errors *errors);

/* -------------------------------------------------------------------- plan */

typedef enum smp_objective {
    SMP_OBJECTIVE_TIME,
    SMP_OBJECTIVE_COST,
    SMP_OBJECTIVE_GPUS
} smp_objective;

typedef struct smp_plan_options {
    smp_objective objective;
    uint32_t top;     /* plans to return; 0 means 5 */
    bool prune;       /* false: price every candidate */
    double margin_frac; /* of capacity that a plan must leave free; default 0.03 */
    bool front;       /* also find the front: what no other configuration beats or equals in
                         time, memory and cost */
    bool timing;      /* print how long the search took: no two runs then print the same */
    double deadline_s; /* stop after so many seconds with the best plans found by then, as
                          soon as there is one; 0: when nothing better is left */
    bool fine;        /* a larger space: every number of layers checkpointed and offloaded, more
                         chunks of the loss */
    uint32_t threads; /* that simulate; 0: one for each processor.  Changes no result */
    bool brief;       /* plans only: neither what their neighbours cost nor, where nothing
                         fits, on how many GPUs something would */
    /* Called now and then with what has been done of how much; may be NULL. */
    void (*progress)(void *context, uint64_t done, uint64_t total);
    void *progress_context;
} smp_plan_options;

typedef struct smp_search_info {
    uint64_t enumerated; /* settings in the space */
    uint64_t pruned;     /* rejected by a bound or a rule of dominance */
    uint64_t evaluated;  /* simulated */
    bool exhausted;      /* false: stopped by the deadline */
    double gap;          /* (best - bound of what was not simulated) / best; 0: optimal */
    double seconds;
} smp_search_info;

typedef struct smp_plan smp_plan; /* the result of a search */

void smp_plan_options_init(smp_plan_options *options);
/* `job` holds model, cluster, profile, batch and pins (given settings); the rest is
 * searched.  SMP_INFEASIBLE when nothing fits: then the plan is still made, without any job
 * (smp_plan_count 0); printed, it names the nearest configuration, the bytes it lacks and the
 * GPU count that would fit. */
SMP_CHECK smp_status smp_plan_search(const smp_job *job, const smp_plan_options *options,
                                     smp_errors *errors, smp_plan **plan_p);
void smp_plan_destroy(smp_plan *plan);
size_t smp_plan_count(const smp_plan *plan); /* feasible plans kept, best first */
/* Plan i below smp_plan_count: its job, resolved, and what is predicted of it. */
const smp_job *smp_plan_job(const smp_plan *plan, size_t i);
const smp_report *smp_plan_report(const smp_plan *plan, size_t i);
const smp_search_info *smp_plan_search_info(const smp_plan *plan);
/* The table, why the alternatives lose, or the nearest plan; for people or as JSON. */
SMP_CHECK smp_status smp_plan_print(const smp_plan *plan, bool json, FILE *stream,
                                    smp_errors *errors);
/* Time against memory of every candidate that was simulated, the front and the plans; as
 * smp_simulation_plot_memory. */
SMP_CHECK smp_status smp_plan_pareto(const smp_plan *plan, const char *path,
                                     smp_errors *errors);

/* Several clusters and numbers of GPUs, each with its best plan, ranked by the objective. */

/* A cluster on offer.  `job` as for smp_plan_search, all with the same model and batch;
 * borrowed.  gpus: the numbers to try, in rising order; n_gpus 0: every number of nodes, and
 * part of one, over whose ranks the batch can be divided (at most 65536 GPUs). */
typedef struct smp_offer {
    const smp_job *job;
    const uint32_t *gpus;
    size_t n_gpus;
} smp_offer;

typedef struct smp_fleet_options {
    smp_plan_options plan; /* its objective ranks: time: soonest done; cost: least money, or
                              GPU hours where no cluster has a price; gpus: fewest; its top
                              says how many are found exactly */
    double tokens;         /* to train on; 0: no run is asked for, all is per 1e9 tokens */
    double within_s;       /* the run may take so long; 0: no limit */
    double budget;         /* the run may cost so much, in the currency of the clusters; 0 */
} smp_fleet_options;

typedef struct smp_fleet smp_fleet;

/* SMP_INFEASIBLE when nothing meets the limits: then the fleet is still made and names the
 * nearest.  SMP_INPUT when the clusters are priced in different currencies, a budget is given
 * and none has a price, or no number of GPUs follows the rules. */
SMP_CHECK smp_status smp_fleet_search(const smp_offer *offers, size_t n_offer,
                                      const smp_fleet_options *options, smp_errors *errors,
                                      smp_fleet **fleet_p);
void smp_fleet_destroy(smp_fleet *fleet);
/* The best, or NULL when nothing meets the limits. */
const smp_plan *smp_fleet_best(const smp_fleet *fleet);
SMP_CHECK smp_status smp_fleet_print(const smp_fleet *fleet, bool json, FILE *stream,
                                     smp_errors *errors);

/* A plan file holds one resolved job with its inputs by value.  `predicted` is what was
 * predicted of the job, or NULL: it is then left out of the file. */
SMP_CHECK smp_status smp_plan_write(const smp_job *job, const smp_report *predicted,
                                    const char *path, smp_errors *errors);
typedef struct smp_planned {
    smp_model *model;
    smp_cluster *cluster;
    smp_profile *profile;
    smp_job job;           /* unresolved, with every setting given */
    bool has_predicted;
    smp_report predicted;  /* what the file says, the rest zero */
} smp_planned;
SMP_CHECK smp_status smp_plan_read(const char *path, smp_errors *errors,
                                   smp_planned **planned_p);
void smp_planned_destroy(smp_planned *planned);

#ifdef __cplusplus
}
#endif
#endif
