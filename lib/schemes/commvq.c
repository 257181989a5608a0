/* CommVQ (Li et al., ICML 2025, arXiv 2506.18879): keys before RoPE as sums of
 * code-words that commute with RoPE, values as sums of vectors, one bit for
 * each vector.
 *
 * Keys.  A token of all KV heads is divided by its norm and cut into groups of
 * g channels, with RoPE's pairs as complex numbers.  Each group is coded by one
 * book after the other; each book takes the code-word nearest to the residual
 * that the books before it left.  A code-word is z_a + i z_b, where a book has
 * 2^(c/2) vectors z (commvq.h), so a code has c bits.  A book is trained by EM
 * (commvq_train.c).  For b bits a value a group has b g / c books, rounded: 21
 * for the paper's 2 bits (c = 12, g = 128), 11 for its 1 bit.
 *
 * Values.  A token of all KV heads, divided by each channel's mean magnitude
 * and then by its norm, is a sum of some of b x row vectors, b for each of its
 * values; decoding scales the sum to a norm of 1.  The published code chooses
 * the bits by a network of two layers, trained with the vectors on the model's
 * own loss for 100,000 steps and more.  A calibration cannot do that.  Here a
 * search chooses the bits by the squared error (commvq.h), and the vectors are
 * fitted by least squares, starting from principal axes (commvq_values.c).
 *
 * A token is
 *
 *   K: | norm: f16 | group 0: code[books] | group 1 | ... | 0 to 7 zero bits |
 *   V: | norm: f16 | bit[b row] | 0 to 7 zero bits |
 *
 * Tokens stay in fp16 until there are 128 of them, as in the code.
 *
 * Tables in a calibration, per layer:
 *   codebook  K: [groups][books][g][2^(c/2)] of fp16, z as in commvq.h
 *   basis     V: [b row][row] of fp16
 *   scale     V: [row], mean magnitudes */
#include "lib/schemes/commvq.h"
#include "kernels/bitpack.h"
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/calib.h"
#include "lib/schemes/schemes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NORM_BYTES = 2 };

static const struct kv_param params[] = {
    {"b", NULL, 2, 1, 4, true, "bits per value, without the norm"},
    {"c", NULL, 12, 2, 12, true, "keys: bits of a code, an even number"},
    {"g", NULL, 128, 2, 1024, true, "keys: channels of a group"},
    {"iters", NULL, 100, 1, 10000, true, "rounds of training, at most"},
    {0},
};

static int commvq_check(struct kv_spec *s, const struct kv_shape *shape,
                        struct kv_err *e)
{
    size_t g = kv_spec_size(s, KV_K, "g");
    const size_t c = kv_spec_size(s, KV_K, "c");

    if (kv_spec_one_side(s, KV_K, "c", e) || kv_spec_one_side(s, KV_K, "g", e))
        return -1;
    if (g > shape->head_dim)
        for (int side = 0; side < KV_SIDES; side++)
            kv_spec_set(s, (enum kv_side)side, "g", (double)shape->head_dim);
    g = kv_spec_size(s, KV_K, "g");
    if (c % 2)
        return kv_fail(e, "c=%zu: expected an even number of bits", c);
    if (g % 2 || shape->head_dim % g)
        return kv_fail(e, "g=%zu: expected an even divisor of head_dim %zu", g,
                       shape->head_dim);
    return 0;
}

struct kv_commvq_sizes kv_commvq_sizes_of(const struct kv_spec *s,
                                          const struct kv_shape *shape)
{
    const size_t row = shape->n_kv_heads * shape->head_dim;
    const size_t g = kv_spec_size(s, KV_K, "g"), c = kv_spec_size(s, KV_K, "c");
    const double books = kv_spec_get(s, KV_K, "b") * (double)g / (double)c;

    return (struct kv_commvq_sizes){.row = row,
                                    .channels = g,
                                    .groups = row / g,
                                    .books = (size_t)fmax(round(books), 1),
                                    .words = (size_t)1 << c / 2,
                                    .bits = kv_spec_size(s, KV_V, "b") * row};
}

static double commvq_nominal(const struct kv_spec *s, enum kv_side side,
                             const struct kv_shape *shape)
{
    const struct kv_commvq_sizes m = kv_commvq_sizes_of(s, shape);
    const double codes =
        (double)(m.groups * m.books) * kv_spec_get(s, KV_K, "c");

    return ((side == KV_K ? codes : (double)m.bits) + 8 * NORM_BYTES) /
           (double)m.row;
}

