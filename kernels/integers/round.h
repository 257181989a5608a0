/* The heads of groups, and the rounding of w to 8 or 15 bits (layout.c).
 * Included by products.h. */
#include "kernels/integers/impl.h"
#include "kernels/simd/prefetch.h"
#include "kernels/tiles/impl.h"

#include <string.h>

enum {
    REGS = KV_LANES / V_WIDTH,
    LINE = 64,
    ROWS = 4,              /* rows processed together */
    RUNS = 4,              /* folded runs whose w is rounded together */
    TILES = 4,             /* the most tiles of values whose weights share one
                            * unit */
    MAX_INNER = KV_MAX_DIM /* maximum weights of tiles that share a unit */
};
_Static_assert(MAX_INNER >= TILES * KV_TILE_TOKENS, "of values, too");
_Static_assert(ROWS == 4, "kv_units_of_four()");
_Static_assert(RUNS *KV_LANES >= KV_TILE_TOKENS, "those of a tile of keys");

/* Registers worked on together, 1, 2 or 4: as many as fit in registers with
 * `sums` sums each. */
ALWAYS_INLINE size_t groups(size_t sums)
{
    const size_t fit = V_REGISTERS / (2 * sums);

    return fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
}

/* out[r]: the sum or the maximum of row r's lanes: lane i with i + 8, then
 * i + 4, i + 2, i + 1. */
#define REDUCE_ROWS(name, f, f4)                                 \
    ALWAYS_INLINE void name(vf32 x[ROWS][REGS], float out[ROWS]) \
    {                                                            \
        vf32 y[ROWS];                                            \
                                                                 \
        UNROLL                                                   \
        for (size_t r = 0; r < ROWS; r++) {                      \
            UNROLL                                               \
            for (size_t half = REGS / 2; half; half /= 2)        \
                UNROLL                                           \
            for (size_t i = 0; i < half; i++)                    \
                x[r][i] = f(x[r][i], x[r][i + half]);            \
            y[r] = x[r][0];                                      \
        }                                                        \
        f4(y, out);                                              \
    }
REDUCE_ROWS(sum_rows, v_add, v_sum4)
REDUCE_ROWS(max_rows, v_max, v_max4)

/* ---- heads ----------------------------------------------------------------
 */

/* The heads of a run: scales [width], and offsets where they are stored. */
struct heads {
    const uint16_t *scale;
    const void *offset; /* f16 (low) or f32 (zero) */
};

static struct heads heads_of(const struct kv_integers *g, const uint8_t *table,
                             size_t run)
{
    const size_t width = kv_integers_width(g), at = run * width;
    const uint8_t *offsets = table + 2 * g->n_runs * width;

    return (struct heads){(const uint16_t *)table + at,
                          offsets + kv_offset_bytes(g) * at};
}

/* Prefetches the heads ahead while a tile's heads are read, as fetch() does for
 * codes. */
ALWAYS_INLINE void fetch_heads(const struct kv_integers *g, const uint8_t *tile)
{
    kv_prefetch_far(tile, KV_FAR_INTEGERS, g->head_bytes);
    kv_prefetch_near(tile, KV_NEAR_INTEGERS, g->head_bytes);
}

/* Offsets from i on, in stored form. */
ALWAYS_INLINE vf32 offset_at(const struct kv_integers *g, struct heads h,
                             size_t i)
{
    return g->offset == KV_OFFSET_LOW
               ? v_load_f16((const uint16_t *)h.offset + i)
           : g->offset == KV_OFFSET_ZERO ? v_load((const float *)h.offset + i)
                                         : v_set1(g->zero);
}

/* The dequantized value of a code. */
ALWAYS_INLINE vf32 value(vf32 code, enum kv_offset kind, vf32 scale,
                         vf32 offset)
{
    return kind == KV_OFFSET_LOW ? v_add(offset, v_mul(scale, code))
                                 : v_mul(v_sub(code, offset), scale);
}

/* The dequantized value of a code with the heads from i on; their scales go to
 * scale. */
