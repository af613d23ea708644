/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models: exact counts against closed forms and published counts, defaults, nulls and
 * aliases of config.json, refusals by name, every broken rule at once, tensor splits.
 */
#include "config.h"

#include "base/json.h"
#include "base/numeric.h"
#include "model/family.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ----------------------------------------------------------------- helpers */

static smp_model *parse(const char *text)
{
    smp_errors *errors = smp_errors_create();
    smp_model *model = NULL;
    smp_status status = smp_model_parse(text, strlen(text), "t.json", "t", errors, &model);
    if (status != SMP_OK) {
        print_message("%s\n", smp_errors_text(errors, 0));
    }
    assert_int_equal(status, SMP_OK);
    smp_errors_destroy(errors);
    return model;
}

/* The text must be refused with exactly n messages, and each word must stand in one. */
static void refused(const char *text, size_t n, const char *const *words)
{
    smp_errors *errors = smp_errors_create();
    smp_model *model = NULL;
    assert_int_equal(smp_model_parse(text, strlen(text), "t.json", "t", errors, &model),
                     SMP_INPUT);
    assert_null(model);
    for (size_t i = 0; words[i]; i++) {
        bool found = false;
        for (size_t k = 0; k < smp_errors_count(errors); k++) {
            found = found || strstr(smp_errors_text(errors, k), words[i]);
        }
        if (!found) {
            print_message("missing \"%s\" in: %s\n", words[i], smp_errors_text(errors, 0));
        }
        assert_true(found);
    }
    if (n != smp_errors_count(errors)) {
        for (size_t k = 0; k < smp_errors_count(errors); k++) {
            print_message("%s\n", smp_errors_text(errors, k));
        }
    }
    assert_int_equal(smp_errors_count(errors), n);
    smp_errors_destroy(errors);
}

#define REFUSED(text, n, ...) refused((text), (n), (const char *const[]){__VA_ARGS__, NULL})

static smp_model *shipped(const char *name)
{
    smp_errors *errors = smp_errors_create();
    smp_model *model = NULL;
    smp_status status = smp_model_read(name, errors, &model);
    if (status != SMP_OK) {
        print_message("%s\n", smp_errors_text(errors, 0));
    }
    assert_int_equal(status, SMP_OK);
    smp_errors_destroy(errors);
    return model;
}

static const smp_param *find_role(const smp_block *block, smp_role role)
{
    for (uint32_t i = 0; i < block->n_param; i++) {
        if (block->params[i].role == role) {
            return &block->params[i];
        }
    }
    return NULL;
}

/* ------------------------------------------------------------ closed forms */

/* llama: embedding and head 2Vh; a layer h(a d + 2 k d) + a d h + 3hf + 2h; final norm h. */
static uint64_t llama_count(uint64_t v, uint64_t h, uint64_t f, uint64_t l, uint64_t a,
                            uint64_t k, uint64_t d)
{
    return 2 * v * h + l * (2 * h * a * d + 2 * h * k * d + 3 * h * f + 2 * h) + h;
}

/* gpt2: Vh + Ph (tied) + layers (12h^2 + 13h) + 2h: 4h^2 + 4h attention, 8h^2 + 5h MLP, two
 * norms of 2h. */
static uint64_t gpt2_count(uint64_t v, uint64_t p, uint64_t h, uint64_t l)
{
    return v * h + p * h + l * (12 * h * h + 13 * h) + 2 * h;
}

static void count_active(const char *name, uint64_t expected, uint64_t active)
{
    smp_model *model = shipped(name);
    assert_string_equal(smp_model_name(model), name);
    if (smp_model_parameters(model) != expected) {
        print_message("%s\n", name);
    }
    assert_int_equal(smp_model_parameters(model), expected);
    assert_int_equal(smp_model_active_parameters(model), active);
    smp_model_destroy(model);
}

static void count(const char *name, uint64_t expected)
{
    count_active(name, expected, expected);
}

