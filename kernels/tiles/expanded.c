/* Exact operations of any family, on the values that its expand() returns. */
#include "kernels/gemm.h"
#include "kernels/tiles/impl.h"

#include <string.h>

enum { MAX_DIM = 512, PARTS = KV_TILE_TOKENS / KV_TILE_PART };

/* ---- a few queries --------------------------------------------------------
 */

size_t kv_exact_query_bytes(const struct kv_store *s)
{
    return s->head_dim * KV_TILE_ROWS * sizeof(float);
}

void kv_exact_prepare(const struct kv_store *s, size_t head, const float *q,
                      size_t rows, void *query)
{
    float *rotated = query;

    (void)head;
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < s->head_dim; c++)
            rotated[c * rows + r] = q[r * s->head_dim + c];
}

size_t kv_exact_acc_floats(const struct kv_store *s)
{
    return kv_padded(s->head_dim);
}

void kv_exact_finish(const struct kv_store *s, size_t head, const float *acc,
                     size_t rows, float *out)
{
    (void)head;
    for (size_t r = 0; r < rows; r++)
        memcpy(out + r * s->head_dim, acc + r * kv_padded(s->head_dim),
               s->head_dim * sizeof(*out));
}

void kv_exact_qk(const struct kv_store *s, size_t head, const uint8_t *tile,
                 const void *query, size_t rows, float *score, size_t stride)
{
    _Alignas(64) float x[MAX_DIM * KV_TILE_PART];

    for (size_t i = 0; i < PARTS; i++) {
        s->family->expand(s, head, tile, i, x);
        kv_tile_loops()->dot(KV_FLOAT_32, false, x, 1, s->head_dim, query, rows,
                             score + i * KV_TILE_PART, stride);
    }
}

void kv_exact_pv(const struct kv_store *s, size_t head, const uint8_t *tile,
                 const float *p, size_t stride, size_t rows, float *acc)
{
    _Alignas(64) float x[MAX_DIM * KV_TILE_PART];

    for (size_t i = 0; i < PARTS; i++) {
        s->family->expand(s, head, tile, i, x);
        kv_tile_loops()->add(KV_FLOAT_32, false, x, KV_TILE_PART,
                             kv_padded(s->head_dim), p + i * KV_TILE_PART,
                             stride, rows, acc);
    }
}

const struct kv_tile_ops *kv_tiles_expanded(const struct kv_store *s)
{
    static const struct kv_tile_ops ops = {
        .query_bytes = kv_exact_query_bytes,
        .prepare = kv_exact_prepare,
        .qk = kv_exact_qk,
        .acc_floats = kv_exact_acc_floats,
        .pv = kv_exact_pv,
        .finish = kv_exact_finish,
    };

    (void)s;
    return &ops;
}

/* ---- many queries ---------------------------------------------------------
 */

static size_t many_query_bytes(const struct kv_store *s)
{
    return s->head_dim * KV_TILE_MANY * sizeof(float);
}

static void many_prepare(const struct kv_store *s, size_t head, const float *q,
                         size_t rows, void *query)
{
    (void)head;
    memcpy(query, q, rows * s->head_dim * sizeof(*q));
}

static void many_qk(const struct kv_store *s, size_t head, const uint8_t *tile,
                    const void *query, size_t rows, float *score, size_t stride)
{
    _Alignas(64) float x[MAX_DIM * KV_TILE_PART];
    const size_t d = s->head_dim;

    for (size_t i = 0; i < PARTS; i++) {
        s->family->expand(s, head, tile, i, x);
        kv_gemm(false, rows, KV_TILE_PART, d, 1, query, d, x, KV_TILE_PART, 0,
                score + i * KV_TILE_PART, stride);
    }
}

static void many_pv(const struct kv_store *s, size_t head, const uint8_t *tile,
                    const float *p, size_t stride, size_t rows, float *acc)
{
    _Alignas(64) float x[MAX_DIM * KV_TILE_TOKENS];
    const size_t padded = kv_padded(s->head_dim);

    for (size_t i = 0; i < PARTS; i++)
        s->family->expand(s, head, tile, i, x + i * KV_TILE_PART * padded);
    kv_gemm(false, rows, padded, KV_TILE_TOKENS, 1, p, stride, x, padded, 1,
            acc, padded);
}

const struct kv_tile_ops kv_tiles_many = {
    .query_bytes = many_query_bytes,
    .prepare = many_prepare,
    .qk = many_qk,
    .acc_floats = kv_exact_acc_floats,
    .pv = many_pv,
    .finish = kv_exact_finish,
};
