/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks and groups: coordinates both ways, members against their definition, placement and
 * classes against brute force on small worlds, printing.
 */
#include "config.h"

#include "tests/check.h"

#include "base/numeric.h"
#include "mesh/mesh.h"

#include <stdio.h>

enum { MOST = 64 };

/* ----------------------------------------------------------------- helpers */

static smp_mesh *make(uint32_t tensor, uint32_t context, uint32_t shard, uint32_t expert,
                      uint32_t replica, const smp_axis *order_or_null, uint32_t per_node)
{
    static const smp_axis usual[SMP_AXES] = {
        SMP_AXIS_TENSOR, SMP_AXIS_CONTEXT, SMP_AXIS_SHARD, SMP_AXIS_EXPERT, SMP_AXIS_REPLICA
    };
    const uint32_t degree[SMP_AXES] = {tensor, context, shard, expert, replica};
    smp_errors *errors = smp_errors_create();
    smp_mesh *mesh = NULL;

    check_ok(smp_mesh_create_degrees(degree, order_or_null != NULL ? order_or_null : usual,
                                     per_node, errors, &mesh), errors);
    smp_errors_destroy(errors);
    return mesh;
}

/* A mesh of at most MOST ranks, in any order of axes, on nodes of any size. */
static smp_mesh *draw(uint64_t seed)
{
    static const uint32_t sizes[] = {1, 1, 2, 3, 4, 6, 8};
    uint32_t degree[SMP_AXES], r[4], world = 1;
    smp_axis order[SMP_AXES];

    for (uint32_t a = 0; a < SMP_AXES; a++) {
        smp_random4(seed, a, 0, r);
        degree[a] = sizes[r[0] % 7];
        if (world * degree[a] > MOST) {
            degree[a] = 1;
        }
        world *= degree[a];
        order[a] = (smp_axis)a;
    }
    for (uint32_t a = 0; a < SMP_AXES; a++) {
        smp_random4(seed, a, 1, r);
        uint32_t other = a + r[0] % ((uint32_t)SMP_AXES - a);
        smp_axis keep = order[a];
        order[a] = order[other];
        order[other] = keep;
    }
    smp_random4(seed, 9, 9, r);
    return make(degree[0], degree[1], degree[2], degree[3], degree[4], order, 1 + r[0] % 9);
}

/* The definition in smp.h, written down again. */
static bool differs_only_where_allowed(smp_group group, const smp_coords *a,
                                       const smp_coords *b)
{
    static const char *const allowed[SMP_GROUPS] = {"t", "c", "cs", "e", "r", "er", "cs",
                                                    "tcse", "tcser"};
    static const char letters[] = "tcser";

    for (int i = 0; i < (int)SMP_AXES; i++) {
        if (a->axis[i] != b->axis[i] && strchr(allowed[group], letters[i]) == NULL) {
            return false;
        }
    }
    return true;
}

static uint32_t members_by_definition(const smp_mesh *mesh, smp_group group, uint32_t rank,
                                      uint32_t *members)
{
    smp_coords mine, other;
    uint32_t n = 0;

    smp_mesh_coords(mesh, rank, &mine);
    for (uint32_t i = 0; i < smp_mesh_world(mesh); i++) {
        smp_mesh_coords(mesh, i, &other);
        if (differs_only_where_allowed(group, &mine, &other)) {
            members[n++] = i;
        }
    }
    return n;
}

/* ------------------------------------------------------------------- tests */

/* 16 ranks, tensor 2, shard 4, replica 2: rank = t + 2 s + 8 r. */
static void groups_of_the_documented_order(void **state)
{
    smp_mesh *mesh = make(2, 1, 4, 1, 2, NULL, 8);
    smp_coords c;
    uint32_t m[MOST];

    (void)state;
    smp_mesh_coords(mesh, 13, &c);
    check_u64(c.axis[SMP_AXIS_TENSOR], 1);
    check_u64(c.axis[SMP_AXIS_SHARD], 2);
    check_u64(c.axis[SMP_AXIS_REPLICA], 1);
    check_u64(smp_mesh_group_size(mesh, SMP_GROUP_SHARD), 4);
    smp_mesh_members(mesh, SMP_GROUP_SHARD, 13, m);
    assert_memory_equal(m, ((uint32_t[]){9, 11, 13, 15}), 16);
    check_u64(smp_mesh_group_rank(mesh, SMP_GROUP_SHARD, 13), 2);
    smp_mesh_members(mesh, SMP_GROUP_REPLICA, 13, m);
    assert_memory_equal(m, ((uint32_t[]){5, 13}), 8);
    smp_mesh_members(mesh, SMP_GROUP_TENSOR, 13, m);
    assert_memory_equal(m, ((uint32_t[]){12, 13}), 8);
    check_u64(smp_mesh_group_size(mesh, SMP_GROUP_MODEL), 8);
    check_text(smp_axis_name(SMP_AXIS_EXPERT), "expert");
    check_text(smp_group_name(SMP_GROUP_DENSE_REPLICA), "dense_replica");
    smp_mesh_destroy(mesh);
    smp_mesh_destroy(NULL);
}

