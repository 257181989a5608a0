/* GEAR (arXiv 2403.05527): integers, a low-rank approximation of their error,
 * and outliers kept apart.  The steps for a block X of n tokens, in the paper's
 * order:
 *
 *   S  outliers: the o / 2 per cent largest and the o / 2 per cent smallest
 *      values of each vector; a vector is a channel of a head for keys, a token
 *      over all heads for values
 *   D  the backbone, X - S in KIVI's groups (kivi.c): g tokens of a channel
 *      for keys, g channels of a token for values; groups of values run through
 *      all KV heads (heads=all, published code) or stay in one head
 *   L  rank k: A B' approximates R = X - D - S of each KV head
 *
 * A value decodes to D + L; an outlier decodes to its fp16 value.  Our reading:
 * R = 0 where S != 0.  In the backbone an outlier is 0 as the formula says
 * (fill=zero), or the mean of its vector (fill=mean, published code).  The
 * number of outliers at either end is rounded down.  (The published code
 * computes this number from the length of a token's row for keys too, whatever
 * the length of a channel; both give the same number if a block has as many
 * tokens as a row has values.)
 *
 * Power iteration, i rounds from a fixed start B0: A is an orthonormal basis of
 * R B, then B = R' A.  The paper orthogonalizes in the last round alone, which
 * spans the same space.  A is rounded to fp16 before the last B is computed
 * from it.
 *
 * One block, row = n_kv_heads * head_dim, v vectors with m outliers each:
 *
 *   | backbone: n * row codes, b bits | heads: 4 bytes a group |
 *   | where: v * m, as few bits as they need | outliers: v * m, f16 |
 *   | per KV head: A, n * k, f16 | B, head_dim * k, f16 |
 *
 * bits padded to whole bytes, a vector's places ascend.  Bits a value:
 * b + 32 / g, about o / 100 * (16 + log2(length of a vector)), and 16 k
 * (1 / n + 1 / head_dim). */
#include "kernels/bitpack.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/base/rng.h"
#include "lib/schemes/chunk.h"
#include "lib/schemes/integers.h"
#include "lib/schemes/schemes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The sizes; a vector of len values is a channel of keys or a token of
 * values. */
struct gear {
    size_t row, n_vectors, len, n_ends; /* outliers at each end of a vector */
    size_t group, rank, rounds;
    unsigned bits, place_bits;
    bool fill_zero;
    size_t code_bytes, head_bytes, place_bytes, outlier_bytes, factor_bytes;
};

/* The index of value j of vector i in x [block][row]. */
static size_t gear_place(const struct kv_codec *c, size_t i, size_t j)
{
    const struct gear *g = c->state;

    return c->side == KV_K ? j * g->row + i : i * g->row + j;
}

/* ---- S ----------------------------------------------------------------- */

struct entry {
    float x;
    size_t at;
};

static int gear_by_value(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;

    if (x->x != y->x)
        return x->x < y->x ? -1 : 1;
    return x->at < y->at ? -1 : 1;
}

/* mark: [len], set to 1 for the n smallest and the n largest of the vector. */
static void gear_find_outliers(const float *x, size_t len, size_t n,
                               struct entry *sorted, uint8_t *mark)
{
    memset(mark, 0, len);
    if (!n)
        return;
    for (size_t j = 0; j < len; j++)
        sorted[j] = (struct entry){x[j], j};
    qsort(sorted, len, sizeof(*sorted), gear_by_value);
    for (size_t j = 0; j < n; j++)
        mark[sorted[j].at] = mark[sorted[len - 1 - j].at] = 1;
}

static float mean(const float *x, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)x[i];
    return (float)(sum / (double)n);
}

/* Removes the outliers from x [block][row], marks and stores them. */
static void take_outliers(const struct kv_codec *c, float *x, uint8_t *mark,
                          uint8_t *places, uint8_t *outliers)
{
    const struct gear *g = c->state;
    struct entry *sorted = kv_alloc(g->len, sizeof(*sorted));
    float *vector = kv_alloc(g->len, sizeof(*vector));
    uint8_t *is = kv_alloc(g->len, 1);
    const size_t n_all = g->n_vectors * g->n_ends * 2;
    uint16_t *at = kv_alloc(n_all, sizeof(*at));
    size_t n = 0;

    for (size_t i = 0; i < g->n_vectors; i++) {
        for (size_t j = 0; j < g->len; j++)
            vector[j] = x[gear_place(c, i, j)];
        gear_find_outliers(vector, g->len, g->n_ends, sorted, is);

        const float fill = g->fill_zero ? 0 : mean(vector, g->len);

        for (size_t j = 0; j < g->len; j++) {
            mark[gear_place(c, i, j)] = is[j];
            if (!is[j])
                continue;
            kv_f16_put(outliers + 2 * n, vector[j]);
            at[n++] = (uint16_t)j;
            x[gear_place(c, i, j)] = fill;
        }
    }
    kv_pack(at, n_all, g->place_bits, places);
    free(at);
    free(is);
    free(vector);
    free(sorted);
}

