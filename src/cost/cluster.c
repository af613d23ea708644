/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a cluster: nodes, GPUs, links, network, host, price.  The format is documented in
 * docs/costs.md; every figure names its source, and unknown keys are refused.
 */
#include "config.h"

#include "cost/figure.h"

#include "base/host.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_NODES = 65536, MAX_GPUS_PER_NODE = 1024, MAX_NICS = 1024 };

static const char *const cluster_keys[] = {
    "format", "title", "gpu", "nodes", "gpus_per_node", "gpu_memory_bytes", "link", "network",
    "host", "price", NULL};
static const char *const link_keys[] = {"kind", "Bps", "switch_reduction", NULL};
static const char *const network_keys[] = {"nics", "nic_Bps", "latency_s", "near_gpu", NULL};
static const char *const host_keys[] = {"processor", "memory_bytes", "pcie_Bps",
                                        "gpus_per_link", NULL};
static const char *const price_keys[] = {"per_gpu_hour", "currency", NULL};
static const char *const link_words[] = {"pcie", "nvlink", "nvlink-mesh", "memory", NULL};
static const char *const processor_words[] = {"intel", "amd", "other", NULL};

/* Index of the string at `key` in `words`, or -1 after a message. */
static int read_word(const smp_reader *r, const char *key, const char *const *words)
{
    const char *text = NULL;
    if (!smp_read_string(r, key, true, &text)) {
        return -1;
    }
    smp_text legal = {0};
    int found = -1;
    for (int i = 0; words[i] != NULL; i++) {
        smp_text_add(&legal, "%s%s", i == 0 ? "" : ", ", words[i]);
        if (strcmp(text, words[i]) == 0) {
            found = i;
        }
    }
    if (found < 0) {
        const smp_place place = smp_json_place(r->json, smp_read_member(r, key, false));
        (void)smp_fail(r->errors, SMP_INPUT, &place, "%s \"%s\": must be one of %s", key, text,
                       legal.data);
    }
    smp_text_free(&legal);
    return found;
}

static uint32_t read_count(const smp_reader *r, const char *key, bool required, uint64_t low,
                           uint64_t high, uint32_t otherwise)
{
    uint64_t value = otherwise;
    (void)smp_read_u64(r, key, required, low, high, &value);
    return (uint32_t)value;
}

static uint32_t host_cores(void)
{
    const uint32_t cores = smp_host_processors();
    return cores > MAX_GPUS_PER_NODE ? MAX_GPUS_PER_NODE : cores;
}

/* "auto": what this host has. */
static bool is_auto(const cJSON *value)
{
    return cJSON_IsString(value) && strcmp(value->valuestring, "auto") == 0;
}

static void read_link(const smp_reader *r, smp_cluster *cluster)
{
    smp_reader link;
    if (!smp_read_object(r, "link", true, &link)) {
        return;
    }
    smp_read_reject_unknown(&link, link_keys);
    static const smp_link_kind kinds[] = {SMP_LINK_PCIE, SMP_LINK_NVLINK, SMP_LINK_MESH,
                                          SMP_LINK_MEMORY};
    const int word = read_word(&link, "kind", link_words);
    cluster->link = word < 0 ? SMP_LINK_PCIE : kinds[word];
    (void)smp_figure_read(&link, cluster->arena, "Bps", true, 1e6, 1e15, NULL,
                          &cluster->link_Bps);
    (void)smp_read_bool(&link, "switch_reduction", false, &cluster->nvls);
    if (cluster->nvls && word >= 0 && cluster->link != SMP_LINK_NVLINK) {
        const smp_place place =
            smp_json_place(r->json, smp_read_member(&link, "switch_reduction", false));
        (void)smp_fail(r->errors, SMP_INPUT, &place,
                       "switch_reduction true: needs link kind nvlink, here \"%s\"",
                       link_words[word]);
    }
}

static void read_network(const smp_reader *r, smp_cluster *cluster)
{
    smp_reader network;
    if (!smp_read_object(r, "network", false, &network)) {
        return;
    }
    smp_read_reject_unknown(&network, network_keys);
    cluster->nics = read_count(&network, "nics", true, 1, MAX_NICS, 0);
    (void)smp_figure_read(&network, cluster->arena, "nic_Bps", true, 1e6, 1e15, NULL,
                          &cluster->nic_Bps);
    (void)smp_figure_read(&network, cluster->arena, "latency_s", true, 0.0, 1.0, NULL,
                          &cluster->nic_latency_s);
    (void)smp_read_bool(&network, "near_gpu", false, &cluster->nic_near);
}