/* SMP v1's table: 8 GPUs, tp 2, rdp 4 (its pp 1).  cluster DPT: tp = r mod 2; spread TPD:
 * data fastest, tp = r / 4. */
static void v1_placements(void **state)
{
    static const smp_axis spread[SMP_AXES] = {
        SMP_AXIS_CONTEXT, SMP_AXIS_SHARD, SMP_AXIS_EXPERT, SMP_AXIS_REPLICA, SMP_AXIS_TENSOR
    };
    smp_mesh *mesh = make(2, 1, 2, 1, 2, spread, 8);
    uint32_t m[MOST];

    (void)state;
    smp_mesh_members(mesh, SMP_GROUP_TENSOR, 1, m);
    assert_memory_equal(m, ((uint32_t[]){1, 5}), 8);
    smp_mesh_destroy(mesh);
}

static void coordinates_and_members_agree_with_their_definition(void **state)
{
    uint32_t expected[MOST], m[MOST];

    (void)state;
    for (uint64_t seed = 0; seed < 300; seed++) {
        smp_mesh *mesh = draw(seed);
        for (uint32_t rank = 0; rank < smp_mesh_world(mesh); rank++) {
            smp_coords c;
            smp_mesh_coords(mesh, rank, &c);
            check_u64(smp_mesh_rank(mesh, &c), rank);
            for (int g = 0; g < (int)SMP_GROUPS; g++) {
                uint32_t n = members_by_definition(mesh, (smp_group)g, rank, expected);
                check_u64(smp_mesh_group_size(mesh, (smp_group)g), n);
                smp_mesh_members(mesh, (smp_group)g, rank, m);
                assert_memory_equal(m, expected, n * sizeof(*m));
                check_u64(m[smp_mesh_group_rank(mesh, (smp_group)g, rank)], rank);
            }
        }
        smp_mesh_destroy(mesh);
    }
}

static uint32_t on_node(const uint32_t *m, uint32_t n, uint32_t node, uint32_t per_node)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < n; i++) {
        count += m[i] / per_node == node;
    }
    return count;
}

/* Ranks of the node whose group has a member elsewhere. */
static uint32_t leavers(const smp_mesh *mesh, smp_group group, uint32_t node, uint32_t per_node)
{
    uint32_t m[MOST], count = 0, n = smp_mesh_group_size(mesh, group);

    for (uint32_t rank = 0; rank < smp_mesh_world(mesh); rank++) {
        smp_mesh_members(mesh, group, rank, m);
        count += rank / per_node == node && on_node(m, n, node, per_node) < n;
    }
    return count;
}

/* What a group's least members on a node share its network with, as its part of the network
 * of the node where that is least says. */
static uint32_t sharers_of(const smp_mesh *mesh, smp_group group, const uint32_t *m,
                           uint32_t least, uint32_t per_node)
{
    uint32_t n = smp_mesh_group_size(mesh, group), most = 0;

    for (uint32_t node = 0; node * per_node < smp_mesh_world(mesh); node++) {
        uint32_t here = on_node(m, n, node, per_node);
        if (here > 0 && here < n) {
            uint32_t ranks = leavers(mesh, group, node, per_node);
            uint32_t scaled = (ranks * least + here - 1) / here;
            most = scaled > most ? scaled : most;
        }
    }
    return most;
}

