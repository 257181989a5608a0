/* Keys by tables with AVX-512 VBMI: a register of 64 tokens' codes of one
 * sub-space is looked up in each query's table.  Tables of many sub-spaces do
 * not fit the first cache: a table that is loaded serves SIDE tiles.
 *
 * Bytes are added up two and two, as words: `all` has the odd bytes' sums 256
 * times beside the even bytes', `high` has the odd ones'. */
#include "kernels/codebook/avx512.h"
#include "kernels/codebook/tables8.h"
#include "kernels/level.h"

enum {
    SIDE = 4, /* tiles */
    PAIR = 2, /* rows whose tables are in registers */
    MOST_SUB = KV_CODEBOOK_TABLES8 / 64
};
_Static_assert(MOST_SUB % 4 == 0 && MOST_SUB * 255 <= UINT16_MAX,
               "fours of sub-vectors; sums of 16 bits");

typedef __m512 vf;

/* Codes of sub-vectors [i, i + 4), a register each.  Shared: byte 16 l + 4 k +
 * j is of token 16 k + 4 l + j (l, k, j < 4); own: bytes are in the order of
 * tokens.  Those past n_sub are those of the last (own) or zeros. */
ALWAYS_INLINE void four_codes(const struct kv_codebook *b, const uint8_t *tile,
                              size_t i, int shared, vi x[4])
{
    const vi fours = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    vi y[4];

    if (!shared) {
        UNROLL
        for (size_t k = 0; k < 4; k++)
            x[k] = load(tile + kv_min(i + k, b->n_sub - 1) * T);
        return;
    }
    UNROLL
    for (size_t k = 0; k < 4; k++)
        y[k] = _mm512_shuffle_epi8(load(tile + i * T + k * LINE), fours);
    kv_lanes_turn(y, x);
}

/* All codes of a tile, to a line for each sub-vector, `apart` bytes apart. */
ALWAYS_INLINE void codes_of(const struct kv_codebook *b, const uint8_t *tile,
                            int shared, uint8_t *to, size_t apart)
{
    for (size_t i = 0; i < b->n_sub; i += 4) {
        vi x[4];

        four_codes(b, tile, i, shared, x);
        UNROLL
        for (size_t k = 0; k < 4; k++, to += apart)
            _mm512_store_si512(to, x[k]);
    }
}

/* What becomes of the sums of some rows. */
struct rows {
    const uint8_t *next; /* the tiles that come then, to be fetched */
    int shared;          /* the order of four_codes() */
    const float *scale, *low;
    float *score;
    size_t stride;
};

/* 16 tokens' sums. */
ALWAYS_INLINE void put_16(__m256i sum, vf scale, vf low, float *score)
{
    const vf x = _mm512_cvtepi32_ps(_mm512_cvtepu16_epi32(sum));

    _mm512_storeu_ps(score, _mm512_fmadd_ps(scale, x, low));
}

/* Row r, 64 tokens from t on. */
ALWAYS_INLINE void put_all(const struct rows *to, size_t r, size_t t, vi all,
                           vi high)
{
    const vi even = _mm512_sub_epi16(all, _mm512_slli_epi16(high, 8));
    const vi a = _mm512_unpacklo_epi16(even, high);
    const vi b = _mm512_unpackhi_epi16(even, high);
    const vi first = to->shared ? _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7)
                                : _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const vi second = to->shared
                          ? _mm512_setr_epi64(8, 10, 12, 14, 9, 11, 13, 15)
                          : _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    const vi x = _mm512_permutex2var_epi64(a, first, b);
    const vi y = _mm512_permutex2var_epi64(a, second, b);
    const vf scale = _mm512_set1_ps(to->scale[r]);
    const vf low = _mm512_set1_ps(to->low[r]);
    float *at = to->score + r * to->stride + t;

    put_16(_mm512_castsi512_si256(x), scale, low, at);
    put_16(_mm512_extracti64x4_epi64(x, 1), scale, low, at + 16);
    put_16(_mm512_castsi512_si256(y), scale, low, at + 32);
    put_16(_mm512_extracti64x4_epi64(y, 1), scale, low, at + 48);
}

/* gcc 12 keeps a sum before and after in registers, and tables in memory. */
ALWAYS_INLINE void add_to(vi *sum, vi x)
{
    *sum = _mm512_add_epi16(*sum, x);
    KV_STAYS(*sum);
}

/* code: [n_sub][side][64], entry: of the first row,
 * [n_sub][KV_CODEBOOK_ROWS][n]. rows, side, n and pairs are constants. */
