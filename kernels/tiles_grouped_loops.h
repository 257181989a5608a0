/* The loops of family "grouped" (tiles_grouped.c), WIDTH lanes side by side.
 * Included by tiles_grouped_c.c, _avx2.c and _vnni.c, which name the registers:
 *
 *   vf, vi              WIDTH floats, WIDTH 32-bit integers
 *   v_load v_store v_all v_add v_sub v_mul v_fma v_max v_abs   as they say
 *   v_half              from WIDTH 16-bit floats
 *   v_sums v_mosts      per row of x[4][REGS]: of its lanes, to out[4]; sums
 *                       as a tree, lane i with i + 8, then i + 4, i + 2, i + 1
 *   vi_load vi_store vi_all vi_add vi_and vi_or vi_shl vi_shr  as they say
 *   vi_near             to the nearest integer, half to even
 *   vi_float vi_store8  as floats; the low bytes
 *   vi_store64          the low bytes of 64 / WIDTH registers
 *   vi_dot(s, x, w)     s plus, per lane, the 4 bytes of x, below 32, times the
 *                       4 signed bytes of w; vi_dot_u: of unsigned bytes
 *   GROUPS(rows)        registers worked on together for so many rows, up to 4:
 *                       1, 2 or 4, as many as fit beside their sums */
#include "kernels/prefetch.h"
#include "kernels/tiles_grouped_impl.h"
#include "kernels/tiles_impl.h"
#include "kernels/unroll.h"

#include <string.h>

#if WIDTH == 1 /* plain C: loops stay loops */
#undef UNROLL
#define UNROLL
#endif

enum {
    REGS = KV_LANES / WIDTH,
    LINE = 64,
    PIECE = 64, /* lanes whose integer sums are held at a time */
    ROWS = 4    /* worked on together */
};
_Static_assert(ROWS == 4, "kv_units_of_four()");

ALWAYS_INLINE const struct kv_grouped *params_of(const struct kv_store *s)
{
    return s->params;
}

/* ---- heads ----------------------------------------------------------------
 */

/* Steps and offsets of a run, [width].  low: the values of code 0, else the
 * offsets as they are stored. */
static void read_heads(const struct kv_grouped *g, const uint8_t *table,
                       size_t run, int low, float *step, float *offset)
{
    const size_t width = kv_grouped_width(g), at = run * width;
    const uint8_t *steps = table + 2 * at;
    const uint8_t *offsets = table + 2 * g->n_runs * width;

    kv_prefetch(steps, 2 * width);
    for (size_t i = 0; i < width; i += WIDTH)
        v_store(step + i, v_half((const uint16_t *)steps + i));
    if (g->offset == KV_OFFSET_LOW) {
        const uint16_t *half = (const uint16_t *)offsets + at;

        kv_prefetch(half, 2 * width);
        for (size_t i = 0; i < width; i += WIDTH)
            v_store(offset + i, v_half(half + i));
        return;
    }
    for (size_t i = 0; i < width; i += WIDTH) {
        const vf zero = g->offset == KV_OFFSET_SAME
                            ? v_all(g->zero)
                            : v_load((const float *)offsets + at + i);

        v_store(offset + i,
                low ? v_sub(v_all(0), v_mul(zero, v_load(step + i))) : zero);
    }
}

/* ---- codes ----------------------------------------------------------------
 */

/* The codes' bits [shift, shift + width) from bits [from, from + width) of the
 * bytes of x. */
ALWAYS_INLINE vi plane(vi x, unsigned width, unsigned from, unsigned shift)
{
    const int mask = (int)(((1u << width) - 1) * 0x01010101u << shift);
    const vi moved = from > shift   ? vi_shr(x, from - shift)
                     : from < shift ? vi_shl(x, shift - from)
                                    : x;

    return vi_and(moved, vi_all(mask));
}

/* Cell e of a unit, the lanes that begin at byte `at` of a vector.  bits and e
 * are constants. */
ALWAYS_INLINE vi cell(const uint8_t *at, unsigned bits, unsigned e)
{
    unsigned shift = 0;
    vi x = vi_all(0);

    if (bits == 8)
        return vi_load(at + e * KV_PLANE);
    if (bits & 4) {
        x = plane(vi_load(at + e / 2 * KV_PLANE), 4, e % 2 * 4, 0);
        at += 4 * KV_PLANE;
        shift = 4;
    }
    if (bits & 2) {
        x = vi_or(x,
                  plane(vi_load(at + e / 4 * KV_PLANE), 2, e % 4 * 2, shift));
        at += 2 * KV_PLANE;
        shift += 2;
    }
    if (bits & 1)
        x = vi_or(x, plane(vi_load(at), 1, e, shift));
    return x;
}

