/* Attention on klt's codes: kernels/transform reads a token's coefficients as
 * one bitstream. */
#include "kernels/tiles/rope.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"
#include "lib/schemes/klt_impl.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Finds the layer and side whose coefficients are part i of k's rows. */
static const struct klt *part_of(const struct klt *k, size_t i)
{
    return i ? k->near[i - 1] : k;
}

/* A side's rows are a mean plus a sum over coefficients: the side's own, and
 * those of its neighbours, whose predictions are products of matrices. */
struct sum {
    float *mean; /* [row] */
    /* [row][row], from coefficients to values: [0] the side's own, [1 + i]
     * those of near[i]. */
    float *inverse[KV_KLT_SOURCES + 1];
};

/* Adds neighbour i's rows, multiplied by `by` [row][row]. */
static void add_near(struct sum *s, const struct klt *k, size_t i,
                     const float *by)
{
    const struct klt *p = k->near[i];
    const size_t row = k->row;
    float **to = &s->inverse[1 + i];

    if (!*to)
        *to = kv_alloc(row, row * sizeof(**to));
    kv_vecops_times(p->inverse, row, p->coding.n_used, by, row, row, row, *to,
                    row);
    kv_vecops_times(p->mean, row, 1, by, row, row, row, s->mean, row);
    for (size_t j = 0; j < p->pred.n_sources; j++) {
        float *both = kv_alloc(row, row * sizeof(*both));

        kv_vecops_times(p->pred.matrix + j * row * row, row, row, by, row, row,
                        row, both, row);
        add_near(s, k, j, both);
        free(both);
    }
}

static void sum_init(struct sum *s, const struct klt *k)
{
    const size_t row = k->row;

    *s = (struct sum){.mean = kv_alloc(row, sizeof(float)),
                      .inverse = {k->inverse}};
    memcpy(s->mean, k->mean, row * sizeof(*s->mean));
    for (size_t i = 0; i < k->pred.n_sources; i++)
        add_near(s, k, i, k->pred.matrix + i * row * row);
}

static void sum_clear(struct sum *s)
{
    free(s->mean);
    for (size_t i = 1; i <= KV_KLT_SOURCES; i++)
        free(s->inverse[i]);
}

/* The bytes of zeros between the parts of joined codes, so that a part's first
 * states begin with zeros. */
enum { APART = (KV_TRELLIS_BITS + 7) / 8 };

/* The byte at which part i begins in a token's joined codes; if i is the number
 * of parts, the byte at which a further part would begin. */
static size_t part_at(const struct klt *k, size_t i)
{
    size_t at = 0;

    for (size_t j = 0; j < i; j++)
        at += part_of(k, j)->coding.bytes + APART;
    return at;
}

static size_t n_parts(const struct klt *k)
{
    size_t n = 1;

    while (n <= KV_KLT_SOURCES && k->near[n - 1])
        n++;
    return n;
}

static size_t joined_bytes(const struct klt *k)
{
    return part_at(k, n_parts(k)) - APART;
}

/* Whether head h uses coefficient i of part p: it uses all of a neighbour's,
 * but of the side's own only those of its part of the row. */
static bool has_coef(const struct klt *k, size_t h, size_t p, size_t i)
{
    return p || k->coding.coef[i].index / k->part == h * k->d / k->part;
}

static size_t n_coefs(const struct klt *k, size_t h)
{
    size_t n = 0;

    for (size_t p = 0; p < n_parts(k); p++)
        for (size_t i = 0; i < part_of(k, p)->coding.n_coded; i++)
            n += has_coef(k, h, p, i);
    return n;
}

static size_t max_coefs(const struct klt *k)
{
    size_t max = 0;

    for (size_t h = 0; h < k->n_heads; h++)
        max = kv_max(max, n_coefs(k, h));
    return max;
}

/* The int8 path rounds queries and tables by about a hundredth of a
 * coefficient.  That is at most a tenth of the scheme's own error, if at least
 * this share of the squares is error. */
static const double MIN_ERROR_SHARE = 0.01;

/* Whether the error of all coefficients is at least MIN_ERROR_SHARE of the
 * squares of the coded coefficients, in this side's metric. */
static bool int8_will_do(const struct klt *k, const struct sum *s)
{
    const size_t row = k->row;
    double coded = k->coding.coded;

    for (size_t i = 1; i < n_parts(k); i++) {
        const struct kv_klt_coding *g = &part_of(k, i)->coding;
        float *y = kv_alloc(g->n_used, row * sizeof(*y));

        kv_vecops_times(s->inverse[i], row, g->n_used, k->forward, row, row,
                        row, y, row);
        for (size_t j = 0; j < g->n_coded * row; j++)
            coded += pow((double)g->sigma[j / row] *
                             (double)y[g->place[j / row] * row + j % row],
                         2);
        free(y);
    }
    return coded > 0 && k->coding.error >= MIN_ERROR_SHARE * coded;
}

