#include "lib/schemes/klt.h"
#include "kernels/device_code.h"
#include "kernels/levels/lloyd_max.h"
#include "kernels/tiles/rope.h"
#include "kernels/transform/transform.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"
#include "lib/calib.h"
#include "lib/schemes/klt_pred.h"
#include "lib/schemes/schemes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct kv_param params[] = {
    {"b", NULL, 2, 0.0625, 8, false, "bits per value, fractions too"},
    {"share", "auto|layer|side|all", 0, 0, 0, false,
     "budget of a layer's side, of a side, of K and V of all layers; auto: "
     "all with metric=fisher, else layer"},
    {"metric", "attention|fisher|none", 1, 0, 0, true,
     "error counts by queries and Wo, by the loss's gradient, or as it is"},
    {"rope", "pre|post", 0, 0, 0, true, "keys are stored before or after RoPE"},
    {"pred", NULL, 0, 0, KV_MAX_BELOW, true,
     "layers below from which a token is predicted; then none is read in "
     "place"},
    {"code", "trellis|scalar", 0, 0, 0, false,
     "coefficients on a trellis, or by Lloyd-Max levels"},
    {0},
};

static int klt_check(struct kv_spec *s, const struct kv_shape *shape,
                     struct kv_err *e)
{
    static const char *const both[] = {"share", "metric", "rope", "code",
                                       "pred"};
    const bool fisher = kv_spec_is(s, KV_K, "metric", "fisher");

    (void)shape;
    for (size_t i = 0; i < sizeof(both) / sizeof(*both); i++)
        if (kv_spec_get(s, KV_V, both[i]) != kv_spec_get(s, KV_K, both[i]))
            return kv_fail(e, "%s is one for K and V", both[i]);
    for (int side = 0; side < KV_SIDES; side++)
        if (kv_spec_is(s, (enum kv_side)side, "share", "auto"))
            kv_spec_set(s, (enum kv_side)side, "share", fisher ? 3 : 1);
    if (kv_spec_get(s, KV_K, "pred") > 0 &&
        (!fisher || !kv_spec_is(s, KV_K, "share", "all")))
        return kv_fail(e, "pred wants metric=fisher and share=all: its layers "
                          "are fitted to one water level");
    if (!fisher && !kv_spec_is(s, KV_K, "share", "layer"))
        return kv_fail(e,
                       "share=%s weighs layers against each other, which "
                       "only metric=fisher can",
                       kv_spec_is(s, KV_K, "share", "all") ? "all" : "side");
    return 0;
}

static double klt_nominal(const struct kv_spec *s, enum kv_side side,
                          const struct kv_shape *shape)
{
    (void)shape;
    return kv_spec_get(s, side, "b");
}

/* ---- the codec --------------------------------------------------------- */

struct klt {
    size_t d, n_heads, row;
    struct kv_klt_pred pred; /* none without neighbours */
    float *mean;             /* [row] */
    float *forward;          /* [row][row], of which n_used columns */
    float *inverse;          /* [row][row], of which n_used rows */
    unsigned n_used;
    float *tables; /* Lloyd-Max levels of each kind, then the trellis's
                    * numbers of each: [2][KINDS][MAX_VALUES][STATES] */
    struct kv_klt_coef *coef; /* [n_coded], in the bitstream's order */
    float *sigma;             /* [n_coded] */
    uint32_t *place;          /* [n_coded]: among a token's */
    size_t n_coded, n_transitions;
    struct kv_trellis_transition *transition; /* [n_transitions] */
    struct kv_trellis_whole *whole;           /* [n_coded] */
    /* For attention on the codes, made when it is first asked for. */
    struct kv_transform *transform;
    struct kv_tiles_rope *rope; /* NULL: not before RoPE */
    bool int8;
    /* The coefficients for other kernels, and equal transitions in a row:
     * [n_coded], [n_runs]. */
    struct kv_gpu_coefficient *listed;
    struct kv_gpu_transitions *runs;
    unsigned n_runs, n_bits;
};

static float *table_of(const struct klt *k, bool trellis, size_t kind)
{
    return k->tables + (trellis * KV_KLT_KINDS + kind) * KV_TRELLIS_MAX_VALUES *
                           KV_TRELLIS_STATES;
}

/* Lloyd-Max levels at whole bits: a table in which only a transition's own bits
 * count.  Returns the mean squared error. */
