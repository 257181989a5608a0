/* Every scheme and the kernels below it:
 *
 *   | which: u8 | step: u8 | spoil: u8 | where, level: u8 | tokens as f32 ... |
 *
 * Any finite tokens are encoded, decoded and attended to, in plain C and in
 * tiles; finite values decode to finite values.  A block of variable size with
 * one byte changed is read or refused. */
#include "kernels/level.h"
#include "lib/base/alloc.h"
#include "lib/scheme.h"
#include "lib/seq/cache.h"
#include "lib/seq/tile_cache.h"
#include "tests/append_rows.h"
#include "tests/fuzz/fuzz.h"
#include "tests/synthetic.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX = 80 };

struct ready {
    struct kv_shape shape;
    struct kv_spec spec;
    struct kv_calib *calib;
    struct kv_codec *codec[KV_SIDES];
};

/* One round of k-means, as a calibration need not be good, and chunks that so
 * few tokens fill. */
static void take_little(struct kv_spec *s)
{
    const struct kv_param *p;

    for (size_t i = 0; (p = kv_spec_param(s->scheme, i)); i++)
        for (int side = 0; side < KV_SIDES; side++)
            if (!strcmp(p->name, "iters"))
                kv_spec_set(s, (enum kv_side)side, p->name, 1);
            else if (!strcmp(p->name, "n"))
                kv_spec_set(s, (enum kv_side)side, p->name, 16);
}

/* Codecs by number, made at first use and kept. */
static struct ready *pick(size_t which)
{
    static const char *const letters[] = {"", ":r0", ":s3r0", ":r20"};
    enum { LETTERS = sizeof(letters) / sizeof(*letters), SCHEMES = 64 };
    static struct ready ready[SCHEMES * LETTERS];
    size_t n = 0;
    char text[64];
    struct kv_err e = {""};

    while (kv_schemes[n])
        n++;
    fuzz_expect(n <= SCHEMES, "room for every scheme");
    which %= n * LETTERS;

    struct ready *r = &ready[which];

    if (r->codec[KV_V])
        return r;
    snprintf(text, sizeof(text), "%s%s", kv_schemes[which / LETTERS]->name,
             letters[which % LETTERS]);
    r->shape = synthetic_shape(32);
    if (kv_spec_parse(&r->spec, text, &e))
        return NULL; /* it may have no residual */
    if (!strcmp(r->spec.scheme->name, "klt"))
        return NULL; /* training takes minutes; tests/test_klt.c */
    take_little(&r->spec);
    if (kv_spec_fit(&r->spec, &r->shape, &e))
        return NULL;
    r->calib = synthetic_calib_on(&r->shape, &r->spec, 2, fuzz_folder());
    for (int side = 0; side < KV_SIDES; side++)
        fuzz_expect(!kv_codec_new(&r->codec[side], &r->spec, &r->shape, 1,
                                  (enum kv_side)side, r->calib, &e),
                    e.msg);
    return r;
}

static struct kv_cache *new_cache(const struct ready *r)
{
    struct kv_cache *c;
    struct kv_err e = {""};

    fuzz_expect(!kv_cache_new(&c, r->codec[KV_K], r->codec[KV_V], 5, &e),
                e.msg);
    return c;
}

/* Values from the input, which is read round and round; as large as a dump's
 * may be. */
static void fill(float *x, size_t n, const uint8_t *data, size_t bytes,
                 size_t from, float max)
{
    const size_t have = bytes / sizeof(float);

    for (size_t i = 0; i < n; i++) {
        memcpy(&x[i], data + (from + i) % have * sizeof(float), sizeof(float));
        x[i] = isfinite(x[i]) ? fminf(fmaxf(x[i], -max), max) : 0;
    }
}

static void expect_finite(const float *x, size_t n, const struct ready *r)
{
    for (size_t i = 0; i < n; i++)
        fuzz_expect(isfinite(x[i]), r->spec.text);
}