static void placement_agrees_with_counting(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        uint32_t r[4], m[MOST];
        smp_mesh *mesh = draw(seed);
        smp_random4(seed, 9, 9, r);
        uint32_t per_node = 1 + r[0] % 9, world = smp_mesh_world(mesh);
        for (uint32_t i = 0; i < world * (uint32_t)SMP_GROUPS; i++) {
            smp_group group = (smp_group)(i % (uint32_t)SMP_GROUPS);
            uint32_t n = smp_mesh_group_size(mesh, group), stride = UINT32_MAX;
            smp_placement want = {.ranks = n, .least_per_node = UINT32_MAX}, p;
            smp_mesh_members(mesh, group, i / (uint32_t)SMP_GROUPS, m);
            for (uint32_t node = 0; node * per_node < world; node++) {
                uint32_t here = on_node(m, n, node, per_node);
                want.nodes += here > 0;
                want.most_per_node = here > want.most_per_node ? here : want.most_per_node;
                if (here > 0) {
                    want.least_per_node = here < want.least_per_node ? here
                                                                     : want.least_per_node;
                }
            }
            want.sharers = sharers_of(mesh, group, m, want.least_per_node, per_node);
            for (uint32_t k = 1; k < n; k++) {
                if (m[k] / per_node == m[k - 1] / per_node && m[k] - m[k - 1] < stride) {
                    stride = m[k] - m[k - 1];
                }
            }
            want.stride = stride == UINT32_MAX ? 1 : stride;
            smp_mesh_placement(mesh, group, i / (uint32_t)SMP_GROUPS, &p);
            assert_memory_equal(&p, &want, sizeof(p));
        }
        smp_mesh_destroy(mesh);
    }
}

static smp_classes *classes_of(const smp_mesh *mesh, const uint32_t *colours)
{
    smp_errors *errors = smp_errors_create();
    smp_classes *classes = NULL;

    check_ok(smp_mesh_classes(mesh, colours, errors, &classes), errors);
    smp_errors_destroy(errors);
    return classes;
}

static uint64_t n_class(smp_mesh *mesh)
{
    smp_classes *classes = classes_of(mesh, NULL);
    uint64_t n = classes->n_class;

    smp_classes_destroy(classes);
    smp_mesh_destroy(mesh);
    return n;
}

static void regular_worlds_have_one_class(void **state)
{
    (void)state;
    check_u64(n_class(make(1, 1, 8, 1, 1, NULL, 8)), 1);
    check_u64(n_class(make(8, 1, 64, 1, 32, NULL, 8)), 1);
    check_u64(n_class(make(1, 1, 7, 1, 1, NULL, 7)), 1);
    check_u64(n_class(make(4, 1, 6, 1, 1, NULL, 8)), 1);
    /* 3 nodes of 8, shard 12: both groups have 8 ranks on one node and 4 on another, and every
     * pair of replicas lies on two nodes. */
    check_u64(n_class(make(1, 1, 12, 1, 2, NULL, 8)), 1);
}

/* 3 nodes of 8, shard 6: groups 0-5 and 18-23 lie inside a node, 6-11 and 12-17 do not; all
 * replica groups {r, r+6, r+12, r+18} lie alike (3 nodes, at most 2 on one). */
static void groups_across_nodes_make_classes(void **state)
{
    smp_mesh *mesh = make(1, 1, 6, 1, 4, NULL, 8);
    smp_classes *c = classes_of(mesh, NULL);

    (void)state;
    check_u64(c->n_class, 2);
    check_u64(c->classes[0].representative, 0);
    check_u64(c->classes[0].count, 12);
    check_u64(c->classes[1].representative, 6);
    check_u64(c->classes[1].count, 12);
    check_u64(c->class_of_rank[17], 1);
    check_u64(c->class_of_rank[18], 0);
    /* They never meet in shard groups, and always in replica groups. */
    assert_true(c->classes[0].meeting[SMP_GROUP_SHARD] !=
                c->classes[1].meeting[SMP_GROUP_SHARD]);
    check_u64(c->classes[0].meeting[SMP_GROUP_REPLICA],
              c->classes[1].meeting[SMP_GROUP_REPLICA]);
    smp_classes_destroy(c);
    smp_mesh_destroy(mesh);
}

/* The last rank of each shard group is different: two classes that meet in shard and world,
 * not in replica groups. */
