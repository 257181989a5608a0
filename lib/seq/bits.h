/* What a cache holds, counted. */
#ifndef KV_BITS_H
#define KV_BITS_H

#include "lib/calib.h"
#include "lib/seq/cache.h"

KV_PUBLIC_BEGIN

/* Storage, measured.  Sums over layers, windows and both sides (or one).  A
 * layer that slides holds its window and what shares a block with it
 * (kv_cache_held()); values are the window's. */
struct kv_bits {
    double bytes, values;                     /* everything held */
    double kept_values;                       /* of values, those not dropped */
    double quantized_bytes, quantized_values; /* quantized blocks alone */
    double shared_bytes;                      /* calibration tables */
    double nominal;         /* the paper's number; NaN: none */
    double coded[KV_SIDES]; /* values that became codes, whether or not they are
                             * still held */
    double clipped; /* values beyond fp16's range (kv_cache_clipped()) */
};

/* Adds bytes and values; not shared_bytes and nominal, which belong to the
 * spec. */
void kv_bits_add(struct kv_bits *into, const struct kv_bits *b);

/* Adds what a side of a cache has coded and clipped. */
void kv_bits_count(struct kv_bits *into, const struct kv_cache *c,
                   enum kv_side side);

/* Of one side of a cache; not shared_bytes and nominal. */
struct kv_bits kv_bits_of_cache(const struct kv_cache *c, enum kv_side side);
/* The same of n tokens without a cache, by kv_held_bytes(), and without
 * clipped. */
struct kv_bits kv_bits_of_tokens(const struct kv_codec *c, size_t n);

/* Sets shared_bytes and nominal.  side: KV_K, KV_V, or KV_ALL for both;
 * layer: one, or KV_ALL.  shared_bytes: the tables of the calibration (NULL:
 * none) that the spec's codecs read there, in fp32; of one that serves all
 * layers of the model, each layer that reads it has an equal part, so that
 * layers add up to KV_ALL.  nominal: the mean over the layers and sides, NaN
 * where a scheme among them prints none. */
void kv_bits_of_spec(struct kv_bits *b, const struct kv_spec *spec,
                     const struct kv_shape *shape, const struct kv_calib *calib,
                     int layer, int side);

KV_PUBLIC_END

#endif
