/* Path exact: floats are looked up byte by byte.  Coefficients of real models
 * have many tables and few coefficients of each, which end anywhere. */
#include "kernels/transform/avx512.h"

enum { BLOCK = 16 }; /* coefficients at a time */

/* n coefficients of a table, each 32 tokens to y and 32 to second, `apart`
 * floats apart.  wide: a constant. */
ALWAYS_INLINE void expand_some(const struct kv_store *s,
                               const struct kv_transform_place *place,
                               const struct kv_transform_table *table,
                               const uint8_t *tile, size_t n, float *y,
                               float *second, size_t apart, bool wide)
{
    const uint8_t *later = tile + TILES_AHEAD * s->tile_bytes;
    const size_t lines = wide ? 4 : 2;
    __m512i t[4][4];

    UNROLL
    for (size_t b = 0; b < 4; b++)
        UNROLL
    for (size_t j = 0; j < lines; j++)
        t[b][j] = _mm512_load_si512(table->plane[b] + LINE * j);
    for (size_t j = 0; j < n; j++, y += apart, second += apart) {
        const __m512i entry = entries_of(matrices_of(table, place[j].shift),
                                         tile + place[j].line);
        __m512i x[4];

        __builtin_prefetch(later + place[j].line, 0, 2);
        weave(look(t[0], entry, wide), look(t[1], entry, wide),
              look(t[2], entry, wide), look(t[3], entry, wide), x);
        _mm512_store_si512(y, x[0]);
        _mm512_store_si512(y + 16, x[1]);
        _mm512_store_si512(second, x[2]);
        _mm512_store_si512(second + 16, x[3]);
    }
}

/* n coefficients of a run from the i-th on. */
static void expand_run(const struct kv_store *s, size_t head,
                       const struct kv_transform_run *run, size_t i, size_t n,
                       const uint8_t *tile, float *y, float *second,
                       size_t apart)
{
    const struct kv_transform_place *place =
        kv_transform_of(s)->head[head].place + run->first + i;

    if (is_wide(run->table))
        expand_some(s, place, run->table, tile, n, y, second, apart, true);
    else
        expand_some(s, place, run->table, tile, n, y, second, apart, false);
}

void kv_transform_expand_vnni(const struct kv_store *s, size_t head,
                              const uint8_t *tile, float *y)
{
    const struct kv_transform_head *h = &kv_transform_of(s)->head[head];
    float *const second = y + (h->n + 1) * KV_TILE_PART;

    for (size_t r = 0; r < h->n_runs; r++) {
        const size_t at = h->run[r].first * KV_TILE_PART;

        expand_run(s, head, &h->run[r], 0, h->run[r].n, tile, y + at,
                   second + at, KV_TILE_PART);
    }
    for (size_t t = 0; t < KV_TILE_PART; t++)
        y[h->n * KV_TILE_PART + t] = second[h->n * KV_TILE_PART + t] = 1;
}

static void qk(const struct kv_store *s, size_t head, const uint8_t *tile,
               const void *query, size_t rows, float *score, size_t stride)
{
    _Alignas(LINE) float y[2 * (KV_TRANSFORM_MAX + 1) * KV_TILE_PART];
    const struct kv_transform *c = kv_transform_of(s);
    const struct kv_transform_head *h = &c->head[head];

    kv_transform_expand_vnni(s, head, tile, y);
    for (size_t i = 0; i < 2; i++) {
        const float *part = y + i * (h->n + 1) * KV_TILE_PART;
        float *at = score + i * KV_TILE_PART;

        if (c->about.rope)
            kv_transform_qk_rotated(s, head, tile, i, part, query, rows, at,
                                    stride);
        else
            kv_tile_loops()->dot(KV_FLOAT_32, false, part, 1, h->n + 1, query,
                                 rows, at, stride);
    }
}

/* acc: [rows][most][16], of which lane l is the sum over tokens l, l + 16, ..*/
static size_t acc_floats(const struct kv_store *s)
{
    return kv_transform_of(s)->most * 16;
}

/* y: [n][64] */
ALWAYS_INLINE void add_rows(const float *y, size_t n, size_t rows,
                            const float *p, size_t stride, float *acc,
                            size_t row)
{
    __m512 w[ROWS][4];

    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t k = 0; k < 4; k++)
        w[r][k] = _mm512_loadu_ps(p + r * stride + 16 * k);
    for (size_t j = 0; j < n; j++, y += LINE)
        UNROLL
    for (size_t r = 0; r < rows; r++) {
        float *at = acc + r * row + j * 16;
        __m512 sum = _mm512_load_ps(at);

        UNROLL
        for (size_t k = 0; k < 4; k++)
            sum = _mm512_fmadd_ps(w[r][k], _mm512_load_ps(y + 16 * k), sum);
        _mm512_store_ps(at, sum);
    }
}

static void add(const float *y, size_t n, size_t rows, const float *p,
                size_t stride, float *acc, size_t row)
{
    switch (rows) {
#define CASE(R)                                 \
    case R:                                     \
        add_rows(y, n, R, p, stride, acc, row); \
        break;
        EVERY_ROWS(CASE)
#undef CASE
    }
}

static void pv(const struct kv_store *s, size_t head, const uint8_t *tile,
               const float *p, size_t stride, size_t rows, float *acc)
{
    _Alignas(LINE) float y[BLOCK * LINE];
    const struct kv_transform_head *h = &kv_transform_of(s)->head[head];
    const size_t row = acc_floats(s);

    for (size_t i = 0; i < h->n_runs; i++)
        for (size_t j = 0; j < h->run[i].n; j += BLOCK) {
            const size_t left = h->run[i].n - j;
            const size_t n = left < BLOCK ? left : BLOCK;

            expand_run(s, head, &h->run[i], j, n, tile, y, y + KV_TILE_PART,
                       LINE);
            add(y, n, rows, p, stride, acc + (h->run[i].first + j) * 16, row);
        }
    for (size_t r = 0; r < rows; r++) {
        float *at = acc + r * row + h->n * 16;
        __m512 sum = _mm512_load_ps(at);

        for (size_t k = 0; k < 4; k++)
            sum = _mm512_add_ps(sum, _mm512_loadu_ps(p + r * stride + 16 * k));
        _mm512_store_ps(at, sum);
    }
}

static void finish(const struct kv_store *s, size_t head, const float *acc,
                   size_t rows, float *out)
{
    float y[ROWS * (KV_TRANSFORM_MAX + KV_TRANSFORM_PAD)];
    const size_t most = kv_transform_of(s)->most;

    for (size_t i = 0; i < rows * most; i++)
        y[i] = _mm512_reduce_add_ps(_mm512_load_ps(acc + i * 16));
    kv_transform_finish(s, head, y, rows, out);
}

const struct kv_tile_ops kv_transform_exact_vnni = {
    .query_bytes = kv_transform_query_bytes,
    .prepare = kv_transform_prepare,
    .qk = qk,
    .acc_floats = acc_floats,
    .pv = pv,
    .finish = finish,
};
