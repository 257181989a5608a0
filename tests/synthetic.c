#include "tests/synthetic.h"
#include "kernels/level.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/rng.h"
#include "lib/mixed.h"
#include "lib/rope_table.h"
#include "lib/scheme.h"
#include "tests/test.h"

#include <math.h>

enum { N_LAYERS = 2, N_KV_HEADS = 2 };

static float k_bias[N_LAYERS * N_KV_HEADS * KV_MAX_HEAD_DIM];

struct kv_shape synthetic_shape(size_t head_dim)
{
    struct kv_shape s = {.n_layers = N_LAYERS,
                         .n_heads = 4,
                         .n_kv_heads = N_KV_HEADS,
                         .head_dim = head_dim,
                         .attn_scale = 1 / sqrtf((float)head_dim),
                         .n_rot = head_dim / 2,
                         .k_bias = k_bias};

    for (size_t i = 0; i < N_LAYERS * N_KV_HEADS * KV_MAX_HEAD_DIM; i++)
        k_bias[i] = (float)(3 * kv_random_normal(9, i));
    for (size_t i = 0; i < s.n_rot; i++)
        s.inv_freq[i] = (float)pow(10000, -2.0 * (double)i / (double)head_dim);
    return s;
}

void synthetic_rows(const struct kv_shape *s, size_t heads, uint64_t seed,
                    size_t n, float *x)
{
    const size_t row = heads * s->head_dim;

    for (size_t i = 0; i < row; i++) {
        const double offset = 2 * kv_random_normal(seed + 1, i);
        const double size = exp(0.7 * kv_random_normal(seed + 2, i));

        for (size_t t = 0; t < n; t++)
            x[t * row + i] =
                (float)(offset + size * kv_random_normal(seed, t * row + i));
    }
}

/* Mixes four made-up rows with a little of every direction. */
static void put_gram(struct kv_dump_writer *w, const struct kv_shape *s,
                     size_t layer)
{
    enum { ROWS = 4 };
    const size_t d = s->head_dim, heads = s->n_kv_heads;
    float *x = kv_alloc(ROWS * heads, d * sizeof(*x));
    float *gram = kv_alloc(heads * d, d * sizeof(*gram));
    struct kv_err e;

    synthetic_rows(s, heads, 500 + 10 * layer, ROWS, x);
    for (size_t i = 0; i < heads * d * d; i++) {
        const size_t h = i / d / d, a = i / d % d, b = i % d;

        gram[i] = a == b ? 0.1f : 0;
        for (size_t t = 0; t < ROWS; t++)
            gram[i] += x[(t * heads + h) * d + a] * x[(t * heads + h) * d + b];
    }
    assert_int_equal(kv_dump_put_gram(w, layer, gram, &e), 0);
    free(gram);
    free(x);
}