ALWAYS_INLINE vf32 value_at(const struct kv_integers *g, struct heads h,
                            size_t i, vf32 code, vf32 *scale)
{
    *scale = v_load_f16(h.scale + i);
    return value(code, g->offset, *scale, offset_at(g, h, i));
}

/* ---- int8: w in 8 or 15 bits -----------------------------------------------
 */

/* The numbers that codes are multiplied with: signed bytes, unsigned bytes,
 * FINE integers (two bytes each) or floats. */
enum factor { SIGNED, POSITIVE, FINE, FLOATS };

/* Quantized w (folded: w * scales) without its codes.  Each row has a unit, the
 * bias that the codes leave, and sum w; fine rows also the sum of the codes.
 * Where w is exact, the unit is 1. */
struct rounded {
    float unit[KV_TILE_ROWS], bias[KV_TILE_ROWS], sum[KV_TILE_ROWS];
    int32_t codes[KV_TILE_ROWS];
};

/* How w is rounded.  max: the largest magnitude of a code of w; middle: the
 * code that is subtracted from a code before w multiplies it; from: the number
 * already subtracted from codes that w multiplies. */
struct rounding {
    enum factor kind;
    float max, middle, from;
};

/* The middle code, which is subtracted from codes: the code of zero if all
 * groups share one. */
ALWAYS_INLINE float middle_of(const struct kv_integers *g)
{
    return g->offset == KV_OFFSET_SAME ? g->zero
                                       : (float)((1u << g->bits) - 1) / 2;
}

/* The whole code next to middle_of().  Fine sums subtract it in integers: in
 * f32 they are too large beside the small rest. */
ALWAYS_INLINE int32_t whole_middle_of(const struct kv_integers *g)
{
    return (int32_t)middle_of(g);
}

static struct rounding rounding_of(const struct kv_integers *g, int values)
{
    if (g->bits > KV_COARSE_BITS)
        return (struct rounding){.kind = FINE,
                                 .max = KV_FINE_BASE * KV_FINE_BASE,
                                 .middle = middle_of(g),
                                 .from = (float)whole_middle_of(g)};
    if (values && !g->negative)
        return (struct rounding){
            .kind = POSITIVE, .max = 255, .middle = middle_of(g)};
    return (struct rounding){
        .kind = SIGNED, .max = 127, .middle = middle_of(g)};
}

/* Bytes of a code of w. */
ALWAYS_INLINE size_t width_of(enum factor kind)
{
    return kind == FINE ? 2 : 1;
}

/* The most tiles of values whose weights share one unit.  The largest weight of
 * all these tiles sets the unit, so the other weights are rounded more
 * coarsely: where a few tokens have most of the weight, errors were twice as
 * large as with a unit per tile.  This is too much for signed weights (127
 * units), and for 5 bits, whose own errors are small. */
static size_t tiles_together(const struct kv_integers *g)
{
    return g->folded && !g->negative && g->bits <= 4 ? TILES : 1;
}

/* Structures are passed by address: a copy would read fields back right after
 * they were written, and wait for the writes. */

/* Rows of w [rows][n] that are rounded alike, to code [rows][n]; n is a
 * multiple of KV_LANES, rows of codes are code_row bytes apart.  Folded: with
 * the heads of the rows' run, `each` inner indices at a time; their scales are
 * left in scale [n]. */
struct rows {
    const float *w;
    size_t w_row, n, each;
    uint8_t *code;
    size_t code_row;
    struct heads heads[TILES];
    float *scale;
};

/* Sums and units of ROWS rows, found before the rows' codes. */
struct peaks {
    vf32 sum[ROWS]
            [REGS]; /* sum of w; folded: of w times the values of the middle
                     * code */
    float unit[ROWS], by[ROWS];
};

