/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From checked facts to the model: kinds of layers, parameters with shapes, counts, and how
 * tensor parallelism cuts a parameter.
 */
#include "model/family.h"

#include "base/numeric.h"

#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------ layers */

/* What can set one layer apart from the next. */
enum { LAYER_WINDOW = 1, LAYER_EXPERTS = 2, LAYER_NO_ROPE = 4 };

/* Whether a list of layers, which may be absent, has this one. */
static bool is_listed(const cJSON *list, uint32_t layer)
{
    for (list = list ? list->child : NULL; list; list = list->next) {
        if (cJSON_IsNumber(list) && list->valuedouble == layer) {
            return true;
        }
    }
    return false;
}

static bool has_experts(const smp_facts *facts, uint32_t layer)
{
    if (facts->node[SMP_FACT_MOE_LAYERS]) {
        return smp_fact_u64(facts, SMP_FACT_EXPERTS) > 0 &&
               is_listed(facts->node[SMP_FACT_MOE_LAYERS], layer);
    }
    if (is_listed(facts->node[SMP_FACT_MLP_ONLY], layer)) {
        return false;
    }
    return smp_fact_u64(facts, SMP_FACT_EXPERTS) > 0 &&
           layer >= smp_fact_u64(facts, SMP_FACT_FIRST_DENSE) &&
           (layer + 1) % smp_fact_u64(facts, SMP_FACT_SPARSE_STEP) == 0;
}

static bool has_rope_list(const smp_facts *facts)
{
    return facts->node[SMP_FACT_ROPE_LAYERS] && facts->node[SMP_FACT_ROPE_LAYERS]->child;
}

static bool rotates(const smp_facts *facts, uint32_t layer)
{
    uint64_t every = smp_fact_u64(facts, SMP_FACT_NO_ROPE_EVERY);
    if (has_rope_list(facts)) {
        return cJSON_GetArrayItem(facts->node[SMP_FACT_ROPE_LAYERS], (int)layer)->valuedouble
               != 0;
    }
    return every == 0 || (layer + 1) % every != 0;
}

static bool has_window(const smp_facts *facts, uint32_t layer)
{
    const cJSON *types = facts->node[SMP_FACT_LAYER_TYPES];
    bool window = smp_fact_u64(facts, SMP_FACT_WINDOW) > 0;
    if (types) {
        const cJSON *type = cJSON_GetArrayItem(types, (int)layer);
        window = window && strcmp(type->valuestring, "full_attention") != 0;
    } else if (has_rope_list(facts)) {
        window = window && rotates(facts, layer);
    } else if (facts->family->windows == SMP_WINDOWS_FROM) {
        window = window && layer >= smp_fact_u64(facts, SMP_FACT_WINDOW_FROM);
    } else if (facts->family->windows == SMP_WINDOWS_PATTERN) {
        window = window && (layer + 1) % smp_fact_u64(facts, SMP_FACT_WINDOW_PATTERN) != 0;
    }
    return window;
}

static unsigned layer_flags(const smp_facts *facts, uint32_t layer)
{
    return (has_window(facts, layer) ? (unsigned)LAYER_WINDOW : 0) |
           (has_experts(facts, layer) ? (unsigned)LAYER_EXPERTS : 0) |
           (rotates(facts, layer) ? 0 : (unsigned)LAYER_NO_ROPE);
}

/* -------------------------------------------------------------- parameters */