void synthetic_dump(const struct kv_shape *s, size_t n_windows, size_t ctx,
                    const char *folder, char **path)
{
    struct kv_dump_info info = {
        .model = "synthetic",
        .arch = "none",
        .weights = "f32",
        .model_hash = "0123456789abcdef",
        .text = "none",
        .text_hash = "0123456789abcdef",
        .shape = *s,
        .n_windows = n_windows,
        .ctx = ctx,
        .last_layer = s->n_layers - 1,
        .have = {true, true, !s->latent, true, true, true}};
    const size_t n = n_windows * ctx;
    struct kv_dump_writer *w;
    struct kv_err e = {""};
    int32_t *tokens = kv_alloc(n, sizeof(*tokens));
    float *x = kv_alloc(n, s->n_heads * s->head_dim * sizeof(*x));

    *path = kv_path_join(folder, "dump.h5");
    if (kv_dump_create(&w, *path, &info, &e))
        fail_msg("%s", e.msg);
    for (size_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(kv_random(7, i) % 1000);
    assert_int_equal(kv_dump_put_tokens(w, 0, n_windows, tokens, &e), 0);
    for (size_t layer = 0; layer < s->n_layers; layer++) {
        const uint64_t seed = 1000 * (layer + 1);

        synthetic_rows(s, s->n_heads, seed + 10, n, x);
        assert_int_equal(kv_dump_put(w, layer, KV_T_Q, 0, n_windows, x, &e), 0);
        synthetic_rows(s, s->n_kv_heads, seed + 20, n, x);
        if (!s->latent)
            assert_int_equal(kv_dump_put(w, layer, KV_T_V, 0, n_windows, x, &e),
                             0);
        synthetic_rows(s, s->n_kv_heads, seed + 30, n, x);
        assert_int_equal(kv_dump_put(w, layer, KV_T_K_PRE, 0, n_windows, x, &e),
                         0);
        for (size_t i = 0; i < n_windows; i++)
            kv_rope(s, x + i * ctx * s->n_kv_heads * s->head_dim, ctx,
                    s->n_kv_heads, 0);
        assert_int_equal(kv_dump_put(w, layer, KV_T_K, 0, n_windows, x, &e), 0);
        for (enum kv_tensor t = KV_T_K_GRADIENT; t <= KV_T_V_GRADIENT; t++) {
            synthetic_rows(s, s->n_kv_heads, seed + 40 + t, n, x);
            assert_int_equal(kv_dump_put(w, layer, t, 0, n_windows, x, &e), 0);
        }
        put_gram(w, s, layer);
    }
    if (kv_dump_commit(w, &e))
        fail_msg("%s", e.msg);
    free(x);
    free(tokens);
}

struct kv_calib *synthetic_calib(const struct kv_shape *s,
                                 const struct kv_spec *spec, const char *folder)
{
    return synthetic_calib_on(s, spec, 4, folder);
}

struct kv_calib *synthetic_calib_on(const struct kv_shape *s,
                                    const struct kv_spec *spec,
                                    size_t n_windows, const char *folder)
{
    /* Tables are the same at every level; AVX-512 may be emulated. */
    const enum kv_level level = kv_level_get();
    struct kv_calib *c;
    struct kv_dump *dump;
    struct kv_err e = {""};
    char *path;

    if (!kv_spec_calibrated(spec))
        return NULL;
    if (level > KV_LEVEL_AVX2)
        kv_level_set(KV_LEVEL_AVX2, NULL);
    /* a trellis needs few windows, and takes long */
    if (strcmp(spec->scheme->name, "klt") == 0)
        n_windows = 1;
    synthetic_dump(s, n_windows, 160, folder, &path);
    if (kv_dump_open(&dump, path, &e))
        fail_msg("%s", e.msg);
    c = kv_alloc(1, sizeof(*c));
    c->shape = *s;
    c->has_k_bias = s->k_bias;
    c->norms = kv_alloc(s->n_layers * KV_SIDES, sizeof(*c->norms));
    for (size_t l = 0; l < s->n_layers; l++)
        if (kv_massive_of_dump(dump, l, c->norms + l * KV_SIDES, NULL, &e))
            fail_msg("%s", e.msg);
    c->set = kv_alloc(kv_spec_members(spec), sizeof(*c->set));
    for (size_t i = 0; i < kv_spec_members(spec); i++) {
        const struct kv_spec *member = kv_spec_member(spec, i);
        struct kv_calib_set *set = &c->set[c->n_sets];

        if (!member->scheme->training)
            continue;
        kv_spec_calib_key(member, set->key);
        snprintf(set->spec, sizeof(set->spec), "%s", member->text);
        kv_dump_take_k_bias(dump, kv_spec_is(member, KV_K, "k_bias", "no"));
        if (member->scheme->training->calibrate(member, dump, 1, set, &e))
            fail_msg("%s: %s", member->text, e.msg);
        c->n_sets++;
    }
    kv_dump_close(dump);
    free(path);
    kv_level_set(level, NULL);
    return c;
}
