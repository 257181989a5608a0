/* Attention of HACK on codes: the definition of the scheme's output.
 *
 * For one query head: Q is quantized to qb bits in the parts of K's lines and
 * multiplied with K's codes; softmax in f32; P is quantized in V's blocks
 * (tokens of a block that a query does not see are 0, and count for the range)
 * and multiplied with V's codes.  Tokens in fp16 are multiplied with the
 * unquantized Q and P.
 *
 * axes=artifact: the product sums along another axis than the stored ranges'.
 * So Q or P is multiplied by the scales before it is quantized, anew for each
 * block (and, for values, each group of channels), and the minima add one
 * number,
 *
 *   sum q_c (s_c k'_tc + m_c)   = sum (q_c s_c) k'_tc + sum q_c m_c
 *   sum w_t (s_tg v'_tc + m_tg) = sum (w_t s_tg) v'_tc + sum w_t m_tg */
#include "kernels/vecops/vecops.h"
#include "lib/base/alloc.h"
#include "lib/schemes/hack_operand.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

/* Query heads are processed in tiles, so that codes are unpacked once for a
 * tile, in pieces that stay in the inner caches. */
enum {
    QUERIES = 64,     /* query heads of a tile, at most */
    WEIGHTS = 1 << 18 /* weights of a tile, unless one query's heads have
                       * more */
};

/* One query head. */
struct query {
    size_t n;       /* tokens up to the query's own */
    size_t i, head; /* place in the view */
    uint64_t key[KV_SIDES];
    float *out; /* the row for its output */
};

/* Query heads that are processed together, sorted by the tokens that they see.
 * Each has a row of w, x, u and code. */
struct tile {
    size_t n, max, w_stride, line_stride, score_stride;
    struct query *query;     /* [max] */
    float *q;                /* [max][head_dim] */
    float *w;                /* [max][w_stride]: a weight per token, padded to a
                              * block of V */
    float *x, *u;            /* [max][line_stride]: the line to quantize */
    uint8_t *code;           /* [max][line_stride] */
    struct kv_hack_row *row; /* [part][max] */
    double *score;           /* [max][score_stride] */
    double *out;             /* [max][head_dim] */
    double *base, *one;      /* [n_groups][max], [max]: terms of the minima */
    struct kv_hack_ops ops;
    uint64_t formula, formula_parts;
    const struct kv_attend_view *view;
};

/* The number of tokens in [from, from + n) before `end`. */
static size_t seen(size_t from, size_t n, size_t end)
{
    return end > from ? kv_min(end - from, n) : 0;
}

/* Counts the operations for reading a KV head: per line len - parts additions
 * for the sums of codes, unless sums are stored, and for axes=paper the
 * products s_b sum(b'). */
static void count_reading(const struct kv_hack_operand *o,
                          struct kv_hack_ops *ops)
{
    const struct kv_hack *h = o->h;
    const size_t values = o->n_coded * o->r->codec->shape.head_dim;
    const size_t n_sums = o->n_blocks * h->n_lines * h->n_parts;

    if (!h->sums)
        ops->correction += h->artifact ? values - n_sums : values;
    else if (!h->artifact)
        ops->other += n_sums;
}

/* ---- scores -------------------------------------------------------------- */

/* The index of the first query that sees more than n tokens of o's codes. */
static size_t first_beyond(const struct tile *t,
                           const struct kv_hack_operand *o, size_t n)
{
    size_t j = 0;

    while (j < t->n && seen(o->r->sinks, o->n_coded, t->query[j].n) <= n)
        j++;
    return j;
}

/* Quantizes one partition of the queries from j0 on: x, rows of n values
 * x_stride apart, to codes from index `at` on of each query's row.  counter:
 * kv_hack_counter() of a row's x[0], or kv_hack_weight_counter() of the
 * partition. */
