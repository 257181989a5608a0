/* RotateKV (arXiv 2501.16383): asymmetric integers per token in groups of g
 * channels.  Values are rotated by the Hadamard transform head by head.  Keys
 * before RoPE are rotated h KV heads at a time (section 4.2), and a calibration
 * reorders their channels (section 4.1).  The storage is rotated.h; a group of
 * keys may cross heads, since the reordered row has the channels of all heads.
 *
 *   order=after   transform, then sort the transformed channels of the layer
 *                 by their mean, the least first: as in the published code.  A
 *                 group's channels then have similar offsets, so its range is
 *                 narrow.
 *   order=before  sort the channels of the layer by their mean |k|, the largest
 *                 first, deal them out to the transforms one by one, then
 *                 transform: every transform gets its share of the outliers.
 *
 * Our reading.  The paper finds attention sinks by their massive activations,
 * in the hidden state; here the first s tokens stay fp16, 1 by default.  It
 * leaves h, clip, a group's zero point and the ties of the sort open: 4 heads,
 * an integer zero point (zero=int, rotated.h) and a clip of 0.8 at 2 bits and
 * of 1 at 3 and 4 are the published code's; ties keep their order.  zero=min
 * keeps a group's minimum instead.  At 3 bits that code's largest code is
 * bits^2 - 1, which is 8; here it is 7.
 *
 * Table in a calibration: order [n_kv_heads * head_dim], K, per layer: the
 * channel that stands at each place of the reordered row. */
#include "kernels/hadamard.h"
#include "kernels/tiles/rope.h"
#include "kernels/tiles/rotated.h"
#include "lib/base/alloc.h"
#include "lib/base/file.h"
#include "lib/base/progress.h"
#include "lib/calib.h"
#include "lib/dump.h"
#include "lib/schemes/rotated.h"
#include "lib/schemes/schemes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { AFTER, BEFORE };

/* The default clip for up to 2 bits; with more bits the range is not
 * clipped. */
#define CLIP_FEW 0.8

static const struct kv_param params[] = {
    KV_ROTATED_PARAMS(2, 128, CLIP_FEW, KV_ZERO_INT),
    {"h", NULL, 4, 1, 1024, true, "KV heads that are rotated together"},
    {"order", "after|before", AFTER, 0, 0, true,
     "channels are reordered after the transform or before it"},
    {0},
};

static double rotatekv_fallback(const struct kv_spec *s, enum kv_side side,
                                const struct kv_param *p)
{
    if (strcmp(p->name, "clip"))
        return p->fallback;
    return kv_spec_get(s, side, "b") > 2 ? 1 : CLIP_FEW;
}

static size_t rotatekv_row_of(const struct kv_shape *shape)
{
    return shape->n_kv_heads * shape->head_dim;
}

static int rotatekv_check(struct kv_spec *s, const struct kv_shape *shape,
                          struct kv_err *e)
{
    if (kv_spec_one_side(s, KV_K, "h", e) ||
        kv_spec_one_side(s, KV_K, "order", e))
        return -1;
    for (int side = 0; side < KV_SIDES; side++)
        if (kv_spec_size(s, (enum kv_side)side, "h") > shape->n_kv_heads)
            kv_spec_set(s, (enum kv_side)side, "h", (double)shape->n_kv_heads);
    if (shape->n_kv_heads % kv_spec_size(s, KV_K, "h"))
        return kv_fail(e, "h=%zu must divide the %zu KV heads",
                       kv_spec_size(s, KV_K, "h"), shape->n_kv_heads);
    return kv_integers_fit_row(s, KV_K, rotatekv_row_of(shape), e) ||
                   kv_integers_fit_row(s, KV_V, shape->head_dim, e)
               ? -1
               : 0;
}

static double rotatekv_nominal(const struct kv_spec *s, enum kv_side side,
                               const struct kv_shape *shape)
{
    (void)shape;
    return kv_spec_get(s, side, "b") + 32 / kv_spec_get(s, side, "g");
}

static size_t rotatekv_hadamard(const struct kv_spec *s,
                                const struct kv_shape *shape)
{
    return kv_spec_size(s, KV_K, "h") * shape->head_dim;
}

/* ---- calibration ------------------------------------------------------- */

/* Computes the channels' sort keys, statistic [row]: the sum of each
 * transformed channel, or minus the sum of |k|, over the tokens that count
 * (NULL: all). */
static int rotatekv_measure(const struct kv_spec *s, struct kv_dump *dump,
                            size_t layer, const bool *counts, double *statistic,
                            struct kv_err *e)
{
    enum { CHUNK = 512 };
    const struct kv_dump_info *info = kv_dump_info(dump);
    const size_t row = rotatekv_row_of(&info->shape);
    const size_t rotated = rotatekv_hadamard(s, &info->shape);
    const size_t tokens = info->n_windows * info->ctx;
    const bool after = kv_spec_is(s, KV_K, "order", "after");
    float *x = kv_alloc(CHUNK, row * sizeof(*x));
    int rc = -1;

