#include "lib/schemes/klt.h"
#include "kernels/cuda/coder.h"
#include "kernels/levels/lloyd_max.h"
#include "kernels/tiles/rope.h"
#include "kernels/transform/transform.h"
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"
#include "lib/calib.h"
#include "lib/schemes/schemes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct kv_param params[] = {
    {"b", NULL, 2, 0.0625, 8, false, "bits per value, fractions too"},
    {"share", "auto|layer|side|all", 0, 0, 0, false,
     "budget of a layer's side, of a side, of K and V of all layers; auto: "
     "side with metric=fisher, else layer"},
    {"metric", "attention|fisher|none", 0, 0, 0, true,
     "error counts by queries and Wo, by the loss's gradient, or as it is"},
    {"rope", "pre|post", 0, 0, 0, true, "keys are stored before or after RoPE"},
    {"code", "trellis|scalar", 0, 0, 0, false,
     "coefficients on a trellis, or by Lloyd-Max levels"},
    {0},
};

static int check(struct kv_spec *s, const struct kv_shape *shape,
                 struct kv_err *e)
{
    static const char *const both[] = {"share", "metric", "rope", "code"};
    const bool fisher = kv_spec_is(s, KV_K, "metric", "fisher");

    (void)shape;
    for (size_t i = 0; i < sizeof(both) / sizeof(*both); i++) {
        if (kv_spec_get(s, KV_V, both[i]) != kv_spec_get(s, KV_K, both[i]))
            return kv_fail(e, "%s is one for K and V", both[i]);
    }
    for (int side = 0; side < KV_SIDES; side++)
        if (kv_spec_is(s, (enum kv_side)side, "share", "auto"))
            kv_spec_set(s, (enum kv_side)side, "share", fisher ? 2 : 1);
    if (!fisher && !kv_spec_is(s, KV_K, "share", "layer"))
        return kv_fail(e,
                       "share=%s weighs layers against each other, which "
                       "only metric=fisher can",
                       kv_spec_is(s, KV_K, "share", "all") ? "all" : "side");
    return 0;
}

static double nominal(const struct kv_spec *s, enum kv_side side,
                      const struct kv_shape *shape)
{
    (void)shape;
    return kv_spec_get(s, side, "b");
}

/* ---- the codec --------------------------------------------------------- */

struct klt {
    size_t d, n_heads;
    float *mean;              /* [n_heads][d] */
    float *forward;           /* [n_heads][d][d], of which n_used columns */
    float *inverse;           /* [n_heads][d][d], of which n_used rows */
    size_t *n_used;           /* [n_heads] */
    float *levels, *trellis;  /* of each kind: one table after another, all
                               * trellises right behind all levels */
    struct kv_klt_coef *coef; /* [n_coded], in the bitstream's order */
    float *sigma;             /* [n_coded] */
    uint32_t *place;          /* [n_coded]: among a token's, head by head */
    size_t n_coded, n_transitions;
    struct kv_trellis_transition *transition; /* [n_transitions] */
    struct kv_trellis_whole *whole;           /* [n_coded] */
    /* Attention on the codes, made when it is first asked for. */
    struct kv_transform *coefs;
    struct kv_tiles_rope *rope; /* NULL: not before RoPE */
    bool int8;
    /* The coefficients for the device: head by head, [n_coded], [n_heads + 1]
     * and [n_heads]; and transitions that are alike together, [n_runs]. */
    struct kv_gpu_coefficient *device;
    unsigned *first, *used;
    struct kv_gpu_transitions *runs;
    unsigned n_runs, n_bits;
};

