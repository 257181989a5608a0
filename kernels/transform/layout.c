/* A store's tables, places, matrices and queries (impl.h). */
#include "kernels/tiles/impl.h"
#include "kernels/transform/impl.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

/* ---- tables -------------------------------------------------------------- */

/* Folds the table to entries; its map promises that states of one entry are
 * equal. */
static void fold(const struct kv_transform_coef *c, float *folded)
{
    for (unsigned s = 0; s < KV_TRELLIS_STATES; s++)
        folded[kv_trellis_entry(c->map, s)] = c->table[s];
    for (unsigned s = 0; s < KV_TRELLIS_STATES; s++)
        assert(folded[kv_trellis_entry(c->map, s)] == c->table[s]);
}

static void fill_numbers(struct kv_transform_table *t,
                         const struct kv_transform_coef *c)
{
    float folded[KV_TRELLIS_ENTRIES] = {0}, max = 0;

    fold(c, folded);
    for (size_t b = 0; b < 4; b++)
        t->plane[b] = kv_lines(KV_TRELLIS_ENTRIES, 1);
    t->code = kv_lines(KV_TRELLIS_ENTRIES, 1);
    for (size_t i = 0; i < KV_TRELLIS_ENTRIES; i++)
        max = fmaxf(max, fabsf(folded[i]));
    t->scale = max > 0 ? max / 127 : 1;
    for (size_t i = 0; i < KV_TRELLIS_ENTRIES; i++) {
        uint32_t u;

        memcpy(&u, &folded[i], sizeof(u));
        for (size_t b = 0; b < 4; b++)
            t->plane[b][i] = (uint8_t)(u >> 8 * b);
        t->code[i] = (uint8_t)(rintf(folded[i] / t->scale) + 128);
    }
}

static void fill_table(struct kv_transform_table *t,
                       const struct kv_transform_coef *c)
{
    const struct kv_trellis_map *map = c->map;

    t->from = c->table;
    t->map = map;
    fill_numbers(t, c);
    for (unsigned shift = 0; shift < 8; shift++) {
        const unsigned first = shift < 4 ? 0 : 4;

        for (unsigned i = 0; i < map->bits; i++) {
            const uint64_t two = (uint64_t)map->of[i] << shift;

            t->last[shift] |= two % 256 << 8 * (7 - i);
            t->before[shift] |= two / 256 << 8 * (7 - i);
        }
        for (unsigned i = 0; i < 3; i++)
            for (unsigned x = 0; x < 16; x++)
                t->of_half[shift][i][x] = (uint8_t)kv_trellis_entry(
                    map, x << (first + 4 * i) >> shift);
    }
}

static void fill_tables(struct kv_transform *c)
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
        assert(c->table[t].map == c->about.coef[i].map);
    }
}

/* ---- heads --------------------------------------------------------------- */

/* The place of a coefficient's state; line 0 of a tile is zeros. */
static struct kv_transform_place place_of(const struct kv_transform_coef *c)
{
    return (struct kv_transform_place){
        .line = (uint32_t)((c->end + 7) / 8 * KV_TILE_TOKENS),
        .shift = (unsigned)(8 - c->end % 8) % 8};
}

/* Fills in a head: sorts its coefficients by table, then by shift, and
 * otherwise keeps the order; order: [n]. */
static void fill_head(const struct kv_transform *c,
                      const struct kv_transform_coef *coef, size_t n,
                      size_t *order, struct kv_transform_head *h)
{
    size_t done = 0;

    h->n = n;
    h->padded = kv_round_up(n + 1, KV_TRANSFORM_PAD);
    h->place = kv_alloc(n, sizeof(*h->place));
    h->run = kv_alloc(c->n_tables, sizeof(*h->run));
    for (size_t t = 0; t < c->n_tables; t++) {
        const size_t first = done;

        for (unsigned shift = 0; shift < 8; shift++)
            for (size_t i = 0; i < n; i++) {
                const struct kv_transform_place place = place_of(&coef[i]);

                if (coef[i].table == c->table[t].from && place.shift == shift) {
                    h->place[done] = place;
                    order[done++] = i;
                }
            }
        if (done > first)
            h->run[h->n_runs++] = (struct kv_transform_run){
                .table = &c->table[t], .first = first, .n = done - first};
    }
}

/* x: [n + 1], the entries of channel i for each coefficient, and for the
 * mean. */
static void channel(const struct kv_transform_head *h,
                    const struct kv_transform_coef *coef, const size_t *order,
                    const float *mean, size_t i, float *x)
{
    for (size_t j = 0; j < h->n; j++)
        x[j] = coef[order[j]].scale * coef[order[j]].inverse[i];
    x[h->n] = mean[i];
}

static void fill_matrix(const struct kv_transform *c,
                        const struct kv_transform_coef *coef,
                        const size_t *order, const float *mean,
                        struct kv_transform_head *h)
{
    const size_t d = c->about.head_dim, wide = kv_padded(d);
    float x[KV_TRANSFORM_MAX + 1];