static double fill_levels(const struct kv_klt_kind *kind, float *table)
{
    double level[KV_LLOYD_MAX_LEVELS], threshold[KV_LLOYD_MAX_LEVELS], mse;

    if (kind->values > 1)
        return (double)INFINITY;
    mse = kv_lloyd_max(kind->bits, level, threshold);
    for (size_t s = 0; s < KV_TRELLIS_STATES; s++)
        table[s] = (float)level[s % ((size_t)1 << kind->bits)];
    return mse;
}

/* Tables of the kinds, and the error of each kind in use. */
static int load_kinds(struct kv_codec *c, const struct kv_calib_set *set,
                      double *mse, struct kv_err *e)
{
    const bool scalar = kv_spec_is(&c->spec, c->side, "code", "scalar");
    struct klt *k = c->state;

    k->tables = kv_lines((size_t)2 * KV_KLT_KINDS * KV_TRELLIS_MAX_VALUES,
                         KV_TRELLIS_STATES * sizeof(float));
    for (size_t i = 0; i < KV_KLT_KINDS; i++) {
        const struct kv_klt_kind kind = kv_klt_kinds[i];
        const size_t dims[] = {kind.values, kv_trellis_kept(kind.bits)};
        const struct kv_table *t;
        char name[32];

        if (scalar) {
            mse[i] = fill_levels(&kind, table_of(k, false, i));
            continue;
        }
        kv_klt_table_name(i, name);
        if (!(t = kv_calib_want(c, set, name, 0, 2, dims, e)))
            return -1;
        kv_trellis_unfold(kind.bits, kind.values, t->data,
                          table_of(k, true, i));
        mse[i] = t->error;
    }
    return 0;
}

/* Keeps the unit's coefficients, whose order is the bitstream's. */
static void keep_coefs(struct klt *k, struct kv_klt_unit *u)
{
    k->coef = u->coef;
    k->n_coded = u->n_coded;
    k->sigma = kv_alloc(u->n_coded, sizeof(*k->sigma));
    k->place = kv_alloc(u->n_coded, sizeof(*k->place));
    for (size_t i = 0; i < u->n_coded; i++) {
        const unsigned index = u->coef[i].index;

        k->sigma[i] = sqrtf(u->coef[i].variance);
        k->place[i] = index;
        if (index >= k->n_used)
            k->n_used = index + 1;
    }
}

static void add_transition(struct klt *k, bool trellis, size_t kind)
{
    const struct kv_klt_kind *of = &kv_klt_kinds[kind];
    struct kv_trellis_transition *to = &k->transition[k->n_transitions++];
    float *const table = table_of(k, trellis, kind);

    if (to > k->transition && to[-1].table == table) {
        *to = to[-1];
        return;
    }
    if (!trellis)
        fill_levels(of, table);
    *to = kv_trellis_transition(of->bits, of->values, table, trellis);
}

/* A trellis needs a state: while fewer bits than the state's precede a
 * transition, levels have less error, if the kind has levels. */
static void make_transitions(struct klt *k, bool scalar)
{
    size_t bits = 0;

    k->transition = kv_alloc(k->n_coded, sizeof(*k->transition));
    for (size_t i = 0; i < k->n_coded;) {
        const size_t kind = k->coef[i].kind - 1u;
        const struct kv_klt_kind *of = &kv_klt_kinds[kind];
        const size_t levels = kv_klt_single(kind);

        if (scalar || (bits < KV_TRELLIS_BITS && levels < KV_KLT_KINDS))
            for (unsigned v = 0; v < of->values; v++)
                add_transition(k, false, levels);
        else
            add_transition(k, true, kind);
        bits += of->bits;
        i += of->values;
    }
    k->whole = kv_alloc(k->n_coded, sizeof(*k->whole));
    kv_trellis_count(k->transition, k->n_transitions, k->sigma, k->whole);
}

/* A copy of a table of [row], or of [row][row]; NULL if there is none. */
static float *klt_load(const struct kv_codec *c, const struct kv_calib_set *set,
                       const char *name, bool square, struct kv_err *e)
{
    const size_t row = kv_codec_block_values(c), dims[] = {row, row};
    const struct kv_table *t =
        kv_calib_want(c, set, name, 0, square ? 2 : 1, dims, e);
    float *x = NULL;

    if (t) {
        x = kv_alloc(kv_table_values(t), sizeof(*x));
        memcpy(x, t->data, kv_table_values(t) * sizeof(*x));
    }
    return x;
}

