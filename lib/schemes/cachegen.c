#include "lib/schemes/cachegen.h"
#include "kernels/bitpack.h"
#include "kernels/range_coder.h"
#include "lib/base/alloc.h"
#include "lib/base/crc32.h"
#include "lib/base/half.h"
#include "lib/calib.h"
#include "lib/schemes/chunk.h"
#include "lib/schemes/integers.h"
#include "lib/schemes/schemes.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- quantization ------------------------------------------------------ */

/* The released schedules: the first of 32 layers have first_bins, the other
 * layers bins. */
static const struct schedule {
    const char *variant;
    size_t first[KV_SIDES];
    unsigned first_bins, bins;
} schedules[] = {{"code", {10, 2}, 32, 16},
                 {"code1", {20, 2}, 16, 12},
                 {"code3", {32, 32}, 32, 32},
                 {"code70b", {16, 8}, 32, 16}};

static unsigned bins_of(const struct kv_spec *s, enum kv_side side,
                        size_t layer, size_t n_layers)
{
    static const unsigned thirds[] = {48, 24, 16};
    const struct schedule *by = schedules;

    if (kv_spec_is(s, side, "variant", "paper"))
        return thirds[layer * 3 / n_layers];
    while (!kv_spec_is(s, side, "variant", by->variant))
        by++;
    return layer * 32 < by->first[side] * n_layers ? by->first_bins : by->bins;
}

struct kv_cachegen kv_cachegen(const struct kv_spec *s, enum kv_side side,
                               size_t layer, const struct kv_shape *shape)
{
    const unsigned bins = bins_of(s, side, layer, shape->n_layers);
    const unsigned level = (unsigned)kv_spec_size(s, side, "l");

    return (struct kv_cachegen){.row = shape->n_kv_heads * shape->head_dim,
                                .anchors =
                                    kv_spec_is(s, side, "variant", "paper"),
                                .top = (bins / 2 - 1) / level};
}

static unsigned top_of(const struct kv_cachegen *g, size_t t)
{
    return kv_cachegen_is_anchor(g, t) ? KV_CACHEGEN_ANCHOR_TOP : g->top;
}

static float less(const float *x, const float *base, size_t i)
{
    return base ? x[i] - base[i] : x[i];
}

/* Turns x - base (NULL: x) [n] into symbols; returns the largest magnitude. */
static uint16_t quantize_row(const float *x, const float *base, size_t n,
                             unsigned top, uint16_t *symbol)
{
    const float limit = (float)top;
    float max = 0;

    for (size_t i = 0; i < n; i++) {
        const float a = fabsf(less(x, base, i));

        max = a > max ? a : max;
    }

    const uint16_t half = kv_f16_clamp(max);
    const float stored = kv_f16_to_f32(half);
    const float scale = stored > 0 ? limit / stored : 0;

    for (size_t i = 0; i < n; i++) {
        const float q = less(x, base, i) * scale;
        const float low = q > -limit ? q : -limit;

        symbol[i] =
            (uint16_t)(kv_round_even(low < limit ? low : limit) + limit);
    }
    return half;
}

static void restore_row(uint16_t half, const uint16_t *symbol,
                        const float *base, size_t n, unsigned top, float *x)
{
    const float limit = (float)top, max = kv_f16_to_f32(half);

    for (size_t i = 0; i < n; i++) {
        const float y = ((float)symbol[i] - limit) / limit * max;

        x[i] = base ? base[i] + y : y;
    }
}

void kv_cachegen_quantize(const struct kv_cachegen *g, const float *x, size_t n,
                          uint16_t *max, uint16_t *symbol)
{
    float *anchor = kv_alloc(g->row, sizeof(*anchor));

    for (size_t t = 0; t < n; t++, x += g->row, symbol += g->row) {
        const bool first = kv_cachegen_is_anchor(g, t);
        const float *base = g->anchors && !first ? anchor : NULL;

        max[t] = quantize_row(x, base, g->row, top_of(g, t), symbol);
        if (first)
            restore_row(max[t], symbol, NULL, g->row, top_of(g, t), anchor);
    }
    free(anchor);
}

