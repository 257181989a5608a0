/* Path int8 with AVX2 (simd/quads_avx2.h): a sub-vector is a quad, or several
 * if d is above 4, padded with zeros; a quad holds 4 sub-vectors with d 1, and
 * 2 with d 2. */
#include "kernels/simd/avx2.h"

#include "kernels/codebook/tables.h"
#include "kernels/simd/quads_avx2.h"

enum {
    PART = KV_TILE_PART,
    MAX_BYTES =
        2 * KV_CODEBOOK_DIM + 3 * 16 /* numbers: d = 9 takes 16; put_subs()
                                      * writes up to three sub-vectors more */
};

/* Bytes of a sub-vector in quads. */
static size_t unit(const struct kv_codebook *b)
{
    return b->d <= 2 ? b->d : b->width;
}

static size_t n_quads(const struct kv_codebook *b)
{
    return (b->n_sub * unit(b) + KV_QUAD - 1) / KV_QUAD;
}

/* The index of channel c among the numbers of all quads. */
static size_t place(const struct kv_codebook *b, size_t c)
{
    return c / b->d * unit(b) + c % b->d;
}

/* ---- entries of up to 4 bits ------------------------------------------------
 *
 * Entries are looked up in a register of 16, for 32 tokens of one channel at a
 * time, and go to x [quads][64][4].  The padding of a sub-vector to `unit`
 * numbers, and of the last quad, is undefined.
 *
 * In between, a row has the codes of 32 tokens of one sub-vector, tokens 8 m +
 * 4 l to 8 m + 4 l + 3 in 32-bit lane m of half l, so that the entries of four
 * channels, interleaved, are in the order of tokens. */

enum {
    QUAD = KV_QUAD,
    PLANE = 64,      /* bytes of a channel's table, the first 16 in use */
    SHARED_KEYS = 4, /* sub-vectors processed together */
    SHARED_VALUES = 16
};

/* Returns the lower (0) or upper (1) half of each byte. */
ALWAYS_INLINE vi32 half_of(vi32 x, size_t half)
{
    return _mm256_and_si256(half ? _mm256_srli_epi16(x, 4) : x,
                            _mm256_set1_epi8(15));
}

/* ---- rows of codes: row [sub-vectors][2 parts][32] ------------------------
 */

static void own_rows(const uint8_t *tile, size_t n_sub, uint8_t *row)
{
    const vi32 order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);

    for (size_t i = 0; i < n_sub; i += 2, tile += KV_TILE_TOKENS)
        for (size_t part = 0; part < 2; part++) {
            const vi32 x = _mm256_permutevar8x32_epi32(
                v_load_i32(tile + part * PART), order);

            for (size_t half = 0; half < 2; half++)
                v_store_i32(row + (2 * (i + half) + part) * PART,
                            half_of(x, half));
        }
}

/* Each 32 bytes of the tile hold 8 tokens of four sub-vectors. */
static void shared_key_rows(const uint8_t *tile, size_t n_sub, uint8_t *row)
{
    const vi32 subs = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));

    for (size_t i = 0; i < n_sub; i += SHARED_KEYS, tile += 4 * PART) {
        vi32 x[4];

        UNROLL
        for (size_t j = 0; j < 4; j++)
            x[j] = _mm256_shuffle_epi8(v_load_i32(tile + j * 32), subs);
        v_transpose4x4(x, x);
        UNROLL
        for (size_t j = 0; j < 4; j++)
            for (size_t half = 0; half < 2; half++)
                v_store_i32(row + (2 * (i + j) + half) * PART,
                            half_of(x[j], half));
    }
}

