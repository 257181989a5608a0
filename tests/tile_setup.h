/* Shared by the tests of tiles: a codec's blocks in tiles, and specs, without
 * calibration, of each family. */
#ifndef KV_TILE_SETUP_H
#define KV_TILE_SETUP_H

#include "kernels/tiles/tiles.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"
#include "lib/scheme.h"
#include "tests/codec_setup.h"
#include "tests/synthetic.h"

#include <math.h>

/* A codec's blocks, decoded and in tiles. */
struct held {
    struct kv_codec *codec;
    struct kv_store store;
    size_t n;
    float *x; /* [n][n_kv_heads][head_dim] */
};

/* Makes normal values of all magnitudes that fp16 holds; some tokens are
 * zeros. */
static inline void wide_rows(size_t row, size_t n, float *x)
{
    for (size_t i = 0; i < n * row; i++) {
        const size_t t = i / row;
        const float size = t % 9 == 4 ? 0 : ldexpf(1, (int)(t % 37) - 22);

        x[i] = size * (float)kv_random_normal(1, i);
    }
}

/* Encodes at least n tokens, of synthetic or wide rows, into tiles; false if
 * the codec has no tiles. */
static inline bool hold(struct held *h, const char *text, size_t head_dim,
                        enum kv_side side, size_t n, bool wide)
{
    const struct kv_shape shape = synthetic_shape(head_dim);
    struct kv_codec *c = codec_of(text, &shape, 0, side);
    const size_t blocks = (n + c->block - 1) / c->block;
    const struct kv_where w = {.seed = 3};
    uint8_t *bytes = kv_alloc(blocks, c->block_bytes);

    *h = (struct held){
        .codec = c, .n = blocks * c->block, .store.values = side == KV_V};
    h->store.n_heads = shape.n_kv_heads;
    h->store.head_dim = head_dim;
    h->x = kv_alloc(blocks, kv_codec_block_values(c) * sizeof(float));
    if (wide)
        wide_rows(shape.n_kv_heads * head_dim, h->n, h->x);
    else
        synthetic_rows(&shape, shape.n_kv_heads, 7, h->n, h->x);
    kv_codec_input(c, h->x, h->n, h->x);
    c->scheme->encode(c, w, h->x, blocks, bytes);
    c->scheme->decode(c, bytes, blocks, h->x);

    const bool there = c->scheme->store(c, &h->store);

    if (there) {
        kv_store_resize(&h->store, h->n);
        for (size_t i = 0; i < shape.n_kv_heads * kv_store_tiles(&h->store);
             i++) {
            const size_t head = i % shape.n_kv_heads;
            const size_t tile = i / shape.n_kv_heads;
            const size_t at = tile * KV_TILE_TOKENS, left = h->n - at;

            c->scheme->tile(c, &h->store, bytes, at,
                            left < KV_TILE_TOKENS ? left : KV_TILE_TOKENS, head,
                            kv_store_tile(&h->store, head, tile));
        }
    }
    free(bytes);
    return there;
}

static inline void let_go(struct held *h)
{
    kv_store_free(&h->store);
    kv_codec_free(h->codec);
    free(h->x);
}

static const char *const integers_specs[] = {
    "kivi:b2g32r32",
    "kivi:b3g128r128",
    "kivi:b1g16r16",
    "kivi:b5g64r64",
    "kivi:b6g20r320",
    "kivi:b7g64r64",
    "kivi:b8g192r192",
    "kivi:b2g32r0,axis=token",
    "kivi:b4g64r64,axis=channel",
    "kivi:b3g16r0,K-axis=token,V-axis=channel",
    "absmax:b4g4",
    "absmax:b2g16",
    "absmax:b8",
    "absmax:b3,heads=all",
    "zeropoint:b4g16",
    "zeropoint:b8",
    "zeropoint:b5g64,axis=channel",
    "absmax:b4g8,axis=channel",
    "absmax:b3g256,axis=channel",
    "hack:b2p64r0",
    "hack:b8p128r0",
    "hack:b3p32r0",
    "q8_0",
    "q5_1",
    "q5_0",
    "q4_1",
    "q4_0"};
static const size_t integers_dims[] = {32, 40, 48, 64, 80, 128, 320};

static inline bool fits(const char *text, size_t head_dim)
{
    const struct kv_shape shape = synthetic_shape(head_dim);
    struct kv_spec s;
    struct kv_err e;

    return !kv_spec_parse(&s, text, &e) && !kv_spec_fit(&s, &shape, &e);
}

static const struct {
    const char *text;
    size_t head_dim;
} scaled_specs[] = {
    {"nf4", 64},
    {"nf4:g20", 20},
    {"nf4:g16", 128},
    {"nf3:g16,heads=all", 64},
    {"nf2:g0", 40},
    {"iq4_nl", 32},
    {"iq4_nl", 128},
    {"fp4", 64},
    {"fp4:g22", 22},
    {"fp4,scale=none", 34},
    {"mxfp4", 128},
    {"nvfp4", 48},
    {"fp6", 64},
    {"fp6:e3m2,scale=token", 38},
    {"fp6,scale=none", 18},
    {"mxfp6", 96},
    {"mxfp6:e3m2", 64},
    {"fp8", 64},
    {"fp8:e5m2,scale=token", 26},
    {"fp8,scale=none", 20},
    {"fp8:e5m2,scale=none", 64},
    {"mxfp8", 20},
    {"mxfp8:e5m2", 512},
    {"turboquant:b1", 64},
    {"turboquant:b1", 24},
    {"turboquant:b2", 128},
    {"turboquant:b3", 64},
    {"turboquant:b3", 40},
    {"turboquant:b4", 256},
};

#endif
