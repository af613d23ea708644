/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading figures, numbers with their source, shared by the readers of clusters and profiles.
 * Internal to src/cost.
 */
#ifndef SMP_COST_FIGURE_H
#define SMP_COST_FIGURE_H

#include "cost/cost.h"

/* A figure {"value": number, "source": "text"}.  Missing or null: true is returned only when
 * it was read.  `automatic` not NULL: the value "auto" stands for it. */
bool smp_figure_read(const smp_reader *r, smp_arena *arena, const char *key, bool required,
                     double low, double high, const double *automatic, smp_figure *figure_p);
/* A non-empty string, copied. */
bool smp_figure_text(const smp_reader *r, smp_arena *arena, const char *key, bool required,
                     const char **text_p);
/* "format": must be `format`. */
void smp_figure_format(const smp_reader *r, const char *format);
/* The reader of the document's root; fails when it is no object. */
bool smp_figure_root(const smp_json *json, smp_errors *errors, smp_reader *r_p);
/* Whole file as text, after finding it under configs/KIND; heap memory. */
SMP_CHECK smp_status smp_figure_load(const char *kind, const char *name_or_path,
                                     smp_errors *errors, char **path_p, smp_json **json_p);
/* The file's name without directory and ".json". */
const char *smp_figure_name(smp_arena *arena, const char *path);

#endif
