/* The loops of family "grouped" (tiles_grouped.c), WIDTH lanes side by side.
 * Included by tiles_grouped_c.c, _avx2.c and _vnni.c, which name the registers:
 *
 *   vf, vi              WIDTH floats, WIDTH 32-bit integers
 *   v_load v_store v_all v_add v_sub v_mul v_fma   as they say
 *   v_most(m, x)        the larger of m, not negative, and |x|
 *   v_half              from WIDTH 16-bit floats
 *   v_sums v_mosts      per row of x[4][REGS]: of its lanes, to out[4]; sums
 *                       as a tree, lane i with i + 8, then i + 4, i + 2, i + 1
 *   vi_load vi_store vi_all vi_add vi_and vi_or vi_shl vi_shr   as they say
 *   vi_bits(x, width, from, to)   where there is such an instruction: of each
 *                       byte the bits from `from` on, moved to `to`; constants
 *   SHIFTS()            whether vi_bits keeps products waiting, as shifting
 *                       does not
 *   vi_byte(x, j)       byte j of each lane, a constant
 *   vi_near             to the nearest integer, half to even
 *   vi_float vi_store8  as floats; the low bytes
 *   vi_store64          x[64 / WIDTH] as bytes, signed or (positive) not, of
 *                       what does not fit anything; codes[REGS] plus them,
 *                       whatever the lane
 *   vi_dot(s, part, x, w, bits, positive, e)   s += per lane, the 4 bytes of x,
 *                       of `bits`, times the 4 bytes of w, signed or (positive)
 *                       not; called for e = 0, 1, .. of a unit, and s is whole
 *                       after the last, until when some may be in part, which
 *                       begins as 0
 *   GROUPS(rows)        registers worked on together for so many rows, up to 4:
 *                       1, 2 or 4, as many as fit beside their sums
 *   FLOAT_GROUPS(rows)  the same of floats */
#include "kernels/simd/prefetch.h"
#include "kernels/simd/unroll.h"

#if WIDTH == 1 /* plain C: loops stay loops */
#undef UNROLL
#define UNROLL
#endif

#include "kernels/integers/round.h"

enum { PIECE = 64 /* lanes whose integer sums are held at a time */ };

/* ---- codes ----------------------------------------------------------------
 */

/* Of each byte of x the bits from `from` on, moved to `to`.  All but x are
 * constants. */
ALWAYS_INLINE vi moved(vi x, unsigned width, unsigned from, unsigned to,
                       int shifts)
{
    const vi mask = vi_all((int32_t)(((1u << width) - 1) * 0x01010101u << to));

#ifdef vi_bits
    if (!shifts && from != to)
        return vi_bits(x, width, from, to);
#else
    (void)shifts;
#endif
    return vi_and(from > to ? vi_shr(x, from - to) : vi_shl(x, to - from),
                  mask);
}

/* Cell e of a unit, the lanes that begin at byte `at` of a vector.  bits, e and
 * shifts are constants. */
ALWAYS_INLINE vi cell(const uint8_t *at, unsigned bits, unsigned e, int shifts)
{
    unsigned shift = 0;
    vi x = vi_all(0);

    if (bits == 8)
        return vi_load(at + e * KV_PLANE);
    if (bits & 4) {
        x = moved(vi_load(at + e / 2 * KV_PLANE), 4, e % 2 * 4, 0, shifts);
        at += 4 * KV_PLANE;
        shift = 4;
    }
    if (bits & 2) {
        x = vi_or(x, moved(vi_load(at + e / 4 * KV_PLANE), 2, e % 4 * 2, shift,
                           shifts));
        at += 2 * KV_PLANE;
        shift += 2;
    }
    if (bits & 1)
        x = vi_or(x, moved(vi_load(at), 1, e, shift, shifts));
    return x;
}

/* Where lane `lane` of unit `unit` begins. */
ALWAYS_INLINE const uint8_t *lanes_at(const uint8_t *codes, size_t block_bytes,
                                      unsigned bits, size_t unit, size_t lane)
{
    return codes + lane / KV_LANES * block_bytes + unit * bits * KV_PLANE +
           lane % KV_LANES * 4;
}

/* ---- values ----------------------------------------------------------------
 */

/* A rectangle of values: lanes [lane, lane_end), inner indices [inner,
 * inner_end), of one run; to x, whose first row is inner index `first` and
 * first column lane `left`. */
struct patch {
    size_t lane, lane_end, inner, inner_end;
    size_t first, left, row;
    float *x;
};

