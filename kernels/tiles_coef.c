#include "kernels/gemm.h"
#include "kernels/level.h"
#include "kernels/tiles_coef_impl.h"
#include "kernels/tiles_impl.h"
#include "kernels/tiles_rope.h"
#include "lib/base/alloc.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHANNELS = KV_TILE_ROWS, PARTS = KV_TILE_TOKENS / KV_TILE_PART };

/* ---- tables, places, matrices -------------------------------------------- */

/* The state at place i of an order. */
static size_t state_in(unsigned order, size_t i)
{
    const size_t low = i % 256;

    return i - low + (low >> order | low << (8 - order)) % 256;
}

/* Whether a table is what its bits promise. */
static bool table_fits(const struct kv_coef *c)
{
    for (size_t s = 0; s < KV_TRELLIS_HALF; s++) {
        const float x = c->table[s], other = c->table[KV_TRELLIS_HALF + s];

        if (other != (c->bits == KV_TRELLIS_BITS ? -x : x) ||
            x != c->table[s % ((size_t)1 << c->bits)])
            return false;
    }
    return true;
}

static void fill_table(struct kv_coef_table *t, const struct kv_coef *c)
{
    const size_t places = (size_t)KV_COEF_ORDERS * KV_TRELLIS_STATES;
    float most = 0;

    assert(table_fits(c));
    t->from = c->table;
    t->bits = c->bits;
    for (size_t i = 0; i < 4; i++)
        t->plane[i] = kv_lines(KV_TRELLIS_HALF, 1);
    t->code = kv_lines(places, 1);
    for (size_t s = 0; s < KV_TRELLIS_STATES; s++)
        most = fmaxf(most, fabsf(c->table[s]));
    for (size_t s = 0; s < KV_TRELLIS_HALF; s++) {
        uint32_t u;

        memcpy(&u, &c->table[s], sizeof(u));
        for (size_t b = 0; b < 4; b++)
            t->plane[b][s] = (uint8_t)(u >> 8 * b);
    }
    t->step = most > 0 ? most / 127 : 1;
    for (size_t i = 0; i < places; i++) {
        const float x = c->table[state_in((unsigned)(i / KV_TRELLIS_STATES),
                                          i % KV_TRELLIS_STATES)];

        t->code[i] = (uint8_t)(rintf(x / t->step) + 128);
    }
}

static void fill_tables(struct kv_coefs *c)
{
    size_t n = 0;

    for (size_t h = 0; h < c->about.n_heads; h++)
        n += c->about.n[h];
    c->table = kv_alloc(n, sizeof(*c->table));
    for (size_t i = 0; i < n; i++) {
        size_t t = 0;

        while (t < c->n_tables && c->table[t].from != c->about.coef[i].table)
            t++;
        if (t == c->n_tables)
            fill_table(&c->table[c->n_tables++], &c->about.coef[i]);
        assert(c->table[t].bits == c->about.coef[i].bits);
    }
}

static unsigned shift_of(const struct kv_coef *c)
{
    return (unsigned)(8 - c->end % 8) % 8;
}

static struct kv_coef_place place_of(const struct kv_coef *c)
{
    const size_t last = (c->end - 1) / 8; /* a tile begins with a line of 0 */

    return (struct kv_coef_place){
        .line = (uint32_t)((last + 1) * KV_TILE_TOKENS), .shift = shift_of(c)};
}

/* By table, then by shift, else in their order: order [n]. */
static void fill_head(const struct kv_coefs *c, const struct kv_coef *coef,
                      size_t n, size_t *order, struct kv_coef_head *h)
{
    size_t done = 0;

    h->n = n;
    h->padded = (n + 1 + KV_COEF_ONE - 1) / KV_COEF_ONE * KV_COEF_ONE;
    h->place = kv_alloc(n, sizeof(*h->place));
    h->run = kv_alloc(c->n_tables, sizeof(*h->run));
    for (size_t t = 0; t < c->n_tables; t++) {
        struct kv_coef_run *run = &h->run[h->n_runs];

        *run = (struct kv_coef_run){
            .table = &c->table[t], .first = done, .first4 = h->n4};
        for (unsigned shift = 0; shift < 8; shift++) {
            for (size_t i = 0; i < n; i++)
                if (coef[i].table == c->table[t].from &&
                    shift_of(&coef[i]) == shift) {
                    h->place[done] = place_of(&coef[i]);
                    order[done++] = i;
                }
            run->shift[shift + 1] = done - run->first;
        }
        run->n = done - run->first;
        h->n4 += (run->n + KV_COEF_FOUR - 1) / KV_COEF_FOUR * KV_COEF_FOUR;
        h->n_runs += run->n > 0;
    }
}

