/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of samples: a permutation for every size, and dealt out as torch does.
 */
#include "config.h"

#include "tests/check.h"

#include "data/sampler.h"

/* Every place is taken once, whatever the number: on both sides of the sizes of the cipher. */
static void permutations_are_onto(void **state)
{
    enum { MOST = 1100 };

    (void)state;
    for (uint64_t n = 1; n <= MOST; n += n < 70 ? 1 : 103) {
        bool seen[MOST] = { false };

        for (uint64_t i = 0; i < n; i++) {
            uint64_t at = smp_permute(n * 7 + 1, n, i);

            assert_true(at < n && !seen[at]);
            seen[at] = true;
        }
    }
    assert_true(smp_permute(3, UINT64_C(1) << 40, 5) < UINT64_C(1) << 40);
}

/* Places of the first sample over many keys: each of 8 places has about an eighth.  The
 * deviation of a count of 4000 draws at p = 1/8 is 20.9; 5 of them are allowed. */
static void permutations_are_spread(void **state)
{
    int count[8] = { 0 };

    (void)state;
    for (uint64_t key = 0; key < 4000; key++) {
        count[smp_permute(key, 8, 0)]++;
    }
    for (int i = 0; i < 8; i++) {
        assert_true(abs(count[i] - 500) < 105);
    }
}

/* Without shuffling: what torch.utils.data.DistributedSampler(shuffle=False) yields, by its
 * rule in torch/utils/data/distributed.py: the list is padded from its start to a multiple of
 * the ranks, or cut, and rank r takes every R-th. */
static void deals_as_torch_does(void **state)
{
    static const uint64_t padded[4][3] = { { 0, 4, 8 }, { 1, 5, 9 }, { 2, 6, 0 }, { 3, 7, 1 } };
    smp_sampler s = { .n = 10, .ranks = 4 };
    smp_sampler few = { .n = 3, .ranks = 8 };

    (void)state;
    check_u64(smp_sampler_per_epoch(&s), 3);
    for (uint32_t r = 0; r < 4; r++) {
        for (uint64_t i = 0; i < 3; i++) {
            check_u64(smp_sampler_at(&s, r, i), padded[r][i]);
            check_u64(smp_sampler_at(&s, r, 3 + i), padded[r][i]); /* the next epoch */
        }
    }
    s.drop_last = true;
    check_u64(smp_sampler_per_epoch(&s), 2);
    for (uint32_t r = 0; r < 4; r++) {
        check_u64(smp_sampler_at(&s, r, 1), 4 + r);
        check_u64(smp_sampler_at(&s, r, 2), r);
    }
    for (uint32_t r = 0; r < 8; r++) { /* several laps */
        check_u64(smp_sampler_at(&few, r, 0), r % 3);
    }
}

/* Every sample once an epoch, but for the padding; another epoch has another order. */
static void every_sample_once(void **state)
{
    enum { N = 23, RANKS = 4 };

    (void)state;
    for (int mode = 0; mode < 4; mode++) {
        smp_sampler s = { .n = N, .ranks = RANKS, .seed = 1, .shuffle = mode & 1,
                          .drop_last = (mode & 2) != 0 };
        uint64_t each = smp_sampler_per_epoch(&s);
        int total = 0, moved = 0;

        check_u64(each, mode & 2 ? 5 : 6);
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            int seen[N] = { 0 }, once = 0;

            for (uint32_t r = 0; r < RANKS; r++) {
                for (uint64_t i = 0; i < each; i++) {
                    uint64_t at = smp_sampler_at(&s, r, epoch * each + i);

                    seen[at]++;
                    total++;
                    moved += at != smp_sampler_at(&s, r, i);
                }
            }
            for (int i = 0; i < N; i++) {
                assert_true(seen[i] <= 2 && (seen[i] >= 1 || mode & 2));
                once += seen[i] == 1;
            }
            assert_int_equal(once, mode & 2 ? 20 : 22);
        }
        assert_int_equal(total, mode & 2 ? 60 : 72);
        assert_true(mode & 1 ? moved > 10 : moved == 0);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(permutations_are_onto),
    cmocka_unit_test(permutations_are_spread),
    cmocka_unit_test(deals_as_torch_does),
    cmocka_unit_test(every_sample_once),
};

CHECK_MAIN(tests)