/* The peaks of rows r to r + rows (<= ROWS).  folded and rows are constants. */
ALWAYS_INLINE void find_peaks(const struct kv_integers *g, const struct rows *x,
                              int folded, struct rounding how, size_t r,
                              size_t rows, struct peaks *p)
{
    const size_t n = x->n, each = x->each, row = x->w_row;
    const vf32 middle = v_set1(how.middle);
    vf32 top[ROWS][REGS], sum[ROWS][REGS];

    UNROLL
    for (size_t i = 0; i < ROWS * REGS; i++)
        top[i / REGS][i % REGS] = sum[i / REGS][i % REGS] = v_set1(0);
    UNROLL
    for (size_t k = 0; k < REGS; k++) /* a constant: sums stay in registers */
        for (size_t t = 0; t * each < n; t++) {
            const float *const w = x->w + r * row + t * each;
            const struct heads heads = x->heads[t];

            for (size_t i = k * V_WIDTH; i < each; i += KV_LANES) {
                vf32 scale = middle, value_of_middle = middle; /* both set only
                                                                * if folded */

                if (folded) {
                    value_of_middle = value_at(g, heads, i, middle, &scale);
                    v_store(x->scale + t * each + i, scale);
                }
                UNROLL
                for (size_t j = 0; j < rows; j++) {
                    const vf32 from = v_load(w + j * row + i);
                    const vf32 y = folded ? v_mul(from, scale) : from;

                    top[j][k] = v_max(top[j][k], v_abs(y));
                    sum[j][k] = folded
                                    ? v_muladd(from, value_of_middle, sum[j][k])
                                    : v_add(sum[j][k], y);
                }
            }
        }
    max_rows(top, p->unit);
    kv_units_of_four(how.max, 0x1p-100f, p->unit, p->by);
    memcpy(p->sum, sum, sizeof(sum));
}

/* Makes V_WIDTH codes from i on. */
ALWAYS_INLINE vi32 round_at(const float *w, const float *scale, size_t i,
                            int folded, float by)
{
    const vf32 x = v_load(w + i);

    return v_to_i32(
        v_mul(folded ? v_mul(x, v_load(scale + i)) : x, v_set1(by)));
}

/* Computes the codes of these rows.  kind is how.kind, as a constant. */
ALWAYS_INLINE void round_some(const struct rows *x, int folded,
                              enum factor kind, struct rounding how, size_t r,
                              size_t rows, const struct peaks *p,
                              struct rounded *out)
{
    const float middle = how.middle - how.from;
    const float *const w = x->w + r * x->w_row, *const scale = x->scale;
    const size_t n = x->n, row = x->w_row, code_row = x->code_row;
    uint8_t *const code = x->code + r * code_row;
    vi32 codes[ROWS][REGS]; /* the codes' sums */
    vf32 sum[ROWS][REGS];
    float each[ROWS];
    size_t i = 0;

    UNROLL
    for (size_t k = 0; k < ROWS * REGS; k++)
        codes[k / REGS][k % REGS] = v_set1_i32(0);
    for (; kind == FINE && i < n; i += V_WIDTH)
        UNROLL
    for (size_t j = 0; j < rows; j++) {
        const vi32 c = round_at(w + j * row, scale, i, folded, p->by[j]);

        codes[j][0] = v_add_i32(codes[j][0], c);
        store_fine(code + j * code_row + 2 * i, c);
    }
    for (; i + LINE <= n; i += LINE)
        UNROLL
    for (size_t j = 0; j < rows; j++) {
        vi32 c[LINE / V_WIDTH];

        UNROLL
        for (size_t k = 0; k < LINE / V_WIDTH; k++)
            c[k] =
                round_at(w + j * row, scale, i + k * V_WIDTH, folded, p->by[j]);
        store64(code + j * code_row + i, c, kind == POSITIVE, codes[j]);
    }
    for (; i < n; i += V_WIDTH)
        UNROLL
    for (size_t j = 0; j < rows; j++) {
        const vi32 c = round_at(w + j * row, scale, i, folded, p->by[j]);

        codes[j][0] = v_add_i32(codes[j][0], c);
        v_store_low_i8(code + j * code_row + i, c);
    }
    if (!folded) {
        memcpy(sum, p->sum, sizeof(sum));
        sum_rows(sum, each);
        memcpy(out->sum + r, each, rows * sizeof(*each));
    }
    UNROLL
    for (size_t j = 0; j < ROWS; j++)
        UNROLL
    for (size_t k = 0; k < REGS; k++)
        sum[j][k] = v_muladd(
            v_from_i32(codes[j][k]), v_set1(-middle * p->unit[j]),
            folded ? p->sum[j][k] : v_mul(p->sum[j][k], v_set1(middle)));
    sum_rows(sum, each);
    memcpy(out->bias + r, each, rows * sizeof(*each));
    if (kind == FINE) {
        UNROLL
        for (size_t j = 0; j < ROWS; j++)
            UNROLL
        for (size_t k = 0; k < REGS; k++)
            sum[j][k] = v_from_i32(codes[j][k]); /* below 2^24, as their sum */
        sum_rows(sum, each);
        for (size_t j = 0; j < rows; j++)
            out->codes[r + j] = (int32_t)each[j];
    }
    memcpy(out->unit + r, p->unit, rows * sizeof(*p->unit));
}