static int load_transform(struct kv_codec *c, const struct kv_calib_set *set,
                          struct kv_err *e)
{
    struct klt *k = c->state;
    const size_t row = k->row;
    const struct kv_table *unit;

    if (!kv_calib_want(c, set, "sigma", 0, 1, &row, e) ||
        !(unit = kv_calib_want(c, set, "unit", 0, 1, &row, e)) ||
        !(k->mean = klt_load(c, set, "mean", false, e)) ||
        !(k->forward = klt_load(c, set, "forward", true, e)) ||
        !(k->inverse = klt_load(c, set, "inverse", true, e)))
        return -1;
    for (size_t i = 0; i < row * row; i++) {
        k->forward[i] *= unit->data[i % row];
        k->inverse[i] /= unit->data[i / row];
    }
    return 0;
}

/* The int8 path rounds queries and tables to about a hundredth of a
 * coefficient: no more than a tenth of the scheme's own error. */
static const double MIN_ERROR_SHARE = 0.01;

/* The error of all coefficients over the squares of the coded ones. */
static double error_share(const struct klt *k, const struct kv_klt_unit *u,
                          const double *mse)
{
    double coded = 0, error = 0;

    for (size_t i = 0; i < u->n; i++) {
        const double variance = (double)u->coef[i].variance;

        coded += i < k->n_coded ? variance : 0;
        error +=
            i < k->n_coded ? variance * mse[u->coef[i].kind - 1] : variance;
    }
    return coded > 0 ? error / coded : 0;
}

static void list_coefs(struct klt *k)
{
    unsigned end = 0;

    k->listed = kv_alloc(k->n_coded, sizeof(*k->listed));
    for (size_t t = 0, i = 0; t < k->n_transitions; t++) {
        const float *table = k->transition[t].table;

        end += k->transition[t].bits;
        for (unsigned v = 0; v < k->transition[t].values; v++, i++)
            k->listed[i] = (struct kv_gpu_coefficient){
                .end = end,
                .table = (unsigned)(table - k->tables) + v * KV_TRELLIS_STATES,
                .index = k->coef[i].index,
                .place = (unsigned)i,
                .scale = k->sigma[i]};
    }
}

static void list_runs(struct klt *k)
{
    k->runs = kv_alloc(k->n_transitions, sizeof(*k->runs));
    for (size_t i = 0; i < k->n_transitions; i++) {
        const struct kv_trellis_transition *t = &k->transition[i];

        if (!i || t->table != t[-1].table)
            k->runs[k->n_runs++] = (struct kv_gpu_transitions){
                .bits = t->bits,
                .values = t->values,
                .table = (unsigned)(t->table - k->tables)};
        k->runs[k->n_runs - 1].n++;
        k->n_bits += t->bits;
    }
}

/* How states of the table at k->tables[at] map to its entries. */
static const struct kv_trellis_map *map_at(size_t at)
{
    const size_t table = at / (KV_TRELLIS_MAX_VALUES * KV_TRELLIS_STATES);
    const struct kv_klt_kind *kind = &kv_klt_kinds[table % KV_KLT_KINDS];

    return table < KV_KLT_KINDS ? kv_trellis_last_bits(kind->bits)
                                : kv_trellis_map(kind->bits, kind->values);
}

static void make_transform(const struct kv_codec *c, struct klt *k)
{
    const size_t n_coefs = k->n_coded * k->n_heads;
    struct kv_transform_coef *coef = kv_alloc(n_coefs, sizeof(*coef));
    size_t *n = kv_alloc(k->n_heads, sizeof(*n));

    if (c->pre_rope)
        k->rope = kv_tiles_rope_new(k->d, c->shape.n_rot, c->shape.inv_freq);
    for (size_t h = 0; h < k->n_heads; h++) {
        n[h] = k->n_coded;
        for (size_t i = 0; i < k->n_coded; i++)
            coef[h * k->n_coded + i] = (struct kv_transform_coef){
                .end = k->listed[i].end,
                .table = k->tables + k->listed[i].table,
                .map = map_at(k->listed[i].table),
                .scale = k->listed[i].scale,
                .inverse = k->inverse + k->listed[i].index * k->row + h * k->d};
    }
    k->transform = kv_transform_new(
        &(struct kv_transform_about){.n_heads = k->n_heads,
                                     .head_dim = k->d,
                                     .bitstream_bytes = c->block_bytes,
                                     .n = n,
                                     .coef = coef,
                                     .mean = k->mean,
                                     .rope = k->rope,
                                     .values = c->side == KV_V,
                                     .int8 = k->int8});
    free(n);
    free(coef);
}

