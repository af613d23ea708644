/* SPDX-License-Identifier: Apache-2.0 */
/* A model for people, at 80 columns, and as JSON: the same facts. */
#include "model/model.h"

#include "base/text.h"

#include <inttypes.h>
#include <string.h>

/* A parameter with the number of layers that have it in this shape (0: outside of layers). */
typedef struct line {
    const smp_param *param;
    const smp_block *block;
    uint32_t layers;
} line;

static bool same_param(const smp_param *a, const smp_param *b)
{
    return a->role == b->role && strcmp(a->name, b->name) == 0 && a->n_dim == b->n_dim &&
           a->shape[0] == b->shape[0] && (a->n_dim == 1 || a->shape[1] == b->shape[1]);
}

static uint32_t layers_of_kind(const smp_model *model, uint32_t kind)
{
    uint32_t n = 0;
    for (uint32_t layer = 0; layer < model->n_layer; layer++) {
        n += model->kind_of_layer[layer] == kind;
    }
    return n;
}

/* Kinds mostly have the same parameters: those are one line. */
static void add_block(line *lines, size_t *n_p, const smp_block *block, uint32_t layers)
{
    size_t old = *n_p;
    for (uint32_t i = 0; i < block->n_param; i++) {
        size_t at = 0;
        while (at < old &&
               !(lines[at].block && same_param(lines[at].param, &block->params[i]))) {
            at++;
        }
        if (at < old) {
            lines[at].layers += layers;
        } else {
            lines[(*n_p)++] = (line){&block->params[i], block, layers};
        }
    }
}

static line *collect(const smp_model *model, smp_arena *arena, size_t *n_p)
{
    size_t n = model->n_root;
    for (uint32_t kind = 0; kind < model->n_kind; kind++) {
        n += model->kinds[kind].n_param;
    }
    line *lines = SMP_ARENA_ARRAY(arena, n, line);
    n = 0;
    for (uint32_t i = 0; i < model->n_root; i++) {
        lines[n++] = (line){&model->root[i], NULL, 0};
    }
    for (uint32_t kind = 0; kind < model->n_kind; kind++) {
        add_block(lines, &n, &model->kinds[kind], layers_of_kind(model, kind));
    }
    *n_p = n;
    return lines;
}

static const char *position_name(smp_position_kind position)
{
    switch (position) {
    case SMP_POSITION_NONE: return "none";
    case SMP_POSITION_ROPE: return "rope";
    case SMP_POSITION_LEARNED: return "learned";
    case SMP_POSITION_ALIBI: return "alibi";
    }
    return "?";
}

static const char *scaling_name(smp_rope_scaling scaling)
{
    switch (scaling) {
    case SMP_ROPE_PLAIN: return "plain";
    case SMP_ROPE_LINEAR: return "linear";
    case SMP_ROPE_DYNAMIC: return "dynamic";
    case SMP_ROPE_YARN: return "yarn";
    case SMP_ROPE_LONGROPE: return "longrope";
    case SMP_ROPE_LLAMA3: return "llama3";
    }
    return "?";
}

/* ------------------------------------------------------------------ people */

static const char *show_shape(smp_arena *arena, const smp_param *param, const uint64_t *shape)
{
    const char *each = param->count > 1 ? smp_arena_printf(arena, "%" PRIu64 "x", param->count)
                                        : "";
    if (param->n_dim == 1) {
        return smp_arena_printf(arena, "%s%" PRIu64, each, shape[0]);
    }
    return smp_arena_printf(arena, "%s%" PRIu64 "x%" PRIu64, each, shape[0], shape[1]);
}

static void print_head(const smp_model *model, FILE *stream)
{
    const smp_block *block = smp_model_block(model, 0);
    fprintf(stream, "model              %s\n", model->name);
    fprintf(stream, "family             %s\n", model->family);
    fprintf(stream, "parameters         %" PRIu64 " (%s)\n", model->parameters,
            smp_show_count((double)model->parameters));
    fprintf(stream, "active parameters  %" PRIu64 " (%s)\n", model->active_parameters,
            smp_show_count((double)model->active_parameters));
    fprintf(stream, "embedding          %s\n",
            model->tied ? "tied to the head" : "not tied to the head");
    fprintf(stream, "layers             %u\n", model->n_layer);
    fprintf(stream, "hidden             %" PRIu64 "\n", model->hidden);
    fprintf(stream, "vocabulary         %" PRIu64 "\n", model->vocab);
    fprintf(stream, "heads              %u of %u, %u key-value\n", block->attention.heads,
            block->attention.head_dim, block->attention.kv_heads);
    fprintf(stream, "positions          %s", position_name(model->position));
    if (model->position == SMP_POSITION_ROPE) {
        fprintf(stream, " (theta %g, %s)", model->rope_theta,
                scaling_name(model->rope_scaling));
    }
    if (model->max_positions) {
        fprintf(stream, ", at most %" PRIu64, model->max_positions);
    }
    fprintf(stream, "\n");
}