/* The kind's table among levels or trellis. */
static float *table_of(float *tables, size_t kind)
{
    return tables + kind * KV_TRELLIS_MAX_VALUES * KV_TRELLIS_STATES;
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

/* Tables of the kinds, and what those in use reach. */
static int load_kinds(struct kv_codec *c, const struct kv_calib_set *set,
                      double *mse, struct kv_err *e)
{
    const bool scalar = kv_spec_is(&c->spec, c->side, "code", "scalar");
    const size_t room = KV_KLT_KINDS * KV_TRELLIS_MAX_VALUES;
    struct klt *k = c->state;

    k->levels = kv_lines(2 * room, KV_TRELLIS_STATES * sizeof(float));
    k->trellis = k->levels + room * KV_TRELLIS_STATES;
    for (size_t i = 0; i < KV_KLT_KINDS; i++) {
        const struct kv_klt_kind kind = kv_klt_kinds[i];
        const size_t dims[] = {kind.values, kv_trellis_kept(kind.bits)};
        const struct kv_table *t;
        char name[32];

        if (scalar) {
            mse[i] = fill_levels(&kind, table_of(k->levels, i));
            continue;
        }
        kv_klt_table_name(i, name);
        if (!(t = kv_calib_want(c, set, name, 0, 2, dims, e)))
            return -1;
        kv_trellis_unfold(kind.bits, kind.values, t->data,
                          table_of(k->trellis, i));
        mse[i] = t->error;
    }
    return 0;
}

static int by_head(const struct kv_klt_coef *x, const struct kv_klt_coef *y)
{
    if (x->head != y->head)
        return x->head < y->head ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static int by_variance(const void *a, const void *b)
{
    const struct kv_klt_coef *x = a, *y = b;

    if (x->variance != y->variance)
        return x->variance < y->variance ? 1 : -1;
    return by_head(x, y);
}

/* The coefficients of a side of a layer; n = 0 where the calibration lacks
 * them. */
static struct kv_klt_unit unit_of(const struct kv_codec *c,
                                  const struct kv_calib_set *set, size_t layer,
                                  enum kv_side side)
{
    const size_t d = c->shape.head_dim, heads = c->shape.n_kv_heads;
    struct kv_klt_unit u = {.coef = kv_alloc(heads * d, sizeof(*u.coef))};

    for (size_t h = 0; h < heads; h++) {
        const struct kv_table *t = kv_calib_table(set, "sigma", side, layer, h);

        for (size_t i = 0; t && i < d && i < t->dims[0]; i++)
            u.coef[u.n++] =
                (struct kv_klt_coef){.variance = t->data[i] * t->data[i],
                                     .head = (uint16_t)h,
                                     .index = (uint16_t)i};
    }
    qsort(u.coef, u.n, sizeof(*u.coef), by_variance);
    return u;
}

/* Allocates among all units that share the codec's budget; its own is left in
 * *mine. */
static void allocate(const struct kv_codec *c, const struct kv_calib_set *set,
                     const double *mse, struct kv_klt_unit *mine)
{
    const bool sides = kv_spec_is(&c->spec, c->side, "share", "all");
    const bool layers = !kv_spec_is(&c->spec, c->side, "share", "layer");
    struct kv_klt_unit *unit = kv_alloc(2 * c->shape.n_layers, sizeof(*unit));
    double budget = 0;
    size_t n = 0, own = 0;

    for (size_t l = 0; l < c->shape.n_layers; l++)
        for (int i = 0; i < KV_SIDES; i++) {
            const enum kv_side side = (enum kv_side)i;

            if ((l != c->layer && !layers) || (side != c->side && !sides))
                continue;
            own = l == c->layer && side == c->side ? n : own;
            unit[n] = unit_of(c, set, l, side);
            budget += (double)unit[n].n * kv_spec_get(&c->spec, side, "b") / 8;
            n++;
        }
    kv_klt_allocate(unit, n, (size_t)floor(budget), mse);
    for (size_t i = 0; i < n; i++)
        if (i != own)
            free(unit[i].coef);
    *mine = unit[own];
    free(unit);
}

static int by_kind_and_head(const void *a, const void *b)
{
    const struct kv_klt_coef *x = a, *y = b;

    if (x->kind != y->kind)
        return x->kind < y->kind ? 1 : -1;
    return by_head(x, y);
}

/* Keeps the unit's coefficients, and puts them in the bitstream's order: kind
 * by kind, as allocated; of a kind head by head, so that what attention reads
 * for a head lies together. */
static void keep_coefs(struct klt *k, struct kv_klt_unit *u)
{
    qsort(u->coef, u->n_coded, sizeof(*u->coef), by_kind_and_head);
    k->coef = u->coef;
    k->n_coded = u->n_coded;
    k->sigma = kv_alloc(u->n_coded, sizeof(*k->sigma));
    k->place = kv_alloc(u->n_coded, sizeof(*k->place));
    for (size_t i = 0; i < u->n_coded; i++) {
        const struct kv_klt_coef *f = &u->coef[i];

        k->sigma[i] = sqrtf(f->variance);
        k->place[i] = (uint32_t)(f->head * k->d + f->index);
        if (f->index >= k->n_used[f->head])
            k->n_used[f->head] = (size_t)f->index + 1;
    }
}

static void add_transition(struct klt *k, size_t kind, float *tables)
{
    const struct kv_klt_kind *of = &kv_klt_kinds[kind];
    const bool levels = tables == k->levels;
    float *const table = table_of(tables, kind);

    if (k->n_transitions &&
        k->transition[k->n_transitions - 1].table == table) {
        k->transition[k->n_transitions] = k->transition[k->n_transitions - 1];
    } else {
        if (levels)
            fill_levels(of, table);
        k->transition[k->n_transitions] =
            kv_trellis_transition(of->bits, of->values, table, !levels);
    }
    k->n_transitions++;
}

/* A trellis needs a state: as long as fewer bits than it has are before a
 * transition, levels leave less error where there are some. */
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
                add_transition(k, levels, k->levels);
        else
            add_transition(k, kind, k->trellis);
        bits += of->bits;
        i += of->values;
    }
    k->whole = kv_alloc(k->n_coded, sizeof(*k->whole));
    kv_trellis_count(k->transition, k->n_transitions, k->sigma, k->whole);
}

