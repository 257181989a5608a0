/* CommVQ's encoding: finds the nearest code-word of a book and the bits of a
 * basis. */
#include "lib/base/alloc.h"
#include "lib/base/half.h"
#include "lib/schemes/commvq.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- keys ---------------------------------------------------------------- */

void kv_commvq_book_init(struct kv_commvq_book *b, const float *z, size_t n,
                         size_t channels)
{
    *b = (struct kv_commvq_book){.n = n,
                                 .channels = channels,
                                 .z = z,
                                 .norm = kv_alloc(n, sizeof(*b->norm)),
                                 .cross = kv_alloc(n, n * sizeof(*b->cross))};
    for (size_t c = 0; c < channels; c += 2) {
        const float *re = z + c * n, *im = re + n;

        for (size_t i = 0; i < n; i++) {
            b->norm[i] += re[i] * re[i] + im[i] * im[i];
            for (size_t j = 0; j < n; j++)
                b->cross[i * n + j] += 2 * (im[i] * re[j] - re[i] * im[j]);
        }
    }
}

void kv_commvq_book_clear(struct kv_commvq_book *b)
{
    free(b->norm);
    free(b->cross);
}

void kv_commvq_terms(const struct kv_commvq_book *b, const float *x, float *p,
                     float *q)
{
    const size_t n = b->n;

    memcpy(p, b->norm, n * sizeof(*p));
    memcpy(q, b->norm, n * sizeof(*q));
    for (size_t c = 0; c < b->channels; c += 2) {
        const float *re = b->z + c * n, *im = re + n;
        const float x_re = 2 * x[c], x_im = 2 * x[c + 1];

        for (size_t i = 0; i < n; i++) {
            p[i] -= x_re * re[i] + x_im * im[i];
            q[i] -= x_im * re[i] - x_re * im[i];
        }
    }
}

float kv_commvq_least(const struct kv_commvq_book *b, const float *p,
                      const float *q)
{
    const size_t n = b->n;
    float best[KV_COMMVQ_MAX_WORDS], least = INFINITY;

    for (size_t j = 0; j < n; j++) /* over a, for each b: no serial minimum */
        best[j] = INFINITY;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            const float s = p[i] + (q[j] + b->cross[i * n + j]);

            best[j] = s < best[j] ? s : best[j];
        }
    for (size_t j = 0; j < n; j++)
        least = best[j] < least ? best[j] : least;
    return least;
}

size_t kv_commvq_within(const struct kv_commvq_book *b, const float *p,
                        const float *q, float limit, size_t most,
                        uint32_t *code)
{
    const size_t n = b->n;
    size_t found = 0;

    for (size_t i = 0; i < n && found < most; i++) {
        int any = 0;

        for (size_t j = 0; j < n; j++)
            any |= p[i] + (q[j] + b->cross[i * n + j]) <= limit;
        for (size_t j = 0; any && j < n && found < most; j++)
            if (p[i] + (q[j] + b->cross[i * n + j]) <= limit)
                code[found++] = (uint32_t)(i * n + j);
    }
    return found;
}

size_t kv_commvq_nearest(const struct kv_commvq_book *b, const float *x)
{
    float p[KV_COMMVQ_MAX_WORDS], q[KV_COMMVQ_MAX_WORDS];
    uint32_t code = 0;

    kv_commvq_terms(b, x, p, q);
    kv_commvq_within(b, p, q, kv_commvq_least(b, p, q), 1, &code);
    return code;
}

void kv_commvq_add(const struct kv_commvq_book *b, size_t code, float by,
                   float *y)
{
    const size_t n = b->n, i = code / n, j = code % n;

    for (size_t c = 0; c < b->channels; c += 2) {
        const float *re = b->z + c * n, *im = re + n;

        y[c] += by * (re[i] - im[j]);
        y[c + 1] += by * (im[i] + re[j]);
    }
}

/* ---- values -------------------------------------------------------------- */

struct measured {
    float norm;
    size_t i;
};

static int longest_first(const void *a, const void *b)
{
    const struct measured *x = a, *y = b;

    if (x->norm != y->norm)
        return x->norm > y->norm ? -1 : 1;
    return x->i < y->i ? -1 : 1;
}

