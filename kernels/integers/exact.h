/* The exact operations of family "grouped" (tiles_grouped.c): codes meet w in
 * floats, times their steps where these are folded.  Included by
 * tiles_grouped_loops.h, which says what the registers are. */

/* Rows r to r + rows (<= ROWS) of w, [n]: folded times the steps of `heads`, to
 * by [rows][n], and in out what the middle codes make; else their sums.  folded
 * and rows are constants. */
ALWAYS_INLINE void weigh_some(const struct kv_integers *g, const float *w,
                              size_t w_row, size_t n, int folded,
                              struct heads heads, size_t r, size_t rows,
                              float *by, struct rounded *out)
{
    const vf middle = v_all(middle_of(g));
    vf sum[ROWS][REGS];
    float each[ROWS];

    UNROLL
    for (size_t i = 0; i < ROWS * REGS; i++)
        sum[i / REGS][i % REGS] = v_all(0);
    UNROLL
    for (size_t k = 0; k < REGS; k++)
        for (size_t i = k * WIDTH; i < n; i += KV_LANES) {
            vf step = middle, value_of_middle = middle; /* not used unfolded */

            if (folded)
                value_of_middle = value_at(g, heads, i, middle, &step);
            UNROLL
            for (size_t j = 0; j < rows; j++) {
                const vf x = v_load(w + (r + j) * w_row + i);

                if (folded)
                    v_store(by + (r + j) * n + i, v_mul(x, step));
                sum[j][k] = folded ? v_fma(x, value_of_middle, sum[j][k])
                                   : v_add(x, sum[j][k]);
            }
        }
    v_sums(sum, each);
    for (size_t j = 0; j < rows; j++) {
        out->scale[r + j] = 1;
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

/* Queries [KV_TILE_ROWS][inner], then of each run their sums (unfolded). */
static struct rounded *sums_of(const struct kv_integers *g, const void *query)
{
    return (struct rounded *)(void *)((float *)query + KV_TILE_ROWS * g->inner);
}

static size_t exact_query_bytes(const struct kv_store *s)
{
    const struct kv_integers *g = params_of(s);

    return KV_TILE_ROWS * g->inner * sizeof(float) +
           (g->folded ? 0 : g->n_runs * sizeof(struct rounded));
}

static void exact_prepare(const struct kv_store *s, size_t head, const float *q,
                          size_t rows, void *query)
{
    const struct kv_integers *g = params_of(s);
    float *const to = query;

    (void)head;
    put_queries(s, q, rows, to);
    for (size_t run = 0; !g->folded && run < g->n_runs; run++)
        weigh(g, to + run * g->run, g->inner, g->run, 0, (struct heads){0},
              rows, NULL, &sums_of(g, query)[run]);
}

static void exact_qk(const struct kv_store *s, size_t head, const uint8_t *tile,
                     const void *query, size_t rows, float *score,
                     size_t stride)
{
    const struct kv_integers *g = params_of(s);
    const uint8_t *const codes = tile + g->head_bytes;
    _Alignas(LINE) uint8_t copy[KV_HEADS_MOST];
    _Alignas(LINE) float by[KV_TILE_ROWS * KV_MOST_DIM];
    const uint8_t *table = kv_integers_heads(s, head, tile, copy);

    fetch_heads(g, tile);
    for (size_t run = 0; run < g->n_runs; run++) {
        const struct heads h = heads_of(g, table, run);
        struct rounded w;

        if (g->folded) {
            weigh(g, query, g->inner, g->inner, 1, h, rows, by, &w);
            put_run(g, codes, 1, run, by, g->inner, FLOATS, &w, 1, h, rows, 0,
                    score, stride);
        } else if (run) {
            put_run(g, codes, 1, run, query, g->inner, FLOATS,
                    &sums_of(g, query)[run], 0, h, rows, 1, score, stride);
        } else {
            put_run(g, codes, 1, run, query, g->inner, FLOATS,
                    sums_of(g, query), 0, h, rows, 0, score, stride);
        }
    }
}

static void exact_pv(const struct kv_store *s, size_t head, const uint8_t *tile,
                     const float *p, size_t stride, size_t rows, float *acc)
{
    const struct kv_integers *g = params_of(s);
    const uint8_t *const codes = tile + g->head_bytes;
    const size_t row = acc_floats(s);
    _Alignas(LINE) uint8_t copy[KV_HEADS_MOST];
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
