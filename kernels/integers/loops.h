/* The operations of family "integers" (layout.c), V_WIDTH lanes side by side.
 * Included by c.c, avx2.c and avx512.c after their kernels/simd header, which
 * define beside it:
 *
 *   SUMS              registers that dot() adds to in a unit, 1 or 2
 *   CELLS             cells of 2- or 4-bit codes that are multiplied without a
 *                     loop: 4, or the 8 of a unit
 *   byte_of(x, j)     byte j of each lane; j is a constant
 *   bits_of(x, width, from, to)   only with an instruction for it: of each
 *                     byte the bits from `from` on, moved to `to`; constants
 *   SHIFTS()          whether bits_of() keeps products waiting; shifts do not
 *   store64(p, x, positive, codes)   x[64 / V_WIDTH] as bytes, signed or
 *                     (positive) not, at p, where they fit; adds them to
 *                     codes[REGS], in any lane
 *   store_fine(p, x)  x as fine integers, two bytes each, at p; four of them
 *                     are the 8 bytes a and b of dot_fine()
 *   dot_fine(s, low, x, a, b)   s and low += per lane, the 4 bytes of x times
 *                     these four, so that fine_sum(s, low) is their sum
 *   FINE_SUMS         how many of s and low it adds to
 *   dot(s, part, x, w, bits, positive, e)   s += per lane, the 4 bytes of x,
 *                     of `bits`, times the 4 bytes of w, signed or (positive)
 *                     not; called for e = 0, 1, .. of a unit, and s is whole
 *                     after the last; until then a part may be in part, which
 *                     begins as 0 */
#include "kernels/integers/impl.h"

#if V_WIDTH == 1 /* plain C: loops stay loops */
#undef UNROLL
#define UNROLL
#endif

#include "kernels/integers/products.h"

/* ---- values ----------------------------------------------------------------
 */

/* A rectangle of values of one run, lanes [lane, lane_end) and inner indices
 * [inner, inner_end).  It is written to x, whose first row is inner index
 * `first` and whose first column is lane `left`. */
struct patch {
    size_t lane, lane_end, inner, inner_end;
    size_t first, left, row;
    float *x;
};

/* Writes the values of unit u, V_WIDTH lanes from l on, to x, whose rows are
 * `row` apart.  folded and kind are constants. */
ALWAYS_INLINE void expand_unit(const vi32 c[KV_UNIT_QUADS], size_t l, size_t u,
                               const float *scale, const float *offset,
                               int folded, enum kv_offset kind, float *x,
                               size_t row)
{
    vf32 by = folded ? v_set1(0) : v_load(scale + l);
    vf32 off = folded ? v_set1(0) : v_load(offset + l);

    UNROLL
    for (unsigned e = 0; e < KV_UNIT_QUADS; e++)
        UNROLL
    for (unsigned j = 0; j < 4; j++) {
        const size_t i = u * KV_UNIT + 4 * e + j;

        if (folded) {
            by = v_set1(scale[i]);
            off = v_set1(offset[i]);
        }
        v_store(x + (4 * e + j) * row,
                value(v_from_i32(byte_of(c[e], j)), kind, by, off));
    }
}

ALWAYS_INLINE void expand_patch(const struct kv_integers *g,
                                const uint8_t *codes, const struct patch *p,
                                const float *scale, const float *offset,
                                int folded, enum kv_offset kind)
{
    const size_t block_bytes = kv_integers_block_bytes(g);

    for (size_t l = p->lane; l < p->lane_end; l += V_WIDTH)
        for (size_t u = p->inner / KV_UNIT; u * KV_UNIT < p->inner_end; u++) {
            const uint8_t *at = lanes_at(codes, block_bytes, g->bits, u, l);
            const size_t first = u * KV_UNIT;
            const size_t from = kv_max(first, p->inner);
            const size_t to = kv_min(first + KV_UNIT, p->inner_end);
            const bool whole = to - from == KV_UNIT;
            float *x = p->x + (from - p->first) * p->row + l - p->left;
            float unit[KV_UNIT * V_WIDTH];
            vi32 c[KV_UNIT_QUADS];

            if (l % KV_LANES == 0) /* lines far ahead slow this */
                kv_prefetch_near(at, KV_NEAR_INTEGERS, g->bits * KV_PLANE);
            unpack(at, g->bits, c);
            expand_unit(c, l, u, scale, offset, folded, kind, whole ? x : unit,
                        whole ? p->row : V_WIDTH);
            for (size_t i = from; !whole && i < to; i++, x += p->row)
                memcpy(x, unit + (i - first) * V_WIDTH,
                       V_WIDTH * sizeof(*unit));
        }
}

