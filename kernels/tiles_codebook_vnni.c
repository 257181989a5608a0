/* Path int8 with AVX-512 VNNI and VBMI: ROWS rows at a time by the order of the
 * tile's codes, each a file: tiles_codebook_{shared,own,wide}_vnni.c. */
#include "kernels/tiles_codebook_vnni.h"

static kv_code_some_scores_fn *const some_scores[] = {
    [KV_CODES_SHARED] = kv_code_scores_shared,
    [KV_CODES_OWN] = kv_code_scores_own,
    [KV_CODES_WIDE] = kv_code_scores_wide,
};

static kv_code_some_gather_fn *const some_gather[] = {
    [KV_CODES_SHARED] = kv_code_gather_shared,
    [KV_CODES_OWN] = kv_code_gather_own,
    [KV_CODES_WIDE] = kv_code_gather_wide,
};

static size_t rows_from(size_t r, size_t rows)
{
    return rows - r < ROWS ? rows - r : ROWS;
}

/* What the sums are made from: the tile, or its entries in x. */
static const uint8_t *ready(const struct kv_tile_book *b, size_t head,
                            const uint8_t *tile, uint8_t *x)
{
    if (b->order != KV_CODES_WIDE)
        return tile;
    kv_code_entries_wide(b, head, tile, x);
    return x;
}

void kv_code_scores_vnni(const struct kv_store *s, size_t head,
                         const uint8_t *tile, const void *query, size_t rows,
                         float *score, size_t stride)
{
    const struct kv_tile_book *b = s->params;
    const struct kv_code_query *q = query;
    _Alignas(LINE) int32_t sum[KV_TILE_ROWS * T];
    _Alignas(LINE) uint8_t x[MOST_ENTRIES];
    const uint8_t *from = ready(b, head, tile, x);

    for (size_t r = 0; r < rows; r += ROWS)
        some_scores[b->order](b, head, from,
                              q->q8 + kv_code_q_at(b, rows, r, 0, 0), rows,
                              rows_from(r, rows), sum + r * T);
    for (size_t r = 0; r < rows; r++)
        for (size_t t = 0; t < T; t += 16) {
            const vi unbiased = _mm512_sub_epi32(load(sum + r * T + t),
                                                 _mm512_set1_epi32(q->bias[r]));

            _mm512_storeu_ps(score + r * stride + t,
                             _mm512_mul_ps(_mm512_set1_ps(q->scale[r]),
                                           _mm512_cvtepi32_ps(unbiased)));
        }
}

void kv_code_gather_vnni(const struct kv_store *s, size_t head,
                         const uint8_t *tile, const float *p, size_t stride,
                         size_t rows, float *acc)
{
    const struct kv_tile_book *b = s->params;
    const size_t n_acc = kv_code_sums(s);
    _Alignas(LINE) int8_t p8[KV_TILE_ROWS * T];
    float scale[KV_TILE_ROWS];
    _Alignas(LINE) uint8_t x[MOST_ENTRIES];
    const uint8_t *from = ready(b, head, tile, x);

    kv_tile_loops_avx512.round8(p, stride, rows, T, p8, T, scale);
    for (size_t r = 0; r < rows; r += ROWS)
        some_gather[b->order](b, head, from, p8 + r * T, scale + r,
                              rows_from(r, rows), n_acc, acc + r * n_acc);
}