/* Where lane `lane` of unit `unit` begins. */
ALWAYS_INLINE const uint8_t *lanes_at(const uint8_t *codes, size_t block_bytes,
                                      unsigned bits, size_t unit, size_t lane)
{
    return codes + lane / KV_LANES * block_bytes + unit * bits * KV_PLANE +
           lane % KV_LANES * 4;
}

/* ---- values, for the exact path -------------------------------------------
 */

ALWAYS_INLINE vf value(vf code, enum kv_offset kind, vf step, vf offset)
{
    return kind == KV_OFFSET_LOW ? v_add(offset, v_mul(step, code))
                                 : v_mul(v_sub(code, offset), step);
}

/* A rectangle of values: lanes [lane, lane_end), inner indices [inner,
 * inner_end), of one run; to x, whose first row is inner index `first` and
 * first column lane `left`. */
struct patch {
    size_t lane, lane_end, inner, inner_end;
    size_t first, left, row;
    float *x;
};

ALWAYS_INLINE void expand_patch(const struct kv_grouped *g,
                                const uint8_t *codes, struct patch p,
                                const float *step, const float *offset,
                                unsigned bits)
{
    const size_t block_bytes = kv_grouped_block_bytes(g);

    for (size_t l = p.lane; l < p.lane_end; l += WIDTH)
        for (size_t u = p.inner / KV_UNIT; u * KV_UNIT < p.inner_end; u++) {
            const uint8_t *at = lanes_at(codes, block_bytes, bits, u, l);

            if (l % KV_LANES == 0) /* lines far ahead slow this */
                kv_prefetch_near(at, KV_NEAR_GROUPED, bits * KV_PLANE);
            UNROLL
            for (unsigned e = 0; e < KV_UNIT_QUADS; e++) {
                const vi x = cell(at, bits, e);

                UNROLL
                for (unsigned j = 0; j < 4; j++) {
                    const size_t i = u * KV_UNIT + 4 * e + j;

                    if (i < p.inner || i >= p.inner_end)
                        continue;

                    const vi code = vi_and(vi_shr(x, 8 * j), vi_all(255));
                    float *to = p.x + (i - p.first) * p.row + l - p.left;

                    if (g->folded)
                        v_store(to, value(vi_float(code), g->offset,
                                          v_all(step[i]), v_all(offset[i])));
                    else
                        v_store(to,
                                value(vi_float(code), g->offset,
                                      v_load(step + l), v_load(offset + l)));
                }
            }
        }
}