static void read_host(const smp_reader *r, smp_cluster *cluster)
{
    smp_reader host;
    if (!smp_read_object(r, "host", true, &host)) {
        return;
    }
    smp_read_reject_unknown(&host, host_keys);
    cluster->amd_host = read_word(&host, "processor", processor_words) == 1;
    const double here = (double)smp_host_memory_bytes();
    (void)smp_figure_read(&host, cluster->arena, "memory_bytes", true, 1e6, 1e16, &here,
                          &cluster->host_memory_bytes);
    (void)smp_figure_read(&host, cluster->arena, "pcie_Bps", true, 1e6, 1e15, NULL,
                          &cluster->pcie_Bps);
    cluster->gpus_per_host_link =
        read_count(&host, "gpus_per_link", false, 1, MAX_GPUS_PER_NODE, 1);
}

static void read_price(const smp_reader *r, smp_cluster *cluster)
{
    cluster->price_per_gpu_hour = (smp_figure){0.0, "not given"};
    cluster->currency = "USD";
    smp_reader price;
    if (!smp_read_object(r, "price", false, &price)) {
        return;
    }
    smp_read_reject_unknown(&price, price_keys);
    (void)smp_figure_read(&price, cluster->arena, "per_gpu_hour", true, 0.0, 1e6, NULL,
                          &cluster->price_per_gpu_hour);
    (void)smp_figure_text(&price, cluster->arena, "currency", true, &cluster->currency);
}

static void read_counts(const smp_reader *r, smp_cluster *cluster)
{
    cluster->nodes_in_file = read_count(r, "nodes", true, 1, MAX_NODES, 1);
    cluster->nodes = cluster->nodes_in_file;
    if (is_auto(cJSON_GetObjectItemCaseSensitive(r->object, "gpus_per_node"))) {
        cluster->gpus_per_node = host_cores();
    } else {
        cluster->gpus_per_node =
            read_count(r, "gpus_per_node", true, 1, MAX_GPUS_PER_NODE, 1);
    }
    cluster->gpus = cluster->nodes * cluster->gpus_per_node;
}

/* Rules between keys. */
static void check_cluster(const smp_reader *r, const smp_cluster *cluster)
{
    const smp_place place = smp_json_place(r->json, r->object);
    if (cluster->nodes > 1 && cluster->nics == 0) {
        (void)smp_fail(r->errors, SMP_INPUT, &place,
                       "nodes %u: several nodes need a \"network\" with nics, nic_Bps and "
                       "latency_s",
                       cluster->nodes);
    }
    if (cluster->gpus_per_host_link > cluster->gpus_per_node) {
        (void)smp_fail(r->errors, SMP_INPUT, &place,
                       "host.gpus_per_link %u: must be at most gpus_per_node, %u",
                       cluster->gpus_per_host_link, cluster->gpus_per_node);
    }
}

/* The value of a figure that was "auto" becomes the number found. */
static void write_figure(cJSON *object, const char *key, double value)
{
    cJSON *figure = cJSON_GetObjectItemCaseSensitive(object, key);
    if (is_auto(cJSON_GetObjectItemCaseSensitive(figure, "value"))) {
        (void)cJSON_ReplaceItemInObjectCaseSensitive(figure, "value",
                                                      cJSON_CreateNumber(value));
    }
}

/* Text for plan files: as read, but with "auto" written out, so that a plan made here says the
 * same elsewhere. */
static char *cluster_text(const smp_cluster *cluster, const cJSON *root)
{
    cJSON *copy = cJSON_Duplicate(root, 1);
    if (is_auto(cJSON_GetObjectItemCaseSensitive(copy, "gpus_per_node"))) {
        (void)cJSON_ReplaceItemInObjectCaseSensitive(
            copy, "gpus_per_node", cJSON_CreateNumber((double)cluster->gpus_per_node));
    }
    write_figure(copy, "gpu_memory_bytes", cluster->memory_bytes.value);
    write_figure(cJSON_GetObjectItemCaseSensitive(copy, "host"), "memory_bytes",
                 cluster->host_memory_bytes.value);
    smp_json_out out = {0};
    smp_out_value(&out, NULL, copy);
    char *text = smp_arena_strndup(cluster->arena, out.text.data, out.text.length);
    smp_text_free(&out.text);
    cJSON_Delete(copy);
    return text;
}

static smp_status cluster_from_json(const smp_json *json, const char *name, smp_errors *errors,
                                    smp_cluster **cluster_p)
{
    const size_t before = smp_errors_count(errors);
    smp_reader r;
    if (!smp_figure_root(json, errors, &r)) {
        return SMP_INPUT;
    }
    smp_arena *arena = smp_arena_create();
    smp_cluster *cluster = SMP_ARENA_NEW(arena, smp_cluster);
    cluster->arena = arena;
    cluster->name = smp_figure_name(arena, name);
    cluster->title = cluster->name;
    smp_read_reject_unknown(&r, cluster_keys);
    smp_figure_format(&r, "smp-cluster-1");
    (void)smp_figure_text(&r, arena, "title", false, &cluster->title);
    (void)smp_figure_text(&r, arena, "gpu", true, &cluster->gpu);
    read_counts(&r, cluster);
    const double share = (double)smp_host_memory_bytes() / (double)cluster->gpus_per_node;
    (void)smp_figure_read(&r, arena, "gpu_memory_bytes", true, 1e6, 1e16, &share,
                          &cluster->memory_bytes);
    cluster->cores = cluster->gpus_per_node;
    cluster->memory_in_file_bytes = cluster->memory_bytes.value;
    read_link(&r, cluster);
    read_network(&r, cluster);
    read_host(&r, cluster);
    read_price(&r, cluster);
    if (smp_errors_count(errors) == before) {
        check_cluster(&r, cluster);
    }
    if (smp_errors_count(errors) != before) {
        smp_arena_destroy(arena);
        return SMP_INPUT;
    }
    cluster->text = cluster_text(cluster, smp_json_root(json));
    *cluster_p = cluster;
    return SMP_OK;
}

