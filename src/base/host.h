/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this machine has.
 */
#ifndef SMP_BASE_HOST_H
#define SMP_BASE_HOST_H

#include <stdint.h>

/* Physical memory; 1 GiB where the system does not say. */
uint64_t smp_host_memory_bytes(void);
/* Processors that are online, at least 1. */
uint32_t smp_host_processors(void);

#endif
