/* kernels/codebook in plain C: the layout of tiles, the exact values, path int8
 * within its error, and tables of many tiles.  check_ops compares the other
 * levels with it. */
#include "kernels/level.h"
#include "tests/codebook_setup.h"
#include "tests/test.h"

static float value(const struct setup *s, size_t head, size_t t, size_t c)
{
    const size_t sub = c / s->d;
    const size_t book = (s->head_books > 1 ? head : 0) * s->sub_books +
                        (s->sub_books > 1 ? sub : 0);
    const size_t code = s->code[(head * s->tiles * T + t) * s->n_sub + sub];

    return s->centers[(book * s->k + code) * s->d + c % s->d];
}

/* expand() gives each token's centroids, bit for bit, and zeros elsewhere. */
static void check_expand(const struct setup *s)
{
    const size_t padded = kv_padded(s->head_dim);
    float *x = kv_alloc(KV_TILE_PART * padded, sizeof(*x));

    for (size_t h = 0; h < HEADS; h++)
        for (size_t part = 0; part < s->tiles * T / KV_TILE_PART; part++) {
            s->store.family->expand(&s->store, h,
                                    kv_store_tile(&s->store, h, part / 2),
                                    part % 2, x);
            for (size_t t = 0; t < KV_TILE_PART; t++)
                for (size_t c = 0; c < s->head_dim; c++) {
                    const size_t at =
                        s->store.values ? t * padded + c : c * KV_TILE_PART + t;

                    assert_true(x[at] ==
                                value(s, h, part * KV_TILE_PART + t, c));
                }
            for (size_t c = s->head_dim; s->store.values && c < padded; c++)
                assert_true(x[c] == 0);
        }
    free(x);
}

/* Weight i of [rows][64]: the third row is too small for 8 bits, and in them
 * many of the fourth are halfway between two. */
static float weight(size_t i)
{
    const float x = (float)kv_random_unit(9, i);

    switch (i / T) {
    case 2:
        return ldexpf(x, -94);
    case 3:
        return i % T ? floorf(254 * x) / 256 : 127.0f / 128;
    default:
        return x;
    }
}

/* One head's second tile on path int8 at the level in use: qk [rows][64]
 * or output [rows][head_dim], and how many. */
static size_t run_int8(const struct setup *s, size_t rows, float *out)
{
    const struct kv_store *k = &s->store;
    const struct kv_tile_ops *ops = k->family->ops(k, KV_PATH_INT8);
    const uint8_t *tile = kv_store_tile(k, 1, 1);
    const size_t d = s->head_dim;
    float in[KV_TILE_ROWS * 512];

    assert_non_null(ops);
    if (k->values) {
        float *acc = kv_lines(rows * ops->acc_floats(k), sizeof(*acc));

        for (size_t i = 0; i < rows * T; i++)
            in[i] = weight(i);
        ops->pv(k, 1, tile, in, T, rows, acc);
        ops->pv(k, 1, kv_store_tile(k, 1, 0), in, T, rows, acc);
        ops->finish(k, 1, acc, rows, out);
        free(acc);
        return rows * d;
    }

    void *query = kv_lines(ops->query_bytes(k), 1);

    for (size_t i = 0; i < rows * d; i++)
        in[i] = (float)kv_random_normal(8, i);
    ops->prepare(k, 1, in, rows, query);
    ops->qk(k, 1, tile, query, rows, out, T);
    free(query);
    return rows * T;
}

/* The same in double, to which run_int8() must be close. */
static void run_double(const struct setup *s, size_t rows, double *out)
{
    for (size_t r = 0; r < rows; r++)
        if (s->store.values)
            for (size_t c = 0; c < s->head_dim; c++) {
                double sum = 0;

                for (size_t t = 0; t < T; t++)
                    sum += (double)weight(r * T + t) *
                           ((double)value(s, 1, T + t, c) +
                            (double)value(s, 1, t, c));
                out[r * s->head_dim + c] = sum;
            }
        else
            for (size_t t = 0; t < T; t++) {
                double sum = 0;

                for (size_t c = 0; c < s->head_dim; c++)
                    sum += kv_random_normal(8, r * s->head_dim + c) *
                           (double)value(s, 1, T + t, c);
                out[r * T + t] = sum;
            }
}

static void check_int8(const struct setup *s, size_t rows)
{
    const size_t max = KV_TILE_ROWS * 512;
    float *got = kv_alloc(max, sizeof(*got));
    double *exact = kv_alloc(max, sizeof(*exact));
    const size_t n = run_int8(s, rows, got);
    double e2 = 0, x2 = 0;

    run_double(s, rows, exact);
    for (size_t i = 0; i < n; i++) {
        e2 += pow((double)got[i] - exact[i], 2);
        x2 += pow(exact[i], 2);
    }
    assert_true(sqrt(e2 / x2) < 0.03);
    free(exact);
    free(got);
}

