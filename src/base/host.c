/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this machine has, as sysconf says.
 */
#include "config.h"

#include "base/host.h"

#include <unistd.h>

uint64_t smp_host_memory_bytes(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes : 1u << 30;
}

uint32_t smp_host_processors(void)
{
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    return processors < 1 ? 1 : processors > UINT32_MAX ? UINT32_MAX : (uint32_t)processors;
}
