/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading rules of initial values, and finding that of a parameter.
 */
#include "config.h"

#include "exec/init_rules.h"

#include "base/arena.h"
#include "base/text.h"

#include <errno.h>
#include <float.h>
#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void smp_param_name(const smp_param *param, uint32_t layer, char name[SMP_NAME_BYTES])
{
    const char *first = strstr(param->name, "{}"), *second;

    if (!first) {
        (void)snprintf(name, SMP_NAME_BYTES, "%s", param->name);
        return;
    }
    second = strstr(first + 2, "{}");
    (void)snprintf(name, SMP_NAME_BYTES, "%.*s%u%.*s%s%s", (int)(first - param->name),
                   param->name, layer,
                   second ? (int)(second - first - 2) : (int)strlen(first + 2), first + 2,
                   second ? "*" : "", second ? second + 2 : "");
}

const smp_init_rule *smp_init_rule_of(const smp_init_rules *rules, const smp_param *param,
                                      uint32_t layer)
{
    char name[SMP_NAME_BYTES];

    if (!rules || rules->n == 0) {
        return NULL;
    }
    smp_param_name(param, layer, name);
    for (uint32_t i = rules->n; i > 0; i--) {
        if (fnmatch(rules->rules[i - 1].pattern, name, 0) == 0) {
            return &rules->rules[i - 1];
        }
    }
    return NULL;
}

/* ---- reading ---- */

typedef struct word { const char *name; smp_init_kind kind; uint32_t numbers; double a; } word;

static const word words[] = {
    { "normal", SMP_INIT_NORMAL, 2, 0 },    { "uniform", SMP_INIT_UNIFORM, 2, 0 },
    { "constant", SMP_INIT_CONSTANT, 1, 0 }, { "zeros", SMP_INIT_CONSTANT, 0, 0 },
    { "ones", SMP_INIT_CONSTANT, 0, 1 },
};

static const word *find_word(const char *name)
{
    for (size_t i = 0; name && i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(words[i].name, name) == 0) {
            return &words[i];
        }
    }
    return NULL;
}

static smp_status read_number(const char *text, const word *w, const smp_place *place,
                              smp_errors *errors, double *value_p)
{
    char *end = NULL;

    if (!text) {
        return smp_fail(errors, SMP_INPUT, place, "%s needs %u number%s behind it", w->name,
                        w->numbers, w->numbers > 1 ? "s" : "");
    }
    *value_p = strtod(text, &end);
    if (end == text || *end != '\0') {
        return smp_fail(errors, SMP_INPUT, place, "%s: '%s' is no number", w->name, text);
    }
    if (!(fabs(*value_p) <= (double)FLT_MAX)) {
        return smp_fail(errors, SMP_INPUT, place, "%s: '%s' is not finite in fp32", w->name,
                        text);
    }
    return SMP_OK;
}

static smp_status check_numbers(const word *w, const double numbers[2],
                                const smp_place *place, smp_errors *errors)
{
    if (w->kind == SMP_INIT_NORMAL && numbers[1] < 0) {
        return smp_fail(errors, SMP_INPUT, place, "normal: DEVIATION, %g, is below 0",
                        numbers[1]);
    }
    if (w->kind == SMP_INIT_UNIFORM && numbers[1] < numbers[0]) {
        return smp_fail(errors, SMP_INPUT, place, "uniform: HIGH, %g, is below LOW, %g",
                        numbers[1], numbers[0]);
    }
    return SMP_OK;
}