/* All cells of a unit. */
static void unpack(const uint8_t *at, unsigned bits, vi c[KV_UNIT_QUADS])
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

/* Of unit u, WIDTH lanes from l on.  folded, kind and whole (the patch has all
 * of the unit) are constants. */
ALWAYS_INLINE void expand_unit(const vi c[KV_UNIT_QUADS], const struct patch *p,
                               size_t l, size_t u, const float *step,
                               const float *offset, int folded,
                               enum kv_offset kind, int whole)
{
    const size_t row = p->row, from = p->inner, end = p->inner_end;
    float *to = p->x + (u * KV_UNIT - p->first) * row + l - p->left;
    vf by = folded ? v_all(0) : v_load(step + l);
    vf off = folded ? v_all(0) : v_load(offset + l);

    UNROLL
    for (unsigned e = 0; e < KV_UNIT_QUADS; e++)
        UNROLL
    for (unsigned j = 0; j < 4; j++) {
        const size_t i = u * KV_UNIT + 4 * e + j;
        const vi code = vi_byte(c[e], j);

        if (whole || (i >= from && i < end)) {
            if (folded) {
                by = v_all(step[i]);
                off = v_all(offset[i]);
            }
            v_store(to + (4 * e + j) * row,
                    value(vi_float(code), kind, by, off));
        }
    }
}

ALWAYS_INLINE void expand_patch(const struct kv_integers *g,
                                const uint8_t *codes, const struct patch *p,
                                const float *step, const float *offset,
                                int folded, enum kv_offset kind)
{
    const size_t block_bytes = kv_integers_block_bytes(g);

    for (size_t l = p->lane; l < p->lane_end; l += WIDTH)
        for (size_t u = p->inner / KV_UNIT; u * KV_UNIT < p->inner_end; u++) {
            const uint8_t *at = lanes_at(codes, block_bytes, g->bits, u, l);
            vi c[KV_UNIT_QUADS];

            if (l % KV_LANES == 0) /* lines far ahead slow this */
                kv_prefetch_near(at, KV_NEAR_INTEGERS, g->bits * KV_PLANE);
            unpack(at, g->bits, c);
            if (u * KV_UNIT >= p->inner && (u + 1) * KV_UNIT <= p->inner_end)
                expand_unit(c, p, l, u, step, offset, folded, kind, 1);
            else
                expand_unit(c, p, l, u, step, offset, folded, kind, 0);
        }
}

/* KV_OFFSET_SAME is as KV_OFFSET_ZERO: expand() has filled in the one offset.
 */
static void expand_kind(const struct kv_integers *g, const uint8_t *codes,
                        const struct patch *p, const float *step,
                        const float *offset)
{
    const int low = g->offset == KV_OFFSET_LOW;

    if (g->folded && low)
        expand_patch(g, codes, p, step, offset, 1, KV_OFFSET_LOW);
    else if (g->folded)
        expand_patch(g, codes, p, step, offset, 1, KV_OFFSET_ZERO);
    else if (low)
        expand_patch(g, codes, p, step, offset, 0, KV_OFFSET_LOW);
    else
        expand_patch(g, codes, p, step, offset, 0, KV_OFFSET_ZERO);
}

static void expand(const struct kv_store *s, size_t head, const uint8_t *tile,
                   size_t part, float *x)
{
    const struct kv_integers *g = params_of(s);
    _Alignas(LINE) uint8_t copy[KV_HEADS_MOST];
    _Alignas(LINE) float step[KV_MOST_DIM], offset[KV_MOST_DIM];
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

        for (size_t i = 0; i < kv_integers_width(g); i += WIDTH) {
            v_store(step + i, v_half(h.step + i));
            v_store(offset + i, offset_at(g, h, i));
        }
        expand_kind(g, tile + g->head_bytes, &p, step, offset);
    }
    if (s->values && s->head_dim < g->lanes) /* a code of 0 is some value */
        for (size_t t = 0; t < KV_TILE_PART; t++)
            memset(x + t * g->lanes + s->head_dim, 0,
                   (g->lanes - s->head_dim) * sizeof(*x));
}

#include "kernels/integers/products.h"

/* ---- sums of values, on either path ----------------------------------------
 */

/* Folded, what is left over of each run stands behind the lanes. */
static size_t acc_floats(const struct kv_store *s)
{
    const struct kv_integers *g = params_of(s);

    return g->lanes + (g->folded ? kv_padded(g->n_runs) : 0);
}

