#include "lib/schemes/codebook.h"
#include "kernels/bitpack.h"
#include "kernels/codebook/codebook.h"
#include "kernels/device_code.h"
#include "kernels/hadamard.h"
#include "kernels/nearest/nearest.h"
#include "lib/base/alloc.h"
#include "lib/calib.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- parameters -------------------------------------------------------- */

/* Fails if w=fisher weighs keys in another form than the gradients', which are
 * for untransformed keys before RoPE. */
static int check_weights(const struct kv_spec *s, struct kv_err *e)
{
    if (kv_spec_is(s, KV_K, "w", "fisher") &&
        !(kv_spec_is(s, KV_K, "rope", "pre") &&
          kv_spec_is(s, KV_K, "t", "none")))
        return kv_fail(e, "w=fisher weighs keys as they are before RoPE: it "
                          "wants rope=pre and t=none (or K-w=none)");
    return 0;
}

static const char *dims_letter(const struct kv_spec *s)
{
    return s->scheme->params[0].name;
}

static size_t dims_of(const struct kv_spec *s, enum kv_side side)
{
    return kv_spec_size(s, side, dims_letter(s));
}

int kv_codebook_check(struct kv_spec *s, const struct kv_shape *shape,
                      struct kv_err *e)
{
    const size_t head_dim = shape->head_dim;

    for (int i = 0; i < KV_SIDES; i++) {
        const enum kv_side side = (enum kv_side)i;

        if (dims_of(s, side) > head_dim)
            kv_spec_set(s, side, dims_letter(s), (double)head_dim);
        if (head_dim % dims_of(s, side))
            return kv_fail(e, "%s=%zu must divide head_dim %zu", dims_letter(s),
                           dims_of(s, side), head_dim);
    }
    return kv_spec_one_side(s, KV_K, "t", e) ||
                   kv_spec_one_side(s, KV_K, "rope", e) || check_weights(s, e)
               ? -1
               : 0;
}

double kv_codebook_nominal(const struct kv_spec *s, enum kv_side side,
                           const struct kv_shape *shape)
{
    (void)shape;
    return kv_spec_get(s, side, "b") / (double)dims_of(s, side);
}

struct kv_codebook_layout kv_codebook_layout(const struct kv_spec *s,
                                             enum kv_side side,
                                             const struct kv_shape *shape)
{
    struct kv_codebook_layout l = {.n_heads = shape->n_kv_heads,
                                   .d = dims_of(s, side),
                                   .k = (size_t)1
                                        << kv_spec_size(s, side, "b")};

    l.n_sub = shape->head_dim / l.d;
    l.head_books = kv_spec_is(s, side, "books", "head") ? l.n_heads : 1;
    l.sub_books = kv_spec_is(s, side, "sub", "own") ? l.n_sub : 1;
    return l;
}

/* ---- the transform of keys --------------------------------------------- */

bool kv_codebook_smooths(const struct kv_spec *s, enum kv_side side)
{
    return side == KV_K && !kv_spec_is(s, side, "t", "none") &&
           !kv_spec_is(s, side, "t", "H");
}

struct kv_codebook_transform
kv_codebook_transform_of(const struct kv_spec *s, enum kv_side side,
                         const struct kv_shape *shape)
{
    return (struct kv_codebook_transform){
        .n_heads = shape->n_kv_heads,
        .head_dim = shape->head_dim,
        .hadamard = side == KV_K && !kv_spec_is(s, side, "t", "none") &&
                    !kv_spec_is(s, side, "t", "S"),
        .hadamard_first = kv_spec_is(s, side, "t", "HS"),
    };
}

size_t kv_codebook_hadamard(const struct kv_spec *s,
                            const struct kv_shape *shape)
{
    return kv_codebook_transform_of(s, KV_K, shape).hadamard ? shape->head_dim
                                                             : 0;
}

/* Divides by the smoothing factors, or (back) multiplies. */
static void smooth(const struct kv_codebook_transform *t, float *x, size_t n,
                   bool back)
{
    const size_t row = t->n_heads * t->head_dim;

    for (size_t i = 0; t->smooth && i < n; i++)
        for (size_t j = 0; j < row; j++)
            x[i * row + j] = back ? x[i * row + j] * t->smooth[j]
                                  : x[i * row + j] / t->smooth[j];
}

