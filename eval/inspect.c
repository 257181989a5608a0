#include "eval/inspect.h"
#include "kernels/bitpack.h"
#include "kernels/eigen.h"
#include "lib/base/alloc.h"
#include "lib/dump.h"
#include "lib/scheme.h"
#include "lib/schemes/codebook.h"

#include <math.h>
#include <stdlib.h>

void kv_channel_add(struct kv_channel *c, float x)
{
    const double y = x;

    c->max = fmax(c->max, fabs(y));
    c->sum += y;
    c->square += y * y;
    c->cube += y * y * y;
    c->fourth += y * y * y * y;
    c->n++;
}

double kv_channel_mean(const struct kv_channel *c)
{
    return c->sum / (double)c->n;
}

static double variance(const struct kv_channel *c)
{
    const double m = kv_channel_mean(c);

    return fmax(0, c->square / (double)c->n - m * m);
}

double kv_channel_std(const struct kv_channel *c)
{
    return sqrt(variance(c));
}

/* Whether the variance is more than rounding errors. */
static bool varies(const struct kv_channel *c)
{
    return variance(c) > 1e-12 * c->square / (double)c->n;
}

double kv_channel_skewness(const struct kv_channel *c)
{
    const double n = (double)c->n, m = kv_channel_mean(c), v = variance(c);
    const double third = c->cube / n - 3 * m * c->square / n + 2 * m * m * m;

    return varies(c) ? third / (v * sqrt(v)) : NAN;
}

double kv_channel_kurtosis(const struct kv_channel *c)
{
    const double n = (double)c->n, m = kv_channel_mean(c), v = variance(c);
    const double fourth = c->fourth / n - 4 * m * c->cube / n +
                          6 * m * m * c->square / n - 3 * m * m * m * m;

    return varies(c) ? fourth / (v * v) : NAN;
}

double kv_book_used(const struct kv_book_use *b)
{
    size_t used = 0;

    for (size_t i = 0; i < b->k; i++)
        used += b->count[i] > 0;
    return used ? (double)used / (double)b->k : NAN;
}

double kv_book_perplexity(const struct kv_book_use *b)
{
    double n = 0, entropy = 0;

    for (size_t i = 0; i < b->k; i++)
        n += (double)b->count[i];
    for (size_t i = 0; i < b->k; i++)
        if (b->count[i])
            entropy -= (double)b->count[i] / n * log((double)b->count[i] / n);
    return n > 0 ? exp(entropy) : NAN;
}

static bool has_books(const struct kv_codec *c)
{
    return c->scheme->encode == kv_codebook_encode;
}

static void make(struct kv_inspected *i, const struct kv_codec *c)
{
    *i = (struct kv_inspected){.n_heads = c->shape.n_kv_heads,
                               .dim = c->shape.head_dim};
    i->channel = kv_alloc(i->n_heads * i->dim, sizeof(*i->channel));
    i->singular = kv_alloc(i->n_heads * i->dim, sizeof(*i->singular));
    if (!has_books(c))
        return;

    const struct kv_codebook_layout l =
        kv_codebook_layout(&c->spec, c->side, &c->shape);

    i->n_books = l.head_books * l.sub_books;
    i->book = kv_alloc(i->n_books, sizeof(*i->book));
    for (size_t b = 0; b < i->n_books; b++) {
        i->book[b].k = l.k;
        i->book[b].count = kv_alloc(l.k, sizeof(*i->book[b].count));
    }
}

/* Counts the centroids that encode x [n][n_heads][dim], in the codec's form. */
static void count_codes(struct kv_inspected *i, const struct kv_codec *c,
                        const float *x, size_t n)
{
    const struct kv_codebook_layout l =
        kv_codebook_layout(&c->spec, c->side, &c->shape);
    const size_t n_codes = l.n_heads * l.n_sub;
    const unsigned bits = (unsigned)kv_spec_size(&c->spec, c->side, "b");
    uint8_t *bytes = kv_alloc(n, c->block_bytes);
    uint16_t *code = kv_alloc(n_codes, sizeof(*code));

    c->scheme->encode(c, (struct kv_where){0}, x, n, bytes);
    for (size_t t = 0; t < n; t++) {
        kv_unpack(bytes + t * c->block_bytes, n_codes, bits, code);
        for (size_t h = 0; h < l.n_heads; h++)
            for (size_t j = 0; j < l.n_sub; j++) {
                const size_t book = (l.head_books > 1 ? h : 0) * l.sub_books +
                                    (l.sub_books > 1 ? j : 0);

                i->book[book].count[code[h * l.n_sub + j]]++;
            }
    }
    free(code);
    free(bytes);
}

/* Adds x to the statistics of the channels, and its Gram matrices to gram
 * [n_heads][dim][dim]. */
static void add_values(struct kv_inspected *i, const float *x, size_t n,
                       double *gram)
{
    const size_t d = i->dim, row = i->n_heads * d;

#pragma omp parallel for
    for (size_t h = 0; h < i->n_heads; h++)
        for (size_t t = 0; t < n; t++) {
            const float *y = x + t * row + h * d;

            for (size_t a = 0; a < d; a++) {
                kv_channel_add(&i->channel[h * d + a], y[a]);
                for (size_t b = 0; b < d; b++)
                    gram[(h * d + a) * d + b] += (double)y[a] * (double)y[b];
            }
        }
}

static int singular_values(struct kv_inspected *i, double *gram,
                           struct kv_err *e)
{
    const size_t d = i->dim;
    double *value = kv_alloc(d, sizeof(*value));
    int rc = 0;

    for (size_t h = 0; h < i->n_heads && !rc; h++) {
        rc = kv_eigen(gram + h * d * d, d, value);
        for (size_t j = 0; j < d && !rc; j++)
            i->singular[h * d + j] = sqrt(fmax(0, value[d - 1 - j]));
    }
    free(value);
    return rc ? kv_fail(e, "singular values: LAPACK does not converge") : 0;
}

int kv_inspect(struct kv_inspected *i, struct kv_dump *d,
               const struct kv_codec *c, struct kv_err *e)
{
    const struct kv_dump_info *info = kv_dump_info(d);
    const size_t n = info->ctx;
    int rc = -1;

    make(i, c);

    const size_t row = i->n_heads * i->dim;
    float *x = kv_alloc(n, row * sizeof(*x));
    double *gram = kv_alloc(row, i->dim * sizeof(*gram));

    for (size_t w = 0; w < info->n_windows; w++) {
        if (kv_dump_read(d, c->layer, kv_dump_tensor(c), w * n, n, x, e))
            goto out;
        i->clipped += kv_codec_clipped(c, x, n);
        kv_codec_input(c, x, n, x);
        if (has_books(c)) {
            count_codes(i, c, x, n);
            kv_codebook_transformed(c, x, n);
        }
        add_values(i, x, n, gram);
    }
    rc = singular_values(i, gram, e);
out:
    free(gram);
    free(x);
    if (rc)
        kv_inspected_clear(i);
    return rc;
}

void kv_inspected_clear(struct kv_inspected *i)
{
    for (size_t b = 0; b < i->n_books; b++)
        free(i->book[b].count);
    free(i->book);
    free(i->singular);
    free(i->channel);
    *i = (struct kv_inspected){0};
}