static void expand_bits(const struct kv_grouped *g, const uint8_t *codes,
                        struct patch p, const float *step, const float *offset)
{
    switch (g->bits) {
#define CASE(B)                                     \
    case B:                                         \
        expand_patch(g, codes, p, step, offset, B); \
        break;
        CASE(1)
        CASE(2)
        CASE(3)
        CASE(4)
        CASE(5)
        CASE(6)
        CASE(7)
        CASE(8)
#undef CASE
    }
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t most(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void expand(const struct kv_store *s, size_t head, const uint8_t *tile,
                   size_t part, float *x)
{
    const struct kv_grouped *g = params_of(s);
    _Alignas(LINE) uint8_t copy[KV_HEADS_MOST];
    _Alignas(LINE) float step[KV_MOST_DIM], offset[KV_MOST_DIM];
    const uint8_t *table = kv_grouped_heads(s, head, tile, copy);
    const size_t begin = part * KV_TILE_PART, end = begin + KV_TILE_PART;
    const size_t used = s->values ? end : s->head_dim;
    struct patch whole = {.lane_end = g->lanes,
                          .inner_end = used,
                          .row = s->values ? g->lanes : KV_TILE_PART,
                          .x = x};

    if (s->values) {
        whole.inner = whole.first = begin;
    } else {
        whole.lane = whole.left = begin;
        whole.lane_end = end;
    }
    for (size_t run = 0; run < g->n_runs; run++) {
        const size_t from = run * g->run, to = from + g->run;
        struct patch p = whole;

        if (g->folded) {
            p.lane = most(p.lane, from);
            p.lane_end = least(p.lane_end, to);
        } else {
            p.inner = most(p.inner, from);
            p.inner_end = least(p.inner_end, to);
        }
        if (p.lane >= p.lane_end || p.inner >= p.inner_end)
            continue;
        read_heads(g, table, run, 0, step, offset);
        expand_bits(g, tile + g->head_bytes, p, step, offset);
    }
}

/* ---- int8: w in 8 bits -----------------------------------------------------
 */

/* What w (folded: times the steps) became beside its codes: per row the unit,
 * what the codes leave over, and sum w. */
struct rounded {
    float scale[KV_TILE_ROWS], bias[KV_TILE_ROWS], sum[KV_TILE_ROWS];
};

/* How w is rounded: to codes up to `most` in magnitude, 255 where no product
 * is negative; middle: the code that is met. */
struct rounding {
    float most, middle;
};

static struct rounding rounding_of(const struct kv_grouped *g, int values)
{
    const float top = (float)((1u << g->bits) - 1);

    return (struct rounding){.most = values && !g->negative ? 255 : 127,
                             .middle = g->offset == KV_OFFSET_SAME ? g->zero
                                                                   : top / 2};
}

/* WIDTH values of w, folded: times the steps. */
ALWAYS_INLINE vf product(const float *w, const float *step, size_t i)
{
    return step ? v_mul(v_load(w + i), v_load(step + i)) : v_load(w + i);
}

/* KV_LANES codes from i on, and their sums. */
ALWAYS_INLINE void round_lanes(const float *w, const float *step, size_t i,
                               vf by, vi *c, vi *codes)
{
    UNROLL
    for (size_t k = 0; k < REGS; k++) {
        c[k] = vi_near(v_mul(product(w, step, i + k * WIDTH), by));
        codes[k] = vi_add(codes[k], c[k]);
    }
}

/* The codes of a row of n; their sums to codes[REGS]. */
ALWAYS_INLINE void round_row(const float *w, const float *step, size_t n, vf by,
                             uint8_t *code, vi *codes)
{
    vi c[4 * REGS];
    size_t i = 0;

    for (; i + 4 * KV_LANES <= n; i += 4 * KV_LANES) {
        UNROLL
        for (size_t j = 0; j < 4; j++)
            round_lanes(w, step, i + j * KV_LANES, by, c + j * REGS, codes);
        vi_store64(code + i, c);
    }
    for (; i < n; i += KV_LANES) {
        round_lanes(w, step, i, by, c, codes);
        UNROLL
        for (size_t k = 0; k < REGS; k++)
            vi_store8(code + i + k * WIDTH, c[k]);
    }
}

/* Rows r to r + rows (<= ROWS, a constant), n a multiple of 16.  Folded: step,
 * and middle, the values of the middle code; else NULL. */
ALWAYS_INLINE void round_some(const float *w, size_t w_row, const float *step,
                              const float *middle, size_t n,
                              struct rounding how, size_t r, size_t rows,
                              uint8_t *code, size_t code_row,
                              struct rounded *out)
{
    vf top[ROWS][REGS], sum[ROWS][REGS];
    float unit[ROWS], by[ROWS], each[ROWS];

    UNROLL
    for (size_t i = 0; i < ROWS * REGS; i++)
        top[i / REGS][i % REGS] = sum[i / REGS][i % REGS] = v_all(0);
    for (size_t i = 0; i < n; i += WIDTH)
        UNROLL
    for (size_t j = 0; j < rows; j++) {
        const size_t k = i / WIDTH % REGS;
        const vf from = v_load(w + (r + j) * w_row + i);
        const vf x = product(w + (r + j) * w_row, step, i);

        top[j][k] = v_max(top[j][k], v_abs(x));
        sum[j][k] = middle ? v_fma(from, v_load(middle + i), sum[j][k])
                           : v_add(sum[j][k], x);
    }
    v_mosts(top, unit);
    kv_units_of_four(how.most, 0x1p-100f, unit, by);
    memcpy(out->scale + r, unit, rows * sizeof(*unit));
    if (!middle) {
        v_sums(sum, each);
        memcpy(out->sum + r, each, rows * sizeof(*each));
    }
    UNROLL
    for (size_t j = 0; j < rows; j++) {
        vi codes[REGS];

        UNROLL
        for (size_t k = 0; k < REGS; k++)
            codes[k] = vi_all(0);
        round_row(w + (r + j) * w_row, step, n, v_all(by[j]),
                  code + (r + j) * code_row, codes);
        UNROLL
        for (size_t k = 0; k < REGS; k++) {
            const vf all =
                middle ? sum[j][k] : v_mul(sum[j][k], v_all(how.middle));

            sum[j][k] = v_sub(
                all, v_mul(vi_float(codes[k]), v_all(how.middle * unit[j])));
        }
    }
    v_sums(sum, each);
    memcpy(out->bias + r, each, rows * sizeof(*each));
}

/* Rows w_row and code_row apart. */
static void round_rows(const float *w, size_t w_row, const float *step,
                       const float *middle, size_t n, struct rounding how,
                       size_t rows, uint8_t *code, size_t code_row,
                       struct rounded *out)
{
    size_t r = 0;

    for (; r + ROWS <= rows; r += ROWS)
        round_some(w, w_row, step, middle, n, how, r, ROWS, code, code_row,
                   out);
    for (; r < rows; r++)
        round_some(w, w_row, step, middle, n, how, r, 1, code, code_row, out);
}

/* step, low: of a run. */
static void round_folded(const struct kv_grouped *g, const float *w,
                         size_t w_row, const float *step, const float *low,
                         struct rounding how, size_t rows, uint8_t *code,
                         struct rounded *out)
{
    _Alignas(LINE) float middle[KV_MOST_DIM];
    const vf by = v_all(how.middle);

    for (size_t i = 0; i < g->inner; i += WIDTH)
        v_store(middle + i, v_fma(v_load(step + i), by, v_load(low + i)));
    round_rows(w, w_row, step, middle, g->inner, how, rows, code, g->inner,
               out);
}

/* Run by run; what is filled up has codes of zero. */
static void round_unfolded(const struct kv_grouped *g, const float *w,
                           size_t w_row, struct rounding how, size_t rows,
                           uint8_t *code, struct rounded *out)
{
    for (size_t run = 0, at = 0; run < g->n_runs; run++, at += g->run)
        round_rows(w + at, w_row, NULL, NULL, g->run, how, rows, code + at,
                   g->inner, &out[run]);
}

/* ---- int8: products --------------------------------------------------------
 */

/* Codes of lanes [lane, lane + n) and units [unit, unit_end), and w. */
struct factors {
    const uint8_t *codes;
    size_t block_bytes, lane, n, unit, unit_end;
    const uint8_t *w; /* [rows][inner], signed or not */
    size_t inner;
};

/* sum [rows][PIECE]: of lanes from `at` on.  bits, rows, positive (w is
 * unsigned) and g are constants. */
ALWAYS_INLINE void multiply_some(const struct factors *f, size_t at,
                                 unsigned bits, size_t rows, int positive,
                                 size_t g, int32_t *sum)
{
    const uint8_t *far = f->codes + (f->lane + at) / KV_LANES * f->block_bytes;
    vi s[ROWS][4];

    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t k = 0; k < g; k++)
        s[r][k] = vi_all(0);
    for (size_t u = f->unit; u < f->unit_end; u++) {
        const uint8_t *x[4];

        kv_prefetch_far(far + u * g * WIDTH / KV_LANES * bits * KV_PLANE,
                        KV_FAR, g * WIDTH / KV_LANES * bits * KV_PLANE);
        UNROLL
        for (size_t k = 0; k < g; k++) {
            x[k] = lanes_at(f->codes, f->block_bytes, bits, u,
                            f->lane + at + k * WIDTH);
            kv_prefetch_near(x[k], KV_NEAR_GROUPED, bits * KV_PLANE);
        }
        UNROLL
        for (unsigned e = 0; e < KV_UNIT_QUADS; e++) {
            vi c[4];

            UNROLL
            for (size_t k = 0; k < g; k++)
                c[k] = cell(x[k], bits, e);
            UNROLL
            for (size_t r = 0; r < rows; r++) {
                int32_t four;

                memcpy(&four, f->w + r * f->inner + u * KV_UNIT + 4 * e, 4);
                UNROLL
                for (size_t k = 0; k < g; k++)
                    s[r][k] = positive ? vi_dot_u(s[r][k], c[k], vi_all(four))
                                       : vi_dot(s[r][k], c[k], vi_all(four));
            }
        }
    }
    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t k = 0; k < g; k++)
        vi_store(sum + r * PIECE + at + k * WIDTH, s[r][k]);
}

