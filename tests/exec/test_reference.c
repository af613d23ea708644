/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loss, logits and gradients of tiny models of each family against PyTorch in float64
 * (reference/reference.py): the norm of each token's logits and of every parameter's gradient
 * and its product with a pattern of noise, which no permutation or transposition survives.
 */
#include "config.h"

#include "tests/exec/tiny.h"
#include "tests/exec/reference/reference.h"


enum { BATCH = 2, SEQ = 12 };

static uint32_t mix(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x85EBCA6Bu;
    x ^= x >> 13;
    x *= 0xC2B2AE35u;
    return x ^ x >> 16;
}

static double noise(const char *prefix, const char *name, uint64_t i)
{
    uint32_t seed = 2166136261u;

    for (const char *c = prefix; *c; c++) {
        seed = (seed ^ (uint8_t)*c) * 16777619u;
    }
    for (const char *c = name; *c; c++) {
        seed = (seed ^ (uint8_t)*c) * 16777619u;
    }
    return (double)(mix(seed + (uint32_t)i) >> 8) * 0x1p-24 - 0.5;
}

static const char *role_name(smp_role role)
{
    static const char *const names[SMP_ROLES] = {
        [SMP_ROLE_EMBED] = "embed_w",     [SMP_ROLE_POSITION] = "position_w",
        [SMP_ROLE_NORM1_W] = "norm1_w",   [SMP_ROLE_NORM1_B] = "norm1_b",
        [SMP_ROLE_NORM2_W] = "norm2_w",   [SMP_ROLE_NORM2_B] = "norm2_b",
        [SMP_ROLE_Q_W] = "q_w",           [SMP_ROLE_Q_B] = "q_b",
        [SMP_ROLE_K_W] = "k_w",           [SMP_ROLE_K_B] = "k_b",
        [SMP_ROLE_V_W] = "v_w",           [SMP_ROLE_V_B] = "v_b",
        [SMP_ROLE_Q_NORM_W] = "q_norm_w", [SMP_ROLE_K_NORM_W] = "k_norm_w",
        [SMP_ROLE_O_W] = "o_w",           [SMP_ROLE_O_B] = "o_b",
        [SMP_ROLE_GATE_W] = "gate_w",     [SMP_ROLE_UP_W] = "up_w",
        [SMP_ROLE_UP_B] = "up_b",         [SMP_ROLE_DOWN_W] = "down_w",
        [SMP_ROLE_DOWN_B] = "down_b",     [SMP_ROLE_FINAL_NORM_W] = "final_norm_w",
        [SMP_ROLE_FINAL_NORM_B] = "final_norm_b", [SMP_ROLE_HEAD_W] = "head_w",
        [SMP_ROLE_HEAD_B] = "head_b",     [SMP_ROLE_EMBED_NORM_W] = "embed_norm_w",
        [SMP_ROLE_EMBED_NORM_B] = "embed_norm_b", [SMP_ROLE_SINKS] = "sinks",
        [SMP_ROLE_GATE_B] = "gate_b",     [SMP_ROLE_Q_NORM_B] = "q_norm_b",
        [SMP_ROLE_K_NORM_B] = "k_norm_b",
        [SMP_ROLE_POST_NORM1_W] = "post_norm1_w", [SMP_ROLE_POST_NORM2_W] = "post_norm2_w",
        [SMP_ROLE_Q_DOWN_W] = "q_down_w", [SMP_ROLE_Q_DOWN_NORM_W] = "q_down_norm_w",
        [SMP_ROLE_Q_UP_W] = "q_up_w",     [SMP_ROLE_KV_DOWN_W] = "kv_down_w",
        [SMP_ROLE_KV_UP_W] = "kv_up_w",   [SMP_ROLE_KV_DOWN_NORM_W] = "kv_down_norm_w",
        [SMP_ROLE_ROUTER_W] = "router_w", [SMP_ROLE_ROUTER_B] = "router_b",
        [SMP_ROLE_ROUTER_CORRECTION] = "router_correction",
        [SMP_ROLE_EXPERT_GATE_W] = "expert_gate_w", [SMP_ROLE_EXPERT_UP_W] = "expert_up_w",
        [SMP_ROLE_EXPERT_GATE_B] = "expert_gate_b", [SMP_ROLE_EXPERT_UP_B] = "expert_up_b",
        [SMP_ROLE_EXPERT_DOWN_W] = "expert_down_w", [SMP_ROLE_EXPERT_DOWN_B] = "expert_down_b",
        [SMP_ROLE_SHARED_GATE_W] = "shared_gate_w", [SMP_ROLE_SHARED_UP_W] = "shared_up_w",
        [SMP_ROLE_SHARED_DOWN_W] = "shared_down_w",
        [SMP_ROLE_SHARED_ROUTER_W] = "shared_router_w",
    };

    assert_non_null(names[role]);
    return names[role];
}