void kv_cachegen_restore(const struct kv_cachegen *g, const uint16_t *max,
                         const uint16_t *symbol, size_t n, float *x)
{
    const float *anchor = NULL;

    for (size_t t = 0; t < n; t++, x += g->row, symbol += g->row) {
        const bool first = kv_cachegen_is_anchor(g, t);

        restore_row(max[t], symbol, first ? NULL : anchor, g->row, top_of(g, t),
                    x);
        if (first)
            anchor = x;
    }
}

/* ---- a codec ----------------------------------------------------------- */

enum { CODE_SYMBOLS = 32, PLACES = CODE_SYMBOLS + 1 };

/* A table for every channel, [row][n_symbols + 1]. */
struct tables {
    size_t n_symbols;
    uint32_t *cum;
};

struct state {
    struct kv_cachegen g;
    struct tables anchor, delta; /* only for paper and wire, else empty */
};

static size_t n_anchors(const struct kv_cachegen *g, size_t n)
{
    return g->anchors ? (n + KV_CACHEGEN_GROUP - 1) / KV_CACHEGEN_GROUP : 0;
}

static unsigned delta_bits(const struct kv_cachegen *g)
{
    unsigned bits = 1;

    while (1u << bits < 2 * g->top + 1)
        bits++;
    return bits;
}

static size_t max_bytes(const struct kv_codec *c)
{
    return c->block * sizeof(uint16_t);
}

static size_t places_bytes(const struct kv_cachegen *g)
{
    return g->anchors ? 0 : g->row * PLACES * sizeof(uint16_t);
}

/* Bytes before the stream. */
static size_t cachegen_head_bytes(const struct kv_codec *c,
                                  const struct kv_cachegen *g)
{
    return sizeof(uint32_t) + max_bytes(c) + places_bytes(g);
}

static size_t memory_bytes(const struct kv_codec *c,
                           const struct kv_cachegen *g)
{
    const size_t first = n_anchors(g, c->block);

    return max_bytes(c) + kv_pack_bytes(first * g->row, 8) +
           kv_pack_bytes((c->block - first) * g->row, delta_bits(g));
}

/* Cumulates a calibration's table of places; fails on a table that kvcalib
 * cannot have written. */
static int cumulate(const struct kv_table *t, struct tables *to,
                    struct kv_err *e)
{
    const size_t row = t->dims[0], n = t->dims[1];

    to->n_symbols = n;
    to->cum = kv_alloc(row * (n + 1), sizeof(*to->cum));
    for (size_t i = 0; i < row; i++) {
        uint32_t *cum = to->cum + i * (n + 1);

        for (size_t s = 0; s < n; s++) {
            const float places = t->data[i * n + s];

            if (!(places >= 1 && places <= KV_RANGE_TOTAL) ||
                places != floorf(places))
                return kv_fail(e,
                               "the calibration's table '%s' for layer %d has "
                               "%g where a symbol's places of %d are expected",
                               t->name, t->layer, (double)places,
                               KV_RANGE_TOTAL);
            cum[s + 1] = cum[s] + (uint32_t)places;
        }
        if (cum[n] != KV_RANGE_TOTAL)
            return kv_fail(e,
                           "the calibration's table '%s' for layer %d, channel "
                           "%zu has %u places, expected %d",
                           t->name, t->layer, i, cum[n], KV_RANGE_TOTAL);
    }
    return 0;
}

static int load_tables(struct kv_codec *c, const struct kv_calib *calib,
                       struct kv_err *e)
{
    struct state *st = c->state;
    const size_t dims[] = {st->g.row, KV_CACHEGEN_ANCHOR_SYMBOLS};
    const size_t delta_dims[] = {st->g.row, 2 * st->g.top + 1};
    const struct kv_calib_set *set;
    const struct kv_table *anchor, *delta;