static void colours_of_the_caller_split(void **state)
{
    smp_mesh *mesh = make(1, 1, 4, 1, 2, NULL, 8);
    const uint32_t colours[8] = {5, 5, 5, 9, 5, 5, 5, 9};
    smp_classes *c = classes_of(mesh, colours);

    (void)state;
    check_u64(c->n_class, 2);
    check_u64(c->classes[1].count, 2);
    check_u64(c->classes[0].meeting[SMP_GROUP_SHARD], c->classes[1].meeting[SMP_GROUP_SHARD]);
    assert_true(c->classes[0].meeting[SMP_GROUP_REPLICA] !=
                c->classes[1].meeting[SMP_GROUP_REPLICA]);
    smp_classes_destroy(c);
    smp_mesh_destroy(mesh);
}

/* Whether two ranks may share a class: own colour and placements, and in each group every
 * class as often. */
static bool alike(const smp_mesh *mesh, const uint32_t *class_of, const uint32_t *colours,
                  uint32_t a, uint32_t b)
{
    for (int g = 0; g < (int)SMP_GROUPS; g++) {
        uint32_t ma[MOST], mb[MOST], count[MOST] = {0};
        smp_placement pa, pb;
        smp_mesh_placement(mesh, (smp_group)g, a, &pa);
        smp_mesh_placement(mesh, (smp_group)g, b, &pb);
        if (memcmp(&pa, &pb, sizeof(pa)) != 0) {
            return false;
        }
        smp_mesh_members(mesh, (smp_group)g, a, ma);
        smp_mesh_members(mesh, (smp_group)g, b, mb);
        for (uint32_t i = 0; i < pa.ranks; i++) {
            count[class_of[ma[i]]]++;
        }
        for (uint32_t i = 0; i < pa.ranks; i++) {
            if (count[class_of[mb[i]]]-- == 0) {
                return false;
            }
        }
    }
    return colours[a] == colours[b];
}

/* The coarsest stable partition, by splitting one rank from the first of its class at a time
 * until nothing changes. */
static uint32_t refine_slowly(const smp_mesh *mesh, const uint32_t *colours, uint32_t *class_of)
{
    uint32_t world = smp_mesh_world(mesh), n = 1, next[MOST];
    bool changed = true;

    memset(class_of, 0, world * sizeof(*class_of));
    while (changed) {
        changed = false;
        n = 0;
        for (uint32_t rank = 0; rank < world; rank++) {
            uint32_t i = 0;
            while (i < rank && (class_of[i] != class_of[rank] ||
                                !alike(mesh, class_of, colours, i, rank))) {
                i++;
            }
            next[rank] = i < rank ? next[i] : n++;
        }
        changed = memcmp(next, class_of, world * sizeof(*next)) != 0;
        memcpy(class_of, next, world * sizeof(*next));
    }
    return n;
}

static void classes_agree_with_brute_force(void **state)
{
    uint32_t several = 0;

    (void)state;
    for (uint64_t seed = 0; seed < 120; seed++) {
        smp_mesh *mesh = draw(seed);
        uint32_t world = smp_mesh_world(mesh), colours[MOST] = {0}, class_of[MOST], r[4];
        for (uint32_t rank = 0; rank < world; rank++) {
            smp_random4(seed, rank, 3, r);
            colours[rank] = seed % 3 == 0 && r[0] % 16 == 0;
        }
        smp_classes *c = classes_of(mesh, colours);
        uint32_t n = refine_slowly(mesh, colours, class_of), total = 0;
        check_u64(c->n_class, n);
        assert_memory_equal(c->class_of_rank, class_of, world * sizeof(*class_of));
        for (uint32_t i = 0; i < n; i++) {
            total += c->classes[i].count;
            check_u64(c->class_of_rank[c->classes[i].representative], i);
        }
        check_u64(total, world);
        several += n > 1 && n < world;
        /* Classes meet exactly when some group holds both. */
        for (uint32_t i = 0; i < world * (uint32_t)SMP_GROUPS; i++) {
            smp_group g = (smp_group)(i % (uint32_t)SMP_GROUPS);
            uint32_t rank = i / (uint32_t)SMP_GROUPS, m[MOST];
            bool met[MOST] = {false};
            smp_mesh_members(mesh, g, rank, m);
            for (uint32_t k = 0; k < smp_mesh_group_size(mesh, g); k++) {
                met[class_of[m[k]]] = true;
            }
            for (uint32_t k = 0; k < n; k++) {
                assert_int_equal(met[k], c->classes[k].meeting[g] ==
                                             c->classes[class_of[rank]].meeting[g]);
            }
        }
        smp_classes_destroy(c);
        smp_mesh_destroy(mesh);
    }
    assert_true(several > 20);
}

