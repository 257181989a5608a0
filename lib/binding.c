#include "lib/binding.h"
#include "lib/base/alloc.h"
#include "lib/base/hash.h"
#include "lib/mixed.h"
#include "lib/policy.h"
#include "lib/scheme.h"
#include "lib/seq/cache_bytes.h"
#include "lib/seq/policy_cache.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kv_binding {
    struct kv_spec spec; /* fitted */
    struct kv_shape shape;
    struct kv_calib *calib; /* or NULL */
    struct kv_codecs *codecs;
    float *k_bias; /* the array that shape.k_bias points to */
};

/* ---- the model ----------------------------------------------------------- */

static int check_sizes(const struct kv_binding_model *m, struct kv_err *e)
{
    if (!m->n_layers || m->n_layers > KV_MAX_LAYERS)
        return kv_fail(e, "a model of %zu layers: expected 1 to %d",
                       m->n_layers, KV_MAX_LAYERS);
    if (!m->head_dim || m->head_dim % 2 || m->head_dim > KV_MAX_HEAD_DIM)
        return kv_fail(e,
                       "heads of %zu channels: expected an even number up to "
                       "%d",
                       m->head_dim, KV_MAX_HEAD_DIM);
    if (!m->n_kv_heads || m->n_heads % m->n_kv_heads || !m->n_heads)
        return kv_fail(e,
                       "%zu query heads and %zu KV heads: expected a multiple",
                       m->n_heads, m->n_kv_heads);
    if (m->n_rot > m->head_dim / 2)
        return kv_fail(e, "RoPE of %zu pairs in heads of %zu channels",
                       m->n_rot, m->head_dim);
    return 0;
}

static void set_bits(uint64_t *word, const uint8_t *is, size_t n)
{
    for (size_t i = 0; is && i < n; i++)
        word[i / 64] |= (uint64_t)(is[i] != 0) << i % 64;
}

static int set_shape(struct kv_shape *s, const struct kv_binding_model *m,
                     struct kv_err *e)
{
    if (check_sizes(m, e))
        return -1;
    *s = (struct kv_shape){.n_layers = m->n_layers,
                           .n_heads = m->n_heads,
                           .n_kv_heads = m->n_kv_heads,
                           .head_dim = m->head_dim,
                           .attn_scale = m->attn_scale,
                           .cap = m->cap,
                           .n_rot = m->n_rot,
                           .neighbours = m->neighbours,
                           .ggml_neighbours = m->ggml_neighbours,
                           .slide_window = m->slide_window};
    if (m->n_rot)
        memcpy(s->inv_freq, m->inv_freq, m->n_rot * sizeof(float));
    if (m->n_rot && m->slides)
        memcpy(s->slide_freq, m->slide_freq, m->n_rot * sizeof(float));
    set_bits(s->slides, m->slides, m->n_layers);
    set_bits(s->still, m->still, m->n_layers);
    return 0;
}

static bool close_to(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(a[i] - b[i]) <= 1e-5f * fabsf(b[i])))
            return false;
    return true;
}

/* The caller's numbers may be rounded differently from the calibration's.
 * Numbers that are close are replaced by the calibration's. */
static int take_calib_shape(struct kv_shape *s, const struct kv_calib *c,
                            struct kv_err *e)
{
    const struct kv_shape *of = &c->shape;

    if (s->n_rot == of->n_rot && close_to(s->inv_freq, of->inv_freq, s->n_rot))
        memcpy(s->inv_freq, of->inv_freq, sizeof(s->inv_freq));
    if (s->n_rot == of->n_rot &&
        close_to(s->slide_freq, of->slide_freq, s->n_rot))
        memcpy(s->slide_freq, of->slide_freq, sizeof(s->slide_freq));
    if (close_to(&s->attn_scale, &of->attn_scale, 1))
        s->attn_scale = of->attn_scale;
    return kv_calib_check_model(c, c->path, NULL, s, e);
}

static int open_model(struct kv_binding *b, const struct kv_binding_model *m,
                      struct kv_err *e)
{
    const size_t row = m ? m->n_kv_heads * m->head_dim : 0;

    if (!m && !b->calib)
        return kv_fail(e, "a spec wants a model or a calibration");
    if (!m) {
        b->shape = b->calib->shape;
        b->shape.k_bias = NULL; /* the calibration does not hold it */
        return 0;
    }
    if (set_shape(&b->shape, m, e) ||
        (b->calib && take_calib_shape(&b->shape, b->calib, e)))
        return -1;
    if (m->k_bias) {
        b->k_bias = kv_alloc(m->n_layers, row * sizeof(*b->k_bias));
        memcpy(b->k_bias, m->k_bias, m->n_layers * row * sizeof(*b->k_bias));
        b->shape.k_bias = b->k_bias;
    }
    return 0;
}

int kv_binding_new(struct kv_binding **out, const char *spec,
                   const struct kv_binding_model *m, const char *calib,
                   struct kv_err *e)
{
    struct kv_binding *b = kv_alloc(1, sizeof(*b));