/* Row j of the inverse, channel i, and the mean as row n. */
static float element(const struct kv_coef *coef, const size_t *order, size_t n,
                     const float *mean, size_t j, size_t i)
{
    if (j == n)
        return mean[i];
    return coef[order[j]].scale * coef[order[j]].inverse[i];
}

static void fill_matrix(const struct kv_coefs *c, const struct kv_coef *coef,
                        const size_t *order, const float *mean,
                        struct kv_coef_head *h)
{
    const size_t d = c->about.head_dim, wide = kv_padded(d);

    h->matrix = kv_lines(wide * (h->padded + KV_COEF_ONE), sizeof(float));
    for (size_t j = 0; j <= h->n; j++)
        for (size_t i = 0; i < d; i++) {
            const float x = element(coef, order, h->n, mean, j, i);
            const size_t first = i / CHANNELS * CHANNELS;
            const size_t rows = d - first < CHANNELS ? d - first : CHANNELS;

            if (c->about.values)
                h->matrix[j * wide + i] = x;
            else if (!c->about.rope)
                h->matrix[i * h->padded + j] = x;
            else
                h->matrix[first * (h->n + 1) + j * rows + i - first] = x;
        }
}

static size_t query8_bytes(const struct kv_coef_head *h)
{
    return 3 * KV_COEF_PER_ROW + (h->n4 * KV_TILE_ROWS + 63) / 64 * 64;
}

/* One row of coefficients and the constant as row r of a query of `rows`. */
static void round_row(const struct kv_coef_head *h, const float *turned,
                      size_t r, size_t rows, void *query)
{
    const struct kv_coef_query8 to = kv_coef_query8_at(query);
    float x[KV_COEF_MOST] = {0};
    int8_t code[KV_COEF_MOST];
    int32_t sum = 0;

    for (size_t i = 0; i < h->n_runs; i++)
        for (size_t j = 0; j < h->run[i].n; j++)
            x[h->run[i].first + j] =
                turned[h->run[i].first + j] * h->run[i].table->step;
    kv_tile_loops()->round8(x, KV_COEF_MOST, 1, (h->n + 15) / 16 * 16, code,
                            KV_COEF_MOST, &to.factor[r]);
    for (size_t i = 0; i < h->n_runs; i++)
        for (size_t j = 0; j < h->run[i].n; j++) {
            const size_t at = h->run[i].first4 + j;

            to.code[(at / 4 * rows + r) * 4 + at % 4] =
                code[h->run[i].first + j];
            sum += code[h->run[i].first + j];
        }
    to.bias[r] = -128 * sum;
    to.constant[r] = turned[h->n];
}

static void fill_channels(const struct kv_coefs *c, const struct kv_coef *coef,
                          const size_t *order, const float *mean,
                          struct kv_coef_head *h)
{
    const size_t d = c->about.head_dim;
    const size_t groups = (d / 2 + KV_COEF_PAIRS - 1) / KV_COEF_PAIRS;
    float *turned = kv_alloc(h->padded, sizeof(*turned));

    h->channel_bytes = query8_bytes(h);
    h->channel = kv_lines(groups, h->channel_bytes);
    for (size_t i = 0; i < groups; i++) {
        const size_t rows = 2 * kv_coef_pairs(d, i);

        for (size_t r = 0; r < rows; r++) {
            for (size_t j = 0; j <= h->n; j++)
                turned[j] = element(coef, order, h->n, mean, j,
                                    kv_coef_channel(d, i, r));
            round_row(h, turned, r, rows, h->channel + i * h->channel_bytes);
        }
    }
    free(turned);
}

