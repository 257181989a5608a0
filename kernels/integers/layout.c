/* Family "integers": codes in groups that share a scale and an offset.
 *
 * A tile is a matrix of codes [inner][lanes]:
 *   keys    inner: channels, padded to 32s    lanes: the 64 tokens
 *   values  inner: the 64 tokens              lanes: channels, padded to 16s
 * and attention on either side is sum_inner w[inner] x[inner][lane], where w is
 * the query or the softmax weights.  A group is
 *   folded     along the lanes, of one inner index: its scale multiplies w
 *              (keys of tokens per channel, values of channels per token)
 *   unfolded   along the inner index, of one lane: its scale multiplies the
 *              result
 * and belongs to one of n_runs runs of `run` lanes or inner indices, of which
 * the last of keys' channels may have fewer.
 *
 *   | heads, padded to 64 bytes | codes |                       a tile
 *   | scale f16 [n_runs][width] | offset [n_runs][width] |      heads
 *   [lanes / 16][inner / 32] units of 16 lanes x 32 inner indices     codes
 *
 * width is inner (folded) or lanes; offset is f16 (low), f32 (zero) or nothing.
 * Groups of more than 64 tokens cover `span` tiles: each holds head_bytes of
 * that table, in order.
 *
 * A unit is 8 cells of 64 codes: cell e is 16 lanes x inner indices [4 e, 4 e +
 * 4), code (lane l, index 4 e + j) in byte 4 l + j, so that 4 bytes of w are
 * multiplied with 4 codes in each 32-bit lane.  A code of b bits is cut, from
 * the low bit up, into fields of 4, 2 and 1 bits that add up to b (8 is one
 * field), and a unit is its planes of these widths, b vectors of 64 bytes:
 *
 *   width 8: 8 vectors, cell e in vector e
 *   width 4: 4 vectors, cell e in vector e / 2, bits 4 (e % 2) of each byte
 *   width 2: 2 vectors, cell e in vector e / 4, bits 2 (e % 4)
 *   width 1: 1 vector, cell e in bit e
 *
 * Path exact multiplies w (folded: w times the scales) in floats with codes
 * less the middle code m, so that products are about as small as values are:
 *
 *   sum w scale code = sum w scale (code - m) + m sum w scale
 *
 * Path int8: w (folded: w times the scales) is rounded to 8 bits per row and
 * run, weights of folded values for up to four tiles at once.  The bytes are
 * signed, except for weights of values with scales that are not negative.  For
 * codes of 6 bits and more the error of 8 bits would be comparatively large, so
 * these codes are multiplied with w in 15 bits, integers up to 127 * 127.  With
 * the integers W, their unit and the integer sum S of W code,
 *
 *   sum w scale code ~ unit S + m (sum w scale - unit sum W)
 *
 * is off by W's rounding times each code's distance from the middle.  Offsets
 * are multiplied with the unrounded w.  In folded runs of values the second
 * term is one number for all lanes, which is summed separately. */
#include "kernels/integers/impl.h"
#include "kernels/level.h"
#include "kernels/tiles/impl.h"
#include "lib/base/half.h"

#include <stdbool.h>
#include <string.h>

/* Splits `along` indices, of which `used` are values, into runs of len; len is
 * a multiple of `whole` unless one run holds all.  rest: the last run may be
 * shorter. */
static bool split(struct kv_integers *g, size_t along, size_t used, size_t len,
                  size_t whole, bool rest)
{
    const bool one = len >= used;

    g->run = one ? along : len;
    g->n_runs = one ? 1 : (used + len - 1) / len;
    return len % used == 0 ||
           (len < used && (rest || used % len == 0) && len % whole == 0);
}

int kv_integers_init(struct kv_integers *g, int values, size_t head_dim,
                     int of_tokens, size_t len)
{
    const size_t tokens = KV_TILE_TOKENS;

    g->folded = of_tokens != values;
    g->inner = values ? tokens : kv_round_up(head_dim, KV_UNIT);
    g->lanes = values ? kv_padded(head_dim) : tokens;
    g->span = of_tokens && len > tokens ? len / tokens : 1;
    if (!split(g, g->folded ? g->lanes : g->inner,
               of_tokens ? tokens : head_dim, len, g->folded ? KV_LANES : 4,
               !values && !of_tokens))
        return false;

    const size_t table =
        g->n_runs * kv_integers_width(g) * (2 + kv_offset_bytes(g));

    g->head_bytes = kv_round_up((table + g->span - 1) / g->span, KV_PLANE);
    g->tile_bytes =
        g->head_bytes + g->lanes / KV_LANES * kv_integers_block_bytes(g);
    return true;
}

/* ---- tables of heads ------------------------------------------------------
 */

/* Writes bytes [at, at + n) of the table, if this tile, the i-th, holds
 * them. */
static void put_bytes(const struct kv_integers *g, size_t i, size_t at,
                      const void *from, size_t n, uint8_t *tile)
{
    if (at / g->head_bytes == i)
        memcpy(tile + at % g->head_bytes, from, n);
}

/* Returns the index of the head that value (t, c) uses. */
static size_t group_of(const struct kv_store *s, size_t t, size_t c)
{
    const struct kv_integers *g = kv_integers_params(s);
    const size_t inner = s->values ? t : c, lane = s->values ? c : t;
    const size_t width = kv_integers_width(g);

    return g->folded ? lane / g->run * width + inner
                     : inner / g->run * width + lane;
}

