/* Codes of up to 4 bits with AVX2: the rounded entries of a tile, looked up in
 * a register of 16, 32 tokens of one channel at a time.
 *
 * Between, a row has the codes of 32 tokens of one sub-vector, tokens 8 m + 4 l
 * to 8 m + 4 l + 3 in 32-bit lane m of half l: so that four channels' entries,
 * interleaved, are tokens in their order. */
#include "kernels/codebook/impl.h"
#include "kernels/simd/lanes_avx2.h"
#include "kernels/simd/unroll.h"

#include <immintrin.h>
#include <stdbool.h>

enum {
    PART = KV_TILE_PART,
    QUAD = 4,
    PLANE = 64,      /* bytes of a channel's table, the first 16 in use */
    SHARED_KEYS = 4, /* sub-vectors side by side */
    SHARED_VALUES = 16
};

typedef __m256i vi;

ALWAYS_INLINE vi load(const uint8_t *p)
{
    return _mm256_loadu_si256((const vi *)p);
}

ALWAYS_INLINE void store(uint8_t *p, vi x)
{
    _mm256_storeu_si256((vi *)p, x);
}

/* The lower (0) or the upper (1) half of each byte. */
ALWAYS_INLINE vi half_of(vi x, size_t half)
{
    return _mm256_and_si256(half ? _mm256_srli_epi16(x, 4) : x,
                            _mm256_set1_epi8(15));
}

/* ---- rows of codes: row [sub-vectors][2 parts][32] ------------------------
 */

static void own_rows(const uint8_t *tile, size_t n_sub, uint8_t *row)
{
    const vi order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);

    for (size_t i = 0; i < n_sub; i += 2, tile += KV_TILE_TOKENS)
        for (size_t part = 0; part < 2; part++) {
            const vi x =
                _mm256_permutevar8x32_epi32(load(tile + part * PART), order);

            for (size_t half = 0; half < 2; half++)
                store(row + (2 * (i + half) + part) * PART, half_of(x, half));
        }
}

/* Each 32 bytes: 8 tokens of four sub-vectors. */
static void shared_key_rows(const uint8_t *tile, size_t n_sub, uint8_t *row)
{
    const vi subs = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));

    for (size_t i = 0; i < n_sub; i += SHARED_KEYS, tile += 4 * PART) {
        vi x[4];

        UNROLL
        for (size_t j = 0; j < 4; j++)
            x[j] = _mm256_shuffle_epi8(load(tile + j * 32), subs);
        kv_lanes_turn(x, x);
        UNROLL
        for (size_t j = 0; j < 4; j++)
            for (size_t half = 0; half < 2; half++)
                store(row + (2 * (i + j) + half) * PART, half_of(x[j], half));
    }
}

/* Each 32 bytes: eight sub-vectors of four tokens, every 64 bytes. */
static void shared_value_rows(const uint8_t *tile, size_t n_sub, uint8_t *row)
{
    for (size_t i = 0; i < n_sub; i += 8) {
        const uint8_t *from = tile + i / SHARED_VALUES * SHARED_VALUES * PART +
                              i % SHARED_VALUES * 4;
        vi even[4], odd[4]; /* fours of tokens */

        UNROLL
        for (size_t j = 0; j < 4; j++) {
            even[j] = load(from + 2 * j * 64);
            odd[j] = load(from + (2 * j + 1) * 64);
        }
        kv_lanes_turn(even, even);
        kv_lanes_turn(odd, odd);
        UNROLL
        for (size_t j = 0; j < 4; j++) {
            const vi low = _mm256_permute2x128_si256(even[j], odd[j], 0x20);
            const vi high = _mm256_permute2x128_si256(even[j], odd[j], 0x31);

            for (size_t half = 0; half < 2; half++) {
                store(row + (2 * (i + j) + half) * PART, half_of(low, half));
                store(row + (2 * (i + 4 + j) + half) * PART,
                      half_of(high, half));
            }
        }
    }
}

/* ---- entries --------------------------------------------------------------
 */

/* One of the four numbers of a quad: the 16 entries of its channel, and the
 * codes of its sub-vector. */
struct channel {
    const uint8_t *plane, *row;
};

ALWAYS_INLINE void look_up(const struct channel c[QUAD], uint8_t *x)
{
    vi plane[QUAD];

    UNROLL
    for (size_t i = 0; i < QUAD; i++)
        plane[i] = _mm256_broadcastsi128_si256(
            _mm_loadu_si128((const __m128i *)c[i].plane));
    UNROLL
    for (size_t part = 0; part < 2; part++) {
        vi y[QUAD], quads[QUAD];

        UNROLL
        for (size_t i = 0; i < QUAD; i++)
            y[i] = _mm256_shuffle_epi8(plane[i], load(c[i].row + part * PART));

        kv_lanes_quads(y, quads);
        UNROLL
        for (size_t i = 0; i < QUAD; i++)
            store(x + 32 * i, quads[i]);
        x += PART * QUAD;
    }
}

/* What a tile's quads are looked up in. */
struct tables {
    const uint8_t *planes, *row;
    size_t n_sub, d, own; /* own: channels from a sub-vector's to the next's */
};

/* Number `at` among those of all quads; filling: it may be one that fills a
 * sub-vector or the last quad up, and is then some other's. */
ALWAYS_INLINE struct channel channel_of(const struct tables *t, size_t at,
                                        size_t unit, bool filling)
{
    size_t sub = at / unit, j = at % unit;

    if (filling) {
        sub = kv_min(sub, t->n_sub - 1);
        j = kv_min(j, t->d - 1);
    }
    return (struct channel){t->planes + (sub * t->own + j) * PLANE,
                            t->row + sub * KV_TILE_TOKENS};
}

/* unit is a constant. */
ALWAYS_INLINE void look_up_all(const struct tables *t, size_t unit, uint8_t *x)
{
    const size_t n = t->n_sub * unit,
                 whole = t->d == unit ? n / QUAD * QUAD : 0;
    struct channel c[QUAD];
    size_t at = 0;

    for (; at < whole; at += QUAD) {
        UNROLL
        for (size_t i = 0; i < QUAD; i++)
            c[i] = channel_of(t, at + i, unit, false);
        look_up(c, x + at * KV_TILE_TOKENS);
    }
    for (; at < n; at += QUAD) {
        for (size_t i = 0; i < QUAD; i++)
            c[i] = channel_of(t, at + i, unit, true);
        look_up(c, x + at * KV_TILE_TOKENS);
    }
}

void kv_codebook_few_entries_avx2(const struct kv_store *s, size_t head,
                                  const uint8_t *tile, size_t unit, uint8_t *x)
{
    const struct kv_codebook *b = s->params;
    uint8_t row[(KV_CODEBOOK_DIM + SHARED_VALUES) * KV_TILE_TOKENS];
    const struct tables t = {
        .planes = b->planes + kv_codebook_channel(b, head, 0, 0) * PLANE,
        .row = row,
        .n_sub = b->n_sub,
        .d = b->d,
        .own = b->sub_books > 1 ? b->d : 0};

    if (b->order == KV_ORDER_OWN)
        own_rows(tile, b->n_sub, row);
    else if (s->values)
        shared_value_rows(tile, b->n_sub, row);
    else
        shared_key_rows(tile, b->n_sub, row);
    switch (unit) {
#define CASE(N)                \
    case N:                    \
        look_up_all(&t, N, x); \
        break;
        CASE(1) CASE(2) CASE(4) CASE(8) CASE(16)
#undef CASE
    }
}