static smp_status read_line(char *line, const smp_place *place, smp_errors *errors,
                            smp_init_rules *rules)
{
    static const char *const blanks = " \t\r\n";
    char *rest = line, *pattern = strtok_r(line, blanks, &rest), *name, *extra;
    smp_init_rule rule = { .line = place->line };
    const word *w;
    double numbers[2] = { 0, 0 };

    if (!pattern) {
        return SMP_OK;
    }
    name = strtok_r(NULL, blanks, &rest);
    w = find_word(name);
    if (!w) {
        return smp_fail(errors, SMP_INPUT, place,
                        "'%s' after the pattern: must be normal, uniform, constant, zeros or "
                        "ones",
                        name ? name : "");
    }
    for (uint32_t i = 0; i < w->numbers; i++) {
        if (read_number(strtok_r(NULL, blanks, &rest), w, place, errors, &numbers[i])
            != SMP_OK) {
            return SMP_INPUT;
        }
    }
    extra = strtok_r(NULL, blanks, &rest);
    if (extra) {
        return smp_fail(errors, SMP_INPUT, place, "%s: '%s' is more than it takes", w->name,
                        extra);
    }
    if (check_numbers(w, numbers, place, errors) != SMP_OK) {
        return SMP_INPUT;
    }
    rule.kind = w->kind;
    rule.a = w->numbers > 0 ? numbers[0] : w->a;
    rule.b = numbers[1];
    SMP_GROW(rules->rules, rules->n, rules->capacity);
    rule.pattern = smp_heap_alloc(strlen(pattern) + 1, 1);
    memcpy(rule.pattern, pattern, strlen(pattern) + 1);
    rules->rules[rules->n++] = rule;
    return SMP_OK;
}

static bool matches_param(const char *pattern, const smp_param *param, uint32_t layer)
{
    char name[SMP_NAME_BYTES];

    smp_param_name(param, layer, name);
    return fnmatch(pattern, name, 0) == 0;
}

static bool matches_any(const char *pattern, const smp_model *model)
{
    for (uint32_t i = 0; i < model->n_root; i++) {
        if (matches_param(pattern, &model->root[i], 0)) {
            return true;
        }
    }
    for (uint32_t layer = 0; layer < model->n_layer; layer++) {
        const smp_block *block = smp_model_block(model, layer);

        for (uint32_t i = 0; i < block->n_param; i++) {
            if (matches_param(pattern, &block->params[i], layer)) {
                return true;
            }
        }
    }
    return false;
}

static smp_status check_patterns(const char *path, const smp_model *model, smp_errors *errors,
                                 const smp_init_rules *rules)
{
    smp_status status = SMP_OK;

    for (uint32_t i = 0; i < rules->n; i++) {
        const smp_place place = { .file = path, .line = rules->rules[i].line };

        if (!matches_any(rules->rules[i].pattern, model)) {
            status = smp_fail(errors, SMP_INPUT, &place,
                              "'%s' matches no parameter of %s; smp-exec -v lists them",
                              rules->rules[i].pattern, model->name);
        }
    }
    return status;
}

static smp_status read_lines(const char *path, FILE *file, smp_errors *errors,
                             smp_init_rules *rules)
{
    smp_place place = { .file = path };
    smp_status status = SMP_OK;
    char *line = NULL;
    size_t room = 0;

    while (getline(&line, &room, file) >= 0) {
        smp_status one;

        place.line++;
        line[strcspn(line, "#")] = '\0';
        one = read_line(line, &place, errors, rules);
        status = status == SMP_OK ? one : status;
    }
    if (ferror(file)) {
        status = smp_fail(errors, smp_read_status(errno), &(smp_place){ .file = path }, "%s",
                          strerror(errno));
    }
    free(line);
    return status;
}

smp_status smp_init_rules_read(const char *path, const smp_model *model, smp_errors *errors,
                               smp_init_rules *rules_p)
{
    smp_init_rules rules = { 0 };
    FILE *file = fopen(path, "re");
    smp_status status;

    if (!file) {
        return smp_fail(errors, smp_read_status(errno), &(smp_place){ .file = path }, "%s",
                        strerror(errno));
    }
    status = read_lines(path, file, errors, &rules);
    (void)fclose(file);
    if (status == SMP_OK) {
        status = check_patterns(path, model, errors, &rules);
    }
    if (status != SMP_OK) {
        smp_init_rules_free(&rules);
        return status;
    }
    *rules_p = rules;
    return SMP_OK;
}

void smp_init_rules_free(smp_init_rules *rules)
{
    for (uint32_t i = 0; i < rules->n; i++) {
        free(rules->rules[i].pattern);
    }
    free(rules->rules);
    *rules = (smp_init_rules){ 0 };
}
