#include "kernels/level.h"
#include "kernels/tiles_codebook_impl.h"
#include "lib/base/alloc.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { T = KV_TILE_TOKENS, PART = KV_TILE_PART, MOST_DIM = 512, LINE = 64 };

static const struct kv_codebook *book_of(const struct kv_store *s)
{
    return s->params;
}

/* ---- tables ---------------------------------------------------------------
 */

static size_t up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* One table's centroids [k][d] in 8 bits. */
static void round_table(struct kv_codebook *b, size_t at, int bias)
{
    const float *from = b->centers + at * b->k * b->d;

    for (size_t j = 0; j < b->d; j++) {
        float max = 0;

        for (size_t i = 0; i < b->k; i++)
            max = fmaxf(max, fabsf(from[i * b->d + j]));
        b->scale[at * b->d + j] = max / 127;
        for (size_t i = 0; i < b->k; i++) {
            const float x = max > 0 ? from[i * b->d + j] / max * 127 : 0;
            const uint8_t code = (uint8_t)((int)rintf(x) + bias);

            b->entry[(at * b->k + i) * b->width + j] = code;
            if (b->planes)
                b->planes[(at * b->d + j) * b->plane + i] = code;
        }
    }
}

static enum kv_code_order order_of(unsigned bits, size_t sub_books)
{
    if (bits > 8)
        return KV_CODES_WIDE;
    return sub_books > 1 ? KV_CODES_OWN : KV_CODES_SHARED;
}

struct kv_codebook *kv_codebook_new(const float *centers, size_t head_books,
                                    size_t sub_books, size_t n_sub, size_t d,
                                    unsigned bits, int values,
                                    struct kv_tiles_rope *rope)
{
    const size_t books = head_books * sub_books;
    struct kv_codebook *b = kv_alloc(1, sizeof(*b));

    *b = (struct kv_codebook){.order = order_of(bits, sub_books),
                              .head_books = head_books,
                              .sub_books = sub_books,
                              .n_sub = n_sub,
                              .d = d,
                              .k = (size_t)1 << bits,
                              .bits = bits,
                              .centers = centers,
                              .rope = rope,
                              .width = d <= 4   ? 4
                                       : d <= 8 ? 8
                                                : 16};
    if (rope)
        return b;
    b->scale = kv_alloc(books * d, sizeof(*b->scale));
    b->entry = kv_lines(books * b->k, b->width);
    if (bits <= 8) {
        b->plane = bits <= 6 ? 64 : b->k;
        b->planes = kv_lines(books * d, b->plane);
    }
    for (size_t i = 0; i < books; i++)
        round_table(b, i, values ? 0 : KV_KEY_BIAS);
    return b;
}

void kv_codebook_free(struct kv_codebook *b)
{
    if (!b)
        return;
    kv_tiles_rope_free(b->rope);
    free(b->scale);
    free(b->entry);
    free(b->planes);
    free(b);
}

/* ---- tiles ----------------------------------------------------------------
 */

static size_t code_bytes(const struct kv_codebook *b, int values)
{
    switch (b->order) {
    case KV_CODES_SHARED:
        return up(b->n_sub, values ? 16 : 4) * T / (b->bits <= 4 ? 2 : 1);
    case KV_CODES_OWN:
        return b->bits <= 4 ? up(b->n_sub, 2) / 2 * T : b->n_sub * T;
    case KV_CODES_WIDE:
        break;
    }
    return b->n_sub * T * b->bits / 8;
}

void kv_store_codebook(struct kv_store *s, const struct kv_codebook *b)
{
    s->family = &kv_family_codebook;
    s->params = b;
    s->tile_bytes = up(code_bytes(b, s->values), LINE);
}