ALWAYS_INLINE void multiply_rows(const struct factors *f, unsigned bits,
                                 size_t rows, int positive, int32_t *sum)
{
    size_t at = 0;

    if (GROUPS(rows) == 4)
        for (; at + 4 * WIDTH <= f->n; at += 4 * WIDTH)
            multiply_some(f, at, bits, rows, positive, 4, sum);
    if (GROUPS(rows) >= 2)
        for (; at + 2 * WIDTH <= f->n; at += 2 * WIDTH)
            multiply_some(f, at, bits, rows, positive, 2, sum);
    for (; at < f->n; at += WIDTH)
        multiply_some(f, at, bits, rows, positive, 1, sum);
}

#define EVERY_ROWS(X, B) X(B, 1) X(B, 2) X(B, 3) X(B, 4)
#define EVERY_BITS(X) \
    EVERY_ROWS(X, 2) EVERY_ROWS(X, 3) EVERY_ROWS(X, 4) EVERY_ROWS(X, 5)

/* At most ROWS rows. */
static void multiply_few(const struct factors *f, unsigned bits, size_t rows,
                         int positive, int32_t *sum)
{
    switch (bits * 16 + rows * 2 + (positive ? 1 : 0)) {
#define CASE(B, R)                      \
    case B * 16 + R * 2:                \
        multiply_rows(f, B, R, 0, sum); \
        break;                          \
    case B * 16 + R * 2 + 1:            \
        multiply_rows(f, B, R, 1, sum); \
        break;
        EVERY_BITS(CASE)
#undef CASE
    }
}