    if (kv_calib_want_set(&set, calib, &c->spec, e) ||
        !(anchor = kv_calib_want(c, set, "anchor", 0, 2, dims, e)) ||
        !(delta = kv_calib_want(c, set, "delta", 0, 2, delta_dims, e)))
        return -1;
    return cumulate(anchor, &st->anchor, e) || cumulate(delta, &st->delta, e)
               ? -1
               : 0;
}

static void close_cachegen(struct kv_codec *c)
{
    struct state *st = c->state;

    free(st->anchor.cum);
    free(st->delta.cum);
    free(st);
}

/* ---- store=wire -------------------------------------------------------- */

/* The chunk's own tables, counted in symbol [n][row]. */
static void count_tables(const struct kv_cachegen *g, const uint16_t *symbol,
                         size_t n, struct tables *to)
{
    to->n_symbols = CODE_SYMBOLS;
    to->cum = kv_alloc(g->row * PLACES, sizeof(*to->cum));
    for (size_t i = 0; i < g->row; i++) {
        uint32_t count[CODE_SYMBOLS] = {0};

        for (size_t t = 0; t < n; t++)
            count[symbol[t * g->row + i]]++;
        kv_range_table(count, CODE_SYMBOLS, to->cum + i * PLACES);
    }
}

static void cachegen_put_places(const struct tables *from, size_t row,
                                uint8_t *bytes)
{
    for (size_t i = 0; i < row * PLACES; i++) {
        const uint16_t place = (uint16_t)from->cum[i]; /* 65536 as 0 */

        memcpy(bytes + i * sizeof(place), &place, sizeof(place));
    }
}

static int take_places(const uint8_t *bytes, size_t row, struct tables *to,
                       struct kv_err *e)
{
    to->n_symbols = CODE_SYMBOLS;
    to->cum = kv_alloc(row * PLACES, sizeof(*to->cum));
    for (size_t i = 0; i < row * PLACES; i++) {
        const size_t s = i % PLACES;
        uint16_t place;

        memcpy(&place, bytes + i * sizeof(place), sizeof(place));
        to->cum[i] = s == CODE_SYMBOLS ? KV_RANGE_TOTAL : place;
        if (s % CODE_SYMBOLS ? place <= to->cum[i - 1] : place)
            return kv_fail(e, "places of channel %zu do not grow from 0 to %d",
                           i / PLACES, KV_RANGE_TOTAL);
    }
    return 0;
}

static const struct tables *tables_of(const struct state *st,
                                      const struct tables *shipped, size_t t)
{
    return !st->g.anchors                     ? shipped
           : kv_cachegen_is_anchor(&st->g, t) ? &st->anchor
                                              : &st->delta;
}

static size_t put_stream(const struct state *st, const struct tables *shipped,
                         const uint16_t *symbol, size_t n, uint8_t *out)
{
    struct kv_range_encoder coder;

    kv_range_encode_start(&coder, out);
    for (size_t t = 0; t < n; t++) {
        const struct tables *by = tables_of(st, shipped, t);

        for (size_t i = 0; i < st->g.row; i++)
            kv_range_encode(&coder, by->cum + i * (by->n_symbols + 1),
                            by->n_symbols, *symbol++);
    }
    return kv_range_encode_end(&coder);
}

static int take_stream(const struct state *st, const struct tables *shipped,
                       const uint8_t *in, size_t n_bytes, size_t n,
                       uint16_t *symbol, struct kv_err *e)
{
    struct kv_range_decoder coder;

    kv_range_decode_start(&coder, in, n_bytes);
    for (size_t t = 0; t < n; t++) {
        const struct tables *by = tables_of(st, shipped, t);

        for (size_t i = 0; i < st->g.row; i++, symbol++) {
            *symbol = (uint16_t)kv_range_decode(
                &coder, by->cum + i * (by->n_symbols + 1), by->n_symbols);
            if (*symbol > 2 * top_of(&st->g, t))
                return kv_fail(e, "token %zu, channel %zu: symbol %u of %u", t,
                               i, *symbol, 2 * top_of(&st->g, t) + 1);
        }
    }
    return kv_range_decode_ended(&coder)
               ? 0
               : kv_fail(e, "its stream does not end with its %zu bytes",
                         n_bytes);
}