static void test_shipped_counts(void **state)
{
    (void)state;
    count("gpt2", gpt2_count(50257, 1024, 768, 12));
    count("gpt2-xl", gpt2_count(50257, 1024, 1600, 48));
    count("Llama-2-7B", llama_count(32000, 4096, 11008, 32, 32, 32, 128));
    count("Llama-2-13B", llama_count(32000, 5120, 13824, 40, 40, 40, 128));
    count("Llama-2-70B", llama_count(32000, 8192, 28672, 80, 64, 8, 128));
    count("Llama-3.1-8B", llama_count(128256, 4096, 14336, 32, 32, 8, 128));
    count("Llama-3.1-70B", llama_count(128256, 8192, 28672, 80, 64, 8, 128));
    count("Llama-3.1-405B", llama_count(128256, 16384, 53248, 126, 128, 8, 128));
    count("Mistral-7B", llama_count(32000, 4096, 14336, 32, 32, 8, 128));
    /* qwen3 adds two norms of head size a layer, qwen2 biases of q, k and v */
    count("Qwen3-8B", llama_count(151936, 4096, 12288, 36, 32, 8, 128) + 36 * 256);
    count("Qwen3-32B", llama_count(151936, 5120, 25600, 64, 64, 8, 128) + 64 * 256);
    count("Qwen2-7B", llama_count(152064, 3584, 18944, 28, 28, 4, 128) + 28 * (3584 + 1024));
    /* gpt_neox: as gpt2 without positions, the head not tied */
    count("gpt-neox-20b", gpt2_count(50432, 0, 6144, 44) + 50432ull * 6144);
}

/* Experts of width f are an MLP of width E f, of which a token sees k f; a router is E h. */
static void test_shipped_experts(void **state)
{
    (void)state;
    count_active("Mixtral-8x7B",
                 llama_count(32000, 4096, 8 * 14336, 32, 32, 8, 128) + 32 * 8 * 4096,
                 llama_count(32000, 4096, 2 * 14336, 32, 32, 8, 128) + 32 * 8 * 4096);
    count_active("Qwen3-30B-A3B",
                 llama_count(151936, 2048, 128 * 768, 48, 32, 4, 128) +
                     48 * (128 * 2048 + 256),
                 llama_count(151936, 2048, 8 * 768, 48, 32, 4, 128) + 48 * (128 * 2048 + 256));
    /* 671 B and 37 B in arXiv:2412.19437; q and kv_a with norms, kv_b, o; dense or experts */
    const uint64_t h = 7168, m = 3 * h * 2048;
    const uint64_t attention = h * 1536 + 1536 + 1536 * 128 * 192 + h * 576 + 512 +
                               512 * 128 * 256 + 128 * 128 * h + 2 * h;
    const uint64_t rest = 2 * 129280 * h + h + 61 * attention + 3 * 3 * h * 18432;
    count_active("DeepSeek-V3", rest + 58 * (257 * m + 256 * h + 256),
                 rest + 58 * (9 * m + 256 * h + 256));
}

/* ----------------------------------------------------------- published ones */

static const char *data_path(char *path, size_t n, const char *name, const char *suffix)
{
    const char *data = getenv("SMP_SHARED_DATA"), *src = getenv("srcdir");
    int got = data ? snprintf(path, n, "%s/%s%s", data, name, suffix)
                   : snprintf(path, n, "%s/../shared/data/%s%s", src ? src : ".", name, suffix);
    assert_true(got > 0 && (size_t)got < n);
    return path;
}

static void check_published(const cJSON *entry)
{
    char path[4096], name[256];
    smp_errors *errors = smp_errors_create();
    smp_model *model = NULL;
    const cJSON *expected = cJSON_GetObjectItemCaseSensitive(entry, "parameters");
    bool refuse = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(entry, "refuse"));
    snprintf(name, sizeof name, "models/%s", entry->string);
    smp_status status =
        smp_model_read(data_path(path, sizeof path, name, ".json"), errors, &model);
    if (status) {
        if (!refuse) {
            print_message("%s: %s\n", entry->string, smp_errors_text(errors, 0));
        }
        assert_true(refuse);
        /* refused for its family alone, and by name */
        assert_int_equal(status, SMP_INPUT);
        assert_non_null(strstr(smp_errors_text(errors, 0), "model_type \""));
        assert_non_null(strstr(smp_errors_text(errors, 0), "not a supported family"));
    } else {
        assert_false(refuse);
        if (cJSON_IsNumber(expected)) {
            if ((double)model->parameters != expected->valuedouble) {
                print_message("%s\n", entry->string);
            }
            assert_true((double)model->parameters == expected->valuedouble);
            const cJSON *active =
                cJSON_GetObjectItemCaseSensitive(entry, "active_parameters");
            assert_true((double)model->active_parameters ==
                        (cJSON_IsNumber(active) ? active : expected)->valuedouble);
            assert_int_equal(model->tied,
                             cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(entry, "tied")));
        }
    }
    smp_model_destroy(model);
    smp_errors_destroy(errors);
}