/* Unpacking the codes again costs less than fewer registers a row. */
static void multiply(struct factors f, unsigned bits, size_t rows, int positive,
                     int32_t *sum)
{
    for (size_t r = 0; r < rows; r += ROWS, f.w += ROWS * f.inner)
        multiply_few(&f, bits, least(rows - r, ROWS), positive,
                     sum + r * PIECE);
}

/* out (add: +) = scale S + bias, and unfolded that times step, plus low times
 * sum w; n lanes. */
static void put_lanes(const struct rounded *w, const int32_t *sum,
                      const float *step, const float *low, size_t rows,
                      size_t n, int add, float *out, size_t out_row)
{
    for (size_t r = 0; r < rows; r++) {
        const vf scale = v_all(w->scale[r]), bias = v_all(w->bias[r]);
        float *to = out + r * out_row;

        for (size_t l = 0; l < n; l += WIDTH) {
            vf x = v_fma(scale, vi_float(vi_load(sum + r * PIECE + l)), bias);

            if (step)
                x = v_fma(v_load(step + l), x,
                          v_mul(v_load(low + l), v_all(w->sum[r])));
            v_store(to + l, add ? v_add(v_load(to + l), x) : x);
        }
    }
}

/* One run's part of a tile: out [rows][lanes], from lane 0.  step and low: of
 * the lanes (unfolded), else NULL. */
static void put_run(const struct kv_grouped *g, const uint8_t *codes,
                    size_t run, const uint8_t *code, const struct rounded *w,
                    const float *step, const float *low, size_t rows,
                    int positive, int add, float *out, size_t out_row)
{
    _Alignas(LINE) int32_t sum[KV_TILE_ROWS * PIECE];
    const size_t from = run * g->run;
    const size_t end = g->folded ? from + g->run : g->lanes;
    struct factors f = {.codes = codes,
                        .block_bytes = kv_grouped_block_bytes(g),
                        .lane = g->folded ? from : 0,
                        .unit_end = g->inner / KV_UNIT,
                        .w = code,
                        .inner = g->inner};

    if (!g->folded && g->n_runs > 1) {
        f.unit = from / KV_UNIT;
        f.unit_end = f.unit + g->run / KV_UNIT;
    }
    for (; f.lane < end; f.lane += f.n) {
        const size_t l = f.lane;

        f.n = least(end - l, PIECE);
        multiply(f, g->bits, rows, positive, sum);
        put_lanes(w, sum, step ? step + l : NULL, low ? low + l : NULL, rows,
                  f.n, add, out + l, out_row);
    }
}

/* ---- int8: the operations --------------------------------------------------
 */

/* The parts of a query.  Folded: q [rows][inner] and what it became with the
 * heads at `heads`, which stay good while tiles share them; unfolded: per run,
 * once. */
struct folding {
    const uint8_t *first; /* tile */
    size_t run;
};

struct query {
    float *q;
    uint8_t *code; /* [rows][inner] signed */
    struct rounded *rounded;
    struct folding *now;
};

