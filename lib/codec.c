#include "lib/codec.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"
#include "lib/calib.h"
#include "lib/codec_impl.h"
#include "lib/exec.h"
#include "lib/k_bias.h"
#include "lib/mixed.h"
#include "lib/rope_table.h"
#include "lib/scheme.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const struct kv_scheme *kv_scheme_find(const char *name)
{
    for (size_t i = 0; kv_schemes[i]; i++)
        if (!strcmp(kv_schemes[i]->name, name))
            return kv_schemes[i];
    return !strcmp(kv_scheme_mixed.name, name)  ? &kv_scheme_mixed
           : !strcmp(kv_scheme_exec.name, name) ? &kv_scheme_exec
                                                : NULL;
}

/* Takes the norm ranges of the codec's layer from the calibration; fails if the
 * calibration has none that fit. */
static int find_norms(struct kv_codec *c, const struct kv_calib *calib,
                      struct kv_err *e)
{
    const char *path = calib && calib->path ? calib->path : "the calibration";

    if (!calib)
        return kv_fail(e, "massive=yes needs a calibration, for the norms of "
                          "tokens (kvcalib, then -C FILE)");
    if (!calib->norms)
        return kv_fail(e,
                       "%s was made without the norms of tokens that "
                       "massive=yes needs: kvcalib makes it anew",
                       path);
    if (calib->has_k_bias != (c->shape.k_bias != NULL))
        return kv_fail(e,
                       "%s has norms of keys %s the model's bias, massive=yes "
                       "needs them %s: kvcalib makes it anew from a new dump",
                       path, calib->has_k_bias ? "without" : "with",
                       calib->has_k_bias ? "with" : "without");
    memcpy(c->norms, calib->norms + c->layer * KV_SIDES, sizeof(c->norms));
    for (int side = 0; side < KV_SIDES; side++)
        if (isinf(c->norms[side].high))
            return kv_fail(e,
                           "%s has no norms of layer %zu, %c, which "
                           "massive=yes needs: its dump lacked them",
                           path, c->layer, kv_side_name((enum kv_side)side));
    return 0;
}

static int open_massive(struct kv_codec *c, const struct kv_calib *calib,
                        struct kv_err *e)
{
    const char *name = c->scheme->name;

    c->massive = c->n_traced || kv_spec_is(&c->spec, c->side, "massive", "yes");
    if (!c->massive || c->n_traced)
        return 0;
    if (c->scheme->wide)
        return kv_fail(e, "massive=yes: %s keeps every token in one form",
                       name);
    if (kv_codec_attends(c))
        return kv_fail(e, "massive=yes: %s attends on its codes alone", name);
    return find_norms(c, calib, e);
}

/* Applies the spec words that all schemes have: k_bias, massive. */
static int open_words(struct kv_codec *c, const struct kv_calib *calib,
                      struct kv_err *e)
{
    c->less_bias =
        c->side == KV_K && kv_spec_is(&c->spec, KV_K, "k_bias", "no");
    return open_massive(c, calib, e);
}

int kv_codec_new(struct kv_codec **out, const struct kv_spec *spec,
                 const struct kv_shape *shape, size_t layer, enum kv_side side,
                 const struct kv_calib *calib, struct kv_err *e)
{
    const struct kv_spec *mine = kv_spec_at(spec, layer, side);
    struct kv_codec *c = kv_alloc(1, sizeof(*c));

    *c = (struct kv_codec){.scheme = mine->scheme,
                           .spec = *mine,
                           .shape = kv_shape_layer(shape, layer),
                           .layer = layer,
                           .side = side,
                           .layered = kv_spec_layered(mine, layer),
                           .residual_rule = mine->scheme->residual_rule[side]};
    if (c->scheme->open(c, calib, e) || open_words(c, calib, e)) {
        kv_codec_free(c);
        return kv_fail_in(e, "%s", mine->text);
    }
    assert(c->block && c->block_bytes);
    assert(!c->scheme->probe || !c->history);
    assert(!c->scheme->probe || !c->pre_rope || c->scheme->anchors);
    assert(!c->history || kv_codec_attends(c));
    assert(!c->layered || (c->block == 1 && !c->variable && !c->history));
    *out = c;
    return 0;
}

void kv_codec_free(struct kv_codec *c)
{
    if (!c)
        return;
    kv_codec_place_free(c->place);
    if (c->scheme->close)
        c->scheme->close(c);
    else
        free(c->state);
    free(c);
}

struct kv_codecs {
    size_t first, n_layers;
    struct kv_codec *codec[][KV_SIDES]; /* [n_layers] */
};