static char *printed(const smp_mesh *mesh, bool json)
{
    char *text = NULL;
    size_t n = 0;
    FILE *stream = open_memstream(&text, &n);
    smp_errors *errors = smp_errors_create();

    check_ok(smp_mesh_print(mesh, json, stream, errors), errors);
    assert_int_equal(fclose(stream), 0);
    smp_errors_destroy(errors);
    return text;
}

static void meshes_print_in_80_columns(void **state)
{
    smp_mesh *mesh = make(2, 1, 4, 1, 2, NULL, 8);
    char *text = printed(mesh, false);

    (void)state;
    check_contains(text, "    13     1       1        0      2       0        1\n");
    check_contains(text, "  shard: 4 groups of 4\n"
                         "    {0-6/2} {1-7/2} {8-14/2} {9-15/2}\n");
    check_contains(text, "  replica: 8 groups of 2\n    {0 8} {1 9} {2 10}");
    check_contains(text, "  expert: 16 groups of 1\n");
    free(text);
    text = printed(mesh, true);
    check_contains(text, "\"rank_order\": [\n    \"tensor\",");
    check_contains(text, "\"dense_replica\"");
    free(text);
    smp_mesh_destroy(mesh);
    for (uint64_t seed = 0; seed < 60; seed++) {
        mesh = seed < 59 ? draw(seed) : make(8, 1, 64, 1, 32, NULL, 8);
        text = printed(mesh, false);
        size_t n_line = 0;
        for (const char *line = text; *line != '\0'; line += strcspn(line, "\n") + 1) {
            assert_true(strcspn(line, "\n") <= 80);
            n_line++;
        }
        assert_true(seed < 59 || n_line < 60); /* 16,384 ranks on one page */
        free(text);
        smp_mesh_destroy(mesh);
    }
}

static void wrong_meshes_are_refused(void **state)
{
    static const smp_axis twice[SMP_AXES] = {
        SMP_AXIS_TENSOR, SMP_AXIS_TENSOR, SMP_AXIS_SHARD, SMP_AXIS_EXPERT, SMP_AXIS_REPLICA
    };
    static const smp_axis usual[SMP_AXES] = {
        SMP_AXIS_TENSOR, SMP_AXIS_CONTEXT, SMP_AXIS_SHARD, SMP_AXIS_EXPERT, SMP_AXIS_REPLICA
    };
    const uint32_t one[SMP_AXES] = {1, 1, 1, 1, 1}, none[SMP_AXES] = {1, 0, 1, 1, 1},
                   many[SMP_AXES] = {65536, 1, 65536, 1, 1};
    smp_errors *errors = smp_errors_create();
    smp_mesh *mesh = NULL;

    (void)state;
    check_fails(smp_mesh_create_degrees(one, twice, 8, errors, &mesh), SMP_INPUT, errors,
                "each axis once");
    check_fails(smp_mesh_create_degrees(one, usual, 0, errors, &mesh), SMP_INPUT, errors,
                "each axis once");
    check_fails(smp_mesh_create_degrees(none, usual, 8, errors, &mesh), SMP_INPUT, errors,
                "product");
    check_fails(smp_mesh_create_degrees(many, usual, 8, errors, &mesh), SMP_INPUT, errors,
                "product");
    assert_null(mesh);
    smp_errors_destroy(errors);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_of_the_documented_order),
        cmocka_unit_test(v1_placements),
        cmocka_unit_test(coordinates_and_members_agree_with_their_definition),
        cmocka_unit_test(placement_agrees_with_counting),
        cmocka_unit_test(regular_worlds_have_one_class),
        cmocka_unit_test(groups_across_nodes_make_classes),
        cmocka_unit_test(colours_of_the_caller_split),
        cmocka_unit_test(classes_agree_with_brute_force),
        cmocka_unit_test(meshes_print_in_80_columns),
        cmocka_unit_test(wrong_meshes_are_refused),
    };
    return cmocka_run_group_tests_name("mesh", tests, NULL, NULL);
}