static void attend_tiles(struct kv_cache *c, const float *q, float *out,
                         const struct ready *r)
{
    struct kv_tile_cache *t;

    if (!kv_tile_cache_stored(c))
        return;
    t = kv_tile_cache_new(c);
    kv_tile_cache_update(t);
    for (enum kv_path p = KV_PATH_EXACT; p <= KV_PATH_INT8; p++)
        if (kv_tile_cache_can(c, p)) {
            kv_tile_cache_attend(&t, kv_cache_view(c, 1), p, q, out, 1);
            expect_finite(out, r->shape.n_heads * r->shape.head_dim, r);
        }
    kv_tile_cache_free(t);
}

/* Decodes a block with one byte changed. */
static void decode_spoilt(const struct kv_cache *c, enum kv_side side,
                          size_t at, uint8_t by, const struct ready *r)
{
    const struct kv_reader held = kv_cache_reader(c, side);
    const struct kv_codec *codec = held.codec;
    struct kv_err e = {""};
    uint8_t *bytes;
    float *x;

    if (!codec->variable || !held.n_blocks)
        return;
    bytes = kv_alloc(held.size[0], 1);
    x = kv_alloc(kv_codec_block_values(codec), sizeof(*x));
    memcpy(bytes, held.blocks, held.size[0]);
    bytes[at % held.size[0]] ^= by;

    const int rc =
        codec->variable->decode_block(codec, bytes, held.size[0], x, &e);

    fuzz_expect_sentence(rc, &e);
    if (!rc)
        expect_finite(x, kv_codec_block_values(codec), r);
    free(x);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    enum { HEAD = 4 };
    struct kv_err e = {""};

    if (bytes < HEAD + sizeof(float))
        return 0;

    kv_level_set(kv_level_max(), &e); /* to calibrate */

    struct ready *r = pick(data[0]);
    if (!r)
        return 0;

    /* a level that this processor lacks is skipped */
    kv_level_set((enum kv_level)(data[3] % (KV_LEVEL_AVX512 + 1)), &e);

    const size_t row = r->shape.n_kv_heads * r->shape.head_dim;
    const size_t q_row = r->shape.n_heads * r->shape.head_dim;
    const size_t n = (bytes - HEAD) / sizeof(float) % MAX + 1;
    const size_t step = data[1] % MAX + 1;
    float *q = kv_alloc(n, q_row * sizeof(*q));
    float *k = kv_alloc(n, row * sizeof(*k)),
          *v = kv_alloc(n, row * sizeof(*v));
    float *x = kv_alloc(n, row * sizeof(*x));
    float *out = kv_alloc(q_row, sizeof(*out));
    struct kv_cache *c = new_cache(r);

    fill(q, n * q_row, data + HEAD, bytes - HEAD, 3, 65504);
    fill(k, n * row, data + HEAD, bytes - HEAD, 0, 1e18f);
    fill(v, n * row, data + HEAD, bytes - HEAD, 7, 1e18f);
    for (size_t t = 0; t < n; t += step) {
        const size_t m = n - t < step ? n - t : step;

        fuzz_expect(
            !append_rows(c, q + t * q_row, k + t * row, v + t * row, m, &e),
            e.msg);
    }
    for (int side = 0; side < KV_SIDES; side++) {
        kv_cache_decode(c, (enum kv_side)side, x);
        expect_finite(x, n * row, r);
    }
    kv_cache_attend(c, kv_cache_view(c, 1), q + (n - 1) * q_row, out);
    attend_tiles(c, q + (n - 1) * q_row, out, r);
    for (int side = 0; side < KV_SIDES; side++)
        decode_spoilt(c, (enum kv_side)side, (size_t)data[3] * data[3], data[2],
                      r);
    kv_cache_free(c);
    free(out);
    free(x);
    free(v);
    free(k);
    free(q);
    return 0;
}

void fuzz_make_seeds(void)
{
    static const float values[] = {1,       -2.5f, 0,     65504,
                                   -65504,  1e-7f, 6e-8f, 3.3e38f,
                                   -1e-40f, 0.1f,  100,   7};
    uint8_t input[4 + sizeof(values)] = {0};

    memcpy(input + 4, values, sizeof(values));
    for (unsigned i = 0; i < 256; i++) {
        char name[16];

        input[0] = (uint8_t)i;
        input[1] = (uint8_t)(i % 80);
        input[3] = (uint8_t)(i % 3);
        snprintf(name, sizeof(name), "%u", i);
        fuzz_seed(name, input, sizeof(input));
    }
}
