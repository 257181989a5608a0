/* Path int8 with AVX-512 VNNI and VBMI: ROWS rows at a time by the order of the
 * tile's codes; one table for all sub-spaces is avx512_shared.c. */
#include "kernels/codebook/avx512.h"

/* ---- own ------------------------------------------------------------------
 *
 * Each sub-space has a table.  A register holds one channel of 64 tokens; four
 * registers are transposed, so that the bytes of one sum are neighbours. */

/* The codes of a sub-space, 64 tokens. */
ALWAYS_INLINE vi32 own_codes(const uint8_t *tile, size_t sub, int halves)
{
    if (!halves)
        return load_ahead(tile + sub * T);

    const vi32 x = load_ahead(tile + sub / 2 * T);

    return sub % 2 ? high_codes(x) : low_codes(x);
}

/* Looks up channels [c, c + 4) of 64 tokens; one: the channels are of one
 * sub-vector. */
ALWAYS_INLINE void own_four(const struct kv_codebook *b, const uint8_t *planes,
                            const uint8_t *tile, size_t c, size_t n, int halves,
                            int one, vi32 x[4])
{
    struct codes code = codes(own_codes(tile, b->sub_of[c], halves), n);

    UNROLL
    for (size_t i = 0; i < 4; i++) {
        const struct table t = table(planes + (c + i) * n, n);

        if (i && !one)
            code = codes(own_codes(tile, b->sub_of[c + i], halves), n);
        x[i] = look_up(&t, n, code);
    }
}

/* Looks up channels [c, c + 4): lane l (128 bits) of x[k] has tokens 16 l + 4 k
 * + [0, 4), each with its four channels. */
ALWAYS_INLINE void own_tokens(const struct kv_codebook *b,
                              const uint8_t *planes, const uint8_t *tile,
                              size_t c, size_t n, int halves, int one,
                              vi32 x[4])
{
    vi32 y[4];

    own_four(b, planes, tile, c, n, halves, one, y);

    const vi32 low01 = _mm512_unpacklo_epi8(y[0], y[1]);
    const vi32 high01 = _mm512_unpackhi_epi8(y[0], y[1]);
    const vi32 low23 = _mm512_unpacklo_epi8(y[2], y[3]);
    const vi32 high23 = _mm512_unpackhi_epi8(y[2], y[3]);

    x[0] = _mm512_unpacklo_epi16(low01, low23);
    x[1] = _mm512_unpackhi_epi16(low01, low23);
    x[2] = _mm512_unpacklo_epi16(high01, high23);
    x[3] = _mm512_unpackhi_epi16(high01, high23);
}

/* own_tokens(), but lane l has, channel by channel, its tokens 16 l + 4 k + [0,
 * 4). */
ALWAYS_INLINE void own_channels(const struct kv_codebook *b,
                                const uint8_t *planes, const uint8_t *tile,
                                size_t c, size_t n, int halves, int one,
                                vi32 x[4])
{
    vi32 y[4];

    own_four(b, planes, tile, c, n, halves, one, y);
    v_transpose4x4(y, x);
}

/* out[i], lane l = x[l], lane i. */
ALWAYS_INLINE void transpose_lanes(const vi32 x[4], vi32 out[4])
{
    const vi32 a = _mm512_shuffle_i32x4(x[0], x[1], 0x44);
    const vi32 b = _mm512_shuffle_i32x4(x[2], x[3], 0x44);
    const vi32 c = _mm512_shuffle_i32x4(x[0], x[1], 0xee);
    const vi32 d = _mm512_shuffle_i32x4(x[2], x[3], 0xee);

    out[0] = _mm512_shuffle_i32x4(a, b, 0x88);
    out[1] = _mm512_shuffle_i32x4(a, b, 0xdd);
    out[2] = _mm512_shuffle_i32x4(c, d, 0x88);
    out[3] = _mm512_shuffle_i32x4(c, d, 0xdd);
}