static int open_klt(struct kv_codec *c, const struct kv_calib *calib,
                    struct kv_err *e)
{
    const struct kv_calib_set *set;
    struct kv_klt_unit mine;
    struct klt *k = kv_alloc(1, sizeof(*k));
    double mse[KV_KLT_KINDS];

    c->state = k;
    c->block = 1;
    *k = (struct klt){.d = c->shape.head_dim,
                      .n_heads = c->shape.n_kv_heads,
                      .row = kv_codec_block_values(c)};
    if (kv_calib_want_set(&set, calib, &c->spec, e) ||
        load_transform(c, set, e) || load_kinds(c, set, mse, e) ||
        (c->layered && kv_klt_pred_load(&k->pred, c, set, e)))
        return -1;
    mine = kv_klt_share(c, set, mse);
    keep_coefs(k, &mine);
    make_transitions(k, kv_spec_is(&c->spec, c->side, "code", "scalar"));
    c->block_bytes = mine.bytes;
    c->pre_rope = c->side == KV_K && kv_spec_is(&c->spec, KV_K, "rope", "pre");
    k->int8 = error_share(k, &mine, mse) >= MIN_ERROR_SHARE;
    list_coefs(k);
    list_runs(k);
    return 0;
}

static void close_klt(struct kv_codec *c)
{
    struct klt *k = c->state;

    if (!k)
        return;
    kv_klt_pred_clear(&k->pred);
    free(k->mean);
    free(k->forward);
    free(k->inverse);
    free(k->tables);
    free(k->whole);
    free(k->coef);
    free(k->sigma);
    free(k->place);
    free(k->transition);
    free(k->listed);
    free(k->runs);
    kv_transform_free(k->transform);
    kv_tiles_rope_free(k->rope);
    free(k);
}

enum { TOGETHER = 16 }; /* tokens */

/* The prediction x [n][row] that is subtracted from tokens before coding: the
 * mean, plus the prediction from their neighbours (NULL: none) from the
 * first-th on. */
static void predict(const struct klt *k, const struct kv_neighbours *at,
                    size_t first, size_t n, float *x)
{
    for (size_t i = 0; i < n; i++)
        memcpy(x + i * k->row, k->mean, k->row * sizeof(*x));
    if (at)
        kv_klt_pred_add(&k->pred, at, first, n, x);
}

/* y [n][row] of n tokens, the rest of x [n][row] less from: all, or those in
 * use and some more (whole vectors are fastest), the others 0.  from: becomes
 * the rest. */
static void transform(const struct klt *k, bool all, size_t n, const float *x,
                      float *from, float *y)
{
    const size_t row = k->row;
    const size_t used = all ? row : kv_min(kv_round_up(k->n_used, 16), row);

    memset(y, 0, n * row * sizeof(*y));
    for (size_t i = 0; i < n * row; i++)
        from[i] = x[i] - from[i];
    kv_vecops_times(from, row, n, k->forward, row, row, used, y, row);
}

static void coefficients(const struct kv_codec *c, const float *x, size_t n,
                         float *y)
{
    const size_t values = n * kv_codec_block_values(c);
    float *from = kv_alloc(values, sizeof(*from));

    predict(c->state, NULL, 0, n, from);
    transform(c->state, true, n, x, from, y);
    free(from);
}

/* Adds what y stands for to x. */
static void transform_back(const struct klt *k, const float *y, size_t n,
                           float *x)
{
    const size_t row = k->row;

    kv_vecops_times(y, row, n, k->inverse, k->n_used, row, row, x, row);
}

static void encode_near(const struct kv_codec *c, struct kv_where w,
                        const struct kv_neighbours *at, const float *x,
                        size_t n_blocks, uint8_t *bytes)
{
    const struct klt *k = c->state;
    const size_t row = kv_codec_block_values(c);
    const size_t max = kv_min(n_blocks, TOGETHER);
    float *from = kv_alloc(max, row * sizeof(*from));
    float *y = kv_alloc(max, row * sizeof(*y));
    void *workspace = kv_lines_unset(
        kv_trellis_workspace(k->transition, k->n_transitions, n_blocks), 1);

    (void)w;
    if (!k->n_coded)
        memset(bytes, 0, n_blocks * c->block_bytes);
    for (size_t t = 0; t < n_blocks; t += TOGETHER) {
        const size_t n = kv_min(n_blocks - t, max);

        predict(k, at, t, n, from);
        transform(k, false, n, x + t * row, from, y);
        kv_trellis_encode(k->transition, k->n_transitions, y, row, k->place,
                          k->whole, n, workspace, bytes + t * c->block_bytes,
                          c->block_bytes);
    }
    free(workspace);
    free(y);
    free(from);
}

