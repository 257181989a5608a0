/* Codes of a tile, and their products with w in integers, for path int8, or in
 * floats (layout.c).  Included by loops.h. */
#include "kernels/integers/round.h"

enum { PIECE = 64 /* number of lanes whose integer sums are held at a time */ };

/* ---- codes ----------------------------------------------------------------
 */

/* The bits from `from` on of each byte of x, moved to `to`.  All arguments but
 * x are constants. */
ALWAYS_INLINE vi32 moved(vi32 x, unsigned width, unsigned from, unsigned to,
                         int shifts)
{
    const vi32 mask =
        v_set1_i32((int32_t)(((1u << width) - 1) * 0x01010101u << to));

#ifdef bits_of
    if (!shifts && from != to)
        return bits_of(x, width, from, to);
#else
    (void)shifts;
#endif
    return v_and(from > to ? v_shr_i32(x, from - to) : v_shl_i32(x, to - from),
                 mask);
}

/* Cell e of a unit, the lanes that begin at byte `at` of a vector.  bits, e and
 * shifts are constants. */
ALWAYS_INLINE vi32 cell(const uint8_t *at, unsigned bits, unsigned e,
                        int shifts)
{
    unsigned shift = 0;
    vi32 x = v_set1_i32(0);

    if (bits == 8)
        return v_load_i32(at + e * KV_PLANE);
    if (bits & 4) {
        x = moved(v_load_i32(at + e / 2 * KV_PLANE), 4, e % 2 * 4, 0, shifts);
        at += 4 * KV_PLANE;
        shift = 4;
    }
    if (bits & 2) {
        x = v_or(x, moved(v_load_i32(at + e / 4 * KV_PLANE), 2, e % 4 * 2,
                          shift, shifts));
        at += 2 * KV_PLANE;
        shift += 2;
    }
    if (bits & 1)
        x = v_or(x, moved(v_load_i32(at), 1, e, shift, shifts));
    return x;
}

/* The address of lane `lane` of unit `unit`. */
ALWAYS_INLINE const uint8_t *lanes_at(const uint8_t *codes, size_t block_bytes,
                                      unsigned bits, size_t unit, size_t lane)
{
    return codes + lane / KV_LANES * block_bytes + unit * bits * KV_PLANE +
           lane % KV_LANES * 4;
}