static size_t cachegen_encode_block(const struct kv_codec *c, struct kv_where w,
                                    const float *x, uint8_t *bytes)
{
    const struct state *st = c->state;
    const size_t head = cachegen_head_bytes(c, &st->g);
    uint16_t *max = kv_alloc(c->block, sizeof(*max));
    uint16_t *symbol = kv_alloc(kv_codec_block_values(c), sizeof(*symbol));
    uint8_t *at = bytes + sizeof(uint32_t);
    struct tables shipped = {0};
    uint32_t crc;
    size_t n;

    (void)w;
    kv_cachegen_quantize(&st->g, x, c->block, max, symbol);
    memcpy(at, max, max_bytes(c));
    if (!st->g.anchors) {
        count_tables(&st->g, symbol, c->block, &shipped);
        cachegen_put_places(&shipped, st->g.row, at + max_bytes(c));
    }
    n = head + put_stream(st, &shipped, symbol, c->block, bytes + head);
    crc = kv_crc32(at, n - sizeof(crc));
    memcpy(bytes, &crc, sizeof(crc));
    free(shipped.cum);
    free(symbol);
    free(max);
    return n;
}

/* The checksum finds damage; the other checks are for forged bytes with a
 * correct checksum. */
static int check_head(const struct kv_codec *c, const uint8_t *bytes, size_t n,
                      uint16_t *max, struct kv_err *e)
{
    const size_t head =
        cachegen_head_bytes(c, &((const struct state *)c->state)->g);

    if (n <= head)
        return kv_fail(e, "cut to %zu bytes: the head alone has %zu", n, head);
    if (kv_crc32_check(bytes, n, e))
        return -1;
    memcpy(max, bytes + sizeof(uint32_t), max_bytes(c));
    for (size_t t = 0; t < c->block; t++)
        if (max[t] >= 0x7c00) /* a sign, an infinity or a NaN */
            return kv_fail(e, "token %zu: its largest size is %g", t,
                           (double)kv_f16_to_f32(max[t]));
    return 0;
}

static int cachegen_decode_block(const struct kv_codec *c, const uint8_t *bytes,
                                 size_t n, float *x, struct kv_err *e)
{
    const struct state *st = c->state;
    const size_t head = cachegen_head_bytes(c, &st->g);
    uint16_t *max = kv_alloc(c->block, sizeof(*max));
    uint16_t *symbol = kv_alloc(kv_codec_block_values(c), sizeof(*symbol));
    struct tables shipped = {0};
    int rc = -1;

    if (check_head(c, bytes, n, max, e) ||
        (!st->g.anchors && take_places(bytes + head - places_bytes(&st->g),
                                       st->g.row, &shipped, e)) ||
        take_stream(st, &shipped, bytes + head, n - head, c->block, symbol, e))
        goto out;
    kv_cachegen_restore(&st->g, max, symbol, c->block, x);
    rc = 0;
out:
    free(shipped.cum);
    free(symbol);
    free(max);
    return rc ? kv_fail_in(e, "cachegen chunk") : 0;
}

/* ---- store=memory ------------------------------------------------------ */

/* The index of token t's row if anchors come first. */
static size_t cachegen_place_of(const struct kv_cachegen *g, size_t n, size_t t)
{
    const size_t group = t / KV_CACHEGEN_GROUP;

    if (!g->anchors)
        return t;
    return t % KV_CACHEGEN_GROUP ? n_anchors(g, n) + t - group - 1 : group;
}