ALWAYS_INLINE void own_qk(const struct kv_codebook *b, const uint8_t *planes,
                          const uint8_t *tile, const int8_t *q8, size_t rows,
                          size_t n, int halves, int one, const struct qk *to)
{
    vi32 s[ROWS][4];

    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t k = 0; k < 4; k++)
        s[r][k] = v_zero_i32();
    for (size_t c = 0; c < b->n_sub * b->d; c += 4) {
        vi32 x[4];

        own_tokens(b, planes, tile, c, n, halves, one, x);
        UNROLL
        for (size_t r = 0; r < rows; r++) {
            const vi32 by = all4(q8 + (c / 4 * rows + r) * 4);

            UNROLL
            for (size_t k = 0; k < 4; k++)
                add_products(&s[r][k], x[k], by);
        }
    }
    UNROLL
    for (size_t r = 0; r < rows; r++) {
        vi32 out[4];

        transpose_lanes(s[r], out);
        UNROLL
        for (size_t l = 0; l < 4; l++)
            put_sums(to, r, l * 16, out[l]);
    }
}

ALWAYS_INLINE void own_pv(const struct kv_codebook *b, const uint8_t *planes,
                          const uint8_t *tile, const int8_t *p8,
                          const float *scale, size_t rows, size_t n, int halves,
                          int one, size_t n_acc, float *acc)
{
    vi32 by[ROWS][4]; /* [k], lane l: tokens 16 l + 4 k + [0, 4), four times */

    UNROLL
    for (size_t r = 0; r < rows; r++) {
        const vi32 p = v_load_i32(p8 + r * T);

        by[r][0] = _mm512_shuffle_epi32(p, 0x00);
        by[r][1] = _mm512_shuffle_epi32(p, 0x55);
        by[r][2] = _mm512_shuffle_epi32(p, 0xaa);
        by[r][3] = _mm512_shuffle_epi32(p, 0xff);
    }
    for (size_t c = 0; c < b->n_sub * b->d; c += 16) {
        vi32 s[ROWS][4];

        UNROLL
        for (size_t i = 0; i < 4; i++) {
            vi32 x[4];

            own_channels(b, planes, tile, c + 4 * i, n, halves, one, x);
            UNROLL
            for (size_t r = 0; r < rows; r++) {
                s[r][i] = v_zero_i32();
                UNROLL
                for (size_t k = 0; k < 4; k++)
                    add_products(&s[r][i], by[r][k], x[k]);
            }
        }
        UNROLL
        for (size_t r = 0; r < rows; r++)
            add_sum(acc + r * n_acc + c, scale[r], sum_lanes(s[r]));
    }
}

#define KINDS(X, R) \
    X(R, 64, 1, 0)  \
    X(R, 64, 0, 0)  \
    X(R, 256, 0, 0) \
    X(R, 64, 1, 1) X(R, 64, 0, 1) X(R, 256, 0, 1)
#define KIND(R, N, HALVES, ONE) ((R) << 16 | (N) << 4 | (HALVES) << 1 | (ONE))

static size_t kind(const struct kv_codebook *b, size_t rows)
{
    return KIND(rows, b->plane, (size_t)(b->bits <= 4), b->d % 4 == 0);
}

static void qk_own(const struct kv_codebook *b, size_t head,
                   const uint8_t *from, const int8_t *q8, size_t n,
                   const struct qk *to)
{
    const uint8_t *planes = planes_of(b, head);

    switch (kind(b, n)) {
#define CASE(R, N, HALVES, ONE)                             \
    case KIND(R, N, HALVES, ONE):                           \
        own_qk(b, planes, from, q8, R, N, HALVES, ONE, to); \
        break;
        EVERY_ROWS(KINDS, CASE)
#undef CASE
    }
}

static void pv_own(const struct kv_codebook *b, size_t head,
                   const uint8_t *from, const int8_t *p8, const float *scale,
                   size_t n, size_t n_acc, float *acc)
{
    const uint8_t *planes = planes_of(b, head);

    switch (kind(b, n)) {
#define CASE(R, N, HALVES, ONE)                                            \
    case KIND(R, N, HALVES, ONE):                                          \
        own_pv(b, planes, from, p8, scale, R, N, HALVES, ONE, n_acc, acc); \
        break;
        EVERY_ROWS(KINDS, CASE)
#undef CASE
    }
}