void kv_codebook_forward(const struct kv_codebook_transform *t, float *x,
                         size_t n)
{
    if (t->hadamard && t->hadamard_first)
        kv_hadamard(x, n * t->n_heads, t->head_dim);
    smooth(t, x, n, false);
    if (t->hadamard && !t->hadamard_first)
        kv_hadamard(x, n * t->n_heads, t->head_dim);
}

void kv_codebook_inverse(const struct kv_codebook_transform *t, float *x,
                         size_t n)
{
    if (t->hadamard && !t->hadamard_first)
        kv_hadamard(x, n * t->n_heads, t->head_dim);
    smooth(t, x, n, true);
    if (t->hadamard && t->hadamard_first)
        kv_hadamard(x, n * t->n_heads, t->head_dim);
}

void kv_codebook_query(const struct kv_codebook_transform *t, size_t head,
                       float *q)
{
    if (t->hadamard && t->hadamard_first)
        kv_hadamard(q, 1, t->head_dim);
    for (size_t i = 0; t->smooth && i < t->head_dim; i++)
        q[i] *= t->smooth[head * t->head_dim + i];
    if (t->hadamard && !t->hadamard_first)
        kv_hadamard(q, 1, t->head_dim);
}

/* ---- the codec --------------------------------------------------------- */

struct state {
    struct kv_codebook_layout layout;
    struct kv_codebook_transform transform; /* smooth points to our own copy */
    unsigned bits;
    float *smooth;
    float *centers;            /* [head_books][sub_books][k][d] */
    struct kv_centroids *book; /* [head_books][sub_books] */
    struct kv_codebook *tiles; /* the books, arranged for tiles */
};

static const struct kv_centroids *book(const struct state *v, size_t head,
                                       size_t sub)
{
    const struct kv_codebook_layout *l = &v->layout;
    const size_t h = l->head_books > 1 ? head : 0;
    const size_t j = l->sub_books > 1 ? sub : 0;

    return &v->book[h * l->sub_books + j];
}

struct kv_codebook_users kv_codebook_users(const struct kv_codebook_layout *l,
                                           size_t head, size_t sub)
{
    const bool heads = l->head_books == 1, subs = l->sub_books == 1;

    return (struct kv_codebook_users){.h = heads ? 0 : head,
                                      .h_end = heads ? l->n_heads : head + 1,
                                      .j = subs ? 0 : sub,
                                      .j_end = subs ? l->n_sub : sub + 1};
}

size_t kv_codebook_gather(const struct kv_codebook_layout *l, size_t head,
                          size_t sub, const float *x, size_t n, float *point)
{
    const struct kv_codebook_users u = kv_codebook_users(l, head, sub);
    size_t n_points = 0;

    for (size_t t = 0; t < n; t++)
        for (size_t h = u.h; h < u.h_end; h++)
            for (size_t j = u.j; j < u.j_end; j++)
                memcpy(point + n_points++ * l->d,
                       x + ((t * l->n_heads + h) * l->n_sub + j) * l->d,
                       l->d * sizeof(*x));
    return n_points;
}

/* The reverse of kv_codebook_gather(), for codes: code [n][n_heads][n_sub]. */
static void scatter(const struct kv_codebook_layout *l, size_t head, size_t sub,
                    const uint16_t *from, size_t n, uint16_t *code)
{
    const struct kv_codebook_users u = kv_codebook_users(l, head, sub);

    for (size_t t = 0; t < n; t++)
        for (size_t h = u.h; h < u.h_end; h++)
            for (size_t j = u.j; j < u.j_end; j++)
                code[(t * l->n_heads + h) * l->n_sub + j] = *from++;
}

static size_t codes_of_token(const struct kv_codebook_layout *l)
{
    return l->n_heads * l->n_sub;
}

void kv_codebook_transformed(const struct kv_codec *c, float *x, size_t n)
{
    const struct state *v = c->state;

    kv_codebook_forward(&v->transform, x, n);
}

static int load_smooth(struct kv_codec *c, const struct kv_calib_set *set,
                       struct kv_err *e)
{
    struct state *v = c->state;
    const size_t dims[] = {v->layout.n_heads, c->shape.head_dim};
    const size_t n = dims[0] * dims[1];
    const struct kv_table *t = kv_calib_want(c, set, "smooth", 0, 2, dims, e);

