/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Readers of settings: SMP files of both versions, and "key=value" of the command line.  For
 * all inputs: settings or lines that say why not, never both; what is exported reads back
 * with the same values and is exported the same again.
 */
#include "config.h"

#include "fuzz.h"

static void check_values(const smp_settings *first, const smp_settings *again)
{
    size_t count;
    const smp_setting_info *table = smp_settings_table(&count);

    for (size_t i = 0; i < count; i++) {
        char a[96], b[96];

        FUZZ_CHECK(smp_settings_get(first, table[i].key, a, sizeof a));
        FUZZ_CHECK(smp_settings_get(again, table[i].key, b, sizeof b));
        FUZZ_CHECK(strcmp(a, b) == 0);
    }
}

static void check_export(const smp_settings *settings, smp_errors *errors)
{
    smp_settings again;

    smp_settings_init(&again);
    FUZZ_CHECK(smp_settings_export(settings, fuzz_output(0), errors) == SMP_OK);
    FUZZ_CHECK(smp_settings_read(&again, fuzz_output(0), errors) == SMP_OK);
    check_values(settings, &again);
    FUZZ_CHECK(smp_settings_export(&again, fuzz_output(1), errors) == SMP_OK);
    FUZZ_CHECK(fuzz_outputs_equal());
}

static void run_file(const uint8_t *data, size_t size, smp_errors *errors)
{
    smp_settings settings;
    smp_status status;

    smp_settings_init(&settings);
    status = smp_settings_read(&settings, fuzz_file(data, size), errors);
    fuzz_check_errors(status, errors);
    if (status == SMP_OK) {
        check_export(&settings, errors);
    }
    smp_errors_clear(errors);
}

static void run_assignment(const uint8_t *data, size_t size, smp_errors *errors)
{
    char text[256] = {0};
    smp_settings settings;
    smp_status status;

    memcpy(text, data, size < sizeof text - 1 ? size : sizeof text - 1);
    smp_settings_init(&settings);
    status = smp_settings_assign(&settings, text, "--set", errors);
    fuzz_check_errors(status, errors);
    if (status == SMP_OK) {
        check_export(&settings, errors);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    smp_errors *errors = smp_errors_create();

    if (size > 0 && data[0] != '{') {
        run_assignment(data, size, errors);
    } else {
        run_file(data, size, errors);
    }
    smp_errors_destroy(errors);
    return 0;
}
