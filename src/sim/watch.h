/* SPDX-License-Identifier: Apache-2.0 */
/* What the engine tells of itself while it runs: to steady.c only. */
#ifndef SMP_SIM_WATCH_H
#define SMP_SIM_WATCH_H

#include "sim/engine.h"

typedef struct smp_watch smp_watch;
/* The head of an actor starts; true: the state is to be looked at before time passes. */
bool smp_watch_start(smp_watch *watch, const smp_engine *engine, uint32_t actor);
/* Time is about to pass. */
void smp_watch_look(smp_watch *watch, const smp_engine *engine);

#endif