/* All cells of a unit. */
static void unpack(const uint8_t *at, unsigned bits, vi32 c[KV_UNIT_QUADS])
{
    switch (bits) {
#define CASE(B)                                      \
    case B:                                          \
        UNROLL                                       \
        for (unsigned e = 0; e < KV_UNIT_QUADS; e++) \
            c[e] = cell(at, B, e, 0);                \
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

/* Codes of 2, 4 or 8 bits (integers: or 3) of lanes [lane, lane + n) and units
 * [unit, unit_end), of each of `tiles` tiles; w, which they are multiplied
 * with, is [rows][inner of each tile], rows `w_row` bytes or (of one tile)
 * floats apart. */
struct factors {
    const uint8_t *codes;
    unsigned bits;
    size_t tiles, tile_bytes, block_bytes, lane, n, unit, unit_end, w_row;
    float middle;  /* code that is subtracted from codes before floats multiply
                    * them */
    int32_t whole; /* middle for fine integers */
    const int32_t *sums; /* sums of the fine integers of each row */
};

/* ---- integers --------------------------------------------------------------
 */

/* Prefetches lines [from, to) of several blocks of `each` lines, alternating
 * far and near ones, since many far requests in a row would stall. */
ALWAYS_INLINE void fetch(const uint8_t *far, const uint8_t *const x[4],
                         unsigned each, size_t from, size_t to)
{
    UNROLL
    for (size_t l = from; l < to; l++) {
        const size_t k = l / each * (KV_LANES / V_WIDTH);

        kv_prefetch_far(far + l * KV_PLANE, KV_FAR_INTEGERS, KV_PLANE);
        kv_prefetch_near(x[k] + l % each * KV_PLANE, KV_NEAR_INTEGERS,
                         KV_PLANE);
    }
}

/* Number of blocks of g registers from lane `at` on; 0 if earlier lanes share
 * their cache lines. */
ALWAYS_INLINE size_t blocks_of(const struct factors *f, size_t at, size_t g)
{
    const bool again = V_WIDTH < KV_LANES && (f->lane + at) % KV_LANES;

    return again ? 0 : (g * V_WIDTH + KV_LANES - 1) / KV_LANES;
}

/* Multiplies cell e of the codes in registers x[g] with each row's w. */
ALWAYS_INLINE void multiply_cell(const vi32 x[4], const uint8_t *w,
                                 size_t w_row, unsigned bits, unsigned e,
                                 size_t rows, enum factor kind, size_t g,
                                 vi32 s[ROWS][4], vi32 part[ROWS][4])
{
    UNROLL
    for (size_t r = 0; r < rows; r++) {
        int32_t four[2] = {0};

        memcpy(four, w + r * w_row + 4 * width_of(kind) * e,
               4 * width_of(kind));
        UNROLL
        for (size_t k = 0; k < g; k++)
            if (kind == FINE)
                dot_fine(&s[r][k], &part[r][k], x[k], v_set1_i32(four[0]),
                         v_set1_i32(four[1]));
            else
                dot(&s[r][k], &part[r][k], x[k], v_set1_i32(four[0]), bits,
                    kind == POSITIVE, e);
    }
}

/* The cells multiplied in one step of a loop over whole vectors; for 3 bits all
 * cells of a unit.  bits is a constant. */
ALWAYS_INLINE unsigned cells_of(unsigned bits)
{
    return bits == 8 ? 4 : bits == 3 ? KV_UNIT_QUADS : CELLS;
}

/* sum [rows][PIECE]: sums for lanes from `at` on.  bits, rows, kind, shifts and
 * g are constants. */
ALWAYS_INLINE void multiply_some(const struct factors *f, size_t at,
                                 unsigned bits, const uint8_t *w, size_t rows,
                                 enum factor kind, int shifts, size_t g,
                                 float *sum)
{
    const unsigned cells = cells_of(bits), steps_each = KV_UNIT_QUADS / cells;
    const size_t w_step = 4 * cells * width_of(kind);
    const unsigned lines = bits / steps_each; /* lines of a step */
    const size_t blocks = blocks_of(f, at, g);
    const size_t steps = (f->unit_end - f->unit) * steps_each;
    const uint8_t *far = f->codes + (f->lane + at) / KV_LANES * f->block_bytes;
    const uint8_t *x[4];
    vi32 s[ROWS][4], part[ROWS][4];

    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t k = 0; k < g; k++)
        s[r][k] = part[r][k] = v_set1_i32(0);
    w += f->unit * steps_each * w_step;
    far += f->unit * blocks * bits * KV_PLANE;
    UNROLL
    for (size_t k = 0; k < g; k++)
        x[k] = lanes_at(f->codes, f->block_bytes, bits, f->unit,
                        f->lane + at + k * V_WIDTH);
    for (size_t left = f->tiles * steps, here = steps; left; left--) {
        UNROLL
        for (unsigned e = 0; e < cells; e++) {
            vi32 c[4];

            fetch(far, x, lines, e * blocks * lines / cells,
                  (e + 1) * blocks * lines / cells);
            UNROLL
            for (size_t k = 0; k < g; k++)
                c[k] = cell(x[k], bits, e, shifts);
            multiply_cell(c, w, f->w_row, bits, e, rows, kind, g, s, part);
        }
        w += w_step;
        far += blocks * lines * KV_PLANE;
        UNROLL
        for (size_t k = 0; k < g; k++)
            x[k] += lines * KV_PLANE;
        if (--here)
            continue;
        here = steps;
        far += f->tile_bytes - steps * blocks * lines * KV_PLANE;
        UNROLL
        for (size_t k = 0; k < g; k++)
            x[k] += f->tile_bytes - steps * lines * KV_PLANE;
    }
    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t k = 0; k < g; k++) {
        vi32 all = s[r][k];

        if (kind == FINE)
            all = v_sub_i32(fine_sum(all, part[r][k]),
                            v_set1_i32(f->whole * f->sums[r]));
        v_store(sum + r * PIECE + at + k * V_WIDTH, v_from_i32(all));
    }
}

/* Calls f(registers) for lanes `at`, which it moves on, up to n.  Whole blocks
 * have REGS registers. */