struct kv_coefs *kv_coefs_new(const struct kv_coefs_about *a)
{
    struct kv_coefs *c = kv_alloc(1, sizeof(*c));
    size_t order[KV_COEF_MOST], at = 0;

    c->about = *a;
    c->head = kv_alloc(a->n_heads, sizeof(*c->head));
    fill_tables(c);
    for (size_t h = 0; h < a->n_heads; at += a->n[h++]) {
        struct kv_coef_head *head = &c->head[h];

        assert(a->n[h] <= a->head_dim && a->head_dim <= KV_COEF_MOST);
        assert(!a->rope || a->head_dim % 2 == 0);
        fill_head(c, a->coef + at, a->n[h], order, head);
        fill_matrix(c, a->coef + at, order, a->mean + h * a->head_dim, head);
        if (a->rope && a->int8)
            fill_channels(c, a->coef + at, order, a->mean + h * a->head_dim,
                          head);
        c->most = head->padded > c->most ? head->padded : c->most;
    }
    c->about.n = NULL; /* the caller's */
    c->about.coef = NULL;
    c->about.mean = NULL;
    return c;
}

void kv_coefs_free(struct kv_coefs *c)
{
    if (!c)
        return;
    for (size_t t = 0; t < c->n_tables; t++) {
        for (size_t i = 0; i < 4; i++)
            free(c->table[t].plane[i]);
        free(c->table[t].code);
    }
    for (size_t h = 0; h < c->about.n_heads; h++) {
        free(c->head[h].run);
        free(c->head[h].place);
        free(c->head[h].matrix);
        free(c->head[h].channel);
    }
    free(c->table);
    free(c->head);
    free(c);
}

/* ---- stores -------------------------------------------------------------- */

void kv_store_coefs(struct kv_store *s, const struct kv_coefs *c)
{
    s->family = &kv_family_coef;
    s->params = c;
    s->together = 1;
    s->tile_bytes = (c->about.string_bytes + 1) * KV_TILE_TOKENS;
}

void kv_store_put_string(const struct kv_store *s, size_t t,
                         const uint8_t *string, uint8_t *tile)
{
    for (size_t i = 0; i < kv_coefs_of(s)->about.string_bytes; i++)
        tile[(i + 1) * KV_TILE_TOKENS + kv_coef_at(t)] = string[i];
}

static const struct kv_coef_loops *loops(void)
{
#ifdef __x86_64__
    if (kv_level_get() >= KV_LEVEL_AVX2)
        return &kv_coef_loops_avx2;
#endif
    return &kv_coef_loops_c;
}

/* ---- exact --------------------------------------------------------------- */

size_t kv_coef_query_bytes(const struct kv_store *s)
{
    const struct kv_coefs *c = kv_coefs_of(s);
    const size_t n = c->about.rope ? s->head_dim : c->most;

    return n * KV_TILE_ROWS * sizeof(float);
}

/* turned: [rows][padded], the queries' coefficients and their product with the
 * mean. */
static void transform(const struct kv_store *s, size_t head, const float *q,
                      size_t rows, float *turned)
{
    const struct kv_coef_head *h = &kv_coefs_of(s)->head[head];

    memset(turned, 0, rows * h->padded * sizeof(*turned));
    kv_tile_loops()->add(KV_FLOAT_32, false, h->matrix, s->head_dim, h->padded,
                         q, s->head_dim, rows, turned);
}

void kv_coef_prepare(const struct kv_store *s, size_t head, const float *q,
                     size_t rows, void *query)
{
    const struct kv_coefs *c = kv_coefs_of(s);
    const struct kv_coef_head *h = &c->head[head];
    float *turned, *to = query;

    if (c->about.rope) {
        kv_exact_prepare(s, head, q, rows, query);
        return;
    }
    turned = kv_alloc(rows, h->padded * sizeof(*turned));
    transform(s, head, q, rows, turned);
    for (size_t j = 0; j <= h->n; j++)
        for (size_t r = 0; r < rows; r++)
            to[j * rows + r] = turned[r * h->padded + j];
    free(turned);
}