    if (!t)
        return -1;
    for (size_t i = 0; i < n; i++)
        if (!(t->data[i] > 0))
            return kv_fail(e,
                           "the calibration's smoothing factors of layer "
                           "%zu are not all positive",
                           c->layer);
    v->smooth = kv_alloc(n, sizeof(*v->smooth));
    memcpy(v->smooth, t->data, n * sizeof(*v->smooth));
    v->transform.smooth = v->smooth;
    return 0;
}

static int load_books(struct kv_codec *c, const struct kv_calib_set *set,
                      struct kv_err *e)
{
    struct state *v = c->state;
    const struct kv_codebook_layout *l = &v->layout;
    const size_t dims[] = {l->sub_books, l->k, l->d};
    const size_t n = dims[0] * dims[1] * dims[2];

    v->centers = kv_alloc(l->head_books * n, sizeof(*v->centers));
    v->book = kv_alloc(l->head_books * l->sub_books, sizeof(*v->book));
    for (size_t h = 0; h < l->head_books; h++) {
        const struct kv_table *t =
            kv_calib_want(c, set, "codebook", h, 3, dims, e);

        if (!t)
            return -1;
        if (t->type != KV_TABLE_F16)
            return kv_fail(e,
                           "the calibration's table 'codebook' for layer %zu, "
                           "%c, head %zu is f32, expected fp16: kvcalib makes "
                           "it anew",
                           c->layer, kv_side_name(c->side), h);
        memcpy(v->centers + h * n, t->data, n * sizeof(*v->centers));
    }
    for (size_t i = 0; i < l->head_books * l->sub_books; i++)
        kv_centroids_init(&v->book[i], v->centers + i * l->k * l->d, l->k,
                          l->d);
    return 0;
}

static struct kv_codebook *codebook_tiles_of(const struct kv_codec *c)
{
    const struct state *v = c->state;
    const struct kv_codebook_layout *l = &v->layout;
    const struct kv_shape *s = &c->shape;

    return kv_codebook_new(
        v->centers, l->head_books, l->sub_books, l->n_sub, l->d, v->bits,
        c->side == KV_V,
        c->pre_rope
            ? kv_tiles_rope_new(s->head_dim, kv_shape_pairs(s), s->inv_freq)
            : NULL);
}

int kv_codebook_open(struct kv_codec *c, const struct kv_calib *calib,
                     struct kv_err *e)
{
    const struct kv_calib_set *set;
    struct state *v = kv_alloc(1, sizeof(*v));

    c->state = v;
    if (kv_calib_want_set(&set, calib, &c->spec, e))
        return -1;
    v->layout = kv_codebook_layout(&c->spec, c->side, &c->shape);
    v->transform = kv_codebook_transform_of(&c->spec, c->side, &c->shape);
    v->bits = (unsigned)kv_spec_size(&c->spec, c->side, "b");
    c->residual_rule = kv_spec_is(&c->spec, c->side, "residual", "batched")
                           ? KV_BATCHED
                           : KV_SLIDING;
    c->block = 1;
    c->block_bytes = kv_pack_bytes(codes_of_token(&v->layout), v->bits);
    c->pre_rope = c->side == KV_K && kv_spec_is(&c->spec, KV_K, "rope", "pre");
    if (kv_codebook_smooths(&c->spec, c->side) && load_smooth(c, set, e))
        return -1;
    if (load_books(c, set, e))
        return -1;
    v->tiles = codebook_tiles_of(c);
    return 0;
}

void kv_codebook_close(struct kv_codec *c)
{
    struct state *v = c->state;

    if (!v)
        return;
    for (size_t i = 0;
         v->book && i < v->layout.head_books * v->layout.sub_books; i++)
        kv_centroids_clear(&v->book[i]);
    free(v->book);
    kv_codebook_free(v->tiles);
    free(v->smooth);
    free(v->centers);
    free(v);
}

/* At most this many tokens are searched together. */
enum { BATCH = 64 };

static void encode_batch(const struct kv_codec *c, const float *x, size_t n,
                         float *work, uint16_t *code, uint8_t *bytes)
{
    const struct state *v = c->state;
    const struct kv_codebook_layout *l = &v->layout;
    const size_t values = n * kv_codec_block_values(c);
    const size_t n_codes = codes_of_token(l);
    float *point = work + values;
    uint16_t *found = code + n * n_codes;

    memcpy(work, x, values * sizeof(*work));
    kv_codebook_forward(&v->transform, work, n);
    for (size_t h = 0; h < l->head_books; h++)
        for (size_t j = 0; j < l->sub_books; j++) {
            const size_t m = kv_codebook_gather(l, h, j, work, n, point);

            kv_nearest(book(v, h, j), point, m, found);
            scatter(l, h, j, found, n, code);
        }
    for (size_t t = 0; t < n; t++)
        kv_pack(code + t * n_codes, n_codes, v->bits,
                bytes + t * c->block_bytes);
}