static void test_published_counts(void **state)
{
    char path[4096];
    (void)state;
    smp_errors *errors = smp_errors_create();
    smp_json *json = NULL;
    data_path(path, sizeof path, "models-parameters", ".json");
    if (smp_json_read(path, errors, &json) != SMP_OK) {
        smp_errors_destroy(errors);
        print_message("skipped: no %s\n", path);
        skip();
    }
    for (const cJSON *entry = smp_json_root(json)->child; entry; entry = entry->next) {
        check_published(entry);
    }
    smp_json_destroy(json);
    smp_errors_destroy(errors);
}

/* -------------------------------------------------- defaults, nulls, aliases */

static void test_absent_keys(void **state)
{
    (void)state;
    smp_model *model = parse("{\"model_type\": \"gpt2\"}");
    assert_int_equal(model->parameters, gpt2_count(50257, 1024, 768, 12));
    assert_true(model->tied);
    assert_true(model->embedding_dropout == 0.1);
    assert_int_equal(model->position, SMP_POSITION_LEARNED);
    assert_int_equal(model->kinds[0].mlp.activation, SMP_ACT_GELU_TANH);
    smp_model_destroy(model);
    model = parse("{\"model_type\": \"llama\"}");
    assert_int_equal(model->parameters, llama_count(32000, 4096, 11008, 32, 32, 32, 128));
    assert_int_equal(model->max_positions, 2048);
    assert_true(model->norm_eps == 1e-6);
    assert_false(model->tied);
    smp_model_destroy(model);
    model = parse("{\"model_type\": \"mistral\"}");
    assert_int_equal(model->kinds[0].attention.kv_heads, 8);
    assert_int_equal(model->kinds[0].attention.window, 4096);
    smp_model_destroy(model);
    model = parse("{\"model_type\": \"gpt_neox\"}");
    assert_true(model->rotary_frac == 0.25);
    assert_true(model->kinds[0].parallel_residual);
    assert_true(model->kinds[0].attention.out_bias);
    smp_model_destroy(model);
    model = parse("{\"model_type\": \"qwen3\", \"hidden_size\": 1024}");
    assert_int_equal(model->kinds[0].attention.head_dim, 128); /* not hidden / heads */
    assert_true(model->kinds[0].attention.qk_norm);
    smp_model_destroy(model);
}

static void test_nulls_and_aliases(void **state)
{
    (void)state;
    smp_model *model = parse("{\"model_type\": \"gpt2\", \"n_inner\": null, \"n_embd\": 64,"
                             "\"num_hidden_layers\": 3, \"num_attention_heads\": 4}");
    assert_int_equal(model->kinds[0].mlp.ffn, 256);
    assert_int_equal(model->n_layer, 3);
    assert_int_equal(model->kinds[0].attention.heads, 4);
    smp_model_destroy(model);
    model = parse("{\"model_type\": \"mistral\", \"num_key_value_heads\": null,"
                  "\"head_dim\": null, \"sliding_window\": null}");
    assert_int_equal(model->kinds[0].attention.kv_heads, 32);
    assert_int_equal(model->kinds[0].attention.head_dim, 128);
    assert_int_equal(model->kinds[0].attention.window, 0);
    smp_model_destroy(model);
    REFUSED("{\"model_type\": \"llama\", \"hidden_size\": null}", 1, "hidden_size null");
}

static void test_windows_make_kinds(void **state)
{
    (void)state;
    smp_model *model = parse("{\"model_type\": \"qwen2\", \"num_hidden_layers\": 4,"
                             "\"use_sliding_window\": false, \"max_window_layers\": 3}");
    assert_int_equal(model->n_kind, 1);
    assert_int_equal(model->kinds[0].attention.window, 0);
    smp_model_destroy(model);
    model = parse("{\"model_type\": \"qwen2\", \"num_hidden_layers\": 4,"
                  "\"use_sliding_window\": true, \"max_window_layers\": 3}");
    assert_int_equal(model->n_kind, 2);
    assert_int_equal(smp_model_block(model, 2)->attention.window, 0);
    assert_int_equal(smp_model_block(model, 3)->attention.window, 4096);
    smp_model_destroy(model);
    model = parse("{\"model_type\": \"qwen2\", \"num_hidden_layers\": 4,"
                  "\"use_sliding_window\": true, \"layer_types\": [\"sliding_attention\","
                  "\"full_attention\", \"full_attention\", \"full_attention\"]}");
    assert_int_equal(smp_model_block(model, 0)->attention.window, 4096);
    assert_int_equal(smp_model_block(model, 3)->attention.window, 0);
    smp_model_destroy(model);
    REFUSED("{\"model_type\": \"qwen2\", \"layer_types\": [\"mamba\"]}", 2, "mamba",
            "1 entries");
}