static int load_transform(struct kv_codec *c, const struct kv_calib_set *set,
                          struct kv_err *e)
{
    struct klt *k = c->state;
    const size_t d = k->d, one[] = {d}, two[] = {d, d};

    for (size_t h = 0; h < k->n_heads; h++) {
        const struct kv_table *mean, *forward, *inverse;

        if (!(mean = kv_calib_want(c, set, "mean", h, 1, one, e)) ||
            !kv_calib_want(c, set, "sigma", h, 1, one, e) ||
            !(forward = kv_calib_want(c, set, "forward", h, 2, two, e)) ||
            !(inverse = kv_calib_want(c, set, "inverse", h, 2, two, e)))
            return -1;
        memcpy(k->mean + h * d, mean->data, d * sizeof(float));
        memcpy(k->forward + h * d * d, forward->data, d * d * sizeof(float));
        memcpy(k->inverse + h * d * d, inverse->data, d * d * sizeof(float));
    }
    return 0;
}

/* One after another in the bitstream's order. */
static void add_coefs(const struct klt *k, size_t head,
                      struct kv_transform_coef *to, size_t *n)
{
    size_t end = 0;

    *n = 0;
    for (size_t s = 0, i = 0; s < k->n_transitions; s++) {
        end += k->transition[s].bits;
        for (unsigned v = 0; v < k->transition[s].values; v++, i++) {
            const struct kv_klt_coef *f = &k->coef[i];
            const float *levels = k->levels, *table = k->transition[s].table;
            const size_t room = KV_KLT_KINDS * KV_TRELLIS_MAX_VALUES;
            const bool level =
                table >= levels && table < levels + room * KV_TRELLIS_STATES;

            if (f->head != head)
                continue;
            to[(*n)++] = (struct kv_transform_coef){
                .end = end,
                .table = table + v * KV_TRELLIS_STATES,
                .map = level ? kv_trellis_last_bits(k->transition[s].bits)
                             : kv_trellis_map(k->transition[s].bits,
                                              k->transition[s].values),
                .scale = k->sigma[i],
                .inverse = k->inverse + (head * k->d + f->index) * k->d};
        }
    }
}

/* The int8 path rounds queries and tables to about a hundredth of a
 * coefficient: no more than a tenth of the scheme's own error. */
static const double LEAST_ERROR_SHARE = 0.01;

/* Of the sum of squares of what is coded, how much is left as error. */
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

/* coef: n[0] of head 0, then n[1] of head 1, .. */
static void keep_for_device(struct klt *k, const struct kv_transform_coef *coef,
                            const size_t *n)
{
    k->device = kv_alloc(k->n_coded, sizeof(*k->device));
    k->first = kv_alloc(k->n_heads + 1, sizeof(*k->first));
    k->used = kv_alloc(k->n_heads, sizeof(*k->used));
    for (size_t h = 0, i = 0; h < k->n_heads; h++) {
        k->used[h] = (unsigned)k->n_used[h];
        k->first[h + 1] = k->first[h] + (unsigned)n[h];
        for (size_t j = 0; i < k->first[h + 1]; j++)
            if (k->coef[j].head == h) {
                k->device[i] = (struct kv_gpu_coefficient){
                    .end = (unsigned)coef[i].end,
                    .table = (unsigned)(coef[i].table - k->levels),
                    .index = k->coef[j].index,
                    .place = (unsigned)j,
                    .scale = coef[i].scale};
                i++;
            }
    }
}