static void hack_quantize(struct tile *t, struct kv_hack_operand *o,
                          size_t part, size_t j0, size_t at, uint64_t counter,
                          const float *x, size_t x_stride, size_t n)
{
    const struct kv_hack *h = o->h;
    const size_t stride = t->line_stride;
    const float *u = h->stochastic ? t->u + j0 * stride : NULL;

    for (size_t j = j0; j < t->n; j++) {
        const uint64_t key = t->query[j].key[h->side];

        if (u && h->side == KV_K)
            kv_hack_table()->uniform(key, counter, KV_HACK_NEXT_CHANNEL, n,
                                     t->u + j * stride);
        else if (u)
            kv_hack_table()->weight_uniform(key, counter, n, t->u + j * stride);
        kv_hack_fetch(o);
    }
    kv_hack_table()->quantize(x, x_stride, t->n - j0, n, h->q_bits, u, stride,
                              t->code + j0 * stride + at, stride,
                              t->row + part * t->max + j0);
    for (size_t j = j0; j < t->n; j++)
        kv_hack_count_row(&t->ops, n);
}

/* Quantizes Q in the parts of K's lines; first: the token index for the random
 * numbers. */
static void quantize_q(struct tile *t, struct kv_hack_operand *k, size_t j0,
                       size_t first, const float *q, size_t stride)
{
    const struct kv_hack *h = k->h;

    for (size_t part = 0; part < h->n_parts; part++) {
        const size_t z = part * h->part;

        hack_quantize(t, k, part, j0, z, kv_hack_counter(first, z), q + z,
                      stride, kv_hack_part_len(h, part));
    }
}

/* Prepares the queries from j0 on for a block of keys, from coded token `first`
 * on: quantizes q times the scales, and computes the terms of the minima. */
static void fold_q(struct tile *t, struct kv_hack_operand *k, size_t j0,
                   size_t first)
{
    const size_t d = k->h->len, n = t->n - j0;
    const float *q = t->q + j0 * d;
    float *x = t->x + j0 * t->line_stride;

    kv_hack_table()->scale(q, d, n, d, k->scale, x, t->line_stride);
    quantize_q(t, k, j0, k->r->sinks + first, x, t->line_stride);
    kv_hack_table()->dots(k->min, q, d, n, d, t->one + j0);
    for (size_t j = j0; j < t->n; j++)
        for (size_t i = 0; i < k->stride; i++)
            t->score[j * t->score_stride + i] = t->one[j];
}

/* Computes the logits of the piece's n tokens, from coded token `first` on. */
static void score_piece(struct tile *t, struct kv_hack_operand *k, size_t first,
                        size_t n, float attn_scale)
{
    const struct kv_hack *h = k->h;
    const size_t j0 = first_beyond(t, k, first), stride = t->score_stride;
    const size_t at = k->r->sinks + first, d = h->len;

    if (h->artifact)
        fold_q(t, k, j0, first);
    else
        memset(t->score + j0 * stride, 0,
               (t->n - j0) * stride * sizeof(*t->score));
    for (size_t j = j0; j < t->n; j++) {
        const size_t sees = seen(at, n, t->query[j].n);

        for (size_t part = 0; part < h->n_parts; part++)
            kv_hack_count_product(&t->ops, kv_hack_part_len(h, part), sees,
                                  h->artifact);
        t->ops.correction += h->artifact ? d + 2 * d + sees : 0;
    }
    for (size_t part = 0; part < h->n_parts; part++) {
        const struct kv_hack_columns c =
            kv_hack_operand_columns(k, part, 0, n, kv_hack_part_len(h, part));

        kv_hack_table()->multiply(t->row + part * t->max + j0, t->n - j0, &c,
                                  t->score + j0 * stride, stride);
        kv_hack_fetch(k);
    }
    for (size_t j = j0; j < t->n; j++) {
        kv_hack_table()->narrow(t->score + j * stride,
                                seen(at, n, t->query[j].n), (double)attn_scale,
                                t->w + j * t->w_stride + at);
        kv_hack_fetch(k);
    }
}

/* Computes query j's logits for the fp16 tokens [plain, plain + n), which begin
 * at position `from` of the sequence. */
static void score_plain(struct tile *t, const struct kv_hack_operand *k,
                        size_t j, size_t from, size_t plain, size_t n,
                        float attn_scale)
{
    const size_t d = k->h->len;

    for (size_t i = 0; i < n; i += t->score_stride) {
        const size_t some = kv_min(n - i, t->score_stride);

        kv_hack_table()->dots(t->q + j * d, k->plain + (plain + i) * d, d, some,
                              d, t->score);
        kv_hack_table()->narrow(t->score, some, (double)attn_scale,
                                t->w + j * t->w_stride + from + i);
    }
}

