/* The codes that kv_measure() writes: bits are their bytes, and codes that are
 * read back measure the same, of every scheme. */
#include "tests/measure_setup.h"

/* All windows of a layer and side: one dataset, or one for each window. */
static double bytes_in_file(struct kv_h5 *h, const char *place)
{
    size_t n_dims, dims[KV_H5_MAX_DIMS];
    char name[96];
    double bytes = 0;
    struct kv_err e;

    snprintf(name, sizeof(name), "%s/window_000", place);
    if (!kv_h5_has(h, name)) {
        assert_int_equal(kv_h5_dims(h, place, &n_dims, dims, &e), 0);
        assert_int_equal(n_dims, 2);
        assert_int_equal(dims[0], N_WINDOWS);
        return (double)(dims[0] * dims[1]);
    }
    for (size_t w = 0; w < N_WINDOWS; w++) {
        snprintf(name, sizeof(name), "%s/window_%03zu", place, w);
        assert_int_equal(kv_h5_dims(h, name, &n_dims, dims, &e), 0);
        assert_int_equal(n_dims, 1);
        bytes += (double)dims[0];
    }
    return bytes;
}

/* A factor that makes a value massive if its norm exceeds that of layer 1's
 * first. */
static struct kv_calib *some_massive(struct kv_dump *dump)
{
    const struct kv_shape *s = &kv_dump_info(dump)->shape;
    const size_t row = s->n_kv_heads * s->head_dim;
    struct kv_calib *c = kv_alloc(1, sizeof(*c));
    float *v = kv_alloc(row, sizeof(*v)), norm = 0;
    struct kv_err e = {""};

    assert_int_equal(kv_dump_read(dump, 1, KV_T_V, 0, 1, v, &e), 0);
    for (size_t i = 0; i < row; i++)
        norm = hypotf(norm, v[i]);
    free(v);
    c->has_k_bias = s->k_bias;
    c->norms = kv_alloc(s->n_layers * KV_SIDES, sizeof(*c->norms));
    for (size_t i = 0; i < s->n_layers * KV_SIDES; i++)
        c->norms[i] = (struct kv_norm_range){0, i % 2 ? norm : 1e9f};
    return c;
}

/* A layer's held_bytes in the file, summed over windows, by side. */
static void held_in_file(struct kv_h5 *h, size_t spec, size_t layer,
                         double held[KV_SIDES])
{
    const size_t dims[] = {N_WINDOWS, KV_SIDES};
    uint64_t x[N_WINDOWS][KV_SIDES];
    char name[64];
    struct kv_err e = {""};

    snprintf(name, sizeof(name), "/spec_%03zu/layer_%03zu/held_bytes", spec,
             layer);
    assert_int_equal(kv_h5_check(h, name, KV_H5_U64, 2, dims, &e) ||
                         kv_h5_read(h, name, KV_H5_U64, NULL, NULL, x, &e),
                     0);
    for (int side = 0; side < KV_SIDES; side++)
        for (size_t w = held[side] = 0; w < N_WINDOWS; w++)
            held[side] += (double)x[w][side];
}

/* Codes that are read in place of encoding measure the same. */
static void check_read_back(struct kv_measure_plan plan, const char *path,
                            const struct kv_measured *out)
{
    struct kv_measured *again;
    struct kv_err e = {""};

    plan.codes = NULL;
    assert_int_equal(kv_codes_open(&plan.from, path, &e), 0);
    again = measure(&plan);
    assert_memory_equal(out, again, plan.n_specs * N_LAYERS * sizeof(*out));
    kv_codes_close(plan.from);
    free(again);
}

/* bits = 8 * held_bytes in the file / values, for every scheme and side;
 * without a sliding window a layer holds all bytes. */
static void check_codes(struct kv_dump_info info)
{
    const struct kv_codes_info codes = {.shape = info.shape,
                                        .n_windows = N_WINDOWS,
                                        .ctx = CTX,
                                        .first_layer = 1,
                                        .last_layer = N_LAYERS};
    struct kv_dump *dump = dump_of(info);
    struct kv_calib *calib = some_massive(dump);
    struct kv_spec spec[MAX_SPECS];
    struct kv_measure_plan plan = {
        .dump = dump,
        .spec = spec,
        .n_specs = every_spec(&kv_dump_info(dump)->shape, spec),
        .calib = calib,
        .memory = 0};
    struct kv_measured *out;
    struct kv_err e = {""};
    struct kv_h5 *h;
    char path[5000], name[64];

    assert_int_equal(kv_spec_parse(&spec[plan.n_specs], "nf4:r0,massive", &e) ||
                         kv_spec_fit(&spec[plan.n_specs], &info.shape, &e),
                     0);
    plan.n_specs++;
    snprintf(path, sizeof(path), "%s/codes.h5", test_folder());
    assert_int_equal(kv_codes_create(&plan.codes, path, &codes, &e), 0);
    out = measure(&plan);
    assert_false(kv_file_exists(path));
    assert_int_equal(kv_codes_commit(plan.codes, &e), 0);
    assert_int_equal(kv_h5_open(&h, path, &e), 0);
    for (size_t s = 0; s < plan.n_specs; s++) {
        snprintf(name, sizeof(name), "/spec_%03zu", s);

        char text[KV_SPEC_CHARS];

        assert_int_equal(
            kv_h5_get_text(h, name, "spec", text, sizeof(text), &e), 0);
        assert_string_equal(text, spec[s].text);
        for (size_t i = 0; i < N_LAYERS; i++) {
            double held[KV_SIDES];

            held_in_file(h, s, 1 + i, held);
            for (int side = 0; side < KV_SIDES; side++) {
                const double want = out[s * N_LAYERS + i].bits[side].bytes;

                snprintf(name, sizeof(name), "/spec_%03zu/layer_%03zu/%c", s,
                         1 + i, side == KV_K ? 'k' : 'v');
                if (held[side] != want ||
                    (!kv_shape_slides(&info.shape, 1 + i) &&
                     bytes_in_file(h, name) != want))
                    fail_msg("%s %s: %g bytes in the file, %g held, %g "
                             "measured",
                             spec[s].text, name, bytes_in_file(h, name),
                             held[side], want);
            }
        }
    }
    kv_h5_close(h);
    if (info.shape.slide_window)
        check_read_back(plan, path, out);
    unlink(path);
    free(out);
    kv_calib_free(calib);
    kv_dump_close(dump);
}

static void test_codes_hold_the_bits(void **state)
{
    (void)state;
    check_codes(example_info());
    check_codes(sliding_info());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codes_hold_the_bits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