static void keep_runs(struct klt *k)
{
    k->runs = kv_alloc(k->n_transitions, sizeof(*k->runs));
    for (size_t i = 0; i < k->n_transitions; i++) {
        const struct kv_trellis_transition *s = &k->transition[i];

        if (!i || s->table != s[-1].table)
            k->runs[k->n_runs++] = (struct kv_gpu_transitions){
                .bits = s->bits,
                .values = s->values,
                .table = (unsigned)(s->table - k->levels)};
        k->runs[k->n_runs - 1].n++;
        k->n_bits += s->bits;
    }
}

/* All heads' coefficients, one head after another: coef [n_coded], n [n_heads].
 */
static void add_all(const struct klt *k, struct kv_transform_coef *coef,
                    size_t *n)
{
    for (size_t h = 0; h < k->n_heads; coef += n[h++])
        add_coefs(k, h, coef, &n[h]);
}

static void keep_all_for_device(struct klt *k)
{
    struct kv_transform_coef *coef = kv_alloc(k->n_coded, sizeof(*coef));
    size_t *n = kv_alloc(k->n_heads, sizeof(*n));

    add_all(k, coef, n);
    keep_for_device(k, coef, n);
    keep_runs(k);
    free(n);
    free(coef);
}

static void make_coefs(const struct kv_codec *c, struct klt *k)
{
    struct kv_transform_coef *coef = kv_alloc(k->n_coded, sizeof(*coef));
    size_t *n = kv_alloc(k->n_heads, sizeof(*n));

    if (c->pre_rope)
        k->rope = kv_tiles_rope_new(k->d, c->shape.n_rot, c->shape.inv_freq);
    add_all(k, coef, n);
    k->coefs = kv_transform_new(
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
    const size_t d = c->shape.head_dim, heads = c->shape.n_kv_heads;
    const struct kv_calib_set *set;
    struct kv_klt_unit mine;
    struct klt *k = kv_alloc(1, sizeof(*k));
    double mse[KV_KLT_KINDS];

    c->state = k;
    *k = (struct klt){.d = d, .n_heads = heads};
    if (kv_calib_want_set(&set, calib, &c->spec, e))
        return -1;
    k->mean = kv_alloc(heads * d, sizeof(float));
    k->forward = kv_alloc(heads * d * d, sizeof(float));
    k->inverse = kv_alloc(heads * d * d, sizeof(float));
    k->n_used = kv_alloc(heads, sizeof(*k->n_used));
    if (load_transform(c, set, e) || load_kinds(c, set, mse, e))
        return -1;
    allocate(c, set, mse, &mine);
    keep_coefs(k, &mine);
    make_transitions(k, kv_spec_is(&c->spec, c->side, "code", "scalar"));
    c->block = 1;
    c->block_bytes = mine.bytes;
    c->pre_rope = c->side == KV_K && kv_spec_is(&c->spec, KV_K, "rope", "pre");
    k->int8 = error_share(k, &mine, mse) >= LEAST_ERROR_SHARE;
    keep_all_for_device(k);
    return 0;
}

static void close_klt(struct kv_codec *c)
{
    struct klt *k = c->state;

    if (!k)
        return;
    free(k->mean);
    free(k->forward);
    free(k->inverse);
    free(k->n_used);
    free(k->levels);
    free(k->whole);
    free(k->coef);
    free(k->sigma);
    free(k->place);
    free(k->transition);
    free(k->device);
    free(k->first);
    free(k->used);
    free(k->runs);
    kv_transform_free(k->coefs);
    kv_tiles_rope_free(k->rope);
    free(k);
}

enum { TOGETHER = 16 }; /* tokens */

/* y [n][n_heads][d] of n tokens, in the first n_wanted [n_heads] of each head
 * (and some more: whole vectors are fastest), else 0.  x loses its mean. */
static void transform(const struct klt *k, const size_t *n_wanted, size_t n,
                      float *x, float *y)
{
    enum { WHOLE = 16 };
    const size_t d = k->d, row = k->n_heads * d;

    memset(y, 0, n * row * sizeof(*y));
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < row; j++)
            x[i * row + j] -= k->mean[j];
    for (size_t h = 0; h < k->n_heads; h++) {
        const size_t wanted = (n_wanted[h] + WHOLE - 1) / WHOLE * WHOLE;

        kv_vecops_times(x + h * d, row, n, k->forward + h * d * d, d, d,
                        wanted < d ? wanted : d, y + h * d, row);
    }
}

