#include "kernels/codebook/impl.h"
#include "kernels/level.h"
#include "lib/base/alloc.h"

#include <math.h>
#include <stdlib.h>

enum {
    T = KV_TILE_TOKENS,
    PART = KV_TILE_PART,
    MAX_DIM = KV_CODEBOOK_DIM,
    LINE = 64
};

static const struct kv_codebook *book_of(const struct kv_store *s)
{
    return s->params;
}

/* ---- tables ---------------------------------------------------------------
 */

/* Rounds the centroids [k][d] of one table to 8 bits. */
static void round_table(struct kv_codebook *b, size_t head, size_t sub,
                        int bias)
{
    const size_t at = kv_codebook_at(b, head, sub);
    const size_t end = b->sub_books > 1 ? sub + 1 : b->n_sub;
    const float *from = b->centers + at * b->k * b->d;

    for (size_t j = 0; j < b->d; j++) {
        float max = 0;

        for (size_t i = 0; i < b->k; i++)
            max = fmaxf(max, fabsf(from[i * b->d + j]));
        for (size_t i = sub; i < end; i++)
            b->scale[(head * b->n_sub + i) * b->d + j] = max / 127;
        for (size_t i = 0; i < b->k; i++) {
            const float x = max > 0 ? from[i * b->d + j] / max * 127 : 0;
            const uint8_t code = (uint8_t)((int)rintf(x) + bias);

            b->entry[(at * b->k + i) * b->width + j] = code;
            if (b->planes)
                b->planes[kv_codebook_channel(b, head, sub, j) * b->plane + i] =
                    code;
        }
    }
}

/* The index of a sub-vector's channel j in a row of q8. */
static size_t q_at(const struct kv_codebook *b, size_t sub, size_t j)
{
    switch (b->order) {
    case KV_ORDER_SHARED:
        return (sub / 4 * b->d + j) * 4 + sub % 4;
    case KV_ORDER_OWN:
        return sub * b->d + j;
    case KV_ORDER_WIDE:
        break;
    }
    return sub * b->width + j;
}

/* The same index in a row of the values' sums. */
static size_t sum_at(const struct kv_codebook *b, size_t sub, size_t j)
{
    if (b->order == KV_ORDER_SHARED)
        return (sub / 16 * b->d + j) * 16 + sub % 16;
    return q_at(b, sub, j);
}

static enum kv_codebook_order order_of(unsigned bits, size_t sub_books)
{
    if (bits > 8)
        return KV_ORDER_WIDE;
    return sub_books > 1 ? KV_ORDER_OWN : KV_ORDER_SHARED;
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
    b->scale = kv_alloc(head_books * n_sub * d, sizeof(*b->scale));
    b->q_at = kv_alloc(n_sub * d, sizeof(*b->q_at));
    b->sum_at = kv_alloc(n_sub * d, sizeof(*b->sum_at));
    for (size_t c = 0; c < n_sub * d; c++) {
        b->q_at[c] = (uint16_t)q_at(b, c / d, c % d);
        b->sum_at[c] = (uint16_t)sum_at(b, c / d, c % d);
    }
    b->entry = kv_lines(books * b->k, b->width);
    if (bits <= 8) {
        b->channels = sub_books > 1 ? kv_round_up(n_sub * d, 16) : d;
        b->plane = bits <= 6 ? 64 : 256;
        b->planes = kv_lines(head_books * b->channels, b->plane);
        b->sub_of = kv_alloc(b->channels, sizeof(*b->sub_of));
    }
    for (size_t c = 0; c < b->channels; c++)
        b->sub_of[c] = (uint16_t)(c / d < n_sub ? c / d : n_sub - 1);
    for (size_t h = 0; h < head_books; h++)
        for (size_t i = 0; i < sub_books; i++)
            round_table(b, h, i, values ? 0 : KV_KEY_BIAS);
    return b;
}

void kv_codebook_free(struct kv_codebook *b)
{
    if (!b)
        return;
    kv_tiles_rope_free(b->rope);
    free(b->sub_of);
    free(b->sum_at);
    free(b->q_at);
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
    case KV_ORDER_SHARED:
        return kv_round_up(b->n_sub, values ? 16 : 4) * T /
               (b->bits <= 4 ? 2 : 1);
    case KV_ORDER_OWN:
        return b->bits <= 4 ? kv_round_up(b->n_sub, 2) / 2 * T : b->n_sub * T;
    case KV_ORDER_WIDE:
        break;
    }
    return b->n_sub * T * b->bits / 8;
}

void kv_store_codebook(struct kv_store *s, const struct kv_codebook *b)
{
    s->family = &kv_family_codebook;
    s->params = b;
    s->tile_bytes = kv_round_up(code_bytes(b, s->values), LINE);
}