void kv_commvq_order(const struct kv_shape *shape, size_t *order)
{
    const struct kv_rope_pairs p = kv_shape_pairs(shape);
    const size_t d = shape->head_dim, latent = shape->latent;
    size_t n = 0;

    for (size_t i = 0; i < p.n; i++) {
        order[n++] = latent + i * p.step;
        order[n++] = latent + i * p.step + p.apart;
    }
    for (size_t i = 0; n < d; i++) /* channels that RoPE does not rotate */
        if (i < latent || i >= latent + 2 * p.n)
            order[n++] = i;
}

/* ---- the codec ----------------------------------------------------------- */

struct commvq {
    struct kv_commvq_sizes m;
    size_t *order, n_codes;
    unsigned code_bits;
    float *table;                /* the codebook, or the basis */
    struct kv_commvq_book *book; /* [groups][books] */
    float *scale;                /* [row] */
    struct kv_commvq_basis basis;
};

/* The value of x [row] that is channel i of the row in coded order. */
static float *channel_of(const struct kv_codec *c, float *x, size_t i)
{
    const struct commvq *q = c->state;
    const size_t d = c->shape.head_dim;

    return x + i / d * d + q->order[i % d];
}

/* Encodes x [row]; room [row] is workspace. */
static void encode_key(const struct kv_codec *c, float *x, float *room,
                       uint16_t *code, uint8_t *bytes)
{
    const struct commvq *q = c->state;
    const struct kv_commvq_sizes *m = &q->m;
    const float norm = kv_commvq_put_norm(x, m->row, bytes);

    for (size_t i = 0; i < m->row; i++)
        room[i] = norm > 0 ? *channel_of(c, x, i) / norm : 0;
    for (size_t i = 0; i < m->groups * m->books; i++) {
        float *rest = room + i / m->books * m->channels;

        code[i] = (uint16_t)kv_commvq_nearest(&q->book[i], rest);
        kv_commvq_add(&q->book[i], code[i], -1, rest);
    }
}

static void decode_key(const struct kv_codec *c, const uint16_t *code,
                       float norm, float *room, float *x)
{
    const struct commvq *q = c->state;
    const struct kv_commvq_sizes *m = &q->m;

    memset(room, 0, m->row * sizeof(*room));
    for (size_t i = 0; i < m->groups * m->books; i++)
        kv_commvq_add(&q->book[i], code[i], 1,
                      room + i / m->books * m->channels);
    for (size_t i = 0; i < m->row; i++)
        *channel_of(c, x, i) = norm * room[i];
}

static void encode_value(const struct kv_codec *c, const float *x, float *room,
                         uint16_t *code, uint8_t *bytes)
{
    const struct commvq *q = c->state;
    const size_t row = q->m.row;
    float norm;

    for (size_t i = 0; i < row; i++)
        room[i] = x[i] / q->scale[i];
    norm = kv_commvq_put_norm(room, row, bytes);
    for (size_t i = 0; i < row; i++)
        room[i] = norm > 0 ? room[i] / norm : 0;
    kv_commvq_choose(&q->basis, room, code);
}

static void decode_value(const struct kv_codec *c, const uint16_t *code,
                         float norm, float *x)
{
    const struct commvq *q = c->state;
    double sum = 0;

    kv_commvq_sum(&q->basis, code, x);
    for (size_t i = 0; i < q->m.row; i++)
        sum += (double)x[i] * (double)x[i];

    const float by = sum > 0 ? (float)(norm / sqrt(sum)) : 0;

    for (size_t i = 0; i < q->m.row; i++)
        x[i] = by * x[i] * q->scale[i];
}

static void commvq_encode(const struct kv_codec *c, struct kv_where w,
                          const float *x, size_t n_blocks, uint8_t *bytes)
{
    const struct commvq *q = c->state;
    const size_t row = q->m.row;
    float *token = kv_alloc(2 * row, sizeof(*token)), *room = token + row;
    uint16_t *code = kv_alloc(q->n_codes, sizeof(*code));

    (void)w;
    for (size_t t = 0; t < n_blocks; t++, bytes += c->block_bytes) {
        memcpy(token, x + t * row, row * sizeof(*token));
        if (c->side == KV_K)
            encode_key(c, token, room, code, bytes);
        else
            encode_value(c, token, room, code, bytes);
        kv_pack(code, q->n_codes, q->code_bits, bytes + NORM_BYTES);
    }
    free(code);
    free(token);
}