/* ---- wide -----------------------------------------------------------------
 *
 * Codes of more than 8 bits: whole entries are copied to memory, where the
 * width bytes of a token are neighbours. */

/* Writes the codes of a sub-space to code [64]. */
static void wide_codes(const struct kv_codebook *b, const uint8_t *tile,
                       size_t sub, uint16_t *code)
{
    const uint8_t *low = tile + sub * T;
    const uint8_t *bits = tile + b->n_sub * T + sub * (b->bits - 8) * (T / 8);
    vi32 x[2];

    kv_prefetch_far(low, KV_FAR_CODES, LINE);
    UNROLL
    for (size_t h = 0; h < 2; h++)
        x[h] = _mm512_cvtepu8_epi16(
            _mm256_loadu_si256((const __m256i *)(low + h * 32)));
    for (unsigned i = 8; i < b->bits; i++, bits += T / 8) {
        const vi32 bit = v_set1_i16((short)(1u << i));

        UNROLL
        for (size_t h = 0; h < 2; h++) {
            __mmask32 has;

            memcpy(&has, bits + h * 4, sizeof(has));
            x[h] = _mm512_mask_add_epi16(x[h], has, x[h], bit);
        }
    }
    UNROLL
    for (size_t h = 0; h < 2; h++)
        v_store_i32(code + h * 32, x[h]);
}

/* Word by word: the gather instructions are slower. */
#define ENTRIES(TYPE)                                                     \
    for (size_t i = 0; i < T; i++) {                                      \
        TYPE one;                                                         \
                                                                          \
        memcpy(&one, entry + (size_t)code[i] * sizeof(one), sizeof(one)); \
        memcpy(x + i * sizeof(one), &one, sizeof(one));                   \
    }

/* Looks up the entries of one table for 64 codes, to x [64][width]. */
static void entries(const uint8_t *entry, size_t width, const uint16_t *code,
                    uint8_t *x)
{
    struct sixteen {
        uint64_t half[2];
    };

    if (width == 4) {
        _Pragma("GCC unroll 8") ENTRIES(uint32_t)
    } else if (width == 8) {
        _Pragma("GCC unroll 8") ENTRIES(uint64_t)
    } else {
        _Pragma("GCC unroll 4") ENTRIES(struct sixteen)
    }
}

static void all_entries(const struct kv_codebook *b, size_t head,
                        const uint8_t *tile, uint8_t *x)
{
    uint16_t code[2][T]; /* one sub-space ahead, so that stores are done */

    wide_codes(b, tile, 0, code[0]);
    for (size_t i = 0; i < b->n_sub; i++) {
        if (i + 1 < b->n_sub)
            wide_codes(b, tile, i + 1, code[(i + 1) % 2]);
        entries(b->entry + kv_codebook_at(b, head, i) * b->k * b->width,
                b->width, code[i % 2], x + i * T * b->width);
    }
}

/* Repeats `width` bytes throughout the register. */
ALWAYS_INLINE vi32 all_width(const int8_t *q, size_t width)
{
    int64_t x;

    if (width == 4)
        return all4(q);
    if (width == 16)
        return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)q));
    memcpy(&x, q, sizeof(x));
    return _mm512_set1_epi64(x);
}

/* Sums of neighbours of a and b, in their order. */
ALWAYS_INLINE vi32 pairs(vi32 a, vi32 b)
{
    const vi32 even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12,
                                       10, 8, 6, 4, 2, 0);
    const vi32 odd = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13,
                                      11, 9, 7, 5, 3, 1);

    return v_add_i32(_mm512_permutex2var_epi32(a, even, b),
                     _mm512_permutex2var_epi32(a, odd, b));
}