static void put_order(struct kv_commvq_basis *b)
{
    struct measured *m = kv_alloc(b->n, sizeof(*m));

    for (size_t i = 0; i < b->n; i++)
        m[i] = (struct measured){b->norm[i], i};
    qsort(m, b->n, sizeof(*m), longest_first);
    for (size_t i = 0; i < b->n; i++)
        b->order[i] = m[i].i;
    free(m);
}

void kv_commvq_basis_init(struct kv_commvq_basis *b, const float *e, size_t n,
                          size_t d)
{
    *b = (struct kv_commvq_basis){
        .n = n,
        .d = d,
        .e = e,
        .norm = kv_alloc(n, sizeof(*b->norm)),
        .gram = kv_alloc(n, n * sizeof(*b->gram)),
        .half = kv_alloc(n, sizeof(*b->half)),
        .order = kv_alloc(n, sizeof(*b->order)),
    };
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j <= i; j++) {
            double sum = 0;

            for (size_t k = 0; k < d; k++)
                sum += (double)e[i * d + k] * (double)e[j * d + k];
            b->gram[i * n + j] = b->gram[j * n + i] = (float)sum;
            b->norm[i] = (float)sum; /* the last sum is for j = i */
        }
    for (size_t i = 0; i < n * n; i++)
        b->half[i / n] += b->gram[i] / 2;
    put_order(b);
}

void kv_commvq_basis_clear(struct kv_commvq_basis *b)
{
    free(b->norm);
    free(b->gram);
    free(b->half);
    free(b->order);
}

/* The bit whose change lowers the error most, on ties the first; n if no change
 * lowers it.  with [n]: the product of each vector with the residual of y; gain
 * [n]: workspace. */
static size_t best_change(const struct kv_commvq_basis *b, const float *with,
                          const float *sign, float *gain)
{
    enum { LANES = 8 };
    float best[LANES] = {0}, most = 0;
    size_t i = 0;

    for (; i < b->n; i++)
        gain[i] = sign[i] * with[i] - b->norm[i];
    for (i = 0; i + LANES <= b->n; i += LANES)
        for (size_t l = 0; l < LANES; l++)
            best[l] = gain[i + l] > best[l] ? gain[i + l] : best[l];
    for (; i < b->n; i++)
        most = gain[i] > most ? gain[i] : most;
    for (size_t l = 0; l < LANES; l++)
        most = best[l] > most ? best[l] : most;
    for (i = 0; most > 0 && i < b->n; i++)
        if (gain[i] == most)
            return i;
    return b->n;
}

/* Updates with [n] after `by` times vector i is subtracted from the
 * residual. */
static void take_off(const struct kv_commvq_basis *b, size_t i, float by,
                     float *with)
{
    for (size_t j = 0; j < b->n; j++)
        with[j] -= by * b->gram[i * b->n + j];
}

void kv_commvq_choose(const struct kv_commvq_basis *b, const float *y,
                      uint16_t *code)
{
    const size_t n = b->n;
    float *with = kv_alloc(3 * n, sizeof(*with));
    float *sign = with + n, *gain = sign + n; /* sign: 2, or -2 where the bit is
                                               * set */

    for (size_t i = 0; i < n; i++) {
        with[i] = -b->half[i];
        for (size_t k = 0; k < b->d; k++)
            with[i] += b->e[i * b->d + k] * y[k];
    }
    for (size_t k = 0; k < n; k++) {
        const size_t i = b->order[k];
        const bool taken = with[i] > 0;

        take_off(b, i, taken ? 0.5f : -0.5f, with);
        sign[i] = taken ? -2 : 2;
    }
    for (size_t changes = 0; changes < 4 * n; changes++) { /* bounded, since
                                                            * rounding might
                                                            * make it cycle */
        const size_t i = best_change(b, with, sign, gain);

        if (i == n)
            break;
        take_off(b, i, sign[i] / 2, with);
        sign[i] = -sign[i];
    }
    for (size_t i = 0; i < n; i++)
        code[i] = sign[i] < 0;
    free(with);
}

void kv_commvq_sum(const struct kv_commvq_basis *b, const uint16_t *code,
                   float *y)
{
    memset(y, 0, b->d * sizeof(*y));
    for (size_t i = 0; i < b->n; i++)
        for (size_t k = 0; code[i] && k < b->d; k++)
            y[k] += b->e[i * b->d + k];
}

/* ---- both ---------------------------------------------------------------- */

float kv_commvq_put_norm(const float *x, size_t n, uint8_t *at)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return kv_f16_put(at, (float)sqrt(sum));
}
