/* The operations of hack.h over kernels/simd: V_WIDTH columns side by side.
 * Arranged codes are [columns / V_WIDTH][ceil(n / 4)][V_WIDTH][4], so that one
 * instruction adds four products to each column's sum.  The row's codes are
 * used as signed bytes, minus 128; adding 128 times the sum of the column's
 * codes corrects for this.  Included by avx2.c and avx512.c, which define
 * beside kernels/simd:
 *
 *   dot4(s, b, a, wide)   s + four products; wide: b has codes above 127.  s is
 *                         dots_first(dot, wide), takes up to max_joined(bits)
 *                         fours and is added to the sums before by
 *                         dots_joined(dot, s, wide)
 *   WIDE(bits)            whether codes of that width are wide to dot4()
 *   load_words(p, stride, n_columns, n, w)   up to four words of up to V_WIDTH
 *                         columns' n bytes, `stride` apart; 0 behind these
 *   four_codes(words, bits, j)   codes 4 j to 4 j + 3 of each word, of 1, 2, 4
 *                         or 8 bits, a constant, in bytes */
enum { ROWS = 4, GROUPS = V_REGISTERS / 8 /* registers of columns */ };

/* A minimum does not depend on the order or on repeated values.  min(x, low) is
 * low if both are equal, so among zeros of both signs the first one wins. */
static struct kv_hack_range range(const float *x, size_t n, unsigned bits)
{
    float low = x[0], high = x[0];

    if (n >= V_WIDTH) {
        vf32 l = v_set1(low), h = l;

        for (size_t i = 0; i < n; i += V_WIDTH) {
            const vf32 y = v_load(x + (i + V_WIDTH <= n ? i : n - V_WIDTH));

            l = v_min(y, l);
            h = v_max(y, h);
        }
        const vf32 ends[4] = {h, v_sub(v_set1(0), l), h, h};
        float end[4];

        v_max4(ends, end);
        low = -end[1];
        high = end[0];
    } else {
        for (size_t i = 1; i < n; i++) {
            low = x[i] < low ? x[i] : low;
            high = x[i] > high ? x[i] : high;
        }
    }
    return (struct kv_hack_range){
        .min = low + 0.0f, /* a zero is always +0 */
        .scale = (high - low) / top_code(bits),
    };
}

/* Loads n < 8 floats and fills up with 0. */
ALWAYS_INLINE void last_floats(const float *p, size_t n, float *to)
{
    memset(to, 0, 8 * sizeof(*to));
    memcpy(to, p, n * sizeof(*to));
}

enum { HALF = V_WIDTH / 2, PER = 8 / HALF }; /* registers of eight doubles */

/* s [r][PER] += x m for R rows of m; each product is exact, so that v_fmadd_f64
 * rounds once as the plain C does. */
ALWAYS_INLINE void add_eight(vf64 *s, const float *x, const float *m,
                             size_t stride, size_t R)
{
    UNROLL
    for (size_t j = 0; j < PER; j++) {
        const vf64 y = v_load_f64_f32(x + j * HALF);

        UNROLL
        for (size_t r = 0; r < R; r++)
            s[r * PER + j] = v_fmadd_f64(
                y, v_load_f64_f32(m + r * stride + j * HALF), s[r * PER + j]);
    }
}