/* Writes the coefficients of head h in all parts to `to` [n_coefs()]; returns
 * their end. */
static struct kv_transform_coef *put_coefs(const struct klt *k,
                                           const struct sum *s, size_t h,
                                           struct kv_transform_coef *to)
{
    for (size_t p = 0; p < n_parts(k); p++) {
        const struct kv_klt_coding *g = &part_of(k, p)->coding;
        const size_t before = 8 * part_at(k, p);

        for (size_t i = 0; i < g->n_coded; i++)
            if (has_coef(k, h, p, i))
                *to++ = (struct kv_transform_coef){
                    .end = before + g->listed[i].end,
                    .table = k->numbers.table + g->listed[i].table,
                    .map = kv_klt_map(g->listed[i].table),
                    .scale = g->listed[i].scale,
                    .inverse =
                        s->inverse[p] + g->listed[i].index * k->row + h * k->d};
    }
    return to;
}

static void make_transform(const struct kv_codec *c, struct klt *k)
{
    struct kv_transform_coef *coef =
        kv_alloc(max_coefs(k) * k->n_heads, sizeof(*coef));
    struct kv_transform_coef *to = coef;
    size_t *n = kv_alloc(k->n_heads, sizeof(*n));
    struct sum s;

    sum_init(&s, k);
    if (c->pre_rope)
        k->rope = kv_tiles_rope_new(k->d, kv_shape_pairs(&c->shape),
                                    c->shape.inv_freq);
    for (size_t h = 0; h < k->n_heads; h++) {
        n[h] = n_coefs(k, h);
        to = put_coefs(k, &s, h, to);
    }
    k->transform = kv_transform_new(
        &(struct kv_transform_about){.n_heads = k->n_heads,
                                     .head_dim = k->d,
                                     .bitstream_bytes = joined_bytes(k),
                                     .n = n,
                                     .coef = coef,
                                     .mean = s.mean,
                                     .rope = k->rope,
                                     .values = c->side == KV_V,
                                     .int8 = int8_will_do(k, &s)});
    sum_clear(&s);
    free(n);
    free(coef);
}

bool kv_klt_store(const struct kv_codec *c, struct kv_store *s)
{
    struct klt *k = c->state;

    if ((c->layered && !c->layered->in_place) ||
        max_coefs(k) > KV_TRANSFORM_COEFS)
        return false;
#pragma omp critical(kv_klt_transform)
    if (!k->transform)
        make_transform(c, k);
    kv_store_transform(s, k->transform);
    return true;
}

void kv_klt_tile(const struct kv_codec *c, const struct kv_store *s,
                 const uint8_t *blocks, size_t first, size_t n, size_t head,
                 uint8_t *tile)
{
    (void)head; /* a token's bitstream has all heads */
    for (size_t i = 0; i < n; i++)
        kv_store_put_bitstream(s, i, blocks + (first + i) * c->block_bytes,
                               tile);
}

/* Lists the codes of all parts; returns their number. */
static size_t list_codes(const struct kv_near_codes *at, const uint8_t *own,
                         const uint8_t *code[KV_KLT_SOURCES + 1])
{
    size_t n = 0;

    code[n++] = own;
    for (size_t i = 0; i < KV_MAX_BELOW && at->below[i][KV_K]; i++)
        for (int side = 0; side < KV_SIDES; side++)
            code[n++] = at->below[i][side];
    if (at->own_k)
        code[n++] = at->own_k;
    return n;
}

void kv_klt_tile_near(const struct kv_codec *c, const struct kv_store *s,
                      const struct kv_near_codes *at, const uint8_t *blocks,
                      size_t first, size_t n, uint8_t *tile)
{
    const struct klt *k = c->state;
    const uint8_t *code[KV_KLT_SOURCES + 1];
    const size_t parts = list_codes(at, blocks, code);
    uint8_t *joined = kv_alloc(joined_bytes(k), 1);

    assert(parts == n_parts(k));
    for (size_t t = 0; t < n; t++) {
        for (size_t i = 0; i < parts; i++) {
            const size_t bytes = part_of(k, i)->coding.bytes;

            memcpy(joined + part_at(k, i), code[i] + (first + t) * bytes,
                   bytes);
        }
        kv_store_put_bitstream(s, t, joined, tile);
    }
    free(joined);
}
