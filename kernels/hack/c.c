#include "kernels/bitpack.h"
#include "kernels/hack/hack.h"
#include "kernels/hack/loops.h"
#include "kernels/level.h"

/* ---- the plain C version: columns one after the other -------------------- */

static struct kv_hack_range range(const float *x, size_t n, unsigned bits)
{
    float low = x[0], high = x[0];

    for (size_t i = 1; i < n; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    return (struct kv_hack_range){
        .min = low + 0.0f, /* a zero is always +0 */
        .scale = (high - low) / top_code(bits),
    };
}

static void dots(const float *x, const float *m, size_t stride, size_t n_rows,
                 size_t n, double *out)
{
    for (size_t i = 0; i < n_rows; i++, m += stride) {
        double s[8] = {0};

        for (size_t c = 0; c < n; c++)
            s[c % 8] += (double)x[c] * (double)m[c];
        out[i] =
            ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
    }
}

static void add(const float *x, const float *m, size_t stride, size_t n_rows,
                size_t n, double *out)
{
    for (size_t i = 0; i < n_rows; i++)
        for (size_t c = 0; c < n; c++)
            out[c] += (double)x[i] * (double)m[i * stride + c];
}

static size_t padded(size_t n)
{
    return (n + 3) / 4 * 4;
}

static void arrange(const uint8_t *packed, size_t stride, unsigned bits,
                    size_t n_columns, size_t n, uint8_t *code)
{
    uint16_t wide[KV_HACK_MAX_PART];

    for (size_t j = 0; j < n_columns; j++, code += padded(n)) {
        kv_unpack(packed + j * stride, n, bits, wide);
        for (size_t z = 0; z < n; z++)
            code[z] = (uint8_t)wide[z];
    }
}

static void sums(const uint8_t *arranged, size_t n_columns, size_t n,
                 int32_t *sum)
{
    for (size_t j = 0; j < n_columns; j++) {
        sum[j] = 0;
        for (size_t z = 0; z < n; z++)
            sum[j] += arranged[j * padded(n) + z];
    }
}

static int32_t dot(const uint8_t *a, const uint8_t *b, size_t n)
{
    int32_t s = 0;

    for (size_t z = 0; z < n; z++)
        s += a[z] * b[z];
    return s;
}

/* out += eq. 4 of a row and column j. */
static double combined(const struct kv_hack_row *row,
                       const struct kv_hack_columns *c, size_t j, int32_t ab,
                       double out)
{
    const double sa = row->range.scale, ma = row->range.min;
    const double all = sa * row->sum + (double)row->n * ma;

    if (!c->scale)
        return fma(sa, ab, fma(ma, c->sum[j], out));

    const double sb = c->scale[j], mb = c->min[j];

    return fma(sa * sb, ab, fma(ma, sb * c->sum[j], fma(mb, all, out)));
}

static void multiply(const struct kv_hack_row *row, size_t n_rows,
                     const struct kv_hack_columns *c, double *out,
                     size_t stride)
{
    for (size_t i = 0; i < n_rows; i++, out += stride)
        for (size_t j = 0; j < c->n_columns; j++)
            out[j] = combined(
                &row[i], c, j,
                dot(row[i].code, c->code + j * padded(c->n), c->n), out[j]);
}

static void transpose(const uint8_t *bytes, size_t stride, size_t n_rows,
                      size_t n, uint32_t *word)
{
    for (size_t i = 0; i < n; i += 4, word += KV_HACK_COLUMNS(n_rows))
        for (size_t j = 0; j < n_rows; j++) {
            word[j] = 0;
            memcpy(&word[j], bytes + j * stride + i, n - i < 4 ? n - i : 4);
        }
}

TABLE(c);

/* ---- the choice -----------------------------------------------------------
 */

const struct kv_hack_table *kv_hack_table(void)
{
    static const struct kv_hack_table *const versions[] =
        KV_VERSIONS(&kv_hack_table_c, &kv_hack_table_avx2, &kv_hack_table_avx2,
                    &kv_hack_table_vnni);

    return versions[kv_level_version()];
}

/* ---- operations -----------------------------------------------------------
 */

void kv_hack_count_product(struct kv_hack_ops *ops, size_t n, size_t n_columns,
                           bool folded)
{
    /* operations of each term of eq. 4, per column */
    enum { AB = 2, A = 1, B = 1, MM = 2, ADD = 3 };
    enum { FOLDED_AB = 1, FOLDED_ADD = 1 };

    ops->products += 2 * n_columns * n;
    ops->correction += n_columns * (folded ? FOLDED_AB + B + FOLDED_ADD
                                           : AB + A + B + MM + ADD);
    ops->other += n_columns; /* += */
}

void kv_hack_count_row(struct kv_hack_ops *ops, size_t n)
{
    ops->correction += n; /* n - 1 additions, and s_a sum(a') */
}

uint64_t kv_hack_formula(size_t m, size_t n, size_t z, size_t p,
                         bool sums_stored)
{
    const uint64_t parts = z ? (z + p - 1) / p : 0;

    return 9 * m * n * parts + m * z + (sums_stored ? 0 : n * z);
}