/* The byte of a code (b > 8: the low one), and its first bit. */
static size_t byte_of(const struct kv_store *s, size_t t, size_t sub,
                      unsigned *shift)
{
    const struct kv_codebook *b = book_of(s);
    const size_t half = b->bits <= 4 ? t / PART : 0;
    const size_t in = b->bits <= 4 ? t % PART : t; /* place in its part */
    const size_t tokens = b->bits <= 4 ? PART : T;

    *shift = (unsigned)(4 * half);
    switch (b->order) {
    case KV_ORDER_SHARED:
        return s->values ? (sub / 16 * tokens + in / 4 * 4) * 16 +
                               sub % 16 * 4 + in % 4
                         : (sub / 4 * tokens + in) * 4 + sub % 4;
    case KV_ORDER_OWN:
        *shift = b->bits <= 4 ? (unsigned)(sub % 2 * 4) : 0;
        return (b->bits <= 4 ? sub / 2 : sub) * T + t;
    case KV_ORDER_WIDE:
        break;
    }
    return sub * T + t;
}

void kv_store_put_indices(const struct kv_store *s, size_t t,
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

/* ---- exact: centroids unrounded ------------------------------------------ */

/* Writes 2 values each of 4 tokens to rows of x, 32 apart. */
static void rotate2(const float *a, const float *b, const float *c,
                    const float *d, float *x)
{
    const vf32x4 ab = {a[0], a[1], b[0], b[1]}, cd = {c[0], c[1], d[0], d[1]};

    v4_store(x, V4_SHUFFLE(ab, cd, 0, 2, 4, 6));
    v4_store(x + PART, V4_SHUFFLE(ab, cd, 1, 3, 5, 7));
}

/* Expands one sub-space's codes of 32 tokens, in fours, to x [d][32]. */
ALWAYS_INLINE void expand_keys(const float *table, size_t d,
                               const uint16_t *code, size_t four, size_t one,
                               float *x)
{
    for (size_t t = 0; t < PART; t += 4, code += four) {
        const float *row[4];
        size_t j = 0;

        for (size_t i = 0; i < 4; i++)
            row[i] = table + code[i * one] * d;
        for (; j + 4 <= d; j += 4)
            v4_store_transposed(x + j * PART + t, PART, v4_load(row[0] + j),
                                v4_load(row[1] + j), v4_load(row[2] + j),
                                v4_load(row[3] + j));
        for (; j + 2 <= d; j += 2)
            rotate2(row[0] + j, row[1] + j, row[2] + j, row[3] + j,
                    x + j * PART + t);
        for (; j < d; j++)
            for (size_t i = 0; i < 4; i++)
                x[j * PART + t + i] = row[i][j];
    }
}

/* expand_keys() for values, to x [32][stride]. */
ALWAYS_INLINE void expand_values(const float *table, size_t d,
                                 const uint16_t *code, size_t four,
                                 size_t stride, float *x)
{
    for (size_t t = 0; t < PART; t += 4, code += four)
        for (size_t i = 0; i < 4; i++)
            memcpy(x + (t + i) * stride, table + code[i] * d, d * sizeof(*x));
}

/* d is a constant for the usual dimensions. */
ALWAYS_INLINE void expand_all(const struct kv_store *s, size_t head, size_t d,
                              const uint16_t *code, struct kv_codebook_part p,
                              float *x)
{
    const struct kv_codebook *b = book_of(s);
    const size_t stride = kv_padded(s->head_dim);

    for (size_t i = 0; i < b->n_sub; i++) {
        const float *table = b->centers + kv_codebook_at(b, head, i) * b->k * d;
        const uint16_t *at = code + kv_codebook_in_part(p, i, 0);

        if (s->values)
            expand_values(table, d, at, p.four, stride, x + i * d);
        else if (p.one == 1)
            expand_keys(table, d, at, p.four, 1, x + i * d * PART);
        else
            expand_keys(table, d, at, p.four, 4, x + i * d * PART);
    }
}

static void expand(const struct kv_store *s, size_t head, const uint8_t *tile,
                   size_t part, float *x)
{
    const struct kv_codebook *b = book_of(s);
    const size_t stride = kv_padded(s->head_dim);
    uint16_t code[MAX_DIM * PART];
    const struct kv_codebook_part p = kv_store_get_codes(s, tile, part, code);

    if (s->values)
        for (size_t t = 0; t < PART; t++)
            memset(x + t * stride + s->head_dim, 0,
                   (stride - s->head_dim) * sizeof(*x));
    switch (b->d) {
    case 2:
        expand_all(s, head, 2, code, p, x);
        break;
    case 4:
        expand_all(s, head, 4, code, p, x);
        break;
    case 8:
        expand_all(s, head, 8, code, p, x);
        break;
    default:
        expand_all(s, head, b->d, code, p, x);
    }
    if (b->rope)
        kv_tiles_rope_rotate(b->rope,
                             kv_store_position(s, head, tile) + part * PART, x);
}

/* ---- int8 ------------------------------------------------------------------
 */

static size_t query_bytes(const struct kv_store *s)
{
    return sizeof(struct kv_codebook_q8) +
           kv_codebook_quads(s) * 4 * KV_TILE_ROWS;
}

/* Interleaves n rows of q8 [MAX_DIM], n <= KV_CODEBOOK_ROWS. */
static void put_rows(const struct kv_store *s, int8_t (*q8)[MAX_DIM], size_t n,
                     int8_t *to)
{
    const struct kv_codebook *b = book_of(s);
    const size_t some = b->order == KV_ORDER_WIDE ? b->width : 4;

    memset(to, 0, n * kv_codebook_quads(s) * 4);
    for (size_t c = 0; c < s->head_dim; c++) {
        const size_t in = b->q_at[c] & (some - 1);
        int8_t *at = to + (b->q_at[c] - in) * n + in;

        for (size_t r = 0; r < n; r++)
            at[r * some] = q8[r][c];
    }
}

static int32_t sum_of(const int8_t *x, size_t n)
{
    int32_t sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += x[i];
    return sum;
}

/* The query is multiplied by the table's scales before it is rounded. */
static void prepare(const struct kv_store *s, size_t head, const float *q,
                    size_t rows, void *query)
{
    const float *scale = kv_codebook_scales(book_of(s), head);
    const size_t padded = kv_padded(s->head_dim);
    struct kv_codebook_q8 *to = query;
    float x[KV_TILE_ROWS][MAX_DIM];

    for (size_t r = 0; r < rows; r++, q += s->head_dim) {
        for (size_t c = 0; c < s->head_dim; c++)
            x[r][c] = q[c] * scale[c];
        for (size_t c = s->head_dim; c < padded; c++)
            x[r][c] = 0;
    }
    kv_tile_loops()->round8(x[0], MAX_DIM, rows, padded, to->plain[0], MAX_DIM,
                            to->scale);
    for (size_t r = 0; r < rows; r++)
        to->start[r] = -KV_KEY_BIAS * sum_of(to->plain[r], s->head_dim);
    for (size_t r = 0; r < rows; r += KV_CODEBOOK_ROWS) {
        const size_t n =
            rows - r < KV_CODEBOOK_ROWS ? rows - r : KV_CODEBOOK_ROWS;

        put_rows(s, to->plain + r, n, to->q8 + kv_codebook_rows_at(s, r));
    }
}

/* finish() for one table for all sub-spaces, d and n_sub multiples of 4: takes
 * four sub-vectors and four dimensions at a time. */
static void finish_fours(const struct kv_codebook *b, const float *scale,
                         const float *acc, float *out)
{
    for (size_t i = 0; i < b->n_sub; i += 4)
        for (size_t j = 0; j < b->d; j += 4) {
            const float *at = acc + b->sum_at[i * b->d + j];
            vf32x4 x[4];

            for (size_t k = 0; k < 4; k++)
                x[k] = v4_load(at + k * 16) * scale[j + k];
            v4_store_transposed(out + i * b->d + j, b->d, x[0], x[1], x[2],
                                x[3]);
        }
}

static void finish(const struct kv_store *s, size_t head, const float *acc,
                   size_t rows, float *out)
{
    const struct kv_codebook *b = book_of(s);
    const float *scale = kv_codebook_scales(b, head);
    const int fours =
        b->order == KV_ORDER_SHARED && b->d % 4 == 0 && b->n_sub % 4 == 0;

    for (size_t r = 0; r < rows;
         r++, acc += kv_codebook_sums(s), out += s->head_dim) {
        if (fours) {
            finish_fours(b, scale, acc, out);
            continue;
        }
        for (size_t c = 0; c < s->head_dim; c++)
            out[c] = acc[b->sum_at[c]] * scale[c];
    }
}

static size_t tables8_bytes(size_t of_rows)
{
    return sizeof(struct kv_codebook_tables8) +
           KV_TILE_ROWS / KV_CODEBOOK_ROWS * of_rows;
}

static size_t lanes8_bytes(const struct kv_store *s)
{
    return tables8_bytes(kv_codebook_lanes8_bytes(book_of(s)));
}

static size_t planes8_bytes(const struct kv_store *s)
{
    return tables8_bytes(kv_codebook_planes8_bytes(book_of(s)));
}

/* ---- every version --------------------------------------------------------
 */

/* Path exact by tables; path int8 by products, and by tables.  tables8 sets
 * by_chunks at every level, since by_chunks decides how many tokens the softmax
 * takes at once. */
struct version {
    kv_codebook_qk_tiles_fn *qk_tables;
    kv_codebook_pv_tiles_fn *pv_tables;
    struct kv_tile_ops int8, tables8;
};

static const struct version versions[] = {
    [KV_LEVEL_C] = {kv_codebook_qk_tables_c,
                    kv_codebook_pv_tables_c,
                    {.query_bytes = query_bytes,
                     .prepare = prepare,
                     .qk = kv_codebook_qk_c,
                     .acc_floats = kv_codebook_sums,
                     .pv = kv_codebook_pv_c,
                     .finish = finish},
                    {.query_bytes = lanes8_bytes,
                     .prepare = kv_codebook_lanes8_c,
                     .qk = kv_codebook_qk8_c,
                     .by_chunks = true}},
#ifdef __x86_64__
    [KV_LEVEL_AVX2] = {kv_codebook_qk_tables_avx2,
                       kv_codebook_pv_tables_avx2,
                       {.query_bytes = query_bytes,
                        .prepare = prepare,
                        .qk = kv_codebook_qk_avx2,
                        .acc_floats = kv_codebook_sums_avx2,
                        .pv = kv_codebook_pv_avx2,
                        .finish = kv_codebook_finish_avx2},
                       {.query_bytes = lanes8_bytes,
                        .prepare = kv_codebook_lanes8_avx2,
                        .qk = kv_codebook_qk8_avx2,
                        .by_chunks = true}},
    [KV_LEVEL_AVX512] = {kv_codebook_qk_tables_avx2,
                         kv_codebook_pv_tables_avx2,
                         {.query_bytes = query_bytes,
                          .prepare = prepare,
                          .qk = kv_codebook_qk_vnni,
                          .acc_floats = kv_codebook_sums,
                          .pv = kv_codebook_pv_vnni,
                          .finish = finish},
                         {.query_bytes = planes8_bytes,
                          .prepare = kv_codebook_planes8_avx2,
                          .qk = kv_codebook_qk8_vnni,
                          .by_chunks = true,
                          .qk_tiles = kv_codebook_qk8_tiles_vnni}},
#endif
};

/* AVX-512 without VNNI and VBMI runs the AVX2 version. */
static const struct version *version(void)
{
    const enum kv_level level = kv_level_get();

    return &versions[level == KV_LEVEL_AVX512 && !kv_level_vnni()
                         ? KV_LEVEL_AVX2
                         : level];
}

/* Path exact for many tiles: by tables if there are enough tokens. */
static void exact_qk_tiles(const struct kv_store *s, size_t head,
                           const uint8_t *tile, size_t n, const void *query,
                           size_t rows, float *score, size_t stride)
{
    if (kv_codebook_tabled(book_of(s), n * T)) {
        version()->qk_tables(s, head, tile, n, query, rows, score, stride);
        return;
    }
    for (size_t i = 0; i < n; i++)
        kv_exact_qk(s, head, tile + i * s->tile_bytes, query, rows,
                    score + i * T, stride);
}

static void exact_pv_tiles(const struct kv_store *s, size_t head,
                           const uint8_t *tile, size_t n, const float *p,
                           size_t stride, size_t rows, float *acc)
{
    if (kv_codebook_tabled(book_of(s), n * T)) {
        version()->pv_tables(s, head, tile, n, p, stride, rows, acc);
        return;
    }
    for (size_t i = 0; i < n; i++)
        kv_exact_pv(s, head, tile + i * s->tile_bytes, p + i * T, stride, rows,
                    acc);
}

static const struct kv_tile_ops exact = {
    .query_bytes = kv_exact_query_bytes,
    .prepare = kv_exact_prepare,
    .qk = kv_exact_qk,
    .acc_floats = kv_exact_acc_floats,
    .pv = kv_exact_pv,
    .finish = kv_exact_finish,
    .by_chunks = true,
    .qk_tiles = exact_qk_tiles,
    .pv_tiles = exact_pv_tiles,
};

static const struct kv_tile_ops *ops(const struct kv_store *s,
                                     enum kv_path path)
{
    const struct kv_codebook *b = book_of(s);

    if (path == KV_PATH_EXACT)
        return kv_codebook_tabled(b, s->n) ? &exact : kv_tiles_expanded(s);
    if (!s->values && kv_codebook_tabled8(b, s->n))
        return &version()->tables8;
    return b->rope ? NULL : &version()->int8;
}

const struct kv_family kv_family_codebook = {
    .name = "codebook",
    .ops = ops,
    .expand = expand,
};