static uint64_t dim_size(const smp_facts *facts, smp_dim dim)
{
    uint64_t head_dim = smp_fact_u64(facts, SMP_FACT_HEAD_DIM);
    switch (dim) {
    case SMP_DIM_HIDDEN: return smp_fact_u64(facts, SMP_FACT_HIDDEN);
    case SMP_DIM_VOCAB: return smp_fact_u64(facts, SMP_FACT_VOCAB);
    case SMP_DIM_POSITIONS: return smp_fact_u64(facts, SMP_FACT_POSITIONS);
    case SMP_DIM_Q: return smp_fact_u64(facts, SMP_FACT_HEADS) * head_dim;
    case SMP_DIM_KV: return smp_fact_u64(facts, SMP_FACT_KV_HEADS) * head_dim;
    case SMP_DIM_HEAD_DIM: return head_dim;
    case SMP_DIM_FFN: return smp_fact_u64(facts, SMP_FACT_FFN);
    case SMP_DIM_HEADS: return smp_fact_u64(facts, SMP_FACT_HEADS);
    case SMP_DIM_EMBEDDING: return smp_fact_u64(facts, SMP_FACT_EMBEDDING_WIDTH);
    case SMP_DIM_Q_LORA: return smp_fact_u64(facts, SMP_FACT_Q_LORA);
    case SMP_DIM_KV_LORA: return smp_fact_u64(facts, SMP_FACT_KV_LORA);
    case SMP_DIM_KV_DOWN:
        return smp_fact_u64(facts, SMP_FACT_KV_LORA) + smp_fact_u64(facts, SMP_FACT_QK_ROPE);
    case SMP_DIM_KV_UP:
        return smp_fact_u64(facts, SMP_FACT_HEADS) *
               (smp_fact_u64(facts, SMP_FACT_QK_NOPE) + smp_fact_u64(facts, SMP_FACT_V_DIM));
    case SMP_DIM_V:
        return smp_fact_u64(facts, SMP_FACT_HEADS) * smp_fact_u64(facts, SMP_FACT_V_DIM);
    case SMP_DIM_EXPERTS: return smp_fact_u64(facts, SMP_FACT_EXPERTS);
    case SMP_DIM_MOE_FFN: return smp_fact_u64(facts, SMP_FACT_MOE_FFN);
    case SMP_DIM_SHARED_FFN: return smp_fact_u64(facts, SMP_FACT_SHARED_FFN);
    case SMP_DIM_ONE:
    case SMP_DIM_NONE:
    case SMP_DIMS: break;
    }
    return 1;
}

static bool row_exists(const smp_facts *facts, const smp_row *row)
{
    return (row->when == SMP_FACT_NONE || facts->value[row->when] > 0) &&
           (row->unless == SMP_FACT_NONE || !(facts->value[row->unless] > 0));
}

static smp_param *build_params(const smp_facts *facts, const smp_row *rows, smp_arena *arena,
                               uint32_t *n_p)
{
    uint32_t n = 0, at = 0;
    for (const smp_row *row = rows; row->name; row++) {
        n += row_exists(facts, row);
    }
    smp_param *params = SMP_ARENA_ARRAY(arena, n, smp_param);
    for (const smp_row *row = rows; row->name; row++) {
        if (row_exists(facts, row)) {
            smp_param *param = &params[at++];
            param->role = row->role;
            param->name = row->name;
            param->n_dim = row->in == SMP_DIM_NONE ? 1 : 2;
            param->shape[0] = dim_size(facts, row->out);
            param->shape[1] = dim_size(facts, row->in);
            param->split = row->split;
            param->transposed = row->transposed;
            param->count = row->per_expert ? smp_fact_u64(facts, SMP_FACT_EXPERTS) : 1;
        }
    }
    *n_p = n;
    return params;
}

static double positive(double value, double otherwise)
{
    return value > 0 ? value : otherwise;
}

