/* Path exact: floats are looked up byte by byte. */
#include "kernels/tiles_coef_vnni.h"

enum { BLOCK = 16 }; /* coefficients at a time */

/* n <= BLOCK coefficients of a run from the i-th on: planes [n][4] lines. */
static void planes_of(const struct kv_store *s, size_t head,
                      const struct kv_coef_run *run, size_t i, size_t n,
                      const uint8_t *tile, uint8_t *planes)
{
    for (size_t b = 0; b < 4; b++)
        kv_coef_look_up_vnni(s, head, run, run->table->plane[b],
                             b == 3 ? KV_SIGN_FLOAT : KV_SIGN_NONE, tile, i,
                             i + n, planes + b * LINE, 4 * LINE);
}

static size_t block_of(const struct kv_coef_run *run, size_t i)
{
    return run->n - i < BLOCK ? run->n - i : BLOCK;
}

void kv_coef_expand_vnni(const struct kv_store *s, size_t head,
                         const uint8_t *tile, float *y)
{
    const struct kv_coef_head *h = &kv_coefs_of(s)->head[head];
    _Alignas(LINE) uint8_t planes[BLOCK * 4 * LINE];
    float *const second = y + (h->n + 1) * KV_TILE_PART;

    for (size_t r = 0; r < h->n_runs; r++)
        for (size_t i = 0; i < h->run[r].n; i += BLOCK) {
            const size_t n = block_of(&h->run[r], i);

            planes_of(s, head, &h->run[r], i, n, tile, planes);
            for (size_t j = 0; j < n; j++) {
                const size_t at = (h->run[r].first + i + j) * KV_TILE_PART;
                __m512i x[4];

                weave(planes + j * 4 * LINE, x);
                _mm512_store_si512(y + at, x[0]);
                _mm512_store_si512(y + at + 16, x[1]);
                _mm512_store_si512(second + at, x[2]);
                _mm512_store_si512(second + at + 16, x[3]);
            }
        }
    for (size_t t = 0; t < KV_TILE_PART; t++)
        y[h->n * KV_TILE_PART + t] = second[h->n * KV_TILE_PART + t] = 1;
}

static void scores(const struct kv_store *s, size_t head, const uint8_t *tile,
                   const void *query, size_t rows, float *score, size_t stride)
{
    _Alignas(LINE) float y[2 * (KV_COEF_MOST + 1) * KV_TILE_PART];
    const struct kv_coefs *c = kv_coefs_of(s);
    const struct kv_coef_head *h = &c->head[head];

    kv_coef_expand_vnni(s, head, tile, y);
    for (size_t i = 0; i < 2; i++) {
        const float *part = y + i * (h->n + 1) * KV_TILE_PART;
        float *at = score + i * KV_TILE_PART;

        if (c->about.rope)
            kv_coef_turned(s, head, tile, i, part, query, rows, at, stride);
        else
            kv_tile_loops()->dot(KV_FLOAT_32, false, part, h->n + 1, query,
                                 rows, at, stride);
    }
}

/* acc: [rows][most][16], of which lane l is the sum over tokens l, l + 16, ..*/
static size_t acc_floats(const struct kv_store *s)
{
    return kv_coefs_of(s)->most * 16;
}

ALWAYS_INLINE void add_rows(const uint8_t *planes, size_t n, size_t rows,
                            const float *p, size_t stride, float *acc,
                            size_t row)
{
    __m512 w[ROWS][4];

    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t k = 0; k < 4; k++)
        w[r][k] = _mm512_loadu_ps(p + r * stride + 16 * k);
    for (size_t j = 0; j < n; j++) {
        __m512i x[4];

        weave(planes + j * 4 * LINE, x);
        UNROLL
        for (size_t r = 0; r < rows; r++) {
            float *at = acc + r * row + j * 16;
            __m512 sum = _mm512_load_ps(at);

            UNROLL
            for (size_t k = 0; k < 4; k++)
                sum = _mm512_fmadd_ps(w[r][k], _mm512_castsi512_ps(x[k]), sum);
            _mm512_store_ps(at, sum);
        }
    }
}

static void add(const uint8_t *planes, size_t n, size_t rows, const float *p,
                size_t stride, float *acc, size_t row)
{
    switch (rows) {
#define CASE(R)                                      \
    case R:                                          \
        add_rows(planes, n, R, p, stride, acc, row); \
        break;
        EVERY_ROWS(CASE)
#undef CASE
    }
}

static void gather(const struct kv_store *s, size_t head, const uint8_t *tile,
                   const float *p, size_t stride, size_t rows, float *acc)
{
    _Alignas(LINE) uint8_t planes[BLOCK * 4 * LINE];
    const struct kv_coef_head *h = &kv_coefs_of(s)->head[head];
    const size_t row = acc_floats(s);

    for (size_t i = 0; i < h->n_runs; i++)
        for (size_t j = 0; j < h->run[i].n; j += BLOCK) {
            const size_t n = block_of(&h->run[i], j);

            planes_of(s, head, &h->run[i], j, n, tile, planes);
            add(planes, n, rows, p, stride, acc + (h->run[i].first + j) * 16,
                row);
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
    float y[ROWS * (KV_COEF_MOST + KV_COEF_ONE)];
    const size_t most = kv_coefs_of(s)->most;

    for (size_t i = 0; i < rows * most; i++)
        y[i] = _mm512_reduce_add_ps(_mm512_load_ps(acc + i * 16));
    kv_coef_finish(s, head, y, rows, out);
}

const struct kv_tile_ops kv_coef_exact_vnni = {
    .query_bytes = kv_coef_query_bytes,
    .prepare = kv_coef_prepare,
    .scores = scores,
    .acc_floats = acc_floats,
    .gather = gather,
    .finish = finish,
};
