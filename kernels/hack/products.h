/* The products of homomorphic.h, WIDTH columns side by side: arranged codes are
 * [columns / WIDTH][ceil(n / 4)][WIDTH][4], so that one instruction adds four
 * products to each column's sum.  The row's codes pass as signed bytes, less
 * 128; 128 times the sum of the column's codes makes up for it.
 * Included by homomorphic_avx2.c and homomorphic_vnni.c, which name the
 * registers:
 *
 *   vi, vd              WIDTH int32_t, WIDTH / 2 doubles
 *   i_load i_shift      WIDTH of them from memory; times 128
 *   i_four(p)           the four bytes at p for every column
 *   i_dot(s, b, a, wide)  s + four products; wide: b has codes above 127.
 *                       s is i_first(dot, wide), takes up to i_most(bits) steps
 *                       and is put to the sums before by i_joined(dot, s, wide)
 *   d_low d_high        doubles of the lower and the upper half of a vi
 *   d_load d_store d_all d_mul d_fma   as they say
 *   d_widen(p)          WIDTH / 2 floats as doubles
 *   d_of(p)             WIDTH / 2 int32_t as doubles
 *   vf                  WIDTH floats: f_load f_all f_min f_max, and
 *                       the f_least f_most of them
 *   d_total(s)          of eight lanes in 16 / WIDTH registers, added in halves
 *   GROUPS              registers of columns that pass together */
enum { ROWS = 4 };

/* A minimum is the same in any order, and of one value twice.  min(x, low) is
 * low where they are equal: of zeros alone both ends are the first. */
static struct kv_hack_range range(const float *x, size_t n, unsigned bits)
{
    float low = x[0], high = x[0];

    if (n >= WIDTH) {
        vf l = f_all(low), h = l;

        for (size_t i = 0; i < n; i += WIDTH) {
            const vf y = f_load(x + (i + WIDTH <= n ? i : n - WIDTH));

            l = f_min(y, l);
            h = f_max(y, h);
        }
        low = f_least(l);
        high = f_most(h);
    } else {
        for (size_t i = 1; i < n; i++) {
            low = x[i] < low ? x[i] : low;
            high = x[i] > high ? x[i] : high;
        }
    }
    return (struct kv_hack_range){
        .min = low + 0.0f, /* of the two zeros always +0 */
        .scale = (high - low) / top_code(bits),
    };
}

/* n < 8 floats, behind them 0. */
ALWAYS_INLINE void last_floats(const float *p, size_t n, float *to)
{
    memset(to, 0, 8 * sizeof(*to));
    memcpy(to, p, n * sizeof(*to));
}

enum { HALF = WIDTH / 2, PER = 8 / HALF }; /* registers of eight doubles */

/* s [r][PER] += x m for R rows of m; each product is exact, so that d_fma
 * rounds once as the plain C does. */
ALWAYS_INLINE void add_eight(vd *s, const float *x, const float *m,
                             size_t stride, size_t R)
{
    UNROLL
    for (size_t j = 0; j < PER; j++) {
        const vd y = d_widen(x + j * HALF);

        UNROLL
        for (size_t r = 0; r < R; r++)
            s[r * PER + j] =
                d_fma(y, d_widen(m + r * stride + j * HALF), s[r * PER + j]);
    }
}

ALWAYS_INLINE void dots_of(const float *x, const float *last_x, const float *m,
                           size_t stride, size_t R, size_t n, double *out)
{
    const size_t whole = n / 8 * 8;
    float last[4 * 8];
    vd s[4 * PER];

    UNROLL
    for (size_t r = 0; r < R * PER; r++)
        s[r] = d_all(0);
    for (size_t c = 0; c < whole; c += 8)
        add_eight(s, x + c, m + c, stride, R);
    if (whole < n) {
        for (size_t r = 0; r < R; r++)
            last_floats(m + r * stride + whole, n - whole, last + r * 8);
        add_eight(s, last_x, last, 8, R);
    }
    UNROLL
    for (size_t r = 0; r < R; r++)
        out[r] = d_total(s + r * PER);
}

static void dots(const float *x, const float *m, size_t stride, size_t n_rows,
                 size_t n, double *out)
{
    float last[8];
    size_t i = 0;

    last_floats(x + n / 8 * 8, n % 8, last);
    for (; i + 4 <= n_rows; i += 4)
        dots_of(x, last, m + i * stride, stride, 4, n, out + i);
    for (; i < n_rows; i++)
        dots_of(x, last, m + i * stride, stride, 1, n, out + i);
}