/* KV_OFFSET_SAME is treated as KV_OFFSET_ZERO: expand() has filled in the
 * shared offset.
 */
static void expand_kind(const struct kv_integers *g, const uint8_t *codes,
                        const struct patch *p, const float *scale,
                        const float *offset)
{
    const int low = g->offset == KV_OFFSET_LOW;

    if (g->folded && low)
        expand_patch(g, codes, p, scale, offset, 1, KV_OFFSET_LOW);
    else if (g->folded)
        expand_patch(g, codes, p, scale, offset, 1, KV_OFFSET_ZERO);
    else if (low)
        expand_patch(g, codes, p, scale, offset, 0, KV_OFFSET_LOW);
    else
        expand_patch(g, codes, p, scale, offset, 0, KV_OFFSET_ZERO);
}

static void expand(const struct kv_store *s, size_t head, const uint8_t *tile,
                   size_t part, float *x)
{
    const struct kv_integers *g = kv_integers_params(s);
    _Alignas(LINE) uint8_t copy[KV_MAX_HEADS];
    _Alignas(LINE) float scale[KV_MAX_DIM], offset[KV_MAX_DIM];
    const uint8_t *table = kv_integers_heads(s, head, tile, copy);
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
            p.lane = kv_max(p.lane, from);
            p.lane_end = kv_min(p.lane_end, to);
        } else {
            p.inner = kv_max(p.inner, from);
            p.inner_end = kv_min(p.inner_end, to);
        }
        if (p.lane >= p.lane_end || p.inner >= p.inner_end)
            continue;

        const struct heads h = heads_of(g, table, run);

        for (size_t i = 0; i < kv_integers_width(g); i += V_WIDTH) {
            v_store(scale + i, v_load_f16(h.scale + i));
            v_store(offset + i, offset_at(g, h, i));
        }
        expand_kind(g, tile + g->head_bytes, &p, scale, offset);
    }
    if (s->values && s->head_dim < g->lanes) /* in padding, code 0 is not the
                                              * value 0 */
        for (size_t t = 0; t < KV_TILE_PART; t++)
            memset(x + t * g->lanes + s->head_dim, 0,
                   (g->lanes - s->head_dim) * sizeof(*x));
}

/* ---- sums of values, on either path ----------------------------------------
 */

/* For folded values a run's remainder follows its lanes. */
static size_t acc_floats(const struct kv_store *s)
{
    const struct kv_integers *g = kv_integers_params(s);

    return g->lanes + (g->folded ? kv_padded(g->n_runs) : 0);
}

static void finish(const struct kv_store *s, size_t head, const float *acc,
                   size_t rows, float *out)
{
    const struct kv_integers *g = kv_integers_params(s);
    const size_t row = acc_floats(s);

    (void)head;
    for (size_t r = 0; r < rows; r++, acc += row, out += s->head_dim) {
        memcpy(out, acc, s->head_dim * sizeof(*out));
        for (size_t run = 0; g->folded && run < g->n_runs; run++)
            for (size_t c = run * g->run;
                 c < kv_min((run + 1) * g->run, s->head_dim); c++)
                out[c] += acc[g->lanes + run];
    }
}

/* ---- queries ---------------------------------------------------------------
 */

/* Copies q to [rows][inner], padded with zeros. */
static void put_queries(const struct kv_store *s, const float *q, size_t rows,
                        float *to)
{
    const size_t inner = kv_integers_params(s)->inner;

    memset(to, 0, KV_TILE_ROWS * inner * sizeof(*to));
    for (size_t r = 0; r < rows; r++)
        memcpy(to + r * inner, q + r * s->head_dim, s->head_dim * sizeof(*q));
}

