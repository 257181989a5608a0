/* CacheGen (arXiv 2310.07240): a chunk of n tokens is quantized and then coded
 * by a range coder (kernels/range_coder.h).  The coder starts anew at each
 * chunk, so that a chunk decodes without the others.  Keys after RoPE; no
 * sinks, no residual.
 *
 * A token's row, all KV heads of the layer, becomes integers in [-top, top]:
 *
 *   max = the largest |x| as a half,  q = round(x * (top / max)),
 *   top = (bins / 2 - 1) / l,         x' = q / top * max
 *
 * A symbol is q + top; there are 2 top + 1 symbols.
 *
 *   variant=paper  tokens in groups of 10, counted from the chunk's first
 *                  token; the last group may be shorter.  The first token of a
 *                  group is its anchor, in 256 bins.  The others store the
 *                  difference to the decoded anchor, in 48, 24 or 16 bins in
 *                  the first, second and last third of the layers: bins grow
 *                  about as 1 : 2 : 3.  Each layer and channel has a symbol
 *                  table for anchors and one for differences, trained offline.
 *   variant=code   as released: no anchors; a table of 32 symbols per layer and
 *                  channel counted in the chunk and stored with it: 33 16-bit
 *                  places, 2.06 bits a value at n = 256.  The code's other
 *                  quality levels (QUANT_LEVEL, higher is finer) and its
 *                  schedule for a 70B model are variants too:
 *
 *                        first layers of keys   of values     others
 *     code1    level 1   20/32  16 bins         2/32  16      12 bins
 *     code     level 2   10/32  32              2/32  32      16
 *     code3    level 3   all    32              all   32
 *     code70b            40/80  32              20/80 32      16
 *
 * The parameter l divides top, rounded down, so that a bin grows l-fold or a
 * little more.  Paper and code have l1.
 *
 * Our reading: the bins of the three thirds of the layers, and l.  The released
 * levels are for models of 32 and 80 layers, and are scaled to the model's
 * layers here.  The code stores max as f32, which for fp16 inputs has no more
 * information than the half.  It codes every token of a layer as a separate
 * stream, to use threads; here a chunk is one stream.
 *
 * One chunk with store=wire, for sending or storing on disk:
 *
 *   | crc: u32 | max: f16 x n | code: places u16 [channels][33] | stream |
 *
 * crc: CRC-32 of the bytes after the crc.  places: the table, with 65536 stored
 * as 0.  stream: the symbols token by token, channel by channel.  store=memory
 * holds the same integers in the form that a decoder keeps, each plane padded
 * to a byte:
 *
 *   | max: f16 x n | anchors: 8 bits each | others: b bits each |
 *
 * where b = ceil(log2(2 top + 1)).
 *
 * Tables in a calibration, needed only by variant=paper with store=wire, per
 * side and layer:
 *   anchor  [channels][255]        places of 65536 that each symbol has, >= 1,
 *   delta   [channels][2 top + 1]  from counts of the text, 1/2 added to each;
 *           error: mean squared error per value of the text, anchors with it
 */
#ifndef KV_CACHEGEN_H
#define KV_CACHEGEN_H

#include "lib/scheme.h"

enum {
    KV_CACHEGEN_GROUP = 10, /* tokens, including the anchor */
    KV_CACHEGEN_ANCHOR_TOP = 127,
    KV_CACHEGEN_ANCHOR_SYMBOLS = 2 * KV_CACHEGEN_ANCHOR_TOP + 1
};

/* How one layer and side is quantized. */
struct kv_cachegen {
    size_t row;   /* channels: n_kv_heads * head_dim */
    bool anchors; /* variant=paper */
    unsigned top; /* for tokens other than anchors */
};

struct kv_cachegen kv_cachegen(const struct kv_spec *s, enum kv_side side,
                               size_t layer, const struct kv_shape *shape);

static inline bool kv_cachegen_is_anchor(const struct kv_cachegen *g, size_t t)
{
    return g->anchors && t % KV_CACHEGEN_GROUP == 0;
}

/* Quantizes n tokens x [n][row], as in the cache, to max [n] halves and symbol
 * [n][row]; the first token must begin a chunk or a group.  The second function
 * decodes; symbols above 2 top and any finite max give finite numbers. */
void kv_cachegen_quantize(const struct kv_cachegen *g, const float *x, size_t n,
                          uint16_t *max, uint16_t *symbol);
void kv_cachegen_restore(const struct kv_cachegen *g, const uint16_t *max,
                         const uint16_t *symbol, size_t n, float *x);

extern const struct kv_training kv_cachegen_training;

#endif