static void cachegen_encode(const struct kv_codec *c, struct kv_where w,
                            const float *x, size_t n_blocks, uint8_t *bytes)
{
    const struct state *st = c->state;
    const size_t n = c->block, row = st->g.row, values = n * row;
    const size_t first = n_anchors(&st->g, n) * row;
    uint16_t *max = kv_alloc(n, sizeof(*max));
    uint16_t *symbol = kv_alloc(2 * values, sizeof(*symbol));
    uint16_t *plane = symbol + values;

    (void)w;
    for (size_t b = 0; b < n_blocks;
         b++, x += values, bytes += c->block_bytes) {
        uint8_t *at = bytes + max_bytes(c);

        kv_cachegen_quantize(&st->g, x, n, max, symbol);
        for (size_t t = 0; t < n; t++)
            memcpy(plane + cachegen_place_of(&st->g, n, t) * row,
                   symbol + t * row, row * sizeof(*plane));
        memcpy(bytes, max, max_bytes(c));
        kv_pack(plane, first, 8, at);
        kv_pack(plane + first, values - first, delta_bits(&st->g),
                at + kv_pack_bytes(first, 8));
    }
    free(symbol);
    free(max);
}

static void cachegen_decode(const struct kv_codec *c, const uint8_t *bytes,
                            size_t n_blocks, float *x)
{
    const struct state *st = c->state;
    const size_t n = c->block, row = st->g.row, values = n * row;
    const size_t first = n_anchors(&st->g, n) * row;
    uint16_t *max = kv_alloc(n, sizeof(*max));
    uint16_t *symbol = kv_alloc(2 * values, sizeof(*symbol));
    uint16_t *plane = symbol + values;

    for (size_t b = 0; b < n_blocks;
         b++, x += values, bytes += c->block_bytes) {
        const uint8_t *at = bytes + max_bytes(c);

        memcpy(max, bytes, max_bytes(c));
        kv_unpack(at, first, 8, plane);
        kv_unpack(at + kv_pack_bytes(first, 8), values - first,
                  delta_bits(&st->g), plane + first);
        for (size_t t = 0; t < n; t++)
            memcpy(symbol + t * row,
                   plane + cachegen_place_of(&st->g, n, t) * row,
                   row * sizeof(*plane));
        kv_cachegen_restore(&st->g, max, symbol, n, x);
    }
    free(symbol);
    free(max);
}

static const struct kv_param params[] = {
    {"l", NULL, 1, 1, 3, true, "level: a bin grows l-fold"},
    {"n", NULL, 256, KV_CACHEGEN_GROUP, 16384, false, "tokens of a chunk"},
    {"variant", "paper|code|code1|code3|code70b", 0, 0, 0, true,
     "anchors, differences and trained tables (section 5), or as released: "
     "its QUANT_LEVEL 2, 1 (coarser), 3 (finer), or its schedule for 70B"},
    {"store", "wire|memory", 0, 0, 0, true,
     "entropy-coded as sent, or the same integers at fixed width"},
    {0},
};

static const struct kv_variable wire = {cachegen_encode_block,
                                        cachegen_decode_block};

static int open_cachegen(struct kv_codec *c, const struct kv_calib *calib,
                         struct kv_err *e)
{
    struct state *st = kv_alloc(1, sizeof(*st));

    c->state = st;
    st->g = kv_cachegen(&c->spec, c->side, c->layer, &c->shape);
    c->block = kv_chunk(c, kv_spec_size(&c->spec, c->side, "n"), 16);
    if (kv_spec_is(&c->spec, c->side, "store", "wire"))
        c->variable = &wire;
    c->block_bytes = c->variable
                         ? cachegen_head_bytes(c, &st->g) +
                               kv_range_max_bytes(kv_codec_block_values(c))
                         : memory_bytes(c, &st->g);
    return c->variable && st->g.anchors ? load_tables(c, calib, e) : 0;
}

const struct kv_scheme kv_scheme_cachegen = {
    .name = "cachegen",
    .brief = "CacheGen: differences to anchor tokens, arithmetic coding",
    .params = params,
    .residual_rule = {KV_SLIDING, KV_SLIDING},
    .training = &kv_cachegen_training,
    .open = open_cachegen,
    .close = close_cachegen,
    .encode = cachegen_encode,
    .decode = cachegen_decode,
};
