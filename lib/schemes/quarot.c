/* QuaRot's KV cache (arXiv 2404.00456): keys after RoPE and values are rotated
 * by the Hadamard transform, head by head, and quantized per token,
 * asymmetrically, in groups of g channels with a clipped range (section 5:
 * g = 128, clip 0.95).  The storage is rotated.h.
 *
 * decode() rotates keys back, which gives the same logits as rotating queries.
 * It also rotates values back, where the paper folds the transform into the
 * weights before and after attention.
 *
 * The paper leaves a group's zero point open.  Its code has both zero=int, as
 * here, and zero=none (k_asym, v_asym not set).  A group is a head or, with
 * k_groupsize, v_groupsize -1, the whole token, which is g0,heads=all here.
 * zero=min stores the minimum in fp16.
 *
 * (If a group is a token or, for keys, a head, the code first extends the range
 * to include 0.  This differs only if all values have one sign, which is rare
 * in rotated heads.) */
#include "kernels/hadamard.h"
#include "lib/base/alloc.h"
#include "lib/schemes/rotated.h"
#include "lib/schemes/schemes.h"

#include <stdlib.h>
#include <string.h>

static const struct kv_param params[] = {
    KV_ROTATED_RANGE(4, 128, 0.95),
    {"zero", "int|min|none", KV_ZERO_INT, 0, 0, false,
     "a group keeps an integer zero point, its minimum, or (symmetric) "
     "neither"},
    {"heads", "one|all", 0, 0, 0, false,
     "a row of groups is one KV head, or the token's KV heads"},
    {0},
};

static bool all_heads(const struct kv_spec *s, enum kv_side side)
{
    return kv_spec_is(s, side, "heads", "all");
}

static int quarot_check(struct kv_spec *s, const struct kv_shape *shape,
                        struct kv_err *e)
{
    for (int i = 0; i < KV_SIDES; i++) {
        const enum kv_side side = (enum kv_side)i;
        const size_t heads = all_heads(s, side) ? shape->n_kv_heads : 1;

        if (kv_spec_is(s, side, "zero", "none") &&
            kv_spec_size(s, side, "b") < 2)
            return kv_fail(e, "zero=none has codes of both signs and 0: b must "
                              "be at least 2");
        if (kv_integers_fit_row(s, side, heads * shape->head_dim, e))
            return -1;
    }
    return 0;
}

static double quarot_nominal(const struct kv_spec *s, enum kv_side side,
                             const struct kv_shape *shape)
{
    (void)shape;
    return kv_spec_get(s, side, "b");
}

static size_t quarot_hadamard(const struct kv_spec *s,
                              const struct kv_shape *shape)
{
    (void)s;
    return shape->head_dim;
}

static int open_quarot(struct kv_codec *c, const struct kv_calib *calib,
                       struct kv_err *e)
{
    (void)calib;
    (void)e;
    return kv_rotated_open(c, all_heads(&c->spec, c->side));
}

static void quarot_encode(const struct kv_codec *c, struct kv_where w,
                          const float *x, size_t n_blocks, uint8_t *bytes)
{
    const size_t values = n_blocks * kv_codec_block_values(c);
    float *rotated = kv_alloc(values, sizeof(*rotated));

    memcpy(rotated, x, values * sizeof(*rotated));
    kv_hadamard(rotated, n_blocks * c->shape.n_kv_heads, c->shape.head_dim);
    kv_rotated_encode(c, w, rotated, n_blocks, bytes);
    free(rotated);
}

static void quarot_decode(const struct kv_codec *c, const uint8_t *bytes,
                          size_t n_blocks, float *x)
{
    kv_integers_decode(c, bytes, n_blocks, x);
    kv_hadamard(x, n_blocks * c->shape.n_kv_heads, c->shape.head_dim);
}

static void quarot_rotate(const void *head_dim, size_t head, float *x,
                          size_t rows)
{
    (void)head;
    kv_hadamard(x, rows, *(const size_t *)head_dim);
}

/* Queries are rotated, and the output is rotated back: the transform is its own
 * inverse. */
static bool quarot_store(const struct kv_codec *c, struct kv_store *s)
{
    s->enter = s->leave = quarot_rotate;
    s->space = &c->shape.head_dim;
    s->butterfly = (struct kv_butterfly){.has = 1, .hadamard = 1};
    return kv_integers_store(c, s);
}

const struct kv_scheme kv_scheme_quarot = {
    .name = "quarot",
    .brief = "QuaRot: Hadamard-transformed heads, clipped integers per token",
    .params = params,
    .coarse = true, /* a flat head is rotated to one spike */
    .check = quarot_check,
    .nominal = quarot_nominal,
    .hadamard = quarot_hadamard,
    .open = open_quarot,
    .encode = quarot_encode,
    .decode = quarot_decode,
    .store = quarot_store,
    .tile = kv_integers_tile,
};