#define EVERY_GROUP(sums, n, at, f)                          \
    do {                                                     \
        if (groups(sums) == 4)                               \
            for (; at + 4 * V_WIDTH <= n; at += 4 * V_WIDTH) \
                f(4);                                        \
        if (groups(sums) >= 2)                               \
            for (; at + 2 * V_WIDTH <= n; at += 2 * V_WIDTH) \
                f(2);                                        \
        if (groups(sums) == 1 || REGS % 2)                   \
            for (; at < n; at += V_WIDTH)                    \
                f(1);                                        \
    } while (0)

ALWAYS_INLINE void multiply_rows(const struct factors *f, unsigned bits,
                                 const uint8_t *w, size_t rows,
                                 enum factor kind, int shifts, float *sum)
{
    const size_t sums = (kind == FINE ? FINE_SUMS : SUMS) * rows;
    size_t at = 0;

#define SOME(G) multiply_some(f, at, bits, w, rows, kind, shifts, G, sum)
    EVERY_GROUP(sums, f->n, at, SOME);
#undef SOME
}

/* ---- floats ----------------------------------------------------------------
 */

/* cell() for any e; bits is a constant, and codes have one part. */
ALWAYS_INLINE vi32 cell_of_part(const uint8_t *at, unsigned bits, size_t e)
{
    const vi32 mask = v_set1_i32((int32_t)(((1u << bits) - 1) * 0x01010101u));
    const size_t each = 8 / bits; /* cells of a vector */

    return v_and(
        v_shr_i32(v_load_i32(at + e / each * KV_PLANE), e % each * bits), mask);
}

/* multiply_some() in floats, with codes minus the middle code, so that products
 * are about as small as products of values.  bits, rows and g are constants. */
ALWAYS_INLINE void multiply_floats_some(const struct factors *f, size_t at,
                                        unsigned bits, const float *w,
                                        size_t rows, size_t g, float *sum)
{
    const uint8_t *far = f->codes + (f->lane + at) / KV_LANES * f->block_bytes;
    const size_t blocks = blocks_of(f, at, g);
    const vf32 middle = v_set1(f->middle);
    vf32 s[ROWS][4];

    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t k = 0; k < g; k++)
        s[r][k] = v_set1(0);
    for (size_t u = f->unit; u < f->unit_end; u++) {
        const float *by = w + u * KV_UNIT;
        const uint8_t *x[4];

        UNROLL
        for (size_t k = 0; k < g; k++)
            x[k] = lanes_at(f->codes, f->block_bytes, bits, u,
                            f->lane + at + k * V_WIDTH);
        fetch(far + u * blocks * bits * KV_PLANE, x, bits, 0, blocks * bits);
        for (size_t e = 0; e < KV_UNIT_QUADS; e++) {
            vi32 c[4];

            UNROLL
            for (size_t k = 0; k < g; k++)
                c[k] = cell_of_part(x[k], bits, e);
            UNROLL
            for (unsigned j = 0; j < 4; j++, by++) {
                vf32 y[4];

                UNROLL
                for (size_t k = 0; k < g; k++)
                    y[k] = v_sub(v_from_i32(byte_of(c[k], j)), middle);
                UNROLL
                for (size_t r = 0; r < rows; r++)
                    UNROLL
                for (size_t k = 0; k < g; k++)
                    s[r][k] = v_muladd(v_set1(by[r * f->w_row]), y[k], s[r][k]);
            }
        }
    }
    UNROLL
    for (size_t r = 0; r < rows; r++)
        UNROLL
    for (size_t k = 0; k < g; k++)
        v_store(sum + r * PIECE + at + k * V_WIDTH, s[r][k]);
}

ALWAYS_INLINE void multiply_floats_rows(const struct factors *f, unsigned bits,
                                        const float *w, size_t rows, float *sum)
{
    size_t at = 0;

#define SOME(G) multiply_floats_some(f, at, bits, w, rows, G, sum)
    EVERY_GROUP(rows, f->n, at, SOME);
#undef SOME
}

/* ---- an instance for each set of constants ------------------------------- */

#if V_WIDTH == 1 /* none: loops stay loops */

static void multiply_few(const struct factors *f, const uint8_t *w, size_t rows,
                         enum factor kind, float *sum)
{
    multiply_rows(f, f->bits, w, rows, kind, 1, sum);
}

static void multiply_floats(const struct factors *f, const float *w,
                            size_t rows, float *sum)
{
    multiply_floats_rows(f, f->bits, w, rows, sum);
}