static void turn(const struct kv_store *s, size_t head, const uint8_t *tile,
                 size_t part, float *x)
{
    kv_tiles_rope_turn(kv_coefs_of(s)->about.rope,
                       kv_store_position(s, head, tile) + part * KV_TILE_PART,
                       x);
}

void kv_coef_turn(const struct kv_store *s, size_t head, const uint8_t *tile,
                  size_t part, float *x, const float *q, size_t rows,
                  float *score, size_t stride)
{
    turn(s, head, tile, part, x);
    kv_tile_loops()->dot(KV_FLOAT_32, false, x, s->head_dim, q, rows, score,
                         stride);
}

/* Keys before RoPE: y [n + 1][32] to channels x [head_dim][32]. */
static void channels(const struct kv_coef_head *h, size_t d, const float *y,
                     float *x)
{
    for (size_t i = 0; i < d; i += CHANNELS)
        kv_tile_loops()->dot(KV_FLOAT_32, false, y, h->n + 1,
                             h->matrix + i * (h->n + 1),
                             d - i < CHANNELS ? d - i : CHANNELS,
                             x + i * KV_TILE_PART, KV_TILE_PART);
}

void kv_coef_turned(const struct kv_store *s, size_t head, const uint8_t *tile,
                    size_t part, const float *y, const float *q, size_t rows,
                    float *score, size_t stride)
{
    _Alignas(64) float x[KV_COEF_MOST * KV_TILE_PART];

    channels(&kv_coefs_of(s)->head[head], s->head_dim, y, x);
    kv_coef_turn(s, head, tile, part, x, q, rows, score, stride);
}

static void scores(const struct kv_store *s, size_t head, const uint8_t *tile,
                   const void *query, size_t rows, float *score, size_t stride)
{
    _Alignas(64) float y[(KV_COEF_MOST + 1) * KV_TILE_PART];
    const struct kv_coefs *c = kv_coefs_of(s);
    const struct kv_coef_head *h = &c->head[head];

    for (size_t i = 0; i < PARTS; i++) {
        float *at = score + i * KV_TILE_PART;

        loops()->expand(h, tile, i, KV_TILE_PART, 1, y);
        if (c->about.rope)
            kv_coef_turned(s, head, tile, i, y, query, rows, at, stride);
        else
            kv_tile_loops()->dot(KV_FLOAT_32, false, y, h->n + 1, query, rows,
                                 at, stride);
    }
}

size_t kv_coef_acc_floats(const struct kv_store *s)
{
    return kv_coefs_of(s)->most;
}

static void gather(const struct kv_store *s, size_t head, const uint8_t *tile,
                   const float *p, size_t stride, size_t rows, float *acc)
{
    _Alignas(64) float y[KV_TILE_PART * (KV_COEF_MOST + KV_COEF_ONE)];
    const struct kv_coefs *c = kv_coefs_of(s);

    memset(y, 0, KV_TILE_PART * c->most * sizeof(*y));
    for (size_t i = 0; i < PARTS; i++) {
        loops()->expand(&c->head[head], tile, i, 1, c->most, y);
        kv_tile_loops()->add(KV_FLOAT_32, false, y, KV_TILE_PART, c->most,
                             p + i * KV_TILE_PART, stride, rows, acc);
    }
}

void kv_coef_finish(const struct kv_store *s, size_t head, const float *acc,
                    size_t rows, float *out)
{
    const struct kv_coefs *c = kv_coefs_of(s);
    const struct kv_coef_head *h = &c->head[head];
    const size_t wide = kv_padded(s->head_dim);
    float *sum = kv_alloc(rows, wide * sizeof(*sum));

    kv_tile_loops()->add(KV_FLOAT_32, false, h->matrix, h->n + 1, wide, acc,
                         c->most, rows, sum);
    for (size_t r = 0; r < rows; r++)
        memcpy(out + r * s->head_dim, sum + r * wide,
               s->head_dim * sizeof(*out));
    free(sum);
}