/* The byte of a code (b > 8: the low one), and its first bit. */
static size_t byte_of(const struct kv_store *s, size_t t, size_t sub,
                      unsigned *shift)
{
    const struct kv_codebook *b = book_of(s);
    const size_t half = b->bits <= 4 ? t / PART : 0;
    const size_t in = b->bits <= 4 ? t % PART : t; /* of half a tile */
    const size_t tokens = b->bits <= 4 ? PART : T;

    *shift = (unsigned)(4 * half);
    switch (b->order) {
    case KV_CODES_SHARED:
        return s->values ? (sub / 16 * tokens + in / 4 * 4) * 16 +
                               sub % 16 * 4 + in % 4
                         : (sub / 4 * tokens + in) * 4 + sub % 4;
    case KV_CODES_OWN:
        *shift = b->bits <= 4 ? (unsigned)(sub % 2 * 4) : 0;
        return (b->bits <= 4 ? sub / 2 : sub) * T + t;
    case KV_CODES_WIDE:
        break;
    }
    return sub * T + t;
}

void kv_store_put_codes(const struct kv_store *s, size_t t,
                        const uint16_t *code, uint8_t *tile)
{
    const struct kv_codebook *b = book_of(s);

    for (size_t i = 0; i < b->n_sub; i++) {
        unsigned shift;
        uint8_t *at = tile + byte_of(s, t, i, &shift);

        *at = (uint8_t)(*at | code[i] << shift);
        for (unsigned bit = 8; bit < b->bits; bit++) {
            uint8_t *bits =
                tile + b->n_sub * T + (i * (b->bits - 8) + bit - 8) * (T / 8);

            bits[t / 8] =
                (uint8_t)(bits[t / 8] | (code[i] >> bit & 1) << t % 8);
        }
    }
}

void kv_store_get_codes(const struct kv_store *s, const uint8_t *tile,
                        size_t part, uint16_t *code)
{
    const struct kv_codebook *b = book_of(s);
    const uint8_t mask = b->bits <= 4 ? 15 : 255;

    for (size_t i = 0; i < b->n_sub; i++)
        for (size_t g = 0; g < PART; g += 4) {
            unsigned shift;
            const uint8_t *at = tile + byte_of(s, part * PART + g, i, &shift);
            /* tokens follow each other, but for shared keys */
            const size_t step =
                b->order == KV_CODES_SHARED && !s->values ? 4 : 1;

            for (size_t t = 0; t < 4; t++)
                code[i * PART + g + t] = at[t * step] >> shift & mask;
        }
    for (size_t i = 0; i < b->n_sub && b->bits > 8; i++)
        for (unsigned bit = 8; bit < b->bits; bit++) {
            const uint8_t *at = tile + b->n_sub * T +
                                (i * (b->bits - 8) + bit - 8) * (T / 8) +
                                part * (PART / 8);
            uint32_t bits;

            memcpy(&bits, at, sizeof(bits));
            for (size_t t = 0; t < PART; t++)
                code[i * PART + t] |= (uint16_t)((bits >> t & 1) << bit);
        }
}

void kv_code_entries(const uint8_t *entry, size_t width, const uint16_t *code,
                     size_t n, uint8_t *x)
{
    for (size_t i = 0; i < n; i++)
        switch (width) {
        case 4:
            memcpy(x + i * 4, entry + code[i] * 4, 4);
            break;
        case 8:
            memcpy(x + i * 8, entry + code[i] * 8, 8);
            break;
        default:
            memcpy(x + i * 16, entry + code[i] * 16, 16);
        }
}

/* ---- exact: centroids as they are ------------------------------------------
 */

typedef float v4 __attribute__((vector_size(16)));
typedef int i4 __attribute__((vector_size(16)));

static v4 load4(const float *x)
{
    v4 v;

    memcpy(&v, x, sizeof(v));
    return v;
}

static void store4(float *x, v4 v)
{
    memcpy(x, &v, sizeof(v));
}

#ifdef __clang__
#define MIX(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define MIX(a, b, i, j, k, l) __builtin_shuffle(a, b, (i4){i, j, k, l})
#endif

/* 4 values each of 4 tokens, to rows of x 32 apart. */
static void turn4(v4 a, v4 b, v4 c, v4 d, float *x)
{
    const v4 ab = MIX(a, b, 0, 4, 1, 5), cd = MIX(c, d, 0, 4, 1, 5);
    const v4 ab2 = MIX(a, b, 2, 6, 3, 7), cd2 = MIX(c, d, 2, 6, 3, 7);

    store4(x, MIX(ab, cd, 0, 1, 4, 5));
    store4(x + PART, MIX(ab, cd, 2, 3, 6, 7));
    store4(x + 2 * PART, MIX(ab2, cd2, 0, 1, 4, 5));
    store4(x + 3 * PART, MIX(ab2, cd2, 2, 3, 6, 7));
}