void kv_codebook_encode(const struct kv_codec *c, struct kv_where w,
                        const float *x, size_t n_blocks, uint8_t *bytes)
{
    const struct state *v = c->state;
    const size_t max = n_blocks < BATCH ? n_blocks : BATCH;
    const size_t values = kv_codec_block_values(c);
    float *work = kv_alloc(2 * max, values * sizeof(*work));
    uint16_t *code = kv_alloc(2 * max, codes_of_token(&v->layout) * 2);

    (void)w;
    for (size_t t = 0; t < n_blocks; t += BATCH) {
        const size_t n = n_blocks - t < BATCH ? n_blocks - t : BATCH;

        encode_batch(c, x + t * values, n, work, code,
                     bytes + t * c->block_bytes);
    }
    free(code);
    free(work);
}

void kv_codebook_decode(const struct kv_codec *c, const uint8_t *bytes,
                        size_t n_blocks, float *x)
{
    const struct state *v = c->state;
    const struct kv_codebook_layout *l = &v->layout;
    const size_t n_codes = codes_of_token(l);
    uint16_t *code = kv_alloc(n_codes, sizeof(*code));
    float *to = x;

    for (size_t t = 0; t < n_blocks; t++) {
        kv_unpack(bytes + t * c->block_bytes, n_codes, v->bits, code);
        for (size_t h = 0; h < l->n_heads; h++)
            for (size_t j = 0; j < l->n_sub; j++, to += l->d)
                memcpy(to,
                       book(v, h, j)->centers + code[h * l->n_sub + j] * l->d,
                       l->d * sizeof(*to));
    }
    kv_codebook_inverse(&v->transform, x, n_blocks);
    free(code);
}

bool kv_codebook_device(const struct kv_codec *c, struct kv_gpu_code *to)
{
    const struct state *v = c->state;

    to->coding = KV_GPU_CODEBOOK;
    to->codebook = (struct kv_gpu_centroids){.bits = v->bits,
                                             .d = v->layout.d,
                                             .k = v->layout.k,
                                             .n_sub = v->layout.n_sub,
                                             .head_books = v->layout.head_books,
                                             .sub_books = v->layout.sub_books,
                                             .centers = v->centers,
                                             .smooth = v->smooth,
                                             .hadamard = v->transform.hadamard,
                                             .hadamard_first =
                                                 v->transform.hadamard_first};
    return true;
}

/* ---- attention in tiles -------------------------------------------------- */

static void codebook_enter(const void *space, size_t head, float *q,
                           size_t rows)
{
    const struct kv_codebook_transform *t = space;

    for (size_t r = 0; r < rows; r++)
        kv_codebook_query(t, head, q + r * t->head_dim);
}

/* Keys that are both before RoPE and transformed have no tiles: a query cannot
 * be transformed between RoPE and the product. */
bool kv_codebook_store(const struct kv_codec *c, struct kv_store *s)
{
    const struct state *v = c->state;
    const bool transformed = v->transform.hadamard || v->transform.smooth;

    if (transformed && c->pre_rope)
        return false;
    kv_store_codebook(s, v->tiles);
    if (transformed) {
        s->enter = codebook_enter;
        s->space = &v->transform;
        s->butterfly = (struct kv_butterfly){
            .has = 1,
            .hadamard = v->transform.hadamard,
            .before = v->transform.hadamard_first ? NULL : v->transform.smooth,
            .after = v->transform.hadamard_first ? v->transform.smooth : NULL};
    }
    return true;
}

void kv_codebook_tile(const struct kv_codec *c, const struct kv_store *s,
                      const uint8_t *blocks, size_t first, size_t n,
                      size_t head, uint8_t *tile)
{
    const struct state *v = c->state;
    const size_t n_codes = codes_of_token(&v->layout);
    uint16_t *code = kv_alloc(n_codes, sizeof(*code));

    for (size_t t = 0; t < n; t++) {
        kv_unpack(blocks + (first + t) * c->block_bytes, n_codes, v->bits,
                  code);
        kv_store_put_indices(s, t, code + head * v->layout.n_sub, tile);
    }
    free(code);
}