/* ---- int8 ---------------------------------------------------------------- */

size_t kv_coef_query8_bytes(const struct kv_store *s)
{
    const struct kv_coefs *c = kv_coefs_of(s);
    size_t most = 0;

    for (size_t h = 0; h < s->n_heads; h++) {
        const size_t bytes = query8_bytes(&c->head[h]);

        most = bytes > most ? bytes : most;
    }
    return most;
}

void kv_coef_prepare8(const struct kv_store *s, size_t head, const float *q,
                      size_t rows, void *query)
{
    const struct kv_coef_head *h = &kv_coefs_of(s)->head[head];
    float *turned = kv_alloc(rows, h->padded * sizeof(*turned));

    transform(s, head, q, rows, turned);
    memset(kv_coef_query8_at(query).code, 0, h->n4 * rows); /* between runs */
    for (size_t r = 0; r < rows; r++)
        round_row(h, turned + r * h->padded, r, rows, query);
    free(turned);
}

static void scores8(const struct kv_store *s, size_t head, const uint8_t *tile,
                    const void *query, size_t rows, float *score, size_t stride)
{
    _Alignas(64) uint8_t x[KV_COEF_CODES];
    const struct kv_coef_head *h = &kv_coefs_of(s)->head[head];

    loops()->codes(h, tile, x);
    loops()->dot(h, x, kv_coef_query8_at(query), rows, score, stride);
}

/* Keys before RoPE: channels in integers, which turn as floats. */
static void scores8_turned(const struct kv_store *s, size_t head,
                           const uint8_t *tile, const void *query, size_t rows,
                           float *score, size_t stride)
{
    _Alignas(64) uint8_t code[KV_COEF_CODES];
    _Alignas(64) float x[PARTS][KV_COEF_MOST * KV_TILE_PART];
    const struct kv_coef_head *h = &kv_coefs_of(s)->head[head];
    float some[2 * KV_COEF_PAIRS][PARTS][KV_TILE_PART];
    const size_t d = s->head_dim;

    loops()->codes(h, tile, code);
    for (size_t i = 0; i * KV_COEF_PAIRS < d / 2; i++) {
        const size_t n = 2 * kv_coef_pairs(d, i);

        loops()->dot(h, code, kv_coef_channels8(h, i), n, some[0][0],
                     KV_TILE_TOKENS);
        for (size_t r = 0; r < n; r++)
            for (size_t part = 0; part < PARTS; part++)
                memcpy(x[part] + kv_coef_channel(d, i, r) * KV_TILE_PART,
                       some[r][part], sizeof(some[r][part]));
    }
    for (size_t part = 0; part < PARTS; part++)
        kv_coef_turn(s, head, tile, part, x[part], query, rows,
                     score + part * KV_TILE_PART, stride);
}

static void weigh(const float *p, size_t stride, size_t rows,
                  struct kv_coef_weights *w)
{
    for (size_t r = 0; r < rows; r++, p += stride) {
        int8_t code[KV_TILE_TOKENS];
        float part[16];
        int32_t sum = 0;

        kv_tile_loops()->round8(p, stride, 1, KV_TILE_TOKENS, code,
                                KV_TILE_TOKENS, &w->factor[r]);
        for (size_t t = 0; t < KV_TILE_TOKENS; t += 4)
            memcpy(w->code[r] + kv_coef_at(t), code + t, 4);
        for (size_t t = 0; t < KV_TILE_TOKENS; t++)
            sum += code[t];
        w->bias[r] = -128 * sum;
        for (size_t i = 0; i < 16; i++)
            part[i] = (p[i] + p[16 + i]) + (p[32 + i] + p[48 + i]);
        for (size_t n = 8; n; n /= 2)
            for (size_t i = 0; i < n; i++)
                part[i] += part[n + i];
        w->sum[r] = part[0];
    }
}