/* Fills w with the logits of the tokens that each query sees. */
static void logits(struct tile *t, struct kv_hack_operand *k, float attn_scale)
{
    const struct kv_hack *h = k->h;
    const size_t sinks = k->r->sinks, d = h->len;
    const size_t step = h->artifact ? h->n_lines : KV_HACK_PIECE;
    const size_t max = seen(sinks, k->n_coded, t->query[t->n - 1].n);

    if (!h->artifact && max) {
        const size_t j0 = first_beyond(t, k, 0);

        quantize_q(t, k, j0, 0, t->q + j0 * d, d);
        for (size_t j = j0; j < t->n; j++) {
            const size_t n = seen(sinks, k->n_coded, t->query[j].n);

            t->formula += kv_hack_formula(1, n, d, d, true);
            t->formula_parts += kv_hack_formula(1, n, d, h->part, true);
        }
    }
    for (size_t first = 0; first < max; first += step) {
        const size_t n = kv_min(step, max - first);

        kv_hack_expect(k, h->artifact ? first / step + 1 : first + n,
                       h->artifact ? 1 : KV_HACK_PIECE,
                       t->n - first_beyond(t, k, first));
        if (h->artifact)
            kv_hack_read_block(k, first / step, d);
        else
            kv_hack_read_tokens(k, first, n);
        score_piece(t, k, first, n, attn_scale);
    }
    for (size_t j = 0; j < t->n; j++) {
        const size_t n = t->query[j].n;

        score_plain(t, k, j, 0, 0, kv_min(sinks, n), attn_scale);
        score_plain(t, k, j, k->tail, sinks,
                    seen(k->tail, k->n_plain - sinks, n), attn_scale);
    }
}

/* ---- values -------------------------------------------------------------- */

/* out += w times the m tokens of block b. */
static void gather_block(struct tile *t, struct kv_hack_operand *v, size_t b,
                         size_t m)
{
    const size_t at = v->r->sinks + b * v->h->len, d = v->h->n_lines;
    const size_t j0 = first_beyond(t, v, b * v->h->len);
    const struct kv_hack_columns c = kv_hack_operand_columns(v, 0, 0, d, m);

    hack_quantize(t, v, 0, j0, 0, kv_hack_weight_counter(at, 0),
                  t->w + j0 * t->w_stride + at, t->w_stride, m);
    for (size_t j = j0; j < t->n; j++)
        kv_hack_count_product(&t->ops, m, d, false);
    kv_hack_table()->multiply(t->row + j0, t->n - j0, &c, t->out + j0 * d, d);
    kv_hack_fetch(v);
}

/* out += w times the m tokens of block b, for axes=artifact, where P takes in
 * the scales of each group of channels. */
static void gather_folded(struct tile *t, struct kv_hack_operand *v, size_t b,
                          size_t m)
{
    const struct kv_hack *h = v->h;
    const size_t at = v->r->sinks + b * h->len, d = h->n_lines;
    const size_t j0 = first_beyond(t, v, b * h->len), rows = t->n - j0;
    const float *w = t->w + j0 * t->w_stride + at;
    float *x = t->x + j0 * t->line_stride;

    for (size_t g = 0; g < h->n_groups; g++) {
        const size_t line = g * h->group, n = kv_min(h->group, d - line);
        const struct kv_hack_columns c =
            kv_hack_operand_columns(v, 0, line, n, m);

        kv_hack_table()->scale(w, t->w_stride, rows, m, v->scale + g * h->len,
                               x, t->line_stride);
        hack_quantize(t, v, 0, j0, 0, kv_hack_weight_counter(at, g), x,
                      t->line_stride, m);
        kv_hack_table()->dots(v->min + g * h->len, w, t->w_stride, rows, m,
                              t->one + j0);
        for (size_t j = j0; j < t->n; j++) {
            t->base[g * t->max + j] += t->one[j];
            kv_hack_count_product(&t->ops, m, n, true);
            t->ops.correction += m + 2 * m + n;
        }
        kv_hack_table()->multiply(t->row + j0, rows, &c, t->out + j0 * d + line,
                                  d);
        kv_hack_fetch(v);
    }
}

/* Adds to query j's output the terms of the minima (axes=artifact) and of the
 * fp16 tokens. */