    h->matrix = kv_lines(wide * (h->padded + KV_TRANSFORM_PAD), sizeof(float));
    for (size_t i = 0; i < d; i++) {
        const size_t r = i % KV_TRANSFORM_CHANNELS, first = i - r;
        const size_t rows = kv_min(d - first, KV_TRANSFORM_CHANNELS);

        channel(h, coef, order, mean, i, x);
        for (size_t j = 0; j <= h->n; j++)
            if (c->about.values)
                h->matrix[j * wide + i] = x[j];
            else if (!c->about.rope)
                h->matrix[i * h->padded + j] = x[j];
            else
                h->matrix[first * (h->n + 1) + j * rows + r] = x[j];
    }
}

static void fill_channels(const struct kv_transform_coef *coef,
                          const size_t *order, const float *mean, size_t d,
                          struct kv_transform_head *h)
{
    enum { ROWS = KV_TRANSFORM_CHANNELS8 };
    const size_t groups = kv_transform_groups8(d), half = d / 2;
    float x[KV_TRANSFORM_MAX + 1];

    h->channel_bytes = kv_transform_query8_bytes(h);
    h->channel = kv_lines(2 * groups, h->channel_bytes);
    for (size_t i = 0; i < d; i++) {
        const size_t at = i % half;

        channel(h, coef, order, mean, i, x);
        kv_transform_round_row(h, x, at % ROWS, ROWS,
                               h->channel + (i / half * groups + at / ROWS) *
                                                h->channel_bytes);
    }
}

struct kv_transform *kv_transform_new(const struct kv_transform_about *a)
{
    struct kv_transform *c = kv_alloc(1, sizeof(*c));
    size_t order[KV_TRANSFORM_MAX], at = 0;

    c->about = *a;
    c->head = kv_alloc(a->n_heads, sizeof(*c->head));
    fill_tables(c);
    for (size_t h = 0; h < a->n_heads; at += a->n[h++]) {
        struct kv_transform_head *head = &c->head[h];

        assert(a->n[h] <= KV_TRANSFORM_MAX && a->head_dim <= KV_TRANSFORM_MAX);
        assert(!a->rope || a->head_dim % 2 == 0);
        fill_head(c, a->coef + at, a->n[h], order, head);
        fill_matrix(c, a->coef + at, order, a->mean + h * a->head_dim, head);
        if (a->rope && a->int8)
            fill_channels(a->coef + at, order, a->mean + h * a->head_dim,
                          a->head_dim, head);
        c->max = kv_max(c->max, head->padded);
    }
    c->about.n = NULL; /* the caller's */
    c->about.coef = NULL;
    c->about.mean = NULL;
    return c;
}

void kv_transform_free(struct kv_transform *c)
{
    if (!c)
        return;
    for (size_t t = 0; t < c->n_tables; t++) {
        for (size_t b = 0; b < 4; b++)
            free(c->table[t].plane[b]);
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

/* ---- int8 queries -------------------------------------------------------- */

enum { PER_ROW = 64 }; /* bytes of one number for each row */
_Static_assert(KV_TILE_ROWS * sizeof(float) <= PER_ROW, "query8");

struct kv_transform_query8 kv_transform_query8_at(const void *query)
{
    char *at = (char *)query;

    return (struct kv_transform_query8){
        .scale = (float *)(void *)at,
        .bias = (int32_t *)(void *)(at + PER_ROW),
        .constant = (float *)(void *)(at + 2 * PER_ROW),
        .code = (int8_t *)(at + 3 * PER_ROW)};
}

size_t kv_transform_query8_bytes(const struct kv_transform_head *h)
{
    return 3 * PER_ROW + kv_round_up(h->n * KV_TILE_ROWS, 64);
}

void kv_transform_round_row(const struct kv_transform_head *h, const float *x,
                            size_t r, size_t rows, void *query)
{
    const struct kv_transform_query8 to = kv_transform_query8_at(query);
    float scaled[KV_TRANSFORM_MAX] = {0};
    int8_t code[KV_TRANSFORM_MAX];
    int32_t sum = 0;

    for (size_t i = 0; i < h->n_runs; i++)
        for (size_t j = h->run[i].first; j < h->run[i].first + h->run[i].n; j++)
            scaled[j] = x[j] * h->run[i].table->scale;
    kv_tile_loops()->round8(scaled, KV_TRANSFORM_MAX, 1, kv_round_up(h->n, 16),
                            code, KV_TRANSFORM_MAX, &to.scale[r]);
    for (size_t j = 0; j < kv_round_up(h->n, 4); j++) {
        to.code[(j / 4 * rows + r) * 4 + j % 4] = code[j];
        sum += code[j];
    }
    to.bias[r] = -128 * sum;
    to.constant[r] = x[h->n];
}

/* ---- stores -------------------------------------------------------------- */

void kv_store_transform(struct kv_store *s, const struct kv_transform *c)
{
    s->family = &kv_family_transform;
    s->params = c;
    s->together = 1;
    s->tile_bytes = (c->about.bitstream_bytes + 1) * KV_TILE_TOKENS;
}

void kv_store_put_bitstream(const struct kv_store *s, size_t t,
                            const uint8_t *bitstream, uint8_t *tile)
{
    for (size_t i = 0; i < kv_transform_of(s)->about.bitstream_bytes; i++)
        tile[(i + 1) * KV_TILE_TOKENS + kv_transform_at(t)] = bitstream[i];
}