/* One sub-space's codes [32] to x [d][32]. */
static void expand_keys(const float *table, size_t d, const uint16_t *code,
                        float *x)
{
    for (size_t t = 0; t < PART; t += 4) {
        const float *row[4];
        size_t j = 0;

        for (size_t i = 0; i < 4; i++)
            row[i] = table + code[t + i] * d;
        for (; j + 4 <= d; j += 4)
            turn4(load4(row[0] + j), load4(row[1] + j), load4(row[2] + j),
                  load4(row[3] + j), x + j * PART + t);
        for (; j < d; j++)
            for (size_t i = 0; i < 4; i++)
                x[j * PART + t + i] = row[i][j];
    }
}

/* To x [32][stride]. */
static void expand_values(const float *table, size_t d, const uint16_t *code,
                          size_t stride, float *x)
{
    for (size_t t = 0; t < PART; t++)
        memcpy(x + t * stride, table + code[t] * d, d * sizeof(*x));
}

static void expand(const struct kv_store *s, size_t head, const uint8_t *tile,
                   size_t part, float *x)
{
    const struct kv_codebook *b = book_of(s);
    const size_t stride = kv_padded(s->head_dim), d = b->d;
    uint16_t code[MOST_DIM * PART];

    kv_store_get_codes(s, tile, part, code);
    if (s->values)
        for (size_t t = 0; t < PART; t++)
            memset(x + t * stride + s->head_dim, 0,
                   (stride - s->head_dim) * sizeof(*x));
    for (size_t i = 0; i < b->n_sub; i++) {
        const float *table = b->centers + kv_codebook_at(b, head, i) * b->k * d;

        /* the usual ones with a constant for the compiler */
        if (s->values && d == 2)
            expand_values(table, 2, code + i * PART, stride, x + i * 2);
        else if (s->values && d == 4)
            expand_values(table, 4, code + i * PART, stride, x + i * 4);
        else if (s->values && d == 8)
            expand_values(table, 8, code + i * PART, stride, x + i * 8);
        else if (s->values)
            expand_values(table, d, code + i * PART, stride, x + i * d);
        else if (d == 2)
            expand_keys(table, 2, code + i * PART, x + i * 2 * PART);
        else if (d == 4)
            expand_keys(table, 4, code + i * PART, x + i * 4 * PART);
        else if (d == 8)
            expand_keys(table, 8, code + i * PART, x + i * 8 * PART);
        else
            expand_keys(table, d, code + i * PART, x + i * d * PART);
    }
    if (b->rope)
        kv_tiles_rope_turn(b->rope,
                           kv_store_position(s, head, tile) + part * PART, x);
}

/* ---- int8 ------------------------------------------------------------------
 */

/* Plain C: what the sums are. */
static void scores_c(const struct kv_store *s, size_t head, const uint8_t *tile,
                     const struct kv_code_query *q, size_t rows, int32_t *sum)
{
    const struct kv_codebook *b = book_of(s);
    uint16_t code[MOST_DIM * PART];

    memset(sum, 0, rows * T * sizeof(*sum));
    for (size_t part = 0; part < T / PART; part++) {
        kv_store_get_codes(s, tile, part, code);
        for (size_t c = 0; c < s->head_dim; c++) {
            const size_t i = c / b->d;
            const uint8_t *entry =
                b->entry + kv_codebook_at(b, head, i) * b->k * b->width +
                c % b->d;

            for (size_t r = 0; r < rows; r++) {
                const int q8 = q->q8[kv_code_q_at(b, rows, r, c)];

                for (size_t t = 0; t < PART; t++)
                    sum[r * T + part * PART + t] +=
                        q8 * entry[code[i * PART + t] * b->width];
            }
        }
    }
}