static void build_attention(const smp_facts *facts, unsigned flags, smp_attention *attention)
{
    const double *v = facts->value;
    *attention = (smp_attention){
        .heads = (uint32_t)smp_fact_u64(facts, SMP_FACT_HEADS),
        .kv_heads = (uint32_t)smp_fact_u64(facts, SMP_FACT_KV_HEADS),
        .head_dim = (uint32_t)smp_fact_u64(facts, SMP_FACT_HEAD_DIM),
        .qkv_bias = v[SMP_FACT_QKV_BIAS] > 0,
        .out_bias = v[SMP_FACT_OUT_BIAS] > 0,
        .qk_norm = v[SMP_FACT_QK_NORM] > 0 || v[SMP_FACT_QK_NORM_WHOLE] > 0 ||
                   v[SMP_FACT_QK_NORM_OWN] > 0,
        .window = flags & LAYER_WINDOW ? (uint32_t)smp_fact_u64(facts, SMP_FACT_WINDOW) : 0,
        .chunked = flags & LAYER_WINDOW && facts->family->chunked_window,
        .dropout = v[SMP_FACT_ATTENTION_DROPOUT],
        .qk_norm_whole = v[SMP_FACT_QK_NORM_WHOLE] > 0,
        .qk_norm_own = v[SMP_FACT_QK_NORM_OWN] > 0,
        .qk_norm_bare = v[SMP_FACT_QK_NORM_BARE] > 0 && !(flags & LAYER_NO_ROPE),
        .no_rope = flags & LAYER_NO_ROPE,
        .temperature = v[SMP_FACT_TEMPERED] > 0 && flags & LAYER_NO_ROPE
                           ? v[SMP_FACT_TEMPERATURE] : 0,
        .temperature_floor = (uint32_t)smp_fact_u64(facts, SMP_FACT_TEMPERATURE_FLOOR),
        .sinks = v[SMP_FACT_SINKS] > 0,
        .scale = v[SMP_FACT_QUERY_SCALAR] > 0 ? 1 / sqrt(v[SMP_FACT_QUERY_SCALAR]) : 0,
        .softcap = positive(v[SMP_FACT_ATTENTION_SOFTCAP], 0),
        .clip = positive(v[SMP_FACT_CLIP_QKV], 0),
        .q_lora_rank = (uint32_t)smp_fact_u64(facts, SMP_FACT_Q_LORA),
        .kv_lora_rank = (uint32_t)smp_fact_u64(facts, SMP_FACT_KV_LORA),
        .qk_nope_dim = (uint32_t)smp_fact_u64(facts, SMP_FACT_QK_NOPE),
        .qk_rope_dim = (uint32_t)smp_fact_u64(facts, SMP_FACT_QK_ROPE),
        .v_head_dim = (uint32_t)smp_fact_u64(facts, SMP_FACT_V_DIM),
    };
}

static void build_moe(const smp_facts *facts, smp_activation activation, smp_moe *moe)
{
    const double *v = facts->value;
    const char *scoring = facts->word[SMP_FACT_SCORING];
    *moe = (smp_moe){
        .experts = (uint32_t)smp_fact_u64(facts, SMP_FACT_EXPERTS),
        .top_k = (uint32_t)smp_fact_u64(facts, SMP_FACT_TOP_K),
        .ffn = smp_fact_u64(facts, SMP_FACT_MOE_FFN),
        .shared_ffn = smp_fact_u64(facts, SMP_FACT_SHARED_FFN),
        .shared_gate = v[SMP_FACT_SHARED_GATE] > 0,
        .sigmoid_scores = scoring && strcmp(scoring, "sigmoid") == 0,
        .correction_bias = v[SMP_FACT_CORRECTION_BIAS] > 0,
        .router_bias = v[SMP_FACT_ROUTER_BIAS] > 0,
        .norm_topk = v[SMP_FACT_NORM_TOPK] > 0,
        .groups = (uint32_t)smp_fact_u64(facts, SMP_FACT_GROUPS),
        .topk_groups = (uint32_t)smp_fact_u64(facts, SMP_FACT_TOPK_GROUPS),
        .scale = v[SMP_FACT_ROUTED_SCALE],
        .weighs_input = facts->family->weighs_input,
        .gated = facts->family->gated,
        .bias = v[SMP_FACT_ROUTER_BIAS] > 0,
        .activation = activation,
    };
}