/* ---- path exact: codes times w in floats, folded w times scales
 * ----------- */

/* Handles rows r to r + rows (<= ROWS) of w, [n].  Folded: writes them times
 * the scales of `heads` to by [rows][n], and the bias of the middle codes to
 * out; otherwise writes the sums to out. folded and rows are constants. */
ALWAYS_INLINE void weigh_some(const struct kv_integers *g, const float *w,
                              size_t w_row, size_t n, int folded,
                              struct heads heads, size_t r, size_t rows,
                              float *by, struct rounded *out)
{
    const vf32 middle = v_set1(middle_of(g));
    vf32 sum[ROWS][REGS];
    float each[ROWS];

    UNROLL
    for (size_t i = 0; i < ROWS * REGS; i++)
        sum[i / REGS][i % REGS] = v_set1(0);
    UNROLL
    for (size_t k = 0; k < REGS; k++)
        for (size_t i = k * V_WIDTH; i < n; i += KV_LANES) {
            vf32 scale = middle,
                 value_of_middle = middle; /* not used unfolded */

            if (folded)
                value_of_middle = value_at(g, heads, i, middle, &scale);
            UNROLL
            for (size_t j = 0; j < rows; j++) {
                const vf32 x = v_load(w + (r + j) * w_row + i);

                if (folded)
                    v_store(by + (r + j) * n + i, v_mul(x, scale));
                sum[j][k] = folded ? v_muladd(x, value_of_middle, sum[j][k])
                                   : v_add(x, sum[j][k]);
            }
        }
    sum_rows(sum, each);
    for (size_t j = 0; j < rows; j++) {
        out->unit[r + j] = 1;
        out->bias[r + j] = folded ? each[j] : 0;
        out->sum[r + j] = folded ? 0 : each[j];
    }
}

ALWAYS_INLINE void weigh(const struct kv_integers *g, const float *w,
                         size_t w_row, size_t n, int folded, struct heads heads,
                         size_t rows, float *by, struct rounded *out)
{
    size_t r = 0;

    for (; r + ROWS <= rows; r += ROWS)
        weigh_some(g, w, w_row, n, folded, heads, r, ROWS, by, out);
    for (; r < rows; r++)
        weigh_some(g, w, w_row, n, folded, heads, r, 1, by, out);
}

/* Queries [KV_TILE_ROWS][inner], then (unfolded) their sums for each run. */
static struct rounded *sums_of(const struct kv_integers *g, const void *query)
{
    return (struct rounded *)(void *)((float *)query + KV_TILE_ROWS * g->inner);
}

static size_t exact_query_bytes(const struct kv_store *s)
{
    const struct kv_integers *g = kv_integers_params(s);

    return KV_TILE_ROWS * g->inner * sizeof(float) +
           (g->folded ? 0 : g->n_runs * sizeof(struct rounded));
}

static void exact_prepare(const struct kv_store *s, size_t head, const float *q,
                          size_t rows, void *query)
{
    const struct kv_integers *g = kv_integers_params(s);
    float *const to = query;

    (void)head;
    put_queries(s, q, rows, to);
    for (size_t run = 0; !g->folded && run < g->n_runs; run++)
        weigh(g, to + run * g->run, g->inner, kv_integers_run(g, run), 0,
              (struct heads){0}, rows, NULL, &sums_of(g, query)[run]);
}

static void exact_qk(const struct kv_store *s, size_t head, const uint8_t *tile,
                     const void *query, size_t rows, float *score,
                     size_t stride)
{
    const struct kv_integers *g = kv_integers_params(s);
    const uint8_t *const codes = tile + g->head_bytes;
    _Alignas(LINE) uint8_t copy[KV_MAX_HEADS];
    _Alignas(LINE) float by[KV_TILE_ROWS * KV_MAX_DIM];
    const uint8_t *table = kv_integers_heads(s, head, tile, copy);

    fetch_heads(g, tile);
    for (size_t run = 0; run < g->n_runs; run++) {
        const struct heads h = heads_of(g, table, run);
        struct rounded w;

        if (g->folded) {
            weigh(g, query, g->inner, g->inner, 1, h, rows, by, &w);
            put_run(g, codes, 1, run, by, g->inner, FLOATS, &w, 1, h, rows, 0,
                    score, stride);
        } else {
            put_run(g, codes, 1, run, query, g->inner, FLOATS,
                    &sums_of(g, query)[run], 0, h, rows, run > 0, score,
                    stride);
        }
    }
}

