/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON reader.  For all inputs: a document or one clear line, never both; what the writer
 * makes of a document reads back and is written the same again; integers are exact.
 */
#include "config.h"

#include "fuzz.h"

#include "base/json.h"
#include "base/text.h"

#include <inttypes.h>

/* Every value has a place inside the text, and an integer prints as a number that is one. */
static void check_value(const smp_json *json, const cJSON *value)
{
    smp_place place = smp_json_place(json, value);
    uint64_t u;

    FUZZ_CHECK(place.line >= 1 && place.column >= 1 && place.path[0] == '$');
    if (smp_json_u64(json, value, &u)) {
        double difference = value->valuedouble - (double)u;

        FUZZ_CHECK(difference == 0.0);
    }
    for (const cJSON *child = value->child; child != NULL; child = child->next) {
        check_value(json, child);
    }
}

static void write_value(const smp_json *json, smp_json_out *out)
{
    smp_out_value(out, NULL, smp_json_root(json));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    smp_errors *errors = smp_errors_create();
    smp_json *json = NULL, *again = NULL;
    smp_json_out first = {0}, second = {0};
    smp_status status = smp_json_parse((const char *)data, size, "input", errors, &json);

    fuzz_check_errors(status, errors);
    if (status == SMP_OK) {
        check_value(json, smp_json_root(json));
        write_value(json, &first);
        status = smp_json_parse(first.text.data, first.text.length, "output", errors, &again);
        FUZZ_CHECK(status == SMP_OK);
        write_value(again, &second);
        FUZZ_CHECK(strcmp(first.text.data, second.text.data) == 0);
    }
    smp_text_free(&first.text);
    smp_text_free(&second.text);
    smp_json_destroy(json);
    smp_json_destroy(again);
    smp_errors_destroy(errors);
    return 0;
}
