/* Path int8 with AVX-512 VNNI and VBMI: ROWS rows at a time by the order of the
 * tile's codes, each a file: tiles_codebook_{shared,own,wide}_vnni.c. */
#include "kernels/codebook/avx512.h"
#include "kernels/simd/lanes_avx512.h"

static kv_codebook_some_qk_fn *const some_qk[] = {
    [KV_ORDER_SHARED] = kv_codebook_qk_shared,
    [KV_ORDER_OWN] = kv_codebook_qk_own,
    [KV_ORDER_WIDE] = kv_codebook_qk_wide,
};

static kv_codebook_some_pv_fn *const some_pv[] = {
    [KV_ORDER_SHARED] = kv_codebook_pv_shared,
    [KV_ORDER_OWN] = kv_codebook_pv_own,
    [KV_ORDER_WIDE] = kv_codebook_pv_wide,
};

static size_t rows_from(size_t r, size_t rows)
{
    return rows - r < ROWS ? rows - r : ROWS;
}

/* What the sums are made from: the tile, or its entries in x. */
static const uint8_t *ready(const struct kv_codebook *b, size_t head,
                            const uint8_t *tile, uint8_t *x)
{
    if (b->order != KV_ORDER_WIDE)
        return tile;
    kv_codebook_entries(b, head, tile, x);
    return x;
}

void kv_codebook_qk_vnni(const struct kv_store *s, size_t head,
                         const uint8_t *tile, const void *query, size_t rows,
                         float *score, size_t stride)
{
    const struct kv_codebook *b = s->params;
    const struct kv_codebook_q8 *q = query;
    _Alignas(LINE) uint8_t x[MOST_ENTRIES];
    const uint8_t *from = ready(b, head, tile, x);

    for (size_t r = 0; r < rows; r += ROWS) {
        const struct qk to = {.scale = q->scale + r,
                              .start = q->start + r,
                              .score = score + r * stride,
                              .stride = stride};

        some_qk[b->order](b, head, from, q->q8 + kv_codebook_rows_at(s, r),
                          rows_from(r, rows), &to);
    }
}

/* What round8 makes of a tile's weights, which are not below 0: p8 [rows][64],
 * scale [rows].  rows is a constant. */
ALWAYS_INLINE void round_some(const float *p, size_t stride, size_t rows,
                              int8_t *p8, float *scale)
{
    __m512 most[ROWS];
    float each[ROWS], by[ROWS];

    UNROLL
    for (size_t r = 0; r < ROWS; r++) {
        const float *x = p + (r < rows ? r : 0) * stride;

        most[r] = _mm512_max_ps(
            _mm512_max_ps(_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)),
            _mm512_max_ps(_mm512_loadu_ps(x + 32), _mm512_loadu_ps(x + 48)));
    }
    kv_lanes_mosts(most, each);
    kv_units8_of_four(each, by);
    memcpy(scale, each, rows * sizeof(*scale));
    UNROLL
    for (size_t r = 0; r < rows; r++) {
        __m512 x[4];

        UNROLL
        for (size_t i = 0; i < 4; i++)
            x[i] = _mm512_mul_ps(_mm512_loadu_ps(p + r * stride + i * 16),
                                 _mm512_set1_ps(by[r]));
        kv_lanes_store8(p8 + r * T, x);
    }
}

static void round_weights(const float *p, size_t stride, size_t rows,
                          int8_t *p8, float *scale)
{
    switch (rows) {
#define CASE(R)                              \
    case R:                                  \
        round_some(p, stride, R, p8, scale); \
        break;
        CASE(1) CASE(2) CASE(3) CASE(4)
#undef CASE
    }
}

void kv_codebook_pv_vnni(const struct kv_store *s, size_t head,
                         const uint8_t *tile, const float *p, size_t stride,
                         size_t rows, float *acc)
{
    const struct kv_codebook *b = s->params;
    const size_t n_acc = kv_codebook_sums(s);
    _Alignas(LINE) int8_t p8[ROWS * T];
    float scale[ROWS];
    _Alignas(LINE) uint8_t x[MOST_ENTRIES];
    const uint8_t *from = ready(b, head, tile, x);

    for (size_t r = 0; r < rows; r += ROWS) {
        const size_t n = rows_from(r, rows);

        round_weights(p + r * stride, stride, n, p8, scale);
        some_pv[b->order](b, head, from, p8, scale, n, n_acc, acc + r * n_acc);
    }
}