static void exact_pv(const struct kv_store *s, size_t head, const uint8_t *tile,
                     const float *p, size_t stride, size_t rows, float *acc)
{
    const struct kv_integers *g = kv_integers_params(s);
    const uint8_t *const codes = tile + g->head_bytes;
    const size_t row = acc_floats(s);
    _Alignas(LINE) uint8_t copy[KV_MAX_HEADS];
    _Alignas(LINE) float by[KV_TILE_ROWS * KV_TILE_TOKENS];
    const uint8_t *table = kv_integers_heads(s, head, tile, copy);

    fetch_heads(g, tile);
    for (size_t run = 0; run < g->n_runs; run++) {
        const struct heads h = heads_of(g, table, run);
        struct rounded w;

        if (g->folded) {
            weigh(g, p, stride, g->inner, 1, h, rows, by, &w);
            for (size_t r = 0; r < rows; r++)
                acc[r * row + g->lanes + run] += w.bias[r];
            put_run(g, codes, 1, run, by, g->inner, FLOATS, &w, 1, h, rows, 1,
                    acc, row);
        } else {
            weigh(g, p + run * g->run, stride, g->run, 0, h, rows, NULL, &w);
            put_run(g, codes, 1, run, p, stride, FLOATS, &w, 0, h, rows, 1, acc,
                    row);
        }
    }
}

/* ---- int8 ------------------------------------------------------------------
 */

/* Queries [KV_TILE_ROWS][inner]; unfolded: then their codes, row_bytes for each
 * row, and per run their struct rounded. */
struct query {
    float *q;
    uint8_t *code;
    struct rounded *rounded;
};

static size_t row_bytes(const struct kv_integers *g)
{
    return g->inner * width_of(rounding_of(g, 0).kind);
}

static struct query query_at(const struct kv_integers *g, const void *query)
{
    float *const q = (float *)query;
    float *const code = q + KV_TILE_ROWS * g->inner;
    float *const rounded = code + KV_TILE_ROWS * row_bytes(g) / sizeof(*q);

    return (struct query){q, (uint8_t *)code,
                          (struct rounded *)(void *)rounded};
}

static size_t query_bytes(const struct kv_store *s)
{
    const struct kv_integers *g = kv_integers_params(s);

    return KV_TILE_ROWS * (g->inner * sizeof(float) + row_bytes(g)) +
           g->n_runs * sizeof(struct rounded);
}

static void prepare(const struct kv_store *s, size_t head, const float *q,
                    size_t rows, void *query)
{
    const struct kv_integers *g = kv_integers_params(s);
    const struct query to = query_at(g, query);

    (void)head;
    memset(to.code, 0, KV_TILE_ROWS * row_bytes(g));
    put_queries(s, q, rows, to.q);
    if (!g->folded)
        round_unfolded(g, to.q, g->inner, rounding_of(g, 0), rows, to.code,
                       to.rounded);
}

/* Multiplies all runs of n tiles with w [rows][n * inner], times scales, in
 * integers.  Their heads are in table and in the tiles that follow it.  values:
 * out [rows][acc_floats()] +=, else out [rows][64]. */