#else

ALWAYS_INLINE void multiply_bits(const struct factors *f, unsigned bits,
                                 const uint8_t *w, size_t rows,
                                 enum factor kind, float *sum)
{
    if (bits == 8 || bits == 3 || SHIFTS()) /* 3: for less code */
        multiply_rows(f, bits, w, rows, kind, 1, sum);
    else
        multiply_rows(f, bits, w, rows, kind, 0, sum);
}

#define EVERY_ROWS(X, B) X(B, 1) X(B, 2) X(B, 3) X(B, 4)
#define EVERY_WIDTH(X) EVERY_ROWS(X, 2) EVERY_ROWS(X, 4) EVERY_ROWS(X, 8)

/* Multiplies at most ROWS rows. */
static void multiply_few(const struct factors *f, const uint8_t *w, size_t rows,
                         enum factor kind, float *sum)
{
    switch ((f->bits * 8 + rows) * 4 + kind) {
#define CASE(B, R)                                \
    case (B * 8 + R) * 4 + SIGNED:                \
        multiply_bits(f, B, w, R, SIGNED, sum);   \
        break;                                    \
    case (B * 8 + R) * 4 + POSITIVE:              \
        multiply_bits(f, B, w, R, POSITIVE, sum); \
        break;
        EVERY_WIDTH(CASE)
        EVERY_ROWS(CASE, 3)
#undef CASE
#define CASE(B, R)                            \
    case (B * 8 + R) * 4 + FINE:              \
        multiply_bits(f, B, w, R, FINE, sum); \
        break;
        EVERY_ROWS(CASE, 8)
#undef CASE
    }
}

static void multiply_floats(const struct factors *f, const float *w,
                            size_t rows, float *sum)
{
    switch (f->bits * 8 + rows) {
#define CASE(B, R)                             \
    case B * 8 + R:                            \
        multiply_floats_rows(f, B, w, R, sum); \
        break;
        EVERY_WIDTH(CASE)
#undef CASE
    }
}

#endif

/* ---- of a run --------------------------------------------------------------
 */

/* Unpacking the codes again costs less than using fewer registers per row. */
static void multiply(struct factors *f, const void *w, const struct rounded *of,
                     enum factor kind, size_t rows, float *sum)
{
    for (size_t r = 0; r < rows; r += ROWS, sum += ROWS * PIECE) {
        const size_t some = kv_min(rows - r, ROWS), at = r * f->w_row;

        f->sums = of->codes + r;
        if (kind == FLOATS)
            multiply_floats(f, (const float *)w + at, some, sum);
        else
            multiply_few(f, (const uint8_t *)w + at, some, kind, sum);
    }
}

/* Whether products take codes of this width directly. */
ALWAYS_INLINE bool is_met(unsigned bits, enum factor kind)
{
    return bits == 2 || bits == 4 || bits == 8 || (bits == 3 && kind != FLOATS);
}

/* Writes the codes of `from` to `bytes`, a byte each. */
static struct factors widened(const struct factors *from, uint8_t *bytes)
{
    const size_t units = from->unit_end - from->unit;
    struct factors to = *from;

    to.codes = bytes;
    to.bits = 8;
    to.block_bytes = units * KV_UNIT_QUADS * KV_PLANE;
    to.tile_bytes = from->n / KV_LANES * to.block_bytes;
    to.lane = to.unit = 0;
    to.unit_end = units;
    for (size_t t = 0; t < from->tiles; t++)
        for (size_t l = 0; l < from->n; l += V_WIDTH)
            for (size_t u = 0; u < units; u++) {
                const uint8_t *at = lanes_at(from->codes + t * from->tile_bytes,
                                             from->block_bytes, from->bits,
                                             from->unit + u, from->lane + l);
                uint8_t *x = bytes + t * to.tile_bytes;
                vi32 c[KV_UNIT_QUADS];

                x += lanes_at(x, to.block_bytes, 8, u, l) - x;
                if (l % KV_LANES == 0)
                    kv_prefetch_near(at, KV_NEAR_INTEGERS,
                                     from->bits * KV_PLANE);
                unpack(at, from->bits, c);
                for (size_t e = 0; e < KV_UNIT_QUADS; e++, x += KV_PLANE)
                    v_store_i32((int32_t *)(void *)x, c[e]);
            }
    return to;
}

