/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The moments at which memory may peak: what a GPU and a node's host hold in each.
 */
#ifndef SMP_SIM_PEAKS_H
#define SMP_SIM_PEAKS_H

#include "base/text.h"
#include "smp.h"

/* Fills peaks, communicators and the verdict of a memory whose other fields are filled;
 * `fullest` is the class it speaks of. */
void smp_peaks_fill(const smp_job *job, const smp_step *step, uint32_t fullest,
                    smp_memory *memory);
/* The peak that counts and needs most on the device (on the host); not of a report that was
 * read from a plan file. */
smp_moment smp_peaks_most(const smp_memory *memory, bool host);

/* How the outputs call a moment, and what its own part of the host's memory is. */
typedef struct smp_moment_text {
    const char *group, *way; /* JSON; way NULL: the group has one */
    const char *title, *host;
    const char *note;        /* or NULL */
} smp_moment_text;
extern const smp_moment_text smp_moment_texts[SMP_MOMENTS];
/* A table for people (80 columns); what each peak consists of, and the communicators. */
void smp_text_peaks(smp_text *text, const smp_memory *memory);
void smp_text_peak_parts(smp_text *text, const smp_memory *memory);
/* "communicators" and "peaks": members of the memory object. */
void smp_out_peaks(smp_json_out *out, const smp_memory *memory);

#endif
