/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Initial values that the user gives by patterns of names.
 *
 * A file of lines "PATTERN WHAT [NUMBER [NUMBER]]"; empty lines and what follows # do not
 * count.  WHAT is: normal MEAN DEVIATION, uniform LOW HIGH, constant VALUE, zeros, ones.  A
 * pattern is of the shell (*, ?, [...]) and is matched against names as in the checkpoint,
 * "model.layers.3.mlp.up_proj.weight"; the number of an expert is "*" there, so that rules
 * speak of all experts of a layer.  The last rule that matches acts; one that matches no
 * tensor of the model is an error.
 */
#ifndef SMP_EXEC_INIT_RULES_H
#define SMP_EXEC_INIT_RULES_H

#include "model/model.h"

typedef enum smp_init_kind {
    SMP_INIT_NORMAL, SMP_INIT_UNIFORM, SMP_INIT_CONSTANT
} smp_init_kind;
typedef struct smp_init_rule {
    char *pattern;
    smp_init_kind kind;
    double a, b;               /* mean, deviation; low, high; value */
    uint32_t line;
} smp_init_rule;
typedef struct smp_init_rules {
    smp_init_rule *rules;      /* heap */
    uint32_t n, capacity;
} smp_init_rules;

SMP_CHECK smp_status smp_init_rules_read(const char *path, const smp_model *model,
                                         smp_errors *errors, smp_init_rules *rules_p);
void smp_init_rules_free(smp_init_rules *rules);
/* The rule of a parameter of a layer (of the root: any layer), or NULL. */
const smp_init_rule *smp_init_rule_of(const smp_init_rules *rules_or_null,
                                      const smp_param *param, uint32_t layer);
/* The parameter's name: the layer for the first "{}", "*" for the second. */
enum { SMP_NAME_BYTES = 160 };
void smp_param_name(const smp_param *param, uint32_t layer, char name[SMP_NAME_BYTES]);

#endif
