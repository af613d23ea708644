/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packing on small random problems: nothing overlaps that conflicts, arenas are seldom above
 * what no packing is below, and a cut that holds says how those of longer ranges grow.
 */
#include "config.h"

#include "tests/check.h"

#include "base/numeric.h"
#include "step/pack.h"

enum { MOST_ITEMS = 9, MOST_FIXED = 3, PROBLEMS = 40000 };

typedef struct problem {
    smp_pack *pack;
    uint64_t lengths[MOST_FIXED];
    uint64_t floor;
} problem;

static uint64_t seed;
static uint64_t n_draw;

static uint32_t draw(uint32_t below)
{
    uint32_t words[4];
    smp_random4(seed, 2, n_draw++, words);
    return words[0] % below;
}

static void random_problem(smp_arena *arena, problem *p)
{
    smp_pack_item items[MOST_ITEMS];
    const uint32_t n = draw(MOST_ITEMS + 1), n_fixed = draw(MOST_FIXED + 1);
    for (uint32_t i = 0; i < n; i++) {
        items[i] = (smp_pack_item){1 + draw(8), 1 + draw(3), draw(20)};
    }
    p->pack = smp_pack_create(arena, n, items, n_fixed);
    p->floor = draw(5);
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = i + 1; j < n + n_fixed; j++) {
            if (draw(2)) {
                smp_pack_conflict(p->pack, i, j);
                if (j < n) {
                    smp_pack_conflict(p->pack, j, i);
                }
            }
        }
    }
    for (uint32_t f = 0; f < n_fixed; f++) {
        p->lengths[f] = 2 + draw(10);
    }
    smp_pack_sort(p->pack, arena, items);
}

/* The fixed ranges one on the other; the cut is one byte below the end of its own. */
static uint64_t pack(const problem *p, smp_pack_room *room, uint32_t n_cut, smp_pack_cut *cuts,
                     smp_pack_range *fixed, uint64_t *bases)
{
    uint64_t top = p->floor;
    for (uint32_t f = 0; f < p->pack->n_fixed; f++) {
        fixed[f] = (smp_pack_range){top, top + p->lengths[f], p->pack->n_item + f};
        top = fixed[f].end;
    }
    for (uint32_t c = 0; c < n_cut; c++) {
        cuts[c].at = fixed[cuts[c].fixed].end - 1;
        cuts[c].holds = true;
    }
    const smp_pack_space space = {fixed, p->floor, top, top};
    return smp_pack_best(p->pack, &space, room, n_cut, cuts, bases);
}

static void each_problem(void (*check)(const problem *, smp_pack_room *))
{
    smp_pack_room room = {0};
    for (seed = 0; seed < PROBLEMS; seed++) {
        smp_arena *arena = smp_arena_create();
        problem p;
        n_draw = 0;
        random_problem(arena, &p);
        check(&p, &room);
        smp_arena_destroy(arena);
    }
    smp_pack_room_free(&room);
}

/* Whether [base, base + bytes) touches a range that item i conflicts with, other items at
 * `bases`. */
static bool is_blocked(const smp_pack *pack_, uint32_t i, uint64_t base,
                       const smp_pack_range *fixed, const uint64_t *bases)
{
    const uint64_t end = base + pack_->bytes[i];
    for (uint32_t j = 0; j < pack_->n_item + pack_->n_fixed; j++) {
        const bool item = j < pack_->n_item;
        const uint64_t low = item ? bases[j] : fixed[j - pack_->n_item].base;
        const uint64_t high = item ? low + pack_->bytes[j] : fixed[j - pack_->n_item].end;
        if (j != i && smp_pack_conflicts(pack_, i, j) && low < end && base < high) {
            return true;
        }
    }
    return false;
}

static void check_places(const problem *p, smp_pack_room *room)
{
    smp_pack_range fixed[MOST_FIXED];
    uint64_t bases[MOST_ITEMS], top = p->floor;
    const uint64_t arena = pack(p, room, 0, NULL, fixed, bases);
    for (uint32_t f = 0; f < p->pack->n_fixed; f++) {
        top = fixed[f].end;
    }
    for (uint32_t i = 0; i < p->pack->n_item; i++) {
        const uint64_t end = bases[i] + p->pack->bytes[i];
        assert_true(bases[i] >= p->floor);
        assert_false(is_blocked(p->pack, i, bases[i], fixed, bases));
        top = top > end ? top : end;
    }
    check_u64(arena, top);
}

static void what_conflicts_lies_apart(void **state)
{
    (void)state;
    each_problem(check_places);
}

/* The heaviest set of items that all conflict, with the fixed ranges that conflict with all. */
static uint64_t heaviest(const problem *p)
{
    const smp_pack *k = p->pack;
    uint64_t most = 0;
    for (uint32_t set = 0; set < 1u << k->n_item; set++) {
        uint64_t bytes = 0;
        bool clique = true;
        for (uint32_t i = 0; i < k->n_item; i++) {
            bytes += (set >> i & 1) ? k->bytes[i] : 0;
            for (uint32_t j = 0; j < i; j++) {
                clique &= (set >> i & set >> j & 1) == 0 || smp_pack_conflicts(k, i, j);
            }
        }
        for (uint32_t f = 0; f < k->n_fixed; f++) {
            bool all = true;
            for (uint32_t i = 0; i < k->n_item; i++) {
                all &= (set >> i & 1) == 0 || smp_pack_conflicts(k, i, k->n_item + f);
            }
            bytes += all ? p->lengths[f] : 0;
        }
        most = clique && bytes > most ? bytes : most;
    }
    return most;
}

static uint32_t n_tight, n_seen;

static void check_clique(const problem *p, smp_pack_room *room)
{
    smp_pack_range fixed[MOST_FIXED];
    const uint64_t arena = pack(p, room, 0, NULL, fixed, NULL);
    const uint64_t least = p->floor + heaviest(p);
    assert_true(arena >= least);
    n_tight += arena == least;
    n_seen++;
}

/* That many arenas are the least that they can be; the rest has cycles that need more. */
static void no_arena_is_below_a_clique(void **state)
{
    (void)state;
    each_problem(check_clique);
    print_message("# %u of %u are as small as the heaviest clique\n", n_tight, n_seen);
    assert_true(n_tight > n_seen / 100 * 80);
}

static uint32_t n_held;

static void check_growth(const problem *p, smp_pack_room *room)
{
    problem longer = *p;
    smp_pack_range fixed[MOST_FIXED];
    smp_pack_cut cuts[MOST_FIXED];
    uint64_t more = 0;
    for (uint32_t f = 0; f < p->pack->n_fixed; f++) {
        cuts[f].fixed = f;
    }
    const uint64_t arena = pack(p, room, p->pack->n_fixed, cuts, fixed, NULL);
    for (uint32_t f = 0; f < p->pack->n_fixed; f++) {
        const uint32_t bytes = draw(3) ? 0 : 1 + draw(20);
        if (cuts[f].holds && bytes > 0) {
            longer.lengths[f] += bytes;
            more += bytes;
            n_held++;
        }
    }
    check_u64(pack(&longer, room, 0, NULL, fixed, NULL), arena + more);
}

static void longer_ranges_add_their_length_where_cuts_hold(void **state)
{
    (void)state;
    each_problem(check_growth);
    print_message("# %u ranges made longer\n", n_held);
    assert_true(n_held > 3000);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(what_conflicts_lies_apart),
    cmocka_unit_test(no_arena_is_below_a_clique),
    cmocka_unit_test(longer_ranges_add_their_length_where_cuts_hold),
};
CHECK_MAIN(tests)