static void build_block(const smp_facts *all, unsigned flags, smp_arena *arena,
                        smp_block *block)
{
    smp_facts of_layer = *all;
    const smp_facts *facts = &of_layer;
    double *v = of_layer.value;
    v[SMP_FACT_IS_MOE] = (flags & LAYER_EXPERTS) != 0;
    v[SMP_FACT_IS_DENSE] = !(flags & LAYER_EXPERTS);
    v[SMP_FACT_CORRECTION_BIAS] = v[SMP_FACT_CORRECTION_BIAS] * v[SMP_FACT_IS_MOE];
    v[SMP_FACT_SHARED_GATE] = v[SMP_FACT_SHARED_GATE] * v[SMP_FACT_IS_MOE];
    v[SMP_FACT_HAS_SHARED] = v[SMP_FACT_SHARED_FFN] > 0 && (flags & LAYER_EXPERTS);
    block->norm = facts->family->norm;
    block->norm_bias = facts->family->norm_bias;
    block->parallel_residual = v[SMP_FACT_PARALLEL] > 0;
    block->residual_dropout = v[SMP_FACT_RESIDUAL_DROPOUT];
    block->norm_place = v[SMP_FACT_PRE_NORM] > 0 ? facts->family->norm_place
                                                 : SMP_NORM_AFTER_RESIDUAL;
    block->single_norm = v[SMP_FACT_SINGLE_NORM] > 0;
    build_attention(facts, flags, &block->attention);
    block->mlp = (smp_mlp){
        .ffn = smp_fact_u64(facts, SMP_FACT_FFN),
        .gated = facts->family->gated,
        .bias = v[SMP_FACT_MLP_BIAS] > 0,
    };
    if (facts->word[SMP_FACT_ACTIVATION]) {
        (void)smp_activation_find(facts->word[SMP_FACT_ACTIVATION], &block->mlp.activation);
    }
    if (facts->family->clamped_swiglu) {
        block->mlp.activation = SMP_ACT_CLAMPED_SWIGLU;
    }
    if (flags & LAYER_EXPERTS) {
        build_moe(facts, block->mlp.activation, &block->moe);
    }
    block->params = build_params(facts, facts->family->block, arena, &block->n_param);
}

/* One kind for each combination of flags, in the order in which layers show them. */
static void build_kinds(const smp_facts *facts, smp_model *model)
{
    unsigned seen[256];
    model->kinds = SMP_ARENA_ARRAY(model->arena, 256, smp_block);
    model->kind_of_layer = SMP_ARENA_ARRAY(model->arena, model->n_layer, uint8_t);
    for (uint32_t layer = 0; layer < model->n_layer; layer++) {
        unsigned flags = layer_flags(facts, layer);
        uint32_t kind = 0;
        while (kind < model->n_kind && seen[kind] != flags) {
            kind++;
        }
        if (kind == model->n_kind) {
            seen[kind] = flags;
            build_block(facts, flags, model->arena, &model->kinds[kind]);
            model->n_kind++;
        }
        model->kind_of_layer[layer] = (uint8_t)kind;
    }
}

static uint64_t count_params(const smp_param *params, uint32_t n)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum = smp_add(sum, smp_param_elems(&params[i]));
    }
    return sum;
}

/* Parameters of the experts that one token does not go through. */
static uint64_t count_idle(const smp_block *block)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < block->n_param; i++) {
        const smp_param *param = &block->params[i];
        if (param->count > 1 && param->count > block->moe.top_k) {
            uint64_t one = smp_param_elems(param) / param->count;
            sum = smp_add(sum, smp_mul(one, param->count - block->moe.top_k));
        }
    }
    return sum;
}

static void count_model(smp_model *model)
{
    uint64_t idle = 0;
    model->parameters = count_params(model->root, model->n_root);
    for (uint32_t kind = 0; kind < model->n_kind; kind++) {
        const smp_block *block = &model->kinds[kind];
        uint64_t layers = 0;
        for (uint32_t layer = 0; layer < model->n_layer; layer++) {
            layers += model->kind_of_layer[layer] == kind;
        }
        uint64_t elems = smp_mul(layers, count_params(block->params, block->n_param));
        model->parameters = smp_add(model->parameters, elems);
        idle = smp_add(idle, smp_mul(layers, count_idle(block)));
    }
    model->active_parameters = model->parameters - idle;
}

static void scale_latent_logits(smp_model *model)
{
    for (uint32_t kind = 0; kind < model->n_kind; kind++) {
        smp_attention *a = &model->kinds[kind].attention;
        if (a->kv_lora_rank > 0 && model->rope_logit_factor > 1) {
            a->scale = model->rope_logit_factor / sqrt((double)a->head_dim);
        }
    }
}