static void finish(const struct kv_store *s, size_t head, const float *acc,
                   size_t rows, float *out)
{
    const struct kv_integers *g = params_of(s);
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

/* To [rows][inner], filled up with zeros. */
static void put_queries(const struct kv_store *s, const float *q, size_t rows,
                        float *to)
{
    const size_t inner = params_of(s)->inner;

    memset(to, 0, KV_TILE_ROWS * inner * sizeof(*to));
    for (size_t r = 0; r < rows; r++)
        memcpy(to + r * inner, q + r * s->head_dim, s->head_dim * sizeof(*q));
}

#include "kernels/integers/exact.h"

/* ---- int8 ------------------------------------------------------------------
 */

/* The parts of a query.  Folded: what q [rows][inner] became with the heads of
 * n runs, from the first of this tile's on, which stay good while tiles share
 * them; unfolded: per run, once. */
struct folding {
    const uint8_t *tile;
    size_t n;
};

struct query {
    float *q;
    uint8_t *code; /* signed; folded: [runs][rows][inner], else [rows][inner] */
    struct rounded *rounded;
    struct folding *now;
};

/* Where they begin; q is first. */
struct places {
    size_t code, rounded, now, end;
};

static struct places places_of(const struct kv_integers *g)
{
    const size_t n_codes = g->folded ? RUNS : 1;
    const size_t n_rounded = g->folded ? RUNS : g->n_runs;
    struct places p;

    p.code = kv_round_up(KV_TILE_ROWS * g->inner * sizeof(float), LINE);
    p.rounded = p.code + kv_round_up(n_codes * KV_TILE_ROWS * g->inner, LINE);
    p.now = p.rounded + kv_round_up(n_rounded * sizeof(struct rounded), LINE);
    p.end = p.now + kv_round_up(sizeof(struct folding), LINE);
    return p;
}

static struct query query_at(const struct kv_integers *g, const void *query)
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
    const struct kv_integers *g = params_of(s);
    const struct query to = query_at(g, query);

    (void)head;
    memset(query, 0, query_bytes(s));
    put_queries(s, q, rows, to.q);
    if (!g->folded)
        round_unfolded(g, to.q, g->inner, rounding_of(g, 0), rows, to.code,
                       to.rounded);
}

/* Which of the runs in q is this tile's first.  Those of tiles that follow are
 * rounded along with the first that is not there. */
static size_t find_folded(const struct kv_store *s, size_t head,
                          const uint8_t *tile, struct query q, size_t rows)
{
    const struct kv_integers *g = params_of(s);
    const uint8_t *end = kv_store_tile(s, head, kv_store_tiles(s));
    const size_t step = g->span * s->tile_bytes;
    _Alignas(LINE) uint8_t copy[RUNS][KV_HEADS_MOST];
    _Alignas(LINE) float steps[RUNS * KV_MOST_DIM];
    struct rows x[RUNS];
    size_t i = 0;

    for (const uint8_t *t = q.now->tile; i < q.now->n; t += step) {
        if (t == tile)
            return i;
        i += g->n_runs;
    }
    const size_t tables = ((size_t)(end - tile) - 1) / step + 1;

    *q.now = (struct folding){
        .tile = tile, .n = kv_min(tables, RUNS / g->n_runs) * g->n_runs};
    for (i = 0; i < q.now->n; i++) {
        const uint8_t *table =
            kv_integers_heads(s, head, tile + i / g->n_runs * step, copy[i]);

        x[i] = (struct rows){.w = q.q,
                             .w_row = g->inner,
                             .n = g->inner,
                             .each = g->inner,
                             .code = q.code + i * rows * g->inner,
                             .code_row = g->inner,
                             .heads[0] = heads_of(g, table, i % g->n_runs),
                             .step = steps + i * g->inner};
    }
    round_folded(g, x, q.now->n, rounding_of(g, 0), rows, q.rounded);
    return 0;
}

static void qk_folded(const struct kv_store *s, size_t head,
                      const uint8_t *tile, struct query q, size_t rows,
                      float *score, size_t stride)
{
    const struct kv_integers *g = params_of(s);
    const uint8_t *first = kv_integers_first(s, head, tile);
    size_t i;

    fetch_heads(g, tile);
    i = find_folded(s, head, first, q, rows);
    for (size_t run = 0; run < g->n_runs; run++)
        put_run(g, tile + g->head_bytes, 1, run,
                q.code + (i + run) * rows * g->inner, g->inner, SIGNED,
                &q.rounded[i + run], 1, (struct heads){0}, rows, 0, score,
                stride);
}