typedef struct check {
    const char *name;
    smp_runner *runner;
    const reference_gradient *expected;
    size_t n, found;
} check;

static void name_of(const smp_owned *o, const smp_unit_param *p, char *name, size_t n)
{
    if (o->unit->block) {
        (void)snprintf(name, n, "%u.%s", o->layer, role_name(p->role));
    } else {
        (void)snprintf(name, n, "%s", role_name(p->role));
    }
}

static void set_parameters(void *context, const smp_owned *o)
{
    const check *c = context;
    float *w = smp_runner_operand(c->runner, o->instance, o->task_index, 0);

    assert_int_equal(o->elems, o->unit->elems);
    for (uint32_t i = 0; i < o->unit->n_param; i++) {
        const smp_unit_param *p = &o->unit->params[i];
        const char *role = role_name(p->role);
        bool norm = strstr(role, "norm") && strstr(role, "_w");
        char name[64];

        name_of(o, p, name, sizeof name);
        for (uint64_t j = 0; j < p->elems; j++) {
            w[p->offset + j] = (float)(noise("", name, j) / 2 + (norm ? 1 : 0));
        }
    }
}

static void check_gradient(check *c, const char *name, const float *g, uint64_t n)
{
    double norm = 0, dot = 0;

    for (uint64_t j = 0; j < n; j++) {
        norm += (double)g[j] * (double)g[j];
        dot += (double)g[j] * noise("probe.", name, j);
    }
    norm = sqrt(norm);
    for (size_t i = 0; i < c->n; i++) {
        const reference_gradient *e = &c->expected[i];

        if (strcmp(e->name, name) == 0) {
            c->found++;
            if (!(fabs(norm - e->norm) <= 2e-5 * e->norm + 1e-7)
                || !(fabs(dot - e->dot) <= 2e-5 * e->norm + 1e-7)) {
                fail_msg("%s: %s: norm %.9g, expected %.9g; product %.9g, expected %.9g",
                         c->name, name, norm, e->norm, dot, e->dot);
            }
            return;
        }
    }
    fail_msg("%s: %s: no such parameter in the reference", c->name, name);
}

static void check_gradients(void *context, const smp_owned *o)
{
    check *c = context;
    const float *g = smp_runner_operand(c->runner, o->instance, o->task_index, 1);

    for (uint32_t i = 0; i < o->unit->n_param; i++) {
        const smp_unit_param *p = &o->unit->params[i];
        char name[64];

        name_of(o, p, name, sizeof name);
        check_gradient(c, name, g + p->offset, p->elems);
    }
}

/* ---- logits, on their way into the loss ---- */

static struct {
    const smp_job *job;
    int n;
    double norm[BATCH * SEQ], dot[BATCH * SEQ];
} logits;

/* The device, which also keeps what the loss reads, scaled and capped as the model says. */
static void watch_launch(smp_device *device, smp_stream stream, const smp_launch *l)
{
    const uint64_t *d = l->task->dims;
    const smp_job *job = logits.job;
    uint64_t first = l->micro_batch * job->settings.micro_batch * SEQ + d[2];
    double cap = job->model->logit_softcap;

    for (uint64_t i = 0; l->task->op == SMP_OP_LOSS && i < d[0]; i++) {
        const float *row = (const float *)l->at[0] + i * d[1];
        double norm = 0, dot = 0;

        for (uint64_t j = 0; j < job->model->vocab; j++) {
            double x = (double)row[j] * job->model->logit_scale;

            x = cap > 0 ? cap * tanh(x / cap) : x;
            norm += x * x;
            dot += x * noise("logits.", "", j);
        }
        assert_true(first + i < BATCH * SEQ);
        logits.norm[first + i] = sqrt(norm);
        logits.dot[first + i] = dot;
        logits.n++;
    }
    smp_device_cpu.launch(device, stream, l);
}