static void test_rope(void **state)
{
    (void)state;
    smp_model *model = parse(
        "{\"model_type\": \"llama\", \"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8,"
        "\"low_freq_factor\": 1, \"high_freq_factor\": 4,"
        "\"original_max_position_embeddings\": 8192}}");
    assert_int_equal(model->rope_scaling, SMP_ROPE_LLAMA3);
    assert_true(model->rope_factor == 8 && model->rope_high_freq == 4);
    assert_true(model->rope_original_positions == 8192);
    smp_model_destroy(model);
    model = parse("{\"model_type\": \"llama\", \"rope_parameters\": {\"rope_type\": \"linear\","
                  "\"factor\": 2.5, \"rope_theta\": 123456}}");
    assert_int_equal(model->rope_scaling, SMP_ROPE_LINEAR);
    assert_true(model->rope_theta == 123456 && model->rope_factor == 2.5);
    smp_model_destroy(model);
    /* yarn: 0.1 ln 4 + 1 = 1.138629... */
    model = parse("{\"model_type\": \"qwen3\", \"rope_scaling\": {\"rope_type\": \"yarn\","
                  "\"factor\": 4, \"original_max_position_embeddings\": 32768}}");
    assert_true(model->rope_attention_factor > 1.13862 &&
                model->rope_attention_factor < 1.13864);
    assert_true(model->rope_beta_fast == 32 && model->rope_beta_slow == 1);
    smp_model_destroy(model);
    REFUSED("{\"model_type\": \"llama\", \"rope_scaling\": {\"type\": \"spiral\"}}", 1,
            "spiral", "$.rope_scaling.type");
    REFUSED("{\"model_type\": \"llama\", \"rope_scaling\": {\"type\": \"linear\"}}", 1,
            "factor");
    REFUSED("{\"model_type\": \"llama\", \"rope_scaling\": {\"type\": \"linear\","
            "\"factor\": 2, \"rope_type\": \"dynamic\"}}", 1, "must say the same");
}

/* ----------------------------------------------------------------- bad input */

static void test_refused_by_name(void **state)
{
    (void)state;
    REFUSED("{}", 1, "model_type is missing", "llama");
    REFUSED("{\"auto_map\": {\"AutoConfig\": \"x.Y\"}}", 1, "auto_map");
    REFUSED("{\"model_type\": \"nemotron_h\"}", 1, "nemotron_h", "gpt2", "qwen3",
            "t.json:1:16");
    REFUSED("{\"model_type\": \"x\", \"text_config\": {\"model_type\": \"y\"}}", 1, "\"y\"");
    REFUSED("{\"model_type\": 7}", 1, "model_type");
    REFUSED("[]", 1, "must be an object");
    REFUSED("{\"model_type\": \"gpt2\", \"add_cross_attention\": true}", 1,
            "add_cross_attention", "cross attention");
    REFUSED("{\"model_type\": \"gpt2\", \"scale_attn_weights\": false}", 1,
            "scale_attn_weights");
    smp_model *model = parse("{\"model_type\": \"gpt2\", \"limit\": [0, Infinity],"
                             "\"NaN\": \"Infinity\"}");
    smp_model_destroy(model);
    model = parse("{\"model_type\": \"gpt2\", \"quantization_config\": {\"a\": 1},"
                             "\"is_decoder\": false, \"add_cross_attention\": false,"
                             "\"torch_dtype\": \"bfloat16\", \"never_heard_of\": [1, 2]}");
    smp_model_destroy(model);
}

