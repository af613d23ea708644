/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How well fits predict measured rows that were held back from them, for each GPU of the
 * published tables and each operation.  A report, not a test.
 *
 *     make bench/fit && bench/fit [DATA [PLOTS]]
 *
 * DATA holds measured/NAME.csv; default: $SMP_SHARED_DATA, else ../shared/data.  With PLOTS, a
 * directory, the residuals are plotted there.
 */
#include "smp.h"

#include <stdlib.h>
#include <string.h>

static const char *const profiles[] = {"a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200-sxm"};
static const char *const tables[] = {"gemm", "attention", "collectives", "moe_gemm", "moe_a2a"};
enum { N_PROFILE = sizeof profiles / sizeof profiles[0], N_TABLE = sizeof tables / sizeof tables[0] };

static smp_status report(const char *data, const char *plots, smp_errors *errors)
{
    char paths[N_TABLE][1024];
    const char *files[N_TABLE];
    for (size_t i = 0; i < N_TABLE; i++) {
        const int n = snprintf(paths[i], sizeof paths[i], "%s/measured/%s.csv", data, tables[i]);
        if (n < 0 || (size_t)n >= sizeof paths[i]) {
            return smp_fail(errors, SMP_INPUT, NULL, "%.80s...: the path is too long", data);
        }
        files[i] = paths[i];
    }
    smp_status status = SMP_OK;
    for (size_t p = 0; p < N_PROFILE && status == SMP_OK; p++) {
        const smp_calibrate_options how = {
            .files = files, .n_file = N_TABLE, .profile = profiles[p], .plots = plots};
        status = smp_calibrate(&how, stdout, errors);
        (void)printf("\n");
    }
    return status;
}

int main(int argc, char **argv)
{
    const char *data = argc > 1 ? argv[1] : getenv("SMP_SHARED_DATA");
    data = data ? data : "../shared/data";
    char probe[1024];
    (void)snprintf(probe, sizeof probe, "%s/measured/gemm.csv", data);
    FILE *file = fopen(probe, "r");
    if (!file) {
        (void)printf("no measured rows: %s is not there\n", probe);
        return 0;
    }
    (void)fclose(file);
    smp_errors *errors = smp_errors_create();
    const smp_status status = report(data, argc > 2 ? argv[2] : NULL, errors);
    smp_errors_print(errors, "bench/fit", stderr);
    smp_errors_destroy(errors);
    return (int)status;
}
