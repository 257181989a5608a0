/* kernels/cuda/gpu_pieces.h: how much of a device the pieces of attention keep
 * busy, counted for the 132 multiprocessors of an H100 or H200. */
#include "kernels/cuda/gpu_pieces.h"
#include "tests/test.h"

#include <stdint.h>

enum { TILE = 128, MULTIPROCESSORS = 132, KV_HEADS = 8, MAX_BATCH = 64 };

/* Blocks of codes, two to a multiprocessor and of 8 warps, each with a tile;
 * blocks of halves, one to a multiprocessor, whose warps share a tile. */
static const struct kv_gpu_places codes = {2 * MULTIPROCESSORS, KV_HEADS, 8},
                                  halves = {MULTIPROCESSORS, KV_HEADS, 1};

struct plan {
    size_t blocks, waves, max;
    double busy; /* places of all waves that have a block */
    double time; /* relative to pieces that end together */
};

static struct plan plan_of(const struct kv_gpu_places *p, size_t batch,
                           size_t tokens)
{
    const size_t each = (tokens + TILE - 1) / TILE;
    struct plan x = {0, 0, 0, 0, 0};
    size_t tiles[MAX_BATCH];

    for (size_t i = 0; i < batch; i++)
        tiles[i] = each;
    x.max = kv_gpu_piece_tiles(p, tiles, batch);
    x.blocks = batch * kv_gpu_n_pieces(each, x.max) * p->heads;
    x.waves = (x.blocks + p->places - 1) / p->places;
    x.busy = (double)x.blocks / (double)(x.waves * p->places);
    x.time = (double)(x.waves * (x.max + KV_GPU_PIECE_OVERHEAD)) /
             ((double)(batch * each * p->heads) / (double)p->places +
              KV_GPU_PIECE_OVERHEAD);
    return x;
}

/* Where there is work for every place: no wave is much less than full, and the
 * launch takes little longer than pieces that end together. */
static void check_waves(const struct kv_gpu_places *p, size_t tokens,
                        double busy, double time, double mean)
{
    double sum = 0;
    size_t n = 0;

    for (size_t batch = 1; batch <= MAX_BATCH; batch++) {
        const struct plan x = plan_of(p, batch, tokens);

        if (batch * KV_HEADS * (tokens / TILE / p->min_tiles) < p->places)
            continue;
        if (x.busy < busy || x.time > time)
            fail_msg("%zu x %zu tokens: %zu blocks in %zu waves, %.2f of the "
                     "places, %.2f times the least time; expected %.2f, %.2f",
                     batch, tokens, x.blocks, x.waves, x.busy, x.time, busy,
                     time);
        sum += x.busy;
        n++;
    }
    assert_true(n > 50);
    if (sum / (double)n < mean)
        fail_msg("%zu tokens: %.3f of the places on average, expected %.3f",
                 tokens, sum / (double)n, mean);
}

static void test_waves(void **state)
{
    (void)state;
    check_waves(&codes, 8192, 0.72, 1.55, 0.89);
    check_waves(&codes, 32768, 0.84, 1.28, 0.95);
    check_waves(&codes, 131072, 0.93, 1.13, 0.97);
    check_waves(&halves, 8192, 0.72, 1.55, 0.89);
    check_waves(&halves, 32768, 0.90, 1.28, 0.95);
    check_waves(&halves, 131072, 0.95, 1.13, 0.97);
}

/* Known plans: 1 x 8,192 halves have a block for 128 of 132 places; 32 long
 * sequences fill one wave of codes. */
static void test_known(void **state)
{
    struct plan x = plan_of(&halves, 1, 8192);

    (void)state;
    assert_int_equal(x.blocks, 128);
    x = plan_of(&codes, 32, 131072);
    assert_int_equal(x.blocks, 256);
    assert_int_equal(x.waves, 1);
    x = plan_of(&codes, 1, 131072);
    assert_int_equal(x.max, 32);
    /* One KV head: more pieces than 64. */
    const struct kv_gpu_places one = {2 * MULTIPROCESSORS, 1, 8};

    assert_int_equal(plan_of(&one, 1, 131072).blocks, 128);
}

/* Runs shorter than the least piece, none at all, and different lengths. */
static void test_lengths(void **state)
{
    const size_t none[2] = {0, 0}, ragged[4] = {1024, 3, 0, 200};
    size_t max;

    (void)state;
    assert_int_equal(kv_gpu_piece_tiles(&codes, none, 2), 8);
    assert_int_equal(kv_gpu_piece_tiles(&codes, none, 0), 8);
    assert_int_equal(plan_of(&codes, 1, 5 * TILE).max, 8);
    assert_int_equal(plan_of(&codes, 1, 1).blocks, KV_HEADS);
    max = kv_gpu_piece_tiles(&codes, ragged, 4);
    assert_true(max >= 8 && max < 1024);
    assert_int_equal(kv_gpu_n_pieces(0, max), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_waves),
        cmocka_unit_test(test_known),
        cmocka_unit_test(test_lengths),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