int kv_codecs_new(struct kv_codecs **out, const struct kv_spec *spec,
                  const struct kv_shape *shape, size_t first, size_t n_layers,
                  const struct kv_calib *calib, struct kv_err *e)
{
    struct kv_codecs *cs =
        kv_alloc(1, sizeof(*cs) + n_layers * sizeof(*cs->codec));

    cs->first = first;
    cs->n_layers = n_layers;
    for (size_t i = 0; i < n_layers * KV_SIDES; i++) {
        struct kv_codec **codec = cs->codec[i / KV_SIDES];

        if (i % KV_SIDES == KV_V && shape->latent)
            codec[KV_V] = codec[KV_K];
        else if (kv_codec_new(&codec[i % KV_SIDES], spec, shape,
                              first + i / KV_SIDES,
                              (enum kv_side)(i % KV_SIDES), calib, e)) {
            kv_codecs_free(cs);
            return -1;
        }
    }
    *out = cs;
    return 0;
}

void kv_codecs_free(struct kv_codecs *cs)
{
    for (size_t i = 0; cs && i < cs->n_layers; i++) {
        if (cs->codec[i][KV_V] != cs->codec[i][KV_K])
            kv_codec_free(cs->codec[i][KV_V]);
        kv_codec_free(cs->codec[i][KV_K]);
    }
    free(cs);
}

struct kv_codec *const *kv_codecs_at(const struct kv_codecs *cs, size_t layer)
{
    assert(layer >= cs->first && layer - cs->first < cs->n_layers);
    return cs->codec[layer - cs->first];
}

int kv_codec_encode(const struct kv_codec *c, struct kv_where w, const float *x,
                    size_t n_blocks, uint8_t *bytes, struct kv_err *e)
{
    if (c->place)
        return kv_codec_place_encode(c, w, x, n_blocks, bytes, e);
    c->scheme->encode(c, w, x, n_blocks, bytes);
    return 0;
}

int kv_codec_decode(const struct kv_codec *c, const uint8_t *bytes,
                    size_t n_blocks, float *x, struct kv_err *e)
{
    if (c->place)
        return kv_codec_place_decode(c, bytes, n_blocks, x, e);
    c->scheme->decode(c, bytes, n_blocks, x);
    return 0;
}

void kv_codec_input(const struct kv_codec *c, const float *x, size_t n,
                    float *out)
{
    const size_t values = n * c->shape.n_kv_heads * c->shape.head_dim;

    if (c->scheme->wide) {
        memmove(out, x, values * sizeof(*out));
        return;
    }
    kv_round_f16(x, values, out);
}

size_t kv_beyond_f16(const float *x, size_t n)
{
    size_t beyond = 0;

    for (size_t i = 0; i < n; i++)
        beyond += fabsf(x[i]) >= 65520;
    return beyond;
}

size_t kv_codec_clipped(const struct kv_codec *c, const float *x, size_t n)
{
    return c->scheme->wide ? 0 : kv_beyond_f16(x, n * kv_codec_row(c));
}

void kv_codec_unquantized(const struct kv_codec *c, size_t first,
                          const float *x, size_t n, float *out)
{
    if (c->less_bias) {
        kv_k_bias_take(&c->shape, c->pre_rope, first, x, n, out);
        x = out;
    }
    kv_codec_input(c, x, n, out);
    if (c->less_bias)
        kv_k_bias_add(&c->shape, c->pre_rope, first, out, n);
}

bool kv_codec_attends(const struct kv_codec *c)
{
    return c->scheme->attend;
}

bool kv_codec_codes_alone(const struct kv_codec *c)
{
    return !c->less_bias && !c->massive;
}

bool kv_codec_varies(const struct kv_codec *c)
{
    return c->variable || c->massive;
}

void kv_codec_rotate(const struct kv_codec *c, float *x, size_t n)
{
    if (c->pre_rope)
        kv_rope(&c->shape, x, n, c->shape.n_kv_heads, 0);
}

bool kv_codec_transforms(const struct kv_codec *c)
{
    return c->scheme->coefficients && !c->layered && !c->partial;
}

void kv_codec_coefficients(const struct kv_codec *c, size_t first,
                           const float *x, size_t n, float *y)
{
    float *less = NULL;

    if (c->less_bias) {
        less = kv_alloc(n, kv_codec_row(c) * sizeof(*less));
        kv_k_bias_take(&c->shape, c->pre_rope, first, x, n, less);
        x = less;
    }
    c->scheme->coefficients(c, x, n, y);
    free(less);
}

int kv_check_finite(size_t layer, char name, size_t first, const float *x,
                    size_t n, size_t row, struct kv_err *e)
{
    if (kv_row_is_finite(x, n * row))
        return 0;
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < row; i++)
            if (!isfinite(x[t * row + i]))
                return kv_fail(e,
                               "layer %zu, %c, token %zu, value %zu: %s in the "
                               "input",
                               layer, name, first + t, i,
                               isnan(x[t * row + i]) ? "NaN" : "infinity");
    return 0;
}
