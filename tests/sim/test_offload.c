/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Offloading of activations: what leaves the device, what the horizon costs and buys, and how
 * preloading differs in time from PyTorch's save_on_cpu.  One GPU, so nothing contends.
 */
#include "config.h"

#include "tests/step/step_jobs.h"

#include "sim/sim.h"

#include <inttypes.h>

enum { LAYERS = 8, TOKENS = 2048, WIDTH = 512 };

/* Buses from one that hides every copy to one that is the bottleneck. */
static const double buses_Bps[] = {64e9, 8e9, 2e9, 0.5e9};
enum { N_BUS = sizeof buses_Bps / sizeof buses_Bps[0] };

typedef struct run {
    bench b;
    smp_simulation *simulation;
    const smp_report *report;
    const smp_program *program;
} run;

static void run_open(run *r, double bus_Bps, const char *settings)
{
    bench_open(&r->b, LLAMA(8, 4), 1, TOKENS, 2, settings);
    r->b.cluster->pcie_Bps.value = bus_Bps;
    bench_lower(&r->b);
    check_ok(smp_simulate(&r->b.job, r->b.step, r->b.errors, &r->simulation), r->b.errors);
    r->report = smp_simulation_report(r->simulation);
    r->program = r->b.step->programs[0];
}

static void run_close(run *r)
{
    smp_simulation_destroy(r->simulation);
    bench_close(&r->b);
}

static uint64_t device_bytes(const run *r, const char *name)
{
    const smp_buffer *buffer = find_buffer(r->program, name);
    return buffer ? buffer->bytes * entries_of(buffer) : 0;
}

/* The stack holds the input of each layer and that of the head.  With a horizon of h those of
 * the last h layers are never stored; the ring that replaces the stack holds these, the
 * head's, and one that is on its way to the host while the next is written. */
static void offload_takes_what_it_stores_off_the_stack(void **state)
{
    const uint64_t input_bytes = 2 * TOKENS * WIDTH;
    run on_device, offloaded;
    (void)state;
    run_open(&on_device, buses_Bps[0], "checkpointing=full");
    const uint64_t stack = device_bytes(&on_device, "x");
    check_u64(stack, (LAYERS + 1) * input_bytes);
    for (uint64_t horizon = 1; horizon < LAYERS; horizon++) {
        char settings[96];
        (void)snprintf(settings, sizeof settings, "checkpointing=full offload=true "
                       "activation_loading_horizon=%" PRIu64, horizon);
        run_open(&offloaded, buses_Bps[0], settings);
        const uint64_t stored = device_bytes(&offloaded, "x.host");
        check_u64(stored, (LAYERS - horizon) * input_bytes);
        check_u64(device_bytes(&offloaded, "x"), 0);
        check_u64(device_bytes(&offloaded, "x.ring"), stack - stored + input_bytes);
        assert_true(offloaded.report->memory.live_bytes
                    <= on_device.report->memory.live_bytes - stored + input_bytes);
        check_u64(offloaded.report->memory.host_bytes_per_node, stored);
        run_close(&offloaded);
    }
    run_close(&on_device);
}

/* One more in the horizon: one more input in the ring, at most that in the peak, no time. */
static void the_horizon_costs_an_input_and_never_time(void **state)
{
    (void)state;
    for (size_t bus = 0; bus < N_BUS; bus++) {
        uint64_t ring = 0, peak = 0;
        int64_t step_ps = 0;
        for (uint32_t horizon = 1; horizon < LAYERS; horizon++) {
            char settings[96];
            run r;
            (void)snprintf(settings, sizeof settings, "checkpointing=full offload=true "
                           "activation_loading_horizon=%u", horizon);
            run_open(&r, buses_Bps[bus], settings);
            if (horizon > 1) {
                if (horizon + 2 <= LAYERS) {
                    check_u64(device_bytes(&r, "x.ring"), ring + 2 * TOKENS * WIDTH);
                }
                assert_true(r.report->memory.peak_bytes <= peak + 2 * TOKENS * WIDTH);
                assert_true(r.report->step_ps <= step_ps);
            }
            ring = device_bytes(&r, "x.ring");
            peak = r.report->memory.peak_bytes;
            step_ps = r.report->step_ps;
            run_close(&r);
        }
    }
}

/* One more layer offloaded, of the six that are checkpointed: no time less and no byte more;
 * from three layers more than the horizon on an input less on the device, one more on the
 * host.  Six are all. */
static void layers_offloaded_cost_time_and_save_memory(void **state)
{
    const uint64_t input_bytes = 2 * TOKENS * WIDTH;
    (void)state;
    for (size_t bus = 0; bus < N_BUS; bus++) {
        uint64_t live = UINT64_MAX;
        int64_t step_ps = 0;
        for (uint32_t layers = 1; layers <= 7; layers++) {
            char settings[128];
            run r;
            (void)snprintf(settings, sizeof settings, "checkpointing=first:6 offload=true "
                           "activation_loading_horizon=2 offload_layers=%u", layers % 7);
            run_open(&r, buses_Bps[bus], settings);
            const uint64_t host = layers > 2 ? (layers < 7 ? layers - 2 : 4) : 0;
            check_u64(device_bytes(&r, "x.host"), host * input_bytes);
            check_u64(r.report->memory.host_bytes_per_node, host * input_bytes);
            assert_true(r.report->memory.live_bytes <= live);
            assert_true(r.report->step_ps >= step_ps);
            if (layers == 7) { /* 0: all */
                check_i64(r.report->step_ps, step_ps);
                check_u64(r.report->memory.live_bytes, live);
            }
            live = r.report->memory.live_bytes;
            step_ps = r.report->step_ps;
            run_close(&r);
        }
    }
}

/* save_on_cpu copies on the compute stream: all of it is exposed.  Preloading hides copies
 * behind compute where the bus is fast, and is never slower. */
static void preloading_hides_what_save_on_cpu_exposes(void **state)
{
    (void)state;
    for (size_t bus = 0; bus < N_BUS; bus++) {
        run none, preload, blocking;
        run_open(&none, buses_Bps[bus], "checkpointing=full");
        run_open(&preload, buses_Bps[bus], "checkpointing=full offload=true "
                 "sm_activation_offloading=true");
        run_open(&blocking, buses_Bps[bus], "checkpointing=full offload=true "
                 "sm_activation_offloading=false");
        /* two micro-batches, a store and a load of each layer's input */
        const double copies_s = 2.0 * 2 * LAYERS * 2 * TOKENS * WIDTH
                                / (buses_Bps[bus] * none.b.profile->copy_efficiency.value);
        const double exposed_s = smp_s_from_ps(blocking.report->time.offload_ps);
        assert_true(exposed_s >= copies_s);
        assert_true(blocking.report->step_ps - none.report->step_ps
                    >= blocking.report->time.offload_ps);
        assert_true(preload.report->time.offload_ps < blocking.report->time.offload_ps);
        assert_true(preload.report->step_ps < blocking.report->step_ps);
        if (bus == 0) {
            check_i64(preload.report->step_ps, none.report->step_ps);
            check_i64(preload.report->time.offload_ps, 0);
        }
        run_close(&none);
        run_close(&preload);
        run_close(&blocking);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(offload_takes_what_it_stores_off_the_stack),
        cmocka_unit_test(the_horizon_costs_an_input_and_never_time),
        cmocka_unit_test(layers_offloaded_cost_time_and_save_memory),
        cmocka_unit_test(preloading_hides_what_save_on_cpu_exposes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