static void klt_encode(const struct kv_codec *c, struct kv_where w,
                       const float *x, size_t n_blocks, uint8_t *bytes)
{
    encode_near(c, w, NULL, x, n_blocks, bytes);
}

static void decode_near(const struct kv_codec *c,
                        const struct kv_neighbours *at, const uint8_t *bytes,
                        size_t n_blocks, float *x)
{
    const struct klt *k = c->state;
    const size_t row = kv_codec_block_values(c);
    const size_t max = kv_min(n_blocks, TOGETHER);
    float *y = kv_alloc(max, row * sizeof(*y));

    for (size_t t = 0; t < n_blocks; t += TOGETHER) {
        const size_t n = kv_min(n_blocks - t, max);

        kv_trellis_decode(k->transition, k->n_transitions,
                          bytes + t * c->block_bytes, c->block_bytes, k->sigma,
                          n, y, row, k->place);
        predict(k, at, t, n, x + t * row);
        transform_back(k, y, n, x + t * row);
        for (size_t i = t * row; at && i < (t + n) * row; i++)
            x[i] = fminf(fmaxf(x[i], -65504), 65504); /* no way out upward */
    }
    free(y);
}

static void klt_decode(const struct kv_codec *c, const uint8_t *bytes,
                       size_t n_blocks, float *x)
{
    decode_near(c, NULL, bytes, n_blocks, x);
}

static const struct kv_layered *layered(const struct kv_spec *s)
{
    static const struct kv_layered of[KV_MAX_BELOW] = {
        {1, encode_near, decode_near}, {2, encode_near, decode_near}};
    const size_t n = kv_spec_size(s, KV_K, "pred");

    return n ? &of[n - 1] : NULL;
}

/* A prediction is fitted on what decoders have at these bits. */
static bool in_key(const struct kv_spec *s, const struct kv_param *p)
{
    return layered(s) && !strcmp(p->name, "b");
}

static bool klt_device(const struct kv_codec *c, struct kv_gpu_code *to)
{
    const struct klt *k = c->state;

    to->coding = KV_GPU_BITSTREAMS;
    to->bitstreams = (struct kv_gpu_bitstreams){
        .coef = k->listed,
        .transitions = k->runs,
        .whole = k->whole,
        .tables = k->tables,
        .mean = k->mean,
        .forward = k->forward,
        .inverse = k->inverse,
        .n_used = k->n_used,
        .n_coefs = (unsigned)k->n_coded,
        .n_runs = k->n_runs,
        .n_transitions = (unsigned)k->n_transitions,
        .n_bits = k->n_bits,
        .n_tables = (size_t)2 * KV_KLT_KINDS * KV_TRELLIS_MAX_VALUES *
                    KV_TRELLIS_STATES};
    return k->row <= KV_GPU_MAX_ROW;
}

static bool klt_store(const struct kv_codec *c, struct kv_store *s)
{
    struct klt *k = c->state;

    if (c->layered || k->n_coded > KV_TRANSFORM_COEFS)
        return false;
#pragma omp critical(kv_klt_transform)
    if (!k->transform)
        make_transform(c, k);
    kv_store_transform(s, k->transform);
    return true;
}

static void klt_tile(const struct kv_codec *c, const struct kv_store *s,
                     const uint8_t *blocks, size_t first, size_t n, size_t head,
                     uint8_t *tile)
{
    (void)head; /* all */
    for (size_t i = 0; i < n; i++)
        kv_store_put_bitstream(s, i, blocks + (first + i) * c->block_bytes,
                               tile);
}

const struct kv_scheme kv_scheme_klt = {
    .name = "klt",
    .brief = "transform coding in the metric of attention, on a trellis",
    .params = params,
    .residual_rule = {KV_SLIDING, KV_SLIDING},
    .check = klt_check,
    .nominal = klt_nominal,
    .training = &(const struct kv_training){kv_klt_trainable, kv_klt_calibrate},
    .in_key = in_key,
    .layered = layered,
    .open = open_klt,
    .close = close_klt,
    .encode = klt_encode,
    .decode = klt_decode,
    .coefficients = coefficients,
    .device = klt_device,
    .store = klt_store,
    .tile = klt_tile,
};