static void gather_rest(struct tile *t, const struct kv_hack_operand *v,
                        size_t j)
{
    const struct kv_hack *h = v->h;
    const size_t sinks = v->r->sinks, d = h->n_lines, n = t->query[j].n;
    const float *w = t->w + j * t->w_stride;
    double *out = t->out + j * d;

    for (size_t g = 0; h->artifact && g < h->n_groups; g++)
        for (size_t c = g * h->group; c < kv_min((g + 1) * h->group, d); c++)
            out[c] += t->base[g * t->max + j];
    kv_hack_table()->add(w, v->plain, d, kv_min(sinks, n), d, out);
    kv_hack_table()->add(w + v->tail, v->plain + sinks * d, d,
                         seen(v->tail, v->n_plain - sinks, n), d, out);
}

/* out = w times the values that each query sees. */
static void hack_gather(struct tile *t, struct kv_hack_operand *v)
{
    const struct kv_hack *h = v->h;
    const size_t d = h->n_lines, p = h->len;
    const size_t max = seen(v->r->sinks, v->n_coded, t->query[t->n - 1].n);

    memset(t->out, 0, t->n * d * sizeof(*t->out));
    memset(t->base, 0, h->n_groups * t->max * sizeof(*t->base));
    for (size_t b = 0; b * p < max; b++) {
        const size_t m = kv_min(p, v->n_coded - b * p);

        kv_hack_expect(v, b + 1, 1, t->n - first_beyond(t, v, b * p));
        kv_hack_read_block(v, b, m);
        if (h->artifact)
            gather_folded(t, v, b, m);
        else
            gather_block(t, v, b, m);
    }
    for (size_t j = 0; j < t->n; j++) {
        const size_t n = seen(v->r->sinks, v->n_coded, t->query[j].n);
        /* tokens of all blocks that the query sees, in part or whole */
        const size_t z = kv_min((n + p - 1) / p * p, v->n_coded);

        gather_rest(t, v, j);
        if (z && !h->artifact) {
            t->formula += kv_hack_formula(1, d, z, z, true);
            t->formula_parts += kv_hack_formula(1, d, z, p, true);
        }
    }
}

/* ---- all of them --------------------------------------------------------- */

/* The number of query heads of a tile, up to n; at least one query's heads, up
 * to QUERIES. */
static size_t tile_size(size_t w_stride, size_t group, size_t n)
{
    const size_t fit = WEIGHTS / w_stride;

    return kv_min(kv_min(fit > group ? fit : group, QUERIES), n);
}

static struct tile *tile_new(const struct kv_hack_operand *k,
                             const struct kv_hack_operand *v, size_t group,
                             size_t n)
{
    const size_t d = v->h->n_lines;
    struct tile *t = kv_alloc(1, sizeof(*t));

    t->w_stride = k->r->n + v->h->len;
    t->max = tile_size(t->w_stride, group, n);
    t->line_stride = k->h->len > v->h->len ? k->h->len : v->h->len;
    t->score_stride = k->stride;
    t->query = kv_alloc(t->max, sizeof(*t->query));
    t->q = kv_alloc(t->max, d * sizeof(*t->q));
    t->w = kv_alloc(t->max, t->w_stride * sizeof(*t->w));
    t->x = kv_alloc(t->max, t->line_stride * sizeof(*t->x));
    t->u = kv_alloc(t->max, t->line_stride * sizeof(*t->u));
    t->code = kv_alloc(t->max, t->line_stride);
    t->row = kv_alloc(k->h->n_parts, t->max * sizeof(*t->row));
    t->score = kv_alloc(t->max, t->score_stride * sizeof(*t->score));
    t->out = kv_alloc(t->max, d * sizeof(*t->out));
    t->base = kv_alloc(v->h->n_groups, t->max * sizeof(*t->base));
    t->one = kv_alloc(t->max, sizeof(*t->one));
    return t;
}

static void tile_free(struct tile *t)
{
    free(t->query);
    free(t->q);
    free(t->w);
    free(t->x);
    free(t->u);
    free(t->code);
    free(t->row);
    free(t->score);
    free(t->out);
    free(t->base);
    free(t->one);
    free(t);
}

/* Turns query j's logits into weights, 0 for tokens that it does not see and
 * for the padding up to len. */
