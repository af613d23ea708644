/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts that the outputs of a search and of a comparison share.
 */
#ifndef SMP_PLAN_PLAN_TEXT_H
#define SMP_PLAN_PLAN_TEXT_H

#include "plan/plan.h"

enum { SMP_PLAN_COLUMNS = 80 };

/* The settings of n configurations for people: for each its number and those in which they
 * differ, then those that all have in common. */
void smp_put_settings(const smp_found *const *found, const uint32_t *numbers, uint32_t n,
                      FILE *stream);
/* For each of the plans found the first one that it ties with: that differs from it in
 * activation_loading_horizon and loss_chunks alone and is faster by 0.05 % at most; itself
 * where there is none.  `first` has n_found entries. */
void smp_plan_find_ties(const smp_plan *plan, uint32_t *first);
/* Which plans tie with plan `of`, and their values; nothing where none does. */
void smp_put_ties(const smp_plan *plan, const uint32_t *first, uint32_t of, FILE *stream);
/* Those of one job behind `head`. */
void smp_put_job_settings(const smp_job *job, const char *head, FILE *stream);
/* A sentence as lines of at most 80 columns, the later ones indented more. */
void smp_put_sentence(FILE *stream, const char *sentence);
/* "time", "cost" or "gpus". */
const char *smp_objective_name(smp_objective objective);
/* A configuration as an object: its settings, and the report under the names that smp-sim
 * gives its parts. */
void smp_out_found(smp_json_out *out, const char *key, const smp_found *found);
/* The software that runs it, where it is not this project's own. */
void smp_put_stack(const smp_settings *settings, FILE *stream);
/* Why the neighbours of the first plan lose. */
void smp_put_why(const smp_plan *plan, FILE *stream);
void smp_out_why(smp_json_out *out, const smp_plan *plan);
/* The front, at most 20 of it; `run`: time and cost are those of a whole run. */
void smp_put_front(const smp_front *front, const char *currency, bool run, FILE *stream);
void smp_out_front(smp_json_out *out, const smp_front *front, bool run);
/* The members of a "search" object. */
void smp_out_search(smp_json_out *out, const smp_search_info *info, bool timing);
/* Of the step, communication and copies that compute waits for. */
double smp_exposed_share(const smp_found *found);

#endif
