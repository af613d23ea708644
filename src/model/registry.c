/* SPDX-License-Identifier: Apache-2.0 */
/* The families that are read: one line each.  Nothing else names them all. */
#include "model/family.h"

#include <string.h>

static const smp_family *const families[] = {
    &smp_family_gpt2,
    &smp_family_gpt_neox,
    &smp_family_llama,
    &smp_family_mistral,
    &smp_family_qwen2,
    &smp_family_qwen3,
    NULL,
};

const smp_family *const *smp_families(void)
{
    return families;
}

const smp_family *smp_family_find(const char *model_type)
{
    for (size_t i = 0; families[i]; i++) {
        if (strcmp(families[i]->model_type, model_type) == 0) {
            return families[i];
        }
    }
    return NULL;
}