/* R registers of out. */
ALWAYS_INLINE void add_to(const float *x, const float *m, size_t stride,
                          size_t n_rows, size_t R, double *out)
{
    vd s[8];

    UNROLL
    for (size_t r = 0; r < R; r++)
        s[r] = d_load(out + r * HALF);
    for (size_t i = 0; i < n_rows; i++, m += stride) {
        const vd y = d_all((double)x[i]);

        UNROLL
        for (size_t r = 0; r < R; r++)
            s[r] = d_fma(y, d_widen(m + r * HALF), s[r]);
    }
    UNROLL
    for (size_t r = 0; r < R; r++)
        d_store(out + r * HALF, s[r]);
}

static void add(const float *x, const float *m, size_t stride, size_t n_rows,
                size_t n, double *out)
{
    size_t c = 0;

    for (; c + 8 * HALF <= n; c += 8 * HALF)
        add_to(x, m + c, stride, n_rows, 8, out + c);
    for (; c + HALF <= n; c += HALF)
        add_to(x, m + c, stride, n_rows, 1, out + c);
    for (size_t i = 0; c < n && i < n_rows; i++)
        for (size_t j = c; j < n; j++)
            out[j] += (double)x[i] * (double)m[i * stride + j];
}

static size_t steps_of(size_t n)
{
    return (n + 3) / 4;
}

/* What products take of up to ROWS rows: their codes less 128, and the terms of
 * eq. 4 that are theirs alone; all: s_a sum(a') + n m_a. */
struct left {
    int8_t code[ROWS][KV_HACK_MAX_PART];
    double scale[ROWS], min[ROWS], all[ROWS];
};

/* Eq. 4 of R rows and the columns [at, at + WIDTH) of c, half by half. */
ALWAYS_INLINE void combine(const struct left *a, size_t R,
                           const struct kv_hack_columns *c, size_t at,
                           const vi *dot, double *out, size_t stride)
{
    UNROLL
    for (size_t half = 0; half < 2; half++) {
        const size_t j = half * (WIDTH / 2);
        const bool folded = !c->scale;
        const vd b_sum = d_of(c->sum + at + j);
        const vd sb = folded ? d_all(1) : d_widen(c->scale + at + j);
        const vd mb = folded ? d_all(0) : d_widen(c->min + at + j);
        const vd scaled = folded ? b_sum : d_mul(sb, b_sum);

        UNROLL
        for (size_t i = 0; i < R; i++) {
            const vd sa = d_all(a->scale[i]);
            const vd ab = half ? d_high(dot[i]) : d_low(dot[i]);
            const vd by = folded ? sa : d_mul(sa, sb);
            double *o = out + i * stride + j;
            vd s = d_load(o);

            if (!folded)
                s = d_fma(mb, d_all(a->all[i]), s);
            s = d_fma(d_all(a->min[i]), scaled, s);
            d_store(o, d_fma(by, ab, s));
        }
    }
}

/* How far steps from z on are added up together. */
ALWAYS_INLINE size_t last_step(size_t z, unsigned bits, size_t steps)
{
    return steps - z < i_most(bits) ? steps : z + i_most(bits);
}

/* R rows and G registers of columns from `at` on, the last of them perhaps not
 * full; R, G and wide are constants. */
