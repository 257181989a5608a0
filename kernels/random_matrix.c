#include "kernels/random_matrix.h"
#include "kernels/hadamard.h"
#include "lib/base/alloc.h"
#include "lib/base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void kv_random_gaussian(uint64_t key, size_t m, size_t d, float *s)
{
    for (size_t i = 0; i < m * d; i++)
        s[i] = (float)kv_random_normal(key, i);
}

static double dot(const double *a, const double *b, size_t d)
{
    double sum = 0;

    for (size_t i = 0; i < d; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Row n of q [..][d]: subtracts its projections on the n unit rows before it,
 * twice because of rounding errors, and normalizes it. */
static void orthogonalise(double *q, size_t n, size_t d)
{
    double *row = q + n * d;

    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < n; i++) {
            const double common = dot(row, q + i * d, d);

            for (size_t j = 0; j < d; j++)
                row[j] -= common * q[i * d + j];
        }

    const double norm = sqrt(dot(row, row, d));

    for (size_t j = 0; j < d; j++)
        row[j] /= norm;
}

void kv_random_orthogonal(uint64_t key, size_t m, size_t d, float *s)
{
    double *q = kv_alloc(d, d * sizeof(*q));

    for (size_t i = 0; i < m; i++) {
        const size_t n = i % d; /* rows before it in its run */

        for (size_t j = 0; j < d; j++)
            q[n * d + j] = kv_random_normal(key, i * d + j);
        orthogonalise(q, n, d);
        for (size_t j = 0; j < d; j++)
            s[i * d + j] = (float)(sqrt((double)d) * q[n * d + j]);
    }
    free(q);
}

void kv_random_hadamard(uint64_t key, size_t d, float *s)
{
    memset(s, 0, d * d * sizeof(*s));
    for (size_t i = 0; i < d; i++) { /* column i of H, signed */
        s[i * d + i] =
            (kv_random(key, i) >> 63 ? -1 : 1) * (float)sqrt((double)d);
        kv_hadamard(s + i * d, 1, d);
    }
    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j < i; j++) {
            const float swap = s[i * d + j];

            s[i * d + j] = s[j * d + i];
            s[j * d + i] = swap;
        }
}

void kv_transpose(const float *s, size_t m, size_t d, float *to)
{
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < d; j++)
            to[j * m + i] = s[i * d + j];
}

void kv_combine_rows(const float *x, const float *s, size_t m, size_t d,
                     float *out)
{
    memset(out, 0, d * sizeof(*out));
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < d; j++)
            out[j] += x[i] * s[i * d + j];
}
