/* HACK's open block without requantization elimination (rqe=no): codes that are
 * requantized as the block grows. */
#include "kernels/bitpack.h"
#include "lib/base/alloc.h"
#include "lib/schemes/hack.h"

#include <stdlib.h>
#include <string.h>

/* Adds token m to range i, a channel's range with m codes (section 5.3, figure
 * 8).  A value inside the range is quantized with it.  A value outside widens
 * the range, and all m + 1 values are quantized anew, the old ones from their
 * dequantized values.  one, code: [n_lines][len]. */
static void append_value(const struct kv_hack *h, uint64_t key, size_t first,
                         size_t i, size_t m, const float *one, uint16_t *code,
                         uint8_t *bytes)
{
    const struct kv_hack_span s = kv_hack_span_of(h, i, first);
    const struct kv_hack_range old = kv_hack_get_range(h, bytes, i);
    const float top = (float)((1u << h->bits) - 1);
    const float x = one[s.at + m * s.step];
    float value[KV_HACK_MAX_PART], u[KV_HACK_MAX_PART];
    uint8_t rounded[KV_HACK_MAX_PART];

    if (h->stochastic)
        kv_hack_table()->uniform(key, s.counter, s.next, m + 1, u);
    if (m && x >= old.min && x <= old.min + old.scale * top) {
        kv_hack_table()->round(&x, 1, old, h->bits,
                               h->stochastic ? u + m : NULL, rounded);
        code[s.at + m * s.step] = rounded[0];
        return;
    }
    for (size_t t = 0; t < m; t++)
        value[t] = old.min + old.scale * (float)code[s.at + t * s.step];
    value[m] = x;

    /* the new range covers x and the old range's ends, not only the values
     * rounded into the old range */
    const float ends[3] = {x, m ? old.min : x,
                           m ? old.min + old.scale * top : x};

    kv_hack_table()->round(
        value, m + 1,
        kv_hack_put_range(h, bytes, i,
                          kv_hack_table()->range(ends, 3, h->bits)),
        h->bits, h->stochastic ? u : NULL, rounded);
    for (size_t t = 0; t <= m; t++)
        code[s.at + t * s.step] = rounded[t];
}

/* Whether each token has ranges of its own: for values with axes=artifact. */
static bool ranges_of_tokens(const struct kv_hack *h)
{
    return h->artifact && h->side == KV_V;
}

static void requantize(const struct kv_codec *c, struct kv_where w, size_t m,
                       const float *x, uint8_t *open)
{
    const struct kv_hack *h = c->state;
    const size_t heads = c->shape.n_kv_heads, d = c->shape.head_dim;
    uint16_t *code = kv_alloc(h->n_lines * h->len, sizeof(*code));
    float *one = kv_alloc(h->n_lines * h->len, sizeof(*one));

    if (!m)
        memset(open, 0, c->block_bytes);
    for (size_t i = 0; i < heads; i++, open += h->head_bytes) {
        const uint64_t key = kv_hack_stored_key(c, w.seed, i, w.first + m + 1);

        kv_unpack(open, h->n_lines * h->len, h->bits, code);
        for (size_t j = 0; j < d; j++)
            one[kv_hack_place(h, m, j)] = x[i * d + j];
        if (ranges_of_tokens(h))
            for (size_t g = 0; g < h->n_groups; g++)
                kv_hack_encode_range(h, kv_hack_stored_key(c, w.seed, i, 0),
                                     w.first, m * h->n_groups + g, one, code,
                                     open);
        else
            for (size_t r = 0; r < h->n_ranges; r++)
                append_value(h, key, w.first, r, m, one, code, open);
        kv_hack_put_codes(h, code, open);
    }
    free(one);
    free(code);
}

/* An open block of m tokens holds, for each KV head, the codes of its tokens,
 * [m][head_dim] packed, then the ranges and sums in use. */
struct open_head {
    size_t codes, ranges, sums; /* bytes; ranges: of the scales alone, or of the
                                 * minima alone */
};

static struct open_head open_head(const struct kv_hack *h, size_t d, size_t m)
{
    const size_t lines = h->side == KV_K ? m : h->n_lines;
    const size_t ranges = ranges_of_tokens(h) ? m * h->n_groups : h->n_ranges;

    return (struct open_head){.codes = kv_pack_bytes(d * m, h->bits),
                              .ranges = ranges * sizeof(uint16_t),
                              .sums = lines * h->n_parts * h->sum_bytes};
}

static size_t open_bytes(const struct kv_codec *c, size_t m)
{
    const struct open_head o = open_head(c->state, c->shape.head_dim, m);

    return m ? c->shape.n_kv_heads * (o.codes + 2 * o.ranges + o.sums) : 0;
}

static void write_open(const struct kv_codec *c, const uint8_t *open, size_t m,
                       uint8_t *bytes)
{
    const struct kv_hack *h = c->state;
    const size_t d = c->shape.head_dim;
    const struct open_head o = open_head(h, d, m);
    uint16_t *code = kv_alloc(h->n_lines * h->len, sizeof(*code));
    uint16_t *some = kv_alloc(m * d, sizeof(*some));

    for (size_t i = 0; i < c->shape.n_kv_heads; i++, open += h->head_bytes) {
        const uint8_t *range = open + h->code_bytes;

        kv_unpack(open, h->n_lines * h->len, h->bits, code);
        for (size_t t = 0; t < m; t++)
            for (size_t j = 0; j < d; j++)
                some[t * d + j] = code[kv_hack_place(h, t, j)];
        kv_pack(some, m * d, h->bits, bytes);
        bytes += o.codes;
        for (int j = 0; j < 2; j++, bytes += o.ranges)
            memcpy(bytes, range + j * h->n_ranges * sizeof(uint16_t), o.ranges);
        memcpy(bytes, range + 2 * h->n_ranges * sizeof(uint16_t), o.sums);
        bytes += o.sums;
    }
    free(some);
    free(code);
}

static void read_open(const struct kv_codec *c, const uint8_t *bytes, size_t m,
                      uint8_t *open)
{
    const struct kv_hack *h = c->state;
    const size_t d = c->shape.head_dim;
    const struct open_head o = open_head(h, d, m);
    uint16_t *code = kv_alloc(h->n_lines * h->len, sizeof(*code));
    uint16_t *some = kv_alloc(m * d, sizeof(*some));

    memset(open, 0, c->block_bytes);
    for (size_t i = 0; i < c->shape.n_kv_heads; i++, open += h->head_bytes) {
        uint8_t *range = open + h->code_bytes;

        kv_unpack(bytes, m * d, h->bits, some);
        for (size_t t = 0; t < m; t++)
            for (size_t j = 0; j < d; j++)
                code[kv_hack_place(h, t, j)] = some[t * d + j];
        kv_pack(code, h->n_lines * h->len, h->bits, open);
        bytes += o.codes;
        for (int j = 0; j < 2; j++, bytes += o.ranges)
            memcpy(range + j * h->n_ranges * sizeof(uint16_t), bytes, o.ranges);
        memcpy(range + 2 * h->n_ranges * sizeof(uint16_t), bytes, o.sums);
        bytes += o.sums;
    }
    free(some);
    free(code);
}

static void decode_open(const struct kv_codec *c, const uint8_t *open, size_t m,
                        float *x)
{
    kv_hack_decode_block(c, open, m, x);
}

const struct kv_history kv_hack_open_block = {.requantize = requantize,
                                              .open_bytes = open_bytes,
                                              .write_open = write_open,
                                              .read_open = read_open,
                                              .decode_open = decode_open};