/* Widens codes that is_met() refuses, then multiplies them.  It is a separate
 * function so that other codes do not pay for it. */
static __attribute__((noinline)) void multiply_widened(const struct factors *f,
                                                       const void *w,
                                                       const struct rounded *of,
                                                       enum factor kind,
                                                       size_t rows, float *sum)
{
    _Alignas(LINE) uint8_t bytes[PIECE * MAX_INNER];
    struct factors wide = widened(f, bytes);
    const size_t width = kind == FLOATS ? sizeof(float) : width_of(kind);

    multiply(&wide, (const char *)w + f->unit * KV_UNIT * width, of, kind, rows,
             sum);
}

/* Sets out to (add: adds) unit S + bias for n lanes.  Unfolded, this is
 * multiplied by scale, and sum w times the value of code `zero` is added, with
 * the heads from lane `lane` on.  Folded, with add, the bias is left out.
 * folded is a constant. */
ALWAYS_INLINE void put_lanes(const struct kv_integers *g,
                             const struct rounded *w, const float *sum,
                             float zero, int folded, struct heads heads,
                             size_t lane, size_t rows, size_t n, int add,
                             float *out, size_t out_row)
{
    for (size_t l = 0; l < n; l += V_WIDTH) {
        vf32 scale = v_set1(0), at_zero = scale; /* not used folded */

        if (!folded)
            at_zero = value_at(g, heads, lane + l, v_set1(zero), &scale);
        for (size_t r = 0; r < rows; r++) {
            const vf32 unit = v_set1(w->unit[r]), bias = v_set1(w->bias[r]);
            const vf32 x = v_load(sum + r * PIECE + l);
            float *to = out + r * out_row + l;

            if (folded)
                v_store(to, v_muladd(unit, x, add ? v_load(to) : bias));
            else
                v_store(to, v_muladd(scale, v_muladd(unit, x, bias),
                                     v_muladd(at_zero, v_set1(w->sum[r]),
                                              add ? v_load(to) : v_set1(0))));
        }
    }
}

/* The lanes [lane, end) and units [unit, unit_end) of a run. */
struct part {
    size_t lane, end, unit, unit_end;
};

static struct part part_of(const struct kv_integers *g, size_t run)
{
    const size_t from = run * g->run, units = g->inner / KV_UNIT;

    if (g->folded)
        return (struct part){from, from + g->run, 0, units};
    if (g->n_runs == 1)
        return (struct part){0, g->lanes, 0, units};
    return (struct part){0, g->lanes, from / KV_UNIT,
                         (from + kv_integers_run(g, run)) / KV_UNIT};
}

/* Multiplies one run's part of `tiles` tiles.  codes: the first tile's; out:
 * [rows][lanes], from lane 0; heads: unfolded only.  folded and whether kind is
 * FLOATS are constants. */
ALWAYS_INLINE void put_run(const struct kv_integers *g, const uint8_t *codes,
                           size_t tiles, size_t run, const void *by,
                           size_t by_row, enum factor kind,
                           const struct rounded *w, int folded,
                           struct heads heads, size_t rows, int add, float *out,
                           size_t out_row)
{
    _Alignas(LINE) float sum[KV_TILE_ROWS * PIECE];
    const int32_t whole = whole_middle_of(g);
    const float zero = kind == FLOATS ? middle_of(g)
                       : kind == FINE ? (float)whole
                                      : 0;
    const struct part p = part_of(g, run);
    struct factors f = {.codes = codes,
                        .bits = g->bits,
                        .tiles = tiles,
                        .tile_bytes = g->tile_bytes,
                        .block_bytes = kv_integers_block_bytes(g),
                        .unit = p.unit,
                        .unit_end = p.unit_end,
                        .w_row = by_row,
                        .middle = zero,
                        .whole = whole};

    for (f.lane = p.lane; f.lane < p.end; f.lane += f.n) {
        const size_t l = f.lane;

        f.n = kv_min(p.end - l, PIECE);
        if (is_met(g->bits, kind))
            multiply(&f, by, w, kind, rows, sum);
        else
            multiply_widened(&f, by, w, kind, rows, sum);
        put_lanes(g, w, sum, zero, folded, heads, l, rows, f.n, add, out + l,
                  out_row);
    }
}
