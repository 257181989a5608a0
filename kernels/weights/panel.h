/* Rows of floats times several x: each load serves several products.  Included
 * by loops.h after times_f32(), whose sums it computes, where registers are too
 * few for many.h. */

/* PANEL_VALUES of all rows stay in the first cache while their sums are made,
 * a register of them at a time. */
enum { PANEL_VALUES = 1024, PANEL_PAIRS = 8 };

/* Else gcc loads x again for each row of w. */
#if V_WIDTH == 8
#define IN_REGISTER(v) __asm__("" : "+x"(v))
#else
#define IN_REGISTER(v) (void)0
#endif

struct operands {
    const float *w, *x;
    size_t w_row, x_row; /* floats from row to row */
};

/* sum += the products of values [from, to) of n_x rows of x and PANEL_PAIRS /
 * n_x rows of w; n_x is a constant. */
ALWAYS_INLINE void add_products(const struct operands *o, size_t n_x,
                                size_t from, size_t to,
                                vf32 sum[SUMS][PANEL_PAIRS])
{
    for (size_t j = 0; j < SUMS; j++) {
        vf32 s[PANEL_PAIRS];

        UNROLL
        for (size_t k = 0; k < PANEL_PAIRS; k++)
            s[k] = sum[j][k];
        for (size_t i = from + j * V_WIDTH; i < to; i += 32) {
            vf32 x[PANEL_PAIRS];

            UNROLL
            for (size_t c = 0; c < n_x; c++) {
                x[c] = v_load(o->x + c * o->x_row + i);
                IN_REGISTER(x[c]);
            }
            UNROLL
            for (size_t k = 0; k < PANEL_PAIRS; k++)
                s[k] = v_fmadd(v_load(o->w + k / n_x * o->w_row + i),
                               x[k % n_x], s[k]);
        }
        UNROLL
        for (size_t k = 0; k < PANEL_PAIRS; k++)
            sum[j][k] = s[k];
    }
}

/* add_products() for the last n < 32 values, as a block padded with 0. */
ALWAYS_INLINE void add_rest(const struct operands *o, size_t n_x, size_t from,
                            size_t n, vf32 sum[SUMS][PANEL_PAIRS])
{
    float w[PANEL_PAIRS][32] = {{0}}, x[PANEL_PAIRS][32] = {{0}};
    const struct operands last = {w[0], x[0], 32, 32};

    for (size_t r = 0; r < PANEL_PAIRS / n_x; r++)
        memcpy(w[r], o->w + r * o->w_row + from, n * sizeof(*w[r]));
    for (size_t c = 0; c < n_x; c++)
        memcpy(x[c], o->x + c * o->x_row + from, n * sizeof(*x[c]));
    add_products(&last, n_x, 0, 32, sum);
}

/* Computes y [n_x][PANEL_PAIRS / n_x], its rows y_row apart. */
ALWAYS_INLINE void times_pairs(const float *w, const float *x, size_t n_x,
                               size_t n, float *y, size_t y_row)
{
    const struct operands o = {w, x, n, n};
    const size_t whole = n - n % 32;
    vf32 sum[SUMS][PANEL_PAIRS], end[PANEL_PAIRS];
    float product[PANEL_PAIRS];

    for (size_t j = 0; j < SUMS; j++)
        for (size_t k = 0; k < PANEL_PAIRS; k++)
            sum[j][k] = v_set1(0);
    for (size_t i = 0; i < whole; i += PANEL_VALUES)
        add_products(&o, n_x, i,
                     whole - i < PANEL_VALUES ? whole : i + PANEL_VALUES, sum);
    if (n > whole)
        add_rest(&o, n_x, whole, n - whole, sum);
    for (size_t k = 0; k < PANEL_PAIRS; k++) {
        vf32 part[SUMS];

        VALUES
        for (size_t j = 0; j < SUMS; j++)
            part[j] = sum[j][k];
        end[k] = fold(part);
    }
    v_sum4(end, product);
    v_sum4(end + 4, product + 4);
    for (size_t k = 0; k < PANEL_PAIRS; k++)
        y[k % n_x * y_row + k / n_x] = product[k];
}

static void times_panel(const float *w, size_t rows, size_t n, const float *x,
                        size_t m, float *y, size_t y_row)
{
    for (size_t c = 0, some; c < m; c += some, x += some * n) {
        float *to = y + c * y_row;
        size_t r = 0;

        some = m - c >= 4 ? 4 : m - c >= 2 ? 2 : 1;
        for (; some == 4 && r + 2 <= rows; r += 2)
            times_pairs(w + r * n, x, 4, n, to + r, y_row);
        for (; some == 2 && r + 4 <= rows; r += 4)
            times_pairs(w + r * n, x, 2, n, to + r, y_row);
        for (size_t j = 0; j < some && r < rows; j++)
            times_f32((const uint8_t *)(w + r * n), rows - r, n, x + j * n,
                      to + j * y_row + r);
    }
}

static bool many(enum kv_stored type, const uint8_t *b, size_t rows, size_t n,
                 const float *x, size_t m, float *y, size_t y_row)
{
    if (type == KV_STORED_F32)
        times_panel((const float *)(const void *)b, rows, n, x, m, y, y_row);
    return type == KV_STORED_F32;
}