static void gear_put_outliers(const struct kv_codec *c, const uint8_t *places,
                              const uint8_t *outliers, float *x)
{
    const struct gear *g = c->state;
    const size_t each = g->n_ends * 2, n = g->n_vectors * each;
    uint16_t *at = kv_alloc(n, sizeof(*at));

    kv_unpack(places, n, g->place_bits, at);
    for (size_t i = 0; i < n; i++)
        if (at[i] < g->len)
            x[gear_place(c, i / each, at[i])] = kv_f16_get(outliers + 2 * i);
    free(at);
}

/* ---- D ----------------------------------------------------------------- */

/* Encodes x, vector by vector; `back`: the decoded values. */
static void encode_backbone(const struct kv_codec *c, const float *x,
                            uint8_t *bytes, uint8_t *head, float *back)
{
    const struct gear *g = c->state;
    const struct kv_group_quantizer *q = &kv_kivi_quantizer;
    const size_t n = kv_codec_block_values(c);
    uint16_t *code = kv_alloc(n, sizeof(*code)), *to = code;
    float *group = kv_alloc(g->group, sizeof(*group));

    for (size_t i = 0; i < g->n_vectors; i++)
        for (size_t j0 = 0; j0 < g->len; j0 += g->group) {
            for (size_t j = 0; j < g->group; j++)
                group[j] = x[gear_place(c, i, j0 + j)];
            q->encode(group, g->group, g->bits, head, to);
            q->decode(to, g->group, g->bits, head, group);
            for (size_t j = 0; j < g->group; j++)
                back[gear_place(c, i, j0 + j)] = group[j];
            head += q->head_bytes;
            to += g->group;
        }
    kv_pack(code, n, g->bits, bytes);
    free(group);
    free(code);
}

static void decode_backbone(const struct kv_codec *c, const uint8_t *bytes,
                            const uint8_t *head, float *x)
{
    const struct gear *g = c->state;
    const struct kv_group_quantizer *q = &kv_kivi_quantizer;
    const size_t n = kv_codec_block_values(c);
    uint16_t *code = kv_alloc(n, sizeof(*code)), *from = code;
    float *group = kv_alloc(g->group, sizeof(*group));

    kv_unpack(bytes, n, g->bits, code);
    for (size_t i = 0; i < g->n_vectors; i++)
        for (size_t j0 = 0; j0 < g->len; j0 += g->group) {
            q->decode(from, g->group, g->bits, head, group);
            for (size_t j = 0; j < g->group; j++)
                x[gear_place(c, i, j0 + j)] = group[j];
            head += q->head_bytes;
            from += g->group;
        }
    free(group);
    free(code);
}

/* ---- L ----------------------------------------------------------------- */

/* R of one head, [n] rows `row` floats apart; a: [n][k], b: [d][k]. */
struct low_rank {
    const float *r;
    size_t n, d, k, row;
    double *a, *b;
};

static double gear_dot(const struct low_rank *l, size_t i, size_t j)
{
    double sum = 0;

    for (size_t t = 0; t < l->n; t++)
        sum += l->a[t * l->k + i] * l->a[t * l->k + j];
    return sum;
}

static void scale(struct low_rank *l, size_t i, double by)
{
    for (size_t t = 0; t < l->n; t++)
        l->a[t * l->k + i] *= by;
}

/* Makes A's columns orthonormal (Gram-Schmidt, twice).  Clears a column that
 * the earlier columns span to 10 digits, as when R's rank is less than k. */
static void orthonormalize(struct low_rank *l)
{
    for (size_t i = 0; i < l->k; i++) {
        const double before = gear_dot(l, i, i);

        for (size_t j = 0; j < 2 * i; j++) {
            const double along = gear_dot(l, i, j % i);

            for (size_t t = 0; t < l->n; t++)
                l->a[t * l->k + i] -= along * l->a[t * l->k + j % i];
        }

        const double left = gear_dot(l, i, i);

        scale(l, i, left > 1e-20 * before ? 1 / sqrt(left) : 0);
    }
}

static void a_from_b(struct low_rank *l)
{
    memset(l->a, 0, l->n * l->k * sizeof(*l->a));
    for (size_t t = 0; t < l->n; t++)
        for (size_t j = 0; j < l->d; j++)
            for (size_t i = 0; i < l->k; i++)
                l->a[t * l->k + i] +=
                    (double)l->r[t * l->row + j] * l->b[j * l->k + i];
}