/* Layer parameters are shown without the prefix that all of them share. */
static const char *short_name(const line *l)
{
    const char *brace = l->block ? strstr(l->param->name, "{}.") : NULL;
    return brace ? brace + 3 : l->param->name;
}

/* A name too long for its column stands on a line of its own. */
static void print_name(const char *indent, const char *name, FILE *stream)
{
    const size_t column = 37;
    size_t n = strlen(indent) + strlen(name);
    fprintf(stream, "%s%s", indent, name);
    if (n > column) {
        fprintf(stream, "\n");
        n = 0;
    }
    fprintf(stream, "%*s ", (int)(column - n), "");
}

static void print_table(const smp_model *model, const line *lines, size_t n, uint32_t degree,
                        smp_arena *arena, FILE *stream)
{
    char local_title[32];
    snprintf(local_title, sizeof local_title, "at tensor %u", degree);
    fprintf(stream, "\n%-37s %6s %13s %-6s %13s\n", "parameter", "layers", "shape", "split",
            local_title);
    for (size_t i = 0; i < n; i++) {
        const smp_param *param = lines[i].param;
        uint64_t local[2];
        const char *brace = lines[i].block ? strstr(param->name, "{}.") : NULL;
        if (brace && (i == 0 || !lines[i - 1].block)) {
            fprintf(stream, "%.*s\n", (int)(brace + 3 - param->name), param->name);
        }
        smp_param_local_shape(model, lines[i].block, param, degree, local);
        print_name(brace ? "  " : "", short_name(&lines[i]), stream);
        if (lines[i].block) {
            fprintf(stream, "%6u", lines[i].layers);
        } else {
            fprintf(stream, "%6s", "-");
        }
        fprintf(stream, " %13s %-6s %13s\n", show_shape(arena, param, param->shape),
                smp_split_name(param->split), show_shape(arena, param, local));
    }
}

/* -------------------------------------------------------------------- JSON */

static void out_shape(smp_json_out *out, const char *key, const smp_param *param,
                      const uint64_t *shape)
{
    smp_out_array(out, key);
    for (uint32_t d = 0; d < param->n_dim; d++) {
        smp_out_u64(out, NULL, shape[d]);
    }
    smp_out_end_array(out);
}

static void out_head(smp_json_out *out, const smp_model *model)
{
    const smp_block *block = smp_model_block(model, 0);
    smp_out_string(out, "name", model->name);
    smp_out_string(out, "family", model->family);
    smp_out_u64(out, "parameters", model->parameters);
    smp_out_u64(out, "active_parameters", model->active_parameters);
    smp_out_bool(out, "tied", model->tied);
    smp_out_u64(out, "layers", model->n_layer);
    smp_out_u64(out, "hidden", model->hidden);
    smp_out_u64(out, "vocabulary", model->vocab);
    smp_out_u64(out, "heads", block->attention.heads);
    smp_out_u64(out, "kv_heads", block->attention.kv_heads);
    smp_out_u64(out, "head_dim", block->attention.head_dim);
    smp_out_string(out, "positions", position_name(model->position));
    smp_out_u64(out, "max_positions", model->max_positions);
    if (model->position == SMP_POSITION_ROPE) {
        smp_out_double(out, "rope_theta", model->rope_theta);
        smp_out_string(out, "rope_scaling", scaling_name(model->rope_scaling));
    }
}

static void out_table(smp_json_out *out, const smp_model *model, const line *lines, size_t n,
                      uint32_t degree)
{
    smp_out_u64(out, "tensor_degree", degree);
    smp_out_array(out, "parameters_table");
    for (size_t i = 0; i < n; i++) {
        const smp_param *param = lines[i].param;
        uint64_t local[2];
        smp_param_local_shape(model, lines[i].block, param, degree, local);
        smp_out_object(out, NULL);
        smp_out_string(out, "name", param->name);
        smp_out_u64(out, "layers", lines[i].layers);
        smp_out_u64(out, "experts", param->count > 1 ? param->count : 0);
        out_shape(out, "shape", param, param->shape);
        smp_out_string(out, "split", smp_split_name(param->split));
        out_shape(out, "local_shape", param, local);
        smp_out_bool(out, "transposed", param->transposed);
        smp_out_end_object(out);
    }
    smp_out_end_array(out);
}

smp_status smp_model_describe(const smp_model *model, uint32_t tensor_degree, bool json,
                              FILE *stream, smp_errors *errors)
{
    size_t n;
    if (tensor_degree == 0) {
        return smp_fail(errors, SMP_INPUT, NULL, "tensor degree 0: must be at least 1");
    }
    smp_arena *arena = smp_arena_create();
    line *lines = collect(model, arena, &n);
    if (json) {
        smp_json_out out = {.first = true};
        smp_out_object(&out, NULL);
        out_head(&out, model);
        out_table(&out, model, lines, n, tensor_degree);
        smp_out_end_object(&out);
        fprintf(stream, "%s\n", out.text.data);
        smp_text_free(&out.text);
    } else {
        print_head(model, stream);
        print_table(model, lines, n, tensor_degree, arena, stream);
    }
    smp_arena_destroy(arena);
    return smp_stream_check(stream, "the description of the model", errors);
}
