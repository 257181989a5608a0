/* The head of dump.h5 and calib.h5: the kind of file, and the model's shape. */
#include "tests/test.h"

#include "lib/h5_head.h"

#include <math.h>

static const char *in_folder(const char *name)
{
    static char path[5000];

    snprintf(path, sizeof(path), "%s/%s", test_folder(), name);
    return path;
}

static struct kv_h5 *create(const char *path)
{
    struct kv_err e = {""};
    struct kv_h5 *h;

    if (kv_h5_create(&h, path, &e))
        fail_msg("%s", e.msg);
    return h;
}

static struct kv_h5 *open_file(const char *path)
{
    struct kv_err e = {""};
    struct kv_h5 *h;

    if (kv_h5_open(&h, path, &e))
        fail_msg("%s", e.msg);
    return h;
}

static struct kv_shape some_shape(void)
{
    return (struct kv_shape){.n_layers = 2,
                             .n_heads = 4,
                             .n_kv_heads = 2,
                             .head_dim = 8,
                             .attn_scale = 0.125f,
                             .n_rot = 4,
                             .inv_freq = {1, 0.5f, 0.25f, 0.125f}};
}

static void heads_come_back(void **state)
{
    const char *path = in_folder("head.h5");
    const struct kv_shape shape = some_shape();
    struct kv_shape back, other = shape;
    struct kv_err e = {""};
    struct kv_h5 *h = create(path);

    (void)state;
    kv_h5_put_kind(h, "kvtools-test", 2);
    assert_int_equal(kv_h5_put_shape(h, &shape, &e), 0);
    assert_int_equal(kv_h5_commit(h, &e), 0);
    h = open_file(path);
    assert_int_equal(kv_h5_check_kind(h, "kvtools-test", 2, &e), 0);
    assert_int_equal(kv_h5_check_kind(h, "kvtools-test", 1, &e), -1);
    assert_says(e, "head.h5 has format 2");
    assert_int_equal(kv_h5_check_kind(h, "kvtools-dump", 2, &e), -1);
    assert_says(e, "is a kvtools-test file, expected a kvtools-dump");
    assert_int_equal(kv_h5_get_shape(h, &back, &e), 0);
    assert_int_equal(kv_shape_same(&back, &shape, &e), 0);
    kv_h5_close(h);
    other.n_kv_heads = 4;
    assert_int_equal(kv_shape_same(&other, &shape, &e), -1);
    assert_says(e, "it has 4 KV heads, expected 2");
    other = shape;
    other.inv_freq[3] = 0.126f;
    assert_int_equal(kv_shape_same(&other, &shape, &e), -1);
    assert_says(e, "rotary frequencies");

    h = create(path);
    assert_int_equal(kv_h5_commit(h, &e), 0);
    h = open_file(path);
    assert_int_equal(kv_h5_check_kind(h, "kvtools-dump", 1, &e), -1);
    assert_says(e, "is not a file of kvtools");
    kv_h5_close(h);
}

/* Features that only some models have, each tested separately. */
enum { CAP, SLOPES, STILL, SLIDES, N_RARE };

static struct kv_shape rare_shape(size_t which)
{
    struct kv_shape s = some_shape();

    s.cap = which == CAP ? 30.5f : 0;
    s.alibi = which == SLOPES;
    for (size_t i = 0; i < s.n_heads && s.alibi; i++)
        s.slope[i] = 0.5f / (float)(i + 1);
    s.still[0] = which == STILL ? 1 << 1 : 0;
    if (which == SLIDES) {
        s.slides[0] = 1 << 1;
        s.slide_window = 7;
        memcpy(s.slide_freq, (float[]){1, 0.4f, 0.2f, 0.1f}, 4 * sizeof(float));
    }
    return s;
}

static struct kv_shape written_and_read(const struct kv_shape *shape)
{
    const char *path = in_folder("rare.h5");
    struct kv_h5 *h = create(path);
    struct kv_err e = {""};
    struct kv_shape back;

    assert_int_equal(kv_h5_put_shape(h, shape, &e), 0);
    assert_int_equal(kv_h5_commit(h, &e), 0);
    h = open_file(path);
    if (kv_h5_get_shape(h, &back, &e))
        fail_msg("%s", e.msg);
    kv_h5_close(h);
    return back;
}

static void caps_slopes_and_windows_come_back(void **state)
{
    static const char *const says[] = {"soft cap is 0, expected 30.5",
                                       "ALiBi slopes",
                                       "layers without RoPE are others",
                                       "sliding window is 0 tokens, expected"};
    const struct kv_shape plain = some_shape();
    struct kv_shape is, back;
    struct kv_err e;

    (void)state;
    assert_int_equal(kv_h5_format(&plain, 5), 4);
    for (size_t i = 0; i < N_RARE; i++) {
        is = rare_shape(i);
        assert_int_equal(kv_h5_format(&is, 5), 5);
        back = written_and_read(&is);
        assert_memory_equal(&back, &is, sizeof(is));
        assert_int_equal(kv_shape_same(&plain, &is, &e), -1);
        assert_says(e, says[i]);
    }
    is.slides[0] = 1;
    assert_int_equal(kv_shape_same(&back, &is, &e), -1);
    assert_says(e, "layers that slide are others");
    is = back;
    is.slide_freq[2] = 0.21f;
    assert_int_equal(kv_shape_same(&back, &is, &e), -1);
    assert_says(e, "frequencies of layers that slide are others");
    memcpy(is.slide_freq, is.inv_freq, sizeof(is.slide_freq));
    assert_int_equal(kv_shape_same(&plain, &is, &e), 0); /* it does not say */
}