static void test_all_rules_at_once(void **state)
{
    (void)state;
    REFUSED("{\"model_type\": \"llama\",\n"
            " \"num_attention_heads\": 24, \"hidden_size\": 4096,\n"
            " \"num_key_value_heads\": 7,\n"
            " \"hidden_act\": \"sine\", \"tie_word_embeddings\": \"yes\",\n"
            " \"vocab_size\": 0, \"rope_theta\": -1}", 6,
            "num_attention_heads 24: must divide hidden_size 4096",
            "num_key_value_heads 7: must divide num_attention_heads 24 (legal: 1, 2, 3, 4, 6",
            "t.json:3:25", "sine", "tie_word_embeddings", "vocab_size", "rope_theta");
    REFUSED("{\"model_type\": \"llama\", \"head_dim\": 127}", 1, "head_dim", "127", "even");
    REFUSED("{\"model_type\": \"llama\", \"num_hidden_layers\": 9223372036854775808}", 1,
            "num_hidden_layers");
    REFUSED("{\"model_type\": \"llama\", \"hidden_size\": 1e308}", 1, "hidden_size");
    REFUSED("{\"model_type\": \"llama\", \"hidden_size\": 4096.5}", 1, "hidden_size");
    REFUSED("{\"model_type\": \"llama\", \"hidden_size\": -1}", 1, "hidden_size");
    REFUSED("{\"model_type\": \"llama\", \"hidden_size\": \"4096\"}", 1, "hidden_size");
    REFUSED("{\"model_type\": \"llama\", \"hidden_size\": NaN}", 1, "hidden_size");
    REFUSED("{\"model_type\": \"llama\", \"head_dim\": Infinity, \"rope_theta\": -Infinity}", 2,
            "head_dim", "rope_theta", "t.json:1:");
    REFUSED("{\"model_type\": \"llama\", \"model_type\": \"llama\"}", 1, "model_type");
}

static void test_no_such_model(void **state)
{
    (void)state;
    smp_errors *errors = smp_errors_create();
    smp_model *model = NULL;
    assert_int_not_equal(smp_model_read("no-such-model", errors, &model), SMP_OK);
    assert_null(model);
    assert_int_equal(smp_errors_count(errors), 1);
    smp_errors_destroy(errors);
}

static void test_name_in_any_case(void **state)
{
    (void)state;
    smp_model *model = shipped("llama-3.1-70b");
    assert_string_equal(smp_model_name(model), "Llama-3.1-70B");
    smp_model_destroy(model);
}

/* ------------------------------------------------------------------- splits */

static void test_tensor_split(void **state)
{
    (void)state;
    smp_model *model = shipped("Llama-3.1-70B");
    const smp_block *block = smp_model_block(model, 0);
    const uint64_t h = 8192;
    assert_int_equal(
        smp_param_local_elems(model, block, find_role(block, SMP_ROLE_Q_W), 8), h * h / 8);
    assert_int_equal(
        smp_param_local_elems(model, block, find_role(block, SMP_ROLE_K_W), 8), 128 * h);
    /* 8 key-value heads on 16 ranks: each head twice */
    assert_int_equal(
        smp_param_local_elems(model, block, find_role(block, SMP_ROLE_K_W), 16), 128 * h);
    assert_int_equal(
        smp_param_local_elems(model, block, find_role(block, SMP_ROLE_O_W), 8), h * h / 8);
    assert_int_equal(
        smp_param_local_elems(model, block, find_role(block, SMP_ROLE_NORM1_W), 8), h);
    smp_model_destroy(model);
    model = shipped("gpt2");
    block = smp_model_block(model, 0);
    /* 50257 on 8 ranks: padded to 50264 */
    assert_int_equal(smp_param_local_elems(model, NULL, &model->root[0], 8), 6283 * 768);
    assert_true(find_role(block, SMP_ROLE_Q_W)->transposed);
    assert_int_equal(
        smp_param_local_elems(model, block, find_role(block, SMP_ROLE_DOWN_B), 8), 768);
    smp_model_destroy(model);
    assert_int_equal(smp_local_kv_heads(2, 8), 1);
    assert_int_equal(smp_local_vocab(50257, 8), 6283);
}

static char *described(const smp_model *model, uint32_t degree, bool json)
{
    char *text = NULL;
    size_t n = 0;
    FILE *stream = open_memstream(&text, &n);
    smp_errors *errors = smp_errors_create();
    assert_non_null(stream);
    assert_int_equal(smp_model_describe(model, degree, json, stream, errors), SMP_OK);
    assert_int_equal(fclose(stream), 0);
    smp_errors_destroy(errors);
    return text;
}