static void gather_c(const struct kv_store *s, size_t head, const uint8_t *tile,
                     const int8_t *p8, const float *scale, size_t rows,
                     float *acc)
{
    const struct kv_codebook *b = book_of(s);
    const size_t n = kv_code_sums(s);
    uint16_t code[T / PART][MOST_DIM * PART];

    for (size_t part = 0; part < T / PART; part++)
        kv_store_get_codes(s, tile, part, code[part]);
    for (size_t c = 0; c < s->head_dim; c++) {
        const size_t i = c / b->d;
        const uint8_t *entry =
            b->entry + kv_codebook_at(b, head, i) * b->k * b->width + c % b->d;

        for (size_t r = 0; r < rows; r++) {
            int32_t sum = 0;

            for (size_t t = 0; t < T; t++)
                sum +=
                    p8[r * T + t] *
                    (int8_t)
                        entry[code[t / PART][i * PART + t % PART] * b->width];
            acc[r * n + kv_code_sum_at(b, c)] += scale[r] * (float)sum;
        }
    }
}

const struct kv_code_loops kv_code_loops_c = {.scores = scores_c,
                                              .gather = gather_c};

static const struct kv_code_loops *loops(void)
{
#ifdef __x86_64__
    if (kv_level_vnni())
        return &kv_code_loops_vnni;
#endif
    return &kv_code_loops_c;
}

static size_t query_bytes(const struct kv_store *s)
{
    return sizeof(struct kv_code_query) + kv_code_quads(s) * 4 * KV_TILE_ROWS;
}

/* The table's scales are in the query before it is rounded. */
static void prepare(const struct kv_store *s, size_t head, const float *q,
                    size_t rows, void *query)
{
    const struct kv_codebook *b = book_of(s);
    struct kv_code_query *to = query;
    float x[MOST_DIM] = {0};
    int8_t q8[MOST_DIM];

    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < s->head_dim; c++)
            x[c] =
                q[r * s->head_dim + c] *
                b->scale[kv_codebook_at(b, head, c / b->d) * b->d + c % b->d];
        to->scale[r] = kv_tile_loops()->round8(x, kv_padded(s->head_dim), q8);
        to->bias[r] = 0;
        for (size_t c = 0; c < s->head_dim; c++) {
            to->q8[kv_code_q_at(b, rows, r, c)] = q8[c];
            to->bias[r] += KV_KEY_BIAS * q8[c];
        }
    }
}

static void scores(const struct kv_store *s, size_t head, const uint8_t *tile,
                   const void *query, size_t rows, float *score, size_t stride)
{
    const struct kv_code_query *q = query;
    _Alignas(LINE) int32_t sum[KV_TILE_ROWS * T];

    loops()->scores(s, head, tile, q, rows, sum);
    for (size_t r = 0; r < rows; r++)
        for (size_t t = 0; t < T; t++)
            score[r * stride + t] =
                q->scale[r] * (float)(sum[r * T + t] - q->bias[r]);
}

static void gather(const struct kv_store *s, size_t head, const uint8_t *tile,
                   const float *p, size_t stride, size_t rows, float *acc)
{
    _Alignas(LINE) int8_t p8[KV_TILE_ROWS * T];
    float scale[KV_TILE_ROWS];

    for (size_t r = 0; r < rows; r++)
        scale[r] = kv_tile_loops()->round8(p + r * stride, T, p8 + r * T);
    loops()->gather(s, head, tile, p8, scale, rows, acc);
}

static void finish(const struct kv_store *s, size_t head, const float *acc,
                   size_t rows, float *out)
{
    const struct kv_codebook *b = book_of(s);
    const size_t n = kv_code_sums(s);

    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < s->head_dim; c++)
            out[r * s->head_dim + c] =
                acc[r * n + kv_code_sum_at(b, c)] *
                b->scale[kv_codebook_at(b, head, c / b->d) * b->d + c % b->d];
}

static const struct kv_tile_ops *ops(const struct kv_store *s,
                                     enum kv_path path)
{
    static const struct kv_tile_ops int8 = {
        .query_bytes = query_bytes,
        .prepare = prepare,
        .scores = scores,
        .acc_floats = kv_code_sums,
        .gather = gather,
        .finish = finish,
    };

    if (path == KV_PATH_EXACT)
        return kv_tiles_expanded(s);
    return book_of(s)->rope ? NULL : &int8;
}

const struct kv_family kv_family_codebook = {
    .name = "codebook",
    .ops = ops,
    .expand = expand,
};