static void softmax(struct tile *t, size_t j, size_t len)
{
    const struct kv_attend_view *v = t->view;
    const struct query *x = &t->query[j];
    float *w = t->w + j * t->w_stride;
    bool any = true;

    if (!kv_attend_simple(v)) {
        kv_attend_logits(v, 0, x->head, x->i, 0, x->n, w);
        any = kv_row_max(w, x->n) != -INFINITY;
    }
    if (any)
        kv_attend_weights(v, x->head, x->n, w);
    else
        memset(w, 0, x->n * sizeof(*w));
    memset(w + x->n, 0, len * sizeof(*w));
    for (size_t i = 0; v->mass && i < x->n; i++)
        v->mass[x->head / (v->n_heads / v->n_kv_heads) * v->n + i] +=
            (double)w[i];
}

/* Computes the outputs of the tile's queries. */
static void tile_attend(struct tile *t, struct kv_hack_operand *k,
                        struct kv_hack_operand *v)
{
    const size_t d = v->h->n_lines;

    logits(t, k, t->view->scale);
    for (size_t j = 0; j < t->n; j++)
        softmax(t, j, v->h->len);
    hack_gather(t, v);
    for (size_t j = 0; j < t->n; j++)
        kv_hack_table()->narrow(t->out + j * d, d, 1, t->query[j].out);
}

/* Computes the outputs of one KV head's query heads. */
static void attend_head(struct tile *t, struct kv_hack_operand *k,
                        struct kv_hack_operand *v, size_t head, const float *q,
                        uint64_t seed, float *out)
{
    const size_t d = t->view->head_dim, heads = t->view->n_heads;
    const size_t group = heads / t->view->n_kv_heads, nq = t->view->nq;
    const size_t layer = k->r->codec->layer;
    const uint64_t weights = kv_hack_layer_key(seed, KV_HACK_P, layer);
    /* the formulas' operations for summing codes, if sums are not stored */
    const uint64_t sums =
        d * ((k->h->sums ? 0 : k->n_coded) + (v->h->sums ? 0 : v->n_coded));

    t->formula += sums;
    t->formula_parts += sums;
    kv_hack_operand_head(k, head);
    kv_hack_operand_head(v, head);
    count_reading(k, &t->ops);
    count_reading(v, &t->ops);
    for (size_t j0 = 0; j0 < nq * group; j0 += t->max) {
        t->n = kv_min(t->max, nq * group - j0);
        for (size_t j = 0; j < t->n; j++) {
            const size_t i = (j0 + j) / group, query = t->view->first + i;
            const size_t own = head * group + (j0 + j) % group;
            const size_t at = (i * heads + own) * d;

            t->query[j] = (struct query){
                .n = kv_attend_end(t->view, i),
                .i = i,
                .head = own,
                .key = {kv_hack_key(seed, KV_HACK_Q, layer, own, query),
                        kv_hack_weight_key(weights, own, query)},
                .out = out + at,
            };
            memcpy(t->q + j * d, q + at, d * sizeof(*q));
        }
        tile_attend(t, k, v);
    }
}

static void add_ops(struct kv_attend_ops *ops, const struct tile *t,
                    const struct kv_hack_operand *k,
                    const struct kv_hack_operand *v)
{
    const bool paper = !k->h->artifact && !v->h->artifact;

    ops->products += t->ops.products;
    ops->correction += t->ops.correction;
    ops->other += t->ops.other;
    ops->formula += paper ? t->formula : 0;
    ops->formula_parts += paper ? t->formula_parts : 0;
}

/* Threads take one KV head at a time; the results do not depend on the
 * order. */
void kv_hack_attend(const struct kv_reader *kr, const struct kv_reader *vr,
                    const struct kv_attend_view *view, const float *q,
                    uint64_t seed, float *out, struct kv_attend_ops *ops)
{
    const size_t group = view->n_heads / view->n_kv_heads;
    const size_t threads = (size_t)omp_get_max_threads();

#pragma omp parallel num_threads((int)kv_min(view->n_kv_heads, threads))
    {
        struct kv_hack_operand k = kv_hack_operand_new(kr),
                               v = kv_hack_operand_new(vr);
        struct tile *t = tile_new(&k, &v, group, view->nq * group);

        t->view = view;

#pragma omp for schedule(dynamic)
        for (size_t i = 0; i < view->n_kv_heads; i++)
            attend_head(t, &k, &v, i, q, seed, out);
        if (ops) {
#pragma omp critical(kv_hack_ops)
            add_ops(ops, t, &k, &v);
        }
        tile_free(t);
        kv_hack_operand_free(&v);
        kv_hack_operand_free(&k);
    }
}