smp_status smp_cluster_read(const char *name_or_path, smp_errors *errors,
                            smp_cluster **cluster_p)
{
    char *path = NULL;
    smp_json *json = NULL;
    smp_status status = smp_figure_load("clusters", name_or_path, errors, &path, &json);
    if (status != SMP_OK) {
        return status;
    }
    status = cluster_from_json(json, path, errors, cluster_p);
    smp_json_destroy(json);
    free(path);
    return status;
}

smp_status smp_cluster_parse(const char *text, size_t n, const char *place_name,
                             const char *name, smp_errors *errors, smp_cluster **cluster_p)
{
    smp_json *json = NULL;
    smp_status status = smp_json_parse(text, n, place_name, errors, &json);
    if (status != SMP_OK) {
        return status;
    }
    status = cluster_from_json(json, name, errors, cluster_p);
    smp_json_destroy(json);
    return status;
}

void smp_cluster_destroy(smp_cluster *cluster)
{
    if (cluster != NULL) {
        smp_arena_destroy(cluster->arena);
    }
}

const char *smp_cluster_name(const smp_cluster *cluster) { return cluster->name; }
uint32_t smp_cluster_nodes(const smp_cluster *cluster) { return cluster->nodes; }
uint32_t smp_cluster_gpus_per_node(const smp_cluster *cluster)
{
    return cluster->gpus_per_node;
}
uint32_t smp_cluster_gpus(const smp_cluster *cluster) { return cluster->gpus; }
const char *smp_cluster_gpu(const smp_cluster *cluster) { return cluster->gpu; }

static smp_status need_network(const smp_cluster *cluster, const char *option, uint32_t count,
                               uint32_t nodes, smp_errors *errors)
{
    if (nodes <= 1 || cluster->nics > 0) {
        return SMP_OK;
    }
    const smp_place place = {option, 0, 0, NULL};
    return smp_fail(errors, SMP_INPUT, &place,
                    "%u: cluster %s has no network, so one node of %u GPUs is the most", count,
                    cluster->name, cluster->gpus_per_node);
}

smp_status smp_cluster_set_nodes(smp_cluster *cluster, uint32_t nodes, smp_errors *errors)
{
    if (nodes < 1 || nodes > MAX_NODES) {
        const smp_place place = {"--nodes", 0, 0, NULL};
        return smp_fail(errors, SMP_INPUT, &place, "%u: must be from 1 to %d", nodes,
                        MAX_NODES);
    }
    const smp_status status = need_network(cluster, "--nodes", nodes, nodes, errors);
    if (status != SMP_OK) {
        return status;
    }
    cluster->nodes = nodes;
    cluster->gpus = nodes * cluster->gpus_per_node;
    return SMP_OK;
}

/* Ranks that are threads of one host may outnumber its cores: they take turns, and share the
 * memory of those in the file. */
static void crowd_host(smp_cluster *cluster, uint32_t gpus)
{
    const uint32_t ranks = gpus > cluster->cores ? gpus : cluster->cores;
    cluster->gpus_per_node = ranks;
    cluster->memory_bytes.value =
        cluster->memory_in_file_bytes * (double)cluster->cores / (double)ranks;
}

smp_status smp_cluster_set_gpus(smp_cluster *cluster, uint32_t gpus, smp_errors *errors)
{
    if (cluster->link == SMP_LINK_MEMORY && cluster->nics == 0 && gpus >= 1 &&
        gpus <= MAX_GPUS_PER_NODE) {
        crowd_host(cluster, gpus);
    }
    const uint32_t most = MAX_NODES * cluster->gpus_per_node;
    if (gpus < 1 || gpus > most) {
        const smp_place place = {"--gpus", 0, 0, NULL};
        return smp_fail(errors, SMP_INPUT, &place, "%u: must be from 1 to %u", gpus, most);
    }
    const uint32_t nodes = (gpus - 1) / cluster->gpus_per_node + 1;
    const smp_status status = need_network(cluster, "--gpus", gpus, nodes, errors);
    if (status != SMP_OK) {
        return status;
    }
    cluster->nodes = nodes;
    cluster->gpus = gpus;
    return SMP_OK;
}
