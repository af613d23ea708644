/* SPDX-License-Identifier: Apache-2.0 */
/* The families that are read: one line each.  Nothing else names them all. */
#include "model/family.h"

#include <string.h>

static const smp_family *const families[] = {
    &smp_family_bloom,
    &smp_family_cohere,
    &smp_family_dbrx,
    &smp_family_deepseek,
    &smp_family_deepseek_v2,
    &smp_family_deepseek_v3,
    &smp_family_falcon,
    &smp_family_gemma,
    &smp_family_gemma2,
    &smp_family_gemma3,
    &smp_family_gpt2,
    &smp_family_gpt_bigcode,
    &smp_family_gpt_neox,
    &smp_family_gpt_oss,
    &smp_family_gptj,
    &smp_family_kimi_k2,
    &smp_family_llama,
    &smp_family_llama4,
    &smp_family_mistral,
    &smp_family_mixtral,
    &smp_family_mpt,
    &smp_family_olmo2,
    &smp_family_opt,
    &smp_family_phi,
    &smp_family_phi3,
    &smp_family_qwen2,
    &smp_family_qwen2_moe,
    &smp_family_qwen3,
    &smp_family_qwen3_moe,
    &smp_family_qwen3_vl_moe_text,
    &smp_family_stablelm,
    &smp_family_starcoder2,
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
