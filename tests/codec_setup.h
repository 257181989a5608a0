/* Shared by unit tests of single schemes: a spec, its codec, encoding and
 * decoding of one block. */
#ifndef KV_CODEC_SETUP_H
#define KV_CODEC_SETUP_H

#include "lib/base/half.h"
#include "lib/scheme.h"
#include "tests/test.h"

static inline struct kv_spec spec_of(const char *text,
                                     const struct kv_shape *shape)
{
    struct kv_spec s;
    struct kv_err e = {""};

    if (kv_spec_parse(&s, text, &e) || kv_spec_fit(&s, shape, &e))
        fail_msg("%s: %s", text, e.msg);
    return s;
}

static inline struct kv_codec *codec_from(const struct kv_spec *s,
                                          const struct kv_shape *shape,
                                          size_t layer, enum kv_side side,
                                          const struct kv_calib *calib)
{
    struct kv_codec *c = NULL;
    struct kv_err e = {""};

    if (kv_codec_new(&c, s, shape, layer, side, calib, &e))
        fail_msg("%s: %s", s->text, e.msg);
    return c;
}

/* Opens the spec's codec without a calibration. */
static inline struct kv_codec *codec_of(const char *text,
                                        const struct kv_shape *shape,
                                        size_t layer, enum kv_side side)
{
    const struct kv_spec s = spec_of(text, shape);

    return codec_from(&s, shape, layer, side, NULL);
}

/* Encodes the block x, and decodes the bytes. */
static inline void round_trip(const struct kv_codec *c, struct kv_where w,
                              const float *x, uint8_t *bytes, float *back)
{
    c->scheme->encode(c, w, x, 1, bytes);
    c->scheme->decode(c, bytes, 1, back);
}

/* Returns the fp16 value stored at these bytes. */
static inline float half_at(const uint8_t *bytes)
{
    uint16_t half;

    memcpy(&half, bytes, sizeof(half));
    return kv_f16_to_f32(half);
}

#endif
