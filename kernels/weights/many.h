/* Rows of stored blocks times several x: a block's values are decoded into
 * registers and multiplied by all x there.  Included by loops.h after
 * times_f32(), whose sums it computes, where registers hold the sums of MAX_X
 * products. */

/* MANY_VALUES of each x, 32 KiB for 8, stay in the first cache while MANY_ROWS
 * rows are multiplied by them. */
enum { MANY_ROWS = 16, MANY_VALUES = 1024 };

struct many_sums {
    vf32 of[MANY_ROWS][MAX_X][SUMS];
};

/* Adds the products of a row's blocks, n values in all, and n_x arrays x.
 * ahead: b is in the matrix, and the bytes behind it are fetched ahead. */
ALWAYS_INLINE void add_blocks(read_block *read, size_t values, size_t bytes,
                              size_t n_x, const uint8_t *b, size_t n,
                              bool ahead, const float *const *x,
                              vf32 (*sum)[SUMS])
{
    struct sink s = {.n_x = n_x};

    UNROLL
    for (size_t k = 0; k < n_x * SUMS; k++)
        s.sum[k / SUMS][k % SUMS] = sum[k / SUMS][k % SUMS];
    for (size_t i = 0; i < n; i += values, b += bytes) {
        UNROLL
        for (size_t c = 0; c < n_x; c++)
            s.by[c] = x[c] + i;
        if (ahead)
            kv_prefetch(b, bytes);
        read(b, &s);
    }
    UNROLL
    for (size_t k = 0; k < n_x * SUMS; k++)
        sum[k / SUMS][k % SUMS] = s.sum[k / SUMS][k % SUMS];
}

/* add_blocks() for the last n values of a row of plain floats, padded with
 * 0. */
ALWAYS_INLINE void add_rest(read_block *read, size_t bytes, size_t n_x,
                            const uint8_t *b, size_t n, const float *const *x,
                            vf32 (*sum)[SUMS])
{
    uint8_t last[32 * 4] = {0};
    float padded[MAX_X][32] = {{0}};
    const float *by[MAX_X];

    memcpy(last, b, n * bytes / 32);
    for (size_t c = 0; c < n_x; c++) {
        memcpy(padded[c], x[c], n * sizeof(*padded[c]));
        by[c] = padded[c];
    }
    add_blocks(read, 32, bytes, n_x, last, 32, false, by, sum);
}

/* Sets y [m], y_row apart, to the sums of a row; n_x is a constant. */
ALWAYS_INLINE void end_sums(vf32 (*sum)[SUMS], size_t n_x, size_t m, float *y,
                            size_t y_row)
{
    vf32 end[MAX_X];
    float product[MAX_X];

    UNROLL
    for (size_t c = 0; c < n_x; c++)
        end[c] = fold(sum[c]);
    UNROLL
    for (size_t c = 0; c < n_x; c += 4)
        v_sum4(end + c, product + c);
    for (size_t c = 0; c < m; c++)
        y[c * y_row] = product[c];
}

/* Multiplies at most MANY_ROWS rows by m <= n_x rows of x; n_x, 4 or 8, is a
 * constant.  In place of rows beyond m the last row of x is used. */
ALWAYS_INLINE void many_rows(read_block *read, size_t values, size_t bytes,
                             size_t n_x, const uint8_t *b, size_t rows,
                             size_t n, const float *x, size_t m, float *y,
                             size_t y_row)
{
    const size_t row = n * bytes / values, whole = n - n % values;
    const float *at[MAX_X];
    struct many_sums sum;

    for (size_t c = 0; c < n_x; c++)
        at[c] = x + (c < m ? c : m - 1) * n;
    for (size_t k = 0; k < rows * MAX_X * SUMS; k++)
        sum.of[k / SUMS / MAX_X][k / SUMS % MAX_X][k % SUMS] = v_set1(0);
    for (size_t i = 0, some; i < whole; i += some) {
        some = whole - i < MANY_VALUES ? whole - i : MANY_VALUES;
        for (size_t r = 0; r < rows; r++)
            add_blocks(read, values, bytes, n_x,
                       b + r * row + i / values * bytes, some, true, at,
                       sum.of[r]);
        for (size_t c = 0; c < n_x; c++)
            at[c] += some;
    }
    for (size_t r = 0; r < rows; r++) {
        if (IS_FLOATS(values, bytes) && n > whole)
            add_rest(read, bytes, n_x, b + r * row + whole / values * bytes,
                     n - whole, at, sum.of[r]);
        end_sums(sum.of[r], n_x, m, y + r, y_row);
    }
}

ALWAYS_INLINE void times_many(read_block *read, size_t values, size_t bytes,
                              const uint8_t *b, size_t rows, size_t n,
                              const float *x, size_t m, float *y, size_t y_row)
{
    const size_t row = n * bytes / values;

    for (size_t r = 0, some; r < rows; r += some) {
        some = rows - r < MANY_ROWS ? rows - r : MANY_ROWS;
        for (size_t c = 0, some_x; c < m; c += some_x) {
            const float *from = x + c * n;
            float *to = y + c * y_row + r;

            some_x = m - c < MAX_X ? m - c : MAX_X;
            if (some_x > 4)
                many_rows(read, values, bytes, MAX_X, b + r * row, some, n,
                          from, some_x, to, y_row);
            else
                many_rows(read, values, bytes, 4, b + r * row, some, n, from,
                          some_x, to, y_row);
        }
    }
}

/* name, type, values and bytes of a block.  Entries of grids are decoded
 * first. */
/* clang-format off */
#define MANY_TYPES(X) \
    X(F32, f32, 32, 128) \
    X(F16, f16, 32, 64) \
    X(BF16, bf16, 32, 64) \
    X(F8_E4M3, f8_e4m3, 32, 32) \
    X(F8_E5M2, f8_e5m2, 32, 32) \
    X(Q8_0, q8_0, 32, 34) \
    X(Q5_1, q5_1, 32, 24) \
    X(Q5_0, q5_0, 32, 22) \
    X(Q4_1, q4_1, 32, 20) \
    X(Q4_0, q4_0, 32, 18) \
    X(Q2_K, q2_k, 256, 84) \
    X(Q3_K, q3_k, 256, 110) \
    X(Q4_K, q4_k, 256, 144) \
    X(Q5_K, q5_k, 256, 176) \
    X(Q6_K, q6_k, 256, 210) \
    X(IQ4_NL, iq4_nl, 32, 18) \
    X(IQ4_XS, iq4_xs, 256, 136) \
    X(MXFP4, mxfp4, 32, 17)
/* clang-format on */

/* A function for each type: the sums of all types would take half a MiB of one
 * function's stack. */
#define MANY(name, type, values, bytes)                                    \
    static __attribute__((noinline)) void many_##type(                     \
        const uint8_t *b, size_t rows, size_t n, const float *x, size_t m, \
        float *y, size_t y_row)                                            \
    {                                                                      \
        times_many(type, values, bytes, b, rows, n, x, m, y, y_row);       \
    }
MANY_TYPES(MANY)

#define CASE(name, type, values, bytes)          \
    case KV_STORED_##name:                       \
        many_##type(b, rows, n, x, m, y, y_row); \
        return true;

static bool many(enum kv_stored type, const uint8_t *b, size_t rows, size_t n,
                 const float *x, size_t m, float *y, size_t y_row)
{
    switch (type) {
        MANY_TYPES(CASE)
    default:
        return false;
    }
}