ALWAYS_INLINE void add_up(const uint8_t *code, size_t n_sub,
                          const uint8_t *entry, size_t rows, size_t side,
                          size_t n, int pairs, const struct rows *to)
{
    vi all[PAIR][SIDE], high[PAIR][SIDE];

    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t k = 0; k < side; k++)
        all[r][k] = high[r][k] = _mm512_setzero_si512();
    for (size_t i = 0; i < n_sub; i++, entry += ROWS * n) {
        struct table t[PAIR];

        UNROLL
        for (size_t r = 0; r < rows; r++)
            t[r] = table(entry + r * n, n);
        UNROLL
        for (size_t k = 0; k < side; k++, code += T) {
            const struct codes c = codes(load(code), n);
            const uint8_t *later = to->next + (i * side + k) * LINE;

            kv_prefetch_near(later, 0, LINE);
            kv_prefetch_far(later, KV_FAR_CODES, LINE);
            UNROLL
            for (size_t r = 0; r < rows; r++) {
                const vi x =
                    pairs ? look_up_pairs(&t[r], n, c) : look_up(&t[r], n, c);

                add_to(&all[r][k], x);
                add_to(&high[r][k], _mm512_srli_epi16(x, 8));
            }
        }
    }
    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t k = 0; k < side; k++)
        put_all(to, r, k * T, all[r][k], high[r][k]);
}

#define KINDS(X)    \
    SIDES(X, 64, 0) \
    SIDES(X, 128, 0) SIDES(X, 128, 1) SIDES(X, 256, 0) SIDES(X, 256, 1)
#define SIDES(X, N, PAIRS) \
    EVERY_PAIR(X, 1, N, PAIRS) EVERY_PAIR(X, SIDE, N, PAIRS)
#define EVERY_PAIR(X, S, N, PAIRS) X(1, S, N, PAIRS) X(2, S, N, PAIRS)
_Static_assert(PAIR == 2 && ROWS % PAIR == 0, "EVERY_PAIR");
#define KIND(R, S, N, PAIRS) ((R) << 16 | (S) << 12 | (N) << 1 | (PAIRS))

/* `side` tiles, SIDE or 1; to: all rows. */
static void some_tiles(const struct kv_store *s, const uint8_t *tile,
                       size_t side, const uint8_t *entry, size_t rows,
                       struct rows to)
{
    const struct kv_codebook *b = s->params;
    const size_t pairs = b->plane > 64 && kv_level_pairs();
    _Alignas(LINE) uint8_t code[MOST_SUB * SIDE * T];

    for (size_t k = 0; k < side; k++, tile += s->tile_bytes)
        if (to.shared)
            codes_of(b, tile, 1, code + k * T, side * T);
        else
            codes_of(b, tile, 0, code + k * T, side * T);
    for (size_t r = 0, some; r < rows; r += some) {
        const uint8_t *at = entry + r / ROWS * kv_codebook_planes8_bytes(b) +
                            r % ROWS * b->plane;

        some = kv_min(rows - r, PAIR);
        switch (KIND(some, side, b->plane, pairs)) {
#define CASE(R, S, N, PAIRS)                             \
    case KIND(R, S, N, PAIRS):                           \
        add_up(code, b->n_sub, at, R, S, N, PAIRS, &to); \
        break;
            KINDS(CASE)
#undef CASE
        }
        to.scale += some;
        to.low += some;
        to.score += some * to.stride;
    }
}

void kv_codebook_qk8_tiles_vnni(const struct kv_store *s, size_t head,
                                const uint8_t *tile, size_t n,
                                const void *query, size_t rows, float *score,
                                size_t stride)
{
    const struct kv_codebook *b = s->params;
    const struct kv_codebook_tables8 *q = query;
    struct rows to = {.shared = b->order == KV_ORDER_SHARED,
                      .scale = q->scale,
                      .low = q->low,
                      .score = score,
                      .stride = stride};

    (void)head;
    for (size_t side; n; n -= side) {
        side = n < SIDE ? 1 : SIDE;
        to.next = tile + side * s->tile_bytes;
        some_tiles(s, tile, side, q->entry, rows, to);
        tile += side * s->tile_bytes;
        to.score += side * T;
    }
}

void kv_codebook_qk8_vnni(const struct kv_store *s, size_t head,
                          const uint8_t *tile, const void *query, size_t rows,
                          float *score, size_t stride)
{
    kv_codebook_qk8_tiles_vnni(s, head, tile, 1, query, rows, score, stride);
}