void kv_store_put_group(const struct kv_store *s, size_t i, size_t t, size_t c,
                        uint16_t scale, float offset, uint8_t *tile)
{
    const struct kv_integers *g = kv_integers_params(s);
    const size_t at = group_of(s, t, c);
    const size_t scales = g->n_runs * kv_integers_width(g);
    const uint16_t low = kv_f32_to_f16(offset);

    put_bytes(g, i % g->span, at * 2, &scale, 2, tile);
    if (g->offset == KV_OFFSET_LOW)
        put_bytes(g, i % g->span, scales * 2 + at * 2, &low, 2, tile);
    if (g->offset == KV_OFFSET_ZERO)
        put_bytes(g, i % g->span, scales * 2 + at * 4, &offset, 4, tile);
}

/* Byte i of a table, which the tiles of a span hold in turn. */
static const uint8_t *table_byte(const struct kv_store *s, const uint8_t *first,
                                 size_t i)
{
    const struct kv_integers *g = kv_integers_params(s);

    return first + i / g->head_bytes * s->tile_bytes + i % g->head_bytes;
}

void kv_store_group(const struct kv_store *s, size_t head, const uint8_t *tile,
                    size_t t, size_t c, float *scale, float *offset)
{
    const struct kv_integers *g = kv_integers_params(s);
    const uint8_t *first = kv_integers_first(s, head, tile);
    const size_t at = group_of(s, t, c);
    const size_t scales = g->n_runs * kv_integers_width(g);
    uint16_t half;

    memcpy(&half, table_byte(s, first, at * 2), 2);
    *scale = kv_f16_to_f32(half);
    *offset = g->zero;
    if (g->offset == KV_OFFSET_LOW) {
        memcpy(&half, table_byte(s, first, scales * 2 + at * 2), 2);
        *offset = kv_f16_to_f32(half);
    }
    if (g->offset == KV_OFFSET_ZERO)
        memcpy(offset, table_byte(s, first, scales * 2 + at * 4), 4);
}

/* ---- codes ----------------------------------------------------------------
 */

/* The first byte in which a code has bits, of its widest plane. */
static size_t code_at(const struct kv_integers *g, size_t inner, size_t lane)
{
    return lane / KV_LANES * kv_integers_block_bytes(g) +
           inner / KV_UNIT * g->bits * KV_PLANE + lane % KV_LANES * 4 +
           inner % 4;
}

static void put_code(const struct kv_integers *g, size_t inner, size_t lane,
                     unsigned code, uint8_t *codes)
{
    const size_t e = inner % KV_UNIT / 4;
    uint8_t *plane = codes + code_at(g, inner, lane);

    for (unsigned width = 8; width; width /= 2) {
        const size_t per_byte = 8 / width;

        if (!(g->bits & width))
            continue;
        plane[e / per_byte * KV_PLANE] |=
            (uint8_t)((code & ((1u << width) - 1)) << e % per_byte * width);
        code >>= width;
        plane += width * KV_PLANE;
    }
}

unsigned kv_store_code(const struct kv_store *s, const uint8_t *tile, size_t t,
                       size_t c)
{
    const struct kv_integers *g = kv_integers_params(s);
    const size_t inner = s->values ? t : c, lane = s->values ? c : t;
    const size_t e = inner % KV_UNIT / 4;
    const uint8_t *plane = tile + g->head_bytes + code_at(g, inner, lane);
    unsigned code = 0;

    for (unsigned width = 8, shift = 0; width; width /= 2) {
        const size_t per_byte = 8 / width;

        if (!(g->bits & width))
            continue;
        code |= (plane[e / per_byte * KV_PLANE] >> e % per_byte * width &
                 ((1u << width) - 1))
                << shift;
        shift += width;
        plane += width * KV_PLANE;
    }
    return code;
}

void kv_store_put_codes(const struct kv_store *s, size_t t,
                        const uint16_t *code, uint8_t *tile)
{
    const struct kv_integers *g = kv_integers_params(s);

    for (size_t c = 0; c < s->head_dim; c++)
        put_code(g, s->values ? t : c, s->values ? c : t, code[c],
                 tile + g->head_bytes);
}

/* ---- the family -----------------------------------------------------------
 */

static const struct kv_integers_table *table(void)
{
    static const struct kv_integers_table *const versions[] =
        KV_VERSIONS(&kv_integers_table_c, &kv_integers_table_avx2,
                    &kv_integers_table_avx2, &kv_integers_table_vnni);

    return versions[kv_level_version()];
}

/* int8 rounds relative to the middle, and a code of one bit is never near
 * it. */
enum { MIN_INT8_BITS = 2 };

static const struct kv_tile_ops *ops(const struct kv_store *s,
                                     enum kv_path path)
{
    const struct kv_integers *g = kv_integers_params(s);
    const bool whole = g->folded || g->n_runs == 1 || g->run % KV_UNIT == 0;

    if (path == KV_PATH_EXACT)
        return whole ? &table()->exact : kv_tiles_expanded(s);
    return whole && g->bits >= MIN_INT8_BITS ? &table()->int8 : NULL;
}

static void expand(const struct kv_store *s, size_t head, const uint8_t *tile,
                   size_t part, float *x)
{
    table()->expand(s, head, tile, part, x);
}

const struct kv_family kv_family_integers = {
    .name = "integers", .ops = ops, .expand = expand};

void kv_store_integers(struct kv_store *s, const struct kv_integers *g)
{
    s->family = &kv_family_integers;
    s->params = g;
    s->tile_bytes = g->tile_bytes;
}