/* Each 32 bytes, 64 bytes apart, hold eight sub-vectors of four tokens. */
static void shared_value_rows(const uint8_t *tile, size_t n_sub, uint8_t *row)
{
    for (size_t i = 0; i < n_sub; i += 8) {
        const uint8_t *from = tile + i / SHARED_VALUES * SHARED_VALUES * PART +
                              i % SHARED_VALUES * 4;
        vi32 even[4], odd[4]; /* fours of tokens */

        UNROLL
        for (size_t j = 0; j < 4; j++) {
            even[j] = v_load_i32(from + 2 * j * 64);
            odd[j] = v_load_i32(from + (2 * j + 1) * 64);
        }
        v_transpose4x4(even, even);
        v_transpose4x4(odd, odd);
        UNROLL
        for (size_t j = 0; j < 4; j++) {
            const vi32 low = _mm256_permute2x128_si256(even[j], odd[j], 0x20);
            const vi32 high = _mm256_permute2x128_si256(even[j], odd[j], 0x31);

            for (size_t half = 0; half < 2; half++) {
                v_store_i32(row + (2 * (i + j) + half) * PART,
                            half_of(low, half));
                v_store_i32(row + (2 * (i + 4 + j) + half) * PART,
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
    vi32 plane[QUAD];

    UNROLL
    for (size_t i = 0; i < QUAD; i++)
        plane[i] = v_load_t16i8(c[i].plane);
    UNROLL
    for (size_t part = 0; part < 2; part++) {
        vi32 y[QUAD], quads[QUAD];

        UNROLL
        for (size_t i = 0; i < QUAD; i++)
            y[i] = _mm256_shuffle_epi8(plane[i],
                                       v_load_i32(c[i].row + part * PART));

        v_interleave4_i8(y, quads);
        UNROLL
        for (size_t i = 0; i < QUAD; i++)
            v_store_i32(x + 32 * i, quads[i]);
        x += PART * QUAD;
    }
}

/* The look-up tables of a tile's quads. */
struct tables {
    const uint8_t *planes, *row;
    size_t n_sub, d, own; /* own: channels from one sub-vector's table to the
                           * next */
};

/* The channel of number `at` in all quads.  filling: the number may be padding
 * of a sub-vector or of the last quad, and is then another channel's. */
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

static void few_entries(const struct kv_store *s, size_t head,
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

/* ---- entries --------------------------------------------------------------
 */

/* The position of token 0's code for sub-vector i. */
ALWAYS_INLINE uint8_t *sub_at(uint8_t *x, size_t i, size_t unit)
{
    return x + i * unit / KV_QUAD * KV_QUAD_LINE + i * unit % KV_QUAD;
}

/* Writes one entry; unit is a constant, here and below. */
ALWAYS_INLINE void put(const uint8_t *table, size_t unit, size_t code,
                       uint8_t *x)
{
    const size_t some = unit < KV_QUAD ? unit : KV_QUAD;
    const uint8_t *entry = table + code * (unit < KV_QUAD ? KV_QUAD : unit);

    UNROLL
    for (size_t i = 0; i < unit; i += some)
        memcpy(x + i / KV_QUAD * KV_QUAD_LINE, entry + i, some);
}

/* Writes one sub-vector of 64 tokens: four one-byte codes every `apart`
 * bytes. */
ALWAYS_INLINE void put_tokens(const uint8_t *table, size_t unit,
                              const uint8_t *code, size_t apart, uint8_t *x)
{
    for (size_t t = 0; t < KV_TILE_TOKENS; t += 4, code += apart) {
        uint32_t four;

        memcpy(&four, code, sizeof(four));
        UNROLL
        for (size_t i = 0; i < 4; i++)
            put(table, unit, four >> 8 * i & 255, x + (t + i) * KV_QUAD);
    }
}

/* Writes four sub-vectors of shared keys, whose codes are a byte each, token by
 * token. */
ALWAYS_INLINE void put_subs(const uint8_t *table, size_t unit,
                            const uint8_t *code, size_t sub, uint8_t *x)
{
    uint8_t *to[4];

    UNROLL
    for (size_t i = 0; i < 4; i++)
        to[i] = sub_at(x, sub + i, unit);
    for (size_t t = 0; t < KV_TILE_TOKENS; t++) {
        uint32_t four;

        memcpy(&four, code + t * 4, sizeof(four));
        UNROLL
        for (size_t i = 0; i < 4; i++)
            put(table, unit, four >> 8 * i & 255, to[i] + t * KV_QUAD);
    }
}

/* Writes a sub-vector of 32 tokens. */
ALWAYS_INLINE void put_wide(const uint8_t *table, size_t unit,
                            const uint16_t *code, uint8_t *x)
{
    for (size_t t = 0; t < PART; t += 4)
        UNROLL
    for (size_t i = 0; i < 4; i++)
        put(table, unit, code[t + i], x + (t + i) * KV_QUAD);
}

ALWAYS_INLINE void byte_entries(const struct kv_store *s, size_t head,
                                size_t unit, const uint8_t *tile, uint8_t *x)
{
    const struct kv_codebook *b = s->params;
    const bool shared = b->order == KV_ORDER_SHARED, keys = !s->values;
    const size_t step = shared && keys ? 4 : 1;

    for (size_t i = 0; i < b->n_sub; i += step) {
        const uint8_t *table =
            b->entry + kv_codebook_at(b, head, i) * b->k * b->width;

        if (!shared)
            put_tokens(table, unit, tile + i * KV_TILE_TOKENS, 4,
                       sub_at(x, i, unit));
        else if (keys)
            put_subs(table, unit, tile + i * KV_TILE_TOKENS, i, x);
        else
            put_tokens(table, unit,
                       tile + i / 16 * 16 * KV_TILE_TOKENS + i % 16 * 4, 64,
                       sub_at(x, i, unit));
    }
}

/* Looks up codes of more than 8 bits. */
ALWAYS_INLINE void wide_entries(const struct kv_store *s, size_t head,
                                size_t unit, const uint8_t *tile, uint8_t *x)
{
    const struct kv_codebook *b = s->params;
    uint16_t code[KV_CODEBOOK_DIM * PART];

    for (size_t part = 0; part < KV_TILE_TOKENS / PART; part++) {
        const struct kv_codebook_part p =
            kv_store_get_codes(s, tile, part, code);

        for (size_t i = 0; i < b->n_sub; i++)
            put_wide(b->entry + kv_codebook_at(b, head, i) * b->k * b->width,
                     unit, code + kv_codebook_in_part(p, i, 0),
                     sub_at(x, i, unit) + part * PART * KV_QUAD);
    }
}

ALWAYS_INLINE void unit_entries(const struct kv_store *s, size_t head,
                                size_t unit, const uint8_t *tile, uint8_t *x)
{
    const struct kv_codebook *b = s->params;

    if (b->bits <= 8)
        byte_entries(s, head, unit, tile, x);
    else
        wide_entries(s, head, unit, tile, x);
}

/* The rounded entries of a tile: x [quads][64][4], and room for three
 * sub-vectors more. */
static void entries(const struct kv_store *s, size_t head, const uint8_t *tile,
                    uint8_t *x)
{
    const struct kv_codebook *b = s->params;

    if (b->bits <= 4) {
        few_entries(s, head, tile, unit(b), x);
        return;
    }
    if (b->n_sub * unit(b) % KV_QUAD)
        memset(x + (n_quads(b) - 1) * KV_QUAD_LINE, 0, KV_QUAD_LINE);
    switch (unit(b)) {
#define CASE(N)                            \
    case N:                                \
        unit_entries(s, head, N, tile, x); \
        break;
        CASE(1) CASE(2) CASE(4) CASE(8) CASE(16)
#undef CASE
    }
}

/* ---- products -------------------------------------------------------------
 */

/* Widens the queries' codes to 16-bit numbers, [rows][quads][4]. */
static void widen_rows(const struct kv_codebook *b,
                       const int8_t (*plain)[KV_CODEBOOK_DIM], size_t rows,
                       int16_t *q)
{
    const size_t n = n_quads(b) * KV_QUAD, d = b->n_sub * b->d;

    for (size_t r = 0; r < rows; r++, q += n) {
        if (b->d == unit(b)) { /* zeros after the last channel */
            kv_quad_widen(plain[r], (n + 15) / 16 * 16, q);
            continue;
        }
        memset(q, 0, n * sizeof(*q));
        for (size_t c = 0; c < d; c++)
            q[place(b, c)] = plain[r][c];
    }
}

void kv_codebook_qk_avx2(const struct kv_store *s, size_t head,
                         const uint8_t *tile, const void *query, size_t rows,
                         float *score, size_t stride)
{
    const struct kv_codebook *b = s->params;
    const struct kv_codebook_q8 *q = query;
    const size_t quads = n_quads(b);
    _Alignas(64) uint8_t x[MAX_BYTES * KV_TILE_TOKENS];
    _Alignas(64) int16_t q16[ROWS * MAX_BYTES];

    entries(s, head, tile, x);
    for (size_t r = 0; r < rows; r += ROWS, score += ROWS * stride) {
        const size_t n = rows - r < ROWS ? rows - r : ROWS;
        const struct kv_quad_rows by = {q16, KV_QUAD, quads * KV_QUAD};
        int32_t sum[ROWS][KV_TILE_TOKENS];

        widen_rows(b, q->plain + r, n, q16);
        kv_quad_qk(x, quads, by, n, sum[0]);
        for (size_t i = 0; i < n; i++)
            for (size_t t = 0; t < KV_TILE_TOKENS; t++)
                score[i * stride + t] =
                    q->scale[r + i] * (float)(q->start[r + i] + sum[i][t]);
    }
}

size_t kv_codebook_sums_avx2(const struct kv_store *s)
{
    return n_quads(s->params) * KV_QUAD;
}

/* acc: [rows][quads][4].  rows is a constant. */
ALWAYS_INLINE void pv_some(const uint8_t *x, size_t quads,
                           const __m256i (*p)[8], const float *scale,
                           size_t rows, float *acc)
{
    for (size_t k = 0; k < quads; k++) {
        __m128i sum[ROWS];

        kv_quad_pv(x + k * KV_QUAD_LINE, 0, p, rows, sum);
        UNROLL
        for (size_t r = 0; r < rows; r++) {
            float *at = acc + (r * quads + k) * KV_QUAD;

            _mm_storeu_ps(at, _mm_fmadd_ps(_mm_set1_ps(scale[r]),
                                           _mm_cvtepi32_ps(sum[r]),
                                           _mm_loadu_ps(at)));
        }
    }
}

void kv_codebook_pv_avx2(const struct kv_store *s, size_t head,
                         const uint8_t *tile, const float *p, size_t stride,
                         size_t rows, float *acc)
{
    const size_t quads = n_quads(s->params);
    _Alignas(64) uint8_t x[MAX_BYTES * KV_TILE_TOKENS];

    entries(s, head, tile, x);
    for (size_t r = 0; r < rows;
         r += ROWS, p += ROWS * stride, acc += ROWS * quads * KV_QUAD) {
        const size_t n = rows - r < ROWS ? rows - r : ROWS;
        int8_t p8[ROWS][KV_TILE_TOKENS];
        float scale[ROWS];
        __m256i by[ROWS][8];

        kv_tile_loops_avx2.round8(p, stride, n, KV_TILE_TOKENS, p8[0],
                                  KV_TILE_TOKENS, scale);
        for (size_t i = 0; i < n; i++)
            kv_quad_weights(p8[i], by[i]);
#define SOME(R) pv_some(x, quads, by, scale, R, acc)
        KV_QUAD_CASES(n, SOME)
#undef SOME
    }
}

void kv_codebook_finish_avx2(const struct kv_store *s, size_t head,
                             const float *acc, size_t rows, float *out)
{
    const struct kv_codebook *b = s->params;
    const float *scale = kv_codebook_scales(b, head);

    for (size_t r = 0; r < rows; r++, acc += n_quads(b) * KV_QUAD)
        for (size_t c = 0; c < s->head_dim; c++)
            *out++ = acc[place(b, c)] * scale[c];
}

/* Also used by AVX-512, which has no faster way to make them. */
void kv_codebook_planes8_avx2(const struct kv_store *s, size_t head,
                              const float *q, size_t rows, void *query)
{
    prepare8(s, head, q, rows, true, query);
}