static void check_columns(const smp_model *model)
{
    char *text = described(model, 8, false);
    for (const char *at = text; *at;) {
        size_t n = strcspn(at, "\n");
        if (n > 80) {
            print_message("%.*s\n", (int)n, at);
        }
        assert_true(n <= 80);
        at += n + (at[n] == '\n');
    }
    free(text);
}

static void check_order(const smp_param *params, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        if (params[i - 1].role >= params[i].role) {
            print_message("%s before %s\n", params[i - 1].name, params[i].name);
        }
        assert_true(params[i - 1].role < params[i].role);
    }
}

/* Every family, from defaults alone: parameters lie in the order of their roles, each role
 * once, in every kind of block, and the description fits in 80 columns. */
static void test_every_family(void **state)
{
    (void)state;
    for (size_t f = 0; smp_families()[f]; f++) {
        char text[256];
        const char *family = smp_families()[f]->model_type;
        snprintf(text, sizeof text, "{\"model_type\": \"%s\"%s}", family,
                 strcmp(family, "deepseek_v2") == 0 ? ", \"num_experts_per_tok\": 6" : "");
        print_message("%s\n", family);
        smp_model *model = parse(text);
        for (uint32_t kind = 0; kind < model->n_kind; kind++) {
            check_order(model->kinds[kind].params, model->kinds[kind].n_param);
        }
        check_order(model->root, model->n_root);
        check_columns(model);
        assert_true(model->parameters > 1000000);
        assert_true(model->active_parameters <= model->parameters);
        smp_model_destroy(model);
    }
}

/* ------------------------------------------------------------------ experts */

static void test_experts(void **state)
{
    (void)state;
    /* mixtral: 8 experts of 3 h f each, 2 of them active, and a router of 8 h a layer */
    const uint64_t h = 4096, f = 14336;
    smp_model *model = parse("{\"model_type\": \"mixtral\"}");
    uint64_t dense = llama_count(32000, h, 0, 32, 32, 8, 128) + 32 * 8 * h;
    assert_int_equal(model->parameters, dense + 32 * 8 * 3 * h * f);
    assert_int_equal(model->active_parameters, dense + 32 * 2 * 3 * h * f);
    smp_model_destroy(model);
    /* leading dense layers, and layers named as dense */
    model = parse("{\"model_type\": \"deepseek_v3\"}");
    assert_int_equal(smp_model_block(model, 2)->moe.experts, 0);
    assert_int_equal(smp_model_block(model, 3)->moe.experts, 256);
    assert_true(smp_model_block(model, 3)->moe.sigmoid_scores);
    smp_model_destroy(model);
    model = parse("{\"model_type\": \"qwen3_moe\", \"decoder_sparse_step\": 2,"
                  "\"mlp_only_layers\": [3]}");
    assert_int_equal(smp_model_block(model, 0)->moe.experts, 0);
    assert_int_equal(smp_model_block(model, 1)->moe.experts, 128);
    assert_int_equal(smp_model_block(model, 3)->moe.experts, 0);
    smp_model_destroy(model);
    REFUSED("{\"model_type\": \"mixtral\", \"num_experts_per_tok\": 9}", 1,
            "num_experts_per_tok 9", "8 experts");
    REFUSED("{\"model_type\": \"deepseek_v3\", \"n_group\": 7, \"scoring_func\": \"max\","
            "\"moe_layer_freq\": 2}", 3, "n_group 7", "max", "moe_layer_freq");
}

/* The text model of a nested config: a text_config of ours counts as that text model. */
/* llama4 by lists: rope (1) and with it chunks, and which layers have experts. */
static void check_layer_lists(void)
{
    smp_model *model = parse("{\"model_type\": \"llama4_text\", \"num_hidden_layers\": 4, "
                             "\"no_rope_layers\": [0, 1, 1, 0], \"moe_layers\": [1, 3]}");
    for (uint32_t layer = 0; layer < 4; layer++) {
        const smp_block *block = smp_model_block(model, layer);
        bool rotates = layer == 1 || layer == 2;
        assert_int_equal(block->attention.no_rope, !rotates);
        assert_int_equal(block->attention.window, rotates ? 8192 : 0);
        assert_int_equal(block->attention.qk_norm_bare, rotates);
        assert_int_equal(block->attention.temperature > 0, !rotates);
        assert_int_equal(block->moe.experts, layer % 2 == 1 ? 16 : 0);
    }
    smp_model_destroy(model);
    REFUSED("{\"model_type\": \"llama4_text\", \"num_hidden_layers\": 3, "
            "\"no_rope_layers\": [0, 2], \"moe_layers\": [3, 0.5], "
            "\"layer_types\": [\"full_attention\", \"sliding_attention\", "
            "\"chunked_attention\"]}", 5,
            "no_rope_layers: entry 1 must be an integer from 0 to 1",
            "no_rope_layers has 2 entries: must have one for each of 3 layers",
            "moe_layers: entry 0 must be an integer from 0 to 2", "moe_layers: entry 1",
            "legal: full_attention, chunked_attention");
}