static void qk(const struct kv_store *s, size_t head, const uint8_t *tile,
               const void *query, size_t rows, float *score, size_t stride)
{
    const struct kv_integers *g = params_of(s);
    const struct query q = query_at(g, query);

    if (g->folded) {
        qk_folded(s, head, tile, q, rows, score, stride);
        return;
    }
    for (size_t run = 0; run < g->n_runs; run++) {
        const struct heads h = heads_of(g, tile, run);

        if (run)
            put_run(g, tile + g->head_bytes, 1, run, q.code, g->inner, SIGNED,
                    &q.rounded[run], 0, h, rows, 1, score, stride);
        else
            put_run(g, tile + g->head_bytes, 1, run, q.code, g->inner, SIGNED,
                    &q.rounded[run], 0, h, rows, 0, score, stride);
    }
}

/* Of n tiles, no more than tiles_together(). */
static void pv_folded(const struct kv_store *s, const uint8_t *tile, size_t n,
                      const float *p, size_t stride, size_t rows, float *acc)
{
    const struct kv_integers *g = params_of(s);
    const size_t row = acc_floats(s), tokens = n * KV_TILE_TOKENS;
    const struct rounding how = rounding_of(g, 1);
    const enum factor kind = how.most > 127 ? POSITIVE : SIGNED;
    _Alignas(LINE) uint8_t code[RUNS * KV_TILE_ROWS * TILES * KV_TILE_TOKENS];
    _Alignas(LINE) float step[RUNS * TILES * KV_TILE_TOKENS];
    struct rows x[RUNS];
    struct rounded w[RUNS];

    for (size_t t = 0; t < n; t++)
        fetch_heads(g, tile + t * s->tile_bytes);
    for (size_t run = 0, runs; run < g->n_runs; run += runs) {
        runs = kv_min(g->n_runs - run, RUNS);
        for (size_t i = 0; i < runs; i++) {
            x[i] = (struct rows){.w = p,
                                 .w_row = stride,
                                 .n = tokens,
                                 .each = KV_TILE_TOKENS,
                                 .code = code + i * rows * tokens,
                                 .code_row = tokens,
                                 .step = step + i * tokens};
            for (size_t t = 0; t < n; t++)
                x[i].heads[t] = heads_of(g, tile + t * s->tile_bytes, run + i);
        }
        round_folded(g, x, runs, how, rows, w);
        for (size_t i = 0; i < runs; i++) {
            for (size_t r = 0; r < rows; r++)
                acc[r * row + g->lanes + run + i] += w[i].bias[r];
            put_run(g, tile + g->head_bytes, n, run + i, x[i].code, tokens,
                    kind, &w[i], 1, (struct heads){0}, rows, 1, acc, row);
        }
    }
}

static void pv_unfolded(const struct kv_store *s, size_t head,
                        const uint8_t *tile, const float *p, size_t stride,
                        size_t rows, float *acc)
{
    const struct kv_integers *g = params_of(s);
    _Alignas(LINE) uint8_t copy[KV_HEADS_MOST];
    _Alignas(LINE) uint8_t code[KV_TILE_ROWS * KV_TILE_TOKENS];
    const struct rounding how = rounding_of(g, 1);
    const enum factor kind = how.most > 127 ? POSITIVE : SIGNED;
    const uint8_t *table = kv_integers_heads(s, head, tile, copy);
    struct rounded w[KV_TILE_TOKENS / KV_UNIT];

    round_unfolded(g, p, stride, how, rows, code, w);
    for (size_t run = 0; run < g->n_runs; run++)
        put_run(g, tile + g->head_bytes, 1, run, code, g->inner, kind, &w[run],
                0, heads_of(g, table, run), rows, 1, acc, g->lanes);
}

static void pv_tiles(const struct kv_store *s, size_t head, const uint8_t *tile,
                     size_t n, const float *p, size_t stride, size_t rows,
                     float *acc)
{
    const struct kv_integers *g = params_of(s);

    for (size_t some; n; n -= some) {
        some = kv_min(n, tiles_together(g));
        if (g->folded)
            pv_folded(s, tile, some, p, stride, rows, acc);
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

const struct kv_integers_loops NAME(kv_integers_loops) = {
    .expand = expand,
    .exact = {.query_bytes = exact_query_bytes,
              .prepare = exact_prepare,
              .qk = exact_qk,
              .acc_floats = acc_floats,
              .pv = exact_pv,
              .finish = finish},
    .int8 = {.notes = true,
             .query_bytes = query_bytes,
             .prepare = prepare,
             .qk = qk,
             .acc_floats = acc_floats,
             .pv = pv,
             .finish = finish,
             .pv_tiles = pv_tiles},
};