static void check_logits(const reference *r)
{
    assert_int_equal(logits.n, BATCH * SEQ);
    for (int i = 0; i < BATCH * SEQ; i++) {
        const reference_logits *e = &r->logits[i];

        if (!(fabs(logits.norm[i] - e->norm) <= 1e-5 * e->norm)
            || !(fabs(logits.dot[i] - e->dot) <= 1e-5 * e->norm)) {
            fail_msg("%s: logits of token %d: norm %.9g, expected %.9g; product %.9g, "
                     "expected %.9g", r->name, i, logits.norm[i], e->norm, logits.dot[i],
                     e->dot);
        }
    }
}

static void run_step(tiny *t, check *c, double expected_loss)
{
    int32_t ids[BATCH * SEQ], targets[BATCH * SEQ];
    const smp_inputs inputs = { .seq = SEQ, .ids = ids, .targets = targets };
    const smp_pass *pass = NULL;
    double loss;

    for (uint32_t i = 0; i < BATCH * SEQ; i++) {
        ids[i] = (int32_t)(mix(7919 * (i / SEQ) + i % SEQ) % 29);
        targets[i] = (int32_t)(mix(104729 + 7919 * (i / SEQ) + i % SEQ) % 29);
    }
    check_ok(smp_runner_init(c->runner, t->errors), t->errors);
    smp_runner_owned(c->runner, set_parameters, c);
    check_ok(smp_runner_step(c->runner, &inputs, t->errors, &pass), t->errors);
    loss = (double)pass->scalars[SMP_SCALAR_LOSS];
    if (!(fabs(loss - expected_loss) <= 2e-6 * expected_loss)) {
        fail_msg("%s: loss %.9g, expected %.9g", c->name, loss, expected_loss);
    }
    smp_runner_owned(c->runner, check_gradients, c);
    assert_int_equal(c->found, c->n);
}

static void compare(const reference *r, const char *settings)
{
    tiny t;
    check c = { .name = r->name, .expected = r->gradients, .n = r->n };
    smp_mesh *mesh = NULL;
    smp_device_ops watching = smp_device_cpu;
    smp_runner_options options = { .device = &watching,
                                   .device_options = { .threads = 1 },
                                   .comm = &smp_comm_threads };

    watching.launch = watch_launch;
    tiny_open(&t, r->config, 1, SEQ, BATCH);
    tiny_set(&t, settings);
    check_ok(smp_job_resolve(&t.job, t.errors), t.errors);
    options.hyper = t.options.hyper;
    check_ok(smp_mesh_create(&t.job, t.errors, &mesh), t.errors);
    check_ok(smp_threads_create(1, 10, t.errors, &options.world), t.errors);
    check_ok(smp_runner_create(&t.job, mesh, 0, &options, t.errors, &c.runner), t.errors);
    logits.job = &t.job;
    logits.n = 0;
    run_step(&t, &c, r->loss);
    check_logits(r);
    smp_runner_destroy(c.runner);
    smp_comm_threads.destroy(options.world);
    smp_mesh_destroy(mesh);
    tiny_close(&t);
}

/* Balancing losses are of a micro-batch, so those of two are not those of the whole. */
static void families_are_pytorchs(void **state)
{
    static const char *const layouts[] = {
        "micro_batch=2", "micro_batch=2 checkpointing=selective:op attention=naive",
        "micro_batch=1 accumulation=last checkpointing=full"
    };

    (void)state;
    for (size_t i = 0; i < sizeof references / sizeof references[0]; i++) {
        const reference *r = &references[i];

        for (int k = 0; k < (strstr(r->settings, "aux") ? 2 : 3); k++) {
            char settings[256];

            (void)snprintf(settings, sizeof settings, "%s %s", layouts[k], r->settings);
            compare(r, settings);
        }
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(families_are_pytorchs),
};

CHECK_MAIN(tests)