static void test_nested(void **state)
{
    (void)state;
    const char *text = "{\"model_type\": \"llava\","
                       "\"text_config\": {\"model_type\": \"llama\"},"
                       "\"vision_config\": {}, \"tie_word_embeddings\": true}";
    smp_model *model = parse(text);
    assert_int_equal(model->parameters,
                     llama_count(32000, 4096, 11008, 32, 32, 32, 128) - 32000ull * 4096);
    assert_string_equal(model->family, "llama");
    smp_model_destroy(model);
    /* llama4 scout: 48 layers of 16 experts and one shared of 3 h f, h = 5120, f = 8192 */
    const uint64_t h = 5120, f = 8192;
    model = parse("{\"model_type\": \"llama4\", \"text_config\":"
                  "{\"model_type\": \"llama4_text\"}}");
    assert_int_equal(model->parameters, llama_count(202048, h, 17 * f, 48, 40, 8, 128) +
                                            48 * 16 * h);
    assert_true(smp_model_block(model, 3)->attention.no_rope);
    assert_int_equal(smp_model_block(model, 3)->attention.window, 0);
    assert_int_equal(smp_model_block(model, 2)->attention.window, 8192);
    assert_true(smp_model_block(model, 2)->attention.chunked);
    assert_true(smp_model_block(model, 2)->attention.qk_norm_bare);
    assert_false(smp_model_block(model, 3)->attention.qk_norm_bare);
    assert_true(smp_model_block(model, 2)->attention.temperature <= 0);
    assert_true(fabs(smp_model_block(model, 3)->attention.temperature - 0.1) < 1e-15);
    assert_int_equal(smp_model_block(model, 3)->attention.temperature_floor, 8192);
    assert_true(smp_model_block(model, 0)->moe.weighs_input);
    smp_model_destroy(model);
    check_layer_lists();
}

/* ----------------------------------------------------------------- describe */

static void test_describe_json(void **state)
{
    (void)state;
    smp_model *model = shipped("Llama-3.1-70B");
    char *text = described(model, 8, true);
    cJSON *root = cJSON_Parse(text);
    assert_non_null(root);
    assert_string_equal(cJSON_GetObjectItem(root, "family")->valuestring, "llama");
    assert_true(cJSON_GetObjectItem(root, "parameters")->valuedouble == 70553706496.0);
    assert_true(cJSON_IsFalse(cJSON_GetObjectItem(root, "tied")));
    assert_true(cJSON_GetObjectItem(root, "layers")->valuedouble == 80);
    /* the table adds up to the count */
    const cJSON *table = cJSON_GetObjectItem(root, "parameters_table");
    double sum = 0;
    for (const cJSON *row = table->child; row; row = row->next) {
        double layers = cJSON_GetObjectItem(row, "layers")->valuedouble;
        double elems = layers > 0 ? layers : 1;
        for (const cJSON *d = cJSON_GetObjectItem(row, "shape")->child; d; d = d->next) {
            elems *= d->valuedouble;
        }
        sum += elems;
    }
    assert_true(sum == 70553706496.0);
    cJSON_Delete(root);
    free(text);
    smp_model_destroy(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shipped_counts),
        cmocka_unit_test(test_shipped_experts),
        cmocka_unit_test(test_published_counts),
        cmocka_unit_test(test_absent_keys),
        cmocka_unit_test(test_nulls_and_aliases),
        cmocka_unit_test(test_windows_make_kinds),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_refused_by_name),
        cmocka_unit_test(test_all_rules_at_once),
        cmocka_unit_test(test_no_such_model),
        cmocka_unit_test(test_name_in_any_case),
        cmocka_unit_test(test_tensor_split),
        cmocka_unit_test(test_every_family),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_nested),
        cmocka_unit_test(test_describe_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