/* Scores 64 tokens, 256 / width at a time; rows and width are constants. */
ALWAYS_INLINE void wide_qk(const struct kv_codebook *b, const uint8_t *x,
                           const int8_t *q8, size_t rows, size_t width,
                           const struct qk *to)
{
    const size_t tokens = 256 / width;

    for (size_t part = 0; part < T / tokens; part++) {
        vi32 s[ROWS][4];

        UNROLL
        for (size_t r = 0; r < rows; r++)
            UNROLL
        for (size_t k = 0; k < 4; k++)
            s[r][k] = v_zero_i32();
        for (size_t i = 0; i < b->n_sub; i++) {
            const uint8_t *from = x + i * T * width + part * 256;
            vi32 key[4];

            UNROLL
            for (size_t k = 0; k < 4; k++)
                key[k] = v_load_i32(from + k * LINE);
            UNROLL
            for (size_t r = 0; r < rows; r++) {
                const vi32 by = all_width(q8 + (i * rows + r) * width, width);

                UNROLL
                for (size_t k = 0; k < 4; k++)
                    add_products(&s[r][k], key[k], by);
            }
        }
        UNROLL
        for (size_t r = 0; r < rows; r++) {
            const size_t at = part * tokens;

            if (width == 4) {
                UNROLL
                for (size_t k = 0; k < 4; k++)
                    put_sums(to, r, at + k * 16, s[r][k]);
                continue;
            }

            const vi32 low = pairs(s[r][0], s[r][1]);
            const vi32 high = pairs(s[r][2], s[r][3]);

            if (width == 16) {
                put_sums(to, r, at, pairs(low, high));
                continue;
            }
            put_sums(to, r, at, low);
            put_sums(to, r, at + 16, high);
        }
    }
}

/* Transposes [tokens][width] to [fours of tokens][width][4 tokens]. */
ALWAYS_INLINE vi32 transpose_order(size_t width)
{
    uint8_t from[64];

    for (size_t i = 0; i < 64; i++)
        from[i] =
            (uint8_t)((i / (4 * width) * 4 + i % 4) * width + i / 4 % width);
    return v_load_i32(from);
}

/* rows and width are constants. */
ALWAYS_INLINE void wide_pv(const struct kv_codebook *b, const uint8_t *x,
                           const int8_t *p8, const float *scale, size_t rows,
                           size_t width, size_t n_acc, float *acc)
{
    const size_t subs = 16 / width; /* whose sums fill a register */
    const vi32 transpose = transpose_order(width);
    vi32 by[ROWS][16]; /* [register of 64 / width tokens] */

    for (size_t k = 0; k < width; k++) {
        int32_t from[16];

        for (size_t i = 0; i < 16; i++)
            from[i] = (int32_t)(k * subs + i / width);
        for (size_t r = 0; r < rows; r++)
            by[r][k] = _mm512_permutexvar_epi32(v_load_i32(from),
                                                v_load_i32(p8 + r * T));
    }
    for (size_t i = 0; i < b->n_sub; i += subs) {
        vi32 s[ROWS][4];

        UNROLL
        for (size_t h = 0; h < subs; h++) {
            UNROLL
            for (size_t r = 0; r < rows; r++)
                s[r][h] = v_zero_i32();
            if (i + h >= b->n_sub)
                continue;
            UNROLL
            for (size_t k = 0; k < width; k++) {
                const vi32 v = _mm512_permutexvar_epi8(
                    transpose, v_load_i32(x + ((i + h) * width + k) * LINE));

                UNROLL
                for (size_t r = 0; r < rows; r++)
                    add_products(&s[r][h], by[r][k], v);
            }
        }
        UNROLL
        for (size_t r = 0; r < rows; r++) {
            vi32 all = s[r][0];

            if (width == 8)
                all = v_add_i32(_mm512_shuffle_i32x4(s[r][0], s[r][1], 0x44),
                                _mm512_shuffle_i32x4(s[r][0], s[r][1], 0xee));
            else if (width == 4)
                all = sum_lanes(s[r]);
            add_sum(acc + r * n_acc + i * width, scale[r], all);
        }
    }
}