/* Finds the peaks of all rows, to p[rows], in groups of ROWS and then one by
 * one.  round_all() then finds their codes. */
ALWAYS_INLINE void find_all_peaks(const struct kv_integers *g,
                                  const struct rows *x, int folded,
                                  struct rounding how, size_t rows,
                                  struct peaks *p)
{
    size_t r = 0;

    for (; r + ROWS <= rows; r += ROWS)
        find_peaks(g, x, folded, how, r, ROWS, p++);
    for (; r < rows; r++)
        find_peaks(g, x, folded, how, r, 1, p++);
}

ALWAYS_INLINE void round_all_of(const struct rows *x, int folded,
                                enum factor kind, struct rounding how,
                                size_t rows, const struct peaks *p,
                                struct rounded *out)
{
    size_t r = 0;

    for (; r + ROWS <= rows; r += ROWS)
        round_some(x, folded, kind, how, r, ROWS, p++, out);
    for (; r < rows; r++)
        round_some(x, folded, kind, how, r, 1, p++, out);
}

ALWAYS_INLINE void round_all(const struct rows *x, int folded,
                             struct rounding how, size_t rows,
                             const struct peaks *p, struct rounded *out)
{
    if (V_WIDTH == 1) /* rows is not a constant here */
        round_all_of(x, folded, how.kind, how, rows, p, out);
    else if (how.kind == FINE)
        round_all_of(x, folded, FINE, how, rows, p, out);
    else if (how.kind == POSITIVE)
        round_all_of(x, folded, POSITIVE, how, rows, p, out);
    else
        round_all_of(x, folded, SIGNED, how, rows, p, out);
}

/* Rounds n <= RUNS runs; out: [n].  Finding a peak has a long latency, so all
 * peaks are found before any codes. */
static void round_folded(const struct kv_integers *g, const struct rows *x,
                         size_t n, struct rounding how, size_t rows,
                         struct rounded *out)
{
    struct peaks peaks[RUNS][KV_TILE_ROWS];

    for (size_t i = 0; i < n; i++)
        find_all_peaks(g, &x[i], 1, how, rows, peaks[i]);
    for (size_t i = 0; i < n; i++)
        round_all(&x[i], 1, how, rows, peaks[i], &out[i]);
}

/* Each run has its part of w; padding has code 0. */
static void round_unfolded(const struct kv_integers *g, const float *w,
                           size_t w_row, struct rounding how, size_t rows,
                           uint8_t *code, struct rounded *out)
{
    const size_t width = width_of(how.kind);
    struct peaks peaks[KV_TILE_ROWS];

    for (size_t run = 0; run < g->n_runs; run++) {
        const struct rows x = {.w = w + run * g->run,
                               .w_row = w_row,
                               .n = kv_integers_run(g, run),
                               .each = kv_integers_run(g, run),
                               .code = code + run * g->run * width,
                               .code_row = g->inner * width};

        find_all_peaks(g, &x, 0, how, rows, peaks);
        round_all(&x, 0, how, rows, peaks, &out[run]);
    }
}