static void coefficients(const struct kv_codec *c, const float *x, size_t n,
                         float *y)
{
    const struct klt *k = c->state;
    const size_t row = kv_codec_block_values(c);
    float *copy = kv_alloc(n, row * sizeof(*copy));
    size_t *all = kv_alloc(k->n_heads, sizeof(*all));

    for (size_t h = 0; h < k->n_heads; h++)
        all[h] = k->d;
    memcpy(copy, x, n * row * sizeof(*copy));
    transform(k, all, n, copy, y);
    free(all);
    free(copy);
}

static void transform_back(const struct klt *k, const float *y, size_t n,
                           float *x)
{
    const size_t d = k->d, row = k->n_heads * d;

    for (size_t i = 0; i < n; i++)
        memcpy(x + i * row, k->mean, row * sizeof(*x));
    for (size_t h = 0; h < k->n_heads; h++)
        kv_vecops_times(y + h * d, row, n, k->inverse + h * d * d, k->n_used[h],
                        d, d, x + h * d, row);
}

static void encode(const struct kv_codec *c, struct kv_where w, const float *x,
                   size_t n_blocks, uint8_t *bytes)
{
    const struct klt *k = c->state;
    const size_t row = kv_codec_block_values(c);
    const size_t most = n_blocks < TOGETHER ? n_blocks : TOGETHER;
    float *copy = kv_alloc(most, row * sizeof(*copy));
    float *y = kv_alloc(most, row * sizeof(*y));
    void *workspace = kv_lines_unset(
        kv_trellis_workspace(k->transition, k->n_transitions, n_blocks), 1);

    (void)w;
    if (!k->n_coded)
        memset(bytes, 0, n_blocks * c->block_bytes);
    for (size_t t = 0; t < n_blocks; t += TOGETHER) {
        const size_t n = n_blocks - t < most ? n_blocks - t : most;

        memcpy(copy, x + t * row, n * row * sizeof(*copy));
        transform(k, k->n_used, n, copy, y);
        kv_trellis_encode(k->transition, k->n_transitions, y, row, k->place,
                          k->whole, n, workspace, bytes + t * c->block_bytes,
                          c->block_bytes);
    }
    free(workspace);
    free(y);
    free(copy);
}

static void decode(const struct kv_codec *c, const uint8_t *bytes,
                   size_t n_blocks, float *x)
{
    const struct klt *k = c->state;
    const size_t row = kv_codec_block_values(c);
    const size_t most = n_blocks < TOGETHER ? n_blocks : TOGETHER;
    float *y = kv_alloc(most, row * sizeof(*y));

    for (size_t t = 0; t < n_blocks; t += TOGETHER) {
        const size_t n = n_blocks - t < most ? n_blocks - t : most;

        kv_trellis_decode(k->transition, k->n_transitions,
                          bytes + t * c->block_bytes, c->block_bytes, k->sigma,
                          n, y, row, k->place);
        transform_back(k, y, n, x + t * row);
    }
    free(y);
}

static bool device(const struct kv_codec *c, struct kv_gpu_code *to)
{
    const struct klt *k = c->state;

    to->coding = KV_GPU_BITSTREAMS;
    to->bitstreams = (struct kv_gpu_bitstreams){
        .coef = k->device,
        .first = k->first,
        .used = k->used,
        .transitions = k->runs,
        .whole = k->whole,
        .tables = k->levels,
        .mean = k->mean,
        .forward = k->forward,
        .inverse = k->inverse,
        .n_coefs = (unsigned)k->n_coded,
        .n_runs = k->n_runs,
        .n_transitions = (unsigned)k->n_transitions,
        .n_bits = k->n_bits,
        .n_tables = (size_t)2 * KV_KLT_KINDS * KV_TRELLIS_MAX_VALUES *
                    KV_TRELLIS_STATES};
    return true;
}

static bool store(const struct kv_codec *c, struct kv_store *s)
{
    struct klt *k = c->state;

#pragma omp critical(kv_klt_coefs)
    if (!k->coefs)
        make_coefs(c, k);
    kv_store_transform(s, k->coefs);
    return true;
}

static void tile(const struct kv_codec *c, const struct kv_store *s,
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
    .check = check,
    .nominal = nominal,
    .training = &(const struct kv_training){kv_klt_trainable, kv_klt_calibrate},
    .open = open_klt,
    .close = close_klt,
    .encode = encode,
    .decode = decode,
    .coefficients = coefficients,
    .device = device,
    .store = store,
    .tile = tile,
};
