/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reader of SMP files.  For all inputs: settings or lines that say why not; what was read is
 * written and reads back as the same values.
 */
#include "config.h"

#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    smp_errors *errors = smp_errors_create();
    smp_settings first, again;
    const char *path = fuzz_file(data, size);
    size_t n;
    const smp_setting_info *table = smp_settings_table(&n);

    smp_settings_init(&first);
    smp_settings_init(&again);
    smp_status status = smp_settings_read(&first, path, errors);
    fuzz_check_errors(status, errors);
    if (status == SMP_OK) {
        FUZZ_CHECK(smp_settings_export(&first, path, errors) == SMP_OK);
        FUZZ_CHECK(smp_settings_read(&again, path, errors) == SMP_OK);
        for (size_t i = 0; i < n; i++) {
            char a[96], b[96];
            FUZZ_CHECK(smp_settings_get(&first, table[i].key, a, sizeof(a)));
            FUZZ_CHECK(smp_settings_get(&again, table[i].key, b, sizeof(b)));
            FUZZ_CHECK(strcmp(a, b) == 0);
        }
    }
    smp_errors_destroy(errors);
    return 0;
}
