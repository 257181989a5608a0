/* Layered codecs (lib/codec.h) in fitting and measuring specs; test_conformance
 * tests their codes, test_protocols their loop. */
#include "eval/measure.h"
#include "lib/base/alloc.h"
#include "lib/calib.h"
#include "lib/dump.h"
#include "lib/mixed.h"
#include "lib/policy.h"
#include "lib/seq/cache.h"
#include "tests/append_rows.h"
#include "tests/stacked.h"
#include "tests/synthetic.h"
#include "tests/test.h"

#include <omp.h>

enum { WINDOWS = 3, CTX = 70, LAYERS = 3, SPECS = 3, SEED = 9 };

static struct kv_shape shape_of(void)
{
    struct kv_shape s = synthetic_shape(16);

    s.n_layers = LAYERS;
    return s;
}

static void test_rules(void **state)
{
    struct kv_shape shape = shape_of();
    struct kv_spec s = stacked_spec(2, 1, 4);
    struct kv_err e;

    (void)state;
    assert_int_equal(kv_spec_fit(&s, &shape, &e), 0);
    assert_int_equal(kv_spec_alone(&s, 1, "kvattn", &e), -1);
    assert_says(e, "stacked:n2r4s1 decodes layers from those below");
    assert_int_equal(kv_spec_in_place(&s, 1, "kvgen", &e), -1);
    assert_says(e, "stacked:n2r4s1 has no path in place");
    kv_spec_set(&s, KV_V, "s", 2);
    assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
    assert_says(e, "s is one for K and V");
    s = stacked_spec(1, 0, 0);
    shape.slides[0] = 1 << 2;
    assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
    assert_says(e, "layer 2 slides");
    shape.slides[0] = 0;
    s.policy.policy = kv_policies[0];
    assert_int_equal(kv_spec_fit(&s, &shape, &e), -1);
    assert_says(e, "a policy drops tokens");
}

/* The bytes of K and V, and the reconstruction, of all layers of a window. */
static void by_hand(struct kv_dump *dump, const struct kv_spec *spec,
                    const struct kv_calib *calib, size_t window,
                    struct kv_measured *out)
{
    const struct kv_shape *shape = &kv_dump_info(dump)->shape;
    const size_t row = shape->n_kv_heads * shape->head_dim;
    float *x[KV_SIDES], *back = kv_alloc(CTX, row * sizeof(*back));
    struct kv_cache *cache[LAYERS];
    struct kv_codecs *cs;
    struct kv_err e;

    assert_int_equal(kv_codecs_new(&cs, spec, shape, 0, LAYERS, calib, &e), 0);
    for (int i = 0; i < KV_SIDES; i++)
        x[i] = kv_alloc(CTX, row * sizeof(float));
    for (size_t l = 0; l < LAYERS; l++) {
        struct kv_codec *const *codec = kv_codecs_at(cs, l);

        assert_int_equal(
            kv_dump_read(dump, l, KV_T_K_PRE, window * CTX, CTX, x[KV_K], &e) ||
                kv_dump_read(dump, l, KV_T_V, window * CTX, CTX, x[KV_V], &e) ||
                kv_cache_new(&cache[l], codec[KV_K], codec[KV_V], SEED, &e),
            0);
        kv_cache_put_on(cache[l], l ? cache[l - 1] : NULL);
        assert_int_equal(append_rows(cache[l], NULL, x[KV_K], x[KV_V], CTX, &e),
                         0);
        for (enum kv_side i = KV_K; i < KV_SIDES; i++) {
            struct kv_reconstruction r = {0};

            out[l].bits[i].bytes +=
                (double)kv_cache_bytes(cache[l], i, NULL, NULL);
            kv_cache_decode(cache[l], i, back);
            kv_reconstruction_add(&r, x[i], back, CTX * shape->n_kv_heads,
                                  shape->head_dim);
            kv_reconstruction_merge(&out[l].reconstruction[i], &r);
        }
    }
    kv_cache_free(cache[LAYERS - 1]);
    kv_codecs_free(cs);
    free(x[KV_K]);
    free(x[KV_V]);
    free(back);
}

static void test_measured(void **state)
{
    const struct kv_shape shape = shape_of();
    struct kv_spec specs[SPECS] = {stacked_spec(1, 0, 0),
                                   stacked_spec(2, 2, 5)};
    struct kv_measured got[SPECS][LAYERS], again[SPECS][LAYERS];
    struct kv_dump *dump;
    struct kv_err e = {""};
    char *path;

    (void)state;
    assert_int_equal(kv_spec_parse(&specs[2], "klt:b2s2r5,pair", &e), 0);
    assert_int_equal(kv_spec_fit(&specs[2], &shape, &e), 0);

    struct kv_calib *calib = synthetic_calib(&shape, &specs[2], test_folder());

    synthetic_dump(&shape, WINDOWS, CTX, test_folder(), &path);
    if (kv_dump_open(&dump, path, &e))
        fail_msg("%s", e.msg);
    struct kv_measure_plan plan = {.dump = dump,
                                   .spec = specs,
                                   .n_specs = SPECS,
                                   .calib = calib,
                                   .seed = SEED,
                                   .memory = 1 << 30,
                                   .n_queries = 4};

    omp_set_num_threads(2);
    if (kv_measure(&plan, got[0], &e))
        fail_msg("%s", e.msg);
    omp_set_num_threads(1);
    plan.memory = 1; /* a window at a time */
    assert_int_equal(kv_measure(&plan, again[0], &e), 0);
    assert_memory_equal(got, again, sizeof(got));
    for (size_t s = 0; s < SPECS; s++) {
        struct kv_measured want[LAYERS] = {0};

        for (size_t w = 0; w < WINDOWS; w++)
            by_hand(dump, &specs[s], calib, w, want);
        for (size_t l = 0; l < LAYERS; l++)
            for (int i = 0; i < KV_SIDES; i++) {
                assert_memory_equal(&got[s][l].reconstruction[i],
                                    &want[l].reconstruction[i],
                                    sizeof(want[l].reconstruction[i]));
                assert_true(got[s][l].bits[i].bytes == want[l].bits[i].bytes);
            }
    }
    kv_dump_close(dump);
    kv_calib_free(calib);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_measured),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