static void commvq_decode(const struct kv_codec *c, const uint8_t *bytes,
                          size_t n_blocks, float *x)
{
    const struct commvq *q = c->state;
    float *room = kv_alloc(q->m.row, sizeof(*room));
    uint16_t *code = kv_alloc(q->n_codes, sizeof(*code));

    for (size_t t = 0; t < n_blocks; t++, bytes += c->block_bytes) {
        const float norm = kv_f16_get(bytes);

        kv_unpack(bytes + NORM_BYTES, q->n_codes, q->code_bits, code);
        if (c->side == KV_K)
            decode_key(c, code, norm, room, x + t * q->m.row);
        else
            decode_value(c, code, norm, x + t * q->m.row);
    }
    free(code);
    free(room);
}

/* ---- open ---------------------------------------------------------------- */

static int open_keys(struct kv_codec *c, const struct kv_calib_set *set,
                     struct kv_err *e)
{
    struct commvq *q = c->state;
    const struct kv_commvq_sizes *m = &q->m;
    const size_t n = m->groups * m->books, size = m->channels * m->words;
    const size_t dims[] = {m->groups, m->books, m->channels, m->words};
    const struct kv_table *t = kv_calib_want(c, set, "codebook", 0, 4, dims, e);

    if (!t)
        return -1;
    q->order = kv_alloc(c->shape.head_dim, sizeof(*q->order));
    kv_commvq_order(&c->shape, q->order);
    q->table = kv_alloc(n, size * sizeof(*q->table));
    memcpy(q->table, t->data, n * size * sizeof(*q->table));
    q->book = kv_alloc(n, sizeof(*q->book));
    for (size_t i = 0; i < n; i++)
        kv_commvq_book_init(&q->book[i], q->table + i * size, m->words,
                            m->channels);
    q->n_codes = n;
    q->code_bits = (unsigned)kv_spec_size(&c->spec, KV_K, "c");
    return 0;
}

static int open_values(struct kv_codec *c, const struct kv_calib_set *set,
                       struct kv_err *e)
{
    struct commvq *q = c->state;
    const struct kv_commvq_sizes *m = &q->m;
    const size_t dims[] = {m->bits, m->row};
    const struct kv_table *t = kv_calib_want(c, set, "basis", 0, 2, dims, e);
    const struct kv_table *scale =
        t ? kv_calib_want(c, set, "scale", 0, 1, dims + 1, e) : NULL;

    if (!scale)
        return -1;
    for (size_t i = 0; i < m->row; i++)
        if (!(scale->data[i] > 0))
            return kv_fail(e,
                           "the calibration's scale of layer %zu, channel %zu "
                           "is %g, expected above 0",
                           c->layer, i, (double)scale->data[i]);
    q->scale = kv_alloc(m->row, sizeof(*q->scale));
    memcpy(q->scale, scale->data, m->row * sizeof(*q->scale));
    q->table = kv_alloc(m->bits, m->row * sizeof(*q->table));
    memcpy(q->table, t->data, m->bits * m->row * sizeof(*q->table));
    kv_commvq_basis_init(&q->basis, q->table, m->bits, m->row);
    q->n_codes = m->bits;
    q->code_bits = 1;
    return 0;
}

static int open_commvq(struct kv_codec *c, const struct kv_calib *calib,
                       struct kv_err *e)
{
    const struct kv_calib_set *set;
    struct commvq *q;

    if (kv_calib_want_set(&set, calib, &c->spec, e))
        return -1;
    c->state = q = kv_alloc(1, sizeof(*q));
    q->m = kv_commvq_sizes_of(&c->spec, &c->shape);
    if ((c->side == KV_K ? open_keys : open_values)(c, set, e))
        return -1;
    c->pre_rope = c->side == KV_K;
    c->block = 1;
    c->block_bytes = NORM_BYTES + kv_pack_bytes(q->n_codes, q->code_bits);
    return 0;
}

static void close_commvq(struct kv_codec *c)
{
    struct commvq *q = c->state;

    if (!q)
        return;
    for (size_t i = 0; q->book && i < q->m.groups * q->m.books; i++)
        kv_commvq_book_clear(&q->book[i]);
    kv_commvq_basis_clear(&q->basis);
    free(q->book);
    free(q->order);
    free(q->scale);
    free(q->table);
    free(q);
}

const struct kv_scheme kv_scheme_commvq = {
    .name = "commvq",
    .brief =
        "CommVQ: sums of code-words that commute with RoPE; values by bits "
        "of a basis",
    .params = params,
    .residual = 128,
    .residual_rule = {KV_BATCHED, KV_BATCHED},
    .check = commvq_check,
    .nominal = commvq_nominal,
    .training = &kv_commvq_training,
    .open = open_commvq,
    .close = close_commvq,
    .encode = commvq_encode,
    .decode = commvq_decode,
};