#define WIDTHS(X, R) X(R, 4) X(R, 8) X(R, 16)

static void qk_wide(const struct kv_codebook *b, size_t head,
                    const uint8_t *from, const int8_t *q8, size_t n,
                    const struct qk *to)
{
    (void)head;
    switch (n << 8 | b->width) {
#define CASE(R, W)                      \
    case R << 8 | W:                    \
        wide_qk(b, from, q8, R, W, to); \
        break;
        EVERY_ROWS(WIDTHS, CASE)
#undef CASE
    }
}

static void pv_wide(const struct kv_codebook *b, size_t head,
                    const uint8_t *from, const int8_t *p8, const float *scale,
                    size_t n, size_t n_acc, float *acc)
{
    (void)head;
    switch (n << 8 | b->width) {
#define CASE(R, W)                                     \
    case R << 8 | W:                                   \
        wide_pv(b, from, p8, scale, R, W, n_acc, acc); \
        break;
        EVERY_ROWS(WIDTHS, CASE)
#undef CASE
    }
}

/* ---- all orders ------------------------------------------------------------
 */

static kv_codebook_some_qk_fn *const some_qk[] = {
    [KV_ORDER_SHARED] = kv_codebook_qk_shared,
    [KV_ORDER_OWN] = qk_own,
    [KV_ORDER_WIDE] = qk_wide,
};

static kv_codebook_some_pv_fn *const some_pv[] = {
    [KV_ORDER_SHARED] = kv_codebook_pv_shared,
    [KV_ORDER_OWN] = pv_own,
    [KV_ORDER_WIDE] = pv_wide,
};

static size_t rows_from(size_t r, size_t rows)
{
    return rows - r < ROWS ? rows - r : ROWS;
}

/* The input of the sums: the tile, or its entries in x. */
static const uint8_t *ready(const struct kv_codebook *b, size_t head,
                            const uint8_t *tile, uint8_t *x)
{
    if (b->order != KV_ORDER_WIDE)
        return tile;
    all_entries(b, head, tile, x);
    return x;
}

void kv_codebook_qk_vnni(const struct kv_store *s, size_t head,
                         const uint8_t *tile, const void *query, size_t rows,
                         float *score, size_t stride)
{
    const struct kv_codebook *b = s->params;
    const struct kv_codebook_q8 *q = query;
    _Alignas(LINE) uint8_t x[MAX_ENTRIES];
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

/* Rounds a tile's weights, all >= 0, to 8 bits: p8 [rows][64], scale [rows].
 * rows is a constant. */
ALWAYS_INLINE void round_some(const float *p, size_t stride, size_t rows,
                              int8_t *p8, float *scale)
{
    vf32 max[ROWS];
    float each[ROWS], by[ROWS];

    UNROLL
    for (size_t r = 0; r < ROWS; r++) {
        const float *x = p + (r < rows ? r : 0) * stride;

        max[r] = v_max(v_max(v_load(x), v_load(x + 16)),
                       v_max(v_load(x + 32), v_load(x + 48)));
    }
    v_max4(max, each);
    kv_units8_of_four(each, by);
    memcpy(scale, each, rows * sizeof(*scale));
    UNROLL
    for (size_t r = 0; r < rows; r++) {
        vf32 x[4];

        UNROLL
        for (size_t i = 0; i < 4; i++)
            x[i] = v_mul(v_load(p + r * stride + i * 16), v_set1(by[r]));
        v_store_i8x4(p8 + r * T, x);
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
    _Alignas(LINE) uint8_t x[MAX_ENTRIES];
    const uint8_t *from = ready(b, head, tile, x);

    for (size_t r = 0; r < rows; r += ROWS) {
        const size_t n = rows_from(r, rows);

        round_weights(p + r * stride, stride, n, p8, scale);
        some_pv[b->order](b, head, from, p8, scale, n, n_acc, acc + r * n_acc);
    }
}