ALWAYS_INLINE void put_folded(const struct kv_store *s, const uint8_t *tile,
                              const uint8_t *table, size_t n, const float *w,
                              size_t w_row, size_t rows, int values, float *out,
                              size_t out_row)
{
    const struct kv_integers *g = kv_integers_params(s);
    const struct rounding how = rounding_of(g, values);
    const size_t all = n * g->inner, row = all * width_of(how.kind);
    _Alignas(LINE) uint8_t code[RUNS * KV_TILE_ROWS * MAX_INNER * 2];
    _Alignas(LINE) float scale[RUNS * MAX_INNER];
    struct rows x[RUNS];
    struct rounded to[RUNS];

    for (size_t t = 0; t < n; t++)
        fetch_heads(g, tile + t * s->tile_bytes);
    for (size_t run = 0, runs; run < g->n_runs; run += runs) {
        runs = kv_min(g->n_runs - run, RUNS);
        for (size_t i = 0; i < runs; i++) {
            x[i] = (struct rows){.w = w,
                                 .w_row = w_row,
                                 .n = all,
                                 .each = g->inner,
                                 .code = code + i * rows * row,
                                 .code_row = row,
                                 .scale = scale + i * all};
            for (size_t t = 0; t < n; t++)
                x[i].heads[t] = heads_of(g, table + t * s->tile_bytes, run + i);
        }
        round_folded(g, x, runs, how, rows, to);
        for (size_t i = 0; i < runs; i++) {
            for (size_t r = 0; values && r < rows; r++)
                out[r * out_row + g->lanes + run + i] += to[i].bias[r];
            put_run(g, tile + g->head_bytes, n, run + i, x[i].code, row,
                    how.kind, &to[i], 1, (struct heads){0}, rows, values, out,
                    out_row);
        }
    }
}

static void qk(const struct kv_store *s, size_t head, const uint8_t *tile,
               const void *query, size_t rows, float *score, size_t stride)
{
    const struct kv_integers *g = kv_integers_params(s);
    const struct query q = query_at(g, query);
    _Alignas(LINE) uint8_t copy[KV_MAX_HEADS];

    if (g->folded) {
        put_folded(s, tile, kv_integers_heads(s, head, tile, copy), 1, q.q,
                   g->inner, rows, 0, score, stride);
        return;
    }
    for (size_t run = 0; run < g->n_runs; run++)
        put_run(g, tile + g->head_bytes, 1, run, q.code, row_bytes(g),
                rounding_of(g, 0).kind, &q.rounded[run], 0,
                heads_of(g, tile, run), rows, run > 0, score, stride);
}

static void pv_unfolded(const struct kv_store *s, size_t head,
                        const uint8_t *tile, const float *p, size_t stride,
                        size_t rows, float *acc)
{
    const struct kv_integers *g = kv_integers_params(s);
    _Alignas(LINE) uint8_t copy[KV_MAX_HEADS];
    _Alignas(LINE) uint8_t code[KV_TILE_ROWS * KV_TILE_TOKENS * 2];
    const struct rounding how = rounding_of(g, 1);
    const uint8_t *table = kv_integers_heads(s, head, tile, copy);
    struct rounded w[KV_TILE_TOKENS / KV_UNIT];

    round_unfolded(g, p, stride, how, rows, code, w);
    for (size_t run = 0; run < g->n_runs; run++)
        put_run(g, tile + g->head_bytes, 1, run, code,
                g->inner * width_of(how.kind), how.kind, &w[run], 0,
                heads_of(g, table, run), rows, 1, acc, g->lanes);
}

static void pv_tiles(const struct kv_store *s, size_t head, const uint8_t *tile,
                     size_t n, const float *p, size_t stride, size_t rows,
                     float *acc)
{
    const struct kv_integers *g = kv_integers_params(s);

    for (size_t some; n; n -= some) {
        some = kv_min(n, tiles_together(g));
        if (g->folded)
            put_folded(s, tile, tile, some, p, stride, rows, 1, acc,
                       acc_floats(s));
        else
            pv_unfolded(s, head, tile, p, stride, rows, acc);
        tile += some * s->tile_bytes;
        p += some * KV_TILE_TOKENS;
    }
}

static void pv(const struct kv_store *s, size_t head, const uint8_t *tile,
               const float *p, size_t stride, size_t rows, float *acc)
{
    pv_tiles(s, head, tile, 1, p, stride, rows, acc);
}

const struct kv_integers_table NAME(kv_integers_table) = {
    .expand = expand,
    .exact = {.query_bytes = exact_query_bytes,
              .prepare = exact_prepare,
              .qk = exact_qk,
              .acc_floats = acc_floats,
              .pv = exact_pv,
              .finish = finish},
    .int8 = {.query_bytes = query_bytes,
             .prepare = prepare,
             .qk = qk,
             .acc_floats = acc_floats,
             .pv = pv,
             .finish = finish,
             .pv_tiles = pv_tiles},
};