static void b_from_a(struct low_rank *l)
{
    memset(l->b, 0, l->d * l->k * sizeof(*l->b));
    for (size_t t = 0; t < l->n; t++)
        for (size_t j = 0; j < l->d; j++)
            for (size_t i = 0; i < l->k; i++)
                l->b[j * l->k + i] +=
                    (double)l->r[t * l->row + j] * l->a[t * l->k + i];
}

/* Stores x [n] as f16; x becomes the rounded values. */
static uint8_t *gear_store(double *x, size_t n, uint8_t *bytes)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (double)kv_f16_put(bytes + 2 * i, (float)x[i]);
    return bytes + 2 * n;
}

/* Computes and stores the factors A and B of each head of r [block][row]. */
static void encode_low_rank(const struct kv_codec *c, const float *r,
                            uint8_t *bytes)
{
    enum { START = 0x67656172 }; /* the key of B0, uniform as in the code */
    const struct gear *g = c->state;
    const size_t d = c->shape.head_dim, k = g->rank;
    struct low_rank l = {.n = c->block,
                         .d = d,
                         .k = k,
                         .row = g->row,
                         .a = kv_alloc(c->block * k, sizeof(*l.a)),
                         .b = kv_alloc(d * k, sizeof(*l.b))};

    for (size_t h = 0; h < c->shape.n_kv_heads; h++) {
        l.r = r + h * d;
        for (size_t i = 0; i < d * k; i++)
            l.b[i] = (double)kv_random_unit(START, i);
        for (size_t i = 0; i < g->rounds; i++) {
            a_from_b(&l);
            orthonormalize(&l);
            if (i + 1 == g->rounds)
                bytes = gear_store(l.a, l.n * k, bytes);
            b_from_a(&l);
        }
        bytes = gear_store(l.b, d * k, bytes);
    }
    free(l.b);
    free(l.a);
}

static void add_low_rank(const struct kv_codec *c, const uint8_t *bytes,
                         float *x)
{
    const struct gear *g = c->state;
    const size_t d = c->shape.head_dim, k = g->rank, n = c->block;
    float *a = kv_alloc((n + d) * k, sizeof(*a)), *b = a + n * k;

    for (size_t h = 0; h < c->shape.n_kv_heads; h++) {
        for (size_t i = 0; i < (n + d) * k; i++, bytes += 2)
            a[i] = kv_f16_get(bytes);
        for (size_t t = 0; t < n; t++)
            for (size_t j = 0; j < d; j++) {
                float sum = 0;

                for (size_t i = 0; i < k; i++)
                    sum += a[t * k + i] * b[j * k + i];
                x[t * g->row + h * d + j] += sum;
            }
    }
    free(a);
}

/* ---- blocks ------------------------------------------------------------ */

/* The places of a block's parts, in order. */
struct parts {
    size_t heads, places, outliers, factors;
};

static struct parts parts_of(const struct gear *g)
{
    struct parts p = {.heads = g->code_bytes};

    p.places = p.heads + g->head_bytes;
    p.outliers = p.places + g->place_bytes;
    p.factors = p.outliers + g->outlier_bytes;
    return p;
}

static void gear_encode(const struct kv_codec *c, struct kv_where w,
                        const float *x, size_t n_blocks, uint8_t *bytes)
{
    const struct gear *g = c->state;
    const struct parts p = parts_of(g);
    const size_t n = kv_codec_block_values(c);
    float *left = kv_alloc(n, sizeof(*left));
    float *back = kv_alloc(n, sizeof(*back));
    uint8_t *mark = kv_alloc(n, 1);

    (void)w;
    for (size_t b = 0; b < n_blocks; b++, x += n, bytes += c->block_bytes) {
        memcpy(left, x, n * sizeof(*left));
        take_outliers(c, left, mark, bytes + p.places, bytes + p.outliers);
        encode_backbone(c, left, bytes, bytes + p.heads, back);
        for (size_t i = 0; i < n; i++)
            left[i] = mark[i] ? 0 : x[i] - back[i];
        encode_low_rank(c, left, bytes + p.factors);
    }
    free(mark);
    free(back);
    free(left);
}

static void gear_decode(const struct kv_codec *c, const uint8_t *bytes,
                        size_t n_blocks, float *x)
{
    const struct parts p = parts_of(c->state);

    for (size_t b = 0; b < n_blocks; b++, bytes += c->block_bytes) {
        decode_backbone(c, bytes, bytes + p.heads, x);
        add_low_rank(c, bytes + p.factors, x);
        gear_put_outliers(c, bytes + p.places, bytes + p.outliers, x);
        x += kv_codec_block_values(c);
    }
}

/* ---- the scheme -------------------------------------------------------- */