/* The error of reading a shape that was written with these numbers. */
static struct kv_err read_shape(const struct kv_shape *shape)
{
    const char *path = in_folder("shape.h5");
    struct kv_err e = {""};
    struct kv_shape back;
    struct kv_h5 *h = create(path);

    assert_int_equal(kv_h5_put_shape(h, shape, &e), 0);
    assert_int_equal(kv_h5_commit(h, &e), 0);
    h = open_file(path);
    assert_int_equal(kv_h5_get_shape(h, &back, &e), -1);
    kv_h5_close(h);
    return e;
}

static void shapes_of_no_numbers_are_refused(void **state)
{
    struct kv_shape s = some_shape();
    struct kv_err e;

    (void)state;
    s.inv_freq[2] = NAN;
    e = read_shape(&s);
    assert_says(e, "/inv_freq holds nan, expected 0 to 6.28319");
    for (size_t i = 0; i < 5; i++) {
        static const float bad[] = {0, -0.5f, NAN, INFINITY, -INFINITY};

        s = some_shape();
        s.attn_scale = bad[i];
        e = read_shape(&s);
        assert_says(e, "attn_scale is ");
        assert_says(e, ", expected a finite f32 above 0");
        s = some_shape();
        s.inv_freq[1] = i ? bad[i] : 7;
        e = read_shape(&s);
        assert_says(e, "/inv_freq holds ");
    }
    s = some_shape();
    s.n_rot = 5;
    e = read_shape(&s);
    assert_says(e, "/inv_freq has 5 entries, expected at most 4");
    s = rare_shape(CAP);
    s.cap = INFINITY;
    e = read_shape(&s);
    assert_says(e, "attn_cap is inf, expected a finite f32 above 0");
    s = rare_shape(SLOPES);
    s.slope[2] = NAN;
    e = read_shape(&s);
    assert_says(e, "/slopes holds nan, expected -1 to 1");
    s = rare_shape(SLIDES);
    s.slide_freq[1] = -1;
    e = read_shape(&s);
    assert_says(e, "/slide_inv_freq holds -1");
    s.slide_window = SIZE_MAX;
    e = read_shape(&s);
    assert_says(e, "slide_window of / is -1, expected 1 to");
}

/* RoPE of a part of a head, or of neighbours; and a file of a part that does
 * not say which channels go together. */
static void pairs_come_back(void **state)
{
    static const size_t n_freq[] = {2};
    const char *path = in_folder("part.h5");
    const struct kv_shape plain = some_shape();
    struct kv_shape is = some_shape(), back;
    struct kv_err e = {""};
    struct kv_h5 *h;

    (void)state;
    assert_false(kv_h5_has_pairs(&is));
    is.neighbours = is.ggml_neighbours = true;
    assert_true(kv_h5_has_pairs(&is));
    back = written_and_read(&is);
    assert_memory_equal(&back, &is, sizeof(is));
    assert_int_equal(kv_shape_same(&plain, &is, &e), -1);
    assert_says(e, "turns halves of a head, expected neighbours");
    is = some_shape();
    is.n_rot = 2;
    is.inv_freq[2] = is.inv_freq[3] = 0;
    assert_true(kv_h5_has_pairs(&is));
    back = written_and_read(&is);
    assert_memory_equal(&back, &is, sizeof(is));
    h = create(path);
    kv_h5_put_int(h, "/", "n_layers", 2);
    kv_h5_put_int(h, "/", "n_heads", 4);
    kv_h5_put_int(h, "/", "n_kv_heads", 2);
    kv_h5_put_int(h, "/", "head_dim", 8);
    kv_h5_put_real(h, "/", "attn_scale", 0.5);
    kv_h5_dataset(h, "/inv_freq", KV_H5_F32, 1, n_freq);
    assert_int_equal(
        kv_h5_write(h, "/inv_freq", KV_H5_F32, NULL, NULL, is.inv_freq, &e), 0);
    assert_int_equal(kv_h5_commit(h, &e), 0);
    h = open_file(path);
    assert_int_equal(kv_h5_get_shape(h, &back, &e), -1);
    assert_says(e, "RoPE turns 4 of 8 channels, and no attribute rope_pairs");
    kv_h5_close(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_come_back),
        cmocka_unit_test(caps_slopes_and_windows_come_back),
        cmocka_unit_test(pairs_come_back),
        cmocka_unit_test(shapes_of_no_numbers_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
