/* Shared by the tests of HACK: values, a cache of one layer, the specs. */
#ifndef KV_HACK_SETUP_H
#define KV_HACK_SETUP_H

#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "lib/seq/cache.h"
#include "tests/append_rows.h"
#include "tests/test.h"

#include <math.h>

enum { HEADS = 4, KV_HEADS = 2, GROUP = HEADS / KV_HEADS, LAYER = 3 };
enum { SEED = 7 };

/* Normal values; every eighth channel is larger and off centre. */
static inline float *values(size_t n, size_t heads, size_t d, uint64_t key)
{
    float *x = kv_alloc(n * heads * d, sizeof(*x));

    for (size_t i = 0; i < n * heads * d; i++) {
        const double z = kv_random_normal(key, i);

        x[i] =
            kv_f16_to_f32(kv_f32_to_f16((float)(i % 8 == 3 ? 4 * z + 3 : z)));
    }
    return x;
}

/* The partition of d channels under axes=artifact. */
static inline size_t channel_part(size_t p, size_t d)
{
    size_t part = p < d ? p : d;

    while (d % part)
        part -= 16;
    return part;
}

struct setup {
    struct kv_shape shape;
    struct kv_spec spec;
    struct kv_codec *codec[KV_SIDES];
    struct kv_cache *cache;
};

static inline void set_up(struct setup *s, const char *text, size_t d)
{
    struct kv_err e = {""};

    s->shape = (struct kv_shape){.n_layers = LAYER + 1,
                                 .n_heads = HEADS,
                                 .n_kv_heads = KV_HEADS,
                                 .head_dim = d,
                                 .attn_scale = 1 / sqrtf((float)d)};
    if (kv_spec_parse(&s->spec, text, &e) ||
        kv_spec_fit(&s->spec, &s->shape, &e))
        fail_msg("%s", e.msg);
    for (int i = 0; i < KV_SIDES; i++)
        assert_int_equal(kv_codec_new(&s->codec[i], &s->spec, &s->shape, LAYER,
                                      (enum kv_side)i, NULL, &e),
                         0);
    assert_int_equal(
        kv_cache_new(&s->cache, s->codec[KV_K], s->codec[KV_V], SEED, &e), 0);
}

static inline void tear_down(struct setup *s)
{
    kv_cache_free(s->cache);
    kv_codec_free(s->codec[KV_K]);
    kv_codec_free(s->codec[KV_V]);
}

static inline void append(struct setup *s, const float *k, const float *v,
                          size_t n)
{
    assert_int_equal(append_rows(s->cache, NULL, k, v, n, NULL), 0);
}

static const char *const every[] = {
    "hack:b2p64",
    "hack:b2p64,no-se",
    "hack:b3p32,nearest",
    "hack:b4p128s3",
    "hack:b8p16r5",
    "hack:b2p32,no-rqe",
    "hack:b2p48,no-rqe,nearest,no-se",
    "hack:b2p64s4,artifact",
    "hack:b5p32,artifact,stochastic,no-se,qb=6",
    "hack:b2p96s1,K-axes=artifact,stochastic",
    "hack:b2p64s4,artifact,no-rqe",
    "hack:b3p32s2,artifact,bf16",
    "hack:b4p16s1,artifact,stochastic,no-rqe",
    "hack:b2p64,V-axes=artifact,K-round=nearest,V-qb=7",
};
enum { N_EVERY = sizeof(every) / sizeof(*every) };

#endif