    if ((calib && kv_calib_load(&b->calib, calib, e)) || open_model(b, m, e) ||
        kv_spec_parse(&b->spec, spec, e) ||
        kv_calib_adopt(b->calib, &b->spec, 1, e) ||
        kv_spec_fit(&b->spec, &b->shape, e) ||
        kv_codecs_new(&b->codecs, &b->spec, &b->shape, 0, b->shape.n_layers,
                      b->calib, e)) {
        kv_binding_free(b);
        return -1;
    }
    *out = b;
    return 0;
}

void kv_binding_free(struct kv_binding *b)
{
    if (!b)
        return;
    kv_codecs_free(b->codecs);
    kv_calib_free(b->calib);
    free(b->k_bias);
    free(b);
}

/* ---- the spec ------------------------------------------------------------ */

const char *kv_binding_spec(const struct kv_binding *b)
{
    return b->spec.text;
}

void kv_binding_sizes(const struct kv_binding *b, size_t size[4])
{
    size[0] = b->shape.n_layers;
    size[1] = b->shape.n_heads;
    size[2] = b->shape.n_kv_heads;
    size[3] = b->shape.head_dim;
}

bool kv_binding_pre_rope(const struct kv_binding *b, size_t layer)
{
    return kv_codecs_at(b->codecs, layer)[KV_K]->pre_rope;
}

/* Layer 0 is enough: a scheme that attends is the scheme of every layer. */
bool kv_binding_attends(const struct kv_binding *b)
{
    return kv_policy_drops(&b->spec.policy) ||
           kv_codec_attends(kv_codecs_at(b->codecs, 0)[KV_K]) ||
           kv_spec_needs_queries(&b->spec);
}

bool kv_binding_prompt_on_codes(const struct kv_binding *b)
{
    return kv_codecs_at(b->codecs, 0)[KV_K]->prefill_on_codes;
}

/* ---- sequences ----------------------------------------------------------- */

static int check_policy(const struct kv_binding *b, bool prompt,
                        size_t share_of, struct kv_err *e)
{
    const struct kv_policy *policy = b->spec.policy.policy;

    if (policy && policy->patterns)
        return kv_fail(e,
                       "%s: %s prunes the attention of prompts, in kvppl and "
                       "kvgen alone",
                       b->spec.text, policy->name);
    if (policy && policy->prompt && !prompt)
        return kv_fail(e, "%s: %s drops tokens of a prompt, and there is none",
                       b->spec.text, policy->name);
    if (policy && kv_binding_prompt_on_codes(b))
        return kv_fail(e,
                       "%s: a policy's prompt attends at full precision: "
                       "expected prefill=full",
                       b->spec.text);
    for (size_t i = 0; i < b->shape.n_layers && policy; i++)
        if (kv_policy_cache_takes(&b->spec, kv_codecs_at(b->codecs, i),
                                  share_of, e))
            return -1;
    return 0;
}

int kv_binding_seq(const struct kv_binding *b, bool prompt, size_t share_of,
                   uint64_t seed, struct kv_seq **out, struct kv_err *e)
{
    struct kv_seq *s;

    if (check_policy(b, prompt, share_of, e))
        return -1;
    s = kv_seq_new(&(struct kv_seq_plan){.n_layers = b->shape.n_layers,
                                         .policy = &b->spec.policy,
                                         .share_of = share_of,
                                         .seed = seed});
    for (size_t i = 0; i < b->shape.n_layers; i++)
        if (kv_seq_open(s, kv_codecs_at(b->codecs, i), e)) {
            kv_seq_free(s);
            return -1;
        }
    *out = s;
    return 0;
}

size_t kv_binding_settled(const struct kv_seq *s, size_t layer, int side)
{
    const struct kv_reader r =
        kv_cache_reader(kv_seq_cache(s, layer), (enum kv_side)side);

    return r.sinks + r.n_blocks * r.codec->block;
}

void kv_binding_read(const struct kv_seq *s, size_t layer, int side,
                     size_t first, size_t end, float *x)
{
    const struct kv_cache *c = kv_seq_cache(s, layer);

    if (!first && end == kv_cache_tokens(c))
        kv_cache_decode(c, (enum kv_side)side, x);
    else
        kv_cache_decode_part(c, (enum kv_side)side, first, end, x);
}

void kv_binding_bits(const struct kv_binding *b, const struct kv_seq *s,
                     struct kv_bits *bits)
{
    for (size_t i = 0; i < b->shape.n_layers * KV_SIDES; i++)
        kv_seq_bits(s, i / KV_SIDES, (enum kv_side)(i % KV_SIDES), bits);
    kv_bits_of_spec(bits, &b->spec, &b->shape, b->calib, KV_ALL, KV_ALL);
}

/* ---- one side as bytes --------------------------------------------------- */