static void check(size_t head_dim, size_t d, unsigned bits, int own,
                  int per_head)
{
    for (int values = 0; values < 2; values++) {
        struct setup s = setup(head_dim, d, bits, own, per_head, values, 2);

        check_expand(&s);
        for (size_t rows = 1; rows <= KV_TILE_ROWS;
             rows += head_dim > 64 ? 3 : 1)
            check_int8(&s, rows);
        clear(&s);
    }
}

static void test_bits(void **state)
{
    (void)state;
    for (unsigned bits = 1; bits <= 12; bits++)
        for (int own = 0; own < 2; own++) {
            check(64, 4, bits, own, 0);
            check(20, 2, bits, own, 1);
        }
    check(16, 8, 16, 0, 0);
}

static void test_dims(void **state)
{
    static const size_t shape[][2] = {{2, 1},   {2, 2},   {6, 3},   {10, 5},
                                      {20, 10}, {24, 12}, {48, 16}, {66, 6},
                                      {128, 8}, {128, 1}, {512, 4}, {320, 16}};
    static const unsigned bits[] = {4, 7, 8, 10};

    (void)state;
    for (size_t i = 0; i < sizeof(shape) / sizeof(*shape); i++)
        for (size_t j = 0; j < sizeof(bits) / sizeof(*bits); j++)
            for (int own = 0; own < 2; own++)
                check(shape[i][0], shape[i][1], bits[j], own, 0);
}

/* The bytes of 64 tokens in one head: codes, packed without gaps if they fill
 * their places. */
static void test_bytes(void **state)
{
    static const struct {
        size_t d;
        unsigned bits;
        size_t bytes;
    } want[] = {{2, 4, 2048},  {2, 8, 4096},  {4, 8, 2048},  {8, 8, 1024},
                {4, 12, 3072}, {8, 10, 1280}, {8, 12, 1536}, {1, 4, 4096}};

    (void)state;
    for (size_t i = 0; i < sizeof(want) / sizeof(*want); i++)
        for (int values = 0; values < 2; values++)
            for (int own = 0; own < 2; own++) {
                struct setup s =
                    setup(128, want[i].d, want[i].bits, own, 0, values, 1);

                assert_int_equal(s.store.tile_bytes, want[i].bytes);
                clear(&s);
            }
}

/* A dimension that is zero in every centroid, and tiny ones. */
static void test_flat(void **state)
{
    static const float size[] = {0, 1e-42f, 1e-30f};

    (void)state;
    for (size_t i = 0; i < 3; i++)
        for (int values = 0; values < 2; values++) {
            struct setup s = setup(32, 4, 8, 0, 0, values, 2);
            float out[KV_TILE_ROWS * T];
            size_t n;

            kv_codebook_free(s.book);
            for (size_t c = 0; c < s.k * s.d; c++)
                s.centers[c] = c % 2 ? size[i] : -size[i];
            s.book =
                kv_codebook_new(s.centers, 1, 1, s.n_sub, s.d, 8, values, NULL);
            kv_store_codebook(&s.store, s.book);
            n = run_int8(&s, 3, out);
            for (size_t k = 0; k < n; k++)
                assert_within(out[k], 0, 1e-27);
            clear(&s);
        }
}

/* Head 1's tiles on path exact, together but for the first `few` (and nothing
 * beside what is asked for), or one by one: qk [rows][tiles * T] or outputs
 * [rows][head_dim], and how many. */