static size_t lines_of(size_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

/* Where they begin; q is first. */
struct places {
    size_t code, rounded, now, end;
};

static struct places places_of(const struct kv_grouped *g)
{
    const size_t n_rounded = g->folded ? 1 : g->n_runs;
    struct places p;

    p.code = lines_of(KV_TILE_ROWS * g->inner * sizeof(float));
    p.rounded = p.code + lines_of(KV_TILE_ROWS * g->inner);
    p.now = p.rounded + lines_of(n_rounded * sizeof(struct rounded));
    p.end = p.now + lines_of(sizeof(struct folding));
    return p;
}

static struct query query_at(const struct kv_grouped *g, const void *query)
{
    const struct places p = places_of(g);
    char *at = (char *)query;

    return (struct query){.q = (float *)(void *)at,
                          .code = (uint8_t *)at + p.code,
                          .rounded = (struct rounded *)(void *)(at + p.rounded),
                          .now = (struct folding *)(void *)(at + p.now)};
}

static size_t query_bytes(const struct kv_store *s)
{
    return places_of(params_of(s)).end;
}

static void prepare(const struct kv_store *s, size_t head, const float *q,
                    size_t rows, void *query)
{
    const struct kv_grouped *g = params_of(s);
    const struct query to = query_at(g, query);

    (void)head;
    memset(query, 0, query_bytes(s));
    for (size_t r = 0; r < rows; r++)
        memcpy(to.q + r * g->inner, q + r * s->head_dim,
               s->head_dim * sizeof(*q));
    if (!g->folded)
        round_unfolded(g, to.q, g->inner, rounding_of(g, 0), rows, to.code,
                       to.rounded);
}

static void scores(const struct kv_store *s, size_t head, const uint8_t *tile,
                   const void *query, size_t rows, float *score, size_t stride)
{
    const struct kv_grouped *g = params_of(s);
    const struct query q = query_at(g, query);
    const uint8_t *first = kv_grouped_first(s, head, tile);
    _Alignas(LINE) uint8_t copy[KV_HEADS_MOST];
    _Alignas(LINE) float step[KV_MOST_DIM], low[KV_MOST_DIM];

    for (size_t run = 0; run < g->n_runs; run++) {
        if (!g->folded) {
            read_heads(g, tile, run, 1, step, low);
            put_run(g, tile + g->head_bytes, run, q.code, &q.rounded[run], step,
                    low, rows, 0, run > 0, score, stride);
            continue;
        }
        if (q.now->first != first || q.now->run != run) {
            read_heads(g, kv_grouped_heads(s, head, tile, copy), run, 1, step,
                       low);
            round_folded(g, q.q, g->inner, step, low, rounding_of(g, 0), rows,
                         q.code, q.rounded);
            *q.now = (struct folding){first, run};
        }
        put_run(g, tile + g->head_bytes, run, q.code, q.rounded, NULL, NULL,
                rows, 0, 0, score, stride);
    }
}

static size_t acc_floats(const struct kv_store *s)
{
    return params_of(s)->lanes;
}

static void gather(const struct kv_store *s, size_t head, const uint8_t *tile,
                   const float *p, size_t stride, size_t rows, float *acc)
{
    const struct kv_grouped *g = params_of(s);
    _Alignas(LINE) uint8_t copy[KV_HEADS_MOST];
    _Alignas(LINE) float step[KV_MOST_DIM], low[KV_MOST_DIM];
    _Alignas(LINE) uint8_t code[KV_TILE_ROWS * KV_TILE_TOKENS];
    const struct rounding how = rounding_of(g, 1);
    struct rounded w[KV_TILE_TOKENS / KV_UNIT];
    const uint8_t *table = kv_grouped_heads(s, head, tile, copy);

    if (!g->folded)
        round_unfolded(g, p, stride, how, rows, code, w);
    for (size_t run = 0; run < g->n_runs; run++) {
        read_heads(g, table, run, 1, step, low);
        if (g->folded)
            round_folded(g, p, stride, step, low, how, rows, code, w);
        put_run(g, tile + g->head_bytes, run, code, g->folded ? w : &w[run],
                g->folded ? NULL : step, low, rows, how.most > 127, 1, acc,
                g->lanes);
    }
}

static void finish(const struct kv_store *s, size_t head, const float *acc,
                   size_t rows, float *out)
{
    (void)head;
    for (size_t r = 0; r < rows; r++)
        memcpy(out + r * s->head_dim, acc + r * params_of(s)->lanes,
               s->head_dim * sizeof(*out));
}

const struct kv_grouped_loops NAME(kv_grouped_loops) = {
    .expand = expand,
    .int8 = {.query_bytes = query_bytes,
             .prepare = prepare,
             .scores = scores,
             .acc_floats = acc_floats,
             .gather = gather,
             .finish = finish},
};