static void gather8(const struct kv_store *s, size_t head, const uint8_t *tile,
                    const float *p, size_t stride, size_t rows, float *acc)
{
    _Alignas(64) uint8_t x[KV_COEF_CODES];
    const struct kv_coefs *c = kv_coefs_of(s);
    const struct kv_coef_head *h = &c->head[head];
    struct kv_coef_weights w;

    weigh(p, stride, rows, &w);
    loops()->codes(h, tile, x);
    loops()->add(h, x, &w, rows, acc, c->most);
    for (size_t r = 0; r < rows; r++)
        acc[r * c->most + h->n] += w.sum[r];
}

void kv_coef_finish8(const struct kv_store *s, size_t head, const float *acc,
                     size_t rows, float *out)
{
    const struct kv_coefs *c = kv_coefs_of(s);
    const struct kv_coef_head *h = &c->head[head];
    float *x = kv_alloc(rows, c->most * sizeof(*x));

    memcpy(x, acc, rows * c->most * sizeof(*x));
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < h->n_runs; i++)
            for (size_t j = 0; j < h->run[i].n; j++)
                x[r * c->most + h->run[i].first + j] *= h->run[i].table->step;
    kv_coef_finish(s, head, x, rows, out);
    free(x);
}

/* ---- the family ---------------------------------------------------------- */

static const struct kv_tile_ops *ops8(const struct kv_coefs *c)
{
    static const struct kv_tile_ops plain = {.query_bytes =
                                                 kv_coef_query8_bytes,
                                             .prepare = kv_coef_prepare8,
                                             .scores = scores8,
                                             .acc_floats = kv_coef_acc_floats,
                                             .gather = gather8,
                                             .finish = kv_coef_finish8};
    static const struct kv_tile_ops turned = {.query_bytes =
                                                  kv_coef_query_bytes,
                                              .prepare = kv_coef_prepare,
                                              .scores = scores8_turned};

    if (!c->about.int8)
        return NULL;
#ifdef __x86_64__
    if (kv_level_vnni())
        return c->about.rope ? &kv_coef_turned8_vnni : &kv_coef_int8_vnni;
#endif
    return c->about.rope ? &turned : &plain;
}

static const struct kv_tile_ops *ops(const struct kv_store *s,
                                     enum kv_path path)
{
    static const struct kv_tile_ops exact = {
        .query_bytes = kv_coef_query_bytes,
        .prepare = kv_coef_prepare,
        .scores = scores,
        .acc_floats = kv_coef_acc_floats,
        .gather = gather,
        .finish = kv_coef_finish,
    };

    if (path == KV_PATH_INT8)
        return ops8(kv_coefs_of(s));
#ifdef __x86_64__
    if (kv_level_vnni())
        return &kv_coef_exact_vnni;
#endif
    return &exact;
}

/* Coefficients become channels. */
static void expand_channels(const struct kv_store *s, size_t head,
                            const uint8_t *tile, size_t part, float *x)
{
    _Alignas(64) float room[PARTS * (KV_COEF_MOST + 1) * KV_TILE_PART];
    const struct kv_coefs *c = kv_coefs_of(s);
    const struct kv_coef_head *h = &c->head[head];
    const size_t d = s->head_dim, wide = kv_padded(d);
    float *y = room;

#ifdef __x86_64__
    if (kv_level_vnni()) {
        kv_coef_expand_vnni(s, head, tile, room);
        y = room + part * (h->n + 1) * KV_TILE_PART;
    } else
#endif
        loops()->expand(h, tile, part, KV_TILE_PART, 1, y);
    if (c->about.values) {
        kv_gemm_a_trans(KV_TILE_PART, wide, h->n + 1, 1, y, KV_TILE_PART,
                        h->matrix, wide, 0, x, wide);
    } else if (!c->about.rope) {
        kv_gemm(false, d, KV_TILE_PART, h->n + 1, 1, h->matrix, h->padded, y,
                KV_TILE_PART, 0, x, KV_TILE_PART);
    } else {
        channels(h, d, y, x);
        turn(s, head, tile, part, x);
    }
}

const struct kv_family kv_family_coef = {
    .name = "coef", .ops = ops, .expand = expand_channels};
