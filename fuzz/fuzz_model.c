/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reader of models.  For all inputs: a model or lines that say why not, never both; the count
 * of parameters is that of the model's parts, the active ones are no more; and it can be
 * described.
 */
#include "config.h"

#include "fuzz.h"

#include "base/numeric.h"
#include "model/model.h"

static void check_counts(const smp_model *model)
{
    uint64_t total = 0;

    for (uint32_t i = 0; i < model->n_root; i++) {
        total = smp_add(total, smp_param_elems(&model->root[i]));
    }
    for (uint32_t layer = 0; layer < model->n_layer; layer++) {
        const smp_block *block = smp_model_block(model, layer);

        for (uint32_t i = 0; i < block->n_param; i++) {
            total = smp_add(total, smp_param_elems(&block->params[i]));
        }
    }
    FUZZ_CHECK(total == smp_model_parameters(model));
    FUZZ_CHECK(smp_model_active_parameters(model) <= total);
}

static void check_description(const smp_model *model, smp_errors *errors)
{
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);

    FUZZ_CHECK(stream != NULL);
    FUZZ_CHECK(smp_model_describe(model, 1, true, stream, errors) == SMP_OK);
    FUZZ_CHECK(smp_model_describe(model, 1, false, stream, errors) == SMP_OK);
    (void)fclose(stream);
    FUZZ_CHECK(size > 0);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    smp_errors *errors = smp_errors_create();
    smp_model *model = NULL;
    smp_status status =
        smp_model_parse((const char *)data, size, "input", "input", errors, &model);

    fuzz_check_errors(status, errors);
    FUZZ_CHECK((status == SMP_OK) == (model != NULL));
    if (status == SMP_OK) {
        check_counts(model);
        check_description(model, errors);
    }
    smp_model_destroy(model);
    smp_errors_destroy(errors);
    return 0;
}