/* The sum of eight lanes, added in halves. */
ALWAYS_INLINE double total(const vf64 *x)
{
    double s[8];

    UNROLL
    for (size_t j = 0; j < PER; j++)
        v_store_f64(s + j * HALF, x[j]);
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

ALWAYS_INLINE void dots_of(const float *x, const float *last_x, const float *m,
                           size_t stride, size_t R, size_t n, double *out)
{
    const size_t whole = n / 8 * 8;
    float last[4 * 8];
    vf64 s[4 * PER];

    UNROLL
    for (size_t r = 0; r < R * PER; r++)
        s[r] = v_set1_f64(0);
    for (size_t c = 0; c < whole; c += 8)
        add_eight(s, x + c, m + c, stride, R);
    if (whole < n) {
        for (size_t r = 0; r < R; r++)
            last_floats(m + r * stride + whole, n - whole, last + r * 8);
        add_eight(s, last_x, last, 8, R);
    }
    UNROLL
    for (size_t r = 0; r < R; r++)
        out[r] = total(s + r * PER);
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

/* Adds x m to R registers of out. */
ALWAYS_INLINE void add_to(const float *x, const float *m, size_t stride,
                          size_t n_rows, size_t R, double *out)
{
    vf64 s[8];

    UNROLL
    for (size_t r = 0; r < R; r++)
        s[r] = v_load_f64(out + r * HALF);
    for (size_t i = 0; i < n_rows; i++, m += stride) {
        const vf64 y = v_set1_f64((double)x[i]);

        UNROLL
        for (size_t r = 0; r < R; r++)
            s[r] = v_fmadd_f64(y, v_load_f64_f32(m + r * HALF), s[r]);
    }
    UNROLL
    for (size_t r = 0; r < R; r++)
        v_store_f64(out + r * HALF, s[r]);
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

ALWAYS_INLINE vi32 set_four(const int8_t *p)
{
    int32_t four;

    memcpy(&four, p, sizeof(four));
    return v_set1_i32(four);
}

static size_t fours_of(size_t n)
{
    return (n + 3) / 4;
}

/* Up to ROWS rows as input of products: their codes less 128, and the terms of
 * eq. 4 that depend on the row alone; all: s_a sum(a') + n m_a. */
struct left {
    int8_t code[ROWS][KV_HACK_MAX_PART];
    double scale[ROWS], min[ROWS], all[ROWS];
};

/* Evaluates eq. 4 for R rows and the columns [at, at + V_WIDTH) of c, half by
 * half. */
ALWAYS_INLINE void combine(const struct left *a, size_t R,
                           const struct kv_hack_columns *c, size_t at,
                           const vi32 *dot, double *out, size_t stride)
{
    UNROLL
    for (size_t half = 0; half < 2; half++) {
        const size_t j = half * (V_WIDTH / 2);
        const bool folded = !c->scale;
        const vf64 b_sum = v_load_f64_i32(c->sum + at + j);
        const vf64 sb =
            folded ? v_set1_f64(1) : v_load_f64_f32(c->scale + at + j);
        const vf64 mb =
            folded ? v_set1_f64(0) : v_load_f64_f32(c->min + at + j);
        const vf64 scaled = folded ? b_sum : v_mul_f64(sb, b_sum);

        UNROLL
        for (size_t i = 0; i < R; i++) {
            const vf64 sa = v_set1_f64(a->scale[i]);
            const vf64 ab =
                half ? v_high_f64_i32(dot[i]) : v_low_f64_i32(dot[i]);
            const vf64 by = folded ? sa : v_mul_f64(sa, sb);
            double *o = out + i * stride + j;
            vf64 s = v_load_f64(o);

            if (!folded)
                s = v_fmadd_f64(mb, v_set1_f64(a->all[i]), s);
            s = v_fmadd_f64(v_set1_f64(a->min[i]), scaled, s);
            v_store_f64(o, v_fmadd_f64(by, ab, s));
        }
    }
}

/* How many fours from z on are summed together. */
ALWAYS_INLINE size_t joined_end(size_t z, unsigned bits, size_t fours)
{
    return fours - z < max_joined(bits) ? fours : z + max_joined(bits);
}

/* Multiplies R rows with G registers of columns from `at` on, the last of them
 * perhaps not full; R, G and wide are constants. */
ALWAYS_INLINE void block(const struct left *a, size_t R,
                         const struct kv_hack_columns *c, size_t at, size_t G,
                         bool wide, double *out, size_t stride)
{
    const size_t fours = fours_of(c->n);
    const uint8_t *code = c->code + at * 4 * fours;
    vi32 dot[GROUPS][ROWS], s[GROUPS][ROWS], b[GROUPS];

    UNROLL
    for (size_t g = 0; g < G; g++)
        UNROLL
    for (size_t i = 0; i < R; i++)
        dot[g][i] = v_shl_i32(v_load_i32(c->sum + at + g * V_WIDTH), 7);
    for (size_t z = 0, end; z < fours; z = end) {
        end = joined_end(z, c->bits, fours);
        UNROLL
        for (size_t g = 0; g < G; g++)
            UNROLL
        for (size_t i = 0; i < R; i++)
            s[g][i] = dots_first(dot[g][i], wide);
        for (size_t y = z; y < end; y++) {
            UNROLL
            for (size_t g = 0; g < G; g++)
                b[g] = v_load_i32(code + (g * fours + y) * 4 * V_WIDTH);
            UNROLL
            for (size_t i = 0; i < R; i++) {
                const vi32 four = set_four(a->code[i] + 4 * y);

                UNROLL
                for (size_t g = 0; g < G; g++)
                    s[g][i] = dot4(s[g][i], b[g], four, wide);
            }
        }
        UNROLL
        for (size_t g = 0; g < G; g++)
            UNROLL
        for (size_t i = 0; i < R; i++)
            dot[g][i] = dots_joined(dot[g][i], s[g][i], wide);
    }
    UNROLL
    for (size_t g = 0; g < G; g++) {
        const size_t j = at + g * V_WIDTH;
        double part[ROWS * V_WIDTH];

        if (j + V_WIDTH <= c->n_columns) {
            combine(a, R, c, j, dot[g], out + j, stride);
            continue;
        }
        for (size_t i = 0; i < R; i++)
            memcpy(part + i * V_WIDTH, out + i * stride + j,
                   (c->n_columns - j) * sizeof(*out));
        combine(a, R, c, j, dot[g], part, V_WIDTH);
        for (size_t i = 0; i < R; i++)
            memcpy(out + i * stride + j, part + i * V_WIDTH,
                   (c->n_columns - j) * sizeof(*out));
    }
}

ALWAYS_INLINE void rows(const struct left *a, size_t R,
                        const struct kv_hack_columns *c, bool wide, double *out,
                        size_t stride)
{
    size_t at = 0;

    for (; at + (GROUPS - 1) * V_WIDTH < c->n_columns; at += GROUPS * V_WIDTH)
        block(a, R, c, at, GROUPS, wide, out, stride);
    for (; at < c->n_columns; at += V_WIDTH)
        block(a, R, c, at, 1, wide, out, stride);
}

/* multiply() for up to ROWS rows. */
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

static void multiply(const struct kv_hack_row *row, size_t n_rows,
                     const struct kv_hack_columns *c, double *out,
                     size_t stride)
{
    for (size_t i = 0; i < n_rows; i += ROWS) {
        const size_t n = n_rows - i < ROWS ? n_rows - i : ROWS;

        if (WIDE(c->bits))
            some_rows(row + i, n, c, true, out + i * stride, stride);
        else
            some_rows(row + i, n, c, false, out + i * stride, stride);
    }
}

/* Sums are products with ones: an 8-bit code times 1 counts like a 1-bit code
 * times 128 (joined_end()). */
static void sums(const uint8_t *arranged, size_t n_columns, size_t n,
                 int32_t *sum)
{
    static const int8_t ones[4] = {1, 1, 1, 1};
    const size_t fours = fours_of(n);

    for (size_t at = 0; at < n_columns; at += V_WIDTH) {
        vi32 all = v_zero_i32();

        for (size_t z = 0, end; z < fours; z = end) {
            vi32 s = dots_first(all, false);

            end = joined_end(z, 1, fours);
            for (; z < end; z++, arranged += 4 * V_WIDTH)
                s = dot4(s, v_load_i32(arranged), set_four(ones), false);
            all = dots_joined(all, s, false);
        }
        memcpy(sum + at, &all,
               (n_columns - at < V_WIDTH ? n_columns - at : V_WIDTH) *
                   sizeof(*sum));
    }
}

static void transpose(const uint8_t *bytes, size_t stride, size_t n_rows,
                      size_t n, uint32_t *word)
{
    const size_t row = KV_HACK_COLUMNS(n_rows);

    for (size_t j = 0; j < n_rows; j += V_WIDTH)
        for (size_t i = 0; i < n; i += 16) {
            const size_t left = (n - i + 3) / 4;
            vi32 w[4];

            load_words(bytes + j * stride + i, stride, n_rows - j, n - i, w);
            for (size_t k = 0; k < 4 && k < left; k++)
                v_store_i32(word + (i / 4 + k) * row + j, w[k]);
        }
}

/* Unpacks whole words of codes of 1, 2, 4 or 8 bits for up to V_WIDTH columns:
 * a word becomes 8 / bits fours.  bits is a constant. */
ALWAYS_INLINE void expand(const uint8_t *packed, size_t stride, unsigned bits,
                          size_t n_columns, size_t n, uint8_t *code)
{
    const size_t bytes = n * bits / 8;

    for (size_t i = 0; i < bytes; i += 16) {
        const size_t left = (bytes - i) / 4;
        vi32 w[4];

        load_words(packed + i, stride, n_columns, bytes - i, w);
        UNROLL
        for (size_t k = 0; k < 4 && k < left; k++)
            UNROLL
        for (unsigned j = 0; j < 8 / bits; j++, code += 4 * V_WIDTH)
            v_store_i32(code, four_codes(w[k], bits, j));
    }
}

/* expand() for codes of other widths, which it first unpacks to bytes. */
static void expand_any(const uint8_t *packed, size_t stride, unsigned bits,
                       size_t n_columns, size_t n, uint8_t *code)
{
    const size_t padded = 4 * fours_of(n);
    uint8_t byte[V_WIDTH * KV_HACK_MAX_PART];
    uint16_t wide[KV_HACK_MAX_PART] = {0};

    for (size_t j = 0; j < n_columns; j++) {
        kv_unpack(packed + j * stride, n, bits, wide);
        for (size_t z = 0; z < padded; z++)
            byte[j * padded + z] = (uint8_t)wide[z];
    }
    expand(byte, padded, 8, n_columns, padded, code);
}

static void arrange(const uint8_t *packed, size_t stride, unsigned bits,
                    size_t n_columns, size_t n, uint8_t *code)
{
    for (size_t j = 0; j < n_columns; j += V_WIDTH) {
        const size_t left = n_columns - j;
        const size_t some = left < V_WIDTH ? left : V_WIDTH;

        switch (n * bits % 32 ? 0 : bits) {
#define CASE(B)                                   \
    case B:                                       \
        expand(packed, stride, B, some, n, code); \
        break;
            CASE(1)
            CASE(2)
            CASE(4)
            CASE(8)
#undef CASE
        default:
            expand_any(packed, stride, bits, some, n, code);
        }
        packed += V_WIDTH * stride;
        code += V_WIDTH * 4 * fours_of(n);
    }
}