static size_t run_tiles(const struct setup *s, size_t rows, int together,
                        float *out)
{
    const struct kv_store *k = &s->store;
    const struct kv_tile_ops *ops = k->family->ops(k, KV_PATH_EXACT);
    const uint8_t *tile = kv_store_tile(k, 1, 0);
    const size_t n = s->tiles * T, stride = n + 16, d = s->head_dim;
    const size_t few = s->tiles > MANY ? FEW : 0;
    const uint8_t *const rest = tile + few * k->tile_bytes;
    float *x = kv_alloc(rows * stride + rows * d, sizeof(*x));
    float *workspace = kv_lines(KV_TILE_ROWS * (d + 16), sizeof(*workspace));

    assert_true(ops->qk_tiles && ops->pv_tiles);
    if (k->values) {
        for (size_t i = 0; i < rows * stride; i++)
            x[i] = (float)kv_random_unit(9, i);
        if (together && few)
            ops->pv_tiles(k, 1, tile, few, x, stride, rows, workspace);
        if (together)
            ops->pv_tiles(k, 1, rest, s->tiles - few, x + few * T, stride, rows,
                          workspace);
        for (size_t i = 0; !together && i < s->tiles; i++)
            ops->pv(k, 1, tile + i * k->tile_bytes, x + i * T, stride, rows,
                    workspace);
        ops->finish(k, 1, workspace, rows, out);
    } else {
        float *const q = x + rows * stride;

        for (size_t i = 0; i < rows * d; i++)
            q[i] = (float)kv_random_normal(8, i);
        for (size_t i = 0; i < rows * stride; i++)
            x[i] = 12345;
        ops->prepare(k, 1, q, rows, workspace);
        if (together && few)
            ops->qk_tiles(k, 1, tile, few, workspace, rows, x, stride);
        if (together)
            ops->qk_tiles(k, 1, rest, s->tiles - few, workspace, rows,
                          x + few * T, stride);
        for (size_t i = 0; !together && i < s->tiles; i++)
            ops->qk(k, 1, tile + i * k->tile_bytes, workspace, rows, x + i * T,
                    stride);
        for (size_t r = 0; r < rows; r++) {
            memcpy(out + r * n, x + r * stride, n * sizeof(*x));
            for (size_t i = n; i < stride; i++)
                assert_true(x[r * stride + i] == 12345);
        }
    }
    free(workspace);
    free(x);
    return rows * (k->values ? d : n);
}

static void check_tables(size_t head_dim, size_t d, unsigned bits, int own,
                         int per_head, size_t tiles)
{
    const size_t max = KV_TILE_ROWS * (FEW + MANY) * T;
    float *want = kv_alloc(max, sizeof(*want));
    float *got = kv_alloc(max, sizeof(*got));

    for (int values = 0; values < 2; values++) {
        struct setup s = setup(head_dim, d, bits, own, per_head, values, tiles);

        for (size_t rows = 1; rows <= KV_TILE_ROWS; rows++) {
            double e2 = 0, x2 = 0;
            const size_t n = run_tiles(&s, rows, 0, want);

            assert_int_equal(run_tiles(&s, rows, 1, got), n);
            for (size_t i = 0; i < n; i++) {
                e2 += pow((double)got[i] - (double)want[i], 2);
                x2 += pow((double)want[i], 2);
            }
            if (!(e2 <= pow(1e-6, 2) * x2))
                fail_msg("head_dim %zu, d %zu, %u bits, %zu books, %s, %zu "
                         "rows: %g from tile by tile",
                         head_dim, d, bits, s.sub_books,
                         values ? "values" : "keys", rows, sqrt(e2 / x2));
        }
        clear(&s);
    }
    free(want);
    free(got);
}

/* Many tiles: tables of any size, spaces past the last. */
static void test_tables(void **state)
{
    static const size_t shape[][2] = {{2, 2},   {6, 3},   {20, 10}, {36, 12},
                                      {66, 6},  {128, 4}, {40, 8},  {22, 1},
                                      {80, 16}, {42, 2},  {7, 7}};

    (void)state;
    for (unsigned bits = 3; bits <= 8; bits++)
        for (int own = 0; own < 2; own++) {
            check_tables(64, 4, bits, own, 0, FEW + MANY);
            check_tables(20, 2, bits, own, 1, bits > 4 ? bits : 8);
        }
    for (size_t i = 0; i < sizeof(shape) / sizeof(*shape); i++)
        for (unsigned bits = 4; bits <= 8; bits += 4)
            for (int own = 0; own < 2; own++)
                check_tables(shape[i][0], shape[i][1], bits, own, 0, MANY);
}

/* Head 1's keys on path int8 by tables: qk [rows][SOME * T], and what their
 * tables' steps are. */
static void run_tables8(const struct setup *s, size_t rows, float *score,
                        float *step)
{
    const struct kv_store *k = &s->store;
    const struct kv_tile_ops *ops = k->family->ops(k, KV_PATH_INT8);
    float q[KV_TILE_ROWS * 512];
    void *query = kv_lines_unset(ops->query_bytes(k), 1);

    for (size_t i = 0; i < rows * s->head_dim; i++)
        q[i] = (float)kv_random_normal(8, i);
    ops->prepare(k, 1, q, rows, query);
    memcpy(step, ((struct kv_codebook_tables8 *)query)->scale,
           rows * sizeof(*step));
    for (size_t i = 0; i < SOME; i++)
        ops->qk(k, 1, kv_store_tile(k, 1, i), query, rows, score + i * T,
                SOME * T);
    free(query);
}