static const struct kv_param params[] = {
    {"b", NULL, 2, 1, 8, false, "bits per code"},
    {"g", NULL, 64, 1, 4096, false,
     "group: tokens for keys, channels for values"},
    {"n", NULL, 256, 1, 65536, false, "tokens of a block"},
    {"k", NULL, 4, 0, 512, false,
     "rank of the approximated error, per KV head"},
    {"i", NULL, 3, 1, 64, false, "rounds of power iteration"},
    {"o", NULL, 2, 0, 49.9, false, "outliers, per cent of each vector"},
    {"heads", "all|one", 0, 0, 0, false,
     "values: a group runs through all KV heads, as published code, or one"},
    {"fill", "mean|zero", 0, 0, 1, false,
     "outliers in the backbone: mean as published code, zero as the paper"},
    {0},
};

static size_t min(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* The length of the run of values that is cut into groups. */
static size_t integers(const struct kv_spec *s, enum kv_side side,
                       const struct kv_shape *shape)
{
    if (side == KV_K)
        return kv_spec_size(s, side, "n");
    return kv_spec_is(s, side, "heads", "one")
               ? shape->head_dim
               : shape->n_kv_heads * shape->head_dim;
}

static int gear_check(struct kv_spec *s, const struct kv_shape *shape,
                      struct kv_err *e)
{
    const size_t d = shape->head_dim;

    if (kv_spec_one_side(s, KV_V, "heads", e))
        return -1;
    for (int i = 0; i < KV_SIDES; i++) {
        const enum kv_side side = (enum kv_side)i;
        const size_t n = kv_spec_size(s, side, "n");
        const size_t max = integers(s, side, shape);
        const size_t g = min(kv_spec_size(s, side, "g"), max);

        kv_spec_set(s, side, "g", (double)g);
        kv_spec_set(s, side, "k",
                    (double)min(kv_spec_size(s, side, "k"), min(n, d)));
        if (max % g)
            return kv_fail(e, "%c: g=%zu must divide %s %zu",
                           kv_side_name(side), g,
                           side == KV_K ? "the block, n ="
                           : kv_spec_is(s, side, "heads", "one") ? "head_dim"
                                                                 : "the row of",
                           max);
        if (shape->n_kv_heads * d > 65536)
            return kv_fail(e, "a row of %zu values has no 16-bit places",
                           shape->n_kv_heads * d);
    }
    return 0;
}

/* The bits of an index into a vector. */
static unsigned place_bits(size_t len)
{
    unsigned bits = 1;

    while (len > (size_t)1 << bits)
        bits++;
    return bits;
}

static int open_gear(struct kv_codec *c, const struct kv_calib *calib,
                     struct kv_err *e)
{
    const struct kv_spec *s = &c->spec;
    const enum kv_side side = c->side;
    const size_t d = c->shape.head_dim;
    struct gear *g = kv_alloc(1, sizeof(*g));
    size_t n_outliers;

    (void)calib;
    (void)e;
    c->state = g;
    c->block = kv_chunk(c, kv_spec_size(s, side, "n"),
                        side == KV_K ? kv_spec_size(s, side, "g") : 1);
    g->row = c->shape.n_kv_heads * d;
    g->n_vectors = side == KV_K ? g->row : c->block;
    g->len = side == KV_K ? c->block : g->row;
    g->n_ends = (size_t)(kv_spec_get(s, side, "o") * (double)g->len / 200);
    g->group = kv_spec_size(s, side, "g");
    g->rank = min(kv_spec_size(s, side, "k"), c->block);
    g->rounds = kv_spec_size(s, side, "i");
    g->bits = (unsigned)kv_spec_size(s, side, "b");
    g->place_bits = place_bits(g->len);
    g->fill_zero = kv_spec_is(s, side, "fill", "zero");
    n_outliers = g->n_vectors * g->n_ends * 2;
    g->code_bytes = kv_pack_bytes(c->block * g->row, g->bits);
    g->head_bytes = c->block * g->row / g->group * kv_kivi_quantizer.head_bytes;
    g->place_bytes = kv_pack_bytes(n_outliers, g->place_bits);
    g->outlier_bytes = n_outliers * sizeof(uint16_t);
    g->factor_bytes =
        c->shape.n_kv_heads * (c->block + d) * g->rank * sizeof(uint16_t);
    c->block_bytes = parts_of(g).factors + g->factor_bytes;
    return 0;
}

const struct kv_scheme kv_scheme_gear = {
    .name = "gear",
    .brief = "GEAR: KIVI's codes, their error in low rank, sparse outliers",
    .params = params,
    .residual_rule = {KV_SLIDING, KV_SLIDING},
    .check = gear_check,
    .open = open_gear,
    .encode = gear_encode,
    .decode = gear_decode,
};
