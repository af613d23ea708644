/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The conformance suite over MPI: one rank, started by mpi.sh.  With the argument "late" the
 * last rank stays away from a barrier, and the others must say so.
 */
#include "config.h"

#include "tests/exec/comm_suite.h"

#include <stdio.h>
#include <unistd.h>

static int late(smp_world *world, uint32_t rank, uint32_t n, smp_errors *errors)
{
    uint32_t members[64];
    smp_channel *channel = NULL;

    for (uint32_t i = 0; i < n; i++) {
        members[i] = i;
    }
    if (smp_comm_mpi.join(world, "all", members, n, rank, errors, &channel) != SMP_OK) {
        return 1;
    }
    if (rank + 1 == n) {
        (void)sleep(10);
        return 1;
    }
    return smp_comm_mpi.barrier(channel, errors) == SMP_OK ? 1 : 0;
}

int main(int argc, char **argv)
{
    smp_errors *errors = smp_errors_create();
    smp_world *world = NULL;
    const char *wrong = "MPI does not start";
    int status = 1;

    (void)argv;
    if (smp_mpi_begin(false, errors) == SMP_OK
        && smp_mpi_create(argc > 1 ? 0.5 : 60, errors, &world) == SMP_OK) {
        if (argc > 1) {
            status = late(world, smp_mpi_rank(), smp_mpi_ranks(), errors);
            if (status == 0) {
                (void)printf("%s\n", smp_errors_text(errors, 0));
                (void)fflush(stdout);
            }
            (void)sleep(1);
            smp_mpi_end(1);
            return 1;
        }
        wrong = suite_rank(&smp_comm_mpi, world, smp_mpi_rank(), smp_mpi_ranks(), errors);
        status = wrong ? 1 : 0;
        (void)printf("rank %u of %u: %s\n", smp_mpi_rank(), smp_mpi_ranks(),
                     wrong ? wrong : "conforms");
    }
    smp_comm_mpi.destroy(world);
    smp_errors_destroy(errors);
    smp_mpi_end(status);
    return status;
}