/* The expected steps: 255 in the largest range of a query's products with a
 * sub-space's centroids, for head 1. */
static double step_of(const struct setup *s, size_t row)
{
    double max = 0;

    for (size_t i = 0; i < s->n_sub; i++) {
        const size_t book =
            (s->head_books > 1) * s->sub_books + (s->sub_books > 1 ? i : 0);
        double low = INFINITY, high = -INFINITY;

        for (size_t j = 0; j < s->k; j++) {
            double sum = 0;

            for (size_t c = 0; c < s->d; c++)
                sum += (double)(float)kv_random_normal(8, row * s->head_dim +
                                                              i * s->d + c) *
                       (double)s->centers[(book * s->k + j) * s->d + c];
            low = fmin(low, sum);
            high = fmax(high, sum);
        }
        max = fmax(max, high - low);
    }
    return max / 255;
}

/* Near what double has. */
static void check_tables8(size_t head_dim, size_t d, unsigned bits, int own,
                          int per_head)
{
    struct setup s = setup(head_dim, d, bits, own, per_head, 0, SOME);
    const size_t max = KV_TILE_ROWS * SOME * T;
    float *want = kv_alloc(max, sizeof(*want));

    s.store.n = 64 * s.k; /* pretends that there are this many */
    assert_true(kv_codebook_tabled8(s.book, s.store.n));
    assert_false(kv_codebook_tabled8(s.book, s.store.n - 1));
    for (size_t rows = 1; rows <= KV_TILE_ROWS; rows++) {
        const size_t n = rows * SOME * T;
        float step[KV_TILE_ROWS];
        double e2 = 0, x2 = 0;

        run_tables8(&s, rows, want, step);
        /* an entry is off by half a step, and floats round */
        for (size_t i = 0; i < n; i++) {
            const size_t r = i / (SOME * T);
            const double off =
                (double)step[r] * 0.5001 * (double)s.n_sub + 1e-4;
            double sum = 0;

            for (size_t c = 0; c < head_dim; c++)
                sum += (double)(float)kv_random_normal(8, r * head_dim + c) *
                       (double)value(&s, 1, i % (SOME * T), c);
            assert_within(want[i], sum, off);
            e2 += pow((double)want[i] - sum, 2);
            x2 += pow(sum, 2);
        }
        assert_true(sqrt(e2 / x2) < 0.015);
        for (size_t r = 0; r < rows; r++)
            assert_within(step[r], step_of(&s, r), 1e-6);
    }
    clear(&s);
    free(want);
}

static void test_tables8(void **state)
{
    static const size_t shape[][2] = {{6, 6},  {12, 4},  {20, 5},  {128, 8},
                                      {66, 6}, {64, 4},  {80, 16}, {56, 8},
                                      {96, 3}, {240, 16}};

    (void)state;
    for (size_t i = 0; i < sizeof(shape) / sizeof(*shape); i++)
        for (unsigned bits = 5; bits <= 8; bits++)
            for (int own = 0; own < 2; own++)
                if (own || shape[i][1] > 4)
                    check_tables8(shape[i][0], shape[i][1], bits, own, i % 2);
    check_tables8(512, 4, 5, 1, 0);
    check_tables8(512, 4, 6, 1, 0);
}

/* Values need no such tables to have an operation on path int8. */
static void test_values8(void **state)
{
    struct setup s = setup(64, 8, 8, 0, 0, 1, 2);

    (void)state;
    s.store.n = 64 * s.k;
    assert_non_null(s.store.family->ops(&s.store, KV_PATH_INT8)->pv);
    clear(&s);
}

/* Tables with one range for all, of zeros, and of tiny numbers. */
static void test_flat8(void **state)
{
    static const float size[] = {0, 1e-42f, 1e-30f};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct setup s = setup(40, 5, 8, 0, 0, 0, SOME);
        float score[3 * SOME * T], step[KV_TILE_ROWS];

        for (size_t c = 0; c < s.k * s.d; c++)
            s.centers[c] = c % 2 ? size[i] : -size[i];
        s.store.n = 64 * s.k;
        run_tables8(&s, 3, score, step);
        for (size_t k = 0; k < 3 * SOME * T; k++)
            assert_within(score[k], 0, 1e-27);
        clear(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits),   cmocka_unit_test(test_dims),
        cmocka_unit_test(test_bytes),  cmocka_unit_test(test_flat),
        cmocka_unit_test(test_tables), cmocka_unit_test(test_tables8),
        cmocka_unit_test(test_flat8),  cmocka_unit_test(test_values8),
    };

    kv_level_set(KV_LEVEL_C, NULL); /* the definition */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