void smp_model_build(const smp_facts *facts, smp_model *model)
{
    const double *v = facts->value;
    model->vocab = smp_fact_u64(facts, SMP_FACT_VOCAB);
    model->hidden = smp_fact_u64(facts, SMP_FACT_HIDDEN);
    model->n_layer = (uint32_t)smp_fact_u64(facts, SMP_FACT_LAYERS);
    model->tied = v[SMP_FACT_TIED] > 0;
    model->position = v[SMP_FACT_ALIBI] > 0 ? SMP_POSITION_ALIBI : facts->family->position;
    model->embedding_width = smp_fact_u64(facts, SMP_FACT_EMBEDDING_WIDTH);
    model->embedding_norm = v[SMP_FACT_EMBEDDING_NORM] > 0;
    model->head_bias = v[SMP_FACT_HEAD_BIAS] > 0;
    model->embedding_scale = v[SMP_FACT_EMBEDDING_SCALE];
    model->logit_scale = positive(v[SMP_FACT_LOGIT_SCALE], 1);
    model->logit_softcap = positive(v[SMP_FACT_LOGIT_SOFTCAP], 0);
    model->embedding_dropout = v[SMP_FACT_EMBEDDING_DROPOUT];
    model->rope_interleaved = facts->family->rope_interleaved;
    model->norm_offset = facts->family->norm_offset;
    model->alibi_over_root = facts->family->alibi_over_root;
    model->first_position = facts->family->first_position;
    model->norm_eps = v[SMP_FACT_NORM_EPS];
    model->initializer_range = v[SMP_FACT_INIT];
    model->root = build_params(facts, facts->family->root, model->arena, &model->n_root);
    build_kinds(facts, model);
    scale_latent_logits(model);
    count_model(model);
}

/* ------------------------------------------------------- tensor parallelism */

uint64_t smp_param_elems(const smp_param *param)
{
    uint64_t one =
        param->n_dim == 1 ? param->shape[0] : smp_mul(param->shape[0], param->shape[1]);
    return smp_mul(one, param->count);
}

uint32_t smp_local_kv_heads(uint32_t kv_heads, uint32_t tensor_degree)
{
    return (uint32_t)smp_ceil_div(kv_heads, tensor_degree);
}

uint32_t smp_model_experts(const smp_model *model)
{
    uint32_t most = 0;

    for (uint32_t k = 0; k < model->n_kind; k++) {
        most = model->kinds[k].moe.experts > most ? model->kinds[k].moe.experts : most;
    }
    return most;
}

uint64_t smp_local_vocab(uint64_t vocab, uint32_t tensor_degree)
{
    return smp_ceil_div(vocab, tensor_degree);
}

void smp_param_local_shape(const smp_model *model, const smp_block *block_or_null,
                           const smp_param *param, uint32_t tensor_degree, uint64_t *shape)
{
    uint64_t t = tensor_degree;
    shape[0] = param->shape[0];
    if (param->n_dim == 2) {
        shape[1] = param->shape[1];
    }
    switch (param->split) {
    case SMP_SPLIT_NONE:
        break;
    case SMP_SPLIT_OUT:
    case SMP_SPLIT_EXPERT_OUT:
        shape[0] = smp_ceil_div(shape[0], t);
        break;
    case SMP_SPLIT_KV:
        if (block_or_null) {
            uint32_t kv_heads = block_or_null->attention.kv_heads;
            shape[0] = shape[0] / kv_heads * smp_local_kv_heads(kv_heads, tensor_degree);
        }
        break;
    case SMP_SPLIT_IN:
    case SMP_SPLIT_EXPERT_IN:
        if (param->n_dim == 2) {
            shape[1] = smp_ceil_div(shape[1], t);
        }
        break;
    case SMP_SPLIT_VOCAB:
        shape[0] = smp_local_vocab(model->vocab, tensor_degree);
        break;
    }
}

uint64_t smp_param_local_elems(const smp_model *model, const smp_block *block_or_null,
                               const smp_param *param, uint32_t tensor_degree)
{
    smp_param local = *param;
    smp_param_local_shape(model, block_or_null, param, tensor_degree, local.shape);
    return smp_param_elems(&local);
}

const char *smp_split_name(smp_split split)
{
    switch (split) {
    case SMP_SPLIT_NONE: return "copy";
    case SMP_SPLIT_OUT: return "out";
    case SMP_SPLIT_KV: return "kv";
    case SMP_SPLIT_IN: return "in";
    case SMP_SPLIT_VOCAB: return "vocab";
    case SMP_SPLIT_EXPERT_OUT: return "out";
    case SMP_SPLIT_EXPERT_IN: return "in";
    }
    return "?";
}