ALWAYS_INLINE void block(const struct left *a, size_t R,
                         const struct kv_hack_columns *c, size_t at, size_t G,
                         bool wide, double *out, size_t stride)
{
    const size_t steps = steps_of(c->n);
    const uint8_t *code = c->code + at * 4 * steps;
    vi dot[GROUPS][ROWS], s[GROUPS][ROWS], b[GROUPS];

    UNROLL
    for (size_t g = 0; g < G; g++)
        UNROLL
    for (size_t i = 0; i < R; i++)
        dot[g][i] = i_shift(i_load(c->sum + at + g * WIDTH));
    for (size_t z = 0, end; z < steps; z = end) {
        end = last_step(z, c->bits, steps);
        UNROLL
        for (size_t g = 0; g < G; g++)
            UNROLL
        for (size_t i = 0; i < R; i++)
            s[g][i] = i_first(dot[g][i], wide);
        for (size_t y = z; y < end; y++) {
            UNROLL
            for (size_t g = 0; g < G; g++)
                b[g] = i_load(code + (g * steps + y) * 4 * WIDTH);
            UNROLL
            for (size_t i = 0; i < R; i++) {
                const vi four = i_four(a->code[i] + 4 * y);

                UNROLL
                for (size_t g = 0; g < G; g++)
                    s[g][i] = i_dot(s[g][i], b[g], four, wide);
            }
        }
        UNROLL
        for (size_t g = 0; g < G; g++)
            UNROLL
        for (size_t i = 0; i < R; i++)
            dot[g][i] = i_joined(dot[g][i], s[g][i], wide);
    }
    UNROLL
    for (size_t g = 0; g < G; g++) {
        const size_t j = at + g * WIDTH;
        double part[ROWS * WIDTH];

        if (j + WIDTH <= c->n_columns) {
            combine(a, R, c, j, dot[g], out + j, stride);
            continue;
        }
        for (size_t i = 0; i < R; i++)
            memcpy(part + i * WIDTH, out + i * stride + j,
                   (c->n_columns - j) * sizeof(*out));
        combine(a, R, c, j, dot[g], part, WIDTH);
        for (size_t i = 0; i < R; i++)
            memcpy(out + i * stride + j, part + i * WIDTH,
                   (c->n_columns - j) * sizeof(*out));
    }
}

ALWAYS_INLINE void rows(const struct left *a, size_t R,
                        const struct kv_hack_columns *c, bool wide, double *out,
                        size_t stride)
{
    size_t at = 0;

    for (; at + (GROUPS - 1) * WIDTH < c->n_columns; at += GROUPS * WIDTH)
        block(a, R, c, at, GROUPS, wide, out, stride);
    for (; at < c->n_columns; at += WIDTH)
        block(a, R, c, at, 1, wide, out, stride);
}

/* Up to ROWS rows. */
ALWAYS_INLINE void some_rows(const struct kv_hack_row *row, size_t n,
                             const struct kv_hack_columns *c, bool wide,
                             double *out, size_t stride)
{
    struct left a;

    for (size_t i = 0; i < n; i++) {
        memset(a.code[i] + c->n / 4 * 4, 0, c->n % 4 ? 4 : 0);
        for (size_t z = 0; z < c->n; z++)
            a.code[i][z] = (int8_t)(row[i].code[z] ^ 0x80);
        a.scale[i] = row[i].range.scale;
        a.min[i] = row[i].range.min;
        a.all[i] = a.scale[i] * row[i].sum + (double)row[i].n * a.min[i];
    }
    switch (n) {
    case 1:
        rows(&a, 1, c, wide, out, stride);
        break;
    case 2:
        rows(&a, 2, c, wide, out, stride);
        break;
    case 3:
        rows(&a, 3, c, wide, out, stride);
        break;
    default:
        rows(&a, ROWS, c, wide, out, stride);
    }
}

ALWAYS_INLINE void multiply_all(const struct kv_hack_row *row, size_t n_rows,
                                const struct kv_hack_columns *c, bool wide,
                                double *out, size_t stride)
{
    for (size_t i = 0; i < n_rows; i += ROWS)
        some_rows(row + i, n_rows - i < ROWS ? n_rows - i : ROWS, c, wide,
                  out + i * stride, stride);
}

/* Sums are products with ones: a code of 8 bits gives no more than one bit and
 * 128 do. */
static void sums(const uint8_t *arranged, size_t n_columns, size_t n,
                 int32_t *sum)
{
    static const int8_t ones[4] = {1, 1, 1, 1};
    const size_t steps = steps_of(n);

    for (size_t at = 0; at < n_columns; at += WIDTH) {
        vi all = i_zero();

        for (size_t z = 0, end; z < steps; z = end) {
            vi s = i_first(all, false);

            end = last_step(z, 1, steps);
            for (; z < end; z++, arranged += 4 * WIDTH)
                s = i_dot(s, i_load(arranged), i_four(ones), false);
            all = i_joined(all, s, false);
        }
        memcpy(sum + at, &all,
               (n_columns - at < WIDTH ? n_columns - at : WIDTH) *
                   sizeof(*sum));
    }
}
