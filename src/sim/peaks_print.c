/* SPDX-License-Identifier: Apache-2.0 */
/* Peaks of memory as text and JSON, and what their moments are called. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "sim/peaks.h"

#include "sim/sim.h"

#include <string.h>

const smp_moment_text smp_moment_texts[SMP_MOMENTS] = {
    [SMP_MOMENT_INIT_DELAYED] = {"init", "delayed", "init, delayed", "",
                                 "each rank fills its shard in place"},
    [SMP_MOMENT_INIT_EVERY_RANK] = {"init", "every_rank", "init, on every rank",
                                    "whole models in fp32",
                                    "delayed_init=false: every rank makes the whole model"},
    [SMP_MOMENT_INIT_RANK0] = {"init", "rank0", "init, on rank 0, sent",
                               "the whole model in fp32",
                               "sent unit by unit through free places of the arena"},
    [SMP_MOMENT_FIRST_STEP] = {"first_step", NULL, "first step (= steady)", "",
                               "as the steady step: the arena has held the optimizer state "
                               "from the start"},
    [SMP_MOMENT_STEADY] = {"steady", NULL, "steady step", "", NULL},
    [SMP_MOMENT_SAVE_SHARDED] = {"save", "sharded", "save, sharded", "pinned pieces",
                                 "one replica writes, piece by piece"},
    [SMP_MOMENT_SAVE_ASYNC] = {"save", "sharded_async", "save, in background",
                               "snapshot of parameters and optimizer state",
                               "training goes on beside one replica's snapshot"},
    [SMP_MOMENT_SAVE_FULL] = {"save", "full", "save, by rank 0", "two tensors",
                              "tensor by tensor into a file, never whole on a GPU"},
    [SMP_MOMENT_LOAD_SAME] = {"load", "same_layout", "load, same layout", "pinned pieces",
                              "each rank reads its shard, piece by piece"},
    [SMP_MOMENT_LOAD_OTHER] = {"load", "other_layout", "load, other layout", "pinned pieces",
                               "each rank reads the slices that make up its shard"},
};

/* ------------------------------------------------------------------------- text */

static void add_verdict(smp_text *text, const smp_memory *memory, const smp_peak *peak)
{
    if (!peak->fits) {
        bool host = peak->host_bytes_per_node > memory->host_capacity_bytes;
        uint64_t short_bytes = host ? peak->host_bytes_per_node - memory->host_capacity_bytes
                                    : peak->device_bytes - memory->capacity_bytes;
        smp_text_add(text, "  %s%s", peak->counts ? "SHORT BY " : "not used; short by ",
                     smp_show_bytes(short_bytes));
    } else if (!peak->counts) {
        smp_text_add(text, "  not used");
    }
    smp_text_add(text, "\n");
}

void smp_text_peaks(smp_text *text, const smp_memory *memory)
{
    smp_text_add(text, "\nPeaks%29s%14s\n", "a GPU", "a node's host");
    for (int m = 0; m < SMP_MOMENTS; m++) {
        const smp_peak *peak = &memory->peaks[m];
        smp_text_add(text, "  %-22s%10s%14s", smp_moment_texts[m].title,
                     smp_show_bytes(peak->device_bytes),
                     smp_show_bytes(peak->host_bytes_per_node));
        add_verdict(text, memory, peak);
    }
    smp_text_add(text, "  %-22s%10s%14s  %s\n", "there is",
                 smp_show_bytes(memory->capacity_bytes),
                 smp_show_bytes(memory->host_capacity_bytes),
                 memory->fits ? "all in use fit" : "DOES NOT FIT");
}

void smp_text_peak_parts(smp_text *text, const smp_memory *memory)
{
    smp_text_add(text, "Communicators: NCCL's buffers on a GPU (estimates)\n");
    for (uint32_t c = 0; c < memory->n_comm; c++) {
        const smp_comm_memory *comm = &memory->comms[c];
        smp_text_add(text, "  %-20s%10s   %u ranks on %u node%s\n", comm->name,
                     smp_show_bytes(comm->bytes), comm->ranks, comm->nodes,
                     comm->nodes == 1 ? "" : "s");
    }
    smp_text_add(text, "%s\nWhat each peak consists of (~ estimate)\n",
                 memory->n_comm == 0 ? "  none\n" : "");
    for (int m = 0; m < SMP_MOMENTS; m++) {
        const smp_peak *peak = &memory->peaks[m];
        smp_text_add(text, "%s%s\n", smp_moment_texts[m].title,
                     peak->counts ? "" : " (not used)");
        if (peak->note) {
            smp_text_add(text, "  %s\n", peak->note);
        }
        for (uint32_t i = 0; i < peak->n_part; i++) {
            const smp_peak_part *part = &peak->parts[i];
            smp_text_add(text, "  %-8s%-44s%s%10s\n", part->host ? "host" : "GPU", part->name,
                         part->estimate ? "~" : " ", smp_show_bytes(part->bytes));
        }
    }
}

/* ------------------------------------------------------------------------- JSON */

static void out_peak(smp_json_out *out, const char *key, const smp_peak *peak)
{
    smp_out_object(out, key);
    smp_out_u64(out, "device_bytes", peak->device_bytes);
    smp_out_u64(out, "host_bytes_per_node", peak->host_bytes_per_node);
    smp_out_bool(out, "counts", peak->counts);
    smp_out_bool(out, "fits", peak->fits);
    if (peak->note) {
        smp_out_string(out, "note", peak->note);
    }
    smp_out_array(out, "parts");
    for (uint32_t i = 0; i < peak->n_part; i++) {
        smp_out_object(out, NULL);
        smp_out_string(out, "name", peak->parts[i].name);
        smp_out_string(out, "where", peak->parts[i].host ? "host" : "device");
        smp_out_u64(out, "bytes", peak->parts[i].bytes);
        smp_out_bool(out, "estimate", peak->parts[i].estimate);
        smp_out_end_object(out);
    }
    smp_out_end_array(out);
    smp_out_end_object(out);
}

static void out_comms(smp_json_out *out, const smp_memory *memory)
{
    smp_out_array(out, "communicators");
    for (uint32_t c = 0; c < memory->n_comm; c++) {
        smp_out_object(out, NULL);
        smp_out_string(out, "name", memory->comms[c].name);
        smp_out_u64(out, "ranks", memory->comms[c].ranks);
        smp_out_u64(out, "nodes", memory->comms[c].nodes);
        smp_out_u64(out, "bytes", memory->comms[c].bytes);
        smp_out_bool(out, "estimate", true);
        smp_out_end_object(out);
    }
    smp_out_end_array(out);
}

void smp_out_peaks(smp_json_out *out, const smp_memory *memory)
{
    out_comms(out, memory);
    smp_out_object(out, "peaks");
    for (int m = 0; m < SMP_MOMENTS; m++) {
        const char *group = smp_moment_texts[m].group;
        if (!smp_moment_texts[m].way) {
            out_peak(out, group, &memory->peaks[m]);
            continue;
        }
        if (m == 0 || strcmp(smp_moment_texts[m - 1].group, group) != 0) {
            smp_out_object(out, group);
        }
        out_peak(out, smp_moment_texts[m].way, &memory->peaks[m]);
        if (m + 1 == SMP_MOMENTS || strcmp(smp_moment_texts[m + 1].group, group) != 0) {
            smp_out_end_object(out);
        }
    }
    smp_out_end_object(out);
}