static int open_side(const struct kv_binding *b, size_t layer, int side,
                     struct kv_cache **c, struct kv_err *e)
{
    const struct kv_layered *layered;
    struct kv_codec *const *codec;

    if (layer >= b->shape.n_layers)
        return kv_fail(e, "layer %zu of a model of %zu layer%s", layer,
                       b->shape.n_layers, b->shape.n_layers == 1 ? "" : "s");
    if (kv_policy_drops(&b->spec.policy))
        return kv_fail(e,
                       "%s: %s drops tokens of a sequence: expected a spec "
                       "without a policy",
                       b->spec.text, b->spec.policy.policy->name);
    if (side >= kv_shape_sides(&b->shape))
        return kv_fail(e, "V of latent attention is a part of K: it has no "
                          "codes");
    layered = kv_spec_layered(&b->spec, layer);
    if (layered || kv_spec_needs_queries(&b->spec))
        return kv_fail(e,
                       "%s codes a tensor by %s: expected a scheme that codes "
                       "it alone",
                       b->spec.text,
                       !layered           ? "its queries"
                       : layered->n_below ? "the layers below"
                                          : "the layer's keys");
    codec = kv_codecs_at(b->codecs, layer);
    if (codec[KV_K]->massive || codec[KV_V]->massive)
        return kv_fail(e,
                       "%s: massive tokens are known by keys and values "
                       "together: expected a spec without massive",
                       b->spec.text);
    return kv_cache_new(c, codec[KV_K], codec[KV_V], 0, e);
}

int kv_binding_encode(const struct kv_binding *b, size_t layer, int side,
                      const float *x, size_t n, uint8_t **bytes,
                      size_t *n_bytes, struct kv_err *e)
{
    const size_t row = b->shape.n_kv_heads * b->shape.head_dim;
    float *zeros = kv_alloc(n, row * sizeof(*zeros));
    const float *k = side == KV_K ? x : zeros;
    const struct kv_tokens t = {
        .n = n, .k = k, .k_pre = k, .v = side == KV_V ? x : zeros};
    struct kv_cache *c = NULL;
    const int rc =
        open_side(b, layer, side, &c, e) || kv_cache_append(c, &t, e) ? -1 : 0;

    if (!rc) {
        const struct kv_reader r = kv_cache_reader(c, (enum kv_side)side);

        *n_bytes = kv_codes_of(&r, bytes);
    }
    kv_cache_free(c);
    free(zeros);
    return rc;
}

int kv_binding_decode(const struct kv_binding *b, size_t layer, int side,
                      const uint8_t *bytes, size_t n_bytes, size_t n, float *x,
                      struct kv_err *e)
{
    struct kv_cache *c = NULL;
    const int rc =
        open_side(b, layer, side, &c, e) ||
                kv_cache_load_side(c, (enum kv_side)side, n, bytes, n_bytes, e)
            ? -1
            : 0;

    if (!rc)
        kv_cache_decode(c, (enum kv_side)side, x);
    kv_cache_free(c);
    return rc;
}

/* ---- a dump -------------------------------------------------------------- */

static int put_dump(struct kv_dump_writer *w, const struct kv_dump_info *info,
                    const struct kv_binding_dump *d, struct kv_err *e)
{
    const struct kv_shape *s = &info->shape;

    if (kv_dump_put_tokens(w, 0, d->n_windows, d->tokens, e))
        return -1;
    for (int t = 0; t <= KV_T_K_PRE; t++) {
        const size_t heads = t == KV_T_Q ? s->n_heads : s->n_kv_heads;
        const size_t layer = d->n_windows * d->ctx * heads * s->head_dim;

        for (size_t i = 0; i < s->n_layers && d->tensor[t]; i++)
            if (kv_dump_put(w, i, (enum kv_tensor)t, 0, d->n_windows,
                            d->tensor[t] + i * layer, e))
                return -1;
    }
    return 0;
}

int kv_binding_dump(const char *path, const struct kv_binding_model *m,
                    const struct kv_binding_dump *d, struct kv_err *e)
{
    struct kv_dump_info info = {.n_windows = d->n_windows,
                                .ctx = d->ctx,
                                .last_layer = m->n_layers - 1};
    struct kv_dump_writer *w;

    if (set_shape(&info.shape, m, e))
        return -1;
    info.shape.k_bias = m->k_bias;
    snprintf(info.model, sizeof(info.model), "%s", d->model);
    snprintf(info.text, sizeof(info.text), "%s", d->text);
    kv_hash_bytes(d->model, strlen(d->model), info.model_hash);
    kv_hash_bytes(d->tokens, d->n_windows * d->ctx * sizeof(*d->tokens),
                  info.text_hash);
    for (int t = 0; t <= KV_T_K_PRE; t++)
        info.have[t] = d->tensor[t];
    if (kv_dump_create(&w, path, &info, e))
        return -1;
    if (put_dump(w, &info, d, e)) {
        kv_dump_discard(w);
        return -1;
    }
    return kv_dump_commit(w, e);
}
