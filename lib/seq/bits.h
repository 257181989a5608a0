/* Counts of the bytes and values that a cache holds. */
#ifndef KV_BITS_H
#define KV_BITS_H

#include "lib/calib.h"
#include "lib/seq/cache.h"

KV_PUBLIC_BEGIN

/* Measured storage: sums over layers, windows and both sides (or one).  A
 * layer that slides holds its window and the other tokens of the window's
 * blocks (kv_cache_held()); values counts the window alone. */
struct kv_bits {
    double bytes, values;                     /* everything held */
    double kept_values;                       /* values of tokens not dropped */
    double quantized_bytes, quantized_values; /* quantized blocks alone */
    double shared_bytes;                      /* calibration tables */
    double nominal;         /* the paper's bits per value; NaN: none */
    double coded[KV_SIDES]; /* values that became codes, whether or not they are
                             * still held */
    double clipped; /* values beyond fp16's range (kv_cache_clipped()) */
    bool declared;  /* some of the bytes are declared by a codec (kv_codec's
                     * declared_bytes) */
};

/* Adds all members but shared_bytes and nominal, which belong to the spec. */
void kv_bits_add(struct kv_bits *into, const struct kv_bits *b);

/* Adds the numbers of values that a side of a cache has coded and clipped. */
void kv_bits_count(struct kv_bits *into, const struct kv_cache *c,
                   enum kv_side side);

/* The counts of one side of a cache, without shared_bytes and nominal. */
struct kv_bits kv_bits_of_cache(const struct kv_cache *c, enum kv_side side);
/* The counts of n tokens of a side without a cache, by kv_held_bytes(); without
 * clipped too. */
struct kv_bits kv_bits_of_tokens(const struct kv_codec *c, size_t n);

/* Sets shared_bytes and nominal.  side: KV_K, KV_V, or KV_ALL for both;
 * layer: one, or KV_ALL.  shared_bytes: bytes of the calibration's tables that
 * the spec's codecs read there; calib NULL: none.  A table that several layers
 * share is divided equally among the layers that read it, so that the layers
 * add up to KV_ALL.  nominal: the mean over the layers and sides; NaN if the
 * paper of one of their schemes prints no number. */
void kv_bits_of_spec(struct kv_bits *b, const struct kv_spec *spec,
                     const struct kv_shape *shape, const struct kv_calib *calib,
                     int layer, int side);

KV_PUBLIC_END

#endif
