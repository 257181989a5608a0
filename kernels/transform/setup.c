/* Family "transform" made ready (tiles_coef_impl.h): of each table its bytes
 * and codes, of each coefficient its place, of each head its matrix. */
#include "kernels/transform/impl.h"
#include "lib/base/alloc.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The table by entries, as its map promises that it can be. */
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
    float folded[KV_TRELLIS_ENTRIES] = {0}, most = 0;

    fold(c, folded);
    for (size_t i = 0; i < 4; i++)
        t->plane[i] = kv_lines(KV_TRELLIS_ENTRIES, 1);
    t->code = kv_lines(KV_TRELLIS_ENTRIES, 1);
    for (size_t i = 0; i < KV_TRELLIS_ENTRIES; i++)
        most = fmaxf(most, fabsf(folded[i]));
    t->scale = most > 0 ? most / 127 : 1;
    for (size_t i = 0; i < KV_TRELLIS_ENTRIES; i++) {
        uint32_t u;

        memcpy(&u, &folded[i], sizeof(u));
        for (size_t b = 0; b < 4; b++)
            t->plane[b][i] = (uint8_t)(u >> 8 * b);
        t->code[i] = (uint8_t)(rintf(folded[i] / t->scale) + 128);
    }
}

static void fill_maps(struct kv_transform_table *t,
                      const struct kv_trellis_map *map)
{
    t->map = map;
    t->entry = kv_alloc(KV_TRELLIS_STATES, 1);
    for (unsigned s = 0; s < KV_TRELLIS_STATES; s++)
        t->entry[s] = (uint8_t)kv_trellis_entry(map, s);
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

static void fill_table(struct kv_transform_table *t,
                       const struct kv_transform_coef *c)
{
    t->from = c->table;
    fill_numbers(t, c);
    fill_maps(t, c->map);
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

static unsigned shift_of(const struct kv_transform_coef *c)
{
    return (unsigned)(8 - c->end % 8) % 8;
}

static struct kv_transform_place place_of(const struct kv_transform_coef *c)
{
    const size_t last = (c->end - 1) / 8; /* a tile begins with a line of 0 */

    return (struct kv_transform_place){
        .line = (uint32_t)((last + 1) * KV_TILE_TOKENS), .shift = shift_of(c)};
}

/* By table, then by shift, else in their order: order [n]. */
static void fill_head(const struct kv_transform *c,
                      const struct kv_transform_coef *coef, size_t n,
                      size_t *order, struct kv_transform_head *h)
{
    size_t done = 0;

    h->n = n;
    h->padded =
        (n + 1 + KV_TRANSFORM_PAD - 1) / KV_TRANSFORM_PAD * KV_TRANSFORM_PAD;
    h->place = kv_alloc(n, sizeof(*h->place));
    h->run = kv_alloc(c->n_tables, sizeof(*h->run));
    for (size_t t = 0; t < c->n_tables; t++) {
        struct kv_transform_run *run = &h->run[h->n_runs];

        *run = (struct kv_transform_run){
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
        h->n4 += (run->n + KV_TRANSFORM_FOUR - 1) / KV_TRANSFORM_FOUR *
                 KV_TRANSFORM_FOUR;
        h->n_runs += run->n > 0;
    }
}

/* Row j of the inverse, channel i, and the mean as row n. */
static float element(const struct kv_transform_coef *coef, const size_t *order,
                     size_t n, const float *mean, size_t j, size_t i)
{
    if (j == n)
        return mean[i];
    return coef[order[j]].scale * coef[order[j]].inverse[i];
}

static void fill_matrix(const struct kv_transform *c,
                        const struct kv_transform_coef *coef,
                        const size_t *order, const float *mean,
                        struct kv_transform_head *h)
{
    const size_t d = c->about.head_dim, wide = kv_padded(d);

    h->matrix = kv_lines(wide * (h->padded + KV_TRANSFORM_PAD), sizeof(float));
    for (size_t j = 0; j <= h->n; j++)
        for (size_t i = 0; i < d; i++) {
            const float x = element(coef, order, h->n, mean, j, i);
            const size_t first =
                i / KV_TRANSFORM_CHANNELS * KV_TRANSFORM_CHANNELS;
            const size_t rows = kv_min(d - first, KV_TRANSFORM_CHANNELS);

            if (c->about.values)
                h->matrix[j * wide + i] = x;
            else if (!c->about.rope)
                h->matrix[i * h->padded + j] = x;
            else
                h->matrix[first * (h->n + 1) + j * rows + i - first] = x;
        }
}

static void fill_channels(const struct kv_transform *c,
                          const struct kv_transform_coef *coef,
                          const size_t *order, const float *mean,
                          struct kv_transform_head *h)
{
    const size_t d = c->about.head_dim;
    const size_t groups = (d / 2 + KV_TRANSFORM_PAIRS - 1) / KV_TRANSFORM_PAIRS;
    float *rotated = kv_alloc(h->padded, sizeof(*rotated));

    h->channel_bytes = kv_transform_query8_size(h);
    h->channel = kv_lines(groups, h->channel_bytes);
    for (size_t i = 0; i < groups; i++) {
        const size_t rows = 2 * kv_transform_pairs(d, i);

        for (size_t r = 0; r < rows; r++) {
            for (size_t j = 0; j <= h->n; j++)
                rotated[j] = element(coef, order, h->n, mean, j,
                                     kv_transform_channel(d, i, r));
            kv_transform_round_row(h, rotated, r, rows,
                                   h->channel + i * h->channel_bytes);
        }
    }
    free(rotated);
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

        assert(a->n[h] <= a->head_dim && a->head_dim <= KV_TRANSFORM_MAX);
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

void kv_transform_free(struct kv_transform *c)
{
    if (!c)
        return;
    for (size_t t = 0; t < c->n_tables; t++) {
        for (size_t i = 0; i < 4; i++)
            free(c->table[t].plane[i]);
        free(c->table[t].code);
        free(c->table[t].entry);
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