    for (size_t first = 0; first < tokens; first += CHUNK) {
        const size_t n = tokens - first < CHUNK ? tokens - first : CHUNK;

        if (kv_interrupted(e) ||
            kv_dump_read(dump, layer, KV_T_K_PRE, first, n, x, e))
            goto out;
        if (after)
            kv_hadamard(x, n * row / rotated, rotated);
        for (size_t t = 0; t < n; t++)
            for (size_t i = 0; i < row && (!counts || counts[first + t]); i++) {
                const double value = (double)x[t * row + i];

                statistic[i] += after ? value : -fabs(value);
            }
    }
    rc = 0;
out:
    free(x);
    return rc;
}

struct channel {
    double statistic;
    size_t at;
};

static int rotatekv_compare(const void *a, const void *b)
{
    const struct channel *x = a, *y = b;

    if (x->statistic != y->statistic)
        return x->statistic < y->statistic ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* Sets order [row]: sorted channels are dealt out, one by one, to `hands` runs
 * of row / hands places. */
static void sort(const double *statistic, size_t row, size_t hands,
                 float *order)
{
    struct channel *c = kv_alloc(row, sizeof(*c));

    for (size_t i = 0; i < row; i++)
        c[i] = (struct channel){statistic[i], i};
    qsort(c, row, sizeof(*c), rotatekv_compare);
    for (size_t i = 0; i < row; i++)
        order[i % hands * (row / hands) + i / hands] = (float)c[i].at;
    free(c);
}

static int rotatekv_check_dump(const struct kv_spec *s, struct kv_dump *dump,
                               struct kv_err *e)
{
    (void)s;
    return kv_dump_want(dump, KV_T_K_PRE, e) ? kv_fail_in(e, "K") : 0;
}

static int rotatekv_calibrate(const struct kv_spec *s, struct kv_dump *dump,
                              uint64_t seed, struct kv_calib_set *out,
                              struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(dump);
    const size_t row = rotatekv_row_of(&info->shape);
    const bool after = kv_spec_is(s, KV_K, "order", "after");
    const size_t hands = after ? 1 : row / rotatekv_hadamard(s, &info->shape);

    (void)seed;
    if (out->progress)
        out->progress->total += info->last_layer - info->first_layer + 1;
    for (size_t l = info->first_layer; l <= info->last_layer; l++) {
        double *statistic = kv_alloc(row, sizeof(*statistic));
        const int rc = rotatekv_measure(
            s, dump, l, kv_calib_counts(out, info, l), statistic, e);

        if (!rc)
            sort(statistic, row, hands,
                 kv_calib_add(out, "order", KV_K, (int)l, KV_ALL, 1, &row)
                     ->data);
        free(statistic);
        if (rc)
            return kv_fail_in(e, "layer %zu, K", l);
        if (out->progress)
            kv_progress_step(out->progress, 1);
    }
    return 0;
}

/* ---- the codec --------------------------------------------------------- */

/* The codec of keys. */
struct rotatekv {
    struct kv_codec integers; /* the same codec, with a state of integers.h */
    size_t rotated;           /* values in one transform */
    bool after;               /* reordered after the transform */
    size_t *order, *place;    /* [row], and its inverse */
    bool tiled;               /* `tiles` is valid */
    struct kv_rotated_tiles tiles;
    struct kv_tiles_rope *rope;
};

static bool is_order(const float *order, size_t n)
{
    bool *seen = kv_alloc(n, sizeof(*seen));
    size_t i = 0;

    for (; i < n && order[i] >= 0 && order[i] < (float)n; i++) {
        if (seen[(size_t)order[i]])
            break;
        seen[(size_t)order[i]] = true;
    }
    free(seen);
    return i == n;
}

static int load_order(const struct kv_codec *c, const struct kv_calib_set *set,
                      struct kv_err *e)
{
    struct rotatekv *r = c->state;
    const size_t row = rotatekv_row_of(&c->shape);
    const struct kv_table *t = kv_calib_want(c, set, "order", 0, 1, &row, e);

    if (!t)
        return -1;
    if (!is_order(t->data, row))
        return kv_fail(e,
                       "the calibration's order of layer %zu does not name "
                       "each of %zu channels once",
                       c->layer, row);
    r->order = kv_alloc(row, sizeof(*r->order));
    r->place = kv_alloc(row, sizeof(*r->place));
    for (size_t i = 0; i < row; i++) {
        r->order[i] = (size_t)t->data[i];
        r->place[r->order[i]] = i;
    }
    return 0;
}

static void make_tiles(const struct kv_codec *c)
{
    struct rotatekv *r = c->state;
    const bool whole = kv_spec_is(&c->spec, KV_K, "zero", "int");

    r->rope = kv_tiles_rope_new(c->shape.head_dim, kv_shape_pairs(&c->shape),
                                c->shape.inv_freq);
    r->tiles = (struct kv_rotated_tiles){
        .row = {.bits = (unsigned)kv_spec_size(&c->spec, KV_K, "b"),
                .offset = whole ? KV_OFFSET_ZERO : KV_OFFSET_LOW},
        .rotated = r->rotated,
        .after = r->after,
        .place = r->place,
        .rope = r->rope};
    r->tiled =
        kv_integers_init(&r->tiles.row, false, rotatekv_row_of(&c->shape),
                         false, kv_spec_size(&c->spec, KV_K, "g"));
}

static void close_rotatekv(struct kv_codec *c)
{
    struct rotatekv *r = c->state;

    if (!r)
        return;
    free(r->integers.state);
    free(r->order);
    free(r->place);
    kv_tiles_rope_free(r->rope);
    free(r);
}

/* Moves the channels of n rows of x to the calibrated order, or back. */
static void reorder(const size_t *order, size_t row, size_t n, bool back,
                    float *x)
{
    float *from = kv_alloc(row, sizeof(*from));

    for (size_t t = 0; t < n; t++, x += row) {
        memcpy(from, x, row * sizeof(*from));
        for (size_t i = 0; i < row; i++)
            *(back ? &x[order[i]] : &x[i]) = from[back ? i : order[i]];
    }
    free(from);
}

static void rotatekv_encode(const struct kv_codec *c, struct kv_where w,
                            const float *x, size_t n_blocks, uint8_t *bytes)
{
    const struct rotatekv *r = c->state;
    const size_t row = rotatekv_row_of(&c->shape);
    float *y = kv_alloc(n_blocks, row * sizeof(*y));

    memcpy(y, x, n_blocks * row * sizeof(*y));
    if (!r->after)
        reorder(r->order, row, n_blocks, false, y);
    kv_hadamard(y, n_blocks * row / r->rotated, r->rotated);
    if (r->after)
        reorder(r->order, row, n_blocks, false, y);
    kv_rotated_encode(&r->integers, w, y, n_blocks, bytes);
    free(y);
}

static void rotatekv_decode(const struct kv_codec *c, const uint8_t *bytes,
                            size_t n_blocks, float *x)
{
    const struct rotatekv *r = c->state;
    const size_t row = rotatekv_row_of(&c->shape);

    kv_integers_decode(&r->integers, bytes, n_blocks, x);
    if (r->after)
        reorder(r->order, row, n_blocks, true, x);
    kv_hadamard(x, n_blocks * row / r->rotated, r->rotated);
    if (!r->after)
        reorder(r->order, row, n_blocks, true, x);
}

static bool rotatekv_store(const struct kv_codec *c, struct kv_store *s)
{
    const struct rotatekv *r = c->state;

    if (r->tiled)
        kv_store_rotated(s, &r->tiles);
    return r->tiled;
}

static void rotatekv_tile(const struct kv_codec *c, const struct kv_store *s,
                          const uint8_t *blocks, size_t first, size_t n,
                          size_t head, uint8_t *tile)
{
    const struct rotatekv *r = c->state;
    const struct kv_store row = kv_rotated_row(s);

    (void)head;
    kv_integers_tile(&r->integers, &row, blocks, first, n, 0, tile);
}

static int open_rotatekv(struct kv_codec *c, const struct kv_calib *calib,
                         struct kv_err *e)
{
    const struct kv_calib_set *set;
    struct rotatekv *r;

    if (kv_calib_want_set(&set, calib, &c->spec, e))
        return -1;
    if (c->side == KV_V) { /* values as quarot's, whose parameters have the same
                            * names */
        c->scheme = &kv_scheme_quarot;
        return kv_rotated_open(c, false);
    }
    c->state = r = kv_alloc(1, sizeof(*r));
    r->integers = *c;
    if (kv_rotated_open(&r->integers, true))
        return -1;
    c->block = r->integers.block;
    c->block_bytes = r->integers.block_bytes;
    c->pre_rope = true;
    r->rotated = rotatekv_hadamard(&c->spec, &c->shape);
    r->after = kv_spec_is(&c->spec, KV_K, "order", "after");
    if (load_order(c, set, e))
        return -1;
    make_tiles(c);
    return 0;
}

const struct kv_scheme kv_scheme_rotatekv = {
    .name = "rotatekv",
    .brief = "RotateKV: pre-RoPE keys of several heads rotated and reordered",
    .params = params,
    .sinks = 1,
    .fallback = rotatekv_fallback,
    .check = rotatekv_check,
    .nominal = rotatekv_nominal,
    .hadamard = rotatekv_hadamard,
    .training = &(const struct kv_training){.check_dump = rotatekv_check_dump,
                                            .calibrate = rotatekv_calibrate},
    .open = open_rotatekv,
    .close = close_rotatekv,
    .encode = rotatekv_encode,
    .decode = rotatekv_decode,
    .store = rotatekv_store,
    .tile = rotatekv_tile,
};
